//! What can go wrong: each error says what was wrong, where, and what was expected. Names pass through [`show`] before
//! they are printed, since they may come from files.

use crate::show::{self, line, name};
use std::path::PathBuf;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that this crate refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A node that cannot be built from its inputs.
    #[error("node `{}` ({op}): {}", name(.node), line(.problem))]
    Node {
        /// The node's name.
        node: String,
        /// Its operation.
        op: String,
        /// What does not fit, with the shapes and types concerned.
        problem: String,
    },
    /// A graph that breaks a rule of the intermediate representation.
    #[error("graph is not well formed{}: {}", .pass.map(|p| format!(" after pass `{p}`")).unwrap_or_default(), line(.problem))]
    Verify {
        /// The pass that produced it, if one did.
        pass: Option<&'static str>,
        /// What is wrong, and at which node.
        problem: String,
    },
    /// A check of the compiler's own that failed: a bug in this crate, never in the graph.
    #[error("internal: pass `{pass}`, node `{node}`: {problem}")]
    Pass {
        /// The pass at work.
        pass: &'static str,
        /// The node it was at.
        node: String,
        /// Which check failed, and how.
        problem: String,
    },
    /// A symbolic size that has no value.
    #[error("the size `{}` is not bound: no input of this run fixes it", name(.symbol))]
    Unbound {
        /// The symbol.
        symbol: String,
    },
    /// A size that comes out negative or too large.
    #[error("the size `{}` comes out as {value}, which is no size", name(.dim))]
    Dimension {
        /// The size as a formula.
        dim: String,
        /// Its value (the largest integer where it overflowed).
        value: i64,
    },
    /// An input of a run that does not fit the graph.
    #[error("input `{}`: expected {}, got {}", show::name(.name), line(.expected), line(.got))]
    Input {
        /// The input's name.
        name: String,
        /// The type the graph declares.
        expected: String,
        /// The type and shape that was given.
        got: String,
    },
    /// A name that the graph does not have.
    #[error("no {kind} named `{}`; there is {}", show::name(.name), list(.known))]
    Unknown {
        /// `input`, `output`, `weight` …
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// A tensor used as another type or size than it has.
    #[error("tensor: expected {expected}, got {got}")]
    Tensor {
        /// What was asked for.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A value that makes an operation meaningless at run time, such as an index out of range.
    #[error("node `{}`: {}", name(.node), line(.problem))]
    Value {
        /// The node's name.
        node: String,
        /// What is wrong with the value.
        problem: String,
    },
    /// A custom operation that is not valid, or whose results differ from its definition.
    #[error("custom operation `{}`: {}", show::name(.name), line(.problem))]
    Custom {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// No gradient is defined.
    #[error("no gradient through node `{}` ({op}): {}", name(.node), line(.problem))]
    Gradient {
        /// The node's name.
        node: String,
        /// Its operation.
        op: String,
        /// Why.
        problem: String,
    },
    /// An operation that this backend cannot run.
    #[error("node `{}` ({op}) is not supported here: {}", name(.node), line(.problem))]
    Unsupported {
        /// The node's name.
        node: String,
        /// Its operation.
        op: String,
        /// Why, and what to do instead.
        problem: String,
    },
    /// More memory than the budget allows.
    #[error("memory budget exceeded: {requested} bytes wanted, {in_use} of {limit} bytes in use{}", hint(.what))]
    Budget {
        /// What it was for.
        what: String,
        /// Bytes asked for.
        requested: usize,
        /// Bytes in use before.
        in_use: usize,
        /// The limit.
        limit: usize,
    },
    /// More memory than the system gives.
    #[error("no memory for {what}: the system does not give {bytes} bytes")]
    Memory {
        /// What it was for.
        what: String,
        /// Bytes asked for.
        bytes: usize,
    },
    /// More work than a run over this few bytes may take.
    #[error(
        "node `{node}`: the run would take {work:.1e} operations up to here, and one over {bytes} bytes of inputs, \
         results and weights may take {limit:.1e}; a loop of very many steps over (almost) no data, or a very small \
         value stretched very far, does that"
    )]
    Work {
        /// The node at which the limit was passed.
        node: String,
        /// Arithmetic, bytes moved and calls so far, all added.
        work: f64,
        /// The limit for this run.
        limit: f64,
        /// Bytes of the run's inputs, results, states and weights.
        bytes: u64,
    },
    /// Something that this system cannot report or do.
    #[error("{what} is unavailable: {why}")]
    Unavailable {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// A backend's device refused something or was lost.
    #[error("{}: {}", name(.backend), line(.problem))]
    Device {
        /// The backend.
        backend: String,
        /// What happened, and what becomes of the run.
        problem: String,
    },
    /// Something that a session cannot do between submitting a run and waiting for it.
    #[error("{what} is not possible while a run is under way; wait for it first")]
    UnderWay {
        /// What was asked for.
        what: &'static str,
    },
    /// The run was cancelled before its end.
    #[error("the run was cancelled")]
    Cancelled,
    /// A file whose content is not what its format demands.
    #[error("{}{format}: {}", .path.as_ref().map(|p| format!("{}: ", p.display())).unwrap_or_default(), line(.problem))]
    File {
        /// The file, where it is one.
        path: Option<PathBuf>,
        /// `safetensors`, `npy` …
        format: &'static str,
        /// What is wrong, where in the file, and what was expected.
        problem: String,
    },
    /// An error of the operating system with a file.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The operating system refused a thread.
    #[error("could not start a thread: {0}")]
    Thread(std::io::Error),
    /// A tape that the kernels' verifier refused: a bug in this crate, never in the input.
    #[error("internal: {0}")]
    Internal(String),
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".into()
    } else {
        names.iter().map(|n| format!("`{}`", name(n))).collect::<Vec<_>>().join(", ")
    }
}

fn hint(what: &str) -> String {
    if what.is_empty() { String::new() } else { format!(", for {what}") }
}

impl Error {
    /// The same error, naming the pass that met it.
    pub(crate) fn in_pass(self, name: &'static str) -> Error {
        match self {
            Error::Verify { pass: None, problem } => Error::Verify { pass: Some(name), problem },
            Error::Pass { pass: "", node, problem } => Error::Pass { pass: name, node, problem },
            other => other,
        }
    }

    /// The same error, naming the file it came from.
    pub fn in_file(self, at: &std::path::Path) -> Error {
        match self {
            Error::File { path: None, format, problem } => Error::File { path: Some(at.to_owned()), format, problem },
            other => other,
        }
    }
}
