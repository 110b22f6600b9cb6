//! Runs as they happened: every call with its thread and time, and what the counters and sensors read meanwhile.
//!
//! A run may be over in microseconds, and no sensor is that quick: energy is counted about every millisecond, the
//! kernel's load every ten. So each recorded run is followed by runs that are not recorded, until a stretch is long
//! enough to be read; the model is at work all the time.

use super::memory::live;
use super::{Profiler, Result};
use schwann_core::Figure;
use schwann_core::backend::{Span, Timeline};
use schwann_core::plan::sites;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// Calls kept for one thread or queue.
const MOST_EVENTS: usize = 1 << 18;

/// Seconds of a stretch, at the least.
const STRETCH: f64 = 0.05;

/// One call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpEvent {
    /// Its place in the plan: step, and in loops the step of the body; empty for what belongs to no step. A scope's place
    /// among the scopes.
    pub path: Vec<usize>,
    /// The node it computes, or the scope.
    pub name: String,
    /// The thread or queue; of threads, 0 is the one that called.
    pub thread: usize,
    /// When it began, in seconds from the beginning.
    pub start_s: f64,
    /// How long it took, in seconds, with what is inside it.
    pub duration_s: f64,
}

/// A recorded run and those after it, with what was read over them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// When it began, in seconds from the beginning.
    pub start_s: f64,
    /// When the recorded run was over, and the others began.
    pub recorded_s: f64,
    /// When the last run was over.
    pub end_s: f64,
    /// Runs, the recorded one among them.
    pub runs: usize,
    /// Counts of the stretch, and what the sensors read at its end, by name; empty without counters.
    pub readings: BTreeMap<String, Figure>,
}

/// Some runs as they happened, by the backend's clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// Calls by their beginning; loops before what is in them.
    pub events: Vec<OpEvent>,
    /// One a recorded run, in order.
    pub stretches: Vec<Stretch>,
    /// Bytes of the arena that are alive from a moment on: (seconds, bytes; derived from the plan).
    pub memory: Vec<(f64, u64)>,
    /// Runs recorded.
    pub runs: usize,
    /// The names of the threads or queues; empty in documents from before they were kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// Whether calls are missing, because there were more than are kept.
    pub truncated: bool,
}

impl Profiler<'_> {
    /// Records every call of so many runs, and reads the counters and sensors beside each; fewer runs, but two at the
    /// least, where the options' seconds are over before.
    pub fn record(&mut self, runs: usize) -> Result<Recording> {
        let mut rig = self.rig()?;
        // Enough to be warm.
        let run_s = rig.run(8)? / 8.0;
        let rest = (STRETCH / run_s.max(1e-9)) as usize;
        let calls = |timeline: &Timeline| timeline.totals().places.iter().map(|p| p.calls).sum::<u64>();
        let mut timeline = Timeline::default();
        rig.watch(1, &mut timeline)?;
        let calls_of_one = calls(&timeline);
        let wanted = usize::try_from(calls_of_one).unwrap_or(MOST_EVENTS).saturating_mul(runs.max(1));
        let mut timeline = Timeline::with_spans(wanted.min(MOST_EVENTS));
        // The first run makes room for the events.
        rig.watch(1, &mut timeline)?;
        timeline.clear();
        let zero = timeline.began();
        let mut marks = vec![];
        let mut seconds = 0.0;
        for n in 0..runs.max(1) {
            match self.check_cancelled() {
                Err(cancelled) if n == 0 => return Err(cancelled),
                Err(_) => break,
                Ok(()) => {}
            }
            if n >= 2 && seconds > self.options.seconds {
                break;
            }
            self.tell("recorded", n as f64 / runs.max(1) as f64);
            if let Some(counters) = &mut self.counters {
                counters.start();
            }
            let start = Instant::now();
            seconds += rig.watch(1, &mut timeline)?;
            let recorded = Instant::now();
            seconds += rig.run(rest)?;
            let end = Instant::now();
            let readings = self.counters.as_mut().map(|c| c.stop()).unwrap_or_default();
            marks.push(([start, recorded, end], readings));
        }
        let total = calls(&timeline);
        let at = |moment: Instant| moment.saturating_duration_since(zero).as_secs_f64();
        let stretches: Vec<Stretch> = marks
            .into_iter()
            .map(|([start, recorded, end], readings)| Stretch {
                start_s: at(start),
                recorded_s: at(recorded),
                end_s: at(end),
                runs: 1 + rest,
                readings,
            })
            .collect();
        let plan = rig.plan();
        let names: HashMap<Vec<usize>, &str> =
            sites(plan).into_iter().map(|s| (s.path, s.step.name.as_str())).collect();
        let mut memory = vec![];
        let mut events = vec![];
        let queues = timeline.queues();
        for Span { path, queue, start_s, seconds } in timeline.spans() {
            if let [step] = path[..] {
                memory.push((start_s, live(plan, step).map(|b| b.bytes as u64).sum()));
            }
            // What belongs to no step is called as its queue is: moving inputs, submitting, moving results.
            let beside = || queues.get(queue).map(String::as_str);
            let name = if path.is_empty() { beside() } else { names.get(&path).copied() };
            let name = name.unwrap_or_default().to_owned();
            events.push(OpEvent { path, name, thread: queue, start_s, duration_s: seconds });
        }
        let calls = events.iter().filter(|e| !e.path.is_empty()).count() as u64;
        Ok(Recording { truncated: calls < total, events, memory, runs: stretches.len(), stretches, queues })
    }
}
