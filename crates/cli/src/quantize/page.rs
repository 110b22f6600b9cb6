//! What was found, as a page, as JSON and as a picture.

use super::Args;
use super::study::{Form, Outcome};
use crate::out;
use anyhow::Result;
use schwann::plan::{bytes, seconds};
use schwann::prof::plot::{Anchor, Drawing, Ink, Size};
use schwann::quant::Errors;
use serde_json::{Value, json};
use std::io::Write;

fn form(form: &Form) -> String {
    match form {
        Form::Kept => "kept".into(),
        Form::Half(to) => to.to_string(),
        Form::Quantized(scheme) => scheme.to_string(),
    }
}

/// A share for people: `1.3%`.
fn share(part: Option<f64>) -> String {
    match part {
        None => "–".into(),
        Some(0.0) => "0".into(),
        Some(part) if part < 1e-4 => format!("{:.1e}%", 100.0 * part),
        Some(part) => format!("{:.2}%", 100.0 * part),
    }
}

fn decibels(errors: &Errors) -> String {
    errors.snr.map_or("–".into(), |snr| format!("{snr:.1} dB"))
}

/// Close to 1 it says by how much it is less.
fn cosine(errors: &Errors) -> String {
    match errors.cosine {
        None => "–".into(),
        Some(cosine) if cosine > 0.999 => format!("1−{:.0e}", (1.0 - cosine).max(0.0)),
        Some(cosine) => format!("{cosine:.4}"),
    }
}

pub(super) fn show(args: &Args, found: &Outcome) -> Result<()> {
    let mut out = out::stdout();
    // What it took before is in the line below; the error as a share of the weights is what SNR says.
    let headings = ["layer", ">out × in", "becomes", ">bytes", ">largest", ">RMS", ">SNR", ">cosine"];
    let mut table = out::Table::new(&headings);
    for row in &found.rows {
        let kept = row.form == Form::Kept;
        let unless_kept = |text: String| if kept { "–".into() } else { text };
        table.row([
            row.name.clone(),
            format!("{} × {}", row.shape[0], row.shape[1]),
            form(&row.form),
            bytes(row.bytes[if kept { 0 } else { 1 }] as u64),
            unless_kept(format!("{:.1e}", row.errors.max)),
            unless_kept(format!("{:.1e}", row.errors.rms)),
            unless_kept(decibels(&row.errors)),
            unless_kept(cosine(&row.errors)),
        ]);
    }
    table.write(&mut out)?;
    writeln!(out)?;
    let (before, after) = (found.bytes_before, found.bytes());
    let times = before as f64 / after.max(1) as f64;
    line(&mut out, "weights", &format!("{} → {}, {times:.2}× smaller", bytes(before as u64), bytes(after as u64)))?;
    let on =
        if found.sampled { "on your samples" } else { "on random numbers from −1 to 1; --calibrate takes samples" };
    let errors = format!(
        "off by {} of their root mean square, at most {:.3e}, cosine {} (measured {on})",
        share(found.errors.relative),
        found.errors.max,
        cosine(&found.errors),
    );
    line(&mut out, "outputs", &errors)?;
    if let Some([first, last]) = found.ends {
        let ends =
            format!("off by {} at the first step, {} at the last (measured)", share(Some(first)), share(Some(last)));
        line(&mut out, "over time", &ends)?;
    }
    if let Some([then, now]) = &found.times {
        let ratio = then.min_s / now.min_s;
        let noisy = if then.noisy() || now.noisy() { "; something else was running" } else { "" };
        let (then, now) = (seconds(then.min_s), seconds(now.min_s));
        line(&mut out, "time", &format!("{then} → {now}, {ratio:.2}× (the least, measured in turns{noisy})"))?;
        let halves = found.rows.iter().any(|row| matches!(row.form, Form::Half(_)));
        if ratio < 1.0 && !halves && args.activations != Some(super::Activations::Int8) {
            line(&mut out, "", "With --activations int8 products are in integers, which is faster.")?;
        }
    }
    line(&mut out, "with", &found.sizes)?;
    match &args.output {
        Some(path) => line(&mut out, "wrote", &path.display().to_string())?,
        None => line(&mut out, "wrote", "nothing: -o FILE keeps the network")?,
    }
    Ok(out.flush()?)
}

/// A line of the page: what, and how much.
fn line(out: &mut dyn Write, what: &str, text: &str) -> Result<()> {
    let first = format!("{what:<10} ");
    Ok(writeln!(out, "{}", out::wrap(&out::printable(text), &first, &" ".repeat(first.len()), out::width()))?)
}

fn errors(errors: &Errors) -> Value {
    json!({
        "max": finite(errors.max), "rms": finite(errors.rms), "relative": errors.relative, "snr_db": errors.snr,
        "cosine": errors.cosine, "provenance": "measured",
    })
}

fn finite(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}

pub(super) fn json(args: &Args, found: &Outcome) -> Value {
    let row = |row: &super::study::Row| {
        json!({
            "layer": row.name, "outputs": row.shape[0], "inputs": row.shape[1],
            "becomes": match &row.form {
                Form::Kept => Value::Null,
                Form::Half(to) => json!(to.to_string()),
                Form::Quantized(scheme) => json!(scheme),
            },
            "bytes_before": row.bytes[0], "bytes_after": row.bytes[1],
            "weights": match row.form { Form::Kept => Value::Null, _ => errors(&row.errors) },
        })
    };
    json!({
        "file": args.file.to_string_lossy(),
        "written": args.output.as_ref().map(|p| p.to_string_lossy().into_owned()),
        "layers": found.rows.iter().map(row).collect::<Vec<_>>(),
        "bytes_before": found.bytes_before, "bytes_after": found.bytes(),
        "outputs": errors(&found.errors),
        "first_and_last_step": found.ends,
        "inputs": found.sizes, "samples": found.sampled,
        "times": found.times.as_ref().map(|[then, now]| json!({
            "before": then, "after": now, "speedup": then.min_s / now.min_s, "provenance": "measured",
        })),
    })
}

/// For each layer a bar of its error and one of its size, as shares of what it was.
pub(super) fn picture(found: &Outcome) -> Drawing {
    const LINE: f64 = 26.0;
    const TOP: f64 = 40.0;
    const NAMES: f64 = 250.0;
    const BAR: f64 = 300.0;
    let height = TOP + LINE * found.rows.len() as f64 + 30.0;
    let mut d = Drawing::new(Size { width: 1000.0, height }, "Layers: error and size after quantization");
    let most = found.rows.iter().filter_map(|r| r.errors.relative).fold(0.0, f64::max).max(1e-9);
    let second = NAMES + BAR + 90.0;
    d.text(NAMES, 20.0, Anchor::Start, 12.0, Ink::Muted, "error of the weights, of their root mean square");
    d.text(second, 20.0, Anchor::Start, 12.0, Ink::Muted, "bytes, of what they were");
    for (i, row) in found.rows.iter().enumerate() {
        let y = TOP + LINE * i as f64;
        d.text(NAMES - 8.0, y + 13.0, Anchor::End, 12.0, Ink::Text, out::cut(&row.name, 34));
        let (error, size) = (row.errors.relative.unwrap_or(0.0), row.bytes[1] as f64 / row.bytes[0].max(1) as f64);
        let words = form(&row.form);
        d.rect(NAMES, y, (BAR * error / most).max(1.0), 16.0, Ink::Bad).titled(words.clone());
        let said = if row.form == Form::Kept { "kept".into() } else { share(row.errors.relative) };
        d.text(NAMES + BAR * error / most + 6.0, y + 13.0, Anchor::Start, 11.0, Ink::Muted, said);
        d.rect(second, y, 200.0, 16.0, Ink::Grid);
        d.rect(second, y, (200.0 * size).max(1.0), 16.0, Ink::Good).titled(words);
        d.text(second + 206.0, y + 13.0, Anchor::Start, 11.0, Ink::Muted, bytes(row.bytes[1] as u64));
    }
    let y = TOP + LINE * found.rows.len() as f64 + 16.0;
    let words = format!(
        "outputs off by {}; weights {} → {}",
        share(found.errors.relative),
        bytes(found.bytes_before as u64),
        bytes(found.bytes() as u64)
    );
    d.text(NAMES, y, Anchor::Start, 12.0, Ink::Text, words);
    d
}
