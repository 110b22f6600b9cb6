//! Sums over synapses whose numbers are values of the run, and the gradients of sums: the wiring alone is known before it.

use super::lower::{Label, Lower};
use super::synapse::{check_ends, function, grids, known_lists};
use crate::error::{Error, Result};
use crate::graph::Value;
use crate::op::{Op, SynapseResult};
use crate::plan::Kernel;
use crate::plan::kernel::{self, BatchAxis};
use schwann_kernels::synapse::Wiring;
use schwann_kernels::tape::{Call, Ref, Wired, WiredGradient};
use std::sync::Arc;

pub(super) fn lower(l: &mut Lower<'_>, id: u32) -> Result<()> {
    let node = &l.graph.nodes()[id as usize];
    let x = l.sized(node.inputs[0])?;
    let (activation, axis, of, gradient) = match node.op {
        Op::SynapseSum { activation, axis, sums, segments } => {
            (activation, axis, SynapseResult::Sums { sums, segments }, false)
        }
        Op::SynapseRatio { activation, axis, times } => (activation, axis, SynapseResult::Ratio { times }, false),
        Op::SynapseGradient { activation, axis, of } => (activation, axis, of, true),
        _ => return Err(Error::Internal(format!("`{}` is no sum over synapses", node.name))),
    };
    let fail = |problem: &str| Error::Value { node: node.name.clone(), problem: problem.into() };
    let sums = of.sums();
    let (sources, ratio) = (x.shape[axis], if let SynapseResult::Ratio { times } = of { Some(times) } else { None });
    let segments = if let SynapseResult::Sums { segments, .. } = of { segments } else { sources };
    let lists = known_lists(l, node, 2)?;
    check_ends(node, &lists, sources, segments)?;
    let (src, dest) = (lists[0].tensor.values()?, lists[1].tensor.values()?);
    let wiring = Wiring::new(l.target.machine(), function(activation), sources, segments, src, dest, sums);
    let wiring = Arc::new(wiring.map_err(|problem| fail(&problem))?);
    // All other axes are rows; rows after the axis fill the lanes.
    let batch_last = axis + 1 < x.shape.len();
    let rows = if batch_last { x.shape[1] } else { x.shape[..axis].iter().product() };
    let mut wide = x.clone();
    wide.shape[axis] = segments;
    let (tables, others) = node.inputs.split_at(5 + sums);
    let (terms, gradients) = others.split_at(if gradient { others.len() - node_results(of) } else { others.len() });
    let src = l.read(node.inputs[0])?;
    let numbers = tables[3..].iter().map(|v| l.read(*v)).collect::<Result<Vec<Ref>>>()?;
    let terms = grids(l, terms, &wide, axis)?;
    let gradients = gradients.iter().map(|v| l.read(*v)).collect::<Result<Vec<Ref>>>()?;
    let out = |slot: usize| Value { node: id, slot: slot as u16 };
    let mut outs = (0..node.outs.len()).map(|slot| l.write(out(slot))).collect::<Result<Vec<Ref>>>()?;
    if !gradient && (rows == 0 || segments == 0) {
        return Ok(());
    }
    let cost = l.graph.node_cost(node, l.bindings)?;
    let bytes = match gradient {
        true => wiring.gradient_scratch_bytes(ratio.unwrap_or(0)),
        false => wiring.scratch_bytes().and_then(|bytes| bytes.checked_mul(l.target.threads)),
    };
    let scratch = l.scratch(bytes.ok_or_else(|| fail("its working memory does not fit the address space"))?);
    let kernel = Kernel::WiredSynapses(kernel::WiredSynapses {
        rows,
        count: lists[0].tensor.len(),
        sources,
        sums,
        destinations: segments,
        activation,
        batch: if batch_last { BatchAxis::Last } else { BatchAxis::First },
        ratios: ratio.unwrap_or(0),
        gradient,
    });
    let call = match gradient {
        true => {
            let of_terms = outs.split_off(3 + sums);
            let lists = outs.split_off(1);
            let dx = outs[0];
            Call::WiredGradient(Box::new(WiredGradient {
                wiring,
                numbers,
                batch_last,
                rows,
                src,
                ratio,
                terms,
                gradients,
                dx,
                lists,
                of_terms,
                scratch,
            }))
        }
        false => Call::Wired(Box::new(Wired { wiring, numbers, batch_last, rows, src, ratio, terms, outs, scratch })),
    };
    l.call(out(0), call, Label { kernel, cost, in_place: false, looped: None })
}

/// How many results are differentiated.
fn node_results(of: SynapseResult) -> usize {
    if let SynapseResult::Sums { sums, .. } = of { sums } else { 1 }
}
