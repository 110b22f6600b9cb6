//! How a product with low-bit weights is carried out: what is copied, which tiles, and which thread computes what.
//!
//! A thread takes some rows at a time, rounds or copies them to its scratch memory, and passes over the panels of its
//! columns with them. Sums over k are never cut: what is left of rows and codes is small.

use super::check::integer_kernels;
use super::float;
use super::int::{self, Fetch, MAX_WIDTH, Sums};
use super::round::Rounded;
use super::{PackedLowBit, float::Rows};
use crate::Team;
use crate::gemm::micro::MR;
use crate::gemm::{Gemm, Store};
use crate::tape::NextWeights;
use crate::team::{fetch, start};
use crate::tuning::{Machine, Tuning};
use half::{bf16, f16};
use std::ops::Range;

/// Whether a product of so many rows multiplies codes as they are taken apart; else the matrix is widened for the tiles of
/// other products.
pub fn is_direct(tuning: &Tuning, rows: usize, rounded: bool) -> bool {
    rounded || rows < tuning.lowbit_widened_rows_least()
}

/// Bytes of scratch for each thread of such a product; saturates where that overflows.
pub(crate) fn scratch_bytes(tuning: &Tuning, rows: usize, b: &PackedLowBit, rounded: bool) -> usize {
    let rows = rows.min(tuning.gemm_copied_rows());
    if rounded { Rounded::bytes(&b.shape, rows) } else { Rows::bytes(&b.shape, rows) }
}

/// How many lines of a result are asked for at most: more would displace each other in the nearest cache.
const MOST_FETCHED_LINES: usize = 256;

/// Into how many parts the rows and the columns of a product with `m` rows are cut. Columns come first: each thread then has
/// its own part of the weights.
fn grid(tuning: &Tuning, threads: usize, m: usize, b: &PackedLowBit) -> (usize, usize) {
    if threads == 1 {
        return (1, 1);
    }
    let work = m.saturating_mul(b.n()).saturating_mul(b.k());
    let threads = threads.min(work / tuning.lowbit_thread_multiply_adds_least()).max(1);
    let across = threads.min(b.n().div_ceil(b.shape.width)).max(1);
    ((threads / across).min(m.div_ceil(tuning.gemm_tile_rows())), across)
}

/// Where part `part` of `parts` begins, if `len` is cut at multiples of `unit`.
fn cut(len: usize, unit: usize, parts: usize, part: usize) -> usize {
    (start(len.div_ceil(unit), parts, part) * unit).min(len)
}

/// How rows are multiplied.
#[derive(Clone, Copy)]
enum Way {
    Integers(&'static int::Kernels),
    Floats(&'static float::Kernels),
}

/// Computes a product; `row0` is added to the row numbers that the epilogue gets.
///
/// # Safety
/// As [`crate::gemm::gemm`], where rows of A are contiguous f32, B is `b`, packed for the instruction set, and
/// [`is_direct`] holds; the scratch must hold [`scratch_bytes`] for each thread of the team.
#[expect(clippy::too_many_arguments, reason = "the operands of a product, and where it runs")]
pub(crate) unsafe fn product(
    on: Machine<'_>,
    team: &Team,
    g: &Gemm<'_>,
    b: &PackedLowBit,
    next: Option<&NextWeights>,
    rounded: bool,
    row0: usize,
    scratch: *mut u8,
) {
    let way = if rounded { Way::Integers(integer_kernels(on.isa)) } else { Way::Floats(float::Kernels::get(on.isa)) };
    // SAFETY: the caller's promise; the kernels are of an instruction set that the CPU has.
    unsafe {
        let each = Each { way, tuning: on.tuning, threads: team.threads(), g: *g, b, next, row0, rounded: None };
        product_by(each, team, scratch)
    }
}

/// The same by these kernels.
///
/// # Safety
/// As [`product`], and the CPU must have the instructions.
pub(super) unsafe fn integer_product_by(
    kernels: &'static int::Kernels,
    tuning: &Tuning,
    team: &Team,
    g: &Gemm<'_>,
    b: &PackedLowBit,
    scratch: *mut u8,
) {
    let way = Way::Integers(kernels);
    let each = Each { way, tuning, threads: team.threads(), g: *g, b, next: None, row0: 0, rounded: None };
    // SAFETY: the caller's promise.
    unsafe { product_by(each, team, scratch) }
}

/// # Safety
/// As [`product`], and the CPU must have the instructions.
unsafe fn product_by(mut each: Each<'_>, team: &Team, scratch: *mut u8) {
    let Each { tuning, g, b, .. } = each;
    let (down, across) = grid(tuning, each.threads, g.m, b);
    if down * across == 1 {
        // SAFETY: the caller's promise.
        return unsafe { each.rectangle(0, 0..g.m, 0..g.n, scratch) };
    }
    let bytes = scratch_bytes(tuning, g.m, b, matches!(each.way, Way::Integers(_)));
    if let (1, Way::Integers(kernels)) = (g.m, each.way) {
        // One row is rounded once: a quarter of its bytes then go to the other threads.
        let rounded = Rounded::at(&b.shape, 1, scratch);
        // SAFETY: the row of A, and scratch for it.
        unsafe { (kernels.round)(&b.shape, g.a.cast(), kernels.start_factor(b), 0, &rounded) };
        each.rounded = Some(rounded);
    }
    let shared = Shared(scratch);
    // The closure holds all that threads need, so that it comes to each of them at once.
    team.run(&move |thread| {
        let (each, shared) = (&each, &shared);
        let Each { tuning, b, ref g, .. } = *each;
        if thread < down * across {
            let (i, j) = (thread / across, thread % across);
            let tall = tuning.gemm_tile_rows();
            let rows = cut(g.m, tall, down, i)..cut(g.m, tall, down, i + 1);
            let column = |part: usize| cut(g.n, b.shape.width, across, part);
            if let (Some(rounded), 1..) = (each.rounded, thread) {
                rounded.fetch();
            }
            // SAFETY: the caller's promise; rectangles are disjoint and each thread has its own part of the scratch.
            unsafe { each.rectangle(thread, rows, column(j)..column(j + 1), shared.part(thread * bytes)) };
        }
    });
    if g.m == 1 {
        // What the other threads wrote is mostly read next, by this one.
        let theirs = cut(g.n, b.shape.width, across, 1)..g.n;
        let size = g.c_store.size();
        let lines = (theirs.len() * size).div_ceil(64);
        fetch(g.c.wrapping_add(theirs.start * size), lines.min(MOST_FETCHED_LINES));
    }
}

/// The scratch of a whole team.
struct Shared(*mut u8);
// SAFETY: each thread takes only its own part.
unsafe impl Sync for Shared {}

impl Shared {
    fn part(&self, at: usize) -> *mut u8 {
        self.0.wrapping_add(at)
    }
}

/// What all rectangles of a product have in common.
#[derive(Clone, Copy)]
struct Each<'a> {
    way: Way,
    tuning: &'a Tuning,
    threads: usize,
    g: Gemm<'a>,
    b: &'a PackedLowBit,
    next: Option<&'a NextWeights>,
    row0: usize,
    /// The only row, where it is rounded before threads begin.
    rounded: Option<Rounded>,
}

// SAFETY: the kernels, weights and a row that is rounded already are only read; the pointers of `g` are followed as `product`'s
// caller promises.
unsafe impl Sync for Each<'_> {}

impl Each<'_> {
    /// What a thread fetches that multiplies one row with these columns: what it reads of the next product, if it has a part
    /// of that, follows what it reads of this one.
    fn fetch(&self, thread: usize, cols: &Range<usize>) -> Fetch {
        let Each { b, tuning, .. } = *self;
        let codes = |b: &PackedLowBit, column: usize| b.panel(column).0;
        let part = |next: &PackedLowBit| {
            let (_, across) = grid(tuning, self.threads, 1, next);
            (thread < across).then(|| codes(next, cut(next.n(), next.shape.width, across, thread)))
        };
        // Where this thread has nothing to do next, it asks for its own codes again, which costs nothing.
        let next = self.next.and_then(|next| part(&next.b)).unwrap_or(codes(b, cols.start));
        let far = self.next.is_some_and(|n| n.all_bytes / self.threads >= tuning.lowbit_far_weight_bytes_least());
        let ahead = if far { tuning.lowbit_prefetch_far_bytes_ahead() } else { tuning.lowbit_prefetch_bytes_ahead() };
        Fetch { ahead, end: codes(b, cols.end.next_multiple_of(b.shape.lanes)), next }
    }

    /// Whether finished sums can be written to C as they are.
    fn writes_sums(&self) -> bool {
        let g = &self.g;
        g.c_store == Store::F32
            && g.c.addr().is_multiple_of(4)
            && g.bias.is_none()
            && g.row_bias.is_none()
            && g.add.is_none()
    }

    /// # Safety
    /// As [`product`]; `cols` starts at a panel's border; the scratch is this thread's part.
    unsafe fn rectangle(&self, thread: usize, rows: Range<usize>, cols: Range<usize>, scratch: *mut u8) {
        let Each { ref g, b, tuning, .. } = *self;
        let shape = &b.shape;
        let group = tuning.gemm_copied_rows();
        let index = match shape.bits {
            8 => 0,
            4 => 1,
            _ => 2,
        };
        let tallest = match self.way {
            Way::Integers(kernels) => kernels.tiles[index].len(),
            Way::Floats(kernels) => kernels.tiles[index].len(),
        };
        let tallest = tuning.gemm_tile_rows().min(tallest);
        let fetch = self.fetch(thread, &cols);
        // One row is written to C by the tile itself: what follows a tile takes a noticeable part of the time of one row.
        let writes_sums = rows.len() == 1 && self.writes_sums();
        let mut sums: Sums = [[0.0; MAX_WIDTH]; MR];
        for first in rows.clone().step_by(group) {
            let rows = first..rows.end.min(first + group);
            let x = |row: usize| g.a.cast::<f32>().wrapping_add(row * g.a_row_stride);
            let (rounded, floats) = (Rounded::at(shape, rows.len(), scratch), Rows::at(shape, rows.len(), scratch));
            let rounded = self.rounded.unwrap_or(rounded);
            let to_copy = if self.rounded.is_some() { 0..0 } else { rows.clone() };
            for row in to_copy {
                // SAFETY: rows of A, and scratch for as many.
                unsafe {
                    match self.way {
                        Way::Integers(kernels) => {
                            (kernels.round)(shape, x(row), kernels.start_factor(b), row - first, &rounded)
                        }
                        Way::Floats(_) => float::spread_row(shape, x(row), row - first, &floats),
                    }
                }
            }
            let panels = rows.len().div_ceil(tallest);
            let (short, taller) = (rows.len() / panels, rows.len() % panels);
            // Columns whose finished rows are still in a near cache when the epilogue takes them.
            let at_once = tuning.gemm_epilogue_at_once_bytes_most() / (rows.len() * g.c_store.size());
            let block = (at_once / shape.width * shape.width).max(shape.width);
            for from in cols.clone().step_by(block) {
                let cols = from..cols.end.min(from + block);
                let mut panel = cols.start;
                while panel < cols.end {
                    let wide = shape.wide(panel);
                    // A panel that is narrower than a tile is taken by registers.
                    let (narrow, step) = if wide == shape.width { (0, wide) } else { (1, shape.lanes) };
                    for (register, at) in (0..wide).step_by(step).enumerate() {
                        let mut row = 0;
                        for i in 0..panels {
                            let height = short + usize::from(i < taller);
                            let tile_cols = panel + at..cols.end.min(panel + at + step);
                            let own = writes_sums && tile_cols.len() == step;
                            let sums_at = if own {
                                g.c.wrapping_add(4 * (first * g.c_row_stride + tile_cols.start)).cast::<f32>()
                            } else {
                                sums.as_mut_ptr().cast::<f32>()
                            };
                            // SAFETY: the tile lies within the panel, the rounded or copied rows and C.
                            unsafe {
                                match self.way {
                                    Way::Integers(kernels) => {
                                        let tile = int::Tile { b, from: panel, register, rows: &rounded, row, fetch };
                                        kernels.tiles[index][height - 1][narrow](&tile, sums_at);
                                    }
                                    Way::Floats(kernels) => {
                                        let tile = float::Tile { b, from: panel, register, rows: &floats, row };
                                        kernels.tiles[index][height - 1][narrow](&tile, sums_at);
                                    }
                                }
                                if !own {
                                    self.finish(first + row..first + row + height, tile_cols, &sums);
                                }
                            }
                            row += height;
                        }
                    }
                    panel += shape.width;
                }
                if let Some(epilogue) = g.epilogue {
                    epilogue.finish(thread, self.row0 + rows.start..self.row0 + rows.end, cols);
                }
            }
        }
    }

    /// Adds what is to be added to finished sums, and writes them to C.
    ///
    /// # Safety
    /// The rows and columns must lie within C.
    unsafe fn finish(&self, rows: Range<usize>, cols: Range<usize>, sums: &Sums) {
        let g = &self.g;
        for (row, sums) in rows.zip(sums) {
            let mut sums = *sums;
            let sums = &mut sums[..cols.len()];
            let at = (row * g.c_row_stride + cols.start) * g.c_store.size();
            let c = g.c.wrapping_add(at);
            // SAFETY: C, and the biases of its rows and columns.
            unsafe {
                if let Some(bias) = g.row_bias {
                    let bias = bias.add(row).read();
                    sums.iter_mut().for_each(|sum| *sum += bias);
                }
                if let Some(add) = g.add {
                    let add = add.wrapping_add(at);
                    for (j, sum) in sums.iter_mut().enumerate() {
                        *sum += match g.c_store {
                            Store::F32 => add.cast::<f32>().add(j).read_unaligned(),
                            Store::F16 => add.cast::<f16>().add(j).read_unaligned().to_f32(),
                            Store::Bf16 => add.cast::<bf16>().add(j).read_unaligned().to_f32(),
                        };
                    }
                }
                if let Some(bias) = g.bias {
                    let bias = bias.wrapping_add(cols.start);
                    sums.iter_mut().enumerate().for_each(|(j, sum)| *sum += bias.add(j).read_unaligned());
                }
                for (j, sum) in sums.iter().enumerate() {
                    match g.c_store {
                        Store::F32 => c.cast::<f32>().add(j).write_unaligned(*sum),
                        Store::F16 => c.cast::<f16>().add(j).write_unaligned(f16::from_f32(*sum)),
                        Store::Bf16 => c.cast::<bf16>().add(j).write_unaligned(bf16::from_f32(*sum)),
                    }
                }
            }
        }
    }
}
