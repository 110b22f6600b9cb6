//! The trainer: steps over data, validations, checkpoints and a log, until it is done, told to stop, or nothing improves.
//!
//! What it does depends on options, data and the number of threads alone. So a training that was ended at any moment, even
//! by a kill, goes on from its latest checkpoint and comes to the same weights, to the bit.

use super::checkpoint::{self, Position};
use super::find::first_bad;
use super::graph::Recipe;
use super::log::{self, Record};
use super::schedule::Schedule;
use super::step::{Evaluation, Memory, Step};
use crate::data::{Layout, Loader, Order, Sequences, Windows};
use crate::scope::Timespans;
use crate::{Error, Model, Result};
use schwann_core::CompileOptions;
use schwann_core::live::Door;
use schwann_core::memory::AdaptiveBatch;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// What the loss is multiplied by before it is differentiated, so that small gradients survive low precision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum LossScale {
    /// Nothing.
    #[default]
    None,
    /// Always this.
    Fixed(f32),
    /// This at first; half of it whenever gradients are not finite (that step is left out), and twice as much after
    /// 2,000 steps without.
    Dynamic(f32),
}

impl LossScale {
    fn first(self) -> f32 {
        match self {
            LossScale::None => 1.0,
            LossScale::Fixed(scale) | LossScale::Dynamic(scale) => scale,
        }
    }
}

/// Steps without a gradient that is not finite after which a dynamic scale doubles.
const SCALE_STEPS: u64 = 2000;
/// Seconds between two checkpoints, where nothing else is said.
const CHECKPOINT_SECONDS: f64 = 5.0;
/// Steps after which a batch that was halved is tried in its full size again.
const BATCH_STEPS: u64 = 64;

/// How to train.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a step is made of. What follows from the data (masks, states, time) is set by the trainer.
    pub recipe: Recipe,
    /// How the rate changes.
    pub schedule: Schedule,
    /// Windows in a batch.
    pub batch: usize,
    /// Steps in all.
    pub steps: u64,
    /// Instead: passes over the data in all.
    pub epochs: Option<u64>,
    /// Steps between two validations; 0: one after every pass over the data.
    pub validate_every: u64,
    /// Validations without a better loss after which training ends.
    pub patience: Option<usize>,
    /// Steps between two checkpoints; 0: one with a validation, where the last is more than some seconds ago. How often
    /// they are written changes nothing in what comes of training.
    pub checkpoint_every: u64,
    /// Steps between two lines of the log; 0: one with every validation.
    pub log_every: u64,
    /// What everything random is drawn from.
    pub seed: u64,
    /// Whether windows are learned from in a random order.
    pub shuffle: bool,
    /// What the loss is multiplied by.
    pub scale: LossScale,
    /// Where checkpoints and logs are kept; without a folder there are none.
    pub folder: Option<PathBuf>,
    /// Backend, threads and memory.
    pub compile: CompileOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            recipe: Recipe::default(),
            schedule: Schedule::default(),
            batch: 32,
            steps: 1000,
            epochs: None,
            validate_every: 0,
            patience: None,
            checkpoint_every: 0,
            log_every: 0,
            seed: 0,
            shuffle: true,
            scale: LossScale::None,
            folder: None,
            compile: CompileOptions::default(),
        }
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// Go on.
    On,
    /// Write a checkpoint and stop.
    Stop,
}

/// Why training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// All steps were taken.
    Done,
    /// The validation's loss did not become smaller for long enough.
    Early,
    /// Somebody asked for an end.
    Stopped,
}

/// How it goes, after each step.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Steps so far, and in all.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// The pass over the data.
    pub epoch: u64,
    /// The latest step's loss.
    pub loss: f32,
    /// The length of its gradients.
    pub norm: f32,
    /// The best validation so far: its step and loss.
    pub best: Option<(u64, f64)>,
    /// Windows in a batch now.
    pub batch: usize,
    /// Windows learned from in a second, since this run began (measured).
    pub samples_per_s: f64,
    /// Seconds that the remaining steps take at this speed (predicted).
    pub seconds_left: f64,
    /// The log so far.
    pub records: &'a [Record],
    /// Whether the log has just grown.
    pub new_record: bool,
}

/// Trains a model on data.
#[derive(Debug)]
pub struct Trainer {
    model: Model,
    options: Options,
    step: Step,
    loader: Loader,
    validation: Option<(Evaluation, Loader)>,
    position: Position,
    records: Vec<Record>,
    /// The best model since the last checkpoint; it is written before the next one.
    best_model: Option<Model>,
    batch: AdaptiveBatch,
    window: usize,
    per_epoch: u64,
}

/// The file of the latest checkpoint, in the trainer's folder.
pub(crate) const LAST: &str = "last.safetensors";
/// The file of the best model.
pub(crate) const BEST: &str = "best.safetensors";

impl Trainer {
    /// Ready to begin, with the model's weights. `validation` may have no windows.
    pub fn new(
        model: &Model,
        data: &Arc<Sequences>,
        training: Windows,
        validation: Windows,
        options: &Options,
    ) -> Result<Trainer> {
        if options.batch == 0 {
            return Err(Error::argument("batch", 0, "1 at least"));
        }
        if let LossScale::Fixed(scale) | LossScale::Dynamic(scale) = options.scale
            && !(scale.is_finite() && scale > 0.0)
        {
            return Err(Error::argument("loss_scale", scale, "a finite number above 0"));
        }
        options.schedule.check()?;
        let mut options = options.clone();
        let layout = Layout::of(model, options.recipe.loss, data, &training)?;
        let recipe = &mut options.recipe;
        recipe.masked = layout.masked;
        recipe.carried = layout.carried;
        recipe.scaled = options.scale != LossScale::None;
        if layout.timed {
            recipe.timespans = Timespans::PerStep;
        }
        if recipe.segments.is_some_and(|s| s.steps != training.steps) {
            return Err(Error::argument("segments", "of another length", format!("windows of {}", training.steps)));
        }
        let mut step = Step::new(model, &options.recipe, &options.compile)?;
        step.set_seed(options.seed);
        let order = Order { shuffle: options.shuffle.then_some(options.seed), fill: true };
        let window = training.steps;
        let mark = fingerprint(model, &options, data, training.list.len());
        // A batch holds no more than there is, unless its places are sequences that go on.
        let batch = if layout.carried { options.batch } else { options.batch.min(training.list.len().max(1)) };
        let loader = Loader::new(Arc::clone(data), Arc::new(training), layout, order, batch)?;
        let per_epoch = loader.batches(batch);
        if let Some(epochs) = options.epochs {
            options.steps = epochs.saturating_mul(per_epoch);
        }
        let validation = match validation.list.is_empty() {
            true => None,
            false => {
                let masked = layout.each_step && (validation.masked || validation.carried);
                let recipe = Recipe { masked, scaled: false, segments: None, ..options.recipe.clone() };
                let evaluation = Evaluation::new(model, &recipe, &options.compile)?;
                let layout = Layout { masked, ..layout };
                let order = Order { shuffle: None, fill: false };
                let rows = if layout.carried { batch } else { batch.min(validation.list.len()) };
                Some((evaluation, Loader::new(Arc::clone(data), Arc::new(validation), layout, order, rows)?))
            }
        };
        if let Some(folder) = &options.folder {
            std::fs::create_dir_all(folder)
                .map_err(|source| schwann_core::Error::Io { path: folder.clone(), source })?;
        }
        let position = Position::new(mark, batch, options.scale.first());
        let every = [options.log_every, options.validate_every, per_epoch].into_iter().filter(|n| *n > 0).min();
        let records = Vec::with_capacity((2 * options.steps / every.unwrap_or(1)).min(1 << 20) as usize + 4);
        Ok(Trainer {
            model: model.clone(),
            step,
            loader,
            validation,
            position,
            records,
            best_model: None,
            batch: AdaptiveBatch::new(batch, 1, batch),
            window,
            per_epoch,
            options,
        })
    }

    /// Whether the folder has a checkpoint.
    pub fn has_checkpoint(&self) -> bool {
        self.file(LAST).is_some_and(|file| file.exists())
    }

    /// Goes on from the folder's checkpoint, which must be of the same training. Gives its step.
    pub fn resume(&mut self) -> Result<u64> {
        let Some(file) = self.file(LAST) else {
            return Err(Error::argument("folder", "none", "one with a checkpoint to go on from"));
        };
        let (position, states) = checkpoint::read(&file)?;
        if position.run != self.position.run {
            let problem = format!(
                "the checkpoint is of another training ({}, and this is {}): its model, data or options differ; \
                 train in another folder, or begin anew",
                position.run, self.position.run
            );
            return Err(Error::File { path: Some(file), problem });
        }
        let frozen = |name: &String| self.model.weights().contains_key(name) && !self.step.trained().contains(name);
        let states = states.into_iter().filter(|(name, _)| !frozen(name)).collect();
        self.step.restore(position.updates, states)?;
        self.batch = AdaptiveBatch::new(position.batch, 1, self.options.batch);
        self.loader.seek(position.epoch, position.from, position.batch);
        if let Some(folder) = &self.options.folder {
            let capacity = self.records.capacity();
            self.records = log::read(folder, position.step)?;
            self.records.reserve(capacity);
        }
        self.position = position;
        Ok(self.position.step)
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        self.options.folder.as_ref().map(|folder| folder.join(name))
    }

    /// What a step takes, before one is taken.
    pub fn memory(&self) -> Result<Memory> {
        let batch = self.batch.size();
        self.step.memory(batch, self.window, self.loader.bytes(batch)?)
    }

    /// Steps of a pass over the data.
    pub fn steps_per_epoch(&self) -> u64 {
        self.per_epoch
    }
    /// Steps in all.
    pub fn steps_in_all(&self) -> u64 {
        self.options.steps
    }
    /// The step that is repeated.
    pub fn step(&self) -> &Step {
        &self.step
    }
    /// From now on, every step can be watched through this door.
    pub fn watch(&mut self, door: &Door) {
        self.step.watch(door);
    }
    /// The log so far.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
    /// Steps so far.
    pub fn steps_done(&self) -> u64 {
        self.position.step
    }
    /// The best validation so far: its step and loss.
    pub fn best(&self) -> Option<(u64, f64)> {
        self.position.best
    }
    /// The model with its weights as they are used now.
    pub fn model(&self) -> Result<Model> {
        let mut model = self.model.clone();
        self.step.write_used_weights(&mut model)?;
        Ok(model)
    }

    /// Trains until the end, an error, or until `watch` says to stop. The latest checkpoint is then written, but where the
    /// loss or a gradient is not finite: the one before is kept.
    pub fn run(&mut self, watch: &mut dyn FnMut(&Progress<'_>) -> Go) -> Result<Ended> {
        let (begun, before) = (Instant::now(), self.position.seconds);
        let (mut windows, mut taken) = (0u64, 0u64);
        let mut since = (begun, 0u64);
        let mut halved = 0u64;
        let mut written = begun;
        if self.position.ended && self.position.step >= self.options.steps {
            return Ok(Ended::Done);
        }
        self.position.ended = false;
        while self.position.step < self.options.steps {
            let filled = self.loader.next_batch()?;
            let number = self.position.step + 1;
            if let Some(bad) = &filled.bad {
                let problem = format!("step {number}: {bad}; expected a finite number{}", kept(&self.options.folder));
                return Err(Error::file(problem));
            }
            let o = &self.options;
            let share = o.schedule.share(self.position.step, o.steps, &self.position.plateau);
            let scale = self.position.scale;
            let outcome = match self.step.run_at(filled.batch(), share, scale, None) {
                Ok(outcome) => outcome,
                Err(Error::Engine(e @ schwann_core::Error::Budget { .. })) => {
                    let (epoch, from, at) = (filled.epoch, filled.from, self.batch.size());
                    if o.recipe.carried || self.batch.adjust(false) == at {
                        return Err(e.into());
                    }
                    self.position.batch = self.batch.size();
                    self.loader.seek(epoch, from, self.position.batch);
                    halved = 0;
                    continue;
                }
                Err(e) => return Err(e),
            };
            let (epoch, last) = (filled.epoch, filled.last);
            (self.position.epoch, self.position.from) =
                if last { (epoch + 1, 0) } else { (epoch, filled.from + filled.batch().sizes().0) };
            if !outcome.is_finite() {
                if !(matches!(o.scale, LossScale::Dynamic(_)) && scale > 1.0 && outcome.loss.is_finite()) {
                    let found = first_bad(&self.model, &o.recipe, &self.step, filled.batch(), o.seed)?;
                    let what = if outcome.loss.is_finite() { "a gradient" } else { "the loss" };
                    let problem = format!(
                        "step {number} (windows from {} of epoch {epoch}): {what} is not finite. First of all, {found}{}",
                        filled.from,
                        kept(&o.folder)
                    );
                    return Err(Error::file(problem));
                }
                (self.position.scale, self.position.scale_steps) = (scale / 2.0, 0);
            } else {
                self.position.loss_sum += f64::from(outcome.loss);
                self.position.loss_count += 1;
                self.position.scale_steps += 1;
                if matches!(o.scale, LossScale::Dynamic(_)) && self.position.scale_steps >= SCALE_STEPS {
                    (self.position.scale, self.position.scale_steps) = (scale * 2.0, 0);
                }
            }
            windows += filled.windows as u64;
            taken += 1;
            halved += 1;
            self.position.step = number;
            self.position.updates = self.step.steps();
            if self.batch.size() < self.position_full() && halved >= BATCH_STEPS {
                halved = 0;
                self.position.batch = self.batch.adjust(true);
                self.loader.seek(self.position.epoch, self.position.from, self.position.batch);
            }

            let ends = number == self.options.steps;
            let due = |every: u64| if every == 0 { last } else { number.is_multiple_of(every) };
            let validate = ends || due(self.options.validate_every);
            let write_down = validate || (self.options.log_every > 0 && due(self.options.log_every));
            self.position.seconds = before + begun.elapsed().as_secs_f64();
            let mut early = false;
            if write_down {
                let measured = if validate { self.validate()? } else { None };
                let now = Instant::now();
                let took = (now - since.0).as_secs_f64().max(1e-9);
                let part = self.position.from as f64 / self.loader.windows().max(1) as f64;
                self.records.push(Record {
                    step: number,
                    epoch: self.position.epoch as f64 + part.min(1.0),
                    loss: self.position.loss_sum / self.position.loss_count.max(1) as f64,
                    validation: measured.map(|m| m[0]),
                    metric: measured.map(|m| m[1]),
                    rate: f64::from(self.options.recipe.rate * share),
                    norm: f64::from(outcome.norm),
                    samples_per_s: (windows - since.1) as f64 / took,
                    seconds: self.position.seconds,
                });
                since = (Instant::now(), windows);
                if validate {
                    early = self.judge()?;
                }
                (self.position.loss_sum, self.position.loss_count) = (0.0, 0);
            }
            let seconds = begun.elapsed().as_secs_f64();
            let progress = Progress {
                step: number,
                steps: self.options.steps,
                epoch,
                loss: outcome.loss,
                norm: outcome.norm,
                best: self.position.best,
                batch: self.batch.size(),
                samples_per_s: windows as f64 / seconds.max(1e-9),
                seconds_left: seconds / taken as f64 * (self.options.steps - number) as f64,
                records: &self.records,
                new_record: write_down,
            };
            let stop = watch(&progress) == Go::Stop;
            self.position.ended = ends || early;
            let checkpoint = match self.options.checkpoint_every {
                0 => validate && written.elapsed().as_secs_f64() >= CHECKPOINT_SECONDS,
                every => number.is_multiple_of(every),
            };
            if checkpoint || stop || early || ends {
                self.keep()?;
                written = Instant::now();
            }
            if early {
                return Ok(Ended::Early);
            }
            if stop && !ends {
                return Ok(Ended::Stopped);
            }
        }
        Ok(Ended::Done)
    }

    /// The batch's full size.
    fn position_full(&self) -> usize {
        match self.options.recipe.carried {
            true => self.options.batch,
            false => self.options.batch.min(self.loader.windows()),
        }
    }

    /// Loss and metric over all of the validation's windows.
    fn validate(&mut self) -> Result<Option<[f64; 2]>> {
        let Some((evaluation, loader)) = &mut self.validation else { return Ok(None) };
        let (step, model) = (&self.step, &self.model);
        evaluation.all(loader, &|name: &str| step.weight(name).or_else(|_| model.weight(name))).map(Some)
    }

    /// Takes note of the latest record; writes the best model; says whether to end.
    fn judge(&mut self) -> Result<bool> {
        let Some(record) = self.records.last() else { return Ok(false) };
        let (step, loss) = (record.step, record.validation.unwrap_or(record.loss));
        self.options.schedule.note(&mut self.position.plateau, loss);
        if self.position.best.is_none_or(|(_, best)| loss < best) {
            self.position.best = Some((step, loss));
            self.position.waited = 0;
            if self.options.folder.is_some() {
                self.best_model = Some(self.model()?);
            }
            return Ok(false);
        }
        self.position.waited += 1;
        Ok(self.options.patience.is_some_and(|patience| self.position.waited >= patience))
    }

    /// Writes the best model, the log and the checkpoint, in this order: what the checkpoint speaks of is there.
    fn keep(&mut self) -> Result<()> {
        let Some(folder) = self.options.folder.clone() else { return Ok(()) };
        if let Some(best) = self.best_model.take() {
            best.save(folder.join(BEST))?;
        }
        log::write(&folder, &self.records)?;
        checkpoint::write(&folder.join(LAST), &self.position, &self.step, &mut self.model)
    }
}

/// What is said of the checkpoint where training ends with an error.
fn kept(folder: &Option<PathBuf>) -> String {
    match folder {
        Some(folder) if folder.join(LAST).exists() => {
            format!("; {} is of before it", Path::new(folder).join(LAST).display())
        }
        _ => String::new(),
    }
}

/// A number of everything that decides what training does, but for its length and its threads.
fn fingerprint(model: &Model, options: &Options, data: &Sequences, windows: usize) -> String {
    let o = options;
    let said = format!(
        "{:?} {:?} {:?} {:?} {} {} {} {:?} {:?} {windows} {:?}",
        model.layers(),
        model.params().iter().map(|p| (&p.name, &p.shape)).collect::<Vec<_>>(),
        o.recipe,
        o.schedule,
        o.batch,
        o.seed,
        o.shuffle,
        o.scale,
        o.validate_every,
        (data.len(), data.inputs(), data.targets(), data.longest()),
    );
    let hash = said.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}
