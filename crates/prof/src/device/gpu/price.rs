//! What the counted work of a run costs on a GPU: ranges, each with its reason, and the band that follows.
//!
//! A workgroup takes as long as its busiest thread, one operation after the other, and the GPU can have so many workgroups
//! at a time. That is the longer time for few rows. For many, it is longer until all threads' operations have gone through
//! the arithmetic units. A dispatch takes the longer of the two, and a run the sum of its dispatches, of handing them over,
//! and of what its data takes from memory.

use super::{Dispatched, MOST_LAUNCHES, Tally, Work};
use crate::device::catalog::Entry;
use crate::device::measured::{Compared, Side};
use crate::device::predict::{NEVER_COMPARED, two_digits};
use schwann_core::Figure;
use schwann_core::figure::{Ends, Spread};
use serde::Serialize;

/// Whose measurements the prices of operations are.
const BENCHMARKS: &str = "measured on M1 and M2 by philipturner/metal-benchmarks (GitHub), taken for later chips too";
/// Work is handed over in pieces that take no longer than this, in seconds; what `schwann-gpu` does.
const PIECE_S: f64 = 0.05;

/// Something that a prediction takes for granted: a range, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Assumption {
    /// What is assumed, in words.
    pub what: String,
    /// The more favourable end.
    pub low: f64,
    /// The less favourable end.
    pub high: f64,
    /// Of both ends.
    pub unit: &'static str,
    /// Where the range comes from.
    pub why: String,
}

/// From the more to the less favourable.
type Range = [f64; 2];

/// Seconds for handing a run over and waiting for its end.
const SUBMIT: Range = [30e-6, 250e-6];
/// Seconds for each further dispatch that waits for the one before it.
const LAUNCH: Range = [2e-6, 10e-6];
/// Bytes a second that the host copies at least, into and out of the device's buffers.
const COPY_LEAST: f64 = 5e9;
/// Of the published bandwidth, what a kernel gets.
const BANDWIDTH_SHARE: Range = [0.9, 0.5];
/// Threads that a core has at a time.
const RESIDENT: Range = [3072.0, 384.0];
/// Workgroup memory of a core in bytes.
const CORE_SHARED: f64 = 60.0 * 1024.0;

/// What one operation costs: cycles until its thread goes on, and cycles of an arithmetic unit.
struct Price {
    what: &'static str,
    of: fn(&Tally) -> f64,
    waits: Range,
    takes: Range,
    why: &'static str,
}

/// What the price of functions is called.
const FUNCTION: &str = "an exponential, reciprocal, root or division";

const PRICES: [Price; 6] = [
    Price {
        what: "an operation on floats",
        of: |t| t.floats,
        waits: [2.2, 11.3],
        takes: [1.0, 2.0],
        why: "latency without and with waiting for registers, and throughput",
    },
    Price {
        what: "an operation on whole numbers, mostly for places in memory",
        of: |t| t.integers,
        waits: [0.0, 4.0],
        takes: [0.0, 1.0],
        why: "not published: the device's own compiler leaves out many of them, nobody knows how many",
    },
    Price { what: FUNCTION, of: |t| t.functions, waits: [4.3, 10.7], takes: [4.0, 8.0], why: "latency and throughput" },
    Price {
        what: "a read of the workgroup's memory",
        of: |t| t.shared,
        waits: [2.0, 24.0],
        takes: [1.0, 8.0],
        why: "not published: from reads that overlap to one after the other as on an NVIDIA H200; 64 bytes a cycle and core at the slow end",
    },
    Price {
        what: "a read or write of a buffer, mostly weights in caches",
        of: |t| t.loads + t.stores,
        waits: [4.0, 64.0],
        takes: [1.0, 8.0],
        why: "not published: from reads that overlap to caches that keep a thread waiting; 64 bytes a cycle and core at the slow end",
    },
    Price {
        what: "waiting for all threads of a workgroup",
        of: |t| t.barriers,
        waits: [20.0, 60.0],
        takes: [1.0, 4.0],
        why: "not published: 20 to 44 cycles on an NVIDIA H200, and an allowance",
    },
];

/// One part of a predicted run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuPart {
    /// The node it computes, or what else it is.
    pub name: String,
    /// The kernel; empty where it is none.
    pub kernel: String,
    /// Dispatches of a run.
    pub dispatches: f64,
    /// Workgroups of a dispatch.
    pub workgroups: f64,
    /// Threads of a workgroup.
    pub threads: f64,
    /// Steps of a sequence that one dispatch walks, where it does.
    pub walks: Option<u32>,
    /// Seconds of a run, all dispatches together. Its spread is the band.
    pub time: Figure,
    /// What takes longest in it, in words.
    pub bound: String,
}

/// What a run would take on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuPrediction {
    /// The device.
    pub device: String,
    /// Seconds of a run. Its spread is the band, and its value the band's middle (of logarithms).
    pub time: Figure,
    /// What the time is made of; empty where nothing can be predicted.
    pub parts: Vec<GpuPart>,
    /// Dispatches of a run.
    pub dispatches: Figure,
    /// The published peak, Tflop/s.
    pub peak: Figure,
    /// Of that peak, what a run reaches, in %.
    pub share: Figure,
    /// Tflop/s.
    pub tflops: Figure,
    /// What was taken for granted.
    pub assumptions: Vec<Assumption>,
    /// Whether anybody held such a prediction against the real device.
    pub compared: String,
}

/// A chip's GPU as prices see it.
struct Chip {
    cores: f64,
    lanes: f64,
    hz: f64,
    flops: f64,
    bytes_per_s: f64,
    source: String,
    hz_source: String,
}

impl Chip {
    fn of(entry: &Entry) -> Result<Chip, String> {
        let missing = |what: &str| format!("{what} of {} is not published", entry.name);
        let cores = entry.gpu_cores.first().ok_or_else(|| missing("the number of cores of the GPU"))?;
        let flops = entry.gpu_flops.first().ok_or_else(|| missing("the peak of the GPU"))?;
        let lanes =
            entry.gpu_lanes.first().ok_or_else(|| missing("how many operations a core of the GPU does at a time"))?;
        let memory = entry.memory_bandwidth.first().ok_or_else(|| missing("the memory bandwidth"))?;
        let hz = flops.value * 1e12 / (cores.value * lanes.value * 2.0);
        Ok(Chip {
            cores: cores.value,
            lanes: lanes.value,
            hz,
            flops: flops.value * 1e12,
            bytes_per_s: memory.value * 1e9,
            source: format!(
                "counts of the kernels × prices in cycles; {} cores, {} Tflop/s ({}), {} GB/s; {}",
                cores.value,
                flops.value,
                flops.source,
                memory.value,
                compared(entry)
            ),
            hz_source: format!(
                "its peak of {} Tflop/s ({}) over {} cores with {} multiply-adds each ({})",
                flops.value, flops.source, cores.value, lanes.value, lanes.source
            ),
        })
    }
}

/// Whether anybody held such predictions against a real one.
fn compared(entry: &Entry) -> String {
    Compared::of(&entry.measured, Side::Gpu).map_or(NEVER_COMPARED.into(), |c| c.words)
}

/// Seconds from the more to the less favourable, and whether waiting was longer than working.
fn dispatch_seconds(d: &Dispatched, chip: &Chip) -> (Range, [bool; 2]) {
    let mut range = [0.0; 2];
    let mut waiting = [false; 2];
    for end in 0..2 {
        let sum = |tally: &Tally, cycles: fn(&Price) -> &Range| -> f64 {
            PRICES.iter().map(|p| (p.of)(tally) * cycles(p)[end]).sum()
        };
        let by_threads = (RESIDENT[end] / d.threads).floor();
        let by_memory = if d.shared_bytes > 0.0 { (CORE_SHARED / d.shared_bytes).floor() } else { f64::INFINITY };
        let at_a_time = chip.cores * by_threads.min(by_memory).max(1.0);
        let waits = sum(&d.busiest, |p| &p.waits) * (d.groups / at_a_time).ceil();
        let works = sum(&d.average, |p| &p.takes) * d.groups * d.threads / (chip.cores * chip.lanes);
        range[end] = d.times * waits.max(works) / chip.hz;
        waiting[end] = waits >= works;
    }
    (range, waiting)
}

/// The middle of a band, as logarithms have it.
fn middle([low, high]: Range) -> f64 {
    (low * high).sqrt()
}

fn figure(range: Range, unit: &str, source: &str) -> Figure {
    let spread = Spread { low: range[0], high: range[1], ends: Ends::Band, samples: 0 };
    Figure::predicted(middle(range), unit, source).with_spread(spread)
}

/// What a run's work takes on the GPU of a device; unavailable, with the reason, where the work has no price or too little
/// is published of the device.
pub fn on_gpu(work: Result<&Work, &str>, entry: &Entry) -> GpuPrediction {
    let peak = match entry.gpu_flops.first() {
        Some(p) => p.figure(),
        None => Figure::unavailable("Tflop/s", "GPU", "not published"),
    };
    match (work, Chip::of(entry)) {
        (Ok(work), Ok(chip)) => price(work, &chip, entry, peak),
        (Err(why), _) => unavailable(entry, peak, why),
        (_, Err(why)) => unavailable(entry, peak, &why),
    }
}

fn unavailable(entry: &Entry, peak: Figure, why: &str) -> GpuPrediction {
    let none = |unit: &str| Figure::unavailable(unit, "GPU", why);
    GpuPrediction {
        device: entry.name.clone(),
        time: none("s"),
        parts: vec![],
        dispatches: none("dispatches"),
        peak,
        share: none("%"),
        tflops: none("Tflop/s"),
        assumptions: vec![],
        compared: compared(entry),
    }
}

fn price(work: &Work, chip: &Chip, entry: &Entry, peak: Figure) -> GpuPrediction {
    let mut parts = vec![];
    let mut sum: Range = [0.0; 2];
    let mut add = |part: GpuPart, range: Range, sum: &mut Range| {
        sum[0] += range[0];
        sum[1] += range[1];
        parts.push(part);
    };
    let beside = |name: &str, bound: &str, range: Range| GpuPart {
        name: name.into(),
        kernel: String::new(),
        dispatches: 0.0,
        workgroups: 0.0,
        threads: 0.0,
        walks: None,
        time: figure(range, "s", &chip.source),
        bound: bound.into(),
    };
    for d in &work.dispatches {
        let (range, waiting) = dispatch_seconds(d, chip);
        let bound = match waiting {
            [true, true] => "waiting",
            [false, false] => "arithmetic",
            _ => "cannot tell",
        };
        let part = GpuPart {
            kernel: d.kernel.clone(),
            dispatches: d.times,
            workgroups: d.groups,
            threads: d.threads,
            walks: d.walks,
            ..beside(&d.name, bound, range)
        };
        add(part, range, &mut sum);
    }
    // What the arithmetic hides of the memory's time costs nothing, at best.
    let memory = [0, 1].map(|end| work.bytes / (chip.bytes_per_s * BANDWIDTH_SHARE[end]));
    let memory = [(memory[0] - sum[0]).max(0.0), memory[1]];
    add(beside("memory traffic beside that", "memory", memory), memory, &mut sum);
    let further = (work.launches - 1.0).max(0.0);
    let launches = LAUNCH.map(|s| s * further);
    if further > 0.0 {
        add(beside("further dispatches", "overhead", launches), launches, &mut sum);
    }
    let pieces = [0, 1].map(|end| (work.launches / MOST_LAUNCHES).max(sum[end] / PIECE_S).ceil().max(1.0));
    let handing = [SUBMIT[0] * pieces[0], SUBMIT[1] * pieces[1]];
    add(beside("handing over, waiting for the end", "overhead", handing), handing, &mut sum);
    let copies = [work.handed_bytes / chip.bytes_per_s, work.handed_bytes / COPY_LEAST.min(chip.bytes_per_s)];
    add(beside("inputs in, results out", "memory", copies), copies, &mut sum);
    let apart = Compared::of(&entry.measured, Side::Gpu).map_or(sum, |c| c.widen(middle(sum), sum[0], sum[1]));
    let seen = [apart[0] - sum[0], apart[1] - sum[1]];
    if seen != [0.0; 2] {
        add(beside("what real runs were off", "measured", seen), seen, &mut sum);
    }
    let rate = |scale: f64| [work.flops / sum[1] / scale, work.flops / sum[0] / scale];
    let over = format!("the plan's arithmetic over the predicted time; {}", chip.source);
    GpuPrediction {
        device: entry.name.clone(),
        time: figure(sum, "s", &chip.source),
        parts,
        dispatches: Figure::derived(
            work.launches,
            "dispatches",
            "laid out as schwann-gpu does it, with 32 KiB of workgroup memory",
        ),
        peak,
        share: figure(rate(chip.flops / 100.0), "%", &over),
        tflops: figure(rate(1e12), "Tflop/s", &over),
        assumptions: assumptions(chip, entry),
        compared: compared(entry),
    }
}

/// Everything that the band takes for granted.
fn assumptions(chip: &Chip, entry: &Entry) -> Vec<Assumption> {
    let one = |what: &str, [low, high]: Range, unit: &'static str, why: &str| Assumption {
        what: what.into(),
        low,
        high,
        unit,
        why: why.into(),
    };
    let shared =
        "allowance; reports of Metal users are between some tens and some hundreds, less while the GPU is awake";
    let clock = chip.hz / 1e9;
    let mut all = vec![
        one("handing a run over and waiting for its end", SUBMIT.map(|s| s * 1e6), "µs", shared),
        one(
            "each further dispatch",
            LAUNCH.map(|s| s * 1e6),
            "µs",
            "allowance: it waits until the one before it has ended",
        ),
        one("clock of the GPU", [clock; 2], "GHz", &chip.hz_source),
        one(
            "operations that go through the GPU's cores at a time",
            [chip.cores * chip.lanes; 2],
            "lanes",
            &chip.hz_source,
        ),
    ];
    for p in &PRICES {
        let why =
            if p.why.starts_with("not published") { p.why.to_owned() } else { format!("{}, {BENCHMARKS}", p.why) };
        all.push(one(&format!("{}, until its thread goes on", p.what), p.waits, "cycles", &why));
        all.push(one(&format!("{}, of an arithmetic unit", p.what), p.takes, "cycles", &why));
        if p.what == FUNCTION {
            let rate = p.takes.map(|cycles| chip.cores * chip.lanes * chip.hz / cycles / 1e9);
            all.push(one(
                "functions a second, with all cores busy",
                rate,
                "G/s",
                "follows from clock, cores and these cycles",
            ));
        }
    }
    all.push(one(
        "threads that a core has at a time",
        RESIDENT,
        "threads",
        &format!("by the registers they need, {BENCHMARKS}"),
    ));
    all.push(one("workgroup memory of a core", [CORE_SHARED / 1024.0; 2], "KiB", BENCHMARKS));
    let memory = entry.memory_bandwidth.first().map_or(String::new(), |m| m.source.clone());
    let memory =
        format!("90% to 50% of the published {} GB/s ({memory}), which the CPU shares", chip.bytes_per_s / 1e9);
    all.push(one("memory bandwidth", BANDWIDTH_SHARE.map(|s| s * chip.bytes_per_s / 1e9), "GB/s", &memory));
    let copy = [chip.bytes_per_s / 1e9, COPY_LEAST.min(chip.bytes_per_s) / 1e9];
    all.push(one(
        "copying inputs in and results out",
        copy,
        "GB/s",
        "memory is shared with the CPU: from the chip's bandwidth to a slow copy",
    ));
    all
}

impl Assumption {
    /// The range for people: `30 to 250 µs`, or one number where both ends are the same.
    pub fn range(&self) -> String {
        if self.low == self.high {
            return format!("{} {}", two_digits(self.low), self.unit);
        }
        format!("{} to {} {}", two_digits(self.low), two_digits(self.high), self.unit)
    }
}
