//! Malformed files must not cost memory: every one of the table is read under an allocator that counts.
//!
//! One test in a program of its own, since the count is the whole process'.

#[allow(dead_code, reason = "shared with the test of messages")]
mod hostile;

use hostile::Format;
use schwann_core::io::{Limits, npy, npz, safetensors::Reader};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;
// SAFETY: every call goes to the system's allocator with the arguments it came with; counting touches only atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promise is the one that the system asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn malformed_files_cost_little_memory() {
    for (i, case) in hostile::cases().into_iter().enumerate() {
        let len = case.bytes.len();
        let before = LIVE.load(Relaxed);
        PEAK.store(before, Relaxed);
        match case.format {
            Format::Safetensors => drop(Reader::from_bytes(&case.bytes[..]).and_then(|f| f.tensors())),
            Format::Npy => drop(npy::from_bytes(&case.bytes)),
            Format::Npz => drop(npz::from_bytes(&case.bytes, &Limits::default())),
        }
        let used = PEAK.load(Relaxed) - before;
        // Some times the file itself, and what an inflater needs for its window.
        assert!(used <= 4 * len + 300_000, "case {i} ({:?}, {len} bytes) took {used} bytes", case.says);
    }
}
