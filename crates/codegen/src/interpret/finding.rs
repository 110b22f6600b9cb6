//! What can be found when a kernel runs.

use crate::verify::Problem;
use crate::visit::Place;
use std::fmt;
use thiserror::Error;

/// Why a run stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Finding {
    /// The kernel is not valid.
    #[error(transparent)]
    Invalid(#[from] Problem),
    /// The dispatch has a wrong number of arguments.
    #[error("kernel `{kernel}` is given {given} arguments: expected {needed}")]
    Arguments {
        /// The kernel's name.
        kernel: String,
        /// How many there are.
        given: usize,
        /// How many the kernel has.
        needed: usize,
    },
    /// The dispatch has a wrong number of buffers.
    #[error("kernel `{kernel}` is given {given} buffers: expected {needed}")]
    Buffers {
        /// The kernel's name.
        kernel: String,
        /// How many there are.
        given: usize,
        /// How many the kernel has.
        needed: usize,
    },
    /// The kernel's arrays are larger than any device's.
    #[error("kernel `{kernel}` has arrays that take {bytes} bytes to interpret: expected at most {most}")]
    Arrays {
        /// The kernel's name.
        kernel: String,
        /// The bytes that they take, including the marks of their elements.
        bytes: u64,
        /// The most bytes that are allowed.
        most: u64,
    },
    /// A thread did something wrong.
    #[error(transparent)]
    Found(Box<Found>),
}

impl Finding {
    /// What a thread did wrong, if that is why.
    pub fn found(&self) -> Option<&Found> {
        if let Finding::Found(found) = self { Some(found) } else { None }
    }
}

/// What a thread did wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("kernel `{kernel}`, {place}, thread {thread} of workgroup {group:?}: {wrong}")]
pub struct Found {
    /// The kernel's name.
    pub kernel: String,
    /// The statement.
    pub place: Place,
    /// The thread's number in its workgroup.
    pub thread: u32,
    /// The workgroup's number.
    pub group: [u32; 3],
    /// What it did.
    pub wrong: Wrong,
}

/// What a thread can do to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Load it.
    Read,
    /// Store to it.
    Write,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "written",
        })
    }
}

/// What a thread can do wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Wrong {
    /// An index beyond the end.
    #[error("element {index} of {memory} is {access}: expected an index below {len}")]
    Outside {
        /// The buffer's or array's name.
        memory: String,
        /// The index.
        index: u32,
        /// How many elements there are.
        len: usize,
        /// What was done.
        access: Access,
    },
    /// Elements that are read at once and do not begin where they may.
    #[error("{of} elements of {memory} are read at once from {index} on: expected a multiple of {of} in its array")]
    Apart {
        /// The buffer's or array's name.
        memory: String,
        /// The first one's index.
        index: u32,
        /// How many there are.
        of: u32,
    },
    /// A read of a word that was never written.
    #[error("element {index} of {memory} is read: expected that it was written before")]
    Unwritten {
        /// The buffer's or array's name.
        memory: String,
        /// The index.
        index: u32,
    },
    /// Two threads of a workgroup, without a barrier between them.
    #[error("element {index} of {memory} is {now}, and was {before} by {}: expected a barrier between them",
        .other.map_or("several threads".into(), |thread| format!("thread {thread}")))]
    Race {
        /// The buffer's or array's name.
        memory: String,
        /// The index.
        index: u32,
        /// What was done before.
        before: Access,
        /// By which thread; none if by several.
        other: Option<u32>,
        /// What this thread does.
        now: Access,
    },
    /// Two workgroups of a dispatch.
    #[error(
        "element {index} of {memory} is {now}, and was {before} by workgroup {other:?}: expected one workgroup for it"
    )]
    Groups {
        /// The buffer's name.
        memory: String,
        /// The index.
        index: u32,
        /// What was done before.
        before: Access,
        /// By which workgroup.
        other: [u32; 3],
        /// What this thread does.
        now: Access,
    },
    /// A barrier or an exchange that some threads do not reach; the thread is the first of these.
    #[error("the thread is not at this barrier or exchange, where {arrived} threads are: expected all {threads}")]
    Parted {
        /// Threads that came.
        arrived: u32,
        /// Threads of the workgroup.
        threads: u32,
    },
    /// A loop whose step is 0.
    #[error("a loop's step is 0: expected at least 1")]
    Step,
    /// A loop whose variable exceeds 32 bits before it reaches the end.
    #[error("a loop's variable goes from {from} by {step} beyond 32 bits: expected that it reaches the loop's end")]
    Wraps {
        /// The variable's value.
        from: u32,
        /// What is added.
        step: u32,
    },
    /// An integer divided by 0.
    #[error("an integer is divided by 0: expected a divisor other than 0")]
    DividedByZero,
    /// A shift by too many bits.
    #[error("an integer is shifted by {by} bits: expected fewer than 32")]
    Shift {
        /// By how many bits.
        by: u32,
    },
    /// What stands for a text failed.
    #[error("the routine `{name}`: {problem}")]
    Routine {
        /// Its name.
        name: String,
        /// What it said.
        problem: String,
    },
    /// The run does not end.
    #[error("the run has executed {statements} statements: expected that it ends before that")]
    Endless {
        /// How many were allowed.
        statements: u64,
    },
}
