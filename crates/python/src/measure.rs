//! Profiles, predictions, the tuner, baselines and the gate.
//!
//! What they say rests on several starts of a process. The process that is started is Python again: `schwann._start`, which
//! reads a request and runs [`_turns`].

use crate::error::Problem;
use crate::model::{Model, check_threads};
use crate::network::Network;
use crate::wait::interruptible;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use schwann::backend::cpu::Cpu;
use schwann::nn::train::{Recipe, step_graph};
use schwann::prof::baseline::{self, Identity, Rule, Ruling};
use schwann::prof::device::predict::predict as predicted;
use schwann::prof::device::{self, Calibration, Catalog, Pace, on, outlook};
use schwann::prof::profiler::{self, Options, Phases, Profiler, Subject, Turns, Way, YARDSTICK, turns};
use schwann::prof::stats::verdict::Reading;
use schwann::prof::study::{self, Instruments};
use schwann::prof::tune::{self, Key, Objective, Store, Tuner, Verdict};
use schwann::prof::{Profile as Document, db, export, report};
use schwann::{Bindings, DType, Isa, Program};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Seconds that a start of a process measures, beside what starting takes.
const START_SECONDS: f64 = 0.12;

/// Tells how far something is.
type Tell = (String, f64);

/// How to start processes that measure: Python's program, and the folder with the models' files.
struct Starter {
    python: String,
    folder: PathBuf,
    models: Vec<PathBuf>,
}

/// What a started process reads.
#[derive(Serialize, Deserialize)]
struct Request {
    /// Files of models, and how to run each.
    sides: Vec<(PathBuf, Options)>,
    yardstick: bool,
    seconds: f64,
}

impl Starter {
    /// Writes the models to where started processes find them.
    fn new(py: Python<'_>, models: &[&Network], training: bool) -> Result<Starter, Problem> {
        let folder: PathBuf = py.import("tempfile")?.call_method1("mkdtemp", ("", "schwann-"))?.extract()?;
        let mut starter =
            Starter { python: py.import("sys")?.getattr("executable")?.extract()?, folder, models: vec![] };
        for (i, network) in models.iter().enumerate() {
            let path = starter.folder.join(format!("{i}.safetensors"));
            match training {
                true => Network::Graph(step_graph(network.model("training")?, &Recipe::default())?).save(&path)?,
                false => network.save(&path)?,
            }
            starter.models.push(path);
        }
        Ok(starter)
    }

    /// One start, which measures sides in turns: each a model by its number, and how to run it.
    fn start(&self, sides: &[(usize, &Options)], yardstick: bool, seconds: f64) -> profiler::Result<Turns> {
        let failed = |what: String| profiler::Error::Start { what };
        let sides = sides.iter().map(|(model, options)| (self.models[*model].clone(), (*options).clone())).collect();
        let request = serde_json::to_vec(&Request { sides, yardstick, seconds }).map_err(|e| failed(e.to_string()))?;
        let mut child = Command::new(&self.python)
            .args(["-m", "schwann._start"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| failed(format!("cannot start {}: {e}", self.python)))?;
        if let Some(mut input) = child.stdin.take() {
            // Where it cannot be written to, it has ended, and says why.
            let _ = input.write_all(&request);
        }
        let ended = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr);
            let said = said.trim().lines().last().unwrap_or("nothing").to_owned();
            return Err(failed(format!("it ended with {}: {said}", ended.status)));
        }
        serde_json::from_slice(&ended.stdout).map_err(|e| failed(format!("it gave no measurement: {e}")))
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        // Leftovers in the folder for temporary files are the system's to remove.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// What a started process does: reads a request, and gives what it measured.
#[pyfunction]
pub(crate) fn _turns(request: &str) -> Result<String, Problem> {
    let request: Request = serde_json::from_str(request)?;
    let mut subjects = vec![];
    for (path, _) in &request.sides {
        subjects.push(Network::load(&path.to_string_lossy())?.subject());
    }
    let sides: Vec<(&Subject, &Options)> =
        subjects.iter().zip(request.sides.iter().map(|(_, options)| options)).collect();
    Ok(serde_json::to_string(&turns(&sides, request.yardstick, request.seconds)?)?)
}

/// The numbers of a run that profiles, the tuner and the gate have in common.
fn options(model: &Model, batch: usize, steps: usize, threads: Option<usize>) -> Result<Options, Problem> {
    let threads = check_threads(threads.unwrap_or(1))?;
    Ok(Options { batch, steps, threads, backend: model.how.backend.clone(), ..Options::default() })
}

/// The machine's limits; measured once, in about ten seconds, and then kept.
fn calibration(tell: &mut dyn FnMut(String, f64)) -> Result<Calibration, Problem> {
    let folder = device::data_dir().ok();
    let mut heard =
        |p: device::Progress| tell(format!("measuring this machine, once: {}", p.what), p.done.unwrap_or(0.0));
    Ok(Calibration::load_or_measure(folder.as_deref(), Isa::detect(), Pace::Full, &mut heard)?.0)
}

/// Calls Python's `progress(what, part)`, where there is one.
fn telling<'py>(progress: Option<&'py Bound<'py, PyAny>>) -> impl FnMut(Tell) -> PyResult<()> + 'py {
    move |(what, part)| match progress {
        None => Ok(()),
        Some(call) => call.call1((what, part)).map(drop),
    }
}

/// What a profile found, as one document. Printing it shows a table; in a notebook it shows itself as the report.
///
/// >>> import schwann
/// >>> profile = schwann.profile(schwann.load("wired-cfc"), seconds=0.1, roof=False)
/// >>> profile["compute"]["time_p50"]["unit"]
/// 's'
#[pyclass(module = "schwann._schwann", frozen, name = "Profile")]
pub(crate) struct Profile(Document);

#[pymethods]
impl Profile {
    /// The document as JSON.
    fn json(&self) -> String {
        export::json(&self.0)
    }

    /// The report: one HTML file that needs nothing else.
    fn html(&self) -> String {
        report::html(std::slice::from_ref(&self.0))
    }

    /// The document as Markdown.
    fn markdown(&self) -> String {
        export::Format::named("markdown").map_or_else(String::new, |format| format.write(&self.0))
    }

    /// One figure by its path, such as `compute.time_p50`, with unit, origin and source, as JSON.
    fn _figure(&self, path: &str) -> Result<Option<String>, Problem> {
        Ok(export::figure(&self.0, path).map(|figure| serde_json::to_string(&figure)).transpose()?)
    }

    /// A figure as it is shown to people, such as `12.4 µs`.
    fn _shown(&self, path: &str) -> Option<String> {
        export::figure(&self.0, path).map(|figure| export::shown(&figure))
    }

    /// Model, machine and sizes in a line.
    #[getter]
    fn title(&self) -> String {
        export::title(&self.0)
    }

    /// The document of `Profile.json`, or of `schwann profile --json`, whose first profile is taken.
    #[staticmethod]
    fn from_json(text: &str) -> Result<Profile, Problem> {
        let first = export::read_all(text, "the profile")?.into_iter().next();
        first.map(Profile).ok_or_else(|| PyValueError::new_err("the document has no profile").into())
    }

    /// The document as Python's dicts and lists.
    #[getter]
    fn document<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("json")?.call_method1("loads", (export::json(&self.0),))
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        self.document(py)?.get_item(key)
    }

    fn __repr__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("schwann")?.getattr("_table")?.call1((slf,))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("schwann")?.getattr("_report")?.call1((slf,))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("from_json")?, (slf.get().json(),)))
    }
}

/// See `schwann.profile`.
#[pyfunction]
#[pyo3(signature = (model, *, batch, steps, threads, runs, seconds, dtype, fused, compare, sweep, train, roof, starts, progress))]
#[expect(clippy::too_many_arguments, reason = "they are the keywords of a function of Python's")]
pub(crate) fn _profile(
    py: Python<'_>,
    model: &Model,
    batch: usize,
    steps: usize,
    threads: Option<usize>,
    runs: usize,
    seconds: f64,
    dtype: &str,
    fused: bool,
    compare: bool,
    sweep: Vec<(usize, usize)>,
    train: bool,
    roof: bool,
    starts: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> Result<Profile, Problem> {
    let dtype = match dtype {
        "float32" => DType::F32,
        "bfloat16" => DType::Bf16,
        other => return Err(Problem::argument("dtype", format!("{other:?}"), "\"float32\" or \"bfloat16\"")),
    };
    let options = Options { runs, seconds, dtype, fused, ..options(model, batch, steps, threads)? };
    let subject: Subject = match train {
        true => step_graph(model.network.model("a step of training")?, &Recipe::default())?.into(),
        false => model.network.subject(),
    };
    let starter = if starts { Some(Starter::new(py, &[&model.network], train)?) } else { None };
    let cores = device::cpu::cores();
    let on_cpu = options.backend.is_cpu();
    let mut ways = vec![];
    if compare {
        ways.push(if fused { Way::NodeByNode } else { Way::Fused });
        if on_cpu && options.threads != 0 && options.threads != cores {
            ways.push(Way::Threads(cores));
        }
        ways.push(Way::Products(if dtype == DType::Bf16 { DType::F32 } else { DType::Bf16 }));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let cancel = || stop.store(true, Ordering::Relaxed);
    let done = interruptible(py, cancel, telling(progress), |sender| -> Result<Document, Problem> {
        let mut told = |what: String, part: f64| drop(sender.send((what, part)));
        let known = if roof && on_cpu { Some((calibration(&mut told)?, Catalog::load()?)) } else { None };
        let mut profiler = Profiler::new(subject)
            .named(&model.name)
            .with(options.clone())
            .compared(ways)
            .swept(sweep)
            .phases(Phases::Auto)
            .counting(Instruments::default())
            .cancelled_by(Arc::clone(&stop))
            .telling(|what: &str, part| drop(sender.send((what.to_owned(), part))));
        if let Some(starter) = &starter {
            profiler = profiler.starting(|sides, yardstick, seconds| {
                let sides: Vec<(usize, &Options)> = sides.iter().map(|options| (0, options)).collect();
                starter.start(&sides, yardstick, seconds)
            });
        }
        if let Some((calibration, _)) = &known {
            profiler = profiler.under(calibration.ceiling(Cpu::new(options.threads)?.threads()));
        }
        let mut profile = profiler.profile_all()?;
        if let Some((calibration, catalog)) = &known {
            study::conclude(&mut profile, &profiler.plan()?, calibration, catalog, None);
        }
        Ok(profile)
    })?;
    Ok(Profile(done?))
}

/// See `schwann.predict`.
#[pyfunction]
#[pyo3(signature = (model, *, device, batch, steps, threads, progress))]
pub(crate) fn _predict(
    py: Python<'_>,
    model: &Model,
    device: Option<&str>,
    batch: usize,
    steps: usize,
    threads: usize,
    progress: Option<&Bound<'_, PyAny>>,
) -> Result<String, Problem> {
    let graph = model.network.graph()?;
    let threads = check_threads(threads)?;
    interruptible(
        py,
        || {},
        telling(progress),
        |sender| -> Result<String, Problem> {
            let catalog = Catalog::load()?;
            // A name that is not known is told of before anything is measured.
            let host = device.is_none_or(|name| ["host", "this machine"].contains(&name));
            let entry = device.filter(|_| !host).map(|name| catalog.find(name)).transpose()?;
            let calibration = calibration(&mut |what, part| drop(sender.send((what, part))))?;
            let program = Program::compile(&graph, &schwann::CompileOptions::default().threads(threads))?;
            let symbols = graph.symbols();
            let sizes = [("B", batch), ("T", steps)].into_iter().filter(|(name, _)| symbols.contains(*name));
            let sizes = sizes.fold(Bindings::new(), |sizes, (name, size)| sizes.with(name, size));
            let plan = program.plan(&sizes)?;
            Ok(match (device, entry) {
                (None, _) => serde_json::to_string(&outlook(&plan, &catalog, &calibration, None, None))?,
                (_, Some(entry)) => serde_json::to_string(&on(&plan, entry, &calibration))?,
                (_, None) => {
                    serde_json::to_string(&predicted(&plan, &device::predict::Speed::host(&calibration, plan.threads)))?
                }
            })
        },
    )?
}

/// See `schwann.tune`.
#[pyfunction]
#[pyo3(signature = (model, *, batch, steps, budget, objective, threads, max_error, seed, keep, progress))]
#[expect(clippy::too_many_arguments, reason = "they are the keywords of a function of Python's")]
pub(crate) fn _tune(
    py: Python<'_>,
    model: &Model,
    batch: usize,
    steps: usize,
    budget: f64,
    objective: &str,
    threads: usize,
    max_error: Option<f64>,
    seed: u64,
    keep: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> Result<String, Problem> {
    let objective = match objective {
        "latency" => Objective::Latency,
        "throughput" => Objective::Throughput,
        "memory" => Objective::Memory,
        other => {
            return Err(Problem::argument(
                "objective",
                format!("{other:?}"),
                "\"latency\", \"throughput\" or \"memory\"",
            ));
        }
    };
    let options = options(model, batch, steps, Some(threads))?;
    let subject = model.network.subject();
    let key = Key::new(&subject, &profiler::sizes_of(&subject, &options)?, &options.choice()?, options.threads)?;
    // A store that cannot be written is found out before the search and not after it.
    let place = db::Place::File(tune::default_path()?);
    let mut store = if keep { Some(Store::create(&place)?) } else { None };
    let earlier = store.as_ref().map(|store| store.find(&key)).transpose()?.flatten();
    let usable = |config: &&tune::Config| {
        let typed = config.bf16_products || config.changes.bf16_weights;
        (!typed || max_error.is_some()) && (config.threads.is_none() || threads == 0)
    };
    let first = earlier.as_ref().map(|record| record.config()).filter(usable).cloned();
    let starter = Starter::new(py, &[&model.network], false)?;
    let stop = Arc::new(AtomicBool::new(false));
    let cancel = || stop.store(true, Ordering::Relaxed);
    let outcome = interruptible(py, cancel, telling(progress), |sender| {
        let mut tuner = Tuner::new(subject, options)
            .named(&model.name)
            .objective(objective)
            .budget(budget)
            .seed(seed)
            .max_error(max_error)
            .first(first)
            .starting(|sides, yardstick, seconds| {
                let sides: Vec<(usize, &Options)> = sides.iter().map(|options| (0, options)).collect();
                starter.start(&sides, yardstick, seconds)
            })
            .cancelled_by(Arc::clone(&stop))
            .telling(|what: &str, part| drop(sender.send((what.to_owned(), part))));
        tuner.tune()
    })??;
    if let Some(store) = &mut store {
        if outcome.winner.is_some() {
            store.keep(key, &outcome)?;
        } else if outcome.verdict == Verdict::Nothing && earlier.is_some() {
            store.forget(&key)?;
        }
    }
    Ok(serde_json::to_string(&outcome)?)
}

fn baselines(file: Option<&Path>) -> Result<db::Place, Problem> {
    Ok(db::Place::File(match file {
        Some(path) => path.to_owned(),
        None => baseline::default_path()?,
    }))
}

/// See `schwann.save_baseline`.
#[pyfunction]
#[pyo3(signature = (name, profile, file = None))]
pub(crate) fn _save_baseline(
    py: Python<'_>,
    name: &str,
    profile: &Profile,
    file: Option<PathBuf>,
) -> Result<(), Problem> {
    let place = baselines(file.as_deref())?;
    py.detach(|| Ok(baseline::Store::create_at(&place)?.save(name, &profile.0)?))
}

/// See `schwann.load_baseline`.
#[pyfunction]
#[pyo3(signature = (name, file = None))]
pub(crate) fn _load_baseline(py: Python<'_>, name: &str, file: Option<PathBuf>) -> Result<Profile, Problem> {
    let place = baselines(file.as_deref())?;
    py.detach(|| Ok(Profile(baseline::Store::open_at(&place)?.load(name)?)))
}

fn ruled(ruling: &Ruling) -> Result<String, Problem> {
    Ok(serde_json::to_string(ruling)?)
}

/// See `schwann.gate`.
#[pyfunction]
#[pyo3(signature = (model, *, against, baseline, max_regress, batch, steps, threads, seconds, anyway, progress))]
#[expect(clippy::too_many_arguments, reason = "they are the keywords of a function of Python's")]
pub(crate) fn _gate(
    py: Python<'_>,
    model: &Model,
    against: Option<&Model>,
    baseline: Option<&Profile>,
    max_regress: f64,
    batch: usize,
    steps: usize,
    threads: Option<usize>,
    seconds: f64,
    anyway: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> Result<String, Problem> {
    let rule = Rule::new(max_regress);
    let options = options(model, batch, steps, threads)?;
    let nothing = || profiler::Error::Start { what: "it measured nothing".into() };
    let stop = AtomicBool::new(false);
    let cancel = || stop.store(true, Ordering::Relaxed);
    let going = || if stop.load(Ordering::Relaxed) { Err(profiler::Error::Cancelled) } else { Ok(()) };
    match (against, baseline) {
        (Some(other), None) => {
            let starter = Starter::new(py, &[&other.network, &model.network], false)?;
            let before = Options { backend: other.how.backend.clone(), ..options.clone() };
            let ruling = interruptible(py, cancel, telling(progress), |sender| {
                let mut start = || {
                    going()?;
                    let found = starter.start(&[(0, &before), (1, &options)], false, START_SECONDS)?;
                    let [base, candidate] = &found.sides[..] else { return Err(nothing()) };
                    Reading::of(base, candidate).ok_or_else(nothing)
                };
                rule.in_turns(seconds, &mut start, &mut |s| drop(sender.send(("measuring".to_owned(), s / seconds))))
            })??;
            ruled(&ruling)
        }
        (None, Some(Profile(saved))) => {
            let comparable = saved.compute.starts.as_ref().is_some_and(|s| s.yardstick_name == YARDSTICK);
            let before = baseline::record(saved, comparable)
                .ok_or_else(|| PyValueError::new_err("the baseline has no samples, so nothing can be judged by it"))?;
            let now = Profiler::new(model.network.subject()).named(&model.name).with(options.clone()).identity()?;
            let unlike = Identity::of(saved).unlike(&now);
            if !anyway && !unlike.is_empty() {
                let told: Vec<String> = unlike.iter().map(|u| format!("{u:?}")).collect();
                let text =
                    format!("`baseline` is of something else: {}; expected the same, or anyway=True", told.join("; "));
                return Err(PyValueError::new_err(text).into());
            }
            let starter = Starter::new(py, &[&model.network], false)?;
            let by_yardstick = before.yardstick;
            let ruling = interruptible(py, cancel, telling(progress), |sender| {
                let mut start = || {
                    going()?;
                    let found = starter.start(&[(0, &options)], by_yardstick, START_SECONDS)?;
                    let times = found.sides.first().ok_or_else(nothing)?;
                    let reading = match by_yardstick {
                        true => Reading::over_yardstick(&found.yardstick, times),
                        false => Reading::of(&vec![1.0; times.len()], times),
                    };
                    reading.ok_or_else(nothing)
                };
                let mut tick = |s: f64| drop(sender.send(("measuring".to_owned(), s / seconds)));
                rule.against_record(seconds, &before, &mut start, &mut tick)
            })??;
            ruled(&ruling)
        }
        _ => {
            Err(PyRuntimeError::new_err("`against` and `baseline` are both given, or neither; expected one of them")
                .into())
        }
    }
}
