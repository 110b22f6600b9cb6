//! `schwann validate`: a model against a device's requirements, with an exit code.

use crate::{Outcome, devices, load, out, profile};
use anyhow::{Result, bail};
use schwann::prof::device::Catalog;
use schwann::prof::profiler::{Options, Profiler};
use schwann::prof::study;
use serde_json::json;
use std::io::Write;

#[derive(clap::Args)]
#[command(
    after_help = "What a model reaches on a device that is not here is predicted, from this machine's calibration and \
what is published of the device. Exit code 0: every requirement is met; 1: one is not met, or not known.

Examples:
  schwann validate W --device \"M1 Max\" --require minimum
  schwann validate net.safetensors --device m1 --require target --batch 64 --json"
)]
pub(crate) struct Args {
    /// A file, or a built-in model: P, W, L, G.
    #[arg(value_name = "MODEL")]
    model: String,
    /// The device, such as \"M1 Max\".
    #[arg(long, value_name = "NAME")]
    device: String,
    /// Which of its requirements.
    #[arg(long, value_name = "LEVEL", default_value = "minimum", value_parser = ["minimum", "target"])]
    require: String,
    /// Sequences in a batch; without it, what suits the device.
    #[arg(long, value_name = "B", value_parser = load::size)]
    batch: Option<usize>,
    /// Steps of a sequence.
    #[arg(long, value_name = "T", default_value_t = 16, value_parser = load::size)]
    steps: usize,
    /// Threads; 0 for one a core of this machine.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = load::threads)]
    threads: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let catalog = Catalog::load()?;
    let device = catalog.find(&args.device)?;
    if device.minimum.flops.is_empty() && device.target.flops.is_empty() {
        let with = catalog.devices.iter().filter(|d| !d.minimum.flops.is_empty());
        let with: Vec<&str> = with.map(|d| d.name.as_str()).collect();
        bail!("nobody published requirements for {}; there are some for {}", device.name, with.join(", "));
    }
    let subject = profile::subject(&args.model)?;
    let suited = schwann::prof::device::settings_for(device, &catalog)?.get_optimal_batch_size();
    let batch = args.batch.or(suited).unwrap_or(32);
    let calibration = devices::calibration()?;
    let threads = load::cpu(None, args.threads)?.threads();
    let options =
        Options { batch, steps: args.steps, threads: args.threads, runs: 60, seconds: 0.5, ..Options::default() };
    let mut profiler =
        Profiler::new(subject).named(args.model.as_str()).with(options).under(calibration.ceiling(threads));
    let mut profile = profiler.profile_all()?;
    study::conclude(&mut profile, &profiler.plan()?, &calibration, &catalog, Some(device));
    let lines: Vec<_> = profile.requirements.iter().filter(|r| r.level == args.require).collect();
    let passed = !lines.is_empty() && lines.iter().all(|r| r.met == Some(true));
    if args.json {
        let document = json!({
            "model": args.model, "device": device.name, "level": args.require, "passed": passed,
            "batch": profile.workload.batch, "steps": profile.workload.steps, "requirements": lines,
            "efficiency": profile.efficiency,
        });
        out::print(&serde_json::to_string_pretty(&document)?)?;
    } else {
        let mut out = out::stdout();
        let title = format!("{} on {}, {} requirements, batch {batch}", args.model, device.name, args.require);
        writeln!(out, "{}", out::paint(out::TITLE, out::printable(&title)))?;
        for r in &lines {
            let (word, style) = match r.met {
                Some(true) => ("met", out::GOOD),
                Some(false) => ("not met", out::BAD),
                None => ("not known", out::DIM),
            };
            let most = if r.metric == "memory" { "at most" } else { "at least" };
            let line = format!("{most} {}", devices::number(&r.required));
            let reached = match &r.reached.reason {
                Some(why) => format!("unavailable ({})", out::printable(why)),
                None => format!("{} ({:?})", devices::number(&r.reached), r.reached.provenance).to_lowercase(),
            };
            writeln!(out, "  {:<10} {line:<22} reaches {reached}: {}", r.metric, out::paint(style, word))?;
        }
        out.flush()?;
    }
    Ok(if passed { Outcome::Done } else { Outcome::Differs })
}
