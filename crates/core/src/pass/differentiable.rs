//! What is done to a graph before it is differentiated, so that its gradient is fast too.
//!
//! After differentiation it is too late: values that the backward pass reads cannot be fused away any more. So work on
//! what stays the same in a loop moves into weights and out of the loop first, where it is differentiated once instead of
//! in each step; products with one left-hand side become one, and so do their gradients; and sums over synapses become
//! operations with gradients of their own. Loops get time as the first axis of their sequences: then a step's rows lie
//! together in all values that the backward loop reads, and are read and written in place.

use super::absorb::absorb_in_loops;
use super::cells::unfoldings;
use super::dead::dead_code;
use super::dead::{common_subexpressions, unread_by_loops};
use super::hoist::hoist;
use super::merge::merge_in_loops;
use super::rewrite;
use super::synapse::{finish_synapses, fuse_wired_synapses};
use super::{PassOptions, in_bodies};
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::{Binary, Op, Scan};

pub(crate) fn differentiable(graph: &Graph) -> Result<Graph> {
    let options = &PassOptions::default();
    let mut current = time_first(graph)?;
    for pass in [absorb_in_loops, merge_in_loops, fuse_wired_synapses] {
        current = pass(&current)?;
    }
    for pass in [hoist, common_subexpressions, finish_synapses, unfoldings] {
        current = in_bodies(&current, pass, options).and_then(|g| pass(&g, options))?;
    }
    unread_by_loops(&current)
}

/// Loops with time as the first axis of their sequences.
fn time_first(graph: &Graph) -> Result<Graph> {
    let mut r = graph.rebuild();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let Op::Scan(scan) = &node.op else {
            r.copy(id)?;
            continue;
        };
        let mut inputs = r.all(&node.inputs)?;
        let mut scan = Scan { body: time_first(&scan.body)?.into(), ..Scan::clone(scan) };
        let turn = scan.axis == 1;
        let turned = |graph: &mut Graph, v: Value| {
            let mut perm: Vec<usize> = (0..graph.ty(v).shape.rank()).collect();
            perm.swap(0, 1);
            graph.push(Op::Transpose { perm }, vec![v], format!("{}.by_time", node.name))
        };
        if turn {
            scan.axis = 0;
            for input in &mut inputs[scan.states..scan.states + scan.sequences] {
                *input = turned(&mut r.new, *input)?;
            }
        }
        let states = scan.states;
        let new = r.new.push(Op::Scan(Box::new(scan)), inputs, node.name.clone())?;
        for slot in 0..node.outs.len() as u16 {
            let mut made = Value { slot, ..new };
            if turn && usize::from(slot) >= states {
                made = turned(&mut r.new, made)?;
            }
            r.set(Value { node: id, slot }, made);
        }
    }
    r.finish()
}

/// What is done to a gradient before anything else: the rules of differentiation look at one operation at a time.
pub(crate) fn differentiated(graph: &Graph) -> Result<Graph> {
    let options = &PassOptions::default();
    in_bodies(graph, tidy, options).and_then(|g| tidy(&g, options))
}

fn tidy(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    let graph = rewrite(graph, &[("parts side by side", &parts_side_by_side)])?;
    let graph = narrow(&dead_code(&graph, options)?)?;
    dead_code(&graph, options)
}

/// The most parts that are put side by side.
const MOST_PARTS: usize = 64;

/// The gradients of slices of a value, each padded to the value's size, and their sum → the gradients side by side.
fn parts_side_by_side(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value);
    if node.op != Op::Binary(Binary::Add) || node.inputs.iter().any(|v| graph.ty(*v) != graph.ty(value)) {
        return Ok(None);
    }
    // The parts, with where they begin and end; part of a sum may be side by side already.
    let mut parts: Vec<(usize, usize, Value)> = vec![];
    let mut along = None;
    let mut terms = node.inputs.clone();
    while let Some(term) = terms.pop() {
        let node = graph.node(term);
        match &node.op {
            Op::Binary(Binary::Add) if node.inputs.iter().all(|v| graph.ty(*v) == graph.ty(value)) => {
                terms.extend(&node.inputs);
            }
            Op::Pad { axis, before, .. } if along.is_none_or(|known| known == *axis) => {
                along = Some(*axis);
                let x = node.inputs[0];
                let (Some(start), Some(len)) = (before.as_fixed(), graph.ty(x).shape[*axis].as_fixed()) else {
                    return Ok(None);
                };
                parts.push((start, start + len, x));
            }
            _ => return Ok(None),
        }
        if parts.len() + terms.len() > MOST_PARTS {
            return Ok(None);
        }
    }
    let (Some(axis), name) = (along, node.name.clone()) else { return Ok(None) };
    let Some(width) = graph.ty(value).shape[axis].as_fixed() else { return Ok(None) };
    parts.sort_by_key(|(start, ..)| *start);
    let whole = parts.first().is_some_and(|p| p.0 == 0) && parts.last().is_some_and(|p| p.1 == width);
    if !whole || parts.windows(2).any(|pair| pair[0].1 != pair[1].0) {
        return Ok(None);
    }
    let parts = parts.into_iter().map(|(.., x)| x).collect();
    graph.push(Op::Concat { axis }, parts, name).map(Some)
}

/// Of products of which only some columns are read, these alone are computed: what a cell reads is its input beside its
/// state, and the gradient of the input is often not wanted.
fn narrow(graph: &Graph) -> Result<Graph> {
    let uses = graph.uses();
    let columns = |graph: &mut Graph, value: Value| {
        let node = graph.node(value);
        let Op::Slice { axis: 1, start, end } = &node.op else { return Ok(None) };
        let product = node.inputs[0];
        let made = graph.node(product);
        let Op::MatMul { transpose_b, .. } = made.op else { return Ok(None) };
        let w = made.inputs[1];
        let fixed = matches!(graph.node(w).op, Op::Input { .. } | Op::Weight { .. } | Op::Const(_));
        if graph.ty(product).shape.rank() != 2 || graph.ty(w).shape.rank() != 2 || !fixed {
            return Ok(None);
        }
        let (op, left, name) = (made.op.clone(), made.inputs[0], made.name.clone());
        let slice = Op::Slice { axis: usize::from(!transpose_b), start: start.clone(), end: end.clone() };
        let w = graph.push(slice, vec![w], format!("{name}.columns"))?;
        graph.push(op, vec![left, w], name).map(Some)
    };
    let mut r = graph.rebuild();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let new = r.copy(id)?;
        let alone = node.inputs.first().is_some_and(|v| uses[v.node as usize] == [1]);
        if alone && let Some(better) = columns(&mut r.new, new)? {
            r.set(Value { node: id, slot: 0 }, better);
        }
    }
    r.finish()
}
