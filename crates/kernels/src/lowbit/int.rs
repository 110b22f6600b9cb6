//! Rounded rows times packed codes: up to six rows by one panel, in integers within each block.
//!
//! How four 8-bit products are added to a 32-bit lane is a [`Dot`]; everything else is written once. A tile of one row
//! masks each field where it lies and adds it to sums of its own, which are shifted once at the end of a block. A taller
//! one shifts fields first, as all its rows share that work, and has one sum for each row and register. Both are exact.
#![expect(clippy::needless_range_loop, reason = "the indices name registers: each loop is unrolled away")]

use super::dot::Dot;
#[cfg(target_arch = "aarch64")]
use super::dot::neon;
#[cfg(target_arch = "x86_64")]
use super::dot::x86;
use super::pack::Shape;
use super::round::{RoundRow, Rounded, round_row};
use super::{PIECE, PackedLowBit};
use crate::Isa;
use crate::gemm::Store;
use crate::gemm::micro::{Lanes, MR};
use crate::simd::portable::Portable;
use crate::simd::{Level, Simd};

/// The most columns of a panel, on any instruction set.
pub(super) const MAX_WIDTH: usize = 64;

/// Sums of a tile, row by row.
pub(super) type Sums = [[f32; MAX_WIDTH]; MR];

/// A tile's operands.
pub(super) struct Tile<'a> {
    pub(super) b: &'a PackedLowBit,
    /// The panel's first column, and the first register of the panel that the tile takes.
    pub(super) from: usize,
    pub(super) register: usize,
    pub(super) rows: &'a Rounded,
    /// The first row.
    pub(super) row: usize,
    /// What a tile of one row fetches while it multiplies.
    pub(super) fetch: Fetch,
}

/// How codes are fetched before they are used. Nothing is read through these addresses.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    /// How many bytes ahead of their use.
    pub(super) ahead: usize,
    /// Where the codes of the product end that this thread reads; panels follow each other in memory.
    pub(super) end: *const u8,
    /// What it reads after them: the codes of the next product.
    pub(super) next: *const u8,
}

impl Fetch {
    /// What is fetched when the codes at this address are used.
    #[inline(always)]
    pub(super) fn from(self, codes: *const u8) -> *const u8 {
        let at = codes.wrapping_add(self.ahead);
        if at < self.end { at } else { self.next.wrapping_add(at.addr() - self.end.addr()) }
    }

    /// What is fetched `step` bytes of codes after that.
    #[inline(always)]
    pub(super) fn after(self, at: *const u8, step: usize) -> *const u8 {
        let at = at.wrapping_add(step);
        let beyond = at.addr().wrapping_sub(self.end.addr());
        if beyond < step { self.next.wrapping_add(beyond) } else { at }
    }
}

/// Writes the sums of a tile, steps applied, to the first columns of rows that are [`MAX_WIDTH`] apart.
pub(super) type TileFn = unsafe fn(&Tile<'_>, *mut f32);

/// The kernels of one way to add products.
pub(super) struct Kernels {
    pub(super) name: &'static str,
    /// By the bits of a field (8, 4, 2) and rows − 1: a panel that is as wide as a tile, and one register of a panel.
    /// Fields of fewer bits than 8 leave registers for fewer rows.
    pub(super) tiles: [&'static [[TileFn; 2]]; 3],
    pub(super) round: RoundRow,
    /// What is subtracted from 8-bit codes before they are multiplied: 128 where the instruction wants them signed.
    pub(super) shift8: i32,
}

impl Kernels {
    /// What sums start from, as a multiple of the sum of a piece's integers.
    pub(super) fn start_factor(&self, b: &PackedLowBit) -> i32 {
        (if b.shape.bits == 8 { self.shift8 } else { 0 }) - b.centre()
    }
}

type I<D> = <<D as Dot>::S as Simd>::I;
type F<D> = <<D as Dot>::S as Simd>::F;

/// The scales or offsets of `N` registers of columns.
///
/// # Safety
/// They must be readable.
#[inline(always)]
pub(super) unsafe fn floats<S: Simd, const N: usize>(s: S, by_column: bool, store: Store, at: *const u8) -> [S::F; N] {
    // SAFETY: the caller's promise.
    unsafe {
        match (by_column, store) {
            (false, _) => [s.splat(at.cast::<f32>().read()); N],
            (true, Store::F32) => std::array::from_fn(|v| s.load(at.cast::<f32>().add(v * S::LANES))),
            (true, Store::F16) => std::array::from_fn(|v| s.load_f16(at.cast::<u16>().add(v * S::LANES))),
            (true, Store::Bf16) => std::array::from_fn(|v| s.load_bf16(at.cast::<u16>().add(v * S::LANES))),
        }
    }
}

/// A register whose field `f` (of `BITS` bits) is moved to the low bits of every byte.
#[inline(always)]
fn field<S: Simd, const BITS: usize>(s: S, codes: S::I, f: usize) -> S::I {
    let moved = match BITS * f {
        2 => s.sra::<2>(codes),
        4 => s.sra::<4>(codes),
        6 => s.sra::<6>(codes),
        _ => codes,
    };
    if BITS == 8 { moved } else { s.and_int(moved, s.splat_int(mask::<BITS>())) }
}

/// The lowest field of every byte.
pub(super) const fn mask<const BITS: usize>() -> i32 {
    0x0101_0101_i32.wrapping_mul((1 << BITS) - 1)
}

/// `M` rows times `N` registers of columns.
///
/// # Safety
/// The tile must lie within its panel and its rows, and `sums` have room for it.
#[inline(always)]
unsafe fn tile<D: Dot, const BITS: usize, const M: usize, const N: usize>(d: D, s: D::S, t: &Tile<'_>, sums: *mut f32) {
    let Tile { b, rows, .. } = *t;
    let shape: &Shape = &b.shape;
    let fields = 8 / BITS;
    let wide = shape.wide(t.from);
    let (codes, scales, offsets) = b.panel(t.from);
    let first = t.register * D::S::LANES;
    let (float_first, float_step) = if b.by_column { (first * b.store.size(), wide * b.store.size()) } else { (0, 4) };
    let (mut scales, mut offsets) = (scales.wrapping_add(float_first), offsets.wrapping_add(float_first));
    let mut codes = codes.wrapping_add(first * 4);
    let step = wide * 4;
    let mut q = rows.q.wrapping_add(t.row * rows.q_row).cast_const();
    let mut piece = t.row * rows.pieces;
    // Sums of finished blocks stay in memory: in registers they would displace those of the block in progress. The compiler
    // must not know that it is the same memory every time, or it would keep them in registers after all.
    let mut totals = sums;
    let at = |i: usize, v: usize| i * MAX_WIDTH + v * D::S::LANES;
    for i in 0..M {
        for v in 0..N {
            // SAFETY: a row of sums holds N registers; so below.
            unsafe { s.store(totals.add(at(i, v)), s.splat(0.0)) };
        }
    }
    for block in 0..shape.blocks {
        let mut left = if block + 1 < shape.blocks { shape.groups } else { shape.last_groups };
        while left > 0 {
            let groups = left.min(PIECE * BITS / 32);
            left -= groups;
            // SAFETY: every piece of every row has its start.
            let start = |i: usize| s.splat_int(unsafe { rows.starts.add(piece + i * rows.pieces).read() });
            let sums: [[I<D>; N]; M];
            if M == 1 && (D::ANY_BYTE || BITS == 8) {
                // Four sums for each register: one for each field, or for 8 bits one for every fourth group.
                let mut parts = [[s.splat_int(0); 4]; N];
                for v in 0..N {
                    parts[v][0] = start(0);
                }
                if BITS == 8 {
                    for _ in 0..groups / 2 {
                        for half in 0..2 {
                            // SAFETY: the groups of the panel and of the row.
                            let x = s.splat_int(unsafe { q.add(4 * half).cast::<i32>().read_unaligned() });
                            for v in 0..N {
                                let at = codes.wrapping_add(half * step + v * D::S::LANES * 4);
                                // SAFETY: likewise.
                                let c = unsafe { s.load_int(at.cast()) };
                                parts[v][half] = d.dot8(parts[v][half], c, x);
                            }
                        }
                        codes = codes.wrapping_add(2 * step);
                        q = q.wrapping_add(8);
                    }
                    if groups % 2 == 1 {
                        // SAFETY: likewise.
                        let x = s.splat_int(unsafe { q.cast::<i32>().read_unaligned() });
                        for v in 0..N {
                            // SAFETY: likewise.
                            let c = unsafe { s.load_int(codes.wrapping_add(v * D::S::LANES * 4).cast()) };
                            parts[v][0] = d.dot8(parts[v][0], c, x);
                        }
                        codes = codes.wrapping_add(step);
                        q = q.wrapping_add(4);
                    }
                    sums = [std::array::from_fn(|v| s.add_int(parts[v][0], parts[v][1])); M];
                } else {
                    let mut ahead = t.fetch.from(codes);
                    for _ in 0..groups {
                        for v in 0..N {
                            // Codes of 2 bits take as long to multiply as to read, so that the processor does not look far
                            // enough ahead by itself. Where reading takes longer than that, asking for more only costs.
                            if BITS == 2 && v * D::S::LANES * 4 % 64 == 0 {
                                s.prefetch(ahead.wrapping_add(v * D::S::LANES * 4));
                            }
                            let at = codes.wrapping_add(v * D::S::LANES * 4);
                            // SAFETY: likewise.
                            let c = unsafe { s.load_int(at.cast()) };
                            for f in 0..fields {
                                // SAFETY: likewise.
                                let x = s.splat_int(unsafe { q.add(4 * f).cast::<i32>().read_unaligned() });
                                let c = s.and_int(c, s.splat_int(mask::<BITS>() << (BITS * f)));
                                parts[v][f] = d.dot8(parts[v][f], c, x);
                            }
                        }
                        codes = codes.wrapping_add(step);
                        ahead = t.fetch.after(ahead, step);
                        q = q.wrapping_add(4 * fields);
                    }
                    sums = [std::array::from_fn(|v| {
                        let p = parts[v];
                        if BITS == 4 {
                            s.add_int(p[0], s.sra::<4>(p[1]))
                        } else {
                            let low = s.add_int(p[0], s.sra::<2>(p[1]));
                            s.add_int(low, s.add_int(s.sra::<4>(p[2]), s.sra::<6>(p[3])))
                        }
                    }); M];
                }
            } else {
                let mut parts: [[I<D>; N]; M] = std::array::from_fn(|i| [start(i); N]);
                for _ in 0..groups {
                    for f in 0..fields {
                        // SAFETY: the groups of the panel and of the rows.
                        let c: [I<D>; N] = std::array::from_fn(|v| unsafe {
                            field::<D::S, BITS>(s, s.load_int(codes.wrapping_add(v * D::S::LANES * 4).cast()), f)
                        });
                        for i in 0..M {
                            // SAFETY: likewise.
                            let x = unsafe { q.add(i * rows.q_row + 4 * f).cast::<i32>().read_unaligned() };
                            let x = s.splat_int(x);
                            for v in 0..N {
                                let dot = if BITS == 8 { D::dot8 } else { D::dot4 };
                                parts[i][v] = dot(d, parts[i][v], c[v], x);
                            }
                        }
                    }
                    codes = codes.wrapping_add(step);
                    q = q.wrapping_add(4 * fields);
                }
                sums = parts;
            }
            if M > 1 {
                totals = std::hint::black_box(totals);
            }
            if b.offsets.is_some() {
                // SAFETY: every block has its offsets, every piece of every row its sum.
                let offset: [F<D>; N] = unsafe { floats(s, b.by_column, b.store, offsets) };
                for i in 0..M {
                    // SAFETY: likewise.
                    let sum = s.splat(unsafe { rows.sums.add(piece + i * rows.pieces).read() } as f32);
                    for v in 0..N {
                        // SAFETY: see above.
                        unsafe {
                            let total = totals.add(at(i, v));
                            s.store(total, s.mul_add(sum, offset[v], s.load(total)));
                        }
                    }
                }
            }
            // SAFETY: every block has its scales. (Loaded before, they would take registers from the sums.)
            let scale: [F<D>; N] = unsafe { floats(s, b.by_column, b.store, scales) };
            for i in 0..M {
                for v in 0..N {
                    // SAFETY: see above.
                    unsafe {
                        let total = totals.add(at(i, v));
                        s.store(total, s.mul_add(s.int_to_float(sums[i][v]), scale[v], s.load(total)));
                    }
                }
            }
            piece += 1;
        }
        scales = scales.wrapping_add(float_step);
        offsets = offsets.wrapping_add(float_step);
    }
    for i in 0..M {
        // SAFETY: every row has its step; see above for the rest.
        unsafe {
            let row_step = s.splat(rows.steps.add(t.row + i).read());
            for v in 0..N {
                let total = totals.add(at(i, v));
                s.store(total, s.mul(s.load(total), row_step));
            }
        }
    }
}

/// # Safety
/// As [`tile`], and the CPU must have the instructions.
unsafe fn entry<D: Dot, const BITS: usize, const M: usize, const N: usize>(t: &Tile<'_>, sums: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        D::enter(
            #[inline(always)]
            |d, s| tile::<D, BITS, M, N>(d, s, t, sums),
        )
    }
}

/// The tiles of one way, by the bits of a field.
struct Tiles<D>(std::marker::PhantomData<D>);

macro_rules! tiles {
    ($bits:literal, $($m:literal),*) => {
        &[$(
            match D::S::NV {
                2 => [entry::<D, $bits, $m, 2>, entry::<D, $bits, $m, 1>],
                _ => [entry::<D, $bits, $m, 4>, entry::<D, $bits, $m, 1>],
            },
        )*]
    };
}

impl<D: Dot> Tiles<D> {
    const EIGHT: &'static [[TileFn; 2]] = tiles!(8, 1, 2, 3, 4, 5, 6);
    const FOUR: &'static [[TileFn; 2]] = tiles!(4, 1, 2, 3, 4);
    const TWO: &'static [[TileFn; 2]] = tiles!(2, 1, 2, 3, 4);
}

const fn kernels<D: Dot>() -> Kernels {
    Kernels {
        name: D::NAME,
        tiles: [Tiles::<D>::EIGHT, Tiles::<D>::FOUR, Tiles::<D>::TWO],
        round: round_row::<D::S>,
        shift8: if D::SIGNED { 128 } else { 0 },
    }
}

/// Every way that this CPU and instruction set have to compute integer products, the fastest first. The last is plain
/// Rust, which takes panels of any instruction set.
pub(super) fn all(isa: Isa) -> Vec<&'static Kernels> {
    let mut found: Vec<&'static Kernels> = Vec::new();
    match isa.level {
        Level::Portable => {}
        #[cfg(target_arch = "aarch64")]
        Level::Neon => {
            static DOT: Kernels = kernels::<neon::Sdot>();
            static WIDE: Kernels = kernels::<neon::Widening>();
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                found.push(&DOT);
            }
            found.push(&WIDE);
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => {
            static VNNI: Kernels = kernels::<x86::AvxVnni>();
            static PLAIN: Kernels = kernels::<x86::Avx2Madd>();
            if std::arch::is_x86_feature_detected!("avxvnni") {
                found.push(&VNNI);
            }
            found.push(&PLAIN);
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => {
            static VNNI: Kernels = kernels::<x86::Avx512Vnni>();
            static PLAIN: Kernels = kernels::<x86::Avx512Madd>();
            if std::arch::is_x86_feature_detected!("avx512vnni") {
                found.push(&VNNI);
            }
            found.push(&PLAIN);
        }
    }
    found.push(&PLAIN_RUST);
    found
}

/// Plain Rust, for packed matrices of any instruction set.
pub(super) static PLAIN_RUST: Kernels = {
    macro_rules! tiles {
        ($($m:literal),*) => { &[$([plain::<$m, MAX_WIDTH> as TileFn, plain::<$m, 1>],)*] };
    }
    Kernels { name: "portable", tiles: [tiles!(1, 2, 3, 4); 3], round: round_row::<Portable<4>>, shift8: 0 }
};

/// `M` rows times one register of columns, or all (at most `MAX_WIDTH`) columns of the panel.
///
/// # Safety
/// As [`tile`].
unsafe fn plain<const M: usize, const WIDTH: usize>(t: &Tile<'_>, sums: *mut f32) {
    let Tile { b, rows, .. } = *t;
    let shape = &b.shape;
    let (codes, scales, offsets) = b.panel(t.from);
    let wide = shape.wide(t.from);
    let first = t.register * shape.lanes;
    let columns = if WIDTH == 1 { shape.lanes } else { wide };
    let (mut totals, mut group, mut piece) = ([[0.0f32; MAX_WIDTH]; M], 0, 0);
    // SAFETY: every column and block has its scale and offset.
    let float = |at: *const u8, block: usize, column: usize| unsafe {
        if b.by_column {
            let at = at.add((block * wide + first + column) * b.store.size());
            super::float_at(b.store, std::slice::from_raw_parts(at, b.store.size()), 0)
        } else {
            at.cast::<f32>().add(block).read()
        }
    };
    for block in 0..shape.blocks {
        let mut left = if block + 1 < shape.blocks { shape.groups } else { shape.last_groups };
        while left > 0 {
            let groups = left.min(shape.piece_groups());
            left -= groups;
            // SAFETY: the groups of the panel and of the rows, and the start and sum of every piece.
            unsafe {
                for i in 0..M {
                    let row = t.row + i;
                    let mut parts = [rows.starts.add(row * rows.pieces + piece).read(); MAX_WIDTH];
                    for g in group..group + groups {
                        let codes = codes.add((g * wide + first) * 4);
                        for f in 0..8 / shape.bits {
                            let q = rows.q.add(row * rows.q_row + g * shape.group() + 4 * f);
                            let q: [i32; 4] = std::array::from_fn(|j| i32::from(q.add(j).read()));
                            let (shift, mask) = (shape.bits * f, (1u32 << shape.bits) - 1);
                            for (column, part) in parts[..columns].iter_mut().enumerate() {
                                let c = codes.add(column * 4).cast::<[u8; 4]>().read();
                                for j in 0..4 {
                                    *part += (u32::from(c[j]) >> shift & mask) as i32 * q[j];
                                }
                            }
                        }
                    }
                    for (column, part) in parts[..columns].iter().enumerate() {
                        let total = &mut totals[i][column];
                        if !offsets.is_null() {
                            let sum = rows.sums.add(row * rows.pieces + piece).read() as f32;
                            *total = sum.mul_add(float(offsets, block, column), *total);
                        }
                        *total = (*part as f32).mul_add(float(scales, block, column), *total);
                    }
                }
            }
            group += groups;
            piece += 1;
        }
    }
    for i in 0..M {
        // SAFETY: every row has its step, and a row of sums holds the columns.
        unsafe {
            let step = rows.steps.add(t.row + i).read();
            (0..columns).for_each(|column| sums.add(i * MAX_WIDTH + column).write_unaligned(totals[i][column] * step));
        }
    }
}
