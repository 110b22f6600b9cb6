//! What this crate refuses: each error names the argument, what it was, and what was expected.

use schwann_core::show::{line, name};
use std::fmt::Display;
use std::path::PathBuf;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that this crate refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that cannot be.
    #[error("`{}` is {}; expected {}", name(.argument), line(.got), line(.expected))]
    Argument {
        /// The argument's name.
        argument: String,
        /// What it was.
        got: String,
        /// What it may be.
        expected: String,
    },
    /// A weight that does not fit its model.
    #[error("tensor `{}` is {}; expected {}", name(.tensor), line(.got), line(.expected))]
    Weight {
        /// The tensor's name in the state dict.
        tensor: String,
        /// What it was.
        got: String,
        /// What the model needs.
        expected: String,
    },
    /// A file that holds no model, or not one that this version reads.
    #[error("{}{}", .path.as_ref().map(|p| format!("{}: ", p.display())).unwrap_or_default(), line(.problem))]
    File {
        /// The file, where it is one.
        path: Option<PathBuf>,
        /// What is wrong, and what was expected.
        problem: String,
    },
    /// The engine's refusal.
    #[error(transparent)]
    Engine(#[from] schwann_core::Error),
}

impl Error {
    pub(crate) fn argument(argument: impl Display, got: impl Display, expected: impl Display) -> Error {
        Error::Argument { argument: argument.to_string(), got: got.to_string(), expected: expected.to_string() }
    }

    pub(crate) fn weight(tensor: impl Display, got: impl Display, expected: impl Display) -> Error {
        Error::Weight { tensor: tensor.to_string(), got: got.to_string(), expected: expected.to_string() }
    }

    pub(crate) fn file(problem: impl Display) -> Error {
        Error::File { path: None, problem: problem.to_string() }
    }

    /// The same error, naming the file it came from.
    pub(crate) fn in_file(self, at: &std::path::Path) -> Error {
        match self {
            Error::File { path: None, problem } => Error::File { path: Some(at.to_owned()), problem },
            Error::Engine(engine) => Error::Engine(engine.in_file(at)),
            // What is wrong with an option or a tensor of a file is said with the file's name.
            named @ (Error::Argument { .. } | Error::Weight { .. }) => {
                Error::File { path: Some(at.to_owned()), problem: named.to_string() }
            }
            other @ Error::File { .. } => other,
        }
    }
}
