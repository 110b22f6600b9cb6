//! The page for the terminal: figures, a strip of the whole file, and the windows at both ends.

use super::Curve;
use crate::out;
use anyhow::Result;
use std::io::Write;

/// Lines of the strip; each has eight levels.
const LINES: usize = 4;
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// How many of the windows with the least and the most entropy are listed.
const LISTED: usize = 5;

pub(super) fn show(curve: &Curve) -> Result<()> {
    let mut out = out::stdout();
    let many = curve.entropy.len();
    let s = if many == 1 { "" } else { "s" };
    let size = schwann::plan::bytes(curve.bytes);
    writeln!(
        out,
        "{}",
        out::paint(out::TITLE, out::wrap(&format!("Entropy of {}", curve.name), "", "  ", out::width()))
    )?;
    let apart = match curve.windows.step == curve.windows.window {
        true => String::new(),
        false => format!(", one every {}", curve.windows.step),
    };
    let of = if many == 1 { curve.bytes.min(curve.windows.window as u64) } else { curve.windows.window as u64 };
    writeln!(out, "  {size}, {many} window{s} of {of} bytes{apart}\n")?;

    let order = order(&curve.entropy);
    let at = |k: usize| curve.entropy[order[k]];
    writeln!(out, "  whole file  {:.4}  ({:.3} bits a byte)", curve.whole, curve.whole * 8.0)?;
    writeln!(out, "  windows     {:.4} least, {:.4} median, {:.4} most\n", at(0), at((many - 1) / 2), at(many - 1))?;

    let width = out::width().min(80) - 6;
    for line in strip(&curve.entropy, width) {
        writeln!(out, "{line}")?;
    }
    let end = schwann::plan::bytes(curve.bytes);
    let gap = width.saturating_sub(1 + end.len());
    writeln!(out, "{}\n", out::paint(out::DIM, format!("     0{}{end}", " ".repeat(gap))))?;

    if many > 1 {
        list(&mut out, curve, "Least", order.iter().copied().take(LISTED))?;
        writeln!(out)?;
        list(&mut out, curve, "Most", order.iter().rev().copied().take(LISTED))?;
    }
    out.flush()?;
    let rate = schwann::plan::bytes((curve.bytes as f64 / curve.seconds.max(1e-9)) as u64);
    let took = schwann::plan::seconds(curve.seconds);
    out::detail(&format!("{took} on {} (measured, with reading): {rate}/s", curve.backend));
    Ok(())
}

/// The windows by entropy; equal ones as they come in the file.
fn order(entropy: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..entropy.len()).collect();
    order.sort_by(|a, b| entropy[*a].total_cmp(&entropy[*b]));
    order
}

fn list(out: &mut dyn Write, curve: &Curve, title: &str, windows: impl Iterator<Item = usize>) -> Result<()> {
    let mut table = out::Table::new(&[title, ">offset", ">hex", ">bytes", ">entropy"]);
    for k in windows {
        let offset = curve.offset(k);
        let entropy = format!("{:.4}", curve.entropy[k]);
        table.row([String::new(), offset.to_string(), format!("{offset:#x}"), curve.length(k).to_string(), entropy]);
    }
    table.write(out)?;
    Ok(())
}

/// The file from left to right, from 0 at the bottom to 1 at the top: each column is the mean of its windows.
fn strip(entropy: &[f32], width: usize) -> Vec<String> {
    let columns: Vec<f64> = spread(entropy.len(), width)
        .map(|windows| {
            let part = &entropy[windows];
            part.iter().map(|e| f64::from(*e)).sum::<f64>() / part.len() as f64
        })
        .collect();
    let lines = (0..LINES).rev().map(|line| {
        let cell = |mean: &f64| {
            let level = mean * (LINES * 8) as f64 - (line * 8) as f64;
            // What is above 0 is seen, if only a little.
            let least = if line == 0 && *mean > 0.0 { 1.0 } else { 0.0 };
            LEVELS[level.round().clamp(least, 8.0) as usize]
        };
        let scale = match line {
            0 => "0",
            _ if line + 1 == LINES => "1",
            _ => " ",
        };
        let cells: String = columns.iter().map(cell).collect();
        format!("  {} {}", out::paint(out::DIM, format!("{scale} ")), out::paint(out::NAME, cells.trim_end()))
    });
    lines.collect()
}

/// `many` things dealt to at most `columns` columns in order, none of them empty; where there are fewer things, each is
/// repeated to fill the width.
pub(super) fn spread(many: usize, columns: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..columns).map(move |c| {
        let start = c * many / columns;
        let end = ((c + 1) * many / columns).max(start + 1);
        start..end.min(many)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_is_as_wide_as_the_page_and_shows_both_ends() {
        let entropy: Vec<f32> = [vec![0.0; 50], vec![0.5; 50], vec![1.0; 50]].concat();
        let lines: Vec<String> =
            strip(&entropy, 30).iter().map(|l| anstream::adapter::strip_str(l).to_string()).collect();
        assert_eq!(lines[0], format!("  1  {}{}", " ".repeat(20), "█".repeat(10)));
        assert_eq!(lines[3], format!("  0  {}{}", " ".repeat(10), "█".repeat(20)));
        assert_eq!(strip(&[1.0], 7)[0].matches('█').count(), 7);
    }

    #[test]
    fn every_window_is_in_exactly_one_column_where_there_are_enough() {
        for (many, columns) in [(74, 74), (75, 74), (1000, 74), (100_001, 13)] {
            let ranges: Vec<_> = spread(many, columns).collect();
            assert_eq!((ranges[0].start, ranges[columns - 1].end), (0, many));
            assert!(ranges.windows(2).all(|w| w[0].end == w[1].start));
        }
        assert!(spread(3, 10).all(|r| r.len() == 1 && r.end <= 3));
    }
}
