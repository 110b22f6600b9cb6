//! A drawn graph, run on backends and held against the reference.

use super::{Compared, compare, make};
use schwann_core::backend::Backend;
use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::{self, HostValue, Precision};
use schwann_core::cases::random::Random;
use schwann_core::grad::gradient;
use schwann_core::op::Op;
use schwann_core::pass::PassOptions;
use schwann_core::{Bindings, CompileOptions, DType, Error, Graph, Program, Tensor, Value};
use schwann_kernels::Isa;
use std::collections::BTreeMap;

/// What the reference gives: with rounding as stored, and otherwise.
type Given = schwann_core::Result<(Vec<Tensor>, Vec<Vec<HostValue>>)>;

/// A graph, and what it should give for inputs of several sizes.
pub(crate) struct Drawn {
    pub(crate) graph: Graph,
    /// A number that is the graph's own.
    pub(crate) pick: usize,
    expected: Vec<(Given, BTreeMap<String, Tensor>)>,
}

fn inputs(graph: &Graph, bindings: &Bindings, seed: u64) -> BTreeMap<String, Tensor> {
    let mut random = Random::new(seed);
    let mut one = |v: Value| {
        let ty = graph.ty(v);
        let shape = ty.shape.eval(bindings).unwrap();
        match ty.dtype {
            DType::Bool => random.bools(&shape),
            DType::I32 => random.ints(&shape, -3, 4),
            other => random.floats_as(other, &shape, -2.0, 2.0),
        }
    };
    graph.inputs().map(|(name, v)| (name.to_owned(), one(v))).collect()
}

/// Whether a graph computes in a type narrower than `f32`.
fn is_narrow(graph: &Graph) -> bool {
    graph.nodes().iter().any(|n| {
        n.outs.iter().any(|t| matches!(t.dtype, DType::Bf16 | DType::F16))
            || matches!(&n.op, Op::Scan(scan) if is_narrow(&scan.body))
    })
}

impl Drawn {
    /// The graph that is drawn from these numbers.
    pub(crate) fn new(choices: &[u16]) -> Result<Drawn, String> {
        let graph = make(choices);
        graph.verify().map_err(|e| format!("building: {e}\n{graph}"))?;
        let pick = choices.iter().fold(0usize, |h, c| h.wrapping_mul(31).wrapping_add(usize::from(*c)));
        let mut expected = Vec::new();
        for (b, t) in [(2, 3), (17, 1), (1, 5), (0, 2)] {
            let bindings = Bindings::new().with("B", b).with("T", t);
            let inputs = inputs(&graph, &bindings, pick as u64);
            let hosted = inputs.iter().map(|(n, t)| (n.clone(), HostValue::from_tensor(t))).collect();
            let want = reference::run(&graph, &inputs, Precision::Storage);
            let exact = reference::run_f64(&graph, &hosted);
            // Coarse types are rounded far, and so across kinks more often.
            let tries = if is_narrow(&graph) { 12 } else { 4 };
            let shaken = (0..tries).map(|seed| reference::run_shaken(&graph, &hosted, seed));
            let others: schwann_core::Result<Vec<Vec<HostValue>>> = std::iter::once(exact).chain(shaken).collect();
            expected.push((want.and_then(|w| Ok((w, others?))), inputs));
        }
        Ok(Drawn { graph, pick, expected })
    }

    /// Runs it on a backend for every size; gives how much of its results could be compared.
    pub(crate) fn run(&self, backend: &dyn Backend, passes: PassOptions) -> Result<Compared, String> {
        let graph = &self.graph;
        let options = CompileOptions::default().passes(passes);
        let mut compared = Compared::default();
        let program = match Program::compile_for(graph, backend, &options) {
            Ok(program) => program,
            // An index of a literal that is out of range is found early, and an operand that must be known is not.
            Err(Error::Value { .. }) if self.some_are_refused() => return Ok(compared),
            Err(e) => return Err(e.to_string()),
        };
        let mut session = program.session();
        for (want, inputs) in &self.expected {
            session.reset();
            let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            match (want, session.run(&given)) {
                (Ok((want, others)), Ok(got)) => {
                    for (i, (want, got)) in want.iter().zip(got).enumerate() {
                        let others: Vec<&[f64]> = others.iter().map(|all| &all[i].data[..]).collect();
                        compared.add(compare(want, &others, got)?);
                    }
                }
                (Err(_), Err(Error::Internal(e))) => return Err(format!("internal: {e}")),
                (Err(_), Err(_)) => {}
                // Work that is not needed for the results may be left out, and with it what is wrong about it.
                (Err(_), Ok(_)) => {}
                // A table must be known before the run; only the reference can do without.
                (Ok(_), Err(Error::Value { problem, .. })) if problem.contains("known before the run") => {}
                (Ok(_), Err(e)) => return Err(e.to_string()),
            }
        }
        Ok(compared)
    }

    /// Gradients are graphs too: they are refused, or compile and run.
    pub(crate) fn run_gradient(&self, backend: &dyn Backend) -> Result<(), String> {
        let graph = &self.graph;
        let Ok(backward) = gradient(graph, &graph.outputs()[0].name, &["x0"]) else { return Ok(()) };
        let program = match Program::compile_for(&backward, backend, &CompileOptions::default()) {
            Ok(program) => program,
            // As above: what is wrong about a literal index is found early.
            Err(Error::Value { .. }) if self.some_are_refused() => return Ok(()),
            Err(e) => return Err(format!("gradient: {e}\n{graph}")),
        };
        let inputs = inputs(&backward, &Bindings::new().with("B", 2).with("T", 3), 1);
        let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        match program.session().run(&given) {
            Err(Error::Internal(e) | Error::Verify { problem: e, .. }) => Err(format!("gradient: {e}\n{graph}")),
            _ => Ok(()),
        }
    }

    fn some_are_refused(&self) -> bool {
        self.expected.iter().any(|(want, _)| want.is_err())
    }
}

/// Draws a graph and checks it on this machine's processor; gives how much of its results could be compared.
pub(crate) fn check(choices: &[u16]) -> Result<Compared, String> {
    let mut compared = Compared::default();
    let drawn = Drawn::new(choices)?;
    let (isas, pick) = (Isa::available(), drawn.pick);
    let isa = |n: usize| isas[n % isas.len()];
    for (isa, threads, passes) in [
        (isa(isas.len() - 1), 1 + pick % 2, PassOptions::default()),
        (isa(pick / 3), 2, PassOptions::default()),
        (isa(pick / 7), 1, PassOptions { fuse: false, ..PassOptions::default() }),
        (isa(pick / 11), 1, PassOptions { fold_weights: false, ..PassOptions::default() }),
        (isa(pick / 13), 1, PassOptions::none()),
    ] {
        let fail = |e: String| format!("{isa}, {threads} threads, {passes:?}: {e}\n{}", drawn.graph);
        let cpu = Cpu::with_isa(isa, threads).map_err(|e| fail(e.to_string()))?;
        compared.add(drawn.run(&cpu, passes.clone()).map_err(&fail)?);
    }
    let cpu = Cpu::new(1).map_err(|e| e.to_string())?;
    drawn.run_gradient(&cpu)?;
    Ok(compared)
}
