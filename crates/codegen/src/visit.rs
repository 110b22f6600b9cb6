//! Walks over kernels, and names for places in them.
//!
//! Expressions share parts of themselves: a part that is used twice is one node. Walks therefore visit each node once
//! per statement, by its address, so that the work is proportional to the number of nodes, not to the size of the
//! expression written out.

use crate::lang::{Expr, Kernel, Kind, Memory, Stmt, Ty};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// One of the lists of statements that a statement can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Block {
    /// The kernel's body.
    Body,
    /// The body of a loop.
    Loop,
    /// What a branch does if its condition holds.
    Then,
    /// What a branch does if not.
    Otherwise,
    /// The body of a reader.
    Reader,
}

/// A step on the path to a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The list of statements.
    pub block: Block,
    /// The statement's number in it.
    pub index: usize,
}

/// Where a statement is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The path to it from the kernel's body.
    pub parts: Vec<Part>,
    /// What it is, for people.
    pub what: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.parts.iter().enumerate() {
            let block = match part.block {
                Block::Body => "body",
                Block::Loop => "loop",
                Block::Then => "then",
                Block::Otherwise => "otherwise",
                Block::Reader => "reader",
            };
            let dot = if number == 0 { "" } else { "." };
            write!(f, "{dot}{block}[{}]", part.index)?;
        }
        write!(f, " ({})", self.what)
    }
}

impl Place {
    /// The place of a statement with this path.
    pub fn new(kernel: &Kernel, parts: &[Part], stmt: &Stmt) -> Place {
        Place { parts: parts.to_vec(), what: describe(kernel, stmt) }
    }
}

/// A type's name in sentences.
pub fn type_name(ty: Ty) -> &'static str {
    match ty {
        Ty::F32 => "f32",
        Ty::U32 => "u32",
        Ty::I32 => "i32",
        Ty::Bool => "bool",
    }
}

/// A memory's name in sentences; a number where there is none.
pub fn memory_name(kernel: &Kernel, memory: Memory) -> String {
    let (number, name) = match memory {
        Memory::Buffer(number) => (number, kernel.buffers.get(number as usize).map(|buffer| &buffer.name)),
        Memory::Shared(number) => (number, kernel.shared.get(number as usize).map(|array| &array.name)),
        Memory::Part(number) => (number, kernel.parts.get(number as usize).map(|part| &part.name)),
        Memory::Own(number) => (number, kernel.own.get(number as usize).map(|array| &array.name)),
    };
    let kind = match memory {
        Memory::Buffer(_) => "buffer",
        Memory::Shared(_) => "shared array",
        Memory::Part(_) => "part",
        Memory::Own(_) => "own array",
    };
    name.map_or_else(|| format!("{kind} {number}"), |name| format!("{kind} `{name}`"))
}

/// What a statement is, in a few words.
fn describe(kernel: &Kernel, stmt: &Stmt) -> String {
    let variable = |number: u32| {
        kernel.vars.get(number as usize).map_or_else(|| format!("variable {number}"), |var| format!("`{}`", var.name))
    };
    match stmt {
        Stmt::Set { var, .. } => format!("sets {}", variable(var.0)),
        Stmt::LoadMany { memory, .. } => format!("loads from {}", memory_name(kernel, *memory)),
        Stmt::Multiply { .. } => "multiplies".into(),
        Stmt::Store { memory, .. } => format!("stores to {}", memory_name(kernel, *memory)),
        Stmt::For { var, .. } => format!("loop over {}", variable(var.0)),
        Stmt::If { .. } => "branch".into(),
        Stmt::Barrier => "barrier".into(),
        Stmt::Fault { buffer, .. } => format!("fault in {}", memory_name(kernel, Memory::Buffer(*buffer))),
        Stmt::Routine { .. } => "runs the routine".into(),
    }
}

/// The blocks in a statement.
pub fn blocks(stmt: &Stmt) -> impl Iterator<Item = (Block, &Vec<Stmt>)> {
    let blocks = match stmt {
        Stmt::For { body, .. } => [Some((Block::Loop, body)), None],
        Stmt::If { then, otherwise, .. } => [Some((Block::Then, then)), Some((Block::Otherwise, otherwise))],
        _ => [None, None],
    };
    blocks.into_iter().flatten()
}

/// The expressions of a statement, without those of statements in it.
pub fn roots(stmt: &Stmt) -> impl Iterator<Item = &Expr> {
    let (many, more): (&[Expr], &[Expr]) = match stmt {
        Stmt::Routine { operands, .. } => (operands, &[]),
        Stmt::Multiply { a, b, .. } => (a, b),
        _ => (&[], &[]),
    };
    let roots = match stmt {
        Stmt::Set { value, .. } => [Some(value), None, None],
        Stmt::Store { index, value, .. } => [Some(index), Some(value), None],
        Stmt::For { from, to, step, .. } => [Some(from), Some(to), Some(step)],
        Stmt::If { condition, .. } => [Some(condition), None, None],
        Stmt::Barrier | Stmt::Routine { .. } | Stmt::Multiply { .. } => [None, None, None],
        Stmt::Fault { index, .. } | Stmt::LoadMany { index, .. } => [Some(index), None, None],
    };
    roots.into_iter().flatten().chain(many).chain(more)
}

/// The operands of an expression.
pub fn operands(expr: &Expr) -> impl Iterator<Item = &Expr> {
    let many: &[Expr] = if let Kind::Call(_, operands) = expr.kind() { operands } else { &[] };
    let operands = match expr.kind() {
        Kind::Const(_) | Kind::Var(_) | Kind::Arg(_) | Kind::Thread | Kind::Group(_) | Kind::Call(..) => {
            [None, None, None]
        }
        Kind::Load(_, a) | Kind::Unary(_, a) | Kind::Bits(a) => [Some(a), None, None],
        Kind::Convert(a) | Kind::FromHalf(a) | Kind::Exchange(a, _) => [Some(a), None, None],
        Kind::Binary(_, a, b) | Kind::Pack(_, a, b) => [Some(a), Some(b), None],
        Kind::Fma(a, b, c) | Kind::Select(a, b, c) => [Some(a), Some(b), Some(c)],
    };
    operands.into_iter().flatten().chain(many)
}

/// The identity of an expression's node: two nodes that were built separately differ, even if they are equal. Valid
/// while the kernel lives.
pub fn identity(expr: &Expr) -> *const Kind {
    std::ptr::from_ref(expr.kind())
}

/// Calls `see` for every statement of the body with its path, each before the statements inside it; not for those of
/// readers.
pub fn statements<'a>(kernel: &'a Kernel, see: &mut dyn FnMut(&[Part], &'a Stmt)) {
    walk(Block::Body, &kernel.body, &mut vec![], see);
}

/// Calls `see` for every statement of the readers of the kernel's routine.
pub fn reader_statements<'a>(kernel: &'a Kernel, see: &mut dyn FnMut(&[Part], &'a Stmt)) {
    for reader in kernel.routine.iter().flat_map(|routine| &routine.readers) {
        walk(Block::Reader, &reader.body, &mut vec![], see);
    }
}

fn walk<'a>(block: Block, body: &'a [Stmt], parts: &mut Vec<Part>, see: &mut dyn FnMut(&[Part], &'a Stmt)) {
    for (index, stmt) in body.iter().enumerate() {
        parts.push(Part { block, index });
        see(parts, stmt);
        for (block, body) in blocks(stmt) {
            walk(block, body, parts, see);
        }
        parts.pop();
    }
}

/// Calls `see` once for every node of a statement's own expressions, operands first.
pub fn expressions<'a>(stmt: &'a Stmt, see: &mut dyn FnMut(&'a Expr)) {
    fn walk<'a>(expr: &'a Expr, seen: &mut HashSet<*const Kind>, see: &mut dyn FnMut(&'a Expr)) {
        if !seen.insert(identity(expr)) {
            return;
        }
        for operand in operands(expr) {
            walk(operand, seen, see);
        }
        see(expr);
    }
    let mut seen = HashSet::new();
    for root in roots(stmt) {
        walk(root, &mut seen, see);
    }
}

/// The expression with every node put through `change`, which is given the node with its operands changed already and the
/// node as it was.
pub fn rebuild(expr: &Expr, change: &mut dyn FnMut(Expr, &Expr) -> Expr) -> Expr {
    fn walk(expr: &Expr, done: &mut HashMap<*const Kind, Expr>, change: &mut dyn FnMut(Expr, &Expr) -> Expr) -> Expr {
        if let Some(known) = done.get(&identity(expr)) {
            return known.clone();
        }
        let mut go = |operand: &Expr| walk(operand, done, change);
        let kind = match expr.kind() {
            kind @ (Kind::Const(_) | Kind::Var(_) | Kind::Arg(_) | Kind::Thread | Kind::Group(_)) => kind.clone(),
            Kind::Load(memory, a) => Kind::Load(*memory, go(a)),
            Kind::Unary(op, a) => Kind::Unary(*op, go(a)),
            Kind::Binary(op, a, b) => Kind::Binary(*op, go(a), go(b)),
            Kind::Fma(a, b, c) => Kind::Fma(go(a), go(b), go(c)),
            Kind::Select(a, b, c) => Kind::Select(go(a), go(b), go(c)),
            Kind::Bits(a) => Kind::Bits(go(a)),
            Kind::Convert(a) => Kind::Convert(go(a)),
            Kind::FromHalf(a) => Kind::FromHalf(go(a)),
            Kind::Pack(halves, a, b) => Kind::Pack(*halves, go(a), go(b)),
            Kind::Exchange(a, bit) => Kind::Exchange(go(a), *bit),
            Kind::Call(function, operands) => Kind::Call(*function, operands.iter().map(go).collect()),
        };
        let new = change(Expr::new(expr.ty(), kind), expr);
        done.insert(identity(expr), new.clone());
        new
    }
    walk(expr, &mut HashMap::new(), change)
}

/// The list of statements and the number in it to which a path leads, to change the statement there.
pub fn find_mut<'a>(kernel: &'a mut Kernel, parts: &[Part]) -> Option<(&'a mut Vec<Stmt>, usize)> {
    let (last, around) = parts.split_last()?;
    let mut body = &mut kernel.body;
    for (part, next) in around.iter().zip(&parts[1..]) {
        body = match (body.get_mut(part.index)?, next.block) {
            (Stmt::For { body, .. }, Block::Loop) => body,
            (Stmt::If { then, .. }, Block::Then) => then,
            (Stmt::If { otherwise, .. }, Block::Otherwise) => otherwise,
            _ => return None,
        };
    }
    (last.index < body.len()).then_some((body, last.index))
}
