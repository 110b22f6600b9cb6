//! Rows of f32 times packed codes.
//!
//! Up to some tens of rows are multiplied with codes as they are taken apart. A masked field becomes a float without a conversion: put
//! into the low bits of 2²³, it is a number from which 2²³ plus the centre is subtracted. A field of a lane's second byte is
//! so 256 times too large, hence every second number of a row is divided by 256 beforehand ([`spread_row`]). The other two
//! bytes take the place of these after one shift. Scales are applied to the sums of blocks.
//!
//! For more rows (how many, the tuning record says) a block of the matrix is widened to f32 ([`widen_panel`]) and multiplied by the tiles of other products.
#![expect(clippy::needless_range_loop, reason = "the indices name registers: each loop is unrolled away")]

use super::PackedLowBit;
use super::int::{MAX_WIDTH, floats, mask};
use super::pack::Shape;
use crate::Isa;
use crate::gemm::micro::Lanes;
use crate::simd::Simd;
use crate::simd::portable::Portable;
use std::ops::Range;

/// The most rows of a tile.
pub(super) const ROWS: usize = 4;

/// Rows in scratch memory.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Floats in the order of packed codes, every second one divided by 256; and floats from row to row.
    x: *mut f32,
    x_row: usize,
    /// The sum of each block of each row.
    sums: *mut f32,
}

impl Rows {
    /// Rows take this many bytes of scratch; saturates where that overflows.
    pub(super) fn bytes(shape: &Shape, rows: usize) -> usize {
        let each = (Rows::stride(shape) + shape.blocks).saturating_mul(4);
        each.saturating_mul(rows).saturating_add(63) / 64 * 64
    }

    fn stride(shape: &Shape) -> usize {
        (shape.all_groups * shape.group()).next_multiple_of(16)
    }

    pub(super) fn at(shape: &Shape, rows: usize, scratch: *mut u8) -> Rows {
        let (x, x_row) = (scratch.cast::<f32>(), Rows::stride(shape));
        Rows { x, x_row, sums: x.wrapping_add(x_row * rows) }
    }
}

/// Copies a row to scratch memory.
///
/// # Safety
/// `x` must be readable for k floats, and `to` made of scratch for more than `row` rows of the shape.
pub(super) unsafe fn spread_row(shape: &Shape, x: *const f32, row: usize, to: &Rows) {
    let padded = shape.all_groups * shape.group();
    // SAFETY: the caller's promise; the parts of the scratch do not overlap.
    let (x, spread, sums) = unsafe {
        (
            std::slice::from_raw_parts(x, shape.k),
            std::slice::from_raw_parts_mut(to.x.add(row * to.x_row), padded),
            std::slice::from_raw_parts_mut(to.sums.add(row * shape.blocks), shape.blocks),
        )
    };
    for (block, sum) in x.chunks(shape.block).zip(sums) {
        *sum = block.iter().sum();
    }
    shape.spread(x, spread);
    for pair in spread.as_chunks_mut::<2>().0 {
        pair[1] *= 1.0 / 256.0;
    }
}

/// A tile's operands.
pub(super) struct Tile<'a> {
    pub(super) b: &'a PackedLowBit,
    /// The panel's first column, and the first register of the panel that the tile takes.
    pub(super) from: usize,
    pub(super) register: usize,
    pub(super) rows: &'a Rows,
    /// The first row.
    pub(super) row: usize,
}

/// Writes the sums of a tile to the first columns of rows that are [`MAX_WIDTH`] apart.
pub(super) type TileFn = unsafe fn(&Tile<'_>, *mut f32);

/// The kernels of one instruction set.
pub(super) struct Kernels {
    /// By the bits of a field (8, 4, 2) and rows − 1: a panel that is as wide as a tile, and one register of a panel.
    pub(super) tiles: [[[TileFn; 2]; ROWS]; 3],
}

/// A register whose next field of every byte is the lowest.
#[inline(always)]
fn next_field<S: Simd, const BITS: usize>(s: S, word: S::I) -> S::I {
    match BITS {
        2 => s.sra::<2>(word),
        4 => s.sra::<4>(word),
        _ => word,
    }
}

/// `M` rows times `N` registers of columns.
///
/// # Safety
/// The tile must lie within its panel.
#[inline(always)]
unsafe fn tile<S: Simd, const BITS: usize, const M: usize, const N: usize>(s: S, t: &Tile<'_>, sums: *mut f32) {
    const { assert!(N * S::LANES <= MAX_WIDTH) };
    let Tile { b, rows, .. } = *t;
    let shape = &b.shape;
    let wide = shape.wide(t.from);
    let (codes, scales, offsets) = b.panel(t.from);
    let first = t.register * S::LANES;
    let (float_first, float_step) = if b.by_column { (first * b.store.size(), wide * b.store.size()) } else { (0, 4) };
    let (mut scales, mut offsets) = (scales.wrapping_add(float_first), offsets.wrapping_add(float_first));
    let mut codes = codes.wrapping_add(first * 4);
    let mut x = rows.x.wrapping_add(t.row * rows.x_row).cast_const();
    let mut totals = [[s.splat(0.0); N]; M];
    // Also with offsets, numbers near 0 are what is summed: c · s + o = (c − centre) · s + (o + centre · s).
    let centre = b.code.centre() as f32;
    const BASE: f32 = 8_388_608.0;
    for block in 0..shape.blocks {
        let mut local = [[s.splat(0.0); N]; M];
        for _ in 0..if block + 1 < shape.blocks { shape.groups } else { shape.last_groups } {
            // SAFETY: the groups of the panel and of the rows.
            let mut words: [S::I; N] =
                std::array::from_fn(|v| unsafe { s.load_int(codes.wrapping_add(v * S::LANES * 4).cast()) });
            // How often is not known to the compiler: unrolled, this loop would not fit the registers.
            for _ in 0..shape.group() / 4 {
                for half in 0..2 {
                    let words = if half == 0 { words } else { words.map(|w| s.sra::<16>(w)) };
                    for byte in 0..2 {
                        let mask = s.splat_int((mask::<BITS>() & 0xff) << (8 * byte));
                        let base = s.splat_int(BASE.to_bits() as i32);
                        let zero = s.splat(BASE + centre * (1u32 << (8 * byte)) as f32);
                        let c: [S::F; N] = std::array::from_fn(|v| {
                            s.sub(s.float_from_bits(s.add_int(s.and_int(words[v], mask), base)), zero)
                        });
                        for i in 0..M {
                            // SAFETY: likewise.
                            let x = s.splat(unsafe { x.add(i * rows.x_row + 2 * half + byte).read() });
                            for v in 0..N {
                                local[i][v] = s.mul_add(c[v], x, local[i][v]);
                            }
                        }
                    }
                }
                words = words.map(|w| next_field::<S, BITS>(s, w));
                x = x.wrapping_add(4);
            }
            codes = codes.wrapping_add(wide * 4);
        }
        // SAFETY: every block has its scales, and offsets if there are any, and every row its sums of blocks.
        unsafe {
            let scale: [S::F; N] = floats(s, b.by_column, b.store, scales);
            if b.offsets.is_some() {
                let offset: [S::F; N] = floats(s, b.by_column, b.store, offsets);
                for v in 0..N {
                    let shifted = s.mul_add(s.splat(centre), scale[v], offset[v]);
                    for i in 0..M {
                        let sum = s.splat(rows.sums.add((t.row + i) * shape.blocks + block).read());
                        totals[i][v] = s.mul_add(sum, shifted, totals[i][v]);
                    }
                }
            }
            for i in 0..M {
                for v in 0..N {
                    totals[i][v] = s.mul_add(local[i][v], scale[v], totals[i][v]);
                }
            }
        }
        scales = scales.wrapping_add(float_step);
        offsets = offsets.wrapping_add(float_step);
    }
    for i in 0..M {
        for v in 0..N {
            // SAFETY: a row of sums holds N registers.
            unsafe { s.store(sums.add(i * MAX_WIDTH + v * S::LANES), totals[i][v]) };
        }
    }
}

/// # Safety
/// As [`tile`], and the CPU must have the instruction set.
unsafe fn entry<S: Lanes, const BITS: usize, const M: usize, const N: usize>(t: &Tile<'_>, sums: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        S::enter(
            #[inline(always)]
            |s| tile::<S, BITS, M, N>(s, t, sums),
        )
    }
}

/// Widens rows `k` of the panel that begins at column `from` to a panel of f32.
pub(crate) type WidenCodes = unsafe fn(b: &PackedLowBit, from: usize, k: Range<usize>, to: *mut f32);

/// # Safety
/// The panel must have these rows, `to` be writable for all of them, and the CPU must have the instruction set.
pub(crate) unsafe fn widen_panel<S: Lanes>(b: &PackedLowBit, from: usize, k: Range<usize>, to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        S::enter(
            #[inline(always)]
            |s| match b.shape.bits {
                8 => widen_codes::<S, 8>(s, b, from, k, to),
                4 => widen_codes::<S, 4>(s, b, from, k, to),
                _ => widen_codes::<S, 2>(s, b, from, k, to),
            },
        )
    }
}

/// The low `BITS` bits of every lane, from `up` bits on.
#[inline(always)]
fn bits_from<S: Simd, const BITS: usize>(s: S, word: S::I, up: usize) -> S::I {
    macro_rules! shift {
        ($($n:literal)*) => { match up { $($n => s.sra::<$n>(word),)* _ => word } };
    }
    s.and_int(shift!(2 4 6 8 10 12 14 16 18 20 22 24 26 28 30), s.splat_int((1 << BITS) - 1))
}

/// # Safety
/// As [`widen_panel`].
#[inline(always)]
unsafe fn widen_codes<S: Simd, const BITS: usize>(s: S, b: &PackedLowBit, from: usize, k: Range<usize>, to: *mut f32) {
    let shape = &b.shape;
    let wide = shape.wide(from);
    let (codes, scales, offsets) = b.panel(from);
    let group = 32 / BITS;
    let centre = s.splat(b.centre() as f32);
    let mut at = k.start;
    while at < k.end {
        let block = at / shape.block;
        let in_block = block * shape.block;
        let end = k.end.min(in_block + shape.block);
        for v in (0..wide).step_by(S::LANES) {
            let float_at = if b.by_column { (block * wide + v) * b.store.size() } else { block * 4 };
            // SAFETY: every block has its scales, and offsets if there are any.
            let (scale, offset) = unsafe {
                let [scale] = floats(s, b.by_column, b.store, scales.wrapping_add(float_at));
                let offset = offsets.wrapping_add(float_at);
                (scale, b.offsets.as_ref().map(|_| floats::<S, 1>(s, b.by_column, b.store, offset)[0]))
            };
            for g in (at - in_block) / group..(end - in_block).div_ceil(group) {
                let codes = codes.wrapping_add(((block * shape.groups + g) * wide + v) * 4);
                // SAFETY: a group of the panel.
                let word = unsafe { s.load_int(codes.cast()) };
                for i in 0..group {
                    let row = in_block + g * group + i;
                    if !(at..end).contains(&row) {
                        continue;
                    }
                    let c = s.int_to_float(bits_from::<S, BITS>(s, word, BITS * (i / 4) + 8 * (i % 4)));
                    let x = match offset {
                        None => s.mul(s.sub(c, centre), scale),
                        Some(offset) => s.add(s.mul(c, scale), offset),
                    };
                    // SAFETY: a row of the result.
                    unsafe { s.store(to.add((row - k.start) * wide + v), x) };
                }
            }
        }
        at = end;
    }
}

impl Kernels {
    const fn of<S: Lanes>() -> Kernels {
        macro_rules! tiles {
            ($bits:literal, $($m:literal),*) => {
                [$(
                    match S::NV {
                        2 => [entry::<S, $bits, $m, 2>, entry::<S, $bits, $m, 1>],
                        _ => [entry::<S, $bits, $m, 4>, entry::<S, $bits, $m, 1>],
                    },
                )*]
            };
        }
        Kernels { tiles: [tiles!(8, 1, 2, 3, 4), tiles!(4, 1, 2, 3, 4), tiles!(2, 1, 2, 3, 4)] }
    }

    pub(super) fn get(isa: Isa) -> &'static Kernels {
        use crate::simd::Level;
        match isa.level {
            Level::Portable => {
                static PORTABLE: Kernels = Kernels::of::<Portable<4>>();
                &PORTABLE
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon => {
                static NEON: Kernels = Kernels::of::<crate::simd::neon::Neon>();
                &NEON
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                static AVX2: Kernels = Kernels::of::<crate::simd::avx2::Avx2>();
                &AVX2
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                static AVX512: Kernels = Kernels::of::<crate::simd::avx512::Avx512>();
                &AVX512
            }
        }
    }
}
