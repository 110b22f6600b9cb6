//! The kernel language: programs for a GPU, as a tree.
//!
//! A kernel is run by workgroups of threads. A thread has variables and small arrays of its own; the threads of a
//! workgroup share arrays, and wait for each other at barriers; all threads see the buffers, which are words of 32
//! bits. There are loops that count up and branches, and nothing that jumps. There are no atomic operations: which
//! thread writes which word is fixed when the kernel is made, so the same inputs give the same bits.
//!
//! The tree is made by [`Maker`], checked by [`crate::verify`], run on the CPU by [`crate::interpret`], and printed by
//! [`crate::print`]. Only the printers know other languages.

mod function;
mod maker;
mod routine;

pub use function::{Body, Function, Run};
pub use maker::Maker;
pub use routine::{Compute, Computing, Read, Reader, Routine};

use std::ops;
use std::sync::Arc;

/// What a variable or an expression holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ty {
    /// Single precision.
    F32,
    /// Unsigned, 32 bits; arithmetic wraps.
    U32,
    /// Signed, 32 bits; arithmetic wraps.
    I32,
    /// A truth value. Buffers and arrays hold none.
    Bool,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Its name: lower-case letters, digits and `_`.
    pub name: String,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Buffers that it reads and writes, in the order in which they are bound.
    pub buffers: Vec<Buffer>,
    /// Names of its arguments, which are `u32` and the same for all threads of a dispatch.
    pub args: Vec<String>,
    /// Arrays that the threads of a workgroup share, uninitialized at the beginning.
    pub shared: Vec<Array>,
    /// Parts of shared arrays: one array may hold several values, at the same time or one after the other. Parts may
    /// overlap.
    pub parts: Vec<Part>,
    /// Arrays that each thread has for itself, uninitialized at the beginning.
    pub own: Vec<Array>,
    /// Functions that are given as text.
    pub functions: Vec<Function>,
    /// A text that reads what it likes, of which a kernel has one at most.
    pub routine: Option<Box<Routine>>,
    /// All variables, of loops too.
    pub vars: Vec<Variable>,
    /// What each thread does.
    pub body: Vec<Stmt>,
}

impl Kernel {
    /// Whether it multiplies small matrices.
    pub fn multiplies(&self) -> bool {
        let mut found = false;
        crate::visit::statements(self, &mut |_, stmt| found |= matches!(stmt, Stmt::Multiply { .. }));
        found
    }

    /// How many neighbouring threads exchange values: the least size of a subgroup that it needs, and 1 where none do.
    pub fn lanes(&self) -> u32 {
        let mut lanes = 1;
        crate::visit::statements(self, &mut |_, stmt| {
            crate::visit::expressions(stmt, &mut |expr| {
                if let Kind::Exchange(_, bit) = expr.kind() {
                    lanes = lanes.max(bit.saturating_mul(2));
                }
            });
            if let Stmt::Multiply { .. } = stmt {
                lanes = lanes.max(32);
            }
        });
        lanes
    }
}

/// Words that all workgroups see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// Its name.
    pub name: String,
    /// Whether the kernel writes to it.
    pub written: bool,
}

/// An array of a workgroup or of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Array {
    /// Its name.
    pub name: String,
    /// What its elements are; not truth values.
    pub ty: Ty,
    /// How many.
    pub len: u32,
}

/// A range of elements of a shared array. An index counts from its first element, and one beyond its last is out of
/// bounds, even if the array is longer. Parts may overlap, for values that are not needed at the same time: what was
/// written to an element of one part must not be read as an element of another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// The shared array, by number.
    pub shared: u32,
    /// Where it begins.
    pub first: u32,
    /// How many elements it has.
    pub len: u32,
    /// Whether it may be read where another part was written last, as in a kernel that leaves out some of its work.
    pub mixed: bool,
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variable {
    /// Its name, for people; printers make it unique.
    pub name: String,
    /// What it holds.
    pub ty: Ty,
    /// Whether it can be set again.
    pub changes: bool,
}

/// A variable's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub u32);

/// Where elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// A buffer of the kernel, by number. Each access says as which type it reads a word.
    Buffer(u32),
    /// A shared array, by number.
    Shared(u32),
    /// A part of a shared array, by number.
    Part(u32),
    /// An array of the thread's own, by number.
    Own(u32),
}

/// A statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stmt {
    /// Gives a variable its first value or, if it may change, a new one.
    Set {
        /// The variable. Its first value comes before all reads, in the same block or one around it.
        var: Var,
        /// The value.
        value: Expr,
    },
    /// Gives variables, of one type, their first and only values: two or four elements that follow each other, the first at an
    /// index that is a multiple of how many they are, from the beginning of the array that they are in. A device reads them at
    /// once.
    LoadMany {
        /// The variables. They do not change.
        vars: Vec<Var>,
        /// Where.
        memory: Memory,
        /// The first one's index.
        index: Expr,
    },
    /// Adds a product of small matrices to a third, by 32 neighbouring threads together (see [`Tile`]): 16 × 16 by 16 × 8. All
    /// threads of the workgroup reach it. A device needs subgroups of 32 lanes, and hardware for it.
    Multiply {
        /// What the operands hold.
        halves: Half,
        /// The sums, which change.
        sums: [Var; 4],
        /// The first factor.
        a: [Expr; 4],
        /// The second factor.
        b: [Expr; 2],
    },
    /// Writes an element.
    Store {
        /// Where.
        memory: Memory,
        /// At which index.
        index: Expr,
        /// What: `f32`, `u32` or `i32`; of an array, its type.
        value: Expr,
    },
    /// `for var = from; var < to; var += step`, of unsigned numbers. A step is at least 1, and all three are computed once,
    /// before the first round.
    For {
        /// The loop's variable, which nothing else sets.
        var: Var,
        /// Its first value.
        from: Expr,
        /// What it stays below.
        to: Expr,
        /// What is added after each round.
        step: Expr,
        /// What is done.
        body: Vec<Stmt>,
    },
    /// A branch.
    If {
        /// What decides.
        condition: Expr,
        /// What is done if it holds.
        then: Vec<Stmt>,
        /// What is done if not.
        otherwise: Vec<Stmt>,
    },
    /// All threads of the workgroup wait for each other; then each sees what the others wrote, in shared arrays and
    /// buffers. Either all threads reach it or none does.
    Barrier,
    /// Reports that the run went wrong, such as by an index out of range. Any number of threads may report it, and the
    /// kernel continues.
    Fault {
        /// The number of the buffer of faults: each of its words is 0, or 1 once a thread has reported that fault.
        buffer: u32,
        /// The word.
        index: Expr,
    },
    /// Runs the kernel's routine.
    Routine {
        /// What it is given, as `i32`.
        operands: Vec<Expr>,
        /// The variables that get its results. They have had no value before.
        results: Vec<Var>,
    },
}

/// Types of 16 bits, two of which are in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// `f16`
    F16,
    /// `bf16`
    Bf16,
}

/// Which elements of a small matrix a thread has. With its number among 32 as 4 g + t:
///
/// * of the 16 × 8 sums: those at rows g and g + 8 and columns 2t and 2t + 1: `[g, 2t]`, `[g, 2t + 1]`, `[g + 8, 2t]`,
///   `[g + 8, 2t + 1]`;
/// * of the 16 × 16 first factor, pairs in a word: columns 2t and 2t + 1 of the rows g and g + 8, then columns 2t + 8 and 2t + 9
///   of these rows;
/// * of the 16 × 8 second factor, pairs in a word: of column g the rows 2t and 2t + 1, then the rows 2t + 8 and 2t + 9.
///
/// So two neighbouring tiles of sums, rounded and packed in pairs, are a first factor of the next product as they are.
pub struct Tile;

impl Tile {
    /// The row and column of a thread's sum.
    pub fn sum(thread: u32, number: u32) -> (u32, u32) {
        let (g, t) = (thread / 4, thread % 4);
        (g + 8 * (number / 2), 2 * t + number % 2)
    }
    /// The row and first column of a thread's pair of the first factor.
    pub fn first(thread: u32, number: u32) -> (u32, u32) {
        let (g, t) = (thread / 4, thread % 4);
        (g + 8 * (number % 2), 2 * t + 8 * (number / 2))
    }
    /// The first row and the column of a thread's pair of the second factor.
    pub fn second(thread: u32, number: u32) -> (u32, u32) {
        let (g, t) = (thread / 4, thread % 4);
        (2 * t + 8 * number, g)
    }
}

/// A value that is computed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expr(Arc<Node>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Node {
    ty: Ty,
    kind: Kind,
}

/// How a value is computed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A number, by its bits; a truth value is 0 or 1.
    Const(u32),
    /// A variable.
    Var(Var),
    /// An argument, by number.
    Arg(u32),
    /// The thread's number in its workgroup.
    Thread,
    /// The workgroup's number along an axis of the dispatch, 0 to 2.
    Group(u8),
    /// An element of memory.
    Load(Memory, Expr),
    /// A function of one operand.
    Unary(Unary, Expr),
    /// A function of two operands.
    Binary(Binary, Expr, Expr),
    /// a · b + c of floats, rounded once or twice.
    Fma(Expr, Expr, Expr),
    /// The second where the first is true, else the third; both are computed.
    Select(Expr, Expr, Expr),
    /// The same bits as another type of 32 bits.
    Bits(Expr),
    /// The number as another type. From float to integer it truncates and saturates; NaN gives 0. From a truth value: 0
    /// or 1.
    Convert(Expr),
    /// The `f16` in the lowest 16 bits of a word, as `f32`, by the device's own conversion; the other bits do not matter.
    /// [`crate::math::from_f16_bits`] does the same on devices whose conversion is not exact.
    FromHalf(Expr),
    /// Two floats, each rounded to the nearest of 16 bits, in one word, the first in its low half.
    Pack(Half, Expr, Expr),
    /// A function of the kernel, by number, of operands in single precision.
    Call(u32, Vec<Expr>),
    /// The operand's value in the thread whose number differs from this thread's in one bit: the number here, a power of
    /// two, is that bit. All threads of the workgroup compute it together, as they come to a barrier together; it does not
    /// order accesses to memory. A device needs subgroups of twice that many lanes for it ([`Kernel::lanes`]).
    Exchange(Expr, u32),
}

/// Functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// −a (floats and signed integers)
    Neg,
    /// ~a of integers, not of truth values
    Not,
    /// |a| of floats, by its bits
    Abs,
    /// √a
    Sqrt,
    /// down to a whole number
    Floor,
    /// to the nearest whole number, ties to even
    Round,
    /// toward 0
    Trunc,
    /// 2ᵃ as the hardware has it: some 2 ulp, unless a schedule asks for more and uses [`crate::math`]
    Exp2,
    /// 1/a as the hardware has it
    Recip,
    /// tanh a as the hardware has it: some 2⁻¹¹ of it
    Tanh,
}

/// Functions of two operands of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// a + b
    Add,
    /// a − b
    Sub,
    /// a · b
    Mul,
    /// a / b; of integers toward 0, where b is not 0
    Div,
    /// a mod b of unsigned integers, where b is not 0
    Rem,
    /// the smaller; of floats, where one is NaN, either
    Min,
    /// the larger; of floats, where one is NaN, either
    Max,
    /// of integers and truth values
    And,
    /// of integers and truth values
    Or,
    /// of integers
    Xor,
    /// a · 2ᵇ of integers; b is unsigned and below 32
    Shl,
    /// a / 2ᵇ downward, of integers; b is unsigned and below 32
    Shr,
    /// a = b
    Eq,
    /// a ≠ b
    Ne,
    /// a < b
    Lt,
    /// a ≤ b
    Le,
}

impl Binary {
    /// Whether the result is a truth value.
    pub fn compares(self) -> bool {
        matches!(self, Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le)
    }
}

impl Expr {
    /// A value of this type and kind. [`crate::verify`] refuses those that do not fit together.
    pub fn new(ty: Ty, kind: Kind) -> Expr {
        Expr(Arc::new(Node { ty, kind }))
    }
    /// What it holds.
    pub fn ty(&self) -> Ty {
        self.0.ty
    }
    /// How it is computed.
    pub fn kind(&self) -> &Kind {
        &self.0.kind
    }
    /// Its bits, where it is a number.
    pub fn as_const(&self) -> Option<u32> {
        if let Kind::Const(bits) = self.0.kind { Some(bits) } else { None }
    }
    fn is(&self, bits: u32) -> bool {
        self.as_const() == Some(bits)
    }

    /// A function of it.
    pub fn unary(&self, op: Unary) -> Expr {
        Expr::new(self.ty(), Kind::Unary(op, self.clone()))
    }
    /// A function of it and another. Arithmetic on unsigned constants is done immediately.
    pub fn binary(&self, op: Binary, other: impl Into<Expr>) -> Expr {
        let other = other.into();
        if self.ty() == Ty::U32
            && let Some(known) = fold(op, self, &other)
        {
            return known;
        }
        let ty = if op.compares() { Ty::Bool } else { self.ty() };
        Expr::new(ty, Kind::Binary(op, self.clone(), other))
    }
    /// self · b + c
    pub fn fma(&self, b: impl Into<Expr>, c: impl Into<Expr>) -> Expr {
        Expr::new(Ty::F32, Kind::Fma(self.clone(), b.into(), c.into()))
    }
    /// `a` where this holds, else `b`.
    pub fn select(&self, a: impl Into<Expr>, b: impl Into<Expr>) -> Expr {
        let a = a.into();
        Expr::new(a.ty(), Kind::Select(self.clone(), a, b.into()))
    }
    /// The same bits as this type.
    pub fn bits(&self, ty: Ty) -> Expr {
        if ty == self.ty() {
            return self.clone();
        }
        Expr::new(ty, Kind::Bits(self.clone()))
    }
    /// This and another float, rounded to 16 bits, in one word.
    pub fn pack(&self, halves: Half, high: impl Into<Expr>) -> Expr {
        Expr::new(Ty::U32, Kind::Pack(halves, self.clone(), high.into()))
    }
    /// The number as this type.
    pub fn to(&self, ty: Ty) -> Expr {
        if ty == self.ty() {
            return self.clone();
        }
        Expr::new(ty, Kind::Convert(self.clone()))
    }
    /// The `f16` in the lowest 16 bits.
    pub fn half_to_float(&self) -> Expr {
        Expr::new(Ty::F32, Kind::FromHalf(self.clone()))
    }
    /// a mod b
    pub fn rem(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::Rem, other)
    }
    /// The smaller.
    pub fn min(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::Min, other)
    }
    /// The larger.
    pub fn max(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::Max, other)
    }
    /// a = b
    pub fn eq(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::Eq, other)
    }
    /// a ≠ b
    pub fn ne(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::Ne, other)
    }
    /// a < b
    pub fn lt(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::Lt, other)
    }
    /// a ≤ b
    pub fn le(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::Le, other)
    }
    /// Both.
    pub fn and(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::And, other)
    }
    /// Either.
    pub fn or(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::Or, other)
    }
    /// a · 2ᵇ
    pub fn shl(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::Shl, other)
    }
    /// a / 2ᵇ
    pub fn shr(&self, other: impl Into<Expr>) -> Expr {
        self.binary(Binary::Shr, other)
    }
}

/// Folds unsigned arithmetic on two constants, or with a neutral one.
fn fold(op: Binary, a: &Expr, b: &Expr) -> Option<Expr> {
    let (zero, one) = (|e: &Expr| e.is(0), |e: &Expr| e.is(1));
    Some(match (op, a.as_const(), b.as_const()) {
        (Binary::Add, Some(x), Some(y)) => x.wrapping_add(y).into(),
        (Binary::Sub, Some(x), Some(y)) => x.wrapping_sub(y).into(),
        (Binary::Mul, Some(x), Some(y)) => x.wrapping_mul(y).into(),
        (Binary::Div, Some(x), Some(y)) if y > 0 => (x / y).into(),
        (Binary::Rem, Some(x), Some(y)) if y > 0 => (x % y).into(),
        (Binary::Min, Some(x), Some(y)) => x.min(y).into(),
        (Binary::Max, Some(x), Some(y)) => x.max(y).into(),
        (Binary::Add | Binary::Sub, ..) if zero(b) => a.clone(),
        (Binary::Add, ..) if zero(a) => b.clone(),
        (Binary::Mul, ..) if zero(a) || zero(b) => 0u32.into(),
        (Binary::Mul | Binary::Div, ..) if one(b) => a.clone(),
        (Binary::Mul, ..) if one(a) => b.clone(),
        (Binary::Rem, ..) if one(b) => 0u32.into(),
        _ => return None,
    })
}

impl From<f32> for Expr {
    fn from(value: f32) -> Expr {
        Expr::new(Ty::F32, Kind::Const(value.to_bits()))
    }
}
impl From<u32> for Expr {
    fn from(value: u32) -> Expr {
        Expr::new(Ty::U32, Kind::Const(value))
    }
}
impl From<i32> for Expr {
    fn from(value: i32) -> Expr {
        Expr::new(Ty::I32, Kind::Const(value as u32))
    }
}
impl From<bool> for Expr {
    fn from(value: bool) -> Expr {
        Expr::new(Ty::Bool, Kind::Const(value.into()))
    }
}
impl From<&Expr> for Expr {
    fn from(value: &Expr) -> Expr {
        value.clone()
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),*) => { $(
        impl<T: Into<Expr>> ops::$trait<T> for Expr {
            type Output = Expr;
            fn $method(self, other: T) -> Expr {
                self.binary(Binary::$op, other)
            }
        }
        impl<T: Into<Expr>> ops::$trait<T> for &Expr {
            type Output = Expr;
            fn $method(self, other: T) -> Expr {
                self.binary(Binary::$op, other)
            }
        }
    )* };
}
operators!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div);
