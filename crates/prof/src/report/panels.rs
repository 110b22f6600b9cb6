//! What was seen on this machine: times, operations, memory, other ways and other sizes.

use super::cell::{Cell, Column, Table, escape, figure, marked, pairs, plural, why};
use super::{Panel, plotted};
use crate::analyze::cliffs;
use crate::plot::unit::{faster, known, show};
use crate::plot::{self, Size, bound_ink, bound_words, by_time};
use crate::profile::{Bound, Op};
use crate::{Profile, flame};
use schwann_core::Figure;

pub(super) fn panels(profile: &Profile) -> Vec<Panel> {
    vec![
        time(profile),
        roofline(profile),
        ops(profile),
        latency(profile),
        comparisons(profile),
        memory(profile),
        sweep(profile),
    ]
}

fn time(profile: &Profile) -> Panel {
    let bars = plotted(plot::ops, profile, Size::WIDE, "No times of operations.", "");
    let mut body = bars;
    if !flame::of_profile(profile).is_empty() {
        body += "<h4>One run in the order of running; loops hold what runs in them</h4>";
        body += &plotted(flame::plot, profile, Size::WIDE, "No flame graph.", "");
    }
    Panel::new("time", "Where the time goes", limits(profile) + &told_apart(profile), body)
}

/// What is to be said of times inside of loops that are one kernel.
fn told_apart(profile: &Profile) -> String {
    let Some(phases) = &profile.compute.phases else { return String::new() };
    match known(phases) {
        Some(_) => format!(
            " Times inside of loops are derived: what a loop's kernel takes less without an operation, run in turns with the \
             whole; that took {}.",
            figure(phases)
        ),
        None => format!(
            " What is inside of loops was not told apart: {}.",
            escape(phases.reason.as_deref().unwrap_or("no reason is given"))
        ),
    }
}

/// How much of the run each limit holds back, as a sentence.
fn limits(profile: &Profile) -> String {
    let share = |bound: Bound| {
        let ops = profile.compute.ops.iter().filter(|op| op.bound == bound);
        let sum: f64 = ops.filter_map(|op| known(&op.share)).sum();
        (bound, sum)
    };
    let mut shares: Vec<(Bound, f64)> = Bound::ALL.into_iter().map(share).filter(|s| s.1 > 0.05).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words: Vec<String> = shares
        .into_iter()
        .map(|(bound, sum)| {
            let source = "sum of the shares of operations with this limit";
            let sum = Figure::derived((sum * 10.0).round() / 10.0, "%", source);
            format!("{} {}", bound_words(bound), figure(&sum))
        })
        .collect();
    match words.is_empty() {
        true => String::new(),
        false => format!("What holds operations back, by their share of a run: {}.", words.join(", ")),
    }
}

fn roofline(profile: &Profile) -> Panel {
    let say = "A dot is an operation, as large as its time. It cannot rise above the line of the memory it works from, \
               nor above arithmetic.";
    let integers = profile.roof.int8.as_ref().map_or(String::new(), |f| format!(", in 8-bit integers {}", figure(f)));
    let caption = format!(
        "Limits of {}: arithmetic {}{integers}, functions {}, {} per step of a plan beyond its work.",
        escape(&profile.roof.device),
        figure(&profile.roof.flops),
        figure(&profile.roof.functions),
        figure(&profile.roof.step_overhead)
    );
    let size = Size { height: 470.0, ..Size::WIDE };
    Panel::new("roofline", "Roofline", say, plotted(plot::roofline, profile, size, "No roofline.", &caption))
}

fn ops(profile: &Profile) -> Panel {
    let ops = by_time(profile);
    if ops.is_empty() {
        return Panel::new("ops", "Operations", "", why("No operations.", "the profile lists none"));
    }
    let column = |of: fn(&Op) -> &Figure| Column::of(ops.iter().map(|op| of(op)).collect::<Vec<_>>());
    let (time, gflops, gbps) = (column(|o| &o.self_time), column(|o| &o.gflops), column(|o| &o.gbps));
    let (least, calls) = (column(|o| &o.predicted), column(|o| &o.calls));
    let heads = [
        "operation".to_owned(),
        format!(">{}", time.head("self time")),
        "share of a run".into(),
        format!(">{}", least.head("least")),
        ">of roof, %".into(),
        format!(">{}", gflops.head("rate").replace("rate, ", "")),
        format!(">{}", gbps.head("rate").replace("rate, ", "")),
        ">calls".into(),
        "limited by".into(),
        "result".into(),
    ];
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new("Operations by self time", "sortable", &heads);
    let roofs = column(|o| &o.of_roof);
    for op in &ops {
        let (ink, words) = (bound_ink(op.bound), bound_words(op.bound));
        let within = op.within.as_ref().map(|w| format!(", in {w}")).unwrap_or_default();
        let kernel = match &op.whole_time {
            Some(whole) => format!("{}; {} in all, and this is what its operations leave", op.kernel, show(whole)),
            None => op.kernel.clone(),
        };
        let chip = format!("<span class=\"chip\" style=\"--c:{}\">{words}</span>", ink.css());
        table.row(
            "",
            [
                Cell::name(&op.name, &format!("{}{within} · {kernel}", op.op)),
                Cell::number(&op.self_time, &time),
                Cell::bar(&op.share, ink),
                Cell::number(&op.predicted, &least),
                Cell::number(&op.of_roof, &roofs),
                Cell::number(&op.gflops, &gflops),
                Cell::number(&op.gbps, &gbps),
                Cell::number(&op.calls, &calls),
                Cell::html(chip, None),
                Cell::text(&result(op)).class("tight"),
            ],
        );
    }
    let say = format!(
        "{}. Self time is of one run, without what runs inside; least is what the {}'s roof allows.",
        plural(ops.len(), "operation"),
        if profile.workload.on_cpu() { "machine" } else { "device" }
    );
    Panel::new("ops", "Operations", say, table.html()).class("long")
}

/// Type and shape, once each: some shapes name their type.
fn result(op: &Op) -> String {
    if op.shape.starts_with(&op.dtype) { op.shape.clone() } else { format!("{}{}", op.dtype, op.shape) }
}

fn latency(profile: &Profile) -> Panel {
    let c = &profile.compute;
    let plot = plotted(plot::histogram, profile, Size { height: 310.0, ..Size::HALF }, "No histogram.", "");
    let facts = pairs([
        ("least", &c.time_min),
        ("mean", &c.time_mean),
        ("standard deviation", &c.time_std),
        ("samples far out", &c.outliers),
        ("runs per sample", &c.runs_per_sample),
        ("warm-up, not counted", &c.warm_up_runs),
    ]);
    let say = "How often each time came, with median and the times that 95 and 99 of 100 runs keep.";
    Panel::new("latency", "Latency", say, format!("{plot}<h4>In numbers</h4>{facts}")).class("half")
}

fn comparisons(profile: &Profile) -> Panel {
    let all = &profile.comparisons;
    let say = "The same workload other ways, measured in turns with this one.";
    if all.is_empty() {
        let body = why("Nothing was compared.", "add --compare to run the workload in other ways too");
        return Panel::new("comparisons", "Other ways", say, body).class("half");
    }
    let mut table = Table::new(
        "Other ways to run the workload",
        "sortable",
        &["way", ">time, and as profiled", "which is", ">outputs differ by"],
    );
    for way in all {
        let speed = match known(&way.speedup) {
            Some(_) => marked(&way.speedup, &faster(&way.speedup)),
            None => figure(&way.speedup),
        };
        table.row(
            "",
            [
                Cell::name(&way.name, ""),
                Cell::html(format!("{}<br><small>{}</small>", figure(&way.time), figure(&way.base)), known(&way.time))
                    .class("n"),
                Cell::html(speed, known(&way.speedup)).class("words"),
                Cell::figure(&way.difference),
            ],
        );
    }
    Panel::new("comparisons", "Other ways", say, table.html()).class("half")
}

fn memory(profile: &Profile) -> Panel {
    let m = &profile.memory;
    let peak = m.timeline.iter().find(|p| !p.holders.is_empty());
    let say = match peak {
        Some(point) => format!(
            "What the plan keeps alive at each step. The peak, {}, is at <b>{}</b>, held by {}.",
            figure(&point.live),
            escape(&point.step),
            plural(point.holders.len(), "buffer")
        ),
        None => "What the plan keeps alive at each step.".into(),
    };
    let mut body = plotted(plot::memory, profile, Size { height: 340.0, ..Size::WIDE }, "No timeline.", "");
    if let Some(point) = peak {
        let mut table = Table::new("Who holds the peak", "", &["buffer at the peak", ">size"]);
        for holder in point.holders.iter().take(50) {
            table.row("", [Cell::name(&holder.name, ""), Cell::figure(&holder.figure)]);
        }
        let count = plural(point.holders.len(), "buffer");
        body += &format!("<details><summary>Who holds the peak: {count}</summary>{}</details>", table.html());
    }
    let facts = pairs([
        ("arena", &m.arena),
        ("alive at the peak", &m.live_peak),
        ("weights, as run", &m.weights),
        ("held of the budget", &m.held),
        ("resident set", &m.rss),
        ("resident set, peak", &m.rss_peak),
        ("page faults while timed", &m.page_faults),
        ("allocations per run", &m.allocations),
        ("bytes moved", &m.bandwidth),
        ("of what its level can do", &m.bandwidth_utilization),
    ]);
    Panel::new("memory", "Memory", say, format!("{body}<h4>In numbers</h4>{facts}"))
}

fn sweep(profile: &Profile) -> Panel {
    let points = &profile.sweep;
    let cliffs: String = cliffs(profile).iter().map(|cliff| format!(" <b>{}.</b>", escape(cliff))).collect();
    let say = format!("Other batch sizes and lengths. The ringed point is this profile's own size.{cliffs}");
    let mut body = plotted(plot::sweep, profile, Size { height: 320.0, ..Size::WIDE }, "No sweep.", "");
    if !points.is_empty() {
        let mut table = Table::new(
            "Sweep over sizes",
            "sortable",
            &[">batch", ">steps", ">time", ">throughput", ">arithmetic", ">bandwidth", ">memory"],
        );
        for p in points {
            let own = known(&p.batch).is_some()
                && known(&p.batch) == known(&profile.workload.batch)
                && known(&p.steps) == known(&profile.workload.steps);
            let figures = [&p.batch, &p.steps, &p.time, &p.throughput, &p.tflops, &p.bandwidth, &p.memory];
            table.row(if own { "own" } else { "" }, figures.map(Cell::figure));
        }
        body += &format!("<details><summary>All {}</summary>{}</details>", plural(points.len(), "size"), table.html());
    }
    Panel::new("sweep", "Batch sweep", say, body)
}
