//! Ways to take a step in less memory: time against memory, chosen by a budget.

use super::graph::Recipe;
use super::step::{Memory, Step};
use crate::scope::Segments;
use crate::{Model, Result};
use schwann_core::CompileOptions;
use schwann_core::memory::Budget;

/// One way to take a step.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Way {
    /// Steps of a segment; `None` keeps everything.
    pub segment: Option<usize>,
    /// What a step takes (derived).
    pub memory: Memory,
}

/// The ways there are for sequences of this length, from the most memory to the least: everything kept, then segments of
/// twice the root of the length, of the root, and of half of it. With segments of the root, what is kept between them is as
/// long as what is computed again within one.
pub fn ways(
    model: &Model,
    recipe: &Recipe,
    compile: &CompileOptions,
    (batch, steps): (usize, usize),
    batch_bytes: usize,
) -> Result<Vec<Way>> {
    let root = (steps as f64).sqrt().round() as usize;
    let mut lengths: Vec<Option<usize>> = vec![None];
    lengths.extend([2 * root, root, root / 2].into_iter().filter(|n| *n > 1 && 2 * n <= steps).map(Some));
    // Memory is only counted: a plan beyond the budget is an answer too.
    let compile = compile.clone().budget(Budget::unlimited());
    let mut found = vec![];
    for segment in lengths {
        let segments = segment.map(|each| Segments { steps, each });
        let step = Step::new(model, &Recipe { segments, ..recipe.clone() }, &compile)?;
        found.push(Way { segment, memory: step.memory(batch, steps, batch_bytes)? });
    }
    Ok(found)
}
