//! `schwann compare`: two profiles held against each other, metric by metric and operation by operation.

use crate::baseline::Place;
use crate::{Outcome, out};
use anyhow::{Result, bail};
use schwann::Figure;
use schwann::prof::Profile;
use schwann::prof::baseline::{self, Change, Compared, Unlike, Word};
use schwann::prof::export::{shown, shown_value};
use std::fmt::Write as _;
use std::io::Write;

/// Operations that are shown unless all are asked for.
const OPS: usize = 10;

#[derive(clap::Args)]
#[command(after_help = "A profile is a saved name, an id, or a file that ends with .json. It answers one \
question: is the candidate faster or slower? A profile keeps the times of several starts of the program, each beside the \
time of a yardstick (a small fixed computation), so that a slower machine does not pass for a slower program. The answer \
is faster or slower where the 99% interval of the change leaves out 0 and the change is at least 1%; no difference where \
the interval lies within ±1%; else undecided. Where it matters, measure both in turns: `schwann gate`.

Examples:
  schwann compare main run.json
  schwann compare main feature --json
  schwann compare before.json after.json --markdown >> notes.md
  schwann compare laptop server --anyway")]
pub(crate) struct Args {
    /// The baseline.
    base: String,
    /// The profile to compare with the baseline.
    candidate: String,
    /// Compare even if machine, model, batch or something else differs.
    #[arg(long)]
    anyway: bool,
    /// Show every operation.
    #[arg(long)]
    all: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown.
    #[arg(long)]
    markdown: bool,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let (base, candidate) = (args.place.profile(&args.base)?, args.place.profile(&args.candidate)?);
    alike(&base, &candidate, args.anyway)?;
    let compared = baseline::compare(&base, &candidate);
    if args.json {
        out::print(&serde_json::to_string_pretty(&compared)?)?;
    } else if args.markdown {
        out::print(&markdown(&compared, args.all))?;
    } else {
        table(&compared, args.all)?;
    }
    Ok(Outcome::Done)
}

/// Refuses what cannot be compared, unless asked to.
pub(crate) fn alike(base: &Profile, candidate: &Profile, anyway: bool) -> Result<()> {
    warn_of_partial("the baseline", base);
    warn_of_partial("the candidate", candidate);
    let unlike = baseline::unlike(base, candidate);
    if anyway || unlike.is_empty() {
        return Ok(());
    }
    bail!("these differ in more than time, so comparing them says nothing: {}; --anyway compares them", said(&unlike))
}

/// Says where a profile was stopped before it was done.
pub(crate) fn warn_of_partial(which: &str, profile: &Profile) {
    if let Some(partial) = &profile.partial {
        out::note(&format!("{which} is partial, {partial}; its figures rest on fewer samples than were asked for"));
    }
}

pub(crate) fn said(unlike: &[Unlike]) -> String {
    let name = |text: &str| text.rsplit_once(" (").map(|(name, _)| name.to_owned());
    let one = |u: &Unlike| {
        // Two hashes do not tell a person what is different.
        let why = match u.what == "model" && name(&u.base) == name(&u.candidate) {
            true => {
                ": other weights or options, or a version of this program that builds it or names its parts otherwise"
            }
            false => "",
        };
        format!("{} {} and {}{why}", u.what, u.base, u.candidate)
    };
    unlike.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// `+3.1%`.
fn signed(figure: &Figure) -> String {
    figure.value.map_or("–".into(), |v| schwann::prof::plot::unit::change(v, 1))
}

/// `+2.6 … +3.6%`.
fn interval(figure: &Figure) -> String {
    figure.spread.map_or("–".into(), |s| {
        format!("{} … {}", schwann::prof::plot::unit::change(s.low, 1), schwann::prof::plot::unit::change(s.high, 1))
    })
}

fn effect(change: &Change) -> String {
    let size = change.effect.map(|size| size.word());
    size.zip(change.cliffs_delta.value).map_or("–".into(), |(word, delta)| format!("{word} ({delta:+.2})"))
}

/// How the machine itself differed between the two measurements, where that is worth a word.
pub(crate) fn machine_told(slower: &Figure) -> Option<String> {
    let percent = slower.value.filter(|p| p.abs() >= 1.0)?;
    let word = if percent < 0.0 { "faster" } else { "slower" };
    let size = percent.abs();
    Some(format!(
        "the machine itself was {size:.1}% {word} (by the yardstick) while the candidate ran; this is subtracted"
    ))
}

/// What the whole comes to, in a sentence.
fn sentence(c: &Compared) -> String {
    let Some(time) = c.metrics.first() else { return "nothing to compare".into() };
    match c.verdict {
        Word::Unknown => {
            let why = time.change.reason.as_deref().unwrap_or("there are no samples");
            format!("not known whether the candidate is faster or slower: {why}")
        }
        Word::NoDifference | Word::Undecided => {
            format!("{}: {} ({})", c.verdict.text(), signed(&time.change), interval(&time.change))
        }
        word => format!("the candidate is {}: {} ({})", word.text(), signed(&time.change), interval(&time.change)),
    }
}

fn table(c: &Compared, all: bool) -> Result<()> {
    let mut out = out::stdout();
    let style = match c.verdict {
        Word::Slower => out::BAD,
        Word::Faster => out::GOOD,
        _ => out::TITLE,
    };
    writeln!(out, "{}", out::paint(style, out::printable(&sentence(c))))?;
    for (side, title, id) in [("baseline", &c.base_title, &c.base), ("candidate", &c.candidate_title, &c.candidate)] {
        writeln!(out, "  {side:<9} {}  {}", out::printable(title), out::paint(out::DIM, out::printable(id)))?;
    }
    writeln!(out, "  {:<9} {}", "by", out::printable(&c.basis.how))?;
    if let Some(text) = machine_told(&c.basis.machine) {
        writeln!(out, "  {:<9} {text}", "")?;
    }
    if !c.unlike.is_empty() {
        writeln!(out, "{}", out::paint(out::BAD, format!("  unlike: {}", out::printable(&said(&c.unlike)))))?;
    }
    writeln!(out)?;
    let headings = ["metric", ">baseline", ">candidate", ">change", ">99% interval", "effect", "verdict"];
    let mut table = out::Table::new(&headings);
    for m in &c.metrics {
        let figures = [shown(&m.base), shown(&m.candidate), signed(&m.change), interval(&m.change)];
        let words = [effect(m), m.word.text().to_owned()];
        table.row([m.metric.clone()].into_iter().chain(figures).chain(words));
    }
    table.write(&mut out)?;
    if !c.ops.is_empty() {
        writeln!(out)?;
        let mut table = out::Table::new(&["operation", ">baseline", ">candidate", ">difference", ">change", "kernel"]);
        for op in c.ops.iter().take(if all { usize::MAX } else { OPS }) {
            let difference = op.difference.value.map_or("–".into(), |v| shown_value(v, "s"));
            let figures = [shown(&op.base), shown(&op.candidate), difference, signed(&op.change)];
            table.row([out::printable(&op.name)].into_iter().chain(figures).chain([out::printable(&op.kernel)]));
        }
        table.write(&mut out)?;
        if !all && c.ops.len() > OPS {
            let text = format!("{} more operations, which differ less: --all", c.ops.len() - OPS);
            writeln!(out, "{}", out::paint(out::DIM, text))?;
        }
    }
    Ok(out.flush()?)
}

fn markdown(c: &Compared, all: bool) -> String {
    let cell = schwann::show::markdown;
    let mut text = format!("**{}**\n\n", cell(&sentence(c)));
    // Writing to a string does not fail.
    let _ = writeln!(text, "baseline {} ({})  ", cell(&c.base_title), cell(&c.base));
    let _ = writeln!(text, "candidate {} ({})\n", cell(&c.candidate_title), cell(&c.candidate));
    let _ = writeln!(text, "by {}\n", cell(&c.basis.how));
    if !c.unlike.is_empty() {
        let _ = writeln!(text, "> unlike: {}\n", cell(&said(&c.unlike)));
    }
    text +=
        "| metric | baseline | candidate | change | 99% interval | effect | verdict |\n|---|--:|--:|--:|--:|---|---|\n";
    for m in &c.metrics {
        // Units come from the files, too.
        let cells = [shown(&m.base), shown(&m.candidate), signed(&m.change), interval(&m.change), effect(m)];
        let cells = cells.map(|text| cell(&text));
        let _ = writeln!(text, "| {} | {} | {} |", cell(&m.metric), cells.join(" | "), m.word.text());
    }
    text += "\n| operation | baseline | candidate | difference | change |\n|---|--:|--:|--:|--:|\n";
    for op in c.ops.iter().take(if all { usize::MAX } else { OPS }) {
        let difference = op.difference.value.map_or("–".into(), |v| shown_value(v, "s"));
        let cells = [shown(&op.base), shown(&op.candidate), difference, signed(&op.change)];
        let cells = cells.map(|text| cell(&text));
        let _ = writeln!(text, "| {} | {} |", cell(&op.name), cells.join(" | "));
    }
    text
}
