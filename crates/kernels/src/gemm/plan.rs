//! How a product is carried out: which kernels, which blocks, what is copied, and the loops over it all.

#[cfg(target_arch = "x86_64")]
use super::bf16;
use super::gemv::{Dots, dots};
use super::micro::{Full, Half, Lanes, MAX_NV, MR, Pairs, Tile, TileFn, Tiles, tiles};
use super::pack::{PackA, PackB, Source, WidenB, copy_bf16_a, pack_b, widen_a, widen_b};
use super::{B, Gemm, PackedB, Store};
use crate::Isa;
use crate::lowbit::{WidenCodes, widen_panel};
use crate::simd::Level;
use crate::simd::portable::Portable;
use crate::tuning::Tuning;
use std::ops::Range;

/// The kernels of one instruction set.
pub(crate) struct Kernels {
    pub(crate) lanes: usize,
    /// Columns of a full panel.
    pub(crate) width: usize,
    full: Tiles,
    half: Tiles,
    pairs: Tiles,
    dot: Option<Tiles>,
    dots: Dots,
    pub(crate) pack_b: PackB,
    widen_a: PackA,
    widen_b: WidenB,
    widen_codes: WidenCodes,
}

impl Kernels {
    pub(crate) const fn of<S: Lanes>(dot: Option<Tiles>) -> Kernels {
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
            widen_b: widen_b::<S>,
            widen_codes: widen_panel::<S>,
        }
    }

    /// The tiles that multiply two bfloat16 in one instruction, if the CPU has it and the tuning uses it.
    pub(crate) fn dot_of(&self, tuning: &Tuning) -> Option<&Tiles> {
        self.dot.as_ref().filter(|_| tuning.gemm_bf16_instruction() == 1)
    }

    #[inline]
    pub(crate) fn get(isa: Isa) -> &'static Kernels {
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

    /// Bytes of a packed k × n; saturates where that overflows.
    pub(crate) fn packed_bytes(&self, store: Store, k: usize, n: usize) -> usize {
        let columns = n.checked_next_multiple_of(self.lanes).unwrap_or(usize::MAX);
        columns.saturating_mul(k.div_ceil(store.depth())).saturating_mul(store.step_bytes())
    }
}

/// Whether a product of f32 is carried out as [`FewRows`].
#[inline]
pub(crate) fn is_small(tuning: &Tuning, m: usize, n: usize, k: usize) -> bool {
    let least = tuning.gemm_thread_multiply_adds_least();
    m <= MR && k <= tuning.gemm_block_column_bytes() / 4 && (m * k).saturating_mul(n) < 2 * least
}

/// How many of `threads` threads `work` multiply-adds are worth.
#[inline]
pub(crate) fn threads_worth(tuning: &Tuning, threads: usize, work: usize) -> usize {
    // Most products run on one thread and can skip the division.
    if threads == 1 { 1 } else { threads.min(work / tuning.gemm_thread_multiply_adds_least()).max(1) }
}

/// A few rows times a packed matrix, for which one thread is enough: the most common product of a small network. It is so
/// short that making a [`Plan`] for it would take longer, so it has none.
#[derive(Clone, Copy)]
pub(crate) struct FewRows {
    tiles: &'static [TileFn; MAX_NV],
    /// Columns of a panel, and of a register (as a power of two).
    width: usize,
    lanes_log2: u32,
    n: usize,
    k: usize,
    rest_k: usize,
    a_row: usize,
    c_row: usize,
    ahead: usize,
}

/// Where the operands of [`FewRows`] lie.
#[derive(Clone, Copy)]
pub(crate) struct FewRowsAt {
    pub(crate) a: *const u8,
    pub(crate) rest: *const u8,
    pub(crate) c: *mut u8,
    pub(crate) bias: *const f32,
    pub(crate) row_bias: *const f32,
}

impl FewRows {
    /// The product as one of a few rows, if it is small enough; no pointer is followed.
    #[inline(always)]
    pub(crate) fn of(kernels: &'static Kernels, tuning: &Tuning, g: &Gemm<'_>) -> Option<FewRows> {
        let B::Packed(b) = g.b else { return None };
        let plain = (g.a_store, b.store, g.c_store) == (Store::F32, Store::F32, Store::F32) && g.a_col_stride == 1;
        if !plain || g.m == 0 || !is_small(tuning, g.m, g.n, g.k) || g.add.is_some() {
            return None;
        }
        Some(FewRows {
            tiles: &kernels.full[g.m - 1],
            width: kernels.width,
            lanes_log2: kernels.lanes.trailing_zeros(),
            n: g.n,
            k: g.k,
            rest_k: g.a_rest.map_or(0, |(_, k)| k),
            a_row: g.a_row_stride * 4,
            c_row: g.c_row_stride * 4,
            ahead: if g.k >= tuning.gemm_prefetch_depth_least() && g.m <= 2 {
                tuning.gemm_prefetch_bytes_ahead()
            } else {
                0
            },
        })
    }

    /// # Safety
    /// As [`super::gemm`], for the product that this was made of.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, at: FewRowsAt, b: &PackedB) {
        let mut tile = Tile {
            k: self.k - self.rest_k,
            a: at.a,
            a_row: self.a_row,
            a_k: 4,
            ahead: self.ahead,
            b: b.data.as_ptr().cast(),
            b_step: 0,
            c: at.c,
            c_row: self.c_row,
            c_store: Store::F32,
            cols: 0,
            add: std::ptr::null(),
            bias: at.bias,
            row_bias: at.row_bias,
            rest: at.rest,
            rest_k: self.rest_k,
        };
        let mut left = self.n;
        while left > 0 {
            tile.cols = left.min(self.width);
            let registers = (tile.cols + (1 << self.lanes_log2) - 1) >> self.lanes_log2;
            tile.b_step = (registers << self.lanes_log2) * 4;
            // SAFETY: the tile lies within C, its rows and columns within A and B, which the caller promises.
            unsafe { self.tiles[registers - 1](&tile) };
            left -= tile.cols;
            tile.b = tile.b.wrapping_add(self.k * tile.b_step);
            tile.c = tile.c.wrapping_add(tile.cols * 4);
            if !tile.bias.is_null() {
                tile.bias = tile.bias.wrapping_add(tile.cols);
            }
        }
    }
}

/// Computes a product as [`FewRows`], with its epilogue, if it is such a product; gives whether it did.
///
/// # Safety
/// As [`super::gemm`].
#[inline(always)]
pub(crate) unsafe fn few_rows(kernels: &'static Kernels, tuning: &Tuning, g: &Gemm<'_>) -> bool {
    let (Some(few), B::Packed(b)) = (FewRows::of(kernels, tuning, g), g.b) else { return false };
    let at = FewRowsAt {
        a: g.a,
        rest: g.a_rest.map_or(std::ptr::null(), |(rest, _)| rest),
        c: g.c,
        bias: g.bias.unwrap_or(std::ptr::null()),
        row_bias: g.row_bias.unwrap_or(std::ptr::null()),
    };
    // SAFETY: the caller's promise.
    unsafe { few.run(at, b) };
    if let Some(epilogue) = g.epilogue {
        epilogue.finish(0, 0..g.m, 0..g.n);
    }
    true
}

/// How a product is carried out: all decisions that depend only on its shape.
pub(crate) struct Plan<'a> {
    pub(crate) g: &'a Gemm<'a>,
    tuning: &'a Tuning,
    pub(crate) kernels: &'static Kernels,
    tiles: &'static Tiles,
    b_store: Store,
    /// Depth and width of a block of B.
    kc: usize,
    nc: usize,
    /// How A is copied, if it is: row stride and k stride, in elements of the copy.
    copy_a: Option<(PackA, usize, usize)>,
    /// Element size of A as the tiles read it.
    a_size: usize,
    /// Whether blocks of a packed B of bfloat16 or low-bit codes are widened to f32 first.
    widen_b: bool,
    /// Whether tiles read a plain B in place, except for a last panel that ends within a register.
    b_in_place: bool,
    /// Whether the product is computed as dot products, see `gemv`.
    by_dots: bool,
    /// Bytes of scratch for the block of B and for the copy of A.
    b_bytes: usize,
    a_bytes: usize,
}

/// Bytes rounded up to whole cache lines; saturates where that overflows.
fn whole_lines(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(64).unwrap_or(usize::MAX)
}

impl<'a> Plan<'a> {
    #[inline]
    pub(crate) fn new(kernels: &'static Kernels, tuning: &'a Tuning, g: &'a Gemm<'a>) -> Plan<'a> {
        let b_store = g.b.store();
        let dot = match kernels.dot_of(tuning) {
            Some(dot) if b_store == Store::Bf16 && g.a_store == Store::Bf16 => Some(dot),
            _ => None,
        };
        let widen_b = b_store == Store::Bf16
            && dot.is_none()
            && matches!(g.b, B::Packed(_))
            && g.m >= tuning.gemm_widened_block_rows_least();
        let widen_b = widen_b || matches!(g.b, B::LowBit { .. });
        let b_store = if widen_b { Store::F32 } else { b_store };
        let tiles = dot.unwrap_or(match b_store {
            Store::F32 => &kernels.full,
            Store::F16 => &kernels.half,
            Store::Bf16 => &kernels.pairs,
        });
        let column_bytes = tuning.gemm_block_column_bytes();
        let deepest = column_bytes / b_store.size();
        // A multiple of 64 columns, and so of a panel's width.
        let columns = tuning.gemm_block_columns();
        let (kc, nc) = if g.k <= deepest {
            (g.k, columns)
        } else if g.c_store == Store::F32 {
            let blocks = g.k.div_ceil(deepest);
            (g.k.div_ceil(blocks).next_multiple_of(8), columns)
        } else {
            let narrower = column_bytes.saturating_mul(columns) / b_store.size() / g.k / kernels.width * kernels.width;
            (g.k, narrower.clamp(kernels.width, columns))
        };
        let by_dots = g.m <= MR
            && g.a_store == Store::F32
            && g.a_col_stride == 1
            && matches!(g.b, B::Plain { store: Store::F32, row_stride: 1, col_stride, .. } if col_stride != 1);
        let by_columns = g.a_row_stride == 1 && g.a_col_stride != 1;
        let in_place_most = tuning.gemm_in_place_bytes_most() / 4;
        let copy_a = if dot.is_some() {
            (g.a_col_stride != 1).then_some((copy_bf16_a as PackA, kc + 32, 1))
        } else if g.a_store == Store::F32
            && (g.a_col_stride == 1 || by_columns && g.k.saturating_mul(g.a_col_stride) < in_place_most)
        {
            None
        } else if by_columns {
            Some((kernels.widen_a, 1, tuning.gemm_copied_rows()))
        } else {
            Some((kernels.widen_a, kc + 16, 1))
        };
        let a_size = if dot.is_some() { 2 } else { 4 };
        let (b_in_place, b_bytes) = match g.b {
            B::Packed(_) | B::LowBit { .. } if widen_b => {
                (false, whole_lines(kernels.packed_bytes(Store::F32, kc, g.n.min(nc))))
            }
            B::Packed(_) | B::LowBit { .. } => (false, 0),
            B::Plain { .. } if by_dots => (false, 0),
            B::Plain { store, row_stride, col_stride, .. } => {
                // Copying pays where many rows of A read a B whose panels are not contiguous: not for few rows, nor for
                // a single panel.
                let one_panel = g.n <= kernels.width && g.n.is_multiple_of(kernels.lanes) && row_stride <= 2 * g.n;
                let in_place = (g.m <= MR || one_panel) && col_stride == 1 && store != Store::Bf16;
                let cols = if in_place { kernels.width } else { nc };
                (in_place, whole_lines(kernels.packed_bytes(b_store, kc, g.n.min(cols))))
            }
        };
        let rows = g.m.min(tuning.gemm_copied_rows());
        let a_bytes = match copy_a {
            Some((_, row, 1)) => row.saturating_mul(rows * a_size),
            Some((_, _, k)) => kc.saturating_mul(k * a_size),
            None => 0,
        };
        let a_bytes = whole_lines(a_bytes);
        Plan {
            g,
            tuning,
            kernels,
            tiles,
            b_store,
            kc,
            nc,
            copy_a,
            a_size,
            widen_b,
            b_in_place,
            by_dots,
            b_bytes,
            a_bytes,
        }
    }

    /// The same plan for operands at other addresses.
    pub(crate) fn at<'b>(&self, g: &'b Gemm<'b>) -> Plan<'b>
    where
        'a: 'b,
    {
        Plan { g, ..*self }
    }

    /// Bytes of scratch for each thread; saturates where that overflows.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.a_bytes.saturating_add(self.b_bytes)
    }

    /// Into how many parts the rows and the columns of C are cut: as many rectangles as the work is worth threads.
    pub(crate) fn grid(&self, threads: usize) -> (usize, usize) {
        let g = self.g;
        let work = g.m.saturating_mul(g.n).saturating_mul(g.k);
        let threads = threads_worth(self.tuning, threads, work);
        let tall = self.tuning.gemm_tile_rows();
        let (row_panels, col_panels) = (g.m.div_ceil(tall), g.n.div_ceil(self.kernels.width));
        // Packing an element of B costs about as much as multiplying it with this many rows.
        let packing = if self.b_bytes > 0 && !self.b_in_place { 4 } else { 1 };
        let down = |across: usize| (threads / across).min(row_panels);
        let cost = |across: usize| col_panels.div_ceil(across) * (row_panels.div_ceil(down(across)) * tall + packing);
        let across = (1..=threads.min(col_panels)).min_by_key(|&across| cost(across)).unwrap_or(1);
        (down(across), across)
    }

    /// Computes a rectangle of C. `row0` is added to the row numbers that the epilogue gets.
    ///
    /// # Safety
    /// As [`super::gemm`]; `cols` starts at a panel's border; `scratch` holds [`Plan::scratch_bytes`].
    pub(crate) unsafe fn rectangle(
        &self,
        thread: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        row0: usize,
        scratch: *mut u8,
    ) {
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
            let first = (rows.start * g.c_row_stride + cols.start) * c_size;
            let at = |add: Option<*const u8>| add.map_or(std::ptr::null(), |add| add.wrapping_add(first));
            let tile = Tile {
                k: g.k,
                a: g.a.wrapping_add(rows.start * g.a_row_stride * 4),
                a_row: g.a_row_stride * 4,
                a_k: 4,
                ahead: 0,
                b: ptr.wrapping_add(cols.start * b_step),
                b_step,
                c: g.c.wrapping_add(first),
                c_row: g.c_row_stride * c_size,
                c_store: g.c_store,
                cols: cols.len(),
                add: at(g.add),
                bias: g.bias.map_or(std::ptr::null(), |bias| bias.wrapping_add(cols.start)),
                row_bias: g.row_bias.map_or(std::ptr::null(), |bias| bias.wrapping_add(rows.start)),
                rest: std::ptr::null(),
                rest_k: 0,
            };
            // SAFETY: the tile lies within C, its rows and columns within A and B, which the caller promises.
            unsafe { self.kernels.dots[rows.len() - 1](&tile) };
        }
        if let Some(epilogue) = g.epilogue {
            epilogue.finish(thread, row0 + rows.start..row0 + rows.end, cols);
        }
    }

    /// Adds the products with one block of B to all rows of a rectangle.
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
        // The first panel, the bytes from panel to panel, and from step to step where B is read in place (else 0).
        let (b, panel_bytes, in_place_step) = match g.b {
            B::Packed(packed) if self.widen_b => {
                let (pairs, from) = (packed.k.div_ceil(2), packed.data.as_ptr().cast::<u8>());
                let panel = k.len() * width * 4;
                for (i, col) in cols.clone().step_by(width).enumerate() {
                    let wide = width.min(cols.end - col).next_multiple_of(lanes);
                    let from = from.wrapping_add((col / width * pairs * width + k.start / 2 * wide) * 4);
                    // SAFETY: these steps of the panel are there, and the scratch holds a block of kc × nc.
                    unsafe { (kernels.widen_b)(from, k.len(), wide, scratch.wrapping_add(i * panel).cast()) };
                }
                (scratch.cast_const(), panel, 0)
            }
            B::LowBit { b, .. } => {
                let panel = k.len() * width * 4;
                for (i, col) in cols.clone().step_by(width).enumerate() {
                    // SAFETY: these rows of the panel are there, and the scratch holds a block of kc × nc.
                    unsafe { (kernels.widen_codes)(b, col, k.clone(), scratch.wrapping_add(i * panel).cast()) };
                }
                (scratch.cast_const(), panel, 0)
            }
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
        let packed_start = if matches!(g.b, B::Packed(_)) && !self.widen_b { k.start / store.depth() } else { 0 };
        let last = k.end == g.k;
        let (bias, row_bias) = if last { (g.bias, g.row_bias) } else { (None, None) };
        let small = rows.len() * cols.len() * g.c_store.size() <= self.tuning.gemm_epilogue_at_once_bytes_most();
        let far = k.len() >= self.tuning.gemm_prefetch_depth_least();
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
            add: std::ptr::null(),
            bias: std::ptr::null(),
            row_bias: std::ptr::null(),
            rest: std::ptr::null(),
            rest_k: 0,
        };
        // Later blocks of k are added to what the first one made.
        let add = if k.start > 0 { Some(g.c.cast_const()) } else { g.add };
        let all = rows.clone();
        let group = if self.copy_a.is_some() { self.tuning.gemm_copied_rows() } else { rows.len() };
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
            let panels = rows.len().div_ceil(self.tuning.gemm_tile_rows());
            let (short, taller) = (rows.len() / panels, rows.len() % panels);
            let mut row = first;
            for panel in 0..panels {
                let height = short + usize::from(panel < taller);
                tile.a = a_ptr.wrapping_add((row - first) * tile.a_row);
                if let Some(bias) = row_bias {
                    tile.row_bias = bias.wrapping_add(row);
                }
                let at = (row * g.c_row_stride + cols.start) * c_size;
                let c = g.c.wrapping_add(at);
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
                    tile.ahead = if !far {
                        0
                    } else if height <= 2 {
                        self.tuning.gemm_prefetch_bytes_ahead()
                    } else if col + width >= cols.len() {
                        height * tile.a_row
                    } else {
                        0
                    };
                    tile.c = c.wrapping_add(col * c_size);
                    if let Some(add) = add {
                        tile.add = add.wrapping_add(at + col * c_size);
                    }
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
                if last
                    && !small
                    && let Some(epilogue) = g.epilogue
                {
                    epilogue.finish(thread, row0 + row..row0 + row + height, cols.clone());
                }
                row += height;
            }
        }
        if last
            && small
            && let Some(epilogue) = g.epilogue
        {
            epilogue.finish(thread, row0 + all.start..row0 + all.end, cols);
        }
    }
}
