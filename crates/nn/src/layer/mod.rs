//! The layers: plain options, each with its parameters and the graph that it becomes.
//!
//! Options, their defaults and their JSON are those of the classes of ncps and PyTorch and of their constructors, and
//! parameters have the names of their state dicts, so that a model trained there is a model here.

mod activation;
mod bit_linear;
mod cfc;
mod dense;
mod ltc;
mod pytorch;
mod recurrent;

pub use activation::Activation;
pub use bit_linear::BitLinear;
pub use cfc::{Cfc, CfcMode};
pub use dense::{Affine, Embedding, LayerNorm, Linear, Softmax};
pub(crate) use ltc::POSITIVE;
pub use ltc::{Ltc, Mapping};
pub use pytorch::{Gru, Lstm, Rnn};

use crate::init::Param;
use crate::scope::Outer;
use crate::train::Rounding;
use crate::wiring::{Wiring, WiringConfig};
use crate::{Error, Result};
use schwann_core::{Tensor, Value};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most layers of a backbone and unfoldings of a step: far beyond use, and few enough that a hostile file cannot
/// make a graph explode.
pub const MOST_REPEATS: usize = 256;

/// The neurons of a recurrent layer: a number, or a circuit.
#[derive(Clone, Debug, PartialEq)]
pub enum Units {
    /// So many, each reaching each.
    Count(usize),
    /// These, wired so. A wiring that is not built yet is built for the layer's inputs.
    Wired(Wiring),
}

impl From<usize> for Units {
    fn from(units: usize) -> Units {
        Units::Count(units)
    }
}
impl From<Wiring> for Units {
    fn from(wiring: Wiring) -> Units {
        Units::Wired(wiring)
    }
}

/// A number, or a wiring's JSON: every synapse of it.
impl Serialize for Units {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Units::Count(units) => units.serialize(s),
            Units::Wired(wiring) => wiring.serialize(s),
        }
    }
}

/// A number, a wiring's JSON (which has a `config`), or ncps' configuration of one (which has a `class`).
impl<'de> Deserialize<'de> for Units {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Units, D::Error> {
        let value = serde_json::Value::deserialize(d)?;
        let wiring = match &value {
            serde_json::Value::Object(fields) if fields.contains_key("class") => {
                WiringConfig::try_from(value).and_then(|config| config.to_wiring()).map_err(D::Error::custom)?
            }
            serde_json::Value::Object(_) => Wiring::deserialize(value).map_err(D::Error::custom)?,
            _ => {
                let units = value.as_u64().and_then(|n| usize::try_from(n).ok());
                let problem = || D::Error::custom(format!("`units` is {value}; expected a whole number or a wiring"));
                return Ok(Units::Count(units.ok_or_else(problem)?));
            }
        };
        Ok(Units::Wired(wiring))
    }
}

/// A built copy of a wiring.
fn built(wiring: &Wiring, input_size: usize) -> Result<Wiring> {
    let mut wiring = wiring.clone();
    wiring.build(input_size)?;
    Ok(wiring)
}

/// What most switches are if nothing is said.
fn yes() -> bool {
    true
}

/// Refuses a size of 0, or one beyond all reason, whose multiples might overflow.
fn check_size(argument: &str, size: usize) -> Result<()> {
    const MOST: usize = 1 << 28;
    if size == 0 || size > MOST {
        return Err(Error::argument(argument, size, format!("from 1 to {MOST}")));
    }
    Ok(())
}

fn check_repeats(argument: &str, count: usize, least: usize) -> Result<()> {
    if (least..=MOST_REPEATS).contains(&count) {
        return Ok(());
    }
    Err(Error::argument(argument, count, format!("from {least} to {MOST_REPEATS}")))
}

/// One layer of a model.
///
/// ```
/// use schwann_nn::{Cfc, Layer};
///
/// let text = r#"{"class": "CfC", "input_size": 8, "units": 32}"#;
/// let layer: Layer = serde_json::from_str(text).unwrap();
/// assert_eq!(layer, Layer::from(Cfc::new(8, 32)));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class", deny_unknown_fields)]
#[non_exhaustive]
pub enum Layer {
    /// See [`Cfc`].
    #[serde(rename = "CfC")]
    Cfc(Cfc),
    /// See [`Ltc`].
    #[serde(rename = "LTC")]
    Ltc(Ltc),
    /// See [`Lstm`].
    #[serde(rename = "LSTM")]
    Lstm(Lstm),
    /// See [`Gru`].
    #[serde(rename = "GRU")]
    Gru(Gru),
    /// See [`Rnn`].
    #[serde(rename = "RNN")]
    Rnn(Rnn),
    /// See [`Linear`].
    Linear(Linear),
    /// See [`BitLinear`].
    BitLinear(BitLinear),
    /// See [`Affine`].
    Affine(Affine),
    /// See [`LayerNorm`].
    LayerNorm(LayerNorm),
    /// See [`Softmax`].
    Softmax(Softmax),
    /// See [`Embedding`].
    Embedding(Embedding),
    /// A function of every element.
    Activation {
        /// Which.
        function: Activation,
    },
}

macro_rules! from_layer {
    ($($layer:ident),*) => { $(
        impl From<$layer> for Layer {
            fn from(layer: $layer) -> Layer {
                Layer::$layer(layer)
            }
        }
    )* };
}
from_layer!(Cfc, Ltc, Lstm, Gru, Rnn, Linear, BitLinear, Affine, LayerNorm, Softmax, Embedding);
impl From<Activation> for Layer {
    fn from(function: Activation) -> Layer {
        Layer::Activation { function }
    }
}

/// How many features a layer takes and gives; `None` where any number goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Widths {
    pub(crate) input: Option<usize>,
    pub(crate) output: Option<usize>,
}

impl Layer {
    /// Its class, as its JSON has it.
    pub fn class(&self) -> &'static str {
        match self {
            Layer::Cfc(_) => "CfC",
            Layer::Ltc(_) => "LTC",
            Layer::Lstm(_) => "LSTM",
            Layer::Gru(_) => "GRU",
            Layer::Rnn(_) => "RNN",
            Layer::Linear(_) => "Linear",
            Layer::Affine(_) => "Affine",
            Layer::BitLinear(_) => "BitLinear",
            Layer::LayerNorm(_) => "LayerNorm",
            Layer::Softmax(_) => "Softmax",
            Layer::Embedding(_) => "Embedding",
            Layer::Activation { .. } => "Activation",
        }
    }

    /// What operations of it are called by where the model has no name for the layer: its class in small letters, or
    /// the function of an activation.
    pub fn word(&self) -> String {
        match self {
            Layer::Activation { function } => function.word(),
            Layer::LayerNorm(_) => "layer_norm".to_owned(),
            Layer::BitLinear(_) => "bit_linear".to_owned(),
            other => other.class().to_ascii_lowercase(),
        }
    }

    /// Its parameters; options that cannot be are refused.
    pub fn params(&self) -> Result<Vec<Param>> {
        match self {
            Layer::Cfc(layer) => layer.params(),
            Layer::Ltc(layer) => layer.params(),
            Layer::Lstm(layer) => layer.params(),
            Layer::Gru(layer) => layer.params(),
            Layer::Rnn(layer) => layer.params(),
            Layer::Linear(layer) => layer.params(),
            Layer::BitLinear(layer) => layer.params(),
            Layer::Affine(layer) => layer.params(),
            Layer::LayerNorm(layer) => layer.params(),
            Layer::Softmax(_) => Ok(vec![]),
            Layer::Embedding(layer) => layer.params(),
            Layer::Activation { function } => function.check().map(|()| vec![]),
        }
    }

    pub(crate) fn widths(&self) -> Widths {
        let widths = |input, output| Widths { input: Some(input), output: Some(output) };
        match self {
            Layer::Cfc(layer) => widths(layer.input_size, layer.output_size()),
            Layer::Ltc(layer) => widths(layer.input_size, layer.output_size()),
            Layer::Lstm(layer) => widths(layer.input_size, layer.output_size()),
            Layer::Gru(layer) => widths(layer.input_size, layer.hidden_size),
            Layer::Rnn(layer) => widths(layer.input_size, layer.hidden_size),
            Layer::Linear(layer) => widths(layer.in_features, layer.out_features),
            Layer::BitLinear(layer) => widths(layer.in_features, layer.out_features),
            Layer::Affine(layer) => widths(layer.features, layer.features),
            Layer::LayerNorm(layer) => widths(layer.normalized_shape, layer.normalized_shape),
            Layer::Embedding(layer) => Widths { input: None, output: Some(layer.embedding_dim) },
            Layer::Softmax(_) | Layer::Activation { .. } => Widths { input: None, output: None },
        }
    }

    /// (`batch_first`, `return_sequences`) of a layer with a state.
    pub(crate) fn recurrent(&self) -> Option<(bool, bool)> {
        match self {
            Layer::Cfc(layer) => Some((layer.batch_first, layer.return_sequences)),
            Layer::Ltc(layer) => Some((layer.batch_first, layer.return_sequences)),
            Layer::Lstm(layer) => Some((layer.batch_first, layer.return_sequences)),
            Layer::Gru(layer) => Some((layer.batch_first, layer.return_sequences)),
            Layer::Rnn(layer) => Some((layer.batch_first, layer.return_sequences)),
            Layer::Linear(_)
            | Layer::BitLinear(_)
            | Layer::Affine(_)
            | Layer::LayerNorm(_)
            | Layer::Softmax(_)
            | Layer::Embedding(_)
            | Layer::Activation { .. } => None,
        }
    }

    /// Whether the time between steps has an effect.
    pub(crate) fn timed(&self) -> bool {
        matches!(self, Layer::Cfc(_) | Layer::Ltc(_))
    }

    /// Neurons of a layer with a state.
    pub(crate) fn state_size(&self) -> Option<usize> {
        match self {
            Layer::Cfc(layer) => Some(layer.state_size()),
            Layer::Ltc(layer) => Some(layer.state_size()),
            Layer::Lstm(layer) => Some(layer.hidden_size),
            Layer::Gru(layer) => Some(layer.hidden_size),
            Layer::Rnn(layer) => Some(layer.hidden_size),
            _ => None,
        }
    }

    /// Adds the layer to a graph.
    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        match self {
            Layer::Cfc(layer) => layer.build(outer, x),
            Layer::Ltc(layer) => layer.build(outer, x),
            Layer::Lstm(layer) => layer.build(outer, x),
            Layer::Gru(layer) => layer.build(outer, x),
            Layer::Rnn(layer) => layer.build(outer, x),
            Layer::Linear(layer) => layer.build(outer, x),
            Layer::BitLinear(layer) => layer.build(outer, x),
            Layer::Affine(layer) => layer.build(outer, x),
            Layer::LayerNorm(layer) => layer.build(outer, x),
            Layer::Softmax(layer) => layer.build(outer, x),
            Layer::Embedding(layer) => layer.build(outer, x),
            Layer::Activation { function } => function.build(&mut outer.b, x),
        }
    }

    /// The masks that ncps keeps in the state dict: which weights the circuit has.
    pub(crate) fn masks(&self) -> Result<Vec<(String, Tensor)>> {
        match self {
            Layer::Cfc(layer) => layer.masks(),
            Layer::Ltc(layer) => layer.masks(),
            _ => Ok(vec![]),
        }
    }

    /// Parameters that are rounded before they are used.
    pub(crate) fn rounded(&self) -> Option<(&'static str, Rounding)> {
        matches!(self, Layer::BitLinear(_)).then_some(("weight", Rounding::Ternary))
    }

    /// Dropout's masks in a graph for training: name, width and rate.
    pub(crate) fn dropout(&self) -> Vec<(String, usize, f32)> {
        match self {
            Layer::Cfc(layer) => layer.dropout(),
            _ => vec![],
        }
    }
}
