//! What `schwann.torch` runs on: a layer whose parameters PyTorch holds, forward and backward.
//!
//! Parameters are inputs of the graph, since each step of an optimizer changes them. The backward graph computes the forward
//! pass once more, so that PyTorch need not keep what is in between.

use crate::array::{Given, Room};
use crate::error::Problem;
use crate::model::{Model, check_threads};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use schwann::grad::gradient;
use schwann::nn::{self, GraphOptions, InitialState, Parameters, Timespans};
use schwann::{CompileOptions, DType, Graph, GraphBuilder, Program, View};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// A program, and sessions that no call is using.
struct Ready {
    program: Arc<Program>,
    idle: Mutex<Vec<schwann::Session>>,
}

impl Ready {
    fn new(graph: &Graph, threads: usize) -> Result<Ready, Problem> {
        let program = Program::compile(graph, &CompileOptions::default().threads(threads))?;
        Ok(Ready { program, idle: Mutex::default() })
    }

    /// Runs on arrays by the inputs' names, and gives the outputs of these names.
    fn run<'py>(&self, arrays: &Bound<'py, PyDict>, wanted: &[String]) -> Result<Bound<'py, PyDict>, Problem> {
        let py = arrays.py();
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let graph = self.program.graph();
        let mut given: Vec<(&str, Given<'py>)> = vec![];
        for (name, value) in graph.inputs() {
            // What is missing is told by the run, with the type that is expected.
            if let Some(array) = arrays.get_item(name)? {
                given.push((name, Given::new(name, &array, graph.ty(value).dtype)?));
            }
        }
        let taken = idle().pop();
        let mut session = taken.unwrap_or_else(|| self.program.session());
        let outcome = run(py, &mut session, &given, graph, wanted);
        idle().push(session);
        outcome
    }
}

fn run<'py>(
    py: Python<'py>,
    session: &mut schwann::Session,
    given: &[(&str, Given<'py>)],
    graph: &Graph,
    wanted: &[String],
) -> Result<Bound<'py, PyDict>, Problem> {
    let views: Vec<(&str, View<'_>)> =
        given.iter().map(|(name, array)| Ok((*name, array.view()?))).collect::<Result<_, Problem>>()?;
    let sizes = session.sizes_for(&views)?;
    let mut rooms: Vec<Option<Room<'py>>> = vec![];
    for (output, (dtype, shape)) in graph.outputs().iter().zip(&sizes.outputs) {
        let is_wanted = wanted.contains(&output.name);
        rooms.push(if is_wanted { Some(Room::new(py, *dtype, shape)?) } else { None });
    }
    let mut into: Vec<Option<&mut [u8]>> = rooms.iter_mut().map(|room| room.as_mut().map(Room::bytes_mut)).collect();
    py.detach(|| session.run_into(&views, &mut into))?;
    let all = PyDict::new(py);
    for (output, room) in graph.outputs().iter().zip(rooms) {
        if let Some(room) = room {
            all.set_item(&output.name, room.array)?;
        }
    }
    Ok(all)
}

/// Whether the time between steps is an input, and which outputs are differentiated with respect to which inputs.
type Wanted = (bool, Vec<String>, Vec<String>);

/// A layer whose parameters are given to each call.
#[pyclass(module = "schwann._schwann", frozen, name = "_Layer")]
pub(crate) struct Layer {
    model: nn::Model,
    threads: usize,
    /// By whether the time between steps is an input.
    forward: Mutex<HashMap<bool, Arc<Ready>>>,
    backward: Mutex<HashMap<Wanted, Arc<Ready>>>,
}

impl Layer {
    fn graph(&self, timed: bool) -> Result<Graph, Problem> {
        let timespans = if timed { Timespans::PerStep } else { Timespans::Constant(1.0) };
        let options =
            GraphOptions::default().timespans(timespans).state(InitialState::Given).parameters(Parameters::Inputs);
        Ok(self.model.graph(&options)?)
    }
}

/// The graph whose outputs `grad.<name>` are a vector times the Jacobian: of the outputs `of` with respect to the inputs `wrt`.
/// The vectors are inputs `grad_out.<output>`.
fn backward(graph: &Graph, of: &[String], wrt: &[String]) -> Result<Graph, Problem> {
    let mut b = GraphBuilder::new();
    let mut inputs = BTreeMap::new();
    for (name, value) in graph.inputs() {
        let ty = graph.ty(value).clone();
        inputs.insert(name.to_owned(), b.input(name, ty.dtype, ty.shape)?);
    }
    let results = b.splice(graph, &inputs)?;
    let mut objective = None;
    for name in of {
        let place = graph.output_place(name).ok_or_else(|| schwann::Error::Unknown {
            kind: "output",
            name: name.clone(),
            known: graph.outputs().iter().map(|o| o.name.clone()).collect(),
        })?;
        let shape = b.ty(results[place]).shape.clone();
        let axes: Vec<usize> = (0..shape.rank()).collect();
        let vector = b.input(&format!("grad_out.{name}"), DType::F32, shape)?;
        let product = b.named(&format!("{name}.weighed")).mul(results[place], vector)?;
        let sum = b.named(&format!("{name}.sum")).sum(product, &axes, false)?;
        objective = Some(match objective {
            None => sum,
            Some(so_far) => b.named("objective.sum").add(so_far, sum)?,
        });
    }
    let objective = objective.ok_or_else(|| Problem::argument("gradients", "none", "that of one output at least"))?;
    b.output("objective", objective)?;
    let names: Vec<&str> = wrt.iter().map(String::as_str).collect();
    Ok(gradient(&b.build()?, "objective", &names)?)
}

#[pymethods]
impl Layer {
    #[new]
    #[pyo3(signature = (model, threads = 0))]
    fn new(model: &Model, threads: usize) -> Result<Layer, Problem> {
        let model = model.network.model("a layer")?.clone();
        Ok(Layer { model, threads: check_threads(threads)?, forward: Mutex::default(), backward: Mutex::default() })
    }

    /// The parameters' names.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.model.params().iter().map(|p| p.name.clone()).collect()
    }

    /// Outputs by name, of arrays by the inputs' names.
    fn forward<'py>(&self, arrays: &Bound<'py, PyDict>) -> Result<Bound<'py, PyDict>, Problem> {
        let timed = arrays.contains("timespans")?;
        let all = || self.forward.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all().get(&timed).cloned();
        let ready = match found {
            Some(ready) => ready,
            None => {
                let made = Arc::new(Ready::new(&self.graph(timed)?, self.threads)?);
                Arc::clone(all().entry(timed).or_insert(made))
            }
        };
        let names: Vec<String> = ready.program.graph().outputs().iter().map(|o| o.name.clone()).collect();
        ready.run(arrays, &names)
    }

    /// Gradients with respect to the inputs `wrt`, by name; arrays `grad_out.<output>` say of which outputs.
    fn backward<'py>(&self, arrays: &Bound<'py, PyDict>, wrt: Vec<String>) -> Result<Bound<'py, PyDict>, Problem> {
        let py = arrays.py();
        let timed = arrays.contains("timespans")?;
        let mut of = vec![];
        for output in ["y", "hn", "cn"] {
            if arrays.contains(format!("grad_out.{output}"))? {
                of.push(output.to_owned());
            }
        }
        let names: Vec<String> = wrt.iter().map(|name| format!("grad.{name}")).collect();
        let all = || self.backward.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (timed, of, wrt);
        let found = all().get(&key).cloned();
        let ready = match found {
            Some(ready) => ready,
            None => {
                let made = py.detach(|| Ready::new(&backward(&self.graph(timed)?, &key.1, &key.2)?, self.threads))?;
                Arc::clone(all().entry(key).or_insert(Arc::new(made)))
            }
        };
        ready.run(arrays, &names)
    }
}
