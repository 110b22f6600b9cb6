//! Running: a program is compiled once and shared; a [`Session`] is one stream through it.

use crate::backend::{Backend, Bound, Choice, Prepared, Stream};
use crate::error::Result;
use crate::graph::Graph;
use crate::memory::{Budget, Recent};
use crate::pass::{self, PassOptions, PassRecord};
use crate::plan::Plan;
pub use crate::session::{Canceller, Session};
use crate::shape::Bindings;
use std::sync::{Arc, Mutex};

/// How many layouts for different sizes a program keeps.
const MOST_LAYOUTS: usize = 64;

/// How to compile.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// What is to run it: this machine's processor unless told.
    pub backend: Choice,
    /// Threads; 0 for one a core.
    pub threads: usize,
    /// What passes may do.
    pub passes: PassOptions,
    /// The memory that sessions may use.
    pub budget: Budget,
}

impl CompileOptions {
    /// For this backend.
    pub fn backend(mut self, backend: Choice) -> Self {
        self.backend = backend;
        self
    }
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
    threads: usize,
    budget: Budget,
    layouts: Mutex<Recent<Bindings, Arc<dyn Bound>>>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} nodes on {})", self.graph.nodes().len(), self.backend)
    }
}

impl Program {
    /// Compiles for the options' backend.
    pub fn compile(graph: &Graph, options: &CompileOptions) -> Result<Arc<Program>> {
        Program::compile_for(graph, &*options.backend.make(options.threads)?, options)
    }

    /// Compiles for a backend that is at hand; that of the options does not count, nor do their threads.
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
            threads: backend.threads(),
            budget: options.budget.clone(),
            layouts: Mutex::new(Recent::new(MOST_LAYOUTS)),
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
        Ok(self.layout(bindings)?.plan().clone())
    }

    pub(crate) fn layout(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>> {
        if let Some(layout) = self.layouts.lock().expect("nothing panics while it is locked").get(bindings) {
            return Ok(Arc::clone(layout));
        }
        let layout = self.prepared.bind(bindings)?;
        self.layouts.lock().expect("nothing panics while it is locked").insert(bindings.clone(), Arc::clone(&layout));
        Ok(layout)
    }

    /// A new stream.
    pub fn session(self: &Arc<Self>) -> Session {
        Session::new(Arc::clone(self))
    }
}
