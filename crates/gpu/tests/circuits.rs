//! Networks on devices: what they gave in PyTorch, streams step by step and thousands of them together, and graphs that
//! nobody wrote. On a simulated device, and on a GPU, where there is one; without, that part is skipped, unless
//! `SCHWANN_REQUIRE_GPU` is set.
//!
//! Random graphs are 50, always the same; `SCHWANN_LONG=n` draws n of them anew.

#[path = "../../nn/tests/met/mod.rs"]
mod met;
#[path = "../../nn/tests/stepped/mod.rs"]
mod stepped;

use schwann_codegen::lang::Half;
use schwann_core::backend::Backend;
use schwann_core::backend::cpu::Cpu;
use schwann_core::cases::random::Random;
use schwann_core::cases::{Tolerance, compare};
use schwann_core::pass::PassOptions;
use schwann_core::{Bindings, Changing, CompileOptions, Program, Session, Tensor};
use schwann_gpu::Gpu;
use schwann_gpu::device::{Device, Limits, Products, Tally};
use schwann_gpu::simulated::Simulated;
use schwann_nn::verify::{Engine, VerifyOptions};
use schwann_nn::wiring::AutoNcp;
use schwann_nn::{Cfc, GraphOptions, InitialState, Layer, Ltc, Model, Timespans};
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

/// The longest warm-up, in runs. What a step takes is learnt from each run, the half of what it differs by, so a few are
/// enough on a machine that has nothing else to do.
const WARM_UP_MOST: usize = 60;

/// Runs until four runs in a row are one launch in one submission each, which write their input and make nothing. Four,
/// because states change places in every second one. A run that something else on the machine holds up may be cut into
/// pieces again, so it is not the first good one that counts.
fn settles_to_one_launch<D: Device>(name: &str, device: &Arc<D>, mut run: impl FnMut()) {
    let (mut in_a_row, mut all) = (0, vec![]);
    while in_a_row < 4 {
        let (did, made) = counts(device.tally());
        run();
        let (did_now, made_now) = counts(device.tally());
        all.push(did_now.iter().zip(did).map(|(now, before)| now - before).collect::<Vec<u64>>());
        in_a_row = if all.last() == Some(&vec![1; 3]) && made == made_now { in_a_row + 1 } else { 0 };
        assert!(all.len() < WARM_UP_MOST, "{name}: launches, submissions and writes of each run: {all:?}");
    }
}

/// Streams that step together: one launch a step and nothing beside it, and in the end what the whole sequence gives. That
/// is one launch too, once the device's pace is known, if it `is_short`: what takes more than 50 ms is cut into pieces.
fn together<D: Device>(device: &Arc<D>, streams: usize, is_short: bool) {
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
        let mut run = || {
            whole.reset();
            step(&mut whole, &all);
        };
        if is_short {
            settles_to_one_launch(name, device, &mut run);
        }
        run();
        assert_eq!(whole.state("h0").unwrap().bytes(), state.bytes(), "{name}: the same bits");
    }
}

#[test]
fn streams_step_together_in_one_launch_on_a_simulated_device() {
    together(&simulated(), 9, true);
}

/// A device like NVIDIA's larger ones, with so many cores.
fn with_small_matrices(products: Products, cores: u32) -> Limits {
    let shared_bytes = 227 << 10;
    let (exact_halves, fast_functions, lanes) = (true, true, 32);
    let parallel_groups = cores;
    let usual = Limits::default();
    Limits { threads: 1024, lanes, exact_halves, fast_functions, products, shared_bytes, parallel_groups, ..usual }
}

#[test]
fn loops_of_many_rows_multiply_small_matrices_where_a_device_can() {
    for (products, off) in
        [(Products::Split, 1e-5), (Products::Halves(Half::F16), 1e-2), (Products::Halves(Half::Bf16), 8e-2)]
    {
        let device = Arc::new(Simulated::new(with_small_matrices(products, 1), false));
        for (name, model) in circuits(21, 4).into_iter().take(2) {
            let graph = model.graph(&GraphOptions::default().state(InitialState::Carried)).unwrap();
            let compile = |on: &dyn Backend| Program::compile_for(&graph, on, &CompileOptions::default()).unwrap();
            let program = compile(&Gpu::new(Arc::clone(&device)));
            let plan = program.plan(&Bindings::new().with("B", 37).with("T", 5)).unwrap();
            let workgroup = plan.steps.iter().find_map(|step| step.looped.as_ref()?.workgroup.clone()).unwrap();
            assert!(workgroup.barriers == 0 && workgroup.resident_bytes > 0, "{name}: {workgroup}");
            let mut session = program.session();
            let mut expected = compile(&Cpu::new(1).unwrap()).session();
            for seed in 0..2 {
                let x = Random::new(seed).floats(&[37, 5, INPUTS], -2.0, 2.0);
                let want = expected.run(&[("x", &x)]).unwrap().to_vec();
                let got = session.run(&[("x", &x)]).unwrap();
                for (want, got) in want.iter().zip(got) {
                    compare(want, got, Tolerance { abs: off, rel: off }).unwrap_or_else(|e| panic!("{name}: {e}"));
                }
            }
        }
    }
}

/// Circuits with synapses of all kinds of lists: short ones and long ones.
fn circuits_of_synapses() -> Vec<(String, Model)> {
    let mut all: Vec<(String, Model)> = vec![("wired LTC".into(), circuits(21, 4).pop().unwrap().1)];
    for (units, sparsity, unfolds) in [(33, 0.9, 3), (40, 0.3, 6), (7, 0.5, 1)] {
        let wiring = schwann_nn::wiring::Random::new(units, sparsity).wiring().unwrap();
        let layer = Ltc { ode_unfolds: unfolds, ..Ltc::new(INPUTS, wiring) };
        all.push((format!("{units} units, sparsity {sparsity}"), Model::new(layer, 5).unwrap()));
    }
    all
}

#[test]
fn loops_of_many_rows_sum_over_synapses_by_rows_abreast() {
    for (cores, batch, rows) in [(0, 37, 64), (1, 129, 64), (2, 47, 32), (1, 5, 16)] {
        let device = Arc::new(Simulated::new(with_small_matrices(Products::Single, cores), false));
        for ((name, model), timespans) in circuits_of_synapses().into_iter().zip([false, true, false, true]) {
            let spans = if timespans { Timespans::PerStep } else { Timespans::Constant(1.0) };
            let graph = model.graph(&GraphOptions::default().state(InitialState::Carried).timespans(spans)).unwrap();
            let options = CompileOptions::default().changing(Changing::All);
            let compile = |on: &dyn Backend| Program::compile_for(&graph, on, &options).unwrap();
            let programs = [compile(&Cpu::new(1).unwrap()), compile(&Gpu::new(Arc::clone(&device)))];
            let plan = programs[1].plan(&Bindings::new().with("B", batch).with("T", 3)).unwrap();
            let looped = plan.steps.iter().find_map(|step| step.looped.clone()).unwrap();
            assert_eq!(looped.block_rows, Some(rows), "{name}");
            let mut sessions = programs.each_ref().map(Program::session);
            for seed in 0..3 {
                if seed == 2 {
                    // Other numbers for the same synapses, while states are carried on.
                    for program in &programs {
                        let weights = program.weights();
                        let moved = weights.iter().map(|(name, data)| {
                            let by = Random::named(name).floats(data.shape(), 0.8, 1.2).to_f64();
                            let data_by: Vec<f64> = data.to_f64().iter().zip(by).map(|(w, by)| w * by).collect();
                            (name.as_str(), Tensor::from_f64(data.dtype(), data.shape(), &data_by).unwrap())
                        });
                        let moved: Vec<(&str, Tensor)> = moved.collect();
                        let moved: Vec<(&str, &Tensor)> = moved.iter().map(|(name, data)| (*name, data)).collect();
                        program.set_weights(&moved).unwrap();
                    }
                }
                let x = Random::new(seed).floats(&[batch, 3, INPUTS], -2.0, 2.0);
                let elapsed = Random::new(seed + 10).floats(&[batch, 3], 0.1, 3.0);
                let inputs = [("x", &x), ("timespans", &elapsed)];
                let inputs = &inputs[..1 + usize::from(timespans)];
                let [want, got] = sessions.each_mut().map(|session| session.run(inputs).unwrap().to_vec());
                for (want, got) in want.iter().zip(&got) {
                    compare(want, got, Tolerance { abs: 5e-6, rel: 5e-6 }).unwrap_or_else(|e| panic!("{name}: {e}"));
                }
            }
        }
    }
}

/// For other compilers: the kernels of circuits as CUDA, written where `SCHWANN_KERNELS` says.
#[test]
fn kernels_of_circuits_are_written_where_somebody_asks() {
    let Some(folder) = std::env::var_os("SCHWANN_KERNELS").map(PathBuf::from) else { return };
    for products in [Products::Single, Products::Split, Products::Halves(Half::F16), Products::Halves(Half::Bf16)] {
        let limits = with_small_matrices(products, 132);
        for (name, model) in circuits(64, 16) {
            let graph = model.graph(&GraphOptions::default().state(InitialState::Zero)).unwrap();
            let (graph, _) = schwann_core::pass::optimize(&graph, &PassOptions::default()).unwrap();
            let prepared = schwann_gpu::lower::Prepared::new(Arc::new(graph), &limits).unwrap();
            for (batch, steps) in [(1, 16), (256, 64), (4096, 64), (65536, 64)] {
                let layout = prepared.lay_out(&Bindings::new().with("B", batch).with("T", steps)).unwrap();
                for kernel in &layout.kernels {
                    let text = schwann_codegen::print::cuda(kernel, &Default::default());
                    let file = format!("{}-{}-{batch}-{}.cu", name.replace(' ', "-"), products.name(), kernel.name);
                    std::fs::write(folder.join(file), text).unwrap();
                }
            }
        }
    }
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod on_a_gpu {
    use super::*;
    use crate::drawn::{Compared, Expected, expected, make};
    use crate::opened::{Card, open};
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
    use schwann_core::grad::gradient;
    use schwann_core::{Error, Graph};
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

    /// A device in software has few cores, so that no batch counts as few rows there. Taken for a large one, it has to keep
    /// weights in a workgroup's memory and let threads exchange values, which no other test makes a device do.
    #[test]
    fn few_rows_keep_their_weights_and_share_sums() {
        let Some(device) = open() else { return };
        let large = Limits { parallel_groups: 2048, ..device.limits().clone() };
        let device = Arc::new(Card::open(None).unwrap().within(&large));
        for (name, model) in circuits(21, 4) {
            let graph = model.graph(&GraphOptions::default().state(InitialState::Zero)).unwrap();
            let compile = |backend: &dyn Backend| Program::compile_for(&graph, backend, &CompileOptions::default());
            let program = compile(&Gpu::new(Arc::clone(&device))).unwrap();
            let plan = program.plan(&Bindings::new().with("B", 3).with("T", 9)).unwrap();
            let workgroup = plan.steps.iter().find_map(|step| step.looped.as_ref()?.workgroup.clone()).unwrap();
            assert!(workgroup.resident_bytes + workgroup.register_bytes > 0, "{name}: {workgroup}");
            let x = Random::new(10).floats(&[3, 9, INPUTS], -2.0, 2.0);
            let mut session = program.session();
            let first = session.run(&[("x", &x)]).unwrap().to_vec();
            let again = session.run(&[("x", &x)]).unwrap();
            assert!(first.iter().zip(again).all(|(a, b)| a.bytes() == b.bytes()), "{name}: the same bits");
            let mut expected = compile(&Cpu::new(1).unwrap()).unwrap().session();
            for (got, want) in again.iter().zip(expected.run(&[("x", &x)]).unwrap()) {
                compare(want, got, Tolerance { abs: 1e-5, rel: 1e-5 }).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
        let engine = Engine::new(Gpu::new(device), PassOptions::default());
        let off = met::off(&met::files(met::FOLDER), &VerifyOptions::on(vec![engine]));
        assert!(off.is_empty(), "{off}");
    }

    #[test]
    fn four_thousand_streams_step_together_in_one_launch() {
        // Devices of its own: others' runs would count as well.
        let opened = |share| open().map(|_| Arc::new(Card::open_as(None, share).unwrap()));
        [true, false].into_iter().filter_map(opened).for_each(|device| together(&device, 4096, false));
    }

    /// So few rows and steps that a driver on a processor, too, takes a few milliseconds for all of them: one that takes more
    /// than 50 is cut into pieces, and at (256, 64) this one takes longer. That these are one dispatch is a matter of the
    /// plan, which the next test asks for.
    #[test]
    fn a_warm_circuit_over_a_whole_sequence_is_one_launch_and_makes_nothing() {
        // Devices of its own: others' runs would count as well.
        let opened = |share| open().map(|_| Arc::new(Card::open_as(None, share).unwrap()));
        let devices = [true, false].into_iter().filter_map(opened);
        let x = Random::new(9).floats(&[8, 8, INPUTS], -2.0, 2.0);
        for (device, (name, model)) in
            devices.flat_map(|device| circuits(21, 4).into_iter().map(move |c| (Arc::clone(&device), c)))
        {
            let graph = model.graph(&GraphOptions::default().state(InitialState::Carried)).unwrap();
            let gpu = Gpu::new(Arc::clone(&device));
            let mut session = Program::compile_for(&graph, &gpu, &CompileOptions::default()).unwrap().session();
            settles_to_one_launch(name, &device, || step(&mut session, &x));
        }
    }

    #[test]
    fn a_circuit_over_a_whole_sequence_is_one_step_of_the_plan_and_gives_the_same_bits_twice() {
        let Some(device) = open() else { return };
        let x = Random::new(9).floats(&[256, 64, INPUTS], -2.0, 2.0);
        for (name, model) in circuits(64, 16) {
            let graph = model.graph(&GraphOptions::default().state(InitialState::Zero)).unwrap();
            let compile = |backend: &dyn Backend| Program::compile_for(&graph, backend, &CompileOptions::default());
            let program = compile(&Gpu::new(Arc::clone(&device))).unwrap();
            let plan = program.plan(&Bindings::new().with("B", 256).with("T", 64)).unwrap();
            assert_eq!(plan.steps.len(), 1, "{name}: {}", plan.explain(None));
            let mut session = program.session();
            // The first walk is cut into other pieces than the second: how fast the device is has to be learnt.
            let first = session.run(&[("x", &x)]).unwrap().to_vec();
            let again = session.run(&[("x", &x)]).unwrap();
            assert!(first.iter().zip(again).all(|(a, b)| a.bytes() == b.bytes()), "{name}");
            let mut expected = compile(&Cpu::new(1).unwrap()).unwrap().session();
            let expected = expected.run(&[("x", &x)]).unwrap();
            for (got, want) in again.iter().zip(expected) {
                compare(want, got, Tolerance { abs: 1e-4, rel: 1e-4 }).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
    }

    /// Runs a graph as it is and with every pass, each twice: what it gives is what the reference gives, where that is finite,
    /// and the same bits again. Gives how much of the results could be compared. (Infinities and NaN are among the cases, all
    /// of which agree on the devices of today; graphs that nobody wrote bring them in more ways than there are cases.)
    fn agree(gpu: &Gpu<Card>, graph: &Graph, seed: u64) -> Result<Compared, String> {
        let expected: Vec<Expected> = expected(graph, seed).into_iter().map(Expected::if_finite).collect();
        let mut compared = Compared::default();
        for passes in [PassOptions::default(), PassOptions::none()] {
            let fail = |e: String| format!("fused: {}: {e}\n{graph}", passes.fuse);
            let program = match Program::compile_for(graph, gpu, &CompileOptions::default().passes(passes.clone())) {
                Ok(program) => program,
                // An index of a literal that is out of range is found early.
                Err(Error::Value { .. }) if expected.iter().any(Expected::is_refused) => continue,
                Err(e) => return Err(fail(e.to_string())),
            };
            for expected in &expected {
                let inputs: Vec<(&str, &Tensor)> = expected.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
                let mut session = program.session();
                let first = session.run(&inputs).map(<[Tensor]>::to_vec);
                if let Ok(first) = &first {
                    session.reset();
                    let again = session.run(&inputs).map_err(|e| fail(format!("a second run: {e}")))?;
                    if let Some((one, other)) = first.iter().zip(again).find(|(a, b)| a.bytes() != b.bytes()) {
                        return Err(fail(format!("not the same bits twice: {one} and {other}")));
                    }
                }
                compared.add(expected.judge(first).map_err(fail)?);
            }
        }
        Ok(compared)
    }

    #[test]
    fn random_graphs_and_their_gradients_agree_with_the_reference_and_give_the_same_bits_twice() {
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
            let mut sum = all.get();
            sum.add(agree(&gpu, &graph, seed).map_err(TestCaseError::fail)?);
            if let Ok(backward) = gradient(&graph, &graph.outputs()[0].name, &["x0"]) {
                let fail = |e: String| TestCaseError::fail(format!("gradient: {e}"));
                sum.add(agree(&gpu, &backward, seed).map_err(fail)?);
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
