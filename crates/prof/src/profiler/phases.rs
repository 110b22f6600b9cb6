//! What is inside a loop that is one kernel of a device, told apart by leaving parts out.
//!
//! A device has times of kernels and none of what is inside them. So the loop's kernel is also compiled without one step of
//! its body, once for each step, with memory and barriers as ever, and all of these run in turns with the whole one, on the
//! same inputs and on memory of their own. What a turn takes less without a step is that step's part of it. Parts that run
//! at the same time hide each other: what is left when all are taken off is the rest, with waiting, inputs and results.

use super::rig::Rig;
use super::{Profiler, Result};
use crate::plot::unit::quantity;
use crate::stats::{Interval, Random, Resampling, Spread, median_interval};
use schwann_core::Figure;
use schwann_core::backend::{LeftOut, Timeline};
use schwann_core::figure::Ends;
use schwann_core::plan::sites;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Instant;

/// Whether to find out what takes the time inside loops that are one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phases {
    /// Where it takes less than [`AUTO_SECONDS`].
    #[default]
    Auto,
    /// However long it takes.
    Always,
    /// Not at all.
    Never,
}

/// What [`Phases::Auto`] may take for a loop, with compiling.
pub const AUTO_SECONDS: f64 = 10.0;
/// Turns: as many as the options' seconds allow, within these.
const LEAST_TURNS: usize = 15;
const MOST_TURNS: usize = 200;
/// Runs before the first turn: how a long run is cut into submissions is learned from the first ones.
const WARM_UP: usize = 3;
/// What parts may be more than the whole, of the whole, before none of them is believed.
const MOST_BEYOND: f64 = 0.05;
/// How sure all answers about a loop are together.
const CONFIDENCE: f64 = 0.95;

/// A loop told apart.
pub(super) struct Parted {
    /// What each step of the body takes of the loop's time.
    pub(super) parts: Vec<Part>,
    /// What is left of it.
    pub(super) rest: Part,
    /// Turns that this rests on.
    pub(super) turns: usize,
}

/// A part of a loop's time.
pub(super) enum Part {
    /// So much of it: 1 is all.
    Share(Interval),
    /// Too little to be told from nothing.
    Hidden(Interval),
    /// Not measured, for this reason.
    Unknown(String),
}

impl Part {
    /// An interval is a share where it excludes nothing at all.
    fn of(interval: Interval) -> Part {
        if interval.low > 0.0 { Part::Share(interval) } else { Part::Hidden(interval) }
    }

    /// Its share of the loop's time, where that is known.
    fn share(&self) -> Option<f64> {
        match self {
            Part::Share(interval) => Some(interval.estimate),
            _ => None,
        }
    }
}

impl Part {
    /// Its seconds, where the whole loop takes so many.
    pub(super) fn seconds(&self, whole: &Figure, source: &str, turns: usize) -> Figure {
        let Some(seconds) = whole.value else { return whole.clone() };
        let spread = |i: &Interval| Spread {
            low: i.low * seconds,
            high: i.high * seconds,
            ends: Ends::Confidence95,
            samples: turns as u64,
        };
        match self {
            Part::Share(i) => Figure::derived(i.estimate * seconds, "s", source).with_spread(spread(i)),
            Part::Hidden(i) => {
                let [low, high] = [i.low, i.high].map(|end| quantity(end * seconds, "s"));
                let why = format!("below what can be told apart: it is between {low} and {high} of a run");
                Figure::unavailable("s", source, why)
            }
            Part::Unknown(why) => Figure::unavailable("s", source, why.clone()),
        }
    }
}

/// What was found inside of loops that are one kernel.
#[derive(Default)]
pub(super) struct Inside {
    /// By the loop's place in the plan.
    pub(super) loops: HashMap<Vec<usize>, std::result::Result<Parted, String>>,
    /// Seconds that this took; none where there are no such loops.
    pub(super) cost: Option<Figure>,
}

/// Seconds of the loop, turn by turn.
struct Turns {
    /// As it is always run.
    usual: Vec<f64>,
    /// With nothing left out, by a kernel like those that leave something out.
    whole: Vec<f64>,
    /// Without each step; or why there are none.
    without: Vec<std::result::Result<Vec<f64>, String>>,
}

impl Profiler<'_> {
    /// Tells apart what is inside of each loop that is one kernel.
    pub(super) fn inside(&mut self, rig: &Rig) -> Result<Inside> {
        let mut inside = Inside::default();
        let all = sites(rig.plan());
        let loops = all.iter().filter_map(|site| {
            let looped = site.step.looped.as_ref().filter(|looped| looped.workgroup.is_some())?;
            Some((&site.path, looped.body.steps.len()))
        });
        let loops: Vec<_> = loops.collect();
        if loops.is_empty() {
            return Ok(inside);
        }
        let (start, seconds) = (Instant::now(), self.options.seconds / loops.len() as f64);
        for (path, steps) in &loops {
            let found = self.phases_of(rig, path, *steps, seconds)?;
            inside.loops.insert((*path).clone(), found);
        }
        let source = "compiling loops' kernels with parts left out, and running them in turns with the whole";
        let mut why = inside.loops.values().filter_map(|found| found.as_ref().err());
        inside.cost = Some(match why.next().filter(|_| inside.loops.values().all(|found| found.is_err())) {
            Some(why) => Figure::unavailable("s", source, why.clone()),
            None => Figure::measured(start.elapsed().as_secs_f64(), "s", source),
        });
        Ok(inside)
    }

    /// Tells the steps of a loop's body apart; or says why not.
    fn phases_of(
        &mut self,
        rig: &Rig,
        looped: &[usize],
        steps: usize,
        seconds: f64,
    ) -> Result<std::result::Result<Parted, String>> {
        if self.phases == Phases::Never {
            return Ok(Err("nobody asked for its parts (`--phases never`)".into()));
        }
        self.tell("inside of loops", 0.0);
        let start = Instant::now();
        let left_out = |step| LeftOut { looped: looped.to_vec(), step };
        let mut whole = match rig.without(&left_out(None)) {
            Ok(Some(whole)) => whole,
            Ok(None) => return Ok(Err("this backend has no kernels with parts left out".into())),
            Err(why) => return Ok(Err(format!("its kernel could not be made for measuring: {why}"))),
        };
        let mut usual = rig.afresh()?;
        let first = start.elapsed().as_secs_f64();
        let mut timeline = Timeline::default();
        let mut run = |rig: &mut Rig| -> Result<f64> {
            rig.reset();
            timeline.clear();
            rig.watch(1, &mut timeline)?;
            let totals = timeline.totals();
            let at = totals.places.iter().find(|place| place.path == looped);
            // What the device does meanwhile beside it is none of its business.
            Ok(at.map_or(f64::NAN, |place| place.busy_s))
        };
        for rig in [&mut usual, &mut whole] {
            (0..WARM_UP).try_for_each(|_| run(rig).map(drop))?;
        }
        let now = Instant::now();
        run(&mut usual)?;
        let turn = now.elapsed().as_secs_f64() * (steps + 2) as f64;
        let expected = steps as f64 * first + (WARM_UP + LEAST_TURNS) as f64 * turn;
        if self.phases == Phases::Auto && expected > AUTO_SECONDS {
            let why = "its parts would take about {} s more to tell apart; --phases always does so";
            return Ok(Err(why.replace("{}", &format!("{expected:.0}"))));
        }
        let mut without = vec![];
        for step in 0..steps {
            self.check_cancelled()?;
            let made = rig.without(&left_out(Some(step))).map_err(|why| why.to_string());
            without.push(made.and_then(|made| made.ok_or_else(|| "the kernel cannot do without it".to_owned())));
        }
        let mut turns = Turns { usual: vec![], whole: vec![], without: vec![] };
        for side in &mut without {
            let warmed = match side {
                Ok(rig) => (0..WARM_UP).try_for_each(|_| run(rig).map(drop)),
                Err(_) => Ok(()),
            };
            if let Err(why) = warmed {
                *side = Err(format!("the loop does not run without it: {why}"));
            }
            turns.without.push(side.as_ref().map(|_| vec![]).map_err(String::clone));
        }
        let (mut order, mut random): (Vec<usize>, _) = ((0..steps + 2).collect(), Random::new(1));
        let start = Instant::now();
        for turn in 0..MOST_TURNS {
            let spent = start.elapsed().as_secs_f64() / seconds;
            if turn >= LEAST_TURNS && spent > 1.0 {
                break;
            }
            if self.check_cancelled().is_err() {
                return Ok(Err("stopped before its parts were told apart".into()));
            }
            self.tell("inside of loops", spent.max(turn as f64 / MOST_TURNS as f64).min(1.0));
            // Every second turn is the one before it backwards, so that nobody always comes first, or after the same.
            match turn % 2 {
                0 => (1..order.len()).rev().for_each(|i| order.swap(i, random.below(i + 1))),
                _ => order.reverse(),
            }
            for &which in &order {
                match which {
                    0 => turns.usual.push(run(&mut usual)?),
                    1 => turns.whole.push(run(&mut whole)?),
                    other => {
                        if let (Ok(rig), Ok(times)) = (&mut without[other - 2], &mut turns.without[other - 2]) {
                            times.push(run(rig)?);
                        }
                    }
                }
            }
        }
        Ok(turns.parted())
    }
}

impl Turns {
    /// What the turns say.
    fn parted(self) -> std::result::Result<Parted, String> {
        let turns = self.usual.len();
        // All answers together are as sure as one should be.
        let confidence = 1.0 - (1.0 - CONFIDENCE) / (self.without.len() + 1) as f64;
        let how = Resampling { confidence, ..Resampling::default() };
        let part_of = |turn: usize, seconds: &[f64]| (self.whole[turn] - seconds[turn]) / self.usual[turn];
        let share = |seconds: &Vec<f64>| {
            let shares: Vec<f64> = (0..turns).map(|turn| part_of(turn, seconds)).collect();
            median_interval(&shares, &how).map_or(Part::Unknown("its turns took no time".into()), Part::of)
        };
        let parts: Vec<Part> = (self.without.iter())
            .map(|seconds| match seconds {
                Ok(seconds) => share(seconds),
                Err(why) => Part::Unknown(why.clone()),
            })
            .collect();
        let told: Vec<&Vec<f64>> = (parts.iter().zip(&self.without))
            .filter_map(|(part, seconds)| part.share().and(seconds.as_ref().ok()))
            .collect();
        if told.is_empty() {
            return Err("none of its parts can be told apart: without any of them the loop takes as long".into());
        }
        let left = |turn: usize| 1.0 - told.iter().map(|seconds| part_of(turn, seconds)).sum::<f64>();
        let left: Vec<f64> = (0..turns).map(left).collect();
        let Some(rest) = median_interval(&left, &how) else { return Err("its turns took no time".into()) };
        // The parts add up to the whole.
        let estimate = 1.0 - parts.iter().filter_map(Part::share).sum::<f64>();
        if rest.high <= 0.0 || estimate < -MOST_BEYOND {
            let why =
                "its parts cannot be told apart: what leaving out each by itself saves is more than the loop takes";
            return Err(why.into());
        }
        let rest = Interval { estimate, low: rest.low.min(estimate), high: rest.high.max(estimate), ..rest };
        Ok(Parted { parts, rest: Part::of(rest), turns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns in which the loop takes 10, without its steps so much less, and everything scatters by up to so much.
    fn turns(parts: &[f64], scatter: f64, seed: u64) -> Turns {
        let mut random = Random::new(seed);
        let mut side =
            |seconds: f64| (0..30).map(|_| seconds + scatter * (2.0 * random.uniform() - 1.0)).collect::<Vec<f64>>();
        Turns {
            usual: side(10.0),
            whole: side(11.0),
            without: parts.iter().map(|part| Ok(side(11.0 - part))).collect(),
        }
    }

    #[test]
    fn parts_and_the_rest_are_the_whole() {
        let parted = turns(&[5.0, 2.0, 0.0], 0.0, 1).parted().unwrap();
        let shares: Vec<Option<f64>> = parted.parts.iter().map(Part::share).collect();
        assert_eq!(shares, [Some(0.5), Some(0.2), None]);
        assert!(matches!(parted.parts[2], Part::Hidden(Interval { estimate: 0.0, .. })));
        assert!((parted.rest.share().unwrap() - 0.3).abs() < 1e-12);
    }

    #[test]
    fn what_takes_nothing_is_hidden_however_it_scatters() {
        let mut wrong = 0;
        for seed in 0..200 {
            let parted = turns(&[5.0, 0.0], 0.5, seed).parted().unwrap();
            let Part::Share(interval) = &parted.parts[0] else { panic!("half of the time is a share") };
            assert!(interval.low > 0.4 && interval.high < 0.6, "{interval:?}");
            match &parted.parts[1] {
                Part::Hidden(interval) => assert!(interval.low <= 0.0, "{interval:?}"),
                _ => wrong += 1,
            }
        }
        assert!(wrong <= 6, "{wrong} of 200 parts that take nothing got a number");
    }

    #[test]
    fn parts_that_are_more_than_the_whole_or_nothing_are_refused() {
        let why = turns(&[8.0, 8.0], 0.01, 1).parted().err().unwrap();
        assert!(why.contains("more than the loop takes"), "{why}");
        let why = turns(&[-0.1, -1.0], 0.01, 1).parted().err().unwrap();
        assert!(why.contains("takes as long"), "{why}");
    }

    #[test]
    fn a_part_that_could_not_be_left_out_says_why() {
        let mut turns = turns(&[5.0, 1.0], 0.0, 1);
        turns.without[1] = Err("no".into());
        let parted = turns.parted().unwrap();
        assert!(matches!(&parted.parts[1], Part::Unknown(why) if why == "no"));
        assert!((parted.rest.share().unwrap() - 0.5).abs() < 1e-12);
    }
}
