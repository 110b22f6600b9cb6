//! A circuit as text for a terminal: its layers, and its matrix in as few characters as fit.

use super::{Group, Picture, Role};
use crate::wiring::Wiring;
use std::iter::zip;
use std::ops::Range;

const EXCITES: &str = "\x1b[38;5;39m";
const INHIBITS: &str = "\x1b[38;5;208m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";
/// The columns for the names of rows.
const MARGIN: usize = 9;
/// No terminal is wider, or shows more inputs at once.
const WIDEST: usize = 500;
const MOST_INPUT_ROWS: usize = 64;

impl Wiring {
    /// The circuit as text: its layers and its matrix, rows to columns. Where `width` characters do not hold a neuron
    /// each, a character stands for several, the darker the denser. With `colour`, it has escape codes of terminals.
    pub fn to_text(&self, width: usize, colour: bool) -> String {
        let picture = Picture::new(self);
        let mut out = format!("{}\n", picture.caption);
        let names: Vec<String> = picture.groups.iter().map(|g| format!("{} {}", g.name, g.nodes.len())).collect();
        out += &format!("{}\n\n", names.join(" → "));
        out += &matrix(&picture, width, colour);
        out
    }
}

/// Rows are sources, columns are destinations.
fn matrix(picture: &Picture<'_>, width: usize, colour: bool) -> String {
    let columns: Vec<&Group> = picture.groups.iter().filter(|g| g.role != Role::Input).collect();
    let room = width.clamp(16, WIDEST).saturating_sub(MARGIN + columns.len()).max(columns.len());
    let cells = |per: usize| columns.iter().map(|g| g.nodes.len().div_ceil(per)).sum::<usize>();
    let per = (1..=picture.role.len()).find(|&per| cells(per) <= room).unwrap_or(1);

    // Which bin a node is in, and how many synapses of each polarity there are between two bins.
    let mut bin = vec![0; picture.role.len()];
    let (mut size, mut ranges) = (vec![], vec![]);
    for group in &picture.groups {
        let first = size.len();
        let per = if group.role == Role::Input { per.max(group.nodes.len().div_ceil(MOST_INPUT_ROWS)) } else { per };
        for chunk in group.nodes.chunks(per) {
            chunk.iter().for_each(|&node| bin[node] = size.len());
            size.push(chunk.len());
        }
        ranges.push(first..size.len());
    }
    let bins = size.len();
    let mut counts = vec![(0usize, 0usize); bins * bins];
    for (from, to, polarity) in picture.synapses() {
        let count = &mut counts[bin[from] * bins + bin[to]];
        if polarity > 0 { count.0 += 1 } else { count.1 += 1 }
    }

    let paint = |style: &str, text: &str| if colour { format!("{style}{text}{PLAIN}") } else { text.to_owned() };
    let density = |(from, to): (usize, usize)| {
        let (excite, inhibit) = counts[from * bins + to];
        (excite + inhibit) as f64 / (size[from] * size[to]) as f64
    };
    // Of whole characters: what is left over at the end of a layer is a few neurons, and soon dense.
    let is_whole = |range: &Range<usize>, bin: usize| 2 * size[bin] > size[range.start];
    let whole: Vec<usize> = ranges.iter().flat_map(|r| r.clone().filter(|&b| is_whole(r, b))).collect();
    let densest =
        whole.iter().flat_map(|&from| whole.iter().map(move |&to| (from, to))).map(density).fold(0.0, f64::max);
    let cell = |from: usize, to: usize| {
        let (excite, inhibit) = counts[from * bins + to];
        let style = if excite >= inhibit { EXCITES } else { INHIBITS };
        match (excite + inhibit, size[from] * size[to]) {
            (0, _) => paint(DIM, "·"),
            (_, 1) => paint(style, if excite > 0 { "+" } else { "−" }),
            _ => {
                let shade = (4.0 * density((from, to)) / densest).ceil() as usize;
                paint(style, ["░", "▒", "▓", "█"][shade.clamp(1, 4) - 1])
            }
        }
    };
    let any = |rows: &Range<usize>, columns: &Range<usize>| {
        rows.clone().any(|from| columns.clone().any(|to| counts[from * bins + to] != (0, 0)))
    };
    let columns: Vec<_> = zip(&picture.groups, &ranges).filter(|(g, _)| g.role != Role::Input).collect();

    let mut out = match size.iter().all(|&nodes| nodes == 1) {
        true => "rows send, columns receive; + excites, − inhibits\n".to_owned(),
        false => format!(
            "rows send, columns receive; a character is up to {} × {per}, █ where {:.0} % or more have a synapse{}\n",
            size.iter().max().unwrap_or(&1),
            100.0 * densest,
            if colour { ", in the colour of most" } else { "" }
        ),
    };
    let rule = |first: &str, other: &str| {
        let parts: Vec<String> = columns.iter().map(|(_, range)| "─".repeat(range.len())).collect();
        paint(DIM, &format!("{}{first}{}", " ".repeat(MARGIN), parts.join(other))) + "\n"
    };
    let heading: Vec<String> = columns.iter().map(|(group, range)| heading(group, range.len())).collect();
    out += &format!("{} {}\n", " ".repeat(MARGIN), heading.join(" ").trim_end());
    let mut first = true;
    for (group, range) in zip(&picture.groups, &ranges) {
        // Neurons that send nothing, such as the motor neurons of an NCP, would be a block of nothing.
        if !columns.iter().any(|(_, columns)| any(range, columns)) {
            continue;
        }
        out += &if first { rule("┌", "┬") } else { rule("├", "┼") };
        first = false;
        for (k, from) in range.clone().enumerate() {
            // The name of the group where it begins; for single inputs and neurons their own.
            let name = match (k, range.len() == group.nodes.len()) {
                (_, true) => format!("{} {:>4}", short(group), picture.label(group.nodes[k])),
                (0, false) => group.name.clone(),
                _ => String::new(),
            };
            out += &format!("{name:>width$.width$} ", width = MARGIN - 1);
            for (_, columns) in &columns {
                out += &paint(DIM, "│");
                match any(range, columns) {
                    true => Range::clone(columns).for_each(|to| out += &cell(from, to)),
                    false => out += &" ".repeat(columns.len()),
                }
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
    }
    out
}

/// A name over so many columns, cut where it must be.
fn heading(group: &Group, width: usize) -> String {
    let name = if group.name.len() <= width { &group.name } else { short(group) };
    format!("{name:<width$.width$}")
}

fn short(group: &Group) -> &'static str {
    match group.role {
        Role::Input => "in",
        Role::Inter => "int",
        Role::Command => "com",
        Role::Motor => "mot",
    }
}
