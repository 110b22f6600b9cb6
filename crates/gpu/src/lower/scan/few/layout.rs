//! Where the values of a loop's steps are in shared memory, in a kernel of few rows.
//!
//! Each step has words of its own, one after the other: those of all its values. So nothing is written over before a whole part
//! of the sequence is done, threads wait only for what they read, and what the last steps made is there for what comes behind.
//!
//! ```text
//! step words     x       h       a      y
//! 0   state   ┌───────┬───────┬──────┬──────┐
//! 1           │ x[0]  │ h     │ a[0] │ y[0] │   a value begins at a multiple of four words, and those
//! 2           │ x[1]  │ h[0]  │ a[1] │ y[1] │   that nothing is written to are 0: so a product can read
//! …           │ …     │ h[1]  │ …    │ …    │   four words at a time
//! ```
//!
//! What a product reads as one lies in one row where that is possible: its state from the step before is one row further on.
//! What is of level n in the wave, is n rows further on.

use super::order::{Task, When};
use super::values::{Piece, Pieces};
use crate::lower::scan::block::Block;
use schwann_core::Value;
use schwann_core::op::Scan;
use std::collections::HashMap;

/// Places of values.
pub(super) struct Places {
    /// Where a value begins among the words of a step.
    at: HashMap<Value, u32>,
    /// How many rows further on than the inputs of a step a value is: 0 of what is known ahead.
    late: HashMap<Value, u32>,
    /// Words of a row, and where in it four words are always 0.
    pub(super) stride: u32,
    pub(super) zero: u32,
    /// Ticks that the wave takes beyond the steps.
    pub(super) levels: u32,
}

impl Places {
    pub(super) fn of(block: &Block, scan: &Scan, pieces: &Pieces, tasks: &[Task]) -> Places {
        let graph = &block.body.body;
        let levels = tasks.iter().map(|task| task.level).max().unwrap_or(0);
        let mut places = Places { at: HashMap::new(), late: HashMap::new(), stride: 0, zero: 0, levels };
        let chain = || tasks.iter().filter(|task| task.when == When::Chain);
        for task in chain() {
            for slot in 0..graph.nodes()[task.id as usize].outs.len() as u16 {
                places.late.insert(Value { node: task.id, slot }, task.level + 1);
            }
        }
        // What the chain reads together is put together.
        let mut by_level: Vec<&Task> = chain().collect();
        by_level.sort_by_key(|task| (task.level, task.phase));
        let inputs = |task: &Task| graph.nodes()[task.id as usize].inputs.clone();
        let mut order: Vec<Value> = vec![];
        for value in by_level.iter().flat_map(|task| inputs(task)) {
            order.extend(pieces.get(value).iter().map(|piece| piece.value));
        }
        let sequences = graph.inputs().skip(scan.states).take(scan.sequences).map(|(_, value)| value);
        order.extend(sequences.filter(|value| block.is_needed(*value)));
        for task in tasks {
            let outs = graph.nodes()[task.id as usize].outs.len() as u16;
            order.extend((0..outs).map(|slot| Value { node: task.id, slot }));
        }
        let mut end = 0u32;
        for value in order {
            let Some(width) = block.widths.get(&value) else { continue };
            places.at.entry(value).or_insert_with(|| {
                let at = end;
                end = end.saturating_add(width.next_multiple_of(4));
                at
            });
        }
        places.zero = end;
        places.stride = end.saturating_add(4);
        places
    }

    /// Rows before those of the first step: a task of the last level begins to read there.
    pub(super) fn before(&self) -> u32 {
        self.levels + 1
    }
    /// Rows for so many steps.
    pub(super) fn rows(&self, steps: u32) -> u32 {
        steps + self.levels + self.before() + 1
    }
    /// How late a value is.
    pub(super) fn late(&self, value: Value) -> u32 {
        self.late.get(&value).copied().unwrap_or(0)
    }
    /// The word where a piece begins as a task of this level sees it, in the tick in which the first level's tasks work on
    /// step 0. Of each tick further on it is a row further on. What is ahead and behind counts steps instead, at level 0.
    pub(super) fn word(&self, piece: &Piece, level: u32) -> u32 {
        let row = self.before() + self.late(piece.value) - level - u32::from(piece.before);
        row * self.stride + self.at.get(&piece.value).copied().unwrap_or(0) + piece.first
    }
    /// The same of a whole value of this step.
    pub(super) fn whole(&self, value: Value, level: u32) -> u32 {
        self.word(&Piece { value, first: 0, len: 0, before: false }, level)
    }
    /// The words of a row that belong to no value: where they begin, and how many there are.
    pub(super) fn gaps(&self, block: &Block) -> Vec<(u32, u32)> {
        let gap = |(value, at): (&Value, &u32)| {
            let width = block.widths[value];
            (at + width, width.next_multiple_of(4) - width)
        };
        let mut gaps: Vec<(u32, u32)> = self.at.iter().map(gap).filter(|(_, len)| *len > 0).collect();
        gaps.push((self.zero, 4));
        gaps.sort_unstable();
        gaps
    }
    /// Four words that are 0, in the tick's oldest row.
    pub(super) fn zero(&self) -> u32 {
        self.zero
    }
}
