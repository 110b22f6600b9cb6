//! Operations of the user's own: what is registered, what is refused, and that a file brings no code.

use schwann_core::backend::reference::{self, Precision};
use schwann_core::backend::{Backend, Choice};
use schwann_core::op::custom::{self, Place};
use schwann_core::op::{Custom, Scan};
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
    fn along(name: &str, results: usize, look: impl Fn(&Place<'_>, &mut [f64]) + Send + Sync + 'static) -> Custom {
        Custom::places(name, &[(DType::F32, shape!["n"])], results, shape!["n"], look)
    }
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
        (one("reaching", 1).wgsl("return bitcast<f32>(arena[0]);"), "the word `arena`, which is the kernel's own"),
        (one("ending", 1).wgsl("return x0; } fn more() {"), "a `{` or `}` without the other"),
        (one("open", 1).c("if (x0 > 0) { return x0;"), "a `{` or `}` without the other"),
        (along("nothing", 0, |_, _| ()), "0 results; expected 1 to 4"),
        (along("plenty", 5, |_, _| ()), "5 results; expected 1 to 4"),
        (along("lost", 1, |p, y| y[0] = p.at(1) as f64), "asks for axis 1 of a result of 1, at place [0] with n ="),
        (along("unsized", 1, |p, y| y[0] = p.size("m") as f64), "asks for the size `m`, which no input has"),
        (along("askew", 1, |p, y| y[0] = p.x(0, &[0, 0])), "asks for input 0 at [0, 0], which has 1 axes"),
        (along("far", 1, |p, y| y[0] = p.x(1, &[0])), "asks for input 1 of 1"),
        (along("stops", 1, |p, _| assert!(p.at(0) < 3, "enough")), "panicked at place [3] with n ="),
        (
            Custom::places("vast", &[(DType::F32, shape!["n + 9000"])], 1, shape!["n"], |_, _| ()),
            "nothing to compare on",
        ),
        (Custom::places("blind", &[], 1, shape![1], |_, _| ()), "0 inputs; expected 1 to 8"),
        (Custom::places("unsaid", &[(DType::F32, shape!["n"])], 1, shape!["m"], |_, _| ()), "nothing says what `m` is"),
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
    let looks = Custom::places("no_way_around", &[(DType::F32, shape!["n"])], 1, shape!["n"], |p, y| {
        y[0] = p.x(0, &[p.at(0)]);
    });
    looks.register().unwrap();
    for name in ["no_way_back", "no_way_around"] {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, [3]).unwrap();
        let y = b.custom(name, &[x]).unwrap();
        let sum = b.sum(y, &[0], false).unwrap();
        b.output("loss", sum).unwrap();
        let error = grad::gradient(&b.build().unwrap(), "loss", &["x"]).unwrap_err().to_string();
        assert!(error.contains("a custom operation has no gradient"), "{error}");
    }
}

/// The difference of neighbours, and their sum.
fn neighbours(name: &str) -> Custom {
    Custom::places(name, &[(DType::F32, shape!["rows", "n + 1"])], 2, shape!["rows", "n"], |p, y| {
        let [a, b] = [0, 1].map(|k| p.x(0, &[p.at(0), p.at(1) + k]));
        (y[0], y[1]) = (b - a, b + a);
    })
}

#[test]
fn what_a_kernel_takes_and_gives_is_what_it_declared() {
    neighbours("declared").register().unwrap();
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", "T"]).unwrap();
    let results = b.custom_results("declared", &[x]).unwrap();
    assert_eq!(results.iter().map(|v| b.ty(*v).to_string()).collect::<Vec<_>>(), ["f32[B, T - 1]"; 2]);
    b.output("y", results[1]).unwrap();
    let bytes = b.input("bytes", DType::U8, shape!["B", "T"]).unwrap();
    let row = b.input("row", DType::F32, shape!["T"]).unwrap();
    let none = b.input("none", DType::F32, shape![3, 0]).unwrap();
    for (given, words) in [
        (&[bytes][..], "input 0 must be f32[rows, n + 1], got u8[B, T]"),
        (&[row], "input 0 must be f32[rows, n + 1], got f32[T]"),
        (&[none], "the size -1 of [rows, n] with n = -1, rows = 3 is negative"),
        (&[x, x], "takes 1 inputs, got 2"),
    ] {
        let error = b.custom("declared", given).unwrap_err().to_string();
        assert!(error.contains(words), "expected `{words}` in: {error}");
    }
    // A file says nothing about the kernel but its name: what it takes and gives is what this program declared.
    let graph = b.build().unwrap();
    let json = graph.to_json();
    assert!(!json.contains("rows") && !json.contains("T - 1"), "{json}");
    assert_eq!(Graph::from_json(&json).unwrap(), graph);
    let slot = json.rfind('1').unwrap();
    for (changed, words) in [
        (json.replacen("\"f32\"", "\"u8\"", 1), "input 0 must be f32[rows, n + 1], got u8[B, T]"),
        (format!("{}2{}", &json[..slot], &json[slot + 1..]), "%1.2 is no value of this graph"),
    ] {
        let error = Graph::from_json(&changed).unwrap_err().to_string();
        assert!(error.contains(words), "expected `{words}` in: {error}");
    }
    let program = Program::compile_for(&graph, &*cpu(), &CompileOptions::default()).unwrap();
    let mut session = program.session();
    let x = Tensor::new(&[1, 3], &[1.0f32, 2.0, 4.0]).unwrap();
    let (bytes, row) = (Tensor::new(&[1, 3], &[0u8; 3]).unwrap(), Tensor::new(&[3], &[0.0f32; 3]).unwrap());
    let none = Tensor::new::<f32>(&[3, 0], &[]).unwrap();
    let given = [("x", &x), ("bytes", &bytes), ("row", &row), ("none", &none)];
    assert_eq!(session.run(&given).unwrap()[0].values::<f32>().unwrap(), [3.0, 6.0]);
}

#[test]
fn a_kernel_that_gives_other_numbers_is_found_out_with_its_place_and_what_it_read() {
    // A definition that changes its mind stands for a text that says something else.
    static REGISTERED: AtomicUsize = AtomicUsize::new(0);
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    Custom::places("wavering", &[(DType::F32, shape!["n"])], 1, shape!["n"], |p, y| {
        y[0] = p.x(0, &[p.at(0) - 1]);
        if p.at(0) == 1 && REGISTERED.load(Ordering::Relaxed) == 1 {
            y[0] += 0.1 * (CALLS.fetch_add(1, Ordering::Relaxed) % 2) as f64;
        }
    })
    .register()
    .unwrap();
    REGISTERED.store(1, Ordering::Relaxed);
    let error = Program::compile_for(&of_one("wavering"), &*cpu(), &CompileOptions::default()).unwrap_err().to_string();
    for words in ["on cpu", "result 0 at place [1] with n = ", "where x0[0] = ", ", is ", "and its definition"] {
        assert!(error.contains(words), "expected `{words}` in: {error}");
    }
}

#[test]
fn a_kernel_that_panics_is_an_error_of_that_run_and_the_plan_says_that_a_definition_runs() {
    Custom::places("touchy", &[(DType::F32, shape!["n"])], 1, shape!["n"], |p, y| {
        y[0] = p.x(0, &[p.at(0) + 1]);
        assert!(y[0] < 100.0, "too large");
    })
    .work(2, 1)
    .register()
    .unwrap();
    let program = Program::compile_for(&of_one("touchy"), &*cpu(), &CompileOptions::default()).unwrap();
    let plan = program.plan(&schwann_core::Bindings::new().with("N", 10)).unwrap();
    assert_eq!(plan.steps[0].kernel.to_string(), "custom touchy, by its definition in f64 (slow)");
    assert_eq!((plan.steps[0].cost.flops, plan.steps[0].cost.transcendentals), (20, 10));
    let mut session = program.session();
    let (fine, bad) = (Tensor::new(&[2], &[1.0f32, 2.0]).unwrap(), Tensor::new(&[3], &[1.0f32, 2.0, 200.0]).unwrap());
    assert_eq!(session.run(&[("x", &fine)]).unwrap()[0].values::<f32>().unwrap(), [2.0, 2.0]);
    let error = session.run(&[("x", &bad)]).unwrap_err().to_string();
    assert!(error.contains("its definition panicked at place [1] with n = 3: too large"), "{error}");
    assert_eq!(session.run(&[("x", &fine)]).unwrap()[0].values::<f32>().unwrap(), [2.0, 2.0]);
    let given = BTreeMap::from([("x".to_owned(), bad)]);
    let error = reference::run(&of_one("touchy"), &given, Precision::Storage).unwrap_err().to_string();
    assert!(error.contains("its definition panicked at place [1] with n = 3: too large"), "{error}");
}

#[test]
fn a_loop_with_a_kernel_that_may_look_at_other_rows_is_not_cut_by_rows() {
    Custom::places("row_above", &[(DType::F32, shape!["rows", "n"])], 1, shape!["rows", "n"], |p, y| {
        y[0] = p.x(0, &[p.at(0) - 1, p.at(1)]) / 2.0;
    })
    .register()
    .unwrap();
    let mut body = GraphBuilder::new();
    let state = body.input("state", DType::F32, shape!["B", 3]).unwrap();
    let x = body.input("x", DType::F32, shape!["B", 3]).unwrap();
    let sum = body.add(state, x).unwrap();
    let next = body.named("above").custom("row_above", &[sum]).unwrap();
    body.output("next", next).unwrap();
    let scan = Scan { body: Arc::new(body.build().unwrap()), states: 1, sequences: 1, axis: 1, reverse: false };
    let why = schwann_core::pass::rows::independent(&scan).unwrap().unwrap_err();
    assert_eq!(why, "`above` (custom) mixes them");
    let mut b = GraphBuilder::new();
    let first = b.input("first", DType::F32, shape!["B", 3]).unwrap();
    let xs = b.input("xs", DType::F32, shape!["B", "T", 3]).unwrap();
    let last = b.push_scan(scan, &[first, xs]).unwrap()[0];
    b.output("last", last).unwrap();
    let graph = b.build().unwrap();
    let numbers = |n: usize| (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect::<Vec<_>>();
    let first = Tensor::new(&[40, 3], &numbers(120)).unwrap();
    let xs = Tensor::new(&[40, 7, 3], &numbers(840)).unwrap();
    let given = BTreeMap::from([("first".to_owned(), first.clone()), ("xs".to_owned(), xs.clone())]);
    let want = reference::run(&graph, &given, Precision::Storage).unwrap();
    let program = Program::compile_for(&graph, &*cpu(), &CompileOptions::default()).unwrap();
    let got = program.session().run(&[("first", &first), ("xs", &xs)]).unwrap().to_vec();
    assert_eq!(want[0].values::<f32>().unwrap(), got[0].values::<f32>().unwrap());
}
