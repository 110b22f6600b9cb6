//! Which size of a batch: the frontier of throughput, latency and memory with few measurements, the knee of it, and the
//! largest batch within a bound on the time.
//!
//! **The knee** is the smallest batch that has nine tenths of the greatest throughput: beyond it, each doubling of time and
//! memory buys next to nothing. Powers of two are measured first; then, between the last that is below and the first that is
//! not, quarters of the span, and so on. Sizes at which registers are full are among these quarters, and what lies between
//! them is looked at too.

use super::{Error, Result};
use crate::profile::SweepPoint;
use crate::profiler::{Options, Subject, Timed};
use crate::stats::{Summary, median_spread};
use schemars::JsonSchema;
use schwann_core::Figure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The part of the greatest throughput that the knee has.
pub const KNEE: f64 = 0.9;
/// A doubling that brings less than this is not worth more doublings, if the one before brought as little.
const WORTH: f64 = 1.02;
/// The span within which a size is found, as a part of it.
const EXACT: f64 = 0.04;
/// Runs of a size, at least and at most.
const LEAST_RUNS: usize = 5;
const MOST_RUNS: usize = 2000;

/// What one size takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Seconds of single runs.
    pub times: Vec<f64>,
    /// Bytes of plan and weights, where they are known.
    pub bytes: Option<usize>,
}

impl Timing {
    fn summary(&self) -> Option<Summary> {
        Summary::of(&self.times)
    }
}

/// A size that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Sequences in a batch.
    pub batch: usize,
    /// Median seconds of a run.
    pub time: Figure,
    /// 95 of 100 runs took no longer.
    pub time_p95: Figure,
    /// Sequences a second, by the median.
    pub throughput: Figure,
    /// Bytes of plan and weights.
    pub memory: Figure,
}

/// The frontier, as far as it was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Frontier {
    /// What was measured, smallest first.
    pub points: Vec<Point>,
    /// The smallest batch with nine tenths of the greatest throughput.
    pub knee: usize,
    /// The batch with the greatest throughput.
    pub fastest: usize,
    /// The bound on the time, in seconds, and the largest batch of which 95 of 100 runs stay within it; `None` where not even
    /// one sequence does.
    pub within: Option<(f64, Option<usize>)>,
    /// The smallest size that could not run, and why.
    pub refused: Option<(usize, String)>,
    /// Whether somebody stopped it before its end.
    pub partial: bool,
}

/// What is known so far.
struct Known<'f, E> {
    measure: &'f mut dyn FnMut(usize) -> Result<Option<Timing>, E>,
    times: BTreeMap<usize, (Summary, Timing)>,
    refused: Option<usize>,
}

impl<E> Known<'_, E> {
    /// Measures a size once; `None` where it cannot run.
    fn at(&mut self, batch: usize) -> Result<Option<Summary>, E> {
        if let Some((summary, _)) = self.times.get(&batch) {
            return Ok(Some(*summary));
        }
        if self.refused.is_some_and(|n| batch >= n) {
            return Ok(None);
        }
        match (self.measure)(batch)? {
            Some(timing) => {
                let summary = timing.summary();
                if let Some(summary) = summary {
                    self.times.insert(batch, (summary, timing));
                }
                Ok(summary)
            }
            None => {
                self.refused = Some(batch);
                Ok(None)
            }
        }
    }

    fn throughput(&mut self, batch: usize) -> Result<f64, E> {
        Ok(self.at(batch)?.map_or(0.0, |s| batch as f64 / s.p50))
    }

    /// The smallest size in (below, enough] that is good, by quarters of the span.
    fn smallest(
        &mut self,
        (mut below, mut enough): (usize, usize),
        good: &dyn Fn(usize, &Summary) -> bool,
    ) -> Result<usize, E> {
        while enough - below > 1 && (enough - below) as f64 > EXACT * enough as f64 {
            let (from, span) = (below, enough - below);
            let mut quarters: Vec<usize> =
                (1..4).map(|i| from + span * i / 4).filter(|n| *n > from && *n < enough).collect();
            quarters.dedup();
            let before = (below, enough);
            for quarter in quarters {
                match self.at(quarter)? {
                    Some(found) if good(quarter, &found) => {
                        enough = quarter;
                        break;
                    }
                    _ => below = quarter,
                }
            }
            if (below, enough) == before {
                break;
            }
        }
        Ok(enough)
    }
}

/// Finds knee and frontier with few calls of `measure`, which gives what a size takes; `None` where that size cannot run, and
/// then no larger one is tried. `bound`: seconds that a run may take.
pub fn explore<E>(
    most: usize,
    bound: Option<f64>,
    measure: &mut dyn FnMut(usize) -> Result<Option<Timing>, E>,
) -> Result<Option<Sizes>, E> {
    let mut known = Known { measure, times: BTreeMap::new(), refused: None };
    let most = most.max(1);
    let mut powers: Vec<usize> = (0..usize::BITS).map(|i| 1usize << i).take_while(|n| *n < most).collect();
    powers.push(most);
    let (mut best, mut idle, mut tried) = (0.0f64, 0, vec![]);
    for &power in &powers {
        let Some(summary) = known.at(power)? else { break };
        tried.push(power);
        let throughput = power as f64 / summary.p50;
        idle = if throughput > best * WORTH { 0 } else { idle + 1 };
        best = best.max(throughput);
        let late = bound.is_none_or(|b| summary.p95 > b);
        if idle >= 2 && late {
            break;
        }
    }
    if tried.is_empty() {
        return Ok(None);
    }
    // The largest size may leave a register half empty; the fastest near it fill their registers, whatever their width.
    if tried.last() == Some(&most) {
        for lanes in [64, 32, 16, 8].into_iter().filter(|lanes| most > 2 * lanes) {
            known.at(most / lanes * lanes)?;
        }
    }
    // Where it ends because memory does, the sizes up to there count as well.
    if let (Some(&last), Some(refused)) = (tried.last(), known.refused) {
        let (mut fits, mut not) = (last, refused);
        while not - fits > 1 && (not - fits) as f64 > EXACT * not as f64 {
            let middle = fits + (not - fits) / 2;
            known.refused = None;
            match known.at(middle)? {
                Some(_) => fits = middle,
                None => not = middle,
            }
            known.refused = Some(not);
        }
    }
    let mut knee = 1;
    // What is measured on the way may be faster than all before, and the knee another.
    for _ in 0..3 {
        let greatest = known.times.iter().map(|(n, (s, _))| *n as f64 / s.p50).fold(0.0, f64::max);
        let enough = |n: usize, s: &Summary| n as f64 / s.p50 >= KNEE * greatest;
        let sizes: Vec<usize> = known.times.keys().copied().collect();
        let good = |n: &usize| known.times.get(n).is_some_and(|(s, _)| enough(*n, s));
        let Some(first) = sizes.iter().position(good) else { break };
        let below = if first == 0 { 0 } else { sizes[first - 1] };
        knee = known.smallest((below, sizes[first]), &enough)?;
        let now = known.throughput(knee)?;
        if now <= greatest {
            break;
        }
    }
    let within = match bound {
        None => None,
        Some(bound) => {
            let sizes: Vec<usize> = known.times.keys().copied().collect();
            let fits = |known: &Known<'_, E>, n: &usize| known.times.get(n).is_some_and(|(s, _)| s.p95 <= bound);
            let last = sizes.iter().rposition(|n| fits(&known, n));
            Some((
                bound,
                match last {
                    None => None,
                    Some(last) if last + 1 == sizes.len() => Some(sizes[last]),
                    Some(last) => {
                        // The first that does not fit, and the one before it.
                        let late = known.smallest((sizes[last], sizes[last + 1]), &|_, s| s.p95 > bound)?;
                        known.times.keys().copied().filter(|n| *n < late && fits(&known, n)).max()
                    }
                },
            ))
        }
    };
    let fastest = known.times.iter().map(|(n, (s, _))| (*n, *n as f64 / s.p50));
    let fastest = fastest.fold((1, 0.0), |best, this| if this.1 > best.1 { this } else { best }).0;
    let timings = known.times.into_iter().map(|(n, (_, timing))| (n, timing)).collect();
    Ok(Some(Sizes { timings, knee, fastest, within, refused: known.refused }))
}

/// What [`explore`] found.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// What was measured, by size.
    pub timings: BTreeMap<usize, Timing>,
    /// The smallest with nine tenths of the greatest throughput.
    pub knee: usize,
    /// The one with the greatest throughput.
    pub fastest: usize,
    /// The bound in seconds, and the largest size of which 95 of 100 runs stay within it.
    pub within: Option<(f64, Option<usize>)>,
    /// The smallest size that could not run.
    pub refused: Option<usize>,
}

impl Sizes {
    fn frontier(&self, refused: Option<String>, partial: bool) -> Frontier {
        let point = |(batch, timing): (&usize, &Timing)| {
            let summary = timing.summary();
            let source = format!("system clock, {} runs", timing.times.len());
            let time = |pick: fn(&Summary) -> f64, what: &str| match &summary {
                Some(s) => Figure::measured(pick(s), "s", format!("{source}, {what}")),
                None => Figure::unavailable("s", source.clone(), "it was not timed"),
            };
            let median = time(|s| s.p50, "median");
            let median = match median_spread(&timing.times) {
                Some(spread) => median.with_spread(spread),
                None => median,
            };
            let sequences = *batch as f64;
            Point {
                batch: *batch,
                throughput: median.derive("sequences/s", "sequences over the median time", |t| sequences / t),
                time: median,
                time_p95: time(|s| s.p95, "95 of 100 took no longer"),
                memory: match timing.bytes {
                    Some(bytes) => Figure::derived(bytes as f64, "B", "the compiled plan's arena and weights"),
                    None => Figure::unavailable("B", "what was timed", "its memory is not known here"),
                },
            }
        };
        Frontier {
            points: self.timings.iter().map(point).collect(),
            knee: self.knee,
            fastest: self.fastest,
            within: self.within,
            refused: self.refused.map(|n| (n, refused.unwrap_or_else(|| "it failed".into()))),
            partial,
        }
    }
}

/// The frontier of a network: sizes up to `most`, each measured for so many seconds at most. `tell` hears the size that is
/// being measured.
pub fn frontier(
    subject: &Subject,
    options: &Options,
    (most, bound): (usize, Option<f64>),
    seconds: f64,
    cancel: &Arc<AtomicBool>,
    tell: &mut dyn FnMut(usize),
) -> Result<Frontier> {
    let mut why = None;
    let stopped = || cancel.load(Ordering::Relaxed);
    let mut measure = |batch: usize| -> Result<Option<Timing>> {
        if stopped() {
            return Ok(None);
        }
        tell(batch);
        let mut timed = match Timed::new(subject, &Options { batch, ..options.clone() }) {
            Ok(timed) => timed,
            Err(e) if batch == 1 => return Err(e.into()),
            Err(e) => {
                why = Some(e.to_string());
                return Ok(None);
            }
        };
        let rig = timed.rig();
        let bytes = Some(rig.plan().arena_bytes + rig.plan().weight_bytes);
        rig.run(2)?;
        let (mut times, clock) = (vec![], Instant::now());
        while times.len() < LEAST_RUNS || (times.len() < MOST_RUNS && clock.elapsed().as_secs_f64() < seconds) {
            if stopped() {
                return Ok(None);
            }
            times.push(rig.run(1)?);
        }
        Ok(Some(Timing { times, bytes }))
    };
    let found = explore(most, bound, &mut measure)?;
    match found {
        Some(sizes) => {
            let refused = sizes.refused.filter(|_| !stopped());
            Ok(Sizes { refused, ..sizes }.frontier(why, stopped()))
        }
        None => Err(Error::Cancelled),
    }
}

impl Frontier {
    /// The points as a profile's sweep has them, for pictures.
    pub fn sweep(&self, steps: usize) -> Vec<SweepPoint> {
        let none = |unit: &str| Figure::unavailable(unit, "frontier", "it was not asked for");
        let option = |n: usize, unit: &str| Figure::derived(n as f64, unit, format!("sweep over {unit}"));
        let point = |p: &Point| SweepPoint {
            batch: option(p.batch, "sequences"),
            steps: option(steps, "steps"),
            time: p.time.clone(),
            tflops: none("Tflop/s"),
            bandwidth: none("GB/s"),
            throughput: p.throughput.derive("sequence steps/s", "sequences × steps", |t| t * steps as f64),
            memory: p.memory.clone(),
        };
        self.points.iter().map(point).collect()
    }
}

/// The best size of a batch for anything: the knee of `f`'s throughput over sizes up to `most`. `f` processes a batch of the
/// size that it is given. A size that fails ends the search there; where not even one item works, that is an error.
///
/// ```
/// # use schwann_prof::tune::batch::find_optimal_batch_size;
/// let data = vec![1.0f32; 4096];
/// let found = find_optimal_batch_size("sums", 256, |size| {
///     std::hint::black_box(data[..size].iter().sum::<f32>());
///     Ok::<(), std::io::Error>(())
/// })?;
/// assert!((1..=256).contains(&found.knee));
/// # Ok::<(), schwann_prof::tune::Error>(())
/// ```
pub fn find_optimal_batch_size<E>(
    name: &str,
    most: usize,
    mut f: impl FnMut(usize) -> Result<(), E>,
) -> Result<Frontier>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if most == 0 {
        return Err(Error::option("most", 0, "1 at least"));
    }
    let mut why = None;
    let mut measure = |size: usize| -> Result<Option<Timing>> {
        let (mut times, mut clock) = (vec![], None::<Instant>);
        loop {
            let start = Instant::now();
            if let Err(e) = f(size) {
                let source: Box<dyn std::error::Error + Send + Sync> = e.into();
                if size == 1 {
                    return Err(Error::Operation { operation: name.into(), config: "a batch of 1".into(), source });
                }
                why = Some(source.to_string());
                return Ok(None);
            }
            // The first call fills the caches.
            match clock {
                None => clock = Some(Instant::now()),
                Some(_) => times.push(start.elapsed().as_secs_f64().max(1e-9)),
            }
            let enough = clock.is_some_and(|c| c.elapsed().as_secs_f64() > 0.02);
            if times.len() >= MOST_RUNS || times.len() >= LEAST_RUNS && enough {
                return Ok(Some(Timing { times, bytes: None }));
            }
        }
    };
    let found = explore(most, None, &mut measure)?;
    found.map(|sizes| sizes.frontier(why, false)).ok_or(Error::Cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    /// A run of a network on registers of so many rows: what a call costs, and what each register of rows does.
    fn cost(overhead: f64, lanes: usize) -> impl Fn(usize) -> f64 {
        move |batch| overhead + batch.div_ceil(lanes) as f64 * 1e-5 * lanes as f64 / 16.0
    }

    /// The part by which measured costs are off.
    const NOISE: f64 = 0.004;

    /// Between which sizes the knee is: which of them it is, noise decides.
    fn knee_of_all(most: usize, cost: &dyn Fn(usize) -> f64) -> [f64; 2] {
        let throughput = |n: usize| n as f64 / cost(n);
        let greatest = (1..=most).map(throughput).fold(0.0, f64::max);
        let from = |share: f64| (1..=most).find(|n| throughput(*n) >= share * greatest).unwrap() as f64;
        [from(KNEE * (1.0 - NOISE)), from(KNEE * (1.0 + NOISE))]
    }

    #[test]
    fn the_knee_is_within_a_tenth_of_an_exhaustive_search_at_a_fifth_of_its_cost() {
        let mut random = Random::new(3);
        for most in [200, 256, 1000] {
            for lanes in [1, 4, 8, 16, 32] {
                for overhead in [1e-6, 2e-5, 2e-4, 1e-3] {
                    let cost = cost(overhead, lanes);
                    let (mut spent, mut noise) = (0.0, || 1.0 + NOISE * (random.uniform() - 0.5));
                    let mut measure = |n: usize| {
                        spent += cost(n);
                        Ok::<_, ()>(Some(Timing { times: (0..9).map(|_| cost(n) * noise()).collect(), bytes: None }))
                    };
                    let found = explore(most, None, &mut measure).unwrap().unwrap();
                    let all: f64 = (1..=most).map(&cost).sum();
                    let (knee, [low, high]) = (found.knee as f64, knee_of_all(most, &cost));
                    let case = format!("up to {most}, {lanes} lanes, overhead {overhead}: {knee} for {low} to {high}");
                    assert!(knee >= low - (0.1 * low).max(1.0) && knee <= high + (0.1 * high).max(1.0), "{case}");
                    assert!(spent <= 0.2 * all && found.timings.len() * 5 <= most, "{case}: {}", found.timings.len());
                }
            }
        }
    }

    #[test]
    fn the_largest_batch_within_a_bound_is_within_it_and_nearly_no_larger_one_is() {
        for bound in [3e-5, 1e-4, 7.7e-4, 1e-2] {
            let cost = cost(1e-5, 16);
            let mut measure = |n: usize| Ok::<_, ()>(Some(Timing { times: vec![cost(n); 5], bytes: None }));
            let found = explore(1 << 16, Some(bound), &mut measure).unwrap().unwrap();
            let Some((_, Some(size))) = found.within else { panic!("{:?}", found.within) };
            assert!(cost(size) <= bound, "{size} takes {} of {bound}", cost(size));
            let exact = (1..1 << 16).filter(|n| cost(*n) <= bound).max().unwrap();
            assert!(size as f64 >= 0.9 * exact as f64 - 1.0, "{size} of {exact} within {bound}");
        }
        let mut measure = |_| Ok::<_, ()>(Some(Timing { times: vec![1.0; 5], bytes: None }));
        let none = explore(8, Some(0.5), &mut measure).unwrap().unwrap();
        assert_eq!(none.within, Some((0.5, None)), "not even one");
    }

    #[test]
    fn a_size_that_cannot_run_ends_the_search_and_the_largest_that_can_is_near_it() {
        let cost = cost(1e-3, 16);
        let mut measure = |n: usize| Ok::<_, ()>((n < 777).then(|| Timing { times: vec![cost(n); 5], bytes: Some(n) }));
        let found = explore(4096, None, &mut measure).unwrap().unwrap();
        assert!(found.refused.is_some_and(|n| (777..=810).contains(&n)), "{:?}", found.refused);
        assert!(found.timings.keys().all(|n| *n < 777) && found.knee < 777);
        assert_eq!(explore(8, None, &mut |_| Ok::<_, ()>(None)).unwrap(), None);
        assert_eq!(explore(8, None, &mut |_| Err("no")).unwrap_err(), "no");
    }

    #[test]
    fn a_function_that_fails_at_one_item_is_named_and_at_many_is_a_limit() {
        let error = find_optimal_batch_size("sums", 64, |_| Err::<(), _>("no input")).unwrap_err().to_string();
        assert_eq!(error, "`sums` with a batch of 1 failed: no input");
        assert!(find_optimal_batch_size("sums", 0, |_| Ok::<(), String>(())).is_err());
        let found =
            find_optimal_batch_size("sums", 64, |n| if n > 4 { Err(format!("{n} is too many")) } else { Ok(()) });
        let found = found.unwrap();
        assert!(found.points.iter().all(|p| p.batch <= 4), "{found:?}");
        assert!(found.refused.unwrap().1.contains("is too many"));
    }
}
