//! `schwann quantize` as people use it: the page, JSON, the written network, a budget, and bad input.

use crate::common::Place;
use serde_json::Value;

fn json(place: &Place, args: &[&str]) -> Value {
    let all = [&["quantize"], args, &["--json", "--seconds", "0"]].concat();
    serde_json::from_str(&place.run(0, &all).0).unwrap()
}

#[test]
fn the_page_fits_80_columns_and_the_written_network_runs() {
    let place = Place::new("quantize-page");
    place.run(0, &["demo", "net.safetensors", "--input", "x.npy"]);
    let (page, _) = place.run(
        0,
        &[
            "quantize",
            "net.safetensors",
            "--to",
            "int8",
            "-o",
            "small.safetensors",
            "--svg",
            "off.svg",
            "--seconds",
            "0.1",
        ],
    );
    for words in
        ["layer1", "256 × 64", "int8 by row", "smaller", "(measured on random numbers", "in turns", "small.safetensors"]
    {
        assert!(page.contains(words), "expected `{words}` in:\n{page}");
    }
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    assert!(std::fs::read_to_string(place.0.join("off.svg")).unwrap().contains("layer2"));
    let size = |name: &str| std::fs::metadata(place.0.join(name)).unwrap().len();
    assert!(size("small.safetensors") * 3 < size("net.safetensors"));
    for (file, out) in [("net.safetensors", "a.npy"), ("small.safetensors", "b.npy")] {
        place.run(0, &["run", file, "--input", "x.npy", "--output", out, "--check"]);
    }
    let [a, b] = ["a.npy", "b.npy"].map(|name| std::fs::read(place.0.join(name)).unwrap());
    assert!(a.len() == b.len() && a != b);
}

#[test]
fn errors_grow_as_bits_go_and_samples_and_kept_layers_lower_them() {
    let place = Place::new("quantize-errors");
    place.run(0, &["demo", "net.safetensors", "--model", "gated", "--input", "x.npy"]);
    let error = |more: &[&str]| {
        let found = json(&place, &[&["net.safetensors", "--calibrate", "x.npy"], more].concat());
        assert_eq!(found["outputs"]["provenance"], "measured");
        (found["outputs"]["relative"].as_f64().unwrap(), found["bytes_after"].as_u64().unwrap())
    };
    let (half, f16) = (error(&["--to", "bf16"]), error(&["--to", "f16"]));
    let (int8, int4, ternary) = (error(&["--to", "int8"]), error(&["--to", "int4"]), error(&["--to", "ternary"]));
    assert!(0.0 < int8.0 && int8.0 < int4.0 && int4.0 < ternary.0, "{int8:?} {int4:?} {ternary:?}");
    assert!(0.0 < f16.0 && f16.0 < half.0 && half.0 < int8.0, "{f16:?} {half:?}");
    assert!(half.1 == f16.1 && half.1 > int8.1 && int8.1 > int4.1 && int4.1 > ternary.1);
    assert!(error(&["--to", "int4", "--keep", "f", "--keep", "head"]).0 < int4.0);
    assert!(error(&["--to", "int4", "--block", "8", "--offsets"]).0 < int4.0);
    assert!(error(&["--to", "int8", "--activations", "int8"]).0 > int8.0);
}

#[test]
fn a_budget_is_kept_with_few_bytes() {
    let place = Place::new("quantize-budget");
    let of = |budget: &str| json(&place, &["projected-cfc", "--budget", budget, "--batch", "2", "--steps", "12"]);
    let (fine, coarse) = (of("err=0.02"), of("err=0.3"));
    for (found, most) in [(&fine, 0.02), (&coarse, 0.3)] {
        assert!(found["outputs"]["relative"].as_f64().unwrap() <= most, "{found}");
        assert_eq!(found["first_and_last_step"].as_array().unwrap().len(), 2);
    }
    assert!(coarse["bytes_after"].as_u64() < fine["bytes_after"].as_u64());
    assert!(fine["bytes_after"].as_u64() < fine["bytes_before"].as_u64());
    // Within so little, only halves are possible.
    let exact = of("err=0.001");
    let kinds: Vec<&str> = exact["layers"].as_array().unwrap().iter().filter_map(|l| l["becomes"].as_str()).collect();
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| ["f16", "bf16"].contains(kind)), "{exact}");
    assert!(exact["outputs"]["relative"].as_f64().unwrap() <= 0.001, "{exact}");
}

#[test]
fn bad_input_is_told_what_to_write() {
    let place = Place::new("quantize-bad");
    place.run(0, &["demo", "net.safetensors"]);
    let says = |args: &[&str], words: &str| {
        let (_, said) = place.run(2, &[&["quantize"], args].concat());
        assert!(said.contains(words), "{args:?} says: {said}");
    };
    says(&["net.safetensors"], "--to");
    says(&["net.safetensors", "--to", "int3"], "int8");
    says(&["net.safetensors", "--to", "int8", "--block", "0"], "`row` or `matrix`");
    says(&["net.safetensors", "--to", "int8", "--keep", "layer"], "layer1, layer2, head");
    says(&["net.safetensors", "--to", "ternary", "--offsets"], "ternary weights have none");
    says(&["net.safetensors", "--to", "bf16", "--block", "32"], "has no scales");
    says(&["net.safetensors", "--to", "f16", "--activations", "int8"], "products in integers");
    says(&["net.safetensors", "--budget", "0.1"], "err=");
    says(&["none.safetensors", "--to", "int8"], "no file");
    says(&["wired-ltc", "--to", "int8"], "numbers of single synapses stay f32");
    says(&["net.safetensors", "--to", "int8", "-o", "net.safetensors"], "net.safetensors");
    says(&["net.safetensors", "--to", "int8", "--calibrate", "none.npy"], "none.npy");
}
