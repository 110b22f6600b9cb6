//! Products with low-bit weights: 8-bit, 4-bit and ternary codes with a scale for each block of them.
//!
//! This file says what such a matrix means, in plain Rust: [`Matrix`] checks the three arrays that it consists of,
//! [`Matrix::number`] is one of its numbers, [`round_row`] rounds a row of activations to 8 bits, and
//! [`Matrix::integer_product`] multiplies the two. Every other path is tested against these definitions: integer
//! products give the same bits on every instruction set, with any number of threads.
//!
//! - **codes**: `u8 [n, row_bytes]`, unsigned codes packed along k, row by row; see [`Code`].
//! - **scales**: f32, f16 or bfloat16 `[n or 1, blocks]`: `block` codes along k share a scale, the last block may be
//!   shorter. One row of scales serves all rows.
//! - **offsets**, if any: of the same type and shape as the scales.
//!
//! A number is `(code − centre) · scale`, or with offsets `code · scale + offset`, each operation rounded to f32.
//!
//! For the kernels a matrix is packed once ([`PackedLowBit`], `pack`). `int` multiplies rounded rows (by `dot`), `float` rows as
//! they are; `plan` cuts a product into tiles of either and shares them among threads.

mod check;
mod dot;
mod float;
mod int;
mod pack;
mod peak;
mod plan;
mod round;
#[cfg(test)]
mod tests;

use crate::gemm::Store;
use crate::tape::LARGEST;
pub use check::{integer_path, self_test};
pub(crate) use float::{WidenCodes, widen_panel};
use half::{bf16, f16};
pub use pack::PackedLowBit;
pub use peak::integer_burst;
pub use plan::is_direct;
pub(crate) use plan::{product, scratch_bytes};

/// How codes are packed into bytes, in the order of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// 0 to 255, one to a byte.
    Bits8,
    /// 0 to 15, two to a byte: code 2i is the low half of byte i, code 2i + 1 the high half.
    Bits4,
    /// 0, 1 or 2, four to a byte: code 4i + j is bits 2j and 2j + 1 of byte i.
    Ternary4,
    /// 0, 1 or 2, five to a byte in base 3: byte i is the sum of 3ʲ times code 5i + j.
    Ternary5,
}

impl Code {
    /// Every way.
    pub const ALL: [Code; 4] = [Code::Bits8, Code::Bits4, Code::Ternary4, Code::Ternary5];

    /// How many codes one byte holds.
    pub const fn per_byte(self) -> usize {
        match self {
            Code::Bits8 => 1,
            Code::Bits4 => 2,
            Code::Ternary4 => 4,
            Code::Ternary5 => 5,
        }
    }

    /// Bytes of a row of `k` codes.
    pub const fn row_bytes(self, k: usize) -> usize {
        k.div_ceil(self.per_byte())
    }

    /// The code that stands for 0 where there are no offsets.
    pub const fn centre(self) -> i32 {
        match self {
            Code::Bits8 => 128,
            Code::Bits4 => 8,
            Code::Ternary4 | Code::Ternary5 => 1,
        }
    }

    /// The largest valid code.
    pub const fn largest(self) -> u8 {
        match self {
            Code::Bits8 => 255,
            Code::Bits4 => 15,
            Code::Ternary4 | Code::Ternary5 => 2,
        }
    }

    /// Code number `at` (below [`Code::per_byte`]) of a byte.
    pub const fn of_byte(self, byte: u8, at: usize) -> u8 {
        match self {
            Code::Bits8 => byte,
            Code::Bits4 => byte >> (4 * at) & 15,
            Code::Ternary4 => byte >> (2 * at) & 3,
            Code::Ternary5 => byte / [1, 3, 9, 27, 81][at] % 3,
        }
    }

    /// What is wrong with the first `used` codes of a byte, if anything is.
    fn problem(self, byte: u8, used: usize) -> Option<String> {
        match self {
            Code::Ternary4 if (0..used).any(|at| self.of_byte(byte, at) > 2) => {
                Some(format!("byte {byte:#04x} has a code of 3; ternary codes are 0, 1 and 2"))
            }
            Code::Ternary5 if byte >= 243 => Some(format!("byte {byte}; five ternary codes are at most 242")),
            _ => None,
        }
    }
}

/// The most numbers of a block that one integer sum takes, so that it cannot overflow: a longer block is cut into pieces
/// of this length, which share its scale and offset.
pub const PIECE: usize = 32_768;

/// The arrays of a low-bit matrix, not yet checked.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// How codes are packed.
    pub code: Code,
    /// Rows of the matrix, which are outputs of a product.
    pub n: usize,
    /// Columns of the matrix, over which a product sums.
    pub k: usize,
    /// How many numbers along k share a scale.
    pub block: usize,
    /// `n` rows of [`Code::row_bytes`].
    pub codes: &'a [u8],
    /// The type of scales and offsets.
    pub store: Store,
    /// How many rows of scales there are: `n`, or 1 for all rows.
    pub scale_rows: usize,
    /// Scales, in the machine's byte order.
    pub scales: &'a [u8],
    /// Offsets, in the machine's byte order.
    pub offsets: Option<&'a [u8]>,
}

/// A low-bit matrix whose arrays fit together and whose codes are valid.
#[derive(Clone, Copy)]
pub struct Matrix<'a>(Parts<'a>);

impl std::fmt::Debug for Matrix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Parts { code, n, k, block, store, scale_rows, offsets, .. } = self.0;
        let offsets = if offsets.is_some() { " and offsets" } else { "" };
        write!(f, "Matrix({n} × {k}, {code:?}, blocks of {block}, {scale_rows} rows of {store:?} scales{offsets})")
    }
}

impl<'a> Matrix<'a> {
    /// Checks sizes, lengths and codes.
    pub fn new(parts: Parts<'a>) -> Result<Matrix<'a>, String> {
        let Parts { code, n, k, block, codes, store, scale_rows, scales, offsets } = parts;
        let what = format!("a low-bit matrix of {n} × {k} ({code:?}, blocks of {block})");
        if n > LARGEST || k > LARGEST {
            return Err(format!("{what}: sizes are at most {LARGEST}"));
        }
        if block == 0 {
            return Err(format!("{what}: a block has at least 1 number"));
        }
        if scale_rows != n && scale_rows != 1 {
            return Err(format!("{what}: {scale_rows} rows of scales; expected {n}, or 1 for all rows"));
        }
        let row_bytes = code.row_bytes(k);
        let length = |name: &str, bytes: &[u8], rows: usize, row: usize, size: usize| {
            let wanted = rows.checked_mul(row).and_then(|n| n.checked_mul(size));
            if wanted == Some(bytes.len()) {
                return Ok(());
            }
            let wanted = wanted.map_or("more bytes than fit in memory".to_owned(), |n| format!("{n} bytes"));
            Err(format!("{what}: {} bytes of {name}; {rows} × {row} of {size} bytes are {wanted}", bytes.len()))
        };
        length("codes", codes, n, row_bytes, 1)?;
        let blocks = k.div_ceil(block);
        length("scales", scales, scale_rows, blocks, store.size())?;
        if let Some(offsets) = offsets {
            length("offsets", offsets, scale_rows, blocks, store.size())?;
        }
        let per_byte = code.per_byte();
        if matches!(code, Code::Ternary4 | Code::Ternary5) && row_bytes > 0 {
            for (row, bytes) in codes.chunks_exact(row_bytes).enumerate() {
                for (at, &byte) in bytes.iter().enumerate() {
                    let used = per_byte.min(k - at * per_byte);
                    if let Some(problem) = code.problem(byte, used) {
                        let first = at * per_byte;
                        return Err(format!(
                            "{what}: in row {row}, columns {first} to {}: {problem}",
                            first + used - 1
                        ));
                    }
                }
            }
        }
        Ok(Matrix(parts))
    }

    /// The arrays and sizes.
    pub fn parts(&self) -> &Parts<'a> {
        &self.0
    }

    /// How many scales a row has.
    pub fn blocks(&self) -> usize {
        self.0.k.div_ceil(self.0.block)
    }

    /// One row's bytes of codes.
    fn row(&self, n: usize) -> &'a [u8] {
        let bytes = self.0.code.row_bytes(self.0.k);
        &self.0.codes[n * bytes..(n + 1) * bytes]
    }

    /// The code of a number.
    ///
    /// # Panics
    /// If the matrix has no such number; so do the methods below.
    pub fn code(&self, n: usize, k: usize) -> u8 {
        let per_byte = self.0.code.per_byte();
        self.0.code.of_byte(self.row(n)[k / per_byte], k % per_byte)
    }

    /// Scale and offset of a block of a row.
    pub fn scale_and_offset(&self, n: usize, block: usize) -> (f32, Option<f32>) {
        let row = if self.0.scale_rows == 1 { 0 } else { n };
        let at = row * self.blocks() + block;
        (float_at(self.0.store, self.0.scales, at), self.0.offsets.map(|bytes| float_at(self.0.store, bytes, at)))
    }

    /// The number in row `n` and column `k`.
    pub fn number(&self, n: usize, k: usize) -> f32 {
        let code = self.code(n, k);
        match self.scale_and_offset(n, k / self.0.block) {
            (scale, None) => (i32::from(code) - self.0.code.centre()) as f32 * scale,
            (scale, Some(offset)) => f32::from(code) * scale + offset,
        }
    }

    /// The product of a rounded row (see [`round_row`]) and row `n` of the matrix.
    pub fn integer_product(&self, n: usize, q: &[i8], step: f32) -> f32 {
        assert_eq!(q.len(), self.0.k, "the rounded row is as long as a row of the matrix");
        let mut acc = 0.0f32;
        for (block, q) in q.chunks(self.0.block).enumerate() {
            let (scale, offset) = self.scale_and_offset(n, block);
            for (piece, q) in q.chunks(PIECE).enumerate() {
                let first = block * self.0.block + piece * PIECE;
                let codes = q.iter().enumerate().map(|(i, &q)| i32::from(self.code(n, first + i)) * i32::from(q));
                let (products, sum) = (codes.sum::<i32>(), q.iter().map(|&q| i32::from(q)).sum::<i32>());
                acc = match offset {
                    None => ((products - self.0.code.centre() * sum) as f32).mul_add(scale, acc),
                    Some(offset) => (products as f32).mul_add(scale, (sum as f32).mul_add(offset, acc)),
                };
            }
        }
        acc * step
    }
}

/// Float number `at` of an array, widened.
fn float_at(store: Store, bytes: &[u8], at: usize) -> f32 {
    let two = || [bytes[2 * at], bytes[2 * at + 1]];
    match store {
        Store::F32 => f32::from_ne_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]]),
        Store::F16 => f16::from_ne_bytes(two()).to_f32(),
        Store::Bf16 => bf16::from_ne_bytes(two()).to_f32(),
    }
}

/// Rounds a row of activations to 8 bits: integers from −127 to 127, and the step between them. The row is about
/// q · step.
///
/// A row of zeros, or of numbers so small that 1 / step is infinite, has integers and a step of 0. A row with a NaN or an
/// infinity has integers of 0 and a step of NaN, so that all of its products are NaN.
pub fn round_row(row: &[f32]) -> (Vec<i8>, f32) {
    let Some((step, inverse)) = step_of(row.iter().fold(0, |most, x| most.max(x.to_bits() << 1))) else {
        return (vec![0; row.len()], f32::NAN);
    };
    (row.iter().map(|x| (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8).collect(), step)
}

/// The step and its inverse (0 and 0 where the inverse would be infinite), given the bits of the largest magnitude
/// without its sign, shifted left by one; `None` for infinities and NaN. Bits of magnitudes have the order of the
/// magnitudes, and those of NaN are above infinity's.
#[inline(always)]
fn step_of(most: u32) -> Option<(f32, f32)> {
    let largest = f32::from_bits(most >> 1);
    if !largest.is_finite() {
        return None;
    }
    let step = largest / 127.0;
    let inverse = 1.0 / step;
    Some(if inverse.is_finite() { (step, inverse) } else { (0.0, 0.0) })
}
