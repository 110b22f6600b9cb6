//! What somebody measured on a real device and sent as a file: a report of `scripts/mac-report`. It becomes part of the
//! device's catalogue entry, so that predictions for it can say how far they were off.
//!
//! A report comes from elsewhere and is not trusted: its size, every count, every number and every text is checked before
//! anything is made of it.

use super::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::Read;
use std::path::Path;

/// A report beyond this is none.
const MOST_BYTES: u64 = 64 << 20;
/// Runs of a report.
const MOST_RUNS: usize = 1000;
/// Letters of a text.
const MOST_TEXT: usize = 100;
/// A run of a built-in model takes no longer, in seconds.
const MOST_SECONDS: f64 = 1e4;
/// Sizes of a run.
const MOST_SIZE: u64 = 1 << 24;
/// No core does more in a second, flop or byte.
const MOST_RATE: f64 = 1e15;

/// What a report calls itself.
pub const FORMAT: &str = "schwann-mac-report";
/// The version of reports that are read here.
pub const VERSION: u64 = 1;

/// Where a run was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// On the CPU's cores.
    Cpu,
    /// On the GPU.
    Gpu,
}

/// One run: measured on a real device, and predicted for it on another machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRun {
    /// A built-in model.
    pub model: String,
    /// Sequences.
    pub batch: usize,
    /// Steps of a sequence.
    pub steps: usize,
    /// Threads of the CPU.
    pub threads: usize,
    /// CPU or GPU.
    pub on: Side,
    /// The median, in seconds.
    pub measured_s: f64,
    /// What was predicted, in seconds; none where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_s: Option<f64>,
}

/// What one report says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The day, such as 2026-11-18.
    pub date: String,
    /// The commit of the program that measured.
    pub commit: String,
    /// The system, such as macOS 15.1.
    pub system: String,
    /// flop/s of one fast core, `f32`, by the calibration there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_flops: Option<f64>,
    /// B/s that one core has of main memory, by the calibration there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_bandwidth: Option<f64>,
    /// Runs.
    pub runs: Vec<MeasuredRun>,
}

fn positive(what: &str, value: f64, most: f64) -> Result<f64, String> {
    match value.is_finite() && value > 0.0 && value <= most {
        true => Ok(value),
        false => Err(format!("`{what}` is {value}; expected more than 0 and at most {most}")),
    }
}

/// Whether a text is a word or name as people write one: short, with nothing in it that a terminal would obey.
fn plain_text(what: &str, text: &str) -> Result<(), String> {
    if text.trim().is_empty() || text.chars().count() > MOST_TEXT {
        return Err(format!("`{what}` is empty or longer than {MOST_TEXT} letters"));
    }
    match text.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
        true => Ok(()),
        false => Err(format!("`{what}` has letters other than plain ones")),
    }
}

fn day(text: &str) -> Result<(), String> {
    let form = text.len() == 10
        && text.bytes().enumerate().all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() });
    if form { Ok(()) } else { Err("`date` is no day; expected such as 2026-11-18".into()) }
}

impl MeasuredRun {
    fn sound(&self) -> Result<(), String> {
        plain_text("model", &self.model)?;
        for (what, size) in [("batch", self.batch), ("steps", self.steps), ("threads", self.threads)] {
            positive(what, size as f64, MOST_SIZE as f64)?;
        }
        positive("measured_s", self.measured_s, MOST_SECONDS)?;
        self.predicted_s.map_or(Ok(0.0), |p| positive("predicted_s", p, MOST_SECONDS)).map(|_| ())
    }
}

impl Measured {
    /// Whether it can be calculated with; else what is wrong.
    pub fn sound(&self) -> Result<(), String> {
        day(&self.date)?;
        plain_text("commit", &self.commit)?;
        plain_text("system", &self.system)?;
        for (what, rate) in [("core_flops", self.core_flops), ("core_bandwidth", self.core_bandwidth)] {
            rate.map_or(Ok(0.0), |r| positive(what, r, MOST_RATE))?;
        }
        if self.runs.len() > MOST_RUNS {
            return Err(format!("has {} runs; expected at most {MOST_RUNS}", self.runs.len()));
        }
        self.runs.iter().try_for_each(MeasuredRun::sound)
    }

    /// Where its figures are from.
    pub fn source(&self) -> String {
        format!("measured on a real one ({}, {}, commit {})", self.date, self.system, self.commit)
    }

    /// As an inline table of a catalogue's file.
    pub(super) fn to_toml(&self) -> String {
        let text = |s: &str| toml::Value::String(s.into()).to_string();
        let number = |name: &str, v: Option<f64>| v.map_or(String::new(), |v| format!("{name} = {v:e}, "));
        let run = |r: &MeasuredRun| {
            let on = match r.on {
                Side::Cpu => "cpu",
                Side::Gpu => "gpu",
            };
            format!(
                "{{ model = {}, batch = {}, steps = {}, threads = {}, on = \"{on}\", {}measured_s = {:e} }}",
                text(&r.model),
                r.batch,
                r.steps,
                r.threads,
                number("predicted_s", r.predicted_s),
                r.measured_s
            )
        };
        format!(
            "{{ date = {}, commit = {}, system = {}, {}{}runs = [{}] }}",
            text(&self.date),
            text(&self.commit),
            text(&self.system),
            number("core_flops", self.core_flops),
            number("core_bandwidth", self.core_bandwidth),
            self.runs.iter().map(run).collect::<Vec<_>>().join(", ")
        )
    }
}

/// How predictions for a device compare with a real one.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// In a sentence.
    pub words: String,
    /// The least and the greatest of measured over predicted.
    pub ratios: [f64; 2],
}

impl Compared {
    /// Of what was measured, on one side; none where no run there has a prediction.
    pub fn of(all: &[Measured], on: Side) -> Option<Compared> {
        let runs = all.iter().flat_map(|m| m.runs.iter().map(move |r| (m, r))).filter(|(_, r)| r.on == on);
        let ratios: Vec<(&Measured, f64)> =
            runs.filter_map(|(m, r)| Some((m, r.measured_s / r.predicted_s?))).collect();
        let (last, _) = ratios.last()?;
        let low = ratios.iter().map(|(_, r)| *r).fold(f64::INFINITY, f64::min);
        let high = ratios.iter().map(|(_, r)| *r).fold(0.0, f64::max);
        let two = super::predict::two_digits;
        let words = format!(
            "compared with a real one: {} run{}, the latest of {} ({}, commit {}), took {} to {} times as long as predicted",
            ratios.len(),
            if ratios.len() == 1 { "" } else { "s" },
            last.date,
            last.system,
            last.commit,
            two(low),
            two(high)
        );
        Some(Compared { words, ratios: [low, high] })
    }

    /// A band that is no narrower than what was seen: around the likely time, its low and high end.
    pub fn widen(&self, likely: f64, low: f64, high: f64) -> [f64; 2] {
        [low.min(likely * self.ratios[0]), high.max(likely * self.ratios[1])]
    }
}

/// A report as it was sent: which chip, and what was measured there. Predictions are still to come.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The chip, as its system calls it: Apple M2.
    pub chip: String,
    /// What was measured.
    pub measured: Measured,
}

impl Report {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Report> {
        let fail = |source| Error::File { action: "read", path: path.to_owned(), source };
        let wrong = |problem: String| Error::Report { file: path.to_owned(), problem };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(fail)?;
        file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(fail)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(wrong(format!("a report has at most {MOST_BYTES} bytes, and this has more")));
        }
        Report::parse(&text).map_err(wrong)
    }

    /// Reads a text; else says what is wrong with it.
    pub fn parse(text: &str) -> Result<Report, String> {
        let all: Value = serde_json::from_str(text).map_err(|e| format!("no report: {e}"))?;
        if all["format"] != FORMAT {
            return Err(format!("no report: `format` is not `{FORMAT}`; `scripts/mac-report` writes one"));
        }
        if all["version"].as_u64() != Some(VERSION) {
            return Err(format!("a report of version {}; this program reads version {VERSION}", all["version"]));
        }
        let word = |value: &Value, what: &str| {
            let text = value.as_str().ok_or_else(|| format!("has no `{what}`"))?;
            plain_text(what, text).map(|()| text.to_owned())
        };
        let runs = all["runs"].as_array().ok_or("has no list `runs`")?;
        if runs.len() > MOST_RUNS {
            return Err(format!("has {} runs; expected at most {MOST_RUNS}", runs.len()));
        }
        let limits = &all["calibration"]["limits"];
        let one = limits.as_array().and_then(|l| l.iter().find(|l| l["threads"] == 1));
        let rate = |v: &Value| v.as_f64().filter(|r| *r > 0.0);
        let levels = one.and_then(|l| l["levels"].as_array()).map_or(&[][..], Vec::as_slice);
        let memory = levels.iter().find(|l| l["capacity_bytes"].is_null());
        let fastest = |l: &Value| {
            let rates = l.as_object()?.iter().filter(|(k, _)| k.ends_with("_bytes_per_s")).filter_map(|(_, v)| rate(v));
            rates.reduce(f64::max)
        };
        let mut measured = Measured {
            date: word(&all["date"], "date")?,
            commit: word(&all["commit"], "commit")?,
            system: word(&all["system"]["os"], "system.os")?,
            core_flops: one.and_then(|l| rate(&l["flops_per_s"])),
            core_bandwidth: memory.and_then(fastest),
            runs: vec![],
        };
        for (i, run) in runs.iter().enumerate() {
            let at = |problem: String| format!("run {}: {problem}", i + 1);
            let size = |what: &str| {
                let found = run[what].as_u64().filter(|n| (1..=MOST_SIZE).contains(n));
                found
                    .map(|n| n as usize)
                    .ok_or_else(|| at(format!("`{what}` is {}; expected 1 to {MOST_SIZE}", run[what])))
            };
            let on = match run["on"].as_str() {
                Some("cpu") => Side::Cpu,
                Some("gpu") => Side::Gpu,
                _ => return Err(at(format!("`on` is {}; expected \"cpu\" or \"gpu\"", run["on"]))),
            };
            let time = &run["profile"]["profiles"][0]["compute"]["time_p50"]["value"];
            let time = time.as_f64().ok_or_else(|| at("has no measured `time_p50`".into()))?;
            measured.runs.push(MeasuredRun {
                model: word(&run["model"], "model").map_err(at)?,
                batch: size("batch")?,
                steps: size("steps")?,
                threads: size("threads")?,
                on,
                measured_s: time,
                predicted_s: None,
            });
        }
        measured.sound()?;
        Ok(Report { chip: word(&all["system"]["chip"], "system.chip")?, measured })
    }
}

#[cfg(test)]
mod tests;
