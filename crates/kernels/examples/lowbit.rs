//! How fast products with low-bit weights are on this machine. All figures are measured: the best of several timings.
//!
//! `cargo run --release -p schwann-kernels --example lowbit -- [threads] [filter]`; a filter such as `ternary int8 2560x6912`
//! leaves only lines that contain all of its words. A word such as `lowbit_widened_rows_least=8` replaces a tuned number.
#![expect(clippy::print_stdout, reason = "printing is its purpose")]

use schwann_kernels::gemm::Store;
use schwann_kernels::lowbit::{Code, Matrix, PackedLowBit, Parts, integer_path};
use schwann_kernels::tape::{Call, Extent, Gemm, GemmB, Memory, Ref, Space, Strided, Tape};
use schwann_kernels::tuning::{Machine, Tuning};
use schwann_kernels::{Isa, Team};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Weights that together are larger than any cache, where they are to come from memory.
const ROTATED_BYTES: usize = 160 << 20;

struct Weights {
    name: &'static str,
    code: Code,
    block: fn(usize) -> usize,
    store: Store,
    shared: bool,
}

fn pack(isa: Isa, w: &Weights, k: usize, n: usize) -> PackedLowBit {
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let byte = (state >> 56) as u8;
        if w.code == Code::Ternary4 { (0..4).map(|j| (byte >> (2 * j) & 3).min(2) << (2 * j)).sum() } else { byte }
    };
    let codes: Vec<u8> = (0..n * w.code.row_bytes(k)).map(|_| byte()).collect();
    let block = (w.block)(k);
    let scale_rows = if w.shared { 1 } else { n };
    // 1.0 in f16, and a small number in f32.
    let scales = vec![0x3c; scale_rows * k.div_ceil(block) * w.store.size()];
    let parts =
        Parts { code: w.code, n, k, block, codes: &codes, store: w.store, scale_rows, scales: &scales, offsets: None };
    PackedLowBit::new(isa, &Matrix::new(parts).expect("valid")).expect("memory")
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let filter: Vec<String> = args.collect();
    let (isa, mut tuning) = (Isa::detect(), Tuning::detect());
    let mut words = Vec::new();
    for part in filter {
        match part.split_once('=').and_then(|(name, value)| tuning.with(name, value.parse().ok()?).ok()) {
            Some(tuned) => tuning = tuned,
            None => words.push(part),
        }
    }
    let on = Machine { isa, tuning: &tuning };
    println!("{isa}, integer products by {:?}, {threads} threads", integer_path(isa));
    let team = Team::with_tuning(threads, &tuning).expect("threads");
    let kinds = [
        Weights { name: "ternary", code: Code::Ternary4, block: |k| k, store: Store::F32, shared: true },
        Weights { name: "4-bit", code: Code::Bits4, block: |_| 32, store: Store::F16, shared: false },
        Weights { name: "8-bit", code: Code::Bits8, block: |k| k, store: Store::F32, shared: false },
    ];
    for (k, n) in [(2560, 2560), (2560, 6912), (6912, 2560)] {
        for w in &kinds {
            for (m, rotated) in [(1, false), (1, true), (4, false), (16, false), (32, false)] {
                for rounded in [true, false] {
                    let rows = if rounded { "int8" } else { "f32" };
                    let from = if rotated { "memory" } else { "hot" };
                    let name = format!("{k}x{n} {:8} {rows:4} M={m:<2} {from:6}", w.name);
                    if words.iter().all(|part| name.contains(part.as_str())) {
                        measure(on, &team, &name, w, [m, n, k], rotated, rounded);
                    }
                }
            }
        }
    }
}

fn measure(on: Machine<'_>, team: &Team, name: &str, w: &Weights, [m, n, k]: [usize; 3], rotated: bool, rounded: bool) {
    let first = pack(on.isa, w, k, n);
    let bytes = first.bytes();
    let count = if rotated { ROTATED_BYTES.div_ceil(bytes) } else { 1 };
    let mut all = vec![Arc::new(first)];
    while all.len() < count {
        all.push(Arc::new(pack(on.isa, w, k, n)));
    }
    let mut memory =
        Memory { arena: 0, inputs: vec![Extent { bytes: 4 * m * k, align: 4 }], outputs: vec![], consts: vec![] };
    memory.outputs.push(Extent { bytes: 4 * m * n, align: 4 });
    let (a, c) = (memory.slot(Space::Input(0)), memory.slot(Space::Output(0)));
    let matrix = |slot, rows: usize, cols: usize| Strided {
        at: Ref { slot, offset: 0, len: 4 * rows * cols },
        store: Store::F32,
        batch: 0,
        row: cols,
        col: 1,
    };
    let call = |b: &Arc<PackedLowBit>, scratch: usize| Gemm {
        shape: [1, m, n, k],
        a: matrix(a, m, k),
        a_rest: None,
        b: GemmB::LowBit { b: Arc::clone(b), rounded },
        c: matrix(c, m, n),
        bias: None,
        row_bias: None,
        epilogue: None,
        scratch: Ref { slot: 0, offset: 0, len: scratch },
    };
    let scratch = call(&all[0], 0).scratch_bytes(on, team.threads());
    memory.arena = scratch;
    let calls = all.iter().map(|b| Call::Gemm(Box::new(call(b, scratch)))).collect();
    let tape = Tape::new(on, team.threads(), memory, calls).expect("a valid tape");
    let mut arena = vec![0u8; scratch + 64];
    let start = arena.as_ptr().align_offset(64);
    let input: Vec<u8> = (0..m * k).flat_map(|i| (((i * 37) % 101) as f32 - 50.0).to_ne_bytes()).collect();
    let mut output = vec![0u8; 4 * m * n];
    let mut frame = tape.frame();
    let mut run = || {
        let began = Instant::now();
        let arena = &mut arena[start..start + scratch];
        let never = AtomicBool::new(false);
        tape.run(&mut frame, team, arena, [&input[..]], [&mut output[..]], None, &never).expect("it runs");
        began.elapsed().as_secs_f64() / count as f64
    };
    let (mut best, began) = (f64::INFINITY, Instant::now());
    while began.elapsed().as_secs_f64() < 0.25 {
        best = best.min(run());
    }
    let operations = 2.0 * (m * n * k) as f64;
    println!(
        "{name}  {:8.1} µs  {:6.1} GOP/s  {:6.1} GB/s of {:.1} MB",
        best * 1e6,
        operations / best / 1e9,
        bytes as f64 / best / 1e9,
        bytes as f64 / 1e6
    );
}
