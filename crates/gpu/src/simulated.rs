//! A simulated device: kernels run in the interpreter, which finds races, reads of words that were never written and
//! indices beyond the end. It is for tests without a GPU, and for tests of failures.
//!
//! Commands are put on a queue, and executed in order when the host waits for one.

use crate::device::{Device, Launch, Limits, Tally, problem};
use schwann_codegen::interpret::{Counts, Options, Program, Words};
use schwann_codegen::lang::Kernel;
use schwann_codegen::verify::verify;
use schwann_core::backend::Clock;
use schwann_core::{Error, Provenance, Result};
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const NAME: &str = "simulated";

/// What a test may read and set.
#[derive(Debug, Default)]
pub struct Knobs {
    /// Calls of the device so far.
    pub calls: AtomicU64,
    /// The call that fails, counted from 1 as [`Knobs::calls`] counts; 0 for none.
    pub fails_at: AtomicU64,
    /// Whether the device is lost from a failing call on.
    pub for_good: AtomicBool,
    /// Microseconds that a launch takes beyond its work.
    pub delay_us: AtomicU64,
    /// Bytes of memory that the device has; 0 means no limit.
    pub memory_bytes: AtomicU64,
    /// Bytes in use.
    pub used_bytes: AtomicU64,
    /// Buffers that exist now, including those of lists.
    pub live: AtomicUsize,
    /// The longest that a submission took, in microseconds.
    pub longest_us: AtomicU64,
}

/// The device.
#[derive(Debug)]
pub struct Simulated {
    limits: Limits,
    clock: Ticks,
    began: Instant,
    /// What launches executed so far.
    executed: AtomicU64,
    knobs: Arc<Knobs>,
    tally: Tally,
    lost: AtomicBool,
    compiled: Mutex<HashMap<Arc<Kernel>, Arc<Program>>>,
    queue: Mutex<Queue>,
}

/// What its clock counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ticks {
    /// There is no clock.
    None,
    /// The host's time.
    Time,
    /// What is executed: a nanosecond for each.
    Executed,
}

/// A buffer: bytes that only the queue touches.
#[derive(Debug)]
pub struct Buffer {
    words: Arc<Mutex<Words>>,
    _held: Held,
}

/// A share of the memory that counts as used while this lives.
#[derive(Debug)]
struct Held {
    knobs: Arc<Knobs>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.knobs.used_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        self.knobs.live.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Launches with their buffers.
#[derive(Debug)]
pub struct List {
    work: Arc<Work>,
    room: Held,
}

#[derive(Debug)]
struct Work {
    buffers: [Arc<Mutex<Words>>; 3],
    launches: Vec<Launch<Arc<Program>>>,
}

/// A submission, by its number.
#[derive(Debug)]
pub struct Ticket {
    number: u64,
    timed: bool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u64, Command)>,
    /// Commands that were put on the queue.
    given: u64,
    /// Commands that are done.
    done: u64,
    /// The outcome of submissions that are done.
    ended: HashMap<u64, Result<Vec<[f64; 2]>>>,
}

#[derive(Debug)]
enum Command {
    Write(Arc<Mutex<Words>>, u64, Vec<u32>),
    Copy([(Arc<Mutex<Words>>, u64); 2], u64),
    Run(Arc<Work>),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn said(what: impl Display) -> Error {
    problem(NAME, what.to_string())
}

fn place(at: u64) -> Result<usize> {
    usize::try_from(at / 4).ok().filter(|_| at.is_multiple_of(4)).ok_or_else(|| said("a place within a word"))
}

impl Default for Simulated {
    fn default() -> Simulated {
        Simulated::new(Limits::default(), true)
    }
}

impl Simulated {
    /// A device with these limits; with a clock of its launches or without.
    pub fn new(limits: Limits, clock: bool) -> Simulated {
        Simulated::with(limits, if clock { Ticks::Time } else { Ticks::None })
    }

    /// A device whose clock shows no time but what was executed, a nanosecond for each operation, access and barrier: the same
    /// in every run.
    pub fn counting(limits: Limits) -> Simulated {
        Simulated::with(limits, Ticks::Executed)
    }

    fn with(limits: Limits, clock: Ticks) -> Simulated {
        Simulated {
            limits,
            clock,
            executed: AtomicU64::new(0),
            began: Instant::now(),
            knobs: Arc::default(),
            tally: Tally::default(),
            lost: AtomicBool::new(false),
            compiled: Mutex::default(),
            queue: Mutex::default(),
        }
    }

    /// What a test may read and set.
    pub fn knobs(&self) -> Arc<Knobs> {
        Arc::clone(&self.knobs)
    }

    /// Every call begins here, and may fail here.
    fn call(&self, what: &str) -> Result<()> {
        if self.lost.load(Ordering::SeqCst) {
            return Err(said(format!("{what}: the device is lost")));
        }
        let number = self.knobs.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if self.knobs.fails_at.load(Ordering::SeqCst) != number {
            return Ok(());
        }
        let lost = self.knobs.for_good.load(Ordering::SeqCst);
        self.lost.store(lost, Ordering::SeqCst);
        Err(said(format!("{what}: the device {}", if lost { "is lost" } else { "did not do it" })))
    }

    fn hold(&self, what: &str, bytes: u64) -> Result<Held> {
        let most = self.knobs.memory_bytes.load(Ordering::SeqCst);
        let used = self.knobs.used_bytes.load(Ordering::SeqCst);
        if most > 0 && used + bytes > most {
            return Err(said(format!("no memory for {what}: {bytes} bytes wanted, {used} of {most} in use")));
        }
        self.knobs.used_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.knobs.live.fetch_add(1, Ordering::SeqCst);
        Tally::count(&self.tally.buffers, 1);
        Ok(Held { knobs: Arc::clone(&self.knobs), bytes })
    }

    fn push(&self, command: Command) -> u64 {
        let mut queue = locked(&self.queue);
        queue.given += 1;
        let number = queue.given;
        queue.waiting.push_back((number, command));
        number
    }

    /// Executes the commands on the queue, up to this one.
    fn work_until(&self, queue: &mut Queue, last: u64) -> Result<()> {
        while queue.waiting.front().is_some_and(|(number, _)| *number <= last) {
            let Some((number, command)) = queue.waiting.pop_front() else { break };
            queue.done = number;
            match command {
                Command::Write(to, at, words) => locked(&to).put(place(at)?, &words).map_err(said)?,
                Command::Copy([(from, from_at), (to, to_at)], bytes) => copy(&from, from_at, &to, to_at, bytes)?,
                Command::Run(work) => {
                    let from = Instant::now();
                    let result = self.launch(&work);
                    self.knobs.longest_us.fetch_max(from.elapsed().as_micros() as u64, Ordering::SeqCst);
                    queue.ended.insert(number, result);
                }
            }
        }
        Ok(())
    }

    fn launch(&self, work: &Work) -> Result<Vec<[f64; 2]>> {
        let mut times = vec![];
        for launch in &work.launches {
            let start = self.now();
            let [mut arena, mut constants, mut faults] = work.buffers.each_ref().map(|words| locked(words));
            let mut buffers = [&mut *arena, &mut *constants, &mut *faults];
            let count = launch.kernel.kernel().buffers.len().min(3);
            let ran = launch.kernel.run(launch.groups, &launch.args, &mut buffers[..count], &Options::default());
            self.executed.fetch_add(executed(&ran.map_err(said)?), Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(self.knobs.delay_us.load(Ordering::SeqCst)));
            times.push([start, self.now()]);
        }
        Ok(times)
    }

    /// The time now, in seconds of its clock.
    fn now(&self) -> f64 {
        match self.clock {
            Ticks::Executed => self.executed.load(Ordering::SeqCst) as f64 * 1e-9,
            _ => self.began.elapsed().as_secs_f64(),
        }
    }
}

/// All that a launch did.
fn executed(counts: &Counts) -> u64 {
    let traffic = [counts.buffer, counts.shared, counts.own];
    counts.operations + counts.barriers + traffic.iter().map(|t| t.loads + t.stores).sum::<u64>()
}

/// Copies words, including which of them were never written.
fn copy(from: &Mutex<Words>, from_at: u64, to: &Mutex<Words>, to_at: u64, bytes: u64) -> Result<()> {
    let (from_at, to_at, words) = (place(from_at)?, place(to_at)?, place(bytes)?);
    let outside = || said("a copy beyond the end of a buffer");
    let source = locked(from);
    let values = source.values().get(from_at..from_at + words).ok_or_else(outside)?.to_vec();
    let known: Vec<bool> = (from_at..from_at + words).map(|at| source.is_known(at)).collect();
    drop(source);
    let mut target = locked(to);
    target.put(to_at, &values).map_err(said)?;
    for at in (0..words).filter(|&at| !known[at]) {
        target.forget(to_at + at..to_at + at + 1).map_err(said)?;
    }
    Ok(())
}

impl Device for Simulated {
    type Buffer = Buffer;
    type Kernel = Arc<Program>;
    type List = List;
    type Ticket = Ticket;

    fn name(&self) -> String {
        NAME.into()
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn unified(&self) -> bool {
        false
    }
    fn clock(&self) -> Option<Clock> {
        let source = match self.clock {
            Ticks::None => return None,
            Ticks::Time => "the interpreter's",
            Ticks::Executed => "the interpreter's count of what it executed",
        };
        Some(Clock { source: source.into(), origin: Provenance::Measured, resolution_s: 1e-9 })
    }
    fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Words that hold nothing: a kernel that reads a word before it is written is wrong, even if real devices have
    /// zeros there.
    fn buffer(&self, what: &str, bytes: u64) -> Result<Buffer> {
        self.call("a buffer")?;
        self.limits.admit_buffer(NAME, what, bytes)?;
        let held = self.hold(what, bytes)?;
        Ok(Buffer { words: Arc::new(Mutex::new(Words::new(bytes.div_ceil(4) as usize))), _held: held })
    }

    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        self.call("a write")?;
        Tally::count(&self.tally.writes, 1);
        let word = |chunk: &[u8]| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_le_bytes(word)
        };
        self.push(Command::Write(Arc::clone(&to.words), at, bytes.chunks(4).map(word).collect()));
        Ok(())
    }

    fn zero(&self, to: &Buffer, at: u64, bytes: u64) -> Result<()> {
        self.call("a fill")?;
        self.push(Command::Write(Arc::clone(&to.words), at, vec![0; place(bytes)?]));
        Ok(())
    }

    fn copy(&self, from: (&Buffer, u64), to: (&Buffer, u64), bytes: u64) -> Result<()> {
        self.call("a copy")?;
        if Arc::ptr_eq(&from.0.words, &to.0.words) {
            return Err(said("a copy from a buffer to itself"));
        }
        Tally::count(&self.tally.copies, 1);
        let [from, to] = [from, to].map(|(buffer, at)| (Arc::clone(&buffer.words), at));
        self.push(Command::Copy([from, to], bytes));
        Ok(())
    }

    fn read(&self, from: &Buffer, parts: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.call("a read")?;
        Tally::count(&self.tally.reads, parts.len());
        let mut queue = locked(&self.queue);
        let last = queue.given;
        self.work_until(&mut queue, last)?;
        let words = locked(&from.words);
        for (at, into) in parts {
            let at = place(*at)?;
            let values = words.get(at..at + into.len().div_ceil(4));
            let values =
                values.ok_or_else(|| said("a result that was never written, or beyond the end of a buffer"))?;
            for (bytes, word) in into.chunks_mut(4).zip(values) {
                bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
            }
        }
        Ok(())
    }

    fn compile(&self, kernel: &Arc<Kernel>) -> Result<Arc<Program>> {
        self.call("a compilation")?;
        let mut compiled = locked(&self.compiled);
        if let Some(known) = compiled.get(kernel) {
            return Ok(Arc::clone(known));
        }
        self.limits.admit(NAME, kernel)?;
        verify(kernel).map_err(said)?;
        let program = Arc::new(Program::new(kernel).map_err(said)?);
        Tally::count(&self.tally.compilations, 1);
        compiled.insert(Arc::clone(kernel), Arc::clone(&program));
        Ok(program)
    }

    fn list(&self, buffers: [&Buffer; 3], launches: &[Launch<Arc<Program>>], old: Option<List>) -> Result<List> {
        self.call("a list")?;
        if let Some(launch) = launches.iter().find(|l| l.groups.iter().any(|n| *n == 0 || *n > self.limits.groups)) {
            let (groups, most, name) = (launch.groups, self.limits.groups, &launch.kernel.kernel().name);
            return Err(said(format!("{groups:?} workgroups of `{name}`, and along an axis there can be 1 to {most}")));
        }
        let bytes = launches.iter().map(|launch| 4 * launch.args.len() as u64).sum();
        let room = match old.map(|list| list.room).filter(|room| room.bytes >= bytes) {
            Some(room) => room,
            None => self.hold("arguments", bytes.next_power_of_two())?,
        };
        let buffers = buffers.map(|buffer| Arc::clone(&buffer.words));
        Ok(List { work: Arc::new(Work { buffers, launches: launches.to_vec() }), room })
    }

    fn submit(&self, list: &List, timed: bool) -> Result<Ticket> {
        self.call("a submission")?;
        Tally::count(&self.tally.submissions, 1);
        Tally::count(&self.tally.launches, list.work.launches.len());
        Ok(Ticket {
            number: self.push(Command::Run(Arc::clone(&list.work))),
            timed: timed && self.clock != Ticks::None,
        })
    }

    fn ended(&self, ticket: &Ticket) -> Result<bool> {
        self.call("a look")?;
        Ok(locked(&self.queue).done >= ticket.number)
    }

    fn wait(&self, ticket: Ticket) -> Result<Option<Vec<[f64; 2]>>> {
        self.call("a wait")?;
        let mut queue = locked(&self.queue);
        self.work_until(&mut queue, ticket.number)?;
        let ended = queue.ended.remove(&ticket.number).ok_or_else(|| said("a submission without an end"))?;
        ended.map(|times| ticket.timed.then_some(times))
    }
}
