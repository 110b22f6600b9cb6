//! `schwann import decoder` as people use it: what it writes is a network that the other commands take.

use crate::common::Place;
use schwann::io::safetensors::Reader;
use schwann::{DType, Tensor, io};
use std::path::Path;

fn data(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nn/tests/decoders");
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn what_it_writes_is_run_profiled_and_quantized() {
    let place = Place::new("import-decoder");
    let expected = Reader::open(data("llama.expected.safetensors")).unwrap();
    io::write_npy(place.0.join("tokens.npy"), &expected.tensor("tokens").unwrap()).unwrap();
    let want = expected.tensor("logits").unwrap();
    for from in ["llama", "llama.gguf"] {
        let (page, _) = place.run(0, &["import", "decoder", &data(from), "-o", "d.safetensors"]);
        for words in ["d.safetensors", "tokens i32[B, T]", "logits f32[B, T, 32]"] {
            assert!(page.contains(words), "expected `{words}` in:\n{page}");
        }
        place.run(0, &["run", "d.safetensors", "--input", "tokens.npy", "--output", "y.npy", "--check"]);
        let got = io::read_npy(place.0.join("y.npy")).unwrap();
        assert_eq!(got.shape(), want.shape());
        let off = got.values::<f32>().unwrap().iter().zip(want.values::<f32>().unwrap());
        assert!(off.map(|(g, w)| (g - w).abs()).fold(0.0, f32::max) < 1e-4);
    }
    let (page, _) = place.run(0, &["info", "d.safetensors"]);
    assert!(page.contains("logits f32[B, T, 32]"), "{page}");
    let (page, _) = place.run(0, &["graph", "d.safetensors"]);
    assert!(page.contains("layers.1.mlp.down"), "{page}");
    place.run(0, &["profile", "d.safetensors", "--batch", "1", "--steps", "8", "--runs", "3", "--json"]);
    let args = ["quantize", "d.safetensors", "--to", "int8", "--calibrate", "tokens.npy", "--seconds", "0"];
    let (page, _) = place.run(0, &[&args[..], &["-o", "q.safetensors"]].concat());
    assert!(page.contains("layers.0.attention.q"), "{page}");
    place.run(0, &["run", "q.safetensors", "--input", "tokens.npy", "--output", "z.npy", "--check"]);
}

#[test]
fn the_context_can_be_shorter_but_not_longer() {
    let place = Place::new("import-decoder-context");
    let import = |context: &str, code: i32| {
        place.run(code, &["import", "decoder", &data("mlx"), "-o", "d.safetensors", "--context", context, "--json"])
    };
    let (json, _) = import("4", 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["inputs"][0], "tokens i32[B, T]");
    io::write_npy(place.0.join("x.npy"), &Tensor::zeros(DType::I32, &[1, 5]).unwrap()).unwrap();
    let (_, said) = place.run(2, &["run", "d.safetensors", "--input", "x.npy", "--output", "y.npy"]);
    assert!(said.contains("rope"), "{said}");
    let (_, said) = import("41", 2);
    assert!(said.contains("--context 41: expected from 1 to 40"), "{said}");
}

#[test]
fn what_is_no_decoder_is_refused() {
    let place = Place::new("import-decoder-bad");
    std::fs::create_dir(place.0.join("empty")).unwrap();
    std::fs::write(place.0.join("text.gguf"), "no model").unwrap();
    for (from, words) in [("empty", "config.json"), ("text.gguf", "not a GGUF file"), ("nowhere", "nowhere")] {
        let (_, said) = place.run(2, &["import", "decoder", from, "-o", "d.safetensors"]);
        assert!(said.contains(words), "{said}");
    }
    // The model's own files are not written over.
    let own = place.0.join("own");
    std::fs::create_dir(&own).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(data(&format!("llama/{file}")), own.join(file)).unwrap();
    }
    let (_, said) = place.run(2, &["import", "decoder", "own", "-o", "own/model.safetensors"]);
    assert!(said.contains("would overwrite the input"), "{said}");
}
