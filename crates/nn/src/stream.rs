//! Streams: many at once through one model, each with a state of its own.
//!
//! A [`State`] is plain numbers outside the model: what one stream remembers. A [`Runner`] takes states and samples through a
//! shared program, one stream at a time or many in one call. It keeps a session for each number of streams that it meets,
//! up to [`MOST_SIZES`] of them, so that a step allocates nothing once its number is known.

use crate::guard::{self, Guard, NotFinite, STATE_KEY};
use crate::{Error, Result};
use schwann_core::live::Door;
use schwann_core::{DType, Program, Session, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How many numbers of streams a runner keeps ready.
pub const MOST_SIZES: usize = 8;

/// What one stream remembers: the state of every recurrent layer, at first zero.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    parts: Arc<Parts>,
    values: Vec<f32>,
}

/// What a model's states consist of, and which model that is.
#[derive(Debug, PartialEq, Eq)]
struct Parts {
    list: Vec<Part>,
    /// The program's fingerprint.
    of: u64,
}

/// One of a model's states.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// The graph's input: `h0`, `c0`.
    input: String,
    /// The graph's output: `hn`, `cn`.
    output: String,
    /// Where its numbers are in a state.
    from: usize,
    to: usize,
}

impl State {
    /// Back to the start: all zeros.
    pub fn reset(&mut self) {
        self.values.fill(0.0);
    }

    /// The numbers, one state after the other.
    pub fn values(&self) -> &[f32] {
        &self.values
    }
    /// The numbers, to write.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// The names of its parts: `h0`, and `c0` with mixed memory.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.list.iter().map(|part| part.input.as_str())
    }

    /// One part by name.
    pub fn part(&self, name: &str) -> Option<&[f32]> {
        let part = self.parts.list.iter().find(|part| part.input == name)?;
        self.values.get(part.from..part.to)
    }

    /// Its parts as tensors by name, as `schwann_core::io::write_npz` takes them, and with them which model they are of.
    pub fn to_tensors(&self) -> Result<BTreeMap<String, Tensor>> {
        let tensor = |part: &Part| {
            let values = &self.values[part.from..part.to];
            Ok((part.input.clone(), Tensor::new(&[values.len()], values)?))
        };
        let mark = Ok((STATE_KEY.to_owned(), guard::state_mark(self.parts.of)?));
        self.parts.list.iter().map(tensor).chain([mark]).collect()
    }

    /// Takes its parts from tensors by name: all of them, of the right size, of this model where they say of which they
    /// are, and nothing else.
    pub fn set_tensors(&mut self, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
        let mut tensors = tensors.clone();
        guard::take_state_mark(&mut tensors, self.parts.of)?;
        let names = || self.names().collect::<Vec<_>>().join(", ");
        if let Some(name) = tensors.keys().find(|name| self.part(name).is_none()) {
            return Err(Error::argument("state", format!("with a tensor `{name}`"), names()));
        }
        let mut values = vec![];
        for part in &self.parts.list {
            let expected = format!("f32[{}]", part.to - part.from);
            let Some(tensor) = tensors.get(&part.input) else {
                return Err(Error::weight(&part.input, "missing", expected));
            };
            if tensor.dtype() != DType::F32 || tensor.len() != part.to - part.from {
                return Err(Error::weight(&part.input, tensor, expected));
            }
            values.extend_from_slice(tensor.values::<f32>()?);
        }
        self.values = values;
        Ok(())
    }
}

/// Takes streams through a program, step by step.
///
/// ```
/// use schwann_core::CompileOptions;
/// use schwann_nn::{Cfc, GraphOptions, Model, Runner};
///
/// # fn main() -> schwann_nn::Result<()> {
/// let model = Model::new(Cfc::new(2, 8), 1)?;
/// let program = model.compile(&GraphOptions::default(), &CompileOptions::default())?;
/// let mut runner = Runner::new(program)?;
///
/// // One stream …
/// let mut state = runner.state();
/// let y = runner.step(&mut state, &[0.5, -0.5])?;
/// assert_eq!(y.len(), 8);
///
/// // … and a thousand in one call.
/// let mut states = vec![runner.state(); 1000];
/// let y = runner.step_many(&mut states, &[0.5; 2000])?;
/// assert_eq!(y.len(), 8000);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Runner {
    program: Arc<Program>,
    parts: Arc<Parts>,
    guard: Guard,
    features: usize,
    outputs: usize,
    time_first: bool,
    /// The latest first.
    sizes: Vec<Size>,
    /// Through which it is watched.
    door: Option<Door>,
}

/// What a number of streams needs.
#[derive(Debug)]
struct Size {
    streams: usize,
    session: Session,
    x: Tensor,
    timespans: Option<Tensor>,
}

impl Runner {
    /// For a program of [`Model::compile`](crate::Model::compile), which many runners may share.
    pub fn new(program: Arc<Program>) -> Result<Runner> {
        let graph = program.graph();
        let refuse = |got: &str| Error::argument("program", got, "a model with a batch axis and carried states");
        let input = |name: &str| graph.inputs().find(|(n, _)| *n == name).map(|(_, value)| graph.ty(value));
        let x = input("x").ok_or_else(|| refuse("without an input `x`"))?;
        let [first, second, features] = x.shape.dims() else {
            return Err(refuse(&format!("with an input `x` of {x}")));
        };
        let symbols = (first.as_symbol(), second.as_symbol());
        let time_first = symbols == (Some("T"), Some("B"));
        let features = features.as_fixed().filter(|_| time_first || symbols == (Some("B"), Some("T")));
        let features = features.ok_or_else(|| refuse(&format!("with an input `x` of {x}")))?;
        let others = |(name, _): &(&str, _)| !["x", "timespans"].contains(name);
        if graph.inputs().filter(others).any(|(name, _)| graph.states().iter().all(|s| s.input != name)) {
            return Err(refuse("with inputs that are neither samples nor carried states"));
        }
        let mut parts = vec![];
        let mut from = 0;
        for state in graph.states() {
            let width = input(&state.input).and_then(|ty| ty.shape.dims().last()?.as_fixed());
            let to = from + width.ok_or_else(|| refuse("with a state of no fixed size"))?;
            parts.push(Part { input: state.input.clone(), output: state.output.clone(), from, to });
            from = to;
        }
        let y = graph.outputs().iter().find(|o| o.name == "y").map(|o| graph.ty(o.value));
        let outputs = y.and_then(|ty| ty.shape.dims().last()?.as_fixed()).ok_or_else(|| refuse("without `y`"))?;
        let guard = Guard::new(program.source(), NotFinite::Refuse);
        let parts = Arc::new(Parts { list: parts, of: program.fingerprint() });
        Ok(Runner { parts, guard, features, outputs, time_first, sizes: vec![], door: None, program })
    }

    /// With another answer to samples that are not finite; they are refused unless told.
    pub fn not_finite(mut self, choice: NotFinite) -> Runner {
        self.guard.not_finite = choice;
        self
    }

    /// From now on, every step can be watched through this door, as [`Session::watch`] says.
    pub fn watch(&mut self, door: &Door) {
        self.sizes.iter_mut().for_each(|size| size.session.watch(door));
        self.door = Some(door.clone());
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }
    /// Features of a sample.
    pub fn input_size(&self) -> usize {
        self.features
    }
    /// Features of an output.
    pub fn output_size(&self) -> usize {
        self.outputs
    }

    /// A new stream's state.
    pub fn state(&self) -> State {
        let values = vec![0.0; self.parts.list.last().map_or(0, |part| part.to)];
        State { parts: Arc::clone(&self.parts), values }
    }

    /// One step of one stream: its state goes on, and the output comes back.
    pub fn step(&mut self, state: &mut State, x: &[f32]) -> Result<&[f32]> {
        self.advance(std::slice::from_mut(state), x, None)
    }

    /// One step of one stream, `elapsed` after the last; for programs with timespans.
    pub fn step_after(&mut self, state: &mut State, x: &[f32], elapsed: f32) -> Result<&[f32]> {
        self.advance(std::slice::from_mut(state), x, Some(&[elapsed]))
    }

    /// One step of many streams: `x` holds their samples one after the other, and so the result their outputs.
    pub fn step_many(&mut self, states: &mut [State], x: &[f32]) -> Result<&[f32]> {
        self.advance(states, x, None)
    }

    /// One step of many streams, each its `elapsed` after the last; for programs with timespans.
    pub fn step_many_after(&mut self, states: &mut [State], x: &[f32], elapsed: &[f32]) -> Result<&[f32]> {
        self.advance(states, x, Some(elapsed))
    }

    fn advance(&mut self, states: &mut [State], x: &[f32], elapsed: Option<&[f32]>) -> Result<&[f32]> {
        self.check(states, x, elapsed)?;
        if states.is_empty() {
            return Ok(&[]);
        }
        let at = self.size(states.len())?;
        // The latest comes first, so that the last one is the one to give up.
        self.sizes[..=at].rotate_right(1);
        let size = &mut self.sizes[0];
        size.x.values_mut::<f32>()?.copy_from_slice(x);
        if let (Some(to), Some(from)) = (&mut size.timespans, elapsed) {
            to.values_mut::<f32>()?.copy_from_slice(from);
        }
        for part in &self.parts.list {
            let to = size.session.overwrite_state(&part.input)?.values_mut::<f32>()?;
            for (row, state) in to.chunks_exact_mut(part.to - part.from).zip(states.iter()) {
                row.copy_from_slice(&state.values[part.from..part.to]);
            }
        }
        match &size.timespans {
            Some(timespans) => size.session.run(&[("x", &size.x), ("timespans", timespans)])?,
            None => size.session.run(&[("x", &size.x)])?,
        };
        for part in &self.parts.list {
            let from = size.session.output(&part.output)?.values::<f32>()?;
            for (row, state) in from.chunks_exact(part.to - part.from).zip(states.iter_mut()) {
                state.values[part.from..part.to].copy_from_slice(row);
            }
        }
        Ok(self.sizes[0].session.output("y")?.values::<f32>()?)
    }

    fn check(&self, states: &[State], x: &[f32], elapsed: Option<&[f32]>) -> Result<()> {
        let count = states.len();
        if x.len() != count * self.features {
            let expected = format!("{} for {count} samples of {} features", count * self.features, self.features);
            return Err(Error::argument("x", format!("{} numbers", x.len()), expected));
        }
        self.guard.sample(x.iter().copied())?;
        if let Some(elapsed) = elapsed {
            self.guard.elapsed(elapsed)?;
        }
        if let Some(state) = states.iter().find(|s| !Arc::ptr_eq(&s.parts, &self.parts) && s.parts != self.parts) {
            let describe = |parts: &Parts| {
                let each = parts.list.iter().map(|p| format!("{}[{}]", p.input, p.to - p.from));
                each.collect::<Vec<_>>().join(", ")
            };
            let got = format!("{} of another model", describe(&state.parts));
            return Err(Error::argument("state", got, describe(&self.parts)));
        }
        let timed = self.program.graph().inputs().any(|(name, _)| name == "timespans");
        match elapsed {
            Some(_) if !timed => {
                Err(Error::argument("elapsed", "given", "nothing: the program's timespans are constant"))
            }
            None if timed => {
                Err(Error::argument("elapsed", "missing", "one number a stream (`step_after`, `step_many_after`)"))
            }
            Some(elapsed) if elapsed.len() != count => Err(Error::argument(
                "elapsed",
                format!("{} numbers", elapsed.len()),
                format!("one for each of {count} streams"),
            )),
            _ => Ok(()),
        }
    }

    /// Where what so many streams need is kept; made where it is not there yet.
    fn size(&mut self, streams: usize) -> Result<usize> {
        if let Some(at) = self.sizes.iter().position(|size| size.streams == streams) {
            return Ok(at);
        }
        let (first, second) = if self.time_first { (1, streams) } else { (streams, 1) };
        let mut session = self.program.session();
        if let Some(door) = &self.door {
            session.watch(door);
        }
        for part in &self.parts.list {
            session.set_state(&part.input, Tensor::zeros(DType::F32, &[streams, part.to - part.from])?)?;
        }
        let timed = self.program.graph().inputs().any(|(name, _)| name == "timespans");
        let timespans = if timed { Some(Tensor::zeros(DType::F32, &[first, second])?) } else { None };
        let x = Tensor::zeros(DType::F32, &[first, second, self.features])?;
        self.sizes.truncate(MOST_SIZES - 1);
        self.sizes.push(Size { streams, session, x, timespans });
        Ok(self.sizes.len() - 1)
    }
}
