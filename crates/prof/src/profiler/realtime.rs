//! A running session, looked at through a rolling window: rates, percentiles, and whether it has become slower.

use super::rig::Rig;
use super::{Error, Profiler, Result};
use crate::stats;
use schwann_core::Figure;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Runs that a window holds at most; the oldest go first.
const MOST_RUNS: usize = 1 << 16;

/// How to look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RealtimeOptions {
    /// Seconds that the window reaches back.
    pub window_s: f64,
    /// Seconds from one look to the next.
    pub every_s: f64,
    /// A median this part above the best window's is a drop in speed.
    pub drop: f64,
}

impl Default for RealtimeOptions {
    fn default() -> Self {
        RealtimeOptions { window_s: 5.0, every_s: 1.0, drop: 0.2 }
    }
}

/// Durations of the latest runs. For sessions of one's own: [`Window::push`] what each run took, and look when it suits.
#[derive(Clone, Debug)]
pub struct Window {
    options: RealtimeOptions,
    started: Instant,
    /// When each run ended, and how long it took.
    runs: VecDeque<(Instant, f64)>,
    total: u64,
    /// The least median of a look so far.
    best: Option<f64>,
}

/// One look through the window.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// Seconds since it began.
    pub at: Figure,
    /// Runs since it began.
    pub total: Figure,
    /// Runs in the window.
    pub runs: Figure,
    /// Runs a second.
    pub rate: Figure,
    /// Of the time, how much was spent in runs, in %.
    pub busy: Figure,
    /// The least time of a run.
    pub min: Figure,
    /// The median.
    pub p50: Figure,
    /// 95 of 100 runs take no longer.
    pub p95: Figure,
    /// 99 of 100 runs take no longer.
    pub p99: Figure,
    /// The median over the best window's: 1 is as fast as ever.
    pub slowdown: Figure,
    /// Whether that is a drop in speed.
    pub dropped: bool,
}

impl Window {
    /// An empty window that begins now.
    pub fn new(options: RealtimeOptions) -> Result<Window> {
        let seconds = |option, s: f64| {
            if s > 0.0 && s <= 3600.0 { Ok(()) } else { Err(Error::option(option, s, "more than 0 and at most 3600")) }
        };
        seconds("window_s", options.window_s)?;
        seconds("every_s", options.every_s)?;
        if !(options.drop > 0.0 && options.drop.is_finite()) {
            return Err(Error::option("drop", options.drop, "more than 0"));
        }
        Ok(Window { options, started: Instant::now(), runs: VecDeque::new(), total: 0, best: None })
    }

    /// A run has just ended that took so long.
    pub fn push(&mut self, took: Duration) {
        let now = Instant::now();
        self.forget(now);
        if self.runs.len() == MOST_RUNS {
            self.runs.pop_front();
        }
        self.runs.push_back((now, took.as_secs_f64()));
        self.total += 1;
    }

    /// Times a run and takes its duration in.
    pub fn time<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = run();
        self.push(start.elapsed());
        result
    }

    fn forget(&mut self, now: Instant) {
        let old = |at: &Instant| now.duration_since(*at).as_secs_f64() > self.options.window_s;
        while self.runs.front().is_some_and(|(at, _)| old(at)) {
            self.runs.pop_front();
        }
    }

    /// What the window holds now.
    pub fn look(&mut self) -> Live {
        let now = Instant::now();
        self.forget(now);
        let seconds: Vec<f64> = self.runs.iter().map(|(_, s)| *s).collect();
        let sorted = stats::sorted(&seconds);
        let at = |part: f64| stats::quantile_sorted(&sorted, part);
        let source = "system clock, rolling window";
        let time = |value: f64| match sorted.len() {
            0 => Figure::unavailable("s", source, "no run ended within the window"),
            _ => Figure::measured(value, "s", source),
        };
        // The window is as long as what it has seen, if that is less.
        let since = self.runs.front().map_or(now, |(at, took)| *at - Duration::from_secs_f64(*took).min(at.elapsed()));
        let span = now.duration_since(since).as_secs_f64();
        let over = |value: f64, unit: &str| match sorted.len() {
            0 => Figure::unavailable(unit, source, "no run ended within the window"),
            _ => Figure::derived(value / span, unit, source),
        };
        let p50 = time(at(0.5));
        let slowdown = match (p50.value, self.best) {
            (Some(now), Some(best)) => Figure::derived(now / best, "×", "median over the best window's"),
            _ => Figure::unavailable("×", source, "there is no earlier window to compare with"),
        };
        if let Some(now) = p50.value {
            self.best = Some(self.best.map_or(now, |best| best.min(now)));
        }
        let count = |n: u64| Figure::measured(n as f64, "1", source);
        Live {
            at: Figure::measured(now.duration_since(self.started).as_secs_f64(), "s", "system clock"),
            total: count(self.total),
            runs: count(sorted.len() as u64),
            rate: over(sorted.len() as f64, "1/s"),
            busy: over(seconds.iter().sum::<f64>() * 100.0, "%"),
            min: time(at(0.0)),
            p95: time(at(0.95)),
            p99: time(at(0.99)),
            dropped: slowdown.value.is_some_and(|s| s > 1.0 + self.options.drop),
            p50,
            slowdown,
        }
    }
}

/// A model that runs on and on; each item is one look. Ends when it is dropped or cancelled.
pub struct Realtime {
    rig: Rig,
    window: Window,
    cancel: Arc<AtomicBool>,
    every: Duration,
}

impl Iterator for Realtime {
    type Item = Result<Live>;

    fn next(&mut self) -> Option<Result<Live>> {
        let until = Instant::now() + self.every;
        loop {
            if self.cancel.load(Ordering::Relaxed) {
                return None;
            }
            match self.rig.run(1) {
                Ok(seconds) => self.window.push(Duration::from_secs_f64(seconds)),
                Err(why) if why.is_cancelled() => return None,
                Err(why) => return Some(Err(why)),
            }
            if Instant::now() >= until {
                return Some(Ok(self.window.look()));
            }
        }
    }
}

impl Profiler<'_> {
    /// Runs the model on and on, one look an item.
    pub fn realtime(&self, options: RealtimeOptions) -> Result<Realtime> {
        let window = Window::new(options)?;
        let rig = self.rig()?;
        Ok(Realtime { rig, window, cancel: Arc::clone(&self.cancel), every: Duration::from_secs_f64(options.every_s) })
    }

    /// Runs the model and calls `see` with every look, until that breaks or somebody cancels; gives the last look.
    pub fn profile_realtime(
        &self,
        options: RealtimeOptions,
        mut see: impl FnMut(&Live) -> ControlFlow<()>,
    ) -> Result<Option<Live>> {
        let mut last = None;
        for live in self.realtime(options)? {
            let live = live?;
            let go_on = see(&live);
            last = Some(live);
            if go_on.is_break() {
                break;
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> RealtimeOptions {
        RealtimeOptions { window_s: 60.0, every_s: 0.01, drop: 0.2 }
    }

    #[test]
    fn a_median_far_above_the_best_window_is_a_drop() {
        let mut window = Window::new(RealtimeOptions { window_s: 0.05, ..options() }).unwrap();
        (0..20).for_each(|_| window.push(Duration::from_micros(10)));
        let first = window.look();
        assert!(!first.dropped && first.slowdown.value.is_none());
        std::thread::sleep(Duration::from_millis(60));
        (0..20).for_each(|_| window.push(Duration::from_micros(13)));
        let second = window.look();
        assert!(second.dropped && (second.slowdown.value.unwrap() - 1.3).abs() < 1e-9);
        assert_eq!((second.runs.value, second.total.value), (Some(20.0), Some(40.0)));
    }

    #[test]
    fn an_empty_window_has_no_times_and_says_so() {
        let live = Window::new(options()).unwrap().look();
        for figure in [&live.rate, &live.busy, &live.p50, &live.p99, &live.slowdown] {
            assert!(figure.value.is_none() && figure.reason.is_some());
        }
        assert_eq!(live.runs.value, Some(0.0));
    }

    #[test]
    fn a_window_of_no_time_is_refused() {
        for bad in [0.0, -1.0, f64::NAN, 1e9] {
            assert!(Window::new(RealtimeOptions { window_s: bad, ..options() }).is_err());
            assert!(Window::new(RealtimeOptions { every_s: bad, ..options() }).is_err());
        }
        assert!(Window::new(RealtimeOptions { drop: 0.0, ..options() }).is_err());
    }
}
