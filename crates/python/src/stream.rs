//! `Runner` and `State`: many streams through one model.

use crate::array::{Given, Room, to_numpy, to_tensor};
use crate::error::Problem;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use schwann::nn::{self, NotFinite};
use schwann::{DType, Program, Tensor};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// What one stream remembers: at first zeros. It belongs to the model whose runner made it, can be pickled, and then goes on
/// in another process.
///
/// >>> import pickle, schwann
/// >>> runner = schwann.load("wired-cfc").runner()
/// >>> state = runner.state()
/// >>> y = runner.step(state, [0.5] * 8)
/// >>> again = pickle.loads(pickle.dumps(state))
/// >>> bool((runner.step(again, [0.5] * 8) == runner.step(state, [0.5] * 8)).all())
/// True
#[pyclass(module = "schwann._schwann", frozen)]
pub(crate) struct State(Mutex<Held>);

enum Held {
    /// Of a model that is known.
    Known(nn::State),
    /// From a pickle: what it is of is checked by the runner that takes it.
    Loose(BTreeMap<String, Tensor>),
}

fn busy() -> Problem {
    PyRuntimeError::new_err("the state is in use in another thread; expected one thread at a time for each stream")
        .into()
}

impl State {
    fn new(held: Held) -> State {
        State(Mutex::new(held))
    }

    fn lock(&self) -> Result<MutexGuard<'_, Held>, Problem> {
        match self.0.try_lock() {
            Ok(held) => Ok(held),
            Err(TryLockError::Poisoned(left)) => Ok(left.into_inner()),
            Err(TryLockError::WouldBlock) => Err(busy()),
        }
    }

    fn tensors(&self) -> Result<BTreeMap<String, Tensor>, Problem> {
        match &*self.lock()? {
            Held::Known(state) => Ok(state.to_tensors()?),
            Held::Loose(tensors) => Ok(tensors.clone()),
        }
    }
}

#[pymethods]
impl State {
    /// Back to the start: all zeros.
    fn reset(&self) -> Result<(), Problem> {
        match &mut *self.lock()? {
            Held::Known(state) => state.reset(),
            Held::Loose(tensors) => {
                for tensor in tensors.values_mut().filter(|t| t.dtype() == DType::F32) {
                    tensor.bytes_mut().fill(0);
                }
            }
        }
        Ok(())
    }

    /// Its parts as arrays by name, such as `h0`, and a mark that says which model it is of.
    fn to_dict<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Problem> {
        let all = PyDict::new(py);
        for (name, tensor) in self.tensors()? {
            all.set_item(name, to_numpy(py, &tensor)?)?;
        }
        Ok(all)
    }

    /// The state that `to_dict` gave.
    #[staticmethod]
    fn from_dict(parts: &Bound<'_, PyDict>) -> Result<State, Problem> {
        let mut tensors = BTreeMap::new();
        for (name, array) in parts.iter() {
            let name: String = name.extract().map_err(|_| {
                PyTypeError::new_err("`parts` has a key that is no name; expected what `State.to_dict` gives")
            })?;
            let tensor = crate::array::any_tensor(&name, &array)?;
            tensors.insert(name, tensor);
        }
        Ok(State::new(Held::Loose(tensors)))
    }

    /// A copy that goes its own way.
    fn copy(&self) -> Result<State, Problem> {
        Ok(State::new(match &*self.lock()? {
            Held::Known(state) => Held::Known(state.clone()),
            Held::Loose(tensors) => Held::Loose(tensors.clone()),
        }))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> Result<(Bound<'py, PyAny>, Bound<'py, PyTuple>), Problem> {
        let py = slf.py();
        let make = slf.get_type().getattr("from_dict")?;
        Ok((make, PyTuple::new(py, [slf.get().to_dict(py)?])?))
    }

    fn __repr__(&self) -> Result<String, Problem> {
        let parts = self.tensors()?;
        let told: Vec<String> =
            parts.iter().filter(|(_, t)| t.dtype() == DType::F32).map(|(n, t)| format!("{n}[{}]", t.len())).collect();
        Ok(format!("State({})", told.join(", ")))
    }
}

/// Takes many streams through one model, step by step, each with a `State` of its own.
///
/// >>> import numpy, schwann
/// >>> runner = schwann.load("wired-cfc").runner()
/// >>> robots = [runner.state() for _ in range(100)]
/// >>> samples = numpy.ones((100, 8), dtype="float32")
/// >>> runner.step_many(robots, samples).shape            # all of them, one step
/// (100, 16)
/// >>> runner.step(robots[7], samples[7]).shape           # one of them
/// (16,)
///
/// A sample that is not finite is refused, and leaves the state as it was.
#[pyclass(module = "schwann._schwann", frozen)]
pub(crate) struct Runner {
    inner: Mutex<nn::Runner>,
    features: usize,
    outputs: usize,
}

impl Runner {
    pub(crate) fn new(program: &Arc<Program>, not_finite: &str) -> Result<Runner, Problem> {
        let choice = match not_finite {
            "refuse" => NotFinite::Refuse,
            "pass" => NotFinite::Pass,
            other => return Err(Problem::argument("not_finite", format!("{other:?}"), "\"refuse\" or \"pass\"")),
        };
        let runner = nn::Runner::new(Arc::clone(program))?.not_finite(choice);
        Ok(Runner { features: runner.input_size(), outputs: runner.output_size(), inner: Mutex::new(runner) })
    }

    fn lock(&self) -> Result<MutexGuard<'_, nn::Runner>, Problem> {
        match self.inner.try_lock() {
            Ok(runner) => Ok(runner),
            Err(TryLockError::Poisoned(left)) => Ok(left.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let text = "the runner is running in another thread; expected one runner for each thread";
                Err(PyRuntimeError::new_err(text).into())
            }
        }
    }

    /// Samples as numbers; a list is taken as float32.
    fn samples<'py>(&self, x: &Bound<'py, PyAny>, rows: Option<usize>) -> Result<Given<'py>, Problem> {
        let list = x.is_instance_of::<PyList>() || x.is_instance_of::<PyTuple>();
        let x = match list {
            true => x.py().import("numpy")?.call_method1("asarray", (x, "float32"))?,
            false => x.clone(),
        };
        let given = Given::new("x", &x, DType::F32)?;
        let fits = match rows {
            None => given.shape() == [self.features] || given.shape() == [1, self.features],
            Some(rows) => given.shape() == [rows, self.features],
        };
        if !fits {
            let expected = match rows {
                None => format!("[{}], one sample", self.features),
                Some(rows) => format!("[{rows}, {}], a sample for each of the {rows} states", self.features),
            };
            return Err(Problem::argument("x", format!("of shape {:?}", given.shape()), expected));
        }
        Ok(given)
    }

    fn room<'py>(
        &self,
        py: Python<'py>,
        shape: &[usize],
        given: &Given<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> Result<Room<'py>, Problem> {
        match out {
            None => Room::new(py, DType::F32, shape),
            Some(out) => {
                let room = Room::given("out", out, (DType::F32, shape), &[given])?;
                if !room.takes(DType::F32) {
                    return Err(PyTypeError::new_err("`out` is not float32; expected float32").into());
                }
                Ok(room)
            }
        }
    }
}

/// A state as this runner takes it.
fn known(held: &mut Held, runner: &nn::Runner) -> Result<nn::State, Problem> {
    if let Held::Loose(tensors) = held {
        let mut state = runner.state();
        state.set_tensors(tensors)?;
        *held = Held::Known(state);
    }
    match held {
        Held::Known(state) => Ok(state.clone()),
        Held::Loose(_) => Err(Problem::state("internal: a state that is of no model")),
    }
}

#[pymethods]
impl Runner {
    /// A new stream's state: all zeros.
    fn state(&self) -> Result<State, Problem> {
        Ok(State::new(Held::Known(self.lock()?.state())))
    }

    /// One step of one stream: its state goes on, and the output comes back. `elapsed` is the time since the last step, for
    /// runners with `timespans=True`.
    #[pyo3(signature = (state, x, *, elapsed = None, out = None))]
    fn step<'py>(
        &self,
        py: Python<'py>,
        state: &Bound<'py, State>,
        x: &Bound<'py, PyAny>,
        elapsed: Option<f32>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Problem> {
        let mut runner = self.lock()?;
        let given = self.samples(x, None)?;
        let mut room = self.room(py, &[self.outputs], &given, out)?;
        let mut held = state.get().lock()?;
        if let Held::Loose(_) = &*held {
            known(&mut held, &runner)?;
        }
        let Held::Known(state) = &mut *held else {
            return Err(Problem::state("internal: a state that is of no model"));
        };
        let view = given.view()?;
        let (bytes, to) = (view.bytes(), room.bytes_mut());
        let runner = &mut *runner;
        py.detach(|| {
            let x = floats(bytes);
            let y = match elapsed {
                None => runner.step(state, x)?,
                Some(elapsed) => runner.step_after(state, x, elapsed)?,
            };
            write(to, y);
            Ok::<(), nn::Error>(())
        })?;
        Ok(room.array)
    }

    /// One step of many streams in one call: `x` has a row for each state, and so has the result. `elapsed` is an array with
    /// the time since the last step for each.
    #[pyo3(signature = (states, x, *, elapsed = None, out = None))]
    fn step_many<'py>(
        &self,
        py: Python<'py>,
        states: &Bound<'py, PyAny>,
        x: &Bound<'py, PyAny>,
        elapsed: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Problem> {
        let mut runner = self.lock()?;
        let mut list: Vec<Bound<'py, State>> = vec![];
        for (at, state) in states.try_iter()?.enumerate() {
            let state = state?;
            let kind = state.get_type().name()?;
            let state = state.cast_into::<State>();
            list.push(state.map_err(|_| {
                PyTypeError::new_err(format!(
                    "`states[{at}]` is a {kind}; expected a State, as `Runner.state` makes it"
                ))
            })?);
        }
        let given = self.samples(x, Some(list.len()))?;
        let elapsed = elapsed.map(|elapsed| to_tensor("elapsed", elapsed, DType::F32)).transpose()?;
        let mut room = self.room(py, &[list.len(), self.outputs], &given, out)?;
        let mut held = vec![];
        for (at, state) in list.iter().enumerate() {
            held.push(state.get().lock().map_err(|_| {
                Problem::argument(
                    &format!("states[{at}]"),
                    "there twice, or in use in another thread",
                    "each state once",
                )
            })?);
        }
        let mut taken = held.iter_mut().map(|held| known(held, &runner)).collect::<Result<Vec<_>, _>>()?;
        let view = given.view()?;
        let (bytes, to) = (view.bytes(), room.bytes_mut());
        let elapsed = elapsed.as_ref().map(|e| e.values::<f32>()).transpose()?;
        let runner = &mut *runner;
        py.detach(|| {
            let y = match elapsed {
                None => runner.step_many(&mut taken, floats(bytes))?,
                Some(elapsed) => runner.step_many_after(&mut taken, floats(bytes), elapsed)?,
            };
            write(to, y);
            Ok::<(), nn::Error>(())
        })?;
        for (held, state) in held.iter_mut().zip(taken) {
            **held = Held::Known(state);
        }
        Ok(room.array)
    }

    /// Features of a sample.
    #[getter]
    fn input_size(&self) -> usize {
        self.features
    }

    /// Features of an output.
    #[getter]
    fn output_size(&self) -> usize {
        self.outputs
    }

    fn __repr__(&self) -> String {
        format!("Runner({} -> {})", self.features, self.outputs)
    }
}

/// Bytes of numbers as numbers; they were found aligned.
fn floats(bytes: &[u8]) -> &[f32] {
    bytemuck::cast_slice(bytes)
}

fn write(to: &mut [u8], from: &[f32]) {
    to.copy_from_slice(bytemuck::cast_slice(from));
}
