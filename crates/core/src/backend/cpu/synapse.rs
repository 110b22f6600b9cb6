//! Sums over synapses: the tables are packed ahead, so they must be known by now.

use super::lower::{Label, Lower};
use super::packs::Wiring;
use crate::error::{Error, Result};
use crate::graph::Value;
use crate::op::{Activation, Op};
use schwann_kernels::synapse::Activation as Kernel;
use schwann_kernels::tape::{Call, Ref};

pub(super) fn lower(l: &mut Lower<'_>, id: u32) -> Result<()> {
    let node = &l.graph.nodes()[id as usize];
    let Op::SynapseSum { activation, axis, sums, segments } = node.op else {
        return Err(Error::Internal(format!("`{}` is no sum over synapses", node.name)));
    };
    let fail = |problem: String| Error::Value { node: node.name.clone(), problem };
    let mut lists = Vec::with_capacity(node.inputs.len() - 1);
    for (i, &v) in node.inputs.iter().enumerate().skip(1) {
        let data = l.data(v)?;
        lists.push(data.ok_or_else(|| fail(format!("input {i} must be a weight or a literal, known before the run")))?);
    }
    let x = l.sized(node.inputs[0])?;
    let sources = x.shape[axis];
    // Rows are what is left beside the axis: they are lanes where they lie inside it.
    let columns = axis + 1 < x.shape.len();
    let rows = if columns { x.shape[1] } else { x.shape[..axis].iter().product() };
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
    let synapses = l.target.packs.synapses(l.target.isa, Wiring { activation, sources, segments, lists })?;
    l.count_packed(std::sync::Arc::as_ptr(&synapses).addr(), synapses.bytes());
    let src = l.read(node.inputs[0])?;
    let outs = (0..sums).map(|k| l.write(out(k))).collect::<Result<Vec<Ref>>>()?;
    if rows == 0 || segments == 0 {
        return Ok(());
    }
    let cost = l.graph.node_cost(node, l.bindings)?;
    let how = match columns {
        true => "lanes are rows".to_owned(),
        false => {
            let (rounds, gathered) = synapses.rounds();
            format!("lanes are destinations, {gathered} of {rounds} rounds gathered")
        }
    };
    let kernel = format!("{count} synapses, {sources} to {sums} × {segments}, {how}");
    let call = Call::SynapseSum { synapses, columns, rows, src, outs };
    l.call(out(0), call, Label { kernel, cost, in_place: false, looped: None })
}
