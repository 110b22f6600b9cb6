//! What a session promises, on every backend that whoever includes this lists as `backends()`. Where
//! `LOOPS_ARE_ONE_KERNEL`, some of these run loops as one kernel and say nothing of what happens inside.
#![allow(dead_code, reason = "each test that includes it uses another part")]

use super::{LOOPS_ARE_ONE_KERNEL, backends};
use schwann_core::backend::reference::{self, Precision};
use schwann_core::backend::{Backend, Observer, Timeline};
use schwann_core::cases::{self, compare};
use schwann_core::memory::Budget;
use schwann_core::{
    CompileOptions, DType, Error, Graph, GraphBuilder, Program, Provenance, Result, Session, Tensor, shape,
};
use std::sync::Arc;
use std::time::Instant;

pub(crate) fn compile(graph: &Graph, backend: &dyn Backend) -> Arc<Program> {
    Program::compile_for(graph, backend, &CompileOptions::default()).unwrap()
}

pub(crate) fn row(values: &[f32]) -> Tensor {
    Tensor::new(&[1, values.len()], values).unwrap()
}

pub(crate) fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.values::<f32>().unwrap().to_vec()
}

/// h ← h·d + x with d a table's entry, and y = 2·h: a state, a plain result, a weight that an index may miss.
pub(crate) fn leaky() -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 2])?;
    let at = b.input("at", DType::I32, shape![1])?;
    let h = b.input("h", DType::F32, shape!["B", 2])?;
    let table = b.weight("table", Tensor::new(&[3], &[0.5f32, 1.0, 0.0])?)?;
    let d = b.gather(table, at, 0)?;
    let kept = b.mul(h, d)?;
    let next = b.add(kept, x)?;
    let y = b.add(next, next)?;
    b.output("y", y)?;
    b.output("hn", next)?;
    b.state("h", "hn")?;
    b.build()
}

pub(crate) fn at(index: i32) -> Tensor {
    Tensor::new(&[1], &[index]).unwrap()
}

#[test]
fn a_state_goes_on_from_run_to_run_and_means_the_same_everywhere() {
    for backend in backends() {
        let name = backend.name();
        let mut session = compile(&leaky().unwrap(), &*backend).session();
        let half = at(0);
        let run = |session: &mut Session, x: &[f32]| {
            session.run(&[("x", &row(x)), ("at", &half)]).map(|outputs| numbers(&outputs[1]))
        };
        assert!(session.state("h").is_none() && session.state_mut("h").is_err(), "{name}: before the first run");
        for (x, h) in [([4.0, 8.0], [4.0, 8.0]), ([0.0, 0.0], [2.0, 4.0]), ([1.0, 1.0], [2.0, 3.0])] {
            assert_eq!(run(&mut session, &x).unwrap(), h, "{name}");
            assert_eq!(numbers(session.output("hn").unwrap()), h, "{name}");
            assert_eq!(numbers(session.output("y").unwrap()), h.map(|v| 2.0 * v), "{name}");
            assert_eq!(numbers(session.state("h").unwrap()), h, "{name}");
        }
        // Writing to the state leaves the results alone, and counts in the next run.
        session.state_mut("h").unwrap().values_mut::<f32>().unwrap()[0] = 10.0;
        assert_eq!(numbers(session.output("hn").unwrap()), [2.0, 3.0], "{name}");
        assert_eq!(numbers(session.state("h").unwrap()), [10.0, 3.0], "{name}");
        assert_eq!(run(&mut session, &[0.0, 0.0]).unwrap(), [5.0, 1.5], "{name}");
        session.overwrite_state("h").unwrap().values_mut::<f32>().unwrap().copy_from_slice(&[2.0, 6.0]);
        assert_eq!(run(&mut session, &[0.0, 0.0]).unwrap(), [1.0, 3.0], "{name}");
        // One that is shared is not written to, however often it is run on.
        let shared = row(&[8.0, 8.0]);
        session.set_state("h", shared.clone()).unwrap();
        assert_eq!(session.state("h"), Some(&shared), "{name}");
        for want in [4.0, 2.0, 1.0] {
            assert_eq!(run(&mut session, &[0.0, 0.0]).unwrap(), [want; 2], "{name}");
        }
        assert_eq!(numbers(&shared), [8.0, 8.0], "{name}");
        // Given to a run, a state stands for itself, and what comes of it goes on.
        let given = row(&[6.0, 6.0]);
        session.run(&[("x", &row(&[1.0, 1.0])), ("at", &half), ("h", &given)]).unwrap();
        assert_eq!(numbers(session.state("h").unwrap()), [4.0, 4.0], "{name}");
        assert_eq!(run(&mut session, &[0.0, 0.0]).unwrap(), [2.0, 2.0], "{name}");
        session.reset();
        assert!(session.state("h").is_none(), "{name}");
        assert_eq!(run(&mut session, &[3.0, 3.0]).unwrap(), [3.0, 3.0], "{name}: from zero again");
        let said = session.set_state("x", row(&[0.0, 0.0])).unwrap_err().to_string();
        assert!(said.contains("no state named `x`") && said.contains("`h`"), "{name}: {said}");
    }
}

#[test]
fn a_run_that_fails_leaves_the_states_as_they_were_and_has_no_results() {
    for backend in backends() {
        let name = backend.name();
        let mut session = compile(&leaky().unwrap(), &*backend).session();
        let run = |session: &mut Session, index: i32| {
            let result = session.run(&[("x", &row(&[1.0, 2.0])), ("at", &at(index))]);
            result.map(|outputs| numbers(&outputs[1]))
        };
        run(&mut session, 1).unwrap();
        for _ in 0..2 {
            let problem = run(&mut session, 7).unwrap_err();
            assert!(matches!(problem, Error::Value { .. }), "{name}: {problem}");
            assert!(session.output("y").is_err() && session.outputs().is_err(), "{name}: results of a failed run");
            assert_eq!(numbers(session.state("h").unwrap()), [1.0, 2.0], "{name}");
        }
        assert_eq!(run(&mut session, 1).unwrap(), [2.0, 4.0], "{name}");
        // Nor does one that was given another state.
        let given = row(&[50.0, 50.0]);
        assert!(session.run(&[("x", &given), ("at", &at(7)), ("h", &given)]).is_err(), "{name}");
        assert_eq!(numbers(session.state("h").unwrap()), [2.0, 4.0], "{name}");
        // Nor one of another size.
        let (wide, tall) = (Tensor::zeros(DType::F32, &[3, 2]).unwrap(), Tensor::zeros(DType::F32, &[3, 2]).unwrap());
        assert!(session.run(&[("x", &wide), ("at", &at(7)), ("h", &tall)]).is_err(), "{name}");
        assert_eq!(numbers(session.state("h").unwrap()), [2.0, 4.0], "{name}");
        assert_eq!(run(&mut session, 1).unwrap(), [3.0, 6.0], "{name}");
        let refused = session.run(&[("x", &wide), ("at", &at(1))]).unwrap_err().to_string();
        assert!(refused.contains("`h`") && refused.contains("reset"), "{name}: {refused}");
        assert_eq!(run(&mut session, 1).unwrap(), [4.0, 8.0], "{name}");
    }
}

#[test]
fn one_output_may_be_two_states() {
    // a ← a + b, b ← a + b: both have the sum.
    let mut b = GraphBuilder::new();
    let (one, two) = (b.input("a", DType::F32, shape![2]).unwrap(), b.input("b", DType::F32, shape![2]).unwrap());
    let x = b.input("x", DType::F32, shape![2]).unwrap();
    let sum = b.add(one, two).unwrap();
    let sum = b.add(sum, x).unwrap();
    b.output("sum", sum).unwrap();
    b.state("a", "sum").unwrap();
    b.state("b", "sum").unwrap();
    let graph = b.build().unwrap();
    for backend in backends() {
        let name = backend.name();
        let mut session = compile(&graph, &*backend).session();
        let x = Tensor::new(&[2], &[1.0f32, 10.0]).unwrap();
        for want in [1.0, 3.0, 7.0, 15.0] {
            assert_eq!(numbers(&session.run(&[("x", &x)]).unwrap()[0]), [want, 10.0 * want], "{name}");
            for state in ["a", "b"] {
                assert_eq!(numbers(session.state(state).unwrap()), [want, 10.0 * want], "{name}, {state}");
            }
        }
        session.state_mut("b").unwrap().values_mut::<f32>().unwrap().fill(0.0);
        assert_eq!(numbers(session.state("a").unwrap()), [15.0, 150.0], "{name}: the other is another");
        assert_eq!(numbers(&session.run(&[("x", &x)]).unwrap()[0]), [16.0, 160.0], "{name}");
    }
}

/// h ← h + Σ over time of x, and y = 2·x: the state has no axis of time, and y has.
fn summing() -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["T", 2]).unwrap();
    let h = b.input("h", DType::F32, shape![2]).unwrap();
    let sum = b.sum(x, &[0], false).unwrap();
    let next = b.add(h, sum).unwrap();
    b.output("hn", next).unwrap();
    let y = b.add(x, x).unwrap();
    b.output("y", y).unwrap();
    b.state("h", "hn").unwrap();
    b.build().unwrap()
}

#[test]
fn a_state_outlives_changes_of_size_and_a_size_that_is_refused() {
    for backend in backends() {
        let name = backend.name();
        let ones = |steps: usize| Tensor::new(&[steps, 2], &vec![1.0f32; 2 * steps]).unwrap();
        let options = CompileOptions::default().budget(Budget::bytes(1 << 20));
        let program = Program::compile_for(&summing(), &*backend, &options).unwrap();
        let mut session = program.session();
        let mut want = 0.0;
        for steps in [1, 5, 5, 2, 0, 9] {
            want += steps as f32;
            assert_eq!(numbers(&session.run(&[("x", &ones(steps))]).unwrap()[0]), [want; 2], "{name}, {steps} steps");
        }
        // One that would never fit is refused at once; one for which somebody else's memory leaves no room, after the old
        // size was given up.
        for (steps, others) in [(1 << 18, 0), (1 << 16, 700_000)] {
            let _others = options.budget.reserve(others, "others").unwrap();
            let refused = session.run(&[("x", &ones(steps))]).unwrap_err();
            assert!(matches!(refused, Error::Budget { .. }), "{name}: {refused}");
            assert_eq!(numbers(session.state("h").unwrap()), [want; 2], "{name}");
        }
        assert!(session.output("hn").is_err() && session.arena_bytes() == 0, "{name}");
        assert_eq!(numbers(&session.run(&[("x", &ones(3))]).unwrap()[0]), [want + 3.0; 2], "{name}");
    }
}

#[test]
fn an_uploaded_input_serves_every_run_that_is_not_given_it() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 2]).unwrap();
    let bias = b.input("bias", DType::F32, shape!["B", 2]).unwrap();
    let y = b.add(x, bias).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    for backend in backends() {
        let name = backend.name();
        let mut session = compile(&graph, &*backend).session();
        let x = row(&[1.0, 2.0]);
        assert!(session.run(&[("x", &x)]).unwrap_err().to_string().contains("`bias`"), "{name}");
        let mut bias = row(&[10.0, 20.0]);
        session.upload("bias", &bias).unwrap();
        // What the caller does with it afterwards is of no concern.
        bias.values_mut::<f32>().unwrap().fill(0.0);
        let y = |session: &mut Session, x: &Tensor| session.run(&[("x", x)]).map(|o| numbers(&o[0]));
        for _ in 0..2 {
            assert_eq!(y(&mut session, &x).unwrap(), [11.0, 22.0], "{name}");
        }
        let given = session.run(&[("x", &x), ("bias", &row(&[5.0, 5.0]))]).unwrap();
        assert_eq!(numbers(&given[0]), [6.0, 7.0], "{name}");
        assert_eq!(y(&mut session, &x).unwrap(), [11.0, 22.0], "{name}: what was given was given once");
        let tall = Tensor::new(&[2, 2], &[1.0f32; 4]).unwrap();
        assert!(y(&mut session, &tall).is_err(), "{name}: its size fits no more");
        session.upload("bias", &tall).unwrap();
        assert_eq!(y(&mut session, &tall).unwrap(), [2.0; 4], "{name}");
        assert!(y(&mut session, &x).is_err(), "{name}");
        let said = |result: Result<()>| result.unwrap_err().to_string();
        assert!(said(session.upload("b", &tall)).contains("no input named `b`"), "{name}");
        assert!(said(session.upload("bias", &at(1))).contains("i32"), "{name}");
        let mut stateful = compile(&leaky().unwrap(), &*backend).session();
        assert!(said(stateful.upload("h", &row(&[1.0, 1.0]))).contains("set_state"), "{name}");
    }
}

#[test]
fn submit_and_wait_are_a_run_and_nothing_goes_in_between() {
    for backend in backends() {
        let name = backend.name();
        let program = compile(&leaky().unwrap(), &*backend);
        let (mut whole, mut parts) = (program.session(), program.session());
        let one = at(1);
        assert!(parts.wait().unwrap_err().to_string().contains("none was submitted"), "{name}");
        for i in 0..4 {
            let x = row(&[i as f32, 1.0]);
            let want = whole.run(&[("x", &x), ("at", &one)]).unwrap().to_vec();
            parts.submit(&[("x", &x), ("at", &one)]).unwrap();
            drop(x);
            assert!(parts.is_under_way(), "{name}");
            let refused = [
                parts.submit(&[]).unwrap_err(),
                parts.run(&[]).map(drop).unwrap_err(),
                parts.output("y").map(drop).unwrap_err(),
                parts.outputs().map(drop).unwrap_err(),
                parts.read_state("h").map(drop).unwrap_err(),
                parts.state_mut("h").map(drop).unwrap_err(),
                parts.overwrite_state("h").map(drop).unwrap_err(),
                parts.set_state("h", row(&[0.0, 0.0])).unwrap_err(),
                parts.upload("at", &one).unwrap_err(),
            ];
            assert!(refused.iter().all(|e| matches!(e, Error::UnderWay { .. })), "{name}: {refused:?}");
            parts.wait().unwrap();
            assert!(!parts.is_under_way(), "{name}");
            assert_eq!(parts.outputs().unwrap(), want, "{name}");
        }
        // A reset in between ends the run and forgets what it left; so does dropping the session.
        parts.submit(&[("x", &row(&[5.0, 5.0])), ("at", &one)]).unwrap();
        parts.reset();
        assert!(!parts.is_under_way() && parts.state("h").is_none(), "{name}");
        parts.submit(&[("x", &row(&[5.0, 5.0])), ("at", &one)]).unwrap();
        drop(parts);
        // How a run fails, a wait says.
        whole.submit(&[("x", &row(&[1.0, 1.0])), ("at", &at(9))]).unwrap();
        assert!(matches!(whole.wait(), Err(Error::Value { .. })), "{name}");
        whole.run(&[("x", &row(&[1.0, 1.0])), ("at", &one)]).unwrap();
    }
}

#[test]
fn a_cancelled_run_stops_on_every_backend_and_the_next_one_works() {
    for backend in backends() {
        let name = backend.name();
        let mut session = compile(&leaky().unwrap(), &*backend).session();
        let (x, one) = (row(&[1.0, 1.0]), at(1));
        session.run(&[("x", &x), ("at", &one)]).unwrap();
        session.canceller().cancel();
        assert!(matches!(session.run(&[("x", &x), ("at", &one)]), Err(Error::Cancelled)), "{name}");
        assert_eq!(numbers(session.state("h").unwrap()), [1.0; 2], "{name}");
        session.canceller().cancel();
        session.submit(&[("x", &x), ("at", &one)]).unwrap();
        assert!(matches!(session.wait(), Err(Error::Cancelled)), "{name}");
        assert_eq!(numbers(&session.run(&[("x", &x), ("at", &one)]).unwrap()[1]), [2.0; 2], "{name}");
    }
}

// Cases

/// Each case is within its tolerance of the reference, twice in a row.
pub(crate) fn every_case_agrees(backend: &dyn Backend) {
    let mut failures = vec![];
    for case in cases::all() {
        let expected = reference::run(&case.graph, &case.inputs, Precision::Storage).unwrap();
        let inputs: Vec<(&str, &Tensor)> = case.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let check = || -> Result<(), String> {
            let program = Program::compile_for(&case.graph, backend, &CompileOptions::default());
            let mut session = program.map_err(|e| e.to_string())?.session();
            for _ in 0..2 {
                let got = session.run(&inputs).map_err(|e| e.to_string())?;
                if expected.is_empty() || got.len() != expected.len() {
                    return Err(format!("{} results, expected {}", got.len(), expected.len()));
                }
                for (want, got) in expected.iter().zip(got) {
                    compare(want, got, case.tolerance)?;
                }
            }
            Ok(())
        };
        if let Err(problem) = check() {
            failures.push(format!("{}: {problem}", case.name));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

// Timelines

/// A loop of tanh over time, after a step and before one.
fn looped() -> Graph {
    let mut step = GraphBuilder::new();
    let h = step.input("h", DType::F32, shape!["B", 4]).unwrap();
    let x = step.input("x", DType::F32, shape!["B", 4]).unwrap();
    let product = step.mul(h, x).unwrap();
    let next = step.tanh(product).unwrap();
    step.output("h", next).unwrap();
    step.output("y", next).unwrap();
    let step = step.build().unwrap();
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["T", "B", 4]).unwrap();
    let h = b.input("h", DType::F32, shape!["B", 4]).unwrap();
    let outs = b.scan(step, &[h], &[x], &[], 0).unwrap();
    let y = b.softmax(outs[1], 2).unwrap();
    b.output("y", y).unwrap();
    b.build().unwrap()
}

#[test]
fn every_backend_tells_of_every_place_of_its_plan_in_seconds() {
    let graph = looped();
    let x = Tensor::new(&[3, 4, 4], &[0.25f32; 48]).unwrap();
    let h = Tensor::new(&[4, 4], &[0.5f32; 16]).unwrap();
    for backend in backends() {
        let name = backend.name();
        let mut session = compile(&graph, &*backend).session();
        let plain = session.run(&[("x", &x), ("h", &h)]).unwrap().to_vec();
        let mut timeline = Timeline::with_spans(1000);
        session.run_observed(&[("x", &x), ("h", &h)], Some(&mut timeline)).unwrap();
        timeline.clear();
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(session.run_observed(&[("x", &x), ("h", &h)], Some(&mut timeline)).unwrap(), plain, "{name}");
        }
        let took = start.elapsed().as_secs_f64();
        let totals = timeline.totals();
        assert_eq!(totals.runs, 3, "{name}");
        let plan = session.plan().unwrap();
        for (i, step) in plan.steps.iter().enumerate() {
            let calls = |path: &[usize]| totals.places.iter().find(|p| p.path == path).map(|p| p.calls);
            assert_eq!(calls(&[i]), Some(3), "{name}: {}", step.name);
            let Some(inner) = &step.looped else { continue };
            let silent = (0..inner.body.steps.len()).all(|j| calls(&[i, j]).is_none());
            if silent && LOOPS_ARE_ONE_KERNEL {
                continue;
            }
            for j in 0..inner.body.steps.len() {
                assert_eq!(calls(&[i, j]), Some(3 * (inner.steps * inner.blocks) as u64), "{name}: {i}, {j}");
            }
        }
        let beside: f64 = totals.beside.iter().map(|b| b.seconds).sum();
        let sum: f64 = totals.places.iter().map(|p| p.seconds).sum::<f64>() + beside + totals.outside_s;
        // Two clocks, read at slightly other moments.
        assert!(sum > 0.0 && sum <= took * 1.5 + 1e-3, "{name}: {sum} of {took}");
        assert_eq!(timeline.clock().origin, Provenance::Measured, "{name}");
        let (spans, queues) = (timeline.spans(), timeline.queues());
        assert!(spans.iter().all(|s| s.queue < queues.len() && s.seconds >= 0.0 && s.start_s >= 0.0), "{name}");
        // What is inside a loop lies within it in time.
        for inner in spans.iter().filter(|s| s.path.len() == 2) {
            let around = |s: &&schwann_core::backend::Span| {
                s.path == inner.path[..1]
                    && s.start_s <= inner.start_s + 1e-6
                    && s.start_s + s.seconds >= inner.start_s + inner.seconds - 1e-6
            };
            assert!(spans.iter().any(|s| around(&s)), "{name}: {inner:?} is in no loop");
        }
    }
}

#[test]
fn an_observer_of_steps_sees_them_in_order_on_every_backend() {
    #[derive(Default)]
    struct Seen(Vec<(char, usize)>);
    impl Observer for Seen {
        fn begin(&mut self, step: usize) {
            self.0.push(('b', step));
        }
        fn end(&mut self, step: usize) {
            self.0.push(('e', step));
        }
    }
    for backend in backends() {
        let mut session = compile(&leaky().unwrap(), &*backend).session();
        let mut seen = Seen::default();
        session.run_observed(&[("x", &row(&[1.0, 1.0])), ("at", &at(1))], Some(&mut seen)).unwrap();
        let steps = session.plan().unwrap().steps.len();
        let want: Vec<(char, usize)> = (0..steps).flat_map(|i| [('b', i), ('e', i)]).collect();
        assert_eq!(seen.0, want, "{}", backend.name());
    }
}
