//! Every way to multiply against the definitions, and what is refused.

use super::plan::integer_product_by;
use super::*;
use crate::gemm::{B, Epilogue, Gemm, gemm};
use crate::tuning::{Machine, finest, on};
use crate::{Isa, Team};
use std::ops::Range;
use std::sync::Mutex;

/// Numbers from a fixed sequence.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
    fn float(&mut self) -> f32 {
        (self.below(20_001) as f32 - 10_000.0) / 5_000.0
    }
    fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// How codes are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Codes {
    Random,
    All(u8),
}

/// The arrays of a matrix, and its codes one by one.
struct Owned {
    code: Code,
    n: usize,
    k: usize,
    block: usize,
    store: Store,
    scale_rows: usize,
    plain: Vec<u8>,
    codes: Vec<u8>,
    scales: Vec<u8>,
    offsets: Option<Vec<u8>>,
}

fn bytes_of(store: Store, x: f32) -> Vec<u8> {
    match store {
        Store::F32 => x.to_ne_bytes().to_vec(),
        Store::F16 => f16::from_f32(x).to_ne_bytes().to_vec(),
        Store::Bf16 => bf16::from_f32(x).to_ne_bytes().to_vec(),
    }
}

impl Owned {
    #[expect(clippy::too_many_arguments, reason = "what a matrix consists of")]
    fn new(
        numbers: &mut Numbers,
        code: Code,
        [n, k]: [usize; 2],
        block: usize,
        store: Store,
        shared: bool,
        offsets: bool,
        codes: Codes,
    ) -> Owned {
        let plain: Vec<u8> = (0..n * k)
            .map(|_| match codes {
                Codes::Random => numbers.below(usize::from(code.largest()) + 1) as u8,
                Codes::All(code) => code,
            })
            .collect();
        // Packed here by arithmetic, not by the shifts of the code under test.
        let base = |at: usize| match code {
            Code::Bits8 => 1u32,
            Code::Bits4 => 16u32.pow(at as u32),
            Code::Ternary4 => 4u32.pow(at as u32),
            Code::Ternary5 => 3u32.pow(at as u32),
        };
        let byte = |codes: &[u8]| codes.iter().enumerate().map(|(i, c)| u32::from(*c) * base(i)).sum::<u32>() as u8;
        let rows = plain.chunks(k.max(1));
        let packed = rows.flat_map(|row| row.chunks(code.per_byte()).map(byte).collect::<Vec<_>>()).collect();
        let scale_rows = if shared { 1 } else { n };
        let mut floats = |centre: f32| {
            let count = scale_rows * k.div_ceil(block);
            (0..count).flat_map(|_| bytes_of(store, numbers.float() / 16.0 - centre)).collect::<Vec<u8>>()
        };
        let (scales, offset) = (floats(0.0), floats(0.25));
        let offsets = offsets.then_some(offset);
        Owned { code, n, k, block, store, scale_rows, plain, codes: packed, scales, offsets }
    }

    fn parts(&self) -> Parts<'_> {
        let Owned { code, n, k, block, store, scale_rows, .. } = *self;
        let offsets = self.offsets.as_deref();
        Parts { code, n, k, block, codes: &self.codes, store, scale_rows, scales: &self.scales, offsets }
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.parts()).unwrap()
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

/// Counts how often each element of C is finished.
struct Finished {
    cols: usize,
    counts: Mutex<Vec<u32>>,
}

impl Epilogue for Finished {
    fn finish(&self, _: usize, rows: Range<usize>, cols: Range<usize>) {
        let mut counts = self.counts.lock().unwrap();
        for i in rows {
            cols.clone().for_each(|j| counts[i * self.cols + j] += 1);
        }
    }
}

/// A product of rows (with a gap between them, full of NaN) into a C with a gap, which must stay as it is.
struct Case<'a> {
    m: usize,
    x: &'a [f32],
    bias: Option<&'a [f32]>,
    row_bias: Option<&'a [f32]>,
    start: Option<&'a [f32]>,
    c_store: Store,
}

const GAP: usize = 3;

impl Case<'_> {
    /// C as f32, after `run` computed the product.
    fn run(
        &self,
        b: &PackedLowBit,
        rounded: bool,
        threads: usize,
        tuning: &crate::tuning::Tuning,
        isa: Isa,
        run: &dyn Fn(&Gemm<'_>, *mut u8),
    ) -> Vec<f32> {
        let (m, n, k) = (self.m, b.n(), b.k());
        let mut a = vec![f32::NAN; if m * k == 0 { 0 } else { m * (k + GAP) - GAP }];
        for i in 0..if k == 0 { 0 } else { m } {
            a[i * (k + GAP)..][..k].copy_from_slice(&self.x[i * k..(i + 1) * k]);
        }
        let size = self.c_store.size();
        let mut c = vec![0xa5u8; m * (n + GAP) * size];
        for i in 0..m {
            for j in 0..n {
                let at = (i * (n + GAP) + j) * size;
                let x = self.start.map_or(f32::NAN, |start| start[i * n + j]);
                c[at..at + size].copy_from_slice(&bytes_of(self.c_store, x));
            }
        }
        let finished = Finished { cols: n, counts: Mutex::new(vec![0; m * n]) };
        let g = Gemm {
            m,
            n,
            k,
            a: a.as_ptr().cast(),
            a_store: Store::F32,
            a_row_stride: k + GAP,
            a_col_stride: 1,
            a_rest: None,
            b: B::LowBit { b, rounded, next: None },
            c: c.as_mut_ptr().cast(),
            c_store: self.c_store,
            c_row_stride: n + GAP,
            add: self.start.is_some().then_some(c.as_ptr().cast()),
            bias: self.bias.map(<[f32]>::as_ptr),
            row_bias: self.row_bias.map(<[f32]>::as_ptr),
            epilogue: Some(&finished),
        };
        let bytes = crate::gemm::scratch_bytes(Machine { isa, tuning }, threads, &g);
        assert!(bytes.is_multiple_of(64));
        // What lies beyond the scratch must not be touched either.
        let mut scratch = vec![Line([0xff; 64]); bytes / 64 + 1];
        run(&g, scratch.as_mut_ptr().cast());
        assert!(scratch[bytes / 64].0 == [0xff; 64], "a write beyond the scratch");
        assert!(finished.counts.into_inner().unwrap().iter().all(|n| *n == 1), "each element is finished once");
        let mut values = Vec::new();
        for i in 0..m {
            let row = &c[i * (n + GAP) * size..(i + 1) * (n + GAP) * size];
            values.extend((0..n).map(|j| float_at(self.c_store, row, j)));
            assert!(row[n * size..].iter().all(|b| *b == 0xa5), "a write between rows");
        }
        values
    }

    /// What an element is, given the product; before it is narrowed.
    fn finished(&self, n: usize, i: usize, j: usize, mut y: f32) -> f32 {
        y += self.row_bias.map_or(0.0, |b| b[i]);
        y += self.start.map_or(0.0, |c| float_at(self.c_store, &bytes_of(self.c_store, c[i * n + j]), 0));
        y += self.bias.map_or(0.0, |b| b[j]);
        float_at(self.c_store, &bytes_of(self.c_store, y), 0)
    }
}

/// Teams of one and two threads, shared by tests.
fn teams() -> &'static [Team; 2] {
    static TEAMS: std::sync::OnceLock<[Team; 2]> = std::sync::OnceLock::new();
    TEAMS.get_or_init(|| [Team::new(1).unwrap(), Team::new(2).unwrap()])
}

/// Integer products on every instruction set, in every way it has, on one and two threads, tuned in two ways: the bits of
/// the definition.
fn same_bits(owned: &Owned, case: &Case<'_>) {
    let matrix = owned.matrix();
    let (m, n, k) = (case.m, owned.n, owned.k);
    let rows: Vec<_> = (0..m).map(|i| round_row(&case.x[i * k..(i + 1) * k])).collect();
    let wanted: Vec<f32> = (0..m * n)
        .map(|e| case.finished(n, e / n, e % n, matrix.integer_product(e % n, &rows[e / n].0, rows[e / n].1)))
        .collect();
    let check = |got: Vec<f32>, what: &str| {
        for (e, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
            let same = got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan();
            assert!(same, "{matrix:?} {what}, {m} rows: ({}, {}) is {got}, not {wanted}", e / n, e % n);
        }
    };
    for &isa in Isa::available() {
        let b = PackedLowBit::new(isa, &matrix).unwrap();
        for team in teams() {
            for machine in [on(isa), finest(isa)] {
                let tuning = machine.tuning;
                for kernels in int::all(isa) {
                    // SAFETY: the case has operands and scratch of the product's sizes, and this CPU has the kernels.
                    let run = |g: &Gemm<'_>, scratch| unsafe {
                        if m > 0 && n > 0 {
                            integer_product_by(kernels, tuning, team, g, &b, scratch)
                        }
                    };
                    let got = case.run(&b, true, team.threads(), tuning, isa, &run);
                    check(got, &format!("on {isa} by {}, {} threads", kernels.name, team.threads()));
                }
                // SAFETY: likewise.
                let run = |g: &Gemm<'_>, scratch| unsafe { gemm(machine, team, g, scratch) };
                check(case.run(&b, true, team.threads(), tuning, isa, &run), &format!("on {isa} as a product"));
            }
        }
    }
}

/// Float products on every instruction set: within a tolerance of sums in f64.
fn near_sums(owned: &Owned, case: &Case<'_>) {
    let matrix = owned.matrix();
    let (m, n, k) = (case.m, owned.n, owned.k);
    let mut wanted = Vec::new();
    for e in 0..m * n {
        let (i, j) = (e / n, e % n);
        let (mut sum, mut size) = (0.0f64, 0.0f64);
        for p in 0..k {
            let x = f64::from(case.x[i * k + p]);
            sum += x * f64::from(matrix.number(j, p));
            let (scale, offset) = matrix.scale_and_offset(j, p / owned.block);
            let code = f64::from(matrix.code(j, p)) - f64::from(if offset.is_some() { 0 } else { owned.code.centre() });
            size += x.abs() * ((code * f64::from(scale)).abs() + f64::from(offset.unwrap_or(0.0)).abs());
        }
        let start = case.start.map_or(0.0, |c| float_at(case.c_store, &bytes_of(case.c_store, c[e]), 0));
        let more = [start, case.bias.map_or(0.0, |b| b[j]), case.row_bias.map_or(0.0, |b| b[i])].map(f64::from);
        wanted.push((sum + more.iter().sum::<f64>(), size + more.iter().map(|x| x.abs()).sum::<f64>()));
    }
    let narrow = match case.c_store {
        Store::F32 => 0.0,
        Store::F16 => 1.0 / 1024.0,
        Store::Bf16 => 1.0 / 128.0,
    };
    for &isa in Isa::available() {
        let b = PackedLowBit::new(isa, &matrix).unwrap();
        for team in teams() {
            for machine in [on(isa), finest(isa)] {
                // SAFETY: the case has operands and scratch of the product's sizes.
                let run = |g: &Gemm<'_>, scratch| unsafe { gemm(machine, team, g, scratch) };
                let got = case.run(&b, false, team.threads(), machine.tuning, isa, &run);
                for (e, (got, (wanted, size))) in got.iter().zip(&wanted).enumerate() {
                    let tolerance = size * 4e-7 * (8.0 + (k as f64).sqrt()) + wanted.abs() * narrow + 1e-6;
                    assert!(
                        (f64::from(*got) - wanted).abs() <= tolerance,
                        "{matrix:?} on {isa}, {m} rows, {} threads: ({}, {}) is {got}, not {wanted} ± {tolerance}",
                        team.threads(),
                        e / n,
                        e % n
                    );
                }
            }
        }
    }
}

const SIZES: [usize; 6] = [1, 3, 17, 64, 100, 515];
const BLOCKS: [usize; 9] = [1, 16, 32, 33, 64, 128, 256, usize::MAX, 7];
const ROWS: [usize; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 49, 1];
const STORES: [Store; 3] = [Store::F32, Store::F16, Store::Bf16];

/// Random cases of every code.
fn random_cases(seed: u64, count: usize, test: impl Fn(&Owned, &Case<'_>)) {
    let mut numbers = Numbers(seed);
    for code in Code::ALL {
        for index in 0..count {
            let (n, k) = (numbers.one_of(&SIZES), numbers.one_of(&SIZES));
            // Few large products, so that the test stays quick.
            let m = if n * k > 20_000 { 1 + numbers.below(9) } else { numbers.one_of(&ROWS) };
            let (block, store) = (BLOCKS[index % BLOCKS.len()], STORES[index % 3]);
            let (shared, offsets) = (numbers.below(4) == 0, numbers.below(2) == 0);
            let owned = Owned::new(&mut numbers, code, [n, k], block, store, shared, offsets, Codes::Random);
            let x: Vec<f32> = (0..m * k).map(|_| numbers.float()).collect();
            let bias: Vec<f32> = (0..n).map(|_| numbers.float()).collect();
            let row_bias: Vec<f32> = (0..m).map(|_| numbers.float()).collect();
            let start: Vec<f32> = (0..m * n).map(|_| numbers.float()).collect();
            let case = Case {
                m,
                x: &x,
                bias: (numbers.below(2) == 0).then_some(&bias),
                row_bias: (numbers.below(3) == 0).then_some(&row_bias),
                start: (numbers.below(4) == 0).then_some(&start),
                c_store: if numbers.below(4) == 0 { numbers.one_of(&STORES) } else { Store::F32 },
            };
            test(&owned, &case);
        }
    }
}

#[test]
fn integer_products_have_the_defined_bits_on_every_path() {
    random_cases(1, 36, same_bits);
}

#[test]
fn float_products_are_near_sums_in_f64() {
    random_cases(2, 36, near_sums);
}

fn plain(m: usize, x: &[f32]) -> Case<'_> {
    Case { m, x, bias: None, row_bias: None, start: None, c_store: Store::F32 }
}

#[test]
fn extreme_codes_and_activations_neither_overflow_nor_saturate() {
    let mut numbers = Numbers(3);
    for code in Code::ALL {
        for codes in [Codes::All(0), Codes::All(code.largest())] {
            for sign in [1.0, -1.0] {
                for (m, k, block, offsets) in [(1, 256, 256, false), (7, 515, 32, true), (3, 515, 515, false)] {
                    let size = [70, k];
                    let owned = Owned::new(&mut numbers, code, size, block, Store::F32, false, offsets, codes);
                    same_bits(&owned, &plain(m, &vec![sign; m * k]));
                }
            }
        }
    }
}

#[test]
fn blocks_longer_than_a_piece_are_cut_alike_everywhere() {
    let mut numbers = Numbers(4);
    for (code, k) in [(Code::Bits8, 40_000), (Code::Bits8, 65_536), (Code::Bits4, 40_000), (Code::Ternary5, 33_000)] {
        for (m, codes) in [(1, Codes::All(code.largest())), (2, Codes::Random), (1, Codes::All(0))] {
            let offsets = m == 2;
            let owned = Owned::new(&mut numbers, code, [3, k], k, Store::F32, true, offsets, codes);
            let x: Vec<f32> = if m == 1 { vec![-1.0; k] } else { (0..m * k).map(|_| numbers.float()).collect() };
            same_bits(&owned, &plain(m, &x));
        }
    }
}

#[test]
fn rows_of_nan_infinity_zero_and_tiny_numbers_stay_what_they_are() {
    let mut numbers = Numbers(5);
    let k = 100;
    for code in Code::ALL {
        let owned = Owned::new(&mut numbers, code, [67, k], 32, Store::F16, false, false, Codes::Random);
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-45, -1e-38, 3e38, 3.7e-37, 0.0];
        let mut x = Vec::new();
        for special in special {
            let start = x.len();
            let small = special.is_nan() || special.abs() > 1.0;
            x.extend((0..k).map(|_| if small { numbers.float() } else { 0.0 }));
            x[start + numbers.below(k)] = special;
        }
        x.extend((0..k).map(|_| numbers.float() * 1e-37));
        let m = special.len() + 1;
        same_bits(&owned, &plain(m, &x));
        (0..m).for_each(|i| same_bits(&owned, &plain(1, &x[i * k..(i + 1) * k])));
    }
    let (q, step) = round_row(&[1.0, f32::NAN]);
    assert!(step.is_nan() && q == [0, 0]);
    assert_eq!(round_row(&[0.0, -0.0]), (vec![0, 0], 0.0));
    assert_eq!(round_row(&[1e-40, -1e-40]), (vec![0, 0], 0.0));
    assert_eq!(round_row(&[127.0, -127.0, 0.5, 1.5, -2.5, 0.4]), (vec![127, -127, 0, 2, -2, 0], 1.0));
}

#[test]
fn empty_products_are_the_bias() {
    for (m, n, k) in [(0, 5, 5), (5, 0, 5), (2, 70, 0)] {
        let owned = Owned::new(&mut Numbers(6), Code::Bits4, [n, k], 32, Store::F32, false, true, Codes::Random);
        let bias: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let x = vec![1.0; m * k];
        let case = Case { bias: Some(&bias), ..plain(m, &x) };
        same_bits(&owned, &case);
        near_sums(&owned, &case);
    }
}

#[test]
fn numbers_are_what_codes_scales_and_offsets_say() {
    let mut numbers = Numbers(7);
    for code in Code::ALL {
        for (block, store, shared, offsets) in
            [(16, Store::F32, false, false), (7, Store::F16, true, true), (100, Store::Bf16, false, true)]
        {
            let owned = Owned::new(&mut numbers, code, [3, 100], block, store, shared, offsets, Codes::Random);
            let matrix = owned.matrix();
            for (n, k) in (0..3).flat_map(|n| (0..100).map(move |k| (n, k))) {
                let c = owned.plain[n * 100 + k];
                assert_eq!(matrix.code(n, k), c);
                let at = if shared { 0 } else { n } * 100usize.div_ceil(block) + k / block;
                let scale = float_at(store, &owned.scales, at);
                let wanted = match &owned.offsets {
                    None => (f32::from(c) - [128.0, 8.0, 1.0, 1.0][code as usize]) * scale,
                    Some(offsets) => f32::from(c) * scale + float_at(store, offsets, at),
                };
                assert_eq!(matrix.number(n, k).to_bits(), wanted.to_bits());
            }
        }
    }
}

#[test]
fn what_does_not_fit_together_is_refused_with_the_reason() {
    let owned = Owned::new(&mut Numbers(8), Code::Ternary4, [3, 10], 4, Store::F16, false, true, Codes::Random);
    let good = owned.parts();
    let refused = |parts: Parts<'_>, says: &str| {
        let problem = Matrix::new(parts).expect_err("it does not fit");
        assert!(problem.contains(says), "{problem}");
    };
    assert!(Matrix::new(good).is_ok());
    refused(Parts { block: 0, ..good }, "a block has at least 1 number");
    refused(Parts { n: 4, ..good }, "3 rows of scales; expected 4, or 1 for all rows");
    refused(Parts { codes: &good.codes[1..], ..good }, "8 bytes of codes; 3 × 3 of 1 bytes are 9 bytes");
    refused(Parts { scales: &good.scales[2..], ..good }, "16 bytes of scales; 3 × 3 of 2 bytes are 18 bytes");
    refused(Parts { offsets: Some(&good.scales[2..]), ..good }, "16 bytes of offsets");
    refused(Parts { store: Store::F32, ..good }, "are 36 bytes");
    for (n, k) in [(usize::MAX, 1), (1, usize::MAX), (usize::MAX, usize::MAX)] {
        refused(Parts { n, k, scale_rows: 1, ..good }, "sizes are at most");
    }
    refused(Parts { n: 1 << 39, k: 1 << 39, scale_rows: 1, ..good }, "bytes of codes");
    let mut codes = owned.codes.clone();
    codes[4] = 0b0000_1100;
    refused(Parts { codes: &codes, ..good }, "in row 1, columns 4 to 7: byte 0x0c has a code of 3");
    // The last byte of a row has two codes; what lies beyond them does not matter.
    codes[4] = 0;
    codes[5] = 0b1111_0000;
    assert!(Matrix::new(Parts { codes: &codes, ..good }).is_ok());
    codes[5] = 0b0000_1100;
    refused(Parts { codes: &codes, ..good }, "in row 1, columns 8 to 9");
    let five = [242, 243, 0, 0, 0, 0];
    refused(Parts { code: Code::Ternary5, codes: &five, ..good }, "in row 0, columns 5 to 9: byte 243");
}

#[test]
fn packed_weights_take_as_many_bytes_as_their_bits() {
    let mut numbers = Numbers(9);
    for (code, bits) in [(Code::Bits8, 8), (Code::Bits4, 4), (Code::Ternary4, 2), (Code::Ternary5, 2)] {
        let owned = Owned::new(&mut numbers, code, [128, 256], 32, Store::F16, false, false, Codes::Random);
        for &isa in Isa::available() {
            let b = PackedLowBit::new(isa, &owned.matrix()).unwrap();
            assert_eq!(b.bytes(), 128 * 256 * bits / 8 + 128 * 8 * 2, "{b:?}");
            assert!(b.is_for(isa) && (b.k(), b.n(), b.code()) == (256, 128, code));
        }
    }
}

#[test]
fn every_path_of_this_machine_passes_its_self_test() {
    for &isa in Isa::available() {
        let began = std::time::Instant::now();
        self_test(isa).unwrap();
        let (name, passed_over) = integer_path(isa);
        assert_eq!(passed_over, None);
        assert_eq!(name, int::all(isa)[0].name);
        // Seen with --nocapture.
        eprintln_time(isa, name, began.elapsed());
    }
}

/// Plain Rust with a mistake in products of one row.
static MISTAKEN: int::Kernels = {
    unsafe fn mistaken<const NARROW: usize>(t: &int::Tile<'_>, sums: *mut f32) {
        // SAFETY: the caller's promise: there is room for what such a tile writes, of which the first number is changed.
        unsafe {
            (int::PLAIN_RUST.tiles[1][0][NARROW])(t, sums);
            *sums += (*sums).abs() * 1e-6;
        }
    }
    let int::Kernels { tiles: [eight, _, two], round, shift8, .. } = int::PLAIN_RUST;
    let four: &[[int::TileFn; 2]] = &[[mistaken::<0>, mistaken::<1>]; 4];
    int::Kernels { name: "mistaken", tiles: [eight, four, two], round, shift8 }
};

#[test]
fn a_path_that_fails_its_test_is_passed_over_with_the_reason() {
    for &isa in Isa::available() {
        let choice = check::choose(isa, vec![&MISTAKEN, int::all(isa)[0]]);
        assert_eq!(choice.kernels.name, int::all(isa)[0].name);
        let why = choice.passed_over.expect("a reason");
        assert!(why.contains("integer products by mistaken are wrong: Bits4"), "{why}");
        let choice = check::choose(isa, vec![&MISTAKEN]);
        assert_eq!(choice.kernels.name, "portable");
        assert!(choice.passed_over.is_some());
    }
}

#[expect(clippy::print_stderr, reason = "a test's measurement")]
fn eprintln_time(isa: Isa, name: &str, took: std::time::Duration) {
    eprintln!("{isa}: all self-tests took {took:?}; products take {name}");
}

#[test]
fn codes_are_fetched_ahead_and_at_the_end_those_of_the_next_product() {
    let at = |address: usize| std::ptr::without_provenance::<u8>(address);
    // Before and after these codes in memory.
    for next in [1_000, 900_000] {
        let fetch = int::Fetch { ahead: 512, end: at(10_000), next: at(next) };
        assert_eq!(fetch.from(at(9_000)).addr(), 9_512);
        assert_eq!(fetch.from(at(9_488)).addr(), next);
        assert_eq!(fetch.from(at(9_744)).addr(), next + 256);
        let mut seen = vec![fetch.from(at(9_000)).addr()];
        (0..4).for_each(|_| seen.push(fetch.after(at(seen[seen.len() - 1]), 256).addr()));
        assert_eq!(seen, [9_512, 9_768, next + 24, next + 280, next + 536]);
    }
}
