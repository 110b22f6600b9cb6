//! A program that lets itself be watched ([`schwann_core::live`]): its ring is read often, and summed up.

use super::sum::{Clerk, Held, Parts, Runs, about};
use super::{About, Moment, Result, Source};
use crate::profiler::Ceiling;
use schwann_core::Figure;
use schwann_core::live::{Ring, Told};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the ring is read: it holds the latest 32768 runs.
const READ: Duration = Duration::from_millis(10);
/// How long it is waited at the beginning for a session to say what it runs.
const PATIENCE: Duration = Duration::from_millis(1200);

/// How a program is watched.
pub struct Attach<'a> {
    /// Its name or process number.
    pub who: &'a str,
    /// The time within which a run should end.
    pub deadline_s: Option<f64>,
    /// Seconds from moment to moment.
    pub every_s: f64,
    /// The machine's processor's limits with so many threads, where they are known.
    pub ceiling: &'a dyn Fn(usize) -> Option<Ceiling>,
}

struct Attached {
    ring: Ring,
    about: About,
    clerk: Clerk,
    every: Duration,
    due: Instant,
    cancel: Arc<AtomicBool>,
    /// What each session told before, to know what is new.
    before: BTreeMap<u64, Told>,
    ended: bool,
}

/// Watches a program of this user, until it ends, closes its door, or somebody cancels.
pub fn attach(attach: &Attach<'_>, cancel: Arc<AtomicBool>) -> Result<Box<dyn Source>> {
    let mut ring = Ring::attach(attach.who)?;
    let patience = Instant::now() + PATIENCE;
    let told = loop {
        let told = ring.told()?;
        if !told.is_empty() || Instant::now() > patience || cancel.load(Ordering::Relaxed) {
            break told;
        }
        std::thread::sleep(READ);
    };
    let first = told.first().map(|t| &t.facts);
    let threads = first.map_or(1, |f| f.threads);
    // Limits are those of the processor, and other backends have others.
    let ceiling = first.is_some_and(|f| f.backend.starts_with("cpu")).then(|| (attach.ceiling)(threads)).flatten();
    let mut about = about(ring.name(), ring.pid(), attach.every_s, attach.deadline_s, first, ceiling.as_ref());
    about.program = ring.program().to_owned();
    let mut clerk = Clerk::new("the program's tick counter", attach.deadline_s, ceiling);
    // What ran while it was waited is not of the first moment.
    let seen = ring.read(|_, _| {})?;
    clerk.before(seen.total);
    let every = Duration::from_secs_f64(attach.every_s);
    let before = told.into_iter().map(|t| (t.session, t)).collect();
    let due = Instant::now() + every;
    Ok(Box::new(Attached { ring, about, clerk, every, due, cancel, before, ended: false }))
}

impl Attached {
    /// What a session told since it was last asked.
    fn parts(&mut self, told: &Told) -> Parts {
        let whole = Parts { seconds: told.seconds.clone(), outside: told.outside, runs: told.watched };
        let new = match self.before.get(&told.session) {
            Some(before) if before.facts == told.facts && before.watched <= told.watched => Parts {
                seconds: whole.seconds.iter().zip(&before.seconds).map(|(now, then)| (now - then).max(0.0)).collect(),
                outside: (whole.outside - before.outside).max(0.0),
                runs: whole.runs - before.watched,
            },
            _ => whole,
        };
        self.before.insert(told.session, told.clone());
        new
    }
}

impl Source for Attached {
    fn about(&self) -> &About {
        &self.about
    }

    fn next_moment(&mut self) -> Result<Option<Moment>> {
        if self.ended {
            return Ok(None);
        }
        // By session, as what a run computes is known by session; what belongs to none comes under a number of its own.
        let mut runs: BTreeMap<u64, Runs> = BTreeMap::new();
        let mut lost = 0;
        loop {
            if self.cancel.load(Ordering::Relaxed) {
                return Ok(None);
            }
            // Asked before the last reading, so that what a program did before its end is seen.
            let alive = self.ring.is_alive();
            let deadline = self.clerk.deadline_s;
            let known = |session: u64| if session < 64 { session } else { u64::MAX };
            let seen =
                self.ring.read(|seconds, session| runs.entry(known(session)).or_default().push(seconds, deadline))?;
            lost += seen.lost;
            if !alive {
                self.ended = true;
                if runs.is_empty() {
                    return Ok(None);
                }
                break;
            }
            let left = self.due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(READ));
        }
        self.due = (self.due + self.every).max(Instant::now());
        let told = self.ring.told()?;
        let busiest = runs.iter().max_by(|a, b| a.1.seconds().total_cmp(&b.1.seconds())).map(|(session, _)| *session);
        let busiest = busiest.or_else(|| told.first().map(|t| t.session));
        let mut shown = None;
        for told in told {
            let parts = self.parts(&told);
            if Some(told.session) == busiest {
                shown = Some((parts, told.facts));
            }
        }
        let others = runs.keys().filter(|session| Some(**session) != busiest).count();
        let own = busiest.and_then(|session| runs.get(&session)).filter(|_| others > 0).map(Runs::median);
        let mut all = runs.into_values().reduce(|mut all, mut more| {
            all.join(&mut more);
            all
        });
        let all = all.get_or_insert_default();
        all.lost(lost);
        let facts = shown.as_ref().map(|(_, facts)| facts);
        let pool = match facts.and_then(|f| f.pool_bytes) {
            Some(bytes) => Figure::measured(bytes as f64, "B", "the program's pool"),
            None => Figure::unavailable("B", "the program's pool", "it told of none; `door.pool(&pool)` does"),
        };
        let held = Held { rss: Some(schwann_sensors::rss_of(self.ring.pid())), pool };
        let none = Parts::default();
        let parts = shown.as_ref().map_or(&none, |(parts, _)| parts);
        let why = match facts {
            Some(_) => "no run has been watched operation by operation yet",
            None => "no watched session told what it runs; `session.watch(&door)` does, for up to eight sessions",
        };
        Ok(Some(self.clerk.moment(all, parts, facts, held, own.flatten(), why)))
    }

    fn ended(&self) -> Option<String> {
        let (name, pid) = (self.ring.name(), self.ring.pid());
        self.ended.then(|| format!("{name} (process {pid}) has ended, or closed its door"))
    }
}
