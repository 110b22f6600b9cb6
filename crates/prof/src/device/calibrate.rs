//! What this machine does, measured: its limits, its latencies, and the prices of the cost model.
//!
//! A calibration belongs to one machine ([`Fingerprint`]) and is kept in a file (`store.rs`); measuring it takes
//! some ten seconds. Rates are the best that was seen: whatever else runs can only make a machine look slower. It takes
//! what memory can be spared (`levels.rs`) and says under what conditions it was made (`conditions.rs`).

use super::conditions::{Conditions, Watch};
use super::cpu::Processor;
use super::fit::{self, Counts, Prices, Target, Unit};
use super::levels::{self, room};
use super::roof::{self, Level, Limits, Ready, words};
use super::solve::solve;
use super::{Error, Progress, Result, cpu, suite};
use crate::measure::time;
use crate::profile::{Named, Roof};
use schwann_core::op::Unary;
use schwann_core::{Error as Core, Figure};
use schwann_kernels::Isa;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;

/// The version of the file's form. A greater one is not read.
pub const VERSION: u32 = 2;

/// Counts the changes of what is priced (`fit::Unit`) and of the kernels behind it: prices of another count are of no use,
/// and part of a machine's fingerprint.
const PRICED: u32 = 7;

/// Rounds over the suite.
const ROUNDS: usize = 4;

/// What tells one machine from another, as far as its speed goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The CPU's name.
    pub cpu: String,
    /// The instruction set in use.
    pub isa: String,
    /// Logical CPUs that a process may use.
    pub cores: usize,
    /// Data caches.
    pub caches: Vec<cpu::Cache>,
    /// Bytes of memory; `None` where the system does not tell.
    pub memory_bytes: Option<usize>,
    /// The operating system and architecture.
    pub os: String,
    /// This program's version and kind of build: other kernels have other prices.
    pub build: String,
}

impl Fingerprint {
    /// This machine, with an instruction set.
    pub fn of(isa: Isa) -> Fingerprint {
        Fingerprint {
            cpu: cpu::name().unwrap_or_else(|why| format!("unknown ({why})")),
            isa: isa.name().into(),
            cores: cpu::cores(),
            caches: cpu::caches().unwrap_or_default(),
            memory_bytes: schwann_core::memory::machine_bytes().ok(),
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            build: format!(
                "{} {}, prices {PRICED}",
                env!("CARGO_PKG_VERSION"),
                if cfg!(debug_assertions) { "debug" } else { "release" }
            ),
        }
    }

    /// What differs from another machine, in words; empty where nothing does. Memory that differs by under a hundredth
    /// is the same: a kernel keeps some of it.
    pub fn differences(&self, other: &Fingerprint) -> Vec<String> {
        let mut found = vec![];
        let mut tell = |what: &str, a: String, b: String| {
            if a != b {
                found.push(format!("{what} {a} instead of {b}"));
            }
        };
        tell("CPU", self.cpu.clone(), other.cpu.clone());
        tell("instruction set", self.isa.clone(), other.isa.clone());
        tell("cores", self.cores.to_string(), other.cores.to_string());
        tell("caches", caches(&self.caches), caches(&other.caches));
        tell("system", self.os.clone(), other.os.clone());
        tell("build", self.build.clone(), other.build.clone());
        let near = |a: usize, b: usize| a.abs_diff(b) <= a.max(b) / 100;
        match (self.memory_bytes, other.memory_bytes) {
            (Some(a), Some(b)) if near(a, b) => {}
            (a, b) => tell("memory", format!("{a:?} B"), format!("{b:?} B")),
        }
        found
    }

    /// All of it in one short word, for file names and for profiles to be told apart by.
    pub fn hash(&self) -> String {
        // FNV-1a: the same on every system and in every version, which std's hasher does not promise.
        let memory = self.memory_bytes.map_or(0, |b| b >> 30);
        let Fingerprint { cpu, isa, cores, os, build, .. } = self;
        let text = format!("{cpu}|{isa}|{cores}|{}|{memory}|{os}|{build}", caches(&self.caches));
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        format!("{hash:016x}")
    }
}

fn caches(all: &[cpu::Cache]) -> String {
    let one = |c: &cpu::Cache| format!("L{} {} B", c.level, c.bytes);
    if all.is_empty() { "unknown".into() } else { all.iter().map(one).collect::<Vec<_>>().join(", ") }
}

/// Memory that graphs of the suite leave free.
const SPARED: usize = 16 << 20;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// About ten seconds.
    Full,
    /// A fraction of a second, for tests: the figures are measured, and rough.
    Quick,
}

impl Pace {
    /// Seconds for the limits of each number of threads, for each latency, for each graph of the suite.
    fn seconds(self) -> (f64, f64, f64) {
        match self {
            Pace::Full => (1.6, 0.05, 0.05),
            Pace::Quick => (0.05, 0.001, 0.0005),
        }
    }

    /// Bytes of memory, of those that can be spared: touching much takes long too.
    fn allowed(self, spare: Option<usize>) -> Option<usize> {
        match self {
            Pace::Full => spare,
            Pace::Quick => Some(spare.unwrap_or(usize::MAX).min(64 << 20)),
        }
    }
}

/// How long a load takes whose address is the last one's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// `L1`, `L2`, `L3` or `memory`.
    pub level: String,
    /// Seconds.
    pub seconds: f64,
}

/// Functions a second on one thread, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// `exp`, `tanh`, `sigmoid`.
    pub name: String,
    /// A second.
    pub per_s: f64,
}

/// A graph of the suite: its time, and how far the prices are from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fitted {
    /// What it is.
    pub name: String,
    /// The least seconds of a run.
    pub measured_s: f64,
    /// What the prices give over that, less 1.
    pub error: f64,
}

/// What was measured of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The version of this form.
    pub version: u32,
    /// The machine.
    pub fingerprint: Fingerprint,
    /// When: seconds since 1970.
    pub created_unix_s: u64,
    /// How long it took.
    pub took_s: f64,
    /// How thoroughly.
    pub pace: Pace,
    /// With one thread, then with all (one entry where there is one core).
    pub limits: Vec<Limits>,
    /// By level, near to far.
    pub latencies: Vec<Latency>,
    /// By function.
    pub functions: Vec<Rate>,
    /// Cycles a second of a busy core.
    pub clock_hz: f64,
    /// Whether cycles were counted; else they follow from a chain of dependent rotations and additions, at one each.
    pub clock_counted: bool,
    /// Seconds that a run with one input and one output costs beyond its steps.
    pub run_overhead_s: f64,
    /// Seconds that a step costs beyond its work.
    pub step_overhead_s: f64,
    /// Seconds that a step of a loop costs beyond its calls.
    pub loop_step_s: f64,
    /// What counting has to know.
    pub lanes: usize,
    /// Registers of a panel.
    pub panel: usize,
    /// What one of each unit of work costs on one thread, in seconds.
    pub prices: Prices,
    /// The suite that they were found with.
    pub suite: Vec<Fitted>,
    /// Median of the relative errors with which these prices give the suite's own times, in parts of 1.
    pub fit_error: f64,
    /// Nine of ten graphs of the suite that were held back are within this of their time by the prices of the others:
    /// a logarithm of the ratio.
    pub held_back_error: f64,
    /// The condition number of the equations that the prices were found by.
    pub condition: f64,
    /// What else the machine did meanwhile.
    pub conditions: Conditions,
}

/// A part of sorted numbers is at most this.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted.get(((sorted.len().saturating_sub(1)) as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

/// Takes the stack that kernels need. The first thread's stack grows as it is used, and under a limit of the address
/// space the buffers that are measured may leave it nothing to grow into, which ends the process.
#[inline(never)]
fn take_stack() {
    let mut room = [0u8; 1 << 20];
    black_box(&mut room);
}

impl Calibration {
    /// Measures this machine; `tell` hears what is being done.
    pub fn measure(isa: Isa, pace: Pace, tell: &mut dyn FnMut(Progress)) -> Result<Calibration> {
        take_stack();
        let start = Instant::now();
        let mut watch = Watch::begin();
        let (limit_s, latency_s, piece_s) = pace.seconds();
        let one = Processor::new(Some(isa), 1)?;
        let fingerprint = Fingerprint::of(isa);
        let mut part = |done: f64, p: Progress| tell(Progress::at(done, p.what));
        part(0.01, Progress::new("clock"));
        let before = clock_hz(latency_s);
        let allowed = pace.allowed(levels::allowance());
        let mut limits = vec![Limits::measure_within(&one, limit_s, allowed, &mut |p| part(0.02, p))?];
        // Where the system refuses the threads, one thread's limits are all that is known.
        if fingerprint.cores > 1
            && let Ok(all) = Processor::new(Some(isa), fingerprint.cores)
        {
            limits.push(Limits::measure_within(&all, limit_s, allowed, &mut |p| part(0.15, p))?);
        }
        part(0.28, Progress::new("latencies"));
        let latencies = latencies(&limits[0].levels, latency_s, pace);
        let mut functions = vec![];
        for op in [Some(Unary::Exp), Some(Unary::Tanh), Some(Unary::Sigmoid), None] {
            let name = op.map_or("functions of a gate", |op| op.name());
            part(0.3, Progress::new(name));
            functions.push(Rate { name: name.into(), per_s: roof::functions_per_s(isa, op, latency_s * 2.0)? });
        }
        part(0.32, Progress::new("overhead of steps"));
        let step_overhead_s = roof::step_overhead_s(isa, latency_s * 2.0)?;
        let target = target(isa, &limits[0].levels);
        let (mut names, mut ready): (Vec<String>, Vec<Ready>) = (vec![], vec![]);
        suite::each(target.l1, target.l2, &mut |piece| {
            let name = piece.name.clone();
            // What a graph needs beside its buffers is not asked for, but taken, and the process ends where there is none.
            if schwann_core::memory::available_bytes().is_ok_and(|free| free < SPARED) {
                limits[0]
                    .left_out
                    .push(format!("{name}: less than {} of memory are free", schwann_core::plan::bytes(SPARED as u64)));
                return Ok(());
            }
            let once = |mut piece: Ready| piece.run().map(|_| ()).map(|()| piece);
            match piece.ready(one.backend()).and_then(once) {
                Ok(piece) => {
                    names.push(name);
                    ready.push(piece);
                }
                // Prices of what needs more memory than there is stay unknown.
                Err(Error::Core(problem @ Core::Memory { .. })) => {
                    limits[0].left_out.push(format!("{name}: {problem}"))
                }
                Err(problem) => return Err(problem),
            }
            Ok(())
        })?;
        // In rounds: what disturbs the machine for a second disturbs one round of each.
        let mut rounds = vec![[f64::INFINITY; ROUNDS]; ready.len()];
        let all = (ROUNDS * ready.len()) as f64;
        let alone = Watch::begin();
        for round in 0..ROUNDS {
            for (i, (ready, times)) in ready.iter_mut().zip(&mut rounds).enumerate() {
                part(0.33 + 0.66 * (round * names.len() + i) as f64 / all, Progress::new(names[i].clone()));
                times[round] = ready.time(piece_s / ROUNDS as f64)?.min_s;
            }
        }
        let share = alone.share();
        rounds.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
        let mut spreads: Vec<f64> = rounds.iter().map(|times| times[ROUNDS / 2] / times[0]).collect();
        spreads.sort_by(f64::total_cmp);
        let least: Vec<f64> = rounds.iter().map(|times| times[0]).collect();
        let mut equations: Vec<(Counts, f64)> = vec![];
        for (ready, seconds) in ready.iter().zip(least) {
            let Some(plan) = ready.session().plan() else { continue };
            let (mut counts, steps) = fit::count(plan, &target);
            for (unit, n) in steps.iter().flat_map(|s| &s.counts) {
                *counts.entry(*unit).or_insert(0.0) += n;
            }
            equations.push((counts, seconds));
        }
        part(0.99, Progress::new("prices"));
        let solution = solve(&equations);
        let prices = solution.prices;
        let error = |c: &Counts, t: f64| fit::seconds(c, &prices).map_or(f64::NAN, |s| s / t - 1.0);
        let suite: Vec<Fitted> = names
            .into_iter()
            .zip(&equations)
            .map(|(name, (c, t))| Fitted { name, measured_s: *t, error: error(c, *t) })
            .collect();
        let sorted = |mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            all
        };
        let errors = sorted(suite.iter().map(|f| f.error.abs()).collect());
        let held_back = sorted(solution.held_back.iter().map(|e| e.abs()).collect());
        let price = |unit| prices.get(&unit).copied().unwrap_or(0.0);
        let after = clock_hz(latency_s);
        let counted = counted_hz(latency_s);
        let conditions = Conditions {
            others: watch.others(),
            share,
            drift: before / after,
            spread: quantile(&spreads, 0.5),
            attempts: 1,
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(Calibration {
            version: VERSION,
            fingerprint,
            created_unix_s: now.map_or(0, |d| d.as_secs()),
            took_s: start.elapsed().as_secs_f64(),
            pace,
            limits,
            latencies,
            functions,
            clock_hz: counted.unwrap_or(before.max(after)),
            clock_counted: counted.is_some(),
            run_overhead_s: price(Unit::Run) + 2.0 * price(Unit::Operand),
            step_overhead_s,
            loop_step_s: price(Unit::LoopStep),
            lanes: target.lanes,
            panel: target.panel,
            fit_error: quantile(&errors, 0.5),
            held_back_error: quantile(&held_back, 0.9),
            condition: solution.condition,
            conditions,
            prices,
            suite,
        })
    }

    /// The limits for so many threads: those of one thread, or of all for any more.
    pub fn limits(&self, threads: usize) -> Option<&Limits> {
        self.limits.iter().find(|l| l.threads >= threads).or_else(|| self.limits.last())
    }

    /// What counting has to know of this machine.
    pub fn target(&self) -> Target {
        let levels = self.limits.first().map(|l| &l.levels[..]).unwrap_or_default();
        Target { lanes: self.lanes, panel: self.panel, ..caches_of(levels) }
    }

    /// What speaks against its figures, in words: what else ran, and what was left out.
    pub fn doubts(&self) -> Vec<String> {
        let mut all = self.conditions.doubts();
        let left_out = self.limits.iter().flat_map(|l| &l.left_out);
        for text in left_out.map(|l| format!("not measured: {l}")) {
            if !all.contains(&text) {
                all.push(text);
            }
        }
        all
    }

    /// Where its figures come from, in a line.
    pub fn source(&self) -> String {
        let Fingerprint { cpu, isa, .. } = &self.fingerprint;
        format!("calibration of {cpu} ({isa})")
    }

    /// The document's form of the limits with so many threads.
    pub fn roof(&self, threads: usize) -> Roof {
        let source = |what: &str| format!("{}: {what}", self.source());
        let device = format!("{}, {}", self.fingerprint.cpu, words(threads));
        let none = |unit: &str| Figure::unavailable(unit, self.source(), "the calibration has no limits");
        let (flops, functions, bandwidth) = match self.limits(threads) {
            Some(l) => (
                Figure::measured(
                    l.flops_per_s,
                    "flop/s",
                    source(&format!("multiply-adds in registers, {}", words(l.threads))),
                ),
                functions(l, &source),
                l.levels.iter().map(|level| named_level(level, &self.source())).collect(),
            ),
            None => (none("flop/s"), none("1/s"), vec![]),
        };
        let step_overhead = Figure::measured(self.step_overhead_s, "s", source("steps that do next to nothing"));
        let gain = self.limits(threads).map(|l| l.bf16_flops_per_s / l.product_flops_per_s);
        let how = "products of bfloat16 over those of f32, both in cache";
        let bf16_gain = gain.map(|g| Figure::derived(g, "×", source(how)));
        let int8 = self.limits(threads).map(|l| integers(l, &source));
        Roof { device, flops, int8, functions, bandwidth, step_overhead, bf16_gain, run_overhead: None }
    }

    /// Everything that was measured, as figures.
    pub fn figures(&self) -> Vec<Named> {
        let mut all = vec![];
        let mut add = |name: String, figure| all.push(Named { name, figure });
        let source = self.source();
        for l in &self.limits {
            let on = words(l.threads);
            let s = |what: &str| format!("{source}: {what}");
            add(format!("f32, {on}"), Figure::measured(l.flops_per_s, "flop/s", s("multiply-adds in registers")));
            add(
                format!("f32 products, {on}"),
                Figure::measured(l.product_flops_per_s, "flop/s", s("products that stay in cache")),
            );
            add(
                format!("bf16 products, {on}"),
                Figure::measured(l.bf16_flops_per_s, "flop/s", s("products that stay in cache")),
            );
            add(format!("8-bit integers, {on}"), integers(l, &s));
            for level in &l.levels {
                let set = schwann_core::plan::bytes(level.working_set_bytes as u64);
                for (way, rate) in [
                    ("read", level.read_bytes_per_s),
                    ("copy", level.copy_bytes_per_s),
                    ("update", level.update_bytes_per_s),
                ] {
                    let figure = Figure::measured(rate, "B/s", s(&format!("over {set}")));
                    add(format!("{} {way}, {on}", level.name), figure);
                }
            }
        }
        for l in &self.latencies {
            let how = format!("{source}: a chain of dependent loads");
            add(format!("{} latency", l.level), Figure::measured(l.seconds, "s", how));
        }
        for r in &self.functions {
            add(
                format!("{}, 1 thread", r.name),
                Figure::measured(r.per_s, "1/s", format!("{source}: a vector in cache")),
            );
        }
        add("clock".into(), self.clock());
        add("step overhead".into(), Figure::measured(self.step_overhead_s, "s", format!("{source}: idle steps")));
        let fitted = format!("{source}: fitted to the suite's times");
        add("run overhead".into(), Figure::derived(self.run_overhead_s, "s", fitted.clone()));
        add("loop step overhead".into(), Figure::derived(self.loop_step_s, "s", fitted.clone()));
        add("fit error".into(), Figure::derived(100.0 * self.fit_error, "%", format!("{fitted}, median")));
        let held = format!("{source}: nine of ten graphs, each by prices that were found without it");
        add("error of what was held back".into(), Figure::derived(100.0 * self.held_back_error.exp_m1(), "%", held));
        add("condition of the fit".into(), Figure::derived(self.condition, "1", fitted));
        all
    }

    /// The clock of a busy core: measured by a counter, or derived from a chain of operations.
    pub fn clock(&self) -> Figure {
        let source = self.source();
        match self.clock_counted {
            true => Figure::measured(self.clock_hz, "Hz", format!("{source}: cycles counted over time on a core")),
            false => {
                let how = "a chain of dependent rotations and additions, if each takes a cycle (cycles may not be counted here)";
                Figure::derived(self.clock_hz, "Hz", format!("{source}: {how}"))
            }
        }
    }
}

/// Sums of products of 8-bit integers in registers.
fn integers(l: &Limits, source: &dyn Fn(&str) -> String) -> Figure {
    let path = l.int8_path.as_deref().unwrap_or("unknown");
    let how = source(&format!("sums of four 8-bit products in registers ({path}), {}", words(l.threads)));
    match l.int8_ops_per_s {
        Some(rate) => Figure::measured(rate, "op/s", how),
        None => Figure::unavailable("op/s", how, "there is no instruction for sums of 8-bit products here"),
    }
}

/// One thread's functions are measured; several threads' are at most as many times that.
fn functions(l: &Limits, source: &dyn Fn(&str) -> String) -> Figure {
    let how = "fastest of exp, sigmoid, tanh and gates in L1";
    match l.threads {
        1 => Figure::measured(l.functions_per_s, "1/s", source(how)),
        n => Figure::derived(l.functions_per_s, "1/s", source(&format!("{how}, one thread's times {n}"))),
    }
}

fn named_level(level: &Level, source: &str) -> Named {
    let how = "fastest of reading, copying and changing in place";
    Named { name: level.name.clone(), figure: Figure::measured(level.bytes_per_s(), "B/s", format!("{source}: {how}")) }
}

/// Cache sizes as far as they are known: a typical one would be a guess.
fn caches_of(levels: &[Level]) -> Target {
    let of = |name: &str| levels.iter().find(|l| l.name == name).and_then(|l| l.capacity_bytes);
    Target { lanes: 0, panel: 0, l1: of("L1"), l2: of("L2") }
}

fn target(isa: Isa, levels: &[Level]) -> Target {
    // Sets of 32 registers have panels of four, others of two.
    let many = isa.name().starts_with("avx512") || isa.name().starts_with("neon");
    Target { lanes: isa.lanes(), panel: if many { 4 } else { 2 }, ..caches_of(levels) }
}

/// Follows a chain of indices through as many bytes as each level was measured with; lines are visited in a random
/// order, so that no prefetcher knows the next.
fn latencies(levels: &[Level], seconds: f64, pace: Pace) -> Vec<Latency> {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below.max(1) as u64) as usize
    };
    let mut all = vec![];
    for level in levels {
        const LINE: usize = 16;
        let lines = (level.working_set_bytes / 64).max(16);
        // Walking a large set in random order takes a list of it, and some time to make.
        if pace == Pace::Quick && lines > 1 << 16 {
            continue;
        }
        let (Ok(mut order), Ok(mut chain)) = (room::<u32>(lines, "an order"), room::<u32>(lines * LINE, "a chain"))
        else {
            continue;
        };
        order.extend(0..lines as u32);
        for i in (1..lines).rev() {
            order.swap(i, next(i + 1));
        }
        chain.resize(lines * LINE, 0u32);
        for pair in order.windows(2) {
            chain[pair[0] as usize * LINE] = pair[1] * LINE as u32;
        }
        chain[order[lines - 1] as usize * LINE] = order[0] * LINE as u32;
        const HOPS: usize = 4096;
        let mut at = 0u32;
        let walked = time(seconds, || {
            for _ in 0..HOPS {
                at = chain[at as usize];
            }
            black_box(at);
            Ok::<_, std::convert::Infallible>(())
        });
        let Ok(walked) = walked;
        all.push(Latency { level: level.name.clone(), seconds: walked.min_s / HOPS as f64 });
    }
    all
}

/// Cycles a second by the CPU's own counter, where this process may read it.
fn counted_hz(seconds: f64) -> Option<f64> {
    let mut counters = schwann_sensors::Counters::open();
    counters.start();
    clock_hz(seconds);
    counters.stop().get("effective_frequency")?.value
}

/// Cycles a second by a chain of dependent rotations and additions, if each takes one.
fn clock_hz(seconds: f64) -> f64 {
    const ROUNDS: usize = 4096;
    let mut x = black_box(1u64);
    let walked = time(seconds, || {
        for _ in 0..ROUNDS {
            x = x.rotate_left(7).wrapping_add(0x9e37_79b9);
        }
        black_box(x);
        Ok::<_, std::convert::Infallible>(())
    });
    let Ok(walked) = walked;
    2.0 * ROUNDS as f64 / walked.min_s
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A machine that was never measured, with round numbers.
    pub(in crate::device) fn made_up() -> Calibration {
        let level = |name: &str, capacity_bytes, speed: f64| Level {
            name: name.into(),
            capacity_bytes,
            working_set_bytes: 1024,
            copy_bytes_per_s: speed,
            read_bytes_per_s: speed,
            update_bytes_per_s: speed,
        };
        let limits = |threads: usize| Limits {
            isa: "made up".into(),
            threads,
            flops_per_s: 100e9 * threads as f64,
            product_flops_per_s: 90e9 * threads as f64,
            bf16_flops_per_s: 180e9 * threads as f64,
            int8_ops_per_s: Some(400e9 * threads as f64),
            int8_path: Some("made up".into()),
            functions_per_s: 4e9 * threads as f64,
            levels: vec![
                level("L1", Some(32 << 10), 200e9),
                level("L2", Some(1 << 20), 100e9),
                level("memory", None, 20e9),
            ],
            left_out: vec![],
            provenance: "measured".into(),
            source: "made up for a test".into(),
        };
        let prices = [
            (Unit::Run, 100e-9),
            (Unit::Operand, 10e-9),
            (Unit::LoopStep, 20e-9),
            (Unit::LoopBlock, 0.0),
            (Unit::TransposedByte, 0.1e-9),
            (Unit::RowCall, 30e-9),
            (Unit::RowRound, 1e-9),
            (Unit::RowByteL1, 0.01e-9),
            (Unit::RowByteL2, 0.02e-9),
            (Unit::ProductCall, 30e-9),
            (Unit::ProductTile, 20e-9),
            (Unit::ProductWork, 0.02e-9),
            (Unit::MapCall, 20e-9),
            (Unit::ProductPacked, 0.02e-9),
            (Unit::MapPlain, 0.05e-9),
            (Unit::MapDivide, 0.0),
            (Unit::MapFunction, 0.5e-9),
            (Unit::MapByte, 0.01e-9),
            (Unit::SynapseCall, 30e-9),
            (Unit::SynapseRow, 0.2e-9),
            (Unit::SynapseRound, 4e-9),
            (Unit::SynapseGather, 8e-9),
            (Unit::GatedCall, 30e-9),
            (Unit::AttentionCall, 60e-9),
            (Unit::AttentionWork, 0.02e-9),
            (Unit::AttentionScore, 0.5e-9),
            (Unit::Bf16Work, 0.01e-9),
            (Unit::Bf16RowByte, 0.02e-9),
            (Unit::F16Work, 0.03e-9),
            (Unit::F16RowByte, 0.02e-9),
            (Unit::Converted, 0.05e-9),
            (Unit::RoundedCall, 40e-9),
            (Unit::RoundedRow, 20e-9),
            (Unit::RoundedBlock, 4e-9),
            (Unit::RoundedElement, 0.2e-9),
            (Unit::RoundedTile, 20e-9),
            (Unit::ScaledSum, 0.1e-9),
            (Unit::Int8RowByte, 0.01e-9),
            (Unit::Int4RowByte, 0.02e-9),
            (Unit::TernaryRowByte, 0.03e-9),
            (Unit::Int8Work, 0.003e-9),
            (Unit::Int4Work, 0.004e-9),
            (Unit::TernaryWork, 0.003e-9),
            (Unit::WidenedCall, 40e-9),
            (Unit::WidenedCode, 0.02e-9),
            (Unit::ApartCode, 0.02e-9),
            (Unit::ApartWork, 0.02e-9),
            (Unit::HalfWork, 0.02e-9),
            (Unit::HalfRowByte, 0.02e-9),
            (Unit::GatedWork, 0.02e-9),
            (Unit::GatedFunction, 0.5e-9),
            (Unit::CopyCall, 10e-9),
            (Unit::CopyByte, 0.01e-9),
        ];
        Calibration {
            version: VERSION,
            fingerprint: Fingerprint {
                cpu: "made up".into(),
                isa: "made up".into(),
                cores: 2,
                caches: vec![],
                memory_bytes: Some(8 << 30),
                os: "none".into(),
                build: "none".into(),
            },
            created_unix_s: 1,
            took_s: 1.0,
            pace: Pace::Quick,
            limits: vec![limits(1), limits(2)],
            latencies: vec![Latency { level: "L1".into(), seconds: 1e-9 }],
            functions: vec![Rate { name: "tanh".into(), per_s: 4e9 }],
            clock_hz: 3.2e9,
            clock_counted: false,
            run_overhead_s: 100e-9,
            step_overhead_s: 20e-9,
            loop_step_s: 20e-9,
            lanes: 16,
            panel: 4,
            prices: prices.into(),
            suite: vec![],
            fit_error: 0.05,
            held_back_error: 0.1,
            condition: 100.0,
            conditions: Conditions { others: Some(0.0), share: Some(1.0), drift: 1.0, spread: 1.0, attempts: 1 },
        }
    }

    #[test]
    fn a_quick_calibration_measures_everything_and_tells_of_its_progress() {
        let mut told = vec![];
        let c = Calibration::measure(Isa::detect(), Pace::Quick, &mut |p| told.push(p.done)).unwrap();
        assert!(told.len() > 50 && told.iter().all(|d| d.is_some_and(|d| (0.0..=1.0).contains(&d))));
        assert!(told.windows(2).all(|w| w[0] <= w[1]), "progress goes forward");
        for named in c.figures() {
            let f = &named.figure;
            assert!(f.value.is_some_and(|v| v.is_finite() && v >= 0.0) || f.reason.is_some(), "{}", named.name);
            assert!(!f.source.is_empty() && !f.unit.is_empty());
        }
        assert!(c.limits[0].flops_per_s > 1e8 && c.clock_hz > 1e8 && !c.latencies.is_empty());
        assert!(c.conditions.share.is_none_or(|s| s > 0.0) && c.conditions.spread >= 1.0, "{:?}", c.conditions);
        assert!(c.condition.is_finite() && c.held_back_error > 0.0);
        let integers = c.figures().into_iter().find(|n| n.name == "8-bit integers, 1 thread").unwrap().figure;
        assert!(integers.value.map_or(integers.reason.is_some(), |v| v > 1e8), "{integers:?}");
    }

    #[test]
    fn fingerprints_differ_in_words_and_in_hash() {
        let a = made_up().fingerprint;
        let mut b = a.clone();
        b.memory_bytes = a.memory_bytes.map(|m| m + (1 << 20));
        assert!(a.differences(&b).is_empty(), "a little memory is the kernel's");
        (b.isa, b.cores) = ("other".into(), 4);
        assert_eq!(a.differences(&b).len(), 2);
        assert_ne!(a.hash(), b.hash());
        assert_eq!(a.hash(), made_up().fingerprint.hash());
    }
}
