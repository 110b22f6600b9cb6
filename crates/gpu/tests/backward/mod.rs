//! Gradients of the case list: graphs with what they are run on.
#![allow(dead_code, reason = "each test that includes it uses another part")]

use schwann_core::cases::{Case, Tolerance, random::Random};
use schwann_core::grad::gradient;
use schwann_core::{Bindings, Graph, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// A case's gradients, by all its float inputs and weights: one graph for each float result.
pub(crate) fn gradients(case: &Case) -> Vec<(String, Graph, BTreeMap<String, Tensor>)> {
    gradients_of(&case.name, &case.graph, &case.inputs)
}

/// The same of a graph that is no case.
pub(crate) fn gradients_of(
    name: &str,
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
) -> Vec<(String, Graph, BTreeMap<String, Tensor>)> {
    let mut bindings = Bindings::new();
    graph.bind(|name| inputs.get(name).map(Tensor::shape), &mut bindings).unwrap();
    let given = graph.inputs().filter(|(name, _)| inputs.contains_key(*name));
    let given = given.map(|(name, value)| (name, graph.ty(value)));
    let floats = given.chain(graph.weight_types()).filter(|(_, ty)| ty.dtype.is_float()).map(|(name, _)| name);
    let floats: Vec<&str> = floats.collect::<BTreeSet<_>>().into_iter().collect();
    let mut all = vec![];
    for (of, ty) in graph.outputs().iter().zip(graph.output_types()).filter(|(_, ty)| ty.dtype.is_float()) {
        let name = format!("gradient of {} of {name}", of.name);
        let backward = gradient(graph, &of.name, &floats).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut inputs = inputs.clone();
        if ty.shape.rank() > 0 {
            let shape = ty.shape.eval(&bindings).unwrap();
            let seed = Random::named(&name).floats_as(ty.dtype, &shape, -1.0, 1.0);
            inputs.insert(format!("grad_out.{}", of.name), seed);
        }
        all.push((name, backward, inputs));
    }
    all
}

/// How far a gradient may be off. It is made of sums over all rows and steps: what is near 0 is no more exact than the
/// largest of them.
pub(crate) fn tolerance(want: &Tensor) -> Tolerance {
    let most = want.to_f64().iter().fold(1.0f64, |most, x| most.max(x.abs()));
    Tolerance { abs: Tolerance::NETWORK.abs * most, ..Tolerance::NETWORK }.stored_as(want.dtype())
}
