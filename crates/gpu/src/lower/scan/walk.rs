//! A loop as one kernel: a workgroup takes a block of rows through all steps.

use super::abreast::Order;
use super::block::Block;
use super::left_out::{is_step, zero};
use super::resident::Resident;
use super::since::{Access, Dealt, Since};
use crate::lower::element::{Call, element};
use crate::lower::grid::coordinates;
use crate::lower::site::{Site, word};
use crate::lower::synapses::{Lanes, Lists, synapse_ratio};
use crate::lower::view::{Home, View};
use crate::lower::{Lowering, describe};
use crate::program::Walk;
use schwann_codegen::lang::{Expr, Memory, Ty};
use schwann_core::graph::Node;
use schwann_core::op::Scan;
use schwann_core::pass::rows::{Independent, ROWS};
use schwann_core::plan::{Loop, Plan, Step};
use schwann_core::{DType, Dim, Error, Op, Result, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// A value of the body, and the words of shared memory behind it.
#[derive(Clone)]
struct Held {
    view: View,
    words: Option<std::ops::Range<u32>>,
    /// Whether it is a weight that was copied to shared memory.
    copied: bool,
}

/// Synapses in the order of rows abreast, by the number of their node, and where they are.
type Orders = HashMap<u32, (Arc<Order>, Memory, Expr)>;

/// The kernel of a loop while it is made.
pub(super) struct Walker<'b> {
    pub(super) block: &'b Block,
    shared: Memory,
    /// The parts of shared memory that have a name by now, by the value that they hold.
    parts: HashMap<Value, Memory>,
    since: Since,
    held: HashMap<Value, Held>,
    /// The node that is not computed, so that it can be measured what it takes.
    left_out: Option<u32>,
    orders: Orders,
}

impl Lowering<'_> {
    #[expect(clippy::too_many_arguments, reason = "a node, where it is, and what it reads and writes")]
    pub(super) fn one_kernel(
        &mut self,
        path: &[u32],
        scan: &Scan,
        block: &Block,
        operands: &[View],
        outs: &[View],
        place: &[usize],
        steps: usize,
    ) -> Result<Box<Loop>> {
        let graph = &block.body.body;
        let resident = self.reside(scan, block, operands, path, steps)?;
        let finals = self.finals(scan, outs)?;
        let first_sequence = &operands[scan.states];
        let batch_dim = first_sequence.dims[1 - scan.axis].clone();
        let batch = batch_dim.eval(self.bindings)?;
        let mut site = Site::new("scan", block.threads, self);
        site.fixed.insert(Dim::symbol(ROWS), block.rows);
        let shared = site.maker.shared("values", Ty::U32, block.words + resident.words);
        let (from_number, from) = (site.args.len(), site.number("from", 0));
        let (to_number, to) = (site.args.len(), site.number("to", word(steps)?));
        let all_steps = site.size(&first_sequence.dims[scan.axis])?;
        let rows_in_all = site.size(&batch_dim)?;
        let (places, carry) = site.state_places(scan, operands, &finals)?;
        let blocks = batch.div_ceil(block.rows as usize);
        let left_out = self.left_out_of(block, place);
        let groups = self.a_group_each(&mut site, blocks, |s, number| {
            let first_row = s.maker.name("first_row", number * block.rows);
            let mut walker = Walker {
                block,
                shared,
                parts: HashMap::new(),
                since: Since::default(),
                held: HashMap::new(),
                left_out: left_out.flatten(),
                orders: HashMap::new(),
            };
            if left_out.is_some() {
                zero(s, shared, block)?;
            }
            let inputs: Vec<Value> = graph.inputs().map(|(_, v)| v).collect();
            for (value, view) in inputs.iter().zip(operands).skip(scan.states + scan.sequences) {
                walker.held.insert(*value, Held { view: view.clone(), words: None, copied: false });
            }
            for (id, node) in graph.nodes().iter().enumerate() {
                if matches!(node.op, Op::Const(_)) {
                    let view = self.constants.view(path, id as u32, node)?;
                    walker.held.insert(Value { node: id as u32, slot: 0 }, Held { view, words: None, copied: false });
                }
            }
            let lists = walker.copy_weights(s, &resident, |id| self.constants.lists(path, id))?;
            if block.abreast.is_some() {
                walker.orders = walker.copy_orders(s, &resident, |id| self.constants.order(path, id))?;
            }
            // A row beyond the last is computed from a state of zeros and the last row's inputs, and written nowhere. Of blocks
            // of one row, none is.
            let last_row = if block.rows > 1 { s.maker.name("last_row", &rows_in_all - 1u32) } else { 0u32.into() };
            let global = |row: &Expr| {
                let row = &first_row + row;
                if block.rows > 1 { row.min(&last_row) } else { row }
            };
            for ((value, state), (read_at, write_at)) in inputs.iter().zip(operands).zip(&places) {
                let held = walker.hold(s, *value)?;
                let width = block.widths[value];
                walker.since.meet(s, &[held.access(true, walker.by_rows(width))]);
                let (arena, Home::Shared(part)) = (s.arena, held.view.home.clone()) else { continue };
                let words = |s: &mut Site<'_>, at: &Expr| {
                    walker.deal_by_rows(s, width, |s, row, unit| {
                        let from = s.maker.name("from_row", &first_row + row);
                        // Each word is read by the thread that writes it in the end: a state may be written where it was
                        // read.
                        let word = s.maker.variable("word", 0u32);
                        walker.if_a_row(s, &from, &rows_in_all, |s| {
                            let read = s.maker.load(arena, at + &from * width + unit, Ty::U32);
                            s.maker.set(word, read);
                            Ok(())
                        })?;
                        let word = s.maker.get(word);
                        s.maker.store(part, block.word(row, unit, width), word);
                        Ok(())
                    })
                };
                if let Some(at) = read_at {
                    words(s, at)?;
                    continue;
                }
                // It is not stored as states are, or is no more than a number: later pieces read what the first one wrote.
                s.guarded(from.eq(0u32), |s| {
                    walker.elements_by_rows(s, *value, |s, at, row| {
                        // Where it comes from is not written to, so a row beyond the last may read the last one's.
                        let mut place = at.to_vec();
                        place[0] = global(row);
                        let loaded = s.load(state, &place)?;
                        s.store(&held.view, at, &loaded)
                    })
                })?;
                s.guarded(from.ne(0u32), |s| words(s, write_at))?;
            }
            walker.since.copied = resident.words > 0;
            let before = walker.since.begin_loop();
            s.counted("t", &from, &to, |s, t| {
                let time = if scan.reverse { &all_steps - 1u32 - &t } else { t };
                let time = s.maker.name("time", time);
                for (value, sequence) in inputs.iter().zip(operands).skip(scan.states).take(scan.sequences) {
                    if !block.is_needed(*value) {
                        continue;
                    }
                    let held = walker.hold(s, *value)?;
                    let width = block.widths[value];
                    walker.since.meet(s, &[held.access(true, walker.by_rows(width))]);
                    walker.elements_by_rows(s, *value, |s, at, row| {
                        let mut from = at.to_vec();
                        from[0] = global(row);
                        from.insert(scan.axis, time.clone());
                        let loaded = s.load(sequence, &from)?;
                        s.store(&held.view, at, &loaded)
                    })?;
                }
                for (id, node) in graph.nodes().iter().enumerate() {
                    let id = id as u32;
                    walker.node(s, id, node, lists.get(&id).or(self.constants.synapses(path, id)))?;
                }
                walker.results(s, scan, outs, &time, &first_row, &rows_in_all)?;
                walker.next_states(s, scan, &inputs)?;
                walker.since.end_round(s);
                Ok(())
            })?;
            walker.since.end_loop(before);
            for (value, (_, write_at, ..)) in inputs[..scan.states].iter().zip(&places) {
                let held = walker.get(*value)?;
                let width = block.widths[value];
                walker.since.meet(s, &[held.access(false, walker.by_rows(width))]);
                let (arena, Home::Shared(part)) = (s.arena, held.view.home.clone()) else { continue };
                walker.deal_by_rows(s, width, |s, row, unit| {
                    let to = s.maker.name("to_row", &first_row + row);
                    walker.if_a_row(s, &to, &rows_in_all, |s| {
                        let word = s.maker.load(part, block.word(row, unit, width), Ty::U32);
                        s.maker.store(arena, write_at + &to * width + unit, word);
                        Ok(())
                    })
                })?;
            }
            Ok(())
        })?;
        if left_out.is_some() {
            // What reads the result of a node that is left out reads what others left in its place.
            site.maker.mix_parts();
        }
        let walk = Walk { steps: word(steps)?, from: from_number, to: to_number, carry };
        self.dispatch(site, groups, place, Some(walk))?;
        self.copy_finals(&finals, outs, place)?;
        let body = self.block_plan(&block.body, block.rows)?;
        let block_rows = Some(block.rows as usize);
        let workgroup = Some(self.workgroup(block, &resident, batch));
        Ok(Box::new(Loop { steps, block_rows, blocks, body, tail: None, workgroup }))
    }

    /// Where final states are written row by row. They are copied to where they are wanted if that is anything else: an element
    /// of a sequence of a loop around, say.
    pub(super) fn finals(&mut self, scan: &Scan, outs: &[View]) -> Result<Vec<View>> {
        let mut finals = vec![];
        for out in &outs[..scan.states] {
            let as_it_is = out.per_word() == 1 && out.is_whole()?;
            finals.push(if as_it_is { out.clone() } else { self.slot("state", out.dtype, &out.dims)? });
        }
        Ok(finals)
    }

    /// Copies final states to where they are wanted.
    pub(super) fn copy_finals(&mut self, finals: &[View], outs: &[View], place: &[usize]) -> Result<()> {
        let apart = finals.iter().zip(outs).filter(|(last, out)| last.home != out.home);
        apart.into_iter().try_for_each(|(last, out)| self.copy(last, out, place))
    }

    /// The plan of the body for one block of so many rows.
    pub(super) fn block_plan(&self, body: &Independent, rows: u32) -> Result<Arc<Plan>> {
        let bindings = self.bindings.clone().with(ROWS, rows as usize);
        let graph = &body.body;
        let mut steps = vec![];
        for node in graph.nodes().iter().filter(|node| is_step(node)) {
            let shape = node.outs[0].shape.eval(&bindings)?;
            steps.push(Step {
                name: node.name.clone(),
                op: node.op.name().into(),
                kernel: describe::kernel(graph, node, &bindings, None)?,
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

/// For each state, where it is read, if it is stored as states are, and where it is written.
pub(super) type StatePlaces = Vec<(Option<Expr>, Expr)>;

impl Site<'_> {
    /// The places of states as arguments, and which of them a later piece of a walk takes from an earlier one.
    pub(super) fn state_places(
        &mut self,
        scan: &Scan,
        operands: &[View],
        finals: &[View],
    ) -> Result<(StatePlaces, Vec<(usize, usize)>)> {
        let (mut carry, mut places) = (vec![], vec![]);
        for (state, out) in operands[..scan.states].iter().zip(finals) {
            let in_arena = matches!(state.home, Home::Slot(_) | Home::Input(_) | Home::Output(_));
            let as_written = in_arena && state.per_word() == 1 && state.is_whole()? && state.strides.is_empty();
            let read = as_written.then(|| self.own_place(state));
            let (written, write_at) = self.own_place(out);
            carry.extend(read.iter().map(|(read, _)| (*read, written)));
            places.push((read.map(|(_, at)| at), write_at));
        }
        Ok((places, carry))
    }
}

impl Held {
    /// An access to all of it; to nothing where it is not in shared memory.
    fn access(&self, write: bool, own: Option<(u32, Dealt)>) -> Access {
        let words = self.words.clone().unwrap_or(0..0);
        let from = words.start.into();
        Access { words, write, own: own.map(|own| (from, own)), copied: self.copied }
    }
}

impl Walker<'_> {
    /// A value that has memory of its own; from now on others can read it.
    fn hold(&mut self, s: &mut Site<'_>, value: Value) -> Result<Held> {
        let (at, len) = (self.block.at[&value], self.block.widths[&value] * self.block.rows);
        let shared = self.shared;
        let part = *self.parts.entry(value).or_insert_with(|| s.maker.part("value", shared, at, len));
        let held = Held { view: self.block.view(value, part)?, words: Some(at..at + len), copied: false };
        self.held.insert(value, held.clone());
        Ok(held)
    }

    /// Copies what is resident into shared memory, from where steps read it. Gives the synapses among it.
    fn copy_weights<'c>(
        &mut self,
        s: &mut Site<'_>,
        resident: &Resident,
        lists: impl Fn(u32) -> Option<&'c Lists>,
    ) -> Result<HashMap<u32, Lists>> {
        let (thread, threads, shared) = (s.maker.thread(), self.block.threads, self.shared);
        let copy = |s: &mut Site<'_>, from: &View, [at, words]: [u32; 2]| -> Result<Memory> {
            let part = s.maker.part("weights", shared, at, words);
            let (memory, base) = s.place(from)?;
            s.strided("e", thread.clone(), words, threads, |s, e| {
                let word = s.maker.load(memory, base + &e, Ty::U32);
                s.maker.store(part, e, word);
                Ok(())
            })?;
            Ok(part)
        };
        for (value, place) in &resident.values {
            let view = self.get(*value)?.view;
            let part = copy(s, &view, *place)?;
            self.held
                .insert(*value, Held { view: View { home: Home::Shared(part), ..view }, words: None, copied: true });
        }
        let mut copied = HashMap::new();
        for (id, place) in &resident.lists {
            let Some(lists) = lists(*id) else { continue };
            let part = copy(s, &lists.entries()?, *place)?;
            copied.insert(*id, lists.copied_to(part));
        }
        Ok(copied)
    }

    /// Notes where synapses are that are in the order of rows abreast, and copies those that stay into shared memory.
    fn copy_orders<'c>(
        &self,
        s: &mut Site<'_>,
        resident: &Resident,
        orders: impl Fn(u32) -> Option<&'c (Arc<Order>, u32)>,
    ) -> Result<Orders> {
        let mut all = HashMap::new();
        for id in 0..self.block.body.body.nodes().len() as u32 {
            let Some((order, at)) = orders(id).filter(|_| self.block.is_needed(Value { node: id, slot: 0 })) else {
                continue;
            };
            let (constants, base) = (s.constants, s.arg("synapses", Home::Constant(*at), &[]));
            let Some([first, words]) = resident.orders.get(&id) else {
                all.insert(id, (Arc::clone(order), constants, base));
                continue;
            };
            let part = s.maker.part("synapses", self.shared, *first, *words);
            let thread = s.maker.thread();
            s.strided("e", thread, *words, self.block.threads, |s, e| {
                let word = s.maker.load(constants, &base + &e, Ty::U32);
                s.maker.store(part, e, word);
                Ok(())
            })?;
            all.insert(id, (Arc::clone(order), part, 0u32.into()));
        }
        Ok(all)
    }

    /// Memory beside that of the values, for one like this.
    fn beside(&self, s: &mut Site<'_>, value: Value, at: u32) -> Result<Held> {
        let len = self.block.widths[&value] * self.block.rows;
        let part = s.maker.part("beside", self.shared, at, len);
        Ok(Held { view: self.block.view(value, part)?, words: Some(at..at + len), copied: false })
    }

    fn get(&self, value: Value) -> Result<Held> {
        self.held.get(&value).cloned().ok_or_else(|| Error::Internal("a loop's value is read too early".into()))
    }

    /// A read of a value by any threads.
    fn read(&self, held: &Held) -> Access {
        let all = held.access(false, None);
        if all.words.is_empty() {
            return all;
        }
        let size = |dim: &Dim| if *dim == Dim::symbol(ROWS) { Some(self.block.rows) } else { fixed(dim) };
        let last = held.view.dims.iter().zip(&held.view.steps).map(|(dim, step)| Some((size(dim)? - 1) * fixed(step)?));
        // A slice is less than what it is a slice of.
        match (fixed(&held.view.first), last.sum::<Option<u32>>()) {
            (Some(first), Some(last)) => {
                let from = all.words.start + first;
                Access { words: from..from + last + 1, ..all }
            }
            _ => all,
        }
    }

    /// A read of a value, where the elements of `like`, which lie row by row, are dealt to threads: of a thread's own words,
    /// if the value's elements follow each other as those do. They may begin after some of those, along an axis.
    fn read_alike(&self, held: &Held, like: &View, dealt: (u32, Dealt), after: Option<(usize, u32)>) -> Access {
        let mut view = held.view.clone();
        if let Some((axis, _)) = after {
            view.dims[axis] = like.dims[axis].clone();
        }
        let view = view.stretched(&like.dims);
        let alone = |dim: &Dim| dim.is(1) || self.block.rows == 1 && *dim == Dim::symbol(ROWS);
        let mut steps = view.steps.iter().zip(&like.steps).zip(&like.dims);
        let alike = steps.all(|((own, step), dim)| own == step || alone(dim));
        let (start, before) = (held.access(false, None).words.start, after.map_or(0, |(_, elements)| elements));
        let first = fixed(&view.first).filter(|_| alike);
        let own = first.map(|first| (i64::from(start + first) - i64::from(before), dealt));
        Access { own, ..self.read(held) }
    }

    /// If this is a row, and not beyond the last; with a block for each row, it always is.
    fn if_a_row<'s>(
        &self,
        s: &mut Site<'s>,
        row: &Expr,
        rows_in_all: &Expr,
        body: impl FnOnce(&mut Site<'s>) -> Result<()>,
    ) -> Result<()> {
        if self.block.rows == 1 { body(s) } else { s.guarded(row.lt(rows_in_all), body) }
    }

    /// How elements are dealt to threads that read or write them elsewhere, row by row: as other elements are, unless rows are
    /// abreast.
    fn by_rows(&self, width: u32) -> Option<(u32, Dealt)> {
        self.block.abreast.is_none().then_some((width, Dealt::OneByOne))
    }

    /// Deals the elements of all rows to the threads: the row, and the element's number in it.
    fn deal<'s>(
        &self,
        s: &mut Site<'s>,
        width: u32,
        body: impl FnOnce(&mut Site<'s>, &Expr, &Expr) -> Result<()>,
    ) -> Result<()> {
        let Some(rows) = self.block.column_step() else { return self.deal_by_rows(s, width, body) };
        let thread = s.maker.thread();
        s.strided("e", thread, width * rows, self.block.threads, |s, e| {
            let unit = s.maker.name("unit", &e / rows);
            let row = s.maker.name("row", e.rem(rows));
            body(s, &row, &unit)
        })
    }

    /// The same for elements that are read or written elsewhere, where those of a row follow each other.
    fn deal_by_rows<'s>(
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
        let (axis, others) = self.axes(value);
        self.deal(s, self.block.widths[&value], |s, row, unit| {
            let mut at = coordinates(s, unit, &others)?;
            at.insert(axis, row.clone());
            body(s, &at, row)
        })
    }

    /// The same for a value that is read or written elsewhere.
    fn elements_by_rows<'s>(
        &self,
        s: &mut Site<'s>,
        value: Value,
        body: impl FnOnce(&mut Site<'s>, &[Expr], &Expr) -> Result<()>,
    ) -> Result<()> {
        let (axis, others) = self.axes(value);
        self.deal_by_rows(s, self.block.widths[&value], |s, row, unit| {
            let mut at = coordinates(s, unit, &others)?;
            at.insert(axis, row.clone());
            body(s, &at, row)
        })
    }

    /// The axis of a value that rows are, and the sizes along the others.
    fn axes(&self, value: Value) -> (usize, Vec<Dim>) {
        let axis = self.block.body.row_axis(value).unwrap_or(0);
        let mut others = self.block.body.body.ty(value).shape.dims().to_vec();
        others.remove(axis);
        (axis, others)
    }

    /// The same by several neighbouring threads for each element, of which the first writes what all of them computed. The
    /// block has a thread for each of them. Threads beyond these compute the last element once more and do not write it,
    /// since all threads have to take part in exchanges.
    fn elements_over_lanes<'s>(
        &self,
        s: &mut Site<'s>,
        value: Value,
        outs: &[View],
        body: impl FnOnce(&mut Site<'s>, &Lanes, &[Expr]) -> Result<Vec<Expr>>,
    ) -> Result<()> {
        let (width, count) = (self.block.widths[&value], self.block.lanes);
        let elements = width * self.block.rows;
        let thread = s.maker.thread();
        let lane = s.maker.name("lane", thread.rem(count));
        let number = s.maker.name("number", thread / count);
        let all_have_one = elements * count == self.block.threads;
        let e = if all_have_one { number.clone() } else { s.maker.name("e", number.min(elements - 1)) };
        let (row, unit) = match self.block.rows {
            1 => (0u32.into(), e),
            _ => (s.maker.name("row", &e / width), s.maker.name("unit", e.rem(width))),
        };
        let axis = self.block.body.row_axis(value).unwrap_or(0);
        let mut others = self.block.body.body.ty(value).shape.dims().to_vec();
        others.remove(axis);
        let mut at = coordinates(s, &unit, &others)?;
        at.insert(axis, row);
        let results = body(s, &Lanes { lane: lane.clone(), count }, &at)?;
        let first = lane.eq(0u32);
        let writes = if all_have_one { first } else { first.and(number.lt(elements)) };
        s.guarded(writes, |s| outs.iter().zip(&results).try_for_each(|(out, result)| s.store(out, &at, result)))
    }

    /// Computes a node, for all rows of the block.
    fn node(&mut self, s: &mut Site<'_>, id: u32, node: &Node, lists: Option<&Lists>) -> Result<()> {
        let value = Value { node: id, slot: 0 };
        if node.op.is_source() || !self.block.is_needed(value) {
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
                    let (Home::Shared(part), dtype) = (&from.view.home, from.view.dtype) else {
                        return Err(Error::Internal("a row that is not in shared memory".into()));
                    };
                    Some(self.block.view_of(*part, dtype, dims, 0)?)
                }
                _ => from.view.reshaped(dims)?,
            };
            let view = view.ok_or_else(|| Error::Unsupported {
                node: node.name.clone(),
                op: node.op.name().into(),
                problem: "a value inside a loop in another shape".into(),
            })?;
            self.held.insert(value, Held { view, words: from.words.clone(), copied: from.copied });
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
            lanes: None,
        };
        let width = self.block.widths[&value];
        let mut outs = vec![];
        for slot in 0..node.outs.len() as u16 {
            outs.push(self.hold(s, Value { node: id, slot })?);
        }
        let manner = self.dealt(&call, &node.inputs, width);
        let dealt = (width, manner);
        // Operands from here on are read where the result is written, element by element.
        let by_element = match &node.op {
            op if op.is_elementwise() => 0,
            Op::MatMulMap { .. } => 2,
            Op::SynapseSum { sums, .. } => 5 + sums,
            Op::SynapseRatio { .. } => 7,
            _ => inputs.len(),
        };
        let mut accesses = vec![];
        if lists.is_some_and(|lists| lists.copy.is_some()) {
            accesses.push(Access { words: 0..0, write: false, own: None, copied: true });
        }
        let synapses = accesses.len();
        for (i, held) in inputs.iter().enumerate() {
            // A thread reads what it wrote itself where all is dealt alike; of threads that share an element, one wrote it.
            let after = after(&node.op, &views[..i], &outs[0].view);
            let alike = (after.is_some() || i >= by_element) && manner != Dealt::OverLanes;
            accesses.push(if alike { self.read_alike(held, &outs[0].view, dealt, after) } else { self.read(held) });
        }
        if let Some(order) = self.orders.get(&id).cloned() {
            return self.node_abreast(s, id, &call, &inputs, &outs, (&order.0, order.1, &order.2));
        }
        if let Op::SynapseRatio { activation, axis, times } = &node.op
            && *times > 1
        {
            let aside = self.block.aside_of(id)?;
            let other = self.beside(s, value, aside)?;
            let mut x = inputs[0].clone();
            for time in 0..*times {
                // The last one ends where it is wanted.
                let to = if (times - 1 - time) % 2 == 0 { outs[0].clone() } else { other.clone() };
                accesses[synapses] = self.read(&x);
                self.since.meet(s, &[&accesses[..], &[to.access(true, Some(dealt))]].concat());
                if self.left_out == Some(id) {
                    // Its work is left out, to see what it takes.
                } else if manner == Dealt::OverLanes {
                    self.elements_over_lanes(s, value, std::slice::from_ref(&to.view), |s, lanes, at| {
                        let call = Call { lanes: Some(lanes), ..call };
                        Ok(vec![synapse_ratio(s, &call, &x.view, *activation, *axis, at)?])
                    })?;
                } else {
                    self.elements(s, value, |s, at, _| {
                        let result = synapse_ratio(s, &call, &x.view, *activation, *axis, at)?;
                        s.store(&to.view, at, &result)
                    })?;
                }
                x = to;
            }
            return Ok(());
        }
        accesses.extend(outs.iter().map(|out| out.access(true, Some(dealt))));
        self.since.meet(s, &accesses);
        if self.left_out == Some(id) {
            return Ok(());
        }
        match manner {
            Dealt::ByRows => return self.products(s, &call, &outs[0].view, width),
            Dealt::OverLanes => {
                let views: Vec<View> = outs.iter().map(|out| out.view.clone()).collect();
                return self.elements_over_lanes(s, value, &views, |s, lanes, at| match lists {
                    Some(_) => element(s, &Call { lanes: Some(lanes), ..call }, at),
                    None => Ok(vec![self.product_over_lanes(s, &call, lanes, at)?]),
                });
            }
            Dealt::OneByOne => {}
        }
        self.elements(s, value, |s, at, _| {
            let results = element(s, &call, at)?;
            for (out, result) in outs.iter().zip(&results) {
                s.store(&out.view, at, result)?;
            }
            Ok(())
        })
    }

    /// Synapses of rows abreast.
    fn node_abreast(
        &mut self,
        s: &mut Site<'_>,
        id: u32,
        call: &Call<'_>,
        inputs: &[Held],
        outs: &[Held],
        order: (&Order, Memory, &Expr),
    ) -> Result<()> {
        let mut accesses: Vec<Access> = inputs.iter().map(|held| self.read(held)).collect();
        accesses.push(Access { words: 0..0, write: false, own: None, copied: true });
        accesses.extend(outs.iter().map(|out| out.access(true, None)));
        let views: Vec<View> = outs.iter().map(|out| out.view.clone()).collect();
        let left_out = self.left_out == Some(id);
        let &Op::SynapseRatio { times: times @ 2.., .. } = call.op else {
            self.since.meet(s, &accesses);
            return if left_out { Ok(()) } else { self.abreast(s, call, &call.inputs[0], &views, order) };
        };
        // The values change places in every unfolding, and two of them are a round, so that there is little code.
        let value = Value { node: id, slot: 0 };
        let other = self.beside(s, value, self.block.aside_of(id)?)?;
        accesses.push(other.access(true, None));
        self.since.meet(s, &accesses);
        if left_out {
            return Ok(());
        }
        let places = [&outs[0].view, &other.view];
        let begin = places[times % 2];
        self.elements(s, value, |s, at, _| {
            let x = s.load(&call.inputs[0], at)?;
            s.store(begin, at, &x)
        })?;
        self.since.wait(s);
        if times % 2 > 0 {
            self.abreast(s, call, places[1], std::slice::from_ref(places[0]), order)?;
            self.since.wait(s);
        }
        let var = s.maker.open_count("unfolding");
        for [from, to] in [[0, 1], [1, 0]] {
            self.abreast(s, call, places[from], std::slice::from_ref(places[to]), order)?;
            self.since.wait(s);
        }
        s.maker.close_count(&var, 0u32, word(times / 2)?, 1u32);
        Ok(())
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
            let like = self.block.view(*value, self.shared)?;
            let dealt = (self.block.widths[value], Dealt::OneByOne);
            let read = match self.block.abreast {
                Some(_) => self.read(&held),
                None => self.read_alike(&held, &like, dealt, None),
            };
            self.since.meet(s, &[read]);
            self.elements_by_rows(s, *value, |s, at, row| {
                let to_row = s.maker.name("to_row", first_row + row);
                self.if_a_row(s, &to_row, rows_in_all, |s| {
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
            let from = match self.block.aside.get(&k) {
                None => held,
                Some(&at) => {
                    let width = self.block.widths[&inputs[k]];
                    let aside = self.beside(s, inputs[k], at)?;
                    let own = (width, Dealt::OneByOne);
                    let read = self.read_alike(&held, &aside.view, own, None);
                    self.since.meet(s, &[read, aside.access(true, Some(own))]);
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
            let own = (width, Dealt::OneByOne);
            self.since.meet(s, &[self.read_alike(&from, &state.view, own, None), state.access(true, Some(own))]);
            self.elements(s, inputs[k], |s, at, _| {
                let value = s.load(&from.view, at)?;
                s.store(&state.view, at, &value)
            })?;
        }
        Ok(())
    }
}

/// A size that is a number, and no larger than kernels count.
fn fixed(dim: &Dim) -> Option<u32> {
    dim.as_fixed().and_then(|size| u32::try_from(size).ok())
}

/// Where an operand of a node that joins or pads begins in its result, whose elements lie row by row: along which axis, and
/// after how many elements. `earlier` are the operands before it.
fn after(op: &Op, earlier: &[View], out: &View) -> Option<(usize, u32)> {
    let (axis, places) = match op {
        Op::Pad { axis, before, .. } => (*axis, fixed(before)?),
        Op::Concat { axis } => (*axis, earlier.iter().map(|view| fixed(&view.dims[*axis])).sum::<Option<u32>>()?),
        _ => return None,
    };
    Some((axis, places.checked_mul(fixed(&out.steps[axis])?)?))
}
