//! Checks that for each barrier, and each exchange of values between threads, either all threads of a workgroup reach it or
//! none does.
//!
//! A value is uniform if all threads of a workgroup have the same one: numbers, arguments, the workgroup's number, what
//! is loaded at a uniform index from a buffer that the kernel does not write, and what is computed of these. A variable
//! is uniform if each value that it gets is, and all threads take part in setting it. At first all variables are
//! assumed to be uniform, and those that turn out not to be are removed until no more are found. The rest is the
//! largest consistent set, so a sum that is carried through a loop stays uniform.

use super::{Problem, Wrong};
use crate::lang::{Expr, Kernel, Kind, Memory, Stmt};
use crate::visit::{Block, Part, Place, expressions, identity, operands};
use std::collections::HashMap;

pub(super) fn check(kernel: &Kernel) -> Result<(), Problem> {
    let uniform = vec![true; kernel.vars.len()];
    let mut walk = Walk { kernel, uniform, changed: false, known: HashMap::new(), parts: vec![], parted: None };
    loop {
        walk.changed = false;
        walk.parted = None;
        walk.known.clear();
        walk.block(Block::Body, &kernel.body, None);
        if !walk.changed {
            break;
        }
    }
    match walk.parted {
        None => Ok(()),
        Some((place, around)) => {
            Err(Problem { kernel: kernel.name.clone(), place: Some(place), wrong: Box::new(Wrong::Parted { around }) })
        }
    }
}

/// The path to a statement, and the statement.
type Around<'a> = (&'a [Part], &'a Stmt);

struct Walk<'a> {
    kernel: &'a Kernel,
    /// For each variable, whether it is still assumed to be uniform.
    uniform: Vec<bool>,
    changed: bool,
    /// Whether nodes are uniform; cleared when a variable is removed.
    known: HashMap<*const Kind, bool>,
    parts: Vec<Part>,
    /// The first barrier or exchange that not all threads may reach, and the statement where they diverge.
    parted: Option<(Place, Place)>,
}

/// Whether a statement exchanges values between threads.
fn exchanges(stmt: &Stmt) -> bool {
    let mut found = false;
    expressions(stmt, &mut |expr| found |= matches!(expr.kind(), Kind::Exchange(..)));
    found
}

impl Walk<'_> {
    fn block(&mut self, block: Block, body: &[Stmt], around: Option<Around<'_>>) {
        for (index, stmt) in body.iter().enumerate() {
            self.parts.push(Part { block, index });
            let together = matches!(stmt, Stmt::Barrier | Stmt::Multiply { .. }) || exchanges(stmt);
            if let (true, Some((parts, parting)), None) = (together, around, &self.parted) {
                let place = Place::new(self.kernel, &self.parts, stmt);
                self.parted = Some((place, Place::new(self.kernel, parts, parting)));
            }
            match stmt {
                Stmt::Set { var, value } => {
                    if around.is_some() || !self.same(value) {
                        self.strike(var.0);
                    }
                }
                Stmt::For { var, from, to, step, body } => {
                    let same = self.same(from) & self.same(to) & self.same(step);
                    if around.is_some() || !same {
                        self.strike(var.0);
                    }
                    let parts = self.parts.clone();
                    let here = if same { None } else { Some((&parts[..], stmt)) };
                    self.block(Block::Loop, body, around.or(here));
                }
                Stmt::If { condition, then, otherwise } => {
                    let same = self.same(condition);
                    let parts = self.parts.clone();
                    let here = if same { None } else { Some((&parts[..], stmt)) };
                    self.block(Block::Then, then, around.or(here));
                    self.block(Block::Otherwise, otherwise, around.or(here));
                }
                Stmt::Routine { results, .. } => results.iter().for_each(|var| self.strike(var.0)),
                Stmt::Multiply { sums, .. } => sums.iter().for_each(|var| self.strike(var.0)),
                Stmt::LoadMany { vars, memory, index } => {
                    let known =
                        matches!(memory, Memory::Buffer(buffer) if !self.kernel.buffers[*buffer as usize].written);
                    if around.is_some() || !known || !self.same(index) {
                        vars.iter().for_each(|var| self.strike(var.0));
                    }
                }
                Stmt::Barrier | Stmt::Store { .. } | Stmt::Fault { .. } => (),
            }
            self.parts.pop();
        }
    }

    fn strike(&mut self, var: u32) {
        if std::mem::replace(&mut self.uniform[var as usize], false) {
            self.changed = true;
            self.known.clear();
        }
    }

    /// Whether all threads have the same value of this.
    fn same(&mut self, expr: &Expr) -> bool {
        if let Some(known) = self.known.get(&identity(expr)) {
            return *known;
        }
        let here = match expr.kind() {
            Kind::Thread => false,
            Kind::Var(var) => self.uniform[var.0 as usize],
            Kind::Load(Memory::Buffer(buffer), _) => !self.kernel.buffers[*buffer as usize].written,
            Kind::Load(Memory::Shared(_) | Memory::Part(_) | Memory::Own(_), _) => false,
            _ => true,
        };
        let same = here && operands(expr).all(|operand| self.same(operand));
        self.known.insert(identity(expr), same);
        same
    }
}
