//! A model that runs, watched while it runs: moments, one after the other, each with what a view shows.
//!
//! What is watched is a [`Source`] of [`Moment`]s: a model that the monitor drives itself ([`drive`]), a program that lets
//! itself be watched, or a recording. Views (terminal, page, JSON, metrics) and alerts read moments and compute nothing.

#[cfg(unix)]
mod attach;
mod drive;
#[cfg(any(test, feature = "example"))]
pub mod made_up;
mod metrics;
mod moment;
mod otlp;
mod record;
mod rules;
mod sum;
mod trace;

#[cfg(unix)]
pub use attach::{Attach, attach};
pub use drive::{Drive, drive};
pub use metrics::{CONTENT_TYPE, Judged, openmetrics};
pub use moment::{About, Latency, Memory, Moment, Operation, Work};
pub use otlp::otlp;
pub use record::{Recorder, Replay};
pub use rules::{Judge, Mistake, Rule, Verdict, figures};
pub use trace::{MOST_MOMENTS, Tracks};

/// What can go wrong while watching.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model could not be made ready, or failed while it ran.
    #[error(transparent)]
    Run(#[from] crate::profiler::Error),
    /// Something that was asked for makes no sense.
    #[error("{option} is {got}; expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// What was given.
        got: String,
        /// What would do.
        expected: &'static str,
    },
    /// A recording cannot be read or written.
    #[error(transparent)]
    Recording(#[from] schwann_sensors::Error),
    /// A program cannot be watched.
    #[error(transparent)]
    Ring(#[from] schwann_core::live::Error),
    /// The system has no thread left to run the model on.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// What watching gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Moments, one after the other.
pub trait Source: Send {
    /// What is watched.
    fn about(&self) -> &About;

    /// Waits for the next moment. `None` at the end: somebody cancelled it, what was watched has ended, or a recording is
    /// over.
    fn next_moment(&mut self) -> Result<Option<Moment>>;

    /// Why it ended, in a sentence, where that was not by somebody's wish.
    fn ended(&self) -> Option<String> {
        None
    }
}
