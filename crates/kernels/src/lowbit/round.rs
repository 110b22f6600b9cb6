//! Rounding rows of activations to 8 bits, as [`super::round_row`] defines it, many numbers at a time.

use super::pack::Shape;
use super::{PIECE, step_of};
use crate::gemm::micro::Lanes;
use crate::team::fetch;

/// Rounded rows in scratch memory.
#[derive(Clone, Copy)]
pub(super) struct Rounded {
    /// Integers in the order of packed codes, and the bytes from one row to the next.
    pub(super) q: *mut i8,
    pub(super) q_row: usize,
    /// For each integer sum (`pieces` of them in a row) what it starts from, a multiple of its sum of integers; and that
    /// sum itself.
    pub(super) starts: *mut i32,
    pub(super) sums: *mut i32,
    pub(super) pieces: usize,
    /// The step of each row.
    pub(super) steps: *mut f32,
}

impl Rounded {
    /// Rows take this many bytes of scratch, which [`Rounded::at`] takes apart; saturates where that overflows.
    pub(super) fn bytes(shape: &Shape, rows: usize) -> usize {
        let each = Rounded::row_bytes(shape).saturating_add(8 * shape.pieces() + 4);
        each.saturating_mul(rows).saturating_add(63) / 64 * 64
    }

    fn row_bytes(shape: &Shape) -> usize {
        (shape.all_groups * shape.group()).next_multiple_of(64)
    }

    pub(super) fn at(shape: &Shape, rows: usize, scratch: *mut u8) -> Rounded {
        let (q_row, pieces) = (Rounded::row_bytes(shape), shape.pieces());
        let starts = scratch.wrapping_add(q_row * rows).cast::<i32>();
        let sums = starts.wrapping_add(pieces * rows);
        Rounded { q: scratch.cast(), q_row, starts, sums, pieces, steps: sums.wrapping_add(pieces * rows).cast() }
    }

    /// Asks for all of a single row, which another thread has written.
    pub(super) fn fetch(&self) {
        let bytes = self.steps.addr() + 4 - self.q.addr();
        fetch(self.q.cast_const().cast(), bytes.div_ceil(64));
    }
}

/// Rounds a row: writes row `row` of `to`.
pub(super) type RoundRow = unsafe fn(shape: &Shape, x: *const f32, factor: i32, row: usize, to: &Rounded);

/// Sums start from `factor` times their sum of integers.
///
/// # Safety
/// `x` must be readable for k floats, `to` made of scratch for more than `row` rows of the shape, and the CPU must have the
/// instruction set.
pub(super) unsafe fn round_row<S: Lanes>(shape: &Shape, x: *const f32, factor: i32, row: usize, to: &Rounded) {
    let padded = shape.all_groups * shape.group();
    // SAFETY: the caller's promise; the parts of the scratch do not overlap.
    let (x, q, starts, sums, step) = unsafe {
        (
            std::slice::from_raw_parts(x, shape.k),
            std::slice::from_raw_parts_mut(to.q.add(row * to.q_row), padded),
            std::slice::from_raw_parts_mut(to.starts.add(row * to.pieces), to.pieces),
            std::slice::from_raw_parts_mut(to.sums.add(row * to.pieces), to.pieces),
            &mut *to.steps.add(row),
        )
    };
    // SAFETY: the caller promises the instruction set. It is entered only so that the loops are compiled for it.
    unsafe {
        S::enter(
            #[inline(always)]
            |_| *step = round(shape, x, q, starts, sums, factor),
        )
    }
}

#[inline(always)]
fn round(shape: &Shape, x: &[f32], q: &mut [i8], starts: &mut [i32], sums: &mut [i32], factor: i32) -> f32 {
    let Some((step, inverse)) = step_of(x.iter().fold(0, |most: u32, x| most.max(x.to_bits() << 1))) else {
        q.fill(0);
        starts.fill(0);
        sums.fill(0);
        return f32::NAN;
    };
    // Beyond 2²³ the numbers that are not whole end: a sum with 1.5 · 2²³ is rounded to an integer, ties to even, which is
    // then the low bits of the sum. No clamp is needed: 1 / step is finite, so step has at least 21 bits, and a product
    // with its inverse is less than 127.5.
    const WHOLE: f32 = 12_582_912.0;
    let padded = shape.groups * shape.group();
    for (x, q) in x.chunks(shape.block).zip(q.chunks_mut(padded)) {
        let (used, rest) = q.split_at_mut(x.len());
        for (q, x) in used.iter_mut().zip(x) {
            *q = (x * inverse + WHOLE).to_bits() as i8;
        }
        rest.fill(0);
    }
    let blocks = q.chunks(padded.max(1)).flat_map(|block| block.chunks(PIECE));
    for ((piece, start), sum) in blocks.zip(starts).zip(sums) {
        *sum = piece.iter().map(|&q| i32::from(q)).sum();
        *start = factor.wrapping_mul(*sum);
    }
    step
}
