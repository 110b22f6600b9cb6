//! What people build: neural circuits (CfC and LTC networks) on sparse wirings, and the layers to stack them with.
//!
//! A [`Wiring`](wiring::Wiring) says which neuron reaches which; a layer turns it into a graph with one `Scan`.
#![forbid(unsafe_code)]

pub mod error;
pub mod wiring;

pub use error::{Error, Result};
