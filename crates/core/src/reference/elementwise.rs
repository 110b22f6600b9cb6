//! Operations in which each element of the result depends only on the inputs' elements at the same position.

use super::{Call, Precision, scalar, shake};
use crate::dtype::DType::{self, F32};
use crate::error::{Error, Result};
use crate::op::custom::{self, Form};
use crate::op::{Binary, Compare, Map, MapResult, Unary};
use std::borrow::Cow;

impl Call<'_> {
    pub(super) fn unary(&self, op: Unary) -> Result<Vec<f64>> {
        let x = self.inputs[0];
        Ok(match x.dtype {
            DType::I32 => x.data.iter().map(|&v| scalar::unary_i32(op, v as i32).into()).collect(),
            _ if op.is_exact() => x.data.iter().map(|&v| op.value(v)).collect(),
            dtype => {
                let one = |&v: &f64| {
                    let value = op.value(v);
                    self.computed(dtype, value, scalar::unary_scale(op, v, value))
                };
                x.data.iter().map(one).collect()
            }
        })
    }

    fn pairs<T>(&self, f: impl Fn(f64, f64) -> T) -> Result<Vec<T>> {
        let (a, b) = (self.stretch(0, self.shape())?, self.stretch(1, self.shape())?);
        Ok(a.iter().zip(b.iter()).map(|(&a, &b)| f(a, b)).collect())
    }

    pub(super) fn binary(&self, op: Binary) -> Result<Vec<f64>> {
        match self.inputs[0].dtype {
            DType::I32 => self.pairs(|a, b| scalar::binary_i32(op, a as i32, b as i32).into()),
            _ if op.is_exact() => self.pairs(|a, b| scalar::binary(op, a, b)),
            dtype => self.pairs(|a, b| {
                let value = scalar::binary(op, a, b);
                self.computed(dtype, value, scalar::binary_scale(op, a, b, value))
            }),
        }
    }

    pub(super) fn compare(&self, op: Compare) -> Result<Vec<f64>> {
        self.pairs(|a, b| scalar::truth(scalar::compare(op, a, b)))
    }

    pub(super) fn select(&self) -> Result<Vec<f64>> {
        let [c, a, b] = [0, 1, 2].map(|i| self.stretch(i, self.shape()));
        let (c, a, b) = (c?, a?, b?);
        Ok(c.iter().zip(a.iter().zip(b.iter())).map(|(&c, (&a, &b))| if c != 0.0 { a } else { b }).collect())
    }

    pub(super) fn custom(&self, name: &str) -> Result<Vec<Vec<f64>>> {
        let custom = custom::get(name).map_err(|problem| self.fail(problem))?;
        let fail = |problem| Error::Custom { name: name.into(), problem };
        match custom.form() {
            Form::Elements { definition, .. } => {
                let inputs =
                    (0..self.inputs.len()).map(|i| self.stretch(i, self.shape())).collect::<Result<Vec<_>>>()?;
                let count = inputs.first().map_or(0, |x| x.len());
                let one = |at: usize| custom::value(definition, &inputs.iter().map(|x| x[at]).collect::<Vec<_>>());
                Ok(vec![(0..count).map(one).collect::<std::result::Result<_, _>>().map_err(fail)?])
            }
            Form::Places(places) => {
                let sizes = places.sizes(self.inputs.iter().map(|x| x.shape.clone()).collect()).map_err(fail)?;
                let mut results = self.outs.iter().map(|(_, shape)| self.zeros(shape)).collect::<Result<Vec<_>>>()?;
                let mut read = |input: usize, number: usize| {
                    let x = self.inputs[input];
                    custom::as_seen(x.dtype, x.data[number])
                };
                let mut put = |result: usize, number: usize, value: f64| results[result][number] = value;
                places.whole(&sizes, &mut read, &mut put).map_err(fail)?;
                Ok(results)
            }
        }
    }

    pub(super) fn cast(&self, dtype: DType) -> Result<Vec<f64>> {
        let x = self.inputs[0];
        Ok(x.data.iter().map(|&v| scalar::cast(x.dtype, dtype, v)).collect())
    }

    /// clamp(round(x / scale) + zero point)
    ///
    /// The quotient is rounded to `f32` before it is rounded to an integer: otherwise a quotient that `f32` cannot tell
    /// from a half would round one way here and the other way in every backend that divides in `f32`.
    pub(super) fn quantize(&self, dtype: DType) -> Result<Vec<f64>> {
        let (least, most) = if dtype == DType::I8 { (-128.0, 127.0) } else { (0.0, 255.0) };
        let [x, scale, zero] = [0, 1, 2].map(|i| self.stretch(i, self.shape()));
        let (x, scale, zero) = (x?, scale?, zero?);
        let one = |(&x, (&scale, &zero)): (&f64, (&f64, &f64))| {
            let steps = f64::from((x / scale) as f32).round_ties_even();
            let q = if steps.is_nan() { zero } else { steps + zero };
            q.clamp(least, most)
        };
        Ok(x.iter().zip(scale.iter().zip(zero.iter())).map(one).collect())
    }

    /// (q − zero point) · scale
    pub(super) fn dequantize(&self) -> Result<Vec<f64>> {
        let [q, scale, zero] = [0, 1, 2].map(|i| self.stretch(i, self.shape()));
        let (q, scale, zero) = (q?, scale?, zero?);
        Ok(q.iter().zip(scale.iter().zip(zero.iter())).map(|(&q, (&scale, &zero))| (q - zero) * scale).collect())
    }

    /// Input `i` as a program reads it: stretched, and an `i32` widened to `f32`, which cannot hold them all.
    fn map_input(&self, i: usize) -> Result<Cow<'_, [f64]>> {
        let data = self.stretch(i, self.shape())?;
        if self.inputs[i].dtype == DType::I32 {
            return Ok(data.iter().map(|&v| f64::from(v as f32)).collect::<Vec<_>>().into());
        }
        Ok(data)
    }

    pub(super) fn map(&self, map: &Map, dtype: DType, also: &[MapResult]) -> Result<Vec<Vec<f64>>> {
        let inputs: Vec<Cow<'_, [f64]>> = (0..self.inputs.len()).map(|i| self.map_input(i)).collect::<Result<_>>()?;
        let mut results: Vec<Vec<f64>> = (0..=also.len()).map(|_| self.zeros(self.shape())).collect::<Result<_>>()?;
        let mut scratch = vec![];
        for at in 0..results[0].len() {
            let input = |n: usize| inputs.get(n).map(|d| d[at]);
            let last = scalar::map(map, &mut scratch, input, |v, scale| self.computed(F32, v, scale));
            results[0][at] = self.store(dtype, last);
            for (result, r) in results[1..].iter_mut().zip(also) {
                result[at] = self.store(r.dtype, scratch[usize::from(r.at)]);
            }
        }
        Ok(results)
    }

    pub(super) fn matmul_map(&self, ta: bool, tb: bool, map: &Map, dtype: DType) -> Result<Vec<f64>> {
        self.epilogue(self.matmul(ta, tb)?, 2, map, dtype)
    }

    /// A program on a product: its input 0 is the product, the others are this node's inputs from number `first` on.
    pub(super) fn epilogue(&self, mut data: Vec<f64>, first: usize, map: &Map, dtype: DType) -> Result<Vec<f64>> {
        let inputs = first..self.inputs.len();
        let inputs: Vec<Cow<'_, [f64]>> = inputs.map(|i| self.map_input(i)).collect::<Result<_>>()?;
        let mut scratch = vec![];
        for (at, out) in data.iter_mut().enumerate() {
            let product = *out;
            let input = |n: usize| n.checked_sub(1).map_or(Some(product), |i| inputs.get(i).map(|d| d[at]));
            *out = self.store(dtype, scalar::map(map, &mut scratch, input, |v, scale| self.computed(F32, v, scale)));
        }
        Ok(data)
    }

    /// A computed number, moved a little in a [shaken](Precision::Shaken) run. (In other runs numbers are rounded when
    /// they are stored: see `result`.)
    pub(super) fn computed(&self, dtype: DType, v: f64, scale: f64) -> f64 {
        match self.precision {
            Precision::Shaken(seed) => shake(seed, dtype, v, scale),
            Precision::Storage | Precision::F64 => v,
        }
    }

    /// A program's result as an element. Unlike a cast, which truncates, a program's result is rounded to the nearest
    /// integer, ties to even, as a quantization needs it, which may be part of a program.
    fn store(&self, dtype: DType, v: f64) -> f64 {
        // Rounded to f32 first, so that a conversion to an integer sees what a backend's f32 would hold.
        let v = if self.precision == Precision::Storage { f64::from(v as f32) } else { v };
        let whole = matches!(dtype, DType::I8 | DType::U8 | DType::I32);
        scalar::cast(F32, dtype, if whole { v.round_ties_even() } else { v })
    }
}
