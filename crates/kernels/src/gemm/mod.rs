//! Matrix products: f32, f16 and bfloat16 in memory, f32 sums, any shape and any strides.
//!
//! The loops are Goto's, with the roles chosen for a large second-level cache: a block of B (`kc` × `nc`) stays in L2
//! and every panel of six rows of A passes over it. The tile of registers (`micro`) needs under 11 bytes of B a cycle,
//! and L2 delivers more than that, so only six rows of A have to fit L1. Hence A is not copied when its rows (or, if
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
pub(crate) mod micro;
mod pack;
mod plan;
#[cfg(test)]
mod tests;

use crate::changing::{Changing, Rewriting, Table};
use crate::lowbit::{self, PackedLowBit};
use crate::tape::NextWeights;
use crate::team::start;
use crate::tuning::{Machine, Tuning};
use crate::{Isa, Team};
use pack::Source;
pub(crate) use plan::{FewRows, FewRowsAt};
use plan::{Kernels, Plan, threads_worth};
use std::ops::Range;
use std::sync::Arc;

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

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[cfg_attr(not(test), expect(dead_code, reason = "read through pointers"))] [u8; 64]);

/// A right-hand side packed once, for one instruction set: weights. 16-bit weights stay 16 bits in memory.
pub struct PackedB {
    data: Table<Line>,
    store: Store,
    k: usize,
    n: usize,
    bytes: usize,
    width: usize,
    lanes: usize,
}

/// A matrix is packed in pieces of about this many bytes. After each piece the caller is told that it has been read.
const PIECE_BYTES: usize = 1 << 20;

impl PackedB {
    /// Packs `b[k][n]`, where element (k, n) is at `b + k * row_stride + n * col_stride`, in elements of `store`. After
    /// each piece, `read` is called with the range of bytes, counted from `b`, that will not be read again. If the
    /// system has no memory for the packed matrix, the error is its size in bytes.
    ///
    /// # Safety
    /// Every such element must be readable, and the bytes of as many elements must fit the address space, with columns
    /// rounded up to 64.
    #[expect(clippy::too_many_arguments, reason = "a matrix, and where it lies")]
    pub(crate) unsafe fn pack(
        isa: Isa,
        store: Store,
        k: usize,
        n: usize,
        b: *const u8,
        row_stride: usize,
        col_stride: usize,
        read: &mut dyn FnMut(Range<usize>),
    ) -> Result<PackedB, usize> {
        let b = Source { ptr: b, store, row: row_stride, col: col_stride };
        // SAFETY: the caller's promise; an `Isa` exists only where the CPU has it.
        unsafe { PackedB::in_pieces(Kernels::get(isa), k, n, b, PIECE_BYTES, read) }
    }

    /// # Safety
    /// `b` must be readable for k × n elements and the CPU have the kernels' instruction set.
    unsafe fn in_pieces(
        kernels: &Kernels,
        k: usize,
        n: usize,
        b: Source,
        piece: usize,
        read: &mut dyn FnMut(Range<usize>),
    ) -> Result<PackedB, usize> {
        let bytes = kernels.packed_bytes(b.store, k, n);
        let mut data = Vec::new();
        data.try_reserve_exact(bytes.div_ceil(64)).map_err(|_| bytes)?;
        data.resize(bytes.div_ceil(64), Line([0; 64]));
        // SAFETY: the data has room for every padded column and step; the rest is the caller's promise.
        unsafe { PackedB::fill(kernels, k, n, b, data.as_mut_ptr().cast(), piece, read) };
        let Kernels { width, lanes, .. } = *kernels;
        Ok(PackedB { data: data.into(), store: b.store, k, n, bytes, width, lanes })
    }

    /// Writes the packed matrix, in pieces.
    ///
    /// # Safety
    /// As [`PackedB::in_pieces`], and `to` must have room for all of it.
    unsafe fn fill(
        kernels: &Kernels,
        k: usize,
        n: usize,
        b: Source,
        to: *mut u8,
        piece: usize,
        read: &mut dyn FnMut(Range<usize>),
    ) {
        let bytes = kernels.packed_bytes(b.store, k, n);
        let Kernels { width, lanes, pack_b, .. } = *kernels;
        let (depth, step, size) = (b.store.depth(), b.store.step_bytes(), b.store.size());
        let steps = k.div_ceil(depth);
        // How many neighbouring rows, or columns, make a piece.
        let a_piece = |stride: usize, unit: usize| (piece / (stride * size).max(1)).max(1).next_multiple_of(unit);
        if bytes > 0 && b.row >= b.col {
            let rows = a_piece(b.row, depth);
            for first in (0..k).step_by(rows) {
                let rows = rows.min(k - first);
                for from in (0..n).step_by(width) {
                    let cols = width.min(n - from);
                    let at = (from * steps + first / depth * cols.next_multiple_of(lanes)) * step;
                    // SAFETY: there is room for every padded column and step, and these rows are the panel's steps from
                    // `first / depth` on; the rest is the caller's promise.
                    unsafe { pack_b(b.at(first, from), rows, cols, to.add(at)) };
                }
                read(first * b.row * size..(first + rows) * b.row * size);
            }
        } else if bytes > 0 {
            let cols = a_piece(b.col, width);
            for from in (0..n).step_by(cols) {
                let cols = cols.min(n - from);
                // SAFETY: likewise; every panel before these columns was full.
                unsafe { pack_b(b.at(0, from), k, cols, to.add(from * steps * step)) };
                read(from * b.col * size..(from + cols) * b.col * size);
            }
        }
    }

    /// The same, which its owner may rewrite.
    pub fn changing(mut self, owner: &Arc<Changing>) -> PackedB {
        self.data = self.data.owned_by(owner);
        self
    }

    pub(crate) fn owner(&self) -> Option<&Arc<Changing>> {
        self.data.owner()
    }

    /// Packs another matrix of the same size and type in its place; see [`PackedB::pack`].
    ///
    /// # Safety
    /// As [`PackedB::pack`], for this size and type.
    pub(crate) unsafe fn rewrite(
        &self,
        by: &mut Rewriting<'_>,
        isa: Isa,
        b: *const u8,
        [row, col]: [usize; 2],
        read: &mut dyn FnMut(Range<usize>),
    ) -> Result<(), String> {
        let to = self.data.to_rewrite(by)?;
        if !self.is_for(isa) {
            return Err(format!("{self:?} is not packed for {isa}"));
        }
        let b = Source { ptr: b, store: self.store, row, col };
        // SAFETY: the data was made for a matrix of this size by kernels with the same panels, and no run reads it
        // while `by` exists; the rest is the caller's promise.
        unsafe { PackedB::fill(Kernels::get(isa), self.k, self.n, b, to.cast(), PIECE_BYTES, read) };
        Ok(())
    }

    /// # Safety
    /// As [`PackedB::in_pieces`].
    #[cfg(test)]
    unsafe fn with(kernels: &Kernels, k: usize, n: usize, b: Source) -> PackedB {
        // SAFETY: the caller's promise.
        unsafe { PackedB::in_pieces(kernels, k, n, b, PIECE_BYTES, &mut |_| ()) }.expect("tests have memory")
    }

    /// Size in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Rows.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Columns.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Whether it was packed for the kernels of this instruction set.
    pub(crate) fn is_for(&self, isa: Isa) -> bool {
        let kernels = Kernels::get(isa);
        (self.width, self.lanes) == (kernels.width, kernels.lanes)
    }

    /// How its elements are stored.
    pub(crate) fn store(&self) -> Store {
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
pub(crate) enum B<'a> {
    /// Already packed, for the same instruction set.
    Packed(&'a PackedB),
    /// Codes of a few bits, packed for the same instruction set. Rows of A must be contiguous f32.
    LowBit {
        /// The codes.
        b: &'a PackedLowBit,
        /// Whether rows of A are rounded to 8 bits first, see [`lowbit::round_row`].
        rounded: bool,
        /// What follows.
        next: Option<&'a NextWeights>,
    },
    /// Not packed; strides in elements.
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
            B::LowBit { .. } => Store::F32,
            B::Plain { store, .. } => store,
        }
    }
}

/// What is done to finished rectangles of C while they are in cache.
pub(crate) trait Epilogue: Sync {
    /// Called once for each rectangle; together the rectangles cover C. Several threads call it; `thread` is the
    /// caller's number in the team.
    fn finish(&self, thread: usize, rows: Range<usize>, cols: Range<usize>);
}

/// `C[m, n] = A[m, k] · B[k, n] (+ add[m, n]) (+ bias[n]) (+ row_bias[m])`, then the epilogue. Strides are in elements; C's column stride is 1.
#[derive(Clone, Copy)]
pub(crate) struct Gemm<'a> {
    /// Rows of A and C.
    pub(crate) m: usize,
    /// Columns of B and C.
    pub(crate) n: usize,
    /// Length of the sums; 0 gives zeros (plus what is added).
    pub(crate) k: usize,
    /// A's element (0, 0).
    pub(crate) a: *const u8,
    /// A's element type.
    pub(crate) a_store: Store,
    /// From one row of A to the next.
    pub(crate) a_row_stride: usize,
    /// From one column of A to the next.
    pub(crate) a_col_stride: usize,
    /// If the last columns of a single row are stored apart from the others: where, and how many they are; see
    /// [`takes_parts`].
    pub(crate) a_rest: Option<(*const u8, usize)>,
    /// The right-hand side.
    pub(crate) b: B<'a>,
    /// C's element (0, 0).
    pub(crate) c: *mut u8,
    /// C's element type.
    pub(crate) c_store: Store,
    /// From one row of C to the next.
    pub(crate) c_row_stride: usize,
    /// What is added to the product: a matrix of C's type, with C's strides. It may be C itself.
    pub(crate) add: Option<*const u8>,
    /// `n` floats added to every row.
    pub(crate) bias: Option<*const f32>,
    /// `m` floats, each added to a whole row.
    pub(crate) row_bias: Option<*const f32>,
    /// Applied last.
    pub(crate) epilogue: Option<&'a (dyn Epilogue + 'a)>,
}

// SAFETY: the pointers are only values here. They are followed in `gemm`, whose caller promises that they may be, by every
// thread of the team.
unsafe impl Sync for Gemm<'_> {}
// SAFETY: as above.
unsafe impl Send for Gemm<'_> {}

/// Whether one contiguous row of `k` floats times a packed matrix of `n` columns of `f32` may come in two parts.
pub fn takes_parts(tuning: &Tuning, n: usize, k: usize) -> bool {
    plan::is_small(tuning, 1, n, k)
}

/// Whether a machine multiplies bfloat16 without widening them first, two at a time.
pub fn multiplies_bf16(on: Machine<'_>) -> bool {
    Kernels::get(on.isa).dot_of(on.tuning).is_some()
}

/// Whether `work` multiply-adds are worth a second thread.
pub fn is_shared(tuning: &Tuning, work: usize) -> bool {
    threads_worth(tuning, 2, work) > 1
}

/// Bytes of 64-byte-aligned scratch that [`gemm`] and [`gemm_batched`] need with that many threads, [`usize::MAX`] where
/// that overflows. No pointer is followed, so those of `g` may still be unset.
pub(crate) fn scratch_bytes(on: Machine<'_>, threads: usize, g: &Gemm<'_>) -> usize {
    if let B::LowBit { b, rounded, .. } = g.b
        && lowbit::is_direct(on.tuning, g.m, rounded)
    {
        return lowbit::scratch_bytes(on.tuning, g.m, b, rounded).saturating_mul(threads);
    }
    Plan::new(Kernels::get(on.isa), on.tuning, g).scratch_bytes().saturating_mul(threads)
}

/// Computes the product, on as many threads of the team as it is worth.
///
/// # Safety
/// A, B, the bias and C must be valid for the shape and strides, C for writing and aliased by none of the others, and
/// `scratch` must be 64-byte aligned and hold [`scratch_bytes`] for the team's threads. A packed B must have this shape.
///
/// # Panics
/// If a packed B has another shape or was packed for another instruction set.
pub(crate) unsafe fn gemm(on: Machine<'_>, team: &Team, g: &Gemm<'_>, scratch: *mut u8) {
    // SAFETY: the caller's promise; an `Isa` exists only where the CPU has it.
    unsafe { gemm_with(Kernels::get(on.isa), on, team, g, 0, scratch) }
}

/// Columns of a register and of a full panel of a packed matrix.
pub(crate) fn panel_of(isa: Isa) -> (usize, usize) {
    let kernels = Kernels::get(isa);
    (kernels.lanes, kernels.width)
}

/// What can be worked out before the run for a product of a few rows with a packed matrix; `None` for any other
/// product.
pub(crate) fn few_rows(on: Machine<'_>, g: &Gemm<'_>) -> Option<FewRows> {
    FewRows::of(Kernels::get(on.isa), on.tuning, g)
}

/// # Safety
/// As [`gemm`], and the CPU must have the kernels' instruction set.
unsafe fn gemm_with(
    kernels: &'static Kernels,
    on: Machine<'_>,
    team: &Team,
    g: &Gemm<'_>,
    row0: usize,
    scratch: *mut u8,
) {
    let tuning = on.tuning;
    check(kernels, tuning, g);
    if g.m == 0 || g.n == 0 {
        return;
    }
    if let B::LowBit { b, rounded, next } = g.b
        && lowbit::is_direct(tuning, g.m, rounded)
    {
        // SAFETY: the caller's promise; the form of A and the packing were just checked.
        return unsafe { lowbit::product(on, team, g, b, next, rounded, row0, scratch) };
    }
    // SAFETY: the caller's promise.
    if row0 == 0 && unsafe { plan::few_rows(kernels, tuning, g) } {
        return;
    }
    debug_assert!(g.a_rest.is_none(), "checked above: such a product is small");
    let plan = Plan::new(kernels, tuning, g);
    let (down, across) = plan.grid(team.threads());
    if down * across == 1 {
        // SAFETY: the caller's promise.
        return unsafe { plan.rectangle(0, 0..g.m, 0..g.n, row0, scratch) };
    }
    let cut =
        |len: usize, unit: usize, parts: usize, part: usize| (start(len.div_ceil(unit), parts, part) * unit).min(len);
    let scratch = Scratch(scratch);
    team.run(&|thread| {
        if thread < down * across {
            let (i, j) = (thread / across, thread % across);
            let tall = tuning.gemm_tile_rows();
            let rows = cut(g.m, tall, down, i)..cut(g.m, tall, down, i + 1);
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

fn check(kernels: &Kernels, tuning: &Tuning, g: &Gemm<'_>) {
    if let Some((_, rest)) = g.a_rest {
        let plain = g.a_store == Store::F32 && g.c_store == Store::F32 && g.a_col_stride == 1 && g.add.is_none();
        let packed = matches!(g.b, B::Packed(b) if b.store == Store::F32);
        assert!(
            g.m == 1 && rest <= g.k && plain && packed && takes_parts(tuning, g.n, g.k),
            "this product takes no parts"
        );
    }
    if let B::Packed(b) = g.b {
        assert!(b.k == g.k && b.n == g.n, "the packed operand is {} × {}, not {} × {}", b.k, b.n, g.k, g.n);
        assert!(
            b.width == kernels.width && b.lanes == kernels.lanes,
            "the operand was packed for another instruction set"
        );
    }
    if let B::LowBit { b, .. } = g.b {
        assert!(b.k() == g.k && b.n() == g.n, "the packed operand is {} × {}, not {} × {}", b.k(), b.n(), g.k, g.n);
        assert!(b.is_packed_in(kernels.lanes, kernels.width), "the operand was packed for another instruction set");
        assert!(g.a_store == Store::F32 && g.a_col_stride == 1, "rows of A are contiguous f32");
    }
}

/// Computes `batch` products, operands a fixed number of bytes apart (0 for a shared B). The epilogue gets row r of
/// product i as row i · m + r.
///
/// # Safety
/// As [`gemm`], for each of the products.
///
/// # Panics
/// As [`gemm`], and if a packed B has a stride.
#[expect(clippy::too_many_arguments, reason = "three strides that share nothing but their unit")]
pub(crate) unsafe fn gemm_batched(
    on: Machine<'_>,
    team: &Team,
    g: &Gemm<'_>,
    batch: usize,
    a_stride: usize,
    b_stride: usize,
    c_stride: usize,
    scratch: *mut u8,
) {
    let Machine { isa, tuning } = on;
    let kernels = Kernels::get(isa);
    check(kernels, tuning, g);
    assert!(b_stride == 0 || matches!(g.b, B::Plain { .. }), "a packed operand is shared by the whole batch");
    if g.m == 0 || g.n == 0 {
        return;
    }
    let element = |i: usize| {
        let mut one = *g;
        one.a = g.a.wrapping_add(i * a_stride);
        one.c = g.c.wrapping_add(i * c_stride);
        one.add = g.add.map(|add| add.wrapping_add(i * c_stride));
        if let B::Plain { ptr, .. } = &mut one.b {
            *ptr = ptr.wrapping_add(i * b_stride);
        }
        one
    };
    let direct = matches!(g.b, B::LowBit { rounded, .. } if lowbit::is_direct(tuning, g.m, rounded));
    let plan = Plan::new(kernels, tuning, g);
    let work = g.m.saturating_mul(g.n).saturating_mul(g.k).saturating_mul(batch);
    let threads = threads_worth(tuning, team.threads(), work);
    if batch < threads || direct {
        for i in 0..batch {
            // SAFETY: the caller's promise.
            unsafe { gemm_with(kernels, on, team, &element(i), i * g.m, scratch) };
        }
        return;
    }
    let scratch = Scratch(scratch);
    let part = |thread: usize| {
        let scratch = scratch.part(&plan, thread);
        for i in start(batch, threads, thread)..start(batch, threads, thread + 1) {
            let one = element(i);
            let plan = plan.at(&one);
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
