//! `schwann run`: a network on inputs from files, or row by row from stdin.

mod chunks;
mod rows;
mod stream;

use crate::load::Network;
use crate::tuned::{Shared, Tuned};
use crate::{Outcome, load, out, tuned};
use anyhow::{Context, Result, anyhow, bail};
use schwann::backend::reference::{self, HostValue, Precision};
use schwann::cases::{Tolerance, compare};
use schwann::io::Limits;
use schwann::memory::machine_bytes;
use schwann::nn::{GraphOptions, Guard, Model, NotFinite, Timespans, guard, timespans_for};
use schwann::prof::measure::Samples;
use schwann::prof::tune::Record;
use schwann::{Bindings, CompileOptions, DType, Graph, Op, Program, Session, Tensor, io, plan};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann run net.safetensors --input x.npy               sum up each output
  schwann run net.safetensors --input x.npy --output y.npy
  schwann run net.safetensors --input a=a.npy --input b=b.npy --output y.npy
  schwann run net.safetensors --inputs all.npz --json
  schwann run net.safetensors --input x.npy --repeat 100  how long a run takes
  schwann run net.safetensors --input x.npy --check       are the results right?
  schwann run rnn.safetensors --input x.npy --state s.npz --state-out s.npz
  schwann run circuit.safetensors --input x.npy --timespans t.npy --output y.npy
  schwann run net.safetensors --input large.npy --output y.npy --chunk 4096

Row by row, each answer as soon as its row is there:
  schwann run circuit.safetensors --stream < rows.csv
  schwann run circuit.safetensors --stream --dt-column dt < rows.csv
  sensor | schwann run circuit.safetensors --stream --format jsonl
  sensor | schwann run circuit.safetensors --stream --state-out s.npz
  sensor | schwann run circuit.safetensors --stream --on-bad-row hold

Exit codes: 0 done, 1 --check found a difference, 2 wrong usage or bad input.")]
pub(crate) struct Args {
    /// The network: .safetensors with a graph or a model inside.
    file: PathBuf,
    /// An input's file; NAME=FILE where the network has several inputs.
    #[arg(long, value_name = "[NAME=]X.npy")]
    input: Vec<String>,
    /// Inputs by name from one .npz.
    #[arg(long, value_name = "ALL.npz")]
    inputs: Option<PathBuf>,
    /// The time between steps, for models: an array [batch, steps].
    #[arg(long, value_name = "T.npy")]
    timespans: Option<PathBuf>,
    /// The time between steps where it is always the same, for models [default: 1].
    #[arg(long, value_name = "T", allow_negative_numbers = true, conflicts_with_all = ["timespans", "dt_column"])]
    dt: Option<f32>,
    /// Where to write an output (`-` is stdout); NAME=FILE where the network has several outputs.
    #[arg(long, value_name = "[NAME=]Y.npy")]
    output: Vec<String>,
    /// Threads; 0: one per core.
    #[arg(long, value_name = "N", default_value = "0", value_parser = load::threads)]
    threads: usize,
    #[command(flatten)]
    on: load::On,
    /// States to start from, by the names of the inputs that hold them.
    #[arg(long, value_name = "S.npz", visible_alias = "state-in")]
    state: Option<PathBuf>,
    /// Where to write the states after the last run; `-` is stdout.
    #[arg(long, value_name = "S.npz")]
    state_out: Option<PathBuf>,
    /// Run so many times and say how long one took; states go on from run to run.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Compare the first run with the reference backend; exit code 1 where they differ.
    #[arg(long)]
    check: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Read rows from stdin, take one step for each, and write what comes of it to stdout at once.
    #[arg(long, conflicts_with_all = ["input", "inputs", "timespans", "output", "repeat", "check", "json"])]
    stream: bool,
    /// Let the stream be watched under this name: `schwann monitor --attach NAME`.
    #[arg(long, value_name = "NAME", requires = "stream")]
    watch: Option<String>,
    /// How rows are written; by default, guessed from the first row.
    #[arg(long, value_name = "FORM", requires = "stream")]
    format: Option<rows::Format>,
    /// The column of a CSV row that is the time since the last: its heading, or its number from 1.
    #[arg(long, value_name = "COLUMN", requires = "stream")]
    dt_column: Option<String>,
    /// What to do about a row that cannot be read, has the wrong number of columns, or has a negative time.
    #[arg(long, value_name = "WHAT", requires = "stream", default_value = "stop")]
    on_bad_row: stream::BadRow,
    /// Whether rows may have NaN and infinities, which may stay in the state for good.
    #[arg(long, value_name = "WHAT", requires = "stream", default_value = "refuse")]
    nan: Nan,
    /// Accept a --state file of another model.
    #[arg(long, requires = "state")]
    any_state: bool,
    /// Take so many rows of the inputs at a time, and write the output as it comes: for inputs larger than memory. (Chosen by
    /// itself for a model whose input is over a quarter of the memory.)
    #[arg(long, value_name = "ROWS", conflicts_with = "stream", value_parser = load::size)]
    chunk: Option<usize>,
    #[command(flatten)]
    tuned: Tuned,
    #[command(flatten)]
    shared: Shared,
}

/// What becomes of rows that are not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Nan {
    /// Such a row is a bad row.
    #[default]
    Refuse,
    /// They go to the network as they are; in JSON, `null` is NaN.
    Pass,
}

impl From<Nan> for NotFinite {
    fn from(nan: Nan) -> NotFinite {
        match nan {
            Nan::Refuse => NotFinite::Refuse,
            Nan::Pass => NotFinite::Pass,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    refuse_overwriting(args)?;
    if args.stream {
        return stream::run(args);
    }
    let network = load::network(&args.file)?;
    if args.chunk.is_some() || chunks::is_large(args, &network) {
        return chunks::run(args, &network);
    }
    let (graph, inputs) = match &network {
        Network::Graph(_) if args.dt.is_some() => {
            bail!("--dt is for models; {} holds a graph", args.file.display())
        }
        Network::Graph(graph) => {
            let inputs = read_inputs(given(args, |name, shape| fits_graph(graph, name, shape))?, graph)?;
            ((**graph).clone(), inputs)
        }
        Network::Model(model) => model_and_inputs(args, model)?,
    };
    let outputs = output_paths(args, &graph)?;
    let mut sizes = Bindings::new();
    // What does not fit is said by the run itself, with more words.
    let _ = graph.bind(|name| inputs.get(name).map(Tensor::shape), &mut sizes);
    let (program, record) = compiled(args, &network, &graph, &sizes, args.threads)?;
    let mut session = program.session();
    let mut initial = BTreeMap::new();
    if let Some(path) = &args.state {
        let mut sizes = Bindings::new();
        graph.bind(|name| inputs.get(name).map(Tensor::shape), &mut sizes)?;
        for (name, value) in read_state(path, args.any_state, &graph, &sizes)? {
            session.set_state(&name, value.clone()).with_context(|| format!("in {}", path.display()))?;
            initial.insert(name, value);
        }
    }
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    session.run(&given)?;
    let agreement = if args.check { Some(check(&graph, &inputs, initial, &session)?) } else { None };
    let samples =
        if args.repeat > 1 { Some(repeat(args.repeat - 1, || session.run(&given).map(|_| ()))?) } else { None };

    let mut results = vec![];
    for output in graph.outputs() {
        let value = session.output(&output.name)?;
        if let Some(path) = outputs.get(&output.name) {
            out::written(path, io::write_npy(out::place(path), value))
                .with_context(|| format!("cannot write output `{}`", output.name))?;
        }
        results.push(Summary::of(&output.name, value, outputs.get(&output.name)));
    }
    if let Some(path) = &args.state_out {
        let states = states_of(&graph, &session)?;
        let states = states.iter().map(|(name, value)| (name.as_str(), value));
        out::written(path, io::write_npz(out::place(path), states))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    report(args, (&program, record.as_ref()), &results, samples.as_ref(), agreement.as_ref())?;
    let differs = agreement.is_some_and(|a| a.is_err());
    Ok(if differs { Outcome::Differs } else { Outcome::Done })
}

/// The network compiled, as it was tuned for these sizes where it was.
fn compiled(
    args: &Args,
    network: &Network,
    graph: &Graph,
    sizes: &Bindings,
    threads: usize,
) -> Result<(Arc<Program>, Option<Record>)> {
    let choice = args.on.choice()?;
    // With a time span for each step it is another network than the one that was tuned.
    let same = matches!(network, Network::Graph(_)) || graph.inputs().all(|(name, _)| name != "timespans");
    let wanted = if threads == args.threads { &[threads][..] } else { &[args.threads, threads][..] };
    let found = match same {
        true => args.tuned.find(&args.shared, &tuned::subject(network), sizes, (&choice, wanted)),
        false => None,
    };
    let options = CompileOptions::default().budget(load::budget()).backend(choice).threads(threads);
    let program = match &found {
        None => Program::compile(graph, &options),
        Some(record) => {
            let options = record.config().compile(options).map_err(|e| anyhow!("a tuned record: {e}"))?;
            Program::compile(&*record.config().graph(graph)?, &options)
        }
    };
    Ok((program.with_context(|| format!("cannot compile {}", args.file.display()))?, found))
}

/// Refuses to write over what is read. States may go on in the file that they came from: it was read by then.
fn refuse_overwriting(args: &Args) -> Result<()> {
    let outputs: Vec<&Path> =
        args.output.iter().map(|o| Path::new(o.split_once('=').map_or(&**o, |(_, path)| path))).collect();
    let inputs: Vec<&Path> = args.input.iter().map(|text| split(text).1).collect();
    let read = || {
        let other = [&args.inputs, &args.timespans].into_iter().flatten().map(PathBuf::as_path);
        inputs.iter().copied().chain(other).chain([args.file.as_path()])
    };
    out::apart(outputs.iter().copied().chain(args.state_out.as_deref()), read())?;
    out::apart(outputs, args.state.as_deref())
}

/// A session's states by name, to write, and which network they are of.
fn states_of(graph: &Graph, session: &Session) -> Result<BTreeMap<String, Tensor>> {
    let states = graph.states().iter().filter_map(|s| Some((s.input.clone(), session.state(&s.input)?.clone())));
    let mut states: BTreeMap<_, _> = states.collect();
    if states.is_empty() {
        bail!("--state-out: the network has no states to write");
    }
    states.insert(guard::STATE_KEY.into(), guard::state_mark(session.program().fingerprint())?);
    Ok(states)
}

/// The states in a file: all of this network's, of their sizes, and no others.
fn read_state(path: &Path, any: bool, graph: &Graph, sizes: &Bindings) -> Result<BTreeMap<String, Tensor>> {
    let read = || {
        let elements = |name: &str| {
            let (_, value) = graph.inputs().find(|(n, _)| *n == name)?;
            schwann::tensor::count(&graph.ty(value).shape.eval(sizes).ok()?)
        };
        let mut states = io::read_npz_if(path, &limits(), |name, shape| match elements(name) {
            Some(count) if schwann::tensor::count(shape).is_none_or(|n| n > count) => {
                Err(format!("state `{}` has shape {shape:?}; expected at most {count} numbers", out::printable(name)))
            }
            None if name != guard::STATE_KEY => Err(format!("the network has no state `{}`", out::printable(name))),
            _ => Ok(()),
        })?;
        if any {
            states.remove(guard::STATE_KEY);
        }
        guard::take_state_mark(&mut states, graph.fingerprint()).context("--any-state takes it all the same")?;
        let known: Vec<&str> = graph.states().iter().map(|s| s.input.as_str()).collect();
        let list = || known.iter().map(|n| format!("`{}`", out::printable(n))).collect::<Vec<_>>().join(", ");
        if let Some(name) = states.keys().find(|name| !known.contains(&name.as_str())) {
            bail!("it has a state `{}`; the network has {}", out::printable(name), list());
        }
        if let Some(name) = known.iter().find(|name| !states.contains_key(**name)) {
            bail!("it has no state `{}`; the network has {}", out::printable(name), list());
        }
        let fitted = |(name, value)| Ok((String::clone(&name), fitted_state(graph, &name, value, sizes)?));
        states.into_iter().map(fitted).collect()
    };
    read().with_context(|| format!("--state {}", path.display()))
}

/// A state from a file as the graph takes it; a batch of one sample may be without its axis.
fn fitted_state(graph: &Graph, name: &str, value: Tensor, sizes: &Bindings) -> Result<Tensor> {
    let Some((_, input)) = graph.inputs().find(|(n, _)| *n == name) else { return Ok(value) };
    let ty = graph.ty(input);
    let value = convert(value, ty.dtype, name)?;
    let shape = ty.shape.eval(sizes)?;
    let from_first = |shape: &[usize]| shape.iter().copied().skip_while(|&n| n == 1).collect::<Vec<_>>();
    if value.dtype() != ty.dtype || from_first(value.shape()) != from_first(&shape) {
        bail!("state `{name}` is {value}; expected {}{shape:?}", ty.dtype);
    }
    Ok(value.reshaped(&shape)?)
}

/// A model as the graph that its inputs need: with timespans where they are given, without a batch where `x` has none.
fn model_and_inputs(args: &Args, model: &Model) -> Result<(Graph, BTreeMap<String, Tensor>)> {
    let plain = model.graph(&GraphOptions::default())?;
    let given = given(args, |name, shape| fits_model(&plain, name, shape))?;
    let timespans = match given.iter().any(|g| g.name.as_deref() == Some("timespans")) {
        true => Timespans::PerStep,
        false => Timespans::Constant(args.dt.unwrap_or(1.0)),
    };
    let options = GraphOptions::default().timespans(timespans);
    let mut graph = model.graph(&options)?;
    let mut inputs = read_inputs(given, &graph)?;
    let rank = graph.inputs().find(|(name, _)| *name == "x").map(|(_, value)| graph.ty(value).shape.rank());
    let Some(x) = inputs.get("x").cloned() else { return Ok((graph, inputs)) };
    if Some(x.shape().len() + 1) == rank {
        graph = model.graph(&options.batched(false))?;
    }
    // A last axis of size 1 is as good as none; of symbols, every axis counts.
    if let Some(timespans) = inputs.get_mut("timespans")
        && x.dtype() == DType::F32
    {
        *timespans = timespans_for(&x, timespans)?;
        Guard::new(&graph, NotFinite::Pass).elapsed(timespans.values::<f32>()?).context("timespans")?;
    }
    Ok((graph, inputs))
}

fn repeat(times: u32, mut f: impl FnMut() -> schwann::Result<()>) -> Result<Samples> {
    let bar = out::progress(times.into());
    bar.set_message("runs");
    let mut taken = Vec::new();
    for _ in 0..times {
        let start = std::time::Instant::now();
        f()?;
        taken.push(start.elapsed().as_secs_f64());
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Samples::of(taken, 1))
}

/// The largest difference from the reference, or what is wrong.
fn check(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    states: BTreeMap<String, Tensor>,
    session: &Session,
) -> Result<std::result::Result<f64, String>> {
    let mut all = inputs.clone();
    all.extend(states.into_iter().filter(|(name, _)| !inputs.contains_key(name)));
    // A state that nobody gave starts at 0.
    let mut sizes = Bindings::new();
    graph.bind(|name| all.get(name).map(Tensor::shape), &mut sizes)?;
    for state in graph.states() {
        let Some((_, value)) = graph.inputs().find(|(name, _)| *name == state.input) else { continue };
        let ty = graph.ty(value);
        if !all.contains_key(&state.input) {
            all.insert(state.input.clone(), load::zeros(ty.dtype, &ty.shape.eval(&sizes)?)?);
        }
    }
    let expected = reference::run(graph, &all, Precision::Storage)?;
    // A fused program rounds once where the reference rounds after each operation. What that may change is what the reference
    // itself gives with rounding and without.
    let narrow = match narrow_float(graph) {
        Some(dtype) => {
            let hosted = all.iter().map(|(name, t)| (name.clone(), HostValue::from_tensor(t))).collect();
            Some((dtype, reference::run_f64(graph, &hosted)?))
        }
        None => None,
    };
    let mut largest = 0.0f64;
    for (i, (output, expected)) in graph.outputs().iter().zip(&expected).enumerate() {
        let got = session.output(&output.name)?;
        let mut tolerance = Tolerance::NETWORK.stored_as(expected.dtype());
        if let Some((dtype, exact)) = narrow.as_ref().and_then(|(dtype, all)| Some((*dtype, all.get(i)?)))
            && expected.dtype().is_float()
        {
            tolerance = tolerance.stored_as(dtype);
            let apart = expected.to_f64().into_iter().zip(&exact.data).map(|(a, b)| (a - b).abs());
            tolerance.abs += 2.0 * apart.filter(|d| d.is_finite()).fold(0.0, f64::max);
        }
        if let Err(problem) = compare(expected, got, tolerance) {
            return Ok(Err(format!("output `{}`: {problem}", output.name)));
        }
        largest = largest.max(largest_error(expected, got));
    }
    Ok(Ok(largest))
}

/// The type of fewest digits that a number has anywhere in the graph, loops included, if it has fewer than `f32`.
fn narrow_float(graph: &Graph) -> Option<DType> {
    let nodes = graph.nodes().iter().filter_map(|node| match &node.op {
        Op::Scan(scan) => narrow_float(&scan.body),
        _ => node.outs.iter().map(|ty| ty.dtype).find(|d| matches!(d, DType::F16 | DType::Bf16)),
    });
    let all: Vec<DType> = nodes.collect();
    all.iter().find(|d| **d == DType::Bf16).or(all.first()).copied()
}

/// The largest absolute difference of finite elements.
pub(crate) fn largest_error(a: &Tensor, b: &Tensor) -> f64 {
    let differences = a.to_f64().into_iter().zip(b.to_f64()).map(|(a, b)| (a - b).abs());
    differences.filter(|d| d.is_finite()).fold(0.0, f64::max)
}

/// One output for people.
struct Summary {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    finite: Option<(f64, f64, f64)>,
    not_finite: usize,
    first: Vec<f64>,
    written: Option<PathBuf>,
}

impl Summary {
    fn of(name: &str, value: &Tensor, written: Option<&PathBuf>) -> Summary {
        let all = value.to_f64();
        let finite: Vec<f64> = all.iter().copied().filter(|v| v.is_finite()).collect();
        let fold = |f: fn(f64, f64) -> f64| finite.iter().copied().reduce(f);
        let stats = fold(f64::min).zip(fold(f64::max));
        let mean = finite.iter().sum::<f64>() / finite.len().max(1) as f64;
        Summary {
            name: name.into(),
            dtype: value.dtype(),
            shape: value.shape().to_vec(),
            finite: stats.map(|(min, max)| (min, mean, max)),
            not_finite: all.len() - finite.len(),
            first: all.into_iter().take(6).collect(),
            written: written.cloned(),
        }
    }
}

fn report(
    args: &Args,
    (program, tuned): (&Program, Option<&Record>),
    results: &[Summary],
    samples: Option<&Samples>,
    agreement: Option<&std::result::Result<f64, String>>,
) -> Result<()> {
    let (backend, threads) = (program.backend(), program.threads());
    // What goes to stdout as an array is not to have words after it.
    let mut out = out::talk(results.iter().filter_map(|r| r.written.as_deref()).chain(args.state_out.as_deref()));
    if args.json {
        let outputs: Vec<_> = results
            .iter()
            .map(|r| {
                json!({
                    "name": r.name, "dtype": r.dtype, "shape": r.shape,
                    "min": r.finite.map(|f| f.0), "mean": r.finite.map(|f| f.1), "max": r.finite.map(|f| f.2),
                    "not_finite": r.not_finite, "first": r.first, "file": r.written,
                })
            })
            .collect();
        let timing = samples.map(|s| json!({ "run": s, "provenance": "measured" }));
        let check = agreement.map(|a| match a {
            Ok(error) => json!({ "agrees": true, "largest_error": error, "provenance": "measured" }),
            Err(problem) => json!({ "agrees": false, "problem": problem, "provenance": "measured" }),
        });
        let all = json!({
            "backend": backend, "threads": threads, "outputs": outputs, "timing": timing, "check": check,
            "tuned": tuned.map(Record::in_use),
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(out.flush()?);
    }
    for r in results {
        let name = out::paint(out::NAME, out::printable(&r.name));
        match &r.written {
            Some(path) => {
                writeln!(out, "{name} {}{:?} → {}", r.dtype, r.shape, out::printable(&path.display().to_string()))?
            }
            None => {
                let stats = match r.finite {
                    Some((min, mean, max)) => format!("min {min:.6}, mean {mean:.6}, max {max:.6}"),
                    None => "no finite element".into(),
                };
                let odd = if r.not_finite > 0 { format!(", {} not finite", r.not_finite) } else { String::new() };
                writeln!(out, "{name} {}{:?}: {stats}{odd}", r.dtype, r.shape)?;
                let first: Vec<String> = r.first.iter().map(|v| format!("{v:.6}")).collect();
                let count = r.shape.iter().product::<usize>();
                let more = if count > r.first.len() { " …" } else { "" };
                writeln!(out, "  {}{more}", first.join("  "))?;
            }
        }
    }
    if let Some(s) = samples {
        writeln!(
            out,
            "{} runs after the first on {backend}, {}: min {}, median {} (measured)",
            s.samples,
            out::threads(threads),
            plan::seconds(s.min_s),
            plan::seconds(s.median_s)
        )?;
        if let Some(record) = tuned {
            writeln!(out, "{}", out::paint(out::DIM, out::printable(&record.in_use().to_string())))?;
        }
    }
    match agreement {
        Some(Ok(error)) => {
            writeln!(
                out,
                "{} with the reference, largest error {error:.1e} (measured)",
                out::paint(out::GOOD, "agrees")
            )?;
        }
        Some(Err(problem)) => writeln!(out, "{} from the reference: {problem}", out::paint(out::BAD, "differs"))?,
        None => {}
    }
    Ok(out.flush()?)
}

/// `NAME=FILE`, or `FILE` alone. A name may not be taken from a path that has a `=` in it, so a file of the whole text
/// comes first.
fn split(text: &str) -> (Option<&str>, &Path) {
    match text.split_once('=') {
        Some((name, file)) if !Path::new(text).exists() => (Some(name), Path::new(file)),
        _ => (None, Path::new(text)),
    }
}

/// A tensor from a file for an input, by its name where one was given.
struct Given {
    name: Option<String>,
    data: Tensor,
    from: PathBuf,
    /// As it was written on the command line.
    text: String,
}

/// What arrays may take together: they are read beside the network that they are for.
fn limits() -> Limits {
    let usual = Limits::default();
    let room = machine_bytes().map_or(usual.total_bytes, |bytes| bytes as u64 / 2);
    Limits { total_bytes: usual.total_bytes.min(room), ..usual }
}

/// Whether an array may be a graph's input, by its name where it has one: asked before it is read.
fn fits_graph(graph: &Graph, name: Option<&str>, shape: &[usize]) -> Result<(), String> {
    let Some(name) = name else { return Ok(()) };
    let Some((_, value)) = graph.inputs().find(|(n, _)| *n == name) else {
        let one = |(n, v): (&str, _)| format!("{}: {}", out::printable(n), graph.ty(v));
        let names: Vec<String> = graph.inputs().map(one).collect();
        return Err(format!(
            "the network has no input `{}`; its inputs are {}",
            out::printable(name),
            names.join(", ")
        ));
    };
    let ty = graph.ty(value);
    let fits = |(dim, size): (&schwann::Dim, &usize)| dim.as_fixed().is_none_or(|fixed| fixed == *size);
    if ty.shape.rank() != shape.len() || !ty.shape.dims().iter().zip(shape).all(fits) {
        return Err(format!("shape {shape:?}; input `{}` is {ty}", out::printable(name)));
    }
    Ok(())
}

/// The same for a model, which takes samples without a batch too, and times.
fn fits_model(graph: &Graph, name: Option<&str>, shape: &[usize]) -> Result<(), String> {
    match name {
        Some("timespans") => Ok(()),
        None | Some("x") => {
            let ty = graph.inputs().find(|(n, _)| *n == "x").map(|(_, value)| graph.ty(value));
            let Some(ty) = ty.filter(|ty| ty.dtype == DType::F32) else { return Ok(()) };
            let features = ty.shape.dims().last().and_then(schwann::Dim::as_fixed);
            match features.is_none_or(|f| shape.last() == Some(&f)) && shape.len() <= ty.shape.rank() {
                true => Ok(()),
                false => Err(format!("shape {shape:?}; input `x` is {ty}, or without the batch")),
            }
        }
        Some(_) => fits_graph(graph, name, shape),
    }
}

/// Everything that the command line gives, if its shape is what the network takes.
fn given(args: &Args, mut fits: impl FnMut(Option<&str>, &[usize]) -> Result<(), String>) -> Result<Vec<Given>> {
    let mut all = vec![];
    if let Some(path) = &args.inputs {
        for (name, data) in io::read_npz_if(path, &limits(), |name, shape| fits(Some(name), shape))? {
            all.push(Given { text: name.clone(), name: Some(name), data, from: path.clone() });
        }
    }
    for text in &args.input {
        let (name, path) = split(text);
        let data = io::read_npy_if(path, |shape| fits(name, shape))?;
        all.push(Given { name: name.map(str::to_owned), data, from: path.to_owned(), text: text.clone() });
    }
    if let Some(path) = &args.timespans {
        let (name, text) = (Some("timespans".to_owned()), path.display().to_string());
        all.push(Given { name, data: io::read_npy(path)?, from: path.clone(), text });
    }
    Ok(all)
}

/// Inputs of a network from files, each `FILE.npy` or `NAME=FILE.npy`.
pub(crate) fn from_files(texts: &[String], graph: &Graph) -> Result<BTreeMap<String, Tensor>> {
    let read = |text: &String| {
        let (name, path) = split(text);
        let data = io::read_npy(path)?;
        Ok(Given { name: name.map(str::to_owned), data, from: path.to_owned(), text: text.clone() })
    };
    read_inputs(texts.iter().map(read).collect::<Result<_>>()?, graph)
}

fn read_inputs(given: Vec<Given>, graph: &Graph) -> Result<BTreeMap<String, Tensor>> {
    let types: BTreeMap<String, schwann::Type> =
        graph.inputs().map(|(name, value)| (name.to_owned(), graph.ty(value).clone())).collect();
    let is_state = |name: &str| graph.states().iter().any(|s| s.input == name);
    let wanted: Vec<&str> = graph.inputs().map(|(n, _)| n).filter(|n| !is_state(n)).collect();
    let list = || {
        let one = |(n, v): (&str, _)| {
            format!("\n    {n}: {}{}", graph.ty(v), if is_state(n) { " (a state; optional)" } else { "" })
        };
        graph.inputs().map(one).collect::<String>()
    };
    // Data without a name is for the one input that is not named elsewhere.
    let named: Vec<String> = given.iter().filter_map(|g| g.name.clone()).collect();
    let open: Vec<&str> = wanted.iter().copied().filter(|n| !named.iter().any(|m| m == n)).collect();
    let mut found: BTreeMap<String, Tensor> = BTreeMap::new();
    for Given { name, data, from, text } in given {
        let name = match (name, &open[..], &wanted[..]) {
            (Some(name), ..) => name,
            (None, [only], _) | (None, [], [only]) => (*only).to_owned(),
            (None, ..) => bail!("--input {text}: say which input this is, as NAME={text}; the inputs are:{}", list()),
        };
        let Some(ty) = types.get(&name) else {
            bail!("{}: the network has no input `{name}`; its inputs are:{}", from.display(), list());
        };
        let data = convert(data, ty.dtype, &name)?;
        if found.insert(name.clone(), data).is_some() {
            bail!("input `{name}` is given twice");
        }
    }
    let missing: Vec<&str> = wanted.into_iter().filter(|n| !found.contains_key(*n)).collect();
    if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(|n| format!("`{n}`")).collect();
        bail!("no data for input {}: give it with --input NAME=FILE.npy; the inputs are:{}", names.join(", "), list());
    }
    Ok(found)
}

/// Floats of another width are rounded to what the network wants, with a word about it; other types must fit.
fn convert(data: Tensor, wanted: DType, name: &str) -> Result<Tensor> {
    if data.dtype() == wanted || !(data.dtype().is_float() && wanted.is_float()) {
        return Ok(data);
    }
    out::note(&format!("input `{name}`: {} converted to {wanted}", data.dtype()));
    Ok(Tensor::from_f64(wanted, data.shape(), &data.to_f64())?)
}

fn output_paths(args: &Args, graph: &Graph) -> Result<BTreeMap<String, PathBuf>> {
    let list =
        || graph.outputs().iter().map(|o| format!("\n    {}: {}", o.name, graph.ty(o.value))).collect::<String>();
    // What becomes a state is not what somebody means who names no output.
    let plain: Vec<&str> = graph
        .outputs()
        .iter()
        .map(|o| o.name.as_str())
        .filter(|name| !graph.states().iter().any(|s| s.output == *name))
        .collect();
    let mut paths = BTreeMap::new();
    for text in &args.output {
        let known = |name: &str| graph.outputs().iter().any(|o| o.name == name);
        let (name, path) = match text.split_once('=') {
            Some((name, path)) if known(name) => (name, path),
            Some((name, _)) => bail!("--output {text}: the network has no output `{name}`; its outputs are:{}", list()),
            None => match &plain[..] {
                [only] => (*only, text.as_str()),
                _ => bail!("--output {text}: say which output, as NAME={text}; the outputs are:{}", list()),
            },
        };
        if paths.insert(name.to_owned(), PathBuf::from(path)).is_some() {
            return Err(anyhow!("output `{name}` is given two files"));
        }
    }
    Ok(paths)
}
