//! `schwann monitor --otlp`: what a collector of OpenTelemetry gets, by that protocol's data model; and what becomes of the
//! monitor where there is no collector, or one that does not answer.

use crate::common::Place;
use serde::Deserialize;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// The messages of `opentelemetry/proto/collector/metrics/v1` that the monitor sends, and nothing else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ExportMetricsServiceRequest {
    resource_metrics: Vec<ResourceMetrics>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ResourceMetrics {
    resource: Resource,
    scope_metrics: Vec<ScopeMetrics>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resource {
    attributes: Vec<KeyValue>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScopeMetrics {
    scope: Scope,
    metrics: Vec<Metric>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scope {
    name: String,
    version: String,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metric {
    name: String,
    description: String,
    unit: String,
    gauge: Option<Gauge>,
    sum: Option<Sum>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Gauge {
    data_points: Vec<NumberDataPoint>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Sum {
    data_points: Vec<NumberDataPoint>,
    aggregation_temporality: u8,
    is_monotonic: bool,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NumberDataPoint {
    attributes: Vec<KeyValue>,
    // Integers of 64 bits are texts.
    start_time_unix_nano: String,
    time_unix_nano: String,
    as_double: f64,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyValue {
    key: String,
    value: AnyValue,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
enum AnyValue {
    StringValue(String),
    IntValue(String),
}

/// Takes one request, as a collector does: by its length. Gives its head and its body.
fn take(listener: &TcpListener, answer: &str) -> (String, String) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (mut text, mut part) = (vec![], [0; 4096]);
    loop {
        let whole = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = whole.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")).unwrap();
            if body.len() >= length.parse::<usize>().unwrap() {
                write!(stream, "HTTP/1.1 {answer}").unwrap();
                return (head.to_owned(), body.to_owned());
            }
        }
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "it ended early: {whole}");
        text.extend_from_slice(&part[..count]);
    }
}

const DRIVEN: [&str; 9] = ["monitor", "wired-cfc", "--batch", "1", "--steps", "4", "--every", "100ms", "--otlp"];

#[test]
fn a_collector_gets_every_figure_by_the_protocols_data_model() {
    let place = Place::new("otlp");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let taken: Vec<_> = (0..3).map(|_| take(&listener, "200 OK\r\nContent-Length: 2\r\n\r\n{}")).collect();
        let answer = "200 OK\r\n\r\n{\"partialSuccess\":{\"rejectedDataPoints\":\"7\",\"errorMessage\":\"too old\"}}";
        take(&listener, answer);
        taken
    });
    let (_, said) =
        place.run(0, &[&DRIVEN[..], &[&url, "--deadline", "1s", "--rule", "misses > 0", "--for", "2s"]].concat());
    assert!(said.contains("7 of its figures were rejected: too old"), "{said}");
    let mut before = 0.0;
    for (head, body) in server.join().unwrap() {
        assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("Content-Type: application/json"), "{head}");
        let message: ExportMetricsServiceRequest =
            serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"));
        let [of] = &message.resource_metrics[..] else { panic!("{} resources", message.resource_metrics.len()) };
        let text = |of: &[KeyValue], wanted: &str| match &of.iter().find(|a| a.key == wanted).unwrap().value {
            AnyValue::StringValue(text) | AnyValue::IntValue(text) => text.clone(),
        };
        assert_eq!(text(&of.resource.attributes, "service.name"), "schwann monitor");
        assert!(text(&of.resource.attributes, "process.pid").parse::<u32>().is_ok());
        let [scoped] = &of.scope_metrics[..] else { panic!("{} scopes", of.scope_metrics.len()) };
        assert_eq!((scoped.scope.name.as_str(), scoped.scope.version.as_str()), ("schwann", env!("CARGO_PKG_VERSION")));
        let mut names = vec![];
        for metric in &scoped.metrics {
            let points = match (&metric.gauge, &metric.sum) {
                (Some(gauge), None) => &gauge.data_points,
                (None, Some(sum)) => {
                    assert!(sum.aggregation_temporality == 2 && sum.is_monotonic, "{}", metric.name);
                    &sum.data_points
                }
                _ => panic!("{} is not of one kind", metric.name),
            };
            assert!(!points.is_empty() && !metric.description.is_empty(), "{}", metric.name);
            assert!(["", "1", "s", "By", "By/s", "{flop}/s", "Hz", "W", "J", "Cel"].contains(&metric.unit.as_str()));
            for point in points {
                let time = |text: &str| text.parse::<u64>().unwrap();
                assert!(time(&point.start_time_unix_nano) < time(&point.time_unix_nano));
                assert!(point.as_double.is_finite());
                let mut keys: Vec<&str> = point.attributes.iter().map(|a| a.key.as_str()).collect();
                keys.sort();
                keys.dedup();
                assert_eq!(keys.len(), point.attributes.len(), "{}: a key is there twice", metric.name);
            }
            names.push(metric.name.as_str());
        }
        for wanted in
            ["schwann_run_duration_seconds", "schwann_deadline_misses", "schwann_memory_bytes", "schwann_watched_info"]
        {
            assert!(names.contains(&wanted), "no {wanted} in {names:?}");
        }
        let runs = scoped.metrics.iter().find(|m| m.name == "schwann_runs").unwrap();
        let now = runs.sum.as_ref().unwrap().data_points[0].as_double;
        assert!(now > before, "{now} runs after {before}");
        before = now;
    }
}

#[test]
fn no_collector_or_one_that_never_answers_holds_up_nothing() {
    let place = Place::new("otlp-away");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    for (url, word) in [("http://127.0.0.1:1", "no message could be sent to 127.0.0.1:1"), (&silent, "did not answer")]
    {
        let began = Instant::now();
        let (out, said) = place.run(0, &[&DRIVEN[..], &[url, "--json", "--for", "2s"]].concat());
        assert!(out.lines().count() > 10, "{out}");
        assert!(said.matches("metrics do not reach").count() == 1 && said.contains(word), "{said}");
        // Who does not answer is waited for once more at the end, and no longer.
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }
    for (url, word) in
        [("https://127.0.0.1", "there is no TLS"), ("collector:4318", "http://"), ("http://x:y", "not a port")]
    {
        let (_, said) = place.run(2, &[&DRIVEN[..], &[url]].concat());
        assert!(said.contains(word), "{said}");
    }
}
