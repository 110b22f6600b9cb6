//! After its first call with given sizes, `run` allocates nothing, watched or not: counted, not claimed.

use schwann_core::backend::Recorder;
use schwann_core::cases;
use schwann_core::{CompileOptions, Program, Tensor};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; only a counter is kept.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn every_case_runs_without_allocating_after_the_first_run() {
    let mut failures = Vec::new();
    let mut cases_run = 0;
    for threads in [1, 2] {
        let cpu = schwann_core::backend::cpu::Cpu::new(threads).unwrap();
        for case in cases::all() {
            let program = Program::compile_for(&case.graph, &cpu, &CompileOptions::default()).unwrap();
            let mut session = program.session();
            let inputs: Vec<(&str, &Tensor)> = case.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            session.run(&inputs).unwrap();
            let mut recorder = Recorder::with_events(100);
            session.run_observed(&inputs, Some(&mut recorder)).unwrap();
            // Other threads of the test harness may allocate now and then: the fewest of a few runs is the run's own.
            let fewest = (0..4)
                .map(|_| {
                    let before = ALLOCATIONS.load(Ordering::Relaxed);
                    session.run(&inputs).unwrap();
                    session.run_observed(&inputs, Some(&mut recorder)).unwrap();
                    ALLOCATIONS.load(Ordering::Relaxed) - before
                })
                .min();
            cases_run += 1;
            if fewest != Some(0) {
                failures.push(format!("{} on {threads} threads: {fewest:?} allocations", case.name));
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
