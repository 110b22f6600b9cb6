//! Which weights a workgroup copies into its own memory before the first step, and reads there in every step: matrices of
//! products and cells, and synapses. (Biases and the like are few, and a thread reads only its own.)
//!
//! Without that, weights come through the device's caches again in each step. With few rows, where a step waits for the one
//! before and nothing else is there to hide how long a read takes, the nearer memory is worth it. With more rows it is not:
//! a core should have several workgroups at a time, and they share its memory.

use super::block::Block;
use crate::lower::Lowering;
use crate::lower::synapses::Lists;
use crate::lower::view::{Home, View};
use schwann_codegen::lang::Memory;
use schwann_core::op::Scan;
use schwann_core::{DType, Dim, Op, Result, Value};
use std::collections::{BTreeMap, HashSet};

/// Steps from which on copying the weights first is worth it. A stream that comes step by step reads each weight once.
const STEPS_LEAST: usize = 4;

/// The weights of a loop, and those that stay in a workgroup's memory.
#[derive(Default)]
pub(super) struct Resident {
    /// Words of all matrices and synapses that steps read.
    pub(super) all_words: u32,
    /// Words of those that stay.
    pub(super) words: u32,
    /// Values of the body that stay: the word at which each begins, and how many it has.
    pub(super) values: BTreeMap<Value, [u32; 2]>,
    /// Likewise synapses, by the number of the node that sums over them.
    pub(super) lists: BTreeMap<u32, [u32; 2]>,
    /// Likewise synapses in the order of rows abreast.
    pub(super) orders: BTreeMap<u32, [u32; 2]>,
}

/// Something that may stay.
enum Weight {
    Value(Value),
    Lists(u32),
}

impl Lowering<'_> {
    /// Chooses what stays of the weights of a loop whose other values are placed already: the largest first, as far as there
    /// is room.
    pub(super) fn reside(
        &self,
        scan: &Scan,
        block: &Block,
        operands: &[View],
        path: &[u32],
        steps: usize,
    ) -> Result<Resident> {
        if block.abreast.is_some() {
            return Ok(self.reside_abreast(block, path));
        }
        let graph = &block.body.body;
        let matrices = matrices(block);
        let mut weights: Vec<(u32, Weight)> = vec![];
        let mut add = |value: Value, view: &View| -> Result<()> {
            let fixed = view.dims.iter().all(|dim| dim.as_fixed().is_some());
            if fixed && matrices.contains(&value) && !matches!(view.home, Home::Number(_)) && view.is_whole()? {
                let elements = self.count(&view.dims)?;
                let words = elements.div_ceil(view.per_word() as usize);
                if let (Ok(words), true) = (u32::try_from(words), elements > 0) {
                    weights.push((words, Weight::Value(value)));
                }
            }
            Ok(())
        };
        let split = scan.states + scan.sequences;
        for ((_, value), view) in graph.inputs().zip(operands).skip(split) {
            add(value, view)?;
        }
        for (id, node) in graph.nodes().iter().enumerate() {
            if matches!(node.op, Op::Const(_)) {
                add(Value { node: id as u32, slot: 0 }, &self.constants.view(path, id as u32, node)?)?;
            }
        }
        for id in 0..graph.nodes().len() as u32 {
            let needed = block.is_needed(Value { node: id, slot: 0 });
            if let Some(lists) = self.constants.lists(path, id).filter(|_| needed) {
                weights.push((lists.words - lists.destinations - 1, Weight::Lists(id)));
            }
        }
        let all_words = weights.iter().fold(0u32, |sum, (words, _)| sum.saturating_add(*words));
        let mut resident = Resident { all_words, ..Resident::default() };
        if !block.few_rows || steps < STEPS_LEAST {
            return Ok(resident);
        }
        weights.sort_by_key(|(words, _)| std::cmp::Reverse(*words));
        let mut left = (self.limits.shared_bytes / 4).saturating_sub(block.words);
        for (words, weight) in weights.into_iter().filter(|(words, _)| *words > 0) {
            if words > left {
                continue;
            }
            let place = [block.words + resident.words, words];
            match weight {
                Weight::Value(value) => resident.values.insert(value, place),
                Weight::Lists(id) => resident.lists.insert(id, place),
            };
            (left, resident.words) = (left - words, resident.words + words);
        }
        Ok(resident)
    }

    /// The synapses that stay where rows are abreast.
    fn reside_abreast(&self, block: &Block, path: &[u32]) -> Resident {
        let mut resident = Resident::default();
        // The planner's end may be anywhere, and four words are read at once.
        let begin = block.words.next_multiple_of(4);
        let mut end = begin;
        for id in 0..block.body.body.nodes().len() as u32 {
            if !block.is_needed(Value { node: id, slot: 0 }) {
                continue;
            }
            let Some((order, _)) = self.constants.order(path, id) else { continue };
            resident.all_words = resident.all_words.saturating_add(order.words());
            if order.words() > 0 && self.copies(order, (self.limits.shared_bytes / 4).saturating_sub(end)) {
                resident.orders.insert(id, [end, order.words()]);
                end += order.words();
            }
        }
        resident.words = if end > begin { end - block.words } else { 0 };
        resident
    }
}

/// The values that are the second factor of a product or a cell, themselves or by another view.
fn matrices(block: &Block) -> HashSet<Value> {
    let mut found = HashSet::new();
    for (id, node) in block.body.body.nodes().iter().enumerate().rev() {
        if !block.is_needed(Value { node: id as u32, slot: 0 }) {
            continue;
        }
        match &node.op {
            Op::MatMul { .. } | Op::MatMulMap { .. } | Op::GatedCell { .. } => {
                found.extend(node.inputs.get(1).copied())
            }
            op if super::is_view(op) && found.contains(&Value { node: id as u32, slot: 0 }) => {
                found.insert(node.inputs[0]);
            }
            _ => {}
        }
    }
    found
}

impl Lists {
    /// What the lists consist of, without the places where they begin.
    pub(super) fn entries(&self) -> Result<View> {
        let first = self.destinations + 1;
        let words = Dim::fixed((self.words - first) as usize);
        View::whole(Home::Constant(self.at + first), DType::I32, false, &[words])
    }

    /// The same lists, whose entries are read from a copy.
    pub(super) fn copied_to(&self, copy: Memory) -> Lists {
        Lists { copy: Some(copy), ..self.clone() }
    }
}
