//! `schwann predict`: what a model would take on a device, per operation; on this machine, beside a measurement.

mod side;

use crate::devices::{calibration, is_host, number};
use crate::load::{self, Network, Setting};
use crate::{Outcome, out};
use anyhow::{Context, Result, bail};
use schwann::nn::{GraphOptions, InitialState};
use schwann::pass::PassOptions;
use schwann::plan::{Plan, bytes, count, rough};
use schwann::prof::device::gpu::{GpuPrediction, Place, Point, Prospect, on_gpu, place};
use schwann::prof::device::predict::{NEURAL_ENGINE, NEVER_COMPARED, Prediction, Speed, predict, two_digits};
use schwann::prof::device::roof::{Ready, numbers};
use schwann::prof::device::{Calibration, Catalog, Entry, on, outlook, prediction_error};
use schwann::prof::profile::{Bound, DeviceOutlook};
use schwann::{Bindings, DType, Figure, Graph, Tensor};
use serde_json::json;
use std::io::Write;

#[derive(clap::Args)]
#[command(
    after_help = "MODEL is a file (a model or a graph), or a built-in model (`schwann profile --help` lists them).

Times are predicted from this machine's calibration (measured once, in about ten seconds) and, for other devices, from \
what is published of them. A prediction is a range with its reasons, given with two digits. Unless a device's page says \
otherwise, nobody has compared its predictions with a real one; `schwann devices check` says how good they are on this machine.

For Macs, the GPU stands beside the CPU: where should this model run, and at which batch does the GPU begin to win?

Examples:
  schwann predict wired-cfc --batch 32 --steps 16    every device that is known
  schwann predict wired-cfc --device 'M1 Max'        one, in detail: CPU and GPU
  schwann predict wired-cfc --device host            beside a measurement
  schwann predict net.safetensors --set B=32 --device m4 --json"
)]
pub(crate) struct Args {
    /// A model's or graph's file, or a built-in model.
    #[arg(value_name = "MODEL", value_parser = load::model_name)]
    model: String,
    /// The device, such as M1 Max; `host` for this machine. Without it, a table of all.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Sequences in a batch.
    #[arg(long, value_name = "B", default_value_t = 1, value_parser = load::size)]
    batch: usize,
    /// Steps of a sequence.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = load::size)]
    steps: usize,
    /// A size that a graph leaves open, such as B=32; for graphs whose sizes are not B and T.
    #[arg(long = "set", value_name = "SYMBOL=SIZE")]
    settings: Vec<Setting>,
    /// Threads; 0: one per core of this machine.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = load::threads)]
    threads: usize,
    /// Seconds to measure on this machine; 0 for no measurement.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The network as a graph, from states of zero where it is a model.
fn graph(name: &str) -> Result<Graph> {
    Ok(match load::named(name)? {
        Network::Graph(graph) => *graph,
        Network::Model(model) => model.graph(&GraphOptions::default().state(InitialState::Zero))?,
    })
}

/// Sizes of the graph's symbols: what was set, then `B`, `T` and the features of models.
fn sizes(graph: &Graph, (batch, steps): (usize, usize), settings: &[Setting]) -> Result<Bindings> {
    let mut settings = settings.to_vec();
    for (symbol, size) in [("B", batch), ("T", steps)] {
        let known = graph.symbols().contains(symbol);
        if known && !settings.iter().any(|s| s.is_for(symbol)) {
            settings.push(Setting::new(symbol, size));
        }
    }
    load::bindings(graph, &settings)
}

/// A network compiled for these sizes, with inputs to run it on.
pub(crate) fn ready(
    model: &str,
    shape: (usize, usize),
    settings: &[Setting],
    threads: usize,
) -> Result<(Ready, Bindings)> {
    let graph = graph(model)?;
    let sizes = sizes(&graph, shape, settings)?;
    let cpu = load::cpu(None, threads)?;
    let mut inputs = vec![];
    for (name, value) in graph.inputs() {
        let ty = graph.ty(value);
        let shape = ty.shape.eval(&sizes)?;
        let data = match ty.dtype {
            DType::F32 => numbers(DType::F32, &shape, -1.0, 1.0)?,
            other => Tensor::zeros(other, &shape)?,
        };
        inputs.push((name.to_owned(), data));
    }
    Ok((Ready::new(&graph, inputs, cpu.backend(), PassOptions::default())?, sizes))
}

/// What a model would take on the GPU of a device, and where it should run, at this batch and at others.
fn on_both(
    args: &Args,
    ready: &Ready,
    sizes: &Bindings,
    device: &Entry,
    calibration: &Calibration,
    cpu: &Figure,
) -> Result<(GpuPrediction, Place)> {
    let prospect = Prospect::new(&graph(&args.model)?)?;
    let work = prospect.work(sizes);
    let gpu = on_gpu(work.as_ref().map_err(String::as_str), device);
    let mut points = vec![];
    if gpu.time.value.is_some() && cpu.value.is_some() && sizes.get("B").is_some() {
        for batch in place::batches() {
            let sizes = sizes.clone().with("B", batch);
            // Beyond what a run may do, there is nothing to ask about.
            let (Ok(plan), Ok(work)) = (ready.session().program().plan(&sizes), prospect.work(&sizes)) else { break };
            let cpu = on(&plan, device, calibration).time;
            points.push(Point::new(batch, cpu, on_gpu(Ok(&work), device).time));
        }
    }
    let place = Place::new(cpu, &gpu, points);
    Ok((gpu, place))
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if !(args.seconds >= 0.0 && args.seconds <= 3600.0) {
        bail!("--seconds is {}; expected 0 to 3600", args.seconds);
    }
    let catalog = Catalog::load()?;
    let host = args.device.as_deref().is_none_or(is_host);
    let device = match args.device.as_deref() {
        Some(name) if !is_host(name) => Some(catalog.find(name)?),
        _ => None,
    };
    let (mut ready, sizes) = ready(&args.model, (args.batch, args.steps), &args.settings, args.threads)?;
    let calibration = calibration()?;
    let (plan, measured) = measure(&mut ready, &sizes, if host { args.seconds } else { 0.0 })?;
    let mut out = out::stdout();
    match (&args.device, device) {
        (None, _) => {
            let work = Prospect::new(&graph(&args.model)?)?.work(&sizes);
            let work = work.as_ref().map_err(String::as_str);
            let all = outlook(&plan, &catalog, &calibration, measured.as_ref(), Some(work));
            if args.json {
                let all = json!({ "model": args.model, "sizes": plan.bindings, "threads": plan.threads, "measured": measured, "devices": all });
                writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
            } else {
                heading(&mut out, args, &plan)?;
                table(&mut out, &all, measured.as_ref())?;
            }
        }
        (Some(_), device) => {
            let prediction = match device {
                Some(device) => on(&plan, device, &calibration),
                None => predict(&plan, &Speed::host(&calibration, plan.threads)),
            };
            let error = measured.as_ref().map(|m| prediction_error(&prediction.time, m));
            let both = device.map(|d| on_both(args, &ready, &sizes, d, &calibration, &prediction.time)).transpose()?;
            let (gpu, place) = both.unzip();
            if args.json {
                let all = json!({ "model": args.model, "sizes": plan.bindings, "prediction": prediction, "measured": measured, "error": error, "gpu": gpu, "where": place });
                writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
            } else {
                heading(&mut out, args, &plan)?;
                page(&mut out, &prediction, measured.as_ref(), error.as_ref())?;
                if let (Some(device), Some(gpu), Some(place)) = (device, &gpu, &place) {
                    let cores = device.performance_cores.first().map(|c| c.value as usize);
                    side::page(&mut out, args.batch, cores, &prediction, gpu, place)?;
                }
                paragraph(&mut out, &format!("Neural Engine: unavailable; {NEURAL_ENGINE}"))?;
            }
        }
    }
    out.flush()?;
    Ok(Outcome::Done)
}

/// The plan, and the machine's own time where it is wanted.
fn measure(ready: &mut Ready, sizes: &Bindings, seconds: f64) -> Result<(Plan, Option<Figure>)> {
    if seconds == 0.0 {
        let plan = ready.session().program().plan(sizes).with_context(|| format!("no plan for {sizes}"))?;
        return Ok((plan, None));
    }
    let bar = out::progress(1);
    bar.set_message("measuring this machine");
    let samples = ready.time(seconds)?;
    bar.finish_and_clear();
    let plan = ready.session().plan().context("a run leaves a plan")?.clone();
    let source = format!(
        "Session::run, least of {} samples; median {}",
        samples.samples,
        schwann::plan::seconds(samples.median_s)
    );
    Ok((plan, Some(Figure::measured(samples.min_s, "s", source))))
}

fn heading(out: &mut dyn Write, args: &Args, plan: &Plan) -> Result<()> {
    let cost = plan.cost();
    let title = out::paint(out::TITLE, out::printable(&args.model));
    let sizes = if plan.bindings == Bindings::new() { String::new() } else { format!(" for {}", plan.bindings) };
    let work = format!(
        "{} flops, {} functions, at least {} moved",
        count(cost.flops),
        count(cost.transcendentals),
        bytes(cost.bytes())
    );
    writeln!(out, "{title}{sizes}, {}: {work} (derived)", out::threads(plan.threads))?;
    Ok(writeln!(out)?)
}

/// A predicted time with two digits, and its band.
fn band(time: &Figure) -> (String, String) {
    let likely = time.value.map_or("–".into(), rough);
    (likely, time.spread.map_or(String::new(), |s| format!("{} to {}", rough(s.low), rough(s.high))))
}

/// The same in words: `51 µs (16 µs to 160 µs)`.
pub(crate) fn told(time: &Figure) -> String {
    match band(time) {
        (likely, between) if between.is_empty() => likely,
        (likely, between) => format!("{likely} ({between})"),
    }
}

fn table(out: &mut dyn Write, all: &[DeviceOutlook], measured: Option<&Figure>) -> Result<()> {
    let mut table = out::Table::new(&["device", ">predicted", "expected between", ">of peak", "on its GPU between"]);
    for d in all {
        let (likely, between) = band(&d.time);
        let gpu = d.gpu_time.as_ref().map_or(String::new(), |t| t.value.map_or("–".into(), |_| band(t).1));
        let peak = d.utilization.value.map_or("–".into(), |v| format!("{}%", two_digits(v)));
        let name: String = if d.host { "this machine".into() } else { d.device.chars().take(24).collect() };
        table.row([out::printable(&name), likely, between, peak, gpu]);
    }
    table.write(out)?;
    writeln!(out)?;
    if let (Some(measured), Some(host)) = (measured, all.iter().find(|d| d.host)) {
        let error = host.error.value.map_or("–".into(), |e| schwann::prof::plot::unit::change(e, 0));
        writeln!(out, "this machine: {} measured; the prediction is {error} off", number(measured))?;
    }
    let unknown = all.iter().filter(|d| d.time.value.is_none());
    for d in unknown {
        paragraph(out, &format!("{}: no prediction, {}", d.device, d.time.reason.as_deref().unwrap_or("not known")))?;
    }
    paragraph(
        out,
        &format!(
            "On the CPU's cores, and in the last column on the GPU, where that is predicted. This machine's times come from \
             its calibration; those of the others are scaled from it by what is published, and were {NEVER_COMPARED}, unless \
             their page says so. --device NAME says why a band is as wide as it is."
        ),
    )?;
    paragraph(out, &format!("Neural Engine: unavailable; {NEURAL_ENGINE}"))
}

fn paragraph(out: &mut dyn Write, text: &str) -> Result<()> {
    Ok(out::paragraph(out, 0, out::DIM, text)?)
}

fn page(out: &mut dyn Write, p: &Prediction, measured: Option<&Figure>, error: Option<&Figure>) -> Result<()> {
    if p.time.value.is_none() {
        let why = p.time.reason.as_deref().unwrap_or("not known");
        writeln!(out, "{}: unavailable; {}", out::printable(&p.device), out::printable(why))?;
        return Ok(());
    }
    let mut table = out::Table::new(&["operation", "kernel", ">calls", ">predicted", ">share", "bound by"]);
    for op in &p.ops {
        let indent = if op.within.is_some() { "  " } else { "" };
        let bound = match op.bound {
            Bound::Compute => "arithmetic",
            Bound::Functions => "functions",
            Bound::Memory => "memory",
            Bound::Overhead => "overhead",
            Bound::Unknown => "–",
        };
        let calls = op.calls.value.map_or("–".into(), |c| count(c as u64));
        let short = |text: &str, most: usize| -> String {
            let text = out::printable(text);
            if text.chars().count() > most { text.chars().take(most - 1).chain(['…']).collect() } else { text }
        };
        table.row([
            short(&format!("{indent}{}", op.name), 20),
            short(&op.kernel, 22),
            calls,
            op.time.value.map_or("–".into(), rough),
            op.share.value.map_or("–".into(), |v| format!("{}%", two_digits(v))),
            bound.into(),
        ]);
    }
    table.write(out)?;
    writeln!(out)?;
    let device = out::printable(&p.device);
    let (likely, between) = band(&p.time);
    writeln!(out, "{} {likely} per run on {device} (predicted)", out::paint(out::TITLE, "total"))?;
    writeln!(out, "expected between {between}; {} of it beside the operations", band(&p.overhead).0)?;
    if !p.host {
        out::paragraph(out, 0, out::BAD, &p.compared)?;
    }
    if let (Some(measured), Some(error)) = (measured, error) {
        let error = error.value.map_or("–".into(), |e| schwann::prof::plot::unit::change(e, 0));
        writeln!(out, "measured here {}; the prediction is {error} off", number(measured))?;
    }
    let used = match (p.utilization.value, &p.utilization.reason) {
        (Some(v), _) => format!("{}% of the peak in use", two_digits(v)),
        (None, why) => format!("share of the peak unknown: {}", why.as_deref().unwrap_or("not measured")),
    };
    let rates = p.tflops.value.zip(p.bandwidth.value);
    let rates = rates.map_or(String::new(), |(t, b)| {
        format!(", {} Gflop/s, {} GB/s (predicted)", two_digits(t * 1e3), two_digits(b))
    });
    writeln!(out, "{used}{rates}")?;
    writeln!(out)?;
    writeln!(out, "{}", out::paint(out::TITLE, "why the band is as wide as it is"))?;
    for reason in &p.reasons {
        writeln!(out, "{}", out::wrap(&out::printable(reason), "  · ", "    ", out::width()))?;
    }
    paragraph(out, &format!("source: {}", p.time.source))
}
