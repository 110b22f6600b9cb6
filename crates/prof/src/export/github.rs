//! What github-action-benchmark reads as `customSmallerIsBetter`: an array of name, unit, value, range and extra. Only
//! figures of which less is better; what has no value is left out, since the form asks for a number.

use super::title;
use crate::Profile;
use schwann_core::Figure;
use serde_json::{Value, json};

/// The document as github-action-benchmark reads it.
pub fn github(profile: &Profile) -> String {
    let (c, m) = (&profile.compute, &profile.memory);
    let rows: [(&str, &Figure); 7] = [
        ("time, median", &c.time_p50),
        ("time, mean", &c.time_mean),
        ("time, least", &c.time_min),
        ("time, 95%", &c.time_p95),
        ("time, 99%", &c.time_p99),
        ("arena", &m.arena),
        ("resident set, peak", &m.rss_peak),
    ];
    let of = title(profile);
    let mut entries: Vec<Value> =
        rows.iter().filter_map(|(name, figure)| entry(&format!("{of}: {name}"), figure, profile)).collect();
    entries.extend(c.ops.iter().filter_map(|op| entry(&format!("{of}: {}", op.name), &op.self_time, profile)));
    serde_json::to_string_pretty(&entries).unwrap_or_default() + "\n"
}

fn entry(name: &str, figure: &Figure, profile: &Profile) -> Option<Value> {
    let (scale, unit) = if figure.unit == "s" { (1e6, "µs") } else { (1.0, figure.unit.as_str()) };
    let extra = format!("{}\n{}\nsource: {}", profile.machine.cpu, profile.model.hash, figure.source);
    let mut entry = json!({ "name": name, "unit": unit, "value": figure.value? * scale, "extra": extra });
    if let Some(spread) = figure.spread {
        entry["range"] = format!("{:.4} … {:.4}", spread.low * scale, spread.high * scale).into();
    }
    Some(entry)
}
