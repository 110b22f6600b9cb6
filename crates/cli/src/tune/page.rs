//! What a search found, on a terminal.

use crate::out;
use anyhow::Result;
use schwann::Figure;
use schwann::plan::{bytes, seconds};
use schwann::prof::tune::{Key, Objective, Outcome, Record, Verdict, line};
use std::io::Write;

/// Candidates that are shown beside the winner.
const SHOWN: usize = 5;

/// A factor as a person says it: `12.3% faster (8.1% to 16.4% with 99% confidence)`.
pub(super) fn gain(figure: &Figure, objective: Objective) -> String {
    let (more, less) = match objective {
        Objective::Latency => ("faster", "slower"),
        Objective::Throughput => ("more throughput", "less throughput"),
        Objective::Memory => ("less memory", "more memory"),
    };
    let one = |v: f64| match objective {
        Objective::Memory => (1.0 - 1.0 / v) * 100.0,
        _ => (v - 1.0) * 100.0,
    };
    let Some(value) = figure.value else {
        return format!("unknown ({})", figure.reason.as_deref().unwrap_or("no reason given"));
    };
    let percent = one(value);
    let spread = figure.spread.map_or(String::new(), |s| {
        format!(" ({:+.1}% to {:+.1}%, 99% confidence, {} starts)", one(s.low), one(s.high), s.samples)
    });
    let origin = format!("{:?}", figure.provenance).to_lowercase();
    format!("{:.1}% {}{spread} ({origin})", percent.abs(), if percent < 0.0 { less } else { more })
}

fn time(figure: &Figure) -> String {
    figure.value.map_or_else(|| "unknown".into(), seconds)
}

pub(super) fn write(o: &Outcome, kept: Option<&str>, removed: bool) -> Result<()> {
    let mut out = out::stdout();
    let number = |f: &Figure| f.value.unwrap_or_default();
    let threads = match o.threads {
        0 => "one thread per core unless it chooses".into(),
        n => out::threads(n),
    };
    let title =
        format!("{} on {}, {threads}, batch {}, {} steps", o.model, o.backend, number(&o.batch), number(&o.steps));
    writeln!(out, "{}", out::paint(out::TITLE, out::printable(&title)))?;
    let partial = if o.partial { "; stopped before its end" } else { "" };
    let tried = o.candidates.iter().filter(|c| c.rounds > 0).count();
    out::paragraph(
        &mut out,
        2,
        out::DIM,
        &format!("{tried} candidates in {}, for {}{partial}", seconds(number(&o.seconds)), o.objective.name()),
    )?;
    writeln!(out)?;
    match (&o.winner, o.verdict) {
        (Some(w), _) => {
            writeln!(out, "  {} {}", out::paint(out::GOOD, "found:"), gain(&w.gain, o.objective))?;
            writeln!(out, "  {} a run instead of {} in the same turns (measured)", time(&w.time), time(&w.base))?;
            writeln!(out, "\n  {}", out::paint(out::TITLE, "What changed from the default"))?;
            for change in &w.changes {
                writeln!(out, "    {}: {} → {}", out::paint(out::NAME, &change.name), change.from, change.to)?;
            }
            let differs = match w.difference.value {
                Some(0.0) => "the same outputs".into(),
                Some(d) => format!("outputs differ by {d:.1e} at most (measured)"),
                None => format!("outputs: {}", w.difference.reason.as_deref().unwrap_or("not compared")),
            };
            writeln!(out, "    {differs}")?;
        }
        (None, Verdict::Stopped) => {
            writeln!(out, "  {}; the default stays", out::paint(out::BAD, "stopped before anything was decided"))?;
        }
        (None, _) => {
            let better = match o.objective {
                Objective::Latency => "faster",
                Objective::Throughput => "of more throughput",
                Objective::Memory => "smaller and no slower",
            };
            writeln!(out, "  nothing found that is {better} beyond noise; the default stays")?;
        }
    }
    for c in o.confirmations.iter().filter(|c| o.winner.as_ref().is_none_or(|w| w.changes != c.changes)) {
        let text = format!(
            "{}: {:?} when timed anew, {}",
            line(&c.changes),
            c.answer,
            gain(&c.speedup, if o.objective == Objective::Memory { Objective::Latency } else { o.objective })
        );
        writeln!(out)?;
        out::paragraph(&mut out, 2, out::DIM, &text)?;
    }
    let others: Vec<_> = o.candidates.iter().filter(|c| c.outcome != "winner" && c.rounds > 0).take(SHOWN).collect();
    if !others.is_empty() {
        writeln!(out, "\n  {}", out::paint(out::TITLE, "Next in the race (times measured, not confirmed)"))?;
        let mut table = out::Table::new(&[">  time", ">memory", "outcome", "change"]);
        let room = out::width().saturating_sub(44).max(24);
        for c in others {
            let ratio = c.ratio.value.map_or("–".into(), |r| format!("{:+.1}%", (r - 1.0) * 100.0));
            let memory = c.memory.value.map_or("–".into(), |b| bytes(b as u64));
            table.row([format!("  {ratio}"), memory, out::cut(&c.outcome, 24), out::cut(&line(&c.changes), room)]);
        }
        table.write(&mut out)?;
    }
    if let Some(kept) = kept {
        writeln!(out)?;
        let text = format!(
            "Kept in {kept}: `schwann run` and `schwann profile` use it for this network and size from now on \
             (--no-tuned: not)."
        );
        out::paragraph(&mut out, 2, out::DIM, &text)?;
    }
    if removed {
        writeln!(out)?;
        let text = "What was kept before was tried again, was not better beyond noise, and is gone.";
        out::paragraph(&mut out, 2, out::DIM, text)?;
    }
    Ok(out.flush()?)
}

pub(super) fn list(all: &[Record]) -> Result<()> {
    let mut out = out::stdout();
    let mut table = out::Table::new(&["model", "sizes", "backend", ">threads", "kept", ">gain", "change"]);
    for r in all {
        let Key { sizes, backend, threads, .. } = &r.key;
        let gain = r.winner.gain.value.map_or("–".into(), |g| format!("{g:.2}×"));
        let threads = if *threads == 0 { "free".into() } else { threads.to_string() };
        let day = r.saved.split('T').next().unwrap_or_default().to_owned();
        let change = out::cut(&line(&r.winner.changes), 40);
        table.row([r.model.clone(), sizes.clone(), backend.clone(), threads, day, gain, change]);
    }
    table.write(&mut out)?;
    Ok(out.flush()?)
}
