//! After its first call with given sizes, `run` allocates nothing, watched or not: counted, not claimed.

use schwann_core::backend::Timeline;
use schwann_core::cases;
use schwann_core::{Changing, CompileOptions, Program, Tensor};
use schwann_kernels::heap;
use std::sync::{Mutex, PoisonError};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

/// Allocations of all threads are counted, so one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn every_case_runs_without_allocating_after_the_first_run() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
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

#[cfg(unix)]
#[test]
fn a_session_that_can_be_watched_from_outside_allocates_no_more() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let case = cases::all().into_iter().find(|case| case.graph.nodes().len() > 4).unwrap();
    let program = Program::compile(&case.graph, &CompileOptions::default().threads(1)).unwrap();
    let (mut session, door) = (program.session(), schwann_core::live::open("no-allocation").unwrap());
    session.watch(&door);
    let inputs: Vec<(&str, &Tensor)> = case.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    // The first run tells what it is; some of these are watched operation by operation.
    let end = std::time::Instant::now() + std::time::Duration::from_millis(200);
    while std::time::Instant::now() < end {
        session.run(&inputs).unwrap();
    }
    // About once a second it is written down where the time goes, and other tests may allocate meanwhile.
    let fewest = (0..20).map(|_| {
        let before = heap::allocations();
        for _ in 0..20 {
            session.run(&inputs).unwrap();
        }
        heap::allocations() - before
    });
    assert_eq!(fewest.min(), Some(0));
}
