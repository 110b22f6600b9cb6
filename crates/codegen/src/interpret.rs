//! Runs kernels on the CPU, to find out what is wrong with them.
//!
//! All threads of a workgroup go through the kernel together, statement by statement, each variable a vector with an element
//! for each thread; loops and branches leave some of them out. Between two barriers the order of threads is nobody's
//! business, so a word that one thread writes and another reads or writes before the next barrier is a race, whatever order
//! they came in here. The same goes for a buffer's words and workgroups, for the whole of a dispatch. So for the inputs of a
//! run, no race goes unseen: if there is one in any order, then the first of it is the same in this order.
//!
//! Also found: reads of words that nobody wrote, indices beyond the end, barriers that not all threads come to, loops that
//! do not end, divisions of integers by zero and shifts by 32 or more. Arithmetic is that of `f32`, with fused products
//! rounded once.
//!
//! The tree becomes a list of vector instructions once ([`Program::new`]), and then runs any number of times.

mod compile;
mod execute;
mod finding;
mod lanes;
mod words;

#[cfg(test)]
mod tests;

pub use finding::{Access, Finding, Found, Wrong};
pub use words::{Outside, Words};

use crate::lang::Kernel;
use crate::verify::{self, Problem};
use compile::Line;

/// A kernel, ready to run.
#[derive(Clone, Debug)]
pub struct Program {
    kernel: Kernel,
    /// Slots: one for each variable, then those that are filled before a run, then those of values on the way.
    slots: usize,
    /// The slots of the thread's number and of the workgroup's along three axes.
    numbers: [usize; 4],
    /// The slot of the first argument.
    args: usize,
    /// The slots of numbers, and the numbers.
    consts: Vec<(usize, u32)>,
    /// The bodies of the readers of the kernel's routine.
    readers: Vec<Vec<Line>>,
    body: Vec<Line>,
}

/// How a dispatch is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The most statements that are executed before the run is taken for endless. A statement that a workgroup executes is
    /// one, for all its threads; the end of a round of a loop and the beginning of a workgroup count as well. There is no
    /// use in more than 2³¹ − 2.
    pub statements: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { statements: 1 << 28 }
    }
}

/// Accesses to one kind of memory, of all threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Words that were read, each as often as it was.
    pub loads: u64,
    /// Words that were written, each as often as it was.
    pub stores: u64,
}

/// What was executed. A value that a statement uses twice is computed once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Workgroups.
    pub groups: u64,
    /// Statements, as [`Options::statements`] counts them.
    pub statements: u64,
    /// Barriers, each once for a workgroup.
    pub barriers: u64,
    /// Values that threads computed, other than loads; with those below.
    pub operations: u64,
    /// Fused products and sums among the operations.
    pub fmas: u64,
    /// Divisions of floats, roots, powers and reciprocals among the operations.
    pub functions: u64,
    /// Accesses to buffers.
    pub buffer: Traffic,
    /// Accesses to shared arrays.
    pub shared: Traffic,
    /// Accesses to threads' own arrays.
    pub own: Traffic,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.groups += other.groups;
        self.statements += other.statements;
        self.barriers += other.barriers;
        self.operations += other.operations;
        self.fmas += other.fmas;
        self.functions += other.functions;
        for (mine, others) in
            [(&mut self.buffer, other.buffer), (&mut self.shared, other.shared), (&mut self.own, other.own)]
        {
            mine.loads += others.loads;
            mine.stores += others.stores;
        }
    }
}

impl Program {
    /// Prepares a kernel. All that [`verify::verify`] asks must hold, but barriers may be where threads part: whether they
    /// do is found when it runs.
    pub fn new(kernel: &Kernel) -> Result<Program, Problem> {
        verify::check(kernel)?;
        Ok(compile::compile(kernel))
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Runs one dispatch of so many workgroups along each axis, until it ends or something is found. The buffers are changed
    /// in both cases.
    pub fn run(
        &self,
        groups: [u32; 3],
        args: &[u32],
        buffers: &mut [&mut Words],
        options: &Options,
    ) -> Result<Counts, Finding> {
        execute::run(self, groups, args, buffers, options)
    }
}

/// Prepares a kernel and runs one dispatch of it.
pub fn run(
    kernel: &Kernel,
    groups: [u32; 3],
    args: &[u32],
    buffers: &mut [&mut Words],
    options: &Options,
) -> Result<Counts, Finding> {
    Program::new(kernel)?.run(groups, args, buffers, options)
}
