//! PyTorch's recurrent layers: `LSTM`, `GRU` and `RNN`, one layer each, under the names of its state dict.
//!
//! Several layers (`num_layers=2`) are several of these in a stack. Inputs are `[B, T, C]` unless `batch_first` is false,
//! as of every layer here; PyTorch's own default is the other way round.

use super::recurrent::{self, Loop, Step};
use super::{Activation, check_size, yes};
use crate::init::{Init, Param};
use crate::scope::{Inner, Outer, Scope};
use crate::{Error, Result};
use schwann_core::Value;
use serde::{Deserialize, Serialize};

const FROM_X: &str = "weight_ih_l0";
const FROM_H: &str = "weight_hh_l0";
const BIAS_X: &str = "bias_ih_l0";
const BIAS_H: &str = "bias_hh_l0";
const PROJECTION: &str = "weight_hr_l0";

/// Long short-term memory. With [i, f, g, o] = W x + b + U h + b′ in four parts,
/// c′ = σ(f)·c + σ(i)·tanh(g) and h′ = σ(o)·tanh(c′), projected where `proj_size` is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lstm {
    /// Features in.
    pub input_size: usize,
    /// The memory's size, and that of the output unless it is projected.
    pub hidden_size: usize,
    /// A linear layer without a bias from the memory to the output, of so many features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proj_size: Option<usize>,
    /// Whether b and b′ are there.
    #[serde(default = "yes")]
    pub bias: bool,
    /// Whether the output is that of every step, or of the last alone.
    #[serde(default = "yes")]
    pub return_sequences: bool,
    /// Whether sequences are `[B, T, C]` or `[T, B, C]`.
    #[serde(default = "yes")]
    pub batch_first: bool,
}

/// A gated recurrent unit. With r and z the sigmoids of the first two parts of W x + b + U h + b′, and n, n′ the third
/// parts of W x + b and of U h + b′: candidate = tanh(n + r·n′), h′ = (1 − z)·candidate + z·h.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gru {
    /// Features in.
    pub input_size: usize,
    /// Features out.
    pub hidden_size: usize,
    /// Whether b and b′ are there.
    #[serde(default = "yes")]
    pub bias: bool,
    /// Whether the output is that of every step, or of the last alone.
    #[serde(default = "yes")]
    pub return_sequences: bool,
    /// Whether sequences are `[B, T, C]` or `[T, B, C]`.
    #[serde(default = "yes")]
    pub batch_first: bool,
}

/// A plain recurrent layer: h′ = tanh(W x + b + U h + b′), or the positive part instead of tanh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rnn {
    /// Features in.
    pub input_size: usize,
    /// Features out.
    pub hidden_size: usize,
    /// tanh or ReLU.
    #[serde(default = "tanh")]
    pub nonlinearity: Activation,
    /// Whether b and b′ are there.
    #[serde(default = "yes")]
    pub bias: bool,
    /// Whether the output is that of every step, or of the last alone.
    #[serde(default = "yes")]
    pub return_sequences: bool,
    /// Whether sequences are `[B, T, C]` or `[T, B, C]`.
    #[serde(default = "yes")]
    pub batch_first: bool,
}

fn tanh() -> Activation {
    Activation::Tanh
}

impl Lstm {
    /// From so many features to so many.
    pub fn new(input_size: usize, hidden_size: usize) -> Lstm {
        Lstm { input_size, hidden_size, proj_size: None, bias: true, return_sequences: true, batch_first: true }
    }

    /// Features out.
    pub fn output_size(&self) -> usize {
        self.proj_size.unwrap_or(self.hidden_size)
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        let (hidden, outputs) = (self.hidden_size, self.output_size());
        check_size("hidden_size", hidden)?;
        if outputs == 0 || (self.proj_size.is_some() && outputs >= hidden) {
            return Err(Error::argument(
                "proj_size",
                outputs,
                format!("less than `hidden_size`, {hidden}, and above 0"),
            ));
        }
        let mut params = params(4, self.input_size, hidden, outputs, self.bias)?;
        if self.proj_size.is_some() {
            params.push(Param::new(PROJECTION, &[outputs, hidden], Init::linear(hidden)));
        }
        Ok(params)
    }

    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let states = [("h", self.output_size()), ("c", self.hidden_size)];
        run(outer, x, self.input_size, self.batch_first, self.return_sequences, &states, |scope, step| {
            let (h, c) = (step.states[0], step.states[1]);
            let z = joined(scope, "gates", step.x, h, self.bias)?;
            let b = &mut scope.body;
            let size = self.hidden_size;
            let mut part = |name: &str, i: usize| b.named(name).slice(z, 1, i * size, (i + 1) * size);
            let (i, f) = (part("input_gate.part", 0)?, part("forget_gate.part", 1)?);
            let (g, o) = (part("candidate.part", 2)?, part("output_gate.part", 3)?);
            let (i, f) = (b.named("input_gate").sigmoid(i)?, b.named("forget_gate").sigmoid(f)?);
            let (g, o) = (b.named("candidate").tanh(g)?, b.named("output_gate").sigmoid(o)?);
            let (kept, added) = (b.named("cell.kept").mul(f, c)?, b.named("cell.added").mul(i, g)?);
            let c = b.named("cell").add(kept, added)?;
            let squashed = b.named("hidden.squashed").tanh(c)?;
            let mut h = b.named("hidden").mul(o, squashed)?;
            if self.proj_size.is_some() {
                let projection = scope.param(PROJECTION)?;
                h = scope.body.named("projection").linear(h, projection, None)?;
            }
            Ok(vec![h, c])
        })
    }
}

impl Gru {
    /// From so many features to so many.
    pub fn new(input_size: usize, hidden_size: usize) -> Gru {
        Gru { input_size, hidden_size, bias: true, return_sequences: true, batch_first: true }
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        params(3, self.input_size, self.hidden_size, self.hidden_size, self.bias)
    }

    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let hidden = self.hidden_size;
        run(outer, x, self.input_size, self.batch_first, self.return_sequences, &[("h", hidden)], |scope, step| {
            let h = step.states[0];
            let from_x = product(scope, "from_x", [FROM_X, BIAS_X], step.x, self.bias)?;
            let from_h = product(scope, "from_h", [FROM_H, BIAS_H], h, self.bias)?;
            let b = &mut scope.body;
            let mut part =
                |name: &str, of: Value, from: usize, to: usize| b.named(name).slice(of, 1, from * hidden, to * hidden);
            // r and z, which add both, in one piece.
            let (gates_x, gates_h) = (part("gates.from_x", from_x, 0, 2)?, part("gates.from_h", from_h, 0, 2)?);
            let (n_x, n_h) = (part("candidate.from_x", from_x, 2, 3)?, part("candidate.from_h", from_h, 2, 3)?);
            let gates = b.named("gates.sum").add(gates_x, gates_h)?;
            let gates = b.named("gates").sigmoid(gates)?;
            let r = b.named("reset_gate").slice(gates, 1, 0, hidden)?;
            let z = b.named("update_gate").slice(gates, 1, hidden, 2 * hidden)?;
            let recalled = b.named("candidate.recalled").mul(r, n_h)?;
            let candidate = b.named("candidate.sum").add(n_x, recalled)?;
            let candidate = b.named("candidate").tanh(candidate)?;
            // (1 − z)·candidate + z·h = candidate + z·(h − candidate)
            let back = b.named("hidden.way").sub(h, candidate)?;
            let back = b.named("hidden.kept").mul(z, back)?;
            Ok(vec![b.named("hidden").add(candidate, back)?])
        })
    }
}

impl Rnn {
    /// From so many features to so many, with tanh.
    pub fn new(input_size: usize, hidden_size: usize) -> Rnn {
        Rnn {
            input_size,
            hidden_size,
            nonlinearity: Activation::Tanh,
            bias: true,
            return_sequences: true,
            batch_first: true,
        }
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        if ![Activation::Tanh, Activation::Relu].contains(&self.nonlinearity) {
            return Err(Error::argument("nonlinearity", format!("{:?}", self.nonlinearity), "tanh or relu"));
        }
        params(1, self.input_size, self.hidden_size, self.hidden_size, self.bias)
    }

    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let states = [("h", self.hidden_size)];
        run(outer, x, self.input_size, self.batch_first, self.return_sequences, &states, |scope, step| {
            let z = joined(scope, "sum", step.x, step.states[0], self.bias)?;
            Ok(vec![scope.body.within("hidden", |b| self.nonlinearity.build(b, z))?])
        })
    }
}

/// The parameters of so many gates.
fn params(gates: usize, inputs: usize, hidden: usize, outputs: usize, bias: bool) -> Result<Vec<Param>> {
    check_size("input_size", inputs)?;
    check_size("hidden_size", hidden)?;
    let rows = gates * hidden;
    let init = Init::linear(hidden);
    let mut params =
        vec![Param::new(FROM_X, &[rows, inputs], init.clone()), Param::new(FROM_H, &[rows, outputs], init.clone())];
    if bias {
        params.push(Param::new(BIAS_X, &[rows], init.clone()));
        params.push(Param::new(BIAS_H, &[rows], init));
    }
    Ok(params)
}

/// The loop over `x`. `step` gives the new states, of which the first is the output.
fn run(
    outer: &mut Outer<'_>,
    x: Value,
    input_size: usize,
    batch_first: bool,
    sequences: bool,
    states: &[(&str, usize)],
    step: impl FnOnce(&mut Inner<'_, '_>, &Step) -> Result<Vec<Value>>,
) -> Result<Value> {
    let shape = Loop { input_size, batch_first, states, masks: &[], timed: false };
    let (last, sequence) = recurrent::over_time(outer, x, &shape, |scope, at| {
        let states = step(scope, at)?;
        let y = sequences.then_some(states[0]);
        Ok((states, y))
    })?;
    Ok(sequence.unwrap_or(last[0]))
}

/// W x + b + U h + b′ as one product, the part of the layer called `part`: [W, U] and b + b′ are made outside the loop.
fn joined(scope: &mut Inner<'_, '_>, part: &str, x: Value, h: Value, bias: bool) -> Result<Value> {
    let outer = &mut *scope.outer;
    let (from_x, from_h) = (outer.param(FROM_X)?, outer.param(FROM_H)?);
    let weight = outer.b.named(&format!("{part}.weights")).concat(&[from_x, from_h], 1)?;
    let bias = match bias {
        true => {
            let (b_x, b_h) = (outer.param(BIAS_X)?, outer.param(BIAS_H)?);
            Some(outer.b.named(&format!("{part}.biases")).add(b_x, b_h)?)
        }
        false => None,
    };
    let weight = scope.fixed(weight)?;
    let bias = bias.map(|b| scope.fixed(b)).transpose()?;
    let z = scope.body.named("joined").concat(&[x, h], 1)?;
    Ok(scope.body.named(part).linear(z, weight, bias)?)
}

fn product(scope: &mut Inner<'_, '_>, part: &str, [weight, bias]: [&str; 2], x: Value, biased: bool) -> Result<Value> {
    let weight = scope.param(weight)?;
    let bias = if biased { Some(scope.param(bias)?) } else { None };
    Ok(scope.body.named(part).linear(x, weight, bias)?)
}
