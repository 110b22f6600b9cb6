//! Running: a program is compiled once and shared; a session is one stream through it.

use crate::backend::cpu::Cpu;
use crate::backend::{Backend, Bound, Inputs, Observer, Prepared, Stream};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::memory::{Budget, Reservation};
use crate::op::Type;
use crate::pass::{self, PassOptions, PassRecord};
use crate::plan::{Plan, check_work};
use crate::shape::Bindings;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// How many layouts for different sizes a program keeps.
const MOST_LAYOUTS: usize = 64;

/// How to compile.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Threads; 0 for one a core.
    pub threads: usize,
    /// What passes may do.
    pub passes: PassOptions,
    /// The memory that sessions may use.
    pub budget: Budget,
}

impl CompileOptions {
    /// With so many threads; 0 for one a core.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }
    /// With these passes.
    pub fn passes(mut self, passes: PassOptions) -> Self {
        self.passes = passes;
        self
    }
    /// Within this memory.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }
}

/// A compiled graph: immutable, shared between threads, laid out anew for each set of sizes it meets.
pub struct Program {
    graph: Arc<Graph>,
    source: Graph,
    fingerprint: u64,
    records: Vec<PassRecord>,
    prepared: Box<dyn Prepared>,
    backend: String,
    budget: Budget,
    layouts: Mutex<Layouts>,
}

/// Layouts by their sizes. Where there is no room for another, the one that was longest not asked for goes.
#[derive(Default)]
struct Layouts {
    kept: HashMap<Bindings, (u64, Arc<dyn Bound>)>,
    /// Counts what is asked for, so that the latest has the largest number.
    asked: u64,
}

impl Layouts {
    fn get(&mut self, bindings: &Bindings) -> Option<Arc<dyn Bound>> {
        self.asked += 1;
        let (asked, layout) = self.kept.get_mut(bindings)?;
        *asked = self.asked;
        Some(Arc::clone(layout))
    }

    fn insert(&mut self, bindings: &Bindings, layout: Arc<dyn Bound>) {
        if self.kept.len() >= MOST_LAYOUTS && !self.kept.contains_key(bindings) {
            let oldest = self.kept.iter().min_by_key(|(_, (asked, _))| *asked).map(|(sizes, _)| sizes.clone());
            oldest.map(|sizes| self.kept.remove(&sizes));
        }
        self.asked += 1;
        self.kept.insert(bindings.clone(), (self.asked, layout));
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} nodes on {})", self.graph.nodes().len(), self.backend)
    }
}

impl Program {
    /// Compiles for this machine's CPU.
    pub fn compile(graph: &Graph, options: &CompileOptions) -> Result<Arc<Program>> {
        Program::compile_for(graph, &Cpu::new(options.threads)?, options)
    }

    /// Compiles for a given backend.
    pub fn compile_for(graph: &Graph, backend: &dyn Backend, options: &CompileOptions) -> Result<Arc<Program>> {
        graph.verify()?;
        let (source, fingerprint) = (graph.without_data(), graph.fingerprint());
        let (graph, records) = pass::optimize(graph, &backend.pass_options(&options.passes))?;
        let graph = Arc::new(graph);
        let prepared = backend.prepare(Arc::clone(&graph))?;
        Ok(Arc::new(Program {
            graph,
            source,
            fingerprint,
            records,
            prepared,
            backend: backend.name(),
            budget: options.budget.clone(),
            layouts: Mutex::default(),
        }))
    }

    /// The graph after the passes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }
    /// The graph as it was built, without its weights' data.
    pub fn source(&self) -> &Graph {
        &self.source
    }
    /// [`Graph::fingerprint`] of the graph as it was built.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
    /// What each pass did.
    pub fn pass_records(&self) -> &[PassRecord] {
        &self.records
    }
    /// The backend's name.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The plan for these sizes.
    pub fn plan(&self, bindings: &Bindings) -> Result<Plan> {
        Ok(self.layout(bindings)?.plan().clone())
    }

    fn layout(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>> {
        if let Some(layout) = self.layouts.lock().expect("nothing panics while it is locked").get(bindings) {
            return Ok(layout);
        }
        let layout = self.prepared.bind(bindings)?;
        self.layouts.lock().expect("nothing panics while it is locked").insert(bindings, Arc::clone(&layout));
        Ok(layout)
    }

    /// A new stream.
    pub fn session(self: &Arc<Self>) -> Session {
        let inputs = self.graph.inputs().len();
        let known = self.graph.inputs().map(|(name, value)| (name.into(), self.graph.ty(value).dtype));
        let states =
            self.graph.states().iter().filter_map(|state| {
                Some((self.graph.input_place(&state.input)?, self.graph.output_place(&state.output)?))
            });
        Session {
            states: states.collect(),
            program: Arc::clone(self),
            layout: None,
            scratch: Bindings::new(),
            known: known.collect(),
            given: vec![None; inputs],
            carried: vec![None; inputs],
            outputs: Vec::new(),
            cancel: Arc::default(),
        }
    }
}

/// Stops a run from another thread.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Stops the run under way, or the next one, at its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Laid {
    bindings: Bindings,
    /// Type and shape of each input.
    inputs: Vec<(DType, Vec<usize>)>,
    bound: Arc<dyn Bound>,
    stream: Box<dyn Stream>,
    _memory: Reservation,
}

/// One stream through a program: its memory, its state and its latest results.
pub struct Session {
    program: Arc<Program>,
    layout: Option<Laid>,
    /// Sizes of the run under way, kept so that a run allocates nothing.
    scratch: Bindings,
    /// Each input's name and type: a run looks for its arguments here, and not in the graph, which is far larger.
    known: Vec<(Box<str>, DType)>,
    /// For each input, its position in the arguments of the run under way.
    given: Vec<Option<usize>>,
    /// For each input that is a state, its value.
    carried: Vec<Option<Tensor>>,
    /// For each state, its place among the inputs and among the outputs.
    states: Vec<(usize, usize)>,
    outputs: Vec<Tensor>,
    cancel: Arc<AtomicBool>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session of {:?}", self.program)
    }
}

/// Equality of a few elements, in place: a call to compare memory takes longer than they do.
#[inline(always)]
fn same<T: PartialEq>(a: &[T], b: &[T]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
}

/// The inputs of a run: what the caller gave, and states for the rest.
struct Given<'a> {
    arguments: &'a [(&'a str, &'a Tensor)],
    given: &'a [Option<usize>],
    carried: &'a [Option<Tensor>],
}
impl Inputs for Given<'_> {
    fn bytes(&self, index: usize) -> &[u8] {
        match (self.given[index], &self.carried[index]) {
            (Some(at), _) => self.arguments[at].1.bytes(),
            (None, Some(state)) => state.bytes(),
            (None, None) => &[],
        }
    }
}

impl Session {
    /// The program it runs.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Runs once on inputs by name and gives the outputs, in the graph's order. States that are not given continue from
    /// the last run, or from zero. After the first run of a size, nothing is allocated.
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<&[Tensor]> {
        self.run_observed(inputs, None)
    }

    /// [`Session::run`], telling `observer` of each step.
    pub fn run_observed(
        &mut self,
        inputs: &[(&str, &Tensor)],
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<&[Tensor]> {
        if let Some(recorder) = observer.as_mut().and_then(|o| o.recorder()) {
            recorder.start();
        }
        if !self.take_inputs(inputs)? {
            self.bind(inputs)?;
            self.lay_out()?;
        }
        let given = Given { arguments: inputs, given: &self.given, carried: &self.carried };
        let Some(Laid { stream, .. }) = &mut self.layout else {
            return Err(Error::Internal("a run before its layout".into()));
        };
        let watched: Option<&mut dyn Observer> = match &mut observer {
            Some(observer) => Some(&mut **observer),
            None => None,
        };
        let result = stream.run(&given, &mut self.outputs, watched, &self.cancel);
        if matches!(result, Err(Error::Cancelled)) {
            self.cancel.store(false, Ordering::Relaxed);
        }
        result?;
        self.carry_states()?;
        if let Some(recorder) = observer.and_then(|o| o.recorder()) {
            recorder.stop();
        }
        Ok(&self.outputs)
    }

    /// The latest value of an output.
    pub fn output(&self, name: &str) -> Result<&Tensor> {
        let outputs = self.program.graph.outputs();
        let found = self.program.graph.output_place(name).and_then(|i| self.outputs.get(i));
        found.ok_or_else(|| Error::Unknown {
            kind: "output (of a run that has been)",
            name: name.into(),
            known: outputs.iter().map(|o| o.name.clone()).collect(),
        })
    }

    /// The value a state has now; `None` before the first run.
    pub fn state(&self, input: &str) -> Option<&Tensor> {
        let index = self.program.graph.input_place(input)?;
        self.carried[index].as_ref()
    }

    /// The value a state has now, to write in place; an error before it has one.
    pub fn state_mut(&mut self, input: &str) -> Result<&mut Tensor> {
        let graph = &self.program.graph;
        let state = graph.input_place(input).and_then(|i| self.carried[i].as_mut());
        state.ok_or_else(|| Error::Unknown {
            kind: "state (that has a value)",
            name: input.into(),
            known: graph.states().iter().map(|s| s.input.clone()).collect(),
        })
    }

    /// Gives a state a value, checked when the session next runs.
    pub fn set_state(&mut self, input: &str, value: Tensor) -> Result<()> {
        let graph = &self.program.graph;
        let known = || graph.states().iter().map(|s| s.input.clone()).collect();
        if !graph.is_state(input) {
            return Err(Error::Unknown { kind: "state", name: input.into(), known: known() });
        }
        if let Some(index) = graph.input_place(input) {
            self.carried[index] = Some(value);
        }
        Ok(())
    }

    /// Forgets every state: the next run starts from zero.
    pub fn reset(&mut self) {
        self.carried.fill(None);
    }

    /// A handle that stops a run from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.cancel))
    }

    /// The plan of the latest run.
    pub fn plan(&self) -> Option<&Plan> {
        self.layout.as_ref().map(|l| l.bound.plan())
    }

    /// Bytes of working memory the session holds.
    pub fn arena_bytes(&self) -> usize {
        self.layout.as_ref().map_or(0, |l| l.stream.bytes())
    }

    /// Finds each input among the arguments, and says whether they have the sizes of the layout in use.
    fn take_inputs(&mut self, arguments: &[(&str, &Tensor)]) -> Result<bool> {
        self.given.fill(None);
        for (at, (name, tensor)) in arguments.iter().enumerate() {
            let Some(index) = self.place_of(name) else {
                let known = self.known.iter().map(|(n, _)| n.to_string()).collect();
                return Err(Error::Unknown { kind: "input", name: (*name).into(), known });
            };
            if self.known[index].1 != tensor.dtype() {
                let graph = &self.program.graph;
                let expected = graph.inputs().nth(index).map_or(String::new(), |(_, v)| graph.ty(v).to_string());
                return Err(Error::Input { name: (*name).into(), expected, got: tensor.to_string() });
            }
            if self.given[index].replace(at).is_some() {
                let got = "the same name twice".into();
                return Err(Error::Input { name: (*name).into(), expected: "one value".into(), got });
            }
        }
        let Some(laid) = &self.layout else { return Ok(false) };
        Ok(laid.inputs.iter().enumerate().all(|(index, (dtype, shape))| {
            let value = self.given[index].map(|at| arguments[at].1).or(self.carried[index].as_ref());
            value.is_some_and(|v| v.dtype() == *dtype && same(v.shape(), shape))
        }))
    }

    /// Where an input is in the graph's order: by looking at each of a few, which is quicker than any table.
    fn place_of(&self, name: &str) -> Option<usize> {
        if self.known.len() > 32 {
            return self.program.graph.input_place(name);
        }
        self.known.iter().position(|(known, _)| same(known.as_bytes(), name.as_bytes()))
    }

    /// Binds sizes to the arguments' and checks the states that there are; those that are missing are made by
    /// [`Session::lay_out`], once the budget was asked.
    fn bind(&mut self, arguments: &[(&str, &Tensor)]) -> Result<()> {
        let graph = Arc::clone(&self.program.graph);
        self.scratch.clear();
        let shape_of =
            |name: &str| -> Option<&[usize]> { self.given[graph.input_place(name)?].map(|at| arguments[at].1.shape()) };
        graph.bind(shape_of, &mut self.scratch)?;
        for (index, (name, value)) in graph.inputs().enumerate() {
            if self.given[index].is_some() {
                continue;
            }
            let ty = graph.ty(value);
            if !graph.is_state(name) {
                return Err(Error::Input { name: name.into(), expected: ty.to_string(), got: "nothing".into() });
            }
            let shape = ty.shape.eval(&self.scratch)?;
            match &self.carried[index] {
                Some(state) if state.shape() == shape && state.dtype() == ty.dtype => {}
                Some(state) => {
                    let expected = format!("{}{shape:?} (or a reset)", ty.dtype);
                    return Err(Error::Input { name: name.into(), expected, got: format!("a state of {state}") });
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Makes the layout fit the sizes at hand.
    fn lay_out(&mut self) -> Result<()> {
        let graph = Arc::clone(&self.program.graph);
        let stale = self.layout.as_ref().is_none_or(|laid| laid.bindings != self.scratch);
        if stale {
            let sized = |t: &Type| Ok((t.dtype, t.shape.eval(&self.scratch)?));
            let inputs: Vec<(DType, Vec<usize>)> =
                graph.inputs().map(|(_, value)| sized(graph.ty(value))).collect::<Result<_>>()?;
            let outputs: Vec<(DType, Vec<usize>)> =
                graph.outputs().iter().map(|o| sized(graph.ty(o.value))).collect::<Result<_>>()?;
            let bytes = |(d, s): &(DType, Vec<usize>)| {
                crate::tensor::count(s).and_then(|n| d.bytes_for(n)).unwrap_or(usize::MAX)
            };
            // What cannot be is refused before anything is laid out for it.
            let states = self.states.iter().map(|&(input, _)| bytes(&inputs[input]));
            let kept = outputs.iter().map(bytes).chain(states).fold(0, usize::saturating_add);
            self.program.budget.would_fit(kept, "a session's states and outputs")?;
            check_work(&graph, &self.scratch)?;
            let bound = self.program.layout(&self.scratch)?;
            // Give back the old memory before the new is asked for.
            self.layout = None;
            self.outputs.clear();
            let wanted = kept.saturating_add(bound.plan().arena_bytes);
            let memory = self.program.budget.reserve(wanted, "a session's arena, states and outputs")?;
            self.outputs = outputs.iter().map(|(d, s)| Tensor::zeros_alone(*d, s)).collect::<Result<_>>()?;
            let stream = Arc::clone(&bound).stream()?;
            self.layout = Some(Laid { bindings: self.scratch.clone(), inputs, bound, stream, _memory: memory });
        }
        let Some(laid) = &self.layout else { return Ok(()) };
        for &(input, _) in &self.states {
            if self.given[input].is_none() && self.carried[input].is_none() {
                let (dtype, shape) = &laid.inputs[input];
                self.carried[input] = Some(Tensor::zeros_alone(*dtype, shape)?);
            }
        }
        Ok(())
    }

    /// Makes outputs that are states the inputs of the next run.
    fn carry_states(&mut self) -> Result<()> {
        for &(input, output) in &self.states {
            let new = &self.outputs[output];
            match &mut self.carried[input] {
                Some(old) if old.shape() == new.shape() => old.bytes_mut().copy_from_slice(new.bytes()),
                slot => *slot = Some(Tensor::from_bytes(new.dtype(), new.shape(), new.bytes())?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    struct Nothing(Plan);
    impl Bound for Nothing {
        fn plan(&self) -> &Plan {
            &self.0
        }
        fn stream(self: Arc<Self>) -> Result<Box<dyn Stream>> {
            Err(Error::Internal("nothing runs".into()))
        }
    }

    #[test]
    fn layouts_leave_one_at_a_time_and_the_one_longest_not_asked_for_first() {
        let mut layouts = Layouts::default();
        let sizes = |n: usize| Bindings::new().with("B", n);
        let layout = |n: usize| -> Arc<dyn Bound> {
            Arc::new(Nothing(Plan {
                backend: "nothing".into(),
                threads: 1,
                bindings: sizes(n),
                steps: vec![],
                buffers: vec![],
                arena_bytes: 0,
                live_bytes: 0,
                weight_bytes: 0,
            }))
        };
        (0..MOST_LAYOUTS).for_each(|n| layouts.insert(&sizes(n), layout(n)));
        assert!(layouts.get(&sizes(0)).is_some(), "the first is asked for again, so the second is now the oldest");
        layouts.insert(&sizes(1000), layout(1000));
        layouts.insert(&sizes(1001), layout(1001));
        let there = |layouts: &Layouts, n: usize| layouts.kept.contains_key(&sizes(n));
        assert_eq!(layouts.kept.len(), MOST_LAYOUTS);
        assert!(!there(&layouts, 1) && !there(&layouts, 2), "two came, the two oldest went");
        assert!([0, 3, MOST_LAYOUTS - 1, 1000, 1001].into_iter().all(|n| there(&layouts, n)));
        // What is there already pushes nobody out.
        layouts.insert(&sizes(1000), layout(1000));
        assert!(layouts.kept.len() == MOST_LAYOUTS && there(&layouts, 3));
        assert!(layouts.get(&sizes(1)).is_none());
    }
}
