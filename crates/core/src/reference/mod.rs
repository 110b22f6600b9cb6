//! The reference: the definition of every operation. Passes use it to fold constants, tests compare with it, and
//! [`crate::backend::reference`] makes it a backend.
//!
//! Plain loops over `f64`, one node after the other, nothing shared, nothing reused. It is slow on purpose: a reader
//! must be able to check it against the formula. Decisions that the formulas leave open are made here:
//!
//! - Each node computes in `f64` and its result is rounded once, to the node's element type: through `f32` to `f16` and
//!   `bf16`, since that is what hardware does. [`Precision::F64`] leaves floats as they are, for finite differences.
//! - `i32` arithmetic is done in integers and wraps. Every integer and truth value is exact in `f64`, so one kind of
//!   buffer ([`HostValue`]) holds them all.
//! - Where a formula gives ∞·0 or ∞ − ∞, the result is NaN, as the formula says (`silu(−∞)`, softmax of a row that
//!   holds +∞ or nothing but −∞). Only attention has a rule of its own: a row that sees no key gives 0.
//! - A fused program rounds at its end only, and a product that enters one is not rounded before.
//!
//! It is total: a graph that verifies and inputs that fit give a result or an error, and never a panic.

mod elementwise;
mod layout;
mod low_bit;
mod matrix;
mod rows;
pub mod scalar;
mod synapse;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::op::{Op, Reduction, Scan, Type};
use crate::plan::check_work;
use crate::shape::Bindings;
use crate::tensor::{self, Tensor};
use half::{bf16, f16};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What happens to a float between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// It is rounded to the node's element type, as every backend stores it.
    Storage,
    /// It stays `f64`: for finite differences.
    F64,
    /// It stays `f64`, and every computed number is moved up or down, at random by this seed, by about as much as a
    /// backend's rounding may be. Results that this changes a lot cannot be compared with a backend's. Beyond 1e18,
    /// where `f32` may overflow in one order of operations but not in another, a number becomes NaN with even seeds.
    Shaken(u64),
}

/// Numbers beyond this become NaN in a shaken run with an even seed.
const MOST_SHAKEN: f64 = 1e18;

/// Moves a number up or down by a step of its type, relative to `scale`. The direction follows from seed and number.
/// With odd seeds, a number that is no further than that from 0 becomes 0, as a backend's result may be.
fn shake(seed: u64, dtype: DType, value: f64, scale: f64) -> f64 {
    // Fast functions of `f32` are off by some 2e-6.
    let step = match dtype {
        DType::F16 => 1.0 / 1024.0,
        DType::Bf16 => 1.0 / 128.0,
        _ => 4e-6,
    };
    if value.is_nan() || value.abs() > MOST_SHAKEN {
        // So results that depend on such a number differ between seeds.
        return if seed % 2 == 1 { value } else { f64::NAN };
    }
    if seed % 2 == 1 && value.abs() < scale * step {
        return 0.0;
    }
    let mixed = (seed ^ value.to_bits()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value + scale * if mixed >> 63 == 0 { step } else { -step }
}

/// A tensor whose elements are kept as `f64`, whatever their type; integers and truth values are exact.
#[derive(Clone, Debug, PartialEq)]
pub struct HostValue {
    /// The element type it stands for.
    pub dtype: DType,
    /// The sizes, outermost first.
    pub shape: Vec<usize>,
    /// The elements in row-major order.
    pub data: Vec<f64>,
}

impl HostValue {
    /// A tensor's elements.
    pub fn from_tensor(tensor: &Tensor) -> HostValue {
        HostValue { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), data: tensor.to_f64() }
    }

    /// A tensor of these elements, rounded to the type.
    pub fn to_tensor(&self) -> Result<Tensor> {
        if self.dtype.is_float() {
            let rounded: Vec<f64> = self.data.iter().map(|&v| round_to(self.dtype, v)).collect();
            return Tensor::from_f64(self.dtype, &self.shape, &rounded);
        }
        Tensor::from_f64(self.dtype, &self.shape, &self.data)
    }

    fn describe(&self) -> String {
        format!("{}{:?}", self.dtype, self.shape)
    }
}

/// The nearest value that a float type holds (through `f32`, ties to even); of other types the value itself.
pub fn round_to(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::F16 => f16::from_f32(value as f32).to_f64(),
        DType::Bf16 => bf16::from_f32(value as f32).to_f64(),
        DType::I8 | DType::U8 | DType::I32 | DType::Bool => value,
    }
}

/// Runs a graph on inputs by name; outputs come in the graph's order.
///
/// A state's input may be left out and is then 0, as at a stream's start.
pub fn run(graph: &Graph, inputs: &BTreeMap<String, Tensor>, precision: Precision) -> Result<Vec<Tensor>> {
    run_watched(graph, inputs, precision, &mut |_| Ok(()))
}

/// [`run`], which calls `before` with the number of each node that is computed, and stops where that is an error.
pub(crate) fn run_watched(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    precision: Precision,
    before: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<Vec<Tensor>> {
    let inputs = inputs.iter().map(|(name, t)| (name.clone(), HostValue::from_tensor(t))).collect();
    run_host(graph, &inputs, precision, before)?.iter().map(HostValue::to_tensor).collect()
}

/// Runs a graph without rounding: inputs need not be values of their type, and results are not.
pub fn run_f64(graph: &Graph, inputs: &BTreeMap<String, HostValue>) -> Result<Vec<HostValue>> {
    run_host(graph, inputs, Precision::F64, &mut |_| Ok(()))
}

/// Runs a graph without rounding, but with every computed float moved a little: see [`Precision::Shaken`].
pub fn run_shaken(graph: &Graph, inputs: &BTreeMap<String, HostValue>, seed: u64) -> Result<Vec<HostValue>> {
    run_host(graph, inputs, Precision::Shaken(seed), &mut |_| Ok(()))
}

fn run_host(
    graph: &Graph,
    inputs: &BTreeMap<String, HostValue>,
    precision: Precision,
    before: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<Vec<HostValue>> {
    if let Some(name) = inputs.keys().find(|&name| graph.input(name).is_none()) {
        let known = graph.inputs().map(|(n, _)| n.to_owned()).collect();
        return Err(Error::Unknown { kind: "input", name: name.clone(), known });
    }
    let mut bindings = Bindings::new();
    graph.bind(|name| inputs.get(name).map(|v| v.shape.as_slice()), &mut bindings)?;
    let mut ordered = vec![];
    for (name, value) in graph.inputs() {
        let ty = graph.ty(value);
        let refuse = |got: String| Err(Error::Input { name: name.into(), expected: ty.to_string(), got });
        ordered.push(match inputs.get(name) {
            Some(given) if given.dtype != ty.dtype || tensor::count(&given.shape) != Some(given.data.len()) => {
                return refuse(format!("{} with {} elements", given.describe(), given.data.len()));
            }
            Some(given) => Cow::Borrowed(given),
            None if graph.is_state(name) => {
                let shape = ty.shape.eval(&bindings)?;
                let data = zeros(name, &shape)?;
                Cow::Owned(HostValue { dtype: ty.dtype, shape, data })
            }
            None => return refuse("nothing".into()),
        });
    }
    check_work(graph, &bindings)?;
    let ordered: Vec<&HostValue> = ordered.iter().map(AsRef::as_ref).collect();
    run_nodes(graph, &ordered, &bindings, precision, before)
}

/// Runs the nodes in order; `inputs` in the order in which the graph declares them.
fn run_nodes(
    graph: &Graph,
    inputs: &[&HostValue],
    bindings: &Bindings,
    precision: Precision,
    before: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<Vec<HostValue>> {
    let mut given = inputs.iter();
    let mut done: Vec<Vec<Cow<'_, HostValue>>> = vec![];
    // How many times each node will still be read: a value is dropped after its last read.
    let mut readers: Vec<usize> = graph.readers().iter().map(Vec::len).collect();
    graph.outputs().iter().for_each(|o| readers[o.value.node as usize] += 1);
    for (number, node) in graph.nodes().iter().enumerate() {
        let results = match &node.op {
            Op::Input { name, ty } => match given.next() {
                Some(&value) => vec![Cow::Borrowed(value)],
                None => {
                    let expected = ty.to_string();
                    return Err(Error::Input { name: name.clone(), expected, got: "nothing".into() });
                }
            },
            Op::Weight { name, .. } => vec![Cow::Owned(HostValue::from_tensor(graph.weight(name)?))],
            op => {
                before(number)?;
                let read = |v: &Value| done[v.node as usize][usize::from(v.slot)].as_ref();
                let inputs: Vec<&HostValue> = node.inputs.iter().map(read).collect();
                let outs = concrete(&node.outs, bindings)?;
                eval_node(&node.name, op, &inputs, &outs, bindings, precision)?.into_iter().map(Cow::Owned).collect()
            }
        };
        done.push(results);
        for v in &node.inputs {
            let left = &mut readers[v.node as usize];
            *left = left.saturating_sub(1);
            if *left == 0 {
                done[v.node as usize].clear();
            }
        }
    }
    let outputs = graph.outputs().iter().map(|o| &o.value);
    Ok(outputs.map(|v| done[v.node as usize][usize::from(v.slot)].clone().into_owned()).collect())
}

/// Types with their symbols replaced by sizes.
pub fn concrete(types: &[Type], bindings: &Bindings) -> Result<Vec<(DType, Vec<usize>)>> {
    types.iter().map(|ty| Ok((ty.dtype, ty.shape.eval(bindings)?))).collect()
}

/// Evaluates one node: for constant folding, and for backends that have no kernel for an operation. `outs` are the
/// node's output types under `bindings`, which also give the sizes inside the operation, such as where a slice starts.
/// An input or a weight has no value of its own and is refused.
pub fn eval_node(
    node: &str,
    op: &Op,
    inputs: &[&HostValue],
    outs: &[(DType, Vec<usize>)],
    bindings: &Bindings,
    precision: Precision,
) -> Result<Vec<HostValue>> {
    let call = Call { node, inputs, outs, bindings, precision, rounding: Rounding::of(op) };
    call.check(op)?;
    let data = match op {
        Op::Input { name, .. } | Op::Weight { name, .. } => {
            return Err(call.fail(format!("`{name}` is supplied, not computed")));
        }
        Op::Scan(scan) => return call.scan(scan),
        Op::SynapseSum { activation, axis, sums, segments } => {
            let sums = call.synapse_sum(*activation, *axis, *sums, *segments)?;
            return Ok(sums.into_iter().enumerate().map(|(k, data)| call.result(k, data)).collect());
        }
        Op::SynapseRatio { activation, axis, times } => call.synapse_ratio(*activation, *axis, *times)?,
        Op::SynapseGradient { activation, axis, of } => {
            let all = call.synapse_gradient(*activation, *axis, *of)?;
            return Ok(all.into_iter().enumerate().map(|(k, data)| call.result(k, data)).collect());
        }
        Op::GatedCell { batch_last, by_column, heads } => call.gated_cell(*batch_last, *by_column, *heads)?,
        Op::Const(t) => t.to_f64(),
        Op::Unary(u) => call.unary(*u)?,
        Op::Binary(b) => call.binary(*b)?,
        Op::Compare(c) => call.compare(*c)?,
        Op::Select => call.select()?,
        Op::MatMul { transpose_a, transpose_b } => call.matmul(*transpose_a, *transpose_b)?,
        Op::Reduce { kind, axes, .. } => call.reduce(*kind, axes)?,
        Op::Softmax { axis } => call.softmax(*axis)?,
        Op::LayerNorm { eps } => call.layer_norm(eps.0.into())?,
        Op::RmsNorm { eps } => call.rms_norm(eps.0.into())?,
        Op::Attention { causal, scale, .. } => call.attention(op, *causal, scale.map(|s| s.0.into()))?,
        Op::Reshape { .. } => call.reshape()?,
        Op::Transpose { perm } => call.transpose(perm)?,
        Op::Slice { axis, start, end } => call.slice(*axis, start.eval(bindings)?, end.eval(bindings)?)?,
        Op::Pad { axis, before, .. } => call.pad(*axis, before.eval(bindings)?)?,
        Op::Concat { axis } => call.concat(*axis)?,
        Op::Broadcast { .. } => call.stretch(0, call.shape())?.into_owned(),
        Op::Gather { axis } => call.gather(*axis)?,
        Op::Put { axis } => call.put(*axis)?,
        Op::SegmentSum { axis, .. } => call.segment_sum(*axis)?,
        Op::Cast { dtype } => call.cast(*dtype)?,
        Op::Quantize { dtype } => call.quantize(*dtype)?,
        Op::Dequantize => call.dequantize()?,
        Op::LowBit(format) => call.low_bit(format)?,
        Op::RoundRows => call.round_rows()?,
        Op::LowBitMatMul(product) => call.low_bit_matmul(product)?,
        Op::Map { map, dtype, also } => {
            let results = call.map(map, *dtype, also)?;
            return Ok(results.into_iter().enumerate().map(|(k, data)| call.result(k, data)).collect());
        }
        Op::MatMulMap { transpose_a, transpose_b, map, dtype } => {
            call.matmul_map(*transpose_a, *transpose_b, map, *dtype)?
        }
        Op::Custom { name } => {
            let results = call.custom(name)?;
            return Ok(results.into_iter().enumerate().map(|(k, data)| call.result(k, data)).collect());
        }
    };
    Ok(vec![call.result(0, data)])
}

/// `count(shape)` zeros, or an error where memory does not hold them.
fn zeros(node: &str, shape: &[usize]) -> Result<Vec<f64>> {
    let refuse = || Error::Value { node: node.into(), problem: format!("a value of shape {shape:?} is too large") };
    let count = tensor::count(shape).ok_or_else(refuse)?;
    if crate::memory::machine_bytes().is_ok_and(|machine| count > machine / 8) {
        return Err(refuse());
    }
    let mut data = vec![];
    data.try_reserve_exact(count).map_err(|_| refuse())?;
    data.resize(count, 0.0);
    Ok(data)
}

/// One node being evaluated. Its methods, one for each operation, are in the other files of this module.
struct Call<'a> {
    node: &'a str,
    inputs: &'a [&'a HostValue],
    outs: &'a [(DType, Vec<usize>)],
    bindings: &'a Bindings,
    precision: Precision,
    rounding: Rounding,
}

/// How a backend's result may differ from the exact one, for shaken runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounding {
    /// No more than the operation's own method already accounts for.
    None,
    /// By a step of its type.
    Each,
    /// By a step of the largest element: the terms of a sum may be larger than the sum.
    Sum,
}

impl Rounding {
    fn of(op: &Op) -> Rounding {
        match op {
            Op::Softmax { .. } | Op::Cast { .. } | Op::Dequantize | Op::Map { .. } | Op::Custom { .. } => {
                Rounding::Each
            }
            Op::MatMul { .. }
            | Op::MatMulMap { .. }
            | Op::Reduce { kind: Reduction::Sum | Reduction::Mean, .. }
            | Op::LayerNorm { .. }
            | Op::RmsNorm { .. }
            | Op::Attention { .. }
            | Op::SegmentSum { .. }
            | Op::SynapseSum { .. }
            | Op::SynapseRatio { .. }
            | Op::SynapseGradient { .. }
            | Op::LowBitMatMul(_)
            | Op::GatedCell { .. } => Rounding::Sum,
            // Unary and binary operations move their results themselves, by an error that depends on their operands;
            // the others are exact, or are made of operations that do so.
            Op::Unary(_)
            | Op::Binary(_)
            | Op::Input { .. }
            | Op::Weight { .. }
            | Op::Const(_)
            | Op::Compare(_)
            | Op::Select
            | Op::Reduce { .. }
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Broadcast { .. }
            | Op::Gather { .. }
            | Op::Put { .. }
            | Op::Quantize { .. }
            | Op::LowBit(_)
            | Op::RoundRows
            | Op::Scan(_) => Rounding::None,
        }
    }
}

impl<'a> Call<'a> {
    fn fail(&self, problem: String) -> Error {
        Error::Value { node: self.node.into(), problem }
    }

    /// Checks the types again that the inference rule guarantees, because callers other than `run` supply the parts.
    fn check(&self, op: &Op) -> Result<()> {
        if let Some(bad) = self.inputs.iter().find(|v| tensor::count(&v.shape) != Some(v.data.len())) {
            return Err(self.fail(format!("an input {} has {} elements", bad.describe(), bad.data.len())));
        }
        let types: Vec<Type> = self.inputs.iter().map(|v| Type::new(v.dtype, v.shape.as_slice())).collect();
        let outs = match op {
            // The types of a loop's body may contain symbols, which only `bindings` resolves; `scan` checks what it
            // relies on.
            Op::Scan(_) => return Ok(()),
            // Shapes named inside the operation may hold symbols; their methods check the sizes.
            Op::Reshape { .. } | Op::Broadcast { .. } | Op::Slice { .. } | Op::Pad { .. } | Op::SegmentSum { .. } => {
                let want = if matches!(op, Op::SegmentSum { .. }) { 2 } else { 1 };
                if types.len() != want || self.outs.first().is_none_or(|(dtype, _)| *dtype != types[0].dtype) {
                    return Err(self.fail(format!("{types:?} cannot become {:?}", self.outs)));
                }
                self.outs.iter().map(|(dtype, shape)| Type::new(*dtype, shape.as_slice())).collect()
            }
            _ => op.infer(&types.iter().collect::<Vec<_>>()).map_err(|problem| self.fail(problem))?,
        };
        let fits = |(ty, (dtype, shape)): (&Type, &(DType, Vec<usize>))| {
            ty.dtype == *dtype && ty.shape.as_fixed().as_ref() == Some(shape)
        };
        if outs.len() != self.outs.len() || outs.is_empty() || !outs.iter().zip(self.outs).all(fits) {
            return Err(self.fail(format!("gives {outs:?}, asked for {:?}", self.outs)));
        }
        Ok(())
    }

    /// The (first) output's shape.
    fn shape(&self) -> &'a [usize] {
        &self.outs[0].1
    }

    fn zeros(&self, shape: &[usize]) -> Result<Vec<f64>> {
        zeros(self.node, shape)
    }

    /// Output number `slot`, rounded as it is stored.
    fn result(&self, slot: usize, mut data: Vec<f64>) -> HostValue {
        let (dtype, shape) = &self.outs[slot];
        match (self.precision, self.rounding) {
            (Precision::Storage, _) if dtype.is_float() => {
                data.iter_mut().for_each(|v| *v = round_to(*dtype, *v));
            }
            (Precision::Shaken(seed), Rounding::Each) if dtype.is_float() => {
                data.iter_mut().for_each(|v| *v = shake(seed, *dtype, *v, v.abs()));
            }
            (Precision::Shaken(seed), Rounding::Sum) if dtype.is_float() => {
                let most = data.iter().filter(|v| v.is_finite()).fold(0.0f64, |most, v| most.max(v.abs()));
                data.iter_mut().for_each(|v| *v = shake(seed, *dtype, *v, most));
            }
            _ => {}
        }
        HostValue { dtype: *dtype, shape: shape.clone(), data }
    }

    /// Input number `input` stretched to `shape`.
    fn stretch(&self, input: usize, shape: &[usize]) -> Result<Cow<'a, [f64]>> {
        let value = self.inputs[input];
        if value.shape == shape {
            return Ok(Cow::Borrowed(&value.data));
        }
        let mut data = self.zeros(shape)?;
        let strides = stretched_strides(&value.shape, shape)
            .ok_or_else(|| self.fail(format!("{} does not stretch to {shape:?}", value.describe())))?;
        for (at, out) in data.iter_mut().enumerate() {
            *out = value.data[offset(at, shape, &strides)];
        }
        Ok(Cow::Owned(data))
    }

    /// One step after the other; see [`Scan`].
    fn scan(&self, scan: &Scan) -> Result<Vec<HostValue>> {
        let counts = (scan.body.inputs().len(), scan.body.outputs().len());
        let first = self.inputs.get(scan.states).and_then(|sequence| sequence.shape.get(scan.axis));
        let (Some(&steps), true) = (first, counts == (self.inputs.len(), self.outs.len())) else {
            return Err(self.fail(format!("{} inputs and {} outputs do not fit", self.inputs.len(), self.outs.len())));
        };
        let split = scan.states + scan.sequences;
        let fits = |v: &&&HostValue| v.shape.get(scan.axis) == Some(&steps);
        let sequences = self.inputs.get(scan.states..split).unwrap_or_default();
        if let Some(bad) = sequences.iter().find(|v| !fits(v)) {
            return Err(self.fail(format!(
                "sequence {} has not {steps} steps along axis {}",
                bad.describe(),
                scan.axis
            )));
        }
        let mut states: Vec<HostValue> = self.inputs[..scan.states].iter().map(|&v| v.clone()).collect();
        let mut collected: Vec<Vec<f64>> = vec![];
        for (_, shape) in &self.outs[scan.states..] {
            collected.push(self.zeros(shape)?);
        }
        for step in 0..steps {
            let time = if scan.reverse { steps - 1 - step } else { step };
            let elements: Vec<HostValue> = sequences.iter().map(|v| layout::take(v, scan.axis, time)).collect();
            let inputs: Vec<&HostValue> =
                states.iter().chain(&elements).chain(self.inputs[split..].iter().copied()).collect();
            let mut results = run_nodes(&scan.body, &inputs, self.bindings, self.precision, &mut |_| Ok(()))?;
            for (slot, element) in results.drain(scan.states..).enumerate() {
                let shape = &self.outs[scan.states + slot].1;
                layout::put(&mut collected[slot], shape, scan.axis, time, &element.data);
            }
            states = results;
        }
        let sequences = collected.into_iter().enumerate().map(|(i, data)| self.result(scan.states + i, data));
        Ok(states.into_iter().chain(sequences).collect())
    }
}

/// Row-major strides of `shape`.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        // A product that overflows belongs to a value with an axis of size 0, which is never indexed.
        strides[axis - 1] = strides[axis].wrapping_mul(shape[axis]);
    }
    strides
}

/// Strides through a value of shape `from` for each axis of `to`: 0 where it is broadcast. `None` if it does not
/// broadcast to `to`.
fn stretched_strides(from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let missing = to.len().checked_sub(from.len())?;
    let mut result = vec![0; to.len()];
    for (axis, step) in strides(from).into_iter().enumerate() {
        if from[axis] == to[missing + axis] {
            result[missing + axis] = step;
        } else if from[axis] != 1 {
            return None;
        }
    }
    Some(result)
}

/// The offset of element number `at` of a row-major value of `shape`, under other strides.
fn offset(mut at: usize, shape: &[usize], strides: &[usize]) -> usize {
    let mut offset = 0;
    for (size, step) in shape.iter().zip(strides).rev() {
        offset += at % size * step;
        at /= size;
    }
    offset
}
