//! One list of cases for every backend: correctness, gradient, speed.
//!
//! A case is a graph, its inputs and how far a result may be from the reference's. Nothing here runs anything: a
//! backend's tests go through [`all`] and compare with [`crate::backend::reference`]; finite differences go through
//! those marked `gradient`; `bench ops` times those of [`speed`].
//!
//! Inputs come from a generator seeded by the case's name, so that a case stays the same when others are added, removed
//! or reordered, and a failure can be repeated from its name alone.
//!
//! Tolerances are what a correct `f32` implementation needs and no more: an operation that IEEE 754 rounds correctly
//! gets a few units in the last place, a polynomial for a transcendental a few parts in a million, a sum grows with its
//! length. Integers, truth values and moved elements must be exact.

mod attention;
mod cells;
mod convert;
mod custom;
mod elementwise;
mod fused;
mod gated;
mod layout;
mod low_bit;
mod matrix;
mod network;
pub mod random;
mod rows;
mod scan;
mod synapse;
mod timed;
mod wired;

use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, GraphBuilder, Value};
use crate::shape::{Bindings, Shape};
use crate::tensor::Tensor;
use random::Random;
use std::collections::BTreeMap;

/// How far a result may be off: `abs + rel·|expected|`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Absolute part.
    pub abs: f64,
    /// Relative part.
    pub rel: f64,
}

impl Tolerance {
    /// No error at all.
    pub const EXACT: Tolerance = Tolerance { abs: 0.0, rel: 0.0 };
    /// One rounding to `f32`, or two; the absolute part forgives flushed denormals.
    pub const ROUNDING: Tolerance = Tolerance { abs: 1.2e-38, rel: 3e-7 };
    /// A transcendental function in `f32`.
    pub const FUNCTION: Tolerance = Tolerance { abs: 3e-7, rel: 4e-6 };
    /// A few `f32` operations after one another, with sums of moderate length.
    pub const CHAIN: Tolerance = Tolerance { abs: 2e-6, rel: 2e-5 };
    /// A whole small network in `f32`.
    pub const NETWORK: Tolerance = Tolerance { abs: 2e-5, rel: 1e-4 };

    /// What rounding to `dtype` costs, where that is more than this allows.
    pub fn stored_as(self, dtype: DType) -> Tolerance {
        match dtype {
            DType::F16 => Tolerance { abs: self.abs.max(1e-4), rel: self.rel.max(2e-3) },
            DType::Bf16 => Tolerance { abs: self.abs.max(1e-4), rel: self.rel.max(1.6e-2) },
            DType::F32 => self,
            DType::I8 | DType::U8 | DType::I32 | DType::Bool => Tolerance::EXACT,
        }
    }

    /// For sums of `terms` products of numbers up to 1.
    pub fn sum_of(terms: usize) -> Tolerance {
        Tolerance { abs: 1e-6 + 1e-7 * terms as f64, rel: 1e-5 }
    }
}

/// A graph with inputs, and what to expect of a backend that runs it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Unique, such as `matmul/f32/17x33x5/bT`.
    pub name: String,
    /// The first part of the name.
    pub group: &'static str,
    /// The graph to run.
    pub graph: Graph,
    /// Its inputs.
    pub inputs: BTreeMap<String, Tensor>,
    /// How far the outputs may be from the reference's.
    pub tolerance: Tolerance,
    /// Whether finite differences make sense: `f32`, smooth at the inputs, and small.
    pub gradient: bool,
    /// Whether it is large enough to time.
    pub speed: bool,
}

impl Case {
    /// The values of the symbols with this case's inputs.
    pub fn bindings(&self) -> Result<Bindings> {
        let mut bindings = Bindings::new();
        self.graph.bind(|name| self.inputs.get(name).map(Tensor::shape), &mut bindings)?;
        Ok(bindings)
    }

    fn smooth(&mut self) -> &mut Case {
        self.gradient = true;
        self
    }
    fn timed(&mut self) -> &mut Case {
        self.speed = true;
        self
    }
}

/// Every case, small enough that the reference runs them all in a test.
pub fn all() -> Vec<Case> {
    let mut cases = vec![];
    for fill in [
        elementwise::unary,
        elementwise::binary,
        elementwise::compare_and_select,
        matrix::matmul,
        rows::reduce,
        rows::softmax,
        rows::norms,
        attention::attention,
        layout::reorder,
        layout::cut_and_join,
        layout::index,
        convert::cast,
        convert::quantize,
        low_bit::numbers_and_rows,
        low_bit::products,
        custom::custom,
        custom::looking_around,
        fused::map,
        fused::several_results,
        fused::joined,
        fused::matmul_map,
        gated::cells,
        synapse::direct_sums,
        synapse::fused_sums,
        wired::wired,
        scan::rnn,
        scan::cells,
        network::outputs,
        network::layers,
        network::rewritable,
    ] {
        fill(&mut List { cases: &mut cases });
    }
    cases
}

/// Larger cases, each big enough to time and of a shape that occurs in small networks.
pub fn speed() -> Vec<Case> {
    let mut cases = vec![];
    timed::fill(&mut List { cases: &mut cases });
    cases
}

/// Says where `got` is not what was `expected`: NaN must meet NaN and an infinity the same infinity.
pub fn compare(expected: &Tensor, got: &Tensor, tolerance: Tolerance) -> std::result::Result<(), String> {
    if expected.dtype() != got.dtype() || expected.shape() != got.shape() {
        return Err(format!("expected {expected}, got {got}"));
    }
    let (want, have) = (expected.to_f64(), got.to_f64());
    let mut wrong = 0;
    let mut first = None;
    for (at, (&w, &h)) in want.iter().zip(&have).enumerate() {
        let allowed = tolerance.abs + tolerance.rel * w.abs();
        // Infinities must be equal: their difference is NaN or infinite, which is never near.
        let near = (w - h).abs() <= allowed && w.is_finite();
        if w != h && !near && !(w.is_nan() && h.is_nan()) {
            wrong += 1;
            first.get_or_insert((at, w, h, allowed));
        }
    }
    let Some((at, w, h, allowed)) = first else { return Ok(()) };
    let mut rest = at;
    let mut index: Vec<usize> = vec![];
    for &size in expected.shape().iter().rev() {
        index.insert(0, rest % size);
        rest /= size;
    }
    Err(format!(
        "{expected}: element {index:?}: expected {w:e}, got {h:e}: off by {:e}, allowed {allowed:e}; {wrong} of {} elements are wrong",
        (w - h).abs(),
        want.len()
    ))
}

/// Where cases are collected.
struct List<'a> {
    cases: &'a mut Vec<Case>,
}

impl List<'_> {
    fn add(
        &mut self,
        group: &'static str,
        name: impl std::fmt::Display,
        tolerance: Tolerance,
        build: impl FnOnce(&mut Maker) -> Result<()>,
    ) -> &mut Case {
        let name = format!("{group}/{name}");
        let mut maker = Maker {
            builder: GraphBuilder::new(),
            random: Random::named(&name),
            inputs: BTreeMap::new(),
            weights: 0,
            outputs: 0,
        };
        // The list is fixed: a case that does not build is a bug in this directory, which every test run shows.
        let graph = build(&mut maker).and_then(|()| maker.builder.build());
        let graph = graph.unwrap_or_else(|e| panic!("case {name} does not build: {e}"));
        let inputs = maker.inputs;
        self.cases.push(Case { name, group, graph, inputs, tolerance, gradient: false, speed: false });
        self.cases.last_mut().expect("one was just added")
    }
}

/// A case under construction: a graph builder that also keeps the inputs' data.
struct Maker {
    builder: GraphBuilder,
    random: Random,
    inputs: BTreeMap<String, Tensor>,
    weights: usize,
    outputs: usize,
}

impl std::ops::Deref for Maker {
    type Target = GraphBuilder;
    fn deref(&self) -> &GraphBuilder {
        &self.builder
    }
}
impl std::ops::DerefMut for Maker {
    fn deref_mut(&mut self) -> &mut GraphBuilder {
        &mut self.builder
    }
}

impl Maker {
    /// An input of exactly the data's type: `x0`, `x1` …
    fn given(&mut self, data: Tensor) -> Result<Value> {
        let shape = Shape::from(data.shape());
        self.given_as(shape, data)
    }

    /// An input whose sizes may be symbols.
    fn given_as(&mut self, shape: Shape, data: Tensor) -> Result<Value> {
        let name = format!("x{}", self.inputs.len());
        let value = self.builder.input(&name, data.dtype(), shape)?;
        self.inputs.insert(name, data);
        Ok(value)
    }

    /// Random numbers from −1 to 1 as an input.
    fn uniform(&mut self, shape: &[usize]) -> Result<Value> {
        let data = self.random.floats(shape, -1.0, 1.0);
        self.given(data)
    }

    /// Random numbers from −1 to 1 as an input whose sizes may be symbols.
    fn uniform_as(&mut self, symbols: Shape, shape: &[usize]) -> Result<Value> {
        let data = self.random.floats(shape, -1.0, 1.0);
        self.given_as(symbols, data)
    }

    /// Trained data: `w0`, `w1` …
    fn trained(&mut self, data: Tensor) -> Result<Value> {
        let name = format!("w{}", self.weights);
        self.weights += 1;
        self.builder.weight(&name, data)
    }

    /// Random weights of a size that keeps sums over their first axis near 1.
    fn trained_uniform(&mut self, shape: &[usize]) -> Result<Value> {
        let range = 1.0 / (shape.first().copied().unwrap_or(1).max(1) as f64).sqrt();
        let data = self.random.floats(shape, -range, range);
        self.trained(data)
    }

    /// A result: `y0`, `y1` …
    fn result(&mut self, value: Value) -> Result<()> {
        let name = format!("y{}", self.outputs);
        self.outputs += 1;
        self.builder.output(&name, value)
    }
}

/// A shape in a table of cases.
type Dims = &'static [usize];

/// Sizes as in a case's name: `17x33`, or `scalar`.
fn sizes(shape: &[usize]) -> String {
    if shape.is_empty() {
        return "scalar".into();
    }
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}
