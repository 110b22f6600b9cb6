//! Random graphs: optimised, planned, fused and run on several threads, they give what the reference gives.
//!
//! 500 graphs in an ordinary run; `SCHWANN_LONG=1` (or any count of graphs in it) runs 20,000.

#[path = "drawn/choices.rs"]
mod choices;

use choices::Choices;
use proptest::prelude::*;
use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::random::Random;
use schwann_core::op::{Binary, Compare, Op, Reduction, Unary};
use schwann_core::pass::PassOptions;
use schwann_core::{Bindings, CompileOptions, DType, Dim, Graph, GraphBuilder, Program, Result, Shape, Tensor, Value};
use schwann_kernels::Isa;
use std::collections::BTreeMap;

/// A graph under construction, with what may be used as an operand.
struct Maker<'a, 'b> {
    b: GraphBuilder,
    c: &'a mut Choices<'b>,
    values: Vec<Value>,
    /// Operands that are exact (inputs and weights): the only ones that may meet a discontinuous function.
    exact: Vec<Value>,
    weights: usize,
    half: bool,
}

const SMOOTH: [Unary; 12] = [
    Unary::Tanh,
    Unary::Neg,
    Unary::Sigmoid,
    Unary::Relu,
    Unary::Softplus,
    Unary::Silu,
    Unary::Gelu,
    Unary::Erf,
    Unary::Abs,
    Unary::Square,
    Unary::Sin,
    Unary::Cos,
];

impl Maker<'_, '_> {
    fn any(&mut self) -> Value {
        // Late values more often: graphs then grow deep rather than wide.
        let n = self.values.len();
        let back = self.c.below(n.min(4));
        self.values[n - 1 - back]
    }

    fn shape(&self, v: Value) -> Vec<Dim> {
        self.b.ty(v).shape.dims().to_vec()
    }

    fn weight(&mut self, shape: &[usize]) -> Result<Value> {
        self.weights += 1;
        let n: usize = shape.iter().product();
        let scale = 1.0 / (shape[0].max(1) as f32).sqrt();
        let data: Vec<f32> =
            (0..n).map(|i| scale * ((i * 37 + self.weights * 11) % 29) as f32 / 14.5 - scale).collect();
        let v = self.b.weight(&format!("w{}", self.weights), Tensor::new(shape, &data)?)?;
        self.exact.push(v);
        Ok(v)
    }

    /// Adds one random operation; `None` where the choice does not fit the operands.
    fn step(&mut self, depth: usize) -> Result<Option<Value>> {
        let x = self.any();
        let dims = self.shape(x);
        let rank = dims.len();
        let float32 = self.b.ty(x).dtype == DType::F32;
        Ok(Some(match self.c.below(20) {
            0 | 1 => {
                let u = self.c.of(&SMOOTH);
                self.b.push(Op::Unary(u), &[x])?
            }
            2..=4 => {
                let y = self.any();
                let op = self.c.of(&[Binary::Add, Binary::Mul, Binary::Sub, Binary::Max, Binary::Min]);
                match self.b.push(Op::Binary(op), &[x, y]) {
                    Ok(v) => v,
                    Err(_) => return Ok(None),
                }
            }
            5 | 6 if rank >= 2 && float32 => {
                let Some(k) = dims[rank - 1].as_fixed() else { return Ok(None) };
                let n = self.c.of(&[1, 3, 8, 16, 17, 33]);
                if self.c.below(2) == 0 {
                    let w = self.weight(&[k, n])?;
                    let y = self.b.matmul(x, w)?;
                    if self.c.below(2) == 0 {
                        y
                    } else {
                        let bias = self.weight(&[n])?;
                        let y = self.b.add(y, bias)?;
                        self.b.tanh(y)?
                    }
                } else {
                    let w = self.weight(&[n, k])?;
                    self.b.matmul_t(x, w, false, true)?
                }
            }
            7 if rank >= 2 && float32 => {
                // x·xᵀ over the last axes, scaled down
                let y = self.b.matmul_t(x, x, false, true)?;
                let s = self.b.scalar(0.1)?;
                self.b.mul(y, s)?
            }
            8 if rank >= 1 => {
                let kind = self.c.of(&[Reduction::Mean, Reduction::Max, Reduction::Min, Reduction::Sum]);
                let axes: Vec<usize> = (0..rank).filter(|_| self.c.below(2) == 0).collect();
                if axes.is_empty() || kind == Reduction::Mean && dims.iter().any(|d| d.is(0)) {
                    return Ok(None);
                }
                let keep = self.c.below(2) == 0;
                self.b.push(Op::Reduce { kind, axes, keep }, &[x])?
            }
            9 if rank >= 1 => {
                let axis = self.c.below(rank);
                self.b.softmax(x, axis)?
            }
            10 if rank >= 1 && float32 => {
                let Some(n) = dims[rank - 1].as_fixed() else { return Ok(None) };
                let gamma = if self.c.below(2) == 0 { None } else { Some(self.weight(&[n])?) };
                if self.c.below(2) == 0 {
                    self.b.rms_norm(x, gamma, 1e-2)?
                } else {
                    self.b.layer_norm(x, gamma, None, 1e-2)?
                }
            }
            11 if rank >= 2 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                for i in (1..rank).rev() {
                    perm.swap(i, self.c.below(i + 1));
                }
                self.b.transpose(x, &perm)?
            }
            12 if rank >= 1 => {
                let axis = self.c.below(rank);
                let Some(n) = dims[axis].as_fixed() else { return Ok(None) };
                let start = self.c.below(n + 1);
                let end = start + self.c.below(n - start + 1);
                self.b.slice(x, axis, start, end)?
            }
            13 if rank >= 1 => {
                let axis = self.c.below(rank);
                let y = self.any();
                match self.b.concat(&[x, y, x], axis) {
                    Ok(v) => v,
                    Err(_) => return Ok(None),
                }
            }
            14 if rank >= 2 => {
                // merge two neighbours
                let axis = self.c.below(rank - 1);
                let Some(merged) = dims[axis].checked_mul(&dims[axis + 1]) else { return Ok(None) };
                let mut to = dims.clone();
                to.splice(axis..axis + 2, [merged]);
                self.b.reshape(x, to)?
            }
            15 if rank >= 1 => {
                let axis = self.c.below(rank);
                let Some(n) = dims[axis].as_fixed().filter(|n| *n > 0) else { return Ok(None) };
                let count = self.c.of(&[1usize, 4, 9]);
                let indices: Vec<i32> = (0..count).map(|i| ((i * 7 + 3) % n) as i32).collect();
                if self.c.below(2) == 0 {
                    let i = self.b.constant(Tensor::new(&[count], &indices)?)?;
                    self.b.gather(x, i, axis)?
                } else {
                    let segments: Vec<i32> = (0..n).map(|i| ((i * 5 + 1) % count) as i32).collect();
                    let s = self.b.constant(Tensor::new(&[n], &segments)?)?;
                    self.b.segment_sum(x, s, axis, count)?
                }
            }
            16 => {
                let condition = {
                    let e = self.c.below(self.exact.len());
                    let a = self.exact[e];
                    let zero = self.b.scalar(0.0)?;
                    self.b.push(Op::Compare(self.c.of(&[Compare::Lt, Compare::Ge, Compare::Ne])), &[a, zero])?
                };
                let y = self.any();
                match self.b.select(condition, x, y) {
                    Ok(v) => v,
                    Err(_) => return Ok(None),
                }
            }
            17 if rank >= 1 => {
                let axis = self.c.below(rank);
                self.b.pad(x, axis, self.c.below(3), self.c.below(3))?
            }
            18 if float32 && depth == 0 && rank == 2 => self.scan(x)?,
            19 if depth == 0 => {
                self.half = true;
                let to = self.c.of(&[DType::Bf16, DType::F16]);
                let narrow = self.b.cast(x, to)?;
                let t = self.b.tanh(narrow)?;
                self.b.cast(t, DType::F32)?
            }
            _ => return Ok(None),
        }))
    }

    /// A loop over four steps that reads `x` as a fixed value or as its state's start.
    fn scan(&mut self, x: Value) -> Result<Value> {
        let dims = self.shape(x);
        let Some(n) = dims[1].as_fixed().filter(|n| *n > 0) else { return self.b.tanh(x) };
        let axis = self.c.below(2);
        let mut sequence_dims = dims.clone();
        sequence_dims.insert(axis, Dim::fixed(4));
        let mut stretched = dims.clone();
        stretched.insert(axis, Dim::fixed(1));
        let lifted = self.b.reshape(x, stretched)?;
        let sequence = self.b.broadcast(lifted, Shape::from(sequence_dims))?;
        let w = self.weight(&[n, n])?;
        let mut choices = Choices { list: self.c.list, at: self.c.at };
        let body = {
            let mut b = GraphBuilder::new();
            let h = b.input("h", DType::F32, Shape::from(dims.clone()))?;
            let e = b.input("e", DType::F32, Shape::from(dims.clone()))?;
            let w = b.input("w", DType::F32, [n, n])?;
            let p = b.matmul(h, w)?;
            let start = b.add(p, e)?;
            let mut inner =
                Maker { b, c: &mut choices, values: vec![h, e, start], exact: vec![e], weights: 1000, half: false };
            for _ in 0..inner.c.below(4) {
                // No weights inside: they enter a body as inputs.
                if let Some(v) = inner.pure_step()? {
                    inner.values.push(v);
                }
            }
            let same: Vec<Value> =
                inner.values.iter().copied().filter(|v| inner.b.ty(*v).shape.dims() == dims).collect();
            let last = *same.last().expect("the state itself has its shape");
            let next = inner.b.tanh(last)?;
            inner.b.output("h", next)?;
            inner.b.output("y", start)?;
            inner.b.build()?
        };
        self.c.at = choices.at;
        let outs = self.b.scan(body, &[x], &[sequence], &[w], axis)?;
        self.values.push(outs[1]);
        Ok(outs[0])
    }

    fn pure_step(&mut self) -> Result<Option<Value>> {
        let (x, y) = (self.any(), self.any());
        let rank = self.shape(x).len();
        Ok(Some(match self.c.below(5) {
            0 => {
                let u = self.c.of(&SMOOTH);
                self.b.push(Op::Unary(u), &[x])?
            }
            1 | 2 => match self.b.push(Op::Binary(self.c.of(&[Binary::Add, Binary::Mul, Binary::Sub])), &[x, y]) {
                Ok(v) => v,
                Err(_) => return Ok(None),
            },
            3 => self.b.softmax(x, rank - 1)?,
            _ => self.b.concat(&[x, y], rank - 1).or_else(|_| self.b.tanh(x))?,
        }))
    }
}

/// A random graph with inputs for two batch sizes.
fn make(choices: &[u16]) -> Result<(Graph, bool, [usize; 2])> {
    let mut c = Choices { list: choices, at: 0 };
    let mut b = GraphBuilder::new();
    let width = c.of(&[1usize, 4, 16, 17, 40]);
    let middle = c.of(&[1usize, 2, 5]);
    let batches = [c.of(&[1usize, 2, 3, 7, 33]), c.of(&[1usize, 4, 64])];
    let x = b.input("x", DType::F32, Shape::from(vec![Dim::symbol("B"), Dim::fixed(width)]))?;
    let z = b.input("z", DType::F32, Shape::from(vec![Dim::symbol("B"), Dim::fixed(middle), Dim::fixed(width)]))?;
    let r = b.input("r", DType::F32, [width])?;
    let steps = 1 + c.below(14);
    let mut m = Maker { b, c: &mut c, values: vec![r, z, x], exact: vec![x, z, r], weights: 0, half: false };
    for _ in 0..steps {
        if let Some(v) = m.step(0)? {
            // Products and joins of what they made before would soon outgrow any machine.
            let size = m.b.ty(v).shape.eval(&Bindings::new().with("B", 64))?.iter().product::<usize>();
            if size <= 50_000 {
                m.values.push(v);
            }
        }
    }
    let n = m.values.len();
    let mut outputs: Vec<Value> = vec![m.values[n - 1]];
    for _ in 0..m.c.below(3) {
        let i = m.c.below(n);
        outputs.push(m.values[i]);
    }
    for (i, v) in outputs.iter().enumerate() {
        m.b.output(&format!("y{i}"), *v)?;
    }
    let half = m.half;
    Ok((m.b.build()?, half, batches))
}

fn inputs(graph: &Graph, batch: usize, seed: u64) -> BTreeMap<String, Tensor> {
    let bindings = Bindings::new().with("B", batch);
    let mut random = Random::new(seed);
    graph
        .inputs()
        .map(|(name, value)| {
            let shape = graph.ty(value).shape.eval(&bindings).unwrap();
            let n = shape.iter().product();
            let data: Vec<f32> = (0..n).map(|_| random.float(-2.0, 2.0) as f32).collect();
            (name.to_owned(), Tensor::new(&shape, &data).unwrap())
        })
        .collect()
}

/// Largest difference in units of what rounding may cost, where the result is tame enough to compare.
fn compare(want: &Tensor, got: &Tensor, half: bool) -> std::result::Result<(), String> {
    if want.shape() != got.shape() || want.dtype() != got.dtype() {
        return Err(format!("{want} expected, got {got}"));
    }
    let (w, g) = (want.to_f64(), got.to_f64());
    let scale = w.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    if !scale.is_finite() || scale > 1e5 {
        return Ok(());
    }
    // A fused chain leaves out the rounding of half-precision values between its operations, half a percent each, and a
    // norm of nearly equal values magnifies that tenfold.
    let allowed = scale * if half { 0.25 } else { 5e-4 };
    match w.iter().zip(&g).position(|(w, g)| !((w - g).abs() <= allowed || w.is_nan() && g.is_nan())) {
        None => Ok(()),
        Some(i) => Err(format!("element {i} of {want}: expected {}, got {} (allowed {allowed:e})", w[i], g[i])),
    }
}

fn check(choices: &[u16]) -> std::result::Result<(), String> {
    let (graph, half, batches) = make(choices).map_err(|e| format!("building: {e}"))?;
    graph.verify().map_err(|e| e.to_string())?;
    let isas = Isa::available();
    let pick = choices.iter().fold(0usize, |h, c| h.wrapping_mul(31).wrapping_add(usize::from(*c)));
    let variants = [
        (isas[isas.len() - 1], 1 + pick % 3, PassOptions::default()),
        (isas[pick / 3 % isas.len()], 2, PassOptions::default()),
        (isas[pick / 7 % isas.len()], 1, PassOptions::none()),
    ];
    let mut expected = Vec::new();
    for batch in batches {
        let inputs = inputs(&graph, batch, pick as u64);
        expected.push((reference::run(&graph, &inputs, Precision::Storage).map_err(|e| e.to_string())?, inputs));
    }
    for (isa, threads, passes) in variants {
        let what = format!("{isa}, {threads} threads, rewrite {}", passes.rewrite);
        let fail = |e: String| format!("{what}: {e}\n{graph}");
        let cpu = Cpu::with_isa(isa, threads).map_err(|e| fail(e.to_string()))?;
        let program = Program::compile_for(&graph, &cpu, &CompileOptions::default().passes(passes))
            .map_err(|e| fail(e.to_string()))?;
        let mut session = program.session();
        for (want, inputs) in &expected {
            let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let got = session.run(&given).map_err(|e| fail(e.to_string()))?;
            for (want, got) in want.iter().zip(got) {
                compare(want, got, half).map_err(&fail)?;
            }
        }
    }
    Ok(())
}

fn count() -> u32 {
    match std::env::var("SCHWANN_LONG").ok().map(|v| v.parse::<u32>()) {
        Some(Ok(n)) if n > 1 => n,
        Some(_) => 20_000,
        None => 500,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: count(), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_graphs_agree_with_the_reference(choices in prop::collection::vec(any::<u16>(), 0..120)) {
        check(&choices).map_err(TestCaseError::fail)?;
    }
}
