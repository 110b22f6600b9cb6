//! Copies of A and B in the order the tiles read them.
//!
//! B is cut into panels of one tile's width (the last one only as many registers wide as it needs); a panel holds, step
//! after step along k, one group of registers, so a tile reads it front to back. 16-bit values stay 16 bits. bfloat16 is
//! stored in pairs along k, element k low and k + 1 high in each 32-bit lane (0 after an odd end): the dot instruction
//! wants that, and elsewhere a shift and a mask widen it more cheaply than a widening load would.
//!
//! ```text
//! f32, f16:  panel[k][column]            bf16:  panel[k / 2][column][k % 2]
//! ```
//!
//! A's copy keeps whichever of its axes is contiguous, since a tile reads A through two strides anyway.

use super::Store;
use super::micro::{Lanes, MAX_LANES, MAX_NV};
use crate::simd::Simd;
use crate::simd::portable::Portable;
use half::{bf16, f16};
use std::ops::Range;

/// A matrix in memory. Strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) ptr: *const u8,
    pub(crate) store: Store,
    pub(crate) row: usize,
    pub(crate) col: usize,
}

impl Source {
    /// The same matrix, beginning at this row and column.
    pub(crate) fn at(self, row: usize, col: usize) -> Source {
        let ptr = self.ptr.wrapping_add((row * self.row + col * self.col) * self.store.size());
        Source { ptr, ..self }
    }
}

impl Store {
    /// Bytes of a packed B for each column and step, which is 1 of k, or 2 in bfloat16.
    pub(crate) const fn step_bytes(self) -> usize {
        match self {
            Store::F32 | Store::Bf16 => 4,
            Store::F16 => 2,
        }
    }

    /// How much of k one step of a packed B holds.
    pub(crate) const fn depth(self) -> usize {
        match self {
            Store::F32 | Store::F16 => 1,
            Store::Bf16 => 2,
        }
    }
}

/// Packs `k` rows and `n` columns of B.
pub(crate) type PackB = unsafe fn(b: Source, k: usize, n: usize, to: *mut u8);

/// # Safety
/// `b` must be readable for k × n elements; `to` must hold whole registers of every column and step; the CPU must have
/// the instruction set.
pub(crate) unsafe fn pack_b<S: Lanes>(b: Source, k: usize, n: usize, to: *mut u8) {
    let (row, col) = (b.row, b.col);
    // SAFETY: the caller's promise; elements asked for lie within k × n.
    unsafe {
        S::enter(
            #[inline(always)]
            |s| match b.store {
                Store::F32 => panels(s, b, k, k, n, to.cast::<u32>(), |p, step, j| {
                    p.cast::<u32>().add(step * row + j * col).read_unaligned()
                }),
                Store::F16 => panels(s, b, k, 0, n, to.cast::<u16>(), |p, step, j| {
                    p.cast::<u16>().add(step * row + j * col).read_unaligned()
                }),
                Store::Bf16 => panels(s, b, k.div_ceil(2), k / 2, n, to.cast::<u32>(), |p, step, j| {
                    let at = p.cast::<u16>().add(2 * step * row + j * col);
                    let low = u32::from(at.read_unaligned());
                    if 2 * step + 1 < k { low | u32::from(at.add(row).read_unaligned()) << 16 } else { low }
                }),
            },
        )
    }
}

/// Packs panel after panel of what `element(panel's start, step, column)` gives. The first `contiguous` steps of a column
/// lie next to each other where B's row stride is 1.
///
/// # Safety
/// As [`pack_b`].
#[inline(always)]
unsafe fn panels<S: Lanes, T: Copy + Default>(
    s: S,
    b: Source,
    steps: usize,
    contiguous: usize,
    n: usize,
    to: *mut T,
    element: impl Fn(*const u8, usize, usize) -> T,
) {
    let full = S::NV * S::LANES;
    for from in (0..n).step_by(full) {
        let cols = full.min(n - from);
        let width = cols.next_multiple_of(S::LANES);
        let panel = b.at(0, from);
        // SAFETY: the caller promises n columns and room for all panels; every panel before this one was full.
        unsafe {
            let to = to.add(from * steps);
            if b.store == Store::F32 && b.col == 1 {
                match width / S::LANES {
                    1 => copy::<S, 1>(s, panel, steps, cols, to.cast()),
                    2 => copy::<S, 2>(s, panel, steps, cols, to.cast()),
                    3 => copy::<S, 3>(s, panel, steps, cols, to.cast()),
                    _ => copy::<S, MAX_NV>(s, panel, steps, cols, to.cast()),
                }
                continue;
            }
            let (mut whole, mut steps_done, mut cols_done) = (0, 0, 0);
            if size_of::<T>() == 4 && b.row == 1 {
                whole = contiguous / S::LANES * S::LANES;
                (steps_done, cols_done) = (contiguous / 4 * 4, cols / 4 * 4);
                squares(s, panel, whole, cols, to.cast(), width);
                fours(panel, whole..steps_done, cols_done, to.cast(), width);
            }
            for step in whole..steps {
                let to = to.add(step * width);
                for j in if step < steps_done { cols_done } else { 0 }..cols {
                    to.add(j).write(element(panel.ptr, step, j));
                }
                (cols..width).for_each(|j| to.add(j).write(T::default()));
            }
        }
    }
}

/// A panel of contiguous f32 rows of `cols` columns, which take `N` registers; what is left of the last one is 0.
///
/// # Safety
/// `b` must be readable for `steps` rows and `cols` columns, and `to` writable for `N` registers for each row.
#[inline(always)]
unsafe fn copy<S: Lanes, const N: usize>(s: S, b: Source, steps: usize, cols: usize, to: *mut f32) {
    let last = (N - 1) * S::LANES;
    let left = cols - last;
    for step in 0..steps {
        // SAFETY: the caller's promise.
        unsafe {
            let (from, to) = (b.ptr.cast::<f32>().add(step * b.row), to.add(step * N * S::LANES));
            for v in (0..last).step_by(S::LANES) {
                s.store(to.add(v), s.load(from.add(v)));
            }
            let from = from.add(last);
            s.store(to.add(last), if left == S::LANES { s.load(from) } else { s.load_n(from, left) });
        }
    }
}

/// Transposes 32-bit steps that are contiguous in B's columns, a square of registers at a time. `steps` is a multiple of the
/// lanes; columns up to the panel's `width` become 0.
///
/// # Safety
/// `b` must be readable for `steps` steps and `cols` columns, and `to` writable for steps of `width`, which is `cols` in whole
/// registers.
#[inline(always)]
unsafe fn squares<S: Lanes>(s: S, b: Source, steps: usize, cols: usize, to: *mut u32, width: usize) {
    let (from_stride, to_stride) = ((b.col * b.store.size()) as isize, 4 * width as isize);
    for j in (0..cols).step_by(S::LANES) {
        let n = S::LANES.min(cols - j);
        // Where columns are missing, a copy has zeros in their place.
        let mut copy = [[0u8; 4 * MAX_LANES]; MAX_LANES];
        for step in (0..steps).step_by(S::LANES) {
            // SAFETY: the caller's promise, for a square within these steps and columns.
            unsafe {
                let (from, to) = (b.at(0, j).ptr.add(4 * step), to.add(step * width + j).cast::<u8>());
                if n == S::LANES {
                    s.transpose::<false>(from, from_stride, to, to_stride);
                    continue;
                }
                for (i, row) in copy[..n].iter_mut().enumerate() {
                    from.offset(i as isize * from_stride).copy_to_nonoverlapping(row.as_mut_ptr(), 4 * S::LANES);
                }
                s.transpose::<false>(copy.as_ptr().cast(), size_of_val(&copy[0]) as isize, to, to_stride);
            }
        }
    }
}

/// The same for a few steps, four by four; `steps` and `cols` are multiples of 4.
///
/// # Safety
/// As [`squares`], for these steps.
#[inline(always)]
unsafe fn fours(b: Source, steps: Range<usize>, cols: usize, to: *mut u32, width: usize) {
    let (from_stride, to_stride) = ((b.col * b.store.size()) as isize, 4 * width as isize);
    for j in (0..cols).step_by(4) {
        for step in steps.clone().step_by(4) {
            // SAFETY: the caller's promise, for a square within these steps and columns.
            unsafe {
                let (from, to) = (b.at(0, j).ptr.add(4 * step), to.add(step * width + j).cast::<u8>());
                Portable::<4>.transpose::<false>(from, from_stride, to, to_stride);
            }
        }
    }
}

/// Copies `rows` × `k` of A: `to[row * row_stride + k * k_stride]`, one of the strides being 1.
pub(crate) type PackA = unsafe fn(a: Source, rows: usize, k: usize, to: *mut u8, row_stride: usize, k_stride: usize);

/// Widens A to f32.
///
/// # Safety
/// `a` must be readable for rows × k elements and `to` writable at every one's place; the CPU must have the instruction
/// set.
pub(crate) unsafe fn widen_a<S: Lanes>(a: Source, rows: usize, k: usize, to: *mut u8, row: usize, k_stride: usize) {
    // SAFETY: the caller's promise; the roles of the axes are exchanged together.
    unsafe {
        S::enter(
            #[inline(always)]
            |s| {
                if k_stride == 1 {
                    widen(s, a, rows, k, to.cast(), row)
                } else {
                    widen(s, Source { row: a.col, col: a.row, ..a }, k, rows, to.cast(), k_stride)
                }
            },
        )
    }
}

#[inline(always)]
unsafe fn widen<S: Simd>(s: S, a: Source, rows: usize, cols: usize, to: *mut f32, row: usize) {
    for i in 0..rows {
        // SAFETY: the caller promises rows × cols elements on both sides.
        unsafe {
            let (from, to) = (a.at(i, 0), to.add(i * row));
            let whole = if a.col == 1 { cols / S::LANES * S::LANES } else { 0 };
            for j in (0..whole).step_by(S::LANES) {
                let p = from.at(0, j).ptr;
                let x = match a.store {
                    Store::F32 => s.load(p.cast()),
                    Store::F16 => s.load_f16(p.cast()),
                    Store::Bf16 => s.load_bf16(p.cast()),
                };
                s.store(to.add(j), x);
            }
            if a.store == Store::F32 && a.col == 1 && whole < cols {
                let p = from.at(0, whole).ptr;
                s.store_n(to.add(whole), s.load_n(p.cast(), cols - whole), cols - whole);
                continue;
            }
            for j in whole..cols {
                let p = from.at(0, j).ptr;
                let x = match a.store {
                    Store::F32 => p.cast::<f32>().read_unaligned(),
                    Store::F16 => p.cast::<f16>().read_unaligned().to_f32(),
                    Store::Bf16 => p.cast::<bf16>().read_unaligned().to_f32(),
                };
                to.add(j).write(x);
            }
        }
    }
}

/// Widens `k` rows of a panel of packed bfloat16, `width` columns (whole registers) wide, to a panel of f32.
pub(crate) type WidenB = unsafe fn(from: *const u8, k: usize, width: usize, to: *mut f32);

/// # Safety
/// The panel must hold the steps of `k` rows, and `to` be writable for `k · width` floats; the CPU must have the instruction
/// set.
pub(crate) unsafe fn widen_b<S: Lanes>(from: *const u8, k: usize, width: usize, to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        S::enter(
            #[inline(always)]
            |s| {
                let high = s.splat_int(0xffff_0000_u32 as i32);
                for step in 0..k.div_ceil(2) {
                    let (from, to) = (from.cast::<i32>().add(step * width), to.add(2 * step * width));
                    for j in (0..width).step_by(S::LANES) {
                        let pair = s.load_int(from.add(j));
                        s.store(to.add(j), s.float_from_bits(s.shl::<16>(pair)));
                        if 2 * step + 1 < k {
                            s.store(to.add(width + j), s.float_from_bits(s.and_int(pair, high)));
                        }
                    }
                }
            },
        )
    }
}

/// Copies bfloat16 as it is, with k contiguous, for the dot instruction.
///
/// # Safety
/// As [`widen_a`], with `k_stride` 1 and 16-bit elements on both sides.
pub(crate) unsafe fn copy_bf16_a(a: Source, rows: usize, k: usize, to: *mut u8, row: usize, _k_stride: usize) {
    for i in 0..rows {
        for p in 0..k {
            // SAFETY: the caller's promise.
            unsafe { to.cast::<u16>().add(i * row + p).write(a.at(i, p).ptr.cast::<u16>().read_unaligned()) }
        }
    }
}
