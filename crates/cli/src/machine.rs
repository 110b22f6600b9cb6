//! `schwann` alone: what this machine can do, and what compiling a small network gains on it.

use crate::measure::{Samples, time_together};
use crate::roof::{self, Ready};
use crate::{Outcome, cpu, demo, load, out, run};
use anyhow::Result;
use indicatif::ProgressBar;
use schwann::backend::reference::{self, Precision};
use schwann::cases::{Tolerance, compare};
use schwann::memory::machine_bytes;
use schwann::pass::PassOptions;
use schwann::plan::{Device, bytes, seconds};
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
    nodes: usize,
    batch: usize,
    fused: Samples,
    unfused: Samples,
    steps: [usize; 2],
    arena: [usize; 2],
    predicted_s: f64,
    largest_error: f64,
    disagreement: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let one = load::cpu(None, 1)?;
    let all = load::cpu(None, 0)?;
    let bar = out::progress(7);
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
    let mut step = |message: &'static str| {
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
    let tanh = roof::functions_per_s(one, 0.4)?;
    step("overhead");
    let overhead = roof::step_overhead_s(one.isa(), 0.4)?;
    Ok(Rates { gemm: [gemm_one, gemm_all], copy, tanh, overhead })
}

fn example(cpu: &Cpu, rates: &Rates, bar: &ProgressBar) -> Result<Example> {
    bar.set_message("an example network");
    bar.inc(1);
    let (graph, x) = demo::build(demo::Model::Mlp, 0)?;
    let inputs = || [("x".to_owned(), x.clone())];
    let mut fused = Ready::new(&graph, inputs(), cpu, PassOptions::default())?;
    let mut unfused = Ready::new(&graph, inputs(), cpu, PassOptions::none())?;
    let samples = time_together(2.0, &mut [&mut || fused.run().map(|_| ()), &mut || unfused.run().map(|_| ())])?;
    let [fused_samples, unfused_samples] = samples.try_into().map_err(|_| anyhow::anyhow!("two things were timed"))?;
    bar.set_message("the reference");
    bar.inc(1);
    let expected = reference::run(&graph, &BTreeMap::from(inputs()), Precision::Storage)?;
    let got: Vec<Tensor> = fused.run()?.to_vec();
    let wrong = expected.iter().zip(&got).find_map(|(e, g)| compare(e, g, Tolerance::NETWORK).err());
    let largest_error = expected.iter().zip(&got).map(|(e, g)| run::largest_error(e, g)).fold(0.0, f64::max);
    let device = Device {
        name: "this CPU".into(),
        flops_per_s: rates.gemm[0],
        bytes_per_s: rates.copy[0],
        transcendentals_per_s: rates.tanh,
        step_overhead_s: rates.overhead,
        source: "measured above".into(),
    };
    let plan = |ready: &Ready| ready.session().plan().cloned();
    let (f, u) = (plan(&fused), plan(&unfused));
    let steps = [&f, &u].map(|p| p.as_ref().map_or(0, |p| p.steps.len()));
    let arena = [&f, &u].map(|p| p.as_ref().map_or(0, |p| p.arena_bytes));
    let predicted_s = f.as_ref().and_then(|p| p.estimate(&device).time.value).unwrap_or(f64::NAN);
    Ok(Example {
        program: std::sync::Arc::clone(fused.session().program()),
        nodes: graph.nodes().len(),
        batch: x.shape()[0],
        fused: fused_samples,
        unfused: unfused_samples,
        steps,
        arena,
        predicted_s,
        largest_error,
        disagreement: wrong,
    })
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
    writeln!(out, "{} {}", title("A small network"), dim("(64 → 256 → 256 → 10, batch 32, one core)"))?;
    let changes: Vec<String> = e
        .program
        .pass_records()
        .iter()
        .filter(|r| r.nodes_before != r.nodes_after)
        .map(|r| format!("{} {} → {}", r.pass, r.nodes_before, r.nodes_after))
        .collect();
    writeln!(out, "  graph       {} nodes", e.nodes)?;
    writeln!(out, "  passes      {}", if changes.is_empty() { "nothing to do".into() } else { changes.join(", ") })?;
    let bindings = schwann::Bindings::new().with("B", e.batch);
    let plan = e.program.plan(&bindings)?;
    writeln!(
        out,
        "  plan        {} steps instead of {}, arena {} instead of {} {}",
        e.steps[0],
        e.steps[1],
        bytes(e.arena[0] as u64),
        bytes(e.arena[1] as u64),
        dim("(derived)")
    )?;
    for step in &plan.steps {
        writeln!(out, "                {}  {}", step.kernel, dim(&step.out))?;
    }
    let time = |s: &Samples| format!("min {}, median {}", seconds(s.min_s), seconds(s.median_s));
    writeln!(
        out,
        "  compiled    {} {}",
        time(&e.fused),
        dim(&format!("(measured; predicted {})", seconds(e.predicted_s)))
    )?;
    writeln!(out, "  node by node {} {}", time(&e.unfused), dim("(measured, in turns with the other)"))?;
    let gain = e.unfused.min_s / e.fused.min_s;
    writeln!(
        out,
        "  gain        {} {}",
        out::paint(out::GOOD, format!("{gain:.2}×")),
        dim("(derived from the least times)")
    )?;
    match &e.disagreement {
        None => writeln!(
            out,
            "  agreement   largest error {:.1e} against the reference {}",
            e.largest_error,
            dim("(measured)")
        )?,
        Some(problem) => {
            writeln!(out, "  agreement   {}: {problem}", out::paint(out::BAD, "differs from the reference"))?
        }
    }
    if e.fused.noisy() || e.unfused.noisy() {
        writeln!(
            out,
            "  {}",
            dim("medians are far above the least: something else is running, close it and try again")
        )?;
    }
    writeln!(out)?;
    writeln!(out, "{}", title("Try"))?;
    for (command, what) in [
        ("schwann demo net.safetensors --input x.npy", "write that network and an input"),
        ("schwann graph net.safetensors --svg net.svg", "a picture of it"),
        ("schwann graph net.safetensors --plan --set B=32", "what will run, where, at what cost"),
        ("schwann run net.safetensors --input x.npy --check", "run it and compare with the reference"),
        ("schwann bench ops --filter gemm", "time the kernels against this machine's roof"),
    ] {
        writeln!(out, "  {}  {}", out::paint(out::NAME, format!("{command:<50}")), dim(what))?;
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
            "network": "64 → 256 → 256 → 10, batch 32, one core",
            "passes": e.program.pass_records(),
            "steps": { "compiled": e.steps[0], "node_by_node": e.steps[1], "provenance": "derived" },
            "arena_bytes": { "compiled": e.arena[0], "node_by_node": e.arena[1], "provenance": "derived" },
            "compiled": { "run": e.fused, "provenance": "measured" },
            "node_by_node": { "run": e.unfused, "provenance": "measured" },
            "predicted": figure(e.predicted_s, "s", "predicted"),
            "gain": figure(e.unfused.min_s / e.fused.min_s, "×", "derived"),
            "largest_error": figure(e.largest_error, "absolute", "measured"),
            "agrees": e.disagreement.is_none(),
        },
    })
}
