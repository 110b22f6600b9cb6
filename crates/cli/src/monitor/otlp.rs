//! `--otlp URL`: each moment to a collector of OpenTelemetry, in JSON by HTTP.
//!
//! A thread of its own sends the latest moment; moments that come meanwhile are left out, so that a slow collector, or none,
//! holds up nothing.

use super::feed::Desk;
use super::post::Target;
use crate::out;
use anyhow::{Context, Result, bail};
use schwann::prof::live;
use serde_json::Value;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it is looked whether there is another moment.
const LOOK: Duration = Duration::from_millis(50);

/// Reads where a collector is; its usual port and path where they are left out.
pub(super) fn target(url: &str) -> Result<Target, String> {
    let wanted = "expected the address of a collector, such as http://127.0.0.1:4318 (there is no TLS)";
    Target::read(url, 4318, "/v1/metrics", wanted).map_err(|e| e.to_string())
}

/// Sends moments until the monitor is over, the last one too.
pub(super) fn start(target: Target, desk: Desk) -> Result<JoinHandle<()>> {
    let send = move || {
        let (mut sent, mut works) = (None, true);
        loop {
            let over = desk.is_over();
            if let Some((moment, rules)) = desk.latest().filter(|(moment, _)| sent != Some(moment.number)) {
                sent = Some(moment.number);
                let said = accepted(&target, &live::otlp(desk.about(), &moment, &rules));
                match &said {
                    // Once is enough until it works again.
                    Err(why) if works => out::note(&format!("metrics do not reach {target}: {why:#}")),
                    Ok(()) if !works => out::note(&format!("metrics reach {target} again")),
                    _ => {}
                }
                works = said.is_ok();
            }
            if over {
                return;
            }
            std::thread::sleep(LOOK);
        }
    };
    std::thread::Builder::new().name("schwann otlp".into()).spawn(send).context("cannot start a thread")
}

/// Sends a message; an error too where a part of it was rejected.
fn accepted(target: &Target, message: &str) -> Result<()> {
    let answer: Value = serde_json::from_str(&target.post(message)?).unwrap_or_default();
    let partial = &answer["partialSuccess"];
    let rejected = match &partial["rejectedDataPoints"] {
        Value::String(count) => count.clone(),
        Value::Number(count) => count.to_string(),
        _ => return Ok(()),
    };
    if rejected != "0" {
        let why = partial["errorMessage"].as_str().unwrap_or("no reason given");
        bail!("{rejected} of its figures were rejected: {}", out::printable(&out::cut(why, 200)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_has_a_usual_port_and_path() {
        for (url, wanted) in [
            ("http://127.0.0.1", "http://127.0.0.1:4318/v1/metrics"),
            ("http://collector:80/", "http://collector:80/v1/metrics"),
            ("http://[::1]:4318/own/path", "http://[::1]:4318/own/path"),
        ] {
            assert_eq!(target(url).unwrap().to_string(), wanted);
        }
        assert!(target("https://collector").unwrap_err().contains("there is no TLS"));
    }
}
