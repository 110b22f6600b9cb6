//! A moment as the OpenTelemetry protocol (OTLP 1) has metrics, in JSON, as collectors take it by HTTP at `/v1/metrics`.
//!
//! Names are those of the text for Prometheus, without `_total`: a collector that serves Prometheus adds that by itself.

use super::metrics::{Family, Judged, Labels, families};
use super::{About, Moment};
use serde_json::{Value, json};

/// The message of a moment.
pub fn otlp(about: &About, moment: &Moment, rules: &[Judged]) -> String {
    let (began, now) = (nanoseconds(about.began_s), nanoseconds(about.began_s + moment.at_s));
    let metrics: Vec<Value> =
        families(about, Some(moment), rules).iter().map(|(name, family)| metric(name, family, &began, &now)).collect();
    let resource = json!({"attributes": [
        {"key": "service.name", "value": {"stringValue": about.program}},
        {"key": "process.pid", "value": {"intValue": about.pid.to_string()}},
    ]});
    let scope = json!({"name": "schwann", "version": env!("CARGO_PKG_VERSION")});
    let scoped = json!({"scope": scope, "metrics": metrics});
    json!({"resourceMetrics": [{"resource": resource, "scopeMetrics": [scoped]}]}).to_string()
}

/// Since 1970, as a text: JSON's numbers do not hold all integers of 64 bits.
fn nanoseconds(seconds: f64) -> String {
    ((seconds * 1e9) as u64).to_string()
}

fn metric(name: &str, family: &Family, began: &str, now: &str) -> Value {
    let point = |(labels, value): &(Labels, f64)| {
        let attribute = |(key, text): &(String, String)| json!({"key": key, "value": {"stringValue": text}});
        let attributes: Vec<Value> = labels.iter().map(attribute).collect();
        json!({"attributes": attributes, "startTimeUnixNano": began, "timeUnixNano": now, "asDouble": value})
    };
    let points: Vec<Value> = family.samples.iter().map(point).collect();
    let name = if family.kind == "info" { format!("{name}_info") } else { name.to_owned() };
    let mut metric = json!({"name": name, "description": family.help, "unit": unit(family.unit)});
    match family.kind {
        // Temporality 2: what was counted since the start.
        "counter" => metric["sum"] = json!({"dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true}),
        _ => metric["gauge"] = json!({"dataPoints": points}),
    }
    metric
}

/// A unit as the Unified Code for Units of Measure writes it.
fn unit(ours: &str) -> &'static str {
    match ours {
        "seconds" => "s",
        "ratio" => "1",
        "bytes" => "By",
        "bytes_per_second" => "By/s",
        "flops_per_second" => "{flop}/s",
        "hertz" => "Hz",
        "watts" => "W",
        "joules" => "J",
        "celsius" => "Cel",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::openmetrics;
    use super::super::sum::{about, tests::moment};
    use super::*;
    use schwann_core::Figure;

    #[test]
    fn a_message_has_the_samples_of_the_text_for_prometheus() {
        let mut m = moment();
        m.operations[0].name = "a \"quoted\\ name\"".into();
        m.machine.insert("package_energy".into(), Figure::measured(5.0, "J", "test"));
        let about = about("W", 7, 0.5, Some(5e-3), None, None);
        let rules = [("misses > 0".to_owned(), Ok(true)), ("rss growth".to_owned(), Err("too soon".to_owned()))];
        let message: Value = serde_json::from_str(&otlp(&about, &m, &rules)).unwrap();
        let mut samples: Vec<String> = vec![];
        let scoped = &message["resourceMetrics"][0]["scopeMetrics"][0];
        for metric in scoped["metrics"].as_array().unwrap() {
            let (kind, suffix) = if metric["sum"].is_object() { ("sum", "_total") } else { ("gauge", "") };
            for point in metric[kind]["dataPoints"].as_array().unwrap() {
                let time = |name: &str| point[name].as_str().unwrap().parse::<u64>().unwrap();
                assert!(time("startTimeUnixNano") <= time("timeUnixNano"));
                let label = |a: &Value| {
                    let text = a["value"]["stringValue"].as_str().unwrap().replace('\\', "\\\\").replace('"', "\\\"");
                    format!("{}=\"{text}\"", a["key"].as_str().unwrap())
                };
                let labels: Vec<String> = point["attributes"].as_array().unwrap().iter().map(label).collect();
                let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
                let value = point["asDouble"].as_f64().unwrap();
                samples.push(format!("{}{suffix}{labels} {value}", metric["name"].as_str().unwrap()));
            }
        }
        let text = openmetrics(&about, Some(&m), &rules);
        let mut wanted: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        // Readings of the machine are of the moment, and the same in both.
        samples.sort();
        wanted.sort();
        assert_eq!(samples, wanted);
        assert!(samples.iter().any(|s| s.starts_with("schwann_machine_package_energy_joules_total 5")), "{samples:?}");
    }
}
