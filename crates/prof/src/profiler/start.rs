//! One start of the process: what is compared runs in turns, block by block.
//!
//! A process has its luck: where its memory lies, which core it got. Everything it measures shares that luck, so however
//! many samples it takes, they tell of one draw. What is compared is therefore measured in several starts, each with a
//! luck of its own, and [`crate::stats::verdict`] judges by how far the starts lie apart.
//!
//! Whoever has a program to start gives [`Starter`]s, which run [`turns`] in a child process; without one, everything is
//! compiled anew in this process for each start, with memory of its own, which is most of the luck and not all.

use super::compare::start_seconds;
use super::rig::Rig;
use super::{Error, Options, Profiler, Result, Subject};
use crate::profile::Starts;
use crate::stats::verdict::{RECORD_STARTS, Reading, enough_starts};
use crate::stats::{Random, median};
use schwann_core::Series;
use schwann_kernels::{Isa, peak};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// A block lasts at least this long: reading the clock is then a part in a thousand of it.
const LEAST_BLOCK: f64 = 100e-6;
/// Filling the caches again is a small part of a run from here on.
const LONG_RUN: f64 = 0.01;
/// The longest row of turns that is kept.
const MOST_TURNS: usize = 4000;
/// Turns of even the slowest thing.
const LEAST_TURNS: usize = 2;
/// The part of a start's time that goes into warming up.
const WARM_UP: f64 = 0.2;

/// A fixed piece of work, timed in turns with a model so that a machine that got slower does not pose as a model that
/// did: chains of multiply-adds that never leave the registers. It is no code that is tuned, so it takes as long in every
/// version of this program; and it has no memory, whose place would be one more piece of luck. Profiles of unlike
/// yardsticks are not held against each other by them; the number changes with the way that a start is summed up, too.
pub const YARDSTICK: &str = "multiply-adds in registers, 2";
const YARDSTICK_ROUNDS: usize = 10_000;

/// A model made ready to run, timed block by block.
pub struct Timed {
    rig: Rig,
    runs: usize,
    /// Seconds of a run, about.
    each: f64,
}

impl Timed {
    /// Compiled anew, with memory of its own.
    pub fn new(subject: &Subject, options: &Options) -> Result<Timed> {
        Ok(Timed { rig: Rig::new(subject, options)?, runs: 1, each: 0.0 })
    }

    /// The model as it runs.
    pub(crate) fn rig(&mut self) -> &mut Rig {
        &mut self.rig
    }

    /// Runs for so many seconds (twice at least), and settles how many runs a block is.
    pub fn warm_up(&mut self, seconds: f64) -> Result<()> {
        let start = Instant::now();
        let mut each = self.rig.run(1)?;
        loop {
            self.runs = ((LEAST_BLOCK / each.max(1e-9)).ceil() as usize).clamp(1, 1 << 20);
            each = each.min(self.rig.run(self.runs)? / self.runs as f64);
            if start.elapsed().as_secs_f64() >= seconds {
                break;
            }
        }
        self.runs = ((LEAST_BLOCK / each.max(1e-9)).ceil() as usize).clamp(1, 1 << 20);
        self.each = each;
        Ok(())
    }

    /// Seconds of a run: the mean of one block.
    pub fn block(&mut self) -> Result<f64> {
        // What ran in between has taken the caches; of a long run that is no part worth a run.
        if self.each < LONG_RUN {
            self.rig.run(1)?;
        }
        Ok(self.rig.run(self.runs)? / self.runs as f64)
    }
}

/// Seconds of the yardstick, once.
fn yardstick() -> f64 {
    let start = Instant::now();
    peak::burst(Isa::detect(), YARDSTICK_ROUNDS);
    start.elapsed().as_secs_f64()
}

/// What one start measured: seconds a run of each side, turn by turn; where it was asked for, the yardstick's in the
/// same turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Turns {
    /// Seconds a run, by side and turn; all sides have as many turns.
    pub sides: Vec<Vec<f64>>,
    /// Seconds of the yardstick by turn; empty where it was not asked for.
    pub yardstick: Vec<f64>,
}

/// Measures sides in turns for so many seconds, in an order that changes from turn to turn. This is what a child process
/// does.
pub fn turns(sides: &[(&Subject, &Options)], with_yardstick: bool, seconds: f64) -> Result<Turns> {
    let mut ready = sides.iter().map(|(subject, options)| Timed::new(subject, options)).collect::<Result<Vec<_>>>()?;
    for side in &mut ready {
        side.warm_up(seconds * WARM_UP / sides.len() as f64)?;
    }
    let mut found = Turns { sides: vec![vec![]; sides.len()], yardstick: vec![] };
    let mut order: Vec<usize> = (0..sides.len() + usize::from(with_yardstick)).collect();
    let mut random = Random::new(u64::from(std::process::id()));
    let start = Instant::now();
    for turn in 0..MOST_TURNS {
        if turn >= LEAST_TURNS && start.elapsed().as_secs_f64() > seconds {
            break;
        }
        // Every second turn is the one before it backwards, so that nobody is always the first.
        match turn % 2 {
            0 => (1..order.len()).rev().for_each(|i| order.swap(i, random.below(i + 1))),
            _ => order.reverse(),
        }
        for &which in &order {
            match ready.get_mut(which) {
                Some(side) => found.sides[which].push(side.block()?),
                None => found.yardstick.push(yardstick()),
            }
        }
    }
    Ok(found)
}

/// Measures sides in turns in a process of its own: sides by the profiler's subject, whether the yardstick is wanted, and
/// for how many seconds.
pub type Starter<'a> = Box<dyn FnMut(&[Options], bool, f64) -> Result<Turns> + 'a>;

impl<'a> Profiler<'a> {
    /// With a way to start processes that measure: each runs [`turns`] and gives what it found. Without it, all starts
    /// are in this process.
    pub fn starting(mut self, start: impl FnMut(&[Options], bool, f64) -> Result<Turns> + 'a) -> Self {
        self.starter = Some(Box::new(start));
        self
    }

    /// The run in several starts of the process, for later comparisons; `None` where there is no program to start.
    pub fn starts(&mut self) -> Result<Option<Starts>> {
        if self.starter.is_none() {
            return Ok(None);
        }
        let seconds = start_seconds(self.options.seconds);
        let options = [self.options.clone()];
        let (mut times, mut yardsticks, mut readings) = (vec![], vec![], vec![]);
        while !enough_starts(&readings) {
            let usual = readings.len() as f64 / RECORD_STARTS.start as f64;
            // Where it takes more than the usual number, the rest of the bar is for those.
            let most = readings.len() as f64 / RECORD_STARTS.end as f64;
            self.tell("other starts of the process", (0.7 * usual).min(0.7) + 0.3 * most);
            let found = self.start(&options, true, seconds)?;
            let times_of = found.sides.first().map_or(&[][..], |s| s);
            let reading = Reading::over_yardstick(&found.yardstick, times_of);
            readings.push(reading.ok_or_else(|| Error::Start { what: "it measured nothing".into() })?);
            times.extend(median(times_of));
            yardsticks.extend(median(&found.yardstick));
        }
        let source = format!("system clock, median of each of {} starts of the process", readings.len());
        let over = "run over yardstick, each the time that a tenth of a start's turns stay below";
        Ok(Some(Starts {
            time: Series::measured(times, "s", source.clone()),
            yardstick_name: YARDSTICK.into(),
            yardstick: Series::measured(yardsticks, "s", source),
            ratio: Series::derived(readings.iter().map(|r| r.log.exp()), "×", over),
            error: Series::derived(readings.iter().map(|r| r.error), "1", "scatter within each start"),
        }))
    }

    /// One start, in a process of its own where that can be had.
    pub(super) fn start(&mut self, sides: &[Options], with_yardstick: bool, seconds: f64) -> Result<Turns> {
        self.check_cancelled()?;
        let found = match &mut self.starter {
            Some(start) => start(sides, with_yardstick, seconds),
            None => {
                let sides: Vec<_> = sides.iter().map(|options| (&self.subject, options)).collect();
                turns(&sides, with_yardstick, seconds)
            }
        };
        // Whoever interrupts this process interrupts its children too.
        self.check_cancelled()?;
        found
    }
}
