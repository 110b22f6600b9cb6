//! A profile of a device on which a loop is one kernel: what it says of the loop, of what is inside, and of moving data.

use schwann_core::backend::{Choice, Known, register};
use schwann_core::plan::RowsLimit;
use schwann_core::{Figure, Provenance};
use schwann_gpu::Gpu;
use schwann_gpu::device::Limits;
use schwann_gpu::simulated::Simulated;
use schwann_prof::models::{Sizes, built_in};
use schwann_prof::profile::{Bound, Named, Profile, Roof};
use schwann_prof::profiler::{Options, Profiler};
use std::sync::{Arc, Once};

/// The simulated device under two names: with a clock of its launches, and without.
fn profiler(backend: &str) -> Profiler<'static> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let known =
            |name, make| register(Known { name, about: "a device for tests", variants: Vec::new, make }).unwrap();
        known("timed", |_, _| Ok(Arc::new(Gpu::new(Arc::new(Simulated::new(Limits::default(), true))))));
        known("untimed", |_, _| Ok(Arc::new(Gpu::new(Arc::new(Simulated::new(Limits::default(), false))))));
    });
    let backend: Choice = backend.parse().unwrap();
    let options = Options { batch: 2, steps: 2, runs: 6, seconds: 0.3, backend, ..Options::default() };
    let sizes = Sizes { units: 24, outputs: 4, ..Sizes::default() };
    Profiler::new(built_in("wired-cfc", &sizes).unwrap().unwrap()).named("W").with(options)
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
        bf16_gain: None,
        run_overhead: Some(figure(1e-6, "s")),
    };
    let profile = profiler("timed").under_device(roof).profile_all().unwrap();
    let looped = profile.compute.ops.iter().find(|op| op.op == "scan").unwrap();
    assert!(looped.of_roof.value.unwrap() > 0.0 && looped.predicted.value.unwrap() > 0.0, "{looped:?}");
    assert!(profile.compute.of_roof.value.unwrap() > 0.0, "{:?}", profile.compute.of_roof);
    assert_eq!(profile.roof.device, "made up");
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
