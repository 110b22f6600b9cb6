//! The kernel of a loop of few rows: a workgroup takes one row through all steps.
//!
//! ```text
//! threads load the weights that they keep, and the state
//! for each part of the sequence, of so many steps as there is room for:
//!     all steps' inputs are copied, and what does not depend on the state is computed of them
//!     for each step, one after the other:
//!         the chain
//!     what no step waits for is computed for all steps, and results are written
//!     the last state moves to where the first step of the next part looks for it
//! the state is written
//! ```

use super::Few;
use super::beside::To;
use super::order::When;
use super::products;
use super::synapses;
use super::values::Piece;
use super::work::{Stage, Work};
use crate::lower::Lowering;
use crate::lower::element::{Call, element};
use crate::lower::site::{Site, word};
use crate::lower::synapses::Lists;
use crate::lower::view::{Home, View};
use crate::program::Walk;
use schwann_codegen::lang::{Expr, Memory, Ty};
use schwann_core::op::Scan;
use schwann_core::plan::Loop;
use schwann_core::{DType, Dim, Error, Op, Result, Value};
use std::collections::HashMap;

/// A kernel that is being made.
pub(super) struct Writer<'b> {
    pub(super) few: &'b Few<'b>,
    /// The words of all steps.
    pub(super) values: Memory,
    /// Two places for what is applied to its own result, by node.
    pub(super) asides: HashMap<u32, [Memory; 2]>,
    /// Weights in shared memory, by the first node of products.
    pub(super) weights: HashMap<u32, Memory>,
    /// What is the same for all rows.
    rowless: HashMap<Value, View>,
    lists: HashMap<u32, &'b Lists>,
    left_out: Option<u32>,
}

/// All of these conditions.
pub(super) fn all_of<const N: usize>(conditions: [Option<Expr>; N]) -> Option<Expr> {
    conditions.into_iter().flatten().reduce(|a, b| a.and(b))
}

/// What a thread keeps for a piece of work.
pub(super) enum Kept {
    Products(products::Kept),
    Synapses(synapses::Kept),
    Nothing,
}

impl Lowering<'_> {
    /// Makes the kernel.
    #[expect(clippy::too_many_arguments, reason = "a node, where it is, and what it reads and writes")]
    pub(in crate::lower::scan) fn few_kernel(
        &mut self,
        path: &[u32],
        scan: &Scan,
        mut few: Few<'_>,
        operands: &[View],
        outs: &[View],
        place: &[usize],
        steps: usize,
    ) -> Result<Box<Loop>> {
        let left_out = self.left_out_of(few.block, place).flatten();
        few.leave_out(left_out);
        let few = &few;
        let block = few.block;
        let graph = &block.body.body;
        let finals = self.finals(scan, outs)?;
        let first_sequence = &operands[scan.states];
        let batch = first_sequence.dims[1 - scan.axis].eval(self.bindings)?;
        let mut site = Site::new("scan", few.threads, self);
        let shared = site.maker.shared("values", Ty::U32, few.words);
        let values = site.maker.part("steps", shared, 0, few.step_words);
        let (mut asides, mut weights) = (HashMap::new(), HashMap::new());
        for (id, at) in few.tasks.iter().filter_map(|task| Some((task.id, *few.aside.get(&task.id)?))) {
            let len = block.widths[&Value { node: id, slot: 0 }];
            asides.insert(id, at.map(|at| site.maker.part("aside", shared, at, len)));
        }
        for work in few.stages.iter().flat_map(|stage| &stage.works) {
            if let Work::Products(products) = work
                && products.quads_shared > 0
            {
                let part = site.maker.part("weights", shared, products.shared_at, products.shared_words(few.threads));
                weights.insert(products.parts[0].id, part);
            }
        }
        let (from_number, from) = (site.args.len(), site.number("from", 0));
        let (to_number, to) = (site.args.len(), site.number("to", word(steps)?));
        let all_steps = site.size(&first_sequence.dims[scan.axis])?;
        let (mut carry, mut places) = (vec![], vec![]);
        for (state, out) in operands[..scan.states].iter().zip(&finals) {
            let in_arena = matches!(state.home, Home::Slot(_) | Home::Input(_) | Home::Output(_));
            let as_written = in_arena && state.per_word() == 1 && state.is_whole()? && state.strides.is_empty();
            let read = as_written.then(|| site.own_place(state));
            let (written, write_at) = site.own_place(out);
            carry.extend(read.iter().map(|(read, _)| (*read, written)));
            places.push((read.map(|(_, at)| at), write_at));
        }
        let rowless = self.rowless(path, scan, few, operands)?;
        let lists = few.tasks.iter().filter_map(|task| Some((task.id, self.constants.lists(path, task.id)?))).collect();
        let writer = Writer { few, values, asides, weights, rowless, lists, left_out };
        let groups = self.a_group_each(&mut site, batch, |s, row| {
            // The weights are under way while memory is prepared.
            let kept = writer.keep_all(s, When::Chain)?;
            writer.zeros(s)?;
            for (k, (state, (read_at, write_at))) in operands.iter().zip(&places).enumerate() {
                let output = graph.outputs()[k].value;
                let width = block.widths[&output];
                writer.each_of_state(s, output, |s, at, unit| {
                    let arena = s.arena;
                    let of_row = |s: &mut Site<'_>, at: &Expr| s.maker.load(arena, at + &row * width + unit, Ty::U32);
                    if let Some(read_at) = read_at {
                        let word = of_row(s, read_at);
                        s.maker.store(values, at, word);
                        return Ok(());
                    }
                    // It is not stored as states are: later pieces of the sequence read what the first one wrote.
                    let found = s.maker.variable("word", 0u32);
                    s.either(
                        from.eq(0u32),
                        |s| {
                            let place =
                                if state.dims.len() > 1 { vec![row.clone(), unit.clone()] } else { vec![row.clone()] };
                            let loaded = s.load(state, &place)?.bits(Ty::U32);
                            s.maker.set(found, loaded);
                            Ok(())
                        },
                        |s| {
                            let word = of_row(s, write_at);
                            s.maker.set(found, word);
                            Ok(())
                        },
                    )?;
                    let found = s.maker.get(found);
                    s.maker.store(values, at, found);
                    Ok(())
                })?;
            }
            s.strided("part", &from, &to, few.chunk, |s, first| {
                let count = s.maker.name("count", (&to - &first).min(few.chunk));
                let to = To { scan, outs, row: row.clone(), first, all_steps: all_steps.clone() };
                writer.inputs(s, scan, operands, &to, &count)?;
                s.maker.barrier();
                for stage in few.stages.iter().filter(|stage| stage.when == When::Ahead) {
                    writer.for_all_steps(s, stage, &to, &count)?;
                    s.maker.barrier();
                }
                let moving: Vec<Vec<Option<products::Moving>>> =
                    kept.iter().map(|kept| kept.iter().map(|kept| writer.moving_of(s, kept)).collect()).collect();
                s.counted("tick", 0u32, &count + few.places.levels, |s, tick| {
                    for ((stage, kept), moving) in few.stages.iter().zip(&kept).zip(&moving) {
                        if stage.when != When::Chain {
                            continue;
                        }
                        writer.tick(s, stage, kept, moving, &tick)?;
                        s.maker.barrier();
                    }
                    Ok(())
                })?;
                let behind: Vec<&Stage> = few.stages.iter().filter(|stage| stage.when == When::Behind).collect();
                for (number, stage) in behind.iter().enumerate() {
                    if number > 0 {
                        s.maker.barrier();
                    }
                    writer.for_all_steps(s, stage, &to, &count)?;
                }
                writer.results(s, &to, &count, behind.is_empty())?;
                if few.waits_at_end {
                    s.maker.barrier();
                }
                for output in &graph.outputs()[..scan.states] {
                    writer.each_of_state(s, output.value, |s, at, _| {
                        let last = s.maker.load(values, &at + &count * few.places.stride, Ty::U32);
                        s.maker.store(values, at, last);
                        Ok(())
                    })?;
                }
                Ok(())
            })?;
            for (k, (_, write_at)) in places.iter().enumerate() {
                let output = graph.outputs()[k].value;
                let width = block.widths[&output];
                writer.each_of_state(s, output, |s, at, unit| {
                    let (arena, word) = (s.arena, s.maker.load(values, at, Ty::U32));
                    s.maker.store(arena, write_at + &row * width + unit, word);
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        let walk = Walk { steps: word(steps)?, from: from_number, to: to_number, carry };
        self.dispatch(site, groups, place, Some(walk))?;
        self.copy_finals(&finals, outs, place)?;
        let body = self.block_plan(&block.body, 1)?;
        let workgroup = Some(few.workgroup(self.limits));
        Ok(Box::new(Loop { steps, block_rows: Some(1), blocks: batch, body, tail: None, workgroup }))
    }

    /// The views of values that are the same for all rows.
    fn rowless(&self, path: &[u32], scan: &Scan, few: &Few<'_>, operands: &[View]) -> Result<HashMap<Value, View>> {
        let graph = &few.block.body.body;
        let mut found: HashMap<Value, View> = HashMap::new();
        let split = scan.states + scan.sequences;
        for ((_, value), view) in graph.inputs().zip(operands).skip(split) {
            found.insert(value, view.clone());
        }
        for (id, node) in graph.nodes().iter().enumerate() {
            let value = Value { node: id as u32, slot: 0 };
            let from = || node.inputs.first().and_then(|value| found.get(value));
            let dims = node.outs[0].shape.dims();
            let view = match (&node.op, from()) {
                (Op::Const(_), _) => Some(self.constants.view(path, id as u32, node)?),
                (Op::Transpose { perm }, Some(from)) => Some(from.transposed(perm)),
                (Op::Slice { axis, start, .. }, Some(from)) => Some(from.sliced(*axis, start, &dims[*axis])?),
                (Op::Broadcast { .. }, Some(from)) => Some(from.stretched(dims)),
                (Op::Reshape { .. }, Some(from)) => from.reshaped(dims)?,
                _ => None,
            };
            if let Some(view) = view {
                found.insert(value, view);
            }
        }
        Ok(found)
    }
}

/// Writes a word, where the condition holds.
pub(super) fn put(s: &mut Site<'_>, memory: Memory, writes: Option<Expr>, index: Expr, value: &Expr) {
    let word = value.bits(Ty::U32);
    match writes {
        None => s.maker.store(memory, index, word),
        Some(writes) => s.maker.when(writes, |m| m.store(memory, index, word)),
    }
}

impl Writer<'_> {
    /// What is the same for all rows.
    pub(super) fn rowless(&self, value: Value) -> Result<View> {
        let found = self.rowless.get(&value).cloned();
        found.ok_or_else(|| Error::Internal("a loop's weight in another shape".into()))
    }

    /// A value as a task of this level reads it: its first axis counts ticks, or steps of what is ahead or behind.
    pub(super) fn view(&self, value: Value, level: u32) -> Result<View> {
        if self.few.block.body.row_axis(value).is_none() {
            return self.rowless(value);
        }
        let first = match self.few.pieces.get(value) {
            [piece] => self.few.places.word(piece, level),
            _ => return Err(Error::Internal("a value in several places".into())),
        };
        Ok(self.view_at(value, first))
    }

    fn view_at(&self, value: Value, first: u32) -> View {
        let ty = self.few.block.body.body.ty(value);
        let dims = ty.shape.dims().to_vec();
        let mut steps = vec![Dim::fixed(1); dims.len()];
        steps[0] = Dim::fixed(self.few.places.stride as usize);
        let (home, first) = (Home::Shared(self.values), Dim::fixed(first as usize));
        View { home, strides: vec![], dtype: ty.dtype, packed: false, dims, steps, first }
    }

    /// Whether a task of this level works on a step in this tick; none if it always does.
    pub(super) fn began(&self, tick: &Expr, level: u32) -> Option<Expr> {
        (level > 0).then(|| Expr::from(level - 1).lt(tick))
    }

    /// Writes a word of a step, where the condition holds.
    pub(super) fn put(&self, s: &mut Site<'_>, writes: Option<Expr>, index: Expr, value: &Expr) {
        put(s, self.values, writes, index, value);
    }

    /// Sets to 0 what is read and may never be written. A wave begins before the first step and ends after the last, and reads
    /// all kinds of words there; otherwise these are the words that fill values up to four.
    fn zeros(&self, s: &mut Site<'_>) -> Result<()> {
        let (values, places, thread) = (self.values, &self.few.places, s.maker.thread());
        if places.levels > 0 {
            s.strided("filled", thread, self.few.step_words, self.few.threads, |s, e| {
                s.maker.store(values, e, 0u32);
                Ok(())
            })?;
            s.maker.barrier();
            return Ok(());
        }
        let rows = places.rows(self.few.chunk);
        for (at, len) in places.gaps(self.few.block) {
            s.strided("filled", thread.clone(), rows * len, self.few.threads, |s, e| {
                let (row, word) = self.step_and_unit(s, &e, len);
                s.maker.store(values, row * places.stride + (word + at), 0u32);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// For each word of a state before the first step: its place, and its number in the state.
    fn each_of_state<'s>(
        &self,
        s: &mut Site<'s>,
        output: Value,
        mut body: impl FnMut(&mut Site<'s>, Expr, &Expr) -> Result<()>,
    ) -> Result<()> {
        let mut unit = 0u32;
        for piece in self.few.pieces.get(output) {
            let at = self.few.places.word(&Piece { before: true, ..piece.clone() }, 0);
            let thread = s.maker.thread();
            s.strided("e", thread, piece.len, self.few.threads, |s, e| {
                let number = s.maker.name("unit", &e + unit);
                let at = s.maker.name("at", e + at);
                body(s, at, &number)
            })?;
            unit += piece.len;
        }
        Ok(())
    }

    pub(super) fn step_and_unit(&self, s: &mut Site<'_>, e: &Expr, width: u32) -> (Expr, Expr) {
        (s.maker.name("step", e / width), s.maker.name("unit", e.rem(width)))
    }

    /// What threads keep for all stages of a kind; an empty list for others.
    fn keep_all(&self, s: &mut Site<'_>, when: When) -> Result<Vec<Vec<Kept>>> {
        let mut all = vec![];
        for stage in &self.few.stages {
            all.push(if stage.when == when { self.keep(s, stage)? } else { vec![] });
        }
        Ok(all)
    }

    pub(super) fn keep(&self, s: &mut Site<'_>, stage: &Stage) -> Result<Vec<Kept>> {
        let several = stage.when != When::Chain;
        let mut all = vec![];
        for work in &stage.works {
            all.push(match work {
                Work::Products(products) => Kept::Products(self.keep_products(s, products, several)?),
                Work::Synapses(synapses) => {
                    let lists = self.lists.get(&synapses.id);
                    let lists = lists.ok_or_else(|| Error::Internal("synapses without lists".into()))?;
                    Kept::Synapses(self.keep_synapses(s, synapses, lists, several)?)
                }
                Work::Elements(_) => Kept::Nothing,
            });
        }
        Ok(all)
    }

    fn moving_of(&self, s: &mut Site<'_>, kept: &Kept) -> Option<products::Moving> {
        match kept {
            Kept::Products(kept) => Some(self.moving(s, kept)),
            _ => None,
        }
    }

    /// A stage of the chain, in a tick.
    fn tick(
        &self,
        s: &mut Site<'_>,
        stage: &Stage,
        kept: &[Kept],
        moving: &[Option<products::Moving>],
        tick: &Expr,
    ) -> Result<()> {
        for ((work, kept), moving) in stage.works.iter().zip(kept).zip(moving) {
            if self.is_left_out(work) {
                if let Work::Synapses(synapses) = work {
                    (1..synapses.times).for_each(|_| s.maker.barrier());
                }
                continue;
            }
            match (work, kept) {
                (Work::Products(products), Kept::Products(kept)) => {
                    let moving =
                        moving.as_ref().ok_or_else(|| Error::Internal("products that do not move on".into()))?;
                    self.move_on(s, products, kept, moving, tick)?;
                }
                (Work::Synapses(synapses), Kept::Synapses(kept)) => {
                    let level = self.few.level(synapses.id);
                    if matches!(self.few.node(synapses.id).op, Op::SynapseRatio { .. }) {
                        self.unfolded(s, synapses, kept, tick)?;
                        continue;
                    }
                    let results = self.synapses(s, synapses, kept, std::slice::from_ref(tick))?;
                    for (slot, result) in results[0].iter().enumerate() {
                        let value = Value { node: synapses.id, slot: slot as u16 };
                        let index = tick * self.few.places.stride + self.few.places.whole(value, level);
                        let writes = all_of([kept.writes.clone(), self.began(tick, level)]);
                        self.put(s, writes, index + &kept.destination, result);
                    }
                }
                (Work::Elements(id), _) => {
                    let level = self.few.level(*id);
                    let width = self.few.block.widths[&Value { node: *id, slot: 0 }];
                    let thread = s.maker.thread();
                    s.strided("e", thread, width, self.few.threads, |s, unit| {
                        let results = self.element(s, *id, level, tick, &unit)?;
                        for (slot, result) in results.iter().enumerate() {
                            let value = Value { node: *id, slot: slot as u16 };
                            let index = tick * self.few.places.stride + self.few.places.whole(value, level);
                            self.put(s, self.began(tick, level), index + &unit, result);
                        }
                        Ok(())
                    })?;
                }
                _ => return Err(Error::Internal("work and what is kept for it differ".into())),
            }
        }
        Ok(())
    }

    pub(super) fn is_left_out(&self, work: &Work) -> bool {
        let Some(left_out) = self.left_out else { return false };
        match work {
            Work::Products(products) => products.parts.iter().any(|part| part.id == left_out),
            Work::Synapses(synapses) => synapses.id == left_out,
            Work::Elements(id) => *id == left_out,
        }
    }

    /// The results of a node at one element.
    pub(super) fn element(&self, s: &mut Site<'_>, id: u32, level: u32, step: &Expr, unit: &Expr) -> Result<Vec<Expr>> {
        let node = self.few.node(id);
        let views = node.inputs.iter().map(|value| self.view(*value, level)).collect::<Result<Vec<_>>>()?;
        let dtypes: Vec<DType> = node.outs.iter().map(|out| out.dtype).collect();
        let dims = node.outs[0].shape.dims();
        let synapses = self.lists.get(&id).copied();
        let (name, op) = (&node.name, &node.op);
        let call = Call { name, op, inputs: &views, dtypes: &dtypes, dims, synapses, fault: None, lanes: None };
        let at = if dims.len() > 1 { vec![step.clone(), unit.clone()] } else { vec![step.clone()] };
        element(s, &call, &at)
    }
}
