//! Devices: what is published of them ([`catalog`]), what was measured of this one ([`calibrate`]), and what a model
//! would take on each, on its CPU ([`mod@predict`]) and on its GPU ([`mod@gpu`]).
//!
//! A published figure and a measured one are different types, so that neither can pose as the other: [`Published`] has
//! the page it stands on, a [`Calibration`] the fingerprint of the machine it was measured on.

pub mod calibrate;
pub mod catalog;
pub mod check;
mod conditions;
pub mod cpu;
pub mod fit;
pub mod gpu;
pub(crate) mod levels;
pub mod measured;
mod outlook;
pub mod predict;
pub mod roof;
pub mod roof_of_backend;
pub mod settings;
pub mod solve;
mod store;
mod suite;

pub use calibrate::{Calibration, Fingerprint, Pace};
pub use catalog::{Catalog, Entry, Published};
pub use conditions::Conditions;
pub use cpu::Processor;
pub use measured::{Measured, MeasuredRun, Report};
pub use outlook::{forecast, fusion_gain, on, outlook, prediction_error, requirements};
pub use predict::{OpTime, Prediction, Speed, predict};
pub use settings::{Settings, settings_for, settings_for_host, test_sizes};
pub use store::{Origin, WAITING, data_dir};

use std::path::PathBuf;

/// What can go wrong with devices.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No device of that name.
    #[error("no device `{name}`{}; `schwann devices list` lists them", nearest.as_ref().map(|n| format!(" (did you mean `{n}`?)")).unwrap_or_default())]
    UnknownDevice {
        /// The name that was asked for.
        name: String,
        /// The nearest that there is, if any is near.
        nearest: Option<String>,
    },
    /// A catalogue does not read as one.
    #[error("{file}, line {line}: {problem}")]
    Catalog {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong, with the field's name.
        problem: String,
    },
    /// A calibration's file is of no use here.
    #[error("{}: {problem}; {advice}", file.display())]
    Calibration {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        advice: String,
    },
    /// A report of somebody's machine is of no use here.
    #[error("{}: {problem}", file.display())]
    Report {
        /// The file.
        file: PathBuf,
        /// What is wrong with it, and what was expected.
        problem: String,
    },
    /// A model could not be profiled.
    #[error(transparent)]
    Profile(#[from] crate::profiler::Error),
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// `read`, `write`.
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no directory to keep files in.
    #[error("no directory for data: {0}")]
    NoDirectory(String),
    /// The engine refused.
    #[error(transparent)]
    Core(#[from] schwann_core::Error),
    /// A model could not be built.
    #[error(transparent)]
    Model(#[from] schwann_nn::Error),
}

/// A result with this module's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Tells whoever waits what is being measured now.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What begins now.
    pub what: String,
    /// How much is done, from 0 to 1, where that is known.
    pub done: Option<f64>,
}

impl Progress {
    fn new(what: impl Into<String>) -> Progress {
        Progress { what: what.into(), done: None }
    }
    fn at(done: f64, what: impl Into<String>) -> Progress {
        Progress { what: what.into(), done: Some(done) }
    }
}
