//! Two profiles held against each other.
//!
//! One question is answered: is the candidate faster or slower? It is asked of the starts of the process that each profile
//! keeps ([`crate::stats::verdict`]), of times over the yardstick where both have it. Rates follow from the same answer.
//! What was counted is compared exactly. Everything else has a difference and no verdict: nobody knows how much it
//! scatters.

use crate::profile::{Machine, Model, Op, Starts, Workload};
use crate::stats::verdict::{Answer, Judgement, Question, Reading, Record, least_of_one_start};
use crate::stats::{Effect, Size, median};
use crate::{Profile, export};
use schemars::JsonSchema;
use schwann_core::figure::{Ends, Spread};
use schwann_core::graph::is_automatic;
use schwann_core::{Figure, Provenance};
use serde::{Deserialize, Serialize};

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
    /// The times differ by less than 1%.
    NoDifference,
    /// The interval says neither: it holds both 0 and more than 1%.
    Undecided,
    /// A difference is shown, and nothing is said of it: it is not asked how much it scatters.
    NotJudged,
    /// One side is not known.
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
            Word::NoDifference => "no difference of 1% or more",
            Word::Undecided => "undecided",
            Word::NotJudged => "not judged",
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
    /// The candidate over the baseline, less 1, in %; of what is judged, without what the machine itself changed, and
    /// its spread is the interval that the verdict rests on.
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
    /// What the verdict rests on.
    pub basis: Basis,
}

const UNKNOWN: &str = "not known";

/// What two measurements must share for their times to be compared, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity(Vec<(&'static str, String)>);

impl Identity {
    /// Of a profile. Machines are told apart by what the profile says of them, so that profiles of versions that told
    /// them apart otherwise can still be compared.
    pub fn of(profile: &Profile) -> Identity {
        Identity::new(&profile.machine, &profile.model, &profile.workload)
    }

    /// Of what is run where and how.
    pub fn new(machine: &Machine, model: &Model, w: &Workload) -> Identity {
        let count = |figure: &Figure| figure.value.map_or(UNKNOWN.to_owned(), |v| v.to_string());
        let sizes: Vec<String> = w.sizes.iter().map(|n| format!("{} = {}", n.name, count(&n.figure))).collect();
        // The same model may have come from files of two names: its hash tells.
        Identity(vec![
            ("machine", format!("{} ({})", machine.cpu, machine.isa)),
            ("cores", count(&machine.cores)),
            ("model", format!("{} ({})", model.name, model.hash)),
            ("batch", count(&w.batch)),
            ("steps", count(&w.steps)),
            ("backend", w.backend.clone()),
            ("threads", count(&w.threads)),
            ("type", w.dtype.clone()),
            ("compilation", w.compilation.clone()),
            ("sizes", if sizes.is_empty() { "none".into() } else { sizes.join(", ") }),
        ])
    }

    /// What differs.
    pub fn unlike(&self, candidate: &Identity) -> Vec<Unlike> {
        let hash = |text: &str| text.rsplit_once(" (").map(|(_, hash)| hash.to_owned());
        let same = |what: &str, a: &str, b: &str| match what {
            "model" => hash(a) == hash(b),
            // A system that did not tell is no other machine.
            "cores" => a == b || a == UNKNOWN || b == UNKNOWN,
            _ => a == b,
        };
        let pairs = self.0.iter().zip(&candidate.0).filter(|((what, a), (_, b))| !same(what, a, b));
        pairs
            .map(|((what, base), (_, candidate))| Unlike {
                what: (*what).into(),
                base: base.clone(),
                candidate: candidate.clone(),
            })
            .collect()
    }
}

/// What two profiles must share for their figures to be compared, and do not.
pub fn unlike(base: &Profile, candidate: &Profile) -> Vec<Unlike> {
    Identity::of(base).unlike(&Identity::of(candidate))
}

/// The starts that a profile keeps, over the yardstick or bare.
pub fn record_of(starts: &Starts, by_yardstick: bool) -> Record {
    let values = if by_yardstick { &starts.ratio.values } else { &starts.time.values };
    let error = |i: usize| starts.error.values.get(i).copied().flatten().unwrap_or(0.0);
    let known = values.iter().enumerate().filter_map(|(i, v)| Some((i, v.filter(|v| *v > 0.0)?)));
    let readings = known.map(|(i, v)| Reading { log: v.ln(), error: error(i) });
    Record { starts: readings.collect(), yardstick: by_yardstick }
}

/// The starts of a profile, over the yardstick or bare; its samples as one start where it has no others; `None` where
/// nothing was measured.
pub fn record(profile: &Profile, by_yardstick: bool) -> Option<Record> {
    if let Some(starts) = &profile.compute.starts {
        let record = record_of(starts, by_yardstick);
        if record.starts.len() > 1 {
            return Some(record);
        }
    }
    let samples: Vec<f64> = profile.compute.samples.values.iter().flatten().copied().collect();
    let ones = vec![1.0; samples.len()];
    Some(Record { starts: vec![Reading::of(&ones, &samples)?], yardstick: false })
}

/// Whether a profile's times can be held against another's by the yardstick.
fn yardstick(profile: &Profile) -> Option<&Starts> {
    let starts = profile.compute.starts.as_ref()?;
    (starts.ratio.values.iter().flatten().count() > 1).then_some(starts)
}

/// What comparing two records rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Basis {
    /// In words: starts, yardstick.
    pub how: String,
    /// How much slower the machine itself was for the candidate, by the yardstick, in %; this is taken off.
    pub machine: Figure,
}

/// Answers a question about two profiles, with what the answer rests on; the reason where there is none.
pub fn judge(question: &Question, base: &Profile, candidate: &Profile) -> (Option<Judgement>, Basis) {
    let both = match (yardstick(base), yardstick(candidate)) {
        (Some(b), Some(c)) if b.yardstick_name == c.yardstick_name => Some((b, c)),
        _ => None,
    };
    let records = (record(base, both.is_some()), record(candidate, both.is_some()));
    let machine = match both {
        Some((b, c)) => {
            let middle = |s: &Starts| median(&s.yardstick.values.iter().flatten().copied().collect::<Vec<_>>());
            match (middle(b), middle(c)) {
                (Some(b), Some(c)) => Figure::derived((c / b - 1.0) * 100.0, "%", "medians of the yardstick's times"),
                _ => Figure::unavailable("%", "yardstick", "it was not timed"),
            }
        }
        None => Figure::unavailable("%", "yardstick", "not both profiles have the same one"),
    };
    let (Some(b), Some(c)) = &records else {
        return (None, Basis { how: "one side has no samples".into(), machine });
    };
    let how = match (both.is_some(), b.starts.len().min(c.starts.len())) {
        (true, n) => format!("{n} starts of the process a side, times over the yardstick's"),
        (false, 1) => {
            let least = least_of_one_start() * 100.0;
            format!("one start of the process only: cannot tell below {least:.0}%; newer profiles keep several")
        }
        (false, n) => format!("{n} starts of the process a side, without a yardstick that both have"),
    };
    (question.judge_apart(b, c), Basis { how, machine })
}

/// Whether more of a metric is faster.
#[derive(Clone, Copy, PartialEq)]
enum Sense {
    Slower,
    Faster,
    Neither,
}

const METRICS: [(&str, Sense, Of); 14] = [
    ("compute.time_p50", Sense::Slower, Of::Time),
    ("compute.time_mean", Sense::Slower, Of::Samples),
    ("compute.time_min", Sense::Slower, Of::Samples),
    ("compute.time_p95", Sense::Slower, Of::Samples),
    ("compute.time_p99", Sense::Slower, Of::Samples),
    ("compute.tflops", Sense::Faster, Of::Rate),
    ("compute.throughput", Sense::Faster, Of::Rate),
    ("compute.flops", Sense::Neither, Of::Once),
    ("compute.bytes", Sense::Neither, Of::Once),
    ("memory.arena", Sense::Neither, Of::Once),
    ("memory.weights", Sense::Neither, Of::Once),
    ("memory.rss_peak", Sense::Neither, Of::Once),
    ("memory.page_faults", Sense::Neither, Of::Once),
    ("memory.allocations", Sense::Neither, Of::Once),
];

/// How a metric is judged.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    /// It is what the question is about.
    Time,
    /// Work over that time: the work is exact, so the answer is the same, turned round.
    Rate,
    /// Another figure of the same samples: shown, not judged, or one question would have several answers.
    Samples,
    /// Not of the samples.
    Once,
}

/// Compares two profiles, whatever they are of; whether that makes sense is [`unlike`]'s to say.
pub fn compare(base: &Profile, candidate: &Profile) -> Compared {
    let samples = |p: &Profile| p.compute.samples.values.iter().flatten().copied().collect::<Vec<f64>>();
    let effect = Effect::of(&samples(base), &samples(candidate));
    let (judged, basis) = judge(&Question::difference(1), base, candidate);
    let metrics: Vec<Change> = METRICS
        .iter()
        .filter_map(|(path, sense, of)| {
            let (before, after) = (export::figure(base, path)?, export::figure(candidate, path)?);
            Some(change(path, *sense, *of, (before, after), judged.as_ref(), effect, &basis))
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
        basis,
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

fn change(
    path: &str,
    sense: Sense,
    of: Of,
    (base, candidate): (Figure, Figure),
    judged: Option<&Judgement>,
    effect: Option<Effect>,
    basis: &Basis,
) -> Change {
    let mut change = percent(&base, &candidate);
    let judged = judged.filter(|_| change.value.is_some());
    if let (Of::Time | Of::Rate, Some(j)) = (of, judged) {
        let r = j.ratio;
        let (estimate, low, high) = match of {
            Of::Rate => (1.0 / r.estimate, 1.0 / r.high, 1.0 / r.low),
            _ => (r.estimate, r.low, r.high),
        };
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let samples = j.starts as u64;
        let spread = Spread { low: percent(low), high: percent(high), ends: Ends::Confidence99, samples };
        let source = format!("candidate over baseline, less 1: {}", basis.how);
        change = Figure::derived(percent(estimate), "%", source).with_spread(spread);
    }
    let effect = effect.filter(|_| of != Of::Once && change.value.is_some());
    let no_effect = if of == Of::Once { "it is one figure, not samples" } else { "one side has no samples" };
    let sized = |unit: &str, source: &str, value: Option<f64>, why: &str| match value {
        Some(value) => Figure::derived(value, unit, source),
        None => Figure::unavailable(unit, source, why),
    };
    let word = match (of, judged) {
        _ if change.value.is_none() => Word::Unknown,
        (Of::Time | Of::Rate, Some(j)) => match j.answer {
            Answer::Faster => Word::Faster,
            Answer::Slower => Word::Slower,
            Answer::Same => Word::NoDifference,
            Answer::Undecided => Word::Undecided,
        },
        (Of::Time | Of::Rate, None) => Word::Unknown,
        (Of::Samples, _) => Word::NotJudged,
        (Of::Once, _) => counted(sense, &base, &candidate),
    };
    Change {
        metric: path.to_owned(),
        cliffs_delta: sized("1", "Cliff's delta of both runs' samples", effect.map(|e| e.cliffs_delta), no_effect),
        hedges_g: sized(
            "standard deviations",
            "Hedges' g of both runs' samples",
            effect.and_then(|e| e.hedges_g),
            if effect.is_some() { "nothing scatters" } else { no_effect },
        ),
        effect: effect.map(|e| e.size()),
        word,
        base,
        candidate,
        change,
    }
}

/// Counted, not measured: any difference is one. Read once: nobody knows how much it scatters.
fn counted(sense: Sense, base: &Figure, candidate: &Figure) -> Word {
    let (Some(b), Some(c)) = (base.value, candidate.value) else { return Word::Unknown };
    let exact = base.provenance == Provenance::Derived && candidate.provenance == Provenance::Derived;
    match sense {
        _ if b == c => Word::Same,
        _ if !exact => Word::NotJudged,
        Sense::Slower => [Word::Faster, Word::Slower][usize::from(c > b)],
        Sense::Faster => [Word::Slower, Word::Faster][usize::from(c > b)],
        Sense::Neither => [Word::Less, Word::More][usize::from(c > b)],
    }
}

/// Operations of both sides, matched by name; what is left, by place, if one side's name says no more than the place:
/// earlier versions of this program had numbers for names (`add_26`), or names without the layer's (`steps`).
fn ops(base: &[Op], candidate: &[Op]) -> Vec<OpChange> {
    let mut left: Vec<&Op> = base.iter().collect();
    let mut before: Vec<Option<&Op>> = vec![None; candidate.len()];
    let by_name = |a: &Op, b: &Op| a.name == b.name && a.op == b.op && a.within == b.within;
    // The same place first: a name may come twice.
    let by_name_and_place = |a: &Op, b: &Op| by_name(a, b) && a.path == b.path;
    let ends_with = |a: &Op, b: &Op| a.name.strip_suffix(&b.name).is_some_and(|path| path.ends_with('.'));
    let renamed = |a: &Op, b: &Op| is_automatic(&a.name) || is_automatic(&b.name) || ends_with(a, b) || ends_with(b, a);
    let by_place = |a: &Op, b: &Op| a.path == b.path && a.op == b.op && a.shape == b.shape && renamed(a, b);
    type Rule<'a> = &'a dyn Fn(&Op, &Op) -> bool;
    let rules: [Rule<'_>; 3] = [&by_name_and_place, &by_name, &by_place];
    for same in rules {
        for (op, found) in candidate.iter().zip(&mut before).filter(|(_, found)| found.is_none()) {
            *found = left.iter().position(|other| same(other, op)).map(|i| left.remove(i));
        }
    }
    let absent = |side: &str| Figure::unavailable("s", "observer", format!("the {side} has no such operation"));
    // A loop that only one side told apart is compared as a whole.
    let time = |op: &Op, other: &Op| match (&op.whole_time, &other.whole_time) {
        (Some(whole), None) => whole.clone(),
        _ => op.self_time.clone(),
    };
    let both = candidate.iter().zip(before);
    let mut rows: Vec<OpChange> = both
        .map(|(op, before)| match before {
            Some(before) => row(op, time(before, op), time(op, before)),
            None => row(op, absent("baseline"), op.self_time.clone()),
        })
        .collect();
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
