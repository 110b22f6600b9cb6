//! `schwann devices`: the catalogue, this machine's calibration, settings, and how good predictions are here.

mod host;
mod report;

use crate::{Outcome, load, out};
use anyhow::{Context, Result};
use schwann::backend::{self, Known};
use schwann::plan::seconds;
use schwann::prof::device::check::{self, WITHIN};
use schwann::prof::device::settings::{Finding, Settings, SizeTest};
use schwann::prof::device::{
    self, Calibration, Catalog, Entry, Fingerprint, Origin, Pace, Progress, WAITING, data_dir, roof_of_backend,
    settings_for, settings_for_host,
};
use schwann::prof::profile::{Named, Roof};
use schwann::{Figure, Provenance};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann devices                    this machine, and all known devices
  schwann devices show host          this machine: CPU, caches, memory, sensors
  schwann devices show 'M1 Max'      what is published about it, with sources
  schwann devices show wgpu          what this machine's GPU can do, measured
  schwann devices calibrate          measure this machine, in about ten seconds
  schwann devices settings M4        batch and sizes that suit it, and why
  schwann devices settings --test    are multiples of 64 really faster here?
  schwann devices check              how good are predictions on this machine?
  schwann devices add-report FILE    what scripts/mac-report found on a Mac

Devices of your own go into ~/.config/schwann/devices.toml (or the file that SCHWANN_DEVICES names), written as \
`schwann devices show M1 --toml` prints one. Calibrations are kept in ~/.local/share/schwann (SCHWANN_DATA names \
another folder).")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// Every device that is known.
    List,
    /// A device: what is published about it, with sources. `host`, or no name: this machine, with all that is known of it.
    Show {
        /// Its name, or `host`; case and spaces do not matter.
        name: Option<String>,
        /// Print the form that a file of your own has.
        #[arg(long)]
        toml: bool,
    },
    /// Measure this machine anew.
    Calibrate {
        /// Only roughly, in less than a second.
        #[arg(long)]
        quick: bool,
    },
    /// Batch, hidden size and backbone for a device; without a name, for this machine.
    Settings {
        /// Its name.
        name: Option<String>,
        /// Measure whether the guides' rule (multiples of 64, powers of two) holds on this machine.
        #[arg(long)]
        test: bool,
        /// Seconds to measure with --test.
        #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = load::seconds)]
        seconds: f64,
    },
    /// Predict and measure three circuits at four shapes, and compare. Exit code 1 where a prediction is over 25% off.
    Check {
        /// Seconds to measure.
        #[arg(long, value_name = "S", default_value_t = 12.0, value_parser = load::seconds)]
        seconds: f64,
        /// Threads; 0: one per core.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = load::threads)]
        threads: usize,
        /// Calibrate first, so that prices and times were measured within the same minutes.
        #[arg(long)]
        calibrate: bool,
    },
    /// Add what was measured on a real device to what is known of it, so that predictions say how far they were off.
    AddReport {
        /// A report, as scripts/mac-report writes it.
        file: PathBuf,
        /// Print the device's new entry, and leave your own file as it is.
        #[arg(long)]
        toml: bool,
    },
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match args.what.as_ref().unwrap_or(&What::List) {
        What::List => list(args.json),
        What::Show { name: Some(name), toml: false } if name.parse().is_ok_and(|choice| has_roof(&choice)) => {
            show_backend(&name.parse()?, args.json)
        }
        What::Show { name: Some(name), toml } if !is_host(name) => show(name, *toml, args.json),
        What::Show { .. } => host::show(args.json).map(|()| Outcome::Done),
        What::Calibrate { quick } => {
            let (calibration, saved) = calibrate(if *quick { Pace::Quick } else { Pace::Full })?;
            let shown = show_calibration(&calibration, args.json)?;
            Ok(if saved { shown } else { Outcome::Refused })
        }
        What::Settings { name, test, seconds } => settings(name.as_deref(), test.then_some(*seconds), args.json),
        What::Check { seconds, threads, calibrate: anew } => {
            let calibration = if *anew { calibrate(Pace::Full)?.0 } else { calibration()? };
            checked(&calibration, *threads, *seconds, args.json)
        }
        What::AddReport { file, toml } => report::add(file, *toml, args.json),
    }
}

/// This machine's stored calibration; without one, a word on how to get it. Nothing is measured.
pub(crate) fn stored(isa: schwann::Isa) -> Option<Calibration> {
    let found = directory().and_then(|dir| Calibration::load(&dir, &Fingerprint::of(isa)).transpose());
    match found {
        Some(Ok(calibration)) => Some(calibration),
        Some(Err(e)) => {
            out::note(&format!("no predicted times: {e}"));
            None
        }
        None => {
            out::note(
                "no predicted times: this machine is not calibrated; `schwann devices calibrate` does it in about ten seconds",
            );
            None
        }
    }
}

/// The same without a word.
pub(crate) fn calibrated(isa: schwann::Isa) -> Option<Calibration> {
    Calibration::load(&data_dir().ok()?, &Fingerprint::of(isa)).ok()?
}

fn directory() -> Option<PathBuf> {
    data_dir().inspect_err(|e| out::note(&format!("{e}; nothing is stored"))).ok()
}

/// Whether a backend is a device whose limits can be measured: the processor has its calibration, and the reference is no
/// device.
fn has_roof(choice: &backend::Choice) -> bool {
    !choice.is_cpu() && choice.name() != "reference"
}

/// Seconds to measure the limits of a device that is not the processor.
const ROOF_SECONDS: f64 = 1.5;

/// The limits of a backend that is not the processor, measured now; `None` where it has none.
pub(crate) fn roof_of(choice: &backend::Choice) -> Result<Option<Roof>> {
    if !has_roof(choice) {
        return Ok(None);
    }
    let backend = choice.make(1)?;
    let bar = out::progress(100);
    let roof = roof_of_backend::measure(&*backend, ROOF_SECONDS, &mut |what, part| {
        bar.set_position((100.0 * part) as u64);
        bar.set_message(out::printable(what));
    });
    bar.finish_and_clear();
    Ok(Some(roof?))
}

/// A device that networks run on, with its limits measured.
fn show_backend(choice: &backend::Choice, as_json: bool) -> Result<Outcome> {
    let Some(roof) = roof_of(choice)? else { return Ok(Outcome::Done) };
    let mut out = out::stdout();
    if as_json {
        writeln!(out, "{}", serde_json::to_string_pretty(&json!({ "roof": roof }))?)?;
    } else {
        writeln!(out, "{}", out::paint(out::TITLE, out::printable(&roof.device)))?;
        let memory = roof.bandwidth.iter().map(|n| (n.name.as_str(), &n.figure));
        let run = roof.run_overhead.iter().map(|figure| ("a run of nothing", figure));
        let all = [("arithmetic, f32", &roof.flops), ("functions", &roof.functions)].into_iter();
        for (name, figure) in all.chain(memory).chain(run).chain([("a step of nothing", &roof.step_overhead)]) {
            let word = if figure.unit == "s" { figure.value.map_or("–".into(), seconds) } else { number(figure) };
            let origin = if figure.provenance == Provenance::Measured { "measured" } else { "derived" };
            entry(&mut out, name, &format!("{word} ({origin})"), &figure.source)?;
        }
    }
    out.flush()?;
    Ok(Outcome::Done)
}

/// Whether a name means this machine.
pub(crate) fn is_host(name: &str) -> bool {
    ["host", "this", "this machine"].iter().any(|h| h.eq_ignore_ascii_case(name))
}

/// This machine's calibration: the stored one, or one measured now.
pub(crate) fn calibration() -> Result<Calibration> {
    let bar = out::progress(100);
    let isa = load::cpu(None, 1)?.isa();
    let found = Calibration::load_or_measure(directory().as_deref(), isa, Pace::Full, &mut heard(&bar));
    bar.finish_and_clear();
    let (calibration, origin) = found?;
    tell(&origin);
    tell_doubts(&calibration);
    Ok(calibration)
}

/// Progress on a bar; that another process measures is said where there is no terminal too.
fn heard(bar: &indicatif::ProgressBar) -> impl FnMut(Progress) + use<> {
    let (mut watch, hidden) = (out::watch(bar), bar.is_hidden());
    move |progress: Progress| {
        if progress.what == WAITING && hidden {
            out::note(WAITING);
        }
        watch(progress);
    }
}

/// Says what speaks against a calibration's figures.
fn tell_doubts(calibration: &Calibration) {
    if calibration.pace == Pace::Quick {
        out::note("this calibration is a quick one, and rough; `schwann devices calibrate` measures in full");
    } else {
        let doubts = calibration.doubts();
        doubts.iter().for_each(|doubt| out::note(&format!("calibration: {doubt}")));
        if let Some(why) = calibration.again() {
            // What was said is not said again.
            let why = if doubts.iter().any(|doubt| why.contains(doubt.as_str())) {
                String::new()
            } else {
                format!(": {why}")
            };
            out::note(&format!("calibration: it will be repeated next time{why}"));
        }
    }
}

/// Measures this machine now, whatever is stored; and whether it could be saved.
fn calibrate(pace: Pace) -> Result<(Calibration, bool)> {
    let bar = out::progress(100);
    let isa = load::cpu(None, 1)?.isa();
    let dir = directory();
    let measured = Calibration::measure_anew(dir.as_deref(), isa, pace, &mut heard(&bar));
    bar.finish_and_clear();
    let (measured, origin) = measured?;
    tell(&origin);
    tell_doubts(&measured);
    let saved = !matches!(origin, Origin::Measured { saved: Err(_), .. });
    Ok((measured, saved))
}

fn tell(origin: &Origin) {
    let Origin::Measured { saved, instead } = origin else { return };
    if let Some(why) = instead {
        out::note(why);
    }
    match saved {
        Ok(path) => out::note(&format!("calibrated; saved as {}", path.display())),
        Err(why) => out::note(&format!("calibrated, but not saved: {why}")),
    }
}

/// A figure's number with its unit, or a dash.
pub(crate) fn number(figure: &Figure) -> String {
    let Some(value) = figure.value else { return "–".into() };
    match figure.unit.as_str() {
        "s" => seconds(value),
        "%" => format!("{value:.0}%"),
        "×" => format!("{value:.2}×"),
        "flop/s" | "op/s" | "B/s" | "1/s" | "Hz" => {
            format!("{}{}", out::rate(value), figure.unit.trim_start_matches('1'))
        }
        "" => format!("{value}"),
        unit if value >= 100.0 => format!("{value:.0} {unit}"),
        unit => format!("{} {unit}", (value * 1000.0).round() / 1000.0),
    }
}

/// What networks can run on here: backends, with their variants, which are instruction sets or GPUs.
fn runs_on(out: &mut impl Write) -> Result<()> {
    writeln!(out, "{}", out::paint(out::TITLE, "networks run on"))?;
    let mut say =
        |indent: &str, text: &str| writeln!(out, "{}", out::wrap(&out::printable(text), indent, "    ", out::width()));
    for known in backend::known() {
        say("  ", &format!("--backend {}: {}", known.name, known.about))?;
        for variant in (known.variants)() {
            say("    ", &format!("{}:{variant}", known.name))?;
        }
    }
    if !schwann::HAS_GPU {
        say("  ", "wgpu (any GPU, by Vulkan) is not in this build: `cargo install --path crates/cli --features gpu`")?;
    }
    writeln!(out)?;
    Ok(())
}

fn list(as_json: bool) -> Result<Outcome> {
    let catalog = Catalog::load()?;
    let mut out = out::stdout();
    let isa = load::cpu(None, 1)?.isa();
    let here = Fingerprint::of(isa);
    let stored = directory().map(|dir| Calibration::load(&dir, &here)).transpose();
    if as_json {
        let stored = stored.as_ref().ok().and_then(|s| s.as_ref()?.as_ref()).map(Calibration::figures);
        let backend =
            |known: &Known| json!({ "name": known.name, "about": known.about, "variants": (known.variants)() });
        let backends: Vec<_> = backend::known().iter().map(backend).collect();
        let host = json!({ "fingerprint": here, "figures": stored, "backends": backends });
        let all = json!({ "host": host, "devices": catalog.devices });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        out.flush()?;
        return Ok(Outcome::Done);
    }
    let state = match &stored {
        Ok(Some(Some(c))) => {
            let roof = c.roof(here.cores);
            let memory = roof.bandwidth.iter().find(|n| n.name == "memory");
            let memory = memory.map_or("–".into(), |n| number(&n.figure));
            format!("calibrated: {} f32, {memory} memory (measured, {})", number(&roof.flops), out::threads(here.cores))
        }
        Ok(_) => "not calibrated yet; `schwann devices calibrate` does it in about ten seconds".into(),
        Err(e) => e.to_string(),
    };
    writeln!(out, "{} {}, {}, {} cores", out::paint(out::TITLE, "this machine"), here.cpu, here.isa, here.cores)?;
    writeln!(out, "  {}\n", out::printable(&state))?;
    runs_on(&mut out)?;
    let mut table = out::Table::new(&["device", ">cores", ">clock", ">f32, a core", ">memory", ">bandwidth"]);
    for d in &catalog.devices {
        let first = |p: &[device::Published]| p.first().map_or("–".into(), |p| number(&p.figure()));
        let plain = |p: &[device::Published]| p.first().map_or("–".into(), |p| p.value.to_string());
        let memory = match (d.memory_sizes.first(), d.memory_sizes.last()) {
            (Some(a), Some(b)) if a.value < b.value => format!("{}–{} GB", a.value, b.value),
            (Some(a), _) => format!("{} GB", a.value),
            _ => "–".into(),
        };
        let own = if d.file.is_some() { " *" } else { "" };
        table.row([
            out::printable(&format!("{}{own}", d.name)),
            plain(&d.performance_cores),
            first(&d.clock),
            d.core_flops().value.map_or("–".into(), |f| format!("≈ {}flop/s", out::rate(f))),
            memory,
            first(&d.memory_bandwidth),
        ]);
    }
    table.write(&mut out)?;
    let note = "published; `schwann devices show NAME` has each source. ≈ estimated; – not known";
    writeln!(out, "{}", out::paint(out::DIM, note))?;
    writeln!(out, "{}", out::paint(out::DIM, "cores: the fast ones, which predictions are for"))?;
    if catalog.devices.iter().any(|d| d.file.is_some()) {
        writeln!(out, "{}", out::paint(out::DIM, "* from your own file"))?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}

fn show(name: &str, toml: bool, as_json: bool) -> Result<Outcome> {
    let catalog = Catalog::load()?;
    let d = catalog.find(name)?;
    let mut out = out::stdout();
    if toml {
        write!(out, "{}", d.to_toml())?;
    } else if as_json {
        let figures: Vec<_> =
            d.figures().into_iter().map(|(n, p)| Named { name: n.into(), figure: p.figure() }).collect();
        let peak = [("core_flops", d.core_flops()), ("cpu_flops", d.cpu_flops())];
        let peak: Vec<_> = peak.into_iter().map(|(n, figure)| Named { name: n.into(), figure }).collect();
        let settings = settings_for(d, &catalog)?;
        let all = json!({ "device": d.name, "file": d.file.as_ref().map(|f| f.to_string_lossy()), "figures": figures, "estimates": peak, "settings": settings });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        page(&mut out, d, &settings_for(d, &catalog)?)?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}

fn page(out: &mut dyn Write, d: &Entry, settings: &Settings) -> Result<()> {
    writeln!(out, "{}", out::paint(out::TITLE, out::printable(&d.name)))?;
    for (field, p) in d.figures() {
        entry(out, &field.replace('_', " "), &number(&p.figure()), &p.source)?;
    }
    writeln!(out, "\n{}", out::paint(out::TITLE, "estimated"))?;
    for (name, figure) in [("one fast core, f32", d.core_flops()), ("all fast cores, f32", d.cpu_flops())] {
        entry(out, name, &number(&figure), figure.reason.as_deref().unwrap_or(&figure.source))?;
    }
    writeln!(out)?;
    recommended(out, settings)
}

/// A figure with where it comes from below it.
fn entry(out: &mut dyn Write, name: &str, figure: &str, source: &str) -> Result<()> {
    writeln!(out, "  {name:<22} {}", out::printable(figure))?;
    Ok(out::paragraph(out, 6, out::DIM, source)?)
}

fn recommended(out: &mut dyn Write, s: &Settings) -> Result<()> {
    writeln!(out, "{}", out::paint(out::TITLE, "recommended"))?;
    let range = |s: &device::settings::Setting| format!("{}–{}", number(&s.low), number(&s.high));
    entry(out, "batch size", &range(&s.batch), &s.batch.low.source)?;
    entry(out, "hidden size", &range(&s.hidden), &s.hidden.low.source)?;
    let units: Vec<String> = s.get_optimal_backbone().iter().map(usize::to_string).collect();
    let source = s.backbone.first().map(|b| b.source.clone()).unwrap_or_default();
    entry(out, "backbone units", &units.join(", "), &source)?;
    Ok(out::paragraph(out, 0, out::DIM, &format!("hypothesis: {}", s.hypothesis))?)
}

fn show_calibration(c: &Calibration, as_json: bool) -> Result<Outcome> {
    let mut out = out::stdout();
    if as_json {
        writeln!(out, "{}", serde_json::to_string_pretty(&host::document(c))?)?;
    } else {
        let f = &c.fingerprint;
        writeln!(out, "{} {}, {}, {} cores", out::paint(out::TITLE, "this machine"), f.cpu, f.isa, f.cores)?;
        host::calibration_page(&mut out, c)?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}

fn settings(name: Option<&str>, test: Option<f64>, as_json: bool) -> Result<Outcome> {
    let catalog = Catalog::load()?;
    let settings = match name {
        Some(name) => Some(settings_for(catalog.find(name)?, &catalog)?),
        None if test.is_some() => None,
        None => Some(settings_for_host(&calibration()?, &catalog)?),
    };
    let tested = match test {
        Some(seconds) => {
            let bar = out::progress(100);
            let tested = device::test_sizes(&load::cpu(None, 1)?, seconds, &mut out::watch(&bar));
            bar.finish_and_clear();
            Some(tested?)
        }
        None => None,
    };
    let mut out = out::stdout();
    if as_json {
        writeln!(out, "{}", serde_json::to_string_pretty(&json!({ "settings": settings, "test": tested }))?)?;
    } else {
        if let Some(settings) = &settings {
            writeln!(out, "{}", out::paint(out::TITLE, out::printable(&settings.device)))?;
            recommended(&mut out, settings)?;
        }
        if let Some(tested) = &tested {
            verdicts(&mut out, tested)?;
        }
    }
    out.flush()?;
    Ok(Outcome::Done)
}

fn verdicts(out: &mut dyn Write, tested: &SizeTest) -> Result<()> {
    let title = out::paint(out::TITLE, "hidden sizes on this machine:");
    writeln!(out, "{}", out::wrap(&tested.workload, &format!("{title} "), "  ", out::width()))?;
    let mut table = out::Table::new(&[">units", ">time (measured)", ">a unit (derived)"]);
    for s in &tested.sizes {
        table.row([s.units.to_string(), number(&s.time), number(&s.per_unit)]);
    }
    table.write(out)?;
    for r in &tested.rules {
        let word = match r.finding {
            Finding::Holds => out::paint(out::GOOD, "holds"),
            Finding::DoesNotHold => out::paint(out::BAD, "does not hold"),
            Finding::Undecided => "undecided".into(),
        };
        let range = r.gain.spread.map(|s| format!(" ({:.2} to {:.2} with 95% confidence)", s.low, s.high));
        let text = format!("{}: {word}, gain {}{}", r.rule, number(&r.gain), range.unwrap_or_default());
        writeln!(out, "{}", out::wrap(&text, "", "  ", out::width()))?;
    }
    Ok(())
}

fn checked(c: &Calibration, threads: usize, seconds: f64, as_json: bool) -> Result<Outcome> {
    let cpu = load::cpu(None, threads)?;
    let bar = out::progress(100);
    let points = check::check(c, &cpu, seconds, &mut out::watch(&bar));
    bar.finish_and_clear();
    let points = points.context("the check could not be run")?;
    let good = points.iter().filter(|p| p.good).count();
    let ranked = points.iter().filter(|p| p.ranked).count();
    let mut out = out::stdout();
    if as_json {
        let all = json!({ "device": c.fingerprint.cpu, "threads": cpu.threads(), "within_percent": WITHIN, "good": good, "ranked": ranked, "points": points });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        let what = format!("{}, {}, {}", c.fingerprint.cpu, c.fingerprint.isa, out::threads(cpu.threads()));
        writeln!(out, "{} {what}", out::paint(out::TITLE, "predictions on this machine"))?;
        let headings = ["model", ">batch", ">steps", ">predicted", ">least", ">median", ">error", "longest three"];
        let mut table = out::Table::new(&headings);
        for p in &points {
            let median = p.measured.spread.map_or("–".into(), |s| schwann::plan::seconds(s.high));
            let error = p.error.value.map_or("–".into(), |e| schwann::prof::plot::unit::change(e, 0));
            table.row([
                p.model.clone(),
                p.batch.to_string(),
                p.steps.to_string(),
                number(&p.predicted),
                number(&p.measured),
                median,
                error,
                if p.ranked { "as predicted" } else { "others" }.into(),
            ]);
        }
        table.write(&mut out)?;
        // Where other operations take longest than should, which.
        for p in points.iter().filter(|p| !p.ranked) {
            let should: Vec<&str> = p.slowest.iter().map(|op| op.name.as_str()).collect();
            let does: Vec<&str> = p.measured_slowest.iter().map(|op| op.name.as_str()).collect();
            let (should, does) = (out::printable(&should.join(", ")), out::printable(&does.join(", ")));
            let text = format!("{} {}×{}: {should} should take longest; {does} do", p.model, p.batch, p.steps);
            writeln!(out, "{}", out::wrap(&text, "", "  ", out::width()))?;
        }
        let all = points.len();
        let text = format!(
            "{good} of {all} within {WITHIN}%; the three longest operations are as predicted in {ranked} of {all}"
        );
        writeln!(out, "{}", out::paint(if good.min(ranked) == all { out::GOOD } else { out::BAD }, text))?;
    }
    out.flush()?;
    Ok(if good.min(ranked) == points.len() { Outcome::Done } else { Outcome::Differs })
}
