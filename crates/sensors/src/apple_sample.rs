//! Apple silicon above its foreign functions: what a Mac told in an interval is a plain [`AppleSample`], and readings
//! are made of it here, on any platform. `apple` fills it on a Mac; [`AppleReplay`] plays a recording.

use crate::catalogue::NO_ANE_UTILIZATION;
use crate::record::{Error, Lines};
use crate::source::described;
use crate::{Available, Sample, Source};
use schwann_core::Figure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::BufRead;

/// What a Mac told of one interval. What it did not tell is `None`, never 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AppleSample {
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// The chip, such as `Apple M1 Max`.
    pub chip: Option<String>,
    /// A virtual machine: no power, frequencies or temperatures.
    pub virtual_machine: bool,
    /// Mean power of the CPU in watts.
    pub cpu_power_w: Option<f64>,
    /// Mean power of the GPU.
    pub gpu_power_w: Option<f64>,
    /// Mean power of the Neural Engine.
    pub ane_power_w: Option<f64>,
    /// Mean power of memory.
    pub dram_power_w: Option<f64>,
    /// Power of the whole machine.
    pub system_power_w: Option<f64>,
    /// Time that the CPU was not idle, in %.
    pub cpu_load_percent: Option<f64>,
    /// The CPU's clusters, slow to fast.
    pub clusters: Vec<Cluster>,
    /// Time that the GPU was not idle, in %.
    pub gpu_load_percent: Option<f64>,
    /// The GPU's frequency in MHz.
    pub gpu_mhz: Option<f64>,
    /// Mean of the CPU's sensors.
    pub cpu_temperature_c: Option<f64>,
    /// Mean of the GPU's sensors.
    pub gpu_temperature_c: Option<f64>,
    /// Bytes of memory.
    pub ram_total: Option<u64>,
    /// Of which in use.
    pub ram_used: Option<u64>,
    /// Bytes of swap.
    pub swap_total: Option<u64>,
    /// Of which in use.
    pub swap_used: Option<u64>,
    /// Bytes read from memory in the interval, by all of the chip.
    pub dram_read: Option<u64>,
    /// Bytes written to memory in the interval.
    pub dram_written: Option<u64>,
    /// The kernel's level of memory pressure: 1 normal, 2 warning, 4 critical.
    pub pressure_level: Option<u32>,
    /// Whether low power mode is on.
    pub low_power: Option<bool>,
    /// Whether it runs on its battery.
    pub on_battery: Option<bool>,
}

/// Cores of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cluster {
    /// `E` for efficiency, `P` for performance, `S` for super.
    pub label: String,
    /// Its cores.
    pub cores: u32,
    /// Mean frequency in MHz.
    pub mhz: Option<f64>,
    /// Time not idle, in %.
    pub load_percent: Option<f64>,
}

/// Where [`AppleSample`]s come from.
pub trait AppleFeed: Send {
    /// Its name, which goes into the source of each reading.
    fn name(&self) -> &str;

    /// The intervals that ended since the last call, oldest first; none where none did. An error says why there can be
    /// none.
    fn poll(&mut self) -> Result<Vec<AppleSample>, String>;
}

/// Energies by integration: power times the interval's length, unknown from the first interval without power on.
#[derive(Default)]
struct Energy {
    joules: BTreeMap<&'static str, f64>,
    gap: BTreeMap<&'static str, String>,
}

impl Energy {
    fn add(&mut self, part: &'static str, watts: Option<f64>, seconds: f64) {
        match watts {
            Some(watts) => *self.joules.entry(part).or_default() += watts * seconds,
            None => drop(self.gap.entry(part).or_insert_with(|| "an interval had no power to add up".into())),
        }
    }

    fn figure(&self, part: &'static str, power: &Figure, from: &str) -> Figure {
        let source = format!("{part} power added up over time since it was opened ({from})");
        match (self.joules.get(part), self.gap.get(part)) {
            (Some(joules), None) => Figure::derived(*joules, "J", source),
            (_, gap) => {
                let reason = power.reason.clone().or(gap.cloned());
                Figure::unavailable("J", source, reason.unwrap_or_else(|| "no interval has ended yet".into()))
            }
        }
    }
}

/// The source of a Mac's readings.
pub struct Apple {
    feed: Box<dyn AppleFeed>,
    last: Result<AppleSample, String>,
    energy: Energy,
}

impl Apple {
    /// Of this feed; energies count from now.
    pub fn new(feed: impl AppleFeed + 'static) -> Apple {
        let last = Err("no interval has ended yet: take another sample in a moment".into());
        Apple { feed: Box::new(feed), last, energy: Energy::default() }
    }

    fn advance(&mut self) {
        match self.feed.poll() {
            Ok(samples) => {
                for sample in &samples {
                    for (part, watts) in [
                        ("package", package(sample)),
                        ("cpu", sample.cpu_power_w),
                        ("gpu", sample.gpu_power_w),
                        ("ane", sample.ane_power_w),
                        ("dram", sample.dram_power_w),
                        ("system", sample.system_power_w),
                    ] {
                        self.energy.add(part, watts, sample.seconds);
                    }
                }
                // Power is quoted for the time since the sample before, however many intervals that was.
                if let Some(whole) = joined(samples) {
                    self.last = Ok(whole);
                }
            }
            Err(reason) => self.last = Err(reason),
        }
    }

    fn readings(&self) -> BTreeMap<String, Figure> {
        let nothing = AppleSample::default();
        let from = self.feed.name();
        let (sample, problem) = match &self.last {
            Ok(sample) => (sample, None),
            Err(reason) => (&nothing, Some(reason.as_str())),
        };
        let mut readings = readings(sample, from, problem);
        for part in ["package", "cpu", "gpu", "ane", "dram", "system"] {
            let energy = self.energy.figure(part, &readings[&format!("{part}_power")], from);
            readings.insert(format!("{part}_energy"), energy);
        }
        readings
    }
}

impl Source for Apple {
    fn name(&self) -> &str {
        "apple"
    }

    fn describe(&self) -> Vec<Available> {
        described(&self.readings())
    }

    fn sample(&mut self) -> Sample {
        self.advance();
        Sample::new(self.readings())
    }
}

/// Runs what may panic, and makes an error of it: a sensor must not end the program that it serves.
pub fn guarded<T>(what: &str, f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
        Err(format!("{what} does not know this chip: it gave up ({text})"))
    })
}

/// Several intervals, oldest first, as one: means over the time of all of them, sums of what was counted, and the last
/// of what is of a moment. What one of them lacks, the whole lacks.
fn joined(samples: Vec<AppleSample>) -> Option<AppleSample> {
    let seconds: f64 = samples.iter().map(|s| s.seconds).sum();
    let mean = |pick: &dyn Fn(&AppleSample) -> Option<f64>| {
        let sum: Option<f64> = samples.iter().map(|s| Some(pick(s)? * s.seconds)).sum();
        sum.map(|s| s / seconds).filter(|m| m.is_finite())
    };
    let total = |pick: fn(&AppleSample) -> Option<u64>| samples.iter().map(pick).sum::<Option<u64>>();
    let mut whole = samples.last()?.clone();
    if samples.len() == 1 {
        return Some(whole);
    }
    whole.cpu_power_w = mean(&|s| s.cpu_power_w);
    whole.gpu_power_w = mean(&|s| s.gpu_power_w);
    whole.ane_power_w = mean(&|s| s.ane_power_w);
    whole.dram_power_w = mean(&|s| s.dram_power_w);
    whole.system_power_w = mean(&|s| s.system_power_w);
    whole.cpu_load_percent = mean(&|s| s.cpu_load_percent);
    whole.gpu_load_percent = mean(&|s| s.gpu_load_percent);
    whole.gpu_mhz = mean(&|s| s.gpu_mhz);
    for (i, cluster) in whole.clusters.iter_mut().enumerate() {
        cluster.mhz = mean(&|s| s.clusters.get(i)?.mhz);
        cluster.load_percent = mean(&|s| s.clusters.get(i)?.load_percent);
    }
    whole.dram_read = total(|s| s.dram_read);
    whole.dram_written = total(|s| s.dram_written);
    whole.seconds = seconds;
    Some(whole)
}

const NO_TRAFFIC: &str =
    "the memory controller's counters (IOReport, AMC Stats) are closed to programs on this chip or this macOS";

/// CPU, GPU and Neural Engine together, where all three are known.
fn package(sample: &AppleSample) -> Option<f64> {
    Some(sample.cpu_power_w? + sample.gpu_power_w? + sample.ane_power_w?)
}

/// Figures of a sample; `problem` is why there is none at all.
fn readings(sample: &AppleSample, from: &str, problem: Option<&str>) -> BTreeMap<String, Figure> {
    let chip = sample.chip.as_deref().unwrap_or("Apple silicon");
    let mean = format!("{from} on {chip}, mean of {:.2} s", sample.seconds);
    let moment = format!("{from} on {chip}");
    let (level, mode) = (format!("{from}, kern.memorystatus_vm_pressure_level"), format!("{from}, pmset"));
    let why = |reason: &str| match problem {
        Some(problem) => problem.to_string(),
        None if sample.virtual_machine => format!("a virtual machine is not told ({reason})"),
        None => reason.to_string(),
    };
    let figure = |value: Option<f64>, unit: &str, source: &str, reason: &str| match value {
        Some(value) => Figure::measured(value, unit, source),
        None => Figure::unavailable(unit, source, why(reason)),
    };
    let watts =
        |value, channel: &str| figure(value, "W", &mean, &format!("IOReport has no energy counter of {channel} here"));
    let bytes = |value: Option<u64>| figure(value.map(|v| v as f64), "B", &moment, "macOS did not tell it");
    let percent = |value| figure(value, "%", &mean, "IOReport has no residencies of it here");
    let hertz = |mhz: Option<f64>| figure(mhz.map(|m| m * 1e6), "Hz", &mean, "IOReport has no frequency of it here");
    let degrees = |value| figure(value, "°C", &moment, "no temperature sensor of it was found");
    let flag = |value: Option<bool>, reason| figure(value.map(|v| f64::from(u8::from(v))), "flag", &mode, reason);
    let unified = match problem {
        Some(problem) => Figure::unavailable("flag", from, problem),
        None => Figure::derived(1.0, "flag", format!("{moment}: CPU, GPU and Neural Engine share one memory")),
    };

    let (cpu, gpu, ane) = (
        watts(sample.cpu_power_w, "the CPU"),
        watts(sample.gpu_power_w, "the GPU"),
        watts(sample.ane_power_w, "the Neural Engine"),
    );
    let package = cpu.derive2(&gpu, "W", "cpu_power + gpu_power", |c, g| c + g);
    let package = package.derive2(&ane, "W", "cpu_power + gpu_power + ane_power", |p, a| p + a);
    let traffic = sample.dram_read.zip(sample.dram_written).filter(|_| sample.seconds > 0.0);
    let traffic = traffic.map(|(read, written)| (read as f64 + written as f64) / sample.seconds);
    let cores: u32 = sample.clusters.iter().map(|c| c.cores).fold(0, u32::saturating_add);
    let cores = figure((cores > 0).then_some(f64::from(cores)), "count", &moment, "macOS did not tell it");
    let weighted = |pick: fn(&Cluster) -> Option<f64>| {
        let (mut sum, mut cores) = (0.0, 0.0);
        for cluster in &sample.clusters {
            sum += pick(cluster)? * f64::from(cluster.cores);
            cores += f64::from(cluster.cores);
        }
        (cores > 0.0).then(|| sum / cores)
    };
    let mean_hz = hertz(weighted(|c| c.mhz));
    let mean_hz = mean_hz.derive("Hz", format!("mean of the cores ({mean})"), |hz| hz);
    let available =
        bytes(sample.ram_total).derive2(&bytes(sample.ram_used), "B", "memory less what is in use", |t, u| t - u);
    let own_memory = || Figure::unavailable("B", &moment, why("CPU and GPU share one memory: see `memory_available`"));

    let mut readings: BTreeMap<String, Figure> = [
        ("cpu_power", cpu),
        ("gpu_power", gpu),
        ("ane_power", ane),
        ("package_power", package),
        ("dram_power", watts(sample.dram_power_w, "memory")),
        ("system_power", figure(sample.system_power_w, "W", &moment, "the system controller (SMC) does not tell it")),
        ("ane_utilization", Figure::unavailable("%", &moment, why(NO_ANE_UTILIZATION))),
        ("cpu_load", percent(sample.cpu_load_percent)),
        ("cpu_cores", cores),
        ("cpu_frequency", mean_hz),
        ("gpu_load", percent(sample.gpu_load_percent)),
        ("gpu_frequency", hertz(sample.gpu_mhz)),
        ("gpu_memory_used", own_memory()),
        ("gpu_memory_total", own_memory()),
        ("temperature_cpu", degrees(sample.cpu_temperature_c)),
        ("temperature_gpu", degrees(sample.gpu_temperature_c)),
        ("memory_total", bytes(sample.ram_total)),
        ("memory_available", available),
        ("swap_total", bytes(sample.swap_total)),
        ("swap_used", bytes(sample.swap_used)),
        ("dram_bandwidth", figure(traffic, "B/s", &mean, NO_TRAFFIC)),
        (
            "memory_pressure_level",
            figure(sample.pressure_level.map(f64::from), "level", &level, "the kernel did not tell it"),
        ),
        ("power_saving", flag(sample.low_power, "pmset tells no power mode")),
        ("on_battery", flag(sample.on_battery, "pmset tells no source of power")),
        ("unified_memory", unified),
    ]
    .map(|(name, figure)| (name.to_string(), figure))
    .into();
    for cluster in &sample.clusters {
        let label: String = cluster.label.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
        let label = if label.is_empty() { "x".into() } else { label.to_ascii_lowercase() };
        readings.insert(format!("cpu_{label}_frequency"), hertz(cluster.mhz));
        readings.insert(format!("cpu_{label}_load"), percent(cluster.load_percent));
    }
    readings
}

/// Bytes read and written by the whole chip, from the channels of `AMC Stats`, `Perf Counters`: name and value. The
/// sums are in `DCS RD` and `DCS WR`, a pair for each die; other channels are parts of them. `None` where the sums are
/// missing or broken (macOS gives the least integer for a counter that it keeps to itself).
pub fn dram_bytes<'a>(channels: impl IntoIterator<Item = (&'a str, i64)>) -> Option<(u64, u64)> {
    let (mut read, mut written) = (None, None);
    for (name, value) in channels {
        // `DIE_0_DCS RD`, `DIE0 DCS RD`, …
        let sum = match name.strip_prefix("DIE") {
            Some(rest) => rest.trim_start_matches(|c: char| c == '_' || c == ' ' || c.is_ascii_digit()),
            None => name,
        };
        let total: &mut Option<u64> = match sum {
            "DCS RD" => &mut read,
            "DCS WR" => &mut written,
            _ => continue,
        };
        *total = Some(total.unwrap_or(0).checked_add(u64::try_from(value).ok()?)?);
    }
    read.zip(written)
}

/// Which parts IOReport counts the energy of. A part that it does not count reads as 0 W, which is not its power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The GPU.
    pub gpu: bool,
    /// The Neural Engine.
    pub ane: bool,
    /// Memory.
    pub dram: bool,
}

/// Which parts these channels are of: group, name and unit of each.
pub fn present<'a>(channels: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>) -> Present {
    let mut present = Present::default();
    for (group, name, unit) in channels {
        if !matches!(unit.trim(), "mJ" | "uJ" | "nJ") {
            continue;
        }
        let model = group == "Energy Model";
        present.gpu |= model && name == "GPU Energy";
        present.ane |= (model || group == "PMP") && name.starts_with("ANE");
        present.dram |= model && name.starts_with("DRAM");
    }
    present
}

/// Low power mode, and whether the battery is in use, from what `pmset -g` and `pmset -g batt` print.
pub fn low_power_mode(settings: &str, battery: &str) -> (Option<bool>, Option<bool>) {
    let mode = settings.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        match (words.next()?, words.next()?) {
            ("lowpowermode" | "powermode", "1") => Some(true),
            ("lowpowermode" | "powermode", "0" | "2") => Some(false),
            _ => None,
        }
    });
    let source = battery.lines().find_map(|line| line.split_once("drawing from '"));
    let on_battery = source.and_then(|(_, rest)| match rest.split('\'').next()? {
        "AC Power" => Some(false),
        "Battery Power" => Some(true),
        _ => None,
    });
    (mode, on_battery)
}

/// A recording of [`AppleSample`]s, one a call.
pub struct AppleReplay<R> {
    lines: Lines<R, AppleSample>,
    name: String,
}

impl<R: BufRead> AppleReplay<R> {
    /// What a recording of them is called in its first line.
    pub const KIND: &str = "apple";

    /// Reads the first line.
    pub fn new(input: R) -> Result<AppleReplay<R>, Error> {
        let lines = Lines::new(input, Self::KIND)?;
        let name = format!("a recording ({})", lines.note);
        Ok(AppleReplay { lines, name })
    }
}

impl<R: BufRead + Send> AppleFeed for AppleReplay<R> {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll(&mut self) -> Result<Vec<AppleSample>, String> {
        match self.lines.next() {
            Ok(Some((line, sample))) if !(sample.seconds > 0.0 && sample.seconds.is_finite()) => {
                Err(format!("the recording's line {line} has an interval of {} s", sample.seconds))
            }
            Ok(Some((_, sample))) => Ok(vec![sample]),
            Ok(None) => Err("the recording is over".into()),
            Err(error) => Err(format!("the recording cannot be read further: {error}")),
        }
    }
}
