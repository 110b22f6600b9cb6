//! Computes folded weights again when the weights that they were made of change.

use super::evaluate::{evaluate, evaluate_later};
use crate::error::{Error, Result};
use crate::graph::{Prelude, Value};
use crate::op::Op;
use crate::shape::Bindings;
use crate::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};

/// The new data, by name, of all weights of a compiled graph that depend on the `changed` ones. `weights` has the
/// current data of all weights that may change. The result has the same bits as compiling with these weights.
pub(crate) fn again(
    prelude: &Prelude,
    weights: &BTreeMap<String, Tensor>,
    changed: &BTreeSet<&str>,
) -> Result<Vec<(String, Tensor)>> {
    let nodes = prelude.graph.nodes();
    let mut dirty: Vec<bool> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let own = matches!(&node.op, Op::Weight { name, .. } if changed.contains(name.as_str()));
        dirty.push(own || node.inputs.iter().any(|v| dirty[v.node as usize]));
    }
    let is_dirty = |v: &Value| dirty[v.node as usize];
    let made: Vec<_> = prelude.graph.outputs().iter().filter(|o| is_dirty(&o.value)).collect();
    let limits: Vec<_> = prelude.limits.iter().filter(|(_, values)| values.iter().any(is_dirty)).collect();
    // How many times each value will still be read: data is dropped after its last read, as in folding.
    let mut left = vec![0usize; nodes.len()];
    made.iter().map(|o| &o.value).chain(limits.iter().flat_map(|(_, values)| values)).for_each(|v| {
        left[v.node as usize] += 1;
    });
    for (id, node) in nodes.iter().enumerate().rev() {
        if left[id] > 0 {
            node.inputs.iter().for_each(|v| left[v.node as usize] += 1);
        }
    }
    let results: BTreeSet<u32> = made.iter().map(|o| o.value.node).collect();
    let mut data: Vec<Option<Tensor>> = vec![None; nodes.len()];
    for (id, node) in nodes.iter().enumerate() {
        if left[id] == 0 {
            continue;
        }
        let missing = |what: &str| Error::Internal(format!("`{}`: {what} has no data", node.name));
        data[id] = Some(match &node.op {
            Op::Weight { name, .. } => weights.get(name).ok_or_else(|| missing(name))?.clone(),
            Op::Const(tensor) => tensor.clone(),
            _ => {
                let of = |v: &Value| data[v.node as usize].as_ref().ok_or_else(|| missing("an operand"));
                let inputs = node.inputs.iter().map(of).collect::<Result<Vec<_>>>()?;
                let shape = node.outs[0].shape.eval(&Bindings::new())?;
                let once = left[id] == 1 && results.contains(&(id as u32));
                if once { evaluate_later(node, &inputs, &shape)? } else { evaluate(node, &inputs, &shape)? }
            }
        });
        for v in &node.inputs {
            let left = &mut left[v.node as usize];
            *left -= 1;
            if *left == 0 {
                data[v.node as usize] = None;
            }
        }
    }
    let found = |v: Value| data[v.node as usize].as_ref().ok_or_else(|| Error::Internal(format!("no data for {v}")));
    for (limit, values) in limits {
        let mut most = limit.fixed.0;
        for ((_, factor), value) in limit.parts.iter().zip(values) {
            most += largest(found(*value)?)? * factor.0;
        }
        if !most.is_finite() {
            let names: Vec<&str> = limit.parts.iter().map(|(name, _)| name.as_str()).collect();
            let problem = format!(
                "`{}` were added up ahead, for which they have to be so small that the sum is finite; these come to {most}. \
                 A program for such weights has to be compiled with them",
                names.join("`, `")
            );
            return Err(Error::Value { node: limit.node.clone(), problem });
        }
    }
    made.into_iter().map(|o| Ok((o.name.clone(), found(o.value)?.clone()))).collect()
}

/// The largest absolute value of a tensor of `f32`; infinity where it holds one, NaN, or no `f32`.
pub(super) fn largest(data: &Tensor) -> Result<f32> {
    let data = data.at_hand()?;
    let Ok(values) = data.values::<f32>() else { return Ok(f32::INFINITY) };
    Ok(values.iter().fold(0.0f32, |most, v| if v.is_nan() { f32::INFINITY } else { most.max(v.abs()) }))
}
