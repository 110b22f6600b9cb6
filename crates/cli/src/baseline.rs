//! `schwann baseline`: profiles kept in the user's data directory, to hold later ones against.

use crate::tuned::Shared;
use crate::{Outcome, out};
use anyhow::{Context, Result, bail};
use schwann::Figure;
use schwann::prof::Profile;
use schwann::prof::baseline::{Entry, Found, Point, Store, default_path};
use schwann::prof::db;
use schwann::prof::export::{self, Format, shown};
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(
    after_help = "A name stands for the latest profile saved under it; the earlier ones stay, and `track` shows them all. \
They are kept in baselines.db in the folder SCHWANN_DATA, or without it in the user's data directory \
(~/.local/share/schwann, on macOS ~/Library/Application Support/schwann).

Examples:
  schwann profile --json > run.json
  schwann baseline save main run.json
  schwann baseline list
  schwann baseline show main
  schwann baseline track time_p50
  schwann baseline track compute.tflops --name main --json
  schwann baseline export main --format csv -o main.csv
  schwann baseline export main --format bencher
  schwann baseline delete main --all"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    place: Place,
}

/// Where baselines are.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Place {
    /// The file that baselines are kept in.
    #[arg(long, value_name = "FILE", global = true, conflicts_with = "store")]
    pub(crate) db: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) shared: Shared,
}

impl Place {
    /// A file, or a server.
    pub(crate) fn at(&self) -> Result<db::Place> {
        Ok(match (&self.shared.store, &self.db) {
            (Some(server), _) => server.clone(),
            (None, Some(path)) => {
                out::not_stdout(path, "--db", "a file's name")?;
                db::Place::File(path.clone())
            }
            (None, None) => db::Place::File(default_path()?),
        })
    }

    /// Saves profiles; several under the name with their model's after it.
    pub(crate) fn save(&self, name: &str, profiles: &[Profile]) -> Result<()> {
        let place = self.at()?;
        let mut store = Store::create_at(&place)?;
        for profile in profiles {
            let name = if profiles.len() == 1 { name.to_owned() } else { format!("{name}-{}", profile.model.name) };
            store.save(&name, profile)?;
            out::note(&format!("saved {} as `{name}` in {place}", profile.id));
        }
        Ok(())
    }

    /// Profiles by their file, or one by its name or id.
    pub(crate) fn profiles(&self, of: &str) -> Result<Vec<Profile>> {
        // A name cannot end so.
        if of == "-" || of.ends_with(".json") {
            return Ok(export::read_file(Path::new(of))?);
        }
        let loaded = Store::open_at(&self.at()?).and_then(|store| store.load(of));
        Ok(vec![loaded.with_context(|| format!("`{of}` is not a saved profile (a file's name ends with .json)"))?])
    }

    /// One profile by its file, name or id; of a file with several, the one after a colon: `run.json:W`.
    pub(crate) fn profile(&self, of: &str) -> Result<Profile> {
        let (of, model) = match of.rsplit_once(".json:") {
            Some((file, model)) => (format!("{file}.json"), Some(model)),
            None => (of.to_owned(), None),
        };
        let mut found = self.profiles(&of)?;
        let names: Vec<String> = found.iter().map(|p| p.model.name.clone()).collect();
        if let Some(model) = model {
            found.retain(|p| p.model.name == model);
        }
        let example = format!("{of}:{}", names.first().map_or("MODEL", String::as_str));
        match (found.pop(), found.is_empty()) {
            (Some(profile), true) => Ok(profile),
            (Some(_), false) => bail!("{of} has profiles of {}; say which, such as {example}", names.join(", ")),
            (None, _) => bail!("{of} has no profile of that model; it has {}", names.join(", ")),
        }
    }
}

#[derive(clap::Subcommand)]
enum What {
    /// Save a profile under a name.
    Save {
        /// The name.
        name: String,
        /// The profile's JSON; - for standard input.
        #[arg(value_name = "PROFILE.json", default_value = "-")]
        profile: PathBuf,
    },
    /// What is saved.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// A saved profile's figures.
    Show {
        /// Its name or id.
        name: String,
        /// Print the whole document.
        #[arg(long)]
        json: bool,
    },
    /// Delete what is saved under a name, or the one profile of an id. Where a name has several, it asks, or needs --all.
    Delete {
        /// The name or id.
        name: String,
        /// All that were saved under the name, without asking.
        #[arg(long, visible_alias = "yes")]
        all: bool,
    },
    /// One metric over everything saved.
    Track {
        /// Its path in the document: `time_p50`, `compute.tflops`, `memory.rss_peak`, `compute.ops[0].self_time`, …
        metric: String,
        /// Only what was saved under this name.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Only this model.
        #[arg(long, value_name = "MODEL", value_parser = crate::load::model_name)]
        model: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write a saved profile in another form.
    Export {
        /// Its name or id, or a profile's .json.
        name: String,
        /// json, csv, ops-csv, markdown, bencher or github.
        #[arg(long, short, value_name = "FORM", default_value = "json", value_parser = format)]
        format: Format,
        /// Where to; - for standard output.
        #[arg(long, short, value_name = "FILE", default_value = "-")]
        output: PathBuf,
    },
}

fn format(text: &str) -> Result<Format, String> {
    Format::named(text).ok_or_else(|| {
        let names: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let place = &args.place;
    match &args.what {
        What::Save { name, profile } => {
            place.save(name, &export::read_file(profile)?)?;
        }
        What::List { json } => list(&readable(Store::open_at(&place.at()?)?.list()?), *json)?,
        What::Show { name, json } => {
            let profile = place.profile(name)?;
            if *json { out::print(&export::json(&profile))? } else { show(&profile)? }
        }
        What::Delete { name, all } => {
            let mut store = Store::open_at(&place.at()?)?;
            let found = store.matching(name)?;
            if found.len() > 1 && !all && !agreed(name, &found)? {
                out::note("nothing was deleted");
                return Ok(Outcome::Done);
            }
            let gone = store.delete(name)?;
            out::note(&format!("deleted {gone} profile{}", if gone == 1 { "" } else { "s" }));
        }
        What::Track { metric, name, model, json } => {
            let keep =
                |e: &Entry| name.as_ref().is_none_or(|n| *n == e.name) && model.as_ref().is_none_or(|m| *m == e.model);
            let points = readable(Store::open_at(&place.at()?)?.track(metric, keep)?);
            if points.is_empty() {
                bail!("nothing is saved under that name for that model; `schwann baseline list` lists what is");
            }
            if *json { out::print(&serde_json::to_string_pretty(&points)?)? } else { track(metric, &points)? }
        }
        What::Export { name, format, output } => {
            let file = name.rsplit_once(".json:").map_or(name.as_str(), |(file, _)| file);
            let kept = match place.at()? {
                db::Place::File(path) => Some(path),
                db::Place::Server(_) => None,
            };
            out::apart([output.as_path()], [Path::new(name), Path::new(file)].into_iter().chain(kept.as_deref()))?;
            out::deliver(output, &format.write(&place.profile(name)?))?;
        }
    }
    Ok(Outcome::Done)
}

/// What could be read; the rest is told.
fn readable<T>(found: Found<T>) -> Vec<T> {
    found.unreadable.iter().for_each(|row| out::note(&row.to_string()));
    found.all
}

/// Whether a person at the terminal wants several profiles deleted.
fn agreed(name: &str, found: &[Entry]) -> Result<bool> {
    let count = found.len();
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        bail!("{count} profiles are saved as `{name}`; --all deletes them all, an id from `baseline list` deletes one");
    }
    out::note(&format!("{count} profiles are saved as `{name}`: made {}", out::printable(&made(found))));
    write!(std::io::stderr(), "delete all {count}? [y/N] ")?;
    let mut answer = String::new();
    std::io::stdin().lock().take(16).read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn made(found: &[Entry]) -> String {
    let ends = [found.first(), found.last()].map(|e| e.map_or("", |e| &e.created));
    format!("from {} to {}", ends[0], ends[1])
}

/// The first characters of a commit, and whether it was changed.
fn short(commit: Option<&str>) -> String {
    let dirty = |c: &str| if c.ends_with("-dirty") { "-dirty" } else { "" };
    commit.map_or("–".into(), |c| out::printable(&(c.chars().take(10).collect::<String>() + dirty(c))))
}

fn list(entries: &[Entry], json: bool) -> Result<()> {
    if json {
        return out::print(&serde_json::to_string_pretty(entries)?);
    }
    if entries.is_empty() {
        out::note("nothing is saved");
        return Ok(());
    }
    let mut table = out::Table::new(&["name", "profile", "made", "commit", ">median", "of"]);
    for e in entries {
        let texts = [&e.name, &e.id, &e.created].map(|t| out::printable(t));
        let [name, id, created] = texts;
        table.row([name, id, created, short(e.commit.as_deref()), shown(&e.time_p50), out::printable(&e.workload)]);
    }
    let mut out = out::stdout();
    table.write(&mut out)?;
    Ok(out.flush()?)
}

fn show(p: &Profile) -> Result<()> {
    let mut out = out::stdout();
    writeln!(out, "{}", out::paint(out::TITLE, out::printable(&export::title(p))))?;
    let machine = format!("{} ({}), {}", p.machine.cpu, p.machine.isa, p.machine.os);
    let commit = p.commit.as_deref().unwrap_or("unknown");
    for (name, text) in [
        ("profile", p.id.as_str()),
        ("made", &p.created),
        ("commit", commit),
        ("model", &p.model.description),
        ("hash", &p.model.hash),
        ("machine", &machine),
    ] {
        writeln!(out, "  {name:<8} {}", out::printable(text))?;
    }
    if let Some(partial) = &p.partial {
        writeln!(out, "  {}", out::paint(out::BAD, format!("{:<8} {}", "partial", out::printable(partial))))?;
    }
    writeln!(out)?;
    let mut table = out::Table::new(&["figure", ">value", "origin", "source or reason"]);
    let parts = ["compute.", "memory.", "hardware."];
    let part = |path: &str| parts.iter().any(|p| path.starts_with(p)) && !path.contains('[');
    for (path, f) in export::figures(p).into_iter().filter(|(path, _)| part(path)) {
        let origin = serde_json::to_value(f.provenance)?.as_str().unwrap_or_default().to_owned();
        let why = f.reason.as_deref().unwrap_or(&f.source);
        table.row([out::printable(&path), shown(&f), origin, out::printable(why)]);
    }
    table.write(&mut out)?;
    if !p.compute.ops.is_empty() {
        writeln!(out)?;
        let mut table = out::Table::new(&["operation", "kernel", "result", ">time", ">share", ">of roof"]);
        for op in &p.compute.ops {
            let texts = [&op.name, &op.kernel, &op.shape].map(|t| out::printable(t));
            table.row(texts.into_iter().chain([&op.self_time, &op.share, &op.of_roof].map(shown)));
        }
        table.write(&mut out)?;
    }
    for doubt in &p.doubts {
        writeln!(out, "{}", out::paint(out::DIM, format!("doubt: {}", out::printable(doubt))))?;
    }
    Ok(out.flush()?)
}

/// A line of bars from the least to the greatest; a gap where a value is missing.
fn sparkline(values: &[Option<f64>]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let known = || values.iter().flatten().copied();
    let (low, high) = (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
    let bar = |v: f64| match high > low {
        true => BARS[((v - low) / (high - low) * 7.0).round() as usize],
        false => BARS[3],
    };
    values.iter().map(|v| v.map_or(' ', bar)).collect()
}

fn track(metric: &str, points: &[Point]) -> Result<()> {
    let mut out = out::stdout();
    let values: Vec<Option<f64>> = points.iter().map(|p| p.figure.value).collect();
    let ends: Vec<&Figure> = points.iter().map(|p| &p.figure).filter(|f| f.value.is_some()).collect();
    let line = match (ends.first(), ends.last()) {
        (Some(first), Some(last)) => format!("{}  {} → {}", sparkline(&values), shown(first), shown(last)),
        _ => "no profile has a value for it".into(),
    };
    writeln!(out, "{}  {}", out::paint(out::TITLE, out::printable(metric)), out::printable(&line))?;
    let mut table = out::Table::new(&["commit", "made", "name", ">value", ">change", "of"]);
    let mut before: Option<(f64, String)> = None;
    let mut machines: Vec<&str> = vec![];
    for Point { entry: e, figure } in points {
        // Only the same workload on the same machine is compared.
        let of = format!("{} {}", e.workload, e.fingerprint);
        let change = match (figure.value, &before) {
            (Some(now), Some((then, same))) if *same == of => {
                schwann::prof::plot::unit::change((now / then - 1.0) * 100.0, 1)
            }
            _ => "–".into(),
        };
        before = figure.value.map(|v| (v, of)).or(before);
        machines.push(&e.fingerprint);
        let texts = [&e.created, &e.name].map(|t| out::printable(t));
        let [made, name] = texts;
        table.row([short(e.commit.as_deref()), made, name, shown(figure), change, out::printable(&e.workload)]);
    }
    table.write(&mut out)?;
    machines.sort_unstable();
    machines.dedup();
    if machines.len() > 1 {
        let text = format!("profiles of {} machines; changes are shown within one only", machines.len());
        writeln!(out, "{}", out::paint(out::DIM, text))?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_go_from_the_least_to_the_greatest_with_gaps() {
        assert_eq!(sparkline(&[Some(1.0), None, Some(2.0), Some(1.5)]), "▁ █▅");
        assert_eq!(sparkline(&[Some(3.0), Some(3.0)]), "▄▄");
        assert_eq!(sparkline(&[None]), " ");
    }
}
