//! Memory that cannot be planned ahead: a budget, a pool, a cache, batch sizes that adapt, a leak detector.
//!
//! `cargo run --release -p schwann --example memory`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::memory::{AdaptiveBatch, Budget, CacheLimits, LeakDetector, Pool, PoolLimits, TensorCache};
use schwann::prelude::*;
use std::time::Duration;

fn main() -> schwann::Result<()> {
    // A pool that keeps at most 100 buffers, within a budget of 8 MiB.
    let budget = Budget::bytes(8 << 20);
    let pool = Pool::new(PoolLimits { buffers: 100, ..PoolLimits::default() }, budget.clone());
    for _ in 0..10 {
        let mut tensor = pool.tensor(DType::F32, &[64, 128])?;
        tensor.values_mut::<f32>()?.fill(1.0);
        // The buffer goes back to the pool here.
    }
    let stats = pool.stats();
    println!("pool: {} hits, {} misses, peak {} bytes", stats.pool_hits, stats.pool_misses, stats.peak_memory_usage);
    assert_eq!((stats.pool_hits, stats.pool_misses), (9, 1));

    // More than the budget is an error, not a crash.
    let refused = pool.tensor(DType::F32, &[4 << 20]).expect_err("16 MiB of 8");
    println!("too much: {refused}");

    // A batch size that halves when memory is too small and doubles when it fits.
    let mut batch = AdaptiveBatch::new(128, 1, 128);
    let samples = batch.run(|n| pool.batch(DType::F32, &[1 << 16], n).map(|b| b.layout().batch()))?;
    println!("a batch of {samples} fits; 128 did not");
    assert!(samples < 128);

    // A cache for results: the least recently used entry goes first, and entries expire.
    let cache = TensorCache::new(CacheLimits { entries: 2, ttl: Some(Duration::from_secs(3600)), bytes: 1 << 20 });
    for name in ["layer1", "layer2"] {
        cache.put(name.to_owned(), Tensor::zeros(DType::F32, &[16])?).expect("small enough");
    }
    cache.get("layer1");
    cache.put("layer3".to_owned(), Tensor::zeros(DType::F32, &[16])?).expect("small enough");
    assert!(cache.get("layer1").is_some() && cache.get("layer2").is_none());
    println!("cache: {:?}", cache.stats());

    // Finding memory that is never given back. A pool's count is exact, so one comparison is enough.
    let mut detector = LeakDetector::of(pool.clone(), 1024);
    detector.set_baseline()?;
    pool.with(4096, |buffer| buffer.fill(7))?;
    assert!(!detector.check()?.leaking);
    std::mem::forget(pool.get(4096)?);
    let report = detector.check()?;
    println!("leak: {} bytes more than at the baseline", report.growth);
    assert!(report.leaking);

    // Sessions of a program count against a budget too.
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["N"])?;
    let y = b.exp(x)?;
    b.output("y", y)?;
    let small = Budget::bytes(1 << 16);
    let program = Program::compile(&b.build()?, &CompileOptions::default().budget(small))?;
    let mut session = program.session();
    assert!(session.run(&[("x", &Tensor::zeros(DType::F32, &[1000])?)]).is_ok());
    let refused = session.run(&[("x", &Tensor::zeros(DType::F32, &[100_000])?)]).expect_err("400 kB of 64 KiB");
    println!("a session within a budget: {refused}");
    Ok(())
}
