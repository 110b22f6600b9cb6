//! Quantization: matrices of floats become codes and scales, and networks use them instead.
//!
//! What codes and scales mean is defined with the operation ([`crate::op::low_bit`]); here they are chosen. A matrix is
//! `[outputs, inputs]`, as PyTorch's `Linear` has it: its rows are quantized, whole, by blocks, or all with one scale.

mod network;
mod search;
mod watch;

pub use network::{Layer, Layers, Weights, prepared};
pub use search::{Cost, choose};
pub use watch::WATCHED;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Code, LowBit};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which numbers share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// All of the matrix.
    Matrix,
    /// Those of a row, which are the weights of one output.
    Row,
    /// So many neighbours of a row.
    Block(usize),
}

/// How a matrix is to be quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scheme {
    /// How codes are packed, and how many there are.
    pub code: Code,
    /// Which numbers share a scale.
    pub share: Share,
    /// Whether there is an offset beside each scale, so that the codes cover the numbers from the least to the greatest
    /// (and 0). Without, they cover as much below 0 as above. Ternary codes have none.
    pub offsets: bool,
    /// The type of scales and offsets. Where `f16` cannot hold a scale, all are `f32`.
    pub scales: DType,
}

impl Scheme {
    /// 8 bits, with a scale for each row.
    pub const INT8: Scheme = Scheme { code: Code::Bits8, share: Share::Row, offsets: false, scales: DType::F32 };
    /// 4 bits, with a scale for each 32 numbers.
    pub const INT4: Scheme = Scheme { code: Code::Bits4, share: Share::Block(32), offsets: false, scales: DType::F16 };
    /// −1, 0 and 1 times the mean absolute value of the matrix.
    pub const TERNARY: Scheme =
        Scheme { code: Code::Ternary4, share: Share::Matrix, offsets: false, scales: DType::F32 };

    /// Bits that a number takes, with its part of scales and offsets, in rows of `len` numbers.
    pub fn bits(&self, rows: usize, len: usize) -> f64 {
        let format = LowBit { code: self.code, len, block: self.block(len), offsets: self.offsets };
        let codes = self.code.row_bytes(len).saturating_mul(8).saturating_mul(rows);
        let scales = if self.share == Share::Matrix { 1 } else { rows * format.blocks() };
        let scales = scales * self.scales.bits() * (format.inputs() - 1);
        (codes + scales) as f64 / (rows * len).max(1) as f64
    }

    fn block(&self, len: usize) -> usize {
        match self.share {
            Share::Matrix | Share::Row => len.max(1),
            Share::Block(block) => block,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match self.code {
            Code::Bits8 => "int8",
            Code::Bits4 => "int4",
            Code::Ternary4 => "ternary",
            Code::Ternary5 => "ternary5",
        };
        write!(f, "{code}")?;
        match self.share {
            Share::Matrix => write!(f, ", one scale")?,
            Share::Row => write!(f, " by row")?,
            Share::Block(block) => write!(f, " by {block}")?,
        }
        if self.offsets { write!(f, ", with offsets") } else { Ok(()) }
    }
}

/// A quantized matrix.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// What codes and scales mean.
    pub format: LowBit,
    /// `u8 [rows, bytes]`
    pub codes: Tensor,
    /// `[rows, blocks]`, or `[1, blocks]` where all rows share them.
    pub scales: Tensor,
    /// Like the scales.
    pub offsets: Option<Tensor>,
}

impl Quantized {
    /// Bytes of codes, scales and offsets.
    pub fn bytes(&self) -> usize {
        self.codes.size() + self.scales.size() + self.offsets.as_ref().map_or(0, Tensor::size)
    }

    /// The numbers that the codes stand for, row after row.
    pub fn numbers(&self) -> Vec<f32> {
        let (rows, blocks) = (self.codes.shape()[0], self.format.blocks());
        let scales = self.scales.to_f64();
        let offsets = self.offsets.as_ref().map(Tensor::to_f64);
        let row_bytes = self.format.code.row_bytes(self.format.len);
        let shared = self.scales.shape()[0] == 1;
        let mut numbers = Vec::with_capacity(rows * self.format.len);
        for row in 0..rows {
            let codes = &self.codes.bytes()[row * row_bytes..][..row_bytes];
            for at in 0..self.format.len {
                let scale = if shared { 0 } else { row * blocks } + at / self.format.block;
                let offset = offsets.as_ref().map_or(0.0, |offsets| offsets[scale] as f32);
                numbers.push(self.format.number(self.format.code.get(codes, at), scales[scale] as f32, offset));
            }
        }
        numbers
    }
}

/// Quantizes a matrix of `f32`, `[rows, len]`. `importance`, if given, has a number for each column: by how much an error
/// there counts (the mean square of what the column is multiplied with, where samples are known).
///
/// Of the scales that might do, each block gets the one with the least error, weighted so: clipping a few large numbers can
/// make all others more exact. Infinity and NaN are refused.
pub fn quantize(matrix: &Tensor, scheme: Scheme, importance: Option<&[f32]>) -> Result<Quantized> {
    let refuse =
        |problem: String| Error::Tensor { expected: "a matrix of finite f32 to quantize".into(), got: problem };
    let &[rows, len] = matrix.shape() else { return Err(refuse(matrix.to_string())) };
    let numbers = matrix.values::<f32>()?;
    if let Some(at) = numbers.iter().position(|x| !x.is_finite()) {
        return Err(refuse(format!("{} at [{}, {}] of {matrix}", numbers[at], at / len, at % len)));
    }
    if importance.is_some_and(|all| all.len() != len || all.iter().any(|w| !w.is_finite() || *w < 0.0)) {
        return Err(refuse(format!("importances that are not {len} numbers from 0 on, for {matrix}")));
    }
    let ternary = scheme.code.levels() == 3;
    if scheme.block(len) == 0 || (ternary && scheme.offsets) || !scheme.scales.is_float() {
        return Err(refuse(format!("the scheme `{scheme}` with scales of {}", scheme.scales)));
    }
    let made = with_scales(numbers, [rows, len], scheme, importance)?;
    match made {
        Some(made) => Ok(made),
        None => with_scales(numbers, [rows, len], Scheme { scales: DType::F32, ..scheme }, importance)?
            .ok_or_else(|| refuse(format!("numbers whose scale f32 cannot hold, in {matrix}"))),
    }
}

/// A matrix of `f32` in half precision: each number becomes the nearest one of `f16` or `bf16`, ties to even. Infinity, NaN and
/// numbers that are too large for the type are refused.
pub fn halve(matrix: &Tensor, to: DType) -> Result<Tensor> {
    let refuse = |problem: String| Error::Tensor { expected: format!("finite f32 that {to} can hold"), got: problem };
    if !matches!(to, DType::F16 | DType::Bf16) {
        return Err(Error::Tensor { expected: "f16 or bf16".into(), got: to.to_string() });
    }
    let numbers = matrix.values::<f32>()?;
    let wide: Vec<f64> = numbers.iter().map(|x| f64::from(*x)).collect();
    let halves = Tensor::from_f64(to, matrix.shape(), &wide)?;
    match halves.to_f64().iter().position(|x| !x.is_finite()) {
        Some(at) => Err(refuse(format!("{} at number {at} of {matrix}", numbers[at]))),
        None => Ok(halves),
    }
}

/// `None` if the type of the scales cannot hold one of them.
fn with_scales(
    numbers: &[f32],
    [rows, len]: [usize; 2],
    scheme: Scheme,
    importance: Option<&[f32]>,
) -> Result<Option<Quantized>> {
    let format = LowBit { code: scheme.code, len, block: scheme.block(len), offsets: scheme.offsets };
    let (blocks, row_bytes) = (format.blocks(), scheme.code.row_bytes(len));
    let stored = |x: f32| -> Result<f32> { Ok(Tensor::from_f64(scheme.scales, &[], &[x.into()])?.to_f64()[0] as f32) };
    // The numbers that share a scale are those of the ranges of all rows, or of one.
    let (mut scales, mut offsets) = (vec![], vec![]);
    let groups = if scheme.share == Share::Matrix { 1 } else { rows };
    for group in 0..groups {
        let group = if scheme.share == Share::Matrix { 0..rows } else { group..group + 1 };
        for block in 0..blocks {
            let columns = block * format.block..len.min((block + 1) * format.block);
            let of_row =
                |row: usize| columns.clone().map(move |k| (numbers[row * len + k], importance.map_or(1.0, |w| w[k])));
            let part: Vec<(f32, f32)> = group.clone().flat_map(of_row).collect();
            let (scale, offset) = best(&format, &part, importance.is_some(), &stored)?;
            if !scale.is_finite()
                || !offset.is_finite()
                || (scale == 0.0 && offset == 0.0 && part.iter().any(|(x, _)| *x != 0.0))
            {
                return Ok(None);
            }
            scales.push(f64::from(scale));
            offsets.push(f64::from(offset));
        }
    }
    let mut codes = vec![0u8; rows * row_bytes];
    for row in 0..rows {
        let codes = &mut codes[row * row_bytes..][..row_bytes];
        for k in 0..len {
            let at = if scheme.share == Share::Matrix { 0 } else { row * blocks } + k / format.block;
            let code = nearest(&format, numbers[row * len + k], scales[at] as f32, offsets[at] as f32);
            format.code.put(codes, k, code);
        }
    }
    let shape = [groups, blocks];
    let floats = |values: &[f64]| Tensor::from_f64(scheme.scales, &shape, values);
    let offsets = scheme.offsets.then(|| floats(&offsets)).transpose()?;
    let codes = Tensor::new(&[rows, row_bytes], &codes)?;
    Ok(Some(Quantized { format, codes, scales: floats(&scales)?, offsets }))
}

/// The code whose number is nearest.
fn nearest(format: &LowBit, x: f32, scale: f32, offset: f32) -> u8 {
    let most = f32::from(format.code.levels()) - 1.0;
    if scale == 0.0 {
        return if format.offsets { 0 } else { format.code.centre() };
    }
    let code = if format.offsets { (x - offset) / scale } else { x / scale + f32::from(format.code.centre()) };
    code.round_ties_even().clamp(0.0, most) as u8
}

/// How much smaller than needed for the largest number a scale may be, in steps of this many hundredths, down to the last.
const SHRINK: [u32; 2] = [2, 40];

/// Scale and offset for numbers with their importance.
fn best(
    format: &LowBit,
    part: &[(f32, f32)],
    weighted: bool,
    stored: &dyn Fn(f32) -> Result<f32>,
) -> Result<(f32, f32)> {
    let (low, high) = part.iter().fold((0.0f32, 0.0f32), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
    let most = high.max(-low);
    let (levels, centre) = (f32::from(format.code.levels()), f32::from(format.code.centre()));
    if format.code.levels() == 3 {
        // Numbers that are −s, 0 and s already, as training for it leaves them, keep their s.
        if part.iter().all(|(x, _)| *x == 0.0 || x.abs() == most) {
            return Ok((stored(most)?, 0.0));
        }
        let sum: f64 = part.iter().map(|(x, _)| f64::from(x.abs())).sum();
        return Ok((stored((sum / part.len().max(1) as f64) as f32)?, 0.0));
    }
    // The number with the largest absolute value at the end of the codes; below the centre there is one code more, which a
    // scale of the other sign uses for numbers above 0.
    let mut starts =
        if format.offsets { vec![(high - low) / (levels - 1.0)] } else { vec![most / (levels - centre - 1.0)] };
    if !format.offsets && format.code.levels() <= 16 {
        starts.push(if high >= -low { -most / centre } else { most / centre });
    }
    let [step, last] = if weighted || format.code.levels() <= 16 { SHRINK } else { [1, 0] };
    let mut found: Option<(f64, f32, f32)> = None;
    for start in starts {
        for hundredths in (0..=last).step_by(step as usize) {
            let scale = stored(start * (1.0 - hundredths as f32 / 100.0))?;
            let offset = match format.offsets {
                // 0 is a code: then it stays exactly 0, as masked weights must.
                true if scale != 0.0 => stored(-((-low / scale).round_ties_even().clamp(0.0, levels - 1.0) * scale))?,
                _ => 0.0,
            };
            let error: f64 = part
                .iter()
                .map(|(x, weight)| {
                    let off = f64::from(x - format.number(nearest(format, *x, scale, offset), scale, offset));
                    off * off * f64::from(*weight)
                })
                .sum();
            if found.is_none_or(|(least, ..)| error < least) {
                found = Some((error, scale, offset));
            }
        }
    }
    Ok(found.map_or((0.0, 0.0), |(_, scale, offset)| (scale, offset)))
}

/// How far numbers are from what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// The largest absolute difference.
    pub max: f64,
    /// The root of the mean square of the differences.
    pub rms: f64,
    /// That root over the root of the mean square of what they should be; `None` where that is 0.
    pub relative: Option<f64>,
    /// The power of what they should be over that of the differences, in decibels; `None` where either is 0.
    pub snr: Option<f64>,
    /// The cosine of the angle between both, as vectors; `None` where one of them is 0.
    pub cosine: Option<f64>,
}

impl Errors {
    /// Of `got` where `want` was expected; only as many as both have are compared.
    pub fn of(want: &[f32], got: &[f32]) -> Errors {
        let (mut max, mut noise, mut power, mut both, mut own) = (0.0f64, 0.0, 0.0, 0.0, 0.0);
        for (w, g) in want.iter().zip(got) {
            let (w, g) = (f64::from(*w), f64::from(*g));
            // `f64::max` would drop NaN.
            max = if (w - g).abs() > max || (w - g).is_nan() { (w - g).abs() } else { max };
            noise += (w - g) * (w - g);
            power += w * w;
            both += w * g;
            own += g * g;
        }
        let count = want.len().min(got.len()).max(1) as f64;
        let positive = |x: f64| x > 0.0;
        Errors {
            max,
            rms: (noise / count).sqrt(),
            relative: positive(power).then(|| (noise / power).sqrt()),
            snr: (positive(power) && positive(noise)).then(|| 10.0 * (power / noise).log10()),
            cosine: (positive(power) && positive(own)).then(|| both / (power.sqrt() * own.sqrt())),
        }
    }
}
