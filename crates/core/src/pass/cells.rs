//! Finds the inner operations of recurrent networks: gated cells, and steps that a solver unfolds.
//!
//! A product whose columns are three heads that only a gate reads is one `GatedCell`. A ratio of sums over synapses
//! that is applied repeatedly to its own result, with the same synapses and terms, is one `SynapseRatio` with `times`
//! above 1. A backend without a kernel for cells can expand them: [`expand`] turns a cell back into a product and a
//! program.

use super::PassOptions;
use super::dead::dead_code;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Node, Value};
use crate::op::{Binary, Map, MapInstr, Op, Unary};
use crate::shape::Dim;
use std::collections::{HashMap, HashSet};

/// Finds gated cells: by now products of one input are merged, and elementwise work is fused.
pub(super) fn gated_cells(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    if !options.fuse {
        return Ok(graph.clone());
    }
    let uses = graph.uses();
    let cells: HashMap<u32, Cell> =
        (0u32..).zip(graph.nodes()).filter_map(|(id, node)| Some((id, Cell::of(graph, &uses, node)?))).collect();
    if cells.is_empty() {
        return Ok(graph.clone());
    }
    let mut r = graph.rebuild();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let Some(cell) = cells.get(&id) else {
            r.copy(id)?;
            continue;
        };
        let inputs = r.all(&cell.inputs)?;
        let new = r.new.push(cell.op.clone(), inputs, node.name.clone())?;
        r.set_all(id, new);
    }
    // Removes the products and heads that the cells replaced.
    dead_code(&r.finish()?, options)
}

/// A cell that has been found: its operation, with x, the weights and the bias.
struct Cell {
    op: Op,
    inputs: Vec<Value>,
}

impl Cell {
    /// The cell whose gate a node is.
    fn of(graph: &Graph, uses: &[Vec<u32>], node: &Node) -> Option<Cell> {
        let Op::Map { map, dtype: DType::F32, also } = &node.op else { return None };
        let [t, a, b] = map.gate().filter(|_| node.inputs.len() == 3 && also.is_empty())?;
        let read_once = |v: Value| uses[v.node as usize] == [1];
        // The heads: three slices of one product, along one axis, which no other node reads.
        let mut heads = [0; 3];
        let mut product = None;
        for (start, input) in heads.iter_mut().zip([a, b, t]) {
            let head = node.inputs[input];
            let slice = graph.node(head);
            let Op::Slice { axis, start: from, .. } = &slice.op else { return None };
            *start = from.as_fixed()?;
            let part = (slice.inputs[0], *axis);
            let same = *product.get_or_insert(part) == part;
            (same && read_once(head) && graph.ty(head) == &node.outs[0]).then_some(())?;
        }
        let (product, axis) = product.filter(|(v, _)| uses[v.node as usize] == [3])?;
        let multiplied = graph.node(product);
        let (transposed, bias) = match &multiplied.op {
            Op::MatMul { transpose_a, transpose_b } => ([*transpose_a, *transpose_b], None),
            Op::MatMulMap { transpose_a, transpose_b, map, dtype: DType::F32 } => {
                ([*transpose_a, *transpose_b], Some(added(map, multiplied)?))
            }
            _ => return None,
        };
        // Batch-last, the weights are the left-hand side and heads are rows of the product.
        let (batch_last, by_column, [x, w]) = match (axis, transposed) {
            (1, [false, transpose_b]) => (false, transpose_b, [0, 1]),
            (0, [transpose_a, false]) => (true, !transpose_a, [1, 0]),
            _ => return None,
        };
        let op = Op::GatedCell { batch_last, by_column, heads };
        let inputs: Vec<Value> = [x, w].map(|i| multiplied.inputs[i]).into_iter().chain(bias).collect();
        // If the operation's type rule refuses it (other types, more axes), it is no cell.
        let types: Vec<_> = inputs.iter().map(|v| graph.ty(*v)).collect();
        let fits = op.infer(&types).is_ok_and(|outs| outs == node.outs);
        fits.then_some(Cell { op, inputs })
    }
}

/// What a program adds to a product, if that is all it does.
fn added(map: &Map, product: &Node) -> Option<Value> {
    match (&map.code[..], &product.inputs[..]) {
        ([MapInstr::Input(x), MapInstr::Input(y), MapInstr::Binary(Binary::Add, p, q)], &[_, _, bias])
            if (x.min(y), x.max(y)) == (&0, &1) && p != q =>
        {
            Some(bias)
        }
        _ => None,
    }
}

/// Adds to `graph` what a gated cell computes from `inputs`, up to its heads a, b and t. With `fused`, the addition of
/// the bias is part of the product.
pub(crate) fn heads(graph: &mut Graph, node: &Node, inputs: &[Value], fused: bool) -> Result<[Value; 3]> {
    let Op::GatedCell { batch_last, by_column, heads } = node.op else {
        let problem = format!("{} is no gated cell", node.op.name());
        return Err(crate::error::Error::Pass { pass: "", node: node.name.clone(), problem });
    };
    let (transpose_a, transpose_b, pair) = match batch_last {
        false => (false, by_column, [inputs[0], inputs[1]]),
        true => (!by_column, false, [inputs[1], inputs[0]]),
    };
    let name = |what: &str| format!("{}.{what}", node.name);
    let product = match (inputs.get(2), fused) {
        (None, _) => graph.push(Op::MatMul { transpose_a, transpose_b }, pair.to_vec(), name("heads"))?,
        (Some(bias), true) => {
            let code = vec![MapInstr::Input(0), MapInstr::Input(1), MapInstr::Binary(Binary::Add, 0, 1)];
            let op = Op::MatMulMap { transpose_a, transpose_b, map: Map { code }, dtype: DType::F32 };
            graph.push(op, vec![pair[0], pair[1], *bias], name("heads"))?
        }
        (Some(bias), false) => {
            let product = graph.push(Op::MatMul { transpose_a, transpose_b }, pair.to_vec(), name("product"))?;
            graph.push(Op::Binary(Binary::Add), vec![product, *bias], name("heads"))?
        }
    };
    let axis = usize::from(!batch_last);
    let units = node.outs[0].shape[axis].as_fixed().unwrap_or(0);
    let mut parts = [product; 3];
    for ((part, start), what) in parts.iter_mut().zip(heads).zip(["from", "to", "time"]) {
        let slice = Op::Slice { axis, start: Dim::fixed(start), end: Dim::fixed(start + units) };
        *part = graph.push(slice, vec![product], name(what))?;
    }
    Ok(parts)
}

/// Adds to `graph` a gated cell as a product, its heads, and the gate as one program.
pub(crate) fn expand(graph: &mut Graph, node: &Node, inputs: &[Value]) -> Result<Value> {
    let [a, b, t] = heads(graph, node, inputs, true)?;
    let code = vec![
        MapInstr::Input(0),
        MapInstr::Unary(Unary::Tanh, 0),
        MapInstr::Input(1),
        MapInstr::Unary(Unary::Tanh, 2),
        MapInstr::Input(2),
        MapInstr::Unary(Unary::Sigmoid, 4),
        MapInstr::Binary(Binary::Sub, 3, 1),
        MapInstr::Binary(Binary::Mul, 5, 6),
        MapInstr::Binary(Binary::Add, 1, 7),
    ];
    graph.push(Op::map(Map { code }, DType::F32), vec![a, b, t], node.name.clone())
}

/// Joins ratios of sums over synapses that only the next one reads, all of the same synapses and terms.
pub(super) fn unfoldings(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    if !options.fuse {
        return Ok(graph.clone());
    }
    let uses = graph.uses();
    // For the last ratio of each chain: what the first one reads, and how many ratios there are.
    let mut rows: HashMap<u32, (Value, usize)> = HashMap::new();
    let mut joined: HashSet<u32> = HashSet::new();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let Op::SynapseRatio { activation, axis, times } = node.op else { continue };
        let before = node.inputs[0];
        let one = graph.node(before);
        let (mut first, mut all) = (before, times);
        // The next ratio must be the only use; being an output counts as a use too.
        if let Op::SynapseRatio { activation: its, axis: along, times: earlier } = one.op
            && (its, along) == (activation, axis)
            && one.inputs[1..] == node.inputs[1..]
            && uses[before.node as usize] == [1]
        {
            let (of, so_far) = rows.remove(&before.node).unwrap_or((one.inputs[0], earlier));
            (first, all) = (of, so_far.saturating_add(times));
            joined.insert(before.node);
        }
        rows.insert(id, (first, all));
    }
    if joined.is_empty() {
        return Ok(graph.clone());
    }
    let mut r = graph.rebuild();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        match (&node.op, rows.get(&id)) {
            _ if joined.contains(&id) => {}
            (Op::SynapseRatio { activation, axis, .. }, Some(&(first, times))) => {
                let inputs = std::iter::once(&first).chain(&node.inputs[1..]);
                let inputs = inputs.map(|v| r.get(*v)).collect::<Result<_>>()?;
                let op = Op::SynapseRatio { activation: *activation, axis: *axis, times };
                let new = r.new.push(op, inputs, node.name.clone())?;
                r.set_all(id, new);
            }
            _ => {
                r.copy(id)?;
            }
        }
    }
    r.finish()
}
