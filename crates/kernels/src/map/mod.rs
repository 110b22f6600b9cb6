//! Fused elementwise programs over strided operands, and conversions between element types.
//!
//! A [`Program`] computes any number of outputs from any number of inputs, element by element, in one pass: the block
//! machine in `machine` holds eight registers of values and takes its operands straight from the inputs or from L1. So
//! a chain of cheap operations takes little longer than its reads and writes of memory.
//!
//! The domain has up to four dimensions, collapsed as far as the strides of all operands allow. It is then walked in
//! one of two ways. *Flat*: blocks over the whole domain in row-major order, wherever rows begin, which suits short
//! rows; operands that repeat one row are unrolled once into a table longer than a row by a block, so that every block
//! finds its part there in one piece, and any other irregular operand is gathered a block at a time. *By rows*: each
//! row on its own, for long rows, where every operand is contiguous or constant.
//!
//! `Prepared` resolves all of that once, for callers that repeat the same shapes.

mod functions;
mod machine;
mod memory;
mod plan;
mod program;
#[cfg(test)]
mod tests;

pub use memory::Elem;
pub(crate) use plan::{Layout, Prepared};
#[cfg(test)]
pub(crate) use program::MAX_INSTRS;
pub(crate) use program::MAX_OPERANDS;
pub use program::{Binary, Instr, Program, Reg, Unary};

use crate::Team;
use crate::tuning::Machine;

/// An input of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    /// The element at index 0.
    pub(crate) ptr: *const u8,
    /// Its type in memory.
    pub(crate) elem: Elem,
    /// Elements from one index to the next in each dimension; the last is 0 or 1.
    pub(crate) strides: [usize; 4],
}

/// An output of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperandMut {
    /// The element at index 0.
    pub(crate) ptr: *mut u8,
    /// Its type in memory.
    pub(crate) elem: Elem,
    /// Elements from one index to the next in each dimension; the last is 1.
    pub(crate) strides: [usize; 4],
}

/// Bytes of scratch memory, aligned to 64, that a run with `threads` threads needs.
pub fn scratch_bytes(program: &Program, threads: usize) -> usize {
    plan::thread_bytes(program) * threads.max(1)
}

/// Runs a program over `dims` (outermost first).
///
/// # Panics
/// Where the operands are not as many as the program's, or an innermost stride is not as [`Operand`] says.
///
/// # Safety
/// Every element that the strides reach must be valid and aligned; `scratch` must have [`scratch_bytes`] bytes for the
/// team and be aligned to 64. An output must not overlap another operand, except that it may be an input exactly: the
/// same address, strides and element size.
pub(crate) unsafe fn run(
    on: Machine<'_>,
    team: Option<&Team>,
    program: &Program,
    dims: [usize; 4],
    inputs: &[Operand],
    outputs: &[OperandMut],
    scratch: *mut u8,
) {
    let layouts = inputs.iter().map(|o| (o.elem, o.strides)).chain(outputs.iter().map(|o| (o.elem, o.strides)));
    let plan = plan::Plan::new(on.tuning, program, dims, inputs.len(), outputs.len(), layouts);
    let mut ports = [std::ptr::null_mut(); MAX_OPERANDS];
    inputs.iter().zip(&mut ports).for_each(|(o, p)| *p = o.ptr.cast_mut());
    outputs.iter().zip(&mut ports[inputs.len()..]).for_each(|(o, p)| *p = o.ptr);
    // SAFETY: the caller's promise.
    unsafe { plan.run(on.isa, team, program, &ports, scratch) }
}

/// Runs a program over a rectangle of matrices, as after a matrix product: of each operand's strides only the last two
/// count, from row to row and from column to column.
///
/// # Panics
/// As [`run`].
///
/// # Safety
/// As [`run`], with scratch memory for one thread.
pub(crate) unsafe fn run_rect(
    on: Machine<'_>,
    program: &Program,
    (rows, cols): (usize, usize),
    inputs: &[Operand],
    outputs: &[OperandMut],
    scratch: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe { run(on, None, program, [1, 1, rows, cols], inputs, outputs, scratch) }
}
