//! The reference as a backend like any other, to see what a graph means.

use crate::backend::host::HostMemory;
use crate::backend::{
    Backend, Bound, Canceller, Change, Clock, Inputs, Observer, Prepared, Queue, Sizes, Source, Span, Stream,
    state_places, tell,
};
use crate::error::{Error, Result};
use crate::figure::Provenance;
use crate::graph::Graph;
use crate::pass::PassOptions;
use crate::plan::{Kernel, Place, Plan, Step};
use crate::reference::run_watched;
pub use crate::reference::*;
use crate::shape::Bindings;
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

/// Plain loops in `f64`, rounded to each node's type: slow, and the definition of every operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Backend for Reference {
    fn name(&self) -> String {
        "reference".into()
    }

    fn pass_options(&self, _: &PassOptions) -> PassOptions {
        PassOptions { synapse_gradients: true, ..PassOptions::none() }
    }

    fn prepare(&self, graph: Arc<Graph>) -> Result<Box<dyn Prepared>> {
        for (name, _) in graph.weight_types() {
            graph.weight(name)?;
        }
        Ok(Box::new(Ready(Arc::new(RwLock::new(graph)))))
    }
}

/// The graph with its current weights. A run takes it once, and so uses one set of weights.
type Current = Arc<RwLock<Arc<Graph>>>;

fn now(current: &Current) -> Arc<Graph> {
    Arc::clone(&current.read().unwrap_or_else(PoisonError::into_inner))
}

struct Ready(Current);

impl Prepared for Ready {
    fn bind(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>> {
        let graph = &now(&self.0);
        let (mut steps, mut step_of) = (vec![], vec![None; graph.nodes().len()]);
        for (number, node) in graph.nodes().iter().enumerate().filter(|(_, n)| !n.op.is_source()) {
            step_of[number] = Some(steps.len());
            let shape = node.outs[0].shape.eval(bindings)?;
            steps.push(Step {
                name: node.name.clone(),
                op: node.op.name().into(),
                kernel: Kernel::other("reference"),
                out: format!("{}{shape:?}", node.outs[0].dtype),
                reads: node.inputs.iter().map(|v| Place::Constant(graph.node(*v).name.clone())).collect(),
                writes: vec![],
                cost: graph.node_cost(node, bindings)?,
                in_place: false,
                looped: None,
            });
        }
        let plan = Plan {
            backend: Reference.name(),
            threads: 1,
            bindings: bindings.clone(),
            steps,
            buffers: vec![],
            arena_bytes: 0,
            live_bytes: 0,
            weight_bytes: graph.weights().values().map(|t| t.bytes().len()).sum(),
            unified_memory: None,
        };
        Ok(Arc::new(ReferenceBound { graph: Arc::clone(&self.0), plan, step_of }))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        let memory = HostMemory::new(state_places(&now(&self.0)));
        Ok(Box::new(Running { bound: None, memory, done: None }))
    }

    fn set_weights(&self, weights: &[(String, Tensor)]) -> Result<Change> {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut graph = Arc::clone(&current);
        for (name, data) in weights {
            Arc::make_mut(&mut graph).set_weight(name, data.clone())?;
        }
        *current = graph;
        Ok(Change::InPlace)
    }
}

struct ReferenceBound {
    graph: Current,
    plan: Plan,
    /// The plan's step of each node that has one.
    step_of: Vec<Option<usize>>,
}

impl Bound for ReferenceBound {
    fn plan(&self) -> &Plan {
        &self.plan
    }
}

struct Running {
    bound: Option<Arc<ReferenceBound>>,
    memory: HostMemory,
    /// The outcome of the run that was submitted: it is done within `submit`.
    done: Option<Result<()>>,
}

/// When steps began, in order, and when the last one was over.
#[derive(Default)]
struct Seen {
    begun: Vec<(usize, Instant)>,
    over: Option<Instant>,
}

impl Seen {
    fn tell(&self, observer: &mut dyn Observer, given: Instant) {
        let ends = self.begun.iter().skip(1).map(|(_, at)| *at).chain(self.over);
        let span = |((step, from), to): (&(usize, Instant), Instant)| Span {
            path: vec![*step],
            queue: 0,
            start_s: (*from - given).as_secs_f64(),
            seconds: (to - *from).as_secs_f64(),
        };
        let spans: Vec<Span> = self.begun.iter().zip(ends).map(span).collect();
        let clock = Clock { source: "system clock".into(), origin: Provenance::Measured, resolution_s: 1e-9 };
        tell(observer, &[Queue { name: "thread 0", clock: &clock }], given, &spans);
    }
}

impl Running {
    fn compute(&mut self, inputs: &dyn Inputs, cancel: &Canceller, mut seen: Option<&mut Seen>) -> Result<()> {
        let Some(bound) = &self.bound else {
            return Err(Error::Internal("a run of the reference before its layout".into()));
        };
        self.memory.settle();
        let ReferenceBound { graph, plan, step_of } = &**bound;
        let graph = &now(graph);
        let mut given = BTreeMap::new();
        for (i, (name, value)) in graph.inputs().enumerate() {
            let ty = graph.ty(value);
            let bytes = match inputs.source(i) {
                Source::Host(bytes) => bytes,
                Source::Kept => self.memory.kept[i].bytes(),
            };
            given.insert(name.to_owned(), Tensor::from_bytes(ty.dtype, &ty.shape.eval(&plan.bindings)?, bytes)?);
        }
        let stop = || if cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) };
        let mut before = |node: usize| {
            stop()?;
            if let (Some(seen), Some(step)) = (&mut seen, step_of[node]) {
                seen.begun.push((step, Instant::now()));
            }
            Ok(())
        };
        stop()?;
        let results = run_watched(graph, &given, Precision::Storage, &mut before)?;
        if let Some(seen) = seen {
            seen.over = Some(Instant::now());
        }
        for (to, from) in self.memory.outputs.iter_mut().zip(results) {
            to.bytes_mut().copy_from_slice(from.bytes());
        }
        self.memory.written();
        Ok(())
    }
}

impl Stream for Running {
    fn fit(&mut self, bound: Arc<dyn Bound>, sizes: &Sizes) -> Result<()> {
        self.bound = Some(bound.downcast()?);
        self.memory.fit(sizes)
    }

    fn release(&mut self) {
        self.bound = None;
        self.memory.release();
    }

    fn bytes(&self) -> usize {
        0
    }

    fn upload(&mut self, input: usize, value: &Tensor) -> Result<()> {
        self.memory.upload(input, value)
    }

    fn zero(&mut self, state: usize) -> Result<()> {
        self.memory.zero(state)
    }

    fn state(&self, state: usize) -> Result<&Tensor> {
        self.memory.state(state)
    }

    fn submit(&mut self, inputs: &dyn Inputs, _: bool, cancel: &Canceller) -> Result<()> {
        self.done = Some(self.compute(inputs, cancel, None));
        Ok(())
    }

    fn wait(&mut self, _: Option<&mut dyn Observer>) -> Result<()> {
        self.done.take().unwrap_or_else(|| Err(Error::Internal("a wait of the reference for nothing".into())))
    }

    fn outputs(&self) -> Result<&[Tensor]> {
        Ok(&self.memory.outputs)
    }

    fn run(
        &mut self,
        inputs: &dyn Inputs,
        observer: Option<&mut dyn Observer>,
        cancel: &Canceller,
    ) -> Result<&[Tensor]> {
        let (given, mut seen) = (Instant::now(), Seen::default());
        self.compute(inputs, cancel, observer.is_some().then_some(&mut seen))?;
        if let Some(observer) = observer {
            seen.tell(observer, given);
        }
        Ok(&self.memory.outputs)
    }
}
