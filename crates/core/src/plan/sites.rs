//! Every place of a plan, those inside of loops too.

use super::{Plan, Step};
use crate::op::Cost;

/// One place of a plan: a step, or a step of a loop's body.
#[derive(Clone, Debug)]
pub struct Site<'p> {
    /// The step's number; in loops after those of the steps around it.
    pub path: Vec<usize>,
    /// What runs there.
    pub step: &'p Step,
    /// The loop around it.
    pub within: Option<&'p Step>,
    /// How often a run calls it.
    pub calls: u64,
}

impl Site<'_> {
    /// The work of a run at this place alone: a loop has none but that of its body.
    pub fn own_cost(&self) -> Cost {
        if self.step.looped.is_some() { Cost::default() } else { self.step.cost.times(self.calls) }
    }
}

/// Every place of a plan in the order that it runs, loops before what is in them; the rows left over after whole blocks
/// come after the blocks, numbered on from the body's last step.
pub fn sites(plan: &Plan) -> Vec<Site<'_>> {
    fn walk<'p>(
        plan: &'p Plan,
        first: usize,
        path: &[usize],
        within: Option<&'p Step>,
        calls: u64,
        into: &mut Vec<Site<'p>>,
    ) {
        for (i, step) in plan.steps.iter().enumerate() {
            let path = [path, &[first + i]].concat();
            into.push(Site { path: path.clone(), step, within, calls });
            if let Some(looped) = &step.looped {
                let steps = calls.saturating_mul(looped.steps as u64);
                walk(&looped.body, 0, &path, Some(step), steps.saturating_mul(looped.blocks as u64), into);
                if let Some(tail) = &looped.tail {
                    walk(tail, looped.body.steps.len(), &path, Some(step), steps, into);
                }
            }
        }
    }
    let mut into = vec![];
    walk(plan, 0, &[], None, 1, &mut into);
    into
}
