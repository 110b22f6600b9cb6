//! Gated cells as one call, where that is faster than a product followed by a map.
//!
//! That is so for one row, for a few rows of a small cell, and for the blocks of a loop, which fill a few registers
//! with rows; the weights must be known. In other cases a cell is expanded into a product and a map, which are as fast,
//! and can use several threads.

use super::known::Known;
use super::lower::{Label, Lower, Target, sized};
use super::packs::{self, CellShape};
use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::op::Op;
use crate::pass::cells;
use crate::plan::Kernel;
use crate::plan::kernel::{BatchAxis, GatedCell};
use crate::shape::Bindings;
use schwann_kernels::gated::{Apart, Batch, Gated};
use schwann_kernels::gemm::is_shared;
use schwann_kernels::tape::{Call, Ref};
use std::collections::HashMap;

/// A cell that is one call.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    rows: usize,
    units: usize,
    batch: Batch,
}

impl Cell {
    /// The axis of x along which its inputs lie, and of its result along which its units do.
    pub(super) fn inputs_axis(&self) -> usize {
        usize::from(self.batch == Batch::First)
    }

    /// Whether a place in something wider can be written to: then rows are further apart than its units.
    pub(super) fn can_be_columns(&self) -> bool {
        self.batch == Batch::First
    }
}

/// The cells of a graph that are one call, by their values.
#[derive(Default)]
pub(super) struct Cells(HashMap<Value, Cell>);

impl Cells {
    /// The cells of a graph that are worth a call of their own on this target.
    pub(super) fn of(graph: &Graph, bindings: &Bindings, target: &Target<'_>, known: &Known<'_>) -> Result<Cells> {
        let mut found = Cells::default();
        for (id, node) in (0u32..).zip(graph.nodes()) {
            let Op::GatedCell { batch_last, .. } = node.op else { continue };
            let value = Value { node: id, slot: 0 };
            let (out, x) = (sized(graph, bindings, value)?, sized(graph, bindings, node.inputs[0])?);
            let (rows, units) = if batch_last { (out.shape[1], out.shape[0]) } else { (out.shape[0], out.shape[1]) };
            // With more rows, x no longer fits the near caches, and all of it would be read again for each unit.
            let most = target.tuning.gated_rows_most();
            let (few, near) = (target.tuning.gated_few_rows_most(), target.tuning.gated_few_rows_bytes_most());
            let weight_bytes = sized(graph, bindings, node.inputs[1])?.bytes();
            let batch = match (batch_last, rows) {
                (false, 1) => Batch::First,
                // A few rows are taken together, and the weights are read again for the next few: no loss if they are
                // in the nearest cache.
                (false, rows) if rows <= few && weight_bytes <= near => Batch::First,
                (true, rows) if rows <= most => Batch::Last,
                _ => continue,
            };
            if out.count() == 0 || !node.inputs[1..].iter().all(|v| known.contains(*v)) {
                continue;
            }
            let width = x.count() / rows;
            // A cell runs on one thread; a product that is large enough for several is faster.
            let shared = target.threads > 1 && is_shared(target.tuning, (3 * out.count()).saturating_mul(width));
            if Gated::fits([width, 0], units) && !shared {
                found.0.insert(value, Cell { rows, units, batch });
            }
        }
        Ok(found)
    }

    pub(super) fn get(&self, value: Value) -> Option<Cell> {
        self.0.get(&value).copied()
    }

    /// The graph with all other cells expanded; `None` where there is none.
    pub(super) fn expand_others(&self, graph: &Graph) -> Result<Option<Graph>> {
        let other =
            |id: u32, op: &Op| matches!(op, Op::GatedCell { .. }) && !self.0.contains_key(&Value { node: id, slot: 0 });
        if !(0u32..).zip(graph.nodes()).any(|(id, node)| other(id, &node.op)) {
            return Ok(None);
        }
        let mut r = graph.rebuild();
        for (id, node) in (0u32..).zip(graph.nodes()) {
            if other(id, &node.op) {
                let inputs = r.all(&node.inputs)?;
                let new = cells::expand(&mut r.new, node, &inputs)?;
                r.set_all(id, new);
            } else {
                r.copy(id)?;
            }
        }
        r.finish().map(Some)
    }
}

pub(super) fn lower(l: &mut Lower<'_>, value: Value, cell: Cell) -> Result<()> {
    let Cell { rows, units, batch } = cell;
    let graph = l.graph;
    let node = graph.node(value);
    let Op::GatedCell { by_column, heads, .. } = node.op else {
        return Err(Error::Internal(format!("`{}` is no gated cell", node.name)));
    };
    let mut cost = graph.node_cost(node, l.bindings)?;
    let parts = l.parts(node.inputs[0]).map_or_else(|| vec![node.inputs[0]], |parts| parts.to_vec());
    let mut inputs = [0; 2];
    let mut at = [Ref { slot: 0, offset: 0, len: 0 }; 2];
    let mut apart = [0; 2];
    for (i, &part) in parts.iter().enumerate() {
        inputs[i] = l.sized(part)?.count() / rows;
        apart[i] = inputs[i];
        at[i] = match batch {
            // Columns of something wider are read where they are.
            Batch::First => {
                let (at, strides) = l.columns(part)?;
                apart[i] = strides;
                at
            }
            Batch::Last => l.read(part)?,
        };
    }
    let lost = || Error::Internal(format!("`{}`: a cell's weights are no longer known", node.name));
    let fixed = |v: Value| l.known.data(v)?.ok_or_else(lost);
    let strides = if by_column { [1, inputs[0] + inputs[1]] } else { [3 * units, 1] };
    let (weights, bias) = (fixed(node.inputs[1])?, node.inputs.get(2).map(|v| fixed(*v)).transpose()?);
    let shape = CellShape { batch, inputs, units, starts: heads, strides };
    let gated = l.target.packs.gated(l.target.isa, &packs::Cell { shape, weights, bias })?;
    l.count_packed(std::sync::Arc::as_ptr(&gated).addr(), gated.bytes());
    // Weights that are skipped do not count as work.
    cost.flops = cost.flops.saturating_sub(2 * (gated.skipped() * rows) as u64);
    let (out, also) = (l.write(value)?, l.write_also(value)?);
    let (also, also_apart) = also.map_or((None, units), |(at, apart)| (Some(at), apart));
    let apart = Apart { x: apart, also: if batch == Batch::First { also_apart } else { units } };
    let kernel = Kernel::GatedCell(GatedCell {
        rows,
        units,
        inputs: inputs[0] + inputs[1],
        skipped: gated.skipped(),
        batch: if batch == Batch::First { BatchAxis::First } else { BatchAxis::Last },
    });
    let call = Call::Gated { gated, rows, apart, x: at, out, also };
    l.call(value, call, Label { kernel, cost, in_place: false, looped: None })
}
