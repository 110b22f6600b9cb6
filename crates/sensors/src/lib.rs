//! The machine: hardware counters, memory, clocks, temperatures and power, each reading a
//! [`Figure`](schwann_core::Figure) that says where it came from. What is not permitted or not there is `unavailable`,
//! with the reason and, where there is one, the way to enable it.
//!
//! A [`Source`] gives readings of one kind; a [`System`] joins all sources of this platform into one [`Sample`] and
//! adds what none of them gives, with the reason, so that every sample has every name of the [`CATALOGUE`]. Hardware
//! [`Counters`] count a stretch of the program's own work between `start` and `stop`. A [`Recorder`] writes samples as
//! JSON lines, and a [`Replay`] is a source that plays them back.
//!
//! Access to files and foreign functions is kept apart from what is made of them: parsing takes text, Apple's readings
//! are made from a plain [`AppleSample`], and counters from a [`CounterSource`] that a test can replace. So all but the
//! thinnest layer is tested on any machine.
//!
//! ```
//! use schwann_sensors::{Counters, System};
//!
//! let mut system = System::new();
//! let mut counters = Counters::open();
//! counters.start();
//! let sum: u64 = (0..1000u64).sum();
//! let counted = counters.stop();
//! # assert_eq!(sum, 499_500);
//! let sample = system.sample();
//! for name in ["rss", "package_power"] {
//!     let reading = &sample.readings[name];
//!     match (reading.value, &reading.reason) {
//!         (Some(value), _) => println!("{name}: {value} {} ({})", reading.unit, reading.source),
//!         (None, reason) => println!("{name}: unavailable: {}", reason.as_deref().unwrap_or("?")),
//!     }
//! }
//! assert!(counted.contains_key("cycles") && counted.contains_key("cache_hit_rate"));
//! ```
//!
//! # Names of readings
//!
//! They do not change between versions. `N` is a number, `LABEL` a sensor's own name in small letters.
//!
//! | name | unit | what |
//! |---|---|---|
//! | `rss`, `rss_peak` | B | memory of this process that is resident, now and at most |
//! | `page_faults_minor`, `page_faults_major` | count | since the process began, without and with reading a disk |
//! | `context_switches_voluntary`, `context_switches_involuntary` | count | since the process began |
//! | `cpu_time` | s | of all threads, user and kernel, since the process began |
//! | `threads` | count | of this process |
//! | `cpu_cores` | count | logical cores that are on |
//! | `cpu_load`, `cpuN_load` | % | time not idle since the sample before |
//! | `cpu_frequency`, `cpuN_frequency` | Hz | now; without a number the mean of the cores |
//! | `cpu_LABEL_load`, `cpu_LABEL_frequency` | %, Hz | of a cluster of Apple silicon: `e`, `p` or `s` |
//! | `power_saving`, `on_battery` | flag | 1 yes, 0 no; the mode's name is in the source |
//! | `temperature_cpu`, `temperature_gpu`, `temperature_LABEL` | °C | of the CPU its package, or its hottest sensor |
//! | `package_power`, `package_energy` | W, J | the processor, since the sample before and since the opening |
//! | `cpu_power`, `cpu_energy` | W, J | its CPU cores |
//! | `gpu_power`, `gpu_energy`, `gpuN_power`, … | W, J | the GPU; without a number the first |
//! | `ane_power`, `ane_energy` | W, J | Apple's Neural Engine |
//! | `ane_utilization` | % | always unavailable: nothing counts it, its power is all there is |
//! | `dram_power`, `dram_energy` | W, J | memory |
//! | `system_power`, `system_energy` | W, J | the whole machine |
//! | `gpu_load` | % | time with work on the GPU |
//! | `gpu_frequency` | Hz | of its cores |
//! | `gpu_memory_used`, `gpu_memory_total` | B | of its own memory; on unified memory unavailable |
//! | `dram_bandwidth` | B/s | read and written by the whole machine |
//! | `memory_total`, `memory_available` | B | of the machine |
//! | `swap_total`, `swap_used` | B | of the machine |
//! | `memory_pressure` | % | of the last 10 s in which some task waited for memory (Linux) |
//! | `memory_pressure_level` | level | 1 normal, 2 warning, 4 critical (macOS) |
//! | `unified_memory` | flag | 1 where CPU and GPU share one memory |
//!
//! Counters, between `start` and `stop` (see [`Counters`]): `cycles`, `instructions`, `cache_references`,
//! `cache_misses`, `branches`, `branch_misses`, `page_faults`, `context_switches` (count), `task_clock` (s), and from
//! them `instructions_per_cycle` (instructions/cycle), `cache_hit_rate` (%), `branch_miss_rate` (%),
//! `effective_frequency` (Hz).

mod apple_sample;
mod catalogue;
mod counters;
mod process;
mod record;
mod source;
mod system;
mod usage;

#[cfg(target_os = "macos")]
pub mod apple;
#[cfg(target_os = "linux")]
pub mod linux;
#[cfg(any(target_os = "linux", target_os = "windows"))]
pub mod nvml;

pub use apple_sample::{
    Apple, AppleFeed, AppleReplay, AppleSample, Cluster, Present, dram_bytes, guarded, low_power_mode, present,
};
pub use catalogue::{CATALOGUE, Entry};
pub use counters::{Count, Counter, CounterSource, Counters, Counts, SimulatedCounters};
pub use process::{Process, ProcessStatus, rss_of};
pub use record::{Error, Recorder, Replay, Text, VERSION};
pub use source::{Available, Sample, Source, now};
pub use system::{System, all};
pub use usage::{Usage, usage};
