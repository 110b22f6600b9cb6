//! Copies that need not be made: parts written inside their concatenation, rows multiplied in two parts, constants
//! stretched ahead.

use super::lower::{Home, Lower, Place, Sized};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Value;
use crate::op::Op;
use crate::tensor::Tensor;
use schwann_kernels::gemm::takes_parts;
use schwann_kernels::tape::Ref;
use std::sync::Arc;

impl Lower<'_> {
    /// Finds values that can be made where a concatenation wants them: those whose part of it is contiguous.
    pub(super) fn join(&mut self) -> Result<()> {
        for (id, node) in self.graph.nodes().iter().enumerate() {
            let Op::Concat { axis } = node.op else { continue };
            let whole = Value { node: id as u32, slot: 0 };
            if let &[first, last] = &node.inputs[..]
                && self.is_read_in_parts(whole, axis)?
            {
                self.split.insert(whole, [first, last]);
                continue;
            }
            if self.sized(whole)?.shape[..axis].iter().product::<usize>() != 1 {
                continue;
            }
            let mut at = 0;
            for &part in &node.inputs {
                let made = !matches!(
                    self.graph.node(part).op,
                    Op::Input { .. }
                        | Op::Weight { .. }
                        | Op::Const(_)
                        | Op::Reshape { .. }
                        | Op::Slice { .. }
                        | Op::Broadcast { .. }
                        | Op::Transpose { .. }
                        | Op::Concat { .. }
                        | Op::Scan(_)
                );
                let bytes = self.sized(part)?.bytes();
                if made && bytes > 0 {
                    match self.direct.contains_key(&part) {
                        false => _ = self.within.entry(part).or_insert((whole, at)),
                        true if self.cells.get(part).is_some() => _ = self.also.entry(part).or_insert((whole, at)),
                        true => {}
                    }
                }
                at += bytes;
            }
        }
        Ok(())
    }

    /// Whether every reader of a concatenation takes it in two parts: a gated cell, or a product of a single row.
    fn is_read_in_parts(&self, whole: Value, axis: usize) -> Result<bool> {
        let x = self.sized(whole)?;
        let wanted = self.results[whole.node as usize];
        if x.dtype != DType::F32 || x.count() == 0 || wanted {
            return Ok(false);
        }
        for &id in &self.node_readers[whole.node as usize] {
            let node = &self.graph.nodes()[id as usize];
            if let Some(cell) = self.cells.of_product(id) {
                if cell.takes_parts(whole, axis) {
                    continue;
                }
                return Ok(false);
            }
            let ([1, k], 1) = (&x.shape[..], axis) else { return Ok(false) };
            let (Op::MatMul { transpose_a: false, .. } | Op::MatMulMap { transpose_a: false, .. }) = node.op else {
                return Ok(false);
            };
            let out = self.sized(Value { node: id, slot: 0 })?;
            let right = self.sized(node.inputs[1])?;
            let fits = node.inputs[1..].iter().all(|v| *v != whole)
                && right.shape.len() == 2
                && (right.dtype, out.dtype) == (DType::F32, DType::F32)
                && self.is_known(node.inputs[1])
                && takes_parts(self.target.tuning, out.count(), *k);
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The parts of a concatenation that is read in parts.
    pub(super) fn parts(&self, value: Value) -> Option<[Value; 2]> {
        self.split.get(&value).copied()
    }

    /// Whether a value was made inside a concatenation already.
    pub(super) fn is_within(&self, part: Value, whole: Value, at: usize) -> bool {
        [&self.within, &self.also].into_iter().any(|made| made.get(&part) == Some(&(whole, at)))
    }

    /// One number a row of `out`, known ahead, as a constant of all of its elements: read as fast as any other operand,
    /// which single numbers are not. `None` where that is not so, or would be too much memory.
    pub(super) fn stretched(&mut self, value: Value, x: &Sized, out: &Sized) -> Result<Option<Ref>> {
        let stretched_most = self.target.tuning.stretched_bytes_most();
        let one_a_row = x.dtype == DType::F32 && x.shape.last() == Some(&1) && out.shape.last().is_some_and(|n| *n > 1);
        if !one_a_row || x.count() * 2 > out.count() || x.count() < 2 || out.count() * 4 > stretched_most {
            return Ok(None);
        }
        let Some(data) = self.data(value)? else { return Ok(None) };
        let key = (value, out.shape.clone());
        let bytes = out.count() * 4;
        if let Some(&place) = self.stretched.get(&key) {
            return Ok(Some(self.reference(place, bytes)));
        }
        let (from, strides) = (data.values::<f32>()?, x.strides_in(&out.shape));
        let full: Vec<f32> = (0..out.count())
            .map(|i| {
                let axes = out.strides().into_iter().zip(&out.shape).zip(&strides);
                from[axes.map(|((step, size), stride)| i / step % size * stride).sum::<usize>()]
            })
            .collect();
        self.memory.consts.push(Arc::new(Tensor::new(&out.shape, &full)?));
        self.const_names.push(format!("{} (stretched)", self.graph.node(value).name));
        let place = Place { home: Home::Const(self.memory.consts.len() - 1), offset: 0 };
        self.stretched.insert(key, place);
        Ok(Some(self.reference(place, bytes)))
    }
}
