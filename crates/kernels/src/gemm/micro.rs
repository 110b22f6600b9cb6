//! The register tile: up to 6 rows of A times one panel of B, for every instruction set and storage type.
//!
//! The tile is `MR` rows by `NV` registers. 6 × 4 keeps 24 sums, 4 registers of B and one of A within 32 registers
//! without a spill, and a panel of four registers divides the usual widths (64, 128, 256, …) where three would not;
//! sets of 16 registers use 6 × 2. Every smaller tile is compiled too, so edges cost no padding: rows are dealt out
//! evenly (32 = 6 + 6 + 5 + 5 + 5 + 5) and the last panel of B is as many registers wide as it needs.
//!
//! A is read through two strides, so that a tile works the same way in place and on a packed copy. B is a packed panel,
//! one group of `NV` registers for each step along k. How a step multiplies is a [`Kind`]:
//!
//! | kind | A | B in memory | step |
//! |---|---|---|---|
//! | `Full` | f32 | f32 | 1 of k |
//! | `Half` | f32 | f16, widened by the load | 1 of k |
//! | `Pairs` | f32 | bf16 pairs (k, k + 1) per 32-bit lane, widened by a shift and a mask | 2 of k |
//! | `Dot` | bf16 | the same pairs | 2 of k, one instruction |
#![expect(clippy::needless_range_loop, reason = "the indices name registers: each loop is unrolled away")]

use super::Store;
use crate::simd::Simd;
use crate::simd::portable::Portable;

/// The most rows of a tile.
pub(crate) const MR: usize = 6;
/// The most registers of a tile's row, on any instruction set.
pub(crate) const MAX_NV: usize = 4;
/// The most lanes of a register, on any instruction set.
pub(crate) const MAX_LANES: usize = 16;

/// Steps between two fetches of the next rows of A: a line of f32.
const RUN: usize = 16;

/// A token type that can be entered: its operations inline inside `enter`.
pub(crate) trait Lanes: Simd {
    /// Registers in one row of a full tile.
    const NV: usize = if Self::REGISTERS >= 32 { 4 } else { 2 };
    /// Runs `f` compiled for this instruction set.
    ///
    /// # Safety
    /// The CPU must have the instruction set.
    unsafe fn enter<R>(f: impl FnOnce(Self) -> R) -> R;
}

impl<const N: usize> Lanes for Portable<N> {
    #[inline(always)]
    unsafe fn enter<R>(f: impl FnOnce(Self) -> R) -> R {
        f(Portable)
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for crate::simd::avx2::Avx2 {
    #[inline(always)]
    unsafe fn enter<R>(f: impl FnOnce(Self) -> R) -> R {
        // SAFETY: the caller promises the instruction set.
        unsafe { crate::simd::avx2::run(f) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for crate::simd::avx512::Avx512 {
    #[inline(always)]
    unsafe fn enter<R>(f: impl FnOnce(Self) -> R) -> R {
        // SAFETY: the caller promises the instruction set.
        unsafe { crate::simd::avx512::run(f) }
    }
}

#[cfg(target_arch = "aarch64")]
impl Lanes for crate::simd::neon::Neon {
    #[inline(always)]
    unsafe fn enter<R>(f: impl FnOnce(Self) -> R) -> R {
        // SAFETY: the caller promises the instruction set.
        f(unsafe { crate::simd::neon::Neon::new() })
    }
}

/// One tile's operands. Strides are in bytes.
pub(crate) struct Tile {
    /// Length of the sum.
    pub(crate) k: usize,
    /// A's first element, and the strides to its next row and its next column.
    pub(crate) a: *const u8,
    pub(crate) a_row: usize,
    pub(crate) a_k: usize,
    /// How far ahead to prefetch, or 0. A tile of one or two rows prefetches B, a taller one the next rows of A.
    pub(crate) ahead: usize,
    /// The panel of B, and the stride to its next step.
    pub(crate) b: *const u8,
    pub(crate) b_step: usize,
    /// C's first element and the stride to its next row.
    pub(crate) c: *mut u8,
    pub(crate) c_row: usize,
    pub(crate) c_store: Store,
    /// Columns of C, at most the tile's width and more than the width without its last register.
    pub(crate) cols: usize,
    /// What the tile is added to, which lies as C does, or null.
    pub(crate) add: *const u8,
    /// `cols` floats added to each row, or null.
    pub(crate) bias: *const f32,
    /// One float for each row, added to all of its columns, or null.
    pub(crate) row_bias: *const f32,
    /// Where a single row of A continues after its first `k` columns, and how many columns follow; B is one panel for
    /// both.
    pub(crate) rest: *const u8,
    pub(crate) rest_k: usize,
}

/// Computes one tile.
pub(crate) type TileFn = unsafe fn(&Tile);
/// `tiles[rows − 1][registers − 1]`
pub(crate) type Tiles = [[TileFn; MAX_NV]; MR];

/// How one step along k multiplies.
pub(crate) trait Kind<S: Lanes> {
    /// How much of k one step covers.
    const DEPTH: usize;
    /// Runs `f` compiled for what this kind needs.
    ///
    /// # Safety
    /// The CPU must have it.
    #[inline(always)]
    unsafe fn enter<R>(f: impl FnOnce(S) -> R) -> R {
        // SAFETY: the caller promises the instruction set.
        unsafe { S::enter(f) }
    }
    /// Adds the products of `DEPTH` columns of A and as many rows of B.
    ///
    /// # Safety
    /// `a` must be readable at every row and `DEPTH` columns, `b` for `NV` registers.
    unsafe fn step<const M: usize, const N: usize>(
        s: S,
        t: &Tile,
        a: *const u8,
        b: *const u8,
        acc: &mut [[S::F; N]; M],
    );
    /// The same for a single remaining column of A, where `DEPTH` is 2.
    ///
    /// # Safety
    /// `a` must be readable at every row and one column, `b` for `NV` registers.
    unsafe fn last<const M: usize, const N: usize>(
        s: S,
        t: &Tile,
        a: *const u8,
        b: *const u8,
        acc: &mut [[S::F; N]; M],
    );
}

/// acc[i] += a[i] · b, for the column of A at `a`.
///
/// # Safety
/// `a` must be readable at `M` rows.
#[inline(always)]
unsafe fn add_column<S: Simd, const M: usize, const N: usize>(
    s: S,
    t: &Tile,
    a: *const u8,
    b: [S::F; N],
    acc: &mut [[S::F; N]; M],
) {
    for i in 0..M {
        // SAFETY: the caller promises row i.
        let x = s.splat(unsafe { a.add(i * t.a_row).cast::<f32>().read_unaligned() });
        for v in 0..N {
            acc[i][v] = s.mul_add(x, b[v], acc[i][v]);
        }
    }
}

pub(crate) struct Full;

impl<S: Lanes> Kind<S> for Full {
    const DEPTH: usize = 1;
    #[inline(always)]
    unsafe fn step<const M: usize, const N: usize>(
        s: S,
        t: &Tile,
        a: *const u8,
        b: *const u8,
        acc: &mut [[S::F; N]; M],
    ) {
        // SAFETY: the caller promises N registers of B and every row of A.
        unsafe {
            let b = std::array::from_fn(|v| s.load(b.cast::<f32>().add(v * S::LANES)));
            add_column(s, t, a, b, acc)
        }
    }
    #[inline(always)]
    unsafe fn last<const M: usize, const N: usize>(_: S, _: &Tile, _: *const u8, _: *const u8, _: &mut [[S::F; N]; M]) {
    }
}

pub(crate) struct Half;

impl<S: Lanes> Kind<S> for Half {
    const DEPTH: usize = 1;
    #[inline(always)]
    unsafe fn step<const M: usize, const N: usize>(
        s: S,
        t: &Tile,
        a: *const u8,
        b: *const u8,
        acc: &mut [[S::F; N]; M],
    ) {
        // SAFETY: the caller promises N registers of B and every row of A.
        unsafe {
            let b = std::array::from_fn(|v| s.load_f16(b.cast::<u16>().add(v * S::LANES)));
            add_column(s, t, a, b, acc)
        }
    }
    #[inline(always)]
    unsafe fn last<const M: usize, const N: usize>(_: S, _: &Tile, _: *const u8, _: *const u8, _: &mut [[S::F; N]; M]) {
    }
}

pub(crate) struct Pairs;

impl<S: Lanes> Kind<S> for Pairs {
    const DEPTH: usize = 2;
    #[inline(always)]
    unsafe fn step<const M: usize, const N: usize>(
        s: S,
        t: &Tile,
        a: *const u8,
        b: *const u8,
        acc: &mut [[S::F; N]; M],
    ) {
        // SAFETY: the caller promises N registers of B, every row of A and two of its columns.
        unsafe {
            Self::last(s, t, a, b, acc);
            let high = s.splat_int(0xffff_0000_u32 as i32);
            let odd = std::array::from_fn(|v| {
                s.float_from_bits(s.and_int(s.load_int(b.cast::<i32>().add(v * S::LANES)), high))
            });
            add_column(s, t, a.add(t.a_k), odd, acc)
        }
    }
    #[inline(always)]
    unsafe fn last<const M: usize, const N: usize>(
        s: S,
        t: &Tile,
        a: *const u8,
        b: *const u8,
        acc: &mut [[S::F; N]; M],
    ) {
        // SAFETY: the caller promises N registers of B and every row of A.
        unsafe {
            let even =
                std::array::from_fn(|v| s.float_from_bits(s.shl::<16>(s.load_int(b.cast::<i32>().add(v * S::LANES)))));
            add_column(s, t, a, even, acc)
        }
    }
}

/// # Safety
/// As [`TileFn`]'s operands say; the CPU must have `K`'s instruction set.
unsafe fn entry<S: Lanes, K: Kind<S>, const M: usize, const N: usize>(t: &Tile) {
    if N <= S::NV {
        // SAFETY: the caller's promise.
        unsafe {
            K::enter(
                #[inline(always)]
                |s| tile::<S, K, M, N>(s, t),
            )
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Lanes, K: Kind<S>, const M: usize, const N: usize>(s: S, t: &Tile) {
    for i in 0..M {
        for line in 0..(N * S::LANES).div_ceil(MAX_LANES) {
            s.prefetch(t.c.wrapping_add(i * t.c_row + line * 64));
        }
    }
    let mut acc = [[s.splat(0.0); N]; M];
    let (mut a, mut b) = (t.a, t.b);
    // SAFETY: the operands cover k columns of A and as many rows of B, and the rectangle of C.
    unsafe {
        if M == 1 && t.rest_k > 0 {
            // This part comes first, since it usually is a loop's state, which is ready; the other part may still be on
            // its way to the cache.
            let (mut a, mut b) = (t.rest, t.b.wrapping_add(t.k * t.b_step));
            for _ in 0..t.rest_k {
                K::step(s, t, a, b, &mut acc);
                a = a.wrapping_add(t.a_k);
                b = b.wrapping_add(t.b_step);
            }
        }
        let mut left = t.k / K::DEPTH;
        let run = if t.ahead == 0 { left } else { RUN };
        while left > 0 {
            let steps = left.min(run);
            left -= steps;
            if M > 2 && t.ahead > 0 {
                (0..M).for_each(|i| s.prefetch(a.wrapping_add(i * t.a_row + t.ahead)));
            }
            for _ in 0..steps {
                if M <= 2 && t.ahead > 0 {
                    for line in 0..(N * S::LANES).div_ceil(MAX_LANES) {
                        s.prefetch(b.wrapping_add(t.ahead + line * 64));
                    }
                }
                K::step(s, t, a, b, &mut acc);
                a = a.wrapping_add(t.a_k * K::DEPTH);
                b = b.wrapping_add(t.b_step);
            }
        }
        if !t.k.is_multiple_of(K::DEPTH) {
            K::last(s, t, a, b, &mut acc);
        }
        if t.c_store != Store::F32 {
            let mut sums = [[[0.0f32; MAX_LANES]; N]; M];
            for i in 0..M {
                for v in 0..N {
                    s.store(sums[i][v].as_mut_ptr(), acc[i][v]);
                }
            }
            return finish_narrow(s, t, sums.as_flattened());
        }
        let tail = t.cols - (N - 1) * S::LANES;
        for i in 0..M {
            let c = t.c.add(i * t.c_row).cast::<f32>();
            let add = t.add.wrapping_add(i * t.c_row).cast::<f32>();
            let shift = if t.row_bias.is_null() { None } else { Some(s.splat(t.row_bias.add(i).read())) };
            for v in 0..N {
                let (c, mut sum) = (c.add(v * S::LANES), acc[i][v]);
                let add = add.wrapping_add(v * S::LANES);
                if let Some(shift) = shift {
                    sum = s.add(sum, shift);
                }
                if v < N - 1 || tail == S::LANES {
                    if !t.add.is_null() {
                        sum = s.add(sum, s.load(add));
                    }
                    if !t.bias.is_null() {
                        sum = s.add(sum, s.load(t.bias.add(v * S::LANES)));
                    }
                    s.store(c, sum);
                } else {
                    if !t.add.is_null() {
                        sum = s.add(sum, s.load_n(add, tail));
                    }
                    if !t.bias.is_null() {
                        sum = s.add(sum, s.load_n(t.bias.add(v * S::LANES), tail));
                    }
                    s.store_n(c, sum, tail);
                }
            }
        }
    }
}

/// Adds C and the bias to the sums and stores them as 16-bit values. A plain loop is enough, as it runs once after a
/// whole pass over k.
#[inline(always)]
unsafe fn finish_narrow<S: Simd>(s: S, t: &Tile, sums: &[[f32; MAX_LANES]]) {
    let registers = t.cols.div_ceil(S::LANES);
    for (index, sum) in sums.iter().enumerate() {
        let (row, from) = (index / registers, index % registers * S::LANES);
        let n = (t.cols - from).min(S::LANES);
        // SAFETY: the operands cover the rectangle of C and the bias; only n elements of the last register are touched.
        unsafe {
            let c = t.c.add(row * t.c_row).cast::<u16>().add(from);
            let mut sum = s.load(sum.as_ptr());
            let mut lanes = [0u16; MAX_LANES];
            if !t.add.is_null() {
                let add = t.add.add(row * t.c_row).cast::<u16>().add(from);
                lanes.as_mut_ptr().copy_from_nonoverlapping(add, n);
                let old =
                    if t.c_store == Store::Bf16 { s.load_bf16(lanes.as_ptr()) } else { s.load_f16(lanes.as_ptr()) };
                sum = s.add(sum, old);
            }
            if !t.bias.is_null() {
                sum = s.add(sum, s.load_n(t.bias.add(from), n));
            }
            if !t.row_bias.is_null() {
                sum = s.add(sum, s.splat(t.row_bias.add(row).read()));
            }
            let to = if n == S::LANES { c } else { lanes.as_mut_ptr() };
            if t.c_store == Store::Bf16 {
                s.store_bf16(to, sum)
            } else {
                s.store_f16(to, sum)
            }
            if n != S::LANES {
                c.copy_from_nonoverlapping(lanes.as_ptr(), n);
            }
        }
    }
}

/// Every tile of a kind.
pub(crate) const fn tiles<S: Lanes, K: Kind<S>>() -> Tiles {
    macro_rules! row {
        ($m:literal) => {
            [entry::<S, K, $m, 1>, entry::<S, K, $m, 2>, entry::<S, K, $m, 3>, entry::<S, K, $m, 4>]
        };
    }
    [row!(1), row!(2), row!(3), row!(4), row!(5), row!(6)]
}
