//! One question, one answer: is one of two faster or slower than the other, by how much, and how sure is that?
//!
//! Everything that compares times asks here: other ways of running a model, advice that is tried, two saved profiles,
//! and the gate.
//!
//! Samples of one process share its luck (where its memory lies, which core it got) and each is like the one before it,
//! so that their own scatter tells too little: two identical programs would be told apart. What is independent is
//! whole starts of the process. Each start gives one number, the median over its turns of the logarithm of one side's
//! time over the other's, and the interval comes from how far the starts lie apart: Student's t of the mean without the
//! greatest and the least fifth (Yuen 1974), so that a start that something else disturbed neither moves the answer nor
//! widens it much. The scatter within the starts is a floor for it.
//!
//! Asking again after more starts is another chance to err, and so is every other question on the same page: the
//! confidence of 99% is for all looks and all questions together (Bonferroni: the chance to err is shared out equally).
//!
//! Two records that were made apart differ by what the machine did in between, too. Two sides in turns share a disturbance;
//! two records do not, and disturbances only ever add time: another program on the same core costs 30%, and half of a
//! record's starts may meet one. So a record is read by its undisturbed part: of each start the time that one turn in ten
//! stays below, over that of a yardstick timed in turns with it ([`crate::profiler::YARDSTICK`]), and of the starts the
//! lowest six. 24 are made, and more while those six still scatter, up to 96: on a machine that others use as well it takes
//! longer to meet six quiet moments. Where fewer are undisturbed even so, the interval is wide.
//! What the yardstick does not see of the machine's changes is added.

use super::{Interval, median, quantile_sorted, sorted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};
use std::ops::Range;
use std::time::Instant;

/// How sure the answers of one page are, together.
pub const CONFIDENCE: f64 = 0.99;
/// A smaller change is none, however sure it is.
pub const LEAST_CHANGE: f64 = 0.01;
/// Starts after which an answer is looked for.
const LOOKS: [usize; 4] = [4, 8, 13, 20];
/// How many times as long as wanted it may take to come to the first look.
const PATIENCE: f64 = 8.0;
/// Starts of a record: at least, and at most where they do not settle before.
pub const RECORD_STARTS: Range<usize> = 24..96;
/// A record has settled when its own part of the interval is this wide at most, to either side.
const SETTLED: f64 = 0.008;
/// The part of the starts that is left out at each end, where both sides ran in turns.
const TRIM: f64 = 0.2;
/// So many of a record's starts, the lowest, are taken for undisturbed.
const QUIET_STARTS: usize = 6;
/// Of those whose own scatter is at most this, a standard error as a part of the time.
const CALM: f64 = 0.02;
/// And this part of a start's turns.
const QUIET_TURNS: f64 = 0.1;
/// How far two records of the same program lie apart because they were made at different times (one standard deviation,
/// as a part of the time): with the yardstick taken off, and without one.
const APART: f64 = 0.003;
const APART_WITHOUT_YARDSTICK: f64 = 0.03;
/// How far a single start lies from the mean of many, with the machine's changes: what is assumed of a record that has one.
const ONE_START: f64 = 0.03;

/// What one start says: the logarithm of one time over another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// ln(candidate's time / base's time).
    pub log: f64,
    /// Its standard error by the scatter within the start.
    pub error: f64,
}

impl Reading {
    /// Of blocks that were timed in turns; `None` without any.
    pub fn of(base: &[f64], candidate: &[f64]) -> Option<Reading> {
        let pairs = base.iter().zip(candidate).filter(|(b, c)| **b > 0.0 && **c > 0.0);
        Reading::quantile(pairs.map(|(b, c)| (c / b).ln()).collect(), 0.5)
    }

    /// Of one side's blocks and, in turns with them, the yardstick's: the time that a tenth of the turns stay below, over
    /// the yardstick's; what disturbs only adds.
    pub fn over_yardstick(yardstick: &[f64], times: &[f64]) -> Option<Reading> {
        let logs = |times: &[f64]| times.iter().filter(|t| **t > 0.0).map(|t| t.ln()).collect::<Vec<_>>();
        let (below, above) =
            (Reading::quantile(logs(yardstick), QUIET_TURNS)?, Reading::quantile(logs(times), QUIET_TURNS)?);
        Some(Reading { log: above.log - below.log, error: above.error.hypot(below.error) })
    }

    /// A quantile of logarithms, with the standard error that it has of independent samples, whatever their distribution:
    /// half of what lies between the ranks that are one deviation of the binomial from it. They are not quite independent,
    /// which is why this is only a floor.
    fn quantile(logs: Vec<f64>, part: f64) -> Option<Reading> {
        let logs = sorted(&logs.into_iter().filter(|l| l.is_finite()).collect::<Vec<_>>());
        let reach = (part * (1.0 - part) / logs.len() as f64).sqrt();
        let at = |part: f64| quantile_sorted(&logs, part.clamp(0.0, 1.0));
        (!logs.is_empty()).then(|| Reading { log: at(part), error: (at(part + reach) - at(part - reach)) / 2.0 })
    }
}

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It takes less time.
    Faster,
    /// It takes more time; of a limit: by more than is allowed.
    Slower,
    /// The times differ by less than matters; of a limit: no slower than is allowed.
    Same,
    /// The interval does not say.
    Undecided,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    /// A slow-down up to this part is allowed; `None`: any difference is asked for.
    pub limit: Option<f64>,
    /// How many questions the same page asks.
    pub questions: usize,
}

impl Question {
    /// Whether two times differ, as one of so many questions.
    pub fn difference(questions: usize) -> Question {
        Question { limit: None, questions: questions.max(1) }
    }

    /// Whether a slow-down is more than is allowed.
    pub fn limit(allowed: f64) -> Question {
        Question { limit: Some(allowed), questions: 1 }
    }

    /// What an interval of the candidate's time over the base's says.
    pub fn answer(&self, ratio: &Interval) -> Answer {
        let Interval { estimate, low, high, .. } = *ratio;
        match self.limit {
            Some(allowed) if low > 1.0 + allowed => Answer::Slower,
            Some(allowed) if high < 1.0 + allowed => Answer::Same,
            Some(_) => Answer::Undecided,
            None if low > 1.0 && estimate >= 1.0 + LEAST_CHANGE => Answer::Slower,
            None if high < 1.0 && estimate <= 1.0 - LEAST_CHANGE => Answer::Faster,
            None if low > 1.0 - LEAST_CHANGE && high < 1.0 + LEAST_CHANGE => Answer::Same,
            None => Answer::Undecided,
        }
    }

    /// The chance to err of one look of several.
    fn chance(&self, looks: usize) -> f64 {
        (1.0 - CONFIDENCE) / (looks.max(1) * self.questions) as f64
    }

    /// Judges starts in which both sides were timed in turns; looked at once.
    pub fn judge(&self, starts: &[Reading]) -> Option<Judgement> {
        self.judgement(together(starts, self.chance(1))?, starts.len(), vec![])
    }

    /// Judges two records that were made apart, each start a time over the yardstick's, or a bare time.
    pub fn judge_apart(&self, base: &Record, candidate: &Record) -> Option<Judgement> {
        self.judgement(apart(base, candidate, self.chance(1))?, base.starts.len().min(candidate.starts.len()), vec![])
    }

    fn judgement(&self, ratio: Interval, starts: usize, readings: Vec<Reading>) -> Option<Judgement> {
        Some(Judgement { answer: self.answer(&ratio), ratio, starts, readings, seconds: None })
    }

    /// Starts until the answer is clear or the time is up; `tick` hears the seconds that went by. With a
    /// record, each start is a time over the yardstick's, and is held against the record's.
    pub fn ask<E>(
        &self,
        seconds: f64,
        record: Option<&Record>,
        start: &mut dyn FnMut() -> Result<Reading, E>,
        tick: &mut dyn FnMut(f64),
    ) -> Result<Option<Judgement>, E> {
        let clock = Instant::now();
        // With a record one look is taken, once the starts have settled.
        let looks: &[usize] = if record.is_some() { &[RECORD_STARTS.start] } else { &LOOKS };
        let mut readings = vec![];
        loop {
            readings.push(start()?);
            let spent = clock.elapsed().as_secs_f64();
            tick(spent);
            // The next start would take as long as these did. Fewer than the first look's say next to nothing: only what
            // is very slow ends before it.
            let enough = if readings.len() < looks[0] { seconds * PATIENCE } else { seconds };
            let over = readings.len() >= 2 && spent * (1.0 + 1.0 / readings.len() as f64) > enough;
            let last = match record {
                Some(_) => enough_starts(&readings),
                None => readings.len() >= looks[looks.len() - 1],
            };
            if !(over || last || record.is_none() && looks.contains(&readings.len())) {
                continue;
            }
            let chance = self.chance(looks.len());
            let ratio = match record {
                None => together(&readings, chance),
                Some(record) => {
                    apart(record, &Record { starts: readings.clone(), yardstick: record.yardstick }, chance)
                }
            };
            let done = over || last || ratio.is_some_and(|r| self.answer(&r) != Answer::Undecided);
            if done {
                let count = readings.len();
                let judged = ratio.and_then(|r| self.judgement(r, count, readings));
                return Ok(judged.map(|j| Judgement { seconds: Some(clock.elapsed().as_secs_f64()), ..j }));
            }
        }
    }
}

/// Whether a record has as many starts as it needs: its undisturbed ones lie close together, or there are very many.
pub fn enough_starts(starts: &[Reading]) -> bool {
    let settled = || {
        let wide = |m: Mean| student(m.freedom, 1.0 - CONFIDENCE) * m.variance.sqrt();
        Mean::undisturbed(starts).is_some_and(|m| wide(m) <= SETTLED)
    };
    starts.len() >= RECORD_STARTS.end || starts.len() >= RECORD_STARTS.start && settled()
}

/// An answer with what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The answer.
    pub answer: Answer,
    /// The candidate's time over the base's.
    pub ratio: Interval,
    /// Starts, on the side with fewer.
    pub starts: usize,
    /// What each start said, where they were made now.
    pub readings: Vec<Reading>,
    /// What it took, where it was measured now.
    pub seconds: Option<f64>,
}

/// The starts of one side that was measured alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The logarithm of a time over the yardstick's, or of a bare time.
    pub starts: Vec<Reading>,
    /// Whether it is over the yardstick's.
    pub yardstick: bool,
}

/// A mean of some of the starts, the variance of that mean, and its degrees of freedom.
struct Mean {
    mean: f64,
    variance: f64,
    freedom: f64,
}

impl Mean {
    /// Without the greatest and the least; `None` of fewer than two.
    fn middle(starts: &[Reading]) -> Option<Mean> {
        Mean::of(starts, |n| {
            let out = (TRIM * n as f64) as usize;
            out..n - out
        })
    }

    /// Of the starts that nothing disturbed; `None` of fewer than two. What disturbed the yardstick alone makes a start look
    /// fast: where its own turns lie far apart, it does not count.
    fn undisturbed(starts: &[Reading]) -> Option<Mean> {
        let calm: Vec<Reading> = starts.iter().copied().filter(|r| r.error <= CALM).collect();
        let starts = if calm.len() >= QUIET_STARTS { &calm[..] } else { starts };
        Mean::of(starts, |n| 0..n.min(QUIET_STARTS))
    }

    /// Of those that are kept of so many in rising order.
    fn of(starts: &[Reading], kept: impl Fn(usize) -> Range<usize>) -> Option<Mean> {
        let logs = sorted(&starts.iter().map(|r| r.log).filter(|l| l.is_finite()).collect::<Vec<_>>());
        let n = logs.len();
        let kept = logs.get(kept(n)).filter(|kept| kept.len() > 1)?;
        let h = kept.len() as f64;
        let mean = kept.iter().sum::<f64>() / h;
        // What was left out counts as the nearest that was kept.
        let winsorized: Vec<f64> = logs.iter().map(|l| l.clamp(kept[0], kept[kept.len() - 1])).collect();
        let middle = winsorized.iter().sum::<f64>() / n as f64;
        let squares: f64 = winsorized.iter().map(|l| (l - middle).powi(2)).sum();
        let within = median(&starts.iter().map(|r| r.error).collect::<Vec<_>>()).unwrap_or(0.0).powi(2) / n as f64;
        Some(Mean { mean, variance: (squares / (h * (h - 1.0))).max(within), freedom: h - 1.0 })
    }
}

/// Student's quantile that is exceeded on either side with this chance.
fn student(freedom: f64, chance: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom.max(1.0)).map_or(f64::INFINITY, |t| -t.inverse_cdf(chance / 2.0))
}

fn normal(chance: f64) -> f64 {
    Normal::new(0.0, 1.0).map_or(f64::INFINITY, |n| -n.inverse_cdf(chance / 2.0))
}

fn interval(log: f64, half: f64) -> Option<Interval> {
    let at = |by: f64| (log + by).exp();
    let made = Interval { estimate: at(0.0), low: at(-half), high: at(half), confidence: CONFIDENCE };
    (made.estimate.is_finite() && !half.is_nan()).then_some(made)
}

fn together(starts: &[Reading], chance: f64) -> Option<Interval> {
    let m = Mean::middle(starts)?;
    interval(m.mean, student(m.freedom, chance) * m.variance.sqrt())
}

fn apart(base: &Record, candidate: &Record, chance: f64) -> Option<Interval> {
    let between = if base.yardstick && candidate.yardstick { APART } else { APART_WITHOUT_YARDSTICK };
    match (Mean::undisturbed(&base.starts), Mean::undisturbed(&candidate.starts)) {
        (Some(b), Some(c)) => {
            // Welch: the two need not scatter alike.
            let sum = b.variance + c.variance;
            let parts = b.variance.powi(2) / b.freedom + c.variance.powi(2) / c.freedom;
            let freedom = if parts > 0.0 { sum * sum / parts } else { b.freedom + c.freedom };
            let half = (student(freedom, chance).powi(2) * sum + (normal(chance) * between).powi(2)).sqrt();
            interval(c.mean - b.mean, half)
        }
        // One start only: its luck is not known from itself.
        _ => {
            let one = |r: &Record| median(&r.starts.iter().map(|s| s.log).collect::<Vec<_>>());
            let count = |r: &Record| r.starts.len().max(1) as f64;
            let within = |r: &Record| r.starts.first().map_or(0.0, |s| s.error.powi(2));
            let luck = ONE_START.powi(2) * (1.0 / count(base) + 1.0 / count(candidate));
            let variance = luck + between.powi(2) + within(base) + within(candidate);
            interval(one(candidate)? - one(base)?, normal(chance) * variance.sqrt())
        }
    }
}

/// The least change that records of one start each can show, as a part of the time.
pub fn least_of_one_start() -> f64 {
    let record = Record { starts: vec![Reading { log: 0.0, error: 0.0 }], yardstick: false };
    apart(&record, &record, 1.0 - CONFIDENCE).map_or(f64::INFINITY, |i| i.high - 1.0)
}
