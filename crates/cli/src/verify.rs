//! `schwann verify`: does a model give here what it gave where it was made?

use crate::{Cli, Outcome, load, out};
use anyhow::{Result, bail};
use clap::CommandFactory;
use schwann::backend::Choice;
use schwann::cases::Tolerance;
use schwann::nn::verify::{Engine, Report, Row, VerifyOptions, verify_file};
use schwann::pass::PassOptions;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

/// Gradients sum many rounded terms, and are allowed so many times what results are.
const GRADIENTS: f64 = 10.0;

#[derive(clap::Args)]
#[command(
    after_help = "Such a file comes from `export(model, path, sample=x)` in scripts/export_ncps.py. It holds the weights \
(`model.` before each name), a sample (`x`, and `timespans`, `h0`, `c0` where they were given) and what the model gave \
for it elsewhere (`y`, `hn`, `cn`); for --grad also `target` and `grad.<weight>`. Wirings must agree exactly.

Examples:
  schwann verify golden/*.safetensors
  schwann verify golden/*.safetensors --grad
  schwann verify model.safetensors --atol 1e-6 --rtol 1e-6
  schwann verify golden/*.safetensors --reference --json

Exit codes: 0 all within the tolerance, 1 some are not, 2 a file could not be compared (the others were)."
)]
pub(crate) struct Args {
    /// The files to compare.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Compare the gradients too, where a file has them.
    #[arg(long)]
    grad: bool,
    /// Absolute tolerance; ten times that for gradients.
    #[arg(long, value_name = "E", default_value = "1e-5", value_parser = tolerance)]
    atol: f64,
    /// Relative tolerance, added to --atol; ten times that for gradients.
    #[arg(long, value_name = "E", default_value = "1e-5", value_parser = tolerance)]
    rtol: f64,
    /// Run with plain loops, node by node, instead of with this CPU's kernels.
    #[arg(long, conflicts_with_all = ["isa", "backend"])]
    reference: bool,
    #[command(flatten)]
    on: load::On,
    /// Print JSON: one object a line for each file, with every tensor.
    #[arg(long)]
    json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(t) if (0.0..f64::INFINITY).contains(&t) => Ok(t),
        _ => Err("expected a number that is not negative, such as 1e-5".into()),
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let engine = match args.reference {
        true => Engine::of(Choice::named("reference")?.make(1)?, PassOptions::none()),
        false => Engine::of(args.on.make(1)?, PassOptions::default()),
    };
    let name = engine.name.clone();
    let options = VerifyOptions {
        gradients: args.grad,
        tolerance: Tolerance { abs: args.atol, rel: args.rtol },
        gradient_tolerance: Tolerance { abs: GRADIENTS * args.atol, rel: GRADIENTS * args.rtol },
        ..VerifyOptions::on(vec![engine])
    };
    let width = args.files.iter().map(|f| f.display().to_string().chars().count()).max().unwrap_or(0);
    let bar = out::progress(args.files.len() as u64);
    let (mut off, mut bad) = (0, 0);
    let mut out = out::stdout();
    for file in &args.files {
        bar.set_message(out::printable(&file.display().to_string()));
        let line = match verify_file(file, &options) {
            Ok(report) => {
                off += usize::from(!report.passed());
                if args.json { json_line(&report, &name)? } else { line(&report, width, args.grad) }
            }
            Err(e) => {
                bad += 1;
                let line = match args.json {
                    true => {
                        json!({ "file": file.to_string_lossy(), "verdict": "refused", "problem": e.to_string() })
                            .to_string()
                            + "\n"
                    }
                    false => String::new(),
                };
                bar.suspend(|| out::complain(&e.into(), Cli::command().get_name()));
                line
            }
        };
        bar.suspend(|| out.write_all(line.as_bytes()).and_then(|()| out.flush()))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let count = args.files.len();
    if !args.json && count > 1 {
        let met = count - off - bad;
        let refused = if bad > 0 { format!(", {bad} not compared") } else { String::new() };
        let text = format!("{met} of {count} files agree on {name}, {off} differ{refused} (measured)");
        writeln!(out, "{}", out::paint(if met == count { out::GOOD } else { out::BAD }, text))?;
        out.flush()?;
    }
    Ok(match (bad, off) {
        (0, 0) => Outcome::Done,
        (0, _) => Outcome::Differs,
        _ => Outcome::Refused,
    })
}

fn largest<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<f64> {
    rows.map(|row| row.largest_error).reduce(f64::max)
}

fn is_gradient(row: &Row) -> bool {
    row.tensor == "loss" || row.tensor.starts_with("grad.")
}

/// A line for a file, and one more for each tensor that is off.
fn line(report: &Report, width: usize, grad: bool) -> String {
    let name = report.path.display().to_string();
    let pad = " ".repeat(width.saturating_sub(name.chars().count()));
    let results = largest(report.rows.iter().filter(|row| !is_gradient(row)));
    let gradients = largest(report.rows.iter().filter(|row| is_gradient(row)));
    let error =
        |e: Option<f64>| e.map_or("none".into(), |e| if e == 0.0 { "exact".into() } else { format!("{e:.1e}") });
    let mut said = format!("results {:<7}", error(results));
    if grad && report.class != "wiring" {
        said += &format!("  gradients {:<7}", error(gradients));
    } else if grad {
        said += &" ".repeat("  gradients ".len() + 7);
    }
    let verdict = if report.passed() { out::paint(out::GOOD, "ok") } else { out::paint(out::BAD, "OFF") };
    let name = out::paint(out::NAME, out::printable(&name));
    let mut text = format!("{name}{pad}  {:<7}  {said}  {verdict}\n", report.class);
    for row in report.rows.iter().filter(|row| !row.within) {
        text += &format!("  {}: off by {:.1e}", out::printable(&row.tensor), row.largest_error);
        if let Some((want, got)) = row.worst {
            text += &format!(", expected {want}, got {got}");
        }
        if let Some((ours, theirs)) = row.from_exact {
            text += &format!("; from the result in f64 {ours:.1e} here, {theirs:.1e} in the file");
        }
        text += "\n";
    }
    text
}

fn json_line(report: &Report, engine: &str) -> Result<String> {
    let all = json!({
        "file": report.path.to_string_lossy(), "class": report.class, "engine": engine,
        "largest_error": largest(report.rows.iter().filter(|row| !is_gradient(row))),
        "largest_gradient_error": largest(report.rows.iter().filter(|row| is_gradient(row))),
        "verdict": if report.passed() { "ok" } else { "off" },
        "tensors": report.rows, "provenance": "measured",
    });
    match serde_json::to_string(&all) {
        Ok(text) => Ok(text + "\n"),
        Err(e) => bail!("the report's JSON: {e}"),
    }
}
