//! A profile of a device on which a loop is one kernel: what it says of the loop, of what is inside, and of moving data.

#[cfg(any(feature = "wgpu", feature = "cuda"))]
use crate::opened;
use schwann_core::backend::{Choice, Known, LeftOut, Timeline, register};
use schwann_core::pass::PassOptions;
use schwann_core::plan::RowsLimit;
use schwann_core::{
    Bindings, CompileOptions, DType, Figure, Graph, GraphBuilder, Program, Provenance, Session, Tensor, shape,
};
use schwann_gpu::Gpu;
use schwann_gpu::device::Limits;
use schwann_gpu::simulated::Simulated;
use schwann_nn::Model;
use schwann_prof::models::{Sizes, built_in};
use schwann_prof::profile::{Bound, Named, Op, Profile, Roof};
use schwann_prof::profiler::{Options, Phases, Profiler};
use std::collections::HashMap;
use std::sync::{Arc, Once};

/// The simulated device under three names: with a clock of its launches, without, and with one that counts what it executes.
fn profiler(backend: &str) -> Profiler<'static> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let known =
            |name, make| register(Known { name, about: "a device for tests", variants: Vec::new, make }).unwrap();
        known("timed", |_, _| Ok(Arc::new(Gpu::new(Arc::new(Simulated::new(Limits::default(), true))))));
        known("untimed", |_, _| Ok(Arc::new(Gpu::new(Arc::new(Simulated::new(Limits::default(), false))))));
        known("counted", |_, _| Ok(Arc::new(Gpu::new(Arc::new(Simulated::counting(Limits::default()))))));
    });
    let options = Options { backend: backend.parse().unwrap(), ..options() };
    Profiler::new(model("wired-cfc")).named("W").with(options).phases(Phases::Never)
}

fn options() -> Options {
    Options { batch: 2, steps: 2, runs: 6, seconds: 0.3, ..Options::default() }
}

fn model(name: &str) -> Model {
    built_in(name, &Sizes { units: 24, outputs: 4, ..Sizes::default() }).unwrap().unwrap()
}

/// Seconds of an operation.
fn seconds(op: &Op) -> f64 {
    op.self_time.value.unwrap_or_else(|| panic!("{}: {:?}", op.name, op.self_time))
}

/// The loop, and what is inside it.
fn looped(profile: &Profile) -> (&Op, Vec<&Op>) {
    let ops = &profile.compute.ops;
    (ops.iter().find(|op| op.op == "scan").unwrap(), ops.iter().filter(|op| op.within.is_some()).collect())
}

fn names(profile: &Profile) -> Vec<&str> {
    profile.compute.ops.iter().map(|op| op.name.as_str()).collect()
}

#[test]
fn a_loop_that_is_one_kernel_has_the_time_and_what_is_inside_says_why_it_has_none() {
    for (backend, clock) in [("timed", "the interpreter's"), ("untimed", "around a submission")] {
        let profile = profiler(backend).profile_all().unwrap();
        assert_eq!(names(&profile)[..4], ["(run)", "(upload)", "(submission)", "(download)"], "{backend}");
        let ops = &profile.compute.ops;
        let looped = ops.iter().find(|op| op.op == "scan").unwrap();
        assert!(looped.self_time.value.unwrap() > 0.0 && looped.flops.value.unwrap() > 0.0, "{looped:?}");
        assert!(looped.self_time.source.contains(clock), "{}", looped.self_time.source);
        assert_eq!(looped.flops.value, profile.compute.flops.value, "all of the work is the loop's");
        let inside: Vec<_> = ops.iter().filter(|op| op.within.is_some()).collect();
        assert!(!inside.is_empty(), "{:?}", names(&profile));
        for op in inside {
            let reason = op.self_time.reason.as_deref().unwrap();
            assert!(op.self_time.value.is_none() && reason.contains("one kernel"), "{op:?}");
            assert!(
                op.share.value.is_none() && op.calls.provenance == Provenance::Derived && op.bound == Bound::Unknown
            );
        }
        // What the host does is timed by the host.
        for op in &ops[..4] {
            let source = &op.self_time.source;
            assert!(
                !source.contains("interpreter") && !source.contains("around a submission"),
                "{}: {source}",
                op.name
            );
            let host = if op.name == "(run)" { "of whole runs" } else { "the host's clock" };
            assert!(source.contains(host), "{}: {source}", op.name);
        }
        let shares: f64 = ops.iter().filter_map(|op| op.share.value).sum();
        assert!((shares - 100.0).abs() < 1e-6, "{shares}%");
        // Nothing of the processor is said of a device.
        assert!(ops.iter().all(|op| op.idle_lanes.is_none()) && profile.roof.flops.value.is_none());
        assert!(profile.memory.bandwidth_utilization.value.is_none());
    }
}

#[test]
fn a_devices_own_limits_are_what_its_operations_are_held_against() {
    let figure = |value: f64, unit: &str| Figure::measured(value, unit, "made up");
    let roof = Roof {
        device: "made up".into(),
        flops: figure(1e9, "flop/s"),
        functions: figure(1e9, "1/s"),
        bandwidth: vec![Named { name: "memory".into(), figure: figure(1e9, "B/s") }],
        step_overhead: figure(1e-9, "s"),
        int8: None,
        bf16_gain: None,
        run_overhead: Some(figure(1e-6, "s")),
    };
    let profile = profiler("timed").under_device(roof).profile_all().unwrap();
    let looped = profile.compute.ops.iter().find(|op| op.op == "scan").unwrap();
    assert!(looped.of_roof.value.unwrap() > 0.0 && looped.predicted.value.unwrap() > 0.0, "{looped:?}");
    assert!(profile.compute.of_roof.value.unwrap() > 0.0, "{:?}", profile.compute.of_roof);
    assert_eq!(profile.roof.device, "made up");
}

/// h ← tanh(the sum of three products, of 8, 16 and 24 elements with as many results) over time.
fn products() -> Graph {
    const LENGTHS: [usize; 3] = [8, 16, 24];
    let mut step = GraphBuilder::new();
    let h = step.input("h", DType::F32, shape!["B", 24]).unwrap();
    let [x8, x16] = [8, 16].map(|n: usize| step.input(&format!("x{n}"), DType::F32, shape!["B", n]).unwrap());
    let weights = LENGTHS.map(|n| step.input(&format!("w{n}"), DType::F32, shape![n, 24]).unwrap());
    let mut sum = None;
    for ((n, x), w) in LENGTHS.into_iter().zip([x8, x16, h]).zip(weights) {
        let product = step.named(&format!("product.{n}")).matmul(x, w).unwrap();
        sum = Some(match sum {
            None => product,
            Some(sum) => step.named(&format!("sum.{n}")).add(sum, product).unwrap(),
        });
    }
    let next = step.named("tanh").tanh(sum.unwrap()).unwrap();
    step.output("h", next).unwrap();
    step.output("y", next).unwrap();
    let mut b = GraphBuilder::new();
    let sequences = [8, 16].map(|n: usize| b.input(&format!("x{n}"), DType::F32, shape!["T", "B", n]).unwrap());
    let h = b.input("h", DType::F32, shape!["B", 24]).unwrap();
    let zeros = |n| Tensor::zeros(DType::F32, &[n, 24]).unwrap();
    let weights = LENGTHS.map(|n| b.weight(&format!("w{n}"), zeros(n)).unwrap());
    let outs = b.scan(step.build().unwrap(), &[h], &sequences, &weights, 0).unwrap();
    b.output("y", outs[1]).unwrap();
    b.output("hn", outs[0]).unwrap();
    b.state("h", "hn").unwrap();
    b.build().unwrap()
}

#[test]
fn parts_of_a_loop_take_what_the_interpreter_counts() {
    profiler("counted");
    let backend: Choice = "counted".parse().unwrap();
    let options = Options { batch: 3, steps: 5, backend, fused: false, ..options() };
    let profile = Profiler::new(products()).with(options).phases(Phases::Always).profile_all().unwrap();
    let (looped, inside) = looped(&profile);
    let near = |a: f64, b: f64, what: &str| assert!((a - b).abs() < 1e-9 * b.abs(), "{what}: {a} and {b}");
    // What the interpreter counts in a run: as ever, with nothing left out, and without each step.
    let compile = CompileOptions::default().passes(PassOptions::none()).backend("counted".parse().unwrap());
    let program = Program::compile(&products(), &compile).unwrap();
    let inputs = [8, 16].map(|n| Tensor::zeros(DType::F32, &[5, 3, n]).unwrap());
    let count = |mut session: Session| {
        let mut timeline = Timeline::default();
        for _ in 0..4 {
            // Of the first ones it is not known how much fits into a submission.
            timeline.clear();
            let inputs = [("x8", &inputs[0]), ("x16", &inputs[1])];
            session.run_observed(&inputs, Some(&mut timeline)).unwrap();
        }
        (timeline.totals().places[0].busy_s * 1e9).round()
    };
    let bindings = Bindings::new().with("B", 3).with("T", 5);
    let without = |step| {
        let left_out = LeftOut { looped: vec![0], step };
        count(program.session_without(&bindings, &left_out).unwrap().unwrap())
    };
    let (usual, whole) = (count(program.session()), without(None));
    let time = looped.whole_time.as_ref().unwrap().value.unwrap();
    let counts: HashMap<&str, f64> = inside.iter().map(|op| (&*op.name, whole - without(Some(op.path[1])))).collect();
    for op in &inside {
        near(seconds(op), time * counts[&*op.name] / usual, &op.name);
    }
    // And that is the work there is: a product's grows with its length, for each row, step and result by two loads, a
    // product with its sum, and what the loop around them counts.
    let grows = counts["product.16"] - counts["product.8"];
    assert_eq!(counts["product.24"] - counts["product.16"], grows);
    let each = grows / (3.0 * 5.0 * 24.0 * 8.0);
    assert!((3.0..20.0).contains(&each) && each.fract() == 0.0, "{each} for each element");
    assert_eq!(counts["sum.16"], counts["sum.24"]);
    assert!(counts["tanh"] > counts["sum.16"], "a function is more than a sum");
    // The parts and the rest are the whole, which was measured; all else is derived.
    let whole = looped.whole_time.as_ref().unwrap();
    let all: f64 = inside.iter().map(|op| seconds(op)).sum::<f64>() + seconds(looped);
    near(all, time, "all parts");
    assert_eq!((whole.provenance, looped.self_time.provenance), (Provenance::Measured, Provenance::Derived));
    assert!(inside.iter().all(|op| op.self_time.provenance == Provenance::Derived && op.self_time.spread.is_some()));
    assert!(profile.compute.phases.as_ref().unwrap().value.unwrap() > 0.0);
    let shares: f64 = profile.compute.ops.iter().filter_map(|op| op.share.value).sum();
    assert!((shares - 100.0).abs() < 1e-6, "{shares}%");
}

#[test]
fn every_part_of_every_circuit_can_be_left_out() {
    for name in ["projected-cfc", "wired-cfc", "wired-ltc"] {
        let options = profiler("counted").options().clone();
        let mut profiler = Profiler::new(model(name)).with(options).phases(Phases::Always);
        let profile = profiler.profile_all().unwrap();
        let (looped, inside) = looped(&profile);
        assert!(seconds(looped) > 0.0 && inside.len() > 2, "{name}");
        assert!(inside.iter().all(|op| seconds(op) > 0.0), "{name}");
    }
}

#[test]
fn parts_have_limits_of_their_own_and_the_run_has_the_same() {
    let figure = |value: f64, unit: &str| Figure::measured(value, unit, "made up");
    let roof = Roof {
        device: "made up".into(),
        flops: figure(1e12, "flop/s"),
        functions: figure(1e12, "1/s"),
        bandwidth: vec![Named { name: "memory".into(), figure: figure(1e12, "B/s") }],
        step_overhead: figure(1e-9, "s"),
        int8: None,
        bf16_gain: None,
        run_overhead: None,
    };
    let profile = |phases| profiler("counted").phases(phases).under_device(roof.clone()).profile_all().unwrap();
    let (apart, whole) = (profile(Phases::Always), profile(Phases::Never));
    let (rest, inside) = looped(&apart);
    assert!(rest.of_roof.value.is_none() && rest.flops.value == Some(0.0), "{rest:?}");
    for op in inside {
        let moves = op.flops.value == Some(0.0);
        assert_eq!(op.of_roof.value.is_none(), moves, "{op:?}");
        assert_eq!(op.bound == Bound::Unknown, moves, "{op:?}");
    }
    // Its least time is the same, however much was told apart.
    let least = |p: &Profile| p.compute.of_roof.value.unwrap() * p.compute.time_p50.value.unwrap();
    assert!((least(&apart) / least(&whole) - 1.0).abs() < 1e-9);
}

/// On a real driver, nothing is said of how long anything takes: only that what is shown fits together.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[test]
fn parts_of_a_loop_on_a_gpu_fit_together_and_none_is_made_up() {
    if opened::open().is_none() {
        return;
    }
    schwann_gpu::register().unwrap();
    let backend: Choice = opened::NAME.parse().unwrap();
    let options = Options { batch: 16, steps: 8, backend, ..options() };
    let profile = Profiler::new(model("wired-cfc")).with(options).phases(Phases::Always).profile_all().unwrap();
    let (looped, inside) = looped(&profile);
    let Some(whole) = &looped.whole_time else {
        let why = profile.compute.phases.as_ref().and_then(|phases| phases.reason.clone()).unwrap();
        assert!(why.contains("told apart"), "{why}");
        return;
    };
    let mut sum = 0.0;
    for op in inside.iter().chain([&looped]) {
        match (op.self_time.value, &op.self_time.reason) {
            (Some(time), None) => {
                let spread = op.self_time.spread.unwrap();
                assert!(time > 0.0 && spread.low > 0.0 && (spread.low..=spread.high).contains(&time), "{op:?}");
                sum += time;
            }
            (None, Some(why)) => assert!(why.contains("told apart"), "{why}"),
            _ => panic!("{op:?}"),
        }
    }
    let whole = whole.value.unwrap();
    match looped.self_time.value {
        Some(_) => assert!((sum / whole - 1.0).abs() < 1e-6, "{sum} of {whole}"),
        None => assert!(sum < 1.1 * whole, "{sum} of {whole}"),
    }
}

#[test]
fn moving_and_submitting_are_on_the_timeline_beside_the_kernels() {
    let recording = profiler("timed").record(2).unwrap();
    assert_eq!(recording.queues, ["compute", "upload", "submission", "download"]);
    for queue in 0..4 {
        let on: Vec<_> = recording.events.iter().filter(|event| event.thread == queue).collect();
        assert!(on.len() >= 2, "queue {queue}: {:?}", recording.events);
        assert!(queue == 0 || on.iter().all(|event| event.path.is_empty() && event.name == recording.queues[queue]));
    }
    assert!(!recording.truncated);
}

#[test]
fn a_plan_says_what_a_workgroup_takes_and_why_not_more() {
    let plan = profiler("timed").plan().unwrap();
    let workgroup = plan.steps.iter().find_map(|step| step.looped.as_ref()?.workgroup.clone()).unwrap();
    assert_eq!((workgroup.rows, workgroup.rows_limit), (1, RowsLimit::Batch));
    assert!(workgroup.barriers > 0 && workgroup.threads >= 32, "{workgroup:?}");
    assert!((1..=workgroup.memory_most_bytes).contains(&workgroup.memory_bytes), "{workgroup:?}");
    assert!(plan.unified_memory.is_some());
    let text = plan.explain(None);
    assert!(text.contains("one kernel: a workgroup has") && text.contains("barrier"), "{text}");
}
