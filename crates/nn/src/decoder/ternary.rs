//! BitNet's matrices in Hugging Face's files: −1, 0 and 1 times one scale.
//!
//! They come in three forms. *Packed*: bytes `[outputs/4, inputs]`; of byte `[r, k]`, bits 2i and 2i + 1 are 1 more than the
//! number at `[i · outputs/4 + r, k]`. *Plain*: the numbers −1, 0 and 1 as floats. Both have a `weight_scale` beside them,
//! which numbers are divided by (linear class `bitlinear`) or multiplied with (`autobitlinear`). *Master*: the floats
//! of training, which become ternary by their mean absolute value.

use crate::{Error, Result};
use schwann_core::op::{Code, LowBit};
use schwann_core::quant::{Quantized, Scheme, quantize};
use schwann_core::{DType, Tensor};

/// What the configuration says of ternary matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ternary {
    /// Packed or plain numbers over the scale.
    Divided,
    /// Packed or plain numbers times the scale.
    Multiplied,
    /// Master weights.
    Master,
}

fn matrix(rows: usize, len: usize, codes: Tensor, scale: f32) -> Result<Quantized> {
    let format = LowBit { code: Code::Ternary4, len, block: len, offsets: false };
    debug_assert_eq!(codes.shape()[0], rows);
    Ok(Quantized { format, codes, scales: Tensor::new(&[1, 1], &[scale])?, offsets: None })
}

/// The number that codes are multiplied with.
pub(super) fn scale(name: &str, stored: &Tensor, kind: Ternary) -> Result<f32> {
    let values = stored.to_f64();
    let &[value] = &values[..] else { return Err(Error::weight(name, stored, "one number")) };
    let scale = if kind == Ternary::Divided { 1.0 / value } else { value } as f32;
    if !scale.is_finite() {
        return Err(Error::weight(name, value, "a scale with finite numbers"));
    }
    Ok(scale)
}

/// Packed bytes `[outputs/4, inputs]`.
pub(super) fn unpack(name: &str, packed: &Tensor, [rows, len]: [usize; 2], scale: f32) -> Result<Quantized> {
    let (bytes, quarter) = (packed.values::<u8>()?, rows / 4);
    if packed.shape() != [quarter, len] || !rows.is_multiple_of(4) || len == 0 {
        let expected = format!("u8[{}, {len}], four rows to a byte, or floats [{rows}, {len}]", rows.div_ceil(4));
        return Err(Error::weight(name, packed, expected));
    }
    if let Some(at) = bytes.iter().position(|byte| !Code::Ternary4.is_valid(*byte)) {
        let got = format!("the byte {:#04x} at [{}, {}]", bytes[at], at / len, at % len);
        return Err(Error::weight(name, got, "bits 00, 01 and 10 for -1, 0 and 1"));
    }
    let row_bytes = Code::Ternary4.row_bytes(len);
    let mut codes = Tensor::zeros(DType::U8, &[rows, row_bytes])?;
    for (row, to) in codes.bytes_mut().chunks_exact_mut(row_bytes).enumerate() {
        let (from, shift) = (&bytes[row % quarter * len..][..len], 2 * (row / quarter));
        for (four, to) in from.chunks(4).zip(to) {
            *to = four.iter().rev().fold(0, |byte, packed| byte << 2 | packed >> shift & 3);
        }
    }
    matrix(rows, len, codes, scale)
}

/// Floats that are −1, 0 or 1.
pub(super) fn plain(name: &str, numbers: &Tensor, [rows, len]: [usize; 2], scale: f32) -> Result<Quantized> {
    let row_bytes = Code::Ternary4.row_bytes(len);
    let mut codes = Tensor::zeros(DType::U8, &[rows, row_bytes])?;
    let to = codes.bytes_mut();
    for (at, number) in numbers.to_f64().into_iter().enumerate() {
        if ![-1.0, 0.0, 1.0].contains(&number) {
            let got = format!("{number} at [{}, {}]", at / len, at % len);
            return Err(Error::weight(name, got, "-1, 0 or 1, since there is a `weight_scale` beside it"));
        }
        Code::Ternary4.put(&mut to[at / len * row_bytes..][..row_bytes], at % len, (number + 1.0) as u8);
    }
    matrix(rows, len, codes, scale)
}

/// Floats of training.
pub(super) fn master(numbers: &Tensor) -> Result<Quantized> {
    let wide = match numbers.dtype() {
        DType::F32 => numbers.clone(),
        _ => Tensor::from_f64(DType::F32, numbers.shape(), &numbers.to_f64())?,
    };
    Ok(quantize(&wide, Scheme::TERNARY, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_rows_are_read_as_transformers_documents_them() {
        // The example in the comment of `unpack_weights`.
        let packed = Tensor::new(&[2, 2], &[0b1010_0001u8, 0b0001_1000, 0b1001_0000, 0b0000_1010]).unwrap();
        let want = [0.0, -1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 0.0, 0.0, -1.0, 1.0, -1.0, 1.0, -1.0];
        let got = unpack("w", &packed, [8, 2], 0.5).unwrap();
        assert_eq!(got.numbers(), want.map(|x: f32| x * 0.5));
        let floats = Tensor::new(&[8, 2], &want).unwrap();
        assert_eq!(plain("w", &floats, [8, 2], 0.5).unwrap().numbers(), got.numbers());
    }

    #[test]
    fn what_is_not_ternary_is_refused() {
        let packed = Tensor::new(&[1, 3], &[0u8, 0b1100, 0]).unwrap();
        let error = unpack("w", &packed, [4, 3], 1.0).unwrap_err().to_string();
        assert!(error.contains("`w` is the byte 0x0c at [0, 1]"), "{error}");
        let error = unpack("w", &packed, [8, 3], 1.0).unwrap_err().to_string();
        assert!(error.contains("is u8[1, 3]; expected u8[2, 3]"), "{error}");
        let floats = Tensor::new(&[1, 2], &[1.0f32, 0.5]).unwrap();
        let error = plain("w", &floats, [1, 2], 1.0).unwrap_err().to_string();
        assert!(error.contains("is 0.5 at [0, 1]"), "{error}");
        assert!(scale("s", &Tensor::scalar(0.0f32), Ternary::Divided).is_err());
        assert!(scale("s", &Tensor::new(&[2], &[1.0f32, 1.0]).unwrap(), Ternary::Multiplied).is_err());
    }
}
