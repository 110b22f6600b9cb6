//! Random graphs of every operation, type and size: whatever builds compiles and runs, or is refused with an error, and
//! gives what the reference gives, on every instruction set, fused and not, on one thread and two. `drawn` draws them.
//!
//! `cargo test --workspace --test core_tests anything::` runs 300 graphs, with `SCHWANN_LONG=n` n of them.

use crate::drawn::judge::inputs;
use crate::drawn::{Compared, Expected, KINDS, expected, kind, make};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use schwann_core::backend::cpu::Cpu;
use schwann_core::cases::random::Random;
use schwann_core::grad::gradient;
use schwann_core::op::Op;
use schwann_core::pass::PassOptions;
use schwann_core::{Bindings, CompileOptions, Error, Graph, Program, Tensor};
use schwann_kernels::Isa;
use std::cell::Cell;
use std::collections::BTreeSet;

/// So many graphs as `SCHWANN_LONG` says, drawn anew each time; without it 300, always the same.
fn config() -> Config {
    let long = std::env::var("SCHWANN_LONG").ok().and_then(|v| v.parse().ok()).filter(|n| *n > 1);
    Config {
        cases: long.unwrap_or(300),
        rng_seed: if long.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) },
        failure_persistence: None,
        ..Config::default()
    }
}

/// Draws a graph and checks it; gives how much of its results could be compared.
fn check(choices: &[u16]) -> Result<Compared, String> {
    let mut compared = Compared::default();
    let graph = make(choices);
    graph.verify().map_err(|e| format!("building: {e}\n{graph}"))?;
    let pick = choices.iter().fold(0usize, |h, c| h.wrapping_mul(31).wrapping_add(usize::from(*c)));
    let expected = expected(&graph, pick as u64);
    let refused = expected.iter().any(Expected::is_refused);
    let isas = Isa::available();
    let isa = |n: usize| isas[n % isas.len()];
    for (isa, threads, passes) in [
        (isa(isas.len() - 1), 1 + pick % 2, PassOptions::default()),
        (isa(pick / 3), 2, PassOptions::default()),
        (isa(pick / 7), 1, PassOptions { fuse: false, ..PassOptions::default() }),
        (isa(pick / 11), 1, PassOptions { fold_weights: false, ..PassOptions::default() }),
        (isa(pick / 13), 1, PassOptions::none()),
    ] {
        let fail = |e: String| format!("{isa}, {threads} threads, {passes:?}: {e}\n{graph}");
        let cpu = Cpu::with_isa(isa, threads).map_err(|e| fail(e.to_string()))?;
        let program = match Program::compile_for(&graph, &cpu, &CompileOptions::default().passes(passes.clone())) {
            Ok(program) => program,
            // An index of a literal that is out of range is found early, and an operand that must be known is not.
            Err(Error::Value { .. }) if refused => continue,
            Err(e) => return Err(fail(e.to_string())),
        };
        let mut session = program.session();
        for expected in &expected {
            session.reset();
            let given: Vec<(&str, &Tensor)> = expected.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            compared.add(expected.judge(session.run(&given)).map_err(&fail)?);
        }
    }
    // Gradients are graphs too: they are refused, or compile and run.
    if let Ok(backward) = gradient(&graph, &graph.outputs()[0].name, &["x0"]) {
        let program = match Program::compile(&backward, &CompileOptions::default().threads(1)) {
            Ok(program) => program,
            // As above: what is wrong about a literal index is found early.
            Err(Error::Value { .. }) if refused => return Ok(compared),
            Err(e) => return Err(format!("gradient: {e}\n{graph}")),
        };
        let inputs = inputs(&backward, &Bindings::new().with("B", 2).with("T", 3), 1);
        let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        if let Err(Error::Internal(e) | Error::Verify { problem: e, .. }) = program.session().run(&given) {
            return Err(format!("gradient: {e}\n{graph}"));
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

#[test]
fn every_operation_is_drawn() {
    fn gather(graph: &Graph, found: &mut BTreeSet<usize>) {
        for node in graph.nodes() {
            found.insert(kind(&node.op));
            if let Op::Scan(scan) = &node.op {
                gather(&scan.body, found);
            }
        }
    }
    let mut found = BTreeSet::new();
    let mut random = Random::new(7);
    for _ in 0..2000 {
        let choices: Vec<u16> = (0..260).map(|_| random.bits() as u16).collect();
        gather(&make(&choices), &mut found);
    }
    let missing: Vec<usize> = (0..KINDS).filter(|k| !found.contains(k)).collect();
    assert!(missing.is_empty(), "operations {missing:?} (numbers of `kind`) are never drawn");
}
