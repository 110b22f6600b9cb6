//! The same workload another way, and other sizes: measured in turns with the profile's own way, or one by one.

use super::rig::Rig;
use super::stats::Sorted;
use super::{Error, Options, Profiler, Result};
use crate::profile::{Comparison, SweepPoint};
use schwann_core::{DType, Figure, Tensor};
use std::fmt;
use std::time::Instant;

/// Another way of running the same workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// As built, one kernel call a node.
    NodeByNode,
    /// With the compiler's passes.
    Fused,
    /// On so many threads; 0 for one a core.
    Threads(usize),
    /// Products computed in this type.
    Products(DType),
    /// So many sequences at a time; times are then compared by the sequence.
    Batch(usize),
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::NodeByNode => write!(f, "node by node"),
            Way::Fused => write!(f, "fused"),
            Way::Threads(0) => write!(f, "a thread a core"),
            Way::Threads(1) => write!(f, "1 thread"),
            Way::Threads(n) => write!(f, "{n} threads"),
            Way::Products(dtype) => write!(f, "{dtype} products"),
            Way::Batch(n) => write!(f, "batch {n}, by the sequence"),
        }
    }
}

impl Way {
    /// The options, this way.
    pub fn apply(&self, options: &Options) -> Options {
        let mut new = options.clone();
        match *self {
            Way::NodeByNode => new.fused = false,
            Way::Fused => new.fused = true,
            Way::Threads(n) => new.threads = n,
            Way::Products(dtype) => new.dtype = dtype,
            Way::Batch(n) => new.batch = n,
        }
        new
    }
}

/// Seconds that a sample lasts at least.
const LEAST_SAMPLE: f64 = 50e-6;
const LEAST_SAMPLES: usize = 5;

/// As many runs as a sample needs.
fn runs_per_sample(rig: &mut Rig) -> Result<usize> {
    // Enough to fill the caches and to know how long a run is.
    let mut each = rig.run(1)?;
    let mut runs = 1;
    while each * (runs as f64) < LEAST_SAMPLE && runs < 1 << 20 {
        runs *= 2;
        each = rig.run(runs)? / runs as f64;
    }
    Ok(((LEAST_SAMPLE / each.max(1e-9)).ceil() as usize).clamp(1, 1 << 20))
}

/// The greatest absolute difference of values of one name.
fn difference(a: &[(String, Tensor)], b: &[(String, Tensor)]) -> Figure {
    let mut most = 0.0f64;
    let source = "outputs of one run from the same numbers";
    for (name, a) in a {
        let Some((_, b)) = b.iter().find(|(n, _)| n == name).filter(|(_, b)| b.shape() == a.shape()) else {
            return Figure::unavailable("1", source, format!("output `{name}` is not there in both"));
        };
        let pairs = a.to_f64().into_iter().zip(b.to_f64());
        // A number that is none is as far off as can be, unless both are the same.
        let apart = |(a, b): (f64, f64)| if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() };
        most = pairs.map(apart).fold(most, |m, d| if d.is_nan() { f64::INFINITY } else { m.max(d) });
    }
    Figure::measured(most, "1", source)
}

impl Profiler<'_> {
    /// Measures another way in turns with the rig's own. A way that this model cannot take is unavailable, with the
    /// reason.
    pub(super) fn compare(&mut self, base: &mut Rig, way: &Way) -> Result<Comparison> {
        let name = way.to_string();
        let options = way.apply(&self.options);
        // One sequence of the other's batch, for each of this one's.
        let alike = self.options.batch as f64 / options.batch as f64;
        let mut other = match Rig::new(&self.subject, &options) {
            Ok(rig) => rig,
            Err(why) => {
                let none = |unit: &str| Figure::unavailable(unit, name.clone(), why.to_string());
                return Ok(Comparison {
                    time: none("s"),
                    base: none("s"),
                    speedup: none("×"),
                    difference: none("1"),
                    name: name.clone(),
                });
            }
        };
        let difference = match way {
            Way::Batch(_) => Figure::unavailable("1", "outputs of one run", "other batches have other inputs"),
            _ => difference(&base.outputs()?, &other.outputs()?),
        };
        let runs = [runs_per_sample(base)?, runs_per_sample(&mut other)?];
        let (mut times, mut ratios) = ([vec![], vec![]], vec![]);
        let start = Instant::now();
        while times[0].len() < self.options.runs {
            self.check_cancelled()?;
            let spent = start.elapsed().as_secs_f64() / self.options.seconds;
            if spent > 1.0 && times[0].len() >= LEAST_SAMPLES.min(self.options.runs) {
                break;
            }
            if times[0].len().is_multiple_of(8) {
                let part = spent.max(times[0].len() as f64 / self.options.runs as f64);
                self.tell(&format!("compared with {name}"), part.min(1.0));
            }
            // What ran in between has taken the caches; and who comes first changes from turn to turn.
            let first = times[0].len() % 2;
            let mut turn = [0.0; 2];
            for which in [first, 1 - first] {
                let rig = if which == 0 { &mut *base } else { &mut other };
                rig.run(1)?;
                turn[which] = rig.run(runs[which])? / runs[which] as f64 * if which == 0 { 1.0 } else { alike };
            }
            (0..2).for_each(|i| times[i].push(turn[i]));
            ratios.push(turn[0] / turn[1]);
        }
        let median = |samples: &[f64]| {
            let sorted = Sorted::of(samples);
            let figure = Figure::measured(sorted.median(), "s", "system clock, in turns");
            if let Some(spread) = sorted.median_spread() { figure.with_spread(spread) } else { figure }
        };
        let ratios = Sorted::of(&ratios);
        let speedup = Figure::measured(ratios.median(), "×", "median over turns of the base's time over this one's");
        let speedup = if let Some(spread) = ratios.median_spread() { speedup.with_spread(spread) } else { speedup };
        Ok(Comparison { name, time: median(&times[1]), base: median(&times[0]), speedup, difference })
    }

    /// The workload at another size. One that cannot run is unavailable, with the reason.
    pub(super) fn sweep_point(&mut self, batch: usize, steps: usize) -> Result<SweepPoint> {
        let steps = self.steps_in(steps)?;
        let options = Options { batch, steps, ..self.options.clone() };
        let option = |n: usize, unit: &str| Figure::derived(n as f64, unit, format!("sweep over {unit}"));
        let (batch_figure, steps_figure) = (option(batch, "sequences"), option(steps, "steps"));
        let mut rig = match Rig::new(&self.subject, &options) {
            Ok(rig) => rig,
            Err(why) => {
                let none = |unit: &str| Figure::unavailable(unit, "sweep", why.to_string());
                return Ok(SweepPoint {
                    batch: batch_figure,
                    steps: steps_figure,
                    time: none("s"),
                    tflops: none("Tflop/s"),
                    bandwidth: none("GB/s"),
                    throughput: none("sequence steps/s"),
                    memory: none("B"),
                });
            }
        };
        let runs = runs_per_sample(&mut rig)?;
        let mut samples = vec![];
        let start = Instant::now();
        // A point of a sweep is one of many: a quarter of the time will do.
        while samples.len() < self.options.runs
            && (samples.len() < LEAST_SAMPLES || start.elapsed().as_secs_f64() < self.options.seconds / 4.0)
        {
            self.check_cancelled()?;
            samples.push(rig.run(runs)? / runs as f64);
        }
        let sorted = Sorted::of(&samples);
        let time = Figure::measured(sorted.median(), "s", "system clock, median");
        let time = if let Some(spread) = sorted.median_spread() { time.with_spread(spread) } else { time };
        let plan = rig.plan();
        let cost = plan.cost();
        let over =
            |unit: &str, what: &str, n: f64| time.derive(unit, format!("{what} over the median time"), |t| n / t);
        Ok(SweepPoint {
            batch: batch_figure,
            steps: steps_figure,
            tflops: over("Tflop/s", "flops", cost.flops as f64 / 1e12),
            bandwidth: over("GB/s", "bytes", cost.bytes() as f64 / 1e9),
            throughput: over("sequence steps/s", "sequences × steps", (batch * steps) as f64),
            memory: Figure::derived((plan.arena_bytes + plan.weight_bytes) as f64, "B", "the compiled plan"),
            time,
        })
    }

    /// Measures these batch sizes and numbers of steps.
    pub fn sweep(&mut self, points: &[(usize, usize)]) -> Result<Vec<SweepPoint>> {
        self.options.check()?;
        points.iter().map(|&(batch, steps)| self.sweep_point(batch, steps)).collect()
    }

    /// Measures other ways of running the same workload, each in turns with the options' own.
    pub fn compare_ways(&mut self, ways: &[Way]) -> Result<Vec<Comparison>> {
        let mut rig = self.rig()?;
        ways.iter().map(|way| self.compare(&mut rig, way)).collect()
    }
}

impl Error {
    /// Whether somebody asked for it to stop.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Cancelled | Error::Core(schwann_core::Error::Cancelled))
    }
}
