//! Networks on devices: what they gave in PyTorch, streams step by step and thousands of them together, and graphs that
//! nobody wrote. On a simulated device, and on a GPU, where there is one; without, that part is skipped, unless
//! `SCHWANN_REQUIRE_GPU` is set.
//!
//! Random graphs are 50, always the same; `SCHWANN_LONG=n` draws n of them anew.

#[cfg(feature = "wgpu")]
#[path = "../../core/tests/drawn/mod.rs"]
mod drawn;
#[path = "../../nn/tests/met/mod.rs"]
mod met;
#[cfg(feature = "wgpu")]
mod opened;
#[path = "../../nn/tests/stepped/mod.rs"]
mod stepped;

use schwann_core::cases::random::Random;
use schwann_core::pass::PassOptions;
use schwann_core::{CompileOptions, Program, Session, Tensor};
use schwann_gpu::Gpu;
use schwann_gpu::device::{Device, Limits, Tally};
use schwann_gpu::simulated::Simulated;
use schwann_nn::verify::{Engine, VerifyOptions};
use schwann_nn::wiring::AutoNcp;
use schwann_nn::{Cfc, GraphOptions, InitialState, Layer, Ltc, Model};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The interpreter is no fast device.
const SMALL_FILE: u64 = 10_000;

/// With few workgroups at a time, so that a block of a loop has several rows.
fn simulated() -> Arc<Simulated> {
    Arc::new(Simulated::new(Limits { parallel_groups: 1, ..Limits::default() }, true))
}

/// As built, and with every pass.
fn engines<D: Device>(device: &Arc<D>) -> VerifyOptions {
    let engine = |passes| Engine::new(Gpu::new(Arc::clone(device)), passes);
    VerifyOptions::on(vec![engine(PassOptions::default()), engine(PassOptions::none())])
}

#[test]
fn small_golden_files_are_met_on_a_simulated_device() {
    let small = |file: &PathBuf| std::fs::metadata(file).unwrap().len() < SMALL_FILE;
    let files: Vec<PathBuf> = met::files(met::FOLDER).into_iter().filter(small).collect();
    assert!(files.len() > 10, "{files:?}");
    let off = met::off(&files, &engines(&simulated()));
    assert!(off.is_empty(), "{off}");
}

const INPUTS: usize = 5;

/// Circuits of which a whole sequence is one launch.
fn circuits(units: usize, outputs: usize) -> Vec<(&'static str, Model)> {
    let wiring = || AutoNcp::new(units, outputs).wiring().unwrap();
    let dense = Cfc { backbone_units: Some(units), backbone_layers: Some(2), ..Cfc::new(INPUTS, units) };
    let layers: [(&str, Layer); 3] = [
        ("projected CfC", Cfc { proj_size: Some(outputs), ..dense }.into()),
        ("wired CfC", Cfc::new(INPUTS, wiring()).into()),
        ("wired LTC", Ltc::new(INPUTS, wiring()).into()),
    ];
    layers.map(|(name, layer)| (name, Model::new(layer, 7).unwrap())).into()
}

/// What a device did: launches, submissions, writes; and what it must not do: buffers, compilations, copies, reads.
fn counts(tally: &Tally) -> ([u64; 3], [u64; 4]) {
    let get = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::SeqCst);
    (
        [&tally.launches, &tally.submissions, &tally.writes].map(get),
        [&tally.buffers, &tally.compilations, &tally.copies, &tally.reads].map(get),
    )
}

fn step(session: &mut Session, x: &Tensor) {
    session.submit(&[("x", x)]).unwrap();
    session.wait().unwrap();
}

/// Streams that step together: one launch a step and nothing beside it, and in the end what the whole sequence gives.
fn together<D: Device>(device: &Arc<D>, streams: usize) {
    const STEPS: usize = 6;
    for (name, model) in circuits(21, 4) {
        let options = GraphOptions::default().state(InitialState::Carried);
        let graph = model.graph(&options).unwrap();
        let program = Program::compile_for(&graph, &Gpu::new(Arc::clone(device)), &CompileOptions::default()).unwrap();
        let mut random = Random::new(8);
        let all = random.floats(&[streams, STEPS, INPUTS], -2.0, 2.0);
        let values = all.values::<f32>().unwrap();
        let steps: Vec<Tensor> = (0..STEPS)
            .map(|t| {
                let x = (0..streams)
                    .flat_map(|s| values[(s * STEPS + t) * INPUTS..][..INPUTS].to_vec())
                    .collect::<Vec<f32>>();
                Tensor::new(&[streams, 1, INPUTS], &x).unwrap()
            })
            .collect();
        let mut session = program.session();
        // Warm-up: how long things take has to be learnt, and states change places every second run.
        (0..6).for_each(|_| step(&mut session, &steps[0]));
        session.reset();
        step(&mut session, &steps[0]);
        let (did, made) = counts(device.tally());
        steps[1..].iter().for_each(|x| step(&mut session, x));
        let (did_now, made_now) = counts(device.tally());
        assert_eq!(made_now, made, "{name}: buffers, compilations, copies and reads");
        let each = did_now.iter().zip(did).map(|(now, before)| now - before).collect::<Vec<u64>>();
        assert_eq!(each, [STEPS as u64 - 1; 3], "{name}: launches, submissions, and writes (of x)");
        let state = session.state("h0").unwrap().clone();
        let mut whole = program.session();
        for _ in 0..2 {
            whole.reset();
            // One launch, unless a slow device makes that too long for one submission.
            step(&mut whole, &all);
            assert_eq!(whole.state("h0").unwrap().bytes(), state.bytes(), "{name}: the same bits");
        }
    }
}

#[test]
fn streams_step_together_in_one_launch_on_a_simulated_device() {
    together(&simulated(), 9);
}

#[cfg(feature = "wgpu")]
mod on_a_gpu {
    use super::*;
    use drawn::{Compared, Expected, expected, make};
    use opened::open;
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
    use schwann_core::backend::Backend;
    use schwann_core::backend::cpu::Cpu;
    use schwann_core::cases::{Tolerance, compare};
    use schwann_core::{Bindings, Error};
    use schwann_gpu::wgpu_device::Wgpu;
    use std::cell::Cell;

    #[test]
    fn every_golden_file_is_met() {
        let Some(device) = open() else { return };
        let off = met::off(&met::files(met::FOLDER), &engines(&device));
        assert!(off.is_empty(), "{off}");
    }

    #[test]
    fn step_by_step_is_the_whole_sequence_bit_for_bit() {
        let Some(device) = open() else { return };
        stepped::all_step_by_step(&Gpu::new(device));
    }

    #[test]
    fn four_thousand_streams_step_together_in_one_launch() {
        // Devices of its own: others' runs would count as well.
        let opened = |share| open().map(|_| Arc::new(Wgpu::open_as(None, share).unwrap()));
        [true, false].into_iter().filter_map(opened).for_each(|device| together(&device, 4096));
    }

    #[test]
    fn a_circuit_over_a_whole_sequence_is_one_launch_and_gives_the_same_bits_twice() {
        let Some(device) = open().map(|_| Arc::new(Wgpu::open(None).unwrap())) else { return };
        let x = Random::new(9).floats(&[256, 64, INPUTS], -2.0, 2.0);
        for (name, model) in circuits(64, 16) {
            let graph = model.graph(&GraphOptions::default().state(InitialState::Zero)).unwrap();
            let compile = |backend: &dyn Backend| Program::compile_for(&graph, backend, &CompileOptions::default());
            let program = compile(&Gpu::new(Arc::clone(&device))).unwrap();
            let plan = program.plan(&Bindings::new().with("B", 256).with("T", 64)).unwrap();
            assert_eq!(plan.steps.len(), 1, "{name}: {}", plan.explain(None));
            let mut session = program.session();
            let launches = counts(device.tally()).0[0];
            let first = session.run(&[("x", &x)]).unwrap().to_vec();
            // How fast the device is has to be learnt: the first walk over a sequence may be cut into pieces.
            let pieces = counts(device.tally()).0[0] - launches;
            let again = session.run(&[("x", &x)]).unwrap();
            assert!(pieces >= 1 && first.iter().zip(again).all(|(a, b)| a.bytes() == b.bytes()), "{name}");
            let mut expected = compile(&Cpu::new(1).unwrap()).unwrap().session();
            let expected = expected.run(&[("x", &x)]).unwrap();
            for (got, want) in again.iter().zip(expected) {
                compare(want, got, Tolerance { abs: 1e-4, rel: 1e-4 }).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
    }

    #[test]
    fn random_graphs_agree_with_the_reference() {
        let Some(device) = open() else { return };
        let gpu = Gpu::new(device);
        let long = std::env::var("SCHWANN_LONG").ok().and_then(|v| v.parse().ok()).filter(|n| *n > 1);
        let config = Config {
            cases: long.unwrap_or(50),
            rng_seed: if long.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) },
            failure_persistence: None,
            ..Config::default()
        };
        let all = Cell::new(Compared::default());
        let ran = TestRunner::new(config).run(&vec(any::<u16>(), 0..260), |choices| {
            let seed = choices.iter().fold(0u64, |h, c| h.wrapping_mul(31).wrapping_add(u64::from(*c)));
            let graph = make(&choices);
            let expected = expected(&graph, seed);
            let mut sum = all.get();
            for passes in [PassOptions::default(), PassOptions::none()] {
                let fail = |e: String| TestCaseError::fail(format!("fused: {}: {e}\n{graph}", passes.fuse));
                let program =
                    match Program::compile_for(&graph, &gpu, &CompileOptions::default().passes(passes.clone())) {
                        Ok(program) => program,
                        // An index of a literal that is out of range is found early.
                        Err(Error::Value { .. }) if expected.iter().any(Expected::is_refused) => continue,
                        Err(e) => return Err(fail(e.to_string())),
                    };
                for expected in &expected {
                    let inputs: Vec<(&str, &Tensor)> = expected.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
                    let mut session = program.session();
                    sum.add(expected.judge(session.run(&inputs)).map_err(fail)?);
                }
            }
            all.set(sum);
            Ok(())
        });
        if let Err(e) = ran {
            panic!("{e}");
        }
        let Compared { elements, compared } = all.get();
        assert!(compared as f64 >= 0.8 * elements as f64, "only {compared} of {elements} elements could be compared");
    }
}
