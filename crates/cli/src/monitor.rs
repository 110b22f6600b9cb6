//! `schwann monitor`: a model that runs, watched while it runs.
//!
//! A source gives moments: a model that is driven here, a program that lets itself be watched, or a recording. One thread
//! takes them from there, asks the rules, records, and hands them on; views show them, on the main thread or from servers.

mod drive;
mod feed;
mod history;
mod json;
mod serve;
mod stall;
mod tui;
mod web;

use crate::load;
use crate::{Outcome, out, stop};
use anyhow::{Context, Result, bail};
use feed::{Desk, Feed};
use schwann::prof::live::{Error, Source};
use schwann::prof::models;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// What follows the options in `--help`.
const AFTER_HELP: &str =
    "On a terminal the view is drawn there; into a pipe goes a line for each moment. Ctrl-C ends it.

Examples:
  schwann monitor wired-cfc                       flat out, in the terminal
  schwann monitor net.safetensors --batch 1 --steps 1 --rate 1kHz --deadline 1ms
  schwann monitor wired-cfc --web                 in a browser
  schwann monitor wired-cfc --json --for 10s      a line of JSON for each moment
  schwann monitor wired-cfc --record run.jsonl    keep it ...
  schwann monitor --replay run.jsonl              ... and look at it again";

#[derive(clap::Args)]
#[command(
    after_help = format!("Built-in models, beside files with a model or a graph:\n{}\n\n{AFTER_HELP}", models::listed())
)]
pub(crate) struct Args {
    /// The model to run and watch: a file, or a built-in model (listed below).
    #[arg(value_name = "MODEL", value_parser = load::model_name, required_unless_present_any = ["replay"])]
    model: Option<String>,
    /// Watch a recording.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "driven"])]
    replay: Option<PathBuf>,
    #[command(flatten)]
    driven: drive::Driven,
    /// Time between two moments.
    #[arg(long, value_name = "TIME", default_value = "0.5s", value_parser = time)]
    every: f64,
    /// End after this time.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    duration: Option<f64>,
    /// Write all moments to this file as well, to look at them again with --replay.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print JSON lines: what is watched, then a line for each moment.
    #[arg(long, conflicts_with = "web")]
    json: bool,
    /// Show it in a browser, at this address; one that others can reach needs the token that is then printed.
    #[arg(long, value_name = "ADDR", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:8417", value_parser = serve::address)]
    web: Option<serve::Address>,
}

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
    out::apart(args.record.as_deref(), args.replay.as_deref())?;
    if let Some(path) = &args.record {
        out::not_stdout(path, "--record", "a file's name (--json prints the same)")?;
    }
    stop::listen();
    let source = source(args)?;
    let cancel = stop::keep();
    let (desk, feed) = Desk::new(source.about().clone(), std::sync::Arc::clone(&cancel));
    if let Some(path) = &args.record {
        desk.record(path)?;
    }
    let pump = {
        let (desk, duration) = (desk.clone(), args.duration);
        let may_skip = args.replay.is_none();
        std::thread::Builder::new().name("schwann moments".into()).spawn(move || {
            let ended = pump(source, &desk, duration, may_skip);
            desk.close();
            ended
        })
    };
    let pump = pump.context("cannot start a thread")?;
    let shown = show(args, feed, &desk);
    let interrupted = stop::asked();
    // Whoever closed the view wants no more moments.
    cancel.store(true, Ordering::Relaxed);
    let Ok(pumped) = pump.join() else {
        bail!("the thread that takes moments broke; this is a mistake in this program")
    };
    let left = shown?;
    if let Some(why) = pumped? {
        out::note(&why);
    }
    if left == Left::Baseline {
        return drive::save_baseline(args.model.as_deref().unwrap_or_default(), &args.driven);
    }
    if desk.lost_recording() {
        return Ok(Outcome::Refused);
    }
    Ok(if interrupted || left == Left::Stopped { Outcome::Stopped } else { Outcome::Done })
}

/// What is watched.
fn source(args: &Args) -> Result<Box<dyn Source>> {
    let cancel = stop::listen();
    match (&args.model, &args.replay) {
        (_, Some(path)) => drive::replay(path, !args.json || args.web.is_some(), cancel),
        (Some(model), None) => {
            drive::drive(model, &args.driven, args.every.min(args.duration.unwrap_or(f64::MAX)), cancel)
        }
        (None, None) => bail!("nothing to watch: give a MODEL or --replay FILE"),
    }
}

/// The one view that has the main thread.
fn show(args: &Args, feed: Feed, desk: &Desk) -> Result<Left> {
    match &args.web {
        Some(address) => web::web(feed, address, desk)?,
        None if args.json => json::lines(&feed)?,
        None => return tui::terminal(feed, desk, drive::baseline(args.model.as_deref(), &args.driven)),
    }
    Ok(Left::Done)
}

/// What whoever left a view wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Done,
    /// Nothing: it was Ctrl-C.
    Stopped,
    /// A profile of the model, saved as a baseline.
    Baseline,
}

/// Takes moments from the source and hands them on until there are no more; gives why there are no more.
fn pump(
    mut source: Box<dyn Source>,
    desk: &Desk,
    duration: Option<f64>,
    may_skip: bool,
) -> Result<Option<String>, Error> {
    let mut first = None;
    while let Some(moment) = source.next_moment()? {
        let began = *first.get_or_insert(moment.at_s - moment.span_s);
        let last = duration.is_some_and(|d| moment.at_s - began >= d);
        desk.give(moment, may_skip);
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
