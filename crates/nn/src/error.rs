//! What this crate refuses: each error names the argument, what it was, and what was expected.

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that this crate refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that cannot be.
    #[error("`{argument}` is {got}; expected {expected}")]
    Argument {
        /// The argument's name.
        argument: String,
        /// What it was.
        got: String,
        /// What it may be.
        expected: String,
    },
    /// The engine's refusal.
    #[error(transparent)]
    Engine(#[from] schwann_core::Error),
}
