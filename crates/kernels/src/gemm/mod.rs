//! Matrix products: f32, f16 and bfloat16 in memory, f32 sums, any shape and any strides.
//!
//! The loops are Goto's, with the roles chosen for a large second-level cache: a block of B (`kc` × `nc`) stays in L2 and
//! every panel of six rows of A passes over it. The tile of registers ([`micro`]) needs under 11 bytes of B a cycle,
//! which L2 gives at ease, so nothing has to fit L1 but six rows of A. Hence A is not copied when its rows (or, if
//! small, its columns) are contiguous f32, a small product is a few tile calls and nothing else, and weights are packed
//! once ([`PackedB`]).
//!
//! A sum over k longer than `kc` passes through C in f32. Where C is 16 bits wide k is not cut, so each element is
//! rounded once.
//!
//! Threads take rectangles of C cut at tile borders; each packs the part of B it needs, and none waits for another.

#[cfg(target_arch = "x86_64")]
mod bf16;
mod gemv;
mod micro;
mod pack;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod transpose;

use crate::simd::Level;
use crate::simd::portable::Portable;
use crate::{Isa, Team};
use gemv::{Dots, dots};
use micro::{Full, Half, Lanes, MR, Pairs, Tile, Tiles, tiles};
use pack::{PackA, PackB, Source, copy_bf16_a, pack_b, widen_a};
use std::ops::Range;

/// How the elements of a matrix lie in memory; sums are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Store {
    /// 32-bit floats.
    F32,
    /// IEEE half floats.
    F16,
    /// bfloat16.
    Bf16,
}

impl Store {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Store::F32 => 4,
            Store::F16 | Store::Bf16 => 2,
        }
    }
}

/// Bytes of the block of B that stays in the second-level cache.
const BLOCK_BYTES: usize = 512 << 10;
/// Columns of that block.
const BLOCK_COLS: usize = 256;
/// Rows of A that are copied together, a multiple of [`MR`].
const COPY_ROWS: usize = 48;
/// The work, in multiply-adds, below which another thread costs more than it gives.
const WORK_PER_THREAD: usize = 50_000;
/// Bytes of a column-contiguous A that tiles may still read in place: beyond, a column a page exhausts the TLB.
const IN_PLACE_BYTES: usize = 128 << 10;

/// Length of the sums from which fetching ahead pays.
const FAR: usize = 128;
/// How far ahead a tile of one or two rows fetches B, in bytes.
const B_AHEAD: usize = 2048;

/// The kernels of one instruction set.
pub(crate) struct Kernels {
    lanes: usize,
    /// Columns of a full panel.
    width: usize,
    full: Tiles,
    half: Tiles,
    pairs: Tiles,
    dot: Option<Tiles>,
    dots: Dots,
    pack_b: PackB,
    widen_a: PackA,
}

impl Kernels {
    const fn of<S: Lanes>(dot: Option<Tiles>) -> Kernels {
        Kernels {
            lanes: S::LANES,
            width: S::NV * S::LANES,
            full: tiles::<S, Full>(),
            half: tiles::<S, Half>(),
            pairs: tiles::<S, Pairs>(),
            dot,
            dots: dots::<S>(),
            pack_b: pack_b::<S>,
            widen_a: widen_a::<S>,
        }
    }

    fn get(isa: Isa) -> &'static Kernels {
        static PORTABLE: Kernels = Kernels::of::<Portable<4>>(None);
        match isa.level {
            Level::Portable => &PORTABLE,
            #[cfg(target_arch = "aarch64")]
            Level::Neon => {
                static NEON: Kernels = Kernels::of::<crate::simd::neon::Neon>(None);
                &NEON
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                static AVX2: Kernels = Kernels::of::<crate::simd::avx2::Avx2>(None);
                &AVX2
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                use crate::simd::avx512::Avx512;
                static AVX512: Kernels = Kernels::of::<Avx512>(None);
                static AVX512_BF16: Kernels = Kernels::of::<Avx512>(Some(tiles::<Avx512, bf16::Dot>()));
                if isa.bf16 { &AVX512_BF16 } else { &AVX512 }
            }
        }
    }

    /// Bytes of a packed k × n.
    fn packed_bytes(&self, store: Store, k: usize, n: usize) -> usize {
        n.next_multiple_of(self.lanes) * k.div_ceil(store.depth()) * store.step_bytes()
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through pointers")] [u8; 64]);

/// A right-hand side packed once, for one instruction set: weights. 16-bit weights stay 16 bits in memory.
pub struct PackedB {
    data: Vec<Line>,
    store: Store,
    k: usize,
    n: usize,
    bytes: usize,
    width: usize,
    lanes: usize,
}

impl PackedB {
    /// Packs `b[k][n]`, where element (k, n) is at `b + k * row_stride + n * col_stride`, in elements of `store`.
    ///
    /// # Safety
    /// Every such element must be readable.
    pub unsafe fn pack(
        isa: Isa,
        store: Store,
        k: usize,
        n: usize,
        b: *const u8,
        row_stride: usize,
        col_stride: usize,
    ) -> PackedB {
        // SAFETY: the caller's promise; an `Isa` exists only where the CPU has it.
        unsafe { PackedB::with(Kernels::get(isa), k, n, Source { ptr: b, store, row: row_stride, col: col_stride }) }
    }

    /// # Safety
    /// `b` must be readable for k × n elements and the CPU have the kernels' instruction set.
    unsafe fn with(kernels: &Kernels, k: usize, n: usize, b: Source) -> PackedB {
        let bytes = kernels.packed_bytes(b.store, k, n);
        let mut data = vec![Line([0; 64]); bytes.div_ceil(64)];
        if bytes > 0 {
            // SAFETY: the data has room for every padded column and step; the rest is the caller's promise.
            unsafe { (kernels.pack_b)(b, k, n, data.as_mut_ptr().cast()) };
        }
        PackedB { data, store: b.store, k, n, bytes, width: kernels.width, lanes: kernels.lanes }
    }

    /// Size in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Rows.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Columns.
    pub fn n(&self) -> usize {
        self.n
    }

    /// How its elements are stored.
    pub fn store(&self) -> Store {
        self.store
    }
}

impl std::fmt::Debug for PackedB {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedB({} × {}, {:?}, {} bytes)", self.k, self.n, self.store, self.bytes)
    }
}

/// The right-hand side of a product.
#[derive(Clone, Copy, Debug)]
pub enum B<'a> {
    /// Packed before, for the same instruction set.
    Packed(&'a PackedB),
    /// As it lies in memory; strides in elements.
    Plain {
        /// Element (0, 0).
        ptr: *const u8,
        /// Its element type.
        store: Store,
        /// From one row (of k) to the next.
        row_stride: usize,
        /// From one column to the next.
        col_stride: usize,
    },
}

impl B<'_> {
    fn store(self) -> Store {
        match self {
            B::Packed(b) => b.store,
            B::Plain { store, .. } => store,
        }
    }
}

/// What is done to finished rectangles of C while they are in cache.
pub trait Epilogue: Sync {
    /// Called once for each rectangle; together they are all of C. Calls come from several threads, `thread` of the team.
    fn finish(&self, thread: usize, rows: Range<usize>, cols: Range<usize>);
}

/// C[m, n] = A[m, k] · B[k, n] (+ C) (+ bias[n]), then the epilogue. Strides are in elements; C's column stride is 1.
#[derive(Clone, Copy)]
pub struct Gemm<'a> {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Length of the sums; 0 gives zeros (plus C, plus bias).
    pub k: usize,
    /// A's element (0, 0).
    pub a: *const u8,
    /// A's element type.
    pub a_store: Store,
    /// From one row of A to the next.
    pub a_row_stride: usize,
    /// From one column of A to the next.
    pub a_col_stride: usize,
    /// The right-hand side.
    pub b: B<'a>,
    /// C's element (0, 0).
    pub c: *mut u8,
    /// C's element type.
    pub c_store: Store,
    /// From one row of C to the next.
    pub c_row_stride: usize,
    /// Whether the product is added to C.
    pub accumulate: bool,
    /// `n` floats added to every row.
    pub bias: Option<*const f32>,
    /// Applied last.
    pub epilogue: Option<&'a (dyn Epilogue + 'a)>,
}

// SAFETY: its pointers are only values; who follows them, `gemm`, has its caller's promise for the whole team.
unsafe impl Sync for Gemm<'_> {}
// SAFETY: as above.
unsafe impl Send for Gemm<'_> {}

/// How a product is carried out.
struct Plan<'a> {
    g: &'a Gemm<'a>,
    kernels: &'static Kernels,
    tiles: &'static Tiles,
    b_store: Store,
    /// Depth and width of a block of B.
    kc: usize,
    nc: usize,
    /// How A is copied, if it is: row stride and k stride, in elements of the copy.
    copy_a: Option<(PackA, usize, usize)>,
    /// Element size of A as the tiles read it.
    a_size: usize,
    /// Whether tiles read a plain B where it lies, but for a last panel with a partial register.
    b_in_place: bool,
    /// Whether the product is computed as dot products, see [`gemv`].
    by_dots: bool,
    /// Bytes of scratch for the block of B and for the copy of A.
    b_bytes: usize,
    a_bytes: usize,
}

impl<'a> Plan<'a> {
    #[inline]
    fn new(kernels: &'static Kernels, g: &'a Gemm<'a>) -> Plan<'a> {
        let b_store = g.b.store();
        let dot = match &kernels.dot {
            Some(dot) if b_store == Store::Bf16 && g.a_store == Store::Bf16 => Some(dot),
            _ => None,
        };
        let tiles = dot.unwrap_or(match b_store {
            Store::F32 => &kernels.full,
            Store::F16 => &kernels.half,
            Store::Bf16 => &kernels.pairs,
        });
        let deepest = BLOCK_BYTES / BLOCK_COLS / b_store.size();
        let (kc, nc) = if g.k <= deepest {
            (g.k, BLOCK_COLS)
        } else if g.c_store == Store::F32 {
            let blocks = g.k.div_ceil(deepest);
            (g.k.div_ceil(blocks).next_multiple_of(8), BLOCK_COLS)
        } else {
            let cols = BLOCK_BYTES / b_store.size() / g.k / kernels.width * kernels.width;
            (g.k, cols.clamp(kernels.width, BLOCK_COLS))
        };
        let by_dots = g.m <= MR
            && g.a_store == Store::F32
            && g.a_col_stride == 1
            && matches!(g.b, B::Plain { store: Store::F32, row_stride: 1, col_stride, .. } if col_stride != 1);
        let columns = g.a_row_stride == 1 && g.a_col_stride != 1;
        let copy_a = if dot.is_some() {
            (g.a_col_stride != 1).then_some((copy_bf16_a as PackA, kc + 32, 1))
        } else if g.a_store == Store::F32
            && (g.a_col_stride == 1 || columns && g.k * g.a_col_stride * 4 < IN_PLACE_BYTES)
        {
            None
        } else if columns {
            Some((kernels.widen_a, 1, COPY_ROWS))
        } else {
            Some((kernels.widen_a, kc + 16, 1))
        };
        let a_size = if dot.is_some() { 2 } else { 4 };
        let (b_in_place, b_bytes) = match g.b {
            B::Packed(_) => (false, 0),
            B::Plain { .. } if by_dots => (false, 0),
            B::Plain { store, col_stride, .. } => {
                let in_place = g.m <= MR && col_stride == 1 && store != Store::Bf16;
                let cols = if in_place { kernels.width } else { nc };
                (in_place, kernels.packed_bytes(b_store, kc, g.n.min(cols)).next_multiple_of(64))
            }
        };
        let rows = g.m.min(COPY_ROWS);
        let a_bytes = match copy_a {
            Some((_, row, 1)) => rows * row * a_size,
            Some((_, _, k)) => kc * k * a_size,
            None => 0,
        };
        let a_bytes = a_bytes.next_multiple_of(64);
        Plan { g, kernels, tiles, b_store, kc, nc, copy_a, a_size, b_in_place, by_dots, b_bytes, a_bytes }
    }

    fn scratch_bytes(&self) -> usize {
        self.a_bytes + self.b_bytes
    }

    /// How many threads the work is worth, and how many of them share the columns.
    fn grid(&self, threads: usize) -> (usize, usize) {
        let g = self.g;
        let work = g.m.saturating_mul(g.n).saturating_mul(g.k);
        let threads = threads.min(work / WORK_PER_THREAD).max(1);
        let (row_panels, col_panels) = (g.m.div_ceil(MR), g.n.div_ceil(self.kernels.width));
        // Packing an element of B costs about as much as multiplying it with this many rows.
        let packing = if self.b_bytes > 0 && !self.b_in_place { 4 } else { 1 };
        let cost = |across: usize| {
            let rows = row_panels.div_ceil(threads / across) * MR;
            col_panels.div_ceil(across) * (rows + packing)
        };
        let across = (1..=threads).min_by_key(|&across| cost(across)).unwrap_or(1);
        (threads / across, across)
    }

    /// Computes a rectangle of C. `row0` is added to the rows the epilogue hears of.
    ///
    /// # Safety
    /// As [`gemm`]; `cols` starts at a panel's border; `scratch` holds [`Plan::scratch_bytes`].
    unsafe fn rectangle(&self, thread: usize, rows: Range<usize>, cols: Range<usize>, row0: usize, scratch: *mut u8) {
        let g = self.g;
        if self.by_dots {
            // SAFETY: the caller's promise.
            return unsafe { self.dots(thread, rows, cols, row0) };
        }
        for from in cols.clone().step_by(self.nc) {
            let cols = from..cols.end.min(from + self.nc);
            let mut start = 0;
            loop {
                let k = start..g.k.min(start + self.kc);
                // SAFETY: the caller's promise; the block lies within the rectangle.
                unsafe { self.block(thread, rows.clone(), cols.clone(), k, row0, scratch) };
                start += self.kc;
                if start >= g.k {
                    break;
                }
            }
        }
    }

    /// Computes a rectangle of few rows as dot products.
    ///
    /// # Safety
    /// As [`Plan::rectangle`].
    unsafe fn dots(&self, thread: usize, rows: Range<usize>, cols: Range<usize>, row0: usize) {
        let g = self.g;
        if let B::Plain { ptr, col_stride, .. } = g.b {
            let b_step = col_stride * 4;
            let c_size = g.c_store.size();
            let tile = Tile {
                k: g.k,
                a: g.a.wrapping_add(rows.start * g.a_row_stride * 4),
                a_row: g.a_row_stride * 4,
                a_k: 4,
                ahead: 0,
                b: ptr.wrapping_add(cols.start * b_step),
                b_step,
                c: g.c.wrapping_add((rows.start * g.c_row_stride + cols.start) * c_size),
                c_row: g.c_row_stride * c_size,
                c_store: g.c_store,
                cols: cols.len(),
                add: g.accumulate,
                bias: g.bias.map_or(std::ptr::null(), |bias| bias.wrapping_add(cols.start)),
            };
            // SAFETY: the tile lies within C, its rows and columns within A and B, which the caller promises.
            unsafe { self.kernels.dots[rows.len() - 1](&tile) };
        }
        if let Some(epilogue) = g.epilogue {
            epilogue.finish(thread, row0 + rows.start..row0 + rows.end, cols);
        }
    }

    /// Adds one block of B's part to all rows of a rectangle.
    ///
    /// # Safety
    /// As [`Plan::rectangle`].
    #[inline]
    unsafe fn block(
        &self,
        thread: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        k: Range<usize>,
        row0: usize,
        scratch: *mut u8,
    ) {
        let (g, kernels, store) = (self.g, self.kernels, self.b_store);
        let (width, lanes) = (kernels.width, kernels.lanes);
        let steps = k.len().div_ceil(store.depth());
        // From panel to panel, and from step to step of a panel of `width` columns.
        let (b, panel_bytes, in_place_step) = match g.b {
            B::Packed(packed) => {
                let panel = packed.k.div_ceil(store.depth()) * width * store.step_bytes();
                // The start within a panel depends on the panel's width, so it is added below.
                (packed.data.as_ptr().cast::<u8>().wrapping_add(cols.start / width * panel), panel, 0)
            }
            B::Plain { ptr, store, row_stride, col_stride } => {
                let source = Source { ptr, store, row: row_stride, col: col_stride };
                let block = source.at(k.start, cols.start);
                if self.b_in_place {
                    (block.ptr, width * store.size(), row_stride * store.size())
                } else {
                    // SAFETY: the block lies within B, and the scratch holds a block of kc × nc.
                    unsafe { (kernels.pack_b)(block, k.len(), cols.len(), scratch) };
                    (scratch.cast_const(), steps * width * store.step_bytes(), 0)
                }
            }
        };
        let packed_start = if let B::Packed(_) = g.b { k.start / store.depth() } else { 0 };
        let last = k.end == g.k;
        let bias = if last { g.bias } else { None };
        let a = Source { ptr: g.a, store: g.a_store, row: g.a_row_stride, col: g.a_col_stride };
        let c_size = g.c_store.size();
        let mut tile = Tile {
            k: k.len(),
            a: g.a,
            a_row: g.a_row_stride * self.a_size,
            a_k: g.a_col_stride * self.a_size,
            ahead: 0,
            b,
            b_step: 0,
            c: g.c,
            c_row: g.c_row_stride * c_size,
            c_store: g.c_store,
            cols: 0,
            add: g.accumulate || k.start > 0,
            bias: std::ptr::null(),
        };
        let group = if self.copy_a.is_some() { COPY_ROWS } else { rows.len() };
        for first in rows.clone().step_by(group.max(1)) {
            let rows = first..rows.end.min(first + group);
            let block = a.at(first, k.start);
            let mut a_ptr = block.ptr;
            if let Some((copy, row, k_stride)) = self.copy_a {
                let to = scratch.wrapping_add(self.b_bytes);
                // SAFETY: the rows and columns lie within A, and the scratch holds a copy of them after B's block.
                unsafe { copy(block, rows.len(), k.len(), to, row, k_stride) };
                a_ptr = to;
                (tile.a_row, tile.a_k) = (row * self.a_size, k_stride * self.a_size);
            }
            let panels = rows.len().div_ceil(MR);
            let (short, taller) = (rows.len() / panels, rows.len() % panels);
            let mut row = first;
            for panel in 0..panels {
                let height = short + usize::from(panel < taller);
                tile.a = a_ptr.wrapping_add((row - first) * tile.a_row);
                let c = g.c.wrapping_add((row * g.c_row_stride + cols.start) * c_size);
                let mut col = 0;
                while col < cols.len() {
                    tile.cols = width.min(cols.len() - col);
                    let registers = tile.cols.div_ceil(lanes);
                    tile.b = b.wrapping_add(col / width * panel_bytes);
                    if self.b_in_place {
                        tile.b_step = in_place_step;
                    } else {
                        tile.b_step = registers * lanes * store.step_bytes();
                        tile.b = tile.b.wrapping_add(packed_start * tile.b_step);
                    }
                    tile.ahead = if k.len() < FAR {
                        0
                    } else if height <= 2 {
                        B_AHEAD
                    } else if col + width >= cols.len() {
                        height * tile.a_row
                    } else {
                        0
                    };
                    tile.c = c.wrapping_add(col * c_size);
                    if let Some(bias) = bias {
                        tile.bias = bias.wrapping_add(cols.start + col);
                    }
                    // SAFETY: the tile lies within C, its rows and columns within A and B, which the caller promises.
                    unsafe {
                        if self.b_in_place && !tile.cols.is_multiple_of(lanes) {
                            // A full register would read past the end of B's rows: this one panel is copied.
                            if let B::Plain { store, row_stride, .. } = g.b {
                                let source = Source { ptr: tile.b, store, row: row_stride, col: 1 };
                                (kernels.pack_b)(source, k.len(), tile.cols, scratch);
                                (tile.b, tile.b_step) = (scratch, registers * lanes * store.step_bytes());
                            }
                        }
                        self.tiles[height - 1][registers - 1](&tile);
                    }
                    col += width;
                }
                if last && let Some(epilogue) = g.epilogue {
                    epilogue.finish(thread, row0 + row..row0 + row + height, cols.clone());
                }
                row += height;
            }
        }
    }
}

/// Bytes of 64-byte-aligned scratch that [`gemm`] and [`gemm_batched`] need with that many threads. No pointer is
/// followed, so those of `g` may still be unset.
pub fn scratch_bytes(isa: Isa, threads: usize, g: &Gemm<'_>) -> usize {
    Plan::new(Kernels::get(isa), g).scratch_bytes() * threads
}

/// Computes the product, on as many threads of the team as it is worth.
///
/// # Safety
/// A, B, the bias and C must be valid for the shape and strides, C for writing and aliased by none of the others, and
/// `scratch` must be 64-byte aligned and hold [`scratch_bytes`] for the team's threads. A packed B must have this shape.
///
/// # Panics
/// If a packed B has another shape or was packed for another instruction set.
pub unsafe fn gemm(isa: Isa, team: &Team, g: &Gemm<'_>, scratch: *mut u8) {
    // SAFETY: the caller's promise; an `Isa` exists only where the CPU has it.
    unsafe { gemm_with(Kernels::get(isa), team, g, 0, scratch) }
}

/// # Safety
/// As [`gemm`], and the CPU must have the kernels' instruction set.
unsafe fn gemm_with(kernels: &'static Kernels, team: &Team, g: &Gemm<'_>, row0: usize, scratch: *mut u8) {
    check(kernels, g);
    if g.m == 0 || g.n == 0 {
        return;
    }
    let plan = Plan::new(kernels, g);
    let (down, across) = plan.grid(team.threads());
    if down * across == 1 {
        // SAFETY: the caller's promise.
        return unsafe { plan.rectangle(0, 0..g.m, 0..g.n, row0, scratch) };
    }
    let cut = |len: usize, unit: usize, parts: usize, part: usize| (len.div_ceil(unit) * part / parts * unit).min(len);
    let scratch = Scratch(scratch);
    team.run(&|thread| {
        if thread < down * across {
            let (i, j) = (thread / across, thread % across);
            let rows = cut(g.m, MR, down, i)..cut(g.m, MR, down, i + 1);
            let width = plan.kernels.width;
            let cols = cut(g.n, width, across, j)..cut(g.n, width, across, j + 1);
            let scratch = scratch.part(&plan, thread);
            // SAFETY: the caller's promise; rectangles are disjoint and each thread has its own part of the scratch.
            unsafe { plan.rectangle(thread, rows, cols, row0, scratch) };
        }
    });
}

/// The scratch of a whole team.
struct Scratch(*mut u8);
// SAFETY: each thread takes only its own part.
unsafe impl Sync for Scratch {}

impl Scratch {
    fn part(&self, plan: &Plan<'_>, thread: usize) -> *mut u8 {
        self.0.wrapping_add(thread * plan.scratch_bytes())
    }
}

fn check(kernels: &Kernels, g: &Gemm<'_>) {
    if let B::Packed(b) = g.b {
        assert!(b.k == g.k && b.n == g.n, "the packed operand is {} × {}, not {} × {}", b.k, b.n, g.k, g.n);
        assert!(
            b.width == kernels.width && b.lanes == kernels.lanes,
            "the operand was packed for another instruction set"
        );
    }
}

/// Computes `batch` products, operands a fixed number of bytes apart (0 for a shared B). The epilogue hears of batch
/// element i's row r as row i · m + r.
///
/// # Safety
/// As [`gemm`], for each of the products.
///
/// # Panics
/// As [`gemm`], and if a packed B has a stride.
#[expect(clippy::too_many_arguments, reason = "three strides that share nothing but their unit")]
pub unsafe fn gemm_batched(
    isa: Isa,
    team: &Team,
    g: &Gemm<'_>,
    batch: usize,
    a_stride: usize,
    b_stride: usize,
    c_stride: usize,
    scratch: *mut u8,
) {
    let kernels = Kernels::get(isa);
    check(kernels, g);
    assert!(b_stride == 0 || matches!(g.b, B::Plain { .. }), "a packed operand is shared by the whole batch");
    if g.m == 0 || g.n == 0 {
        return;
    }
    let element = |i: usize| {
        let mut one = *g;
        one.a = g.a.wrapping_add(i * a_stride);
        one.c = g.c.wrapping_add(i * c_stride);
        if let B::Plain { ptr, .. } = &mut one.b {
            *ptr = ptr.wrapping_add(i * b_stride);
        }
        one
    };
    let plan = Plan::new(kernels, g);
    let work = g.m.saturating_mul(g.n).saturating_mul(g.k).saturating_mul(batch);
    let threads = team.threads().min(work / WORK_PER_THREAD).max(1);
    if batch < threads {
        for i in 0..batch {
            // SAFETY: the caller's promise.
            unsafe { gemm_with(kernels, team, &element(i), i * g.m, scratch) };
        }
        return;
    }
    let scratch = Scratch(scratch);
    let part = |thread: usize| {
        let scratch = scratch.part(&plan, thread);
        for i in batch * thread / threads..batch * (thread + 1) / threads {
            let one = element(i);
            let plan = Plan { g: &one, ..plan };
            // SAFETY: the caller's promise; products write disjoint C and each thread has its own part of the scratch.
            unsafe { plan.rectangle(thread, 0..g.m, 0..g.n, i * g.m, scratch) };
        }
    };
    if threads == 1 {
        return part(0);
    }
    team.run(&|thread| {
        if thread < threads {
            part(thread)
        }
    });
}
