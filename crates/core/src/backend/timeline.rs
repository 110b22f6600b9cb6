//! What happened when during some runs, in one form for every backend.
//!
//! A [`Span`] is a stretch of one queue's time, in seconds, at a place of the plan; what happens inside a loop has the
//! loop's place at the beginning of its own. A backend tells the spans of each run ([`Timeline::tell`]). The CPU's
//! calls are too short for that: there every thread adds up ticks in its own tables ([`Recorder`]), which become
//! seconds when they are read. Readers see the same in both cases: the time of each place over all runs, and single
//! spans.

use super::{Observer, Recorder};
use crate::figure::Provenance;
use schwann_kernels::clock;
use std::collections::BTreeMap;
use std::time::Instant;

/// A stretch of time in which one queue was at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The place in the plan: the step, and in loops the step of the body. Empty for work that belongs to no step, such
    /// as moving inputs and results.
    pub path: Vec<usize>,
    /// The queue or thread: an index into [`Timeline::queues`].
    pub queue: usize,
    /// When it began, in seconds: for a backend that reports it, since the backend was given the run; for a reader,
    /// since [`Timeline::began`].
    pub start_s: f64,
    /// How long it took, in seconds, including what is inside it.
    pub seconds: f64,
}

/// What a place took, all runs since the last [`Timeline::clear`] together.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// The place in the plan.
    pub path: Vec<usize>,
    /// Seconds of the runs' time that it took itself, without what is inside it. An instant in which several queues are
    /// at work is divided equally among them, so that the seconds of all places add up to the time of the runs.
    pub seconds: f64,
    /// Seconds that queues spent on it, which may be more.
    pub busy_s: f64,
    /// How often it ran.
    pub calls: u64,
    /// Readings of the clock within these seconds: the cost of watching.
    pub readings: f64,
    /// The threads that shared it.
    pub workers: usize,
}

/// All that some runs took.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Totals {
    /// Runs that ended.
    pub runs: u64,
    /// Each place that ran.
    pub places: Vec<Total>,
    /// What queues did that belongs to no step, in the queues' order: moving inputs and results, submitting.
    pub beside: Vec<Beside>,
    /// Seconds that were at no place of the plan and in no queue: checks, calls.
    pub outside_s: f64,
    /// Readings of the clock in them.
    pub outside_readings: f64,
}

/// What a queue did beside the steps of the plan, all runs together.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// The queue's name.
    pub queue: String,
    /// The clock of its times.
    pub clock: Clock,
    /// Seconds of the runs' time, as in [`Total::seconds`].
    pub seconds: f64,
    /// How often.
    pub calls: u64,
}

/// What a backend says of its clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Clock {
    /// What it is, for people: `time-stamp counter`.
    pub source: String,
    /// Whether its times are measured, or come from a model of the device.
    pub origin: Provenance,
    /// The least difference that it shows, in seconds.
    pub resolution_s: f64,
}

/// A queue of a backend: what it is called, and the clock of its times.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    /// Its name, for people: `upload`.
    pub name: &'a str,
    /// The clock.
    pub clock: &'a Clock,
}

/// Where a backend writes what it measured of runs, and a reader finds it. It is an [`Observer`], which a session's run
/// fills.
#[derive(Debug)]
pub struct Timeline {
    /// The whole of each run, and the CPU's times.
    recorder: Recorder,
    rate: clock::Rate,
    began: Instant,
    began_ticks: u64,
    /// Spans to keep for each queue.
    most: usize,
    told: Option<Told>,
}

/// What was reported by a backend that measures its own spans.
#[derive(Clone, Debug)]
struct Told {
    queues: Vec<(String, Clock)>,
    sums: BTreeMap<Vec<usize>, Sum>,
    /// What belongs to no step, by queue.
    beside: BTreeMap<usize, Sum>,
    spans: Vec<Span>,
    /// Spans that were kept of each queue.
    kept: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    seconds: f64,
    busy_s: f64,
    calls: u64,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::with_spans(0)
    }
}

impl Timeline {
    /// One that adds up, and also keeps the first `most` spans of every queue as they happened.
    pub fn with_spans(most: usize) -> Timeline {
        let (rate, began, began_ticks) = (clock::Rate::start(), Instant::now(), clock::ticks());
        Timeline { recorder: Recorder::with_events(most), rate, began, began_ticks, most, told: None }
    }

    /// Whether runs follow each other directly from now on, so that the time of calling and returning counts as theirs
    /// too.
    pub fn link(&mut self, linked: bool) {
        self.recorder.link(linked);
    }

    /// Forgets everything; the room stays.
    pub fn clear(&mut self) {
        self.recorder.clear();
        if let Some(told) = &mut self.told {
            told.sums.clear();
            told.beside.clear();
            told.spans.clear();
            told.kept.fill(0);
        }
        (self.began, self.began_ticks) = (Instant::now(), clock::ticks());
    }

    /// A run begins; what is done before the backend gets it counts too.
    #[inline]
    pub(crate) fn start(&mut self) {
        self.recorder.start();
    }

    /// The run is over, including what is done after the backend is finished.
    #[inline]
    pub(crate) fn stop(&mut self) {
        self.recorder.stop();
    }

    /// The CPU's tables: for a backend that runs the kernels' tapes, which write into them.
    pub fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    /// A run's spans, told by a backend that keeps time itself. `given` is when the backend was given the run, from which
    /// the spans count; `queues` are its queues, the same in every run, first one that runs steps. Spans that contain others
    /// need not come before them.
    pub fn tell(&mut self, queues: &[Queue<'_>], given: Instant, spans: &[Span]) {
        let told = self.told.get_or_insert_with(|| Told {
            queues: queues.iter().map(|queue| (queue.name.to_owned(), queue.clock.clone())).collect(),
            sums: BTreeMap::new(),
            beside: BTreeMap::new(),
            spans: vec![],
            kept: vec![0; queues.len()],
        });
        for (span, own) in spans.iter().zip(own_seconds(spans)) {
            let sum = match span.path[..] {
                [] => told.beside.entry(span.queue).or_default(),
                _ => told.sums.entry(span.path.clone()).or_default(),
            };
            sum.seconds += own;
            sum.busy_s += span.seconds;
            sum.calls += 1;
            let kept = told.kept.get_mut(span.queue);
            if let Some(kept) = kept.filter(|kept| **kept < self.most) {
                *kept += 1;
                let after = given.saturating_duration_since(self.began).as_secs_f64();
                told.spans.push(Span { start_s: after + span.start_s, ..span.clone() });
            }
        }
    }

    /// Runs that ended since the last [`Timeline::clear`].
    pub fn runs(&self) -> u64 {
        self.recorder.runs()
    }

    /// The origin of the spans' times: when the timeline was made, or last cleared.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// The clock that the places' times are from: that of the first queue.
    pub fn clock(&self) -> Clock {
        let first = self.told.as_ref().and_then(|told| told.queues.first());
        first.map_or_else(|| self.host_clock(), |(_, clock)| clock.clone())
    }

    /// The clock of whole runs, and so of [`Totals::outside_s`]: the processor's counter.
    pub fn host_clock(&self) -> Clock {
        let (source, resolution_s) = (clock::NAME.into(), self.rate.seconds_per_tick());
        Clock { source, origin: Provenance::Measured, resolution_s }
    }

    /// The names of the queues that [`Span::queue`] counts.
    pub fn queues(&self) -> Vec<String> {
        match &self.told {
            Some(told) => told.queues.iter().map(|(name, _)| name.clone()).collect(),
            None => {
                let most = self.recorder.events().map(|e| e.thread).max().unwrap_or(0);
                (0..=most).map(|i| format!("thread {i}")).collect()
            }
        }
    }

    /// What each place took.
    pub fn totals(&self) -> Totals {
        let tick = self.rate.seconds_per_tick();
        let outside_s = self.recorder.outside() as f64 * tick;
        let outside_readings = self.recorder.outside_readings() as f64;
        let runs = self.recorder.runs();
        let Some(told) = &self.told else {
            let place = |t: super::Time| Total {
                seconds: t.ticks * tick,
                busy_s: t.busy as f64 * tick,
                calls: t.calls,
                readings: t.readings,
                workers: t.workers,
                path: t.path,
            };
            let places = self.recorder.times().into_iter().map(place).collect();
            return Totals { runs, places, beside: vec![], outside_s, outside_readings };
        };
        let place = |(path, sum): (&Vec<usize>, &Sum)| Total {
            path: path.clone(),
            seconds: sum.seconds,
            busy_s: sum.busy_s,
            calls: sum.calls,
            readings: 0.0,
            workers: 1,
        };
        let places: Vec<Total> = told.sums.iter().map(place).collect();
        let beside = |(queue, sum): (&usize, &Sum)| {
            let (queue, clock) = told.queues.get(*queue).cloned()?;
            Some(Beside { queue, clock, seconds: sum.seconds, calls: sum.calls })
        };
        let beside: Vec<Beside> = told.beside.iter().filter_map(beside).collect();
        // For such a backend, the recorder only has the length of the runs.
        let moved: f64 = beside.iter().map(|b| b.seconds).sum();
        let inside = moved + places.iter().map(|p| p.seconds).sum::<f64>();
        Totals { runs, places, beside, outside_s: (outside_s - inside).max(0.0), outside_readings }
    }

    /// The spans that were kept, by their beginning; those that contain others before these.
    pub fn spans(&self) -> Vec<Span> {
        let mut spans = match &self.told {
            Some(told) => told.spans.clone(),
            None => {
                let tick = self.rate.seconds_per_tick();
                let places: Vec<&[usize]> = self.recorder.places().collect();
                let span = |e: super::Event| Span {
                    path: places[e.place].to_vec(),
                    queue: e.thread,
                    start_s: e.start.saturating_sub(self.began_ticks) as f64 * tick,
                    seconds: e.ticks as f64 * tick,
                };
                self.recorder.events().map(span).collect()
            }
        };
        spans.sort_by(|a, b| a.start_s.total_cmp(&b.start_s).then(b.seconds.total_cmp(&a.seconds)));
        spans
    }
}

impl Observer for Timeline {
    fn begin(&mut self, _: usize) {}
    fn end(&mut self, _: usize) {}
    fn timeline(&mut self) -> Option<&mut Timeline> {
        Some(self)
    }
}

/// Tells an observer of a run that was measured where it happened: its timeline, if it has one; else of each step of the
/// plan, in the order in which they began.
pub fn tell(observer: &mut dyn Observer, queues: &[Queue<'_>], given: Instant, spans: &[Span]) {
    if let Some(timeline) = observer.timeline() {
        timeline.tell(queues, given, spans);
        return;
    }
    let mut steps: Vec<&Span> = spans.iter().filter(|span| span.path.len() == 1).collect();
    steps.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
    for span in steps {
        observer.begin(span.path[0]);
        observer.end(span.path[0]);
    }
}

/// For each span, its own time: an instant is divided equally among the innermost spans that are under way, those that
/// contain no other one at that instant.
fn own_seconds(spans: &[Span]) -> Vec<f64> {
    let end = |span: &Span| span.start_s + span.seconds.max(0.0);
    let mut moments: Vec<f64> = spans.iter().flat_map(|s| [s.start_s, end(s)]).collect();
    moments.sort_by(f64::total_cmp);
    moments.dedup();
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by(|&a, &b| spans[a].start_s.total_cmp(&spans[b].start_s));
    let mut coming = order.into_iter().peekable();
    let mut under_way: Vec<usize> = vec![];
    let mut own = vec![0.0; spans.len()];
    for pair in moments.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        under_way.retain(|&i| end(&spans[i]) > from);
        while let Some(i) = coming.next_if(|&i| spans[i].start_s <= from) {
            if end(&spans[i]) > from {
                under_way.push(i);
            }
        }
        // A span that belongs to no step contains no others: it runs beside the steps.
        let contains =
            |a: &Span, b: &Span| !a.path.is_empty() && a.path.len() < b.path.len() && b.path.starts_with(&a.path);
        let leaf = |&&i: &&usize| !under_way.iter().any(|&other| contains(&spans[i], &spans[other]));
        let leaves: Vec<usize> = under_way.iter().filter(leaf).copied().collect();
        for &i in &leaves {
            own[i] += (to - from) / leaves.len() as f64;
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(path: &[usize], queue: usize, start_s: f64, seconds: f64) -> Span {
        Span { path: path.to_vec(), queue, start_s, seconds }
    }

    fn clock(source: &str) -> Clock {
        Clock { source: source.into(), origin: Provenance::Measured, resolution_s: 1e-6 }
    }

    /// The queues of a device whose copies are timed by the host.
    const SOURCES: [(&str, &str); 2] = [("compute", "a device's clock"), ("copies", "the host's clock")];

    #[test]
    fn an_instant_belongs_to_what_is_innermost_and_in_equal_parts_to_what_is_at_once() {
        let near = |own: Vec<f64>, want: &[f64]| {
            let close = own.len() == want.len() && own.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(close, "{own:?}, not {want:?}");
        };
        near(own_seconds(&[span(&[0], 0, 0.0, 1.0), span(&[1], 0, 1.0, 2.0)]), &[1.0, 2.0]);
        // A loop's own time is what its body leaves, whichever queue the body runs on.
        near(own_seconds(&[span(&[0, 0], 0, 1.0, 2.0), span(&[0], 0, 0.0, 4.0)]), &[2.0, 2.0]);
        near(
            own_seconds(&[span(&[0], 0, 0.0, 4.0), span(&[0, 0], 1, 1.0, 2.0), span(&[0, 1], 2, 2.0, 2.0)]),
            &[1.0, 1.5, 1.5],
        );
        near(own_seconds(&[span(&[0], 0, 0.0, 2.0), span(&[1], 1, 1.0, 2.0)]), &[1.5, 1.5]);
        // A span that belongs to no step runs beside the steps, not around them.
        near(own_seconds(&[span(&[], 1, 0.0, 2.0), span(&[0], 0, 1.0, 3.0)]), &[1.5, 2.5]);
        // A span of no length gets no time, and takes none from others.
        near(own_seconds(&[span(&[0], 0, 0.0, 1.0), span(&[1], 0, 0.5, 0.0)]), &[1.0, 0.0]);
        near(own_seconds(&[]), &[]);
    }

    #[test]
    fn what_a_device_tells_is_summed_by_place_and_the_rest_of_the_run_is_outside() {
        let mut timeline = Timeline::with_spans(2);
        for _ in 0..3 {
            let given = Instant::now();
            timeline.start();
            std::thread::sleep(std::time::Duration::from_millis(2));
            let spans = [
                span(&[], 1, 0.0, 1e-4),
                span(&[0], 0, 1e-4, 2e-4),
                span(&[1], 0, 3e-4, 5e-4),
                span(&[1, 0], 0, 4e-4, 1e-4),
                span(&[1, 0], 0, 6e-4, 1e-4),
            ];
            let clocks = SOURCES.map(|(_, source)| clock(source));
            let queues = [0, 1].map(|i| Queue { name: SOURCES[i].0, clock: &clocks[i] });
            timeline.tell(&queues, given, &spans);
            timeline.stop();
        }
        let totals = timeline.totals();
        assert_eq!(
            (totals.runs, timeline.clock(), timeline.queues()),
            (3, clock("a device's clock"), vec!["compute".into(), "copies".into()])
        );
        let seen: Vec<(&[usize], u64, f64)> =
            totals.places.iter().map(|p| (&p.path[..], p.calls, (p.seconds * 1e7).round() / 1e7)).collect();
        assert_eq!(seen, [(&[0][..], 3, 6e-4), (&[1], 3, 9e-4), (&[1, 0], 6, 6e-4)]);
        // Spans of no step are counted for their queue, and time without any span is outside.
        let beside: Vec<(&str, u64, f64)> =
            totals.beside.iter().map(|b| (b.queue.as_str(), b.calls, (b.seconds * 1e7).round() / 1e7)).collect();
        assert_eq!(beside, [("copies", 3, 3e-4)]);
        assert_eq!(totals.beside[0].clock.source, "the host's clock");
        assert!(totals.outside_s >= 3.0 * (2e-3 - 8e-4) - 1e-6 && totals.outside_s < 3.0, "{}", totals.outside_s);
        let kept = timeline.spans();
        assert_eq!(kept.iter().map(|s| s.queue).collect::<Vec<_>>(), [1, 0, 0, 1], "two of each queue");
        assert!(kept.windows(2).all(|w| w[0].start_s <= w[1].start_s));
        assert!((kept[1].start_s - kept[0].start_s - 1e-4).abs() < 1e-9 && kept[3].start_s > 2e-3);
        timeline.clear();
        assert!(timeline.totals().places.is_empty() && timeline.spans().is_empty() && timeline.runs() == 0);
    }

    #[test]
    fn an_observer_without_a_timeline_is_told_of_the_steps_in_order() {
        struct Seen(Vec<(char, usize)>);
        impl Observer for Seen {
            fn begin(&mut self, step: usize) {
                self.0.push(('b', step));
            }
            fn end(&mut self, step: usize) {
                self.0.push(('e', step));
            }
        }
        let mut seen = Seen(vec![]);
        let spans =
            [span(&[1], 0, 2.0, 1.0), span(&[0], 0, 1.0, 1.0), span(&[1, 0], 0, 2.0, 0.5), span(&[], 0, 0.0, 1.0)];
        let queue = Queue { name: "compute", clock: &clock("a device's clock") };
        tell(&mut seen, &[queue], Instant::now(), &spans);
        assert_eq!(seen.0, [('b', 0), ('e', 0), ('b', 1), ('e', 1)]);
    }
}
