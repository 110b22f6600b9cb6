//! `schwann gate experiment`: everything that gives verdicts about times, put to the test on this machine as it is.
//!
//! Pairs of identical runs must get no verdict, and pairs where one side really does more work must. More work is more
//! steps of the model's loop: 21 instead of 20 for 5%, so what is planted is exact, of the same kind as the rest, and slows
//! down with the machine as everything does. Identical and planted pairs take turns, so that both meet the machine in the
//! same state.

use super::start::{Side, starter};
use super::{START_SECONDS, Shape, one, percent, serve, two};
use crate::{Outcome, load, out, profile, stop};
use anyhow::{Context, Result, bail};
use schwann::prof::baseline::{Decision, Rule, Ruling, record_of};
use schwann::prof::device::cpu;
use schwann::prof::profile::Verdict;
use schwann::prof::profiler::{Options, Profiler};
use schwann::prof::stats::verdict::{Answer, Judgement, Question, Record};
use schwann::prof::stats::{Summary, wilson};
use schwann::{Figure, Isa};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What is promised, as shares of the pairs: verdicts on identical pairs; 5% and more found; less found.
const MOST_FALSE: f64 = 0.02;
const LEAST_FOUND: f64 = 0.95;
const LEAST_FOUND_SMALL: f64 = 0.80;
const SMALL: f64 = 0.045;

#[derive(clap::Args)]
#[command(after_help = "Modes, with the commands whose verdicts they test:

  turns     gate --model --against
  ways      profile --compare and --prove
  programs  gate --model --against-program
  records   compare, and gate --baseline --candidate
  record    gate --baseline --model

The gate fails where the slow-down is surely more than --max-regress, so --planted must be more than that. Ctrl-C ends \
early and prints what there is.

Examples:
  schwann gate experiment --pairs 20
  schwann gate experiment --pairs 200 --mode records --json
  schwann gate experiment --planted 3% --max-regress 1% --only planted
  schwann gate experiment --against-program ./copy/schwann --mode programs

Exit codes: 0 at most 2% verdicts on identical pairs, and at least 95% found (80% of what is under 4.5%); 1 not so; 2 wrong \
usage.")]
pub(super) struct Args {
    /// Identical pairs, and as many planted ones, for each mode.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pairs: u32,
    /// How much more work one side of a planted pair does.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    planted: f64,
    /// The slow-down that the gate allows.
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = percent)]
    max_regress: f64,
    /// Which verdicts; all of them without it.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODE,MODE")]
    mode: Vec<Mode>,
    /// Only pairs of one kind.
    #[arg(long, value_enum, value_name = "identical|planted")]
    only: Option<Kind>,
    /// Another copy or build of this program, for the mode `programs`.
    #[arg(long, value_name = "PROGRAM")]
    against_program: Option<PathBuf>,
    /// Seconds for a question at most; one ends as soon as it is clear.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = load::seconds)]
    seconds_per_pair: f64,
    /// Seconds that a start of the process measures.
    #[arg(long, value_name = "S", default_value_t = START_SECONDS, value_parser = load::seconds)]
    start_seconds: f64,
    /// A built-in model or a network's file.
    #[arg(long, value_name = "MODEL", value_parser = load::model_name, default_value = "wired-cfc")]
    model: String,
    /// Sequences in a batch [default: 32].
    #[arg(long, value_name = "B", value_parser = load::size)]
    batch: Option<usize>,
    /// Threads; 0: one per core [default: 1].
    #[arg(long, value_name = "N", value_parser = load::threads)]
    threads: Option<usize>,
    /// Append each answer to this file as it comes, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Turns,
    Ways,
    Programs,
    Records,
    Record,
}

const MODES: [Mode; 5] = [Mode::Turns, Mode::Ways, Mode::Programs, Mode::Records, Mode::Record];

impl Mode {
    /// The questions that pairs of this mode answer.
    fn questions(self) -> &'static [&'static str] {
        match self {
            Mode::Turns => &["gate --against"],
            Mode::Ways => &["profile --compare, --prove"],
            Mode::Programs => &["gate --against-program"],
            Mode::Records => &["compare", "gate --baseline --candidate"],
            Mode::Record => &["gate --baseline --model"],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Identical,
    Planted,
}

/// One answer, as scripts read it.
#[derive(Clone, Debug, Serialize)]
struct Found {
    question: &'static str,
    kind: Kind,
    answer: Answer,
    /// In %.
    slowdown: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    starts: usize,
    seconds: f64,
}

/// How often which answer came to one question, of pairs of one kind.
#[derive(Serialize)]
struct Row {
    question: &'static str,
    kind: Kind,
    pairs: Figure,
    faster: Figure,
    slower: Figure,
    same: Figure,
    undecided: Figure,
    /// Of identical pairs: verdicts of either kind; of planted ones: found slower. With Wilson's interval.
    rate: Figure,
    low: Figure,
    high: Figure,
    /// Median of what was measured as the slow-down.
    slowdown: Figure,
    /// Median and most of the seconds that an answer took.
    seconds: Figure,
    seconds_max: Figure,
    holds: bool,
}

impl Row {
    fn of(question: &'static str, kind: Kind, planted: f64, all: &[Found]) -> Row {
        let mine: Vec<&Found> = all.iter().filter(|f| f.question == question && f.kind == kind).collect();
        let count = |answer| mine.iter().filter(|f| f.answer == answer).count();
        let (faster, slower) = (count(Answer::Faster), count(Answer::Slower));
        let hits = if kind == Kind::Identical { faster + slower } else { slower };
        let counted = |n: usize| Figure::derived(n as f64, "pairs", "counted");
        let (low, high) = wilson(hits, mine.len());
        let share = |value: f64, source: &str| match mine.len() {
            0 => Figure::unavailable("%", source, "there is no such pair"),
            _ => Figure::derived(value * 100.0, "%", source),
        };
        let middle = |values: Vec<f64>, unit: &str, source: &str, pick: fn(&Summary) -> f64| {
            let none = || Figure::unavailable(unit, source, "there is no such pair");
            Summary::of(&values).map_or_else(none, |s| Figure::measured(pick(&s), unit, source))
        };
        let rate = hits as f64 / mine.len().max(1) as f64;
        let least = if planted < SMALL { LEAST_FOUND_SMALL } else { LEAST_FOUND };
        Row {
            question,
            kind,
            pairs: counted(mine.len()),
            faster: counted(faster),
            slower: counted(slower),
            same: counted(count(Answer::Same)),
            undecided: counted(count(Answer::Undecided)),
            rate: share(rate, if kind == Kind::Identical { "verdicts over pairs" } else { "found over pairs" }),
            low: share(low, "Wilson's interval of 95%"),
            high: share(high, "Wilson's interval of 95%"),
            slowdown: middle(mine.iter().filter_map(|f| f.slowdown).collect(), "%", "median over pairs", |s| s.p50),
            seconds: middle(mine.iter().map(|f| f.seconds).collect(), "s", "median over pairs", |s| s.p50),
            seconds_max: middle(mine.iter().map(|f| f.seconds).collect(), "s", "most of all pairs", |s| s.max),
            holds: !mine.is_empty() && if kind == Kind::Identical { rate <= MOST_FALSE } else { rate >= least },
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    cpu: String,
    isa: &'static str,
    commit: Option<&'static str>,
    batch: Figure,
    steps: Figure,
    threads: Figure,
    max_regress: Figure,
    planted: Figure,
    took: Figure,
    rows: Vec<Row>,
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

/// The same ratio with the fewest steps that are at least 10.
fn shortest((plain, more): (usize, usize)) -> (usize, usize) {
    let by = (2..=plain / 10).rev().find(|d| plain % d == 0 && more % d == 0).unwrap_or(1);
    (plain / by, more / by)
}

/// What is compared, and how.
struct Pair<'a> {
    args: &'a Args,
    rule: Rule,
    base: Side,
    planted: Side,
    own: PathBuf,
}

impl Pair<'_> {
    fn side(&self, kind: Kind) -> &Side {
        if kind == Kind::Identical { &self.base } else { &self.planted }
    }

    fn shape(&self, kind: Kind) -> Shape {
        let Options { batch, steps, threads, .. } = self.side(kind).options;
        Shape { batch: Some(batch), steps: Some(steps), threads: Some(threads), backend: None }
    }

    /// As a profile keeps them.
    fn record(&self, side: &Side) -> Result<Record> {
        let options = Options { seconds: self.args.start_seconds / 0.05, ..side.options.clone() };
        let subject = profile::subject(&side.model)?;
        let mut profiler = Profiler::new(subject).with(options).starting(starter(&side.model));
        Ok(record_of(&profiler.starts()?.context("no starts")?, true))
    }

    /// The answers of one pair; `last` is the record of the pair before it.
    fn ask(&self, mode: Mode, kind: Kind, last: &mut Option<Record>) -> Result<Vec<Found>> {
        let clock = Instant::now();
        let (args, rule, side) = (self.args, &self.rule, self.side(kind));
        let mut quiet = |_| ();
        let found = |question, answer, ends: [Option<f64>; 3], starts| Found {
            question,
            kind,
            answer,
            slowdown: ends[0],
            low: ends[1],
            high: ends[2],
            starts,
            seconds: clock.elapsed().as_secs_f64(),
        };
        let of_ruling = |question, r: &Ruling| {
            let answer = match r.decision {
                Decision::Passed => Answer::Same,
                Decision::Regressed => Answer::Slower,
                Decision::Undecided => Answer::Undecided,
            };
            let starts = r.starts.value.unwrap_or(0.0) as usize;
            found(question, answer, [r.slowdown.value, r.low.value, r.high.value], starts)
        };
        let of_judged = |question, judged: Option<Judgement>| match judged {
            Some(j) => {
                let percent = |r: f64| Some((r - 1.0) * 100.0);
                let ends = [j.ratio.estimate, j.ratio.low, j.ratio.high].map(percent);
                found(question, j.answer, ends, j.starts)
            }
            None => found(question, Answer::Undecided, [None; 3], 0),
        };
        let [first, ..] = mode.questions() else { return Ok(vec![]) };
        Ok(match mode {
            Mode::Turns => {
                let mut start = || two([&self.base, side], args.start_seconds);
                vec![of_ruling(first, &rule.in_turns(args.seconds_per_pair, &mut start, &mut quiet)?)]
            }
            Mode::Programs => {
                let program = args.against_program.as_deref().unwrap_or(&self.own);
                let (before, after) = (self.shape(Kind::Identical), self.shape(kind));
                let sides: [(&Path, &Shape); 2] = [(program, &before), (&self.own, &after)];
                let mut start = || serve::once(sides, &side.model, args.start_seconds);
                vec![of_ruling(first, &rule.in_turns(args.seconds_per_pair, &mut start, &mut quiet)?)]
            }
            Mode::Ways => {
                let subject = profile::subject(&side.model)?;
                let mut profiler =
                    Profiler::new(subject).with(self.base.options.clone()).starting(starter(&side.model));
                let c = profiler.compare_with("the pair's other side", &side.options, 1.0)?;
                let answer = match c.verdict {
                    Verdict::Gain => Answer::Faster,
                    Verdict::Loss => Answer::Slower,
                    Verdict::None => Answer::Same,
                    Verdict::Undecided | Verdict::Untested => Answer::Undecided,
                };
                let slowdown = |speedup: f64| (1.0 / speedup - 1.0) * 100.0;
                let ends = c.speedup.spread.map(|s| (slowdown(s.high), slowdown(s.low)));
                let ends = [c.speedup.value.map(slowdown), ends.map(|e| e.0), ends.map(|e| e.1)];
                let starts = c.speedup.spread.map_or(0, |s| s.samples as usize);
                vec![found(first, answer, ends, starts)]
            }
            Mode::Records => {
                let candidate = self.record(side)?;
                let base = match last.take() {
                    Some(record) => record,
                    None => self.record(&self.base)?,
                };
                let difference = Question::difference(1).judge_apart(&base, &candidate);
                let limit = Question::limit(rule.max_regress).judge_apart(&base, &candidate);
                // The next pair's base: the latest record of the plain side.
                *last = Some(if kind == Kind::Identical { candidate } else { base });
                vec![of_judged(first, difference), of_judged(mode.questions()[1], limit)]
            }
            Mode::Record => {
                let base = self.record(&self.base)?;
                let mut start = || one(side.clone(), true, args.start_seconds);
                vec![of_ruling(first, &rule.against_record(args.seconds_per_pair, &base, &mut start, &mut quiet)?)]
            }
        })
    }
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let clock = Instant::now();
    let (plain, more) = shortest(steps(args.planted)?);
    let of = |steps: usize| {
        let shape = Shape { batch: args.batch, steps: Some(steps), threads: args.threads, backend: None };
        Side { model: args.model.clone(), options: shape.options() }
    };
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let pair = Pair { args, rule: Rule::new(args.max_regress), base: of(plain), planted: of(more), own };
    pair.base.check()?;
    if !has_steps(&args.model)? {
        bail!(
            "{} has no steps (no size `T`), so no more of them can be planted; expected a recurrent model",
            args.model
        );
    }
    let modes = if args.mode.is_empty() { MODES.to_vec() } else { args.mode.clone() };
    let kinds: Vec<Kind> = args.only.map_or(vec![Kind::Identical, Kind::Planted], |k| vec![k]);
    stop::keep();
    let mut log = match &args.out {
        Some(path) => {
            out::not_stdout(path, "--out", "a file's name")?;
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            Some(file.with_context(|| format!("cannot write {}", path.display()))?)
        }
        None => None,
    };
    let bar = out::progress(u64::from(args.pairs) * (kinds.len() * modes.len()) as u64);
    let mut all: Vec<Found> = vec![];
    'modes: for mode in &modes {
        let mut last = None;
        for _ in 0..args.pairs {
            for &kind in &kinds {
                let found = pair.ask(*mode, kind, &mut last);
                // Whoever interrupts this process interrupts its children too.
                if stop::asked() {
                    break 'modes;
                }
                for found in found? {
                    if let Some(log) = &mut log {
                        log.write_all((serde_json::to_string(&found)? + "\n").as_bytes())
                            .context("cannot write --out")?;
                    }
                    bar.set_message(found.question);
                    all.push(found);
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let planted = more as f64 / plain as f64 - 1.0;
    let row = |question, kind| Row::of(question, kind, planted, &all);
    let questions = modes.iter().flat_map(|m| m.questions());
    let rows: Vec<Row> = questions.flat_map(|q| kinds.iter().map(|k| row(q, *k)).collect::<Vec<_>>()).collect();
    let setting = |v: usize, unit: &str, option: &str| Figure::derived(v as f64, unit, format!("option {option}"));
    let interrupted = stop::asked();
    let options = &pair.base.options;
    let report = Report {
        model: &args.model,
        cpu: cpu::name().unwrap_or_else(|why| format!("unavailable: {why}")),
        isa: Isa::detect().name(),
        commit: option_env!("SCHWANN_COMMIT"),
        batch: setting(options.batch, "sequences", "--batch"),
        steps: setting(options.steps, "steps", "--planted: what divides"),
        threads: setting(options.threads, "threads", "--threads"),
        max_regress: Figure::derived(args.max_regress * 100.0, "%", "option --max-regress"),
        planted: Figure::derived(planted * 100.0, "%", format!("{more} steps instead of {plain}")),
        took: Figure::measured(clock.elapsed().as_secs_f64(), "s", "monotonic clock"),
        holds: rows.iter().all(|r| r.holds),
        rows,
        interrupted,
    };
    match args.json {
        true => out::print(&serde_json::to_string_pretty(&report)?)?,
        false => say(&report)?,
    }
    Ok(match (interrupted, report.holds) {
        (true, _) => Outcome::Stopped,
        (_, true) => Outcome::Done,
        (_, false) => Outcome::Differs,
    })
}

/// Whether a model runs over sequences, of any length.
fn has_steps(model: &str) -> Result<bool> {
    Ok(match load::named(model)? {
        load::Network::Graph(graph) => graph.symbols().iter().any(|s| s == "T"),
        load::Network::Model(_) => true,
    })
}

fn say(r: &Report<'_>) -> Result<()> {
    let mut out = out::stdout();
    let v = |f: &Figure, digits: usize| f.value.map_or("–".into(), |v| format!("{v:.digits$}"));
    let [batch, steps, threads] = [&r.batch, &r.steps, &r.threads].map(|f| v(f, 0));
    let title = format!("{}, batch {batch}, {steps} steps, threads {threads}", out::printable(r.model));
    writeln!(out, "{}", out::paint(out::TITLE, title))?;
    let commit = r.commit.unwrap_or("unknown");
    writeln!(out, "  on {} ({}), commit {commit}, in {} s", out::printable(&r.cpu), r.isa, v(&r.took, 0))?;
    writeln!(
        out,
        "  planted: {}% more work ({}); the gate allows {}%",
        v(&r.planted, 1),
        r.planted.source,
        v(&r.max_regress, 1)
    )?;
    writeln!(out)?;
    let headings = [
        "question",
        "pairs",
        ">count",
        ">faster",
        ">slower",
        ">same",
        ">undecided",
        ">share",
        "95%",
        ">seen",
        ">time",
        ">most",
    ];
    let mut table = out::Table::new(&headings);
    for row in &r.rows {
        let kind = if row.kind == Kind::Identical { "identical" } else { "planted" };
        let counts = [&row.pairs, &row.faster, &row.slower, &row.same, &row.undecided].map(|f| v(f, 0));
        let rest = [
            format!("{}%", v(&row.rate, 1)),
            format!("{} … {}%", v(&row.low, 1), v(&row.high, 1)),
            format!("{}%", v(&row.slowdown, 2)),
            format!("{} s", v(&row.seconds, 2)),
            format!("{} s", v(&row.seconds_max, 2)),
        ];
        table.row([row.question.to_owned(), kind.to_owned()].into_iter().chain(counts).chain(rest));
    }
    table.write(&mut out)?;
    let (style, text) = match (r.interrupted, r.holds) {
        (true, _) => (out::BAD, "interrupted: these are too few pairs to judge by"),
        (_, true) => (
            out::GOOD,
            "as promised: at most 2% verdicts on identical pairs, and at least 95% found (80% of under 4.5%)",
        ),
        (_, false) => (
            out::BAD,
            "not what is promised: at most 2% verdicts on identical pairs, and at least 95% found (80% of under 4.5%)",
        ),
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
        assert_eq!(steps(0.03).map(shortest).unwrap(), (33, 34));
        assert_eq!(steps(1.0).map(shortest).unwrap(), (10, 20));
        assert!(steps(0.001).is_err());
    }

    #[test]
    fn no_pairs_have_no_rate_and_hold_nothing() {
        let row = Row::of("compare", Kind::Identical, 0.05, &[]);
        assert_eq!((row.rate.value, row.slowdown.value, row.pairs.value, row.holds), (None, None, Some(0.0), false));
    }
}
