//! Running: a program is compiled once and shared; a [`Session`] is one stream through it.

use crate::backend::{Backend, Bound, Change, Choice, LeftOut, Prepared, Stream};
use crate::error::{Error, Result};
pub use crate::graph::Changing;
use crate::graph::{Graph, Prelude};
use crate::memory::{Budget, Recent};
use crate::op::custom;
use crate::pass::{self, PassOptions, PassRecord};
use crate::plan::Plan;
pub use crate::session::{Canceller, Session};
use crate::shape::Bindings;
use crate::tensor::Tensor;
use schwann_kernels::tuning::Tuning;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many layouts for different sizes a program keeps.
const MOST_LAYOUTS: usize = 64;

/// How to compile.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// The backend that runs it; by default this machine's processor.
    pub backend: Choice,
    /// Threads; 0 means one for each core.
    pub threads: usize,
    /// What passes may do.
    pub passes: PassOptions,
    /// The memory that sessions may use.
    pub budget: Budget,
    /// Weights that [`Program::set_weights`] may change later. They are folded, merged and packed like any others; the
    /// program also keeps them as they were given, to compute all that again when some of them change.
    pub changing: Changing,
    /// Numbers to tune it with, instead of those for this class of machine. Whoever measured which are best gives them: the
    /// compiler neither times nor searches. [`Program::compile_for`] is given a backend that has its own.
    pub tuning: Option<Tuning>,
}

impl CompileOptions {
    /// For this backend.
    pub fn backend(mut self, backend: Choice) -> Self {
        self.backend = backend;
        self
    }
    /// With this many threads; 0 means one for each core.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }
    /// With these passes.
    pub fn passes(mut self, passes: PassOptions) -> Self {
        self.passes = passes;
        self
    }
    /// Where these weights may change.
    pub fn changing(mut self, changing: Changing) -> Self {
        self.changing = changing;
        self
    }
    /// Tuned with these numbers.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = Some(tuning);
        self
    }
    /// Within this memory.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }
}

/// A compiled graph: shared between threads, with a layout for each set of sizes. Only the data of weights that [may
/// change](CompileOptions::changing) changes.
pub struct Program {
    graph: Arc<Graph>,
    source: Graph,
    fingerprint: u64,
    records: Vec<PassRecord>,
    prepared: Box<dyn Prepared>,
    backend: String,
    threads: usize,
    budget: Budget,
    layouts: Mutex<Recent<Bindings, Arc<dyn Bound>>>,
    changes: Option<Changes>,
    /// How many times layouts became outdated: a session whose layout has an earlier generation needs a new one.
    generation: AtomicU64,
}

/// Weights that may change.
struct Changes {
    prelude: Prelude,
    /// Their current data. A change of weights holds the lock until it is done.
    weights: Mutex<BTreeMap<String, Tensor>>,
}

impl Changes {
    /// A poisoned lock can be used: the map is only written after everything else succeeded.
    fn weights(&self) -> MutexGuard<'_, BTreeMap<String, Tensor>> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} nodes on {})", self.graph.nodes().len(), self.backend)
    }
}

impl Program {
    /// Compiles for the options' backend.
    pub fn compile(graph: &Graph, options: &CompileOptions) -> Result<Arc<Program>> {
        let Some(tuning) = &options.tuning else {
            return Program::compile_for(graph, &*options.backend.make(options.threads)?, options);
        };
        let passes = PassOptions { tuning: *tuning, ..options.passes.clone() };
        let tuned = options.backend.make_tuned(options.threads, tuning)?;
        Program::compile_for(graph, &*tuned, &options.clone().passes(passes))
    }

    /// Compiles for the given backend; `backend`, `threads` and `tuning` of the options are ignored.
    pub fn compile_for(graph: &Graph, backend: &dyn Backend, options: &CompileOptions) -> Result<Arc<Program>> {
        graph.verify()?;
        custom::agree(graph, backend)?;
        Program::compile_trusted(graph, backend, options)
    }

    /// The same without checking custom operations.
    pub(crate) fn compile_trusted(
        graph: &Graph,
        backend: &dyn Backend,
        options: &CompileOptions,
    ) -> Result<Arc<Program>> {
        let (source, fingerprint) = (graph.without_data(), graph.fingerprint());
        let passes = backend.pass_options(&options.passes);
        let (weights, (graph, records)) = match &options.changing {
            Changing::None => (BTreeMap::new(), pass::optimize(graph, &passes)?),
            changing => {
                let mut marked = graph.clone();
                marked.let_change(changing)?;
                let weights = marked.weights().iter().filter(|(name, _)| marked.may_change(name));
                (weights.map(|(name, data)| (name.clone(), data.clone())).collect(), pass::optimize(&marked, &passes)?)
            }
        };
        let prelude = graph.needed_prelude()?;
        let mut graph = Arc::new(graph);
        let prepared = backend.prepare(Arc::clone(&graph))?;
        if prelude.is_some() {
            // The backend holds this data, and drops it when it gets new data.
            graph = Arc::new(graph.without_changing_data());
        }
        Ok(Arc::new(Program {
            graph,
            source,
            fingerprint,
            records,
            prepared,
            backend: backend.name(),
            threads: backend.threads(),
            budget: options.budget.clone(),
            layouts: Mutex::new(Recent::new(MOST_LAYOUTS)),
            changes: prelude.map(|prelude| Changes { prelude, weights: Mutex::new(weights) }),
            generation: AtomicU64::new(0),
        }))
    }

    /// The graph after the passes. Weights that may change have no data in it.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }
    /// The graph as it was built, without its weights' data.
    pub fn source(&self) -> &Graph {
        &self.source
    }
    /// [`Graph::fingerprint`] of the graph as it was built, whatever weights were set since.
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
    /// The host's threads that the backend computes with.
    pub fn threads(&self) -> usize {
        self.threads
    }
    /// The memory that its sessions may use.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }
    /// A new stream of the backend.
    pub(crate) fn stream(&self) -> Result<Box<dyn Stream>> {
        self.prepared.stream()
    }

    /// The plan for these sizes.
    pub fn plan(&self, bindings: &Bindings) -> Result<Plan> {
        Ok(self.layout(bindings)?.1.plan().clone())
    }

    /// A layout and its generation.
    pub(crate) fn layout(&self, bindings: &Bindings) -> Result<(u64, Arc<dyn Bound>)> {
        let generation = {
            let mut layouts = self.layouts();
            if let Some(layout) = layouts.get(bindings) {
                return Ok((self.generation(), Arc::clone(layout)));
            }
            self.generation()
        };
        let layout = self.prepared.bind(bindings)?;
        let mut layouts = self.layouts();
        // A layout that was begun before weights were replaced is not kept for others.
        if self.generation() == generation {
            layouts.insert(bindings.clone(), Arc::clone(&layout));
        }
        Ok((generation, layout))
    }

    fn layouts(&self) -> MutexGuard<'_, Recent<Bindings, Arc<dyn Bound>>> {
        self.layouts.lock().expect("nothing panics while it is locked")
    }

    /// The generation that a layout must have to be run. It only changes while `layouts` is locked.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Gives weights that [may change](CompileOptions::changing) new data: all of them or, after an error, none.
    /// Weights that were computed from them are computed again, and packed weights are rewritten in place. Nothing is
    /// compiled again, and layouts stay, unless new data does not fit a packed form (such as a weight that was 0, and
    /// therefore left out, and no longer is).
    ///
    /// Sessions keep their states, and see the new weights in their next run. A run that is under way in another thread
    /// ends with the weights that it began with. On the CPU this function waits for such runs, so a run's observer must
    /// not call it.
    ///
    /// ```
    /// use schwann_core::{Changing, CompileOptions, DType, GraphBuilder, Program, Tensor, shape};
    ///
    /// # fn main() -> schwann_core::Result<()> {
    /// let mut b = GraphBuilder::new();
    /// let x = b.input("x", DType::F32, shape!["B", 2])?;
    /// let w = b.weight("w", Tensor::new(&[2, 1], &[1.0f32, 2.0])?)?;
    /// let y = b.matmul(x, w)?;
    /// b.output("y", y)?;
    /// let program = Program::compile(&b.build()?, &CompileOptions::default().changing(Changing::All))?;
    /// let mut session = program.session();
    /// let x = Tensor::new(&[1, 2], &[3.0f32, 4.0])?;
    /// assert_eq!(session.run(&[("x", &x)])?[0].values::<f32>()?, [11.0]);
    /// program.set_weights(&[("w", &Tensor::new(&[2, 1], &[10.0f32, 0.0])?)])?;
    /// assert_eq!(session.run(&[("x", &x)])?[0].values::<f32>()?, [30.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_weights(&self, weights: &[(&str, &Tensor)]) -> Result<()> {
        let Some(changes) = &self.changes else {
            let why = "the program was compiled without any that may (`CompileOptions::changing`)".into();
            return Err(Error::Unavailable { what: "a change of weights", why });
        };
        let mut now = changes.weights();
        let mut next = now.clone();
        let mut changed = BTreeSet::new();
        for &(name, data) in weights {
            let known = next.get_mut(name).ok_or_else(|| unknown(name, &now))?;
            if (known.dtype(), known.shape()) != (data.dtype(), data.shape()) {
                let (expected, got) = (format!("a weight {known}"), data.to_string());
                return Err(Error::Input { name: name.into(), expected, got });
            }
            if !changed.insert(name) {
                let got = "the same name twice".into();
                return Err(Error::Input { name: name.into(), expected: "one weight".into(), got });
            }
            *known = data.clone();
        }
        let made = pass::again(&changes.prelude, &next, &changed)?;
        if !made.is_empty() && self.prepared.set_weights(&made)? == Change::NewLayouts {
            let mut layouts = self.layouts();
            layouts.clear();
            self.generation.fetch_add(1, Ordering::Release);
        }
        *now = next;
        Ok(())
    }

    /// The data that weights which may change have now, by name.
    pub fn weights(&self) -> BTreeMap<String, Tensor> {
        self.changes.as_ref().map(|changes| changes.weights().clone()).unwrap_or_default()
    }

    /// The data that a weight which may change has now.
    pub fn weight(&self, name: &str) -> Result<Tensor> {
        let weights = self.weights();
        weights.get(name).cloned().ok_or_else(|| unknown(name, &weights))
    }

    /// A new stream.
    pub fn session(self: &Arc<Self>) -> Session {
        Session::new(Arc::clone(self), None)
    }

    /// A new stream for runs of these sizes alone, which leave out part of a loop's kernel so that it can be measured what
    /// that part takes. Their results are worth nothing. None where the backend has no such runs.
    pub fn session_without(self: &Arc<Self>, bindings: &Bindings, left_out: &LeftOut) -> Result<Option<Session>> {
        let bound = self.prepared.bind_without(bindings, left_out)?;
        Ok(bound.map(|bound| Session::new(Arc::clone(self), Some(bound))))
    }
}

fn unknown(weight: &str, known: &BTreeMap<String, Tensor>) -> Error {
    Error::Unknown { kind: "weight that may change", name: weight.into(), known: known.keys().cloned().collect() }
}
