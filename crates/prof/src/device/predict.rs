//! What a plan would take on a device: the units of its steps at that device's prices, as a band from low to high with
//! the reasons for its width.
//!
//! On the calibrated machine the prices are the calibration's, and the band is the error with which they give graphs
//! that were held back from the fit. On a catalogued device they are scaled from it: arithmetic, functions and caches by
//! the peak of a core, overhead by the clock, memory by what one core, or all, can have of it. Which of the two a piece
//! of work follows is an assumption, so the band reaches from the better of the two scales to the worse, and further by
//! an allowance for cores of another design. A kernel without a price makes the whole unavailable, and is named.

mod speed;

pub use speed::Speed;

use super::fit::{self, Counted, Kind, Target};
use super::levels::least_seconds;
use super::roof::of_limit;
use crate::profile::Bound;
use schwann_core::Figure;
use schwann_core::figure::{Ends, Spread};
use schwann_core::plan::Plan;
use serde::Serialize;
use speed::{KINDS, kind_index};

/// Beside each device that nobody has held a prediction against.
pub const NEVER_COMPARED: &str = "never compared with a real one";

/// Why there is no figure for the Neural Engine.
pub const NEURAL_ENGINE: &str =
    "recurrent loops cannot run on the Neural Engine today, and nothing here measures it; it is not predicted";

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
    /// Whether anybody held such predictions against a real device, and what came of it.
    pub compared: String,
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
            compared: NEVER_COMPARED.into(),
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
    let low = weigh(&all, &speed.low);
    let [low, high] = speed.compared.as_ref().map_or([low, high], |c| c.widen(total, low, high));
    let band = Spread { low, high, ends: Ends::Band, samples: speed.samples };
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
        compared: match &speed.compared {
            Some(compared) => compared.words.clone(),
            None if speed.host => "its prices were measured on this machine".into(),
            None => NEVER_COMPARED.into(),
        },
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
pub(super) mod tests;
