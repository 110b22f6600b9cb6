//! Leaving out what nobody reads, and doing once what is written twice.

use super::PassOptions;
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::Op;
use std::collections::HashMap;

/// Drops nodes that no result depends on. Inputs stay: they are the graph's interface.
pub(super) fn dead_code(graph: &Graph, _: &PassOptions) -> Result<Graph> {
    let nodes = graph.nodes();
    let mut live = vec![false; nodes.len()];
    let mut stack: Vec<u32> = graph.outputs().iter().map(|o| o.value.node).collect();
    while let Some(id) = stack.pop() {
        if !std::mem::replace(&mut live[id as usize], true) {
            stack.extend(nodes[id as usize].inputs.iter().map(|v| v.node));
        }
    }
    let mut r = graph.rebuild();
    for id in 0..nodes.len() as u32 {
        if live[id as usize] || matches!(nodes[id as usize].op, Op::Input { .. }) {
            r.copy(id)?;
        }
    }
    r.finish()
}

/// Merges nodes with the same operation and inputs; the first one's name stays.
pub(super) fn common_subexpressions(graph: &Graph, _: &PassOptions) -> Result<Graph> {
    let mut r = graph.rebuild();
    #[expect(
        clippy::mutable_key_type,
        reason = "a tensor that is yet to be made is known by its address, not by its data"
    )]
    let mut seen: HashMap<(Op, Vec<Value>), Value> = HashMap::new();
    for (id, node) in graph.nodes().iter().enumerate() {
        let id = id as u32;
        let mut inputs = r.all(&node.inputs)?;
        if let Op::Binary(b) = node.op
            && b.commutes()
        {
            inputs.sort();
        }
        let key = (node.op.clone(), inputs);
        if let Some(&first) = seen.get(&key) {
            r.set_all(id, first);
            continue;
        }
        let new = r.copy(id)?;
        if !matches!(node.op, Op::Input { .. }) {
            seen.insert(key, new);
        }
    }
    r.finish()
}
