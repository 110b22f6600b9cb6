//! Numbers kept in few bits: what codes, scales and offsets mean, bit by bit.
//!
//! A matrix of low-bit numbers consists of rows (of `len` numbers each, packed along the row) and of scales, each of
//! which is shared by `block` neighbouring numbers of a row. `docs/quantization.md` shows the layout in pictures.

use super::{MAX_PROGRAM_INPUTS, Map, Type};
use crate::dtype::DType;
use crate::shape::{Dim, Shape};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How small whole numbers, the codes, are packed into bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// 0 to 255, one to a byte.
    Bits8,
    /// 0 to 15, two to a byte: code 2i in the low half of byte i, code 2i + 1 in the high half.
    Bits4,
    /// 0 to 2, four to a byte: code 4i + j in bits 2j and 2j + 1 of byte i.
    Ternary4,
    /// 0 to 2, five to a byte: byte i is the sum of 3ʲ · code 5i + j.
    Ternary5,
}

impl Code {
    /// Every way of packing.
    pub const ALL: [Code; 4] = [Code::Bits8, Code::Bits4, Code::Ternary4, Code::Ternary5];

    /// Its name in text.
    pub fn name(self) -> &'static str {
        match self {
            Code::Bits8 => "8 bits",
            Code::Bits4 => "4 bits",
            Code::Ternary4 => "ternary, four to a byte",
            Code::Ternary5 => "ternary, five to a byte",
        }
    }

    /// How many codes a byte holds.
    pub fn in_a_byte(self) -> usize {
        match self {
            Code::Bits8 => 1,
            Code::Bits4 => 2,
            Code::Ternary4 => 4,
            Code::Ternary5 => 5,
        }
    }

    /// How many different codes there are.
    pub fn levels(self) -> u16 {
        match self {
            Code::Bits8 => 256,
            Code::Bits4 => 16,
            Code::Ternary4 | Code::Ternary5 => 3,
        }
    }

    /// The code that stands for 0 where there are no offsets.
    pub fn centre(self) -> u8 {
        (self.levels() / 2) as u8
    }

    /// Bytes of a row of `len` codes.
    pub fn row_bytes(self, len: usize) -> usize {
        len.div_ceil(self.in_a_byte())
    }

    /// Code number `at` of a packed row.
    pub fn get(self, row: &[u8], at: usize) -> u8 {
        let byte = row[at / self.in_a_byte()];
        let place = at % self.in_a_byte();
        match self {
            Code::Bits8 => byte,
            Code::Bits4 => byte >> (4 * place) & 15,
            Code::Ternary4 => byte >> (2 * place) & 3,
            Code::Ternary5 => byte / 3u8.pow(place as u32) % 3,
        }
    }

    /// Adds code number `at` to a packed row, where it is still 0.
    pub fn put(self, row: &mut [u8], at: usize, code: u8) {
        let place = (at % self.in_a_byte()) as u32;
        row[at / self.in_a_byte()] += match self {
            Code::Bits8 => code,
            Code::Bits4 => code << (4 * place),
            Code::Ternary4 => code << (2 * place),
            Code::Ternary5 => code * 3u8.pow(place),
        };
    }

    /// Whether a byte of a packed row holds only codes that exist.
    pub fn is_valid(self, byte: u8) -> bool {
        match self {
            Code::Bits8 | Code::Bits4 => true,
            // A pair of bits must not be 3: both its bits would be set.
            Code::Ternary4 => byte & byte >> 1 & 0x55 == 0,
            Code::Ternary5 => byte < 243,
        }
    }
}

/// The format of a low-bit matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LowBit {
    /// How codes are packed.
    pub code: Code,
    /// Numbers of a row.
    pub len: usize,
    /// Neighbouring numbers of a row that share a scale; the last block of a row may be shorter.
    pub block: usize,
    /// Whether there is an offset beside each scale. Number c is then c · scale + offset, and (c − centre) · scale
    /// without.
    pub offsets: bool,
}

/// A product in integers sums at most this many numbers before the sum is scaled, so that 32 bits hold it.
pub const LONGEST_SUM: usize = 1 << 15;

impl LowBit {
    /// How many blocks a row has.
    pub fn blocks(&self) -> usize {
        self.len.div_ceil(self.block.max(1))
    }

    /// How many inputs of an operation such a matrix takes: codes, scales, and offsets if there are any.
    pub fn inputs(&self) -> usize {
        if self.offsets { 3 } else { 2 }
    }

    /// What a code stands for: each operation is rounded to `f32`.
    pub fn number(&self, code: u8, scale: f32, offset: f32) -> f32 {
        match self.offsets {
            false => (f32::from(code) - f32::from(self.code.centre())) * scale,
            true => f32::from(code) * scale + offset,
        }
    }

    /// Checks the types of codes, scales and offsets; gives the shape of the numbers.
    pub(crate) fn infer(&self, inputs: &[&Type]) -> Result<Shape, String> {
        if self.block == 0 || self.len > isize::MAX as usize / 8 {
            return Err(format!("rows of {} numbers in blocks of {}", self.len, self.block));
        }
        let [codes, scales, ..] = inputs else { return Err(format!("wants codes and scales, got {inputs:?}")) };
        let bytes = self.code.row_bytes(self.len);
        if codes.dtype != DType::U8 || codes.shape.dims().last().is_none_or(|d| !d.is(bytes)) {
            return Err(format!("{} codes of {} take u8[…, {bytes}], got {codes}", self.len, self.code.name()));
        }
        let lead = Shape::from(codes.shape.dims()[..codes.shape.rank() - 1].to_vec());
        let blocks = self.blocks();
        let fits = scales.dtype.is_float() && scales.shape.dims().last().is_some_and(|d| d.is(blocks)) && {
            let own = Shape::from(scales.shape.dims()[..scales.shape.rank() - 1].to_vec());
            own.broadcast(&lead).as_ref() == Some(&lead)
        };
        if !fits {
            return Err(format!("codes {codes} in blocks of {} take scales […, {blocks}], got {scales}", self.block));
        }
        if inputs.len() != self.inputs() || inputs.get(2).is_some_and(|offsets| offsets != scales) {
            return Err(format!("offsets must be like the scales {scales}, and only where there are any: {inputs:?}"));
        }
        Ok(lead.dims().iter().cloned().chain([Dim::fixed(self.len)]).collect::<Vec<_>>().into())
    }
}

impl fmt::Display for LowBit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code.name())?;
        if self.block < self.len {
            write!(f, ", blocks of {}", self.block)?;
        }
        if self.offsets {
            write!(f, ", with offsets")?;
        }
        Ok(())
    }
}

/// A product with low-bit weights: see [`super::Op::LowBitMatMul`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LowBitMatMul {
    /// The weights' format.
    pub weights: LowBit,
    /// Whether rows are rounded first, as [`super::Op::RoundRows`] does.
    pub rounded: bool,
    /// What is done to each element of the product, if anything: input 0 of the program is the product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Map>,
    /// The result's element type.
    pub dtype: DType,
}

impl LowBitMatMul {
    /// How many inputs are x and the weights; inputs of the program follow.
    pub fn operands(&self) -> usize {
        1 + self.weights.inputs()
    }

    pub(crate) fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let operands = self.operands();
        if inputs.len() < operands || inputs.len() > operands + MAX_PROGRAM_INPUTS {
            return Err(format!("takes x, the weights' {} inputs and those of its program", operands - 1));
        }
        let weights = self.weights.infer(&inputs[1..operands])?;
        let (x, rank) = (inputs[0], inputs[0].shape.rank());
        if x.dtype != DType::F32 || weights.rank() != 2 || rank < 2 || !x.shape[rank - 1].is(self.weights.len) {
            return Err(format!("wants rows f32[…, {}] and one matrix, got {x} and {weights}", self.weights.len));
        }
        let lead = &x.shape.dims()[..rank - 1];
        let product: Shape = lead.iter().cloned().chain([weights[0].clone()]).collect::<Vec<_>>().into();
        let extra = &inputs[operands..];
        match &self.then {
            Some(map) => {
                map.check()?;
                if map.inputs() > extra.len() + 1 {
                    return Err(format!("the program reads {} inputs, got {}", map.inputs(), extra.len() + 1));
                }
                if let Some(bad) = extra.iter().find(|ty| ty.shape.broadcast(&product).as_ref() != Some(&product)) {
                    return Err(format!("{bad} does not stretch to the product's {product}"));
                }
            }
            None if !extra.is_empty() || self.dtype != DType::F32 => {
                return Err(format!("without a program gives f32 and takes {operands} inputs, got {}", inputs.len()));
            }
            None => {}
        }
        Ok(Type::new(self.dtype, product))
    }
}

/// How a row is rounded to 8 bits.
///
/// The step is the largest absolute value over 127. Where that is 0, or so small that 1 over it is infinite, everything
/// is 0. Where a value is infinite or NaN, the step is NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding {
    /// The distance between neighbours.
    pub step: f32,
    /// What values are multiplied with before they are rounded.
    each: f32,
}

impl Rounding {
    /// For a row of these values.
    pub fn of(row: impl Iterator<Item = f32>) -> Rounding {
        let (most, finite) = row.fold((0.0f32, true), |(most, finite), x| (most.max(x.abs()), finite && x.is_finite()));
        let step = most / 127.0;
        match (finite, (1.0 / step).is_finite()) {
            (false, _) => Rounding { step: f32::NAN, each: 0.0 },
            (true, true) => Rounding { step, each: 1.0 / step },
            (true, false) => Rounding { step: 0.0, each: 0.0 },
        }
    }

    /// A value as a multiple of the step, from −127 to 127.
    pub fn whole(self, x: f32) -> i8 {
        if self.each == 0.0 {
            return 0;
        }
        (x * self.each).round_ties_even().clamp(-127.0, 127.0) as i8
    }

    /// A value rounded.
    pub fn round(self, x: f32) -> f32 {
        f32::from(self.whole(x)) * self.step
    }
}
