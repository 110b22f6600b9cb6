//! `schwann generate` and `schwann bench decoder` as people use them.

use crate::common::Place;
use serde_json::Value;

/// A place with a decoder of bytes.
fn place(name: &str) -> Place {
    let place = Place::new(name);
    place.run(0, &["demo", "bytes.safetensors", "--model", "decoder", "--seed", "3", "--input", "tokens.npy"]);
    place
}

#[test]
fn the_same_seed_gives_the_same_text_and_speeds_are_told_apart() {
    let place = place("generate-text");
    let generate = |more: &[&str]| {
        let given = ["generate", "bytes.safetensors", "--prompt", "Once upon", "-n", "12"];
        place.run(0, &[&given[..], more].concat())
    };
    let (text, said) = generate(&["--seed", "7"]);
    assert!(text.starts_with("Once upon") && text.ends_with('\n'), "{text:?}");
    assert!(said.contains("prompt: 9 symbols in ") && said.contains("text: 11 symbols in "), "{said}");
    assert!(said.contains("(measured)"), "{said}");
    assert_eq!(text, generate(&["--seed", "7", "--threads", "2"]).0);
    assert_ne!(text, generate(&["--seed", "8"]).0);
    let (json, _) = generate(&["--seed", "7", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["tokens"].as_array().unwrap().len(), 12);
    assert_eq!(
        (&json["end"], &json["prefill"]["tokens"], &json["decode"]["tokens"]),
        (&"length".into(), &9.into(), &11.into())
    );
    assert_eq!(json["decode"]["origin"], "measured");
    // Chance has no part in the likeliest symbols.
    let likeliest = |seed: &str| generate(&["--temperature", "0", "--seed", seed]).0;
    assert_eq!(likeliest("1"), likeliest("2"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = place("generate-unread");
    let mut child = place
        .command(&["generate", "bytes.safetensors", "-p", "a", "-n", "1000"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn quantized_decoders_and_other_backends_generate_too() {
    let place = place("generate-small");
    place.run(
        0,
        &[
            "quantize",
            "bytes.safetensors",
            "--to",
            "int8",
            "--activations",
            "int8",
            "--calibrate",
            "tokens=tokens.npy",
            "--seconds",
            "0",
            "-o",
            "small.safetensors",
        ],
    );
    let (_, said) = place.run(0, &["generate", "small.safetensors", "-p", "Hello", "-n", "4"]);
    assert!(said.contains("text: 3 symbols"), "{said}");
    let tokens = |backend: &str| {
        let given = ["generate", "bytes.safetensors", "-p", "Hello", "-n", "4", "--temperature", "0", "--json"];
        let (json, _) = place.run(0, &[&given[..], &["--backend", backend]].concat());
        serde_json::from_str::<Value>(&json).unwrap()["tokens"].clone()
    };
    assert_eq!(tokens("cpu"), tokens("reference"));
}

#[test]
fn what_cannot_be_is_refused_with_words() {
    let place = place("generate-refusals");
    place.run(0, &["demo", "net.safetensors"]);
    for (given, words) in [
        (&["bytes.safetensors", "-p", ""][..], "--prompt is empty"),
        (&["bytes.safetensors", "-p", "a", "--temperature", "-1"], "`temperature` is -1"),
        (&["bytes.safetensors", "-p", "a", "--top-p", "1.5"], "`top_p` is 1.5"),
        (&["net.safetensors", "-p", "a"], "it has no output `logits`"),
        (&["missing.safetensors", "-p", "a"], "no file and no built-in model is called"),
        (&["wired-cfc", "-p", "a"], "is a model of layers; expected a decoder's graph"),
    ] {
        let (_, said) = place.run(2, &[&["generate"][..], given].concat());
        assert!(said.contains(words), "{given:?}: {said}");
    }
    let long = "x".repeat(1024);
    let (_, said) = place.run(2, &["generate", "bytes.safetensors", "-p", &long]);
    assert!(said.contains("the prompt has 1024 symbols; the decoder's context is 1024"), "{said}");
    // What is left of the context is used, and that is said.
    let (_, said) = place.run(0, &["generate", "bytes.safetensors", "-p", &long[..1020], "-n", "100"]);
    assert!(said.contains("at most 4 symbols are added") && said.contains("text: 3 symbols"), "{said}");
}

#[test]
fn a_decoder_is_measured_beside_reading_its_weights() {
    let place = Place::new("bench-decoder");
    let small = ["--width", "64", "--layers", "2", "--heads", "2", "--key-heads", "1", "--hidden", "96"];
    let given = ["bench", "decoder", "--seconds", "0.05", "--threads", "1", "--prompt", "4", "--tokens", "4"];
    for to in ["f32", "int8", "int4", "ternary"] {
        let (json, _) = place.run(0, &[&given[..], &small, &["--to", to, "--json"]].concat());
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["weights"], to);
        assert!(json["decode"]["min_s"].as_f64().unwrap() > 0.0 && json["read_bytes_per_s"].as_f64().unwrap() > 0.0);
        assert_eq!(
            (&json["provenance"]["times"], &json["provenance"]["rates"]),
            (&"measured".into(), &"derived".into())
        );
    }
    let (page, _) = place.run(0, &[&given[..], &small, &["--save", "small.safetensors"]].concat());
    assert!(page.contains("symbols/s") && page.contains("of reading"), "{page}");
    place.run(
        0,
        &[
            "profile",
            "small.safetensors",
            "--batch",
            "1",
            "--steps",
            "3",
            "--set",
            "S=8",
            "--runs",
            "10",
            "--seconds",
            "0.05",
        ],
    );
    let (_, said) = place.run(2, &[&given[..], &["--key-heads", "3"]].concat());
    assert!(said.contains("`key_heads` is 3; expected a divisor of the 16 heads"), "{said}");
}

#[test]
fn patches_of_a_file_in_every_form() {
    let place = Place::new("entropy-patches");
    let bytes: Vec<u8> = [vec![b'a'; 100], (0..100).collect(), vec![b'b'; 50]].concat();
    std::fs::write(place.0.join("mixed.bin"), bytes).unwrap();
    let given = ["entropy", "mixed.bin", "--patches", "--window", "8", "--threshold", "0.3", "--most", "40"];
    let (csv, _) = place.run(0, &[&given[..], &["--csv"]].concat());
    let rows: Vec<&str> = csv.lines().collect();
    assert_eq!(rows[..4], ["offset,bytes", "0,40", "40,40", "80,24"]);
    let (json, _) = place.run(0, &[&given[..], &["--json"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    let patches = json["patches"].as_array().unwrap();
    assert_eq!((patches.len(), &json["bytes"]), (rows.len() - 1, &250.into()));
    assert_eq!(patches.iter().map(|p| p["bytes"].as_u64().unwrap()).sum::<u64>(), 250);
    let (page, _) = place.run(0, &given);
    assert!(page.contains("250 B") && page.contains("patches:") && page.contains('█'), "{page}");
    let (_, said) = place.run(2, &["entropy", "mixed.bin", "--patches", "--least", "9", "--most", "8"]);
    assert!(said.contains("9 and 8"), "{said}");
    let (_, said) = place.run(2, &["entropy", "mixed.bin", "--rise", "0.1"]);
    assert!(said.contains("--patches"), "{said}");
}
