//! Mistakes in kernels, and who noticed them.
//!
//! **A schedule** is what a kernel does apart from its arithmetic: its loops and branches, barriers, stores, and which shared
//! arrays it reads and writes in between, in order. Kernels that differ only in numbers (sizes, lengths of arrays, threads)
//! or in the arithmetic between are one schedule, and what one of them notices counts for all: a row of one element needs
//! no barrier, and a product of one tile no second round, but the schedule does.
//!
//! **A mistake is noticed** if a dispatch with it ends in a finding, or leaves any word of any buffer other than the right
//! kernel does, or known where it is not.

pub(crate) mod graphs;

use crate::interpreted::Ran;
use schwann_codegen::interpret::{Options, Program, Words};
use schwann_codegen::lang::{Expr, Kernel, Kind, Memory, Stmt};
use schwann_codegen::mutate::{Mistake, Mutant, bounds, mutants};
use schwann_codegen::visit::{expressions, find_mut, identity};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;

/// All schedules that were seen, and the mistakes in each.
#[derive(Default)]
pub(crate) struct Ledger {
    schedules: BTreeMap<String, Vec<Entry>>,
    /// The schedules of kernels.
    known: HashMap<Arc<Kernel>, String>,
    /// How many dispatches with a mistake were run.
    pub(crate) runs: usize,
}

struct Entry {
    mistake: Mistake,
    noticed: bool,
    /// The cases that did not notice it.
    missed_by: Vec<String>,
}

impl Ledger {
    fn schedule(&mut self, kernel: &Arc<Kernel>) -> String {
        let known = self.known.entry(Arc::clone(kernel));
        known.or_insert_with(|| schedule(kernel)).clone()
    }

    /// Whether all mistakes in a kernel's schedule have been noticed.
    pub(crate) fn is_done(&mut self, kernel: &Arc<Kernel>) -> bool {
        let schedule = self.schedule(kernel);
        self.schedules.get(&schedule).is_some_and(|entries| entries.iter().all(|entry| entry.noticed))
    }

    /// Runs a dispatch again with each mistake that nobody has noticed yet.
    pub(crate) fn try_mistakes(&mut self, case: &str, ran: &Ran<'_>) {
        if self.is_done(ran.kernel) {
            return;
        }
        let schedule = self.schedule(ran.kernel);
        let all: Vec<Mutant> = mutants(ran.kernel).into_iter().filter(makes_a_difference).collect();
        let entries = self.schedules.entry(schedule).or_insert_with(|| {
            let entry = |mutant: &Mutant| Entry { mistake: mutant.mistake, noticed: false, missed_by: vec![] };
            all.iter().map(entry).collect()
        });
        assert_eq!(entries.len(), all.len(), "{case}: kernels of one schedule have the same mistakes");
        for (entry, mutant) in entries.iter_mut().zip(&all).filter(|(entry, _)| !entry.noticed) {
            assert_eq!(entry.mistake, mutant.mistake, "{case}: kernels of one schedule have the same mistakes");
            self.runs += 1;
            entry.noticed = is_noticed(&mutant.kernel, ran);
            let told = format!("{case}: {mutant}");
            if !entry.noticed && entry.missed_by.last() != Some(&told) {
                entry.missed_by.push(told);
            }
        }
    }

    /// How many schedules there are, and how many mistakes in them.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.schedules.len(), self.schedules.values().map(Vec::len).sum())
    }

    /// Mistakes that nobody noticed: what they are, and the first and the last case that had them.
    pub(crate) fn missed(&self) -> Vec<(Mistake, String)> {
        let entries = self.schedules.values().flatten().filter(|entry| !entry.noticed);
        let told = |entry: &Entry| {
            let [first, .., last] = &entry.missed_by[..] else { return entry.missed_by.concat() };
            format!("{first}\n    … {last}")
        };
        entries.map(|entry| (entry.mistake, told(entry))).collect()
    }
}

/// Whether a mutant can compute anything else than its kernel. It cannot, for these reasons:
///
/// * It widens a comparison that only chooses between values: both are computed, and where operands are equal, a function
///   like `max` gives the same from either. Such comparisons are no bounds, and tests of the functions are for them.
/// * It raises the end of a loop over tiles, which begins at 0 in all threads and goes by steps of more than one. If the
///   end is not a multiple of the step, there is no further round; if it is, the further round finds that all its elements
///   are beyond the end, and they count as 0 or are not looked at.
/// * It lets one more workgroup work on a loop by blocks of several rows: that one finds that all its rows are beyond the
///   last, as some rows of the last block may be. (The right kernel saves it the time.) Likewise with sums by segment, of
///   which a workgroup has some hundreds.
/// * It goes through one more part of a sequence that a kernel of few rows takes part by part: that one has no steps. Or it
///   sets one word more or less to 0 of those that it reads where nothing was computed yet, and whose value does not matter.
fn makes_a_difference(mutant: &Mutant) -> bool {
    let named = |name: &str| {
        let mut kernel = mutant.kernel.clone();
        let var = find_mut(&mut kernel, &mutant.parts).and_then(|(block, index)| match block.get(index) {
            Some(Stmt::For { var, .. }) => Some(var.0 as usize),
            _ => None,
        });
        var.is_some_and(|var| kernel.vars[var].name == name)
    };
    match mutant.mistake {
        Mistake::EndRaised | Mistake::EndLowered if named("filled") => false,
        Mistake::EndRaised if named("part") => false,
        Mistake::ChoiceWidened => false,
        Mistake::EndRaised => {
            let mut kernel = mutant.kernel.clone();
            let Some((block, index)) = find_mut(&mut kernel, &mutant.parts) else { return true };
            let Stmt::For { from, step, .. } = &block[index] else { return true };
            !(from.as_const() == Some(0) && step.as_const().is_some_and(|step| step > 1))
        }
        Mistake::ComparisonWidened => {
            // A block of one row needs no names for its rows.
            let several_rows = mutant.kernel.vars.iter().any(|var| var.name == "to_row");
            let segments = mutant.kernel.name == "segment_sum" && !mutant.kernel.shared.is_empty();
            !(mutant.parts.len() == 1 && (mutant.kernel.name == "scan" && several_rows || segments))
        }
        _ => true,
    }
}

/// Whether a dispatch shows that its kernel is not the right one.
fn is_noticed(kernel: &Kernel, ran: &Ran<'_>) -> bool {
    let Ok(program) = Program::new(kernel) else { return true };
    let mut buffers = ran.before.clone();
    let [a, b, c] = &mut buffers;
    let options = Options { statements: 1 << 24 };
    if program.run(ran.groups, ran.args, &mut [a, b, c], &options).is_err() {
        return true;
    }
    let differ = |a: &Words, b: &Words| {
        (0..a.len()).any(|i| a.is_known(i) != b.is_known(i) || a.is_known(i) && a.values()[i] != b.values()[i])
    };
    buffers.iter().zip(ran.after).any(|(a, b)| differ(a, b))
}

/// A kernel's schedule as a text.
fn schedule(kernel: &Kernel) -> String {
    let mut text = kernel.name.clone();
    for len in kernel.shared.iter().map(|array| array.len).chain(kernel.parts.iter().map(|part| part.len)) {
        text.push_str(if len > 1 { " array" } else { " word" });
    }
    block(kernel, &kernel.body, &bounds(kernel), &mut text);
    text
}

fn block(kernel: &Kernel, body: &[Stmt], bounds: &HashSet<*const Kind>, text: &mut String) {
    text.push_str(" {");
    for stmt in body {
        // Shared arrays that are read, and bounds that are looked at, in order.
        expressions(stmt, &mut |expr: &Expr| match expr.kind() {
            Kind::Load(memory @ (Memory::Shared(_) | Memory::Part(_)), _) => put(text, format_args!(" {memory:?}")),
            _ if bounds.contains(&identity(expr)) => text.push_str(" <"),
            _ => {}
        });
        match stmt {
            Stmt::Set { .. } => {}
            Stmt::LoadMany { memory, .. } => put(text, format_args!(" {memory:?}")),
            Stmt::Multiply { .. } => text.push_str(" product"),
            Stmt::Store { memory, .. } => put(text, format_args!(" = {memory:?}")),
            Stmt::For { var, from, step, body, .. } => {
                let dealt = if from.as_const() == Some(0) { "" } else { " dealt" };
                let steps = if step.as_const() == Some(1) { "" } else { " by steps" };
                put(text, format_args!(" for {}{dealt}{steps}", kernel.vars[var.0 as usize].name));
                block(kernel, body, bounds, text);
            }
            Stmt::If { then, otherwise, .. } => {
                let mut inside = String::new();
                block(kernel, then, bounds, &mut inside);
                block(kernel, otherwise, bounds, &mut inside);
                // A branch that only sets variables is arithmetic.
                if inside != " { } { }" {
                    put(text, format_args!(" if{inside}"));
                }
            }
            Stmt::Barrier => text.push_str(" barrier"),
            Stmt::Fault { .. } => text.push_str(" fault"),
            Stmt::Routine { .. } => text.push_str(" routine"),
        }
    }
    text.push_str(" }");
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a text takes everything");
}
