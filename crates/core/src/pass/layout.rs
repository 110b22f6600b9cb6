//! Layout: transposes move into the matrix products that read them, which can take either order for free.

use super::{PassOptions, rewrite};
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::Op;

pub(super) fn layout(graph: &Graph, _: &PassOptions) -> Result<Graph> {
    rewrite(graph, &[("transposed operand", &transposed_operand)])
}

/// matmul(transpose(a), b) → matmul(a, b) with the flag inverted, where the transpose swaps only the last two axes.
fn transposed_operand(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value);
    let Op::MatMul { transpose_a, transpose_b } = node.op else { return Ok(None) };
    let swapped = |v: Value| match &graph.node(v).op {
        Op::Transpose { perm } => {
            let n = perm.len();
            let swaps = n >= 2
                && perm[n - 1] == n - 2
                && perm[n - 2] == n - 1
                && perm[..n - 2].iter().enumerate().all(|(i, p)| i == *p);
            swaps.then(|| graph.node(v).inputs[0])
        }
        _ => None,
    };
    let (a, b) = (swapped(node.inputs[0]), swapped(node.inputs[1]));
    if a.is_none() && b.is_none() {
        return Ok(None);
    }
    let inputs = vec![a.unwrap_or(node.inputs[0]), b.unwrap_or(node.inputs[1])];
    let op = Op::MatMul { transpose_a: transpose_a ^ a.is_some(), transpose_b: transpose_b ^ b.is_some() };
    let name = node.name.clone();
    graph.push(op, inputs, name).map(Some)
}
