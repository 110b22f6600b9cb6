//! What a team computes in a step: products, gates and maps of values in tiles.

use super::walk::{Packed, Team, Tiles, four};
use super::{Matrix, TILE, is_by_element, is_product};
use crate::device::Products;
use crate::lower::element::{binary, gate, map_result, program, unary};
use crate::lower::site::Site;
use schwann_codegen::lang::{Expr, Half, Memory, Ty, Var};
use schwann_core::graph::Node;
use schwann_core::{Dim, Error, Op, Result, Value};
use std::rc::Rc;

/// Sums of 16 rows that a team works on at the same time.
const SUMS: usize = 8;

impl Team<'_> {
    /// A value as the first factor of products.
    fn packed(&mut self, s: &mut Site<'_>, value: Value) -> Result<Packed> {
        if let Some(known) = self.packed.get(&value) {
            return Ok(Rc::clone(known));
        }
        let tiles = self.get(value)?;
        let halves = if let Products::Halves(halves) = self.products { halves } else { Half::F16 };
        let mut packed = vec![];
        for pair in tiles.chunks(2) {
            let mut rows = vec![];
            for m in 0..self.shape.tiles as usize {
                let mut parts = [const { vec![] }; 2];
                for tile in 0..2 {
                    for half in 0..2 {
                        let Some(tile) = pair.get(tile) else {
                            parts.iter_mut().for_each(|part| part.push(0u32.into()));
                            continue;
                        };
                        let [a, b] = [&tile[m][2 * half], &tile[m][2 * half + 1]];
                        let high = s.maker.name("high", a.pack(halves, b));
                        if self.products == Products::Split {
                            let rest = |x: &Expr, bits: Expr| x - bits.half_to_float();
                            let low = rest(a, high.clone()).pack(halves, rest(b, high.shr(16u32)));
                            parts[1].push(s.maker.name("low", low));
                        } else {
                            parts[1].push(0u32.into());
                        }
                        parts[0].push(high);
                    }
                }
                let [high, low] = parts;
                rows.push([four(high)?, four(low)?]);
            }
            packed.push(rows);
        }
        let packed = Rc::new(packed);
        self.packed.insert(value, Rc::clone(&packed));
        Ok(packed)
    }

    /// The sums of a product for some tiles of the result: for each of these, for each head, for each 16 rows. `starts` has what
    /// the sums of each tile and head begin with. Sums that do not depend on each other take turns, since each product waits
    /// for the one before it of the same sum.
    fn sums(
        &self,
        s: &mut Site<'_>,
        matrix: &Matrix,
        (memory, first): &(Memory, Expr),
        factor: &Packed,
        starts: &[(u32, Vec<[Expr; 2]>)],
    ) -> Vec<Vec<Vec<[Var; 4]>>> {
        let halves = if let Products::Halves(halves) = self.products { halves } else { Half::F16 };
        let mut all = vec![];
        let mut each = vec![];
        for (tile, starts) in starts {
            let mut heads = vec![];
            for (head, start) in (0..).zip(starts) {
                let begin = |s: &mut Site<'_>| [0, 1, 0, 1].map(|k: usize| s.maker.variable("sum", &start[k]));
                let sums: Vec<[Var; 4]> = (0..self.shape.tiles).map(|_| begin(s)).collect();
                each.push((*tile, head, sums.clone()));
                heads.push(sums);
            }
            all.push(heads);
        }
        for (step, rows) in (0..).zip(factor.iter()) {
            let mut parts = vec![];
            for (tile, head, _) in &each {
                let at = first + matrix.place(*tile, *head, step);
                parts.push(if self.products == Products::Split {
                    let [a, b, c, d] = s.maker.load_many("part", *memory, at, Ty::U32);
                    [[a, b], [c, d]]
                } else {
                    let high: [Expr; 2] = s.maker.load_many("part", *memory, at, Ty::U32);
                    [high.clone(), high]
                });
            }
            // High by high, high by low, low by high.
            let pairs: &[[usize; 2]] =
                if self.products == Products::Split { &[[0, 0], [0, 1], [1, 0]] } else { &[[0, 0]] };
            for [left, right] in pairs {
                for ((_, _, sums), parts) in each.iter().zip(&parts) {
                    for (sums, rows) in sums.iter().zip(rows) {
                        s.maker.multiply(halves, *sums, rows[*left].clone(), parts[*right].clone());
                    }
                }
            }
        }
        all
    }

    /// An operand of an element: what a thread has of it, or what all rows have.
    fn operand(
        &self,
        s: &mut Site<'_>,
        value: Value,
        dims: &[Dim],
        [tile, m, k]: [usize; 3],
        column: &Expr,
    ) -> Result<Expr> {
        if let Some(view) = self.shared.get(&value) {
            return s.load(&view.stretched(dims), &[0u32.into(), column.clone()]);
        }
        let tiles = self.get(value)?;
        if tiles.len() == 1 && self.width(value) == 1 {
            return self.of_column(s, &tiles[0][m], k);
        }
        let element = tiles.get(tile).map(|tile| tile[m][k].clone());
        element.ok_or_else(|| Error::Internal("a tile that there is not".into()))
    }

    /// The only column of a value, for each column of another: the thread that has it gives it to the others of its row.
    fn of_column(&self, s: &mut Site<'_>, elements: &[Expr; 4], k: usize) -> Result<Expr> {
        // All but the first column are 0, and so is the sum of what four threads have, but for it.
        let row = k / 2 * 2;
        Ok(s.maker.sum_over_lanes(elements[row].clone(), 4))
    }

    /// Computes a node.
    pub(super) fn node(&mut self, s: &mut Site<'_>, id: u32, node: &Node) -> Result<()> {
        let value = Value { node: id, slot: 0 };
        if !self.tiled.columns.contains_key(&value) {
            // A view of what all rows share, which nodes read by their own columns.
            if self.body.row_axis(value).is_none()
                && crate::lower::scan::is_view(&node.op)
                && self.shared.contains_key(&node.inputs[0])
            {
                let (from, dims) = (&self.shared[&node.inputs[0]], node.outs[0].shape.dims());
                let view = match &node.op {
                    Op::Transpose { perm } => Some(from.transposed(perm)),
                    Op::Slice { axis, start, .. } => Some(from.sliced(*axis, start, &dims[*axis])?),
                    Op::Broadcast { .. } => Some(from.stretched(dims)),
                    _ => from.reshaped(dims)?,
                };
                let unsaid = || Error::Unsupported {
                    node: node.name.clone(),
                    op: node.op.name().into(),
                    problem: "a value inside a loop in another shape".into(),
                };
                self.shared.insert(value, view.ok_or_else(unsaid)?);
            }
            return Ok(());
        }
        let dims = node.outs[0].shape.dims();
        let tiles = match &node.op {
            Op::Input { .. } => return Ok(()),
            Op::Concat { .. } => {
                let parts = node.inputs.iter().map(|v| self.get(*v)).collect::<Result<Vec<_>>>()?;
                Rc::new(parts.iter().flat_map(|tiles| tiles.iter().cloned()).collect())
            }
            Op::Slice { start, .. } => {
                let from = self.get(node.inputs[0])?;
                let start = super::fixed(start).unwrap_or(0);
                let end = start + self.width(value);
                let columns = self.columns_of(node.inputs[0])?;
                let inside = |[first, count]: &[u32; 2]| *first >= start && first + count <= end;
                Rc::new(from.iter().zip(columns).filter(|(_, c)| inside(c)).map(|(tile, _)| tile.clone()).collect())
            }
            _ if is_product(self.body, node) => self.product(s, id, node)?,
            Op::Broadcast { .. } => {
                let from = self.get(node.inputs[0])?;
                let whole = self.each_tile(value, |_, m, k| self.of_column(s, &from[0][m], k))?;
                Rc::new(whole)
            }
            op if is_by_element(op) => {
                let mut results: Vec<Vec<Vec<[Expr; 4]>>> = vec![];
                for slot in 0..node.outs.len() {
                    // A map's results are made together, and the first of them is kept until the others are asked for.
                    let whole = self.each_tile(value, |tile, m, k| {
                        let [first, count] = self.columns_of(value)?[tile];
                        let column = &self.columns[k % 2];
                        let at = s
                            .maker
                            .name("at", if count < TILE { column.min(count - 1) } else { column.clone() } + first);
                        let mut inputs = vec![];
                        for operand in &node.inputs {
                            inputs.push(self.operand(s, *operand, dims, [tile, m, k], &at)?);
                        }
                        let result = match op {
                            Op::Unary(op) => unary(s, *op, &inputs[0]),
                            Op::Binary(op) => binary(s, *op, &inputs[0], &inputs[1]),
                            Op::Map { map, dtype, also } => {
                                let values = program(s, map, &inputs)?;
                                match slot.checked_sub(1).and_then(|k| also.get(k)) {
                                    Some(result) => map_result(s, &values[usize::from(result.at)], result.dtype),
                                    None => map_result(s, values.last().unwrap_or(&0.0f32.into()), *dtype),
                                }
                            }
                            _ => return Err(Error::Internal("an operation that is not by element".into())),
                        };
                        Ok(self.only_columns(s, result, column, count))
                    })?;
                    results.push(whole);
                }
                for (slot, whole) in results.iter().enumerate().skip(1) {
                    self.held.insert(Value { node: id, slot: slot as u16 }, Rc::new(whole.clone()));
                }
                Rc::new(results.swap_remove(0))
            }
            _ => return Err(Error::Internal("an operation that has no tiles".into())),
        };
        self.held.insert(value, tiles);
        Ok(())
    }

    /// Calls `make` for each tile, 16 rows and element that a thread has of a value.
    fn each_tile(
        &self,
        value: Value,
        mut make: impl FnMut(usize, usize, usize) -> Result<Expr>,
    ) -> Result<Vec<Vec<[Expr; 4]>>> {
        let mut tiles = vec![];
        for tile in 0..self.columns_of(value)?.len() {
            let mut rows = vec![];
            for m in 0..self.shape.tiles as usize {
                rows.push(four((0..4).map(|k| make(tile, m, k)).collect::<Result<_>>()?)?);
            }
            tiles.push(rows);
        }
        Ok(tiles)
    }

    /// A product or a gated cell.
    fn product(&mut self, s: &mut Site<'_>, id: u32, node: &Node) -> Result<Tiles> {
        let value = Value { node: id, slot: 0 };
        let factor = self.packed(s, node.inputs[0])?;
        let tiled = self.tiled;
        let (product, place) = (&tiled.products[&id], self.matrices[&id].clone());
        let dims = node.outs[0].shape.dims();
        let columns_of = self.columns_of(value)?;
        // As many tiles at a time as give so many sums that take turns.
        let sums = product.matrix.heads.len() * self.shape.tiles as usize;
        let together = (SUMS / sums).max(1);
        let mut tiles = vec![];
        for (group, some) in columns_of.chunks(together).enumerate() {
            let mut starts = vec![];
            let mut columns = vec![];
            for (k, [first, count]) in some.iter().enumerate() {
                let mut own = vec![];
                for column in &self.columns {
                    let place = if *count < TILE { column.min(count - 1) } else { column.clone() };
                    own.push(s.maker.name("at", place + *first));
                }
                let heads = product.matrix.heads.iter().map(|head| self.start(s, node, *head, &own));
                starts.push(((group * together + k) as u32, heads.collect::<Result<Vec<_>>>()?));
                columns.push(own);
            }
            let sums = self.sums(s, &product.matrix, &place, &factor, &starts);
            for (((tile, _), [_, count]), (sums, columns)) in starts.iter().zip(some).zip(sums.iter().zip(&columns)) {
                let mut rows = vec![];
                for m in 0..self.shape.tiles as usize {
                    let mut elements = vec![];
                    for k in 0..4 {
                        let totals: Vec<Expr> = sums.iter().map(|head| s.maker.get(head[m][k])).collect();
                        let result = match &node.op {
                            Op::GatedCell { .. } => gate(s, [&totals[0], &totals[1], &totals[2]]),
                            Op::MatMulMap { map, dtype, .. } => {
                                let mut inputs = vec![s.maker.name("sum", &totals[0])];
                                for operand in &node.inputs[2..] {
                                    let place = [*tile as usize, m, k];
                                    inputs.push(self.operand(s, *operand, dims, place, &columns[k % 2])?);
                                }
                                let values = program(s, map, &inputs)?;
                                map_result(s, values.last().unwrap_or(&0.0f32.into()), *dtype)
                            }
                            _ => totals[0].clone(),
                        };
                        elements.push(self.only_columns(s, result, &self.columns[k % 2], *count));
                    }
                    rows.push(four(elements)?);
                }
                tiles.push(rows);
            }
        }
        Ok(Rc::new(tiles))
    }

    /// What the sums of a head begin with in these columns: the numbers that a gated cell adds.
    fn start(&self, s: &mut Site<'_>, node: &Node, head: u32, columns: &[Expr]) -> Result<[Expr; 2]> {
        let mut start = [0.0f32.into(), 0.0f32.into()];
        if let (Op::GatedCell { .. }, Some(bias)) = (&node.op, node.inputs.get(2)) {
            let bias = self.shared.get(bias).ok_or_else(|| Error::Internal("numbers to add that differ".into()))?;
            let all = bias.dims.iter().map(|dim| dim.as_fixed().unwrap_or(0)).product();
            let flat = bias.reshaped(&[Dim::fixed(all)])?;
            let flat = flat.ok_or_else(|| Error::Internal("numbers to add that are not one list".into()))?;
            for (start, column) in start.iter_mut().zip(columns) {
                *start = s.load(&flat, &[column + head])?;
            }
        }
        Ok(start)
    }
}
