//! Two profiles held against each other.
//!
//! What the samples tell (times, and the rates that follow from the median) has an interval by resampling and an effect's
//! size. What was counted is compared exactly. What was read once has a difference and no verdict: nobody knows how much
//! it scatters. Two runs made apart differ by what the machine did in between too, which no resampling of the samples
//! can see; so a difference under a percent is never called one, and the gate measures in turns where it can.

use crate::profile::Op;
use crate::stats::{Effect, Interval, Resampling, Size, quantile_mut, ratio_interval};
use crate::{Profile, export};
use schemars::JsonSchema;
use schwann_core::figure::{Ends, Spread};
use schwann_core::{Figure, Provenance};
use serde::{Deserialize, Serialize};

/// A smaller change does not stand out, however sure it is.
const LEAST_CHANGE: f64 = 0.01;

/// What came of comparing one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// It takes less time, or does more in it.
    Faster,
    /// It takes more time, or does less in it.
    Slower,
    /// More of it, where that is neither fast nor slow.
    More,
    /// Less of it.
    Less,
    /// Exactly as before.
    Same,
    /// No difference that stands out from the scatter.
    NoDifference,
    /// One side or the scatter is not known.
    Unknown,
}

impl Word {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Word::Faster => "faster",
            Word::Slower => "slower",
            Word::More => "more",
            Word::Less => "less",
            Word::Same => "the same",
            Word::NoDifference => "no difference that stands out",
            Word::Unknown => "not known",
        }
    }
}

/// What two profiles do not share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unlike {
    /// What: `machine`, `model`, `batch`, …
    pub what: String,
    /// In the baseline.
    pub base: String,
    /// In the candidate.
    pub candidate: String,
}

/// One metric on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Its path in the document.
    pub metric: String,
    /// In the baseline.
    pub base: Figure,
    /// In the candidate.
    pub candidate: Figure,
    /// The candidate over the baseline, less 1, in %; its spread is the 95% interval.
    pub change: Figure,
    /// Cliff's delta of the samples: from −1 to 1, positive where the candidate's are greater.
    pub cliffs_delta: Figure,
    /// Hedges' g of the samples, in standard deviations.
    pub hedges_g: Figure,
    /// The size of the effect.
    pub effect: Option<Size>,
    /// In a word.
    pub word: Word,
}

/// One operation on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpChange {
    /// The node it computes.
    pub name: String,
    /// Its kernel: of the candidate, where that has it.
    pub kernel: String,
    /// Seconds a run in the baseline.
    pub base: Figure,
    /// Seconds a run in the candidate.
    pub candidate: Figure,
    /// Seconds a run that the candidate takes more.
    pub difference: Figure,
    /// The candidate over the baseline, less 1, in %.
    pub change: Figure,
}

/// Two profiles held against each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compared {
    /// The version of the form of profiles that this is of.
    pub schema: u32,
    /// The baseline's id.
    pub base: String,
    /// The candidate's id.
    pub candidate: String,
    /// What the baseline is of.
    pub base_title: String,
    /// What the candidate is of.
    pub candidate_title: String,
    /// What they do not share.
    pub unlike: Vec<Unlike>,
    /// Metrics, the median time first.
    pub metrics: Vec<Change>,
    /// Operations, greatest difference first.
    pub ops: Vec<OpChange>,
    /// The whole in a word: that of the median time.
    pub verdict: Word,
}

/// What two profiles must share for their figures to be compared, and do not.
pub fn unlike(base: &Profile, candidate: &Profile) -> Vec<Unlike> {
    let count = |figure: &Figure| figure.value.map_or("not known".to_owned(), |v| v.to_string());
    let (b, c) = (&base.workload, &candidate.workload);
    let model = |p: &Profile| format!("{} ({})", p.model.name, p.model.hash);
    let mut rows = vec![
        ("machine", base.machine.fingerprint.clone(), candidate.machine.fingerprint.clone()),
        ("batch", count(&b.batch), count(&c.batch)),
        ("steps", count(&b.steps), count(&c.steps)),
        ("threads", count(&b.threads), count(&c.threads)),
        ("type", b.dtype.clone(), c.dtype.clone()),
        ("compilation", b.compilation.clone(), c.compilation.clone()),
    ];
    // The same model may have come from files of two names.
    if base.model.hash != candidate.model.hash {
        rows.insert(1, ("model", model(base), model(candidate)));
    }
    let differ = rows.into_iter().filter(|(_, base, candidate)| base != candidate);
    differ.map(|(what, base, candidate)| Unlike { what: what.into(), base, candidate }).collect()
}

/// Whether more of a metric is faster.
#[derive(Clone, Copy, PartialEq)]
enum Sense {
    Slower,
    Faster,
    Neither,
}

const METRICS: [(&str, Sense, Of); 14] = [
    ("compute.time_p50", Sense::Slower, Of::Samples(0.5)),
    ("compute.time_mean", Sense::Slower, Of::Mean),
    ("compute.time_min", Sense::Slower, Of::Once),
    ("compute.time_p95", Sense::Slower, Of::Samples(0.95)),
    ("compute.time_p99", Sense::Slower, Of::Samples(0.99)),
    ("compute.tflops", Sense::Faster, Of::Inverse),
    ("compute.throughput", Sense::Faster, Of::Inverse),
    ("compute.flops", Sense::Neither, Of::Once),
    ("compute.bytes", Sense::Neither, Of::Once),
    ("memory.arena", Sense::Neither, Of::Once),
    ("memory.weights", Sense::Neither, Of::Once),
    ("memory.rss_peak", Sense::Neither, Of::Once),
    ("memory.page_faults", Sense::Neither, Of::Once),
    ("memory.allocations", Sense::Neither, Of::Once),
];

/// How the interval of a metric comes about.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    /// A quantile of the samples.
    Samples(f64),
    /// Their mean.
    Mean,
    /// Work over the median: the work is exact, so the ratio's interval is that of the median, turned round.
    Inverse,
    /// Not from the samples, or (the least) not a figure that resampling can judge.
    Once,
}

/// Compares two profiles, whatever they are of; whether that makes sense is [`unlike`]'s to say.
pub fn compare(base: &Profile, candidate: &Profile) -> Compared {
    let samples = |p: &Profile| p.compute.samples.values.iter().flatten().copied().collect::<Vec<f64>>();
    let (b, c) = (samples(base), samples(candidate));
    let metrics: Vec<Change> = METRICS
        .iter()
        .filter_map(|(path, sense, of)| {
            let (before, after) = (export::figure(base, path)?, export::figure(candidate, path)?);
            Some(change(path, *sense, *of, (before, after), (&b, &c)))
        })
        .collect();
    let verdict = metrics.first().map_or(Word::Unknown, |m| m.word);
    Compared {
        schema: crate::profile::SCHEMA,
        base: base.id.clone(),
        candidate: candidate.id.clone(),
        base_title: export::title(base),
        candidate_title: export::title(candidate),
        unlike: unlike(base, candidate),
        ops: ops(&base.compute.ops, &candidate.compute.ops),
        metrics,
        verdict,
    }
}

fn percent(base: &Figure, candidate: &Figure) -> Figure {
    base.derive2(
        candidate,
        "%",
        "candidate over baseline, less 1",
        |b, c| if b == c { 0.0 } else { (c / b - 1.0) * 100.0 },
    )
}

fn change(path: &str, sense: Sense, of: Of, (base, candidate): (Figure, Figure), (b, c): (&[f64], &[f64])) -> Change {
    let how = Resampling::default();
    let by_quantile = |part: f64| ratio_interval(b, c, &how, move |xs| quantile_mut(xs, part));
    let interval: Option<Interval> = match of {
        Of::Samples(part) => by_quantile(part),
        Of::Mean => ratio_interval(b, c, &how, |xs| xs.iter().sum::<f64>() / xs.len() as f64),
        Of::Inverse => {
            by_quantile(0.5).map(|i| Interval { estimate: 1.0 / i.estimate, low: 1.0 / i.high, high: 1.0 / i.low, ..i })
        }
        Of::Once => None,
    };
    let mut change = percent(&base, &candidate);
    if let (Some(i), Some(_)) = (interval, change.value) {
        let ends = i.map(|ratio| (ratio - 1.0) * 100.0);
        let samples = b.len().min(c.len()) as u64;
        change = change.with_spread(Spread { low: ends.low, high: ends.high, ends: Ends::Confidence95, samples });
        change.source = "candidate over baseline, less 1; interval by resampling blocks of both runs' samples".into();
    }
    let effect = (of != Of::Once).then(|| Effect::of(b, c)).flatten();
    let no_effect = || match of {
        Of::Once => "it is one figure, not samples",
        _ => "one side has no samples",
    };
    let sized = |unit: &str, source: &str, value: Option<f64>, why: &str| match value {
        Some(value) => Figure::derived(value, unit, source),
        None => Figure::unavailable(unit, source, why),
    };
    let word = word(sense, &base, &candidate, &change, effect);
    Change {
        metric: path.to_owned(),
        cliffs_delta: sized("1", "Cliff's delta of both runs' samples", effect.map(|e| e.cliffs_delta), no_effect()),
        hedges_g: sized(
            "standard deviations",
            "Hedges' g of both runs' samples",
            effect.and_then(|e| e.hedges_g),
            if effect.is_some() { "nothing scatters" } else { no_effect() },
        ),
        effect: effect.map(|e| e.size()),
        word,
        base,
        candidate,
        change,
    }
}

fn word(sense: Sense, base: &Figure, candidate: &Figure, change: &Figure, effect: Option<Effect>) -> Word {
    let (Some(b), Some(c)) = (base.value, candidate.value) else { return Word::Unknown };
    let more = match sense {
        Sense::Slower => [Word::Faster, Word::Slower],
        Sense::Faster => [Word::Slower, Word::Faster],
        Sense::Neither => [Word::Less, Word::More],
    };
    match (change.spread, effect) {
        (Some(s), Some(effect)) => {
            let value = change.value.unwrap_or(0.0);
            let sure = (s.low > 0.0 || s.high < 0.0) && value.abs() >= LEAST_CHANGE * 100.0;
            match sure && effect.size() > Size::Negligible {
                true => more[usize::from(value > 0.0)],
                false => Word::NoDifference,
            }
        }
        // Counted, not measured: any difference is one.
        _ if base.provenance == Provenance::Derived && candidate.provenance == Provenance::Derived => match b == c {
            true => Word::Same,
            false => more[usize::from(c > b)],
        },
        _ if b == c => Word::Same,
        _ => Word::Unknown,
    }
}

/// Operations of both sides, matched by node, kernel's place and order of appearance.
fn ops(base: &[Op], candidate: &[Op]) -> Vec<OpChange> {
    let mut left: Vec<&Op> = base.iter().collect();
    let mut rows = vec![];
    let absent = |side: &str| Figure::unavailable("s", "observer", format!("the {side} has no such operation"));
    for op in candidate {
        let same = |other: &&&Op| other.name == op.name && other.op == op.op && other.within == op.within;
        // The same place first: a name may come twice.
        let at = left.iter().position(|o| same(&o) && o.path == op.path).or_else(|| left.iter().position(|o| same(&o)));
        let before = at.map(|i| left.remove(i).self_time.clone()).unwrap_or_else(|| absent("baseline"));
        rows.push(row(op, before, op.self_time.clone()));
    }
    rows.extend(left.into_iter().map(|op| row(op, op.self_time.clone(), absent("candidate"))));
    let size = |r: &OpChange| r.difference.value.map_or(0.0, f64::abs);
    rows.sort_by(|a, b| size(b).total_cmp(&size(a)));
    rows
}

fn row(op: &Op, base: Figure, candidate: Figure) -> OpChange {
    OpChange {
        name: op.name.clone(),
        kernel: op.kernel.clone(),
        difference: base.derive2(&candidate, "s", "candidate less baseline", |b, c| c - b),
        change: percent(&base, &candidate),
        base,
        candidate,
    }
}
