//! What a plan would take on a device: the units of its steps at that device's prices, as a band from low to high with
//! the reasons for its width.
//!
//! On the calibrated machine the prices are the calibration's, and the band is the error with which they give graphs
//! that were held back from the fit. On a catalogued device they are scaled from it: arithmetic, functions and caches by
//! the peak of a core, overhead by the clock, memory by what one core, or all, can have of it. Which of the two a piece
//! of work follows is an assumption, so the band reaches from the better of the two scales to the worse, and further by
//! an allowance for cores of another design. A kernel without a price makes the whole unavailable, and is named.

use super::calibrate::Calibration;
use super::catalog::Entry;
use super::fit::{self, Counted, Kind, Prices, Target, Unit};
use super::levels::least_seconds;
use super::roof::{of_limit, words};
use crate::profile::Bound;
use schwann_core::Figure;
use schwann_core::figure::{Ends, Spread};
use schwann_core::plan::Plan;
use schwann_kernels::tuning::{MachineClass, Tuning};
use serde::Serialize;

/// What a chip that this does not run on is tuned with.
const TUNING: Tuning = Tuning::for_machine(MachineClass::Portable);

/// No prediction claims to be nearer than this, a logarithm of the ratio.
const LEAST_ERROR: f64 = 0.1;
/// What speaks against a calibration widens the band by so many times.
const DISTURBED: f64 = 2.0;
/// A condition number of the fit above this is worth a word.
const ILL: f64 = 1e4;
/// Cores of another design do the same work in so many times as long, or as short. An allowance: nobody measured it.
const DESIGN: f64 = 1.5;
/// How far a published measurement of a core's bandwidth may be off, as a factor. An allowance, too.
const PUBLISHED: f64 = 1.2;

/// Beside each device that nobody has held a prediction against.
pub const NEVER_COMPARED: &str = "never compared with a real one";

/// Why there is no figure for the Neural Engine.
pub const NEURAL_ENGINE: &str =
    "recurrent loops cannot run on the Neural Engine today, and nothing here measures it; it is not predicted";
/// Why there is no time for a GPU.
pub const GPU: &str = "the engine does not run on GPUs yet; the peak is what was published";

/// A memory level as predictions see it.
#[derive(Clone, Debug, PartialEq)]
struct Reach {
    capacity: Option<usize>,
    bytes_per_s: f64,
}

/// Kinds of work: those of [`Kind`], and bytes from beyond the second-level cache.
const KINDS: usize = 5;
const FAR: usize = 4;

/// A device with so many threads, as predictions see it.
#[derive(Clone, Debug)]
pub struct Speed {
    /// The device.
    pub device: String,
    /// Whether it is the calibrated machine.
    pub host: bool,
    /// Threads.
    pub threads: usize,
    /// Peak arithmetic of these threads, flop/s.
    pub peak_flops: Figure,
    /// What the prices rest on.
    pub source: String,
    /// Why the band is as wide as it is.
    pub reasons: Vec<String>,
    prices: Prices,
    target: Target,
    /// Cache sizes to count with for the band's high end, where the device's own are not known.
    small: Option<Target>,
    levels: Vec<Reach>,
    /// How many times as fast these threads are as one, at best.
    parallel: f64,
    /// Times of each kind of work at the band's ends, over the likely ones.
    low: [f64; KINDS],
    high: [f64; KINDS],
    /// Graphs that the errors were found with.
    samples: u64,
}

impl Speed {
    /// The calibrated machine.
    pub fn host(calibration: &Calibration, threads: usize) -> Speed {
        let roof = calibration.roof(threads);
        let (error, mut reasons) = calibration_error(calibration);
        let (factor, parallel) = (error.exp(), parallel(calibration, threads));
        let target = calibration.target();
        if target.l1.is_none() || target.l2.is_none() {
            reasons
                .push("the sizes of this machine's caches are not known: weights have one price at every size".into());
        }
        let mut speed = Speed {
            device: calibration.fingerprint.cpu.clone(),
            host: true,
            threads,
            peak_flops: roof.flops,
            source: format!("{}, prices of each unit of work fitted to a suite of small graphs", calibration.source()),
            reasons,
            prices: calibration.prices.clone(),
            target,
            small: None,
            levels: reaches(calibration, threads),
            parallel,
            low: [1.0 / factor; KINDS],
            high: [factor; KINDS],
            samples: calibration.suite.len() as u64,
        };
        speed.several_threads();
        speed
    }

    /// A catalogued device, scaled from the calibrated machine; the reason where too little is published of it.
    pub fn catalogued(entry: &Entry, calibration: &Calibration, threads: usize) -> Result<Speed, String> {
        let core = entry.core_flops();
        let missing = |what: &str| format!("{what} of {} is not known", entry.name);
        let clock = entry.clock.first().ok_or_else(|| missing("the clock"))?;
        let per_core =
            core.value.ok_or_else(|| core.reason.clone().unwrap_or_else(|| missing("the peak of a core")))?;
        let chip = entry.memory_bandwidth.first().ok_or_else(|| missing("the memory bandwidth"))?;
        let host = calibration.limits(1).ok_or("the calibration has no limits")?;
        let cores = entry.performance_cores.first().map_or(1.0, |c| c.value);
        let parallel = (threads.max(1) as f64).min(cores);
        let peak = per_core / host.flops_per_s;
        let tempo = clock.value * 1e9 / calibration.clock_hz;
        let scale = |kind: Kind| match kind {
            Kind::Compute | Kind::Functions | Kind::Cache => Some(peak),
            Kind::Overhead => Some(tempo),
            // Nothing that is published tells how fast it is there.
            Kind::Narrow => None,
        };
        let scaled = |(unit, price): (&Unit, &f64)| Some((*unit, price / scale(unit.kind())?));
        let prices = calibration.prices.iter().filter_map(scaled).collect();
        let (error, mut reasons) = calibration_error(calibration);
        let (better, worse) = (peak.max(tempo), peak.min(tempo));
        let widened = |scale: f64| (scale / better / DESIGN / error.exp(), scale / worse * DESIGN * error.exp());
        let [(low, high), (overhead_low, overhead_high)] = [widened(peak), widened(tempo)];
        reasons.push(format!(
            "work was scaled by the peak of a core (× {}) and calls by its clock (× {}); the band reaches from the better of \
             the two for everything to the worse, and × {DESIGN} either way for a core of another design",
            two_digits(peak),
            two_digits(tempo)
        ));
        reasons.push("the plan is the one for this machine's registers".into());
        let (memory, fastest, slowest, how) = memory(entry, chip.value, calibration, threads, &mut reasons);
        let own = Target { l1: entry.l1_bytes(), l2: entry.l2_bytes(), ..calibration.target() };
        let small = (own.l1.is_none() || own.l2.is_none()).then(|| {
            reasons.push(format!(
                "cache sizes of {} are not published: the band reaches from weights that all lie near to caches as small as \
                 this machine's",
                entry.name
            ));
            let host = calibration.target();
            Target { l1: own.l1.or(host.l1), l2: own.l2.or(host.l2), ..host }
        });
        // Caches at the host's speed, scaled; beyond the last that is known, main memory.
        let near = ["L1", "L2"].into_iter().zip([own.l1, own.l2]).filter_map(|(name, capacity)| {
            let level = host.levels.iter().find(|l| l.name == name)?;
            let bytes_per_s = (level.bytes_per_s() * peak * parallel).max(memory);
            Some(Reach { capacity: Some(capacity?), bytes_per_s })
        });
        let mut levels: Vec<Reach> = near.collect();
        levels.push(Reach { capacity: None, bytes_per_s: memory });
        let source = format!(
            "scaled from the {}: arithmetic, functions and caches × {peak:.2} (peak of a fast core, {}), overhead × {tempo:.2} \
             (clock), {how}; {NEVER_COMPARED}",
            calibration.source(),
            core.source,
        );
        let mut speed = Speed {
            device: entry.name.clone(),
            host: false,
            threads,
            peak_flops: core
                .derive("flop/s", format!("{}, {} on fast cores", core.source, words(threads)), |f| f * parallel),
            source,
            reasons,
            prices,
            target: own,
            small,
            levels,
            parallel,
            low: [low, low, low, overhead_low, memory / fastest],
            high: [high, high, high, overhead_high, memory / slowest],
            samples: calibration.suite.len() as u64,
        };
        speed.several_threads();
        Ok(speed)
    }

    /// How well threads share the work is not priced: at the high end they bring half of what they could.
    fn several_threads(&mut self) {
        if self.parallel > 1.0 {
            let half = self.parallel / (1.0 + (self.parallel - 1.0) / 2.0);
            self.high.iter_mut().for_each(|h| *h *= half);
            self.reasons.push(format!(
                "how well {} share the work is not priced: at the high end they bring half of what they could",
                words(self.threads)
            ));
        }
    }

    /// Seconds a byte beyond the second-level cache, over a working set of so many bytes.
    fn far_price(&self, working_set: usize) -> Option<f64> {
        let set = working_set.max(self.target.l2.map_or(0, |l2| l2 + 1));
        self.levels.iter().find(|l| l.capacity.is_none_or(|c| set <= c)).map(|l| 1.0 / l.bytes_per_s)
    }

    /// Seconds of a step by kind of work, or why it has no price.
    fn seconds(&self, step: &Counted<'_>) -> Result<[f64; KINDS], String> {
        if let Some(why) = &step.unpriced {
            return Err(why.clone());
        }
        let name = |unit: Unit| match unit.kind() {
            Kind::Narrow if !self.host => format!(
                "how fast {} multiplies types narrower than f32 is not published (`{}`, {})",
                self.device, step.step.name, step.step.kernel
            ),
            _ => format!("the calibration has no price for {unit:?} of `{}`", step.step.kernel),
        };
        let mut by = [0.0f64; KINDS];
        let beyond = || {
            let set = schwann_core::plan::bytes(step.working_set as u64);
            format!("`{}` works in {set}, and the speed of memory beyond the caches was not measured", step.step.name)
        };
        for (&unit, n) in &step.counts {
            if unit == Unit::RowByteFar {
                let near = self.prices.get(&Unit::RowByteL2).copied().ok_or_else(|| name(unit))?;
                let far = self.far_price(step.working_set).ok_or_else(beyond)?;
                by[if far > near { FAR } else { kind_index(Kind::Cache) }] += n * near.max(far);
            } else {
                by[kind_index(unit.kind())] += n * self.prices.get(&unit).copied().ok_or_else(|| name(unit))?;
            }
        }
        let parallel = match step.blocks {
            // Blocks are dealt out whole: three blocks on two threads take as long as two on one.
            Some(blocks) => (blocks as f64 / blocks.div_ceil(self.threads.max(1)).max(1) as f64).min(self.parallel),
            None => {
                let cost = &step.step.cost;
                let each = TUNING.transcendental_operations() as f64;
                let work = cost.flops as f64 + each * cost.transcendentals as f64;
                self.parallel.min((work / TUNING.loop_thread_operations_least() as f64).floor()).max(1.0)
            }
        };
        by.iter_mut().for_each(|s| *s /= parallel);
        // Data that no near cache holds comes no faster than its level gives it.
        let own = step.step.cost.bytes();
        let set = step.working_set.max(usize::try_from(own).unwrap_or(usize::MAX));
        if step.step.looped.is_none() && self.target.l2.is_some_and(|l2| set > l2) {
            let least = own as f64 * step.calls * self.far_price(set).ok_or_else(beyond)?;
            let total: f64 = by.iter().sum();
            if least > total {
                by[FAR] += least - total;
            }
        }
        Ok(by)
    }
}

/// The error of a machine's own prices, a logarithm of the ratio, and where it comes from.
fn calibration_error(c: &Calibration) -> (f64, Vec<String>) {
    let percent = |e: f64| format!("{:.0}%", 100.0 * e.exp_m1());
    let mut reasons = vec![format!(
        "prices give nine of ten graphs that they were not fitted to within {} (condition number {:.0})",
        percent(c.held_back_error),
        c.condition
    )];
    let mut error = c.held_back_error.max(LEAST_ERROR);
    if c.condition.is_nan() || c.condition > ILL {
        reasons.push(
            "the suite hardly tells some of the prices apart: single operations are less sure than their sum".into(),
        );
    }
    let doubts = c.conditions.doubts();
    if !doubts.is_empty() {
        error *= DISTURBED;
        reasons.push(format!("the calibration was disturbed: {}", doubts.join("; ")));
    }
    if c.pace == super::Pace::Quick {
        error *= DISTURBED;
        reasons.push("the calibration is a quick one, and rough".into());
    }
    (error, reasons)
}

fn parallel(calibration: &Calibration, threads: usize) -> f64 {
    match (calibration.limits(1), calibration.limits(threads)) {
        (Some(one), Some(all)) => (all.flops_per_s / one.flops_per_s).clamp(1.0, threads.max(1) as f64),
        _ => 1.0,
    }
}

/// Memory as so many threads of the calibrated machine reach it: never more than one thread's, times the threads.
fn reaches(calibration: &Calibration, threads: usize) -> Vec<Reach> {
    let one = calibration.limits(1).map(|l| &l.levels[..]).unwrap_or_default();
    let all = calibration.limits(threads).map(|l| &l.levels[..]).unwrap_or_default();
    let reach = |l: &super::roof::Level| {
        let alone = one.iter().find(|o| o.name == l.name).map_or(f64::INFINITY, super::roof::Level::bytes_per_s);
        Reach { capacity: l.capacity_bytes, bytes_per_s: l.bytes_per_s().min(alone * threads.max(1) as f64) }
    };
    all.iter().map(reach).collect()
}

/// B/s of main memory for so many threads of a device: likely, at most and at least, and how that is known.
fn memory(
    entry: &Entry,
    chip_gbps: f64,
    calibration: &Calibration,
    threads: usize,
    reasons: &mut Vec<String>,
) -> (f64, f64, f64, String) {
    let (chip, threads) = (chip_gbps * 1e9, threads.max(1) as f64);
    if let Some(core) = entry.core_bandwidth.first() {
        let likely = (core.value * 1e9 * threads).min(chip);
        let how = format!("memory {} GB/s a core ({}), {chip_gbps} for the chip", core.value, core.source);
        reasons.push(format!(
            "memory: a core's {} GB/s are somebody else's measurement, taken as right to a factor of {PUBLISHED}",
            core.value
        ));
        return (likely, likely * PUBLISHED, likely / PUBLISHED, how);
    }
    let here = calibration.limits(1).and_then(|l| l.levels.iter().find(|l| l.capacity_bytes.is_none()));
    let likely = here.map_or(chip / 2.0, |l| (l.bytes_per_s() * threads).min(chip));
    reasons.push(format!(
        "what one core of {} can have of the chip's {chip_gbps} GB/s is not published: from half of this machine's core to \
         all of the chip's",
        entry.name
    ));
    let from = if here.is_some() { "as a core of this machine" } else { "half of the chip's" };
    (likely, chip, likely / 2.0, format!("memory {} GB/s ({from}), {chip_gbps} for the chip", two_digits(likely / 1e9)))
}

/// A number as it may be told of a prediction: two digits, no more.
pub fn two_digits(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return format!("{value}");
    }
    let rounded = rounded(value);
    let places = (1 - rounded.abs().log10().floor() as i32).clamp(0, 12) as usize;
    format!("{rounded:.places$}")
}

/// Rounded to two digits.
pub fn rounded(value: f64) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return value;
    }
    let scale = 10f64.powi(value.abs().log10().floor() as i32 - 1);
    let rounded = (value / scale).round() * scale;
    // At either end of what a number can be, there is no such scale.
    if rounded.is_finite() { rounded } else { value }
}

fn kind_index(kind: Kind) -> usize {
    match kind {
        Kind::Compute | Kind::Narrow => 0,
        Kind::Functions => 1,
        Kind::Cache => 2,
        Kind::Overhead => 3,
    }
}

/// One operation's predicted time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpTime {
    /// The node it computes.
    pub name: String,
    /// Its operation; of a loop, what the loop costs beside its body.
    pub op: String,
    /// The kernel.
    pub kernel: String,
    /// Its place in the plan: step, and in loops the step of the body.
    pub path: Vec<usize>,
    /// Its loop's node, where it is in one.
    pub within: Option<String>,
    /// Calls of a run.
    pub calls: Figure,
    /// Seconds of a run, all its calls together.
    pub time: Figure,
    /// Of the run, in %.
    pub share: Figure,
    /// What it mostly is.
    pub bound: Bound,
}

/// What a plan would take on a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The device.
    pub device: String,
    /// Whether it is the calibrated machine.
    pub host: bool,
    /// Threads.
    pub threads: usize,
    /// Each operation, in the order it runs. Empty where nothing can be predicted.
    pub ops: Vec<OpTime>,
    /// What a run costs beside its operations, in seconds.
    pub overhead: Figure,
    /// The run, in seconds: the operations and the overhead. Its spread is the band.
    pub time: Figure,
    /// Why the band is as wide as it is.
    pub reasons: Vec<String>,
    /// Tflop/s.
    pub tflops: Figure,
    /// GB/s.
    pub bandwidth: Figure,
    /// The greater share of the device's own peaks in use, in %.
    pub utilization: Figure,
    /// The Neural Engine's share, in %.
    pub neural_engine: Figure,
}

impl Prediction {
    /// The operations that take longest, greatest first.
    pub fn slowest(&self, most: usize) -> Vec<&OpTime> {
        let mut ops: Vec<&OpTime> = self.ops.iter().collect();
        ops.sort_by(|a, b| b.time.value.unwrap_or(0.0).total_cmp(&a.time.value.unwrap_or(0.0)));
        ops.truncate(most);
        ops
    }

    /// A device that too little is known of, or a plan that has no price, with the reason.
    pub fn unavailable(device: &str, threads: usize, reason: &str) -> Prediction {
        let none = |unit: &str| Figure::unavailable(unit, device, reason);
        Prediction {
            device: device.into(),
            host: false,
            threads,
            ops: vec![],
            overhead: none("s"),
            time: none("s"),
            reasons: vec![],
            tflops: none("Tflop/s"),
            bandwidth: none("GB/s"),
            utilization: none("%"),
            neural_engine: Figure::unavailable("%", "Neural Engine", NEURAL_ENGINE),
        }
    }
}

/// Seconds by kind of work: of each step, and of all with what a run itself costs.
type Priced<'a> = (Vec<(Counted<'a>, [f64; KINDS])>, [f64; KINDS], f64);

fn price<'a>(plan: &'a Plan, speed: &Speed, target: &Target) -> Result<Priced<'a>, String> {
    let (run, steps) = fit::count(plan, target);
    let none = |unit| format!("the calibration has no price for {unit:?}");
    let overhead = fit::seconds(&run, &speed.prices).map_err(none)?;
    let steps: Vec<_> = steps.into_iter().map(|s| speed.seconds(&s).map(|by| (s, by))).collect::<Result<_, _>>()?;
    let mut all = [0.0; KINDS];
    all[kind_index(Kind::Overhead)] = overhead;
    for (_, by) in &steps {
        all.iter_mut().zip(by).for_each(|(sum, s)| *sum += s);
    }
    Ok((steps, all, overhead))
}

/// What a plan takes on a device.
pub fn predict(plan: &Plan, speed: &Speed) -> Prediction {
    let (steps, all, overhead) = match price(plan, speed, &speed.target) {
        Ok(priced) => priced,
        Err(why) => {
            return Prediction { host: speed.host, ..Prediction::unavailable(&speed.device, speed.threads, &why) };
        }
    };
    let weigh = |by: &[f64; KINDS], factors: &[f64; KINDS]| by.iter().zip(factors).map(|(s, f)| s * f).sum::<f64>();
    let total: f64 = all.iter().sum();
    let small = speed.small.as_ref().and_then(|target| price(plan, speed, target).ok());
    let high = small.map_or(0.0, |(_, all, _)| weigh(&all, &speed.high)).max(weigh(&all, &speed.high));
    let predicted = |value: f64, unit: &str| Figure::predicted(value, unit, speed.source.clone());
    let ops = steps.iter().map(|(step, by)| {
        let seconds: f64 = by.iter().sum();
        OpTime {
            name: step.step.name.clone(),
            op: step.step.op.clone(),
            kernel: step.step.kernel.to_string(),
            path: step.path.clone(),
            within: step.within.map(str::to_owned),
            calls: Figure::derived(step.calls, "calls", "the plan"),
            time: predicted(seconds, "s"),
            share: predicted(100.0 * seconds / total, "%"),
            bound: bound(by),
        }
    });
    let ops = ops.collect();
    let cost = plan.cost();
    let band = Spread { low: weigh(&all, &speed.low), high, ends: Ends::Band, samples: speed.samples };
    let time = predicted(total, "s").with_spread(band);
    let rate = |work: u64, unit: &str, scale: f64| {
        time.derive(unit, format!("the plan's work over the predicted time; {}", speed.source), |t| {
            work as f64 / t / scale
        })
    };
    Prediction {
        device: speed.device.clone(),
        host: speed.host,
        threads: speed.threads,
        ops,
        overhead: predicted(overhead, "s"),
        tflops: rate(cost.flops, "Tflop/s", 1e12),
        bandwidth: rate(cost.bytes(), "GB/s", 1e9),
        utilization: utilization(&steps, speed, &time),
        time,
        reasons: speed.reasons.clone(),
        neural_engine: Figure::unavailable("%", "Neural Engine", NEURAL_ENGINE),
    }
}

/// The greater of the least times that arithmetic and memory take, over the predicted time.
fn utilization(steps: &[(Counted<'_>, [f64; KINDS])], speed: &Speed, time: &Figure) -> Figure {
    let Some(peak) = speed.peak_flops.value else { return speed.peak_flops.derive("%", "arithmetic", |p| p) };
    let levels = || speed.levels.iter().map(|l| (l.capacity.map(|c| c as u64), l.bytes_per_s));
    let (mut arithmetic, mut memory) = (0.0, Some(0.0));
    for (step, _) in steps.iter().filter(|(s, _)| s.step.looped.is_none()) {
        let cost = &step.step.cost;
        arithmetic += cost.flops.saturating_sub(cost.transcendentals) as f64 * step.calls / peak;
        let least = least_seconds(levels(), cost.bytes());
        memory = memory.zip(least).map(|(sum, s): (f64, f64)| sum + s * step.calls);
    }
    let (least, what) = match memory {
        Some(memory) if memory > arithmetic => (memory, "memory"),
        _ => (arithmetic, "arithmetic"),
    };
    of_limit(time, least, &format!("{what}: the least time by {}, over the predicted", speed.peak_flops.source))
}

fn bound(by: &[f64; KINDS]) -> Bound {
    let kinds = [Bound::Compute, Bound::Functions, Bound::Memory, Bound::Overhead, Bound::Memory];
    let most = by.iter().zip(kinds).max_by(|a, b| a.0.total_cmp(b.0));
    match most {
        Some((seconds, kind)) if *seconds > 0.0 => kind,
        _ => Bound::Unknown,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::calibrate::tests::made_up;
    use crate::device::catalog::Catalog;
    use crate::models::{INPUTS, Sizes, built_in};
    use schwann_core::{Bindings, CompileOptions, DType, GraphBuilder, Program, Tensor};
    use schwann_kernels::Isa;
    use schwann_nn::{GraphOptions, InitialState};

    pub(in crate::device) fn plan(name: &str, batch: usize, steps: usize, threads: usize) -> Plan {
        let model = built_in(name, &Sizes::default()).unwrap().unwrap();
        let graph = model.graph(&GraphOptions::default().state(InitialState::Zero)).unwrap();
        let program = Program::compile(&graph, &CompileOptions::default().threads(threads)).unwrap();
        program.plan(&Bindings::new().with("B", batch).with("T", steps).with("C", INPUTS)).unwrap()
    }

    #[test]
    fn a_tiny_plan_costs_what_a_hand_counts() {
        // y = tanh(x) for 64 floats: one map of one function.
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, &[64][..]).unwrap();
        let y = b.tanh(x).unwrap();
        b.output("y", y).unwrap();
        let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
        let p = predict(&program.plan(&Bindings::new()).unwrap(), &Speed::host(&made_up(), 1));
        // A call, 64 functions (each a flop that is counted as a function), 256 bytes in and 256 out.
        let op = 20e-9 + 64.0 * 0.5e-9 + 512.0 * 0.01e-9;
        let run = 100e-9 + 2.0 * 10e-9;
        assert!((p.ops[0].time.value.unwrap() - op).abs() < 1e-15, "{:?}", p.ops[0]);
        assert!((p.overhead.value.unwrap() - run).abs() < 1e-15);
        assert!((p.time.value.unwrap() - op - run).abs() < 1e-15);
        assert_eq!(p.ops[0].bound, Bound::Functions);
        assert!((p.tflops.value.unwrap() - 64.0 / (op + run) / 1e12).abs() < 1e-12);
    }

    #[test]
    fn a_product_costs_what_a_hand_counts() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, &[1, 8][..]).unwrap();
        let w = b.weight("w", Tensor::zeros(DType::F32, &[8, 32]).unwrap()).unwrap();
        let y = b.matmul(x, w).unwrap();
        b.output("y", y).unwrap();
        let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
        let p = predict(&program.plan(&Bindings::new()).unwrap(), &Speed::host(&made_up(), 1));
        // One row: a call, 8 rounds over one panel, 8 × 32 floats of weights in the first level.
        let op = 30e-9 + 8.0 * 1e-9 + 8.0 * 32.0 * 4.0 * 0.01e-9;
        assert!((p.ops[0].time.value.unwrap() - op).abs() < 1e-15, "{:?}", p.ops[0]);
    }

    #[test]
    fn operations_and_overhead_add_up_and_nothing_is_negative() {
        for name in ["P", "W", "L"] {
            for (batch, steps, threads) in [(1, 1, 1), (1, 16, 1), (32, 16, 1), (256, 64, 2)] {
                let plan = plan(name, batch, steps, threads);
                let speed = Speed::host(&made_up(), threads);
                let p = predict(&plan, &speed);
                let sum: f64 = p.ops.iter().map(|op| op.time.value.unwrap()).sum();
                let total = p.time.value.unwrap();
                assert!((sum + p.overhead.value.unwrap() - total).abs() < 1e-12 * total.max(1.0));
                assert!(p.ops.iter().all(|op| op.time.value.unwrap() >= 0.0) && total > 0.0);
                let loops = plan.steps.iter().filter_map(|s| s.looped.as_ref());
                let inner: usize = loops.map(|l| l.body.steps.len()).sum();
                assert_eq!(p.ops.len(), plan.steps.len() + inner, "bodies stand beside their loops");
                assert!(p.neural_engine.reason.as_deref().is_some_and(|r| r.contains("loops")));
            }
        }
    }

    #[test]
    fn more_sequences_and_more_steps_take_longer_and_more_threads_do_not() {
        for name in ["P", "W", "L"] {
            let time = |batch, steps, threads| {
                predict(&plan(name, batch, steps, threads), &Speed::host(&made_up(), threads)).time.value.unwrap()
            };
            let batches: Vec<f64> = [1, 32, 64, 128, 256].map(|b| time(b, 16, 1)).into();
            assert!(batches.windows(2).all(|w| w[0] < w[1]), "{name} {batches:?}");
            let steps: Vec<f64> = [1, 4, 16, 64].map(|t| time(32, t, 1)).into();
            assert!(steps.windows(2).all(|w| w[0] < w[1]), "{name} {steps:?}");
            assert!(time(256, 64, 2) < time(256, 64, 1), "{name}");
        }
    }

    #[test]
    fn kernels_descriptions_are_read_as_the_backend_writes_them() {
        // What matters is that products, synapses and loops of real plans are recognized, whatever the machine.
        for (name, batch, units) in [
            ("P", 1, &[Unit::RowCall, Unit::MapFunction, Unit::GatedCall, Unit::GatedFunction, Unit::LoopStep][..]),
            ("P", 64, &[Unit::ProductCall, Unit::ProductTile, Unit::ProductWork, Unit::MapFunction, Unit::GatedWork]),
            ("W", 1, &[Unit::GatedCall, Unit::GatedFunction, Unit::RowByteL1, Unit::LoopStep]),
            ("W", 64, &[Unit::GatedCall, Unit::GatedWork, Unit::GatedFunction, Unit::LoopStep]),
            ("L", 1, &[Unit::SynapseCall, Unit::MapDivide]),
            ("L", 64, &[Unit::SynapseCall, Unit::SynapseRow, Unit::MapDivide]),
        ] {
            let plan = plan(name, batch, 4, 1);
            let target = Target { lanes: Isa::detect().lanes(), panel: 4, l1: Some(32 << 10), l2: Some(1 << 20) };
            let (_, steps) = fit::count(&plan, &target);
            for unit in units {
                let total: f64 = steps.iter().filter_map(|s| s.counts.get(unit)).sum();
                assert!(total > 0.0, "{name} at {batch}: no {unit:?}");
            }
            let work = |unit| steps.iter().filter_map(|s| s.counts.get(unit)).sum::<f64>();
            let products = work(&Unit::ProductWork) + work(&Unit::GatedWork);
            assert!(2.0 * products >= 0.8 * plan.cost().flops as f64 || !units.contains(&Unit::GatedWork));
        }
    }

    #[test]
    fn a_catalogued_device_is_scaled_by_what_is_published_and_says_so() {
        let catalog = Catalog::own().unwrap();
        let (m1, calibration) = (catalog.find("M1").unwrap(), made_up());
        let speed = Speed::catalogued(m1, &calibration, 1).unwrap();
        for word in
            ["3.2 GHz", "68.25 for the chip", NEVER_COMPARED, "scaled from the calibration of made up", "estimate"]
        {
            assert!(speed.source.contains(word), "{word}: {}", speed.source);
        }
        // The made-up machine has M1's clock, and its peak is 100 Gflop/s to M1's 102.4: nearly the same times.
        let plan = plan("P", 32, 16, 1);
        let (here, there) = (predict(&plan, &Speed::host(&calibration, 1)), predict(&plan, &speed));
        let ratio = here.time.value.unwrap() / there.time.value.unwrap();
        assert!((1.0..1.03).contains(&ratio), "{ratio}");
        assert!(Speed::catalogued(catalog.find("M5 Max").unwrap(), &calibration, 1).unwrap_err().contains("clock"));
    }

    #[test]
    fn a_band_holds_the_likely_time_and_says_why_it_is_wide() {
        let (plan, quiet) = (plan("P", 32, 16, 1), made_up());
        let width = |c: &Calibration| {
            let p = predict(&plan, &Speed::host(c, 1));
            let (likely, band) = (p.time.value.unwrap(), p.time.spread.unwrap());
            assert!(band.low < likely && likely < band.high && band.ends == Ends::Band, "{:?}", p.time);
            assert!(!p.reasons.is_empty());
            (band.high / band.low, p.reasons.join("\n"))
        };
        let (usual, reasons) = width(&quiet);
        assert!(reasons.contains("11%"), "the held-back error, carried over: {reasons}");
        let wide = |change: &dyn Fn(&mut Calibration), word: &str| {
            let mut c = quiet.clone();
            change(&mut c);
            let (width, reasons) = width(&c);
            assert!(width > usual && reasons.contains(word), "{word}: {width} {reasons}");
        };
        wide(&|c| c.held_back_error = 0.4, "49%");
        wide(&|c| c.conditions.others = Some(0.6), "disturbed: other programs kept 60%");
        let catalog = Catalog::own().unwrap();
        for device in &catalog.devices {
            let Ok(speed) = Speed::catalogued(device, &quiet, 1) else { continue };
            let p = predict(&plan, &speed);
            let band = p.time.spread.unwrap();
            assert!(band.high / band.low > usual, "{}: scaling adds doubt", device.name);
            assert!(p.time.source.contains(NEVER_COMPARED) && p.reasons.len() >= 3, "{}", device.name);
        }
    }

    #[test]
    fn a_kernel_without_a_price_is_named_and_nothing_is_predicted() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, &[4, 8][..]).unwrap();
        let to = b.input("to", DType::I32, &[8][..]).unwrap();
        let y = b.push(schwann_core::op::Op::SegmentSum { axis: 1, segments: 3.into() }, &[x, to]).unwrap();
        b.output("y", y).unwrap();
        let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
        let p = predict(&program.plan(&Bindings::new()).unwrap(), &Speed::host(&made_up(), 1));
        let why = p.time.reason.unwrap();
        assert!(p.host && p.time.value.is_none() && why.contains("segment sum 8 into 3"), "{why}");
        // A price that the calibration lacks is no 0 either.
        let mut c = made_up();
        c.prices.remove(&Unit::MapFunction);
        let p = predict(&plan("P", 1, 4, 1), &Speed::host(&c, 1));
        assert!(p.time.value.is_none() && p.time.reason.unwrap().contains("MapFunction"));
    }

    #[test]
    fn bfloat16_products_have_a_price_of_their_own_and_none_on_chips_nobody_measured() {
        let mut b = GraphBuilder::new();
        // So large that they are not widened ahead on any machine.
        let x = b.input("x", DType::Bf16, &[4, 1024][..]).unwrap();
        let w = b.weight("w", Tensor::zeros(DType::Bf16, &[1024, 1024]).unwrap()).unwrap();
        let y = b.matmul(x, w).unwrap();
        b.output("y", y).unwrap();
        let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
        let plan = program.plan(&Bindings::new()).unwrap();
        let time = |c: &Calibration| predict(&plan, &Speed::host(c, 1)).time;
        let mut c = made_up();
        let usual = time(&c).value.unwrap();
        c.prices.entry(Unit::ProductWork).and_modify(|p| *p *= 100.0);
        assert_eq!(time(&c).value, Some(usual), "no part of it is priced as f32");
        c.prices.entry(Unit::Bf16Work).and_modify(|p| *p *= 100.0);
        assert!(time(&c).value.unwrap() > 5.0 * usual);
        c.prices.remove(&Unit::Bf16Work);
        assert!(time(&c).reason.is_some_and(|r| r.contains("Bf16Work")));
        let catalog = Catalog::own().unwrap();
        let there = predict(&plan, &Speed::catalogued(catalog.find("M1").unwrap(), &made_up(), 1).unwrap()).time;
        assert!(there.reason.as_deref().is_some_and(|r| r.contains("narrower than f32")), "{there:?}");
    }

    #[test]
    fn a_faster_chip_of_one_family_is_never_predicted_slower() {
        let catalog = Catalog::own().unwrap();
        for name in ["P", "W", "L"] {
            for (batch, steps) in [(1, 1), (1, 64), (32, 16), (256, 64)] {
                let plan = plan(name, batch, steps, 1);
                let time = |device: &str| {
                    let speed = Speed::catalogued(catalog.find(device).unwrap(), &made_up(), 1).unwrap();
                    predict(&plan, &speed).time.value.unwrap()
                };
                for pair in ["M1", "M2", "M3", "M4", "M5"].windows(2) {
                    let [older, newer] = [pair[0], pair[1]].map(time);
                    assert!(newer <= older, "{name} {batch}×{steps}: {} {newer}, {} {older}", pair[1], pair[0]);
                }
            }
        }
    }

    #[test]
    fn one_thread_has_one_cores_memory_and_not_the_chips() {
        let catalog = Catalog::own().unwrap();
        let mut ultra = catalog.find("M1 Ultra").unwrap().clone();
        ultra.core_bandwidth.clear();
        let far = |threads: usize| Speed::catalogued(&ultra, &made_up(), threads).unwrap().far_price(1 << 30).unwrap();
        // The made-up core has 20 GB/s, the chip 800.
        assert!((1.0 / far(1) - 20e9).abs() < 1.0 && (1.0 / far(4) - 80e9).abs() < 1.0);
        ultra.core_bandwidth =
            vec![crate::device::Published { value: 100.0, unit: "GB/s".into(), source: "a test".into() }];
        let far = |threads: usize| Speed::catalogued(&ultra, &made_up(), threads).unwrap().far_price(1 << 30).unwrap();
        assert!((1.0 / far(1) - 100e9).abs() < 1.0 && (1.0 / far(16) - 800e9).abs() < 1.0);
        // On the host, two of many threads have two cores' worth.
        let mut c = made_up();
        c.limits[1].threads = 16;
        c.limits[1].levels.iter_mut().for_each(|l| l.read_bytes_per_s *= 16.0);
        let here = |threads| 1.0 / Speed::host(&c, threads).far_price(1 << 30).unwrap();
        assert!((here(1) - 20e9).abs() < 1.0 && (here(2) - 40e9).abs() < 1.0, "{} {}", here(1), here(2));
    }

    #[test]
    fn nothing_uses_more_than_all_of_a_device() {
        let catalog = Catalog::own().unwrap();
        let mut slow = made_up();
        slow.limits.iter_mut().for_each(|l| {
            l.flops_per_s /= 1e3;
            l.levels.iter_mut().for_each(|l| l.read_bytes_per_s /= 1e3);
        });
        for name in ["P", "W", "L"] {
            for (batch, steps) in [(1, 1), (32, 16), (256, 64)] {
                let plan = plan(name, batch, steps, 1);
                for c in [&made_up(), &slow] {
                    let there = catalog.devices.iter().filter_map(|d| Speed::catalogued(d, c, 1).ok());
                    for speed in there.chain([Speed::host(c, 1)]) {
                        let u = predict(&plan, &speed).utilization;
                        assert!(u.value.map_or(u.reason.is_some(), |v| v <= 100.0), "{name} {}: {u:?}", speed.device);
                    }
                }
            }
        }
    }

    #[test]
    fn predictions_are_told_with_two_digits() {
        for (value, text) in [(123.4, "120"), (0.01234, "0.012"), (9.96, "10"), (1.05e-6, "0.0000011"), (0.0, "0")] {
            assert_eq!(two_digits(value), text, "{value}");
        }
        assert_eq!(rounded(12_345.0), 12_000.0);
    }
}
