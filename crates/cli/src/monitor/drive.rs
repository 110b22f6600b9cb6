//! What is watched: a model that is run here, or a recording.

use crate::load::{self, Setting};
use crate::{devices, out, profile};
use anyhow::{Context, Result, bail};
use schwann::Isa;
use schwann::backend::Choice;
use schwann::prof::baseline::{Store, default_path};
use schwann::prof::live::{self, Drive, Replay, Source};
use schwann::prof::profiler::{self, Ceiling, Options, Profiler};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a model is driven.
#[derive(clap::Args, Debug)]
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
pub(super) fn drive(
    model: &str,
    args: &Driven,
    deadline_s: Option<f64>,
    every_s: f64,
    cancel: Arc<AtomicBool>,
) -> Result<(Box<dyn Source>, Baselines)> {
    let options = args.options()?;
    let subject = profile::subject(model)?;
    let ceiling = ceiling(&options.backend, options.threads)?;
    let (rate, name) = (args.rate, model.to_owned());
    let pause = Arc::new(AtomicBool::new(false));
    let baselines = Baselines { model: name.clone(), options: options.clone(), pause: Arc::clone(&pause) };
    let how = Drive { name, options, rate, deadline_s, every_s, ceiling, pause };
    let driven = live::drive(&subject, how, cancel).map(|source| (source, baselines));
    driven.map_err(|e| match e {
        live::Error::Run(profiler::Error::Size { symbol }) => {
            anyhow::anyhow!("no size for `{symbol}`: a run is of fixed sizes; add --set {symbol}=32")
        }
        other => other.into(),
    })
}

/// Makes baselines of a model that is driven here.
pub(super) struct Baselines {
    model: String,
    options: Options,
    pause: Arc<AtomicBool>,
}

impl Baselines {
    /// Profiles the model, run as it is watched, and keeps that under a name. Meanwhile, for about two seconds, it is not
    /// driven: neither should disturb the other.
    pub(super) fn save(&self, name: &str) -> Result<()> {
        self.pause.store(true, Ordering::Relaxed);
        let profiled = Profiler::new(profile::subject(&self.model)?)
            .named(&self.model)
            .with(Options { seconds: BASELINE_SECONDS, ..self.options.clone() })
            .profile_all();
        self.pause.store(false, Ordering::Relaxed);
        Store::create(&default_path()?)?.save(name, &profiled?)?;
        Ok(())
    }
}

/// What a baseline's measurements take.
const BASELINE_SECONDS: f64 = 1.0;

/// Watches a program that opened its door.
#[cfg(unix)]
pub(super) fn attach(
    who: &str,
    deadline_s: Option<f64>,
    every_s: f64,
    cancel: Arc<AtomicBool>,
) -> Result<Box<dyn Source>> {
    let limits = |threads: usize| ceiling(&Choice::default(), threads).ok().flatten();
    Ok(live::attach(&live::Attach { who, deadline_s, every_s, ceiling: &limits }, cancel)?)
}

/// Says that this system has no doors.
#[cfg(not(unix))]
pub(super) fn attach(_: &str, _: Option<f64>, _: f64, _: Arc<AtomicBool>) -> Result<Box<dyn Source>> {
    Err(schwann::live::Error::System.into())
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
