//! `schwann profile` as people use it.

use serde_json::Value;
use std::process::{Command, Output};

fn schwann(args: &[&str]) -> Output {
    let data = std::env::temp_dir().join(format!("schwann-profile-{}", std::process::id()));
    Command::new(env!("CARGO_BIN_EXE_schwann")).env("SCHWANN_DATA", data).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A few samples, so that the test is quick.
const QUICK: [&str; 9] = ["--no-roof", "--batch", "2", "--steps", "3", "--runs", "5", "--seconds", "0.05"];

#[test]
fn the_json_is_one_document_whose_figures_say_where_they_come_from() {
    let out = schwann(&[&["profile", "W", "P", "--json", "--compare", "--sweep=1,4"], &QUICK[..]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(document["schema"], 1);
    let profiles = document["profiles"].as_array().unwrap();
    assert_eq!(
        profiles.iter().map(|p| p["model"]["name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["wired-cfc", "projected-cfc"]
    );
    for profile in profiles {
        let time = &profile["compute"]["time_p50"];
        assert!(time["value"].as_f64().is_some_and(|t| t > 0.0), "{time}");
        assert_eq!((time["unit"].as_str(), time["provenance"].as_str()), (Some("s"), Some("measured")));
        // Nobody measured the limits: no value, and a reason.
        let roof = &profile["compute"]["of_roof"];
        assert!(roof["value"].is_null() && roof["reason"].is_string() && roof["provenance"] == "unavailable", "{roof}");
        assert_eq!(profile["workload"]["batch"]["value"], 2.0);
        assert_eq!(profile["sweep"].as_array().unwrap().len(), 2);
        let ways: Vec<_> = profile["comparisons"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
        assert!(ways.contains(&&Value::from("node by node")) && ways.contains(&&Value::from("bf16 products")));
    }
}

#[test]
fn the_page_has_the_time_the_operations_and_what_is_unknown() {
    let out = schwann(&[&["profile", "P"], &QUICK[..]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let page = text(&out.stdout);
    for part in [
        "batch 2, 3 steps",
        "per run, the median of",
        "this machine's limit:",
        "(this machine's limits were not measured",
        "arena",
        "gemm",
    ] {
        assert!(page.contains(part), "`{part}` is not in:\n{page}");
    }
    assert!(!page.contains('\u{1b}'), "colours in a pipe");
    assert!(page.starts_with("projected-cfc: CfC"), "a built-in model is shown by its name:\n{page}");
    let wide = page.lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None, "a pipe has 80 columns");
}

#[test]
fn bad_input_is_refused_with_what_was_expected() {
    for (args, words) in [
        (&["profile", "nothing.safetensors"][..], &["nothing.safetensors", "wired-cfc, dense-cfc"][..]),
        (&["profile", "W", "--batch", "0"], &["--batch", "from 1 to"]),
        (&["profile", "W", "--runs", "many"], &["--runs", "whole number"]),
        (&["profile", "W", "--sweep=1,0"], &["--sweep", "from 1 to"]),
        (&["profile", "Cargo.toml"], &["Cargo.toml is not a network"]),
    ] {
        let out = schwann(args);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(out.stdout.is_empty() && !said.contains("panicked"), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?}: expected `{word}` in: {said}");
        }
    }
}

#[test]
fn a_mere_graph_is_profiled_too() {
    let file = std::env::temp_dir().join(format!("schwann-profile-{}.safetensors", std::process::id()));
    let path = file.to_str().unwrap();
    assert!(schwann(&["demo", path, "--model", "gated"]).status.success());
    let out = schwann(&[&["profile", path], &QUICK[..]].concat());
    std::fs::remove_file(&file).unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("graph of"), "{}", text(&out.stdout));
}
