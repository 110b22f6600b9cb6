//! Makes operations that follow sums over synapses part of them, so that they run while the sums are in registers:
//!
//! - the step of a leaky network, (p·x + q + s₂) / (r + s₁), where s₁ and s₂ are sums of one `SynapseSum` of x;
//! - additions to sums, which then start from what is added.

use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::op::{Activation, Binary, Op};
use crate::pass::PassOptions;
use crate::pass::dead::dead_code;
use crate::shape::Shape;
use std::collections::{HashMap, HashSet};

pub(in crate::pass) fn finish_synapses(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    let is_sum = |op: &Op| matches!(op, Op::SynapseSum { .. });
    if !options.fuse || !graph.nodes().iter().any(|n| is_sum(&n.op)) {
        return Ok(graph.clone());
    }
    let uses = graph.uses();
    let finder = Finder { graph, uses: &uses, readers: graph.readers() };
    let mut ratios: HashMap<u32, Ratio> = HashMap::new();
    let mut starts: HashMap<u32, Vec<Start>> = HashMap::new();
    for id in 0..graph.nodes().len() as u32 {
        let value = Value { node: id, slot: 0 };
        ratios.extend(finder.ratio(value).map(|r| (id, r)));
    }
    // Nodes that are terms of a ratio must not be changed below.
    let terms = ratios.values().flat_map(|r| r.above.iter().chain(&r.below).chain([&r.first]));
    let taken: HashSet<u32> = terms.map(|v| v.node).collect();
    for id in 0..graph.nodes().len() as u32 {
        if is_sum(&graph.nodes()[id as usize].op) && !taken.contains(&id) {
            starts.extend(finder.starts(id).map(|s| (id, s)));
        }
    }
    let replaced: HashSet<u32> = starts.values().flatten().map(|s| s.addition).collect();
    let mut r = graph.rebuild();
    for (id, node) in graph.nodes().iter().enumerate() {
        let id = id as u32;
        if let Some(ratio) = ratios.get(&id) {
            let mut added = |terms: &[Value]| {
                let mut sum = r.get(terms[0])?;
                for v in &terms[1..] {
                    let term = r.get(*v)?;
                    sum = r.new.push(Op::Binary(Binary::Add), vec![sum, term], node.name.clone())?;
                }
                Ok::<Value, Error>(sum)
            };
            let (above, below) = (added(&ratio.above)?, added(&ratio.below)?);
            let sums = graph.node(ratio.first);
            let weights = [ratio.first.slot, 1 - ratio.first.slot].map(|slot| sums.inputs[5 + usize::from(slot)]);
            let inputs = sums.inputs[..5].iter().chain(&weights).chain([&ratio.factor]);
            let inputs = inputs.map(|v| r.get(*v)).chain([Ok(above), Ok(below)]).collect::<Result<_>>()?;
            let op = Op::SynapseRatio { activation: ratio.activation, axis: ratio.axis, times: 1 };
            let new = r.new.push(op, inputs, node.name.clone())?;
            r.set(Value { node: id, slot: 0 }, new);
        } else if let Some(starts) = starts.get(&id) {
            let inputs = node.inputs.iter().copied().chain(starts.iter().map(|s| s.from));
            let inputs = inputs.map(|v| r.get(v)).collect::<Result<_>>()?;
            let new = r.new.push(node.op.clone(), inputs, node.name.clone())?;
            for (slot, start) in (0u16..).zip(starts) {
                r.set(Value { node: start.addition, slot: 0 }, Value { slot, ..new });
            }
        } else if !replaced.contains(&id) {
            r.copy(id)?;
        }
    }
    dead_code(&r.finish()?, options)
}

/// A sum that something is added to.
struct Start {
    from: Value,
    addition: u32,
}

struct Ratio {
    activation: Activation,
    axis: usize,
    /// The sum in the denominator.
    first: Value,
    /// p
    factor: Value,
    /// The terms that add up to q (in the numerator) and to r (in the denominator); neither is empty.
    above: Vec<Value>,
    below: Vec<Value>,
}

struct Finder<'a> {
    graph: &'a Graph,
    uses: &'a [Vec<u32>],
    readers: Vec<Vec<u32>>,
}

/// The most terms of a numerator or denominator. A cell has three or four; without a limit, the search could take more
/// than linear time.
const MOST_TERMS: usize = 64;

impl Finder<'_> {
    /// For each sum of a node, the value that is added to it, if that addition is its only use.
    fn starts(&self, id: u32) -> Option<Vec<Start>> {
        let node = &self.graph.nodes()[id as usize];
        let Op::SynapseSum { axis, sums, .. } = node.op else { return None };
        if node.inputs.len() > 5 + sums || self.uses[id as usize].iter().any(|n| *n != 1) {
            return None;
        }
        let start = |slot: usize| {
            let sum = Value { node: id, slot: slot as u16 };
            let reads = |id: &&u32| self.graph.nodes()[**id as usize].inputs.contains(&sum);
            let addition = *self.readers[id as usize].iter().find(reads)?;
            let reader = &self.graph.nodes()[addition as usize];
            let Op::Binary(Binary::Add) = reader.op else { return None };
            let from = *reader.inputs.iter().find(|v| **v != sum)?;
            let ty = self.graph.ty(from);
            let fits = reader.outs[0] == node.outs[slot] && has_axis(&ty.shape, &node.outs[slot].shape, axis);
            // The value must be computed before the sums.
            (fits && from.node < id).then_some(Start { from, addition })
        };
        (0..sums).map(start).collect()
    }

    fn ratio(&self, value: Value) -> Option<Ratio> {
        let node = self.graph.node(value);
        let Op::Binary(Binary::Div) = node.op else { return None };
        let is_sum = |v: Value| matches!(self.graph.node(v).op, Op::SynapseSum { sums: 2, .. });
        let (first, below) = self.without(node.inputs[1], &is_sum)?;
        let (second, rest) = self.without(node.inputs[0], &is_sum)?;
        let sums = self.graph.node(first);
        let Op::SynapseSum { activation, axis, .. } = sums.op else { return None };
        let x = sums.inputs[0];
        // There must be one sum for each neuron, and sums that already start from a value are not taken.
        if sums.outs[0] != node.outs[0] || sums.inputs.len() != 7 {
            return None;
        }
        let both = first.node == second.node && first.slot != second.slot && self.uses[first.node as usize] == [1, 1];
        // If another node reads the numerator or the denominator, the sums themselves are needed.
        let alone = |side: Value| is_sum(side) || self.uses[side.node as usize] == [1];
        if !both || !node.inputs.iter().all(|v| alone(*v)) || self.graph.ty(x) != &node.outs[0] || below.is_empty() {
            return None;
        }
        // One of the other terms of the numerator must be a multiple of x.
        let is_multiple = |v: Value| {
            matches!(self.graph.node(v).op, Op::Binary(Binary::Mul)) && self.graph.node(v).inputs.contains(&x)
        };
        let (at, (product, mut above)) =
            rest.iter().enumerate().find_map(|(i, v)| Some((i, self.without(*v, &is_multiple)?)))?;
        above.extend(rest.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, v)| *v));
        let [a, b] = self.graph.node(product).inputs[..] else { return None };
        let factor = if a == x { b } else { a };
        // p, q and r must have one number for each neuron; if q or r is a sum of terms, it is enough that one of them
        // has.
        let shape = &node.outs[0].shape;
        let own = |terms: &[Value]| terms.iter().any(|v| has_axis(&self.graph.ty(*v).shape, shape, axis));
        (own(&[factor]) && own(&above) && own(&below)).then_some(Ratio {
            activation,
            axis,
            first,
            factor,
            above,
            below,
        })
    }

    /// Splits a sum into the term for which `is` holds and the other terms. No other node may read the sums in between.
    fn without(&self, sum: Value, is: &dyn Fn(Value) -> bool) -> Option<(Value, Vec<Value>)> {
        // Each value on the way, with the value that it is added to and the position of that sum in this list.
        let mut seen: Vec<(Value, Option<(Value, usize)>)> = Vec::new();
        let mut stack = vec![(sum, None)];
        while let Some(one) = stack.pop() {
            let (value, _) = one;
            seen.push(one);
            let at = seen.len() - 1;
            if is(value) {
                let mut others = vec![];
                let mut up = seen[at].1;
                while let Some((other, parent)) = up {
                    others.push(other);
                    up = seen[parent].1;
                }
                return Some((value, others));
            }
            let node = self.graph.node(value);
            if seen.len() > MOST_TERMS || !matches!(node.op, Op::Binary(Binary::Add)) {
                continue;
            }
            let [a, b] = node.inputs[..] else { continue };
            // The first operand is looked at first.
            for (one, other) in [(b, a), (a, b)] {
                if is(one) || self.uses[one.node as usize] == [1] {
                    stack.push((one, Some((other, at))));
                }
            }
        }
        None
    }
}

/// Whether a shape that stretches to `full` has the size of its axis.
fn has_axis(shape: &Shape, full: &Shape, axis: usize) -> bool {
    (axis + shape.rank()).checked_sub(full.rank()).is_some_and(|a| shape[a] == full[axis])
}
