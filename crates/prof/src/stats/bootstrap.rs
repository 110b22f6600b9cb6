//! Intervals by resampling: what would the figure have been, had the samples come out a little differently?
//!
//! Percentile intervals of circular block resamples. Blocks, because consecutive timings are correlated: resampling
//! single ones would pretend to know more than the samples tell. Their length is estimated from the samples unless
//! given. A block never reaches over the end of one run into another.

use super::{Random, block_length, quantile_mut, quantile_sorted};
use serde::{Deserialize, Serialize};

/// An estimate with where the true value lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// From the samples as they are.
    pub estimate: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// How sure it is that the true value lies between, from 0 to 1.
    pub confidence: f64,
}

impl Interval {
    /// With every number mapped by a function that keeps their order.
    pub fn map(self, f: impl Fn(f64) -> f64) -> Interval {
        Interval { estimate: f(self.estimate), low: f(self.low), high: f(self.high), ..self }
    }
}

/// How to resample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resampling {
    /// How sure an interval is to hold the true value, between 0 and 1.
    pub confidence: f64,
    /// Resamples.
    pub resamples: usize,
    /// Of the generator.
    pub seed: u64,
    /// Samples that are drawn together; `None`: estimated by [`block_length`].
    pub block: Option<usize>,
}

impl Default for Resampling {
    fn default() -> Resampling {
        Resampling { confidence: 0.95, resamples: 2000, seed: 0x5c4a_11c3, block: None }
    }
}

/// Samples drawn in a whole computation at most: with very many samples fewer resamples do.
const MOST_DRAWS: usize = 40_000_000;
/// And this many at least, or the ends would be guesses.
const LEAST_RESAMPLES: usize = 200;

/// The samples of one side, and how they are drawn.
struct Side<'a> {
    samples: &'a [f64],
    block: usize,
    drawn: Vec<f64>,
}

impl<'a> Side<'a> {
    fn new(samples: &'a [f64], how: &Resampling) -> Side<'a> {
        let block = how.block.unwrap_or_else(|| block_length(samples)).clamp(1, samples.len().max(1));
        Side { samples, block, drawn: Vec::with_capacity(samples.len()) }
    }

    fn draw(&mut self, random: &mut Random) -> &mut [f64] {
        let n = self.samples.len();
        self.drawn.clear();
        while self.drawn.len() < n {
            let first = random.below(n);
            let count = self.block.min(n - self.drawn.len());
            let straight = count.min(n - first);
            self.drawn.extend_from_slice(&self.samples[first..first + straight]);
            self.drawn.extend_from_slice(&self.samples[..count - straight]);
        }
        &mut self.drawn
    }
}

fn resamples(how: &Resampling, samples: usize) -> usize {
    how.resamples.min(MOST_DRAWS / samples.max(1)).max(LEAST_RESAMPLES)
}

fn between(estimate: f64, mut drawn: Vec<f64>, how: &Resampling) -> Option<Interval> {
    drawn.retain(|x| x.is_finite());
    if drawn.is_empty() || !estimate.is_finite() {
        return None;
    }
    drawn.sort_unstable_by(f64::total_cmp);
    let confidence = how.confidence.clamp(0.0, 1.0);
    let beyond = (1.0 - confidence) / 2.0;
    let (low, high) = (quantile_sorted(&drawn, beyond), quantile_sorted(&drawn, 1.0 - beyond));
    // A resample's median need not surround the estimate where samples are few and equal.
    Some(Interval { estimate, low: low.min(estimate), high: high.max(estimate), confidence })
}

fn finite(samples: &[f64]) -> Vec<f64> {
    samples.iter().copied().filter(|x| x.is_finite()).collect()
}

/// The interval of any figure of the samples. The figure may reorder what it is given. `None` with fewer than two
/// samples.
pub fn interval(samples: &[f64], how: &Resampling, figure: impl Fn(&mut [f64]) -> f64) -> Option<Interval> {
    let samples = finite(samples);
    if samples.len() < 2 {
        return None;
    }
    let estimate = figure(&mut samples.clone());
    let mut side = Side::new(&samples, how);
    let mut random = Random::new(how.seed);
    let drawn = (0..resamples(how, samples.len())).map(|_| figure(side.draw(&mut random))).collect();
    between(estimate, drawn, how)
}

/// The interval of the median.
pub fn median_interval(samples: &[f64], how: &Resampling) -> Option<Interval> {
    interval(samples, how, |xs| quantile_mut(xs, 0.5))
}
