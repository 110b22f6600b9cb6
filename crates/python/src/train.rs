//! Training from arrays.

use crate::array::any_tensor;
use crate::error::Problem;
use crate::model::Model;
use crate::network::Network;
use crate::wait::interruptible;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use schwann::Tensor;
use schwann::nn::GraphOptions;
use schwann::nn::data::{self, Sequences, Split, Windows};
use schwann::nn::train::{
    Course, Ended, Go, Group, Loss, LossScale, Optimizer, Options, Precision, Progress, Recipe, Record, Schedule,
    Trainer,
};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often Python hears how it goes.
const TELL: Duration = Duration::from_millis(100);

/// How to train, with the names that a training's file has.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    epochs: Option<u64>,
    steps: Option<u64>,
    batch: usize,
    window: Option<usize>,
    stride: Option<usize>,
    carry: bool,
    validation: f64,
    normalize: String,
    shuffle: bool,
    loss: String,
    delta: Option<f32>,
    optimizer: String,
    rate: Option<f32>,
    decay: f32,
    momentum: Option<f32>,
    schedule: String,
    least: f32,
    warm_up: u64,
    clip_norm: Option<f32>,
    precision: String,
    loss_scale: Option<f32>,
    patience: Option<usize>,
    validate_every: u64,
    seed: u64,
    folder: Option<PathBuf>,
    resume: bool,
    frozen: Vec<String>,
}

fn one_of(argument: &str, got: &str, known: &[&str]) -> Problem {
    let known: Vec<String> = known.iter().map(|k| format!("{k:?}")).collect();
    Problem::argument(argument, format!("{got:?}"), format!("one of {}", known.join(", ")))
}

impl Settings {
    fn loss(&self) -> Result<Loss, Problem> {
        Ok(match self.loss.as_str() {
            "mse" => Loss::Mse,
            "mae" => Loss::Mae,
            "huber" => Loss::Huber { delta: self.delta.unwrap_or(1.0) },
            "cross_entropy" => Loss::CrossEntropy,
            other => return Err(one_of("loss", other, &["mse", "mae", "huber", "cross_entropy"])),
        })
    }

    fn optimizer(&self) -> Result<Optimizer, Problem> {
        Ok(match self.optimizer.as_str() {
            "adam" => Optimizer::adam(),
            "adamw" => Optimizer::adam_w(),
            "sgd" => Optimizer::Sgd { momentum: self.momentum.unwrap_or(0.0), nesterov: false },
            other => return Err(one_of("optimizer", other, &["adam", "adamw", "sgd"])),
        })
    }

    fn course(&self) -> Result<Course, Problem> {
        Ok(match self.schedule.as_str() {
            "constant" => Course::Constant,
            "cosine" => Course::Cosine { least: self.least },
            "plateau" => Course::Plateau { factor: 0.5, patience: 5, least: self.least },
            other => return Err(one_of("schedule", other, &["constant", "cosine", "plateau"])),
        })
    }
}

/// An array of numbers to learn from, in memory of its own; whole numbers of 64 bits, which classes usually are, become i32.
fn array(name: &str, object: &Bound<'_, PyAny>) -> Result<Tensor, Problem> {
    let numpy = object.py().import("numpy")?;
    let made = numpy.call_method1("asarray", (object,))?;
    let kind: String = made.getattr("dtype")?.getattr("kind")?.extract()?;
    let wanted = match kind.as_str() {
        "i" | "u" => "int32",
        "f" => "float32",
        _ => {
            let dtype = made.getattr("dtype")?.str()?;
            return Err(PyTypeError::new_err(format!("`{name}` is {dtype}; expected numbers, float32 or int32")).into());
        }
    };
    any_tensor(name, &numpy.call_method1("ascontiguousarray", (made, wanted))?)
}

/// How it goes, for Python.
struct Told {
    step: u64,
    steps: u64,
    epoch: u64,
    loss: f32,
    best: Option<(u64, f64)>,
    samples_per_s: f64,
    seconds_left: f64,
}

/// The trained model, the log as JSON, how it ended, and step and loss of the best validation.
type Outcome = (Model, String, &'static str, Option<(u64, f64)>);

/// See `schwann.train`.
#[pyfunction]
#[pyo3(signature = (model, inputs, targets, settings, *, timespans = None, lengths = None, progress = None))]
#[expect(clippy::too_many_arguments, reason = "they are the arguments of a function of Python's")]
pub(crate) fn _train(
    py: Python<'_>,
    model: &Model,
    inputs: &Bound<'_, PyAny>,
    targets: &Bound<'_, PyAny>,
    settings: &str,
    timespans: Option<&Bound<'_, PyAny>>,
    lengths: Option<Vec<usize>>,
    progress: Option<&Bound<'_, PyAny>>,
) -> Result<Outcome, Problem> {
    let settings: Settings = serde_json::from_str(settings)?;
    let start = model.network.model("training")?;
    let stateless = start.graph(&GraphOptions::default())?.states().is_empty();
    let (x, target) = (array("inputs", inputs)?, array("targets", targets)?);
    let mut data = if stateless { Sequences::samples(x, target)? } else { Sequences::new(x, target)? };
    if let Some(spans) = timespans {
        data = data.timespans(array("timespans", spans)?)?;
    }
    if let Some(lengths) = &lengths {
        data = data.lengths(lengths)?;
    }
    let (trained, validated) = data::split(&data, &Split { validation: settings.validation, seed: settings.seed })?;
    let windows = |spans: &[(usize, usize)]| Windows::new(spans, settings.window, settings.stride, settings.carry);
    let (training, validation) = (windows(&trained)?, windows(&validated)?);
    let loss = settings.loss()?;
    let (of_inputs, of_targets) = match settings.normalize.as_str() {
        "none" => (false, false),
        "inputs" => (true, false),
        "both" => (true, !loss.is_of_classes()),
        other => return Err(one_of("normalize", other, &["none", "inputs", "both"])),
    };
    let scale = |wanted: bool, targets: bool| wanted.then(|| data.scale(&training.list, targets)).transpose();
    let (input_scale, target_scale) = (scale(of_inputs, false)?, scale(of_targets, true)?);
    let (start, fixed) = data::normalized(start, input_scale.as_ref(), target_scale.as_ref())?;
    let mut groups = vec![];
    if settings.decay > 0.0 {
        groups.push(Group::of("*").decay(settings.decay));
    }
    groups.extend(settings.frozen.iter().cloned().chain(fixed).map(|name| Group::of(name).frozen()));
    let optimizer = settings.optimizer()?;
    let usual = if matches!(optimizer, Optimizer::Sgd { .. }) { 1e-2 } else { 1e-3 };
    let recipe = Recipe {
        loss,
        optimizer,
        rate: settings.rate.unwrap_or(usual),
        groups,
        clip_norm: settings.clip_norm,
        precision: match settings.precision.as_str() {
            "float32" => Precision::F32,
            "bfloat16" => Precision::Bf16,
            other => return Err(one_of("precision", other, &["float32", "bfloat16"])),
        },
        unit: target_scale.map(|s| Tensor::new(&[s.deviation.len()], &s.deviation)).transpose()?,
        ..Recipe::default()
    };
    if settings.epochs.is_some() && settings.steps.is_some() {
        return Err(Problem::argument("steps", "given beside `epochs`", "one of them"));
    }
    let options = Options {
        recipe,
        schedule: Schedule { warm_up: settings.warm_up, course: settings.course()? },
        batch: settings.batch,
        steps: settings.steps.unwrap_or(1000),
        epochs: settings.epochs,
        validate_every: settings.validate_every,
        patience: settings.patience,
        seed: settings.seed,
        shuffle: settings.shuffle,
        scale: settings.loss_scale.map_or(LossScale::None, LossScale::Fixed),
        folder: settings.folder.clone(),
        compile: model.how.options(),
        ..Options::default()
    };
    let stop = AtomicBool::new(false);
    let data = Arc::new(data);
    let told = |told: Told| match progress {
        None => Ok(()),
        Some(call) => {
            let all = PyDict::new(py);
            all.set_item("step", told.step)?;
            all.set_item("steps", told.steps)?;
            all.set_item("epoch", told.epoch)?;
            all.set_item("loss", told.loss)?;
            all.set_item("best", told.best)?;
            all.set_item("samples_per_s", told.samples_per_s)?;
            all.set_item("seconds_left", told.seconds_left)?;
            call.call1((all,)).map(drop)
        }
    };
    let cancel = || stop.store(true, Ordering::Relaxed);
    let done = interruptible(py, cancel, told, |sender| -> Result<_, Problem> {
        let mut trainer = Trainer::new(&start, &data, training, validation, &options)?;
        if settings.resume && trainer.has_checkpoint() {
            trainer.resume()?;
        }
        let mut last = Instant::now();
        let ended = trainer.run(&mut |p: &Progress<'_>| {
            if last.elapsed() >= TELL || p.step == p.steps {
                last = Instant::now();
                let told = Told {
                    step: p.step,
                    steps: p.steps,
                    epoch: p.epoch,
                    loss: p.loss,
                    best: p.best,
                    samples_per_s: p.samples_per_s,
                    seconds_left: p.seconds_left,
                };
                // Where nobody listens any more, somebody has asked for an end.
                let _ = sender.send(told);
            }
            if stop.load(Ordering::Relaxed) { Go::Stop } else { Go::On }
        })?;
        let records: &[Record] = trainer.records();
        Ok((trainer.model()?, serde_json::to_string(records)?, ended, trainer.best()))
    })?;
    let (trained, records, ended, best) = done?;
    let ended = match ended {
        Ended::Done => "done",
        Ended::Early => "early",
        _ => "stopped",
    };
    Ok((Model::new(Network::Model(trained), &model.name, model.how.clone())?, records, ended, best))
}
