//! The graphs of training: loss and gradients; a whole step, in which the optimizer's work is part of the graph; and the
//! loss alone, for validation.
//!
//! A step is one graph. Weights and what the optimizer remembers are its states, so that they stay where the backend has
//! them from run to run, on a processor or a device, and a step moves none of them. Where a gradient or the loss is not a
//! finite number, the new states are the old ones.

use super::loss::Loss;
use super::optimizer::{Group, Optimizer, Rates};
use super::precision::{Precision, in_bf16};
use super::round::Rounding;
use crate::scope::{GraphOptions, InitialState, Parameters, Segments, Timespans};
use crate::{Error, Model, Result};
use schwann_core::grad::gradient;
use schwann_core::{DType, Graph, GraphBuilder, Shape, Tensor, Value, shape};
use std::collections::BTreeMap;

/// What a step of training is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// What is made small.
    pub loss: Loss,
    /// How gradients move weights.
    pub optimizer: Optimizer,
    /// The rate of learning, before any schedule.
    pub rate: f32,
    /// Parameters that are treated in another way; of several groups that a parameter belongs to, the last one counts.
    pub groups: Vec<Group>,
    /// The most that all gradients together may measure, as a vector: longer ones are shortened.
    pub clip_norm: Option<f32>,
    /// What products are computed in.
    pub precision: Precision,
    /// Whether the loss is multiplied by a number before it is differentiated, and gradients divided by it.
    pub scaled: bool,
    /// The time between steps.
    pub timespans: Timespans,
    /// Whether a batch goes on where the last one ended, with its states; gradients end at its beginning.
    pub carried: bool,
    /// Whether an input `mask` says how much each row of the results counts.
    pub masked: bool,
    /// How sequences are cut to save memory.
    pub segments: Option<Segments>,
    /// What the errors of each feature are divided by.
    pub unit: Option<Tensor>,
}

impl Default for Recipe {
    fn default() -> Recipe {
        Recipe {
            loss: Loss::Mse,
            optimizer: Optimizer::adam(),
            rate: 1e-3,
            groups: vec![],
            clip_norm: None,
            precision: Precision::F32,
            scaled: false,
            timespans: Timespans::Constant(1.0),
            carried: false,
            masked: false,
            segments: None,
            unit: None,
        }
    }
}

/// Names of the inputs of a step that are no data.
pub(crate) mod input {
    pub(crate) const RATE: &str = "step.rate";
    pub(crate) const OF_MEAN: &str = "step.of_mean";
    pub(crate) const OF_ROOT: &str = "step.of_root";
    pub(crate) const SCALE: &str = "step.scale";
    /// 1 where a row goes on, 0 where it begins anew.
    pub(crate) const GOES_ON: &str = "goes_on";
    pub(crate) const MASK: &str = "mask";
    pub(crate) const TARGET: &str = "target";
}

/// What a parameter's state is called among what the optimizer remembers.
pub(crate) fn remembered(what: &str, parameter: &str) -> String {
    format!("{what}.{parameter}")
}

impl Recipe {
    pub(crate) fn check(&self, model: &Model) -> Result<()> {
        self.loss.check()?;
        self.optimizer.check()?;
        if !(self.rate.is_finite() && self.rate >= 0.0) {
            return Err(Error::argument("rate", self.rate, "a finite number, not negative"));
        }
        if let Some(norm) = self.clip_norm.filter(|norm| !(norm.is_finite() && *norm > 0.0)) {
            return Err(Error::argument("clip_norm", norm, "a finite number above 0"));
        }
        for group in &self.groups {
            group.check()?;
            if !model.params().iter().any(|p| group.has(&p.name)) {
                let names: Vec<&str> = model.params().iter().map(|p| p.name.as_str()).collect();
                let expected = format!("a name of a parameter, with * for any letters: {}", names.join(", "));
                return Err(Error::argument("parameters", &group.parameters, expected));
            }
        }
        if model.params().iter().all(|p| self.group(&p.name).frozen) {
            return Err(Error::argument("frozen", "every parameter", "one at least that is not"));
        }
        if model.sequential().batch_first() == Some(false) {
            return Err(Error::argument("batch_first", false, "true: training takes batches first"));
        }
        if self.carried && model.sequential().batch_first().is_none() {
            return Err(Error::argument("carry", true, "a model with a recurrent layer, which has states"));
        }
        Ok(())
    }

    /// How a parameter is treated.
    pub(crate) fn group(&self, parameter: &str) -> Group {
        let found = self.groups.iter().rev().find(|g| g.has(parameter));
        found.cloned().unwrap_or_else(|| Group::of(parameter))
    }

    /// What a parameter is rounded to before it is used.
    pub(crate) fn rounding(&self, model: &Model, parameter: &str) -> Option<Rounding> {
        self.group(parameter).round.or_else(|| model.rounded().get(parameter).copied())
    }

    fn options(&self) -> GraphOptions {
        let state = if self.carried { InitialState::Given } else { InitialState::Zero };
        let options = GraphOptions::training().timespans(self.timespans).state(state);
        options.parameters(Parameters::Inputs).segments(self.segments)
    }
}

/// The model with its loss: outputs `y`, final states, `loss`, `metric` and what is differentiated, `objective`.
fn with_loss(model: &Model, recipe: &Recipe, options: &GraphOptions, training: bool) -> Result<Graph> {
    let mut outer = model.outer(options, training)?;
    let y = outer.b.graph().outputs()[0].value;
    let (dtype, shape) = recipe.loss.target(&outer.b.ty(y).shape);
    let rows = outer.b.ty(y).shape.dims().split_last().map(|(_, rows)| Shape::from(rows.to_vec()));
    let target = outer.b.input(input::TARGET, dtype, shape)?;
    let mask = match (recipe.masked, rows) {
        (true, Some(rows)) => Some(outer.b.input(input::MASK, DType::F32, rows)?),
        _ => None,
    };
    let built = recipe.loss.build(&mut outer.b, y, target, mask, recipe.unit.as_ref())?;
    outer.b.output("loss", built.loss)?;
    outer.b.output("metric", built.metric)?;
    let mut objective = built.loss;
    if recipe.scaled && training {
        let scale = outer.b.input(input::SCALE, DType::F32, Shape::scalar())?;
        objective = outer.b.named("loss.scaled").mul(objective, scale)?;
    }
    outer.b.output("objective", objective)?;
    Ok(outer.b.build()?)
}

/// Gives parameters that are rounded their rounded values: what a graph of [`with_loss`] takes for them.
fn used(
    b: &mut GraphBuilder,
    weights: &BTreeMap<String, Value>,
    rounding: impl Fn(&str) -> Option<Rounding>,
) -> Result<BTreeMap<String, Value>> {
    let mut used = weights.clone();
    for (name, weight) in &mut used {
        if let Some(rounding) = rounding(name) {
            let outside = b.enter(&format!("round.{name}"));
            *weight = rounding.build(b, *weight)?;
            b.leave(outside);
        }
    }
    Ok(used)
}

/// Inputs for parameters, by name.
fn parameters(b: &mut GraphBuilder, model: &Model) -> Result<BTreeMap<String, Value>> {
    let mut weights = BTreeMap::new();
    for param in model.params() {
        let value = b.input(&param.name, DType::F32, param.shape.as_slice())?;
        weights.insert(param.name.clone(), value);
    }
    Ok(weights)
}

impl Model {
    /// The graph with an input `target` of `y`'s shape and the outputs `loss` = mean((y − target)²) and `grad.<name>` for
    /// every parameter. Where layers have dropout, its masks are inputs too ([`Model::dropout_masks`]).
    ///
    /// [`train::Step`](crate::train::Step) has other losses, and the optimizer in the graph.
    pub fn training_graph(&self, options: &GraphOptions) -> Result<Graph> {
        let mut outer = self.outer(options, true)?;
        let y = outer.b.graph().outputs()[0].value;
        let (dtype, shape) = Loss::Mse.target(&outer.b.ty(y).shape);
        let target = outer.b.input(input::TARGET, dtype, shape)?;
        let built = Loss::Mse.build(&mut outer.b, y, target, None, None)?;
        outer.b.output("loss", built.loss)?;
        let names: Vec<&str> = self.params().iter().map(|p| p.name.as_str()).collect();
        let graph = gradient(&outer.b.build()?, "loss", &names)?;
        let rounded = self.rounded();
        if rounded.is_empty() {
            return Ok(graph);
        }
        // The gradient of a weight that is rounded is that of what it is rounded to.
        let mut b = GraphBuilder::new();
        let mut weights = BTreeMap::new();
        for name in rounded.keys() {
            let shape = self.weight(name)?.shape();
            let value = match options.parameters {
                Parameters::Inputs => b.input(name, DType::F32, shape)?,
                Parameters::Weights => {
                    let problem = "parameters as inputs: they are rounded before they are used";
                    return Err(Error::argument("parameters", "weights", problem));
                }
            };
            weights.insert(name.clone(), value);
        }
        let given = used(&mut b, &weights, |name| rounded.get(name).copied())?;
        let results = b.splice(&graph, &given)?;
        for (output, value) in graph.outputs().iter().zip(results) {
            b.output(&output.name, value)?;
        }
        for state in graph.states() {
            b.state(&state.input, &state.output)?;
        }
        Ok(b.build()?)
    }
}

/// A whole step of training. States: every parameter that is not frozen, what the optimizer remembers of it, and where
/// batches go on the model's own. Outputs: `loss`, `norm` (of all gradients together) and the states' next values.
pub fn step_graph(model: &Model, recipe: &Recipe) -> Result<Graph> {
    recipe.check(model)?;
    let trained: Vec<&str> =
        model.params().iter().map(|p| p.name.as_str()).filter(|name| !recipe.group(name).frozen).collect();
    let options = recipe.options();
    let mut graph = with_loss(model, recipe, &options, true)?;
    if recipe.precision == Precision::Bf16 {
        graph = in_bf16(&graph)?;
    }
    let graph = gradient(&graph, "objective", &trained)?;

    let mut b = GraphBuilder::new();
    let mut weights = BTreeMap::new();
    for param in model.params() {
        let value = match recipe.group(&param.name).frozen {
            true => b.weight(&param.name, model.weight(&param.name)?.clone())?,
            false => b.input(&param.name, DType::F32, param.shape.as_slice())?,
        };
        weights.insert(param.name.clone(), value);
    }
    let mut given = used(&mut b, &weights, |name| recipe.rounding(model, name))?;
    let carried = carry(&mut b, recipe, &graph, &mut given)?;
    let results = b.splice(&graph, &given)?;
    let result = |name: &str| -> Result<Value> {
        let at = graph.output_place(name).ok_or_else(|| Error::argument("output", name, "an output of the graph"))?;
        Ok(results[at])
    };
    let loss = result("loss")?;
    b.output("loss", loss)?;

    // The length of all gradients as one vector: what is clipped, and what tells whether all are finite.
    let outside = b.enter("step");
    let mut squares: Option<Value> = None;
    let mut gradients = vec![];
    for name in &trained {
        let g = result(&format!("grad.{name}"))?;
        let axes: Vec<usize> = (0..b.ty(g).shape.rank()).collect();
        let square = b.named("gradient.square").square(g)?;
        let sum = b.named("gradient.sum").sum(square, &axes, false)?;
        squares = Some(match squares {
            Some(so_far) => b.named("gradients.sum").add(so_far, sum)?,
            None => sum,
        });
        gradients.push(g);
    }
    let squares = squares.ok_or_else(|| Error::argument("frozen", "every parameter", "one at least that is not"))?;
    let mut norm = b.named("gradients.norm").sqrt(squares)?;
    let mut factor = None;
    if recipe.scaled {
        let scale = given.get(input::SCALE).copied().or_else(|| b.graph().input(input::SCALE));
        let scale = scale.ok_or_else(|| Error::argument("loss_scale", "missing", "an input of the step"))?;
        let unscale = b.named("unscale").recip(scale)?;
        norm = b.named("gradients.norm.unscaled").mul(norm, unscale)?;
        factor = Some(unscale);
    }
    if let Some(most) = recipe.clip_norm {
        // As PyTorch's `clip_grad_norm_` has it: most / (norm + 10⁻⁶), and 1 at the most.
        let small = b.named("clip.small").scalar(1e-6)?;
        let below = b.named("clip.below").add(norm, small)?;
        let most = b.named("clip.most").scalar(most)?;
        let share = b.named("clip.share").div(most, below)?;
        let one = b.named("clip.one").scalar(1.0)?;
        let share = b.named("clip").min(share, one)?;
        factor = Some(match factor {
            Some(unscale) => b.named("clip.unscale").mul(share, unscale)?,
            None => share,
        });
    }
    let largest = b.named("finite.most").scalar(f32::MAX)?;
    let size = b.named("finite.loss").abs(loss)?;
    let greater = b.named("finite.greater").max(norm, size)?;
    let finite = b.named("finite").le(greater, largest)?;
    let scalar = |b: &mut GraphBuilder, name: &str| b.input(name, DType::F32, Shape::scalar());
    let rates = Rates {
        lr: scalar(&mut b, input::RATE)?,
        corrections: match recipe.optimizer.corrections(1) {
            Some(_) => Some([scalar(&mut b, input::OF_MEAN)?, scalar(&mut b, input::OF_ROOT)?]),
            None => None,
        },
    };
    b.leave(outside);
    b.output("norm", norm)?;

    let constrained = model.constrained();
    let mut links = vec![];
    for (name, g) in trained.iter().zip(gradients) {
        let outside = b.enter(&format!("step.{name}"));
        let g = match factor {
            Some(factor) => b.named("gradient").mul(g, factor)?,
            None => g,
        };
        let weight = weights[*name];
        let shape = b.ty(weight).shape.clone();
        let mut memory = vec![];
        for what in recipe.optimizer.memory() {
            memory.push(b.input(&remembered(what, name), DType::F32, shape.clone())?);
        }
        let (mut next, later) = recipe.optimizer.update(&mut b, &rates, &recipe.group(name), weight, g, &memory)?;
        if constrained.iter().any(|c| c == name) {
            let zero = b.named("least").scalar(0.0)?;
            next = b.named("constrained").max(next, zero)?;
        }
        // The weight comes last: it is computed from what is remembered, so all of this can be one map.
        let names = recipe.optimizer.memory().iter().map(|what| remembered(what, name));
        let memories = names.zip(&memory).zip(later).map(|((name, old), new)| (name, *old, new));
        let pairs = memories.chain([((*name).to_owned(), weight, next)]);
        for (name, old, new) in pairs {
            let kept = b.named("kept").select(finite, new, old)?;
            let output = format!("next.{name}");
            b.output(&output, kept)?;
            links.push((name, output));
        }
        b.leave(outside);
    }
    for (first, last) in carried {
        b.output(&last, result(&last)?)?;
        links.push((first, last));
    }
    for (input, output) in &links {
        b.state(input, output)?;
    }
    Ok(b.build()?)
}

/// A model's states in a graph where they are given: names of first and last values.
fn states(graph: &Graph) -> Vec<(String, String)> {
    let named = |name: &str| ["h0", "c0"].iter().any(|end| name == *end || name.ends_with(&format!(".{end}")));
    let last = |first: &str| format!("{}n", &first[..first.len() - 1]);
    let all = graph.inputs().map(|(name, _)| name).filter(|name| named(name));
    all.map(|first| (first.to_owned(), last(first))).filter(|(_, last)| graph.output(last).is_some()).collect()
}

/// Where batches go on: gives the graph its first states, which are 0 where a row begins anew, and says which become which.
fn carry(
    b: &mut GraphBuilder,
    recipe: &Recipe,
    graph: &Graph,
    given: &mut BTreeMap<String, Value>,
) -> Result<Vec<(String, String)>> {
    if !recipe.carried {
        return Ok(vec![]);
    }
    let carried = states(graph);
    let goes_on = b.input(input::GOES_ON, DType::F32, shape!["B", 1])?;
    for (first, _) in &carried {
        let Some(ty) = graph.input(first).map(|value| graph.ty(value).clone()) else { continue };
        let state = b.input(first, ty.dtype, ty.shape)?;
        given.insert(first.clone(), b.named(&format!("{first}.kept")).mul(state, goes_on)?);
    }
    Ok(carried)
}

/// The loss alone: parameters are inputs, outputs are `loss` and `metric`; for batches that go on, their states too.
pub(crate) fn evaluation(model: &Model, recipe: &Recipe) -> Result<Graph> {
    recipe.check(model)?;
    let graph = with_loss(model, recipe, &recipe.options().segments(None), false)?;
    let mut b = GraphBuilder::new();
    let weights = parameters(&mut b, model)?;
    // Layers that round do so themselves outside of training.
    let own = model.rounded();
    let mut given = used(&mut b, &weights, |name| recipe.rounding(model, name).filter(|_| !own.contains_key(name)))?;
    let carried = carry(&mut b, recipe, &graph, &mut given)?;
    let results = b.splice(&graph, &given)?;
    for (output, value) in graph.outputs().iter().zip(results) {
        let carries = carried.iter().any(|(_, last)| *last == output.name);
        if carries || output.name == "loss" || output.name == "metric" {
            b.output(&output.name, value)?;
        }
    }
    for (first, last) in &carried {
        b.state(first, last)?;
    }
    Ok(b.build()?)
}

/// Loss and gradients with every float value as an output, in the order of computing: for finding where numbers cease to
/// be finite. Gives the outputs' names.
pub(crate) fn all_values(model: &Model, recipe: &Recipe) -> Result<(Graph, Vec<String>)> {
    let trained: Vec<&str> =
        model.params().iter().map(|p| p.name.as_str()).filter(|name| !recipe.group(name).frozen).collect();
    let mut graph = with_loss(model, recipe, &recipe.options().segments(None), true)?;
    if recipe.precision == Precision::Bf16 {
        graph = in_bf16(&graph)?;
    }
    let graph = gradient(&graph, "objective", &trained)?;
    let mut b = GraphBuilder::new();
    let weights = parameters(&mut b, model)?;
    let given = used(&mut b, &weights, |name| recipe.rounding(model, name))?;
    b.splice(&graph, &given)?;
    let mut names = vec![];
    let mut values = vec![];
    for (id, node) in (0u32..).zip(b.graph().nodes()) {
        for (slot, ty) in (0u16..).zip(&node.outs) {
            if ty.dtype == DType::F32 && !node.op.is_source() {
                names.push(node.name.clone());
                values.push(Value { node: id, slot });
            }
        }
    }
    for (i, value) in values.into_iter().enumerate() {
        b.output(&format!("value.{i}"), value)?;
    }
    Ok((b.build()?, names))
}
