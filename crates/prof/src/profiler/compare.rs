//! The same workload another way, and other sizes: measured in turns with the profile's own way in several starts of the
//! process, or one by one.

use super::rig::Rig;
use super::{Error, Options, Profiler, Result};
use crate::profile::{Comparison, SweepPoint, Verdict};
use crate::stats::verdict::{Question, Reading};
use crate::stats::{self, Spread, Summary, median};
use schwann_core::figure::Ends;
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
    /// On so many threads; 0: one per core.
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
pub(crate) fn difference(a: &[(String, Tensor)], b: &[(String, Tensor)]) -> Figure {
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

/// Ways that a page may ask about: compilation, threads up and down, type, batch. Each answer is as sure as if all of
/// them were asked, so that it does not change with what else is on the page.
const QUESTIONS: usize = 5;
/// A start takes this part of a comparison's time; what it takes beside measuring is not in it.
const START: f64 = 0.05;

/// Seconds that a start measures, of the seconds for a whole comparison.
pub(super) fn start_seconds(seconds: f64) -> f64 {
    (seconds * START).clamp(0.02, 0.5)
}

impl Profiler<'_> {
    /// The options with what stands for something else written out: the same configuration is then the same options.
    fn resolved(&self, way: &Way) -> Options {
        let mut options = way.apply(&self.options);
        if options.threads == 0 {
            options.threads = crate::device::cpu::cores();
        }
        options
    }

    /// Measures another way in turns with the options' own, in several starts of the process. What was asked before has
    /// the same answer. A way that this model cannot take is unavailable, with the reason.
    pub(super) fn compare(&mut self, way: &Way) -> Result<Comparison> {
        let (name, options) = (way.to_string(), self.resolved(way));
        let asked = (self.options.clone(), options);
        if let Some((_, known)) = self.asked.iter().find(|(question, _)| *question == asked) {
            return Ok(Comparison { name, ..known.clone() });
        }
        let found = match self.measure_way(way, &name, &asked.1) {
            Err(e) if e.is_cancelled() => return Err(e),
            Err(why) => {
                let none = |unit: &str| Figure::unavailable(unit, name.clone(), why.to_string());
                let (time, base, speedup, difference) = (none("s"), none("s"), none("×"), none("1"));
                Comparison { name, time, base, speedup, difference, verdict: Verdict::Untested }
            }
            Ok(found) => found,
        };
        self.asked.push((asked, found.clone()));
        Ok(found)
    }

    fn measure_way(&mut self, way: &Way, name: &str, options: &Options) -> Result<Comparison> {
        // One sequence of the other's batch, for each of this one's.
        let alike = self.options.batch as f64 / options.batch as f64;
        let difference = {
            let mut other = Rig::new(&self.subject, options)?;
            match way {
                Way::Batch(_) => Figure::unavailable("1", "outputs of one run", "other batches have other inputs"),
                _ => difference(&self.rig()?.outputs()?, &other.outputs()?),
            }
        };
        Ok(Comparison { difference, ..self.compare_with(name, options, alike)? })
    }

    /// Measures other options in turns with the profiler's own, in several starts of the process; the other's times count
    /// `scale` times. Outputs are not compared.
    pub fn compare_with(&mut self, name: &str, options: &Options, scale: f64) -> Result<Comparison> {
        let difference = Figure::unavailable("1", "outputs of one run", "they were not compared");
        let sides = [self.options.clone(), options.clone()];
        let seconds = self.options.seconds;
        let question = Question::difference(QUESTIONS.max(self.ways.len()));
        let what = format!("compared with {name}");
        let (mut medians, mut last) = ([vec![], vec![]], 0.0);
        let clock = Instant::now();
        let mut start = || {
            self.tell(&what, (clock.elapsed().as_secs_f64() / seconds).min(1.0));
            let found = self.start(&sides, false, start_seconds(seconds))?;
            let [base, other] = &found.sides[..] else {
                return Err(Error::Start { what: format!("it measured {} sides, not 2", found.sides.len()) });
            };
            let other: Vec<f64> = other.iter().map(|t| t * scale).collect();
            medians[0].extend(median(base));
            medians[1].extend(median(&other));
            Reading::of(base, &other).ok_or_else(|| Error::Start { what: "it measured nothing".into() })
        };
        let judged = question.ask(seconds, None, &mut start, &mut |spent| last = spent)?;
        let of =
            format!("starts of {}", if self.starter.is_some() { "the process" } else { "one process, compiled anew" });
        let time = |medians: &[f64]| {
            let source = format!("system clock, in turns; median over {} {of}", medians.len());
            let time = Figure::measured(median(medians).unwrap_or(f64::NAN), "s", source);
            match Summary::of(medians).filter(|s| s.n > 1) {
                Some(s) => {
                    time.with_spread(Spread { low: s.min, high: s.max, ends: Ends::Extremes, samples: s.n as u64 })
                }
                None => time,
            }
        };
        let source = format!("the base's time over this one's in the same turns, mean over {of}");
        let (speedup, verdict) = match judged {
            Some(j) => {
                let samples = j.starts as u64;
                let spread =
                    Spread { low: 1.0 / j.ratio.high, high: 1.0 / j.ratio.low, ends: Ends::Confidence99, samples };
                (Figure::measured(1.0 / j.ratio.estimate, "×", source).with_spread(spread), j.answer.into())
            }
            None => (Figure::unavailable("×", source, "there were too few starts"), Verdict::Undecided),
        };
        let (base, time) = (time(&medians[0]), time(&medians[1]));
        Ok(Comparison { name: name.to_owned(), time, base, speedup, difference, verdict })
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
        let time = Figure::measured(median(&samples).unwrap_or(f64::NAN), "s", "system clock, median");
        let time = if let Some(spread) = stats::median_spread(&samples) { time.with_spread(spread) } else { time };
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

    /// Measures other ways of running the same workload, each in turns with the options' own. A way that was asked about
    /// before is not measured again.
    pub fn compare_ways(&mut self, ways: &[Way]) -> Result<Vec<Comparison>> {
        self.options.check()?;
        ways.iter().map(|way| self.compare(way)).collect()
    }
}

impl Error {
    /// Whether somebody asked for it to stop.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Cancelled | Error::Core(schwann_core::Error::Cancelled))
    }
}
