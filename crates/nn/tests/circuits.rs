//! The graphs that layers become: the shapes that the compiler knows, and the corners of circuits.

use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::random::Random;
use schwann_core::op::Op;
use schwann_core::pass::PassOptions;
use schwann_core::{Bindings, CompileOptions, DType, Graph, Program, Tensor};
use schwann_kernels::Isa;
use schwann_nn::wiring::{AutoNcp, Wiring};
use schwann_nn::{Cfc, Error, GraphOptions, InitialState, Layer, Ltc, Mapping, Model, Parameters, Result, Timespans};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often an operation occurs in the body of the graph's only loop, and outside.
fn occurs(graph: &Graph, op: &str) -> (usize, usize) {
    let count = |graph: &Graph| graph.nodes().iter().filter(|n| n.op.name() == op).count();
    let scans: Vec<&Graph> =
        graph.nodes().iter().filter_map(|n| if let Op::Scan(s) = &n.op { Some(&*s.body) } else { None }).collect();
    assert_eq!(scans.len(), 1, "one loop");
    (count(scans[0]), count(graph))
}

#[test]
fn a_cfc_is_products_of_one_joined_value_with_its_masks_outside_the_loop() -> Result<()> {
    let dense = Model::new(Cfc::new(4, 6), 1)?.graph(&GraphOptions::default())?;
    assert_eq!(occurs(&dense, "matmul"), (5, 0), "a backbone and four heads");
    assert_eq!(occurs(&dense, "concat"), (1, 0));
    // lecun_tanh's two factors and the gate; Δt = 1 is no factor.
    assert_eq!(occurs(&dense, "mul"), (3, 0));
    let timed = Model::new(Cfc::new(4, 6), 1)?.graph(&GraphOptions::default().timespans(Timespans::PerStep))?;
    assert_eq!(occurs(&timed, "mul"), (4, 0));
    let wired = Model::new(Cfc::new(4, AutoNcp::new(12, 3).wiring()?), 1)?.graph(&GraphOptions::default())?;
    assert_eq!(occurs(&wired, "matmul"), (12, 0), "four heads for each of three layers");
    assert_eq!(occurs(&wired, "mul"), (3, 6), "gates inside; masks of ff1 and ff2 outside");
    Ok(())
}

#[test]
fn a_new_length_shares_the_body_of_the_loop_with_the_others() -> Result<()> {
    let profile = Cfc { proj_size: Some(16), backbone_units: Some(64), backbone_layers: Some(2), ..Cfc::new(8, 64) };
    let wired = || AutoNcp::new(64, 16).build(8);
    let models = [
        Model::new(profile, 1)?,
        Model::new(Cfc::new(8, wired()?), 1)?,
        Model::new(Cfc { mixed_memory: true, ..Cfc::new(8, wired()?) }, 1)?,
        Model::new(Ltc::new(8, wired()?), 1)?,
    ];
    for model in models {
        let program = model.compile(&GraphOptions::default(), &CompileOptions::default().threads(1))?;
        // Of the only loop: the bodies for a block of rows and for those left over.
        let bodies = |batch: usize, steps: usize| {
            let plan = program.plan(&Bindings::new().with("B", batch).with("T", steps))?;
            let loops: Vec<_> = plan.steps.iter().filter_map(|s| s.looped.clone()).collect();
            assert_eq!(loops.len(), 1, "one loop");
            assert_eq!(loops[0].steps, steps);
            Ok::<_, Error>((Arc::clone(&loops[0].body), loops[0].tail.clone()))
        };
        for batch in [1, 3, 16, 33, 100] {
            let ((body, tail), (again, tail_again)) = (bodies(batch, 5)?, bodies(batch, 900)?);
            assert!(Arc::ptr_eq(&body, &again), "batch {batch}");
            assert_eq!(tail.is_some(), tail_again.is_some());
            assert!(tail.zip(tail_again).is_none_or(|(a, b)| Arc::ptr_eq(&a, &b)), "batch {batch}");
        }
        // Blocks of as many rows are the same for other batches too.
        let blocks: Vec<_> = [64, 96, 128].into_iter().map(|batch| bodies(batch, 2)).collect::<Result<_>>()?;
        let rows = |plan: &schwann_core::plan::Plan| plan.bindings.get("__rows");
        for (body, _) in &blocks[1..] {
            assert_eq!(Arc::ptr_eq(body, &blocks[0].0), rows(body) == rows(&blocks[0].0));
        }
        // And what they share computes what a program does that knows no other length.
        let x = |steps: usize| Random::new(steps as u64).floats(&[19, steps, 8], -1.0, 1.0);
        let (mut session, steps) = (program.session(), [3, 7, 1, 12]);
        for steps in steps {
            let alone = model.compile(&GraphOptions::default(), &CompileOptions::default().threads(1))?;
            let mut alone = alone.session();
            session.reset();
            assert_eq!(session.run(&[("x", &x(steps))])?, alone.run(&[("x", &x(steps))])?);
        }
    }
    Ok(())
}

#[test]
fn one_stream_needs_little_memory_and_work_grows_by_the_same_with_every_step_and_sample() -> Result<()> {
    let profile = Cfc { proj_size: Some(16), backbone_units: Some(64), backbone_layers: Some(2), ..Cfc::new(8, 64) };
    let wired = || AutoNcp::new(64, 16).build(8);
    let models = [
        (Model::new(profile, 1)?, false),
        (Model::new(Cfc::new(8, wired()?), 1)?, true),
        (Model::new(Ltc::new(8, wired()?), 1)?, false),
    ];
    for (model, masked) in models {
        let program = model.compile(&GraphOptions::default(), &CompileOptions::default().threads(1))?;
        let plan = |batch: usize, steps: usize| {
            let plan = program.plan(&Bindings::new().with("B", batch).with("T", steps))?;
            Ok::<_, Error>((plan.arena_bytes, plan.cost().flops, plan.cost().transcendentals))
        };
        for steps in [1, 16, 1024] {
            let (arena, ..) = plan(1, steps)?;
            assert!(arena < 1 << 20, "{arena} bytes for one stream of {steps} steps");
        }
        let (_, flops, functions) = plan(1, 1)?;
        for (batch, steps) in [(1, 2), (1, 7), (5, 1), (32, 16), (33, 3)] {
            let (_, all, all_functions) = plan(batch, steps)?;
            let n = (batch * steps) as u64;
            assert_eq!(all_functions, n * functions, "{batch} × {steps}");
            assert_eq!(all, steps as u64 * plan(batch, 1)?.1, "{batch} × {steps}");
            // What is masked is skipped where rows fill the lanes.
            assert!(if masked { all <= n * flops } else { all == n * flops }, "{batch} × {steps}: {all}, one {flops}");
        }
        assert_eq!((plan(96, 1)?.1, plan(48, 1)?.1 < 48 * flops), (2 * plan(48, 1)?.1, masked));
    }
    Ok(())
}

#[test]
fn an_ltc_computes_only_the_synapses_that_exist() -> Result<()> {
    let wiring = AutoNcp::new(20, 4).build(5)?;
    let synapses = wiring.synapse_count();
    let model = Model::new(Ltc::new(5, wiring), 1)?;
    let graph = model.graph(&GraphOptions::default())?;
    assert_eq!(
        occurs(&graph, "gather"),
        (7, 10),
        "six unfoldings and the inputs; four matrices of either kind, and the mapping of inputs"
    );
    assert_eq!(occurs(&graph, "segment_sum"), (14, 0));
    assert_eq!(occurs(&graph, "sigmoid"), (7, 0));
    assert_eq!(occurs(&graph, "softplus"), (0, 4), "of w, sensory_w, gleak and cm, once");
    let body = graph.nodes().iter().find_map(|n| if let Op::Scan(s) = &n.op { Some(&s.body) } else { None }).unwrap();
    // All fourteen of them, as counted above.
    for node in body.nodes().iter().filter(|n| n.op.name() == "segment_sum") {
        // Sorted by where synapses end, so that a sum is a run.
        let Op::Const(ends) = &body.node(node.inputs[1]).op else { panic!("segments are literals") };
        let ends = ends.values::<i32>()?;
        assert!(ends.is_sorted());
    }
    let widest = body.nodes().iter().filter_map(|n| n.outs[0].shape.dims().last()?.as_fixed()).max();
    assert_eq!(widest, Some(synapses));
    Ok(())
}

/// Outputs by name.
type Outputs = BTreeMap<String, Vec<f64>>;

fn named(graph: &Graph, tensors: &[Tensor]) -> Outputs {
    graph.outputs().iter().zip(tensors).map(|(o, t)| (o.name.clone(), t.to_f64())).collect()
}

fn on_cpu(graph: &Graph, inputs: &BTreeMap<String, Tensor>, isa: Isa, passes: PassOptions) -> Outputs {
    let arguments: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let cpu = Cpu::with_isa(isa, 1).unwrap();
    let program = Program::compile_for(graph, &cpu, &CompileOptions::default().passes(passes)).unwrap();
    named(graph, program.session().run(&arguments).unwrap())
}

/// Whether both have the same numbers, at least one, within 1e-6.
fn near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && !a.is_empty() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
}

/// On the reference first, then on every instruction set, as compiled and as built.
fn everywhere(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Vec<Outputs> {
    let mut all = vec![named(graph, &reference::run(graph, inputs, Precision::Storage).unwrap())];
    for &isa in Isa::available() {
        for passes in [PassOptions::default(), PassOptions::none()] {
            all.push(on_cpu(graph, inputs, isa, passes));
        }
    }
    all
}

#[test]
fn a_circuit_without_synapses_leaks() -> Result<()> {
    // v ← (cm/Δt′·v + gleak·vleak) / (cm/Δt′ + gleak + ε), six times a step, whatever the input.
    let ltc = Ltc { implicit_param_constraints: false, ..Ltc::new(2, Wiring::new(3, 2)?) };
    let model = Model::new(ltc, 5)?;
    let value = |name: &str| model.weight(&format!("rnn_cell.{name}")).unwrap().to_f64();
    let (cm, gleak, vleak) = (value("cm"), value("gleak"), value("vleak"));
    let steps = 4;
    let mut v = [0.5, -0.5, 0.25];
    let h0 = Tensor::from_f64(DType::F32, &[1, 3], &v)?;
    for _ in 0..6 * steps {
        for (i, v) in v.iter_mut().enumerate() {
            *v = (cm[i] * 6.0 * *v + gleak[i] * vleak[i]) / (cm[i] * 6.0 + gleak[i] + 1e-8);
        }
    }
    let graph = model.training_graph(&GraphOptions::default())?;
    let mut random = Random::new(2);
    let inputs = BTreeMap::from([
        ("x".to_owned(), random.floats(&[1, steps, 2], -9.0, 9.0)),
        ("target".to_owned(), random.floats(&[1, steps, 2], -1.0, 1.0)),
        ("h0".to_owned(), h0),
    ]);
    for outputs in everywhere(&graph, &inputs) {
        assert!(near(&outputs["hn"], &v), "{:?}, not {v:?}", outputs["hn"]);
        // What has no effect has no gradient, and every parameter has one.
        for name in ["grad.rnn_cell.input_w", "grad.rnn_cell.w"] {
            assert!(!outputs[name].is_empty() && outputs[name].iter().all(|g| *g == 0.0), "{name}");
        }
        assert!(outputs["grad.rnn_cell.vleak"][0] != 0.0);
        assert_eq!(outputs.keys().filter(|name| name.starts_with("grad.")).count(), model.params().len());
    }
    Ok(())
}

#[test]
fn one_neuron_one_input_one_step_is_a_network() -> Result<()> {
    let layers: [Layer; 3] = [
        Cfc { backbone_layers: Some(0), ..Cfc::new(1, 1) }.into(),
        Cfc { mixed_memory: true, backbone_units: Some(1), ..Cfc::new(1, 1) }.into(),
        Ltc { input_mapping: Mapping::None, output_mapping: Mapping::None, ode_unfolds: 1, ..Ltc::new(1, 1) }.into(),
    ];
    for layer in layers {
        let graph = Model::new(layer, 1)?.training_graph(&GraphOptions::default())?;
        let one = |value: f32| Tensor::new(&[1, 1, 1], &[value]).unwrap();
        let inputs = BTreeMap::from([("x".to_owned(), one(0.7)), ("target".to_owned(), one(-0.3))]);
        let all = everywhere(&graph, &inputs);
        assert!(all.len() > 2 && all[0].len() > 2, "{} runs of {} outputs", all.len(), all[0].len());
        for outputs in &all[1..] {
            for (name, want) in &all[0] {
                assert!(near(&outputs[name], want), "{name}: {:?}, reference {want:?}", outputs[name]);
            }
        }
    }
    Ok(())
}

#[test]
fn every_way_to_give_parameters_and_states_gives_the_same_gradients() -> Result<()> {
    let mut random = Random::new(9);
    let circuit = AutoNcp::new(12, 3).wiring()?;
    let layers: [Layer; 2] = [
        Cfc { mixed_memory: true, ..Cfc::new(4, circuit.clone()) }.into(),
        Ltc { mixed_memory: true, ..Ltc::new(4, circuit) }.into(),
    ];
    for layer in layers {
        let model = Model::new(layer, 4)?;
        let samples = BTreeMap::from([
            ("x".to_owned(), random.floats(&[2, 5, 4], -1.0, 1.0)),
            ("target".to_owned(), random.floats(&[2, 5, 3], -1.0, 1.0)),
        ]);
        let run = |options: GraphOptions| -> Result<Outputs> {
            let graph = model.training_graph(&options)?;
            let mut inputs = samples.clone();
            if options.parameters == Parameters::Inputs {
                inputs.extend(model.weights().clone());
            }
            if options.state == InitialState::Given {
                for name in ["h0", "c0"] {
                    inputs.insert(name.into(), Tensor::zeros(DType::F32, &[2, 12])?);
                }
            }
            Ok(on_cpu(&graph, &inputs, Isa::detect(), PassOptions::default()))
        };
        let expected = run(GraphOptions::default())?;
        for state in [InitialState::Carried, InitialState::Given, InitialState::Zero] {
            for parameters in [Parameters::Weights, Parameters::Inputs] {
                let got = run(GraphOptions::default().state(state).parameters(parameters))?;
                assert!(expected.len() > 2, "{} outputs", expected.len());
                for (name, want) in &expected {
                    assert!(near(&got[name], want), "{name} with {state:?} and {parameters:?}");
                }
            }
        }
    }
    Ok(())
}
