//! Which values are known before the run: one analysis for all passes that move work into weights.
//!
//! Literals and weights with data are known; in a loop, so are the fixed values that are one of these outside. So is
//! the result of work on known values alone, if it is worth keeping: later passes move such work out of loops and do it
//! once.

use super::again::largest;
use super::fold::worth_keeping;
use super::merge::with_body;
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::Op;
use crate::tensor::Tensor;
use std::collections::{HashMap, HashSet};

/// A weight or a literal.
#[derive(Clone, Copy)]
struct Source<'a> {
    data: &'a Tensor,
    /// The weight's name, if it may change.
    changing: Option<&'a str>,
}

/// What is known of a graph, or of a loop's body.
pub(super) struct Known<'a> {
    /// Weights, literals, and a body's inputs that are one of these outside.
    sources: HashMap<Value, Source<'a>>,
    /// A body's inputs that are the same in each step, where that is enough.
    fixed: HashSet<Value>,
    known: Vec<bool>,
    in_loop: bool,
}

impl<'a> Known<'a> {
    fn of(graph: &'a Graph, given: &HashMap<Value, Source<'a>>, fixed: HashSet<Value>, in_loop: bool) -> Known<'a> {
        let mut sources = given.clone();
        let mut known: Vec<bool> = Vec::with_capacity(graph.nodes().len());
        for (id, node) in (0u32..).zip(graph.nodes()) {
            let value = Value { node: id, slot: 0 };
            let source = match &node.op {
                Op::Const(data) => Some(Source { data, changing: None }),
                Op::Weight { name, .. } => graph.weights().get(name).map(|data| {
                    let changing = graph.may_change(name).then_some(name.as_str());
                    Source { data, changing }
                }),
                _ => None,
            };
            sources.extend(source.map(|source| (value, source)));
            known.push(match &node.op {
                op if op.is_source() => sources.contains_key(&value) || fixed.contains(&value),
                Op::Scan(_) => false,
                _ => {
                    node.outs.len() == 1
                        && !node.inputs.is_empty()
                        && node.inputs.iter().all(|v| known[v.node as usize])
                        && worth_keeping(graph, &node.op, &node.inputs, &node.outs[0])
                }
            });
        }
        Known { sources, fixed, known, in_loop }
    }

    /// Whether a value is known, or will be once later passes compute it.
    pub(super) fn contains(&self, value: Value) -> bool {
        self.known[value.node as usize]
    }

    /// Whether a value has its data already.
    pub(super) fn is_source(&self, value: Value) -> bool {
        self.sources.contains_key(&value) || self.fixed.contains(&value)
    }

    /// Whether this is the body of a loop.
    pub(super) fn in_loop(&self) -> bool {
        self.in_loop
    }

    /// The name of the weight that a source is, here or outside the loop, if it may change.
    pub(super) fn changing(&self, value: Value) -> Option<&str> {
        self.sources.get(&value)?.changing
    }

    /// The largest absolute value of a source of `f32`; infinity where it holds one, NaN, or no `f32`. A value of the run
    /// counts as finite.
    pub(super) fn largest(&self, value: Value) -> Result<f32> {
        if self.fixed.contains(&value) {
            return Ok(0.0);
        }
        self.sources.get(&value).map_or(Ok(f32::INFINITY), |source| largest(source.data))
    }
}

/// A rewrite that uses this analysis.
pub(super) type Rewrite<'a> = dyn Fn(&Graph, &Known<'_>) -> Result<Graph> + 'a;

/// Applies a rewrite to the bodies of all loops of a graph, from the inside out, and then to the graph itself.
pub(super) fn everywhere(graph: &Graph, rewrite: &Rewrite<'_>) -> Result<Graph> {
    within(graph, &HashMap::new(), false, rewrite)
}

/// Applies a rewrite to the bodies of all loops, where all that is the same in each step counts as known: work on such values
/// moves out of the loop, and is then done once in a run.
pub(super) fn in_loops(graph: &Graph, rewrite: &Rewrite<'_>) -> Result<Graph> {
    let mut r = graph.rebuild();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let Op::Scan(scan) = &node.op else {
            r.copy(id)?;
            continue;
        };
        let body = in_loops(&scan.body, rewrite)?;
        let fixed = body.inputs().skip(scan.states + scan.sequences).map(|(_, v)| v).collect();
        let body = rewrite(&body, &Known::of(&body, &HashMap::new(), fixed, true))?;
        let inputs = r.all(&node.inputs)?;
        let new = r.new.push(Op::Scan(Box::new(with_body(scan, body))), inputs, node.name.clone())?;
        r.set_all(id, new);
    }
    r.finish()
}

fn within(graph: &Graph, given: &HashMap<Value, Source<'_>>, in_loop: bool, rewrite: &Rewrite<'_>) -> Result<Graph> {
    if !graph.nodes().iter().any(|n| matches!(n.op, Op::Scan(_))) {
        return rewrite(graph, &Known::of(graph, given, HashSet::new(), in_loop));
    }
    let known = Known::of(graph, given, HashSet::new(), in_loop);
    // Every node becomes one node, so that values keep their numbers.
    let mut r = graph.rebuild();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let Op::Scan(scan) = &node.op else {
            r.copy(id)?;
            continue;
        };
        let fixed = scan.body.inputs().zip(&node.inputs).skip(scan.states + scan.sequences);
        let inside = fixed.filter_map(|((_, v), outer)| Some((v, *known.sources.get(outer)?))).collect();
        let body = within(&scan.body, &inside, true, rewrite)?;
        let inputs = r.all(&node.inputs)?;
        let new = r.new.push(Op::Scan(Box::new(with_body(scan, body))), inputs, node.name.clone())?;
        r.set_all(id, new);
    }
    let graph = r.finish()?;
    rewrite(&graph, &Known::of(&graph, given, HashSet::new(), in_loop))
}
