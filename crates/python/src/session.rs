//! `Session`: one stream through a model.

use crate::array::{to_numpy, to_tensor};
use crate::compiled::{Compiled, execute, gathered, inputs_of};
use crate::error::Problem;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use schwann::run::Canceller;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// A stream: it keeps its states, and the memory that a run needs.
///
/// >>> import numpy, schwann
/// >>> session = schwann.load("wired-cfc").session()
/// >>> x = numpy.ones((1, 1, 8), dtype="float32")         # one sample, one step
/// >>> first, second = session.run(x), session.run(x)     # the second goes on from the first
/// >>> bool((first == second).all())
/// False
/// >>> session.reset()
/// >>> bool((session.run(x) == first).all())
/// True
///
/// A session is for one thread at a time.
#[pyclass(module = "schwann._schwann", frozen, weakref)]
pub(crate) struct Session {
    inner: Mutex<schwann::Session>,
    canceller: Canceller,
    compiled: Arc<Compiled>,
}

impl Session {
    pub(crate) fn new(compiled: Arc<Compiled>) -> Session {
        let session = compiled.program.session();
        Session { canceller: session.canceller(), inner: Mutex::new(session), compiled }
    }

    fn lock(&self) -> Result<MutexGuard<'_, schwann::Session>, Problem> {
        match self.inner.try_lock() {
            Ok(session) => Ok(session),
            Err(TryLockError::Poisoned(left)) => Ok(left.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let text = "the session is running in another thread; expected one session for each thread";
                Err(PyRuntimeError::new_err(text).into())
            }
        }
    }
}

#[pymethods]
impl Session {
    /// Runs on the next steps and gives the outputs; the states go on from the last run.
    ///
    /// `x` is an array, or a dict of arrays by the inputs' names. Inputs are not copied, and neither are results: without
    /// `out` they are in a new array, with it in that array.
    #[pyo3(signature = (x, *, timespans = None, out = None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        timespans: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Problem> {
        let mut session = self.lock()?;
        let compiled = &*self.compiled;
        let given = inputs_of(compiled, x, timespans)?;
        let arrays = execute(py, &mut session, &given, (&compiled.outputs, &compiled.results), out)?;
        gathered(py, &compiled.outputs, &compiled.results, arrays)
    }

    /// The states as arrays by name (copies); before the first run there are none. Setting them lets the stream go on
    /// from there.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Problem> {
        let session = self.lock()?;
        let all = PyDict::new(py);
        for (name, _) in &self.compiled.states {
            if let Some(value) = session.read_state(name)? {
                all.set_item(name, to_numpy(py, value)?)?;
            }
        }
        Ok(all)
    }

    #[setter]
    fn set_state(&self, state: &Bound<'_, PyDict>) -> Result<(), Problem> {
        let mut session = self.lock()?;
        for (name, array) in state.iter() {
            let name: String = name.extract()?;
            let known = self.compiled.states.iter().find(|(n, _)| *n == name);
            let (_, dtype) = known.ok_or_else(|| schwann::Error::Unknown {
                kind: "state",
                name: name.clone(),
                known: self.compiled.states.iter().map(|(n, _)| n.clone()).collect(),
            })?;
            session.set_state(&name, to_tensor(&name, &array, *dtype)?)?;
        }
        Ok(())
    }

    /// Forgets the states: the next run begins at zero.
    fn reset(&self) -> Result<(), Problem> {
        self.lock()?.reset();
        Ok(())
    }

    /// Stops the run that is under way in another thread, or the next one: it raises KeyboardInterrupt.
    fn cancel(&self) {
        self.canceller.cancel();
    }

    /// What the last run did, step by step, as text.
    #[getter]
    fn plan(&self) -> Result<Option<String>, Problem> {
        let told =
            |plan: &schwann::plan::Plan| plan.steps.iter().map(|s| format!("{}: {}\n", s.name, s.kernel)).collect();
        Ok(self.lock()?.plan().map(told))
    }

    fn __repr__(&self) -> String {
        format!("Session({:?})", self.compiled.program)
    }
}
