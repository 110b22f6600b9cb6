//! Small tapes of every call against plain loops, and calls that lie against the verifier.

use super::*;
use crate::attention::Attention;
use crate::exact::{IntOp, IntReduce};
use crate::gemm::Store;
use crate::map::{Binary, Elem, Instr, Program, Unary};
use crate::reduce::Reduce;
use crate::synapse::{Activation, Synapses};
use std::sync::atomic::AtomicUsize;

/// An arena under construction, with values already in it.
#[derive(Default)]
struct Board {
    data: Vec<u8>,
}

impl Board {
    fn room(&mut self, bytes: usize) -> Ref {
        let offset = self.data.len();
        self.data.resize((offset + bytes).next_multiple_of(ARENA_ALIGN), 0xAA);
        Ref { slot: 0, offset, len: bytes }
    }
    fn bytes(&mut self, bytes: &[u8]) -> Ref {
        let at = self.room(bytes.len());
        self.data[at.offset..at.offset + at.len].copy_from_slice(bytes);
        at
    }
    fn floats(&mut self, values: &[f32]) -> Ref {
        self.bytes(&values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())
    }
    fn ints(&mut self, values: &[i32]) -> Ref {
        self.bytes(&values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())
    }
    fn memory(&self) -> Memory {
        Memory { arena: self.data.len(), ..Memory::default() }
    }
    /// Why one call is refused, on the portable path with two threads.
    #[track_caller]
    fn refused(&self, call: Call) -> String {
        match Tape::new(Isa::PORTABLE, 2, self.memory(), vec![call]) {
            Ok(tape) => panic!("{:?} was let through", tape.calls),
            Err(why) => why,
        }
    }
    #[track_caller]
    fn accepted(&self, call: Call) {
        Tape::new(Isa::PORTABLE, 2, self.memory(), vec![call]).unwrap();
    }
    /// Runs calls on every instruction set and on one to three threads.
    #[track_caller]
    fn run(&self, calls: impl Fn(Isa, usize) -> Vec<Call>, check: impl Fn(&Memories)) {
        for &isa in Isa::available() {
            for threads in 1..=3 {
                let tape = Tape::new(isa, threads, self.memory(), calls(isa, threads)).unwrap();
                let team = Team::new(threads).unwrap();
                let mut arena = Aligned::new(&self.data);
                let mut frame = tape.frame();
                tape.run(&mut frame, &team, arena.get(), [], [], None, &AtomicBool::new(false)).unwrap();
                check(&Memories { arena: arena.get().to_vec(), what: format!("{isa}, {threads} threads") });
            }
        }
    }
}

/// Bytes that start at a multiple of 64.
struct Aligned {
    data: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(bytes: &[u8]) -> Aligned {
        let mut data = vec![0; bytes.len() + ARENA_ALIGN];
        let start = data.as_ptr().align_offset(ARENA_ALIGN);
        data[start..start + bytes.len()].copy_from_slice(bytes);
        Aligned { data, start, len: bytes.len() }
    }
    fn get(&mut self) -> &mut [u8] {
        &mut self.data[self.start..self.start + self.len]
    }
}

/// What a run left in the arena.
struct Memories {
    arena: Vec<u8>,
    what: String,
}

impl Memories {
    fn words(&self, r: &Ref) -> Vec<[u8; 4]> {
        let bytes = &self.arena[r.offset..r.offset + r.len];
        bytes.chunks_exact(4).map(|c| c.try_into().unwrap()).collect()
    }
    #[track_caller]
    fn floats(&self, r: &Ref, want: &[f32]) {
        let got: Vec<f32> = self.words(r).into_iter().map(f32::from_ne_bytes).collect();
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert!(
                (got - want).abs() <= 1e-5 * want.abs().max(1.0),
                "{}: element {i} is {got}, not {want}",
                self.what
            );
        }
    }
    #[track_caller]
    fn ints(&self, r: &Ref, want: &[i32]) {
        let got: Vec<i32> = self.words(r).into_iter().map(i32::from_ne_bytes).collect();
        assert_eq!(got, want, "{}", self.what);
    }
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 64) as f32 / 16.0 - 2.0).collect()
}

/// More than any small call needs on three threads.
const SCRATCH: usize = 4 << 20;

fn dense_matrix(at: Ref, rows: usize, cols: usize) -> Strided {
    Strided { at, store: Store::F32, batch: rows * cols, row: cols, col: 1 }
}

/// input 0 · input 1 + 1
fn product_plus_one() -> Program {
    let instrs = vec![Instr::Input(0), Instr::Input(1), Instr::constant(1.0), Instr::MulAdd(0, 1, 2)];
    Program::new(instrs, vec![3], 2).unwrap()
}

fn relu() -> Program {
    Program::new(vec![Instr::Input(0), Instr::Unary(Unary::Relu, 0)], vec![1], 1).unwrap()
}

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
        let packed = pack(isa, Store::F32, [k, n], &weights.data[weights.start..][..weights.len], [n, 1]).unwrap();
        let epilogue = Epilogue::new(isa, relu(), (m, n), n, vec![], (finished, Elem::F32), more).unwrap();
        vec![
            Call::Gemm(Box::new(Gemm {
                shape: [batch, m, n, k],
                a: dense_matrix(a, m, k),
                b: GemmB::Plain(dense_matrix(b, k, n)),
                c: dense_matrix(batched, m, n),
                bias: None,
                a_rest: None,
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
            Call::Map(Box::new(Map::new(isa, product_plus_one(), dims, inputs, (out, Elem::F32), scratch).unwrap()))
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
    let turned: Vec<i32> = (0..24).map(|e| -int_values[e / 12 * 12 + e % 4 * 3 + e / 4 % 3]).collect();
    board.run(calls, |memory| {
        memory.floats(&y, &want);
        memory.floats(&x, &want);
        memory.ints(&negated, &turned);
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
    let (turned, zeros, picked) = (board.room(4 * rows * cols), board.room(100), board.room(4 * rows * 4));
    let (sums, int_sums) = (board.room(4 * rows * 3), board.room(4 * rows * 3));
    let calls = |_, _| {
        vec![
            Call::Copy {
                elem: 4,
                dims: vec![cols, rows],
                src: x,
                src_strides: vec![1, cols as isize],
                dst: turned,
                dst_strides: vec![rows as isize, 1],
            },
            Call::Zero { dst: zeros },
            Call::Gather { elem: 4, shape: [rows, cols, 1], indices, count: 4, src: x, dst: picked },
            Call::SegmentSum { shape: [rows, cols, 1], segments, count: 3, src: x, dst: sums },
            Call::IntSegmentSum { shape: [rows, cols, 1], segments, count: 3, src: ints, dst: int_sums },
        ]
    };
    let want_turned: Vec<f32> = (0..rows * cols).map(|e| values[e % rows * cols + e / rows]).collect();
    let want_picked: Vec<f32> = (0..rows * 4).map(|e| values[e / 4 * cols + index_values[e % 4] as usize]).collect();
    let (mut want_sums, mut want_ints) = (vec![0.0; rows * 3], vec![0; rows * 3]);
    for e in 0..rows * cols {
        let to = e / cols * 3 + segment_values[e % cols] as usize;
        want_sums[to] += values[e];
        want_ints[to] += whole[e];
    }
    board.run(calls, |memory| {
        memory.floats(&turned, &want_turned);
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
            Synapses::pack(isa, Activation::Identity, sources, segments, &from, &to, &scale, &shift, columns).unwrap();
        Arc::new(packed)
    };
    let mut board = Board::default();
    let turned: Vec<f32> = (0..rows * sources).map(|i| values[i % rows * sources + i / rows]).collect();
    let (x, y) = (board.floats(&values), board.floats(&turned));
    let room = 4 * rows * segments;
    let (a, b, c, d) = (board.room(room), board.room(room), board.room(room), board.room(room));
    let calls = |isa, _| {
        vec![
            Call::SynapseSum { synapses: pack(isa, 2), columns: false, rows, src: x, outs: vec![a, b] },
            Call::SynapseSum { synapses: pack(isa, 1), columns: true, rows, src: y, outs: vec![c] },
            Call::SynapseSum { synapses: pack(isa, 1), columns: false, rows: 0, src: x, outs: vec![d] },
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
        columns: false,
        rows,
        src,
        outs,
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
        board.refused(Call::SynapseSum { synapses, columns: false, rows, src: x, outs: vec![a] });
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
    let calls = |_, _| vec![Call::Attention(Box::new(Attend { shape, qkv, mask: None, out, scratch }))];
    board.run(calls, |memory| memory.floats(&out, &want));
}

/// A body: h' = h · x + w, y = h' · h', over rows of `width`; inputs h, x and w, outputs h' and y.
fn body(isa: Isa, threads: usize, rows: usize, width: usize) -> Body {
    body_of(isa, threads, rows, width, false)
}

/// The same with rows as columns, if wanted.
fn body_of(isa: Isa, threads: usize, rows: usize, width: usize, columns: bool) -> Body {
    let wide = Extent { bytes: 4 * rows * width, align: 4 };
    let program =
        Program::new(vec![Instr::Input(0), Instr::Input(1), Instr::Input(2), Instr::MulAdd(0, 1, 2)], vec![3], 3);
    let square = Program::new(vec![Instr::Input(0), Instr::Binary(Binary::Mul, 0, 0)], vec![1], 1);
    let memory = Memory {
        arena: 64 << 10,
        inputs: vec![wide, wide, Extent { bytes: 4 * width, align: 4 }],
        outputs: vec![wide, wide],
        consts: vec![],
    };
    let of = |space, extent: Extent| Ref { slot: memory.slot(space), offset: 0, len: extent.bytes };
    let (h, x) = (of(Space::Input(0), wide), of(Space::Input(1), wide));
    let w = of(Space::Input(2), memory.inputs[2]);
    let (next, y) = (of(Space::Output(0), wide), of(Space::Output(1), wide));
    let scratch = Ref { slot: 0, offset: 0, len: 64 << 10 };
    let (dims, rowwise, shared) = if columns {
        ([1, 1, width, rows], [0, 0, rows, 1], [0, 0, 1, 0])
    } else {
        ([1, 1, rows, width], [0, 0, width, 1], [0, 0, 0, 1])
    };
    let inputs = vec![(h, Elem::F32, rowwise), (x, Elem::F32, rowwise), (w, Elem::F32, shared)];
    let calls = vec![
        Call::Map(Box::new(Map::new(isa, program.unwrap(), dims, inputs, (next, Elem::F32), scratch).unwrap())),
        Call::Map(Box::new(
            Map::new(isa, square.unwrap(), dims, vec![(next, Elem::F32, rowwise)], (y, Elem::F32), scratch).unwrap(),
        )),
    ];
    Body { tape: Tape::new(isa, threads, memory, calls).unwrap(), columns }
}

const WIDTH: usize = 3;
const STEPS: usize = 4;

/// A scan of [`body`] over so many rows, and where its operands are.
struct Loop {
    board: Board,
    rows: usize,
    init: Ref,
    last: Ref,
    xs: Ref,
    ys: Ref,
    w: Ref,
    scratch: Ref,
}

impl Loop {
    fn new(rows: usize) -> Loop {
        let mut board = Board::default();
        let init = board.floats(&ramp(rows * WIDTH));
        let last = board.room(4 * rows * WIDTH);
        let xs = board.floats(&ramp(STEPS * rows * WIDTH));
        let ys = board.room(4 * STEPS * rows * WIDTH);
        let w = board.floats(&ramp(WIDTH));
        let scratch = board.room(SCRATCH);
        Loop { board, rows, init, last, xs, ys, w, scratch }
    }

    fn scan(&self, isa: Isa, threads: usize, block: Option<usize>) -> Scan {
        let (rows, row_bytes) = (self.rows, 4 * WIDTH);
        let left = block.map_or(0, |b| rows % b);
        Scan {
            steps: STEPS,
            reverse: false,
            time_inside: false,
            states: vec![ScanState { init: self.init, last: self.last, rows, row_bytes }],
            sequences: vec![Sequence { at: self.xs, rows, row_bytes }],
            fixed: vec![self.w],
            outputs: vec![Sequence { at: self.ys, rows, row_bytes }],
            blocks: block.map(|b| (rows, b)),
            body: body(isa, threads, block.unwrap_or(rows), WIDTH),
            tail: (left > 0).then(|| body(isa, threads, left, WIDTH)),
            scratch: self.scratch,
        }
    }

    #[track_caller]
    fn refused(&self, change: impl FnOnce(&mut Scan)) -> String {
        let mut scan = self.scan(Isa::PORTABLE, 2, Some(2));
        change(&mut scan);
        self.board.refused(Call::Scan(Box::new(scan)))
    }
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
            for columns in [false, true] {
                let calls = |isa: Isa, threads: usize| {
                    let mut scan = Scan { reverse, time_inside, ..l.scan(isa, threads, block) };
                    if let (Some(block), true) = (block, columns) {
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
            states: vec![ScanState { init: h, last: next, rows: 4, row_bytes }],
            sequences: vec![Sequence { at: xs, rows: 4, row_bytes }],
            fixed: vec![w],
            outputs: vec![Sequence { at: ys, rows: 4, row_bytes }],
            scratch: Ref { slot: 0, offset: 0, len: SCRATCH },
            ..inner
        };
        let tape = Tape::new(isa, threads, memory, vec![Call::Scan(Box::new(nested))]).unwrap();
        vec![Call::Scan(Box::new(Scan {
            steps: 1,
            reverse: false,
            time_inside: false,
            states: vec![ScanState { init: l.init, last: l.last, rows: 1, row_bytes: bytes }],
            sequences: vec![Sequence { at: l.xs, rows: 1, row_bytes: STEPS * bytes }],
            fixed: vec![l.w],
            outputs: vec![Sequence { at: l.ys, rows: 1, row_bytes: STEPS * bytes }],
            blocks: None,
            body: Body { tape, columns: false },
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
    let constant: Const = Arc::new(vec![7u8; 40]);
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
    let tape = Tape::new(Isa::detect(), 1, memory, calls).unwrap();
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
fn an_arena_too_small_or_not_aligned_is_refused() {
    let mut board = Board::default();
    let dst = board.room(128);
    let tape = Tape::new(Isa::detect(), 1, board.memory(), vec![Call::Zero { dst }]).unwrap();
    let (mut frame, cancel) = (tape.frame(), AtomicBool::new(false));
    let mut room = Aligned::new(&[0; 256]);
    for part in [0..127, 1..256, 32..256] {
        let stopped = tape.run(&mut frame, Team::solo(), &mut room.get()[part], [], [], None, &cancel);
        assert!(matches!(stopped, Err(Stopped::Buffer(_))));
    }
    tape.run(&mut frame, Team::solo(), &mut room.get()[64..192], [], [], None, &cancel).unwrap();
}

#[test]
fn a_frame_of_another_tape_is_refused_even_with_as_many_slots() {
    let tape = |bytes: usize| {
        let constant: Const = Arc::new(vec![1u8; bytes]);
        let memory = Memory { outputs: vec![Extent { bytes, align: 1 }], consts: vec![constant], ..Memory::default() };
        let part = |slot| Ref { slot, offset: 0, len: bytes };
        let (src, dst) = (part(memory.slot(Space::Const(0))), part(memory.slot(Space::Output(0))));
        let copy = Call::Copy { elem: 1, dims: vec![bytes], src, src_strides: vec![1], dst, dst_strides: vec![1] };
        Tape::new(Isa::detect(), 1, memory, vec![copy]).unwrap()
    };
    let (long, cancel) = (tape(4096), AtomicBool::new(false));
    let mut frame = tape(16).frame();
    let mut out = vec![0; 4096];
    let stopped = long.run(&mut frame, Team::solo(), &mut [], [], [&mut out[..]], None, &cancel);
    assert!(matches!(stopped, Err(Stopped::Buffer(_))));
    long.run(&mut long.frame(), Team::solo(), &mut [], [], [&mut out[..]], None, &cancel).unwrap();
}

#[test]
fn a_constant_that_answers_differently_each_time_is_asked_once() {
    struct Fickle(AtomicUsize, Vec<u8>);
    impl AsRef<[u8]> for Fickle {
        fn as_ref(&self) -> &[u8] {
            if self.0.fetch_add(1, Ordering::Relaxed) == 0 { &self.1 } else { &[] }
        }
    }
    let constant: Const = Arc::new(Fickle(AtomicUsize::new(0), vec![9; 64]));
    let memory = Memory { outputs: vec![Extent { bytes: 64, align: 1 }], consts: vec![constant], ..Memory::default() };
    let (src, dst) = (Ref { slot: 2, offset: 0, len: 64 }, Ref { slot: 1, offset: 0, len: 64 });
    let copy = Call::Copy { elem: 1, dims: vec![64], src, src_strides: vec![1], dst, dst_strides: vec![1] };
    let tape = Tape::new(Isa::detect(), 1, memory, vec![copy]).unwrap();
    let mut out = [0u8; 64];
    let cancel = AtomicBool::new(false);
    tape.run(&mut tape.frame(), Team::solo(), &mut [], [], [&mut out[..]], None, &cancel).unwrap();
    assert_eq!(out, [9; 64]);
}

#[test]
fn references_outside_their_memory_or_unaligned_are_refused() {
    let mut board = Board::default();
    let (src, dst) = (board.floats(&ramp(16)), board.room(64));
    let softmax = |src, dst| Call::Softmax { rows: 4, len: 4, src, dst };
    board.accepted(softmax(src, dst));
    board.accepted(softmax(src, src));
    board.refused(softmax(src, Ref { offset: dst.offset + 1, ..dst }));
    board.refused(softmax(src, Ref { offset: src.offset + 4, ..dst }));
    board.refused(softmax(src, Ref { len: 63, ..dst }));
    board.refused(softmax(src, Ref { offset: 128, ..dst }));
    board.refused(softmax(src, Ref { offset: usize::MAX - 3, ..dst }));
    board.refused(softmax(src, Ref { slot: 1, ..dst }));
    board.refused(softmax(src, Ref { slot: u32::MAX, ..dst }));
    for (rows, len) in [(1 << 62, 4), (1 << 32, 1 << 32), (usize::MAX, 1)] {
        board.refused(Call::Softmax { rows, len, src, dst });
    }
    // Nothing is written here, but a kernel may still make a slice of it.
    let (segments, empty) = (Ref { len: 0, ..src }, Ref { offset: 1, len: 0, ..dst });
    board.refused(Call::IntSegmentSum { shape: [1, 0, 1], segments, count: 0, src: segments, dst: empty });
}

#[test]
fn inputs_and_constants_are_never_written() {
    let memory = || Memory {
        inputs: vec![Extent { bytes: 64, align: 64 }],
        consts: vec![Arc::new([0u8; 64])],
        ..Memory::default()
    };
    for slot in [1, 2] {
        let dst = Ref { slot, offset: 0, len: 64 };
        assert!(Tape::new(Isa::PORTABLE, 1, memory(), vec![Call::Zero { dst }]).is_err());
    }
}

#[test]
fn memories_that_cannot_exist_are_refused() {
    let dst = Ref { slot: 0, offset: 1 << 40, len: 64 };
    let arena = |bytes| Memory { arena: bytes, ..Memory::default() };
    assert!(Tape::new(Isa::PORTABLE, 1, arena(usize::MAX), vec![Call::Zero { dst }]).is_err());
    let extent = |bytes, align| Memory { inputs: vec![Extent { bytes, align }], ..Memory::default() };
    assert!(Tape::new(Isa::PORTABLE, 1, extent(usize::MAX, 1), vec![]).is_err());
    assert!(Tape::new(Isa::PORTABLE, 1, extent(4, 0), vec![]).is_err());
    assert!(Tape::new(Isa::PORTABLE, 1, extent(4, 3), vec![]).is_err());
    assert!(Tape::new(Isa::PORTABLE, 1 << 60, arena(0), vec![]).is_err());
}

#[test]
fn no_threads_still_need_the_scratch_of_one() {
    let mut board = Board::default();
    let (x, y) = (board.floats(&ramp(16)), board.room(64));
    let map = |scratch| {
        let inputs = vec![(x, Elem::F32, [0, 0, 0, 1])];
        Call::Map(Box::new(Map::new(Isa::PORTABLE, relu(), [1, 1, 1, 16], inputs, (y, Elem::F32), scratch).unwrap()))
    };
    let nothing = Ref { slot: 0, offset: 0, len: 0 };
    assert!(Tape::new(Isa::PORTABLE, 0, board.memory(), vec![map(nothing)]).is_err());
    // A plain bfloat16 B is always packed.
    let g = Gemm {
        shape: [1, 1, 4, 4],
        a: Strided { at: x, store: Store::F32, batch: 0, row: 0, col: 0 },
        b: GemmB::Plain(Strided { at: x, store: Store::Bf16, batch: 0, row: 1, col: 4 }),
        c: Strided { at: y, store: Store::F16, batch: 0, row: 0, col: 1 },
        bias: None,
        a_rest: None,
        row_bias: None,
        epilogue: None,
        scratch: nothing,
    };
    assert!(g.scratch_bytes(Isa::PORTABLE, 1) > 0);
    assert!(Tape::new(Isa::PORTABLE, 0, board.memory(), vec![Call::Gemm(Box::new(g))]).is_err());
}

#[test]
fn elementwise_results_replace_only_an_operand_of_their_own_layout() {
    let mut board = Board::default();
    let (x, w, y, scratch) = (board.floats(&ramp(32)), board.floats(&ramp(32)), board.room(128), board.room(SCRATCH));
    let map = |w: Ref, w_strides, out| {
        let inputs = vec![(x, Elem::F32, [0, 0, 8, 1]), (w, Elem::F32, w_strides)];
        Call::Map(Box::new(Map::new(Isa::PORTABLE, product_plus_one(), [1, 1, 4, 8], inputs, out, scratch).unwrap()))
    };
    let (rows, repeated, turned) = ([0, 0, 8, 1], [0, 0, 0, 1], [0, 0, 1, 1]);
    board.accepted(map(w, rows, (y, Elem::F32)));
    board.accepted(map(w, rows, (w, Elem::F32)));
    board.accepted(map(x, rows, (x, Elem::F32)));
    board.refused(map(w, repeated, (w, Elem::F32)));
    board.refused(map(x, repeated, (x, Elem::F32)));
    board.refused(map(w, turned, (w, Elem::F32)));
    board.refused(map(w, rows, (w, Elem::F16)));
    board.refused(map(w, rows, (Ref { offset: w.offset + 32, ..w }, Elem::F32)));
    board.refused(map(w, rows, (scratch, Elem::F32)));
    let new =
        |dims, strides| Map::new(Isa::PORTABLE, relu(), dims, vec![(x, Elem::F32, strides)], (y, Elem::F32), scratch);
    assert!(new([1, 1, 4, 8], [0, 0, 0, 2]).is_err());
    assert!(new([2, 1 << 32, 1 << 32, 1], [0; 4]).is_err());
    assert!(new([0, 1 << 32, 1 << 32, 1], [0; 4]).is_err());
    assert!(new([1, 1, 4, 8], [usize::MAX, 0, 0, 1]).is_err());
    assert!(Map::new(Isa::PORTABLE, product_plus_one(), [1; 4], vec![], (y, Elem::F32), scratch).is_err());
}

#[test]
fn a_parameter_is_not_replaced_with_the_row_that_it_scales() {
    let mut board = Board::default();
    let (x, y) = (board.floats(&ramp(8)), board.room(32));
    let norm = |gamma, beta, dst| Call::LayerNorm { rows: 1, len: 8, eps: 0.1, gamma, beta, src: x, dst };
    board.accepted(norm(Some(x), Some(x), y));
    board.accepted(norm(None, Some(y), x));
    board.refused(norm(Some(x), None, x));
    board.refused(norm(None, Some(x), x));
    board.refused(norm(None, Some(y), y));
}

#[test]
fn integer_calls_take_integers_and_as_many_operands_as_they_have() {
    let mut board = Board::default();
    let (x, y) = (board.ints(&[1; 8]), board.room(32));
    let int = |op, elem, n, out| {
        let inputs = vec![(x, elem, [0, 0, 0, 0, 0, 1]); n];
        Call::Int { op, dims: [1, 1, 1, 1, 1, 8], inputs, out }
    };
    board.accepted(int(IntOp::Select, Elem::I32, 3, (y, Elem::I32)));
    board.refused(int(IntOp::Select, Elem::I32, 4, (y, Elem::I32)));
    board.refused(int(IntOp::Add, Elem::I32, 1, (y, Elem::I32)));
    board.refused(int(IntOp::Add, Elem::F32, 2, (y, Elem::I32)));
    board.refused(int(IntOp::Add, Elem::I32, 2, (y, Elem::F32)));
    board.refused(int(IntOp::Add, Elem::I32, 2, (x, Elem::I32)));
}

#[test]
fn a_copy_writes_each_element_once_and_none_that_it_reads() {
    let mut board = Board::default();
    let (x, y) = (board.floats(&ramp(16)), board.room(64));
    let copy = |elem, dims: &[usize], from: &[isize], to: &[isize], dst| Call::Copy {
        elem,
        dims: dims.to_vec(),
        src: x,
        src_strides: from.to_vec(),
        dst,
        dst_strides: to.to_vec(),
    };
    board.accepted(copy(4, &[4, 4], &[0, 1], &[4, 1], y));
    board.refused(copy(4, &[4, 4], &[4, 1], &[0, 1], y));
    board.refused(copy(4, &[4, 4], &[4, 1], &[3, 1], y));
    board.refused(copy(4, &[4, 4], &[4, 1], &[5, 1], y));
    board.refused(copy(4, &[4, 4], &[5, 1], &[4, 1], y));
    board.refused(copy(4, &[4, 4], &[-4, 1], &[4, 1], y));
    board.refused(copy(4, &[4, 4], &[4, 1], &[4, 1], x));
    board.refused(copy(8, &[2], &[1], &[1], y));
    board.refused(copy(3, &[2], &[1], &[1], y));
    board.refused(copy(4, &[4, 4], &[4], &[4, 1], y));
    board.refused(copy(1, &[1; 7], &[1; 7], &[1; 7], y));
    board.refused(copy(4, &[0, 2], &[isize::MAX, isize::MAX], &[1, 1], y));
}

#[test]
fn an_index_out_of_range_stops_the_run_and_indices_are_not_overwritten() {
    let mut board = Board::default();
    let (x, indices, y) = (board.floats(&ramp(16)), board.ints(&[0, 1, 4, 0]), board.room(64));
    let gather = |indices, dst| Call::Gather { elem: 4, shape: [1, 4, 4], indices, count: 4, src: x, dst };
    let sum = |segments, dst| Call::SegmentSum { shape: [1, 4, 4], segments, count: 4, src: x, dst };
    board.accepted(gather(indices, y));
    board.refused(gather(y, y));
    board.refused(gather(indices, x));
    board.refused(sum(y, y));
    board.refused(gather(Ref { len: 12, ..indices }, y));
    board.refused(Call::Gather { elem: 8, shape: [1, 4, 1], indices, count: 4, src: x, dst: y });
    for call in [gather(indices, y), sum(indices, y)] {
        let tape = Tape::new(Isa::detect(), 1, board.memory(), vec![call]).unwrap();
        let mut arena = Aligned::new(&board.data);
        let cancel = AtomicBool::new(false);
        let stopped = tape.run(&mut tape.frame(), Team::solo(), arena.get(), [], [], None, &cancel);
        assert!(matches!(stopped, Err(Stopped::Value { call, .. }) if call == [0]));
        assert_eq!(arena.get(), board.data);
    }
    // Pieces without elements are nothing to add.
    let nothing = Call::SegmentSum { shape: [3, 2, 0], segments: indices, count: 4, src: x, dst: y };
    let tape = Tape::new(Isa::detect(), 1, board.memory(), vec![nothing]).unwrap();
    let cancel = AtomicBool::new(false);
    tape.run(&mut tape.frame(), Team::solo(), Aligned::new(&board.data).get(), [], [], None, &cancel).unwrap();
}

#[test]
fn products_of_sizes_that_overflow_are_refused() {
    // All of these matrices are one element repeated, and their packed copies would wrap around to no bytes at all.
    let one = 1.0f32.to_ne_bytes();
    let data = Aligned::new(&one);
    for [k, n] in [[1 << 58, 16], [1 << 32, 1 << 30], [usize::MAX, 1], [1, usize::MAX]] {
        assert!(pack(Isa::PORTABLE, Store::F32, [k, n], &data.data[data.start..][..4], [0, 0]).is_err());
    }
    let mut board = Board::default();
    let (x, y, scratch) = (board.floats(&ramp(16)), board.room(64), board.room(SCRATCH));
    let repeated = |at| Strided { at, store: Store::F32, batch: 0, row: 0, col: 0 };
    let product = |shape: [usize; 4], a: Strided, c_store| {
        Call::Gemm(Box::new(Gemm {
            shape,
            a,
            b: GemmB::Plain(repeated(x)),
            c: Strided { at: y, store: c_store, batch: 16, row: 16, col: 1 },
            bias: None,
            a_rest: None,
            row_bias: None,
            epilogue: None,
            scratch,
        }))
    };
    board.accepted(product([1, 1, 16, 100], repeated(x), Store::F32));
    for k in [1 << 58, 1 << 56, usize::MAX] {
        board.refused(product([1, 1, 16, k], repeated(x), Store::F16));
        board.refused(product([1, 1, 16, k], repeated(x), Store::F32));
        board.refused(product([1, 0, 16, k], repeated(x), Store::F16));
        board.refused(product([k, 1, 16, 1], repeated(x), Store::F16));
    }
    board.refused(product([1, 1, 16, 1], Strided { row: 1, col: usize::MAX, ..repeated(x) }, Store::F32));
}

#[test]
fn a_product_reads_and_writes_within_its_operands() {
    let mut board = Board::default();
    let (x, y, z) = (board.floats(&ramp(32)), board.room(128), board.room(128));
    let (scratch, more) = (board.room(SCRATCH), board.room(SCRATCH));
    let gemm = || Gemm {
        shape: [1, 4, 8, 8],
        a: dense_matrix(x, 4, 8),
        b: GemmB::Plain(Strided { row: 0, ..dense_matrix(x, 8, 8) }),
        c: dense_matrix(y, 4, 8),
        bias: None,
        a_rest: None,
        row_bias: None,
        epilogue: None,
        scratch,
    };
    let call = |g: Gemm| Call::Gemm(Box::new(g));
    board.accepted(call(gemm()));
    board.refused(call(Gemm { a: Strided { row: 9, ..gemm().a }, ..gemm() }));
    board.refused(call(Gemm { b: GemmB::Plain(dense_matrix(x, 8, 8)), ..gemm() }));
    board.refused(call(Gemm { c: Strided { row: 7, ..gemm().c }, ..gemm() }));
    board.refused(call(Gemm { c: Strided { row: 9, ..gemm().c }, ..gemm() }));
    board.refused(call(Gemm { c: Strided { col: 2, ..gemm().c }, ..gemm() }));
    board.refused(call(Gemm { c: dense_matrix(x, 4, 8), ..gemm() }));
    board.refused(call(Gemm { bias: Some(y), ..gemm() }));
    board.refused(call(Gemm { bias: Some(Ref { len: 28, ..x }), ..gemm() }));
    board.refused(call(Gemm { scratch: y, ..gemm() }));
    board.refused(call(Gemm { shape: [2, 4, 8, 8], ..gemm() }));
    let weights = Aligned::new(&[0; 256]);
    let weights = &weights.data[weights.start..][..256];
    let packed = |isa, k, n| GemmB::Packed(Arc::new(pack(isa, Store::F32, [k, n], weights, [8, 1]).unwrap()));
    board.accepted(call(Gemm { b: packed(Isa::PORTABLE, 8, 8), ..gemm() }));
    board.refused(call(Gemm { b: packed(Isa::PORTABLE, 8, 7), ..gemm() }));
    board.refused(call(Gemm { b: packed(Isa::PORTABLE, 7, 8), ..gemm() }));
    for &isa in Isa::available().iter().filter(|isa| isa.lanes() != Isa::PORTABLE.lanes()) {
        board.refused(call(Gemm { b: packed(isa, 8, 8), ..gemm() }));
    }
    let finish = |shape: (usize, usize), row, inputs: Vec<(Ref, Elem, [usize; 2])>, out, scratch| {
        let program = if inputs.is_empty() { relu() } else { product_plus_one() };
        Some(Box::new(Epilogue::new(Isa::PORTABLE, program, shape, row, inputs, out, scratch).unwrap()))
    };
    let with = |epilogue| call(Gemm { epilogue, ..gemm() });
    let other = vec![(x, Elem::F32, [8, 1])];
    board.accepted(with(finish((4, 8), 8, vec![], (z, Elem::F32), more)));
    board.accepted(with(finish((4, 8), 8, vec![], (y, Elem::F32), more)));
    board.accepted(with(finish((4, 8), 8, other.clone(), (y, Elem::F32), more)));
    board.refused(with(finish((4, 8), 8, vec![], (y, Elem::F16), more)));
    board.refused(with(finish((4, 8), 8, other.clone(), (x, Elem::F32), more)));
    board.refused(with(finish((4, 8), 8, vec![(y, Elem::F32, [8, 1])], (y, Elem::F32), more)));
    board.refused(with(finish((4, 8), 8, vec![(x, Elem::F32, [9, 1])], (z, Elem::F32), more)));
    board.refused(with(finish((5, 8), 8, vec![], (z, Elem::F32), more)));
    board.refused(with(finish((4, 8), 9, vec![], (z, Elem::F32), more)));
    board.refused(with(finish((4, 8), 8, vec![], (Ref { len: 127, ..z }, Elem::F32), more)));
    board.refused(with(finish((4, 8), 8, vec![], (z, Elem::F32), scratch)));
    board.refused(with(finish((4, 8), 8, vec![], (z, Elem::F32), Ref { len: 64, ..more })));
    board.refused(with(finish((4, 8), 8, vec![], (z, Elem::F32), z)));
}

#[test]
fn attention_of_heads_strides_or_scratch_that_do_not_fit_is_refused() {
    let mut board = Board::default();
    let (x, out, scratch) = (board.floats(&ramp(64)), board.room(256), board.room(SCRATCH));
    let fine = Attention::dense(1, 2, 4, 4, 8);
    let attend =
        |shape, mask, out, scratch| Call::Attention(Box::new(Attend { shape, qkv: [x, x, x], mask, out, scratch }));
    let shaped = |shape| attend(shape, None, out, scratch);
    board.accepted(shaped(fine));
    board.refused(shaped(Attention { kv_heads: 0, ..fine }));
    board.refused(shaped(Attention { heads: 3, ..fine }));
    board.refused(shaped(Attention { heads: 4, ..fine }));
    board.refused(shaped(Attention { keys: 5, ..fine }));
    board.refused(shaped(Attention { batch: 2, ..fine }));
    board.refused(shaped(Attention { value_dim: 9, ..fine }));
    board.refused(shaped(Attention { out: [64, 32, 0], ..fine }));
    board.refused(shaped(Attention { out: [64, 16, 8], ..fine }));
    board.refused(shaped(Attention { q: [64, 32, -8], ..fine }));
    board.refused(shaped(Attention { mask: Some([0; 4]), ..fine }));
    board.refused(shaped(Attention { queries: 0, dim: usize::MAX, ..fine }));
    board.refused(shaped(Attention { heads: 0, value_dim: usize::MAX / 8, ..fine }));
    board.refused(attend(fine, Some(x), out, scratch));
    board.accepted(attend(Attention { mask: Some([0, 0, 4, 1]), ..fine }, Some(x), out, scratch));
    board.refused(attend(Attention { mask: Some([0, 0, 4, 99]), ..fine }, Some(x), out, scratch));
    board.refused(attend(fine, None, x, scratch));
    board.refused(attend(fine, None, out, Ref { len: 4096, ..scratch }));
    board.refused(attend(fine, None, out, Ref { offset: scratch.offset + 4, len: SCRATCH - 64, ..scratch }));
}

#[test]
fn a_scan_whose_body_sees_other_memory_than_it_was_made_for_is_refused() {
    let l = Loop::new(5);
    l.board.accepted(Call::Scan(Box::new(l.scan(Isa::PORTABLE, 2, Some(2)))));
    l.board.accepted(Call::Scan(Box::new(l.scan(Isa::PORTABLE, 2, None))));
    let made = |rows, width| body(Isa::PORTABLE, 2, rows, width);
    l.refused(|s| s.body = made(3, WIDTH));
    l.refused(|s| s.body = made(2, WIDTH + 1));
    l.refused(|s| s.tail = None);
    l.refused(|s| s.tail = Some(made(2, WIDTH)));
    l.refused(|s| s.blocks = None);
    l.refused(|s| s.blocks = Some((5, 0)));
    l.refused(|s| s.blocks = Some((5, 6)));
    l.refused(|s| s.blocks = Some((4, 2)));
    l.refused(|s| s.blocks = Some((5, usize::MAX)));
    l.refused(|s| s.steps += 1);
    l.refused(|s| s.steps = usize::MAX);
    l.refused(|s| s.states[0].rows = 6);
    l.refused(|s| s.states[0].row_bytes += 4);
    l.refused(|s| s.states[0].row_bytes = usize::MAX / 4);
    l.refused(|s| s.states[0].last = l.init);
    l.refused(|s| s.states[0].last = l.xs);
    l.refused(|s| s.outputs[0].at = l.xs);
    l.refused(|s| s.outputs[0].at = l.scratch);
    l.refused(|s| s.outputs[0].at = l.w);
    l.refused(|s| s.sequences[0].at.offset += 2);
    l.refused(|s| s.fixed[0].offset += 2);
    l.refused(|s| s.fixed[0].len -= 4);
    l.refused(|s| s.fixed.clear());
    l.refused(|s| s.outputs.clear());
    l.refused(|s| s.scratch.len = 1024);
    l.refused(|s| s.scratch.offset += 4);
    // A body for one thread cannot run on the team that takes all rows together.
    let single = Scan { body: body(Isa::PORTABLE, 1, 5, WIDTH), ..l.scan(Isa::PORTABLE, 1, None) };
    l.board.refused(Call::Scan(Box::new(single)));
    // The rows of a sequence without steps are in no memory, and must not make the workers' memory overflow.
    let huge = usize::MAX - 10;
    l.refused(|s| {
        s.steps = 0;
        s.sequences[0].row_bytes = huge / 5;
        s.outputs[0].row_bytes = huge / 5;
    });
}

#[test]
fn the_memory_of_a_body_counts_for_every_worker() {
    let dst = Ref { slot: 0, offset: 1 << 40, len: 64 };
    let empty = |arena, board: &Board, scratch| {
        let body = Tape::new(
            Isa::PORTABLE,
            2,
            Memory { arena, ..Memory::default() },
            if arena > 1 << 41 { vec![Call::Zero { dst }] } else { vec![] },
        )
        .unwrap();
        let scan = Scan {
            steps: 1,
            reverse: false,
            time_inside: false,
            states: vec![],
            sequences: vec![],
            fixed: vec![],
            outputs: vec![],
            blocks: Some((4, 2)),
            body: Body { tape: body, columns: false },
            tail: None,
            scratch,
        };
        Tape::new(Isa::PORTABLE, 2, board.memory(), vec![Call::Scan(Box::new(scan))])
    };
    let mut board = Board::default();
    let scratch = board.room(SCRATCH);
    assert!(empty(SCRATCH / 2, &board, scratch).is_ok());
    assert!(empty(SCRATCH / 2 + 1, &board, scratch).is_err());
    assert!(empty(isize::MAX as usize / 2, &board, scratch).is_err());
}
