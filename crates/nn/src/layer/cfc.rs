//! Closed-form continuous-time networks, dense or on a circuit.
//!
//! With z = [x, h] through the backbone, and ff1, ff2, a, b linear in z:
//!
//! - default: τ = σ(a·Δt + b), h′ = tanh(ff1)·(1 − τ) + τ·tanh(ff2)
//! - no gate: h′ = tanh(ff1) + τ·tanh(ff2)
//! - pure: h′ = A − A·exp(−Δt·(|w_tau| + |ff1|))·ff1
//!
//! On a circuit there is one such cell for each layer of the wiring, without a backbone. A cell's x is what the previous
//! layer has just become, and synapses that are not there are zeros in ff1's and ff2's weights; what a layer's neurons
//! hear from each other is dense, and so are a and b. The state is the layers' one after the other, and the output is
//! the last layer's.

use super::recurrent::{self, Cell, Elapsed, Recurrent, Step, lstm_params};
use super::{Activation, Units, built, check_repeats, check_size, yes};
use crate::init::{Init, Param};
use crate::scope::{Inner, Outer, Scope};
use crate::wiring::Wiring;
use crate::{Error, Result};
use schwann_core::{Tensor, Value};
use serde::{Deserialize, Serialize};

/// How the new state comes of the backbone; see [`Cfc`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CfcMode {
    /// Two candidates and a gate of time between them.
    #[default]
    Default,
    /// The closed-form solution itself.
    Pure,
    /// The second candidate is added to the first.
    NoGate,
}

/// A closed-form continuous-time layer, with ncps' options and defaults.
///
/// Cells compute h′ = tanh(ff1)·(1 − τ) + τ·tanh(ff2) with τ = σ(a·Δt + b), where ff1, ff2, a and b are linear in a
/// backbone of [x, h].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cfc {
    /// Features in.
    pub input_size: usize,
    /// The neurons.
    #[serde(alias = "wiring")]
    pub units: Units,
    /// A linear layer to so many features on the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proj_size: Option<usize>,
    /// Whether the output is that of every step, or of the last alone.
    #[serde(default = "yes")]
    pub return_sequences: bool,
    /// Whether sequences are `[B, T, C]` or `[T, B, C]`.
    #[serde(default = "yes")]
    pub batch_first: bool,
    /// Whether a memory cell (an LSTM) runs before the circuit in every step.
    #[serde(default)]
    pub mixed_memory: bool,
    /// How the new state comes of the backbone.
    #[serde(default)]
    pub mode: CfcMode,
    /// The backbone's function. A circuit has no backbone, so that it has no effect there.
    #[serde(default)]
    pub activation: Activation,
    /// The backbone's width, 128 if nothing is said; not for circuits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backbone_units: Option<usize>,
    /// The backbone's layers, 1 if nothing is said, 0 for none; not for circuits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backbone_layers: Option<usize>,
    /// The share of the backbone's values that training drops, after each layer from the second on; not for circuits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backbone_dropout: Option<f32>,
}

impl Cfc {
    /// A layer with ncps' defaults. `units` is a number or a [`Wiring`].
    pub fn new(input_size: usize, units: impl Into<Units>) -> Cfc {
        Cfc {
            input_size,
            units: units.into(),
            proj_size: None,
            return_sequences: true,
            batch_first: true,
            mixed_memory: false,
            mode: CfcMode::Default,
            activation: Activation::LecunTanh,
            backbone_units: None,
            backbone_layers: None,
            backbone_dropout: None,
        }
    }

    /// The neurons' number.
    pub fn state_size(&self) -> usize {
        match &self.units {
            Units::Count(units) => *units,
            Units::Wired(wiring) => wiring.units(),
        }
    }

    /// Features out.
    pub fn output_size(&self) -> usize {
        self.proj_size.unwrap_or_else(|| self.part_size())
    }

    /// Neurons that are read out: all, or the last layer of a circuit.
    fn part_size(&self) -> usize {
        match &self.units {
            Units::Count(units) => *units,
            Units::Wired(wiring) => wiring.layer(wiring.layer_count().saturating_sub(1)).len(),
        }
    }

    fn backbone(&self) -> (usize, usize, f32) {
        let layers = self.backbone_layers.unwrap_or(1);
        (self.backbone_units.unwrap_or(128), layers, self.backbone_dropout.unwrap_or(0.0))
    }

    /// Where the backbone's linear layers and dropouts stand in PyTorch's list: each layer is followed by its function
    /// and, from the second on, by dropout where there is some.
    fn backbone_places(&self) -> Vec<(usize, Option<usize>)> {
        let (_, layers, dropout) = self.backbone();
        let stride = if dropout > 0.0 { 3 } else { 2 };
        let place = |i: usize| match i {
            0 => (0, None),
            _ => (2 + (i - 1) * stride, (dropout > 0.0).then_some(4 + (i - 1) * stride)),
        };
        (0..layers).map(place).collect()
    }

    fn check(&self) -> Result<()> {
        check_size("input_size", self.input_size)?;
        check_size("units", self.state_size())?;
        self.proj_size.map_or(Ok(()), |n| check_size("proj_size", n))?;
        self.activation.check()?;
        if let Units::Wired(_) = self.units {
            let given = [
                ("backbone_units", self.backbone_units.map(|v| v.to_string())),
                ("backbone_layers", self.backbone_layers.map(|v| v.to_string())),
                ("backbone_dropout", self.backbone_dropout.map(|v| v.to_string())),
            ];
            if let Some((name, Some(value))) = given.into_iter().find(|(_, v)| v.is_some()) {
                return Err(Error::argument(name, value, "nothing, since a wired CfC has no backbone"));
            }
            return Ok(());
        }
        let (units, layers, dropout) = self.backbone();
        check_repeats("backbone_layers", layers, 0)?;
        if layers > 0 {
            check_size("backbone_units", units)?;
        }
        if !(0.0..1.0).contains(&dropout) {
            return Err(Error::argument("backbone_dropout", dropout, "from 0 to less than 1"));
        }
        Ok(())
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        self.check()?;
        let mut params = vec![];
        match &self.units {
            Units::Count(units) => {
                let (width, ..) = self.backbone();
                let mut inputs = self.input_size + units;
                for (place, _) in self.backbone_places() {
                    params.extend(linear(&format!("rnn_cell.backbone.{place}"), inputs, width));
                    inputs = width;
                }
                params.extend(self.cell_params("rnn_cell", inputs, *units));
            }
            Units::Wired(wiring) => {
                let mut inputs = self.input_size;
                for i in 0..wiring.layer_count() {
                    let units = wiring.layer(i).len();
                    params.extend(self.cell_params(&format!("rnn_cell.layer_{i}"), inputs + units, units));
                    inputs = units;
                }
                // Refuses a wiring that was built for other inputs.
                built(wiring, self.input_size)?;
            }
        }
        if self.mixed_memory {
            params.extend(lstm_params(self.input_size, self.state_size()));
        }
        if let Some(projected) = self.proj_size {
            let inputs = self.part_size();
            let init = Init::linear(inputs);
            params.push(Param::new("fc.weight", &[projected, inputs], init.clone()));
            params.push(Param::new("fc.bias", &[projected], init));
        }
        Ok(params)
    }

    fn cell_params(&self, cell: &str, inputs: usize, units: usize) -> Vec<Param> {
        let mut params = linear(&format!("{cell}.ff1"), inputs, units);
        if self.mode == CfcMode::Pure {
            params.push(Param::new(format!("{cell}.w_tau"), &[1, units], Init::Xavier));
            params.push(Param::new(format!("{cell}.A"), &[1, units], Init::Xavier));
        } else {
            params
                .extend(["ff2", "time_a", "time_b"].iter().flat_map(|h| linear(&format!("{cell}.{h}"), inputs, units)));
        }
        params
    }

    pub(crate) fn dropout(&self) -> Vec<(String, usize, f32)> {
        let (width, _, rate) = self.backbone();
        let places = if let Units::Count(_) = self.units { self.backbone_places() } else { vec![] };
        let name = |place: usize| format!("rnn_cell.backbone.{place}.mask");
        places.into_iter().filter_map(|(_, drop)| drop).map(|place| (name(place), width, rate)).collect()
    }

    pub(crate) fn masks(&self) -> Result<Vec<(String, Tensor)>> {
        let Units::Wired(wiring) = &self.units else { return Ok(vec![]) };
        let wiring = built(wiring, self.input_size)?;
        let named = |i| Ok((format!("rnn_cell.layer_{i}.sparsity_mask"), layer_mask(&wiring, i)?));
        (0..wiring.layer_count()).map(named).collect()
    }

    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let layer = Recurrent {
            input_size: self.input_size,
            units: self.state_size(),
            mixed_memory: self.mixed_memory,
            return_sequences: self.return_sequences,
            batch_first: self.batch_first,
        };
        let wiring = match &self.units {
            Units::Count(_) => None,
            Units::Wired(wiring) => Some(built(wiring, self.input_size)?),
        };
        recurrent::build(outer, x, &layer, &Built { cfc: self, wiring })
    }
}

/// A linear layer of a cell: Xavier's start for the weights, PyTorch's for the bias.
fn linear(name: &str, inputs: usize, outputs: usize) -> Vec<Param> {
    vec![
        Param::new(format!("{name}.weight"), &[outputs, inputs], Init::Xavier),
        Param::new(format!("{name}.bias"), &[outputs], Init::linear(inputs)),
    ]
}

/// The layer with its wiring built.
struct Built<'a> {
    cfc: &'a Cfc,
    wiring: Option<Wiring>,
}

impl Built<'_> {
    /// One cell on z; `mask` says which of ff1's and ff2's weights are there.
    fn cell(
        &self,
        scope: &mut Inner<'_, '_>,
        cell: &str,
        z: Value,
        elapsed: Elapsed,
        mask: Option<&Tensor>,
    ) -> Result<Value> {
        let ff1 = masked(scope, "heads.ff1", &format!("{cell}.ff1"), z, mask)?;
        if self.cfc.mode == CfcMode::Pure {
            return pure(scope, cell, ff1, elapsed);
        }
        let ff2 = masked(scope, "heads.ff2", &format!("{cell}.ff2"), z, mask)?;
        let a = scope.linear("heads.time.a", &format!("{cell}.time_a"), z)?;
        let time_b = scope.linear("heads.time.b", &format!("{cell}.time_b"), z)?;
        let b = &mut scope.body;
        let (ff1, ff2) = (b.named("gate.from").tanh(ff1)?, b.named("gate.to").tanh(ff2)?);
        let a = times(b, "heads.time.a.elapsed", a, elapsed)?;
        let time = b.named("heads.time").add(a, time_b)?;
        let share = b.named("gate.share").sigmoid(time)?;
        // ff1·(1 − τ) + τ·ff2 = ff1 + τ·(ff2 − ff1)
        let toward = if self.cfc.mode == CfcMode::NoGate { ff2 } else { b.named("gate.way").sub(ff2, ff1)? };
        let change = b.named("gate.change").mul(share, toward)?;
        Ok(b.named("gate").add(ff1, change)?)
    }
}

/// A linear layer whose weights are zero where `mask` is. The product with the mask is made outside the loop.
fn masked(scope: &mut Inner<'_, '_>, part: &str, name: &str, z: Value, mask: Option<&Tensor>) -> Result<Value> {
    let Some(mask) = mask else { return scope.linear(part, name, z) };
    let bias = scope.param(&format!("{name}.bias"))?;
    let weight = scope.outer.param(&format!("{name}.weight"))?;
    let mask = scope.outer.b.named(&format!("{part}.mask")).constant(mask.clone())?;
    let weight = scope.outer.b.named(&format!("{part}.masked")).mul(weight, mask)?;
    let weight = scope.fixed(weight)?;
    Ok(scope.body.named(part).linear(z, weight, Some(bias))?)
}

/// x·Δt; nothing is built where Δt is 1.
fn times(b: &mut schwann_core::GraphBuilder, name: &str, x: Value, elapsed: Elapsed) -> Result<Value> {
    let dt = match elapsed {
        Elapsed::Constant(1.0) => return Ok(x),
        Elapsed::Constant(dt) => b.named("elapsed").scalar(dt)?,
        Elapsed::Input(dt) => dt,
    };
    Ok(b.named(name).mul(x, dt)?)
}

/// h′ = A − A·exp(−Δt·(|w_tau| + |ff1|))·ff1
fn pure(scope: &mut Inner<'_, '_>, cell: &str, ff1: Value, elapsed: Elapsed) -> Result<Value> {
    let w_tau = scope.param(&format!("{cell}.w_tau"))?;
    let a = scope.param(&format!("{cell}.A"))?;
    let b = &mut scope.body;
    let (w_tau, size) = (b.named("decay.w_tau").abs(w_tau)?, b.named("decay.ff1").abs(ff1)?);
    let rate = b.named("decay.rate").add(w_tau, size)?;
    let rate = times(b, "decay.rate.elapsed", rate, elapsed)?;
    let rate = b.named("decay.exponent").neg(rate)?;
    let decay = b.named("decay").exp(rate)?;
    let decayed = b.named("solution.scaled").mul(a, decay)?;
    let decayed = b.named("solution.decayed").mul(decayed, ff1)?;
    Ok(b.named("solution").sub(a, decayed)?)
}

/// Which weights of a circuit's layer are there, `[units, inputs + units]`: from inputs as wired, among themselves all.
fn layer_mask(wiring: &Wiring, layer: usize) -> Result<Tensor> {
    let units = wiring.layer(layer);
    let inputs: Vec<usize> = match layer {
        0 => (0..wiring.input_dim().unwrap_or(0)).collect(),
        _ => wiring.layer(layer - 1).to_vec(),
    };
    let matrix = if layer == 0 { wiring.sensory_adjacency() } else { wiring.adjacency() };
    let mut mask = Vec::with_capacity(units.len() * (inputs.len() + units.len()));
    for &dest in units {
        let wired = |&src: &usize| f32::from(matrix[src * wiring.units() + dest].unsigned_abs());
        mask.extend(inputs.iter().map(wired));
        mask.extend(units.iter().map(|_| 1.0f32));
    }
    Ok(Tensor::new(&[units.len(), inputs.len() + units.len()], &mask)?)
}

impl Cell for Built<'_> {
    fn masks(&self) -> Vec<(String, usize)> {
        self.cfc.dropout().into_iter().map(|(name, width, _)| (name, width)).collect()
    }

    fn step(&self, scope: &mut Inner<'_, '_>, at: &Step, h: Value) -> Result<(Value, Value)> {
        let Some(wiring) = &self.wiring else {
            let mut z = scope.body.named("joined").concat(&[at.x, h], 1)?;
            let mut masks = at.masks.iter();
            for (place, drop) in self.cfc.backbone_places() {
                z = scope.linear(&format!("backbone.{place}"), &format!("rnn_cell.backbone.{place}"), z)?;
                // Its function is next in PyTorch's list.
                z = scope.body.within(&format!("backbone.{}", place + 1), |b| self.cfc.activation.build(b, z))?;
                if let Some(drop) = drop
                    && let Some(&mask) = masks.next()
                {
                    z = scope.body.named(&format!("backbone.{drop}")).mul(z, mask)?;
                }
            }
            let h = self.cell(scope, "rnn_cell", z, at.elapsed, None)?;
            return Ok((h, h));
        };
        let mut x = at.x;
        let mut states = vec![];
        let mut from = 0;
        for i in 0..wiring.layer_count() {
            let to = from + wiring.layer(i).len();
            x = scope.within(&wiring.layer_name(i), |scope| {
                let h = if wiring.layer_count() == 1 { h } else { scope.body.named("state").slice(h, 1, from, to)? };
                let z = scope.body.named("joined").concat(&[x, h], 1)?;
                let mask = layer_mask(wiring, i)?;
                self.cell(scope, &format!("rnn_cell.layer_{i}"), z, at.elapsed, Some(&mask))
            })?;
            states.push(x);
            from = to;
        }
        let h = if let [one] = states[..] { one } else { scope.body.named("state").concat(&states, 1)? };
        Ok((h, x))
    }

    fn part(&self, scope: &mut Outer<'_>, h: Value) -> Result<Value> {
        let (units, last) = (self.cfc.state_size(), self.cfc.part_size());
        if last == units { Ok(h) } else { Ok(scope.b.named("motor").slice(h, 1, units - last, units)?) }
    }

    fn readout(&self, scope: &mut impl Scope, part: Value) -> Result<Value> {
        if self.cfc.proj_size.is_some() { scope.linear("projection", "fc", part) } else { Ok(part) }
    }
}
