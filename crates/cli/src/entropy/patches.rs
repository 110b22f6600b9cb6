//! `schwann entropy --patches`: where the patches of a file begin.

use super::{Args, MOST_WINDOWS, read};
use crate::{Outcome, out};
use anyhow::{Context, Result, bail};
use schwann::nn::entropy::{Patches, Rule};
use std::io::Write;
use std::time::Instant;

/// Rows of the picture of lengths.
const ROWS: usize = 8;

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let rule =
        Rule { window: args.window, threshold: args.threshold, rise: args.rise, least: args.least, most: args.most };
    let mut patches = Patches::new(rule).context("--threshold, --rise, --least, --most")?;
    let mut starts = vec![];
    let begun = Instant::now();
    let (name, bytes) = read(&args.file, |name, piece| {
        patches.feed(piece, &mut starts);
        if starts.len() > MOST_WINDOWS {
            bail!("{name} has more than {MOST_WINDOWS} patches; a larger --least gives fewer");
        }
        Ok(())
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let ends = starts.iter().skip(1).copied().chain([bytes]);
    let lengths: Vec<u64> = starts.iter().zip(ends).map(|(start, end)| end - start).collect();
    let mut out = out::stdout();
    match args {
        Args { json: true, .. } => {
            let head = serde_json::json!({
                "file": name, "bytes": bytes, "window": args.window, "threshold": args.threshold, "rise": args.rise,
                "least": args.least, "most": args.most,
            });
            // Patches are written one by one: there may be very many.
            write!(out, "{},\"patches\":[", head.to_string().trim_end_matches('}'))?;
            for (k, (start, length)) in starts.iter().zip(&lengths).enumerate() {
                let comma = if k == 0 { "\n" } else { ",\n" };
                write!(out, "{comma}{{\"offset\":{start},\"bytes\":{length}}}")?;
            }
            writeln!(out, "\n]}}")?;
        }
        Args { csv: true, .. } => {
            writeln!(out, "offset,bytes")?;
            for (start, length) in starts.iter().zip(&lengths) {
                writeln!(out, "{start},{length}")?;
            }
        }
        _ => page(&mut out, &name, bytes, &lengths)?,
    }
    out.flush()?;
    let rate = schwann::plan::bytes((bytes as f64 / seconds.max(1e-9)) as u64);
    out::detail(&format!("{} (measured, with reading): {rate}/s", schwann::plan::seconds(seconds)));
    Ok(Outcome::Done)
}

fn page(out: &mut dyn Write, name: &str, bytes: u64, lengths: &[u64]) -> Result<()> {
    let title = out::wrap(&format!("Patches of {name}"), "", "  ", out::width());
    writeln!(out, "{}", out::paint(out::TITLE, title))?;
    let mean = bytes as f64 / lengths.len() as f64;
    let (least, most) = (lengths.iter().min().unwrap_or(&0), lengths.iter().max().unwrap_or(&0));
    let s = if lengths.len() == 1 { "" } else { "es" };
    writeln!(
        out,
        "  {}, {} patch{s}: {mean:.1} bytes each, {least} to {most}\n",
        schwann::plan::bytes(bytes),
        lengths.len()
    )?;
    // Lengths in up to so many groups of the same width.
    let width = (most - least + 1).div_ceil(ROWS as u64).max(1);
    let mut groups = vec![0usize; ((most - least) / width + 1) as usize];
    lengths.iter().for_each(|length| groups[((length - least) / width) as usize] += 1);
    let fullest = groups.iter().copied().max().unwrap_or(1).max(1);
    for (k, count) in groups.iter().enumerate() {
        let (from, to) = (least + k as u64 * width, (least + (k as u64 + 1) * width - 1).min(*most));
        let name = if from == to { from.to_string() } else { format!("{from}–{to}") };
        let bar = "█".repeat((count * 40).div_ceil(fullest));
        writeln!(out, "  {name:>13} bytes  {} {count}", out::paint(out::NAME, format!("{bar:<40}")))?;
    }
    Ok(())
}
