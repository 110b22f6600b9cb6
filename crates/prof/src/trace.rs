//! What happened when: operations on their threads, and counters beside them, on one clock.
//!
//! [`Trace::write_chrome`] writes the JSON that Perfetto (ui.perfetto.dev) and Chrome's tracing page open. The writer is
//! our own, since it is short and the crates for it are not kept. It streams: a trace of a million events needs no
//! string of them all. Times are seconds from the trace's beginning, and are rounded to nanoseconds at both ends, so
//! that what was nested stays nested.

use crate::plot::unit::known;
use crate::profile::MemoryPoint;
use crate::profiler::{Recording, Stretch};
use schwann_core::figure::Provenance;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Something that took time on a thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What: the operation's node.
    pub name: String,
    /// Which kind: `op`, `loop`, `run`, a user's own.
    pub category: String,
    /// Where: a place in [`Trace::threads`].
    pub thread: usize,
    /// Seconds from the beginning of the trace.
    pub start_s: f64,
    /// Seconds.
    pub duration_s: f64,
    /// What else there is to say of it, by name.
    pub args: Map<String, Value>,
}

impl Event {
    /// An event without further words.
    pub fn new(
        name: impl Into<String>,
        category: impl Into<String>,
        thread: usize,
        start_s: f64,
        duration_s: f64,
    ) -> Event {
        Event { name: name.into(), category: category.into(), thread, start_s, duration_s, args: Map::new() }
    }

    /// With something more to say of it.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<Value>) -> Event {
        self.args.insert(name.into(), value.into());
        self
    }

    /// Its start and its end in nanoseconds.
    pub fn span_ns(&self) -> (i64, i64) {
        // A cast of a float is bounded, and what is no number becomes 0.
        let start = (self.start_s * 1e9).round() as i64;
        let end = ((self.start_s + self.duration_s.max(0.0)) * 1e9).round() as i64;
        (start, end.max(start))
    }
}

/// What the times of a trace include, among what is said about it.
const WATCHED: &str = "times";

/// A number that changes over time: memory, a counter, a sensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// What it is.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// How its values came about.
    pub provenance: Provenance,
    /// From where exactly.
    pub source: String,
    /// Seconds from the beginning of the trace, and the value from then on; `None` where it was not known.
    pub points: Vec<(f64, Option<f64>)>,
}

impl Recording {
    /// Some recorded runs, with what the profile of the same model says: one timeline of operations, threads, memory and
    /// what the counters read.
    pub fn told(&self, profile: &crate::Profile) -> Trace {
        let mut trace = Trace::new(profile.model.name.clone());
        let kernels: BTreeMap<&[usize], &str> =
            profile.compute.ops.iter().map(|op| (&op.path[..], op.kernel.as_str())).collect();
        trace.threads = self.queues.clone();
        for event in &self.events {
            let category = match event.path.len() {
                0 => "beside",
                1 => "step",
                _ => "op",
            };
            let told = Event::new(event.name.clone(), category, event.thread, event.start_s, event.duration_s);
            let kernel = kernels.get(&event.path[..]).filter(|_| !event.path.is_empty());
            trace.events.push(match kernel {
                Some(kernel) => told.arg("kernel", *kernel),
                None => told,
            });
        }
        trace.tracks.push(Track {
            name: "live memory".into(),
            unit: "B".into(),
            provenance: Provenance::Derived,
            source: "the compiled plan".into(),
            points: self.memory.iter().map(|(at, bytes)| (*at, Some(*bytes as f64))).collect(),
        });
        for stretch in self.stretches.iter().filter(|s| s.runs > 1) {
            let (start, duration) = (stretch.recorded_s, stretch.end_s - stretch.recorded_s);
            let rest = Event::new("runs that are not recorded", "runs", 0, start, duration);
            trace.events.push(rest.arg("runs", stretch.runs - 1));
        }
        trace.tracks.extend(self.read_tracks());
        let on = match profile.workload.backend.as_str() {
            schwann_core::backend::CPU => profile.machine.isa.clone(),
            _ => profile.roof.device.clone(),
        };
        trace.about.insert("machine".into(), format!("{}, {on}", profile.machine.cpu));
        trace.about.insert("profile".into(), profile.id.clone());
        trace.about.insert(WATCHED.into(), self.watched());
        if self.truncated {
            trace.about.insert("truncated".into(), "there were more calls than are kept".into());
        }
        trace
    }

    /// What watching did to the times of the calls, in words: recorded runs beside those that followed them.
    fn watched(&self) -> String {
        let each = |s: &Stretch| {
            let (recorded, rest) = (s.recorded_s - s.start_s, (s.end_s - s.recorded_s) / (s.runs - 1) as f64);
            (recorded / rest - 1.0) * 100.0
        };
        let mut added: Vec<f64> = self.stretches.iter().filter(|s| s.runs > 1).map(each).collect();
        added.sort_by(f64::total_cmp);
        let calls = "every call of a recorded run is watched, and its time includes what that costs";
        match added.get(added.len() / 2).filter(|a| a.is_finite()) {
            Some(percent) if *percent >= 0.5 => {
                format!("{calls}: recorded runs took {percent:.0}% longer than those after them (measured)")
            }
            Some(_) => format!("{calls}: nothing that stands out beside the runs after them (measured)"),
            None => format!("{calls}: how much is not known, as no other run was timed beside them"),
        }
    }

    /// What was read over each stretch, from its beginning on to the next. Counts are given for one run, so that
    /// stretches of different lengths can be compared.
    fn read_tracks(&self) -> Vec<Track> {
        let counts = schwann_sensors::Counter::ALL.map(schwann_sensors::Counter::name);
        let names: std::collections::BTreeSet<&String> =
            self.stretches.iter().flat_map(|s| s.readings.keys()).collect();
        let track = |name: &String| {
            let counted = counts.contains(&name.as_str());
            let value = |s: &Stretch| {
                let value = s.readings.get(name)?.value?;
                Some(if counted { value / s.runs as f64 } else { value })
            };
            // A size that never changes (cores, memory in all) tells nothing on a timeline.
            let first = self.stretches.first()?.readings.get(name)?;
            let size = matches!(first.unit.as_str(), "count" | "B");
            if !counted
                && size
                && self.stretches.iter().all(|s| s.readings.get(name).map(|f| f.value) == Some(first.value))
            {
                return None;
            }
            let known = self.stretches.iter().filter_map(|s| s.readings.get(name)).find(|f| f.value.is_some())?;
            let mut points: Vec<(f64, Option<f64>)> = self.stretches.iter().map(|s| (s.start_s, value(s))).collect();
            points.extend(self.stretches.last().map(|s| (s.end_s, value(s))));
            let over =
                if counted { "over a stretch of runs, divided by them" } else { "at the end of a stretch of runs" };
            Some(Track {
                name: if counted { format!("{name} per run") } else { name.clone() },
                unit: known.unit.clone(),
                provenance: if counted { Provenance::Derived } else { known.provenance },
                source: format!("{}, {over}", known.source),
                points,
            })
        };
        names.into_iter().filter_map(track).collect()
    }
}

/// Two events of which neither holds the other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("on thread {thread}, `{first}` and `{second}` overlap, and neither lies inside the other")]
pub struct Overlap {
    /// On which thread.
    pub thread: usize,
    /// The one that began first.
    pub first: String,
    /// The other.
    pub second: String,
}

/// Events and tracks on one clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Who ran: the model's or the program's name.
    pub process: String,
    /// The threads' names.
    pub threads: Vec<String>,
    /// What took time, in any order.
    pub events: Vec<Event>,
    /// What changed over time.
    pub tracks: Vec<Track>,
    /// More about the trace, by name: machine, commit, settings.
    pub about: BTreeMap<String, String>,
}

impl Trace {
    /// An empty trace of a process.
    pub fn new(process: impl Into<String>) -> Trace {
        Trace { process: process.into(), ..Trace::default() }
    }

    /// A thread's name; those that were not named are numbered.
    pub fn thread_name(&self, thread: usize) -> String {
        self.threads.get(thread).cloned().unwrap_or_else(|| format!("thread {thread}"))
    }

    /// Each thread's events as they began, those around others first.
    pub fn by_thread(&self) -> Vec<Vec<&Event>> {
        let mut threads: BTreeMap<usize, Vec<&Event>> = BTreeMap::new();
        for event in self.events.iter().filter(|e| e.start_s.is_finite() && e.duration_s.is_finite()) {
            threads.entry(event.thread).or_default().push(event);
        }
        for events in threads.values_mut() {
            events.sort_by_key(|e| {
                let (start, end) = e.span_ns();
                (start, -end)
            });
        }
        threads.into_values().collect()
    }

    /// Checks that on each thread events lie inside one another or apart, as calls do.
    pub fn check(&self) -> Result<(), Overlap> {
        for events in self.by_thread() {
            let mut open: Vec<&Event> = vec![];
            for event in events {
                let (start, end) = event.span_ns();
                while open.last().is_some_and(|o| o.span_ns().1 <= start) {
                    open.pop();
                }
                if let Some(around) = open.last().filter(|o| o.span_ns().1 < end) {
                    let (first, second) = (around.name.clone(), event.name.clone());
                    return Err(Overlap { thread: event.thread, first, second });
                }
                open.push(event);
            }
        }
        Ok(())
    }

    /// Adds a track of the plan's live bytes: each step's, from where an event of its name begins.
    pub fn add_memory(&mut self, timeline: &[MemoryPoint]) {
        let live: BTreeMap<&str, &MemoryPoint> = timeline.iter().map(|p| (p.step.as_str(), p)).collect();
        let mut points: Vec<(f64, Option<f64>)> =
            self.events.iter().filter_map(|e| live.get(e.name.as_str()).map(|p| (e.start_s, known(&p.live)))).collect();
        let Some(first) = timeline.first().filter(|_| !points.is_empty()) else { return };
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.tracks.push(Track {
            name: "live memory".into(),
            unit: first.live.unit.clone(),
            provenance: first.live.provenance,
            source: first.live.source.clone(),
            points,
        });
    }

    /// Writes the trace for Perfetto and Chrome: names of process and threads, complete events, counter tracks.
    pub fn write_chrome(&self, out: &mut dyn Write) -> io::Result<()> {
        write_all(std::slice::from_ref(self), out)
    }

    fn write_events(&self, pid: usize, lines: &mut Lines<'_>) -> io::Result<()> {
        lines.write(&json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": self.process}}))?;
        if let Some(words) = self.about.get(WATCHED) {
            // Shown beside the process's name.
            lines.write(&json!({"ph": "M", "pid": pid, "name": "process_labels", "args": {"labels": words}}))?;
        }
        let threads = self.by_thread();
        let used = threads.iter().filter_map(|t| t.first()).map(|e| e.thread);
        for thread in used.chain(0..self.threads.len()).collect::<std::collections::BTreeSet<_>>() {
            let (tid, name) = (thread + 1, self.thread_name(thread));
            lines.write(&json!({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}))?;
            let order = json!({"sort_index": thread});
            lines.write(&json!({"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": order}))?;
        }
        for event in threads.into_iter().flatten() {
            let (start, end) = event.span_ns();
            lines.write(&json!({
                "ph": "X", "pid": pid, "tid": event.thread + 1, "ts": us(start), "dur": us(end - start),
                "name": event.name, "cat": event.category, "args": event.args,
            }))?;
        }
        for track in &self.tracks {
            let label = track.label();
            for (at, value) in &track.points {
                // A counter track cannot show that nothing is known; it shows no point then.
                let Some(value) = value.filter(|v| v.is_finite() && at.is_finite()) else { continue };
                let at = us((at * 1e9).round() as i64);
                lines.write(&json!({"ph": "C", "pid": pid, "ts": at, "name": label, "args": {"value": value}}))?;
            }
        }
        Ok(())
    }
}

/// Writes several traces for Perfetto and Chrome, each a process of its own.
pub fn write_all(traces: &[Trace], out: &mut dyn Write) -> io::Result<()> {
    let mut about = Map::new();
    for trace in traces {
        let own = |name: String| if traces.len() == 1 { name } else { format!("{}: {name}", trace.process) };
        about.extend(trace.about.iter().map(|(k, v)| (own(k.clone()), Value::from(v.as_str()))));
        for track in &trace.tracks {
            let origin = format!("{:?}: {}", track.provenance, track.source);
            about.insert(own(format!("track {}", track.label())), origin.into());
        }
    }
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\"traceEvents\":[", Value::Object(about))?;
    let mut lines = Lines { out, first: true };
    for (i, trace) in traces.iter().enumerate() {
        trace.write_events(i + 1, &mut lines)?;
    }
    lines.out.write_all(b"\n]}\n")
}

impl Track {
    fn label(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{} ({})", self.name, self.unit) }
    }
}

/// Microseconds, exact to the nanosecond.
fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

/// The events' list, a line each.
struct Lines<'a> {
    out: &'a mut dyn Write,
    first: bool,
}

impl Lines<'_> {
    fn write(&mut self, event: &Value) -> io::Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        serde_json::to_writer(&mut *self.out, event).map_err(io::Error::from)
    }
}
