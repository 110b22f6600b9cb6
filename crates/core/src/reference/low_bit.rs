//! Numbers in few bits, and products with them.

use super::Call;
use crate::error::Result;
use crate::op::low_bit::{LONGEST_SUM, Rounding};
use crate::op::{LowBit, LowBitMatMul};

/// The codes, scales and offsets of a low-bit matrix among a node's inputs.
struct Weights<'a> {
    format: &'a LowBit,
    codes: Vec<u8>,
    scales: Vec<f32>,
    offsets: Option<Vec<f32>>,
    rows: usize,
}

impl Weights<'_> {
    fn code(&self, row: usize, at: usize) -> u8 {
        let bytes = self.format.code.row_bytes(self.format.len);
        self.format.code.get(&self.codes[row * bytes..][..bytes], at)
    }
    fn scale(&self, row: usize, block: usize) -> (f32, f32) {
        let at = row * self.format.blocks() + block;
        (self.scales[at], self.offsets.as_ref().map_or(0.0, |offsets| offsets[at]))
    }
    fn number(&self, row: usize, at: usize) -> f32 {
        let (scale, offset) = self.scale(row, at / self.format.block);
        self.format.number(self.code(row, at), scale, offset)
    }
}

impl Call<'_> {
    /// The matrix whose parts begin at input number `first`.
    fn low_bit_weights<'a>(&self, format: &'a LowBit, first: usize) -> Result<Weights<'a>> {
        let codes = self.inputs[first];
        let lead = &codes.shape[..codes.shape.len() - 1];
        let bytes: Vec<u8> = codes.data.iter().map(|c| *c as u8).collect();
        if let Some(bad) = bytes.iter().find(|byte| !format.code.is_valid(**byte)) {
            return Err(self.fail(format!("byte {bad} holds no codes of {}", format.code.name())));
        }
        let blocks: Vec<usize> = lead.iter().copied().chain([format.blocks()]).collect();
        let floats = |input: usize| -> Result<Vec<f32>> {
            Ok(self.stretch(input, &blocks)?.iter().map(|s| *s as f32).collect())
        };
        let offsets = format.offsets.then(|| floats(first + 2)).transpose()?;
        let rows = lead.iter().product();
        Ok(Weights { format, codes: bytes, scales: floats(first + 1)?, offsets, rows })
    }

    pub(super) fn low_bit(&self, format: &LowBit) -> Result<Vec<f64>> {
        let weights = self.low_bit_weights(format, 0)?;
        let mut data = self.zeros(self.shape())?;
        for row in 0..weights.rows {
            for at in 0..format.len {
                data[row * format.len + at] = weights.number(row, at).into();
            }
        }
        Ok(data)
    }

    pub(super) fn round_rows(&self) -> Result<Vec<f64>> {
        let mut data = self.zeros(self.shape())?;
        let len = self.shape().last().copied().unwrap_or(1).max(1);
        for (row, out) in self.inputs[0].data.chunks(len).zip(data.chunks_mut(len)) {
            let rounding = Rounding::of(row.iter().map(|x| *x as f32));
            for (y, x) in out.iter_mut().zip(row) {
                *y = rounding.round(*x as f32).into();
            }
        }
        Ok(data)
    }

    pub(super) fn low_bit_matmul(&self, product: &LowBitMatMul) -> Result<Vec<f64>> {
        let (x, format) = (self.inputs[0], &product.weights);
        let weights = self.low_bit_weights(format, 1)?;
        let mut data = self.zeros(self.shape())?;
        if format.len > 0 && weights.rows > 0 {
            for (row, out) in x.data.chunks(format.len).zip(data.chunks_mut(weights.rows)) {
                match product.rounded {
                    true => {
                        let rounding = Rounding::of(row.iter().map(|x| *x as f32));
                        let rounded: Vec<i8> = row.iter().map(|x| rounding.whole(*x as f32)).collect();
                        for (n, y) in out.iter_mut().enumerate() {
                            *y = (integer_sum(&weights, n, &rounded) * rounding.step).into();
                        }
                    }
                    false => {
                        for (n, y) in out.iter_mut().enumerate() {
                            let terms = row.iter().enumerate().map(|(k, x)| x * f64::from(weights.number(n, k)));
                            *y = terms.fold(0.0, |sum, term| sum + term);
                        }
                    }
                }
            }
        }
        match &product.then {
            Some(map) => self.epilogue(data, product.operands(), map, product.dtype),
            None => Ok(data),
        }
    }
}

/// The sum of a rounded row and row `n` of the weights, before the row's step.
fn integer_sum(weights: &Weights<'_>, n: usize, rounded: &[i8]) -> f32 {
    let (format, mut sum) = (weights.format, 0.0f32);
    for (block, from) in (0..format.len).step_by(format.block).enumerate() {
        let (scale, offset) = weights.scale(n, block);
        let end = format.len.min(from + format.block);
        for from in (from..end).step_by(LONGEST_SUM) {
            let part = from..end.min(from + LONGEST_SUM);
            let of = |k: usize| i32::from(rounded[k]);
            let all: i32 = part.clone().map(of).sum();
            let codes: i32 = part.map(|k| i32::from(weights.code(n, k)) * of(k)).sum();
            sum = match format.offsets {
                false => ((codes - i32::from(format.code.centre()) * all) as f32).mul_add(scale, sum),
                true => (codes as f32).mul_add(scale, (all as f32).mul_add(offset, sum)),
            };
        }
    }
    sum
}
