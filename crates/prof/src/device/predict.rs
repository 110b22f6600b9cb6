//! What a plan would take on a device: the units of its steps at that device's prices.
//!
//! On the calibrated machine the prices are the calibration's. On a catalogued one they are scaled from it: arithmetic
//! and functions by the cores' peak, caches likewise (they are built to feed it), overhead by the clock, memory by the
//! published bandwidth. What was assumed is said in the source of every figure.

use super::calibrate::Calibration;
use super::catalog::Entry;
use super::fit::{self, Counted, Counts, Kind, Prices, Target, Unit};
use super::roof::words;
use crate::profile::Bound;
use schwann_core::Figure;
use schwann_core::plan::Plan;
use serde::Serialize;

/// Work, in operations, below which the kernels keep to one thread; a function counts as so many.
const WORK_PER_THREAD: f64 = 500_000.0;
const FUNCTION: f64 = 16.0;

/// Why there is no figure for the Neural Engine.
pub const NEURAL_ENGINE: &str =
    "recurrent loops cannot run on the Neural Engine today, and nothing here measures it; it is not predicted";
/// Why there is no time for a GPU.
pub const GPU: &str = "the engine does not run on GPUs yet; the peak is what was published";

/// A memory level as predictions see it.
#[derive(Clone, Debug, PartialEq)]
struct Reach {
    name: String,
    capacity: Option<usize>,
    bytes_per_s: f64,
}

/// A device with so many threads, as predictions see it.
#[derive(Clone, Debug)]
pub struct Speed {
    /// The device.
    pub device: String,
    /// Whether it is the calibrated machine.
    pub host: bool,
    /// Threads.
    pub threads: usize,
    /// Peak arithmetic of these threads, flop/s.
    pub peak_flops: Figure,
    /// Peak memory bandwidth, B/s.
    pub peak_bandwidth: Figure,
    /// What the prices rest on.
    pub source: String,
    prices: Prices,
    target: Target,
    levels: Vec<Reach>,
    /// How many times as fast these threads are as one, at best.
    parallel: f64,
}

impl Speed {
    /// The calibrated machine.
    pub fn host(calibration: &Calibration, threads: usize) -> Speed {
        let roof = calibration.roof(threads);
        let one = calibration.limits(1);
        let all = calibration.limits(threads);
        let parallel = match (one, all) {
            (Some(one), Some(all)) => (all.flops_per_s / one.flops_per_s).clamp(1.0, threads.max(1) as f64),
            _ => 1.0,
        };
        let levels = all.map(|l| &l.levels[..]).unwrap_or_default();
        let reach = |l: &super::roof::Level| Reach {
            name: l.name.clone(),
            capacity: l.capacity_bytes,
            bytes_per_s: l.bytes_per_s(),
        };
        let none = || Figure::unavailable("B/s", calibration.source(), "the calibration has no memory level");
        Speed {
            device: calibration.fingerprint.cpu.clone(),
            host: true,
            threads,
            peak_flops: roof.flops,
            peak_bandwidth: roof.bandwidth.last().map_or_else(none, |n| n.figure.clone()),
            source: format!("{}, prices of each unit of work fitted to a suite of small graphs", calibration.source()),
            prices: calibration.prices.clone(),
            target: calibration.target(),
            levels: levels.iter().map(reach).collect(),
            parallel,
        }
    }

    /// A catalogued device, scaled from the calibrated machine; the reason where too little is published of it.
    pub fn catalogued(entry: &Entry, calibration: &Calibration, threads: usize) -> Result<Speed, String> {
        let core = entry.core_flops();
        let missing = |what: &str| format!("{what} of {} is not known", entry.name);
        let per_core = core.value.ok_or_else(|| missing("the clock"))?;
        let clock = entry.clock.first().ok_or_else(|| missing("the clock"))?;
        let bandwidth = entry.memory_bandwidth.first().ok_or_else(|| missing("the memory bandwidth"))?;
        let host = calibration.limits(1).ok_or("the calibration has no limits")?;
        let cores = entry.performance_cores.first().map_or(1.0, |c| c.value);
        let parallel = (threads.max(1) as f64).min(cores);
        let peak = per_core / host.flops_per_s;
        let tempo = clock.value * 1e9 / calibration.clock_hz;
        let scale = |kind: Kind| match kind {
            Kind::Compute | Kind::Functions | Kind::Cache => peak,
            Kind::Overhead => tempo,
        };
        let prices = calibration.prices.iter().map(|(unit, p)| (*unit, p / scale(unit.kind()))).collect();
        let memory = bandwidth.value * 1e9;
        let host_target = calibration.target();
        let l1 = entry.l1_data.first().map_or(host_target.l1, |l| (l.value * 1024.0) as usize);
        let l2 = entry.l2.first().map_or(host_target.l2, |l| (l.value * 1024.0 * 1024.0) as usize);
        // Caches at the host's speed, scaled; beyond the last that is known, main memory.
        let cached = host.levels.iter().filter(|l| l.capacity_bytes.is_some()).take(2).zip([l1, l2]);
        let mut levels: Vec<Reach> = cached
            .map(|(l, capacity)| Reach {
                name: l.name.clone(),
                capacity: Some(capacity),
                bytes_per_s: (l.bytes_per_s() * peak * parallel).max(memory),
            })
            .collect();
        levels.push(Reach { name: "memory".into(), capacity: None, bytes_per_s: memory });
        let caches = if entry.l2.is_empty() { "the calibrated machine's cache sizes" } else { "its own cache sizes" };
        let source = format!(
            "scaled from the {}: arithmetic, functions and caches × {peak:.2} (peak of a fast core, {}), overhead × {tempo:.2} \
             (clock), memory {} GB/s ({}, all of it for these threads), {caches}, the plan as it is for this machine's registers",
            calibration.source(),
            core.source,
            bandwidth.value,
            bandwidth.source,
        );
        Ok(Speed {
            device: entry.name.clone(),
            host: false,
            threads,
            peak_flops: core
                .derive("flop/s", format!("{}, {} on fast cores", core.source, words(threads)), |f| f * parallel),
            peak_bandwidth: bandwidth.figure().derive("B/s", format!("published: {}", bandwidth.source), |b| b * 1e9),
            source,
            prices,
            target: Target { l1, l2, ..host_target },
            levels,
            parallel,
        })
    }

    /// The nearest level that holds so many bytes.
    fn level(&self, bytes: usize) -> Option<&Reach> {
        self.levels.iter().find(|l| l.capacity.is_none_or(|c| bytes <= c))
    }

    /// Seconds of a step by kind of work, and in all.
    fn seconds(&self, step: &Counted<'_>) -> ([f64; 4], f64) {
        let mut by = [0.0f64; 4];
        let far = self.level(step.working_set.max(self.target.l2 + 1));
        for (&unit, n) in &step.counts {
            let mut price = self.prices.get(&unit).copied().unwrap_or(0.0);
            if unit == Unit::RowByteFar {
                let near = self.prices.get(&Unit::RowByteL2).copied().unwrap_or(0.0);
                price = far.map_or(near, |l| near.max(1.0 / l.bytes_per_s));
            }
            by[kind_index(unit.kind())] += n * price;
        }
        let parallel = match step.blocks {
            // Blocks are dealt out whole: three blocks on two threads take as long as two on one.
            Some(blocks) => (blocks as f64 / blocks.div_ceil(self.threads.max(1)).max(1) as f64).min(self.parallel),
            None => {
                let cost = &step.step.cost;
                let work = cost.flops as f64 + FUNCTION * cost.transcendentals as f64;
                self.parallel.min((work / WORK_PER_THREAD).floor()).max(1.0)
            }
        };
        by.iter_mut().for_each(|s| *s /= parallel);
        let mut total: f64 = by.iter().sum();
        // Data that no near cache holds comes no faster than its level gives it.
        let own = step.step.cost.bytes();
        let set = step.working_set.max(usize::try_from(own).unwrap_or(usize::MAX));
        if step.step.looped.is_none() && set > self.target.l2 {
            let least = self.level(set).map_or(0.0, |l| own as f64 * step.calls / l.bytes_per_s);
            if least > total {
                by[kind_index(Kind::Cache)] += least - total;
                total = least;
            }
        }
        (by, total)
    }
}

fn kind_index(kind: Kind) -> usize {
    match kind {
        Kind::Compute => 0,
        Kind::Functions => 1,
        Kind::Cache => 2,
        Kind::Overhead => 3,
    }
}

/// One operation's predicted time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpTime {
    /// The node it computes.
    pub name: String,
    /// Its operation; of a loop, what the loop costs beside its body.
    pub op: String,
    /// The kernel.
    pub kernel: String,
    /// Its place in the plan: step, and in loops the step of the body.
    pub path: Vec<usize>,
    /// Its loop's node, where it is in one.
    pub within: Option<String>,
    /// Calls of a run.
    pub calls: Figure,
    /// Seconds of a run, all its calls together.
    pub time: Figure,
    /// Of the run, in %.
    pub share: Figure,
    /// What it mostly is.
    pub bound: Bound,
}

/// What a plan would take on a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The device.
    pub device: String,
    /// Whether it is the calibrated machine.
    pub host: bool,
    /// Threads.
    pub threads: usize,
    /// Each operation, in the order it runs. Empty where nothing can be predicted.
    pub ops: Vec<OpTime>,
    /// What a run costs beside its operations, in seconds.
    pub overhead: Figure,
    /// The run, in seconds: the operations and the overhead.
    pub time: Figure,
    /// Tflop/s.
    pub tflops: Figure,
    /// GB/s.
    pub bandwidth: Figure,
    /// The greater share of the device's own peaks in use, in %.
    pub utilization: Figure,
    /// The Neural Engine's share, in %.
    pub neural_engine: Figure,
}

impl Prediction {
    /// The operations that take longest, greatest first.
    pub fn slowest(&self, most: usize) -> Vec<&OpTime> {
        let mut ops: Vec<&OpTime> = self.ops.iter().collect();
        ops.sort_by(|a, b| b.time.value.unwrap_or(0.0).total_cmp(&a.time.value.unwrap_or(0.0)));
        ops.truncate(most);
        ops
    }

    /// A device that too little is known of, with the reason.
    pub fn unavailable(device: &str, threads: usize, reason: &str) -> Prediction {
        let none = |unit: &str| Figure::unavailable(unit, device, reason);
        Prediction {
            device: device.into(),
            host: false,
            threads,
            ops: vec![],
            overhead: none("s"),
            time: none("s"),
            tflops: none("Tflop/s"),
            bandwidth: none("GB/s"),
            utilization: none("%"),
            neural_engine: Figure::unavailable("%", "Neural Engine", NEURAL_ENGINE),
        }
    }
}

/// What a plan takes on a device.
pub fn predict(plan: &Plan, speed: &Speed) -> Prediction {
    let (run, steps) = fit::count(plan, &speed.target);
    let overhead = overhead(&run, &speed.prices);
    let timed: Vec<([f64; 4], f64)> = steps.iter().map(|s| speed.seconds(s)).collect();
    let total = overhead + timed.iter().map(|(_, s)| s).sum::<f64>();
    let predicted = |value: f64, unit: &str| Figure::predicted(value, unit, speed.source.clone());
    let ops = steps.iter().zip(&timed).map(|(step, (by, seconds))| OpTime {
        name: step.step.name.clone(),
        op: step.step.op.clone(),
        kernel: step.step.kernel.clone(),
        path: step.path.clone(),
        within: step.within.map(str::to_owned),
        calls: Figure::derived(step.calls, "calls", "the plan"),
        time: predicted(*seconds, "s"),
        share: predicted(100.0 * seconds / total, "%"),
        bound: bound(by),
    });
    let ops = ops.collect();
    let cost = plan.cost();
    let time = predicted(total, "s");
    let rate = |work: u64, unit: &str, scale: f64| {
        time.derive(unit, format!("the plan's work over the predicted time; {}", speed.source), |t| {
            work as f64 / t / scale
        })
    };
    let (tflops, bandwidth) = (rate(cost.flops, "Tflop/s", 1e12), rate(cost.bytes(), "GB/s", 1e9));
    let of = |reached: &Figure, peak: &Figure, scale: f64, what: &str| {
        let source = format!("{what}: predicted over {}", peak.source);
        reached.derive2(peak, "%", source, |r, p| 100.0 * r * scale / p)
    };
    let arithmetic = of(&tflops, &speed.peak_flops, 1e12, "arithmetic");
    // What stays in a cache is held against that cache: main memory never sees it.
    let working_set = plan.arena_bytes + plan.weight_bytes;
    let level = speed.levels.iter().find(|l| l.capacity.is_some_and(|c| working_set <= c));
    let nearest =
        level.map(|l| predicted(l.bytes_per_s, "B/s").derive("B/s", format!("{} of the device", l.name), |b| b));
    let memory = of(&bandwidth, nearest.as_ref().unwrap_or(&speed.peak_bandwidth), 1e9, "memory");
    let utilization = if memory.value > arithmetic.value { memory } else { arithmetic };
    Prediction {
        device: speed.device.clone(),
        host: speed.host,
        threads: speed.threads,
        ops,
        overhead: predicted(overhead, "s"),
        time,
        tflops,
        bandwidth,
        utilization,
        neural_engine: Figure::unavailable("%", "Neural Engine", NEURAL_ENGINE),
    }
}

fn overhead(run: &Counts, prices: &Prices) -> f64 {
    fit::seconds(run, prices)
}

fn bound(by: &[f64; 4]) -> Bound {
    let kinds = [Bound::Compute, Bound::Functions, Bound::Memory, Bound::Overhead];
    let most = by.iter().zip(kinds).max_by(|a, b| a.0.total_cmp(b.0));
    match most {
        Some((seconds, kind)) if *seconds > 0.0 => kind,
        _ => Bound::Unknown,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::calibrate::tests::made_up;
    use crate::device::catalog::Catalog;
    use crate::models::{INPUTS, Sizes, built_in};
    use schwann_core::{Bindings, CompileOptions, DType, GraphBuilder, Program, Tensor};
    use schwann_kernels::Isa;
    use schwann_nn::{GraphOptions, InitialState};

    pub(in crate::device) fn plan(name: &str, batch: usize, steps: usize, threads: usize) -> Plan {
        let model = built_in(name, &Sizes::default()).unwrap().unwrap();
        let graph = model.graph(&GraphOptions::default().state(InitialState::Zero)).unwrap();
        let program = Program::compile(&graph, &CompileOptions::default().threads(threads)).unwrap();
        program.plan(&Bindings::new().with("B", batch).with("T", steps).with("C", INPUTS)).unwrap()
    }

    #[test]
    fn a_tiny_plan_costs_what_a_hand_counts() {
        // y = tanh(x) for 64 floats: one map of one function.
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, &[64][..]).unwrap();
        let y = b.tanh(x).unwrap();
        b.output("y", y).unwrap();
        let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
        let p = predict(&program.plan(&Bindings::new()).unwrap(), &Speed::host(&made_up(), 1));
        // A call, 64 functions (each a flop that is counted as a function), 256 bytes in and 256 out.
        let op = 20e-9 + 64.0 * 0.5e-9 + 512.0 * 0.01e-9;
        let run = 100e-9 + 2.0 * 10e-9;
        assert!((p.ops[0].time.value.unwrap() - op).abs() < 1e-15, "{:?}", p.ops[0]);
        assert!((p.overhead.value.unwrap() - run).abs() < 1e-15);
        assert!((p.time.value.unwrap() - op - run).abs() < 1e-15);
        assert_eq!(p.ops[0].bound, Bound::Functions);
        assert!((p.tflops.value.unwrap() - 64.0 / (op + run) / 1e12).abs() < 1e-12);
    }

    #[test]
    fn a_product_costs_what_a_hand_counts() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, &[1, 8][..]).unwrap();
        let w = b.weight("w", Tensor::zeros(DType::F32, &[8, 32]).unwrap()).unwrap();
        let y = b.matmul(x, w).unwrap();
        b.output("y", y).unwrap();
        let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
        let p = predict(&program.plan(&Bindings::new()).unwrap(), &Speed::host(&made_up(), 1));
        // One row: a call, 8 rounds over one panel, 8 × 32 floats of weights in the first level.
        let op = 30e-9 + 8.0 * 1e-9 + 8.0 * 32.0 * 4.0 * 0.01e-9;
        assert!((p.ops[0].time.value.unwrap() - op).abs() < 1e-15, "{:?}", p.ops[0]);
    }

    #[test]
    fn operations_and_overhead_add_up_and_nothing_is_negative() {
        for name in ["P", "W", "L"] {
            for (batch, steps, threads) in [(1, 1, 1), (1, 16, 1), (32, 16, 1), (256, 64, 2)] {
                let plan = plan(name, batch, steps, threads);
                let speed = Speed::host(&made_up(), threads);
                let p = predict(&plan, &speed);
                let sum: f64 = p.ops.iter().map(|op| op.time.value.unwrap()).sum();
                let total = p.time.value.unwrap();
                assert!((sum + p.overhead.value.unwrap() - total).abs() < 1e-12 * total.max(1.0));
                assert!(p.ops.iter().all(|op| op.time.value.unwrap() >= 0.0) && total > 0.0);
                let loops = plan.steps.iter().filter_map(|s| s.looped.as_ref());
                let inner: usize = loops.map(|l| l.body.steps.len()).sum();
                assert_eq!(p.ops.len(), plan.steps.len() + inner, "bodies stand beside their loops");
                assert!(p.neural_engine.reason.as_deref().is_some_and(|r| r.contains("loops")));
            }
        }
    }

    #[test]
    fn more_sequences_and_more_steps_take_longer_and_more_threads_do_not() {
        for name in ["P", "W", "L"] {
            let time = |batch, steps, threads| {
                predict(&plan(name, batch, steps, threads), &Speed::host(&made_up(), threads)).time.value.unwrap()
            };
            let batches: Vec<f64> = [1, 32, 64, 128, 256].map(|b| time(b, 16, 1)).into();
            assert!(batches.windows(2).all(|w| w[0] < w[1]), "{name} {batches:?}");
            let steps: Vec<f64> = [1, 4, 16, 64].map(|t| time(32, t, 1)).into();
            assert!(steps.windows(2).all(|w| w[0] < w[1]), "{name} {steps:?}");
            assert!(time(256, 64, 2) < time(256, 64, 1), "{name}");
        }
    }

    #[test]
    fn kernels_descriptions_are_read_as_the_backend_writes_them() {
        // What matters is that products, synapses and loops of real plans are recognized, whatever the machine.
        for (name, batch, units) in [
            ("P", 1, &[Unit::RowCall, Unit::MapFunction, Unit::GatedCall, Unit::GatedFunction, Unit::LoopStep][..]),
            ("P", 64, &[Unit::ProductCall, Unit::ProductTile, Unit::ProductWork, Unit::MapFunction, Unit::GatedWork]),
            ("W", 1, &[Unit::GatedCall, Unit::GatedFunction, Unit::RowByteL1, Unit::LoopStep]),
            ("W", 64, &[Unit::GatedCall, Unit::GatedWork, Unit::GatedFunction, Unit::LoopStep]),
            ("L", 1, &[Unit::SynapseCall, Unit::MapDivide]),
            ("L", 64, &[Unit::SynapseCall, Unit::SynapseRow, Unit::MapDivide]),
        ] {
            let plan = plan(name, batch, 4, 1);
            let target = Target { lanes: Isa::detect().lanes(), panel: 4, l1: 32 << 10, l2: 1 << 20 };
            let (_, steps) = fit::count(&plan, &target);
            for unit in units {
                let total: f64 = steps.iter().filter_map(|s| s.counts.get(unit)).sum();
                assert!(total > 0.0, "{name} at {batch}: no {unit:?}");
            }
            let work = |unit| steps.iter().filter_map(|s| s.counts.get(unit)).sum::<f64>();
            let products = work(&Unit::ProductWork) + work(&Unit::GatedWork);
            assert!(2.0 * products >= 0.8 * plan.cost().flops as f64 || !units.contains(&Unit::GatedWork));
        }
    }

    #[test]
    fn a_catalogued_device_is_scaled_by_what_is_published_and_says_so() {
        let catalog = Catalog::own().unwrap();
        let (m1, calibration) = (catalog.find("M1").unwrap(), made_up());
        let speed = Speed::catalogued(m1, &calibration, 1).unwrap();
        for word in ["3.2 GHz", "68.25 GB/s", "scaled from the calibration of made up", "estimate"] {
            assert!(speed.source.contains(word), "{word}: {}", speed.source);
        }
        // The made-up machine has M1's clock, and its peak is 100 Gflop/s to M1's 102.4: nearly the same times.
        let plan = plan("P", 32, 16, 1);
        let (here, there) = (predict(&plan, &Speed::host(&calibration, 1)), predict(&plan, &speed));
        let ratio = here.time.value.unwrap() / there.time.value.unwrap();
        assert!((1.0..1.03).contains(&ratio), "{ratio}");
        assert!(Speed::catalogued(catalog.find("M5 Max").unwrap(), &calibration, 1).unwrap_err().contains("clock"));
    }

    #[test]
    fn prices_are_found_again_from_times_made_of_them() {
        let prices = Prices::from([(Unit::Run, 1e-7), (Unit::MapCall, 2e-8), (Unit::MapByte, 1e-11)]);
        let counts = |a: f64, b: f64, c: f64| Counts::from([(Unit::Run, a), (Unit::MapCall, b), (Unit::MapByte, c)]);
        let all = [counts(1.0, 1.0, 64.0), counts(1.0, 5.0, 4096.0), counts(1.0, 2.0, 1e5), counts(1.0, 9.0, 10.0)];
        let equations: Vec<_> = all.into_iter().map(|c| (c.clone(), fit::seconds(&c, &prices))).collect();
        for (unit, price) in fit::solve(&equations) {
            assert!((price / prices[&unit] - 1.0).abs() < 1e-3, "{unit:?} {price}");
        }
    }
}
