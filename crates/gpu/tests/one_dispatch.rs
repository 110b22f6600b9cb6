//! A whole sequence of a liquid network is one dispatch, and new sizes make no new kernels.

use schwann_codegen::lang::Stmt;
use schwann_codegen::verify::verify;
use schwann_core::backend::LeftOut;
use schwann_core::pass::{PassOptions, optimize};
use schwann_core::{Bindings, Graph};
use schwann_gpu::device::Limits;
use schwann_gpu::lower::Prepared;
use schwann_gpu::program::{Item, Layout};
use schwann_nn::wiring::AutoNcp;
use schwann_nn::{Cfc, GraphOptions, InitialState, Ltc, Model};
use std::collections::HashSet;
use std::sync::Arc;

/// Features of a sample, neurons, and features out.
const SIZES: [usize; 3] = [8, 64, 16];

/// The projected CfC, the wired CfC and the wired LTC, at the sizes that figures are quoted for.
fn models() -> Vec<(&'static str, Graph)> {
    let [inputs, units, outputs] = SIZES;
    let wiring = || AutoNcp::new(units, outputs).build(inputs).unwrap();
    let dense =
        Cfc { proj_size: Some(outputs), backbone_units: Some(64), backbone_layers: Some(2), ..Cfc::new(inputs, units) };
    let models = [
        ("P", Model::new(dense, 1)),
        ("W", Model::new(Cfc::new(inputs, wiring()), 1)),
        ("L", Model::new(Ltc::new(inputs, wiring()), 1)),
    ];
    let graph = |model: Model| {
        let graph = model.graph(&GraphOptions::default().state(InitialState::Zero)).unwrap();
        optimize(&graph, &PassOptions::default()).unwrap().0
    };
    models.into_iter().map(|(name, model)| (name, graph(model.unwrap()))).collect()
}

fn lay_out(graph: &Graph, limits: &Limits, batch: usize, steps: usize) -> Layout {
    let prepared = Prepared::new(Arc::new(graph.clone()), limits).unwrap();
    prepared.lay_out(&Bindings::new().with("B", batch).with("T", steps).with("C", SIZES[0])).unwrap()
}

#[test]
fn a_sequence_is_one_dispatch() {
    for (name, graph) in models() {
        for parallel_groups in [1, 8, 256] {
            let limits = Limits { parallel_groups, ..Limits::default() };
            let layout = lay_out(&graph, &limits, 256, 64);
            let walks = |item: &&Item| matches!(item, Item::Dispatch(dispatch) if dispatch.walk.is_some());
            assert_eq!(layout.items.iter().filter(walks).count(), 1, "{name}");
            assert!(layout.items.iter().all(|item| matches!(item, Item::Dispatch(_))), "{name}: a loop of dispatches");
            let names: Vec<&str> = layout.kernels.iter().map(|kernel| &*kernel.name).collect();
            assert_eq!(layout.items.len(), 1, "{name}: {names:?}");
        }
    }
}

#[test]
fn a_kernel_that_leaves_a_part_out_has_the_same_memory_and_the_same_barriers() {
    fn barriers(body: &[Stmt]) -> usize {
        let count = |stmt: &Stmt| match stmt {
            Stmt::Barrier => 1,
            Stmt::For { body, .. } => barriers(body),
            Stmt::If { then, otherwise, .. } => barriers(then) + barriers(otherwise),
            _ => 0,
        };
        body.iter().map(count).sum()
    }
    for (name, graph) in models() {
        for parallel_groups in [1, 256] {
            let limits = Limits { parallel_groups, ..Limits::default() };
            let prepared = Prepared::new(Arc::new(graph.clone()), &limits).unwrap();
            let sizes = Bindings::new().with("B", 256).with("T", 64).with("C", SIZES[0]);
            let plan = prepared.lay_out(&sizes).unwrap().plan;
            let made = |step| {
                let layout = prepared.lay_out_without(&sizes, &LeftOut { looped: vec![0], step }).unwrap().unwrap();
                assert_eq!(layout.kernels.len(), 1, "{name}");
                Arc::clone(&layout.kernels[0])
            };
            let whole = made(None);
            let steps = plan.steps[0].looped.as_ref().unwrap().body.steps.len();
            let all: HashSet<_> = (0..steps).map(|step| made(Some(step))).chain([Arc::clone(&whole)]).collect();
            assert_eq!(all.len(), steps + 1, "{name}: each leaves something else out");
            for kernel in &all {
                assert_eq!((kernel.threads, &kernel.shared), (whole.threads, &whole.shared), "{name}");
                assert_eq!(barriers(&kernel.body), barriers(&whole.body), "{name}");
                verify(kernel).unwrap();
            }
        }
    }
}

#[test]
fn new_sizes_make_no_new_kernels() {
    for (name, graph) in models() {
        for parallel_groups in [1, 8, 256] {
            let limits = Limits { parallel_groups, ..Limits::default() };
            // Of few rows weights are copied into a workgroup's memory, unless there are hardly any steps: this makes three
            // kernels.
            let few = [(1, 64), (8, 64), (2, 17), (3, 4)];
            let one_step = [(1, 1), (8, 1), (2, 2), (3, 3)];
            let more = [(32, 64), (33, 64), (256, 1), (500, 3)];
            let classes = if parallel_groups == 256 { vec![few, one_step, more] } else { vec![more] };
            for sizes in classes {
                let mut kernels = HashSet::new();
                for (batch, steps) in sizes {
                    kernels.extend(lay_out(&graph, &limits, batch, steps).kernels);
                    let names: Vec<&str> = kernels.iter().map(|kernel| &*kernel.name).collect();
                    assert_eq!(kernels.len(), 1, "{name} at ({batch}, {steps}): {names:?}");
                }
            }
        }
    }
}
