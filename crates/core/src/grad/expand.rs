//! Turns a fused program back into the operations it was made of, so that the table of rules needs none for it.

use super::tape::Tape;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Node, Value};
use crate::op::{Binary, Compare, Map, MapInstr, MapResult, Op, SynapseResult, Unary};
use crate::pass::cells::heads;
use std::collections::BTreeMap;

/// A ratio that is applied repeatedly is differentiated, or written out, at most this many times.
pub(super) const MOST_TIMES: usize = 1024;

/// A register of the program as a value of the graph: a number, or a truth value, which the program itself stores as 1
/// or 0.
#[derive(Clone, Copy)]
enum Register {
    Number(Value),
    Truth(Value),
}

fn number(tape: &mut Tape, r: Register) -> Result<Value> {
    match r {
        Register::Number(v) => Ok(v),
        Register::Truth(v) => tape.cast(v, DType::F32),
    }
}
fn truth(tape: &mut Tape, r: Register) -> Result<Value> {
    match r {
        Register::Truth(v) => Ok(v),
        Register::Number(v) => {
            let zero = tape.number(0.0, v)?;
            tape.compare(Compare::Ne, v, zero)
        }
    }
}

/// Adds to `graph` what a `Map`, `MatMulMap` or `LowBitMatMul` node computes from `inputs`.
pub(super) fn expand(graph: &mut Graph, node: &Node, inputs: &[Value]) -> Result<Vec<Value>> {
    let mut tape = Tape::forward(std::mem::take(graph), &node.name);
    let result = run(&mut tape, node, inputs);
    *graph = tape.graph;
    result
}

/// Adds to `graph` what a `GatedCell` computes from `inputs`.
pub(super) fn gated_cell(graph: &mut Graph, node: &Node, inputs: &[Value]) -> Result<Value> {
    let [a, b, t] = heads(graph, node, inputs, false)?;
    let mut tape = Tape::forward(std::mem::take(graph), &node.name);
    let mut run = || {
        let (from, to, gate) =
            (tape.unary(Unary::Tanh, a)?, tape.unary(Unary::Tanh, b)?, tape.unary(Unary::Sigmoid, t)?);
        let toward = tape.push(Op::Binary(Binary::Sub), &[to, from])?;
        let change = tape.mul(gate, toward)?;
        tape.add(from, change)
    };
    let result = run();
    *graph = tape.graph;
    result
}

/// Adds to `graph` what a `SynapseSum` or `SynapseRatio` node computes from `inputs`: gather, scale and shift, activation,
/// sums by segment, and their ratio.
pub(super) fn synapses(graph: &mut Graph, node: &Node, inputs: &[Value]) -> Result<Vec<Value>> {
    let (activation, axis, sums, segments) = match node.op {
        Op::SynapseSum { activation, axis, sums, segments } => (activation, axis, sums, segments.into()),
        Op::SynapseRatio { activation, axis, .. } => (activation, axis, 2, node.outs[0].shape[axis].clone()),
        _ => return Err(super::refuse(&node.name, &node.op, "it is no sum over synapses")),
    };
    let times = if let Op::SynapseRatio { times, .. } = node.op { times } else { 1 };
    if times > MOST_TIMES {
        return Err(super::refuse(&node.name, &node.op, format!("it is taken {times} times, over {MOST_TIMES}")));
    }
    let mut tape = Tape::forward(std::mem::take(graph), &node.name);
    let once = |tape: &mut Tape, inputs: &[Value]| {
        // If the axis is not the last one, the lists must be columns to broadcast along it.
        let column = axis + 1 < tape.shape(inputs[0]).rank();
        let mut lists = inputs[3..5 + sums].to_vec();
        for list in lists.iter_mut().filter(|_| column) {
            let count = tape.shape(*list)[0].clone();
            *list = tape.reshape(*list, &vec![count, 1.into()].into())?;
        }
        let mut value = tape.push(Op::Gather { axis }, &[inputs[0], inputs[1]])?;
        value = tape.mul(value, lists[0])?;
        value = tape.add(value, lists[1])?;
        if let Some(unary) = activation.unary() {
            value = tape.unary(unary, value)?;
        }
        let mut results = vec![];
        for weights in &lists[2..] {
            let weighted = tape.mul(value, *weights)?;
            results.push(tape.push(Op::SegmentSum { axis, segments: segments.clone() }, &[weighted, inputs[2]])?);
        }
        let more = &inputs[5 + sums..];
        if more.len() == sums {
            for (result, start) in results.iter_mut().zip(more) {
                *result = tape.add(*start, *result)?;
            }
        }
        if let &[p, q, r] = more {
            let mut above = tape.mul(p, inputs[0])?;
            above = tape.add(above, q)?;
            above = tape.add(above, results[1])?;
            let below = tape.add(r, results[0])?;
            results = vec![tape.push(Op::Binary(Binary::Div), &[above, below])?];
        }
        Ok(results)
    };
    let run = |tape: &mut Tape| {
        let mut inputs = inputs.to_vec();
        let mut results = once(tape, &inputs)?;
        for _ in 1..times {
            inputs[0] = results[0];
            results = once(tape, &inputs)?;
        }
        Ok(results)
    };
    let result = run(&mut tape);
    *graph = tape.graph;
    result
}

/// Adds to `graph` what a `SynapseGradient` node computes from `inputs`: the sums or the ratio as above, differentiated.
pub(crate) fn synapse_gradient(graph: &mut Graph, node: &Node, inputs: &[Value]) -> Result<Vec<Value>> {
    let Op::SynapseGradient { activation, axis, of } = node.op else {
        return Err(super::refuse(&node.name, &node.op, "it is no gradient of sums over synapses"));
    };
    // In a graph of its own, so that nothing else is differentiated.
    let mut own = Graph::default();
    let mut given = vec![];
    for (i, v) in inputs.iter().enumerate() {
        let name = format!("{i}");
        given.push(own.push(Op::Input { name: name.clone(), ty: graph.ty(*v).clone() }, vec![], name)?);
    }
    let (op, results) = match of {
        SynapseResult::Sums { sums, segments } => (Op::SynapseSum { activation, axis, sums, segments }, sums),
        SynapseResult::Ratio { times } => (Op::SynapseRatio { activation, axis, times }, 1),
    };
    let (read, gradients) = given.split_at(given.len() - results);
    let outs = gradients.iter().map(|v| own.ty(*v).clone()).collect();
    let forward = Node { op, inputs: read.to_vec(), outs, name: node.name.clone() };
    // A term's gradient has a number for every element, so a term has one too.
    let tables = 5 + of.sums();
    let mut full = read.to_vec();
    for term in &mut full[tables..] {
        let op = Op::Broadcast { shape: forward.outs[0].shape.clone() };
        *term = own.push(op, vec![*term], format!("{}.term", node.name))?;
    }
    let made = synapses(&mut own, &forward, &full)?;
    let wrt: Vec<Value> = full[..1].iter().chain(&full[3..]).copied().collect();
    let mut tape = Tape::new(own, &node.name);
    let seeds: Vec<(Value, Value)> = made.into_iter().zip(gradients.iter().copied()).collect();
    let found = super::backward(&mut tape, &BTreeMap::new(), &seeds, &wrt)?;
    let mut results = vec![];
    for (found, v) in found.into_iter().zip(wrt) {
        results.push(match found {
            Some(found) => found,
            None => tape.zeros(&tape.ty(v).clone())?,
        });
    }
    let mut moved: BTreeMap<Value, Value> = given.iter().copied().zip(inputs.iter().copied()).collect();
    for (id, node) in (0u32..).zip(tape.graph.nodes()) {
        if matches!(node.op, Op::Input { .. }) {
            continue;
        }
        let read = node.inputs.iter().map(|v| moved[v]).collect();
        let new = graph.push(node.op.clone(), read, node.name.clone())?;
        for slot in 0..node.outs.len() as u16 {
            moved.insert(Value { node: id, slot }, Value { slot, ..new });
        }
    }
    Ok(results.iter().map(|value| moved[value]).collect())
}

fn run(tape: &mut Tape, node: &Node, inputs: &[Value]) -> Result<Vec<Value>> {
    match &node.op {
        Op::Map { map, also, .. } => program(tape, map, inputs, also, node),
        Op::MatMulMap { transpose_a, transpose_b, map, .. } => {
            let product = tape.matmul(inputs[0], inputs[1], *transpose_a, *transpose_b)?;
            let inputs: Vec<Value> = std::iter::once(product).chain(inputs[2..].iter().copied()).collect();
            program(tape, map, &inputs, &[], node)
        }
        Op::LowBitMatMul(product) => {
            let (own, others) = inputs.split_at(product.operands());
            let weights = tape.push(Op::LowBit(product.weights), &own[1..])?;
            let x = if product.rounded { tape.push(Op::RoundRows, &own[..1])? } else { own[0] };
            let made = tape.matmul(x, weights, false, true)?;
            let inputs: Vec<Value> = std::iter::once(made).chain(others.iter().copied()).collect();
            match &product.then {
                Some(map) => program(tape, map, &inputs, &[], node),
                None => Ok(vec![made]),
            }
        }
        other => Err(super::refuse(&node.name, other, "it is no fused program")),
    }
}

fn program(tape: &mut Tape, map: &Map, inputs: &[Value], also: &[MapResult], node: &Node) -> Result<Vec<Value>> {
    let mut registers: Vec<Register> = Vec::with_capacity(map.code.len());
    for instr in &map.code {
        let at = |i: u16| registers[usize::from(i)];
        let register = match *instr {
            MapInstr::Input(n) => Register::Number(tape.cast(inputs[usize::from(n)], DType::F32)?),
            MapInstr::Const(c) => Register::Number(tape.scalar(f64::from(c.0), DType::F32)?),
            MapInstr::Unary(Unary::Not, a) => {
                let a = truth(tape, at(a))?;
                Register::Truth(tape.unary(Unary::Not, a)?)
            }
            MapInstr::Unary(u, a) => {
                let a = number(tape, at(a))?;
                Register::Number(tape.unary(u, a)?)
            }
            MapInstr::Binary(op @ (Binary::And | Binary::Or), a, b) => {
                let (a, b) = (truth(tape, at(a))?, truth(tape, at(b))?);
                Register::Truth(tape.push(Op::Binary(op), &[a, b])?)
            }
            MapInstr::Binary(op, a, b) => {
                let (a, b) = (number(tape, at(a))?, number(tape, at(b))?);
                Register::Number(tape.push(Op::Binary(op), &[a, b])?)
            }
            MapInstr::Compare(op, a, b) => {
                let (a, b) = (number(tape, at(a))?, number(tape, at(b))?);
                Register::Truth(tape.compare(op, a, b)?)
            }
            MapInstr::Select(c, a, b) => {
                let c = truth(tape, at(c))?;
                let (a, b) = (number(tape, at(a))?, number(tape, at(b))?);
                Register::Number(tape.select(c, a, b)?)
            }
            // trunc x = sign x · ⌊|x|⌋
            MapInstr::Trunc(a) => {
                let a = number(tape, at(a))?;
                let sign = tape.unary(Unary::Sign, a)?;
                let size = tape.unary(Unary::Abs, a)?;
                let size = tape.unary(Unary::Floor, size)?;
                Register::Number(tape.mul(sign, size)?)
            }
        };
        registers.push(register);
    }
    let Some(&last) = registers.last() else {
        return Err(super::refuse(&node.name, &node.op, "the program is empty"));
    };
    let results = std::iter::once(last).chain(also.iter().map(|r| registers[usize::from(r.at)]));
    let mut values = vec![];
    for (register, ty) in results.zip(&node.outs) {
        let value = match ty.dtype {
            DType::Bool => truth(tape, register)?,
            dtype => {
                let value = number(tape, register)?;
                tape.cast(value, dtype)?
            }
        };
        // A program may ignore the input that gives the shape.
        values.push(tape.broadcast(value, &ty.shape)?);
    }
    Ok(values)
}
