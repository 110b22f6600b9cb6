//! A few rows of A times a plain B whose columns are contiguous, as dot products along k.
//!
//! Packing such a B would cost many times the product itself. Here registers run along k instead of along columns: up to
//! six rows meet four columns at a time, so each element of B is read once.
#![expect(clippy::needless_range_loop, reason = "the indices name registers: each loop is unrolled away")]

use super::Store;
use super::micro::{Lanes, MR, Tile};
use half::{bf16, f16};

/// Columns of B that are multiplied at a time.
const COLS: usize = 4;

/// `dots[rows − 1]` computes `cols` columns of C in f32; the tile's `b_step` is the stride from one column of B to the
/// next, and both A and B are contiguous f32 along k.
pub(crate) type Dots = [unsafe fn(&Tile); MR];

pub(crate) const fn dots<S: Lanes>() -> Dots {
    [entry::<S, 1>, entry::<S, 2>, entry::<S, 3>, entry::<S, 4>, entry::<S, 5>, entry::<S, 6>]
}

/// # Safety
/// The operands must be as [`Dots`] says, and the CPU must have the instruction set.
unsafe fn entry<S: Lanes, const M: usize>(t: &Tile) {
    // SAFETY: the caller's promise; the last columns are taken one at a time.
    unsafe {
        S::enter(
            #[inline(always)]
            |s| {
                let whole = t.cols / COLS * COLS;
                (0..whole).step_by(COLS).for_each(|j| columns::<S, M, COLS>(s, t, j));
                (whole..t.cols).for_each(|j| columns::<S, M, 1>(s, t, j));
            },
        )
    }
}

/// Columns `from..from + N` of C.
///
/// # Safety
/// As [`entry`].
#[inline(always)]
unsafe fn columns<S: Lanes, const M: usize, const N: usize>(s: S, t: &Tile, from: usize) {
    let mut acc = [[s.splat(0.0); N]; M];
    let a = |i: usize, p: usize| t.a.wrapping_add(i * t.a_row).cast::<f32>().wrapping_add(p);
    let b = |j: usize, p: usize| t.b.wrapping_add((from + j) * t.b_step).cast::<f32>().wrapping_add(p);
    let whole = t.k / S::LANES * S::LANES;
    // SAFETY: the operands cover k elements of every row and column; the last step reads no more than remain.
    unsafe {
        for p in (0..whole).step_by(S::LANES) {
            let x: [S::F; N] = std::array::from_fn(|j| s.load(b(j, p)));
            for i in 0..M {
                let row = s.load(a(i, p));
                (0..N).for_each(|j| acc[i][j] = s.mul_add(row, x[j], acc[i][j]));
            }
        }
        if whole < t.k {
            let x: [S::F; N] = std::array::from_fn(|j| s.load_n(b(j, whole), t.k - whole));
            for i in 0..M {
                let row = s.load_n(a(i, whole), t.k - whole);
                (0..N).for_each(|j| acc[i][j] = s.mul_add(row, x[j], acc[i][j]));
            }
        }
    }
    for i in 0..M {
        for j in 0..N {
            // SAFETY: the operands cover the rectangle of C and the bias.
            unsafe { finish(t, i, from + j, s.sum(acc[i][j])) }
        }
    }
}

/// # Safety
/// The element must lie in C.
#[inline(always)]
unsafe fn finish(t: &Tile, row: usize, col: usize, mut sum: f32) {
    let at = row * t.c_row + col * t.c_store.size();
    let c = t.c.wrapping_add(at);
    // SAFETY: the caller's promise.
    unsafe {
        if !t.add.is_null() {
            let add = t.add.wrapping_add(at);
            sum += match t.c_store {
                Store::F32 => add.cast::<f32>().read_unaligned(),
                Store::F16 => add.cast::<f16>().read_unaligned().to_f32(),
                Store::Bf16 => add.cast::<bf16>().read_unaligned().to_f32(),
            };
        }
        if !t.bias.is_null() {
            sum += t.bias.add(col).read();
        }
        if !t.row_bias.is_null() {
            sum += t.row_bias.add(row).read();
        }
        match t.c_store {
            Store::F32 => c.cast::<f32>().write_unaligned(sum),
            Store::F16 => c.cast::<f16>().write_unaligned(f16::from_f32(sum)),
            Store::Bf16 => c.cast::<bf16>().write_unaligned(bf16::from_f32(sum)),
        }
    }
}
