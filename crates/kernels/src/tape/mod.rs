//! The tape: a program of kernel calls over one arena, verified once and then run without a check.
//!
//! A backend describes each call by numbers alone: shapes, strides, and [`Ref`]s into an arena, the run's inputs and
//! outputs, and constants. [`Tape::new`] proves that every access lies within its reference, that nothing but the arena
//! and outputs is written, and that no call writes what it reads, unless it can work in place. That proof is what makes
//! [`Tape::run`] safe to call, and this module the only place that turns references into pointers.

mod call;
mod scan;
#[cfg(test)]
mod tests;
mod verify;
mod watch;
mod wired;

pub use crate::changing::{Changing, Numbers, Rewriting};
pub use call::{Attend, Call, Epilogue, Gemm, GemmB, Map, NextWeights, PackError, Strided, pack, repack};
pub use scan::{Body, Scan, ScanState, Sequence};
pub use verify::LARGEST;
pub use watch::{Event, Recorder, Time, Watch, Watching};
pub use wired::{Wired, WiredGradient};

use crate::gemm::FewRows;
use crate::tuning::{Machine, Tuning};
use crate::{Isa, Team};
use scan::{PlacedScan, Rooms};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use watch::Cursor;

/// What an arena's address is a multiple of.
pub const ARENA_ALIGN: usize = 64;
/// The most threads a tape can be made for; more would only make products of sizes overflow.
pub const MAX_THREADS: usize = 1 << 12;

/// A range of bytes of one memory: the arena, an input, an output or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ref {
    /// Which memory, by [`Memory::slot`].
    pub slot: u32,
    /// Where it begins.
    pub offset: usize,
    /// How long it is.
    pub len: usize,
}

/// Size and alignment of a buffer that a run supplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Bytes.
    pub bytes: usize,
    /// What its address is a multiple of.
    pub align: usize,
}

/// The memories of a tape.
#[derive(Clone, Default)]
pub struct Memory {
    /// Bytes of the arena.
    pub arena: usize,
    /// Each input.
    pub inputs: Vec<Extent>,
    /// Each output.
    pub outputs: Vec<Extent>,
    /// Constants, which the tape keeps alive.
    pub consts: Vec<Const>,
}

/// Constant bytes: weights and literals.
#[derive(Clone)]
pub enum Const {
    /// Bytes that never change.
    Fixed(Arc<dyn AsRef<[u8]> + Send + Sync>),
    /// Bytes that their owner may rewrite between runs.
    Changing(Arc<Numbers>),
}

impl Const {
    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        match self {
            Const::Fixed(bytes) => (**bytes).as_ref().len(),
            Const::Changing(numbers) => numbers.len(),
        }
    }
}

/// One of a tape's memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The arena.
    Arena,
    /// An input.
    Input(usize),
    /// An output.
    Output(usize),
    /// A constant.
    Const(usize),
}

impl Memory {
    /// The slot of a memory.
    pub fn slot(&self, space: Space) -> u32 {
        slot_of(self.inputs.len(), self.outputs.len(), space)
    }
}

fn slot_of(inputs: usize, outputs: usize, space: Space) -> u32 {
    let slot = match space {
        Space::Arena => 0,
        Space::Input(i) => 1 + i,
        Space::Output(i) => 1 + inputs + i,
        Space::Const(i) => 1 + inputs + outputs + i,
    };
    u32::try_from(slot).unwrap_or(u32::MAX)
}

/// A constant, and where its bytes are. They are asked for only once, since another call of `as_ref` might give other
/// bytes than those that the calls were checked against.
struct Held {
    bytes: NonNull<[u8]>,
    keep: Const,
}

// SAFETY: runs only read the bytes, which belong to a value that is itself `Send` and `Sync`; their owner, if they have
// one, writes them while no run reads them.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

/// A tape's memories, against which its calls were verified.
pub(crate) struct Spaces {
    arena: usize,
    inputs: Vec<Extent>,
    outputs: Vec<Extent>,
    consts: Vec<Held>,
}

impl Spaces {
    fn new(memory: Memory) -> Result<Spaces, String> {
        let Memory { arena, inputs, outputs, consts } = memory;
        // No memory is larger, so offsets within one never overflow, nor do sums of a few of them.
        let limit = isize::MAX as usize / 2;
        if let Some(extent) = inputs.iter().chain(&outputs).find(|e| e.bytes > limit || !e.align.is_power_of_two()) {
            return Err(format!("a buffer of {} bytes aligned to {}", extent.bytes, extent.align));
        }
        if arena > limit {
            return Err(format!("an arena of {arena} bytes"));
        }
        let hold = |keep: Const| {
            let bytes = match &keep {
                Const::Fixed(bytes) => NonNull::from((**bytes).as_ref()),
                Const::Changing(numbers) => {
                    let start = NonNull::new(numbers.as_ptr().cast_mut()).unwrap_or(NonNull::dangling());
                    NonNull::slice_from_raw_parts(start, numbers.len())
                }
            };
            Held { bytes, keep }
        };
        Ok(Spaces { arena, inputs, outputs, consts: consts.into_iter().map(hold).collect() })
    }

    fn slot(&self, space: Space) -> u32 {
        slot_of(self.inputs.len(), self.outputs.len(), space)
    }

    fn slots(&self) -> usize {
        1 + self.inputs.len() + self.outputs.len() + self.consts.len()
    }

    fn len(&self, slot: u32) -> Option<usize> {
        let slot = slot as usize;
        let (inputs, outputs) = (1 + self.inputs.len(), 1 + self.inputs.len() + self.outputs.len());
        match slot {
            0 => Some(self.arena),
            s if s < inputs => Some(self.inputs[s - 1].bytes),
            s if s < outputs => Some(self.outputs[s - inputs].bytes),
            s => self.consts.get(s - outputs).map(|c| c.bytes.len()),
        }
    }

    /// What the memory's address is a multiple of, at least.
    fn align(&self, slot: u32) -> usize {
        let slot = slot as usize;
        let (inputs, outputs) = (1 + self.inputs.len(), 1 + self.inputs.len() + self.outputs.len());
        match slot {
            0 => ARENA_ALIGN,
            s if s < inputs => self.inputs[s - 1].align,
            s if s < outputs => self.outputs[s - inputs].align,
            s => self.consts.get(s - outputs).map_or(1, |c| {
                let start = start(c.bytes.as_ptr().cast(), c.bytes.len());
                1 << start.addr().trailing_zeros().min(6)
            }),
        }
    }

    fn is_writable(&self, slot: u32) -> bool {
        let slot = slot as usize;
        slot == 0 || (slot > self.inputs.len() && slot <= self.inputs.len() + self.outputs.len())
    }
}

/// Where a memory starts. The address of an empty memory does not matter, so it gets one that is aligned for any
/// element.
fn start(ptr: *mut u8, bytes: usize) -> *mut u8 {
    if bytes == 0 { std::ptr::without_provenance_mut(ARENA_ALIGN) } else { ptr }
}

/// Why a run stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was cancelled.
    Cancelled,
    /// A value that a call cannot use, such as an index out of range.
    Value {
        /// The call's number; in a loop the loop's number, and then the number in its body.
        call: Vec<usize>,
        /// What is wrong.
        problem: String,
    },
    /// A buffer of the wrong size or alignment.
    Buffer(String),
}

/// A verified program of kernel calls.
pub struct Tape {
    isa: Isa,
    tuning: Tuning,
    threads: usize,
    calls: Vec<Call>,
    /// Which slots the calls refer to.
    used: Vec<bool>,
    /// For each scan in order, the layout of its workers' scratch memory.
    rooms: Vec<Rooms>,
    /// For each call that is a product of a few rows, what can be worked out before the run: these calls are so short
    /// that working it out in every run would cost a noticeable part of their time.
    few_rows: Vec<Option<FewRows>>,
    /// Each call's place in a table of times, which holds the calls in order, each followed by those inside it.
    places: Vec<usize>,
    /// How many places that table has.
    place_count: usize,
    memory: Spaces,
    /// The owner of the weights that may change, in loops too.
    changing: Option<Arc<Changing>>,
    /// Tells this tape's frames from those of other tapes.
    id: u64,
}

/// One stream's pointers for a tape, kept between runs so that a run allocates nothing.
pub struct Frame {
    /// The tape it belongs to.
    tape: u64,
    slots: Vec<*mut u8>,
    /// For each scan of the tape in order, for each worker: frames of the body's tapes.
    scans: Vec<Vec<Vec<Frame>>>,
}

// SAFETY: the pointers are set anew at each run from borrows that the run holds, or point into constants that the tape
// keeps alive, and no other tape runs with them; between runs nothing reads them.
unsafe impl Send for Frame {}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({} slots)", self.slots.len())
    }
}

impl std::fmt::Debug for Tape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tape({} calls, {} bytes)", self.calls.len(), self.memory.arena)
    }
}

/// The start of each memory of a tape, by slot: what turns a verified reference into a pointer.
#[derive(Clone, Copy)]
pub(crate) struct Slots<'a>(&'a [*mut u8]);

impl Slots<'_> {
    #[inline(always)]
    pub(crate) fn at(self, r: &Ref) -> *mut u8 {
        debug_assert!((r.slot as usize) < self.0.len());
        // SAFETY: a tape verifies that the slot of every reference exists, and its frames have all slots.
        unsafe { self.0.get_unchecked(r.slot as usize) }.wrapping_add(r.offset)
    }
}

impl Tape {
    /// Verifies calls against memories, for runs on up to `threads` threads.
    pub fn new(on: Machine<'_>, threads: usize, memory: Memory, mut calls: Vec<Call>) -> Result<Tape, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let threads = threads.max(1);
        if threads > MAX_THREADS {
            return Err(format!("{threads} threads are more than {MAX_THREADS}"));
        }
        let memory = Spaces::new(memory)?;
        for (i, call) in calls.iter().enumerate() {
            verify::check(call, &memory, on, threads).map_err(|problem| format!("call {i}: {problem}"))?;
        }
        call::find_next_weights(&mut calls);
        let mut used = vec![false; memory.slots()];
        // Verified: every slot exists.
        calls.iter_mut().for_each(|call| call.for_each_ref(&mut |r| used[r.slot as usize] = true));
        let scans = calls.iter().filter_map(|c| if let Call::Scan(scan) = c { Some(scan.rooms()) } else { None });
        let rooms = scans.collect();
        let few_rows = calls.iter().map(|c| if let Call::Gemm(g) = c { g.few_rows(on) } else { None }).collect();
        let mut place_count = 0;
        let places = calls.iter().map(|call| {
            let place = place_count;
            let inside: usize = if let Call::Scan(scan) = call { scan.tapes().map(|t| t.place_count).sum() } else { 0 };
            place_count += 1 + inside;
            place
        });
        let places = places.collect();
        let changing = owner(&memory, &calls)?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Tape {
            isa: on.isa,
            tuning: *on.tuning,
            threads,
            used,
            rooms,
            few_rows,
            places,
            place_count,
            calls,
            memory,
            changing,
            id,
        })
    }

    /// What its calls run on.
    fn machine(&self) -> Machine<'_> {
        Machine { isa: self.isa, tuning: &self.tuning }
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> usize {
        self.memory.arena
    }

    /// How many inputs a run takes.
    pub fn inputs(&self) -> usize {
        self.memory.inputs.len()
    }

    /// Whether any call refers to that input of a run.
    pub fn reads_input(&self, input: usize) -> bool {
        input < self.inputs() && self.used[self.memory.slot(Space::Input(input)) as usize]
    }

    /// How many calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Room for one stream's pointers.
    pub fn frame(&self) -> Frame {
        let mut slots = vec![std::ptr::null_mut(); self.memory.slots()];
        let first = self.memory.slot(Space::Const(0)) as usize;
        for (slot, data) in slots[first..].iter_mut().zip(&self.memory.consts) {
            *slot = start(data.bytes.as_ptr().cast(), data.bytes.len());
        }
        let scans = self.calls.iter().filter_map(|call| match call {
            Call::Scan(scan) => {
                let workers = if scan.splits() { self.threads } else { 1 };
                Some((0..workers).map(|_| scan.tapes().map(Tape::frame).collect()).collect())
            }
            _ => None,
        });
        Frame { tape: self.id, scans: scans.collect(), slots }
    }

    /// Runs every call in order.
    ///
    /// Inputs and outputs come in order and must have the tape's sizes; all memory must be aligned for its elements,
    /// the arena to 64 bytes. `cancel` is checked between calls and between the steps of a scan.
    #[expect(clippy::too_many_arguments, reason = "memory, threads, and an observer")]
    pub fn run<'i, 'o>(
        &self,
        frame: &mut Frame,
        team: &Team,
        arena: &mut [u8],
        inputs: impl IntoIterator<Item = &'i [u8]>,
        outputs: impl IntoIterator<Item = &'o mut [u8]>,
        watch: Option<Watching<'_>>,
        cancel: &AtomicBool,
    ) -> Result<(), Stopped> {
        let refuse = |what: String| Err(Stopped::Buffer(what));
        if frame.tape != self.id {
            return refuse("the frame belongs to another tape".into());
        }
        if team.threads() > self.threads {
            return refuse(format!("a team of {} for a tape of {} threads", team.threads(), self.threads));
        }
        let aligned = self.memory.arena == 0 || arena.as_ptr().addr().is_multiple_of(ARENA_ALIGN);
        if arena.len() < self.memory.arena || !aligned {
            return refuse(format!("an arena of {} bytes, want {} aligned to 64", arena.len(), self.memory.arena));
        }
        frame.slots[0] = start(arena.as_mut_ptr(), self.memory.arena);
        let (want_inputs, want_outputs) = (&self.memory.inputs, &self.memory.outputs);
        let mut given = 0;
        for (bytes, &want) in inputs.into_iter().zip(want_inputs) {
            check_buffer("input", given, bytes, want)?;
            frame.slots[1 + given] = start(bytes.as_ptr().cast_mut(), want.bytes);
            given += 1;
        }
        if given != want_inputs.len() {
            return refuse(format!("{given} of {} inputs", want_inputs.len()));
        }
        let mut given = 0;
        for (bytes, &want) in outputs.into_iter().zip(want_outputs) {
            check_buffer("output", given, bytes, want)?;
            frame.slots[1 + want_inputs.len() + given] = start(bytes.as_mut_ptr(), want.bytes);
            given += 1;
        }
        if given != want_outputs.len() {
            return refuse(format!("{given} of {} outputs", want_outputs.len()));
        }
        let (steps, times) = match watch {
            None => (None, None),
            Some(Watching::Steps(steps)) => (Some(steps), None),
            Some(Watching::Times(recorder)) => (None, Some(recorder.enter(self))),
        };
        let _unchanged = self.changing.as_deref().map(Changing::reading);
        // SAFETY: every slot was just set to memory of the size that the calls were verified against: the inputs,
        // outputs and arena are borrowed for the whole run, the constants are kept alive by `self`. Weights that may
        // change, in loops too, belong to the owner whose lock is held here.
        unsafe { self.run_calls(frame, team, steps, times, cancel) }
    }

    /// # Safety
    /// Every slot of the frame must point to memory of the size in `self.memory`, aligned for its elements (the arena
    /// to 64 bytes), unaliased but for shared reads; the team must be no larger than the tape's thread count; and
    /// weights that may change must not be rewritten meanwhile.
    unsafe fn run_calls(
        &self,
        frame: &mut Frame,
        team: &Team,
        mut steps: Option<&mut dyn Watch>,
        mut times: Option<Cursor<'_>>,
        cancel: &AtomicBool,
    ) -> Result<(), Stopped> {
        let Frame { slots, scans, .. } = frame;
        let slots = Slots(slots);
        let mut scans = scans.iter_mut().zip(&self.rooms);
        for (i, (call, few_rows)) in self.calls.iter().zip(&self.few_rows).enumerate() {
            if cancel.load(Ordering::Relaxed) {
                return Err(Stopped::Cancelled);
            }
            if let Some(watch) = &mut steps {
                watch.begin(i);
            }
            let began = times.as_ref().map_or(0, |t| t.lane.last());
            // SAFETY: the call was verified against memories of these sizes.
            let result = unsafe {
                match (call, few_rows) {
                    (Call::Gemm(gemm), Some(few)) => {
                        gemm.run_few_rows(few, slots);
                        Ok(())
                    }
                    (Call::Scan(scan), _) => {
                        let (workers, rooms) = scans.next().expect("a frame has one entry a scan");
                        let times = times.as_mut().map(|t| t.at(t.base + self.places[i]));
                        PlacedScan { scan, rooms }.run(slots, workers, team, times, cancel)
                    }
                    (other, _) => other.run(self.machine(), slots, team),
                }
            };
            result.map_err(|stopped| match stopped {
                Stopped::Value { mut call, problem } => {
                    call.insert(0, i);
                    Stopped::Value { call, problem }
                }
                other => other,
            })?;
            if let Some(times) = &mut times {
                times.lane.end(times.base + self.places[i], began);
            }
            if let Some(watch) = &mut steps {
                watch.end(i);
            }
        }
        Ok(())
    }
}

/// The owner of all weights that may change; an error if there are several owners.
fn owner(memory: &Spaces, calls: &[Call]) -> Result<Option<Arc<Changing>>, String> {
    let constants = memory.consts.iter().filter_map(|held| match &held.keep {
        Const::Fixed(_) => None,
        Const::Changing(numbers) => numbers.owner(),
    });
    let mut found: Option<&Arc<Changing>> = None;
    for one in constants.chain(calls.iter().flat_map(Call::owners).flatten()) {
        if !Arc::ptr_eq(found.get_or_insert(one), one) {
            return Err("weights of several owners, which could change in the middle of a run".into());
        }
    }
    Ok(found.cloned())
}

#[inline]
fn check_buffer(kind: &str, index: usize, bytes: &[u8], want: Extent) -> Result<(), Stopped> {
    if bytes.len() != want.bytes {
        return Err(Stopped::Buffer(format!("{kind} {index} has {} bytes, want {}", bytes.len(), want.bytes)));
    }
    // Verified to be a power of two. A division here would take longer than all other checks.
    if want.bytes > 0 && bytes.as_ptr().addr() & (want.align - 1) != 0 {
        return Err(Stopped::Buffer(format!("{kind} {index} is not aligned to {} bytes", want.align)));
    }
    Ok(())
}
