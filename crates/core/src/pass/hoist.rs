//! Moving work that is the same in every step out of the loop.

use super::PassOptions;
use super::merge::with_body;
use crate::error::Result;
use crate::graph::{Graph, Node, Value};
use crate::op::{Op, Scan};
use std::collections::{HashMap, HashSet};

pub(super) fn hoist(graph: &Graph, _: &PassOptions) -> Result<Graph> {
    let mut r = graph.rebuild();
    for (id, node) in graph.nodes().iter().enumerate() {
        let id = id as u32;
        let Op::Scan(scan) = &node.op else {
            r.copy(id)?;
            continue;
        };
        let inputs = r.all(&node.inputs)?;
        let (scan, inputs) = hoist_scan(scan, inputs, &mut r.new)?;
        let new = r.new.push(Op::Scan(Box::new(scan)), inputs, node.name.clone())?;
        r.set_all(id, new);
    }
    r.finish()
}

/// Whether a node may fail when it runs, because indices are out of range or not known to be in range.
fn may_refuse(body: &Graph, node: &Node) -> bool {
    let in_range = |end: Option<usize>| match (&body.node(node.inputs[1]).op, end) {
        (Op::Const(indices), Some(end)) => indices.to_f64().iter().all(|i| (0.0..end as f64).contains(i)),
        _ => false,
    };
    match &node.op {
        Op::Gather { axis } => !in_range(body.ty(node.inputs[0]).shape.dims()[*axis].as_fixed()),
        Op::SegmentSum { segments, .. } => !in_range(segments.as_fixed()),
        Op::Put { .. } | Op::Attention { positions: true, .. } => true,
        Op::SynapseSum { .. } | Op::SynapseRatio { .. } | Op::SynapseGradient { .. } => true,
        _ => false,
    }
}

/// The scan with everything that depends on fixed inputs alone computed in `outer` and handed in.
fn hoist_scan(scan: &Scan, mut inputs: Vec<Value>, outer: &mut Graph) -> Result<(Scan, Vec<Value>)> {
    let body = &scan.body;
    let first_fixed = scan.states + scan.sequences;
    let steps = inputs.get(scan.states).and_then(|v| outer.ty(*v).shape.dims().get(scan.axis)?.as_fixed());
    let runs = steps.is_some_and(|n| n > 0);
    // Body values that are the same in every step, and their values outside the loop.
    let mut outside: HashMap<Value, Value> = HashMap::new();
    for (i, (_, value)) in body.inputs().enumerate().skip(first_fixed) {
        outside.insert(value, inputs[i]);
    }
    for (id, node) in body.nodes().iter().enumerate() {
        let value = Value { node: id as u32, slot: 0 };
        // A nested scan stays inside: moving several outputs is not worth the effort. So does an operation that may
        // fail when it runs, unless the loop has at least one step: a loop of no steps must not fail because of its
        // body.
        let movable = match &node.op {
            Op::Input { .. } | Op::Scan(_) => false,
            Op::Const(_) => true,
            _ if !runs && may_refuse(body, node) => false,
            _ => node.inputs.iter().all(|v| outside.contains_key(v)),
        };
        if movable {
            let moved = node.inputs.iter().map(|v| outside[v]).collect();
            let new = outer.push(node.op.clone(), moved, node.name.clone())?;
            for slot in 0..node.outs.len() as u16 {
                outside.insert(Value { slot, ..value }, Value { slot, ..new });
            }
        }
    }
    // Of these, only values that the rest of the body reads become inputs; constants stay inside, where they can be
    // fused.
    let mut r = body.rebuild();
    let handed_in = |v: &Value| outside.contains_key(v) && !matches!(body.node(*v).op, Op::Input { .. } | Op::Const(_));
    let mut needed: Vec<Value> = Vec::new();
    for (id, node) in body.nodes().iter().enumerate() {
        if !handed_in(&Value { node: id as u32, slot: 0 }) {
            needed.extend(node.inputs.iter().filter(|v| handed_in(v)));
        }
    }
    needed.extend(body.outputs().iter().map(|o| o.value).filter(handed_in));
    needed.sort();
    needed.dedup();
    for id in 0..body.nodes().len() as u32 {
        if !handed_in(&Value { node: id, slot: 0 }) && matches!(body.nodes()[id as usize].op, Op::Input { .. }) {
            r.copy(id)?;
        }
    }
    // Names that the body does not have yet: it may have been through this before.
    let taken: HashSet<&str> = body.inputs().map(|(name, _)| name).collect();
    let mut names = (0..).map(|n| format!("hoisted.{n}")).filter(|name| !taken.contains(name.as_str()));
    for value in &needed {
        let name = names.next().unwrap_or_default();
        let input = Op::Input { name, ty: body.ty(*value).clone() };
        let new = r.new.push(input, vec![], body.node(*value).name.clone())?;
        r.set(*value, new);
        inputs.push(outside[value]);
    }
    for (id, node) in body.nodes().iter().enumerate() {
        let value = Value { node: id as u32, slot: 0 };
        if !matches!(node.op, Op::Input { .. }) && !handed_in(&value) {
            r.copy(id as u32)?;
        }
    }
    Ok((with_body(scan, r.finish()?), inputs))
}
