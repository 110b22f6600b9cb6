//! The gate: is the candidate slower by more than is allowed?
//!
//! It alarms only where the interval of the slow-down lies beyond what is allowed as a whole, and passes only where it
//! lies below as a whole; between the two it is undecided, and says so. The intervals are those of
//! [`crate::stats::verdict`]: of several starts of the process, measured in turns where both sides can be run now, over
//! the yardstick where one of them is a record.

use super::compare::{Basis, judge};
use crate::Profile;
use crate::stats::verdict::{Answer, CONFIDENCE, Judgement, Question, Reading, Record};
use schwann_core::Figure;
use serde::Serialize;

/// What is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// A slow-down up to this part is allowed: 0.03.
    pub max_regress: f64,
}

/// What the gate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Not slower by more than is allowed.
    Passed,
    /// Slower by more than is allowed.
    Regressed,
    /// The interval holds the limit: neither was shown.
    Undecided,
}

/// What the gate says, with what it rests on.
#[derive(Clone, Debug, Serialize)]
pub struct Ruling {
    /// What it says.
    pub decision: Decision,
    /// How it was measured, in words.
    pub design: String,
    /// The candidate's time over the baseline's, less 1, in %.
    pub slowdown: Figure,
    /// The lower end of the interval that it was judged by.
    pub low: Figure,
    /// The upper end of that interval.
    pub high: Figure,
    /// What is allowed.
    pub max_regress: Figure,
    /// How sure the interval is, all looks together.
    pub confidence: Figure,
    /// Starts of the process, on the side with fewer.
    pub starts: Figure,
    /// How much slower the machine was for the candidate, where a yardstick says so; taken off.
    pub machine: Figure,
    /// What measuring took; unavailable where nothing was measured now.
    pub seconds: Figure,
}

impl Rule {
    /// With what is allowed.
    pub fn new(max_regress: f64) -> Rule {
        Rule { max_regress }
    }

    fn question(&self) -> Question {
        Question::limit(self.max_regress)
    }

    fn ruling(&self, judged: Option<&Judgement>, design: &str, machine: Figure) -> Ruling {
        let source = "mean over starts of the process";
        let percent = |value: Option<f64>| match value {
            Some(ratio) => Figure::derived((ratio - 1.0) * 100.0, "%", source),
            None => Figure::unavailable("%", source, "there are too few starts"),
        };
        let decision = match judged.map(|j| j.answer) {
            Some(Answer::Slower) => Decision::Regressed,
            Some(Answer::Same | Answer::Faster) => Decision::Passed,
            Some(Answer::Undecided) | None => Decision::Undecided,
        };
        let none = || Figure::unavailable("s", "monotonic clock", "both sides are records; nothing was measured now");
        Ruling {
            decision,
            design: design.to_owned(),
            slowdown: percent(judged.map(|j| j.ratio.estimate)),
            low: percent(judged.map(|j| j.ratio.low)),
            high: percent(judged.map(|j| j.ratio.high)),
            max_regress: Figure::derived(self.max_regress * 100.0, "%", "option --max-regress"),
            confidence: Figure::derived(CONFIDENCE * 100.0, "%", "the gate's rule"),
            starts: Figure::derived(judged.map_or(0, |j| j.starts) as f64, "starts", "counted"),
            machine,
            seconds: judged.and_then(|j| j.seconds).map_or_else(none, |s| Figure::measured(s, "s", "monotonic clock")),
        }
    }

    /// Measures until it is clear, or for about so many seconds. Each call is one start of the process, in which both
    /// sides are timed in turns; `tick` hears the seconds that went by.
    pub fn in_turns<E>(
        &self,
        seconds: f64,
        start: &mut dyn FnMut() -> Result<Reading, E>,
        tick: &mut dyn FnMut(f64),
    ) -> Result<Ruling, E> {
        let judged = self.question().ask(seconds, None, start, tick)?;
        let same = Figure::unavailable("%", "yardstick", "both sides were measured in the same moments");
        Ok(self.ruling(judged.as_ref(), "in turns", same))
    }

    /// Likewise against a record: each call is a start in which the candidate is timed in turns with the yardstick (or
    /// alone, where the record has none).
    pub fn against_record<E>(
        &self,
        seconds: f64,
        record: &Record,
        start: &mut dyn FnMut() -> Result<Reading, E>,
        tick: &mut dyn FnMut(f64),
    ) -> Result<Ruling, E> {
        let judged = self.question().ask(seconds, Some(record), start, tick)?;
        let why = "what it says is in each start's ratio";
        let design = if record.yardstick { "against a record, by the yardstick" } else { "against a record" };
        Ok(self.ruling(judged.as_ref(), design, Figure::unavailable("%", "yardstick", why)))
    }

    /// What can be said where somebody stopped it: how the two stand, and no decision.
    pub fn stopped(&self, starts: &[Reading], record: Option<&Record>) -> Ruling {
        let judged = match record {
            None => self.question().judge(starts),
            Some(r) => self.question().judge_apart(r, &Record { starts: starts.to_vec(), yardstick: r.yardstick }),
        };
        let why = "it was stopped before it was clear";
        let ruling = self.ruling(judged.as_ref(), "stopped", Figure::unavailable("%", "yardstick", why));
        Ruling { decision: Decision::Undecided, ..ruling }
    }

    /// Judges two records.
    pub fn records(&self, base: &Profile, candidate: &Profile) -> Ruling {
        let (judged, Basis { how, machine }) = judge(&self.question(), base, candidate);
        self.ruling(judged.as_ref(), &format!("two records: {how}"), machine)
    }
}
