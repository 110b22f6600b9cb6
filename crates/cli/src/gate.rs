//! `schwann gate`: an exit code for CI that says whether something became slower than is allowed.

mod experiment;
mod live;
mod serve;

use crate::baseline::Place;
use crate::{Outcome, compare, load, out, stop};
use anyhow::{Context, Result, bail};
use live::Workload;
use schwann::Isa;
use schwann::prof::Profile;
use schwann::prof::baseline::{self, Budget, Decision, Rule, Ruling};
use serde::Serialize;
use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "The gate alarms (exit code 1) only where it is 99% sure that the slow-down is more than is allowed. It compares, from \
the surest to the least sure:
  two models, or two builds of this program, measured in turns now     --model, with --against or --against-program
  a saved profile with the model measured now                          --baseline and --model
  two saved profiles                                                   --baseline and --candidate
`schwann gate experiment` shows on this machine how often it alarms for nothing, and how often it finds what was planted.

Examples:
  schwann gate --max-regress 3% --model new.safetensors --against old.safetensors
  schwann gate --max-regress 3% --model P --against-program ./main/schwann
  schwann gate --max-regress 3% --baseline main --model P
  schwann gate --max-regress 3% --baseline main --candidate run.json
  schwann gate experiment --pairs 200 --planted 5%

Exit codes: 0 no regression was shown, 1 slower than is allowed, 2 wrong usage or bad input, 130 stopped by Ctrl-C."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// The slow-down that is allowed.
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = percent)]
    max_regress: f64,
    /// What the candidate is held against: a saved name, an id or a profile's .json.
    #[arg(long, value_name = "PROFILE")]
    baseline: Option<String>,
    /// The candidate as a profile: a saved name, an id or a profile's .json.
    #[arg(long, value_name = "PROFILE", requires = "baseline", conflicts_with_all = ["model", "against", "against_program"])]
    candidate: Option<String>,
    /// The candidate, measured now: P, W, L or a network's file.
    #[arg(long, value_name = "P|W|L|FILE")]
    model: Option<String>,
    /// What the candidate is held against, measured in turns with it: P, W, L or a network's file.
    #[arg(long, value_name = "P|W|L|FILE", requires = "model", conflicts_with_all = ["baseline", "against_program"])]
    against: Option<String>,
    /// Another build of this program, whose run of the same model is measured in turns with this one's.
    #[arg(long, value_name = "PROGRAM", requires = "model", conflicts_with = "baseline")]
    against_program: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
    /// Seconds to measure at most; it ends as soon as it is clear.
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = load::seconds)]
    seconds: f64,
    /// Judge whatever is unlike: machine, model, batch, …
    #[arg(long)]
    anyway: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
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
    /// Threads; 0 for one a core (1, or as in the baseline).
    #[arg(long, value_name = "N", value_parser = load::threads)]
    threads: Option<usize>,
}

#[derive(clap::Subcommand)]
enum What {
    /// How often the gate alarms for nothing, and how often it finds a planted slow-down, on this machine.
    Experiment(experiment::Args),
    /// Measures on demand, for another process's gate.
    #[command(hide = true)]
    Serve(serve::Args),
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

/// What was sampled so far, for where somebody stops it.
#[derive(Default)]
struct Seen {
    base: Vec<f64>,
    candidate: Vec<f64>,
}

impl Seen {
    /// What can be said without the samples that were still to come: how the two stand, and no decision.
    fn ruling(&self, rule: &Rule) -> Ruling {
        Ruling { decision: Decision::Undecided, ..baseline::apart(rule, &self.base, &self.candidate) }
    }
}

/// A sample, noted; an error where somebody asked for an end.
fn note(into: &RefCell<Seen>, side: fn(&mut Seen) -> &mut Vec<f64>, sample: Result<f64>) -> Result<f64> {
    stop::check()?;
    let seconds = sample?;
    side(&mut into.borrow_mut()).push(seconds);
    Ok(seconds)
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match &args.what {
        Some(What::Experiment(args)) => return experiment::run(args),
        Some(What::Serve(args)) => return serve::run(args),
        None => {}
    }
    let rule = Rule::new(args.max_regress);
    stop::keep();
    let seen = RefCell::new(Seen::default());
    // Another program that measures for this one hears Ctrl-C too, and goes away.
    let kept = |ruling: Result<Ruling>| match ruling {
        Err(_) if stop::asked() => Ok(seen.borrow().ruling(&rule)),
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
            _ => bail!("--model has nothing to be held against; add --baseline, --against or --against-program"),
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
    Ok(if ruling.decision == Decision::Regressed { Outcome::Differs } else { Outcome::Done })
}

fn say(base: &str, candidate: &str, r: &Ruling) -> Result<()> {
    let mut out = out::stdout();
    let at = |f: &schwann::Figure| f.value.map_or("?".into(), |v| format!("{v:+.1}%"));
    let allowed = r.max_regress.value.unwrap_or_default();
    let (style, word) = match r.decision {
        Decision::Passed => (out::GOOD, "passed"),
        Decision::Regressed => (out::BAD, "regressed"),
        Decision::Undecided if stop::asked() => (out::BAD, "partial, and undecided"),
        Decision::Undecided => (out::TITLE, "undecided, which passes"),
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
    let samples = r.samples.value.unwrap_or_default();
    let took = r.seconds.value.map_or("nothing measured now".into(), |s| format!("measured for {s:.1} s"));
    let text = format!("{}: {samples} samples a side, {took}", r.design);
    writeln!(out, "{}", out::paint(out::DIM, text))?;
    if r.decision == Decision::Undecided && !stop::asked() {
        writeln!(
            out,
            "{}",
            out::paint(out::DIM, "the interval holds the limit: give more --seconds, or a quieter machine")
        )?;
    }
    Ok(out.flush()?)
}

fn samples(profile: &Profile, name: &str) -> Result<Vec<f64>> {
    let samples: Vec<f64> = profile.compute.samples.values.iter().flatten().copied().collect();
    if samples.len() < 2 {
        let why = profile.compute.samples.reason.as_deref().unwrap_or("too few were taken");
        bail!("{name} has {} samples, so nothing can be judged by it: {why}", samples.len());
    }
    Ok(samples)
}

fn records(args: &Args, rule: &Rule, base: &str, candidate: &str) -> Result<Ruling> {
    let (b, c) = (args.place.profile(base)?, args.place.profile(candidate)?);
    compare::alike(&b, &c, args.anyway)?;
    Ok(baseline::apart(rule, &samples(&b, base)?, &samples(&c, candidate)?))
}

/// A bar that shows how much of the time went by.
fn bar(seconds: f64) -> (indicatif::ProgressBar, impl FnMut(f64)) {
    let bar = out::progress((seconds * 10.0).ceil() as u64);
    bar.set_message("measuring; it ends as soon as it is clear");
    let shown = bar.clone();
    (bar, move |s: f64| shown.set_position((s * 10.0) as u64))
}

fn against_record(args: &Args, rule: &Rule, base: &str, model: &str, seen: &RefCell<Seen>) -> Result<Ruling> {
    let record = args.place.profile(base)?;
    compare::warn_of_partial(base, &record);
    let before = samples(&record, base)?;
    seen.borrow_mut().base.clone_from(&before);
    let count = |figure: &schwann::Figure| figure.value.filter(|v| *v >= 1.0).map(|v| v as usize);
    let w = &record.workload;
    let shape = Shape {
        batch: args.shape.batch.or(count(&w.batch)),
        steps: args.shape.steps.or(count(&w.steps)),
        threads: args.shape.threads.or(count(&w.threads)),
    };
    let workload = Workload::new(model, &shape)?;
    if !args.anyway {
        here(&record, &workload).with_context(|| format!("`{base}` and what would be measured now are not alike"))?;
    }
    let mut run = workload.ready()?;
    run.warm_up(args.seconds.min(20.0) / 20.0)?;
    // As many runs a sample as there, or their scatter would not compare.
    if let Some(calls) = count(&record.compute.runs_per_sample) {
        run.set_calls(calls);
    }
    let (bar, mut tick) = bar(args.seconds);
    let budget = Budget { seconds: args.seconds, rounds: 3 };
    let ruling = baseline::fastest_round(
        rule,
        &budget,
        &before,
        &mut || note(seen, |s| &mut s.candidate, run.sample()),
        &mut tick,
    );
    bar.finish_and_clear();
    ruling
}

/// Refuses a record of another machine or workload.
fn here(record: &Profile, now: &Workload) -> Result<()> {
    let (m, w) = (&record.machine, &record.workload);
    let same = |figure: &schwann::Figure, now: usize| figure.value.is_none_or(|v| v == now as f64);
    let mut unlike = vec![];
    let machine = schwann::prof::profiler::machine(Isa::detect());
    if m.fingerprint != machine.fingerprint {
        let told = |m: &schwann::prof::profile::Machine| format!("{} ({}, {})", m.cpu, m.isa, m.fingerprint);
        unlike.push(format!("machine {} and {}", told(m), told(&machine)));
    }
    for (what, figure, now) in
        [("batch", &w.batch, now.batch), ("steps", &w.steps, now.steps), ("threads", &w.threads, now.threads)]
    {
        if !same(figure, now) {
            unlike.push(format!("{what} {} and {now}", figure.value.unwrap_or_default()));
        }
    }
    if record.model.name != now.name {
        unlike.push(format!("model {} and {}", record.model.name, now.name));
    }
    if !unlike.is_empty() {
        bail!("{}; --anyway judges them", unlike.join("; "));
    }
    Ok(())
}

fn together(args: &Args, rule: &Rule, base: &str, model: &str, seen: &RefCell<Seen>) -> Result<Ruling> {
    let mut before = Workload::new(base, &args.shape)?.ready()?;
    let mut after = Workload::new(model, &args.shape)?.ready()?;
    before.warm_up(0.3)?;
    after.warm_up(0.3)?;
    let (bar, mut tick) = bar(args.seconds);
    let budget = Budget { seconds: args.seconds, rounds: 1 };
    let mut first = || note(seen, |s| &mut s.base, before.sample());
    let mut second = || note(seen, |s| &mut s.candidate, after.sample());
    let ruling = baseline::in_turns(rule, &budget, &mut first, &mut second, &mut tick);
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
