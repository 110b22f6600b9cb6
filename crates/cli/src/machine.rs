//! `schwann` alone: what this machine can do, and what compiling a small network gains on it.

use crate::{Outcome, demo, load, out, run};
use anyhow::{Context, Result, anyhow};
use indicatif::ProgressBar;
use schwann::backend::reference::{self, Precision};
use schwann::cases::{Tolerance, compare};
use schwann::memory::machine_bytes;
use schwann::op::Unary;
use schwann::pass::PassOptions;
use schwann::plan::{Device, Plan, bytes, seconds};
use schwann::prof::device::cpu;
use schwann::prof::device::roof::{self, Ready};
use schwann::prof::measure::{Samples, time_together};
use schwann::{DType, Isa, Program, Tensor};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;

#[derive(clap::Args, Default)]
#[command(after_help = "Examples:
  schwann
  schwann machine --json")]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The rates of this machine, each with how long it was measured.
struct Rates {
    gemm: [f64; 2],
    copy: [f64; 2],
    tanh: f64,
    overhead: f64,
}

/// The example network, compiled and measured.
struct Example {
    program: std::sync::Arc<Program>,
    plan: Plan,
    nodes: usize,
    /// Steps and arena bytes of the network as it was built, node by node.
    unfused_steps: usize,
    unfused_arena: usize,
    runs: Vec<Run>,
    largest_error: f64,
    disagreement: Option<String>,
}

/// The example at one batch size: compiled and node by node, measured in turns.
struct Run {
    batch: usize,
    fused: Samples,
    unfused: Samples,
    predicted_s: f64,
}

impl Run {
    fn gain(&self) -> f64 {
        self.unfused.min_s / self.fused.min_s
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let one = load::cpu(None, 1)?;
    let all = load::cpu(None, 0)?;
    let bar = out::progress(6);
    let rates = rates(&one, &all, &bar)?;
    let example = example(&one, &rates, &bar)?;
    bar.finish_and_clear();
    let mut out = out::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&as_json(&rates, &example, all.threads()))?)?;
    } else {
        page(&mut out, &rates, &example, all.threads())?;
    }
    out.flush()?;
    Ok(if example.disagreement.is_some() { Outcome::Differs } else { Outcome::Done })
}

type Cpu = schwann::backend::cpu::Cpu;

fn rates(one: &Cpu, all: &Cpu, bar: &ProgressBar) -> Result<Rates> {
    let step = |message: &'static str| {
        bar.set_message(message);
        bar.inc(1);
    };
    step("products on one core");
    let gemm_one = roof::flops(one, DType::F32, 1.0)?;
    step("products on all cores");
    let gemm_all = roof::flops(all, DType::F32, 1.0)?;
    step("copying");
    let set = roof::memory_working_set();
    let copy = [roof::copy_bytes_per_s(1, set, 0.8), roof::copy_bytes_per_s(all.threads(), set, 0.8)];
    step("functions");
    let tanh = roof::functions_per_s(one, Unary::Tanh, 0.4)?;
    step("overhead");
    let overhead = roof::step_overhead_s(one.isa(), 0.4)?;
    Ok(Rates { gemm: [gemm_one, gemm_all], copy, tanh, overhead })
}

/// What the example is.
const NETWORK: &str = "(16 → 64 units, two heads mixed by a gate, → 4; one core)";

/// The batch sizes that the example is run at: one stream, and many.
const BATCHES: [usize; 2] = [1, 32];

fn example(cpu: &Cpu, rates: &Rates, bar: &ProgressBar) -> Result<Example> {
    bar.set_message("an example network");
    bar.inc(1);
    let device = Device {
        name: "this CPU".into(),
        flops_per_s: rates.gemm[0],
        bytes_per_s: rates.copy[0],
        transcendentals_per_s: rates.tanh,
        step_overhead_s: rates.overhead,
        source: "measured above".into(),
    };
    let (graph, x) = demo::build(demo::Model::Gated, 0)?;
    let width: usize = x.shape()[1..].iter().product();
    let mut runs = vec![];
    let mut shown = None;
    let (mut largest_error, mut disagreement) = (0.0f64, None);
    for batch in BATCHES {
        let rows = &x.values::<f32>()?[..batch * width];
        let inputs = [("x".to_owned(), Tensor::new(&[batch, width], rows)?)];
        let mut fused = Ready::new(&graph, inputs.clone(), cpu, PassOptions::default())?;
        let mut unfused = Ready::new(&graph, inputs.clone(), cpu, PassOptions::none())?;
        let mut fused_run = || fused.run().map(|_| ());
        let mut unfused_run = || unfused.run().map(|_| ());
        let samples = time_together(1.0, &mut [&mut fused_run, &mut unfused_run])?;
        let [fused_samples, unfused_samples] =
            samples.try_into().map_err(|_| anyhow!("two things were timed, and not two came back"))?;
        let expected = reference::run(&graph, &BTreeMap::from(inputs), Precision::Storage)?;
        for (expected, got) in expected.iter().zip(fused.run()?) {
            disagreement = disagreement.or(compare(expected, got, Tolerance::NETWORK).err());
            largest_error = largest_error.max(run::largest_error(expected, got));
        }
        let plan = fused.session().plan().context("a run leaves a plan")?.clone();
        let slow = unfused.session().plan().context("a run leaves a plan")?;
        let predicted_s = plan.estimate(&device).time.value.unwrap_or(f64::NAN);
        runs.push(Run { batch, fused: fused_samples, unfused: unfused_samples, predicted_s });
        let program = std::sync::Arc::clone(fused.session().program());
        shown = Some((program, plan, slow.steps.len(), slow.arena_bytes));
    }
    let (program, plan, unfused_steps, unfused_arena) = shown.context("at least one batch was run")?;
    let nodes = graph.nodes().len();
    Ok(Example { program, plan, nodes, unfused_steps, unfused_arena, runs, largest_error, disagreement })
}

fn page(out: &mut dyn Write, rates: &Rates, example: &Example, threads: usize) -> Result<()> {
    let title = |text: &str| out::paint(out::TITLE, text);
    let dim = |text: &str| out::paint(out::DIM, text);
    let unavailable = |why: String| format!("unavailable ({why})");
    let isas: Vec<&str> = Isa::available().iter().map(|i| i.name()).collect();
    writeln!(out, "{}", title("This machine"))?;
    writeln!(out, "  cpu         {}", cpu::name().unwrap_or_else(unavailable))?;
    writeln!(out, "  kernels     {} (of {})", Isa::detect(), isas.join(", "))?;
    writeln!(out, "  cores       {}", cpu::cores())?;
    let caches = cpu::caches().map(|found| {
        let one = |c: &cpu::Cache| {
            let shared = c.shared_by.filter(|n| *n > 1).map(|n| format!(" for {n} cores")).unwrap_or_default();
            format!("L{} {}{shared}", c.level, bytes(c.bytes as u64))
        };
        found.iter().map(one).collect::<Vec<_>>().join(", ")
    });
    writeln!(out, "  caches      {}", caches.unwrap_or_else(unavailable))?;
    let memory = machine_bytes().map(|b| bytes(b as u64)).unwrap_or_else(|e| format!("unavailable ({e})"));
    writeln!(out, "  memory      {memory}")?;
    writeln!(out)?;
    writeln!(out, "{} {}", title("What it does"), dim("(measured)"))?;
    let per_core = |r: [f64; 2], unit: &str| {
        let all = if threads > 1 { format!(", {}{unit} on {threads}", out::rate(r[1])) } else { String::new() };
        format!("{}{unit} on one core{all}", out::rate(r[0]))
    };
    writeln!(out, "  f32 product {}", per_core(rates.gemm, "flop/s"))?;
    writeln!(out, "  copy        {}", per_core(rates.copy, "B/s"))?;
    writeln!(out, "  tanh        {}/s on one core", out::rate(rates.tanh))?;
    writeln!(out, "  a step      {} beyond its work", seconds(rates.overhead))?;
    writeln!(out)?;

    let e = example;
    writeln!(out, "{} {}", title("A small network"), dim(NETWORK))?;
    let changes: Vec<String> = e
        .program
        .pass_records()
        .iter()
        .filter(|r| r.nodes_before != r.nodes_after)
        .map(|r| format!("{} {} → {}", r.pass, r.nodes_before, r.nodes_after))
        .collect();
    writeln!(out, "  graph       {} nodes", e.nodes)?;
    writeln!(out, "  passes      {}", if changes.is_empty() { "nothing to do".into() } else { changes.join(", ") })?;
    let derived = dim(&format!("(derived; for {})", e.plan.bindings));
    writeln!(
        out,
        "  plan        {} steps instead of {}, arena {} instead of {} {derived}",
        e.plan.steps.len(),
        e.unfused_steps,
        bytes(e.plan.arena_bytes as u64),
        bytes(e.unfused_arena as u64)
    )?;
    for step in &e.plan.steps {
        writeln!(out, "              · {}", out::printable(&step.kernel))?;
    }
    let mut table =
        out::Table::new(&["            ", ">min", ">median", ">node by node: min", ">median", ">gain", ">predicted"]);
    for r in &e.runs {
        table.row([
            format!("  batch {}", r.batch),
            seconds(r.fused.min_s),
            seconds(r.fused.median_s),
            seconds(r.unfused.min_s),
            seconds(r.unfused.median_s),
            format!("{:.2}×", r.gain()),
            seconds(r.predicted_s),
        ]);
    }
    table.write(out)?;
    writeln!(
        out,
        "              {}",
        dim("measured in turns; gain derived from the least times; predicted from the rates above")
    )?;
    match &e.disagreement {
        None => {
            let measured = dim("(measured)");
            writeln!(out, "  agreement   largest error {:.1e} against the reference {measured}", e.largest_error)?;
        }
        Some(problem) => {
            writeln!(out, "  agreement   {}: {problem}", out::paint(out::BAD, "differs from the reference"))?
        }
    }
    if e.runs.iter().any(|r| r.fused.noisy() || r.unfused.noisy()) {
        writeln!(
            out,
            "  {}",
            dim("medians are far above the least: something else is running; close it and try again")
        )?;
    }
    writeln!(out)?;
    writeln!(out, "{}", title("Try"))?;
    for (command, what) in [
        ("schwann demo net.safetensors --model gated --input x.npy", "write that network and an input"),
        ("schwann graph net.safetensors --svg net.svg", "a picture of it"),
        ("schwann graph net.safetensors --plan --set B=32", "what will run, where, at what cost"),
        ("schwann run net.safetensors --input x.npy --check", "run it and compare with the reference"),
        ("schwann bench ops --filter gemm", "time the kernels against this machine's roof"),
    ] {
        writeln!(out, "  {}  {}", out::paint(out::NAME, format!("{command:<56}")), dim(what))?;
    }
    Ok(())
}

fn as_json(rates: &Rates, e: &Example, threads: usize) -> serde_json::Value {
    let known = |r: Result<String, String>| match r {
        Ok(value) => json!({ "value": value }),
        Err(why) => json!({ "value": null, "provenance": "unavailable", "source": why }),
    };
    let figure =
        |value: f64, unit: &str, provenance: &str| json!({ "value": value, "unit": unit, "provenance": provenance });
    json!({
        "cpu": known(cpu::name()),
        "isa": Isa::detect().name(),
        "isas": Isa::available().iter().map(|i| i.name()).collect::<Vec<_>>(),
        "cores": threads,
        "caches": cpu::caches().ok(),
        "memory_bytes": machine_bytes().ok(),
        "gemm_one_core": figure(rates.gemm[0], "flop/s", "measured"),
        "gemm_all_cores": figure(rates.gemm[1], "flop/s", "measured"),
        "copy_one_core": figure(rates.copy[0], "B/s", "measured"),
        "copy_all_cores": figure(rates.copy[1], "B/s", "measured"),
        "tanh_one_core": figure(rates.tanh, "1/s", "measured"),
        "step_overhead": figure(rates.overhead, "s", "measured"),
        "example": {
            "network": NETWORK,
            "passes": e.program.pass_records(),
            "steps": { "compiled": e.plan.steps.len(), "node_by_node": e.unfused_steps, "provenance": "derived" },
            "arena_bytes": { "compiled": e.plan.arena_bytes, "node_by_node": e.unfused_arena, "provenance": "derived" },
            "runs": e.runs.iter().map(|r| json!({
                "batch": r.batch,
                "compiled": { "run": r.fused, "provenance": "measured" },
                "node_by_node": { "run": r.unfused, "provenance": "measured" },
                "predicted": figure(r.predicted_s, "s", "predicted"),
                "gain": figure(r.gain(), "×", "derived"),
            })).collect::<Vec<_>>(),
            "largest_error": figure(e.largest_error, "absolute", "measured"),
            "agrees": e.disagreement.is_none(),
        },
    })
}
