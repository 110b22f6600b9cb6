//! Bencher metric format: benchmark → measure → value with its ends. `latency` is in nanoseconds, as Bencher's own
//! measure of that name is; `throughput` in operations a second. What has no value is left out: the form cannot say why.

use super::title;
use crate::Profile;
use schwann_core::Figure;
use schwann_core::figure::Ends;
use serde_json::{Map, Value, json};

/// The document as Bencher reads it.
pub fn bencher(profile: &Profile) -> String {
    let (c, m) = (&profile.compute, &profile.memory);
    let measures: [(&str, &Figure, f64); 9] = [
        ("latency", &c.time_p50, 1e9),
        ("latency-mean", &c.time_mean, 1e9),
        ("latency-min", &c.time_min, 1e9),
        ("latency-p95", &c.time_p95, 1e9),
        ("latency-p99", &c.time_p99, 1e9),
        ("throughput", &c.throughput, 1.0),
        ("tflops", &c.tflops, 1.0),
        ("arena-bytes", &m.arena, 1.0),
        ("rss-peak-bytes", &m.rss_peak, 1.0),
    ];
    let mut whole = Map::new();
    whole.extend(
        measures.iter().filter_map(|(name, figure, scale)| Some(((*name).to_owned(), metric(figure, *scale)?))),
    );
    let mut benchmarks = Map::new();
    benchmarks.insert(title(profile), Value::Object(whole));
    for op in &profile.compute.ops {
        if let Some(metric) = metric(&op.self_time, 1e9) {
            let path: Vec<String> = op.path.iter().map(usize::to_string).collect();
            let name = format!("{} / {} ({})", title(profile), op.name, path.join("."));
            benchmarks.insert(name, json!({ "latency": metric }));
        }
    }
    serde_json::to_string_pretty(&Value::Object(benchmarks)).unwrap_or_default() + "\n"
}

fn metric(figure: &Figure, scale: f64) -> Option<Value> {
    let mut metric = json!({ "value": figure.value? * scale });
    if let Some(spread) = figure.spread.filter(|s| s.ends == Ends::Confidence95) {
        metric["lower_value"] = json!(spread.low * scale);
        metric["upper_value"] = json!(spread.high * scale);
    }
    Some(metric)
}
