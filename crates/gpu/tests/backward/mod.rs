//! Gradients of the case list: graphs with what they are run on.

use schwann_core::cases::{Case, random::Random};
use schwann_core::grad::gradient;
use schwann_core::{Graph, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// A case's gradients, by all its float inputs and weights: one graph for each float result.
pub(crate) fn gradients(case: &Case) -> Vec<(String, Graph, BTreeMap<String, Tensor>)> {
    let inputs = case.graph.inputs().filter(|(name, _)| case.inputs.contains_key(*name));
    let inputs = inputs.map(|(name, value)| (name, case.graph.ty(value)));
    let floats = inputs.chain(case.graph.weight_types()).filter(|(_, ty)| ty.dtype.is_float()).map(|(name, _)| name);
    let floats: Vec<&str> = floats.collect::<BTreeSet<_>>().into_iter().collect();
    let mut all = vec![];
    for (of, ty) in case.graph.outputs().iter().zip(case.graph.output_types()).filter(|(_, ty)| ty.dtype.is_float()) {
        let name = format!("gradient of {} of {}", of.name, case.name);
        let graph = gradient(&case.graph, &of.name, &floats).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut inputs = case.inputs.clone();
        if ty.shape.rank() > 0 {
            let shape = ty.shape.eval(&case.bindings().unwrap()).unwrap();
            let seed = Random::named(&name).floats_as(ty.dtype, &shape, -1.0, 1.0);
            inputs.insert(format!("grad_out.{}", of.name), seed);
        }
        all.push((name, graph, inputs));
    }
    all
}
