//! Sums over synapses: the tables are packed before the run, so their data must be known.

use super::known::Data;
use super::lower::{Label, Lower, Sized};
use super::packs::Circuit;
use super::wired;
use crate::error::{Error, Result};
use crate::graph::{Node, Value};
use crate::op::{Activation, Op};
use crate::plan::Kernel;
use crate::plan::kernel::{self, BatchAxis, Rounds};
use schwann_kernels::synapse::Activation as Function;
use schwann_kernels::tape::{Call, Ref};

pub(super) fn lower(l: &mut Lower<'_>, id: u32) -> Result<()> {
    let node = &l.graph.nodes()[id as usize];
    let x = l.sized(node.inputs[0])?;
    // How many times a ratio is applied; 0 where the sums themselves are the result.
    let (activation, axis, sums, segments, ratios) = match node.op {
        Op::SynapseSum { activation, axis, sums, segments } => (activation, axis, sums, segments, 0),
        Op::SynapseRatio { activation, axis, times } => (activation, axis, 2, x.shape[axis], times),
        _ => return Err(Error::Internal(format!("`{}` is no sum over synapses", node.name))),
    };
    let (tables, terms) = node.inputs[1..].split_at(4 + sums);
    let fail = |problem: String| Error::Value { node: node.name.clone(), problem };
    if tables[2..].iter().any(|v| !l.known.contains(*v)) {
        return wired::lower(l, id);
    }
    let lists = known_lists(l, node, tables.len())?;
    let sources = x.shape[axis];
    // All other axes are rows; rows after the axis fill the lanes.
    let batch_last = axis + 1 < x.shape.len();
    let rows = if batch_last { x.shape[1] } else { x.shape[..axis].iter().product() };
    let out = |slot: usize| Value { node: id, slot: slot as u16 };
    check_ends(node, &lists, sources, segments)?;
    let function = function(activation);
    let count = lists[0].tensor.len();
    let circuit = Circuit { activation: function, sources, segments };
    let synapses = l.target.packs.synapses(l.target.machine(), circuit, &lists);
    let synapses = synapses.map_err(|e| match e {
        Error::Internal(problem) => fail(problem),
        other => other,
    })?;
    l.count_packed(std::sync::Arc::as_ptr(&synapses).addr(), synapses.bytes());
    let src = l.read(node.inputs[0])?;
    let result = l.sized(out(0))?;
    let grids = grids(l, terms, &result, axis)?;
    let outs = (0..node.outs.len()).map(|k| l.write(out(k))).collect::<Result<Vec<Ref>>>()?;
    if rows == 0 || segments == 0 {
        return Ok(());
    }
    let cost = l.graph.node_cost(node, l.bindings)?;
    let scratch = synapses
        .scratch_bytes(batch_last, rows, ratios.max(1))
        .ok_or_else(|| fail("its working memory does not fit the address space".into()))?;
    let scratch = l.scratch(scratch);
    let (all, gathered) = synapses.rounds();
    let kernel = Kernel::Synapses(kernel::Synapses {
        rows,
        count,
        sources,
        sums,
        destinations: segments,
        activation,
        batch: if batch_last { BatchAxis::Last } else { BatchAxis::First },
        rounds: (!batch_last).then_some(Rounds { all, gathered }),
        starts: if ratios > 0 { 0 } else { terms.len() },
        ratios,
    });
    let call = Call::SynapseSum {
        synapses,
        batch_last,
        rows,
        src,
        ratio: (ratios > 0).then_some(ratios),
        terms: grids,
        outs,
        scratch,
    };
    l.call(out(0), call, Label { kernel, cost, in_place: false, looped: None })
}

/// The first lists of a node, which must be known: sources, destinations, and numbers.
pub(super) fn known_lists(l: &Lower<'_>, node: &Node, count: usize) -> Result<Vec<Data>> {
    let mut lists = Vec::with_capacity(count);
    for (i, &v) in node.inputs.iter().enumerate().skip(1).take(count) {
        let data = l.known.data(v)?.ok_or_else(|| Error::Value {
            node: node.name.clone(),
            problem: format!("input {i} must be a weight or a literal, known before the run"),
        })?;
        lists.push(Data { tensor: data.tensor.at_hand()?, ..data });
    }
    Ok(lists)
}

/// Indices are part of the graph, so they are checked even if there are no rows.
pub(super) fn check_ends(node: &Node, lists: &[Data], sources: usize, segments: usize) -> Result<()> {
    for (what, list, end) in [("source", &lists[0], sources), ("destination", &lists[1], segments)] {
        let outside = |i: &i32| usize::try_from(*i).map_or(true, |i| i >= end);
        let list = list.tensor.values::<i32>()?;
        if let Some(at) = list.iter().position(outside) {
            let problem = format!("{what} {} (number {at}) is not in 0..{end}", list[at]);
            return Err(Error::Value { node: node.name.clone(), problem });
        }
    }
    Ok(())
}

pub(super) fn function(activation: Activation) -> Function {
    match activation {
        Activation::Identity => Function::Identity,
        Activation::Sigmoid => Function::Sigmoid,
        Activation::Tanh => Function::Tanh,
    }
}

/// Values with a number for each destination, with strides from row to row and from destination to destination.
pub(super) fn grids(l: &mut Lower<'_>, terms: &[Value], result: &Sized, axis: usize) -> Result<Vec<(Ref, [usize; 2])>> {
    let mut grids = Vec::with_capacity(terms.len());
    for &v in terms {
        let strides = l.sized(v)?.strides_in(&result.shape);
        let across = (0..strides.len()).find(|a| *a != axis).map_or(0, |a| strides[a]);
        grids.push((l.read(v)?, [across, strides[axis]]));
    }
    Ok(grids)
}
