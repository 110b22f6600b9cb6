//! Every kernel against f64 loops.

use super::*;
use crate::simd::portable::Portable;
use crate::tuning::on;
use half::{bf16, f16};
use std::sync::Mutex;

/// Sizes around the borders of tiles and registers.
const SIZES: [usize; 19] = [0, 1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 100, 129];

/// Every set of kernels that this CPU runs, the portable ones in all widths.
fn all_kernels() -> Vec<(String, &'static Kernels)> {
    static EIGHT: Kernels = Kernels::of::<Portable<8>>(None);
    static SIXTEEN: Kernels = Kernels::of::<Portable<16>>(None);
    let mut all = vec![("portable of 8".to_owned(), &EIGHT), ("portable of 16".to_owned(), &SIXTEEN)];
    all.extend(Isa::available().iter().map(|&isa| (isa.to_string(), Kernels::get(isa))));
    all
}

fn tuning() -> &'static Tuning {
    on(Isa::PORTABLE).tuning
}

/// Small numbers with few bits, so that every storage type holds them, from a fixed sequence.
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
        (self.below(255) as f32 - 127.0) / 64.0
    }
}

/// A matrix in memory, with a gap between its rows (or columns) full of NaN that nothing may read into a result.
struct Matrix {
    data: Vec<u8>,
    store: Store,
    row: usize,
    col: usize,
}

impl Matrix {
    fn new(store: Store, rows: usize, cols: usize, transposed: bool, gap: usize, mut f: impl FnMut() -> f32) -> Matrix {
        let (row, col) = if transposed { (1, rows + gap) } else { (cols + gap, 1) };
        // No gap follows the last element: reading past it is an error that a sanitiser or a page border would show.
        let len = if rows * cols == 0 { 0 } else { (rows - 1) * row + (cols - 1) * col + 1 };
        let mut matrix = Matrix { data: vec![0xff; len * store.size()], store, row, col };
        for i in 0..rows {
            for j in 0..cols {
                matrix.set(i, j, f());
            }
        }
        matrix
    }
    fn set(&mut self, i: usize, j: usize, x: f32) {
        let at = (i * self.row + j * self.col) * self.store.size();
        match self.store {
            Store::F32 => self.data[at..at + 4].copy_from_slice(&x.to_ne_bytes()),
            Store::F16 => self.data[at..at + 2].copy_from_slice(&f16::from_f32(x).to_ne_bytes()),
            Store::Bf16 => self.data[at..at + 2].copy_from_slice(&bf16::from_f32(x).to_ne_bytes()),
        }
    }
    fn get(&self, i: usize, j: usize) -> f32 {
        let at = (i * self.row + j * self.col) * self.store.size();
        let two = || [self.data[at], self.data[at + 1]];
        match self.store {
            Store::F32 => f32::from_ne_bytes(self.data[at..at + 4].try_into().unwrap()),
            Store::F16 => f16::from_ne_bytes(two()).to_f32(),
            Store::Bf16 => bf16::from_ne_bytes(two()).to_f32(),
        }
    }
    fn source(&self) -> Source {
        Source { ptr: self.data.as_ptr(), store: self.store, row: self.row, col: self.col }
    }
    fn plain(&self) -> B<'static> {
        B::Plain { ptr: self.data.as_ptr(), store: self.store, row_stride: self.row, col_stride: self.col }
    }
}

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

fn scratch(bytes: usize) -> Vec<Line> {
    vec![Line([0xff; 64]); bytes / 64]
}

#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    k: usize,
    n: usize,
    stores: [Store; 3],
    transposed: [bool; 2],
    packed: bool,
    accumulate: bool,
    bias: bool,
}

fn gemm_of<'a>(case: Case, a: &Matrix, b: B<'a>, c: &mut Matrix, bias: &[f32]) -> Gemm<'a> {
    Gemm {
        m: case.m,
        n: case.n,
        k: case.k,
        a: a.data.as_ptr(),
        a_store: a.store,
        a_row_stride: a.row,
        a_col_stride: a.col,
        a_rest: None,
        b,
        c: c.data.as_mut_ptr(),
        c_store: c.store,
        c_row_stride: c.row,
        add: case.accumulate.then_some(c.data.as_ptr()),
        bias: case.bias.then_some(bias.as_ptr()),
        row_bias: None,
        epilogue: None,
    }
}

fn run(name: &str, kernels: &'static Kernels, team: &Team, case: Case, numbers: &mut Numbers) {
    run_tuned(name, kernels, tuning(), team, case, numbers);
}

fn run_tuned(name: &str, kernels: &'static Kernels, tuning: &Tuning, team: &Team, case: Case, numbers: &mut Numbers) {
    let Case { m, k, n, stores, .. } = case;
    let a = Matrix::new(stores[0], m, k, case.transposed[0], numbers.below(3), || numbers.float());
    let b = Matrix::new(stores[1], k, n, case.transposed[1], 1, || numbers.float());
    let mut c = Matrix::new(stores[2], m, n, false, 2, || numbers.float());
    let bias: Vec<f32> = (0..n).map(|_| numbers.float()).collect();
    let row_bias: Vec<f32> = (0..m).map(|_| numbers.float()).collect();
    // Half of the cases with a bias have one a row too.
    let by_row = case.bias && numbers.below(2) == 0;
    // Half of the products that are added to something are added to another matrix than C.
    let other = Matrix::new(stores[2], m, n, false, 2, || numbers.float());
    let other = (case.accumulate && numbers.below(2) == 0).then_some(&other);
    let mut expected = vec![0f64; m * n];
    for i in 0..m {
        let row = &mut expected[i * n..(i + 1) * n];
        for (j, x) in row.iter_mut().enumerate() {
            *x = if case.bias { f64::from(bias[j]) } else { 0.0 };
            *x += if by_row { f64::from(row_bias[i]) } else { 0.0 };
            *x += if case.accumulate { f64::from(other.unwrap_or(&c).get(i, j)) } else { 0.0 };
        }
        for p in 0..k {
            let x = f64::from(a.get(i, p));
            row.iter_mut().enumerate().for_each(|(j, sum)| *sum += x * f64::from(b.get(p, j)));
        }
    }
    let finished = Finished { cols: n, counts: Mutex::new(vec![0; m * n]) };
    // SAFETY: the matrices have the shapes and strides given.
    unsafe {
        let packed = PackedB::with(kernels, k, n, b.source());
        let right = if case.packed { B::Packed(&packed) } else { b.plain() };
        let row_bias = by_row.then_some(row_bias.as_ptr());
        let g = Gemm { row_bias, epilogue: Some(&finished), ..gemm_of(case, &a, right, &mut c, &bias) };
        let g = Gemm { add: other.map(|other| other.data.as_ptr()).or(g.add), ..g };
        let mut scratch = scratch(Plan::new(kernels, tuning, &g).scratch_bytes() * team.threads());
        gemm_with(kernels, Machine { isa: Isa::PORTABLE, tuning }, team, &g, 0, scratch.as_mut_ptr().cast());
    }
    let relative = [1e-6, 1e-3, 8e-3][stores[2] as usize];
    for i in 0..m {
        for j in 0..n {
            let (got, want) = (f64::from(c.get(i, j)), expected[i * n + j]);
            let tolerance = relative * (want.abs() + 1.0) + 1e-6 * (k as f64).sqrt();
            assert!((got - want).abs() <= tolerance, "{name} {case:?} at ({i}, {j}): {got}, not {want}");
        }
    }
    // The gap between the rows of C is as it was.
    for i in 0..m.saturating_sub(1) {
        assert!(n == 0 || c.get(i, n).is_nan() && c.get(i, n + 1).is_nan(), "{name} {case:?} wrote past row {i}");
    }
    assert!(finished.counts.lock().unwrap().iter().all(|&count| count == 1), "{name} {case:?} rectangles");
}

#[test]
fn products_are_right_whatever_they_are_tuned_to() {
    let least = [
        ("gemm_thread_multiply_adds_least", 1),
        ("gemm_tile_rows", 1),
        ("gemm_block_columns", 64),
        ("gemm_block_column_bytes", 64),
        ("gemm_copied_rows", 5),
        ("gemm_in_place_bytes_most", 0),
        ("gemm_epilogue_at_once_bytes_most", 0),
        ("gemm_prefetch_depth_least", 0),
        ("gemm_prefetch_bytes_ahead", 1),
    ];
    let most = [
        ("gemm_thread_multiply_adds_least", 1 << 20),
        ("gemm_tile_rows", 5),
        ("gemm_block_columns", 65_536),
        ("gemm_block_column_bytes", 1 << 20),
        ("gemm_copied_rows", 1000),
        ("gemm_in_place_bytes_most", 1 << 20),
        ("gemm_epilogue_at_once_bytes_most", 1 << 20),
        ("gemm_prefetch_depth_least", 1 << 20),
        ("gemm_prefetch_bytes_ahead", 1 << 20),
    ];
    let tuned = |values: &[(&str, usize)]| values.iter().fold(*tuning(), |t, (name, n)| t.with(name, *n).unwrap());
    let (mut numbers, team) = (Numbers(10), Team::new(3).unwrap());
    for tuning in [tuned(&least), tuned(&most)] {
        for (name, kernels) in all_kernels() {
            for _ in 0..60 {
                let [m, k, n] = std::array::from_fn(|_| SIZES[numbers.below(SIZES.len())] + numbers.below(2) * 150);
                let case = random_case(&mut numbers, m, k, n);
                run_tuned(&name, kernels, &tuning, &team, case, &mut numbers);
            }
        }
    }
}

#[test]
fn a_matrix_packed_in_pieces_is_the_matrix_and_each_byte_is_read_once() {
    let mut numbers = Numbers(8);
    for (name, kernels) in all_kernels() {
        for store in [Store::F32, Store::F16, Store::Bf16] {
            for (k, n, transposed) in [(37, 150, false), (37, 150, true), (1, 33, false), (64, 64, true), (5, 1, true)]
            {
                let b = Matrix::new(store, k, n, transposed, 1, || numbers.float());
                let pack = |piece: usize| {
                    let mut read = vec![];
                    // SAFETY: the matrix has the shape and strides given.
                    let packed = unsafe { PackedB::in_pieces(kernels, k, n, b.source(), piece, &mut |r| read.push(r)) };
                    // SAFETY: nobody rewrites it.
                    let lines =
                        packed.map(|p| unsafe { std::slice::from_raw_parts(p.data.as_ptr(), p.data.len()) }.to_vec());
                    (lines.unwrap(), read)
                };
                let bytes = |lines: &[Line]| lines.iter().flat_map(|l| l.0).collect::<Vec<u8>>();
                let (whole, all) = pack(usize::MAX);
                assert_eq!(all.len(), 1);
                for piece in [1, 100, 999, 4000] {
                    let (parts, read) = pack(piece);
                    assert_eq!(bytes(&parts), bytes(&whole), "{name} {store:?} {k} × {n}, {transposed}, by {piece}");
                    assert!(read.windows(2).all(|r| r[0].end == r[1].start), "{read:?}");
                    assert_eq!((read[0].start, read[read.len() - 1].end), (all[0].start, all[0].end));
                }
            }
        }
    }
}

#[test]
fn a_row_in_two_parts_is_the_row() {
    let mut numbers = Numbers(9);
    for (name, kernels) in all_kernels() {
        for (k, n, rest) in [(37, 87, 29), (48, 57, 19), (5, 16, 5), (5, 3, 0), (130, 33, 1)] {
            let row: Vec<f32> = (0..k).map(|_| numbers.float()).collect();
            let b = Matrix::new(Store::F32, k, n, false, 0, || numbers.float());
            let bias: Vec<f32> = (0..n).map(|_| numbers.float()).collect();
            let run = |first: &[f32], rest: Option<(*const u8, usize)>| {
                let mut c = vec![0.0f32; n];
                // SAFETY: the operands have the shapes given; such a product needs no scratch memory.
                unsafe {
                    let packed = PackedB::with(kernels, k, n, b.source());
                    let g = Gemm {
                        m: 1,
                        n,
                        k,
                        a: first.as_ptr().cast(),
                        a_store: Store::F32,
                        a_row_stride: k,
                        a_col_stride: 1,
                        a_rest: rest,
                        b: B::Packed(&packed),
                        c: c.as_mut_ptr().cast(),
                        c_store: Store::F32,
                        c_row_stride: n,
                        add: None,
                        bias: Some(bias.as_ptr()),
                        row_bias: None,
                        epilogue: None,
                    };
                    gemm_with(kernels, on(Isa::PORTABLE), Team::solo(), &g, 0, std::ptr::null_mut());
                }
                c
            };
            let (first, last) = (row[..k - rest].to_vec(), row[k - rest..].to_vec());
            let parts = run(&first, Some((last.as_ptr().cast(), rest)));
            assert_eq!(parts, run(&row, None), "{name}: {k} × {n}, the last {rest} elsewhere");
        }
    }
}

const STORES: [Store; 3] = [Store::F32, Store::F16, Store::Bf16];

fn random_case(numbers: &mut Numbers, m: usize, k: usize, n: usize) -> Case {
    let bits = numbers.next();
    let bit = |i: u32| bits >> i & 1 == 1;
    Case {
        m,
        k,
        n,
        stores: std::array::from_fn(|_| if numbers.below(2) == 0 { Store::F32 } else { STORES[numbers.below(3)] }),
        transposed: [bit(0), bit(1)],
        packed: bit(2),
        accumulate: bit(3),
        bias: bit(4),
    }
}

#[test]
fn every_combination_of_layout_and_type_is_right() {
    let team = Team::new(1).unwrap();
    let mut numbers = Numbers(1);
    for (name, kernels) in all_kernels() {
        for code in 0..27 * 32 {
            let (stores, flags) = (code / 32, code % 32);
            let flag = |i: u32| flags >> i & 1 == 1;
            let case = Case {
                m: 5 + stores % 4,
                k: 17 + code % 2,
                n: 33 + code % 3 * 31,
                stores: [STORES[stores % 3], STORES[stores / 3 % 3], STORES[stores / 9]],
                transposed: [flag(0), flag(1)],
                packed: flag(2),
                accumulate: flag(3),
                bias: flag(4),
            };
            run(&name, kernels, &team, case, &mut numbers);
        }
    }
}

#[test]
fn every_size_around_tile_borders_is_right_on_one_to_three_threads() {
    let teams = [1, 2, 3].map(|threads| Team::new(threads).unwrap());
    let mut numbers = Numbers(2);
    for (name, kernels) in all_kernels() {
        for a in SIZES {
            for b in SIZES {
                for axis in 0..3 {
                    let mut shape = [SIZES[numbers.below(19)].min(40); 3];
                    (shape[axis], shape[(axis + 1) % 3]) = (a, b);
                    let case = random_case(&mut numbers, shape[0], shape[1], shape[2]);
                    run(&name, kernels, &teams[numbers.below(3)], case, &mut numbers);
                }
            }
        }
    }
}

#[test]
fn sums_and_widths_beyond_one_block_are_right() {
    let teams = [1, 2, 3].map(|threads| Team::new(threads).unwrap());
    let mut numbers = Numbers(3);
    for (name, kernels) in all_kernels() {
        for (m, k, n) in
            [(1, 1100, 33), (3, 2050, 70), (50, 1031, 18), (7, 33, 700), (101, 40, 300), (13, 520, 270), (2, 3000, 33)]
        {
            for team in &teams {
                let case = random_case(&mut numbers, m, k, n);
                run(&name, kernels, team, case, &mut numbers);
            }
        }
    }
}

#[test]
fn a_batch_equals_its_elements() {
    let mut numbers = Numbers(4);
    for &isa in Isa::available() {
        for (threads, batch, n) in [(1, 3, 20), (2, 1, 70), (2, 5, 70), (3, 2, 130), (3, 7, 65)] {
            let team = Team::new(threads).unwrap();
            let [m, k] = [19, 40];
            let bits = numbers.next();
            let case = Case {
                transposed: [bits & 1 == 1, bits & 2 == 2],
                packed: false,
                ..random_case(&mut numbers, m, k, n)
            };
            let shared = bits & 4 == 4;
            let a: Vec<Matrix> = vec![Matrix::new(case.stores[0], batch * m, k, false, 0, || numbers.float())];
            let b = Matrix::new(case.stores[1], batch * k, n, false, 0, || numbers.float());
            let mut c = Matrix::new(case.stores[2], batch * m, n, false, 0, || 0.5);
            let mut one = Matrix::new(case.stores[2], batch * m, n, false, 0, || 0.5);
            let bias = vec![0.25; n];
            let strides = [m * k * a[0].store.size(), k * n * b.store.size(), m * n * c.store.size()];
            let b_stride = if shared { 0 } else { strides[1] };
            let finished = Finished { cols: n, counts: Mutex::new(vec![0; batch * m * n]) };
            let g = Gemm { epilogue: Some(&finished), ..gemm_of(case, &a[0], b.plain(), &mut c, &bias) };
            let mut scratch = scratch(scratch_bytes(on(isa), threads, &g));
            let to = scratch.as_mut_ptr().cast();
            // SAFETY: the matrices have the shapes and strides given.
            unsafe { gemm_batched(on(isa), &team, &g, batch, strides[0], b_stride, strides[2], to) };
            assert!(finished.counts.lock().unwrap().iter().all(|&count| count == 1));
            let alone = Team::new(1).unwrap();
            for i in 0..batch {
                let mut g = gemm_of(case, &a[0], b.plain(), &mut one, &bias);
                g.a = g.a.wrapping_add(i * strides[0]);
                g.c = g.c.wrapping_add(i * strides[2]);
                g.add = g.add.map(|add| add.wrapping_add(i * strides[2]));
                if let B::Plain { ptr, .. } = &mut g.b {
                    *ptr = ptr.wrapping_add(i * b_stride);
                }
                // SAFETY: as above.
                unsafe { gemm(on(isa), &alone, &g, to) };
            }
            assert!(c.data == one.data, "{isa} {threads} threads, batch {batch}");
        }
    }
}

#[test]
fn infinities_and_nan_reach_their_row_and_column_and_nothing_else() {
    let team = Team::new(1).unwrap();
    for (name, kernels) in all_kernels() {
        for stores in [[Store::F32; 3], [Store::Bf16; 3], [Store::F32, Store::F16, Store::F32]] {
            for packed in [false, true] {
                let (m, k, n) = (8, 7, 37);
                let case = Case { m, k, n, stores, transposed: [false; 2], packed, accumulate: false, bias: false };
                let mut a = Matrix::new(stores[0], m, k, false, 1, || 0.0);
                let mut b = Matrix::new(stores[1], k, n, false, 1, || 0.0);
                let mut c = Matrix::new(stores[2], m, n, false, 0, || 0.0);
                a.set(2, 6, f32::INFINITY);
                b.set(6, 36, f32::NAN);
                b.set(3, 5, f32::NEG_INFINITY);
                b.set(6, 1, 1.0);
                // SAFETY: the matrices have the shapes and strides given.
                unsafe {
                    let weights = PackedB::with(kernels, k, n, b.source());
                    let right = if packed { B::Packed(&weights) } else { b.plain() };
                    let g = gemm_of(case, &a, right, &mut c, &[]);
                    let mut scratch = scratch(Plan::new(kernels, tuning(), &g).scratch_bytes());
                    gemm_with(kernels, on(Isa::PORTABLE), &team, &g, 0, scratch.as_mut_ptr().cast());
                }
                for i in 0..m {
                    for j in 0..n {
                        let x = c.get(i, j);
                        let right = match (i, j) {
                            (2, 1) => x == f32::INFINITY,
                            (2, _) | (_, 5 | 36) => x.is_nan(),
                            _ => x == 0.0,
                        };
                        assert!(right, "{name} {case:?} at ({i}, {j}): {x}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_thread_count_always_gives_the_same_bits() {
    let team = Team::new(3).unwrap();
    let mut numbers = Numbers(5);
    let isa = Isa::detect();
    let (m, k, n) = (70, 90, 200);
    let case = Case { accumulate: false, ..random_case(&mut numbers, m, k, n) };
    let a = Matrix::new(case.stores[0], m, k, false, 0, || numbers.float());
    let b = Matrix::new(case.stores[1], k, n, false, 0, || numbers.float());
    let bias = vec![0.5; n];
    let results: [Vec<u8>; 4] = std::array::from_fn(|_| {
        let mut c = Matrix::new(case.stores[2], m, n, false, 0, || f32::NAN);
        let g = gemm_of(case, &a, b.plain(), &mut c, &bias);
        let mut scratch = scratch(scratch_bytes(on(isa), 3, &g));
        // SAFETY: the matrices have the shapes and strides given.
        unsafe { gemm(on(isa), &team, &g, scratch.as_mut_ptr().cast()) };
        c.data
    });
    assert!(results.iter().all(|c| *c == results[0]));
}

#[test]
#[should_panic(expected = "packed operand is 4 × 4")]
fn a_packed_operand_of_another_shape_is_refused() {
    let team = Team::new(1).unwrap();
    let a = Matrix::new(Store::F32, 4, 5, false, 0, || 1.0);
    let b = Matrix::new(Store::F32, 4, 4, false, 0, || 1.0);
    let mut c = Matrix::new(Store::F32, 4, 4, false, 0, || 1.0);
    let case = random_case(&mut Numbers(6), 4, 5, 4);
    // SAFETY: the shapes are checked before any pointer is followed.
    unsafe {
        let packed = PackedB::with(Kernels::get(Isa::PORTABLE), 4, 4, b.source());
        gemm(on(Isa::PORTABLE), &team, &gemm_of(case, &a, B::Packed(&packed), &mut c, &[]), std::ptr::null_mut());
    }
}

#[test]
fn working_memory_beyond_what_an_address_holds_is_as_much_as_it_holds() {
    let null = std::ptr::null_mut::<u8>();
    let plain = B::Plain { ptr: null, store: Store::F32, row_stride: 0, col_stride: 0 };
    let product = |k: usize| Gemm {
        m: 100,
        n: 100,
        k,
        a: null,
        a_store: Store::F16,
        a_row_stride: 0,
        a_col_stride: 0,
        a_rest: None,
        b: plain,
        c: null,
        c_store: Store::F16,
        c_row_stride: 100,
        add: None,
        bias: None,
        row_bias: None,
        epilogue: None,
    };
    for (name, kernels) in all_kernels() {
        let usual = Plan::new(kernels, tuning(), &product(1000)).scratch_bytes();
        assert!((1000 * 100..10_000_000).contains(&usual), "{name}: {usual}");
        for k in [usize::MAX / 8, usize::MAX / 100] {
            assert_eq!(Plan::new(kernels, tuning(), &product(k)).scratch_bytes(), usize::MAX, "{name}");
        }
    }
    assert_eq!(scratch_bytes(on(Isa::PORTABLE), 4096, &product(usize::MAX >> 12)), usize::MAX);
}
