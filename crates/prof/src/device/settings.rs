//! Settings for a device: batch, hidden size and backbone, each with the rule it follows; and a test of the rule.
//!
//! The guides recommend sizes for the M1 family and a rule for all: powers of two, multiples of 64. The recommendations
//! are carried over to other devices by memory bandwidth. The rule is a hypothesis here, and [`test_sizes`] tries it on
//! this machine.

use super::calibrate::Calibration;
use super::catalog::{Catalog, Entry};
use super::cpu::Processor;
use super::roof::{Ready, numbers};
use super::{Error, Progress, Result};
use crate::models::INPUTS;
use crate::stats::verdict::{Question, Reading};
use crate::stats::{self, Interval};
use schwann_core::figure::{Ends, Spread};
use schwann_core::pass::PassOptions;
use schwann_core::{DType, Figure};
use schwann_nn::{Cfc, GraphOptions, InitialState, Model};
use serde::Serialize;

/// A recommended range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The least.
    pub low: Figure,
    /// The most.
    pub high: Figure,
    /// The rule it follows.
    pub rule: String,
}

/// Recommended sizes of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// The device.
    pub device: String,
    /// Sequences in a batch.
    pub batch: Setting,
    /// Hidden units.
    pub hidden: Setting,
    /// Units of each layer of the backbone.
    pub backbone: Vec<Figure>,
    /// What the guides say of all sizes; a hypothesis, see [`test_sizes`].
    pub hypothesis: String,
}

/// The guides' rule.
pub const HYPOTHESIS: &str = "sizes that are powers of two or multiples of 64 are fastest (the guides' rule, not tested for this device; \
     `schwann devices settings --test` tries it on this machine)";

impl Settings {
    /// The batch size to begin with: the least of the range.
    pub fn get_optimal_batch_size(&self) -> Option<usize> {
        self.batch.low.value.map(|v| v as usize)
    }

    /// The backbone's layers.
    pub fn get_optimal_backbone(&self) -> Vec<usize> {
        self.backbone.iter().filter_map(|f| f.value).map(|v| v as usize).collect()
    }
}

/// Settings for a catalogued device: its own where the catalogue has them, else those of the device that has some and
/// comes nearest below it in memory bandwidth.
pub fn settings_for(device: &Entry, catalog: &Catalog) -> Result<Settings> {
    let bandwidth = device.memory_bandwidth.first().map(|b| b.value);
    from(&device.name, Some(device), bandwidth, "published", catalog)
}

/// Settings for the calibrated machine, by its measured memory bandwidth.
pub fn settings_for_host(calibration: &Calibration, catalog: &Catalog) -> Result<Settings> {
    let all = calibration.limits.last();
    let memory = all.and_then(|l| l.levels.iter().find(|l| l.capacity_bytes.is_none()));
    let bandwidth = memory.map(|l| l.bytes_per_s() / 1e9);
    from(&calibration.fingerprint.cpu, None, bandwidth, "measured", catalog)
}

fn from(name: &str, own: Option<&Entry>, bandwidth: Option<f64>, how: &str, catalog: &Catalog) -> Result<Settings> {
    let has = |d: &&Entry| !d.batch.is_empty() && !d.hidden.is_empty() && !d.backbone.is_empty();
    let of = |d: &Entry| d.memory_bandwidth.first().map_or(0.0, |b| b.value);
    let lacking = || Error::UnknownDevice { name: format!("{name} (for settings)"), nearest: None };
    let (model, rule) = match own.filter(has) {
        Some(own) => (own, "as the guide recommends".to_owned()),
        None => {
            let wanted = bandwidth.unwrap_or(0.0);
            let mut with: Vec<&Entry> = catalog.devices.iter().filter(has).collect();
            with.sort_by(|a, b| of(a).total_cmp(&of(b)));
            let below = with.iter().rev().find(|d| of(d) <= wanted).or(with.first());
            let model = *below.ok_or_else(lacking)?;
            let known = bandwidth.map_or("an unknown bandwidth".into(), |b| format!("{b:.0} GB/s {how}"));
            let rule = format!(
                "as for {} ({} GB/s), the nearest below {known} that somebody recommends sizes for",
                model.name,
                of(model)
            );
            (model, rule)
        }
    };
    let range = |all: &[super::catalog::Range]| {
        let r = all.first().ok_or_else(lacking)?;
        let figure = |v: usize| Figure::derived(v as f64, "", format!("{}; {rule}", r.source));
        Ok::<_, Error>(Setting { low: figure(r.low), high: figure(r.high), rule: rule.clone() })
    };
    let backbone = model.backbone.first().ok_or_else(lacking)?;
    let layer = |&u: &usize| Figure::derived(u as f64, "units", format!("{}; {rule}", backbone.source));
    Ok(Settings {
        device: name.into(),
        batch: range(&model.batch)?,
        hidden: range(&model.hidden)?,
        backbone: backbone.units.iter().map(layer).collect(),
        hypothesis: HYPOTHESIS.into(),
    })
}

/// Hidden sizes that are tried: 64 and 128 with their neighbours, and 96 between them.
pub const SIZES: [usize; 10] = [60, 63, 64, 65, 72, 96, 100, 127, 128, 129];

/// One hidden size, measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeTime {
    /// Hidden units.
    pub units: usize,
    /// Seconds of a run, the median of the rounds.
    pub time: Figure,
    /// Seconds a unit.
    pub per_unit: Figure,
}

/// What came of testing a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// It wins, beyond doubt and by at least 2%.
    Holds,
    /// It loses, or wins by less than 2%, beyond doubt.
    DoesNotHold,
    /// The measurements lie too far apart to tell.
    Undecided,
}

/// A rule and what was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleTest {
    /// The rule.
    pub rule: String,
    /// How many times the time a unit of the others is of those that follow the rule; above 1 they win.
    pub gain: Figure,
    /// What that means.
    pub finding: Finding,
}

/// What trying hidden sizes gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeTest {
    /// What was run.
    pub workload: String,
    /// Each size.
    pub sizes: Vec<SizeTime>,
    /// Each rule.
    pub rules: Vec<RuleTest>,
}

/// Runs a CfC of each of [`SIZES`] in turns and says whether the guides' rules hold on this machine.
pub fn test_sizes(cpu: &Processor, seconds: f64, tell: &mut dyn FnMut(Progress)) -> Result<SizeTest> {
    const ROUNDS: usize = 12;
    let (batch, steps) = (32, 16);
    let mut ready = vec![];
    for units in SIZES {
        let model = Model::new(Cfc::new(INPUTS, units), 1)?;
        let graph = model.graph(&GraphOptions::default().state(InitialState::Zero))?;
        let x = numbers(DType::F32, &[batch, steps, INPUTS], -1.0, 1.0)?;
        ready.push(Ready::new(&graph, [("x".to_owned(), x)], cpu.backend(), PassOptions::default())?);
    }
    let each = seconds / (ROUNDS * SIZES.len()) as f64;
    let mut rounds: Vec<Vec<f64>> = vec![];
    for round in 0..ROUNDS {
        let mut times = vec![];
        for (i, (units, ready)) in SIZES.iter().zip(&mut ready).enumerate() {
            let done = (round * SIZES.len() + i) as f64 / (ROUNDS * SIZES.len()) as f64;
            tell(Progress::at(done, format!("{units} units")));
            times.push(ready.time(each)?.min_s);
        }
        rounds.push(times);
    }
    Ok(judge(&rounds, format!("CfC of {INPUTS} features, batch {batch}, {steps} steps, {} thread(s)", cpu.threads())))
}

/// The verdicts on rounds of times, in the order of [`SIZES`].
fn judge(rounds: &[Vec<f64>], workload: String) -> SizeTest {
    let source = format!("{workload}; {} rounds in turns", rounds.len());
    let unit = |round: &[f64], units: usize| {
        SIZES.iter().position(|s| *s == units).map_or(f64::NAN, |i| round[i] / units as f64)
    };
    let sizes = SIZES
        .iter()
        .enumerate()
        .map(|(i, &units)| {
            let median = stats::median(&rounds.iter().map(|r| r[i]).collect::<Vec<f64>>()).unwrap_or(f64::NAN);
            let time = Figure::measured(median, "s", source.clone());
            let per_unit = time.derive("s", format!("{source}; time over units"), |t| t / units as f64);
            SizeTime { units, time, per_unit }
        })
        .collect();
    // Time a unit grows about evenly with the size, so neighbours on both sides average to what is between them.
    let around = |r: &[f64], at: usize| (unit(r, at - 1) + unit(r, at + 1)) / 2.0 / unit(r, at);
    let multiples = |r: &[f64]| (around(r, 64) + around(r, 128)) / 2.0;
    let powers = |r: &[f64]| unit(r, 96) / ((unit(r, 64) + unit(r, 128)) / 2.0);
    let test = |rule: &str, gains: Vec<f64>| {
        let (gain, finding) = confident(&gains, &source);
        RuleTest { rule: rule.into(), gain, finding }
    };
    let rules = vec![
        test("multiples of 64 beat their neighbours", rounds.iter().map(|r| multiples(r)).collect()),
        test("powers of two beat 96, which is a multiple of 32 alone", rounds.iter().map(|r| powers(r)).collect()),
    ];
    SizeTest { workload, sizes, rules }
}

/// A gain with its interval over the rounds, as one of the two questions that are asked here.
fn confident(gains: &[f64], source: &str) -> (Figure, Finding) {
    let rounds: Vec<Reading> = gains.iter().map(|g| Reading { log: g.ln(), error: 0.0 }).collect();
    let Some(judged) = Question::difference(2).judge(&rounds) else {
        return (Figure::unavailable("×", source, "there are fewer than two rounds"), Finding::Undecided);
    };
    let Interval { estimate, low, high, .. } = judged.ratio;
    let finding = match () {
        () if low > 1.02 => Finding::Holds,
        () if high < 1.02 => Finding::DoesNotHold,
        () => Finding::Undecided,
    };
    let spread = Spread { low, high, ends: Ends::Confidence99, samples: gains.len() as u64 };
    (Figure::derived(estimate, "×", source).with_spread(spread), finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guides_settings_hold_for_the_family_and_others_follow_by_bandwidth() {
        let catalog = Catalog::own().unwrap();
        let of = |name: &str| settings_for(catalog.find(name).unwrap(), &catalog).unwrap();
        let max = of("M1 Max");
        assert_eq!((max.get_optimal_batch_size(), max.get_optimal_backbone()), (Some(128), vec![256, 256]));
        assert_eq!((max.hidden.low.value, max.hidden.high.value), (Some(256.0), Some(512.0)));
        assert!(max.batch.rule.contains("guide recommends"));
        for (name, like) in [("M2", "M1 (68.25"), ("M4 Pro", "M1 Pro"), ("M4 Max", "M1 Max"), ("M3 Ultra", "M1 Ultra")]
        {
            assert!(of(name).batch.rule.contains(like), "{}", of(name).batch.rule);
        }
        assert!(catalog.devices.iter().all(|d| settings_for(d, &catalog).is_ok()));
        assert!(max.hypothesis.contains("not tested"));
    }

    #[test]
    fn a_rule_holds_only_where_the_rounds_say_so() {
        let rounds = |f: &dyn Fn(usize, usize) -> f64| -> Vec<Vec<f64>> {
            (0..12).map(|r| SIZES.iter().map(|&s| f(r, s)).collect()).collect()
        };
        let noise = |r: usize, s: usize| 1.0 + 0.01 * ((r * 7 + s * 3) % 5) as f64;
        let aligned = rounds(&|r, s| s as f64 * if s % 64 == 0 { 1.0 } else { 1.5 } * noise(r, s));
        let found = judge(&aligned, "test".into());
        assert_eq!([found.rules[0].finding, found.rules[1].finding], [Finding::Holds; 2]);
        assert!(found.rules[0].gain.value.is_some_and(|g| (g - 1.5).abs() < 0.05));
        let flat = rounds(&|r, s| s as f64 * (1.0 + 0.001 * ((r + s) % 3) as f64));
        assert_eq!(judge(&flat, "test".into()).rules[0].finding, Finding::DoesNotHold);
        let wild = rounds(&|r, s| s as f64 * if s % 64 == 0 { [1.5, 0.7][r % 2] } else { 1.0 });
        assert_eq!(judge(&wild, "test".into()).rules[0].finding, Finding::Undecided);
    }
}
