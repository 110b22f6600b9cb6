//! The graph to which the rules add the backward pass, with short methods for the most common operations.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::op::{Binary, Compare, Op, Reduction, Scan, Type, Unary};
use crate::shape::{Dim, Shape};
use crate::tensor::Tensor;

/// The longest list of positions that is made a constant; longer ones are counted when the graph runs.
const MAX_LITERAL: usize = 1 << 16;

pub(crate) struct Tape {
    pub(crate) graph: Graph,
    /// The forward node whose rule is being applied, for the names of new nodes.
    pub(crate) at: String,
    /// What names of new nodes begin with: `grad.` in the backward pass.
    begin: &'static str,
}

macro_rules! short {
    ($($name:ident($($x:ident),*) => $op:expr),* $(,)?) => { $(
        pub(crate) fn $name(&mut self, $($x: Value),*) -> Result<Value> {
            self.push($op, &[$($x),*])
        }
    )* };
}

impl Tape {
    pub(crate) fn new(graph: Graph, at: &str) -> Tape {
        Tape { graph, at: at.to_owned(), begin: "grad." }
    }
    /// For forward operations that replace the node `at`.
    pub(crate) fn forward(graph: Graph, at: &str) -> Tape {
        Tape { graph, at: at.to_owned(), begin: "" }
    }

    pub(crate) fn push(&mut self, op: Op, inputs: &[Value]) -> Result<Value> {
        let name = format!("{}{}.{}", self.begin, self.at, op.name());
        self.graph.push(op, inputs.to_vec(), name)
    }
    pub(crate) fn ty(&self, value: Value) -> &Type {
        self.graph.ty(value)
    }
    pub(crate) fn shape(&self, value: Value) -> Shape {
        self.ty(value).shape.clone()
    }
    pub(crate) fn dtype(&self, value: Value) -> DType {
        self.ty(value).dtype
    }

    short!(
        add(a, b) => Op::Binary(Binary::Add), sub(a, b) => Op::Binary(Binary::Sub), mul(a, b) => Op::Binary(Binary::Mul),
        div(a, b) => Op::Binary(Binary::Div), select(c, a, b) => Op::Select,
    );
    pub(crate) fn unary(&mut self, op: Unary, x: Value) -> Result<Value> {
        self.push(Op::Unary(op), &[x])
    }
    pub(crate) fn compare(&mut self, op: Compare, a: Value, b: Value) -> Result<Value> {
        self.push(Op::Compare(op), &[a, b])
    }
    pub(crate) fn matmul(&mut self, a: Value, b: Value, transpose_a: bool, transpose_b: bool) -> Result<Value> {
        self.push(Op::MatMul { transpose_a, transpose_b }, &[a, b])
    }
    /// The reduction over `axes`, which stay with size 1.
    pub(crate) fn reduce(&mut self, kind: Reduction, x: Value, axes: &[usize]) -> Result<Value> {
        self.push(Op::Reduce { kind, axes: axes.to_vec(), keep: true }, &[x])
    }

    /// A number of a float type.
    pub(crate) fn scalar(&mut self, value: f64, dtype: DType) -> Result<Value> {
        self.push(Op::Const(Tensor::from_f64(dtype, &[], &[value])?), &[])
    }
    /// A number of the type of `like`.
    pub(crate) fn number(&mut self, value: f64, like: Value) -> Result<Value> {
        self.scalar(value, self.dtype(like))
    }
    /// x · number
    pub(crate) fn scale(&mut self, x: Value, by: f64) -> Result<Value> {
        let by = self.number(by, x)?;
        self.mul(x, by)
    }
    /// 1 − x
    pub(crate) fn one_minus(&mut self, x: Value) -> Result<Value> {
        let one = self.number(1.0, x)?;
        self.sub(one, x)
    }
    pub(crate) fn zeros(&mut self, ty: &Type) -> Result<Value> {
        let zero = self.scalar(0.0, ty.dtype)?;
        self.broadcast(zero, &ty.shape)
    }
    /// `g` where the condition holds, 0 elsewhere.
    pub(crate) fn keep_where(&mut self, condition: Value, g: Value) -> Result<Value> {
        let zero = self.number(0.0, g)?;
        self.select(condition, g, zero)
    }
    /// 0 where the condition holds, `g` elsewhere.
    pub(crate) fn drop_where(&mut self, condition: Value, g: Value) -> Result<Value> {
        let zero = self.number(0.0, g)?;
        self.select(condition, zero, g)
    }

    pub(crate) fn cast(&mut self, x: Value, dtype: DType) -> Result<Value> {
        if self.dtype(x) == dtype { Ok(x) } else { self.push(Op::Cast { dtype }, &[x]) }
    }
    pub(crate) fn reshape(&mut self, x: Value, shape: &Shape) -> Result<Value> {
        if self.ty(x).shape == *shape { Ok(x) } else { self.push(Op::Reshape { shape: shape.clone() }, &[x]) }
    }
    pub(crate) fn broadcast(&mut self, x: Value, shape: &Shape) -> Result<Value> {
        if self.ty(x).shape == *shape { Ok(x) } else { self.push(Op::Broadcast { shape: shape.clone() }, &[x]) }
    }

    /// Adds one more contribution.
    pub(crate) fn accumulate(&mut self, sum: Option<Value>, part: Value) -> Result<Value> {
        sum.map_or(Ok(part), |sum| self.add(sum, part))
    }

    /// Undoes a broadcast: an element that was used many times gets the sum of the gradients of those uses.
    pub(crate) fn unbroadcast(&mut self, g: Value, shape: &Shape) -> Result<Value> {
        let from = self.shape(g);
        if from == *shape {
            return Ok(g);
        }
        let extra = from.rank() - shape.rank();
        let stretched = |axis: &usize| *axis < extra || (shape[*axis - extra].is(1) && !from[*axis].is(1));
        let axes: Vec<usize> = (0..from.rank()).filter(stretched).collect();
        let sum =
            if axes.is_empty() { g } else { self.push(Op::Reduce { kind: Reduction::Sum, axes, keep: false }, &[g])? };
        self.reshape(sum, shape)
    }

    /// The product of sizes as a single `f32`, counted when the graph runs if a symbol is among them.
    pub(crate) fn count(&mut self, dims: &[Dim]) -> Result<Value> {
        let shape = Shape::from(dims.to_vec());
        if let Some(n) = shape.count().and_then(|n| n.as_fixed()) {
            return self.scalar(n as f64, DType::F32);
        }
        let one = self.scalar(1.0, DType::F32)?;
        let ones = self.broadcast(one, &shape)?;
        let axes = (0..dims.len()).collect();
        self.push(Op::Reduce { kind: Reduction::Sum, axes, keep: false }, &[ones])
    }

    /// 0, 1, …, n − 1 as `i32[n]`, or in the other order: how many elements precede or follow each. No operation makes
    /// such a list, so where n is a symbol, a loop counts.
    pub(crate) fn positions(&mut self, n: &Dim, from_end: bool) -> Result<Value> {
        if let Some(n) = n.as_fixed()
            && n <= MAX_LITERAL
        {
            let mut positions: Vec<i32> = (0..n as i32).collect();
            if from_end {
                positions.reverse();
            }
            return self.push(Op::Const(Tensor::new(&[n], &positions)?), &[]);
        }
        let mut body = Tape::new(Graph::default(), &self.at);
        let input = |name: &str| Op::Input { name: name.into(), ty: Type::new(DType::I32, Shape::scalar()) };
        let seen = body.push(input("seen"), &[])?;
        let one = body.push(input("one"), &[])?;
        let next = body.add(seen, one)?;
        body.graph.push_output("next", next)?;
        body.graph.push_output("position", seen)?;
        let zero = self.push(Op::Const(Tensor::scalar(0i32)), &[])?;
        let one = self.push(Op::Const(Tensor::scalar(1i32)), &[])?;
        let ones = self.broadcast(one, &vec![n.clone()].into())?;
        let scan = Scan { body: body.graph.into(), states: 1, sequences: 1, axis: 0, reverse: from_end };
        let first = self.push(Op::Scan(Box::new(scan)), &[zero, ones])?;
        Ok(Value { node: first.node, slot: 1 })
    }

    /// The error for a size whose formula overflows.
    pub(crate) fn too_large(&self) -> Error {
        Error::Gradient { node: self.at.clone(), op: "size".into(), problem: "sizes overflow".into() }
    }
}
