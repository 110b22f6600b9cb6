//! Golden files, and holding a model's results against them.
#![allow(dead_code, reason = "each test that includes it uses another part")]

use schwann_nn::verify::{VerifyOptions, verify_file};
use std::path::PathBuf;

/// Where those of this package are.
pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../nn/tests/golden");

pub(crate) fn files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "safetensors"));
    files.sort();
    assert!(!files.is_empty(), "{folder}");
    files
}

/// What is off in these files: results, states and gradients of each.
pub(crate) fn off(files: &[PathBuf], options: &VerifyOptions) -> String {
    let mut off = String::new();
    for file in files {
        match verify_file(file, options) {
            Ok(report) => {
                let has = |tensor: &str| report.rows.iter().any(|row| row.tensor == tensor);
                let gradients = report.rows.iter().any(|row| row.tensor.starts_with("grad."));
                // Where several layers have states, these have the layers' numbers; a network may have none at all.
                let state = report.class == "network" || has("hn");
                let whole = if report.class == "wiring" { has("adjacency") } else { has("y") && state && gradients };
                assert!(whole, "{report}");
                if !report.passed() {
                    off += &report.to_string();
                }
            }
            Err(e) => off += &format!("{e}\n"),
        }
    }
    off
}
