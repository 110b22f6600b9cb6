//! What an operation costs, counted from shapes alone, so that a roofline or a prediction needs no run.
//!
//! Counting rules: a multiply-add is 2 flops; every other arithmetic, comparison or selection is 1; a transcendental
//! counts 1 flop and 1 transcendental (how many instructions it takes depends on the machine). Bytes are the inputs
//! read once and the outputs written once: what an ideal cache would move.

use super::{Binary, Map, MapInstr, Op, SynapseResult, Unary};
use crate::error::Result;
use crate::op::Type;
use crate::shape::Bindings;
use serde::{Deserialize, Serialize};

/// The work of an operation or a whole graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Arithmetic operations.
    pub flops: u64,
    /// Of which exponentials, logarithms and the like.
    pub transcendentals: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

impl Cost {
    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.bytes_read.saturating_add(self.bytes_written)
    }
    /// The cost of doing this `n` times.
    pub fn times(self, n: u64) -> Cost {
        Cost {
            flops: self.flops.saturating_mul(n),
            transcendentals: self.transcendentals.saturating_mul(n),
            bytes_read: self.bytes_read.saturating_mul(n),
            bytes_written: self.bytes_written.saturating_mul(n),
        }
    }
}
impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.flops = self.flops.saturating_add(other.flops);
        self.transcendentals = self.transcendentals.saturating_add(other.transcendentals);
        self.bytes_read = self.bytes_read.saturating_add(other.bytes_read);
        self.bytes_written = self.bytes_written.saturating_add(other.bytes_written);
    }
}

fn count(ty: &Type, bindings: &Bindings) -> Result<u64> {
    Ok(ty.shape.eval(bindings)?.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64)))
}

fn bytes(ty: &Type, bindings: &Bindings) -> Result<u64> {
    Ok(count(ty, bindings)?.saturating_mul(ty.dtype.bits() as u64).div_ceil(8))
}

/// What an elementwise program does to one element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerElement {
    /// Everything that is computed.
    pub operations: usize,
    /// Of which exponentials, logarithms and the like.
    pub functions: usize,
    /// Of which divisions and square roots.
    pub divisions: usize,
}

impl Map {
    /// Its work on one element.
    pub fn per_element(&self) -> PerElement {
        let mut work = PerElement::default();
        for instr in &self.code {
            let (function, division) = match instr {
                MapInstr::Input(_) | MapInstr::Const(_) => continue,
                MapInstr::Unary(u, _) => (u.is_transcendental(), matches!(u, Unary::Recip | Unary::Sqrt)),
                MapInstr::Binary(b, ..) => (*b == Binary::Pow, *b == Binary::Div),
                MapInstr::Compare(..) | MapInstr::Select(..) | MapInstr::Trunc(_) => (false, false),
            };
            work.operations += 1;
            work.functions += usize::from(function);
            work.divisions += usize::from(division);
        }
        work
    }
}

impl Op {
    /// The cost with these input and output types under `bindings`.
    pub fn cost(&self, inputs: &[&Type], outputs: &[Type], bindings: &Bindings) -> Result<Cost> {
        let out = count(&outputs[0], bindings)?;
        let input = |i: usize| count(inputs[i], bindings);
        let size = |ty: &Type, axis: usize| ty.shape[axis].eval(bindings).map(|d| d as u64);
        let inner = |transpose_a: bool| {
            let rank = inputs[0].shape.rank();
            size(inputs[0], if transpose_a { rank - 2 } else { rank - 1 })
        };
        let (flops, transcendentals) = match self {
            // Sources take no work, and a reshape moves nothing.
            Op::Input { .. } | Op::Weight { .. } | Op::Const(_) | Op::Reshape { .. } => return Ok(Cost::default()),
            Op::Unary(u) => (out, if u.is_transcendental() { out } else { 0 }),
            Op::Binary(Binary::Pow) => (out, out),
            Op::Binary(_) | Op::Compare(_) | Op::Select => (out, 0),
            Op::MatMul { transpose_a, .. } => (out.saturating_mul(inner(*transpose_a)?).saturating_mul(2), 0),
            Op::Reduce { .. } => (input(0)?, 0),
            // maximum, subtraction, exponential, sum, division
            Op::Softmax { .. } => (out.saturating_mul(5), out),
            // mean, difference, square, sum, scale; one more for each of gamma and beta
            Op::LayerNorm { .. } => (out.saturating_mul(4 + inputs.len() as u64), 0),
            Op::RmsNorm { .. } => (out.saturating_mul(2 + inputs.len() as u64), 0),
            Op::Attention { causal, .. } => {
                let (queries, keys) = (size(inputs[0], 2)?, size(inputs[1], 2)?);
                let heads = size(inputs[0], 0)?.saturating_mul(size(inputs[0], 1)?);
                // With positions, which are known only in the run, each query may see every key: that is the most.
                let pairs = if *causal { visible_pairs(queries, keys) } else { queries.saturating_mul(keys) };
                let scores = heads.saturating_mul(pairs);
                let widths = size(inputs[0], 3)?.saturating_add(size(inputs[2], 3)?);
                // two products, and scale, maximum, subtraction, exponential, sum on each score
                (scores.saturating_mul(widths.saturating_mul(2).saturating_add(5)), scores)
            }
            Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Broadcast { .. }
            | Op::Gather { .. }
            | Op::Put { .. }
            | Op::Cast { .. } => (0, 0),
            Op::SegmentSum { .. } => (input(0)?, 0),
            Op::SynapseSum { activation, axis, sums, .. } => {
                let rows = input(0)?.checked_div(size(inputs[0], *axis)?).unwrap_or(0);
                let synapses = rows.saturating_mul(input(1)?);
                let active = u64::from(activation.unary().is_some());
                // scale and shift, activation, weight and sum
                let each = 2 + active + 2 * *sums as u64;
                let starts = out.saturating_mul((inputs.len() - 5 - sums) as u64);
                (synapses.saturating_mul(each).saturating_add(starts), synapses.saturating_mul(active))
            }
            Op::SynapseRatio { activation, axis, times } => {
                let rows = out.checked_div(size(inputs[0], *axis)?).unwrap_or(0);
                let synapses = rows.saturating_mul(input(1)?);
                let active = u64::from(activation.unary().is_some());
                // likewise with two sums, and for each result a product, three sums and a division
                let flops = synapses.saturating_mul(6 + active).saturating_add(out.saturating_mul(5));
                let times = *times as u64;
                (flops.saturating_mul(times), synapses.saturating_mul(active).saturating_mul(times))
            }
            // Of each synapse: what it computes forward, twice for a ratio, and then its slope, five sums and three products.
            Op::SynapseGradient { activation, axis, of } => {
                let rows = input(0)?.checked_div(size(inputs[0], *axis)?).unwrap_or(0);
                let synapses = rows.saturating_mul(input(1)?);
                let active = u64::from(activation.unary().is_some());
                let (sums, times, forward) = match of {
                    SynapseResult::Sums { sums, .. } => (*sums as u64, 1, 0),
                    SynapseResult::Ratio { times } => (2, *times as u64, 6 + active),
                };
                let each = forward + 2 + active + 2 + 4 * sums + 7;
                let functions = active * (1 + u64::from(forward > 0));
                let times = synapses.saturating_mul(times);
                (times.saturating_mul(each), times.saturating_mul(functions))
            }
            Op::GatedCell { by_column, .. } => {
                let width = size(inputs[1], usize::from(*by_column))?;
                // for each of the three heads its products and what is added; three functions, difference, product and sum
                let each = width.saturating_mul(2).saturating_add(inputs.len() as u64 - 2).saturating_mul(3);
                (out.saturating_mul(each.saturating_add(6)), out.saturating_mul(3))
            }
            // divide, round, add
            Op::Quantize { .. } => (out.saturating_mul(3), 0),
            Op::Dequantize | Op::LowBit(_) => (out.saturating_mul(2), 0),
            // the largest, then multiply, round and multiply
            Op::RoundRows => (out.saturating_mul(4), 0),
            Op::LowBitMatMul(product) => {
                let then = product.then.as_ref().map(Map::per_element).unwrap_or_default();
                let each = (product.weights.len as u64).saturating_mul(2).saturating_add(then.operations as u64);
                let rounding = if product.rounded { input(0)?.saturating_mul(4) } else { 0 };
                (out.saturating_mul(each).saturating_add(rounding), out.saturating_mul(then.functions as u64))
            }
            Op::Scan(s) => {
                let steps = size(inputs[s.states], s.axis)?;
                let body = s.body.cost(bindings)?;
                let mut cost = Cost { bytes_read: 0, bytes_written: 0, ..body.times(steps) };
                // Sequences and results move once; what stays fixed is read once (it is meant to stay in cache).
                for ty in inputs {
                    cost.bytes_read = cost.bytes_read.saturating_add(bytes(ty, bindings)?);
                }
                for ty in outputs {
                    cost.bytes_written = cost.bytes_written.saturating_add(bytes(ty, bindings)?);
                }
                return Ok(cost);
            }
            Op::Map { map, .. } => {
                let PerElement { operations, functions, .. } = map.per_element();
                (out.saturating_mul(operations as u64), out.saturating_mul(functions as u64))
            }
            Op::MatMulMap { transpose_a, map, .. } => {
                let PerElement { operations, functions, .. } = map.per_element();
                let product = inner(*transpose_a)?.saturating_mul(2);
                (out.saturating_mul(product.saturating_add(operations as u64)), out.saturating_mul(functions as u64))
            }
            Op::Custom { name } => {
                let work = super::custom::find(name).map_or_else(PerElement::default, |custom| custom.per_element());
                (out.saturating_mul(work.operations as u64), out.saturating_mul(work.functions as u64))
            }
        };
        let mut cost = Cost { flops, transcendentals, ..Cost::default() };
        match self {
            // Only what is selected is read, not the whole source.
            Op::Slice { .. } => cost.bytes_read = bytes(&outputs[0], bindings)?,
            Op::Gather { .. } => {
                cost.bytes_read = bytes(&outputs[0], bindings)?.saturating_add(bytes(inputs[1], bindings)?);
            }
            _ => {
                for ty in inputs {
                    cost.bytes_read = cost.bytes_read.saturating_add(bytes(ty, bindings)?);
                }
            }
        }
        for ty in outputs {
            cost.bytes_written = cost.bytes_written.saturating_add(bytes(ty, bindings)?);
        }
        Ok(cost)
    }
}

/// Pairs (i, j) with j ≤ i + keys − queries.
pub(crate) fn visible_pairs(queries: u64, keys: u64) -> u64 {
    let offset = i128::from(keys) - i128::from(queries);
    let mut pairs = 0i128;
    // Rows that see something: i ≥ −offset; row i sees min(i + offset + 1, keys) = i + offset + 1 keys.
    let first = (-offset).max(0);
    let rows = i128::from(queries) - first;
    if rows > 0 {
        let least = first + offset + 1;
        let most = i128::from(queries) + offset;
        pairs = (least + most) * rows / 2;
    }
    u64::try_from(pairs).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causal_pairs_are_counted_as_a_loop_counts_them() {
        for q in 0..9u64 {
            for k in 0..9u64 {
                let by_loop = (0..q as i64)
                    .flat_map(|i| (0..k as i64).map(move |j| (i, j)))
                    .filter(|(i, j)| *j <= i + k as i64 - q as i64)
                    .count() as u64;
                assert_eq!(visible_pairs(q, k), by_loop, "{q} queries, {k} keys");
            }
        }
    }
}
