//! `schwann doctor`: a checklist of what commonly makes models slow, for this machine and, where one is given, a model.

use crate::{Outcome, devices, load, out, profile};
use anyhow::Result;
use schwann::heap;
use schwann::prof::analyze::{Check, State, diagnose};
use schwann::prof::profiler::{Options, Profiler};
use schwann::prof::study::Instruments;
use schwann::sensors::{Counters, System};
use std::io::Write;
use std::time::Duration;

#[derive(clap::Args)]
#[command(
    after_help = "Each point is good, a problem (with what to do about it), worth a try (only trying tells whether it \
helps), or unknown (with the reason). Unknown does not count as good.

Exit codes: 0 no problem, 1 a problem, 2 wrong usage or bad input.

Examples:
  schwann doctor                                  this machine
  schwann doctor wired-cfc --batch 1 --steps 1    and a model on it
  schwann doctor net.safetensors --json"
)]
pub(crate) struct Args {
    /// A file, or a built-in model (`schwann profile --help` lists them).
    #[arg(value_name = "MODEL", value_parser = load::model_name)]
    model: Option<String>,
    /// Sequences in a batch.
    #[arg(long, value_name = "B", default_value_t = 32, value_parser = load::size)]
    batch: usize,
    /// Steps of a sequence.
    #[arg(long, value_name = "T", default_value_t = 16, value_parser = load::size)]
    steps: usize,
    /// Threads; 0: one per core.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = load::threads)]
    threads: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Loads are of the time between two samples.
const BETWEEN: Duration = Duration::from_millis(300);

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut system = System::new();
    system.sample();
    std::thread::sleep(BETWEEN);
    let mut readings = system.sample().readings;
    let mut counters = Counters::open();
    counters.start();
    readings.extend(counters.stop());
    let profile = match &args.model {
        Some(name) => {
            let subject = profile::subject(name)?;
            let calibration = devices::calibration()?;
            let threads = load::cpu(None, args.threads)?.threads();
            let options = Options {
                batch: args.batch,
                steps: args.steps,
                threads: args.threads,
                seconds: 1.0,
                ..Options::default()
            };
            let mut profiler = Profiler::new(subject)
                .named(name)
                .with(options)
                .under(calibration.ceiling(threads))
                .counting(Instruments::default())
                .allocations(heap::allocations);
            Some(profiler.profile_all()?)
        }
        None => None,
    };
    let checks = diagnose(profile.as_ref(), &readings);
    if args.json {
        out::print(&serde_json::to_string_pretty(&serde_json::json!({ "checks": checks }))?)?;
    } else {
        page(&checks)?;
    }
    Ok(if checks.iter().any(|c| c.state == State::Problem) { Outcome::Differs } else { Outcome::Done })
}

fn page(checks: &[Check]) -> Result<()> {
    let mut out = out::stdout();
    let width = checks.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
    for check in checks {
        let (mark, style) = match check.state {
            State::Good => ("good   ", out::GOOD),
            State::Problem => ("problem", out::BAD),
            State::Try => ("try    ", out::NAME),
            State::Unknown => ("unknown", out::DIM),
        };
        let finding = out::printable(&check.finding);
        let first = format!("{}  {:<width$}  ", out::paint(style, mark), check.name);
        let rest = " ".repeat(out::columns(&first));
        writeln!(out, "{}", out::wrap(&finding, &first, &rest, out::width()))?;
        if let Some(advice) = &check.advice {
            writeln!(out, "{}", out::wrap(&out::paint(out::NAME, advice), &rest, &rest, out::width()))?;
        }
    }
    let count = |state: State| checks.iter().filter(|c| c.state == state).count();
    let [good, problems, tries, unknown] = [State::Good, State::Problem, State::Try, State::Unknown].map(count);
    writeln!(out, "\n{good} good, {problems} to change, {tries} worth a try, {unknown} not known here")?;
    Ok(out.flush()?)
}
