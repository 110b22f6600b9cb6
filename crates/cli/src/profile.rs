//! `schwann profile`: runs models, watches every operation, and says where the time goes.

mod page;

use crate::baseline::Place;
use crate::load::{self, Network, Setting};
use crate::tuned::Tuned;
use crate::{Outcome, devices, gate, out, stop};
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use schwann::nn::train::{Recipe, step_graph};
use schwann::prof::device::{Calibration, Catalog, Entry, data_dir};
use schwann::prof::profile::{Profile, Roof, SCHEMA};
use schwann::prof::profiler::{Options, Phases, Profiler, Subject, Way};
use schwann::prof::study::{self, Instruments};
use schwann::prof::tune::{Changes, Record};
use schwann::prof::{models, profiler, report, trace};
use schwann::show::Cleaner;
use schwann::{DType, heap};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What follows the options in `--help`.
const AFTER_HELP: &str = "Times are of whole runs that nothing watches. In turns with them, the same network runs watched, which gives each \
operation its time; what watching costs is measured, shown, and subtracted.

Examples:
  schwann profile                              two built-in models
  schwann profile circuit.safetensors --batch 1 --steps 1
  schwann profile projected-cfc --compare      unfused, on more threads, in bf16
  schwann profile wired-cfc wired-ltc --sweep=1,32,256 --json
  schwann profile net.safetensors --set N=128 --threads 0
  schwann profile wired-ltc --train            a step of training
  schwann profile projected-cfc --prove        try what is recommended
  schwann profile wired-cfc --device 'M1 Max'  beside what guides ask of it
  schwann profile wired-cfc --trace run.json   for ui.perfetto.dev
  schwann profile wired-cfc --backend wgpu     on the first GPU
  schwann profile wired-cfc --no-tuned         whatever `schwann tune` found
  schwann profile wired-cfc --save main        keep it, to compare later";

#[derive(clap::Args, Default)]
#[command(
    after_help = format!("Built-in models, beside files with a model or a graph (without one: {}):
{}

{AFTER_HELP}", models::DEFAULT.join(" and "), models::listed())
)]
pub(crate) struct Args {
    /// Files, or built-in models (listed below).
    #[arg(value_name = "MODEL", value_parser = load::model_name)]
    models: Vec<String>,
    /// Sequences in a batch [default: 32].
    #[arg(long, value_name = "B", value_parser = load::size)]
    batch: Option<usize>,
    /// Steps of a sequence [default: 16].
    #[arg(long, value_name = "T", value_parser = load::size)]
    steps: Option<usize>,
    /// The size that a symbol of a graph stands for, such as N=128.
    #[arg(long, value_name = "SYMBOL=SIZE")]
    set: Vec<Setting>,
    /// Timed samples [default: 200]; fewer if --seconds runs out first.
    #[arg(long, value_name = "N", value_parser = load::size)]
    runs: Option<usize>,
    /// Seconds for each measurement [default: 2].
    #[arg(long, value_name = "S", value_parser = load::seconds)]
    seconds: Option<f64>,
    /// Threads; 0: one per core [default: 1].
    #[arg(long, value_name = "N", value_parser = load::threads)]
    threads: Option<usize>,
    #[command(flatten)]
    on: load::On,
    /// Run each node of the graph as it was built, without the compiler's passes.
    #[arg(long)]
    node_by_node: bool,
    /// Compute products in bfloat16.
    #[arg(long)]
    bf16: bool,
    /// On a GPU, times inside loops that are one kernel, by leaving parts out; auto: where that takes less than 10 s.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    phases: When,
    /// A whole step of training: forward, mean squared error, gradients and Adam.
    #[arg(long)]
    train: bool,
    /// Measure other ways in turns with this one: node by node, more threads, bfloat16.
    #[arg(long)]
    compare: bool,
    /// Measure other batch sizes too.
    #[arg(long, value_name = "B,B", value_delimiter = ',', num_args = 0.., require_equals = true, default_missing_value = "1,4,16,64,256", value_parser = load::size)]
    sweep: Vec<usize>,
    /// Measure other numbers of steps too.
    #[arg(long, value_name = "T,T", value_delimiter = ',', num_args = 0.., require_equals = true, default_missing_value = "1,4,16,64", value_parser = load::size)]
    sweep_steps: Vec<usize>,
    /// Show beside it what the guides ask of this device, such as M1 Max.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Try each recommendation, measure it, and say whether it helped.
    #[arg(long)]
    prove: bool,
    /// Write the report to this file (`-` is stdout) instead of the data directory.
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Write some runs as they happened, call by call and thread by thread; `-` is stdout.
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Keep the profile under this name (several models: NAME-MODEL).
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    tuned: Tuned,
    /// Do not use this machine's calibration: no limits, no predictions, no advice that needs them.
    #[arg(long)]
    no_roof: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// When to tell apart what is inside of loops.
#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum When {
    #[default]
    Auto,
    Always,
    Never,
}

impl From<When> for Phases {
    fn from(when: When) -> Phases {
        match when {
            When::Auto => Phases::Auto,
            When::Always => Phases::Always,
            When::Never => Phases::Never,
        }
    }
}

/// The document that scripts read.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    profiles: &'a [Profile],
}

impl Args {
    /// Files that are written where somebody said.
    fn outputs(&self) -> impl Iterator<Item = &Path> {
        [&self.html, &self.trace].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Refuses a size that is given twice.
    fn check_sizes(&self) -> Result<()> {
        let flags = [("B", "--batch", self.batch), ("T", "--steps", self.steps)];
        for (i, setting) in self.set.iter().enumerate() {
            let flag = flags.iter().find(|(symbol, _, size)| *symbol == setting.symbol() && size.is_some());
            if let Some((symbol, flag, _)) = flag {
                bail!("{flag} and --set {symbol} say the same; give one of them");
            }
            if self.set[..i].iter().any(|s| s.symbol() == setting.symbol()) {
                bail!("--set {} is given twice", setting.symbol());
            }
        }
        Ok(())
    }

    fn options(&self) -> Result<Options> {
        let usual = Options::default();
        // `--set B=8` is another way to say `--batch 8`.
        let set = |symbol: &str| self.set.iter().rev().find(|s| s.symbol() == symbol).map(Setting::size);
        let others = self.set.iter().filter(|s| !["B", "T"].contains(&s.symbol()));
        Ok(Options {
            batch: set("B").or(self.batch).unwrap_or(usual.batch),
            steps: set("T").or(self.steps).unwrap_or(usual.steps),
            sizes: others.map(|s| (s.symbol().to_owned(), s.size())).collect(),
            runs: self.runs.unwrap_or(usual.runs),
            seconds: self.seconds.unwrap_or(usual.seconds),
            threads: self.threads.unwrap_or(usual.threads),
            backend: self.on.choice()?,
            isa: None,
            dtype: if self.bf16 { DType::Bf16 } else { usual.dtype },
            fused: !self.node_by_node,
            tuning: Changes::default(),
        })
    }

    /// The options of a tuned record, where there is one for what is profiled, and the record. Without --threads, one that was
    /// free to choose them counts too.
    fn tuned(&self, subject: &Subject) -> Result<(Options, Option<Record>)> {
        let options = self.options()?;
        if self.node_by_node || self.bf16 || self.train {
            return Ok((options, None));
        }
        let sizes = profiler::sizes_of(subject, &options).map_err(in_flags)?;
        let threads: &[usize] = if self.threads.is_some() { &[options.threads] } else { &[options.threads, 0] };
        let found = self.tuned.find(&self.place.shared, subject, &sizes, (&options.choice()?, threads));
        Ok(match found {
            None => (options, None),
            Some(record) => {
                let options = Options { threads: record.key.threads, ..options };
                (record.config().apply(&options), Some(record))
            }
        })
    }

    /// Ways worth comparing with what was asked for.
    fn ways(&self) -> Result<Vec<Way>> {
        let mut ways = vec![if self.node_by_node { Way::Fused } else { Way::NodeByNode }];
        let (cores, threads) = (schwann::prof::device::cpu::cores(), self.options()?.threads);
        let on_cpu = self.on.choice()?.is_cpu();
        if on_cpu && threads != 0 && threads != cores {
            ways.push(Way::Threads(cores));
        }
        if on_cpu && threads != 1 {
            ways.push(Way::Threads(1));
        }
        ways.push(Way::Products(if self.bf16 { DType::F32 } else { DType::Bf16 }));
        Ok(if self.compare { ways } else { vec![] })
    }

    /// The sizes of the sweep: every batch with every number of steps.
    fn points(&self) -> Result<Vec<(usize, usize)>> {
        let options = self.options()?;
        let or = |list: &[usize], one: usize| if list.is_empty() { vec![one] } else { list.to_vec() };
        if self.sweep.is_empty() && self.sweep_steps.is_empty() {
            return Ok(vec![]);
        }
        let (batches, steps) = (or(&self.sweep, options.batch), or(&self.sweep_steps, options.steps));
        Ok(steps.iter().flat_map(|&t| batches.iter().map(move |&b| (b, t))).collect())
    }
}

/// What a whole profile needs to know of the machine and of devices.
struct Known {
    calibration: Option<Calibration>,
    /// The limits of what is run on, where that is another device than the processor.
    roof: Option<Roof>,
    catalog: Catalog,
    device: Option<Entry>,
}

/// Runs that a trace holds: enough to see what is usual.
const TRACED_RUNS: usize = 6;

/// Without any option, other ways and sizes are measured too.
pub(crate) fn everything() -> Args {
    Args { seconds: Some(0.8), compare: true, sweep: vec![1, 8, 32, 128], prove: true, ..Args::default() }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let names: Vec<&str> = match &args.models[..] {
        [] => models::DEFAULT.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    out::apart(args.outputs(), names.iter().map(Path::new))?;
    args.check_sizes()?;
    if args.json && args.outputs().any(out::is_stdout) {
        bail!("--json is printed on stdout, where --html or --trace is to go as well; give that a file");
    }
    // All of them are looked at before the first is measured, and so is the device.
    let subjects = names
        .iter()
        .map(|name| Ok((*name, if args.train { step(name)? } else { subject(name)? })))
        .collect::<Result<Vec<_>>>()?;
    let catalog = Catalog::load()?;
    let device = args.device.as_deref().map(|name| catalog.find(name).cloned()).transpose()?;
    stop::listen();
    let choice = args.on.choice()?;
    let calibration = if args.no_roof || !choice.is_cpu() { None } else { Some(devices::calibration()?) };
    let roof = if args.no_roof { None } else { devices::roof_of(&choice)? };
    let known = Known { calibration, roof, catalog, device };
    let cancel = stop::keep();
    let (ways, points) = (args.ways()?, args.points()?);
    let bar = out::progress(100 * (subjects.len() * (3 + ways.len() + points.len())) as u64);
    let (mut profiles, mut traces) = (vec![], vec![]);
    for (name, subject) in subjects {
        if stop::asked() {
            break;
        }
        match one(args, name, subject, &known, &cancel, &bar) {
            Ok((profile, trace)) => {
                profiles.push(profile);
                traces.extend(trace);
            }
            Err(e) if e.downcast_ref::<profiler::Error>().is_some_and(profiler::Error::is_cancelled) => break,
            Err(e) => return Err(e.context(format!("model {name}"))),
        }
    }
    bar.finish_and_clear();
    if profiles.is_empty() {
        out::note("stopped before anything was measured; nothing was written");
        return Ok(Outcome::Stopped);
    }
    deliver(args, &profiles, &traces)?;
    let partial = profiles.iter().any(|p| p.partial.is_some());
    if partial || profiles.len() < names.len() {
        let whole = profiles.iter().filter(|p| p.partial.is_none()).count();
        out::note(&format!("stopped: {whole} of {} profiles are whole; what was measured is kept", names.len()));
        return Ok(Outcome::Stopped);
    }
    Ok(Outcome::Done)
}

/// A built-in model or a file.
pub(crate) fn subject(name: &str) -> Result<Subject> {
    Ok(match load::named(name)? {
        Network::Graph(graph) => (*graph).into(),
        Network::Model(model) => (*model).into(),
    })
}

/// A step of training of a built-in model or a file's.
fn step(name: &str) -> Result<Subject> {
    match load::named(name)? {
        Network::Graph(_) => bail!("--train wants a model's layers; {name} is a graph"),
        Network::Model(model) => Ok(step_graph(&model, &Recipe::default())?.into()),
    }
}

/// Everything about one model.
fn one(
    args: &Args,
    name: &str,
    subject: Subject,
    known: &Known,
    cancel: &Arc<AtomicBool>,
    bar: &ProgressBar,
) -> Result<(Profile, Option<trace::Trace>)> {
    let (options, record) = args.tuned(&subject)?;
    let processor = args.on.processor(options.threads)?;
    let mut profiler = Profiler::new(subject)
        .named(name)
        .tuned(record.map(|r| r.in_use()))
        .with(options)
        .compared(args.ways()?)
        .swept(args.points()?)
        .phases(args.phases.into())
        .counting(Instruments::default())
        .allocations(heap::allocations)
        .cancelled_by(Arc::clone(cancel))
        .built_from(option_env!("SCHWANN_COMMIT"))
        .starting(gate::start::starter(name))
        .telling(stages(bar, name));
    // What is known of this machine is known of its processor.
    let calibration = known.calibration.as_ref().zip(processor);
    if let Some((calibration, processor)) = &calibration {
        profiler = profiler.under(calibration.ceiling(processor.threads()));
    }
    if let Some(roof) = &known.roof {
        profiler = profiler.under_device(roof.clone());
    }
    let mut profile = profiler.profile_all().map_err(in_flags)?;
    if let Some((calibration, _)) = &calibration {
        let plan = profiler.plan()?;
        let mut advice = study::conclude(&mut profile, &plan, calibration, &known.catalog, known.device.as_ref());
        if args.prove {
            study::prove(&mut profile, &mut advice, &mut profiler)?;
        }
    }
    let trace = match args.trace.as_ref().map(|_| profiler.record(TRACED_RUNS)) {
        Some(Err(e)) if e.is_cancelled() => {
            profile.stopped_at("no trace");
            None
        }
        Some(recording) => Some(recording?.told(&profile)),
        None => None,
    };
    Ok((profile, trace))
}

/// Writes what was asked for: the report, the trace, the baselines, and what is printed.
fn deliver(args: &Args, profiles: &[Profile], traces: &[trace::Trace]) -> Result<()> {
    // What is kept comes before what is printed: whoever reads our output may go away before its end.
    if let Some(name) = &args.save {
        args.place.save(name, profiles)?;
    }
    if let Some(path) = args.trace.as_ref().filter(|_| !traces.is_empty()) {
        let written = schwann::io::write_file(out::place(path), |out| {
            let mut out = Cleaner::new(out);
            trace::write_all(traces, &mut out)?;
            out.flush()
        });
        written.with_context(|| format!("cannot write {}", path.display()))?;
        let name = if out::is_stdout(path) { "the trace".into() } else { path.display().to_string() };
        out::note(&format!("wrote {name}; open it at ui.perfetto.dev (its times include the cost of watching)"));
    }
    let report = match (&args.html, args.json) {
        (Some(path), _) => {
            out::deliver(path, &report::html(profiles))?;
            None
        }
        (None, true) => None,
        (None, false) => Some(match usual_report(profiles) {
            Ok(path) => path.display().to_string(),
            Err(why) => format!("not written ({why:#}); --html FILE says where it should go"),
        }),
    };
    let mut out = out::talk(args.outputs());
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&Document { schema: SCHEMA, profiles })?)?;
    } else {
        for (i, profile) in profiles.iter().enumerate() {
            if i > 0 {
                writeln!(out)?;
            }
            page::write(&mut out, profile, out::width())?;
        }
    }
    if let Some(line) = report {
        writeln!(out, "\n  {} {}", out::paint(out::NAME, "Report:"), out::printable(&line))?;
    }
    Ok(out.flush()?)
}

/// Writes the report where it goes if nobody says: the latest one, in the user's data directory.
fn usual_report(profiles: &[Profile]) -> Result<PathBuf> {
    let folder = data_dir()?.join("reports");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join("latest.html");
    schwann::io::write_text(&path, &report::html(profiles))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The library's refusal, with the flag that answers it.
fn in_flags(error: profiler::Error) -> anyhow::Error {
    match error {
        profiler::Error::Size { symbol } => {
            anyhow::anyhow!("no size for `{symbol}`: a profile is for fixed sizes; add --set {symbol}=32")
        }
        other => other.into(),
    }
}

/// Moves the bar on by a stage whenever another thing is told of.
fn stages<'a>(bar: &'a ProgressBar, name: &str) -> impl FnMut(&str, f64) + 'a {
    let name = out::printable(name);
    let (mut stage, mut last) = (bar.position() / 100, String::new());
    move |what, part| {
        if what != last {
            stage += u64::from(!last.is_empty());
            last = what.to_owned();
        }
        bar.set_position(100 * stage + (part * 100.0) as u64);
        bar.set_message(format!("{name}: {what}"));
    }
}
