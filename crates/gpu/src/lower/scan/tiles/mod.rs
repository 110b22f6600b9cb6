//! Loops of many rows on hardware that multiplies small matrices.
//!
//! 32 neighbouring threads, a *team*, take 16 or 32 rows through all steps, and keep every value of the body in registers, in
//! *tiles* of 8 columns: a thread has 4 elements of each 16 rows of a tile ([`schwann_codegen::lang::Tile`]). Two tiles that were
//! computed are a factor of the next product as they are, only rounded and packed. So threads exchange nothing, and there is no
//! barrier in the loop. Matrices lie in shared memory, each word where the thread that multiplies it reads it.
//!
//! Factors have 16 bits. With [`Products::Split`] each number is the sum of two `f16`, a high and a low part, and three products
//! of parts make one: nearly the accuracy of `f32`, as long as no number is beyond 65504.
//!
//! This file finds out whether the values of a body can lie in tiles, and how; `pack.rs` lays out the matrices, `walk.rs`
//! makes the kernel, and `nodes.rs` what it computes in a step.

mod nodes;
mod pack;
mod walk;

pub(crate) use pack::Matrix;

use super::block::needed;
use schwann_core::graph::Node;
use schwann_core::op::{Op, Scan};
use schwann_core::pass::rows::Independent;
use schwann_core::{DType, Dim, Graph, Value};
use std::collections::{BTreeMap, HashMap};

/// Columns of a tile.
pub(super) const TILE: u32 = 8;

/// The columns of a value in each of its tiles: the first one, and how many there are. What else is in a tile is 0.
pub(super) type Columns = Vec<[u32; 2]>;

/// A loop whose values can lie in tiles.
#[derive(Debug)]
pub(crate) struct Tiled {
    /// How the values lie that have rows.
    columns: HashMap<Value, Columns>,
    /// The matrices of products, by the number of the node.
    pub(crate) products: BTreeMap<u32, Product>,
    /// The most tiles that are needed at the same time.
    live: u32,
}

/// The second factor of a product.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    /// How it is packed.
    pub(crate) matrix: Matrix,
    /// The word of the buffer of constants at which it begins.
    pub(crate) at: u32,
}

/// The columns of a value of this width that nothing cuts.
fn plain(width: u32) -> Columns {
    (0..width).step_by(TILE as usize).map(|first| [first, TILE.min(width - first)]).collect()
}

/// Whether a node is a product of rows with a matrix that all rows share.
fn is_product(body: &Independent, node: &Node) -> bool {
    let rank = |i: usize| node.inputs.get(i).map_or(0, |v| body.body.ty(*v).shape.dims().len());
    super::products::is_product_of_rows(&node.op, |i| body.row_axis(node.inputs[i]), [rank(0), rank(1), 2])
}

/// Whether each element is computed from those at its place alone, by what this file's kernel has code for.
fn is_by_element(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Map { .. })
}

/// How a loop's values lie in tiles; `matrix` says for the product of this number where its matrix comes from, if that is known
/// and can be packed. None where something cannot.
pub(crate) fn tiled(
    scan: &Scan,
    body: &Independent,
    mut matrix: impl FnMut(&Node, Columns, u32) -> Option<Product>,
) -> Option<Tiled> {
    let graph = &body.body;
    let needed = needed(graph, scan.states);
    let nodes = || graph.nodes().iter().enumerate().filter(|(id, _)| needed.contains(&(*id as u32)));
    // A state lies as the value does that is its next one, which may depend on how states lie.
    let mut states: Vec<Option<Columns>> = vec![None; scan.states];
    let mut all = HashMap::new();
    for round in 0..4 {
        all = columns(scan, body, &states, nodes())?;
        let next = |k: usize| all.get(&graph.outputs()[k].value).cloned().flatten();
        let found: Vec<Option<Columns>> = (0..scan.states).map(next).collect();
        if found == states && states.iter().all(Option::is_some) {
            break;
        }
        let guess = |(k, columns): (usize, Option<Columns>)| match columns {
            // Nothing is known of it: it only depends on itself.
            None if round > 0 => width(graph, graph.outputs()[k].value).map(plain),
            columns => columns,
        };
        if round == 3 {
            return None;
        }
        states = found.into_iter().enumerate().map(guess).collect();
    }
    let columns: HashMap<Value, Columns> = all.into_iter().filter_map(|(v, columns)| Some((v, columns?))).collect();
    let mut products = BTreeMap::new();
    let mut last: HashMap<Value, usize> = HashMap::new();
    for (id, node) in nodes() {
        last.extend(node.inputs.iter().map(|v| (*v, id)));
        if !is_product(body, node) {
            continue;
        }
        let out = Value { node: id as u32, slot: 0 };
        products.insert(id as u32, matrix(node, columns.get(&node.inputs[0])?.clone(), width(graph, out)?)?);
    }
    if products.is_empty() {
        return None;
    }
    let end = graph.nodes().len();
    last.extend(graph.outputs().iter().map(|output| (output.value, end)));
    let tiles = |at: usize| {
        // Joined values are their parts.
        let whole = |v: &Value| !matches!(graph.node(*v).op, Op::Concat { .. } | Op::Slice { .. });
        let alive = |v: &&Value| whole(v) && v.node as usize <= at && last.get(v).is_some_and(|last| *last >= at);
        columns.keys().filter(alive).map(|v| columns[v].len() as u32).sum::<u32>()
    };
    let live = nodes().map(|(id, _)| tiles(id)).max().unwrap_or(0);
    Some(Tiled { columns, products, live })
}

/// The columns of a value that has rows, which are its first axis.
fn width(graph: &Graph, value: Value) -> Option<u32> {
    match graph.ty(value).shape.dims() {
        [_, columns] => u32::try_from(columns.as_fixed()?).ok().filter(|width| *width > 0 && *width <= 1 << 12),
        _ => None,
    }
}

/// How all values lie, as far as that follows from how states lie; none where a value cannot lie in tiles.
fn columns<'g>(
    scan: &Scan,
    body: &'g Independent,
    states: &[Option<Columns>],
    nodes: impl Iterator<Item = (usize, &'g Node)>,
) -> Option<HashMap<Value, Option<Columns>>> {
    let graph = &body.body;
    let inputs = graph.inputs().map(|(_, value)| value).enumerate().take(scan.states + scan.sequences);
    let mut all: HashMap<Value, Option<Columns>> = HashMap::new();
    let carried: HashMap<Value, Option<usize>> =
        inputs.map(|(k, value)| (value, (k < scan.states).then_some(k))).collect();
    for (id, node) in nodes {
        let value = Value { node: id as u32, slot: 0 };
        let has_rows = body.row_axis(value).is_some();
        if !has_rows {
            if node.op.is_source() || super::is_view(&node.op) {
                continue;
            }
            return None;
        }
        let width_of = |v: Value| width(graph, v);
        for (slot, ty) in node.outs.iter().enumerate() {
            let value = Value { node: id as u32, slot: slot as u16 };
            if body.row_axis(value) != Some(0) || ty.dtype != DType::F32 {
                return None;
            }
            width_of(value)?;
        }
        let own = width_of(value)?;
        let of = |v: &Value| all.get(v).cloned().flatten();
        let rows = |v: &&Value| body.row_axis(**v).is_some();
        let found = match &node.op {
            Op::Input { .. } => match carried.get(&value)? {
                Some(state) => states[*state].clone(),
                None => Some(plain(own)),
            },
            Op::Concat { axis: 1 } => {
                let mut joined = Some(vec![]);
                let mut before = 0;
                for part in &node.inputs {
                    body.row_axis(*part)?;
                    joined = joined.zip(of(part)).map(|(mut joined, columns)| {
                        joined.extend(columns.iter().map(|[first, count]| [first + before, *count]));
                        joined
                    });
                    before += width_of(*part)?;
                }
                joined
            }
            Op::Slice { axis: 1, start, .. } => {
                let start = u32::try_from(start.as_fixed()?).ok()?;
                match of(&node.inputs[0]) {
                    None => None,
                    Some(columns) => {
                        let inside = |[first, count]: &&[u32; 2]| *first >= start && first + count <= start + own;
                        let part: Columns = columns.iter().filter(inside).map(|[f, n]| [f - start, *n]).collect();
                        if part.iter().map(|[_, n]| n).sum::<u32>() != own {
                            return None;
                        }
                        Some(part)
                    }
                }
            }
            Op::Broadcast { .. } if body.row_axis(node.inputs[0]) == Some(0) && width_of(node.inputs[0])? == 1 => {
                Some(plain(own))
            }
            _ if is_product(body, node) => Some(plain(own)),
            op if is_by_element(op) => {
                let mut like: Option<Columns> = None;
                let mut unknown = false;
                for operand in node.inputs.iter().filter(rows) {
                    if width_of(*operand)? == 1 && own > 1 {
                        continue;
                    }
                    match (of(operand), &like) {
                        (None, _) => unknown = true,
                        (Some(columns), None) => like = Some(columns),
                        (Some(columns), Some(like)) if columns == *like => (),
                        _ => return None,
                    }
                }
                if unknown { None } else { Some(like.unwrap_or_else(|| plain(own))) }
            }
            _ => return None,
        };
        for slot in 0..node.outs.len() as u16 {
            all.insert(Value { node: id as u32, slot }, found.clone());
        }
    }
    Some(all)
}

/// A size that is a number of columns.
pub(super) fn fixed(dim: &Dim) -> Option<u32> {
    dim.as_fixed().and_then(|size| u32::try_from(size).ok())
}
