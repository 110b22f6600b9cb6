//! How fast memory is at each distance, measured: every thread reads, copies and changes buffers of its own, at a size
//! for each cache level and one for main memory. A copy or change of n bytes counts 2n.
//!
//! What is measured depends on what the machine tells and can spare. Caches whose size is not known have no level. A
//! level whose bytes would take too much of the memory that is free is left out, and that is said: a smaller set would
//! lie in a nearer cache and give that one's speed under this one's name.

use super::cpu::Cache;
use super::roof::words;
use super::{Progress, Result};
use schwann_core::Error as Core;
use schwann_core::plan::bytes;
use schwann_kernels::room::Room;
use schwann_kernels::{Isa, peak};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

/// Of the memory that is free, a measurement takes at most this part.
const PART: usize = 4;
/// A set lies beyond a cache where it is this many times its size.
const BEYOND: usize = 2;
/// Main memory is measured with this many times the largest cache, within these bounds.
const MEMORY_TIMES: usize = 3;
const MEMORY_LEAST: usize = 64 << 20;
const MEMORY_MOST: usize = 1 << 30;
/// The same where no cache's size is known.
const MEMORY_BLIND: usize = 512 << 20;

/// How fast memory is at one distance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// `L1`, `L2`, `L3` or `memory`.
    pub name: String,
    /// What fits here, for all threads together; `None` for main memory.
    pub capacity_bytes: Option<usize>,
    /// Bytes that were moved at this distance, of all threads together.
    pub working_set_bytes: usize,
    /// Copied: read and written.
    pub copy_bytes_per_s: f64,
    /// Only read.
    pub read_bytes_per_s: f64,
    /// Changed in place: read and written, without fetching what is only overwritten.
    pub update_bytes_per_s: f64,
}

impl Level {
    /// The fastest of the ways to move bytes.
    pub fn bytes_per_s(&self) -> f64 {
        self.copy_bytes_per_s.max(self.read_bytes_per_s).max(self.update_bytes_per_s)
    }
}

/// The least seconds in which so many bytes can be moved once, by levels of so many bytes and a speed, near to far: at
/// most what a level holds can come from it, and the rest comes from farther. `None` where they are more than the levels
/// hold.
///
/// A bound and no estimate: what was just computed may lie nearer than the whole working set suggests.
pub(crate) fn least_seconds(levels: impl IntoIterator<Item = (Option<u64>, f64)>, bytes: u64) -> Option<f64> {
    let (mut left, mut seconds) = (bytes, 0.0);
    for (capacity, bytes_per_s) in levels {
        let here = capacity.map_or(left, |c| left.min(c));
        seconds += here as f64 / bytes_per_s;
        left -= here;
    }
    (left == 0).then_some(seconds)
}

/// A level that is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) capacity: Option<usize>,
    pub(super) working_set: usize,
}

/// Bytes that a measurement may take in all; without a limit where it is not known what is free.
pub(super) fn allowance() -> Option<usize> {
    schwann_core::memory::available_bytes().ok().map(|free| free / PART)
}

/// The levels that can be measured with so many threads, near to far, and what is left out with the reason.
pub(super) fn places(
    caches: &Result<Vec<Cache>, String>,
    threads: usize,
    allowed: Option<usize>,
) -> (Vec<Place>, Vec<String>) {
    let mut found: Vec<Place> = vec![];
    let mut left_out = vec![];
    let allowed = allowed.unwrap_or(usize::MAX);
    let known = caches.as_ref().map(|c| &c[..]).unwrap_or_default();
    if let Err(why) = caches {
        left_out.push(format!("speeds of caches: their sizes are not known ({why})"));
    }
    for cache in known {
        let capacity = cache.capacity(threads);
        let working_set = (capacity / 2).min(allowed);
        let nearer = found.last().and_then(|p| p.capacity).unwrap_or(0);
        let name = format!("L{}", cache.level);
        if working_set <= nearer {
            left_out.push(short_of(&name, capacity / 2, allowed));
        } else {
            found.push(Place { name, capacity: Some(capacity), working_set });
        }
    }
    let largest = known.iter().map(|c| c.capacity(threads)).max();
    let wanted = largest.map_or(MEMORY_BLIND, |l| l.saturating_mul(MEMORY_TIMES).clamp(MEMORY_LEAST, MEMORY_MOST));
    let working_set = wanted.min(allowed);
    if working_set >= largest.map_or(MEMORY_LEAST, |l| l.saturating_mul(BEYOND)) {
        found.push(Place { name: "memory".into(), capacity: None, working_set });
    } else {
        left_out.push(short_of("main memory", wanted, working_set));
    }
    (found, left_out)
}

fn short_of(name: &str, wanted: usize, allowed: usize) -> String {
    let [wanted, allowed] = [wanted, allowed].map(|b| bytes(b as u64));
    format!("speed of {name}: it takes {wanted} to measure, and {allowed} is what can be spared now")
}

/// What a round does with a thread's buffers.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Copy,
    Read,
    Update,
}

impl Way {
    /// Bytes moved for each byte of the working set.
    fn moved(self) -> f64 {
        if self == Way::Update { 2.0 } else { 1.0 }
    }

    /// Words of the buffer that is read and of the one that is written, for a working set of so many.
    fn words(self, set: usize) -> (usize, usize) {
        match self {
            Way::Copy => (set / 2, set / 2),
            Way::Read => (set, 0),
            Way::Update => (0, set),
        }
    }

    fn round(self, to: &mut [u64], from: &[u64], repeats: usize) {
        let isa = Isa::detect();
        for _ in 0..repeats {
            match self {
                Way::Copy => to.copy_from_slice(black_box(from)),
                Way::Read => peak::read(isa, black_box(from)),
                Way::Update => black_box(&mut *to).iter_mut().for_each(|v| *v ^= 0x5555),
            }
            black_box(&mut *to);
        }
    }
}

/// Room for so many words, or an error that says how much was asked for: a limit that nobody told of must not end the
/// program.
pub(super) fn room<T>(count: usize, what: &str) -> Result<Vec<T>> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|e| Core::Unavailable {
        what: "memory to measure with",
        why: format!("{what}: {} were refused ({e})", bytes((count * size_of::<T>()) as u64)),
    })?;
    Ok(all)
}

/// Runs `work` on so many threads at once, each with one of the states, and gives what each returned. A thread that the
/// system refuses is an error, and then nothing was run.
pub(super) fn at_once<S: Send, T: Send>(
    states: Vec<S>,
    work: impl Fn(usize, S, &Barrier) -> T + Sync,
) -> Result<Vec<T>> {
    let barrier = Barrier::new(states.len());
    std::thread::scope(|scope| {
        let mut running = vec![];
        let mut states = states.into_iter().enumerate();
        let Some((_, own)) = states.next() else { return Ok(vec![]) };
        for (id, state) in states {
            // Nobody begins before all are there: with one missing, the others would wait for it at the barrier.
            let (begin, told) = channel::<()>();
            let (work, barrier) = (&work, &barrier);
            let spawned = std::thread::Builder::new().spawn_scoped(scope, move || {
                told.recv().ok()?;
                Some(work(id, state, barrier))
            });
            let thread = spawned.map_err(|e| Core::Unavailable {
                what: "a thread to measure with",
                why: format!("thread {} was refused: {e}", id + 1),
            })?;
            running.push((begin, thread));
        }
        for (begin, _) in &running {
            // A thread that is no longer there to be told is found by its join.
            let _ = begin.send(());
        }
        let mut all = vec![work(0, own, &barrier)];
        for (_, thread) in running {
            match thread.join() {
                Ok(Some(result)) => all.push(result),
                Ok(None) => {}
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(all)
    })
}

/// Memory to measure with.
enum Buffer {
    /// In pages of the usual size.
    Usual(Vec<u64>),
    /// In large pages, where the system has them.
    Large(Room),
}

impl Buffer {
    fn new(words: usize, large: bool) -> Result<Buffer> {
        if !large {
            return room(words, "a buffer").map(Buffer::Usual);
        }
        let refused = |why| Core::Unavailable { what: "memory to measure with", why };
        Ok(Buffer::Large(Room::new(8 * words).map_err(refused)?))
    }

    /// So many words, all of them written.
    fn filled(&mut self, words: usize, with: u64) -> &mut [u64] {
        match self {
            Buffer::Usual(all) => {
                all.resize(words, with);
                all
            }
            Buffer::Large(room) => {
                let all = room.words();
                all.fill(with);
                all
            }
        }
    }
}

/// Best of several rounds in which every thread moves its own bytes; bytes a second of all together.
fn together(threads: usize, set_bytes: usize, seconds: f64, way: Way, large: bool) -> Result<f64> {
    let words = (set_bytes / threads.max(1) / 8).max(128);
    let (from_words, to_words) = way.words(words);
    let mut buffers = vec![];
    for _ in 0..threads.max(1) {
        buffers.push((Buffer::new(from_words, large)?, Buffer::new(to_words, large)?));
    }
    // A round is long beside starting it.
    let repeats = ((64 << 20) / (words * 8)).clamp(1, 1 << 16);
    let start = Instant::now();
    let stop = AtomicBool::new(false);
    let times = at_once(buffers, |id, (mut from, mut to), barrier| {
        // Written by the thread that uses them, so that they lie near it.
        let (from, to) = (from.filled(from_words, 1), to.filled(to_words, 0));
        let mut times = vec![];
        loop {
            barrier.wait();
            if stop.load(Ordering::Relaxed) {
                return times;
            }
            let round = Instant::now();
            way.round(to, from, repeats);
            times.push(round.elapsed().as_secs_f64());
            barrier.wait();
            // One thread decides for all, between two rounds.
            if id == 0 && start.elapsed().as_secs_f64() >= seconds {
                stop.store(true, Ordering::Relaxed);
            }
        }
    })?;
    // Each round ends when its slowest thread does.
    let rounds = times.iter().map(Vec::len).min().unwrap_or(0);
    let slowest = |i: usize| times.iter().map(|t| t[i]).fold(0.0, f64::max);
    let least = (0..rounds).map(slowest).fold(f64::INFINITY, f64::min);
    let moved = (words * times.len() * 8) as f64 * way.moved();
    Ok(moved * repeats as f64 / least.max(1e-9))
}

/// Bytes a second that copying moves (read and written) with a working set of so many bytes in all.
pub fn copy_bytes_per_s(threads: usize, set_bytes: usize, seconds: f64) -> Result<f64> {
    together(threads, set_bytes, seconds, Way::Copy, false)
}

/// Bytes a second that are read with a working set of so many bytes in all, in large pages, as packed weights are.
pub fn read_bytes_per_s(threads: usize, set_bytes: usize, seconds: f64) -> Result<f64> {
    together(threads, set_bytes, seconds, Way::Read, true)
}

/// Measures each place; what the system refuses memory for is left out, with the reason.
pub(super) fn measure(
    places: Vec<Place>,
    threads: usize,
    seconds: f64,
    left_out: &mut Vec<String>,
    tell: &mut dyn FnMut(Progress),
) -> Vec<Level> {
    let each = seconds / (3 * places.len().max(1)) as f64;
    let mut found: Vec<Level> = vec![];
    for Place { name, capacity, working_set } in places {
        tell(Progress::new(format!("{name} bandwidth, {}", words(threads))));
        let measured = [Way::Copy, Way::Read, Way::Update].map(|way| together(threads, working_set, each, way, false));
        match measured {
            [Ok(copy), Ok(read), Ok(update)] => found.push(Level {
                name,
                capacity_bytes: capacity,
                working_set_bytes: working_set,
                copy_bytes_per_s: copy,
                read_bytes_per_s: read,
                update_bytes_per_s: update,
            }),
            refused => {
                let why = refused.into_iter().find_map(Result::err).map(|e| e.to_string()).unwrap_or_default();
                left_out.push(format!("speed of {name}: {why}"));
            }
        }
    }
    // Farther is never faster; where plain Rust's loop was the limit near by, the farther figure is a better bound.
    for i in (0..found.len().saturating_sub(1)).rev() {
        found[i].copy_bytes_per_s = found[i].copy_bytes_per_s.max(found[i + 1].copy_bytes_per_s);
        found[i].read_bytes_per_s = found[i].read_bytes_per_s.max(found[i + 1].read_bytes_per_s);
        found[i].update_bytes_per_s = found[i].update_bytes_per_s.max(found[i + 1].update_bytes_per_s);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(level: u32, bytes: usize, shared_by: Option<usize>) -> Cache {
        Cache { level, bytes, shared_by }
    }

    #[test]
    fn only_what_memory_allows_is_measured_and_the_rest_is_said() {
        let caches = Ok(vec![cache(1, 48 << 10, Some(1)), cache(2, 2 << 20, Some(1)), cache(3, 260 << 20, Some(2))]);
        let names = |allowed: Option<usize>| {
            let (found, left_out) = places(&caches, 2, allowed);
            assert!(found.iter().all(|p| p.working_set <= allowed.unwrap_or(usize::MAX)), "{found:?}");
            (found.into_iter().map(|p| p.name).collect::<Vec<_>>().join(" "), left_out)
        };
        assert_eq!(names(None), ("L1 L2 L3 memory".into(), vec![]));
        assert_eq!(names(Some(4 << 30)).0, "L1 L2 L3 memory");
        let (found, left_out) = names(Some(90 << 20));
        assert_eq!(found, "L1 L2 L3");
        assert!(left_out[0].contains("main memory") && left_out[0].contains("780"), "{left_out:?}");
        let (found, left_out) = names(Some(1 << 20));
        assert_eq!((found.as_str(), left_out.len()), ("L1 L2", 2), "{left_out:?}");
        assert_eq!(names(Some(0)).0, "");
    }

    #[test]
    fn a_cache_of_unknown_size_has_no_level() {
        let (found, left_out) = places(&Err("nobody tells".into()), 1, None);
        assert_eq!(found.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["memory"]);
        assert!(left_out[0].contains("not known") && left_out[0].contains("nobody tells"), "{left_out:?}");
    }

    #[test]
    fn more_memory_than_there_is_makes_an_error_and_no_abort() {
        let error = copy_bytes_per_s(1, usize::MAX / 4, 0.001).unwrap_err().to_string();
        assert!(error.contains("refused") && error.contains("memory to measure with"), "{error}");
    }

    #[test]
    fn bytes_come_from_as_near_as_they_can() {
        let levels = [(Some(100), 10.0), (Some(1000), 5.0), (None, 1.0)];
        assert_eq!(least_seconds(levels, 50), Some(5.0));
        assert_eq!(least_seconds(levels, 200), Some(10.0 + 20.0));
        assert_eq!(least_seconds(levels, 1200), Some(10.0 + 200.0 + 100.0));
        assert_eq!(least_seconds(levels[..2].to_vec(), 1200), None);
        assert_eq!(least_seconds([], 0), Some(0.0));
    }

    #[test]
    fn every_thread_is_heard_once() {
        let mut ids = at_once(vec![10, 20, 30], |id, state, barrier| {
            barrier.wait();
            (id, state)
        })
        .unwrap();
        ids.sort_unstable();
        assert_eq!(ids, [(0, 10), (1, 20), (2, 30)]);
    }
}
