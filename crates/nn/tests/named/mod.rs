//! Checks that operations are called by the parts of the network they belong to: in a graph, in what the compiler makes of
//! it, fused and node by node, and in the steps of its plans.

use schwann_core::graph::is_automatic;
use schwann_core::op::Op;
use schwann_core::pass::PassOptions;
use schwann_core::plan::Plan;
use schwann_core::{Bindings, CompileOptions, Graph, Program};
use schwann_nn::{GraphOptions, Model, Timespans};
use std::collections::BTreeSet;

/// The names of all steps, those in loops included.
pub(crate) fn steps(plan: &Plan) -> Vec<String> {
    let mut names = vec![];
    for step in &plan.steps {
        names.push(step.name.clone());
        if let Some(looped) = &step.looped {
            names.extend(steps(&looped.body));
            names.extend(looped.tail.iter().flat_map(|tail| steps(tail)));
        }
    }
    names
}

/// The names of all nodes that are not just given: inputs and weights have the names of files and runs.
fn nodes(graph: &Graph) -> Vec<String> {
    let mut names = vec![];
    for node in graph.nodes() {
        if !matches!(node.op, Op::Input { .. } | Op::Weight { .. }) {
            names.push(node.name.clone());
        }
        if let Op::Scan(scan) = &node.op {
            names.extend(nodes(&scan.body));
        }
    }
    names
}

/// A compiled graph, and its plan for a batch of so many sequences of so many steps.
pub(crate) fn compiled(graph: &Graph, passes: PassOptions, batch: usize, time: usize) -> (Graph, Plan) {
    let program = Program::compile(graph, &CompileOptions::default().threads(1).passes(passes)).unwrap();
    let sizes = |symbol: &str| match symbol {
        "B" => batch,
        "T" => time,
        _ => 3,
    };
    let bindings = graph.symbols().iter().fold(Bindings::new(), |b, s| b.with(s, sizes(s)));
    (program.graph().clone(), program.plan(&bindings).unwrap())
}

/// Checks every name in a graph and in what becomes of it; gives those of the steps, fused, of a batch.
#[track_caller]
pub(crate) fn check(what: &str, graph: &Graph, good: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut names: Vec<String> = nodes(graph);
    let mut fused = vec![];
    for (passes, batch, time) in [
        (PassOptions::default(), 32, 5),
        (PassOptions::default(), 1, 1),
        (PassOptions { fuse: false, ..PassOptions::default() }, 3, 2),
        (PassOptions::none(), 3, 2),
    ] {
        let (graph, plan) = compiled(graph, passes, batch, time);
        names.extend(nodes(&graph));
        names.extend(steps(&plan));
        if batch == 32 {
            fused = steps(&plan);
        }
    }
    let wrong: BTreeSet<&String> = names.iter().filter(|n| n.is_empty() || is_automatic(n) || !good(n)).collect();
    assert!(wrong.is_empty(), "{what}: numbers in a list, or of no part of the network: {wrong:?}");
    fused
}

/// Checks the model's graphs; gives the names of the steps of the plain one.
#[track_caller]
pub(crate) fn check_model(what: &str, model: &Model) -> Vec<String> {
    let paths: Vec<String> = (0..model.layers().len()).map(|i| model.path(i)).collect();
    let good = |name: &str| {
        let name = name.strip_prefix("grad.").unwrap_or(name);
        let within = |name: &str, path: &str| {
            name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        // What does the work of several layers has the path of the module that they are in.
        let of = |path: &str| within(name, path) || within(path, name);
        paths.iter().any(|path| of(path))
            // A loop of gradients calls what it carries `state.0`, which a copy of it shows.
            || ["x", "y", "timespans", "loss", "target", "state"].iter().any(|own| of(own))
            // States and gradients have the names of inputs, outputs and weights.
            || model.params().iter().any(|p| of(&p.name))
            || ["h0", "c0", "hn", "cn"].iter().any(|state| name.split('.').any(|part| part == *state))
    };
    let options = GraphOptions::default();
    let fused = check(what, &model.graph(&options).unwrap(), &good);
    check(what, &model.graph(&options.clone().batched(false)).unwrap(), &good);
    if let Ok(graph) = model.graph(&options.clone().timespans(Timespans::PerStep)) {
        check(what, &graph, &good);
    }
    if let Ok(graph) = model.graph(&options.timespans(Timespans::Constant(0.25))) {
        check(what, &graph, &good);
    }
    for options in [GraphOptions::training(), GraphOptions::default()] {
        if let Ok(graph) = model.training_graph(&options) {
            check(what, &graph, &good);
        }
    }
    fused
}
