//! A model that the monitor runs itself, at a rate or flat out, and watches.
//!
//! One thread runs it and hands over what runs took every few milliseconds; the thread that wants moments sums up. Now
//! and then a run is watched operation by operation, too seldom to change what is measured.

use super::sum::{Clerk, Held, Parts, Runs, about};
use super::{About, Error, Moment, Result, Source};
use crate::profiler::{Ceiling, Options, Rig, Subject};
use schwann_core::Figure;
use schwann_core::backend::Timeline;
use schwann_core::live::Facts;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the thread that runs hands over.
const HAND_OVER: Duration = Duration::from_millis(10);
/// How often a run is watched, and no more than one in so many.
const WATCH: Duration = Duration::from_millis(40);
const WATCH_ONE_IN: u64 = 8;
/// A thread sleeps until so long before a run is due, and then looks at the clock: sleeping is not more exact.
const SPIN: Duration = Duration::from_micros(150);
/// The longest sleep, so that a cancelled drive ends soon.
const NAP: Duration = Duration::from_millis(20);

/// How a model is driven.
#[derive(Clone, Debug)]
pub struct Drive {
    /// Its name, for people.
    pub name: String,
    /// Sizes, threads and backend.
    pub options: Options,
    /// Runs a second; `None` for as many as it can.
    pub rate: Option<f64>,
    /// The time within which a run should end.
    pub deadline_s: Option<f64>,
    /// Seconds from moment to moment.
    pub every_s: f64,
    /// The machine's limits, where they are known.
    pub ceiling: Option<Ceiling>,
    /// While this is true, no run begins: something else is measured.
    pub pause: Arc<AtomicBool>,
}

/// What the thread that runs hands over.
#[derive(Default)]
struct Seen {
    runs: Runs,
    parts: Parts,
    error: Option<Error>,
}

struct Driven {
    about: About,
    facts: Facts,
    seen: Arc<Mutex<Seen>>,
    clerk: Clerk,
    every: Duration,
    due: Instant,
    cancel: Arc<AtomicBool>,
    /// Ends the thread, whoever cancelled what.
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Makes a model ready and runs it from now on, until somebody cancels or the source is dropped.
pub fn drive(subject: &Subject, drive: Drive, cancel: Arc<AtomicBool>) -> Result<Box<dyn Source>> {
    let positive = |option, value: Option<f64>, most: f64, expected| match value {
        Some(v) if !(v > 0.0 && v <= most) => Err(Error::Option { option, got: v.to_string(), expected }),
        _ => Ok(()),
    };
    positive("the rate", drive.rate, 1e9, "runs a second, more than 0")?;
    positive("the deadline", drive.deadline_s, 3600.0, "seconds, more than 0 and at most an hour")?;
    positive("the time between moments", Some(drive.every_s), 3600.0, "seconds, more than 0 and at most an hour")?;
    let rig = Rig::new(subject, &drive.options)?;
    let (facts, places) = Facts::of(rig.plan());
    let mut about =
        about(&drive.name, std::process::id(), drive.every_s, drive.deadline_s, Some(&facts), drive.ceiling.as_ref());
    about.program = "schwann monitor".into();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let stop = Arc::new(AtomicBool::new(false));
    let clerk = Clerk::new("system clock", drive.deadline_s, drive.ceiling);
    let runner = Runner {
        rig,
        places,
        parts: facts.parts.len(),
        seen: Arc::clone(&seen),
        stop: Arc::clone(&stop),
        pause: drive.pause,
    };
    let (rate, deadline_s) = (drive.rate, drive.deadline_s);
    let thread = std::thread::Builder::new().name("schwann drive".into());
    let thread = thread.spawn(move || runner.run(rate, deadline_s)).map_err(Error::Thread)?;
    let every = Duration::from_secs_f64(drive.every_s);
    let due = Instant::now() + every;
    Ok(Box::new(Driven { about, facts, seen, clerk, every, due, cancel, stop, thread: Some(thread) }))
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that runs the model.
struct Runner {
    rig: Rig,
    places: BTreeMap<Vec<usize>, usize>,
    parts: usize,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    pause: Arc<AtomicBool>,
}

impl Runner {
    fn run(mut self, rate: Option<f64>, deadline_s: Option<f64>) {
        let period = rate.map(|r| Duration::from_secs_f64(1.0 / r));
        let mut timeline = Timeline::default();
        let mut runs = Runs::default();
        let (mut handed, mut watched) = (Instant::now(), Instant::now());
        let (mut due, mut unwatched) = (Instant::now(), 0);
        while !self.stop.load(Ordering::Relaxed) {
            if self.pause.load(Ordering::Relaxed) {
                std::thread::sleep(NAP);
                continue;
            }
            if let Some(period) = period {
                if !self.wait(due, &mut runs) {
                    break;
                }
                // What was missed is not made up for.
                due = (due + period).max(Instant::now());
            }
            let now = Instant::now();
            let watch = unwatched >= WATCH_ONE_IN && now.duration_since(watched) >= WATCH;
            let took = if watch { self.rig.observe(&mut timeline) } else { self.rig.run(1) };
            match took {
                Ok(seconds) => runs.push(seconds, deadline_s),
                Err(why) => {
                    lock(&self.seen).error = Some(why.into());
                    return;
                }
            }
            unwatched = if watch { 0 } else { unwatched + 1 };
            if watch {
                watched = now;
            }
            if now.duration_since(handed) >= HAND_OVER || period.is_some_and(|p| p > HAND_OVER) {
                handed = now;
                self.hand_over(&mut runs, &mut timeline);
            }
        }
    }

    /// Sleeps until a run is due; whether it still is to run.
    fn wait(&self, due: Instant, runs: &mut Runs) -> bool {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            match left.checked_sub(SPIN) {
                Some(sleep) if !sleep.is_zero() => {
                    if sleep > HAND_OVER && runs.count > 0 {
                        lock(&self.seen).runs.join(runs);
                    }
                    std::thread::sleep(sleep.min(NAP));
                }
                _ => std::hint::spin_loop(),
            }
        }
    }

    fn hand_over(&self, runs: &mut Runs, timeline: &mut Timeline) {
        let mut parts = Parts::default();
        if timeline.runs() > 0 {
            let totals = timeline.totals();
            timeline.clear();
            parts.seconds = vec![0.0; self.parts];
            for place in &totals.places {
                if let Some(part) = self.places.get(&place.path) {
                    parts.seconds[*part] += place.seconds;
                }
            }
            parts.outside = totals.outside_s + totals.beside.iter().map(|b| b.seconds).sum::<f64>();
            parts.runs = totals.runs;
        }
        let mut seen = lock(&self.seen);
        seen.runs.join(runs);
        seen.parts.add(&parts);
    }
}

impl Source for Driven {
    fn about(&self) -> &About {
        &self.about
    }

    fn next_moment(&mut self) -> Result<Option<Moment>> {
        loop {
            if self.cancel.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if let Some(error) = lock(&self.seen).error.take() {
                return Err(error);
            }
            let left = self.due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(NAP));
        }
        self.due = (self.due + self.every).max(Instant::now());
        let Seen { runs, parts, .. } = std::mem::take(&mut *lock(&self.seen));
        let pool = Figure::unavailable("B", "pool", "the monitor runs the model without a pool");
        let held = Held { rss: None, pool };
        let why = "no run has been watched operation by operation yet";
        Ok(Some(self.clerk.moment(&runs, &parts, Some(&self.facts), held, None, why)))
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends after the run that is under way.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Sizes, built_in};

    fn driven(rate: Option<f64>, deadline_s: Option<f64>) -> Result<Box<dyn Source>> {
        let subject: Subject = built_in("wired-cfc", &Sizes::default()).unwrap().unwrap().into();
        let options = Options { batch: 1, steps: 1, ..Options::default() };
        let how =
            Drive { name: "W".into(), options, rate, deadline_s, every_s: 0.2, ceiling: None, pause: Arc::default() };
        drive(&subject, how, Arc::default())
    }

    #[test]
    fn a_driven_model_gives_moments_with_runs_and_operations() {
        let mut source = driven(None, Some(1e-9)).unwrap();
        assert_eq!((source.about().sizes["B"], source.about().pid), (1, std::process::id()));
        // On a busy machine the first may come before a run was watched.
        let moments: Vec<Moment> = (0..10).map(|_| source.next_moment().unwrap().unwrap()).collect();
        let last = &moments[9];
        assert!(last.latency.total.value > Some(10.0) && last.number == 9);
        assert_eq!(last.latency.misses_total.value, last.latency.total.value);
        assert!(last.operations.iter().any(|o| o.name.contains("cfc")), "{:?}", last.operations_reason);
        assert!(moments.windows(2).all(|m| m[1].at_s > m[0].at_s));
    }

    #[test]
    fn a_rate_is_kept_to_and_a_cancelled_drive_ends() {
        let mut source = driven(Some(50.0), None).unwrap();
        let seconds: f64 = (0..5).map(|_| source.next_moment().unwrap().unwrap().span_s).sum();
        let runs = source.next_moment().unwrap().unwrap().latency.total.value.unwrap();
        // Never more than asked for; fewer where others keep the machine busy.
        assert!((1.0..=50.0 * (seconds + 0.5) + 2.0).contains(&runs), "{runs} runs in {seconds} s");
        for (rate, deadline) in [(Some(0.0), None), (Some(f64::NAN), None), (None, Some(-1.0))] {
            assert!(matches!(driven(rate, deadline), Err(Error::Option { .. })));
        }
    }
}
