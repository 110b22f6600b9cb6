//! `schwann gate experiment`: the gate put to the test on this machine, as it is.
//!
//! Pairs of identical runs must not alarm, and pairs where one side really does more work must. More work is more
//! steps of the model's loop: 21 instead of 20 for 5%, so what is planted is exact, of the same kind as the rest, and slows
//! down with the machine as everything does. A sample is one run, some hundred microseconds: on a busy machine most samples
//! of that length meet no interruption, while most of some milliseconds would. Every pair compiles both sides anew, each with memory of its own,
//! since where memory lies is part of what makes two identical runs differ. Identical and planted pairs take turns, so
//! that both meet the machine in the same state.

use super::live::Workload;
use super::{Shape, percent};
use crate::{Outcome, load, out, stop};
use anyhow::{Context, Result, bail};
use schwann::prof::baseline::{self, Budget, Decision, Rule, Ruling};
use schwann::prof::device::cpu;
use schwann::prof::stats::{Summary, wilson};
use schwann::{Figure, Isa};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// What the gate promises, as shares of the pairs.
const MOST_FALSE: f64 = 0.02;
const LEAST_FOUND: f64 = 0.95;

#[derive(clap::Args)]
#[command(
    after_help = "In turns: both sides are sampled alternately until it is clear. Apart: the baseline is measured first, the \
candidate after it, as where the baseline is a saved profile. Ctrl-C ends early and prints what there is.

Examples:
  schwann gate experiment
  schwann gate experiment --pairs 20 --model P --json
  schwann gate experiment --design apart --seconds-per-pair 6
  schwann gate experiment --planted 10% --max-regress 5% --out pairs.jsonl

Exit codes: 0 at most 2% false alarms and at least 95% found, 1 not so, 2 wrong usage."
)]
pub(super) struct Args {
    /// Identical pairs, and as many planted ones.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pairs: u32,
    /// How much more work one side of a planted pair does.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    planted: f64,
    /// The slow-down that is allowed.
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = percent)]
    max_regress: f64,
    /// Seconds for a pair at most; one ends as soon as it is clear.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = load::seconds)]
    seconds_per_pair: f64,
    /// How the two sides are measured.
    #[arg(long, value_enum, default_value_t = Design::InTurns)]
    design: Design,
    /// P, W, L or a network's file.
    #[arg(long, value_name = "P|W|L|FILE", default_value = "W")]
    model: String,
    /// Sequences in a batch (32).
    #[arg(long, value_name = "B", value_parser = load::size)]
    batch: Option<usize>,
    /// Threads; 0 for one a core (1).
    #[arg(long, value_name = "N", value_parser = load::threads)]
    threads: Option<usize>,
    /// Append each pair to this file as it is done, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Design {
    InTurns,
    Apart,
}

/// One pair, as scripts read it.
#[derive(Serialize)]
struct Pair<'a> {
    pair: u32,
    planted: bool,
    #[serde(flatten)]
    ruling: &'a Ruling,
}

/// How often the gate alarmed, of pairs of one kind.
#[derive(Serialize)]
struct Rate {
    /// Pairs.
    pairs: Figure,
    /// Of which it alarmed for so many.
    alarms: Figure,
    /// Of which were not decided when time was up; they pass.
    undecided: Figure,
    /// Share of alarms, with Wilson's interval.
    rate: Figure,
    /// The lower end of that interval.
    low: Figure,
    /// The upper end.
    high: Figure,
    /// Median of what was measured as the slow-down.
    slowdown: Figure,
    /// Median of the seconds that a pair took.
    seconds: Figure,
    /// The most seconds that a pair took.
    seconds_max: Figure,
}

impl Rate {
    fn of(rulings: &[Ruling]) -> Rate {
        let count = |decision| rulings.iter().filter(|r| r.decision == decision).count();
        let (alarms, pairs) = (count(Decision::Regressed), rulings.len());
        let counted = |n: usize, unit: &str| Figure::derived(n as f64, unit, "counted");
        let (low, high) = wilson(alarms, pairs);
        let share = |value: f64, source: &str| match pairs {
            0 => Figure::unavailable("%", source, "there is no such pair"),
            _ => Figure::derived(value * 100.0, "%", source),
        };
        let of =
            |f: fn(&Ruling) -> &Figure| Summary::of(&rulings.iter().filter_map(|r| f(r).value).collect::<Vec<_>>());
        let middle = |f, unit: &str, source: &str, pick: fn(&Summary) -> f64| match of(f) {
            Some(s) => Figure::measured(pick(&s), unit, source),
            None => Figure::unavailable(unit, source, "there is no such pair"),
        };
        Rate {
            pairs: counted(pairs, "pairs"),
            alarms: counted(alarms, "pairs"),
            undecided: counted(count(Decision::Undecided), "pairs"),
            rate: share(alarms as f64 / pairs.max(1) as f64, "alarms over pairs"),
            low: share(low, "Wilson's interval of 95%"),
            high: share(high, "Wilson's interval of 95%"),
            slowdown: middle(|r| &r.slowdown, "%", "median over pairs", |s| s.p50),
            seconds: middle(|r| &r.seconds, "s", "median over pairs", |s| s.p50),
            seconds_max: middle(|r| &r.seconds, "s", "most of all pairs", |s| s.max),
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    design: Design,
    cpu: String,
    isa: &'static str,
    batch: Figure,
    steps: Figure,
    threads: Figure,
    max_regress: Figure,
    planted: Figure,
    identical: Rate,
    slowed: Rate,
    holds: bool,
    interrupted: bool,
}

/// Steps of the loop, without and with what is planted: the ratio nearest to `1 + part` with 10 to 40 steps.
fn steps(part: f64) -> Result<(usize, usize)> {
    let error = |n: usize| ((n as f64 * part).round() / n as f64 - part).abs();
    let best = (10..=40usize).rev().min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(20);
    match (best as f64 * part).round() as usize {
        0 => bail!("--planted is too little: the least is one step of 40, 2.5%"),
        more => Ok((best, best + more)),
    }
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let (plain, more) = shortest(steps(args.planted)?);
    let of = |steps: usize| {
        let shape = Shape { batch: args.batch, steps: Some(steps), threads: args.threads };
        Workload::new(&args.model, &shape)
    };
    let (workload, slowed) = (of(plain)?, of(more)?);
    if !workload.has_steps() {
        bail!(
            "{} has no steps (no size `T`), so no more of them can be planted; expected a recurrent model",
            args.model
        );
    }
    let rule = Rule::new(args.max_regress);
    stop::keep();
    let mut log = match &args.out {
        Some(path) => {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            Some(file.with_context(|| format!("cannot write {}", path.display()))?)
        }
        None => None,
    };
    let bar = out::progress(u64::from(args.pairs) * 2);
    let mut rulings = [vec![], vec![]];
    'pairs: for pair in 0..args.pairs {
        for planted in [false, true] {
            if stop::asked() {
                break 'pairs;
            }
            let ruling = judge(args, &rule, &workload, if planted { &slowed } else { &workload })?;
            if let Some(log) = &mut log {
                let line = serde_json::to_string(&Pair { pair, planted, ruling: &ruling })?;
                log.write_all((line + "\n").as_bytes()).context("cannot write --out")?;
            }
            rulings[usize::from(planted)].push(ruling);
            let alarms = |of: &[Ruling]| of.iter().filter(|r| r.decision == Decision::Regressed).count();
            bar.set_message(format!("false alarms {}, found {}", alarms(&rulings[0]), alarms(&rulings[1])));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let [identical, slowed] = rulings.map(|r| Rate::of(&r));
    let setting = |v: usize, unit: &str, option: &str| Figure::derived(v as f64, unit, format!("option {option}"));
    let interrupted = stop::asked();
    let at = |f: &Figure| f.value.map(|v| v / 100.0);
    let report = Report {
        model: &args.model,
        design: args.design,
        cpu: cpu::name().unwrap_or_else(|why| format!("unavailable: {why}")),
        isa: Isa::detect().name(),
        batch: setting(workload.batch, "sequences", "--batch"),
        steps: setting(workload.steps, "steps", "--planted: what divides"),
        threads: setting(workload.threads, "threads", "--threads"),
        max_regress: Figure::derived(args.max_regress * 100.0, "%", "option --max-regress"),
        planted: Figure::derived(
            (more as f64 / plain as f64 - 1.0) * 100.0,
            "%",
            format!("{more} steps instead of {plain}"),
        ),
        holds: at(&identical.rate).is_some_and(|r| r <= MOST_FALSE)
            && at(&slowed.rate).is_some_and(|r| r >= LEAST_FOUND),
        identical,
        slowed,
        interrupted,
    };
    match args.json {
        true => out::print(&serde_json::to_string_pretty(&report)?)?,
        false => say(&report, args.pairs)?,
    }
    Ok(match (interrupted, report.holds) {
        (true, _) => Outcome::Stopped,
        (_, true) => Outcome::Done,
        (_, false) => Outcome::Differs,
    })
}

/// The same ratio with the fewest steps that are at least 10.
fn shortest((plain, more): (usize, usize)) -> (usize, usize) {
    let by = (2..=plain / 10).rev().find(|d| plain % d == 0 && more % d == 0).unwrap_or(1);
    (plain / by, more / by)
}

fn judge(args: &Args, rule: &Rule, base: &Workload, candidate: &Workload) -> Result<Ruling> {
    let (mut before, mut after) = (base.ready()?, candidate.ready()?);
    before.warm_up(0.02)?;
    after.warm_up(0.02)?;
    // One run a sample on both sides, however long one takes.
    let mut first = || before.calls(1);
    let mut second = || after.calls(1);
    match args.design {
        Design::InTurns => {
            let budget = Budget { seconds: args.seconds_per_pair, rounds: 1 };
            baseline::in_turns(rule, &budget, &mut first, &mut second, &mut |_| ())
        }
        Design::Apart => {
            // A fourth for the record, the rest for up to three rounds of the candidate.
            let seconds = args.seconds_per_pair / 4.0;
            let (start, mut record) = (std::time::Instant::now(), vec![]);
            while record.len() < 2 || start.elapsed().as_secs_f64() < seconds {
                record.push(first()?);
            }
            let budget = Budget { seconds: seconds * 3.0, rounds: 3 };
            baseline::fastest_round(rule, &budget, &record, &mut second, &mut |_| ())
        }
    }
}

fn say(r: &Report<'_>, asked: u32) -> Result<()> {
    let mut out = out::stdout();
    let v = |f: &Figure, digits: usize| f.value.map_or("–".into(), |v| format!("{v:.digits$}"));
    let design = match r.design {
        Design::InTurns => "measured in turns",
        Design::Apart => "measured one after the other",
    };
    let [batch, steps, threads] = [&r.batch, &r.steps, &r.threads].map(|f| v(f, 0));
    writeln!(
        out,
        "{}",
        out::paint(
            out::TITLE,
            format!("{}, batch {batch}, {steps} steps, threads {threads}; {design}", out::printable(r.model))
        )
    )?;
    writeln!(out, "  on {} ({}); up to {}% slower is allowed", out::printable(&r.cpu), r.isa, v(&r.max_regress, 1))?;
    writeln!(out)?;
    let mut table = out::Table::new(&[
        "pairs",
        ">count",
        ">alarms",
        ">share",
        "95% interval",
        ">undecided",
        ">slow-down seen",
        ">time a pair",
        ">most",
    ]);
    let planted = format!("{}% more work ({})", v(&r.planted, 1), r.planted.source);
    for (name, rate) in [("identical".to_owned(), &r.identical), (planted, &r.slowed)] {
        table.row([
            name,
            v(&rate.pairs, 0),
            v(&rate.alarms, 0),
            format!("{}%", v(&rate.rate, 1)),
            format!("{} … {}%", v(&rate.low, 1), v(&rate.high, 1)),
            v(&rate.undecided, 0),
            format!("{}%", v(&rate.slowdown, 2)),
            format!("{} s", v(&rate.seconds, 2)),
            format!("{} s", v(&rate.seconds_max, 2)),
        ]);
    }
    table.write(&mut out)?;
    let (style, text) = match (r.interrupted, r.holds) {
        (true, _) => {
            let done = v(&r.slowed.pairs, 0);
            (out::BAD, format!("interrupted: {done} of {asked} pairs of each kind; these are too few to judge by"))
        }
        (_, true) => (out::GOOD, "at most 2% false alarms, and at least 95% found".into()),
        (_, false) => (out::BAD, "not what is promised: at most 2% false alarms, and at least 95% found".into()),
    };
    writeln!(out, "{}", out::paint(style, text))?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_planted_is_exact_where_it_can_be() {
        assert_eq!(steps(0.05).map(shortest).unwrap(), (20, 21));
        assert_eq!(steps(0.10).map(shortest).unwrap(), (10, 11));
        assert_eq!(steps(0.04).map(shortest).unwrap(), (25, 26));
        assert_eq!(steps(1.0).map(shortest).unwrap(), (10, 20));
        assert!(steps(0.001).is_err());
    }

    #[test]
    fn no_pairs_have_no_rate() {
        let rate = Rate::of(&[]);
        assert_eq!((rate.rate.value, rate.slowdown.value, rate.pairs.value), (None, None, Some(0.0)));
    }
}
