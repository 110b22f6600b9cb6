//! Everything that training goes on from, in one file: a model's file with more in it.
//!
//! Weights have the model's names, so that the file is a model like any other. Beside them, under [`TRAINING_PREFIX`], are
//! what the optimizer remembers and the states of rows that go on; the metadata entry [`TRAINING_KEY`] has the rest as
//! JSON. It is one file because files are replaced whole: a kill at any moment leaves the old one or the new one.

use super::schedule::Plateau;
use super::step::Step;
use crate::{Error, Model, Result};
use schwann_core::Tensor;
use schwann_core::io::safetensors::{self, Reader};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The metadata entry that holds where training is.
pub const TRAINING_KEY: &str = "schwann.training";
/// What the names of tensors begin with that are no weights.
pub const TRAINING_PREFIX: &str = "training.";
/// Weights as the optimizer moves them, where the model's own are rounded.
const MASTER: &str = "master.";
const VERSION: u32 = 1;

/// Where training is, but for tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Position {
    pub(crate) version: u32,
    /// What tells this training from another: a number of its options and data.
    pub(crate) run: String,
    pub(crate) step: u64,
    /// Steps that changed weights.
    pub(crate) updates: u64,
    /// The pass over the data, and windows of it that were learned from.
    pub(crate) epoch: u64,
    pub(crate) from: usize,
    pub(crate) batch: usize,
    pub(crate) best: Option<(u64, f64)>,
    /// Validations since the best.
    pub(crate) waited: usize,
    pub(crate) plateau: Plateau,
    pub(crate) scale: f32,
    /// Steps since the scale last changed.
    pub(crate) scale_steps: u64,
    /// Losses since the last record, and how many.
    pub(crate) loss_sum: f64,
    pub(crate) loss_count: u64,
    pub(crate) seconds: f64,
    /// Whether training has come to its end.
    pub(crate) ended: bool,
}

impl Position {
    pub(crate) fn new(run: String, batch: usize, scale: f32) -> Position {
        Position {
            version: VERSION,
            run,
            step: 0,
            updates: 0,
            epoch: 0,
            from: 0,
            batch,
            best: None,
            waited: 0,
            plateau: Plateau::default(),
            scale,
            scale_steps: 0,
            loss_sum: 0.0,
            loss_count: 0,
            seconds: 0.0,
            ended: false,
        }
    }
}

/// Writes a checkpoint, whole or not at all. `model` is one to write weights into.
pub(crate) fn write(path: &Path, position: &Position, step: &Step, model: &mut Model) -> Result<()> {
    step.write_used_weights(model)?;
    let mut tensors: BTreeMap<String, Tensor> = model.weights().clone();
    for (name, data) in step.remembered()? {
        tensors.insert(format!("{TRAINING_PREFIX}{name}"), data);
    }
    for name in step.trained().iter().filter(|name| step.recipe().group(name).round.is_some()) {
        tensors.insert(format!("{TRAINING_PREFIX}{MASTER}{name}"), step.weight(name)?.clone());
    }
    let json = serde_json::to_string(position).map_err(|e| Error::file(format!("the position as JSON: {e}")))?;
    let mut metadata = model.metadata()?;
    metadata.insert(TRAINING_KEY.to_owned(), json);
    Ok(safetensors::write(path, tensors.iter().map(|(n, t)| (n.as_str(), t)), &metadata)?)
}

/// Reads where training is and everything to go on from: weights before rounding, by name, and what is remembered.
pub(crate) fn read(path: &Path) -> Result<(Position, BTreeMap<String, Tensor>)> {
    read_from(&Reader::open(path)?).map_err(|e| e.in_file(path))
}

fn read_from(reader: &Reader) -> Result<(Position, BTreeMap<String, Tensor>)> {
    let Some(text) = reader.metadata().get(TRAINING_KEY) else {
        return Err(Error::file(format!("no checkpoint: the metadata has no `{TRAINING_KEY}`")));
    };
    let json: serde_json::Value =
        serde_json::from_str(text).map_err(|e| Error::file(format!("metadata `{TRAINING_KEY}`: {e}")))?;
    if json["version"] != VERSION {
        let problem = format!("a checkpoint of version {}; this program reads version {VERSION}", json["version"]);
        return Err(Error::file(problem));
    }
    let position: Position =
        serde_json::from_value(json).map_err(|e| Error::file(format!("metadata `{TRAINING_KEY}`: {e}")))?;
    let mut states = BTreeMap::new();
    let mut masters = BTreeMap::new();
    for (name, data) in reader.tensors()? {
        match name.strip_prefix(TRAINING_PREFIX) {
            Some(rest) => match rest.strip_prefix(MASTER) {
                Some(weight) => masters.insert(weight.to_owned(), data),
                None => states.insert(rest.to_owned(), data),
            },
            None => states.insert(name, data),
        };
    }
    states.extend(masters);
    Ok((position, states))
}
