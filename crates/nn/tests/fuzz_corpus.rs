//! Replays the corpora of wirings and models, and files that lie about their sizes, with the stable compiler.

#[path = "fuzz_targets/mod.rs"]
mod fuzz_targets;

use schwann_core::Tensor;
use schwann_core::io::safetensors;
use schwann_nn::wiring::{AutoNcp, FullyConnected, Ncp, Random, Wiring, WiringConfig};
use schwann_nn::{
    Activation, Affine, Cfc, Embedding, Gru, LayerNorm, Linear, Lstm, Ltc, Model, Result, Rnn, Sequential, Softmax,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Runs a target on its corpus, of which at least `least` files must have something to check.
fn replay(target: &str, least: usize, run: fn(&[u8]) -> usize) {
    let files: Vec<PathBuf> = std::fs::read_dir(corpus(target)).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(!files.is_empty(), "the corpus of {target} is missing");
    let mut checked = 0;
    for file in files {
        let data = std::fs::read(&file).unwrap();
        match std::panic::catch_unwind(|| run(&data)) {
            Ok(found) => checked += usize::from(found > 0),
            Err(_) => panic!("{target} fails on {}", file.display()),
        }
    }
    assert!(checked >= least, "{target} found something to check in {checked} files only");
}

#[test]
fn the_wiring_corpus_holds() {
    replay("wiring", 10, fuzz_targets::wiring);
}

#[test]
fn the_model_corpus_holds() {
    replay("model", 8, fuzz_targets::model);
}

/// The corpus of decoders holds what is small; real ones are the files that others' writers made.
#[test]
fn the_decoder_corpus_holds() {
    replay("decoder", 4, fuzz_targets::decoder);
    let mut read = 0;
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoders")).unwrap() {
        let path = entry.unwrap().path();
        let data = match path.extension().and_then(|e| e.to_str()) {
            Some("gguf") => std::fs::read(&path).unwrap(),
            None if path.join("model.safetensors").exists() => joined(&path),
            _ => continue,
        };
        assert!(fuzz_targets::decoder(&data) > 0, "{}", path.display());
        // Cut anywhere, it is refused or says the same.
        for part in 1..8 {
            fuzz_targets::decoder(&data[..data.len() * part / 8]);
        }
        read += 1;
    }
    assert!(read >= 15, "{read} decoders");
}

/// A folder with a decoder as one input.
fn joined(folder: &Path) -> Vec<u8> {
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap_or_default();
    [read("config.json"), vec![0], read("model.safetensors")].concat()
}

/// The JSON of a wiring of every kind, and of how each is drawn.
fn wirings() -> Result<Vec<String>> {
    let configs: [WiringConfig; 4] = [
        FullyConnected::new(4).into(),
        Random::new(5, 0.5).into(),
        Ncp::new(4, 3, 2).into(),
        AutoNcp::new(12, 2).into(),
    ];
    let mut texts = vec![];
    for config in configs {
        texts.push(config.to_json());
        let mut wiring = config.to_wiring()?;
        texts.push(wiring.to_json());
        wiring.build(2)?;
        texts.push(wiring.to_json());
    }
    let mut custom = Wiring::new(3, 1)?;
    custom.add_synapse(1, 0, -1)?;
    custom.build(1)?;
    custom.add_sensory_synapse(0, 2, 1)?;
    custom.set_layers(vec![vec![1, 2], vec![0]])?;
    texts.push(custom.to_json());
    Ok(texts)
}

/// Small networks that use every layer between them.
fn networks() -> Vec<Sequential> {
    vec![
        Cfc::new(2, 3).into(),
        Ltc::new(2, AutoNcp::new(8, 2).wiring().unwrap()).into(),
        Cfc::new(2, AutoNcp::new(8, 2).wiring().unwrap()).into(),
        vec![
            Embedding::new(5, 2).into(),
            Gru::new(2, 3).into(),
            Lstm { proj_size: Some(2), ..Lstm::new(3, 4) }.into(),
            Rnn::new(2, 2).into(),
        ]
        .into(),
        vec![
            Affine::new(2).into(),
            Linear::new(2, 3).into(),
            LayerNorm::new(3).into(),
            Activation::Elu { alpha: 0.5 }.into(),
            Softmax { log: false }.into(),
        ]
        .into(),
    ]
}

#[test]
fn wirings_read_back_and_what_is_cut_or_huge_is_refused() -> Result<()> {
    for text in wirings()? {
        assert!(Wiring::from_json(&text).is_ok() || WiringConfig::from_json(&text).is_ok(), "{text}");
        assert!(fuzz_targets::wiring(text.as_bytes()) > 0, "{text}");
        for end in 0..text.len() {
            assert_eq!(fuzz_targets::wiring(&text.as_bytes()[..end]), 0, "cut to {end} bytes: {text}");
        }
        for huge in ["18446744073709551615", "1099511627776", "-1", "1e300", "null"] {
            for digit in 0..10 {
                fuzz_targets::wiring(text.replace(&format!(":{digit}"), &format!(":{huge}")).as_bytes());
            }
        }
    }
    assert!(WiringConfig::from_json("[[[[").is_err());
    Ok(())
}

#[test]
fn every_layer_holds() -> Result<()> {
    for network in networks() {
        assert!(fuzz_targets::model(&Model::new(network, 1)?.to_bytes()?) > 0);
    }
    Ok(())
}

#[test]
#[ignore = "writes the seeds from which the corpora grew"]
fn write_seeds() -> Result<()> {
    for target in ["wiring", "model"] {
        std::fs::create_dir_all(corpus(target)).unwrap();
    }
    for (i, text) in wirings()?.iter().enumerate() {
        std::fs::write(corpus("wiring").join(format!("seed-{i}")), text).unwrap();
    }
    for (i, network) in networks().into_iter().enumerate() {
        let model = Model::new(network, 1)?;
        let layers = serde_json::to_string(model.layers()).unwrap();
        std::fs::write(corpus("model").join(format!("seed-{i}.json")), layers).unwrap();
        std::fs::write(corpus("model").join(format!("seed-{i}")), model.to_bytes()?).unwrap();
    }
    Ok(())
}

#[test]
fn a_model_that_claims_what_it_does_not_have_is_refused() {
    let weight = Tensor::new(&[2], &[1.0f32, 2.0]).unwrap();
    for form in [
        r#"{"version":1,"layers":[]}"#,
        r#"{"version":1,"layers":[{"type":"linear","input_size":1099511627776,"output_size":1099511627776}]}"#,
        r#"{"version":1,"layers":[{}]}"#,
        r#"{"version":1}"#,
        "[]",
        "",
    ] {
        let metadata = BTreeMap::from([(schwann_nn::MODEL_KEY.to_owned(), form.to_owned())]);
        let bytes = safetensors::to_bytes([("w", &weight)], &metadata).unwrap();
        assert_eq!(fuzz_targets::model(&bytes), 0, "{form}");
        assert!(Model::from_bytes(bytes).is_err(), "{form}");
    }
}
