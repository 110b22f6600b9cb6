//! Sparse synapses become one operation. Values are gathered, scaled, activated, weighted and summed by destination in
//! one pass, so that memory never holds a number for each synapse, and sums over the same activations compute these
//! once.
//!
//! The form is Σ c·act(f(gather(x, sources))) by destination, with f any nest of sums, differences, products and
//! negations with one number for each synapse. That is scale·x + shift. Scale and shift are added to the graph here as
//! operations; later passes move these out of loops and do them once.

mod finish;

pub(super) use finish::finish_synapses;

use super::PassOptions;
use super::known::{Known, everywhere};
use crate::dtype::DType;
use crate::error::Result;
use crate::grad::expand::synapse_gradient;
use crate::graph::{Graph, Value, name};
use crate::op::{Activation, Binary, Op, Unary};
use crate::shape::{Dim, Shape};
use crate::tensor::Tensor;
use std::collections::{HashMap, HashSet};

pub(super) fn fuse_synapses(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    if !options.fuse || !options.fold_weights {
        // The tables are packed before the run, so they must be known.
        return Ok(graph.clone());
    }
    everywhere(graph, &|graph, known| fuse_in(graph, known, Lists::Known))
}

/// The same where only the wiring is known, as in training: sums and their ratio then have gradients of their own.
pub(super) fn fuse_wired_synapses(graph: &Graph) -> Result<Graph> {
    everywhere(graph, &|graph, known| fuse_in(graph, known, Lists::Any))
}

/// Writes the gradients of sums over synapses out, where the backend has no such operation.
pub(super) fn gradients_apart(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    let is_gradient = |op: &Op| matches!(op, Op::SynapseGradient { .. });
    if options.synapse_gradients || !graph.nodes().iter().any(|n| is_gradient(&n.op)) {
        return Ok(graph.clone());
    }
    let mut r = graph.rebuild();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        if !is_gradient(&node.op) {
            r.copy(id)?;
            continue;
        }
        let inputs = r.all(&node.inputs)?;
        let results = synapse_gradient(&mut r.new, node, &inputs)?;
        for (slot, new) in (0u16..).zip(results) {
            r.set(Value { node: id, slot }, new);
        }
    }
    r.finish()
}

/// Which numbers of synapses are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lists {
    /// Those that are known before the run.
    Known,
    /// Any that do not differ from row to row.
    Any,
}

/// One operation on the gathered values; a list of these begins at the gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// −a
    Neg,
    /// a + v
    Add(Value),
    /// a − v
    Sub(Value),
    /// v − a
    From(Value),
    /// a · v
    Mul(Value),
}

impl Step {
    /// Its list.
    fn list(self) -> Option<Value> {
        match self {
            Step::Neg => None,
            Step::Add(v) | Step::Sub(v) | Step::From(v) | Step::Mul(v) => Some(v),
        }
    }
}

/// One sum over synapses.
struct Sum {
    /// The `SegmentSum`.
    node: u32,
    /// The factors that the activation is multiplied by.
    weights: Vec<Value>,
}

/// Sums over the same activations, and everything that they alone need.
struct Group {
    activation: Activation,
    axis: usize,
    segments: usize,
    destinations: Value,
    gather: u32,
    steps: Vec<Step>,
    sums: Vec<Sum>,
    /// Nodes between the gather and the sums.
    inner: HashSet<u32>,
    /// The value that is weighted, which identifies the group.
    active: Value,
}

fn fuse_in(graph: &Graph, known: &Known<'_>, lists: Lists) -> Result<Graph> {
    let finder = Finder { graph, known, lists, readers: graph.readers(), results: graph.results() };
    let groups = finder.groups();
    if groups.is_empty() {
        return Ok(graph.clone());
    }
    let mut dropped: HashSet<u32> = groups.iter().flat_map(|g| &g.inner).copied().collect();
    // The gather is removed too, unless another node reads it.
    let summed: HashSet<u32> = groups.iter().flat_map(|g| &g.sums).map(|s| s.node).collect();
    for group in &groups {
        let mut readers = finder.readers[group.gather as usize].iter();
        if !finder.results[group.gather as usize] && readers.all(|id| dropped.contains(id) || summed.contains(id)) {
            dropped.insert(group.gather);
        }
    }
    let first: HashMap<u32, &Group> = groups.iter().map(|g| (g.sums[0].node, g)).collect();
    let mut emitter = Emitter { steps: HashMap::new(), products: HashMap::new() };
    let mut r = graph.rebuild();
    // Tables may come after the first sum that needs them, so known values go first, which dependencies always allow.
    for (id, node) in graph.nodes().iter().enumerate() {
        if known.contains(Value { node: id as u32, slot: 0 }) || matches!(node.op, Op::Input { .. }) {
            r.copy(id as u32)?;
        }
    }
    for id in 0..graph.nodes().len() as u32 {
        if let Some(group) = first.get(&id) {
            let gather = &graph.nodes()[group.gather as usize];
            let count = graph.ty(gather.inputs[1]).shape.clone();
            let (x, sources) = (r.get(gather.inputs[0])?, r.get(gather.inputs[1])?);
            let to = r.get(group.destinations)?;
            let joint = |sums: &[Sum]| name::joint(sums.iter().map(|s| graph.nodes()[s.node as usize].name.as_str()));
            let (scale, shift) = emitter.affine(&mut r, &group.steps, &count, &joint(&group.sums))?;
            for pair in group.sums.chunks(2) {
                let name = joint(pair);
                let mut inputs = vec![x, sources, to, scale, shift];
                for sum in pair {
                    inputs.push(emitter.product(&mut r, &sum.weights, &count, &name)?);
                }
                let Group { activation, axis, segments, .. } = **group;
                let op = Op::SynapseSum { activation, axis, sums: pair.len(), segments };
                let new = r.new.push(op, inputs, name)?;
                for (slot, sum) in (0u16..).zip(pair) {
                    r.set(Value { node: sum.node, slot: 0 }, Value { slot, ..new });
                }
            }
        } else if !summed.contains(&id) && !dropped.contains(&id) && r.find(Value { node: id, slot: 0 }).is_none() {
            r.copy(id)?;
        }
    }
    r.finish()
}

struct Finder<'a> {
    graph: &'a Graph,
    known: &'a Known<'a>,
    lists: Lists,
    readers: Vec<Vec<u32>>,
    results: Vec<bool>,
}

impl Finder<'_> {
    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        #[expect(
            clippy::mutable_key_type,
            reason = "a tensor that is yet to be made is known by its address, not by its data"
        )]
        let mut places = HashMap::new();
        for id in 0..self.graph.nodes().len() as u32 {
            let Some(found) = self.sum(id) else { continue };
            let table = &self.graph.node(found.destinations).op;
            let kind = (found.active, found.activation, found.axis, found.segments, table);
            let place = *places.entry(kind).or_insert(groups.len());
            match groups.get_mut(place) {
                Some(group) => {
                    group.sums.extend(found.sums);
                    group.inner.extend(found.inner);
                }
                None => groups.push(found),
            }
        }
        groups.retain(|g| self.stands_alone(g));
        if self.lists == Lists::Any {
            // Lists must be there when the first sum is, and not be among what is replaced.
            let replaced: HashSet<u32> = groups
                .iter()
                .flat_map(|g| g.inner.iter().copied().chain([g.gather]).chain(g.sums.iter().map(|s| s.node)))
                .collect();
            groups.retain(|g| {
                let first = g.sums[0].node;
                let steps = g.steps.iter().filter_map(|step| step.list());
                let mut lists = steps.chain(g.sums.iter().flat_map(|s| s.weights.iter().copied()));
                lists.all(|v| v.node < first && !replaced.contains(&v.node))
            });
        }
        groups
    }

    /// Whether no node outside the group reads a value between the gather and the sums.
    fn stands_alone(&self, group: &Group) -> bool {
        let sums: HashSet<u32> = group.sums.iter().map(|s| s.node).collect();
        let inside = |id: &u32| group.inner.contains(id) || sums.contains(id);
        let alone = |id: &u32| !self.results[*id as usize] && self.readers[*id as usize].iter().all(inside);
        group.inner.iter().all(alone)
    }

    /// The integers of a literal, if all lie in `0..end`.
    fn indices(&self, v: Value, end: usize) -> Option<&[i32]> {
        let Op::Const(t) = &self.graph.node(v).op else { return None };
        let indices = t.values::<i32>().ok()?;
        indices.iter().all(|&i| usize::try_from(i).is_ok_and(|i| i < end)).then_some(indices)
    }

    /// A `SegmentSum` as a group of its own.
    fn sum(&self, id: u32) -> Option<Group> {
        let node = &self.graph.nodes()[id as usize];
        let Op::SegmentSum { axis, segments } = &node.op else { return None };
        let (axis, segments) = (*axis, segments.as_fixed()?);
        let (summed, destinations) = (node.inputs[0], node.inputs[1]);
        let rank = node.outs[0].shape.rank();
        if node.outs[0].dtype != DType::F32 || rank > 2 || self.known.contains(summed) {
            return None;
        }
        let count = self.indices(destinations, segments)?.len();
        let along = Along { axis, rank, count };
        // Weights first, up to an activation.
        let mut inner = HashSet::new();
        let mut weights = Vec::new();
        let mut at = summed;
        let activation = loop {
            let node = self.graph.node(at);
            match node.op {
                Op::Unary(Unary::Sigmoid) => break Some(Activation::Sigmoid),
                Op::Unary(Unary::Tanh) => break Some(Activation::Tanh),
                Op::Binary(Binary::Mul) => {
                    let Some((value, weight)) = self.with_list(at, &along) else { break None };
                    inner.insert(at.node);
                    weights.push(weight);
                    at = value;
                }
                _ => break None,
            }
        };
        let mut group = Group {
            activation: activation.unwrap_or(Activation::Identity),
            axis,
            segments,
            destinations,
            gather: 0,
            steps: Vec::new(),
            sums: vec![Sum { node: id, weights }],
            inner,
            active: at,
        };
        if activation.is_some() {
            group.inner.insert(at.node);
            at = self.graph.node(at).inputs[0];
        } else {
            // Without an activation, the weights are part of the scale.
            group.sums[0].weights.clear();
            group.inner.clear();
            (at, group.active) = (summed, summed);
        }
        self.affine(at, &along, &mut group)?;
        group.steps.reverse();
        Some(group)
    }

    /// Walks from `at` down to the gather; steps are collected backwards.
    fn affine(&self, mut at: Value, along: &Along, group: &mut Group) -> Option<()> {
        loop {
            let node = self.graph.node(at);
            if self.known.contains(at) || node.outs[0].dtype != DType::F32 {
                return None;
            }
            let step = match node.op {
                Op::Gather { axis } => {
                    let x = self.graph.ty(node.inputs[0]);
                    let size = x.shape.dims().get(axis).and_then(Dim::as_fixed)?;
                    let fits = axis == along.axis
                        && x.shape.rank() == along.rank
                        && self.graph.ty(node.inputs[1]).shape == Shape::from([along.count])
                        && self.indices(node.inputs[1], size).is_some();
                    group.gather = at.node;
                    return fits.then_some(());
                }
                Op::Unary(Unary::Neg) => (node.inputs[0], Step::Neg),
                Op::Binary(op @ (Binary::Add | Binary::Mul | Binary::Sub)) => {
                    let (value, list) = self.with_list(at, along)?;
                    let step = match op {
                        Binary::Add => Step::Add(list),
                        Binary::Mul => Step::Mul(list),
                        _ if node.inputs[0] == value => Step::Sub(list),
                        _ => Step::From(list),
                    };
                    (value, step)
                }
                _ => return None,
            };
            group.inner.insert(at.node);
            group.steps.push(step.1);
            at = step.0;
        }
    }

    /// The two operands of a node, if the second is known and has one number for each synapse, or a single one.
    fn with_list(&self, at: Value, along: &Along) -> Option<(Value, Value)> {
        let node = self.graph.node(at);
        let fits = |v: Value| {
            let ty = self.graph.ty(v);
            let taken = match self.lists {
                Lists::Known => self.known.contains(v),
                // With one axis only, values and lists would look the same.
                Lists::Any => along.rank == 2,
            };
            taken && ty.dtype == DType::F32 && along.fits(&ty.shape)
        };
        let [a, b] = [node.inputs[0], node.inputs[1]];
        // The other operand must have the full shape: a list does not stretch what it is combined with.
        let whole = |v: Value| self.graph.ty(v).shape == node.outs[0].shape && !self.known.contains(v);
        if whole(a) && fits(b) {
            Some((a, b))
        } else if whole(b) && fits(a) {
            Some((b, a))
        } else {
            None
        }
    }
}

/// Which axis of the gathered values counts the synapses.
struct Along {
    axis: usize,
    rank: usize,
    count: usize,
}

impl Along {
    /// Whether a shape, broadcast to the gathered values, has one number for each synapse, or a single one.
    fn fits(&self, shape: &Shape) -> bool {
        let Some(missing) = self.rank.checked_sub(shape.rank()) else { return false };
        shape.dims().iter().enumerate().all(|(i, d)| d.is(1) || (i + missing == self.axis && d.is(self.count)))
    }
}

/// Writes the tables, each once.
struct Emitter {
    steps: HashMap<Vec<Step>, (Value, Value)>,
    products: HashMap<Vec<Value>, Value>,
}

impl Emitter {
    /// Scale and shift of all steps together.
    fn affine(
        &mut self,
        r: &mut crate::graph::Rebuild<'_>,
        steps: &[Step],
        count: &Shape,
        name: &str,
    ) -> Result<(Value, Value)> {
        // Tables of another length come from other constants, but numbers may be shared.
        if let Some(&known) = self.steps.get(steps).filter(|(v, _)| r.new.ty(*v).shape == *count) {
            return Ok(known);
        }
        let name = format!("{name}.affine");
        let (mut scale, mut shift): (Option<Value>, Option<Value>) = (None, None);
        for step in steps {
            let list = step.list().map(|v| flat(r, v, &name)).transpose()?;
            let negated = |graph: &mut Graph, v: Option<Value>| match v {
                Some(v) => graph.push(Op::Unary(Unary::Neg), vec![v], name.clone()).map(Some),
                None => Ok(None),
            };
            let graph = &mut r.new;
            let two = |graph: &mut Graph, op, a, b| graph.push(Op::Binary(op), vec![a, b], name.clone()).map(Some);
            match (step, list) {
                (Step::Add(_), Some(v)) => {
                    shift = shift.map_or(Ok(Some(v)), |s| two(graph, Binary::Add, s, v))?;
                }
                (Step::Mul(_), Some(v)) => {
                    scale = scale.map_or(Ok(Some(v)), |s| two(graph, Binary::Mul, s, v))?;
                    shift = shift.map_or(Ok(None), |s| two(graph, Binary::Mul, s, v))?;
                }
                (Step::Sub(_), Some(v)) => {
                    shift = match shift {
                        Some(s) => two(graph, Binary::Sub, s, v)?,
                        None => negated(graph, Some(v))?,
                    };
                }
                (_, v) => {
                    // −a, and for v − a that plus v.
                    let minus_one = graph.push(Op::Const(Tensor::scalar(-1.0f32)), vec![], name.clone())?;
                    scale = scale.map_or(Ok(Some(minus_one)), |s| negated(graph, Some(s)))?;
                    shift = negated(graph, shift)?;
                    if let Some(v) = v {
                        shift = shift.map_or(Ok(Some(v)), |s| two(graph, Binary::Add, s, v))?;
                    }
                }
            }
        }
        let result = (full(r, scale, 1.0, count, &name)?, full(r, shift, 0.0, count, &name)?);
        self.steps.insert(steps.to_vec(), result);
        Ok(result)
    }

    /// The product of lists.
    fn product(
        &mut self,
        r: &mut crate::graph::Rebuild<'_>,
        lists: &[Value],
        count: &Shape,
        name: &str,
    ) -> Result<Value> {
        if let Some(&known) = self.products.get(lists).filter(|v| r.new.ty(**v).shape == *count) {
            return Ok(known);
        }
        let name = format!("{name}.weights");
        let mut product = None;
        for &list in lists {
            let list = flat(r, list, &name)?;
            product = Some(match product {
                None => list,
                Some(p) => r.new.push(Op::Binary(Binary::Mul), vec![p, list], name.clone())?,
            });
        }
        let result = full(r, product, 1.0, count, &name)?;
        self.products.insert(lists.to_vec(), result);
        Ok(result)
    }
}

/// An old list as one axis, or none if it is one number.
fn flat(r: &mut crate::graph::Rebuild<'_>, v: Value, name: &str) -> Result<Value> {
    let new = r.get(v)?;
    let shape: Vec<Dim> = r.new.ty(new).shape.dims().iter().filter(|d| !d.is(1)).cloned().collect();
    if shape.len() == r.new.ty(new).shape.rank() {
        return Ok(new);
    }
    r.new.push(Op::Reshape { shape: shape.into() }, vec![new], name)
}

/// A list of the right length: the one given, one number repeated, or `otherwise` repeated.
fn full(
    r: &mut crate::graph::Rebuild<'_>,
    list: Option<Value>,
    otherwise: f32,
    count: &Shape,
    name: &str,
) -> Result<Value> {
    if let Some(list) = list.filter(|v| r.new.ty(*v).shape == *count) {
        return Ok(list);
    }
    let repeated = |value: f32| {
        let sizes = count.as_fixed().unwrap_or_default();
        Tensor::new(&sizes, &vec![value; sizes.iter().product()])
    };
    let Some(number) = list else {
        return r.new.push(Op::Const(repeated(otherwise)?), vec![], name);
    };
    // Adds zeros instead of broadcasting, because folding always keeps a sum of this length, but not a broadcast.
    let zeros = r.new.push(Op::Const(repeated(0.0)?), vec![], name)?;
    r.new.push(Op::Binary(Binary::Add), vec![zeros, number], name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;
    use crate::pass::optimize;

    fn count(graph: &Graph, is: &dyn Fn(&Op) -> bool) -> usize {
        let inner = |op: &Op| if let Op::Scan(s) = op { count(&s.body, is) } else { 0 };
        graph.nodes().iter().map(|n| usize::from(is(&n.op)) + inner(&n.op)).sum()
    }

    fn optimized(name: &str, options: &PassOptions) -> Graph {
        let case = cases::all().into_iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no case {name}"));
        optimize(&case.graph, options).unwrap().0
    }

    #[test]
    fn all_unfoldings_of_a_cell_are_one_ratio_of_sums_taken_so_often() {
        for name in ["scan/ltc/wired-b17-u64", "scan/ltc/b2-t4-axis1", "scan/ltc/b7-t5-axis1-symbolic"] {
            let graph = optimized(name, &PassOptions::default());
            let scan = graph.nodes().iter().find_map(|n| if let Op::Scan(s) = &n.op { Some(s) } else { None }).unwrap();
            let ratios = scan.body.nodes().iter().filter_map(|n| match n.op {
                Op::SynapseRatio { times, .. } => Some(times),
                _ => None,
            });
            assert_eq!(ratios.collect::<Vec<_>>(), [6], "{name}:\n{graph}");
            let others = |op: &Op| matches!(op, Op::Gather { .. } | Op::SegmentSum { .. } | Op::SynapseSum { .. });
            assert_eq!(count(&graph, &others), 0, "{name}:\n{graph}");
        }
    }

    #[test]
    fn a_ratio_that_others_read_parts_of_or_of_other_values_stays_apart() {
        for form in 0..6 {
            let graph = optimized(&format!("synapse_ratio/near-miss-{form}"), &PassOptions::default());
            // The last has other sums among its terms, which is fine.
            let ratios = usize::from(form == 5);
            assert_eq!(count(&graph, &|op| matches!(op, Op::SynapseRatio { .. })), ratios, "form {form}:\n{graph}");
        }
    }

    #[test]
    fn what_somebody_else_reads_stays_and_a_product_needs_no_activation() {
        let is = |op: &Op| matches!(op, Op::SynapseSum { .. });
        // Form 4 gives the activation itself as a result.
        for (form, sums) in [(0, 1), (1, 1), (3, 2), (4, 0), (5, 2)] {
            let graph = optimized(&format!("synapse_sum/fused/sigmoid-axis1-form{form}"), &PassOptions::default());
            assert_eq!(count(&graph, &is), sums, "form {form}:\n{graph}");
        }
        let graph = optimized("synapse_sum/fused/sigmoid-axis0-form0", &PassOptions::default());
        assert_eq!(count(&graph, &is), 1, "{graph}");
    }

    #[test]
    fn nothing_is_fused_where_that_was_not_asked_for() {
        let changing = PassOptions { fold_weights: false, ..PassOptions::default() };
        let unfused = PassOptions { fuse: false, ..PassOptions::default() };
        for options in [changing, unfused, PassOptions::none()] {
            let graph = optimized("scan/ltc/wired-b3-u20", &options);
            assert_eq!(count(&graph, &|op| matches!(op, Op::SynapseSum { .. } | Op::SynapseRatio { .. })), 0);
        }
    }
}
