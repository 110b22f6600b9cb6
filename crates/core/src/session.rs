//! One stream through a program: its states, its inputs and its results.
//!
//! All memory of the runs belongs to the backend's [`Stream`]. A session checks the inputs it is given, and knows for
//! each input where its value is: with the caller, in the session (a state that the caller wrote), or in the stream.

mod given;

use crate::backend::{Bound, Observer, Sizes, Stream, state_places};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::live::{Door, Watch};
use crate::memory::Reservation;
use crate::plan::{Plan, check_work};
use crate::run::Program;
use crate::shape::{Bindings, Dim};
use crate::tensor::{Tensor, View};
use given::{Argument, Given, Held, check_places, elsewhere};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops a run, from another thread or while it is under way elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Stops the run under way, or the next one, at its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the run is to stop; backends check this between two steps.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, for the kernels.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }

    fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The layout that the stream is fitted to.
struct Layout {
    bindings: Bindings,
    /// The program's generation when it was made.
    generation: u64,
    bound: Arc<dyn Bound>,
    _memory: Reservation,
}

/// One stream through a program: its memory, its state and its latest results.
pub struct Session {
    program: Arc<Program>,
    /// The only layout that it runs with, where that is none of the program's own.
    only: Option<Arc<dyn Bound>>,
    layout: Option<Layout>,
    /// Made at the first run.
    stream: Option<Box<dyn Stream>>,
    /// Types and shapes that the stream was last fitted to; its states have these.
    sizes: Sizes,
    /// Whether an input was uploaded since the sizes were last checked.
    uploaded: bool,
    /// Sizes of the run under way, kept so that a run allocates nothing.
    scratch: Bindings,
    /// Each input's name and type: a run looks for its arguments here, and not in the graph, which is far larger.
    known: Vec<(Box<str>, DType)>,
    /// For each input, its position in the arguments of the run under way.
    given: Vec<Option<usize>>,
    /// For each input that is not given, where its value is.
    held: Vec<Held>,
    /// For each input that is a state, its value on the host, if the caller wrote it.
    host: Vec<Option<Tensor>>,
    /// Sizes of symbols that no input shows, if the caller chose them.
    chosen: Bindings,
    /// The shape of each input that was uploaded.
    resident: Vec<Option<Vec<usize>>>,
    /// For each state, its place among the inputs and among the outputs.
    states: Vec<(usize, usize)>,
    /// For each input, its number among the states, if it is one.
    state_of: Vec<Option<usize>>,
    /// Whether there are results, because the last run succeeded.
    ran: bool,
    /// For each output, whether the last run wrote it into memory of the caller's. Empty where none was.
    elsewhere: Vec<bool>,
    /// Whether a run was submitted and not yet waited for.
    under_way: bool,
    cancel: Canceller,
    /// What it tells of its runs, if it is watched.
    watch: Option<Box<Watch>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session of {:?}", self.program)
    }
}

/// Equality of a few elements by an inlined loop: a call of `memcmp` would take longer.
#[inline(always)]
fn same<T: PartialEq>(a: &[T], b: &[T]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
}

impl Session {
    pub(crate) fn new(program: Arc<Program>, only: Option<Arc<dyn Bound>>) -> Session {
        let graph = program.graph();
        let inputs = graph.inputs().len();
        let known = graph.inputs().map(|(name, value)| (name.into(), graph.ty(value).dtype)).collect();
        let states = state_places(graph);
        let mut state_of = vec![None; inputs];
        states.iter().enumerate().for_each(|(state, &(input, _))| state_of[input] = Some(state));
        Session {
            states,
            state_of,
            only,
            layout: None,
            stream: None,
            sizes: Sizes { inputs: vec![], outputs: vec![] },
            uploaded: false,
            scratch: Bindings::new(),
            known,
            given: vec![None; inputs],
            held: vec![Held::Nowhere; inputs],
            host: vec![None; inputs],
            chosen: Bindings::new(),
            resident: vec![None; inputs],
            ran: false,
            elsewhere: vec![],
            under_way: false,
            cancel: Canceller::default(),
            watch: None,
            program,
        }
    }

    /// The program it runs.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Runs once on inputs by name and gives the outputs, in the graph's order. States that are not given continue from
    /// the last run, or from zero. After the first run of a size, nothing is allocated.
    #[inline]
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<&[Tensor]> {
        self.run_any(inputs, &mut [])?;
        self.outputs()
    }

    /// Runs once on elements that lie in memory of the caller's, and writes outputs into memory of the caller's: nothing is
    /// copied but outputs that are states, and those of backends that compute on a device.
    ///
    /// `into` has a place for each output, in the graph's order; it may be shorter, and where it has none, the output is
    /// kept in the session as usual. [`Session::sizes_for`] says how large they are. If the run fails, what is in these places
    /// is unspecified.
    pub fn run_into(&mut self, inputs: &[(&str, View<'_>)], into: &mut [Option<&mut [u8]>]) -> Result<()> {
        self.run_any(inputs, into)
    }

    /// Types and shapes of all inputs and outputs of a run on these inputs, without running.
    pub fn sizes_for(&mut self, inputs: &[(&str, View<'_>)]) -> Result<&Sizes> {
        // Results of the last run stay what they are if the sizes stay.
        let ran = self.ran;
        let layout = self.layout.as_ref().map(|layout| Arc::as_ptr(&layout.bound).cast::<()>());
        self.prepare(inputs, "another run")?;
        let same = self.layout.as_ref().map(|layout| Arc::as_ptr(&layout.bound).cast::<()>()) == layout;
        self.ran = ran && same;
        Ok(&self.sizes)
    }

    #[inline]
    fn run_any<A: Argument>(&mut self, inputs: &[(&str, A)], into: &mut [Option<&mut [u8]>]) -> Result<()> {
        match self.watch.take() {
            None => self.run_with(inputs, into, None),
            Some(watch) => self.run_watched(inputs, into, watch),
        }
    }

    /// From now on, every run can be watched through this door: when it was and how long it took, and of some runs each
    /// operation. That costs a run some nanoseconds, and some tens of microseconds about once a second.
    ///
    /// Runs that have an observer of the caller's are not told.
    pub fn watch(&mut self, door: &Door) {
        self.watch = Some(Box::new(Watch::new(door)));
    }

    /// Runs once, and tells of it through the session's door.
    fn run_watched<A: Argument>(
        &mut self,
        inputs: &[(&str, A)],
        into: &mut [Option<&mut [u8]>],
        mut watch: Box<Watch>,
    ) -> Result<()> {
        let (start, look) = watch.begin();
        let outcome = match look {
            true => self.run_with(inputs, into, Some(watch.timeline())),
            false => self.run_with(inputs, into, None),
        };
        if outcome.is_ok() {
            watch.end(start, self.layout.as_ref().map(|l| &l.bound));
        }
        self.watch = Some(watch);
        outcome
    }

    /// [`Session::run`], telling `observer` of each step.
    pub fn run_observed(
        &mut self,
        inputs: &[(&str, &Tensor)],
        observer: Option<&mut dyn Observer>,
    ) -> Result<&[Tensor]> {
        self.run_with(inputs, &mut [], observer)?;
        self.outputs()
    }

    fn run_with<A: Argument>(
        &mut self,
        inputs: &[(&str, A)],
        into: &mut [Option<&mut [u8]>],
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<()> {
        if let Some(timeline) = observer.as_mut().and_then(|o| o.timeline()) {
            timeline.start();
        }
        self.prepare(inputs, "another run")?;
        if !into.is_empty() {
            check_places(self.program.graph(), &self.sizes, into)?;
        }
        let given = Given { arguments: inputs, given: &self.given, host: &self.host, held: &self.held };
        let Some(stream) = &mut self.stream else {
            return Err(Error::Internal("a run before its layout".into()));
        };
        let watched: Option<&mut dyn Observer> = match &mut observer {
            Some(observer) => Some(&mut **observer),
            None => None,
        };
        let ran = match into.is_empty() {
            true => stream.run(&given, watched, &self.cancel).map(drop),
            false => {
                // A state stays in the stream, which swaps its buffers; it is copied below.
                let mut states = vec![];
                for &(_, output) in &self.states {
                    if let Some(place) = into.get_mut(output).and_then(Option::take) {
                        states.push((output, place));
                    }
                }
                let ran = stream.run_into(&given, into, watched, &self.cancel);
                ran.and_then(|()| {
                    for (output, place) in states {
                        place.copy_from_slice(stream.output(output)?.bytes());
                    }
                    Ok(())
                })
            }
        };
        if let Err(problem) = ran {
            if matches!(problem, Error::Cancelled) {
                self.cancel.clear();
            }
            return Err(problem);
        }
        for &(input, _) in &self.states {
            self.held[input] = Held::Stream;
        }
        self.ran = true;
        self.elsewhere.clear();
        if !into.is_empty() {
            self.elsewhere.extend(into.iter().map(|place| place.is_some()));
        }
        if let Some(timeline) = observer.and_then(|o| o.timeline()) {
            timeline.stop();
        }
        Ok(())
    }

    /// Begins a run and returns; [`Session::wait`] ends it. A backend with a device computes there in between, while
    /// the CPU runs everything before this function returns. Until the wait, nothing else can be done with the session.
    pub fn submit(&mut self, inputs: &[(&str, &Tensor)]) -> Result<()> {
        if let Some(watch) = &mut self.watch {
            watch.submitted();
        }
        self.prepare(inputs, "another run")?;
        let given = Given { arguments: inputs, given: &self.given, host: &self.host, held: &self.held };
        let Some(stream) = &mut self.stream else {
            return Err(Error::Internal("a run before its layout".into()));
        };
        if let Err(problem) = stream.submit(&given, false, &self.cancel) {
            return Err(self.failed(problem));
        }
        self.under_way = true;
        Ok(())
    }

    /// Waits for the run that was [submitted](Session::submit). Results on a device are only copied to the host when
    /// they are asked for, with [`Session::outputs`], [`Session::output`] or [`Session::state`]; states stay where they
    /// are for the next run.
    pub fn wait(&mut self) -> Result<()> {
        let Some(stream) = self.stream.as_mut().filter(|_| self.under_way) else {
            return Err(Error::Unavailable { what: "a run to wait for", why: "none was submitted".into() });
        };
        self.under_way = false;
        if let Err(problem) = stream.wait(None) {
            return Err(self.failed(problem));
        }
        for &(input, _) in &self.states {
            self.held[input] = Held::Stream;
        }
        self.ran = true;
        self.elsewhere.clear();
        if let Some(watch) = &mut self.watch {
            watch.waited(self.layout.as_ref().map(|l| &l.bound));
        }
        Ok(())
    }

    /// Whether a run was submitted and not yet waited for.
    pub fn is_under_way(&self) -> bool {
        self.under_way
    }

    fn failed(&self, problem: Error) -> Error {
        if matches!(problem, Error::Cancelled) {
            self.cancel.clear();
        }
        problem
    }

    /// Checks the inputs and makes the layout, before the run itself.
    #[inline]
    fn prepare<A: Argument>(&mut self, inputs: &[(&str, A)], what: &'static str) -> Result<()> {
        if self.under_way {
            return Err(Error::UnderWay { what });
        }
        if !self.take_inputs(inputs)? {
            self.bind(inputs)?;
            self.lay_out()?;
        }
        self.ran = false;
        Ok(())
    }

    /// The latest results, in the graph's order.
    pub fn outputs(&self) -> Result<&[Tensor]> {
        if self.elsewhere.contains(&true) {
            return Err(elsewhere());
        }
        self.results()?.outputs()
    }

    /// The latest value of an output.
    pub fn output(&self, name: &str) -> Result<&Tensor> {
        let graph = self.program.graph();
        let stream = self.results();
        match (graph.output_place(name), stream) {
            (Some(index), Ok(_)) if self.elsewhere.get(index) == Some(&true) => Err(elsewhere()),
            (Some(index), Ok(stream)) => stream.output(index),
            (_, Err(problem @ Error::UnderWay { .. })) => Err(problem),
            _ => Err(Error::Unknown {
                kind: "output (of a run that has been)",
                name: name.into(),
                known: graph.outputs().iter().map(|o| o.name.clone()).collect(),
            }),
        }
    }

    /// The stream, where it has results.
    fn results(&self) -> Result<&dyn Stream> {
        if self.under_way {
            return Err(Error::UnderWay { what: "reading a result" });
        }
        let stream = self.stream.as_deref().filter(|_| self.ran);
        let why = "there was no run yet, or the last one failed";
        stream.ok_or_else(|| Error::Unavailable { what: "a result", why: why.into() })
    }

    /// The value a state has now; `None` before the first run, and where [`Session::read_state`] has an error.
    pub fn state(&self, input: &str) -> Option<&Tensor> {
        self.read_state(input).ok().flatten()
    }

    /// The value a state has now, if it has one; an error if it cannot be read.
    pub fn read_state(&self, input: &str) -> Result<Option<&Tensor>> {
        let Some((state, index)) = self.state_place(input) else { return Ok(None) };
        if self.under_way {
            return Err(Error::UnderWay { what: "reading a state" });
        }
        match (self.held[index], &self.stream) {
            (Held::Host, _) => Ok(self.host[index].as_ref()),
            (Held::Stream, Some(stream)) => stream.state(state).map(Some),
            _ => Ok(None),
        }
    }

    /// A state's number, and its place among the inputs.
    fn state_place(&self, input: &str) -> Option<(usize, usize)> {
        let index = self.program.graph().input_place(input)?;
        Some((self.state_of[index]?, index))
    }

    /// The same, for writing; an error if there is no such state.
    fn state_to_write(&self, input: &str, kind: &'static str) -> Result<(usize, usize)> {
        if self.under_way {
            return Err(Error::UnderWay { what: "writing a state" });
        }
        let known = || self.program.graph().states().iter().map(|s| s.input.clone()).collect();
        self.state_place(input).ok_or_else(|| Error::Unknown { kind, name: input.into(), known: known() })
    }

    /// The value a state has now, to write in place; an error before it has one.
    pub fn state_mut(&mut self, input: &str) -> Result<&mut Tensor> {
        const KIND: &str = "state (that has a value)";
        let (state, index) = self.state_to_write(input, KIND)?;
        if let (Held::Stream, Some(stream)) = (self.held[index], &self.stream) {
            let value = stream.state(state)?;
            match &mut self.host[index] {
                Some(room) if (room.dtype(), room.shape()) == (value.dtype(), value.shape()) => {
                    room.bytes_mut().copy_from_slice(value.bytes());
                }
                room => *room = Some(value.clone()),
            }
            self.held[index] = Held::Host;
        }
        self.held_on_host(input, index, KIND)
    }

    /// A state's value to be overwritten as a whole: its old value is not copied, and elements that are not written are
    /// unspecified. An error before the state has a value.
    pub fn overwrite_state(&mut self, input: &str) -> Result<&mut Tensor> {
        const KIND: &str = "state (that has a value)";
        let (_, index) = self.state_to_write(input, KIND)?;
        if self.held[index] == Held::Stream {
            let (dtype, shape) = &self.sizes.inputs[index];
            let fits = |room: &Tensor| room.dtype() == *dtype && same(room.shape(), shape);
            if !self.host[index].as_ref().is_some_and(fits) {
                self.host[index] = Some(Tensor::zeros_alone(*dtype, shape)?);
            }
            self.held[index] = Held::Host;
        }
        self.held_on_host(input, index, KIND)
    }

    fn held_on_host(&mut self, input: &str, index: usize, kind: &'static str) -> Result<&mut Tensor> {
        let graph = self.program.graph();
        let value = self.host[index].as_mut().filter(|_| self.held[index] == Held::Host);
        value.ok_or_else(|| Error::Unknown {
            kind,
            name: input.into(),
            known: graph.states().iter().map(|s| s.input.clone()).collect(),
        })
    }

    /// Gives a state a value, checked when the session next runs.
    pub fn set_state(&mut self, input: &str, value: Tensor) -> Result<()> {
        let (_, index) = self.state_to_write(input, "state")?;
        self.host[index] = Some(value);
        self.held[index] = Held::Host;
        Ok(())
    }

    /// Gives a symbol a size for runs in which no input that is given shows it, such as the room in a cache. States that are
    /// held and have another size are refused by the next run.
    pub fn set_size(&mut self, symbol: &str, size: usize) -> Result<()> {
        if self.under_way {
            return Err(Error::UnderWay { what: "changing a size" });
        }
        let symbols = self.program.graph().symbols();
        if !symbols.contains(symbol) {
            let known = symbols.into_iter().collect();
            return Err(Error::Unknown { kind: "symbol", name: symbol.into(), known });
        }
        self.chosen = std::mem::take(&mut self.chosen).with(symbol, size);
        // Sizes are looked at again.
        self.uploaded = true;
        Ok(())
    }

    /// Forgets every state: the next run starts from zero. A run that is under way ends first, well or not.
    pub fn reset(&mut self) {
        if self.under_way {
            // Its outcome does not matter, since all states are forgotten.
            let _ = self.wait();
        }
        for &(input, _) in &self.states {
            self.held[input] = Held::Nowhere;
        }
    }

    /// Keeps a value for an input in the backend's memory, for all later runs that are not given that input: a large
    /// input that seldom changes is then moved only once. Its shape is checked when the session next runs.
    pub fn upload(&mut self, input: &str, value: &Tensor) -> Result<()> {
        if self.under_way {
            return Err(Error::UnderWay { what: "uploading an input" });
        }
        let index = self.place_of(input).ok_or_else(|| self.unknown_input(input))?;
        if self.state_of[index].is_some() {
            let (expected, got) = ("an input that is no state; `set_state` is for those".into(), value.to_string());
            return Err(Error::Input { name: input.into(), expected, got });
        }
        self.check_type(index, input, View::of(value))?;
        self.stream()?.upload(index, value)?;
        self.held[index] = Held::Stream;
        self.resident[index] = Some(value.shape().to_vec());
        self.uploaded = true;
        Ok(())
    }

    /// The stream, made where there is none yet.
    fn stream(&mut self) -> Result<&mut Box<dyn Stream>> {
        match &mut self.stream {
            Some(stream) => Ok(stream),
            none => Ok(none.insert(self.program.stream()?)),
        }
    }

    /// A handle that stops a run from another thread.
    pub fn canceller(&self) -> Canceller {
        self.cancel.clone()
    }

    /// The plan of the latest run.
    pub fn plan(&self) -> Option<&Plan> {
        self.layout.as_ref().map(|l| l.bound.plan())
    }

    /// Bytes of working memory the session holds.
    pub fn arena_bytes(&self) -> usize {
        self.stream.as_ref().filter(|_| self.layout.is_some()).map_or(0, |s| s.bytes())
    }

    #[cold]
    fn unknown_input(&self, name: &str) -> Error {
        let known = self.known.iter().map(|(n, _)| n.to_string()).collect();
        Error::Unknown { kind: "input", name: name.into(), known }
    }

    #[inline]
    fn check_type(&self, index: usize, name: &str, value: View<'_>) -> Result<()> {
        if self.known[index].1 == value.dtype() { Ok(()) } else { Err(self.wrong_type(index, name, value)) }
    }

    #[cold]
    fn wrong_type(&self, index: usize, name: &str, value: View<'_>) -> Error {
        let graph = self.program.graph();
        let expected = graph.inputs().nth(index).map_or(String::new(), |(_, v)| graph.ty(v).to_string());
        Error::Input { name: name.into(), expected, got: value.to_string() }
    }

    /// Finds each input among the arguments, and says whether they have the sizes of the layout in use.
    fn take_inputs<A: Argument>(&mut self, arguments: &[(&str, A)]) -> Result<bool> {
        self.given.fill(None);
        for (at, (name, value)) in arguments.iter().enumerate() {
            let index = self.place_of(name).ok_or_else(|| self.unknown_input(name))?;
            self.check_type(index, name, value.view())?;
            if self.given[index].replace(at).is_some() {
                let got = "the same name twice".into();
                return Err(Error::Input { name: (*name).into(), expected: "one value".into(), got });
            }
        }
        let current = self.layout.as_ref().is_some_and(|layout| layout.generation == self.program.generation());
        if !current || self.uploaded {
            return Ok(false);
        }
        Ok(self.sizes.inputs.iter().enumerate().all(|(index, (dtype, shape))| {
            match (self.given[index], self.held[index]) {
                (Some(at), _) => same(arguments[at].1.view().shape(), shape),
                // It has the size that the stream was fitted to.
                (None, Held::Stream) => true,
                (None, Held::Host) => {
                    let value = self.host[index].as_ref();
                    value.is_some_and(|v| v.dtype() == *dtype && same(v.shape(), shape))
                }
                (None, Held::Nowhere) => false,
            }
        }))
    }

    /// The position of an input in the graph's order. With few inputs a linear search is faster than a table.
    fn place_of(&self, name: &str) -> Option<usize> {
        if self.known.len() > 32 {
            return self.place_of_many(name);
        }
        self.known.iter().position(|(known, _)| same(known.as_bytes(), name.as_bytes()))
    }

    /// The same by a table; not inlined, so that the common case stays short.
    #[inline(never)]
    fn place_of_many(&self, name: &str) -> Option<usize> {
        self.program.graph().input_place(name)
    }

    /// Binds the symbols to the arguments' sizes and checks existing states. [`Session::lay_out`] makes missing ones
    /// after it has checked the budget.
    fn bind<A: Argument>(&mut self, arguments: &[(&str, A)]) -> Result<()> {
        let graph = self.program.graph();
        self.scratch.clear();
        let views: Vec<View<'_>> = arguments.iter().map(|(_, value)| value.view()).collect();
        let shape_of = |name: &str| -> Option<&[usize]> {
            let index = graph.input_place(name)?;
            self.given[index].map(|at| views[at].shape()).or(self.resident[index].as_deref())
        };
        // A size that only states have (such as the room in a cache) is that of the states which are held.
        let given = |index: usize| self.given[index].is_some() || self.resident[index].is_some();
        let shown = graph.inputs().enumerate().filter(|(index, _)| given(*index));
        let shown: HashSet<&str> =
            shown.flat_map(|(_, (_, v))| graph.ty(v).shape.dims()).filter_map(Dim::as_symbol).collect();
        for (symbol, size) in self.chosen.iter().filter(|(symbol, _)| !shown.contains(symbol)) {
            let _ = self.scratch.bind(symbol, size);
        }
        for (index, (_, value)) in graph.inputs().enumerate().filter(|(index, _)| !given(*index)) {
            let dims = graph.ty(value).shape.dims();
            let held = match (self.held[index], &self.host[index]) {
                (Held::Host, Some(state)) => state.shape(),
                (Held::Stream, _) => &self.sizes.inputs[index].1[..],
                _ => continue,
            };
            for (symbol, &size) in dims.iter().zip(held).filter_map(|(dim, size)| Some((dim.as_symbol()?, size))) {
                if !shown.contains(symbol) {
                    // States that differ are told of below.
                    let _ = self.scratch.bind(symbol, size);
                }
            }
        }
        graph.bind(shape_of, &mut self.scratch)?;
        for (index, (name, value)) in graph.inputs().enumerate() {
            if self.given[index].is_some() || self.resident[index].is_some() {
                continue;
            }
            let ty = graph.ty(value);
            if !graph.is_state(name) {
                return Err(Error::Input { name: name.into(), expected: ty.to_string(), got: "nothing".into() });
            }
            let shape = ty.shape.eval(&self.scratch)?;
            let (dtype, held) = match (self.held[index], &self.host[index]) {
                (Held::Host, Some(state)) => (state.dtype(), state.shape()),
                (Held::Stream, _) => (ty.dtype, &self.sizes.inputs[index].1[..]),
                _ => continue,
            };
            if held != shape || dtype != ty.dtype {
                let expected = format!("{}{shape:?} (or a reset)", ty.dtype);
                return Err(Error::Input { name: name.into(), expected, got: format!("a state of {dtype}{held:?}") });
            }
        }
        Ok(())
    }

    /// Makes the layout fit the current sizes.
    fn lay_out(&mut self) -> Result<()> {
        let generation = self.program.generation();
        let fits = |layout: &Layout| layout.bindings == self.scratch && layout.generation == generation;
        if !self.layout.as_ref().is_some_and(fits) {
            self.fit()?;
        }
        for (state, &(input, _)) in self.states.iter().enumerate() {
            if let (None, Held::Nowhere, Some(stream)) = (self.given[input], self.held[input], &mut self.stream) {
                stream.zero(state)?;
                self.held[input] = Held::Stream;
                self.ran = false;
            }
        }
        self.uploaded = false;
        Ok(())
    }

    fn fit(&mut self) -> Result<()> {
        let program = Arc::clone(&self.program);
        let graph: &Graph = program.graph();
        let sizes = Sizes::of(graph, &self.scratch)?;
        // Sizes that can never fit the budget are refused before any work is done for them.
        let states = self.states.iter().map(|&(input, _)| Sizes::bytes(&sizes.inputs[input]));
        let kept = sizes.outputs.iter().map(Sizes::bytes).chain(states).fold(0, usize::saturating_add);
        program.budget().would_fit(kept, "a session's states and outputs")?;
        check_work(graph, &self.scratch)?;
        let (generation, bound) = match &self.only {
            None => program.layout(&self.scratch)?,
            Some(only) if only.plan().bindings == self.scratch => (program.generation(), Arc::clone(only)),
            Some(only) => {
                let why =
                    format!("it was made for {} alone, and the inputs are for {}", only.plan().bindings, self.scratch);
                return Err(Error::Unavailable { what: "a run of this session", why });
            }
        };
        self.keep_states_of_other_sizes(&sizes)?;
        // Free the old memory before the new memory is requested.
        (self.layout, self.ran) = (None, false);
        self.stream()?.release();
        let wanted = kept.saturating_add(bound.plan().arena_bytes);
        let memory = program.budget().reserve(wanted, "a session's arena, states and outputs")?;
        self.stream()?.fit(Arc::clone(&bound), &sizes)?;
        self.sizes = sizes;
        self.layout = Some(Layout { bindings: self.scratch.clone(), generation, bound, _memory: memory });
        Ok(())
    }

    /// Copies states of other sizes to the host, because the stream will have no room for them. Such states are not
    /// used now, since the caller gave other values for this run, but must survive if it fails.
    fn keep_states_of_other_sizes(&mut self, sizes: &Sizes) -> Result<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        for (state, &(input, _)) in self.states.iter().enumerate() {
            if self.held[input] == Held::Stream && self.sizes.inputs[input] != sizes.inputs[input] {
                self.host[input] = Some(stream.state(state)?.clone());
                self.held[input] = Held::Host;
            }
        }
        Ok(())
    }
}
