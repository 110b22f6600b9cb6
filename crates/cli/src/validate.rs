//! `schwann validate`: is a model fast and small enough? Measured here, or predicted for a device, with an exit code.

use crate::devices::{is_host, number};
use crate::{Outcome, devices, load, out, predict};
use anyhow::{Result, bail};
use schwann::Figure;
use schwann::plan::{bytes, rough, seconds};
use schwann::prof::device::measured::{Compared, Side};
use schwann::prof::device::predict::NEVER_COMPARED;
use schwann::prof::device::{Catalog, Entry, on, requirements};
use schwann::prof::need::{self, Blocks, Line, Needs, Verdict};
use schwann::prof::profile::Requirement;
use serde_json::json;
use std::io::Write;

#[derive(clap::Args)]
#[command(
    after_help = "Each need gets pass, fail, or cannot tell. What is measured here is judged by its confidence interval, what is \
predicted for another device by the range of the prediction: where the limit lies inside, the answer is \"cannot tell\".

Exit codes: 0 every need is met, 1 one is not, 2 wrong usage or bad input, 3 cannot tell.

Whether a model's numbers are right is another question: `schwann verify`.

Examples:
  schwann validate net.safetensors --deadline 1ms
  schwann validate net.safetensors --deadline 1ms --p99 500us --memory 10MB
  schwann validate net.safetensors --batch 32 --steps 16 --throughput 100000/s
  schwann validate net.safetensors --deadline 1ms --device 'Raspberry Pi 5'
  schwann validate net.safetensors --device m1 --require minimum"
)]
pub(crate) struct Args {
    /// A file, or a built-in model (`schwann profile --help` lists them).
    #[arg(value_name = "MODEL", value_parser = load::model_name)]
    model: String,
    /// Runs must finish within this, such as 1ms or 500us; one in a thousand may be late.
    #[arg(long, value_name = "TIME", value_parser = asked(duration))]
    deadline: Option<Asked>,
    /// 99 of 100 runs must finish within this.
    #[arg(long, value_name = "TIME", value_parser = asked(duration))]
    p99: Option<Asked>,
    /// The most memory it may take, such as 10MB or 512KiB.
    #[arg(long, value_name = "SIZE", value_parser = asked(size))]
    memory: Option<Asked>,
    /// Sequence steps a second that are needed, such as 1000/s.
    #[arg(long, value_name = "RATE", value_parser = asked(rate))]
    throughput: Option<Asked>,
    /// A device that is not here, such as Raspberry Pi 5: predicted. Without it, this machine: measured.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Compare with a guide's table for the device: `minimum` or `target`.
    #[arg(long, value_name = "LEVEL", value_parser = ["minimum", "target"], requires = "device")]
    require: Option<String>,
    /// Sequences in a batch.
    #[arg(long, value_name = "B", default_value_t = 1, value_parser = load::size)]
    batch: usize,
    /// Steps of a sequence.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = load::size)]
    steps: usize,
    /// Threads; 0: one per core of this machine.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = load::threads)]
    threads: usize,
    /// Seconds to measure.
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = load::seconds)]
    seconds: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A limit, and how it was written.
#[derive(Clone)]
struct Asked {
    value: f64,
    text: String,
}

/// Reads a limit by its kind.
fn asked(read: fn(&str) -> Result<f64, String>) -> impl Fn(&str) -> Result<Asked, String> + Clone {
    move |text| Ok(Asked { value: read(text)?, text: text.trim().to_owned() })
}

impl Args {
    /// The limit of a metric as it was written.
    fn limit(&self, metric: &str) -> Option<&str> {
        let asked = match metric {
            "deadline" => &self.deadline,
            "p99" => &self.p99,
            "memory" => &self.memory,
            "throughput" => &self.throughput,
            _ => &None,
        };
        asked.as_ref().map(|a| a.text.as_str())
    }
}

/// A number and the unit behind it.
fn quantity(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    match text[..end].parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok((value, text[end..].trim())),
        _ => Err("expected a number above 0 with its unit".into()),
    }
}

/// Reads a time: `1ms`.
pub(crate) fn duration(text: &str) -> Result<f64, String> {
    let (value, unit) = quantity(text)?;
    let scale = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" | "μs" => 1e-6,
        "ns" => 1e-9,
        _ => return Err(format!("`{unit}` is not a unit of time; expected s, ms, us or ns, such as 1ms")),
    };
    Ok(value * scale)
}

/// Reads bytes: `10MB`.
fn size(text: &str) -> Result<f64, String> {
    let (value, unit) = quantity(text)?;
    let scale = match unit {
        "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => {
            return Err(format!(
                "`{unit}` is not a unit of memory; expected B, kB, MB, GB, KiB, MiB or GiB, such as 10MB"
            ));
        }
    };
    Ok(value * scale)
}

/// Reads a rate: `1000/s`.
fn rate(text: &str) -> Result<f64, String> {
    let (value, unit) = quantity(text)?;
    match unit {
        "" | "/s" | "Hz" => Ok(value),
        _ => Err(format!("`{unit}` is not a unit of a rate; expected /s, such as 1000/s")),
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let value = |asked: &Option<Asked>| asked.as_ref().map(|a| a.value);
    let needs = Needs {
        deadline_s: value(&args.deadline),
        p99_s: value(&args.p99),
        memory_bytes: value(&args.memory),
        throughput: value(&args.throughput),
    };
    if needs.is_empty() && args.require.is_none() {
        bail!(
            "nothing is asked of {}: give --deadline 1ms, --p99 2ms, --memory 10MB or --throughput 1000/s \
             (whether its numbers are right is `schwann verify`)",
            args.model
        );
    }
    let catalog = Catalog::load()?;
    let device = match args.device.as_deref() {
        Some(name) if !is_host(name) => Some(catalog.find(name)?),
        _ => None,
    };
    if let (Some(_), Some(device)) = (&args.require, device)
        && device.minimum.flops.is_empty()
        && device.target.flops.is_empty()
    {
        let with = catalog.devices.iter().filter(|d| !d.minimum.flops.is_empty());
        let with: Vec<&str> = with.map(|d| d.name.as_str()).collect();
        bail!("there are no published requirements for {}; there are some for {}", device.name, with.join(", "));
    }
    let (mut ready, sizes) = predict::ready(&args.model, (args.batch, args.steps), &[], args.threads)?;
    let plan = ready.session().program().plan(&sizes)?;
    let io: usize = ready.input_bytes() + ready.output_bytes()?;
    let memory = plan.memory().derive("B", "the plan's arena and weights, inputs and outputs", |b| b + io as f64);
    let samples = (args.batch * args.steps) as f64;
    let mut table = vec![];
    let lines = match device {
        None => {
            let bar = out::progress(1);
            bar.set_message("measuring");
            let blocks = Blocks::measure(&mut ready, args.seconds);
            bar.finish_and_clear();
            need::measured(&needs, &blocks?, samples, &memory)
        }
        Some(device) => {
            let found = on(&plan, device, &devices::calibration()?);
            if let Some(level) = &args.require {
                table = requirements(device, &found.tflops, &found.bandwidth, &memory);
                table.retain(|r| r.level == *level);
            }
            need::predicted(&needs, &found.time, samples, &memory)
        }
    };
    let asked = if lines.is_empty() { Verdict::Pass } else { need::worst(&lines) };
    let verdict = match (asked, table.iter().map(|r| r.met).min_by_key(|m| m.map_or(1, |met| if met { 2 } else { 0 })))
    {
        (Verdict::Fail, _) | (_, Some(Some(false))) => Verdict::Fail,
        (Verdict::CannotTell, _) | (_, Some(None)) => Verdict::CannotTell,
        _ => Verdict::Pass,
    };
    if args.json {
        let document = json!({
            "model": args.model, "device": device.map_or("host", |d| d.name.as_str()), "batch": args.batch,
            "steps": args.steps, "threads": plan.threads, "verdict": verdict, "needs": lines, "requirements": table,
        });
        out::print(&serde_json::to_string_pretty(&document)?)?;
    } else {
        page(args, device, &lines, &table, verdict)?;
    }
    Ok(match verdict {
        Verdict::Pass => Outcome::Done,
        Verdict::Fail => Outcome::Differs,
        Verdict::CannotTell => Outcome::Undecided,
    })
}

fn word(verdict: Verdict) -> String {
    match verdict {
        Verdict::Pass => out::paint(out::GOOD, "pass"),
        Verdict::Fail => out::paint(out::BAD, "fail"),
        Verdict::CannotTell => out::paint(out::NAME, "cannot tell"),
    }
}

/// A figure of a line: with its interval, and two digits where it is predicted.
fn shown(figure: &Figure) -> String {
    let Some(value) = figure.value else { return "unknown".into() };
    let predicted = figure.provenance == schwann::Provenance::Predicted;
    let one = |v: f64| match (figure.unit.as_str(), predicted) {
        ("s", true) => rough(v),
        ("s", false) => seconds(v),
        ("B", _) => bytes(v as u64),
        (_, true) => format!("{}/s", schwann::prof::device::predict::rounded(v)),
        (_, false) => format!("{v:.0}/s"),
    };
    let range = figure.spread.map(|s| format!(" ({} to {})", one(s.low), one(s.high))).unwrap_or_default();
    format!("{}{range}", one(value))
}

/// What is reached, with where it comes from before it: `predicted: 7.3 µs (4.0 µs to 12 µs)`.
fn told(figure: &Figure, shown: &str) -> String {
    match figure.value {
        Some(_) => format!("{}: {shown}", format!("{:?}", figure.provenance).to_lowercase()),
        None => "what it takes is unknown".into(),
    }
}

fn page(args: &Args, device: Option<&Entry>, lines: &[Line], table: &[Requirement], verdict: Verdict) -> Result<()> {
    let mut out = out::stdout();
    let place = device.map_or("this machine".into(), |d| d.name.clone());
    let steps = if args.steps == 1 { "1 step".into() } else { format!("{} steps", args.steps) };
    let title = format!("{} on {place}, batch {}, {steps}", args.model, args.batch);
    writeln!(out, "{}", out::paint(out::TITLE, out::printable(&title)))?;
    for l in lines {
        let most = if l.metric == "throughput" { "at least" } else { "at most" };
        let limit = args.limit(&l.metric).map_or_else(|| shown(&l.limit), str::to_owned);
        writeln!(out, "  {:<12} {}", l.metric, word(l.verdict))?;
        writeln!(out, "    asked: {most} {limit}; {}", told(&l.reached, &shown(&l.reached)))?;
        out::paragraph(&mut out, 4, out::DIM, &l.why)?;
    }
    if let (Some(device), false) = (device, table.is_empty()) {
        guide(&mut out, device, table)?;
    }
    if let Some(device) = device {
        let compared = Compared::of(&device.measured, Side::Cpu).map_or(NEVER_COMPARED.into(), |c| c.words);
        writeln!(out)?;
        out::paragraph(&mut out, 0, out::DIM, &format!("predictions for {place} were {compared}"))?;
    }
    writeln!(out, "\n{}", word(verdict))?;
    Ok(out.flush()?)
}

/// A guide's table, told as what it is.
fn guide(out: &mut dyn Write, device: &Entry, table: &[Requirement]) -> Result<()> {
    let about = "The guides' figures are of the whole chip, with GPU and Neural Engine, under large work. A small \
                 recurrent model on the CPU's cores does not reach them, and need not.";
    writeln!(out)?;
    out::paragraph(out, 2, anstyle::Style::new(), about)?;
    for r in table {
        let most = if r.metric == "memory" { "at most" } else { "at least" };
        let reached = match &r.reached.reason {
            Some(why) => format!("unknown ({})", out::printable(why)),
            None => told(&r.reached, &number(&r.reached)),
        };
        let word = match r.met {
            Some(true) => "reached",
            Some(false) => "not reached",
            None => "not known",
        };
        writeln!(out, "  {:<10} asked: {most} {}; {reached}: {word}", r.metric, number(&r.required))?;
        let peak = device.gpu_flops.first().map(|g| g.value);
        if let (Some(peak), Some(asked), "tflops") = (peak, r.required.value, r.metric.as_str())
            && asked > peak
        {
            writeln!(out, "             (above the chip's own published peak of {peak} Tflop/s)")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_with_their_units_and_refused_without() {
        let near = |a: Result<f64, String>, b: f64| assert!((a.unwrap() / b - 1.0).abs() < 1e-12);
        near(duration("1ms"), 1e-3);
        near(duration("250 us"), 250e-6);
        near(duration("0.5s"), 0.5);
        near(size("10MB"), 1e7);
        near(size("2 MiB"), 2.0 * 1048576.0);
        near(rate("1000/s"), 1000.0);
        near(rate("50"), 50.0);
        for bad in ["", "1", "ms", "-1ms", "1 hour", "0ms", "nanms", "1e400s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(duration("1").unwrap_err().contains("such as 1ms"));
        assert!(size("10").is_err() && size("10mb").is_err() && rate("10/min").is_err());
    }
}
