//! A profile of a backend that is nothing like the CPU: every operation is there under its own name, with its own times.

#[path = "../../core/tests/strange/mod.rs"]
mod backend;

use backend::Strange;
use schwann_core::backend::Choice;
use schwann_core::plan::Plan;
use schwann_core::{Figure, Provenance};
use schwann_nn::Model;
use schwann_prof::baseline::unlike;
use schwann_prof::models::{Sizes, built_in};
use schwann_prof::profile::{Named, Roof};
use schwann_prof::profiler::{Ceiling, Options, Profiler};
use std::collections::BTreeMap;

fn model(name: &str) -> Model {
    built_in(name, &Sizes::default()).unwrap().unwrap()
}

fn options(backend: &str) -> Options {
    let backend: Choice = backend.parse().unwrap();
    Options { batch: 2, steps: 3, runs: 12, seconds: 0.4, backend, ..Options::default() }
}

/// Each place of a plan with its kernel and how often a run calls it.
fn places(plan: &Plan, path: &[usize], times: usize, into: &mut BTreeMap<Vec<usize>, (String, f64)>) {
    for (i, step) in plan.steps.iter().enumerate() {
        let path = [path, &[i]].concat();
        into.insert(path.clone(), (step.kernel.to_string(), times as f64));
        if let Some(l) = &step.looped {
            places(&l.body, &path, times * l.steps * l.blocks, into);
        }
    }
}

#[test]
fn the_table_of_a_strange_backend_has_its_own_kernels_calls_and_times() {
    Strange::register().unwrap();
    for name in ["W", "G"] {
        let mut profiler = Profiler::new(model(name)).named(name).with(options("strange"));
        let profile = profiler.profile_all().unwrap();
        let mut want = BTreeMap::new();
        places(&profiler.plan().unwrap(), &[], 1, &mut want);
        let ops = profile.compute.ops.iter().filter(|op| !op.path.is_empty());
        let got: BTreeMap<Vec<usize>, (String, f64)> =
            ops.map(|op| (op.path.clone(), (op.kernel.to_string(), op.calls.value.unwrap()))).collect();
        assert_eq!(got, want, "{name}");
        assert!(got.values().all(|(kernel, _)| kernel.contains("glyph of ")), "{got:?}");
        assert!(got.keys().any(|path| path.len() == 2), "{name}: a loop with a body");
        let shares: f64 = profile.compute.ops.iter().map(|op| op.share.value.unwrap()).sum();
        assert!((shares - 100.0).abs() < 1e-6, "{name}: {shares}%");
        // Its times are parts of the runs' times, whoever measured them.
        let attributed = profile.compute.attributed.value.unwrap();
        assert!((80.0..120.0).contains(&attributed), "{name}: {attributed}%");
        for op in profile.compute.ops.iter().filter(|op| !op.path.is_empty()) {
            assert_eq!(op.self_time.provenance, Provenance::Measured);
            assert!(op.self_time.source.contains("the card's clock"), "{}", op.self_time.source);
        }
        assert_eq!((profile.workload.backend.as_str(), profile.memory.arena.value), ("strange", Some(0.0)));
    }
}

#[test]
fn what_is_known_of_the_processor_is_not_said_of_another_backend() {
    Strange::register().unwrap();
    let figure = |value: f64, unit: &str| Figure::measured(value, unit, "made up");
    let roof = Roof {
        device: "made up".into(),
        flops: figure(1e15, "flop/s"),
        functions: figure(1e12, "1/s"),
        bandwidth: vec![Named { name: "memory".into(), figure: figure(1e9, "B/s") }],
        step_overhead: figure(1e-15, "s"),
        int8: None,
        bf16_gain: None,
        run_overhead: None,
    };
    let ceiling = Ceiling { roof, level_bytes: vec![] };
    let profile =
        |backend: &str| Profiler::new(model("W")).with(options(backend)).under(ceiling.clone()).profile_all().unwrap();
    let (here, there) = (profile("cpu"), profile("strange"));
    assert!(here.roof.flops.value.is_some() && there.roof.flops.value.is_none());
    assert!(there.compute.ops.iter().all(|op| op.of_roof.value.is_none() && op.of_roof.reason.is_some()));
    // And they are not compared with each other.
    let what: Vec<String> = unlike(&here, &there).into_iter().map(|u| u.what).collect();
    assert_eq!(what, ["backend"]);
    let isa = Options { isa: Some(schwann_kernels::Isa::detect()), ..options("strange") };
    let refused = Profiler::new(model("W")).with(isa).profile_compute().unwrap_err().to_string();
    assert!(refused.contains("isa is") && refused.contains("strange has no instruction sets"), "{refused}");
}

#[test]
fn a_strange_backends_runs_are_recorded_as_they_happened() {
    Strange::register().unwrap();
    let mut profiler = Profiler::new(model("W")).with(options("strange"));
    let recording = profiler.record(2).unwrap();
    let plan = profiler.plan().unwrap();
    assert!(!recording.truncated && recording.runs == 2);
    let mut want = BTreeMap::new();
    places(&plan, &[], 1, &mut want);
    let calls: f64 = want.values().map(|(_, calls)| calls).sum();
    let of_steps = recording.events.iter().filter(|e| !e.path.is_empty());
    assert_eq!(of_steps.count() as f64, 2.0 * calls);
    // What belongs to no step has its queue's name.
    assert!(recording.events.iter().any(|e| e.path.is_empty() && e.name == recording.queues[e.thread]));
    assert!(recording.events.windows(2).all(|w| w[0].start_s <= w[1].start_s));
    for (event, stretch) in recording.events.iter().filter(|e| e.path == [0]).zip(&recording.stretches) {
        assert!(event.start_s >= stretch.start_s && event.start_s + event.duration_s <= stretch.recorded_s);
        assert_eq!((event.name.as_str(), event.thread), (plan.steps[0].name.as_str(), 0));
    }
}
