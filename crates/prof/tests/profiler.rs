//! Whole profiles: what they hold, what they refuse, and that no number in them lacks a source.

use schwann_core::plan::Plan;
use schwann_core::{Bindings, CompileOptions, DType, Figure, Graph, GraphBuilder, Program, Provenance, Tensor, shape};
use schwann_nn::{GraphOptions, InitialState, Model};
use schwann_prof::models::{Sizes, built_in};
use schwann_prof::profile::{Bound, Named, Profile, Roof};
use schwann_prof::profiler::{
    Ceiling, Counters, Error, Live, OpEvent, Options, Profiler, RealtimeOptions, Way, quick_profile,
};
use schwann_prof::study::Instruments;
use schwann_sensors::{Counter, SimulatedCounters};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn model(name: &str) -> Model {
    built_in(name, &Sizes::default()).unwrap().unwrap()
}

fn small() -> Options {
    Options { batch: 3, steps: 2, runs: 10, seconds: 0.05, ..Options::default() }
}

/// tanh(x · w), or without the product.
fn layer(with_product: bool) -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", "N"]).unwrap();
    let mut y = b.tanh(x).unwrap();
    if with_product {
        let x = b.input("fixed", DType::F32, shape!["B", 8]).unwrap();
        let w = b.weight("w", Tensor::new(&[8, 4], &[0.25f32; 32]).unwrap()).unwrap();
        y = b.matmul(x, w).unwrap();
    }
    b.output("y", y).unwrap();
    b.build().unwrap()
}

#[test]
fn a_graph_without_time_is_not_said_to_take_steps() {
    let options = Options { sizes: vec![("N".into(), 5)], ..small() };
    let mut profiler = Profiler::new(layer(true)).with(options).swept([(4, 7)]);
    let profile = profiler.profile_all().unwrap();
    assert_eq!(profile.workload.steps.value, Some(1.0));
    let rate = profile.compute.throughput.value.unwrap() * profile.compute.time_p50.value.unwrap();
    assert!((rate - 3.0).abs() < 1e-6, "{rate} samples in a run of 3");
    let point = &profile.sweep[0];
    let rate = point.throughput.value.unwrap() * point.time.value.unwrap();
    assert!((rate - 4.0).abs() < 1e-6, "{rate} samples in a run of 4");
}

/// Calls `see` with every figure or series in a document, and where it is.
fn figures(json: &Json, at: &str, see: &mut dyn FnMut(&str, &Json)) {
    match json {
        Json::Object(fields) => {
            if fields.contains_key("provenance") {
                see(at, json);
            } else {
                fields.iter().for_each(|(name, field)| figures(field, &format!("{at}.{name}"), see));
            }
        }
        Json::Array(items) => items.iter().enumerate().for_each(|(i, item)| figures(item, &format!("{at}[{i}]"), see)),
        // Numbers stand in figures; only the form's version and places in the plan do not.
        Json::Number(n) => assert!(at.ends_with(".schema") || at.contains(".path["), "a bare number {n} at {at}"),
        _ => {}
    }
}

fn check_figures(profile: &Profile) -> (usize, usize) {
    let (mut known, mut unknown) = (0, 0);
    figures(&serde_json::to_value(profile).unwrap(), "", &mut |at, figure| {
        let text = |key: &str| figure[key].as_str().unwrap_or_default();
        assert!(!text("source").is_empty() && !text("unit").is_empty(), "{at}: {figure}");
        let missing = figure.get("values").map_or(figure["value"].is_null(), |v| v.as_array().unwrap().is_empty());
        assert_eq!(missing, text("provenance") == "unavailable", "{at}: {figure}");
        assert_eq!(missing, !text("reason").is_empty(), "{at}: {figure}");
        if missing { unknown += 1 } else { known += 1 }
    });
    (known, unknown)
}

#[test]
fn a_profile_without_limits_and_sensors_has_a_source_or_a_reason_for_every_figure() {
    let ways = [Way::NodeByNode, Way::Threads(2), Way::Products(DType::Bf16)];
    let mut profiler = Profiler::new(model("W")).named("W").with(small()).compared(ways).swept([(1, 1), (4, 2)]);
    let profile = profiler.profile_all().unwrap();
    let (known, unknown) = check_figures(&profile);
    assert!(known > 80 && unknown > 20, "{known} known, {unknown} unknown");
    // It can be written and read.
    let text = serde_json::to_string(&profile).unwrap();
    let again: Profile = serde_json::from_str(&text).unwrap();
    assert_eq!((again.id, again.compute.ops.len()), (profile.id.clone(), profile.compute.ops.len()));
    assert_eq!(profile.memory.rss.value, None);
    assert_eq!((profile.comparisons.len(), profile.sweep.len()), (3, 2));
    for comparison in &profile.comparisons {
        assert!(comparison.speedup.value.is_some_and(|s| s > 0.0), "{comparison:?}");
        // The same network, up to rounding: to f32 by another order of sums, or to bfloat16.
        let most = if comparison.name.starts_with("bf16") { 0.1 } else { 1e-4 };
        assert!(comparison.difference.value.is_some_and(|d| d <= most), "{comparison:?}");
    }
    let points: Vec<_> = profile.sweep.iter().map(|p| (p.batch.value, p.steps.value)).collect();
    assert_eq!(points, [(Some(1.0), Some(1.0)), (Some(4.0), Some(2.0))]);
    assert!(profile.sweep.iter().all(|p| p.time.value.is_some() && p.throughput.value.is_some()));
}

#[test]
fn one_question_has_one_answer_however_it_is_put() {
    let mut profiler = Profiler::new(model("W")).with(small());
    let cores = std::thread::available_parallelism().unwrap().get();
    let [first] = &profiler.compare_ways(&[Way::Threads(cores)]).unwrap()[..] else { panic!() };
    let [again] = &profiler.compare_ways(&[Way::Threads(0)]).unwrap()[..] else { panic!() };
    assert_eq!((&first.speedup, &first.time, first.verdict), (&again.speedup, &again.time, again.verdict));
    assert!(first.speedup.spread.is_some(), "each verdict has its interval: {first:?}");
    // Another configuration is another question.
    profiler.options_mut().batch = 2;
    let [other] = &profiler.compare_ways(&[Way::Threads(0)]).unwrap()[..] else { panic!() };
    assert_ne!(first.speedup, other.speedup);
}

fn places(plan: &Plan) -> BTreeSet<(Vec<usize>, String)> {
    fn walk(plan: &Plan, first: usize, path: &[usize], into: &mut BTreeSet<(Vec<usize>, String)>) {
        for (i, step) in plan.steps.iter().enumerate() {
            let path = [path, &[first + i]].concat();
            if let Some(l) = &step.looped {
                walk(&l.body, 0, &path, into);
                l.tail.iter().for_each(|t| walk(t, l.body.steps.len(), &path, into));
            }
            into.insert((path, step.name.clone()));
        }
    }
    let mut into = BTreeSet::new();
    walk(plan, 0, &[], &mut into);
    into
}

#[test]
fn every_step_of_the_plan_is_an_operation_and_their_times_are_those_of_the_runs() {
    for (name, threads) in [("P", 1), ("W", 2), ("L", 1)] {
        let options = Options { batch: 100, steps: 4, runs: 40, seconds: 0.5, threads, ..Options::default() };
        let compute = Profiler::new(model(name)).with(options).profile_compute().unwrap();
        let graph = model(name).graph(&GraphOptions::default().state(InitialState::Zero)).unwrap();
        let program = Program::compile(&graph, &CompileOptions::default().threads(threads)).unwrap();
        let plan = program.plan(&Bindings::new().with("B", 100).with("T", 4)).unwrap();
        let seen: BTreeSet<_> = compute.ops.iter().map(|op| (op.path.clone(), op.name.clone())).collect();
        let mut want = places(&plan);
        want.insert((vec![], "(run)".into()));
        assert_eq!((seen, compute.ops.len()), (want.clone(), want.len()), "{name}");
        let attributed = compute.attributed.value.unwrap();
        assert!((85.0..110.0).contains(&attributed), "{name}: {attributed}%");
        let shares: f64 = compute.ops.iter().map(|op| op.share.value.unwrap()).sum();
        assert!((shares - 100.0).abs() < 1e-6, "{name}: {shares}%");
        // The machine may be busy, so this is generous; quiet ones come within a few percent.
        let sum: f64 = compute.ops.iter().map(|op| op.self_time.value.unwrap()).sum();
        let ratio = sum / compute.time_p50.value.unwrap();
        assert!((0.3..3.0).contains(&ratio), "{name}: operations take {ratio} of a run");
        let t = [&compute.time_min, &compute.time_p50, &compute.time_p95, &compute.time_p99].map(|f| f.value.unwrap());
        assert!(t.is_sorted() && t[0] > 0.0, "{t:?}");
    }
}

#[test]
fn limits_that_are_handed_in_say_what_binds_each_operation() {
    let figure = |value: f64, unit: &str| Figure::measured(value, unit, "made up");
    let level = |name: &str, speed: f64| Named { name: name.into(), figure: figure(speed, "B/s") };
    let roof = Roof {
        device: "made up".into(),
        flops: figure(1e15, "flop/s"),
        functions: figure(1e12, "1/s"),
        bandwidth: vec![level("L1", 1e18), level("memory", 1e9)],
        step_overhead: figure(1e-15, "s"),
        int8: None,
        bf16_gain: None,
        run_overhead: None,
    };
    let bounds = |roof: &Roof, level_bytes: Vec<u64>| {
        let ceiling = Ceiling { roof: roof.clone(), level_bytes };
        let compute = Profiler::new(model("G")).with(small()).under(ceiling).profile_compute().unwrap();
        let in_loop = compute.ops.iter().filter(|op| op.within.is_some() && op.flops.value > Some(0.0));
        let bounds: Vec<Bound> = in_loop.clone().map(|op| op.bound).collect();
        for op in in_loop.filter(|op| op.of_roof.value.is_some()) {
            assert!(op.of_roof.value.unwrap() <= 100.0);
            let least = op.of_roof.value.unwrap() / 100.0 * op.self_time.value.unwrap();
            let overhead = op.calls.value.unwrap() * roof.step_overhead.value.unwrap();
            assert!((op.predicted.value.unwrap() / (least + overhead) - 1.0).abs() < 1e-9);
        }
        (bounds, compute.of_roof)
    };
    // Two products with a function on top, and a cell: functions are a thousand times dearer here.
    let (large, _) = (1u64 << 30, ());
    let (near, of_roof) = bounds(&roof, vec![large]);
    assert_eq!(near, [Bound::Functions; 3]);
    assert!(of_roof.value.is_some_and(|v| v > 0.0));
    let (far, of_roof) = bounds(&roof, vec![16]);
    assert!(far.iter().all(|b| *b == Bound::Memory), "{far:?}");
    // Nothing is faster than it can be: such a limit was measured too low.
    assert!(of_roof.value.is_none() && of_roof.reason.is_some_and(|r| r.contains("too low")));
    let (slow, _) = bounds(&Roof { step_overhead: figure(10.0, "s"), ..roof.clone() }, vec![large]);
    assert!(slow.iter().all(|b| *b == Bound::Overhead), "{slow:?}");
    // Without knowing what caches hold, nothing is said.
    let (none, of_roof) = bounds(&roof, vec![]);
    assert!(none.iter().all(|b| *b == Bound::Unknown) && of_roof.value.is_none() && of_roof.reason.is_some());
}

#[test]
fn counters_are_read_around_the_runs_and_shown_with_the_memory() {
    struct Two {
        started: bool,
    }
    impl Counters for Two {
        fn start(&mut self) {
            self.started = true;
        }
        fn stop(&mut self) -> BTreeMap<String, Figure> {
            assert!(self.started);
            let figure = |v: f64, unit: &str| Figure::measured(v, unit, "made up");
            BTreeMap::from([("rss".into(), figure(5e6, "B")), ("cycles".into(), figure(7.0, "1"))])
        }
    }
    let profile = Profiler::new(model("W")).with(small()).counting(Two { started: false }).profile_all().unwrap();
    assert_eq!((profile.hardware["cycles"].value, profile.memory.rss.value), (Some(7.0), Some(5e6)));
    assert_eq!(profile.memory.rss_peak.value, None);
    let none = Profiler::new(model("W")).with(small()).profile_hardware().unwrap();
    assert!(none.is_empty());
}

#[test]
fn memory_says_who_holds_the_peak() {
    let memory = Profiler::new(model("P")).with(Options { batch: 200, ..small() }).profile_memory().unwrap();
    let peak = memory.timeline.iter().map(|p| p.live.value.unwrap()).fold(0.0, f64::max);
    assert_eq!(Some(peak), memory.live_peak.value);
    let with_holders: Vec<_> = memory.timeline.iter().filter(|p| !p.holders.is_empty()).collect();
    let [point] = with_holders[..] else { panic!("{} points with holders", with_holders.len()) };
    let held: f64 = point.holders.iter().map(|h| h.figure.value.unwrap()).sum();
    assert_eq!(held, peak);
    assert!(point.holders.is_sorted_by(|a, b| a.figure.value >= b.figure.value));
    assert!(point.holders.iter().any(|h| h.name.starts_with("working memory of")), "{:?}", point.holders);
    assert!(memory.held.value >= memory.arena.value && memory.arena.value >= Some(peak));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    let refuse = |options: Options| {
        let error = Profiler::new(model("W")).with(options).profile_all().unwrap_err();
        assert!(matches!(error, Error::Option { .. }), "{error}");
        error.to_string()
    };
    assert!(refuse(Options { batch: 0, ..small() }).starts_with("batch is 0; expected a whole number from 1"));
    assert!(refuse(Options { steps: 0, ..small() }).contains("steps is 0"));
    assert!(refuse(Options { runs: 0, ..small() }).contains("runs is 0"));
    assert!(refuse(Options { threads: 100_000, ..small() }).contains("threads is 100000"));
    assert!(refuse(Options { seconds: f64::NAN, ..small() }).contains("seconds is NaN"));
    assert!(refuse(Options { dtype: DType::I32, ..small() }).contains("expected f32 or bf16"));
    assert!(Profiler::new(model("W")).with(Options { batch: 0, ..small() }).sweep(&[(1, 1)]).is_err());
    // A size that nothing gives; and one that is given.
    let error = Profiler::new(layer(false)).with(small()).profile_compute().unwrap_err();
    assert!(matches!(&error, Error::Size { symbol } if symbol == "N"), "{error}");
    let sized = Options { sizes: vec![("N".into(), 5)], ..small() };
    let compute = Profiler::new(layer(false)).with(sized.clone()).profile_compute().unwrap();
    assert_eq!(compute.functions.value, Some(15.0));
    // More than the machine has: refused before anything is allocated, and in a sweep unavailable.
    let huge = Options { batch: 1 << 20, steps: 1 << 20, ..small() };
    let error = Profiler::new(model("W")).with(huge).profile_compute().unwrap_err();
    assert!(error.to_string().contains("memory budget"), "{error}");
    let [point] = &Profiler::new(model("W")).with(small()).sweep(&[(1 << 20, 1 << 20)]).unwrap()[..] else { panic!() };
    assert!(point.time.value.is_none() && point.time.reason.as_deref().is_some_and(|r| r.contains("budget")));
    // A weight without data.
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 2]).unwrap();
    let w = b.weight_slot("w", DType::F32, &[2, 2]).unwrap();
    let y = b.matmul(x, w).unwrap();
    b.output("y", y).unwrap();
    let error = Profiler::new(b.build().unwrap()).with(small()).profile_compute().unwrap_err();
    assert!(error.to_string().contains('w'), "{error}");
}

#[test]
fn a_way_that_a_graph_cannot_take_is_unavailable_with_the_reason() {
    let sized = Options { sizes: vec![("N".into(), 5)], ..small() };
    let ways = [Way::Products(DType::Bf16)];
    let [none] = &Profiler::new(layer(false)).with(sized.clone()).compare_ways(&ways).unwrap()[..] else { panic!() };
    assert!(none.speedup.reason.as_deref().is_some_and(|r| r.contains("no product")), "{none:?}");
    let [some] = &Profiler::new(layer(true)).with(sized).compare_ways(&ways).unwrap()[..] else { panic!() };
    assert!(some.difference.value.is_some_and(|d| d > 0.0 && d < 0.05), "{some:?}");
}

#[test]
fn cancelling_ends_a_profile_between_samples() {
    let cancel = Arc::new(AtomicBool::new(true));
    let endless = Options { runs: 1 << 20, seconds: 600.0, ..small() };
    let mut profiler = Profiler::new(model("W")).with(endless).cancelled_by(Arc::clone(&cancel));
    assert!(profiler.profile_all().unwrap_err().is_cancelled());
    cancel.store(false, Ordering::Relaxed);
    let start = Instant::now();
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            cancel.store(true, Ordering::Relaxed);
        });
        // On a busy machine even the first sample may come too late.
        match profiler.profile_all() {
            Ok(profile) => {
                let samples = profile.compute.samples.values.len();
                assert!(samples > 0 && samples < 1 << 20, "{samples}");
                let partial = profile.partial.unwrap();
                assert!(partial.contains(&format!("{samples} of {} samples", 1 << 20)), "{partial}");
                assert!(profile.doubts.iter().all(|d| !d.contains("give more seconds")), "{:?}", profile.doubts);
                assert_eq!(profiler.history().len(), 1);
            }
            Err(e) => assert!(e.is_cancelled(), "{e}"),
        }
    });
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_was_not_reached_before_the_end_is_named_and_the_rest_is_kept() {
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    let mut profiler = Profiler::new(model("W"))
        .with(small())
        .compared([Way::NodeByNode, Way::Threads(2)])
        .swept([(1, 1), (2, 2)])
        .cancelled_by(Arc::clone(&cancel))
        .telling(move |what, _| {
            if what.contains("2 threads") {
                flag.store(true, Ordering::Relaxed);
            }
        });
    let profile = profiler.profile_all().unwrap();
    assert_eq!(profile.comparisons.len(), 1);
    assert!(profile.compute.time_p50.value.is_some() && profile.sweep.is_empty());
    let partial = profile.partial.unwrap();
    assert_eq!(partial, "stopped before it was done: 1 of 2 comparisons, 0 of 2 other sizes");
    // A document says so, and one from before there was such a field reads as whole.
    drop(profiler);
    cancel.store(false, Ordering::Relaxed);
    let whole = Profiler::new(model("W")).with(small()).profile_all().unwrap();
    let text = serde_json::to_string(&whole).unwrap();
    assert!(whole.partial.is_none() && !text.contains("partial"));
    assert_eq!(serde_json::from_str::<Profile>(&text).unwrap().partial, None);
}

#[test]
fn history_keeps_profiles_and_compares_the_latest_two() {
    let mut profiler = Profiler::new(model("W")).with(small());
    assert!(profiler.changes().is_empty());
    let first = profiler.profile_all().unwrap();
    profiler.options_mut().batch = 6;
    let second = profiler.profile_all().unwrap();
    assert!(first.id != second.id && first.model.hash == second.model.hash);
    assert_eq!(profiler.history().len(), 2);
    let changes: BTreeMap<String, Figure> = profiler.changes().into_iter().map(|n| (n.name, n.figure)).collect();
    let ratio = second.memory.arena.value.unwrap() / first.memory.arena.value.unwrap();
    assert_eq!(changes["arena"].value, Some(ratio));
    assert!(changes["time_p50"].value.is_some() && changes["rss_peak"].value.is_none());
    let other = quick_profile(model("P")).unwrap();
    assert_ne!(other.model.hash, first.model.hash);
}

#[test]
fn a_recorded_run_has_its_calls_on_one_timeline() {
    for threads in [1, 2] {
        let options = Options { batch: 100, steps: 3, threads, ..small() };
        let trace = Profiler::new(model("L")).with(options).record(2).unwrap();
        assert!(!trace.truncated && trace.runs == 2);
        assert!(trace.events.is_sorted_by(|a, b| a.start_s <= b.start_s));
        let loops: Vec<_> = trace.events.iter().filter(|e| e.name == "ltc.steps").collect();
        assert_eq!(loops.len(), 2);
        let inside = |e: &&OpEvent| e.path.len() > 1;
        for event in trace.events.iter().filter(inside) {
            // Counters of two cores may differ by a little.
            let within = |l: &&&OpEvent| {
                l.start_s - 1e-5 <= event.start_s && event.start_s + event.duration_s <= l.start_s + l.duration_s + 1e-5
            };
            assert!(loops.iter().any(|l| within(&l)), "{event:?}");
            assert!(event.thread < threads && !event.name.is_empty());
        }
        assert!(trace.memory.len() >= 2 && trace.memory.iter().all(|(_, bytes)| *bytes > 0));
    }
}

#[test]
fn a_trace_shows_what_the_counters_read_over_each_stretch_of_runs() {
    let stretch = |cycles: u64, instructions: u64| {
        let counts = [(Counter::Cycles, cycles), (Counter::Instructions, instructions)];
        SimulatedCounters::stretch(&counts, 1000, 1000)
    };
    // The profile's own, then one for each recorded run; of the last, only the cycles.
    let script = [stretch(1, 1), stretch(4000, 8000), stretch(6000, 6000), stretch(5000, 0)];
    let instruments = Instruments::of(
        schwann_sensors::Counters::from_source(SimulatedCounters::new(script)),
        schwann_sensors::System::new(),
    );
    let mut profiler = Profiler::new(model("W")).with(Options { seconds: 1.0, ..small() }).counting(instruments);
    let profile = profiler.profile_all().unwrap();
    let recording = profiler.record(3).unwrap();
    assert_eq!((recording.runs, recording.stretches.len()), (3, 3));
    for pair in recording.stretches.windows(2) {
        assert!(pair[0].end_s <= pair[1].start_s);
    }
    for stretch in &recording.stretches {
        assert!(stretch.start_s < stretch.recorded_s && stretch.recorded_s <= stretch.end_s && stretch.runs > 1);
        let within = |e: &&OpEvent| e.start_s >= stretch.start_s && e.start_s < stretch.recorded_s;
        assert!(recording.events.iter().any(|e| within(&e)), "a stretch without its recorded run");
    }
    let trace = recording.told(&profile);
    assert!(trace.about["times"].contains("includes what that costs"), "{:?}", trace.about);
    trace.check().unwrap();
    let track = |name: &str| trace.tracks.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no track {name}"));
    let runs = recording.stretches[0].runs as f64;
    let values = |name: &str| track(name).points.iter().map(|p| p.1).collect::<Vec<_>>();
    let cycles = [4000.0, 6000.0, 5000.0, 5000.0].map(|c| Some(c / runs));
    assert_eq!(values("cycles per run"), cycles);
    assert_eq!(values("instructions_per_cycle"), [Some(2.0), Some(1.0), Some(0.0), Some(0.0)]);
    let starts: Vec<f64> = track("cycles per run").points.iter().map(|p| p.0).collect();
    let expected: Vec<f64> =
        recording.stretches.iter().map(|s| s.start_s).chain([recording.stretches[2].end_s]).collect();
    assert_eq!(starts, expected);
    assert_eq!(track("cycles per run").provenance, Provenance::Derived);
    // What nobody can count here has no track, rather than one of zeros.
    assert!(!trace.tracks.iter().any(|t| t.name.starts_with("branch")), "{:?}", trace.tracks);
}

#[test]
fn realtime_looks_again_and_again_until_it_is_told_to_stop() {
    let options = RealtimeOptions { window_s: 1.0, every_s: 0.01, drop: 0.5 };
    let profiler = Profiler::new(model("W")).with(small());
    let mut seen = 0;
    let last: Option<Live> = profiler
        .profile_realtime(options, |live| {
            seen += 1;
            assert!(live.rate.value.is_some_and(|r| r > 0.0) && live.p50.value <= live.p99.value);
            if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(seen, 3);
    assert!(last.unwrap().slowdown.value.is_some());
    // As an iterator, ended by whoever cancels.
    let cancel = Arc::new(AtomicBool::new(false));
    let profiler = Profiler::new(model("W")).with(small()).cancelled_by(Arc::clone(&cancel));
    let mut looks = profiler.realtime(options).unwrap();
    assert!(looks.next().unwrap().is_ok());
    cancel.store(true, Ordering::Relaxed);
    assert!(looks.next().is_none());
}
