//! Every schedule, run by the interpreter: the case list agrees with the reference, and no thread reads or writes what it
//! should not.

mod interpreted;

use interpreted::{kernels, run, run_with};
use schwann_codegen::mutate::{Mistake, mutants};
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::{self, compare};
use schwann_core::pass::{PassOptions, optimize};
use schwann_gpu::device::Limits;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// With few workgroups at a time, so that a block of a loop has several rows; and with as many as there are rows.
fn limits() -> [Limits; 2] {
    [Limits { parallel_groups: 1, ..Limits::default() }, Limits::default()]
}

#[test]
fn every_case_agrees_with_the_reference() {
    let only = std::env::var("SCHWANN_CASE").ok();
    let mut failed = vec![];
    let mut compared = 0;
    for case in cases::all() {
        if only.as_ref().is_some_and(|only| !case.name.contains(only.as_str())) {
            continue;
        }
        let expected = reference::run(&case.graph, &case.inputs, Precision::Storage).unwrap();
        for options in [PassOptions::default(), PassOptions::none()] {
            let (graph, _) = optimize(&case.graph, &options).unwrap();
            for limits in limits() {
                match run(&graph, &case.inputs, &limits) {
                    Err(e) => failed.push(format!("{}: {e}", case.name)),
                    Ok(got) => {
                        for (want, got) in expected.iter().zip(&got) {
                            compared += 1;
                            let tolerance = case.tolerance.stored_as(want.dtype());
                            if let Err(e) = compare(want, got, tolerance) {
                                failed.push(format!("{}: {e}", case.name));
                            }
                        }
                    }
                }
            }
        }
    }
    failed.dedup();
    assert!(failed.is_empty(), "{} of {compared}:\n{}", failed.len(), failed.join("\n"));
    assert!(only.is_some() || compared > 2000, "{compared} results were compared");
}

/// Cases that together have every schedule: elements, packing, reductions, rows, tiles, attention, loops by blocks of one
/// row and of several, loops step by step.
fn every_schedule(name: &str) -> bool {
    let all = std::env::var("SCHWANN_LONG").is_ok();
    all || ["softmax/", "layer_norm/", "rms_norm/", "sum/", "attention/", "matmul/f32/33", "scan/", "gated/", "synapse"]
        .iter()
        .any(|part| name.starts_with(part))
}

#[test]
fn every_mistake_in_a_kernel_is_noticed() {
    // For each kernel that differs from others: whether some case noticed each of its mutants.
    let mut noticed: HashMap<(Arc<schwann_codegen::lang::Kernel>, usize), bool> = HashMap::new();
    let mut told: BTreeMap<String, (Mistake, (Arc<schwann_codegen::lang::Kernel>, usize))> = BTreeMap::new();
    let limits = Limits { parallel_groups: 1, ..Limits::default() };
    for case in cases::all().into_iter().filter(|case| every_schedule(&case.name)) {
        let (graph, _) = optimize(&case.graph, &PassOptions::default()).unwrap();
        let right = run(&graph, &case.inputs, &limits).unwrap();
        for (number, kernel) in kernels(&graph, &case.inputs, &limits).unwrap().iter().enumerate() {
            for (k, mutant) in mutants(kernel).into_iter().enumerate() {
                let key = (Arc::clone(kernel), k);
                if noticed.get(&key) == Some(&true) {
                    continue;
                }
                let changed = Arc::new(mutant.kernel.clone());
                let got = run_with(&graph, &case.inputs, &limits, &|n, kernel| {
                    if n == number {
                        *kernel = Arc::clone(&changed);
                    }
                });
                let same = got.is_ok_and(|got| got.iter().zip(&right).all(|(a, b)| a.bytes() == b.bytes()));
                *noticed.entry(key.clone()).or_default() |= !same;
                told.insert(format!("{}: {mutant}", case.name), (mutant.mistake, key));
            }
        }
    }
    let mut missed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (text, (mistake, key)) in &told {
        if !noticed[key] {
            missed.entry(format!("{mistake:?}")).or_default().push(text.clone());
        }
    }
    let counts: Vec<String> = missed.iter().map(|(kind, all)| format!("{kind} {}", all.len())).collect();
    println!("{} mutants; missed: {}", noticed.len(), counts.join(", "));
    let all: Vec<String> = missed.into_values().flatten().collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}
