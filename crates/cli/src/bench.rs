//! `schwann bench`: how fast the library is on this machine, beside what the machine could do.

mod cases;
mod circuits;
mod decoder;

use crate::{Outcome, load, out, stop};
use anyhow::{Context, Result, bail};
use cases::Case;
use schwann::backend::Backend;
use schwann::prof::device::roof::{self, Limits, Ready};
use schwann::prof::device::{Processor, cpu};
use schwann::prof::measure::{self, Samples};
use schwann::{Cost, DType, plan};
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann bench ops                     every case, on one thread and on all
  schwann bench ops --filter gemm --threads 1
  schwann bench ops --filter scan/cfc --json    one JSON object per line
  schwann bench ops --isa avx2 --seconds 1
  schwann bench ops --list
  schwann bench circuits                three neural circuits, four shapes
  schwann bench circuits --model wired-cfc --batch 32 --steps 16 --train --json
  schwann bench decoder                 100 million ternary weights")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Operations and small networks, through the same call that a program makes.
    Ops(Ops),
    /// Neural circuits: whole models, run or trained, for a batch of sequences.
    Circuits(circuits::Args),
    /// A decoder of bytes with random weights: symbols a second, beside what reading its weights allows.
    Decoder(decoder::Args),
}

#[derive(clap::Args)]
struct Ops {
    /// Print one JSON object per line: the machine's roof for each number of threads, then each case.
    #[arg(long)]
    json: bool,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Seconds for each case and number of threads.
    #[arg(long, value_name = "S", default_value_t = 0.3, value_parser = load::seconds)]
    seconds: f64,
    /// Numbers of threads; 0: one per core.
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = load::threads)]
    threads: Vec<usize>,
    #[command(flatten)]
    on: load::On,
    /// Do not measure the machine's roof first (and show no part of it).
    #[arg(long)]
    no_roof: bool,
    /// List the cases and stop.
    #[arg(long)]
    list: bool,
}

/// What limits a case, by the roofline.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Bound {
    Arithmetic,
    Memory,
    Functions,
}

/// A case's figures. Times are measured; work is derived from shapes; rates and parts are derived from both.
#[derive(Serialize)]
struct Record<'a> {
    kind: &'static str,
    case: &'a str,
    group: &'a str,
    threads: usize,
    isa: String,
    #[serde(flatten)]
    samples: Samples,
    steps: usize,
    flops: u64,
    transcendentals: u64,
    bytes: u64,
    gflop_s: f64,
    gb_s: f64,
    /// Least time by the measured roof, and what it is of the measured time.
    roof_s: Option<f64>,
    part_of_roof: Option<f64>,
    bound: Option<Bound>,
    level: Option<String>,
    /// Least time of a plain copy of the same bytes, measured in turns with the case, and what it is of the case's: only
    /// where all that a case does is to move its input.
    copy_s: Option<f64>,
    part_of_copy: Option<f64>,
    noisy: bool,
    provenance: Provenances,
}

#[derive(Serialize)]
struct Provenances {
    times: &'static str,
    work: &'static str,
    rates: &'static str,
    roof: &'static str,
}

/// What cases and models are timed on.
struct Engine {
    backend: Arc<dyn Backend>,
    /// The processor, where that is it.
    processor: Option<Processor>,
}

impl Engine {
    fn new(on: &load::On, threads: usize) -> Result<Engine> {
        Ok(Engine { backend: on.make(threads)?, processor: on.processor(threads)? })
    }

    /// The instruction set; of another backend, its name.
    fn isa(&self) -> String {
        self.processor.as_ref().map_or_else(|| self.backend.name(), |cpu| cpu.isa().name().into())
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match &args.what {
        What::Ops(ops) => run_ops(ops),
        What::Circuits(args) => circuits::run(args),
        What::Decoder(args) => decoder::run(args),
    }
}

fn run_ops(ops: &Ops) -> Result<Outcome> {
    let cases = cases::all(&ops.filter);
    if cases.is_empty() {
        bail!("no case has `{}` in its name; `schwann bench ops --list` lists them", ops.filter);
    }
    let mut out = out::stdout();
    if ops.list {
        for case in &cases {
            writeln!(out, "{}", case.name)?;
        }
        out.flush()?;
        return Ok(Outcome::Done);
    }
    let mut threads = if ops.threads.is_empty() { vec![1, 0] } else { ops.threads.clone() };
    threads.iter_mut().filter(|t| **t == 0).for_each(|t| *t = cpu::cores());
    threads.sort_unstable();
    threads.dedup();
    let engines = threads.iter().map(|&t| Engine::new(&ops.on, t)).collect::<Result<Vec<Engine>>>()?;
    // Only the processor's limits can be measured.
    let with_roof = !ops.no_roof && engines.iter().all(|e| e.processor.is_some());

    stop::listen();
    let roof_steps = if with_roof { roof::PROGRESS_STEPS * engines.len() as u64 } else { 0 };
    let bar = out::progress(roof_steps + (cases.len() * engines.len()) as u64);
    let mut roofs = vec![];
    for engine in &engines {
        roofs.push(match engine.processor.as_ref().filter(|_| with_roof) {
            Some(cpu) => Some(Limits::measure(cpu, 3.0, &mut out::watch(&bar))?),
            None => None,
        });
    }
    if ops.json {
        for roof in roofs.iter().flatten() {
            writeln!(out, "{}", roof_line(roof)?)?;
        }
    } else {
        heading(&mut out, &engines, &roofs)?;
    }
    out.flush()?;
    stop::keep();

    let mut table = out::Table::new(&[
        "case", ">threads", ">min", ">median", ">flop/s", ">B/s", ">of roof", "bound by", ">of copy",
    ]);
    let (mut noisy, mut done) = (0, 0);
    'cases: for case in &cases {
        for (engine, roof) in engines.iter().zip(&roofs) {
            bar.set_message(case.name.clone());
            let record = match time(case, engine, roof.as_ref(), ops.seconds) {
                Err(e) if e.is::<stop::Stopped>() => break 'cases,
                record => record.with_context(|| format!("case {}", case.name))?,
            };
            bar.inc(1);
            done += 1;
            noisy += usize::from(record.noisy);
            if ops.json {
                writeln!(out, "{}", serde_json::to_string(&record)?)?;
                out.flush()?;
                if out::is_closed() {
                    break 'cases;
                }
            } else {
                table.row(row(&record));
            }
        }
    }
    bar.finish_and_clear();
    if !ops.json {
        table.write(&mut out)?;
        writeln!(
            out,
            "{}",
            out::paint(
                out::DIM,
                "times measured; work derived from shapes (ideal cache); rates derived from both; roof measured above, copies \
                 of the same bytes beside"
            )
        )?;
        if noisy > 0 {
            let text = format!(
                "~ ({noisy} of {}): the median is over 1.2 times the least: something else was running",
                cases.len() * engines.len()
            );
            writeln!(out, "{}", out::paint(out::DIM, text))?;
        }
    }
    ended(&mut out, ops.json, done, cases.len() * engines.len())
}

/// The last line of what was stopped: how much of it there is.
fn ended(out: &mut dyn Write, json: bool, done: usize, of: usize) -> Result<Outcome> {
    if !stop::asked() || done == of {
        out.flush()?;
        return Ok(Outcome::Done);
    }
    match json {
        true => writeln!(out, "{}", serde_json::json!({ "kind": "partial", "done": done, "of": of }))?,
        false => {
            let text = format!("partial: stopped after {done} of {of} measurements");
            writeln!(out, "{}", out::paint(out::BAD, text))?;
        }
    }
    out.flush()?;
    Ok(Outcome::Stopped)
}

fn time<'a>(case: &'a Case, engine: &Engine, roof: Option<&Limits>, seconds: f64) -> Result<Record<'a>> {
    let built = case.build()?;
    let half = built.graph.input_types().iter().any(|t| t.dtype == DType::Bf16);
    let given: usize = built.inputs.iter().map(|(_, t)| t.bytes().len()).sum();
    let mut ready = Ready::new(&built.graph, built.inputs, &*engine.backend, case.passes.clone())?;
    let results: usize = ready.run()?.iter().map(|t| t.bytes().len()).sum();
    let cost = ready.session().plan().context("a run leaves a plan")?.cost();
    let moves = cost.flops == 0 && cost.transcendentals == 0 && results == given && given > 0;
    let (samples, copy) = if moves {
        let mut copy = roof::plain_copy(given, &*engine.backend)?;
        let run = &mut || once(&mut ready);
        let both = measure::time_together(2.0 * seconds, &mut [run, &mut || once(&mut copy)])?;
        let [samples, copy] = <[Samples; 2]>::try_from(both).ok().context("two things were timed")?;
        (samples, Some(copy.min_s))
    } else {
        (measure::time(seconds, || once(&mut ready))?, None)
    };
    let plan = ready.session().plan().context("a run leaves a plan")?;
    // What is kept may be more than what a run touches, and what it moves more than what there is.
    let kept = given + results + plan.arena_bytes + plan.weight_bytes;
    let working_set = kept.min(usize::try_from(cost.bytes()).unwrap_or(usize::MAX));
    let integers: u64 =
        plan.steps.iter().filter(|s| s.kernel.is_integer_product()).map(|s| s.cost.flops).fold(0, u64::saturating_add);
    let limit = roof.and_then(|r| limit(r, &cost, integers, working_set, half));
    Ok(Record {
        kind: "case",
        case: &case.name,
        group: &case.group,
        threads: engine.backend.threads(),
        isa: engine.isa(),
        steps: plan.steps.len(),
        flops: cost.flops,
        transcendentals: cost.transcendentals,
        bytes: cost.bytes(),
        gflop_s: cost.flops as f64 / samples.min_s / 1e9,
        gb_s: cost.bytes() as f64 / samples.min_s / 1e9,
        roof_s: limit.as_ref().map(|l| l.0),
        part_of_roof: limit.as_ref().and_then(|l| roof::share(l.0 / samples.min_s)),
        bound: limit.as_ref().map(|l| l.1),
        level: limit.and_then(|l| l.2),
        copy_s: copy,
        part_of_copy: copy.map(|c| c / samples.min_s),
        noisy: samples.noisy(),
        samples,
        provenance: Provenances {
            times: "measured",
            work: "derived",
            rates: "derived",
            roof: if roof.is_some() { "measured" } else { "unavailable" },
        },
    })
}

/// A run, unless somebody asked for an end.
fn once(ready: &mut Ready) -> Result<()> {
    stop::check()?;
    ready.run()?;
    Ok(())
}

/// The least time that the roof allows, what limits it, and where the data is. So many of the operations are in integers.
fn limit(
    roof: &Limits,
    cost: &Cost,
    integers: u64,
    working_set: usize,
    half: bool,
) -> Option<(f64, Bound, Option<String>)> {
    let peak = if half { roof.bf16_flops_per_s } else { roof.flops_per_s };
    let floats = cost.flops.saturating_sub(cost.transcendentals).saturating_sub(integers);
    let in_integers = if integers > 0 { integers as f64 / roof.int8_ops_per_s? } else { 0.0 };
    let plain = floats as f64 / peak + in_integers;
    let functions = cost.transcendentals as f64 / roof.functions_per_s;
    // What moves more than there is goes over it again: at the speed of all of it.
    let (once, level) = roof.memory(working_set as u64)?;
    let memory = once * cost.bytes() as f64 / working_set.max(1) as f64;
    let name = Some(level.to_owned());
    Some(if memory >= plain + functions {
        (memory, Bound::Memory, name)
    } else if functions > plain {
        (plain + functions, Bound::Functions, name)
    } else {
        (plain + functions, Bound::Arithmetic, name)
    })
}

fn row(r: &Record<'_>) -> [String; 9] {
    let bound = match (r.bound, &r.level) {
        (Some(Bound::Memory), Some(level)) => level.clone(),
        (Some(Bound::Functions), _) => "functions".into(),
        (Some(Bound::Arithmetic), _) => "arithmetic".into(),
        _ => String::new(),
    };
    [
        r.case.to_owned(),
        r.threads.to_string(),
        plan::seconds(r.samples.min_s),
        format!("{}{}", plan::seconds(r.samples.median_s), if r.noisy { "~" } else { "" }),
        out::rate(r.gflop_s * 1e9),
        out::rate(r.gb_s * 1e9),
        r.part_of_roof.map_or("–".into(), |p| format!("{:.0}%", p * 100.0)),
        bound,
        r.part_of_copy.map_or(String::new(), |p| format!("{:.0}%", p * 100.0)),
    ]
}

fn heading(out: &mut dyn Write, engines: &[Engine], roofs: &[Option<Limits>]) -> Result<()> {
    let name = cpu::name().unwrap_or_else(|why| format!("CPU name unavailable: {why}"));
    let isa = engines.first().map(Engine::isa).unwrap_or_default();
    writeln!(out, "{} {}, {isa}, {} cores", out::paint(out::TITLE, "machine"), name, cpu::cores())?;
    for roof in roofs.iter().flatten() {
        let levels: Vec<String> =
            roof.levels.iter().map(|l| format!("{} {}B/s", l.name, out::rate(l.bytes_per_s()))).collect();
        writeln!(
            out,
            "{} {} (measured): f32 {}flop/s, bf16 {}flop/s, 8-bit integers {}, functions {}/s, {}",
            out::paint(out::TITLE, "roof"),
            out::threads(roof.threads),
            out::rate(roof.flops_per_s),
            out::rate(roof.bf16_flops_per_s),
            integers(roof),
            out::rate(roof.functions_per_s),
            levels.join(", ")
        )?;
    }
    Ok(writeln!(out)?)
}

/// The peak of 8-bit integers in words.
fn integers(roof: &Limits) -> String {
    let path = roof.int8_path.as_deref().unwrap_or("unknown");
    roof.int8_ops_per_s.map_or(format!("– ({path})"), |rate| format!("{}op/s ({path})", out::rate(rate)))
}

fn roof_line(roof: &Limits) -> Result<String> {
    #[derive(Serialize)]
    struct Line<'a> {
        kind: &'static str,
        cpu: Option<String>,
        #[serde(flatten)]
        roof: &'a Limits,
    }
    Ok(serde_json::to_string(&Line { kind: "roof", cpu: cpu::name().ok(), roof })?)
}
