//! `schwann bench circuits`: whole neural circuits, run or trained, through the calls that a program makes.
//!
//! The built-in models are what ncps' users have: a dense CfC with a backbone, a CfC and an LTC on a circuit. Every run
//! starts from states of zero, as ncps does where no state is given.

use super::Engine;
use crate::{Outcome, devices, load, out, stop};
use anyhow::{Context, Result, anyhow, bail};
use schwann::backend::Backend;
use schwann::nn::train::{Batch, Recipe, Step};
use schwann::nn::{self, GraphOptions, InitialState, Model, Timespans};
use schwann::pass::PassOptions;
use schwann::prof::device::cpu;
use schwann::prof::device::roof::{Ready, numbers, peak_flops, share};
use schwann::prof::measure::{Samples, time};
use schwann::prof::models::{self, INPUTS, SHAPES, Sizes};
use schwann::{Bindings, CompileOptions, Cost, DType, Graph, Tensor, plan};
use serde::Serialize;
use std::io::Write;
use std::path::Path;

/// Adam's rate, as in the comparison with other libraries.
const RATE: f32 = 1e-3;
/// Seconds to measure multiply-adds in registers.
const PEAK_SECONDS: f64 = 0.3;
/// Where the table says how many threads; of a processor.
const THREADS_COLUMN: usize = 3;

/// What follows the options in `--help`.
const AFTER_HELP: &str = "Times are of one call of Session::run for a whole batch \
of sequences, starting from states of zero, as ncps does. With --train a call is a full step: forward, loss (mean \
squared error against a random target), gradients of every parameter, and Adam's update of the weights.

Examples:
  schwann bench circuits                three models, four shapes
  schwann bench circuits --model projected-cfc --batch 32 --steps 16
  schwann bench circuits --model wired-cfc --batch 32 --steps 16 --train --json
  schwann bench circuits --model wired-ltc --batch 8 --steps 16 --irregular
  schwann bench circuits --model wired-cfc,wired-ltc --sparsity 0.8
  schwann bench circuits --model circuit.safetensors";

#[derive(clap::Args)]
#[command(
    after_help = format!("Built-in models:
{}

{AFTER_HELP}", models::listed())
)]
pub(super) struct Args {
    /// Built-in models (listed below) or a model's file; several with commas.
    #[arg(long, value_name = "MODEL", value_delimiter = ',', default_values = models::CIRCUITS)]
    model: Vec<String>,
    /// Sequences in a batch.
    #[arg(long, value_name = "B", value_parser = load::size)]
    batch: Option<usize>,
    /// Steps of a sequence.
    #[arg(long, value_name = "T", value_parser = load::size)]
    steps: Option<usize>,
    /// Numbers of threads; 0: one per core.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1", value_parser = load::threads)]
    threads: Vec<usize>,
    /// Seconds for each model, shape and number of threads.
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = load::seconds)]
    seconds: f64,
    /// Time full training steps.
    #[arg(long)]
    train: bool,
    /// A time span of its own for each sample and step, between 0.5 and 1.5, instead of 1 for all.
    #[arg(long)]
    irregular: bool,
    /// Neurons, of a built-in model.
    #[arg(long, value_name = "N", value_parser = load::size)]
    units: Option<usize>,
    /// Features out, of a built-in model.
    #[arg(long, value_name = "N", value_parser = load::size)]
    outputs: Option<usize>,
    /// Layers of the backbone, of projected-cfc and dense-cfc.
    #[arg(long, value_name = "N")]
    backbone_layers: Option<usize>,
    /// About the share of pairs without a synapse, of wired-cfc and wired-ltc, from 0.1 to 1.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    sparsity: Option<f64>,
    #[command(flatten)]
    on: load::On,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// One measurement, as scripts read it.
#[derive(Serialize)]
struct Record<'a> {
    peer: &'static str,
    model: &'a str,
    #[serde(rename = "B")]
    batch: usize,
    #[serde(rename = "T")]
    steps: usize,
    threads: usize,
    min_ms: f64,
    median_ms: f64,
    /// On a device with a clock of its own: its kernels alone, without moving inputs and results.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceTimes>,
    /// Calls that were timed.
    n: usize,
    kind: &'static str,
    first_state: &'static str,
    timespans: &'static str,
    isa: String,
    flops: u64,
    transcendentals: u64,
    gflop_s: f64,
    transcendentals_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    training: Option<Training>,
    noisy: bool,
    provenance: super::Provenances,
}

/// Times by a device's own clock, from the beginning of a call's first kernel to the end of its last.
#[derive(Clone, Copy, Serialize)]
struct DeviceTimes {
    min_ms: f64,
    median_ms: f64,
    n: usize,
}

impl DeviceTimes {
    /// Of sorted times, if there are any.
    fn of(seconds: &[f64]) -> Option<DeviceTimes> {
        let (least, middle) = (*seconds.first()?, *seconds.get(seconds.len() / 2)?);
        Some(DeviceTimes { min_ms: milliseconds(least), median_ms: milliseconds(middle), n: seconds.len() })
    }
}

/// What training did while it was timed.
#[derive(Clone, Copy, Serialize)]
struct Training {
    optimizer: &'static str,
    lr: f32,
    first_loss: f32,
    last_loss: f32,
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let models = models(args)?;
    let shapes = match (args.batch, args.steps) {
        (None, None) => SHAPES.to_vec(),
        (batch, steps) => vec![(batch.unwrap_or(1), steps.unwrap_or(1))],
    };
    let mut threads = args.threads.clone();
    threads.iter_mut().filter(|t| **t == 0).for_each(|t| *t = cpu::cores());
    threads.sort_unstable();
    threads.dedup();

    let of = models.len() * shapes.len() * threads.len();
    stop::keep();
    let bar = out::progress(of as u64);
    let mut out = out::stdout();
    let on_cpu = args.on.choice()?.is_cpu();
    let mut headings = vec![
        "model",
        ">batch",
        ">steps",
        ">min",
        ">median",
        ">a step",
        ">flops",
        ">flop/s",
        ">of peak",
        ">functions/s",
    ];
    if on_cpu {
        headings.insert(THREADS_COLUMN, ">threads");
    }
    let mut table = out::Table::new(&headings);
    let (mut noisy, mut done, mut losses, mut peaks) = (0, 0, vec![], vec![]);
    'all: for &threads in &threads {
        let engine = Engine::new(&args.on, threads)?;
        // Scripts call for one figure at a time, and know the machine.
        let peak = if args.json { None } else { peak(args, &engine, threads)? };
        peaks.extend(peak.as_ref().map(|p| p.told.clone()));
        for (name, model) in &models {
            for &(batch, steps) in &shapes {
                bar.set_message(format!("{name} {batch}×{steps}, {}", out::threads(threads)));
                let record = match measure(args, name, model, (batch, steps), &engine) {
                    Err(e) if e.is::<stop::Stopped>() => break 'all,
                    record => record.with_context(|| format!("model {name}, batch {batch}, {steps} steps"))?,
                };
                done += 1;
                noisy += usize::from(record.noisy);
                if args.json {
                    bar.suspend(|| writeln!(out, "{}", serde_json::to_string(&record)?).map_err(anyhow::Error::from))?;
                    out.flush()?;
                    if out::is_closed() {
                        break 'all;
                    }
                } else {
                    table.row(row(&record, on_cpu, peak.as_ref().map(|p| p.flops)));
                    losses.extend(record.training.map(|t| (format!("{name} {batch}×{steps}"), t)));
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    if args.json {
        return super::ended(&mut out, true, done, of);
    }
    let machine = cpu::name().unwrap_or_else(|why| format!("CPU name unavailable: {why}"));
    let isa = Engine::new(&args.on, 1)?.isa();
    let machine = match on_cpu {
        true => format!("{machine}, {isa}, {} cores", cpu::cores()),
        false => format!("{isa}, in a machine with {machine}"),
    };
    writeln!(out, "{} {}", out::paint(out::TITLE, "machine"), out::printable(&machine))?;
    for (name, model) in &models {
        writeln!(out, "{} {}", out::paint(out::TITLE, out::printable(models::full_name(name))), describe(model))?;
    }
    writeln!(out)?;
    table.write(&mut out)?;
    let what = if args.train { "a full training step" } else { "Session::run" };
    let mut notes = format!(
        "times of {what} (measured); states start at zero in each{}; flops and functions counted in the plan, without \
         what it skips (derived)",
        if args.irregular { "; every sample and step has a time span of its own" } else { "" }
    );
    if !peaks.is_empty() {
        notes += &format!("; peak: {} (measured)", peaks.join(", "));
    }
    writeln!(out, "{}", out::paint(out::DIM, notes))?;
    if args.train {
        let each: Vec<String> =
            losses.iter().map(|(name, t)| format!("{name} {:.3} → {:.3}", t.first_loss, t.last_loss)).collect();
        let text = format!("forward, gradients and Adam (lr {RATE}); loss {}", each.join(", "));
        writeln!(out, "{}", out::paint(out::DIM, text))?;
    }
    if noisy > 0 {
        let text = format!("~ ({noisy}): the median is over 1.2 times the least: something else was running");
        writeln!(out, "{}", out::paint(out::DIM, text))?;
    }
    super::ended(&mut out, false, done, of)
}

/// The most arithmetic that there can be.
struct Peak {
    flops: f64,
    /// What it is, in words.
    told: String,
}

/// The peak of what is timed, measured now: of the processor with so many threads, or of another device. The reference is
/// no device, and has none.
fn peak(args: &Args, engine: &Engine, threads: usize) -> Result<Option<Peak>> {
    if let Some(cpu) = &engine.processor {
        let flops = peak_flops(cpu.isa(), threads, PEAK_SECONDS)?;
        let told = format!("multiply-adds in registers, {}flop/s on {}", out::rate(flops), out::threads(threads));
        return Ok(Some(Peak { flops, told }));
    }
    let roof = devices::roof_of(&args.on.choice()?)?;
    Ok(roof.and_then(|roof| {
        let flops = roof.flops.value?;
        Some(Peak { flops, told: format!("{}, {}flop/s", roof.flops.source, out::rate(flops)) })
    }))
}

/// The models by name, with the options that were given.
fn models(args: &Args) -> Result<Vec<(String, Model)>> {
    let default = Sizes::default();
    let sizes = Sizes {
        units: args.units.unwrap_or(default.units),
        outputs: args.outputs.unwrap_or(default.outputs),
        backbone_layers: args.backbone_layers.unwrap_or(default.backbone_layers),
        sparsity: args.sparsity,
    };
    let mut models = vec![];
    for name in &args.model {
        let model = match (models::built_in(name, &sizes), name.as_str()) {
            (Some(model), _) => model.map_err(in_flags)?,
            (None, file) => {
                let given = [("--units", args.units.is_some()), ("--outputs", args.outputs.is_some())];
                if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
                    bail!("{flag} is for built-in models; --model is {file}, whose sizes are its own");
                }
                if !Path::new(file).exists() {
                    let names = models::BUILT_IN.map(|m| m.name).join(", ");
                    bail!("--model is {file}; expected a model's file or one of {names}");
                }
                load::model(Path::new(file))?
            }
        };
        models.push((name.clone(), model));
    }
    let any = |names: &[&str]| args.model.iter().any(|m| names.contains(&models::full_name(m)));
    if args.sparsity.is_some() && !any(&["wired-cfc", "wired-ltc"]) {
        bail!("--sparsity is for wired-cfc and wired-ltc; --model is {}", args.model.join(","));
    }
    if args.backbone_layers.is_some() && !any(&["projected-cfc", "dense-cfc"]) {
        bail!("--backbone-layers is for projected-cfc and dense-cfc; --model is {}", args.model.join(","));
    }
    Ok(models)
}

/// The library's refusal, with the flag in place of the option's name.
fn in_flags(error: nn::Error) -> anyhow::Error {
    let nn::Error::Argument { argument, got, expected } = &error else { return error.into() };
    let flag = match argument.as_str() {
        "units" => "--units",
        "output_size" | "proj_size" => "--outputs",
        "sparsity_level" => "--sparsity",
        "backbone_layers" => "--backbone-layers",
        _ => return error.into(),
    };
    anyhow!("{flag} is {got}; expected {expected}")
}

/// `CfC(8 → 16, 64 neurons), 25936 parameters`.
fn describe(model: &Model) -> String {
    let layers: Vec<&str> = model.layers().iter().map(nn::Layer::class).collect();
    let parameters: usize = model.params().iter().map(nn::Param::count).sum();
    let sizes = model.info().map(|info| {
        let one = |layer: &nn::LayerInfo| {
            let neurons = format!("{} neurons", layer.units?);
            Some(match (layer.synapses, layer.sensory_synapses) {
                (Some(inner), Some(sensory)) => format!("{neurons}, {inner} synapses and {sensory} from inputs"),
                _ => neurons,
            })
        };
        info.layers.iter().filter_map(one).collect::<Vec<_>>().join("; ")
    });
    format!("{}: {}, {parameters} parameters", layers.join(" → "), sizes.unwrap_or_default())
}

/// One time span for everything, or one for each sample and step.
fn timespans(args: &Args) -> Timespans {
    if args.irregular { Timespans::PerStep } else { GraphOptions::default().timespans }
}

/// An input's data for these sizes.
fn data(graph: &Graph, name: &str, sizes: &Bindings) -> Result<Tensor> {
    let (_, value) = graph.inputs().find(|(n, _)| *n == name).with_context(|| format!("no input `{name}`"))?;
    let ty = graph.ty(value);
    let shape = ty.shape.eval(sizes)?;
    match ty.dtype {
        DType::F32 if name == "timespans" => Ok(numbers(DType::F32, &shape, 0.5, 1.5)?),
        DType::F32 => Ok(numbers(DType::F32, &shape, -1.0, 1.0)?),
        // Symbols: the first one is always there.
        other => Ok(Tensor::zeros(other, &shape)?),
    }
}

fn measure<'a>(
    args: &Args,
    name: &'a str,
    model: &Model,
    (batch, steps): (usize, usize),
    engine: &Engine,
) -> Result<Record<'a>> {
    let sizes = Bindings::new().with("B", batch).with("T", steps).with("C", INPUTS);
    let (samples, cost, training, device) = match args.train {
        true => train(args, model, &sizes, &*engine.backend)?,
        false => {
            let options = GraphOptions::default().state(InitialState::Zero).timespans(timespans(args));
            let graph = model.graph(&options)?;
            let mut inputs = vec![("x".to_owned(), data(&graph, "x", &sizes)?)];
            if args.irregular {
                inputs.push(("timespans".to_owned(), data(&graph, "timespans", &sizes)?));
            }
            let mut ready = Ready::new(&graph, inputs, &*engine.backend, PassOptions::default())?;
            let samples = time(args.seconds, || super::once(&mut ready))?;
            let device = DeviceTimes::of(&ready.device_times(args.seconds)?);
            let cost = ready.session().plan().context("a run leaves a plan")?.cost();
            (samples, cost, None, device)
        }
    };
    Ok(Record {
        peer: "schwann",
        model: name,
        batch,
        steps,
        threads: engine.backend.threads(),
        min_ms: milliseconds(samples.min_s),
        median_ms: milliseconds(samples.median_s),
        device,
        n: samples.samples * samples.calls_per_sample,
        kind: if args.train { "train" } else { "infer" },
        first_state: "zero",
        timespans: if args.irregular { "per step" } else { "one" },
        isa: engine.isa(),
        flops: cost.flops,
        transcendentals: cost.transcendentals,
        gflop_s: cost.flops as f64 / samples.min_s / 1e9,
        transcendentals_s: cost.transcendentals as f64 / samples.min_s,
        training,
        noisy: samples.noisy(),
        provenance: super::Provenances { times: "measured", work: "derived", rates: "derived", roof: "unavailable" },
    })
}

/// To a tenth of a nanosecond, which is more than the clock gives.
fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1e10).round() / 1e7
}

/// Times full training steps: one graph of forward, loss, gradients and optimizer, whose weights stay in the session.
fn train(
    args: &Args,
    model: &Model,
    sizes: &Bindings,
    backend: &dyn Backend,
) -> Result<(Samples, Cost, Option<Training>, Option<DeviceTimes>)> {
    let recipe = Recipe { rate: RATE, timespans: timespans(args), ..Recipe::default() };
    let mut step = Step::new_for(model, &recipe, backend, &CompileOptions::default().budget(load::budget()))?;
    let graph = step.program().graph();
    let mut batch = Batch::new(data(graph, "x", sizes)?, data(graph, "target", sizes)?);
    if args.irregular {
        batch.timespans = Some(data(graph, "timespans", sizes)?);
    }
    let mut losses: Option<(f32, f32)> = None;
    let samples = time(args.seconds, || {
        stop::check()?;
        let loss = step.run(&batch)?.loss;
        losses = Some((losses.map_or(loss, |(first, _)| first), loss));
        Ok::<_, anyhow::Error>(())
    })?;
    let (rows, steps) = batch.sizes();
    let cost = step.plan(rows, steps)?.cost();
    let training =
        losses.map(|(first_loss, last_loss)| Training { optimizer: "Adam", lr: RATE, first_loss, last_loss });
    Ok((samples, cost, training, None))
}

fn row(r: &Record<'_>, on_cpu: bool, peak: Option<f64>) -> Vec<String> {
    let (min, median) = (r.min_ms / 1e3, r.median_ms / 1e3);
    let mut cells = vec![
        out::printable(models::full_name(r.model)),
        r.batch.to_string(),
        r.steps.to_string(),
        plan::seconds(min),
        format!("{}{}", plan::seconds(median), if r.noisy { "~" } else { "" }),
        plan::seconds(min / r.steps as f64),
        plan::count(r.flops),
        out::rate(r.gflop_s * 1e9),
        // Faster than the peak is no share of it: the peak was measured beside other work.
        peak.and_then(|p| share(r.gflop_s * 1e9 / p)).map_or("–".into(), |p| format!("{:.0}%", 100.0 * p)),
        out::rate(r.transcendentals_s),
    ];
    if on_cpu {
        cells.insert(THREADS_COLUMN, r.threads.to_string());
    }
    cells
}
