//! The search itself: what is tried, in which order, and what it takes for a winner.
//!
//! 1. Every change of one thing is raced against the default ([`super::race`]), all in this process, each round compiled
//!    anew, so that a lucky place in memory does not last.
//! 2. What was faster alone is combined, and the combinations are raced.
//! 3. The best two at most are held against the default in starts of the process that are theirs alone: no sample that chose
//!    them counts. Only a verdict of *faster* by [`crate::stats::verdict`] makes a winner.

use super::config::{Change, Config};
use super::race::{Field, Heat, Standing, race};
use super::space::{Freedom, Parts, combined, sample, single};
use super::{Error, Result};
use crate::profiler::{Options, Starter, Subject, Timed, Turns, difference, turns};
use crate::stats::verdict::{Answer, Judgement, Question, Reading};
use crate::stats::{Random, median};
use schemars::JsonSchema;
use schwann_core::figure::{Ends, Spread};
use schwann_core::{Figure, Tensor};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Parts of the budget: changes of one thing, combinations, and the rest to confirm.
const SINGLE: f64 = 0.45;
const COMBINED: f64 = 0.20;
/// Candidates that are held against the default at the end.
const FINALISTS: usize = 2;
/// Turns of a heat, at least.
const LEAST_TURNS: usize = 4;
/// A change that is faster by less than this is not combined with others.
const WORTH: f64 = 0.003;
/// Changes that are combined at most.
const MOST_COMBINED: usize = 8;
/// The part of the time that a winner may take longer where memory is what counts.
const MOST_SLOWER: f64 = 0.02;
/// Less memory than this part less is none.
const LEAST_SAVED: f64 = 0.01;

/// What a winner has less of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Time of a run.
    #[default]
    Latency,
    /// Core-seconds of a run: as many sequences a second as there can be when each core serves runs of its own.
    Throughput,
    /// Memory of the plan and its weights, with runs at most 2% longer.
    Memory,
}

impl Objective {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Objective::Latency => "latency",
            Objective::Throughput => "throughput",
            Objective::Memory => "memory",
        }
    }
}

/// How the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Something is surely better than the default.
    Found,
    /// Nothing is, beyond noise.
    Nothing,
    /// Somebody stopped it before anything was decided.
    Stopped,
}

/// A candidate with what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    /// What it changes.
    pub changes: Vec<Change>,
    /// The same, to compile with.
    pub config: Config,
    /// Rounds of the race that it took part in.
    pub rounds: usize,
    /// Its time over the default's in the same turns; of the race, so that the least of many is too low.
    pub ratio: Figure,
    /// Bytes of its plan and weights.
    pub memory: Figure,
    /// The greatest difference of its outputs from the default's.
    pub difference: Figure,
    /// What became of it: `winner`, `not confirmed`, `left behind in round 2`, `refused: …`, `failed: …`.
    pub outcome: String,
}

/// A candidate held against the default at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Confirmation {
    /// What it changes.
    pub changes: Vec<Change>,
    /// Whether it is faster.
    pub answer: Answer,
    /// The default's time over its own (of throughput: core-seconds).
    pub speedup: Figure,
    /// Starts of the process that say so.
    pub starts: usize,
    /// Its median time.
    pub time: Figure,
    /// The default's, in the same turns.
    pub base: Figure,
}

/// What is better than the default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Winner {
    /// What to compile with.
    pub config: Config,
    /// How it differs from the default.
    pub changes: Vec<Change>,
    /// The default's time over its own (of throughput: core-seconds; of memory: bytes).
    pub gain: Figure,
    /// Its median time.
    pub time: Figure,
    /// The default's, in the same turns.
    pub base: Figure,
    /// The greatest difference of its outputs from the default's.
    pub difference: Figure,
}

/// All that a search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// The model's file or built-in name.
    pub model: String,
    /// What counted.
    pub objective: Objective,
    /// Sequences in a batch.
    pub batch: Figure,
    /// Steps of a sequence.
    pub steps: Figure,
    /// Threads that were asked for; 0: one per core, and free to be changed.
    pub threads: usize,
    /// What ran it.
    pub backend: String,
    /// Of the generator that chose the candidates.
    pub seed: u64,
    /// How it ended.
    pub verdict: Verdict,
    /// What is better than the default, if anything.
    pub winner: Option<Winner>,
    /// What was held against the default at the end.
    pub confirmations: Vec<Confirmation>,
    /// Everything that was tried, best first.
    pub candidates: Vec<Trial>,
    /// What the search took.
    pub seconds: Figure,
    /// Whether somebody stopped it before its end.
    pub partial: bool,
}

/// Candidates by their number, each with what came of holding it against the default.
type Duels = Vec<(usize, Confirmation)>;

/// Told how far it is: what is being done, and which part of all, from 0 to 1.
type Progress<'a> = Box<dyn FnMut(&str, f64) + 'a>;

/// A search for a better way to compile one network for one size.
pub struct Tuner<'a> {
    subject: Subject,
    name: String,
    base: Options,
    objective: Objective,
    seconds: f64,
    seed: u64,
    max_error: Option<f64>,
    classes: bool,
    first: Option<Config>,
    starter: Option<Starter<'a>>,
    cancel: Arc<AtomicBool>,
    progress: Option<Progress<'a>>,
}

impl<'a> Tuner<'a> {
    /// A search that begins at these options, for a minute.
    pub fn new(subject: impl Into<Subject>, base: Options) -> Tuner<'a> {
        Tuner {
            subject: subject.into(),
            name: "model".into(),
            base,
            objective: Objective::default(),
            seconds: 60.0,
            seed: 1,
            max_error: None,
            classes: true,
            first: None,
            starter: None,
            cancel: Arc::default(),
            progress: None,
        }
    }

    /// With the model's file or built-in name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
    /// For this objective.
    pub fn objective(mut self, objective: Objective) -> Self {
        self.objective = objective;
        self
    }
    /// For so many seconds.
    pub fn budget(mut self, seconds: f64) -> Self {
        self.seconds = seconds;
        self
    }
    /// With candidates chosen by this seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
    /// Also with weights and products in bfloat16, where outputs then differ by no more than this from the default's.
    pub fn max_error(mut self, most: Option<f64>) -> Self {
        self.max_error = most;
        self
    }
    /// Whether records of other classes of machines are candidates as they are.
    pub fn classes(mut self, wanted: bool) -> Self {
        self.classes = wanted;
        self
    }
    /// With this candidate in any case, such as an earlier winner.
    pub fn first(mut self, config: Option<Config>) -> Self {
        self.first = config;
        self
    }
    /// With a way to start processes that measure, for the confirmation; without it, everything is compiled anew in this one.
    pub fn starting(mut self, start: impl FnMut(&[Options], bool, f64) -> crate::profiler::Result<Turns> + 'a) -> Self {
        self.starter = Some(Box::new(start));
        self
    }
    /// Stops when this becomes true; what is decided by then is kept.
    pub fn cancelled_by(mut self, cancel: Arc<AtomicBool>) -> Self {
        self.cancel = cancel;
        self
    }
    /// Tells how far it is.
    pub fn telling(mut self, progress: impl FnMut(&str, f64) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    fn check(&self) -> Result<()> {
        self.base.check()?;
        if !(self.seconds > 0.0 && self.seconds <= 86_400.0) {
            return Err(Error::option("budget", self.seconds, "more than 0 s and at most a day"));
        }
        if let Some(error) = self.max_error.filter(|e| !(e.is_finite() && *e >= 0.0)) {
            return Err(Error::option("max-error", error, "0 or more"));
        }
        Ok(())
    }

    fn tell(&mut self, what: &str, part: f64) {
        if let Some(progress) = &mut self.progress {
            progress(what, part);
        }
    }

    /// Searches, and gives all that was found; nothing is kept yet.
    pub fn tune(&mut self) -> Result<Outcome> {
        self.check()?;
        let clock = Instant::now();
        let mut track = Track::new(self)?;
        let freedom = Freedom {
            threads: self.base.threads == 0 && self.base.backend.is_cpu(),
            types: self.max_error.is_some(),
            classes: self.classes && self.base.backend.is_cpu(),
        };
        let all = single(&track.parts, &self.base, freedom).map_err(|what| crate::profiler::Error::Tuning { what })?;
        let mut chosen = sample(all, &self.base.tuning, track.affordable(self.seconds * SINGLE), self.seed);
        chosen.extend(self.first.clone().filter(|c| !chosen.contains(c)));
        let mut standings = self.heats(&mut track, chosen, SINGLE, 0.0, "changes of one thing")?;
        let good: Vec<Config> = {
            let worth = |s: &&Standing| track.log(s).is_some_and(|log| log < -WORTH);
            standings.iter().filter(worth).take(MOST_COMBINED).map(|s| track.configs[s.candidate].clone()).collect()
        };
        let room = track.affordable(self.seconds * COMBINED);
        let mixed = combined(&good, &self.base.tuning, room, self.seed);
        if !mixed.is_empty() && !self.asked() {
            // The best changes of one thing run again beside their combinations.
            let again: Vec<usize> = standings.iter().take(FINALISTS).map(|s| s.candidate).collect();
            let mixed = self.heats_with(&mut track, mixed, &again, COMBINED, SINGLE, "combinations")?;
            let raced: Vec<usize> = mixed.iter().map(|s| s.candidate).collect();
            standings.retain(|s| !raced.contains(&s.candidate));
            standings.splice(0..0, mixed);
        }
        let finalists = track.finalists(&standings, self.objective);
        let spent = clock.elapsed().as_secs_f64();
        let (confirmations, winner) =
            self.confirm(&mut track, &finalists, (self.seconds - spent).max(self.seconds * 0.2))?;
        Ok(self.outcome(track, standings, &finalists, confirmations, winner, clock))
    }

    fn asked(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    fn heats(
        &mut self,
        track: &mut Track,
        new: Vec<Config>,
        part: f64,
        before: f64,
        what: &str,
    ) -> Result<Vec<Standing>> {
        self.heats_with(track, new, &[], part, before, what)
    }

    /// Races new candidates, and some that were raced before.
    fn heats_with(
        &mut self,
        track: &mut Track,
        new: Vec<Config>,
        again: &[usize],
        part: f64,
        before: f64,
        what: &str,
    ) -> Result<Vec<Standing>> {
        let began = track.clock();
        let first = track.add(new)?;
        // To compile all of them once is part of their time.
        let spent = track.clock() - began;
        let mut racing: Vec<usize> = (first..track.configs.len()).chain(again.iter().copied()).collect();
        if self.objective == Objective::Memory {
            racing.retain(|c| {
                track.bytes[*c].is_some_and(|b| (b as f64) < track.base_bytes as f64 * (1.0 - LEAST_SAVED))
            });
        }
        let what = format!("{what}: {} candidates", racing.len());
        let (objective, threads) = (self.objective, track.threads.clone());
        let base = track.base_threads;
        let cost = move |c: usize| match objective {
            Objective::Throughput => (threads[c] as f64 / base as f64).ln(),
            Objective::Latency | Objective::Memory => 0.0,
        };
        let seconds = (self.seconds * part - spent).max(self.seconds * part * 0.3);
        let mut progress = self.progress.take();
        let mut tell = |done: f64| {
            if let Some(progress) = &mut progress {
                progress(&what, before + part * done);
            }
        };
        let raced = race(track, &racing, &cost, (seconds, FINALISTS + 1), self.seed, &mut tell);
        self.progress = progress;
        raced
    }

    /// Holds candidates against the default, the best first, until one is surely better.
    fn confirm(&mut self, track: &mut Track, finalists: &[usize], seconds: f64) -> Result<(Duels, Option<usize>)> {
        let mut done = vec![];
        let clock = Instant::now();
        for &candidate in finalists {
            let left = seconds - clock.elapsed().as_secs_f64();
            if self.asked() || (!done.is_empty() && left < seconds * 0.2) {
                break;
            }
            let found = match self.duel(track, candidate, left, finalists.len()) {
                Err(e) if e.is_cancelled() => break,
                Err(e) => return Err(e),
                Ok(found) => found,
            };
            let wanted = if self.objective == Objective::Memory { Answer::Same } else { Answer::Faster };
            let won = found.answer == wanted || (self.objective == Objective::Memory && found.answer == Answer::Faster);
            done.push((candidate, found));
            if won {
                return Ok((done, Some(candidate)));
            }
        }
        Ok((done, None))
    }

    fn duel(&mut self, track: &Track, candidate: usize, seconds: f64, questions: usize) -> Result<Confirmation> {
        let config = &track.configs[candidate];
        let sides = [self.base.clone(), config.apply(&self.base)];
        let question = match self.objective {
            Objective::Memory => Question { limit: Some(MOST_SLOWER), questions },
            _ => Question::difference(questions),
        };
        let scale = match self.objective {
            Objective::Throughput => track.threads[candidate] as f64 / track.base_threads as f64,
            _ => 1.0,
        };
        let each = (seconds * 0.04).clamp(0.05, 0.5);
        let (mut medians, mut shown) = ([vec![], vec![]], 0.0);
        let clock = Instant::now();
        let mut start = || -> Result<Reading> {
            if self.asked() {
                return Err(Error::Cancelled);
            }
            shown = (clock.elapsed().as_secs_f64() / seconds).min(1.0);
            self.tell(
                "the best of them against the default, in starts of their own",
                SINGLE + COMBINED + (1.0 - SINGLE - COMBINED) * shown,
            );
            let found = match &mut self.starter {
                Some(start) => start(&sides, false, each)?,
                None => turns(&[(&self.subject, &sides[0]), (&self.subject, &sides[1])], false, each)?,
            };
            let [base, other] = &found.sides[..] else {
                let what = format!("it measured {} sides, not 2", found.sides.len());
                return Err(crate::profiler::Error::Start { what }.into());
            };
            medians[0].extend(median(base));
            medians[1].extend(median(other));
            let scaled: Vec<f64> = other.iter().map(|t| t * scale).collect();
            let nothing = || crate::profiler::Error::Start { what: "it measured nothing".into() };
            Reading::of(base, &scaled).ok_or_else(|| nothing().into())
        };
        let judged = question.ask(seconds, None, &mut start, &mut |_| {})?;
        let time = |medians: &[f64]| {
            let source = format!("system clock, in turns; median over {} starts", medians.len());
            Figure::measured(median(medians).unwrap_or(f64::NAN), "s", source)
        };
        let (speedup, answer, starts) = match judged {
            Some(judged) => (speedup(&judged), judged.answer, judged.starts),
            None => {
                let none = Figure::unavailable("×", "starts in turns", "there were too few starts");
                (none, Answer::Undecided, medians[0].len())
            }
        };
        let changes = config.told(&self.base);
        Ok(Confirmation { changes, answer, speedup, starts, time: time(&medians[1]), base: time(&medians[0]) })
    }

    fn outcome(
        &self,
        track: Track,
        standings: Vec<Standing>,
        finalists: &[usize],
        confirmations: Vec<(usize, Confirmation)>,
        winner: Option<usize>,
        clock: Instant,
    ) -> Outcome {
        let memory = |c: usize| match track.bytes[c] {
            Some(bytes) => Figure::derived(bytes as f64, "B", "the compiled plan's arena and weights"),
            None => Figure::unavailable("B", "the compiled plan", "it could not be compiled"),
        };
        let trials = standings.iter().map(|s| {
            let confirmed = confirmations.iter().any(|(c, _)| *c == s.candidate);
            let outcome = match &s.failed {
                _ if Some(s.candidate) == winner => "winner".into(),
                Some(why) => why.clone(),
                None if confirmed => "not confirmed".into(),
                None if finalists.contains(&s.candidate) => "not reached".into(),
                None if s.rounds() == 0 => "not timed".into(),
                None => format!("left behind in round {}", s.rounds()),
            };
            let source = format!("time over the default's in the same turns, {} rounds", s.rounds());
            let ratio = match s.log() {
                Some((log, error)) => {
                    let (low, high) = ((log - 2.0 * error).exp(), (log + 2.0 * error).exp());
                    let spread = Spread { low, high, ends: Ends::Confidence95, samples: s.rounds() as u64 };
                    Figure::measured(log.exp(), "×", source).with_spread(spread)
                }
                None => Figure::unavailable("×", source, s.failed.clone().unwrap_or_else(|| "it was not timed".into())),
            };
            Trial {
                changes: track.configs[s.candidate].told(&self.base),
                config: track.configs[s.candidate].clone(),
                rounds: s.rounds(),
                ratio,
                memory: memory(s.candidate),
                difference: track.differences[s.candidate].clone(),
                outcome,
            }
        });
        let candidates = trials.collect();
        let won = winner.and_then(|w| confirmations.iter().find(|(c, _)| *c == w));
        let won = won.map(|(c, confirmed)| Winner {
            config: track.configs[*c].clone(),
            changes: confirmed.changes.clone(),
            gain: match (self.objective, track.bytes[*c]) {
                (Objective::Memory, Some(bytes)) => Figure::derived(
                    track.base_bytes as f64 / bytes as f64,
                    "×",
                    "bytes of the default's plan over its own",
                ),
                _ => confirmed.speedup.clone(),
            },
            time: confirmed.time.clone(),
            base: confirmed.base.clone(),
            difference: track.differences[*c].clone(),
        });
        let partial = self.asked();
        let verdict = match (&won, partial) {
            (Some(_), _) => Verdict::Found,
            (None, true) => Verdict::Stopped,
            (None, false) => Verdict::Nothing,
        };
        let option = |value: usize, unit: &str| Figure::derived(value as f64, unit, format!("option {unit}"));
        Outcome {
            model: self.name.clone(),
            objective: self.objective,
            batch: option(self.base.batch, "sequences"),
            steps: option(self.base.steps, "steps"),
            threads: self.base.threads,
            backend: track.backend,
            seed: self.seed,
            verdict,
            winner: won,
            confirmations: confirmations.into_iter().map(|(_, c)| c).collect(),
            candidates,
            seconds: Figure::measured(clock.elapsed().as_secs_f64(), "s", "system clock"),
            partial,
        }
    }
}

/// The default's time over the candidate's.
fn speedup(judged: &Judgement) -> Figure {
    let r = judged.ratio;
    let spread =
        Spread { low: 1.0 / r.high, high: 1.0 / r.low, ends: Ends::Confidence99, samples: judged.starts as u64 };
    let source = "the default's time over this one's in the same turns, mean over starts";
    Figure::measured(1.0 / r.estimate, "×", source).with_spread(spread)
}

/// Where candidates are compiled and timed: this process.
struct Track {
    subject: Subject,
    base: Options,
    max_error: Option<f64>,
    cancel: Arc<AtomicBool>,
    objective: Objective,
    parts: Parts,
    backend: String,
    outputs: Vec<(String, Tensor)>,
    base_bytes: usize,
    base_threads: usize,
    /// Seconds to compile it and run it once, and seconds of a run.
    making: f64,
    running: f64,
    configs: Vec<Config>,
    threads: Vec<usize>,
    bytes: Vec<Option<usize>>,
    differences: Vec<Figure>,
    refused: Vec<Option<String>>,
    began: Instant,
    random: Random,
}

impl Track {
    fn new(tuner: &Tuner<'_>) -> Result<Track> {
        let began = Instant::now();
        let mut timed = Timed::new(&tuner.subject, &tuner.base)?;
        let making = began.elapsed().as_secs_f64();
        timed.warm_up(0.02)?;
        let running = timed.block()?;
        let rig = timed.rig();
        let outputs = rig.outputs()?;
        Ok(Track {
            subject: tuner.subject.clone(),
            base: tuner.base.clone(),
            max_error: tuner.max_error,
            cancel: Arc::clone(&tuner.cancel),
            objective: tuner.objective,
            parts: Parts::of(rig.graph()),
            backend: rig.plan().backend.clone(),
            base_bytes: rig.plan().arena_bytes + rig.plan().weight_bytes,
            base_threads: rig.threads,
            outputs,
            making,
            running,
            configs: vec![],
            threads: vec![],
            bytes: vec![],
            differences: vec![],
            refused: vec![],
            began: Instant::now(),
            random: Random::new(0x7475_6e65),
        })
    }

    /// How many candidates a race of so many seconds can have.
    fn affordable(&self, seconds: f64) -> usize {
        // Each is made and timed in a first round, of about a third of the time; others share it.
        let block = (self.running * 2.0).max(250e-6);
        let each = self.making * 2.5 + block * 2.0 * LEAST_TURNS as f64 + 0.005;
        ((seconds / 2.5 / each) as usize).clamp(4, 400)
    }

    /// Compiles new candidates once, to see what they take and what they give; the number of the first.
    fn add(&mut self, new: Vec<Config>) -> Result<usize> {
        let first = self.configs.len();
        for config in new {
            let unknown = |why: &str| Figure::unavailable("1", "outputs of one run", why);
            self.threads.push(config.threads.unwrap_or(self.base_threads));
            let (mut bytes, mut differs, mut refused) = (None, unknown("it was not run"), None);
            if !self.cancel.load(Ordering::Relaxed) {
                match self.look(&config) {
                    Ok((b, d)) => {
                        let typed = config.bf16_products || config.changes.bf16_weights;
                        let most = self.max_error.unwrap_or(0.0);
                        if typed && d.value.is_none_or(|d| d > most) {
                            let by = d.value.map_or("unknown".into(), |d| format!("{d:.1e}"));
                            refused = Some(format!("refused: its outputs differ by {by}, and {most:.1e} is allowed"));
                        }
                        (bytes, differs) = (Some(b), d);
                    }
                    Err(e) => refused = Some(format!("failed: {e}")),
                }
            }
            self.bytes.push(bytes);
            self.differences.push(differs);
            self.refused.push(refused);
            self.configs.push(config);
        }
        Ok(first)
    }

    /// Bytes of a candidate's plan, and how far its outputs are off.
    fn look(&self, config: &Config) -> Result<(usize, Figure)> {
        let mut timed = Timed::new(&self.subject, &config.apply(&self.base))?;
        let rig = timed.rig();
        let bytes = rig.plan().arena_bytes + rig.plan().weight_bytes;
        Ok((bytes, difference(&self.outputs, &rig.outputs()?)))
    }

    /// The logarithm of what counts, over the default's.
    fn log(&self, s: &Standing) -> Option<f64> {
        let (log, _) = s.log().filter(|_| s.failed.is_none())?;
        Some(match self.objective {
            Objective::Latency => log,
            Objective::Throughput => log + (self.threads[s.candidate] as f64 / self.base_threads as f64).ln(),
            Objective::Memory => (self.bytes[s.candidate]? as f64 / self.base_bytes as f64).ln(),
        })
    }

    /// Which candidates are worth a confirmation, best first.
    fn finalists(&self, standings: &[Standing], objective: Objective) -> Vec<usize> {
        let mut worth: Vec<(f64, usize)> = standings
            .iter()
            .filter(|s| match (objective, s.log()) {
                (_, None) => false,
                // Not surely slower than is allowed.
                (Objective::Memory, Some((log, error))) => log - 2.0 * error < MOST_SLOWER,
                (_, Some(_)) => true,
            })
            .filter_map(|s| Some((self.log(s).filter(|log| *log < 0.0)?, s.candidate)))
            .collect();
        if objective == Objective::Memory {
            worth.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        worth.into_iter().take(FINALISTS).map(|(_, c)| c).collect()
    }
}

impl Field for Track {
    fn heat(&mut self, candidates: &[usize], seconds: f64) -> Result<Heat> {
        let began = Instant::now();
        let check = || if self.cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) };
        check()?;
        let mut sides = vec![Ok(Timed::new(&self.subject, &self.base)?)];
        for &candidate in candidates {
            sides.push(match &self.refused[candidate] {
                Some(why) => Err(why.clone()),
                None => Timed::new(&self.subject, &self.configs[candidate].apply(&self.base))
                    .map_err(|e| format!("failed: {e}")),
            });
        }
        for side in sides.iter_mut().flatten() {
            check()?;
            side.warm_up((seconds * 0.1 / candidates.len() as f64).min(0.05))?;
        }
        let mut times = vec![vec![]; sides.len()];
        let mut order: Vec<usize> = (0..sides.len()).filter(|i| sides[*i].is_ok()).collect();
        let mut turn = 0;
        while turn < LEAST_TURNS || began.elapsed().as_secs_f64() < seconds {
            check()?;
            match turn % 2 {
                0 => (1..order.len()).rev().for_each(|i| order.swap(i, self.random.below(i + 1))),
                _ => order.reverse(),
            }
            for &i in &order {
                if let Ok(side) = &mut sides[i] {
                    times[i].push(side.block()?);
                }
            }
            turn += 1;
        }
        let mut times = times.into_iter();
        let base = times.next().unwrap_or_default();
        let others = times.zip(sides.into_iter().skip(1)).map(|(times, side)| side.map(|_| times));
        Ok(Heat { base, times: others.collect() })
    }

    fn clock(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models;
    use crate::tune::Changes;

    fn options() -> Options {
        Options { batch: 16, steps: 8, ..Options::default() }
    }

    fn tuner(base: Options) -> Tuner<'static> {
        let model = models::built_in("wired-cfc", &models::Sizes::default()).unwrap().unwrap();
        Tuner::new(model, base).named("wired-cfc").budget(1.5)
    }

    /// A start that is much too slow, so that a search has something to find whatever the machine does meanwhile.
    fn slow() -> Options {
        let mut tuning = Changes::default();
        tuning.numbers.insert("loop_block_rows_most".into(), 1);
        Options { tuning, ..options() }
    }

    #[test]
    fn a_number_that_is_far_off_is_found_and_confirmed() {
        // Nothing is found where other programs take most of the time of the cores, so a search may be made again.
        let search = |_| tuner(slow()).classes(false).budget(3.0).tune().unwrap();
        let found = (0..3).map(search).find(|found| found.verdict == Verdict::Found).expect("one of three finds it");
        let winner = found.winner.unwrap();
        assert!(winner.changes.iter().any(|c| c.name == "loop_block_rows_most"), "{:?}", winner.changes);
        let gain = &winner.gain;
        assert!(gain.value.unwrap() > 1.05 && gain.spread.unwrap().low > 1.0, "{gain:?}");
        assert!(winner.difference.value.unwrap() < 1e-5);
        assert_eq!(found.candidates[0].outcome, "winner");
        assert!(found.candidates.len() > 10 && !found.partial);
        // What is kept compiles, and reads back from JSON.
        let text = serde_json::to_string(&winner).unwrap();
        assert_eq!(serde_json::from_str::<Winner>(&text).unwrap(), winner);
        winner.config.changes.tuning().unwrap().unwrap();
    }

    #[test]
    fn a_search_that_is_stopped_decides_nothing() {
        let stopped = Arc::new(AtomicBool::new(true));
        let found = tuner(slow()).cancelled_by(Arc::clone(&stopped)).tune().unwrap();
        assert_eq!((found.verdict, found.partial, found.winner), (Verdict::Stopped, true, None));
        assert!(found.candidates.iter().all(|c| c.rounds == 0));
    }

    #[test]
    fn types_are_tried_only_within_the_error_that_is_allowed() {
        let typed = |t: &&Trial| t.config.bf16_products || t.config.changes.bf16_weights;
        let none = tuner(options()).budget(0.5).tune().unwrap();
        assert_eq!(none.candidates.iter().filter(typed).count(), 0);
        let strict = tuner(options()).budget(0.5).max_error(Some(0.0)).tune().unwrap();
        let refused: Vec<_> = strict.candidates.iter().filter(typed).collect();
        assert_eq!(refused.len(), 2);
        for trial in refused {
            assert!(trial.outcome.contains("refused: its outputs differ by"), "{trial:?}");
        }
        assert!(strict.winner.is_none_or(|w| !w.config.bf16_products && !w.config.changes.bf16_weights));
        let loose = tuner(options()).budget(0.5).max_error(Some(0.5)).tune().unwrap();
        assert!(loose.candidates.iter().filter(typed).all(|t| t.rounds > 0 && t.difference.value.unwrap() < 0.5));
    }

    #[test]
    fn memory_is_saved_without_losing_time_or_nothing_is_found() {
        let found = tuner(options()).objective(Objective::Memory).tune().unwrap();
        if let Some(winner) = found.winner {
            assert!(winner.gain.value.unwrap() > 1.0);
            assert_eq!(winner.gain.provenance, schwann_core::Provenance::Derived);
        }
        assert!(found.candidates.iter().filter(|c| c.rounds > 0).all(|c| c.memory.value.is_some()));
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for (budget, error, word) in
            [(0.0, None, "budget"), (1.0, Some(-1.0), "max-error"), (1.0, Some(f64::NAN), "max-error")]
        {
            let said = tuner(options()).budget(budget).max_error(error).tune().unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
        let wrong = Changes { class: Some("vax".into()), ..Changes::default() };
        let said = tuner(Options { tuning: wrong, ..options() }).tune().unwrap_err().to_string();
        assert!(said.contains("`vax`"), "{said}");
    }
}
