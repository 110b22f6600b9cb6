//! Made-up moments, for tests of what shows them: a model of seven operations on a machine with four cores, of which some tell little.

use super::{About, Latency, Memory, Moment, Operation, Work};
use schwann_core::Figure;
use std::collections::BTreeMap;

const OPERATIONS: [(&str, &str, f64); 7] = [
    ("cfc.inter.gate", "gated cell 32×3·29×37 less 240 weights, batch-last", 41.0),
    ("cfc.command.gate", "gated cell 32×3·19×45 less 310 weights, batch-last", 27.0),
    ("cfc.motor.gate", "gated cell 32×3·16×35 less 190 weights, batch-last", 16.0),
    ("cfc.steps", "the loop itself: rows in, rows out, states", 8.0),
    ("head", "gemm packed 32×16×4 + bias", 5.0),
    ("head.act", "map of 2 operations", 2.0),
    ("call", "the call itself: checks, inputs, outputs", 1.0),
];

/// What is watched.
pub fn about() -> About {
    About {
        model: "wired-cfc".into(),
        program: "controller".into(),
        pid: 4242,
        machine: "AMD EPYC Processor".into(),
        backend: "cpu (avx512bf16)".into(),
        threads: 2,
        sizes: BTreeMap::from([("B".into(), 32), ("T".into(), 16)]),
        began_s: 1.79e9,
        every_s: 1.0,
        deadline_s: Some(250e-6),
        flops_roof: Figure::measured(119e9, "flop/s", "multiply-adds in registers, 2 threads"),
        bandwidth_roof: Figure::measured(21.4e9, "B/s", "reading memory, 2 threads"),
    }
}

/// A number between 0 and 1 that is as good as random and always the same.
fn chance(number: u64, salt: u64) -> f64 {
    let mut x = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 31;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 29;
    (x >> 11) as f64 / (1u64 << 53) as f64
}

/// One moment of so many seconds. It is slower for a while each minute, and misses its deadline then.
pub fn moment(number: u64, every_s: f64) -> Moment {
    let at = (number + 1) as f64 * every_s;
    let slow = (40.0..46.0).contains(&(at % 60.0));
    let wave = (at / 9.0).sin() * 0.06;
    let p50 = 128e-6 * (1.0 + wave + chance(number, 1) * 0.03 + if slow { 0.35 } else { 0.0 });
    let p99 = p50 * (1.25 + chance(number, 2) * 0.3 + if slow { 0.5 } else { 0.0 });
    let misses = if p99 > 250e-6 { (chance(number, 3) * 9.0).ceil() } else { 0.0 };
    let measured = |v: f64, unit: &str| Figure::measured(v, unit, "the clock around each run");
    let derived = |v: f64, unit: &str| Figure::derived(v, unit, "counts by shapes, over the time of runs");
    let latency = Latency {
        runs: measured((every_s / p50 * 0.93).round(), "runs"),
        total: measured((at / 130e-6 * 0.93).round(), "runs"),
        rate: derived(0.93 / p50, "runs/s"),
        busy: derived(93.0 + chance(number, 4) * 4.0, "%"),
        min: measured(p50 * 0.94, "s"),
        p50: measured(p50, "s"),
        p95: measured(p50 * 1.12, "s"),
        p99: measured(p99, "s"),
        max: measured(p99 * (1.3 + chance(number, 5)), "s"),
        misses: measured(misses, "misses"),
        misses_total: measured((at / 60.0).floor() * 21.0 + misses, "misses"),
    };
    let flops = 7.1e6 / p50;
    let work = Work {
        flops: derived(flops, "flop/s"),
        bandwidth: derived(168e3 / p50, "B/s"),
        roof_share: derived(flops / 119e9 * 100.0, "%"),
    };
    let operation = |(i, (name, kernel, share)): (usize, &(&str, &str, f64))| {
        let share = share * (1.0 + (chance(number, 20 + i as u64) - 0.5) * 0.1);
        Operation {
            name: (*name).into(),
            kernel: (*kernel).into(),
            time: derived(p50 * share / 100.0, "s"),
            share: derived(share, "%"),
        }
    };
    let rss = 37.0 * 1_048_576.0 + (at / 30.0).floor() * 65_536.0;
    Moment {
        number,
        at_s: at,
        span_s: every_s,
        latency,
        work,
        operations: OPERATIONS.iter().enumerate().map(operation).collect(),
        operations_reason: None,
        memory: Memory {
            arena: Figure::derived(42_598.0, "B", "the plan's arena"),
            weights: Figure::derived(58_368.0, "B", "packed weights of the program"),
            pool: Figure::unavailable("B", "the pool", "the watched program uses no pool"),
            rss: Figure::measured(rss, "B", "/proc/4242/statm"),
        },
        machine: machine(number, slow),
        alerts: if slow { vec!["latency_p99 > 250us for 2s".into()] } else { vec![] },
    }
}

fn machine(number: u64, slow: bool) -> BTreeMap<String, Figure> {
    let mut out = BTreeMap::new();
    let proc = "/proc/stat";
    for core in 0..4u64 {
        let busy = if core < 2 { 88.0 } else { 9.0 } + chance(number, 40 + core) * 11.0;
        let clock = if slow { 2.1e9 } else { 3.3e9 } + chance(number, 50 + core) * 2e8;
        out.insert(format!("cpu{core}_load"), Figure::measured(busy, "%", proc));
        out.insert(format!("cpu{core}_frequency"), Figure::measured(clock, "Hz", "cpufreq"));
    }
    let temperature = 61.0 + (number as f64 / 20.0).sin() * 6.0;
    for (name, value, unit, source) in [
        ("cpu_load", 52.0 + chance(number, 60) * 6.0, "%", proc),
        ("cpu_frequency", if slow { 2.2e9 } else { 3.4e9 }, "Hz", "cpufreq"),
        ("cpu_cores", 4.0, "count", proc),
        ("temperature_cpu", temperature, "°C", "hwmon k10temp Tctl"),
        ("memory_total", 16.0 * 1024f64.powi(3), "B", "/proc/meminfo"),
        ("memory_available", 9.2 * 1024f64.powi(3), "B", "/proc/meminfo"),
        ("memory_pressure", 0.0, "%", "/proc/pressure/memory"),
        ("swap_used", 0.0, "B", "/proc/meminfo"),
        ("threads", 3.0, "count", "/proc/self/status"),
    ] {
        out.insert(name.into(), Figure::measured(value, unit, source));
    }
    let none = [
        (
            "package_power",
            "W",
            "powercap",
            "/sys/class/powercap/intel-rapl:0/energy_uj: permission denied; run as root, or `chmod a+r` it",
        ),
        (
            "gpu_load",
            "%",
            "NVML",
            "no GPU was found that tells it: NVIDIA's are read through NVML, Apple's through macmon",
        ),
        (
            "gpu_power",
            "W",
            "NVML",
            "no GPU was found that tells it: NVIDIA's are read through NVML, Apple's through macmon",
        ),
        (
            "temperature_gpu",
            "°C",
            "NVML",
            "no GPU was found that tells it: NVIDIA's are read through NVML, Apple's through macmon",
        ),
        ("ane_power", "W", "macmon", "only macOS on Apple silicon tells it"),
        (
            "dram_bandwidth",
            "B/s",
            "memory controller",
            "it is counted by the memory controller, whose counters are the whole machine's and kept for administrators",
        ),
    ];
    for (name, unit, source, reason) in none {
        out.insert(name.into(), Figure::unavailable(unit, source, reason));
    }
    out
}
