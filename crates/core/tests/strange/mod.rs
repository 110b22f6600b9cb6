//! A backend that is nothing like the CPU, for tests of the seam, and the example of `docs/adding-a-backend.md`: memory that
//! the host cannot see, runs that are done later by somebody else, no arena, and kernels with names of its own.
#![allow(dead_code, reason = "each test that includes it uses another part")]

mod card;

pub(crate) use card::Knobs;
use card::{Card, Command, Handle, Job, lost};
use schwann_core::backend::{
    self, Backend, Bound, Canceller, Change, Clock, Inputs, Known, Observer, Prepared, Queue, Sizes, Source, Span,
    Stream, state_places,
};
use schwann_core::pass::PassOptions;
use schwann_core::plan::{Kernel, Loop, Place, Plan, Step};
use schwann_core::{Bindings, Graph, Op, Provenance, Result, Tensor};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// The backend: one card, which all programs and streams share.
#[derive(Clone)]
pub(crate) struct Strange {
    card: Arc<Card>,
}

impl Strange {
    pub(crate) fn new() -> Result<Strange> {
        Ok(Strange { card: Card::start()? })
    }

    /// What a test may look at and turn.
    pub(crate) fn knobs(&self) -> Arc<Knobs> {
        Arc::clone(&self.card.knobs)
    }

    /// Makes it known by its name, once in a program.
    pub(crate) fn register() -> Result<()> {
        static DONE: OnceLock<()> = OnceLock::new();
        let mut result = Ok(());
        DONE.get_or_init(|| {
            result = backend::register(Known {
                name: "strange",
                about: "nothing like the CPU",
                variants: || vec!["red".into(), "blue".into()],
                make: |_, _| Ok(Arc::new(Strange::new()?)),
            });
        });
        result
    }
}

impl Backend for Strange {
    fn name(&self) -> String {
        "strange".into()
    }

    fn pass_options(&self, wanted: &PassOptions) -> PassOptions {
        wanted.clone()
    }

    fn prepare(&self, graph: Arc<Graph>) -> Result<Box<dyn Prepared>> {
        // A loop's body has none of its own: weights enter it as inputs.
        let put = |name: &str| Ok((name.to_owned(), self.card.put(graph.weight(name)?)?));
        let weights = graph.weight_types().map(|(name, _)| put(name)).collect::<Result<HashMap<_, _>>>()?;
        Ok(Box::new(Ready { card: Arc::clone(&self.card), graph, weights: Arc::new(Mutex::new(Arc::new(weights))) }))
    }
}

/// Where the card has the weights of today. A run is told once, and so has one set of them.
type Weights = Arc<Mutex<Arc<HashMap<String, Handle>>>>;

fn now(weights: &Weights) -> MutexGuard<'_, Arc<HashMap<String, Handle>>> {
    weights.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Ready {
    card: Arc<Card>,
    graph: Arc<Graph>,
    weights: Weights,
}

impl Drop for Ready {
    fn drop(&mut self) {
        let _ = self.card.send(Command::Free(now(&self.weights).values().copied().collect()));
    }
}

impl Prepared for Ready {
    /// New buffers take the place of the old ones, which go when the runs before this are done: the card obeys in order.
    fn set_weights(&self, weights: &[(String, Tensor)]) -> Result<Change> {
        let put = |(name, data): &(String, Tensor)| Ok((name.clone(), self.card.put(data)?));
        let new = weights.iter().map(put).collect::<Result<Vec<_>>>()?;
        // Held until the card knows, as it is by whoever tells the card of a run.
        let mut current = now(&self.weights);
        let mut all = (**current).clone();
        let old = new.into_iter().filter_map(|(name, handle)| all.insert(name, handle)).collect();
        *current = Arc::new(all);
        self.card.send(Command::Free(old))?;
        Ok(Change::InPlace)
    }

    fn bind(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>> {
        Ok(Arc::new(Layout { plan: plan(&self.graph, bindings)? }))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        let (graph, states) = (Arc::clone(&self.graph), state_places(&self.graph));
        let (inputs, outputs) = (graph.inputs().len(), graph.outputs().len());
        Ok(Box::new(Lane {
            card: Arc::clone(&self.card),
            weights: Arc::clone(&self.weights),
            kept: vec![None; inputs],
            values: (0..states.len()).map(|_| OnceCell::new()).collect(),
            shown: (0..outputs).map(|_| OnceCell::new()).collect(),
            all: OnceCell::new(),
            results: vec![],
            layout: None,
            under_way: None,
            graph,
            states,
        }))
    }
}

/// One step for each node that computes; a loop has its body's.
fn plan(graph: &Graph, bindings: &Bindings) -> Result<Plan> {
    let mut steps = vec![];
    for node in graph.nodes().iter().filter(|n| !n.op.is_source()) {
        let looped = match &node.op {
            Op::Scan(scan) => {
                let sequence = node.inputs[scan.states];
                let steps = graph.ty(sequence).shape.dims()[scan.axis].eval(bindings)?;
                let body = plan(&scan.body, bindings)?;
                Some(Box::new(Loop {
                    steps,
                    block_rows: None,
                    blocks: 1,
                    body: body.into(),
                    tail: None,
                    workgroup: None,
                }))
            }
            _ => None,
        };
        steps.push(Step {
            name: node.name.clone(),
            op: node.op.name().into(),
            kernel: Kernel::other(format!("glyph of {}", node.op.name())),
            out: format!("{}{:?}", node.outs[0].dtype, node.outs[0].shape.eval(bindings)?),
            reads: node.inputs.iter().map(|v| Place::Constant(graph.node(*v).name.clone())).collect(),
            writes: vec![],
            cost: graph.node_cost(node, bindings)?,
            in_place: false,
            looped,
        });
    }
    Ok(Plan {
        backend: "strange".into(),
        threads: 1,
        bindings: bindings.clone(),
        steps,
        buffers: vec![],
        arena_bytes: 0,
        live_bytes: 0,
        weight_bytes: graph.weights().values().map(|t| t.bytes().len()).sum(),
        unified_memory: None,
    })
}

struct Layout {
    plan: Plan,
}

impl Bound for Layout {
    fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// One stream. Buffers on the card are written once: a run's results are new ones, and a state's next value is simply the
/// buffer that the run wrote.
struct Lane {
    card: Arc<Card>,
    graph: Arc<Graph>,
    weights: Weights,
    /// For each state, its place among the inputs and among the outputs.
    states: Vec<(usize, usize)>,
    layout: Option<(Arc<Layout>, Sizes)>,
    /// For each input, the buffer that holds what was uploaded, or the state.
    kept: Vec<Option<Handle>>,
    /// The results of the last run that went well.
    results: Vec<Handle>,
    /// What the host has seen of states and results.
    values: Vec<OnceCell<Tensor>>,
    shown: Vec<OnceCell<Tensor>>,
    all: OnceCell<Vec<Tensor>>,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    answer: Receiver<Result<Vec<Span>>>,
    given: Instant,
    outputs: Vec<Handle>,
    /// Buffers for inputs of this run alone.
    passing: Vec<Handle>,
}

/// What a cell holds, or what is fetched now.
fn fetched<T>(cell: &OnceCell<T>, fetch: impl FnOnce() -> Result<T>) -> Result<&T> {
    if cell.get().is_none() {
        let _ = cell.set(fetch()?);
    }
    cell.get().ok_or_else(|| lost("nothing came"))
}

impl Lane {
    /// Frees those of these buffers that nothing refers to any more.
    fn free(&self, mut handles: Vec<Handle>) {
        handles.retain(|h| !self.results.contains(h) && !self.kept.contains(&Some(*h)));
        // A card that is gone has freed everything.
        let _ = self.card.send(Command::Free(handles));
    }

    fn keep(&mut self, input: usize, handle: Handle) {
        let old = self.kept[input].replace(handle);
        for (value, _) in self.values.iter_mut().zip(&self.states).filter(|(_, state)| state.0 == input) {
            value.take();
        }
        self.free(old.into_iter().collect());
    }

    fn forget_results(&mut self) {
        self.shown.iter_mut().for_each(|cell| drop(cell.take()));
        self.all.take();
        let old = std::mem::take(&mut self.results);
        self.free(old);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let under_way = self.under_way.take().map(|w| [w.outputs, w.passing].concat()).unwrap_or_default();
        let kept = std::mem::take(&mut self.kept);
        let results = std::mem::take(&mut self.results);
        // The card obeys in order: a run that is under way is over before its buffers go.
        self.free(kept.into_iter().flatten().chain(results).chain(under_way).collect());
    }
}

impl Stream for Lane {
    fn fit(&mut self, bound: Arc<dyn Bound>, sizes: &Sizes) -> Result<()> {
        self.layout = Some((bound.downcast()?, sizes.clone()));
        Ok(())
    }

    fn release(&mut self) {
        self.layout = None;
        self.forget_results();
    }

    fn bytes(&self) -> usize {
        let Some((_, sizes)) = &self.layout else { return 0 };
        let states = self.states.iter().map(|(input, _)| &sizes.inputs[*input]);
        sizes.outputs.iter().chain(states).map(Sizes::bytes).sum()
    }

    fn upload(&mut self, input: usize, value: &Tensor) -> Result<()> {
        let handle = self.card.put(value)?;
        self.keep(input, handle);
        Ok(())
    }

    fn zero(&mut self, state: usize) -> Result<()> {
        let (input, _) = self.states[state];
        let Some((_, sizes)) = &self.layout else { return Err(lost("a state without a size")) };
        let (dtype, shape) = &sizes.inputs[input];
        let handle = self.card.put(&Tensor::zeros(*dtype, shape)?)?;
        self.keep(input, handle);
        Ok(())
    }

    fn state(&self, state: usize) -> Result<&Tensor> {
        let handle = self.kept[self.states[state].0].ok_or_else(|| lost("a state without a value"))?;
        fetched(&self.values[state], || self.card.get(handle))
    }

    fn submit(&mut self, inputs: &dyn Inputs, _: bool, cancel: &Canceller) -> Result<()> {
        let given = Instant::now();
        self.forget_results();
        let Some((layout, sizes)) = &self.layout else { return Err(lost("a run without a layout")) };
        let (mut all, mut passing) = (vec![], vec![]);
        for (i, (dtype, shape)) in sizes.inputs.iter().enumerate() {
            all.push(match inputs.source(i) {
                Source::Kept => self.kept[i].ok_or_else(|| lost("an input that nobody uploaded"))?,
                Source::Host(bytes) => {
                    let handle = self.card.put(&Tensor::from_bytes(*dtype, shape, bytes)?)?;
                    passing.push(handle);
                    handle
                }
            });
        }
        let outputs: Vec<Handle> = sizes.outputs.iter().map(|_| self.card.handle()).collect();
        let (reply, answer) = channel();
        let weights = now(&self.weights);
        self.card.send(Command::Run(Box::new(Job {
            graph: Arc::clone(&self.graph),
            bindings: layout.plan.bindings.clone(),
            weights: Arc::clone(&weights),
            inputs: all,
            outputs: outputs.clone(),
            given,
            cancel: cancel.clone(),
            reply,
        })))?;
        self.under_way = Some(UnderWay { answer, given, outputs, passing });
        Ok(())
    }

    fn wait(&mut self, observer: Option<&mut dyn Observer>) -> Result<()> {
        let Some(UnderWay { answer, given, outputs, passing }) = self.under_way.take() else {
            return Err(lost("a wait for nothing"));
        };
        let told = answer.recv().map_err(|_| lost("it gave no answer"));
        self.free(passing);
        let spans = told??;
        self.results = outputs;
        for (input, output) in self.states.clone() {
            self.keep(input, self.results[output]);
        }
        if let Some(observer) = observer {
            let clock = Clock { source: "the card's clock".into(), origin: Provenance::Measured, resolution_s: 1e-9 };
            let queues = ["card", "card's copies"].map(|name| Queue { name, clock: &clock });
            backend::tell(observer, &queues, given, &spans);
        }
        Ok(())
    }

    fn outputs(&self) -> Result<&[Tensor]> {
        let all = fetched(&self.all, || self.results.iter().map(|handle| self.card.get(*handle)).collect())?;
        Ok(all)
    }

    fn output(&self, index: usize) -> Result<&Tensor> {
        if let Some(all) = self.all.get() {
            return Ok(&all[index]);
        }
        fetched(&self.shown[index], || self.card.get(self.results[index]))
    }
}
