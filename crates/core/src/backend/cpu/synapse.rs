//! Sums over synapses: the tables are packed ahead, so they must be known by now. A ratio that is taken again of its own
//! result, as a solver's unfoldings are, is one call.

use super::lower::{Label, Lower};
use super::packs::Wiring;
use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::op::{Activation, Op};
use schwann_kernels::synapse::Activation as Kernel;
use schwann_kernels::tape::{Call, Ref};
use std::collections::{HashMap, HashSet};

/// Ratios that only the next one reads, all of the same synapses and terms.
#[derive(Default)]
pub(super) struct Repeats {
    /// By the last of them: what the first one reads, and how many there are.
    by_last: HashMap<u32, (Value, usize)>,
    /// All but the last.
    inner: HashSet<u32>,
}

impl Repeats {
    pub(super) fn of(graph: &Graph) -> Repeats {
        let mut found = Repeats::default();
        let uses = graph.uses();
        for (id, node) in graph.nodes().iter().enumerate() {
            if !matches!(node.op, Op::SynapseRatio { .. }) {
                continue;
            }
            let before = node.inputs[0];
            let (mut first, mut times) = (before, 1);
            let one = graph.node(before);
            // An output would count as a use, too.
            if one.op == node.op && one.inputs[1..] == node.inputs[1..] && uses[before.node as usize] == [1] {
                let (of, so_far) = found.by_last.remove(&before.node).unwrap_or((one.inputs[0], 1));
                (first, times) = (of, so_far + 1);
                found.inner.insert(before.node);
            }
            found.by_last.insert(id as u32, (first, times));
        }
        found
    }

    /// Whether a node is made with a later one.
    pub(super) fn contains(&self, node: u32) -> bool {
        self.inner.contains(&node)
    }

    /// What a ratio's first time reads, if it is a ratio.
    pub(super) fn first(&self, node: u32) -> Option<Value> {
        self.by_last.get(&node).map(|(first, _)| *first)
    }
}

pub(super) fn lower(l: &mut Lower<'_>, id: u32) -> Result<()> {
    let node = &l.graph.nodes()[id as usize];
    let (first, times) = l.repeats.by_last.get(&id).copied().unwrap_or((node.inputs[0], 1));
    let x = l.sized(first)?;
    let (activation, axis, sums, segments) = match node.op {
        Op::SynapseSum { activation, axis, sums, segments } => (activation, axis, sums, segments),
        Op::SynapseRatio { activation, axis } => (activation, axis, 2, x.shape[axis]),
        _ => return Err(Error::Internal(format!("`{}` is no sum over synapses", node.name))),
    };
    let (tables, terms) = node.inputs[1..].split_at(4 + sums);
    let fail = |problem: String| Error::Value { node: node.name.clone(), problem };
    let mut lists = Vec::with_capacity(tables.len());
    for (i, &v) in (1..).zip(tables) {
        let data = l.data(v)?;
        let data =
            data.ok_or_else(|| fail(format!("input {i} must be a weight or a literal, known before the run")))?;
        lists.push(data.at_hand()?);
    }
    let sources = x.shape[axis];
    // Rows are what is left beside the axis: they are lanes where they lie inside it.
    let batch_last = axis + 1 < x.shape.len();
    let rows = if batch_last { x.shape[1] } else { x.shape[..axis].iter().product() };
    let out = |slot: usize| Value { node: id, slot: slot as u16 };
    // Indices are the graph's, so they are checked whether or not there are rows.
    for (what, list, end) in [("source", &lists[0], sources), ("destination", &lists[1], segments)] {
        let outside = |i: &i32| usize::try_from(*i).map_or(true, |i| i >= end);
        let list = list.values::<i32>()?;
        if let Some(at) = list.iter().position(outside) {
            return Err(fail(format!("{what} {} (number {at}) is not in 0..{end}", list[at])));
        }
    }
    let activation = match activation {
        Activation::Identity => Kernel::Identity,
        Activation::Sigmoid => Kernel::Sigmoid,
        Activation::Tanh => Kernel::Tanh,
    };
    let count = lists[0].len();
    let synapses = l.target.packs.synapses(l.target.machine(), Wiring { activation, sources, segments, lists });
    let synapses = synapses.map_err(|e| match e {
        Error::Internal(problem) => fail(problem),
        other => other,
    })?;
    l.count_packed(std::sync::Arc::as_ptr(&synapses).addr(), synapses.bytes());
    let src = l.read(first)?;
    let result = l.sized(out(0))?;
    let mut grids = Vec::with_capacity(terms.len());
    for &v in terms {
        let strides = l.sized(v)?.strides_in(&result.shape);
        let across = (0..strides.len()).find(|a| *a != axis).map_or(0, |a| strides[a]);
        grids.push((l.read(v)?, [across, strides[axis]]));
    }
    let outs = (0..node.outs.len()).map(|k| l.write(out(k))).collect::<Result<Vec<Ref>>>()?;
    if rows == 0 || segments == 0 {
        return Ok(());
    }
    let cost = l.graph.node_cost(node, l.bindings)?.times(times as u64);
    let how = match batch_last {
        true => "lanes are rows".to_owned(),
        false => {
            let (rounds, gathered) = synapses.rounds();
            format!("lanes are destinations, {gathered} of {rounds} rounds gathered")
        }
    };
    let (then, ratio) = match (&node.op, times) {
        (Op::SynapseRatio { .. }, 1) => (", then their ratio".to_owned(), Some((1, None))),
        (Op::SynapseRatio { .. }, n) => {
            (format!(", then their ratio, {n} times"), Some((n, Some(l.scratch(result.bytes())))))
        }
        _ => (String::new(), None),
    };
    let kernel = format!("{count} synapses, {sources} to {sums} × {segments}, {how}{then}");
    let call = Call::SynapseSum { synapses, batch_last, rows, src, ratio, terms: grids, outs };
    l.call(out(0), call, Label { kernel, cost, in_place: false, looped: None })
}
