//! Where the boxes of a layered picture go: Sugiyama's method, compactly.
//!
//! Longest paths give layers; an edge over several layers gets a point in each; barycentre sweeps order the layers, and
//! the order with the fewest crossings is kept; then each layer's boxes move as near to their neighbours as the space
//! between them allows, which is isotonic regression and has an exact solution.

use std::collections::HashMap;

/// Space between boxes of a layer, and between layers.
const GAP_X: f64 = 22.0;
const GAP_Y: f64 = 40.0;
const SWEEPS: usize = 24;
/// A row of boxes is no wider than this: what does not fit goes into the next row.
const MOST_WIDTH: f64 = 1180.0;

/// A finished layout.
pub(super) struct Layout {
    /// Left and top of each box.
    pub(super) at: Vec<(f64, f64)>,
    /// For each edge the points it goes through, from box to box; a pair of points with the same x is a straight piece.
    pub(super) routes: Vec<Vec<(f64, f64)>>,
    pub(super) width: f64,
    pub(super) height: f64,
    /// Top and bottom of each band.
    pub(super) bands: Vec<(f64, f64)>,
}

/// A box or a point of a long edge.
struct Point {
    layer: usize,
    width: f64,
    item: Option<usize>,
    x: f64,
    above: Vec<usize>,
    below: Vec<usize>,
}

impl Point {
    /// Whether it is a box that depends on nothing.
    fn is_source(&self) -> bool {
        self.item.is_some() && self.above.is_empty()
    }
}

/// Places boxes of these sizes; every edge goes from an earlier to a later one. Bands, one number a box, follow each
/// other from top to bottom.
pub(super) fn place(sizes: &[(f64, f64)], edges: &[(usize, usize)], bands: &[usize]) -> Layout {
    let layer = layers(sizes, edges, bands);
    let mut points: Vec<Point> = sizes
        .iter()
        .enumerate()
        .map(|(i, s)| Point { layer: layer[i], width: s.0, item: Some(i), x: 0.0, above: vec![], below: vec![] })
        .collect();
    // Every edge as a chain of points, one in each layer it crosses; edges from one box share theirs, as a trunk does.
    let mut chains = Vec::with_capacity(edges.len());
    let mut trunk: HashMap<(usize, usize), usize> = HashMap::new();
    for &(from, to) in edges {
        let mut chain = vec![from];
        for layer in layer[from] + 1..layer[to] {
            chain.push(*trunk.entry((from, layer)).or_insert_with(|| {
                points.push(Point { layer, width: 8.0, item: None, x: 0.0, above: vec![], below: vec![] });
                points.len() - 1
            }));
        }
        chain.push(to);
        for pair in chain.windows(2) {
            if !points[pair[0]].below.contains(&pair[1]) {
                points[pair[0]].below.push(pair[1]);
                points[pair[1]].above.push(pair[0]);
            }
        }
        chains.push(chain);
    }
    let count = layer.iter().max().map_or(0, |m| m + 1);
    let mut rows: Vec<Vec<usize>> = vec![vec![]; count];
    for (i, point) in points.iter().enumerate() {
        rows[point.layer].push(i);
    }
    order(&mut rows, &points);
    spread(&rows, &mut points);

    let left = points.iter().map(|p| p.x - p.width / 2.0).fold(f64::INFINITY, f64::min);
    let left = if left.is_finite() { left } else { 0.0 };
    points.iter_mut().for_each(|p| p.x -= left);
    let width = points.iter().map(|p| p.x + p.width / 2.0).fold(0.0, f64::max);
    let height_of =
        |row: &Vec<usize>| row.iter().filter_map(|&p| points[p].item).map(|i| sizes[i].1).fold(0.0, f64::max);
    let heights: Vec<f64> = rows.iter().map(height_of).collect();
    let mut tops = vec![];
    let mut y = 0.0;
    for h in &heights {
        tops.push(y);
        y += h + GAP_Y;
    }
    // A box sits in the middle of its row.
    let top = |i: usize| tops[layer[i]] + (heights[layer[i]] - sizes[i].1) / 2.0;
    let at: Vec<(f64, f64)> = (0..sizes.len()).map(|i| (points[i].x - sizes[i].0 / 2.0, top(i))).collect();
    let ends = ports(sizes.len(), &chains, &points, sizes);
    let routes = chains
        .iter()
        .zip(ends)
        .map(|(chain, end)| {
            let (from, to) = (chain[0], chain[chain.len() - 1]);
            let mut route = vec![(points[from].x, top(from) + sizes[from].1)];
            route.push((points[from].x, tops[layer[from]] + heights[layer[from]]));
            for &p in &chain[1..chain.len() - 1] {
                let row = points[p].layer;
                route.push((points[p].x, tops[row]));
                route.push((points[p].x, tops[row] + heights[row]));
            }
            route.push((points[to].x + end, tops[layer[to]]));
            route.push((points[to].x + end, top(to)));
            route
        })
        .collect();
    let mut reach = vec![(f64::INFINITY, 0.0f64); bands.iter().max().map_or(0, |m| m + 1)];
    for (i, &band) in bands.iter().enumerate() {
        let (from, to) = reach[band];
        reach[band] = (from.min(tops[layer[i]]), to.max(tops[layer[i]] + heights[layer[i]]));
    }
    Layout { at, routes, width, height: (y - GAP_Y).max(0.0), bands: reach }
}

/// The layer of each box: after everything it depends on and after every band before its own, in a row that has room.
/// What depends on nothing sits just above its first reader where its band allows it.
fn layers(sizes: &[(f64, f64)], edges: &[(usize, usize)], bands: &[usize]) -> Vec<usize> {
    let count = sizes.len();
    let mut into: Vec<Vec<usize>> = vec![vec![]; count];
    let mut readers: Vec<Vec<usize>> = vec![vec![]; count];
    for &(from, to) in edges {
        into[to].push(from);
        readers[from].push(to);
    }
    let mut layer = vec![0usize; count];
    let mut used: Vec<f64> = vec![];
    let mut start = 0;
    let last = bands.iter().max().copied().unwrap_or(0);
    for band in 0..=last {
        let mut end = start;
        for i in (0..count).filter(|i| bands[*i] == band) {
            let mut row = into[i].iter().map(|s| layer[*s] + 1).max().unwrap_or(start).max(start);
            let width = sizes[i].0 + GAP_X;
            loop {
                if used.len() <= row {
                    used.resize(row + 1, 0.0);
                }
                if used[row] == 0.0 || used[row] + width <= MOST_WIDTH {
                    break;
                }
                row += 1;
            }
            used[row] += width;
            layer[i] = row;
            end = end.max(row + 1);
        }
        start = end;
    }
    for i in (0..count).filter(|i| into[*i].is_empty()) {
        let Some(first) = readers[i].iter().map(|r| layer[*r]).min() else { continue };
        let width = sizes[i].0 + GAP_X;
        // Up to where its band ends, which is where its readers are or before.
        let within = (0..count).filter(|j| bands[*j] == bands[i]).map(|j| layer[j]).max().unwrap_or(0);
        let row = (first.max(1) - 1).min(within);
        if row > layer[i] && used[row] + width <= MOST_WIDTH {
            used[layer[i]] -= width;
            used[row] += width;
            layer[i] = row;
        }
    }
    // Rows that nobody is left in.
    let mut kept: Vec<usize> = layer.clone();
    kept.sort_unstable();
    kept.dedup();
    layer.iter().map(|l| kept.binary_search(l).unwrap_or(*l)).collect()
}

/// Orders every row by the mean place of its neighbours, down and up, and keeps the order with the fewest crossings.
fn order(rows: &mut Vec<Vec<usize>>, points: &[Point]) {
    let mut rank = vec![0usize; points.len()];
    let renumber = |rows: &[Vec<usize>], rank: &mut Vec<usize>| {
        rows.iter().for_each(|row| row.iter().enumerate().for_each(|(i, &p)| rank[p] = i));
    };
    renumber(rows, &mut rank);
    let mut best = (crossings(rows, points, &rank), rows.clone());
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        let sequence: Vec<usize> = if down { (0..rows.len()).collect() } else { (0..rows.len()).rev().collect() };
        for r in sequence {
            let key = |p: usize| {
                let near = if down { &points[p].above } else { &points[p].below };
                if near.is_empty() {
                    return rank[p] as f64;
                }
                near.iter().map(|&n| rank[n] as f64).sum::<f64>() / near.len() as f64
            };
            let mut row: Vec<(f64, usize)> = rows[r].iter().map(|&p| (key(p), p)).collect();
            row.sort_by(|a, b| a.0.total_cmp(&b.0));
            rows[r] = row.into_iter().map(|(_, p)| p).collect();
            rows[r].iter().enumerate().for_each(|(i, &p)| rank[p] = i);
        }
        let now = crossings(rows, points, &rank);
        if now < best.0 {
            best = (now, rows.clone());
        }
    }
    *rows = best.1;
}

/// How often edges between neighbouring rows cross.
fn crossings(rows: &[Vec<usize>], points: &[Point], rank: &[usize]) -> u64 {
    let mut total = 0;
    for row in rows {
        let mut ends: Vec<usize> = vec![];
        for &p in row {
            let mut to: Vec<usize> = points[p].below.iter().map(|&q| rank[q]).collect();
            to.sort_unstable();
            ends.extend(to);
        }
        // Inversions, by a tree of counts.
        let size = ends.iter().max().map_or(0, |m| m + 1);
        let mut tree = vec![0u64; size + 1];
        for (seen, &end) in ends.iter().enumerate() {
            let mut at = end + 1;
            let mut not_after = 0;
            while at > 0 {
                not_after += tree[at];
                at &= at - 1;
            }
            total += seen as u64 - not_after;
            let mut at = end + 1;
            while at <= size {
                tree[at] += 1;
                at += at & at.wrapping_neg();
            }
        }
    }
    total
}

/// Moves boxes towards their neighbours, row by row.
fn spread(rows: &[Vec<usize>], points: &mut [Point]) {
    for row in rows {
        let mut x = 0.0;
        for &p in row {
            points[p].x = x + points[p].width / 2.0;
            x += points[p].width + GAP_X;
        }
    }
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        let last = sweep + 8 >= SWEEPS;
        let sequence: Vec<usize> = if down { (0..rows.len()).collect() } else { (0..rows.len()).rev().collect() };
        for r in sequence {
            let wanted: Vec<(f64, f64)> = rows[r]
                .iter()
                .map(|&p| {
                    let point = &points[p];
                    // Long edges are worth straightening more than short ones, and weights go where there is room.
                    let pull = |n: usize| match (point.item, points[n].item) {
                        _ if point.is_source() || points[n].is_source() => 0.2,
                        (None, None) => 8.0,
                        (Some(_), Some(_)) => 1.0,
                        _ => 2.0,
                    };
                    let near: Vec<usize> = match (last, down) {
                        (true, _) => point.above.iter().chain(&point.below).copied().collect(),
                        (false, true) => point.above.clone(),
                        (false, false) => point.below.clone(),
                    };
                    let weight: f64 = near.iter().map(|&n| pull(n)).sum();
                    if weight == 0.0 {
                        return (point.x, 0.1);
                    }
                    (near.iter().map(|&n| pull(n) * points[n].x).sum::<f64>() / weight, weight)
                })
                .collect();
            let widths: Vec<f64> = rows[r].iter().map(|&p| points[p].width).collect();
            for (&p, x) in rows[r].iter().zip(isotonic(&wanted, &widths)) {
                points[p].x = x;
            }
        }
    }
}

/// The centres nearest to the wanted ones (by weighted squares) that keep the order and the gaps: pool adjacent
/// violators.
fn isotonic(wanted: &[(f64, f64)], widths: &[f64]) -> Vec<f64> {
    // With the least distance from the first taken off, the constraint is only that values do not fall.
    let mut offset = vec![0.0; wanted.len()];
    for i in 1..wanted.len() {
        offset[i] = offset[i - 1] + (widths[i - 1] + widths[i]) / 2.0 + GAP_X;
    }
    let mut blocks: Vec<(f64, f64, usize)> = vec![];
    for (i, &(x, weight)) in wanted.iter().enumerate() {
        let mut block = (x - offset[i], weight, 1);
        while let Some(&(value, w, n)) = blocks.last() {
            if value <= block.0 {
                break;
            }
            blocks.pop();
            block = ((value * w + block.0 * block.1) / (w + block.1), w + block.1, n + block.2);
        }
        blocks.push(block);
    }
    // All of it between the page's edges, or from the left one on where it does not fit.
    let first = widths.first().map_or(0.0, |w| w / 2.0);
    let last = MOST_WIDTH - widths.last().map_or(0.0, |w| w / 2.0) - offset.last().copied().unwrap_or(0.0);
    let bound = |value: f64| value.min(last).max(first);
    let values = blocks.into_iter().flat_map(|(value, _, n)| std::iter::repeat_n(bound(value), n));
    values.zip(offset).map(|(v, o)| v + o).collect()
}

/// Where on the top side of its target each edge ends, from the middle: in the order in which they come.
fn ports(count: usize, chains: &[Vec<usize>], points: &[Point], sizes: &[(f64, f64)]) -> Vec<f64> {
    let mut into: Vec<Vec<usize>> = vec![vec![]; count];
    for (e, chain) in chains.iter().enumerate() {
        into[chain[chain.len() - 1]].push(e);
    }
    let mut ends = vec![0.0; chains.len()];
    for (item, mut edges) in into.into_iter().enumerate() {
        let before = |e: usize| points[chains[e][chains[e].len() - 2]].x;
        edges.sort_by(|&a, &b| before(a).total_cmp(&before(b)));
        let n = edges.len();
        let step = if n > 1 { (sizes[item].0 * 0.6 / (n - 1) as f64).min(28.0) } else { 0.0 };
        for (i, e) in edges.into_iter().enumerate() {
            ends[e] = (i as f64 - (n - 1) as f64 / 2.0) * step;
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaps(layout: &Layout, sizes: &[(f64, f64)]) -> bool {
        let hit = |i: usize, j: usize| {
            let ((ax, ay), (bx, by)) = (layout.at[i], layout.at[j]);
            ax < bx + sizes[j].0 && bx < ax + sizes[i].0 && ay < by + sizes[j].1 && by < ay + sizes[i].1
        };
        (0..sizes.len()).any(|i| (0..i).any(|j| hit(i, j)))
    }

    #[test]
    fn boxes_never_overlap_and_edges_go_down() {
        let sizes: Vec<(f64, f64)> = (0..40).map(|i| (40.0 + (i * 37 % 90) as f64, 30.0)).collect();
        let edges: Vec<(usize, usize)> =
            (1..40usize).flat_map(|i| [(i / 2, i), (i / 3, i)]).filter(|(a, b)| a < b).collect();
        let layout = place(&sizes, &edges, &[0; 40]);
        assert!(!overlaps(&layout, &sizes));
        for (route, (from, to)) in layout.routes.iter().zip(&edges) {
            assert!(route.windows(2).all(|p| p[0].1 <= p[1].1), "{from} to {to}: {route:?}");
        }
        assert!(layout.at.iter().zip(&sizes).all(|(p, s)| p.0 >= -1e-6 && p.0 + s.0 <= layout.width + 1e-6));
    }

    #[test]
    fn a_tree_has_no_crossings() {
        let edges: Vec<(usize, usize)> = (1..15).map(|i| ((i - 1) / 2, i)).collect();
        let points: Vec<Point> = (0..15usize)
            .map(|i| Point {
                layer: (i + 1).ilog2() as usize,
                width: 1.0,
                item: Some(i),
                x: 0.0,
                above: edges.iter().filter(|e| e.1 == i).map(|e| e.0).collect(),
                below: edges.iter().filter(|e| e.0 == i).map(|e| e.1).collect(),
            })
            .collect();
        let mut rows: Vec<Vec<usize>> = vec![vec![0], vec![2, 1], vec![3, 5, 4, 6], vec![14, 7, 12, 8, 9, 10, 11, 13]];
        order(&mut rows, &points);
        let mut rank = vec![0; 15];
        rows.iter().for_each(|row| row.iter().enumerate().for_each(|(i, &p)| rank[p] = i));
        assert_eq!(crossings(&rows, &points, &rank), 0);
    }

    #[test]
    fn however_many_boxes_there_are_they_fit_a_page() {
        // All of them read the same input, and two hundred would stand side by side.
        let sizes = vec![(150.0, 30.0); 201];
        let edges: Vec<(usize, usize)> = (1..201).map(|i| (0, i)).collect();
        let layout = place(&sizes, &edges, &[0; 201]);
        assert!(!overlaps(&layout, &sizes));
        assert!(layout.at.iter().all(|p| p.0 >= -1e-6 && p.0 + 150.0 <= 1400.0), "{}", layout.width);
    }

    #[test]
    fn a_band_begins_below_the_one_before() {
        let sizes = vec![(80.0, 30.0); 9];
        let edges = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (0, 6), (6, 7), (7, 8)];
        let bands = [0, 0, 0, 0, 0, 0, 1, 1, 1];
        let layout = place(&sizes, &edges, &bands);
        assert!(!overlaps(&layout, &sizes));
        assert!(layout.bands[0].1 <= layout.bands[1].0, "{:?}", layout.bands);
        for (i, band) in bands.into_iter().enumerate() {
            let (from, to) = layout.bands[band];
            assert!(layout.at[i].1 >= from && layout.at[i].1 + 30.0 <= to, "{i}");
        }
    }

    #[test]
    fn nothing_gives_an_empty_picture() {
        let layout = place(&[], &[], &[]);
        assert_eq!((layout.width, layout.height), (0.0, 0.0));
    }
}
