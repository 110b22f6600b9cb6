//! What a workgroup of a loop's kernel takes, for people who ask why the device is not busier.

use super::block::{BLOCK_ROWS_MOST, Block};
use super::resident::Resident;
use crate::lower::{Lowering, Pend};
use schwann_codegen::lang::Stmt;
use schwann_core::plan::{RowsLimit, Workgroup};

impl Lowering<'_> {
    /// What a workgroup takes of the loop that was dispatched last, for a batch of so many rows.
    pub(super) fn workgroup(&self, block: &Block, resident: &Resident, batch: usize) -> Workgroup {
        let rows_limit = if batch < 2 * self.limits.parallel_groups as usize {
            RowsLimit::Batch
        } else if block.rows >= BLOCK_ROWS_MOST {
            RowsLimit::Enough
        } else {
            RowsLimit::Memory
        };
        let last = self.open.last().and_then(|list| list.last());
        let kernel = match last {
            Some(Pend::Dispatch { kernel, .. }) => self.kernels.get(*kernel),
            _ => None,
        };
        Workgroup {
            threads: block.threads as usize,
            memory_bytes: 4 * (block.words + resident.words) as usize,
            memory_most_bytes: self.limits.shared_bytes as usize,
            weight_bytes: 4 * resident.all_words as usize,
            resident_bytes: 4 * resident.words as usize,
            register_bytes: 0,
            rows: block.rows as usize,
            rows_limit,
            barriers: kernel.map_or(0, |kernel| in_loops(&kernel.body)),
        }
    }
}

/// Barriers in loops: those that are met again in each step.
fn in_loops(body: &[Stmt]) -> usize {
    let inside = |stmt: &Stmt| match stmt {
        Stmt::For { body, .. } => all(body),
        Stmt::If { then, otherwise, .. } => in_loops(then) + in_loops(otherwise),
        _ => 0,
    };
    body.iter().map(inside).sum()
}

fn all(body: &[Stmt]) -> usize {
    let count = |stmt: &Stmt| match stmt {
        Stmt::Barrier => 1,
        Stmt::For { body, .. } => all(body),
        Stmt::If { then, otherwise, .. } => all(then) + all(otherwise),
        _ => 0,
    };
    body.iter().map(count).sum()
}
