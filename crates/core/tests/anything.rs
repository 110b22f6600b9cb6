//! Random graphs of every operation, type and size: whatever builds compiles and runs, or is refused with an error, and
//! gives what the reference gives, on every instruction set, fused and not, on one thread and two. `drawn` draws them.
//!
//! `cargo test -p schwann-core --test anything` runs 300 graphs, with `SCHWANN_LONG=n` n of them.

mod drawn;

use drawn::{Compared, KINDS, check, kind, make};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use schwann_core::Graph;
use schwann_core::cases::random::Random;
use schwann_core::op::Op;
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
