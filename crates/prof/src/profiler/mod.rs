//! The profiler: runs a model, watches it, and writes down what was seen.
//!
//! Times are of runs that nobody watches. In turns with them the same session runs watched, which gives each operation
//! its part and, beside the unwatched runs, what watching costs; that cost is taken off the operations' times. Where
//! runs are so short that reading the clock would show, only one run in several is watched.
//!
//! What other parts of the program know better is handed in: the machine's limits ([`Ceiling`]), counters and sensors
//! ([`Counters`]), a count of allocations. What is not handed in is unavailable, with that as the reason.

mod compare;
mod compute;
mod here;
mod memory;
mod phases;
mod realtime;
mod record;
pub(crate) mod rig;
mod sample;
mod start;

pub use compare::Way;
pub(crate) use compare::difference;
pub use compute::{Ceiling, Least};
pub use here::machine;
pub(crate) use here::{fingerprint, hash, now};
pub use phases::{AUTO_SECONDS, Phases};
pub use realtime::{Live, Realtime, RealtimeOptions, Window};
pub use record::{OpEvent, Recording, Stretch};
pub use start::{Starter, Timed, Turns, YARDSTICK, turns};

use crate::baseline::Identity;
use crate::profile::{Comparison, Compute, Machine, Memory, Model as Told, Named, Profile, Roof, SCHEMA, Workload};
use crate::tune::{Changes, InUse};
use compute::Seen;
pub(crate) use rig::Rig;
use schwann_core::backend::Choice;
use schwann_core::{Bindings, DType, Figure, Graph};
use schwann_kernels::Isa;
use schwann_nn::Model;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everything that profiling refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The graph could not be compiled or run.
    #[error(transparent)]
    Core(#[from] schwann_core::Error),
    /// The model could not become a graph.
    #[error(transparent)]
    Model(#[from] schwann_nn::Error),
    /// An option that makes no sense.
    #[error("{option} is {got}; expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// What was given.
        got: String,
        /// What would do.
        expected: String,
    },
    /// A size of the graph that no option gives.
    #[error("the graph's size `{symbol}` has no value; `B` is the batch and `T` the steps, others are given by name")]
    Size {
        /// The symbol.
        symbol: String,
    },
    /// A size that the graph does not have, or that has an option of its own.
    #[error(
        "`{symbol}` is no size to be given by name: `B` is the batch and `T` the steps, and beside them the graph has {known}"
    )]
    Symbol {
        /// What was given.
        symbol: String,
        /// What could be.
        known: String,
    },
    /// A number that the tuning record does not have, or not with this value.
    #[error("tuning: {what}")]
    Tuning {
        /// What is wrong.
        what: String,
    },
    /// A process that should have measured did not.
    #[error("a start of the process failed: {what}")]
    Start {
        /// What came of it.
        what: String,
    },
    /// Somebody asked for it to stop.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    fn option(option: &'static str, got: impl ToString, expected: impl Into<String>) -> Error {
        Error::Option { option, got: got.to_string(), expected: expected.into() }
    }
}

/// The profiler's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is profiled.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A model; its states start at zero in every run.
    Model(Box<Model>),
    /// A graph; its states go on from run to run.
    Graph(Box<Graph>),
}

impl From<Model> for Subject {
    fn from(model: Model) -> Subject {
        Subject::Model(Box::new(model))
    }
}

impl From<Graph> for Subject {
    fn from(graph: Graph) -> Subject {
        Subject::Graph(Box::new(graph))
    }
}

/// How to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Sequences in a batch: the graph's `B`.
    pub batch: usize,
    /// Steps of a sequence: the graph's `T`.
    pub steps: usize,
    /// Other sizes of the graph, by name.
    pub sizes: Vec<(String, usize)>,
    /// Timed samples; fewer where `seconds` are over before.
    pub runs: usize,
    /// Seconds that one measurement may take (the profile, each comparison, each point of a sweep).
    pub seconds: f64,
    /// Threads; 0: one per core.
    pub threads: usize,
    /// What it is run on: this machine's processor unless told.
    #[serde(default)]
    pub backend: Choice,
    /// The processor's instruction set; `None` for the widest.
    #[serde(with = "isa_name")]
    pub isa: Option<Isa>,
    /// The type that products are computed in: `f32` as built, or `bf16`.
    pub dtype: DType,
    /// Whether the compiler's passes run, or each node is a kernel call.
    pub fused: bool,
    /// How it is compiled other than usual.
    #[serde(default)]
    pub tuning: Changes,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            batch: 32,
            steps: 16,
            sizes: vec![],
            runs: 200,
            seconds: 2.0,
            threads: 1,
            backend: Choice::default(),
            isa: None,
            dtype: DType::F32,
            fused: true,
            tuning: Changes::default(),
        }
    }
}

/// An instruction set by its name.
mod isa_name {
    use schwann_kernels::Isa;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(isa: &Option<Isa>, to: S) -> Result<S::Ok, S::Error> {
        isa.map(Isa::name).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Isa>, D::Error> {
        let name = Option::<String>::deserialize(from)?;
        let known = |n: String| Isa::named(&n).ok_or_else(|| D::Error::custom(format!("this CPU has no `{n}`")));
        name.map(known).transpose()
    }
}

/// Samples and sizes beyond this are slips of the finger.
const MOST: usize = 1 << 20;
const MOST_THREADS: usize = 1024;

impl Options {
    /// The backend, with the instruction set where one was asked for.
    pub fn choice(&self) -> Result<Choice> {
        match self.isa {
            None => Ok(self.backend.clone()),
            Some(isa) if self.backend.is_cpu() => Ok(self.backend.clone().variant(isa.name())?),
            Some(isa) => {
                Err(Error::option("isa", isa, format!("none, for {} has no instruction sets", self.backend.name())))
            }
        }
    }

    /// The processor's instruction set: that in use, or, where something else computes, what this machine has.
    pub(super) fn isa_here(&self) -> Isa {
        let named = self.backend.wanted_variant().filter(|_| self.backend.is_cpu()).and_then(Isa::named);
        self.isa.or(named).unwrap_or_else(Isa::detect)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [("batch", self.batch), ("steps", self.steps), ("runs", self.runs)];
        if let Some((option, got)) = sizes.into_iter().find(|(_, n)| !(1..=MOST).contains(n)) {
            return Err(Error::option(option, got, format!("a whole number from 1 to {MOST}")));
        }
        if self.threads > MOST_THREADS {
            let expected = format!("a whole number from 0 (one per core) to {MOST_THREADS}");
            return Err(Error::option("threads", self.threads, expected));
        }
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(Error::option("seconds", self.seconds, "more than 0 and at most 3600"));
        }
        Ok(())
    }
}

/// Counters and sensors of the machine, for a stretch of time.
pub trait Counters {
    /// The stretch begins.
    fn start(&mut self);
    /// It ends: what was read, by name. `rss`, `rss_peak` and `page_faults` are also shown with the memory.
    fn stop(&mut self) -> BTreeMap<String, Figure>;
}

/// The sizes of all of a model's symbols with these options.
pub fn sizes_of(subject: &Subject, options: &Options) -> Result<Bindings> {
    rig::bindings(&subject.graph()?, options)
}

/// Told how far a profile is: what is being done, and which part of it, from 0 to 1.
pub type Progress<'a> = Box<dyn FnMut(&str, f64) + 'a>;

/// A model with everything that is needed to profile it, and the profiles made so far.
///
/// ```
/// # use schwann_prof::{models, profiler::{Options, Profiler}};
/// let model = models::built_in("W", &models::Sizes::default()).unwrap()?;
/// let mut profiler = Profiler::new(model).named("W").with(Options { seconds: 0.1, ..Options::default() });
/// let profile = profiler.profile_all()?;
/// println!("{:?} s, {:?} Tflop/s", profile.compute.time_p50.value, profile.compute.tflops.value);
/// # Ok::<(), schwann_prof::profiler::Error>(())
/// ```
pub struct Profiler<'a> {
    subject: Subject,
    name: String,
    options: Options,
    machine: Option<Machine>,
    ceiling: Option<Ceiling>,
    device_roof: Option<Roof>,
    counters: Option<Box<dyn Counters + 'a>>,
    allocations: Option<fn() -> u64>,
    cancel: Arc<AtomicBool>,
    progress: Option<Progress<'a>>,
    starter: Option<Starter<'a>>,
    ways: Vec<Way>,
    sweep: Vec<(usize, usize)>,
    phases: Phases,
    history: Vec<Profile>,
    /// The tuned record that the options are of.
    tuned: Option<InUse>,
    /// Questions that were asked, by the two configurations, and their answers.
    asked: Vec<((Options, Options), Comparison)>,
    commit: Option<String>,
}

/// Times, operations and memory of a model with the options' defaults, in about a second.
pub fn quick_profile(subject: impl Into<Subject>) -> Result<Profile> {
    Profiler::new(subject).with(Options { runs: 100, seconds: 0.5, ..Options::default() }).profile_all()
}

impl<'a> Profiler<'a> {
    /// A profiler of a model or a graph.
    pub fn new(subject: impl Into<Subject>) -> Profiler<'a> {
        Profiler {
            subject: subject.into(),
            name: "model".into(),
            options: Options::default(),
            machine: None,
            ceiling: None,
            device_roof: None,
            counters: None,
            allocations: None,
            cancel: Arc::default(),
            progress: None,
            starter: None,
            ways: vec![],
            sweep: vec![],
            phases: Phases::default(),
            history: vec![],
            asked: vec![],
            tuned: None,
            commit: None,
        }
    }

    /// With options that are of a tuned record, which the profile then names.
    pub fn tuned(mut self, record: Option<InUse>) -> Self {
        self.tuned = record;
        self
    }
    /// With the model's file or built-in name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
    /// With these options.
    pub fn with(mut self, options: Options) -> Self {
        self.options = options;
        self
    }
    /// By a program that was built from this commit.
    pub fn built_from(mut self, commit: Option<&str>) -> Self {
        self.commit = commit.map(str::to_owned);
        self
    }
    /// On this machine; without it, what the system says at once.
    pub fn on(mut self, machine: Machine) -> Self {
        self.machine = Some(machine);
        self
    }
    /// Compared with these limits, which are this machine's processor's: a profile of another backend has none.
    pub fn under(mut self, ceiling: Ceiling) -> Self {
        self.ceiling = Some(ceiling);
        self
    }
    /// Compared with the limits of the device that the backend is, where that is not this machine's processor.
    pub fn under_device(mut self, roof: Roof) -> Self {
        self.device_roof = Some(roof);
        self
    }
    /// With counters to read while it runs.
    pub fn counting(mut self, counters: impl Counters + 'a) -> Self {
        self.counters = Some(Box::new(counters));
        self
    }
    /// With a count of the process's heap allocations so far, such as a counting allocator keeps.
    pub fn allocations(mut self, count: fn() -> u64) -> Self {
        self.allocations = Some(count);
        self
    }
    /// Stops between two samples when this becomes true.
    pub fn cancelled_by(mut self, cancel: Arc<AtomicBool>) -> Self {
        self.cancel = cancel;
        self
    }
    /// Tells how far it is.
    pub fn telling(mut self, progress: impl FnMut(&str, f64) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }
    /// Also compared with the same workload run in these ways.
    pub fn compared(mut self, ways: impl IntoIterator<Item = Way>) -> Self {
        self.ways = ways.into_iter().collect();
        self
    }
    /// Also at these batch sizes and numbers of steps.
    pub fn swept(mut self, points: impl IntoIterator<Item = (usize, usize)>) -> Self {
        self.sweep = points.into_iter().collect();
        self
    }

    /// Whether loops that are one kernel of a device are told apart, by leaving parts out: that takes more kernels and more
    /// runs.
    pub fn phases(mut self, phases: Phases) -> Self {
        self.phases = phases;
        self
    }

    /// How it runs.
    pub fn options(&self) -> &Options {
        &self.options
    }
    /// Changes how it runs, for the profiles to come.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// The profiles made so far, the latest last.
    pub fn history(&self) -> &[Profile] {
        &self.history
    }

    /// How the latest profile differs from the one before: new over old for its main figures.
    pub fn changes(&self) -> Vec<Named> {
        let [.., old, new] = &self.history[..] else { return vec![] };
        let source = "latest profile over the one before";
        let pairs = [
            ("time_p50", &old.compute.time_p50, &new.compute.time_p50),
            ("time_p95", &old.compute.time_p95, &new.compute.time_p95),
            ("tflops", &old.compute.tflops, &new.compute.tflops),
            ("throughput", &old.compute.throughput, &new.compute.throughput),
            ("arena", &old.memory.arena, &new.memory.arena),
            ("rss_peak", &old.memory.rss_peak, &new.memory.rss_peak),
        ];
        let ratio = |(name, old, new): (&str, &Figure, &Figure)| Named {
            name: name.into(),
            figure: old.derive2(new, "×", source, |old, new| new / old),
        };
        pairs.into_iter().map(ratio).collect()
    }

    /// The limits that count for what is profiled.
    fn ceiling(&self) -> Option<Ceiling> {
        match self.options.backend.is_cpu() {
            true => self.ceiling.clone(),
            false => self.device_roof.clone().map(|roof| Ceiling { roof, level_bytes: vec![] }),
        }
    }

    fn check_cancelled(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn tell(&mut self, what: &str, part: f64) {
        if let Some(progress) = &mut self.progress {
            progress(what, part);
        }
    }

    fn rig(&self) -> Result<Rig> {
        Rig::new(&self.subject, &self.options)
    }

    /// So many steps, or 1 where the graph has no axis of time: its runs are then not counted as many.
    fn steps_in(&self, steps: usize) -> Result<usize> {
        Ok(if self.subject.graph()?.symbols().contains("T") { steps } else { 1 })
    }

    /// What runs, in which order, on which memory.
    pub fn plan(&self) -> Result<schwann_core::plan::Plan> {
        Ok(self.rig()?.plan().clone())
    }

    /// Times, work and operations.
    pub fn profile_compute(&mut self) -> Result<Compute> {
        let mut rig = self.rig()?;
        Ok(self.compute_of(&mut rig)?.compute)
    }

    /// Memory: planned, held, resident.
    pub fn profile_memory(&mut self) -> Result<Memory> {
        let mut rig = self.rig()?;
        let seen = self.compute_of(&mut rig)?;
        self.memory_of(&mut rig, &seen.compute, &seen.hardware)
    }

    /// Counters and sensors while it runs.
    pub fn profile_hardware(&mut self) -> Result<BTreeMap<String, Figure>> {
        let mut rig = self.rig()?;
        Ok(self.compute_of(&mut rig)?.hardware)
    }

    /// Everything: times, operations, memory, counters, and the comparisons and the sweep that were asked for. The
    /// profile is also kept in the [history](Profiler::history).
    ///
    /// Where it is [cancelled](Profiler::cancelled_by) after the first sample, the profile is of what was measured until
    /// then, and [says so](Profile::partial); before that, it is an error.
    pub fn profile_all(&mut self) -> Result<Profile> {
        let mut rig = self.rig()?;
        self.options.steps = self.steps_in(self.options.steps)?;
        let Seen { mut compute, hardware, mut doubts, stopped } = self.compute_of(&mut rig)?;
        let memory = self.memory_of(&mut rig, &compute, &hardware)?;
        compute.starts = match self.starts() {
            Err(e) if e.is_cancelled() => None,
            Err(why) => {
                doubts.push(format!("{why}; comparisons with this profile have one start to judge by"));
                None
            }
            Ok(starts) => starts,
        };
        let told = self.told()?;
        let mut comparisons = vec![];
        for way in self.ways.clone() {
            self.tell(&format!("compared with {way}"), 0.0);
            match self.compare(&way) {
                Err(e) if e.is_cancelled() => break,
                compared => comparisons.push(compared?),
            }
        }
        let mut sweep = vec![];
        for (i, (batch, steps)) in self.sweep.clone().into_iter().enumerate() {
            self.tell(&format!("batch {batch}, {steps} steps"), i as f64 / self.sweep.len() as f64);
            match self.sweep_point(batch, steps) {
                Err(e) if e.is_cancelled() => break,
                point => sweep.push(point?),
            }
        }
        doubts.extend(here::doubts());
        let machine = self.machine.clone().unwrap_or_else(|| machine(self.options.isa_here()));
        let none = |unit: &str| {
            Figure::unavailable(unit, "calibration", "this machine's limits were not measured for this profile")
        };
        let roof = self.ceiling().map_or_else(
            || Roof {
                device: if self.options.backend.is_cpu() { machine.cpu.clone() } else { rig.plan().backend.clone() },
                flops: none("flop/s"),
                int8: None,
                functions: none("1/s"),
                bandwidth: vec![],
                step_overhead: none("s"),
                bf16_gain: None,
                run_overhead: None,
            },
            |c| c.roof,
        );
        let mut profile = Profile {
            schema: SCHEMA,
            id: here::id(),
            created: now(),
            version: env!("CARGO_PKG_VERSION").into(),
            commit: self.commit.clone(),
            model: told,
            workload: workload(&self.options, rig.threads, compute.samples_figure()),
            machine,
            roof,
            compute,
            memory,
            hardware,
            comparisons,
            sweep,
            devices: vec![],
            requirements: vec![],
            efficiency: vec![],
            bottlenecks: vec![],
            recommendations: vec![],
            doubts,
            tuned: self.tuned.clone(),
            partial: None,
        };
        let (samples, compared, sizes) =
            (profile.compute.samples.values.len(), profile.comparisons.len(), profile.sweep.len());
        let no_starts = profile.compute.starts.is_none();
        for (missing, done, of, what) in [
            (stopped, samples, self.options.runs, "samples"),
            (
                self.starter.is_some() && no_starts && self.check_cancelled().is_err(),
                0,
                crate::stats::verdict::RECORD_STARTS.start,
                "starts of the process",
            ),
            (compared < self.ways.len(), compared, self.ways.len(), "comparisons"),
            (sizes < self.sweep.len(), sizes, self.sweep.len(), "other sizes"),
        ] {
            if missing {
                profile.stopped_at(&format!("{done} of {of} {what}"));
            }
        }
        self.history.push(profile.clone());
        Ok(profile)
    }

    /// What another measurement must share for its times to be compared with this profiler's.
    pub fn identity(&self) -> Result<Identity> {
        let threads = self.options.choice()?.make(self.options.threads)?.threads();
        let runs = Figure::unavailable("samples", "samples taken", "nothing was measured yet");
        let machine = self.machine.clone().unwrap_or_else(|| machine(self.options.isa_here()));
        Ok(Identity::new(&machine, &self.told()?, &workload(&self.options, threads, runs)))
    }

    /// What the document says of the model.
    fn told(&self) -> Result<Told> {
        let graph = self.subject.graph()?;
        let (parameters, description) = match &self.subject {
            Subject::Model(model) => {
                let parameters: usize = model.params().iter().map(schwann_nn::Param::count).sum();
                (parameters, described(model)?)
            }
            Subject::Graph(graph) => {
                let parameters = graph.weights().values().map(schwann_core::Tensor::len).sum();
                (parameters, format!("graph of {} nodes", graph.nodes().len()))
            }
        };
        let bytes: usize = graph.weights().values().map(|w| w.bytes().len()).sum();
        Ok(Told {
            name: self.name.clone(),
            description,
            hash: hash(&graph),
            parameters: Figure::derived(parameters as f64, "parameters", "the weights' shapes"),
            weight_bytes: Figure::derived(bytes as f64, "B", "the weights' shapes and types"),
        })
    }
}

/// A model in a line: `CfC, 64 neurons, 25936 parameters`.
fn described(model: &Model) -> Result<String> {
    let info = model.info()?;
    let layer = |layer: &schwann_nn::LayerInfo| {
        let units = layer.units.map(|n| format!(", {n} neurons")).unwrap_or_default();
        let synapses = layer.synapses.zip(layer.sensory_synapses);
        let synapses = synapses.map(|(own, sensory)| format!(", {own} synapses and {sensory} from inputs"));
        format!("{}{units}{}", layer.label(), synapses.unwrap_or_default())
    };
    let layers: Vec<String> = info.layers.iter().map(layer).collect();
    Ok(format!("{}, {} parameters", layers.join(" → "), info.parameters))
}

/// What the document says of how it is run.
fn workload(o: &Options, threads: usize, runs: Figure) -> Workload {
    let option = |value: usize, unit: &str, name: &str| Figure::derived(value as f64, unit, format!("option {name}"));
    let mut sizes: Vec<&(String, usize)> = o.sizes.iter().collect();
    sizes.sort();
    let named = |(name, n): &(String, usize)| Named { name: name.clone(), figure: option(*n, "elements", "sizes") };
    Workload {
        batch: option(o.batch, "sequences", "batch"),
        steps: option(o.steps, "steps", "steps"),
        threads: option(threads, "threads", "threads"),
        runs,
        backend: o.backend.name().into(),
        dtype: o.dtype.to_string(),
        compilation: if o.fused { "fused" } else { "node by node" }.into(),
        sizes: sizes.into_iter().map(named).collect(),
    }
}

impl Compute {
    fn samples_figure(&self) -> Figure {
        Figure::measured(self.samples.values.len() as f64, "samples", "samples taken")
    }
}
