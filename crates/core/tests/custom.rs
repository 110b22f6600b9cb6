//! Operations of the user's own: what is registered, what is refused, and that a file brings no code.

use schwann_core::backend::reference::{self, Precision};
use schwann_core::backend::{Backend, Choice};
use schwann_core::op::{Custom, Scan, custom};
use schwann_core::{CompileOptions, DType, Graph, GraphBuilder, Program, Tensor, grad, shape};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn cpu() -> Arc<dyn Backend> {
    Choice::default().make(2).unwrap()
}

/// y = name(x)
fn of_one(name: &str) -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["N"]).unwrap();
    let y = b.custom(name, &[x]).unwrap();
    b.output("y", y).unwrap();
    b.build().unwrap()
}

#[test]
fn what_cannot_be_is_not_registered() {
    let one = |name: &str, inputs: usize| Custom::new(name, inputs, |x| x[0]);
    for (custom, words) in [
        (one("", 1), "a name is a letter"),
        (one("Bump", 1), "a name is a letter"),
        (one("a; drop", 1), "a name is a letter"),
        (one("1st", 1), "a name is a letter"),
        (one("none", 0), "0 inputs; expected 1 to 8"),
        (one("many", 9), "9 inputs; expected 1 to 8"),
        (one("backwards", 1).domain(1.0, -1.0), "in this order"),
        (one("endless", 1).domain(0.0, f64::INFINITY), "in this order"),
        (one("vague", 1).tolerance(f64::NAN, 0.0), "a tolerance"),
        (Custom::new("panics", 1, |x| [1.0][x[0].abs() as usize]), "its definition panicked on ["),
    ] {
        let error = custom.register().unwrap_err().to_string();
        assert!(error.contains(words), "expected `{words}` in: {error}");
    }
    one("given_once", 1).register().unwrap();
    assert!(one("given_once", 1).register().unwrap_err().to_string().contains("the name is taken"));
}

#[test]
fn a_graph_names_an_operation_and_one_that_nobody_registered_is_refused() {
    Custom::new("half", 1, |x| x[0] / 2.0).register().unwrap();
    let graph = of_one("half");
    let json = graph.to_json();
    assert!(json.contains("\"half\""), "{json}");
    let back = Graph::from_json(&json).unwrap();
    back.verify().unwrap();
    assert_eq!(back, graph);
    let unknown = json.replace("\"half\"", "\"third\"");
    let refused = Graph::from_json(&unknown).unwrap_err().to_string();
    assert!(refused.contains("no custom operation `third` is registered"), "{refused}");
    assert!(custom::find("third").is_none());
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::I32, [3]).unwrap();
    assert!(b.custom("half", &[x]).unwrap_err().to_string().contains("wants f32"));
    assert!(b.custom("half", &[]).unwrap_err().to_string().contains("takes 1 inputs, got 0"));
}

#[test]
fn a_backend_that_gives_other_numbers_is_found_out_at_the_first_use() {
    // A definition that changes its mind stands for a text that says something else.
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let drifting = |x: &[f64]| x[0] + if CALLS.fetch_add(1, Ordering::Relaxed) < 1024 { 0.0 } else { 0.1 };
    Custom::new("drifting", 1, drifting).register().unwrap();
    let error = Program::compile_for(&of_one("drifting"), &*cpu(), &CompileOptions::default()).unwrap_err().to_string();
    for words in ["custom operation `drifting`: on cpu", "inputs [", "and its definition"] {
        assert!(error.contains(words), "expected `{words}` in: {error}");
    }
}

#[test]
fn the_plan_says_that_a_definition_runs_and_a_panic_is_an_error() {
    let brittle = |x: &[f64]| if x[0] > 100.0 { panic!("too large") } else { x[0] + 1.0 };
    Custom::new("brittle", 1, brittle).work(3, 1).register().unwrap();
    let program = Program::compile_for(&of_one("brittle"), &*cpu(), &CompileOptions::default()).unwrap();
    let plan = program.plan(&schwann_core::Bindings::new().with("N", 10)).unwrap();
    assert_eq!(plan.steps[0].kernel.to_string(), "custom brittle, by its definition in f64 (slow)");
    assert_eq!((plan.steps[0].cost.flops, plan.steps[0].cost.transcendentals), (30, 10));
    let mut session = program.session();
    let fine = Tensor::new(&[2], &[1.0f32, 2.0]).unwrap();
    assert_eq!(session.run(&[("x", &fine)]).unwrap()[0].values::<f32>().unwrap(), [2.0, 3.0]);
    let bad = Tensor::new(&[2], &[1.0f32, 200.0]).unwrap();
    let error = session.run(&[("x", &bad)]).unwrap_err().to_string();
    assert!(error.contains("the function panicked on [200.0]"), "{error}");
    assert_eq!(session.run(&[("x", &fine)]).unwrap()[0].values::<f32>().unwrap(), [2.0, 3.0]);
}

#[test]
fn a_loop_with_one_runs_as_the_reference_says() {
    Custom::new("soft_step", 2, |x| x[0] / (1.0 + x[1].abs())).register().unwrap();
    let mut body = GraphBuilder::new();
    let state = body.input("state", DType::F32, shape!["B", 5]).unwrap();
    let x = body.input("x", DType::F32, shape!["B", 5]).unwrap();
    let sum = body.add(state, x).unwrap();
    let next = body.custom("soft_step", &[sum, x]).unwrap();
    body.output("next", next).unwrap();
    body.output("y", next).unwrap();
    let body = Arc::new(body.build().unwrap());
    let mut b = GraphBuilder::new();
    let first = b.input("first", DType::F32, shape!["B", 5]).unwrap();
    let xs = b.input("xs", DType::F32, shape!["B", "T", 5]).unwrap();
    let scan = Scan { body, states: 1, sequences: 1, axis: 1, reverse: false };
    let results = b.push_scan(scan, &[first, xs]).unwrap();
    b.output("y", results[1]).unwrap();
    let graph = b.build().unwrap();
    for rows in [1, 40] {
        let numbers = |n: usize| (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect::<Vec<_>>();
        let first = Tensor::new(&[rows, 5], &numbers(rows * 5)).unwrap();
        let xs = Tensor::new(&[rows, 7, 5], &numbers(rows * 35)).unwrap();
        let given = BTreeMap::from([("first".to_owned(), first.clone()), ("xs".to_owned(), xs.clone())]);
        let want = reference::run(&graph, &given, Precision::Storage).unwrap();
        let program = Program::compile_for(&graph, &*cpu(), &CompileOptions::default()).unwrap();
        let got = program.session().run(&[("first", &first), ("xs", &xs)]).unwrap().to_vec();
        for (want, got) in want[0].values::<f32>().unwrap().iter().zip(got[0].values::<f32>().unwrap()) {
            assert!((want - got).abs() < 1e-6, "{got} instead of {want}");
        }
    }
}

#[test]
fn there_is_no_gradient_through_one_and_the_error_says_so() {
    Custom::new("no_way_back", 1, |x| x[0]).register().unwrap();
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [3]).unwrap();
    let y = b.custom("no_way_back", &[x]).unwrap();
    let sum = b.sum(y, &[0], false).unwrap();
    b.output("loss", sum).unwrap();
    let error = grad::gradient(&b.build().unwrap(), "loss", &["x"]).unwrap_err().to_string();
    assert!(error.contains("a custom operation has no gradient"), "{error}");
}
