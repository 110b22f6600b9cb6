//! ggml's element types, and how its blocks of low-bit numbers become our codes and scales.
//!
//! ggml keeps the scale of a block beside its codes and spreads neighbouring codes over the block; here codes of a row lie
//! in order, apart from the scales ([`Code`]). Every number keeps its exact value: products of scales are rounded to
//! `f32` as ggml rounds them.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Code, LowBit};
use crate::quant::Quantized;
use crate::tensor::Tensor;
use half::f16;

/// An element type of ggml.
pub(super) struct Layout {
    /// The number that stands for it in files.
    pub(super) number: u32,
    pub(super) name: &'static str,
    /// Numbers of a block.
    pub(super) block: usize,
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// Bytes that follow the blocks of a tensor.
    pub(super) after: usize,
    pub(super) content: Content,
}

#[derive(Clone, Copy)]
pub(super) enum Content {
    Floats(DType),
    LowBit(Packed),
    /// One that is only known by name and size.
    Other,
}

/// How a low-bit type is read.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    code: Code,
    /// How many neighbours share a scale; `None` where one `f32` for all numbers follows the blocks.
    share: Option<usize>,
    scales: DType,
    offsets: bool,
    unpack: fn(&[u8], &mut Block),
}

/// What a block of ggml holds, in order. Of each, only as many are used as the type has.
struct Block {
    codes: [u8; 256],
    scales: [f32; 16],
    offsets: [f32; 16],
}

const fn low_bit(
    (number, name): (u32, &'static str),
    (block, bytes): (usize, usize),
    (code, share, scales): (Code, usize, DType),
    unpack: fn(&[u8], &mut Block),
) -> Layout {
    let packed = Packed { code, share: Some(share), scales, offsets: false, unpack };
    Layout { number, name, block, bytes, after: 0, content: Content::LowBit(packed) }
}

const fn floats(number: u32, name: &'static str, bytes: usize, dtype: DType) -> Layout {
    Layout { number, name, block: 1, bytes, after: 0, content: Content::Floats(dtype) }
}

const fn other(number: u32, name: &'static str, block: usize, bytes: usize) -> Layout {
    Layout { number, name, block, bytes, after: 0, content: Content::Other }
}

/// The types, by number. Sizes of those that are not read serve to find where a file is truncated.
pub(super) static LAYOUTS: [Layout; 35] = [
    floats(0, "F32", 4, DType::F32),
    floats(1, "F16", 2, DType::F16),
    low_bit((2, "Q4_0"), (32, 18), (Code::Bits4, 32, DType::F16), q4_0),
    other(3, "Q4_1", 32, 20),
    other(6, "Q5_0", 32, 22),
    other(7, "Q5_1", 32, 24),
    low_bit((8, "Q8_0"), (32, 34), (Code::Bits8, 32, DType::F16), q8_0),
    other(9, "Q8_1", 32, 36),
    other(10, "Q2_K", 256, 84),
    other(11, "Q3_K", 256, 110),
    Layout {
        number: 12,
        name: "Q4_K",
        block: 256,
        bytes: 144,
        after: 0,
        content: Content::LowBit(Packed {
            code: Code::Bits4,
            share: Some(32),
            scales: DType::F32,
            offsets: true,
            unpack: q4_k,
        }),
    },
    other(13, "Q5_K", 256, 176),
    low_bit((14, "Q6_K"), (256, 210), (Code::Bits8, 16, DType::F32), q6_k),
    other(15, "Q8_K", 256, 292),
    other(16, "IQ2_XXS", 256, 66),
    other(17, "IQ2_XS", 256, 74),
    other(18, "IQ3_XXS", 256, 98),
    other(19, "IQ1_S", 256, 50),
    other(20, "IQ4_NL", 32, 18),
    other(21, "IQ3_S", 256, 110),
    other(22, "IQ2_S", 256, 82),
    other(23, "IQ4_XS", 256, 136),
    other(24, "I8", 1, 1),
    other(25, "I16", 1, 2),
    other(26, "I32", 1, 4),
    other(27, "I64", 1, 8),
    other(28, "F64", 1, 8),
    other(29, "IQ1_M", 256, 56),
    floats(30, "BF16", 2, DType::Bf16),
    low_bit((34, "TQ1_0"), (256, 54), (Code::Ternary4, 256, DType::F16), tq1_0),
    low_bit((35, "TQ2_0"), (256, 66), (Code::Ternary4, 256, DType::F16), tq2_0),
    // The type of bitnet.cpp: the scale, and bytes without meaning that fill 32.
    Layout {
        number: 36,
        name: "I2_S",
        block: 128,
        bytes: 32,
        after: 32,
        content: Content::LowBit(Packed {
            code: Code::Ternary4,
            share: None,
            scales: DType::F32,
            offsets: false,
            unpack: i2_s,
        }),
    },
    other(39, "MXFP4", 32, 17),
    other(40, "NVFP4", 64, 36),
    other(41, "Q1_0", 128, 18),
];

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The scale, then codes of which 0 is the least whole number that 8 bits hold.
fn q8_0(from: &[u8], to: &mut Block) {
    to.scales[0] = half_at(from, 0);
    for (code, byte) in to.codes.iter_mut().zip(&from[2..34]) {
        *code = byte ^ 0x80;
    }
}

/// The scale, then the first 16 codes in the low halves of the bytes and the others in the high halves.
fn q4_0(from: &[u8], to: &mut Block) {
    to.scales[0] = half_at(from, 0);
    halves(&from[2..18], &mut to.codes);
}

fn halves(from: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(from.len());
    for ((low, high), byte) in low.iter_mut().zip(high).zip(from) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// Factors of all scales and of all offsets; eight scales and eight offsets of 6 bits in 12 bytes; then codes.
fn q4_k(from: &[u8], to: &mut Block) {
    let (scale, offset) = (half_at(from, 0), half_at(from, 2));
    let six = &from[4..16];
    for j in 0..8 {
        let (s, m) = match j {
            // The last four have their upper 2 bits where the first four have none.
            0..4 => (six[j] & 63, six[j + 4] & 63),
            _ => (six[j + 4] & 15 | six[j - 4] >> 6 << 4, six[j + 4] >> 4 | six[j] >> 6 << 4),
        };
        to.scales[j] = scale * f32::from(s);
        to.offsets[j] = -(offset * f32::from(m));
    }
    for (from, codes) in from[16..144].chunks_exact(32).zip(to.codes.chunks_exact_mut(64)) {
        halves(from, codes);
    }
}

/// The lower 4 bits of the codes, their upper 2 bits, 16 scales of 8 bits, and the factor of all scales.
fn q6_k(from: &[u8], to: &mut Block) {
    let scale = half_at(from, 208);
    for (to, from) in to.scales.iter_mut().zip(&from[192..208]) {
        *to = scale * f32::from(*from as i8);
    }
    for (half, codes) in to.codes.chunks_exact_mut(128).enumerate() {
        let (low, high) = (&from[64 * half..][..64], &from[128 + 32 * half..][..32]);
        for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
            let low = &low[32 * (part % 2)..][..32];
            for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
                let six = low >> (4 * (part / 2)) & 15 | (high >> (2 * part) & 3) << 4;
                // Of 6 bits 32 stands for 0, of 8 bits 128.
                *code = six + (128 - 32);
            }
        }
    }
}

/// Five codes to a byte, which is a fraction of 256: times 3, the whole part is the next code. Four to each of the last
/// four bytes. Then the scale.
fn tq1_0(from: &[u8], to: &mut Block) {
    let (five, rest) = to.codes.split_at_mut(240);
    let (most, some) = five.split_at_mut(160);
    for (codes, bytes) in [(most, &from[..32]), (some, &from[32..48]), (rest, &from[48..52])] {
        for (n, codes) in codes.chunks_exact_mut(bytes.len()).enumerate() {
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = ((u16::from(byte.wrapping_mul(3u8.pow(n as u32))) * 3) >> 8) as u8;
            }
        }
    }
    to.scales[0] = half_at(from, 52);
}

/// In each 32 bytes 128 codes: the first 32 in the lowest 2 bits. Then the scale.
fn tq2_0(from: &[u8], to: &mut Block) {
    for (bytes, codes) in from[..64].chunks_exact(32).zip(to.codes.chunks_exact_mut(128)) {
        for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = byte >> (2 * part) & 3;
            }
        }
    }
    to.scales[0] = half_at(from, 64);
}

/// In 32 bytes 128 codes: the first 32 in the highest 2 bits. This is what bitnet.cpp writes on x86; files that it writes
/// on ARM have 64 codes in 16 bytes under the same number, and nothing in them tells which.
fn i2_s(from: &[u8], to: &mut Block) {
    for (part, codes) in to.codes[..128].chunks_exact_mut(32).enumerate() {
        for (code, byte) in codes.iter_mut().zip(from) {
            *code = byte >> (6 - 2 * part) & 3;
        }
    }
}

/// Scales or offsets that are being written.
enum Floats<'a> {
    F16(&'a mut [f16]),
    F32(&'a mut [f32]),
}

impl<'a> Floats<'a> {
    fn of(tensor: &'a mut Tensor) -> Result<Floats<'a>> {
        Ok(match tensor.dtype() {
            DType::F16 => Floats::F16(tensor.values_mut()?),
            _ => Floats::F32(tensor.values_mut()?),
        })
    }
    fn put(&mut self, at: usize, values: &[f32]) {
        match self {
            // Exact: they were f16 before.
            Floats::F16(to) => {
                to[at..at + values.len()].iter_mut().zip(values).for_each(|(to, x)| *to = f16::from_f32(*x));
            }
            Floats::F32(to) => to[at..at + values.len()].copy_from_slice(values),
        }
    }
}

impl Packed {
    /// Reads rows of `len` numbers, a multiple of the layout's block, from as many bytes as they take. There is at least
    /// one row and one number.
    pub(super) fn read(&self, layout: &Layout, [rows, len]: [usize; 2], bytes: &[u8]) -> Result<Quantized> {
        let format = LowBit { code: self.code, len, block: self.share.unwrap_or(len), offsets: self.offsets };
        let row_bytes = len / layout.block * layout.bytes;
        let shape = if self.share.is_some() { [rows, format.blocks()] } else { [1, 1] };
        let mut scales = Tensor::zeros(self.scales, &shape)?;
        let mut offsets = if self.offsets { Some(Tensor::zeros(self.scales, &shape)?) } else { None };
        let mut codes = Tensor::zeros(DType::U8, &[rows, self.code.row_bytes(len)])?;
        let (blocks, after) = bytes.split_at(rows * row_bytes);
        let mut into_scales = Floats::of(&mut scales)?;
        let mut into_offsets = offsets.as_mut().map(Floats::of).transpose()?;
        if self.share.is_none() {
            into_scales.put(0, &[f32::from_le_bytes([after[0], after[1], after[2], after[3]])]);
        }
        let packed = layout.block / self.code.in_a_byte();
        let own = self.share.map_or(0, |share| layout.block / share);
        let mut block = Block { codes: [0; 256], scales: [0.0; 16], offsets: [0.0; 16] };
        let into = codes.bytes_mut().chunks_exact_mut(packed);
        for (at, (from, into)) in blocks.chunks_exact(layout.bytes).zip(into).enumerate() {
            (self.unpack)(from, &mut block);
            pack(self.code, &block.codes[..layout.block], into);
            if let Some(wrong) = into.iter().position(|byte| !self.code.is_valid(*byte)) {
                let first = at * layout.block + wrong * self.code.in_a_byte();
                let (row, column) = (first / len, first % len);
                return Err(Error::Tensor {
                    expected: "codes 0, 1 and 2".into(),
                    got: format!("3 in row {row}, at {column} or one of the next three numbers"),
                });
            }
            into_scales.put(at * own, &block.scales[..own]);
            if let Some(offsets) = &mut into_offsets {
                offsets.put(at * own, &block.offsets[..own]);
            }
        }
        Ok(Quantized { format, codes, scales, offsets })
    }
}

/// Packs codes that fill whole bytes.
pub(in crate::io) fn pack(code: Code, codes: &[u8], into: &mut [u8]) {
    match code {
        Code::Bits8 => into.copy_from_slice(codes),
        Code::Bits4 => {
            for (byte, [a, b]) in into.iter_mut().zip(codes.as_chunks().0) {
                *byte = a | b << 4;
            }
        }
        Code::Ternary4 => {
            for (byte, [a, b, c, d]) in into.iter_mut().zip(codes.as_chunks().0) {
                *byte = a | b << 2 | c << 4 | d << 6;
            }
        }
        Code::Ternary5 => {
            into.fill(0);
            codes.iter().enumerate().for_each(|(at, c)| code.put(into, at, *c));
        }
    }
}
