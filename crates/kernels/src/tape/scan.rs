//! The loop: a body's tape, run for every step.
//!
//! Where the rows of a batch do not depend on each other, a worker takes a block of rows through all steps: the block's
//! intermediates stay in the first-level cache, and no worker waits for another between steps. States alternate between
//! two buffers of the worker's. Sequences are read and written in place where a step's rows lie together, and through a
//! small copy where the time axis is inside the batch axis.
//!
//! States and sequences are batch-first. A body may be batch-last instead, so that the rows of its block fill the lanes
//! (the crate's documentation explains the two). Then the loop transposes the states at the start and at the end of the
//! block, and the sequences in every step, but for those that are batch-last themselves.
//!
//! A *total* is a state without rows to which each step of each block adds something: a sum over rows. Every worker has one
//! of its own, which goes on from block to block, and at the end they are added in the order of the workers. So the result
//! depends on the number of threads, but on nothing else.

use super::watch::{Cursor, Lane};
use super::{Frame, Ref, Slots, Space, Stopped, Tape};
use crate::tuning::Machine;
use crate::{Team, copy};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A state: where it starts and ends.
#[derive(Clone, Copy, Debug)]
pub struct ScanState {
    /// Before the first step.
    pub init: Ref,
    /// After the last.
    pub last: Ref,
    /// Rows.
    pub rows: usize,
    /// Bytes of one row.
    pub row_bytes: usize,
    /// Whether it is a total, of floats: it has one row, in each block, to which the body adds.
    pub total: bool,
}

/// A sequence that is read or written step by step.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// All steps.
    pub at: Ref,
    /// Rows of one step (1 where time is the outermost axis and rows do not matter).
    pub rows: usize,
    /// Bytes of one row of one step.
    pub row_bytes: usize,
    /// Whether the rows of a block are batch-last where they are, in the memory that they would have batch-first: two loops
    /// with the same blocks pass values on in this way. They are read and written in place.
    pub batch_last: bool,
}

/// One step, for some number of rows.
#[derive(Debug)]
pub struct Body {
    /// Its calls. Loops of other lengths may share them.
    pub tape: Arc<Tape>,
    /// Whether it takes and gives batch-last values, [feature, row], rather than batch-first ones, [row, feature]. A row
    /// then consists of whole 4-byte words.
    pub batch_last: bool,
}

/// A loop over time.
#[derive(Debug)]
pub struct Scan {
    /// How many steps.
    pub steps: usize,
    /// Whether it goes from the last step to the first.
    pub reverse: bool,
    /// Whether a step's rows lie apart: [row, step] rather than [step, row].
    pub time_inside: bool,
    /// States.
    pub states: Vec<ScanState>,
    /// Sequences read.
    pub sequences: Vec<Sequence>,
    /// Values that stay the same.
    pub fixed: Vec<Ref>,
    /// Sequences written.
    pub outputs: Vec<Sequence>,
    /// If rows are independent: how many there are, and how many a block has.
    pub blocks: Option<(usize, usize)>,
    /// The body for a block of rows (or for all).
    pub body: Body,
    /// The body for the rows left over.
    pub tail: Option<Body>,
    /// Memory for every worker: [`Scan::worker_bytes`] each.
    pub scratch: Ref,
}

/// A scan, and where its workers' buffers lie.
#[derive(Debug)]
pub(super) struct PlacedScan<'a> {
    pub(super) scan: &'a Scan,
    pub(super) rooms: &'a Rooms,
}

/// Where a worker's buffers lie in its scratch memory: the body's arena first, then two copies of each state, then one
/// of each sequence.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    states: Vec<StateRoom>,
    sequences: Vec<Room>,
    outputs: Vec<Room>,
    /// Which fixed values the bodies' calls read, and in which of their slots.
    fixed: Vec<(usize, u32)>,
    /// All of it. [`usize::MAX`] where that overflows.
    bytes: usize,
}

/// A state's two buffers, and in which slots of the bodies it is read and written.
#[derive(Debug)]
struct StateRoom {
    buffers: [usize; 2],
    read: usize,
    written: usize,
}

/// The buffer of a sequence, and its slot in the bodies.
#[derive(Debug)]
struct Room {
    buffer: usize,
    slot: usize,
}

impl Scan {
    pub(super) fn splits(&self) -> bool {
        self.blocks.is_some()
    }

    pub(super) fn tapes(&self) -> impl Iterator<Item = &Tape> {
        std::iter::once(&self.body).chain(&self.tail).map(|b| &*b.tape)
    }

    /// Rows of one block of a state or sequence that has `rows` rows in all.
    fn block_rows(&self, rows: usize) -> usize {
        self.blocks.map_or(rows, |(_, block)| block.min(rows))
    }

    /// Bytes that one worker needs. [`usize::MAX`] where that overflows.
    pub fn worker_bytes(&self) -> usize {
        self.rooms().bytes
    }

    pub(super) fn rooms(&self) -> Rooms {
        let mut at = 0usize;
        let mut take = |bytes: usize| {
            let start = at;
            // A size that overflows saturates: it is more than any memory has, and the run is refused.
            at = bytes.checked_next_multiple_of(super::ARENA_ALIGN).map_or(usize::MAX, |n| start.saturating_add(n));
            start
        };
        take(self.tapes().map(Tape::arena_bytes).max().unwrap_or(0));
        let block = |rows: usize, row_bytes: usize| self.block_rows(rows).saturating_mul(row_bytes);
        // Both bodies (for a block, and for the rows left over) have the same inputs and outputs, and so the same
        // slots.
        let slot = |space: Space| self.body.tape.memory.slot(space);
        let slot_at = |space: Space| slot(space) as usize;
        let states = self.states.iter().enumerate().map(|(i, s)| StateRoom {
            buffers: [(); 2].map(|()| take(block(s.rows, s.row_bytes))),
            read: slot_at(Space::Input(i)),
            written: slot_at(Space::Output(i)),
        });
        let states: Vec<StateRoom> = states.collect();
        let mut each = |all: &[Sequence], space: fn(usize) -> Space| {
            let room = |(i, s): (usize, &Sequence)| Room {
                buffer: take(block(s.rows, s.row_bytes)),
                slot: slot_at(space(states.len() + i)),
            };
            all.iter().enumerate().map(room).collect()
        };
        let (sequences, outputs) = (each(&self.sequences, Space::Input), each(&self.outputs, Space::Output));
        let first = self.states.len() + self.sequences.len();
        let slot = |i: usize| slot(Space::Input(first + i));
        let read = |slot: u32| self.tapes().any(|t| t.used.get(slot as usize) == Some(&true));
        let fixed = (0..self.fixed.len()).map(|i| (i, slot(i))).filter(|(_, slot)| read(*slot)).collect();
        Rooms { states, sequences, outputs, fixed, bytes: at }
    }
}

impl PlacedScan<'_> {
    /// Runs all blocks. The base of `times` is the scan's own place.
    ///
    /// # Safety
    /// As [`super::Call::run`]; the frames must be this scan's.
    pub(super) unsafe fn run(
        &self,
        slots: Slots<'_>,
        workers: &mut [Vec<Frame>],
        team: &Team,
        mut times: Option<Cursor<'_>>,
        cancel: &AtomicBool,
    ) -> Result<(), Stopped> {
        let scan = self.scan;
        let stride = self.rooms.bytes;
        let scratch = super::start(slots.at(&scan.scratch), stride);
        let Some((rows, block)) = scan.blocks else {
            // SAFETY: one worker, all rows; the rest is the caller's promise.
            return unsafe {
                self.run_block(slots, 0..usize::MAX, &scan.body, &mut workers[0][0], scratch, team, times, cancel)
            };
        };
        let blocks = rows.div_ceil(block);
        // SAFETY: the caller's promise; each worker has its own scratch memory.
        unsafe { self.begin_totals(slots, scratch, if blocks == 1 { 1 } else { team.threads().min(blocks) }) };
        let run = |worker: &mut Vec<Frame>, slots: Slots<'_>, scratch: *mut u8, times: Option<Cursor<'_>>, b: usize| {
            let range = b * block..rows.min((b + 1) * block);
            let whole = range.len() == block;
            let body = if whole { &scan.body } else { scan.tail.as_ref().expect("verified: there is a tail") };
            let frame = &mut worker[usize::from(!whole)];
            // SAFETY: the caller's promise; blocks are disjoint, and a worker has its own frames and scratch memory.
            unsafe { self.run_block(slots, range, body, frame, scratch, Team::solo(), times, cancel) }
        };
        if blocks == 1 || team.threads() == 1 {
            let mut each = |b| run(&mut workers[0], slots, scratch, times.as_mut().map(|t| t.at(t.base)), b);
            self.in_order(0..blocks).try_for_each(&mut each)?;
            // SAFETY: the caller's promise.
            unsafe { self.end_totals(slots, scratch, 1) };
            return Ok(());
        }
        let seen = times.as_mut().filter(|t| t.workers.len() >= team.threads());
        let lanes = seen.map(|t| (t.workers.as_mut_ptr(), t.base));
        let shared = Shared { workers: workers.as_mut_ptr(), lanes, scratch, slots };
        let stopped: Mutex<Option<Stopped>> = Mutex::new(None);
        team.split(blocks, 1, &|part, range| {
            let shared = &shared;
            // SAFETY: `part` is below the thread count, for which frames and scratch exist, and no two threads share one.
            let (worker, scratch) = unsafe { (&mut *shared.workers.add(part), shared.scratch.add(part * stride)) };
            // SAFETY: likewise; a recorder has a table for each of the tape's threads.
            let mut lane = shared.lanes.map(|(lanes, base)| (unsafe { &mut *lanes.add(part) }, base));
            if let Some((lane, _)) = &mut lane {
                lane.start();
            }
            let mut each = |b| {
                let times = lane.as_mut().map(|(lane, base)| Cursor { lane, workers: &mut [], base: *base });
                run(worker, shared.slots, scratch, times, b)
            };
            if let Err(why) = self.in_order(range).try_for_each(&mut each) {
                *stopped.lock().expect("no thread panics while it holds this lock") = Some(why);
            }
            if let Some((lane, base)) = lane {
                lane.lap(base);
            }
        });
        if let Some(times) = times {
            times.lane.span(times.base, team.threads().min(blocks));
        }
        stopped.into_inner().expect("no thread panics while it holds this lock").map_or(Ok(()), Err)?;
        // SAFETY: the caller's promise; the workers are done.
        unsafe { self.end_totals(slots, scratch, team.threads().min(blocks)) };
        Ok(())
    }

    /// Blocks in the order in which a worker takes them. A reverse loop mostly reads what another loop has just written,
    /// and the last of that is the nearest.
    fn in_order(&self, blocks: std::ops::Range<usize>) -> impl Iterator<Item = usize> {
        let (first, last, reverse) = (blocks.start, blocks.end, self.scan.reverse);
        blocks.map(move |b| if reverse { first + last - 1 - b } else { b })
    }

    /// Each total with its room.
    fn totals(&self) -> impl Iterator<Item = (&ScanState, &StateRoom)> {
        self.scan.states.iter().zip(&self.rooms.states).filter(|(s, _)| s.total)
    }

    /// The first worker's totals begin with what they are before the loop, the others' with 0.
    ///
    /// # Safety
    /// As [`Self::run`]; `scratch` must have memory for so many workers.
    unsafe fn begin_totals(&self, slots: Slots<'_>, scratch: *mut u8, workers: usize) {
        for (s, room) in self.totals() {
            for worker in 0..workers {
                // SAFETY: the caller's promise.
                unsafe {
                    let at = scratch.add(worker * self.rooms.bytes + room.buffers[0]);
                    match worker {
                        0 => at.copy_from_nonoverlapping(slots.at(&s.init), s.row_bytes),
                        _ => at.write_bytes(0, s.row_bytes),
                    }
                }
            }
        }
    }

    /// Adds up the workers' totals.
    ///
    /// # Safety
    /// As [`Self::begin_totals`], when no worker runs.
    unsafe fn end_totals(&self, slots: Slots<'_>, scratch: *mut u8, workers: usize) {
        for (s, room) in self.totals() {
            let last = slots.at(&s.last).cast::<f32>();
            for worker in 0..workers {
                let own = scratch.wrapping_add(worker * self.rooms.bytes + room.buffers[0]).cast::<f32>();
                for i in 0..s.row_bytes / 4 {
                    // SAFETY: the caller's promise; totals are floats.
                    unsafe {
                        *last.add(i) = if worker == 0 { *own.add(i) } else { *last.add(i) + *own.add(i) };
                    }
                }
            }
        }
    }

    /// Takes rows `range` (all, if it is beyond them) through every step.
    ///
    /// # Safety
    /// As [`Scan::run`]; `scratch` must hold [`Scan::worker_bytes`], for this call alone.
    #[expect(clippy::too_many_arguments, reason = "a worker's memory and its work")]
    unsafe fn run_block(
        &self,
        slots: Slots<'_>,
        range: std::ops::Range<usize>,
        body: &Body,
        frame: &mut Frame,
        scratch: *mut u8,
        team: &Team,
        mut times: Option<Cursor<'_>>,
        cancel: &AtomicBool,
    ) -> Result<(), Stopped> {
        let part = |rows: usize| {
            let start = if range.end == usize::MAX { 0 } else { range.start };
            (start, range.end.min(rows) - start)
        };
        let PlacedScan { scan, rooms } = *self;
        let Body { tape, batch_last } = body;
        // The places of the body come after the loop's own, those of the tail after the body's.
        let inside = 1 + if std::ptr::eq(body, &scan.body) { 0 } else { scan.body.tape.place_count };
        frame.slots[0] = scratch;
        for &(i, slot) in &rooms.fixed {
            frame.slots[slot as usize] = slots.at(&scan.fixed[i]);
        }
        // SAFETY (every copy below): rows start..start + n of a step lie within the verified references, and within the
        // worker's buffers, which hold a block each and overlap nothing.
        if *batch_last {
            for (s, room) in scan.states.iter().zip(&rooms.states).filter(|(s, _)| !s.total) {
                let (start, n) = part(s.rows);
                // SAFETY: see above.
                unsafe {
                    let from = slots.at(&s.init).add(start * s.row_bytes);
                    let now = scratch.add(room.buffers[0]);
                    transpose(tape.machine(), n, s.row_bytes, from, s.row_bytes, now, false);
                }
            }
        }
        for step in 0..scan.steps {
            if cancel.load(Ordering::Relaxed) {
                return Err(Stopped::Cancelled);
            }
            let t = if scan.reverse { scan.steps - 1 - step } else { step };
            for (s, room) in scan.states.iter().zip(&rooms.states) {
                // States alternate between the worker's two buffers. If the body is batch-first, no copy is needed at
                // either end: the first step reads the initial state in place, and the last one writes the final state.
                let start = if s.total { 0 } else { part(s.rows).0 };
                let at = |r: &Ref| slots.at(r).wrapping_add(start * s.row_bytes);
                let buffer = |step: usize| scratch.wrapping_add(room.buffers[step % 2]);
                let outside = !batch_last && !s.total;
                let (first, last) = (outside && step == 0, outside && step + 1 == scan.steps);
                frame.slots[room.read] = if first { at(&s.init) } else { buffer(step) };
                frame.slots[room.written] = if last { at(&s.last) } else { buffer(step + 1) };
            }
            for (s, room) in scan.sequences.iter().zip(&rooms.sequences) {
                let (start, n) = part(s.rows);
                let copy = room.buffer;
                let (first, apart) = scan.rows_at(s, start, t);
                let base = slots.at(&s.at).wrapping_add(first);
                let ptr = if s.batch_last {
                    base
                } else if *batch_last {
                    // SAFETY: see above.
                    unsafe { transpose(tape.machine(), n, s.row_bytes, base, apart, scratch.add(copy), false) };
                    scratch.wrapping_add(copy)
                } else if apart == s.row_bytes || n == 1 {
                    base
                } else {
                    for row in 0..n {
                        // SAFETY: see above.
                        unsafe {
                            let from = base.add(row * apart);
                            scratch.add(copy + row * s.row_bytes).copy_from_nonoverlapping(from, s.row_bytes);
                        }
                    }
                    scratch.wrapping_add(copy)
                };
                frame.slots[room.slot] = ptr;
            }
            let mut in_place = true;
            for (s, room) in scan.outputs.iter().zip(&rooms.outputs) {
                let (start, n) = part(s.rows);
                let (first, apart) = scan.rows_at(s, start, t);
                let direct = s.batch_last || (!batch_last && (apart == s.row_bytes || n == 1));
                in_place &= direct;
                frame.slots[room.slot] =
                    if direct { slots.at(&s.at).wrapping_add(first) } else { scratch.wrapping_add(room.buffer) };
            }
            let calls = times.as_mut().map(|t| {
                t.lane.lap(t.base);
                t.at(t.base + inside)
            });
            // SAFETY: the slots now point to memory as the body's tape was verified against.
            unsafe { tape.run_calls(frame, team, None, calls, cancel)? };
            if in_place {
                continue;
            }
            for (s, room) in scan.outputs.iter().zip(&rooms.outputs).filter(|(s, _)| !s.batch_last) {
                let (start, n) = part(s.rows);
                let copy = scratch.wrapping_add(room.buffer);
                let (first, apart) = scan.rows_at(s, start, t);
                let to = slots.at(&s.at).wrapping_add(first);
                // SAFETY: see above.
                unsafe {
                    if *batch_last {
                        transpose(tape.machine(), n, s.row_bytes, copy, apart, to, true);
                    } else if apart != s.row_bytes && n > 1 {
                        for row in 0..n {
                            let from = copy.add(row * s.row_bytes);
                            to.add(row * apart).copy_from_nonoverlapping(from, s.row_bytes);
                        }
                    }
                }
            }
        }
        for (s, room) in self.totals().filter(|_| scan.steps % 2 == 1) {
            // The next block goes on from here.
            // SAFETY: the worker's two buffers.
            unsafe {
                let [now, next] = room.buffers.map(|at| scratch.add(at));
                now.copy_from_nonoverlapping(next, s.row_bytes);
            }
        }
        if !batch_last && scan.steps > 0 {
            // The last step wrote the final states where they belong.
            return Ok(());
        }
        for (s, room) in scan.states.iter().zip(&rooms.states).filter(|(s, _)| !s.total) {
            let (start, n) = part(s.rows);
            // SAFETY: see above.
            unsafe {
                let last = slots.at(&s.last).add(start * s.row_bytes);
                if *batch_last {
                    let now = scratch.add(room.buffers[scan.steps % 2]);
                    transpose(tape.machine(), n, s.row_bytes, now, s.row_bytes, last, true);
                } else {
                    last.copy_from_nonoverlapping(slots.at(&s.init).add(start * s.row_bytes), n * s.row_bytes);
                }
            }
        }
        Ok(())
    }
}

impl Scan {
    /// Where row `start` of step `t` lies in a sequence, and how far its rows are apart, in bytes.
    fn rows_at(&self, s: &Sequence, start: usize, t: usize) -> (usize, usize) {
        if self.time_inside {
            ((start * self.steps + t) * s.row_bytes, self.steps * s.row_bytes)
        } else {
            ((t * s.rows + start) * s.row_bytes, s.row_bytes)
        }
    }
}

/// Copies `rows` rows of words, which begin `apart` bytes from each other, from batch-first to batch-last, or `back`.
///
/// # Safety
/// Both sides must hold the rows, aligned to words, and not overlap.
unsafe fn transpose(
    on: Machine<'_>,
    rows: usize,
    row_bytes: usize,
    from: *const u8,
    apart: usize,
    to: *mut u8,
    back: bool,
) {
    let words = row_bytes / 4;
    let (batch_last, batch_first) = ([1, rows as isize], [(apart / 4) as isize, 1]);
    let (src, dst) = if back { (batch_last, batch_first) } else { (batch_first, batch_last) };
    // SAFETY: the caller's promise.
    unsafe { copy::copy(on, Team::solo(), 4, &[rows, words], from, &src, to, &dst) }
}

/// What workers share.
#[derive(Clone, Copy)]
struct Shared<'a> {
    workers: *mut Vec<Frame>,
    /// Each worker's table of times and the scan's place in it, if the run is observed.
    lanes: Option<(*mut Lane, usize)>,
    scratch: *mut u8,
    slots: Slots<'a>,
}
// SAFETY: each worker touches only its own element and its own part of the scratch memory, and the rows of its blocks.
unsafe impl Sync for Shared<'_> {}
