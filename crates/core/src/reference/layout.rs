//! Operations that move elements without changing them, and the sum by segment that undoes a gather.

use super::{Call, HostValue, offset, scalar, strides};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Activation, Binary};

/// A value as (outer, size, inner): everything before an axis, the axis, everything after. The products saturate;
/// they are only ever used to index values that exist.
pub(super) fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    let product = |sizes: &[usize]| sizes.iter().fold(1usize, |n, &d| n.saturating_mul(d));
    (product(&shape[..axis]), shape[axis], product(&shape[axis + 1..]))
}

/// Element `time` along an axis, which is removed.
pub(super) fn take(value: &HostValue, axis: usize, time: usize) -> HostValue {
    let (outer, size, inner) = around(&value.shape, axis);
    let mut shape = value.shape.clone();
    shape.remove(axis);
    let mut data = vec![];
    if !value.data.is_empty() {
        for o in 0..outer {
            data.extend_from_slice(&value.data[(o * size + time) * inner..][..inner]);
        }
    }
    HostValue { dtype: value.dtype, shape, data }
}

/// The opposite: writes `element` at `time` along an axis of `data`.
pub(super) fn put(data: &mut [f64], shape: &[usize], axis: usize, time: usize, element: &[f64]) {
    let (outer, size, inner) = around(shape, axis);
    if !data.is_empty() {
        for o in 0..outer {
            data[(o * size + time) * inner..][..inner].copy_from_slice(&element[o * inner..][..inner]);
        }
    }
}

impl Call<'_> {
    pub(super) fn reshape(&self) -> Result<Vec<f64>> {
        let x = self.inputs[0];
        if crate::tensor::count(self.shape()) != Some(x.data.len()) {
            return Err(self.fail(format!("{} does not have the elements of {:?}", x.describe(), self.shape())));
        }
        Ok(x.data.clone())
    }

    pub(super) fn transpose(&self, perm: &[usize]) -> Result<Vec<f64>> {
        let x = self.inputs[0];
        let steps = strides(&x.shape);
        let steps: Vec<usize> = perm.iter().map(|&axis| steps[axis]).collect();
        let mut data = self.zeros(self.shape())?;
        for (at, out) in data.iter_mut().enumerate() {
            *out = x.data[offset(at, self.shape(), &steps)];
        }
        Ok(data)
    }

    /// Checks that only the size along `axis` differs between input 0 and the output.
    fn check_axis(&self, axis: usize) -> Result<()> {
        let (from, to) = (&self.inputs[0].shape, self.shape());
        let fits =
            axis < from.len() && from.len() == to.len() && (0..from.len()).all(|i| i == axis || from[i] == to[i]);
        if fits { Ok(()) } else { Err(self.fail(format!("{from:?} does not become {to:?} along axis {axis}"))) }
    }

    pub(super) fn slice(&self, axis: usize, start: usize, end: usize) -> Result<Vec<f64>> {
        self.check_axis(axis)?;
        let x = self.inputs[0];
        let (outer, size, inner) = around(&x.shape, axis);
        // Sizes that depend on symbols are only known now.
        if start > end || end > size || end - start != self.shape()[axis] {
            return Err(self.fail(format!("slice {start}..{end} of axis {axis} of {}", x.describe())));
        }
        let mut data = self.zeros(self.shape())?;
        if !data.is_empty() {
            let length = (end - start) * inner;
            for o in 0..outer {
                data[o * length..][..length].copy_from_slice(&x.data[(o * size + start) * inner..][..length]);
            }
        }
        Ok(data)
    }

    pub(super) fn pad(&self, axis: usize, before: usize) -> Result<Vec<f64>> {
        self.check_axis(axis)?;
        let x = self.inputs[0];
        let (outer, size, inner) = around(&x.shape, axis);
        let total = self.shape()[axis];
        if before.checked_add(size).is_none_or(|end| end > total) {
            return Err(self.fail(format!("padding {} by {before} exceeds {:?}", x.describe(), self.shape())));
        }
        let mut data = self.zeros(self.shape())?;
        if !x.data.is_empty() {
            for o in 0..outer {
                let row = &x.data[o * size * inner..][..size * inner];
                data[(o * total + before) * inner..][..size * inner].copy_from_slice(row);
            }
        }
        Ok(data)
    }

    pub(super) fn concat(&self, axis: usize) -> Result<Vec<f64>> {
        let mut data = self.zeros(self.shape())?;
        let mut from = 0;
        for x in self.inputs {
            let size = x.shape[axis];
            for at in 0..if x.data.is_empty() { 0 } else { size } {
                put(&mut data, self.shape(), axis, from + at, &take(x, axis, at).data);
            }
            from += size;
        }
        Ok(data)
    }

    /// The `i32` values of input 1, each checked to lie in `0..size`.
    fn indices(&self, what: &str, size: usize) -> Result<Vec<usize>> {
        self.indices_of(1, what, size)
    }

    /// The `i32` values of an input, each checked to lie in `0..size`.
    pub(super) fn indices_of(&self, input: usize, what: &str, size: usize) -> Result<Vec<usize>> {
        let indices = self.inputs[input].data.iter().enumerate();
        indices
            .map(|(at, &index)| {
                // Negative or fractional (a caller's mistake) both fail the comparison or the range.
                let whole = index as i64;
                usize::try_from(whole)
                    .ok()
                    .filter(|&i| i < size && whole as f64 == index)
                    .ok_or_else(|| self.fail(format!("{what} {index} (number {at}) is not in 0..{size}")))
            })
            .collect()
    }

    pub(super) fn gather(&self, axis: usize) -> Result<Vec<f64>> {
        let x = self.inputs[0];
        let (outer, size, inner) = around(&x.shape, axis);
        let indices = self.indices("index", size)?;
        let mut data = self.zeros(self.shape())?;
        if !data.is_empty() {
            for o in 0..outer {
                for (at, &index) in indices.iter().enumerate() {
                    let element = &x.data[(o * size + index) * inner..][..inner];
                    data[(o * indices.len() + at) * inner..][..inner].copy_from_slice(element);
                }
            }
        }
        Ok(data)
    }

    pub(super) fn put(&self, axis: usize) -> Result<Vec<f64>> {
        let [data, part] = [self.inputs[0], self.inputs[1]];
        let (outer, size, inner) = around(&data.shape, axis);
        let indices = self.indices_of(2, "index", size)?;
        if let Some(at) = (1..indices.len()).find(|&at| indices[at] <= indices[at - 1]) {
            return Err(self.fail(format!("index {} (number {at}) is not after the one before it", indices[at])));
        }
        let mut result = data.data.clone();
        for o in 0..outer {
            for (at, &index) in indices.iter().enumerate() {
                let element = &part.data[(o * indices.len() + at) * inner..][..inner];
                result[(o * size + index) * inner..][..inner].copy_from_slice(element);
            }
        }
        Ok(result)
    }

    pub(super) fn segment_sum(&self, axis: usize) -> Result<Vec<f64>> {
        self.check_axis(axis)?;
        let x = self.inputs[0];
        let (outer, size, inner) = around(&x.shape, axis);
        let segments = self.shape()[axis];
        let segment_of = self.indices("segment", segments)?;
        if segment_of.len() != size {
            return Err(self.fail(format!("{} segment numbers for axis {axis} of {}", segment_of.len(), x.describe())));
        }
        let mut data = self.zeros(self.shape())?;
        if x.data.is_empty() {
            return Ok(data);
        }
        for o in 0..outer {
            for (at, &segment) in segment_of.iter().enumerate() {
                for i in 0..inner {
                    let (sum, value) =
                        (&mut data[(o * segments + segment) * inner + i], x.data[(o * size + at) * inner + i]);
                    *sum = match x.dtype {
                        DType::I32 => scalar::binary_i32(Binary::Add, *sum as i32, value as i32).into(),
                        _ => *sum + value,
                    };
                }
            }
        }
        Ok(data)
    }

    pub(super) fn synapse_sum(
        &self,
        activation: Activation,
        axis: usize,
        sums: usize,
        segments: usize,
    ) -> Result<Vec<Vec<f64>>> {
        let x = self.inputs[0];
        let (outer, size, inner) = around(&x.shape, axis);
        let (sources, destinations) =
            (self.indices_of(1, "source", size)?, self.indices_of(2, "destination", segments)?);
        // (For a ratio, these inputs are its terms.)
        let starts = self.inputs.len() == 5 + 2 * sums;
        let mut results = vec![];
        for (k, weights) in self.inputs[5..5 + sums].iter().enumerate() {
            let mut data = match starts {
                true => self.stretch(5 + sums + k, self.shape())?.into_owned(),
                false => self.zeros(self.shape())?,
            };
            for at in 0..outer * inner {
                let (o, i) = (at / inner, at % inner);
                for (e, (&source, &destination)) in sources.iter().zip(&destinations).enumerate() {
                    let value = x.data[(o * size + source) * inner + i];
                    let value = self.inputs[3].data[e] * value + self.inputs[4].data[e];
                    let value = activation.unary().map_or(value, |u| u.value(value));
                    data[(o * segments + destination) * inner + i] += weights.data[e] * value;
                }
            }
            results.push(data);
        }
        Ok(results)
    }

    pub(super) fn synapse_ratio(&self, activation: Activation, axis: usize, times: usize) -> Result<Vec<f64>> {
        let shape = self.shape();
        let terms = [self.stretch(7, shape)?, self.stretch(8, shape)?, self.stretch(9, shape)?];
        let [p, q, r] = &terms;
        let mut x = self.inputs[0].clone();
        // Without elements there is nothing to do, and `times` may be huge, since the work it counts is 0.
        let times = if x.data.is_empty() { 0 } else { times };
        for _ in 0..times {
            let mut inputs = self.inputs.to_vec();
            inputs[0] = &x;
            let sums = Call { inputs: &inputs, ..*self }.synapse_sum(activation, axis, 2, shape[axis])?;
            let next = |i: usize| (p[i] * x.data[i] + q[i] + sums[1][i]) / (r[i] + sums[0][i]);
            let data = (0..x.data.len()).map(next).collect();
            // Each repetition's result is rounded as if stored, since the next one reads it.
            x = self.result(0, data);
        }
        Ok(x.data)
    }
}
