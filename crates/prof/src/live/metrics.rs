//! A moment as metrics, and those in the text that Prometheus and its kin read: OpenMetrics 1.0.
//!
//! What is not known has no sample: a metric that is 0 would say something else. `schwann_unavailable_info` names it with the
//! reason.

use super::{About, Moment};
use schwann_core::Figure;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What the text is, for whoever asked for it.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Operations with samples of their own.
const MOST_OPERATIONS: usize = 64;

/// What tells samples of one name apart.
pub(super) type Labels = Vec<(String, String)>;

/// Samples of one name.
pub(super) struct Family {
    /// `gauge`, `counter` or `info`.
    pub(super) kind: &'static str,
    /// The unit, as names end with it.
    pub(super) unit: &'static str,
    pub(super) help: String,
    pub(super) samples: Vec<(Labels, f64)>,
}

/// All families, by name.
#[derive(Default)]
struct Families {
    families: BTreeMap<String, Family>,
    unknown: BTreeMap<String, String>,
}

/// A label's value, as the format wants it.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A unit of ours: what it is called there, and how many of those it is.
fn unit(ours: &str) -> (&'static str, f64) {
    match ours {
        "s" => ("seconds", 1.0),
        "%" => ("ratio", 0.01),
        "B" => ("bytes", 1.0),
        "B/s" => ("bytes_per_second", 1.0),
        "flop/s" => ("flops_per_second", 1.0),
        "Hz" => ("hertz", 1.0),
        "W" => ("watts", 1.0),
        "J" => ("joules", 1.0),
        "°C" => ("celsius", 1.0),
        _ => ("", 1.0),
    }
}

impl Families {
    fn add(&mut self, name: &str, kind: &'static str, unit: &'static str, help: &str, labels: Labels, value: f64) {
        let family = || Family { kind, unit, help: help.to_owned(), samples: vec![] };
        let family = self.families.entry(name.to_owned()).or_insert_with(family);
        family.samples.push((labels, value));
    }

    /// A figure; where it has no value, the reason. `called` is what it is called among those.
    fn figure(&mut self, name: &str, kind: &'static str, help: &str, labels: Labels, called: &str, figure: &Figure) {
        let (unit, scale) = unit(&figure.unit);
        match figure.value.filter(|v| v.is_finite()) {
            Some(value) => self.add(name, kind, unit, help, labels, value * scale),
            None => {
                let reason = figure.reason.clone().unwrap_or_else(|| "nobody said why".into());
                self.unknown.insert(called.to_owned(), reason);
            }
        }
    }

    /// All of them, with those that are not known.
    fn whole(mut self) -> BTreeMap<String, Family> {
        for (figure, reason) in std::mem::take(&mut self.unknown) {
            let labels = labels(&[("figure", &figure), ("reason", &reason)]);
            self.add("schwann_unavailable", "info", "", "Figures that are not known, with the reason", labels, 1.0);
        }
        self.families
    }
}

/// A reading of the machine: its metric's name without the unit, and labels.
fn reading(name: &str) -> (String, Labels) {
    for (kind, each, label) in [("cpu", "core", "core"), ("gpu", "each_gpu", "gpu")] {
        let numbered = name.strip_prefix(kind).and_then(|rest| rest.split_once('_'));
        if let Some((number, what)) = numbered.filter(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
            return (format!("{each}_{what}"), labels(&[(label, number)]));
        }
    }
    match name.strip_prefix("temperature_") {
        Some(sensor) => ("temperature".into(), labels(&[("sensor", sensor)])),
        None => (name.to_owned(), vec![]),
    }
}

/// A rule's name, and whether it holds at a moment, or why that is not known.
pub type Judged = (String, Result<bool, String>);

/// The text of a moment; without one, of what is watched.
pub fn openmetrics(about: &About, moment: Option<&Moment>, rules: &[Judged]) -> String {
    let mut text = String::new();
    for (name, family) in &families(about, moment, rules) {
        let _ = writeln!(text, "# TYPE {name} {}", family.kind);
        if !family.unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {}", family.unit);
        }
        let _ = writeln!(text, "# HELP {name} {}", escaped(&family.help));
        let suffix = match family.kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        for (labels, value) in &family.samples {
            let each = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
            let labels = each.collect::<Vec<_>>().join(",");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let _ = writeln!(text, "{name}{suffix}{labels} {value}");
        }
    }
    text + "# EOF\n"
}

/// The metrics of a moment; without one, of what is watched.
pub(super) fn families(about: &About, moment: Option<&Moment>, rules: &[Judged]) -> BTreeMap<String, Family> {
    let mut told = Families::default();
    let all = labels(&[
        ("model", &about.model),
        ("program", &about.program),
        ("backend", &about.backend),
        ("machine", &about.machine),
        ("version", env!("CARGO_PKG_VERSION")),
    ]);
    told.add("schwann_watched", "info", "", "What is watched", all, 1.0);
    if let Some(deadline) = about.deadline_s {
        let help = "The time within which a run should end";
        told.add("schwann_deadline_seconds", "gauge", "seconds", help, vec![], deadline);
    }
    let none = Vec::new;
    let roof = "What multiply-adds reach at best on as many threads";
    told.figure("schwann_arithmetic_roof_flops_per_second", "gauge", roof, none(), "flops_roof", &about.flops_roof);
    let roof = "What reading memory reaches at best";
    told.figure("schwann_memory_roof_bytes_per_second", "gauge", roof, none(), "bandwidth_roof", &about.bandwidth_roof);
    let Some(m) = moment else { return told.whole() };
    let (l, w) = (&m.latency, &m.work);
    let help = "Seconds since watching began";
    told.add("schwann_watched_seconds", "gauge", "seconds", help, none(), m.at_s);
    told.figure("schwann_runs", "counter", "Runs since watching began", none(), "total", &l.total);
    let help = "Runs that missed the deadline";
    told.figure("schwann_deadline_misses", "counter", help, none(), "misses_total", &l.misses_total);
    for (stat, figure) in [("min", &l.min), ("p50", &l.p50), ("p95", &l.p95), ("p99", &l.p99), ("max", &l.max)] {
        let help = "How long runs took since the moment before";
        let called = format!("latency_{stat}");
        told.figure("schwann_run_duration_seconds", "gauge", help, labels(&[("stat", stat)]), &called, figure);
    }
    match l.rate.value {
        Some(rate) => told.add("schwann_run_rate_hertz", "gauge", "hertz", "Runs a second", none(), rate),
        None => told.figure("schwann_run_rate_hertz", "gauge", "", none(), "rate", &l.rate),
    }
    told.figure("schwann_busy_ratio", "gauge", "Part of the time that was spent in runs", none(), "busy", &l.busy);
    let help = "Arithmetic while a run goes on";
    told.figure("schwann_arithmetic_flops_per_second", "gauge", help, none(), "flops", &w.flops);
    let help = "Bytes that operations move at least while a run goes on";
    told.figure("schwann_memory_traffic_bytes_per_second", "gauge", help, none(), "bandwidth", &w.bandwidth);
    let help = "Part of the machine's limit that is reached";
    told.figure("schwann_roof_ratio", "gauge", help, none(), "roof_share", &w.roof_share);
    for operation in m.operations.iter().take(MOST_OPERATIONS) {
        let all = labels(&[("operation", &operation.name)]);
        let help = "Part of a run's time";
        told.figure("schwann_operation_share_ratio", "gauge", help, all.clone(), &operation.name, &operation.share);
        let help = "Seconds of a run";
        told.figure("schwann_operation_seconds", "gauge", help, all, &operation.name, &operation.time);
    }
    let memory =
        [("arena", &m.memory.arena), ("weights", &m.memory.weights), ("pool", &m.memory.pool), ("rss", &m.memory.rss)];
    for (kind, figure) in memory {
        let all = labels(&[("kind", kind)]);
        told.figure("schwann_memory_bytes", "gauge", "Memory of the watched program", all, kind, figure);
    }
    for (name, figure) in &m.machine {
        let (metric, all) = reading(name);
        let (unit, _) = unit(&figure.unit);
        let suffix = if unit.is_empty() { String::new() } else { format!("_{unit}") };
        // Energies only grow.
        let kind = if figure.unit == "J" { "counter" } else { "gauge" };
        let help = format!("{}, {}", metric.replace('_', " "), figure.unit);
        // Names of sensors come from the system, and a metric's name has letters of its own.
        let metric: String =
            metric.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect();
        told.figure(&format!("schwann_machine_{metric}{suffix}"), kind, &help, all, name, figure);
    }
    for (rule, holds) in rules {
        match holds {
            Ok(holds) => {
                let (help, value) = ("Whether a rule holds: 1 yes, 0 no", f64::from(u8::from(*holds)));
                told.add("schwann_rule_holds", "gauge", "", help, labels(&[("rule", rule)]), value);
            }
            Err(why) => drop(told.unknown.insert(format!("rule {rule}"), why.clone())),
        }
    }
    told.whole()
}

#[cfg(test)]
mod tests {
    use super::super::sum::{about, tests::moment};
    use super::*;
    use std::collections::BTreeSet;

    /// Reads the text as the format's grammar has it: families with their metadata first, samples of that family after it,
    /// and nothing after the end.
    fn parse(text: &str) -> BTreeMap<String, f64> {
        let mut samples = BTreeMap::new();
        let mut family = ("", "");
        let mut seen = BTreeSet::new();
        let body = text.strip_suffix("# EOF\n").expect("an end");
        assert!(!body.contains("# EOF"));
        let is_name = |n: &str| n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && n.starts_with("schwann_");
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split_once(' ').unwrap();
                assert!(seen.insert(family.0), "{} is there twice", family.0);
                assert!(["gauge", "counter", "info"].contains(&family.1) && is_name(family.0), "{line}");
            } else if let Some(rest) = line.strip_prefix("# UNIT ") {
                let (name, unit) = rest.split_once(' ').unwrap();
                assert!(name == family.0 && name.ends_with(&format!("_{unit}")), "{line}");
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                assert_eq!(rest.split_once(' ').unwrap().0, family.0);
            } else {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let bare = name.split('{').next().unwrap();
                let suffix = match family.1 {
                    "counter" => "_total",
                    "info" => "_info",
                    _ => "",
                };
                assert_eq!(bare, format!("{}{suffix}", family.0), "{line}");
                assert!(value.parse::<f64>().unwrap().is_finite(), "{line}");
                assert!(samples.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{name} is there twice");
            }
        }
        samples
    }

    #[test]
    fn a_moment_is_openmetrics_with_base_units_and_no_value_for_the_unknown() {
        let mut m = moment();
        m.operations[0].name = "a \"quoted\\ name\"\nwith a line's end".into();
        m.machine.insert("cpu3_load".into(), Figure::measured(50.0, "%", "test"));
        m.machine.insert("package_energy".into(), Figure::measured(5.0, "J", "test"));
        m.machine.insert("temperature_nvme composite".into(), Figure::measured(40.0, "°C", "test"));
        let rules = [("misses > 0".to_owned(), Ok(true)), ("rss growth".to_owned(), Err("too soon".to_owned()))];
        let text = openmetrics(&about("W", 1, 0.5, Some(5e-3), None, None), Some(&m), &rules);
        let samples = parse(&text);
        for (name, value) in [
            ("schwann_runs_total", 3.0),
            ("schwann_deadline_misses_total", 1.0),
            ("schwann_run_duration_seconds{stat=\"p50\"}", 2e-3),
            ("schwann_deadline_seconds", 5e-3),
            ("schwann_machine_core_load_ratio{core=\"3\"}", 0.5),
            ("schwann_machine_package_energy_joules_total", 5.0),
            ("schwann_machine_temperature_celsius{sensor=\"nvme composite\"}", 40.0),
            ("schwann_rule_holds{rule=\"misses > 0\"}", 1.0),
            ("schwann_unavailable_info{figure=\"rule rss growth\",reason=\"too soon\"}", 1.0),
        ] {
            assert_eq!(samples.get(name), Some(&value), "{name} in\n{text}");
        }
        assert!(!samples.contains_key("schwann_roof_ratio"));
        assert!(samples.keys().any(|k| k.starts_with("schwann_unavailable_info{figure=\"roof_share\",reason=\"")));
        parse(&openmetrics(&about("W", 1, 0.5, None, None, None), None, &[]));
    }

    #[test]
    fn every_metric_that_the_dashboard_asks_for_exists() {
        let dashboard = include_str!("../../../../docs/grafana/schwann.json");
        let json: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        let mut about = about("W", 1, 0.5, Some(5e-3), None, None);
        let known = |figure: &mut Figure| *figure = Figure::measured(1.0, &figure.unit.clone(), "test");
        // On a machine that tells everything.
        let mut m = moment();
        let unknown = [&mut about.flops_roof, &mut about.bandwidth_roof, &mut m.work.roof_share, &mut m.memory.pool];
        unknown.into_iter().for_each(known);
        m.machine.values_mut().for_each(known);
        for (name, unit) in [("cpu0_load", "%"), ("cpu0_frequency", "Hz")] {
            m.machine.insert(name.into(), Figure::measured(1.0, unit, "test"));
        }
        let text = openmetrics(&about, Some(&m), &[("r".into(), Ok(false))]);
        let there: BTreeSet<String> =
            parse(&text).into_keys().map(|name| name.split('{').next().unwrap_or_default().to_owned()).collect();
        let (mut panels, mut asked) = (0, 0);
        let mut ids = BTreeSet::new();
        for panel in json["panels"].as_array().unwrap() {
            panels += 1;
            assert!(
                ids.insert(panel["id"].as_u64().unwrap()) && panel["title"].is_string() && panel["type"].is_string()
            );
            let at = &panel["gridPos"];
            assert!(at["x"].as_u64().unwrap() + at["w"].as_u64().unwrap() <= 24 && at["h"].as_u64().unwrap() > 0);
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = target["expr"].as_str().unwrap();
                let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
                for name in query.split(word).filter(|w| w.starts_with("schwann_")) {
                    asked += 1;
                    assert!(there.contains(name), "`{name}` of panel {} does not exist", panel["title"]);
                }
            }
        }
        assert!(panels >= 8 && asked >= 10, "{panels} panels, {asked} metrics");
        assert!(json["schemaVersion"].is_u64() && json["title"].is_string() && json["uid"].is_string());
    }
}
