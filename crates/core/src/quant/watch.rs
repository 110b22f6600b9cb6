//! What layers multiply with: the mean square of each input over samples, by which errors of weights count.

use super::Layers;
use crate::error::Result;
use crate::graph::{Graph, Rebuild, Value};
use crate::op::{Op, Reduction, Scan, Unary};
use std::collections::HashMap;

/// What the outputs of [`Layers::watched`] are called; the layer's number follows.
pub const WATCHED: &str = "mean square into layer ";

impl Layers<'_> {
    /// The network with one more output for each layer: the mean squares of what its matrix is multiplied with, one for
    /// each input of the layer, over all rows and steps. Its name is [`WATCHED`] and the layer's number.
    pub fn watched(&self) -> Result<Graph> {
        let matrices = self.list().iter().enumerate().map(|(number, layer)| (layer.value, number)).collect();
        let mut r = self.graph().rebuild();
        let means = copy(&mut r, &matrices)?;
        let mut graph = r.finish()?;
        for (number, mean) in means {
            let rank = graph.ty(mean).shape.rank();
            let axes = (0..rank - 1).collect();
            let op = Op::Reduce { kind: Reduction::Mean, axes, keep: false };
            let mean = graph.push(op, vec![mean], format!("watched.{number}"))?;
            graph.push_output(format!("{WATCHED}{number}"), mean)?;
        }
        Ok(graph)
    }
}

/// Copies all nodes of a graph, and adds the mean squares of what these matrices are multiplied with; of a matrix that several
/// products share, the first one's. A loop gives them step by step.
fn copy(r: &mut Rebuild<'_>, matrices: &HashMap<Value, usize>) -> Result<Vec<(usize, Value)>> {
    let mut means: Vec<(usize, Value)> = vec![];
    for (id, node) in (0u32..).zip(r.old.nodes()) {
        match &node.op {
            Op::Scan(scan) => {
                let fixed = scan.body.inputs().zip(&node.inputs).skip(scan.states + scan.sequences);
                let inside = fixed.filter_map(|((_, v), outer)| Some((v, *matrices.get(outer)?))).collect();
                let mut body = scan.body.rebuild();
                let found = copy(&mut body, &inside)?;
                let mut body = body.finish()?;
                for (number, mean) in &found {
                    body.push_output(format!("{WATCHED}{number}"), *mean)?;
                }
                let before = node.outs.len() as u16;
                let inputs = r.all(&node.inputs)?;
                let scan = Scan { body: body.into(), ..(**scan).clone() };
                let new = r.new.push(Op::Scan(Box::new(scan)), inputs, node.name.clone())?;
                for slot in 0..before {
                    r.set(Value { node: id, slot }, Value { slot, ..new });
                }
                let more = (before..).zip(found).map(|(slot, (number, _))| (number, Value { slot, ..new }));
                means.extend(more.filter(|(number, _)| means.iter().all(|(n, _)| n != number)).collect::<Vec<_>>());
            }
            op => {
                r.copy(id)?;
                let matrix = node.inputs.get(1).and_then(|v| matrices.get(v));
                if let (Op::MatMul { .. }, Some(number)) = (op, matrix)
                    && means.iter().all(|(n, _)| n != number)
                {
                    let x = r.get(node.inputs[0])?;
                    let squares = r.new.push(Op::Unary(Unary::Square), vec![x], format!("{}.squares", node.name))?;
                    // Axes stay, so that a loop can put that of its steps before or behind the rows.
                    let axes = (0..r.new.ty(x).shape.rank() - 1).collect();
                    let op = Op::Reduce { kind: Reduction::Mean, axes, keep: true };
                    means.push((*number, r.new.push(op, vec![squares], format!("{}.mean", node.name))?));
                }
            }
        }
    }
    Ok(means)
}
