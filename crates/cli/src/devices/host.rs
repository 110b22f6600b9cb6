//! This machine in one place: CPU, caches, instruction sets, memory, calibration, sensors.

use super::{directory, number};
use crate::{load, out};
use anyhow::Result;
use schwann::memory::{available_bytes, machine_bytes};
use schwann::plan::{bytes, seconds};
use schwann::prof::device::{Calibration, Fingerprint, Pace, cpu};
use schwann::sensors::System;
use schwann::{Figure, Isa};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// Loads and power are of the time between two samples.
const BETWEEN: Duration = Duration::from_millis(300);

/// What is known of this machine without measuring its speed.
struct Host {
    fingerprint: Fingerprint,
    calibration: Result<Option<Calibration>, String>,
    readings: BTreeMap<String, Figure>,
}

impl Host {
    fn look() -> Result<Host> {
        let fingerprint = Fingerprint::of(load::cpu(None, 1)?.isa());
        let mut system = System::new();
        system.sample();
        std::thread::sleep(BETWEEN);
        let readings = system.sample().readings;
        let stored = directory().map_or(Ok(None), |dir| Calibration::load(&dir, &fingerprint));
        Ok(Host { calibration: stored.map_err(|e| e.to_string()), fingerprint, readings })
    }
}

fn figure(value: Result<usize, String>, source: &str) -> Figure {
    match value {
        Ok(bytes) => Figure::measured(bytes as f64, "B", source),
        Err(why) => Figure::unavailable("B", source, why),
    }
}

fn memory() -> [(&'static str, Figure); 2] {
    [
        ("all", figure(machine_bytes().map_err(|e| e.to_string()), "the system, or the container where that has less")),
        ("free", figure(available_bytes().map_err(|e| e.to_string()), "the system, and this process's own limits")),
    ]
}

/// Everything about this machine.
pub(super) fn show(as_json: bool) -> Result<()> {
    let host = Host::look()?;
    let mut out = out::stdout();
    if as_json {
        let (calibration, why) = match &host.calibration {
            Ok(Some(c)) => (Some(document(c)), None),
            Ok(None) => (None, Some("not calibrated yet; `schwann devices calibrate` does it".to_owned())),
            Err(e) => (None, Some(e.clone())),
        };
        let all = json!({
            "cpu": cpu::name().map_err(|why| json!({ "reason": why })).ok(),
            "fingerprint": host.fingerprint,
            "hash": host.fingerprint.hash(),
            "isas": Isa::available().iter().map(|i| i.name()).collect::<Vec<_>>(),
            "caches": cpu::caches().ok(),
            "caches_reason": cpu::caches().err(),
            "memory": memory().into_iter().collect::<BTreeMap<_, _>>(),
            "calibration": calibration,
            "calibration_reason": why,
            "sensors": host.readings,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(out.flush()?);
    }
    let f = &host.fingerprint;
    writeln!(out, "{} {}", out::paint(out::TITLE, "this machine"), out::printable(&f.cpu))?;
    line(&mut out, "cores", &f.cores.to_string())?;
    let isas: Vec<&str> = Isa::available().iter().map(|i| i.name()).collect();
    line(&mut out, "kernels", &format!("{} (of {})", f.isa, isas.join(", ")))?;
    let caches = cpu::caches().map(|found| {
        let one = |c: &cpu::Cache| {
            let shared = c.shared_by.filter(|n| *n > 1).map(|n| format!(", shared by {n} cores")).unwrap_or_default();
            format!("L{} {}{shared}", c.level, bytes(c.bytes as u64))
        };
        found.iter().map(one).collect::<Vec<_>>().join("; ")
    });
    line(&mut out, "caches", &caches.unwrap_or_else(|why| format!("unknown ({why})")))?;
    let [(_, all), (_, free)] = memory();
    let [all, free] = [all, free].map(|f| f.value.map_or("unknown".into(), |b| bytes(b as u64)));
    line(&mut out, "memory", &format!("{all}, {free} free"))?;
    line(&mut out, "system", &f.os)?;
    writeln!(out)?;
    match &host.calibration {
        Ok(Some(c)) => calibration_page(&mut out, c)?,
        Ok(None) => {
            folded(
                &mut out,
                "speed",
                "not calibrated yet; `schwann devices calibrate` measures it in about ten seconds",
            )?;
        }
        Err(why) => folded(&mut out, "speed", why)?,
    }
    writeln!(out)?;
    sensors(&mut out, &host.readings)?;
    Ok(out.flush()?)
}

/// A calibration as a document.
pub(super) fn document(c: &Calibration) -> serde_json::Value {
    json!({
        "fingerprint": c.fingerprint, "hash": c.fingerprint.hash(), "created_unix_s": c.created_unix_s,
        "took_s": c.took_s, "pace": c.pace, "conditions": c.conditions, "doubts": c.doubts(), "figures": c.figures(),
    })
}

/// What was measured, in a table, and what speaks against it.
pub(super) fn calibration_page(out: &mut dyn Write, c: &Calibration) -> Result<()> {
    let mut table = out::Table::new(&["speed", ">figure", "how"]);
    for named in c.figures() {
        let source = named.figure.source.strip_prefix(&format!("{}: ", c.source())).unwrap_or(&named.figure.source);
        let how = named.figure.reason.as_deref().unwrap_or(source);
        let how: String =
            if how.chars().count() > 38 { how.chars().take(37).chain(['…']).collect() } else { how.into() };
        table.row([named.name.clone(), number(&named.figure), how]);
    }
    table.write(out)?;
    let rough = if c.pace == Pace::Quick { ", quickly and roughly" } else { "" };
    let text = format!("calibrated in {}{rough}; fingerprint {}", seconds(c.took_s), c.fingerprint.hash());
    writeln!(out, "{}", out::paint(out::DIM, text))?;
    for doubt in c.doubts() {
        folded(out, "doubt", &doubt)?;
    }
    Ok(())
}

/// Readings with a value one a line; the others by their reason.
fn sensors(out: &mut dyn Write, readings: &BTreeMap<String, Figure>) -> Result<()> {
    writeln!(out, "{}", out::paint(out::TITLE, "sensors"))?;
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, figure) in readings {
        match (figure.value, figure.unit.as_str()) {
            (Some(value), "B") => line(out, name, &bytes(value as u64))?,
            (Some(value), "flag") => line(out, name, if value > 0.0 { "yes" } else { "no" })?,
            (Some(_), _) => line(out, name, &number(figure))?,
            (None, _) => missing.entry(figure.reason.as_deref().unwrap_or("not known")).or_default().push(name),
        }
    }
    for (reason, names) in missing {
        let (first, more) = (names[0], names.len() - 1);
        let names = if more > 2 { format!("{first} and {more} more") } else { names.join(", ") };
        folded(out, &names, reason)?;
    }
    Ok(())
}

fn line(out: &mut dyn Write, name: &str, text: &str) -> Result<()> {
    let first = format!("  {:<29} ", out::printable(name));
    Ok(writeln!(out, "{}", out::wrap(&out::printable(text), &first, &" ".repeat(32), out::width()))?)
}

/// A name and a text that may take several lines.
fn folded(out: &mut dyn Write, name: &str, text: &str) -> Result<()> {
    let text = out::wrap(&out::printable(&format!("{name}: {text}")), "  ", "    ", out::width());
    Ok(writeln!(out, "{}", out::paint(out::DIM, text))?)
}
