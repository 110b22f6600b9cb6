//! Other batch sizes and sequence lengths: what they bring, and how long they take.

use super::scale::{Axis, round_up};
use super::unit::{Scale, brief, known, quantity, show};
use super::{Anchor, Drawing, Ink, Missing, SMALL, Size};
use crate::Profile;
use crate::profile::SweepPoint;
use schwann_core::Figure;

/// A line for each length (or batch), as many as there are colours.
const MOST_LINES: usize = Ink::KINDS - 1;

/// Throughput and time over the batch (or over the length, where only that changes).
pub fn sweep(profile: &Profile, size: Size) -> Result<Drawing, Missing> {
    let own = known(&profile.workload.batch).zip(known(&profile.workload.steps));
    sweep_of(&profile.sweep, own, "this profile's own size", size)
}

/// The same of points alone; one batch and length may be marked, and is called by these words.
pub fn sweep_of(
    points: &[SweepPoint],
    marked: Option<(f64, f64)>,
    mark_words: &str,
    size: Size,
) -> Result<Drawing, Missing> {
    if points.is_empty() {
        return Err(Missing("no other sizes were run; add --sweep".into()));
    }
    let distinct = |of: fn(&SweepPoint) -> &Figure| {
        let mut values: Vec<f64> = points.iter().filter_map(|p| known(of(p))).filter(|v| *v > 0.0).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    };
    let (batches, lengths) = (distinct(|p| &p.batch), distinct(|p| &p.steps));
    type Of = fn(&SweepPoint) -> &Figure;
    let by_batch: (Of, Of, Vec<f64>, Vec<f64>, &str, &str) =
        (|p| &p.batch, |p| &p.steps, batches.clone(), lengths.clone(), "sequences in a batch", "steps");
    let by_length: (Of, Of, Vec<f64>, Vec<f64>, &str, &str) =
        (|p| &p.steps, |p| &p.batch, lengths.clone(), batches.clone(), "steps of a sequence", "sequences");
    let (across, line_of, xs, lines, words, line_words) = if batches.len() > 1 { by_batch } else { by_length };
    let (Some(first), Some(last)) = (xs.first().copied(), xs.last().copied()) else {
        return Err(Missing("the sweep's sizes are not known".into()));
    };

    let label = format!("Sweep over {} sizes: throughput and time by {words}", points.len());
    let narrow = size.is_narrow();
    let size = if narrow { Size { width: size.width, height: size.height * 2.0 } } else { size };
    let mut d = Drawing::new(size, label);
    let lines = &lines[..lines.len().min(MOST_LINES)];
    let names: Vec<String> = lines.iter().map(|l| format!("{l} {line_words}")).collect();
    let legend: Vec<(Ink, &str)> = names.iter().enumerate().map(|(i, n)| (Ink::Kind(i), n.as_str())).collect();
    let top = d.legend(4.0, 12.0, size.width, &legend);

    let charts: [(&str, Of, bool); 2] =
        [("throughput", |p| &p.throughput, false), ("time of a run", |p| &p.time, true)];
    let mut drawn = false;
    for (i, (name, of, log)) in charts.into_iter().enumerate() {
        let (wide, high) =
            if narrow { (size.width, (size.height - top) / 2.0) } else { (size.width / 2.0, size.height - top) };
        let (at_x, at_y) = if narrow { (0.0, top + high * i as f64) } else { (wide * i as f64, top) };
        let values: Vec<f64> = points.iter().filter_map(|p| known(of(p))).filter(|v| *v > 0.0).collect();
        let Some(greatest) = values.iter().copied().reduce(f64::max) else {
            let reason = points.iter().find_map(|p| of(p).reason.as_deref()).unwrap_or("not known");
            d.text(at_x + 50.0, at_y + 40.0, Anchor::Start, SMALL, Ink::Muted, format!("{name}: {reason}"));
            continue;
        };
        drawn = true;
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let (left, right) = (at_x + 44.0, at_x + wide - 16.0);
        let (roof, floor) = (at_y + 26.0, at_y + high - 38.0);
        let unit = &of(&points[0]).unit;
        let scale = Scale::of(unit, greatest);
        let x = Axis::log(first, last, left + 8.0, right - 8.0);
        let y = match log {
            true => Axis::log(least / 1.3, greatest * 1.3, floor, roof),
            false => Axis::linear(0.0, round_up(greatest / scale.per) * scale.per, floor, roof),
        };
        for tick in y.ticks(4) {
            d.line([(left, y.at(tick)), (right, y.at(tick))], Ink::Grid, 1.0);
            d.text(left - 6.0, y.at(tick) + 4.0, Anchor::End, SMALL, Ink::Muted, brief(tick / scale.per));
        }
        d.text(at_x + 4.0, at_y + 12.0, Anchor::Start, SMALL, Ink::Muted, format!("{name}, {}", scale.label));
        d.line([(left, floor), (right, floor)], Ink::Muted, 1.0);
        let mut free = f64::NEG_INFINITY;
        for value in &xs {
            let at = x.at(*value);
            d.line([(at, floor), (at, floor + 4.0)], Ink::Muted, 1.0);
            if at - free > 26.0 {
                d.text(at, floor + 16.0, Anchor::Middle, SMALL, Ink::Muted, brief(*value));
                free = at;
            }
        }
        d.text(right, floor + 31.0, Anchor::End, SMALL, Ink::Muted, words);
        for (n, line) in lines.iter().enumerate() {
            let mut row: Vec<(&SweepPoint, f64, f64)> = points
                .iter()
                .filter(|p| known(line_of(p)) == Some(*line))
                .filter_map(|p| Some((p, known(across(p))?, known(of(p)).filter(|v| *v > 0.0)?)))
                .collect();
            row.sort_by(|a, b| a.1.total_cmp(&b.1));
            d.line(row.iter().map(|r| (x.at(r.1), y.at(r.2))).collect::<Vec<_>>(), Ink::Kind(n), 1.8);
            for (point, value, result) in row {
                let own = marked.is_some() && known(&point.batch).zip(known(&point.steps)) == marked;
                let title = format!(
                    "batch {}, {}: {} ({}, {}){}",
                    brief(known(&point.batch).unwrap_or(f64::NAN)),
                    show(&point.steps),
                    quantity(result, unit),
                    show(&point.tflops),
                    show(&point.memory),
                    if own { format!("; {mark_words}") } else { String::new() }
                );
                if own {
                    d.circle(x.at(value), y.at(result), 8.0, Ink::Ground).outlined(Ink::Text, 1.3).titled(&title);
                }
                d.circle(x.at(value), y.at(result), 4.0, Ink::Kind(n)).outlined(Ink::Ground, 1.0).titled(title);
            }
        }
    }
    if !drawn {
        return Err(Missing::of("no size of the sweep was timed", points.iter().map(|p| &p.time)));
    }
    Ok(d)
}
