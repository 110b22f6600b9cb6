//! Pool, cache and leak watch from outside: under threads, against models, and with planted leaks.

use proptest::prelude::*;
use schwann_core::memory::{Budget, CacheLimits, CacheStats, LeakDetector, Pool, PoolLimits, TensorCache};
use schwann_core::{DType, Error, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What the documentation of `PoolStats` promises.
fn check_pool(pool: &Pool) {
    let s = pool.stats();
    assert_eq!(s.total_allocations - s.total_deallocations, (s.lent_buffers + s.kept_buffers) as u64, "{s:?}");
    assert_eq!(s.current_memory_usage, s.lent_bytes + s.kept_bytes, "{s:?}");
    assert!(s.peak_memory_usage >= s.current_memory_usage, "{s:?}");
}

#[test]
fn a_pools_counts_are_exact() {
    let pool = Pool::new(PoolLimits::default(), Budget::bytes(10_000));
    assert_eq!(pool.stats().hit_rate(), None);
    let a = pool.get(1000).unwrap();
    assert_eq!((a.len(), a.capacity()), (1000, 1024));
    let b = pool.get(2000).unwrap();
    drop(a);
    let c = pool.get(1020).unwrap();
    let s = pool.stats();
    assert_eq!((s.pool_hits, s.pool_misses, s.total_allocations, s.total_deallocations), (1, 2, 2, 0));
    assert_eq!((s.lent_bytes, s.kept_bytes, s.current_memory_usage, s.peak_memory_usage), (3072, 0, 3072, 3072));
    let bytes = pool.detach(c);
    assert_eq!(bytes.len(), 1020);
    assert_eq!(pool.budget().stats().in_use, 2048, "what is detached no longer counts");
    drop(b);
    let s = pool.stats();
    assert_eq!((s.lent_buffers, s.kept_buffers, s.kept_bytes, s.total_deallocations), (0, 1, 2048, 1));
    pool.clear();
    assert_eq!((pool.stats().current_memory_usage, pool.stats().total_deallocations), (0, 2));
    assert_eq!(pool.budget().stats().in_use, 0);
    assert_eq!(pool.stats().hit_rate(), Some(1.0 / 3.0));
    check_pool(&pool);
}

#[test]
fn a_pool_gives_up_what_it_keeps_before_the_budget_refuses() {
    let pool = Pool::new(PoolLimits::default(), Budget::bytes(4096));
    drop((pool.get(1024).unwrap(), pool.get(2048).unwrap()));
    assert_eq!(pool.stats().kept_bytes, 3072);
    let all = pool.get(4096).unwrap();
    assert_eq!((pool.stats().kept_bytes, pool.stats().lent_bytes), (0, 4096));
    assert!(matches!(pool.get(1), Err(Error::Budget { requested: 64, in_use: 4096, limit: 4096, .. })));
    assert!(matches!(pool.get(usize::MAX), Err(Error::Budget { .. })));
    drop(all);
    check_pool(&pool);
    let none = Pool::new(PoolLimits { buffers: 0, bytes: 0 }, Budget::unlimited());
    drop(none.get(100).unwrap());
    assert_eq!((none.stats().kept_buffers, none.stats().current_memory_usage), (0, 0));
}

#[test]
fn a_buffer_comes_back_when_its_user_panics() {
    let pool = Pool::default();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pool.with(500, |buffer| {
            buffer.fill(7);
            panic!("a planted panic");
        })
    }));
    assert!(result.is_err());
    let s = pool.stats();
    assert_eq!((s.lent_buffers, s.kept_buffers), (0, 1));
    assert!(pool.get(500).unwrap().iter().all(|&b| b == 7), "contents stay unless zeros are asked for");
    assert!(pool.zeroed(500).unwrap().iter().all(|&b| b == 0));
    check_pool(&pool);
}

#[test]
fn what_the_system_does_not_give_is_an_error_and_is_not_counted() {
    let pool = Pool::default();
    let refused = pool.get(1 << 50).unwrap_err().to_string();
    assert!(refused.contains("no memory for a pooled buffer"), "{refused}");
    assert!(pool.tensor(DType::F32, &[1 << 24, 1 << 24]).is_err());
    let (s, budget) = (pool.stats(), pool.budget().stats());
    assert_eq!((s.lent_bytes, s.current_memory_usage, s.total_allocations, budget.in_use), (0, 0, 0, 0));
    check_pool(&pool);
}

#[test]
fn pooled_tensors_come_back_unless_they_are_shared() {
    let pool = Pool::default();
    let mut t = pool.tensor(DType::F32, &[4]).unwrap();
    t.values_mut::<f32>().unwrap().fill(3.0);
    drop(t);
    assert_eq!(pool.tensor(DType::F32, &[4]).unwrap().values::<f32>().unwrap(), [0.0; 4]);
    assert_eq!((pool.stats().total_allocations, pool.stats().kept_buffers), (1, 1));
    let t = pool.tensor_unzeroed(DType::F32, &[2, 2]).unwrap();
    let clone: Tensor = Tensor::clone(&t);
    drop(t);
    assert_eq!((pool.stats().kept_buffers, pool.stats().total_deallocations), (0, 1), "it went with the clone");
    assert_eq!(clone.shape(), [2, 2]);
    let mine = pool.tensor(DType::I32, &[3]).unwrap().into_tensor();
    assert_eq!(mine.values::<i32>().unwrap(), [0; 3]);
    assert_eq!(pool.stats().current_memory_usage, 0);
    assert!(pool.tensor(DType::F32, &[usize::MAX, 2]).is_err());
    // Another tensor put in its place is not taken for the pool's buffer.
    let mut t = pool.tensor(DType::F32, &[4]).unwrap();
    *t = Tensor::zeros(DType::F32, &[4000]).unwrap();
    drop(t);
    assert_eq!(pool.stats().kept_buffers, 0);
    check_pool(&pool);
}

#[test]
fn a_pool_holds_under_threads_and_never_exceeds_its_budget() {
    let limit = 64 << 10;
    let pool = Pool::new(PoolLimits { buffers: 6, bytes: 32 << 10 }, Budget::bytes(limit));
    let running = AtomicBool::new(true);
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while running.load(Ordering::Relaxed) {
                check_pool(&pool);
                let s = pool.stats();
                assert!(s.peak_memory_usage <= limit && s.kept_buffers <= 6 && s.kept_bytes <= 32 << 10, "{s:?}");
                assert!(pool.budget().stats().peak <= limit);
            }
        });
        let workers: Vec<_> = (0..4u64)
            .map(|t| {
                let (pool, refused) = (&pool, &refused);
                scope.spawn(move || {
                    let mut held = vec![];
                    let mut x = t + 1;
                    for i in 0..5000u64 {
                        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let len = (x >> 33) as usize % 9000;
                        match pool.get(len) {
                            Ok(mut buffer) => {
                                assert_eq!(buffer.len(), len);
                                buffer.fill(t as u8);
                                held.push(buffer);
                            }
                            Err(Error::Budget { .. }) => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(e) => panic!("{e}"),
                        }
                        if held.len() > 2 || (i % 7 == 0 && !held.is_empty()) {
                            let buffer = held.swap_remove((x >> 40) as usize % held.len());
                            assert!(buffer.iter().all(|&b| b == t as u8), "nobody else wrote here");
                            if i % 50 == 0 {
                                drop(pool.detach(buffer));
                            }
                        }
                        if i % 1000 == 999 {
                            held.clear();
                            pool.clear();
                        }
                        if held.is_empty() {
                            held.extend(pool.zeroed(1).ok());
                            held.iter_mut().for_each(|b| b.fill(t as u8));
                            held.clear();
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        running.store(false, Ordering::Relaxed);
        watcher.join().unwrap();
        results.into_iter().for_each(|r| r.unwrap());
    });
    pool.clear();
    let s = pool.stats();
    assert_eq!((s.lent_buffers, s.current_memory_usage, pool.budget().stats().in_use), (0, 0, 0));
    assert!(s.pool_hits > 0 && refused.load(Ordering::Relaxed) < 20_000);
}

/// A clock that tests move by hand.
fn hand_clock() -> (Arc<AtomicU64>, impl Fn() -> Duration + Send + Sync) {
    let time = Arc::new(AtomicU64::new(0));
    let read = time.clone();
    (time, move || Duration::from_millis(read.load(Ordering::Relaxed)))
}

fn bytes(n: usize) -> Tensor {
    Tensor::zeros(DType::U8, &[n]).unwrap()
}

#[test]
fn a_cache_evicts_the_least_recently_used() {
    let cache = TensorCache::new(CacheLimits { entries: 3, bytes: 100, ttl: None });
    for key in ["a", "b", "c"] {
        assert_eq!(cache.put(key.to_owned(), bytes(30)), Ok(None));
    }
    assert!(cache.get("a").is_some());
    assert!(cache.peek("b").is_some(), "peeking is no use");
    assert_eq!(cache.put("d".into(), bytes(10)), Ok(None));
    assert_eq!(cache.keys(), ["d", "a", "c"]);
    assert_eq!(cache.put("e".into(), bytes(50)), Ok(None), "bytes count too");
    assert_eq!(cache.keys(), ["e", "d", "a"]);
    assert_eq!(cache.put("f".into(), bytes(101)), Err(bytes(101)), "too large by itself");
    assert_eq!(cache.keys(), ["e", "d", "a"], "and nothing else went for it");
    assert_eq!(cache.put("d".into(), bytes(20)), Ok(Some(bytes(10))));
    assert_eq!(cache.get("b"), None);
    assert_eq!(cache.remove("e"), Some(bytes(50)));
    let stats = cache.stats();
    let want = CacheStats {
        hits: 1,
        misses: 1,
        insertions: 6,
        evictions: 2,
        expirations: 0,
        removals: 2,
        entries: 2,
        bytes: 50,
    };
    assert_eq!(stats, want);
    assert_eq!(stats.hit_rate(), Some(0.5));
    cache.clear();
    assert_eq!((cache.stats().entries, cache.stats().bytes, cache.stats().removals), (0, 0, 4));
    let none = TensorCache::new(CacheLimits { entries: 0, ..CacheLimits::default() });
    assert!(none.put("a".to_owned(), bytes(1)).is_err());
}

#[test]
fn entries_outlive_neither_the_caches_time_nor_their_own() {
    let (time, clock) = hand_clock();
    let limits = CacheLimits { entries: 10, bytes: 1000, ttl: Some(Duration::from_millis(100)) };
    let cache = TensorCache::with_clock(limits, clock);
    cache.put(1u32, bytes(1)).unwrap();
    cache.put_for(2, bytes(1), Some(Duration::from_millis(50))).unwrap();
    cache.put_for(3, bytes(1), None).unwrap();
    cache.put_for(4, bytes(1), Some(Duration::MAX)).unwrap();
    time.store(50, Ordering::Relaxed);
    assert!(cache.get(&2).is_none() && cache.get(&1).is_some());
    assert_eq!((cache.stats().expirations, cache.stats().entries), (1, 3));
    time.store(100, Ordering::Relaxed);
    assert_eq!(cache.sweep(), 1);
    assert!(cache.peek(&1).is_none() && cache.get(&3).is_some());
    time.store(u64::MAX / 2, Ordering::Relaxed);
    assert!(cache.get(&3).is_some() && cache.get(&4).is_some());
}

/// The cache as one would write it in a minute: a list in order of use, searched from end to end.
#[derive(Default)]
struct Naive {
    /// Most recently used first: key, size, when it expires.
    entries: Vec<(u8, usize, Option<u64>)>,
    stats: CacheStats,
}
impl Naive {
    fn live(&mut self, key: u8, now: u64) -> Option<usize> {
        let at = self.entries.iter().position(|e| e.0 == key)?;
        if self.entries[at].2.is_some_and(|until| now >= until) {
            self.entries.remove(at);
            self.stats.expirations += 1;
            return None;
        }
        Some(at)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Get(u8),
    Peek(u8),
    Put(u8, usize, Option<u64>),
    Remove(u8),
    Wait(u64),
    Sweep,
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u8..12;
    prop_oneof![
        8 => key.clone().prop_map(Step::Get),
        2 => key.clone().prop_map(Step::Peek),
        10 => (key.clone(), 0usize..40, prop::option::of(1u64..30)).prop_map(|(k, n, t)| Step::Put(k, n, t)),
        1 => key.prop_map(Step::Remove),
        3 => (0u64..10).prop_map(Step::Wait),
        1 => Just(Step::Sweep),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_cache_does_what_the_naive_one_does(
        most in 0usize..6,
        room in 0usize..100,
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let (time, clock) = hand_clock();
        let cache = TensorCache::with_clock(CacheLimits { entries: most, bytes: room, ttl: None }, clock);
        let mut model = Naive::default();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Get(key) => {
                    let got = cache.get(&key).map(|t| t.len());
                    let at = model.live(key, now);
                    *(if at.is_some() { &mut model.stats.hits } else { &mut model.stats.misses }) += 1;
                    prop_assert_eq!(got, at.map(|at| model.entries[at].1));
                    if let Some(at) = at {
                        let entry = model.entries.remove(at);
                        model.entries.insert(0, entry);
                    }
                }
                Step::Peek(key) => {
                    let at = model.live(key, now);
                    prop_assert_eq!(cache.peek(&key).map(|t| t.len()), at.map(|at| model.entries[at].1));
                }
                Step::Put(key, size, ttl) => {
                    let put = cache.put_for(key, bytes(size), ttl.map(Duration::from_millis));
                    let old = model.live(key, now).map(|at| model.entries.remove(at).1);
                    model.stats.removals += u64::from(old.is_some());
                    if size > room || most == 0 {
                        prop_assert_eq!(put, Err(bytes(size)));
                    } else {
                        prop_assert_eq!(put.map(|t| t.map(|t| t.len())), Ok(old));
                        model.entries.insert(0, (key, size, ttl.map(|t| now + t)));
                        model.stats.insertions += 1;
                        while model.entries.len() > most || model.entries.iter().map(|e| e.1).sum::<usize>() > room {
                            let (_, _, until) = model.entries.pop().expect("more than allowed");
                            let late = until.is_some_and(|until| now >= until);
                            *(if late { &mut model.stats.expirations } else { &mut model.stats.evictions }) += 1;
                        }
                    }
                }
                Step::Remove(key) => {
                    let old = model.live(key, now).map(|at| model.entries.remove(at).1);
                    model.stats.removals += u64::from(old.is_some());
                    prop_assert_eq!(cache.remove(&key).map(|t| t.len()), old);
                }
                Step::Wait(ms) => {
                    now += ms;
                    time.store(now, Ordering::Relaxed);
                }
                Step::Sweep => {
                    let before = model.entries.len();
                    model.entries.retain(|e| e.2.is_none_or(|until| now < until));
                    model.stats.expirations += (before - model.entries.len()) as u64;
                    prop_assert_eq!(cache.sweep(), before - model.entries.len());
                }
                Step::Clear => {
                    model.stats.removals += model.entries.len() as u64;
                    model.entries.clear();
                    cache.clear();
                }
            }
            model.stats.entries = model.entries.len();
            model.stats.bytes = model.entries.iter().map(|e| e.1).sum();
            prop_assert_eq!(cache.stats(), model.stats);
            prop_assert_eq!(cache.keys(), model.entries.iter().map(|e| e.0).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_cache_holds_under_threads() {
    let cache = TensorCache::new(CacheLimits { entries: 20, bytes: 2000, ttl: Some(Duration::from_micros(200)) });
    std::thread::scope(|scope| {
        for t in 0..4usize {
            let cache = &cache;
            scope.spawn(move || {
                for i in 0..20_000usize {
                    let key = (i * 7 + t * 13) % 50;
                    match i % 3 {
                        // An entry's size tells its key, so that a mix-up shows.
                        0 => drop(cache.put(key, bytes(key + 1))),
                        1 => assert!(cache.get(&key).is_none_or(|t| t.len() == key + 1)),
                        _ => assert!(cache.peek(&key).is_none_or(|t| t.len() == key + 1)),
                    }
                    if i % 500 == 0 {
                        cache.sweep();
                    }
                    let s = cache.stats();
                    assert!(s.entries <= 20 && s.bytes <= 2000, "{s:?}");
                    assert_eq!(s.insertions, s.entries as u64 + s.evictions + s.expirations + s.removals, "{s:?}");
                }
            });
        }
    });
    let sum: usize = cache.keys().iter().map(|k| k + 1).sum();
    assert_eq!((cache.keys().len(), sum), (cache.stats().entries, cache.stats().bytes));
}

#[test]
fn a_planted_leak_in_a_pool_is_caught_and_its_absence_is_not() {
    let pool = Pool::default();
    let mut detector = LeakDetector::of(pool.clone(), 4096).window(4);
    detector.set_baseline().unwrap();
    for _ in 0..50 {
        pool.with(1000, |_| ()).unwrap();
        assert!(!detector.check().unwrap().leaking && !detector.watch().unwrap().leaking);
    }
    let mut leaked = vec![];
    let mut alarm = None;
    for round in 0..20 {
        leaked.push(pool.get(1000).unwrap());
        if detector.watch().unwrap().leaking && alarm.is_none() {
            alarm = Some(round);
        }
    }
    // Above 4096 from the fifth buffer on, and four samples in a row there.
    assert_eq!(alarm, Some(7));
    assert!(detector.check().unwrap().leaking);
    drop(leaked);
    assert!(!detector.check().unwrap().leaking && !detector.watch().unwrap().leaking);
}
