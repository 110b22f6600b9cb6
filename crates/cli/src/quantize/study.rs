//! What quantizing does to a network: errors on samples, bytes, time; and the search for a mix of types.

use crate::{load, out};
use anyhow::{Context, Result, bail};
use schwann::cases::random::Random;
use schwann::prof::measure::{Samples, time_together};
use schwann::quant::{Cost, Errors, Layers, Scheme, WATCHED, Weights, choose, halve, quantize};
use schwann::{Bindings, CompileOptions, DType, Graph, Program, Tensor};
use std::collections::BTreeMap;

/// What a layer becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// It stays as it is.
    Kept,
    /// `f16` or `bf16`.
    Half(DType),
    Quantized(Scheme),
}

/// A network, what it is tried on, and what it gives.
pub(super) struct Study<'a> {
    /// The network as it was given.
    given: &'a Graph,
    layers: &'a Layers<'a>,
    inputs: BTreeMap<String, Tensor>,
    /// Whether the inputs are the user's.
    sampled: bool,
    exact: Vec<Output>,
    /// For each layer the mean squares of its inputs, where samples say.
    importance: BTreeMap<usize, Vec<f32>>,
}

/// One result of a network.
struct Output {
    shape: Vec<usize>,
    values: Vec<f32>,
    /// The axis of its steps.
    steps: Option<usize>,
}

/// One layer before and after.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) shape: [usize; 2],
    pub(super) form: Form,
    pub(super) bytes: [usize; 2],
    pub(super) errors: Errors,
}

/// Everything that was found.
pub(super) struct Outcome {
    pub(super) graph: Graph,
    /// Bytes of all weights before.
    pub(super) bytes_before: usize,
    pub(super) rows: Vec<Row>,
    pub(super) errors: Errors,
    /// The error of the first and of the last step, as shares, where there are steps.
    pub(super) ends: Option<[f64; 2]>,
    pub(super) sampled: bool,
    pub(super) sizes: String,
    pub(super) times: Option<[Samples; 2]>,
}

fn bytes_of(graph: &Graph) -> usize {
    graph.weights().values().map(|t| t.len() * t.dtype().size()).sum()
}

impl Outcome {
    /// Bytes of all weights after.
    pub(super) fn bytes(&self) -> usize {
        bytes_of(&self.graph)
    }
}

impl<'a> Study<'a> {
    pub(super) fn new(
        given: &'a Graph,
        layers: &'a Layers<'a>,
        samples: Option<BTreeMap<String, Tensor>>,
        [batch, steps]: [usize; 2],
    ) -> Result<Study<'a>> {
        let sampled = samples.is_some();
        let inputs = match samples {
            Some(inputs) => inputs,
            None => random(given, batch, steps)?,
        };
        let exact = results(given, &inputs)?;
        let mut study = Study { given, layers, inputs, sampled, exact, importance: BTreeMap::new() };
        if sampled {
            study.importance = study.watch()?;
        }
        Ok(study)
    }

    /// How much each input of each layer matters, on the samples.
    fn watch(&self) -> Result<BTreeMap<usize, Vec<f32>>> {
        let watched = self.layers.watched()?;
        let mut session = Program::compile(&watched, &CompileOptions::default())?.session();
        let names: Vec<String> = watched.outputs().iter().map(|o| o.name.clone()).collect();
        let inputs: Vec<(&str, &Tensor)> = self.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let results = session.run(&inputs)?;
        let mut found = BTreeMap::new();
        for (name, values) in names.iter().zip(results) {
            if let Some(number) = name.strip_prefix(WATCHED).and_then(|n| n.parse().ok()) {
                found.insert(number, values.values::<f32>()?.to_vec());
            }
        }
        Ok(found)
    }

    /// A layer's matrix, and what it becomes; `None` where it is kept.
    fn weights(&self, number: usize, form: Form, rounded: bool) -> Result<Option<(Tensor, Weights)>> {
        let layer = &self.layers.list()[number];
        let matrix = self.layers.matrix(layer)?;
        let importance = self.importance.get(&number).map(Vec::as_slice);
        let made = match form {
            Form::Kept => return Ok(None),
            Form::Half(to) => halve(&matrix, to).map(Weights::Half),
            Form::Quantized(scheme) => {
                quantize(&matrix, scheme, importance).map(|matrix| Weights::LowBit { matrix, rounded })
            }
        };
        Ok(Some((matrix, made.with_context(|| format!("layer `{}`", layer.name))?)))
    }

    /// The network's error as a share of the root mean square of its outputs.
    fn error(&self, graph: &Graph) -> Result<Errors> {
        let now = results(graph, &self.inputs)?;
        let all = |outputs: &[Output]| outputs.iter().flat_map(|o| o.values.iter().copied()).collect::<Vec<f32>>();
        Ok(Errors::of(&all(&self.exact), &all(&now)))
    }

    /// The form of each layer with which the error stays within the bound.
    pub(super) fn search(&self, forms: &[Form], kept: &[bool], rounded: bool, most: f64) -> Result<Vec<usize>> {
        let bar = out::progress((kept.iter().filter(|k| !**k).count() * (forms.len() - 1)) as u64);
        let mut costs: Vec<Vec<Cost>> = vec![];
        for (number, layer) in self.layers.list().iter().enumerate() {
            let mut own = vec![Cost { bytes: 4 * layer.count(), error: 0.0 }];
            for form in forms[1..].iter().filter(|_| !kept[number]) {
                bar.set_message(layer.name.clone());
                // Where a type cannot hold the weights (f16, numbers beyond 65504), it is not chosen.
                let made = match self.weights(number, *form, rounded) {
                    Err(_) if matches!(form, Form::Half(_)) => None,
                    made => made?,
                };
                let Some((_, weights)) = made else {
                    own.push(Cost { bytes: usize::MAX, error: f64::INFINITY });
                    bar.inc(1);
                    continue;
                };
                let bytes = weights.bytes();
                let graph = self.layers.with(&BTreeMap::from([(number, weights)]))?;
                let error = self.error(&graph)?.relative.unwrap_or(f64::INFINITY);
                own.push(Cost { bytes, error });
                bar.inc(1);
            }
            costs.push(own);
        }
        bar.finish_and_clear();
        // Errors may add up to more than their squares say: then less is allowed, until what is measured is within.
        let mut allowed = most;
        for _ in 0..24 {
            let chosen = choose(&costs, allowed);
            let error = self.error(&self.layers.with(&self.chosen(forms, &chosen, rounded)?)?)?;
            if error.relative.is_some_and(|e| e <= most) || chosen.iter().all(|form| *form == 0) {
                return Ok(chosen);
            }
            allowed *= 0.8;
        }
        bail!("no mix of types was found whose error is at most {most}; the layers would stay as they are")
    }

    fn chosen(&self, forms: &[Form], chosen: &[usize], rounded: bool) -> Result<BTreeMap<usize, Weights>> {
        let mut all = BTreeMap::new();
        for (number, form) in chosen.iter().enumerate() {
            if let Some((_, weights)) = self.weights(number, forms[*form], rounded)? {
                all.insert(number, weights);
            }
        }
        Ok(all)
    }

    /// The network with these forms, measured.
    pub(super) fn measure(&self, forms: &[Form], chosen: &[usize], rounded: bool, seconds: f64) -> Result<Outcome> {
        let (mut rows, mut all) = (vec![], BTreeMap::new());
        for (number, layer) in self.layers.list().iter().enumerate() {
            let (form, before) = (forms[chosen[number]], 4 * layer.count());
            let (after, errors) = match self.weights(number, form, rounded)? {
                None => (before, Errors::of(&[], &[])),
                Some((matrix, weights)) => {
                    let errors = Errors::of(matrix.values()?, &weights.numbers());
                    let bytes = weights.bytes();
                    all.insert(number, weights);
                    (bytes, errors)
                }
            };
            let shape = [layer.rows, layer.len];
            rows.push(Row { name: layer.name.clone(), shape, form, bytes: [before, after], errors });
        }
        let graph = self.layers.with(&all)?;
        let errors = self.error(&graph)?;
        let ends = self.ends(&graph)?;
        let times = if seconds > 0.0 { Some(self.time(&graph, seconds)?) } else { None };
        let sizes = self.inputs.iter().map(|(name, t)| format!("{name} {t}")).collect::<Vec<_>>().join(", ");
        let bytes_before = bytes_of(self.given);
        Ok(Outcome { graph, bytes_before, rows, errors, ends, sampled: self.sampled, sizes, times })
    }

    /// The errors of the first and the last step.
    fn ends(&self, graph: &Graph) -> Result<Option<[f64; 2]>> {
        let now = results(graph, &self.inputs)?;
        let at = |last: bool| {
            let (mut want, mut got) = (vec![], vec![]);
            for (exact, now) in self.exact.iter().zip(&now) {
                let Some(axis) = exact.steps.filter(|a| exact.shape[*a] > 1) else { continue };
                let step = if last { exact.shape[axis] - 1 } else { 0 };
                let inner: usize = exact.shape[axis + 1..].iter().product();
                let stays = |i: &usize| i / inner % exact.shape[axis] == step;
                want.extend((0..exact.values.len()).filter(stays).map(|i| exact.values[i]));
                got.extend((0..now.values.len()).filter(stays).map(|i| now.values[i]));
            }
            Errors::of(&want, &got).relative
        };
        Ok(at(false).zip(at(true)).map(|(first, last)| [first, last]))
    }

    fn time(&self, graph: &Graph, seconds: f64) -> Result<[Samples; 2]> {
        let inputs: Vec<(&str, &Tensor)> = self.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let options = CompileOptions::default();
        let mut before = Program::compile(self.given, &options)?.session();
        let mut after = Program::compile(graph, &options)?.session();
        let mut first = || before.run(&inputs).map(|_| ());
        let mut second = || after.run(&inputs).map(|_| ());
        let mut samples = time_together(seconds, &mut [&mut first, &mut second])?;
        let second = samples.remove(1);
        Ok([samples.remove(0), second])
    }
}

/// Random inputs of a network: numbers from −1 to 1.
fn random(graph: &Graph, batch: usize, steps: usize) -> Result<BTreeMap<String, Tensor>> {
    let mut bindings = Bindings::new();
    for symbol in graph.symbols() {
        let size = if symbol == "T" { steps } else { batch };
        bindings = bindings.with(&symbol, size);
    }
    let mut inputs = BTreeMap::new();
    let is_state = |name: &str| graph.states().iter().any(|s| s.input == name);
    for (name, value) in graph.inputs().filter(|(name, _)| !is_state(name)) {
        let ty = graph.ty(value);
        if !ty.dtype.is_float() {
            bail!(
                "input `{name}` is {ty}: random numbers would say nothing; give samples with --calibrate {name}=FILE.npy"
            );
        }
        let shape = ty.shape.eval(&bindings)?;
        inputs.insert(name.to_owned(), Random::named(name).floats_as(ty.dtype, &shape, -1.0, 1.0));
    }
    Ok(inputs)
}

/// What a network gives, without states.
fn results(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<Output>> {
    let mut session = Program::compile(graph, &CompileOptions::default())?.session();
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    for state in graph.states() {
        let value = graph.inputs().find(|(name, _)| *name == state.input).map(|(_, value)| value);
        let mut bindings = Bindings::new();
        graph.bind(|name| inputs.get(name).map(Tensor::shape), &mut bindings)?;
        if let Some(value) = value {
            let ty = graph.ty(value);
            session.set_state(&state.input, load::zeros(ty.dtype, &ty.shape.eval(&bindings)?)?)?;
        }
    }
    let tensors = session.run(&given)?.to_vec();
    let mut all = vec![];
    for (output, tensor) in graph.outputs().iter().zip(tensors) {
        if tensor.dtype() != DType::F32 || graph.states().iter().any(|s| s.output == output.name) {
            continue;
        }
        let steps = graph.ty(output.value).shape.dims().iter().position(|d| d.to_string() == "T");
        all.push(Output { shape: tensor.shape().to_vec(), values: tensor.values::<f32>()?.to_vec(), steps });
    }
    if all.is_empty() {
        bail!("the network has no output of f32, so there is nothing to compare");
    }
    Ok(all)
}
