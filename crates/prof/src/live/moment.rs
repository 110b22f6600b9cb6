//! What is known of one moment, and of what is watched.

use schwann_core::Figure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is watched: said once, before its moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The model's name or file.
    pub model: String,
    /// What the program calls itself.
    pub program: String,
    /// The process that runs the model.
    pub pid: u32,
    /// The machine, as in a profile: "AMD EPYC Processor".
    pub machine: String,
    /// What computes it: `cpu (avx512bf16)`.
    pub backend: String,
    /// Threads of a run.
    pub threads: usize,
    /// The sizes of a run, such as `B` = 32 and `T` = 16.
    pub sizes: BTreeMap<String, usize>,
    /// When watching began, in seconds since 1970 (UTC).
    pub began_s: f64,
    /// Seconds from moment to moment.
    pub every_s: f64,
    /// The time within which a run should end, if there is one.
    pub deadline_s: Option<f64>,
    /// What multiply-adds reach at best on as many threads, in flop/s.
    pub flops_roof: Figure,
    /// What reading memory reaches at best, in B/s.
    pub bandwidth_roof: Figure,
}

/// One moment: the time since the moment before, summed up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Counted from 0; a gap means that moments were lost on the way to this view.
    pub number: u64,
    /// Seconds since watching began.
    pub at_s: f64,
    /// Seconds since the moment before.
    pub span_s: f64,
    /// How long runs took.
    pub latency: Latency,
    /// What they computed.
    pub work: Work,
    /// The time by operation, longest first. Empty where operations are not watched; `operations_reason` then says why.
    pub operations: Vec<Operation>,
    /// Why there are no operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations_reason: Option<String>,
    /// Where memory is.
    pub memory: Memory,
    /// Readings of the machine, by the names of the sensors' catalogue: `cpu0_load`, `package_power`, `ane_power`.
    pub machine: BTreeMap<String, Figure>,
    /// Names of the rules that hold at this moment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<String>,
}

/// How long runs took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Runs that ended since the moment before.
    pub runs: Figure,
    /// Runs since watching began.
    pub total: Figure,
    /// Runs a second.
    pub rate: Figure,
    /// Of the time, how much was spent in runs, in %.
    pub busy: Figure,
    /// The least, in s.
    pub min: Figure,
    /// The median.
    pub p50: Figure,
    /// 95 of 100 runs take no longer.
    pub p95: Figure,
    /// 99 of 100 runs take no longer.
    pub p99: Figure,
    /// The greatest.
    pub max: Figure,
    /// Runs that missed the deadline since the moment before.
    pub misses: Figure,
    /// Runs that missed it since watching began.
    pub misses_total: Figure,
}

/// What runs computed, by their counts and times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// flop/s while a run goes on.
    pub flops: Figure,
    /// B/s while a run goes on, of what operations move at least.
    pub bandwidth: Figure,
    /// The part of the roof that is reached, in %: the greater of arithmetic's and memory's.
    pub roof_share: Figure,
}

/// One operation's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// The name of its node: `cfc.inter.gate`.
    pub name: String,
    /// Its kernel, for people.
    pub kernel: String,
    /// Seconds of a run.
    pub time: Figure,
    /// Of a run's time, in %.
    pub share: Figure,
}

/// Where memory is, in B.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The arena of a session.
    pub arena: Figure,
    /// Packed weights.
    pub weights: Figure,
    /// What a pool keeps for reuse.
    pub pool: Figure,
    /// Resident memory of the watched process.
    pub rss: Figure,
}
