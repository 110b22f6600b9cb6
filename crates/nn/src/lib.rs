//! What people build: neural circuits (CfC and LTC networks) on sparse wirings, and the layers to stack them with.
//!
//! A [`Wiring`](wiring::Wiring) says which neuron reaches which; a layer turns it into a graph with one `Scan`; a
//! [`Model`] is layers with their weights.
#![forbid(unsafe_code)]

pub mod data;
pub mod decoder;
pub mod entropy;
pub mod error;
mod export;
mod file;
pub mod generate;
pub mod guard;
mod info;
mod init;
pub mod layer;
mod model;
mod scope;
mod stream;
pub mod train;
pub mod verify;
pub mod wiring;

pub use error::{Error, Result};
pub use export::{export_ncps, export_ncps_bytes};
pub use file::{CONFIG_KEY, MODEL_KEY, MODEL_VERSION, NAMES_KEY, import_ncps, import_ncps_bytes, rounded_weights};
pub use guard::{Guard, NotFinite};
pub use info::{Info, LayerInfo};
pub use init::{Init, Param};
pub use layer::{
    Activation, Affine, BitLinear, Cfc, CfcMode, Embedding, Gru, Layer, LayerNorm, Linear, Lstm, Ltc, Mapping, Rnn,
    Softmax, Units,
};
pub use model::{Model, Sequential};
pub use scope::{GraphOptions, InitialState, Parameters, Segments, Timespans, timespans_for};
pub use stream::{MOST_SIZES, Runner, State};
