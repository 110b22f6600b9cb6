//! A model made ready to run: compiled one way, for one size, with numbers to run on.

use super::{Error, Options, Result, Subject};
use schwann_core::backend::{LeftOut, Timeline};
use schwann_core::memory::{Budget, Reservation};
use schwann_core::op::{Op, Scan};
use schwann_core::pass::PassOptions;
use schwann_core::plan::Plan;
use schwann_core::{Bindings, CompileOptions, DType, Graph, Program, Session, Tensor, Value, tensor};
use schwann_nn::{GraphOptions, InitialState};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// A compiled model with a session and inputs.
pub(crate) struct Rig {
    session: Session,
    inputs: Arc<Given>,
    budget: Budget,
    pub(crate) threads: usize,
}

/// Inputs by name, with the memory that they take of the budget.
struct Given {
    tensors: Vec<(String, Tensor)>,
    _memory: Vec<Reservation>,
}

impl Given {
    fn by_name(&self) -> Vec<(&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect()
    }
}

impl Subject {
    /// The graph that is run. A model's states start at zero in every run.
    pub(crate) fn graph(&self) -> Result<Graph> {
        Ok(match self {
            Subject::Graph(graph) => (**graph).clone(),
            Subject::Model(model) => model.graph(&GraphOptions::default().state(InitialState::Zero))?,
        })
    }
}

/// Whether a symbol has an option of its own.
fn is_own(symbol: &str) -> bool {
    matches!(symbol, "B" | "T")
}

/// Sizes for all of a graph's symbols: `B` and `T` are the batch and the steps.
pub(crate) fn bindings(graph: &Graph, options: &Options) -> Result<Bindings> {
    let mut sizes = Bindings::new();
    let symbols = graph.symbols();
    if let Some((name, _)) = options.sizes.iter().find(|(name, _)| !symbols.contains(name) || is_own(name)) {
        let known: Vec<String> = symbols.iter().filter(|s| !is_own(s)).map(|s| format!("`{s}`")).collect();
        let known = if known.is_empty() { "none to be given by name".into() } else { known.join(", ") };
        return Err(Error::Symbol { symbol: name.clone(), known });
    }
    for symbol in symbols {
        let size = match symbol.as_str() {
            "B" => Some(options.batch),
            "T" => Some(options.steps),
            other => options.sizes.iter().find(|(name, _)| name == other).map(|(_, size)| *size),
        };
        let Some(size) = size else { return Err(Error::Size { symbol }) };
        if sizes.bind(&symbol, size).is_err() {
            return Err(Error::Size { symbol });
        }
    }
    Ok(sizes)
}

/// Numbers between −1 and 1 that look random and are the same in every run; zeros of types that count.
fn numbers(dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let mut tensor = Tensor::zeros(dtype, shape)?;
    if !dtype.is_float() {
        return Ok(tensor);
    }
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    };
    if dtype == DType::F32 {
        tensor.values_mut::<f32>()?.iter_mut().for_each(|v| *v = next() as f32);
        return Ok(tensor);
    }
    let values: Vec<f64> = (0..tensor.len()).map(|_| next()).collect();
    Ok(Tensor::from_f64(dtype, shape, &values)?)
}

/// A session of these sizes, also of those that only states have.
fn sized(program: &Arc<Program>, sizes: &Bindings) -> Result<Session> {
    let mut session = program.session();
    for symbol in program.graph().symbols() {
        if let Some(size) = sizes.get(&symbol) {
            session.set_size(&symbol, size)?;
        }
    }
    Ok(session)
}

/// Whether a value says where others are put: such places ascend.
fn is_places(graph: &Graph, value: Value) -> bool {
    graph.nodes().iter().any(|node| matches!(node.op, Op::Put { .. }) && node.inputs[2] == value)
}

/// 0, 1, 2 …
fn places(shape: &[usize]) -> Result<Tensor> {
    let count = tensor::count(shape).unwrap_or(0);
    Ok(Tensor::new(shape, &(0..count as i32).collect::<Vec<i32>>())?)
}

impl Rig {
    pub(crate) fn new(subject: &Subject, options: &Options) -> Result<Rig> {
        options.check()?;
        let graph = subject.graph()?;
        if !matches!(options.dtype, DType::F32 | DType::Bf16) {
            return Err(Error::option("dtype", options.dtype, "f32 or bf16"));
        }
        let graph = in_types(&graph, options.dtype == DType::Bf16, options.tuning.bf16_weights)?;
        let sizes = bindings(&graph, options)?;
        // The limit keeps a size that does not fit from taking the machine down; where it is unknown there is none.
        let budget = Budget::fraction(0.9).unwrap_or_default();
        let (mut inputs, mut reserved) = (vec![], vec![]);
        for (name, value) in graph.inputs() {
            // States are the session's own.
            if !graph.states().iter().any(|s| s.input == name) {
                let ty = graph.ty(value);
                let shape = ty.shape.eval(&sizes)?;
                let bytes = tensor::count(&shape).and_then(|n| ty.dtype.bytes_for(n)).unwrap_or(usize::MAX);
                reserved.push(budget.reserve(bytes, "an input")?);
                inputs.push((
                    name.to_owned(),
                    if is_places(&graph, value) { places(&shape)? } else { numbers(ty.dtype, &shape)? },
                ));
            }
        }
        let passes = if options.fused { PassOptions::default() } else { PassOptions::none() };
        let passes = PassOptions { fuse: passes.fuse && !options.tuning.unfused, ..passes };
        let mut compile = CompileOptions::default()
            .backend(options.choice()?)
            .threads(options.threads)
            .passes(passes)
            .budget(budget.clone());
        compile.tuning = options.tuning.tuning().map_err(|what| Error::Tuning { what })?;
        let program = Program::compile(&graph, &compile)?;
        let threads = program.threads();
        let inputs = Arc::new(Given { tensors: inputs, _memory: reserved });
        let mut rig = Rig { session: sized(&program, &sizes)?, inputs, budget, threads };
        rig.run(1)?;
        Ok(rig)
    }

    /// The same program on the same inputs, with states and memory of its own.
    pub(crate) fn afresh(&self) -> Result<Rig> {
        Ok(self.with(sized(self.session.program(), &self.plan().bindings)?))
    }

    /// Likewise with part of a loop left out; none where the backend cannot do that.
    pub(crate) fn without(&self, left_out: &LeftOut) -> Result<Option<Rig>> {
        let session = self.session.program().session_without(&self.plan().bindings, left_out)?;
        Ok(session.map(|session| self.with(session)))
    }

    fn with(&self, session: Session) -> Rig {
        let (inputs, budget) = (Arc::clone(&self.inputs), self.budget.clone());
        Rig { session, inputs, budget, threads: self.threads }
    }

    /// States start at zero again.
    pub(crate) fn reset(&mut self) {
        self.session.reset();
    }

    fn repeat(&mut self, runs: usize, mut observer: Option<&mut Timeline>) -> Result<f64> {
        let inputs = self.inputs.by_name();
        let start = Instant::now();
        match &mut observer {
            None => {
                for _ in 0..runs {
                    self.session.run(&inputs)?;
                }
            }
            Some(timeline) => {
                timeline.link(true);
                for _ in 0..runs {
                    self.session.run_observed(&inputs, Some(&mut **timeline))?;
                }
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Runs so often, and gives the seconds that this took.
    pub(crate) fn run(&mut self, runs: usize) -> Result<f64> {
        self.repeat(runs, None)
    }

    /// Likewise, watched.
    pub(crate) fn watch(&mut self, runs: usize, timeline: &mut Timeline) -> Result<f64> {
        self.repeat(runs, Some(timeline))
    }

    /// One run, watched, apart from those before and after it; gives its seconds.
    pub(crate) fn observe(&mut self, timeline: &mut Timeline) -> Result<f64> {
        let inputs = self.inputs.by_name();
        let start = Instant::now();
        timeline.link(false);
        self.session.run_observed(&inputs, Some(timeline))?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Allocations that a counter counts during one run.
    pub(crate) fn allocations(&mut self, count: fn() -> u64) -> Result<u64> {
        let inputs = self.inputs.by_name();
        let before = count();
        self.session.run(&inputs)?;
        Ok(count().saturating_sub(before))
    }

    /// What it runs, after the passes.
    pub(crate) fn graph(&self) -> &Graph {
        self.session.program().graph()
    }

    pub(crate) fn plan(&self) -> &Plan {
        self.session.plan().expect("it has run once")
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The results of one run from states of zero, by name.
    pub(crate) fn outputs(&mut self) -> Result<Vec<(String, Tensor)>> {
        self.reset();
        self.run(1)?;
        let names: Vec<String> = self.session.program().graph().outputs().iter().map(|o| o.name.clone()).collect();
        names.into_iter().map(|n| Ok((n.clone(), self.session.output(&n)?.clone()))).collect()
    }
}

/// The graph with every product of f32 computed from operands rounded to bfloat16 (what is a weight is rounded ahead), or
/// from a right-hand side that is kept so.
pub(crate) fn in_types(graph: &Graph, products: bool, weights: bool) -> Result<Cow<'_, Graph>> {
    if !products && !weights {
        return Ok(Cow::Borrowed(graph));
    }
    let mut count = 0;
    let cast = rewrite(graph, products, &mut count)?;
    if count == 0 {
        let problem = "f32, for the graph has no product that could be computed in bfloat16";
        return Err(Error::option("dtype", DType::Bf16, problem));
    }
    Ok(Cow::Owned(cast))
}

/// Products with both sides in bfloat16, or the right one alone.
fn rewrite(graph: &Graph, both: bool, products: &mut usize) -> Result<Graph> {
    let mut new = Graph::default();
    let mut places: HashMap<Value, Value> = HashMap::new();
    for (id, node) in graph.nodes().iter().enumerate() {
        let inputs: Vec<Value> = node.inputs.iter().map(|v| places[v]).collect();
        let own = |slot: usize| Value { node: id as u32, slot: slot as u16 };
        let made = match &node.op {
            Op::MatMul { .. } if node.outs[0].dtype == DType::F32 => {
                *products += 1;
                let mut sides = vec![];
                for (i, &side) in inputs.iter().enumerate() {
                    // A side that is in few bits already stays.
                    let is_f32 = new.ty(side).dtype == DType::F32;
                    sides.push(match is_f32 && (both || i == 1) {
                        true => {
                            new.push(Op::Cast { dtype: DType::Bf16 }, vec![side], format!("{}.bf16.{i}", node.name))?
                        }
                        false => side,
                    });
                }
                let narrow = sides.iter().all(|side| new.ty(*side).dtype == DType::Bf16);
                let product = new.push(node.op.clone(), sides, format!("{}.bf16", node.name))?;
                match narrow {
                    true => new.push(Op::Cast { dtype: DType::F32 }, vec![product], node.name.clone())?,
                    false => product,
                }
            }
            Op::Scan(scan) => {
                let body = rewrite(&scan.body, both, products)?;
                new.push(Op::Scan(Box::new(Scan { body: body.into(), ..(**scan).clone() })), inputs, node.name.clone())?
            }
            other => new.push(other.clone(), inputs, node.name.clone())?,
        };
        for slot in 0..node.outs.len() {
            places.insert(own(slot), Value { slot: slot as u16, ..made });
        }
    }
    for (name, data) in graph.weights() {
        new.set_weight(name, data.clone())?;
    }
    for output in graph.outputs() {
        new.push_output(output.name.clone(), places[&output.value])?;
    }
    for state in graph.states() {
        new.push_state(&state.input, &state.output)?;
    }
    Ok(new)
}
