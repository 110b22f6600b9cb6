//! Loops of few rows, whose weights stay in registers: which loops they are, and what their kernels give.

use crate::interpreted::run;
use schwann_codegen::print;
use schwann_codegen::verify::verify;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::random::Random;
use schwann_core::cases::{Tolerance, compare};
use schwann_core::pass::{PassOptions, optimize};
use schwann_core::plan::Workgroup;
use schwann_core::{Bindings, Graph, Tensor};
use schwann_gpu::device::Limits;
use schwann_gpu::lower::Prepared;
use schwann_nn::wiring::AutoNcp;
use schwann_nn::{Cfc, GraphOptions, InitialState, Layer, Ltc, Model, Timespans};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device that says how many registers a thread has.
fn limits() -> Limits {
    Limits {
        threads: 1024,
        lanes: 32,
        exact_halves: true,
        fast_functions: true,
        registers: 255,
        shared_bytes: 227 << 10,
        parallel_groups: 132,
        ..Limits::default()
    }
}

const INPUTS: usize = 8;

fn graph(layer: impl Into<Layer>, timespans: Timespans) -> Graph {
    let layer: Layer = layer.into();
    let options = GraphOptions::default().state(InitialState::Carried).timespans(timespans);
    let graph = Model::new(layer, 1).unwrap().graph(&options).unwrap();
    optimize(&graph, &PassOptions::default()).unwrap().0
}

/// The projected CfC, the wired CfC and the wired LTC, and their neighbours.
fn circuits(units: usize) -> Vec<(String, Graph)> {
    let wiring =
        |sparsity| AutoNcp { sparsity_level: sparsity, ..AutoNcp::new(units, units / 4) }.build(INPUTS).unwrap();
    let dense = |layers| Cfc {
        proj_size: Some(units / 4),
        backbone_units: Some(units),
        backbone_layers: Some(layers),
        ..Cfc::new(INPUTS, units)
    };
    let none = Timespans::Constant(1.0);
    let mixed = Cfc { mixed_memory: true, ..Cfc::new(INPUTS, wiring(0.5)) };
    vec![
        (format!("P{units}"), graph(dense(2), none)),
        (format!("W{units}"), graph(Cfc::new(INPUTS, wiring(0.5)), none)),
        (format!("L{units}"), graph(Ltc::new(INPUTS, wiring(0.5)), none)),
        (format!("P{units} of one layer"), graph(dense(1), none)),
        (format!("P{units} of three layers"), graph(dense(3), none)),
        (format!("W{units} sparse"), graph(Cfc::new(INPUTS, wiring(0.8)), none)),
        (format!("W{units} with time"), graph(Cfc::new(INPUTS, wiring(0.5)), Timespans::PerStep)),
        (format!("W{units} mixed"), graph(mixed, none)),
        (format!("L{units} sparse"), graph(Ltc::new(INPUTS, wiring(0.8)), none)),
        (format!("L{units} with time"), graph(Ltc::new(INPUTS, wiring(0.3)), Timespans::PerStep)),
    ]
}

fn plan(
    graph: &Graph,
    limits: &Limits,
    [batch, steps]: [usize; 2],
) -> (Workgroup, Vec<Arc<schwann_codegen::lang::Kernel>>) {
    let prepared = Prepared::new(Arc::new(graph.clone()), limits).unwrap();
    let layout = prepared.lay_out(&Bindings::new().with("B", batch).with("T", steps).with("C", INPUTS)).unwrap();
    let looped = layout.plan.steps.iter().find_map(|step| step.looped.clone()).unwrap();
    (looped.workgroup.unwrap(), layout.kernels)
}

/// With `SCHWANN_KERNELS` the kernels are written there as CUDA, for other compilers.
#[test]
#[expect(clippy::print_stdout, reason = "what a workgroup takes is worth knowing where kernels are written")]
fn circuits_of_few_rows_keep_their_weights_in_registers() {
    let mut missing = vec![];
    for (name, graph) in circuits(64) {
        for sizes in [[1, 16], [256, 64]] {
            let (workgroup, kernels) = plan(&graph, &limits(), sizes);
            if workgroup.register_bytes == 0 {
                missing.push(name.clone());
                continue;
            }
            for kernel in &kernels {
                verify(kernel).unwrap();
            }
            if let Some(folder) = std::env::var_os("SCHWANN_KERNELS") {
                let text = print::cuda(&kernels[0], &print::Options::default());
                let file = format!("{}_{}.cu", name.replace(' ', "_"), sizes[0]);
                std::fs::write(std::path::Path::new(&folder).join(file), text).unwrap();
                println!("{name} {sizes:?}: {workgroup}");
            }
        }
        // With many rows, loops that sum over synapses have a form of their own; on a device that says nothing of registers,
        // none keeps them.
        let keeps = plan(&graph, &limits(), [4096, 64]).0.register_bytes > 0;
        assert_eq!(keeps, !name.starts_with('L'), "{name}");
        assert_eq!(plan(&graph, &Limits { registers: 0, ..limits() }, [1, 16]).0.register_bytes, 0, "{name}");
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn circuits_of_few_rows_give_what_the_reference_gives() {
    let mut random = Random::new(5);
    for (name, graph) in circuits(32) {
        for ([batch, steps], shared_bytes) in [([2, 1], 227 << 10), ([3, 5], 227 << 10), ([2, 9], 15_000)] {
            let bindings = Bindings::new().with("B", batch).with("T", steps).with("C", INPUTS);
            let inputs: BTreeMap<String, Tensor> = graph
                .inputs()
                .map(|(name, value)| {
                    let shape = graph.ty(value).shape.eval(&bindings).unwrap();
                    let [low, high] = if name == "timespans" { [0.5, 1.5] } else { [-1.0, 1.0] };
                    (name.to_owned(), random.floats(&shape, low, high))
                })
                .collect();
            let expected = reference::run(&graph, &inputs, Precision::Storage).unwrap();
            let got =
                run(&graph, &inputs, &Limits { shared_bytes, ..limits() }).unwrap_or_else(|e| panic!("{name}: {e}"));
            for (want, got) in expected.iter().zip(&got) {
                compare(want, got, Tolerance::CHAIN).unwrap_or_else(|e| panic!("{name} ({batch}, {steps}): {e}"));
            }
        }
    }
}

#[cfg(feature = "cuda")]
mod on_a_gpu {
    use super::*;
    use schwann_gpu::Gpu;
    use schwann_gpu::cuda_device::Cuda;

    /// The rows of a batch that are compared.
    fn rows(tensor: &Tensor, rows: &[usize]) -> Tensor {
        let (shape, all) = (tensor.shape(), tensor.to_f64());
        let each = all.len() / shape[0];
        let data: Vec<f64> = rows.iter().flat_map(|row| all[row * each..(row + 1) * each].to_vec()).collect();
        Tensor::from_f64(tensor.dtype(), &[&[rows.len()], &shape[1..]].concat(), &data).unwrap()
    }

    fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
        a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    /// `UNITS` says of how many units circuits are, as 32,64.
    #[test]
    #[expect(clippy::print_stdout, reason = "what a run took is worth knowing")]
    fn few_rows_on_a_gpu_give_what_the_reference_gives() {
        let device = match Cuda::open(None) {
            Ok(device) => Arc::new(device),
            Err(why) => return println!("skipped: {why}"),
        };
        let units = std::env::var("UNITS").map_or(vec![64], |u| u.split(',').map(|u| u.parse().unwrap()).collect());
        let backend = Gpu::new(device);
        let mut random = Random::new(3);
        for (name, graph) in units.into_iter().flat_map(circuits) {
            for [batch, steps] in [[1, 16], [256, 64]] {
                let bindings = Bindings::new().with("B", batch).with("T", steps).with("C", INPUTS);
                let inputs: Vec<(String, Tensor)> = graph
                    .inputs()
                    .map(|(name, value)| {
                        let shape = graph.ty(value).shape.eval(&bindings).unwrap();
                        let [low, high] = if name == "timespans" { [0.5, 1.5] } else { [-1.0, 1.0] };
                        (name.to_owned(), random.floats(&shape, low, high))
                    })
                    .collect();
                let some: Vec<usize> = if batch > 2 { vec![0, batch - 1] } else { vec![0] };
                let few = inputs.iter().map(|(name, value)| (name.clone(), rows(value, &some))).collect();
                let expected = reference::run(&graph, &few, Precision::Storage).unwrap();
                let passes = PassOptions::default();
                let mut ready = schwann_prof::device::roof::Ready::new(&graph, inputs, &backend, passes).unwrap();
                let got = ready.run().unwrap().to_vec();
                let again = ready.run().unwrap().to_vec();
                let mut off = 0.0f64;
                for ((want, got), again) in expected.iter().zip(&got).zip(&again) {
                    assert_eq!(got.bytes(), again.bytes(), "{name}: the same bits");
                    off = off.max(largest_difference(want, &rows(got, &some)));
                }
                let times = ready.device_times(0.15).unwrap();
                let (least, median) = (times[0] * 1e6, times[times.len() / 2] * 1e6);
                println!("{name} ({batch}, {steps}): {least:.1} µs at least, {median:.1} median, off by {off:.1e}");
                assert!(off < 1e-5, "{name} ({batch}, {steps}) is off by {off}");
            }
        }
    }
}
