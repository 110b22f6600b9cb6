//! Successive halving: all candidates are timed a little, in turns with the default; the better half is timed for longer,
//! and so on until few are left.
//!
//! A candidate is never held against another one, which ran at another time, but each against the default that took turns
//! with it. What comes out is an order and not yet a verdict: the first of many is first by luck too, so that its times must
//! be taken again ([`super::Tuner`] does that in starts of the process that nobody chose by their outcome).

use super::{Error, Result};
use crate::stats::verdict::Reading;
use crate::stats::{Random, median};
use std::cmp::Ordering;

/// Candidates that take turns with one default.
const GROUP: usize = 6;
/// The scatter from one making of a program to the next (where its memory lies), as a part of the time.
const LUCK: f64 = 0.004;

/// What one group of candidates measured beside the default, turn by turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Heat {
    /// Seconds of the default.
    pub(super) base: Vec<f64>,
    /// Seconds of each candidate in the same turns, or why there are none.
    pub(super) times: Vec<std::result::Result<Vec<f64>, String>>,
}

/// Where candidates are timed.
pub(super) trait Field {
    /// Times the default and these candidates in turns, for so many seconds in all.
    fn heat(&mut self, candidates: &[usize], seconds: f64) -> Result<Heat>;
    /// Seconds that went by since some moment.
    fn clock(&self) -> f64;
}

/// How a candidate stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Standing {
    /// Which.
    pub(super) candidate: usize,
    /// What its heats said: its time over the default's.
    pub(super) readings: Vec<Reading>,
    /// Why it is out of the race, where it failed.
    pub(super) failed: Option<String>,
}

impl Standing {
    fn new(candidate: usize) -> Standing {
        Standing { candidate, readings: vec![], failed: None }
    }

    /// The logarithm of its time over the default's, with its standard error; the more exact heats count for more.
    pub(super) fn log(&self) -> Option<(f64, f64)> {
        let weight = |r: &Reading| 1.0 / (r.error * r.error + LUCK * LUCK);
        let sum: f64 = self.readings.iter().map(weight).sum();
        (sum > 0.0).then(|| (self.readings.iter().map(|r| weight(r) * r.log).sum::<f64>() / sum, sum.sqrt().recip()))
    }

    /// Rounds that it took part in.
    pub(super) fn rounds(&self) -> usize {
        self.readings.len()
    }
}

/// Rounds until no more than so many are left.
fn rounds(mut alive: usize, survivors: usize) -> usize {
    let mut rounds = 1;
    while alive > survivors {
        alive = alive.div_ceil(2);
        rounds += 1;
    }
    rounds
}

/// Races these candidates for so many seconds; all of them come back, best first, those that failed last. `cost` is added to
/// a candidate's logarithm, where time is not all that counts. `tell` hears which part is done; where it says so, the race
/// ends with what is known.
pub(super) fn race(
    field: &mut dyn Field,
    candidates: &[usize],
    cost: &dyn Fn(usize) -> f64,
    (seconds, survivors): (f64, usize),
    seed: u64,
    tell: &mut dyn FnMut(f64),
) -> Result<Vec<Standing>> {
    let mut alive: Vec<Standing> = candidates.iter().map(|c| Standing::new(*c)).collect();
    let mut out: Vec<Standing> = vec![];
    let mut random = Random::new(seed);
    let (began, survivors) = (field.clock(), survivors.max(1));
    let score = |s: &Standing| s.log().map_or(f64::INFINITY, |(log, _)| log + cost(s.candidate));
    let better = |a: &Standing, b: &Standing| -> Ordering {
        // Of what was timed more often more is known, whatever the others' luck was.
        b.rounds().cmp(&a.rounds()).then(score(a).total_cmp(&score(b))).then(a.candidate.cmp(&b.candidate))
    };
    while !alive.is_empty() {
        let left = rounds(alive.len(), survivors);
        (1..alive.len()).rev().for_each(|i| alive.swap(i, random.below(i + 1)));
        let heats = alive.len().div_ceil(GROUP);
        for (heat, group) in alive.chunks_mut(GROUP).enumerate() {
            // Of the time that is left, each round has an equal part, and each heat of it too.
            let spent = field.clock() - began;
            tell((spent / seconds).min(1.0));
            let round = (heats - heat) as f64 + (heats * (left - 1)) as f64;
            let share = ((seconds - spent) / round).max(0.0);
            let ids: Vec<usize> = group.iter().map(|s| s.candidate).collect();
            let found = match field.heat(&ids, share) {
                Ok(found) => found,
                Err(Error::Cancelled) => {
                    out.append(&mut alive);
                    out.sort_by(better);
                    return Ok(out);
                }
                Err(e) => return Err(e),
            };
            for (standing, times) in group.iter_mut().zip(found.times) {
                match times.map(|times| Reading::of(&found.base, &times)) {
                    Ok(Some(reading)) => standing.readings.push(reading),
                    Ok(None) => standing.failed = Some("it was not timed".into()),
                    Err(why) => standing.failed = Some(why),
                }
            }
        }
        let (failed, mut ran): (Vec<_>, Vec<_>) =
            std::mem::take(&mut alive).into_iter().partition(|s| s.failed.is_some());
        out.extend(failed);
        ran.sort_by(better);
        if left <= 1 {
            out.extend(ran);
            break;
        }
        let keep = ran.len().div_ceil(2).max(survivors).min(ran.len());
        out.extend(ran.split_off(keep));
        alive = ran;
    }
    let (failed, mut ran): (Vec<_>, Vec<_>) = out.into_iter().partition(|s| s.failed.is_some());
    ran.sort_by(better);
    ran.extend(failed);
    Ok(ran)
}

/// The median of a candidate's times, where it has any.
pub(crate) fn middle(times: &[f64]) -> Option<f64> {
    median(times)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Candidates of known speed, with noise of a known size, and a clock that only heats move on.
    pub(crate) struct Simulated {
        /// Each one's time over the default's.
        pub(crate) ratios: Vec<f64>,
        pub(crate) noise: f64,
        pub(crate) random: Random,
        pub(crate) clock: f64,
        /// How often each was timed.
        pub(crate) timed: Vec<usize>,
        /// After so many heats somebody asks for an end.
        pub(crate) stop_after: usize,
    }

    impl Simulated {
        pub(crate) fn new(ratios: Vec<f64>, noise: f64, seed: u64) -> Simulated {
            let timed = vec![0; ratios.len()];
            Simulated { ratios, noise, random: Random::new(seed), clock: 0.0, timed, stop_after: usize::MAX }
        }
    }

    impl Field for Simulated {
        fn heat(&mut self, candidates: &[usize], seconds: f64) -> Result<Heat> {
            if self.stop_after == 0 {
                return Err(Error::Cancelled);
            }
            self.stop_after -= 1;
            let turns = ((seconds / (candidates.len() + 1) as f64 / 1e-3) as usize).max(3);
            self.clock += turns as f64 * (candidates.len() + 1) as f64 * 1e-3;
            let mut heat = Heat { base: vec![], times: candidates.iter().map(|_| Ok(vec![])).collect() };
            for _ in 0..turns {
                // What disturbs a turn disturbs all that are in it.
                let disturbed = if self.random.below(10) == 0 { 1.3 } else { 1.0 };
                let mut draw = |ratio: f64| ratio * disturbed * (1.0 + self.noise * (self.random.uniform() - 0.5));
                heat.base.push(draw(1.0));
                for (c, times) in candidates.iter().zip(&mut heat.times) {
                    if self.ratios[*c].is_nan() {
                        *times = Err("it cannot be".into());
                    } else if let Ok(times) = times {
                        times.push(draw(self.ratios[*c]));
                    }
                }
            }
            candidates.iter().for_each(|c| self.timed[*c] += turns);
            Ok(heat)
        }
        fn clock(&self) -> f64 {
            self.clock
        }
    }

    fn run(field: &mut Simulated, seconds: f64) -> Vec<Standing> {
        let all: Vec<usize> = (0..field.ratios.len()).collect();
        race(field, &all, &|_| 0.0, (seconds, 3), 1, &mut |_| {}).unwrap()
    }

    #[test]
    fn the_fastest_of_many_comes_first_and_gets_most_of_the_time() {
        for seed in 0..20 {
            let mut ratios = vec![1.0; 60];
            ratios[17] = 0.90;
            ratios[41] = 1.5;
            let mut field = Simulated::new(ratios, 0.1, seed);
            let found = run(&mut field, 10.0);
            assert_eq!((found.len(), found[0].candidate), (60, 17), "seed {seed}");
            assert!((found[0].log().unwrap().0.exp() - 0.9).abs() < 0.01);
            assert!(field.timed[17] > 8 * field.timed[41], "{:?}", field.timed);
            assert!((9.0..11.5).contains(&field.clock), "it took {} s of 10", field.clock);
        }
    }

    #[test]
    fn a_candidate_that_fails_is_last_and_says_why() {
        let mut field = Simulated::new(vec![1.0, f64::NAN, 0.8], 0.05, 1);
        let found = run(&mut field, 1.0);
        assert_eq!(found.iter().map(|s| s.candidate).collect::<Vec<_>>(), [2, 0, 1]);
        assert_eq!(found[2].failed.as_deref(), Some("it cannot be"));
    }

    #[test]
    fn an_end_in_the_middle_keeps_what_was_timed() {
        let mut field = Simulated::new(vec![1.0; 30], 0.05, 1);
        field.ratios[4] = 0.5;
        field.stop_after = 8;
        let found = run(&mut field, 10.0);
        assert_eq!((found.len(), found[0].candidate), (30, 4));
        let mut none = Simulated::new(vec![1.0; 5], 0.05, 1);
        none.stop_after = 0;
        assert!(run(&mut none, 1.0).iter().all(|s| s.log().is_none()));
    }

    #[test]
    fn what_counts_beside_time_is_added() {
        let mut field = Simulated::new(vec![1.0, 0.9], 0.01, 1);
        let cost = |c: usize| if c == 1 { 0.2 } else { 0.0 };
        let found = race(&mut field, &[0, 1], &cost, (1.0, 1), 1, &mut |_| {}).unwrap();
        assert_eq!(found[0].candidate, 0);
    }

    #[test]
    fn nothing_to_race_is_no_race() {
        assert!(race(&mut Simulated::new(vec![], 0.0, 1), &[], &|_| 0.0, (1.0, 3), 1, &mut |_| {}).unwrap().is_empty());
    }
}
