//! `schwann tune --batches`: throughput, time and memory by the size of the batch.

use super::Args;
use crate::{Outcome, out, stop};
use anyhow::{Context, Result};
use schwann::Figure;
use schwann::plan::{bytes, seconds};
use schwann::prof::plot::{self, Size};
use schwann::prof::profiler::{Options, Subject};
use schwann::prof::tune::batch::{Frontier, KNEE, Point, frontier};
use serde::Serialize;
use std::io::Write;

/// Columns of the longest bar.
const BAR: usize = 30;

/// What scripts read.
#[derive(Serialize)]
struct Said<'a> {
    model: &'a str,
    steps: usize,
    threads: usize,
    /// The knee has so much of the greatest throughput.
    knee_share: f64,
    #[serde(flatten)]
    frontier: &'a Frontier,
}

pub(super) fn run(args: &Args, model: &str, subject: &Subject, options: &Options) -> Result<Outcome> {
    stop::listen();
    let cancel = stop::keep();
    let bar = out::progress(u64::from(args.max_batch.ilog2()) + 6);
    let mut tell = |batch: usize| {
        bar.inc(1);
        bar.set_message(format!("batch {batch}"));
    };
    // About twenty sizes share the time.
    let each = (args.budget / 20.0).clamp(0.02, 1.0);
    let found = frontier(subject, options, (args.max_batch, args.latency), each, &cancel, &mut tell);
    bar.finish_and_clear();
    let found = match found {
        Err(e) if e.is_cancelled() => {
            out::note("stopped before anything was measured");
            return Ok(Outcome::Stopped);
        }
        other => other.map_err(super::in_flags).with_context(|| format!("model {model}"))?,
    };
    if let Some(path) = &args.svg {
        let points = found.sweep(options.steps);
        let own = Some((found.knee as f64, options.steps as f64));
        let picture = plot::sweep_of(&points, own, "the knee", Size::WIDE);
        let picture = picture.map_err(|e| anyhow::anyhow!("no picture: {e}"))?;
        out::deliver(path, &picture.file())?;
    }
    if args.json {
        let said = Said { model, steps: options.steps, threads: options.threads, knee_share: KNEE, frontier: &found };
        out::print(&serde_json::to_string_pretty(&said)?)?;
    } else {
        page(model, options, &found)?;
    }
    Ok(if found.partial { Outcome::Stopped } else { Outcome::Done })
}

fn time(figure: &Figure) -> String {
    figure.value.map_or_else(|| "unknown".into(), seconds)
}

fn page(model: &str, options: &Options, f: &Frontier) -> Result<()> {
    let mut out = out::stdout();
    let threads = if options.threads == 0 { "one thread per core".into() } else { out::threads(options.threads) };
    let title = format!("{model} by the size of the batch, {} steps, {threads}", options.steps);
    writeln!(out, "{}", out::paint(out::TITLE, out::printable(&title)))?;
    writeln!(out)?;
    let greatest = f.points.iter().filter_map(|p| p.throughput.value).fold(0.0, f64::max);
    let mut table = out::Table::new(&[">batch", ">median", ">95% within", ">sequences/s", ">memory", "", ""]);
    let within = f.within.and_then(|(_, size)| size);
    for p in &f.points {
        let Point { batch, throughput, memory, .. } = p;
        let share = throughput.value.map_or(0.0, |t| t / greatest);
        let length = ((share * BAR as f64).round() as usize).max(1);
        let marks = [(f.knee, "knee"), (f.fastest, "fastest")];
        let mut words: Vec<&str> = marks.iter().filter(|(n, _)| n == batch).map(|(_, word)| *word).collect();
        if within == Some(*batch) {
            words.push("largest within the time");
        }
        table.row([
            batch.to_string(),
            time(&p.time),
            time(&p.time_p95),
            throughput.value.map_or("–".into(), out::rate),
            memory.value.map_or("–".into(), |b| bytes(b as u64)),
            "█".repeat(length),
            words.join(", "),
        ]);
    }
    table.write(&mut out)?;
    writeln!(out)?;
    let knee = format!(
        "Knee: batch {}, the smallest with {:.0}% of the greatest throughput that was measured (times measured, rates \
         and memory derived).",
        f.knee,
        KNEE * 100.0
    );
    out::paragraph(&mut out, 2, anstyle::Style::new(), &knee)?;
    match f.within {
        Some((bound, Some(size))) => {
            let text =
                format!("Within {}: up to batch {size}, of which 95 of 100 runs took no longer.", seconds(bound));
            out::paragraph(&mut out, 2, anstyle::Style::new(), &text)?;
        }
        Some((bound, None)) => {
            let text = format!("Within {}: not even one sequence.", seconds(bound));
            out::paragraph(&mut out, 2, out::BAD, &text)?;
        }
        None => {}
    }
    if let Some((size, why)) = &f.refused {
        out::paragraph(&mut out, 2, out::DIM, &format!("Batch {size} cannot run: {why}"))?;
    }
    if f.partial {
        out::paragraph(&mut out, 2, out::BAD, "Stopped before its end: sizes that matter may be missing.")?;
    }
    Ok(out.flush()?)
}
