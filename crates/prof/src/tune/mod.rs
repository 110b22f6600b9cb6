//! The tuner: searches for a faster way of compiling a network on this machine, and keeps what it found.
//!
//! The compiler takes numbers to tune with as an option and neither times nor searches ([`schwann_core::CompileOptions`]).
//! Here they are searched for ([`Tuner`]), kept ([`Store`]) and found again ([`Store::find`], [`compile`]). The same search is
//! there for anything that can be called ([`AutoTuner`]), and for sizes of batches ([`batch`]).

mod auto;
pub mod batch;
mod config;
mod race;
mod search;
mod space;
mod store;

pub use auto::{AutoTuner, Optimum, Trial as AutoTrial};
pub use config::{Change, Changes, Config, line};
pub use search::{Confirmation, Objective, Outcome, Trial, Tuner, Verdict, Winner};
pub use store::{InUse, Key, Record, Store, compile, default_path};

/// What can go wrong while tuning.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The network cannot be compiled, run or measured.
    #[error(transparent)]
    Profiler(#[from] crate::profiler::Error),
    /// What was found cannot be kept or read.
    #[error(transparent)]
    Store(#[from] crate::db::Error),
    /// An option that makes no sense.
    #[error("{option} is {got}; expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// What was given.
        got: String,
        /// What would do.
        expected: String,
    },
    /// What was to be timed failed.
    #[error("`{operation}` with {config} failed: {source}")]
    Operation {
        /// What was timed.
        operation: String,
        /// How.
        config: String,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Every configuration failed.
    #[error("none of the {count} configurations of `{operation}` works; the first one: {first}")]
    NoneWorks {
        /// What was timed.
        operation: String,
        /// How many there were.
        count: usize,
        /// Why the first one failed.
        first: String,
    },
    /// What was kept for an operation is no configuration of the type that is asked for.
    #[error("what is kept for `{operation}` cannot be read as such a configuration: {what}")]
    Kept {
        /// The operation.
        operation: String,
        /// What is wrong.
        what: String,
    },
    /// Somebody asked for an end.
    #[error("cancelled")]
    Cancelled,
}

impl From<schwann_core::Error> for Error {
    fn from(error: schwann_core::Error) -> Error {
        Error::Profiler(error.into())
    }
}

impl Error {
    fn option(option: &'static str, got: impl ToString, expected: impl Into<String>) -> Error {
        Error::Option { option, got: got.to_string(), expected: expected.into() }
    }

    /// Whether somebody asked for it to stop.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Cancelled => true,
            Error::Profiler(e) => e.is_cancelled(),
            _ => false,
        }
    }
}

/// A tuner's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
