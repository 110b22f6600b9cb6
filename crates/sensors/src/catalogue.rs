//! What every sample has, on every platform. A name that no source of the platform gives is unavailable for the reason
//! that is written here.

use schwann_core::Figure;
use std::collections::BTreeMap;

/// A reading that every sample has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Why there is none where no source gives it.
    pub otherwise: &'static str,
}

const NO_SOURCE: &str = "no source on this system gives it";
const GPU: &str = "no GPU was found that tells it: NVIDIA's are read through NVML, Apple's through macmon";
const APPLE: &str = "only macOS on Apple silicon tells it";
const COUNTER: &str =
    "counters count a stretch of work, from start to stop; none was counted for this sample (see `Counters`)";
const POWER: &str = "no power meter that this program can read: it knows powercap (Linux) and macmon (Apple silicon)";

const fn entry(name: &'static str, unit: &'static str, otherwise: &'static str) -> Entry {
    Entry { name, unit, otherwise }
}

/// The readings that every sample of a [`System`](crate::System) has, with a value or a reason.
pub const CATALOGUE: &[Entry] = &[
    entry("rss", "B", NO_SOURCE),
    entry("rss_peak", "B", NO_SOURCE),
    entry("page_faults_minor", "count", NO_SOURCE),
    entry("page_faults_major", "count", NO_SOURCE),
    entry("context_switches_voluntary", "count", NO_SOURCE),
    entry("context_switches_involuntary", "count", NO_SOURCE),
    entry("cpu_time", "s", NO_SOURCE),
    entry("threads", "count", NO_SOURCE),
    entry("cpu_cores", "count", NO_SOURCE),
    entry("cpu_load", "%", NO_SOURCE),
    entry("cpu_frequency", "Hz", NO_SOURCE),
    entry("power_saving", "flag", NO_SOURCE),
    entry("on_battery", "flag", NO_SOURCE),
    entry("temperature_cpu", "°C", NO_SOURCE),
    entry("temperature_gpu", "°C", GPU),
    entry("package_power", "W", POWER),
    entry("package_energy", "J", POWER),
    entry("cpu_power", "W", POWER),
    entry("cpu_energy", "J", POWER),
    entry("gpu_power", "W", GPU),
    entry("gpu_energy", "J", GPU),
    entry("ane_power", "W", APPLE),
    entry("ane_energy", "J", APPLE),
    entry("ane_utilization", "%", NO_ANE_UTILIZATION),
    entry("dram_power", "W", POWER),
    entry("dram_energy", "J", POWER),
    entry("system_power", "W", POWER),
    entry("system_energy", "J", POWER),
    entry("gpu_load", "%", GPU),
    entry("gpu_frequency", "Hz", GPU),
    entry("gpu_memory_used", "B", GPU),
    entry("gpu_memory_total", "B", GPU),
    entry(
        "dram_bandwidth",
        "B/s",
        "it is counted by the memory controller, whose counters are the whole machine's and kept for administrators \
         (on Linux: perf stat -a with the uncore_imc or amd_df events, as root)",
    ),
    entry("memory_total", "B", NO_SOURCE),
    entry("memory_available", "B", NO_SOURCE),
    entry("swap_total", "B", NO_SOURCE),
    entry("swap_used", "B", NO_SOURCE),
    entry("memory_pressure", "%", "only Linux tells a share of time; macOS tells a level (`memory_pressure_level`)"),
    entry(
        "memory_pressure_level",
        "level",
        "only macOS tells a level; Linux tells a share of time (`memory_pressure`)",
    ),
    entry(
        "unified_memory",
        "flag",
        "nothing on this system says whether CPU and GPU share one memory; Apple silicon does",
    ),
    entry("cycles", "count", COUNTER),
    entry("instructions", "count", COUNTER),
    entry("cache_references", "count", COUNTER),
    entry("cache_misses", "count", COUNTER),
    entry("branches", "count", COUNTER),
    entry("branch_misses", "count", COUNTER),
    entry("page_faults", "count", COUNTER),
    entry("context_switches", "count", COUNTER),
    entry("task_clock", "s", COUNTER),
    entry("instructions_per_cycle", "instructions/cycle", COUNTER),
    entry("cache_hit_rate", "%", COUNTER),
    entry("branch_miss_rate", "%", COUNTER),
    entry("effective_frequency", "Hz", COUNTER),
];

/// Why nobody knows how busy the Neural Engine is.
pub(crate) const NO_ANE_UTILIZATION: &str =
    "nothing counts how busy the Neural Engine is; its power (`ane_power`) is the only measure of it";

/// Adds what is missing, with the reason.
pub(crate) fn complete(readings: &mut BTreeMap<String, Figure>) {
    for entry in CATALOGUE {
        readings
            .entry(entry.name.to_string())
            .or_insert_with(|| Figure::unavailable(entry.unit, "this system", entry.otherwise));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_said_once_and_documented() {
        let documentation = include_str!("lib.rs");
        for (i, entry) in CATALOGUE.iter().enumerate() {
            assert!(!CATALOGUE[..i].iter().any(|e| e.name == entry.name), "{} is there twice", entry.name);
            assert!(documentation.contains(&format!("`{}`", entry.name)), "{} is not in the table", entry.name);
        }
    }
}
