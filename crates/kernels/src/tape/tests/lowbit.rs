//! Products with low-bit weights as calls.

use super::*;
use crate::lowbit::{Code, Matrix, PackedLowBit, Parts, round_row};

/// 4-bit codes in blocks of 8 with f32 scales.
struct Weights {
    n: usize,
    k: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Weights {
    fn new(n: usize, k: usize) -> Weights {
        let codes = (0..n * Code::Bits4.row_bytes(k)).map(|i| (i * 37 + 11) as u8).collect();
        let scales = ramp(n * k.div_ceil(8)).iter().flat_map(|x| (x / 8.0).to_ne_bytes()).collect();
        Weights { n, k, codes, scales }
    }
    fn matrix(&self) -> Matrix<'_> {
        let Weights { n, k, .. } = *self;
        let (codes, scales) = (&self.codes[..], &self.scales[..]);
        let parts =
            Parts { code: Code::Bits4, n, k, block: 8, codes, store: Store::F32, scale_rows: n, scales, offsets: None };
        Matrix::new(parts).unwrap()
    }
    fn packed(&self, isa: Isa, rounded: bool) -> GemmB {
        GemmB::LowBit { b: Arc::new(PackedLowBit::new(isa, &self.matrix()).unwrap()), rounded, next: None }
    }
}

#[test]
fn low_bit_products_with_batch_bias_and_epilogue_are_the_defined_sums() {
    for (m, rounded) in [(1, true), (7, true), (1, false), (3, false), (7, false), (40, false)] {
        let (batch, n, k) = (2, 75, 29);
        let weights = Weights::new(n, k);
        let (a_values, bias_values) = (ramp(batch * m * k), ramp(n));
        let mut board = Board::default();
        let (a, bias) = (board.floats(&a_values), board.floats(&bias_values));
        let (batched, single, finished) = (board.room(4 * batch * m * n), board.room(4 * m * n), board.room(4 * m * n));
        let (scratch, more) = (board.room(SCRATCH), board.room(SCRATCH));
        let calls = |isa: Isa, threads| {
            let epilogue = Epilogue::new(on(isa), relu(), (m, n), n, vec![], (finished, Elem::F32), more).unwrap();
            let plain = |batch: usize, c: Ref| Gemm {
                shape: [batch, m, n, k],
                a: dense_matrix(a, m, k),
                b: weights.packed(isa, rounded),
                c: dense_matrix(c, m, n),
                bias: None,
                a_rest: None,
                add: None,
                row_bias: None,
                epilogue: None,
                scratch,
            };
            let with = Gemm { bias: Some(bias), epilogue: Some(Box::new(epilogue)), ..plain(1, single) };
            // As much scratch as it asks for is enough.
            let enough = with.scratch_bytes(on(isa), threads).max(with.scratch_bytes(finest(isa), threads));
            let with = Gemm { scratch: Ref { len: enough, ..scratch }, ..with };
            vec![Call::Gemm(Box::new(plain(batch, batched))), Call::Gemm(Box::new(with))]
        };
        let matrix = weights.matrix();
        let product = |row: &[f32], column: usize| -> f32 {
            if rounded {
                let (q, step) = round_row(row);
                matrix.integer_product(column, &q, step)
            } else {
                row.iter().enumerate().map(|(i, x)| x * matrix.number(column, i)).sum()
            }
        };
        let rows: Vec<&[f32]> = a_values.chunks(k).collect();
        let want: Vec<f32> = (0..batch * m * n).map(|e| product(rows[e / n], e % n)).collect();
        let with_bias: Vec<f32> = want[..m * n].iter().enumerate().map(|(e, y)| y + bias_values[e % n]).collect();
        let positive: Vec<f32> = with_bias.iter().map(|x| x.max(0.0)).collect();
        board.run(calls, |memory| {
            memory.floats(&batched, &want);
            memory.floats(&single, &with_bias);
            memory.floats(&finished, &positive);
        });
    }
}

#[test]
fn low_bit_products_of_other_sizes_sets_or_rows_are_refused() {
    let mut board = Board::default();
    let (x, y, scratch) = (board.floats(&ramp(64)), board.room(256), board.room(SCRATCH));
    for rounded in [true, false] {
        let gemm = || Gemm {
            shape: [1, 4, 8, 8],
            a: dense_matrix(x, 4, 8),
            b: Weights::new(8, 8).packed(Isa::PORTABLE, rounded),
            c: dense_matrix(y, 4, 8),
            bias: None,
            a_rest: None,
            add: None,
            row_bias: None,
            epilogue: None,
            scratch,
        };
        let call = |g: Gemm| Call::Gemm(Box::new(g));
        board.accepted(call(gemm()));
        for (n, k) in [(7, 8), (8, 7), (9, 8), (8, 9)] {
            let why = board.refused(call(Gemm { b: Weights::new(n, k).packed(Isa::PORTABLE, rounded), ..gemm() }));
            assert!(why.contains("where a 8 × 8 matrix for portable is wanted"), "{why}");
        }
        for &isa in Isa::available().iter().filter(|isa| isa.lanes() != Isa::PORTABLE.lanes()) {
            board.refused(call(Gemm { b: Weights::new(8, 8).packed(isa, rounded), ..gemm() }));
        }
        for a in [
            Strided { col: 2, row: 16, ..gemm().a },
            Strided { col: 4, row: 1, ..gemm().a },
            Strided { store: Store::Bf16, ..gemm().a },
        ] {
            let why = board.refused(call(Gemm { a, ..gemm() }));
            assert!(why.contains("not contiguous f32"), "{why}");
        }
        let need = gemm().scratch_bytes(on(Isa::PORTABLE), 2);
        assert!(need > 0);
        board.accepted(call(Gemm { scratch: Ref { len: need, ..scratch }, ..gemm() }));
        board.refused(call(Gemm { scratch: Ref { len: need - 1, ..scratch }, ..gemm() }));
        board.refused(call(Gemm { scratch: y, ..gemm() }));
    }
}

#[test]
fn each_low_bit_product_knows_the_weights_that_follow_and_the_last_one_the_first() {
    let isa = Isa::detect();
    let weights: Vec<GemmB> = [16, 24, 40].iter().map(|n| Weights::new(*n, 8).packed(isa, true)).collect();
    let any = Ref { slot: 0, offset: 0, len: 0 };
    let product = |b: &GemmB| {
        Call::Gemm(Box::new(Gemm {
            shape: [1, 1, 16, 8],
            a: dense_matrix(any, 1, 8),
            b: b.clone(),
            c: dense_matrix(any, 1, 16),
            bias: None,
            a_rest: None,
            add: None,
            row_bias: None,
            epilogue: None,
            scratch: any,
        }))
    };
    // The first weights are read twice, and counted once.
    let mut calls: Vec<Call> = [0, 1, 0, 2].iter().map(|i| product(&weights[*i])).collect();
    call::find_next_weights(&mut calls);
    let columns = |b: &GemmB| match b {
        GemmB::LowBit { b, next: Some(next), .. } => (b.n(), next.b.n(), next.all_bytes),
        _ => panic!("a product with low-bit weights, and one that follows"),
    };
    let bytes: usize = weights.iter().map(|b| if let GemmB::LowBit { b, .. } = b { b.bytes() } else { 0 }).sum();
    let found: Vec<_> =
        calls.iter().map(|c| if let Call::Gemm(g) = c { columns(&g.b) } else { unreachable!() }).collect();
    assert_eq!(found, [(16, 24, bytes), (24, 16, bytes), (16, 40, bytes), (40, 16, bytes)]);
}
