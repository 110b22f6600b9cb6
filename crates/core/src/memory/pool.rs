//! Buffers that are used again.
//!
//! Sizes are rounded up to classes, four to each doubling, so a buffer is at most a quarter larger than what was asked
//! for and a buffer that comes back fits the next request of about its size. A lent buffer comes back when its guard is
//! dropped, whether by return, `?` or unwinding. Kept buffers are bounded in number and in bytes; the one unused for
//! the longest time is freed first, and all are freed before a budget refuses a request.

use super::batch::{BatchBuffer, BatchLayout};
use super::budget::{Budget, Reservation};
use super::lock;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Bytes, Tensor, count};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

/// How much a pool keeps for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Buffers.
    pub buffers: usize,
    /// Bytes.
    pub bytes: usize,
}
impl Default for PoolLimits {
    /// 100 buffers, 256 MiB.
    fn default() -> PoolLimits {
        PoolLimits { buffers: 100, bytes: 256 << 20 }
    }
}

/// A pool at one moment. Buffers obtained from the system are lent or kept:
/// `total_allocations − total_deallocations = lent_buffers + kept_buffers`, and every request was a hit or a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Buffers obtained from the system.
    pub total_allocations: u64,
    /// Buffers given back to the system, or taken out for good.
    pub total_deallocations: u64,
    /// Requests served by a kept buffer.
    pub pool_hits: u64,
    /// Requests that needed a new one (also those that the budget then refused).
    pub pool_misses: u64,
    /// The most bytes that were ever lent and kept at once.
    pub peak_memory_usage: usize,
    /// Bytes lent and kept.
    pub current_memory_usage: usize,
    /// Bytes kept for later.
    pub kept_bytes: usize,
    /// Buffers kept for later.
    pub kept_buffers: usize,
    /// Bytes in use.
    pub lent_bytes: usize,
    /// Buffers in use.
    pub lent_buffers: usize,
}
impl PoolStats {
    /// The part of requests that a kept buffer served; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.pool_hits + self.pool_misses;
        (all > 0).then(|| self.pool_hits as f64 / all as f64)
    }
}

/// A pool; clones share it.
///
/// ```
/// # use schwann_core::memory::Pool;
/// let pool = Pool::default();
/// pool.with(1000, |buffer| buffer.fill(1))?;
/// pool.with(990, |buffer| assert_eq!(buffer.len(), 990))?;
/// assert_eq!(pool.stats().hit_rate(), Some(0.5));
/// # Ok::<(), schwann_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    budget: Budget,
    limits: PoolLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Kept buffers by class, oldest first.
    kept: BTreeMap<usize, VecDeque<(u64, Buffer)>>,
    /// The class of each kept buffer, by when it came back.
    ages: BTreeMap<u64, usize>,
    next_age: u64,
    stats: PoolStats,
}

/// A buffer of a class's size, with its share of the budget.
#[derive(Debug)]
struct Buffer {
    bytes: Bytes,
    share: Reservation,
}

/// The size of the class that holds `len` bytes: from 256 on four classes to a doubling, below whole cache lines.
fn class_of(len: usize) -> Option<usize> {
    let step = if len <= 256 { 64 } else { 1 << ((len - 1).ilog2() - 2) };
    len.max(1).checked_next_multiple_of(step).filter(|&class| class <= isize::MAX as usize)
}

impl Default for Pool {
    /// The default limits, no budget.
    fn default() -> Pool {
        Pool::new(PoolLimits::default(), Budget::unlimited())
    }
}

impl Pool {
    /// A pool that keeps within `limits` and draws on `budget` for what it lends and keeps.
    pub fn new(limits: PoolLimits, budget: Budget) -> Pool {
        Pool(Arc::new(Shared { budget, limits, state: Mutex::default() }))
    }

    /// A buffer of `len` bytes with arbitrary content.
    pub fn get(&self, len: usize) -> Result<Scoped> {
        self.0.take(len, "a pooled buffer").map(|(buffer, _)| Scoped { shared: self.0.clone(), buffer: Some(buffer) })
    }

    /// A buffer of `len` zeroed bytes.
    pub fn zeroed(&self, len: usize) -> Result<Scoped> {
        let (mut buffer, new) = self.0.take(len, "a pooled buffer")?;
        // A new one is zeroed already, by the system's zero pages.
        if !new {
            buffer.bytes.fill(0);
        }
        Ok(Scoped { shared: self.0.clone(), buffer: Some(buffer) })
    }

    /// Lends a buffer to `f` for the time of the call.
    pub fn with<R>(&self, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let mut scoped = self.get(len)?;
        Ok(f(&mut scoped))
    }

    /// A tensor of zeros whose buffer comes back.
    pub fn tensor(&self, dtype: DType, shape: &[usize]) -> Result<PooledTensor> {
        self.make_tensor(dtype, shape, true)
    }

    /// A tensor with arbitrary content, to be filled. (Truth values are zeroed, since not every byte is a valid one.)
    pub fn tensor_unzeroed(&self, dtype: DType, shape: &[usize]) -> Result<PooledTensor> {
        self.make_tensor(dtype, shape, dtype == DType::Bool)
    }

    fn make_tensor(&self, dtype: DType, shape: &[usize], zeroed: bool) -> Result<PooledTensor> {
        let len = count(shape).and_then(|n| dtype.bytes_for(n)).ok_or_else(|| Error::Tensor {
            expected: "a shape that fits the address space".into(),
            got: format!("{dtype}{shape:?}"),
        })?;
        let scoped = if zeroed { self.zeroed(len)? } else { self.get(len)? };
        let class = scoped.capacity();
        let (bytes, share) = scoped.dismantle();
        // From here on the pooled tensor's `drop` gives the buffer back.
        let tensor = Tensor::from_buffer(dtype, shape, bytes);
        let mut pooled = PooledTensor { shared: self.0.clone(), class, share: Some(share), tensor: None };
        pooled.tensor = Some(tensor?);
        Ok(pooled)
    }

    /// A buffer for `batch` samples one after the other.
    pub fn batch(&self, dtype: DType, sample_shape: &[usize], batch: usize) -> Result<BatchBuffer> {
        let layout = BatchLayout::new(dtype, sample_shape, batch)?;
        Ok(BatchBuffer::new(self.tensor(dtype, &layout.shape())?, layout))
    }

    /// Takes a lent buffer out of the pool for good; it no longer counts here or in the budget.
    pub fn detach(&self, scoped: Scoped) -> Bytes {
        let (shared, class) = (scoped.shared.clone(), scoped.capacity());
        let (bytes, share) = scoped.dismantle();
        shared.gone(class, share);
        bytes
    }

    /// Gives everything kept back to the system.
    pub fn clear(&self) {
        let mut state = lock(&self.0.state);
        while state.drop_oldest() {}
    }

    /// All counts, of the same moment.
    pub fn stats(&self) -> PoolStats {
        lock(&self.0.state).stats
    }

    /// The budget that it draws on.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }
}

impl State {
    fn drop_oldest(&mut self) -> bool {
        let Some((_, class)) = self.ages.pop_first() else { return false };
        let queue = self.kept.get_mut(&class);
        if queue.and_then(VecDeque::pop_front).is_some() {
            self.stats.kept_bytes -= class;
            self.stats.kept_buffers -= 1;
            self.stats.current_memory_usage -= class;
            self.stats.total_deallocations += 1;
        }
        if self.kept.get(&class).is_some_and(VecDeque::is_empty) {
            self.kept.remove(&class);
        }
        true
    }

    fn lend(&mut self, class: usize) {
        self.stats.lent_bytes += class;
        self.stats.lent_buffers += 1;
    }

    fn unlend(&mut self, class: usize) {
        self.stats.lent_bytes -= class;
        self.stats.lent_buffers -= 1;
    }
}

impl Shared {
    /// A buffer, and whether it is new (and so zeroed).
    fn take(&self, len: usize, what: &str) -> Result<(Buffer, bool)> {
        let too_much = || {
            let now = self.budget.stats();
            let limit = now.limit.unwrap_or(isize::MAX as usize);
            Error::Budget { what: what.into(), requested: len, in_use: now.in_use, limit }
        };
        let class = class_of(len).ok_or_else(too_much)?;
        let mut state = lock(&self.state);
        // The youngest of its class: the likeliest to be in the caches.
        let found = state.kept.get_mut(&class).and_then(VecDeque::pop_back);
        if let Some((age, buffer)) = found {
            state.ages.remove(&age);
            state.stats.pool_hits += 1;
            state.stats.kept_bytes -= class;
            state.stats.kept_buffers -= 1;
            state.lend(class);
            drop(state);
            let bytes = buffer.bytes.resized(len).ok_or_else(too_much)?;
            return Ok((Buffer { bytes, ..buffer }, false));
        }
        state.stats.pool_misses += 1;
        let share = loop {
            match self.budget.reserve(class, what) {
                Ok(share) => break share,
                // Kept buffers count against the budget too; they are the first to go.
                Err(refused) => {
                    if !state.drop_oldest() {
                        return Err(refused);
                    }
                }
            }
        };
        let bytes = Bytes::try_zeroed(class, what)?.resized(len).ok_or_else(too_much)?;
        state.stats.total_allocations += 1;
        state.lend(class);
        state.stats.current_memory_usage += class;
        state.stats.peak_memory_usage = state.stats.peak_memory_usage.max(state.stats.current_memory_usage);
        Ok((Buffer { bytes, share }, true))
    }

    /// Takes a lent buffer back, to keep or to free.
    fn give_back(&self, class: usize, buffer: Buffer) {
        let mut state = lock(&self.state);
        state.unlend(class);
        if self.limits.buffers == 0 || class > self.limits.bytes {
            state.stats.current_memory_usage -= class;
            state.stats.total_deallocations += 1;
            return;
        }
        while state.stats.kept_buffers >= self.limits.buffers || state.stats.kept_bytes > self.limits.bytes - class {
            if !state.drop_oldest() {
                break;
            }
        }
        let age = state.next_age;
        state.next_age += 1;
        state.ages.insert(age, class);
        state.kept.entry(class).or_default().push_back((age, buffer));
        state.stats.kept_bytes += class;
        state.stats.kept_buffers += 1;
    }

    /// Records that a lent buffer will not come back.
    fn gone(&self, class: usize, share: Reservation) {
        let mut state = lock(&self.state);
        state.unlend(class);
        state.stats.current_memory_usage -= class;
        state.stats.total_deallocations += 1;
        drop(share);
    }
}

/// A lent buffer; it goes back to its pool when this is dropped.
#[derive(Debug)]
pub struct Scoped {
    shared: Arc<Shared>,
    /// Present until dropped or dismantled.
    buffer: Option<Buffer>,
}
impl Scoped {
    /// Bytes that the buffer really has.
    pub fn capacity(&self) -> usize {
        self.buffer.as_ref().map_or(0, |b| b.bytes.capacity())
    }
    fn dismantle(mut self) -> (Bytes, Reservation) {
        let Buffer { bytes, share } = self.buffer.take().expect("only `drop` and this take it, once");
        (bytes, share)
    }
}
impl Deref for Scoped {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |b| &b.bytes)
    }
}
impl DerefMut for Scoped {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], |b| &mut b.bytes)
    }
}
impl Drop for Scoped {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.shared.give_back(buffer.bytes.capacity(), buffer);
        }
    }
}

/// A lent tensor; its buffer goes back to its pool when this is dropped.
///
/// It is a [`Tensor`], so a clone of it shares the data. While a clone lives, writing here copies, as always; and if one
/// still lives when this is dropped, the buffer stays with the clone and leaves the pool.
#[derive(Debug)]
pub struct PooledTensor {
    shared: Arc<Shared>,
    class: usize,
    share: Option<Reservation>,
    /// Present until dropped or taken.
    tensor: Option<Tensor>,
}
impl PooledTensor {
    /// The tensor for good; it leaves the pool.
    pub fn into_tensor(mut self) -> Tensor {
        if let Some(share) = self.share.take() {
            self.shared.gone(self.class, share);
        }
        self.tensor.take().expect("only `drop` and this take it, once")
    }
}
impl Deref for PooledTensor {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        self.tensor.as_ref().expect("present until dropped")
    }
}
impl DerefMut for PooledTensor {
    fn deref_mut(&mut self) -> &mut Tensor {
        self.tensor.as_mut().expect("present until dropped")
    }
}
impl Drop for PooledTensor {
    fn drop(&mut self) {
        let Some(share) = self.share.take() else { return };
        match self.tensor.take().map(Tensor::into_buffer) {
            // The user may have replaced the tensor by another; only a buffer of the right class goes back to the pool.
            Some(Ok(bytes)) if bytes.capacity() == self.class => {
                self.shared.give_back(self.class, Buffer { bytes, share });
            }
            _ => self.shared.gone(self.class, share),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_quarter() {
        for len in (0..5000).chain([1 << 20, (1 << 20) + 1, usize::MAX / 4]) {
            let class = class_of(len).unwrap();
            assert!(class >= len && class.is_multiple_of(64));
            assert!(class - len <= 64 || (class - len) * 4 <= len, "{len} in {class}");
            assert_eq!(class_of(class), Some(class), "a class is its own");
        }
        assert_eq!(class_of(usize::MAX), None);
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let pool = Pool::new(PoolLimits { buffers: 2, bytes: 1 << 20 }, Budget::unlimited());
        for len in [64, 128, 192] {
            drop(pool.get(len).unwrap());
        }
        assert_eq!(pool.stats().kept_buffers, 2);
        let hits = |len| {
            let before = pool.stats().pool_hits;
            drop(pool.get(len).unwrap());
            pool.stats().pool_hits > before
        };
        assert!(hits(192) && hits(128) && !hits(64));
    }
}
