//! The same search for anything that can be called: several ways to do one thing, timed in turns, the best one kept.

use super::race::{Field, Heat, middle, race};
use super::search::Verdict;
use super::store::{Key, Store};
use super::{Error, Result};
use crate::db::Place;
use crate::profiler::now;
use crate::stats::Random;
use crate::stats::verdict::{Answer, Question, Reading};
use schwann_core::Figure;
use schwann_core::figure::{Ends, Spread};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// A block of calls lasts at least this long: reading the clock is then a part in a thousand of it.
const LEAST_BLOCK: f64 = 100e-6;
/// Turns of a heat, at least.
const LEAST_TURNS: usize = 4;
/// The part of the time that the race takes; the rest is for the best one against the first.
const RACE: f64 = 0.6;

/// Finds the best of several ways to do one thing, and remembers it.
///
/// ```
/// # use schwann_prof::tune::AutoTuner;
/// let mut tuner = AutoTuner::new().budget(0.2);
/// let numbers: Vec<u64> = (0..4096).collect();
/// // The first is the one that stays unless another is surely faster.
/// let found = tuner.benchmark_operation("sum", &[1usize, 64, 1024], |chunk| {
///     let sum: u64 = numbers.chunks(*chunk).map(|part| part.iter().sum::<u64>()).sum();
///     std::hint::black_box(sum);
///     Ok::<(), std::io::Error>(())
/// })?;
/// assert_eq!(tuner.get_optimal_config::<usize>("sum")?, Some(found.config));
/// # Ok::<(), schwann_prof::tune::Error>(())
/// ```
#[derive(Debug)]
pub struct AutoTuner {
    seconds: f64,
    seed: u64,
    kept: BTreeMap<String, String>,
    store: Option<Store>,
}

impl Default for AutoTuner {
    fn default() -> AutoTuner {
        AutoTuner { seconds: 5.0, seed: 1, kept: BTreeMap::new(), store: None }
    }
}

/// One configuration with what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial<C> {
    /// It.
    pub config: C,
    /// Median seconds of a call.
    pub time: Figure,
    /// Its time over that of the first that works, in the same turns.
    pub ratio: Figure,
    /// Why it failed, where it did.
    pub failed: Option<String>,
}

/// The best configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Optimum<C> {
    /// It.
    pub config: C,
    /// Whether it is surely faster than the first that works, or is that one.
    pub verdict: Verdict,
    /// The first one's time over its own, measured anew after the choice.
    pub gain: Figure,
    /// All of them, best first.
    pub trials: Vec<Trial<C>>,
}

/// What is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    config: serde_json::Value,
    gain: Figure,
}

impl AutoTuner {
    /// One that remembers for as long as it lives.
    pub fn new() -> AutoTuner {
        AutoTuner::default()
    }

    /// One that remembers in a file, or on a server, for this machine and this version of the program.
    pub fn kept_in(place: &Place) -> Result<AutoTuner> {
        Ok(AutoTuner { store: Some(Store::create(place)?), ..AutoTuner::default() })
    }

    /// With so many seconds for each operation.
    pub fn budget(mut self, seconds: f64) -> AutoTuner {
        self.seconds = seconds;
        self
    }

    /// Times `f` with each configuration in turns, and keeps the best one under the operation's name. The first one stays
    /// unless another is surely faster. One that fails is left out; where all do, that is an error.
    pub fn benchmark_operation<C, E>(
        &mut self,
        name: &str,
        configs: &[C],
        mut f: impl FnMut(&C) -> Result<(), E>,
    ) -> Result<Optimum<C>>
    where
        C: Serialize + Clone,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if configs.is_empty() {
            return Err(Error::option("configs", "empty", "one at least"));
        }
        if !(self.seconds > 0.0 && self.seconds <= 86_400.0) {
            return Err(Error::option("budget", self.seconds, "more than 0 s and at most a day"));
        }
        let documents: Vec<serde_json::Value> = configs
            .iter()
            .map(|c| serde_json::to_value(c).map_err(|e| Error::Kept { operation: name.into(), what: e.to_string() }))
            .collect::<Result<_>>()?;
        let mut call = |which: usize| f(&configs[which]).map_err(Into::into);
        // Each is called once: it may fail, and the first call is the slowest.
        let mut failed: Vec<Option<String>> = vec![];
        let mut each = vec![];
        for which in 0..configs.len() {
            let clock = Instant::now();
            failed.push(call(which).err().map(|e: Box<dyn std::error::Error + Send + Sync>| e.to_string()));
            each.push(clock.elapsed().as_secs_f64());
        }
        let Some(base) = failed.iter().position(Option::is_none) else {
            let first = failed.into_iter().flatten().next().unwrap_or_default();
            return Err(Error::NoneWorks { operation: name.into(), count: configs.len(), first });
        };
        let others: Vec<usize> = (0..configs.len()).filter(|c| *c != base && failed[*c].is_none()).collect();
        let runs = vec![1; configs.len()];
        let times = vec![vec![]; configs.len()];
        let mut track = Track {
            call: &mut call,
            base,
            runs,
            each,
            times,
            operation: name,
            documents: &documents,
            began: Instant::now(),
            random: Random::new(self.seed),
        };
        let raced = race(&mut track, &others, &|_| 0.0, (self.seconds * RACE, 1), self.seed, &mut |_| {})?;
        if others.is_empty() {
            track.heat(&[], 0.0)?;
        }
        let best = raced.first().filter(|s| s.log().is_some_and(|(log, _)| log < 0.0)).map(|s| s.candidate);
        let times = track.times.clone();
        let source = "the first one's time over this one's in the same turns, after the choice";
        let mut gain = Figure::unavailable("×", source, "the first one is the fastest");
        let mut won = false;
        if let Some(best) = best {
            let seconds = self.seconds * (1.0 - RACE);
            let mut start = || -> Result<Reading> {
                let heat = track.heat(&[best], seconds / 16.0)?;
                let times = heat.times.into_iter().next().unwrap_or_else(|| Err("it was not timed".into()));
                let nothing = |what: String| Error::Operation {
                    operation: name.into(),
                    config: documents[best].to_string(),
                    source: what.into(),
                };
                let times = times.map_err(nothing)?;
                Reading::of(&heat.base, &times).ok_or_else(|| nothing("it was not timed".into()))
            };
            if let Some(judged) = Question::difference(1).ask(seconds, None, &mut start, &mut |_| {})? {
                let r = judged.ratio;
                let samples = judged.starts as u64;
                let spread = Spread { low: 1.0 / r.high, high: 1.0 / r.low, ends: Ends::Confidence99, samples };
                gain = Figure::measured(1.0 / r.estimate, "×", source).with_spread(spread);
                won = judged.answer == Answer::Faster;
            }
        }
        let chosen = best.filter(|_| won).unwrap_or(base);
        let mut trials: Vec<Trial<C>> = vec![];
        let told = |which: usize, ratio: Figure, failed: Option<String>| {
            let source = "system clock, median of a call";
            let time = match (middle(&times[which]), &failed) {
                (Some(time), _) => Figure::measured(time, "s", source),
                (None, why) => {
                    Figure::unavailable("s", source, why.clone().unwrap_or_else(|| "it was not timed".into()))
                }
            };
            Trial { config: configs[which].clone(), time, ratio, failed }
        };
        let source = "time over the first one's in the same turns";
        trials.push(told(base, Figure::derived(1.0, "×", "it is the first"), None));
        for s in &raced {
            let ratio = match s.log() {
                Some((log, _)) => Figure::measured(log.exp(), "×", source),
                None => Figure::unavailable("×", source, s.failed.clone().unwrap_or_default()),
            };
            trials.push(told(s.candidate, ratio, s.failed.clone()));
        }
        for (which, why) in failed.iter().enumerate() {
            if let Some(why) = why {
                trials.push(told(which, Figure::unavailable("×", source, why.clone()), Some(why.clone())));
            }
        }
        trials.sort_by(|a, b| {
            let key = |t: &Trial<C>| t.ratio.value.unwrap_or(f64::INFINITY);
            key(a).total_cmp(&key(b))
        });
        let verdict = if won { Verdict::Found } else { Verdict::Nothing };
        self.remember(name, &Kept { config: documents[chosen].clone(), gain: gain.clone() })?;
        Ok(Optimum { config: configs[chosen].clone(), verdict, gain, trials })
    }

    fn remember(&mut self, name: &str, kept: &Kept) -> Result<()> {
        let unreadable = |e: serde_json::Error| Error::Kept { operation: name.into(), what: e.to_string() };
        let text = serde_json::to_string(kept).map_err(unreadable)?;
        if let Some(store) = &mut self.store {
            store.put(&Key::operation(name), &now(), text.clone())?;
        }
        self.kept.insert(name.to_owned(), text);
        Ok(())
    }

    /// The best configuration of an operation, from this run or an earlier one; `None` where nobody has looked for it on this
    /// machine with this version of the program.
    pub fn get_optimal_config<C: DeserializeOwned>(&self, name: &str) -> Result<Option<C>> {
        let text = match (self.kept.get(name), &self.store) {
            (Some(text), _) => Some(text.clone()),
            (None, Some(store)) => store.document(&Key::operation(name))?,
            (None, None) => None,
        };
        let Some(text) = text else { return Ok(None) };
        let read = || -> serde_json::Result<C> {
            let kept: Kept = serde_json::from_str(&text)?;
            serde_json::from_value(kept.config)
        };
        read().map(Some).map_err(|e| Error::Kept { operation: name.into(), what: e.to_string() })
    }
}

type Called = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Calls, timed in turns.
struct Track<'f> {
    call: &'f mut dyn FnMut(usize) -> Called,
    base: usize,
    /// Calls of a block, and seconds of a call, about.
    runs: Vec<usize>,
    each: Vec<f64>,
    /// Seconds of a call, of every block.
    times: Vec<Vec<f64>>,
    operation: &'f str,
    documents: &'f [serde_json::Value],
    began: Instant,
    random: Random,
}

impl Track<'_> {
    /// Seconds of a call: the mean of a block.
    fn block(&mut self, which: usize) -> std::result::Result<f64, String> {
        self.runs[which] = ((LEAST_BLOCK / self.each[which].max(1e-9)).ceil() as usize).clamp(1, 1 << 20);
        let clock = Instant::now();
        for _ in 0..self.runs[which] {
            (self.call)(which).map_err(|e| e.to_string())?;
        }
        let each = clock.elapsed().as_secs_f64() / self.runs[which] as f64;
        self.each[which] = self.each[which].min(each);
        self.times[which].push(each);
        Ok(each)
    }
}

impl Field for Track<'_> {
    fn heat(&mut self, candidates: &[usize], seconds: f64) -> Result<Heat> {
        let began = Instant::now();
        let mut heat = Heat { base: vec![], times: candidates.iter().map(|_| Ok(vec![])).collect() };
        let mut order: Vec<usize> = (0..=candidates.len()).collect();
        let mut turn = 0;
        while turn < LEAST_TURNS || began.elapsed().as_secs_f64() < seconds {
            (1..order.len()).rev().for_each(|i| order.swap(i, self.random.below(i + 1)));
            for &place in &order {
                if place == 0 {
                    let base = self.base;
                    let time = self.block(base).map_err(|what| Error::Operation {
                        operation: self.operation.into(),
                        config: self.documents[base].to_string(),
                        source: what.into(),
                    })?;
                    heat.base.push(time);
                } else if heat.times[place - 1].is_ok() {
                    match (self.block(candidates[place - 1]), &mut heat.times[place - 1]) {
                        (Ok(time), Ok(times)) => times.push(time),
                        (Err(why), times) => *times = Err(why),
                        _ => {}
                    }
                }
            }
            turn += 1;
        }
        Ok(heat)
    }

    fn clock(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work that takes as many steps as it is told.
    fn work(steps: u64) {
        let mut x = std::hint::black_box(1u64);
        for i in 0..steps {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
        }
        std::hint::black_box(x);
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Way {
        steps: u64,
        name: String,
    }

    fn way(steps: u64) -> Way {
        Way { steps, name: format!("{steps} steps") }
    }

    #[test]
    fn the_fastest_way_is_found_kept_and_found_again_by_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::File(folder.path().join("tuned.db"));
        let ways = [way(40_000), way(10_000), way(80_000)];
        let mut tuner = AutoTuner::kept_in(&place).unwrap().budget(1.0);
        let found = tuner
            .benchmark_operation("steps", &ways, |w| {
                work(w.steps);
                Ok::<(), std::fmt::Error>(())
            })
            .unwrap();
        assert_eq!((found.config, found.verdict), (way(10_000), Verdict::Found));
        assert!(found.gain.value.unwrap() > 2.0, "{:?}", found.gain);
        assert_eq!(found.trials[0].config, way(10_000));
        assert_eq!(tuner.get_optimal_config::<Way>("steps").unwrap(), Some(way(10_000)));
        drop(tuner);
        let again = AutoTuner::kept_in(&place).unwrap();
        assert_eq!(again.get_optimal_config::<Way>("steps").unwrap(), Some(way(10_000)));
        assert_eq!(again.get_optimal_config::<Way>("other").unwrap(), None);
        let wrong = again.get_optimal_config::<u32>("steps").unwrap_err().to_string();
        assert!(wrong.contains("`steps` cannot be read"), "{wrong}");
    }

    #[test]
    fn what_fails_is_left_out_and_said() {
        let mut tuner = AutoTuner::new().budget(0.1);
        let fails = |n: &u64| {
            work(*n * 1000);
            if *n == 2 { Err(format!("no way to do {n}")) } else { Ok(()) }
        };
        let found = tuner.benchmark_operation("some", &[2u64, 3], fails).unwrap();
        assert_eq!((found.config, found.trials.len()), (3, 2));
        assert_eq!(found.trials[1].failed.as_deref(), Some("no way to do 2"));
        let none = tuner.benchmark_operation("none", &[1u64, 2], |n| Err::<(), _>(format!("not {n}"))).unwrap_err();
        assert_eq!(none.to_string(), "none of the 2 configurations of `none` works; the first one: not 1");
        let empty: [u64; 0] = [];
        assert!(tuner.benchmark_operation("empty", &empty, |_| Ok::<(), String>(())).is_err());
        // One that fails later.
        let mut calls = 0;
        let late = tuner.benchmark_operation("late", &[1u64], |_| {
            calls += 1;
            if calls > 3 { Err("too often") } else { Ok(()) }
        });
        assert!(late.unwrap_err().to_string().contains("`late` with 1 failed: too often"));
    }
}
