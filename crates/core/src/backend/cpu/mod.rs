//! The CPU: SIMD kernels chosen at run time, weights packed before the run, one arena for each stream.

mod calls;
mod gated;
mod known;
mod lower;
mod matmul;
mod packs;
mod place;
mod scan;
mod synapse;
mod totals;
mod wired;

use super::host::HostMemory;
use super::{Backend, Bound, Canceller, Change, Inputs, Observer, Prepared, Sizes, Source, Stream, state_places};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::pass::PassOptions;
use crate::plan::Plan;
use crate::shape::Bindings;
use crate::tensor::{Bytes, Tensor};
use lower::{Lowered, Target};
use packs::{NewWeights, Packs};
use schwann_kernels::tape::{Frame, Stopped, Watch, Watching};
use schwann_kernels::tuning::{Machine, Tuning};
use schwann_kernels::{Isa, Team};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The CPU backend with an instruction set and a team of threads.
#[derive(Clone, Debug)]
pub struct Cpu {
    isa: Isa,
    tuning: Tuning,
    team: Arc<Team>,
}

impl Cpu {
    /// The widest instruction set of this CPU, and `threads` threads (0: one for each core).
    pub fn new(threads: usize) -> Result<Cpu> {
        Cpu::with_isa(Isa::detect(), threads)
    }

    /// A given instruction set.
    pub fn with_isa(isa: Isa, threads: usize) -> Result<Cpu> {
        Cpu::with_tuning(isa, Tuning::detect(), threads)
    }

    /// A given instruction set, and given numbers to tune its kernels with instead of those for this class of machine.
    pub fn with_tuning(isa: Isa, tuning: Tuning, threads: usize) -> Result<Cpu> {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = if threads == 0 { cores() } else { threads };
        let team = Team::with_tuning(threads, &tuning).map_err(Error::Thread)?;
        Ok(Cpu { isa, tuning, team: Arc::new(team) })
    }

    /// Its instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// What its kernels are tuned with.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Its threads.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }
}

impl Backend for Cpu {
    fn name(&self) -> String {
        format!("cpu ({})", self.isa)
    }

    fn threads(&self) -> usize {
        self.team.threads()
    }

    fn pass_options(&self, wanted: &PassOptions) -> PassOptions {
        PassOptions { tuning: self.tuning, low_bit: true, synapse_gradients: true, ..wanted.clone() }
    }

    fn prepare(&self, graph: Arc<Graph>) -> Result<Box<dyn Prepared>> {
        // A weight without data is an error now, not in the middle of a run.
        for (name, _) in graph.weight_types() {
            graph.weight(name)?;
        }
        let weights = Weights { graph, packs: Packs::default(), loops: scan::Loops::default() };
        Ok(Box::new(CpuPrepared { cpu: self.clone(), weights: RwLock::new(weights) }))
    }
}

struct CpuPrepared {
    cpu: Cpu,
    /// Locked for reading while a layout is made, so that weights do not change meanwhile.
    weights: RwLock<Weights>,
}

/// The graph with its current weights, and what is packed of them.
struct Weights {
    graph: Arc<Graph>,
    packs: Packs,
    loops: scan::Loops,
}

impl Prepared for CpuPrepared {
    fn bind(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>> {
        let Cpu { isa, tuning, team } = &self.cpu;
        let weights = self.weights.read().unwrap_or_else(PoisonError::into_inner);
        let Weights { graph, packs, loops } = &*weights;
        let target = Target { isa: *isa, tuning, threads: team.threads(), packs, loops };
        let lowered = lower::lower(graph, bindings, target, &HashMap::new())?;
        Ok(Arc::new(CpuBound { team: Arc::clone(&self.cpu.team), lowered }))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        let weights = self.weights.read().unwrap_or_else(PoisonError::into_inner);
        let memory = HostMemory::new(state_places(&weights.graph));
        Ok(Box::new(CpuStream { fitted: None, memory, done: None }))
    }

    /// Packed weights are rewritten in place. If that is not possible, existing layouts keep all old weights, and new
    /// layouts pack everything again.
    fn set_weights(&self, new: &[(String, Tensor)]) -> Result<Change> {
        let mut weights = self.weights.write().unwrap_or_else(PoisonError::into_inner);
        let Weights { graph, packs, loops } = &mut *weights;
        // Checked first, so that an error leaves all weights as they were.
        for (name, data) in new {
            let old = graph.weight(name)?;
            if (old.dtype(), old.shape()) != (data.dtype(), data.shape()) || !graph.may_change(name) {
                return Err(Error::Internal(format!("{data} in the place of the weight `{name}`, {old}")));
            }
        }
        let changed: HashMap<&str, &Tensor> = new.iter().map(|(name, data)| (name.as_str(), data)).collect();
        let get =
            |name: &str| changed.get(name).map_or_else(|| graph.weight(name).cloned(), |data| Ok((*data).clone()));
        let on = Machine { isa: self.cpu.isa, tuning: &self.cpu.tuning };
        let fits = packs.rewrite(on, &NewWeights { changed: changed.clone(), get: &get })?;
        // Copies the graph only if it is shared.
        let graph = Arc::make_mut(graph);
        for (name, data) in new {
            graph.set_weight(name, data.clone())?;
        }
        if fits {
            return Ok(Change::InPlace);
        }
        *packs = std::mem::take(packs).renewed();
        *loops = scan::Loops::default();
        Ok(Change::NewLayouts)
    }
}

struct CpuBound {
    team: Arc<Team>,
    lowered: Lowered,
}

impl Bound for CpuBound {
    fn plan(&self) -> &Plan {
        &self.lowered.plan
    }
}

struct CpuStream {
    fitted: Option<Fitted>,
    memory: HostMemory,
    /// The outcome of the run that was submitted: the CPU runs it within `submit`.
    done: Option<Result<()>>,
}

/// What a layout needs to run.
struct Fitted {
    bound: Arc<CpuBound>,
    arena: Bytes,
    frame: Frame,
}

/// The tape's view of an observer.
struct Steps<'a>(&'a mut dyn Observer);
impl Watch for Steps<'_> {
    fn begin(&mut self, call: usize) {
        self.0.begin(call);
    }
    fn end(&mut self, call: usize) {
        self.0.end(call);
    }
}

impl CpuStream {
    fn compute(
        &mut self,
        inputs: &dyn Inputs,
        into: &mut [Option<&mut [u8]>],
        observer: Option<&mut dyn Observer>,
        cancel: &Canceller,
    ) -> Result<()> {
        let CpuStream { fitted: Some(Fitted { bound, arena, frame }), memory, .. } = self else {
            return Err(Error::Internal("a run on the CPU before its layout".into()));
        };
        memory.settle();
        let in_place = &bound.lowered.in_place[..];
        let held = |input: usize| match inputs.source(input) {
            Source::Host(bytes) => Some(bytes),
            Source::Kept => None,
        };
        in_place.iter().for_each(|&state| memory.lend(state, held(state.0)));
        let HostMemory { outputs, kept, .. } = &mut *memory;
        let count = bound.lowered.tape.inputs();
        let given = (0..count).map(|i| match inputs.source(i) {
            Source::Host(bytes) => bytes,
            Source::Kept => kept[i].bytes(),
        });
        let mut into = into.iter_mut();
        let taken = outputs.iter_mut().map(|own| match into.next() {
            Some(Some(place)) => &mut **place,
            _ => own.bytes_mut(),
        });
        let mut steps = observer.map(Steps);
        let timed = steps.as_mut().is_some_and(|s| s.0.timeline().is_some());
        let watch = match &mut steps {
            None => None,
            Some(Steps(observer)) if timed => observer.timeline().map(|t| Watching::Times(t.recorder())),
            Some(steps) => Some(Watching::Steps(steps)),
        };
        let tape = &bound.lowered.tape;
        let outcome = tape.run(frame, &bound.team, arena, given, taken, watch, cancel.flag());
        let Err(stopped) = outcome else {
            memory.written();
            return Ok(());
        };
        for &state in in_place.iter().filter(|state| held(state.0).is_none()) {
            memory.lend(state, None);
        }
        Err(match stopped {
            Stopped::Cancelled => Error::Cancelled,
            Stopped::Buffer(problem) => Error::Internal(problem),
            Stopped::Value { call, problem } => {
                Error::Value { node: step_name(&bound.lowered.plan, &call).unwrap_or_default(), problem }
            }
        })
    }
}

impl Stream for CpuStream {
    fn fit(&mut self, bound: Arc<dyn Bound>, sizes: &Sizes) -> Result<()> {
        self.release();
        let bound: Arc<CpuBound> = bound.downcast()?;
        let arena = Bytes::try_zeroed(bound.lowered.tape.arena_bytes(), "a session's arena")?;
        self.memory.fit(sizes)?;
        self.fitted = Some(Fitted { frame: bound.lowered.tape.frame(), arena, bound });
        Ok(())
    }

    fn release(&mut self) {
        self.fitted = None;
        self.memory.release();
    }

    fn bytes(&self) -> usize {
        self.fitted.as_ref().map_or(0, |fitted| fitted.arena.capacity())
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
        self.done = Some(self.compute(inputs, &mut [], None, cancel));
        Ok(())
    }

    fn wait(&mut self, _: Option<&mut dyn Observer>) -> Result<()> {
        self.done.take().unwrap_or_else(|| Err(Error::Internal("a wait on the CPU for nothing".into())))
    }

    fn outputs(&self) -> Result<&[Tensor]> {
        Ok(&self.memory.outputs)
    }

    /// Without the detour by `submit` and `wait`: quicker, and an observer is told of each step as it runs.
    fn run(
        &mut self,
        inputs: &dyn Inputs,
        observer: Option<&mut dyn Observer>,
        cancel: &Canceller,
    ) -> Result<&[Tensor]> {
        self.compute(inputs, &mut [], observer, cancel)?;
        Ok(&self.memory.outputs)
    }

    /// The last kernels write where the caller wants it.
    fn run_into(
        &mut self,
        inputs: &dyn Inputs,
        into: &mut [Option<&mut [u8]>],
        observer: Option<&mut dyn Observer>,
        cancel: &Canceller,
    ) -> Result<()> {
        self.compute(inputs, into, observer, cancel)
    }
}

/// The name of the step at a path through loops.
fn step_name(plan: &Plan, path: &[usize]) -> Option<String> {
    let (first, rest) = path.split_first()?;
    let step = plan.steps.get(*first)?;
    match &step.looped {
        Some(looped) => step_name(&looped.body, rest),
        None => Some(step.name.clone()),
    }
}
