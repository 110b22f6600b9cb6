//! The calls, and how each runs: references become pointers and go to the kernel.

use super::scan::Scan;
use super::verify::moderate;
use super::wired::{Wired, WiredGradient};
use super::{Changing, Ref, Rewriting, Slots, Stopped};
use crate::attention::{self, Attention};
use crate::each::{self, Function, Whole};
use crate::exact::{IntOp, IntReduce};
use crate::gated::{Apart, Gated};
use crate::gemm::{self, PackedB, Store};
use crate::lowbit::PackedLowBit;
use crate::map::{Elem, Layout, MAX_OPERANDS, Operand, OperandMut, Prepared, Program};
use crate::reduce::Reduce;
use crate::synapse::{Finish as Sums, Grid, Synapses};
use crate::tuning::Machine;
use crate::{Isa, Team, copy, exact, gather, map, norm, reduce, softmax};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A matrix operand: element (i, j) of matrix b lies at b · batch + i · row + j · col, in elements.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    /// Where element (0, 0) of the first matrix is.
    pub at: Ref,
    /// Element type.
    pub store: Store,
    /// From one matrix of the batch to the next.
    pub batch: usize,
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next.
    pub col: usize,
}

/// The right-hand side of a matrix product.
#[derive(Clone, Debug)]
pub enum GemmB {
    /// Packed before the run.
    Packed(Arc<PackedB>),
    /// Low-bit weights, packed before the run. Rows of the left-hand side are contiguous f32.
    LowBit {
        /// The weights.
        b: Arc<PackedLowBit>,
        /// Whether rows of the left-hand side are rounded to 8 bits first, see [`crate::lowbit::round_row`].
        rounded: bool,
        /// What follows. The tape fills it in.
        next: Option<NextWeights>,
    },
    /// Not packed.
    Plain(Strided),
}

/// What is known of the weights that are read after those of a product.
#[derive(Clone, Debug)]
pub struct NextWeights {
    /// The low-bit weights of the product that follows, which are fetched while this one ends.
    pub(crate) b: Arc<PackedLowBit>,
    /// Bytes of all low-bit weights of the tape.
    pub(crate) all_bytes: usize,
}

/// Tells every product with low-bit weights which weights follow. After the last one the first follows: a run is often the next
/// step of the same network.
pub(super) fn find_next_weights(calls: &mut [Call]) {
    let weights = |call: &Call| match call {
        Call::Gemm(product) => match &product.b {
            GemmB::LowBit { b, .. } => Some(Arc::clone(b)),
            _ => None,
        },
        _ => None,
    };
    let all: HashMap<*const PackedLowBit, usize> =
        calls.iter().filter_map(weights).map(|b| (Arc::as_ptr(&b), b.bytes())).collect();
    let all_bytes = all.values().sum();
    let mut following = calls.iter().find_map(weights);
    for call in calls.iter_mut().rev() {
        let own = weights(call);
        if let Call::Gemm(product) = call
            && let GemmB::LowBit { next, .. } = &mut product.b
        {
            *next = following.map(|b| NextWeights { b, all_bytes });
            following = own;
        }
    }
}

/// An elementwise program over strided operands, resolved.
#[derive(Debug)]
pub struct Map {
    pub(super) prepared: Prepared,
    pub(super) dims: [usize; 4],
    pub(super) inputs: Vec<(Ref, Elem, [usize; 4])>,
    pub(super) outs: Vec<(Ref, Elem)>,
    pub(super) scratch: Ref,
}

impl Map {
    /// A program over `dims`; strides are in elements, the last 0 or 1; outputs are contiguous.
    pub fn new(
        on: Machine<'_>,
        program: Program,
        dims: [usize; 4],
        inputs: Vec<(Ref, Elem, [usize; 4])>,
        outs: Vec<(Ref, Elem)>,
        scratch: Ref,
    ) -> Result<Map, String> {
        let fits = program.inputs() == inputs.len() && program.outputs() == outs.len() && !outs.is_empty();
        if !fits || inputs.iter().any(|(.., strides)| strides[3] > 1) {
            return Err(format!(
                "a program of {} inputs and {} outputs over {inputs:?} into {outs:?}",
                program.inputs(),
                program.outputs()
            ));
        }
        if !self::fits(&dims) || inputs.iter().any(|(.., strides)| moderate(strides).is_err()) {
            return Err(format!("sizes {dims:?} or strides of {inputs:?} that overflow"));
        }
        let layouts: Vec<Layout> = inputs.iter().map(|(_, elem, strides)| (*elem, *strides)).collect();
        let results: Vec<Layout> = outs.iter().map(|(_, elem)| (*elem, dense(dims))).collect();
        let prepared = Prepared::new(on, program, dims, &layouts, &results);
        Ok(Map { prepared, dims, inputs, outs, scratch })
    }
}

/// Whether the product of sizes fits a `usize`. A size of 0 counts as 1, so that huge sizes beside it are refused too.
fn fits(sizes: &[usize]) -> bool {
    let product = sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
    product.is_some_and(|n| n <= isize::MAX as usize / 16)
}

/// Row-major strides.
pub(super) fn dense(dims: [usize; 4]) -> [usize; 4] {
    let mut strides = [1; 4];
    for i in (0..3).rev() {
        strides[i] = strides[i + 1] * dims[i + 1];
    }
    strides
}

/// An elementwise program that runs on the result of a matrix product while it is in cache.
#[derive(Debug)]
pub struct Epilogue {
    pub(super) program: Program,
    /// Resolved for the whole product, for products that finish in one piece.
    pub(super) whole: Prepared,
    pub(super) shape: (usize, usize),
    pub(super) product_row: usize,
    pub(super) inputs: Vec<(Ref, Elem, [usize; 2])>,
    pub(super) out: (Ref, Elem),
    pub(super) scratch: Ref,
}

impl Epilogue {
    /// A program whose input 0 is a product of `shape` rows and columns, its rows `product_row` floats apart. The others
    /// are given with strides from row to row and from column to column; the result is contiguous.
    pub fn new(
        on: Machine<'_>,
        program: Program,
        shape: (usize, usize),
        product_row: usize,
        inputs: Vec<(Ref, Elem, [usize; 2])>,
        out: (Ref, Elem),
        scratch: Ref,
    ) -> Result<Epilogue, String> {
        let fits = program.inputs() == inputs.len() + 1 && program.outputs() == 1 && inputs.len() + 1 < MAX_OPERANDS;
        if !fits || inputs.iter().any(|(.., [_, col])| *col > 1) {
            return Err(format!(
                "an epilogue of {} inputs and {} outputs over {inputs:?}",
                program.inputs(),
                program.outputs()
            ));
        }
        if !self::fits(&[shape.0, shape.1])
            || moderate(&[product_row]).is_err()
            || inputs.iter().any(|(.., strides)| moderate(strides).is_err())
        {
            return Err(format!("a product of {shape:?} or strides of {inputs:?} that overflow"));
        }
        let rect = |row: usize, col: usize| [0, 0, row, col];
        let mut layouts: Vec<Layout> = vec![(Elem::F32, rect(product_row, 1))];
        layouts.extend(inputs.iter().map(|(_, elem, [row, col])| (*elem, rect(*row, *col))));
        let dims = [1, 1, shape.0, shape.1];
        let whole = Prepared::new(on, program.clone(), dims, &layouts, &[(out.1, rect(shape.1, 1))]);
        Ok(Epilogue { program, whole, shape, product_row, inputs, out, scratch })
    }
}

/// A matrix product.
#[derive(Debug)]
pub struct Gemm {
    /// How many products; rows and columns of each; length of the sums.
    pub shape: [usize; 4],
    /// The left-hand side.
    pub a: Strided,
    /// If the last columns of a single row are stored apart from the others: where, and how many they are; see
    /// [`crate::gemm::takes_parts`].
    pub a_rest: Option<(Ref, usize)>,
    /// The right-hand side.
    pub b: GemmB,
    /// Result, with unit column stride.
    pub c: Strided,
    /// What is added to the product, of C's type and as C lies.
    pub add: Option<Ref>,
    /// One float for each column, added to all of it.
    pub bias: Option<Ref>,
    /// One float for each row, added to all of it.
    pub row_bias: Option<Ref>,
    /// What runs on the product; only without a batch.
    pub epilogue: Option<Box<Epilogue>>,
    /// Scratch memory for packing.
    pub scratch: Ref,
}

/// An attention.
#[derive(Clone, Debug)]
pub struct Attend {
    /// Shape and strides.
    pub shape: Attention,
    /// Queries, keys, values.
    pub qkv: [Ref; 3],
    /// Added to scores.
    pub mask: Option<Ref>,
    /// The last key that each query sees, instead of what the shape says.
    pub positions: Option<Ref>,
    /// Result.
    pub out: Ref,
    /// Scratch memory.
    pub scratch: Ref,
}

/// One kernel call. Sizes are in elements, and arrays are dense and row-major where no strides are given.
#[derive(Debug)]
#[expect(missing_docs, reason = "each variant's text says what its fields are")]
pub enum Call {
    /// A matrix product, or a batch of them.
    Gemm(Box<Gemm>),
    /// An elementwise program on floats, with one or more outputs.
    Map(Box<Map>),
    /// An elementwise operation on integers over `dims`, outermost first; each input has its strides, the output is dense.
    Int { op: IntOp, dims: [usize; 6], inputs: Vec<(Ref, Elem, [usize; 6])>, out: (Ref, Elem) },
    /// A function of the caller's own on floats over `dims`, outermost first; each input has its strides, the output is
    /// dense.
    Each { function: Function, dims: [usize; 6], inputs: Vec<(Ref, [usize; 6])>, out: Ref },
    /// A function of the caller's own on whole values: bytes in, floats out.
    Whole { whole: Whole, inputs: Vec<Ref>, outs: Vec<Ref> },
    /// A reduction of floats over the middle axis of `shape`.
    Reduce { op: Reduce, shape: [usize; 3], src: Ref, dst: Ref },
    /// A reduction of integers over the middle axis of `shape`.
    IntReduce { op: IntReduce, shape: [usize; 3], src: Ref, dst: Ref },
    /// The softmax of each of `rows` rows of `len` floats.
    Softmax { rows: usize, len: usize, src: Ref, dst: Ref },
    /// (x − mean) / √(variance + `eps`) · `gamma` + `beta` of each of `rows` rows of `len` floats.
    LayerNorm { rows: usize, len: usize, eps: f32, gamma: Option<Ref>, beta: Option<Ref>, src: Ref, dst: Ref },
    /// x / √(mean of x² + `eps`) · `gamma` of each of `rows` rows of `len` floats.
    RmsNorm { rows: usize, len: usize, eps: f32, gamma: Option<Ref>, src: Ref, dst: Ref },
    /// Scaled dot-product attention.
    Attention(Box<Attend>),
    /// A copy of elements of `elem` bytes from and to any strides.
    Copy { elem: usize, dims: Vec<usize>, src: Ref, src_strides: Vec<isize>, dst: Ref, dst_strides: Vec<isize> },
    /// A copy of `bytes` bytes as they are.
    Move { bytes: usize, src: Ref, dst: Ref },
    /// Zeros.
    Zero { dst: Ref },
    /// The elements (of `elem` bytes) at `count` indices along the middle axis of `shape`.
    Gather { elem: usize, shape: [usize; 3], indices: Ref, count: usize, src: Ref, dst: Ref },
    /// Elements (of `elem` bytes) written to `count` ascending indices along the middle axis of `shape`, which is what `dst`
    /// has; its other elements stay.
    Put { elem: usize, shape: [usize; 3], indices: Ref, count: usize, src: Ref, dst: Ref },
    /// Sums of floats along the middle axis of `shape`, each element into one of `count` segments.
    SegmentSum { shape: [usize; 3], segments: Ref, count: usize, src: Ref, dst: Ref },
    /// The same of integers.
    IntSegmentSum { shape: [usize; 3], segments: Ref, count: usize, src: Ref, dst: Ref },
    /// Sums over synapses, of values that are batch-last or batch-first.
    ///
    /// Without `ratio`, `outs` has one place for each sum, and `terms` is empty or has what each sum starts from. With
    /// `ratio`, `outs` has one place and `terms` are p, q and r; it says how many times the ratio is applied, each time to
    /// its previous result. A term has strides from row to row and from destination to destination.
    SynapseSum {
        synapses: Arc<Synapses>,
        batch_last: bool,
        rows: usize,
        src: Ref,
        ratio: Option<usize>,
        terms: Vec<(Ref, [usize; 2])>,
        outs: Vec<Ref>,
        /// [`Synapses::scratch_bytes`].
        scratch: Ref,
    },
    /// The same of synapses whose numbers are values of the run.
    Wired(Box<Wired>),
    /// The gradient of those.
    WiredGradient(Box<WiredGradient>),
    /// A step of a gated cell, whose inputs come in two parts; the result goes to one or two places. Batch-first inputs and
    /// the second place may be columns of something wider.
    Gated { gated: Arc<Gated>, rows: usize, apart: Apart, x: [Ref; 2], out: Ref, also: Option<Ref> },
    /// A loop.
    Scan(Box<Scan>),
}

/// Runs an epilogue on finished rectangles.
struct Finish<'a> {
    on: Machine<'a>,
    epilogue: &'a Epilogue,
    shape: (usize, usize),
    ptrs: [*mut u8; MAX_OPERANDS],
    product: *mut u8,
    product_row: usize,
    out: *mut u8,
    scratch: *mut u8,
    scratch_stride: usize,
}
// SAFETY: threads get disjoint rectangles of the product and the result, and scratch memory of their own.
unsafe impl Sync for Finish<'_> {}

impl gemm::Epilogue for Finish<'_> {
    fn finish(&self, thread: usize, rows: Range<usize>, cols: Range<usize>) {
        let e = self.epilogue;
        let scratch = self.scratch.wrapping_add(thread * self.scratch_stride);
        if (rows.len(), cols.len()) == self.shape {
            let mut ports = [std::ptr::null_mut(); MAX_OPERANDS];
            ports[0] = self.product;
            ports[1..=e.inputs.len()].copy_from_slice(&self.ptrs[..e.inputs.len()]);
            ports[1 + e.inputs.len()] = self.out;
            // SAFETY: the tape verified every operand over the whole product.
            return unsafe { e.whole.run_at(None, &ports, scratch) };
        }
        let strides = |row: usize, col: usize| [0, 0, row, col];
        let at = |size: usize, row: usize, col: usize| (rows.start * row + cols.start * col) * size;
        let mut inputs = [Operand { ptr: std::ptr::null(), elem: Elem::F32, strides: [0; 4] }; MAX_OPERANDS];
        inputs[0] = Operand {
            ptr: self.product.wrapping_add(at(4, self.product_row, 1)),
            elem: Elem::F32,
            strides: strides(self.product_row, 1),
        };
        for ((input, (_, elem, [row, col])), ptr) in inputs[1..].iter_mut().zip(&e.inputs).zip(&self.ptrs) {
            let ptr = ptr.wrapping_add(at(elem.size(), *row, *col));
            *input = Operand { ptr, elem: *elem, strides: strides(*row, *col) };
        }
        let (_, elem) = e.out;
        let out = OperandMut {
            ptr: self.out.wrapping_add(at(elem.size(), self.shape.1, 1)),
            elem,
            strides: strides(self.shape.1, 1),
        };
        // SAFETY: the rectangle lies within the product, over which the tape verified every operand.
        unsafe {
            map::run_rect(
                self.on,
                &e.program,
                (rows.len(), cols.len()),
                &inputs[..e.inputs.len() + 1],
                &[out],
                scratch,
            );
        }
    }
}

impl Gemm {
    /// The kernel's description of this product, with pointers resolved by `at`.
    #[inline(always)]
    fn describe<'a>(
        &'a self,
        at: impl Fn(&Ref) -> *mut u8,
        epilogue: Option<&'a dyn gemm::Epilogue>,
    ) -> gemm::Gemm<'a> {
        let [_, m, n, k] = self.shape;
        gemm::Gemm {
            m,
            n,
            k,
            a: at(&self.a.at),
            a_store: self.a.store,
            a_row_stride: self.a.row,
            a_col_stride: self.a.col,
            a_rest: self.a_rest.as_ref().map(|(r, k)| (at(r).cast_const(), *k)),
            b: match &self.b {
                GemmB::Packed(b) => gemm::B::Packed(b),
                GemmB::LowBit { b, rounded, next } => gemm::B::LowBit { b, rounded: *rounded, next: next.as_ref() },
                GemmB::Plain(b) => {
                    gemm::B::Plain { ptr: at(&b.at), store: b.store, row_stride: b.row, col_stride: b.col }
                }
            },
            c: at(&self.c.at),
            c_store: self.c.store,
            c_row_stride: self.c.row,
            add: self.add.as_ref().map(|r| at(r).cast_const()),
            bias: self.bias.as_ref().map(|r| at(r).cast_const().cast()),
            row_bias: self.row_bias.as_ref().map(|r| at(r).cast_const().cast()),
            epilogue,
        }
    }

    /// Bytes of scratch memory that the product needs for packing.
    pub fn scratch_bytes(&self, on: Machine<'_>, threads: usize) -> usize {
        gemm::scratch_bytes(on, threads, &self.describe(|_| std::ptr::null_mut(), None))
    }

    /// What can be worked out before the run for a product of a few rows; `None` for any other product.
    pub(super) fn few_rows(&self, on: Machine<'_>) -> Option<gemm::FewRows> {
        let few = gemm::few_rows(on, &self.describe(|_| std::ptr::null_mut(), None));
        few.filter(|_| self.shape[0] == 1)
    }

    /// # Safety
    /// As [`Call::run`]; `few` must be made from this product.
    #[inline(always)]
    pub(super) unsafe fn run_few_rows(&self, few: &gemm::FewRows, slots: Slots<'_>) {
        let GemmB::Packed(b) = &self.b else { unreachable!("a product of few rows has a packed matrix") };
        let maybe = |r: &Option<Ref>| r.as_ref().map_or(std::ptr::null(), |r| slots.at(r).cast_const().cast::<f32>());
        let at = gemm::FewRowsAt {
            a: slots.at(&self.a.at),
            rest: self.a_rest.as_ref().map_or(std::ptr::null(), |(r, _)| slots.at(r).cast_const()),
            c: slots.at(&self.c.at),
            bias: maybe(&self.bias),
            row_bias: maybe(&self.row_bias),
        };
        // SAFETY: the caller's promise; the tape verified every operand of the epilogue over the whole product.
        unsafe {
            few.run(at, b);
            if let Some(e) = &self.epilogue {
                let mut ports = [std::ptr::null_mut(); MAX_OPERANDS];
                ports[0] = at.c;
                for (port, (r, ..)) in ports[1..].iter_mut().zip(&e.inputs) {
                    *port = slots.at(r);
                }
                ports[1 + e.inputs.len()] = slots.at(&e.out.0);
                e.whole.run_at(None, &ports, slots.at(&e.scratch));
            }
        }
    }

    /// # Safety
    /// As [`Call::run`].
    unsafe fn run(&self, on: Machine<'_>, slots: Slots<'_>, team: &Team) {
        let [batch, m, n, _] = self.shape;
        let finish;
        let mut epilogue: Option<&dyn gemm::Epilogue> = None;
        if let Some(e) = &self.epilogue {
            let mut ptrs = [std::ptr::null_mut(); MAX_OPERANDS];
            for (ptr, (r, ..)) in ptrs.iter_mut().zip(&e.inputs) {
                *ptr = slots.at(r);
            }
            finish = Finish {
                on,
                epilogue: e,
                shape: (m, n),
                ptrs,
                product: slots.at(&self.c.at),
                product_row: self.c.row,
                out: slots.at(&e.out.0),
                scratch: slots.at(&e.scratch),
                scratch_stride: map::scratch_bytes(&e.program, 1),
            };
            epilogue = Some(&finish);
        }
        let g = self.describe(|r| slots.at(r), epilogue);
        let scratch = slots.at(&self.scratch);
        // SAFETY: verified; the batch strides likewise.
        unsafe {
            if batch == 1 {
                gemm::gemm(on, team, &g, scratch);
            } else {
                let b = if let GemmB::Plain(b) = &self.b { b.batch * b.store.size() } else { 0 };
                let (a, c) = (self.a.batch * self.a.store.size(), self.c.batch * self.c.store.size());
                gemm::gemm_batched(on, team, &g, batch, a, b, c, scratch);
            }
        }
    }
}

impl Call {
    /// Calls `f` with every reference; used to place buffers once their offsets are known.
    pub fn for_each_ref(&mut self, f: &mut dyn FnMut(&mut Ref)) {
        self.visit(&mut |r, _| f(r));
    }

    /// Every reference, and whether it is written.
    pub fn refs(&mut self) -> Vec<(Ref, bool)> {
        let mut all = Vec::new();
        self.visit(&mut |r, written| all.push((*r, written)));
        all
    }

    fn visit(&mut self, f: &mut dyn FnMut(&mut Ref, bool)) {
        match self {
            Call::Gemm(g) => {
                f(&mut g.a.at, false);
                g.a_rest.iter_mut().for_each(|(r, _)| f(r, false));
                if let GemmB::Plain(b) = &mut g.b {
                    f(&mut b.at, false);
                }
                g.add.iter_mut().chain(&mut g.bias).chain(&mut g.row_bias).for_each(|r| f(r, false));
                f(&mut g.c.at, true);
                f(&mut g.scratch, true);
                if let Some(e) = &mut g.epilogue {
                    e.inputs.iter_mut().for_each(|(r, ..)| f(r, false));
                    f(&mut e.out.0, true);
                    f(&mut e.scratch, true);
                }
            }
            Call::Map(m) => {
                m.inputs.iter_mut().for_each(|(r, ..)| f(r, false));
                m.outs.iter_mut().for_each(|(r, _)| f(r, true));
                f(&mut m.scratch, true);
            }
            Call::Int { inputs, out, .. } => {
                inputs.iter_mut().for_each(|(r, ..)| f(r, false));
                f(&mut out.0, true);
            }
            Call::Each { inputs, out, .. } => {
                inputs.iter_mut().for_each(|(r, _)| f(r, false));
                f(out, true);
            }
            Call::Whole { inputs, outs, .. } => {
                inputs.iter_mut().for_each(|r| f(r, false));
                outs.iter_mut().for_each(|r| f(r, true));
            }
            Call::LayerNorm { gamma, src, dst, .. } | Call::RmsNorm { gamma, src, dst, .. } => {
                gamma.iter_mut().for_each(|r| f(r, false));
                f(src, false);
                f(dst, true);
                if let Call::LayerNorm { beta, .. } = self {
                    beta.iter_mut().for_each(|r| f(r, false));
                }
            }
            Call::Attention(a) => {
                a.qkv.iter_mut().chain(&mut a.mask).chain(&mut a.positions).for_each(|r| f(r, false));
                f(&mut a.out, true);
                f(&mut a.scratch, true);
            }
            Call::Zero { dst } => f(dst, true),
            Call::Reduce { src, dst, .. }
            | Call::IntReduce { src, dst, .. }
            | Call::Softmax { src, dst, .. }
            | Call::Move { src, dst, .. }
            | Call::Copy { src, dst, .. } => {
                f(src, false);
                f(dst, true);
            }
            Call::Gather { indices: extra, src, dst, .. }
            | Call::Put { indices: extra, src, dst, .. }
            | Call::SegmentSum { segments: extra, src, dst, .. }
            | Call::IntSegmentSum { segments: extra, src, dst, .. } => {
                f(extra, false);
                f(src, false);
                f(dst, true);
            }
            Call::SynapseSum { src, terms, outs, scratch, .. } => {
                f(src, false);
                f(scratch, true);
                terms.iter_mut().for_each(|(r, _)| f(r, false));
                outs.iter_mut().for_each(|r| f(r, true));
            }
            Call::Wired(wired) => wired.visit(f),
            Call::WiredGradient(wired) => wired.visit(f),
            Call::Gated { x, out, also, .. } => {
                x.iter_mut().for_each(|r| f(r, false));
                also.iter_mut().chain([out]).for_each(|r| f(r, true));
            }
            Call::Scan(s) => {
                for state in &mut s.states {
                    f(&mut state.init, false);
                    f(&mut state.last, true);
                }
                s.sequences.iter_mut().for_each(|q| f(&mut q.at, false));
                s.fixed.iter_mut().for_each(|r| f(r, false));
                s.outputs.iter_mut().for_each(|q| f(&mut q.at, true));
                f(&mut s.scratch, true);
            }
        }
    }

    /// The owners of packed weights that may change: the call's own, or those of the tapes in a loop.
    pub(super) fn owners(&self) -> [Option<&Arc<Changing>>; 2] {
        match self {
            Call::Gemm(gemm) => match &gemm.b {
                GemmB::Packed(b) => [b.owner(), None],
                GemmB::LowBit { b, .. } => [b.owner(), None],
                GemmB::Plain(_) => [None, None],
            },
            Call::SynapseSum { synapses, .. } => [synapses.owner(), None],
            Call::Gated { gated, .. } => [gated.owner(), None],
            Call::Scan(scan) => {
                let mut tapes = scan.tapes();
                [(); 2].map(|()| tapes.next().and_then(|tape| tape.changing.as_ref()))
            }
            _ => [None, None],
        }
    }

    /// # Safety
    /// The call must have passed verification, the slots must point to memory as it was verified against, and weights
    /// that may change must not be rewritten meanwhile.
    #[inline]
    pub(super) unsafe fn run(&self, on: Machine<'_>, slots: Slots<'_>, team: &Team) -> Result<(), Stopped> {
        let f32s = |r: &Ref| slots.at(r).cast::<f32>();
        let maybe = |r: &Option<Ref>| r.as_ref().map_or(std::ptr::null(), |r| slots.at(r).cast_const().cast::<f32>());
        // SAFETY: each kernel's conditions are what `verify` checks for its call.
        unsafe {
            match self {
                Call::Gemm(g) => g.run(on, slots, team),
                Call::Map(map) => {
                    let mut ports = [std::ptr::null_mut(); MAX_OPERANDS];
                    let refs = map.inputs.iter().map(|(r, ..)| r).chain(map.outs.iter().map(|(r, _)| r));
                    for (port, r) in ports.iter_mut().zip(refs) {
                        *port = slots.at(r);
                    }
                    map.prepared.run_at(Some(team), &ports, slots.at(&map.scratch));
                }
                Call::Int { op, dims, inputs, out } => {
                    let mut operands = [(std::ptr::null::<u8>(), Elem::I32, [0; 6]); 3];
                    for (operand, (r, elem, strides)) in operands.iter_mut().zip(inputs) {
                        *operand = (slots.at(r), *elem, *strides);
                    }
                    exact::map(*op, dims, &operands[..inputs.len()], (slots.at(&out.0), out.1));
                }
                Call::Each { function, dims, inputs, out } => {
                    let mut operands = [(std::ptr::null::<f32>(), [0; 6]); each::MAX_INPUTS];
                    for (operand, (r, strides)) in operands.iter_mut().zip(inputs) {
                        *operand = (f32s(r).cast_const(), *strides);
                    }
                    each::each(function, dims, &operands[..inputs.len()], f32s(out))
                        .map_err(|problem| Stopped::Value { call: vec![], problem })?;
                }
                Call::Whole { whole, inputs, outs } => {
                    let mut from = [(std::ptr::null::<u8>(), 0); each::MAX_INPUTS];
                    for (from, r) in from.iter_mut().zip(inputs) {
                        *from = (slots.at(r).cast_const(), r.len);
                    }
                    let mut to = [(std::ptr::null_mut::<f32>(), 0); each::MAX_OUTPUTS];
                    for (to, r) in to.iter_mut().zip(outs) {
                        *to = (f32s(r), r.len / 4);
                    }
                    each::whole(whole, &from[..inputs.len()], &to[..outs.len()])
                        .map_err(|problem| Stopped::Value { call: vec![], problem })?;
                }
                Call::Reduce { op, shape: [outer, len, inner], src, dst } => {
                    reduce::reduce(on, team, *op, *outer, *len, *inner, f32s(src), f32s(dst));
                }
                Call::IntReduce { op, shape: [outer, len, inner], src, dst } => {
                    exact::reduce(*op, *outer, *len, *inner, slots.at(src).cast(), slots.at(dst).cast());
                }
                Call::Softmax { rows, len, src, dst } => softmax::softmax(on, team, *rows, *len, f32s(src), f32s(dst)),
                Call::LayerNorm { rows, len, eps, gamma, beta, src, dst } => {
                    norm::layer_norm(on, team, *rows, *len, *eps, maybe(gamma), maybe(beta), f32s(src), f32s(dst));
                }
                Call::RmsNorm { rows, len, eps, gamma, src, dst } => {
                    norm::rms_norm(on, team, *rows, *len, *eps, maybe(gamma), f32s(src), f32s(dst));
                }
                Call::Attention(a) => {
                    let positions = maybe(&a.positions).cast::<i32>();
                    let [q, k, v] = a.qkv.each_ref().map(|r| f32s(r).cast_const());
                    let (mask, out, scratch) = (maybe(&a.mask), f32s(&a.out), slots.at(&a.scratch));
                    attention::attention(on, team, &a.shape, q, k, v, mask, positions, out, scratch)
                        .map_err(|at| bad_index("position", positions.add(at).read(), at, a.shape.keys))?;
                }
                Call::Copy { elem, dims, src, src_strides, dst, dst_strides } => {
                    copy::copy(on, team, *elem, dims, slots.at(src), src_strides, slots.at(dst), dst_strides);
                }
                Call::Move { bytes, src, dst } => slots.at(dst).copy_from_nonoverlapping(slots.at(src), *bytes),
                Call::Zero { dst } => slots.at(dst).write_bytes(0, dst.len),
                Call::Gather { elem, shape: [outer, axis, inner], indices, count, src, dst } => {
                    let indices = slots.at(indices).cast_const().cast::<i32>();
                    let (src, dst) = (slots.at(src), slots.at(dst));
                    gather::gather(on, team, *elem, *outer, *axis, *inner, indices, *count, src, dst)
                        .map_err(|at| bad_index("index", indices.add(at).read(), at, *axis))?;
                }
                Call::Put { elem, shape: [outer, axis, inner], indices, count, src, dst } => {
                    let indices = slots.at(indices).cast_const().cast::<i32>();
                    let (src, dst) = (slots.at(src), slots.at(dst));
                    gather::put(*elem, *outer, *axis, *inner, indices, *count, src, dst).map_err(|at| {
                        let index = indices.add(at).read();
                        if index >= 0 && (index as usize) < *axis {
                            let problem = format!("index {index} at position {at} is not after the one before it");
                            return Stopped::Value { call: vec![], problem };
                        }
                        bad_index("index", index, at, *axis)
                    })?;
                }
                Call::SegmentSum { shape: [outer, n, inner], segments, count, src, dst } => {
                    let segments = slots.at(segments).cast_const().cast::<i32>();
                    gather::segment_sum(on, team, *outer, *n, *inner, segments, *count, f32s(src), f32s(dst))
                        .map_err(|at| bad_index("segment", segments.add(at).read(), at, *count))?;
                }
                Call::IntSegmentSum { shape: [outer, n, inner], segments, count, src, dst } => {
                    let segments = slots.at(segments).cast_const().cast::<i32>();
                    let (src, dst) = (slots.at(src).cast_const().cast(), slots.at(dst).cast());
                    exact::segment_sum((*outer, *n, *inner), segments, *count, src, dst)
                        .map_err(|at| bad_index("segment", segments.add(at).read(), at, *count))?;
                }
                Call::SynapseSum { synapses, batch_last, rows, src, ratio, terms, outs, scratch } => {
                    let out = |k: usize| outs.get(k).map_or(std::ptr::null_mut(), f32s);
                    let nothing = Grid { at: std::ptr::null(), row: 0, destination: 0 };
                    let mut grids = [nothing; 3];
                    for (grid, (r, [row, destination])) in grids.iter_mut().zip(terms) {
                        *grid = Grid { at: f32s(r), row: *row, destination: *destination };
                    }
                    let outs = [out(0), out(1)];
                    let finish = match (ratio, terms.len()) {
                        (Some(times), _) => Sums::Ratio { out: outs[0], terms: grids, times: *times },
                        (None, 0) => Sums::Plain(outs),
                        (None, _) => Sums::From { starts: [grids[0], grids[1]], outs },
                    };
                    if *batch_last {
                        synapses.run_batch_last(team, *rows, f32s(src), &finish, f32s(scratch));
                    } else {
                        synapses.run_batch_first(team, *rows, f32s(src), &finish, f32s(scratch));
                    }
                }
                Call::Wired(wired) => wired.run(slots, team),
                Call::WiredGradient(wired) => wired.run(slots),
                Call::Gated { gated, rows, apart, x, out, also } => {
                    let x = (f32s(&x[0]).cast_const(), f32s(&x[1]).cast_const());
                    gated.run(*rows, apart, x, f32s(out), also.as_ref().map_or(std::ptr::null_mut(), f32s));
                }
                Call::Scan(_) => unreachable!("the tape runs scans itself"),
            }
        }
        Ok(())
    }
}

fn bad_index(what: &str, value: i32, at: usize, limit: usize) -> Stopped {
    Stopped::Value { call: vec![], problem: format!("{what} {value} at position {at} is not in 0..{limit}") }
}

/// Why a matrix was not packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackError {
    /// The data does not hold the matrix that its size and strides describe.
    Mistake(String),
    /// The system has no memory for this many bytes.
    Memory(usize),
}

/// Packs a matrix for products on `isa`: element (k, n) lies at k · row + n · col of `data`, in elements of `store`.
/// After each piece, `read` is called with the range of bytes of `data` that will not be read again.
pub fn pack(
    isa: Isa,
    store: Store,
    [k, n]: [usize; 2],
    data: &[u8],
    [row, col]: [usize; 2],
    read: &mut dyn FnMut(Range<usize>),
) -> Result<PackedB, PackError> {
    lies(store, [k, n], data, [row, col]).map_err(PackError::Mistake)?;
    // With strides of 0 there can be far more elements than bytes of `data`, and the packed matrix holds each of them.
    if !fits(&[k.saturating_add(64), n.saturating_add(64)]) {
        return Err(PackError::Mistake(format!("a packed {k} × {n} matrix does not fit memory")));
    }
    // SAFETY: every element lies within `data`, aligned, as just checked, and the packed size does not overflow.
    unsafe { PackedB::pack(isa, store, k, n, data.as_ptr(), row, col, read) }.map_err(PackError::Memory)
}

/// Packs another matrix in the place of one of the same size and type; see [`pack`].
pub fn repack(
    by: &mut Rewriting<'_>,
    isa: Isa,
    packed: &PackedB,
    data: &[u8],
    strides: [usize; 2],
    read: &mut dyn FnMut(Range<usize>),
) -> Result<(), String> {
    lies(packed.store(), [packed.k(), packed.n()], data, strides)?;
    // SAFETY: every element lies within `data`, aligned, as just checked; a matrix of this size is packed already.
    unsafe { packed.rewrite(by, isa, data.as_ptr(), strides, read) }
}

/// Checks that `data` holds a matrix with these strides, aligned.
fn lies(store: Store, [k, n]: [usize; 2], data: &[u8], [row, col]: [usize; 2]) -> Result<(), String> {
    let need = super::verify::reach(&[k, n], &[row, col]).and_then(|n| n.checked_mul(store.size()));
    if need.is_some_and(|need| need <= data.len()) && data.as_ptr().addr().is_multiple_of(store.size()) {
        return Ok(());
    }
    Err(format!("{} bytes for a {k} × {n} matrix with strides {row} and {col}", data.len()))
}
