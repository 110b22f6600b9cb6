//! Watching a tape run: what each call took, in loops too and on every thread.
//!
//! A call may take 50 ns, so watching must cost next to nothing: each thread has a table of its own with a cell for
//! every call of the tape and of the bodies in it, and one reading of the tick counter ends a call and begins the next.
//! What a loop does between the calls of its body (transposing and copying rows, setting up states) is timed too, and
//! counts as the loop's own time. The tables are made at the first run; later ones write into them and allocate
//! nothing.

use super::{Call, Tape};
use crate::clock::ticks;

/// Is told when calls begin and end; a run without it pays nothing.
pub trait Watch {
    /// A call is about to run.
    fn begin(&mut self, call: usize);
    /// It has run.
    fn end(&mut self, call: usize);
}

/// What observes a run of a tape.
pub enum Watching<'a> {
    /// Callbacks for the tape's calls, but not for those in loops.
    Steps(&'a mut dyn Watch),
    /// Tables of times, which include the calls in loops.
    Times(&'a mut Recorder),
}

/// What one place of a tape took, on one thread. A cache line each, so that no two threads write to one.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Cell {
    /// Ticks of the call itself; for a loop, without those of the calls in its body.
    ticks: u64,
    /// How often it ran.
    calls: u64,
    /// How often the counter was read in these ticks.
    readings: u64,
    /// For a loop on several threads: ticks from its beginning to its end, calls in its body included.
    span: u64,
    /// For a loop on several threads: how many.
    workers: u32,
}

/// A call that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place: an index into what [`Recorder::places`] gives.
    pub place: usize,
    /// The thread, 0 for the caller's.
    pub thread: usize,
    /// The tick at which it began.
    pub start: u64,
    /// How many ticks it took, calls inside it included.
    pub ticks: u64,
}

/// One thread's table. Two cache lines apart from others, since processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Lane {
    /// The latest reading of the counter: when the current piece of work began.
    last: u64,
    cells: Vec<Cell>,
    /// The first events (place, start, ticks), as many as there is capacity for.
    events: Vec<(u32, u64, u64)>,
}

impl Lane {
    fn new(cells: usize, events: usize) -> Lane {
        Lane { last: 0, cells: vec![Cell::default(); cells], events: Vec::with_capacity(events) }
    }

    /// Begins to count from now.
    #[inline(always)]
    pub(super) fn start(&mut self) {
        self.last = ticks();
    }

    /// The latest reading of the counter: when the current piece of work began.
    #[inline(always)]
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Reads the counter, and adds what has passed since the last reading to the ticks of `place`.
    #[inline(always)]
    pub(super) fn lap(&mut self, place: usize) {
        let now = ticks();
        let cell = &mut self.cells[place];
        // Two cores' counters may differ by a few ticks.
        cell.ticks += now.saturating_sub(self.last);
        cell.readings += 1;
        self.last = now;
    }

    /// The same, where the call of `place` that began at `began` is over now.
    #[inline(always)]
    pub(super) fn end(&mut self, place: usize, began: u64) {
        self.lap(place);
        self.cells[place].calls += 1;
        if self.events.len() < self.events.capacity() {
            self.events.push((place as u32, began, self.last.saturating_sub(began)));
        }
    }

    /// Reads the counter, and adds what has passed since the last reading as the whole time of a loop on several threads.
    pub(super) fn span(&mut self, place: usize, workers: usize) {
        let now = ticks();
        let cell = &mut self.cells[place];
        cell.span += now.saturating_sub(self.last);
        cell.workers = workers as u32;
        self.last = now;
    }
}

/// Where a tape's calls write their times: the table of the thread that runs them, and the place of the first.
pub(super) struct Cursor<'a> {
    pub(super) lane: &'a mut Lane,
    /// Tables for a loop's workers.
    pub(super) workers: &'a mut [Lane],
    /// The place of the tape's first call.
    pub(super) base: usize,
}

impl Cursor<'_> {
    /// The same table, for a tape whose first call has this place.
    pub(super) fn at(&mut self, base: usize) -> Cursor<'_> {
        Cursor { lane: self.lane, workers: self.workers, base }
    }
}

/// Times of every call of a tape, gathered over runs.
///
/// It makes its tables for the tape that it is first used with; another tape makes it start again from empty tables.
#[derive(Debug, Default)]
pub struct Recorder {
    /// The tape it has room for.
    tape: Option<u64>,
    places: Vec<Place>,
    main: Lane,
    workers: Vec<Lane>,
    /// Ticks of runs that were in no call.
    outside: u64,
    /// How often the counter was read in these.
    outside_readings: u64,
    /// How many runs have ended.
    runs: u64,
    /// Whether the time between two runs is counted too.
    linked: bool,
    /// Events to keep for each thread.
    events: usize,
}

#[derive(Clone, Debug)]
struct Place {
    path: Vec<usize>,
    parent: Option<usize>,
}

/// What a place took, all runs since the last [`Recorder::clear`] together.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    /// The call's number, in loops followed by its number in the body. Calls of the body for the rows left over are
    /// numbered after those of the body.
    pub path: Vec<usize>,
    /// Ticks of the run's time that it took itself, without calls inside it. In a loop on several threads, each instant
    /// is divided equally among the threads, and goes to the call that each one runs; waiting counts as the loop's. So
    /// the ticks of all places sum to those of the runs.
    pub ticks: f64,
    /// Ticks that threads spent on it, which may be more.
    pub busy: u64,
    /// How often it ran.
    pub calls: u64,
    /// Readings of the tick counter within these ticks, divided by the same rule: the cost of watching.
    pub readings: f64,
    /// The threads that shared it.
    pub workers: usize,
}

impl Recorder {
    /// One that also keeps the first `events` calls of every thread as they happened.
    pub fn with_events(events: usize) -> Recorder {
        Recorder { events, ..Recorder::default() }
    }

    /// A run begins, with whatever is done before its first call.
    #[inline]
    pub fn start(&mut self) {
        if !self.linked {
            self.outside_readings += 1;
            self.main.start();
        }
    }

    /// Whether runs follow each other directly from now on, so that the time of calling and returning counts as theirs
    /// too.
    pub fn link(&mut self, linked: bool) {
        self.linked = linked;
        self.main.start();
    }

    /// The run is over, with whatever was done after its last call.
    #[inline]
    pub fn stop(&mut self) {
        self.leave();
        self.runs += 1;
    }

    /// Reads the counter, and counts what has passed since the last reading as in no call.
    #[inline]
    fn leave(&mut self) {
        let now = ticks();
        self.outside += now.saturating_sub(self.main.last);
        self.outside_readings += 1;
        self.main.last = now;
    }

    /// Fits itself to a tape that is about to run, and gives where to write.
    pub(super) fn enter(&mut self, tape: &Tape) -> Cursor<'_> {
        if self.tape != Some(tape.id) {
            let last = self.main.last;
            let events = self.events;
            self.places.clear();
            describe(tape, 0, &[], None, &mut self.places);
            let cells = self.places.len();
            self.main = Lane { last, ..Lane::new(cells, events) };
            self.workers = (0..tape.threads).map(|_| Lane::new(cells, events)).collect();
            (self.outside, self.outside_readings, self.runs) = (0, 0, 0);
            self.tape = Some(tape.id);
        }
        self.leave();
        Cursor { lane: &mut self.main, workers: &mut self.workers, base: 0 }
    }

    /// Forgets all times and events; the room stays.
    pub fn clear(&mut self) {
        for lane in std::iter::once(&mut self.main).chain(&mut self.workers) {
            lane.cells.fill(Cell::default());
            lane.events.clear();
        }
        (self.outside, self.outside_readings, self.runs) = (0, 0, 0);
    }

    /// Runs that ended since the last [`Recorder::clear`].
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Ticks of these runs that were in no call: checks, inputs, outputs and states.
    pub fn outside(&self) -> u64 {
        self.outside
    }

    /// Readings of the counter that are in them.
    pub fn outside_readings(&self) -> u64 {
        self.outside_readings
    }

    /// The path of each place: the call's number, in loops followed by its number in the body.
    pub fn places(&self) -> impl ExactSizeIterator<Item = &[usize]> {
        self.places.iter().map(|p| p.path.as_slice())
    }

    /// What each place took.
    pub fn times(&self) -> Vec<Time> {
        // How many threads share a place: those of the loop around it that was split, if any.
        let mut workers: Vec<usize> = Vec::with_capacity(self.places.len());
        for place in &self.places {
            let around = place.parent.map_or(1, |p| {
                let split = self.main.cells[p].workers as usize;
                workers[p].max(split)
            });
            workers.push(around);
        }
        let lanes = || std::iter::once(&self.main).chain(&self.workers);
        let mut times: Vec<Time> = (self.places.iter().enumerate())
            .map(|(i, place)| {
                let busy = lanes().map(|l| l.cells[i].ticks).sum();
                let calls = lanes().map(|l| l.cells[i].calls).sum();
                let readings: u64 = lanes().map(|l| l.cells[i].readings).sum();
                let share = |n: u64| n as f64 / workers[i] as f64;
                let (ticks, readings) = (share(busy), share(readings));
                Time { path: place.path.clone(), ticks, busy, calls, readings, workers: workers[i] }
            })
            .collect();
        // A loop on several threads gets its span less the time of the calls in its body: its own work, and its
        // workers' waiting.
        for i in 0..self.places.len() {
            let Cell { span, workers, ticks, .. } = self.main.cells[i];
            if workers > 1 {
                let inside = |p: &Place| p.path.len() > times[i].path.len() && p.path.starts_with(&times[i].path);
                let others: f64 = self.places.iter().zip(&times).filter(|(p, _)| inside(p)).map(|(_, t)| t.ticks).sum();
                times[i].ticks = ticks as f64 + (span as f64 - others).max(0.0);
            }
        }
        times
    }

    /// The events that were kept, in no particular order.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        let of = |lane: &Lane, thread: usize| {
            let event = move |(place, start, ticks)| Event { place: place as usize, thread, start, ticks };
            lane.events.clone().into_iter().map(event)
        };
        let workers = self.workers.iter().enumerate().flat_map(move |(i, lane)| of(lane, i));
        of(&self.main, 0).chain(workers)
    }
}

/// Lists a tape's places in the order of its table; the first call has this number.
fn describe(tape: &Tape, first: usize, path: &[usize], parent: Option<usize>, places: &mut Vec<Place>) {
    for (i, call) in tape.calls.iter().enumerate() {
        let path = [path, &[first + i]].concat();
        let this = places.len();
        places.push(Place { path: path.clone(), parent });
        if let Call::Scan(scan) = call {
            describe(&scan.body.tape, 0, &path, Some(this), places);
            if let Some(tail) = &scan.tail {
                describe(&tail.tape, scan.body.tape.len(), &path, Some(this), places);
            }
        }
    }
}
