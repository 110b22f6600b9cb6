//! Graphs drawn from a list of numbers: every operation, type and size; and a judge of what a backend makes of them.
//!
//! Nothing here knows which operands an operation takes: it is offered values at random, and what fits is kept. So numbers
//! stand between products, products are shared, loops have fixed inputs, and axes are empty, as in no network.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod choices;
mod compare;
pub(crate) mod judge;

pub(crate) use compare::{Compared, compare};
pub(crate) use judge::{Expected, expected};

use choices::Choices;

use schwann_core::cases::random::Random;
use schwann_core::op::{
    Activation, Binary, Code, Compare, Float, LowBit, LowBitMatMul, Map, MapInstr, MapResult, Op, Reduction, Scan,
    SynapseResult, Type, Unary,
};
use schwann_core::{Bindings, DType, Dim, Graph, Shape, Tensor, Value};

const TYPES: [DType; 10] = [
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::I32,
    DType::I8,
    DType::U8,
    DType::Bool,
];
// What is drawn first is what a failing graph is shrunk to: the plainest.
const UNARY: [Unary; 20] = [
    Unary::Tanh,
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Sqrt,
    Unary::Recip,
    Unary::Square,
    Unary::Exp,
    Unary::Log,
    Unary::Sigmoid,
    Unary::Softplus,
    Unary::Relu,
    Unary::Silu,
    Unary::Gelu,
    Unary::Erf,
    Unary::Floor,
    Unary::Round,
    Unary::Sin,
    Unary::Cos,
    Unary::Not,
];
const BINARY: [Binary; 9] = [
    Binary::Mul,
    Binary::Add,
    Binary::Sub,
    Binary::Div,
    Binary::Min,
    Binary::Max,
    Binary::Pow,
    Binary::And,
    Binary::Or,
];
const COMPARE: [Compare; 6] = [Compare::Lt, Compare::Le, Compare::Gt, Compare::Ge, Compare::Eq, Compare::Ne];
const MOST: usize = 20_000;

/// A number for every operation; a new one does not compile until it is drawn here too.
pub(crate) fn kind(op: &Op) -> usize {
    match op {
        Op::Input { .. } => 0,
        Op::Weight { .. } => 1,
        Op::Const(_) => 2,
        Op::Unary(_) => 3,
        Op::Binary(_) => 4,
        Op::Compare(_) => 5,
        Op::Select => 6,
        Op::MatMul { .. } => 7,
        Op::Reduce { .. } => 8,
        Op::Softmax { .. } => 9,
        Op::LayerNorm { .. } => 10,
        Op::RmsNorm { .. } => 11,
        Op::Attention { .. } => 12,
        Op::Reshape { .. } => 13,
        Op::Transpose { .. } => 14,
        Op::Slice { .. } => 15,
        Op::Pad { .. } => 16,
        Op::Concat { .. } => 17,
        Op::Broadcast { .. } => 18,
        Op::Gather { .. } => 19,
        Op::SegmentSum { .. } => 20,
        Op::SynapseSum { .. } => 21,
        Op::SynapseRatio { .. } => 22,
        Op::Cast { .. } => 23,
        Op::Quantize { .. } => 24,
        Op::Dequantize => 25,
        Op::Scan(_) => 26,
        Op::Map { also, .. } => {
            if also.is_empty() {
                27
            } else {
                30
            }
        }
        Op::MatMulMap { .. } => 28,
        Op::GatedCell { .. } => 29,
        Op::LowBit(_) => 31,
        Op::LowBitMatMul(_) => 32,
        Op::Put { .. } => 33,
        Op::SynapseGradient { .. } => 34,
        // Rounding has steps: a result that is off by one rounding may be off by a step, and the judge knows no steps.
        Op::RoundRows => unreachable!("no rounded rows are drawn"),
        // What there is depends on the program: the case list has some.
        Op::Custom { .. } => unreachable!("no custom operation is drawn"),
    }
}
pub(crate) const KINDS: usize = 35;

struct Maker<'a, 'b> {
    graph: Graph,
    c: &'a mut Choices<'b>,
    values: Vec<Value>,
    /// How many loops this graph is inside.
    depth: usize,
    names: usize,
}

impl Maker<'_, '_> {
    fn ty(&self, v: Value) -> Type {
        self.graph.ty(v).clone()
    }

    /// Late values more often, but all of them sometimes.
    fn any(&mut self) -> Value {
        let n = self.values.len();
        let back = if self.c.one_in(4) { self.c.below(n) } else { self.c.below(n.min(5)) };
        self.values[n - 1 - back]
    }

    /// A value of that type of element, if a few tries find one.
    fn like(&mut self, dtype: DType) -> Value {
        for _ in 0..6 {
            let v = self.any();
            if self.ty(v).dtype == dtype {
                return v;
            }
        }
        self.any()
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    /// Adds the operation if it takes these operands and its results are not too large.
    fn push(&mut self, op: Op, inputs: &[Value]) -> Option<Value> {
        let types: Vec<Type> = inputs.iter().map(|v| self.ty(*v)).collect();
        let outs = op.infer(&types.iter().collect::<Vec<_>>()).ok()?;
        for out in &outs {
            let size = out.shape.eval(&Bindings::new().with("B", 17).with("T", 5)).ok()?;
            if size.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).is_none_or(|n| n > MOST) {
                return None;
            }
        }
        let name = self.name();
        let first = self.graph.push(op, inputs.to_vec(), name).ok()?;
        self.values.extend((0..outs.len() as u16).map(|slot| Value { slot, ..first }));
        Some(first)
    }

    fn known(&mut self, tensor: Tensor) -> Option<Value> {
        if self.depth == 0 && self.c.one_in(2) {
            let name = self.name();
            let ty = Type::new(tensor.dtype(), tensor.shape());
            let v = self.graph.push(Op::Weight { name: name.clone(), ty }, vec![], name.clone()).ok()?;
            self.graph.set_weight(&name, tensor).ok()?;
            self.values.push(v);
            return Some(v);
        }
        self.push(Op::Const(tensor), &[])
    }

    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let mut random = Random::new(self.c.below(1 << 16) as u64);
        match dtype {
            DType::Bool => random.bools(shape),
            DType::I32 => random.ints(shape, -3, 4),
            other => random.floats_as(other, shape, -1.5, 1.5),
        }
    }

    fn fixed(&self, v: Value, axis: usize) -> Option<usize> {
        self.ty(v).shape.dims().get(axis)?.as_fixed()
    }

    fn program(&mut self, inputs: usize) -> Map {
        let mut code: Vec<MapInstr> = (0..inputs as u16).map(MapInstr::Input).collect();
        code.push(MapInstr::Const(Float(self.c.of(&[0.5f32, -2.0, 0.0, 3.0]))));
        for _ in 0..1 + self.c.below(6) {
            let n = code.len();
            let mut at = || self.c.below(n) as u16;
            let (a, b, d) = (at(), at(), at());
            let instr = match self.c.below(6) {
                0 | 1 => MapInstr::Binary(self.c.of(&BINARY[..6]), a, b),
                2 => MapInstr::Unary(self.c.of(&UNARY[..16]), a),
                3 => MapInstr::Compare(self.c.of(&COMPARE), a, b),
                4 => MapInstr::Select(a, b, d),
                _ => MapInstr::Trunc(a),
            };
            code.push(instr);
        }
        Map { code }
    }

    /// Tries to add one operation.
    fn step(&mut self) -> Option<Value> {
        let x = self.any();
        let ty = self.ty(x);
        let (rank, dtype) = (ty.shape.rank(), ty.dtype);
        let axis = self.c.below(rank);
        match self.c.below(40) {
            0 | 1 => {
                let u = self.c.of(&UNARY);
                self.push(Op::Unary(u), &[x])
            }
            2..=4 => {
                let (y, b) = (self.like(dtype), self.c.of(&BINARY));
                self.push(Op::Binary(b), &[x, y])
            }
            5 | 6 => {
                // A number, before or after: what passes like to move about.
                let number = self.tensor(dtype, &[]);
                let number = self.push(Op::Const(number), &[])?;
                let b = self.c.of(&BINARY[..4]);
                let operands = if self.c.one_in(2) { [x, number] } else { [number, x] };
                self.push(Op::Binary(b), &operands)
            }
            7..=10 => {
                // A product with a matrix that is known, or any other value.
                let (transpose_a, transpose_b) = (self.c.one_in(6), self.c.one_in(3));
                let y = if self.c.one_in(3) {
                    self.like(dtype)
                } else {
                    let k = self.fixed(x, if transpose_a { rank.checked_sub(2)? } else { rank.checked_sub(1)? })?;
                    let n = self.c.of(&[3usize, 1, 4, 8, 17, 0]);
                    let half = dtype == DType::F32 && self.c.one_in(4);
                    let dtype = if half { self.c.of(&[DType::Bf16, DType::F16]) } else { dtype };
                    let data = self.tensor(dtype, &if transpose_b { [n, k] } else { [k, n] });
                    self.known(data)?
                };
                if self.c.one_in(4) {
                    let z = self.like(DType::F32);
                    let map = self.program(2);
                    return self.push(Op::MatMulMap { transpose_a, transpose_b, map, dtype: DType::F32 }, &[x, y, z]);
                }
                self.push(Op::MatMul { transpose_a, transpose_b }, &[x, y])
            }
            11 => {
                let (y, c) = (self.like(dtype), self.c.of(&COMPARE));
                self.push(Op::Compare(c), &[x, y])
            }
            12 => {
                let (condition, y) = (self.like(DType::Bool), self.like(dtype));
                self.push(Op::Select, &[condition, x, y])
            }
            13 => {
                let kind = self.c.of(&[Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min]);
                let axes: Vec<usize> = (0..rank).filter(|_| self.c.one_in(2)).collect();
                let keep = self.c.one_in(2);
                self.push(Op::Reduce { kind, axes, keep }, &[x])
            }
            14 => self.push(Op::Softmax { axis }, &[x]),
            15 => {
                let n = self.fixed(x, rank.checked_sub(1)?)?;
                let scale = self.tensor(dtype, &[n]);
                let scale = self.known(scale)?;
                let eps = Float(1e-2);
                // Kernels sum squares in f32, which numbers beyond 2e19 overflow, and the reference in f64.
                let mut x = x;
                if dtype == DType::F32 {
                    for (op, most) in [(Binary::Min, 1e9f32), (Binary::Max, -1e9)] {
                        let most = self.push(Op::Const(Tensor::scalar(most)), &[])?;
                        x = self.push(Op::Binary(op), &[x, most])?;
                    }
                }
                match self.c.below(4) {
                    0 => self.push(Op::LayerNorm { eps }, &[x]),
                    1 => self.push(Op::LayerNorm { eps }, &[x, scale, scale]),
                    2 => self.push(Op::RmsNorm { eps }, &[x]),
                    _ => self.push(Op::RmsNorm { eps }, &[x, scale]),
                }
            }
            16 => {
                let count = ty.shape.count()?;
                let shape: Shape = match rank {
                    4 => ty.shape.clone(),
                    _ => vec![Dim::fixed(1), Dim::fixed(1), Dim::fixed(1), count].into(),
                };
                let q = self.push(Op::Reshape { shape }, &[x])?;
                let causal = self.c.one_in(2);
                let k = if self.c.one_in(2) { q } else { self.like(dtype) };
                if self.c.one_in(3)
                    && let (Some(l), Some(keys)) = (self.fixed(q, 2), self.fixed(k, 2))
                    && keys > 0
                {
                    let last: Vec<i32> = (0..l).map(|i| ((i * 5 + 2) % keys) as i32).collect();
                    let last = self.known(Tensor::new(&[l], &last).ok()?)?;
                    return self.push(Op::Attention { causal: false, scale: None, positions: true }, &[q, k, k, last]);
                }
                self.push(Op::Attention { causal, scale: None, positions: false }, &[q, k, k])
            }
            17 => {
                let mut dims = ty.shape.dims().to_vec();
                match self.c.below(3) {
                    0 if rank >= 2 => {
                        let at = axis.min(rank - 2);
                        let merged = dims[at].checked_mul(&dims[at + 1])?;
                        dims.splice(at..at + 2, [merged]);
                    }
                    1 if rank >= 1 => dims.insert(axis, Dim::fixed(1)),
                    _ => dims = vec![ty.shape.count()?],
                }
                self.push(Op::Reshape { shape: dims.into() }, &[x])
            }
            18 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                for i in (1..rank).rev() {
                    perm.swap(i, self.c.below(i + 1));
                }
                self.push(Op::Transpose { perm }, &[x])
            }
            19 => {
                let n = self.fixed(x, axis)?;
                let start = self.c.below(n + 1);
                let end = start + self.c.below(n - start + 1);
                self.push(Op::Slice { axis, start: start.into(), end: end.into() }, &[x])
            }
            20 => {
                let (before, after) = (self.c.below(3).into(), self.c.below(3).into());
                self.push(Op::Pad { axis, before, after }, &[x])
            }
            21 => {
                let y = self.like(dtype);
                let parts = self.c.of(&[vec![x, x], vec![x], vec![x, y], vec![y, x, x]]);
                self.push(Op::Concat { axis }, &parts)
            }
            22 => {
                let mut dims = ty.shape.dims().to_vec();
                match dims.get_mut(axis) {
                    Some(d) if d.is(1) => *d = self.c.of(&[Dim::fixed(3), Dim::fixed(0), Dim::symbol("B")]),
                    _ => dims.insert(0, self.c.of(&[Dim::fixed(2), Dim::symbol("B"), Dim::fixed(0)])),
                }
                self.push(Op::Broadcast { shape: dims.into() }, &[x])
            }
            23 | 24 => {
                let n = self.fixed(x, axis)?;
                let count = self.c.of(&[4usize, 1, 9, 0]);
                // Literal indices are in range: those that are not are refused before anything runs, or never met.
                let index =
                    |count: usize, end: usize| -> Vec<i32> { (0..count).map(|i| ((i * 7 + 3) % end) as i32).collect() };
                if self.c.one_in(3) {
                    // Every other element, of another value of the same type or of the same one.
                    let places: Vec<i32> = (0..n as i32).step_by(2).collect();
                    let end = places.len();
                    let part = self.push(Op::Slice { axis, start: 0.into(), end: end.into() }, &[x])?;
                    let places = self.known(Tensor::new(&[end], &places).ok()?)?;
                    return self.push(Op::Put { axis }, &[x, part, places]);
                }
                if self.c.one_in(2) {
                    let count = if n == 0 { 0 } else { count };
                    let indices = self.known(Tensor::new(&[count], &index(count, n)).ok()?)?;
                    self.push(Op::Gather { axis }, &[x, indices])
                } else if n == 0 || count > 0 {
                    let segments = self.known(Tensor::new(&[n], &index(n, count)).ok()?)?;
                    self.push(Op::SegmentSum { axis, segments: count.into() }, &[x, segments])
                } else {
                    None
                }
            }
            25 => self.synapses(x, axis),
            26 => {
                let to = self.c.of(&TYPES);
                self.push(Op::Cast { dtype: to }, &[x])
            }
            27 => {
                let scale = self.push(Op::Const(Tensor::scalar(0.25f32)), &[])?;
                let zero = self.c.below(5) as i32;
                let zero = self.push(Op::Const(Tensor::scalar(zero)), &[])?;
                if dtype == DType::F32 {
                    let dtype = self.c.of(&[DType::I8, DType::U8]);
                    let q = self.push(Op::Quantize { dtype }, &[x, scale, zero])?;
                    return self.push(Op::Dequantize, &[q, scale, zero]);
                }
                self.push(Op::Dequantize, &[x, scale, zero])
            }
            28 => {
                let n = self.c.below(4);
                let inputs: Vec<Value> = (0..n).map(|_| self.like(DType::F32)).collect();
                let map = self.program(n);
                let dtype = self.c.of(&[DType::F32, DType::F32, DType::F16, DType::Bool, DType::U8]);
                let mut also = vec![];
                while self.c.one_in(2) && also.len() < 4 {
                    let at = self.c.below(map.code.len()) as u16;
                    also.push(MapResult { at, dtype: self.c.of(&TYPES) });
                }
                self.push(Op::Map { map, dtype, also }, &inputs)
            }
            29..=31 if self.depth < 2 => self.scan(x),
            32 => self.low_bit(x),
            34..=37 => self.layers(x),
            38 | 39 => self.cell(x),
            _ => {
                let dtype = self.c.of(&TYPES);
                let shape: Vec<usize> = (0..self.c.below(3)).map(|_| self.c.of(&[3usize, 1, 4, 2, 0, 8])).collect();
                let data = self.tensor(dtype, &shape);
                self.known(data)
            }
        }
    }

    /// A product with weights in few bits, as layers have it and as passes make it, and sometimes the numbers themselves.
    fn low_bit(&mut self, x: Value) -> Option<Value> {
        let ty = self.ty(x);
        let len = self.fixed(x, ty.shape.rank().checked_sub(1)?)?;
        let (code, n) = (self.c.of(&Code::ALL), self.c.of(&[3usize, 1, 17, 0]));
        let format = LowBit { code, len, block: self.c.of(&[1 + len, 2, 8]), offsets: self.c.one_in(2) };
        let mut packed = vec![0u8; n * code.row_bytes(len)];
        for row in packed.chunks_mut(code.row_bytes(len).max(1)) {
            (0..len).for_each(|at| code.put(row, at, self.c.below(code.levels().into()) as u8));
        }
        let codes = Tensor::new(&[n, code.row_bytes(len)], &packed).ok()?;
        let mut parts = vec![self.known(codes)?];
        for _ in 1..format.inputs() {
            let scales = self.tensor(DType::F32, &[n, format.blocks()]);
            parts.push(self.known(scales)?);
        }
        match self.c.below(3) {
            0 => {
                let product = LowBitMatMul { weights: format, rounded: false, then: None, dtype: DType::F32 };
                parts.insert(0, x);
                self.push(Op::LowBitMatMul(Box::new(product)), &parts)
            }
            _ => {
                let weights = self.push(Op::LowBit(format), &parts)?;
                self.push(Op::MatMul { transpose_a: false, transpose_b: true }, &[x, weights])
            }
        }
    }

    /// Products with known matrices one after the other, with numbers, biases and functions between them, and now and then a
    /// second reader: what passes like to merge and to move into weights.
    fn layers(&mut self, x: Value) -> Option<Value> {
        let mut x = x;
        for _ in 0..1 + self.c.below(3) {
            let ty = self.ty(x);
            let (dtype, k) = (ty.dtype, self.fixed(x, ty.shape.rank().checked_sub(1)?)?);
            let (n, transpose_b) = (self.c.of(&[3usize, 4, 1, 17]), self.c.one_in(3));
            let weight = self.tensor(dtype, &if transpose_b { [n, k] } else { [k, n] });
            let weight = self.known(weight)?;
            x = self.push(Op::MatMul { transpose_a: false, transpose_b }, &[x, weight])?;
            for _ in 0..self.c.below(3) {
                let operand = match self.c.below(3) {
                    0 => self.tensor(dtype, &[]),
                    _ => self.tensor(dtype, &[n]),
                };
                let operand = self.known(operand)?;
                let b = self.c.of(&BINARY[..3]);
                x = self.push(Op::Binary(b), &[x, operand])?;
            }
            // A number before the next product is a literal.
            if self.c.one_in(2) {
                let number = self.tensor(dtype, &[]);
                let number = self.push(Op::Const(number), &[])?;
                let operands = if self.c.one_in(2) { [x, number] } else { [number, x] };
                x = self.push(Op::Binary(Binary::Mul), &operands)?;
            }
            if self.c.one_in(4) {
                let u = self.c.of(&UNARY);
                x = self.push(Op::Unary(u), &[x])?;
            }
            if self.c.one_in(4) {
                self.push(Op::Unary(Unary::Neg), &[x])?;
            }
        }
        Some(x)
    }

    /// A gated cell, as passes make it or as people write it; with weights of 0 now and then.
    fn cell(&mut self, x: Value) -> Option<Value> {
        let batch_last = self.c.one_in(2);
        let k = self.fixed(x, usize::from(!batch_last))?;
        let (units, by_column) = (self.c.of(&[3usize, 4, 1, 16, 17]), self.c.one_in(2));
        let columns = 3 * units;
        let weights = self.tensor(DType::F32, &if by_column { [columns, k] } else { [k, columns] });
        let kept = self.c.of(&[1usize, 2, 3]);
        let weights: Vec<f64> =
            weights.to_f64().into_iter().enumerate().map(|(i, w)| if i % kept == 0 { w } else { 0.0 }).collect();
        let shape = if by_column { [columns, k] } else { [k, columns] };
        let weights = self.known(Tensor::from_f64(DType::F32, &shape, &weights).ok()?)?;
        let mut heads = [0, units, 2 * units];
        heads.rotate_left(self.c.below(3));
        let mut inputs = vec![x, weights];
        if self.c.one_in(2) {
            let shape = if batch_last { vec![columns, 1] } else { vec![columns] };
            let bias = self.tensor(DType::F32, &shape);
            inputs.push(self.known(bias)?);
        }
        if batch_last || self.c.one_in(2) {
            return self.push(Op::GatedCell { batch_last, by_column, heads }, &inputs);
        }
        let mut product = self.push(Op::MatMul { transpose_a: false, transpose_b: by_column }, &inputs[..2])?;
        if let Some(bias) = inputs.get(2) {
            product = self.push(Op::Binary(Binary::Add), &[product, *bias])?;
        }
        let mut parts = [product; 3];
        for (part, start) in parts.iter_mut().zip(heads) {
            *part = self.push(Op::Slice { axis: 1, start: start.into(), end: (start + units).into() }, &[product])?;
        }
        let [a, b, t] = parts;
        let (a, b) = (self.push(Op::Unary(Unary::Tanh), &[a])?, self.push(Op::Unary(Unary::Tanh), &[b])?);
        let t = self.push(Op::Unary(Unary::Sigmoid), &[t])?;
        let toward = self.push(Op::Binary(Binary::Sub), &[b, a])?;
        let change = self.push(Op::Binary(Binary::Mul), &[t, toward])?;
        self.push(Op::Binary(Binary::Add), &[a, change])
    }

    fn synapses(&mut self, x: Value, axis: usize) -> Option<Value> {
        let n = self.fixed(x, axis).filter(|n| *n > 0)?;
        let count = self.c.of(&[6usize, 1, 20]);
        let segments = if self.c.one_in(2) { n } else { 3 };
        let form = self.c.below(5);
        // A ratio has as many destinations as sources.
        let segments = if form >= 3 { n } else { segments };
        let list = |count: usize, end: usize, by: usize| -> Vec<i32> {
            (0..count).map(|i| ((i * by + 1) % end) as i32).collect()
        };
        let from = self.push(Op::Const(Tensor::new(&[count], &list(count, n, 3)).ok()?), &[])?;
        let to = self.push(Op::Const(Tensor::new(&[count], &list(count, segments, 5)).ok()?), &[])?;
        let numbers = self.tensor(DType::F32, &[count]);
        let numbers = self.push(Op::Const(numbers), &[])?;
        let activation = self.c.of(&[Activation::Sigmoid, Activation::Tanh, Activation::Identity]);
        match form {
            // As people write them, for the passes to find.
            0 | 1 => {
                let gathered = self.push(Op::Gather { axis }, &[x, from])?;
                let (b, u) = (self.c.of(&BINARY[..3]), self.c.of(&[Unary::Sigmoid, Unary::Tanh]));
                let shifted = self.push(Op::Binary(b), &[gathered, numbers])?;
                let active = self.push(Op::Unary(u), &[shifted])?;
                let weighted = self.push(Op::Binary(Binary::Mul), &[active, numbers])?;
                let sum = self.push(Op::SegmentSum { axis, segments: segments.into() }, &[weighted, to])?;
                let y = self.like(DType::F32);
                self.push(Op::Binary(Binary::Add), &[sum, y])
            }
            2 => {
                let sums = 1 + self.c.below(2);
                let mut inputs = vec![x, from, to, numbers, numbers];
                inputs.extend(vec![numbers; sums]);
                self.push(Op::SynapseSum { activation, axis, sums, segments }, &inputs)
            }
            _ => {
                // What stands below the line stays away from 0.
                let five = self.push(Op::Const(Tensor::scalar(50.0f32)), &[])?;
                let below = self.push(Op::Unary(Unary::Sigmoid), &[x])?;
                let below = self.push(Op::Binary(Binary::Add), &[below, five])?;
                let times = 1 + self.c.below(3);
                let inputs = [x, from, to, numbers, numbers, numbers, numbers, x, x, below];
                if form == 3 {
                    return self.push(Op::SynapseRatio { activation, axis, times }, &inputs);
                }
                let of = SynapseResult::Ratio { times };
                let inputs: Vec<Value> = inputs.into_iter().chain([below]).collect();
                let first = self.push(Op::SynapseGradient { activation, axis, of }, &inputs)?;
                Some(Value { slot: self.c.below(8) as u16, ..first })
            }
        }
    }

    /// A loop whose states, sequences and fixed values are values of this graph.
    fn scan(&mut self, x: Value) -> Option<Value> {
        let axis = self.c.below(2);
        // Something with a time axis: a value as it is, or stretched over time.
        let dims = self.ty(x).shape.dims().to_vec();
        let mut over = dims.clone();
        let at = axis.min(over.len());
        over.insert(at, Dim::fixed(1));
        let lifted = self.push(Op::Reshape { shape: over.clone().into() }, &[x])?;
        over[at] = self.c.of(&[Dim::fixed(4), Dim::fixed(1), Dim::symbol("T"), Dim::fixed(0)]);
        let sequence = self.push(Op::Broadcast { shape: over.into() }, &[lifted])?;
        let states: Vec<Value> = (0..self.c.below(3)).map(|i| if i == 0 { x } else { self.any() }).collect();
        let fixed: Vec<Value> = (0..self.c.below(3)).map(|_| self.any()).collect();
        let mut body = Graph::default();
        let mut inside = vec![];
        let element = Type::new(self.ty(sequence).dtype, dims);
        let types: Vec<Type> =
            states.iter().map(|v| self.ty(*v)).chain([element]).chain(fixed.iter().map(|v| self.ty(*v))).collect();
        for (i, ty) in types.iter().enumerate() {
            let name = format!("i{i}");
            inside.push(body.push(Op::Input { name: name.clone(), ty: ty.clone() }, vec![], name).ok()?);
        }
        let mut inner = Maker { graph: body, c: &mut *self.c, values: inside.clone(), depth: self.depth + 1, names: 0 };
        for _ in 0..inner.c.below(6) {
            inner.step();
        }
        let Maker { mut graph, values, .. } = inner;
        for (i, ty) in types.iter().take(states.len()).enumerate() {
            let next = *values.iter().rev().find(|v| graph.ty(**v) == ty)?;
            graph.push_output(format!("s{i}"), next).ok()?;
        }
        for i in 0..1 + self.c.below(2) {
            let n = values.len();
            let out = values[n - 1 - self.c.below(n.min(4))];
            graph.push_output(format!("y{i}"), out).ok()?;
        }
        let scan = Scan { body: graph.into(), states: states.len(), sequences: 1, axis, reverse: self.c.one_in(2) };
        let inputs = [&states[..], &[sequence], &fixed].concat();
        self.push(Op::Scan(Box::new(scan)), &inputs)
    }
}

pub(crate) fn make(choices: &[u16]) -> Graph {
    let mut c = Choices { list: choices, at: 0 };
    let mut m = Maker { graph: Graph::default(), c: &mut c, values: vec![], depth: 0, names: 0 };
    let width = m.c.of(&[4usize, 1, 8, 16, 17, 0]);
    let shapes: [Vec<Dim>; 4] = [
        vec![Dim::symbol("B"), width.into()],
        vec![Dim::symbol("B"), Dim::symbol("T"), width.into()],
        vec![width.into()],
        vec![2.into(), width.into()],
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        let dtype = if i == 0 { DType::F32 } else { m.c.of(&TYPES) };
        let name = format!("x{i}");
        let ty = Type::new(dtype, shape);
        let v = m.graph.push(Op::Input { name: name.clone(), ty }, vec![], name).expect("an input");
        m.values.push(v);
    }
    m.values.reverse();
    for _ in 0..2 + m.c.below(24) {
        m.step();
    }
    let n = m.values.len();
    for i in 0..1 + m.c.below(4) {
        let v = if i == 0 { m.values[n - 1] } else { m.values[m.c.below(n)] };
        m.graph.push_output(format!("y{i}"), v).expect("an output");
    }
    // An output of an input's type may be its next value.
    let same = m.graph.outputs().iter().find(|o| m.graph.ty(o.value) == m.graph.ty(Value { node: 0, slot: 0 }));
    if let Some(output) = same.map(|o| o.name.clone())
        && m.c.one_in(2)
    {
        m.graph.push_state("x0", &output).expect("equal types");
    }
    m.graph
}
