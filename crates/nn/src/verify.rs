//! Comparing with files of results: does a model give here what it gave where it was made?
//!
//! A file holds a model in the form that [`import_ncps`](crate::import_ncps) reads, with `model.` before the names of its
//! state dict, and beside it a sample `x` (with `timespans`, `h0` and `c0` where they were given), the results `y`, `hn`
//! (and `cn`; where several layers have states, `2.hn` and so on), and optionally `target`, `loss` = mean((y − target)²) and `grad.<parameter>`. A file of a wiring alone has
//! `adjacency` and `sensory_adjacency`, which must be met exactly.
//!
//! Results in `f32` are themselves rounded, and for large inputs may be far from exact. Where a result is beyond the
//! tolerance, the same graph is run in `f64`, and the report says how far either is from that: for a person to judge, since
//! a graph that is wrong would be wrong in `f64` too.

use crate::file::{check_sizes, config, import, open};
use crate::layer::Layer;
use crate::model::Model;
use crate::scope::{GraphOptions, Timespans, timespans_for};
use crate::wiring::WiringConfig;
use crate::{Error, Result};
use schwann_core::backend::reference::{HostValue, run_f64};
use schwann_core::backend::{Backend, Choice};
use schwann_core::cases::Tolerance;
use schwann_core::io::safetensors::Reader;
use schwann_core::pass::PassOptions;
use schwann_core::{CompileOptions, DType, Graph, Program, Tensor};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to run a file's model on.
pub struct Engine {
    /// What it is called in the report.
    pub name: String,
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// What passes may do.
    pub passes: PassOptions,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.name)
    }
}

impl Engine {
    /// A backend with these passes, under the backend's name.
    pub fn new(backend: impl Backend + 'static, passes: PassOptions) -> Engine {
        Engine::of(Arc::new(backend), passes)
    }

    /// The same of a backend that others may use too, such as [`Choice::make`] gives.
    pub fn of(backend: Arc<dyn Backend>, passes: PassOptions) -> Engine {
        let how = match (passes.rewrite, passes.fuse) {
            (true, true) => "",
            (true, false) => ", unfused",
            (false, _) => ", as built",
        };
        Engine { name: backend.name() + how, backend, passes }
    }
}

/// How to compare.
#[derive(Debug)]
pub struct VerifyOptions {
    /// What to run on.
    pub engines: Vec<Engine>,
    /// Whether gradients are compared, where the file has them.
    pub gradients: bool,
    /// How far results may be off.
    pub tolerance: Tolerance,
    /// How far gradients may be off.
    pub gradient_tolerance: Tolerance,
}

impl VerifyOptions {
    /// On these engines: results within 10⁻⁵ + 10⁻⁵·|expected|, gradients within 10⁻⁴ + 10⁻⁴·|expected|.
    pub fn on(engines: Vec<Engine>) -> VerifyOptions {
        VerifyOptions {
            engines,
            gradients: true,
            tolerance: Tolerance { abs: 1e-5, rel: 1e-5 },
            gradient_tolerance: Tolerance { abs: 1e-4, rel: 1e-4 },
        }
    }

    /// On this machine's CPU, as models run there.
    pub fn on_this_cpu() -> Result<VerifyOptions> {
        Ok(VerifyOptions::on(vec![Engine::of(Choice::default().make(1)?, PassOptions::default())]))
    }
}

/// One tensor of one engine.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The engine's name.
    pub engine: String,
    /// The tensor: `y`, `hn`, `cn`, `loss`, `grad.<parameter>`, `adjacency` …
    pub tensor: String,
    /// How many elements it has.
    pub elements: usize,
    /// The largest absolute difference from the file's.
    pub largest_error: f64,
    /// That element: in the file, and here.
    pub worst: Option<(f64, f64)>,
    /// Whether every element is within the tolerance.
    pub within: bool,
    /// Where one is not: the largest absolute difference from the result in `f64`, of ours and of the file's.
    pub from_exact: Option<(f64, f64)>,
}

/// What came of comparing one file.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The file.
    pub path: PathBuf,
    /// What was run: a layer's class, `network` of several layers, or `wiring`.
    pub class: String,
    /// Tensors, by engine.
    pub rows: Vec<Row>,
}

impl Report {
    /// Whether everything is within the tolerance.
    pub fn passed(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.within)
    }
}

impl fmt::Display for Report {
    /// One line a tensor.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", self.path.display(), self.class)?;
        for row in &self.rows {
            write!(f, "  {:<20} {:<32} {:>7} elements, ", row.engine, row.tensor, row.elements)?;
            write!(f, "largest error {:.1e}  {}", row.largest_error, if row.within { "ok" } else { "OFF" })?;
            if let (Some((want, got)), false) = (row.worst, row.within) {
                write!(f, " (expected {want:.9e}, got {got:.9e})")?;
            }
            if let Some((ours, theirs)) = row.from_exact {
                write!(f, " (from f64: {ours:.1e} here, {theirs:.1e} in the file)")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Compares a file with what its model gives here.
pub fn verify_file(path: impl AsRef<Path>, options: &VerifyOptions) -> Result<Report> {
    let path = path.as_ref();
    let verified = || -> Result<Report> {
        let reader = open(path)?;
        if config(&reader)?.get("class").is_none() {
            return Ok(Report { path: path.to_owned(), class: "wiring".into(), rows: wiring_rows(&reader)? });
        }
        let model = import(&reader)?;
        let class = match model.layers() {
            [layer] => layer.class().to_owned(),
            _ => "network".to_owned(),
        };
        let mut rows = vec![];
        let sample = Sample::read(&reader, &model)?;
        let graph = model.graph(&sample.options)?;
        rows.extend(sample.compare(&graph, &sample.inputs(&graph, &model)?, options, options.tolerance)?);
        if options.gradients && reader.entry("target").is_ok() {
            let graph = model.training_graph(&sample.options)?;
            let inputs = sample.inputs(&graph, &model)?;
            let found = sample.compare(&graph, &inputs, options, options.gradient_tolerance)?;
            rows.extend(found.into_iter().filter(|row| row.tensor.starts_with("grad.") || row.tensor == "loss"));
        }
        if !rows.iter().any(|row| row.tensor == "y") && !options.engines.is_empty() {
            return Err(Error::weight("y", "missing", "the model's output, to compare with"));
        }
        Ok(Report { path: path.to_owned(), class, rows })
    };
    verified().map_err(|e| e.in_file(path))
}

/// The matrices of a wiring, which must be met exactly.
fn wiring_rows(reader: &Reader) -> Result<Vec<Row>> {
    let json = config(reader)?;
    let inputs = json["input_size"].as_u64().and_then(|n| usize::try_from(n).ok());
    let inputs = inputs.ok_or_else(|| Error::argument("input_size", &json["input_size"], "a whole number"))?;
    let adjacency = reader.tensor_as("adjacency", DType::I32)?;
    let sensory = reader.tensor_as("sensory_adjacency", DType::I32)?;
    check_sizes(std::slice::from_ref(&json), reader)?;
    let mut wiring = WiringConfig::try_from(json["wiring"].clone())?.to_wiring()?;
    wiring.build(inputs)?;
    let row = |tensor: &str, want: &Tensor, got: &[i8], sources: usize| {
        let shape = [sources, wiring.units()];
        if want.shape() != shape {
            return Err(Error::weight(tensor, want, format!("i32{shape:?}")));
        }
        let got: Vec<f64> = got.iter().map(|&p| f64::from(p)).collect();
        Ok(compare("wiring", tensor, &want.to_f64(), &got, Tolerance::EXACT))
    };
    Ok(vec![
        row("adjacency", &adjacency, wiring.adjacency(), wiring.units())?,
        row("sensory_adjacency", &sensory, wiring.sensory_adjacency(), inputs)?,
    ])
}

/// A file's sample and results.
struct Sample {
    tensors: BTreeMap<String, Tensor>,
    options: GraphOptions,
}

impl Sample {
    fn read(reader: &Reader, model: &Model) -> Result<Sample> {
        // Symbols are whole numbers, and have no axis of features.
        let symbols = matches!(model.layers().first(), Some(Layer::Embedding(_)));
        let mut tensors = BTreeMap::new();
        for name in reader.entries().iter().map(|e| e.name.as_str()).filter(|n| !n.starts_with("model.")) {
            let dtype = if symbols && name == "x" { DType::I32 } else { DType::F32 };
            tensors.insert(name.to_owned(), reader.tensor_as(name, dtype)?);
        }
        let x = tensors.get("x").ok_or_else(|| Error::weight("x", "missing", "the model's input"))?;
        // Steps and samples that have no numbers cost a file nothing, and would cost a run as much as it claims.
        if x.is_empty() {
            return Err(Error::weight("x", x, "a sample that has numbers"));
        }
        let steps = usize::from(model.sequential().batch_first().is_some());
        let least = steps + usize::from(!symbols);
        let batched = x.shape().len() == least + 1;
        if !batched && x.shape().len() != least {
            let count = |n: usize| ["no axis", "one axis", "two axes", "three"][n];
            return Err(Error::weight("x", x, format!("{}, or {} with a batch", count(least), count(least + 1))));
        }
        let mut options = GraphOptions::default().batched(batched);
        if let Some(timespans) = tensors.get("timespans") {
            options.timespans = Timespans::PerStep;
            let timespans = timespans_for(x, timespans)?;
            tensors.insert("timespans".into(), timespans);
        }
        // A single number may have an axis of its own.
        if let Some(loss) = tensors.get_mut("loss") {
            *loss = loss.reshaped(&[])?;
        }
        if let Some(name) = tensors.keys().find(|n| n.strip_prefix("grad.").is_some_and(|of| model.weight(of).is_err()))
        {
            return Err(Error::weight(name, "the gradient of no parameter", "those of the model's parameters"));
        }
        Ok(Sample { tensors, options })
    }

    /// The inputs that a graph takes and the file has. Files are made without dropout: its masks are ones.
    fn inputs(&self, graph: &Graph, model: &Model) -> Result<BTreeMap<String, Tensor>> {
        let mut inputs = BTreeMap::new();
        let known: Vec<&str> = graph.inputs().map(|(name, _)| name).collect();
        for name in &known {
            if let Some(tensor) = self.tensors.get(*name) {
                inputs.insert((*name).to_owned(), tensor.clone());
            }
        }
        let time_first = model.sequential().batch_first() == Some(false);
        let (batch, steps) = match *self.tensors["x"].shape() {
            [steps, ..] if !self.options.batched => (1, steps),
            [steps, batch, ..] if time_first => (batch, steps),
            [batch, steps, ..] => (batch, steps),
            _ => (1, 1),
        };
        for (name, mut mask) in model.dropout_masks(batch, steps, 0)? {
            if known.contains(&name.as_str()) {
                mask.values_mut::<f32>()?.fill(1.0);
                inputs.insert(name, mask);
            }
        }
        Ok(inputs)
    }

    fn compare(
        &self,
        graph: &Graph,
        inputs: &BTreeMap<String, Tensor>,
        options: &VerifyOptions,
        tolerance: Tolerance,
    ) -> Result<Vec<Row>> {
        let arguments: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, t)| (name.as_str(), t)).collect();
        let mut rows = vec![];
        let mut exact: Option<Vec<HostValue>> = None;
        for engine in &options.engines {
            let compile = CompileOptions::default().passes(engine.passes.clone());
            let program = Program::compile_for(graph, engine.backend.as_ref(), &compile)?;
            let mut session = program.session();
            let results = session.run(&arguments)?;
            for (i, (output, got)) in graph.outputs().iter().zip(results).enumerate() {
                let Some(want) = self.tensors.get(&output.name) else { continue };
                if want.shape() != got.shape() {
                    return Err(Error::weight(&output.name, want, format!("{got}, which the model gives")));
                }
                let (want, got) = (want.to_f64(), got.to_f64());
                let mut row = compare(&engine.name, &output.name, &want, &got, tolerance);
                if !row.within {
                    if exact.is_none() {
                        let inputs = inputs.iter().map(|(n, t)| (n.clone(), HostValue::from_tensor(t))).collect();
                        exact = Some(run_f64(graph, &inputs)?);
                    }
                    let from = |values: &[f64]| {
                        let exact = exact.as_ref().map_or(&[][..], |all| &all[i].data);
                        exact.iter().zip(values).map(|(a, b)| distance(*a, *b)).fold(0.0, f64::max)
                    };
                    row.from_exact = Some((from(&got), from(&want)));
                }
                rows.push(row);
            }
        }
        Ok(rows)
    }
}

/// How far two numbers are apart. NaN must meet NaN, and an infinity the same one.
fn distance(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        0.0
    } else if (a - b).is_finite() {
        (a - b).abs()
    } else {
        f64::INFINITY
    }
}

/// Compares element by element.
fn compare(engine: &str, tensor: &str, want: &[f64], got: &[f64], tolerance: Tolerance) -> Row {
    let mut row = Row {
        engine: engine.to_owned(),
        tensor: tensor.to_owned(),
        elements: want.len(),
        largest_error: 0.0,
        worst: None,
        within: true,
        from_exact: None,
    };
    for (&want, &got) in want.iter().zip(got) {
        let error = distance(want, got);
        // Equal infinities are 0 apart, and NaN's tolerance would be NaN.
        row.within &= error == 0.0 || error <= tolerance.abs + tolerance.rel * want.abs();
        if row.worst.is_none() || error > row.largest_error {
            row.largest_error = error;
            row.worst = Some((want, got));
        }
    }
    row
}
