//! Products and gated cells of a loop's body: who multiplies what.

use super::block::{Block, ROWS_AT_ONCE};
use super::since::Dealt;
use super::walk::Walker;
use crate::lower::element::{Call, epilogue, factors, gate};
use crate::lower::site::{Site, word};
use crate::lower::synapses::Lanes;
use crate::lower::view::View;
use schwann_codegen::lang::Expr;
use schwann_core::{Error, Op, Result, Value};

/// The two factors of a product, and where the columns of each head begin in the second: a gated cell has three.
struct Factors {
    a: View,
    b: View,
    heads: Vec<usize>,
}

impl Factors {
    fn of(call: &Call<'_>) -> Result<Factors> {
        match call.op {
            Op::GatedCell { by_column, heads, .. } => {
                let w = &call.inputs[1];
                let b = if *by_column { w.transposed(&[1, 0]) } else { w.clone() };
                Ok(Factors { a: call.inputs[0].clone(), b, heads: heads.to_vec() })
            }
            Op::MatMul { transpose_b, .. } | Op::MatMulMap { transpose_b, .. } => {
                let (a, b) = factors(call, false, *transpose_b);
                Ok(Factors { a, b, heads: vec![0] })
            }
            _ => Err(Error::Internal("a product that is none".into())),
        }
    }

    /// The column of each head for one unit.
    fn columns(&self, unit: &Expr) -> Result<Vec<Expr>> {
        self.heads.iter().map(|&head| Ok(unit + word(head)?)).collect()
    }

    /// What becomes of the sums of a unit's heads: the value of its element.
    fn finish(
        &self,
        s: &mut Site<'_>,
        call: &Call<'_>,
        sums: Vec<Expr>,
        at: &[Expr],
        columns: &[Expr],
    ) -> Result<Expr> {
        match call.op {
            Op::MatMulMap { map, dtype, .. } => epilogue(s, call, 2, map, *dtype, sums[0].clone(), at),
            Op::GatedCell { .. } => {
                let mut totals = sums;
                if let Some(bias) = call.inputs.get(2)
                    && let Some(flat) = bias.reshaped(&[self.b.dims[1].clone()])?
                {
                    for (total, column) in totals.iter_mut().zip(columns) {
                        *total = &*total + s.load(&flat, std::slice::from_ref(column))?;
                    }
                }
                Ok(gate(s, [&totals[0], &totals[1], &totals[2]]))
            }
            _ => Ok(sums[0].clone()),
        }
    }
}

/// Whether a node is a product of the rows of a value, which are its first axis, with a matrix that all rows share.
pub(super) fn is_product_of_rows(op: &Op, row_axis: impl Fn(usize) -> Option<usize>, ranks: [usize; 3]) -> bool {
    let plain = match op {
        Op::MatMul { transpose_a, .. } | Op::MatMulMap { transpose_a, .. } => !transpose_a,
        Op::GatedCell { batch_last, .. } => !batch_last,
        _ => false,
    };
    plain && ranks == [2; 3] && row_axis(0) == Some(0) && row_axis(1).is_none()
}

impl Walker<'_> {
    /// How the elements of a node's result are dealt to the threads.
    pub(super) fn dealt(&self, call: &Call<'_>, inputs: &[Value], width: u32) -> Dealt {
        let Block { body, rows, lanes, threads, .. } = self.block;
        let rank = |i: usize| call.inputs.get(i).map_or(0, |view| view.dims.len());
        let row_axis = |i: usize| body.row_axis(inputs[i]);
        let product = is_product_of_rows(call.op, row_axis, [rank(0), rank(1), call.dims.len()]);
        if self.block.abreast.is_some() {
            Dealt::OneByOne
        } else if product && *rows >= ROWS_AT_ONCE {
            Dealt::ByRows
        } else if (product || call.synapses.is_some()) && *lanes > 1 && width * rows * lanes <= *threads {
            Dealt::OverLanes
        } else {
            Dealt::OneByOne
        }
    }

    /// A product or a gated cell of many rows: a thread multiplies several rows with each weight that it loads.
    pub(super) fn products(&self, s: &mut Site<'_>, call: &Call<'_>, out: &View, width: u32) -> Result<()> {
        let factors = Factors::of(call)?;
        let Factors { a, b, .. } = &factors;
        let inner = s.size(&b.dims[0])?;
        let pieces = self.block.rows / ROWS_AT_ONCE;
        let thread = s.maker.thread();
        s.strided("e", thread, width * pieces, self.block.threads, |s, e| {
            let (piece, unit) = (s.maker.name("piece", &e / width), s.maker.name("unit", e.rem(width)));
            let rows: Vec<Expr> = (0..ROWS_AT_ONCE).map(|r| s.maker.name("row", &piece * ROWS_AT_ONCE + r)).collect();
            let columns = factors.columns(&unit)?;
            let sums: Vec<Vec<_>> =
                rows.iter().map(|_| columns.iter().map(|_| s.maker.variable("sum", 0.0f32)).collect()).collect();
            s.counted("k", 0u32, inner, |s, k| {
                let weights = columns.iter().map(|c| s.load(b, &[k.clone(), c.clone()])).collect::<Result<Vec<_>>>()?;
                for (row, sums) in rows.iter().zip(&sums) {
                    let x = s.load(a, &[row.clone(), k.clone()])?;
                    for (sum, weight) in sums.iter().zip(&weights) {
                        let next = x.fma(weight, s.maker.get(*sum));
                        s.maker.set(*sum, next);
                    }
                }
                Ok(())
            })?;
            for (row, sums) in rows.iter().zip(&sums) {
                let at = [row.clone(), unit.clone()];
                let sums: Vec<Expr> = sums.iter().map(|sum| s.maker.get(*sum)).collect();
                let value = factors.finish(s, call, sums, &at, &columns)?;
                s.store(out, &at, &value)?;
            }
            Ok(())
        })
    }

    /// An element of a product or a gated cell of few rows, whose sums several neighbouring threads share, so that a step is
    /// over sooner.
    pub(super) fn product_over_lanes(
        &self,
        s: &mut Site<'_>,
        call: &Call<'_>,
        lanes: &Lanes,
        at: &[Expr],
    ) -> Result<Expr> {
        let factors = Factors::of(call)?;
        let Factors { a, b, .. } = &factors;
        let inner = s.size(&b.dims[0])?;
        let columns = factors.columns(&at[1])?;
        let sums: Vec<_> = columns.iter().map(|_| s.maker.variable("part", 0.0f32)).collect();
        s.strided("k", lanes.lane.clone(), inner, lanes.count, |s, k| {
            let x = s.load(a, &[at[0].clone(), k.clone()])?;
            for (sum, column) in sums.iter().zip(&columns) {
                let weight = s.load(b, &[k.clone(), column.clone()])?;
                let next = x.fma(weight, s.maker.get(*sum));
                s.maker.set(*sum, next);
            }
            Ok(())
        })?;
        let mut totals = vec![];
        for sum in sums {
            let part = s.maker.get(sum);
            totals.push(s.maker.sum_over_lanes(part, lanes.count));
        }
        factors.finish(s, call, totals, at, &columns)
    }
}
