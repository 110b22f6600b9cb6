//! `Model`: a network that runs.

use crate::array::{Given, to_numpy};
use crate::compiled::{Compiled, execute, gathered, inputs_of, states_of};
use crate::error::Problem;
use crate::network::Network;
use crate::session::Session;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use schwann::backend::Choice;
use schwann::nn::{GraphOptions, InitialState, Timespans};
use schwann::prof::tune;
use schwann::{Bindings, CompileOptions, DType, Graph, Program};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Constant times between steps that a model keeps programs for.
const MOST_PROGRAMS: usize = 32;

/// How a network is compiled.
#[derive(Clone)]
pub(crate) struct How {
    pub(crate) backend: Choice,
    pub(crate) threads: usize,
    /// Batch and steps that `tune` was for.
    pub(crate) tuned: Option<(usize, usize)>,
}

impl How {
    pub(crate) fn options(&self) -> CompileOptions {
        CompileOptions::default().backend(self.backend.clone()).threads(self.threads)
    }

    fn compile(&self, graph: &Graph) -> Result<Arc<Program>, Problem> {
        let Some((batch, steps)) = self.tuned else { return Ok(Program::compile(graph, &self.options())?) };
        let symbols = graph.symbols();
        let sizes = [("B", batch), ("T", steps)].into_iter().filter(|(name, _)| symbols.contains(*name));
        let sizes = sizes.fold(Bindings::new(), |sizes, (name, size)| sizes.with(name, size));
        Ok(tune::compile(graph, &sizes, &self.options(), None)?.0)
    }
}

/// Which of a model's programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    /// The time between steps where it is constant, as bits; `None` where it is an input.
    constant: Option<u32>,
    batched: bool,
    state: StateKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum StateKind {
    Zero,
    Given,
    Carried,
}

/// A compiled network: whatever its weights and options say, ready to run.
///
/// `schwann.load` and `schwann.from_torch` make one. Calling it is like calling a CfC or an LTC of ncps:
///
/// >>> import numpy, schwann
/// >>> model = schwann.load("wired-cfc")
/// >>> x = numpy.zeros((2, 10, 8), dtype="float32")      # samples, steps, features
/// >>> y, hn = model(x)
/// >>> y.shape, hn.shape
/// ((2, 10, 16), (2, 64))
///
/// Many threads can use one model at the same time. Pickling it writes the model file into the pickle.
#[pyclass(module = "schwann._schwann", frozen, weakref)]
pub(crate) struct Model {
    pub(crate) network: Network,
    pub(crate) how: How,
    /// What it was loaded from.
    pub(crate) name: String,
    /// Names and types of inputs and outputs.
    inputs: Vec<(String, String)>,
    outputs: Vec<(String, String)>,
    /// Axes of `x` with a batch.
    rank: usize,
    programs: Mutex<HashMap<Kind, Arc<Compiled>>>,
}

impl Model {
    pub(crate) fn new(network: Network, name: &str, how: How) -> Result<Model, Problem> {
        let graph = match &network {
            Network::Model(model) => model.graph(&GraphOptions::default())?,
            Network::Graph(graph) => graph.clone(),
        };
        let inputs = graph.inputs().map(|(name, value)| (name.to_owned(), graph.ty(value).to_string())).collect();
        let outputs = graph.outputs().iter().map(|o| (o.name.clone(), graph.ty(o.value).to_string())).collect();
        let rank = graph.input("x").map_or(0, |x| graph.ty(x).shape.rank());
        Ok(Model { network, how, name: name.to_owned(), inputs, outputs, rank, programs: Mutex::default() })
    }

    fn compiled(&self, kind: Kind) -> Result<Arc<Compiled>, Problem> {
        let programs = || self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = programs().get(&kind) {
            return Ok(Arc::clone(found));
        }
        let made = match &self.network {
            Network::Graph(graph) => Compiled::new(self.how.compile(graph)?, false),
            Network::Model(model) => Compiled::new(self.how.compile(&model.graph(&options_of(kind))?)?, true),
        };
        let made = Arc::new(made);
        let mut programs = programs();
        if programs.len() >= MOST_PROGRAMS {
            programs.clear();
        }
        // Another thread may have been faster; then its program is shared.
        Ok(Arc::clone(programs.entry(kind).or_insert(made)))
    }

    /// The kind of program that suits these arguments.
    fn kind(
        &self,
        x: &Bound<'_, PyAny>,
        timespans: Option<&Bound<'_, PyAny>>,
        state: StateKind,
    ) -> Result<Kind, Problem> {
        let constant = match timespans {
            None => Some(1.0f32.to_bits()),
            Some(number) => {
                number.extract::<f32>().ok().filter(|_| !number.hasattr("shape").unwrap_or(true)).map(f32::to_bits)
            }
        };
        let batched = match &self.network {
            Network::Graph(_) => true,
            Network::Model(_) => match x.getattr("ndim").and_then(|n| n.extract::<usize>()) {
                Ok(axes) => axes >= self.rank,
                Err(_) => true,
            },
        };
        Ok(Kind { constant, batched, state })
    }
}

fn options_of(kind: Kind) -> GraphOptions {
    let timespans = kind.constant.map_or(Timespans::PerStep, |bits| Timespans::Constant(f32::from_bits(bits)));
    let state = match kind.state {
        StateKind::Zero => InitialState::Zero,
        StateKind::Given => InitialState::Given,
        StateKind::Carried => InitialState::Carried,
    };
    GraphOptions::default().timespans(timespans).batched(kind.batched).state(state)
}

#[pymethods]
impl Model {
    /// Runs whole sequences and gives the outputs; states begin at zero, or at `state`.
    ///
    /// `x` is an array `[B, T, C]` (`[T, B, C]` where the model has time first; without the batch's axis where there is one
    /// sequence alone), or a dict of arrays by the inputs' names. `timespans` is the time between steps: a number for all of
    /// them, or an array with one for each sample and step. `out` is an array to write the outputs into.
    ///
    /// >>> import numpy, schwann
    /// >>> model = schwann.load("wired-cfc")
    /// >>> x = numpy.zeros((2, 10, 8), dtype="float32")
    /// >>> y = numpy.empty((2, 10, 16), dtype="float32")
    /// >>> model.run(x, out=y) is y
    /// True
    #[pyo3(signature = (x, *, timespans = None, state = None, out = None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        timespans: Option<&Bound<'py, PyAny>>,
        state: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Problem> {
        let (compiled, mut all) = self.call(py, x, timespans, state, out, false)?;
        all.truncate(compiled.results.len());
        gathered(py, &compiled.outputs, &compiled.results, all)
    }

    /// A new model of layers with their constructor arguments, as a training's file has them; weights are drawn from `seed`.
    ///
    /// >>> import schwann
    /// >>> wiring = {"class": "AutoNCP", "units": 16, "output_size": 4}
    /// >>> schwann.Model.of([{"class": "Linear", "in_features": 3, "out_features": 8},
    /// ...                   {"class": "LTC", "input_size": 8, "wiring": wiring}])
    /// Model(Linear, LTC: x f32[B, T, 3] -> y f32[B, T, 4])
    #[staticmethod]
    #[pyo3(signature = (layers, *, seed = 0, backend = "cpu", threads = 0))]
    fn of(
        py: Python<'_>,
        layers: &Bound<'_, PyAny>,
        seed: u64,
        backend: &str,
        threads: usize,
    ) -> Result<Model, Problem> {
        let list = match layers.is_instance_of::<PyDict>() {
            true => pyo3::types::PyList::new(py, [layers])?.into_any(),
            false => layers.clone(),
        };
        let text: String = py.import("json")?.call_method1("dumps", (list,))?.extract()?;
        let wrong = |e: serde_json::Error| {
            Problem::argument(
                "layers",
                e,
                "a list of layers, such as {\"class\": \"CfC\", \"input_size\": 8, \"units\": 32}",
            )
        };
        let layers: Vec<schwann::nn::Layer> = serde_json::from_str(&text).map_err(wrong)?;
        let how = How { backend: backend.parse()?, threads: check_threads(threads)?, tuned: None };
        Model::new(Network::Model(schwann::nn::Model::new(layers, seed)?), "model", how)
    }

    /// The outputs and the last states, as ncps gives them: `y, hn`, or `y, (hn, cn)` with mixed memory.
    #[pyo3(signature = (input, hx = None, timespans = None))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        input: &Bound<'py, PyAny>,
        hx: Option<&Bound<'py, PyAny>>,
        timespans: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Problem> {
        let (compiled, mut all) = self.call(py, input, timespans, hx, None, true)?;
        if let Network::Graph(_) = self.network {
            return gathered(py, &compiled.outputs, &compiled.results, all);
        }
        let finals = all.split_off(compiled.results.len());
        let y = gathered(py, &compiled.outputs, &compiled.results, all)?;
        let names: Vec<&str> = compiled.finals.iter().map(|&place| compiled.outputs[place].as_str()).collect();
        let states = match &names[..] {
            [] => py.None().into_bound(py),
            ["hn"] => finals[0].clone(),
            ["hn", "cn"] => PyTuple::new(py, finals)?.into_any(),
            _ => {
                let all = PyDict::new(py);
                for (name, array) in names.iter().zip(finals) {
                    all.set_item(name, array)?;
                }
                all.into_any()
            }
        };
        Ok(PyTuple::new(py, [y, states])?.into_any())
    }

    /// A stream through the model: it keeps the states from run to run. See `Session`.
    ///
    /// `timespans` is the time between steps where it is always the same, or `True` where every run gives an array of them.
    #[pyo3(signature = (*, timespans = None, batched = true))]
    fn session(&self, timespans: Option<&Bound<'_, PyAny>>, batched: bool) -> Result<Session, Problem> {
        let constant = constant_of(timespans)?;
        let compiled = self.compiled(Kind { constant, batched, state: StateKind::Carried })?;
        Ok(Session::new(compiled))
    }

    /// Takes many streams through the model, each with a state of its own. See `Runner`.
    #[pyo3(signature = (*, timespans = None, not_finite = "refuse"))]
    fn runner(&self, timespans: Option<&Bound<'_, PyAny>>, not_finite: &str) -> Result<crate::stream::Runner, Problem> {
        let constant = constant_of(timespans)?;
        self.network.model("a runner")?;
        let compiled = self.compiled(Kind { constant, batched: true, state: StateKind::Carried })?;
        crate::stream::Runner::new(&compiled.program, not_finite)
    }

    /// Writes the whole model, options, wiring and weights, into one safetensors file, whole or not at all.
    fn save(&self, py: Python<'_>, path: PathBuf) -> Result<(), Problem> {
        py.detach(|| self.network.save(&path))
    }

    /// The same as the bytes that the file would have.
    ///
    /// >>> import schwann
    /// >>> model = schwann.load("wired-cfc")
    /// >>> schwann.from_bytes(model.to_bytes())
    /// Model(CfC: x f32[B, T, 8] -> y f32[B, T, 16])
    fn to_bytes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>, Problem> {
        Ok(PyBytes::new(py, &self.network.to_bytes()?))
    }

    /// The weights by name, each a copy.
    #[getter]
    fn weights<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Problem> {
        let all = PyDict::new(py);
        for (name, data) in self.network.weights() {
            all.set_item(name, to_numpy(py, data)?)?;
        }
        Ok(all)
    }

    /// Inputs and their types, such as `{"x": "f32[B, T, 8]", "h0": "f32[B, 64]"}`.
    #[getter]
    fn inputs(&self) -> Result<HashMap<String, String>, Problem> {
        Ok(self.inputs.iter().cloned().collect())
    }

    /// Outputs and their types.
    #[getter]
    fn outputs(&self) -> Result<HashMap<String, String>, Problem> {
        Ok(self.outputs.iter().cloned().collect())
    }

    /// What the model is and what a step of it costs, as text.
    #[getter]
    fn info(&self, py: Python<'_>) -> Result<String, Problem> {
        py.detach(|| match &self.network {
            Network::Model(model) => Ok(model.info()?.to_string()),
            Network::Graph(graph) => Ok(graph.to_string()),
        })
    }

    /// What it was loaded from, or was called.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// What it runs on, such as `cpu`.
    #[getter]
    fn backend(&self) -> String {
        self.how.backend.to_string()
    }

    /// Threads that a run may use; 0 is one for each core.
    #[getter]
    fn threads(&self) -> usize {
        self.how.threads
    }

    /// The same network run in another way: on another backend, with other threads, or as `schwann.tune` found it best for
    /// this batch and number of steps.
    #[pyo3(signature = (*, backend = None, threads = None, tuned = None))]
    fn with_options(
        &self,
        backend: Option<&str>,
        threads: Option<usize>,
        tuned: Option<(usize, usize)>,
    ) -> Result<Model, Problem> {
        let mut how = self.how.clone();
        if let Some(backend) = backend {
            how.backend = backend.parse()?;
        }
        how.threads = check_threads(threads.unwrap_or(how.threads))?;
        how.tuned = tuned.or(how.tuned);
        Model::new(self.network.clone(), &self.name, how)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> Result<(Bound<'py, PyAny>, Bound<'py, PyTuple>), Problem> {
        let py = slf.py();
        let this = slf.get();
        let make = py.import("schwann._schwann")?.getattr("_unpickled")?;
        let bytes = PyBytes::new(py, &this.network.to_bytes()?);
        let arguments = (bytes, this.name.clone(), this.backend(), this.how.threads, this.how.tuned);
        Ok((make, arguments.into_pyobject(py)?))
    }

    fn __repr__(&self) -> String {
        let is_main = |(name, _): &&(String, String)| !name.ends_with("h0") && !name.ends_with("c0");
        let told =
            |list: Vec<&(String, String)>| list.iter().map(|(n, t)| format!("{n} {t}")).collect::<Vec<_>>().join(", ");
        let inputs = told(self.inputs.iter().filter(is_main).collect());
        let outputs = told(self.outputs.iter().filter(|(n, _)| !n.ends_with("hn") && !n.ends_with("cn")).collect());
        format!("Model({}: {inputs} -> {outputs})", self.network.label())
    }
}

/// Where a session's or a runner's time between steps comes from.
fn constant_of(timespans: Option<&Bound<'_, PyAny>>) -> Result<Option<u32>, Problem> {
    let Some(given) = timespans else { return Ok(Some(1.0f32.to_bits())) };
    if let Ok(per_step) = given.extract::<bool>() {
        return Ok(if per_step { None } else { Some(1.0f32.to_bits()) });
    }
    let number: f32 = given.extract().map_err(|_| {
        PyTypeError::new_err("`timespans` is neither a number nor True; expected the time between steps, or True where each run gives an array")
    })?;
    Ok(Some(number.to_bits()))
}

pub(crate) fn check_threads(threads: usize) -> Result<usize, Problem> {
    match threads {
        0..=1024 => Ok(threads),
        _ => Err(Problem::argument("threads", threads, "a number from 0 (one for each core) to 1024")),
    }
}

impl Model {
    /// Runs once from states of zero or from those given: results, and with `finals` the last states after them.
    fn call<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        timespans: Option<&Bound<'py, PyAny>>,
        state: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        finals: bool,
    ) -> Result<(Arc<Compiled>, Vec<Bound<'py, PyAny>>), Problem> {
        let state_kind = if state.is_some() { StateKind::Given } else { StateKind::Zero };
        let mut kind = self.kind(x, timespans, state_kind)?;
        if let Network::Graph(_) = self.network {
            if timespans.is_some() {
                return Err(Problem::argument(
                    "timespans",
                    "given",
                    "nothing: a graph takes its inputs by name, as a dict",
                ));
            }
            kind = Kind { constant: None, batched: true, state: StateKind::Carried };
        }
        let compiled = self.compiled(kind)?;
        let timespans = timespans.filter(|_| kind.constant.is_none());
        let mut given = inputs_of(&compiled, x, timespans)?;
        if let Some(state) = state {
            for (name, array) in states_of(&compiled, state)? {
                given.push((name, Given::new(name, &array, DType::F32)?));
            }
        }
        let mut places = compiled.results.clone();
        if finals {
            places.extend(&compiled.finals);
        }
        let mut session = compiled.take();
        if !compiled.states.is_empty() {
            session.reset();
        }
        let outcome = execute(py, &mut session, &given, (&compiled.outputs, &places), out);
        compiled.put_back(session);
        drop(given);
        Ok((compiled, outcome?))
    }
}
