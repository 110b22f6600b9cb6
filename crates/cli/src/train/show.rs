//! What people see of a training: a line while it runs, a table, curves, a page.

use super::Trained;
use crate::out;
use anyhow::Result;
use schwann::io::write_text;
use schwann::nn::train::{Ended, Progress, Record};
use schwann::plan::{bytes, seconds};
use schwann::prof::device::cpu;
use schwann::prof::plot::{Curve, Size, curves};
use schwann::prof::report::{Learning, learning};
use std::io::Write;

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns of the curve beside the progress bar, where there is room.
const COLUMNS: usize = 16;
/// Columns of the bar and its counter.
const BAR: usize = 44;

/// A number for people: four digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        size if size != 0.0 && !(1e-3..1e5).contains(&size) => format!("{value:.3e}"),
        _ => format!("{value:.5}"),
    }
}

/// Losses from left to right, on a logarithmic scale.
pub(super) fn spark(losses: &[f64], columns: usize) -> String {
    let losses: Vec<f64> = losses.iter().copied().filter(|v| v.is_finite() && *v > 0.0).map(f64::ln).collect();
    if losses.len() < 2 {
        return String::new();
    }
    let columns = columns.min(losses.len());
    if columns == 0 {
        return String::new();
    }
    let part = |i: usize| &losses[i * losses.len() / columns..((i + 1) * losses.len() / columns).max(1)];
    let means: Vec<f64> = (0..columns).map(|i| part(i).iter().sum::<f64>() / part(i).len() as f64).collect();
    let (least, most) = means.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
    let level = |v: &f64| ((v - least) / (most - least).max(1e-9) * (LEVELS.len() - 1) as f64).round() as usize;
    means.iter().map(|v| LEVELS[level(v).min(LEVELS.len() - 1)]).collect()
}

/// The line beside the progress bar.
pub(super) fn told(name: &str, p: &Progress<'_>) -> String {
    let mut parts = vec![];
    if !name.is_empty() {
        parts.push(name.to_owned());
    }
    parts.push(format!("epoch {}", p.epoch + 1));
    parts.push(format!("loss {}", number(f64::from(p.loss))));
    if let Some((_, best)) = p.best {
        parts.push(format!("best {}", number(best)));
    }
    parts.push(format!("{}/s", out::rate(p.samples_per_s)));
    parts.push(format!("{} left", seconds(p.seconds_left)));
    let losses: Vec<f64> = p.records.iter().map(|r| r.validation.unwrap_or(r.loss)).collect();
    // Bar and counter take their part of the line; what is left after the words is the curve's.
    let room = out::width().saturating_sub(BAR);
    let words = out::cut(&parts.join(", "), room);
    let left = room.saturating_sub(out::columns(&words) + 2);
    format!("{words}  {}", spark(&losses, left.min(COLUMNS)))
}

/// A record of the log as a line of JSON.
pub(super) fn json_line(out: &mut impl Write, name: &str, record: &Record) -> Result<()> {
    let mut line = serde_json::to_value(record)?;
    line["name"] = name.into();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn validations(records: &[Record]) -> Vec<(f64, f64)> {
    records.iter().filter_map(|r| Some((r.step as f64, r.validation?))).collect()
}

fn losses(records: &[Record]) -> Vec<(f64, f64)> {
    records.iter().map(|r| (r.step as f64, r.loss)).collect()
}

/// The curves of trainings; of one alone, its training and validation.
fn lines(all: &[Trained]) -> Vec<Curve> {
    let curve = |name: String, points, color, dashed| Curve { name, points, color, dashed };
    if let [one] = all {
        let mut lines = vec![curve("training".into(), losses(&one.records), 0, false)];
        let validation = validations(&one.records);
        if !validation.is_empty() {
            lines.push(curve("validation".into(), validation, 1, false));
        }
        return lines;
    }
    let of = |(i, t): (usize, &Trained)| {
        let validation = validations(&t.records);
        let points = if validation.is_empty() { losses(&t.records) } else { validation };
        curve(t.name.clone(), points, i, false)
    };
    all.iter().enumerate().map(of).collect()
}

const HEADINGS: [&str; 8] =
    ["network", ">parameters", ">steps", ">best loss", ">at step", ">samples/s", ">memory", ">time"];

fn row(t: &Trained) -> [String; 8] {
    let rate = t.records.iter().map(|r| r.samples_per_s).fold(0.0, f64::max);
    [
        if t.name.is_empty() { t.folder.display().to_string() } else { t.name.clone() },
        t.parameters.to_string(),
        t.steps.to_string(),
        t.best.map_or("–".into(), |(_, loss)| number(loss)),
        t.best.map_or("–".into(), |(step, _)| step.to_string()),
        if rate > 0.0 { out::rate(rate) } else { "–".into() },
        bytes(t.memory as u64),
        seconds(t.seconds),
    ]
}

const NOTE: &str = "losses, rates and times are measured, memory is planned (derived). The best loss is the validation's, or \
                    the training's where there is no validation; samples/s are the most between two lines of the log.";

/// Curves and page beside the checkpoints.
pub(super) fn write(t: &Trained) -> Result<()> {
    write_page(std::slice::from_ref(t), &t.folder)
}

fn write_page(all: &[Trained], folder: &std::path::Path) -> Result<()> {
    let lines = lines(all);
    let title = match all {
        [one] if one.name.is_empty() => one.folder.display().to_string(),
        [one] => one.name.clone(),
        many => format!("{} networks", many.len()),
    };
    if let Ok(drawing) = curves(&lines, "steps", "loss", Size::WIDE) {
        write_text(folder.join("curves.svg"), &drawing.headed(&title).file())?;
    }
    let mut plots = vec![("loss".to_owned(), lines)];
    let rates = all.iter().enumerate().map(|(i, t)| Curve {
        name: if t.name.is_empty() { "rate of learning".into() } else { t.name.clone() },
        points: t.records.iter().map(|r| (r.step as f64, r.rate)).collect(),
        color: i,
        dashed: false,
    });
    plots.push(("rate of learning".to_owned(), rates.collect()));
    let norms = all.iter().enumerate().map(|(i, t)| Curve {
        name: if t.name.is_empty() { "length of gradients".into() } else { t.name.clone() },
        points: t.records.iter().map(|r| (r.step as f64, r.norm)).collect(),
        color: i,
        dashed: false,
    });
    plots.push(("length of gradients".to_owned(), norms.collect()));
    let machine = cpu::name().unwrap_or_else(|why| format!("CPU name unavailable: {why}"));
    let page = Learning {
        title,
        facts: vec![machine, format!("schwann {}", env!("SCHWANN_VERSION"))],
        headings: HEADINGS.iter().map(|h| h.trim_start_matches('>').to_owned()).collect(),
        rows: all.iter().map(|t| row(t).to_vec()).collect(),
        note: NOTE.into(),
        plots,
    };
    Ok(write_text(folder.join("report.html"), &learning(&page))?)
}

/// The table at the end; of several networks, their curves in one picture.
pub(super) fn results(all: &[Trained], json: bool, several: bool) -> Result<()> {
    let parent = |t: &Trained| t.folder.parent().map(std::path::Path::to_owned).unwrap_or_default();
    if let (true, Some(first)) = (several, all.first()) {
        write_page(all, &parent(first))?;
    }
    if json {
        for t in all {
            let line = serde_json::json!({
                "name": t.name, "folder": t.folder, "ended": format!("{:?}", t.ended).to_lowercase(), "steps": t.steps,
                "best_step": t.best.map(|b| b.0), "best_loss": t.best.map(|b| b.1), "parameters": t.parameters,
                "memory_bytes": t.memory, "seconds": t.seconds,
            });
            out::print(&line.to_string())?;
        }
        return Ok(());
    }
    let mut out = out::stdout();
    let mut table = out::Table::new(&HEADINGS);
    all.iter().for_each(|t| table.row(row(t)));
    table.write(&mut out)?;
    for t in all {
        let losses: Vec<f64> = t.records.iter().map(|r| r.validation.unwrap_or(r.loss)).collect();
        let curve = spark(&losses, 60);
        if !curve.is_empty() {
            let metric = t.records.iter().rev().find_map(|r| r.metric);
            let metric = metric.map_or(String::new(), |m| format!("; {} {}", t.metric_name, number(m)));
            writeln!(out, "{}  {}{}", curve, out::printable(&t.name), out::paint(out::DIM, metric))?;
        }
        match t.ended {
            Ended::Early => writeln!(out, "{}ended early: nothing improved", prefix(t))?,
            Ended::Stopped => writeln!(out, "{}stopped; the same command goes on from here", prefix(t))?,
            _ => {}
        }
    }
    out::paragraph(&mut out, 0, out::DIM, NOTE)?;
    for t in all {
        out::note(&format!(
            "wrote best.safetensors, last.safetensors, log.csv, log.jsonl, curves.svg and report.html into {}",
            t.folder.display()
        ));
    }
    if let (true, Some(first)) = (several, all.first()) {
        out::note(&format!("wrote curves.svg and report.html of all into {}", parent(first).display()));
    }
    Ok(out.flush()?)
}

fn prefix(t: &Trained) -> String {
    if t.name.is_empty() { String::new() } else { format!("{}: ", t.name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_from_high_to_low() {
        let falling: Vec<f64> = (0..64).map(|i| 1.0 / f64::from(1 << (i / 8))).collect();
        let curve = spark(&falling, 8);
        assert_eq!(curve, "█▇▆▅▄▃▂▁");
        assert_eq!((spark(&[1.0], 8), spark(&falling, 0)), (String::new(), String::new()));
        assert_eq!(spark(&[f64::NAN, 1.0, 2.0], 8), "▁█");
    }
}
