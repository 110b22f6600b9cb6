//! What a graph becomes for one set of sizes: kernels, and the order in which they are dispatched.
//!
//! A device needs nothing else. It has three buffers: the arena of a stream, the constants of a program, and faults.
//! Every kernel is bound to these three, in this order ([`ARENA`], [`CONSTANTS`], [`FAULTS`]), and where its operands
//! are is among its arguments, in words of 32 bits. So a kernel can have any number of operands, and the same kernel
//! serves every size.

use schwann_codegen::lang::Kernel;
use schwann_core::plan::Plan;
use std::sync::Arc;

/// The number of the arena, the buffer that holds a stream's inputs, outputs and intermediate values.
pub const ARENA: u32 = 0;
/// The number of the buffer that has weights and literals, which kernels only read.
pub const CONSTANTS: u32 = 1;
/// The number of the buffer of faults: a word for each of [`Layout::faults`].
pub const FAULTS: u32 = 2;

/// A graph laid out for one set of sizes.
#[derive(Debug)]
pub struct Layout {
    /// The steps for people and profilers.
    pub plan: Plan,
    /// The kernels that are dispatched, without duplicates.
    pub kernels: Vec<Arc<Kernel>>,
    /// What is dispatched, in order. Each sees what those before it wrote.
    pub items: Vec<Item>,
    /// Words of the arena that intermediate values need. Inputs, outputs and states are apart from them.
    pub scratch_words: u32,
    /// For each input of the graph, whether a kernel reads it at all.
    pub inputs_read: Vec<bool>,
    /// What can go wrong in a run: fault i is reported by a word i that is not 0 in the buffer of faults.
    pub faults: Vec<Fault>,
}

impl schwann_core::backend::Bound for Layout {
    fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// An error in the data that only a run can find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The node where it happens.
    pub node: String,
    /// What is wrong.
    pub problem: String,
}

/// A dispatch, or a loop of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// One kernel.
    Dispatch(Dispatch),
    /// A loop. Arguments of the dispatches in it may advance from round to round ([`Argument::strides`]).
    Repeat {
        /// How many rounds.
        rounds: u32,
        /// The items of a round.
        body: Vec<Item>,
    },
}

/// A kernel with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The kernel, by its number in [`Layout::kernels`].
    pub kernel: usize,
    /// Workgroups along each axis; if one is 0, there is no work.
    pub groups: [u32; 3],
    /// The arguments, in the kernel's order.
    pub args: Vec<Argument>,
    /// The plan's step that it belongs to; in a loop, the loop's step and then the body's.
    pub place: Vec<usize>,
    /// Set if the kernel itself walks the steps of a sequence. It can then be run in pieces.
    pub walk: Option<Walk>,
}

/// A kernel that goes through all steps of a sequence. Two dispatches for `from..to` and `to..end` do the same as one
/// for `from..end`, if the later one reads the states that the earlier one wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Steps in all.
    pub steps: u32,
    /// The argument that is the first step, which is 0 in [`Dispatch::args`].
    pub from: usize,
    /// The argument that is one past the last step.
    pub to: usize,
    /// For each state, the argument that says where it is read, and the one that says where it is written. A piece that is
    /// not the first reads where it writes.
    pub carry: Vec<(usize, usize)>,
}

/// An argument of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its value in the first round of all loops around it.
    pub base: Base,
    /// What is added in each round of a loop around it (modulo 2³²), from the outermost loop in. Loops beyond this list add
    /// nothing.
    pub strides: Vec<u32>,
}

/// An argument's value in the first round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// A number.
    Number(u32),
    /// A word among the intermediate values.
    Scratch(u32),
    /// A word of an input, counted from where the stream has that input. Inputs, outputs and states are stored as on the
    /// host: narrow elements side by side, in words of 32 bits from the lowest bits up.
    Input(usize, u32),
    /// A word of an output, counted from where the stream has that output.
    Output(usize, u32),
    /// A word of the buffer of constants.
    Constant(u32),
}

impl From<Base> for Argument {
    fn from(base: Base) -> Argument {
        Argument { base, strides: vec![] }
    }
}

impl From<u32> for Argument {
    fn from(number: u32) -> Argument {
        Base::Number(number).into()
    }
}
