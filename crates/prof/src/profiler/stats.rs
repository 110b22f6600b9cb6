//! The few statistics that a profile needs of its own samples.

use crate::stats;
use schwann_core::figure::{Ends, Spread};

/// Samples in order of size.
pub(crate) struct Sorted(Vec<f64>);

impl Sorted {
    pub(crate) fn of(samples: &[f64]) -> Sorted {
        Sorted(stats::sorted(samples))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value that this part of the samples does not exceed, between two of them by their distance; NaN of none.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        stats::quantile_sorted(&self.0, part)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// Standard deviation of the population that the samples are of; NaN of fewer than two.
    pub(crate) fn std(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|s| (s - mean).powi(2)).sum();
        if self.0.len() < 2 { f64::NAN } else { (squares / (self.0.len() - 1) as f64).sqrt() }
    }

    /// Where the median of the population lies with a confidence of 95%: between two ranks, whatever the distribution.
    pub(crate) fn median_spread(&self) -> Option<Spread> {
        let n = self.0.len();
        if n < 6 {
            return None;
        }
        let half = 0.98 * (n as f64).sqrt();
        let rank = |r: f64| r.clamp(0.0, (n - 1) as f64) as usize;
        let (low, high) = (self.0[rank((n as f64 / 2.0 - half).floor())], self.0[rank((n as f64 / 2.0 + half).ceil())]);
        Some(Spread { low, high, ends: Ends::Confidence95, samples: n as u64 })
    }

    /// Where the mean of the population lies with a confidence of 95%, for samples that are many.
    pub(crate) fn mean_spread(&self) -> Option<Spread> {
        let n = self.0.len();
        let half = 1.96 * self.std() / (n as f64).sqrt();
        let mean = self.mean();
        (n >= 6).then_some(Spread { low: mean - half, high: mean + half, ends: Ends::Confidence95, samples: n as u64 })
    }

    /// Beyond these a sample is far from the others: one and a half times the middle half's width from it.
    pub(crate) fn fences(&self) -> (f64, f64) {
        let (low, high) = (self.quantile(0.25), self.quantile(0.75));
        let reach = 1.5 * (high - low);
        (low - reach, high + reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_one_to_a_hundred_are_where_they_belong() {
        let s = Sorted::of(&(1..=101).rev().map(f64::from).collect::<Vec<_>>());
        assert_eq!((s.quantile(0.0), s.median(), s.quantile(0.95), s.quantile(1.0)), (1.0, 51.0, 96.0, 101.0));
        assert_eq!(s.mean(), 51.0);
        assert!((s.std() - 29.3).abs() < 0.01);
        let spread = s.median_spread().unwrap();
        assert!(spread.low < 51.0 && spread.high > 51.0 && spread.low > 35.0 && spread.high < 67.0);
        assert!(Sorted::of(&[]).median().is_nan() && Sorted::of(&[1.0]).std().is_nan());
    }

    #[test]
    fn one_far_sample_is_outside_the_fences() {
        let mut samples: Vec<f64> = (0..50).map(|i| 1.0 + f64::from(i % 5) * 0.01).collect();
        samples.push(3.0);
        let (low, high) = Sorted::of(&samples).fences();
        assert_eq!(samples.iter().filter(|s| **s < low || **s > high).count(), 1);
    }
}
