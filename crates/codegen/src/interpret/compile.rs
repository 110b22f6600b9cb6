//! A kernel as a list of vector instructions.
//!
//! A slot is a vector with a word for each thread. Variables, arguments and numbers have slots, so every operand is
//! one. Each instruction of a statement writes to a slot of its own.

use super::{Program, Traffic};
use crate::lang::{Binary, Expr, Half, Kernel, Kind, Memory, Stmt, Ty, Unary};
use crate::visit::{Block, Part, Place, expressions, identity, reader_statements, statements};
use std::collections::HashMap;

/// An instruction.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The slot that it writes to, which it does not read.
    pub(super) to: usize,
    pub(super) op: Op,
}

/// What an instruction does; operands are slots.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Copy(usize),
    /// The element so many after an index, which is a multiple of the second number.
    Load(Memory, usize, [u32; 2]),
    Unary(Unary, Ty, usize),
    Binary(Binary, Ty, usize, usize),
    Fma(usize, usize, usize),
    Select(usize, usize, usize),
    /// From one type to another.
    Convert(Ty, Ty, usize),
    /// A function of the kernel, by number.
    Call(usize, Vec<usize>),
    FromHalf(usize),
    /// The operand of the thread whose number differs in this bit.
    Exchange(usize, u32),
    Pack(Half, usize, usize),
}

/// A statement: first the values that it needs, and then what it does with them.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) steps: Vec<Step>,
    pub(super) tally: Tally,
    pub(super) action: Action,
    pub(super) place: Place,
}

/// What a statement does; operands are slots.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// `spare` says that nothing else reads the value's slot.
    Set {
        var: usize,
        value: usize,
        spare: bool,
    },
    /// Copies values that this statement loaded.
    SetMany {
        vars: Vec<usize>,
        values: Vec<usize>,
    },
    Multiply {
        halves: Half,
        sums: [usize; 4],
        a: [usize; 4],
        b: [usize; 2],
    },
    Store {
        memory: Memory,
        index: usize,
        value: usize,
    },
    For {
        var: usize,
        from: usize,
        to: usize,
        step: usize,
        body: Vec<Line>,
    },
    If {
        condition: usize,
        then: Vec<Line>,
        otherwise: Vec<Line>,
    },
    Barrier,
    Fault {
        buffer: usize,
        index: usize,
    },
    Routine {
        operands: Vec<usize>,
        results: Vec<usize>,
    },
}

/// The work of each thread that executes a statement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) operations: u64,
    pub(super) fmas: u64,
    pub(super) functions: u64,
    pub(super) buffer: Traffic,
    pub(super) shared: Traffic,
    pub(super) own: Traffic,
}

impl Tally {
    fn traffic(&mut self, memory: Memory) -> &mut Traffic {
        match memory {
            Memory::Buffer(_) => &mut self.buffer,
            Memory::Shared(_) | Memory::Part(_) => &mut self.shared,
            Memory::Own(_) => &mut self.own,
        }
    }
}

/// The program of a kernel that was checked.
pub(super) fn compile(kernel: &Kernel) -> Program {
    let thread = kernel.vars.len();
    let args = thread + 4;
    let mut next = args + kernel.args.len();
    let mut consts = HashMap::new();
    let mut see = |_: &[Part], stmt: &Stmt| {
        expressions(stmt, &mut |expr| {
            if let Kind::Const(bits) = expr.kind() {
                consts.entry(*bits).or_insert_with(|| {
                    next += 1;
                    next - 1
                });
            }
        });
    };
    statements(kernel, &mut see);
    reader_statements(kernel, &mut see);
    let mut compiler = Compiler {
        kernel,
        thread,
        args,
        consts,
        next,
        slots: next,
        known: HashMap::new(),
        steps: vec![],
        tally: Tally::default(),
        parts: vec![],
    };
    let body = compiler.block(Block::Body, &kernel.body);
    // Readers run while a statement of the body does, so they have slots of their own.
    compiler.next = compiler.slots;
    let readers = kernel.routine.iter().flat_map(|routine| &routine.readers);
    let readers = readers.map(|reader| compiler.block(Block::Reader, &reader.body)).collect();
    Program {
        kernel: kernel.clone(),
        slots: compiler.slots,
        numbers: [thread, thread + 1, thread + 2, thread + 3],
        args,
        consts: compiler.consts.into_iter().map(|(bits, slot)| (slot, bits)).collect(),
        readers,
        body,
    }
}

struct Compiler<'a> {
    kernel: &'a Kernel,
    /// The slot of the thread's number; those of the workgroup's numbers follow.
    thread: usize,
    /// The slot of the first argument.
    args: usize,
    /// The slots of numbers, by their bits.
    consts: HashMap<u32, usize>,
    /// The first slot that is free in this statement.
    next: usize,
    /// How many slots there are in all.
    slots: usize,
    /// The slots of this statement's nodes.
    known: HashMap<*const Kind, usize>,
    steps: Vec<Step>,
    tally: Tally,
    parts: Vec<Part>,
}

impl Compiler<'_> {
    fn block(&mut self, block: Block, body: &[Stmt]) -> Vec<Line> {
        let before = self.next;
        let mut lines = Vec::with_capacity(body.len());
        for (index, stmt) in body.iter().enumerate() {
            self.parts.push(Part { block, index });
            lines.push(self.line(stmt));
            self.parts.pop();
            self.next = before;
        }
        lines
    }

    fn line(&mut self, stmt: &Stmt) -> Line {
        self.known.clear();
        let place = Place::new(self.kernel, &self.parts, stmt);
        let free = self.next;
        let mut action = match stmt {
            Stmt::Set { var, value } => {
                let value = self.value(value);
                Action::Set { var: var.0 as usize, value, spare: value >= free }
            }
            Stmt::LoadMany { vars, memory, index } => {
                let (index, count) = (self.value(index), vars.len() as u32);
                self.tally.traffic(*memory).loads += u64::from(count);
                let values = (0..count).map(|after| self.step(Op::Load(*memory, index, [after, count]))).collect();
                Action::SetMany { vars: vars.iter().map(|var| var.0 as usize).collect(), values }
            }
            Stmt::Multiply { halves, sums, a, b } => {
                // 2048 products by 32 threads.
                self.tally.operations += 64;
                self.tally.fmas += 64;
                let (a, b) = (a.each_ref().map(|e| self.value(e)), b.each_ref().map(|e| self.value(e)));
                Action::Multiply { halves: *halves, sums: sums.map(|var| var.0 as usize), a, b }
            }
            Stmt::Store { memory, index, value } => {
                self.tally.traffic(*memory).stores += 1;
                Action::Store { memory: *memory, index: self.value(index), value: self.value(value) }
            }
            Stmt::For { var, from, to, step, .. } => {
                let from = self.value(from);
                // The end and the step are computed once; the body may change variables that they were computed from.
                let (to, step) = (self.kept(to), self.kept(step));
                Action::For { var: var.0 as usize, from, to, step, body: vec![] }
            }
            Stmt::If { condition, .. } => {
                Action::If { condition: self.value(condition), then: vec![], otherwise: vec![] }
            }
            Stmt::Barrier => Action::Barrier,
            Stmt::Fault { buffer, index } => {
                self.tally.buffer.stores += 1;
                Action::Fault { buffer: *buffer as usize, index: self.value(index) }
            }
            Stmt::Routine { operands, results } => {
                self.tally.operations += 1;
                self.tally.functions += 1;
                let operands = operands.iter().map(|operand| self.value(operand)).collect();
                Action::Routine { operands, results: results.iter().map(|var| var.0 as usize).collect() }
            }
        };
        let (steps, tally) = (std::mem::take(&mut self.steps), std::mem::take(&mut self.tally));
        match (&mut action, stmt) {
            (Action::For { body: lines, .. }, Stmt::For { body, .. }) => *lines = self.block(Block::Loop, body),
            (Action::If { then: yes, otherwise: no, .. }, Stmt::If { then, otherwise, .. }) => {
                *yes = self.block(Block::Then, then);
                *no = self.block(Block::Otherwise, otherwise);
            }
            _ => (),
        }
        Line { steps, tally, action, place }
    }

    /// The slot of a value that must not change while a loop runs.
    fn kept(&mut self, expr: &Expr) -> usize {
        let slot = self.value(expr);
        if slot < self.kernel.vars.len() { self.step(Op::Copy(slot)) } else { slot }
    }

    fn step(&mut self, op: Op) -> usize {
        let to = self.next;
        self.next += 1;
        self.slots = self.slots.max(self.next);
        self.steps.push(Step { to, op });
        to
    }

    /// The slot of an expression's value.
    fn value(&mut self, expr: &Expr) -> usize {
        if let Some(slot) = self.known.get(&identity(expr)) {
            return *slot;
        }
        let op = match expr.kind() {
            Kind::Const(bits) => return self.consts[bits],
            Kind::Var(var) => return var.0 as usize,
            Kind::Arg(number) => return self.args + *number as usize,
            Kind::Thread => return self.thread,
            Kind::Group(axis) => return self.thread + 1 + usize::from(*axis),
            Kind::Bits(a) => return self.value(a),
            Kind::Load(memory, index) => {
                self.tally.traffic(*memory).loads += 1;
                Op::Load(*memory, self.value(index), [0, 1])
            }
            Kind::Unary(op, a) => {
                self.tally.operations += 1;
                self.tally.functions += u64::from(matches!(op, Unary::Sqrt | Unary::Exp2 | Unary::Recip | Unary::Tanh));
                Op::Unary(*op, a.ty(), self.value(a))
            }
            Kind::Binary(op, a, b) => {
                self.tally.operations += 1;
                self.tally.functions += u64::from(*op == Binary::Div && a.ty() == Ty::F32);
                Op::Binary(*op, a.ty(), self.value(a), self.value(b))
            }
            Kind::Fma(a, b, c) => {
                self.tally.operations += 1;
                self.tally.fmas += 1;
                Op::Fma(self.value(a), self.value(b), self.value(c))
            }
            Kind::Select(condition, a, b) => {
                self.tally.operations += 1;
                Op::Select(self.value(condition), self.value(a), self.value(b))
            }
            Kind::Convert(a) => {
                self.tally.operations += 1;
                Op::Convert(a.ty(), expr.ty(), self.value(a))
            }
            Kind::Call(function, operands) => {
                self.tally.operations += 1;
                self.tally.functions += 1;
                Op::Call(*function as usize, operands.iter().map(|operand| self.value(operand)).collect())
            }
            Kind::FromHalf(a) => {
                self.tally.operations += 1;
                Op::FromHalf(self.value(a))
            }
            Kind::Pack(halves, a, b) => {
                self.tally.operations += 1;
                Op::Pack(*halves, self.value(a), self.value(b))
            }
            Kind::Exchange(a, bit) => {
                self.tally.operations += 1;
                Op::Exchange(self.value(a), *bit)
            }
        };
        let slot = self.step(op);
        self.known.insert(identity(expr), slot);
        slot
    }
}
