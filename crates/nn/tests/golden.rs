//! Models of the Python package ncps and networks of PyTorch give here what they gave there: results and gradients, on the
//! reference, on every instruction set of this machine, fused and not, and on a backend that is nothing like these.
//!
//! `SCHWANN_GOLDEN` names another folder of files, such as `scripts/make_golden.py` writes.

use crate::met::{FOLDER, files, off};
use crate::strange::Strange;
use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::Reference;
use schwann_core::io::safetensors::{self, Reader};
use schwann_core::pass::PassOptions;
use schwann_core::{DType, Tensor};
use schwann_kernels::Isa;
use schwann_nn::Result;
use schwann_nn::verify::{Engine, Report, VerifyOptions, verify_file};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Every path there is through the compiler.
fn engines() -> Vec<Engine> {
    let strange = || Strange::new().unwrap();
    let mut engines = vec![
        Engine::new(Reference, PassOptions::none()),
        Engine::new(strange(), PassOptions::default()),
        Engine::new(strange(), PassOptions::none()),
    ];
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
    let off = off(&files(FOLDER), &VerifyOptions::on(engines()));
    assert!(off.is_empty(), "{off}");
}

#[test]
#[expect(clippy::print_stdout, reason = "a long list is of use only with its summary")]
fn files_of_another_folder_are_met_too() {
    let Ok(folder) = std::env::var("SCHWANN_GOLDEN") else {
        println!("skipped: SCHWANN_GOLDEN names no folder");
        return;
    };
    let options = VerifyOptions::on(engines());
    let mut off = String::new();
    let (mut count, mut rows, mut failed) = (0, 0, 0);
    let mut largest = [0.0f64; 2];
    for file in files(&folder) {
        count += 1;
        match verify_file(&file, &options) {
            Ok(report) => {
                rows += report.rows.len();
                if !report.passed() {
                    failed += 1;
                    off += &report.to_string();
                }
                for row in &report.rows {
                    let kind = usize::from(row.tensor.starts_with("grad."));
                    largest[kind] = largest[kind].max(row.largest_error);
                }
            }
            Err(e) => off += &format!("{e}\n"),
        }
    }
    println!("{count} files, {failed} off; {rows} tensors");
    assert!(!off.is_empty() || rows >= count, "{rows} tensors of {count} files were compared");
    println!("largest errors: results {:.1e}, gradients {:.1e}", largest[0], largest[1]);
    assert!(off.is_empty(), "{off}");
}

/// A golden file with its tensors changed, compared on this CPU.
fn verify_changed(name: &str, change: impl Fn(&mut BTreeMap<String, Tensor>)) -> Result<Report> {
    let reader = Reader::open(PathBuf::from(FOLDER).join(name))?;
    let mut tensors = reader.tensors()?;
    change(&mut tensors);
    // Tests run at the same time, each with a file of its own.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("schwann-golden-{}-{number}.safetensors", std::process::id()));
    safetensors::write(&path, tensors.iter().map(|(n, t)| (n.as_str(), t)), reader.metadata())?;
    let report = verify_file(&path, &VerifyOptions::on_this_cpu()?);
    std::fs::remove_file(&path).unwrap();
    report
}

#[test]
fn a_wrong_result_is_found_and_named() -> Result<()> {
    let shifted = |tensor: &'static str| {
        move |tensors: &mut BTreeMap<String, Tensor>| {
            tensors.get_mut(tensor).unwrap().values_mut::<f32>().unwrap()[3] += 1e-3;
        }
    };
    for tensor in ["y", "hn", "grad.rnn_cell.A"] {
        let report = verify_changed("cfc_pure.safetensors", shifted(tensor))?;
        assert!(!report.passed());
        for row in &report.rows {
            assert_eq!(row.within, row.tensor != tensor, "{report}");
        }
        assert!(report.to_string().contains("OFF"), "{report}");
    }
    let wrong = |t: &mut BTreeMap<String, Tensor>| t.get_mut("adjacency").unwrap().values_mut::<i32>().unwrap()[0] = 1;
    assert!(!verify_changed("wiring_auto_64_16.safetensors", wrong)?.passed());
    assert!(verify_changed("cfc_pure.safetensors", |_| {})?.passed());
    Ok(())
}

#[test]
fn a_report_says_how_far_either_is_from_the_exact_result() -> Result<()> {
    // The file's y is moved away from the truth, so that ours is nearer.
    let moved = |tensors: &mut BTreeMap<String, Tensor>| {
        tensors.get_mut("y").unwrap().values_mut::<f32>().unwrap()[0] += 1e-3;
    };
    let report = verify_changed("cfc_pure.safetensors", moved)?;
    let y = report.rows.iter().find(|row| row.tensor == "y").unwrap();
    let (ours, theirs) = y.from_exact.unwrap();
    assert!(ours < 1e-5 && (theirs - 1e-3).abs() < 1e-4, "{report}");
    Ok(())
}

#[test]
fn what_a_file_lacks_is_named() {
    let said = |change: &dyn Fn(&mut BTreeMap<String, Tensor>)| {
        verify_changed("cfc_pure.safetensors", change).map(drop).unwrap_err().to_string()
    };
    assert!(said(&|t| drop(t.remove("x"))).contains("tensor `x` is missing"));
    assert!(said(&|t| drop(t.remove("y"))).contains("tensor `y` is missing"));
    assert!(
        said(&|t| drop(t.remove("model.rnn_cell.A"))).contains("tensor `rnn_cell.A` is missing; expected f32[1, 16]")
    );
    let one = || Tensor::new(&[1], &[0.0f32]).unwrap();
    assert!(said(&|t| drop(t.insert("x".into(), one()))).contains("tensor `x` is f32[1]; expected two axes"));
    assert!(said(&|t| drop(t.insert("hn".into(), one()))).contains("tensor `hn` is f32[1]; expected f32[3, 16]"));
    assert!(said(&|t| drop(t.insert("grad.z".into(), one()))).contains("the gradient of no parameter"));
    assert!(said(&|t| drop(t.insert("timespans".into(), one()))).contains("`timespans` is f32[1]; expected f32[3, 7]"));
    assert!(said(&|t| drop(t.insert("h0".into(), one()))).contains("input `h0`: expected f32[B, 16]"));
}

#[test]
fn a_sample_of_nothing_that_claims_to_be_large_is_refused() {
    for shape in [[1 << 40, 0, 8], [0, 1 << 40, 8], [0, 0, 0]] {
        let nothing = Tensor::zeros(DType::F32, &shape).unwrap();
        let said = verify_changed("cfc_default.safetensors", |t| drop(t.insert("x".into(), nothing.clone())))
            .unwrap_err()
            .to_string();
        assert!(said.contains("`x`") && said.contains("a sample that has numbers"), "{said}");
    }
}

#[test]
fn an_exported_model_is_the_state_dict_that_it_was_imported_from() -> Result<()> {
    let mut compared = 0;
    for file in files(FOLDER) {
        let Ok(model) = schwann_nn::import_ncps(&file) else { continue };
        let bytes = schwann_nn::export_ncps_bytes(&model)?;
        assert_eq!(schwann_nn::import_ncps_bytes(bytes.clone())?.weights(), model.weights(), "{}", file.display());
        // What PyTorch wrote under these names, ours is to the bit: masks too.
        let (theirs, ours) = (Reader::open(&file)?, Reader::from_bytes(bytes)?);
        let matrix = |name: &str| name.ends_with("adjacency");
        let names = |reader: &Reader, prefix: &str| -> Vec<String> {
            let names = reader.entries().iter().filter_map(|e| e.name.strip_prefix(prefix));
            let mut names: Vec<String> = names.filter(|n| !matrix(n)).map(str::to_owned).collect();
            names.sort();
            names
        };
        let own = names(&ours, "");
        for name in names(&theirs, "model.") {
            assert!(own.contains(&name), "{}: `{name}` is missing", file.display());
            let (a, b) = (theirs.tensor_as(&format!("model.{name}"), DType::F32)?, ours.tensor_as(&name, DType::F32)?);
            assert_eq!(a, b, "{}: {name}", file.display());
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared} tensors");
    Ok(())
}
