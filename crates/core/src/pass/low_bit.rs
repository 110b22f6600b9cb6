//! Products with low-bit weights read codes and scales themselves, and those with weights of half precision read the halves:
//! the numbers that these stand for are never written out. Weights come into a loop from outside, so there the loop is
//! handed their parts instead.

use super::merge::with_body;
use super::{PassOptions, rewrite};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Node, Value};
use crate::op::{LowBit, LowBitMatMul, Op, Type};
use schwann_kernels::tuning::Tuning;
use std::collections::HashMap;

/// Takes products apart that read codes and cannot: the weights are not known before the run, or the backend has no such
/// product.
pub(super) fn expand(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    let apart = |graph: &mut Graph, value: Value| {
        let node = graph.node(value).clone();
        let Op::LowBitMatMul(product) = &node.op else { return Ok(None) };
        let (own, others) = node.inputs.split_at(product.operands());
        let packs = options.low_bit && options.fold_weights && own[1..].iter().all(|v| has_data(graph, *v));
        if packs {
            return Ok(None);
        }
        let name = |what: &str| format!("{}.{what}", node.name);
        let weights = graph.push(Op::LowBit(product.weights), own[1..].to_vec(), name("weights"))?;
        let x = if product.rounded { graph.push(Op::RoundRows, vec![own[0]], name("rounded"))? } else { own[0] };
        let op = Op::MatMul { transpose_a: false, transpose_b: true };
        let made = graph.push(op, vec![x, weights], name("product"))?;
        let Some(map) = &product.then else { return Ok(Some(made)) };
        let inputs = std::iter::once(made).chain(others.iter().copied()).collect();
        graph.push(Op::map(map.clone(), product.dtype), inputs, node.name.clone()).map(Some)
    };
    rewrite(graph, &[("low-bit product apart", &apart)])
}

pub(super) fn low_bit_products(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    if !options.low_bit || !options.fold_weights {
        return Ok(graph.clone());
    }
    Ok(convert(graph, &HashMap::new(), &options.tuning)?.graph)
}

/// How a matrix is kept, and whether what products read is its transpose.
#[derive(Clone, Copy)]
struct Kept {
    form: Form,
    transposed: bool,
}

#[derive(Clone, Copy)]
enum Form {
    /// Codes, scales, and offsets if there are any.
    Codes(LowBit),
    /// Numbers of half precision.
    Half,
}

/// Such a matrix: its parts, or their types.
struct Matrix<T> {
    kept: Kept,
    parts: Vec<T>,
}

/// A graph whose products have been converted.
struct Converted {
    graph: Graph,
    /// Of the matrices that the body of a loop is given: which inputs it no longer has.
    dropped: Vec<Value>,
    /// And whose parts are inputs now, after all others, in this order.
    taken: Vec<Value>,
}

/// How a matrix is read.
#[derive(Clone, Copy, Default)]
struct Reads {
    as_weights: bool,
    otherwise: bool,
}

impl Reads {
    fn of(graph: &Graph, value: Value, kept: Kept, tuning: &Tuning) -> Reads {
        let mut reads = Reads { otherwise: graph.outputs().iter().any(|o| o.value == value), ..Reads::default() };
        for node in graph.nodes() {
            for (i, _) in node.inputs.iter().enumerate().filter(|(_, v)| **v == value) {
                match &node.op {
                    Op::Scan(scan) if i >= scan.states + scan.sequences => {
                        let inside = scan.body.inputs().nth(i);
                        let inside = inside.map(|(_, v)| Reads::of(&scan.body, v, kept, tuning));
                        let inside = inside.unwrap_or_default();
                        reads.as_weights |= inside.as_weights;
                        reads.otherwise |= inside.otherwise;
                    }
                    _ if i == 1 && node.inputs[0] != value && kept.is_read_by(graph, node, tuning) => {
                        reads.as_weights = true;
                    }
                    _ => reads.otherwise = true,
                }
            }
        }
        reads
    }
}

/// Whether a value is a literal, or a weight whose data is there: products pack it before the run.
fn has_data(graph: &Graph, value: Value) -> bool {
    match &graph.node(value).op {
        Op::Const(_) => true,
        Op::Weight { name, .. } => graph.weights().contains_key(name),
        _ => false,
    }
}

impl Kept {
    /// Whether a node is a product that is to read such a right-hand side as it is kept: the matrix is large, or it consists
    /// of codes and rows are rounded. Small ones multiply rows of `f32` faster as `f32`: they are widened once, before the
    /// run, and the product can be merged and fused like any other. Each row of codes must be a column of the result.
    fn is_read_by(self, graph: &Graph, node: &Node, tuning: &Tuning) -> bool {
        let Op::MatMul { transpose_a: false, transpose_b } = node.op else { return false };
        let count = graph.ty(node.inputs[1]).shape.as_fixed().map(|shape| shape.iter().product::<usize>());
        let large = count.is_some_and(|n| n.saturating_mul(4) > tuning.gemm_widened_weight_bytes_most());
        match self.form {
            Form::Codes(_) => {
                transpose_b != self.transposed && (large || graph.node(node.inputs[0]).op == Op::RoundRows)
            }
            Form::Half => large,
        }
    }

    /// The product that reads it so: its operation, and what it multiplies.
    fn product(self, graph: &Graph, node: &Node) -> (Op, Value) {
        let Form::Codes(weights) = self.form else {
            let transpose_b = matches!(node.op, Op::MatMul { transpose_b: true, .. }) != self.transposed;
            return (Op::MatMul { transpose_a: false, transpose_b }, node.inputs[0]);
        };
        let left = graph.node(node.inputs[0]);
        let rounded = left.op == Op::RoundRows;
        let product = LowBitMatMul { weights, rounded, then: None, dtype: DType::F32 };
        (Op::LowBitMatMul(Box::new(product)), if rounded { left.inputs[0] } else { node.inputs[0] })
    }
}

/// How a node's result is kept, if it is such a matrix: the numbers of codes, or of halves.
fn kept(graph: &Graph, node: &Node) -> Option<Form> {
    let matrix = node.outs.first().is_some_and(|out| out.shape.rank() == 2);
    let known = node.inputs.iter().all(|v| has_data(graph, *v));
    match &node.op {
        Op::LowBit(format) if matrix && known => Some(Form::Codes(*format)),
        Op::Cast { dtype: DType::F32 } if matrix && known => {
            matches!(graph.ty(node.inputs[0]).dtype, DType::F16 | DType::Bf16).then_some(Form::Half)
        }
        _ => None,
    }
}

/// `given` are the body's inputs that are such matrices outside, with the types of their parts.
fn convert(graph: &Graph, given: &HashMap<Value, Matrix<Type>>, tuning: &Tuning) -> Result<Converted> {
    let mut r = graph.rebuild();
    // The parts, in the new graph, of each matrix of the old one.
    let mut weights: HashMap<Value, Matrix<Value>> = HashMap::new();
    let (mut dropped, mut taken) = (vec![], vec![]);
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let value = Value { node: id, slot: 0 };
        if !matches!(node.op, Op::Input { .. }) {
            continue;
        }
        let reads = given.get(&value).map(|matrix| Reads::of(graph, value, matrix.kept, tuning)).unwrap_or_default();
        if reads.as_weights {
            taken.push(value);
        }
        if reads.as_weights && !reads.otherwise {
            dropped.push(value);
        } else {
            r.copy(id)?;
        }
    }
    for (n, value) in taken.iter().enumerate() {
        let Matrix { kept, parts: types } = &given[value];
        let names: &[&str] = match kept.form {
            Form::Codes(_) => &["codes", "scales", "offsets"],
            Form::Half => &["half"],
        };
        let mut parts = Vec::with_capacity(types.len());
        for (ty, part) in types.iter().zip(names) {
            let input = Op::Input { name: format!("low_bit.{n}.{part}"), ty: ty.clone() };
            parts.push(r.new.push(input, vec![], format!("{}.{part}", graph.node(*value).name))?);
        }
        weights.insert(*value, Matrix { kept: *kept, parts });
    }
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let right = node.inputs.get(1).and_then(|v| weights.get(v));
        if let Some(matrix) = right.filter(|w| w.kept.is_read_by(graph, node, tuning)) {
            let (op, x) = matrix.kept.product(graph, node);
            let inputs = std::iter::once(r.get(x)?).chain(matrix.parts.iter().copied()).collect();
            let new = r.new.push(op, inputs, node.name.clone())?;
            r.set_all(id, new);
            continue;
        }
        if let Some(form) = kept(graph, node) {
            let new = r.copy(id)?;
            let parts = r.new.node(new).inputs.clone();
            weights.insert(Value { node: id, slot: 0 }, Matrix { kept: Kept { form, transposed: false }, parts });
            continue;
        }
        match &node.op {
            Op::Input { .. } => {}
            Op::Transpose { perm } if perm == &[1, 0] && weights.contains_key(&node.inputs[0]) => {
                r.copy(id)?;
                let Matrix { kept: Kept { form, transposed }, parts } = &weights[&node.inputs[0]];
                let kept = Kept { form: *form, transposed: !transposed };
                weights.insert(Value { node: id, slot: 0 }, Matrix { kept, parts: parts.clone() });
            }
            Op::Scan(scan) => {
                let fixed = scan.body.inputs().zip(&node.inputs).skip(scan.states + scan.sequences);
                let types = |parts: &[Value]| parts.iter().map(|v| r.new.ty(*v).clone()).collect();
                let given = |((_, v), outer): ((&str, Value), &Value)| {
                    let Matrix { kept, parts } = weights.get(outer)?;
                    Some((v, Matrix { kept: *kept, parts: types(parts) }))
                };
                let inside = fixed.filter_map(given).collect();
                let body = convert(&scan.body, &inside, tuning)?;
                let outer: HashMap<Value, Value> =
                    scan.body.inputs().map(|(_, v)| v).zip(node.inputs.iter().copied()).collect();
                let kept = scan.body.inputs().map(|(_, v)| v).filter(|v| !body.dropped.contains(v));
                let mut inputs = kept.map(|v| r.get(outer[&v])).collect::<Result<Vec<_>>>()?;
                inputs.extend(body.taken.iter().flat_map(|v| &weights[&outer[v]].parts));
                let new = r.new.push(Op::Scan(Box::new(with_body(scan, body.graph))), inputs, node.name.clone())?;
                r.set_all(id, new);
            }
            _ => {
                r.copy(id)?;
            }
        }
    }
    Ok(Converted { graph: r.finish()?, dropped, taken })
}
