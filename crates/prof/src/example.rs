//! Made-up profiles for tests: one with everything in it, and one of a machine where nothing could be measured.
//!
//! They are compiled for tests and under the feature `example` alone, so that no figure of theirs can reach a user. What
//! follows from something else (shares, rates, sums) is computed here, as in a real profile, so that views can be
//! checked for consistency.

use crate::profile::*;
use schwann_core::figure::{Ends, Spread};
use schwann_core::{Figure, Series};
use std::collections::BTreeMap;

const CLOCK: &str = "example: clock";
const ROOF: &str = "example: calibration";
const SHAPES: &str = "example: counted from shapes";
const FROM: &str = "example: computed from the figures above";

/// A complete profile of P, batch 32, 16 steps; runs take about 412 µs.
pub fn profile() -> Profile {
    scaled(1.0, 1)
}

/// The same with every time multiplied by a factor, and with noise of this seed.
pub fn scaled(factor: f64, seed: u64) -> Profile {
    let median = 412e-6 * factor;
    let samples = noisy(median, 200, seed);
    let measured = |value: f64, unit: &str| Figure::measured(value, unit, CLOCK);
    let predicted = |value: f64, unit: &str| Figure::predicted(value, unit, "example: roofline of the device");
    let setting = |value: f64, unit: &str, option: &str| Figure::derived(value, unit, format!("option {option}"));
    let quantile = |part: f64| {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * part) as usize]
    };
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let std = (samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (samples.len() - 1) as f64).sqrt();
    let half = 1.96 * std / (samples.len() as f64).sqrt();
    let spread =
        Spread { low: mean - half, high: mean + half, ends: Ends::Confidence95, samples: samples.len() as u64 };
    let p50 = measured(quantile(0.5), "s");

    let ops = ops(factor);
    let sum = |of: fn(&Op) -> &Figure| ops.iter().filter_map(|op| of(op).value).sum::<f64>();
    let (flops, bytes, functions) = (sum(|o| &o.flops), sum(|o| &o.bytes), sum(|o| &o.functions));
    let least = ops.iter().filter_map(|op| op.predicted.value).sum::<f64>();
    let sweep = [(1.0, 16.0), (8.0, 16.0), (32.0, 16.0), (128.0, 16.0), (32.0, 64.0)].map(|(batch, steps)| {
        let work = batch * steps / 512.0;
        let time = measured((30e-6 + 382e-6 * work) * factor, "s");
        SweepPoint {
            batch: setting(batch, "sequences", "--sweep"),
            steps: setting(steps, "steps", "--sweep"),
            tflops: time.derive("Tflop/s", FROM, |t| flops * work / t / 1e12),
            bandwidth: time.derive("GB/s", FROM, |t| bytes * work / t / 1e9),
            throughput: time.derive("samples/s", FROM, |t| batch * steps / t),
            memory: Figure::derived(120e3 + 1.4e3 * batch * steps, "B", SHAPES),
            time,
        }
    });
    Profile {
        schema: SCHEMA,
        id: format!("20260102T030405Z-{seed:08x}"),
        created: "2026-01-02T03:04:05Z".into(),
        version: "0.1.0".into(),
        commit: Some("0123456789abcdef0123456789abcdef01234567".into()),
        model: Model {
            name: "P".into(),
            description: "CfC(8 → 16, 64 units, backbone 2 × 64)".into(),
            hash: "9f2c61d04be87a35".into(),
            parameters: Figure::derived(25_936.0, "parameters", SHAPES),
            weight_bytes: Figure::derived(103_744.0, "B", SHAPES),
        },
        workload: workload(),
        machine: Machine {
            fingerprint: "example-cpu/avx512bf16/2 cores/24 GiB".into(),
            cpu: "Example CPU".into(),
            isa: "avx512bf16".into(),
            os: "Linux 6.1".into(),
            cores: Figure::measured(2.0, "cores", "example: operating system"),
            memory: Figure::measured(25_232_932_864.0, "B", "example: /proc/meminfo"),
            unified_memory: false,
        },
        roof: Roof {
            device: "this machine".into(),
            flops: Figure::measured(115e9, "flop/s", ROOF),
            int8: Some(Figure::measured(460e9, "op/s", ROOF)),
            functions: Figure::measured(4.17e9, "functions/s", ROOF),
            bandwidth: [("L1", 380e9), ("L2", 140e9), ("L3", 60e9), ("memory", 18.8e9)]
                .map(|(name, rate)| Named { name: name.into(), figure: Figure::measured(rate, "B/s", ROOF) })
                .into(),
            step_overhead: Figure::measured(27e-9, "s", ROOF),
            bf16_gain: Some(Figure::derived(1.9, "×", ROOF)),
            run_overhead: None,
        },
        compute: Compute {
            phases: None,
            time_mean: measured(mean, "s").with_spread(spread).with_resolution(1e-9),
            time_std: measured(std, "s"),
            time_min: measured(quantile(0.0), "s"),
            time_p95: measured(quantile(0.95), "s"),
            time_p99: measured(quantile(0.99), "s"),
            samples: Series::measured(samples.iter().copied(), "s", CLOCK),
            starts: Some(starts(median, seed)),
            runs_per_sample: Figure::derived(1.0, "runs", "example: samples of 50 µs or more"),
            warm_up_runs: measured(12.0, "runs"),
            outliers: Figure::derived(3.0, "samples", "example: beyond median ± 5 MAD"),
            flops: Figure::derived(flops, "flop", SHAPES),
            functions: Figure::derived(functions, "functions", SHAPES),
            bytes: Figure::derived(bytes, "B", SHAPES),
            tflops: p50.derive("Tflop/s", FROM, |t| flops / t / 1e12),
            of_roof: p50.derive("%", FROM, |t| least / t * 100.0),
            throughput: p50.derive("samples/s", FROM, |t| 512.0 / t),
            overhead: measured(0.8, "%"),
            attributed: measured(99.1, "%"),
            time_p50: p50.clone(),
            ops,
        },
        memory: Memory {
            arena: Figure::derived(65_536.0, "B", SHAPES),
            live_peak: Figure::derived(61_440.0, "B", SHAPES),
            weights: Figure::derived(118_784.0, "B", SHAPES),
            held: Figure::measured(184_320.0, "B", "example: budget"),
            rss: Figure::measured(9_437_184.0, "B", "example: /proc/self/statm"),
            rss_peak: Figure::measured(11_534_336.0, "B", "example: /proc/self/status VmHWM"),
            page_faults: Figure::measured(0.0, "faults", "example: getrusage"),
            allocations: Figure::unavailable("allocations", "allocator", "this build does not count allocations"),
            bandwidth: p50.derive("GB/s", FROM, |t| bytes / t / 1e9),
            bandwidth_utilization: p50.derive("%", FROM, |t| bytes / t / 140e9 * 100.0),
            timeline: ["x.turned", "backbone.0", "backbone.1", "heads", "y"]
                .iter()
                .zip([16_384.0, 40_960.0, 61_440.0, 49_152.0, 32_768.0])
                .map(|(step, live)| MemoryPoint {
                    step: (*step).into(),
                    live: Figure::derived(live, "B", SHAPES),
                    holders: match *step {
                        "backbone.1" => [("backbone.1", 32_768.0), ("x.turned", 16_384.0), ("state", 12_288.0)]
                            .map(|(name, b)| Named { name: name.into(), figure: Figure::derived(b, "B", SHAPES) })
                            .into(),
                        _ => vec![],
                    },
                })
                .collect(),
        },
        hardware: BTreeMap::from([
            (
                "cycles".to_owned(),
                Figure::unavailable("cycles", "perf events", "not permitted: set perf_event_paranoid to 2"),
            ),
            ("cpu_load".to_owned(), Figure::measured(51.0, "%", "example: /proc/stat")),
            ("package_power".to_owned(), Figure::unavailable("W", "RAPL", "this machine has no RAPL")),
        ]),
        comparisons: [("node by node", 1.31), ("2 threads", 0.62)]
            .map(|(name, ratio)| {
                let (time, base) = (measured(median * ratio, "s"), measured(median, "s"));
                let by = 1.0 / ratio;
                let spread = Spread { low: by * 0.98, high: by * 1.02, ends: Ends::Confidence99, samples: 8 };
                Comparison {
                    name: name.into(),
                    speedup: time.derive2(&base, "×", FROM, |t, b| b / t).with_spread(spread),
                    difference: Figure::measured(6e-8, "1", "example: outputs"),
                    verdict: if by > 1.0 { Verdict::Gain } else { Verdict::Loss },
                    time,
                    base,
                }
            })
            .into(),
        sweep: sweep.into(),
        devices: [("this machine", true, 1.05), ("M1", false, 0.8), ("M1 Max", false, 0.72), ("M1 Ultra", false, 0.7)]
            .map(|(device, host, ratio)| {
                let time = predicted(median * ratio, "s");
                DeviceOutlook {
                    device: device.into(),
                    host,
                    tflops: time.derive("Tflop/s", FROM, |t| flops / t / 1e12),
                    bandwidth: time.derive("GB/s", FROM, |t| bytes / t / 1e9),
                    utilization: time.derive("%", FROM, |t| flops / t / 115e9 * 100.0),
                    neural_engine: Figure::unavailable("%", "Neural Engine", "nothing here measures it"),
                    error: match host {
                        true => time.derive2(&p50, "%", FROM, |t, p| (t / p - 1.0) * 100.0),
                        false => Figure::unavailable("%", device, "there is no measurement on this device"),
                    },
                    slowest: vec![Named { name: "backbone.1".into(), figure: predicted(median * ratio * 0.3, "s") }],
                    reasons: vec!["an example".into()],
                    compared: if host { String::new() } else { crate::device::predict::NEVER_COMPARED.into() },
                    gpu_time: None,
                    time,
                }
            })
            .into(),
        requirements: [("minimum", 0.01, true), ("target", 5.0, false)]
            .map(|(level, asked, met)| Requirement {
                device: "M1".into(),
                level: level.into(),
                metric: "tflops".into(),
                required: Figure::derived(asked, "Tflop/s", "example: catalogue"),
                reached: predicted(flops / (median * 0.8) / 1e12, "Tflop/s"),
                met: Some(met),
            })
            .into(),
        efficiency: vec![
            Named {
                name: "tflops_efficiency".into(), figure: Figure::derived(0.02, "×", "example: over the minimum")
            },
            Named { name: "compute_efficiency".into(), figure: Figure::derived(61.0, "%", FROM) },
            Named {
                name: "ne_utilization".into(),
                figure: Figure::unavailable("%", "Neural Engine", "nothing counts its use"),
            },
        ],
        bottlenecks: vec![Bottleneck {
            what: "heads".into(),
            why: "bound by exponentials".into(),
            could_win: measured(median * 0.12, "s"),
            share: Figure::derived(12.0, "%", FROM),
        }],
        recommendations: vec![
            Recommendation {
                title: "Run on 2 threads".into(),
                evidence: "1.61 times as fast in turns with one".into(),
                how: "--threads 2".into(),
                expected: Figure::predicted(1.8, "×", "example: rows are independent"),
                measured: Figure::measured(1.61, "×", CLOCK),
                verdict: Verdict::Gain,
            },
            Recommendation {
                title: "Use bf16 weights".into(),
                evidence: "products are bound by arithmetic".into(),
                how: "--dtype bf16".into(),
                expected: Figure::predicted(1.2, "×", "example: roofline"),
                measured: Figure::unavailable("×", "profile --prove", "not tried; add --prove"),
                verdict: Verdict::Untested,
            },
        ],
        doubts: vec!["3 of 200 samples lie far from the others: something else was running".into()],
        tuned: None,
        partial: None,
    }
}

/// A profile of a machine where no clock, counter or sensor gave anything, and which was never calibrated.
pub fn nothing() -> Profile {
    let gone =
        |unit: &str| Figure::unavailable(unit, "example: a machine without instruments", "there is no instrument");
    let mut profile = profile();
    profile.commit = None;
    profile.machine.cores = gone("cores");
    profile.machine.memory = gone("B");
    profile.model.parameters = gone("parameters");
    profile.model.weight_bytes = gone("B");
    profile.efficiency.iter_mut().for_each(|e| e.figure = gone("%"));
    profile.roof.flops = gone("flop/s");
    profile.roof.int8 = Some(gone("op/s"));
    profile.roof.functions = gone("functions/s");
    profile.roof.step_overhead = gone("s");
    profile.roof.bf16_gain = Some(gone("×"));
    profile.roof.bandwidth.iter_mut().for_each(|level| level.figure = gone("B/s"));
    let c = &mut profile.compute;
    for time in [
        &mut c.time_mean,
        &mut c.time_std,
        &mut c.time_min,
        &mut c.time_p50,
        &mut c.time_p95,
        &mut c.time_p99,
        &mut c.runs_per_sample,
        &mut c.warm_up_runs,
        &mut c.outliers,
        &mut c.flops,
        &mut c.functions,
        &mut c.bytes,
        &mut c.tflops,
        &mut c.of_roof,
        &mut c.throughput,
        &mut c.overhead,
        &mut c.attributed,
    ] {
        *time = gone(&time.unit.clone());
    }
    c.samples = Series::unavailable("s", "example: a machine without instruments", "there is no instrument");
    for op in &mut c.ops {
        op.bound = Bound::Unknown;
        for figure in [
            &mut op.self_time,
            &mut op.share,
            &mut op.calls,
            &mut op.flops,
            &mut op.functions,
            &mut op.bytes,
            &mut op.gflops,
            &mut op.gbps,
            &mut op.of_roof,
            &mut op.predicted,
        ] {
            *figure = gone(&figure.unit.clone());
        }
    }
    let m = &mut profile.memory;
    for figure in [
        &mut m.arena,
        &mut m.live_peak,
        &mut m.weights,
        &mut m.held,
        &mut m.rss,
        &mut m.rss_peak,
        &mut m.page_faults,
        &mut m.allocations,
        &mut m.bandwidth,
        &mut m.bandwidth_utilization,
    ] {
        *figure = gone(&figure.unit.clone());
    }
    m.timeline = vec![];
    profile.hardware.values_mut().for_each(|figure| *figure = gone(&figure.unit.clone()));
    profile.compute.starts = None;
    profile.comparisons = vec![];
    profile.sweep = vec![];
    for device in &mut profile.devices {
        for figure in [
            &mut device.time,
            &mut device.tflops,
            &mut device.bandwidth,
            &mut device.utilization,
            &mut device.neural_engine,
            &mut device.error,
        ] {
            *figure = gone(&figure.unit.clone());
        }
        device.slowest = vec![];
    }
    for requirement in &mut profile.requirements {
        requirement.reached = gone(&requirement.reached.unit.clone());
        requirement.met = None;
    }
    profile.bottlenecks = vec![];
    profile.recommendations = vec![];
    profile.doubts = vec!["nothing could be measured".into()];
    profile
}

/// Eight starts of the process with a luck of 0.3%, on a machine whose speed changes by 0.2% from start to start.
fn starts(median: f64, seed: u64) -> Starts {
    let mut random = crate::stats::Random::new(seed);
    let mut around = |scatter: f64| 1.0 + scatter * (random.uniform() - 0.5) * 3.46;
    let (mut times, mut yardsticks) = (vec![], vec![]);
    for _ in 0..8 {
        let machine = around(0.002);
        times.push(median * machine * around(0.003));
        yardsticks.push(20e-6 * machine);
    }
    let ratios: Vec<f64> = times.iter().zip(&yardsticks).map(|(t, y)| t / y).collect();
    Starts {
        error: Series::derived(ratios.iter().map(|_| 0.001), "1", FROM),
        ratio: Series::derived(ratios, "×", FROM),
        time: Series::measured(times, "s", CLOCK),
        yardstick_name: crate::profiler::YARDSTICK.into(),
        yardstick: Series::measured(yardsticks, "s", CLOCK),
    }
}

fn workload() -> Workload {
    let setting = |value: f64, unit: &str, option: &str| Figure::derived(value, unit, format!("option {option}"));
    Workload {
        batch: setting(32.0, "sequences", "--batch"),
        steps: setting(16.0, "steps", "--steps"),
        threads: setting(1.0, "threads", "--threads"),
        runs: setting(200.0, "runs", "--runs"),
        dtype: "f32".into(),
        backend: "cpu".into(),
        compilation: "fused".into(),
        sizes: vec![],
    }
}

/// Operations of a run: name, operation, kernel, shape, microseconds, flops, functions, bytes, bound.
fn ops(factor: f64) -> Vec<Op> {
    type Row = (&'static str, &'static str, &'static str, &'static str, f64, f64, f64, f64, Bound);
    let rows: [Row; 6] = [
        ("x.turned", "transpose", "turn", "f32[16, 8, 32]", 4.1, 0.0, 0.0, 32_768.0, Bound::Memory),
        (
            "backbone.0",
            "map of product",
            "gemm packed + bias, then tanh",
            "f32[64, 32]",
            88.0,
            4.8e6,
            32_768.0,
            327_680.0,
            Bound::Compute,
        ),
        (
            "backbone.1",
            "map of product",
            "gemm packed + bias, then tanh",
            "f32[64, 32]",
            131.0,
            8.4e6,
            32_768.0,
            524_288.0,
            Bound::Compute,
        ),
        (
            "heads",
            "map of product",
            "gemm packed, then gate",
            "f32[64, 32]",
            138.0,
            6.6e6,
            98_304.0,
            655_360.0,
            Bound::Functions,
        ),
        ("projected", "matmul", "gemm packed + bias", "f32[16, 32]", 38.0, 1.05e6, 0.0, 98_304.0, Bound::Overhead),
        ("y", "transpose", "turn", "f32[32, 16, 16]", 9.2, 0.0, 0.0, 65_536.0, Bound::Memory),
    ];
    let whole: f64 = rows.iter().map(|r| r.4).sum::<f64>() * 1e-6 * factor;
    let one = |(i, row): (usize, &Row)| {
        let &(name, op, kernel, shape, us, flops, functions, bytes, bound) = row;
        let self_time = Figure::measured(us * 1e-6 * factor, "s", "example: observer");
        let inside = (1..5).contains(&i);
        let least = (flops / 115e9 + functions / 4.17e9).max(bytes / 140e9);
        let predicted = Figure::predicted(least, "s", "example: roofline of this machine");
        Op {
            name: name.into(),
            op: op.into(),
            kernel: kernel.into(),
            kind: if op == "transpose" { KernelKind::Move } else { KernelKind::Product },
            idle_lanes: None,
            whole_time: None,
            shape: shape.into(),
            dtype: "f32".into(),
            path: if inside { vec![1, i - 1] } else { vec![i.min(2)] },
            within: inside.then(|| "scan".into()),
            share: self_time.derive("%", FROM, |t| t / whole * 100.0),
            calls: Figure::derived(if inside { 16.0 } else { 1.0 }, "calls", SHAPES),
            flops: Figure::derived(flops, "flop", SHAPES),
            functions: Figure::derived(functions, "functions", SHAPES),
            bytes: Figure::derived(bytes, "B", SHAPES),
            gflops: self_time.derive("Gflop/s", FROM, |t| flops / t / 1e9),
            gbps: self_time.derive("GB/s", FROM, |t| bytes / t / 1e9),
            bound,
            of_roof: self_time.derive2(&predicted, "%", FROM, |t, p| p / t * 100.0),
            predicted,
            self_time,
        }
    };
    rows.iter().enumerate().map(one).collect()
}

/// Samples around a median: skewed noise of about 1%, and a few far outliers.
fn noisy(median: f64, count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut one = |i: usize| {
        let noise = 0.01 * (uniform() + uniform() + uniform() - 1.5);
        let far = if i % 70 == 69 { 0.4 } else { 0.0 };
        median * (1.0 + noise + far)
    };
    (0..count).map(&mut one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_profiles_survive_json() {
        for profile in [profile(), nothing()] {
            let text = serde_json::to_string(&profile).unwrap();
            assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
        }
    }

    #[test]
    fn shares_sum_to_the_whole() {
        let sum: f64 = profile().compute.ops.iter().filter_map(|op| op.share.value).sum();
        assert!((sum - 100.0).abs() < 1e-9);
    }
}
