//! Calls against plain loops.

use super::*;
use crate::gated::{Apart, Batch, Gated, Source};
use crate::synapse::{Activation, Synapses};

#[test]
fn a_product_with_and_without_batch_packing_bias_and_epilogue_is_the_plain_sum() {
    let (batch, m, n, k) = (2, 7, 19, 5);
    let (a_values, b_values, bias_values) = (ramp(batch * m * k), ramp(batch * k * n), ramp(n));
    let mut board = Board::default();
    let (a, b, bias) = (board.floats(&a_values), board.floats(&b_values), board.floats(&bias_values));
    let (batched, single, finished) = (board.room(4 * batch * m * n), board.room(4 * m * n), board.room(4 * m * n));
    let (scratch, more) = (board.room(SCRATCH), board.room(SCRATCH));
    let weights: Vec<u8> = b_values.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let weights = Aligned::new(&weights);
    let calls = |isa: Isa, _| {
        let packed =
            pack(isa, Store::F32, [k, n], &weights.data[weights.start..][..weights.len], [n, 1], &mut |_| ()).unwrap();
        let epilogue = Epilogue::new(on(isa), relu(), (m, n), n, vec![], (finished, Elem::F32), more).unwrap();
        vec![
            Call::Gemm(Box::new(Gemm {
                shape: [batch, m, n, k],
                a: dense_matrix(a, m, k),
                b: GemmB::Plain(dense_matrix(b, k, n)),
                c: dense_matrix(batched, m, n),
                bias: None,
                a_rest: None,
                add: None,
                row_bias: None,
                epilogue: None,
                scratch,
            })),
            Call::Gemm(Box::new(Gemm {
                shape: [1, m, n, k],
                a: dense_matrix(a, m, k),
                b: GemmB::Packed(Arc::new(packed)),
                c: dense_matrix(single, m, n),
                bias: Some(bias),
                a_rest: None,
                add: None,
                row_bias: None,
                epilogue: Some(Box::new(epilogue)),
                scratch,
            })),
        ]
    };
    let sum = |g: usize, i: usize, j: usize| -> f32 {
        (0..k).map(|p| a_values[(g * m + i) * k + p] * b_values[(g * k + p) * n + j]).sum()
    };
    let want: Vec<f32> = (0..batch * m * n).map(|e| sum(e / (m * n), e / n % m, e % n)).collect();
    let with_bias: Vec<f32> = (0..m * n).map(|e| sum(0, e / n, e % n) + bias_values[e % n]).collect();
    let positive: Vec<f32> = with_bias.iter().map(|x| x.max(0.0)).collect();
    board.run(calls, |memory| {
        memory.floats(&batched, &want);
        memory.floats(&single, &with_bias);
        memory.floats(&finished, &positive);
    });
}

#[test]
fn a_program_of_two_results_writes_both_also_in_place() {
    for (rows, cols) in [(1, 1), (1, 16), (1, 35), (5, 37), (64, 300)] {
        let (a, b) = (ramp(rows * cols), ramp(rows * cols + 7)[7..].to_vec());
        let mut board = Board::default();
        // Two results apart, one over an operand and one narrow, and both over operands, in either order.
        let [x, x1, x2, x3] = [(); 4].map(|()| board.floats(&a));
        let [w, w1, w2, w3] = [(); 4].map(|()| board.floats(&b));
        let [product, sum] = [(); 2].map(|()| board.room(4 * rows * cols));
        let (narrow, scratch) = (board.room(2 * rows * cols), board.room(SCRATCH));
        let dims = [1, 1, rows, cols];
        let calls = |isa: Isa, _| {
            let map = |x: Ref, w: Ref, outs: [(Ref, Elem); 2]| {
                let inputs = [x, w].map(|r| (r, Elem::F32, [0, 0, cols, 1])).to_vec();
                let map = Map::new(on(isa), product_and_sum(), dims, inputs, outs.to_vec(), scratch);
                Call::Map(Box::new(map.unwrap()))
            };
            vec![
                map(x, w, [(product, Elem::F32), (sum, Elem::F32)]),
                map(x1, w1, [(w1, Elem::F32), (narrow, Elem::Bf16)]),
                map(x2, w2, [(x2, Elem::F32), (w2, Elem::F32)]),
                map(x3, w3, [(w3, Elem::F32), (x3, Elem::F32)]),
            ]
        };
        let products: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a * b).collect();
        let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        board.run(calls, |memory| {
            [product, w1, x2, w3].iter().for_each(|r| memory.floats(r, &products));
            [sum, w2, x3].iter().for_each(|r| memory.floats(r, &sums));
        });
    }
}

#[test]
fn elementwise_calls_are_the_plain_loops_also_in_place() {
    let (rows, cols) = (5, 37);
    let (x_values, w_values) = (ramp(rows * cols), ramp(cols));
    let int_values: Vec<i32> = (0..24).map(|i| i * 7 - 60).collect();
    let mut board = Board::default();
    let (x, w, y) = (board.floats(&x_values), board.floats(&w_values), board.room(4 * rows * cols));
    let (ints, negated, scratch) = (board.ints(&int_values), board.room(4 * 24), board.room(SCRATCH));
    let calls = |isa: Isa, _| {
        let dims = [1, 1, rows, cols];
        let map = |out: Ref| {
            let inputs = vec![(x, Elem::F32, [0, 0, cols, 1]), (w, Elem::F32, [0, 0, 0, 1])];
            Call::Map(Box::new(
                Map::new(on(isa), product_plus_one(), dims, inputs, vec![(out, Elem::F32)], scratch).unwrap(),
            ))
        };
        let int = Call::Int {
            op: IntOp::Neg,
            dims: [1, 1, 2, 3, 4, 1],
            // The middle two axes are exchanged.
            inputs: vec![(ints, Elem::I32, [0, 0, 12, 1, 3, 0])],
            out: (negated, Elem::I32),
        };
        vec![map(y), map(x), int]
    };
    let want: Vec<f32> = (0..rows * cols).map(|i| x_values[i] * w_values[i % cols] + 1.0).collect();
    let transposed: Vec<i32> = (0..24).map(|e| -int_values[e / 12 * 12 + e % 4 * 3 + e / 4 % 3]).collect();
    board.run(calls, |memory| {
        memory.floats(&y, &want);
        memory.floats(&x, &want);
        memory.ints(&negated, &transposed);
    });
}

#[test]
fn reductions_and_rows_are_the_plain_loops() {
    let [outer, len, inner] = [3, 11, 6];
    let values = ramp(outer * len * inner);
    let whole: Vec<i32> = values.iter().map(|x| (x * 16.0) as i32).collect();
    let (gamma_values, beta_values) = (ramp(inner), ramp(inner + 3)[3..].to_vec());
    let mut board = Board::default();
    let (x, ints) = (board.floats(&values), board.ints(&whole));
    let (gamma, beta) = (board.floats(&gamma_values), board.floats(&beta_values));
    let small = 4 * outer * inner;
    let all = 4 * outer * len * inner;
    let (sums, tops, soft) = (board.room(small), board.room(small), board.room(all));
    let (layer, rms) = (board.room(all), board.room(all));
    let rows = outer * len;
    let calls = |_, _| {
        vec![
            Call::Reduce { op: Reduce::Sum, shape: [outer, len, inner], src: x, dst: sums },
            Call::IntReduce { op: IntReduce::Max, shape: [outer, len, inner], src: ints, dst: tops },
            Call::Softmax { rows, len: inner, src: x, dst: soft },
            Call::LayerNorm { rows, len: inner, eps: 1e-3, gamma: Some(gamma), beta: Some(beta), src: x, dst: layer },
            Call::RmsNorm { rows, len: inner, eps: 1e-3, gamma: Some(gamma), src: x, dst: rms },
        ]
    };
    let column = |e: usize| (0..len).map(move |j| (e / inner * len + j) * inner + e % inner);
    let want_sums: Vec<f32> = (0..outer * inner).map(|e| column(e).map(|i| values[i]).sum()).collect();
    let want_tops: Vec<i32> = (0..outer * inner).map(|e| column(e).map(|i| whole[i]).max().unwrap()).collect();
    let (mut want_soft, mut want_layer, mut want_rms) = (vec![], vec![], vec![]);
    for row in values.chunks(inner) {
        let top = row.iter().copied().fold(f32::MIN, f32::max);
        let total: f32 = row.iter().map(|x| (x - top).exp()).sum();
        let mean = row.iter().sum::<f32>() / inner as f32;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / inner as f32;
        let square = row.iter().map(|x| x * x).sum::<f32>() / inner as f32;
        for (i, x) in row.iter().enumerate() {
            want_soft.push((x - top).exp() / total);
            want_layer.push((x - mean) / (variance + 1e-3).sqrt() * gamma_values[i] + beta_values[i]);
            want_rms.push(x / (square + 1e-3).sqrt() * gamma_values[i]);
        }
    }
    board.run(calls, |memory| {
        memory.floats(&sums, &want_sums);
        memory.ints(&tops, &want_tops);
        memory.floats(&soft, &want_soft);
        memory.floats(&layer, &want_layer);
        memory.floats(&rms, &want_rms);
    });
}

#[test]
fn copies_gathers_and_segment_sums_are_the_plain_loops() {
    let (rows, cols) = (6, 10);
    let values = ramp(rows * cols);
    let whole: Vec<i32> = (0..(rows * cols) as i32).collect();
    let (index_values, segment_values) = ([9, 0, 3, 3], [0, 2, 2, 0, 1, 1, 2, 0, 0, 1]);
    let mut board = Board::default();
    let (x, ints) = (board.floats(&values), board.ints(&whole));
    let (indices, segments) = (board.ints(&index_values), board.ints(&segment_values));
    let (transposed, zeros, picked) = (board.room(4 * rows * cols), board.room(100), board.room(4 * rows * 4));
    let (sums, int_sums) = (board.room(4 * rows * 3), board.room(4 * rows * 3));
    let calls = |_, _| {
        vec![
            Call::Copy {
                elem: 4,
                dims: vec![cols, rows],
                src: x,
                src_strides: vec![1, cols as isize],
                dst: transposed,
                dst_strides: vec![rows as isize, 1],
            },
            Call::Zero { dst: zeros },
            Call::Gather { elem: 4, shape: [rows, cols, 1], indices, count: 4, src: x, dst: picked },
            Call::SegmentSum { shape: [rows, cols, 1], segments, count: 3, src: x, dst: sums },
            Call::IntSegmentSum { shape: [rows, cols, 1], segments, count: 3, src: ints, dst: int_sums },
        ]
    };
    let want_transposed: Vec<f32> = (0..rows * cols).map(|e| values[e % rows * cols + e / rows]).collect();
    let want_picked: Vec<f32> = (0..rows * 4).map(|e| values[e / 4 * cols + index_values[e % 4] as usize]).collect();
    let (mut want_sums, mut want_ints) = (vec![0.0; rows * 3], vec![0; rows * 3]);
    for e in 0..rows * cols {
        let to = e / cols * 3 + segment_values[e % cols] as usize;
        want_sums[to] += values[e];
        want_ints[to] += whole[e];
    }
    board.run(calls, |memory| {
        memory.floats(&transposed, &want_transposed);
        assert!(memory.arena[zeros.offset..zeros.offset + 100].iter().all(|&b| b == 0), "{}", memory.what);
        assert_eq!(memory.arena[zeros.offset + 100], 0xAA);
        memory.floats(&picked, &want_picked);
        memory.floats(&sums, &want_sums);
        memory.ints(&int_sums, &want_ints);
    });
}

#[test]
fn sums_over_synapses_are_the_plain_loops_and_stay_within_their_references() {
    let (rows, sources, segments) = (5, 10, 3);
    let values = ramp(rows * sources);
    let (from, to) = ([9, 0, 3, 3, 7], [0, 2, 2, 0, 2]);
    let (scale, shift) = ([0.5, -1.0, 2.0, 1.0, 0.25], [0.0, 0.5, -0.5, 1.0, 2.0]);
    let (ones, weights) = ([1.0; 5], [2.0, -1.0, 0.5, 4.0, -3.0]);
    let pack = |isa: Isa, sums: usize| {
        let columns: [&[f32]; 2] = [&ones, &weights];
        let columns = &columns[..sums];
        let packed =
            Synapses::pack(on(isa), Activation::Identity, sources, segments, &from, &to, &scale, &shift, columns)
                .unwrap();
        Arc::new(packed)
    };
    let mut board = Board::default();
    let transposed: Vec<f32> = (0..rows * sources).map(|i| values[i % rows * sources + i / rows]).collect();
    let (x, y) = (board.floats(&values), board.floats(&transposed));
    let room = 4 * rows * segments;
    let (a, b, c, d) = (board.room(room), board.room(room), board.room(room), board.room(room));
    let calls = |isa, _| {
        vec![
            Call::SynapseSum {
                synapses: pack(isa, 2),
                batch_last: false,
                rows,
                src: x,
                ratio: None,
                terms: vec![],
                outs: vec![a, b],
                scratch: NOTHING,
            },
            Call::SynapseSum {
                synapses: pack(isa, 1),
                batch_last: true,
                rows,
                src: y,
                ratio: None,
                terms: vec![],
                outs: vec![c],
                scratch: NOTHING,
            },
            Call::SynapseSum {
                synapses: pack(isa, 1),
                batch_last: false,
                rows: 0,
                src: x,
                ratio: None,
                terms: vec![],
                outs: vec![d],
                scratch: NOTHING,
            },
        ]
    };
    let (mut plain, mut weighted) = (vec![0.0; rows * segments], vec![0.0; rows * segments]);
    for (row, e) in (0..rows * 5).map(|i| (i / 5, i % 5)) {
        let value = scale[e] * values[row * sources + from[e] as usize] + shift[e];
        plain[row * segments + to[e] as usize] += value;
        weighted[row * segments + to[e] as usize] += weights[e] * value;
    }
    let by_column: Vec<f32> = (0..rows * segments).map(|i| plain[i % rows * segments + i / rows]).collect();
    board.run(calls, |memory| {
        memory.floats(&a, &plain);
        memory.floats(&b, &weighted);
        memory.floats(&c, &by_column);
    });
    let sum = |sums, rows, src, outs| Call::SynapseSum {
        synapses: pack(Isa::PORTABLE, sums),
        batch_last: false,
        rows,
        src,
        ratio: None,
        terms: vec![],
        outs,
        scratch: NOTHING,
    };
    board.accepted(sum(2, rows, x, vec![a, b]));
    board.refused(sum(2, rows, x, vec![a]));
    board.refused(sum(1, rows, x, vec![a, b]));
    board.refused(sum(2, rows + 1, x, vec![a, b]));
    board.refused(sum(2, usize::MAX, x, vec![a, b]));
    board.refused(sum(2, rows, x, vec![a, a]));
    board.refused(sum(2, rows, x, vec![a, Ref { len: room - 4, ..b }]));
    board.refused(sum(2, rows, a, vec![a, b]));
    board.refused(sum(2, rows, x, vec![x, b]));
    board.refused(sum(2, rows, Ref { offset: x.offset + 2, ..x }, vec![a, b]));
    if let Some(&other) = Isa::available().get(1) {
        let synapses = pack(other, 1);
        board.refused(Call::SynapseSum {
            synapses,
            batch_last: false,
            rows,
            src: x,
            ratio: None,
            terms: vec![],
            outs: vec![a],
            scratch: NOTHING,
        });
    }
}

/// No memory.
const NOTHING: Ref = Ref { slot: 0, offset: 0, len: 0 };

/// Where the instruction set is fast at that, rows of several destinations share lanes, in working memory.
#[test]
fn few_batch_last_rows_of_synapses_have_the_room_that_they_need() {
    let (rows, units) = (5, 3);
    let numbers = ([0, 1, 2], [1, 2, 2], [0.5f32; 3]);
    for &isa in Isa::available() {
        let (from, to, ones) = &numbers;
        let packed =
            Synapses::pack(on(isa), Activation::Sigmoid, units, units, from, to, ones, ones, &[ones, ones]).unwrap();
        let bytes = packed.scratch_bytes(true, rows, 1).unwrap();
        assert_eq!(packed.scratch_bytes(false, rows, 1), Some(0));
        assert_eq!(packed.scratch_bytes(true, 16, 1), Some(0));
        assert_eq!(packed.scratch_bytes(true, usize::MAX, 3), None);
        let mut board = Board::default();
        let src = board.floats(&ramp(rows * units));
        let (a, b) = (board.room(4 * rows * units), board.room(4 * rows * units));
        let scratch = board.room(bytes);
        let synapses = Arc::new(packed);
        let call = |scratch| Call::SynapseSum {
            synapses: Arc::clone(&synapses),
            batch_last: true,
            rows,
            src,
            ratio: None,
            terms: vec![],
            outs: vec![a, b],
            scratch,
        };
        let verified = |scratch| Tape::new(on(isa), 2, board.memory(), vec![call(scratch)]).map(|_| ());
        assert_eq!(verified(if bytes == 0 { NOTHING } else { scratch }), Ok(()));
        if bytes > 0 {
            for wrong in [NOTHING, Ref { len: bytes - 64, ..scratch }, a] {
                assert!(verified(wrong).is_err(), "{wrong:?} was let through");
            }
        }
    }
}

#[test]
fn a_gated_cell_is_the_plain_loops_and_stays_within_its_references() {
    let (inputs, units, rows) = ([2, 3], 5, 3);
    let weight = |input: usize, head: usize, unit: usize| ((7 * input + 5 * head + 3 * unit) % 11) as f32 * 0.1 - 0.5;
    let pack = |isa: Isa, batch: Batch| {
        Arc::new(Gated::pack(isa, batch, inputs, units, &Source { weight: &weight, shift: &|_, _| 0.25 }).unwrap())
    };
    let values = ramp(5 * rows);
    let want = |row: usize, unit: usize| {
        let sum = |head: usize| {
            0.25 + (0..5).map(|i| f64::from(weight(i, head, unit)) * f64::from(values[i * rows + row])).sum::<f64>()
        };
        let (a, b) = (sum(0).tanh(), sum(1).tanh());
        (a + (b - a) / (1.0 + (-sum(2)).exp())) as f32
    };
    let all: Vec<f32> = (0..units * rows).map(|i| want(i % rows, i / rows)).collect();
    let mut board = Board::default();
    let (first, second) = (board.floats(&values[..2 * rows]), board.floats(&values[2 * rows..]));
    let row: Vec<f32> = (0..5).map(|i| values[i * rows]).collect();
    let (row_first, row_second) = (board.floats(&row[..2]), board.floats(&row[2..]));
    let room = 4 * rows * units;
    let (out, also, one) = (board.room(room), board.room(room), board.room(4 * units));
    let call = |gated: Arc<Gated>, rows, x, out, also| Call::Gated { rows, apart: gated.dense(), gated, x, out, also };
    let calls = |isa, _| {
        vec![
            call(pack(isa, Batch::Last), rows, [first, second], out, Some(also)),
            call(pack(isa, Batch::First), 1, [row_first, row_second], one, None),
        ]
    };
    board.run(calls, |memory| {
        memory.floats(&out, &all);
        memory.floats(&also, &all);
        memory.floats(&one, &(0..units).map(|unit| want(0, unit)).collect::<Vec<_>>());
    });
    let dense = call;
    let call = |batch, rows, x, out, also| dense(pack(Isa::PORTABLE, batch), rows, x, out, also);
    board.accepted(call(Batch::Last, rows, [first, second], out, Some(also)));
    board.accepted(call(Batch::First, 1, [first, second], one, None));
    board.accepted(call(Batch::First, rows, [first, second], out, None));
    board.refused(call(Batch::First, rows + 1, [first, second], out, None));
    board.refused(call(Batch::Last, rows + 1, [first, second], out, None));
    board.refused(call(Batch::Last, usize::MAX, [first, second], out, None));
    board.refused(call(Batch::Last, rows, [first, first], out, None));
    board.refused(call(Batch::Last, rows, [first, second], out, Some(out)));
    board.refused(call(Batch::Last, rows, [first, second], one, None));
    board.refused(call(Batch::Last, rows, [first, second], out, Some(one)));
    board.refused(call(Batch::Last, rows, [first, out], out, None));
    board.refused(call(Batch::Last, rows, [first, second], second, None));
    if let Some(&other) = Isa::available().get(1) {
        board.refused(dense(pack(other, Batch::Last), rows, [first, second], out, None));
    }
    // Rows that are further apart.
    let wide = (board.room(4 * 4 * rows), board.room(4 * 7 * rows), board.room(4 * 9 * rows));
    let apart = |batch, x: [usize; 2], also: usize| Call::Gated {
        gated: pack(Isa::PORTABLE, batch),
        rows,
        apart: Apart { x, also },
        x: [wide.0, wide.1],
        out,
        also: Some(wide.2),
    };
    board.accepted(apart(Batch::First, [4, 7], 9));
    board.accepted(apart(Batch::First, [2, 3], 5));
    board.accepted(apart(Batch::First, [0, 1], 5));
    for (batch, x, also) in [
        (Batch::First, [6, 7], 9),
        (Batch::First, [4, 10], 9),
        (Batch::First, [4, 7], 12),
        (Batch::First, [4, 7], 4),
        (Batch::First, [usize::MAX, 7], 9),
        (Batch::Last, [4, 7], 9),
    ] {
        board.refused(apart(batch, x, also));
    }
}

#[test]
fn a_ratio_of_sums_is_the_plain_loops_and_stays_within_its_references() {
    let (rows, units) = (3, 4);
    let values = ramp(rows * units);
    let (from, to, scale, shift) = ([3, 0, 2, 2], [0, 2, 2, 0], [0.5, -1.0, 2.0, 1.0], [0.0, 0.5, -0.5, 1.0]);
    let (first, second) = ([1.0; 4], [2.0, -1.0, 0.5, 4.0]);
    let pack = |isa: Isa, segments: usize, weights: &[&[f32]]| {
        let activation = Activation::Identity;
        Arc::new(Synapses::pack(on(isa), activation, units, segments, &from, &to, &scale, &shift, weights).unwrap())
    };
    let mut board = Board::default();
    let (p, q, r) = (ramp(units), ramp(rows * units), vec![50.0; units]);
    let (x, p_at, q_at, r_at) = (board.floats(&values), board.floats(&p), board.floats(&q), board.floats(&r));
    let room = 4 * rows * units;
    let (out, other) = (board.room(room), board.room(room));
    let terms = [(p_at, [0, 1]), (q_at, [units, 1]), (r_at, [0, 1])];
    let first_two = terms[..2].to_vec();
    let between = board.room(64);
    let call = |isa: Isa, src: Ref, ratio: Option<usize>, terms, outs| {
        let synapses = pack(isa, units, &[&first, &second]);
        let scratch = if ratio.is_some_and(|times| times > 1) { between } else { NOTHING };
        Call::SynapseSum { synapses, batch_last: false, rows, src, ratio, terms, outs, scratch }
    };
    let once = Some(1);
    let ratio = |isa: Isa, src: Ref, terms: [(Ref, [usize; 2]); 3], outs| call(isa, src, once, terms.to_vec(), outs);
    let mut sums = vec![[0.0; 2]; rows * units];
    for (row, e) in (0..rows * 4).map(|i| (i / 4, i % 4)) {
        let value = scale[e] * values[row * units + from[e] as usize] + shift[e];
        let sum = &mut sums[row * units + to[e] as usize];
        *sum = [sum[0] + first[e] * value, sum[1] + second[e] * value];
    }
    let want: Vec<f32> = (0..rows * units)
        .map(|i| (p[i % units] * values[i] + q[i] + sums[i][1]) / (r[i % units] + sums[i][0]))
        .collect();
    board.run(|isa, _| vec![ratio(isa, x, terms, vec![out])], |memory| memory.floats(&out, &want));
    let from: Vec<Vec<f32>> = [0, 1]
        .map(|k| (0..rows * units).map(|i| sums[i][k] + if k == 0 { p[i % units] } else { q[i] }).collect())
        .to_vec();
    board.run(
        |isa, _| vec![call(isa, x, None, first_two.clone(), vec![out, other])],
        |memory| {
            memory.floats(&out, &from[0]);
            memory.floats(&other, &from[1]);
        },
    );
    let on = Isa::PORTABLE;
    board.accepted(ratio(on, x, terms, vec![out]));
    board.refused(ratio(on, x, terms, vec![]));
    board.refused(ratio(on, x, terms, vec![out, other]));
    board.refused(ratio(on, x, [(p_at, [units, 1]), terms[1], terms[2]], vec![out]));
    board.refused(ratio(on, x, [terms[0], (q_at, [units + 1, 1]), terms[2]], vec![out]));
    board.refused(ratio(on, x, [terms[0], terms[1], (r_at, [0, 0])], vec![out]));
    board.refused(ratio(on, x, [terms[0], terms[1], (r_at, [0, usize::MAX])], vec![out]));
    board.refused(ratio(on, x, [(out, [0, 1]), terms[1], terms[2]], vec![out]));
    board.refused(ratio(on, out, terms, vec![out]));
    board.accepted(call(on, x, None, first_two.clone(), vec![out, other]));
    board.refused(call(on, x, None, first_two[..1].to_vec(), vec![out, other]));
    board.refused(call(on, x, None, terms.to_vec(), vec![out, other]));
    board.refused(call(on, x, once, first_two, vec![out]));
    let times = |times, room: Ref| match call(on, x, Some(times), terms.to_vec(), vec![out]) {
        Call::SynapseSum { synapses, batch_last, rows, src, ratio, terms, outs, .. } => {
            Call::SynapseSum { synapses, batch_last, rows, src, ratio, terms, outs, scratch: room }
        }
        other => other,
    };
    board.accepted(times(6, between));
    board.refused(times(0, between));
    board.refused(times(6, NOTHING));
    board.refused(times(6, out));
    board.refused(times(6, x));
    board.refused(times(6, Ref { len: 60, ..between }));
    for synapses in [pack(on, units, &[&first]), pack(on, 3, &[&first, &second])] {
        let terms = terms.to_vec();
        board.refused(Call::SynapseSum {
            synapses,
            batch_last: false,
            rows,
            src: x,
            ratio: once,
            terms,
            outs: vec![out],
            scratch: NOTHING,
        });
    }
}

#[test]
fn attention_is_the_plain_loops() {
    let shape = Attention { causal: true, ..Attention::dense(1, 2, 5, 9, 4) };
    let (q_values, k_values, v_values) = (ramp(2 * 5 * 4), ramp(2 * 9 * 4), ramp(2 * 9 * 4 + 1)[1..].to_vec());
    let mut board = Board::default();
    let qkv = [board.floats(&q_values), board.floats(&k_values), board.floats(&v_values)];
    let (out, scratch) = (board.room(4 * 2 * 5 * 4), board.room(SCRATCH));
    let mut want = Vec::new();
    for (h, i) in (0..10).map(|e| (e / 5, e % 5)) {
        let q = &q_values[(h * 5 + i) * 4..][..4];
        let weights: Vec<f32> = (0..=i + 4)
            .map(|j| {
                let k = &k_values[(h * 9 + j) * 4..][..4];
                (q.iter().zip(k).map(|(a, b)| a * b).sum::<f32>() * shape.scale).exp()
            })
            .collect();
        let total: f32 = weights.iter().sum();
        want.extend(
            (0..4).map(|c| {
                weights.iter().enumerate().map(|(j, w)| w / total * v_values[(h * 9 + j) * 4 + c]).sum::<f32>()
            }),
        );
    }
    let calls =
        |_, _| vec![Call::Attention(Box::new(Attend { shape, qkv, mask: None, positions: None, out, scratch }))];
    board.run(calls, |memory| memory.floats(&out, &want));
}

#[test]
fn a_scan_is_the_plain_loop_whatever_its_blocks_and_order() {
    for (rows, block) in [(5, None), (5, Some(2)), (6, Some(3)), (3, Some(1)), (1, Some(1)), (1, None)] {
        for (reverse, time_inside) in [(false, false), (true, false), (false, true), (true, true)] {
            let l = Loop::new(rows);
            let (w, xs) = (ramp(WIDTH), ramp(STEPS * rows * WIDTH));
            let (mut h, mut ys) = (ramp(rows * WIDTH), vec![0.0; xs.len()]);
            for step in 0..STEPS {
                let t = if reverse { STEPS - 1 - step } else { step };
                for (e, h) in h.iter_mut().enumerate() {
                    let (row, c) = (e / WIDTH, e % WIDTH);
                    let at = if time_inside { (row * STEPS + t) * WIDTH } else { (t * rows + row) * WIDTH } + c;
                    *h = *h * xs[at] + w[c];
                    ys[at] = *h * *h;
                }
            }
            for batch_last in [false, true] {
                let calls = |isa: Isa, threads: usize| {
                    let mut scan = Scan { reverse, time_inside, ..l.scan(isa, threads, block) };
                    if let (Some(block), true) = (block, batch_last) {
                        scan.body = body_of(isa, threads, block, WIDTH, true);
                        // The rows left over may lie as they like.
                        scan.tail = scan.tail.map(|_| body_of(isa, threads, rows % block, WIDTH, reverse));
                    }
                    vec![Call::Scan(Box::new(scan))]
                };
                l.board.run(calls, |memory| {
                    memory.floats(&l.last, &h);
                    memory.floats(&l.ys, &ys);
                });
            }
        }
    }
}

#[test]
fn a_scan_inside_a_scan_runs_with_frames_of_its_own() {
    // The outer body runs the inner scan over the same rows: two passes of two steps are two nested loops.
    let l = Loop::new(4);
    let bytes = 4 * 4 * WIDTH;
    let calls = |isa: Isa, threads: usize| {
        let inner = l.scan(isa, threads, Some(3));
        let memory = Memory {
            arena: SCRATCH,
            inputs: vec![
                Extent { bytes, align: 4 },
                Extent { bytes: STEPS * bytes, align: 4 },
                Extent { bytes: 4 * WIDTH, align: 4 },
            ],
            outputs: vec![Extent { bytes, align: 4 }, Extent { bytes: STEPS * bytes, align: 4 }],
            consts: vec![],
        };
        let of = |slot, len| Ref { slot, offset: 0, len };
        let (h, xs, w, next, ys) =
            (of(1, bytes), of(2, STEPS * bytes), of(3, 4 * WIDTH), of(4, bytes), of(5, STEPS * bytes));
        let row_bytes = 4 * WIDTH;
        let nested = Scan {
            states: vec![ScanState { init: h, last: next, rows: 4, row_bytes, total: false }],
            sequences: vec![Sequence { at: xs, rows: 4, row_bytes, batch_last: false }],
            fixed: vec![w],
            outputs: vec![Sequence { at: ys, rows: 4, row_bytes, batch_last: false }],
            scratch: Ref { slot: 0, offset: 0, len: SCRATCH },
            ..inner
        };
        let tape = Tape::new(on(isa), threads, memory, vec![Call::Scan(Box::new(nested))]).unwrap();
        vec![Call::Scan(Box::new(Scan {
            steps: 1,
            reverse: false,
            time_inside: false,
            states: vec![ScanState { init: l.init, last: l.last, rows: 1, row_bytes: bytes, total: false }],
            sequences: vec![Sequence { at: l.xs, rows: 1, row_bytes: STEPS * bytes, batch_last: false }],
            fixed: vec![l.w],
            outputs: vec![Sequence { at: l.ys, rows: 1, row_bytes: STEPS * bytes, batch_last: false }],
            blocks: None,
            body: Body { tape: tape.into(), batch_last: false },
            tail: None,
            scratch: l.scratch,
        }))]
    };
    let (w, xs, mut h) = (ramp(WIDTH), ramp(STEPS * 4 * WIDTH), ramp(4 * WIDTH));
    for step in xs.chunks(4 * WIDTH) {
        h.iter_mut().zip(step).enumerate().for_each(|(e, (h, x))| *h = *h * x + w[e % WIDTH]);
    }
    let mut board = Board { data: l.board.data.clone() };
    let room = board.room(2 * SCRATCH);
    let calls = |isa: Isa, threads: usize| {
        let mut all = calls(isa, threads);
        for call in &mut all {
            if let Call::Scan(scan) = call {
                scan.scratch = room;
            }
        }
        all
    };
    board.run(calls, |memory| memory.floats(&l.last, &h));
}

#[test]
fn inputs_outputs_and_constants_are_reached_by_their_slots() {
    let constant = Const::Fixed(Arc::new(vec![7u8; 40]));
    let align = 1;
    let memory = Memory {
        arena: 0,
        inputs: vec![Extent { bytes: 8, align }, Extent { bytes: 0, align: 4 }],
        outputs: vec![Extent { bytes: 48, align }],
        consts: vec![constant],
    };
    let copy = |src: Ref, at: usize| Call::Copy {
        elem: 1,
        dims: vec![src.len],
        src,
        src_strides: vec![1],
        dst: Ref { slot: memory.slot(Space::Output(0)), offset: at, len: src.len },
        dst_strides: vec![1],
    };
    let calls = vec![
        copy(Ref { slot: memory.slot(Space::Input(0)), offset: 0, len: 8 }, 0),
        copy(Ref { slot: memory.slot(Space::Const(0)), offset: 0, len: 40 }, 8),
        copy(Ref { slot: memory.slot(Space::Input(1)), offset: 0, len: 0 }, 48),
    ];
    let tape = Tape::new(on(Isa::detect()), 1, memory, calls).unwrap();
    let mut frame = tape.frame();
    let (input, mut output) = ([1u8, 2, 3, 4, 5, 6, 7, 8], [0u8; 48]);
    let cancel = AtomicBool::new(false);
    let inputs: [&[u8]; 2] = [&input, &[]];
    tape.run(&mut frame, Team::solo(), &mut [], inputs, [&mut output[..]], None, &cancel).unwrap();
    assert_eq!((&output[..8], &output[8..]), (&input[..], &[7u8; 40][..]));

    let mut try_run = |inputs: &[&[u8]], output: &mut [u8], team: &Team| {
        tape.run(&mut frame, team, &mut [], inputs.iter().copied(), [output], None, &cancel)
    };
    assert!(matches!(try_run(&[&input[..7], &[]], &mut output, Team::solo()), Err(Stopped::Buffer(_))));
    assert!(matches!(try_run(&[&input], &mut output, Team::solo()), Err(Stopped::Buffer(_))));
    assert!(matches!(try_run(&inputs, &mut output[..47], Team::solo()), Err(Stopped::Buffer(_))));
    let team = Team::new(2).unwrap();
    assert!(matches!(try_run(&inputs, &mut output, &team), Err(Stopped::Buffer(_))), "a team larger than the tape");
}

#[test]
fn a_constant_that_answers_differently_each_time_is_asked_once() {
    struct Fickle(AtomicUsize, Vec<u8>);
    impl AsRef<[u8]> for Fickle {
        fn as_ref(&self) -> &[u8] {
            if self.0.fetch_add(1, Ordering::Relaxed) == 0 { &self.1 } else { &[] }
        }
    }
    let constant = Const::Fixed(Arc::new(Fickle(AtomicUsize::new(0), vec![9; 64])));
    let memory = Memory { outputs: vec![Extent { bytes: 64, align: 1 }], consts: vec![constant], ..Memory::default() };
    let (src, dst) = (Ref { slot: 2, offset: 0, len: 64 }, Ref { slot: 1, offset: 0, len: 64 });
    let copy = Call::Copy { elem: 1, dims: vec![64], src, src_strides: vec![1], dst, dst_strides: vec![1] };
    let tape = Tape::new(on(Isa::detect()), 1, memory, vec![copy]).unwrap();
    let mut out = [0u8; 64];
    let cancel = AtomicBool::new(false);
    tape.run(&mut tape.frame(), Team::solo(), &mut [], [], [&mut out[..]], None, &cancel).unwrap();
    assert_eq!(out, [9; 64]);
}
