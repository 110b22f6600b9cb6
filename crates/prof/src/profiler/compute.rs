//! Times and work: of whole runs, and of each operation.

use super::phases::{Inside, Parted};
use super::rig::Rig;
use super::sample::{Block, Samples};
use super::{Profiler, Result};
use crate::device::levels::least_seconds;
use crate::device::roof::of_limit;
use crate::profile::{Bound, Compute, KernelKind, Op, Roof};
use crate::stats;
use schwann_core::backend::{Clock, Totals};
use schwann_core::plan::kernel::BatchAxis;
use schwann_core::plan::{Kernel, Plan, Site, sites};
use schwann_core::{Cost, DType, Error, Figure, Series};
use std::collections::{BTreeMap, HashMap};

/// The machine's limits, and what its levels of memory hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    /// The limits with the workload's threads.
    pub roof: Roof,
    /// Bytes that each level of [`Roof::bandwidth`] holds for these threads, in the same order; the last, main memory,
    /// need not be given. Without them nothing is said about memory.
    pub level_bytes: Vec<u64>,
}

/// The least seconds that some work takes, by what it needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    /// Plain arithmetic.
    pub compute: f64,
    /// Exponentials and the like.
    pub functions: f64,
    /// Bytes, at the level that holds the working set.
    pub memory: f64,
    /// What the calls cost beside their work.
    pub overhead: f64,
}

impl Ceiling {
    /// The least time for so many calls of some work, in integers of 8 bits or not; `None` where a limit is not known.
    pub fn least(&self, cost: &Cost, integers: bool, calls: f64) -> Option<Least> {
        let plain = cost.flops.saturating_sub(cost.transcendentals) as f64;
        let peak = if integers { self.roof.int8.as_ref()?.value? } else { self.roof.flops.value? };
        Some(Least {
            compute: calls * plain / peak,
            functions: calls * cost.transcendentals as f64 / self.roof.functions.value?,
            memory: calls * self.memory(cost.bytes())?,
            overhead: calls * self.roof.step_overhead.value?,
        })
    }

    /// The least seconds in which so many bytes are moved once; `None` where it is not known what the levels hold, or
    /// how fast the level beyond them is.
    pub fn memory(&self, bytes: u64) -> Option<f64> {
        let levels = &self.roof.bandwidth;
        if levels.is_empty() || self.level_bytes.len() + 1 < levels.len() {
            return None;
        }
        let speeds: Vec<f64> = levels.iter().map(|l| l.figure.value).collect::<Option<_>>()?;
        let capacities = self.level_bytes.iter().copied().map(Some).chain([None]);
        least_seconds(capacities.zip(speeds), bytes)
    }
}

impl Least {
    /// The least time of the work itself: functions are arithmetic too, and memory may be busy at the same time.
    pub fn work(&self) -> f64 {
        (self.compute + self.functions).max(self.memory)
    }

    /// What limits it.
    pub fn bound(&self) -> Bound {
        let all = [
            (self.compute, Bound::Compute),
            (self.functions, Bound::Functions),
            (self.memory, Bound::Memory),
            (self.overhead, Bound::Overhead),
        ];
        all.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or(Bound::Unknown, |(_, bound)| bound)
    }
}

/// What one place took, a run.
#[derive(Clone, Copy, Default)]
struct Taken {
    seconds: f64,
    calls: f64,
}

/// What a run took: in no call, beside the steps by queue, and at each path.
struct Parts {
    outside: Taken,
    beside: Vec<(String, (Taken, Clock))>,
    places: HashMap<Vec<usize>, Taken>,
}

/// Means of the middle half of watched runs, without what the readings cost.
fn taken(samples: &Samples) -> Parts {
    let cost = samples.reading_cost();
    let blocks: Vec<&Block> = samples.usual_blocks().collect();
    let runs: f64 = blocks.iter().map(|b| b.taken.runs as f64).sum();
    let each = |seconds: f64, readings: f64| (seconds - readings * cost).max(0.0) / runs;
    let sum = |f: &dyn Fn(&Totals) -> f64| blocks.iter().map(|b| f(&b.taken)).sum::<f64>();
    let outside = each(sum(&|t| t.outside_s), sum(&|t| t.outside_readings));
    // Seconds, readings and calls: a backend need not tell of its places in the same order every time.
    let mut sums: HashMap<&[usize], (f64, f64, f64)> = HashMap::new();
    for place in blocks.iter().flat_map(|b| &b.taken.places) {
        let sum = sums.entry(&place.path).or_default();
        *sum = (sum.0 + place.seconds, sum.1 + place.readings, sum.2 + place.calls as f64);
    }
    let taken = |(seconds, readings, calls)| Taken { seconds: each(seconds, readings), calls: calls / runs };
    let places = sums.into_iter().map(|(path, sum)| (path.to_vec(), taken(sum))).collect();
    let mut queues: BTreeMap<&str, (usize, f64, f64, &Clock)> = BTreeMap::new();
    for block in &blocks {
        for (order, beside) in block.taken.beside.iter().enumerate() {
            let sum = queues.entry(&beside.queue).or_insert((order, 0.0, 0.0, &beside.clock));
            *sum = (sum.0, sum.1 + beside.seconds, sum.2 + beside.calls as f64, sum.3);
        }
    }
    let mut queues: Vec<_> = queues.into_iter().collect();
    queues.sort_by_key(|(_, (order, ..))| *order);
    let beside = queues
        .into_iter()
        .map(|(queue, (_, seconds, calls, clock))| (queue.to_owned(), (taken((seconds, 0.0, calls)), clock.clone())));
    Parts { outside: Taken { seconds: outside, calls: 1.0 }, beside: beside.collect(), places }
}

/// What measuring a workload gives.
pub(super) struct Seen {
    pub(super) compute: Compute,
    pub(super) hardware: BTreeMap<String, Figure>,
    pub(super) doubts: Vec<String>,
    /// Whether somebody stopped it before all samples were taken.
    pub(super) stopped: bool,
}

const FROM_SHAPES: &str = "the compiled plan's shapes";
const INSIDE: &str = "its loop is one kernel, and a device has no times of what is inside a kernel";
const REST: &str = "the loop's kernel, less what its parts take: waiting, inputs and results";

/// What a step of a loop that is one kernel takes of it, where that was told apart.
fn part_time(site: &Site<'_>, before: &[Op], inside: &Inside, clock: &str) -> Figure {
    let Some((step, looped)) = site.path.split_last() else { return Figure::unavailable("s", clock, INSIDE) };
    let whole = before.iter().find(|op| op.path == looped).and_then(|op| op.whole_time.as_ref());
    match (inside.loops.get(looped), whole) {
        (Some(Ok(Parted { parts, turns, .. })), Some(whole)) if *step < parts.len() => {
            let source =
                format!("what the loop's kernel takes less without it, in {turns} turns with the whole; {clock}");
            parts[*step].seconds(whole, &source, *turns)
        }
        (Some(Err(why)), _) => Figure::unavailable("s", clock, format!("{INSIDE}; {why}")),
        _ => Figure::unavailable("s", clock, INSIDE),
    }
}

impl Profiler<'_> {
    /// Measures times, work and operations; also what the counters read meanwhile, and doubts.
    pub(super) fn compute_of(&mut self, rig: &mut Rig) -> Result<Seen> {
        if let Some(counters) = &mut self.counters {
            counters.start();
        }
        let samples = self.sample(rig);
        // Counters end with the measurement, however it ended.
        let hardware = self.counters.as_mut().map(|c| c.stop()).unwrap_or_default();
        let samples = samples?;
        let inside = if samples.stopped { Inside::default() } else { self.inside(rig)? };
        let plan = rig.plan();
        let summary = stats::Summary::of(&samples.plain);
        let at = |pick: fn(&stats::Summary) -> f64| summary.as_ref().map_or(f64::NAN, pick);
        let clock = format!("system clock around {} of Session::run", times(samples.runs_per_sample));
        let time = |value: f64| Figure::measured(value, "s", clock.clone());
        let with = |figure: Figure, spread: Option<stats::Spread>| match spread {
            Some(spread) => figure.with_spread(spread),
            None => figure,
        };
        let p50 = with(time(at(|s| s.p50)), stats::median_spread(&samples.plain));
        let mean = with(time(at(|s| s.mean)), stats::mean_spread(&samples.plain));
        let outliers = stats::outliers(&samples.plain, stats::FAR).len();
        let cost = plan.cost();
        let counted = |n: u64, unit: &str| Figure::derived(n as f64, unit, FROM_SHAPES);
        let (flops, bytes) = (counted(cost.flops, "flop"), counted(cost.bytes(), "B"));

        let (ops, least) = self.ops(plan, &samples, &inside)?;
        let overhead = samples.overhead();
        let way = match samples.one_in {
            1 => "every run watched".to_owned(),
            n => format!("one run in {n} watched"),
        };
        let source = format!("watched over unwatched samples in turns, {way}");
        let watching = Figure::measured(stats::median(&overhead).unwrap_or(f64::NAN) * 100.0, "%", source);
        let percent = |s: stats::Spread| stats::Spread { low: s.low * 100.0, high: s.high * 100.0, ..s };
        let watching = with(watching, stats::median_spread(&overhead).map(percent));
        let seconds: f64 = samples.usual_blocks().map(|b| b.seconds).sum();
        let in_blocks = |b: &Block| {
            let beside: f64 = b.taken.beside.iter().map(|b| b.seconds).sum();
            b.taken.outside_s + beside + b.taken.places.iter().map(|p| p.seconds).sum::<f64>()
        };
        let attributed = samples.usual_blocks().map(in_blocks).sum::<f64>() / seconds * 100.0;
        let name = &samples.clock.source;
        let source = format!("{name} of all operations over the system clock, middle half of watched runs");
        let compute = Compute {
            time_mean: mean,
            // One sample has no deviation, which is not 0.
            time_std: time(at(|s| if s.n < 2 { f64::NAN } else { s.std })),
            time_min: time(at(|s| s.min)),
            time_p95: time(at(|s| s.p95)),
            time_p99: time(at(|s| s.p99)),
            samples: Series::measured(samples.plain.iter().copied(), "s", clock.clone()),
            runs_per_sample: Figure::measured(
                samples.runs_per_sample as f64,
                "runs",
                "runs that a sample is long enough for",
            ),
            warm_up_runs: Figure::measured(samples.warm_up_runs as f64, "runs", "runs until times no longer fell"),
            outliers: Figure::derived(
                outliers as f64,
                "samples",
                "samples over 5 median absolute deviations from the median",
            ),
            functions: counted(cost.transcendentals, "functions"),
            tflops: flops.derive2(&p50, "Tflop/s", "flops over the median time", |f, t| f / t / 1e12),
            of_roof: match least {
                Some(least) => of_limit(&p50, least, "the operations' least times over the median time"),
                None => unknown("%"),
            },
            throughput: p50.derive("sequence steps/s", "sequences × steps over the median time", |t| {
                (self.options.batch * self.options.steps) as f64 / t
            }),
            overhead: watching,
            attributed: Figure::measured(attributed, "%", source),
            flops,
            bytes,
            time_p50: p50,
            starts: None,
            ops,
            phases: inside.cost,
        };
        let doubts = self.doubts(&samples, &compute, outliers);
        Ok(Seen { compute, hardware, doubts, stopped: samples.stopped })
    }

    /// Each operation, and the least seconds of all of them where limits are known.
    fn ops(&self, plan: &Plan, samples: &Samples, inside: &Inside) -> Result<(Vec<Op>, Option<f64>)> {
        let Parts { outside, beside, mut places } = taken(samples);
        let moved: f64 = beside.iter().map(|(_, (taken, _))| taken.seconds).sum();
        let total: f64 = outside.seconds + moved + places.values().map(|t| t.seconds).sum::<f64>();
        let clock = &samples.clock;
        let share_of = |time: &Figure| time.derive("%", "of all operations' times", |t| t / total * 100.0);
        let measured = |taken: Taken, clock: &Clock, what: &str| {
            let source =
                format!("{}{what}, mean of the middle half of watched runs, without what watching cost", clock.source);
            let time = Figure::measured(taken.seconds, "s", source);
            // Times that come out of a model of the device are not measured, whoever tells of them.
            let origin = if time.value.is_some() { clock.origin } else { time.provenance };
            let time = Figure { provenance: origin, ..time }.with_resolution(clock.resolution_s);
            let share = share_of(&time);
            (time, share, Figure::measured(taken.calls, "calls", "calls counted while watched"))
        };
        let mut ops = vec![];
        let lanes = self.options.isa_here().lanes();
        // The limit of arithmetic is that of f32; narrower products may be faster.
        let ceiling = self.ceiling();
        let gain = ceiling.as_ref().and_then(|c| c.roof.bf16_gain.as_ref()?.value);
        let narrow = gain.filter(|g| self.options.dtype == DType::Bf16 && *g > 1.0).unwrap_or(1.0);
        let mut least_of_all = ceiling.is_some().then_some(0.0);
        let all = sites(plan);
        // A loop that is one kernel: the device is told once, and has no times of what is inside.
        let whole = |path: &[usize]| {
            let mut inside = all.iter().filter(|s| s.path.len() > path.len() && s.path.starts_with(path)).peekable();
            inside.peek().is_some() && inside.all(|s| !places.contains_key(&s.path))
        };
        let wholes: Vec<Vec<usize>> =
            all.iter().filter(|s| s.step.looped.is_some() && whole(&s.path)).map(|s| s.path.clone()).collect();
        for site in all {
            let step = site.step;
            let one_kernel = wholes.contains(&site.path);
            let in_one = wholes.iter().any(|path| site.path.len() > path.len() && site.path.starts_with(path));
            let taken = places.remove(&site.path);
            // Told apart, a loop has what its parts leave.
            let parted = inside.loops.get(&site.path).filter(|_| one_kernel).and_then(|found| found.as_ref().ok());
            let cost = if one_kernel && parted.is_none() { step.cost.times(site.calls) } else { site.own_cost() };
            let mut whole_time = None;
            let (taken, (self_time, share, calls)) = match taken {
                Some(taken) => {
                    let (time, share, calls) = measured(taken, clock, "");
                    match parted {
                        None => (taken, (time, share, calls)),
                        Some(parted) => {
                            let rest = parted.rest.seconds(&time, REST, parted.turns);
                            whole_time = Some(time);
                            (taken, (rest.clone(), share_of(&rest), calls))
                        }
                    }
                }
                None if in_one => {
                    let time = part_time(&site, &ops, inside, &clock.source);
                    let calls = Figure::derived(site.calls as f64, "calls", FROM_SHAPES);
                    let taken = Taken { seconds: time.value.unwrap_or(f64::NAN), calls: site.calls as f64 };
                    (taken, (time.clone(), share_of(&time), calls))
                }
                None => {
                    let what = format!("step `{}` at {:?} was not watched", step.name, site.path);
                    return Err(Error::Internal(what).into());
                }
            };
            let counted = |n: u64, unit: &str| Figure::derived(n as f64, unit, FROM_SHAPES);
            let (flops, functions) = (counted(cost.flops, "flop"), counted(cost.transcendentals, "functions"));
            let is_loop = step.looped.is_some() && (!one_kernel || parted.is_some());
            let bytes = match (is_loop, one_kernel) {
                (false, false) => counted(cost.bytes(), "B"),
                (_, true) => Figure::unavailable(
                    "B",
                    FROM_SHAPES,
                    "what the one kernel of a loop keeps near its threads, and what it reads again, is not counted",
                ),
                (true, _) => Figure::unavailable(
                    "B",
                    FROM_SHAPES,
                    "what a loop itself moves is not counted: rows are read in place, copied or transposed as its body needs",
                ),
            };
            // Of a loop that is one kernel, values that stay near its threads are no traffic; nor does a part of it have to be
            // begun.
            let mut least = ceiling
                .as_ref()
                .and_then(|c| c.least(&step.cost, step.kernel.is_integer_product(), taken.calls))
                .map(|l| Least {
                    compute: l.compute / narrow,
                    memory: if one_kernel || in_one { 0.0 } else { l.memory },
                    overhead: if in_one { 0.0 } else { l.overhead },
                    ..l
                });
            if !in_one && (!is_loop || one_kernel) {
                least_of_all = least_of_all.zip(least).map(|(sum, l)| sum + l.work());
            }
            // What a part of such a loop moves near the threads has no limit that was measured.
            if is_loop || in_one && (self_time.value.is_none() || least.is_some_and(|l| l.work() == 0.0)) {
                least = None;
            }
            let (dtype, shape) = step.out.split_at(step.out.find('[').unwrap_or(step.out.len()));
            let none = |unit: &str| {
                if is_loop {
                    Figure::unavailable(unit, "roofline", "a loop's own work is not counted")
                } else if let Some(why) = self_time.reason.as_ref().filter(|_| in_one) {
                    Figure::unavailable(unit, "roofline", why.clone())
                } else if in_one && ceiling.is_some() {
                    Figure::unavailable(
                        unit,
                        "roofline",
                        "it only moves values inside of a kernel, whose limit nobody measured",
                    )
                } else {
                    unknown(unit)
                }
            };
            ops.push(Op {
                name: step.name.clone(),
                op: step.op.clone(),
                kernel: step.kernel.to_string(),
                kind: KernelKind::of(&step.kernel),
                idle_lanes: idle_lanes(&step.kernel, lanes).filter(|_| self.options.backend.is_cpu()),
                shape: shape.into(),
                dtype: dtype.into(),
                within: site.within.map(|s| s.name.clone()),
                share,
                calls,
                gflops: flops.derive2(&self_time, "Gflop/s", "flops over its time", |f, t| f / t / 1e9),
                gbps: bytes.derive2(&self_time, "GB/s", "bytes over its time", |b, t| b / t / 1e9),
                bound: match (is_loop, least) {
                    (true, _) => Bound::Overhead,
                    (_, Some(least)) => least.bound(),
                    (_, None) => Bound::Unknown,
                },
                of_roof: least
                    .map_or_else(|| none("%"), |l| of_limit(&self_time, l.work(), "its least time over the measured")),
                predicted: least.map_or_else(
                    || none("s"),
                    |l| Figure::predicted(l.work() + l.overhead, "s", "roofline and the cost of its calls"),
                ),
                path: site.path,
                self_time,
                whole_time,
                flops,
                functions,
                bytes,
            });
        }
        for (queue, (taken, clock)) in beside.into_iter().rev() {
            ops.insert(0, beside_op(&queue, measured(taken, &clock, "")));
        }
        let on_cpu = self.options.backend.is_cpu();
        let what = if on_cpu { "" } else { " of whole runs, less all that is below" };
        let mut run = run_op(measured(outside, &samples.host_clock, what));
        if !on_cpu {
            run.kernel = "the call itself: checks, and the wait until the device's end is seen".into();
        }
        ops.insert(0, run);
        Ok((ops, least_of_all))
    }

    fn doubts(&self, samples: &Samples, compute: &Compute, outliers: usize) -> Vec<String> {
        let mut doubts = vec![];
        let summary = stats::Summary::of(&samples.plain);
        let at = |pick: fn(&stats::Summary) -> f64| summary.as_ref().map_or(f64::NAN, pick);
        let (least, median, taken) = (at(|s| s.min), at(|s| s.p50), samples.plain.len());
        if median > 1.2 * least {
            let times = median / least;
            doubts.push(format!(
                "the median time is {times:.2} times the least: something else was running; close it, or measure longer"
            ));
        }
        if !samples.settled {
            doubts.push("times were still falling when measuring began; give more seconds".into());
        }
        if outliers * 20 > taken {
            let text = "are far from the others; p95 and p99 describe the disturbance, not the model";
            doubts.push(format!("{outliers} of {taken} samples {text}"));
        }
        if taken < self.options.runs && !samples.stopped {
            let (got, wanted, seconds) = (taken, self.options.runs, self.options.seconds);
            doubts.push(format!("{got} of {wanted} samples were taken in {seconds} s; give more seconds for all"));
        }
        if let Some(part) = compute.attributed.value.filter(|a| (a - 100.0).abs() > 3.0) {
            doubts.push(format!("the operations' times sum to {part:.1}% of the runs'; expected 97% to 103%"));
        }
        let sum: f64 = compute.ops.iter().filter_map(|op| op.self_time.value).sum();
        let beside = sum / median * 100.0;
        if (beside - 100.0).abs() > 5.0 {
            doubts.push(format!(
                "the operations' times sum to {beside:.0}% of the median unwatched run: watched and unwatched runs met \
                 different conditions; measure again on a quiet machine"
            ));
        }
        // Only what is surely over the limit is worth a word.
        let surely = compute.overhead.spread.map(|s| s.low).or(compute.overhead.value);
        if let Some(percent) = surely.filter(|p| *p > 5.0) {
            doubts.push(format!("watching added {percent:.1}% or more to a run; the operations' times may be off"));
        }
        doubts
    }
}

/// Of the lanes that a product computes with, how many hold nothing, in %.
fn idle_lanes(kernel: &Kernel, lanes: usize) -> Option<Figure> {
    let (used, registers, what) = match kernel {
        Kernel::Product(p) => (p.n, p.n.div_ceil(lanes), format!("{} columns", p.n)),
        Kernel::GatedCell(c) if c.batch == BatchAxis::Last => {
            (c.rows, c.rows.div_ceil(lanes), format!("{} rows", c.rows))
        }
        Kernel::GatedCell(c) => {
            // Whole registers of each head, and what is left of the three together.
            let registers = 3 * (c.units / lanes) + (3 * (c.units % lanes)).div_ceil(lanes);
            (3 * c.units, registers, format!("3 × {} units", c.units))
        }
        _ => return None,
    };
    let idle = 1.0 - used as f64 / (registers * lanes).max(1) as f64;
    Some(Figure::derived(idle * 100.0, "%", format!("{what} where registers have {lanes} lanes")))
}

/// What a queue does beside the steps.
fn beside_op(queue: &str, figures: (Figure, Figure, Figure)) -> Op {
    let (kernel, kind) = match queue {
        "upload" => ("inputs to the device, as the host saw it", KernelKind::Move),
        "download" => ("results to the host, as the host saw it", KernelKind::Move),
        "submission" => ("handing kernels to the driver", KernelKind::Call),
        _ => ("what belongs to no step", KernelKind::Move),
    };
    Op { name: format!("({queue})"), op: queue.into(), kernel: kernel.into(), kind, ..run_op(figures) }
}

/// What a run does outside its steps.
fn run_op((self_time, share, calls): (Figure, Figure, Figure)) -> Op {
    let none = |unit: &str| Figure::unavailable(unit, "roofline", "a run's own work is not counted");
    Op {
        name: "(run)".into(),
        op: "run".into(),
        kernel: "the call itself: checks, inputs, outputs, states".into(),
        kind: KernelKind::Call,
        idle_lanes: None,
        shape: String::new(),
        dtype: String::new(),
        path: vec![],
        within: None,
        self_time,
        whole_time: None,
        share,
        calls,
        flops: Figure::derived(0.0, "flop", FROM_SHAPES),
        functions: Figure::derived(0.0, "functions", FROM_SHAPES),
        bytes: none("B"),
        gflops: none("Gflop/s"),
        gbps: none("GB/s"),
        bound: Bound::Overhead,
        of_roof: none("%"),
        predicted: none("s"),
    }
}

fn unknown(unit: &str) -> Figure {
    Figure::unavailable(unit, "roofline", "this machine's limits were not measured for this profile")
}

fn times(n: usize) -> String {
    if n == 1 { "each run".into() } else { format!("every {n} runs") }
}
