//! A training as a TOML file: model, data, and how to learn. What is wrong in it is said with its key and line.

use anyhow::{Context, Result, anyhow};
use schwann::nn::data::{self, Columns, Sequences, Split, Windows};
use schwann::nn::train::{Course, Group, Loss, LossScale, Optimizer, Options, Precision, Recipe, Rounding, Schedule};
use schwann::nn::{self, Layer, Model};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::{DeTable, DeValue};

/// A file beyond this is none.
const MOST_BYTES: u64 = 16 << 20;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    model: ModelPart,
    data: DataPart,
    train: TrainPart,
    #[serde(default)]
    groups: Vec<GroupPart>,
    #[serde(default)]
    output: OutputPart,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelPart {
    /// A model to go on with.
    file: Option<PathBuf>,
    /// Or its layers.
    layers: Option<Vec<Layer>>,
    #[serde(default)]
    seed: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataPart {
    example: Option<String>,
    inputs: Option<String>,
    targets: Option<String>,
    timespans: Option<String>,
    lengths: Option<String>,
    csv: Option<PathBuf>,
    columns: Option<ColumnsPart>,
    /// Whether rows are samples of their own, without time.
    #[serde(default)]
    samples: bool,
    /// Whether the time between steps is also one of the inputs, for layers that know of no time.
    #[serde(default)]
    time_as_input: bool,
    window: Option<usize>,
    stride: Option<usize>,
    #[serde(default)]
    carry: bool,
    #[serde(default)]
    validation: f64,
    #[serde(default)]
    normalize: Normalize,
    #[serde(default = "yes")]
    shuffle: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ColumnsPart {
    inputs: Vec<String>,
    targets: Vec<String>,
    time: Option<String>,
    group: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Normalize {
    #[default]
    None,
    Inputs,
    Both,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LossName {
    #[default]
    Mse,
    Mae,
    Huber,
    CrossEntropy,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OptimizerName {
    Sgd,
    #[default]
    Adam,
    Adamw,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CourseName {
    #[default]
    Constant,
    Cosine,
    Plateau,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum ScalePart {
    Fixed(f32),
    Word(String),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrainPart {
    epochs: Option<u64>,
    steps: Option<u64>,
    #[serde(default = "batch")]
    batch: usize,
    #[serde(default)]
    loss: LossName,
    delta: Option<f32>,
    #[serde(default)]
    optimizer: OptimizerName,
    betas: Option<(f32, f32)>,
    eps: Option<f32>,
    momentum: Option<f32>,
    nesterov: Option<bool>,
    rate: Option<f32>,
    #[serde(default)]
    decay: f32,
    #[serde(default)]
    warm_up: u64,
    #[serde(default)]
    schedule: CourseName,
    least: Option<f32>,
    factor: Option<f32>,
    wait: Option<usize>,
    clip_norm: Option<f32>,
    #[serde(default)]
    precision: Precision,
    loss_scale: Option<ScalePart>,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    validate_every: u64,
    patience: Option<usize>,
    #[serde(default)]
    checkpoint_every: u64,
    #[serde(default)]
    log_every: u64,
    /// Bytes that a step may take.
    memory: Option<u64>,
    /// Steps of a segment that is computed again; chosen by `memory` where nothing is said.
    segment: Option<usize>,
}

fn batch() -> usize {
    32
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupPart {
    parameters: String,
    rate: Option<f32>,
    decay: Option<f32>,
    #[serde(default)]
    frozen: bool,
    round: Option<Rounding>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputPart {
    folder: Option<PathBuf>,
}

/// A training that was read: everything that a trainer takes.
pub(crate) struct Ready {
    pub(crate) model: Model,
    pub(crate) data: Arc<Sequences>,
    pub(crate) training: Windows,
    pub(crate) validation: Windows,
    pub(crate) options: Options,
    pub(crate) memory: Option<usize>,
    pub(crate) segment: Option<usize>,
    pub(crate) epochs: Option<u64>,
    text: String,
    name: String,
}

/// Text with the name that errors call it by, and the folder that its paths begin at.
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
}

impl Text {
    pub(crate) fn read(path: &Path) -> Result<Text> {
        let text = schwann::io::read_text(path, MOST_BYTES).context("the training cannot be read")?;
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        Ok(Text { text, name: path.display().to_string(), folder })
    }

    /// Reads data and makes the model; whatever does not fit is said with its key and line.
    pub(crate) fn ready(&self) -> Result<Ready> {
        let config: Config = toml::from_str(&self.text).map_err(|e| {
            let line = e.span().map_or(1, |span| line(&self.text, span.start));
            anyhow!("{}, line {line}: {}", self.name, e.message().trim_end())
        })?;
        config.ready(self).map_err(|e| explained(e, &self.text, &self.name))
    }
}

impl Ready {
    /// An error of the library, with the key and line that it comes from.
    pub(crate) fn explained(&self, error: nn::Error) -> anyhow::Error {
        explained(error.into(), &self.text, &self.name)
    }
}

fn line(text: &str, at: usize) -> usize {
    text[..at.min(text.len())].matches('\n').count() + 1
}

/// A mistake at a key.
#[derive(Debug)]
struct At {
    key: &'static str,
    problem: String,
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` {}", self.key, self.problem)
    }
}
impl std::error::Error for At {}

fn at(key: &'static str, problem: impl Into<String>) -> anyhow::Error {
    At { key, problem: problem.into() }.into()
}

/// The error with the line of its key, where the text has that key.
fn explained(error: anyhow::Error, text: &str, name: &str) -> anyhow::Error {
    let key = match (error.downcast_ref::<At>(), error.downcast_ref::<nn::Error>()) {
        (Some(at), _) => Some(at.key.rsplit('.').next().unwrap_or(at.key).to_owned()),
        (None, Some(nn::Error::Argument { argument, .. })) => {
            // The last word of `layers[1].units` is the key.
            argument.rsplit(['.', ' ']).next().map(str::to_owned)
        }
        _ => None,
    };
    let found = key.and_then(|key| DeTable::parse(text).ok().and_then(|table| find(table.get_ref(), &key)));
    match found {
        Some(start) => anyhow!("{name}, line {}: {error:#}", line(text, start)),
        None => error.context(format!("{name} cannot be trained")),
    }
}

/// Where a key stands, in the order of the text.
fn find(table: &DeTable<'_>, wanted: &str) -> Option<usize> {
    fn inside(value: &DeValue<'_>, wanted: &str, places: &mut Vec<usize>) {
        match value {
            DeValue::Table(table) => search(table, wanted, places),
            DeValue::Array(list) => list.iter().for_each(|item| inside(item.get_ref(), wanted, places)),
            _ => {}
        }
    }
    fn search(table: &DeTable<'_>, wanted: &str, places: &mut Vec<usize>) {
        for (key, value) in table {
            if key.get_ref().as_ref() == wanted {
                places.push(key.span().start);
            }
            inside(value.get_ref(), wanted, places);
        }
    }
    let mut places = vec![];
    search(table, wanted, &mut places);
    places.into_iter().min()
}

impl Config {
    fn ready(self, from: &Text) -> Result<Ready> {
        let data = self.data.read(&from.folder)?;
        let (trained, validated) =
            data::split(&data, &Split { validation: self.data.validation, seed: self.train.seed })?;
        let windows =
            |spans: &[(usize, usize)]| Windows::new(spans, self.data.window, self.data.stride, self.data.carry);
        let (training, validation) = (windows(&trained)?, windows(&validated)?);
        let model = match (&self.model.file, &self.model.layers) {
            (Some(file), None) => crate::load::model(&from.folder.join(file))?,
            (None, Some(layers)) => Model::new(layers.clone(), self.model.seed)?,
            _ => return Err(at("model", "has both `file` and `layers`, or neither; expected one of them")),
        };

        let t = &self.train;
        let loss = t.loss()?;
        let scale = |wanted: bool, targets: bool| match wanted {
            true => data.scale(&training.list, targets).map(Some),
            false => Ok(None),
        };
        let inputs = scale(self.data.normalize != Normalize::None, false)?;
        let targets = scale(self.data.normalize == Normalize::Both && !loss.is_of_classes(), true)?;
        let (model, frozen) = data::normalized(&model, inputs.as_ref(), targets.as_ref())?;
        let mut groups = vec![];
        if t.decay > 0.0 {
            groups.push(Group::of("*").decay(t.decay));
        }
        for group in &self.groups {
            groups.push(Group {
                parameters: group.parameters.clone(),
                rate: group.rate.unwrap_or(1.0),
                decay: group.decay.unwrap_or(t.decay),
                frozen: group.frozen,
                round: group.round,
            });
        }
        groups.extend(frozen.into_iter().map(|name| Group::of(name).frozen()));
        let unit = targets.map(|scale| schwann::Tensor::new(&[scale.deviation.len()], &scale.deviation)).transpose()?;
        let rate = t.rate.unwrap_or(if t.optimizer == OptimizerName::Sgd { 1e-2 } else { 1e-3 });
        let recipe = Recipe {
            loss,
            optimizer: t.optimizer()?,
            rate,
            groups,
            clip_norm: t.clip_norm,
            precision: t.precision,
            unit,
            ..Recipe::default()
        };
        if t.epochs.is_some() == t.steps.is_some() {
            return Err(at("train", "has both `epochs` and `steps`, or neither; expected one of them"));
        }
        let options = Options {
            recipe,
            schedule: Schedule { warm_up: t.warm_up, course: t.course()? },
            batch: t.batch,
            steps: t.steps.unwrap_or(0),
            validate_every: t.validate_every,
            patience: t.patience,
            checkpoint_every: t.checkpoint_every,
            log_every: t.log_every,
            seed: t.seed,
            shuffle: self.data.shuffle,
            scale: t.scale()?,
            folder: Some(from.folder.join(self.output.folder.clone().unwrap_or_else(|| "training".into()))),
            ..Options::default()
        };
        Ok(Ready {
            model,
            data: Arc::new(data),
            training,
            validation,
            options,
            memory: t.memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            segment: t.segment,
            epochs: t.epochs,
            text: from.text.clone(),
            name: from.name.clone(),
        })
    }
}

impl DataPart {
    fn read(&self, folder: &Path) -> Result<Sequences> {
        let kinds = [self.example.is_some(), self.inputs.is_some(), self.csv.is_some()];
        if kinds.iter().filter(|k| **k).count() != 1 {
            return Err(at("data", "has not exactly one of `example`, `inputs` and `csv`"));
        }
        let place = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let mut data = if let Some(name) = &self.example {
            data::examples::data(name, 1)?
        } else if let Some(csv) = &self.csv {
            let columns = self.columns.clone().ok_or_else(|| at("csv", "needs a table `data.columns`"))?;
            let ColumnsPart { inputs, targets, time, group } = columns;
            data::read_csv(folder.join(csv), &Columns { inputs, targets, time, group })?
        } else {
            let (Some(inputs), Some(targets)) = (&self.inputs, &self.targets) else {
                return Err(at("inputs", "needs `targets` beside it"));
            };
            let (x, target) = (data::read_array(&place(inputs))?, data::read_array(&place(targets))?);
            let mut data = if self.samples { Sequences::samples(x, target)? } else { Sequences::new(x, target)? };
            if let Some(timespans) = &self.timespans {
                data = data.timespans(data::read_array(&place(timespans))?)?;
            }
            if let Some(lengths) = &self.lengths {
                let lengths = data::read_array(&place(lengths))?.to_f64();
                data = data.lengths(&lengths.into_iter().map(|n| n as usize).collect::<Vec<_>>())?;
            }
            data
        };
        if self.time_as_input {
            data = data.with_time_as_input()?;
        }
        Ok(data)
    }
}

impl TrainPart {
    fn loss(&self) -> Result<Loss> {
        if let (Some(_), false) = (self.delta, self.loss == LossName::Huber) {
            return Err(at("delta", "is for the loss `huber`"));
        }
        Ok(match self.loss {
            LossName::Mse => Loss::Mse,
            LossName::Mae => Loss::Mae,
            LossName::Huber => Loss::Huber { delta: self.delta.unwrap_or(1.0) },
            LossName::CrossEntropy => Loss::CrossEntropy,
        })
    }

    fn optimizer(&self) -> Result<Optimizer> {
        if self.optimizer == OptimizerName::Sgd {
            for (key, given) in [("betas", self.betas.is_some()), ("eps", self.eps.is_some())] {
                if given {
                    return Err(at(key, "is for the optimizers `adam` and `adamw`"));
                }
            }
            let (momentum, nesterov) = (self.momentum.unwrap_or(0.0), self.nesterov.unwrap_or(false));
            return Ok(Optimizer::Sgd { momentum, nesterov });
        }
        for (key, given) in [("momentum", self.momentum.is_some()), ("nesterov", self.nesterov.is_some())] {
            if given {
                return Err(at(key, "is for the optimizer `sgd`"));
            }
        }
        let (betas, eps) = (self.betas.unwrap_or((0.9, 0.999)), self.eps.unwrap_or(1e-8));
        Ok(match self.optimizer {
            OptimizerName::Adamw => Optimizer::AdamW { betas, eps },
            _ => Optimizer::Adam { betas, eps },
        })
    }

    fn course(&self) -> Result<Course> {
        let plateau = self.schedule == CourseName::Plateau;
        for (key, given) in [("factor", self.factor.is_some()), ("wait", self.wait.is_some())] {
            if given && !plateau {
                return Err(at(key, "is for the schedule `plateau`"));
            }
        }
        if self.least.is_some() && self.schedule == CourseName::Constant {
            return Err(at("least", "is for the schedules `cosine` and `plateau`"));
        }
        let least = self.least.unwrap_or(0.0);
        Ok(match self.schedule {
            CourseName::Constant => Course::Constant,
            CourseName::Cosine => Course::Cosine { least },
            CourseName::Plateau => {
                Course::Plateau { factor: self.factor.unwrap_or(0.5), patience: self.wait.unwrap_or(5), least }
            }
        })
    }

    fn scale(&self) -> Result<LossScale> {
        match &self.loss_scale {
            None => Ok(LossScale::None),
            Some(ScalePart::Fixed(scale)) => Ok(LossScale::Fixed(*scale)),
            Some(ScalePart::Word(word)) if word == "dynamic" => Ok(LossScale::Dynamic(65536.0)),
            Some(ScalePart::Word(word)) => {
                Err(at("loss_scale", format!("is {word:?}; expected a number or \"dynamic\"")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        let text = Text { text: text.into(), name: "my.toml".into(), folder: PathBuf::new() };
        text.ready().err().map(|e| format!("{e:#}")).unwrap_or_default()
    }

    const GOOD: &str = "[model]
layers = [{ class = \"CfC\", input_size = 2, units = 8, proj_size = 1 }]
[data]
example = \"sine\"
[train]
steps = 10
";

    #[test]
    fn a_mistake_is_named_with_its_key_and_line() {
        assert_eq!(said(GOOD), "");
        let with = |from: &str, to: &str| said(&GOOD.replace(from, to));
        for (from, to, words) in [
            ("steps = 10", "stebs = 10", &["my.toml, line 6", "unknown field `stebs`"][..]),
            ("steps = 10", "steps = -1", &["my.toml, line 6"]),
            ("steps = 10", "steps = 10\nepochs = 3", &["line 5", "`train` has both"]),
            ("steps = 10", "steps = 10\nmomentum = 0.9", &["line 7", "`momentum` is for the optimizer `sgd`"]),
            ("steps = 10", "steps = 10\nloss_scale = \"big\"", &["line 7", "`loss_scale` is \"big\"", "dynamic"]),
            ("steps = 10", "steps = 10\nleast = 0.1", &["line 7", "`least` is for the schedules"]),
            ("\"sine\"", "\"sin\"", &["line 4", "`example` is sin; expected one of sine"]),
            ("units = 8", "units = 0", &["line 2", "`units` is 0"]),
            ("example = \"sine\"", "example = \"sine\"\nvalidation = 1.5", &["line 5", "`validation` is 1.5"]),
            ("class = \"CfC\"", "class = \"CFC\"", &["line 2", "CFC"]),
            ("[data]", "[dada]", &["dada"]),
        ] {
            let said = with(from, to);
            assert!(words.iter().all(|word| said.contains(word)), "{to}: {said}");
        }
    }
}
