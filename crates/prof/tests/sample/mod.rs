//! Made-up profiles that look like real ones: a circuit with everything in it, and one where nothing is known.
#![allow(dead_code, reason = "each test file uses a part of it")]

use schwann_core::figure::{Ends, Spread};
use schwann_core::{Figure, Series};
use schwann_prof::Profile;
use schwann_prof::profile::*;

const FROM: &str = "made up: computed from the figures above";
const SHAPES: &str = "made up: counted from shapes";
const CLOCK: &str = "made up: monotonic clock";
const PEAK: f64 = 115e9;

/// name, op, kernel, shape, in the loop, µs, flops, functions, bytes, bound
type Row = (&'static str, &'static str, &'static str, &'static str, bool, f64, f64, f64, f64, Bound);

const ROWS: [Row; 11] = [
    ("x.turned", "transpose", "turn", "[16, 8, 32]", false, 2.6, 0.0, 0.0, 32_768.0, Bound::Memory),
    ("scan", "scan", "loop", "[16, 64, 32]", false, 3.1, 0.0, 0.0, 0.0, Bound::Overhead),
    ("joined", "concat", "copy", "[72, 32]", true, 6.4, 0.0, 0.0, 294_912.0, Bound::Memory),
    ("inter.ff1", "matmul", "gemm packed", "[26, 32]", true, 41.2, 1.9e6, 0.0, 262_144.0, Bound::Compute),
    ("inter.ff2", "matmul", "gemm packed", "[26, 32]", true, 40.6, 1.9e6, 0.0, 262_144.0, Bound::Compute),
    ("inter.time", "map", "map 14 steps", "[26, 32]", true, 28.8, 93_000.0, 26_624.0, 159_744.0, Bound::Functions),
    ("command.ff1", "matmul", "gemm packed", "[22, 32]", true, 33.9, 1.1e6, 0.0, 196_608.0, Bound::Compute),
    ("command.gate", "gate", "gate fused", "[22, 32]", true, 52.4, 158_000.0, 33_792.0, 270_336.0, Bound::Functions),
    ("motor.ff1", "matmul", "gemm packed", "[16, 32]", true, 17.0, 0.62e6, 0.0, 126_976.0, Bound::Compute),
    ("motor.gate", "gate", "gate fused", "[16, 32]", true, 39.7, 114_688.0, 24_576.0, 196_608.0, Bound::Functions),
    ("y", "transpose", "turn", "[32, 16, 16]", false, 4.9, 0.0, 0.0, 65_536.0, Bound::Memory),
];

fn derived(value: f64, unit: &str) -> Figure {
    Figure::derived(value, unit, FROM)
}
fn counted(value: f64, unit: &str) -> Figure {
    Figure::derived(value, unit, SHAPES)
}
fn measured(value: f64, unit: &str) -> Figure {
    Figure::measured(value, unit, CLOCK)
}
fn setting(value: f64, unit: &str, option: &str) -> Figure {
    Figure::derived(value, unit, format!("option {option}"))
}
fn named(name: &str, figure: Figure) -> Named {
    Named { name: name.into(), figure }
}

fn op(i: usize, row: &Row, whole: f64) -> Op {
    let &(name, op, kernel, shape, inside, us, flops, functions, bytes, bound) = row;
    let time = measured(us * 1e-6, "s");
    let least =
        Figure::predicted((flops / PEAK + functions / 4.17e9).max(bytes / 140e9), "s", "made up: this machine's roof");
    let loop_at = 1;
    Op {
        kind: KernelKind::default(),
        idle_lanes: None,
        whole_time: None,
        name: name.into(),
        op: op.into(),
        kernel: kernel.into(),
        shape: shape.into(),
        dtype: "f32".into(),
        path: if inside { vec![loop_at, i - 2] } else { vec![i] },
        within: inside.then(|| "scan".into()),
        share: time.derive("%", FROM, |t| t / whole * 100.0),
        calls: counted(if inside { 16.0 } else { 1.0 }, "calls"),
        flops: counted(flops, "flop"),
        functions: counted(functions, "functions"),
        bytes: counted(bytes, "B"),
        gflops: time.derive("Gflop/s", FROM, |t| flops / t / 1e9),
        gbps: time.derive("GB/s", FROM, |t| bytes / t / 1e9),
        bound,
        of_roof: time.derive2(&least, "%", FROM, |t, l| l / t * 100.0),
        predicted: least,
        self_time: time,
    }
}

/// A skewed sample row with a few far outliers; the same every time.
fn samples(median: f64, count: usize) -> Vec<f64> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let one = |i| {
        let noise = -(1.0 - uniform()).max(1e-6).ln() * 0.006 + (uniform() - 0.5) * 0.006;
        median * (0.996 + noise + if i % 67 == 66 { 0.35 } else { 0.0 })
    };
    (0..count).map(one).collect()
}

/// Everything in it: a circuit, batch 32, 16 steps.
pub(crate) fn full() -> Profile {
    let whole = ROWS.iter().map(|r| r.5).sum::<f64>() * 1e-6;
    let ops: Vec<Op> = ROWS.iter().enumerate().map(|(i, row)| op(i, row, whole)).collect();
    let sum = |of: fn(&Op) -> &Figure| ops.iter().filter_map(|o| of(o).value).sum::<f64>();
    let (flops, bytes, functions, least) =
        (sum(|o| &o.flops), sum(|o| &o.bytes), sum(|o| &o.functions), sum(|o| &o.predicted));
    let row = samples(whole, 400);
    let mut sorted = row.clone();
    sorted.sort_by(f64::total_cmp);
    let quantile = |part: f64| measured(sorted[((sorted.len() - 1) as f64 * part) as usize], "s").with_resolution(1e-9);
    let mean = row.iter().sum::<f64>() / row.len() as f64;
    let std = (row.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / row.len() as f64).sqrt();
    let half = 1.96 * std / (row.len() as f64).sqrt();
    let spread = Spread { low: mean - half, high: mean + half, ends: Ends::Confidence95, samples: row.len() as u64 };
    let p50 = quantile(0.5);
    let rate = |t: f64| (flops / t / 1e12, bytes / t / 1e9);
    let sweep = |batch: f64, steps: f64| {
        let work = batch * steps / 512.0;
        let slower = if batch > 64.0 { 1.12 } else { 1.0 };
        let time = measured(11e-6 * steps / 16.0 + (whole - 11e-6) * work * slower, "s");
        SweepPoint {
            batch: setting(batch, "sequences", "--sweep"),
            steps: setting(steps, "steps", "--sweep"),
            tflops: time.derive("Tflop/s", FROM, |t| flops * work / t / 1e12),
            bandwidth: time.derive("GB/s", FROM, |t| bytes * work / t / 1e9),
            throughput: time.derive("samples/s", FROM, |t| batch * steps / t),
            memory: counted(58e3 + 2.3e3 * batch, "B"),
            time,
        }
    };
    let devices = [
        ("this machine", true, 1.07, 115.0, 18.8),
        ("M1", false, 0.82, 410.0, 68.0),
        ("M1 Pro", false, 0.80, 600.0, 200.0),
        ("M1 Max", false, 0.79, 600.0, 400.0),
        ("M1 Ultra", false, 0.79, 1200.0, 800.0),
        ("M2", false, 0.72, 450.0, 100.0),
        ("M2 Pro", false, 0.71, 700.0, 200.0),
        ("M2 Max", false, 0.70, 700.0, 400.0),
        ("M2 Ultra", false, 0.70, 1400.0, 800.0),
        ("M3", false, 0.64, 500.0, 100.0),
        ("M3 Pro", false, 0.64, 620.0, 150.0),
        ("M3 Max", false, 0.62, 900.0, 400.0),
        ("M4", false, 0.55, 600.0, 120.0),
        ("M4 Max", false, 0.53, 1100.0, 546.0),
        ("M5", false, 0.50, 700.0, 153.0),
    ];
    let outlook = |&(device, host, ratio, peak, _): &(&str, bool, f64, f64, f64)| {
        let time = Figure::predicted(whole * ratio, "s", format!("made up: costs and the roof of {device}"));
        DeviceOutlook {
            device: device.into(),
            host,
            tflops: time.derive("Tflop/s", FROM, |t| rate(t).0),
            bandwidth: time.derive("GB/s", FROM, |t| rate(t).1),
            utilization: match device {
                "M5" => Figure::unavailable("%", "catalogue", "Apple has not published this chip's peak"),
                _ => time.derive("%", FROM, |t| rate(t).0 / (peak / 1e3) * 100.0),
            },
            neural_engine: match host {
                true => Figure::unavailable("%", "Neural Engine", "this machine has none"),
                false => Figure::unavailable("%", "Neural Engine", "recurrent loops do not run there today"),
            },
            error: match host {
                true => time.derive2(&p50, "%", FROM, |t, p| (t / p - 1.0) * 100.0),
                false => Figure::unavailable("%", device, "there is no measurement on this device"),
            },
            slowest: ["command.gate", "inter.ff1", "inter.ff2"]
                .iter()
                .zip([0.19, 0.15, 0.15])
                .map(|(name, part)| named(name, Figure::predicted(whole * ratio * part, "s", "made up: roof")))
                .collect(),
            reasons: vec!["made up".into()],
            compared: "never compared with a real one".into(),
            gpu_time: None,
            time,
        }
    };
    let requirement = |device: &str, level: &str, metric: &str, asked: Figure, reached: Figure, met| Requirement {
        device: device.into(),
        level: level.into(),
        metric: metric.into(),
        required: asked,
        reached,
        met,
    };
    let asked = |value: f64, unit: &str| Figure::derived(value, unit, "catalogue: the monitoring guide's table");
    let comparison = |name: &str, ratio: f64, off: f64| {
        let (time, base) = (measured(whole * ratio, "s"), measured(whole, "s"));
        let by = 1.0 / ratio;
        let spread = Spread { low: by * 0.985, high: by * 1.015, ends: Ends::Confidence99, samples: 8 };
        Comparison {
            name: name.into(),
            speedup: time.derive2(&base, "×", FROM, |t, b| b / t).with_spread(spread),
            difference: Figure::measured(off, "1", "made up: outputs of both"),
            verdict: if by > 1.0 { Verdict::Gain } else { Verdict::Loss },
            time,
            base,
        }
    };
    let gone = |unit: &str, source: &str, why: &str| Figure::unavailable(unit, source, why);
    let paranoid =
        "not permitted: kernel.perf_event_paranoid is 4; `sudo sysctl kernel.perf_event_paranoid=2` allows it";
    let live =
        [8_192.0, 40_960.0, 47_104.0, 50_432.0, 53_760.0, 52_096.0, 57_344.0, 61_440.0, 58_112.0, 55_296.0, 32_768.0];
    Profile {
        schema: SCHEMA,
        id: "20261115T152000Z-5f3a9c01".into(),
        created: "2026-11-15T15:20:00Z".into(),
        version: "0.1.0".into(),
        commit: Some("ef239d0c1a5b7e90d2f4a6b8c0e1f3a5b7c9d1e3".into()),
        model: Model {
            name: "AutoNCP 64/16 CfC".into(),
            description: "CfC in a circuit of 64 neurons, 16 outputs, 8 inputs".into(),
            hash: "9f2c61d04be87a35".into(),
            parameters: counted(11_240.0, "parameters"),
            weight_bytes: counted(44_960.0, "B"),
        },
        workload: Workload {
            batch: setting(32.0, "sequences", "--batch"),
            steps: setting(16.0, "steps", "--steps"),
            threads: setting(2.0, "threads", "--threads"),
            runs: setting(400.0, "runs", "--runs"),
            dtype: "f32".into(),
            backend: "cpu".into(),
            compilation: "fused".into(),
            sizes: vec![],
        },
        machine: Machine {
            fingerprint: "made-up/avx512/2/24".into(),
            cpu: "Intel Xeon Platinum 8481C".into(),
            isa: "avx512bf16".into(),
            os: "Linux 6.1".into(),
            cores: Figure::measured(2.0, "cores", "operating system"),
            memory: Figure::measured(25_232_932_864.0, "B", "/proc/meminfo"),
            unified_memory: false,
        },
        roof: Roof {
            device: "this machine".into(),
            flops: Figure::measured(PEAK, "flop/s", "calibration: multiply-adds in registers"),
            functions: Figure::measured(4.17e9, "functions/s", "calibration: tanh in cache"),
            bandwidth: [("L1", 380e9), ("L2", 140e9), ("L3", 60e9), ("memory", 18.8e9)]
                .map(|(name, rate)| named(name, Figure::measured(rate, "B/s", "calibration: copies")))
                .into(),
            step_overhead: Figure::measured(27e-9, "s", "calibration: ten empty steps"),
            int8: None,
        bf16_gain: None,
            run_overhead: None,
        },
        compute: Compute {
            phases: None,
            time_mean: measured(mean, "s").with_spread(spread).with_resolution(1e-9),
            time_std: measured(std, "s"),
            time_min: quantile(0.0),
            time_p95: quantile(0.95),
            time_p99: quantile(0.99),
            samples: Series::measured(row, "s", CLOCK),
            starts: None,
            runs_per_sample: derived(1.0, "runs"),
            warm_up_runs: measured(14.0, "runs"),
            outliers: derived(5.0, "samples"),
            flops: counted(flops, "flop"),
            functions: counted(functions, "functions"),
            bytes: counted(bytes, "B"),
            tflops: p50.derive("Tflop/s", FROM, |t| rate(t).0),
            of_roof: p50.derive("%", FROM, |t| least / t * 100.0),
            throughput: p50.derive("samples/s", FROM, |t| 512.0 / t),
            overhead: measured(0.8, "%"),
            attributed: measured(99.1, "%"),
            ops,
            time_p50: p50.clone(),
        },
        memory: Memory {
            arena: counted(65_536.0, "B"),
            live_peak: counted(61_440.0, "B"),
            weights: counted(58_880.0, "B"),
            held: Figure::measured(124_416.0, "B", "budget"),
            rss: Figure::measured(9_437_184.0, "B", "/proc/self/statm"),
            rss_peak: Figure::measured(11_534_336.0, "B", "/proc/self/status VmHWM"),
            page_faults: Figure::measured(0.0, "faults", "getrusage"),
            allocations: gone("allocations", "allocator", "this build does not count allocations"),
            bandwidth: p50.derive("GB/s", FROM, |t| rate(t).1),
            bandwidth_utilization: p50.derive("%", FROM, |t| bytes / t / 140e9 * 100.0),
            timeline: ROWS
                .iter()
                .zip(live)
                .map(|(row, live)| MemoryPoint {
                    step: row.0.into(),
                    live: counted(live, "B"),
                    holders: match row.0 {
                        "command.gate" => [
                            ("x.turned", 16_384.0),
                            ("states", 16_384.0),
                            ("joined", 9_216.0),
                            ("inter.time", 8_192.0),
                            ("command.ff1", 5_632.0),
                            ("command.gate", 5_632.0),
                        ]
                        .map(|(name, bytes)| named(name, counted(bytes, "B")))
                        .into(),
                        _ => vec![],
                    },
                })
                .collect(),
        },
        hardware: [
            ("cycles", gone("cycles", "perf events", paranoid)),
            ("instructions", gone("instructions", "perf events", paranoid)),
            ("cache_hit_rate", gone("%", "perf events", paranoid)),
            ("branch_misses", gone("misses", "perf events", paranoid)),
            ("context_switches", Figure::measured(3.0, "switches", "getrusage")),
            ("cpu_load", Figure::measured(51.0, "%", "/proc/stat")),
            ("cpu_frequency", Figure::measured(2.7e9, "Hz", "/proc/cpuinfo")),
            ("temperature", gone("°C", "/sys/class/hwmon", "this virtual machine shows no sensors")),
            ("package_power", gone("W", "RAPL", "this virtual machine has no RAPL")),
        ]
        .map(|(name, figure)| (name.to_owned(), figure))
        .into(),
        comparisons: vec![
            comparison("node by node", 1.62, 6e-8),
            comparison("1 thread", 1.84, 0.0),
            comparison("bf16 weights", 0.93, 3.1e-3),
        ],
        sweep: vec![
            sweep(1.0, 16.0),
            sweep(8.0, 16.0),
            sweep(32.0, 16.0),
            sweep(64.0, 16.0),
            sweep(128.0, 16.0),
            sweep(256.0, 16.0),
            sweep(8.0, 64.0),
            sweep(32.0, 64.0),
            sweep(128.0, 64.0),
        ],
        devices: devices.iter().map(outlook).collect(),
        requirements: vec![
            requirement("M1", "minimum", "tflops", asked(0.01, "Tflop/s"), Figure::predicted(0.031, "Tflop/s", "roof"), Some(true)),
            requirement("M1", "minimum", "bandwidth", asked(5.0, "GB/s"), Figure::predicted(8.4, "GB/s", "roof"), Some(true)),
            requirement("M1", "minimum", "memory", asked(8.6e9, "B"), Figure::predicted(124_416.0, "B", "plan"), Some(true)),
            requirement("M1", "target", "tflops", asked(5.0, "Tflop/s"), Figure::predicted(0.031, "Tflop/s", "roof"), Some(false)),
            requirement("M1", "target", "bandwidth", asked(60.0, "GB/s"), Figure::predicted(8.4, "GB/s", "roof"), Some(false)),
            requirement("M1", "target", "memory", asked(8.6e9, "B"), gone("B", "catalogue", "the guide gives no target for memory"), None),
        ],
        efficiency: vec![
            Named { name: "compute_efficiency".into(), figure: Figure::derived(27.5, "%", FROM) },
            Named { name: "tflops_efficiency".into(), figure: Figure::derived(0.011, "×", FROM) },
        ],
        bottlenecks: vec![
            Bottleneck {
                what: "command.gate".into(),
                why: "33 792 exponentials a run at a fifth of the rate that this machine reaches in cache: rows of 32 leave lanes idle".into(),
                could_win: measured(38e-6, "s"),
                share: derived(14.1, "%"),
            },
            Bottleneck {
                what: "inter.ff1, inter.ff2".into(),
                why: "two products over the same input, each with its own pass over it".into(),
                could_win: measured(29e-6, "s"),
                share: derived(10.7, "%"),
            },
            Bottleneck {
                what: "overhead of calls".into(),
                why: "131 calls of 27 ns each".into(),
                could_win: measured(3.5e-6, "s"),
                share: derived(1.3, "%"),
            },
        ],
        recommendations: vec![
            Recommendation {
                title: "Use bf16 weights".into(),
                evidence: "Products take 49% of a run and are bound by arithmetic; this CPU has bf16 products at twice the rate. Outputs differ by 0.0031 at most.".into(),
                how: "schwann profile --dtype bf16".into(),
                expected: Figure::predicted(1.2, "×", "roof with bf16 products"),
                measured: Figure::measured(1.07, "×", "60 turns of each"),
                verdict: Verdict::Gain,
            },
            Recommendation {
                title: "Batches of 64".into(),
                evidence: "The sweep's throughput is highest there".into(),
                how: "schwann profile --batch 64".into(),
                expected: Figure::predicted(1.02, "×", "sweep"),
                measured: Figure::measured(1.0, "×", "60 turns of each"),
                verdict: Verdict::None,
            },
            Recommendation {
                title: "Make the hidden size a multiple of 64".into(),
                evidence: "22 command neurons leave 10 of 32 lanes idle".into(),
                how: "AutoNcp::new(64, 16)".into(),
                expected: Figure::predicted(1.08, "×", "lanes in use"),
                measured: gone("×", "profile --prove", "not tried; add --prove"),
                verdict: Verdict::Untested,
            },
        ],
        tuned: None,
        doubts: vec!["5 of 400 samples lie far from the others: something else was running; close it and repeat".into()],
        partial: None,
    }
}

/// A profile where nothing could be had: every figure is unavailable, with the reason; lists that need figures are empty.
pub(crate) fn nothing() -> Profile {
    let mut value = serde_json::to_value(full()).unwrap();
    forget(&mut value);
    let mut profile: Profile = serde_json::from_value(value).unwrap();
    profile.model.name = "nothing known".into();
    profile.commit = None;
    profile.comparisons.clear();
    profile.sweep.clear();
    profile.bottlenecks.clear();
    profile.recommendations.clear();
    profile.compute.ops.iter_mut().for_each(|op| op.bound = Bound::Unknown);
    profile.requirements.iter_mut().for_each(|r| r.met = None);
    profile.doubts = vec!["nothing could be measured here".into()];
    profile
}

fn forget(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) if map.contains_key("provenance") => {
            if map.contains_key("values") {
                map.insert("values".into(), serde_json::json!([]));
            } else {
                map.insert("value".into(), serde_json::Value::Null);
            }
            map.remove("spread");
            map.remove("resolution");
            map.insert("provenance".into(), "unavailable".into());
            map.insert("reason".into(), "there is no instrument here".into());
        }
        serde_json::Value::Object(map) => map.values_mut().for_each(forget),
        serde_json::Value::Array(values) => values.iter_mut().for_each(forget),
        _ => {}
    }
}

/// A profile whose every text is hostile to HTML, XML and JSON.
pub(crate) fn hostile() -> Profile {
    fn poison(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(map) => {
                for (key, value) in map {
                    if !matches!(key.as_str(), "provenance" | "bound" | "verdict" | "ends" | "kind") {
                        poison(value);
                    }
                }
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(poison),
            serde_json::Value::String(text) => *text = format!("\"'><script>alert(1)</script>&\u{1b}[31m\u{0};{text}"),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(full()).unwrap();
    poison(&mut value);
    serde_json::from_value(value).unwrap()
}
