//! After its first call with given sizes, `run` allocates nothing, watched or not: counted, not claimed.

use schwann_core::backend::Timeline;
use schwann_core::cases;
use schwann_core::{Changing, CompileOptions, Program, Tensor};
use schwann_kernels::heap;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

#[test]
fn every_case_runs_without_allocating_after_the_first_run() {
    let mut failures = Vec::new();
    let mut cases_run = 0;
    for (threads, changing) in [(1, Changing::None), (2, Changing::None), (2, Changing::All)] {
        let cpu = schwann_core::backend::cpu::Cpu::new(threads).unwrap();
        for case in cases::all() {
            let options = CompileOptions::default().changing(changing.clone());
            let program = Program::compile_for(&case.graph, &cpu, &options).unwrap();
            let mut session = program.session();
            let inputs: Vec<(&str, &Tensor)> = case.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            session.run(&inputs).unwrap();
            let mut timeline = Timeline::with_spans(100);
            session.run_observed(&inputs, Some(&mut timeline)).unwrap();
            // Other threads of the test harness may allocate now and then: the fewest of a few runs is the run's own.
            let fewest = (0..4)
                .map(|_| {
                    let before = heap::allocations();
                    session.run(&inputs).unwrap();
                    session.run_observed(&inputs, Some(&mut timeline)).unwrap();
                    heap::allocations() - before
                })
                .min();
            cases_run += 1;
            if fewest != Some(0) {
                failures.push(format!("{} on {threads} threads, {changing:?}: {fewest:?} allocations", case.name));
            }
        }
    }
    assert!(
        cases_run >= 500 && failures.is_empty(),
        "{cases_run} cases, {} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
