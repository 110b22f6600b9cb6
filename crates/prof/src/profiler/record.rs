//! Runs as they happened: every call with its thread and time, for traces and flame graphs.

use super::compute::sites;
use super::memory::live;
use super::{Profiler, Result};
use schwann_core::backend::Recorder;
use schwann_kernels::clock;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Calls kept for one thread.
const MOST_EVENTS: usize = 1 << 18;

/// One call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpEvent {
    /// Its place in the plan: step, and in loops the step of the body. A scope's place among the scopes.
    pub path: Vec<usize>,
    /// The node it computes, or the scope.
    pub name: String,
    /// The thread, 0 for the one that called.
    pub thread: usize,
    /// When it began, in seconds from the beginning.
    pub start_s: f64,
    /// How long it took, in seconds, with what is inside it.
    pub duration_s: f64,
}

/// Some runs as they happened (measured by the processor's tick counter).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// Calls by their beginning; loops before what is in them.
    pub events: Vec<OpEvent>,
    /// Bytes of the arena that are alive from a moment on: (seconds, bytes; derived from the plan).
    pub memory: Vec<(f64, u64)>,
    /// Runs recorded.
    pub runs: usize,
    /// Whether calls are missing, because there were more than are kept.
    pub truncated: bool,
}

impl Profiler<'_> {
    /// Runs so often, recording every call.
    pub fn record(&mut self, runs: usize) -> Result<Recording> {
        let mut rig = self.rig()?;
        let rate = clock::Rate::start();
        // Enough to be warm.
        rig.run(8)?;
        let mut recorder = Recorder::with_events(0);
        rig.watch(1, &mut recorder)?;
        let calls: u64 = recorder.times().iter().map(|t| t.calls).sum();
        let wanted = usize::try_from(calls).unwrap_or(MOST_EVENTS).saturating_mul(runs.max(1));
        let mut recorder = Recorder::with_events(wanted.min(MOST_EVENTS));
        // The first run makes room for the events.
        rig.watch(1, &mut recorder)?;
        recorder.clear();
        rig.watch(runs.max(1), &mut recorder)?;
        let total: u64 = recorder.times().iter().map(|t| t.calls).sum();
        let tick = rate.seconds_per_tick();
        let plan = rig.plan();
        let names: HashMap<Vec<usize>, &str> =
            sites(plan).into_iter().map(|s| (s.path, s.step.name.as_str())).collect();
        let places: Vec<&[usize]> = recorder.places().collect();
        let mut seen: Vec<_> = recorder.events().collect();
        seen.sort_by_key(|e| (e.start, std::cmp::Reverse(e.ticks)));
        let zero = seen.first().map_or(0, |e| e.start);
        let mut memory = vec![];
        let mut events = Vec::with_capacity(seen.len());
        for event in &seen {
            let path = places[event.place].to_vec();
            let start_s = (event.start - zero) as f64 * tick;
            if let [step] = path[..] {
                memory.push((start_s, live(plan, step).map(|b| b.bytes as u64).sum()));
            }
            let name = names.get(&path).copied().unwrap_or_default().to_owned();
            events.push(OpEvent { path, name, thread: event.thread, start_s, duration_s: event.ticks as f64 * tick });
        }
        Ok(Recording { truncated: (events.len() as u64) < total, events, memory, runs: runs.max(1) })
    }
}
