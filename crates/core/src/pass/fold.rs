//! Doing now what needs no input: work on constants, and (unless asked not to) on weights.

use super::PassOptions;
use crate::backend::reference::{self, HostValue, Precision};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value};
use crate::op::{Op, Type};
use crate::shape::Bindings;
use crate::tensor::Tensor;
use std::collections::HashMap;

/// Results up to this many bytes are always worth keeping.
const SMALL: usize = 4096;
/// Larger ones only if they are at most so many times what they replace: weights kept narrow may widen once, ahead of
/// every run, but a small constant stretched over a large shape is better stretched when it is read.
const GROWTH: usize = 4;
/// A folded result of up to this many elements is a literal in the graph's text, a larger one a weight.
const LITERAL: usize = 64;

/// Before anything is moved out of loops: in a body, where weights cannot be, large results are literals too.
pub(super) fn fold_early(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    fold_into(graph, options, true)
}

pub(super) fn fold(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    fold_into(graph, options, false)
}

/// Work that folding may do in all (operations, and bytes made), beside some for each byte of weights: what is beyond is
/// left for the run. Without a limit, a small file could ask for years of products of its weights, or for copies of them
/// without end.
const WORK: u64 = 1 << 28;
const WORK_PER_BYTE: u64 = 64;
/// Elements of a result that is computed at once: the reference computes in `f64`, and a large matrix in pieces.
const PIECE: usize = 1 << 16;

/// With `literals`, what comes from literals alone stays one, however large.
fn fold_into(graph: &Graph, options: &PassOptions, literals: bool) -> Result<Graph> {
    let mut r = graph.rebuild();
    let mut known: HashMap<Value, Tensor> = HashMap::new();
    let weights: usize = graph.weights().values().map(|t| t.bytes().len()).sum();
    let mut work_left = WORK.saturating_add(WORK_PER_BYTE.saturating_mul(weights as u64));
    let tables = tables(graph);
    let mut names = Names::default();
    for (id, node) in graph.nodes().iter().enumerate() {
        let new = r.copy(id as u32)?;
        match &node.op {
            Op::Const(t) => {
                known.insert(new, t.clone());
                continue;
            }
            Op::Weight { name, .. } if options.fold_weights => {
                if let Some(data) = graph.weights().get(name) {
                    known.insert(new, data.clone());
                }
                continue;
            }
            Op::Input { .. } | Op::Weight { .. } | Op::Scan(_) => continue,
            _ => {}
        }
        let inputs: Vec<Value> = r.new.node(new).inputs.clone();
        if inputs.is_empty()
            || !inputs.iter().all(|v| known.contains_key(v))
            || !worth_keeping(&r.new, &inputs, &node.outs[0])
            // Several results would need a node each.
            || node.outs.len() > 1
        {
            continue;
        }
        let out = &node.outs[0];
        let shape = out.shape.eval(&Bindings::new())?;
        let cost = graph.node_cost(node, &Bindings::new())?;
        match work_left.checked_sub(cost.flops.saturating_add(cost.bytes())) {
            Some(left) => work_left = left,
            // What packs synapses needs their tables; anything else can wait for the run.
            None if tables[id] => {
                let problem = "tables of synapses take too much work to be made ahead".into();
                return Err(Error::Value { node: node.name.clone(), problem });
            }
            None => continue,
        }
        let values: Vec<&Tensor> = inputs.iter().map(|v| &known[v]).collect();
        let tensor = evaluate(node, &values, &shape)?;
        let literal = literals && inputs.iter().all(|&v| matches!(r.new.node(v).op, Op::Const(_)));
        let folded = if literal || tensor.len() <= LITERAL {
            r.new.push(Op::Const(tensor.clone()), vec![], node.name.clone())?
        } else {
            let name = names.fresh(&r.new, &node.name);
            let folded = r.new.push(Op::Weight { name: name.clone(), ty: out.clone() }, vec![], node.name.clone())?;
            r.new.set_weight(&name, tensor.clone())?;
            folded
        };
        known.insert(folded, tensor);
        r.set_all(id as u32, folded);
    }
    r.finish()
}

/// Which nodes make tables of synapses, here or in the loops that they are handed to.
fn tables(graph: &Graph) -> Vec<bool> {
    let mut found = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate().rev() {
        match &node.op {
            Op::Scan(scan) => {
                let inside = tables(&scan.body);
                for ((_, value), outer) in scan.body.inputs().zip(&node.inputs) {
                    found[outer.node as usize] |= inside[value.node as usize];
                }
            }
            op => {
                let own = op.synapse_tables().unwrap_or(0);
                for (i, v) in node.inputs.iter().enumerate() {
                    found[v.node as usize] |= found[id] || (1..own).contains(&i);
                }
            }
        }
    }
    found
}

/// One node's result. A reshape is the same data; elementwise work on large values is done a few rows at a time, since the
/// reference's `f64` would be twice or four times the size of the weights.
fn evaluate(node: &Node, inputs: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    let dtype = node.outs[0].dtype;
    if let (Op::Reshape { .. }, [x]) = (&node.op, inputs) {
        return x.reshaped(shape);
    }
    let whole = |inputs: &[&Tensor], shape: &[usize]| -> Result<Tensor> {
        let values: Vec<HostValue> = inputs.iter().map(|t| HostValue::from_tensor(t)).collect();
        let values: Vec<&HostValue> = values.iter().collect();
        let outs = [(dtype, shape.to_vec())];
        let mut result =
            reference::eval_node(&node.name, &node.op, &values, &outs, &Bindings::new(), Precision::Storage)?;
        Tensor::from_f64(dtype, shape, &result.remove(0).data)
    };
    let count = crate::tensor::count(shape).unwrap_or(usize::MAX);
    if let Some(moved) = movement(node, inputs, shape) {
        return moved;
    }
    if count <= PIECE || !node.op.is_elementwise() || shape[0] < 2 {
        return whole(inputs, shape);
    }
    let mut result = Tensor::zeros(dtype, shape)?;
    let row = count / shape[0];
    let rows = (PIECE / row.max(1)).clamp(1, shape[0]);
    let part = |t: &Tensor, from: usize, rows: usize| -> Result<Tensor> {
        // What has the first axis is cut along it; what is stretched over it stays as it is.
        if t.shape().len() != shape.len() || t.shape()[0] != shape[0] {
            return Ok(t.clone());
        }
        let mut cut = t.shape().to_vec();
        cut[0] = rows;
        let bytes = t.bytes().len() / shape[0];
        Tensor::from_bytes(t.dtype(), &cut, &t.bytes()[from * bytes..(from + rows) * bytes])
    };
    let bytes = result.bytes().len() / shape[0];
    for from in (0..shape[0]).step_by(rows) {
        let rows = rows.min(shape[0] - from);
        let parts = inputs.iter().map(|t| part(t, from, rows)).collect::<Result<Vec<Tensor>>>()?;
        let mut cut = shape.to_vec();
        cut[0] = rows;
        let piece = whole(&parts.iter().collect::<Vec<_>>(), &cut)?;
        result.bytes_mut()[from * bytes..(from + rows) * bytes].copy_from_slice(piece.bytes());
    }
    Ok(result)
}

/// Work that only moves elements, done on their bytes; `None` for other work.
fn movement(node: &Node, inputs: &[&Tensor], shape: &[usize]) -> Option<Result<Tensor>> {
    let dtype = node.outs[0].dtype;
    let size = dtype.size();
    match (&node.op, inputs) {
        (Op::Concat { axis }, parts) => {
            let around = |t: &Tensor| -> usize { t.shape()[*axis..].iter().product::<usize>() * size };
            let outer: usize = shape[..*axis].iter().product();
            let total: usize = shape[*axis..].iter().product::<usize>() * size;
            let made = Tensor::zeros(dtype, shape).map(|mut result| {
                let to = result.bytes_mut();
                let mut at = 0;
                for part in parts {
                    let row = around(part);
                    for o in 0..if row == 0 { 0 } else { outer } {
                        to[o * total + at..][..row].copy_from_slice(&part.bytes()[o * row..][..row]);
                    }
                    at += row;
                }
                result
            });
            Some(made)
        }
        (Op::Transpose { perm }, [x]) => {
            let mut steps = vec![size; x.shape().len()];
            for i in (1..steps.len()).rev() {
                steps[i - 1] = steps[i].saturating_mul(x.shape()[i]);
            }
            let steps: Vec<usize> = perm.iter().map(|&p| steps[p]).collect();
            let made = Tensor::zeros(dtype, shape).map(|mut result| {
                let mut at = vec![0usize; shape.len()];
                let mut from = 0;
                for to in result.bytes_mut().chunks_exact_mut(size) {
                    to.copy_from_slice(&x.bytes()[from..from + size]);
                    for axis in (0..shape.len()).rev() {
                        at[axis] += 1;
                        from += steps[axis];
                        if at[axis] < shape[axis] {
                            break;
                        }
                        from -= steps[axis] * shape[axis];
                        at[axis] = 0;
                    }
                }
                result
            });
            Some(made)
        }
        _ => None,
    }
}

/// Names for folded weights that nothing else has.
#[derive(Default)]
struct Names(HashMap<String, usize>);

impl Names {
    fn fresh(&mut self, graph: &Graph, base: &str) -> String {
        // A weight's name has its limits, a node's has none.
        let base: String = base.chars().filter(|c| !c.is_control()).take(100).collect();
        let next = self.0.entry(base.clone()).or_insert(0);
        loop {
            let name = if *next == 0 { format!("folded.{base}") } else { format!("folded.{base}.{next}") };
            *next += 1;
            if !graph.names_weight(&name) {
                return name;
            }
        }
    }
}

/// Whether work of known inputs is done ahead.
pub(super) fn worth_keeping(graph: &Graph, inputs: &[Value], out: &Type) -> bool {
    let bytes = |ty: &Type| {
        let shape = ty.shape.as_fixed()?;
        ty.dtype.bytes_for(crate::tensor::count(&shape)?)
    };
    let Some(size) = bytes(out) else { return false };
    let replaced: usize = inputs.iter().filter_map(|&v| bytes(graph.ty(v))).fold(0, usize::saturating_add);
    size <= SMALL || size <= replaced.saturating_mul(GROWTH)
}
