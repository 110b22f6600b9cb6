//! Malformed files must not cost memory: every one of the table is read under an allocator that counts.
//!
//! One test in a program of its own, since the count is the whole process'.

#[allow(dead_code, reason = "shared with the test of messages")]
mod hostile;

use hostile::Format;
use schwann_core::io::{self, Limits, npy, npz, safetensors::Reader};
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
    an_archive_is_not_unpacked_before_its_shapes_are_known();
    let cases = hostile::cases();
    assert!(cases.len() > 50, "only {} files", cases.len());
    for (i, case) in cases.into_iter().enumerate() {
        let len = case.bytes.len();
        let before = LIVE.load(Relaxed);
        PEAK.store(before, Relaxed);
        match case.format {
            Format::Safetensors => drop(Reader::from_bytes(&case.bytes[..]).and_then(|f| f.tensors())),
            Format::Npy => drop(npy::from_bytes(&case.bytes)),
            Format::Npz => drop(npz::from_bytes(&case.bytes, &Limits::default())),
            Format::Gguf => drop(hostile::read_gguf(&case.bytes)),
        }
        let used = PEAK.load(Relaxed) - before;
        // Some times the file itself, and what an inflater needs for its window. An entry of GGUF may have fewer bytes
        // than a place in a map.
        let times = if case.format == Format::Gguf { 9 } else { 4 };
        assert!(used <= times * len + 300_000, "case {i} ({:?}, {len} bytes) took {used} bytes", case.says);
    }
}

/// 32 MiB of zeros in some kilobytes, which the reader's owner has no use for.
fn an_archive_is_not_unpacked_before_its_shapes_are_known() {
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (8388608,), }\n";
    let bomb = hostile::Zip::deflated(hostile::npy_bytes(1, header, &vec![0; 32 << 20])).bytes();
    let path = std::env::temp_dir().join(format!("schwann-bomb-{}.npz", std::process::id()));
    std::fs::write(&path, &bomb).unwrap();
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let refused = io::read_npz_if(&path, &Limits::default(), |name, shape| {
        assert_eq!((name, shape), ("a", &[8_388_608][..]));
        Err("expected f32[3]".into())
    });
    let used = PEAK.load(Relaxed) - before;
    let small = Limits { total_bytes: 1 << 20, ..Limits::default() };
    let limited = npz::read_npz_within(&path, &small);
    let npy = path.with_extension("npy");
    std::fs::write(&npy, hostile::npy_bytes(1, header, &vec![0; 32 << 20])).unwrap();
    PEAK.store(LIVE.load(Relaxed), Relaxed);
    let alone = io::read_npy_if(&npy, |_| Err("expected f32[3]".into()));
    let alone_used = PEAK.load(Relaxed) - LIVE.load(Relaxed);
    let _ = (std::fs::remove_file(&path), std::fs::remove_file(&npy));
    assert!(refused.unwrap_err().to_string().contains("entry `a.npy`: expected f32[3]"));
    assert!(alone.unwrap_err().to_string().contains("expected f32[3]"));
    assert!(limited.unwrap_err().to_string().contains("the limit is 1048576"));
    assert!(used < 400_000 && alone_used < 400_000, "took {used} and {alone_used} bytes");
}
