//! Models of the Python package ncps give here what they gave there: results and gradients, on the reference, on every
//! instruction set of this machine, fused and not.

use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::Reference;
use schwann_core::pass::PassOptions;
use schwann_kernels::Isa;
use schwann_nn::verify::{Engine, Verdict, VerifyOptions, verify_file};
use std::path::PathBuf;

fn golden() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 16, "{folder}");
    files
}

/// Every path there is through the compiler.
fn engines() -> Vec<Engine> {
    let mut engines = vec![Engine::new(Reference, PassOptions::none())];
    for (threads, &isa) in Isa::available().iter().enumerate() {
        let cpu = || Cpu::with_isa(isa, 1 + threads % 2).unwrap();
        engines.push(Engine::new(cpu(), PassOptions::default()));
        engines.push(Engine::new(cpu(), PassOptions { fuse: false, ..PassOptions::default() }));
        engines.push(Engine::new(cpu(), PassOptions::none()));
    }
    engines
}

#[test]
fn every_golden_file_is_met_on_every_path() {
    let options = VerifyOptions::on(engines());
    let mut off = String::new();
    for file in golden() {
        match verify_file(&file, &options) {
            Ok(report) => {
                let has = |tensor: &str| report.rows.iter().any(|row| row.tensor == tensor);
                let gradients = report.rows.iter().any(|row| row.tensor.starts_with("grad."));
                let whole =
                    if report.class == "wiring" { has("adjacency") } else { has("y") && has("hn") && gradients };
                assert!(whole, "{report}");
                if report.rows.iter().any(|row| row.verdict != Verdict::Within) {
                    off += &report.to_string();
                }
            }
            Err(e) => off += &format!("{e}\n"),
        }
    }
    assert!(off.is_empty(), "{off}");
}
