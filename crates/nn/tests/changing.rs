//! Networks whose weights change: the kernels are those of a network whose weights cannot, streams go on in their layouts,
//! and results are to the bit those of a network that is compiled with the new weights.

use schwann_core::backend::cpu::Cpu;
use schwann_core::cases::random::Random;
use schwann_core::plan::{Kernel, Plan};
use schwann_core::{Changing, CompileOptions, Graph, Program, Session, Tensor};
use schwann_kernels::Isa;
use schwann_nn::wiring::AutoNcp;
use schwann_nn::{Activation, Cfc, GraphOptions, Linear, Lstm, Ltc, Model, Sequential};
use std::collections::BTreeMap;
use std::sync::Arc;

const INPUTS: usize = 8;

fn networks() -> Vec<(&'static str, Sequential)> {
    let wired = || {
        let mut wiring = AutoNcp::new(64, 16).wiring().unwrap();
        wiring.build(INPUTS).unwrap();
        wiring
    };
    let dense = Cfc { proj_size: Some(16), backbone_units: Some(64), backbone_layers: Some(2), ..Cfc::new(INPUTS, 64) };
    vec![
        ("projected CfC", dense.into()),
        ("wired CfC", Cfc::new(INPUTS, wired()).into()),
        ("wired LTC", Ltc::new(INPUTS, wired()).into()),
        ("LSTM", Lstm::new(INPUTS, 24).into()),
        ("MLP", vec![Linear::new(INPUTS, 32).into(), Activation::Tanh.into(), Linear::new(32, 5).into()].into()),
    ]
}

fn compile(graph: &Graph, cpu: &Cpu, changing: Changing) -> Arc<Program> {
    Program::compile_for(graph, cpu, &CompileOptions::default().changing(changing)).unwrap()
}

/// All kernels, in loops too.
fn kernels(plan: &Plan) -> Vec<Kernel> {
    let inside = |step: &schwann_core::plan::Step| -> Vec<Kernel> {
        let bodies = step.looped.iter().flat_map(|l| std::iter::once(&l.body).chain(&l.tail));
        std::iter::once(step.kernel.clone()).chain(bodies.flat_map(|body| kernels(body))).collect()
    };
    plan.steps.iter().flat_map(inside).collect()
}

/// A step of training: every number moves a little.
fn trained(graph: &Graph, random: &mut Random) -> BTreeMap<String, Tensor> {
    let moved = |data: &Tensor, random: &mut Random| {
        let values: Vec<f64> =
            data.to_f64().iter().map(|v| v * random.float(0.9, 1.1) + random.float(0.0, 0.01)).collect();
        Tensor::from_f64(data.dtype(), data.shape(), &values).unwrap()
    };
    graph.weights().iter().map(|(name, data)| (name.clone(), moved(data, random))).collect()
}

fn run(session: &mut Session, x: &Tensor) -> Vec<Vec<u8>> {
    session.run(&[("x", x)]).unwrap().iter().map(|t| t.bytes().to_vec()).collect()
}

#[test]
fn a_network_whose_weights_change_is_as_good_as_one_that_is_compiled_with_them() {
    for (number, (name, layers)) in networks().into_iter().enumerate() {
        let graph = Model::new(layers, 3).unwrap().graph(&GraphOptions::default()).unwrap();
        let sequence = graph.input_types()[0].shape.rank() == 3;
        for (i, &isa) in Isa::available().iter().enumerate() {
            let cpu = Cpu::with_isa(isa, 1 + (i + number) % 2).unwrap();
            let program = compile(&graph, &cpu, Changing::All);
            let plain = compile(&graph, &cpu, Changing::None);
            let mut streams: Vec<_> = [1usize, 3, 17, 64]
                .into_iter()
                .map(|batch| {
                    let shape: &[usize] = if sequence { &[batch, 3, INPUTS] } else { &[batch, INPUTS] };
                    let x = Random::new(batch as u64).floats(shape, -1.0, 1.0);
                    let (mut session, mut fixed) = (program.session(), plain.session());
                    assert_eq!(run(&mut session, &x), run(&mut fixed, &x), "{name}, {isa}, batch {batch}");
                    let (have, want) = (session.plan().unwrap(), fixed.plan().unwrap());
                    assert_eq!(kernels(have), kernels(want), "{name}, {isa}, batch {batch}");
                    assert_eq!((have.arena_bytes, have.weight_bytes), (want.arena_bytes, want.weight_bytes), "{name}");
                    let layout: *const Plan = have;
                    (x, session, layout)
                })
                .collect();
            let mut random = Random::named(name);
            for time in 0..3 {
                let mut weights = trained(&graph, &mut random);
                if time == 2 {
                    // Only some of them.
                    let first = weights.pop_first().unwrap();
                    let kept = program.weights();
                    weights = kept.into_iter().chain([first]).collect();
                }
                let list: Vec<(&str, &Tensor)> = weights.iter().map(|(name, data)| (name.as_str(), data)).collect();
                program.set_weights(&list).unwrap();
                let mut now = graph.clone();
                weights.iter().for_each(|(name, data)| now.set_weight(name, data.clone()).unwrap());
                let plain = compile(&now, &cpu, Changing::None);
                for (x, session, layout) in &mut streams {
                    let mut fresh = plain.session();
                    for state in graph.states() {
                        let value = session.state(&state.input).unwrap().clone();
                        fresh.set_state(&state.input, value).unwrap();
                    }
                    assert_eq!(run(session, x), run(&mut fresh, x), "{name}, {isa}, change {time}, {x}");
                    assert!(std::ptr::eq(session.plan().unwrap(), *layout), "{name}, {isa}: laid out anew");
                }
            }
        }
    }
}
