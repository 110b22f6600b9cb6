//! Loops. Where rows are independent, a loop is one kernel: a workgroup takes a block of rows through all steps, with states
//! and intermediate values in shared memory (weights too, where they fit and that pays), and waits only where threads read
//! what others wrote. Any other loop is the kernels of its body, dispatched once for each step.

pub(crate) mod abreast;
mod block;
mod few;
mod left_out;
mod occupancy;
mod products;
mod resident;
mod since;
pub(crate) mod tiles;
mod walk;

use super::site::word;
use super::view::View;
use super::{Lowering, Scope, minus};
use schwann_core::op::Scan;
use schwann_core::pass::rows::independent;
use schwann_core::plan::{Loop, Plan, Step};
use schwann_core::{Dim, Op, Result};
use std::sync::Arc;

impl Lowering<'_> {
    /// A loop: one kernel if that can be, else the kernels of its body.
    pub(super) fn scan(
        &mut self,
        scope: &Scope<'_>,
        id: u32,
        scan: &Scan,
        operands: &[View],
        outs: &[View],
        place: &[usize],
    ) -> Result<Box<Loop>> {
        let steps = operands[scan.states].dims[scan.axis].eval(self.bindings)?;
        word(steps)?;
        if let Ok(body) = independent(scan)? {
            let path = [&scope.path[..], &[id]].concat();
            if let Some(looped) = self.in_tiles(&path, scan, &body, operands, outs, place, steps)? {
                return Ok(looped);
            }
            if let Some(block) = self.block(&path, scan, body, operands)? {
                // A block of rows abreast lies column by column.
                if block.abreast.is_none()
                    && let Some(few) = self.few(scan, &block, &path, steps)?
                {
                    return self.few_kernel(&path, scan, few, operands, outs, place, steps);
                }
                return self.one_kernel(&path, scan, &block, operands, outs, place, steps);
            }
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
        Ok(Box::new(Loop { steps, block_rows: None, blocks: 1, body, tail: None, workgroup: None }))
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
            unified_memory: None,
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

/// Whether a node of a body is only another view of what it reads.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Transpose { .. } | Op::Slice { .. } | Op::Broadcast { .. } | Op::Reshape { .. })
}
