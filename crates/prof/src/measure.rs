//! Timing by repetition, after hyperfine: warm up, take many samples, show the least and the median.
//!
//! The clock itself costs some tens of nanoseconds, so a sample is as many calls as make it long beside that. The least
//! is what the machine can do; the median is what it did; a median far above the least means that something else was
//! running, and is said.

use crate::stats;
use serde::Serialize;
use std::time::{Duration, Instant};

/// A sample lasts at least this long: the clock's own cost is then under a part in a thousand.
const LEAST_SAMPLE: Duration = Duration::from_micros(50);
/// Samples of even the slowest thing, the first (cold) call not counted.
const LEAST_SAMPLES: usize = 3;
/// Samples of one thing before it is another's turn.
const SAMPLES_A_TURN: usize = 4;
/// Above this ratio of median to least a measurement is called noisy.
const NOISY: f64 = 1.2;

/// Repeated timings of one call, in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct Samples {
    /// The least.
    pub min_s: f64,
    /// The median.
    pub median_s: f64,
    /// Nine of ten took no longer.
    pub p90_s: f64,
    /// How many samples there are.
    pub samples: usize,
    /// Calls that each sample is the mean of.
    pub calls_per_sample: usize,
}

impl Samples {
    /// The samples' order statistics; there must be at least one sample.
    pub fn of(seconds: Vec<f64>, calls_per_sample: usize) -> Samples {
        let sorted = stats::sorted(&seconds);
        let at = |part: f64| stats::quantile_sorted(&sorted, part);
        Samples { min_s: at(0.0), median_s: at(0.5), p90_s: at(0.9), samples: seconds.len(), calls_per_sample }
    }

    /// Whether the samples differ so much that something else was running.
    pub fn noisy(&self) -> bool {
        self.median_s > NOISY * self.min_s
    }
}

/// Times one thing for about so many seconds.
pub fn time<E>(seconds: f64, mut f: impl FnMut() -> Result<(), E>) -> Result<Samples, E> {
    let mut all = time_together(seconds, &mut [&mut f])?;
    Ok(all.remove(0))
}

/// Times several things in turns, so that what disturbs the machine disturbs them alike; for about so many seconds in
/// all.
pub fn time_together<E>(seconds: f64, of: &mut [&mut dyn FnMut() -> Result<(), E>]) -> Result<Vec<Samples>, E> {
    let mut calls = Vec::with_capacity(of.len());
    for f in of.iter_mut() {
        // The first call allocates; the ones after it fill the caches and wake the clock.
        f()?;
        let warm_up = Duration::from_secs_f64((seconds * 0.1 / 1.0f64.max(calls.len() as f64)).max(1e-4));
        let start = Instant::now();
        let mut n = 0u32;
        while n == 0 || (start.elapsed() < warm_up && n < 1_000_000) {
            f()?;
            n += 1;
        }
        let each = start.elapsed().as_secs_f64() / f64::from(n);
        calls.push(((LEAST_SAMPLE.as_secs_f64() / each.max(1e-9)).ceil() as usize).clamp(1, 1_000_000));
    }
    let mut taken: Vec<Vec<f64>> = vec![Vec::new(); of.len()];
    let start = Instant::now();
    while taken[0].len() < LEAST_SAMPLES || (start.elapsed().as_secs_f64() < seconds && taken[0].len() < 100_000) {
        let turn = if calls.len() > 1 { SAMPLES_A_TURN } else { 1 };
        for ((f, &calls), taken) in of.iter_mut().zip(&calls).zip(&mut taken) {
            if turn > 1 {
                // What ran in between has taken the caches.
                f()?;
            }
            for _ in 0..turn {
                let start = Instant::now();
                for _ in 0..calls {
                    f()?;
                }
                taken.push(start.elapsed().as_secs_f64() / calls as f64);
            }
        }
    }
    Ok(taken.into_iter().zip(calls).map(|(t, c)| Samples::of(t, c)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_never_above_the_median_and_every_call_counts() {
        let mut calls = 0usize;
        let samples = time(0.01, || {
            calls += 1;
            Ok::<_, ()>(())
        })
        .unwrap();
        assert!(samples.min_s <= samples.median_s && samples.median_s <= samples.p90_s);
        assert!(samples.samples >= LEAST_SAMPLES && calls > samples.samples * samples.calls_per_sample);
    }

    #[test]
    fn a_failure_ends_the_measurement() {
        assert!(time(0.01, || Err("no")).is_err());
    }
}
