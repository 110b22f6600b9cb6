//! Allocations of a run are counted by the program's allocator where it counts, and there are none.

use schwann_prof::models::{Sizes, built_in};
use schwann_prof::profiler::{Options, Profiler};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

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
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_profile_counts_the_allocations_of_a_run_and_finds_none() {
    let options = Options { batch: 2, steps: 2, runs: 3, seconds: 0.02, ..Options::default() };
    let profiler = || Profiler::new(built_in("W", &Sizes::default()).unwrap().unwrap()).with(options.clone());
    let memory = profiler().allocations(|| ALLOCATIONS.load(Ordering::Relaxed)).profile_memory().unwrap();
    assert_eq!(memory.allocations.value, Some(0.0));
    // A counter that goes up is seen.
    let memory = profiler().allocations(|| ALLOCATIONS.fetch_add(1, Ordering::Relaxed)).profile_memory().unwrap();
    assert_eq!(memory.allocations.value, Some(1.0));
    let memory = profiler().profile_memory().unwrap();
    assert!(memory.allocations.value.is_none() && memory.allocations.reason.is_some());
}
