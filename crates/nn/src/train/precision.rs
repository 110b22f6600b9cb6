//! Products in half precision: what PyTorch calls autocast.

use crate::Result;
use schwann_core::op::Scan;
use schwann_core::{DType, Graph, Op, Value};
use serde::{Deserialize, Serialize};

/// What matrix products are computed in. Weights, sums, functions and the optimizer are always `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Precision {
    /// In `f32`.
    #[default]
    F32,
    /// Operands and results are rounded to bf16, and sums within a product are `f32`: as PyTorch's autocast.
    Bf16,
}

/// The same graph with its products in bf16, in loops too.
pub(crate) fn in_bf16(graph: &Graph) -> Result<Graph> {
    let mut new = Graph::default();
    let mut moved: Vec<u32> = vec![];
    for node in graph.nodes() {
        let inputs: Vec<Value> =
            node.inputs.iter().map(|v| Value { node: moved[v.node as usize], slot: v.slot }).collect();
        let product = matches!(node.op, Op::MatMul { .. }) && node.outs[0].dtype == DType::F32;
        let op = match &node.op {
            Op::Scan(scan) => {
                let body = in_bf16(&scan.body)?;
                Op::Scan(Box::new(Scan { body: body.into(), ..(**scan).clone() }))
            }
            op => op.clone(),
        };
        let value = if product {
            let mut halves = vec![];
            for input in inputs {
                let name = format!("{}.half", new.node(input).name);
                halves.push(new.push(Op::Cast { dtype: DType::Bf16 }, vec![input], name)?);
            }
            let half = new.push(op, halves, node.name.clone())?;
            new.push(Op::Cast { dtype: DType::F32 }, vec![half], format!("{}.wide", node.name))?
        } else {
            new.push(op, inputs, node.name.clone())?
        };
        moved.push(value.node);
    }
    for (name, data) in graph.weights() {
        new.set_weight(name, data.clone())?;
    }
    for output in graph.outputs() {
        new.push_output(&output.name, Value { node: moved[output.value.node as usize], slot: output.value.slot })?;
    }
    for state in graph.states() {
        new.push_state(&state.input, &state.output)?;
    }
    Ok(new)
}
