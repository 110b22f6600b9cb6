//! Moments as a trace for Perfetto: a track for every figure that changes, and the times at which rules held.

use super::{About, Moment};
use crate::trace::{Event, Trace, Track};
use schwann_core::Figure;
use std::collections::BTreeMap;

/// Moments that a trace holds; nobody looks through more.
pub const MOST_MOMENTS: usize = 200_000;
/// Operations that have a track of their own.
const MOST_OPERATIONS: usize = 32;

/// Collects moments for a trace.
#[derive(Debug)]
pub struct Tracks {
    trace: Trace,
    tracks: BTreeMap<String, Track>,
    /// Rules that hold, since when.
    open: BTreeMap<String, f64>,
    moments: usize,
    first: Option<f64>,
    last: f64,
}

impl Tracks {
    /// Of what is watched.
    pub fn new(about: &About) -> Tracks {
        let mut trace = Trace::new(format!("{} ({})", about.model, about.program));
        trace.threads = vec!["rules".into()];
        let sizes: Vec<String> = about.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        for (name, text) in [("machine", &about.machine), ("backend", &about.backend), ("sizes", &sizes.join(" "))] {
            trace.about.insert(name.into(), text.clone());
        }
        Tracks { trace, tracks: BTreeMap::new(), open: BTreeMap::new(), moments: 0, first: None, last: 0.0 }
    }

    /// Another moment; whether there was room for it.
    pub fn add(&mut self, moment: &Moment) -> bool {
        if self.moments >= MOST_MOMENTS {
            return false;
        }
        self.moments += 1;
        let began = *self.first.get_or_insert(moment.at_s - moment.span_s);
        // A moment sums up the time before it.
        let at = moment.at_s - moment.span_s - began;
        self.last = moment.at_s - began;
        let (l, w, m) = (&moment.latency, &moment.work, &moment.memory);
        let named = [
            ("latency p50", &l.p50),
            ("latency p95", &l.p95),
            ("latency p99", &l.p99),
            ("latency max", &l.max),
            ("rate", &l.rate),
            ("busy", &l.busy),
            ("deadline misses", &l.misses),
            ("flops", &w.flops),
            ("bandwidth", &w.bandwidth),
            ("share of the roof", &w.roof_share),
            ("arena", &m.arena),
            ("weights", &m.weights),
            ("pool", &m.pool),
            ("resident memory", &m.rss),
        ];
        named.into_iter().for_each(|(name, figure)| self.point(name.to_owned(), at, figure));
        for operation in moment.operations.iter().take(MOST_OPERATIONS) {
            self.point(format!("time of {}", operation.name), at, &operation.time);
        }
        for (name, figure) in &moment.machine {
            self.point(format!("machine: {name}"), at, figure);
        }
        let ended: Vec<String> = self.open.keys().filter(|rule| !moment.alerts.contains(rule)).cloned().collect();
        ended.into_iter().for_each(|rule| self.close(&rule, at));
        for rule in &moment.alerts {
            self.open.entry(rule.clone()).or_insert(at);
        }
        true
    }

    fn point(&mut self, name: String, at: f64, figure: &Figure) {
        if figure.value.is_none() && !self.tracks.contains_key(&name) {
            return;
        }
        let track = self.tracks.entry(name.clone()).or_insert_with(|| Track {
            name,
            unit: figure.unit.clone(),
            provenance: figure.provenance,
            source: figure.source.clone(),
            points: vec![],
        });
        // What has not changed needs no point.
        if track.points.last().is_none_or(|(_, last)| *last != figure.value) {
            track.points.push((at, figure.value));
        }
    }

    fn close(&mut self, rule: &str, at: f64) {
        if let Some(since) = self.open.remove(rule) {
            self.trace.events.push(Event::new(rule, "rule", 0, since, at - since));
        }
    }

    /// The trace of all of them.
    pub fn trace(mut self) -> Trace {
        let open: Vec<String> = self.open.keys().cloned().collect();
        let last = self.last;
        open.iter().for_each(|rule| self.close(rule, last));
        // Rules hold at times that overlap as they like: each has a row of its own.
        let rules: std::collections::BTreeSet<String> = self.trace.events.iter().map(|e| e.name.clone()).collect();
        for event in &mut self.trace.events {
            event.thread = rules.iter().position(|rule| *rule == event.name).unwrap_or(0);
        }
        self.trace.threads = rules.into_iter().map(|rule| format!("rule: {rule}")).collect();
        // A size that never changes tells nothing on a timeline.
        self.tracks.retain(|name, track| track.points.len() > 1 || !name.starts_with("machine: "));
        for track in self.tracks.values_mut() {
            let value = track.points.last().and_then(|(_, value)| *value);
            track.points.push((last, value));
        }
        self.trace.tracks = self.tracks.into_values().collect();
        self.trace
    }
}

#[cfg(test)]
mod tests {
    use super::super::sum::{about, tests::moment};
    use super::*;

    #[test]
    fn moments_become_tracks_and_rules_that_held_become_events() {
        let mut tracks = Tracks::new(&about("W", 1, 0.5, None, None, None));
        for i in 0..4 {
            let mut m = moment();
            (m.at_s, m.span_s) = (f64::from(i) + 1.0, 1.0);
            m.memory.rss = Figure::measured(f64::from(i), "B", "test");
            if (1..3).contains(&i) {
                m.alerts = vec!["rss growth".into()];
            }
            assert!(tracks.add(&m));
        }
        let trace = tracks.trace();
        trace.check().unwrap();
        let rss = trace.tracks.iter().find(|t| t.name == "resident memory").unwrap();
        assert_eq!(
            rss.points,
            [(0.0, Some(0.0)), (1.0, Some(1.0)), (2.0, Some(2.0)), (3.0, Some(3.0)), (4.0, Some(3.0))]
        );
        assert_eq!(trace.events.len(), 1);
        assert_eq!((trace.events[0].start_s, trace.events[0].duration_s), (1.0, 2.0));
        let mut file = vec![];
        trace.write_chrome(&mut file).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&file).unwrap();
        assert!(
            json["traceEvents"].as_array().unwrap().iter().any(|e| e["ph"] == "C" && e["name"] == "latency p50 (s)")
        );
        // What is not known has no track.
        assert!(!trace.tracks.iter().any(|t| t.name == "share of the roof"));
    }
}
