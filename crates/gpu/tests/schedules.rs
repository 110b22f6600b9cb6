//! Every schedule, run by the interpreter: the case list agrees with the reference, and no thread reads or writes what it
//! should not.

mod interpreted;

use interpreted::run;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::{self, compare};
use schwann_core::pass::{PassOptions, optimize};
use schwann_gpu::device::Limits;

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
