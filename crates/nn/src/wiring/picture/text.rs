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
        let names: Vec<String> = picture.groups.iter().map(|g| format!("{} {}", g.name, g.nodes.len())).collect();
        format!("{}\n{}\n\n{}", picture.caption, names.join(" → "), matrix(&picture, width, colour))
    }
}

/// Nodes by the character that stands for them, and the synapses between any two characters.
struct Bins {
    /// Neurons a character.
    per: usize,
    /// The characters of each group.
    groups: Vec<Range<usize>>,
    /// How many nodes each character stands for.
    size: Vec<usize>,
    /// Those that excite and those that inhibit, rows to columns.
    counts: Vec<(usize, usize)>,
    /// The highest share of pairs with a synapse, of whole characters: what is left over at the end of a layer is a few
    /// neurons, and soon dense.
    densest: f64,
}

impl Bins {
    /// As fine as fits into so many columns.
    fn new(picture: &Picture<'_>, room: usize) -> Bins {
        let columns = || picture.groups.iter().filter(|g| g.role != Role::Input);
        let cells = |per: usize| columns().map(|g| g.nodes.len().div_ceil(per)).sum::<usize>();
        let per = (1..picture.role.len()).find(|&per| cells(per) <= room).unwrap_or(picture.role.len());
        let mut bins = Bins { per, groups: vec![], size: vec![], counts: vec![], densest: 0.0 };
        let mut bin_of = vec![0; picture.role.len()];
        for group in &picture.groups {
            let first = bins.size.len();
            let most_rows = if group.role == Role::Input { MOST_INPUT_ROWS } else { usize::MAX };
            for chunk in group.nodes.chunks(per.max(group.nodes.len().div_ceil(most_rows))) {
                chunk.iter().for_each(|&node| bin_of[node] = bins.size.len());
                bins.size.push(chunk.len());
            }
            bins.groups.push(first..bins.size.len());
        }
        bins.counts = vec![(0, 0); bins.size.len() * bins.size.len()];
        for (from, to, polarity) in picture.synapses() {
            let count = &mut bins.counts[bin_of[from] * bins.size.len() + bin_of[to]];
            if polarity > 0 { count.0 += 1 } else { count.1 += 1 }
        }
        let is_whole = |group: &Range<usize>, bin: usize| 2 * bins.size[bin] > bins.size[group.start];
        let whole: Vec<usize> = bins.groups.iter().flat_map(|g| g.clone().filter(|&b| is_whole(g, b))).collect();
        let pairs = whole.iter().flat_map(|&from| whole.iter().map(move |&to| (from, to)));
        bins.densest = pairs.map(|(from, to)| bins.density(from, to)).fold(0.0, f64::max);
        bins
    }

    fn count(&self, from: usize, to: usize) -> (usize, usize) {
        self.counts[from * self.size.len() + to]
    }

    fn density(&self, from: usize, to: usize) -> f64 {
        let (excite, inhibit) = self.count(from, to);
        (excite + inhibit) as f64 / (self.size[from] * self.size[to]) as f64
    }

    fn any(&self, rows: &Range<usize>, columns: &Range<usize>) -> bool {
        rows.clone().any(|from| columns.clone().any(|to| self.count(from, to) != (0, 0)))
    }

    /// The style and the character for the synapses between two characters.
    fn cell(&self, from: usize, to: usize) -> (&'static str, char) {
        let (excite, inhibit) = self.count(from, to);
        let style = if excite >= inhibit { EXCITES } else { INHIBITS };
        match (excite + inhibit, self.size[from] * self.size[to]) {
            (0, _) => (DIM, '·'),
            (_, 1) => (style, if excite > 0 { '+' } else { '−' }),
            _ => {
                let shade = (4.0 * self.density(from, to) / self.densest).ceil() as usize;
                (style, ['░', '▒', '▓', '█'][shade.clamp(1, 4) - 1])
            }
        }
    }

    fn legend(&self, colour: bool) -> String {
        if self.size.iter().all(|&nodes| nodes == 1) {
            return "rows send, columns receive; + excites, − inhibits\n".into();
        }
        format!(
            "rows send, columns receive; a character is up to {} × {}, █ where {:.0} % or more have a synapse{}\n",
            self.size.iter().max().unwrap_or(&1),
            self.per,
            100.0 * self.densest,
            if colour { ", in the colour of most" } else { "" }
        )
    }
}

/// Rows are sources, columns are destinations.
fn matrix(picture: &Picture<'_>, width: usize, colour: bool) -> String {
    let is_column = |group: &Group| group.role != Role::Input;
    let rules = picture.groups.iter().filter(|g| is_column(g)).count();
    let bins = Bins::new(picture, width.min(WIDEST).saturating_sub(MARGIN + rules).max(rules));
    let columns: Vec<_> = zip(&picture.groups, &bins.groups).filter(|(group, _)| is_column(group)).collect();
    let rule = |first: &str, other: &str| {
        let parts: Vec<String> = columns.iter().map(|(_, column)| "─".repeat(column.len())).collect();
        format!("{}{first}{}", " ".repeat(MARGIN), parts.join(other))
    };

    let mut out = Ink { text: bins.legend(colour), colour, style: PLAIN };
    let headings: Vec<String> = columns.iter().map(|(group, column)| heading(group, column.len())).collect();
    out.put(PLAIN, &format!("{} {}", " ".repeat(MARGIN), headings.join(" ")));
    out.end_line();
    let mut first = true;
    for (group, row) in zip(&picture.groups, &bins.groups) {
        let linked: Vec<bool> = columns.iter().map(|(_, column)| bins.any(row, column)).collect();
        // Neurons that send nothing, such as the motor neurons of an NCP, would be a block of nothing.
        if !linked.contains(&true) {
            continue;
        }
        out.put(DIM, &if first { rule("┌", "┬") } else { rule("├", "┼") });
        out.end_line();
        first = false;
        for (k, from) in row.clone().enumerate() {
            // The name of the group where it begins; for single inputs and neurons their own.
            let name = match (k, row.len() == group.nodes.len()) {
                (_, true) => format!("{} {:>4}", short(group), picture.label(group.nodes[k])),
                (0, false) => group.name.clone(),
                _ => String::new(),
            };
            out.put(PLAIN, &format!("{name:>width$.width$} ", width = MARGIN - 1));
            for ((_, column), &linked) in zip(&columns, &linked) {
                out.put(DIM, "│");
                for to in Range::clone(column) {
                    let (style, sign) = if linked { bins.cell(from, to) } else { (PLAIN, ' ') };
                    out.put(style, sign.encode_utf8(&mut [0; 4]));
                }
            }
            out.end_line();
        }
    }
    out.text
}

/// Text with styles, an escape code only where the style changes.
struct Ink {
    text: String,
    colour: bool,
    style: &'static str,
}

impl Ink {
    fn put(&mut self, style: &'static str, text: &str) {
        // Where there is nothing to see, one style is as good as another.
        if self.colour && self.style != style && !text.trim().is_empty() {
            self.text += if self.style == PLAIN { "" } else { PLAIN };
            self.text += if style == PLAIN { "" } else { style };
            self.style = style;
        }
        self.text += text;
    }

    fn end_line(&mut self) {
        self.text.truncate(self.text.trim_end_matches(' ').len());
        if self.style != PLAIN {
            self.text += PLAIN;
            self.style = PLAIN;
        }
        self.text.push('\n');
    }
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
