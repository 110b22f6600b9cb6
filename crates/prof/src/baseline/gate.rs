//! The gate: is the candidate slower by more than is allowed?
//!
//! It alarms only where the interval of the slow-down lies beyond what is allowed as a whole, so that noise makes it
//! measure longer and not cry out. Two designs:
//!
//! **In turns.** Both sides can be run now, so they are sampled alternately, each pair in the other order, and the median
//! of the pairs' ratios is judged. Whatever disturbs the machine for longer than a pair takes disturbs both alike and
//! cancels. The gate looks after 30 pairs and a tenth of a second, then whenever there are twice as many, and stops as soon as the interval lies on
//! one side of the limit. Looking often makes chance alarms likelier, so each look asks for 99%.
//!
//! **Apart.** One side is only a record. What the machine did between the two runs looks like a difference of the
//! programs, and no statistics of the samples can tell. Two things help: disturbances lengthen runs and hardly ever
//! shorten them, so the 5% quantile of the samples is judged; and an alarm must last: the candidate is measured in
//! further rounds, and its fastest round counts.

use crate::stats::{Interval, Resampling, paired_ratio, quantile, quantile_mut, ratio_interval};
use schwann_core::Figure;
use serde::Serialize;
use std::time::Instant;

/// Pairs before the first look, and seconds: a few milliseconds of any machine say little of the next ones. Very many
/// pairs are looked at sooner.
const FIRST_LOOK: usize = 30;
const FIRST_SECONDS: f64 = 0.1;
const MANY: usize = 1000;
/// An interval whose ends differ by more than this factor says little.
const WIDE: f64 = 1.1;
/// The part of the samples that is judged where runs are made apart: low enough that a run which was disturbed most of
/// the time still shows its quiet moments, and not the least, which one lucky sample decides.
const LOW: f64 = 0.05;
/// Pairs that are kept at most.
const MOST_PAIRS: usize = 1 << 17;

/// What is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// A slow-down up to this part is allowed: 0.03.
    pub max_regress: f64,
    /// How sure the gate must be.
    pub confidence: f64,
}

impl Rule {
    /// With the confidence that the figures of `gate experiment` are of.
    pub fn new(max_regress: f64) -> Rule {
        Rule { max_regress, confidence: 0.99 }
    }

    fn look(&self, ratio: Option<Interval>) -> Decision {
        match ratio {
            Some(i) if i.low > 1.0 + self.max_regress => Decision::Regressed,
            // A wide interval that ends just below the limit is a machine in a bad moment; one should look again.
            Some(i) if i.high < 1.0 + self.max_regress && (i.high < i.low * WIDE || i.high * WIDE < 1.0) => {
                Decision::Passed
            }
            _ => Decision::Undecided,
        }
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Seconds at most, all together.
    pub seconds: f64,
    /// Apart: rounds in which an alarm must last.
    pub rounds: usize,
}

/// What the gate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Not slower by more than is allowed.
    Passed,
    /// Slower by more than is allowed.
    Regressed,
    /// The interval holds the limit, and time was up: no regression was shown.
    Undecided,
}

/// What the gate says, with what it rests on.
#[derive(Clone, Debug, Serialize)]
pub struct Ruling {
    /// What it says.
    pub decision: Decision,
    /// `in turns` or `apart`.
    pub design: &'static str,
    /// The candidate's time over the baseline's, less 1, in %.
    pub slowdown: Figure,
    /// The lower end of the interval that it was judged by.
    pub low: Figure,
    /// The upper end of that interval.
    pub high: Figure,
    /// What is allowed.
    pub max_regress: Figure,
    /// How sure the interval is.
    pub confidence: Figure,
    /// Samples on the side with fewer.
    pub samples: Figure,
    /// What measuring took; unavailable where nothing was measured now.
    pub seconds: Figure,
}

fn ruling(
    rule: &Rule,
    decision: Decision,
    ratio: Option<Interval>,
    design: &'static str,
    samples: usize,
    seconds: Option<f64>,
) -> Ruling {
    let source = match design {
        "in turns" => "median of the ratios of pairs measured in turns",
        _ => "ratio of the 5% quantiles of two runs made apart",
    };
    let percent = |value: Option<f64>| match value {
        Some(ratio) => Figure::derived((ratio - 1.0) * 100.0, "%", source),
        None => Figure::unavailable("%", source, "there are fewer than two samples on a side"),
    };
    Ruling {
        decision,
        design,
        slowdown: percent(ratio.map(|i| i.estimate)),
        low: percent(ratio.map(|i| i.low)),
        high: percent(ratio.map(|i| i.high)),
        max_regress: Figure::derived(rule.max_regress * 100.0, "%", "option --max-regress"),
        confidence: Figure::derived(rule.confidence * 100.0, "%", "the gate's rule"),
        samples: Figure::derived(samples as f64, "samples", "counted"),
        seconds: match seconds {
            Some(s) => Figure::measured(s, "s", "monotonic clock"),
            None => Figure::unavailable("s", "monotonic clock", "both sides are records; nothing was measured now"),
        },
    }
}

/// Measures both sides in turns until it is clear, or time is up. Each call measures one sample and gives its seconds;
/// `tick` is told the seconds that went by.
pub fn in_turns<E>(
    rule: &Rule,
    budget: &Budget,
    base: &mut dyn FnMut() -> Result<f64, E>,
    candidate: &mut dyn FnMut() -> Result<f64, E>,
    tick: &mut dyn FnMut(f64),
) -> Result<Ruling, E> {
    let start = Instant::now();
    let (mut before, mut after) = (vec![], vec![]);
    let how = Resampling { confidence: rule.confidence, ..Resampling::default() };
    let mut look_at = FIRST_LOOK;
    loop {
        // Each pair in the other order: who comes second finds other caches and another clock.
        if before.len() % 2 == 0 {
            before.push(base()?);
            after.push(candidate()?);
        } else {
            after.push(candidate()?);
            before.push(base()?);
        }
        let seconds = start.elapsed().as_secs_f64();
        let over = seconds >= budget.seconds || before.len() >= MOST_PAIRS;
        let due = before.len() >= look_at && (seconds >= FIRST_SECONDS || before.len() >= MANY);
        if due || over {
            tick(seconds);
            let ratio = paired_ratio(&before, &after, &how);
            let decision = match before.len() < FIRST_LOOK {
                // Time was up before the first look: too few to alarm on.
                true => Decision::Undecided,
                false => rule.look(ratio),
            };
            if decision != Decision::Undecided || over {
                let seconds = start.elapsed().as_secs_f64();
                return Ok(ruling(rule, decision, ratio, "in turns", before.len(), Some(seconds)));
            }
            look_at = before.len() * 2;
        }
    }
}

fn judge(rule: &Rule, base: &[f64], candidate: &[f64]) -> (Decision, Option<Interval>) {
    let how = Resampling { confidence: rule.confidence, ..Resampling::default() };
    let ratio = ratio_interval(base, candidate, &how, |xs| quantile_mut(xs, LOW));
    let wide = ratio.is_some_and(|i| i.high > i.low * WIDE && i.low < (1.0 + rule.max_regress) * WIDE);
    // One of the runs saw a machine at two speeds: nothing says which of them the other one saw.
    (if wide { Decision::Undecided } else { rule.look(ratio) }, ratio)
}

/// Judges two runs that were made apart by their samples.
pub fn apart(rule: &Rule, base: &[f64], candidate: &[f64]) -> Ruling {
    let (decision, ratio) = judge(rule, base, candidate);
    ruling(rule, decision, ratio, "apart", base.len().min(candidate.len()), None)
}

/// Measures the candidate now, against the samples of a run that was made earlier. One round where nothing is wrong; an
/// alarm must last through all rounds, and the fastest counts.
pub fn fastest_round<E>(
    rule: &Rule,
    budget: &Budget,
    base: &[f64],
    candidate: &mut dyn FnMut() -> Result<f64, E>,
    tick: &mut dyn FnMut(f64),
) -> Result<Ruling, E> {
    let start = Instant::now();
    let rounds = budget.rounds.max(1);
    let mut best: Option<(f64, Vec<f64>)> = None;
    for round in 1..=rounds {
        let until = budget.seconds * round as f64 / rounds as f64;
        let mut samples = vec![];
        while samples.len() < 2 || (start.elapsed().as_secs_f64() < until && samples.len() < MOST_PAIRS) {
            samples.push(candidate()?);
            if samples.len() % 64 == 0 {
                tick(start.elapsed().as_secs_f64());
            }
        }
        let low = quantile(&samples, LOW).unwrap_or(f64::INFINITY);
        if best.as_ref().is_none_or(|(least, _)| low < *least) {
            best = Some((low, samples));
        }
        let Some((_, fastest)) = &best else { continue };
        let (decision, ratio) = judge(rule, base, fastest);
        if decision == Decision::Passed || round == rounds {
            let (samples, seconds) = (base.len().min(fastest.len()), start.elapsed().as_secs_f64());
            return Ok(ruling(rule, decision, ratio, "apart", samples, Some(seconds)));
        }
    }
    Ok(apart(rule, base, &[]))
}
