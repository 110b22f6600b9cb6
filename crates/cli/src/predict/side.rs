//! The page's second half: the GPU of the same chip, and where the model should run.

use super::{band, two_digits};
use crate::out;
use anyhow::Result;
use schwann::plan::count;
use schwann::prof::device::gpu::{GpuPrediction, Place, Point, Where};
use schwann::prof::device::predict::Prediction;
use std::io::Write;

pub(super) fn page(
    out: &mut dyn Write,
    batch: usize,
    fast_cores: Option<usize>,
    cpu: &Prediction,
    gpu: &GpuPrediction,
    place: &Place,
) -> Result<()> {
    writeln!(out)?;
    if gpu.time.value.is_none() {
        let why = gpu.time.reason.as_deref().unwrap_or("not known");
        writeln!(out, "{}", out::wrap(&out::printable(&format!("GPU: unavailable; {why}")), "", "  ", out::width()))?;
        return Ok(());
    }
    writeln!(out, "{}", out::paint(out::TITLE, format!("on the GPU of {} (predicted)", out::printable(&gpu.device))))?;
    let mut table = out::Table::new(&["part", ">workgroups", "between", "bound by"]);
    for part in &gpu.parts {
        let number = |n: f64| if n > 0.0 { count(n as u64) } else { String::new() };
        let times =
            if part.dispatches > 1.0 { format!("{} × ", count(part.dispatches as u64)) } else { String::new() };
        let name = out::cut(&out::printable(&format!("{times}{}", part.name)), 33);
        table.row([name, number(part.workgroups), band(&part.time).1, part.bound.clone()]);
    }
    table.write(out)?;
    writeln!(out)?;
    let rate = |f: &schwann::Figure, scale: f64| {
        f.spread.map_or("–".into(), |s| format!("{} to {}", two_digits(s.low * scale), two_digits(s.high * scale)))
    };
    let walks = gpu.parts.iter().find_map(|p| p.walks);
    let dispatches = gpu.dispatches.value.unwrap_or(0.0) as u64;
    let how = match (dispatches, walks) {
        (1, Some(1)) => "one dispatch".into(),
        (1, Some(steps)) => format!("one dispatch, which walks all {steps} steps"),
        (n, Some(_)) => format!("{} dispatches; one of them walks the whole sequence", count(n)),
        (n, None) => format!("{} dispatches", count(n)),
    };
    let text = format!(
        "{how} (derived); {} Gflop/s, {}% of the published peak of {} Tflop/s (predicted)",
        rate(&gpu.tflops, 1e3),
        rate(&gpu.share, 1.0),
        gpu.peak.value.map_or("–".into(), |p| p.to_string())
    );
    writeln!(out, "{}", out::wrap(&text, "", "  ", out::width()))?;
    writeln!(out)?;

    let title = format!("CPU or GPU? {} at batch {batch}", out::printable(&gpu.device));
    writeln!(out, "{}", out::paint(out::TITLE, title))?;
    let mut table = out::Table::new(&["", "expected between", "compared"]);
    let short = |text: &str| out::cut(text.split(':').next().unwrap_or(text), 40);
    let threads = format!("CPU, {}", out::threads(cpu.threads));
    table.row([threads, band(&cpu.time).1, short(&cpu.compared)]);
    table.row(["GPU".into(), band(&gpu.time).1, short(&gpu.compared)]);
    table.write(out)?;
    if let Some(cores) = fast_cores.filter(|cores| *cores > cpu.threads) {
        let text = format!("The chip has {cores} fast cores; --threads {cores} compares with all of them.");
        writeln!(out, "{}", out::paint(out::DIM, text))?;
    }
    writeln!(out, "{}", out::wrap(&place.words(batch), "", "", out::width()))?;
    match &place.crossing {
        Some(crossing) => {
            writeln!(out, "{}", out::wrap(&crossing.words(), "", "", out::width()))?;
            points(out, &place.points)?;
        }
        None => writeln!(out, "Other batches were not asked about: the model has no batch `B`, or no prediction.")?,
    }
    writeln!(out)?;
    writeln!(out, "{}", out::paint(out::TITLE, "what the GPU's band takes for granted"))?;
    // What has the same reason stands together before it.
    for same in gpu.assumptions.chunk_by(|a, b| a.why == b.why) {
        let all: Vec<String> = same.iter().map(|a| format!("{}: {}", a.what, a.range())).collect();
        let text = format!("{} ({})", all.join("; "), same[0].why);
        writeln!(out, "{}", out::wrap(&out::printable(&text), "  · ", "    ", out::width()))?;
    }
    writeln!(out, "{}", out::wrap(&out::printable(&gpu.compared), "  · ", "    ", out::width()))?;
    Ok(())
}

/// Some batches with both bands.
fn points(out: &mut dyn Write, points: &[Point]) -> Result<()> {
    let mut table = out::Table::new(&[">batch", "CPU between", "GPU between", "faster"]);
    // Every other one is enough to see where they go.
    for p in points.iter().step_by(2) {
        let faster = match p.faster {
            Where::Cpu => "CPU",
            Where::Gpu => "GPU",
            Where::CannotTell => "cannot tell",
            Where::Unavailable => "–",
        };
        table.row([p.batch.to_string(), band(&p.cpu).1, band(&p.gpu).1, faster.into()]);
    }
    Ok(table.write(out)?)
}
