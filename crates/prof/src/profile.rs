//! The document: everything that a profile of one model on one machine holds.
//!
//! Views (the terminal, HTML, CSV) read it and compute nothing of their own. Each number in it is a [`Figure`] or part of
//! a [`Series`], with unit, origin and source; settings are figures too, whose source is the option that set them. What
//! was not asked for is an empty list or `None`; what was asked for and could not be had is an unavailable figure.

use crate::stats::verdict::Answer;
use crate::tune::InUse;
use schemars::JsonSchema;
use schwann_core::plan::Kernel;
use schwann_core::{Figure, Series};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the document's form. A reader refuses a greater one.
pub const SCHEMA: u32 = 1;

/// A profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// The version of this form.
    pub schema: u32,
    /// Tells this profile from all others: its time and a random part.
    pub id: String,
    /// When it was made: RFC 3339, UTC.
    pub created: String,
    /// Version of this program.
    pub version: String,
    /// The commit that this program was built from, with `-dirty` where the sources were changed since; `None` where it
    /// was built without git.
    pub commit: Option<String>,
    /// What was run.
    pub model: Model,
    /// How it was run.
    pub workload: Workload,
    /// Where it was run.
    pub machine: Machine,
    /// The limits of the machine that the profile is compared with.
    pub roof: Roof,
    /// Times and work.
    pub compute: Compute,
    /// Memory.
    pub memory: Memory,
    /// Counters and sensors while it ran, by name: `cycles`, `cache_hit_rate`, `package_power`, …
    pub hardware: BTreeMap<String, Figure>,
    /// The same workload, other ways: node by node, more threads, other types.
    pub comparisons: Vec<Comparison>,
    /// Other batch sizes and sequence lengths.
    pub sweep: Vec<SweepPoint>,
    /// What it would take on each catalogued device; the machine itself is among them.
    pub devices: Vec<DeviceOutlook>,
    /// The requirements it was held against.
    pub requirements: Vec<Requirement>,
    /// How it stands against requirements and limits; the names are the guides'.
    pub efficiency: Vec<Named>,
    /// What costs most, by the time that could be won.
    pub bottlenecks: Vec<Bottleneck>,
    /// What to change.
    pub recommendations: Vec<Recommendation>,
    /// Doubts about the measurements, each with advice.
    pub doubts: Vec<String>,
    /// The tuned record that it was compiled with, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuned: Option<InUse>,
    /// Where somebody stopped it before it was done: what is there of what was asked for. Figures that are here were
    /// measured, only fewer times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
}

impl Profile {
    /// Notes that something is missing because somebody stopped the measurement.
    pub fn stopped_at(&mut self, what: &str) {
        match &mut self.partial {
            Some(text) => *text += &format!(", {what}"),
            None => self.partial = Some(format!("stopped before it was done: {what}")),
        }
    }
}

/// What was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    /// Its file or built-in name.
    pub name: String,
    /// What it is, in a line.
    pub description: String,
    /// A hash of graph and weights: two profiles of the same hash are of the same model.
    pub hash: String,
    /// Trained numbers.
    pub parameters: Figure,
    /// Bytes of the weights as they are in a file.
    pub weight_bytes: Figure,
}

/// How it was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// Sequences in a batch.
    pub batch: Figure,
    /// Steps of a sequence.
    pub steps: Figure,
    /// Threads.
    pub threads: Figure,
    /// Timed runs.
    pub runs: Figure,
    /// The backend that ran it, by name.
    #[serde(default = "on_cpu")]
    pub backend: String,
    /// The type that products are computed in.
    pub dtype: String,
    /// `fused`, or `node by node`.
    pub compilation: String,
    /// Sizes of a graph beside batch and steps.
    #[serde(default)]
    pub sizes: Vec<Named>,
}

impl Workload {
    /// Whether this machine's processor ran it. If not, nothing that is only true of a processor is to be said of it.
    pub fn on_cpu(&self) -> bool {
        self.backend == schwann_core::backend::CPU
    }
}

/// Where profiles were run that do not say.
fn on_cpu() -> String {
    schwann_core::backend::CPU.into()
}

/// Where it was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// What tells this machine's hardware from others; figures of unlike ones are not compared.
    pub fingerprint: String,
    /// The CPU's name.
    pub cpu: String,
    /// The instruction set in use.
    pub isa: String,
    /// Operating system with version.
    pub os: String,
    /// Cores.
    pub cores: Figure,
    /// Memory.
    pub memory: Figure,
    /// Whether CPU and GPU share the memory.
    pub unified_memory: bool,
}

/// The machine's limits with the workload's threads, from its calibration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Roof {
    /// Of which device.
    pub device: String,
    /// flop/s, `f32`.
    pub flops: Figure,
    /// op/s of 8-bit integers, by the instructions that products with low-bit weights use; absent in documents from before
    /// it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8: Option<Figure>,
    /// Functions (exp, tanh, …) a second.
    pub functions: Figure,
    /// B/s by level: `L1`, `L2`, `L3`, `memory`, near to far.
    pub bandwidth: Vec<Named>,
    /// Seconds that a step costs beyond its work.
    pub step_overhead: Figure,
    /// How many times as fast products of bfloat16 are as those of f32; absent in documents from before it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_gain: Option<Figure>,
    /// Seconds of a run that does next to nothing, with the wait for it; only of devices beside the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_overhead: Option<Figure>,
}

/// A figure with a name, where order matters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// The figure.
    pub figure: Figure,
}

/// Times and work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compute {
    /// Of one run: mean of the samples, in seconds; its spread is the confidence interval.
    pub time_mean: Figure,
    /// Standard deviation.
    pub time_std: Figure,
    /// The least.
    pub time_min: Figure,
    /// The median.
    pub time_p50: Figure,
    /// 95 of 100 runs take no longer.
    pub time_p95: Figure,
    /// 99 of 100 runs take no longer.
    pub time_p99: Figure,
    /// Every sample, in order: seconds a run.
    pub samples: Series,
    /// The same run in several starts of the process; what comparisons rest on.
    #[serde(default)]
    pub starts: Option<Starts>,
    /// Runs that one sample is the mean of.
    pub runs_per_sample: Figure,
    /// Runs before times had settled, which are not among the samples.
    pub warm_up_runs: Figure,
    /// Samples far from the others; they are among the samples.
    pub outliers: Figure,
    /// Arithmetic of one run.
    pub flops: Figure,
    /// Of which functions.
    pub functions: Figure,
    /// Bytes that one run moves at least.
    pub bytes: Figure,
    /// Work over the median time, in Tflop/s.
    pub tflops: Figure,
    /// Least possible time over the measured, in %: arithmetic, functions and memory by the machine's roof.
    pub of_roof: Figure,
    /// Samples (sequences × steps) a second.
    pub throughput: Figure,
    /// What watching the operations added to a run, in %, measured in the same minute; the times above are without it.
    pub overhead: Figure,
    /// Sum of the operations' times over the time of the watched runs, in %.
    pub attributed: Figure,
    /// Each operation, in the order it runs.
    pub ops: Vec<Op>,
    /// Where loops are one kernel of a device: seconds that went into telling apart what is inside them, compiling included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<Figure>,
}

/// The same run in several starts of the process, each with its own luck of memory and cores, in turns with a yardstick:
/// a fixed piece of work that tells a slower machine from a slower program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Starts {
    /// Median seconds of a run, by start.
    pub time: Series,
    /// What the yardstick is; times over unlike ones are not compared.
    pub yardstick_name: String,
    /// Median seconds of the yardstick, by start.
    pub yardstick: Series,
    /// A run's time over the yardstick's, each the one that a tenth of the turns stay below, by start.
    pub ratio: Series,
    /// The standard error of that by the scatter within a start, as a part of it.
    pub error: Series,
}

/// What limits an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Arithmetic.
    Compute,
    /// Exponentials and the like.
    Functions,
    /// Bytes.
    Memory,
    /// What a call costs beside its work.
    Overhead,
    /// Not known: it was not measured, or the machine's limits were not.
    Unknown,
}

/// What kind of kernel an operation runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KernelKind {
    /// A matrix product.
    Product,
    /// A product in integers of 8 bits: of low-bit weights and rounded rows.
    IntegerProduct,
    /// A product of three heads with its gate.
    GatedCell,
    /// Sums over synapses.
    Synapses,
    /// An elementwise program.
    Map,
    /// A loop over time, without what is inside it.
    Loop,
    /// Attention.
    Attention,
    /// Softmax, normalization or reduction of rows.
    Rows,
    /// Bytes that are moved.
    Move,
    /// Rows looked up, or summed, by index.
    Index,
    /// Arithmetic on integers.
    Integer,
    /// What a run does beside its kernels.
    Call,
    /// Something else; also in documents from before kinds were kept.
    #[default]
    Other,
}

impl KernelKind {
    /// The kind of a plan's kernel.
    pub fn of(kernel: &Kernel) -> KernelKind {
        match kernel {
            kernel if kernel.is_integer_product() => KernelKind::IntegerProduct,
            Kernel::Product(_) => KernelKind::Product,
            Kernel::GatedCell(_) => KernelKind::GatedCell,
            Kernel::Synapses(_) | Kernel::WiredSynapses(_) => KernelKind::Synapses,
            Kernel::Map(_) => KernelKind::Map,
            Kernel::Scan(_) => KernelKind::Loop,
            Kernel::Attention(_) => KernelKind::Attention,
            Kernel::Softmax(_) | Kernel::Norm(_) | Kernel::Reduce(_) => KernelKind::Rows,
            Kernel::Gather(_) | Kernel::SegmentSum(_) => KernelKind::Index,
            Kernel::Move(_) => KernelKind::Move,
            Kernel::Integer(_) => KernelKind::Integer,
            Kernel::Other(_) => KernelKind::Other,
        }
    }

    /// Whether nearly all it does is multiply weights.
    pub fn multiplies_weights(self) -> bool {
        matches!(self, KernelKind::Product | KernelKind::GatedCell)
    }
}

/// One operation: a kernel call, or in a loop all calls of that place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Op {
    /// The node it computes.
    pub name: String,
    /// Its operation.
    pub op: String,
    /// The kernel that runs it.
    pub kernel: String,
    /// What kind of kernel that is.
    #[serde(default)]
    pub kind: KernelKind,
    /// Of the vector lanes that it computes with, how many hold nothing, in %; only for products.
    #[serde(default)]
    pub idle_lanes: Option<Figure>,
    /// Its result's shape, of one call.
    pub shape: String,
    /// Its result's type.
    pub dtype: String,
    /// Its place in the plan: step, and in loops the step of the body.
    pub path: Vec<usize>,
    /// Its loop's node, where it is in one.
    pub within: Option<String>,
    /// Seconds a run, all its calls together, without what is inside it.
    pub self_time: Figure,
    /// Of a loop that is one kernel and was told apart by leaving parts out: seconds a run of the whole kernel. The times of
    /// the parts are derived, and `self_time` is what they leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_time: Option<Figure>,
    /// Of the run, in %.
    pub share: Figure,
    /// Calls a run.
    pub calls: Figure,
    /// Arithmetic a run.
    pub flops: Figure,
    /// Of which functions.
    pub functions: Figure,
    /// Bytes a run.
    pub bytes: Figure,
    /// Gflop/s.
    pub gflops: Figure,
    /// GB/s.
    pub gbps: Figure,
    /// What limits it.
    pub bound: Bound,
    /// Least possible time over the measured, in %.
    pub of_roof: Figure,
    /// Seconds a run by the machine's roof.
    pub predicted: Figure,
}

/// Memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// Bytes of the plan's arena.
    pub arena: Figure,
    /// The most bytes alive at one step.
    pub live_peak: Figure,
    /// Bytes of the weights as they are kept for running.
    pub weights: Figure,
    /// Bytes that sessions hold of the budget now.
    pub held: Figure,
    /// Resident set of the process.
    pub rss: Figure,
    /// Its peak.
    pub rss_peak: Figure,
    /// Page faults while the timed runs went on.
    pub page_faults: Figure,
    /// Heap allocations of a run after the first, where they are counted.
    pub allocations: Figure,
    /// Bytes moved over the median time, in GB/s.
    pub bandwidth: Figure,
    /// Least possible time for the bytes of every operation, each from as near as it can be, over the measured, in %.
    pub bandwidth_utilization: Figure,
    /// Memory after each step of the plan, and who holds it at the peak.
    pub timeline: Vec<MemoryPoint>,
}

/// Memory at one step of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryPoint {
    /// The step's node.
    pub step: String,
    /// Bytes alive.
    pub live: Figure,
    /// At the peak: the buffers, greatest first. Empty elsewhere.
    pub holders: Vec<Named>,
}

/// The same workload, another way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// What differs: `node by node`, `2 threads`, `bf16 weights`, …
    pub name: String,
    /// Median seconds of a run, measured in turns with the profile's own way in several starts of the process.
    pub time: Figure,
    /// The profile's own way in the same turns.
    pub base: Figure,
    /// How many times as fast this is as the profile's own way; its spread is the interval that the verdict rests on.
    pub speedup: Figure,
    /// The greatest absolute difference of the outputs.
    pub difference: Figure,
    /// What the interval of the speed-up says.
    #[serde(default)]
    pub verdict: Verdict,
}

/// Another batch size or sequence length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepPoint {
    /// Sequences in a batch.
    pub batch: Figure,
    /// Steps of a sequence.
    pub steps: Figure,
    /// Median seconds of a run.
    pub time: Figure,
    /// Tflop/s.
    pub tflops: Figure,
    /// GB/s.
    pub bandwidth: Figure,
    /// Sequences × steps a second.
    pub throughput: Figure,
    /// Arena and weights, in bytes.
    pub memory: Figure,
}

/// What the workload would take on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceOutlook {
    /// The device.
    pub device: String,
    /// Whether it is the machine that the profile was made on.
    pub host: bool,
    /// Seconds of a run.
    pub time: Figure,
    /// Tflop/s.
    pub tflops: Figure,
    /// GB/s.
    pub bandwidth: Figure,
    /// Share of the device's own peak arithmetic or bandwidth in use, whichever is more, in %.
    pub utilization: Figure,
    /// The Neural Engine's share, in %.
    pub neural_engine: Figure,
    /// On the host: how far the prediction is from the measured median, in %.
    pub error: Figure,
    /// The operations that take longest there, greatest first.
    pub slowest: Vec<Named>,
    /// Why the time's band is as wide as it is; empty in documents from before bands were told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Whether anybody held such a prediction against the real device.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub compared: String,
    /// Seconds of a run on its GPU, where it has one and that was asked for. Its value is only the middle of its band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_time: Option<Figure>,
}

/// One line of a device's requirements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// The device.
    pub device: String,
    /// `minimum` or `target`.
    pub level: String,
    /// `tflops`, `bandwidth`, `memory`.
    pub metric: String,
    /// What is asked for.
    pub required: Figure,
    /// What the workload reaches (measured on the host, predicted elsewhere).
    pub reached: Figure,
    /// Whether that is enough; `None` where it is not known.
    pub met: Option<bool>,
}

/// Something that costs time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bottleneck {
    /// What: an operation, the calls' overhead, a thread that waits.
    pub what: String,
    /// Why it costs time.
    pub why: String,
    /// Seconds a run that would be won at the machine's limit.
    pub could_win: Figure,
    /// That, of the run, in %.
    pub share: Figure,
}

/// What came of trying something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It was not tried.
    #[default]
    Untested,
    /// Applied and measured: it is faster.
    Gain,
    /// Applied and measured: the times differ by less than 1%.
    None,
    /// Applied and measured: it is slower.
    Loss,
    /// Applied and measured, and the interval says neither.
    Undecided,
}

impl From<Answer> for Verdict {
    fn from(answer: Answer) -> Verdict {
        match answer {
            Answer::Faster => Verdict::Gain,
            Answer::Slower => Verdict::Loss,
            Answer::Same => Verdict::None,
            Answer::Undecided => Verdict::Undecided,
        }
    }
}

/// Something to change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recommendation {
    /// What to do.
    pub title: String,
    /// What speaks for it: the figures it rests on, in words.
    pub evidence: String,
    /// The option or line that does it.
    pub how: String,
    /// What it should bring, as a factor.
    pub expected: Figure,
    /// What it brought when it was tried, as a factor; its spread is the interval that the verdict rests on.
    pub measured: Figure,
    /// What came of it.
    pub verdict: Verdict,
}
