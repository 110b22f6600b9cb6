//! How fast products with low-bit weights are on this machine. All figures are measured: the best of several timings.
//!
//! `cargo run --release -p schwann-kernels --example lowbit -- [threads] [filter]`; a filter such as `ternary int8 2560x6912`
//! leaves only lines that contain all of its words. A word such as `lowbit_widened_rows_least=8` replaces a tuned number.
//! The word `decoder` times, instead of single matrices, all products of a decoder of 100 million ternary weights, one after
//! the other, and some of them alone.
//! With the word `serve` it is a contender of `benches/peers/lowbit.py`: the number of threads comes last, and cases are read
//! from standard input.
#![expect(clippy::print_stdout, reason = "printing is its purpose")]

use schwann_kernels::gemm::Store;
use schwann_kernels::lowbit::{Code, Matrix, PackedLowBit, Parts, integer_path};
use schwann_kernels::tape::{Call, Extent, Frame, Gemm, GemmB, Memory, Ref, Space, Strided, Tape};
use schwann_kernels::tuning::{Machine, Tuning};
use schwann_kernels::{Isa, Team};
use std::io::BufRead;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Weights that together are larger than any cache, where they are to come from memory.
const ROTATED_BYTES: usize = 256 << 20;
/// How often weights that stay in the caches are multiplied in one pass.
const HOT_PRODUCTS: usize = 8;

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
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let serves = args.first().is_some_and(|word| word == "serve");
    if serves {
        args.remove(0);
        let last = args.len().min(1);
        args.rotate_right(last);
    }
    let threads = if args.is_empty() { 1 } else { args.remove(0).parse().expect("a number of threads") };
    let (isa, mut tuning) = (Isa::detect(), Tuning::detect());
    let mut words = Vec::new();
    for part in args {
        match part.split_once('=').and_then(|(name, value)| tuning.with(name, value.parse().ok()?).ok()) {
            Some(tuned) => tuning = tuned,
            None => words.push(part),
        }
    }
    let on = Machine { isa, tuning: &tuning };
    let team = Team::with_tuning(threads, &tuning).expect("threads");
    let kinds = [
        Weights { name: "ternary", code: Code::Ternary4, block: |k| k, store: Store::F32, shared: true },
        Weights { name: "int4", code: Code::Bits4, block: |_| 32, store: Store::F16, shared: false },
        Weights { name: "int8", code: Code::Bits8, block: |k| k, store: Store::F32, shared: false },
    ];
    if serves {
        return serve(on, &team, &kinds);
    }
    println!("{isa}, integer products by {:?}, {threads} threads", integer_path(isa));
    if words.iter().any(|word| word == "decoder") {
        return decoder(on, &team, &kinds[0]);
    }
    for (k, n) in [(2560, 2560), (2560, 6912), (6912, 2560)] {
        for w in &kinds {
            for (m, rotated) in [(1, false), (1, true), (4, false), (16, false), (32, false)] {
                for rounded in [true, false] {
                    let rows = if rounded { "rows-of-8-bits" } else { "rows-of-f32" };
                    let from = if rotated { "memory" } else { "hot" };
                    let name = format!("{k}x{n} {:8} {rows:14} M={m:<2} {from:6}", w.name);
                    if words.iter().all(|part| name.contains(part.as_str())) {
                        let mut products = Products::new(on, &team, w, [m, n, k], rotated, rounded);
                        let (best, _) = products.time(&team, 0.25);
                        let operations = 2.0 * (m * n * k) as f64;
                        println!(
                            "{name}  {:8.1} µs  {:6.1} GOP/s  {:6.1} GB/s of {:.1} MB",
                            best * 1e6,
                            operations / best / 1e9,
                            products.bytes as f64 / best / 1e9,
                            products.bytes as f64 / 1e6
                        );
                    }
                }
            }
        }
    }
}

/// The products of a layer of `schwann bench decoder`, as K × N; queries, keys and values are one.
const LAYER: [(usize, usize); 5] = [(1024, 1536), (1024, 1024), (1024, 2816), (1024, 2816), (2816, 1024)];
const LAYERS: usize = 9;

fn decoder(on: Machine<'_>, team: &Team, w: &Weights) {
    let all: Vec<[usize; 3]> = (0..LAYERS).flat_map(|_| LAYER).map(|(k, n)| [1, n, k]).collect();
    let weights: Vec<_> = all.iter().map(|[_, n, k]| Arc::new(pack(on.isa, w, *k, *n))).collect();
    let bytes: usize = weights.iter().map(|b| b.bytes()).sum();
    let line = |name: &str, products: &mut Products, bytes: usize| {
        let (least, median) = products.time(team, 0.5);
        let (least, median) = (least * products.count as f64, median * products.count as f64);
        let rate = bytes as f64 / least / 1e9;
        println!(
            "{name:24} {:8.2} µs, median {:8.2}  {rate:6.1} GB/s of {:.2} MB",
            least * 1e6,
            median * 1e6,
            bytes as f64 / 1e6
        );
    };
    for i in 0..LAYER.len() {
        let mut products = Products::of(on, team, &weights[i..=i], &all[i..=i], true);
        line(&format!("{}x{} alone", LAYER[i].0, LAYER[i].1), &mut products, weights[i].bytes());
    }
    line("all products", &mut Products::of(on, team, &weights, &all, true), bytes);
}

/// Answers lines such as `ternary 1 2560 6912 hot 0.1` (weights, rows, K, N, from where weights come, seconds) with the least and
/// the median time of a product in µs.
fn serve(on: Machine<'_>, team: &Team, kinds: &[Weights]) {
    let mut made: Option<(String, Products)> = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (case, seconds) = line.rsplit_once(' ').expect("a case and seconds");
        if made.as_ref().is_none_or(|(last, _)| last != case) {
            let words: Vec<&str> = case.split(' ').collect();
            let [weights, m, k, n, from] = words[..] else { panic!("no case: {case}") };
            let w = kinds.iter().find(|w| w.name == weights).expect("known weights");
            let [m, k, n] = [m, k, n].map(|size| size.parse().expect("a size"));
            // Copies of another case are not kept beside those of this one.
            drop(made.take());
            made = Some((case.to_owned(), Products::new(on, team, w, [m, n, k], from == "memory", true)));
        }
        if let Some((_, products)) = &mut made {
            let (least, median) = products.time(team, seconds.parse().expect("seconds"));
            println!("{:.3} {:.3}", least * 1e6, median * 1e6);
        }
    }
}

/// Products that are computed one after the other, in one pass.
struct Products {
    tape: Tape,
    frame: Frame,
    arena: Vec<u8>,
    /// Where the arena begins and ends: at the start of a line of the caches.
    within: Range<usize>,
    input: Vec<u8>,
    output: Vec<u8>,
    count: usize,
    /// Of one matrix.
    bytes: usize,
}

impl Products {
    /// The same product again and again: of the same weights, or of copies that are larger than any cache.
    fn new(on: Machine<'_>, team: &Team, w: &Weights, [m, n, k]: [usize; 3], rotated: bool, rounded: bool) -> Products {
        let first = Arc::new(pack(on.isa, w, k, n));
        let mut all = vec![Arc::clone(&first)];
        if rotated {
            let copies = ROTATED_BYTES / first.bytes();
            all.extend((0..copies).map(|_| Arc::new(pack(on.isa, w, k, n))));
        } else {
            all.resize(HOT_PRODUCTS, first);
        }
        let shapes = vec![[m, n, k]; all.len()];
        Products::of(on, team, &all, &shapes, rounded)
    }

    /// These products.
    fn of(
        on: Machine<'_>,
        team: &Team,
        weights: &[Arc<PackedLowBit>],
        shapes: &[[usize; 3]],
        rounded: bool,
    ) -> Products {
        let most = |bytes: fn(&[usize; 3]) -> usize| shapes.iter().map(bytes).max().unwrap_or(0);
        let (input, output) = (most(|[m, _, k]| 4 * m * k), most(|[m, n, _]| 4 * m * n));
        let extent = |bytes| vec![Extent { bytes, align: 4 }];
        let mut memory = Memory { arena: 0, inputs: extent(input), outputs: extent(output), consts: vec![] };
        let (a, c) = (memory.slot(Space::Input(0)), memory.slot(Space::Output(0)));
        let matrix = |slot, rows: usize, cols: usize| Strided {
            at: Ref { slot, offset: 0, len: 4 * rows * cols },
            store: Store::F32,
            batch: 0,
            row: cols,
            col: 1,
        };
        let call = |b: &Arc<PackedLowBit>, [m, n, k]: [usize; 3], scratch: usize| Gemm {
            shape: [1, m, n, k],
            a: matrix(a, m, k),
            a_rest: None,
            b: GemmB::LowBit { b: Arc::clone(b), rounded, next: None },
            c: matrix(c, m, n),
            bias: None,
            add: None,
            row_bias: None,
            epilogue: None,
            scratch: Ref { slot: 0, offset: 0, len: scratch },
        };
        let each = || weights.iter().zip(shapes);
        let scratch = each().map(|(b, s)| call(b, *s, 0).scratch_bytes(on, team.threads())).max().unwrap_or(0);
        memory.arena = scratch;
        let calls = each().map(|(b, s)| Call::Gemm(Box::new(call(b, *s, scratch)))).collect();
        let tape = Tape::new(on, team.threads(), memory, calls).expect("a valid tape");
        let arena = vec![0u8; scratch + 64];
        let start = arena.as_ptr().align_offset(64);
        Products {
            frame: tape.frame(),
            tape,
            arena,
            within: start..start + scratch,
            input: (0..input / 4).flat_map(|i| (((i * 37) % 101) as f32 - 50.0).to_ne_bytes()).collect(),
            output: vec![0u8; output],
            count: weights.len(),
            bytes: weights[0].bytes(),
        }
    }

    /// The least and the median time of a product.
    fn time(&mut self, team: &Team, seconds: f64) -> (f64, f64) {
        self.pass(team);
        let (mut times, began) = (vec![], Instant::now());
        while times.is_empty() || began.elapsed().as_secs_f64() < seconds {
            let start = Instant::now();
            self.pass(team);
            times.push(start.elapsed().as_secs_f64() / self.count as f64);
        }
        times.sort_by(f64::total_cmp);
        (times[0], times[times.len() / 2])
    }

    fn pass(&mut self, team: &Team) {
        let arena = &mut self.arena[self.within.clone()];
        let (inputs, outputs, never) = ([&self.input[..]], [&mut self.output[..]], AtomicBool::new(false));
        self.tape.run(&mut self.frame, team, arena, inputs, outputs, None, &never).expect("it runs");
    }
}
