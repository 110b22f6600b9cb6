//! How the rows of a loop are cut into blocks, and where values are in a workgroup's memory.

use super::abreast::Shape;
use super::is_view;
use super::products::is_product_of_rows;
use crate::lower::site::word;
use crate::lower::view::{Home, View};
use crate::lower::{Lowering, UNFOLDED_MOST, times};
use schwann_codegen::lang::Memory;
use schwann_core::graph::Node;
use schwann_core::op::Scan;
use schwann_core::pass::rows::{Independent, ROWS};
use schwann_core::plan::memory::{Lifetime, assign};
use schwann_core::{DType, Dim, Error, Graph, Op, Result, Value};
use std::collections::{HashMap, HashSet};

/// Rows of a block at most.
pub(super) const BLOCK_ROWS_MOST: u32 = 16;
/// Rows that a thread multiplies with each weight that it loads.
pub(super) const ROWS_AT_ONCE: u32 = 4;
/// There are few rows where this many times as many would still not keep the device busy: even of a small GPU, a core then has
/// one workgroup, which may use all of its memory and threads.
const FEW: usize = 32;
/// Neighbouring threads that share the sum of one element, where there are few rows. More would wait for each other longer than
/// they save.
const LANES_MOST: u32 = 4;
/// Threads of a workgroup: as many as the widest value has elements, within these.
const THREADS: std::ops::RangeInclusive<u32> = 32..=256;

/// A loop that is one kernel: how its rows are cut, and where values are in shared memory.
pub(super) struct Block {
    pub(super) body: Independent,
    pub(super) rows: u32,
    pub(super) threads: u32,
    /// Neighbouring threads that share the sum of one element of a product; 1 if none do.
    pub(super) lanes: u32,
    /// Whether there are so few rows that most of the device is idle, and each step should be over soon.
    pub(super) few_rows: bool,
    /// Whether neighbouring threads have neighbouring rows, and how: values then lie column by column.
    pub(super) abreast: Option<Shape>,
    /// The nodes that the results depend on, and the states. A body need not use all of a loop's sequences.
    needed: HashSet<u32>,
    /// For each value that has rows, its elements in one of them.
    pub(super) widths: HashMap<Value, u32>,
    /// Where a value begins in shared memory, in words.
    pub(super) at: HashMap<Value, u32>,
    /// Where new states are kept that must not be written over old ones at once.
    pub(super) aside: HashMap<usize, u32>,
    /// For each node that is applied to its own result, where every other result is kept.
    unfolded: HashMap<u32, u32>,
    pub(super) words: u32,
}

impl Block {
    /// Whether a value has to be there.
    pub(super) fn is_needed(&self, value: Value) -> bool {
        self.needed.contains(&value.node)
    }

    /// The view of a value in a part of shared memory, row by row.
    pub(super) fn view(&self, value: Value, part: Memory) -> Result<View> {
        let ty = self.body.body.ty(value);
        self.view_of(part, ty.dtype, ty.shape.dims(), self.body.row_axis(value).unwrap_or(0))
    }

    /// Where every other result is kept of a node that is applied to its own result.
    pub(super) fn aside_of(&self, id: u32) -> Result<u32> {
        self.unfolded.get(&id).copied().ok_or_else(|| Error::Internal("no room for an unfolding".into()))
    }

    /// A value in a part of shared memory, row by row or column by column; `rows` is the axis that rows are.
    pub(super) fn view_of(&self, part: Memory, dtype: DType, dims: &[Dim], rows: usize) -> Result<View> {
        let mut steps = vec![Dim::fixed(1); dims.len()];
        let mut step = Dim::fixed(self.column_step().unwrap_or(1) as usize);
        for axis in (0..dims.len()).rev().filter(|axis| *axis != rows) {
            steps[axis] = step.clone();
            step = times(&step, &dims[axis])?;
        }
        steps[rows] = if self.abreast.is_some() { Dim::fixed(1) } else { step };
        let home = Home::Shared(part);
        Ok(View { home, strides: vec![], dtype, packed: false, dims: dims.to_vec(), steps, first: Dim::fixed(0) })
    }
}

impl Lowering<'_> {
    /// How a loop's rows can be cut into blocks; none if its body needs something that this kernel does not do, or more
    /// shared memory than there is.
    pub(super) fn block(
        &self,
        path: &[u32],
        scan: &Scan,
        body: Independent,
        operands: &[View],
    ) -> Result<Option<Block>> {
        let graph = &body.body;
        let rows_symbol = Dim::symbol(ROWS);
        let mut widths = HashMap::new();
        let mut order: Vec<(Value, usize)> = vec![];
        let needed = needed(graph, scan.states);
        let nodes = || graph.nodes().iter().enumerate().filter(|(id, _)| needed.contains(&(*id as u32)));
        for (id, node) in nodes() {
            for (slot, ty) in node.outs.iter().enumerate() {
                let value = Value { node: id as u32, slot: slot as u16 };
                let Some(axis) = body.row_axis(value) else {
                    // The same for all rows: fine where nothing is computed.
                    if node.op.is_source() || is_view(&node.op) {
                        continue;
                    }
                    return Ok(None);
                };
                let mut width = 1usize;
                for (i, dim) in ty.shape.dims().iter().enumerate() {
                    if i == axis {
                        if *dim != rows_symbol {
                            return Ok(None);
                        }
                        continue;
                    }
                    let Some(size) = dim.as_fixed() else { return Ok(None) };
                    width = width.saturating_mul(size);
                }
                if width == 0 || width > 1 << 16 {
                    return Ok(None);
                }
                widths.insert(value, word(width)?);
                order.push((value, id));
            }
            match &node.op {
                Op::Softmax { .. } | Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::Attention { .. } | Op::Scan(_) => {
                    return Ok(None);
                }
                Op::SynapseRatio { times, .. } if *times > UNFOLDED_MOST => return Ok(None),
                // Indices that are wrong would have to be told of from inside.
                Op::Gather { .. } | Op::Put { .. } | Op::SegmentSum { .. } => return Ok(None),
                _ => {}
            }
        }
        // A view of a value lives as long as somebody reads it: look through views to the memory behind them.
        let mut behind: HashMap<Value, Value> = HashMap::new();
        let mut last: HashMap<Value, usize> = HashMap::new();
        let end = graph.nodes().len() + 1;
        for (id, node) in nodes() {
            for v in &node.inputs {
                let home = behind.get(v).copied().unwrap_or(*v);
                last.insert(home, id);
            }
            if is_view(&node.op) && widths.contains_key(&Value { node: id as u32, slot: 0 }) {
                let from = node.inputs[0];
                let home = behind.get(&from).copied().unwrap_or(from);
                // A view that cannot be said by steps is a value of its own; `one_kernel` finds out as this does.
                if viewable(&body, node, id as u32)? {
                    behind.insert(Value { node: id as u32, slot: 0 }, home);
                }
            }
        }
        let outputs: Vec<Value> =
            graph.outputs().iter().map(|o| behind.get(&o.value).copied().unwrap_or(o.value)).collect();
        outputs.iter().for_each(|v| {
            last.insert(*v, end);
        });
        let inputs: Vec<Value> = graph.inputs().map(|(_, v)| v).collect();
        let carried = scan.states + scan.sequences;
        let mut lifetimes = vec![];
        let mut values = vec![];
        for (value, id) in order {
            if behind.contains_key(&value) {
                continue;
            }
            let (mut first, mut until) = (id, last.get(&value).copied().unwrap_or(id));
            if inputs[..carried].contains(&value) {
                (first, until) = (0, end);
            }
            values.push(value);
            lifetimes.push((first, until, widths[&value]));
        }
        // A new state that is an old state or a part of one, is kept aside while states are written.
        let states = &inputs[..scan.states];
        let mut aside_of = vec![];
        for (k, output) in outputs[..scan.states].iter().enumerate() {
            if states.contains(output) && graph.outputs()[k].value != states[k] {
                aside_of.push(k);
                lifetimes.push((end, end, widths[&graph.outputs()[k].value]));
            }
        }
        let mut unfolded_of = vec![];
        for (id, node) in nodes() {
            if matches!(node.op, Op::SynapseRatio { times, .. } if times > 1) {
                unfolded_of.push(id as u32);
                lifetimes.push((id, id, widths[&Value { node: id as u32, slot: 0 }]));
            }
        }
        let plan = |rows: u32| {
            // The planner counts bytes in whole cache lines; words stand for bytes here.
            let all: Vec<Lifetime> = lifetimes
                .iter()
                .map(|(first, last, width)| Lifetime { bytes: (*width * rows) as usize, first: *first, last: *last })
                .collect();
            assign(&all)
        };
        let fits = |rows: u32| plan(rows).1.saturating_mul(4) <= self.limits.shared_bytes as usize;
        if !fits(1) {
            return Ok(None);
        }
        let batch = operands[0].dims[if scan.states == 0 { 1 - scan.axis } else { 0 }].eval(self.bindings)?;
        let abreast = self.abreast(path, &body, |id| needed.contains(&id), batch, fits);
        let mut rows = abreast.map_or(1, Shape::rows);
        if abreast.is_none() && batch >= 2 * self.limits.parallel_groups as usize {
            while rows < BLOCK_ROWS_MOST && fits(rows * 2) {
                rows *= 2;
            }
        }
        let (offsets, _) = plan(rows);
        let widest = widths.values().copied().max().unwrap_or(1);
        // A device with fewer threads than any kernel has refuses the kernel.
        let most = *THREADS.end().min(&self.limits.threads).max(THREADS.start());
        let few_rows = abreast.is_none() && batch.saturating_mul(FEW) <= self.limits.parallel_groups as usize;
        let sums = if few_rows { widest_sum(&body, &widths) } else { 0 };
        let lanes = lanes_for(sums * rows, self.limits.lanes, most);
        let wanted = (widest * rows.div_ceil(ROWS_AT_ONCE)).max(sums * rows * lanes);
        let threads = abreast.map_or_else(|| wanted.next_multiple_of(32).clamp(*THREADS.start(), most), Shape::threads);
        let mut at = HashMap::new();
        for (value, offset) in values.iter().zip(&offsets) {
            at.insert(*value, word(*offset)?);
        }
        let mut aside = HashMap::new();
        for (k, offset) in aside_of.iter().zip(&offsets[values.len()..]) {
            aside.insert(*k, word(*offset)?);
        }
        let mut unfolded = HashMap::new();
        for (id, offset) in unfolded_of.iter().zip(&offsets[values.len() + aside_of.len()..]) {
            unfolded.insert(*id, word(*offset)?);
        }
        // The planner's end is that of a whole cache line.
        let ends = offsets.iter().zip(&lifetimes).map(|(offset, (_, _, width))| offset + (width * rows) as usize);
        let words = word(ends.max().unwrap_or(0))?.max(1);
        Ok(Some(Block { needed, body, rows, threads, lanes, few_rows, abreast, widths, at, aside, unfolded, words }))
    }
}

/// The nodes that a body's results are made of, and its first inputs, which are the states.
pub(super) fn needed(graph: &Graph, states: usize) -> HashSet<u32> {
    let outputs = graph.outputs().iter().map(|output| output.value.node);
    let mut needed: HashSet<u32> = graph.inputs().take(states).map(|(_, state)| state.node).chain(outputs).collect();
    for (id, node) in graph.nodes().iter().enumerate().rev() {
        if needed.contains(&(id as u32)) {
            needed.extend(node.inputs.iter().map(|value| value.node));
        }
    }
    needed
}

/// Whether a node that could be a view can be said by steps, given that what it reads lies row by row.
fn viewable(body: &Independent, node: &Node, id: u32) -> Result<bool> {
    let from = node.inputs[0];
    match &node.op {
        Op::Reshape { .. } => {
            // Row by row on both sides, with rows first: the rest keeps its order.
            let value = Value { node: id, slot: 0 };
            let first = body.row_axis(from) == Some(0) && body.row_axis(value) == Some(0);
            // What it reads may be a view itself, and then does not lie row by row.
            Ok(first && !is_view(&body.body.node(from).op))
        }
        Op::Broadcast { .. } => Ok(body.row_axis(from).is_some()),
        _ => Ok(true),
    }
}

/// The elements of a row in the widest product of rows or sum over synapses; 0 if there is none.
fn widest_sum(body: &Independent, widths: &HashMap<Value, u32>) -> u32 {
    let graph = &body.body;
    let rank = |value: Value| graph.ty(value).shape.dims().len();
    let width = |(id, node): (usize, &Node)| {
        let value = Value { node: id as u32, slot: 0 };
        let ranks = match node.inputs[..] {
            [a, b, ..] => [rank(a), rank(b), rank(value)],
            _ => return None,
        };
        let row_axis = |i: usize| body.row_axis(node.inputs[i]);
        let synapses = matches!(node.op, Op::SynapseSum { .. } | Op::SynapseRatio { .. });
        (synapses || is_product_of_rows(&node.op, row_axis, ranks)).then(|| widths.get(&value).copied())?
    };
    graph.nodes().iter().enumerate().filter_map(width).max().unwrap_or(0)
}

/// How many threads share the sum of one of so many elements: as many as the device lets exchange values, as long as no
/// thread has to work on a further element for that.
fn lanes_for(elements: u32, device: u32, threads: u32) -> u32 {
    let mut lanes = 1;
    while elements > 0 && 2 * lanes <= LANES_MOST.min(device) && elements.saturating_mul(2 * lanes) <= threads {
        lanes *= 2;
    }
    lanes
}
