//! Placement: which values share memory, and until when that memory is needed. Decided before any call is chosen.
//!
//! A value is written straight to an output of the run if it is one, or to its place inside a concatenation. A reshape,
//! slice or repetition of another value stays in that value's memory. A concatenation whose readers all take it in two
//! parts is never made.

use super::gated::Cells;
use super::known::Known;
use super::lower::{Sized, Target, sized};
use crate::backend::state_places;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::Op;
use crate::shape::Bindings;
use schwann_kernels::gemm::takes_parts;
use std::collections::{HashMap, HashSet};

/// Where values go, and until when their memory is read.
#[derive(Default)]
pub(super) struct Placement {
    /// Values to be written straight to an output.
    pub(super) direct: HashMap<Value, usize>,
    /// Values to be written straight into a concatenation that reads them, and at which byte of it.
    pub(super) within: HashMap<Value, (Value, usize)>,
    /// Gated cells that are written to an output, or to memory of their own, and also to their place in a concatenation.
    pub(super) also: HashMap<Value, (Value, usize)>,
    /// Results of `put` that are the next value of the state that they put something into, which nothing else reads: they
    /// are written where that state is.
    pub(super) in_place: HashSet<Value>,
    /// Concatenations that are never made: their readers read the two parts.
    pub(super) split: HashMap<Value, [Value; 2]>,
    /// For each value that is in the memory of another one (as a reshape, view or part): that other value.
    memory: HashMap<Value, Value>,
    /// For each value with memory of its own: the last position in the schedule that reads that memory.
    last_read: HashMap<Value, usize>,
}

/// The position at which results are read: after everything has run.
const AT_THE_END: usize = usize::MAX;

impl Placement {
    /// Places the values of a graph whose nodes run in this order.
    pub(super) fn of(
        graph: &Graph,
        bindings: &Bindings,
        target: &Target<'_>,
        known: &Known<'_>,
        cells: &Cells,
        order: &[u32],
    ) -> Result<Placement> {
        let mut place = Placement::default();
        place.outputs(graph);
        place.states(graph);
        place.concatenations(graph, bindings, target, known, cells)?;
        place.shared_memory(graph);
        place.last_reads(graph, order);
        Ok(place)
    }

    fn outputs(&mut self, graph: &Graph) {
        // A reshape has the elements of its operand, so the operand can be written to the output instead.
        let mut renamed: HashMap<Value, Value> = HashMap::new();
        for (id, node) in (0u32..).zip(graph.nodes()) {
            if let (Op::Reshape { .. }, Some(x)) = (&node.op, node.inputs.first()) {
                renamed.insert(Value { node: id, slot: 0 }, *renamed.get(x).unwrap_or(x));
            }
        }
        for (i, output) in graph.outputs().iter().enumerate() {
            let root = *renamed.get(&output.value).unwrap_or(&output.value);
            if !graph.node(root).op.is_source() {
                self.direct.entry(root).or_insert(i);
            }
        }
    }

    /// Finds states that can be changed where they are.
    fn states(&mut self, graph: &Graph) {
        let readers = graph.readers();
        for (input, output) in state_places(graph) {
            let value = graph.outputs()[output].value;
            let node = graph.node(value);
            let Op::Put { .. } = node.op else { continue };
            let state = node.inputs[0];
            let is_state = graph.inputs().nth(input).is_some_and(|(_, v)| v == state);
            let alone = readers[state.node as usize] == [value.node] && !node.inputs[1..].contains(&state);
            let result = graph.outputs().iter().any(|o| o.value == state);
            if is_state && alone && !result && self.direct.get(&value) == Some(&output) {
                self.in_place.insert(value);
            }
        }
    }

    /// Finds concatenations that need not be made, and values that can be written straight into one: those whose part
    /// of it is contiguous.
    fn concatenations(
        &mut self,
        graph: &Graph,
        bindings: &Bindings,
        target: &Target<'_>,
        known: &Known<'_>,
        cells: &Cells,
    ) -> Result<()> {
        let (readers, results) = (graph.readers(), graph.results());
        for (id, node) in graph.nodes().iter().enumerate() {
            let Op::Concat { axis } = node.op else { continue };
            let whole = Value { node: id as u32, slot: 0 };
            let size = sized(graph, bindings, whole)?;
            if let &[first, last] = &node.inputs[..]
                && !results[id]
                && in_parts(graph, bindings, target, known, cells, whole, &size, axis, &readers[id])?
            {
                self.split.insert(whole, [first, last]);
                continue;
            }
            let outer = size.shape[..axis].iter().product::<usize>();
            let mut at = 0;
            for &part in &node.inputs {
                let op = &graph.node(part).op;
                let made = !op.is_source() && !shares(op) && !matches!(op, Op::Concat { .. } | Op::Scan(_));
                let bytes = sized(graph, bindings, part)?.bytes();
                if made && bytes > 0 {
                    let cell = cells.get(part);
                    match self.direct.contains_key(&part) {
                        false if outer == 1 => _ = self.within.entry(part).or_insert((whole, at)),
                        true if outer == 1 && cell.is_some() => _ = self.also.entry(part).or_insert((whole, at)),
                        // Its part of each row is contiguous, though not all of it.
                        _ if cell.is_some_and(|c| c.can_be_columns() && c.inputs_axis() == axis) => {
                            _ = self.also.entry(part).or_insert((whole, at));
                        }
                        _ => {}
                    }
                }
                at += bytes / outer.max(1);
            }
        }
        Ok(())
    }

    /// Assumes that a value which may be in the memory of another one is there: memory is then kept rather too long
    /// than too short.
    fn shared_memory(&mut self, graph: &Graph) {
        self.memory = self.within.iter().map(|(part, (whole, _))| (*part, *whole)).collect();
        for (id, node) in (0u32..).zip(graph.nodes()) {
            let own = Value { node: id, slot: 0 };
            if let Some(x) = node.inputs.first()
                && shares(&node.op)
                && !self.within.contains_key(&own)
            {
                self.memory.insert(own, self.memory_of(*x));
            }
        }
    }

    /// The value in whose memory this one lies.
    fn memory_of(&self, value: Value) -> Value {
        self.memory.get(&value).copied().unwrap_or(value)
    }

    fn last_reads(&mut self, graph: &Graph, order: &[u32]) {
        let read = |place: &Placement, last: &mut HashMap<Value, usize>, value: Value, at: usize| {
            let entry = last.entry(place.memory_of(value)).or_insert(at);
            *entry = (*entry).max(at);
        };
        let mut last = HashMap::new();
        for (at, &id) in order.iter().enumerate() {
            for &v in &graph.nodes()[id as usize].inputs {
                read(self, &mut last, v, at);
                // Reading a concatenation that is never made reads its parts.
                for &part in self.split.get(&v).into_iter().flatten() {
                    read(self, &mut last, part, at);
                }
            }
        }
        for output in graph.outputs() {
            read(self, &mut last, output.value, AT_THE_END);
        }
        self.last_read = last;
    }

    /// Whether nothing that runs after place `at` of the schedule reads the memory of a value.
    pub(super) fn dies_at(&self, value: Value, at: usize) -> bool {
        self.last_read.get(&self.memory_of(value)).is_none_or(|last| *last <= at)
    }
}

/// Whether an operation's result may lie in the memory of its first operand.
fn shares(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. } | Op::Broadcast { .. } | Op::Transpose { .. } | Op::Slice { .. })
}

/// Whether every reader of a concatenation takes it in two parts: a gated cell, or a product of a single row.
#[expect(clippy::too_many_arguments, reason = "one question about one value, and what is known around it")]
fn in_parts(
    graph: &Graph,
    bindings: &Bindings,
    target: &Target<'_>,
    known: &Known<'_>,
    cells: &Cells,
    whole: Value,
    x: &Sized,
    axis: usize,
    readers: &[u32],
) -> Result<bool> {
    if x.dtype != DType::F32 || x.count() == 0 {
        return Ok(false);
    }
    for &id in readers {
        let node = &graph.nodes()[id as usize];
        let value = Value { node: id, slot: 0 };
        if node.inputs[1..].contains(&whole) {
            return Ok(false);
        }
        if let Some(cell) = cells.get(value) {
            if axis == cell.inputs_axis() {
                continue;
            }
            return Ok(false);
        }
        let ([1, k], 1) = (&x.shape[..], axis) else { return Ok(false) };
        let (Op::MatMul { transpose_a: false, .. } | Op::MatMulMap { transpose_a: false, .. }) = node.op else {
            return Ok(false);
        };
        let (out, right) = (sized(graph, bindings, value)?, sized(graph, bindings, node.inputs[1])?);
        let fits = right.shape.len() == 2
            && (right.dtype, out.dtype) == (DType::F32, DType::F32)
            && known.contains(node.inputs[1])
            && takes_parts(target.tuning, out.count(), *k);
        if !fits {
            return Ok(false);
        }
    }
    Ok(true)
}
