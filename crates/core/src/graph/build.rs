//! Building a graph by hand: a method for each operation, which refuses at once what does not fit.

use super::{Graph, Value};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Binary, Compare, Float, LowBit, Op, Reduction, Scan, Type};
use crate::shape::{Dim, Shape};
use crate::tensor::Tensor;
use std::collections::{BTreeMap, HashMap};

/// Builds a [`Graph`].
///
/// ```
/// # use schwann_core::{shape, DType, GraphBuilder, Tensor};
/// # fn main() -> schwann_core::Result<()> {
/// let mut b = GraphBuilder::new();
/// let x = b.input("x", DType::F32, shape!["B", 3])?;
/// let w = b.weight("w", Tensor::new(&[3, 2], &[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0])?)?;
/// let h = b.named("hidden").matmul(x, w)?;
/// let y = b.tanh(h)?;
/// b.output("y", y)?;
/// let graph = b.build()?;
/// assert_eq!(graph.output_types()[0].to_string(), "f32[B, 2]");
/// assert!(GraphBuilder::new().input("x", DType::F32, shape!["not a symbol"]).is_err());
/// # Ok(())
/// # }
/// ```
///
/// Nodes are called by paths: what is built [`within`](GraphBuilder::within) a part of the network has that part before
/// its name. Tables of times, plans and pictures show these names, for fused nodes too.
///
/// ```
/// # use schwann_core::{shape, DType, GraphBuilder, Tensor};
/// # fn main() -> schwann_core::Result<()> {
/// let mut b = GraphBuilder::new();
/// let x = b.input("x", DType::F32, shape!["B", 3])?;
/// let w = b.weight("w", Tensor::zeros(DType::F32, &[3, 2])?)?;
/// let y = b.within("encoder", |b| {
///     let h = b.named("linear").matmul(x, w)?;
///     b.tanh(h)
/// })?;
/// b.output("y", y)?;
/// let names: Vec<&str> = b.graph().nodes().iter().map(|n| n.name.as_str()).collect();
/// assert_eq!(names, ["x", "w", "encoder.linear", "encoder.tanh"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    next_name: Option<String>,
    /// The part of the network that is being built, as a path; empty outside of any.
    path: String,
    /// How often each path was used as a name, so that the next node of that name gets a number.
    given: HashMap<String, usize>,
    /// The name of nodes that are added without one, if it is not to be their operation's.
    unnamed: Option<String>,
}

/// The path before [`GraphBuilder::enter`], to which [`GraphBuilder::leave`] returns.
#[derive(Debug)]
#[must_use = "give it to `leave`, or names go on with the part that was entered"]
pub struct Outside(String);

macro_rules! binary {
    ($($name:ident => $op:expr),* $(,)?) => { $(
        #[doc = concat!("`", stringify!($name), "` of two values, stretched to one shape.")]
        pub fn $name(&mut self, a: Value, b: Value) -> Result<Value> {
            self.push($op, &[a, b])
        }
    )* };
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the node that the next call adds; within a part of the network, the part's path comes before the name. An
    /// empty name stands for the part itself.
    pub fn named(&mut self, name: &str) -> &mut Self {
        self.next_name = Some(name.to_owned());
        self
    }

    /// Builds a part of the network: names of nodes that are added meanwhile begin with `part` and a dot.
    pub fn within<T>(&mut self, part: &str, build: impl FnOnce(&mut Self) -> T) -> T {
        let outside = self.enter(part);
        let built = build(self);
        self.leave(outside);
        built
    }

    /// Begins a part of the network, which ends with [`leave`](GraphBuilder::leave): for code that
    /// [`within`](GraphBuilder::within) does not suit.
    pub fn enter(&mut self, part: &str) -> Outside {
        let path = self.full(part);
        Outside(std::mem::replace(&mut self.path, path))
    }

    /// Ends a part of the network.
    pub fn leave(&mut self, outside: Outside) {
        self.path = outside.0;
    }

    /// The part of the network that is being built; empty outside of any.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A name with the path before it.
    fn full(&self, name: &str) -> String {
        match (self.path.is_empty(), name.is_empty()) {
            (true, _) => name.to_owned(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{name}", self.path),
        }
    }

    /// The name of the next node: the one given by [`named`](GraphBuilder::named), or else its operation's, followed by
    /// its number in the graph if it belongs to no part of the network. Within a part, the second node of the same name
    /// gets a 2 at the end.
    fn next_name(&mut self, op: &Op) -> String {
        let said = self.next_name.take().map(|name| self.full(&name)).filter(|name| !name.is_empty());
        let name = match (said, &self.unnamed) {
            (Some(name), _) => name,
            (None, Some(name)) => return name.clone(),
            (None, None) if self.path.is_empty() => return format!("{}_{}", op.name(), self.graph.nodes.len()),
            (None, None) => self.full(op.name()),
        };
        if self.path.is_empty() {
            return name;
        }
        let times = self.given.entry(name.clone()).or_insert(0);
        *times += 1;
        if *times == 1 { name } else { format!("{name}.{times}") }
    }

    /// Adds any operation.
    pub fn push(&mut self, op: Op, inputs: &[Value]) -> Result<Value> {
        let name = self.next_name(&op);
        self.graph.push(op, inputs.to_vec(), name)
    }

    /// Adds a node whose name gets no path before it.
    fn push_whole(&mut self, op: Op, name: &str) -> Result<Value> {
        let name = self.next_name.take().unwrap_or_else(|| name.to_owned());
        self.graph.push(op, vec![], name)
    }

    /// A value that each run supplies under this name, which gets no path before it.
    pub fn input(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value> {
        self.push_whole(Op::Input { name: name.to_owned(), ty: Type::new(dtype, shape) }, name)
    }

    /// A trained value with its data; files store it under this name.
    pub fn weight(&mut self, name: &str, data: Tensor) -> Result<Value> {
        let value = self.weight_slot(name, data.dtype(), data.shape())?;
        self.graph.set_weight(name, data)?;
        Ok(value)
    }

    /// A trained value whose data comes later, by [`Graph::set_weight`].
    pub fn weight_slot(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<Value> {
        self.push_whole(Op::Weight { name: name.to_owned(), ty: Type::new(dtype, shape) }, name)
    }

    /// A literal.
    pub fn constant(&mut self, value: Tensor) -> Result<Value> {
        self.push(Op::Const(value), &[])
    }

    /// A single `f32`.
    pub fn scalar(&mut self, value: f32) -> Result<Value> {
        self.constant(Tensor::scalar(value))
    }

    binary!(
        add => Op::Binary(Binary::Add), sub => Op::Binary(Binary::Sub), mul => Op::Binary(Binary::Mul),
        div => Op::Binary(Binary::Div), min => Op::Binary(Binary::Min), max => Op::Binary(Binary::Max),
        pow => Op::Binary(Binary::Pow), and => Op::Binary(Binary::And), or => Op::Binary(Binary::Or),
        eq => Op::Compare(Compare::Eq), ne => Op::Compare(Compare::Ne), lt => Op::Compare(Compare::Lt),
        le => Op::Compare(Compare::Le), gt => Op::Compare(Compare::Gt), ge => Op::Compare(Compare::Ge),
    );

    /// The first result of a custom operation, by the name under which it is [registered](crate::op::Custom).
    pub fn custom(&mut self, name: &str, inputs: &[Value]) -> Result<Value> {
        self.push(Op::Custom { name: name.to_owned() }, inputs)
    }

    /// The same with all its results.
    pub fn custom_results(&mut self, name: &str, inputs: &[Value]) -> Result<Vec<Value>> {
        let first = self.custom(name, inputs)?;
        let count = self.graph.node(first).outs.len() as u16;
        Ok((0..count).map(|slot| Value { node: first.node, slot }).collect())
    }

    /// `a` where `condition` holds, else `b`.
    pub fn select(&mut self, condition: Value, a: Value, b: Value) -> Result<Value> {
        self.push(Op::Select, &[condition, a, b])
    }

    /// Matrix product.
    pub fn matmul(&mut self, a: Value, b: Value) -> Result<Value> {
        self.matmul_t(a, b, false, false)
    }

    /// Matrix product of operands that may be stored transposed.
    pub fn matmul_t(&mut self, a: Value, b: Value, transpose_a: bool, transpose_b: bool) -> Result<Value> {
        self.push(Op::MatMul { transpose_a, transpose_b }, &[a, b])
    }

    /// x·wᵀ + b for weights stored [outputs, inputs], as PyTorch's `Linear` has them. The product gets the given name;
    /// the addition gets `.bias` after it.
    pub fn linear(&mut self, x: Value, weight: Value, bias: Option<Value>) -> Result<Value> {
        let name = self.next_name.clone();
        let y = self.matmul_t(x, weight, false, true)?;
        let Some(bias) = bias else { return Ok(y) };
        self.next_name = match name {
            Some(name) if !name.is_empty() => Some(format!("{name}.bias")),
            // The part of the network is a linear layer and nothing else.
            _ if !self.path.is_empty() => Some("bias".to_owned()),
            _ => None,
        };
        self.add(y, bias)
    }

    fn reduce(&mut self, kind: Reduction, x: Value, axes: &[usize], keep: bool) -> Result<Value> {
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        self.push(Op::Reduce { kind, axes, keep }, &[x])
    }
    /// Sum over axes.
    pub fn sum(&mut self, x: Value, axes: &[usize], keep: bool) -> Result<Value> {
        self.reduce(Reduction::Sum, x, axes, keep)
    }
    /// Mean over axes.
    pub fn mean(&mut self, x: Value, axes: &[usize], keep: bool) -> Result<Value> {
        self.reduce(Reduction::Mean, x, axes, keep)
    }
    /// Largest over axes.
    pub fn reduce_max(&mut self, x: Value, axes: &[usize], keep: bool) -> Result<Value> {
        self.reduce(Reduction::Max, x, axes, keep)
    }
    /// Smallest over axes.
    pub fn reduce_min(&mut self, x: Value, axes: &[usize], keep: bool) -> Result<Value> {
        self.reduce(Reduction::Min, x, axes, keep)
    }

    /// Softmax along an axis.
    pub fn softmax(&mut self, x: Value, axis: usize) -> Result<Value> {
        self.push(Op::Softmax { axis }, &[x])
    }
    /// Layer norm over the last axis.
    pub fn layer_norm(&mut self, x: Value, gamma: Option<Value>, beta: Option<Value>, eps: f32) -> Result<Value> {
        if gamma.is_none() && beta.is_some() {
            return Err(self.refuse("layer_norm", "beta without gamma".into()));
        }
        let inputs: Vec<Value> = [Some(x), gamma, beta].into_iter().flatten().collect();
        self.push(Op::LayerNorm { eps: Float(eps) }, &inputs)
    }
    /// Root-mean-square norm over the last axis.
    pub fn rms_norm(&mut self, x: Value, gamma: Option<Value>, eps: f32) -> Result<Value> {
        let inputs: Vec<Value> = [Some(x), gamma].into_iter().flatten().collect();
        self.push(Op::RmsNorm { eps: Float(eps) }, &inputs)
    }
    /// Numbers kept in few bits, from their codes, scales and, if the format has them, offsets.
    pub fn low_bit(&mut self, format: LowBit, codes: Value, scales: Value, offsets: Option<Value>) -> Result<Value> {
        let inputs: Vec<Value> = [Some(codes), Some(scales), offsets].into_iter().flatten().collect();
        self.push(Op::LowBit(format), &inputs)
    }
    /// Rows rounded to 8 bits, for products in integers; see [`Op::RoundRows`].
    pub fn round_rows(&mut self, x: Value) -> Result<Value> {
        self.push(Op::RoundRows, &[x])
    }
    /// Scaled-dot-product attention; see [`Op::Attention`].
    pub fn attention(&mut self, q: Value, k: Value, v: Value, mask: Option<Value>, causal: bool) -> Result<Value> {
        let inputs: Vec<Value> = [Some(q), Some(k), Some(v), mask].into_iter().flatten().collect();
        self.push(Op::Attention { causal, scale: None, positions: false }, &inputs)
    }
    /// Attention where query i sees the keys up to `positions[i]`; see [`Op::Attention`].
    pub fn attention_until(&mut self, q: Value, k: Value, v: Value, positions: Value) -> Result<Value> {
        self.push(Op::Attention { causal: false, scale: None, positions: true }, &[q, k, v, positions])
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, x: Value, shape: impl Into<Shape>) -> Result<Value> {
        self.push(Op::Reshape { shape: shape.into() }, &[x])
    }
    /// Axes in another order.
    pub fn transpose(&mut self, x: Value, perm: &[usize]) -> Result<Value> {
        self.push(Op::Transpose { perm: perm.to_vec() }, &[x])
    }
    /// Elements `start..end` of an axis.
    pub fn slice(&mut self, x: Value, axis: usize, start: impl Into<Dim>, end: impl Into<Dim>) -> Result<Value> {
        self.push(Op::Slice { axis, start: start.into(), end: end.into() }, &[x])
    }
    /// Zeros before and after along an axis.
    pub fn pad(&mut self, x: Value, axis: usize, before: impl Into<Dim>, after: impl Into<Dim>) -> Result<Value> {
        self.push(Op::Pad { axis, before: before.into(), after: after.into() }, &[x])
    }
    /// Values joined along an axis.
    pub fn concat(&mut self, xs: &[Value], axis: usize) -> Result<Value> {
        self.push(Op::Concat { axis }, xs)
    }
    /// Stretched to a shape.
    pub fn broadcast(&mut self, x: Value, shape: impl Into<Shape>) -> Result<Value> {
        self.push(Op::Broadcast { shape: shape.into() }, &[x])
    }
    /// Elements at `i32` indices along an axis.
    pub fn gather(&mut self, x: Value, indices: Value, axis: usize) -> Result<Value> {
        self.push(Op::Gather { axis }, &[x, indices])
    }
    /// `data` with the elements at ascending `i32` indices along an axis replaced by those of `part`.
    pub fn put(&mut self, data: Value, part: Value, indices: Value, axis: usize) -> Result<Value> {
        self.push(Op::Put { axis }, &[data, part, indices])
    }
    /// Sums by `i32` segment along an axis.
    pub fn segment_sum(&mut self, x: Value, segment: Value, axis: usize, segments: impl Into<Dim>) -> Result<Value> {
        self.push(Op::SegmentSum { axis, segments: segments.into() }, &[x, segment])
    }

    /// Another element type.
    pub fn cast(&mut self, x: Value, dtype: DType) -> Result<Value> {
        self.push(Op::Cast { dtype }, &[x])
    }
    /// To bytes: round(x / scale) + zero point.
    pub fn quantize(&mut self, x: Value, scale: Value, zero_point: Value, dtype: DType) -> Result<Value> {
        self.push(Op::Quantize { dtype }, &[x, scale, zero_point])
    }
    /// To bytes with one scale and zero point 0.
    pub fn quantize_with(&mut self, x: Value, scale: f32) -> Result<Value> {
        let name = self.next_name.take();
        let scale = self.scalar(scale)?;
        let zero = self.constant(Tensor::scalar(0i32))?;
        self.next_name = name;
        self.quantize(x, scale, zero, DType::I8)
    }
    /// From bytes: (q − zero point) · scale.
    pub fn dequantize(&mut self, q: Value, scale: Value, zero_point: Value) -> Result<Value> {
        self.push(Op::Dequantize, &[q, scale, zero_point])
    }

    /// A loop over time: initial states, sequences, fixed values; gives final states, then output sequences.
    pub fn scan(
        &mut self,
        body: Graph,
        states: &[Value],
        sequences: &[Value],
        fixed: &[Value],
        axis: usize,
    ) -> Result<Vec<Value>> {
        let scan = Scan { body: body.into(), states: states.len(), sequences: sequences.len(), axis, reverse: false };
        self.push_scan(scan, &[states, sequences, fixed].concat())
    }

    /// A loop given whole.
    pub fn push_scan(&mut self, scan: Scan, inputs: &[Value]) -> Result<Vec<Value>> {
        let first = self.push(Op::Scan(Box::new(scan)), inputs)?;
        let count = self.graph.node(first).outs.len() as u16;
        Ok((0..count).map(|slot| Value { node: first.node, slot }).collect())
    }

    /// Adds all nodes of another graph, with their names, and gives its outputs' values in order. Its inputs are the values
    /// that `given` has under their names; those that it does not have become inputs of this graph. Outputs and states
    /// are not declared.
    pub fn splice(&mut self, graph: &Graph, given: &BTreeMap<String, Value>) -> Result<Vec<Value>> {
        let mut moved: Vec<u32> = Vec::with_capacity(graph.nodes.len());
        let value = |moved: &[u32], v: Value| Value { node: moved[v.node as usize], slot: v.slot };
        for node in &graph.nodes {
            let known = if let Op::Input { name, .. } = &node.op { given.get(name) } else { None };
            let new = match known {
                Some(known) if known.slot == 0 && *self.ty(*known) == node.outs[0] => *known,
                Some(known) => {
                    let problem = format!("it is {}, and {} is given for it", node.outs[0], self.ty(*known));
                    return Err(Error::Node { node: node.name.clone(), op: "splice".into(), problem });
                }
                None => {
                    let inputs = node.inputs.iter().map(|v| value(&moved, *v)).collect();
                    self.graph.push(node.op.clone(), inputs, node.name.clone())?
                }
            };
            moved.push(new.node);
        }
        for (name, data) in &graph.weights {
            self.graph.set_weight(name, data.clone())?;
        }
        Ok(graph.outputs.iter().map(|o| value(&moved, o.value)).collect())
    }

    /// Declares a result.
    pub fn output(&mut self, name: &str, value: Value) -> Result<()> {
        self.graph.push_output(name, value)
    }
    /// Declares that `output` of one run is `input` of the next.
    pub fn state(&mut self, input: &str, output: &str) -> Result<()> {
        self.graph.push_state(input, output)
    }

    /// The type of a value so far.
    pub fn ty(&self, value: Value) -> &Type {
        self.graph.ty(value)
    }
    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Continues a graph; nodes without a name of their own are called `unnamed`.
    pub(crate) fn going_on(graph: Graph, unnamed: &str) -> GraphBuilder {
        GraphBuilder { graph, unnamed: Some(unnamed.to_owned()), ..GraphBuilder::default() }
    }

    /// The graph as it is, with or without results.
    pub(crate) fn into_graph(self) -> Graph {
        self.graph
    }

    /// The finished graph; one without results is refused.
    pub fn build(self) -> Result<Graph> {
        if self.graph.outputs.is_empty() {
            return Err(self.refuse("build", "the graph has no output; declare one with `output`".into()));
        }
        Ok(self.graph)
    }

    fn refuse(&self, op: &str, problem: String) -> Error {
        Error::Node { node: self.next_name.clone().unwrap_or_else(|| op.to_owned()), op: op.into(), problem }
    }
}

impl From<Graph> for GraphBuilder {
    /// Adds to a graph.
    fn from(graph: Graph) -> Self {
        GraphBuilder { graph, ..GraphBuilder::default() }
    }
}
