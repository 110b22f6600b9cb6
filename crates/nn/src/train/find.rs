//! Where numbers ceased to be finite: the first value of the graph, in the order of computing, that has one.

use super::graph::{self, Recipe, input};
use super::step::{Batch, Step};
use crate::model::drop_out;
use crate::{Model, Result};
use schwann_core::pass::PassOptions;
use schwann_core::{CompileOptions, DType, Program, Tensor};

/// Says in words where the first number is that is not finite, in this batch with these weights.
pub(crate) fn first_bad(model: &Model, recipe: &Recipe, step: &Step, batch: &Batch, seed: u64) -> Result<String> {
    for name in step.trained() {
        if let Some(place) = place(step.weight(name)?, false) {
            return Ok(format!("the weight `{name}` is {place}"));
        }
    }
    let (graph, names) = graph::all_values(model, recipe)?;
    // Without passes, so that every value is one of the network as it was built.
    let options = CompileOptions::default().threads(1).passes(PassOptions::none());
    let mut session = Program::compile(&graph, &options)?.session();
    let (rows, steps) = batch.sizes();
    let mut owned: Vec<(String, Tensor)> = vec![];
    for (name, width, rate) in model.dropout() {
        let mut mask = Tensor::zeros(DType::F32, &[rows, steps, width])?;
        drop_out(mask.values_mut::<f32>()?, &name, rate, seed.wrapping_add(step.steps() + 1));
        owned.push((name, mask));
    }
    for (name, value) in graph.inputs() {
        let ty = graph.ty(value);
        let dims = ty.shape.dims();
        let of_rows = name.ends_with("h0") || name.ends_with("c0");
        if of_rows && dims.len() == 2 && model.params().iter().all(|p| p.name != name) {
            owned.push((name.to_owned(), Tensor::zeros(DType::F32, &[rows, dims[1].as_fixed().unwrap_or(1)])?));
        }
    }
    let one = Tensor::scalar(1.0f32);
    let mut inputs: Vec<(&str, &Tensor)> = vec![("x", &batch.x), (input::TARGET, &batch.target)];
    for (name, value) in [("timespans", &batch.timespans), (input::MASK, &batch.mask)] {
        inputs.extend(value.as_ref().map(|value| (name, value)));
    }
    inputs.extend(owned.iter().map(|(name, value)| (name.as_str(), value)));
    if recipe.scaled {
        inputs.push((input::SCALE, &one));
    }
    for param in model.params() {
        let value = step.weight(&param.name).or_else(|_| model.weight(&param.name))?;
        inputs.push((&param.name, value));
    }
    for (value, name) in session.run(&inputs)?.iter().zip(&names) {
        let sequence = value.shape().len() == 3;
        if let Some(place) = place(value, sequence) {
            return Ok(format!("`{name}` is {place}"));
        }
    }
    Ok("no value of the graph when it is computed again without passes".into())
}

/// The first number that is not finite, and where it is; of a sequence, the first step that has one.
fn place(value: &Tensor, sequence: bool) -> Option<String> {
    let values = value.values::<f32>().ok()?;
    let mut at = values.iter().position(|v| !v.is_finite())?;
    if let (true, &[_, steps, width]) = (sequence, value.shape()) {
        let step = |i: &usize| i / width % steps;
        let bad = values.iter().enumerate().filter(|(_, v)| !v.is_finite()).map(|(i, _)| i);
        at = bad.min_by_key(step)?;
        let (row, feature) = (at / width / steps, at % width);
        return Some(format!("{} in row {row} of the batch, step {}, feature {feature}", values[at], step(&at)));
    }
    let mut index = vec![];
    let mut rest = at;
    for size in value.shape().iter().rev() {
        index.push((rest % size).to_string());
        rest /= size;
    }
    index.reverse();
    Some(format!("{} at [{}]", values[at], index.join(", ")))
}
