//! Operations along axes: reductions, softmax and norms.

use super::{Call, offset, scalar, strides};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Binary, Reduction};

/// eˣ / Σ eˣ, after taking the maximum from every x: the quotient is the same and no exponential overflows.
/// A row with +∞, or of −∞ only, becomes NaN.
pub(super) fn softmax(row: &mut [f64]) {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|x| *x = (*x - most).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

impl Call<'_> {
    pub(super) fn reduce(&self, kind: Reduction, axes: &[usize]) -> Result<Vec<f64>> {
        let x = self.inputs[0];
        let integer = x.dtype == DType::I32;
        let mut data = self.zeros(self.shape())?;
        data.fill(match kind {
            Reduction::Sum | Reduction::Mean => 0.0,
            Reduction::Max if integer => i32::MIN.into(),
            Reduction::Min if integer => i32::MAX.into(),
            Reduction::Max => f64::NEG_INFINITY,
            Reduction::Min => f64::INFINITY,
        });
        // Strides through the output for each axis of the input: 0 along reduced axes.
        let kept: Vec<usize> =
            x.shape.iter().enumerate().map(|(i, &size)| if axes.contains(&i) { 1 } else { size }).collect();
        let mut steps = strides(&kept);
        axes.iter().for_each(|&axis| steps[axis] = 0);
        let op = match kind {
            Reduction::Sum | Reduction::Mean => Binary::Add,
            Reduction::Max => Binary::Max,
            Reduction::Min => Binary::Min,
        };
        for (at, &value) in x.data.iter().enumerate() {
            let out = &mut data[offset(at, &x.shape, &steps)];
            *out = match integer {
                true => scalar::binary_i32(op, *out as i32, value as i32).into(),
                false => scalar::binary(op, *out, value),
            };
        }
        if kind == Reduction::Mean {
            let count = axes.iter().map(|&axis| x.shape[axis] as f64).product::<f64>();
            data.iter_mut().for_each(|sum| *sum /= count);
        }
        Ok(data)
    }

    pub(super) fn softmax(&self, axis: usize) -> Result<Vec<f64>> {
        let x = self.inputs[0];
        let mut data = self.zeros(&x.shape)?;
        if data.is_empty() {
            return Ok(data);
        }
        let size = x.shape[axis];
        let step = strides(&x.shape)[axis];
        for first in (0..data.len()).filter(|at| (at / step).is_multiple_of(size)) {
            let mut row: Vec<f64> = (0..size).map(|i| x.data[first + i * step]).collect();
            softmax(&mut row);
            row.iter().enumerate().for_each(|(i, &p)| data[first + i * step] = p);
        }
        Ok(data)
    }

    /// Calls `f` with each row of the last axis, then multiplies by the second input and adds the third, if any.
    fn norm(&self, f: impl Fn(&mut [f64])) -> Result<Vec<f64>> {
        let mut data = self.inputs[0].data.clone();
        let width = self.shape().last().copied().unwrap_or(1);
        // `max`, because the size of a chunk must not be 0; if rows are empty there are no chunks.
        for row in data.chunks_mut(width.max(1)) {
            f(row);
            for (i, x) in row.iter_mut().enumerate() {
                *x *= self.inputs.get(1).map_or(1.0, |gamma| gamma.data[i]);
                *x += self.inputs.get(2).map_or(0.0, |beta| beta.data[i]);
            }
        }
        Ok(data)
    }

    /// (x − mean)/√(mean((x − mean)²) + ε)
    pub(super) fn layer_norm(&self, eps: f64) -> Result<Vec<f64>> {
        self.norm(|row| {
            let count = row.len() as f64;
            let mean = row.iter().sum::<f64>() / count;
            let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
            row.iter_mut().for_each(|x| *x = (*x - mean) / (variance + eps).sqrt());
        })
    }

    /// x/√(mean(x²) + ε)
    pub(super) fn rms_norm(&self, eps: f64) -> Result<Vec<f64>> {
        self.norm(|row| {
            let square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            row.iter_mut().for_each(|x| *x /= (square + eps).sqrt());
        })
    }
}
