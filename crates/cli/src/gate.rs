//! `schwann gate`: an exit code for CI that says whether something became slower than is allowed.

mod experiment;
mod serve;
pub(crate) mod start;

use crate::baseline::Place;
use crate::{Outcome, compare, load, out, profile, stop};
use anyhow::{Context, Result, bail};
use schwann::backend::Choice;
use schwann::prof::Profile;
use schwann::prof::baseline::{self, Decision, Identity, Rule, Ruling};
use schwann::prof::profiler::{self, Options, Profiler};
use schwann::prof::stats::verdict::{Reading, Record};
use schwann::{DType, Figure};
use serde::Serialize;
use start::Side;
use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "The gate fails (exit code 1) only where it is 99% sure that the slow-down is more than is allowed, and passes only \
where it is as sure that it is not. Ways to compare, the surest first:

  --model and --against            two models, measured in turns now
  --model and --against-program    two builds of this program, measured in turns
  --baseline and --model           a saved profile with the model measured now
  --baseline and --candidate       two saved profiles

A saved profile must be of the same machine, model, sizes, number type and compilation. What was measured at another \
time is put in relation to a yardstick, a small fixed computation that was timed beside it, so that a slower machine does \
not pass for a slower program. `schwann gate experiment` shows how often the gate errs on this machine.

Examples:
  schwann gate --model new.safetensors --against old.safetensors
  schwann gate --model wired-cfc --against-program ./main/schwann
  schwann gate --max-regress 5% --baseline main --model wired-cfc
  schwann gate --baseline main --candidate run.json --undecided pass
  schwann gate experiment --pairs 200 --planted 5%

Exit codes: 0 not slower than is allowed, 1 slower than is allowed, 3 undecided (--undecided makes it 0 or 1), 2 wrong \
usage or bad input, 130 stopped by Ctrl-C."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// The slow-down that is allowed.
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = percent)]
    max_regress: f64,
    /// What to compare the candidate with: a saved name, an id or a profile's .json.
    #[arg(long, value_name = "PROFILE")]
    baseline: Option<String>,
    /// The candidate as a profile: a saved name, an id or a profile's .json.
    #[arg(long, value_name = "PROFILE", requires = "baseline", conflicts_with_all = ["model", "against", "against_program"])]
    candidate: Option<String>,
    /// The candidate, measured now: a built-in model (`schwann profile --help` lists them) or a network's file.
    #[arg(long, value_name = "MODEL", value_parser = load::model_name)]
    model: Option<String>,
    /// What to compare the candidate with, measured in turns with it: a built-in model or a network's file.
    #[arg(long, value_name = "MODEL", value_parser = load::model_name, requires = "model", conflicts_with_all = ["baseline", "against_program"])]
    against: Option<String>,
    /// Another build of this program, whose run of the same model is measured in turns with this one's.
    #[arg(long, value_name = "PROGRAM", requires = "model", conflicts_with = "baseline")]
    against_program: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
    /// Seconds to measure at most; it ends as soon as it is clear.
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = load::seconds)]
    seconds: f64,
    /// Compare even if machine, model, batch or something else differs.
    #[arg(long)]
    anyway: bool,
    /// What undecided counts as; without it, it has an exit code of its own, 3.
    #[arg(long, value_enum, value_name = "pass|fail")]
    undecided: Option<Undecided>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// What undecided counts as.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Undecided {
    Pass,
    Fail,
}

/// How a model is run.
#[derive(clap::Args, Clone, Debug, Default)]
struct Shape {
    /// Sequences in a batch (32, or as in the baseline).
    #[arg(long, value_name = "B", value_parser = load::size)]
    batch: Option<usize>,
    /// Steps of a sequence (16, or as in the baseline).
    #[arg(long, value_name = "T", value_parser = load::size)]
    steps: Option<usize>,
    /// Threads; 0: one per core (1, or as in the baseline).
    #[arg(long, value_name = "N", value_parser = load::threads)]
    threads: Option<usize>,
    /// What to run on (cpu, or as in the baseline).
    #[arg(long, value_name = "NAME", value_parser = load::backend)]
    backend: Option<Choice>,
}

/// Seconds that a start measures, beside what starting takes.
const START_SECONDS: f64 = 0.12;

impl Shape {
    fn options(&self) -> Options {
        let usual = Options::default();
        Options {
            batch: self.batch.unwrap_or(usual.batch),
            steps: self.steps.unwrap_or(usual.steps),
            threads: self.threads.unwrap_or(usual.threads),
            backend: self.backend.clone().unwrap_or_else(|| usual.backend.clone()),
            ..usual
        }
    }

    /// As the record was run, where nothing else is said.
    fn options_of(&self, record: &Profile) -> Result<Options> {
        let w = &record.workload;
        let count = |figure: &Figure| figure.value.filter(|v| *v >= 1.0).map(|v| v as usize);
        let shape = Shape {
            batch: self.batch.or(count(&w.batch)),
            steps: self.steps.or(count(&w.steps)),
            threads: self.threads.or(count(&w.threads)),
            backend: Some(self.backend.clone().map_or_else(|| w.backend.parse(), Ok)?),
        };
        let dtype = match w.dtype.as_str() {
            "bf16" => DType::Bf16,
            _ => DType::F32,
        };
        let sizes = w.sizes.iter().filter_map(|n| Some((n.name.clone(), count(&n.figure)?))).collect();
        Ok(Options { dtype, sizes, fused: w.compilation == "fused", ..shape.options() })
    }
}

#[derive(clap::Subcommand)]
enum What {
    /// How often verdicts are false alarms, and how often they find a planted slow-down, on this machine.
    Experiment(experiment::Args),
    /// Measures on demand, for another process's gate.
    #[command(hide = true)]
    Serve(serve::Args),
    /// Measures in turns, once, what it reads from standard input; for another process.
    #[command(hide = true)]
    Start,
}

/// `3%` as 0.03. The sign is asked for, since 0.03 could be meant either way.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
    match number {
        Some(p) if (0.0..=1000.0).contains(&p) => Ok(p / 100.0),
        _ => Err("expected a percentage from 0% to 1000%, such as 3%".into()),
    }
}

/// What the gate said of what.
#[derive(Serialize)]
struct Said<'a> {
    base: &'a str,
    candidate: &'a str,
    /// Whether somebody stopped it before it was clear.
    partial: bool,
    #[serde(flatten)]
    ruling: &'a Ruling,
}

/// What the starts said so far, for where somebody stops it.
#[derive(Default)]
struct Seen {
    starts: Vec<Reading>,
    record: Option<Record>,
}

/// A start, noted; an error where somebody asked for an end.
fn note(into: &RefCell<Seen>, start: Result<Reading>) -> Result<Reading> {
    if start.is_err() {
        // A Ctrl-C that ended the other process may not have reached this one yet.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    stop::check()?;
    let reading = start?;
    into.borrow_mut().starts.push(reading);
    Ok(reading)
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match &args.what {
        Some(What::Experiment(args)) => return experiment::run(args),
        Some(What::Serve(args)) => return serve::run(args),
        Some(What::Start) => return start::run(),
        None => {}
    }
    let rule = Rule::new(args.max_regress);
    stop::keep();
    let seen = RefCell::new(Seen::default());
    // Another program that measures for this one hears Ctrl-C too, and goes away.
    let kept = |ruling: Result<Ruling>| match ruling {
        Err(_) if stop::asked() => {
            let seen = seen.borrow();
            Ok(rule.stopped(&seen.starts, seen.record.as_ref()))
        }
        ruling => ruling,
    };
    let (base, candidate, ruling) = match (&args.baseline, &args.candidate, &args.model) {
        (Some(base), Some(candidate), None) => {
            (base.clone(), candidate.clone(), records(args, &rule, base, candidate)?)
        }
        (Some(base), None, Some(model)) => {
            (base.clone(), format!("{model}, measured now"), kept(against_record(args, &rule, base, model, &seen))?)
        }
        (None, None, Some(model)) => match (&args.against, &args.against_program) {
            (Some(base), None) => (base.clone(), model.clone(), kept(together(args, &rule, base, model, &seen))?),
            (None, Some(program)) => {
                let name = format!("{model} by {}", program.display());
                (name, format!("{model} by this program"), kept(serve::in_turns(args, &rule, program, model, &seen))?)
            }
            _ => bail!("--model has nothing to compare with; add --baseline, --against or --against-program"),
        },
        _ => bail!("nothing to judge: give --baseline with --candidate or --model, or --model with --against"),
    };
    if args.json {
        let said = Said { base: &base, candidate: &candidate, partial: stop::asked(), ruling: &ruling };
        out::print(&serde_json::to_string_pretty(&said)?)?;
    } else {
        say(&base, &candidate, &ruling)?;
    }
    if stop::asked() {
        return Ok(Outcome::Stopped);
    }
    Ok(match (ruling.decision, args.undecided) {
        (Decision::Passed, _) | (Decision::Undecided, Some(Undecided::Pass)) => Outcome::Done,
        (Decision::Regressed, _) | (Decision::Undecided, Some(Undecided::Fail)) => Outcome::Differs,
        (Decision::Undecided, None) => Outcome::Undecided,
    })
}

fn say(base: &str, candidate: &str, r: &Ruling) -> Result<()> {
    let mut out = out::stdout();
    let at = |f: &Figure| f.value.map_or("?".into(), |v| schwann::prof::plot::unit::change(v, 1));
    let allowed = r.max_regress.value.unwrap_or_default();
    let (style, word) = match r.decision {
        Decision::Passed => (out::GOOD, "passed"),
        Decision::Regressed => (out::BAD, "regressed"),
        Decision::Undecided if stop::asked() => (out::BAD, "partial, and undecided"),
        Decision::Undecided => (out::TITLE, "undecided"),
    };
    let sure = r.confidence.value.unwrap_or_default();
    writeln!(
        out,
        "{}: {} against {} is {} in time ({} … {} with {sure}% confidence); up to {allowed}% is allowed",
        out::paint(style, word),
        out::printable(candidate),
        out::printable(base),
        at(&r.slowdown),
        at(&r.low),
        at(&r.high),
    )?;
    let starts = r.starts.value.unwrap_or_default();
    let took = r.seconds.value.map_or("nothing measured now".into(), |s| format!("measured for {s:.1} s"));
    writeln!(out, "{}", out::paint(out::DIM, format!("{}; {starts} starts per side, {took}", r.design)))?;
    if let Some(text) = compare::machine_told(&r.machine) {
        writeln!(out, "{}", out::paint(out::DIM, text))?;
    }
    if r.decision == Decision::Undecided && !stop::asked() {
        writeln!(
            out,
            "{}",
            out::paint(out::DIM, "the limit lies inside the interval: give more --seconds, or a quieter machine")
        )?;
    }
    Ok(out.flush()?)
}

fn records(args: &Args, rule: &Rule, base: &str, candidate: &str) -> Result<Ruling> {
    let (b, c) = (args.place.profile(base)?, args.place.profile(candidate)?);
    compare::alike(&b, &c, args.anyway)?;
    for (profile, name) in [(&b, base), (&c, candidate)] {
        record(profile, name, true)?;
    }
    Ok(rule.records(&b, &c))
}

/// The starts of a profile; one that has nothing to judge by is refused.
fn record(profile: &Profile, name: &str, yardstick: bool) -> Result<Record> {
    baseline::record(profile, yardstick).with_context(|| {
        let why = profile.compute.samples.reason.as_deref().unwrap_or("too few were taken");
        format!("{name} has no samples, so nothing can be judged by it: {why}")
    })
}

/// A bar that shows how much of the time went by.
fn bar(seconds: f64) -> (indicatif::ProgressBar, impl FnMut(f64)) {
    let bar = out::progress((seconds * 10.0).ceil() as u64);
    bar.set_message("measuring; it ends as soon as it is clear");
    let shown = bar.clone();
    (bar, move |s: f64| shown.set_position((s * 10.0) as u64))
}

fn against_record(args: &Args, rule: &Rule, base: &str, model: &str, seen: &RefCell<Seen>) -> Result<Ruling> {
    let saved = args.place.profile(base)?;
    compare::warn_of_partial(base, &saved);
    // Only where the record has starts over this program's yardstick do starts over it say anything.
    let comparable = saved.compute.starts.as_ref().is_some_and(|s| s.yardstick_name == profiler::YARDSTICK);
    let before = record(&saved, base, comparable)?;
    let options = args.shape.options_of(&saved)?;
    let profiler = Profiler::new(profile::subject(model)?).named(model).with(options.clone());
    let unlike = Identity::of(&saved).unlike(&profiler.identity()?);
    if !args.anyway && !unlike.is_empty() {
        let said = compare::said(&unlike);
        bail!("`{base}` and what would be measured now are not alike: {said}; --anyway judges them");
    }
    let side = Side { model: model.to_owned(), options };
    let (bar, mut tick) = bar(args.seconds);
    let by_yardstick = before.yardstick;
    seen.borrow_mut().record = Some(before.clone());
    let mut start = || note(seen, one(side.clone(), by_yardstick, START_SECONDS));
    let ruling = rule.against_record(args.seconds, &before, &mut start, &mut tick);
    bar.finish_and_clear();
    ruling
}

/// One start of one side: its time over the yardstick's, or its bare time.
fn one(side: Side, by_yardstick: bool, seconds: f64) -> Result<Reading> {
    let found = start::start(vec![side], by_yardstick, seconds)?;
    let times = found.sides.first().context("a start of this program measured nothing")?;
    let reading = match by_yardstick {
        true => Reading::over_yardstick(&found.yardstick, times),
        false => Reading::of(&vec![1.0; times.len()], times),
    };
    reading.context("a start of this program measured nothing")
}

/// One start of two sides in turns: the second's time over the first's.
fn two(sides: [&Side; 2], seconds: f64) -> Result<Reading> {
    let found = start::start(sides.map(Clone::clone).to_vec(), false, seconds)?;
    let [base, candidate] = &found.sides[..] else {
        bail!("a start of this program measured {} sides", found.sides.len())
    };
    Reading::of(base, candidate).context("a start of this program measured nothing")
}

fn together(args: &Args, rule: &Rule, base: &str, model: &str, seen: &RefCell<Seen>) -> Result<Ruling> {
    let sides = [base, model].map(|model| Side { model: model.to_owned(), options: args.shape.options() });
    for side in &sides {
        side.check()?;
    }
    let (bar, mut tick) = bar(args.seconds);
    let mut start = || note(seen, two([&sides[0], &sides[1]], START_SECONDS));
    let ruling = rule.in_turns(args.seconds, &mut start, &mut tick);
    bar.finish_and_clear();
    ruling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_need_their_sign() {
        assert_eq!(percent("3%"), Ok(0.03));
        assert_eq!(percent("0.5 %"), Ok(0.005));
        for bad in ["3", "-1%", "nan%", "%", "x%"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
