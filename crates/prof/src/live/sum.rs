//! What was seen since the last moment, summed up as a moment.

use super::{About, Latency, Memory, Moment, Operation, Work};
use crate::device::roof::of_limit;
use crate::profiler::Ceiling;
use crate::stats;
use schwann_core::live::Facts;
use schwann_core::{Cost, Figure};
use schwann_sensors::System;
use std::collections::BTreeMap;
use std::time::Instant;

/// Durations that are kept between two moments; beyond, every second one is, then every fourth, and so on.
const MOST_DURATIONS: usize = 1 << 19;

/// Runs since the last moment.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Runs that ended.
    pub(super) count: u64,
    /// Of these, how many were seen one by one.
    seen: u64,
    /// Seconds of those, together.
    sum: f64,
    least: Option<f64>,
    greatest: f64,
    misses: u64,
    durations: Vec<f64>,
    /// Every so manieth run is among the durations.
    stride: u64,
}

impl Runs {
    /// A run that took so long.
    pub(super) fn push(&mut self, seconds: f64, deadline_s: Option<f64>) {
        self.count += 1;
        self.seen += 1;
        self.sum += seconds;
        self.least = Some(self.least.map_or(seconds, |least| least.min(seconds)));
        self.greatest = self.greatest.max(seconds);
        self.misses += u64::from(deadline_s.is_some_and(|d| seconds > d));
        self.stride = self.stride.max(1);
        if !self.seen.is_multiple_of(self.stride) {
            return;
        }
        if self.durations.len() >= MOST_DURATIONS {
            let mut keep = false;
            self.durations.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
        self.durations.push(seconds);
    }

    /// So many runs of which only the number is known.
    pub(super) fn lost(&mut self, count: u64) {
        self.count += count;
    }

    /// Seconds of all that were seen.
    #[cfg_attr(not(unix), expect(dead_code, reason = "for programs that are watched from outside"))]
    pub(super) fn seconds(&self) -> f64 {
        self.sum
    }

    /// The median of those that were seen.
    #[cfg_attr(not(unix), expect(dead_code, reason = "for programs that are watched from outside"))]
    pub(super) fn median(&self) -> Option<f64> {
        stats::median(&self.durations)
    }

    /// These, and those that ended after them.
    pub(super) fn join(&mut self, later: &mut Runs) {
        let lost = later.count - later.seen;
        // Whoever hands over does so often: these are few, and none was left out.
        if later.stride <= 1 && self.stride <= 1 && self.durations.len() + later.durations.len() <= MOST_DURATIONS {
            self.count += later.seen;
            self.seen += later.seen;
            self.sum += later.sum;
            self.least = [self.least, later.least].into_iter().flatten().reduce(f64::min);
            self.greatest = self.greatest.max(later.greatest);
            self.misses += later.misses;
            self.durations.append(&mut later.durations);
        } else {
            let (sum, misses) = (self.sum + later.sum, self.misses + later.misses);
            let seen = self.seen + later.seen;
            let count = self.count + later.seen;
            later.durations.drain(..).for_each(|s| self.push(s, None));
            (self.sum, self.misses, self.seen, self.count) = (sum, misses, seen, count);
            self.least = [self.least, later.least].into_iter().flatten().reduce(f64::min);
            self.greatest = self.greatest.max(later.greatest);
        }
        self.count += lost;
        let durations = std::mem::take(&mut later.durations);
        *later = Runs { durations, ..Runs::default() };
    }
}

/// Time by operation, of runs that were watched.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    /// Seconds by the operation's number in the facts.
    pub(super) seconds: Vec<f64>,
    /// Seconds in no operation.
    pub(super) outside: f64,
    /// Runs that were watched.
    pub(super) runs: u64,
}

impl Parts {
    /// These and others of the same facts.
    pub(super) fn add(&mut self, other: &Parts) {
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), 0.0);
        }
        self.seconds.iter_mut().zip(&other.seconds).for_each(|(a, b)| *a += b);
        self.outside += other.outside;
        self.runs += other.runs;
    }
}

/// Readings of a process, not of the machine: those of the monitor itself are of no interest.
const OF_A_PROCESS: [&str; 8] = [
    "rss",
    "rss_peak",
    "page_faults_minor",
    "page_faults_major",
    "context_switches_voluntary",
    "context_switches_involuntary",
    "cpu_time",
    "threads",
];

/// Whether a reading of the sensors' is of the machine, and is so among a moment's.
pub(super) fn is_of_machine(name: &str) -> bool {
    // Counters count a stretch of work, and none is begun for this.
    let counted = schwann_sensors::Counter::ALL.iter().any(|counter| counter.name() == name);
    let rates = ["instructions_per_cycle", "cache_hit_rate", "branch_miss_rate", "effective_frequency"];
    !counted && !rates.contains(&name) && !OF_A_PROCESS.contains(&name)
}

/// Makes moments of what was seen.
pub(super) struct Clerk {
    pub(super) deadline_s: Option<f64>,
    pub(super) ceiling: Option<Ceiling>,
    /// How durations were measured.
    pub(super) clock: &'static str,
    system: System,
    began: Instant,
    last: Instant,
    number: u64,
    total: u64,
    misses: u64,
    /// The operations of the last moment that had any, and when that was.
    operations: Option<(Vec<Operation>, Instant)>,
}

/// What is known of the memory of the watched process.
pub(super) struct Held {
    /// Its resident memory; `None` for that of this process.
    pub(super) rss: Option<Figure>,
    /// What its pool keeps.
    pub(super) pool: Figure,
}

impl Clerk {
    pub(super) fn new(clock: &'static str, deadline_s: Option<f64>, ceiling: Option<Ceiling>) -> Clerk {
        let mut system = System::new();
        // Loads and powers are since the sample before.
        system.sample();
        let now = Instant::now();
        Clerk {
            deadline_s,
            ceiling,
            clock,
            system,
            began: now,
            last: now,
            number: 0,
            total: 0,
            misses: 0,
            operations: None,
        }
    }

    /// Runs that ended before the watching began.
    pub(super) fn before(&mut self, runs: u64) {
        self.total = runs;
    }

    /// The moment that ends now. Where there were runs of other things too, `own_median` is that of runs of the facts.
    pub(super) fn moment(
        &mut self,
        runs: &Runs,
        parts: &Parts,
        facts: Option<&Facts>,
        held: Held,
        own_median: Option<f64>,
        no_parts: &str,
    ) -> Moment {
        let sample = self.system.sample();
        let now = Instant::now();
        let span_s = now.duration_since(self.last).as_secs_f64();
        self.last = now;
        self.total += runs.count;
        self.misses += runs.misses;
        let latency = self.latency(runs, span_s);
        let own = own_median.map(|s| Figure::measured(s, "s", format!("{}, runs of the busiest session", self.clock)));
        let p50 = own.as_ref().unwrap_or(&latency.p50);
        let work = self.work(p50, facts);
        if let Some(operations) = facts.and_then(|facts| operations(parts, facts, p50)) {
            self.operations = Some((operations, now));
        }
        let operations = self.operations.as_ref().map(|(operations, _)| operations.clone()).unwrap_or_default();
        let operations_reason = operations.is_empty().then(|| no_parts.to_owned());
        let planned = |bytes: Option<u64>| match bytes {
            Some(bytes) => Figure::derived(bytes as f64, "B", "the compiled plan"),
            None => Figure::unavailable("B", "the compiled plan", "no session has told its plan yet"),
        };
        let mut machine = sample.readings;
        let own = machine.get("rss").cloned();
        let rss = held.rss.or(own).unwrap_or_else(|| Figure::unavailable("B", "this system", "it was not read"));
        let memory = Memory {
            arena: planned(facts.map(|f| f.arena_bytes)),
            weights: planned(facts.map(|f| f.weight_bytes)),
            pool: held.pool,
            rss,
        };
        machine.retain(|name, _| is_of_machine(name));
        let number = self.number;
        self.number += 1;
        Moment {
            number,
            at_s: now.duration_since(self.began).as_secs_f64(),
            span_s,
            latency,
            work,
            operations,
            operations_reason,
            memory,
            machine,
            alerts: vec![],
        }
    }

    fn latency(&self, runs: &Runs, span_s: f64) -> Latency {
        let mut sorted = runs.durations.clone();
        sorted.sort_by(f64::total_cmp);
        let source = match (runs.stride, runs.count - runs.seen) {
            (0 | 1, 0) => format!("{}, runs since the moment before", self.clock),
            (stride, 0) => format!("{}, one in {stride} of the runs since the moment before", self.clock),
            (_, lost) => {
                format!("{}, runs since the moment before, {lost} of which went by unseen", self.clock)
            }
        };
        let none = |unit: &str| Figure::unavailable(unit, source.clone(), "no run ended since the moment before");
        let time = |value: f64| match runs.seen {
            0 => none("s"),
            _ => Figure::measured(value, "s", source.clone()),
        };
        let at = |part: f64| time(stats::quantile_sorted(&sorted, part));
        let count = |n: u64| Figure::measured(n as f64, "runs", "count of runs");
        let missed = |n: u64| match (self.deadline_s, runs.count - runs.seen) {
            (None, _) => Figure::unavailable("runs", "the deadline", "there is no deadline; --deadline gives one"),
            (Some(_), 0) => Figure::measured(n as f64, "runs", source.clone()),
            (Some(_), lost) => {
                Figure::measured(n as f64, "runs", format!("{source}; at least so many: {lost} are unknown"))
            }
        };
        let busy = match runs.count - runs.seen {
            0 => Figure::derived(100.0 * runs.sum / span_s, "%", "time in runs over time"),
            // Those that went by unseen took as long as the others, most likely.
            _ if runs.seen > 0 => Figure::derived(
                100.0 * runs.sum * (runs.count as f64 / runs.seen as f64) / span_s,
                "%",
                "time in the runs that were seen, for all of them, over time",
            ),
            _ => none("%"),
        };
        Latency {
            runs: count(runs.count),
            total: count(self.total),
            rate: Figure::derived(runs.count as f64 / span_s, "runs/s", "runs over time"),
            busy,
            min: time(runs.least.unwrap_or(f64::NAN)),
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            max: time(runs.greatest),
            misses: missed(runs.misses),
            misses_total: missed(self.misses),
        }
    }

    fn work(&self, p50: &Figure, facts: Option<&Facts>) -> Work {
        let Some(facts) = facts else {
            let none = |unit: &str| Figure::unavailable(unit, "the compiled plan", "no session has told its plan yet");
            return Work { flops: none("flop/s"), bandwidth: none("B/s"), roof_share: none("%") };
        };
        let least = self.ceiling.as_ref().and_then(|ceiling| least(facts, ceiling));
        let source = "the operations' least times over the median time";
        let roof_share = match least {
            Some(least) => of_limit(p50, least, source),
            None => Figure::unavailable("%", source, NO_ROOF),
        };
        let Cost { flops, .. } = facts.cost;
        Work {
            flops: p50.derive("flop/s", "the plan's flops over the median time", |t| flops as f64 / t),
            bandwidth: p50.derive("B/s", "bytes that operations move at least over the median time", |t| {
                facts.cost.bytes() as f64 / t
            }),
            roof_share,
        }
    }
}

/// Why nothing is said of limits.
const NO_ROOF: &str =
    "this machine's limits were not measured; `schwann devices calibrate` does it in about ten seconds";

/// The least seconds of a run, where the limits are known.
fn least(facts: &Facts, ceiling: &Ceiling) -> Option<f64> {
    let each = |p: &schwann_core::live::Part| Some(ceiling.least(&p.cost, p.integers, p.calls as f64)?.work());
    facts.parts.iter().map(each).sum()
}

/// Time by operation, longest first; `None` where no run was watched.
fn operations(parts: &Parts, facts: &Facts, p50: &Figure) -> Option<Vec<Operation>> {
    let whole = parts.outside + parts.seconds.iter().sum::<f64>();
    if parts.runs == 0 || whole.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
        return None;
    }
    let mut by_name: BTreeMap<&str, (&str, f64)> = BTreeMap::new();
    for (part, seconds) in facts.parts.iter().zip(&parts.seconds) {
        by_name.entry(&part.name).or_insert((&part.kernel, 0.0)).1 += seconds;
    }
    let beside = ("the call itself", "checks, inputs and results", parts.outside);
    let all = by_name.into_iter().map(|(name, (kernel, s))| (name, kernel, s)).chain([beside]);
    let source = format!("{} watched {}", parts.runs, if parts.runs == 1 { "run" } else { "runs" });
    let mut found: Vec<(f64, Operation)> = all
        .map(|(name, kernel, seconds)| {
            let share = seconds / whole;
            let operation = Operation {
                name: name.to_owned(),
                kernel: kernel.to_owned(),
                // Watching makes runs longer; shares of watched runs are taken of those that were not.
                time: p50.derive("s", format!("its share of {source}, of the median run"), |t| t * share),
                share: Figure::measured(100.0 * share, "%", source.clone()),
            };
            (seconds, operation)
        })
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    Some(found.into_iter().map(|(_, operation)| operation).collect())
}

/// What multiply-adds and memory reach, for what is watched: arithmetic, and memory at the level that holds what a run
/// moves.
pub(super) fn roofs(ceiling: Option<&Ceiling>, facts: Option<&Facts>) -> (Figure, Figure) {
    let none = |unit: &str| Figure::unavailable(unit, "calibration", NO_ROOF);
    let Some(ceiling) = ceiling else { return (none("flop/s"), none("B/s")) };
    let touched = facts.map_or(u64::MAX, |f| f.arena_bytes.saturating_add(f.weight_bytes));
    let levels = &ceiling.roof.bandwidth;
    let fits = ceiling.level_bytes.iter().position(|bytes| *bytes >= touched);
    let level = fits.and_then(|i| levels.get(i)).or(levels.last());
    let bandwidth = level.map_or_else(
        || none("B/s"),
        |named| Figure {
            source: format!("{}, which holds arena and weights: {}", named.name, named.figure.source),
            ..named.figure.clone()
        },
    );
    (ceiling.roof.flops.clone(), bandwidth)
}

/// What all sources say of themselves alike.
pub(super) fn about(
    model: &str,
    pid: u32,
    every_s: f64,
    deadline_s: Option<f64>,
    facts: Option<&Facts>,
    ceiling: Option<&Ceiling>,
) -> About {
    let (flops_roof, bandwidth_roof) = roofs(ceiling, facts);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    About {
        model: model.to_owned(),
        program: String::new(),
        pid,
        machine: crate::profiler::machine(schwann_kernels::Isa::detect()).cpu,
        backend: facts.map(|f| f.backend.clone()).unwrap_or_default(),
        threads: facts.map_or(0, |f| f.threads),
        sizes: facts.map(|f| f.sizes.clone()).unwrap_or_default(),
        began_s: since.map_or(0.0, |d| d.as_secs_f64()),
        every_s,
        deadline_s,
        flops_roof,
        bandwidth_roof,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use schwann_core::live::Part;

    /// A moment in which three runs took 1, 2 and 9 ms.
    pub(in crate::live) fn moment() -> Moment {
        let mut clerk = Clerk::new("test", Some(5e-3), None);
        let mut runs = Runs::default();
        [1e-3, 9e-3, 2e-3].iter().for_each(|s| runs.push(*s, Some(5e-3)));
        let part = |name: &str| Part {
            name: name.into(),
            kernel: "gemm".into(),
            calls: 1,
            cost: Cost { flops: 1000, ..Cost::default() },
            integers: false,
        };
        let facts = Facts {
            parts: vec![part("a"), part("b")],
            cost: Cost { flops: 2000, bytes_read: 500, ..Cost::default() },
            arena_bytes: 64,
            ..Facts::default()
        };
        let parts = Parts { seconds: vec![0.25, 0.5], outside: 0.25, runs: 2 };
        let held = Held { rss: None, pool: Figure::unavailable("B", "pool", "none") };
        clerk.moment(&runs, &parts, Some(&facts), held, None, "why")
    }

    #[test]
    fn a_moment_sums_up_runs_work_and_operations() {
        let m = moment();
        let l = &m.latency;
        assert_eq!((l.runs.value, l.total.value, l.misses.value), (Some(3.0), Some(3.0), Some(1.0)));
        assert_eq!((l.min.value, l.p50.value, l.max.value), (Some(1e-3), Some(2e-3), Some(9e-3)));
        assert_eq!((m.work.flops.value, m.work.bandwidth.value), (Some(1e6), Some(250e3)));
        assert!(m.work.roof_share.reason.as_ref().unwrap().contains("calibrate"));
        let shares: Vec<(&str, Option<f64>)> = m.operations.iter().map(|o| (o.name.as_str(), o.share.value)).collect();
        assert_eq!(shares[0], ("b", Some(50.0)));
        assert_eq!(m.operations.iter().filter_map(|o| o.share.value).sum::<f64>(), 100.0);
        assert_eq!(m.operations[0].time.value, Some(1e-3));
        assert_eq!(m.memory.arena.value, Some(64.0));
        // The monitor's own process is not the machine.
        assert!(
            m.machine.contains_key("cpu_load") && !m.machine.contains_key("rss") && !m.machine.contains_key("cycles")
        );
    }

    #[test]
    fn a_moment_without_runs_has_no_times_and_says_why() {
        let mut clerk = Clerk::new("test", None, None);
        let held = Held { rss: None, pool: Figure::unavailable("B", "pool", "none") };
        let m = clerk.moment(&Runs::default(), &Parts::default(), None, held, None, "nobody told");
        for figure in
            [&m.latency.p50, &m.latency.p99, &m.latency.max, &m.work.flops, &m.latency.misses, &m.memory.arena]
        {
            assert!(figure.value.is_none() && figure.reason.is_some(), "{figure:?}");
        }
        assert_eq!((m.latency.runs.value, m.latency.rate.value), (Some(0.0), Some(0.0)));
        assert_eq!(m.operations_reason.as_deref(), Some("nobody told"));
    }

    #[test]
    fn more_runs_than_are_kept_are_counted_all_the_same() {
        let (mut runs, mut more) = (Runs::default(), Runs::default());
        let each = MOST_DURATIONS as u64 * 3 / 2;
        (0..each).for_each(|i| runs.push(i as f64, None));
        (0..each).for_each(|i| more.push(i as f64, None));
        more.lost(5);
        runs.join(&mut more);
        assert_eq!((runs.count, runs.seen, runs.count - runs.seen), (2 * each + 5, 2 * each, 5));
        assert!(runs.durations.len() <= MOST_DURATIONS);
        assert_eq!((runs.least, runs.greatest), (Some(0.0), (each - 1) as f64));
        assert_eq!((more.count, more.seen), (0, 0));
    }
}
