//! `schwann info`: a model in figures.

use crate::{Outcome, load, out};
use anyhow::{Context, Result};
use schwann::nn::{GraphOptions, Info, LayerInfo, Model};
use schwann::plan::{bytes, count};
use schwann::{Bindings, CompileOptions, Graph, Isa, Program};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann info circuit.safetensors
  schwann info circuit.safetensors --json
  schwann graph circuit.safetensors --plan --set B=1 --set T=1")]
pub(crate) struct Args {
    /// The model, or a network's graph.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match load::network(&args.file)? {
        load::Network::Model(model) => show_model(&model, &args.file, args.json)?,
        load::Network::Graph(graph) => show_graph(&graph, &args.file, args.json)?,
    }
    Ok(Outcome::Done)
}

/// The size of a network's file; a built-in model has none.
fn file_bytes(path: &Path) -> Option<u64> {
    Some(std::fs::metadata(path).ok()?.len())
}

/// A network's name, and its file's size where it has one.
fn title(path: &Path, size: Option<u64>) -> String {
    format!("{}{}", path.display(), size.map(|size| format!(", {}", bytes(size))).unwrap_or_default())
}

/// `x f32[B, T, 8]`, for every input that is no state.
fn inputs(graph: &Graph) -> Vec<String> {
    let plain = graph.inputs().filter(|(name, _)| graph.states().iter().all(|s| s.input != *name));
    plain.map(|(name, value)| format!("{name} {}", graph.ty(value))).collect()
}

fn states(graph: &Graph) -> Vec<String> {
    let carried = graph.inputs().filter(|(name, _)| graph.states().iter().any(|s| s.input == *name));
    carried.map(|(name, value)| format!("{name} {}", graph.ty(value))).collect()
}

fn outputs(graph: &Graph) -> Vec<String> {
    graph.outputs().iter().map(|o| format!("{} {}", o.name, graph.ty(o.value))).collect()
}

/// A line of the page: what, and how much.
fn line(out: &mut dyn Write, what: &str, text: &str) -> Result<()> {
    let first = format!("  {what:<11} ");
    Ok(writeln!(out, "{}", out::wrap(&out::printable(text), &first, &" ".repeat(first.len()), out::width()))?)
}

fn heading(out: &mut dyn Write, text: &str) -> Result<()> {
    Ok(writeln!(out, "{}", out::paint(out::TITLE, out::printable(text)))?)
}

/// A model's page, or its JSON.
pub(crate) fn show_model(model: &Model, path: &Path, json: bool) -> Result<()> {
    let info = model.info().with_context(|| format!("cannot compile {}", path.display()))?;
    let graph = model.graph(&GraphOptions::default())?;
    let size = file_bytes(path);
    if json {
        let mut all = serde_json::to_value(&info)?;
        all["file"] = json!(path.to_string_lossy());
        all["file_bytes"] = json!(size);
        all["inputs"] = json!(inputs(&graph));
        all["outputs"] = json!(outputs(&graph));
        all["states"] = json!(states(&graph));
        all["isa"] = json!(Isa::detect().name());
        all["provenance"] = json!("derived");
        return out::print(&serde_json::to_string_pretty(&all)?);
    }
    let mut out = out::stdout();
    heading(&mut out, &title(path, size))?;
    line(&mut out, "takes", &inputs(&graph).join(", "))?;
    line(&mut out, "gives", &outputs(&graph).join(", "))?;
    if !graph.states().is_empty() {
        line(&mut out, "remembers", &states(&graph).join(", "))?;
    }
    for (i, layer) in info.layers.iter().enumerate() {
        let number = if info.layers.len() > 1 { format!("{i}: ") } else { String::new() };
        writeln!(out)?;
        heading(&mut out, &format!("{number}{}", layer.label()))?;
        show_layer(&mut out, layer)?;
    }
    show_totals(&mut out, &info)?;
    Ok(out.flush()?)
}

fn show_layer(out: &mut dyn Write, layer: &LayerInfo) -> Result<()> {
    if let Some(units) = layer.units {
        line(out, "neurons", &units.to_string())?;
    }
    if let (Some(inner), Some(density)) = (layer.synapses, layer.density) {
        line(out, "synapses", &format!("{inner}, {:.1}% of all pairs", density * 100.0))?;
    }
    if let (Some(sensory), Some(density)) = (layer.sensory_synapses, layer.sensory_density) {
        line(out, "from inputs", &format!("{sensory}, {:.1}% of all pairs", density * 100.0))?;
    }
    if let Some(wiring @ Value::Object(_)) = layer.options.get("units") {
        line(out, "wiring", &listed(wiring, &[]))?;
    }
    // Of an activation the function is the heading, and what is left are its own options.
    let options = layer.options.get("function").map(|function| &function[layer.label()]).unwrap_or(&layer.options);
    let options = if options.is_null() { String::new() } else { listed(options, &["class", "units"]) };
    if !options.is_empty() {
        line(out, "options", &options)?;
    }
    if layer.parameters > 0 {
        line(out, "parameters", &layer.parameters.to_string())?;
    }
    Ok(())
}

/// `mode default, batch_first true`.
fn listed(options: &Value, without: &[&str]) -> String {
    let Value::Object(fields) = options else { return options.to_string() };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        // Options are f32, whose digits as f64 nobody wants to read.
        Value::Number(n) if n.is_f64() => n.as_f64().map_or_else(String::new, |v| (v as f32).to_string()),
        other => other.to_string(),
    };
    let fields = fields.iter().filter(|(name, value)| !without.contains(&name.as_str()) && !value.is_object());
    let fields: Vec<String> = fields
        .map(|(name, value)| if name == "class" { text(value) } else { format!("{name} {}", text(value)) })
        .collect();
    fields.join(", ")
}

fn show_totals(out: &mut dyn Write, info: &Info) -> Result<()> {
    let size = |n: usize| bytes(n as u64);
    writeln!(out)?;
    heading(out, "In all")?;
    line(out, "parameters", &format!("{}, {}", info.parameters, size(info.weight_bytes)))?;
    let work = format!("{} flops, of which {} functions", count(info.step_flops), count(info.step_transcendentals));
    line(out, "per step", &format!("{work}; at least {} moved", bytes(info.step_bytes)))?;
    line(
        out,
        "weights",
        &format!("{} in memory, with packed copies, shared by all sessions", size(info.resident_bytes)),
    )?;
    let session = format!("{} of work space, {} of state", size(info.arena_bytes), size(info.state_bytes));
    line(out, "per session", &format!("{session}, for one stream"))?;
    let note = format!("derived from options, shapes and the graph compiled for this CPU ({})", Isa::detect().name());
    Ok(writeln!(out, "  {}", out::paint(out::DIM, note))?)
}

/// A graph's page, or its JSON. Sizes that are left open are taken as 1.
pub(crate) fn show_graph(graph: &Graph, path: &Path, json: bool) -> Result<()> {
    let size = file_bytes(path);
    let symbols: Vec<String> = graph.symbols().into_iter().collect();
    let weights: usize = graph.weights().values().map(|t| t.bytes().len()).sum();
    let parameters: usize = graph.weights().values().map(schwann::Tensor::len).sum();
    let ones = symbols.iter().fold(Bindings::new(), |all, s| all.with(s, 1));
    let cost = graph.cost(&ones)?;
    // A graph's JSON has no weights, and cannot be compiled.
    let whole = graph.weight_types().all(|(name, _)| graph.weights().contains_key(name));
    let plan = match whole {
        true => {
            let options = CompileOptions::default().threads(1).budget(load::budget());
            Some(Program::compile(graph, &options)?.plan(&ones)?)
        }
        false => None,
    };
    if json {
        let all = json!({
            "file": path.to_string_lossy(), "file_bytes": size, "nodes": graph.nodes().len(), "parameters": parameters,
            "weight_bytes": weights, "inputs": inputs(graph), "outputs": outputs(graph), "states": states(graph),
            "symbols": symbols, "flops": cost.flops, "transcendentals": cost.transcendentals, "bytes": cost.bytes(),
            "resident_bytes": plan.as_ref().map(|p| p.weight_bytes), "arena_bytes": plan.as_ref().map(|p| p.arena_bytes),
            "provenance": "derived",
        });
        return out::print(&serde_json::to_string_pretty(&all)?);
    }
    let mut out = out::stdout();
    heading(&mut out, &format!("{}: a graph of {} nodes", title(path, size), graph.nodes().len()))?;
    line(&mut out, "takes", &inputs(graph).join(", "))?;
    line(&mut out, "gives", &outputs(graph).join(", "))?;
    if !graph.states().is_empty() {
        line(&mut out, "remembers", &states(graph).join(", "))?;
    }
    line(&mut out, "parameters", &format!("{parameters}, {}", bytes(weights as u64)))?;
    let work = format!("{} flops, of which {} functions", count(cost.flops), count(cost.transcendentals));
    let sizes = if symbols.is_empty() { String::new() } else { format!(" for {ones}") };
    line(&mut out, "per run", &format!("{work}; at least {} moved{sizes}", bytes(cost.bytes())))?;
    if let Some(plan) = plan {
        line(&mut out, "weights", &format!("{} in memory, shared by all sessions", bytes(plan.weight_bytes as u64)))?;
        line(&mut out, "per session", &format!("{} of work space{sizes}", bytes(plan.arena_bytes as u64)))?;
    }
    writeln!(out, "  {}", out::paint(out::DIM, "derived from shapes"))?;
    Ok(out.flush()?)
}
