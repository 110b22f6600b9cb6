//! What recurrent layers share: the loop over time and its states; and of CfC and LTC the memory cell before the circuit.

use crate::Result;
use crate::init::{Init, Param};
use crate::scope::{Inner, Outer, Scope, Segments, Timespans};
use schwann_core::op::Type;
use schwann_core::{DType, Dim, Graph, GraphBuilder, Value, shape};

/// The sizes and options of a CfC or LTC layer.
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
    /// In the order of [`Loop::states`].
    pub(crate) states: Vec<Value>,
    /// 1 where the loop does not ask for the time.
    pub(crate) elapsed: Elapsed,
    /// Dropout's masks, in the order of [`Loop::masks`]; none when the graph is not for training.
    pub(crate) masks: Vec<Value>,
}

/// A loop over time.
pub(crate) struct Loop<'a> {
    pub(crate) input_size: usize,
    pub(crate) batch_first: bool,
    /// What is carried from step to step: `h`, and `c` where there is a memory, with its width.
    pub(crate) states: &'a [(&'a str, usize)],
    /// Dropout's masks: name and width.
    pub(crate) masks: &'a [(String, usize)],
    /// Whether the time between steps has an effect.
    pub(crate) timed: bool,
}

/// Adds a loop over `x`, `[B, T, C]` or `[T, B, C]`. `step` gives the new states and what goes out of each step, if
/// anything; what comes back are the last states and the sequence of what went out.
pub(crate) fn over_time(
    outer: &mut Outer<'_>,
    x: Value,
    shape: &Loop<'_>,
    step: impl FnOnce(&mut Inner<'_, '_>, &Step) -> Result<(Vec<Value>, Option<Value>)>,
) -> Result<(Vec<Value>, Option<Value>)> {
    let time_axis = usize::from(shape.batch_first);
    let rows = outer.rows();
    let row_of = |width: usize| Type::new(DType::F32, shape![&rows, width]);

    let mut states = vec![];
    let mut inputs = vec![];
    for &(name, width) in shape.states {
        states.push(outer.first_state(name, width)?);
        inputs.push((name, row_of(width)));
    }
    let mut sequences = vec![x];
    inputs.push(("x", row_of(shape.input_size)));
    let timespans = outer.timespans.filter(|_| shape.timed);
    if let Some(timespans) = timespans {
        sequences.push(timespans);
        inputs.push(("timespans", row_of(1)));
    }
    let masks = if outer.training { shape.masks } else { &[] };
    for (name, width) in masks {
        let of_all = outer.sequence_shape(shape.batch_first, *width);
        let whole = format!("{}{name}", outer.prefix);
        sequences.push(outer.b.input(&whole, DType::F32, of_all)?);
        inputs.push((name, row_of(*width)));
    }

    let constant = match outer.options.timespans {
        Timespans::Constant(dt) if shape.timed => dt,
        _ => 1.0,
    };
    let (mut scope, values) = Inner::new(outer, &inputs)?;
    let mut values = values.into_iter();
    let mut next = || values.next().expect("one value was made for each input");
    let at = Step {
        states: shape.states.iter().map(|_| next()).collect(),
        x: next(),
        elapsed: if timespans.is_some() { Elapsed::Input(next()) } else { Elapsed::Constant(constant) },
        masks: values.collect(),
    };
    let (new, y) = step(&mut scope, &at)?;
    for ((name, _), value) in shape.states.iter().zip(&new) {
        scope.body.output(name, *value)?;
    }
    if let Some(y) = y {
        scope.body.output("y", y)?;
    }
    let (body, fixed) = scope.finish()?;

    let mut out = match outer.options.segments {
        Some(segments) if segments.each < segments.steps => {
            in_segments(outer, body, &states, &sequences, &fixed, time_axis, segments)?
        }
        _ => outer.b.named("steps").scan(body, &states, &sequences, &fixed, time_axis)?,
    };
    for ((name, _), value) in shape.states.iter().zip(&out) {
        outer.last_state(name, *value);
    }
    let sequence = y.and_then(|_| out.pop());
    Ok((out, sequence))
}

/// The same loop as a loop over segments, each of which is a loop over its steps; steps that fill no segment follow in a
/// loop of their own.
fn in_segments(
    outer: &mut Outer<'_>,
    body: Graph,
    states: &[Value],
    sequences: &[Value],
    fixed: &[Value],
    axis: usize,
    Segments { steps, each }: Segments,
) -> Result<Vec<Value>> {
    let each = each.max(1);
    let count = steps / each;
    // A segment: states, then its part of each sequence, then what stays the same.
    let mut segment = GraphBuilder::new();
    let _ = segment.enter(outer.b.path());
    let mut inputs = vec![];
    for (i, value) in states.iter().chain(sequences).chain(fixed).enumerate() {
        let mut ty = outer.b.ty(*value).clone();
        if (states.len()..states.len() + sequences.len()).contains(&i) {
            let mut dims = ty.shape.dims().to_vec();
            dims[axis] = Dim::fixed(each);
            ty.shape = dims.into();
        }
        let name = outer.b.graph().node(*value).name.clone();
        inputs.push(segment.named(&format!("segment.{name}")).input(&format!("{i}"), ty.dtype, ty.shape)?);
    }
    let (own_states, rest) = inputs.split_at(states.len());
    let (own_sequences, own_fixed) = rest.split_at(sequences.len());
    let results = segment.named("steps").scan(body.clone(), own_states, own_sequences, own_fixed, axis)?;
    for (i, value) in results.iter().enumerate() {
        segment.output(&format!("{i}"), *value)?;
    }
    let segment = segment.build()?;

    // [B, T, C] → [B, segments, steps of one, C]
    let b = &mut outer.b;
    let part = |b: &mut GraphBuilder, x: Value, from: usize, to: usize| match (from, to) {
        (0, to) if to == steps => Ok(x),
        _ => b.named("steps.part").slice(x, axis, from, to),
    };
    let mut cut = vec![];
    for x in sequences {
        let whole = part(b, *x, 0, count * each)?;
        let mut dims = b.ty(whole).shape.dims().to_vec();
        dims.splice(axis..=axis, [Dim::fixed(count), Dim::fixed(each)]);
        cut.push(b.named("segments.cut").reshape(whole, dims)?);
    }
    let mut out = b.named("segments").scan(segment, states, &cut, fixed, axis)?;
    for value in &mut out[states.len()..] {
        let mut dims = b.ty(*value).shape.dims().to_vec();
        dims.splice(axis..=axis + 1, [Dim::fixed(count * each)]);
        *value = b.named("segments.joined").reshape(*value, dims)?;
    }
    if count * each == steps {
        return Ok(out);
    }
    let mut tail = vec![];
    for x in sequences {
        tail.push(part(b, *x, count * each, steps)?);
    }
    let last = b.named("steps").scan(body, &out[..states.len()], &tail, fixed, axis)?;
    let mut all = last[..states.len()].to_vec();
    for (head, tail) in out[states.len()..].iter().zip(&last[states.len()..]) {
        all.push(b.named("steps.joined").concat(&[*head, *tail], axis)?);
    }
    Ok(all)
}

/// What a CfC or LTC layer does in a step.
pub(crate) trait Cell {
    /// Dropout's masks: name and width.
    fn masks(&self) -> Vec<(String, usize)>;
    /// One step from the state `h`: the new state, and the part of it that is read out.
    fn step(&self, scope: &mut Inner<'_, '_>, at: &Step, h: Value) -> Result<(Value, Value)>;
    /// The part of a state that is read out.
    fn part(&self, scope: &mut Outer<'_>, h: Value) -> Result<Value>;
    /// What the layer gives for that part.
    fn readout(&self, scope: &mut impl Scope, part: Value) -> Result<Value>;
}

/// Adds a CfC's or LTC's loop over `x`, and gives its output: a sequence, or the last step's.
pub(crate) fn build(outer: &mut Outer<'_>, x: Value, layer: &Recurrent, cell: &impl Cell) -> Result<Value> {
    let states = [("h", layer.units), ("c", layer.units)];
    let shape = Loop {
        input_size: layer.input_size,
        batch_first: layer.batch_first,
        states: if layer.mixed_memory { &states } else { &states[..1] },
        masks: &cell.masks(),
        timed: true,
    };
    let (last, sequence) = over_time(outer, x, &shape, |scope, at| {
        let mut h = at.states[0];
        let mut memory = None;
        if let Some(&c) = at.states.get(1) {
            let (new_h, new_c) = scope.within("lstm", |scope| lstm(scope, at.x, h, c, layer.units))?;
            (h, memory) = (new_h, Some(new_c));
        }
        let (new, part) = cell.step(scope, at, h)?;
        let y = if layer.return_sequences { Some(cell.readout(scope, part)?) } else { None };
        Ok(([new].into_iter().chain(memory).collect(), y))
    })?;
    if let Some(sequence) = sequence {
        return Ok(sequence);
    }
    let part = cell.part(outer, last[0])?;
    cell.readout(outer, part)
}

/// ncps' memory cell: z = W x + b + U h in four parts, c′ = c·σ(z₃ + 1) + tanh(z₁)·σ(z₂), h′ = tanh(c′)·σ(z₄).
fn lstm(scope: &mut Inner<'_, '_>, x: Value, h: Value, c: Value, units: usize) -> Result<(Value, Value)> {
    let from_x = scope.linear("input_map", "lstm.input_map", x)?;
    let recurrent = scope.param("lstm.recurrent_map.weight")?;
    let b = &mut scope.body;
    let from_h = b.named("recurrent_map").linear(h, recurrent, None)?;
    let z = b.named("gates").add(from_x, from_h)?;
    let mut part = |name: &str, i: usize| b.named(name).slice(z, 1, i * units, (i + 1) * units);
    let (candidate, input_gate) = (part("candidate.part", 0)?, part("input_gate.part", 1)?);
    let (forget_gate, output_gate) = (part("forget_gate.part", 2)?, part("output_gate.part", 3)?);
    let candidate = b.named("candidate").tanh(candidate)?;
    let input_gate = b.named("input_gate").sigmoid(input_gate)?;
    let one = b.named("forget_gate.one").scalar(1.0)?;
    let forget_gate = b.named("forget_gate.shifted").add(forget_gate, one)?;
    let forget_gate = b.named("forget_gate").sigmoid(forget_gate)?;
    let output_gate = b.named("output_gate").sigmoid(output_gate)?;
    let (kept, added) = (b.named("cell.kept").mul(c, forget_gate)?, b.named("cell.added").mul(candidate, input_gate)?);
    let c = b.named("cell").add(kept, added)?;
    let squashed = b.named("hidden.squashed").tanh(c)?;
    Ok((b.named("hidden").mul(squashed, output_gate)?, c))
}

/// The memory cell's parameters.
pub(crate) fn lstm_params(inputs: usize, units: usize) -> Vec<Param> {
    vec![
        Param::new("lstm.input_map.weight", &[4 * units, inputs], Init::Xavier),
        Param::new("lstm.input_map.bias", &[4 * units], Init::Uniform { low: -0.1, high: 0.1 }),
        Param::new("lstm.recurrent_map.weight", &[4 * units, units], Init::Orthogonal),
    ]
}
