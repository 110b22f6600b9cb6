//! Random graphs of every operation, type and size, lowered and run by the interpreter: nothing is found, and they give what
//! the reference gives, with passes and without, by blocks of one row and of several.
//!
//! `cargo test --workspace --test gpu_tests anything::` runs 200 graphs, with `SCHWANN_LONG=n` n of them.

use crate::drawn::{Compared, Expected, expected, make};
use crate::interpreted;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use schwann_core::grad::gradient;
use schwann_core::pass::{PassOptions, optimize};
use schwann_core::{Error, Graph};
use schwann_gpu::device::Limits;
use std::cell::Cell;

/// So many graphs as `SCHWANN_LONG` says, drawn anew each time; without it 200, always the same.
fn config() -> Config {
    let long = std::env::var("SCHWANN_LONG").ok().and_then(|v| v.parse().ok()).filter(|n| *n > 1);
    Config {
        cases: long.unwrap_or(200),
        rng_seed: if long.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) },
        failure_persistence: None,
        ..Config::default()
    }
}

/// Draws a graph and checks it and its gradient; gives how much of the results could be compared.
fn check(choices: &[u16]) -> Result<Compared, String> {
    let seed = choices.iter().fold(0u64, |h, c| h.wrapping_mul(31).wrapping_add(u64::from(*c)));
    let graph = make(choices);
    let mut compared = agree(&graph, seed, &[(PassOptions::default(), 1), (PassOptions::none(), 2048)])?;
    if let Ok(backward) = gradient(&graph, &graph.outputs()[0].name, &["x0"]) {
        let sum = agree(&backward, seed, &[(PassOptions::default(), 1)]).map_err(|e| format!("gradient: {e}"))?;
        compared.add(sum);
    }
    Ok(compared)
}

fn agree(graph: &Graph, seed: u64, ways: &[(PassOptions, u32)]) -> Result<Compared, String> {
    let mut compared = Compared::default();
    let expected = expected(graph, seed);
    for (passes, parallel_groups) in ways {
        let fail =
            |e: String| format!("blocks for {parallel_groups} groups at once, fused: {}: {e}\n{graph}", passes.fuse);
        let lowered = match optimize(graph, passes) {
            Ok((lowered, _)) => lowered,
            // An index of a literal that is out of range is found early.
            Err(Error::Value { .. }) if expected.iter().any(Expected::is_refused) => continue,
            Err(e) => return Err(fail(e.to_string())),
        };
        for expected in &expected {
            // Threads exchange values where blocks have one row.
            let lanes = if *parallel_groups > 1 { 8 } else { 1 };
            let limits = Limits { parallel_groups: *parallel_groups, lanes, groups: 3, ..Limits::default() };
            for run in [interpreted::run, interpreted::run_close] {
                compared.add(expected.judge(run(&lowered, &expected.inputs, &limits)).map_err(&fail)?);
            }
        }
    }
    Ok(compared)
}

#[test]
fn whatever_builds_gives_what_the_reference_gives() {
    let all = Cell::new(Compared::default());
    let choices = vec(any::<u16>(), 0..260);
    let ran = TestRunner::new(config()).run(&choices, |choices| {
        let mut sum = all.get();
        sum.add(check(&choices).map_err(TestCaseError::fail)?);
        all.set(sum);
        Ok(())
    });
    if let Err(e) = ran {
        panic!("{e}");
    }
    let Compared { elements, compared } = all.get();
    assert!(compared as f64 >= 0.8 * elements as f64, "only {compared} of {elements} elements could be compared");
}
