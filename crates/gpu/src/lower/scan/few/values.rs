//! Where values of a loop's body come from: which parts of which computed values each of them consists of.
//!
//! Slices and joins of values compute nothing. A product reads its rows piece by piece, so what it reads need not lie in one
//! place; anything else reads one piece, and a join that it reads is computed.

use crate::lower::scan::block::Block;
use schwann_core::graph::Node;
use schwann_core::op::Scan;
use schwann_core::pass::rows::ROWS;
use schwann_core::{DType, Dim, Op, Value};
use std::collections::{HashMap, HashSet};

/// A part of a value that is computed or read in each step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) value: Value,
    pub(super) first: u32,
    pub(super) len: u32,
    /// Whether it is that of the step before.
    pub(super) before: bool,
}

/// The pieces of all values that have rows.
pub(super) struct Pieces {
    of: HashMap<Value, Vec<Piece>>,
    /// Nodes that only join or cut values, and are computed nevertheless.
    computed: HashSet<u32>,
}

/// The nodes of a body that results depend on.
pub(super) fn needed(block: &Block) -> impl Iterator<Item = (u32, &Node)> {
    let nodes = block.body.body.nodes().iter().enumerate().map(|(id, node)| (id as u32, node));
    nodes.filter(|(id, _)| block.is_needed(Value { node: *id, slot: 0 }))
}

impl Pieces {
    /// Finds them; none if a value of the body is of a kind that this does not know.
    pub(super) fn of(block: &Block, scan: &Scan) -> Option<Pieces> {
        let body = &block.body;
        let graph = &body.body;
        for (id, node) in needed(block) {
            for (slot, ty) in node.outs.iter().enumerate() {
                let value = Value { node: id, slot: slot as u16 };
                let dims = ty.shape.dims();
                match body.row_axis(value) {
                    None => {}
                    Some(0) if ty.dtype == DType::F32 && dims.len() <= 2 && dims[0] == Dim::symbol(ROWS) => {}
                    _ => return None,
                }
            }
        }
        if graph.outputs().iter().any(|output| body.row_axis(output.value).is_none()) {
            return None;
        }
        let mut computed = HashSet::new();
        // Each round computes one more node.
        for _ in 0..=graph.nodes().len() {
            let pieces = Pieces::with(block, scan, computed.clone())?;
            match pieces.scattered(block) {
                None => return Some(pieces),
                Some(value) => {
                    let id = pieces.join_behind(block, scan, value)?;
                    computed.insert(id);
                }
            }
        }
        None
    }

    fn with(block: &Block, scan: &Scan, computed: HashSet<u32>) -> Option<Pieces> {
        let graph = &block.body.body;
        let mut pieces = Pieces { of: HashMap::new(), computed };
        for (id, node) in needed(block) {
            for slot in 0..node.outs.len() as u16 {
                let value = Value { node: id, slot };
                if block.body.row_axis(value).is_none() {
                    continue;
                }
                let found = pieces.of_node(block, node, value);
                let whole = || vec![Piece { value, first: 0, len: block.widths[&value], before: false }];
                pieces.of.insert(value, found.unwrap_or_else(whole));
            }
        }
        // A state is what the step before made of it.
        let states: Vec<Value> = graph.inputs().take(scan.states).map(|(_, value)| value).collect();
        let next: Vec<Vec<Piece>> =
            graph.outputs()[..scan.states].iter().map(|o| pieces.of[&o.value].clone()).collect();
        if next.iter().flatten().any(|piece| states.contains(&piece.value)) {
            return None;
        }
        for all in pieces.of.values_mut() {
            let mut resolved: Vec<Piece> = vec![];
            for piece in all.drain(..) {
                match states.iter().position(|state| *state == piece.value) {
                    Some(k) => {
                        let cut = cut(&next[k], piece.first, piece.len);
                        resolved.extend(cut.into_iter().map(|piece| Piece { before: true, ..piece }));
                    }
                    None => resolved.push(piece),
                }
            }
            *all = joined(resolved);
        }
        Some(pieces)
    }

    /// The pieces of a value that is a view or a join of others.
    fn of_node(&self, block: &Block, node: &Node, value: Value) -> Option<Vec<Piece>> {
        if self.computed.contains(&value.node) {
            return None;
        }
        let has_rows = node.inputs.iter().all(|v| block.body.row_axis(*v).is_some());
        match &node.op {
            Op::Slice { axis: 1, start, .. } => {
                let start = u32::try_from(start.as_fixed()?).ok()?;
                Some(cut(&self.of[&node.inputs[0]], start, block.widths[&value]))
            }
            Op::Concat { axis: 1 } if has_rows => {
                Some(joined(node.inputs.iter().flat_map(|v| self.of[v].iter().cloned()).collect()))
            }
            Op::Reshape { .. } if block.widths.get(&node.inputs[0]) == block.widths.get(&value) => {
                Some(self.of[&node.inputs[0]].clone())
            }
            _ => None,
        }
    }

    /// The pieces of a value.
    pub(super) fn get(&self, value: Value) -> &[Piece] {
        self.of.get(&value).map_or(&[], Vec::as_slice)
    }

    /// Whether a node computes something: what it gives is a piece.
    pub(super) fn computes(&self, id: u32, node: &Node) -> bool {
        let value = Value { node: id, slot: 0 };
        !node.op.is_source() && self.get(value).iter().any(|piece| piece.value == value)
    }

    /// A value that something reads as one, and that lies in several pieces.
    fn scattered(&self, block: &Block) -> Option<Value> {
        for (id, node) in needed(block).filter(|(id, node)| self.computes(*id, node)) {
            for (i, value) in node.inputs.iter().enumerate() {
                let pieces = self.get(*value);
                let by_quads = i == 0 && super::work::is_product(block, id, node);
                let aligned = pieces.iter().all(|piece| piece.first % 4 == 0);
                if pieces.len() > 1 && !by_quads || by_quads && !aligned {
                    return Some(*value);
                }
            }
        }
        None
    }

    /// The join that a value comes from: what is to be computed so that the value lies in one place.
    fn join_behind(&self, block: &Block, scan: &Scan, value: Value) -> Option<u32> {
        let graph = &block.body.body;
        let mut value = value;
        for _ in 0..2 * graph.nodes().len() {
            let node = graph.node(value);
            match &node.op {
                Op::Concat { .. } if !self.computed.contains(&value.node) => return Some(value.node),
                Op::Slice { .. } if self.get(node.inputs[0]).len() == 1 && !self.computed.contains(&value.node) => {
                    return Some(value.node);
                }
                Op::Slice { .. } | Op::Reshape { .. } => value = node.inputs[0],
                Op::Input { .. } => {
                    let k = graph.inputs().take(scan.states).position(|(_, state)| state == value)?;
                    value = graph.outputs()[k].value;
                }
                _ => return None,
            }
        }
        None
    }
}

/// A range of the elements that pieces have together.
fn cut(pieces: &[Piece], first: u32, len: u32) -> Vec<Piece> {
    let (mut at, end) = (0, first + len);
    let mut found = vec![];
    for piece in pieces {
        let (from, to) = (at.max(first), (at + piece.len).min(end));
        if from < to {
            found.push(Piece { first: piece.first + from - at, len: to - from, ..piece.clone() });
        }
        at += piece.len;
    }
    found
}

/// The same with pieces made one that follow each other.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut all: Vec<Piece> = vec![];
    for piece in pieces {
        match all.last_mut() {
            Some(last)
                if last.value == piece.value && last.before == piece.before && last.first + last.len == piece.first =>
            {
                last.len += piece.len;
            }
            _ => all.push(piece),
        }
    }
    all
}
