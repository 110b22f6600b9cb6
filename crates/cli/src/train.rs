//! `schwann train` and `schwann eval`: circuits learn here.

mod config;
mod examples;
mod show;

use crate::{Outcome, load, out, stop};
use anyhow::{Context, Result, anyhow, bail};
use config::{Ready, Text};
use schwann::CompileOptions;
use schwann::live::{self, Door};
use schwann::memory::Budget;
use schwann::nn::data::{Layout, Loader, Order};
use schwann::nn::train::{Ended, Evaluation, Go, Progress, Recipe, Step, Trainer, Way, step_graph, ways};
use schwann::nn::{Segments, Timespans};
use schwann::plan::{bytes, seconds};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "A training is a TOML file: the model's layers, the data, how to learn.
docs/training.md lists every key. In the folder that it names are then
best.safetensors (the model with the least loss), last.safetensors (the latest
checkpoint), log.csv, log.jsonl, curves.svg and report.html.

A training that ended in any way, even by a kill, goes on from its checkpoint
and comes to the same weights, to the bit, with as many threads.

Examples:
  schwann train --example sine             a first training, in seconds
  schwann train --example cart-pole        LTC, CfC, wired CfC and LSTM compared
  schwann train --example sine --show-config > my.toml
  schwann train my.toml
  schwann train my.toml --ways             time against memory of a step
  schwann train my.toml --watch arm        and: schwann monitor --attach arm
  schwann train my.toml --graph step.safetensors
  schwann profile step.safetensors --set B=32 --set T=16")]
pub(crate) struct Args {
    /// The training.
    #[arg(value_name = "CONFIG.toml", required_unless_present = "example", conflicts_with = "example")]
    config: Option<PathBuf>,
    /// A training that needs nothing else: sine, cart-pole or ternary.
    #[arg(long, value_name = "NAME")]
    example: Option<String>,
    /// Print the training of an example, to begin a file of your own with.
    #[arg(long, requires = "example")]
    show_config: bool,
    /// Keep checkpoints and logs in this folder instead of the training's own.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Take so many steps in all, whatever the training says.
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Begin anew, and write over the checkpoint that there is.
    #[arg(long)]
    anew: bool,
    /// Show what a step takes in time and memory, for each way to compute it, and train nothing.
    #[arg(long)]
    ways: bool,
    /// Write a step as a network, to look at, profile and predict like any other, and train nothing.
    #[arg(long, value_name = "STEP.safetensors")]
    graph: Option<PathBuf>,
    /// Write the data as arrays, to train on elsewhere, and train nothing.
    #[arg(long, value_name = "DATA.npz")]
    write_data: Option<PathBuf>,
    /// Threads; 0: one per core.
    #[arg(long, value_name = "N", default_value = "0", value_parser = load::threads)]
    threads: usize,
    #[command(flatten)]
    on: load::On,
    /// Let the steps be watched under this name: `schwann monitor --attach NAME`.
    #[arg(long, value_name = "NAME")]
    watch: Option<String>,
    /// Print one JSON object per line: the log as it grows, then what came of it.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "The data is the validation's part of the training's own; where it has none, all of it.

Examples:
  schwann eval my.toml                     the best model of its folder
  schwann eval my.toml --model last.safetensors --json")]
pub(crate) struct EvalArgs {
    /// The training that says what data and loss are.
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
    /// The model, if not best.safetensors of the training's folder.
    #[arg(long, value_name = "MODEL.safetensors")]
    model: Option<PathBuf>,
    /// Threads; 0: one per core.
    #[arg(long, value_name = "N", default_value = "0", value_parser = load::threads)]
    threads: usize,
    #[command(flatten)]
    on: load::On,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What came of one training.
pub(crate) struct Trained {
    name: String,
    folder: PathBuf,
    ended: Ended,
    steps: u64,
    best: Option<(u64, f64)>,
    metric_name: &'static str,
    parameters: usize,
    memory: usize,
    seconds: f64,
    records: Vec<schwann::nn::train::Record>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let texts = match (&args.example, &args.config) {
        (Some(name), _) => examples::texts(name, Path::new("")).ok_or_else(|| {
            let near = schwann::prof::nearest::did_you_mean(name, examples::NAMES);
            anyhow!("--example is {name}{near}; expected one of {}", examples::NAMES.join(", "))
        })?,
        (None, Some(path)) => vec![("", Text::read(path)?)],
        (None, None) => bail!("expected a training, or --example"),
    };
    if args.show_config {
        let all: Vec<&str> = texts.iter().map(|(_, text)| text.text.as_str()).collect();
        out::print(&all.join("\n"))?;
        return Ok(Outcome::Done);
    }
    let several = texts.len() > 1;
    let door = args.watch.as_deref().map(live::open).transpose().context("--watch")?;
    let mut done = vec![];
    for (name, text) in &texts {
        let mut ready = text.ready()?;
        if let Some(folder) = &args.folder {
            let own = ready.options.folder.take().unwrap_or_default();
            let last = own.file_name().map(PathBuf::from).filter(|_| several).unwrap_or_default();
            ready.options.folder = Some(folder.join(last));
        }
        if let Some(path) = &args.graph {
            let graph = step_graph(&ready.model, &its_recipe(&ready)?.0).map_err(|e| ready.explained(e))?;
            schwann::io::save(out::place(path), &graph)?;
            out::note(&format!("wrote {}", path.display()));
            return Ok(Outcome::Done);
        }
        if let Some(path) = &args.write_data {
            schwann::io::write_npz(out::place(path), ready.data.arrays())?;
            out::note(&format!("wrote {}", path.display()));
            return Ok(Outcome::Done);
        }
        if args.ways {
            show_ways(args, &ready)?;
            continue;
        }
        let trained = one(args, name, ready, door.as_ref())?;
        let stopped = trained.ended == Ended::Stopped;
        done.push(trained);
        if stopped {
            break;
        }
    }
    if args.ways {
        return Ok(Outcome::Done);
    }
    show::results(&done, args.json, several)?;
    let stopped = done.iter().any(|d| d.ended == Ended::Stopped);
    Ok(if stopped { Outcome::Stopped } else { Outcome::Done })
}

fn compile(on: &load::On, threads: usize, budget: Budget) -> Result<CompileOptions> {
    Ok(CompileOptions::default().backend(on.choice()?).threads(threads).budget(budget))
}

/// The recipe of this training's steps, with what follows from the data.
fn its_recipe(ready: &Ready) -> Result<(Recipe, Layout)> {
    let layout = Layout::of(&ready.model, ready.options.recipe.loss, &ready.data, &ready.training)
        .map_err(|e| ready.explained(e))?;
    let own = &ready.options.recipe;
    let timespans = if layout.timed { Timespans::PerStep } else { own.timespans };
    Ok((Recipe { masked: layout.masked, carried: layout.carried, timespans, ..own.clone() }, layout))
}

/// The ways to compute a step of this training.
fn its_ways(ready: &Ready, compile: &CompileOptions) -> Result<Vec<Way>> {
    let (recipe, layout) = its_recipe(ready)?;
    let loader = loader(ready, layout)?;
    let batch_bytes = loader.bytes(ready.options.batch)?;
    let sizes = (ready.options.batch, ready.training.steps);
    if !layout.steps {
        let step = Step::new(&ready.model, &recipe, compile)?;
        return Ok(vec![Way { segment: None, memory: step.memory(sizes.0, sizes.1, batch_bytes)? }]);
    }
    ways(&ready.model, &recipe, compile, sizes, batch_bytes).map_err(|e| ready.explained(e))
}

fn loader(ready: &Ready, layout: Layout) -> Result<Loader> {
    let order = Order { shuffle: None, fill: false };
    let windows = Arc::new(ready.training.clone());
    Ok(Loader::new(Arc::clone(&ready.data), windows, layout, order, ready.options.batch)?)
}

/// Takes the first way that fits: they go from quick to small.
fn choose(ready: &mut Ready, compile: &CompileOptions) -> Result<()> {
    let steps = ready.training.steps;
    if let Some(each) = ready.segment {
        ready.options.recipe.segments = Some(Segments { steps, each });
        return Ok(());
    }
    let Some(most) = ready.memory else { return Ok(()) };
    let ways = its_ways(ready, compile)?;
    let fits = ways.iter().find(|way| way.memory.total_bytes() <= most);
    // Where none does, the least takes fewer windows at a time.
    let way = fits.or_else(|| ways.iter().min_by_key(|way| way.memory.total_bytes()));
    if let Some(each) = way.and_then(|way| way.segment) {
        ready.options.recipe.segments = Some(Segments { steps, each });
        out::note(&format!(
            "a step would take {}; sequences are cut into segments of {each} steps, which are computed again: {} (derived)",
            bytes(ways[0].memory.total_bytes() as u64),
            way.map_or(String::new(), |way| bytes(way.memory.total_bytes() as u64)),
        ));
    }
    Ok(())
}

fn one(args: &Args, name: &str, mut ready: Ready, door: Option<&Door>) -> Result<Trained> {
    let budget = ready.memory.map_or_else(load::budget, Budget::bytes);
    let compile = compile(&args.on, args.threads, budget)?;
    choose(&mut ready, &compile)?;
    ready.options.compile = compile;
    ready.options.epochs = ready.epochs;
    if let Some(steps) = args.steps {
        (ready.options.steps, ready.options.epochs) = (steps, None);
    }
    let made =
        Trainer::new(&ready.model, &ready.data, ready.training.clone(), ready.validation.clone(), &ready.options);
    let mut trainer = made.map_err(|e| ready.explained(e))?;
    if let Some(door) = door {
        trainer.watch(door);
    }
    let folder = ready.options.folder.clone().unwrap_or_default();
    if trainer.has_checkpoint() && !args.anew {
        let step = trainer.resume().context("--anew begins anew, and writes over the checkpoint")?;
        out::note(&format!("{}: goes on from step {step}", folder.display()));
    }
    let memory = trainer.memory()?;
    out::note(&format!(
        "{}{} windows, {} steps of {}; a step takes {} (derived): {} of values, {} of weights and what the optimizer \
         remembers, {} of batches",
        if name.is_empty() { String::new() } else { format!("{name}: ") },
        ready.training.list.len(),
        trainer.steps_in_all(),
        ready.options.batch.min(ready.training.list.len().max(1)),
        bytes(memory.total_bytes() as u64),
        bytes(memory.arena_bytes as u64),
        bytes((memory.state_bytes + memory.weight_bytes) as u64),
        bytes(memory.batch_bytes as u64),
    ));

    stop::keep();
    let bar = out::progress(trainer.steps_in_all());
    bar.set_position(trainer.steps_done());
    let (begun, mut shown) = (Instant::now(), Instant::now());
    let mut sink = out::stdout();
    let mut watch = |progress: &Progress<'_>| {
        if args.json && progress.new_record {
            let _ = progress.records.last().map(|record| show::json_line(&mut sink, name, record));
        }
        if shown.elapsed() > Duration::from_millis(100) {
            shown = Instant::now();
            bar.set_position(progress.step);
            bar.set_message(show::told(name, progress));
        }
        if stop::asked() { Go::Stop } else { Go::On }
    };
    let ended = trainer.run(&mut watch);
    bar.finish_and_clear();
    sink.flush()?;
    let ended = ended.with_context(|| format!("training in {} ended", folder.display()))?;
    let trained = Trained {
        name: name.to_owned(),
        ended,
        steps: trainer.steps_done(),
        best: trainer.best(),
        metric_name: ready.options.recipe.loss.metric(),
        parameters: ready.model.params().iter().map(schwann::nn::Param::count).sum(),
        memory: memory.total_bytes(),
        seconds: begun.elapsed().as_secs_f64(),
        records: trainer.records().to_vec(),
        folder,
    };
    show::write(&trained)?;
    Ok(trained)
}

/// A step in each way, timed.
fn show_ways(args: &Args, ready: &Ready) -> Result<()> {
    let compile = compile(&args.on, args.threads, Budget::unlimited())?;
    let found = its_ways(ready, &compile)?;
    let (own, layout) = its_recipe(ready)?;
    let mut loader = loader(ready, layout)?;
    let batch = loader.next_batch()?.batch().clone();
    let steps = ready.training.steps;
    let mut table = out::Table::new(&["segment", ">memory", ">values", ">a step", ">times"]);
    let mut first = None;
    for way in &found {
        let segments = way.segment.map(|each| Segments { steps, each });
        let recipe = Recipe { segments, ..own.clone() };
        let mut step = Step::new(&ready.model, &recipe, &compile)?;
        let mut least = f64::INFINITY;
        step.run(&batch)?;
        for _ in 0..5 {
            let begun = Instant::now();
            step.run(&batch)?;
            least = least.min(begun.elapsed().as_secs_f64());
        }
        let whole = *first.get_or_insert(least);
        if args.json {
            let line = serde_json::json!({ "segment": way.segment, "memory": way.memory, "step_s": least });
            out::print(&line.to_string())?;
        }
        table.row([
            way.segment.map_or("whole".into(), |n| format!("{n} steps")),
            bytes(way.memory.total_bytes() as u64),
            bytes(way.memory.arena_bytes as u64),
            seconds(least),
            format!("{:.2}×", least / whole),
        ]);
    }
    if !args.json {
        let mut out = out::stdout();
        table.write(&mut out)?;
        let text = "memory is planned (derived); times are the least of 5 steps (measured). Segments are computed again \
                    by the backward pass.";
        out::paragraph(&mut out, 0, out::DIM, text)?;
    }
    Ok(())
}

pub(crate) fn eval(args: &EvalArgs) -> Result<Outcome> {
    let text = Text::read(&args.config)?;
    let ready = text.ready()?;
    let folder = ready.options.folder.clone().unwrap_or_default();
    let file = args.model.clone().unwrap_or_else(|| folder.join("best.safetensors"));
    let model = load::model(&file)?;
    let windows = if ready.validation.list.is_empty() { &ready.training } else { &ready.validation };
    let loss = ready.options.recipe.loss;
    let layout = Layout::of(&model, loss, &ready.data, windows).map_err(|e| ready.explained(e))?;
    // Weights in the file are rounded already, where they were trained to be.
    let recipe = Recipe {
        groups: vec![],
        masked: layout.masked,
        carried: layout.carried,
        timespans: if layout.timed { Timespans::PerStep } else { ready.options.recipe.timespans },
        ..ready.options.recipe.clone()
    };
    let compile = compile(&args.on, args.threads, load::budget())?;
    let mut evaluation = Evaluation::new(&model, &recipe, &compile)?;
    let batch = ready.options.batch.min(windows.list.len());
    let order = Order { shuffle: None, fill: false };
    let mut loader = Loader::new(Arc::clone(&ready.data), Arc::new(windows.clone()), layout, order, batch)?;
    let begun = Instant::now();
    let [value, metric] = evaluation.all(&mut loader, &|name| model.weight(name))?;
    let took = begun.elapsed().as_secs_f64();
    let count = windows.list.len();
    if args.json {
        let line = serde_json::json!({
            "model": file, "windows": count, "loss": value, "metric": metric, "metric_name": loss.metric(),
            "seconds": took, "provenance": "measured",
        });
        out::print(&line.to_string())?;
        return Ok(Outcome::Done);
    }
    let mut out = out::stdout();
    writeln!(out, "{} {}", out::paint(out::TITLE, "loss"), show::number(value))?;
    writeln!(out, "{} {}", out::paint(out::TITLE, loss.metric()), show::number(metric))?;
    let part = if ready.validation.list.is_empty() { "all of the data" } else { "the validation's part" };
    let text = format!("measured on {part}, {count} windows, in {}, of {}", seconds(took), file.display());
    out::paragraph(&mut out, 0, out::DIM, &text)?;
    Ok(Outcome::Done)
}
