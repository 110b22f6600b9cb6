//! Errors of Rust as exceptions of Python: of the kind that fits, with the same words.

use pyo3::PyErr;
use pyo3::exceptions::{
    PyKeyboardInterrupt, PyLookupError, PyMemoryError, PyNotImplementedError, PyOSError, PyRuntimeError, PyTypeError,
    PyValueError,
};
use schwann::Error as Core;
use schwann::nn::Error as Nn;
use schwann::prof::{db, device, export, profiler, tune};
use std::io;

/// Anything that goes wrong, on its way to Python.
#[derive(Debug)]
pub(crate) struct Problem(PyErr);

impl From<Problem> for PyErr {
    fn from(problem: Problem) -> PyErr {
        problem.0
    }
}
impl From<PyErr> for Problem {
    fn from(error: PyErr) -> Problem {
        Problem(error)
    }
}
impl From<pyo3::CastError<'_, '_>> for Problem {
    fn from(error: pyo3::CastError<'_, '_>) -> Problem {
        Problem(error.into())
    }
}

impl Problem {
    /// An argument that cannot be.
    pub(crate) fn argument(argument: &str, got: impl std::fmt::Display, expected: impl std::fmt::Display) -> Problem {
        Problem(PyValueError::new_err(format!("`{argument}` is {got}; expected {expected}")))
    }

    /// Something that cannot be done now.
    pub(crate) fn state(text: impl Into<String>) -> Problem {
        Problem(PyRuntimeError::new_err(text.into()))
    }
}

/// An error of the system, as the subclass of `OSError` that Python has for it (`FileNotFoundError`), with all the words.
fn of_system(cause: &io::Error, words: String) -> PyErr {
    match cause.raw_os_error() {
        // With a number, Python chooses the subclass.
        Some(number) => PyOSError::new_err((number, words)),
        None => {
            let py_kind: PyErr = io::Error::new(cause.kind(), words).into();
            py_kind
        }
    }
}

impl From<Core> for Problem {
    fn from(error: Core) -> Problem {
        let words = error.to_string();
        Problem(match &error {
            Core::Unknown { .. } => PyLookupError::new_err(words),
            Core::Budget { .. } | Core::Memory { .. } => PyMemoryError::new_err(words),
            Core::Unsupported { .. } => PyNotImplementedError::new_err(words),
            Core::Pass { .. }
            | Core::Internal(_)
            | Core::Unavailable { .. }
            | Core::Device { .. }
            | Core::UnderWay { .. } => PyRuntimeError::new_err(words),
            Core::Cancelled => PyKeyboardInterrupt::new_err(words),
            Core::Io { source, .. } => of_system(source, words),
            Core::Thread(source) => of_system(source, words),
            Core::Tensor { .. } => PyTypeError::new_err(words),
            _ => PyValueError::new_err(words),
        })
    }
}

impl From<Nn> for Problem {
    fn from(error: Nn) -> Problem {
        match error {
            Nn::Engine(engine) => engine.into(),
            other => Problem(PyValueError::new_err(other.to_string())),
        }
    }
}

impl From<profiler::Error> for Problem {
    fn from(error: profiler::Error) -> Problem {
        let words = error.to_string();
        match error {
            profiler::Error::Core(e) => e.into(),
            profiler::Error::Model(e) => e.into(),
            profiler::Error::Cancelled => Problem(PyKeyboardInterrupt::new_err(words)),
            profiler::Error::Start { .. } => Problem(PyRuntimeError::new_err(words)),
            _ => Problem(PyValueError::new_err(words)),
        }
    }
}

impl From<tune::Error> for Problem {
    fn from(error: tune::Error) -> Problem {
        let words = error.to_string();
        match error {
            tune::Error::Profiler(e) => e.into(),
            e if e.is_cancelled() => Problem(PyKeyboardInterrupt::new_err(words)),
            _ => Problem(PyValueError::new_err(words)),
        }
    }
}

impl From<db::Error> for Problem {
    fn from(error: db::Error) -> Problem {
        let words = error.to_string();
        Problem(match error {
            db::Error::Unknown { .. } | db::Error::Missing { .. } => PyLookupError::new_err(words),
            _ => PyOSError::new_err(words),
        })
    }
}

macro_rules! by_words {
    ($($error:ty => $kind:ty),* $(,)?) => { $(
        impl From<$error> for Problem {
            fn from(error: $error) -> Problem {
                Problem(<$kind>::new_err(error.to_string()))
            }
        }
    )* };
}
by_words! {
    device::Error => PyValueError,
    export::Error => PyValueError,
    serde_json::Error => PyValueError,
}
