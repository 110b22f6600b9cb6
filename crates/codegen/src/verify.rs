//! Checks a kernel before it is run or printed.
//!
//! A kernel is made by code, so an error here is a mistake in that code. It is found at once, instead of in a driver's
//! compiler, or as a wrong number on a device. The strictest rule is about barriers: either all threads of a workgroup
//! reach a barrier or none does, so conditions and loop bounds around one may only depend on values that are the same
//! for all threads (`uniform.rs`).

mod uniform;

#[cfg(test)]
mod tests;

use crate::lang::{Array, Binary, Expr, Kernel, Kind, Memory, Reader, Stmt, Ty, Unary, Var, Variable};
use crate::visit::{Block, Part, Place, blocks, identity, operands, roots, type_name};
use std::collections::HashSet;
use thiserror::Error;

/// The most threads that a workgroup can have.
pub const MAX_THREADS: u32 = 1024;

/// The resources of a kernel, which are compared with a device's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Threads of a workgroup.
    pub threads: u32,
    /// Bytes of shared arrays of a workgroup.
    pub shared_bytes: u64,
    /// Bytes of a thread's own arrays.
    pub own_bytes: u64,
    /// Buffers.
    pub buffers: usize,
    /// Arguments.
    pub args: usize,
    /// Barriers, as they are written; one in a loop is one.
    pub barriers: usize,
    /// Statements, as they are written.
    pub statements: usize,
    /// Nodes of expressions, as they are written; one that a statement uses twice is one.
    pub expressions: usize,
}

/// Why a kernel is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("kernel `{kernel}`{}: {wrong}", .place.as_ref().map(|place| format!(", {place}")).unwrap_or_default())]
pub struct Problem {
    /// The kernel's name.
    pub kernel: String,
    /// The statement, unless it is about a declaration.
    pub place: Option<Place>,
    /// What is wrong.
    pub wrong: Box<Wrong>,
}

/// What can be wrong with a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each sentence says what its fields are")]
pub enum Wrong {
    /// A name that printers cannot print.
    #[error("the name `{name}` of {what} is not valid: expected letters, digits and `_`, with a letter first{}",
        if *.lower { ", in lower case" } else { "" })]
    Name { what: &'static str, name: String, lower: bool },
    /// Too few or too many threads.
    #[error("a workgroup has {threads} threads: expected 1 to {MAX_THREADS}")]
    Threads { threads: u32 },
    /// An array of truth values.
    #[error("the array `{name}` holds bool: expected f32, u32 or i32")]
    ArrayOfBool { name: String },
    /// An array of nothing.
    #[error("the array `{name}` has no elements: expected at least 1")]
    ArrayEmpty { name: String },
    /// A part that its array does not hold.
    #[error("the part `{name}` ends at {end} of the array `{array}`: expected an end from 1 to {len}")]
    PartOutside { name: String, end: u64, array: String, len: u32 },
    /// A number of something that there is not.
    #[error("there is no {what} {number}: expected a number below {count}")]
    Missing { what: &'static str, number: u32, count: usize },
    /// A value of a type that does not go there.
    #[error("{what} is {found}: expected {expected}", found = type_name(*.found))]
    Type { what: &'static str, found: Ty, expected: &'static str },
    /// Types that should be one.
    #[error("{what} is {found}: expected {expected}", found = type_name(*.found), expected = type_name(*.expected))]
    Differs { what: &'static str, found: Ty, expected: Ty },
    /// A function that takes another number of operands.
    #[error("the function `{name}` is given {found} operands: expected {expected}")]
    Operands { name: String, found: usize, expected: u32 },
    /// A statement that runs a routine where the kernel has none.
    #[error("there is no routine to run: expected that the kernel has one")]
    NoRoutine,
    /// A routine with another number of results.
    #[error("the routine `{name}` sets {found} variables: expected {expected}")]
    Results { name: String, found: usize, expected: u32 },
    /// A reader that does more than read, or gives nothing.
    #[error(
        "a reader of the routine `{name}` does not only read: expected that it sets variables, counts and branches, and sets its result at the end"
    )]
    Reader { name: String },
    /// A number of elements that are not loaded at once.
    #[error("{count} elements are loaded at once: expected 2 or 4")]
    Many { count: usize },
    /// A truth value that is neither.
    #[error("a truth value has the bits {bits}: expected 0 or 1")]
    Truth { bits: u32 },
    /// A store to a buffer that is only read.
    #[error("the buffer `{buffer}` is stored to: expected a buffer that is marked as written")]
    OnlyRead { buffer: String },
    /// A variable that holds nothing yet.
    #[error("the variable `{name}` is read: expected that it is set before, in this block or one around it")]
    Unset { name: String },
    /// A variable that is set a second time.
    #[error("the variable `{name}` is set again: expected once, since it does not change")]
    SetAgain { name: String },
    /// A variable whose first value is in a block that does not lie around this one.
    #[error("the variable `{name}` is set: expected that its first value comes in this block or one around it")]
    SetApart { name: String },
    /// A loop's variable that others may set.
    #[error("the loop's variable `{name}` is one that changes: expected one that only the loop sets")]
    LoopVariable { name: String },
    /// A barrier or an exchange that not all threads may come to.
    #[error(
        "threads may part before this barrier or exchange, at {around}: expected that what decides there is the same for all"
    )]
    Parted { around: Place },
    /// An exchange with a thread that there is not.
    #[error(
        "values are exchanged over {bit} threads in a workgroup of {threads}: expected a power of two, and threads in \
        multiples of twice that"
    )]
    Exchange { bit: u32, threads: u32 },
}

/// Checks a kernel, and gives the resources that it needs.
pub fn verify(kernel: &Kernel) -> Result<Resources, Problem> {
    let resources = check(kernel)?;
    uniform::check(kernel)?;
    Ok(resources)
}

/// All checks except that all threads reach each barrier, which the interpreter finds out itself.
pub(crate) fn check(kernel: &Kernel) -> Result<Resources, Problem> {
    let fail = |wrong| Problem { kernel: kernel.name.clone(), place: None, wrong: Box::new(wrong) };
    declarations(kernel).map_err(fail)?;
    let bytes = |arrays: &[Array]| arrays.iter().map(|array| 4 * u64::from(array.len)).sum();
    let mut checker = Checker {
        kernel,
        parts: vec![],
        live: vec![false; kernel.vars.len()],
        ever: vec![false; kernel.vars.len()],
        opened: vec![],
        seen: HashSet::new(),
        resources: Resources {
            threads: kernel.threads,
            shared_bytes: bytes(&kernel.shared),
            own_bytes: bytes(&kernel.own),
            buffers: kernel.buffers.len(),
            args: kernel.args.len(),
            ..Resources::default()
        },
    };
    if let Some(routine) = &kernel.routine {
        for reader in &routine.readers {
            checker.reader(&routine.name, reader)?;
        }
    }
    checker.block(Block::Body, &kernel.body)?;
    Ok(checker.resources)
}

fn declarations(kernel: &Kernel) -> Result<(), Wrong> {
    name("the kernel", &kernel.name, true)?;
    if !(1..=MAX_THREADS).contains(&kernel.threads) {
        return Err(Wrong::Threads { threads: kernel.threads });
    }
    for buffer in &kernel.buffers {
        name("a buffer", &buffer.name, false)?;
    }
    for arg in &kernel.args {
        name("an argument", arg, false)?;
    }
    for array in kernel.shared.iter().chain(&kernel.own) {
        name("an array", &array.name, false)?;
        if array.ty == Ty::Bool {
            return Err(Wrong::ArrayOfBool { name: array.name.clone() });
        }
        if array.len == 0 {
            return Err(Wrong::ArrayEmpty { name: array.name.clone() });
        }
    }
    for part in &kernel.parts {
        name("a part", &part.name, false)?;
        let array = find("shared array", &kernel.shared, part.shared)?;
        let end = u64::from(part.first) + u64::from(part.len);
        if part.len == 0 || end > u64::from(array.len) {
            return Err(Wrong::PartOutside { name: part.name.clone(), end, array: array.name.clone(), len: array.len });
        }
    }
    for function in &kernel.functions {
        name("a function", &function.name, true)?;
    }
    if let Some(routine) = &kernel.routine {
        name("a routine", &routine.name, true)?;
        for operand in &routine.operands {
            name("an operand", operand, false)?;
        }
    }
    for var in &kernel.vars {
        name("a variable", &var.name, false)?;
    }
    Ok(())
}

fn name(what: &'static str, name: &str, lower: bool) -> Result<(), Wrong> {
    let letter = |c: char| if lower { c.is_ascii_lowercase() } else { c.is_ascii_alphabetic() };
    let valid = name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit() || c == '_');
    if valid { Ok(()) } else { Err(Wrong::Name { what, name: name.into(), lower }) }
}

struct Checker<'a> {
    kernel: &'a Kernel,
    /// The path to the statement that is being checked.
    parts: Vec<Part>,
    /// For each variable, whether it was set in this block or one around it.
    live: Vec<bool>,
    /// For each variable, whether any earlier statement sets it.
    ever: Vec<bool>,
    /// The live variables, in the order of their first values; at the end of a block its own are removed.
    opened: Vec<Var>,
    /// Nodes of this statement that were already checked.
    seen: HashSet<*const Kind>,
    resources: Resources,
}

impl Checker<'_> {
    fn block(&mut self, block: Block, body: &[Stmt]) -> Result<(), Problem> {
        let before = self.opened.len();
        for (index, stmt) in body.iter().enumerate() {
            self.parts.push(Part { block, index });
            self.resources.statements += 1;
            if let Err(wrong) = self.statement(stmt) {
                let place = Some(Place::new(self.kernel, &self.parts, stmt));
                return Err(Problem { kernel: self.kernel.name.clone(), place, wrong: Box::new(wrong) });
            }
            match stmt {
                Stmt::For { body, .. } => self.block(Block::Loop, body)?,
                Stmt::If { then, otherwise, .. } => {
                    self.block(Block::Then, then)?;
                    self.block(Block::Otherwise, otherwise)?;
                }
                _ => (),
            }
            if let Stmt::For { var, .. } = stmt {
                // The loop's variable is not live after the loop. It was opened before the loop's block, whose own
                // variables are already removed.
                self.live[var.0 as usize] = false;
                self.opened.pop();
            }
            self.parts.pop();
        }
        for var in self.opened.drain(before..) {
            self.live[var.0 as usize] = false;
        }
        Ok(())
    }

    /// A reader of the kernel's routine, which sees nothing of the body's variables.
    fn reader(&mut self, routine: &str, reader: &Reader) -> Result<(), Problem> {
        fn reads(body: &[Stmt]) -> bool {
            body.iter().all(|stmt| {
                matches!(stmt, Stmt::Set { .. } | Stmt::For { .. } | Stmt::If { .. })
                    && blocks(stmt).all(|(_, body)| reads(body))
            })
        }
        let kernel = self.kernel;
        let fail = |wrong| Problem { kernel: kernel.name.clone(), place: None, wrong: Box::new(wrong) };
        let ends = matches!(reader.body.last(), Some(Stmt::Set { var, .. }) if *var == reader.result);
        if !ends || !reads(&reader.body) {
            return Err(fail(Wrong::Reader { name: routine.into() }));
        }
        for param in &reader.params {
            let ty = self.variable(*param).map_err(fail)?.ty;
            expect("a reader's place", ty, Ty::I32).and_then(|()| self.open(*param)).map_err(fail)?;
        }
        let ty = self.variable(reader.result).map_err(fail)?.ty;
        expect("a reader's result", ty, Ty::F32).map_err(fail)?;
        self.block(Block::Reader, &reader.body)?;
        for param in self.opened.drain(..) {
            self.live[param.0 as usize] = false;
        }
        Ok(())
    }

    /// A statement without those in it.
    fn statement(&mut self, stmt: &Stmt) -> Result<(), Wrong> {
        self.seen.clear();
        for root in roots(stmt) {
            self.expression(root)?;
        }
        match stmt {
            Stmt::Set { var, value } => self.set(*var, value),
            Stmt::LoadMany { vars, memory, index } => {
                let count = vars.len();
                if count != 2 && count != 4 {
                    return Err(Wrong::Many { count });
                }
                for var in vars {
                    let variable = self.variable(*var)?;
                    if variable.changes {
                        return Err(Wrong::SetAgain { name: variable.name.clone() });
                    }
                    let ty = variable.ty;
                    self.access(*memory, index, ty)?;
                    self.open(*var)?;
                }
                Ok(())
            }
            Stmt::Multiply { sums, a, b, .. } => {
                let threads = self.kernel.threads;
                if !threads.is_multiple_of(32) {
                    return Err(Wrong::Exchange { bit: 16, threads });
                }
                a.iter().chain(b).try_for_each(|pair| expect("a pair of halves", pair.ty(), Ty::U32))?;
                sums.iter().try_for_each(|sum| {
                    let variable = self.variable(*sum)?;
                    let name = || variable.name.clone();
                    if !self.live[sum.0 as usize] {
                        return Err(Wrong::Unset { name: name() });
                    }
                    if !variable.changes {
                        return Err(Wrong::SetAgain { name: name() });
                    }
                    expect("a sum", variable.ty, Ty::F32)
                })
            }
            Stmt::Store { memory, index, value } => {
                self.access(*memory, index, value.ty())?;
                self.written(*memory)
            }
            Stmt::For { var, from, to, step, .. } => {
                expect("a loop's first number", from.ty(), Ty::U32)?;
                expect("a loop's end", to.ty(), Ty::U32)?;
                expect("a loop's step", step.ty(), Ty::U32)?;
                let variable = self.variable(*var)?;
                expect("a loop's variable", variable.ty, Ty::U32)?;
                if variable.changes {
                    return Err(Wrong::LoopVariable { name: variable.name.clone() });
                }
                self.open(*var)
            }
            Stmt::If { condition, .. } => expect("a condition", condition.ty(), Ty::Bool),
            Stmt::Barrier => {
                self.resources.barriers += 1;
                Ok(())
            }
            Stmt::Fault { buffer, index } => {
                self.access(Memory::Buffer(*buffer), index, Ty::U32)?;
                self.written(Memory::Buffer(*buffer))
            }
            Stmt::Routine { operands, results } => {
                let routine = self.kernel.routine.as_ref().ok_or(Wrong::NoRoutine)?;
                let (name, expected) = (routine.name.clone(), routine.operands.len() as u32);
                if operands.len() != routine.operands.len() {
                    return Err(Wrong::Operands { name, found: operands.len(), expected });
                }
                if results.len() != routine.results as usize {
                    return Err(Wrong::Results { name, found: results.len(), expected: routine.results });
                }
                operands.iter().try_for_each(|operand| expect("an operand of a routine", operand.ty(), Ty::I32))?;
                results.iter().try_for_each(|var| {
                    expect("a variable for a result", self.variable(*var)?.ty, Ty::F32)?;
                    self.open(*var)
                })
            }
        }
    }

    fn variable(&self, var: Var) -> Result<&Variable, Wrong> {
        find("variable", &self.kernel.vars, var.0)
    }

    fn set(&mut self, var: Var, value: &Expr) -> Result<(), Wrong> {
        let variable = self.variable(var)?;
        expect("the value of a variable", value.ty(), variable.ty)?;
        if self.live[var.0 as usize] {
            return if variable.changes { Ok(()) } else { Err(Wrong::SetAgain { name: variable.name.clone() }) };
        }
        self.open(var)
    }

    /// Records a variable's first value.
    fn open(&mut self, var: Var) -> Result<(), Wrong> {
        let variable = self.variable(var)?;
        if self.ever[var.0 as usize] {
            let name = variable.name.clone();
            return Err(if variable.changes { Wrong::SetApart { name } } else { Wrong::SetAgain { name } });
        }
        self.ever[var.0 as usize] = true;
        self.live[var.0 as usize] = true;
        self.opened.push(var);
        Ok(())
    }

    /// An element of memory as a type.
    fn access(&self, memory: Memory, index: &Expr, ty: Ty) -> Result<(), Wrong> {
        expect("an index", index.ty(), Ty::U32)?;
        match memory {
            Memory::Buffer(number) => {
                find("buffer", &self.kernel.buffers, number)?;
                one_of("an element of a buffer", ty, &[Ty::F32, Ty::U32, Ty::I32], "f32, u32 or i32")
            }
            Memory::Shared(number) => {
                expect("an element of a shared array", ty, find("shared array", &self.kernel.shared, number)?.ty)
            }
            Memory::Part(number) => {
                let part = find("part", &self.kernel.parts, number)?;
                expect("an element of a part", ty, find("shared array", &self.kernel.shared, part.shared)?.ty)
            }
            Memory::Own(number) => {
                expect("an element of an own array", ty, find("own array", &self.kernel.own, number)?.ty)
            }
        }
    }

    fn written(&self, memory: Memory) -> Result<(), Wrong> {
        if let Memory::Buffer(number) = memory {
            let buffer = find("buffer", &self.kernel.buffers, number)?;
            if !buffer.written {
                return Err(Wrong::OnlyRead { buffer: buffer.name.clone() });
            }
        }
        Ok(())
    }

    fn expression(&mut self, expr: &Expr) -> Result<(), Wrong> {
        if !self.seen.insert(identity(expr)) {
            return Ok(());
        }
        for operand in operands(expr) {
            self.expression(operand)?;
        }
        self.resources.expressions += 1;
        let ty = expr.ty();
        match expr.kind() {
            Kind::Const(bits) if ty == Ty::Bool && *bits > 1 => Err(Wrong::Truth { bits: *bits }),
            Kind::Const(_) => Ok(()),
            Kind::Var(var) => {
                let variable = self.variable(*var)?;
                if !self.live[var.0 as usize] {
                    return Err(Wrong::Unset { name: variable.name.clone() });
                }
                expect("a variable", ty, variable.ty)
            }
            Kind::Arg(number) => {
                find("argument", &self.kernel.args, *number)?;
                expect("an argument", ty, Ty::U32)
            }
            Kind::Thread => expect("a thread's number", ty, Ty::U32),
            Kind::Group(axis) if *axis > 2 => {
                Err(Wrong::Missing { what: "axis of workgroups", number: (*axis).into(), count: 3 })
            }
            Kind::Group(_) => expect("a workgroup's number", ty, Ty::U32),
            Kind::Load(memory, index) => self.access(*memory, index, ty),
            Kind::Unary(op, a) => unary(*op, a.ty()).and_then(|()| expect("a result", ty, a.ty())),
            Kind::Binary(op, a, b) => binary(*op, ty, a.ty(), b.ty()),
            Kind::Fma(a, b, c) => {
                [a, b, c].into_iter().try_for_each(|operand| expect("an operand of fma", operand.ty(), Ty::F32))?;
                expect("the result of fma", ty, Ty::F32)
            }
            Kind::Select(condition, a, b) => {
                expect("the condition of a selection", condition.ty(), Ty::Bool)?;
                expect("the first value of a selection", a.ty(), ty)?;
                expect("the second value of a selection", b.ty(), ty)
            }
            Kind::Bits(a) => {
                let words: &[Ty] = &[Ty::F32, Ty::U32, Ty::I32];
                one_of("what bits are taken of", a.ty(), words, "f32, u32 or i32")?;
                one_of("what bits are taken as", ty, words, "f32, u32 or i32")
            }
            Kind::Call(number, operands) => {
                let function = find("function", &self.kernel.functions, *number)?;
                if operands.len() != function.operands as usize {
                    let (name, expected) = (function.name.clone(), function.operands);
                    return Err(Wrong::Operands { name, found: operands.len(), expected });
                }
                operands.iter().try_for_each(|operand| expect("an operand of a function", operand.ty(), Ty::F32))?;
                expect("the result of a function", ty, Ty::F32)
            }
            Kind::Pack(_, a, b) => {
                [a, b].into_iter().try_for_each(|operand| expect("what is packed", operand.ty(), Ty::F32))?;
                expect("a pair of halves", ty, Ty::U32)
            }
            Kind::FromHalf(a) => {
                expect("what holds an f16", a.ty(), Ty::U32)?;
                expect("an f16 as another type", ty, Ty::F32)
            }
            Kind::Exchange(a, bit) => {
                let threads = self.kernel.threads;
                if !bit.is_power_of_two() || !threads.is_multiple_of(bit.saturating_mul(2)) {
                    return Err(Wrong::Exchange { bit: *bit, threads });
                }
                one_of("what is exchanged", a.ty(), &[Ty::F32, Ty::U32, Ty::I32], "f32, u32 or i32")?;
                expect("what an exchange gives", ty, a.ty())
            }
            Kind::Convert(_) => one_of("what is converted to", ty, &[Ty::F32, Ty::U32, Ty::I32], "f32, u32 or i32"),
        }
    }
}

fn find<'a, T>(what: &'static str, all: &'a [T], number: u32) -> Result<&'a T, Wrong> {
    all.get(number as usize).ok_or(Wrong::Missing { what, number, count: all.len() })
}

fn expect(what: &'static str, found: Ty, expected: Ty) -> Result<(), Wrong> {
    if found == expected { Ok(()) } else { Err(Wrong::Differs { what, found, expected }) }
}

fn one_of(what: &'static str, found: Ty, among: &[Ty], expected: &'static str) -> Result<(), Wrong> {
    if among.contains(&found) { Ok(()) } else { Err(Wrong::Type { what, found, expected }) }
}

fn unary(op: Unary, a: Ty) -> Result<(), Wrong> {
    match op {
        Unary::Neg => one_of("what is negated", a, &[Ty::F32, Ty::I32], "f32 or i32"),
        Unary::Not => one_of("what `not` is of", a, &[Ty::U32, Ty::I32], "u32 or i32"),
        Unary::Abs
        | Unary::Sqrt
        | Unary::Floor
        | Unary::Round
        | Unary::Trunc
        | Unary::Exp2
        | Unary::Recip
        | Unary::Tanh => one_of("the operand of a function of floats", a, &[Ty::F32], "f32"),
    }
}

fn binary(op: Binary, ty: Ty, a: Ty, b: Ty) -> Result<(), Wrong> {
    if matches!(op, Binary::Shl | Binary::Shr) {
        expect("how far is shifted", b, Ty::U32)?;
    } else {
        expect("the second operand", b, a)?;
    }
    match op {
        Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Min | Binary::Max | Binary::Lt | Binary::Le => {
            one_of("an operand", a, &[Ty::F32, Ty::U32, Ty::I32], "f32, u32 or i32")?;
        }
        Binary::Rem => one_of("an operand of a remainder", a, &[Ty::U32], "u32")?,
        Binary::And | Binary::Or => {
            one_of("an operand of a logical function", a, &[Ty::U32, Ty::I32, Ty::Bool], "u32, i32 or bool")?;
        }
        Binary::Xor | Binary::Shl | Binary::Shr => {
            one_of("an operand of a function of bits", a, &[Ty::U32, Ty::I32], "u32 or i32")?;
        }
        Binary::Eq | Binary::Ne => (),
    }
    if op.compares() { expect("a comparison", ty, Ty::Bool) } else { expect("a result", ty, a) }
}
