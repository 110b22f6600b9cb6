//! Tensors kept by key, the least recently used going first.
//!
//! The order of use is a doubly linked list through a table of slots, by index, so that a hit, an insertion and an
//! eviction each take a constant time without any `unsafe`. An entry that has expired is a miss, and a request that
//! finds it removes it; `sweep` removes all expired ones.

use super::lock;
use crate::tensor::Tensor;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A clock that never goes back: the time since some beginning.
pub trait Clock: Send + Sync {
    /// The time.
    fn now(&self) -> Duration;
}
impl<F: Fn() -> Duration + Send + Sync> Clock for F {
    fn now(&self) -> Duration {
        self()
    }
}

/// The system's clock, from when this was made.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);
impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock(Instant::now())
    }
}
impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// How much a cache keeps, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Entries.
    pub entries: usize,
    /// Bytes of data.
    pub bytes: usize,
    /// How long an entry is valid, unless it has a time of its own; `None` means for ever.
    pub ttl: Option<Duration>,
}
impl Default for CacheLimits {
    /// 100 entries, 1 GiB, an hour.
    fn default() -> CacheLimits {
        CacheLimits { entries: 100, bytes: 1 << 30, ttl: Some(Duration::from_secs(3600)) }
    }
}

/// A cache at one moment; `insertions = entries + evictions + expirations + removals`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests that were answered.
    pub hits: u64,
    /// Requests that were not.
    pub misses: u64,
    /// Entries put in.
    pub insertions: u64,
    /// Entries that made room for others.
    pub evictions: u64,
    /// Entries that expired.
    pub expirations: u64,
    /// Entries replaced, removed or cleared away.
    pub removals: u64,
    /// Entries now.
    pub entries: usize,
    /// Their bytes.
    pub bytes: usize,
}
impl CacheStats {
    /// The part of requests that were answered; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

/// A cache of tensors; threads may share it.
///
/// ```
/// # use schwann_core::{memory::{CacheLimits, TensorCache}, Tensor};
/// let cache = TensorCache::new(CacheLimits { entries: 2, ..CacheLimits::default() });
/// for name in ["a", "b"] {
///     cache.put(name.to_owned(), Tensor::scalar(1.0f32)).expect("small enough");
/// }
/// cache.get("a");
/// cache.put("c".to_owned(), Tensor::scalar(1.0f32)).expect("small enough");
/// assert!(cache.get("a").is_some() && cache.get("b").is_none());
/// ```
pub struct TensorCache<K = String> {
    limits: CacheLimits,
    clock: Box<dyn Clock>,
    state: Mutex<State<K>>,
}

/// No slot.
const NONE: usize = usize::MAX;

struct State<K> {
    index: HashMap<K, usize>,
    slots: Vec<Slot<K>>,
    /// Slots without an entry.
    free: Vec<usize>,
    /// The most and the least recently used.
    newest: usize,
    oldest: usize,
    stats: CacheStats,
}

struct Slot<K> {
    /// Absent in a free slot.
    entry: Option<Entry<K>>,
    newer: usize,
    older: usize,
}

struct Entry<K> {
    key: K,
    tensor: Tensor,
    /// When it expires.
    until: Option<Duration>,
}

impl<K: Hash + Eq + Clone> State<K> {
    fn unlink(&mut self, at: usize) {
        let (newer, older) = (self.slots[at].newer, self.slots[at].older);
        match newer {
            NONE => self.newest = older,
            n => self.slots[n].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            o => self.slots[o].newer = newer,
        }
    }

    fn link_newest(&mut self, at: usize) {
        let before = self.newest;
        self.slots[at].newer = NONE;
        self.slots[at].older = before;
        match before {
            NONE => self.oldest = at,
            b => self.slots[b].newer = at,
        }
        self.newest = at;
    }

    fn remove(&mut self, at: usize) -> Option<Tensor> {
        let entry = self.slots[at].entry.take()?;
        self.unlink(at);
        self.free.push(at);
        self.index.remove(&entry.key);
        self.stats.entries -= 1;
        self.stats.bytes -= entry.tensor.bytes().len();
        Some(entry.tensor)
    }

    fn expired(&self, at: usize, now: Duration) -> bool {
        self.slots[at].entry.as_ref().and_then(|e| e.until).is_some_and(|until| now >= until)
    }

    /// The slot of a live entry; an expired one is removed.
    fn find<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, now: Duration) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        let at = *self.index.get(key)?;
        if self.expired(at, now) {
            self.remove(at);
            self.stats.expirations += 1;
            return None;
        }
        Some(at)
    }
}

impl<K: Hash + Eq + Clone> TensorCache<K> {
    /// An empty cache.
    pub fn new(limits: CacheLimits) -> TensorCache<K> {
        TensorCache::with_clock(limits, SystemClock::default())
    }

    /// An empty cache that lives by another clock.
    pub fn with_clock(limits: CacheLimits, clock: impl Clock + 'static) -> TensorCache<K> {
        let state = State {
            index: HashMap::new(),
            slots: vec![],
            free: vec![],
            newest: NONE,
            oldest: NONE,
            stats: CacheStats::default(),
        };
        TensorCache { limits, clock: Box::new(clock), state: Mutex::new(state) }
    }

    /// The tensor of that key, which becomes the most recently used.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Tensor>
    where
        K: Borrow<Q>,
    {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let Some(at) = state.find(key, now) else {
            state.stats.misses += 1;
            return None;
        };
        state.stats.hits += 1;
        state.unlink(at);
        state.link_newest(at);
        state.slots[at].entry.as_ref().map(|e| e.tensor.clone())
    }

    /// The tensor of that key, without counting as a use; it only removes the entry if it has expired.
    pub fn peek<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Tensor>
    where
        K: Borrow<Q>,
    {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let at = state.find(key, now)?;
        state.slots[at].entry.as_ref().map(|e| e.tensor.clone())
    }

    /// Keeps a tensor under a key for the cache's default time; see [`TensorCache::put_for`].
    pub fn put(&self, key: K, tensor: Tensor) -> Result<Option<Tensor>, Tensor> {
        self.put_for(key, tensor, self.limits.ttl)
    }

    /// Keeps a tensor under a key for `ttl`, and gives the one it replaces.
    ///
    /// A tensor that alone exceeds the limits is refused and given back, rather than evicting everything else for it.
    /// The key's old tensor is removed even then, since it would be out of date.
    pub fn put_for(&self, key: K, tensor: Tensor, ttl: Option<Duration>) -> Result<Option<Tensor>, Tensor> {
        let now = self.clock.now();
        let size = tensor.bytes().len();
        let mut state = lock(&self.state);
        let old = state.find(&key, now).and_then(|at| state.remove(at));
        state.stats.removals += u64::from(old.is_some());
        if size > self.limits.bytes || self.limits.entries == 0 {
            return Err(tensor);
        }
        while state.stats.entries >= self.limits.entries || state.stats.bytes > self.limits.bytes - size {
            let oldest = state.oldest;
            let late = state.expired(oldest, now);
            state.remove(oldest);
            *(if late { &mut state.stats.expirations } else { &mut state.stats.evictions }) += 1;
        }
        // A time beyond what the clock can say is for ever.
        let entry = Some(Entry { key: key.clone(), tensor, until: ttl.and_then(|ttl| now.checked_add(ttl)) });
        let at = match state.free.pop() {
            Some(at) => {
                state.slots[at].entry = entry;
                at
            }
            None => {
                state.slots.push(Slot { entry, newer: NONE, older: NONE });
                state.slots.len() - 1
            }
        };
        state.link_newest(at);
        state.index.insert(key, at);
        state.stats.insertions += 1;
        state.stats.entries += 1;
        state.stats.bytes += size;
        Ok(old)
    }

    /// Takes an entry out.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Tensor>
    where
        K: Borrow<Q>,
    {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let at = state.find(key, now)?;
        state.stats.removals += 1;
        state.remove(at)
    }

    /// Removes everything that has expired; gives how many entries that were.
    pub fn sweep(&self) -> usize {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let late: Vec<usize> = (0..state.slots.len()).filter(|&at| state.expired(at, now)).collect();
        for &at in &late {
            state.remove(at);
            state.stats.expirations += 1;
        }
        late.len()
    }

    /// Removes everything.
    pub fn clear(&self) {
        let mut state = lock(&self.state);
        while state.oldest != NONE {
            let oldest = state.oldest;
            state.remove(oldest);
            state.stats.removals += 1;
        }
    }

    /// Keys, the most recently used first (including expired ones that have not been removed yet).
    pub fn keys(&self) -> Vec<K> {
        let state = lock(&self.state);
        let mut keys = Vec::with_capacity(state.stats.entries);
        let mut at = state.newest;
        while at != NONE {
            keys.extend(state.slots[at].entry.as_ref().map(|e| e.key.clone()));
            at = state.slots[at].older;
        }
        keys
    }

    /// All counts, of the same moment.
    pub fn stats(&self) -> CacheStats {
        lock(&self.state).stats
    }
    /// The limits.
    pub fn limits(&self) -> CacheLimits {
        self.limits
    }
}

impl<K> fmt::Debug for TensorCache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorCache").field("limits", &self.limits).field("stats", &lock(&self.state).stats).finish()
    }
}
