//! What is done for all steps of a part of the sequence at once: inputs that come, what is computed ahead of the chain and
//! behind it, and results that go.
//!
//! Threads that a step does not need work on other steps, and each on some at the same time, so that it waits less.

use super::kernel::{Kept, Writer, all_of};
use super::work::{Stage, Work};
use crate::lower::site::Site;
use crate::lower::view::View;
use schwann_codegen::lang::{Expr, Ty};
use schwann_core::op::Scan;
use schwann_core::{Error, Result, Value};

/// Steps that a thread works on at the same time, of what is ahead or behind.
const AT_ONCE: u32 = 4;

/// Where results of steps go.
pub(super) struct To<'s> {
    pub(super) scan: &'s Scan,
    pub(super) outs: &'s [View],
    pub(super) row: Expr,
    /// The time of the part's first step.
    pub(super) first: Expr,
    pub(super) all_steps: Expr,
}

impl To<'_> {
    fn time(&self, s: &mut Site<'_>, step: &Expr) -> Expr {
        let time = &self.first + step;
        let time = if self.scan.reverse { &self.all_steps - 1u32 - time } else { time };
        s.maker.name("time", time)
    }

    /// Writes an element of a result in a step.
    fn put(&self, s: &mut Site<'_>, k: usize, step: &Expr, unit: &Expr, value: &Expr) -> Result<()> {
        let mut at = vec![self.row.clone()];
        if self.outs[k].dims.len() > 2 {
            at.push(unit.clone());
        }
        at.insert(self.scan.axis, self.time(s, step));
        s.store(&self.outs[k], &at, value)
    }
}

impl Writer<'_> {
    /// Copies the inputs of some steps.
    pub(super) fn inputs(
        &self,
        s: &mut Site<'_>,
        scan: &Scan,
        operands: &[View],
        to: &To<'_>,
        count: &Expr,
    ) -> Result<()> {
        let graph = &self.few.block.body.body;
        for ((_, value), sequence) in graph.inputs().zip(operands).skip(scan.states).take(scan.sequences) {
            if !self.few.block.is_needed(value) {
                continue;
            }
            let width = self.few.block.widths[&value];
            let first = self.few.places.whole(value, 0);
            let thread = s.maker.thread();
            s.strided("e", thread, count * width, self.few.threads, |s, e| {
                let (step, unit) = self.step_and_unit(s, &e, width);
                let mut at = vec![to.row.clone()];
                if sequence.dims.len() > 2 {
                    at.push(unit.clone());
                }
                at.insert(scan.axis, to.time(s, &step));
                let loaded = s.load(sequence, &at)?;
                let index = &step * self.few.places.stride + first + &unit;
                self.put(s, None, index, &loaded);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// A stage of what is ahead or behind, for all steps of a part of the sequence.
    pub(super) fn for_all_steps(&self, s: &mut Site<'_>, stage: &Stage, to: &To<'_>, count: &Expr) -> Result<()> {
        let kept = self.keep(s, stage)?;
        for (work, kept) in stage.works.iter().zip(&kept) {
            if self.is_left_out(work) {
                continue;
            }
            let role = match kept {
                Kept::Products(kept) => &kept.role,
                Kept::Synapses(kept) => &kept.role,
                Kept::Nothing => {
                    self.elements_of_steps(s, work, to, count)?;
                    continue;
                }
            };
            let least = if role.groups > 1 { 1 } else { 2 };
            let together = AT_ONCE.min(self.few.chunk.div_ceil(role.groups)).max(least);
            let (groups, group) = (role.groups, role.group.clone());
            s.strided("steps", 0u32, count, groups * together, |s, steps| {
                let last = s.maker.name("last", count - 1u32);
                let all: Vec<Expr> =
                    (0..together).map(|u| s.maker.name("step", &steps + &group + u * groups)).collect();
                let inside: Vec<Expr> = all.iter().map(|step| s.maker.name("step", step.min(&last))).collect();
                match (work, kept) {
                    (Work::Products(products), Kept::Products(kept)) => {
                        let places: Vec<Vec<Expr>> = inside.iter().map(|step| self.places(s, kept, step)).collect();
                        let results = self.products(s, products, kept, &inside, &places)?;
                        for (step, result) in all.iter().zip(&results) {
                            let writes = all_of([kept.writes.clone(), Some(step.lt(count))]);
                            let value = Value { node: products.parts[0].id, slot: 0 };
                            self.result(s, to, value, writes, step, &kept.unit, result)?;
                        }
                    }
                    (Work::Synapses(synapses), Kept::Synapses(kept)) => {
                        let results = self.synapses(s, synapses, kept, &inside)?;
                        for (step, results) in all.iter().zip(&results) {
                            for (slot, result) in results.iter().enumerate() {
                                let writes = all_of([kept.writes.clone(), Some(step.lt(count))]);
                                let value = Value { node: synapses.id, slot: slot as u16 };
                                self.result(s, to, value, writes, step, &kept.destination, result)?;
                            }
                        }
                    }
                    _ => return Err(Error::Internal("work and what is kept for it differ".into())),
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn elements_of_steps(&self, s: &mut Site<'_>, work: &Work, to: &To<'_>, count: &Expr) -> Result<()> {
        let Work::Elements(id) = work else { return Ok(()) };
        let width = self.few.block.widths[&Value { node: *id, slot: 0 }];
        let thread = s.maker.thread();
        s.strided("e", thread, count * width, self.few.threads, |s, e| {
            let (step, unit) = self.step_and_unit(s, &e, width);
            let results = self.element(s, *id, 0, &step, &unit)?;
            for (slot, result) in results.iter().enumerate() {
                self.result(s, to, Value { node: *id, slot: slot as u16 }, None, &step, &unit, result)?;
            }
            Ok(())
        })
    }

    /// Writes an element of what is ahead or behind: to the words of its step, or to where the loop's results are if nothing
    /// else reads it.
    #[expect(clippy::too_many_arguments, reason = "which element of what, when, and where it goes")]
    fn result(
        &self,
        s: &mut Site<'_>,
        to: &To<'_>,
        value: Value,
        writes: Option<Expr>,
        step: &Expr,
        unit: &Expr,
        result: &Expr,
    ) -> Result<()> {
        if let Some(k) = self.few.only_results.get(&value) {
            return match writes {
                None => to.put(s, *k, step, unit, result),
                Some(writes) => s.guarded(writes, |s| to.put(s, *k, step, unit, result)),
            };
        }
        let index = step * self.few.places.stride + self.few.places.whole(value, 0);
        self.put(s, writes, index + unit, result);
        Ok(())
    }

    /// Writes the results of some steps that are in the steps' words.
    pub(super) fn results(&self, s: &mut Site<'_>, to: &To<'_>, count: &Expr, waited: bool) -> Result<()> {
        let graph = &self.few.block.body.body;
        let mut waited = waited;
        for (k, output) in graph.outputs().iter().enumerate().skip(to.scan.states) {
            let pieces = self.few.pieces.get(output.value);
            if pieces.iter().any(|piece| self.few.only_results.get(&piece.value) == Some(&k)) {
                continue;
            }
            if !waited && pieces.iter().any(|piece| self.few.is_behind(piece.value)) {
                s.maker.barrier();
                waited = true;
            }
            let mut before = 0u32;
            for piece in pieces {
                let (first, width, thread) = (self.few.places.word(piece, 0), piece.len, s.maker.thread());
                s.strided("e", thread, count * width, self.few.threads, |s, e| {
                    let (step, unit) = self.step_and_unit(s, &e, width);
                    let word = s.maker.load(self.values, &step * self.few.places.stride + first + &unit, Ty::U32);
                    let word = s.maker.name("word", word).bits(Ty::F32);
                    to.put(s, k, &step, &(unit + before), &word)
                })?;
                before += width;
            }
        }
        Ok(())
    }
}
