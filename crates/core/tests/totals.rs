//! Loops that sum over their rows in a state: they run by blocks of rows all the same.

use schwann_core::backend::reference::Reference;
use schwann_core::cases;
use schwann_core::grad::gradient;
use schwann_core::plan::Kernel;
use schwann_core::plan::kernel::BatchAxis;
use schwann_core::{Bindings, CompileOptions, Program, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A circuit of synapses over a sequence, for so many rows, with the gradients of all its numbers.
fn circuit(rows: usize) -> (schwann_core::Graph, BTreeMap<String, Tensor>, Bindings) {
    let case = cases::all().into_iter().find(|c| c.name == "scan/ltc/wired-b3-u20").unwrap();
    let weights: Vec<String> = case.graph.weight_types().map(|(name, _)| name.to_owned()).collect();
    let names: Vec<&str> = weights.iter().map(String::as_str).collect();
    let graph = gradient(&case.graph, "y0", &names).unwrap();
    let mut inputs = BTreeMap::new();
    let bindings = Bindings::new().with("B", rows).with("T", 4);
    for (name, value) in graph.inputs() {
        let shape = graph.ty(value).shape.eval(&bindings).unwrap();
        let count: usize = shape.iter().product();
        let data: Vec<f32> = (0..count).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.4).collect();
        inputs.insert(name.to_owned(), Tensor::new(&shape, &data).unwrap());
    }
    (graph, inputs, bindings)
}

fn run(program: &Arc<Program>, inputs: &BTreeMap<String, Tensor>) -> Vec<Vec<f64>> {
    let mut session = program.session();
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, data)| (name.as_str(), data)).collect();
    session.run(&inputs).unwrap().iter().map(Tensor::to_f64).collect()
}

#[test]
fn gradients_of_shared_numbers_add_up_over_blocks_and_threads() {
    for rows in [2, 17, 100, 131] {
        let (graph, inputs, bindings) = circuit(rows);
        let reference = Program::compile_for(&graph, &Reference, &CompileOptions::default()).unwrap();
        let want = run(&reference, &inputs);
        for threads in [1, 2, 3] {
            let program = Program::compile(&graph, &CompileOptions::default().threads(threads)).unwrap();
            let plan = program.plan(&bindings).unwrap();
            let blocks = |k: &Kernel| match k {
                Kernel::Scan(scan) => Some((scan.batch, scan.blocks.is_some(), scan.passed)),
                _ => None,
            };
            let loops: Vec<_> = plan.steps.iter().filter_map(|s| blocks(&s.kernel)).collect();
            assert_eq!(loops.len(), 2, "{}", plan.explain(None));
            assert!(loops.iter().all(|(_, blocks, _)| *blocks), "{rows} rows: {}", plan.explain(None));
            assert_eq!(loops[1].0, BatchAxis::Last, "{rows} rows: {}", plan.explain(None));
            let both = loops[0].0 == BatchAxis::Last;
            assert_eq!(loops[0].2 > 0, both, "what both loops have batch-last stays so: {}", plan.explain(None));
            let got = run(&program, &inputs);
            assert_eq!(got, run(&program, &inputs), "{rows} rows, {threads} threads: other bits the second time");
            for ((output, got), want) in graph.outputs().iter().zip(&got).zip(&want) {
                let most = want.iter().fold(1e-3f64, |most, w| most.max(w.abs()));
                for (g, w) in got.iter().zip(want) {
                    let name = &output.name;
                    assert!((g - w).abs() <= 2e-5 * most, "{name}, {rows} rows, {threads} threads: {g}, want {w}");
                }
            }
        }
    }
}
