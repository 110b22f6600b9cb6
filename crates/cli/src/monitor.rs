//! `schwann monitor`: a model that runs, watched while it runs.
//!
//! A source gives moments: a model that is driven here, a program that lets itself be watched, or a recording. One thread
//! takes them from there, asks the rules, records, and hands them on; views show them, on the main thread or from servers.

mod action;
mod alerts;
mod drive;
mod export;
mod feed;
mod history;
mod json;
mod otlp;
mod post;
mod prometheus;
mod serve;
mod stall;
mod tui;
mod web;

use crate::load;
use crate::{Outcome, out, stop};
use action::Action;
use alerts::Alerts;
use anyhow::{Context, Result, bail};
use feed::{Desk, Feed};
use schwann::prof::live::{Error, Rule, Source};
use schwann::prof::models;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What follows the options in `--help`.
const AFTER_HELP: &str =
    "On a terminal the view is drawn there; into a pipe goes a line for each moment. Ctrl-C ends it.

Rules are such as these; figures are those of --json and the machine's readings:
  latency_p99 > 2ms for 5s     misses > 0     roof_share < 50%     rss growth

Examples:
  schwann monitor wired-cfc                       flat out, in the terminal
  schwann monitor net.safetensors --batch 1 --steps 1 --rate 1kHz --deadline 1ms
  schwann monitor --attach robot                  a program that opened its door
  schwann monitor wired-cfc --web                 in a browser
  schwann monitor wired-cfc --json --for 10s      a line of JSON for each moment
  schwann monitor wired-cfc --record run.jsonl    keep it ...
  schwann monitor --replay run.jsonl              ... and look at it again
  schwann monitor --replay run.jsonl --trace run.json     for ui.perfetto.dev
  schwann monitor --attach robot --prometheus 9464        for Prometheus
  schwann monitor --attach robot --otlp http://127.0.0.1    for OpenTelemetry
  schwann monitor wired-cfc --for 30s --fail-on 'latency_p99 > 2ms'

With --fail-on the exit code is 1 where such a rule held, and 3 where it could not be judged.";

#[derive(clap::Args)]
#[command(
    after_help = format!("Built-in models, beside files with a model or a graph:\n{}\n\n{AFTER_HELP}", models::listed())
)]
pub(crate) struct Args {
    /// The model to run and watch: a file, or a built-in model (listed below).
    #[arg(value_name = "MODEL", value_parser = load::model_name, required_unless_present_any = ["replay", "attach"])]
    model: Option<String>,
    /// Watch a program that opened its door, by its name or process number.
    #[arg(long, value_name = "NAME|PID", conflicts_with_all = DRIVEN)]
    attach: Option<String>,
    /// Watch a recording.
    #[arg(long, value_name = "FILE", conflicts_with_all = DRIVEN.into_iter().chain(["attach", "deadline", "every"]))]
    replay: Option<PathBuf>,
    #[command(flatten)]
    driven: drive::Driven,
    /// The time within which a run should end, such as 1ms: misses are counted.
    #[arg(long, value_name = "TIME", value_parser = time)]
    deadline: Option<f64>,
    /// Time between two moments [default: 0.5s].
    #[arg(long, value_name = "TIME", value_parser = time)]
    every: Option<f64>,
    /// End after this time.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    duration: Option<f64>,
    /// Write all moments to this file as well, to look at them again with --replay.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Of a recording, write a trace for Perfetto and end; `-` is stdout.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["json", "web", "prometheus", "otlp", "record"])]
    trace: Option<PathBuf>,
    /// Print JSON lines: what is watched, then a line for each moment.
    #[arg(long, conflicts_with = "web")]
    json: bool,
    /// Show it in a browser, at this address [default: 127.0.0.1:8417].
    #[arg(long, value_name = "ADDR", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:8417", value_parser = serve::address)]
    web: Option<serve::Address>,
    /// Serve metrics for Prometheus at this address, under /metrics.
    #[arg(long, value_name = "ADDR", value_parser = serve::address)]
    prometheus: Option<serve::Address>,
    /// Send each moment's metrics to a collector of OpenTelemetry (OTLP by HTTP, in JSON), such as http://127.0.0.1:4318.
    #[arg(long, value_name = "URL", value_parser = otlp::target)]
    otlp: Option<post::Target>,
    /// The token that requests need, in a file. Without it, addresses that others can reach get a new one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Rules with names and actions, in a TOML file.
    #[arg(long, value_name = "FILE.toml")]
    rules: Option<PathBuf>,
    /// A rule to watch, such as 'latency_p99 > 2ms for 5s'.
    #[arg(long, value_name = "RULE")]
    rule: Vec<Rule>,
    /// A rule that fails the monitor if it ever holds: the exit code is then 1.
    #[arg(long, value_name = "RULE")]
    fail_on: Vec<Rule>,
}

/// Options of a model that is driven here.
const DRIVEN: [&str; 8] = ["model", "batch", "steps", "set", "threads", "backend", "isa", "rate"];
/// Seconds between two moments unless told.
const EVERY: f64 = 0.5;
/// A monitor that ends waits so long for actions of its rules.
const ACTION_TIME: std::time::Duration = std::time::Duration::from_secs(5);

/// Reads a time: `30s`, `500ms`, `2min`.
pub(crate) fn time(text: &str) -> Result<f64, String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic() || c == 'µ' || c == 'μ').unwrap_or(text.len());
    let (value, unit) = (text[..at].trim(), &text[at..]);
    let scale = match unit {
        "h" => 3600.0,
        "min" => 60.0,
        "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" | "μs" => 1e-6,
        "ns" => 1e-9,
        "" => return Err(format!("`{text}` has no unit; expected a time such as 30s, 500ms or 2min")),
        unit => return Err(format!("`{unit}` is not a unit of time; expected h, min, s, ms, us or ns")),
    };
    match value.parse::<f64>() {
        Ok(v) if v > 0.0 && (v * scale).is_finite() && v * scale <= MOST_SECONDS => Ok(v * scale),
        _ => Err(format!("`{text}` is not a time; expected more than 0 and at most a year, such as 30s or 500ms")),
    }
}

/// A longer time is a slip of the finger.
const MOST_SECONDS: f64 = 366.0 * 86400.0;

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match (&args.replay, &args.trace) {
        (Some(recording), Some(path)) => return export::run(recording, path),
        // What conflicts with --replay would also lift a requirement of the parser.
        (None, Some(_)) => bail!("--trace is made of a recording; expected --replay FILE with it"),
        (_, None) => {}
    }
    out::apart(args.record.as_deref(), args.replay.as_deref().into_iter().chain(args.rules.as_deref()))?;
    if let Some(path) = &args.record {
        out::not_stdout(path, "--record", "a file's name (--json prints the same)")?;
    }
    let alerts = Alerts::new(args.rules.as_deref(), &args.rule, &args.fail_on)?;
    // An address that is taken is said before anything is measured.
    let bind = |address: &Option<serve::Address>| {
        address.map(|address| serve::Server::bind(address, args.token_file.as_deref())).transpose()
    };
    let (web, prometheus) = (bind(&args.web)?, bind(&args.prometheus)?);
    stop::listen();
    let (source, baselines) = source(args)?;
    let cancel = stop::keep();
    let (desk, feed) = Desk::new(source.about().clone(), alerts, baselines, Arc::clone(&cancel));
    if let Some(path) = &args.record {
        desk.record(path)?;
    }
    let metrics = prometheus.map(|server| {
        out::note(&format!("metrics at {}", server.url("/metrics")));
        prometheus::start(server, desk.clone())
    });
    let metrics = metrics.transpose()?;
    let sent = args.otlp.clone().map(|target| otlp::start(target, desk.clone())).transpose()?;
    let pump = {
        let (desk, duration, replayed) = (desk.clone(), args.duration, args.replay.is_some());
        std::thread::Builder::new().name("schwann moments".into()).spawn(move || {
            let ended = pump(source, &desk, duration, replayed);
            desk.close();
            ended
        })
    };
    let pump = pump.context("cannot start a thread")?;
    let shown = show(args, web, feed, &desk);
    let interrupted = stop::asked_by_signal();
    // Whoever closed the view wants no more moments.
    cancel.store(true, Ordering::Relaxed);
    let broke = "a thread of the monitor broke, which is a mistake in this program";
    let ended = pump.join().map_err(|_| anyhow::anyhow!(broke));
    let served = metrics.map(|thread| thread.join().map_err(|_| anyhow::anyhow!(broke)));
    let sent = sent.map(|thread| thread.join().map_err(|_| anyhow::anyhow!(broke)));
    shown?;
    if let Some(why) = ended?? {
        out::note(&why);
    }
    served.transpose()?.transpose()?;
    sent.transpose()?;
    Action::wait(ACTION_TIME);
    if desk.lost_recording() {
        return Ok(Outcome::Refused);
    }
    match desk.outcome() {
        Outcome::Differs => Ok(Outcome::Differs),
        _ if interrupted => Ok(Outcome::Stopped),
        outcome => Ok(outcome),
    }
}

/// What is watched, and what makes baselines of it.
fn source(args: &Args) -> Result<(Box<dyn Source>, Option<drive::Baselines>)> {
    let cancel = stop::listen();
    let every = args.every.unwrap_or(EVERY).min(args.duration.unwrap_or(f64::MAX));
    match (&args.model, &args.attach, &args.replay) {
        (_, _, Some(path)) => Ok((drive::replay(path, !args.json, cancel)?, None)),
        (_, Some(who), _) => Ok((drive::attach(who, args.deadline, every, cancel)?, None)),
        (Some(model), ..) => {
            let (source, baselines) = drive::drive(model, &args.driven, args.deadline, every, cancel)?;
            Ok((source, Some(baselines)))
        }
        _ => bail!("nothing to watch: give a MODEL, --attach NAME or --replay FILE"),
    }
}

/// The one view that has the main thread.
fn show(args: &Args, web: Option<serve::Server>, feed: Feed, desk: &Desk) -> Result<()> {
    match web {
        Some(server) => web::web(feed, server, desk),
        None if args.json => json::lines(&feed),
        None => tui::terminal(feed, desk),
    }
}

/// Takes moments from the source and hands them on until there are no more; gives why there are no more. A recording's
/// views wait for nobody, and its alerts stay where no rules are given anew.
fn pump(
    mut source: Box<dyn Source>,
    desk: &Desk,
    duration: Option<f64>,
    replayed: bool,
) -> Result<Option<String>, Error> {
    let mut first = None;
    while let Some(moment) = source.next_moment()? {
        let began = *first.get_or_insert(moment.at_s - moment.span_s);
        // Times are sums of what clocks gave.
        let last = duration.is_some_and(|d| moment.at_s - began >= d * (1.0 - 1e-6));
        desk.give(moment, !replayed);
        if last {
            return Ok(None);
        }
    }
    let ended = source.ended();
    if !desk.is_over() {
        desk.tell_end(ended.clone().unwrap_or_else(|| "there are no more moments".into()));
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("30s", 30.0), ("500ms", 0.5), ("2min", 120.0), ("1h", 3600.0), ("5 us", 5e-6)] {
            assert!((time(text).unwrap() - seconds).abs() < 1e-12, "{text}");
        }
        for bad in ["30", "s", "-1s", "0s", "nans", "infs", "1e300h", "3 weeks", "", "µ"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
