//! Batches that a thread prepares while the last one is being learned from. Buffers are made once and change places.

use super::windows::NONE;
use super::{Layout, Order, Sequences, Window, Windows};
use crate::train::Batch;
use crate::{Error, Result};
use schwann_core::{DType, Tensor};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A number that cannot be learned from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bad {
    /// Which array: `x`, `target` or `timespans`.
    pub array: &'static str,
    /// The row of the data.
    pub row: usize,
    /// The sequence that it belongs to.
    pub sequence: usize,
    /// The feature.
    pub column: usize,
    /// The number.
    pub value: f64,
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Bad { array, row, sequence, column, value } = self;
        write!(f, "`{array}` is {value} in row {row}, column {column} of the data (sequence {sequence})")
    }
}

/// A batch that is ready.
#[derive(Debug)]
pub struct Filled {
    batches: Vec<Batch>,
    at: usize,
    /// The pass over the data that it belongs to.
    pub epoch: u64,
    /// Windows of the epoch before it.
    pub from: usize,
    /// Windows in it.
    pub windows: usize,
    /// Rows of results that count.
    pub rows: usize,
    /// Whether the epoch ends with it.
    pub last: bool,
    /// The first number of it that cannot be learned from.
    pub bad: Option<Bad>,
}

impl Filled {
    /// The batch itself.
    pub fn batch(&self) -> &Batch {
        &self.batches[self.at]
    }
}

/// Where reading goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    epoch: u64,
    from: usize,
    batch: usize,
    /// Counts jumps, so that what was prepared before one is thrown away.
    jump: u64,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    wanted: Position,
    ready: Option<(u64, Box<Filled>)>,
    empty: Option<Box<Filled>>,
    failed: Option<Error>,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What batches are made from.
struct Source {
    data: Arc<Sequences>,
    windows: Arc<Windows>,
    layout: Layout,
    order: Order,
}

/// Batches one after the other, without end: after the last of an epoch comes the first of the next.
pub struct Loader {
    shared: Arc<Shared>,
    source: Arc<Source>,
    thread: Option<JoinHandle<()>>,
    current: Option<Box<Filled>>,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Loader of {} windows", self.source.windows.list.len())
    }
}

/// Batches that exist at a time: one to learn from, one that is being prepared.
pub(crate) const BUFFERS: usize = 2;

impl Loader {
    /// Batches of `batch` windows, from the first on.
    pub fn new(
        data: Arc<Sequences>,
        windows: Arc<Windows>,
        layout: Layout,
        order: Order,
        batch: usize,
    ) -> Result<Loader> {
        if windows.list.is_empty() {
            return Err(Error::argument("windows", 0, "one at least"));
        }
        if batch == 0 {
            return Err(Error::argument("batch", 0, "1 at least"));
        }
        let source = Arc::new(Source { data, windows, layout, order });
        let wanted = Position { epoch: 0, from: 0, batch, jump: 0 };
        let state = State { wanted, ready: None, empty: Some(Box::new(Filled::new())), failed: None, ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (of_thread, its_source) = (Arc::clone(&shared), Arc::clone(&source));
        let thread = std::thread::Builder::new().name("schwann-batches".into());
        let thread = thread.spawn(move || prepare(&of_thread, &its_source)).map_err(|e| Error::file(e.to_string()))?;
        Ok(Loader { shared, source, thread: Some(thread), current: Some(Box::new(Filled::new())) })
    }

    /// Windows in all.
    pub fn windows(&self) -> usize {
        self.source.windows.list.len()
    }

    /// Batches of this size that an epoch has.
    pub fn batches(&self, batch: usize) -> u64 {
        let mut order = vec![];
        self.source.order.fill(&self.source.windows, 0, batch, &mut order);
        order.len().div_ceil(batch.max(1)) as u64
    }

    /// The next batch; it stays until the one after is asked for.
    pub fn next_batch(&mut self) -> Result<&Filled> {
        let mut state = self.shared.lock();
        if let Some(used) = self.current.take() {
            state.empty = Some(used);
            self.shared.changed.notify_all();
        }
        loop {
            if let Some(problem) = state.failed.take() {
                self.current = state.empty.take();
                return Err(problem);
            }
            if let Some((jump, filled)) = state.ready.take() {
                if jump == state.wanted.jump {
                    drop(state);
                    return Ok(self.current.insert(filled));
                }
                state.empty = Some(filled);
                self.shared.changed.notify_all();
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Goes on from another place, or with batches of another size.
    pub fn seek(&mut self, epoch: u64, from: usize, batch: usize) {
        let mut state = self.shared.lock();
        let jump = state.wanted.jump + 1;
        state.wanted = Position { epoch, from, batch, jump };
        if let Some((_, filled)) = state.ready.take() {
            state.empty = Some(filled);
        }
        self.shared.changed.notify_all();
    }

    /// Bytes of the buffers for batches of this size.
    pub fn bytes(&self, batch: usize) -> Result<usize> {
        Ok(BUFFERS * self.source.room(batch)?.bytes())
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It holds nothing that a panic could spoil.
            let _ = thread.join();
        }
    }
}

/// The thread: fills empty buffers, one batch after the other.
fn prepare(shared: &Shared, source: &Source) {
    let mut order: Vec<u32> = vec![];
    let mut of: Option<(u64, usize)> = None;
    let mut at: Option<Position> = None;
    loop {
        let (mut buffer, position) = {
            let mut state = shared.lock();
            loop {
                if state.ended {
                    return;
                }
                let here = match at {
                    Some(at) if at.jump == state.wanted.jump => at,
                    _ => state.wanted,
                };
                if state.ready.is_none()
                    && let Some(buffer) = state.empty.take()
                {
                    break (buffer, here);
                }
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        };
        if of != Some((position.epoch, position.batch)) {
            source.order.fill(&source.windows, position.epoch, position.batch, &mut order);
            of = Some((position.epoch, position.batch));
        }
        let from = position.from.min(order.len().saturating_sub(1));
        let to = (from + position.batch).min(order.len());
        let filled = source.fill(&mut buffer, &order[from..to]);
        (buffer.epoch, buffer.from, buffer.last) = (position.epoch, from, to == order.len());
        at = Some(match buffer.last {
            true => Position { epoch: position.epoch + 1, from: 0, ..position },
            false => Position { from: to, ..position },
        });
        let mut state = shared.lock();
        match filled {
            Ok(()) => state.ready = Some((position.jump, buffer)),
            Err(problem) => {
                state.failed = Some(problem);
                state.empty = Some(buffer);
            }
        }
        shared.changed.notify_all();
    }
}

impl Filled {
    fn new() -> Filled {
        Filled { batches: vec![], at: 0, epoch: 0, from: 0, windows: 0, rows: 0, last: false, bad: None }
    }
}

impl Source {
    /// Buffers for a batch of this size.
    fn room(&self, batch: usize) -> Result<Batch> {
        let (l, steps) = (&self.layout, self.windows.steps);
        let mut leading = vec![batch];
        if l.steps {
            leading.push(steps);
        }
        let with = |width: usize| [&leading[..], &[width]].concat();
        let x = match l.symbols {
            Some(_) => Tensor::zeros(DType::I32, &leading)?,
            None => Tensor::zeros(DType::F32, &with(self.data.inputs()))?,
        };
        let rows: &[usize] = if l.each_step { &leading } else { &leading[..1] };
        let target = match l.classes {
            Some(_) => Tensor::zeros(DType::I32, rows)?,
            None => Tensor::zeros(DType::F32, &[rows, &[l.targets]].concat())?,
        };
        let maybe = |wanted: bool, shape: &[usize]| match wanted {
            true => Tensor::zeros(DType::F32, shape).map(Some),
            false => Ok(None),
        };
        Ok(Batch {
            x,
            target,
            timespans: maybe(l.timed, &leading)?,
            mask: maybe(l.masked, rows)?,
            goes_on: maybe(l.carried, &[batch, 1])?,
        })
    }

    fn fill(&self, into: &mut Filled, windows: &[u32]) -> Result<()> {
        let rows = windows.len();
        let known = into.batches.iter().position(|b| b.sizes().0 == rows);
        into.at = match known {
            Some(at) => at,
            None => {
                into.batches.push(self.room(rows)?);
                into.batches.len() - 1
            }
        };
        (into.bad, into.rows) = (None, 0);
        into.windows = windows.iter().filter(|w| **w != NONE).count();
        let batch = &mut into.batches[into.at];
        for (place, &number) in windows.iter().enumerate() {
            let window = if number == NONE { None } else { self.windows.list.get(number as usize).copied() };
            let (bad, counted) = self.copy(batch, place, window)?;
            into.rows += counted;
            into.bad = into.bad.or(bad);
        }
        Ok(())
    }

    /// Copies a window to its place in a batch; gives the first number that cannot be learned from, and how many rows of
    /// results count.
    fn copy(&self, batch: &mut Batch, place: usize, window: Option<Window>) -> Result<(Option<Bad>, usize)> {
        let (l, data, steps) = (&self.layout, &*self.data, self.windows.steps);
        let steps = if l.steps { steps } else { 1 };
        let (start, len) = window.map_or((0, 0), |w| (w.start, w.len as usize));
        let span = start..start + len;
        let mut bad: Option<Bad> = None;
        let mut note =
            |array: &'static str, at: Option<usize>, width: usize, first: usize, value: &dyn Fn(usize) -> f64| {
                if let (Some(at), None) = (at, &bad) {
                    let row = first + at / width;
                    let sequence = if array == "target" && data.one_target { row } else { data.sequence_of(row) };
                    bad = Some(Bad { array, row, sequence, column: at % width, value: value(at) });
                }
            };
        match l.symbols {
            Some(most) => {
                let room = &mut batch.x.values_mut::<i32>()?[place * steps..(place + 1) * steps];
                let (own, rest) = room.split_at_mut(len);
                rest.fill(0);
                let at = data.x.read_whole(span.clone(), own, most);
                note("x", at, 1, start, &|_| f64::NAN);
            }
            None => {
                let width = data.inputs();
                let room = &mut batch.x.values_mut::<f32>()?[place * steps * width..(place + 1) * steps * width];
                let (own, rest) = room.split_at_mut(len * width);
                rest.fill(0.0);
                let at = data.x.read(span.clone(), own);
                note("x", at, width, start, &|at| f64::from(own[at]));
            }
        }
        // Targets of the window's rows, of its last row, or of its sequence.
        let (rows, wanted) = match window {
            None => (if l.each_step { steps } else { 1 }, 0..0),
            Some(_) if l.each_step => (steps, span.clone()),
            Some(_) if data.one_target => {
                let sequence = if l.steps { data.sequence_of(start) } else { start };
                (1, sequence..sequence + 1)
            }
            Some(_) => (1, start + len - 1..start + len),
        };
        let (first, count) = (wanted.start, wanted.len());
        match l.classes {
            Some(most) => {
                let room = &mut batch.target.values_mut::<i32>()?[place * rows..(place + 1) * rows];
                let (own, rest) = room.split_at_mut(count);
                rest.fill(0);
                let at = data.target.read_whole(wanted, own, most);
                note("target", at, 1, first, &|_| f64::NAN);
            }
            None => {
                let width = l.targets;
                let room = &mut batch.target.values_mut::<f32>()?[place * rows * width..(place + 1) * rows * width];
                let (own, rest) = room.split_at_mut(count * width);
                rest.fill(0.0);
                let at = data.target.read(wanted, own);
                note("target", at, width, first, &|at| f64::from(own[at]));
            }
        }
        if let (Some(room), Some(from)) = (&mut batch.timespans, &data.timespans) {
            let room = &mut room.values_mut::<f32>()?[place * steps..(place + 1) * steps];
            let (own, rest) = room.split_at_mut(len);
            rest.fill(1.0);
            let mut at = from.read(span, own);
            at = at.or_else(|| own.iter().position(|t| *t <= 0.0));
            note("timespans", at, 1, start, &|at| f64::from(own[at]));
        }
        if let Some(mask) = &mut batch.mask {
            let room = &mut mask.values_mut::<f32>()?[place * rows..(place + 1) * rows];
            let (own, rest) = room.split_at_mut(count);
            own.fill(1.0);
            rest.fill(0.0);
        }
        if let Some(goes_on) = &mut batch.goes_on {
            goes_on.values_mut::<f32>()?[place] = if window.is_some_and(|w| !w.first) { 1.0 } else { 0.0 };
        }
        Ok((bad, count))
    }
}
