//! `schwann tune experiment`: the tuner put to the test on this machine as it is.
//!
//! Random models are tuned, and each winner is held against the default once more, in starts of the program that had no part in
//! the choice: is it ever slower than allowed? With `--from portable` the search begins at numbers that know nothing of this
//! class of machines, and what it finds is held against what people wrote down for the class.

use crate::gate::start::{Side, start};
use crate::{Outcome, load, out, stop, tuned};
use anyhow::{Context, Result, bail};
use schwann::Figure;
use schwann::plan::seconds;
use schwann::prof::device::cpu;
use schwann::prof::models;
use schwann::prof::profiler::Options;
use schwann::prof::stats::median;
use schwann::prof::stats::verdict::{Answer, Judgement, Question, Reading};
use schwann::prof::tune::{Changes, Tuner, Verdict, line};
use serde::Serialize;
use std::io::Write;

/// What a winner may be slower by, checked anew.
const MOST_SLOWER: f64 = 0.02;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann tune experiment              ten random models, a minute each
  schwann tune experiment --models 3 --budget 20s --json
  schwann tune experiment --from portable --model wired-ltc --batch 12
  schwann tune experiment --from portable --model wired-ltc --batch 6 --isa avx2

Exit codes: 0 no winner is surely over 2% slower than the default; 1 one is; 2 wrong usage; 130 stopped by Ctrl-C.")]
pub(super) struct Args {
    /// Random models.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    models: u64,
    /// The seed of the first random model; the others follow.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// These built-in models or files instead of random ones.
    #[arg(long, value_name = "MODEL,MODEL", value_delimiter = ',', value_parser = load::model_name)]
    model: Vec<String>,
    /// How long to search for each.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = tuned::budget)]
    budget: f64,
    /// Seconds to check each winner anew.
    #[arg(long, value_name = "S", default_value_t = 15.0, value_parser = load::seconds)]
    check: f64,
    /// Sequences in a batch; several with commas [default: by the seed, from 1 to 64].
    #[arg(long, value_name = "B,B", value_delimiter = ',', value_parser = load::size)]
    batch: Vec<usize>,
    /// Steps of a sequence.
    #[arg(long, value_name = "T", default_value_t = 16, value_parser = load::size)]
    steps: usize,
    /// Threads; 0: one per core, and the search may choose fewer.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = load::threads)]
    threads: usize,
    #[command(flatten)]
    on: load::On,
    /// Begin with the numbers of another class of machines, and measure this class's beside what is found.
    #[arg(long, value_name = "CLASS")]
    from: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One model with one size.
#[derive(Serialize)]
struct Row {
    model: String,
    about: String,
    batch: usize,
    verdict: Verdict,
    changes: String,
    /// The default's time over the winner's, as the search told it.
    told: Figure,
    /// The same, measured anew: 1 where the default stays.
    gain: Figure,
    /// Whether it is surely over 2% slower.
    slower: bool,
    /// The default's time over that with the numbers written for this class of machines.
    written: Option<Figure>,
    /// The part of that gain that was found, by logarithms.
    share: Figure,
    seconds: Figure,
}

#[derive(Serialize)]
struct Report {
    cpu: String,
    isa: String,
    from: Option<String>,
    rows: Vec<Row>,
    median_gain: Figure,
    least_gain: Figure,
    slower: Figure,
    median_share: Figure,
    partial: bool,
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let from = Changes { class: args.from.clone(), ..Changes::default() };
    from.tuning().map_err(|e| anyhow::anyhow!("--from: {e}"))?;
    let folder = std::env::temp_dir().join(format!("schwann-tune-{}", std::process::id()));
    let cases = cases(args, &folder)?;
    stop::listen();
    let cancel = stop::keep();
    let bar = out::progress(1000 * cases.len() as u64);
    let mut rows = vec![];
    for (i, case) in cases.iter().enumerate() {
        let shown = bar.clone();
        let base = Options {
            batch: case.batch,
            steps: args.steps,
            threads: args.threads,
            backend: args.on.choice()?,
            tuning: from.clone(),
            ..Options::default()
        };
        let (file, name) = (case.file.clone(), case.name.clone());
        let mut tuner = Tuner::new(crate::profile::subject(&file)?, base.clone())
            .named(&case.name)
            .budget(args.budget)
            .seed(args.seed)
            .classes(args.from.is_none())
            .starting(crate::gate::start::starter(&file))
            .cancelled_by(cancel.clone())
            .telling(move |what, part| {
                shown.set_position(1000 * i as u64 + (part * 900.0) as u64);
                shown.set_message(format!("{name}: {what}"));
            });
        let found = match tuner.tune() {
            Err(e) if e.is_cancelled() => break,
            other => other.map_err(super::in_flags).with_context(|| format!("model {}", case.name))?,
        };
        if found.verdict == Verdict::Stopped {
            break;
        }
        bar.set_message(format!("{}: checked anew", case.name));
        match row(args, case, &base, &found) {
            Err(_) if stop::asked() => break,
            row => rows.push(row?),
        }
    }
    bar.finish_and_clear();
    let _ = std::fs::remove_dir_all(&folder);
    let report = report(args, rows)?;
    if args.json {
        out::print(&serde_json::to_string_pretty(&report)?)?;
    } else {
        show(&report)?;
    }
    Ok(match (report.partial, report.rows.iter().any(|r| r.slower)) {
        (true, _) => Outcome::Stopped,
        (false, true) => Outcome::Differs,
        (false, false) => Outcome::Done,
    })
}

struct Case {
    name: String,
    file: String,
    about: String,
    batch: usize,
}

/// What is tuned: models that were named, or random ones, which other processes read from files.
fn cases(args: &Args, folder: &std::path::Path) -> Result<Vec<Case>> {
    let mut cases = vec![];
    let batches = |seed: u64| match args.batch.is_empty() {
        true => vec![[1, 4, 12, 16, 24, 32, 40, 64][(seed % 8) as usize]],
        false => args.batch.clone(),
    };
    if !args.model.is_empty() {
        for name in &args.model {
            for batch in if args.batch.is_empty() { vec![32] } else { args.batch.clone() } {
                cases.push(Case { name: name.clone(), file: name.clone(), about: String::new(), batch });
            }
        }
        return Ok(cases);
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for seed in args.seed..args.seed + args.models {
        let model = models::random(seed)?;
        let path = folder.join(format!("random-{seed}.safetensors"));
        model.save(&path)?;
        let info = model.info()?;
        let layers: Vec<&str> = info.layers.iter().map(|l| l.label()).collect();
        let about = format!("{}, {} parameters", layers.join(" → "), info.parameters);
        let file = path.to_str().context("the folder for temporary files has a name that is no text")?;
        for batch in batches(seed) {
            cases.push(Case { name: format!("random {seed}"), file: file.into(), about: about.clone(), batch });
        }
    }
    Ok(cases)
}

/// Two ways to run a model in turns, in starts of the program.
fn duel(file: &str, sides: [&Options; 2], limit: Option<f64>, total: f64) -> Result<Judgement> {
    let sides = sides.map(|o| Side { model: file.to_owned(), options: o.clone() });
    let question = Question { limit, questions: 1 };
    let each = (total * 0.04).clamp(0.05, 0.5);
    let mut begin = || -> Result<Reading> {
        stop::check()?;
        let found = start(sides.to_vec(), false, each)?;
        let [base, other] = &found.sides[..] else { bail!("a start measured {} sides", found.sides.len()) };
        Reading::of(base, other).context("a start measured nothing")
    };
    question.ask(total, None, &mut begin, &mut |_| {})?.context("there were too few starts")
}

fn speedup(judged: &Judgement) -> Figure {
    let r = judged.ratio;
    let spread = schwann::figure::Spread {
        low: 1.0 / r.high,
        high: 1.0 / r.low,
        ends: schwann::figure::Ends::Confidence99,
        samples: judged.starts as u64,
    };
    Figure::measured(1.0 / r.estimate, "×", "the default's time over this one's in turns, starts of the program")
        .with_spread(spread)
}

fn row(args: &Args, case: &Case, base: &Options, found: &schwann::prof::tune::Outcome) -> Result<Row> {
    let (mut gain, mut slower) = (Figure::derived(1.0, "×", "the default stays"), false);
    let (mut told, mut changes) = (gain.clone(), "the default".to_owned());
    if let Some(w) = &found.winner {
        let judged = duel(&case.file, [base, &w.config.apply(base)], Some(MOST_SLOWER), args.check)?;
        (gain, slower) = (speedup(&judged), judged.answer == Answer::Slower);
        (told, changes) = (w.gain.clone(), line(&w.changes));
    }
    let written = match &args.from {
        None => None,
        Some(_) => {
            let own = Options { tuning: Changes::default(), ..base.clone() };
            Some(speedup(&duel(&case.file, [base, &own], None, args.check)?))
        }
    };
    let source = "logarithm of the gain that was found over that of the written numbers";
    let share = match (gain.value, written.as_ref().and_then(|w| w.value)) {
        (Some(found), Some(written)) if written > 1.01 => {
            Figure::derived(found.ln() / written.ln() * 100.0, "%", source)
        }
        (_, Some(_)) => Figure::unavailable("%", source, "the written numbers gain less than 1% here"),
        _ => Figure::unavailable("%", source, "it was not asked for; --from portable does"),
    };
    Ok(Row {
        model: case.name.clone(),
        about: case.about.clone(),
        batch: case.batch,
        verdict: found.verdict,
        changes,
        told,
        gain,
        slower,
        written,
        share,
        seconds: found.seconds.clone(),
    })
}

fn report(args: &Args, rows: Vec<Row>) -> Result<Report> {
    let gains: Vec<f64> = rows.iter().filter_map(|r| r.gain.value).collect();
    let shares: Vec<f64> = rows.iter().filter_map(|r| r.share.value).collect();
    let of = |values: &[f64], unit: &str, what: &str, pick: fn(&[f64]) -> Option<f64>| match pick(values) {
        Some(v) => Figure::derived(v, unit, what),
        None => Figure::unavailable(unit, what, "there is none"),
    };
    let least = |v: &[f64]| v.iter().copied().reduce(f64::min);
    let choice = args.on.choice()?;
    let isa = args.on.processor(1)?.map_or_else(|| choice.to_string(), |p| p.isa().to_string());
    Ok(Report {
        cpu: cpu::name().unwrap_or_else(|why| format!("unknown ({why})")),
        isa,
        from: args.from.clone(),
        median_gain: of(&gains, "×", "median over models", median),
        least_gain: of(&gains, "×", "least over models", least),
        slower: Figure::derived(rows.iter().filter(|r| r.slower).count() as f64, "models", "counted"),
        median_share: of(&shares, "%", "median over models", median),
        partial: stop::asked(),
        rows,
    })
}

fn show(r: &Report) -> Result<()> {
    let mut out = out::stdout();
    let title = format!("the tuner on {}, {}", r.cpu, r.isa);
    writeln!(out, "{}", out::paint(out::TITLE, out::printable(&title)))?;
    let factor = |f: &Figure| match (f.value, f.spread) {
        (Some(v), Some(s)) => format!("{v:.3} ({:.3} to {:.3})", s.low, s.high),
        (Some(v), None) => format!("{v:.3}"),
        _ => "–".into(),
    };
    let mut table = out::Table::new(&["model", ">batch", ">gain", ">written", ">share", ">search", "change"]);
    for row in &r.rows {
        let share = row.share.value.map_or("–".into(), |s| format!("{s:.0}%"));
        let written = row.written.as_ref().map_or("–".into(), factor);
        let search = row.seconds.value.map_or("–".into(), seconds);
        let name = if row.about.is_empty() { row.model.clone() } else { format!("{}: {}", row.model, row.about) };
        let gain = format!("{}{}", factor(&row.gain), if row.slower { " slower!" } else { "" });
        table.row([name, row.batch.to_string(), gain, written, share, search, out::cut(&row.changes, 60)]);
    }
    table.write(&mut out)?;
    let whole = |f: &Figure| f.value.unwrap_or_default();
    writeln!(
        out,
        "median gain {}, least {}; {} of {} surely over 2% slower than the default (measured anew, 99% intervals)",
        factor(&r.median_gain),
        factor(&r.least_gain),
        whole(&r.slower),
        r.rows.len()
    )?;
    if let Some(share) = r.median_share.value {
        writeln!(out, "of the written numbers' gain it found {share:.0}% (median, by logarithms)")?;
    }
    Ok(out.flush()?)
}
