//! What a drawn graph is run on, and what the reference makes of it.

use super::{Compared, compare};
use schwann_core::backend::reference::{self, HostValue, Precision};
use schwann_core::cases::random::Random;
use schwann_core::op::Op;
use schwann_core::{Bindings, DType, Error, Graph, Result, Tensor, Value};
use std::collections::BTreeMap;

/// Random inputs for a graph of these sizes.
pub(crate) fn inputs(graph: &Graph, bindings: &Bindings, seed: u64) -> BTreeMap<String, Tensor> {
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

/// Inputs of one set of sizes, and what they lead to.
pub(crate) struct Expected {
    pub(crate) inputs: BTreeMap<String, Tensor>,
    /// The results; and what they are with less rounding, or other rounding, between the operations.
    results: Result<(Vec<Tensor>, Vec<Vec<HostValue>>)>,
}

/// What to expect of a graph, for several sizes.
pub(crate) fn expected(graph: &Graph, seed: u64) -> Vec<Expected> {
    // Coarse types are rounded far, and so across kinks more often.
    let tries = if is_narrow(graph) { 12 } else { 4 };
    let one = |(b, t)| {
        let inputs = inputs(graph, &Bindings::new().with("B", b).with("T", t), seed);
        let hosted = inputs.iter().map(|(n, t)| (n.clone(), HostValue::from_tensor(t))).collect();
        let want = reference::run(graph, &inputs, Precision::Storage);
        let exact = reference::run_f64(graph, &hosted);
        let others: Result<Vec<Vec<HostValue>>> =
            std::iter::once(exact).chain((0..tries).map(|seed| reference::run_shaken(graph, &hosted, seed))).collect();
        Expected { inputs, results: want.and_then(|want| Ok((want, others?))) }
    };
    [(2, 3), (17, 1), (1, 5), (0, 2)].into_iter().map(one).collect()
}

impl Expected {
    /// Whether the reference refuses these inputs.
    pub(crate) fn is_refused(&self) -> bool {
        self.results.is_err()
    }

    /// The same, but nothing is compared where the reference's number is infinite or NaN. Compilers for GPUs may take it that
    /// there are no such numbers, and do: of `(a + b) - b` they make `a`, also where b is NaN.
    pub(crate) fn if_finite(mut self) -> Expected {
        if let Ok((want, others)) = &mut self.results {
            let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
            let without = want.iter().map(|tensor| {
                let value = HostValue::from_tensor(tensor);
                HostValue { data: value.data.into_iter().map(finite).collect(), ..value }
            });
            others.push(without.collect());
        }
        self
    }

    /// Holds what a backend gave against it; gives how much of it could be compared.
    pub(crate) fn judge(&self, got: Result<impl AsRef<[Tensor]>>) -> std::result::Result<Compared, String> {
        let mut compared = Compared::default();
        match (&self.results, got) {
            (Ok((want, others)), Ok(got)) => {
                for (i, (want, got)) in want.iter().zip(got.as_ref()).enumerate() {
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
        Ok(compared)
    }
}
