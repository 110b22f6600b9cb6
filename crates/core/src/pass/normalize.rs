//! Brings each kind of operation into one form, so that backends need one kernel for it: the reduced axis last,
//! arithmetic in `f32`, batches that match.

use super::dead::dead_code;
use super::fuse::is_row_like;
use super::{PassOptions, rewrite_once};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value};
use crate::op::Op;
use crate::shape::{Dim, Shape};

/// The most rounds of all rules: a rule may apply to what another rule made, a few times.
const MOST_ROUNDS: usize = 16;

pub(super) fn normalize(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    let mut graph = graph.clone();
    for _ in 0..MOST_ROUNDS {
        let rules: &[(&str, &super::Rule<'_>)] = &[
            ("half precision through f32", &half_through_f32),
            ("reduce adjacent axes", &reduce_adjacent_axes),
            ("softmax over the last axis", &softmax_last),
            ("epilogue where one can run", &epilogue_where_one_can_run),
            ("matching batches", &matching_batches),
        ];
        let (new, fired) = rewrite_once(&graph, rules)?;
        if !fired {
            return Ok(new);
        }
        // Kernels rely on every rule having been applied to every node, also to those that other rules added. Nodes that
        // were replaced must go first, or they would be replaced again for ever.
        graph = dead_code(&new, options)?;
    }
    Err(Error::Verify { pass: None, problem: format!("rules still fire after {MOST_ROUNDS} rounds") })
}

/// Reductions, softmax, norms, attention and segment sums of half precision: widen, compute, round once.
fn half_through_f32(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value).clone();
    let dtype = node.outs[0].dtype;
    let kind = matches!(
        node.op,
        Op::Reduce { .. }
            | Op::Softmax { .. }
            | Op::LayerNorm { .. }
            | Op::RmsNorm { .. }
            | Op::Attention { .. }
            | Op::SegmentSum { .. }
    );
    if !kind || !matches!(dtype, DType::F16 | DType::Bf16) {
        return Ok(None);
    }
    let mut inputs = Vec::with_capacity(node.inputs.len());
    for &v in &node.inputs {
        inputs.push(if graph.ty(v).dtype == dtype {
            graph.push(Op::Cast { dtype: DType::F32 }, vec![v], format!("{}.wide", node.name))?
        } else {
            v
        });
    }
    let wide = graph.push(node.op, inputs, node.name.clone())?;
    graph.push(Op::Cast { dtype }, vec![wide], format!("{}.round", node.name)).map(Some)
}

/// A reduction over axes that are not neighbours: one run of neighbours after the other, innermost first.
fn reduce_adjacent_axes(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value).clone();
    let Op::Reduce { kind, axes, keep } = &node.op else { return Ok(None) };
    let x = node.inputs[0];
    // Nothing is combined without axes: a sum, mean, maximum or minimum of one element is that element.
    let Some(&last) = axes.last() else { return Ok(Some(x)) };
    let run = axes.iter().rev().enumerate().take_while(|(i, a)| **a + i == last).count();
    if run == axes.len() {
        return Ok(None);
    }
    let (rest, inner) = axes.split_at(axes.len() - run);
    let part = |axes: &[usize]| Op::Reduce { kind: *kind, axes: axes.to_vec(), keep: *keep };
    let first = graph.push(part(inner), vec![x], format!("{}.inner", node.name))?;
    graph.push(part(rest), vec![first], node.name).map(Some)
}

/// Softmax over an inner axis: move it last and back.
fn softmax_last(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let Node { op, inputs, outs, name } = graph.node(value).clone();
    let Op::Softmax { axis } = op else { return Ok(None) };
    let rank = outs[0].shape.rank();
    if axis + 1 == rank {
        return Ok(None);
    }
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(axis, rank - 1);
    let moved = graph.push(Op::Transpose { perm: perm.clone() }, inputs, format!("{name}.to_last"))?;
    let soft = graph.push(Op::Softmax { axis: rank - 1 }, vec![moved], name.clone())?;
    graph.push(Op::Transpose { perm }, vec![soft], format!("{name}.back")).map(Some)
}

/// A product with an epilogue that has a batch of right-hand sides, or operands whose stride differs from row to row:
/// the epilogue becomes a program of its own. Narrow operands are widened first, since the product must not be rounded
/// in between.
fn epilogue_where_one_can_run(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value).clone();
    let Op::MatMulMap { transpose_a, transpose_b, map, dtype } = node.op else { return Ok(None) };
    let rank = |v: Value| graph.ty(v).shape.rank();
    let shape = node.outs[0].shape.clone();
    let one_matrix = rank(node.inputs[1]) == 2 && (rank(node.inputs[0]) == 2 || !transpose_a);
    if one_matrix && node.inputs[2..].iter().all(|&v| is_row_like(&graph.ty(v).shape, &shape)) {
        return Ok(None);
    }
    let mut operands = node.inputs[..2].to_vec();
    for v in &mut operands {
        if graph.ty(*v).dtype != DType::F32 {
            *v = graph.push(Op::Cast { dtype: DType::F32 }, vec![*v], format!("{}.wide", node.name))?;
        }
    }
    let product = graph.push(Op::MatMul { transpose_a, transpose_b }, operands, format!("{}.product", node.name))?;
    let inputs = std::iter::once(product).chain(node.inputs[2..].iter().copied()).collect();
    graph.push(Op::map(map, dtype), inputs, node.name).map(Some)
}

/// A product whose operands have different batch axes: broadcast each operand that has neither the full batch nor a
/// single matrix.
fn matching_batches(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value).clone();
    if !matches!(node.op, Op::MatMul { .. }) {
        return Ok(None);
    }
    let rank = node.outs[0].shape.rank();
    let batch: Vec<Dim> = node.outs[0].shape.dims()[..rank - 2].to_vec();
    let mut inputs = node.inputs.clone();
    for v in &mut inputs {
        let ty = graph.ty(*v).clone();
        let own = &ty.shape.dims()[..ty.shape.rank() - 2];
        let single = own.iter().all(|d| d.is(1));
        if single || own == batch {
            continue;
        }
        let shape: Shape = batch.iter().chain(&ty.shape.dims()[own.len()..]).cloned().collect::<Vec<_>>().into();
        *v = graph.push(Op::Broadcast { shape }, vec![*v], format!("{}.batch", node.name))?;
    }
    if inputs == node.inputs {
        return Ok(None);
    }
    graph.push(node.op, inputs, node.name).map(Some)
}
