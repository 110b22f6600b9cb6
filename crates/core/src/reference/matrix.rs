//! Products: matrices, and attention, which is two of them with a softmax between.

use super::{Call, offset, rows::softmax, stretched_strides};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Op, Unary};
use crate::tensor;

impl Call<'_> {
    /// out[…, i, j] = Σₖ a[…, i, k] · b[…, k, j]
    pub(super) fn matmul(&self, transpose_a: bool, transpose_b: bool) -> Result<Vec<f64>> {
        let (a, b) = (self.inputs[0], self.inputs[1]);
        let shape = self.shape();
        let mut data = self.zeros(shape)?;
        let (batch, [m, n]) = (&shape[..shape.len() - 2], [shape[shape.len() - 2], shape[shape.len() - 1]]);
        let (batch_a, last_a) = a.shape.split_at(a.shape.len() - 2);
        let batch_b = &b.shape[..b.shape.len() - 2];
        let k = if transpose_a { last_a[0] } else { last_a[1] };
        let fail = || self.fail(format!("leading axes {batch_a:?} and {batch_b:?} do not stretch to {batch:?}"));
        let strides_a = stretched_strides(batch_a, batch).ok_or_else(fail)?;
        let strides_b = stretched_strides(batch_b, batch).ok_or_else(fail)?;
        if data.is_empty() {
            return Ok(data);
        }
        for matrix in 0..tensor::count(batch).unwrap_or(0) {
            let a = &a.data[offset(matrix, batch, &strides_a) * m * k..][..m * k];
            let b = &b.data[offset(matrix, batch, &strides_b) * k * n..][..k * n];
            let out = &mut data[matrix * m * n..][..m * n];
            for i in 0..m {
                for j in 0..n {
                    out[i * n + j] = (0..k)
                        .map(|p| {
                            let x = if transpose_a { a[p * m + i] } else { a[i * k + p] };
                            let y = if transpose_b { b[j * k + p] } else { b[p * n + j] };
                            x * y
                        })
                        .fold(0.0, |sum, product| sum + product);
                }
            }
        }
        Ok(data)
    }

    /// tanh a + σ(t) · (tanh b − tanh a), where a, b and t are columns of x·w + bias.
    pub(super) fn gated_cell(&self, batch_last: bool, by_column: bool, heads: [usize; 3]) -> Result<Vec<f64>> {
        let (x, w, shape) = (self.inputs[0], self.inputs[1], self.shape());
        let (rows, units) = if batch_last { (shape[1], shape[0]) } else { (shape[0], shape[1]) };
        let (width, columns) = if by_column { (w.shape[1], w.shape[0]) } else { (w.shape[0], w.shape[1]) };
        let mut data = self.zeros(shape)?;
        for row in 0..rows {
            for unit in 0..units {
                let head = |start: usize| {
                    let column = start + unit;
                    let product = (0..width).fold(0.0, |sum, k| {
                        let x = x.data[if batch_last { k * rows + row } else { row * width + k }];
                        sum + x * w.data[if by_column { column * width + k } else { k * columns + column }]
                    });
                    // Moved where a backend rounds: at the end of the sum.
                    let sum = product + self.inputs.get(2).map_or(0.0, |bias| bias.data[column]);
                    self.computed(DType::F32, sum, sum.abs())
                };
                let [a, b, t] = heads.map(head);
                let (from, to) = (Unary::Tanh.value(a), Unary::Tanh.value(b));
                let at = if batch_last { unit * rows + row } else { row * units + unit };
                data[at] = from + Unary::Sigmoid.value(t) * (to - from);
            }
        }
        Ok(data)
    }

    /// out[b, h, i] = Σⱼ softmaxⱼ(scale · q[b, h, i] · k[b, g, j] + mask[b, h, i, j]) v[b, g, j], over the keys that
    /// query i sees; g is h divided by the number of query heads that share a key head.
    pub(super) fn attention(&self, op: &Op, causal: bool, scale: Option<f64>) -> Result<Vec<f64>> {
        let (q, k, v) = (self.inputs[0], self.inputs[1], self.inputs[2]);
        let [batch, heads, length, width] = [0, 1, 2, 3].map(|axis| q.shape[axis]);
        let [groups, keys, out_width] = [k.shape[1], k.shape[2], v.shape[3]];
        let scale = scale.unwrap_or(1.0 / (width as f64).sqrt());
        let (mask, last) = op.attention_extras(self.inputs.len());
        let mask = mask.map(|at| self.stretch(at, &[batch, heads, length, keys])).transpose()?;
        let last = last.map(|at| self.indices_of(at, "position", keys)).transpose()?;
        let mut data = self.zeros(self.shape())?;
        if data.is_empty() {
            return Ok(data);
        }
        let sharing = heads / groups;
        for b in 0..batch {
            for h in 0..heads {
                for i in 0..length {
                    let query = (b * heads + h) * length + i;
                    let key = |j: usize| (b * groups + h / sharing) * keys + j;
                    // j ≤ i + keys − length, without going below 0
                    let seen = match &last {
                        Some(last) => last[i] + 1,
                        None if causal => (i + keys + 1).saturating_sub(length).min(keys),
                        None => keys,
                    };
                    let mut weights: Vec<f64> = (0..seen)
                        .map(|j| {
                            let (q, k) = (&q.data[query * width..][..width], &k.data[key(j) * width..][..width]);
                            let score = q.iter().zip(k).fold(0.0, |sum, (q, k)| sum + q * k) * scale;
                            score + mask.as_ref().map_or(0.0, |m| m[query * keys + j])
                        })
                        .collect();
                    if weights.iter().all(|&score| score == f64::NEG_INFINITY) {
                        continue; // sees no key: 0
                    }
                    softmax(&mut weights);
                    for e in 0..out_width {
                        data[query * out_width + e] = weights
                            .iter()
                            .enumerate()
                            .fold(0.0, |sum, (j, weight)| sum + weight * v.data[key(j) * out_width + e]);
                    }
                }
            }
        }
        Ok(data)
    }
}
