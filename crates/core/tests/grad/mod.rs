//! Gradients against central finite differences, both in `f64` through the reference backend.

mod cases;
mod loops;
mod models;
mod operations;

use schwann_core::backend::reference::{HostValue, run_f64};
use schwann_core::grad::gradient;
use schwann_core::{Bindings, DType, Graph, GraphBuilder, Result, Shape, Tensor, Value};
use std::collections::BTreeMap;

/// The same numbers every time: a linear congruential generator.
struct Random(u64);
impl Random {
    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        low + (high - low) * ((self.0 >> 11) as f64 / (1u64 << 53) as f64)
    }
    fn value(&mut self, dtype: DType, shape: Vec<usize>, low: f64, high: f64) -> HostValue {
        let data = (0..shape.iter().product()).map(|_| self.uniform(low, high)).collect();
        HostValue { dtype, shape, data }
    }
    fn tensor(&mut self, shape: &[usize]) -> Tensor {
        self.value(DType::F32, shape.to_vec(), -0.8, 0.8).to_tensor().unwrap()
    }
}

type Inputs = BTreeMap<String, HostValue>;

/// Random inputs for a graph; those whose names start with `pos` are positive, integers are 0, 1 or 2.
fn random_inputs(graph: &Graph, bindings: &Bindings, seed: u64) -> Inputs {
    let mut random = Random(seed);
    let mut inputs = Inputs::new();
    for (name, value) in graph.inputs() {
        let ty = graph.ty(value);
        let (low, high) = if name.starts_with("pos") { (0.3, 1.7) } else { (-1.5, 1.5) };
        let mut v = random.value(ty.dtype, ty.shape.eval(bindings).unwrap(), low, high);
        match ty.dtype {
            DType::Bool => v.data.iter_mut().for_each(|x| *x = f64::from(u8::from(*x > 0.0))),
            d if !d.is_float() => v.data.iter_mut().for_each(|x| *x = (*x + 1.5).floor()),
            _ => {}
        }
        inputs.insert(name.to_owned(), v);
    }
    inputs
}

/// Compares at most `most` elements of each gradient with differences, of which there must be some.
fn compare(graph: &Graph, of: &str, wrt: &[&str], inputs: &Inputs, most: usize, tolerance: f64) {
    let with = gradient(graph, of, wrt).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    with.verify().unwrap_or_else(|e| panic!("{e}\n{with}"));
    let at = graph.outputs().iter().position(|o| o.name == of).unwrap();
    let mut random = Random(99);

    let plain = run_f64(graph, inputs).unwrap();
    let scalar = graph.output_types()[at].shape.rank() == 0;
    let mut seed = random.value(plain[at].dtype, plain[at].shape.clone(), -1.0, 1.0);
    let mut all = inputs.clone();
    if scalar {
        seed.data = vec![1.0];
    } else {
        all.insert(format!("grad_out.{of}"), seed.clone());
    }
    let results = run_f64(&with, &all).unwrap_or_else(|e| panic!("{e}\n{with}"));
    for (before, after) in plain.iter().zip(&results) {
        let same = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-9 * a.abs().max(1.0);
        assert!(before.data.iter().zip(&after.data).all(same), "the original results must not change\n{graph}");
    }

    let loss = |graph: &Graph, inputs: &Inputs| -> f64 {
        let y = &run_f64(graph, inputs).unwrap()[at];
        y.data.iter().zip(&seed.data).map(|(a, b)| a * b).sum()
    };
    assert_eq!(results.len(), plain.len() + wrt.len(), "a gradient each");
    let mut compared = 0;
    for (name, g) in wrt.iter().zip(&results[plain.len()..]) {
        let pick = |r: &mut Random| r.uniform(0.0, g.data.len() as f64) as usize;
        let chosen: Vec<usize> = match g.data.len() {
            n if n <= most => (0..n).collect(),
            _ => (0..most).map(|_| pick(&mut random)).collect(),
        };
        for i in chosen {
            let difference = if let Some(input) = inputs.get(*name) {
                assert_eq!(g.shape, input.shape);
                let at = |step: f64| {
                    let mut moved = inputs.clone();
                    moved.get_mut(*name).unwrap().data[i] += step;
                    loss(graph, &moved)
                };
                // Five points: the error is of order h⁴, which loops with steep steps need.
                const H: f64 = 5e-5;
                (8.0 * (at(H) - at(-H)) - (at(2.0 * H) - at(-2.0 * H))) / (12.0 * H)
            } else {
                // A weight is stored rounded: what counts is the step that was really taken.
                let data = graph.weight(name).unwrap();
                assert_eq!(g.shape, data.shape());
                let at = |step: f64| {
                    let mut values = data.to_f64();
                    values[i] += step;
                    let moved = Tensor::from_f64(data.dtype(), data.shape(), &values).unwrap();
                    let x = moved.to_f64()[i];
                    let mut copy = graph.clone();
                    copy.set_weight(name, moved).unwrap();
                    (x, loss(&copy, inputs))
                };
                let ((x1, l1), (x0, l0)) = (at(1e-4), at(-1e-4));
                (l1 - l0) / (x1 - x0)
            };
            let (ours, error) = (g.data[i], (g.data[i] - difference).abs() / difference.abs().max(1.0));
            assert!(error < tolerance, "d {of} / d {name}[{i}]: {ours}, by differences {difference}\n{graph}");
            compared += 1;
        }
    }
    assert!(compared > 0, "no gradient of {of} has an element\n{graph}");
}

/// Builds a graph whose result is `y` and checks its gradient by every float input.
fn check(bindings: &[(&str, usize)], build: impl FnOnce(&mut GraphBuilder) -> Result<Value>) {
    let mut b = GraphBuilder::new();
    let y = build(&mut b).unwrap();
    b.output("y", y).unwrap();
    check_graph(&b.build().unwrap(), bindings);
}

/// Checks the gradient of every float output by every float input.
fn check_graph(graph: &Graph, bindings: &[(&str, usize)]) {
    check_some(graph, bindings, 24);
}
/// The same at no more than `most` elements of each.
fn check_some(graph: &Graph, bindings: &[(&str, usize)], most: usize) {
    let bindings = bindings.iter().fold(Bindings::new(), |b, (s, n)| b.with(s, *n));
    let wrt: Vec<&str> = graph.inputs().filter(|(_, v)| graph.ty(*v).dtype.is_float()).map(|(n, _)| n).collect();
    let floats: Vec<_> = graph.outputs().iter().filter(|o| graph.ty(o.value).dtype.is_float()).collect();
    assert!(!floats.is_empty(), "no output has a gradient\n{graph}");
    for of in floats {
        compare(graph, &of.name, &wrt, &random_inputs(graph, &bindings, 7), most, 1e-6);
    }
}

fn input(b: &mut GraphBuilder, name: &str, shape: impl Into<Shape>) -> Value {
    b.input(name, DType::F32, shape).unwrap()
}

fn vector(data: &[f64]) -> HostValue {
    HostValue { dtype: DType::F32, shape: vec![data.len()], data: data.to_vec() }
}
