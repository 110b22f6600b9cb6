//! Memory that is not planned ahead: a budget that bounds it, a pool that reuses it, a cache that keeps results, and a
//! detector of leaks.
//!
//! A program's own memory is planned when it is compiled. This module is for what cannot be planned: batches as they
//! arrive, results worth keeping, many sessions in one process. Each counts in bytes under one lock, so that the
//! statistics are exact at any moment and not a sum of counters read one after the other.

mod available;
mod batch;
mod budget;
mod cache;
mod leak;
mod pool;
mod recent;

pub use available::available_bytes;
pub use batch::{AdaptiveBatch, BatchBuffer, BatchError, BatchLayout, process_in_batches};
pub use budget::{Budget, BudgetStats, Reservation, machine_bytes};
pub use cache::{CacheLimits, CacheStats, Clock, SystemClock, TensorCache};
pub use leak::{LeakDetector, LeakReport, ProcessMemory, Usage};
pub use pool::{Pool, PoolLimits, PoolStats, PooledTensor, Scoped};
pub(crate) use recent::Recent;

/// Locks, even after a panic in another thread: every critical section here leaves its data consistent at each step.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
