//! Liquid time-constant networks: neurons that leak, and synapses that open with the voltage before them.
//!
//! With x′ = x·input_w + input_b, a synapse s → d conducts w·σ(sigma·(v_s − mu)) toward the potential erev. A step takes
//! `ode_unfolds` smaller ones of a semi-implicit solver:
//!
//! v ← (cm/Δt′·v + gleak·vleak + Σ syn·erev) / (cm/Δt′ + gleak + Σ syn + ε), Δt′ = Δt / unfolds,
//!
//! where the sums run over the synapses that end at a neuron, those from inputs included. The output is
//! v[..outputs]·output_w + output_b.
//!
//! Only synapses that exist are computed: their parameters are gathered from the matrices once, outside the loop, in the
//! order of where they end, and sums by segment bring them together.

use super::recurrent::{self, Cell, Elapsed, Recurrent, Step, lstm_params};
use super::{Units, built, check_repeats, check_size, yes};
use crate::init::{Init, Param};
use crate::scope::{Inner, Outer, Scope};
use crate::wiring::{FullyConnected, Wiring};
use crate::{Error, Result};
use schwann_core::{Tensor, Value};
use serde::{Deserialize, Deserializer, Serialize};

/// What happens to inputs and outputs, one number a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// x·w + b
    #[default]
    Affine,
    /// x·w
    Linear,
    /// x
    None,
}

/// Its name; `null` is `none`, as in Python.
impl<'de> Deserialize<'de> for Mapping {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Mapping, D::Error> {
        match Option::<String>::deserialize(d)?.as_deref() {
            Some("affine") => Ok(Mapping::Affine),
            Some("linear") => Ok(Mapping::Linear),
            Some("none") | None => Ok(Mapping::None),
            Some(other) => Err(serde::de::Error::unknown_variant(other, &["affine", "linear", "none"])),
        }
    }
}

/// A liquid time-constant layer, with ncps' options and defaults.
///
/// Neurons follow dv/dt = −gleak·(v − vleak)/cm − Σ w·σ(sigma·(v_source − mu))·(v − erev)/cm, over the synapses that
/// end at each, solved in `ode_unfolds` semi-implicit steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ltc {
    /// Features in.
    pub input_size: usize,
    /// The neurons; a number means a [`FullyConnected`] wiring of so many.
    #[serde(alias = "wiring")]
    pub units: Units,
    /// Whether the output is that of every step, or of the last alone.
    #[serde(default = "yes")]
    pub return_sequences: bool,
    /// Whether sequences are `[B, T, C]` or `[T, B, C]`.
    #[serde(default = "yes")]
    pub batch_first: bool,
    /// Whether a memory cell (an LSTM) runs before the circuit in every step.
    #[serde(default)]
    pub mixed_memory: bool,
    /// What happens to inputs.
    #[serde(default)]
    pub input_mapping: Mapping,
    /// What happens to outputs.
    #[serde(default)]
    pub output_mapping: Mapping,
    /// The solver's steps in a step.
    #[serde(default = "unfolds")]
    pub ode_unfolds: usize,
    /// Keeps a denominator from being 0.
    #[serde(default = "epsilon")]
    pub epsilon: f32,
    /// Whether w, cm and gleak pass through softplus to stay positive; if not, training must keep them so
    /// ([`Model::constrain`](crate::Model::constrain)).
    #[serde(default = "yes")]
    pub implicit_param_constraints: bool,
}

fn unfolds() -> usize {
    6
}
fn epsilon() -> f32 {
    1e-8
}

/// Parameters that must not be negative.
pub(crate) const POSITIVE: [&str; 4] = ["w", "sensory_w", "cm", "gleak"];

impl Ltc {
    /// A layer with ncps' defaults. `units` is a number or a [`Wiring`].
    pub fn new(input_size: usize, units: impl Into<Units>) -> Ltc {
        Ltc {
            input_size,
            units: units.into(),
            return_sequences: true,
            batch_first: true,
            mixed_memory: false,
            input_mapping: Mapping::Affine,
            output_mapping: Mapping::Affine,
            ode_unfolds: unfolds(),
            epsilon: epsilon(),
            implicit_param_constraints: true,
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
        match &self.units {
            Units::Count(units) => *units,
            Units::Wired(wiring) => wiring.output_dim(),
        }
    }

    /// The circuit, built for the layer's inputs.
    pub fn wiring(&self) -> Result<Wiring> {
        match &self.units {
            Units::Count(units) => FullyConnected::new(*units).build(self.input_size),
            Units::Wired(wiring) => built(wiring, self.input_size),
        }
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        check_size("input_size", self.input_size)?;
        check_size("units", self.state_size())?;
        check_repeats("ode_unfolds", self.ode_unfolds, 1)?;
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return Err(Error::argument("epsilon", self.epsilon, "a finite number, not negative"));
        }
        let wiring = self.wiring()?;
        let (inputs, units, outputs) = (self.input_size, wiring.units(), wiring.output_dim());
        let uniform = |low, high| Init::Uniform { low, high };
        let mut params = vec![];
        let mut add = |name: &str, shape: &[usize], init: Init| {
            params.push(Param::new(format!("rnn_cell.{name}"), shape, init));
        };
        add("gleak", &[units], uniform(0.001, 1.0));
        add("vleak", &[units], uniform(-0.2, 0.2));
        add("cm", &[units], uniform(0.4, 0.6));
        for (kind, sources, polarities) in
            [("", units, wiring.adjacency()), ("sensory_", inputs, wiring.sensory_adjacency())]
        {
            let shape = [sources, units];
            add(&format!("{kind}sigma"), &shape, uniform(3.0, 8.0));
            add(&format!("{kind}mu"), &shape, uniform(0.3, 0.8));
            add(&format!("{kind}w"), &shape, uniform(0.001, 1.0));
            let polarities = polarities.iter().map(|&p| f32::from(p)).collect();
            add(&format!("{kind}erev"), &shape, Init::Values(polarities));
        }
        for (kind, mapping, width) in [("input", self.input_mapping, inputs), ("output", self.output_mapping, outputs)]
        {
            if mapping != Mapping::None {
                add(&format!("{kind}_w"), &[width], Init::Constant(1.0));
            }
            if mapping == Mapping::Affine {
                add(&format!("{kind}_b"), &[width], Init::Constant(0.0));
            }
        }
        if self.mixed_memory {
            params.extend(lstm_params(inputs, units));
        }
        Ok(params)
    }

    pub(crate) fn masks(&self) -> Result<Vec<(String, Tensor)>> {
        let wiring = self.wiring()?;
        let mask = |name: &str, matrix: &[i8]| {
            let values: Vec<f32> = matrix.iter().map(|p| f32::from(p.unsigned_abs())).collect();
            let shape = [matrix.len() / wiring.units(), wiring.units()];
            Ok::<_, Error>((format!("rnn_cell.{name}"), Tensor::new(&shape, &values)?))
        };
        Ok(vec![mask("sparsity_mask", wiring.adjacency())?, mask("sensory_sparsity_mask", wiring.sensory_adjacency())?])
    }

    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let wiring = self.wiring()?;
        let layer = Recurrent {
            input_size: self.input_size,
            units: wiring.units(),
            mixed_memory: self.mixed_memory,
            return_sequences: self.return_sequences,
            batch_first: self.batch_first,
        };
        recurrent::build(outer, x, &layer, &Built { ltc: self, wiring })
    }
}

/// x·w + b, or less of it.
fn mapped(scope: &mut impl Scope, kind: &str, mapping: Mapping, mut x: Value) -> Result<Value> {
    if mapping != Mapping::None {
        let w = scope.param(&format!("rnn_cell.{kind}_w"))?;
        let scaled = format!("{kind}.scaled");
        x = scope.b().named(if mapping == Mapping::Affine { &scaled } else { kind }).mul(x, w)?;
    }
    if mapping == Mapping::Affine {
        let bias = scope.param(&format!("rnn_cell.{kind}_b"))?;
        x = scope.b().named(kind).add(x, bias)?;
    }
    Ok(x)
}

/// The layer with its wiring built.
struct Built<'a> {
    ltc: &'a Ltc,
    wiring: Wiring,
}

/// The synapses of a matrix as the body sees them, sorted by where they end, then by where they begin; S of them.
struct Synapses {
    /// Where they begin and end, `i32[S]`.
    src: Value,
    dest: Value,
    /// `[S]`
    sigma: Value,
    mu: Value,
    w: Value,
    /// w·erev
    w_erev: Value,
    /// What multiplies what comes before the synapses, and what is added to it: the mapping of inputs, synapse by synapse,
    /// where it becomes part of sigma and mu.
    mapping: [Option<Value>; 2],
}

impl Built<'_> {
    /// P(x): softplus where parameters are kept positive that way.
    fn positive(&self, outer: &mut Outer<'_>, name: &str, x: Value) -> Result<Value> {
        if self.ltc.implicit_param_constraints { Ok(outer.b.named(name).softplus(x)?) } else { Ok(x) }
    }

    /// The synapses of the neurons (`kind` is empty) or of the inputs (`sensory_`); `None` where there are none. They are
    /// the part of the network that is being built.
    fn synapses(&self, scope: &mut Inner<'_, '_>, kind: &str) -> Result<Option<Synapses>> {
        let units = self.wiring.units();
        let mut ends: Vec<(usize, usize)> = match kind {
            "" => self.wiring.synapses().map(|(src, dest, _)| (dest, src)).collect(),
            _ => self.wiring.sensory_synapses().map(|(src, dest, _)| (dest, src)).collect(),
        };
        if ends.is_empty() {
            return Ok(None);
        }
        ends.sort_unstable();
        // A wiring's matrices have at most 2²⁶ entries, so that every index is an i32.
        let index = |of: &dyn Fn(&(usize, usize)) -> usize| {
            let values: Vec<i32> = ends.iter().map(|end| of(end) as i32).collect();
            Tensor::new(&[values.len()], &values)
        };
        let outer = &mut *scope.outer;
        let places = outer.b.named("places").constant(index(&|&(dest, src)| src * units + dest)?)?;
        let mut gathered = |name: &str| -> Result<Value> {
            let matrix = outer.param(&format!("rnn_cell.{kind}{name}"))?;
            let count = outer.b.ty(matrix).shape.as_fixed().map_or(0, |sizes| sizes.iter().product());
            let flat = outer.b.named(&format!("{name}.flat")).reshape(matrix, [count])?;
            Ok(outer.b.named(name).gather(flat, places, 0)?)
        };
        let (sigma, mu, w, erev) = (gathered("sigma")?, gathered("mu")?, gathered("w")?, gathered("erev")?);
        let w = self.positive(outer, "w.positive", w)?;
        let w_erev = outer.b.named("w_erev").mul(w, erev)?;
        let mut mapping = [None; 2];
        if kind == "sensory_" {
            let sources = outer.b.named("sources").constant(index(&|&(_, src)| src)?)?;
            let parts = [("input_w", Mapping::None), ("input_b", Mapping::Linear)];
            for (list, (name, without)) in mapping.iter_mut().zip(parts) {
                if self.ltc.input_mapping != Mapping::None && self.ltc.input_mapping != without {
                    let whole = scope.outer.param(&format!("rnn_cell.{name}"))?;
                    let each = scope.outer.b.named(name).gather(whole, sources, 0)?;
                    *list = Some(scope.fixed(each)?);
                }
            }
        }
        Ok(Some(Synapses {
            mapping,
            src: scope.body.named("sources").constant(index(&|&(_, src)| src)?)?,
            dest: scope.body.named("destinations").constant(index(&|&(dest, _)| dest)?)?,
            sigma: scope.fixed(sigma)?,
            mu: scope.fixed(mu)?,
            w: scope.fixed(w)?,
            w_erev: scope.fixed(w_erev)?,
        }))
    }

    /// Σ syn·erev and Σ syn at each neuron, from the voltages before the synapses.
    fn sums(&self, scope: &mut Inner<'_, '_>, v: Value, s: &Synapses) -> Result<(Value, Value)> {
        let units = self.wiring.units();
        let b = &mut scope.body;
        let mut pre = b.named("before").gather(v, s.src, 1)?;
        if let Some(w) = s.mapping[0] {
            pre = b.named("before.scaled").mul(pre, w)?;
        }
        if let Some(bias) = s.mapping[1] {
            pre = b.named("before.shifted").add(pre, bias)?;
        }
        let above = b.named("open.above_mu").sub(pre, s.mu)?;
        let scaled = b.named("open.scaled").mul(s.sigma, above)?;
        let act = b.named("open").sigmoid(scaled)?;
        let conducted = b.named("conductance").mul(act, s.w)?;
        let den = b.named("conductance.sum").segment_sum(conducted, s.dest, 1, units)?;
        let driven = b.named("current").mul(act, s.w_erev)?;
        let num = b.named("current.sum").segment_sum(driven, s.dest, 1, units)?;
        Ok((num, den))
    }
}

impl Cell for Built<'_> {
    fn masks(&self) -> Vec<(String, usize)> {
        vec![]
    }

    fn step(&self, scope: &mut Inner<'_, '_>, at: &Step, h: Value) -> Result<(Value, Value)> {
        // What depends on parameters alone.
        let gleak = scope.outer.param("rnn_cell.gleak")?;
        let gleak = self.positive(scope.outer, "gleak", gleak)?;
        let vleak = scope.outer.param("rnn_cell.vleak")?;
        let leak = scope.outer.b.named("leak").mul(gleak, vleak)?;
        let cm = scope.outer.param("rnn_cell.cm")?;
        let cm = self.positive(scope.outer, "cm", cm)?;
        let epsilon = scope.outer.b.named("epsilon").scalar(self.ltc.epsilon)?;
        let gleak_epsilon = scope.outer.b.named("gleak.epsilon").add(gleak, epsilon)?;
        let leak = scope.fixed(leak)?;

        // cm/Δt′ and cm/Δt′ + gleak + ε, once a step, or once for all where Δt is the same in each.
        let unfolds = self.ltc.ode_unfolds as f32;
        let (cm_t, rest) = match at.elapsed {
            Elapsed::Constant(dt) => {
                let outer = &mut scope.outer.b;
                let per_unfold = outer.named("elapsed").scalar(dt / unfolds)?;
                let cm_t = outer.named("cm.elapsed").div(cm, per_unfold)?;
                let rest = outer.named("rest").add(cm_t, gleak_epsilon)?;
                (scope.fixed(cm_t)?, scope.fixed(rest)?)
            }
            Elapsed::Input(dt) => {
                let (cm, gleak_epsilon) = (scope.fixed(cm)?, scope.fixed(gleak_epsilon)?);
                let b = &mut scope.body;
                let unfolds = b.named("unfolds").scalar(unfolds)?;
                let per_unfold = b.named("elapsed").div(dt, unfolds)?;
                let cm_t = b.named("cm.elapsed").div(cm, per_unfold)?;
                (cm_t, b.named("rest").add(cm_t, gleak_epsilon)?)
            }
        };

        // What inputs do is the same in each unfolding.
        let (mut num, mut den) = (leak, rest);
        scope.within("sensory", |scope| {
            let Some(sensory) = self.synapses(scope, "sensory_")? else { return Ok(()) };
            let sums = self.sums(scope, at.x, &sensory)?;
            num = scope.body.named("above").add(leak, sums.0)?;
            den = scope.body.named("below").add(rest, sums.1)?;
            Ok(())
        })?;

        let synapses = scope.within("synapses", |scope| self.synapses(scope, ""))?;
        let mut v = h;
        for i in 0..self.ltc.ode_unfolds {
            let part = format!("unfold.{i}");
            let (over, under) = scope.within(&part, |scope| {
                let charge = scope.body.named("charge").mul(cm_t, v)?;
                let over = scope.body.named("charge.above").add(charge, num)?;
                let Some(synapses) = &synapses else { return Ok((over, den)) };
                let sums = self.sums(scope, v, synapses)?;
                Ok((scope.body.named("above").add(over, sums.0)?, scope.body.named("below").add(den, sums.1)?))
            })?;
            // The compiler makes one call of all unfoldings, and calls it after the last.
            let name = if i + 1 < self.ltc.ode_unfolds { part + ".voltage" } else { "voltage".to_owned() };
            v = scope.body.named(&name).div(over, under)?;
        }
        Ok((v, v))
    }

    fn part(&self, _: &mut Outer<'_>, h: Value) -> Result<Value> {
        Ok(h)
    }

    fn readout(&self, scope: &mut impl Scope, v: Value) -> Result<Value> {
        let (units, outputs) = (self.wiring.units(), self.wiring.output_dim());
        let out = if outputs < units { scope.b().named("motor").slice(v, 1, 0, outputs)? } else { v };
        mapped(scope, "output", self.ltc.output_mapping, out)
    }
}
