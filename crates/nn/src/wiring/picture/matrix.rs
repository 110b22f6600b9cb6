//! A circuit as a matrix, for when lines would hide each other: a row for each source, a column for each destination.

use super::{Group, Picture, Role};
use std::fmt::Write;

/// Between groups.
const APART: f64 = 6.0;

/// Where the nodes of some groups are along one axis.
struct Axis<'a> {
    groups: Vec<(&'a Group, f64, f64)>,
    place: Vec<f64>,
    length: f64,
}

impl<'a> Axis<'a> {
    fn new(picture: &'a Picture<'_>, cell: f64, shown: impl Fn(&Group) -> bool) -> Axis<'a> {
        let mut axis = Axis { groups: vec![], place: vec![0.0; picture.role.len()], length: 0.0 };
        for group in picture.groups.iter().filter(|g| shown(g)) {
            let start = axis.length + if axis.groups.is_empty() { 0.0 } else { APART };
            for (i, &node) in group.nodes.iter().enumerate() {
                axis.place[node] = start + i as f64 * cell;
            }
            axis.length = start + group.nodes.len() as f64 * cell;
            axis.groups.push((group, start, axis.length - start));
        }
        axis
    }
}

/// Draws with the top left corner at (x, y), about as high as `room`; gives how far to the right and down it goes.
pub(super) fn draw(out: &mut String, picture: &Picture<'_>, (x, y): (f64, f64), room: f64) -> (f64, f64) {
    let mut sends = vec![false; picture.role.len()];
    picture.synapses().for_each(|s| sends[s.0] = true);
    let is_source = |group: &Group| group.nodes.iter().any(|&node| sends[node]);
    let sources: usize = picture.groups.iter().filter(|g| is_source(g)).map(|g| g.nodes.len()).sum();

    let (left, top) = (x + 70.0, y + 44.0);
    let cell = ((room - 64.0) / sources.max(1) as f64).clamp(2.0, 18.0);
    let rows = Axis::new(picture, cell, is_source);
    let columns = Axis::new(picture, cell, |group| group.role != Role::Input);
    let _ = writeln!(
        out,
        "<text class=\"h\" x=\"{x:.1}\" y=\"{:.1}\">Every synapse: rows send, columns receive</text>",
        y + 4.0
    );
    for &(group, start, height) in &rows.groups {
        if height >= 10.0 {
            let middle = top + start + height / 2.0 + 4.0;
            let _ = write!(out, "<text class=\"s e\" x=\"{:.1}\" y=\"{middle:.1}\">{}</text>", left - 8.0, group.name);
        }
        for &(_, column, width) in &columns.groups {
            let (cx, cy) = (left + column, top + start);
            let _ = write!(out, "<path class=\"g\" d=\"M{cx:.1} {cy:.1}h{width:.1}v{height:.1}h-{width:.1}z\"/>");
        }
    }
    for &(group, start, width) in &columns.groups {
        if width >= 7.0 * group.name.len() as f64 {
            let middle = left + start + width / 2.0;
            let _ = write!(out, "<text class=\"s m\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>", top - 8.0, group.name);
        }
    }
    // One path for each polarity: a full square excites, a bar inhibits.
    for (class, sign, inset, height) in [("pf", 1, 0.1, 0.8), ("qf", -1, 0.3, 0.4)] {
        let mut d = String::new();
        for (from, to, _) in picture.synapses().filter(|s| s.2 == sign) {
            let (cx, cy) = (left + columns.place[to] + 0.1 * cell, top + rows.place[from] + inset * cell);
            let _ = write!(d, "M{cx:.1} {cy:.1}h{:.1}v{:.1}h-{:.1}z", 0.8 * cell, height * cell, 0.8 * cell);
        }
        let _ = writeln!(out, "\n<path class=\"{class}\" d=\"{d}\"/>");
    }
    // A heading is as wide as this, even over a small matrix.
    (left + columns.length.max(200.0), top + rows.length)
}
