//! What samples say: summaries, intervals, sizes of effects, where times settle, what lies apart.
//!
//! Pure functions over slices. Timing samples are skewed (whatever disturbs a run makes it longer) and correlated (what
//! disturbs one run disturbs the next), so that what is here rests on order statistics instead of means, and resamples
//! blocks instead of single samples. Which of two is faster is [`verdict`]'s to say, and nobody else's. Numbers that are not finite are no samples and are left out. Nothing here reads a
//! clock or a generator of true random numbers: the same samples always give the same answer.

mod bootstrap;
mod effect;
mod settle;
pub mod verdict;

pub use bootstrap::{Interval, Resampling, interval, median_interval};
pub use effect::{Effect, Size};
pub use settle::settle;

use schwann_core::figure::Ends;
pub use schwann_core::figure::Spread;
use serde::{Deserialize, Serialize};

/// What one glance at samples tells.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The mean.
    pub mean: f64,
    /// Standard deviation, with n − 1; 0 of a single sample.
    pub std: f64,
    /// The least.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// 95 of 100 lie at or below it.
    pub p95: f64,
    /// 99 of 100 lie at or below it.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
    /// How many samples.
    pub n: usize,
}

impl Summary {
    /// Of samples; `None` without any.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let sorted = sorted(samples);
        let n = sorted.len();
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        // Divided first, so that the sum fits.
        let mean = sorted.iter().map(|x| x / n as f64).sum::<f64>().clamp(min, max);
        let squares: f64 = sorted.iter().map(|x| (x - mean).powi(2)).sum();
        let std = if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 };
        let at = |part| quantile_sorted(&sorted, part);
        Some(Summary { mean, std, min, p50: at(0.5), p95: at(0.95), p99: at(0.99), max, n })
    }
}

/// Ascending, without what is not finite.
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// The value below which a part of the sorted samples lies: at position `(n − 1)·part`, straight between neighbours
/// (the rule of NumPy and of spreadsheets, "type 7"). NaN without samples.
pub fn quantile_sorted(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = last as f64 * part.clamp(0.0, 1.0);
    let below = at.floor() as usize;
    let (low, high) = (sorted[below], sorted[(below + 1).min(last)]);
    low + (high - low) * (at - below as f64)
}

/// The same of finite samples in any order; they are left in another one. No memory is asked for.
pub fn quantile_mut(samples: &mut [f64], part: f64) -> f64 {
    let Some(last) = samples.len().checked_sub(1) else { return f64::NAN };
    let at = last as f64 * part.clamp(0.0, 1.0);
    let below = at.floor() as usize;
    let (_, &mut low, above) = samples.select_nth_unstable_by(below, f64::total_cmp);
    let high = above.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
    low + (high - low) * (at - below as f64)
}

/// An interval of 95% by resampling, as a figure shows it; `None` of fewer than six samples, which say too little.
pub fn spread(samples: &[f64], figure: impl Fn(&mut [f64]) -> f64) -> Option<Spread> {
    let n = samples.iter().filter(|x| x.is_finite()).count();
    let found = interval(samples, &Resampling::default(), figure).filter(|_| n >= 6)?;
    Some(Spread { low: found.low, high: found.high, ends: Ends::Confidence95, samples: n as u64 })
}

/// The spread of the median.
pub fn median_spread(samples: &[f64]) -> Option<Spread> {
    spread(samples, |xs| quantile_mut(xs, 0.5))
}

/// The spread of the mean.
pub fn mean_spread(samples: &[f64]) -> Option<Spread> {
    spread(samples, |xs| xs.iter().sum::<f64>() / xs.len() as f64)
}

/// The median; `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// A quantile, by the rule of [`quantile_sorted`]; `None` without samples.
pub fn quantile(samples: &[f64], part: f64) -> Option<f64> {
    let mut finite: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    if finite.is_empty() { None } else { Some(quantile_mut(&mut finite, part)) }
}

/// Median absolute deviation from the median, times 1.4826: of a normal distribution it is the standard deviation.
pub fn mad(samples: &[f64]) -> Option<f64> {
    let middle = median(samples)?;
    let away: Vec<f64> = samples.iter().map(|x| (x - middle).abs()).collect();
    Some(median(&away)? * 1.4826)
}

/// A sample this many [`mad`]s from the median is an outlier, unless told otherwise.
pub const FAR: f64 = 5.0;
/// Where more than half of the samples are equal, the deviation is taken to be this part of the median.
const LEAST_DEVIATION: f64 = 1e-3;

/// Indices of the samples that lie more than `far` [`mad`]s from the median.
pub fn outliers(samples: &[f64], far: f64) -> Vec<usize> {
    let (Some(middle), Some(mad)) = (median(samples), mad(samples)) else { return vec![] };
    let limit = far * mad.max(LEAST_DEVIATION * middle.abs());
    let is_far = |x: f64| x.is_finite() && (x - middle).abs() > limit;
    samples.iter().enumerate().filter(|(_, x)| is_far(**x)).map(|(i, _)| i).collect()
}

/// Autocorrelation of the samples' ranks at some lag: how much a sample tells of the one so many later. Ranks, so that
/// one far outlier neither makes nor hides a correlation. 0 where all are equal or too few.
pub fn autocorrelation(samples: &[f64], lag: usize) -> f64 {
    lagged(&ranks(samples), lag)
}

/// Average ranks around their mean.
fn ranks(samples: &[f64]) -> Vec<f64> {
    let finite: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    let mut order: Vec<usize> = (0..finite.len()).collect();
    order.sort_by(|&a, &b| finite[a].total_cmp(&finite[b]));
    let mut ranks = vec![0.0; finite.len()];
    let middle = (finite.len() as f64 - 1.0) / 2.0;
    let mut first = 0;
    while first < order.len() {
        let equal = order[first..].iter().take_while(|&&i| finite[i] == finite[order[first]]).count();
        let rank = first as f64 + (equal as f64 - 1.0) / 2.0 - middle;
        order[first..first + equal].iter().for_each(|&i| ranks[i] = rank);
        first += equal;
    }
    ranks
}

fn lagged(centred: &[f64], lag: usize) -> f64 {
    let all: f64 = centred.iter().map(|x| x * x).sum();
    if all == 0.0 || lag >= centred.len() {
        return 0.0;
    }
    centred.iter().zip(&centred[lag..]).map(|(a, b)| a * b).sum::<f64>() / all
}

/// Correlation is looked for up to this lag, so that very many samples take no minutes.
const MOST_LAG: usize = 256;

/// How many consecutive samples to resample together, so that what they tell of each other stays: 1 for independent
/// ones. The rule of Politis and White (2004, corrected 2009) for circular blocks, on ranks.
pub fn block_length(samples: &[f64]) -> usize {
    let centred = ranks(samples);
    let n = centred.len();
    if n < 8 {
        return 1;
    }
    let size = n as f64;
    let most_lag = (size.sqrt().ceil() as usize + 5).min(n / 2).min(MOST_LAG);
    let correlation: Vec<f64> = (0..=most_lag).map(|lag| lagged(&centred, lag)).collect();
    // The lag after which several in a row are as small as chance makes them.
    let small = 2.0 * (size.log10() / size).sqrt();
    let row = 5.max(size.log10().sqrt() as usize);
    let quiet = |lag: usize| correlation[lag + 1..].iter().take(row).all(|r| r.abs() < small);
    let settled = (0..most_lag).find(|&lag| quiet(lag)).unwrap_or(most_lag);
    if settled == 0 {
        return 1;
    }
    let window = 2 * settled;
    let taper = |t: f64| if t <= 0.5 { 1.0 } else { 2.0 * (1.0 - t).max(0.0) };
    let (mut spectrum, mut slope) = (1.0, 0.0);
    for lag in 1..=window.min(n - 1) {
        let r = taper(lag as f64 / window as f64) * lagged(&centred, lag);
        spectrum += 2.0 * r;
        slope += 2.0 * r * lag as f64;
    }
    let most = (3.0 * size.sqrt()).min(size / 3.0).max(1.0);
    if spectrum <= 0.0 {
        return 1;
    }
    let length = (2.0 * slope * slope / (4.0 / 3.0 * spectrum * spectrum)).cbrt() * size.cbrt();
    length.ceil().clamp(1.0, most) as usize
}

/// Where the true share of successes lies with 95% confidence, by Wilson's rule: sensible for few trials and for none
/// or all successes too. (0, 1) without trials.
pub fn wilson(successes: usize, trials: usize) -> (f64, f64) {
    if trials == 0 {
        return (0.0, 1.0);
    }
    const Z: f64 = 1.959_963_984_540_054;
    let (n, p) = (trials as f64, successes.min(trials) as f64 / trials as f64);
    let scale = 1.0 + Z * Z / n;
    let middle = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let low = if successes == 0 { 0.0 } else { (middle - half) / scale };
    let high = if successes >= trials { 1.0 } else { (middle + half) / scale };
    (low, high)
}

/// Small and good enough for resampling (SplitMix64); the same seed always gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// From 0 to below `n`; 0 for `n` = 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// From 0 to below 1.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod verdict_tests;
