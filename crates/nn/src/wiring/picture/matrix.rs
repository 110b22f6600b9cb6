//! A circuit as a matrix, for when lines would hide each other: a row for each source, a column for each destination.

use super::{Group, Picture, Role};
use schwann_core::svg::{Path, Svg};

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

/// A rectangle, by its top left corner and its size.
fn cell_at(path: Path, (x, y): (f64, f64), (width, height): (f64, f64)) -> Path {
    path.jump(x, y).horizontal(x + width).vertical(y + height).horizontal(x).close()
}

/// Draws with the top left corner at (x, y), about as high as `room`; gives how far to the right and down it goes.
pub(super) fn draw(out: &mut Svg, picture: &Picture<'_>, (x, y): (f64, f64), room: f64) -> (f64, f64) {
    let mut sends = vec![false; picture.role.len()];
    picture.synapses().for_each(|s| sends[s.0] = true);
    let is_source = |group: &Group| group.nodes.iter().any(|&node| sends[node]);
    let sources: usize = picture.groups.iter().filter(|g| is_source(g)).map(|g| g.nodes.len()).sum();

    let (left, top) = (x + 70.0, y + 44.0);
    let cell = ((room - 64.0) / sources.max(1) as f64).clamp(2.0, 18.0);
    let rows = Axis::new(picture, cell, is_source);
    let columns = Axis::new(picture, cell, |group| group.role != Role::Input);
    out.text(x, y + 4.0).class("h").words("Every synapse: rows send, columns receive");
    for &(group, start, height) in &rows.groups {
        if height >= 10.0 {
            let middle = top + start + height / 2.0 + 4.0;
            out.text(left - 8.0, middle).class("s e").words(&group.name);
        }
        for &(_, column, width) in &columns.groups {
            out.path(&cell_at(Path::default(), (left + column, top + start), (width, height))).class("g").done();
        }
    }
    for &(group, start, width) in &columns.groups {
        if width >= 7.0 * group.name.len() as f64 {
            let middle = left + start + width / 2.0;
            out.text(middle, top - 8.0).class("s m").words(&group.name);
        }
    }
    // One path for each polarity: a full square excites, a bar inhibits.
    for (class, sign, inset, height) in [("pf", 1, 0.1, 0.8), ("qf", -1, 0.3, 0.4)] {
        let mut path = Path::default();
        for (from, to, _) in picture.synapses().filter(|s| s.2 == sign) {
            let corner = (left + columns.place[to] + 0.1 * cell, top + rows.place[from] + inset * cell);
            path = cell_at(path, corner, (0.8 * cell, height * cell));
        }
        out.path(&path).class(class).done();
    }
    // A heading is as wide as this, even over a small matrix.
    (left + columns.length.max(200.0), top + rows.length)
}
