//! A step of training, compiled; and the loss of a batch without one.

use super::graph::{self, Recipe, input, remembered};
use crate::data::Loader;
use crate::model::drop_out;
use crate::{Error, Model, Result};
use schwann_core::backend::Observer;
use schwann_core::live::Door;
use schwann_core::plan::Plan;
use schwann_core::{Bindings, CompileOptions, DType, Program, Session, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Samples to learn from, and what is wanted of them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What the model is given, `[B, T, C]` (without a time axis where the model has no state; `i32` before an embedding).
    pub x: Tensor,
    /// What is wanted: of the results' shape, or the classes' numbers.
    pub target: Tensor,
    /// The time between steps, `[B, T]`.
    pub timespans: Option<Tensor>,
    /// How much each row of the results counts: all axes but the last.
    pub mask: Option<Tensor>,
    /// 1 where a row goes on from the last batch, 0 where it begins anew, `[B, 1]`.
    pub goes_on: Option<Tensor>,
}

impl Batch {
    /// Inputs and targets alone.
    pub fn new(x: Tensor, target: Tensor) -> Batch {
        Batch { x, target, timespans: None, mask: None, goes_on: None }
    }

    /// How many samples, and how long they are.
    pub fn sizes(&self) -> (usize, usize) {
        let shape = self.x.shape();
        (shape.first().copied().unwrap_or(0), shape.get(1).copied().unwrap_or(1))
    }

    pub(crate) fn bytes(&self) -> usize {
        let more = [&self.timespans, &self.mask, &self.goes_on].into_iter().flatten();
        [&self.x, &self.target].into_iter().chain(more).map(|t| t.bytes().len()).sum()
    }

    fn inputs(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let maybe = [("timespans", &self.timespans), (input::MASK, &self.mask), (input::GOES_ON, &self.goes_on)];
        let maybe = maybe.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        [("x", &self.x), (input::TARGET, &self.target)].into_iter().chain(maybe)
    }
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The loss before the step.
    pub loss: f32,
    /// The length of all gradients as one vector.
    pub norm: f32,
}

impl Outcome {
    /// Whether loss and gradients were finite; if not, the step changed nothing.
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.norm.is_finite()
    }
}

/// What the memory of a step is for, in bytes (derived from the plan).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// Values of the forward and backward pass.
    pub arena_bytes: usize,
    /// Weights and what the optimizer remembers of them, as they are and as they become.
    pub state_bytes: usize,
    /// Weights that stay, and constants.
    pub weight_bytes: usize,
    /// Batches: the one in use, and those that are being prepared.
    pub batch_bytes: usize,
}

impl Memory {
    /// All of it.
    pub fn total_bytes(&self) -> usize {
        self.arena_bytes + self.state_bytes + self.weight_bytes + self.batch_bytes
    }
}

/// The most inputs of a step: more are refused, so that their list needs no memory of its own.
const MOST_INPUTS: usize = 64;

/// A compiled step of training: forward, loss, backward and optimizer as one graph, whose weights stay in the session.
///
/// ```
/// use schwann_core::{CompileOptions, Tensor};
/// use schwann_nn::train::{Batch, Recipe, Step};
/// use schwann_nn::{Cfc, Model};
///
/// # fn main() -> schwann_nn::Result<()> {
/// let mut model = Model::new(Cfc::new(2, 4), 1)?;
/// let recipe = Recipe { rate: 0.01, ..Recipe::default() };
/// let mut step = Step::new(&model, &recipe, &CompileOptions::default())?;
/// let batch = Batch::new(Tensor::new(&[1, 3, 2], &[0.5f32; 6])?, Tensor::new(&[1, 3, 4], &[0.1f32; 12])?);
/// let first = step.run(&batch)?.loss;
/// for _ in 0..20 {
///     step.run(&batch)?;
/// }
/// assert!(step.run(&batch)?.loss < first);
/// step.write_weights(&mut model)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Step {
    program: Arc<Program>,
    session: Session,
    recipe: Recipe,
    /// Parameters that learn.
    trained: Vec<String>,
    /// Dropout's masks: name, width and rate, and the mask for the sizes of the latest batch.
    masks: Vec<(String, usize, f32, Tensor)>,
    /// Rate, corrections and scale, as the graph takes them.
    rates: [(&'static str, Tensor); 4],
    /// Steps so far.
    steps: u64,
    /// What dropout's masks are drawn from.
    seed: u64,
}

impl Step {
    /// Compiles a step for a model; training begins with its weights.
    pub fn new(model: &Model, recipe: &Recipe, compile: &CompileOptions) -> Result<Step> {
        let program = Program::compile(&graph::step_graph(model, recipe)?, compile)?;
        Step::of(program, model, recipe)
    }

    /// The same for a backend at hand.
    pub fn new_for(
        model: &Model,
        recipe: &Recipe,
        backend: &dyn schwann_core::backend::Backend,
        compile: &CompileOptions,
    ) -> Result<Step> {
        let program = Program::compile_for(&graph::step_graph(model, recipe)?, backend, compile)?;
        Step::of(program, model, recipe)
    }

    fn of(program: Arc<Program>, model: &Model, recipe: &Recipe) -> Result<Step> {
        let trained: Vec<String> =
            model.params().iter().map(|p| p.name.clone()).filter(|name| !recipe.group(name).frozen).collect();
        let mut masks = vec![];
        for (name, width, rate) in model.dropout() {
            masks.push((name, width, rate, Tensor::zeros(DType::F32, &[0, 0, width])?));
        }
        let used = program.graph().inputs().len() - program.graph().states().len();
        if used > MOST_INPUTS {
            return Err(Error::argument("inputs of a step", used, format!("{MOST_INPUTS} at most")));
        }
        let rates = [input::RATE, input::OF_MEAN, input::OF_ROOT, input::SCALE];
        let rates = rates.map(|name| (name, Tensor::scalar(1.0f32)));
        let mut step = Step {
            session: program.session(),
            program,
            recipe: recipe.clone(),
            trained,
            masks,
            rates,
            steps: 0,
            seed: 0,
        };
        step.begin(model)?;
        Ok(step)
    }

    /// Begins anew with a model's weights: nothing is remembered.
    pub fn begin(&mut self, model: &Model) -> Result<()> {
        self.session.reset();
        self.steps = 0;
        for name in &self.trained {
            self.session.set_state(name, model.weight(name)?.clone())?;
            for what in self.recipe.optimizer.memory() {
                let zeros = Tensor::zeros(DType::F32, model.weight(name)?.shape())?;
                self.session.set_state(&remembered(what, name), zeros)?;
            }
        }
        Ok(())
    }

    /// From now on, every step can be watched through this door, as [`Session::watch`] says.
    pub fn watch(&mut self, door: &Door) {
        self.session.watch(door);
    }

    /// The program, for profilers and plans.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }
    /// What it was made of.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }
    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }
    /// What dropout's masks are drawn from, together with the number of steps.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// A step at the recipe's own rate.
    pub fn run(&mut self, batch: &Batch) -> Result<Outcome> {
        self.run_at(batch, 1.0, 1.0, None)
    }

    /// A step at a share of the recipe's rate; `scale` is what the loss is multiplied by, where the recipe scales it.
    /// After the first step of a size, nothing is allocated.
    pub fn run_at(
        &mut self,
        batch: &Batch,
        share: f32,
        scale: f32,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Outcome> {
        let number = self.steps + 1;
        let [of_mean, of_root] = self.recipe.optimizer.corrections(number).unwrap_or([1.0; 2]);
        for ((_, tensor), value) in self.rates.iter_mut().zip([self.recipe.rate * share, of_mean, of_root, scale]) {
            tensor.values_mut::<f32>()?[0] = value;
        }
        let (rows, steps) = batch.sizes();
        for (name, width, rate, mask) in &mut self.masks {
            if mask.shape() != [rows, steps, *width] {
                *mask = Tensor::zeros(DType::F32, &[rows, steps, *width])?;
            }
            drop_out(mask.values_mut::<f32>()?, name, *rate, self.seed.wrapping_add(number));
        }
        let nothing = &self.rates[0].1;
        let mut list: [(&str, &Tensor); MOST_INPUTS] = [("", nothing); MOST_INPUTS];
        let graph = self.program.graph();
        let rates = self.rates.iter().map(|(name, tensor)| -> (&str, &Tensor) { (name, tensor) });
        let rates = rates.filter(|(name, _)| graph.input(name).is_some());
        let masks = self.masks.iter().map(|(name, _, _, mask)| -> (&str, &Tensor) { (name, mask) });
        let mut count = 0;
        let batch = batch.inputs().map(|(name, tensor)| -> (&str, &Tensor) { (name, tensor) });
        for (place, given) in list.iter_mut().zip(batch.chain(rates).chain(masks)) {
            *place = given;
            count += 1;
        }
        match observer {
            Some(observer) => self.session.run_observed(&list[..count], Some(observer))?,
            // Which a door sees, too.
            None => self.session.run(&list[..count])?,
        };
        let one = |name: &str| Ok::<_, Error>(self.session.output(name)?.values::<f32>()?[0]);
        let outcome = Outcome { loss: one("loss")?, norm: one("norm")? };
        if outcome.is_finite() {
            self.steps = number;
        }
        Ok(outcome)
    }

    /// What a parameter is now.
    pub fn weight(&self, name: &str) -> Result<&Tensor> {
        let value = self.session.read_state(name)?;
        value.ok_or_else(|| Error::weight(name, "not learning", format!("one of {}", self.trained.join(", "))))
    }

    /// The parameters that learn.
    pub fn trained(&self) -> &[String] {
        &self.trained
    }

    /// Gives a model the weights as they are now, before any rounding.
    pub fn write_weights(&self, model: &mut Model) -> Result<()> {
        for name in &self.trained {
            model.set_weight(name, self.weight(name)?.clone())?;
        }
        Ok(())
    }

    /// Gives a model the weights as they are used: rounded, where the recipe rounds them.
    pub fn write_used_weights(&self, model: &mut Model) -> Result<()> {
        for name in &self.trained {
            let weight = self.weight(name)?;
            let weight = match self.recipe.group(name).round {
                Some(rounding) => rounding.apply(weight)?,
                None => weight.clone(),
            };
            model.set_weight(name, weight)?;
        }
        Ok(())
    }

    /// Everything that is remembered from step to step, by name, but for the weights themselves.
    pub(crate) fn remembered(&self) -> Result<BTreeMap<String, Tensor>> {
        let states = self.program.graph().states().iter().filter(|s| !self.trained.contains(&s.input));
        let read = |input: &String| Ok(self.session.read_state(input)?.map(|t| (input.clone(), t.clone())));
        states.filter_map(|s| read(&s.input).transpose()).collect()
    }

    /// Goes on where another step was: its number, and states by name.
    pub(crate) fn restore(&mut self, steps: u64, states: BTreeMap<String, Tensor>) -> Result<()> {
        for (name, value) in states {
            self.session.set_state(&name, value)?;
        }
        self.steps = steps;
        Ok(())
    }

    fn bindings(&self, batch: usize, steps: usize) -> Bindings {
        let symbols = self.program.graph().symbols();
        let known = [("B", batch), ("T", steps)].into_iter().filter(|(symbol, _)| symbols.contains(*symbol));
        known.fold(Bindings::new(), |sizes, (symbol, size)| sizes.with(symbol, size))
    }

    /// The plan of a step for batches of this size.
    pub fn plan(&self, batch: usize, steps: usize) -> Result<Plan> {
        Ok(self.program.plan(&self.bindings(batch, steps))?)
    }

    /// What a step of this size will take, before one is run, with so many bytes of batches.
    pub fn memory(&self, batch: usize, steps: usize, batch_bytes: usize) -> Result<Memory> {
        let sizes = self.bindings(batch, steps);
        let plan = self.program.plan(&sizes)?;
        let graph = self.program.graph();
        let mut state_bytes = 0;
        for state in graph.states() {
            let Some(value) = graph.input(&state.input) else { continue };
            let ty = graph.ty(value);
            let count: usize = ty.shape.eval(&sizes)?.iter().product();
            // As it is, and as it becomes.
            state_bytes += 2 * count * ty.dtype.size();
        }
        Ok(Memory { arena_bytes: plan.arena_bytes, state_bytes, weight_bytes: plan.weight_bytes, batch_bytes })
    }
}

/// The loss of batches without learning from them.
#[derive(Debug)]
pub struct Evaluation {
    session: Session,
    names: Vec<String>,
}

impl Evaluation {
    /// For this model, or weights of its shapes.
    pub fn new(model: &Model, recipe: &Recipe, compile: &CompileOptions) -> Result<Evaluation> {
        let program = Program::compile(&graph::evaluation(model, recipe)?, compile)?;
        if program.graph().inputs().len() > MOST_WEIGHTS {
            let expected = format!("{MOST_WEIGHTS} parameters and inputs at most");
            return Err(Error::argument("model", program.graph().inputs().len(), expected));
        }
        let names = model.params().iter().map(|p| p.name.clone()).collect();
        Ok(Evaluation { session: program.session(), names })
    }

    /// Loss and metric of a batch with these weights, by name.
    pub fn run<'w>(&mut self, batch: &Batch, weight: &dyn Fn(&str) -> Result<&'w Tensor>) -> Result<[f32; 2]> {
        let mut list: [(&str, &Tensor); MOST_WEIGHTS] = [("", &batch.x); MOST_WEIGHTS];
        let mut count = 0;
        for given in batch.inputs() {
            list[count] = given;
            count += 1;
        }
        for name in &self.names {
            list[count] = (name, weight(name)?);
            count += 1;
        }
        self.session.run(&list[..count])?;
        let one = |name: &str| Ok::<_, Error>(self.session.output(name)?.values::<f32>()?[0]);
        Ok([one("loss")?, one("metric")?])
    }

    /// Loss and metric of all of a loader's windows, which must be at its beginning, and is there again afterwards.
    pub fn all<'w>(&mut self, loader: &mut Loader, weight: &dyn Fn(&str) -> Result<&'w Tensor>) -> Result<[f64; 2]> {
        self.session.reset();
        let (mut sums, mut rows) = ([0f64; 2], 0f64);
        loop {
            let filled = loader.next_batch()?;
            if let Some(bad) = &filled.bad {
                return Err(Error::file(format!("validation: {bad}; expected a finite number")));
            }
            let found = self.run(filled.batch(), weight)?;
            let count = filled.rows as f64;
            sums.iter_mut().zip(found).for_each(|(sum, value)| *sum += f64::from(value) * count);
            rows += count;
            if filled.last {
                return Ok(sums.map(|sum| sum / rows.max(1.0)));
            }
        }
    }
}

/// The most inputs of an evaluation.
const MOST_WEIGHTS: usize = 512;
