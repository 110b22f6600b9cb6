//! A whole model: layers one after the other, and their weights.

use crate::guard;
use crate::init::{Param, Random};
use crate::layer::{Layer, POSITIVE};
use crate::scope::{GraphOptions, Outer, Scope, Timespans};
use crate::train::Rounding;
use crate::{
    Activation, Affine, BitLinear, Cfc, Embedding, Error, Gru, LayerNorm, Linear, Lstm, Ltc, Result, Rnn, Softmax,
};
use schwann_core::{CompileOptions, DType, Dim, Graph, Program, Shape, Tensor, shape};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Layers, each on the output of the one before.
///
/// A single layer's parameters have the names of its own state dict. In a stack, names begin with the layer's number,
/// `0.rnn_cell.ff1.weight`, as in PyTorch's `Sequential`. The states are `h0`, `hn` (and `c0`, `cn`); where several layers
/// have states, their names begin with the number too.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequential(pub Vec<Layer>);

impl From<Vec<Layer>> for Sequential {
    fn from(layers: Vec<Layer>) -> Sequential {
        Sequential(layers)
    }
}
impl From<Layer> for Sequential {
    fn from(layer: Layer) -> Sequential {
        Sequential(vec![layer])
    }
}
macro_rules! from_one {
    ($($layer:ident),*) => { $(
        impl From<$layer> for Sequential {
            fn from(layer: $layer) -> Sequential {
                Sequential(vec![layer.into()])
            }
        }
    )* };
}
from_one!(Cfc, Ltc, Lstm, Gru, Rnn, Linear, BitLinear, Affine, LayerNorm, Softmax, Embedding, Activation);

impl Sequential {
    fn prefix(&self, layer: usize) -> String {
        if self.0.len() == 1 { String::new() } else { format!("{layer}.") }
    }

    fn state_prefix(&self, layer: usize) -> String {
        let recurrent = self.0.iter().filter(|l| l.recurrent().is_some()).count();
        if recurrent == 1 { String::new() } else { format!("{layer}.") }
    }

    /// Whether sequences are `[B, T, C]`; `None` where no layer has a state, and `x` is `[B, C]`.
    pub(crate) fn batch_first(&self) -> Option<bool> {
        self.0.iter().find_map(Layer::recurrent).map(|(batch_first, _)| batch_first)
    }

    /// Every parameter with its whole name; layers that do not fit each other are refused.
    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        if self.0.is_empty() {
            return Err(Error::argument("layers", "an empty list", "at least one layer"));
        }
        let mut params = vec![];
        let mut width: Option<usize> = None;
        let mut sequence = true;
        for (i, layer) in self.0.iter().enumerate() {
            let at = |problem: Error| match problem {
                Error::Argument { argument, got, expected } if self.0.len() > 1 => {
                    Error::Argument { argument: format!("layers[{i}].{argument}"), got, expected }
                }
                other => other,
            };
            let own = layer.params().map_err(at)?;
            params.extend(own.into_iter().map(|p| Param { name: self.prefix(i) + &p.name, ..p }));
            let widths = layer.widths();
            if let (Some(before), Some(input)) = (width, widths.input)
                && before != input
            {
                let name = format!("layers[{i}]'s input size");
                return Err(Error::argument(name, input, format!("{before}, what layers[{}] gives", i - 1)));
            }
            width = widths.output.or(width);
            if matches!(layer, Layer::Embedding(_)) && i > 0 {
                return Err(Error::argument(format!("layers[{i}]"), "an Embedding", "it as the first layer"));
            }
            if let Some((batch_first, sequences)) = layer.recurrent() {
                if !sequence {
                    let expected = "a layer without a state, since one before it has `return_sequences` false";
                    return Err(Error::argument(format!("layers[{i}]"), layer.class(), expected));
                }
                if self.batch_first() != Some(batch_first) {
                    let expected = format!("{}, as in the layers before", !batch_first);
                    return Err(Error::argument(format!("layers[{i}].batch_first"), batch_first, expected));
                }
                sequence = sequences;
            }
        }
        Ok(params)
    }

    /// Features in; `None` for symbols or where any number goes through.
    pub(crate) fn input_size(&self) -> Option<usize> {
        match self.0.first() {
            Some(Layer::Embedding(_)) => None,
            _ => self.0.iter().find_map(|layer| layer.widths().input),
        }
    }
}

/// The longest name of a layer, in characters.
const MOST_NAME: usize = 200;

/// A model: layers and weights.
///
/// ```
/// use schwann_core::{CompileOptions, Tensor};
/// use schwann_nn::{Cfc, GraphOptions, Model};
///
/// # fn main() -> schwann_nn::Result<()> {
/// let model = Model::new(Cfc::new(4, 16), 1)?;
/// let program = model.compile(&GraphOptions::default(), &CompileOptions::default())?;
/// let mut session = program.session();
/// // A batch of 2 samples, 10 steps, 4 features.
/// let x = Tensor::new(&[2, 10, 4], &[0.1f32; 80])?;
/// let y = &session.run(&[("x", &x)])?[0];
/// assert_eq!(y.shape(), [2, 10, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    layers: Sequential,
    params: Vec<Param>,
    weights: BTreeMap<String, Tensor>,
    /// What its maker called the layers; empty if nothing was said.
    names: Vec<String>,
}

impl Model {
    /// A model that starts as ncps' would, drawn from `seed`.
    pub fn new(layers: impl Into<Sequential>, seed: u64) -> Result<Model> {
        let layers = layers.into();
        let params = layers.params()?;
        let mut weights = BTreeMap::new();
        for param in &params {
            let values = param.init.draw(&param.shape, &mut Random::new(seed, &param.name));
            weights.insert(param.name.clone(), Tensor::new(&param.shape, &values)?);
        }
        Ok(Model { layers, params, weights, names: vec![] })
    }

    /// A model of these weights: every parameter and nothing else, of its shape, in finite `f32`.
    pub fn with_weights(layers: impl Into<Sequential>, weights: BTreeMap<String, Tensor>) -> Result<Model> {
        let layers = layers.into();
        let params = layers.params()?;
        for param in &params {
            match weights.get(&param.name) {
                Some(data) => check_weight(param, data)?,
                None => return Err(Error::weight(&param.name, "missing", type_of(param))),
            }
        }
        let known: BTreeSet<&str> = params.iter().map(|p| p.name.as_str()).collect();
        if let Some(extra) = weights.keys().find(|name| !known.contains(name.as_str())) {
            let got = format!("{}, and not of this model", weights[extra]);
            return Err(Error::weight(extra, got, format!("only {}", listed(&params))));
        }
        Ok(Model { layers, params, weights, names: vec![] })
    }

    /// The same with names for its layers, one for each: what its operations are called by in plans, profiles and
    /// pictures. Parameters and states keep theirs.
    pub fn with_names(mut self, names: Vec<String>) -> Result<Model> {
        if names.len() != self.layers.0.len() {
            return Err(Error::argument("names", names.len(), format!("{}, one a layer", self.layers.0.len())));
        }
        let usable = |name: &String| name.chars().count() <= MOST_NAME && !name.chars().any(char::is_control);
        if let Some(name) = names.iter().find(|name| !usable(name)) {
            let expected = format!("at most {MOST_NAME} characters, none of them a control character");
            return Err(Error::argument("names", format!("{name:?}"), expected));
        }
        self.names = names;
        Ok(self)
    }

    /// The names that were given to the layers; none if nothing was said.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What a layer's operations are called by: the name it was given; else its class, with its number before it where
    /// there are several layers, as its parameters have it.
    pub fn path(&self, layer: usize) -> String {
        let Some(word) = self.layers.0.get(layer).map(Layer::word) else { return String::new() };
        let number = if self.layers.0.len() > 1 { layer.to_string() } else { String::new() };
        let given = self.names.get(layer).filter(|name| !name.is_empty()).unwrap_or(&number);
        match given {
            name if name.is_empty() || *name == self.layers.0[layer].class() => word,
            // A number alone, as `Sequential` has it, says little.
            name if name.chars().all(|c| c.is_ascii_digit() || c == '.') => format!("{name}.{word}"),
            name => name.clone(),
        }
    }

    /// The layers.
    pub fn layers(&self) -> &[Layer] {
        &self.layers.0
    }
    pub(crate) fn sequential(&self) -> &Sequential {
        &self.layers
    }
    /// The parameters: names, shapes and what they start as.
    pub fn params(&self) -> &[Param] {
        &self.params
    }
    /// The weights by name.
    pub fn weights(&self) -> &BTreeMap<String, Tensor> {
        &self.weights
    }
    /// A weight.
    pub fn weight(&self, name: &str) -> Result<&Tensor> {
        self.weights.get(name).ok_or_else(|| self.unknown(name))
    }

    /// Gives a weight new values.
    pub fn set_weight(&mut self, name: &str, data: Tensor) -> Result<()> {
        let param = self.params.iter().find(|p| p.name == name).ok_or_else(|| self.unknown(name))?;
        check_weight(param, &data)?;
        self.weights.insert(name.to_owned(), data);
        Ok(())
    }

    fn unknown(&self, name: &str) -> Error {
        Error::weight(name, "not of this model", format!("one of {}", listed(&self.params)))
    }

    /// Brings weights that must not be negative back to 0: `w`, `sensory_w`, `cm` and `gleak` of LTC layers without
    /// implicit constraints. To be called after each step of an optimizer.
    pub fn constrain(&mut self) -> Result<()> {
        for name in self.layers.constrained() {
            if let Some(data) = self.weights.get_mut(&name)
                && data.values::<f32>()?.iter().any(|v| *v < 0.0)
            {
                data.values_mut::<f32>()?.iter_mut().for_each(|v| *v = v.max(0.0));
            }
        }
        Ok(())
    }

    /// The model as a graph.
    ///
    /// Inputs: `x` (`[B, T, C]`; `[T, B, C]` where `batch_first` is false; `[T, C]` without a batch; `i32` without the
    /// last axis before an [`Embedding`]; `[B, C]` where no layer has a state), `timespans` and first states as
    /// [`GraphOptions`] say. Outputs: `y`, then the final states.
    pub fn graph(&self, options: &GraphOptions) -> Result<Graph> {
        Ok(self.outer(options, false)?.b.build()?)
    }

    /// The graph compiled for this machine's CPU.
    pub fn compile(&self, options: &GraphOptions, compile: &CompileOptions) -> Result<Arc<Program>> {
        Ok(Program::compile(&self.graph(options)?, compile)?)
    }

    pub(crate) fn outer<'a>(&'a self, options: &'a GraphOptions, training: bool) -> Result<Outer<'a>> {
        self.check_timespans(options)?;
        let shapes = self.params.iter().map(|p| (p.name.clone(), p.shape.clone())).collect();
        let mut outer = Outer::new(options, training, shapes, &self.weights);
        let layout = self.layers.batch_first();
        let batch_axis = usize::from(layout == Some(false));
        let (rows, time) = (outer.rows(), outer.steps());
        let leading: Vec<Dim> = match layout {
            None => vec![rows],
            Some(true) => vec![rows, time],
            Some(false) => vec![time, rows],
        };
        let mut value = if let Some(Layer::Embedding(_)) = self.layers.0.first() {
            outer.input("x", DType::I32, Shape::from(leading.clone()), batch_axis)?
        } else {
            let features = self.layers.input_size().map_or(Dim::symbol("C"), Dim::fixed);
            let mut shape = leading.clone();
            shape.push(features);
            outer.input("x", DType::F32, Shape::from(shape), batch_axis)?
        };
        if options.timespans == Timespans::PerStep {
            let given = outer.input("timespans", DType::F32, Shape::from(leading.clone()), batch_axis)?;
            let [first, second] = &leading[..] else { unreachable!("checked: timespans need a CfC or an LTC") };
            let column = shape![first, second, 1];
            outer.timespans = Some(outer.b.named("timespans.column").reshape(given, column)?);
        }
        let mut sequence = layout.is_some();
        for (i, layer) in self.layers.0.iter().enumerate() {
            outer.prefix = self.layers.prefix(i);
            outer.state_prefix = self.layers.state_prefix(i);
            value = outer.within(&self.path(i), |outer| layer.build(outer, value))?;
            sequence = sequence && layer.recurrent().is_none_or(|(_, sequences)| sequences);
        }
        let batch_axis = if sequence { batch_axis } else { 0 };
        outer.output("y", value, batch_axis)?;
        outer.finish_states()?;
        // Parameters that have no effect (those of a circuit without sensory synapses) are part of the graph all the same.
        outer.prefix = String::new();
        for param in &self.params {
            outer.param(&param.name)?;
        }
        Ok(outer)
    }

    fn check_timespans(&self, options: &GraphOptions) -> Result<()> {
        let timed = self.layers.0.iter().any(Layer::timed);
        match options.timespans {
            Timespans::PerStep if !timed => {
                Err(Error::argument("timespans", "an input", "a model with a CfC or an LTC, which alone know of time"))
            }
            Timespans::Constant(dt) if !timed && dt != 1.0 => {
                Err(Error::argument("timespans", dt, "1, since no layer of the model knows of time"))
            }
            Timespans::Constant(dt) => {
                let solves = self.layers.0.iter().any(|l| matches!(l, Layer::Ltc(_)));
                if !guard::span_is_good(dt, solves) {
                    return Err(Error::argument("timespans", dt, guard::expected_span(solves)));
                }
                Ok(())
            }
            Timespans::PerStep => Ok(()),
        }
    }

    /// Masks for dropout in a graph for training, by the names of its inputs: each value is kept with its probability
    /// and scaled so that the mean stays, as PyTorch does. The same seed gives the same masks.
    pub fn dropout_masks(&self, batch: usize, steps: usize, seed: u64) -> Result<Vec<(String, Tensor)>> {
        let (first, second) = if self.layers.batch_first() == Some(false) { (steps, batch) } else { (batch, steps) };
        let mut masks = vec![];
        for (name, width, rate) in self.dropout() {
            let mut mask = Tensor::zeros(DType::F32, &[first, second, width])?;
            drop_out(mask.values_mut::<f32>()?, &name, rate, seed);
            masks.push((name, mask));
        }
        Ok(masks)
    }

    /// Dropout's masks: the names of the inputs, their widths, and the share that is dropped.
    pub(crate) fn dropout(&self) -> Vec<(String, usize, f32)> {
        let of = |(i, layer): (usize, &Layer)| {
            let prefix = self.layers.prefix(i);
            layer.dropout().into_iter().map(move |(name, width, rate)| (format!("{prefix}{name}"), width, rate))
        };
        self.layers.0.iter().enumerate().flat_map(of).collect()
    }

    /// Parameters that are rounded before they are used.
    pub(crate) fn rounded(&self) -> BTreeMap<String, Rounding> {
        let of = |(i, layer): (usize, &Layer)| {
            let (name, rounding) = layer.rounded()?;
            Some((format!("{}{name}", self.layers.prefix(i)), rounding))
        };
        self.layers.0.iter().enumerate().filter_map(of).collect()
    }

    /// Parameters that must not be negative.
    pub(crate) fn constrained(&self) -> Vec<String> {
        self.layers.constrained()
    }
}

/// Fills a mask of dropout.
pub(crate) fn drop_out(mask: &mut [f32], name: &str, rate: f32, seed: u64) {
    let mut random = Random::new(seed, name);
    let kept = 1.0 / (1.0 - rate);
    mask.iter_mut().for_each(|value| *value = if random.unit() < f64::from(rate) { 0.0 } else { kept });
}

impl Sequential {
    /// Parameters that must not be negative.
    fn constrained(&self) -> Vec<String> {
        let mut names = vec![];
        for (i, layer) in self.0.iter().enumerate() {
            if let Layer::Ltc(ltc) = layer
                && !ltc.implicit_param_constraints
            {
                names.extend(POSITIVE.map(|name| format!("{}rnn_cell.{name}", self.prefix(i))));
            }
        }
        names
    }
}

fn type_of(param: &Param) -> String {
    format!("f32{:?}", param.shape)
}

fn listed(params: &[Param]) -> String {
    let names: Vec<String> = params.iter().take(40).map(|p| format!("`{}`", p.name)).collect();
    let more = if params.len() > names.len() { ", …" } else { "" };
    names.join(", ") + more
}

/// Whether data is what a parameter needs: its type and shape, and finite.
fn check_weight(param: &Param, data: &Tensor) -> Result<()> {
    if data.dtype() != DType::F32 || data.shape() != param.shape {
        return Err(Error::weight(&param.name, data, type_of(param)));
    }
    let (mut seen, mut wrong) = (0, None);
    data.read_once::<f32>(|values| {
        let at = values.iter().position(|v| !v.is_finite());
        wrong = wrong.take().or(at.map(|at| (seen + at, values[at])));
        seen += values.len();
    })?;
    match wrong {
        Some((at, value)) => Err(Error::weight(&param.name, format!("{value} at element {at}"), "finite numbers")),
        None => Ok(()),
    }
}
