//! What is watched: a model that is run here, or a recording.

use crate::load::{self, Setting};
use crate::{Outcome, devices, out, profile};
use anyhow::{Context, Result, bail};
use schwann::Isa;
use schwann::backend::Choice;
use schwann::prof::live::{self, Drive, Replay, Source};
use schwann::prof::profiler::{self, Ceiling, Options};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How a model is driven.
#[derive(clap::Args, Debug)]
#[group(id = "driven", multiple = true)]
pub(super) struct Driven {
    /// Sequences in a batch [default: 32].
    #[arg(long, value_name = "B", value_parser = load::size)]
    batch: Option<usize>,
    /// Steps of a sequence [default: 16].
    #[arg(long, value_name = "T", value_parser = load::size)]
    steps: Option<usize>,
    /// The size that a symbol of a graph stands for, such as N=128.
    #[arg(long, value_name = "SYMBOL=SIZE")]
    set: Vec<Setting>,
    /// Threads; 0: one per core [default: 1].
    #[arg(long, value_name = "N", value_parser = load::threads)]
    threads: Option<usize>,
    #[command(flatten)]
    on: load::On,
    /// Runs a second, such as 1kHz; without it, as many as it can.
    #[arg(long, value_name = "HZ", value_parser = rate)]
    rate: Option<f64>,
    /// The time within which a run should end, such as 1ms: misses are counted.
    #[arg(long, value_name = "TIME", value_parser = super::time)]
    deadline: Option<f64>,
}

/// Reads runs a second: `1000`, `1kHz`.
fn rate(text: &str) -> Result<f64, String> {
    let plain = text.strip_suffix("Hz").unwrap_or(text).trim();
    let (number, scale) = match plain.strip_suffix('k') {
        Some(number) => (number, 1e3),
        None => (plain, 1.0),
    };
    match number.trim().parse::<f64>() {
        Ok(v) if v > 0.0 && v * scale <= 1e9 => Ok(v * scale),
        _ => Err("expected runs a second, more than 0, such as 50, 1000Hz or 1kHz".into()),
    }
}

impl Driven {
    fn options(&self) -> Result<Options> {
        let flags = [("B", "--batch", self.batch), ("T", "--steps", self.steps)];
        for (i, setting) in self.set.iter().enumerate() {
            if let Some((symbol, flag, _)) = flags.iter().find(|(s, _, size)| *s == setting.symbol() && size.is_some())
            {
                bail!("{flag} and --set {symbol} say the same; give one of them");
            }
            if self.set[..i].iter().any(|s| s.symbol() == setting.symbol()) {
                bail!("--set {} is given twice", setting.symbol());
            }
        }
        let usual = Options::default();
        let set = |symbol: &str| self.set.iter().find(|s| s.is_for(symbol)).map(Setting::size);
        let others = self.set.iter().filter(|s| !["B", "T"].contains(&s.symbol()));
        Ok(Options {
            batch: set("B").or(self.batch).unwrap_or(usual.batch),
            steps: set("T").or(self.steps).unwrap_or(usual.steps),
            sizes: others.map(|s| (s.symbol().to_owned(), s.size())).collect(),
            threads: self.threads.unwrap_or(usual.threads),
            backend: self.on.choice()?,
            ..usual
        })
    }
}

/// The command that profiles a model as it runs here, and saves that under the model's name.
fn profiling(model: &str, args: &Driven) -> Vec<String> {
    let name = Path::new(model).file_stem().map_or(model.into(), |stem| stem.to_string_lossy());
    let mut words: Vec<String> = ["profile", model, "--save", &name].map(str::to_owned).into();
    let sizes = [("--batch", args.batch), ("--steps", args.steps), ("--threads", args.threads)];
    for (flag, size) in sizes {
        words.extend(size.into_iter().flat_map(|size| [flag.to_owned(), size.to_string()]));
    }
    for setting in &args.set {
        words.extend(["--set".to_owned(), format!("{}={}", setting.symbol(), setting.size())]);
    }
    words.extend(args.on.words());
    words
}

/// What a view asks before it saves a baseline; or why it cannot.
pub(super) fn baseline(model: Option<&str>, args: &Driven) -> Result<String, String> {
    let whole = "a baseline is a profile of a model, and there is no model here: schwann profile MODEL --save NAME";
    let model = model.ok_or(whole)?;
    let command = out::printable(&profiling(model, args).join(" "));
    Ok(format!("This leaves the monitor, since a profile needs the machine for itself, and runs: schwann {command}"))
}

/// Profiles the model and saves that, in a process of its own: nothing of the monitor runs beside it.
pub(super) fn save_baseline(model: &str, args: &Driven) -> Result<Outcome> {
    let words = profiling(model, args);
    out::note(&format!("schwann {}", words.join(" ")));
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let ended = Command::new(program).args(&words).status().context("cannot start the profile")?;
    match ended.code() {
        Some(0) => Ok(Outcome::Done),
        Some(130) => Ok(Outcome::Stopped),
        _ => bail!("no baseline was saved: `schwann {}` ended with {ended}", words.join(" ")),
    }
}

/// The limits of what a model is run on, where they are known already.
pub(super) fn ceiling(choice: &Choice, threads: usize) -> Result<Option<Ceiling>> {
    if !choice.is_cpu() {
        return Ok(devices::roof_of(choice)?.map(|roof| Ceiling { roof, level_bytes: vec![] }));
    }
    let isa = choice.wanted_variant().and_then(Isa::named).unwrap_or_else(Isa::detect);
    let threads = load::cpu(Some(isa), threads)?.threads();
    Ok(devices::calibrated(isa).map(|calibration| calibration.ceiling(threads)))
}

/// Runs a model from now on.
pub(super) fn drive(model: &str, args: &Driven, every_s: f64, cancel: Arc<AtomicBool>) -> Result<Box<dyn Source>> {
    let options = args.options()?;
    let subject = profile::subject(model)?;
    let ceiling = ceiling(&options.backend, options.threads)?;
    let (rate, deadline_s, name) = (args.rate, args.deadline, model.to_owned());
    let driven = live::drive(&subject, Drive { name, options, rate, deadline_s, every_s, ceiling }, cancel);
    driven.map_err(|e| match e {
        live::Error::Run(profiler::Error::Size { symbol }) => {
            anyhow::anyhow!("no size for `{symbol}`: a run is of fixed sizes; add --set {symbol}=32")
        }
        other => other.into(),
    })
}

/// A recording, at the pace that it was recorded at or as fast as it is read.
pub(super) fn replay(path: &Path, paced: bool, cancel: Arc<AtomicBool>) -> Result<Box<dyn Source>> {
    out::detail(&format!("reading {}", path.display()));
    let cannot = || format!("cannot replay {}", path.display());
    let file = File::open(path).with_context(cannot)?;
    if file.metadata().with_context(cannot)?.is_dir() {
        bail!("{}: it is a folder; expected a recording", cannot());
    }
    Ok(Box::new(Replay::new(BufReader::new(file), paced, cancel).with_context(cannot)?))
}
