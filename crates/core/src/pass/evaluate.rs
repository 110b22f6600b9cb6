//! Computes one node's result from known inputs. The reference computes in `f64`, which takes two or four times the
//! memory of the weights, so large operands are given to it in pieces.
//!
//! Elements that are only moved are moved as bytes. Other work is cut along an axis of its result, and the reference is
//! given a piece at a time; since no sum is cut, the bits are those of the reference on the whole. Work that cannot be
//! cut (a sum over everything, attention, synapses) is given to it whole. Pages of a mapped file are released once they
//! have been read.

use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value};
use crate::op::Op;
use crate::reference::{self, HostValue, Precision};
use crate::shape::Bindings;
use crate::tensor::{Make, Tensor, count};
use std::collections::HashMap;

/// About how many elements of inputs and result the reference is given at once.
const PIECE: usize = 1 << 16;

/// Smaller results are computed immediately, not later.
const LATER_BYTES: usize = 1 << 20;
/// Results that are computed when they are read may depend on other such results, nested at most this deeply.
const MOST_DEPTH: usize = 8;

/// How to compute a node's result later.
struct Recipe {
    node: Node,
    inputs: Vec<Tensor>,
    shape: Vec<usize>,
}

impl Make for Recipe {
    fn make(&self) -> Result<Tensor> {
        evaluate(&self.node, &self.inputs.iter().collect::<Vec<_>>(), &self.shape)
    }
    fn held(&self) -> usize {
        self.inputs.iter().map(Tensor::held).fold(0, usize::saturating_add)
    }
    fn depth(&self) -> usize {
        1 + self.inputs.iter().map(Tensor::depth).max().unwrap_or(0)
    }
}

/// The result of a node with one output and one reader, which may be computed only when it is read: a large matrix then
/// exists only while it is packed, and not beside its packed form. Two kinds of work are done now: work that can fail,
/// and work whose inputs would take far more heap than its result.
pub(super) fn evaluate_later(node: &Node, inputs: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    if let (Op::Reshape { .. }, [x]) = (&node.op, inputs) {
        return x.reshaped(shape);
    }
    let dtype = node.outs[0].dtype;
    let total = node.op.is_elementwise() || moves(&node.op, inputs, shape).is_some();
    let recipe =
        Recipe { node: node.clone(), inputs: inputs.iter().map(|t| (*t).clone()).collect(), shape: shape.to_vec() };
    let bytes = count(shape).and_then(|n| dtype.bytes_for(n)).unwrap_or(usize::MAX);
    let held = recipe.held() <= bytes.saturating_add(bytes / 4);
    if total && bytes >= LATER_BYTES && held && recipe.depth() <= MOST_DEPTH {
        return Tensor::later(dtype, shape, Box::new(recipe));
    }
    evaluate(node, inputs, shape)
}

/// The result of a node with one output, whose shape is given.
/// The data of a value that weights and literals alone determine.
pub(crate) fn evaluate_known(graph: &Graph, value: Value) -> Result<Tensor> {
    let mut needed = vec![false; graph.nodes().len()];
    needed[value.node as usize] = true;
    for (id, node) in graph.nodes().iter().enumerate().rev().filter(|(id, _)| *id <= value.node as usize) {
        if needed[id] {
            node.inputs.iter().for_each(|v| needed[v.node as usize] = true);
        }
    }
    let mut done: HashMap<u32, Tensor> = HashMap::new();
    for (id, node) in (0u32..).zip(graph.nodes()).filter(|(id, _)| needed[*id as usize]) {
        let made = match &node.op {
            Op::Const(data) => data.clone(),
            Op::Weight { name, .. } => graph.weight(name)?.clone(),
            _ if node.inputs.is_empty() || node.outs.len() != 1 => {
                let problem = format!("{} is not known before the run", node.op.name());
                return Err(Error::Value { node: node.name.clone(), problem });
            }
            _ => {
                let inputs: Vec<&Tensor> = node.inputs.iter().map(|v| &done[&v.node]).collect();
                evaluate(node, &inputs, &node.outs[0].shape.eval(&Bindings::new())?)?
            }
        };
        done.insert(id, made);
    }
    let made = done.remove(&value.node);
    made.ok_or_else(|| Error::Internal(format!("{value} is no value of this graph")))?.at_hand()
}

pub(super) fn evaluate(node: &Node, inputs: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    if let (Op::Reshape { .. }, [x]) = (&node.op, inputs) {
        return x.reshaped(shape);
    }
    let at_hand = inputs.iter().map(|t| t.at_hand()).collect::<Result<Vec<Tensor>>>()?;
    let inputs = &at_hand.iter().collect::<Vec<_>>()[..];
    let result = match moves(&node.op, inputs, shape) {
        Some(moves) => moved(node, inputs, shape, &moves),
        None => in_pieces(node, inputs, shape),
    };
    inputs.iter().for_each(|t| t.release(0..t.bytes().len()));
    result
}

/// Row-major strides, in elements.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    strides
}

/// Where elements are: the first one, and the strides along each axis.
struct Place {
    start: usize,
    strides: Vec<usize>,
}

impl Place {
    fn all(shape: &[usize]) -> Place {
        Place { start: 0, strides: strides(shape) }
    }
    /// The elements from `from` on along an axis of a tensor of this shape.
    fn within(shape: &[usize], axis: usize, from: usize) -> Place {
        let strides = strides(shape);
        Place { start: from * strides[axis], strides }
    }
}

/// Copies `shape` elements of `size` bytes.
fn copy(shape: &[usize], size: usize, (from, at): (&[u8], &Place), (to, place): (&mut [u8], &Place)) {
    if shape.contains(&0) {
        return;
    }
    // Trailing axes that are contiguous on both sides are one run.
    let (mut axes, mut run) = (shape.len(), 1);
    while axes > 0 && (shape[axes - 1] == 1 || [at, place].iter().all(|p| p.strides[axes - 1] == run)) {
        axes -= 1;
        run *= shape[axes];
    }
    let run = run * size;
    let (mut source, mut target) = (at.start * size, place.start * size);
    let mut index = vec![0; axes];
    loop {
        to[target..target + run].copy_from_slice(&from[source..source + run]);
        let mut axis = axes;
        loop {
            let Some(next) = axis.checked_sub(1) else { return };
            axis = next;
            index[axis] += 1;
            source += at.strides[axis] * size;
            target += place.strides[axis] * size;
            if index[axis] < shape[axis] {
                break;
            }
            source -= at.strides[axis] * size * shape[axis];
            target -= place.strides[axis] * size * shape[axis];
            index[axis] = 0;
        }
    }
}

/// A block of elements of an input, and where it goes.
struct Move {
    input: usize,
    shape: Vec<usize>,
    from: Place,
    to: Place,
}

/// The moves of an operation that only moves elements; other elements of the result are 0. `None` for any other
/// operation, and if sizes do not fit, so that the reference reports the error.
fn moves(op: &Op, inputs: &[&Tensor], shape: &[usize]) -> Option<Vec<Move>> {
    let x = inputs.first()?.shape();
    let one = |shape: &[usize], from: Place, to: Place| vec![Move { input: 0, shape: shape.to_vec(), from, to }];
    let number = |d: &crate::shape::Dim| d.as_fixed();
    match op {
        Op::Transpose { perm } => {
            let own = strides(x);
            let from = Place { start: 0, strides: perm.iter().map(|&p| own[p]).collect() };
            Some(one(shape, from, Place::all(shape)))
        }
        Op::Slice { axis, start, .. } => {
            let start = number(start).filter(|s| s.checked_add(shape[*axis]).is_some_and(|end| end <= x[*axis]))?;
            Some(one(shape, Place::within(x, *axis, start), Place::all(shape)))
        }
        Op::Pad { axis, before, .. } => {
            let before = number(before).filter(|b| b.checked_add(x[*axis]).is_some_and(|end| end <= shape[*axis]))?;
            Some(one(x, Place::all(x), Place::within(shape, *axis, before)))
        }
        Op::Broadcast { .. } => {
            let (own, missing) = (strides(x), shape.len().checked_sub(x.len())?);
            let stretched = |i: usize| i < missing || x[i - missing] != shape[i];
            let strides = (0..shape.len()).map(|i| if stretched(i) { 0 } else { own[i - missing] }).collect();
            Some(one(shape, Place { start: 0, strides }, Place::all(shape)))
        }
        Op::Concat { axis } => {
            let mut at = 0;
            let part = |(input, t): (usize, &&Tensor)| {
                let to = Place::within(shape, *axis, at);
                at += t.shape()[*axis];
                Move { input, shape: t.shape().to_vec(), from: Place::all(t.shape()), to }
            };
            Some(inputs.iter().enumerate().map(part).collect())
        }
        _ => None,
    }
}

fn moved(node: &Node, inputs: &[&Tensor], shape: &[usize], moves: &[Move]) -> Result<Tensor> {
    let dtype = node.outs[0].dtype;
    let mut result = Tensor::zeros(dtype, shape)?;
    let to = result.bytes_mut();
    for m in moves {
        let input = inputs[m.input];
        copy(&m.shape, dtype.size(), (input.bytes(), &m.from), (&mut *to, &m.to));
        input.release(0..input.bytes().len());
    }
    Ok(result)
}

/// For a part of the result along `axis`, the axis along which each input is cut likewise, `None` where all of it is
/// read. `None` in all where the work cannot be cut there.
fn cuts(op: &Op, inputs: &[&Tensor], shape: &[usize], axis: usize) -> Option<Vec<Option<usize>>> {
    let rank = shape.len();
    // The same axis, counted from the last, unless the input is stretched along it.
    let same = |t: &Tensor| (axis + t.shape().len()).checked_sub(rank).filter(|&a| t.shape()[a] == shape[axis]);
    let alike = || inputs.iter().map(|t| same(t)).collect::<Vec<_>>();
    let first = |a: usize| (0..inputs.len()).map(|i| (i == 0).then_some(a)).collect::<Vec<_>>();
    match op {
        op if op.is_elementwise() => Some(alike()),
        Op::MatMul { transpose_a, transpose_b } => {
            let [a, b] = [0, 1].map(|i| inputs[i].shape().len());
            Some(match rank - axis {
                1 => vec![None, Some(b - 1 - usize::from(*transpose_b))],
                2 => vec![Some(a - 2 + usize::from(*transpose_a)), None],
                _ => alike(),
            })
        }
        Op::Softmax { axis: along } | Op::SegmentSum { axis: along, .. } => (axis != *along).then(|| first(axis)),
        Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::RoundRows => (axis + 1 < rank).then(|| first(axis)),
        Op::LowBit(_) => (axis + 1 < rank).then(alike),
        Op::Reduce { axes, keep, .. } => {
            let mut left = (0..inputs[0].shape().len()).filter(|a| *keep || !axes.contains(a));
            left.nth(axis).filter(|a| !axes.contains(a)).map(first)
        }
        Op::Gather { axis: along } => {
            let indices = inputs[1].shape().len();
            Some(match axis {
                a if a < *along => vec![Some(a), None],
                a if a < along + indices => vec![None, Some(a - along)],
                a => vec![Some(a + 1 - indices), None],
            })
        }
        _ => None,
    }
}

/// Computes the result piece by piece, cut along the axis for which the fewest input elements are needed whole. Pieces
/// that are still large (as both sides of a product can be) are cut along another axis.
fn in_pieces(node: &Node, inputs: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    let all = inputs.iter().map(|t| t.len()).fold(count(shape).unwrap_or(usize::MAX), usize::saturating_add);
    let ways = (0..shape.len()).filter(|&axis| all > PIECE && shape[axis] > 1).filter_map(|axis| {
        let cuts = cuts(&node.op, inputs, shape, axis)?;
        let whole: usize = inputs.iter().zip(&cuts).filter(|(_, cut)| cut.is_none()).map(|(t, _)| t.len()).sum();
        Some((axis, cuts, (all - whole).div_ceil(PIECE), whole))
    });
    let best = ways.filter(|(_, _, pieces, _)| *pieces > 1).min_by_key(|(_, _, _, whole)| *whole);
    let Some((axis, cuts, pieces, _)) = best else { return at_once(node, inputs, shape) };
    let dtype = node.outs[0].dtype;
    let mut result = Tensor::zeros(dtype, shape)?;
    let rows = shape[axis].div_ceil(pieces);
    for from in (0..shape[axis]).step_by(rows) {
        let rows = rows.min(shape[axis] - from);
        let part = |(t, cut): (&&Tensor, &Option<usize>)| match cut {
            Some(axis) => part(t, *axis, from, rows),
            None => Ok((*t).clone()),
        };
        let parts = inputs.iter().zip(&cuts).map(part).collect::<Result<Vec<Tensor>>>()?;
        let mut size = shape.to_vec();
        size[axis] = rows;
        let piece = in_pieces(node, &parts.iter().collect::<Vec<_>>(), &size)?;
        let (from, to) = (Place::all(&size), Place::within(shape, axis, from));
        copy(&size, dtype.size(), (piece.bytes(), &from), (result.bytes_mut(), &to));
    }
    Ok(result)
}

/// A copy of `rows` elements along an axis. If they are one contiguous range of the data, its pages are released.
fn part(t: &Tensor, axis: usize, from: usize, rows: usize) -> Result<Tensor> {
    let (mut shape, size) = (t.shape().to_vec(), t.dtype().size());
    shape[axis] = rows;
    let mut part = Tensor::zeros(t.dtype(), &shape)?;
    let (at, to) = (Place::within(t.shape(), axis, from), Place::all(&shape));
    copy(&shape, size, (t.bytes(), &at), (part.bytes_mut(), &to));
    if t.shape()[..axis].iter().all(|&d| d == 1) {
        t.release(at.start * size..(at.start + part.len()) * size);
    }
    Ok(part)
}

fn at_once(node: &Node, inputs: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    let values: Vec<HostValue> = inputs.iter().map(|t| HostValue::from_tensor(t)).collect();
    let values: Vec<&HostValue> = values.iter().collect();
    let outs = [(node.outs[0].dtype, shape.to_vec())];
    let mut result = reference::eval_node(&node.name, &node.op, &values, &outs, &Bindings::new(), Precision::Storage)?;
    Tensor::from_f64(node.outs[0].dtype, shape, &result.remove(0).data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::{GraphBuilder, Value};
    use std::cell::RefCell;

    /// Every kind of work on values of more than a piece, in pieces and at once.
    #[test]
    fn pieces_have_the_bits_of_the_whole() {
        let builder = RefCell::new(GraphBuilder::new());
        let tensors: RefCell<Vec<Tensor>> = RefCell::default();
        let weight = |dtype: DType, shape: &[usize], values: fn(usize) -> f64| -> Value {
            let values: Vec<f64> = (0..count(shape).unwrap()).map(values).collect();
            tensors.borrow_mut().push(Tensor::from_f64(dtype, shape, &values).unwrap());
            let name = format!("w{}", tensors.borrow().len());
            builder.borrow_mut().weight_slot(&name, dtype, shape).unwrap()
        };
        let wave = |i: usize| (i as f64 * 0.7).sin() * 3.0;
        let x = weight(DType::F32, &[300, 410], wave);
        let row = weight(DType::F32, &[410], wave);
        let column = weight(DType::F32, &[300, 1], wave);
        let flat = weight(DType::F32, &[1, 123_000], wave);
        let pair = weight(DType::F32, &[2, 123_000], wave);
        let cube = weight(DType::Bf16, &[41, 3, 1000], wave);
        let whole = weight(DType::I32, &[300, 410], |i| i as f64 * 1e5);
        let square = weight(DType::F32, &[300, 300], wave);
        let tall = weight(DType::F32, &[410, 300], wave);
        let many = weight(DType::F32, &[2, 300, 410], wave);
        let indices = weight(DType::I32, &[700], |i| (i * 37 % 300) as f64);
        let segments = weight(DType::I32, &[410], |i| (i % 7) as f64);
        let mut b = builder.borrow_mut();
        let truth = b.gt(x, column).unwrap();
        let last = b.select(truth, x, row).unwrap();
        let mut made = vec![truth, last, b.reshape(cube, [123, 1000]).unwrap()];
        made.extend(
            [b.tanh(x), b.mul(x, row), b.add(column, row), b.sub(flat, pair), b.cast(x, DType::Bf16)]
                .map(Result::unwrap),
        );
        made.extend(
            [b.mul(whole, whole), b.cast(whole, DType::I8), b.exp(cube), b.quantize_with(x, 0.1)].map(Result::unwrap),
        );
        made.extend([b.transpose(x, &[1, 0]), b.transpose(cube, &[2, 0, 1]), b.concat(&[x, x], 1)].map(Result::unwrap));
        made.extend(
            [b.slice(x, 1, 7, 400), b.slice(cube, 0, 5, 40), b.pad(x, 0, 2, 3), b.pad(cube, 1, 0, 1)]
                .map(Result::unwrap),
        );
        made.extend([b.broadcast(row, [300, 410]), b.broadcast(column, [2, 300, 410])].map(Result::unwrap));
        made.extend(
            [b.softmax(x, 0), b.softmax(cube, 2), b.layer_norm(x, Some(row), None, 1e-5), b.rms_norm(cube, None, 1e-5)]
                .map(Result::unwrap),
        );
        made.extend(
            [b.sum(x, &[0], false), b.mean(cube, &[0, 2], true), b.reduce_max(x, &[1], true), b.sum(x, &[0, 1], false)]
                .map(Result::unwrap),
        );
        made.extend(
            [b.gather(x, indices, 0), b.gather(tall, indices, 1), b.segment_sum(x, segments, 1, 7)].map(Result::unwrap),
        );
        made.extend(
            [b.matmul(square, x), b.matmul_t(x, tall, true, true), b.matmul_t(x, x, false, true), b.matmul(many, tall)]
                .map(Result::unwrap),
        );
        let graph = b.graph();
        let mut cut = 0;
        // Weights are the first nodes, in order; what reads the result of another is given that result.
        let mut values: Vec<Tensor> = tensors.borrow().clone();
        for node in &graph.nodes()[values.len()..] {
            if let Op::Const(t) = &node.op {
                values.push(t.clone());
                continue;
            }
            let inputs: Vec<&Tensor> = node.inputs.iter().map(|v| &values[v.node as usize]).collect();
            let shape = node.outs[0].shape.as_fixed().unwrap();
            let (pieces, whole) = (evaluate(node, &inputs, &shape).unwrap(), at_once(node, &inputs, &shape).unwrap());
            assert!(pieces == whole, "{} ({})", node.name, node.op.name());
            cut += usize::from((0..shape.len()).any(|axis| cuts(&node.op, &inputs, &shape, axis).is_some()));
            values.push(whole);
        }
        assert!(cut >= 20 && made.len() >= 30, "{cut} of {}", made.len());
    }
}
