//! Which comparisons are bounds: those that decide what a thread executes, or which words of memory it touches.
//!
//! Any other comparison chooses between two values that are both computed (a function's, mostly), and so does one of floats,
//! wherever it stands: no bound is a float.

use crate::lang::{Binary, Expr, Kernel, Kind, Stmt, Ty, Var};
use crate::visit::{expressions, identity, operands, statements};
use std::collections::{HashMap, HashSet};

/// The comparisons `<` that decide what a thread executes or which words it touches, by their nodes
/// ([`crate::visit::identity`]). All others choose between values.
pub fn bounds(kernel: &Kernel) -> HashSet<*const Kind> {
    let mut sets: HashMap<Var, Vec<&Expr>> = HashMap::new();
    let mut open: Vec<&Expr> = vec![];
    statements(kernel, &mut |_, stmt| {
        match stmt {
            Stmt::Set { var, value } => sets.entry(*var).or_default().push(value),
            Stmt::Store { index, .. } | Stmt::Fault { index, .. } | Stmt::LoadMany { index, .. } => open.push(index),
            Stmt::For { from, to, step, .. } => open.extend([from, to, step]),
            Stmt::If { condition, .. } => open.push(condition),
            Stmt::Barrier | Stmt::Multiply { .. } => (),
            Stmt::Routine { operands, .. } => open.extend(operands),
        }
        expressions(stmt, &mut |expr| {
            if let Kind::Load(_, index) = expr.kind() {
                open.push(index);
            }
        });
    });
    let of_floats = of_floats(&sets);
    let mut seen = HashSet::new();
    let mut found = HashSet::new();
    while let Some(expr) = open.pop() {
        // No bound is made of a float.
        if !seen.insert(identity(expr)) || expr.ty() == Ty::F32 {
            continue;
        }
        match expr.kind() {
            Kind::Var(var) => open.extend(sets.get(var).into_iter().flatten()),
            Kind::Binary(Binary::Lt, a, b) if ![a, b].iter().any(|e| is_of_float(e, &of_floats)) => {
                found.insert(identity(expr));
            }
            _ => (),
        }
        // A value in memory was computed elsewhere; its index is visited on its own.
        if !matches!(expr.kind(), Kind::Load(..)) {
            open.extend(operands(expr));
        }
    }
    found
}

/// Variables that are made of a float.
fn of_floats(sets: &HashMap<Var, Vec<&Expr>>) -> HashSet<Var> {
    let mut found = HashSet::new();
    loop {
        let more: Vec<Var> = (sets.iter())
            .filter(|(var, values)| !found.contains(*var) && values.iter().any(|value| is_of_float(value, &found)))
            .map(|(var, _)| *var)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Whether a value is a float, or made of one.
fn is_of_float(expr: &Expr, vars: &HashSet<Var>) -> bool {
    let (mut open, mut seen) = (vec![expr], HashSet::new());
    while let Some(expr) = open.pop() {
        if expr.ty() == Ty::F32 || matches!(expr.kind(), Kind::Var(var) if vars.contains(var)) {
            return true;
        }
        if seen.insert(identity(expr)) && !matches!(expr.kind(), Kind::Load(..)) {
            open.extend(operands(expr));
        }
    }
    false
}
