//! Taking samples: warm up until times settle, then unwatched and watched samples in turns.

use super::rig::Rig;
use super::{Profiler, Result};
use crate::stats::median;
use schwann_core::backend::{Clock, Timeline, Totals};
use schwann_kernels::clock::ticks;
use std::hint::black_box;
use std::time::Instant;

/// A sample lasts at least this long: reading the clock costs some tens of nanoseconds, a part in a thousand of it.
const LEAST_SAMPLE: f64 = 50e-6;
/// So does what is watched of one, for the same reason; the clock is read once more for it.
const LEAST_WATCHED: f64 = 20e-6;
/// What watching may add to a run: where it would add more, fewer runs are watched.
const MOST_OVERHEAD: f64 = 0.012;
/// Samples of even the slowest thing.
const LEAST_SAMPLES: usize = 5;
/// Samples whose medians are compared to see whether times still fall.
const WINDOW: usize = 8;
/// Times have settled when a window's median is no more than this part below the one before.
const SETTLED: f64 = 0.02;

/// What was measured.
pub(super) struct Samples {
    /// Seconds a run, of unwatched samples in order.
    pub(super) plain: Vec<f64>,
    /// Seconds a run, of the samples in which runs were watched, each beside the unwatched one of the same turn.
    pub(super) watched: Vec<f64>,
    /// The watched runs of each sample.
    pub(super) blocks: Vec<Block>,
    pub(super) runs_per_sample: usize,
    /// One run in so many of a watched sample is watched.
    pub(super) one_in: usize,
    pub(super) warm_up_runs: usize,
    pub(super) settled: bool,
    /// Whether somebody stopped it before all samples were taken.
    pub(super) stopped: bool,
    /// What the operations' times are from.
    pub(super) clock: Clock,
    /// What the times of whole runs are from.
    pub(super) host_clock: Clock,
    /// Seconds that a reading of the tick counter takes, one after the other.
    pub(super) reading_s: f64,
}

/// Watched runs that followed each other.
pub(super) struct Block {
    pub(super) seconds: f64,
    /// What they took, place by place.
    pub(super) taken: Totals,
}

impl Block {
    /// Seconds a run.
    pub(super) fn each(&self) -> f64 {
        self.seconds / self.taken.runs as f64
    }

    /// Readings of the counter a run.
    pub(super) fn readings(&self) -> f64 {
        readings(&self.taken) / self.taken.runs as f64
    }
}

/// Readings of the clock in all that was taken.
fn readings(taken: &Totals) -> f64 {
    taken.places.iter().map(|p| p.readings).sum::<f64>() + taken.outside_readings
}

impl Samples {
    pub(super) fn median(&self) -> f64 {
        median(&self.plain).unwrap_or(f64::NAN)
    }

    /// The watched runs of the middle half by time: what disturbed single runs is not in them, and their mean lies
    /// where the median does.
    pub(super) fn usual_blocks(&self) -> impl Iterator<Item = &Block> {
        let (low, high) = middle_half(self.blocks.iter().map(Block::each).collect());
        self.blocks.iter().filter(move |b| (low..=high).contains(&b.each()))
    }

    /// What watching added to the samples in which runs were watched: ratio less 1, of each turn.
    pub(super) fn overhead(&self) -> Vec<f64> {
        self.watched.iter().zip(&self.plain).map(|(w, p)| w / p - 1.0).collect()
    }

    /// What one reading added to a watched run: the difference to unwatched ones, as far as readings explain it.
    pub(super) fn reading_cost(&self) -> f64 {
        let watched = median(&self.usual_blocks().map(Block::each).collect::<Vec<_>>()).unwrap_or(f64::NAN);
        let readings = self.blocks.first().map_or(f64::NAN, Block::readings);
        let cost = (watched - self.median()) / readings;
        if cost.is_finite() { cost.clamp(0.0, 2.0 * self.reading_s) } else { 0.0 }
    }
}

/// The least and the greatest of the middle half. Both are among the times, so that of two or three none is left out:
/// quantiles lie between times, and between two of them there may be nothing.
fn middle_half(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    let quarter = times.len() / 4;
    let at = |i: usize| times.get(i).copied().unwrap_or(f64::NAN);
    (at(quarter), at(times.len().saturating_sub(1 + quarter)))
}

/// Seconds of one reading of the tick counter.
fn reading_s() -> f64 {
    const READINGS: u32 = 2000;
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..READINGS {
            black_box(ticks());
        }
        least = least.min(start.elapsed().as_secs_f64() / f64::from(READINGS));
    }
    least
}

impl Profiler<'_> {
    /// Runs until times no longer fall, for a fifth of the time at most; gives the seconds of a run, how many runs that
    /// took, and whether they settled.
    fn warm_up(&self, rig: &mut Rig) -> Result<(f64, usize, bool)> {
        let limit = self.options.seconds * 0.2;
        let start = Instant::now();
        let mut each = rig.run(1)?;
        let (mut runs, mut last) = (2, f64::NAN);
        loop {
            let per_sample = ((LEAST_SAMPLE / each.max(1e-9)).ceil() as usize).clamp(1, 1 << 20);
            let mut window = vec![];
            for _ in 0..WINDOW {
                self.check_cancelled()?;
                window.push(rig.run(per_sample)? / per_sample as f64);
                runs += per_sample;
                if start.elapsed().as_secs_f64() > limit {
                    break;
                }
            }
            each = median(&window).unwrap_or(f64::NAN);
            if each > last * (1.0 - SETTLED) {
                return Ok((each, runs, true));
            }
            if start.elapsed().as_secs_f64() > limit {
                return Ok((each, runs, false));
            }
            last = each;
        }
    }

    /// Warms up and takes the samples.
    pub(super) fn sample(&mut self, rig: &mut Rig) -> Result<Samples> {
        let reading_s = reading_s();
        self.tell("warming up", 0.0);
        let (each, warm_up_runs, settled) = self.warm_up(rig)?;
        let mut timeline = Timeline::default();
        // The first watched run makes the tables, the second says how often the counter is read.
        rig.watch(1, &mut timeline)?;
        timeline.clear();
        rig.watch(1, &mut timeline)?;
        let one_in =
            (readings(&timeline.totals()) * reading_s / each / MOST_OVERHEAD).ceil().clamp(1.0, 1000.0) as usize;
        let watched = ((LEAST_WATCHED / each).ceil() as usize).clamp(1, 1 << 20);
        // A sample is so long that what is watched of it is long enough.
        let runs_per_sample = ((LEAST_SAMPLE / each).ceil() as usize).max(watched * one_in).next_multiple_of(one_in);
        let watched = runs_per_sample / one_in;
        let mut samples = Samples {
            plain: vec![],
            watched: vec![],
            blocks: vec![],
            runs_per_sample,
            one_in,
            warm_up_runs,
            settled,
            stopped: false,
            clock: timeline.clock(),
            host_clock: timeline.host_clock(),
            reading_s,
        };
        let start = Instant::now();
        let wanted = self.options.runs;
        while samples.plain.len() < wanted {
            if let Err(cancelled) = self.check_cancelled() {
                // What was measured is kept.
                samples.stopped = !samples.plain.is_empty();
                if samples.stopped {
                    break;
                }
                return Err(cancelled);
            }
            let spent = start.elapsed().as_secs_f64() / self.options.seconds;
            if spent > 1.0 && samples.plain.len() >= LEAST_SAMPLES.min(wanted) {
                break;
            }
            if samples.plain.len().is_multiple_of(8) {
                self.tell("measuring", spent.max(samples.plain.len() as f64 / wanted as f64).min(1.0));
            }
            // In turns, and by turns first, so that whatever changes in between favours neither; what was done with the
            // last turn's tables has taken the caches.
            let mut plain = 0.0;
            let mut block = (0.0, 0.0);
            rig.run(1)?;
            for turn in 0..2 {
                if (turn + samples.plain.len()).is_multiple_of(2) {
                    plain = rig.run(runs_per_sample)?;
                } else {
                    timeline.clear();
                    block.0 = rig.watch(watched, &mut timeline)?;
                    block.1 = if one_in > 1 { rig.run(runs_per_sample - watched)? } else { 0.0 };
                }
            }
            samples.plain.push(plain / runs_per_sample as f64);
            samples.watched.push((block.0 + block.1) / runs_per_sample as f64);
            samples.blocks.push(Block { seconds: block.0, taken: timeline.totals() });
        }
        (samples.clock, samples.host_clock) = (timeline.clock(), timeline.host_clock());
        Ok(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::middle_half;

    #[test]
    fn the_middle_half_of_any_number_of_runs_has_some() {
        for n in 1..20 {
            let times: Vec<f64> = (0..n).map(|i| 1.0 + f64::from(i * 7 % n)).collect();
            let (low, high) = middle_half(times.clone());
            let inside = times.iter().filter(|t| (low..=high).contains(t)).count();
            assert!(inside >= times.len().div_ceil(2).min(times.len()), "{inside} of {n}");
        }
        assert_eq!(middle_half(vec![2.0, 1.0]), (1.0, 2.0));
        assert_eq!(middle_half(vec![4.0, 1.0, 2.0, 3.0]), (2.0, 3.0));
    }
}
