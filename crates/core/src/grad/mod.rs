//! Automatic differentiation, graph to graph: the result is an ordinary graph that computes results and gradients.
//!
//! Reverse mode in three steps. *Find the path*: the values that depend on the variables of differentiation and on
//! which the differentiated result depends. Nothing else is touched, so an operation without a gradient is no error off
//! the path. *Copy the forward graph*, where fused programs on the path become their primitive operations again, and
//! loops on the path get additional outputs for the values that the backward pass needs (`scan.rs`). *Walk back* over
//! the path from the last node to the first: each operation's rule (`table.rs`) turns the gradients of its outputs into
//! those of its inputs.
//!
//! Decisions. The gradient of a value has exactly its type. A missing gradient means 0, so zeros are only made where an
//! output needs them. Sizes may be symbols everywhere: a number of elements that is not known yet is counted when the
//! graph runs. Nothing is simplified here; folding constants and sharing equal nodes is the passes' work.

pub(crate) mod expand;
mod scan;
mod table;
mod tape;

use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::op::{Op, Type, Unary};
use crate::pass::{differentiable, differentiated};
use scan::Plan;
use std::collections::{BTreeMap, BTreeSet};
pub(crate) use tape::Tape;

/// The gradients of an output with respect to some values, as a graph that computes both.
///
/// `wrt` names inputs or weights of a float type. The result has all outputs of `graph` and, for each of `wrt`, an
/// output `grad.<name>` of that value's type; zeros where it has no influence. A scalar output is differentiated
/// directly. For any other float output the result is a product of a vector and the Jacobian: the vector is a new input
/// `grad_out.<of>` of the output's type.
///
/// Where a function has a kink, a gradient is chosen: that of `relu` and `abs` at 0 is 0; `min` and `max` of two equal
/// operands pass it to the first; a largest or smallest element that occurs several times shares it equally among
/// them. `sign`, `floor`, `round` and conversions to integers pass none. `quantize` on the path is an error.
///
/// ```
/// # use schwann_core::{grad::gradient, shape, DType, GraphBuilder};
/// # fn main() -> schwann_core::Result<()> {
/// let mut b = GraphBuilder::new();
/// let x = b.input("x", DType::F32, shape!["N"])?;
/// let squares = b.square(x)?;
/// let loss = b.sum(squares, &[0], false)?;
/// b.output("loss", loss)?;
/// let with_gradient = gradient(&b.build()?, "loss", &["x"])?;
/// assert_eq!(with_gradient.outputs()[1].name, "grad.x");
/// assert_eq!(with_gradient.output_types()[1].to_string(), "f32[N]");
/// # Ok(())
/// # }
/// ```
pub fn gradient(graph: &Graph, of: &str, wrt: &[&str]) -> Result<Graph> {
    differentiate(graph, of, wrt).map_err(|e| e.in_pass("gradient"))
}

fn differentiate(graph: &Graph, of: &str, wrt: &[&str]) -> Result<Graph> {
    let outputs = graph.outputs();
    let position = outputs.iter().position(|o| o.name == of).ok_or_else(|| Error::Unknown {
        kind: "output",
        name: of.into(),
        known: outputs.iter().map(|o| o.name.clone()).collect(),
    })?;
    let target = outputs[position].value;
    check_float(graph, target)?;
    let types: Vec<Type> =
        wrt.iter().map(|name| named(graph, name).map(|nodes| graph.ty(nodes[0]).clone())).collect::<Result<_>>()?;
    // (A weight that nothing reads may be gone after this.)
    let graph = &differentiable(graph)?;
    let target = graph.outputs()[position].value;
    let sources: Vec<Vec<Value>> = wrt.iter().map(|name| named(graph, name).unwrap_or_default()).collect();

    let of_set = BTreeSet::from([target]);
    let Forward { graph: copied, plans, wrt: moved } = forward(graph, &sources.concat(), &of_set)?;
    let target = copied.outputs()[position].value;
    let ty = copied.ty(target).clone();
    let mut tape = Tape::new(copied, of);
    let seed = if ty.shape.rank() == 0 {
        tape.scalar(1.0, ty.dtype)?
    } else {
        let name = format!("grad_out.{of}");
        tape.graph.push(Op::Input { name: name.clone(), ty }, vec![], name)?
    };
    let found = backward(&mut tape, &plans, &[(target, seed)], &moved)?;

    // Several nodes may read the same weight; its gradient is the sum over them.
    let mut found = found.into_iter();
    for ((name, nodes), ty) in wrt.iter().zip(&sources).zip(&types) {
        tape.at = (*name).to_owned();
        let mut total = None;
        for part in found.by_ref().take(nodes.len()).flatten() {
            total = Some(tape.accumulate(total, part)?);
        }
        let value = match total {
            Some(value) => value,
            None => tape.zeros(ty)?,
        };
        tape.graph.push_output(format!("grad.{name}"), value)?;
    }
    differentiated(&tape.graph)
}

fn check_float(graph: &Graph, value: Value) -> Result<()> {
    let (node, ty) = (graph.node(value), graph.ty(value));
    if ty.dtype.is_float() {
        return Ok(());
    }
    Err(refuse(&node.name, &node.op, format!("its type is {ty}; only floats have gradients")))
}

fn refuse(node: &str, op: &Op, problem: impl Into<String>) -> Error {
    Error::Gradient { node: node.into(), op: op.name().into(), problem: problem.into() }
}

/// The node of an input, or every node of a weight.
fn named(graph: &Graph, name: &str) -> Result<Vec<Value>> {
    let mut found: Vec<Value> = graph.inputs().filter(|(n, _)| *n == name).map(|(_, v)| v).collect();
    if found.is_empty() {
        let is = |op: &Op| matches!(op, Op::Weight { name: weight, .. } if weight == name);
        let nodes = (0u32..).zip(graph.nodes()).filter(|(_, n)| is(&n.op));
        found = nodes.map(|(node, _)| Value { node, slot: 0 }).collect();
    }
    if found.is_empty() {
        let known = graph.inputs().map(|(n, _)| n).chain(graph.weight_types().map(|(n, _)| n));
        let known: BTreeSet<String> = known.map(str::to_owned).collect();
        return Err(Error::Unknown { kind: "input or weight", name: name.into(), known: known.into_iter().collect() });
    }
    found.iter().try_for_each(|&v| check_float(graph, v))?;
    Ok(found)
}

/// Whether a node passes a gradient of its output on to its inputs.
///
/// `quantize` counts, though its result is an integer: a path through it must be an error rather than silently 0.
fn passes_gradient(op: &Op, out: &Type) -> bool {
    match op {
        Op::Quantize { .. } => true,
        Op::Unary(Unary::Sign | Unary::Floor | Unary::Round) => false,
        _ => out.dtype.is_float(),
    }
}

/// The values that depend on `sources` in a way that has a gradient.
fn active(graph: &Graph, sources: impl IntoIterator<Item = Value>) -> BTreeSet<Value> {
    let mut active: BTreeSet<Value> = sources.into_iter().collect();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let inputs: Vec<bool> = node.inputs.iter().map(|v| active.contains(v)).collect();
        if !inputs.contains(&true) {
            continue;
        }
        let loop_outputs = if let Op::Scan(s) = &node.op { Some(scan::active_outputs(s, &inputs)) } else { None };
        for (slot, out) in (0u16..).zip(&node.outs) {
            let depends = loop_outputs.as_ref().is_none_or(|o| o[usize::from(slot)]);
            if depends && passes_gradient(&node.op, out) {
                active.insert(Value { node: id, slot });
            }
        }
    }
    active
}

/// Of the active values, those on which `targets` depend: the path.
fn path(graph: &Graph, active: &BTreeSet<Value>, targets: &BTreeSet<Value>) -> BTreeSet<Value> {
    let mut wanted: BTreeSet<Value> = targets.intersection(active).copied().collect();
    for id in (0..graph.nodes().len() as u32).rev() {
        let node = &graph.nodes()[id as usize];
        let outs: Vec<bool> =
            (0..node.outs.len() as u16).map(|slot| wanted.contains(&Value { node: id, slot })).collect();
        if !outs.contains(&true) {
            continue;
        }
        let inputs: Vec<bool> = node.inputs.iter().map(|v| active.contains(v)).collect();
        let reached = if let Op::Scan(s) = &node.op { scan::Path::of(s, &inputs, &outs).inputs } else { inputs };
        let reached = node.inputs.iter().zip(reached).filter(|(_, r)| *r).map(|(v, _)| *v);
        wanted.extend(reached.filter(|v| active.contains(v)));
    }
    wanted
}

/// The forward graph, prepared for the backward pass.
struct Forward {
    /// With the outputs of the original, in their order.
    graph: Graph,
    /// The backward plans of its loops, by node.
    plans: BTreeMap<u32, Plan>,
    /// The variables of differentiation, in this graph.
    wrt: Vec<Value>,
}

fn forward(graph: &Graph, wrt: &[Value], of: &BTreeSet<Value>) -> Result<Forward> {
    let active = active(graph, wrt.iter().copied());
    let path = path(graph, &active, of);
    let mut copy = graph.rebuild();
    let mut plans = BTreeMap::new();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let outs: Vec<bool> =
            (0..node.outs.len() as u16).map(|slot| path.contains(&Value { node: id, slot })).collect();
        if !outs.contains(&true) {
            copy.copy(id)?;
            continue;
        }
        let inputs = copy.all(&node.inputs)?;
        match &node.op {
            Op::Quantize { .. } => {
                let problem = "rounding has no useful gradient: it is 0 almost everywhere; differentiate the graph \
                               before quantizing it";
                return Err(refuse(&node.name, &node.op, problem));
            }
            Op::Map { .. } | Op::MatMulMap { .. } | Op::LowBitMatMul(_) => {
                let results = expand::expand(&mut copy.new, node, &inputs)?;
                for (slot, new) in (0u16..).zip(results) {
                    copy.set(Value { node: id, slot }, new);
                }
            }
            Op::GatedCell { .. } => {
                let new = expand::gated_cell(&mut copy.new, node, &inputs)?;
                copy.set(Value { node: id, slot: 0 }, new);
            }
            Op::SynapseGradient { .. } => {
                let results = expand::synapse_gradient(&mut copy.new, node, &inputs)?;
                for (slot, new) in (0u16..).zip(results) {
                    copy.set(Value { node: id, slot }, new);
                }
            }
            Op::Scan(s) => {
                let active: Vec<bool> = node.inputs.iter().map(|v| active.contains(v)).collect();
                let (forward, plan) = scan::extend(s, &node.name, &active, &outs)?;
                let new = copy.new.push(Op::Scan(Box::new(forward)), inputs, node.name.clone())?;
                plans.insert(new.node, plan);
                copy.set_all(id, new);
            }
            _ => {
                copy.copy(id)?;
            }
        }
    }
    let wrt = copy.all(wrt)?;
    Ok(Forward { graph: copy.finish()?, plans, wrt })
}

/// Adds the backward pass to the forward graph: from gradients of values to the gradients of `wrt`.
fn backward(
    tape: &mut Tape,
    plans: &BTreeMap<u32, Plan>,
    seeds: &[(Value, Value)],
    wrt: &[Value],
) -> Result<Vec<Option<Value>>> {
    let active = active(&tape.graph, wrt.iter().copied());
    let mut gradients: BTreeMap<Value, Value> = BTreeMap::new();
    let add = |tape: &mut Tape, gradients: &mut BTreeMap<Value, Value>, value: Value, part: Value| {
        debug_assert_eq!(tape.ty(value), tape.ty(part), "the gradient of `{}`", tape.graph.node(value).name);
        let sum = tape.accumulate(gradients.get(&value).copied(), part)?;
        gradients.insert(value, sum);
        Ok::<(), Error>(())
    };
    let last = seeds.iter().map(|(value, _)| value.node + 1).max().unwrap_or(0);
    for &(value, seed) in seeds {
        if active.contains(&value) {
            add(tape, &mut gradients, value, seed)?;
        }
    }
    for id in (0..last).rev() {
        let node = &tape.graph.nodes()[id as usize];
        let outs: Vec<Option<Value>> =
            (0..node.outs.len() as u16).map(|slot| gradients.get(&Value { node: id, slot }).copied()).collect();
        if node.op.is_source() || outs.iter().all(Option::is_none) {
            continue;
        }
        let inputs = node.inputs.clone();
        let wants: Vec<bool> = inputs.iter().map(|v| active.contains(v)).collect();
        tape.at.clone_from(&node.name);
        let parts = match plans.get(&id) {
            Some(plan) => plan.apply(tape, id, &inputs, &outs)?,
            None if matches!(node.op, Op::SynapseSum { .. } | Op::SynapseRatio { .. }) => {
                let node = node.clone();
                table::synapses(tape, &node, &outs, &wants)?
            }
            None => {
                let Some(g) = outs[0] else { continue };
                let node = node.clone();
                table::rule(tape, &node, Value { node: id, slot: 0 }, g, &wants)?
            }
        };
        for ((value, part), wanted) in inputs.into_iter().zip(parts).zip(wants) {
            if let (Some(part), true) = (part, wanted) {
                add(tape, &mut gradients, value, part)?;
            }
        }
    }
    Ok(wrt.iter().map(|v| gradients.get(v).copied()).collect())
}
