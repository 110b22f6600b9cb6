//! `schwann graph`: a network as text, DOT, JSON or a picture; as built, optimized, or as it will run.

use crate::tuned::{Shared, Tuned};
use crate::{Outcome, devices, load, out, svg, tuned};
use anyhow::{Context, Result, bail};
use schwann::memory::machine_bytes;
use schwann::pass::{self, PassOptions, PassRecord};
use schwann::plan::{self, Forecast, Plan};
use schwann::prof::device::{Calibration, forecast, fusion_gain};
use schwann::prof::tune::Record;
use schwann::{CompileOptions, Graph, Program, Tensor};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann graph net.safetensors                      the graph as text
  schwann graph net.safetensors --svg net.svg        a picture
  schwann graph net.safetensors --dot | dot -Tpng > net.png
  schwann graph net.safetensors --optimized          after the compiler's passes
  schwann graph net.safetensors --passes             what each pass did
  schwann graph net.safetensors --fusion --set B=32  what fusion saves
  schwann graph net.safetensors --plan --set B=32    what will run, at what cost
  schwann graph net.safetensors --plan --set B=32 --svg plan.svg
  schwann graph circuit.safetensors --plan --set B=1 --set T=16")]
pub(crate) struct Args {
    /// The network: .safetensors with a graph or a model inside, or a graph's .json.
    file: PathBuf,
    /// Print DOT, for graphviz.
    #[arg(long, group = "form")]
    dot: bool,
    /// Print JSON.
    #[arg(long, group = "form")]
    json: bool,
    /// Write a picture; `-` is stdout.
    #[arg(long, value_name = "OUT.svg", group = "form")]
    svg: Option<PathBuf>,
    /// The plan for sizes given with --set: kernels, memory, cost, predicted time.
    #[arg(long, group = "view")]
    plan: bool,
    /// What each of the compiler's passes did.
    #[arg(long, group = "view")]
    passes: bool,
    /// What fusion would save, for sizes given with --set.
    #[arg(long, group = "view")]
    fusion: bool,
    /// The graph after the compiler's passes.
    #[arg(long, group = "view")]
    optimized: bool,
    /// The size a symbol stands for; may be repeated.
    #[arg(long = "set", value_name = "SYMBOL=SIZE")]
    settings: Vec<load::Setting>,
    /// Threads to plan for; 0: one per core.
    #[arg(long, value_name = "N", default_value = "0", value_parser = load::threads)]
    threads: usize,
    #[command(flatten)]
    tuned: Tuned,
    #[command(flatten)]
    on: load::On,
    /// Leave out the predicted times. (They need this machine's calibration: `schwann devices calibrate`.)
    #[arg(long)]
    no_predict: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    out::apart(args.svg.as_deref(), [args.file.as_path()])?;
    let graph = load::graph(&args.file)?;
    let title = args.file.file_name().map_or_else(|| "network".into(), |n| n.to_string_lossy().into_owned());
    if args.plan {
        show_plan(args, &graph, &title)?;
    } else if args.fusion {
        show_fusion(args, &graph)?;
    } else if args.passes {
        show_passes(args, &graph)?;
    } else {
        let graph = if args.optimized { pass::optimize(&graph, &PassOptions::default())?.0 } else { graph };
        show_graph(args, &graph, &title)?;
    }
    Ok(Outcome::Done)
}

fn show_graph(args: &Args, graph: &Graph, title: &str) -> Result<()> {
    if let Some(path) = &args.svg {
        return out::deliver(path, &svg::graph(graph, title)?);
    }
    if args.dot {
        return out::print(&graph.to_dot());
    }
    if args.json {
        return out::print(&graph.to_json());
    }
    let mut out = out::stdout();
    let count = graph.nodes().len();
    let weights: usize = graph.weights().values().map(|t| t.bytes().len()).sum();
    let missing = graph.weight_types().filter(|(name, _)| !graph.weights().contains_key(*name)).count();
    let weights = match missing {
        0 => format!("{} of weights", plan::bytes(weights as u64)),
        n => format!("{n} weights without data"),
    };
    writeln!(out, "{}: {count} nodes, {weights}", out::paint(out::TITLE, out::printable(title)))?;
    let symbols: Vec<String> = graph.symbols().into_iter().collect();
    if !symbols.is_empty() {
        writeln!(out, "sizes left open: {}", out::printable(&symbols.join(", ")))?;
    }
    for state in graph.states() {
        let (from, to) = (out::printable(&state.output), out::printable(&state.input));
        writeln!(out, "state: {from} of one run is {to} of the next")?;
    }
    writeln!(out)?;
    for line in graph.to_string().lines() {
        // `%3 = matmul(%0, %1) : f32[B, 4]  # name`
        let line = out::printable(line);
        match line.rsplit_once("  # ") {
            Some((code, name)) => writeln!(out, "{code}  {}", out::paint(out::DIM, format!("# {name}")))?,
            None => writeln!(out, "{}", out::paint(out::TITLE, line))?,
        }
    }
    Ok(out.flush()?)
}

/// Compiles for planning. Weights without data become zeros, and nothing is then computed from them ahead.
fn compile(args: &Args, graph: &Graph, sizes: &schwann::Bindings) -> Result<(Arc<Program>, Option<Record>)> {
    let (complete, passes) = with_data(graph)?;
    let choice = args.on.choice()?;
    let folds = passes.fold_weights;
    let options =
        CompileOptions::default().passes(passes).budget(load::budget()).backend(choice.clone()).threads(args.threads);
    // What lacks data is another network than the one that was tuned.
    let found = match folds {
        true => {
            let subject = tuned::subject(&load::network(&args.file)?);
            args.tuned.find(&Shared::default(), &subject, sizes, (&choice, &[args.threads]))
        }
        false => None,
    };
    let program = match &found {
        None => Program::compile(&complete, &options),
        Some(record) => {
            let options = record.config().compile(options).map_err(|e| anyhow::anyhow!("a tuned record: {e}"))?;
            Program::compile(&*record.config().graph(&complete)?, &options)
        }
    };
    Ok((program.with_context(|| format!("cannot compile {}", args.file.display()))?, found))
}

fn with_data(graph: &Graph) -> Result<(Graph, PassOptions)> {
    let missing: Vec<(String, schwann::Type)> = graph
        .weight_types()
        .filter(|(name, _)| !graph.weights().contains_key(*name))
        .map(|(name, ty)| (name.to_owned(), ty.clone()))
        .collect();
    if missing.is_empty() {
        return Ok((graph.clone(), PassOptions::default()));
    }
    let mut graph = graph.clone();
    let mut room = machine_bytes().unwrap_or(usize::MAX) / 4;
    for (name, ty) in &missing {
        let shape = ty.shape.as_fixed().with_context(|| format!("weight `{name}` has no fixed size"))?;
        let bytes = schwann::tensor::count(&shape).and_then(|n| ty.dtype.bytes_for(n)).unwrap_or(usize::MAX);
        room = match room.checked_sub(bytes) {
            Some(room) => room,
            None => bail!("weight `{name}` is {ty}, more than this machine could hold beside the others"),
        };
        if !graph.weights().contains_key(name) {
            graph.set_weight(name, Tensor::zeros(ty.dtype, &shape)?)?;
        }
    }
    out::note(&format!(
        "{} weights have no data; the plan assumes that they are there, and folds nothing",
        missing.len()
    ));
    Ok((graph, PassOptions { fold_weights: false, ..PassOptions::default() }))
}

/// Predicted times of a plan by this machine's stored calibration; without one, a word on how to get it.
fn predicted(args: &Args, plan: &Plan) -> Result<Option<Forecast>> {
    Ok(stored(args)?.map(|calibration| forecast(plan, &calibration)))
}

/// What is stored of this machine's processor, where that is what counts.
fn stored(args: &Args) -> Result<Option<Calibration>> {
    let cpu = if args.no_predict { None } else { args.on.processor(1)? };
    Ok(cpu.and_then(|cpu| devices::stored(cpu.isa())))
}

fn show_plan(args: &Args, graph: &Graph, title: &str) -> Result<()> {
    let bindings = load::bindings(graph, &args.settings)?;
    let (program, record) = compile(args, graph, &bindings)?;
    let plan = program.plan(&bindings)?;
    if let Some(record) = &record {
        out::note(&format!("{} (--no-tuned: the default)", record.in_use()));
    }
    if args.dot {
        return out::print(&plan.to_dot());
    }
    let forecast = predicted(args, &plan)?;
    if args.json {
        return out::print(&plan.to_json(forecast.as_ref()));
    }
    if let Some(path) = &args.svg {
        let sizes = if bindings == schwann::Bindings::new() { String::new() } else { format!(" for {bindings}") };
        let title = format!("{title}{sizes} on {}, {}", plan.backend, out::threads(plan.threads));
        return out::deliver(path, &svg::plan(&plan, forecast.as_ref(), &title)?);
    }
    out::print(&plan.explain(forecast.as_ref()))
}

fn show_passes(args: &Args, graph: &Graph) -> Result<()> {
    refuse_picture(args, "--passes")?;
    let (_, records) = pass::optimize(graph, &PassOptions::default())?;
    if args.json {
        return out::print(&serde_json::to_string_pretty(&records)?);
    }
    let mut out = out::stdout();
    passes_table(&records).write(&mut out)?;
    for note in records.iter().flat_map(|r| &r.notes) {
        writeln!(out, "{}", out::printable(note))?;
    }
    Ok(out.flush()?)
}

/// What the passes did, as a table.
pub(crate) fn passes_table(records: &[PassRecord]) -> out::Table {
    let mut table = out::Table::new(&["pass", ">nodes before", ">after", ">change"]);
    for r in records {
        let change = r.nodes_after as i64 - r.nodes_before as i64;
        let change = if change == 0 { String::new() } else { format!("{change:+}") };
        table.row([r.pass.to_owned(), r.nodes_before.to_string(), r.nodes_after.to_string(), change]);
    }
    table
}

fn show_fusion(args: &Args, graph: &Graph) -> Result<()> {
    refuse_picture(args, "--fusion")?;
    let bindings = load::bindings(graph, &args.settings)?;
    let found = pass::fusion_opportunities(graph, &PassOptions::default(), &bindings)?;
    let calibration = stored(args)?;
    let gain = |o: &pass::Opportunity| match &calibration {
        Some(calibration) => fusion_gain(o, calibration),
        None => schwann::Figure::unavailable("s", "calibration", "this machine is not calibrated"),
    };
    let mut out = out::stdout();
    if args.json {
        let list: Vec<_> = found
            .iter()
            .map(|o| {
                serde_json::json!({
                    "pattern": o.pattern, "nodes": o.nodes,
                    "bytes_saved": { "value": o.bytes_saved, "unit": "B", "provenance": "derived" },
                    "gain": gain(o),
                })
            })
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
        return Ok(out.flush()?);
    }
    if found.is_empty() {
        writeln!(out, "nothing to fuse")?;
        return Ok(out.flush()?);
    }
    let mut table = out::Table::new(&["pattern", ">bytes saved", ">time saved", "nodes"]);
    for o in &found {
        table.row([
            o.pattern.clone(),
            o.bytes_saved.map_or("unavailable".into(), plan::bytes),
            gain(o).value.map_or("–".into(), plan::rough),
            out::printable(&o.nodes.join(" + ")),
        ]);
    }
    table.write(&mut out)?;
    writeln!(
        out,
        "{}",
        out::paint(
            out::DIM,
            "of the graph as built; bytes derived from shapes; times predicted from this machine's calibration"
        )
    )?;
    Ok(out.flush()?)
}

fn refuse_picture(args: &Args, view: &str) -> Result<()> {
    if args.dot || args.svg.is_some() {
        bail!("{view} prints a list; it can only be combined with --json");
    }
    Ok(())
}
