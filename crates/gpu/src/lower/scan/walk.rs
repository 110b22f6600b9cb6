//! A loop as one kernel: a workgroup takes a block of rows through all steps.

use super::block::{Block, ROWS_AT_ONCE};
use super::left_out::{is_step, zero};
use crate::lower::element::{Call, Lists, element, epilogue, factors, gate, synapse_ratio};
use crate::lower::grid::coordinates;
use crate::lower::site::{Site, word};
use crate::lower::view::{Home, View};
use crate::lower::{Lowering, Scope, describe};
use crate::program::Walk;
use schwann_codegen::lang::{Expr, Memory, Ty};
use schwann_core::graph::Node;
use schwann_core::op::Scan;
use schwann_core::pass::rows::ROWS;
use schwann_core::plan::{Loop, Plan, Step};
use schwann_core::{DType, Dim, Error, Op, Result, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// What threads did to shared memory since they last waited for each other.
#[derive(Default)]
struct Since {
    accesses: Vec<Access>,
    /// What a loop's body begins with, until threads wait for the first time.
    first: Vec<Access>,
    /// Whether they did, in this loop's body.
    waited: bool,
}

#[derive(Clone, PartialEq, Eq)]
struct Access {
    words: std::ops::Range<u32>,
    write: bool,
    /// How elements are dealt to threads, where each thread only touches its own: the elements of a row, and whether several
    /// rows go to one thread. Otherwise threads touch what others do.
    own: Option<(u32, bool)>,
}

impl Access {
    /// Whether two of them are of one word and of different threads, and one of them writes.
    fn clashes(&self, other: &Access) -> bool {
        let overlap = self.words.start < other.words.end && other.words.start < self.words.end;
        let same = self.own.is_some() && self.own == other.own && self.words == other.words;
        (self.write || other.write) && overlap && !same
    }
}

fn clash(some: &[Access], others: &[Access]) -> bool {
    some.iter().any(|a| others.iter().any(|b| a.clashes(b)))
}

impl Since {
    /// Makes the threads wait if one of these accesses meets an earlier one of another thread.
    fn meet(&mut self, site: &mut Site<'_>, now: &[Access]) {
        if clash(now, &self.accesses) {
            self.wait(site);
        }
        if !self.waited {
            self.first.extend(now.iter().cloned());
        }
        self.accesses.extend(now.iter().cloned());
    }

    fn wait(&mut self, site: &mut Site<'_>) {
        site.maker.barrier();
        self.accesses.clear();
        self.waited = true;
    }

    /// The beginning of a loop. Gives what was done before it, for [`Since::end_loop`].
    fn begin_loop(&mut self) -> Vec<Access> {
        (self.first, self.waited) = (vec![], false);
        self.accesses.clone()
    }

    /// The end of a loop's body: threads wait if what the body ends with meets what its next round begins with.
    fn end_round(&mut self, site: &mut Site<'_>) {
        if clash(&self.accesses, &self.first) {
            self.wait(site);
        }
    }

    /// After a loop, which may not have gone round at all, or never have waited.
    fn end_loop(&mut self, before: Vec<Access>) {
        self.accesses.extend(before);
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
    /// The parts of shared memory that have a name by now, by the value that they hold.
    parts: HashMap<Value, Memory>,
    since: Since,
    held: HashMap<Value, Held>,
    /// The node that is not computed, so that it can be measured what it takes.
    left_out: Option<u32>,
}

impl Lowering<'_> {
    #[expect(clippy::too_many_arguments, reason = "a node, where it is, and what it reads and writes")]
    pub(super) fn one_kernel(
        &mut self,
        scope: &Scope<'_>,
        id: u32,
        scan: &Scan,
        block: &Block,
        operands: &[View],
        outs: &[View],
        place: &[usize],
        steps: usize,
    ) -> Result<Box<Loop>> {
        let path = [&scope.path[..], &[id]].concat();
        let graph = &block.body.body;
        // Final states are written row by row, and copied to where they are wanted if that is anything else: an element of a
        // sequence of a loop around, say.
        let mut finals = vec![];
        for out in &outs[..scan.states] {
            let as_it_is = out.per_word() == 1 && out.is_whole()?;
            finals.push(if as_it_is { out.clone() } else { self.slot("state", out.dtype, &out.dims)? });
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
        for (state, out) in operands[..scan.states].iter().zip(&finals) {
            let in_arena = matches!(state.home, Home::Slot(_) | Home::Input(_) | Home::Output(_));
            let as_written = in_arena && state.per_word() == 1 && state.is_whole()? && state.strides.is_empty();
            let read = as_written.then(|| site.own_place(state));
            let (written, write_at) = site.own_place(out);
            carry.extend(read.iter().map(|(read, _)| (*read, written)));
            places.push((read.map(|(_, at)| at), write_at));
        }
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
            };
            if left_out.is_some() {
                zero(s, shared, block)?;
            }
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
                walker.since.meet(s, &[held.access(true, Some((width, false)))]);
                let (arena, Home::Shared(part)) = (s.arena, held.view.home.clone()) else { continue };
                let words = |s: &mut Site<'_>, at: &Expr| {
                    walker.deal(s, width, |s, row, unit| {
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
                        s.maker.store(part, row * width + unit, word);
                        Ok(())
                    })
                };
                if let Some(at) = read_at {
                    words(s, at)?;
                    continue;
                }
                // It is not stored as states are, or is no more than a number: later pieces read what the first one wrote.
                s.guarded(from.eq(0u32), |s| {
                    walker.elements(s, *value, |s, at, row| {
                        // Where it comes from is not written to, so a row beyond the last may read the last one's.
                        let mut place = at.to_vec();
                        place[0] = global(row);
                        let loaded = s.load(state, &place)?;
                        s.store(&held.view, at, &loaded)
                    })
                })?;
                s.guarded(from.ne(0u32), |s| words(s, write_at))?;
            }
            let before = walker.since.begin_loop();
            s.counted("t", &from, &to, |s, t| {
                let time = if scan.reverse { &all_steps - 1u32 - &t } else { t };
                let time = s.maker.name("time", time);
                for (value, sequence) in inputs.iter().zip(operands).skip(scan.states).take(scan.sequences) {
                    let held = walker.hold(s, *value)?;
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
                walker.since.end_round(s);
                Ok(())
            })?;
            walker.since.end_loop(before);
            for (value, (_, write_at, ..)) in inputs[..scan.states].iter().zip(&places) {
                let held = walker.get(*value)?;
                let width = block.widths[value];
                walker.since.meet(s, &[held.access(false, Some((width, false)))]);
                let (arena, Home::Shared(part)) = (s.arena, held.view.home.clone()) else { continue };
                walker.deal(s, width, |s, row, unit| {
                    let to = s.maker.name("to_row", &first_row + row);
                    walker.if_a_row(s, &to, &rows_in_all, |s| {
                        let word = s.maker.load(part, row * width + unit, Ty::U32);
                        s.maker.store(arena, write_at + &to * width + unit, word);
                        Ok(())
                    })
                })?;
            }
            Ok(())
        })?;
        let walk = Walk { steps: word(steps)?, from: from_number, to: to_number, carry };
        self.dispatch(site, groups, place, Some(walk))?;
        for (last, out) in finals.iter().zip(outs).filter(|(last, out)| last.home != out.home) {
            self.copy(last, out, place)?;
        }
        let body = self.block_plan(block)?;
        let block_rows = Some(block.rows as usize);
        let workgroup = Some(self.workgroup(block, batch));
        Ok(Box::new(Loop { steps, block_rows, blocks, body, tail: None, workgroup }))
    }

    /// The plan of the body for one block of rows.
    fn block_plan(&self, block: &Block) -> Result<Arc<Plan>> {
        let bindings = self.bindings.clone().with(ROWS, block.rows as usize);
        let graph = &block.body.body;
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

impl Held {
    /// An access to all of it; to nothing where it is not in shared memory.
    fn access(&self, write: bool, own: Option<(u32, bool)>) -> Access {
        Access { words: self.words.clone().unwrap_or(0..0), write, own }
    }
}

impl Walker<'_> {
    /// A value that has memory of its own; from now on others can read it.
    fn hold(&mut self, s: &mut Site<'_>, value: Value) -> Result<Held> {
        let (at, len) = (self.block.at[&value], self.block.widths[&value] * self.block.rows);
        let shared = self.shared;
        let part = *self.parts.entry(value).or_insert_with(|| s.maker.part("value", shared, at, len));
        let held = Held { view: self.block.view(value, part)?, words: Some(at..at + len) };
        self.held.insert(value, held.clone());
        Ok(held)
    }

    /// Memory beside that of the values, for one like this.
    fn beside(&self, s: &mut Site<'_>, value: Value, at: u32) -> Result<Held> {
        let len = self.block.widths[&value] * self.block.rows;
        let part = s.maker.part("beside", self.shared, at, len);
        Ok(Held { view: self.block.view(value, part)?, words: Some(at..at + len) })
    }

    fn get(&self, value: Value) -> Result<Held> {
        self.held.get(&value).cloned().ok_or_else(|| Error::Internal("a loop's value is read too early".into()))
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
                    let (Home::Shared(part), dtype) = (&from.view.home, from.view.dtype) else {
                        return Err(Error::Internal("a row that is not in shared memory".into()));
                    };
                    Some(Block::view_of(*part, dtype, dims, 0)?)
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
            outs.push(self.hold(s, Value { node: id, slot })?);
        }
        let by_rows = self.several_rows(&call, &node.inputs);
        let dealt = (width, by_rows);
        // Operands from here on are read where the result is written, element by element.
        let by_element = match &node.op {
            op if op.is_elementwise() => 0,
            Op::MatMulMap { .. } => 2,
            Op::SynapseSum { sums, .. } => 5 + sums,
            Op::SynapseRatio { .. } => 7,
            _ => inputs.len(),
        };
        let mut accesses = vec![];
        for (i, held) in inputs.iter().enumerate() {
            // A thread reads what it wrote itself where all is dealt alike.
            let alike = i >= by_element && held.view.dims == outs[0].view.dims && held.view.steps == outs[0].view.steps;
            accesses.push(held.access(false, if alike { Some(dealt) } else { None }));
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
                accesses[0] = x.access(false, None);
                self.since.meet(s, &[&accesses[..], &[to.access(true, Some(dealt))]].concat());
                if self.left_out != Some(id) {
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
