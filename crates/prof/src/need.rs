//! What somebody needs of a model (a deadline, a rate, memory) against what was measured here or predicted elsewhere:
//! pass, fail, or cannot tell.
//!
//! A verdict rests on an interval and not on a number: it is a pass where all of the interval is within the limit, a
//! fail where all of it is beyond, and else nobody can tell. Measured intervals come from blocks of runs, since runs one
//! after the other are alike; predicted ones are the prediction's band.

use crate::device::roof::Ready;
use schwann_core::Figure;
use schwann_core::figure::{Ends, Spread};
use serde::Serialize;
use std::time::Instant;

/// Runs are measured in so many blocks.
const BLOCKS: usize = 20;
/// Student's t for that many, 95% both sides.
const T: f64 = 2.093;
/// One run in so many may miss a deadline: what else runs on a machine that is no real-time system takes some.
pub const MISSES: f64 = 0.001;
/// Runs of a block that are kept at most.
const MOST_RUNS: usize = 100_000;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Within the limit, beyond doubt.
    Pass,
    /// Beyond the limit, beyond doubt.
    Fail,
    /// The interval has the limit in it, or there is none.
    CannotTell,
}

/// One need and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// `deadline`, `p99`, `memory`, `throughput`.
    pub metric: String,
    /// What was asked for.
    pub limit: Figure,
    /// What it takes or reaches, with its interval.
    pub reached: Figure,
    /// What came of it.
    pub verdict: Verdict,
    /// What it rests on, in words.
    pub why: String,
}

/// What is needed; seconds, bytes, samples a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Needs {
    /// Every run is to be done within this, but for one in a thousand.
    pub deadline_s: Option<f64>,
    /// 99 of 100 runs are to be done within this.
    pub p99_s: Option<f64>,
    /// Weights, arena, inputs and outputs are to be at most this.
    pub memory_bytes: Option<f64>,
    /// Sequence steps a second, at least.
    pub throughput: Option<f64>,
}

impl Needs {
    /// Whether nothing is needed.
    pub fn is_empty(&self) -> bool {
        *self == Needs::default()
    }
}

/// Durations of runs, block by block.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocks(Vec<Vec<f64>>);

impl Blocks {
    /// Measures for about so many seconds, every run by itself.
    pub fn measure(ready: &mut Ready, seconds: f64) -> crate::device::Result<Blocks> {
        let timed = |ready: &mut Ready, seconds: f64| {
            let (began, mut runs) = (Instant::now(), vec![]);
            while runs.is_empty() || (began.elapsed().as_secs_f64() < seconds && runs.len() < MOST_RUNS) {
                let start = Instant::now();
                ready.run()?;
                runs.push(start.elapsed().as_secs_f64());
            }
            Ok::<_, crate::device::Error>(runs)
        };
        // The first runs allocate and fill the caches.
        timed(ready, seconds * 0.1)?;
        (0..BLOCKS).map(|_| timed(ready, seconds / BLOCKS as f64)).collect::<Result<_, _>>().map(Blocks)
    }

    /// Of these durations, for tests and other clocks.
    pub fn of(blocks: Vec<Vec<f64>>) -> Blocks {
        Blocks(blocks)
    }

    fn runs(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Mean over the blocks of a statistic, with its confidence interval.
    fn mean(&self, statistic: impl Fn(&[f64]) -> f64) -> (f64, f64, f64) {
        let values: Vec<f64> = self.0.iter().map(|b| statistic(b)).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let half = T * (variance / n).sqrt();
        (mean, mean - half, mean + half)
    }

    fn sorted(&self) -> Vec<f64> {
        let mut all: Vec<f64> = self.0.iter().flatten().copied().collect();
        all.sort_by(f64::total_cmp);
        all
    }

    fn figure(&self, (value, low, high): (f64, f64, f64), unit: &str, what: &str) -> Figure {
        let spread = Spread { low: low.max(0.0), high, ends: Ends::Confidence95, samples: self.runs() as u64 };
        let source = format!("system clock around each of {} runs in {} blocks; {what}", self.runs(), self.0.len());
        Figure::measured(value, unit, source).with_spread(spread)
    }

    /// The part of the runs that took longer than this.
    fn misses(&self, limit_s: f64) -> (f64, f64, f64) {
        let part = |b: &[f64]| b.iter().filter(|t| **t > limit_s).count() as f64 / b.len().max(1) as f64;
        let (mean, low, high) = self.mean(part);
        // Of n runs without a miss, up to 3 in n may still miss (95%).
        (mean, low.max(0.0), high.max(3.0 / self.runs().max(1) as f64))
    }

    /// The 99th percentile: by order statistics of all runs and by the blocks, whichever is wider.
    fn p99(&self) -> Option<(f64, f64, f64)> {
        let sorted = self.sorted();
        let n = sorted.len() as f64;
        let half = 1.96 * (n * 0.99 * 0.01).sqrt();
        let (at, low, high) = (0.99 * n, 0.99 * n - half, 0.99 * n + half);
        // Too few runs have no run beyond it.
        let beyond = sorted.get(high.ceil() as usize)?;
        let one = |b: &[f64]| {
            let mut b = b.to_vec();
            b.sort_by(f64::total_cmp);
            b[((b.len() as f64 * 0.99) as usize).min(b.len() - 1)]
        };
        let (_, block_low, block_high) = self.mean(one);
        let low = sorted[low as usize].min(block_low.max(0.0));
        Some((sorted[at as usize], low, beyond.max(block_high)))
    }
}

/// Whether a quantity with this interval is at most (or at least) a limit.
fn judge(limit: f64, low: f64, high: f64, at_most: bool) -> Verdict {
    let (within, beyond) = if at_most { (high <= limit, low > limit) } else { (low >= limit, high < limit) };
    match (within, beyond) {
        (true, _) => Verdict::Pass,
        (_, true) => Verdict::Fail,
        _ => Verdict::CannotTell,
    }
}

fn asked(value: f64, unit: &str) -> Figure {
    Figure::derived(value, unit, "asked for")
}

fn memory_line(limit: f64, memory: &Figure) -> Line {
    let verdict = memory.value.map_or(Verdict::CannotTell, |m| judge(limit, m, m, true));
    Line {
        metric: "memory".into(),
        limit: asked(limit, "B"),
        reached: memory.clone(),
        verdict,
        why: "weights, arena, inputs and outputs of one session; the program around it takes some more".into(),
    }
}

/// The needs against runs measured here; a run is of so many samples (sequences × steps).
pub fn measured(needs: &Needs, blocks: &Blocks, samples: f64, memory: &Figure) -> Vec<Line> {
    let mut lines = vec![];
    let runs = blocks.runs();
    if let Some(limit) = needs.deadline_s {
        let (part, low, high) = blocks.misses(limit);
        let missed = (part * runs as f64).round();
        let verdict = judge(MISSES, low, high, true);
        let few = high > MISSES && part <= MISSES;
        let more = if few { "; that is too few runs to be sure: give more --seconds" } else { "" };
        let slowest = blocks.sorted().last().copied().unwrap_or(f64::NAN);
        lines.push(Line {
            metric: "deadline".into(),
            limit: asked(limit, "s"),
            reached: blocks.figure(blocks.mean(median), "s", "mean of the blocks' medians"),
            verdict,
            why: format!(
                "{missed} of {runs} runs took longer, the slowest {}; with 95% confidence at most {}% do, and 0.1% may{more}",
                schwann_core::plan::seconds(slowest),
                crate::plot::unit::digits(100.0 * high)
            ),
        });
    }
    if let Some(limit) = needs.p99_s {
        let line = match blocks.p99() {
            Some(found) => (
                blocks.figure(found, "s", "99th percentile, order statistics and blocks"),
                judge(limit, found.1, found.2, true),
                format!("99 of 100 runs; of {runs}"),
            ),
            None => (
                Figure::unavailable("s", "system clock", format!("{runs} runs are too few for a 99th percentile")),
                Verdict::CannotTell,
                "give more --seconds".into(),
            ),
        };
        let (reached, verdict, why) = line;
        lines.push(Line { metric: "p99".into(), limit: asked(limit, "s"), reached, verdict, why });
    }
    if let Some(limit) = needs.throughput {
        let rate = |b: &[f64]| samples * b.len() as f64 / b.iter().sum::<f64>();
        let found = blocks.mean(rate);
        lines.push(Line {
            metric: "throughput".into(),
            limit: asked(limit, "1/s"),
            reached: blocks.figure(found, "1/s", "sequence steps over the time of all runs"),
            verdict: judge(limit, found.1, found.2, false),
            why: "sequences × steps per second, one run after the other".into(),
        });
    }
    lines.extend(needs.memory_bytes.map(|limit| memory_line(limit, memory)));
    lines
}

/// The needs against a predicted time of a run with its band.
pub fn predicted(needs: &Needs, time: &Figure, samples: f64, memory: &Figure) -> Vec<Line> {
    let mut lines = vec![];
    let band = time.value.zip(time.spread);
    let unknown = || time.reason.clone().unwrap_or_else(|| "there is no prediction".into());
    if let Some(limit) = needs.deadline_s {
        let verdict = band.map_or(Verdict::CannotTell, |(_, s)| judge(limit, s.low, s.high, true));
        let why = match band {
            Some(_) => "one run on an idle device; delays by other programs are not predicted".into(),
            None => unknown(),
        };
        let (limit, reached) = (asked(limit, "s"), time.clone());
        lines.push(Line { metric: "deadline".into(), limit, reached, verdict, why });
    }
    if let Some(limit) = needs.p99_s {
        // A run that is slower than the limit at best has no better 99th percentile.
        let verdict = match band {
            Some((_, s)) if s.low > limit => Verdict::Fail,
            _ => Verdict::CannotTell,
        };
        let why = "the slowest runs are those that something else delays; that is measured, not predicted";
        let reached = Figure::unavailable("s", "prediction", why);
        lines.push(Line { metric: "p99".into(), limit: asked(limit, "s"), reached, verdict, why: why.into() });
    }
    if let Some(limit) = needs.throughput {
        let rate = |seconds: f64| samples / seconds;
        let mut reached = time.derive("1/s", format!("sequence steps over the predicted time; {}", time.source), rate);
        reached.spread = band.map(|(_, s)| Spread { low: rate(s.high), high: rate(s.low), ..s });
        let verdict = reached.spread.map_or(Verdict::CannotTell, |s| judge(limit, s.low, s.high, false));
        let why = band.map_or_else(unknown, |_| "sequences × steps per second, one run after the other".into());
        lines.push(Line { metric: "throughput".into(), limit: asked(limit, "1/s"), reached, verdict, why });
    }
    lines.extend(needs.memory_bytes.map(|limit| memory_line(limit, memory)));
    lines
}

fn median(block: &[f64]) -> f64 {
    let mut block = block.to_vec();
    block.sort_by(f64::total_cmp);
    block.get(block.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The worst of several verdicts: a fail, else a doubt, else a pass.
pub fn worst(lines: &[Line]) -> Verdict {
    let any = |verdict| lines.iter().any(|l| l.verdict == verdict);
    match (any(Verdict::Fail), any(Verdict::CannotTell)) {
        (true, _) => Verdict::Fail,
        (_, true) => Verdict::CannotTell,
        _ => Verdict::Pass,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of runs of a millisecond, less or more by a little; every so many runs one is slow.
    fn blocks(runs: usize, slow_every: Option<usize>) -> Blocks {
        let run = |i: usize| match slow_every {
            Some(n) if i % n == n - 1 => 5e-3,
            _ => 1e-3 * (1.0 + 0.01 * ((i * 7 % 11) as f64 / 11.0)),
        };
        Blocks::of((0..BLOCKS).map(|b| (0..runs).map(|i| run(b * runs + i)).collect()).collect())
    }

    fn one(needs: Needs, blocks: &Blocks) -> Line {
        measured(&needs, blocks, 4.0, &Figure::derived(1e6, "B", "plan")).remove(0)
    }

    #[test]
    fn a_deadline_is_met_missed_or_not_decided() {
        let at = |limit: f64, b: &Blocks| one(Needs { deadline_s: Some(limit), ..Needs::default() }, b);
        let steady = blocks(500, None);
        assert_eq!(at(2e-3, &steady).verdict, Verdict::Pass);
        assert_eq!(at(0.5e-3, &steady).verdict, Verdict::Fail);
        // One in a hundred is late.
        let late = at(2e-3, &blocks(500, Some(100)));
        assert_eq!(late.verdict, Verdict::Fail);
        assert!(late.why.contains("100 of 10000 runs") && late.why.contains("5.00 ms"), "{}", late.why);
        let few = at(2e-3, &blocks(20, None));
        assert_eq!(few.verdict, Verdict::CannotTell);
        assert!(few.why.contains("too few runs"), "{}", few.why);
    }

    #[test]
    fn percentile_rate_and_memory_are_judged_by_their_intervals() {
        let b = blocks(500, Some(50));
        let p99 = |limit: f64| one(Needs { p99_s: Some(limit), ..Needs::default() }, &b).verdict;
        assert_eq!((p99(6e-3), p99(2e-3)), (Verdict::Pass, Verdict::Fail), "2% take 5 ms");
        let few = one(Needs { p99_s: Some(1.0), ..Needs::default() }, &blocks(2, None));
        assert_eq!((few.verdict, few.reached.value), (Verdict::CannotTell, None));
        let rate = |limit: f64| one(Needs { throughput: Some(limit), ..Needs::default() }, &blocks(500, None)).verdict;
        assert_eq!((rate(3000.0), rate(5000.0)), (Verdict::Pass, Verdict::Fail), "4 samples a millisecond");
        let memory = |limit: f64| one(Needs { memory_bytes: Some(limit), ..Needs::default() }, &b).verdict;
        assert_eq!((memory(2e6), memory(1e5)), (Verdict::Pass, Verdict::Fail));
    }

    #[test]
    fn a_band_that_holds_the_limit_cannot_tell() {
        let spread = Spread { low: 1e-3, high: 4e-3, ends: Ends::Band, samples: 10 };
        let time = Figure::predicted(2e-3, "s", "prices").with_spread(spread);
        let memory = Figure::derived(1e6, "B", "plan");
        let deadline = |limit: f64| {
            predicted(&Needs { deadline_s: Some(limit), ..Needs::default() }, &time, 1.0, &memory)[0].verdict
        };
        assert_eq!(
            [deadline(5e-3), deadline(2e-3), deadline(0.5e-3)],
            [Verdict::Pass, Verdict::CannotTell, Verdict::Fail]
        );
        let needs = Needs { p99_s: Some(1.0), throughput: Some(500.0), ..Needs::default() };
        let lines = predicted(&needs, &time, 1.0, &memory);
        assert!(lines.iter().all(|l| l.verdict == Verdict::CannotTell), "{lines:?}");
        assert_eq!(lines[1].reached.spread.map(|s| (s.low.round(), s.high.round())), Some((250.0, 1000.0)));
        let none = Figure::unavailable("s", "prices", "no price for attention");
        let line = &predicted(&Needs { deadline_s: Some(1.0), ..Needs::default() }, &none, 1.0, &memory)[0];
        assert!(line.verdict == Verdict::CannotTell && line.why.contains("attention"));
    }
}
