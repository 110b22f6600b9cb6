//! A start of this program that measures sides in turns and ends: what verdicts rest on.
//!
//! The parent writes one JSON object to its standard input and reads one from its standard output.

use crate::{Outcome, out, profile};
use anyhow::{Context, Result, anyhow, bail};
use schwann::prof::profiler::{self, Options, Subject, Timed, Turns, turns};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// A request beyond this is none of ours.
const MOST_BYTES: u64 = 1 << 20;

/// One side: a built-in model or a network's file, and how to run it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Side {
    pub(crate) model: String,
    pub(crate) options: Options,
}

impl Side {
    /// Refuses here, with all the words, what a start would refuse.
    pub(crate) fn check(&self) -> Result<()> {
        Timed::new(&profile::subject(&self.model)?, &self.options).map(|_| ()).map_err(|e| match e {
            profiler::Error::Size { symbol } => {
                anyhow!("{} leaves the size `{symbol}` open; the gate knows B (--batch) and T (--steps)", self.model)
            }
            other => anyhow!(other).context(self.model.clone()),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Request {
    sides: Vec<Side>,
    yardstick: bool,
    seconds: f64,
}

pub(super) fn run() -> Result<Outcome> {
    let mut text = String::new();
    std::io::stdin().lock().take(MOST_BYTES).read_to_string(&mut text)?;
    let request: Request = serde_json::from_str(&text).context("expected one JSON object, as `schwann` writes it")?;
    let subjects = request.sides.iter().map(|s| profile::subject(&s.model)).collect::<Result<Vec<Subject>>>()?;
    let sides: Vec<_> = subjects.iter().zip(request.sides.iter().map(|s| &s.options)).collect();
    out::print(&serde_json::to_string(&turns(&sides, request.yardstick, request.seconds)?)?)?;
    Ok(Outcome::Done)
}

/// Starts this program anew to measure sides in turns.
pub(crate) fn start(sides: Vec<Side>, yardstick: bool, seconds: f64) -> Result<Turns> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(&own)
        .args(["gate", "start"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", own.display()))?;
    let request = serde_json::to_vec(&Request { sides, yardstick, seconds })?;
    if let Some(mut input) = child.stdin.take() {
        // Where it cannot be written to, it has ended, and says why.
        let _ = input.write_all(&request);
    }
    let ended = child.wait_with_output()?;
    if ended.status.code().is_none() {
        // Ended by a signal, which may be a Ctrl-C that this process has not yet heard of.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        let said = said.trim().lines().next().unwrap_or("nothing");
        bail!("a start of this program ended with {}: {}", ended.status, out::printable(said));
    }
    serde_json::from_slice(&ended.stdout).context("a start of this program gave no measurement")
}

/// The same as the profiler asks for it.
pub(crate) fn starter(model: &str) -> impl FnMut(&[Options], bool, f64) -> profiler::Result<Turns> {
    let model = model.to_owned();
    move |sides, yardstick, seconds| {
        let sides = sides.iter().map(|o| Side { model: model.clone(), options: o.clone() }).collect();
        start(sides, yardstick, seconds).map_err(|e| profiler::Error::Start { what: format!("{e:#}") })
    }
}
