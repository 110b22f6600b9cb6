//! A fixed team of threads that starts a parallel section within about a microsecond.
//!
//! Small graphs cannot afford a condition variable per operation. A member spins for a short while after each section
//! (the next one usually follows at once) and parks only then. Work is split by index, never stolen, so a given thread
//! count always computes in the same order and gives the same bits.

use crate::tuning::Tuning;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::{JoinHandle, Thread};

/// A section's closure.
type Job<'a> = *const (dyn Fn(usize) + Sync + 'a);

/// How many lines of a closure's own data a member asks for at once when a section begins. Cores that do not share a cache
/// wait some hundred nanoseconds for each line that another one has written, and would do so for one after the other.
const FETCHED_LINES: usize = 6;

/// A value in lines of the caches of its own, so that a thread that waits for it is not disturbed by other writes.
#[repr(align(128))]
struct Alone<T>(T);

/// How a section begins.
struct Begin {
    /// Counts sections; a member has work when it differs from the last one it ran.
    epoch: AtomicU32,
    /// The section's closure, beside the epoch, so that both come with one line. Written before the epoch's increment, and valid
    /// until `pending` is 0.
    job: UnsafeCell<Option<Job<'static>>>,
}

// SAFETY: the closure is written by the caller, who holds the team, while no member reads it: members read it after they have
// seen the epoch's increment and before they decrease `pending`, for which the caller waits.
unsafe impl Sync for Begin {}
// SAFETY: as above; the closure itself is `Sync`.
unsafe impl Send for Begin {}

struct Shared {
    begin: Alone<Begin>,
    /// Members that have not finished the section.
    pending: Alone<AtomicUsize>,
    stop: AtomicBool,
    /// How often a member looks for work before it parks, and a waiting caller before it yields.
    spins: usize,
    asleep: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

/// Threads that run one closure together, the caller among them as number 0.
pub struct Team {
    shared: Arc<Shared>,
    members: Vec<(Thread, Option<JoinHandle<()>>)>,
    /// Held during a section; a second caller finds it taken and runs its section alone.
    busy: Mutex<()>,
}

impl Team {
    /// A team of `threads` (at least 1), of which `threads − 1` are started now, with the tuning of this machine.
    pub fn new(threads: usize) -> std::io::Result<Team> {
        Team::with_tuning(threads, &Tuning::detect())
    }

    /// A team of `threads` (at least 1), of which `threads − 1` are started now.
    pub fn with_tuning(threads: usize, tuning: &Tuning) -> std::io::Result<Team> {
        let extra = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            begin: Alone(Begin { epoch: AtomicU32::new(0), job: UnsafeCell::new(None) }),
            pending: Alone(AtomicUsize::new(0)),
            stop: AtomicBool::new(false),
            spins: tuning.team_spins(),
            asleep: (0..extra).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
        });
        let mut team = Team { shared, members: Vec::with_capacity(extra), busy: Mutex::new(()) };
        for index in 0..extra {
            let shared = Arc::clone(&team.shared);
            let handle = std::thread::Builder::new()
                .name(format!("schwann-{}", index + 1))
                .spawn(move || member(&shared, index))?;
            team.members.push((handle.thread().clone(), Some(handle)));
        }
        Ok(team)
    }

    /// A team of the caller alone, for work inside a parallel section of another team.
    pub fn solo() -> &'static Team {
        static SOLO: std::sync::OnceLock<Team> = std::sync::OnceLock::new();
        SOLO.get_or_init(|| Team::new(1).expect("a team of one starts no thread"))
    }

    /// How many run a section, the caller included.
    pub fn threads(&self) -> usize {
        self.members.len() + 1
    }

    /// Runs `f(0)` … `f(threads − 1)`, in parallel where the team is free, and returns when all are done.
    ///
    /// A panic in any of them is raised again here, after all have ended.
    pub fn run(&self, f: &(dyn Fn(usize) + Sync)) {
        if self.members.is_empty() {
            return f(0);
        }
        let _busy = match self.busy.try_lock() {
            Ok(busy) => busy,
            // A section panicked after all its members had ended: the lock protects no data that could be inconsistent.
            Err(TryLockError::Poisoned(busy)) => busy.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..self.threads()).for_each(f),
        };
        let shared = &*self.shared;
        // Members use the closure between the epoch's increment and their decrement of `pending`, and this function leaves
        // only when that is 0, so both borrows outlive every use.
        let Begin { epoch, job: place } = &shared.begin.0;
        shared.pending.0.store(self.members.len(), Ordering::Relaxed);
        // SAFETY: only the lifetime changes, see above; no member reads the place now, see `Begin`.
        unsafe { *place.get() = Some(std::mem::transmute::<Job<'_>, Job<'static>>(f)) };
        epoch.fetch_add(1, Ordering::SeqCst);
        for (asleep, (thread, _)) in shared.asleep.iter().zip(&self.members) {
            if asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        let mut spins = 0;
        while shared.pending.0.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins > shared.spins { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let theirs = shared.panic.lock().expect("a panic is stored, not raised, under this lock").take();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        if let Some(panic) = theirs {
            resume_unwind(panic);
        }
    }

    /// Runs `f(part, range)` over `0..len` cut into one contiguous range a thread, each a multiple of `grain` long but
    /// for the last; ranges that would be empty are not called.
    pub fn split(&self, len: usize, grain: usize, f: &(dyn Fn(usize, std::ops::Range<usize>) + Sync)) {
        let grain = grain.max(1);
        let pieces = len.div_ceil(grain);
        let parts = self.threads().min(pieces.max(1));
        if parts <= 1 {
            if len > 0 {
                f(0, 0..len);
            }
            return;
        }
        let cut = |part: usize| start(pieces, parts, part).saturating_mul(grain).min(len);
        self.run(&|part| {
            if part < parts && cut(part) < cut(part + 1) {
                f(part, cut(part)..cut(part + 1));
            }
        });
    }
}

/// Where part `part` of `parts` begins, if `len` things are dealt out evenly: ⌊len · part / parts⌋, of which no step
/// overflows as long as `parts · parts` does not.
pub(crate) fn start(len: usize, parts: usize, part: usize) -> usize {
    len / parts * part + len % parts * part / parts
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Team({} threads)", self.threads())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.begin.0.epoch.fetch_add(1, Ordering::SeqCst);
        for (thread, handle) in &mut self.members {
            thread.unpark();
            if let Some(handle) = handle.take() {
                let _ = handle.join();
            }
        }
    }
}

fn member(shared: &Shared, index: usize) {
    let Begin { epoch, job } = &shared.begin.0;
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while epoch.load(Ordering::Acquire) == seen {
            spins += 1;
            if spins < shared.spins {
                std::hint::spin_loop();
                continue;
            }
            // Set `asleep` before reading the epoch for the last time: either this read sees a new section, or the
            // caller, which reads `asleep` after it has increased the epoch, sees the flag and unparks this thread.
            shared.asleep[index].store(true, Ordering::SeqCst);
            if epoch.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            shared.asleep[index].store(false, Ordering::SeqCst);
        }
        seen = epoch.load(Ordering::Acquire);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `Team::run` stored the closure's address before it increased the epoch, which was read with `Acquire`, and
            // keeps both as they are until `pending` is 0, which needs this member's decrement.
            if let Some(job) = unsafe { *job.get() } {
                fetch(job.cast(), FETCHED_LINES);
                // SAFETY: as above.
                unsafe { (*job)(index + 1) }
            }
        }));
        if let Err(panic) = result {
            *shared.panic.lock().expect("a panic is stored, not raised, under this lock") = Some(panic);
        }
        shared.pending.0.fetch_sub(1, Ordering::Release);
    }
}

/// Asks for so many lines of the caches from here on. Nothing is read, so there need not be anything.
pub(crate) fn fetch(at: *const u8, lines: usize) {
    for line in 0..lines {
        let at = at.wrapping_add(64 * line);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has the instruction, which reads nothing that could fault.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_runs_once_in_each_of_many_sections() {
        for threads in [1, 2, 3, 5] {
            let team = Team::new(threads).unwrap();
            let counts: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..200 {
                team.run(&|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 200));
        }
    }

    #[test]
    fn parts_of_any_length_begin_where_they_should() {
        for len in [0usize, 1, 7, 4096, 1_000_003, usize::MAX - 1, usize::MAX] {
            for parts in [1usize, 2, 3, 7, 4096] {
                for part in [0, 1, parts / 2, parts - 1, parts] {
                    let exact = len as u128 * part as u128 / parts as u128;
                    assert_eq!(start(len, parts, part) as u128, exact, "{part} of {parts} parts of {len}");
                }
            }
        }
    }

    #[test]
    fn a_split_covers_the_range_once() {
        let team = Team::new(3).unwrap();
        for len in [0usize, 1, 7, 64, 1000] {
            for grain in [1usize, 8, 300] {
                let hits: Vec<AtomicUsize> = (0..len).map(|_| AtomicUsize::new(0)).collect();
                team.split(len, grain, &|_, range| {
                    assert_eq!(range.start % grain, 0);
                    range.for_each(|i| {
                        hits[i].fetch_add(1, Ordering::Relaxed);
                    });
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(2).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| team.run(&|i| assert_ne!(i, 1, "planted"))));
        assert!(caught.is_err());
        let threads = Mutex::new(std::collections::HashSet::new());
        team.run(&|_| {
            threads.lock().unwrap().insert(std::thread::current().id());
        });
        assert_eq!(threads.into_inner().unwrap().len(), 2, "the next section runs in parallel again");
    }

    #[test]
    fn two_callers_at_once_both_finish() {
        let team = Team::new(2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let ran = AtomicUsize::new(0);
                        team.run(&|_| {
                            ran.fetch_add(1, Ordering::Relaxed);
                        });
                        assert_eq!(ran.load(Ordering::Relaxed), 2);
                    }
                });
            }
        });
    }
}
