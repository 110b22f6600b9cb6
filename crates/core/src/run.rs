//! Running: a program is compiled once and shared; a [`Session`] is one stream through it.

use crate::backend::{Backend, Bound, Choice, Prepared, Stream};
use crate::error::Result;
use crate::graph::Graph;
use crate::memory::Budget;
use crate::pass::{self, PassOptions, PassRecord};
use crate::plan::Plan;
pub use crate::session::{Canceller, Session};
use crate::shape::Bindings;
use std::collections::HashMap;
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
            return Ok(layout);
        }
        let layout = self.prepared.bind(bindings)?;
        self.layouts.lock().expect("nothing panics while it is locked").insert(bindings, Arc::clone(&layout));
        Ok(layout)
    }

    /// A new stream.
    pub fn session(self: &Arc<Self>) -> Session {
        Session::new(Arc::clone(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing(Plan);
    impl Bound for Nothing {
        fn plan(&self) -> &Plan {
            &self.0
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
