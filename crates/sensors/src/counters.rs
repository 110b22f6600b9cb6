//! Counters of the own process over a stretch of work, and the ratios made of them.
//!
//! Where the counts come from is a [`CounterSource`]: perf events on Linux, a script in tests. What is made of them
//! (scaling for shared counters, ratios, figures with their sources) is here and the same for all.

use crate::source::described;
use crate::{Available, Sample, Source};
use schwann_core::Figure;
use std::collections::BTreeMap;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counter {
    /// Cycles of the CPU.
    Cycles,
    /// Instructions that were completed.
    Instructions,
    /// Accesses to the cache that the kernel calls `cache-references`: the last level on most CPUs.
    CacheReferences,
    /// Of which missed.
    CacheMisses,
    /// Branches that were completed.
    Branches,
    /// Of which were mispredicted.
    BranchMisses,
    /// Page faults.
    PageFaults,
    /// Context switches.
    ContextSwitches,
    /// Nanoseconds on a CPU, all threads together.
    TaskClock,
}

impl Counter {
    /// All of them.
    pub const ALL: [Counter; 9] = [
        Counter::Cycles,
        Counter::Instructions,
        Counter::CacheReferences,
        Counter::CacheMisses,
        Counter::Branches,
        Counter::BranchMisses,
        Counter::PageFaults,
        Counter::ContextSwitches,
        Counter::TaskClock,
    ];

    /// The reading's name.
    pub fn name(self) -> &'static str {
        match self {
            Counter::Cycles => "cycles",
            Counter::Instructions => "instructions",
            Counter::CacheReferences => "cache_references",
            Counter::CacheMisses => "cache_misses",
            Counter::Branches => "branches",
            Counter::BranchMisses => "branch_misses",
            Counter::PageFaults => "page_faults",
            Counter::ContextSwitches => "context_switches",
            Counter::TaskClock => "task_clock",
        }
    }

    /// The reading's unit, and what a count is in it.
    fn unit(self) -> (&'static str, f64) {
        match self {
            Counter::TaskClock => ("s", 1e-9),
            _ => ("count", 1.0),
        }
    }
}

/// A count since the counter was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Count {
    /// Events.
    pub value: u64,
    /// Nanoseconds that it was meant to count.
    pub enabled_ns: u64,
    /// Nanoseconds that it did; fewer where more counters are wanted than the CPU has, and they take turns.
    pub running_ns: u64,
    /// Where it was read.
    pub source: String,
}

/// Counts, or the reason why there is none.
pub type Counts = BTreeMap<Counter, Result<Count, String>>;

/// Where counts come from.
pub trait CounterSource: Send {
    /// Begins, or goes on, counting.
    fn start(&mut self);

    /// Stops counting.
    fn stop(&mut self);

    /// What was counted since the source was opened, of every [`Counter`], whether or not it counts now.
    fn read(&mut self) -> Counts;
}

/// Counters of the own process: `open`, `start`, work, `stop`.
///
/// Each is there or unavailable by itself. Hardware counters count user code only, on all threads that the process has
/// when they are opened and on those that these start later.
pub struct Counters {
    source: Box<dyn CounterSource>,
    before: Counts,
}

impl Counters {
    /// The counters of this process on this platform. Opening cannot fail: what there is not has its reason in the
    /// readings.
    pub fn open() -> Counters {
        #[cfg(target_os = "linux")]
        return Counters::from_source(crate::linux::perf::PerfCounters::open());
        #[cfg(not(target_os = "linux"))]
        Counters::from_source(NoHardware)
    }

    /// Counters of another source.
    pub fn from_source(source: impl CounterSource + 'static) -> Counters {
        let mut source: Box<dyn CounterSource> = Box::new(source);
        let before = source.read();
        Counters { source, before }
    }

    /// Opened and started: as a source of samples, it gives counts since now.
    pub fn running() -> Counters {
        let mut counters = Counters::open();
        counters.start();
        counters
    }

    /// Begins a stretch.
    pub fn start(&mut self) {
        self.before = self.source.read();
        self.source.start();
    }

    /// Ends it: its counts and ratios, by the names in the crate's documentation.
    pub fn stop(&mut self) -> BTreeMap<String, Figure> {
        self.source.stop();
        self.read()
    }

    /// Counts and ratios of the stretch so far, without ending it.
    pub fn read(&mut self) -> BTreeMap<String, Figure> {
        figures(&self.before, &self.source.read())
    }
}

impl Source for Counters {
    fn name(&self) -> &str {
        "counters"
    }

    fn describe(&self) -> Vec<Available> {
        // What could be counted when the stretch began, as if one thing had happened since.
        let one = |count: &Count| Count {
            value: count.value + 1,
            enabled_ns: count.enabled_ns + 1,
            running_ns: count.running_ns + 1,
            ..count.clone()
        };
        let after = self.before.iter().map(|(c, count)| (*c, count.as_ref().map(one).map_err(String::clone)));
        described(&figures(&self.before, &after.collect()))
    }

    fn sample(&mut self) -> Sample {
        Sample::new(self.read())
    }
}

/// The figures of what was counted between two readings.
fn figures(before: &Counts, after: &Counts) -> BTreeMap<String, Figure> {
    let of = |counter: Counter| {
        let missing = Err("it was not counted".to_string());
        figure(counter, before.get(&counter), after.get(&counter).unwrap_or(&missing))
    };
    let mut figures: BTreeMap<String, Figure> = Counter::ALL.map(|c| (c.name().to_string(), of(c))).into();
    let percent = |part: &str, whole: &str| {
        let (unit, source) = ("%", format!("{part} / {whole}"));
        match (figures[part].value, figures[whole].value) {
            (Some(_), Some(0.0)) => Figure::unavailable(unit, source, format!("no {whole} were counted")),
            (Some(p), Some(w)) if p > w => {
                let reason = format!("more {part} than {whole} were counted: on this CPU the two are not of one kind");
                Figure::unavailable(unit, source, reason)
            }
            _ => figures[part].derive2(&figures[whole], unit, source, |p, w| 100.0 * p / w),
        }
    };
    let misses = percent("cache_misses", "cache_references");
    let derived = [
        (
            "instructions_per_cycle",
            figures["instructions"].derive2(
                &figures["cycles"],
                "instructions/cycle",
                "instructions / cycles",
                |i, c| i / c,
            ),
        ),
        ("cache_hit_rate", misses.derive("%", "1 - cache_misses / cache_references", |m| 100.0 - m)),
        ("branch_miss_rate", percent("branch_misses", "branches")),
        (
            "effective_frequency",
            figures["cycles"].derive2(
                &figures["task_clock"],
                "Hz",
                "cycles of user code / task_clock, which has the kernel's time in it too: the least it can have been",
                |c, s| c / s,
            ),
        ),
    ];
    figures.extend(derived.map(|(name, figure)| (name.to_string(), figure)));
    figures
}

/// The figure of one counter.
fn figure(counter: Counter, before: Option<&Result<Count, String>>, after: &Result<Count, String>) -> Figure {
    let (unit, scale) = counter.unit();
    let after = match after {
        Ok(count) => count,
        Err(reason) => return Figure::unavailable(unit, counter.name(), reason),
    };
    let before = before.and_then(|b| b.as_ref().ok());
    let since = |pick: fn(&Count) -> u64| pick(after).saturating_sub(before.map_or(0, pick)) as f64;
    let (value, enabled, running) = (since(|c| c.value), since(|c| c.enabled_ns), since(|c| c.running_ns));
    if enabled > 0.0 && running == 0.0 {
        let reason = "the counter never got its turn: more were wanted than the CPU has, or others hold them \
                      (on Intel, `sudo sysctl kernel.nmi_watchdog=0` frees one)";
        return Figure::unavailable(unit, &after.source, reason);
    }
    if running < enabled {
        let share = 100.0 * running / enabled;
        let source =
            format!("{}; took turns with others: counted {share:.1}% of the time, and scaled up", after.source);
        return Figure::derived(value * scale * enabled / running, unit, source);
    }
    Figure::measured(value * scale, unit, &after.source).with_resolution(scale)
}

/// A platform without counters that programs may read: `getrusage` alone.
#[cfg(not(target_os = "linux"))]
struct NoHardware;

#[cfg(not(target_os = "linux"))]
impl CounterSource for NoHardware {
    fn start(&mut self) {}

    fn stop(&mut self) {}

    fn read(&mut self) -> Counts {
        let mut counts: Counts = Counter::ALL.map(|c| (c, from_usage(c))).into();
        let reason = if cfg!(target_os = "macos") {
            "macOS keeps the CPU's counters for its own tools: use Instruments, or `sudo powermetrics`"
        } else {
            "the CPU's counters are read through Linux's perf events only"
        };
        counts.values_mut().filter(|c| c.is_err()).for_each(|c| *c = Err(reason.into()));
        counts
    }
}

/// A count by `getrusage`, for the counters that it has.
pub(crate) fn from_usage(counter: Counter) -> Result<Count, String> {
    let usage = crate::usage()?;
    let value = match counter {
        Counter::PageFaults => usage.faults(),
        Counter::ContextSwitches => usage.switches(),
        Counter::TaskClock => (usage.cpu_s() * 1e9) as u64,
        _ => return Err("getrusage does not count it".into()),
    };
    Ok(Count { value, enabled_ns: 0, running_ns: 0, source: "getrusage, the whole process".into() })
}

/// Counters that follow a script, to try what is made of counts on machines that have none.
#[derive(Clone, Debug, Default)]
pub struct SimulatedCounters {
    stretches: std::collections::VecDeque<Counts>,
    total: Counts,
}

impl SimulatedCounters {
    /// Each element is what one stretch counts, from a start to a stop; when they are used up, stretches count nothing
    /// more.
    pub fn new(stretches: impl IntoIterator<Item = Counts>) -> SimulatedCounters {
        SimulatedCounters { stretches: stretches.into_iter().collect(), total: Counts::new() }
    }

    /// A stretch of these counts over `enabled_ns`, in which each hardware counter ran for `running_ns`.
    pub fn stretch(counts: &[(Counter, u64)], enabled_ns: u64, running_ns: u64) -> Counts {
        let count = |&(counter, value): &(Counter, u64)| {
            let shared = counter < Counter::PageFaults;
            let running_ns = if shared { running_ns } else { enabled_ns };
            (counter, Ok(Count { value, enabled_ns, running_ns, source: "a script".into() }))
        };
        counts.iter().map(count).collect()
    }
}

impl CounterSource for SimulatedCounters {
    fn start(&mut self) {}

    fn stop(&mut self) {
        for (counter, count) in self.stretches.pop_front().unwrap_or_default() {
            match (self.total.get_mut(&counter), count) {
                (Some(Ok(total)), Ok(count)) => {
                    total.value += count.value;
                    total.enabled_ns += count.enabled_ns;
                    total.running_ns += count.running_ns;
                }
                (_, count) => drop(self.total.insert(counter, count)),
            }
        }
    }

    fn read(&mut self) -> Counts {
        self.total.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schwann_core::Provenance;

    const FULL: [(Counter, u64); 9] = [
        (Counter::Cycles, 2_000_000_000),
        (Counter::Instructions, 5_000_000_000),
        (Counter::CacheReferences, 1_000_000),
        (Counter::CacheMisses, 50_000),
        (Counter::Branches, 400_000_000),
        (Counter::BranchMisses, 1_000_000),
        (Counter::PageFaults, 12),
        (Counter::ContextSwitches, 3),
        (Counter::TaskClock, 500_000_000),
    ];

    fn counted(stretches: impl IntoIterator<Item = Counts>) -> Counters {
        Counters::from_source(SimulatedCounters::new(stretches))
    }

    fn value(readings: &BTreeMap<String, Figure>, name: &str) -> f64 {
        readings[name].value.unwrap_or_else(|| panic!("{name}: {:?}", readings[name]))
    }

    #[test]
    fn ratios_follow_from_counts() {
        let mut counters = counted([SimulatedCounters::stretch(&FULL, 500_000_000, 500_000_000)]);
        counters.start();
        let readings = counters.stop();
        assert_eq!(value(&readings, "cycles"), 2e9);
        assert_eq!(value(&readings, "instructions_per_cycle"), 2.5);
        assert_eq!(value(&readings, "cache_hit_rate"), 95.0);
        assert_eq!(value(&readings, "branch_miss_rate"), 0.25);
        assert_eq!(value(&readings, "task_clock"), 0.5);
        assert_eq!(value(&readings, "effective_frequency"), 4e9);
        assert_eq!(readings["cycles"].provenance, Provenance::Measured);
        assert_eq!(readings["cache_hit_rate"].provenance, Provenance::Derived);
        assert_eq!(readings.len(), 13);
    }

    #[test]
    fn a_stretch_counts_from_its_start() {
        let stretch = || SimulatedCounters::stretch(&FULL, 1000, 1000);
        let mut counters = counted([stretch(), stretch()]);
        for _ in 0..2 {
            counters.start();
            assert_eq!(value(&counters.stop(), "page_faults"), 12.0);
        }
        counters.start();
        assert_eq!(value(&counters.stop(), "page_faults"), 0.0, "the script is over: nothing more was counted");
    }

    #[test]
    fn counters_that_took_turns_are_scaled_and_say_so() {
        let mut counters = counted([SimulatedCounters::stretch(&FULL, 1_000_000, 250_000)]);
        counters.start();
        let readings = counters.stop();
        assert_eq!(value(&readings, "instructions"), 2e10);
        assert_eq!(value(&readings, "page_faults"), 12.0);
        assert_eq!(readings["instructions"].provenance, Provenance::Derived);
        assert!(readings["instructions"].source.contains("25.0%"), "{}", readings["instructions"].source);
        assert_eq!(value(&readings, "instructions_per_cycle"), 2.5);
    }

    #[test]
    fn a_counter_that_never_ran_is_not_zero() {
        let idle = FULL.map(|(c, v)| (c, if c < Counter::PageFaults { 0 } else { v }));
        let mut counters = counted([SimulatedCounters::stretch(&idle, 1_000_000, 0)]);
        counters.start();
        let readings = counters.stop();
        assert_eq!(readings["cycles"].value, None);
        assert!(readings["cycles"].reason.as_ref().is_some_and(|r| r.contains("turn")));
        assert_eq!(readings["instructions_per_cycle"].value, None);
        assert_eq!(value(&readings, "context_switches"), 3.0);
    }

    #[test]
    fn a_missing_counter_takes_its_ratios_with_it_and_nothing_else() {
        let mut stretch = SimulatedCounters::stretch(&FULL, 10, 10);
        stretch.insert(Counter::CacheMisses, Err("not permitted".into()));
        let mut counters = counted([stretch]);
        counters.start();
        let readings = counters.stop();
        for name in ["cache_misses", "cache_hit_rate"] {
            assert_eq!((readings[name].value, readings[name].reason.as_deref()), (None, Some("not permitted")));
        }
        assert_eq!(readings.values().filter(|f| f.value.is_none()).count(), 2);
    }

    #[test]
    fn a_rate_of_nothing_and_a_rate_over_one_hundred_are_refused() {
        for (references, misses, word) in [(0, 0, "no cache_references"), (10, 11, "more cache_misses")] {
            let counts = [(Counter::CacheReferences, references), (Counter::CacheMisses, misses)];
            let mut counters = counted([SimulatedCounters::stretch(&counts, 10, 10)]);
            counters.start();
            let rate = &counters.stop()["cache_hit_rate"];
            assert!(rate.value.is_none() && rate.reason.as_ref().is_some_and(|r| r.contains(word)), "{rate:?}");
        }
    }

    #[test]
    fn real_counters_have_every_name_with_a_value_or_a_reason() {
        let mut counters = Counters::open();
        assert_eq!(counters.describe().len(), 13);
        counters.start();
        let block = vec![1u8; 8 << 20];
        let readings = counters.stop();
        assert!(block.iter().step_by(4096).all(|&b| b == 1));
        assert_eq!(readings.len(), 13);
        assert_eq!(Sample { at: 0.0, readings }.problem(), None);
    }
}
