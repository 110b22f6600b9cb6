//! What follows: other devices, requirements, what costs most, what to change; and the machine's counters.

use super::cell::{Cell, Table, escape, figure, marked, why};
use super::{Panel, plotted};
use crate::Profile;
use crate::plot::unit::{faster, known, rough};
use crate::plot::{self, Size};
use crate::profile::Verdict;
use schwann_core::Figure;
use std::collections::BTreeMap;
use std::fmt::Write;

pub(super) fn panels(profile: &Profile) -> Vec<Panel> {
    // Advice, predictions and requirements are about processors: of another device, what there is none of is left out.
    let says = |nothing: bool| profile.workload.on_cpu() || !nothing;
    let p = profile;
    type Make = fn(&Profile) -> Panel;
    let all: [(bool, Make); 7] = [
        (says(p.bottlenecks.is_empty()), bottlenecks),
        (says(p.recommendations.is_empty()), recommendations),
        (says(p.devices.is_empty()), devices),
        (says(p.devices.is_empty()), predictions),
        (true, hardware),
        (says(p.efficiency.is_empty()), efficiency),
        (says(p.requirements.is_empty()), requirements),
    ];
    all.into_iter().filter(|(says, _)| *says).map(|(_, panel)| panel(profile)).collect()
}

fn devices(profile: &Profile) -> Panel {
    let say = "The same workload on every catalogued device. Pale dashed bars are predictions from costs and the device's \
               limits; nobody ran those.";
    let body = plotted(plot::devices, profile, Size::WIDE, "No devices.", "");
    Panel::new("devices", "Across devices", say, body)
}

fn predictions(profile: &Profile) -> Panel {
    let all = &profile.devices;
    if all.is_empty() {
        return Panel::new("predictions", "Predictions", "", why("No predictions.", "no devices were compared"));
    }
    let host = all.iter().find(|d| d.host);
    let say = match host.filter(|h| known(&h.error).is_some()) {
        Some(host) => format!(
            "On this machine the prediction is {} beside {} measured: {} off.",
            figure(&host.time),
            figure(&profile.compute.time_p50),
            figure(&host.error)
        ),
        None => "There is no prediction for this machine to hold against a measurement.".into(),
    };
    // What is known of no device is said once.
    let engine = all
        .iter()
        .find_map(|d| d.neural_engine.reason.as_deref())
        .filter(|_| all.iter().all(|d| known(&d.neural_engine).is_none()));
    let engine = engine.map(|reason| format!(" Neural Engine: unavailable, {}.", escape(reason))).unwrap_or_default();
    let say = format!("{say} Each prediction is told with the range that it is expected in.{engine}");
    let heads = ["device", ">time of a run", "expected between", "takes longest there"];
    let mut table = Table::new("Predicted time of a run by device", "sortable", &heads);
    for outlook in all {
        let slowest: Vec<String> =
            outlook.slowest.iter().take(3).map(|op| format!("{} {}", escape(&op.name), figure(&op.figure))).collect();
        let note = if outlook.host { "where this profile was made" } else { outlook.compared.as_str() };
        table.row(
            if outlook.host { "own" } else { "" },
            [
                Cell::name(&outlook.device, note),
                Cell::figure(&outlook.time),
                Cell::html(escape(&between(&outlook.time)), None),
                Cell::html(slowest.join(", "), None).class("words"),
            ],
        );
    }
    Panel::new("predictions", "Predictions", say, table.html()).class("long")
}

/// The range that a predicted figure is expected in.
fn between(figure: &Figure) -> String {
    let range = known(figure).and(figure.spread);
    range.map(|s| format!("{} to {}", rough(s.low, &figure.unit), rough(s.high, &figure.unit))).unwrap_or_default()
}

fn requirements(profile: &Profile) -> Panel {
    let say = "What the users' guides ask of a whole chip, with GPU and Neural Engine, under large work; some of it is above the chip's own \
         peak. A small recurrent model on the CPU's cores does not reach it, and need not: `schwann validate` with --deadline, \
         --p99, --memory or --throughput asks what a task needs.";
    if profile.requirements.is_empty() {
        let body = why("No requirements.", "add --device to hold the workload against a device's");
        return Panel::new("requirements", "Requirements", say, body);
    }
    let heads = ["device", "level", "of", ">asked for", ">reached", "verdict"];
    let mut table = Table::new("The guides' requirements and what is reached", "sortable", &heads);
    for r in &profile.requirements {
        let (class, words, order) = match r.met {
            Some(true) => ("good", "reached", 2.0),
            Some(false) => ("dim", "not reached", 0.0),
            None => ("dim", "unknown", 1.0),
        };
        table.row(
            "",
            [
                Cell::name(&r.device, ""),
                Cell::text(&r.level),
                Cell::text(&r.metric),
                Cell::figure(&r.required),
                Cell::figure(&r.reached),
                Cell::html(format!("<span class=\"state {class}\">{words}</span>"), order),
            ],
        );
    }
    Panel::new("requirements", "Requirements", say, table.html()).class("long")
}

fn efficiency(profile: &Profile) -> Panel {
    let say = "What was reached over what a device's requirements or the machine's limits ask for.";
    if profile.efficiency.is_empty() {
        let body = why("Not known.", "the machine's limits were left out of this profile");
        return Panel::new("efficiency", "Efficiency", say, body);
    }
    let mut table = Table::new("Efficiency", "sortable", &["what", ">reached", "from, or why not"]);
    for named in &profile.efficiency {
        let of = &named.figure;
        let words = match known(of) {
            Some(_) => escape(&of.source),
            None => {
                format!("<span class=\"dim\">{}</span>", escape(of.reason.as_deref().unwrap_or("no reason is given")))
            }
        };
        let name = Cell::name(&named.name.replace('_', " "), "");
        table.row("", [name, Cell::figure(of), Cell::html(words, None).class("words")]);
    }
    Panel::new("efficiency", "Efficiency", say, table.html()).class("long")
}

fn bottlenecks(profile: &Profile) -> Panel {
    let say = "By the time of a run that would be won at the machine's limit.";
    let mut body = String::from("<ul class=\"items\">");
    for b in &profile.bottlenecks {
        let _ = write!(
            body,
            "<li><b>{}</b><p>{}</p><div class=\"aside\">{} <small>{} of a run</small></div></li>",
            escape(&b.what),
            escape(&b.why),
            figure(&b.could_win),
            figure(&b.share)
        );
    }
    body += "</ul>";
    if profile.bottlenecks.is_empty() {
        body = why("None known.", "either nothing stands out, or times or the machine's limits are missing");
    }
    Panel::new("bottlenecks", "Bottlenecks", say, body).class("half")
}

fn recommendations(profile: &Profile) -> Panel {
    let say = "Each with what speaks for it, and what came of trying.";
    let mut body = String::from("<ul class=\"items\">");
    for r in &profile.recommendations {
        let (class, words) = match r.verdict {
            Verdict::Gain => ("good", "✓ proven gain"),
            Verdict::None => ("dim", "no difference"),
            Verdict::Loss => ("dim", "worse"),
            Verdict::Untested => ("dim", "not tried"),
            Verdict::Undecided => ("dim", "tried, undecided"),
        };
        let _ = write!(
            body,
            "<li><b>{}</b><p>{}</p><p><code>{}</code></p><div class=\"aside\"><span class=\"state {class}\">{words}</span> \
             <small>{}</small></div></li>",
            escape(&r.title),
            escape(&r.evidence),
            escape(&r.how),
            match r.verdict {
                Verdict::Untested => format!("expected {}", figure(&r.expected)),
                _ => marked(&r.measured, &faster(&r.measured)),
            }
        );
    }
    body += "</ul>";
    if profile.recommendations.is_empty() {
        body = why("None.", "no rule found something to change, or too little is known");
    }
    Panel::new("recommendations", "Recommendations", say, body).class("half")
}

fn hardware(profile: &Profile) -> Panel {
    let say = "What the machine itself told while the workload ran.";
    if profile.hardware.is_empty() {
        let body = why("Nothing was read.", "the profile holds no counters and no sensors");
        return Panel::new("hardware", "Counters and sensors", say, body);
    }
    let mut table = Table::new("Counters and sensors", "sortable", &["what", ">value", "from, or why not"]);
    // What is not there is one line, with the reasons behind it.
    let mut absent: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut there = 0;
    for (name, of) in &profile.hardware {
        if known(of).is_none() {
            let why = of.reason.as_deref().unwrap_or("no reason is given");
            absent.entry(why).or_default().push(name.replace('_', " "));
            continue;
        }
        there += 1;
        let words = Cell::html(escape(&of.source), None).class("words");
        table.row("", [Cell::name(&name.replace('_', " "), ""), Cell::figure(of), words]);
    }
    let mut body = if there > 0 { table.html() } else { String::new() };
    if !absent.is_empty() {
        let count: usize = absent.values().map(Vec::len).sum();
        let line = |(why, names): (&&str, &Vec<String>)| {
            format!("<li><b>{}</b><p class=\"dim\">{}</p></li>", escape(&names.join(", ")), escape(why))
        };
        let _ = write!(
            body,
            "<details><summary>{count} more are not there on this machine, and why</summary><ul class=\"items\">{}</ul></details>",
            absent.iter().map(line).collect::<String>()
        );
    }
    Panel::new("hardware", "Counters and sensors", say, body).class("long")
}
