//! Loops. Where rows are independent, a loop is one kernel: a workgroup takes a block of rows through all steps, with states
//! and intermediate values in shared memory, and waits only where threads read what others wrote. Any other loop is the
//! kernels of its body, dispatched once for each step.

use super::element::{Call, Lists, element, epilogue, factors, gate, synapse_ratio};
use super::grid::coordinates;
use super::site::{Site, word};
use super::view::{Home, View};
use super::{Lowering, Scope, minus, times};
use crate::program::Walk;
use schwann_codegen::lang::{Expr, Memory, Ty};
use schwann_core::graph::Node;
use schwann_core::op::Scan;
use schwann_core::pass::rows::{Independent, ROWS, independent};
use schwann_core::plan::memory::{Lifetime, assign};
use schwann_core::plan::{Loop, Plan, Step};
use schwann_core::{DType, Dim, Error, Op, Result, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// Rows of a block at most.
const BLOCK_ROWS_MOST: u32 = 16;
/// Rows that a thread multiplies with each weight that it loads.
const ROWS_AT_ONCE: u32 = 4;
/// Threads of a workgroup: as many as the widest value has elements, within these.
const THREADS: std::ops::RangeInclusive<u32> = 32..=256;

impl Lowering<'_> {
    /// A loop: one kernel if that can be, else the kernels of its body.
    #[expect(clippy::too_many_arguments, reason = "a node, where it is, and what it reads and writes")]
    pub(super) fn scan(
        &mut self,
        scope: &Scope<'_>,
        id: u32,
        node: &Node,
        scan: &Scan,
        operands: &[View],
        outs: &[View],
        place: &[usize],
    ) -> Result<Box<Loop>> {
        let steps = operands[scan.states].dims[scan.axis].eval(self.bindings)?;
        word(steps)?;
        if let Ok(body) = independent(scan)?
            && let Some(block) = self.block(scan, body, operands)?
        {
            return self.one_kernel(scope, id, node, scan, &block, operands, outs, place, steps);
        }
        self.step_by_step(scope, id, scan, operands, outs, place, steps)
    }

    /// The kernels of the body, one after the other, for each step.
    #[expect(clippy::too_many_arguments, reason = "a node, where it is, and what it reads and writes")]
    fn step_by_step(
        &mut self,
        scope: &Scope<'_>,
        id: u32,
        scan: &Scan,
        operands: &[View],
        outs: &[View],
        place: &[usize],
        steps: usize,
    ) -> Result<Box<Loop>> {
        let depth = self.open.len() - 1;
        let split = scan.states + scan.sequences;
        let mut inputs = vec![];
        // States have a place that lasts from step to step.
        let mut states = vec![];
        for (operand, (name, _)) in operands[..scan.states].iter().zip(scan.body.inputs()) {
            let state = self.slot(name, operand.dtype, &operand.dims)?;
            self.copy(operand, &state, place)?;
            states.push(state);
        }
        inputs.extend(states.iter().cloned());
        for operand in &operands[scan.states..split] {
            // Elements that share a word with those of the next step are written out first.
            let sequence = if operand.per_word() > 1 {
                let words = self.slot("sequence", operand.dtype, &operand.dims)?;
                self.copy(operand, &words, place)?;
                words
            } else {
                operand.clone()
            };
            inputs.push(self.element_of(&sequence, scan, steps, depth)?);
        }
        inputs.extend(operands[split..].iter().cloned());
        let mut results = vec![];
        for (k, out) in outs.iter().enumerate() {
            results.push(if k < scan.states {
                self.slot("next", out.dtype, &out.dims)?
            } else {
                self.element_of(out, scan, steps, depth)?
            });
        }
        let began = self.begin_repeat();
        let inner = Scope { graph: &scan.body, path: [&scope.path[..], &[id]].concat(), place: place.to_vec() };
        let body = self.graph(&inner, inputs, &results)?;
        for (next, state) in results.iter().zip(&states) {
            let last = [place, &[body.len().saturating_sub(1)]].concat();
            self.copy(next, state, &last)?;
        }
        self.end_repeat(word(steps)?, began);
        for (state, out) in states.iter().zip(outs) {
            self.copy(state, out, place)?;
        }
        let body = self.body_plan(body)?;
        Ok(Box::new(Loop { steps, block_rows: None, blocks: 1, body, tail: None }))
    }

    /// The plan of a loop's body.
    fn body_plan(&self, steps: Vec<Step>) -> Result<Arc<Plan>> {
        Ok(Arc::new(Plan {
            backend: String::new(),
            threads: 1,
            bindings: self.bindings.clone(),
            steps,
            buffers: vec![],
            arena_bytes: 0,
            live_bytes: 0,
            weight_bytes: 0,
        }))
    }

    /// One element of a sequence, which moves on from round to round of the loop at this depth.
    fn element_of(&self, sequence: &View, scan: &Scan, steps: usize, depth: usize) -> Result<View> {
        let step = sequence.steps[scan.axis].eval(self.bindings)?;
        let mut view = sequence.clone();
        if scan.reverse && steps > 0 {
            let last = minus(&sequence.dims[scan.axis], &Dim::fixed(1))?;
            view = view.sliced(scan.axis, &last, &Dim::fixed(1))?;
        }
        view.dims.remove(scan.axis);
        view.steps.remove(scan.axis);
        view.strides.resize(depth, 0);
        let stride = word(step)?;
        view.strides.push(if scan.reverse { stride.wrapping_neg() } else { stride });
        Ok(view)
    }
}

/// A loop that is one kernel: how its rows are cut, and where values are in shared memory.
struct Block {
    body: Independent,
    rows: u32,
    threads: u32,
    /// For each value that has rows, its elements in one of them.
    widths: HashMap<Value, u32>,
    /// Where a value begins in shared memory, in words.
    at: HashMap<Value, u32>,
    /// Where new states are kept that must not be written over old ones at once.
    aside: HashMap<usize, u32>,
    /// For each node that is applied to its own result, where every other result is kept.
    unfolded: HashMap<u32, u32>,
    words: u32,
}

impl Block {
    /// The view of a value in shared memory, row by row.
    fn view(&self, value: Value, memory: Memory) -> Result<View> {
        let ty = self.body.body.ty(value);
        self.view_at(self.at[&value], ty.dtype, ty.shape.dims(), self.body.row_axis(value).unwrap_or(0), memory)
    }

    fn aside_of(&self, id: u32) -> Result<u32> {
        self.unfolded.get(&id).copied().ok_or_else(|| Error::Internal("no room for an unfolding".into()))
    }

    fn view_at(&self, at: u32, dtype: DType, dims: &[Dim], rows: usize, memory: Memory) -> Result<View> {
        let mut steps = vec![Dim::fixed(1); dims.len()];
        let mut step = Dim::fixed(1);
        for axis in (0..dims.len()).rev().filter(|axis| *axis != rows) {
            steps[axis] = step.clone();
            step = times(&step, &dims[axis])?;
        }
        steps[rows] = step;
        let home = Home::Shared(memory, at);
        Ok(View { home, strides: vec![], dtype, packed: false, dims: dims.to_vec(), steps, first: Dim::fixed(0) })
    }
}

/// Whether a node of a body is only another view of what it reads.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Transpose { .. } | Op::Slice { .. } | Op::Broadcast { .. } | Op::Reshape { .. })
}

impl Lowering<'_> {
    /// How a loop's rows can be cut into blocks; none if its body needs something that this kernel does not do, or more
    /// shared memory than there is.
    fn block(&self, scan: &Scan, body: Independent, operands: &[View]) -> Result<Option<Block>> {
        let graph = &body.body;
        let rows_symbol = Dim::symbol(ROWS);
        let mut widths = HashMap::new();
        let mut order: Vec<(Value, usize)> = vec![];
        for (id, node) in graph.nodes().iter().enumerate() {
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
                // Indices that are wrong would have to be told of from inside.
                Op::Gather { .. } | Op::SegmentSum { .. } => return Ok(None),
                _ => {}
            }
        }
        // A view of a value lives as long as somebody reads it: look through views to the memory behind them.
        let mut behind: HashMap<Value, Value> = HashMap::new();
        let mut last: HashMap<Value, usize> = HashMap::new();
        let end = graph.nodes().len() + 1;
        for (id, node) in graph.nodes().iter().enumerate() {
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
        for (id, node) in graph.nodes().iter().enumerate() {
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
        let mut rows = 1;
        if batch >= 2 * self.limits.parallel_groups as usize {
            while rows < BLOCK_ROWS_MOST && fits(rows * 2) {
                rows *= 2;
            }
        }
        let (offsets, words) = plan(rows);
        let widest = widths.values().copied().max().unwrap_or(1);
        let most = THREADS.end().min(&self.limits.threads);
        let threads = (widest * rows.div_ceil(ROWS_AT_ONCE)).next_multiple_of(32).clamp(*THREADS.start(), *most);
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
        Ok(Some(Block { body, rows, threads, widths, at, aside, unfolded, words: word(words)?.max(1) }))
    }
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

/// What threads did to shared memory since they last waited for each other.
#[derive(Default)]
struct Since {
    accesses: Vec<Access>,
}

#[derive(Clone, PartialEq, Eq)]
struct Access {
    words: std::ops::Range<u32>,
    write: bool,
    /// How elements are dealt to threads, where each thread only touches its own: the elements of a row, and whether several
    /// rows go to one thread. Otherwise threads touch what others do.
    own: Option<(u32, bool)>,
}

impl Since {
    /// Makes the threads wait if one of these accesses meets an earlier one of another thread.
    fn meet(&mut self, site: &mut Site<'_>, now: &[Access]) {
        let overlap = |a: &Access, b: &Access| a.words.start < b.words.end && b.words.start < a.words.end;
        let clash = |a: &Access, b: &Access| {
            let same = a.own.is_some() && a.own == b.own && a.words == b.words;
            (a.write || b.write) && overlap(a, b) && !same
        };
        if now.iter().any(|a| self.accesses.iter().any(|b| clash(a, b))) {
            self.wait(site);
        }
        self.accesses.extend(now.iter().cloned());
    }

    fn wait(&mut self, site: &mut Site<'_>) {
        site.maker.barrier();
        self.accesses.clear();
    }
}

/// A value of the body, and the words of shared memory behind it.
#[derive(Clone)]
struct Held {
    view: View,
    words: Option<std::ops::Range<u32>>,
}

/// The kernel of a loop while it is made.
struct Walker<'b> {
    block: &'b Block,
    shared: Memory,
    since: Since,
    held: HashMap<Value, Held>,
}

impl Lowering<'_> {
    #[expect(clippy::too_many_arguments, reason = "a node, where it is, and what it reads and writes")]
    fn one_kernel(
        &mut self,
        scope: &Scope<'_>,
        id: u32,
        node: &Node,
        scan: &Scan,
        block: &Block,
        operands: &[View],
        outs: &[View],
        place: &[usize],
        steps: usize,
    ) -> Result<Box<Loop>> {
        let path = [&scope.path[..], &[id]].concat();
        let graph = &block.body.body;
        let mut states = vec![];
        for operand in &operands[..scan.states] {
            let in_arena = matches!(operand.home, Home::Slot(_) | Home::Input(_) | Home::Output(_));
            states.push(if in_arena && operand.per_word() == 1 && operand.is_whole()? && operand.strides.is_empty() {
                operand.clone()
            } else {
                let words = self.slot(&node.name, operand.dtype, &operand.dims)?;
                self.copy(operand, &words, place)?;
                words
            });
        }
        let first_sequence = &operands[scan.states];
        let batch_dim = first_sequence.dims[1 - scan.axis].clone();
        let batch = batch_dim.eval(self.bindings)?;
        let mut site = Site::new("scan", block.threads, self.bindings);
        site.fixed.insert(Dim::symbol(ROWS), block.rows);
        let shared = site.maker.shared("values", Ty::U32, block.words);
        let (from_number, from) = (site.args.len(), site.number("from", 0));
        let (to_number, to) = (site.args.len(), site.number("to", word(steps)?));
        let all_steps = site.size(&first_sequence.dims[scan.axis])?;
        let rows_in_all = site.size(&batch_dim)?;
        let mut carry = vec![];
        let mut places = vec![];
        for (state, out) in states.iter().zip(outs) {
            let (read, read_at) = site.own_place(state);
            let (written, write_at) = site.own_place(out);
            carry.push((read, written));
            places.push((read_at, write_at));
        }
        let blocks = batch.div_ceil(block.rows as usize);
        let groups = self.a_group_each(&mut site, blocks, |s, number| {
            let first_row = s.maker.name("first_row", number * block.rows);
            let mut walker = Walker { block, shared, since: Since::default(), held: HashMap::new() };
            let inputs: Vec<Value> = graph.inputs().map(|(_, v)| v).collect();
            for (value, view) in inputs.iter().zip(operands).skip(scan.states + scan.sequences) {
                walker.held.insert(*value, Held { view: view.clone(), words: None });
            }
            for (id, node) in graph.nodes().iter().enumerate() {
                if matches!(node.op, Op::Const(_)) {
                    let view = self.constants.view(&path, id as u32, node)?;
                    walker.held.insert(Value { node: id as u32, slot: 0 }, Held { view, words: None });
                }
            }
            // A row beyond the last is computed as the last one is, and written nowhere.
            let last_row = s.maker.name("last_row", &rows_in_all - 1u32);
            let global = |row: &Expr| (&first_row + row).min(&last_row);
            for (value, (read_at, _)) in inputs[..scan.states].iter().zip(&places) {
                let held = walker.hold(*value)?;
                let width = block.widths[value];
                walker.since.meet(s, &[held.access(true, Some((width, false)))]);
                let (arena, Home::Shared(_, at)) = (s.arena, held.view.home.clone()) else { continue };
                walker.deal(s, width, |s, row, unit| {
                    let word = s.maker.load(arena, read_at + global(row) * width + unit, Ty::U32);
                    s.maker.store(shared, row * width + unit + at, word);
                    Ok(())
                })?;
            }
            s.counted("t", &from, &to, |s, t| {
                let time = if scan.reverse { &all_steps - 1u32 - &t } else { t };
                let time = s.maker.name("time", time);
                for (value, sequence) in inputs.iter().zip(operands).skip(scan.states).take(scan.sequences) {
                    let held = walker.hold(*value)?;
                    let width = block.widths[value];
                    walker.since.meet(s, &[held.access(true, Some((width, false)))]);
                    walker.elements(s, *value, |s, at, row| {
                        let mut from = at.to_vec();
                        from[0] = global(row);
                        from.insert(scan.axis, time.clone());
                        let loaded = s.load(sequence, &from)?;
                        s.store(&held.view, at, &loaded)
                    })?;
                }
                for (id, node) in graph.nodes().iter().enumerate() {
                    let lists = self.constants.lists(&path, id as u32);
                    walker.node(s, id as u32, node, lists)?;
                }
                walker.results(s, scan, outs, &time, &first_row, &rows_in_all)?;
                walker.next_states(s, scan, &inputs)?;
                walker.since.wait(s);
                Ok(())
            })?;
            walker.since.wait(s);
            for (value, (_, write_at)) in inputs[..scan.states].iter().zip(&places) {
                let held = walker.hold(*value)?;
                let width = block.widths[value];
                let (arena, Home::Shared(_, at)) = (s.arena, held.view.home.clone()) else { continue };
                walker.deal(s, width, |s, row, unit| {
                    let to = s.maker.name("to_row", &first_row + row);
                    s.guarded(to.lt(&rows_in_all), |s| {
                        let word = s.maker.load(shared, row * width + unit + at, Ty::U32);
                        s.maker.store(arena, write_at + &to * width + unit, word);
                        Ok(())
                    })
                })?;
            }
            Ok(())
        })?;
        let walk = Walk { steps: word(steps)?, from: from_number, to: to_number, carry };
        self.dispatch(site, groups, place, Some(walk))?;
        let body = self.block_plan(block)?;
        let block_rows = Some(block.rows as usize);
        Ok(Box::new(Loop { steps, block_rows, blocks, body, tail: None }))
    }

    /// The plan of the body for one block of rows.
    fn block_plan(&self, block: &Block) -> Result<Arc<Plan>> {
        let bindings = self.bindings.clone().with(ROWS, block.rows as usize);
        let graph = &block.body.body;
        let mut steps = vec![];
        for node in graph.nodes().iter().filter(|n| !n.op.is_source() && !is_view(&n.op)) {
            let shape = node.outs[0].shape.eval(&bindings)?;
            steps.push(Step {
                name: node.name.clone(),
                op: node.op.name().into(),
                kernel: super::describe::kernel(graph, node, &bindings, None)?,
                out: format!("{}{shape:?}", node.outs[0].dtype),
                reads: vec![],
                writes: vec![],
                cost: graph.node_cost(node, &bindings)?,
                in_place: false,
                looped: None,
            });
        }
        self.body_plan(steps)
    }
}

impl Held {
    /// An access to all of it; to nothing where it is not in shared memory.
    fn access(&self, write: bool, own: Option<(u32, bool)>) -> Access {
        Access { words: self.words.clone().unwrap_or(0..0), write, own }
    }
}

impl Walker<'_> {
    /// A value that has memory of its own; from now on others can read it.
    fn hold(&mut self, value: Value) -> Result<Held> {
        let at = self.block.at[&value];
        let words = Some(at..at + self.block.widths[&value] * self.block.rows);
        let held = Held { view: self.block.view(value, self.shared)?, words };
        self.held.insert(value, held.clone());
        Ok(held)
    }

    fn get(&self, value: Value) -> Result<Held> {
        self.held.get(&value).cloned().ok_or_else(|| Error::Internal("a loop's value is read too early".into()))
    }

    /// Deals the elements of all rows to the threads: the row, and the element's number in it.
    fn deal<'s>(
        &self,
        s: &mut Site<'s>,
        width: u32,
        body: impl FnOnce(&mut Site<'s>, &Expr, &Expr) -> Result<()>,
    ) -> Result<()> {
        let thread = s.maker.thread();
        s.strided("e", thread, width * self.block.rows, self.block.threads, |s, e| {
            if self.block.rows == 1 {
                return body(s, &0u32.into(), &e);
            }
            let row = s.maker.name("row", &e / width);
            let unit = s.maker.name("unit", e.rem(width));
            body(s, &row, &unit)
        })
    }

    /// The same for a value: its element's place along each axis, and the row.
    fn elements<'s>(
        &self,
        s: &mut Site<'s>,
        value: Value,
        body: impl FnOnce(&mut Site<'s>, &[Expr], &Expr) -> Result<()>,
    ) -> Result<()> {
        let ty = self.block.body.body.ty(value);
        let axis = self.block.body.row_axis(value).unwrap_or(0);
        let mut others = ty.shape.dims().to_vec();
        others.remove(axis);
        self.deal(s, self.block.widths[&value], |s, row, unit| {
            let mut at = coordinates(s, unit, &others)?;
            at.insert(axis, row.clone());
            body(s, &at, row)
        })
    }

    /// Computes a node, for all rows of the block.
    fn node(&mut self, s: &mut Site<'_>, id: u32, node: &Node, lists: Option<&Lists>) -> Result<()> {
        let value = Value { node: id, slot: 0 };
        if node.op.is_source() {
            return Ok(());
        }
        let inputs = node.inputs.iter().map(|v| self.get(*v)).collect::<Result<Vec<_>>>()?;
        if !self.block.at.contains_key(&value) {
            // A view of what it reads, which lies somewhere else than in rows of its own.
            let (from, dims) = (&inputs[0], node.outs[0].shape.dims());
            let view = match &node.op {
                Op::Transpose { perm } => Some(from.view.transposed(perm)),
                Op::Slice { axis, start, .. } => Some(from.view.sliced(*axis, start, &dims[*axis])?),
                Op::Broadcast { .. } => Some(from.view.stretched(dims)),
                Op::Reshape { .. } if from.words.is_some() => {
                    let (Home::Shared(memory, at), dtype) = (&from.view.home, from.view.dtype) else {
                        return Err(Error::Internal("a row that is not in shared memory".into()));
                    };
                    Some(self.block.view_at(*at, dtype, dims, 0, *memory)?)
                }
                _ => from.view.reshaped(dims)?,
            };
            let view = view.ok_or_else(|| Error::Unsupported {
                node: node.name.clone(),
                op: node.op.name().into(),
                problem: "a value inside a loop in another shape".into(),
            })?;
            self.held.insert(value, Held { view, words: from.words.clone() });
            return Ok(());
        }
        let views: Vec<View> = inputs.iter().map(|held| held.view.clone()).collect();
        let dtypes: Vec<DType> = node.outs.iter().map(|t| t.dtype).collect();
        let dims = node.outs[0].shape.dims();
        let call = Call {
            name: &node.name,
            op: &node.op,
            inputs: &views,
            dtypes: &dtypes,
            dims,
            synapses: lists,
            fault: None,
        };
        let width = self.block.widths[&value];
        let mut outs = vec![];
        for slot in 0..node.outs.len() as u16 {
            outs.push(self.hold(Value { node: id, slot })?);
        }
        if let Op::SynapseRatio { activation, axis, times } = &node.op
            && *times > 1
        {
            let aside = self.block.aside_of(id)?;
            let other = Held {
                view: self.block.view_at(
                    aside,
                    dtypes[0],
                    dims,
                    self.block.body.row_axis(value).unwrap_or(0),
                    self.shared,
                )?,
                words: Some(aside..aside + width * self.block.rows),
            };
            let mut x = inputs[0].clone();
            for time in 0..*times {
                // The last one ends where it is wanted.
                let to = if (times - 1 - time) % 2 == 0 { outs[0].clone() } else { other.clone() };
                self.since.meet(s, &[x.access(false, None), to.access(true, Some((width, false)))]);
                self.elements(s, value, |s, at, _| {
                    let result = synapse_ratio(s, &call, &x.view, *activation, *axis, at)?;
                    s.store(&to.view, at, &result)
                })?;
                x = to;
            }
            return Ok(());
        }
        let by_rows = self.several_rows(&call, &node.inputs);
        let dealt = (width, by_rows);
        let mut accesses = vec![];
        for held in &inputs {
            // A thread reads what it wrote itself where all is dealt alike, element by element.
            let alike = node.op.is_elementwise()
                && held.view.dims == outs[0].view.dims
                && held.view.steps == outs[0].view.steps;
            accesses.push(held.access(false, if alike { Some(dealt) } else { None }));
        }
        accesses.extend(outs.iter().map(|out| out.access(true, Some(dealt))));
        self.since.meet(s, &accesses);
        if by_rows {
            return self.products(s, &call, &outs[0].view, width);
        }
        self.elements(s, value, |s, at, _| {
            let results = element(s, &call, at)?;
            for (out, result) in outs.iter().zip(&results) {
                s.store(&out.view, at, result)?;
            }
            Ok(())
        })
    }

    /// Whether a thread can multiply several rows with each weight that it loads.
    fn several_rows(&self, call: &Call<'_>, inputs: &[Value]) -> bool {
        let body = &self.block.body;
        let plain = match call.op {
            Op::MatMul { transpose_a, .. } | Op::MatMulMap { transpose_a, .. } => !transpose_a,
            Op::GatedCell { batch_last, .. } => !batch_last,
            _ => false,
        };
        let flat = call.inputs[..inputs.len().min(2)].iter().all(|v| v.dims.len() == 2);
        plain
            && flat
            && call.dims.len() == 2
            && self.block.rows >= ROWS_AT_ONCE
            && body.row_axis(inputs[0]) == Some(0)
            && body.row_axis(inputs[1]).is_none()
    }

    /// A product or a gated cell with several rows at a time.
    fn products(&self, s: &mut Site<'_>, call: &Call<'_>, out: &View, width: u32) -> Result<()> {
        let (a, b, heads) = match call.op {
            Op::GatedCell { by_column, heads, .. } => {
                let w = &call.inputs[1];
                let w = if *by_column { w.transposed(&[1, 0]) } else { w.clone() };
                (call.inputs[0].clone(), w, heads.to_vec())
            }
            Op::MatMul { transpose_b, .. } | Op::MatMulMap { transpose_b, .. } => {
                let (a, b) = factors(call, false, *transpose_b);
                (a, b, vec![0])
            }
            _ => return Err(Error::Internal("a product that is none".into())),
        };
        let inner = s.size(&b.dims[0])?;
        let pieces = self.block.rows / ROWS_AT_ONCE;
        let thread = s.maker.thread();
        s.strided("e", thread, width * pieces, self.block.threads, |s, e| {
            let (piece, unit) = (s.maker.name("piece", &e / width), s.maker.name("unit", e.rem(width)));
            let rows: Vec<Expr> = (0..ROWS_AT_ONCE).map(|r| s.maker.name("row", &piece * ROWS_AT_ONCE + r)).collect();
            let columns = heads.iter().map(|&h| Ok(&unit + word(h)?)).collect::<Result<Vec<Expr>>>()?;
            let sums: Vec<Vec<_>> =
                rows.iter().map(|_| columns.iter().map(|_| s.maker.variable("sum", 0.0f32)).collect()).collect();
            s.counted("k", 0u32, inner, |s, k| {
                let weights =
                    columns.iter().map(|c| s.load(&b, &[k.clone(), c.clone()])).collect::<Result<Vec<_>>>()?;
                for (row, sums) in rows.iter().zip(&sums) {
                    let x = s.load(&a, &[row.clone(), k.clone()])?;
                    for (sum, weight) in sums.iter().zip(&weights) {
                        let next = x.fma(weight, s.maker.get(*sum));
                        s.maker.set(*sum, next);
                    }
                }
                Ok(())
            })?;
            for (row, sums) in rows.iter().zip(&sums) {
                let at = [row.clone(), unit.clone()];
                let sums: Vec<Expr> = sums.iter().map(|sum| s.maker.get(*sum)).collect();
                let value = match call.op {
                    Op::MatMulMap { map, dtype, .. } => epilogue(s, call, map, *dtype, sums[0].clone(), &at)?,
                    Op::GatedCell { .. } => {
                        let mut totals = sums;
                        if let Some(bias) = call.inputs.get(2)
                            && let Some(flat) = bias.reshaped(&[b.dims[1].clone()])?
                        {
                            for (total, column) in totals.iter_mut().zip(&columns) {
                                *total = &*total + s.load(&flat, std::slice::from_ref(column))?;
                            }
                        }
                        gate(s, [&totals[0], &totals[1], &totals[2]])
                    }
                    _ => sums[0].clone(),
                };
                s.store(out, &at, &value)?;
            }
            Ok(())
        })
    }

    /// Writes this step's elements of the sequences that come out.
    fn results(
        &mut self,
        s: &mut Site<'_>,
        scan: &Scan,
        outs: &[View],
        time: &Expr,
        first_row: &Expr,
        rows_in_all: &Expr,
    ) -> Result<()> {
        let outputs: Vec<Value> = self.block.body.body.outputs().iter().map(|o| o.value).collect();
        for (value, out) in outputs.iter().zip(outs).skip(scan.states) {
            let held = self.get(*value)?;
            let own = self.block.at.contains_key(value).then(|| (self.block.widths[value], false));
            self.since.meet(s, &[held.access(false, own)]);
            self.elements(s, *value, |s, at, row| {
                let to_row = s.maker.name("to_row", first_row + row);
                s.guarded(to_row.lt(rows_in_all), |s| {
                    let result = s.load(&held.view, at)?;
                    let mut to = at.to_vec();
                    to[0] = to_row.clone();
                    to.insert(scan.axis, time.clone());
                    s.store(out, &to, &result)
                })
            })?;
        }
        Ok(())
    }

    /// Makes new states the old ones of the next step.
    fn next_states(&mut self, s: &mut Site<'_>, scan: &Scan, inputs: &[Value]) -> Result<()> {
        let outputs: Vec<Value> = self.block.body.body.outputs().iter().map(|o| o.value).collect();
        let mut moves = vec![];
        for k in 0..scan.states {
            if outputs[k] == inputs[k] {
                continue;
            }
            let held = self.get(outputs[k])?;
            let ty = self.block.body.body.ty(inputs[k]);
            let from = match self.block.aside.get(&k) {
                None => held,
                Some(&at) => {
                    let width = self.block.widths[&inputs[k]];
                    let view = self.block.view_at(at, ty.dtype, ty.shape.dims(), 0, self.shared)?;
                    let aside = Held { view, words: Some(at..at + width * self.block.rows) };
                    self.since.meet(s, &[held.access(false, None), aside.access(true, Some((width, false)))]);
                    self.elements(s, inputs[k], |s, at, _| {
                        let value = s.load(&held.view, at)?;
                        s.store(&aside.view, at, &value)
                    })?;
                    aside
                }
            };
            moves.push((k, from));
        }
        for (k, from) in moves {
            let state = self.get(inputs[k])?;
            let width = self.block.widths[&inputs[k]];
            let alike = from.view.steps == state.view.steps;
            let own = (width, false);
            self.since.meet(s, &[from.access(false, alike.then_some(own)), state.access(true, Some(own))]);
            self.elements(s, inputs[k], |s, at, _| {
                let value = s.load(&from.view, at)?;
                s.store(&state.view, at, &value)
            })?;
        }
        Ok(())
    }
}
