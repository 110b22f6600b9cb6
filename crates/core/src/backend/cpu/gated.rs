//! Gated cells: a product whose columns are three heads, and the gate that is all that reads them, become one call.
//!
//! Nothing in the graph says so; lowering finds the pattern that merging and fusing leave behind. The product's weights
//! must be known, and there must be one row, or a few registers of rows as columns, as blocks of a loop have them: in other
//! cases a product, on several threads if it is large, followed by a map, is as fast.

use super::calls::compile;
use super::lower::{Label, Lower};
use super::packs::Heads;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Node, Value};
use crate::op::{Binary, MapInstr, Op};
use schwann_kernels::gated::{Batch, Gated};
use schwann_kernels::gemm::is_shared;
use schwann_kernels::tape::{Call, Ref};
use std::collections::{HashMap, HashSet};

/// A cell, by the value of its gate.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    product: Value,
    /// What it multiplies, its weights and what it adds to the products.
    x: Value,
    weights: Value,
    bias: Option<Value>,
    /// Where the heads a, b and t begin.
    heads: [usize; 3],
    units: usize,
    rows: usize,
    batch: Batch,
    /// Whether weights lie input by input, rather than column by column.
    by_input: bool,
}

impl Cell {
    /// Whether `whole`, joined along that axis, may be given as its parts: it is what the cell multiplies, and parts are
    /// inputs.
    pub(super) fn takes_parts(&self, whole: Value, axis: usize) -> bool {
        let inputs = if self.batch == Batch::First { 1 } else { 0 };
        self.x == whole && self.weights != whole && self.bias != Some(whole) && axis == inputs
    }
}

/// The cells of a graph.
#[derive(Default)]
pub(super) struct Cells {
    by_gate: HashMap<Value, Cell>,
    /// The gate of each product.
    by_product: HashMap<u32, Value>,
    /// Nodes that the cells make superfluous: products and their parts.
    inner: HashSet<u32>,
}

impl Cells {
    pub(super) fn get(&self, gate: Value) -> Option<Cell> {
        self.by_gate.get(&gate).copied()
    }

    /// The product of a gate's cell.
    pub(super) fn product(&self, gate: Value) -> Option<Value> {
        self.by_gate.get(&gate).map(|cell| cell.product)
    }

    /// Whether a node is made as part of a cell.
    pub(super) fn contains(&self, node: u32) -> bool {
        self.inner.contains(&node)
    }

    /// The cell whose product that is.
    pub(super) fn of_product(&self, node: u32) -> Option<&Cell> {
        self.by_gate.get(self.by_product.get(&node)?)
    }
}

impl Lower<'_> {
    pub(super) fn find_cells(&mut self) -> Result<()> {
        for (id, node) in self.graph.nodes().iter().enumerate() {
            let gate = Value { node: id as u32, slot: 0 };
            if let Some(cell) = self.cell(gate, node)? {
                self.cells.inner.extend(node.inputs.iter().map(|v| v.node).chain([cell.product.node]));
                self.cells.by_product.insert(cell.product.node, gate);
                self.cells.by_gate.insert(gate, cell);
            }
        }
        Ok(())
    }

    /// The cell whose gate this node is.
    fn cell(&self, gate: Value, node: &Node) -> Result<Option<Cell>> {
        let Op::Map { map, dtype: DType::F32 } = &node.op else { return Ok(None) };
        if node.inputs.len() != 3 {
            return Ok(None);
        }
        let Some([t, a, b]) = compile(map, 3)?.0.gate() else { return Ok(None) };
        let gate = self.sized(gate)?;
        // The heads: three parts of one product, along one axis, which together are all of it and which nobody else reads.
        let mut heads = [0; 3];
        let mut found = None;
        for (start, input) in heads.iter_mut().zip([a, b, t]) {
            let head = node.inputs[input];
            let slice = self.graph.node(head);
            let Op::Slice { axis, start: from, .. } = &slice.op else { return Ok(None) };
            *start = from.eval(self.bindings)?;
            let same = *found.get_or_insert((slice.inputs[0], *axis)) == (slice.inputs[0], *axis);
            if !same || self.readers(head) != 1 || self.sized(head)? != gate {
                return Ok(None);
            }
        }
        let Some((product, axis)) = found.filter(|_| t != a && t != b && a != b) else { return Ok(None) };
        let out = self.sized(product)?;
        if self.readers(product) != 3 || out.shape.len() != 2 || out.dtype != DType::F32 {
            return Ok(None);
        }
        let (units, rows) = (gate.shape[axis], out.shape[1 - axis]);
        if out.count() == 0 || out.shape[axis] != 3 * units || heads.iter().any(|start| start + units > 3 * units) {
            return Ok(None);
        }
        let multiplied = self.graph.node(product);
        let (transpose_a, transpose_b, bias) = match &multiplied.op {
            Op::MatMul { transpose_a, transpose_b } => (*transpose_a, *transpose_b, None),
            Op::MatMulMap { transpose_a, transpose_b, map, .. } => match (&map.code[..], &multiplied.inputs[..]) {
                ([MapInstr::Input(x), MapInstr::Input(y), MapInstr::Binary(Binary::Add, p, q)], &[_, _, bias])
                    if (x.min(y), x.max(y)) == (&0, &1) && p != q =>
                {
                    (*transpose_a, *transpose_b, Some(bias))
                }
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        // Units are the other axis than rows; x is the operand that has the rows.
        let (batch, [x, weights], by_input) = match (axis, rows, transpose_a, transpose_b) {
            (1, 1, false, _) => (Batch::First, [0, 1].map(|i| multiplied.inputs[i]), !transpose_b),
            (0, rows, _, false) if (self.target.isa.lanes()..=self.target.tuning.gated_rows_most()).contains(&rows) => {
                (Batch::Last, [1, 0].map(|i| multiplied.inputs[i]), transpose_a)
            }
            _ => return Ok(None),
        };
        let x_sized = self.sized(x)?;
        let k = x_sized.count() / rows;
        // A cell has no use for a second thread; a product large enough has.
        let shared = self.target.threads > 1 && is_shared(self.target.tuning, out.count().saturating_mul(k));
        if !Gated::fits([k, 0], units) || shared {
            return Ok(None);
        }
        let is_known = |v: Value, fits: &dyn Fn(&[usize]) -> bool| -> Result<bool> {
            let sized = self.sized(v)?;
            Ok(sized.dtype == DType::F32 && fits(&sized.shape) && self.is_known(v))
        };
        let columns = 3 * units;
        let matrix = if by_input { [k, columns] } else { [columns, k] };
        let one_a_column = |shape: &[usize]| match axis {
            1 => shape == [columns] || shape == [1, columns],
            _ => shape == [columns, 1],
        };
        let fits = (x_sized.dtype, x_sized.shape.len()) == (DType::F32, 2)
            && is_known(weights, &|shape| shape == matrix)?
            && bias.map_or(Ok(true), |bias| is_known(bias, &one_a_column))?;
        Ok(fits.then_some(Cell { product, x, weights, bias, heads, units, rows, batch, by_input }))
    }
}

pub(super) fn lower(l: &mut Lower<'_>, value: Value, cell: &Cell) -> Result<()> {
    let &Cell { product, x, weights, bias, heads, units, rows, batch, by_input } = cell;
    let graph = l.graph;
    let mut cost = graph.node_cost(graph.node(product), l.bindings)?;
    cost += graph.node_cost(graph.node(value), l.bindings)?;
    let between = l.sized(product)?.bytes() as u64;
    cost.bytes_read = cost.bytes_read.saturating_sub(between);
    cost.bytes_written = cost.bytes_written.saturating_sub(between);
    let parts = l.parts(x).map_or_else(|| vec![x], |parts| parts.to_vec());
    let mut inputs = [0; 2];
    let mut at = [Ref { slot: 0, offset: 0, len: 0 }; 2];
    for (i, &part) in parts.iter().enumerate() {
        inputs[i] = l.sized(part)?.count() / rows;
        at[i] = l.read(part)?;
    }
    let lost = || Error::Internal(format!("`{}`: a cell's weights are no longer known", graph.node(value).name));
    let fixed = |v: Value| l.data(v)?.ok_or_else(lost);
    let columns = l.sized(product)?.count() / rows;
    let strides = if by_input { [columns, 1] } else { [1, inputs[0] + inputs[1]] };
    let (weights, bias) = (fixed(weights)?, bias.map(fixed).transpose()?);
    let heads = Heads { batch, inputs, units, starts: heads, strides, weights, bias };
    let gated = l.target.packs.gated(l.target.isa, heads)?;
    l.count_packed(std::sync::Arc::as_ptr(&gated).addr(), gated.bytes());
    // What is not multiplied is no work done.
    cost.flops = cost.flops.saturating_sub(2 * (gated.skipped() * rows) as u64);
    let (out, also) = (l.write(value)?, l.write_also(value)?);
    let what = if batch == Batch::First { "units" } else { "rows" };
    let less = match gated.skipped() {
        0 => String::new(),
        n => format!(" less {n} weights"),
    };
    let kernel = format!("gated cell {rows}×3·{units}×{}{less}, lanes are {what}", inputs[0] + inputs[1]);
    let call = Call::Gated { gated, rows, x: at, out, also };
    l.call(value, call, Label { kernel, cost, in_place: false, looped: None })
}
