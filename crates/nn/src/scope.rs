//! Building a model's graph: one scope for the graph itself, one for the body of its loop.
//!
//! Weights live outside the loop, and a body sees them as values that stay the same in every step. What depends on
//! weights alone is therefore built in the outer scope, where the compiler does it once, ahead of every run.

use crate::{Error, Result};
use schwann_core::op::Type;
use schwann_core::{DType, Dim, Graph, GraphBuilder, Shape, Tensor, Value, shape};
use std::collections::BTreeMap;

/// The time between steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Timespans {
    /// The same for every step of every sample; the graph has no input for it.
    Constant(f32),
    /// An input `timespans`, one number a sample and step: `[B, T]`, time-major `[T, B]`, without a batch `[T]`.
    PerStep,
}

/// Where the first state comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialState {
    /// Inputs `h0` (and `c0`) that a session carries from run to run: zero at first, then what the last run left.
    Carried,
    /// Inputs `h0` (and `c0`) that each run must give.
    Given,
    /// Zero in every run; the graph has no input for it.
    Zero,
}

/// What parameters are in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// Weights with their data: the compiler may work on them ahead of every run.
    Weights,
    /// Inputs of the parameters' names, which each run must give: for training, where they change all the time.
    Inputs,
}

/// How a model becomes a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphOptions {
    /// The time between steps; 1 if nothing else is said.
    pub timespans: Timespans,
    /// Whether inputs have a batch axis; without it, `x` is `[T, C]` and states are `[H]`.
    pub batched: bool,
    /// Where the first state comes from.
    pub state: InitialState,
    /// What parameters are.
    pub parameters: Parameters,
    /// Where gradients are to take little memory: how long sequences are, and how they are cut.
    pub segments: Option<Segments>,
}

/// A sequence of known length in segments. Its gradient keeps only the states between segments, and computes each segment
/// again when it comes to it: less memory, for the time of one more forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Steps of every sequence.
    pub steps: usize,
    /// Steps of a segment; the last one may be shorter.
    pub each: usize,
}

impl Default for GraphOptions {
    fn default() -> GraphOptions {
        GraphOptions {
            timespans: Timespans::Constant(1.0),
            batched: true,
            state: InitialState::Carried,
            parameters: Parameters::Weights,
            segments: None,
        }
    }
}

impl GraphOptions {
    /// For training: states start at zero in every run, and parameters are inputs.
    pub fn training() -> GraphOptions {
        GraphOptions { state: InitialState::Zero, parameters: Parameters::Inputs, ..GraphOptions::default() }
    }
    /// With these timespans.
    pub fn timespans(mut self, timespans: Timespans) -> GraphOptions {
        self.timespans = timespans;
        self
    }
    /// With or without a batch axis.
    pub fn batched(mut self, batched: bool) -> GraphOptions {
        self.batched = batched;
        self
    }
    /// With this first state.
    pub fn state(mut self, state: InitialState) -> GraphOptions {
        self.state = state;
        self
    }
    /// With sequences in segments.
    pub fn segments(mut self, segments: Option<Segments>) -> GraphOptions {
        self.segments = segments;
        self
    }
    /// With parameters of this kind.
    pub fn parameters(mut self, parameters: Parameters) -> GraphOptions {
        self.parameters = parameters;
        self
    }
}

/// Timespans as a graph takes them for this `x`: one number a sample and step, without a last axis of size 1.
pub fn timespans_for(x: &Tensor, timespans: &Tensor) -> Result<Tensor> {
    let leading = &x.shape()[..x.shape().len().saturating_sub(1)];
    let shape = timespans.shape();
    let column = shape.len() == leading.len() + 1 && shape.starts_with(leading) && shape.ends_with(&[1]);
    if timespans.dtype() != DType::F32 || !(shape == leading || column) {
        let expected = format!("f32{leading:?}, one number a sample and step");
        return Err(Error::argument("timespans", timespans, expected));
    }
    Ok(timespans.reshaped(leading)?)
}

/// Where operations go.
pub(crate) trait Scope {
    /// The builder.
    fn b(&mut self) -> &mut GraphBuilder;
    /// A parameter of the layer at hand.
    fn param(&mut self, name: &str) -> Result<Value>;
    /// Builds a part of the layer: names of its operations begin with the layer's path and `part`.
    fn within<T>(&mut self, part: &str, build: impl FnOnce(&mut Self) -> Result<T>) -> Result<T>;

    /// x·wᵀ + b with the parameters `<name>.weight` and `<name>.bias`, as the part of the layer called `part`.
    fn linear(&mut self, part: &str, name: &str, x: Value) -> Result<Value> {
        let weight = self.param(&format!("{name}.weight"))?;
        let bias = self.param(&format!("{name}.bias"))?;
        Ok(self.b().named(part).linear(x, weight, Some(bias))?)
    }
}

/// The graph itself.
pub(crate) struct Outer<'a> {
    pub(crate) b: GraphBuilder,
    pub(crate) options: &'a GraphOptions,
    /// Whether dropout's masks are there.
    pub(crate) training: bool,
    /// The time between steps, `[B, T, 1]` or `[T, B, 1]`, where it is an input.
    pub(crate) timespans: Option<Value>,
    /// What the names of the layer at hand begin with: of its parameters, and of its states.
    pub(crate) prefix: String,
    pub(crate) state_prefix: String,
    /// Every parameter by its whole name.
    shapes: BTreeMap<String, Vec<usize>>,
    weights: &'a BTreeMap<String, Tensor>,
    known: BTreeMap<String, Value>,
    /// States that are to be linked: input, output.
    links: Vec<(String, String)>,
    /// States' names and final values, in the order built.
    finals: Vec<(String, Value)>,
}

impl Scope for Outer<'_> {
    fn b(&mut self) -> &mut GraphBuilder {
        &mut self.b
    }

    fn within<T>(&mut self, part: &str, build: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outside = self.b.enter(part);
        let built = build(self);
        self.b.leave(outside);
        built
    }

    fn param(&mut self, name: &str) -> Result<Value> {
        let name = format!("{}{name}", self.prefix);
        if let Some(&value) = self.known.get(&name) {
            return Ok(value);
        }
        let shape = self.shapes.get(&name).ok_or_else(|| Error::weight(&name, "not in the list", "a parameter"))?;
        let value = match self.options.parameters {
            Parameters::Inputs => self.b.input(&name, DType::F32, shape.as_slice())?,
            Parameters::Weights => {
                let data = self.weights.get(&name).ok_or_else(|| Error::weight(&name, "missing", "data"))?;
                self.b.weight(&name, data.clone())?
            }
        };
        self.known.insert(name, value);
        Ok(value)
    }
}

impl<'a> Outer<'a> {
    pub(crate) fn new(
        options: &'a GraphOptions,
        training: bool,
        shapes: BTreeMap<String, Vec<usize>>,
        weights: &'a BTreeMap<String, Tensor>,
    ) -> Outer<'a> {
        Outer {
            b: GraphBuilder::new(),
            options,
            training,
            timespans: None,
            prefix: String::new(),
            state_prefix: String::new(),
            shapes,
            weights,
            known: BTreeMap::new(),
            links: vec![],
            finals: vec![],
        }
    }

    /// The batch axis' size.
    pub(crate) fn rows(&self) -> Dim {
        if self.options.batched { Dim::symbol("B") } else { Dim::fixed(1) }
    }

    /// The time axis' size.
    pub(crate) fn steps(&self) -> Dim {
        self.options.segments.map_or(Dim::symbol("T"), |segments| Dim::fixed(segments.steps))
    }

    /// `[B, T, last]`, or `[T, B, last]` where time comes first.
    pub(crate) fn sequence_shape(&self, batch_first: bool, last: usize) -> Shape {
        let (rows, time) = (self.rows(), self.steps());
        if batch_first { shape![rows, time, last] } else { shape![time, rows, last] }
    }

    /// An input that a person gives without a batch axis where there is none, as a value that has it.
    pub(crate) fn input(&mut self, name: &str, dtype: DType, batched: Shape, batch_axis: usize) -> Result<Value> {
        if self.options.batched {
            return Ok(self.b.input(name, dtype, batched)?);
        }
        let mut dims = batched.dims().to_vec();
        dims.remove(batch_axis);
        let alone = self.b.input(name, dtype, Shape::from(dims))?;
        Ok(self.b.named(&format!("{name}.batched")).reshape(alone, batched)?)
    }

    /// The reverse, for an output.
    pub(crate) fn output(&mut self, name: &str, value: Value, batch_axis: usize) -> Result<()> {
        let mut value = value;
        if !self.options.batched {
            let mut dims = self.b.ty(value).shape.dims().to_vec();
            dims.remove(batch_axis);
            value = self.b.named(&format!("{name}.unbatched")).reshape(value, Shape::from(dims))?;
        }
        Ok(self.b.output(name, value)?)
    }

    /// The first value of a state, `[B, units]`. `name` is `h` or `c`.
    pub(crate) fn first_state(&mut self, name: &str, units: usize) -> Result<Value> {
        let shape = shape![self.rows(), units];
        if self.options.state == InitialState::Zero {
            let zero = self.b.named(&format!("{name}0.zero")).scalar(0.0)?;
            return Ok(self.b.named(&format!("{name}0")).broadcast(zero, shape)?);
        }
        let (input, output) = (format!("{}{name}0", self.state_prefix), format!("{}{name}n", self.state_prefix));
        let value = self.input(&input, DType::F32, shape, 0)?;
        if self.options.state == InitialState::Carried {
            self.links.push((input, output));
        }
        Ok(value)
    }

    /// A state's final value, which becomes an output when the graph is finished.
    pub(crate) fn last_state(&mut self, name: &str, value: Value) {
        self.finals.push((format!("{}{name}n", self.state_prefix), value));
    }

    /// Declares the final states, after all other outputs.
    pub(crate) fn finish_states(&mut self) -> Result<()> {
        for (name, value) in std::mem::take(&mut self.finals) {
            self.output(&name, value, 0)?;
        }
        for (input, output) in &self.links {
            self.b.state(input, output)?;
        }
        Ok(())
    }
}

/// The body of the loop: states and sequences are there from the start, values from outside come as they are needed.
pub(crate) struct Inner<'o, 'a> {
    pub(crate) outer: &'o mut Outer<'a>,
    pub(crate) body: GraphBuilder,
    fixed: Vec<Value>,
    known: BTreeMap<Value, Value>,
}

impl Scope for Inner<'_, '_> {
    fn b(&mut self) -> &mut GraphBuilder {
        &mut self.body
    }

    fn within<T>(&mut self, part: &str, build: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let (outside, of_body) = (self.outer.b.enter(part), self.body.enter(part));
        let built = build(self);
        self.outer.b.leave(outside);
        self.body.leave(of_body);
        built
    }

    fn param(&mut self, name: &str) -> Result<Value> {
        let outside = self.outer.param(name)?;
        self.fixed(outside)
    }
}

impl<'o, 'a> Inner<'o, 'a> {
    /// A body with these inputs: the states, then one element of each sequence.
    pub(crate) fn new(outer: &'o mut Outer<'a>, inputs: &[(&str, Type)]) -> Result<(Inner<'o, 'a>, Vec<Value>)> {
        let mut body = GraphBuilder::new();
        // For good: the body belongs to the layer that is being built.
        let _ = body.enter(outer.b.path());
        let mut values = vec![];
        for (name, ty) in inputs {
            let path = format!("{}.{name}", outer.b.path());
            values.push(body.named(&path).input(name, ty.dtype, ty.shape.clone())?);
        }
        Ok((Inner { outer, body, fixed: vec![], known: BTreeMap::new() }, values))
    }

    /// A value from outside, as the body sees it.
    pub(crate) fn fixed(&mut self, outside: Value) -> Result<Value> {
        if let Some(&value) = self.known.get(&outside) {
            return Ok(value);
        }
        let ty = self.outer.b.ty(outside).clone();
        let name = format!("fixed.{}.{}", self.fixed.len(), self.outer.b.graph().node(outside).name);
        let outer_name = self.outer.b.graph().node(outside).name.clone();
        let value = self.body.named(&outer_name).input(&name, ty.dtype, ty.shape)?;
        self.fixed.push(outside);
        self.known.insert(outside, value);
        Ok(value)
    }

    /// The finished body and the values that it takes from outside, in order.
    pub(crate) fn finish(self) -> Result<(Graph, Vec<Value>)> {
        Ok((self.body.build()?, self.fixed))
    }
}
