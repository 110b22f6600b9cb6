//! What CfC and LTC layers share: the loop over time, its states, and the memory cell before the circuit.

use crate::Result;
use crate::init::{Init, Param};
use crate::scope::{Inner, Outer, Scope, Timespans};
use schwann_core::op::Type;
use schwann_core::{DType, Value, shape};

/// The sizes and options of a recurrent layer.
pub(crate) struct Recurrent {
    pub(crate) input_size: usize,
    pub(crate) units: usize,
    pub(crate) mixed_memory: bool,
    pub(crate) return_sequences: bool,
    pub(crate) batch_first: bool,
}

/// The time since the last step.
#[derive(Clone, Copy)]
pub(crate) enum Elapsed {
    Constant(f32),
    /// `[B, 1]`
    Input(Value),
}

/// What a step of the loop starts from.
pub(crate) struct Step {
    pub(crate) x: Value,
    pub(crate) h: Value,
    pub(crate) elapsed: Elapsed,
    /// Dropout's masks, in the order of [`Cell::masks`]; none when the graph is not for training.
    pub(crate) masks: Vec<Value>,
}

/// What a layer does in a step.
pub(crate) trait Cell {
    /// Dropout's masks: name and width.
    fn masks(&self) -> Vec<(String, usize)>;
    /// One step: the new state, and the part of it that is read out.
    fn step(&self, scope: &mut Inner<'_, '_>, step: &Step) -> Result<(Value, Value)>;
    /// The part of a state that is read out.
    fn part(&self, scope: &mut Outer<'_>, h: Value) -> Result<Value>;
    /// What the layer gives for that part.
    fn readout(&self, scope: &mut impl Scope, part: Value) -> Result<Value>;
}

/// Adds the layer's loop over `x`, `[B, T, C]` or `[T, B, C]`, and gives its output: a sequence, or the last step's.
pub(crate) fn build(outer: &mut Outer<'_>, x: Value, layer: &Recurrent, cell: &impl Cell) -> Result<Value> {
    let time_axis = usize::from(layer.batch_first);
    let rows = outer.rows();
    let row_of = |width: usize| Type::new(DType::F32, shape![&rows, width]);

    let names: &[&str] = if layer.mixed_memory { &["h", "c"] } else { &["h"] };
    let mut states = vec![];
    let mut inputs = vec![];
    for name in names {
        states.push(outer.first_state(name, layer.units)?);
        inputs.push((*name, row_of(layer.units)));
    }
    let mut sequences = vec![x];
    inputs.push(("x", row_of(layer.input_size)));
    if let Some(timespans) = outer.timespans {
        sequences.push(timespans);
        inputs.push(("timespans", row_of(1)));
    }
    let masks = if outer.training { cell.masks() } else { vec![] };
    for (name, width) in &masks {
        let shape = outer.sequence_shape(layer.batch_first, *width);
        let whole = format!("{}{name}", outer.prefix);
        sequences.push(outer.b.input(&whole, DType::F32, shape)?);
        inputs.push((name, row_of(*width)));
    }

    let timespans = outer.options.timespans;
    let (mut scope, values) = Inner::new(outer, &inputs)?;
    let mut values = values.into_iter();
    let mut next = || values.next().expect("one value was made for each input");
    let mut h = next();
    let c = layer.mixed_memory.then(&mut next);
    let x = next();
    let elapsed = match timespans {
        Timespans::Constant(dt) => Elapsed::Constant(dt),
        Timespans::PerStep => Elapsed::Input(next()),
    };
    let mut memory = None;
    if let Some(c) = c {
        let (new_h, new_c) = lstm(&mut scope, x, h, c, layer.units)?;
        (h, memory) = (new_h, Some(new_c));
    }
    let step = Step { x, h, elapsed, masks: values.collect() };
    let (new, part) = cell.step(&mut scope, &step)?;
    scope.body.output("h", new)?;
    if let Some(c) = memory {
        scope.body.output("c", c)?;
    }
    if layer.return_sequences {
        let y = cell.readout(&mut scope, part)?;
        scope.body.output("y", y)?;
    }
    let (body, fixed) = scope.finish()?;

    let name = format!("{}steps", outer.prefix);
    let out = outer.b.named(&name).scan(body, &states, &sequences, &fixed, time_axis)?;
    for (name, value) in names.iter().zip(&out) {
        outer.last_state(name, *value);
    }
    if layer.return_sequences {
        return Ok(out[names.len()]);
    }
    let part = cell.part(outer, out[0])?;
    cell.readout(outer, part)
}

/// ncps' memory cell: z = W x + b + U h in four parts, c′ = c·σ(z₃ + 1) + tanh(z₁)·σ(z₂), h′ = tanh(c′)·σ(z₄).
fn lstm(scope: &mut Inner<'_, '_>, x: Value, h: Value, c: Value, units: usize) -> Result<(Value, Value)> {
    let from_x = scope.linear("lstm.input_map", x)?;
    let recurrent = scope.param("lstm.recurrent_map.weight")?;
    let b = &mut scope.body;
    let from_h = b.linear(h, recurrent, None)?;
    let z = b.add(from_x, from_h)?;
    let mut part = |i: usize| b.slice(z, 1, i * units, (i + 1) * units);
    let (candidate, input_gate, forget_gate, output_gate) = (part(0)?, part(1)?, part(2)?, part(3)?);
    let candidate = b.tanh(candidate)?;
    let input_gate = b.sigmoid(input_gate)?;
    let one = b.scalar(1.0)?;
    let forget_gate = b.add(forget_gate, one)?;
    let forget_gate = b.sigmoid(forget_gate)?;
    let output_gate = b.sigmoid(output_gate)?;
    let (kept, added) = (b.mul(c, forget_gate)?, b.mul(candidate, input_gate)?);
    let c = b.add(kept, added)?;
    let squashed = b.tanh(c)?;
    Ok((b.mul(squashed, output_gate)?, c))
}

/// The memory cell's parameters.
pub(crate) fn lstm_params(inputs: usize, units: usize) -> Vec<Param> {
    vec![
        Param::new("lstm.input_map.weight", &[4 * units, inputs], Init::Xavier),
        Param::new("lstm.input_map.bias", &[4 * units], Init::Uniform { low: -0.1, high: 0.1 }),
        Param::new("lstm.recurrent_map.weight", &[4 * units, units], Init::Orthogonal),
    ]
}
