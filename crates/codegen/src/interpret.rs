//! Runs kernels on the CPU, to find out what is wrong with them.
//!
//! All threads of a workgroup run in lockstep, statement by statement. A variable is a vector with one element for each
//! thread; loops and branches deactivate some of the threads. Between two barriers a device may run threads in any
//! order. So if one thread writes a word and another reads or writes it before the next barrier, that is a race,
//! whatever order the two had here. The same holds for workgroups that share a buffer's word, for the whole of a
//! dispatch. For the inputs of a run, no race goes unseen: up to its first race, a kernel does the same in every order.
//!
//! It also finds reads of words that were never written, indices beyond the end, barriers that not all threads reach,
//! loops that do not end, divisions of integers by zero and shifts by 32 or more. Arithmetic is that of `f32`, with
//! fused products rounded once.
//!
//! The tree is compiled once to a list of vector instructions ([`Program::new`]), which can run any number of times.

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
    /// Slots: one for each variable, then those that are filled before a run, then those of intermediate values.
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
    /// The most statements that are executed before the run is considered endless. A statement counts once for a
    /// workgroup, for all its threads; the end of each round of a loop and the beginning of a workgroup count too.
    /// Values above 2³¹ − 2 have no effect.
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
    /// Reads; a word that is read several times counts each time.
    pub loads: u64,
    /// Writes; a word that is written several times counts each time.
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
    /// Values that threads computed, other than loads; `fmas` and `functions` are included.
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
    /// Prepares a kernel. Everything that [`verify::verify`] checks must hold, except that threads may diverge at
    /// barriers: the run finds out whether they do.
    pub fn new(kernel: &Kernel) -> Result<Program, Problem> {
        verify::check(kernel)?;
        Ok(compile::compile(kernel))
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Runs one dispatch of `groups` workgroups along each axis, until it ends or something is found. The buffers are
    /// changed in both cases.
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
