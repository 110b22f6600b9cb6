//! `schwann devices add-report`: what somebody measured on a real device becomes part of its catalogue entry, beside what
//! this machine predicts for it.

use super::{calibration, number};
use crate::{Outcome, out};
use anyhow::{Context, Result, bail};
use schwann::nn::{GraphOptions, InitialState};
use schwann::prof::device::gpu::{Prospect, on_gpu};
use schwann::prof::device::measured::{Compared, Side};
use schwann::prof::device::{Calibration, Catalog, Entry, Measured, MeasuredRun, Report, on};
use schwann::prof::models::{INPUTS, Sizes, built_in};
use schwann::{Bindings, CompileOptions, Figure, Program};
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// Threads of a run that predictions are made for: a report may say anything.
const MOST_THREADS: usize = 64;

pub(super) fn add(file: &Path, toml: bool, as_json: bool) -> Result<Outcome> {
    let report = Report::read(file)?;
    let catalog = Catalog::load()?;
    let mut entry = catalog.find(&report.chip)?.clone();
    let mut new = report.measured;
    let same = |m: &&Measured| (&m.date, &m.commit, &m.system) == (&new.date, &new.commit, &new.system);
    if let Some(old) = entry.measured.iter().find(same) {
        out::note(&format!("nothing added: {} is {} already", entry.name, old.source()));
        return Ok(Outcome::Done);
    }
    let calibration = calibration()?;
    // Predicted as from now on: with the report's peak and bandwidth, but without its times.
    let mut known = entry.clone();
    known.measured.push(Measured { runs: vec![], ..new.clone() });
    let bar = out::progress(new.runs.len() as u64);
    for (i, run) in new.runs.iter_mut().enumerate() {
        bar.inc(1);
        bar.set_message(out::printable(&run.model));
        run.predicted_s = predicted(run, &known, &calibration).with_context(|| format!("run {}", i + 1))?;
    }
    bar.finish_and_clear();
    entry.measured.push(new);
    let text = entry.to_toml();
    let saved = if toml { None } else { Some(save(&entry, &text)?) };
    let mut out = out::stdout();
    if toml {
        write!(out, "{text}")?;
    } else if as_json {
        let all = json!({ "device": entry.name, "file": saved, "measured": entry.measured });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        page(&mut out, &entry)?;
        out::note(&format!("added to {}", saved.unwrap_or_default()));
    }
    out.flush()?;
    Ok(Outcome::Done)
}

/// What this machine predicts for a run; none where it has no prediction. Nothing is allocated by the run's sizes: they come
/// from a file.
fn predicted(run: &MeasuredRun, entry: &Entry, calibration: &Calibration) -> Result<Option<f64>> {
    // A file's name is no model here, whatever a report says.
    let Some(model) = built_in(&run.model, &Sizes::default()) else {
        bail!("`{}` is no built-in model", out::printable(&run.model));
    };
    let graph = model?.graph(&GraphOptions::default().state(InitialState::Zero))?;
    let sizes = Bindings::new().with("B", run.batch).with("T", run.steps).with("C", INPUTS);
    Ok(match run.on {
        Side::Gpu => {
            let work = Prospect::new(&graph)?.work(&sizes);
            on_gpu(work.as_ref().map_err(String::as_str), entry).time.value
        }
        Side::Cpu if run.threads > MOST_THREADS => None,
        Side::Cpu => {
            let program = Program::compile(&graph, &CompileOptions::default().threads(run.threads))?;
            // Sizes that are out of all proportion have no plan.
            program.plan(&sizes).ok().and_then(|plan| on(&plan, entry, calibration).time.value)
        }
    })
}

/// Adds the entry to the user's own file, where the last one of a name counts.
fn save(entry: &Entry, text: &str) -> Result<String> {
    let (path, _) =
        Catalog::user_file().context("nothing says where your own devices are; set SCHWANN_DEVICES to a file")?;
    let mut all = match path.exists() {
        true => std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?,
        false => String::new(),
    };
    if !all.is_empty() {
        all += if all.ends_with('\n') { "\n" } else { "\n\n" };
    }
    all += &format!("# Measured on a real one; it takes the place of those of the same name before it.\n{text}");
    // What would not be read again is not written.
    let mut check = Catalog::own()?;
    check.add(&path.display().to_string(), &all, Some(&path))?;
    if check.find(&entry.name)?.measured != entry.measured {
        bail!("{} would not read as what was measured; it was left as it is", path.display());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    schwann::io::write_text(&path, &all).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.display().to_string())
}

fn page(out: &mut dyn Write, entry: &Entry) -> Result<()> {
    let Some(last) = entry.measured.last() else { return Ok(()) };
    let title = out::paint(out::TITLE, out::printable(&entry.name));
    writeln!(out, "{title}, {}", out::printable(&last.source()))?;
    let mut table = out::Table::new(&["model", ">batch", ">steps", "on", ">predicted", ">measured", ">ratio"]);
    for run in &last.runs {
        let seconds = |s: f64| number(&Figure::derived(s, "s", "report"));
        let on = match run.on {
            Side::Cpu => format!("CPU, {}", out::threads(run.threads)),
            Side::Gpu => "GPU".into(),
        };
        table.row([
            run.model.clone(),
            run.batch.to_string(),
            run.steps.to_string(),
            on,
            run.predicted_s.map_or("–".into(), seconds),
            seconds(run.measured_s),
            run.predicted_s.map_or("–".into(), |p| format!("{:.2}×", run.measured_s / p)),
        ]);
    }
    table.write(out)?;
    let note = "predicted on this machine with the report's peak and bandwidth, without its times";
    writeln!(out, "{}", out::paint(out::DIM, note))?;
    for (name, side) in [("CPU", Side::Cpu), ("GPU", Side::Gpu)] {
        if let Some(compared) = Compared::of(&entry.measured, side) {
            writeln!(out, "{}", out::wrap(&format!("{name}: {}", compared.words), "", "  ", out::width()))?;
        }
    }
    Ok(())
}
