//! Recurrent cells as bodies of a scan. Every body takes its states, then x, then its fixed values, and gives the new
//! states, then y. The batch size may be a symbol.

use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, GraphBuilder, Value};
use crate::shape;
use crate::shape::Dim;
use crate::tensor::Tensor;

/// h' = tanh(x·W + h·U + b); y = h'
pub(super) fn rnn(batch: &Dim, inputs: usize, units: usize) -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let h = b.input("h", DType::F32, shape![batch, units])?;
    let x = b.input("x", DType::F32, shape![batch, inputs])?;
    let w = b.input("w", DType::F32, [inputs, units])?;
    let u = b.input("u", DType::F32, [units, units])?;
    let bias = b.input("b", DType::F32, [units])?;
    let (xw, hu) = (b.matmul(x, w)?, b.matmul(h, u)?);
    let sum = b.add(xw, hu)?;
    let sum = b.add(sum, bias)?;
    let next = b.tanh(sum)?;
    b.output("h_next", next)?;
    b.output("y", next)?;
    b.build()
}

/// The usual LSTM with gates i, f, g, o side by side; states h and c; y = h'.
pub(super) fn lstm(batch: &Dim, inputs: usize, units: usize) -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let h = b.input("h", DType::F32, shape![batch, units])?;
    let c = b.input("c", DType::F32, shape![batch, units])?;
    let x = b.input("x", DType::F32, shape![batch, inputs])?;
    let w = b.input("w", DType::F32, [inputs, 4 * units])?;
    let u = b.input("u", DType::F32, [units, 4 * units])?;
    let bias = b.input("b", DType::F32, [4 * units])?;
    let (xw, hu) = (b.matmul(x, w)?, b.matmul(h, u)?);
    let sum = b.add(xw, hu)?;
    let sum = b.add(sum, bias)?;
    let mut gates = vec![];
    for gate in 0..4 {
        gates.push(b.slice(sum, 1, gate * units, (gate + 1) * units)?);
    }
    let (i, f, g, o) = (b.sigmoid(gates[0])?, b.sigmoid(gates[1])?, b.tanh(gates[2])?, b.sigmoid(gates[3])?);
    let (kept, new) = (b.mul(f, c)?, b.mul(i, g)?);
    let c = b.add(kept, new)?;
    let squashed = b.tanh(c)?;
    let h = b.mul(o, squashed)?;
    b.output("h_next", h)?;
    b.output("c_next", c)?;
    b.output("y", h)?;
    b.build()
}

fn lecun_tanh(b: &mut GraphBuilder, x: Value) -> Result<Value> {
    let (inner, outer) = (b.scalar(0.666)?, b.scalar(1.7159)?);
    let x = b.mul(x, inner)?;
    let x = b.tanh(x)?;
    b.mul(x, outer)
}

/// A closed-form continuous-time cell: a backbone z of [x, h], two candidates and a gate of elapsed time,
/// t = sigmoid(a(z)·dt + b(z)), h' = tanh(f(z))·(1 − t) + tanh(g(z))·t. Its second sequence is dt.
pub(super) fn cfc(batch: &Dim, inputs: usize, units: usize, backbone: usize) -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let h = b.input("h", DType::F32, shape![batch, units])?;
    let x = b.input("x", DType::F32, shape![batch, inputs])?;
    let dt = b.input("dt", DType::F32, shape![batch, 1])?;
    let w = b.input("w", DType::F32, [backbone, inputs + units])?;
    let bias = b.input("b", DType::F32, [backbone])?;
    let joined = b.concat(&[x, h], 1)?;
    let z = b.linear(joined, w, Some(bias))?;
    let z = lecun_tanh(&mut b, z)?;
    let mut heads = vec![];
    for name in ["ff1", "ff2", "time_a", "time_b"] {
        let w = b.input(&format!("{name}_w"), DType::F32, [units, backbone])?;
        let bias = b.input(&format!("{name}_b"), DType::F32, [units])?;
        heads.push(b.linear(z, w, Some(bias))?);
    }
    let (ff1, ff2) = (b.tanh(heads[0])?, b.tanh(heads[1])?);
    let elapsed = b.mul(heads[2], dt)?;
    let t = b.add(elapsed, heads[3])?;
    let t = b.sigmoid(t)?;
    let one = b.scalar(1.0)?;
    let rest = b.sub(one, t)?;
    let (early, late) = (b.mul(ff1, rest)?, b.mul(ff2, t)?);
    let next = b.add(early, late)?;
    b.output("h_next", next)?;
    b.output("y", next)?;
    b.build()
}

/// The synapses of an LTC cell.
pub(super) struct Wiring {
    pub(super) sources: Tensor,
    pub(super) targets: Tensor,
    pub(super) synapses: usize,
}

/// A liquid time-constant cell: v' = (c·v + g·l + Σ w·s·e)/(c + g + Σ w·s + ε) with s = sigmoid(σ·(v_source − μ)), the
/// sums over the synapses that end at a unit, repeated six times a step. The input is added to the potential's drive.
pub(super) fn ltc(batch: &Dim, units: usize, wiring: &Wiring) -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let mut v = b.input("v", DType::F32, shape![batch, units])?;
    let x = b.input("x", DType::F32, shape![batch, units])?;
    let mut synapse = vec![];
    for name in ["w", "mu", "sigma", "reversal"] {
        synapse.push(b.input(name, DType::F32, [wiring.synapses])?);
    }
    let mut unit = vec![];
    for name in ["capacity", "leak", "rest"] {
        unit.push(b.input(name, DType::F32, [units])?);
    }
    let (from, to) = (b.constant(wiring.sources.clone())?, b.constant(wiring.targets.clone())?);
    let epsilon = b.scalar(1e-6)?;
    let leaked = b.mul(unit[1], unit[2])?;
    let drive = b.add(x, leaked)?;
    let still = b.add(unit[0], unit[1])?;
    let still = b.add(still, epsilon)?;
    for _ in 0..6 {
        let source = b.gather(v, from, 1)?;
        let source = b.sub(source, synapse[1])?;
        let source = b.mul(source, synapse[2])?;
        let active = b.sigmoid(source)?;
        let active = b.mul(active, synapse[0])?;
        let pull = b.mul(active, synapse[3])?;
        let pulls = b.segment_sum(pull, to, 1, units)?;
        let conductance = b.segment_sum(active, to, 1, units)?;
        let charge = b.mul(unit[0], v)?;
        let over = b.add(charge, drive)?;
        let over = b.add(over, pulls)?;
        let under = b.add(still, conductance)?;
        v = b.div(over, under)?;
    }
    b.output("v_next", v)?;
    b.output("y", v)?;
    b.build()
}
