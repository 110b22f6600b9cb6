//! The times of a run as spans.

use crate::pieces::{Part, Script};
use schwann_core::Provenance;
use schwann_core::backend::{Clock, Span};
use std::sync::Arc;
use std::time::Instant;

/// The names of the queues, and their numbers.
pub(crate) const QUEUES: [&str; 4] = ["compute", "upload", "submission", "download"];
pub(crate) const COMPUTE: usize = 0;
pub(crate) const UPLOAD: usize = 1;
pub(crate) const SUBMISSION: usize = 2;
pub(crate) const DOWNLOAD: usize = 3;

/// A submission that ended.
#[derive(Debug)]
pub(crate) struct Lap {
    pub(crate) parts: Arc<[Part]>,
    /// When submitting it began, when the driver had it, and when its end was seen.
    pub(crate) from: Instant,
    pub(crate) given: Instant,
    pub(crate) to: Instant,
    /// The beginning and end of each launch, by the device's clock.
    pub(crate) times: Option<Vec<[f64; 2]>>,
}

/// The host's clock for a device's steps, where the device has none.
pub(crate) fn host_clock() -> Clock {
    by_clock("the host's clock, around a submission for each step: with what it takes to submit and to notice the end")
}

/// The host's clock for what the host does.
pub(crate) fn host_calls_clock() -> Clock {
    by_clock("the host's clock, around the calls of the driver")
}

fn by_clock(source: &str) -> Clock {
    Clock { source: source.into(), origin: Provenance::Measured, resolution_s: 1e-9 }
}

/// A span of moving data or submitting, by the host's clock.
pub(crate) fn by_host(queue: usize, given: Instant, from: Instant, to: Instant) -> Span {
    Span { path: vec![], queue, start_s: seconds(given, from), seconds: seconds(from, to) }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

/// The spans of all steps of a run: the parts of one step in one round of the loops around it are one span, and a loop
/// is a span around everything in it.
pub(crate) fn steps(script: &Script, laps: &[Lap], given: Instant) -> Vec<Span> {
    let shift = shift(laps, given);
    // Each part with its beginning and end.
    let mut parts: Vec<(&Part, [f64; 2])> = vec![];
    for lap in laps {
        let (from, to) = (seconds(given, lap.from), seconds(given, lap.to));
        let mut times = lap.times.iter().flatten();
        for part in lap.parts.iter() {
            let time = match (&lap.times, &part.args) {
                (Some(_), Some(_)) => times.next().map(|time| time.map(|t| (t + shift).max(0.0))),
                (None, Some(_)) => Some([seconds(given, lap.given), to]),
                // A dispatch without work takes no time.
                (_, None) => None,
            };
            let before = parts.last().map_or(from, |(_, time)| time[1]);
            parts.push((part, time.unwrap_or([before; 2])));
        }
    }
    let mut spans = vec![];
    let place = |part: &Part| &script.dispatches[part.dispatch].place;
    let deepest = script.dispatches.iter().map(|dispatch| dispatch.place.len()).max().unwrap_or(0);
    for depth in 1..=deepest {
        let mut open: Option<(&Part, [f64; 2])> = None;
        for &(part, [start, end]) in &parts {
            let rounds = |part: &Part| part.rounds[..part.rounds.len().min(depth - 1)].to_vec();
            let inside = place(part).len() >= depth;
            let same = |other: &Part| place(other)[..depth] == place(part)[..depth] && rounds(other) == rounds(part);
            match &mut open {
                Some((first, time)) if inside && same(first) => time[1] = time[1].max(end),
                _ => {
                    spans.extend(open.take().map(|(first, time)| span(&place(first)[..depth], time)));
                    open = inside.then_some((part, [start, end]));
                }
            }
        }
        spans.extend(open.map(|(first, time)| span(&place(first)[..depth], time)));
    }
    spans
}

fn span(path: &[usize], [start, end]: [f64; 2]) -> Span {
    Span { path: path.to_vec(), queue: COMPUTE, start_s: start, seconds: (end - start).max(0.0) }
}

/// What must be added to the device's seconds so that they count from when the run was given. The two clocks are not
/// synchronized, but nothing begins before it is submitted or ends after its end was seen.
fn shift(laps: &[Lap], given: Instant) -> f64 {
    let (mut least, mut most) = (f64::NEG_INFINITY, f64::INFINITY);
    for lap in laps {
        let times = lap.times.as_deref().unwrap_or_default();
        if let (Some(first), Some(last)) = (times.first(), times.last()) {
            least = least.max(seconds(given, lap.from) - first[0]);
            most = most.min(seconds(given, lap.to) - last[1]);
        }
    }
    let shift = least.min(most);
    if shift.is_finite() { shift } else { 0.0 }
}
