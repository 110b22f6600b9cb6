//! `schwann tune`: searches for a faster way to compile a network on this machine, and keeps it.

mod batches;
mod experiment;
mod page;

use crate::load::{self, Setting};
use crate::tuned::{self, Shared};
use crate::{Outcome, gate, out, profile, stop, validate};
use anyhow::{Context, Result, bail};
use schwann::backend::Choice;
use schwann::prof::models;
use schwann::prof::profiler::{self, Options};
use schwann::prof::tune::{self, Changes, Key, Objective, Record, Store, Tuner, Verdict};
use serde::Serialize;
use std::path::PathBuf;

/// What follows the options in `--help`.
const AFTER_HELP: &str = "It tries numbers of the tuning record that this network depends on, the number of threads (unless \
--threads gives it), fusion on and off, and with --max-error weights and products in bfloat16. Candidates take turns with \
the default; the better half stays, round by round. The best is then timed anew against the default in starts of the \
program of its own, and kept only if it is surely better. Later runs and profiles of the same network with the same sizes on \
this machine use it without being asked (--no-tuned: not).

Examples:
  schwann tune wired-ltc                         32 sequences of 16 steps
  schwann tune net.safetensors --budget 5min --batch 1 --steps 1
  schwann tune net.safetensors --threads 1 --objective throughput
  schwann tune net.safetensors --max-error 1e-3  also in bfloat16
  schwann tune net.safetensors --set N=128 --json
  schwann tune net.safetensors --batches         which batch?
  schwann tune net.safetensors --batches --latency 2ms --svg sizes.svg
  schwann tune net.safetensors --forget          back to the default
  schwann tune --list                            what is kept

Exit codes: 0 done, also where nothing better was found; 2 wrong usage or bad input; 130 stopped by Ctrl-C.";

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = format!("Built-in models, beside files with a model or a graph:
{}

{AFTER_HELP}", models::listed())
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// A file, or a built-in model (listed below).
    #[arg(value_name = "MODEL", value_parser = load::model_name, required_unless_present = "list")]
    model: Option<String>,
    /// How long to search.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = tuned::budget)]
    budget: f64,
    /// Sequences in a batch [default: 32].
    #[arg(long, value_name = "B", value_parser = load::size)]
    batch: Option<usize>,
    /// Steps of a sequence [default: 16].
    #[arg(long, value_name = "T", value_parser = load::size)]
    steps: Option<usize>,
    /// The size that a symbol of a graph stands for, such as N=128.
    #[arg(long, value_name = "SYMBOL=SIZE")]
    set: Vec<Setting>,
    /// What a winner has less of: time of a run, core-seconds of a run, or memory.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    objective: Aim,
    /// Threads; 0: one per core, and the search may choose fewer.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = load::threads)]
    threads: usize,
    #[command(flatten)]
    on: load::On,
    /// Weights and products may be in bfloat16, if outputs then differ by no more than this.
    #[arg(long, value_name = "E", value_parser = error, allow_negative_numbers = true)]
    max_error: Option<f64>,
    /// Decides which candidates are tried where there is no time for all.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Begin with the numbers of another class of machines, and try no other class's.
    #[arg(long, value_name = "CLASS")]
    from: Option<String>,
    /// Show throughput, time and memory by the size of the batch, and which size suits.
    #[arg(long, conflicts_with_all = ["objective", "max_error", "from", "batch"])]
    batches: bool,
    /// The time that a run may take, for --batches.
    #[arg(long, value_name = "TIME", requires = "batches", value_parser = validate::duration)]
    latency: Option<f64>,
    /// The largest batch that is looked at, for --batches.
    #[arg(long, value_name = "B", default_value_t = 1024, value_parser = load::size)]
    max_batch: usize,
    /// Write a picture of --batches.
    #[arg(long, value_name = "FILE.svg", requires = "batches")]
    svg: Option<PathBuf>,
    /// Forget what is kept for this network with these sizes and threads.
    #[arg(long, conflicts_with_all = ["batches", "list"])]
    forget: bool,
    /// Show everything that is kept.
    #[arg(long, conflicts_with = "model")]
    list: bool,
    /// Search, and keep nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    shared: Shared,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// Random models, tuned and checked: does a winner ever turn out slower, and what is gained?
    Experiment(experiment::Args),
}

/// What counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Aim {
    /// Time of a run.
    #[default]
    Latency,
    /// Core-seconds of a run.
    Throughput,
    /// Bytes of plan and weights, with runs at most 2% longer.
    Memory,
}

impl From<Aim> for Objective {
    fn from(aim: Aim) -> Objective {
        match aim {
            Aim::Latency => Objective::Latency,
            Aim::Throughput => Objective::Throughput,
            Aim::Memory => Objective::Memory,
        }
    }
}

fn error(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(e) if e >= 0.0 && e.is_finite() => Ok(e),
        _ => Err("expected a number, 0 or more, such as 1e-3".into()),
    }
}

/// What scripts read.
#[derive(Serialize)]
struct Said<'a> {
    #[serde(flatten)]
    outcome: &'a tune::Outcome,
    /// What the record is found by.
    key: &'a Key,
    /// Where it is kept; none where nothing won, or nothing was to be kept.
    kept: Option<String>,
    /// What was kept before, where it was not confirmed and is gone.
    removed: bool,
}

impl Args {
    fn options(&self) -> Result<Options> {
        let usual = Options::default();
        let set = |symbol: &str| self.set.iter().rev().find(|s| s.symbol() == symbol).map(Setting::size);
        for (symbol, flag, given) in [("B", "--batch", self.batch), ("T", "--steps", self.steps)] {
            if given.is_some() && set(symbol).is_some() {
                bail!("{flag} and --set {symbol} say the same; give one of them");
            }
        }
        let others = self.set.iter().filter(|s| !["B", "T"].contains(&s.symbol()));
        let options = Options {
            batch: set("B").or(self.batch).unwrap_or(usual.batch),
            steps: set("T").or(self.steps).unwrap_or(usual.steps),
            sizes: others.map(|s| (s.symbol().to_owned(), s.size())).collect(),
            threads: self.threads,
            backend: self.on.choice()?,
            tuning: Changes { class: self.from.clone(), ..Changes::default() },
            ..usual
        };
        options.tuning.tuning().map_err(|e| anyhow::anyhow!("--from: {e}"))?;
        Ok(options)
    }
}

/// The library's refusal, with the flag that answers it.
fn in_flags(error: tune::Error) -> anyhow::Error {
    match error {
        tune::Error::Profiler(profiler::Error::Size { symbol }) => {
            anyhow::anyhow!("no size for `{symbol}`: a plan is tuned for fixed sizes; add --set {symbol}=32")
        }
        other => other.into(),
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if let Some(What::Experiment(args)) = &args.what {
        return experiment::run(args);
    }
    if args.list {
        return list(args);
    }
    let model = args.model.as_deref().context("no model is named")?;
    let subject = profile::subject(model)?;
    let options = args.options()?;
    if args.batches {
        return batches::run(args, model, &subject, &options);
    }
    let place = tuned::place(&args.shared)?;
    let key = key(&subject, &options).map_err(in_flags)?;
    if args.forget {
        let gone = Store::is_there(&place) && Store::create(&place)?.forget(&key)?;
        out::note(if gone { "forgotten; the default is used again" } else { "nothing was kept for it" });
        return Ok(Outcome::Done);
    }
    // A store that cannot be written is found out before the search and not after it.
    let store = if args.dry_run { None } else { Some(Store::create(&place)?) };
    let earlier = match store.as_ref().map(|store| store.find(&key)) {
        Some(Err(e)) => {
            out::note(&format!("warning: what was kept before cannot be read: {e}"));
            None
        }
        Some(Ok(found)) => found,
        None => None,
    };
    stop::listen();
    let cancel = stop::keep();
    let bar = out::progress(1000);
    let shown = bar.clone();
    let mut tuner = Tuner::new(subject, options)
        .named(model)
        .objective(args.objective.into())
        .budget(args.budget)
        .seed(args.seed)
        .max_error(args.max_error)
        .classes(args.from.is_none())
        .first(first(args, earlier.as_ref()))
        .starting(gate::start::starter(model))
        .cancelled_by(cancel)
        .telling(move |what, part| {
            shown.set_position((part * 1000.0) as u64);
            shown.set_message(what.to_owned());
        });
    let tuned = tuner.tune();
    bar.finish_and_clear();
    let outcome = match tuned {
        Err(e) if e.is_cancelled() => {
            out::note("stopped before anything was measured; nothing was kept");
            return Ok(Outcome::Stopped);
        }
        other => other.map_err(in_flags).with_context(|| format!("model {model}"))?,
    };
    // A record that begins at another class's numbers is an experiment, and no plan for later runs.
    let (mut kept, mut removed) = (None, false);
    if let Some(mut store) = store.filter(|_| args.from.is_none()) {
        if outcome.winner.is_some() {
            kept = store.keep(key.clone(), &outcome)?.map(|_| place.to_string());
        } else if outcome.verdict == Verdict::Nothing && earlier.is_some() {
            removed = store.forget(&key)?;
        }
    }
    if args.json {
        let said = Said { outcome: &outcome, key: &key, kept, removed };
        out::print(&serde_json::to_string_pretty(&said)?)?;
    } else {
        page::write(&outcome, kept.as_deref(), removed)?;
    }
    Ok(if outcome.partial { Outcome::Stopped } else { Outcome::Done })
}

/// What was found before, unless it needs what is not allowed now.
fn first(args: &Args, earlier: Option<&Record>) -> Option<tune::Config> {
    let config = earlier?.config();
    let typed = config.bf16_products || config.changes.bf16_weights;
    let allowed = (!typed || args.max_error.is_some()) && (config.threads.is_none() || args.threads == 0);
    (allowed && args.from.is_none()).then(|| config.clone())
}

/// What the record of a network with these options is found by.
fn key(subject: &profiler::Subject, options: &Options) -> tune::Result<Key> {
    let choice: Choice = options.choice()?;
    Key::new(subject, &profiler::sizes_of(subject, options)?, &choice, options.threads)
}

/// Everything that is kept.
fn list(args: &Args) -> Result<Outcome> {
    let place = tuned::place(&args.shared)?;
    let (all, unreadable) = match Store::is_there(&place) {
        true => Store::open(&place)?.list()?,
        false => (vec![], 0),
    };
    if unreadable > 0 {
        out::note(&format!("{unreadable} records in {place} cannot be read and are left out"));
    }
    if args.json {
        out::print(&serde_json::to_string_pretty(&all)?)?;
    } else if all.is_empty() {
        out::note("nothing is kept; `schwann tune MODEL` searches");
    } else {
        page::list(&all)?;
    }
    Ok(Outcome::Done)
}
