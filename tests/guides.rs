//! Every line of Rust in `docs/guides.md` runs; `forecast` and `fusion_gain`, which need a calibration, run in the tests
//! of `schwann graph`.

use schwann::backend::{Observer, cpu::Cpu};
use schwann::memory::{AdaptiveBatch, CacheLimits, LeakDetector, PoolLimits, TensorCache, process_in_batches};
use schwann::pass::{any, fusion_opportunities, op};
use schwann::prelude::*;
use schwann::prof::db::Place;
use schwann::prof::device::{Catalog, settings_for};
use schwann::prof::profiler::{Options, RealtimeOptions};
use schwann::prof::study::Instruments;
use schwann::prof::tune::AutoTuner;
use schwann::prof::tune::batch::find_optimal_batch_size;
use schwann::prof::{Profiler, Scopes, analyze, models, quick_profile};
use schwann::{Figure, Isa, Result, io};
use std::ops::ControlFlow;
use std::time::Duration;

#[test]
fn pools_batches_and_statistics() -> Result<()> {
    let pool = Pool::new(PoolLimits { buffers: 100, ..PoolLimits::default() }, Budget::unlimited());
    let tensor = pool.tensor(DType::F32, &[64, 128])?;
    drop(tensor);
    drop(pool.tensor(DType::F32, &[64, 128])?);
    let stats = pool.stats();
    assert_eq!(stats.hit_rate(), Some(0.5));
    assert_eq!((stats.total_allocations, stats.total_deallocations), (1, 0));
    assert_eq!((stats.pool_hits, stats.pool_misses), (1, 1));
    assert!(stats.peak_memory_usage >= 64 * 128 * 4 && stats.current_memory_usage > 0);
    let _ = PoolLimits { buffers: 50, bytes: 64 << 20 };

    let mut batch = pool.batch(DType::F32, &[3, 8], 32)?;
    batch.set(0, &[1.0f32; 24])?;
    assert_eq!(batch.tensor().shape(), [32, 3, 8]);
    drop(pool.tensor_unzeroed(DType::F16, &[4, 4])?);
    Tensor::zeros(DType::F16, &[4, 4])?;
    Tensor::new(&[2], &[1.0f32, 2.0])?;
    pool.with(4096, |buffer| buffer.fill(0))?;
    pool.clear();
    assert_eq!(pool.stats().kept_buffers, 0);

    let budget = Budget::bytes(1 << 20);
    let small = Pool::new(PoolLimits::default(), budget.clone());
    let mut batch = AdaptiveBatch::new(32, 1, 128);
    let fits = batch.run(|n| small.get(n << 16).map(|b| b.len() >> 16))?;
    assert!((1..32).contains(&fits));
    assert_eq!(AdaptiveBatch::default().adjust(true), 64);
    assert!(budget.stats().peak > 0 && budget.stats().in_use <= 1 << 20);
    Ok(())
}

#[test]
fn tuners_and_batches() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let data = vec![1.0f32; 4096];
    let sum = |n: &usize| {
        std::hint::black_box(data.chunks(*n).map(|c| c.iter().sum::<f32>()).sum::<f32>());
        Ok::<(), std::io::Error>(())
    };
    let configs = [16usize, 64];
    let mut tuner = AutoTuner::new().budget(0.05);
    let found = tuner.benchmark_operation("matmul", &configs, sum)?;
    assert_eq!(tuner.get_optimal_config::<usize>("matmul")?, Some(found.config));
    let folder = std::env::temp_dir().join(format!("schwann-guides-{}", std::process::id()));
    let place = Place::File(folder.join("tuned.db"));
    AutoTuner::kept_in(&place)?.budget(0.05).benchmark_operation("matmul", &configs, sum)?;
    assert!(AutoTuner::kept_in(&place)?.get_optimal_config::<usize>("matmul")?.is_some());
    std::fs::remove_dir_all(folder)?;
    assert!((1..=128).contains(&find_optimal_batch_size("sums", 128, |n| sum(&n))?.knee));
    let doubled = process_in_batches(&[1, 2, 3], 2, |batch| Ok::<_, String>(batch.iter().map(|x| x * 2).collect()))?;
    assert_eq!(doubled, [2, 4, 6]);
    Ok(())
}

#[test]
fn the_cache() -> Result<()> {
    let cache = TensorCache::new(CacheLimits::default());
    assert!(cache.put("layer1".to_owned(), Tensor::scalar(1.0f32)).is_ok());
    assert!(cache.get("layer1").is_some());
    assert_eq!((cache.stats().entries, cache.limits().entries), (1, 100));
    let _ = CacheLimits { ttl: Some(Duration::from_secs(60)), ..CacheLimits::default() };
    assert!(cache.put_for("soon".to_owned(), Tensor::scalar(1.0f32), Some(Duration::from_secs(60))).is_ok());
    assert_eq!(cache.sweep(), 0);
    Ok(())
}

fn predictions() -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let x = b.input("input", DType::F32, shape!["B", 784])?;
    let w = b.weight("weights", Tensor::zeros(DType::F32, &[784, 256])?)?;
    let bias = b.weight("bias", Tensor::zeros(DType::F32, &[256])?)?;
    let h = b.matmul(x, w)?;
    let h = b.add(h, bias)?;
    let q = b.quantize_with(h, 0.1)?;
    b.output("predictions", q)?;
    b.build()
}

#[test]
fn graphs_plans_and_predictions() -> Result<()> {
    let graph = predictions()?;
    assert_eq!(graph.topological_sort().len(), graph.nodes().len());
    let sizes = Bindings::new().with("B", 32);
    let found = fusion_opportunities(&graph, &PassOptions::default(), &sizes)?;
    let found = found.first().expect("the product takes the bias with it");
    assert!(!found.pattern.is_empty() && found.nodes.len() > 1);
    assert!(found.bytes_saved.is_some());

    // How much memory there is, is asked of Linux and macOS only for now.
    let known = cfg!(any(target_os = "linux", target_os = "macos"));
    let budget = if known { Budget::fraction(0.8)? } else { Budget::unlimited() };
    let program = Program::compile(&graph, &CompileOptions::default().budget(budget))?;
    assert!(!program.pass_records().is_empty());
    let plan = program.plan(&sizes)?;
    let forecast = Forecast { time: Figure::predicted(1e-6, "s", "made up"), steps: Default::default() };
    assert!(plan.explain(Some(&forecast)).contains("predicted"));
    assert!(plan.memory().value.is_some());
    assert!(plan.live_bytes <= plan.arena_bytes && plan.weight_bytes > 0);
    assert!(plan.steps.iter().all(|s| !s.kernel.to_string().is_empty() && !s.out.is_empty()));
    assert!(plan.buffers.iter().all(|b| b.offset + b.bytes <= plan.arena_bytes));

    let mut session = program.session();
    let data = vec![0.0f32; 784 * 100];
    for chunk in data.chunks(784 * 32) {
        let x = Tensor::new(&[chunk.len() / 784, 784], chunk)?;
        session.run(&[("input", &x)])?;
    }
    struct Count(usize);
    impl Observer for Count {
        fn begin(&mut self, _: usize) {
            self.0 += 1;
        }
        fn end(&mut self, _: usize) {}
    }
    let (mut observer, x) = (Count(0), Tensor::zeros(DType::F32, &[32, 784])?);
    session.run_observed(&[("input", &x)], Some(&mut observer))?;
    assert_eq!(observer.0, plan.steps.len());
    assert!(session.arena_bytes() >= plan.arena_bytes);
    Ok(())
}

#[test]
fn patterns_devices_and_types() -> Result<()> {
    let pattern = Pattern::new("silu", op("mul", [any("x"), op("sigmoid", [any("x")])]), |b, m| b.silu(m.get("x")?));
    let options = PassOptions { patterns: vec![pattern], ..PassOptions::default() };
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["N", 4, 8, 16])?;
    let s = b.sigmoid(x)?;
    let y = b.mul(x, s)?;
    let mask = b.input("mask", DType::F32, shape![8, 8])?;
    let attended = b.attention(y, y, y, Some(mask), false)?;
    let narrow = b.cast(attended, DType::Bf16)?;
    b.output("narrow", narrow)?;
    let half = b.cast(x, DType::F16)?;
    b.output("half", half)?;
    let twice = b.concat(&[y, y], 0)?;
    b.output("twice", twice)?;
    let scale = b.scalar(0.1)?;
    let zero_point = b.constant(Tensor::scalar(0i32))?;
    let q = b.quantize(x, scale, zero_point, DType::I8)?;
    let back = b.dequantize(q, scale, zero_point)?;
    let indices = b.input("indices", DType::I32, shape![3])?;
    let rows = b.gather(back, indices, 1)?;
    b.output("rows", rows)?;
    let graph = b.build()?;
    let program = Program::compile_for(&graph, &Cpu::new(0)?, &CompileOptions::default().passes(options))?;
    assert!(program.graph().to_string().contains("silu"));
    Program::compile_for(
        &graph,
        &Cpu::with_isa(Isa::PORTABLE, 1)?,
        &CompileOptions::default().passes(PassOptions::none()),
    )?;
    let by_name = CompileOptions::default().backend("cpu:portable".parse()?);
    assert_eq!(Program::compile(&graph, &by_name)?.backend(), "cpu (portable)");
    Ok(())
}

#[test]
fn weights_in_few_bits() -> Result<()> {
    let weights = Tensor::new(&[2, 256], &(0..512).map(|i| (i as f32).sin()).collect::<Vec<_>>())?;
    let small = quant::quantize(&weights, Scheme { offsets: true, ..Scheme::INT8 }, None)?;
    assert_eq!((small.scales.shape(), small.offsets.as_ref().map(Tensor::shape)), (&[2, 1][..], Some(&[2, 1][..])));
    assert_eq!(small.numbers().len(), 512);
    assert_eq!(quant::quantize(&weights, Scheme::INT4, None)?.scales.shape(), [2, 8]);
    let blocks = quant::quantize(&weights, Scheme { share: Share::Block(128), ..Scheme::INT8 }, None)?;
    assert_eq!(blocks.scales.shape(), [2, 2]);
    Ok(())
}

#[test]
fn leaks_and_files() -> Result<()> {
    // The process' own memory is read on Linux only for now.
    let mut detector =
        if cfg!(target_os = "linux") { LeakDetector::new(100 << 20) } else { LeakDetector::of(Pool::default(), 1) };
    detector.set_baseline()?;
    assert!(!detector.check()?.leaking && !detector.watch()?.leaking);

    let path = std::env::temp_dir().join(format!("schwann-guides-{}.safetensors", std::process::id()));
    io::save(&path, &predictions()?)?;
    assert!(io::load(&path)?.weights()["weights"].is_mapped());
    let _ = std::fs::remove_file(&path);
    if cfg!(any(target_os = "linux", target_os = "macos")) {
        assert!(schwann::memory::machine_bytes()? > 0);
    }
    Ok(())
}

#[test]
fn scopes_profilers_and_settings() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let scopes = Scopes::new();
    let timed = scopes.enter("load");
    drop(timed);
    scopes.start_operation("load");
    scopes.end_operation()?;
    assert!(scopes.average_time("load").is_some());
    assert_eq!(scopes.stats()[0].count, 2);

    let catalog = Catalog::own()?;
    let device = catalog.find("M1")?;
    let settings = settings_for(device, &catalog)?;
    assert!(settings.get_optimal_batch_size().is_some() && !settings.get_optimal_backbone().is_empty());
    assert!(device.min_tflops().is_some() && device.min_bandwidth().is_some() && device.memory_budget().is_some());

    let model = || models::built_in("wired-cfc", &models::Sizes::default()).unwrap();
    let options = Options { batch: 2, steps: 2, runs: 4, seconds: 0.05, ..Options::default() };
    let mut profiler = Profiler::new(model()?).with(options).counting(Instruments::default());
    let compute = profiler.profile_compute()?;
    let times = [
        &compute.time_mean,
        &compute.time_std,
        &compute.time_min,
        &compute.time_p50,
        &compute.time_p95,
        &compute.time_p99,
    ];
    assert!(times.iter().all(|time| time.value.is_some()));
    let memory = profiler.profile_memory()?;
    assert!(memory.live_peak.value.is_some() && memory.held.value.is_some() && !memory.timeline.is_empty());
    let readings = profiler.profile_hardware()?;
    for name in ["cache_hit_rate", "dram_bandwidth", "package_power", "ane_utilization"] {
        assert!(readings.contains_key(name), "{name} has a value or a reason");
    }
    let often = RealtimeOptions { every_s: 0.01, ..RealtimeOptions::default() };
    assert!(profiler.profile_realtime(often, |_live| ControlFlow::Break(()))?.is_some());

    let profile = quick_profile(model()?)?;
    let efficiency = analyze::efficiency(&profile, Some(device));
    for name in [
        "tflops_efficiency",
        "compute_efficiency",
        "bandwidth_efficiency",
        "memory_efficiency",
        "cache_efficiency",
        "memory_controller_efficiency",
        "ne_utilization",
        "energy_per_run",
    ] {
        assert!(efficiency.iter().any(|e| e.name == name), "{name}");
    }
    let (_, _) = (analyze::bottlenecks(&profile), analyze::recommend(&profile));
    assert!(!analyze::diagnose(Some(&profile), &readings).is_empty());
    Ok(())
}

#[test]
fn training() -> schwann::nn::Result<()> {
    use schwann::nn::{Cfc, GraphOptions, Model, Segments, train};
    let model = Model::new(Cfc { backbone_dropout: Some(0.1), ..Cfc::new(2, 4) }, 1)?;
    let options = GraphOptions::training().segments(Some(Segments { steps: 400, each: 20 }));
    assert!(model.training_graph(&options)?.output("loss").is_some());
    let options = train::Options { batch: 16, ..train::Options::default() };
    assert_eq!(options.batch, 16);
    Ok(())
}
