//! Graphs from files that nobody has looked at: refused, or compiled and run within bounds of memory, time and stack.

use schwann_core::backend::reference::{self, Precision, Reference};
use schwann_core::graph::MAX_LOOPS;
use schwann_core::memory::Budget;
use schwann_core::op::{Binary, Scan};
use schwann_core::{
    CompileOptions, DType, Error, Graph, GraphBuilder, Op, Program, Result, Shape, Tensor, Value, shape,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

fn compile(graph: &Graph) -> Result<std::sync::Arc<Program>> {
    Program::compile(graph, &CompileOptions::default().threads(1))
}

fn floats(shape: &[usize], from: f32) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::new(shape, &(0..n).map(|i| from + (i * 7 % 5) as f32 * 0.25).collect::<Vec<f32>>()).unwrap()
}

/// What the CPU gives is what the reference gives.
fn agrees(graph: &Graph, inputs: &[(&str, Tensor)]) {
    let named: BTreeMap<String, Tensor> = inputs.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
    let want = reference::run(graph, &named, Precision::Storage).unwrap();
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (*n, t)).collect();
    let mut session = compile(graph).unwrap().session();
    let got = session.run(&given).unwrap();
    assert_eq!(want.len(), got.len());
    assert!(want.iter().any(|t| !t.is_empty()), "nothing to compare in\n{graph}");
    for (want, got) in want.iter().zip(got) {
        assert_eq!((want.dtype(), want.shape()), (got.dtype(), got.shape()));
        for (w, g) in want.to_f64().iter().zip(got.to_f64()) {
            assert!((w - g).abs() <= 1e-4 * w.abs().max(1.0), "{w} and {g} in\n{graph}");
        }
    }
}

#[test]
fn a_product_of_a_scaled_product_compiles_and_is_right() {
    // Every way of putting numbers between, before and after two products, with and without other readers.
    for form in 0..32u32 {
        let on = |bit: u32| form >> bit & 1 == 1;
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, shape!["B", 3]).unwrap();
        let w0 = b.weight("w0", floats(&[3, 4], -0.5)).unwrap();
        let w1 = b.weight("w1", floats(&[4, 3], -0.4)).unwrap();
        let bias = b.weight("bias", floats(&[4], 0.3)).unwrap();
        let two = b.scalar(2.0).unwrap();
        let half = b.scalar(-0.5).unwrap();
        let mut h = if on(0) { b.mul(x, half).unwrap() } else { x };
        h = b.matmul(h, w0).unwrap();
        let product = h;
        if on(1) {
            h = b.add(h, bias).unwrap();
        }
        h = b.mul(two, h).unwrap();
        if on(2) {
            h = b.mul(h, half).unwrap();
        }
        let scaled = h;
        h = b.matmul(h, w1).unwrap();
        if on(3) {
            h = b.mul(h, two).unwrap();
        }
        b.output("y", h).unwrap();
        if on(4) {
            b.output("scaled", scaled).unwrap();
            let t = b.tanh(product).unwrap();
            b.output("product", t).unwrap();
        }
        agrees(&b.build().unwrap(), &[("x", floats(&[5, 3], -0.6))]);
    }
}

#[test]
fn factors_too_large_for_weights_stay_where_they_are() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [2, 2]).unwrap();
    let w = b.weight("w", Tensor::new(&[2, 2], &[1e20f32, 2e20, 3e20, 4e20]).unwrap()).unwrap();
    let c = b.scalar(1e30).unwrap();
    let scaled = b.mul(x, c).unwrap();
    let y = b.matmul(scaled, w).unwrap();
    b.output("y", y).unwrap();
    agrees(&b.build().unwrap(), &[("x", Tensor::new(&[2, 2], &[1e-30f32, 2e-30, 1e-30, 0.0]).unwrap())]);
}

#[test]
fn half_precision_reduces_over_axes_apart_and_softmax_of_inner_axes_as_the_reference_does() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F16, [2, 3, 4]).unwrap();
    let s = b.sum(x, &[0, 2], false).unwrap();
    let m = b.softmax(x, 1).unwrap();
    b.output("s", s).unwrap();
    b.output("m", m).unwrap();
    let graph = b.build().unwrap();
    let data: Vec<f64> = (0..24).map(|i| f64::from(i * 5 % 7) * 0.5).collect();
    let x = Tensor::from_f64(DType::F16, &[2, 3, 4], &data).unwrap();
    let want = reference::run(&graph, &BTreeMap::from([("x".into(), x.clone())]), Precision::Storage).unwrap();
    let mut session = compile(&graph).unwrap().session();
    for (want, got) in want.iter().zip(session.run(&[("x", &x)]).unwrap()) {
        for (w, g) in want.to_f64().iter().zip(got.to_f64()) {
            assert!((w - g).abs() <= 0.02 * w.abs().max(0.1), "{w} and {g}");
        }
    }
}

/// Runs on a stack that recursion as deep as a graph would overflow.
fn on_a_small_stack(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(256 << 10);
        small.spawn_scoped(scope, work).unwrap().join().unwrap();
    });
}

#[test]
fn deep_graphs_compile_run_and_go_on_a_small_stack() {
    type Step = fn(&mut GraphBuilder, Value, usize) -> Result<Value>;
    let stretch: Step = |b, v, _| {
        let wide = b.broadcast(v, [1, 1])?;
        b.reshape(wide, [1])
    };
    let scale: Step = |b, v, _| {
        let c = b.scalar(1.001)?;
        b.mul(v, c)
    };
    let add: Step = |b, v, i| {
        let c = b.constant(floats(&[1], (i % 3) as f32 * 0.01))?;
        b.add(v, c)
    };
    let sums: Step = |b, v, _| b.add(v, v).and_then(|s| b.tanh(s));
    let moves: Step = |b, v, _| {
        let p = b.pad(v, 0, 1, 0)?;
        b.slice(p, 0, 1, 2)
    };
    for (what, n, step, from_weight) in [
        ("stretched and reshaped literals", 6000, stretch, true),
        ("stretched and reshaped inputs", 3000, stretch, false),
        ("factors", 8000, scale, false),
        ("additions", 8000, add, false),
        ("sums of themselves", 4000, sums, false),
        ("padding and slices", 3000, moves, false),
    ] {
        on_a_small_stack(|| {
            let mut b = GraphBuilder::new();
            let x = b.input("x", DType::F32, [1]).unwrap();
            let mut v = if from_weight { b.weight("w", floats(&[1], 0.5)).unwrap() } else { x };
            for i in 0..n {
                v = step(&mut b, v, i).unwrap();
            }
            let y = b.add(v, x).unwrap();
            b.output("y", y).unwrap();
            let graph = Graph::from_json(&b.build().unwrap().to_json()).map(|mut g| {
                if from_weight {
                    g.set_weight("w", floats(&[1], 0.5)).unwrap();
                }
                g
            });
            let mut session = compile(&graph.unwrap()).unwrap_or_else(|e| panic!("{what}: {e}")).session();
            session.run(&[("x", &floats(&[1], 0.25))]).unwrap();
        });
    }
}

#[test]
fn deep_sums_of_sums_over_synapses_are_looked_through_within_bounds() {
    on_a_small_stack(|| {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, [4]).unwrap();
        let from = b.constant(Tensor::new(&[6], &[0i32, 1, 2, 3, 0, 1]).unwrap()).unwrap();
        let to = b.constant(Tensor::new(&[6], &[1i32, 2, 3, 0, 2, 3]).unwrap()).unwrap();
        let gathered = b.gather(x, from, 0).unwrap();
        let active = b.sigmoid(gathered).unwrap();
        let sum = b.segment_sum(active, to, 0, 4).unwrap();
        // 2⁶⁰ paths lead down these sums, and one long one.
        let mut doubled = sum;
        for _ in 0..60 {
            doubled = b.add(doubled, doubled).unwrap();
        }
        let mut long = sum;
        for _ in 0..3000 {
            long = b.add(long, x).unwrap();
        }
        let y = b.div(doubled, long).unwrap();
        b.output("y", y).unwrap();
        compile(&b.build().unwrap()).unwrap().session().run(&[("x", &floats(&[4], 0.5))]).unwrap();
    });
}

/// A loop that passes its state on, over a sequence of that shape and axis; the body does `inner` to the state.
fn looped(state: &Shape, element: &Shape, axis: usize, inner: impl FnOnce(&mut GraphBuilder, Value) -> Value) -> Scan {
    let mut b = GraphBuilder::new();
    let h = b.input("h", DType::F32, state.clone()).unwrap();
    b.input("e", DType::F32, element.clone()).unwrap();
    let next = inner(&mut b, h);
    b.output("h", next).unwrap();
    Scan { body: b.build().unwrap().into(), states: 1, sequences: 1, axis, reverse: false }
}

#[test]
fn loops_inside_each_other_have_an_end() {
    let one = Shape::from([1]);
    let mut scan = looped(&one, &one, 0, |b, h| b.tanh(h).unwrap());
    let sequence = |b: &mut GraphBuilder| b.constant(Tensor::zeros(DType::F32, &[2, 1]).unwrap()).unwrap();
    for depth in 2..=MAX_LOOPS {
        let inner = scan;
        scan = looped(&one, &one, 0, |b, h| {
            let s = sequence(b);
            b.push_scan(inner, &[h, s]).unwrap()[0]
        });
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, [1]).unwrap();
        let s = sequence(&mut b);
        let y = b.push_scan(scan.clone(), &[x, s]).unwrap()[0];
        b.output("y", y).unwrap();
        if depth == 4 || depth == MAX_LOOPS {
            agrees(&b.build().unwrap(), &[("x", floats(&[1], 0.5))]);
        }
    }
    let deepest = looped(&one, &one, 0, |b, h| {
        let s = sequence(b);
        b.push_scan(scan, &[h, s]).unwrap()[0]
    });
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1]).unwrap();
    let s = sequence(&mut b);
    let refused = b.push_scan(deepest, &[x, s]).unwrap_err().to_string();
    assert!(refused.contains("loops inside each other"), "{refused}");
}

#[test]
fn steps_without_end_over_no_bytes_are_refused_everywhere() {
    let (state, element) = (Shape::from([1, 2]), Shape::from([1, 0]));
    let sequence = |b: &mut GraphBuilder, axis: usize, steps: usize| {
        let mut sizes = vec![1, 0];
        sizes.insert(axis, steps);
        b.constant(Tensor::zeros(DType::F32, &sizes).unwrap()).unwrap()
    };
    for axis in [0, 1] {
        // 2⁴⁰ steps at once, and 2²⁰ times 2²⁰.
        for nested in [false, true] {
            let steps = if nested { 1 << 20 } else { 1usize << 40 };
            let scan = looped(&state, &element, axis, |b, h| {
                if !nested {
                    return b.tanh(h).unwrap();
                }
                let inner = looped(&state, &element, axis, |b, h| b.tanh(h).unwrap());
                let s = sequence(b, axis, steps);
                b.push_scan(inner, &[h, s]).unwrap()[0]
            });
            let mut b = GraphBuilder::new();
            let x = b.input("x", DType::F32, [1, 2]).unwrap();
            let s = sequence(&mut b, axis, steps);
            let y = b.push_scan(scan, &[x, s]).unwrap()[0];
            b.output("y", y).unwrap();
            let graph = b.build().unwrap();
            let x = floats(&[1, 2], 0.5);
            let refused = compile(&graph).unwrap().session().run(&[("x", &x)]).map(|_| ()).unwrap_err();
            assert!(matches!(refused, Error::Work { .. }), "{refused}");
            assert!(refused.to_string().contains("steps"), "{refused}");
            let reference = Program::compile_for(&graph, &Reference, &CompileOptions::default()).unwrap();
            let refused = reference.session().run(&[("x", &x)]).map(|_| ()).unwrap_err();
            assert!(matches!(refused, Error::Work { .. }), "{refused}");
            let named = BTreeMap::from([("x".to_owned(), x)]);
            assert!(matches!(reference::run(&graph, &named, Precision::Storage), Err(Error::Work { .. })));
        }
    }
}

#[test]
fn a_small_value_stretched_very_far_is_refused_before_it_is_multiplied() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 1]).unwrap();
    let n = 40_000;
    let tall = b.broadcast(x, [n, n]).unwrap();
    let product = b.matmul(tall, tall).unwrap();
    let y = b.sum(product, &[0, 1], false).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let refused = compile(&graph).unwrap().session().run(&[("x", &floats(&[1, 1], 0.5))]).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Error::Work { .. } | Error::Budget { .. }), "{refused}");
}

/// A network with a state and an output of these sizes.
fn stateful(state: &[usize]) -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1]).unwrap();
    let h = b.input("h", DType::F32, state).unwrap();
    let next = b.tanh(h).unwrap();
    let y = b.tanh(x).unwrap();
    b.output("y", y).unwrap();
    b.output("next", next).unwrap();
    b.state("h", "next").unwrap();
    b.build().unwrap()
}

#[test]
fn states_and_outputs_ask_the_budget_and_the_system_before_they_are_made() {
    let x = floats(&[1], 0.5);
    for huge in [vec![1usize << 42], vec![1 << 30, 1 << 12], vec![1 << 50, 4]] {
        let graph = stateful(&huge);
        for budget in [Budget::default(), Budget::unlimited(), Budget::bytes(1 << 20)] {
            let options = CompileOptions::default().threads(1).budget(budget);
            let refused = Program::compile(&graph, &options).unwrap().session().run(&[("x", &x)]).map(|_| ());
            let refused = refused.unwrap_err();
            let large = refused.to_string().contains("more elements than any memory holds");
            assert!(
                large || matches!(refused, Error::Budget { .. } | Error::Memory { .. } | Error::Work { .. }),
                "{refused}"
            );
        }
        assert!(Tensor::zeros(DType::F32, &huge).is_err());
    }
    // A state counts, with the output that replaces it and the arena.
    let graph = stateful(&[1000]);
    let run = |limit: usize| {
        let options = CompileOptions::default().threads(1).budget(Budget::bytes(limit));
        Program::compile(&graph, &options).unwrap().session().run(&[("x", &x)]).map(|_| ())
    };
    let mut free = compile(&graph).unwrap().session();
    free.run(&[("x", &x)]).unwrap();
    let others = free.arena_bytes() + 4000 + 4;
    assert!(matches!(run(others), Err(Error::Budget { .. })), "the state was not counted");
    run(others + 4000).unwrap();
}

#[test]
fn sizes_of_which_only_an_empty_axis_keeps_the_product_small_are_no_trouble() {
    for sizes in [vec![1usize << 40, 0, 8], vec![0, 1 << 40, 8], vec![0, 1 << 40, 1 << 30], vec![1 << 31, 1 << 31, 0]] {
        let mut b = GraphBuilder::new();
        let symbols: Vec<&str> = ["A", "B", "C"][..sizes.len()].to_vec();
        let x = b.input("x", DType::F32, Shape::new(symbols)).unwrap();
        let t = b.tanh(x).unwrap();
        let turned = b.transpose(t, &[2, 0, 1]).unwrap();
        let joined = b.concat(&[turned, turned], 1).unwrap();
        let cut = b.slice(joined, 2, 0, 0).unwrap();
        let soft = b.softmax(x, 2).unwrap();
        for (name, value) in [("t", turned), ("j", joined), ("c", cut), ("s", soft)] {
            b.output(name, value).unwrap();
        }
        let graph = b.build().unwrap();
        // Either refused, saying why, or run: but not a panic, and not for ever.
        match Tensor::from_bytes(DType::F32, &sizes, &[]) {
            Ok(x) => {
                let run = compile(&graph).unwrap().session().run(&[("x", &x)]).map(|_| ());
                let other = reference::run(&graph, &BTreeMap::from([("x".into(), x)]), Precision::Storage);
                assert_eq!(run.is_ok(), other.is_ok(), "{sizes:?}: {run:?}");
            }
            Err(refused) => assert!(refused.to_string().contains("address space"), "{refused}"),
        }
    }
}

/// Compiles (and runs, where there are no inputs to give) a graph of `n` parts.
fn time(make: &dyn Fn(usize) -> Graph, n: usize) -> Duration {
    let graph = make(n);
    let start = Instant::now();
    let json = graph.to_json();
    let read = Graph::from_json(&json).unwrap();
    assert_eq!(read.nodes().len(), graph.nodes().len());
    let mut session = compile(&graph).unwrap().session();
    let given: Vec<(String, Tensor)> = graph
        .inputs()
        .filter(|(name, _)| !graph.is_state(name))
        .map(|(name, v)| (name.to_owned(), floats(&graph.ty(v).shape.as_fixed().unwrap(), 0.1)))
        .collect();
    let given: Vec<(&str, &Tensor)> = given.iter().map(|(n, t)| (n.as_str(), t)).collect();
    session.run(&given).unwrap();
    let time = start.elapsed();
    drop((session, read));
    time
}

#[test]
fn compiling_takes_time_in_proportion_to_the_graph() {
    fn input(b: &mut GraphBuilder) -> Value {
        b.input("x", DType::F32, [1, 2]).unwrap()
    }
    let outputs = |n: usize| {
        let mut b = GraphBuilder::new();
        let x = input(&mut b);
        for i in 0..n {
            let y = b.push(Op::Binary(Binary::Add), &[x, x]).unwrap();
            b.output(&format!("output number {i}"), y).unwrap();
        }
        b.build().unwrap()
    };
    let loop_states = |n: usize| {
        let (mut body, mut b) = (GraphBuilder::new(), GraphBuilder::new());
        let inside: Vec<Value> = (0..n).map(|i| body.input(&format!("s{i}"), DType::F32, shape![2]).unwrap()).collect();
        body.input("x", DType::F32, shape![2]).unwrap();
        for (i, s) in inside.iter().enumerate() {
            let next = body.tanh(*s).unwrap();
            body.output(&format!("s{i}"), next).unwrap();
        }
        let x = b.input("x", DType::F32, shape![2]).unwrap();
        let sequence = b.input("sequence", DType::F32, [3, 2]).unwrap();
        let outs = b.scan(body.build().unwrap(), &vec![x; n], &[sequence], &[], 0).unwrap();
        b.output("y", outs[0]).unwrap();
        b.build().unwrap()
    };
    let states = |n: usize| {
        let mut b = GraphBuilder::new();
        for i in 0..n {
            let h = b.input(&format!("state number {i}"), DType::F32, [2]).unwrap();
            let next = b.tanh(h).unwrap();
            b.output(&format!("next state number {i}"), next).unwrap();
            b.state(&format!("state number {i}"), &format!("next state number {i}")).unwrap();
        }
        b.build().unwrap()
    };
    let inputs = |n: usize| {
        let mut b = GraphBuilder::new();
        let parts: Vec<Value> = (0..n).map(|i| b.input(&format!("input {i}"), DType::F32, [1, 2]).unwrap()).collect();
        let y = b.concat(&parts, 0).unwrap();
        b.output("y", y).unwrap();
        b.build().unwrap()
    };
    let chain = |n: usize| {
        let mut b = GraphBuilder::new();
        let mut v = input(&mut b);
        for _ in 0..n {
            v = b.tanh(v).unwrap();
        }
        b.output("y", v).unwrap();
        b.build().unwrap()
    };
    let fan = |n: usize| {
        let mut b = GraphBuilder::new();
        let x = input(&mut b);
        let mut parts = vec![];
        for i in 0..n {
            let c = b.scalar(i as f32 * 0.001).unwrap();
            let y = b.mul(x, c).unwrap();
            parts.push(b.softmax(y, 1).unwrap());
        }
        let y = b.concat(&parts, 1).unwrap();
        b.output("y", y).unwrap();
        b.build().unwrap()
    };
    let folds = |n: usize| {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, [1, 100]).unwrap();
        let w = b.weight("w", floats(&[100], 0.5)).unwrap();
        let mut v = x;
        for i in 0..n {
            // All of one name, all folded to weights of their own.
            let c = b.scalar(i as f32 * 0.001).unwrap();
            let folded = b.named("the same").mul(w, c).unwrap();
            v = b.add(v, folded).unwrap();
        }
        b.output("y", v).unwrap();
        b.build().unwrap()
    };
    let products = |n: usize| {
        let mut b = GraphBuilder::new();
        let x = input(&mut b);
        let mut v = x;
        for i in 0..n {
            let w = b.weight(&format!("w{i}"), floats(&[2, 2], -0.4)).unwrap();
            let y = b.matmul(v, w).unwrap();
            let pair = b.concat(&[y, x], 1).unwrap();
            let w = b.weight(&format!("v{i}"), floats(&[4, 2], -0.4)).unwrap();
            v = b.matmul(pair, w).unwrap();
        }
        b.output("y", v).unwrap();
        b.build().unwrap()
    };
    let synapses = |n: usize| {
        let mut b = GraphBuilder::new();
        let mut x = b.input("x", DType::F32, [4]).unwrap();
        let from = b.constant(Tensor::new(&[4], &[0i32, 1, 2, 3]).unwrap()).unwrap();
        for _ in 0..n {
            let gathered = b.gather(x, from, 0).unwrap();
            let active = b.sigmoid(gathered).unwrap();
            let sum = b.segment_sum(active, from, 0, 4).unwrap();
            x = b.add(sum, x).unwrap();
        }
        b.output("y", x).unwrap();
        b.build().unwrap()
    };
    type Make<'a> = &'a dyn Fn(usize) -> Graph;
    let makers: [(&str, usize, Make<'_>); 9] = [
        ("outputs", 1500, &outputs),
        ("states", 1000, &states),
        ("states of a loop", 300, &loop_states),
        ("inputs", 1500, &inputs),
        ("a chain", 1500, &chain),
        ("a fan", 700, &fan),
        ("folded weights of one name", 400, &folds),
        ("products of joined rows", 300, &products),
        ("synapses", 300, &synapses),
    ];
    for (what, n, make) in makers {
        // Ten times the graph in ten times the time, and some; what grows with the square takes a hundred times as long.
        // Machines are shared, so the best of a few attempts counts.
        let mut ratios = vec![];
        for _ in 0..4 {
            let small = time(make, n).min(time(make, n));
            let large = time(make, 10 * n);
            ratios.push(large.as_secs_f64() / small.as_secs_f64());
            if ratios.last().is_some_and(|r| *r < 30.0) {
                break;
            }
        }
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(least < 30.0, "{what}: ten times as many take {ratios:?} times as long");
    }
}

#[test]
fn a_pass_that_loses_a_value_is_an_error_with_its_name() {
    let error = Error::Pass { pass: "merge products", node: "h".into(), problem: "lost".into() };
    assert_eq!(error.to_string(), "internal: pass `merge products`, node `h`: lost");
}

#[test]
fn work_on_weights_that_would_take_for_ever_is_left_for_the_run() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 128]).unwrap();
    let mut w = b.weight("w", floats(&[128, 128], -0.5)).unwrap();
    let scale = b.scalar(0.01).unwrap();
    for _ in 0..400 {
        let square = b.matmul(w, w).unwrap();
        let small = b.mul(square, scale).unwrap();
        w = b.tanh(small).unwrap();
    }
    let y = b.matmul(x, w).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let program = compile(&graph).unwrap();
    let products = program.graph().nodes().iter().filter(|n| n.op.name().starts_with("matmul")).count();
    assert!(products > 100, "{products} products are left of 401");
    program.session().run(&[("x", &floats(&[1, 128], 0.5))]).unwrap();
}

#[test]
fn a_ratio_of_nothing_is_taken_at_once_however_often() {
    let began = Instant::now();
    let list = |b: &mut GraphBuilder, dtype: DType| b.constant(Tensor::zeros(dtype, &[0]).unwrap()).unwrap();
    for shape in [vec![0, 1], vec![0, 2], vec![0]] {
        for known in [true, false] {
            let mut b = GraphBuilder::new();
            let x = match known {
                true => b.constant(Tensor::zeros(DType::F32, &shape).unwrap()).unwrap(),
                false => b.input("x", DType::F32, Shape::from(shape.as_slice())).unwrap(),
            };
            let axis = shape.len() - 1;
            let mut inputs = vec![x];
            inputs.extend((0..6).map(|i| list(&mut b, if i < 2 { DType::I32 } else { DType::F32 })));
            let one = Tensor::zeros(DType::F32, &shape[axis..]).unwrap();
            inputs.extend((0..3).map(|_| b.constant(one.clone()).unwrap()));
            let op = Op::SynapseRatio { activation: schwann_core::op::Activation::Sigmoid, axis, times: 1 << 62 };
            let y = b.push(op, &inputs).unwrap();
            b.output("y", y).unwrap();
            let graph = b.build().unwrap();
            let given = Tensor::zeros(DType::F32, &shape).unwrap();
            let given = if known { vec![] } else { vec![("x", &given)] };
            let results = compile(&graph).and_then(|program| Ok(program.session().run(&given)?[0].len()));
            assert!(matches!(results, Ok(0) | Err(Error::Work { .. })), "{shape:?}: {results:?}");
        }
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn what_folding_made_does_not_allow_it_to_make_more() {
    // 64 floats that double 28 times would be 64 GiB.
    let mut b = GraphBuilder::new();
    let mut x = b.weight("w", floats(&[64], 0.0)).unwrap();
    for _ in 0..28 {
        x = b.concat(&[x, x], 0).unwrap();
    }
    let y = b.sum(x, &[0], false).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let (folded, _) = schwann_core::pass::optimize(&graph, &schwann_core::pass::PassOptions::default()).unwrap();
    let made: usize = folded.weights().values().map(|t| t.bytes().len()).sum();
    assert!(made <= 1 << 28, "{made} bytes of a weight of 256");
}
