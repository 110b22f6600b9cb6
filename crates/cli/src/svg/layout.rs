//! Where the boxes of a layered picture go: Sugiyama's method, compactly.
//!
//! Longest paths give layers; an edge over several layers gets a point in each; barycentre sweeps order the layers, and
//! the order with the fewest crossings is kept; then each layer's boxes move as near to their neighbours as the space
//! between them allows, which is isotonic regression and has an exact solution.

/// Space between boxes of a layer, and between layers.
const GAP_X: f64 = 22.0;
const GAP_Y: f64 = 40.0;
const SWEEPS: usize = 24;

/// A finished layout.
pub(super) struct Layout {
    /// Left and top of each box.
    pub(super) at: Vec<(f64, f64)>,
    /// For each edge the points it goes through, from box to box; a pair of points with the same x is a straight piece.
    pub(super) routes: Vec<Vec<(f64, f64)>>,
    pub(super) width: f64,
    pub(super) height: f64,
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

/// Places boxes of these sizes; every edge goes from an earlier to a later one.
pub(super) fn place(sizes: &[(f64, f64)], edges: &[(usize, usize)]) -> Layout {
    let layer = layers(sizes.len(), edges);
    let mut points: Vec<Point> = sizes
        .iter()
        .enumerate()
        .map(|(i, s)| Point { layer: layer[i], width: s.0, item: Some(i), x: 0.0, above: vec![], below: vec![] })
        .collect();
    // Every edge as a chain of points, one in each layer it crosses.
    let mut chains = Vec::with_capacity(edges.len());
    for &(from, to) in edges {
        let mut chain = vec![from];
        for layer in layer[from] + 1..layer[to] {
            points.push(Point { layer, width: 8.0, item: None, x: 0.0, above: vec![], below: vec![] });
            chain.push(points.len() - 1);
        }
        chain.push(to);
        for pair in chain.windows(2) {
            points[pair[0]].below.push(pair[1]);
            points[pair[1]].above.push(pair[0]);
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
    Layout { at, routes, width, height: (y - GAP_Y).max(0.0) }
}

/// The layer of each box: after everything it depends on. What depends on nothing sits just above its first reader.
fn layers(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut layer = vec![0usize; count];
    let mut sorted = edges.to_vec();
    sorted.sort_unstable();
    for &(from, to) in &sorted {
        layer[to] = layer[to].max(layer[from] + 1);
    }
    let mut has_source = vec![false; count];
    let mut first_reader = vec![usize::MAX; count];
    for &(from, to) in &sorted {
        has_source[to] = true;
        first_reader[from] = first_reader[from].min(layer[to]);
    }
    for i in 0..count {
        if !has_source[i] && first_reader[i] != usize::MAX {
            layer[i] = first_reader[i] - 1;
        }
    }
    layer
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
    let values = blocks.into_iter().flat_map(|(value, _, n)| std::iter::repeat_n(value, n));
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
        let layout = place(&sizes, &edges);
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
    fn nothing_gives_an_empty_picture() {
        let layout = place(&[], &[]);
        assert_eq!((layout.width, layout.height), (0.0, 0.0));
    }
}
