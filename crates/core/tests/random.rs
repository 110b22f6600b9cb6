//! Random graphs: optimised, planned, fused and run on several threads, they give what the reference gives.
//!
//! 500 graphs in an ordinary run; `SCHWANN_LONG=1` (or any count of graphs in it) runs 20,000.

#[path = "spread/mod.rs"]
mod spread;

use crate::cells::{Cell, Trained};
use crate::drawn::choices::Choices;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::{self, HostValue, Precision};
use schwann_core::cases::random::Random;
use schwann_core::op::{Binary, Compare, Op, Reduction, Unary};
use schwann_core::pass::PassOptions;
use schwann_core::plan::kernel::{BatchAxis, GatedCell};
use schwann_core::plan::{Kernel, Plan};
use schwann_core::{
    Bindings, Changing, CompileOptions, DType, Dim, Graph, GraphBuilder, Program, Result, Shape, Tensor, Value,
};
use schwann_kernels::Isa;
use spread::{Compared, Expected};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A graph under construction, with what may be used as an operand.
struct Maker<'a, 'b> {
    b: GraphBuilder,
    c: &'a mut Choices<'b>,
    values: Vec<Value>,
    /// Operands that are exact (inputs and weights): the only ones that may meet a discontinuous function.
    exact: Vec<Value>,
    weights: usize,
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
        Ok(Some(match self.c.below(26) {
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
                let to = self.c.of(&[DType::Bf16, DType::F16]);
                let narrow = self.b.cast(x, to)?;
                let t = self.b.tanh(narrow)?;
                self.b.cast(t, DType::F32)?
            }
            20..=23 if float32 && depth == 0 && rank == 2 => return self.cell(x),
            24 | 25 => self.group(x)?,
            _ => return Ok(None),
        }))
    }

    /// A recurrent cell's step of the rows of `x`, or a loop of them.
    fn cell(&mut self, x: Value) -> Result<Option<Value>> {
        let dims = self.shape(x);
        let Some(inputs) = dims[1].as_fixed().filter(|n| (1..100).contains(n)) else { return Ok(None) };
        let units = self.c.of(&[4usize, 1, 9, 16, 19, 33]);
        let cell = match self.c.below(8) {
            0..=4 => Cell::Gated {
                masked: self.c.below(2) == 0,
                one_product: self.c.below(2) == 0,
                shifted: self.c.below(2) == 0,
                backbone: self.c.of(&[0, 0, 7]),
            },
            5 => Cell::Lstm,
            _ => Cell::Ratio { times: self.c.of(&[1, 2, 4]) },
        };
        // It starts from a part of x where that is wide enough, and from 0 elsewhere.
        let h = if inputs >= units && self.c.below(2) == 0 {
            self.b.slice(x, 1, 0, units)?
        } else {
            let zero = self.b.scalar(0.0)?;
            self.b.broadcast(zero, Shape::from(vec![dims[0].clone(), Dim::fixed(units)]))?
        };
        let looped = self.c.below(2) == 0;
        let axis = self.c.below(2);
        let mut count = self.weights;
        let mut weights = |b: &mut GraphBuilder, Trained { shape, range, masked }: Trained| {
            count += 1;
            let mut random = Random::new(count as u64);
            let mut data = random.floats(&shape, range.0.into(), range.1.into()).to_f64();
            if masked {
                data.iter_mut().for_each(|v| *v *= f64::from(random.int(0, 2)));
            }
            b.weight(&format!("w{count}"), Tensor::from_f64(DType::F32, &shape, &data)?)
        };
        let sizes = [inputs, units];
        let last = if looped {
            let sequence = stretch(&mut self.b, x, axis)?;
            let outs = cell.looped(&mut self.b, &mut weights, sequence, sizes, h, axis)?;
            self.values.push(outs[1]);
            outs[0]
        } else {
            cell.step(&mut self.b, &mut weights, x, sizes, h)?
        };
        self.weights = count;
        Ok(Some(last))
    }

    /// Elementwise work whose values in the middle have several readers, each of which others may read too.
    fn group(&mut self, x: Value) -> Result<Value> {
        let (first, second) = (self.c.of(&SMOOTH), self.c.of(&SMOOTH));
        let a = self.b.push(Op::Unary(first), &[x])?;
        let a = self.b.tanh(a)?;
        let p = self.b.push(Op::Unary(second), &[a])?;
        let (sum, product) = (self.b.add(a, p)?, self.b.mul(a, p)?);
        let by = self.b.sigmoid(sum)?;
        let way = self.b.sub(product, a)?;
        let way = self.b.mul(by, way)?;
        let y = self.b.add(a, way)?;
        for value in [a, sum, product] {
            if self.c.below(2) == 0 {
                self.values.push(value);
            }
        }
        Ok(y)
    }

    /// A loop over four steps that reads `x` as a fixed value or as its state's start.
    fn scan(&mut self, x: Value) -> Result<Value> {
        let dims = self.shape(x);
        let Some(n) = dims[1].as_fixed().filter(|n| *n > 0) else { return self.b.tanh(x) };
        let axis = self.c.below(2);
        let sequence = stretch(&mut self.b, x, axis)?;
        let w = self.weight(&[n, n])?;
        let mut choices = Choices { list: self.c.list, at: self.c.at };
        let body = {
            let mut b = GraphBuilder::new();
            let h = b.input("h", DType::F32, Shape::from(dims.clone()))?;
            let e = b.input("e", DType::F32, Shape::from(dims.clone()))?;
            let w = b.input("w", DType::F32, [n, n])?;
            let p = b.matmul(h, w)?;
            let start = b.add(p, e)?;
            let mut inner = Maker { b, c: &mut choices, values: vec![h, e, start], exact: vec![e], weights: 1000 };
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

/// Four steps of the same rows, time as an axis of its own.
fn stretch(b: &mut GraphBuilder, x: Value, axis: usize) -> Result<Value> {
    let dims = b.ty(x).shape.dims().to_vec();
    let with = |steps: usize| {
        let mut dims = dims.clone();
        dims.insert(axis, Dim::fixed(steps));
        Shape::from(dims)
    };
    let lifted = b.reshape(x, with(1))?;
    b.broadcast(lifted, with(4))
}

/// A random graph with inputs for two batch sizes.
fn make(choices: &[u16]) -> Result<(Graph, [usize; 2])> {
    let mut c = Choices { list: choices, at: 0 };
    let mut b = GraphBuilder::new();
    let width = c.of(&[1usize, 4, 16, 17, 40]);
    let middle = c.of(&[1usize, 2, 5]);
    let batches = [c.of(&[1usize, 2, 3, 7, 33]), c.of(&[1usize, 4, 64])];
    let x = b.input("x", DType::F32, Shape::from(vec![Dim::symbol("B"), Dim::fixed(width)]))?;
    let z = b.input("z", DType::F32, Shape::from(vec![Dim::symbol("B"), Dim::fixed(middle), Dim::fixed(width)]))?;
    let r = b.input("r", DType::F32, [width])?;
    let steps = 1 + c.below(14);
    let mut m = Maker { b, c: &mut c, values: vec![r, z, x], exact: vec![x, z, r], weights: 0 };
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
    Ok((m.b.build()?, batches))
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

/// What graphs had in them, and how much of their results was compared.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    graphs: usize,
    compared: Compared,
    /// Graphs with gated cells, by what fills their lanes; with masked weights left out; in loops; with ratios that are
    /// taken again of their own result; with maps of several operations, and of several results.
    units: usize,
    rows: usize,
    masked: usize,
    in_loops: usize,
    repeated: usize,
    maps: usize,
    several: usize,
}

impl Seen {
    fn add(&mut self, kernels: &[(Kernel, bool)]) {
        let any = |f: &dyn Fn(&Kernel) -> bool| usize::from(kernels.iter().any(|(kernel, _)| f(kernel)));
        let gated = |f: &dyn Fn(&GatedCell) -> bool| any(&|k| matches!(k, Kernel::GatedCell(cell) if f(cell)));
        self.graphs += 1;
        self.units += gated(&|cell| cell.batch == BatchAxis::First);
        self.rows += gated(&|cell| cell.batch == BatchAxis::Last);
        self.masked += gated(&|cell| cell.skipped > 0);
        let in_loop = |(k, inside): &(Kernel, bool)| *inside && matches!(k, Kernel::GatedCell(_));
        self.in_loops += usize::from(kernels.iter().any(in_loop));
        self.repeated += any(&|k| matches!(k, Kernel::Synapses(s) if s.ratios > 1));
        self.maps += any(&|k| matches!(k, Kernel::Map(map) if map.work.operations > 3));
        self.several += any(&|k| matches!(k, Kernel::Map(map) if map.outs.len() > 1));
    }
}

/// Kernels of a plan, and whether each is in a loop.
fn kernels(plan: &Plan, inside: bool, into: &mut Vec<(Kernel, bool)>) {
    for step in &plan.steps {
        into.push((step.kernel.clone(), inside));
        if let Some(looped) = &step.looped {
            kernels(&looped.body, true, into);
            looped.tail.iter().for_each(|tail| kernels(tail, true, into));
        }
    }
}

/// A program that is compiled with other weights, run, and given those of the graph.
fn changed(
    graph: &Graph,
    cpu: &Cpu,
    options: CompileOptions,
    inputs: &BTreeMap<String, Tensor>,
) -> std::result::Result<Arc<Program>, String> {
    let said = |e: schwann_core::Error| e.to_string();
    let mut other = graph.clone();
    for (i, (name, data)) in graph.weights().iter().enumerate().filter(|(_, (_, t))| t.dtype() == DType::F32) {
        // Some that are 0 now and were not, and the other way round.
        let moved = data
            .to_f64()
            .iter()
            .enumerate()
            .map(|(n, v)| if (n + i) % 7 == 0 { 0.0 } else { 0.8 * v + 0.01 })
            .collect::<Vec<_>>();
        other.set_weight(name, Tensor::from_f64(DType::F32, data.shape(), &moved).map_err(said)?).map_err(said)?;
    }
    let program = Program::compile_for(&other, cpu, &options).map_err(said)?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    program.session().run(&given).map_err(said)?;
    let weights: Vec<(&str, &Tensor)> = graph.weights().iter().map(|(name, t)| (name.as_str(), t)).collect();
    program.set_weights(&weights).map_err(said)?;
    Ok(program)
}

fn check(choices: &[u16], seen: &mut Seen) -> std::result::Result<(), String> {
    let (graph, batches) = make(choices).map_err(|e| format!("building: {e}"))?;
    graph.verify().map_err(|e| e.to_string())?;
    let isas = Isa::available();
    let pick = choices.iter().fold(0usize, |h, c| h.wrapping_mul(31).wrapping_add(usize::from(*c)));
    let variants = [
        (isas[isas.len() - 1], 1 + pick % 3, PassOptions::default(), false),
        (isas[pick / 3 % isas.len()], 2, PassOptions::default(), pick % 2 == 0),
        (isas[pick / 7 % isas.len()], 1, PassOptions::none(), pick % 5 == 0),
    ];
    let mut expected = Vec::new();
    let least = spread::least(&graph);
    for batch in batches {
        let inputs = inputs(&graph, batch, pick as u64);
        let hosted = inputs.iter().map(|(n, t)| (n.clone(), HostValue::from_tensor(t))).collect();
        let stored = reference::run(&graph, &inputs, Precision::Storage).map_err(|e| e.to_string())?;
        let exact = reference::run_f64(&graph, &hosted).map_err(|e| e.to_string())?;
        let all: Vec<Expected> = stored
            .into_iter()
            .zip(exact)
            .map(|(stored, exact)| Expected::new(stored, vec![exact.data], least))
            .collect();
        expected.push((all, inputs, batch));
    }
    let mut found = vec![];
    for (isa, threads, passes, changing) in variants {
        let what = format!("{isa}, {threads} threads, rewrite {}, changing {changing}", passes.rewrite);
        let fail = |e: String| format!("{what}: {e}\n{graph}");
        let cpu = Cpu::with_isa(isa, threads).map_err(|e| fail(e.to_string()))?;
        let options = CompileOptions::default().passes(passes);
        let program = match changing {
            false => Program::compile_for(&graph, &cpu, &options).map_err(|e| fail(e.to_string()))?,
            true => changed(&graph, &cpu, options.changing(Changing::All), &expected[0].1).map_err(&fail)?,
        };
        let mut session = program.session();
        for (want, inputs, batch) in &expected {
            let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let got = session.run(&given).map_err(|e| fail(e.to_string()))?;
            assert_eq!(want.len(), got.len());
            for (want, got) in want.iter().zip(got) {
                let compared = want.compare(got).map_err(|e| fail(format!("batch {batch}: {e}")))?;
                seen.compared.add(compared);
            }
            kernels(session.plan().ok_or_else(|| fail("no plan".into()))?, false, &mut found);
        }
    }
    seen.add(&found);
    Ok(())
}

/// So many graphs as `SCHWANN_LONG` says, drawn anew each time; without it 500, always the same.
fn config() -> Config {
    let long = std::env::var("SCHWANN_LONG").ok().map(|v| v.parse::<u32>().ok().filter(|n| *n > 1).unwrap_or(20_000));
    Config {
        cases: long.unwrap_or(500),
        rng_seed: if long.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) },
        failure_persistence: None,
        ..Config::default()
    }
}

#[test]
fn random_graphs_agree_with_the_reference() {
    let config = config();
    let (all, asked) = (RefCell::new(Seen::default()), config.cases as usize);
    let ran = TestRunner::new(config)
        .run(&vec(any::<u16>(), 0..120), |choices| check(&choices, &mut all.borrow_mut()).map_err(TestCaseError::fail));
    if let Err(e) = ran {
        panic!("{e}");
    }
    // What is not found in a fair share of the graphs is as good as not tried.
    let seen = all.into_inner();
    // (Of a handful of graphs nothing can be said.)
    let share = |count: usize, of: usize| count * of >= asked || asked < 200;
    assert_eq!(seen.graphs, asked);
    assert!(share(seen.units, 20) && share(seen.rows, 40), "gated cells are rare: {seen:?}");
    assert!(share(seen.masked, 40) && share(seen.in_loops, 20), "masked cells, or loops of cells, are rare: {seen:?}");
    assert!(share(seen.repeated, 100) && share(seen.maps, 4), "ratios or maps are rare: {seen:?}");
    assert!(share(seen.several, 20), "maps of several results are rare: {seen:?}");
    let Compared { elements, compared } = seen.compared;
    assert!(compared * 100 >= elements * 95, "only {compared} of {elements} elements could be compared: {seen:?}");
}
