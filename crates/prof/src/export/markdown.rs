//! Tables for a merge request, an issue or a notebook.

use super::{shown, title};
use crate::Profile;
use schwann_core::{Figure, Provenance};
use std::fmt::Write;

/// The document as Markdown.
pub fn markdown(profile: &Profile) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(profile, &mut text);
    text
}

pub(crate) use schwann_core::show::markdown as cell;

fn write(p: &Profile, out: &mut String) -> std::fmt::Result {
    writeln!(out, "# {}\n", cell(&title(p)))?;
    writeln!(out, "{}  ", cell(&p.model.description))?;
    let m = &p.machine;
    let on = if p.workload.on_cpu() { &m.isa } else { &p.roof.device };
    writeln!(out, "on {} ({}), {} cores, {}  ", cell(&m.cpu), cell(on), count(&m.cores), cell(&m.os))?;
    let commit = p.commit.as_deref().map_or("no commit".to_owned(), |c| format!("commit {}", cell(c)));
    writeln!(out, "{}, Schwann {}, {commit}, profile {}\n", cell(&p.created), cell(&p.version), cell(&p.id))?;

    let (c, m) = (&p.compute, &p.memory);
    writeln!(out, "| figure | value | 95% interval | origin | source |\n|---|--:|--:|---|---|")?;
    let rows: [(&str, &Figure); 17] = [
        ("time, median", &c.time_p50),
        ("time, mean", &c.time_mean),
        ("time, least", &c.time_min),
        ("time, 95%", &c.time_p95),
        ("time, 99%", &c.time_p99),
        ("standard deviation", &c.time_std),
        ("work", &c.flops),
        ("rate", &c.tflops),
        ("of the roof", &c.of_roof),
        ("throughput", &c.throughput),
        ("profiler's own cost", &c.overhead),
        ("arena", &m.arena),
        ("weights", &m.weights),
        ("resident set, peak", &m.rss_peak),
        ("bandwidth", &m.bandwidth),
        ("allocations per run", &m.allocations),
        ("page faults", &m.page_faults),
    ];
    let hardware = p.hardware.iter().map(|(name, figure)| (name.as_str(), figure));
    for (name, f) in rows.into_iter().chain(hardware) {
        let ends = f.spread.filter(|s| s.ends == schwann_core::figure::Ends::Confidence95);
        let one = |value: f64| super::shown_value(value, &f.unit);
        let ends = ends.map_or("–".into(), |s| format!("{} … {}", one(s.low), one(s.high)));
        let origin = match (f.provenance, &f.reason) {
            (Provenance::Unavailable, Some(why)) => format!("unavailable: {}", cell(why)),
            (Provenance::Unavailable, None) => "unavailable".into(),
            (Provenance::Measured, _) => "measured".into(),
            (Provenance::Derived, _) => "derived".into(),
            (Provenance::Predicted, _) => "predicted".into(),
        };
        writeln!(out, "| {} | {} | {} | {origin} | {} |", cell(name), cell(&shown(f)), cell(&ends), cell(&f.source))?;
    }

    if !c.ops.is_empty() {
        writeln!(out, "\n## Operations\n")?;
        writeln!(out, "| operation | kernel | result | time | share | rate | bandwidth | of the roof | bound by |")?;
        writeln!(out, "|---|---|---|--:|--:|--:|--:|--:|---|")?;
        for op in &c.ops {
            let bound = serde_json::to_value(op.bound).ok().and_then(|v| v.as_str().map(str::to_owned));
            let figures = [&op.self_time, &op.share, &op.gflops, &op.gbps, &op.of_roof].map(|f| cell(&shown(f)));
            let texts = [&op.name, &op.kernel, &op.shape].map(|t| cell(t));
            writeln!(out, "| {} | {} | {} |", texts.join(" | "), figures.join(" | "), bound.unwrap_or_default())?;
        }
    }
    if !p.recommendations.is_empty() {
        writeln!(out, "\n## Recommendations\n")?;
        for r in &p.recommendations {
            writeln!(out, "* {} ({}): {}", cell(&r.title), cell(&r.how), cell(&r.evidence))?;
        }
    }
    if let Some(partial) = &p.partial {
        writeln!(out, "\n> Partial: {}", cell(partial))?;
    }
    for doubt in &p.doubts {
        writeln!(out, "\n> Doubt: {}", cell(doubt))?;
    }
    Ok(())
}

fn count(figure: &Figure) -> String {
    figure.value.map_or("an unknown number of".into(), |v| v.to_string())
}
