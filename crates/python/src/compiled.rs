//! A compiled program, and its runs on arrays of Python's.

use crate::array::{Given, Room};
use crate::error::Problem;
use crate::wait::interruptible;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use schwann::run::Canceller;
use schwann::{DType, Program, View};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Runs of more work than this, in operations, can be interrupted by Ctrl-C: they take some tens of milliseconds.
const LONG_RUN: u64 = 1 << 30;
/// Inputs below this many bytes are not asked how much work they are.
const LONG_INPUT: usize = 1 << 16;

/// A program with what a call needs to know of it.
pub(crate) struct Compiled {
    pub(crate) program: Arc<Program>,
    /// Inputs that are no states, and their types.
    pub(crate) inputs: Vec<(String, DType)>,
    /// States by the names of their first values.
    pub(crate) states: Vec<(String, DType)>,
    /// Places of the outputs that a run gives.
    pub(crate) results: Vec<usize>,
    /// Places of final states that are not carried: of models whose states are given, or zero.
    pub(crate) finals: Vec<usize>,
    pub(crate) outputs: Vec<String>,
    /// Sessions that no call is using: each call has one of its own, so that many threads can share the model.
    idle: Mutex<Vec<schwann::Session>>,
}

impl Compiled {
    pub(crate) fn new(program: Arc<Program>, is_model: bool) -> Compiled {
        let graph = program.graph();
        let named = |state: bool| {
            let own = graph.inputs().filter(move |(name, _)| graph.is_state(name) == state);
            own.map(|(name, value)| (name.to_owned(), graph.ty(value).dtype)).collect()
        };
        let outputs: Vec<String> = graph.outputs().iter().map(|o| o.name.clone()).collect();
        let is_state = |name: &String| graph.states().iter().any(|s| s.output == *name);
        let (mut results, mut finals) = (vec![], vec![]);
        for (place, name) in outputs.iter().enumerate() {
            match is_model {
                true if name == "y" => results.push(place),
                true if !is_state(name) => finals.push(place),
                false if !is_state(name) => results.push(place),
                _ => {}
            }
        }
        Compiled {
            inputs: named(false),
            states: named(true),
            results,
            finals,
            outputs,
            idle: Mutex::default(),
            program,
        }
    }

    pub(crate) fn take(&self) -> schwann::Session {
        self.idle().pop().unwrap_or_else(|| self.program.session())
    }

    pub(crate) fn put_back(&self, session: schwann::Session) {
        self.idle().push(session);
    }

    /// A list that a panic left behind is as good as any.
    fn idle(&self) -> MutexGuard<'_, Vec<schwann::Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a session on arrays and gives the outputs at `places`; `out` is for the first, or all by name.
pub(crate) fn execute<'py>(
    py: Python<'py>,
    session: &mut schwann::Session,
    given: &[(&str, Given<'py>)],
    (outputs, places): (&[String], &[usize]),
    out: Option<&Bound<'py, PyAny>>,
) -> Result<Vec<Bound<'py, PyAny>>, Problem> {
    let mut views: Vec<(&str, View<'_>)> = Vec::with_capacity(given.len());
    let mut bytes = 0;
    for (name, array) in given {
        let view = array.view()?;
        bytes += view.bytes().len();
        views.push((name, view));
    }
    let sizes = session.sizes_for(&views)?;
    let mut rooms: Vec<Room<'py>> = Vec::with_capacity(places.len());
    for (number, &place) in places.iter().enumerate() {
        let (dtype, shape) = &sizes.outputs[place];
        let wanted = match out {
            None => None,
            Some(all) if all.is_instance_of::<PyDict>() => all.cast::<PyDict>()?.get_item(&outputs[place])?,
            Some(one) if number == 0 => Some(one.clone()),
            Some(_) => None,
        };
        let room = match wanted {
            None => Room::new(py, *dtype, shape)?,
            Some(array) => {
                let inputs: Vec<&Given<'_>> = given.iter().map(|(_, given)| given).collect();
                let room = Room::given("out", &array, (*dtype, shape), &inputs)?;
                if rooms.iter().any(|other| other.touches(&room)) {
                    return Err(Problem::argument("out", "the same memory for two outputs", "an array for each"));
                }
                room
            }
        };
        rooms.push(room);
    }
    let types: Vec<DType> = places.iter().map(|&place| sizes.outputs[place].0).collect();
    let long = bytes >= LONG_INPUT && session.plan().is_some_and(|plan| plan.cost().flops >= LONG_RUN);
    {
        let mut into: Vec<Option<&mut [u8]>> = Vec::new();
        into.resize_with(outputs.len(), || None);
        for ((room, &place), dtype) in rooms.iter_mut().zip(places).zip(&types) {
            // Numbers of another type of float are written below.
            if room.takes(*dtype) {
                into[place] = Some(room.bytes_mut());
            }
        }
        run(py, session, &views, &mut into, long)?;
    }
    for ((room, &place), dtype) in rooms.iter_mut().zip(places).zip(&types) {
        if !room.takes(*dtype) {
            room.fill(session.output(&outputs[place])?)?;
        }
    }
    Ok(rooms.into_iter().map(|room| room.array).collect())
}

/// The run itself, without Python's lock.
fn run(
    py: Python<'_>,
    session: &mut schwann::Session,
    views: &[(&str, View<'_>)],
    into: &mut [Option<&mut [u8]>],
    long: bool,
) -> Result<(), Problem> {
    if !long {
        return Ok(py.detach(|| session.run_into(views, into))?);
    }
    let canceller: Canceller = session.canceller();
    let told = |(): ()| Ok(());
    Ok(interruptible(py, || canceller.cancel(), told, |_| session.run_into(views, into))??)
}

/// Arrays for inputs by name: one array for the first input, or a dict.
pub(crate) fn inputs_of<'a, 'py>(
    compiled: &'a Compiled,
    x: &Bound<'py, PyAny>,
    timespans: Option<&Bound<'py, PyAny>>,
) -> Result<Vec<(&'a str, Given<'py>)>, Problem> {
    let mut given = Vec::with_capacity(compiled.inputs.len() + compiled.states.len());
    if let Ok(all) = x.cast::<PyDict>() {
        let known = compiled.inputs.iter().chain(&compiled.states);
        for (name, dtype) in known {
            if let Some(array) = all.get_item(name)? {
                given.push((name.as_str(), Given::new(name, &array, *dtype)?));
            }
        }
        if given.len() < all.len() {
            let known: Vec<String> = compiled.inputs.iter().chain(&compiled.states).map(|(n, _)| n.clone()).collect();
            for name in all.keys() {
                let name: String = name.extract().map_err(|_| {
                    PyTypeError::new_err("`x` is a dict with a key that is no name; expected names of inputs")
                })?;
                if !known.contains(&name) {
                    return Err(schwann::Error::Unknown { kind: "input", name, known }.into());
                }
            }
        }
        return Ok(given);
    }
    let (name, dtype) = compiled
        .inputs
        .first()
        .ok_or_else(|| Problem::argument("x", "an array", "nothing: the network has no input"))?;
    given.push((name.as_str(), Given::new(name, x, *dtype)?));
    if let Some(array) = timespans {
        given.push(("timespans", Given::new("timespans", array, DType::F32)?));
    }
    Ok(given)
}

/// One result, or all by name.
pub(crate) fn gathered<'py>(
    py: Python<'py>,
    names: &[String],
    places: &[usize],
    mut arrays: Vec<Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyAny>, Problem> {
    if arrays.len() == 1 {
        return Ok(arrays.remove(0));
    }
    let all = PyDict::new(py);
    for (place, array) in places.iter().zip(arrays) {
        all.set_item(&names[*place], array)?;
    }
    Ok(all.into_any())
}

/// First states by name: an array, a pair `(h0, c0)`, or a dict.
pub(crate) fn states_of<'a, 'py>(
    compiled: &'a Compiled,
    state: &Bound<'py, PyAny>,
) -> Result<Vec<(&'a str, Bound<'py, PyAny>)>, Problem> {
    let is_first = |name: &str| name.ends_with("h0") || name.ends_with("c0");
    let names: Vec<&str> =
        compiled.inputs.iter().chain(&compiled.states).map(|(n, _)| n.as_str()).filter(|n| is_first(n)).collect();
    let expected = || match names.len() {
        0 => "nothing: the model has no states".to_owned(),
        1 => "an array".to_owned(),
        2 if names == ["h0", "c0"] => "a pair of arrays, (h0, c0)".to_owned(),
        _ => format!("a dict of arrays, by the names {}", names.join(", ")),
    };
    if let Ok(all) = state.cast::<PyDict>() {
        let mut found = vec![];
        for name in &names {
            let array = all
                .get_item(name)?
                .ok_or_else(|| Problem::argument("state", format!("a dict without `{name}`"), expected()))?;
            found.push((*name, array));
        }
        if all.len() > names.len() {
            return Err(Problem::argument("state", format!("a dict of {} arrays", all.len()), expected()));
        }
        return Ok(found);
    }
    if let Ok(pair) = state.cast::<PyTuple>() {
        if pair.len() != names.len() {
            return Err(Problem::argument("state", format!("a tuple of {}", pair.len()), expected()));
        }
        return Ok(names.iter().copied().zip(pair.iter()).collect());
    }
    match &names[..] {
        [one] => Ok(vec![(one, state.clone())]),
        _ => Err(Problem::argument("state", "one array", expected())),
    }
}
