//! A device as predictions see it: what a unit of work costs there, and how sure that is.
//!
//! The calibrated machine has its own prices. Those of a catalogued one are scaled from it by what is published, in a more
//! and a less favourable way.

use super::{NEVER_COMPARED, two_digits};
use crate::device::calibrate::Calibration;
use crate::device::catalog::Entry;
use crate::device::fit::{Counted, Kind, Prices, Target, Unit};
use crate::device::measured::{Compared, Side};
use crate::device::roof::words;
use schwann_core::Figure;
use schwann_kernels::tuning::{MachineClass, Tuning};

/// What a chip that this does not run on is tuned with.
const TUNING: Tuning = Tuning::for_machine(MachineClass::Portable);

/// No prediction claims to be nearer than this, a logarithm of the ratio.
const LEAST_ERROR: f64 = 0.1;
/// What speaks against a calibration widens the band by so many times.
const DISTURBED: f64 = 2.0;
/// A condition number of the fit above this is worth a word.
const ILL: f64 = 1e4;
/// Cores of another design do the same work in so many times as long, or as short. An allowance: nobody measured it.
const DESIGN: f64 = 1.5;
/// How far a published measurement of a core's bandwidth may be off, as a factor. An allowance, too.
const PUBLISHED: f64 = 1.2;

/// A memory level as predictions see it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reach {
    pub(super) capacity: Option<usize>,
    pub(super) bytes_per_s: f64,
}

/// Kinds of work: those of [`Kind`], and bytes from beyond the second-level cache.
pub(super) const KINDS: usize = 5;
pub(super) const FAR: usize = 4;

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
    /// What the prices rest on.
    pub source: String,
    /// Why the band is as wide as it is.
    pub reasons: Vec<String>,
    pub(super) prices: Prices,
    pub(super) target: Target,
    /// Cache sizes to count with for the band's high end, where the device's own are not known.
    pub(super) small: Option<Target>,
    pub(super) levels: Vec<Reach>,
    /// How many times as fast these threads are as one, at best.
    parallel: f64,
    /// Times of each kind of work at the band's ends, over the likely ones.
    pub(super) low: [f64; KINDS],
    pub(super) high: [f64; KINDS],
    /// Graphs that the errors were found with.
    pub(super) samples: u64,
    /// How such predictions compare with a real device, where somebody measured one.
    pub(super) compared: Option<Compared>,
}

impl Speed {
    /// The calibrated machine.
    pub fn host(calibration: &Calibration, threads: usize) -> Speed {
        let roof = calibration.roof(threads);
        let (error, mut reasons) = calibration_error(calibration);
        let (factor, parallel) = (error.exp(), parallel(calibration, threads));
        let target = calibration.target();
        if target.l1.is_none() || target.l2.is_none() {
            reasons
                .push("the sizes of this machine's caches are not known: weights have one price at every size".into());
        }
        let mut speed = Speed {
            device: calibration.fingerprint.cpu.clone(),
            host: true,
            threads,
            peak_flops: roof.flops,
            source: format!("{}, prices of each unit of work fitted to a suite of small graphs", calibration.source()),
            reasons,
            prices: calibration.prices.clone(),
            target,
            small: None,
            levels: reaches(calibration, threads),
            parallel,
            low: [1.0 / factor; KINDS],
            high: [factor; KINDS],
            samples: calibration.suite.len() as u64,
            compared: None,
        };
        speed.several_threads();
        speed
    }

    /// A catalogued device, scaled from the calibrated machine; the reason where too little is published of it.
    pub fn catalogued(entry: &Entry, calibration: &Calibration, threads: usize) -> Result<Speed, String> {
        let core = entry.core_flops();
        let missing = |what: &str| format!("{what} of {} is not known", entry.name);
        let clock = entry.clock.first().ok_or_else(|| missing("the clock"))?;
        let per_core =
            core.value.ok_or_else(|| core.reason.clone().unwrap_or_else(|| missing("the peak of a core")))?;
        let chip = entry.memory_bandwidth.first().ok_or_else(|| missing("the memory bandwidth"))?;
        let host = calibration.limits(1).ok_or("the calibration has no limits")?;
        let cores = entry.performance_cores.first().map_or(1.0, |c| c.value);
        let parallel = (threads.max(1) as f64).min(cores);
        let peak = per_core / host.flops_per_s;
        let tempo = clock.value * 1e9 / calibration.clock_hz;
        let scale = |kind: Kind| match kind {
            Kind::Compute | Kind::Functions | Kind::Cache => Some(peak),
            Kind::Overhead => Some(tempo),
            // Nothing that is published tells how fast it is there.
            Kind::Narrow => None,
        };
        let scaled = |(unit, price): (&Unit, &f64)| Some((*unit, price / scale(unit.kind())?));
        let prices = calibration.prices.iter().filter_map(scaled).collect();
        let (error, mut reasons) = calibration_error(calibration);
        let (better, worse) = (peak.max(tempo), peak.min(tempo));
        let widened = |scale: f64| (scale / better / DESIGN / error.exp(), scale / worse * DESIGN * error.exp());
        let [(low, high), (overhead_low, overhead_high)] = [widened(peak), widened(tempo)];
        reasons.push(format!(
            "work was scaled by the peak of a core (× {}) and calls by its clock (× {}); the band reaches from the better of \
             the two for everything to the worse, and × {DESIGN} either way for a core of another design",
            two_digits(peak),
            two_digits(tempo)
        ));
        reasons.push("the plan is the one for this machine's registers".into());
        let (memory, fastest, slowest, how) = memory(entry, chip.value, calibration, threads, &mut reasons);
        let own = Target { l1: entry.l1_bytes(), l2: entry.l2_bytes(), ..calibration.target() };
        let small = (own.l1.is_none() || own.l2.is_none()).then(|| {
            reasons.push(format!(
                "cache sizes of {} are not published: the band reaches from weights that all lie near to caches as small as \
                 this machine's",
                entry.name
            ));
            let host = calibration.target();
            Target { l1: own.l1.or(host.l1), l2: own.l2.or(host.l2), ..host }
        });
        // Caches at the host's speed, scaled; beyond the last that is known, main memory.
        let near = ["L1", "L2"].into_iter().zip([own.l1, own.l2]).filter_map(|(name, capacity)| {
            let level = host.levels.iter().find(|l| l.name == name)?;
            let bytes_per_s = (level.bytes_per_s() * peak * parallel).max(memory);
            Some(Reach { capacity: Some(capacity?), bytes_per_s })
        });
        let mut levels: Vec<Reach> = near.collect();
        levels.push(Reach { capacity: None, bytes_per_s: memory });
        let compared = Compared::of(&entry.measured, Side::Cpu);
        if let Some(compared) = &compared {
            reasons.push(format!("{}: the band is at least that wide", compared.words));
        }
        let source = format!(
            "scaled from the {}: arithmetic, functions and caches × {peak:.2} (peak of a fast core, {}), overhead × {tempo:.2} \
             (clock), {how}; {}",
            calibration.source(),
            core.source,
            compared.as_ref().map_or(NEVER_COMPARED, |c| c.words.as_str()),
        );
        let mut speed = Speed {
            device: entry.name.clone(),
            host: false,
            threads,
            peak_flops: core
                .derive("flop/s", format!("{}, {} on fast cores", core.source, words(threads)), |f| f * parallel),
            source,
            reasons,
            prices,
            target: own,
            small,
            levels,
            parallel,
            low: [low, low, low, overhead_low, memory / fastest],
            high: [high, high, high, overhead_high, memory / slowest],
            samples: calibration.suite.len() as u64,
            compared,
        };
        speed.several_threads();
        Ok(speed)
    }

    /// How well threads share the work is not priced: at the high end they bring half of what they could.
    fn several_threads(&mut self) {
        if self.parallel > 1.0 {
            let half = self.parallel / (1.0 + (self.parallel - 1.0) / 2.0);
            self.high.iter_mut().for_each(|h| *h *= half);
            self.reasons.push(format!(
                "how well {} share the work is not priced: at the high end they bring half of what they could",
                words(self.threads)
            ));
        }
    }

    /// Seconds a byte beyond the second-level cache, over a working set of so many bytes.
    pub(super) fn far_price(&self, working_set: usize) -> Option<f64> {
        let set = working_set.max(self.target.l2.map_or(0, |l2| l2 + 1));
        self.levels.iter().find(|l| l.capacity.is_none_or(|c| set <= c)).map(|l| 1.0 / l.bytes_per_s)
    }

    /// Seconds of a step by kind of work, or why it has no price.
    pub(super) fn seconds(&self, step: &Counted<'_>) -> Result<[f64; KINDS], String> {
        if let Some(why) = &step.unpriced {
            return Err(why.clone());
        }
        let name = |unit: Unit| match unit.kind() {
            Kind::Narrow if !self.host => format!(
                "how fast {} multiplies types narrower than f32 is not published (`{}`, {})",
                self.device, step.step.name, step.step.kernel
            ),
            _ => format!("the calibration has no price for {unit:?} of `{}`", step.step.kernel),
        };
        let mut by = [0.0f64; KINDS];
        let beyond = || {
            let set = schwann_core::plan::bytes(step.working_set as u64);
            format!("`{}` works in {set}, and the speed of memory beyond the caches was not measured", step.step.name)
        };
        for (&unit, n) in &step.counts {
            if unit == Unit::RowByteFar {
                let near = self.prices.get(&Unit::RowByteL2).copied().ok_or_else(|| name(unit))?;
                let far = self.far_price(step.working_set).ok_or_else(beyond)?;
                by[if far > near { FAR } else { kind_index(Kind::Cache) }] += n * near.max(far);
            } else {
                by[kind_index(unit.kind())] += n * self.prices.get(&unit).copied().ok_or_else(|| name(unit))?;
            }
        }
        let parallel = match step.blocks {
            // Blocks are dealt out whole: three blocks on two threads take as long as two on one.
            Some(blocks) => (blocks as f64 / blocks.div_ceil(self.threads.max(1)).max(1) as f64).min(self.parallel),
            None => {
                let cost = &step.step.cost;
                let each = TUNING.transcendental_operations() as f64;
                let work = cost.flops as f64 + each * cost.transcendentals as f64;
                self.parallel.min((work / TUNING.loop_thread_operations_least() as f64).floor()).max(1.0)
            }
        };
        by.iter_mut().for_each(|s| *s /= parallel);
        // Data that no near cache holds comes no faster than its level gives it.
        let own = step.step.cost.bytes();
        let set = step.working_set.max(usize::try_from(own).unwrap_or(usize::MAX));
        if step.step.looped.is_none() && self.target.l2.is_some_and(|l2| set > l2) {
            let least = own as f64 * step.calls * self.far_price(set).ok_or_else(beyond)?;
            let total: f64 = by.iter().sum();
            if least > total {
                by[FAR] += least - total;
            }
        }
        Ok(by)
    }
}

/// The error of a machine's own prices, a logarithm of the ratio, and where it comes from.
fn calibration_error(c: &Calibration) -> (f64, Vec<String>) {
    let percent = |e: f64| format!("{:.0}%", 100.0 * e.exp_m1());
    let mut reasons = vec![format!(
        "prices give nine of ten graphs that they were not fitted to within {} (condition number {:.0})",
        percent(c.held_back_error),
        c.condition
    )];
    let mut error = c.held_back_error.max(LEAST_ERROR);
    if c.condition.is_nan() || c.condition > ILL {
        reasons.push(
            "the suite hardly tells some of the prices apart: single operations are less sure than their sum".into(),
        );
    }
    let doubts = c.conditions.doubts();
    if !doubts.is_empty() {
        error *= DISTURBED;
        reasons.push(format!("the calibration was disturbed: {}", doubts.join("; ")));
    }
    if c.pace == crate::device::Pace::Quick {
        error *= DISTURBED;
        reasons.push("the calibration is a quick one, and rough".into());
    }
    (error, reasons)
}

fn parallel(calibration: &Calibration, threads: usize) -> f64 {
    match (calibration.limits(1), calibration.limits(threads)) {
        (Some(one), Some(all)) => (all.flops_per_s / one.flops_per_s).clamp(1.0, threads.max(1) as f64),
        _ => 1.0,
    }
}

/// Memory as so many threads of the calibrated machine reach it: never more than one thread's, times the threads.
fn reaches(calibration: &Calibration, threads: usize) -> Vec<Reach> {
    let one = calibration.limits(1).map(|l| &l.levels[..]).unwrap_or_default();
    let all = calibration.limits(threads).map(|l| &l.levels[..]).unwrap_or_default();
    let reach = |l: &crate::device::roof::Level| {
        let alone =
            one.iter().find(|o| o.name == l.name).map_or(f64::INFINITY, crate::device::roof::Level::bytes_per_s);
        Reach { capacity: l.capacity_bytes, bytes_per_s: l.bytes_per_s().min(alone * threads.max(1) as f64) }
    };
    all.iter().map(reach).collect()
}

/// B/s of main memory for so many threads of a device: likely, at most and at least, and how that is known.
fn memory(
    entry: &Entry,
    chip_gbps: f64,
    calibration: &Calibration,
    threads: usize,
    reasons: &mut Vec<String>,
) -> (f64, f64, f64, String) {
    let (chip, threads) = (chip_gbps * 1e9, threads.max(1) as f64);
    if let Some((core, source)) = entry.latest(|m| m.core_bandwidth) {
        let likely = (core * threads).min(chip);
        let how = format!("memory {} GB/s a core ({source}), {chip_gbps} for the chip", two_digits(core / 1e9));
        return (likely, likely * PUBLISHED, likely / PUBLISHED, how);
    }
    if let Some(core) = entry.core_bandwidth.first() {
        let likely = (core.value * 1e9 * threads).min(chip);
        let how = format!("memory {} GB/s a core ({}), {chip_gbps} for the chip", core.value, core.source);
        reasons.push(format!(
            "memory: a core's {} GB/s are somebody else's measurement, taken as right to a factor of {PUBLISHED}",
            core.value
        ));
        return (likely, likely * PUBLISHED, likely / PUBLISHED, how);
    }
    let here = calibration.limits(1).and_then(|l| l.levels.iter().find(|l| l.capacity_bytes.is_none()));
    let likely = here.map_or(chip / 2.0, |l| (l.bytes_per_s() * threads).min(chip));
    reasons.push(format!(
        "what one core of {} can have of the chip's {chip_gbps} GB/s is not published: from half of this machine's core to \
         all of the chip's",
        entry.name
    ));
    let from = if here.is_some() { "as a core of this machine" } else { "half of the chip's" };
    (likely, chip, likely / 2.0, format!("memory {} GB/s ({from}), {chip_gbps} for the chip", two_digits(likely / 1e9)))
}

pub(super) fn kind_index(kind: Kind) -> usize {
    match kind {
        Kind::Compute | Kind::Narrow => 0,
        Kind::Functions => 1,
        Kind::Cache => 2,
        Kind::Overhead => 3,
    }
}
