//! Inputs that are larger than memory: piece after piece of their rows goes through the network, and what comes out is
//! appended to the output's file. The next piece is read while one is computed.

use super::{Args, compiled, output_paths, split};
use crate::load::Network;
use crate::{Outcome, out, stop};
use anyhow::{Context, Result, anyhow, bail};
use schwann::io::{self, NpyRows};
use schwann::memory::machine_bytes;
use schwann::nn::data::Chunks;
use schwann::nn::{GraphOptions, InitialState, Timespans};
use schwann::{Bindings, DType, Graph, Session, Tensor};
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// Where nobody says how many rows a piece has, it has so many bytes.
const USUAL_BYTES: usize = 8 << 20;

/// Whether an input is so large that it is better not read at once: over a quarter of the memory.
pub(super) fn is_large(args: &Args, network: &Network) -> bool {
    let room = machine_bytes().map_or(u64::MAX, |bytes| bytes as u64 / 4);
    let bytes = |text: &String| std::fs::metadata(split(text).1).map_or(0, |m| m.len());
    // Of a graph it is not known whether its rows depend on each other: there it must be asked for.
    let rows_are_apart = matches!(network, Network::Model(_));
    rows_are_apart && args.output.len() == 1 && args.input.iter().map(bytes).sum::<u64>() > room
}

pub(super) fn run(args: &Args, network: &Network) -> Result<Outcome> {
    for (given, option) in [
        (args.inputs.is_some(), "--inputs"),
        (args.timespans.is_some(), "--timespans"),
        (args.state.is_some(), "--state"),
        (args.state_out.is_some(), "--state-out"),
        (args.check, "--check"),
        (args.repeat > 1, "--repeat"),
    ] {
        if given {
            bail!("{option} does not go with --chunk, which runs piece after piece of the input");
        }
    }
    let graph = graph(args, network)?;
    let paths = output_paths(args, &graph)?;
    let [(output, path)] = &paths.iter().collect::<Vec<_>>()[..] else {
        bail!("--chunk wants one --output, which it writes piece by piece; {} are given", paths.len());
    };
    let arrays = arrays(args, &graph)?;
    let count = arrays[0].1.shape()[0];
    let row_bytes: usize = arrays.iter().map(|(_, a)| a.row_bytes()).sum();
    let rows = args.chunk.unwrap_or_else(|| (USUAL_BYTES / row_bytes.max(1)).max(1)).min(count.max(1));
    let (shape, dtype) = result(&graph, &arrays, output, count)?;
    let mut sizes = Bindings::new();
    bind(&graph, &arrays, rows, &mut sizes)?;
    let (program, record) = compiled(args, network, &graph, &sizes, args.threads)?;
    let mut session = program.session();
    let mut chunks = Chunks::new(arrays, rows)?;
    let header = io::npy_header(dtype, &shape).with_context(|| format!("output `{output}`"))?;
    stop::listen();
    stop::keep();
    let bar = out::progress(count as u64);
    bar.set_message("rows");
    let mut failed = None;
    let written = io::write_file(out::place(path), |to| {
        to.write_all(&header)?;
        loop {
            match step(&mut chunks, &mut session, output) {
                Ok(Some((rows, made))) => {
                    to.write_all(made.bytes())?;
                    bar.inc(rows as u64);
                }
                Ok(None) => return Ok(()),
                Err(e) => {
                    failed = Some(e);
                    return Err(std::io::Error::other("a piece failed"));
                }
            }
        }
    });
    bar.finish_and_clear();
    if let Some(e) = failed {
        if stop::asked() {
            out::note("stopped; no output was written");
            return Ok(Outcome::Stopped);
        }
        return Err(e);
    }
    out::written(path, written).with_context(|| format!("cannot write output `{output}`"))?;
    let pieces = count.div_ceil(rows);
    let mut talk = out::talk([path.as_path()]);
    if args.json {
        let all = json!({
            "backend": program.backend(), "threads": program.threads(), "rows": count, "chunk": rows, "chunks": pieces,
            "outputs": [{ "name": output, "dtype": dtype, "shape": shape, "file": path }],
            "tuned": record.as_ref().map(schwann::prof::tune::Record::in_use),
        });
        writeln!(talk, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        let name = out::paint(out::NAME, out::printable(output));
        let file = out::printable(&path.display().to_string());
        let piece = if pieces == 1 { "1 piece".into() } else { format!("{pieces} pieces") };
        writeln!(talk, "{name} {dtype}{shape:?} → {file}, in {piece} of up to {rows} rows")?;
    }
    talk.flush()?;
    Ok(Outcome::Done)
}

/// Runs the next piece; how many rows it has, and what comes of them.
fn step<'s>(chunks: &mut Chunks, session: &'s mut Session, output: &str) -> Result<Option<(usize, &'s Tensor)>> {
    stop::check()?;
    let Some(chunk) = chunks.next_chunk()? else { return Ok(None) };
    let given: Vec<(&str, &Tensor)> = chunk.arrays.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let at = || format!("rows {} to {}", chunk.first, chunk.first + chunk.rows());
    session.run(&given).with_context(at)?;
    Ok(Some((chunk.rows(), session.output(output)?)))
}

/// The network as a graph whose rows have nothing to do with each other.
fn graph(args: &Args, network: &Network) -> Result<Graph> {
    match network {
        Network::Graph(_) if args.dt.is_some() => bail!("--dt is for models; {} holds a graph", args.file.display()),
        Network::Graph(graph) if !graph.states().is_empty() => {
            bail!("--chunk is for networks without states: what one piece leaves behind would go on in other rows")
        }
        Network::Graph(graph) => Ok((**graph).clone()),
        Network::Model(model) => {
            let timespans = Timespans::Constant(args.dt.unwrap_or(1.0));
            Ok(model.graph(&GraphOptions::default().timespans(timespans).state(InitialState::Zero))?)
        }
    }
}

/// The inputs' files by the inputs' names.
fn arrays(args: &Args, graph: &Graph) -> Result<Vec<(String, NpyRows)>> {
    let wanted: Vec<&str> = graph.inputs().map(|(name, _)| name).collect();
    let mut arrays: Vec<(String, NpyRows)> = vec![];
    for text in &args.input {
        let (name, path) = split(text);
        let name = match (name, &wanted[..]) {
            (Some(name), _) => name.to_owned(),
            (None, [only]) => (*only).to_owned(),
            (None, _) => {
                bail!("--input {text}: say which input this is, as NAME={text}; there is {}", wanted.join(", "))
            }
        };
        let Some((_, value)) = graph.inputs().find(|(n, _)| *n == name) else {
            bail!("{}: the network has no input `{name}`; it has {}", path.display(), wanted.join(", "));
        };
        let rows = open(path)?;
        let dtype = graph.ty(value).dtype;
        if rows.dtype() != dtype {
            bail!("input `{name}` is {} in {}; with --chunk it must be {dtype}", rows.dtype(), path.display());
        }
        if arrays.iter().any(|(n, _)| *n == name) {
            bail!("input `{name}` is given twice");
        }
        arrays.push((name, rows));
    }
    if let Some(missing) = wanted.iter().find(|name| !arrays.iter().any(|(n, _)| n == *name)) {
        bail!("no data for input `{missing}`: give it with --input {missing}=FILE.npy");
    }
    Ok(arrays)
}

fn open(path: &Path) -> Result<NpyRows> {
    NpyRows::open(path).with_context(|| format!("{} cannot be read piece by piece", path.display()))
}

/// Sizes where each input has so many rows.
fn bind(graph: &Graph, arrays: &[(String, NpyRows)], rows: usize, sizes: &mut Bindings) -> Result<()> {
    let shapes: Vec<(&str, Vec<usize>)> =
        arrays.iter().map(|(n, a)| (n.as_str(), [&[rows], &a.shape()[1..]].concat())).collect();
    graph.bind(|name| shapes.iter().find(|(n, _)| *n == name).map(|(_, s)| &s[..]), sizes)?;
    Ok(())
}

/// Shape and type of the whole output; an error where its rows are not those of the inputs.
fn result(graph: &Graph, arrays: &[(String, NpyRows)], output: &str, count: usize) -> Result<(Vec<usize>, DType)> {
    let found = graph.outputs().iter().find(|o| o.name == output).with_context(|| format!("no output `{output}`"))?;
    let ty = graph.ty(found.value);
    let shape = |rows: usize| -> Result<Vec<usize>> {
        let mut sizes = Bindings::new();
        bind(graph, arrays, rows, &mut sizes)?;
        Ok(ty.shape.eval(&sizes)?)
    };
    let wrong = || anyhow!("--chunk is for outputs with a row for each row of the inputs; `{output}` is {ty}");
    let (one, two) = (shape(1)?, shape(2)?);
    let by_rows = one.first() == Some(&1) && two.first() == Some(&2) && one[1..] == two[1..];
    if !by_rows {
        return Err(wrong());
    }
    Ok(([&[count], &one[1..]].concat(), ty.dtype))
}
