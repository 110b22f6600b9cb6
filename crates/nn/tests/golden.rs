//! Models of the Python package ncps give here what they gave there: results and gradients, on the reference, on every
//! instruction set of this machine, fused and not.
//!
//! `SCHWANN_GOLDEN` names another folder of files, such as `scripts/make_golden.py` writes.

use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::Reference;
use schwann_core::pass::PassOptions;
use schwann_kernels::Isa;
use schwann_nn::verify::{Engine, Verdict, VerifyOptions, verify_file};
use std::path::PathBuf;

fn files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder}");
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
    for file in files(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")) {
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

#[test]
#[expect(clippy::print_stdout, reason = "a long list is of use only with its summary")]
fn files_of_another_folder_are_met_too() {
    let Ok(folder) = std::env::var("SCHWANN_GOLDEN") else { return };
    let options = VerifyOptions::on(engines());
    let (mut off, mut near) = (String::new(), String::new());
    let (mut count, mut rows, mut as_near) = (0, 0, 0);
    let mut largest = [0.0f64; 2];
    for file in files(&folder) {
        count += 1;
        match verify_file(&file, &options) {
            Ok(report) => {
                rows += report.rows.len();
                let unusual = |verdict| report.rows.iter().filter(|row| row.verdict == verdict).count();
                as_near += unusual(Verdict::AsNear);
                if unusual(Verdict::Off) > 0 {
                    off += &report.to_string();
                } else if unusual(Verdict::AsNear) > 0 {
                    near += &report.to_string();
                }
                for row in report.rows.iter().filter(|row| row.verdict == Verdict::Within) {
                    let kind = usize::from(row.tensor.starts_with("grad."));
                    largest[kind] = largest[kind].max(row.largest_error);
                }
            }
            Err(e) => off += &format!("{e}\n"),
        }
    }
    println!("{near}");
    println!("{count} files, {rows} tensors; {as_near} beyond the tolerance but as near to f64 as the file");
    println!("largest errors within it: results {:.1e}, gradients {:.1e}", largest[0], largest[1]);
    assert!(off.is_empty(), "{off}");
}
