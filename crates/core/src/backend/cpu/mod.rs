//! The CPU: SIMD kernels chosen at run time, weights packed ahead, one arena a stream.

mod calls;
mod gated;
mod known;
mod lower;
mod matmul;
mod packs;
mod place;
mod scan;
mod synapse;

use super::{Backend, Bound, Inputs, Observer, Prepared, Stream};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::pass::PassOptions;
use crate::plan::Plan;
use crate::shape::Bindings;
use crate::tensor::{Bytes, Tensor};
use lower::{Lowered, Target};
use packs::Packs;
use schwann_kernels::tape::{Frame, Stopped, Watch, Watching};
use schwann_kernels::tuning::Tuning;
use schwann_kernels::{Isa, Team};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The CPU backend with an instruction set and a team of threads.
#[derive(Clone, Debug)]
pub struct Cpu {
    isa: Isa,
    tuning: Tuning,
    team: Arc<Team>,
}

impl Cpu {
    /// The widest instruction set of this CPU, and `threads` threads (0 for one a core).
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

    fn pass_options(&self, wanted: &PassOptions) -> PassOptions {
        wanted.clone()
    }

    fn prepare(&self, graph: Arc<Graph>) -> Result<Box<dyn Prepared>> {
        // A weight without data is found now, not in the middle of a run.
        for (name, _) in graph.weight_types() {
            graph.weight(name)?;
        }
        Ok(Box::new(CpuPrepared { cpu: self.clone(), graph, packs: Packs::default() }))
    }
}

struct CpuPrepared {
    cpu: Cpu,
    graph: Arc<Graph>,
    packs: Packs,
}

impl Prepared for CpuPrepared {
    fn bind(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>> {
        let target =
            Target { isa: self.cpu.isa, tuning: &self.cpu.tuning, threads: self.cpu.threads(), packs: &self.packs };
        let lowered = lower::lower(&self.graph, bindings, target, &HashMap::new())?;
        Ok(Arc::new(CpuBound { team: Arc::clone(&self.cpu.team), lowered }))
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

    fn stream(self: Arc<Self>) -> Result<Box<dyn Stream>> {
        let arena = Bytes::try_zeroed(self.lowered.tape.arena_bytes(), "a session's arena")?;
        let frame = self.lowered.tape.frame();
        Ok(Box::new(CpuStream { bound: self, arena, frame }))
    }
}

struct CpuStream {
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

impl Stream for CpuStream {
    fn bytes(&self) -> usize {
        self.arena.capacity()
    }

    fn run(
        &mut self,
        inputs: &dyn Inputs,
        outputs: &mut [Tensor],
        observer: Option<&mut dyn Observer>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        let CpuStream { bound, arena, frame } = self;
        let count = bound.lowered.tape.inputs();
        let given = (0..count).map(|i| inputs.bytes(i));
        let taken = outputs.iter_mut().map(Tensor::bytes_mut);
        let mut steps = observer.map(Steps);
        let records = steps.as_mut().is_some_and(|s| s.0.recorder().is_some());
        let watch = match &mut steps {
            None => None,
            Some(Steps(observer)) if records => observer.recorder().map(Watching::Times),
            Some(steps) => Some(Watching::Steps(steps)),
        };
        let tape = &bound.lowered.tape;
        tape.run(frame, &bound.team, arena, given, taken, watch, cancel).map_err(|stopped| match stopped {
            Stopped::Cancelled => Error::Cancelled,
            Stopped::Buffer(problem) => Error::Internal(problem),
            Stopped::Value { call, problem } => {
                Error::Value { node: step_name(&bound.lowered.plan, &call).unwrap_or_default(), problem }
            }
        })
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
