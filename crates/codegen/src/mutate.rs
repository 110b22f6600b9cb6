//! Kernels with one mistake each: a tool for tests of schedules.
//!
//! A test that runs a kernel in [`crate::interpret`] and compares its results should also notice mistakes. So it also
//! runs each of the [`mutants`] of the kernel on the same inputs, and each must either lead to a finding or to other
//! outputs. A mutant that does neither shows a barrier or a bound that the kernel does not need, or inputs that do not
//! exercise it. (A mutant can be as right as the kernel: a bound that lies beyond what the loop's step ever reaches,
//! say. The test names those.)
//!
//! ```
//! use schwann_codegen::{interpret, lang::{Maker, Ty}, mutate::mutants};
//!
//! let mut m = Maker::new("twice", 4);
//! let (x, y, n) = (m.buffer("x", false), m.buffer("y", true), m.arg("n"));
//! let i = m.name("i", m.group(0) * 4u32 + m.thread());
//! m.when(i.lt(&n), |m| {
//!     let twice = m.load(x, &i, Ty::F32) * 2.0;
//!     m.store(y, &i, twice);
//! });
//! let kernel = m.finish();
//!
//! let run = |kernel: &_| {
//!     let (mut x, mut y) = (interpret::Words::of_floats(&[1.0, 2.0, 3.0]), interpret::Words::new(3));
//!     interpret::run(kernel, [1, 1, 1], &[3], &mut [&mut x, &mut y], &Default::default()).map(|_| y.floats())
//! };
//! assert_eq!(run(&kernel).unwrap(), [2.0, 4.0, 6.0]);
//! for mutant in mutants(&kernel) {
//!     assert_ne!(run(&mutant.kernel), run(&kernel), "{mutant}");
//! }
//! ```

mod bounds;
#[cfg(test)]
mod tests;

use crate::lang::{Binary, Expr, Kernel, Kind, Stmt};
use crate::visit::{Part, Place, expressions, find_mut, identity, rebuild, statements};
pub use bounds::bounds;
use std::fmt;

/// A kind of mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// A barrier is missing.
    BarrierDeleted,
    /// A loop's end is one more.
    EndRaised,
    /// A loop's end is one less, if it was not 0.
    EndLowered,
    /// A comparison `<` is `<=`, where it decides what is executed or which words are touched.
    ComparisonWidened,
    /// A comparison `<` is `<=`, where it only chooses between two values, or is one of floats: this changes the
    /// function that is computed, but no bound.
    ChoiceWidened,
    /// A shared array has half its elements, rounded down.
    SharedHalved,
}

/// A kernel with a mistake.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What kind of mistake.
    pub mistake: Mistake,
    /// What was changed, for people.
    pub description: String,
    /// The path to the statement that was changed; empty if an array or a part of one was changed.
    pub parts: Vec<Part>,
    /// The kernel.
    pub kernel: Kernel,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel `{}`: {}", self.kernel.name, self.description)
    }
}

/// All kernels that differ from this one in one mistake, of each kind at each place.
pub fn mutants(kernel: &Kernel) -> Vec<Mutant> {
    let mut all = vec![];
    let bounds = bounds(kernel);
    statements(kernel, &mut |parts, stmt| {
        let place = Place::new(kernel, parts, stmt);
        match stmt {
            Stmt::Barrier => all.extend(mutant(
                kernel,
                parts,
                Mistake::BarrierDeleted,
                format!("{place} is deleted"),
                |block, index| {
                    block.remove(index);
                },
            )),
            Stmt::For { to, .. } => {
                let one_less = to - to.min(1u32);
                for (mistake, end, change) in
                    [(Mistake::EndRaised, to + 1u32, "one more"), (Mistake::EndLowered, one_less, "one less")]
                {
                    let description = format!("the end of {place} is {change}");
                    all.extend(mutant(kernel, parts, mistake, description, |block, index| {
                        if let Stmt::For { to, .. } = &mut block[index] {
                            *to = end;
                        }
                    }));
                }
            }
            _ => (),
        }
        let mut comparisons = vec![];
        expressions(stmt, &mut |expr| {
            if matches!(expr.kind(), Kind::Binary(Binary::Lt, ..)) {
                comparisons.push(expr);
            }
        });
        for (number, comparison) in comparisons.into_iter().enumerate() {
            let description = format!("`<` number {number} of {place} is `<=`");
            let bound = bounds.contains(&identity(comparison));
            let mistake = if bound { Mistake::ComparisonWidened } else { Mistake::ChoiceWidened };
            all.extend(mutant(kernel, parts, mistake, description, |block, index| {
                widen(&mut block[index], comparison);
            }));
        }
    });
    for (number, array) in kernel.shared.iter().enumerate().filter(|(_, array)| array.len > 1) {
        let mut halved = kernel.clone();
        halved.shared[number].len /= 2;
        let description = format!("the shared array `{}` has {} elements", array.name, array.len / 2);
        all.push(Mutant { mistake: Mistake::SharedHalved, description, parts: vec![], kernel: halved });
    }
    for (number, part) in kernel.parts.iter().enumerate().filter(|(_, part)| part.len > 1) {
        let mut halved = kernel.clone();
        halved.parts[number].len /= 2;
        let description = format!("the part `{}` has {} elements", part.name, part.len / 2);
        all.push(Mutant { mistake: Mistake::SharedHalved, description, parts: vec![], kernel: halved });
    }
    all
}

/// The kernel with a change at a statement, which is given as its block and its number there.
fn mutant(
    kernel: &Kernel,
    parts: &[Part],
    mistake: Mistake,
    description: String,
    change: impl FnOnce(&mut Vec<Stmt>, usize),
) -> Option<Mutant> {
    let mut kernel = kernel.clone();
    let (block, index) = find_mut(&mut kernel, parts)?;
    change(block, index);
    Some(Mutant { mistake, description, parts: parts.to_vec(), kernel })
}

/// Changes a comparison of a statement to `<=`, given by its node. A copy of a kernel has the same nodes.
fn widen(stmt: &mut Stmt, comparison: &Expr) {
    let node = identity(comparison);
    let change = |expr: &mut Expr| {
        *expr = rebuild(expr, &mut |new, old| match new.kind() {
            Kind::Binary(Binary::Lt, a, b) if identity(old) == node => {
                Expr::new(new.ty(), Kind::Binary(Binary::Le, a.clone(), b.clone()))
            }
            _ => new,
        });
    };
    match stmt {
        Stmt::Set { value, .. } => change(value),
        Stmt::LoadMany { index, .. } => change(index),
        Stmt::Multiply { a, b, .. } => a.iter_mut().chain(b).for_each(change),
        Stmt::Store { index, value, .. } => [index, value].into_iter().for_each(change),
        Stmt::For { from, to, step, .. } => [from, to, step].into_iter().for_each(change),
        Stmt::If { condition, .. } => change(condition),
        Stmt::Barrier => (),
        Stmt::Fault { index, .. } => change(index),
        Stmt::Routine { operands, .. } => operands.iter_mut().for_each(change),
    }
}
