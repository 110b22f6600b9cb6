//! `schwann generate` with tokenizers: a folder's, a GGUF file's, and one that is given.

use crate::common::Place;
use schwann::io;
use schwann_nn::decoder::Decoder;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../nn/tests/tokenizers").join(name)
}

fn generate(place: &Place, model: &str, more: &[&str]) -> serde_json::Value {
    let args = ["generate", model, "--prompt", "Hello world", "--temperature", "0", "--tokens", "6", "--json"];
    let (page, _) = place.run(0, &[&args[..], more].concat());
    serde_json::from_str(&page).unwrap()
}

#[test]
fn symbols_are_those_of_the_tokenizer_wherever_it_is_from() {
    let place = Place::new("generate-tokenizers");
    std::fs::create_dir(place.0.join("decoder")).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(data("decoder").join(file), place.0.join("decoder").join(file)).unwrap();
    }
    std::fs::copy(data("pieces.gguf"), place.0.join("pieces.gguf")).unwrap();
    std::fs::copy(data("pieces.json"), place.0.join("pieces.json")).unwrap();
    place.run(0, &["import", "decoder", "decoder", "-o", "graph.safetensors"]);
    let folder = generate(&place, "decoder", &["--no-stop"]);
    let prompt = &folder["prompt"]["tokens"];
    assert!(prompt[0] == 1 && prompt.as_array().unwrap().len() < "Hello world".len(), "{prompt}");
    assert_eq!(&generate(&place, "pieces.gguf", &["--no-stop"])["prompt"]["tokens"], prompt);
    let graph = generate(&place, "graph.safetensors", &["--no-stop", "--tokenizer", "pieces.json"]);
    for part in ["prompt", "tokens", "text"] {
        assert_eq!(graph[part], folder[part]);
    }
    assert_eq!(folder["tokens"].as_array().unwrap().len(), 6);
    // With what comes first as the end, nothing comes.
    let first = &folder["tokens"][0];
    std::fs::write(place.0.join("decoder/generation_config.json"), format!("{{\"eos_token_id\": [{first}]}}")).unwrap();
    let ended = generate(&place, "decoder", &[]);
    assert_eq!((&ended["end"], &ended["text"]), (&"stop".into(), &"".into()));
}

#[test]
fn a_decoder_without_tokenizer_or_with_one_that_does_not_fit_is_refused() {
    let place = Place::new("generate-no-tokenizer");
    let tokenizer = data("pieces.json").to_str().unwrap().to_owned();
    for (vocabulary, more, words) in [
        (600, &[][..], "has 600 symbols and no tokenizer; expected --tokenizer FILE"),
        (400, &["--tokenizer", &tokenizer], "is 512; expected 400 at most, as many as the decoder has"),
        (400, &["--tokenizer", "missing.json"], "--tokenizer"),
    ] {
        let decoder = Decoder { vocabulary, ..Decoder::tiny() };
        io::save(place.0.join("g.safetensors"), &decoder.graph(&decoder.draw(1).unwrap()).unwrap()).unwrap();
        let (_, said) = place.run(2, &[&["generate", "g.safetensors", "--prompt", "Hello"][..], more].concat());
        assert!(said.contains(words), "{said}");
    }
}
