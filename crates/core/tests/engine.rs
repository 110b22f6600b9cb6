//! The engine around the kernels: passes, plans, programs, sessions, and what they refuse.

use schwann_core::backend::Observer;
use schwann_core::backend::reference::Reference;
use schwann_core::cases;
use schwann_core::memory::Budget;
use schwann_core::op::{Map, MapInstr, MapResult, Op, Unary};
use schwann_core::pass::{self, PassOptions, Pattern, any, fusion_opportunities, op};
use schwann_core::plan::kernel::{Format, Move};
use schwann_core::plan::{Forecast, Kernel, Plan, Step};
use schwann_core::{
    Bindings, CompileOptions, DType, Error, Graph, GraphBuilder, Program, Result, Session, Tensor, Value, shape,
};
use schwann_core::{Figure, Provenance};
use std::sync::Arc;

fn compile(graph: &Graph) -> Arc<Program> {
    Program::compile(graph, &CompileOptions::default().threads(2)).unwrap()
}

fn optimized(graph: &Graph) -> Graph {
    pass::optimize(graph, &PassOptions::default()).unwrap().0
}

fn count(graph: &Graph, name: &str) -> usize {
    graph.nodes().iter().filter(|n| n.op.name() == name).count()
}

fn floats(shape: &[usize], f: impl Fn(usize) -> f32) -> Tensor {
    let n = shape.iter().product();
    Tensor::new(shape, &(0..n).map(f).collect::<Vec<_>>()).unwrap()
}

/// x·W + b through tanh, then a second layer: the network of most tests here.
fn mlp() -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 8])?;
    let w = b.weight("w", floats(&[8, 16], |i| (i % 7) as f32 * 0.1 - 0.3))?;
    let bias = b.weight("bias", floats(&[16], |i| i as f32 * 0.01))?;
    let w2 = b.weight("w2", floats(&[4, 16], |i| (i % 5) as f32 * 0.1 - 0.2))?;
    let h = b.matmul(x, w)?;
    let h = b.add(h, bias)?;
    let h = b.named("hidden").tanh(h)?;
    let y = b.named("last").linear(h, w2, None)?;
    b.output("y", y)?;
    b.build()
}

/// h ← tanh(x·W + h·U) over time, with the state kept by the session.
fn rnn() -> Result<Graph> {
    let step = {
        let mut b = GraphBuilder::new();
        let h = b.input("h", DType::F32, shape!["B", 6])?;
        let x = b.input("x", DType::F32, shape!["B", 3])?;
        let w = b.input("w", DType::F32, shape![3, 6])?;
        let u = b.input("u", DType::F32, shape![6, 6])?;
        let (p, q) = (b.matmul(x, w)?, b.matmul(h, u)?);
        let s = b.add(p, q)?;
        let next = b.tanh(s)?;
        b.output("h", next)?;
        b.output("y", next)?;
        b.build()?
    };
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", "T", 3])?;
    let h = b.input("h", DType::F32, shape!["B", 6])?;
    let w = b.weight("w", floats(&[3, 6], |i| (i % 4) as f32 * 0.2 - 0.3))?;
    let u = b.weight("u", floats(&[6, 6], |i| (i % 5) as f32 * 0.1 - 0.2))?;
    let outs = b.scan(step, &[h], &[x], &[w, u], 1)?;
    b.output("hn", outs[0])?;
    b.output("y", outs[1])?;
    b.state("h", "hn")?;
    b.build()
}

// Passes

#[test]
fn a_layer_becomes_one_product_with_its_bias_and_activation() {
    let graph = optimized(&mlp().unwrap());
    assert_eq!((count(&graph, "matmul_map"), count(&graph, "add"), count(&graph, "tanh")), (1, 0, 0), "{graph}");
    let plan = compile(&mlp().unwrap()).plan(&Bindings::new().with("B", 5)).unwrap();
    assert_eq!(plan.steps.len(), 2, "{}", plan.explain(None));
    assert!(
        matches!(&plan.steps[0].kernel, Kernel::Product(p) if p.format == Format::Panels && p.bias),
        "{}",
        plan.steps[0].kernel
    );
}

#[test]
fn a_gated_cell_is_one_call_unless_something_of_it_is_needed_outside() {
    let apart = [
        "given-weights",
        "given-bias",
        "product-read",
        "head-read",
        "bias-by-row",
        "two-heads",
        "more-columns",
        "own-operations",
        // Weights that no near cache holds.
        "to100/3-rows",
    ];
    let mut seen = 0;
    for case in cases::all().into_iter().filter(|c| c.group == "gated") {
        let program = Program::compile(&case.graph, &CompileOptions::default().threads(1)).unwrap();
        let plan = program.plan(&case.bindings().unwrap()).unwrap();
        let cells = plan.steps.iter().filter(|s| matches!(s.kernel, Kernel::GatedCell(_))).count();
        let whole = !apart.iter().any(|name| case.name.contains(name));
        assert_eq!(cells, usize::from(whole), "{}: {}", case.name, plan.explain(None));
        // Inputs come in parts, and a result that is wanted in two places is written to both.
        let joins = plan.steps.iter().filter(|s| matches!(s.kernel, Kernel::Move(Move::Join { .. }))).count();
        match case.name.as_str() {
            // What it multiplies, of two parts, and that again beside the result.
            name if name.contains("/twice/") => assert_eq!(joins, 3, "{}", plan.explain(None)),
            name if name.contains("/inputs-read/") => assert_eq!(joins, 2, "{}", plan.explain(None)),
            _ if whole => assert_eq!(joins, 0, "{}", plan.explain(None)),
            _ => {}
        }
        if case.name.contains("/masked") && case.name.ends_with("columns") {
            let skips = matches!(&plan.steps[0].kernel, Kernel::GatedCell(cell) if cell.skipped > 0);
            assert!(skips, "{}", plan.explain(None));
            seen += 1;
        }
    }
    assert_eq!(seen, 5);
}

/// The heads of a cell are slices like any others: beyond a symbolic axis they are an error, whatever is made of them.
#[test]
fn heads_beyond_a_symbolic_axis_are_an_error() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 5]).unwrap();
    let z = b.input("z", DType::F32, shape!["N"]).unwrap();
    let one = b.constant(floats(&[1, 1], |_| 0.5)).unwrap();
    let w = b.broadcast(one, shape![5, "N"]).unwrap();
    let product = b.matmul(x, w).unwrap();
    let heads = [0, 4, 8].map(|start| b.slice(product, 1, start, start + 4).unwrap());
    let (from, to, by) = (b.tanh(heads[0]).unwrap(), b.tanh(heads[1]).unwrap(), b.sigmoid(heads[2]).unwrap());
    let way = b.sub(to, from).unwrap();
    let way = b.mul(by, way).unwrap();
    let y = b.add(from, way).unwrap();
    b.output("y", y).unwrap();
    let z = b.abs(z).unwrap();
    b.output("z_abs", z).unwrap();
    let program = compile(&b.build().unwrap());
    let plan = |n: usize| program.plan(&Bindings::new().with("N", n));
    assert!(plan(12).unwrap().steps.iter().any(|s| matches!(s.kernel, Kernel::Product(_))));
    for n in [6, 11, 4] {
        let error = plan(n).unwrap_err().to_string();
        assert!(error.contains("slice"), "{n}: {error}");
    }
}

#[test]
fn a_ratio_that_is_taken_again_of_its_own_result_is_one_call() {
    let mut seen = 0;
    for case in cases::all().into_iter().filter(|c| c.name.starts_with("synapse_ratio/") && c.name.contains("/axis")) {
        let plan = compile(&case.graph).plan(&case.bindings().unwrap()).unwrap();
        let ratios = |s: &Step| match &s.kernel {
            Kernel::Synapses(synapses) => Some(synapses.ratios).filter(|n| *n > 0),
            _ => None,
        };
        let times: Vec<usize> = plan.steps.iter().filter_map(ratios).collect();
        if !times.is_empty() {
            assert_eq!(times, [1, 3, 1], "{}: {}", case.name, plan.explain(None));
            seen += 1;
        }
    }
    assert!(seen > 10);
}

#[test]
fn work_on_weights_is_done_at_compile_time() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 4]).unwrap();
    let w = b.weight("w", floats(&[4, 4], |i| i as f32)).unwrap();
    let p = b.softplus(w).unwrap();
    let t = b.transpose(p, &[1, 0]).unwrap();
    let y = b.matmul(x, t).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let folded = optimized(&graph);
    assert_eq!(folded.nodes().len(), 3, "{folded}");
    let kept = pass::optimize(&graph, &PassOptions { fold_weights: false, ..PassOptions::default() }).unwrap().0;
    assert_eq!(count(&kept, "map"), 1, "{kept}");
}

#[test]
fn equal_work_is_done_once_and_unread_work_not_at_all() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 4]).unwrap();
    let (a, c) = (b.exp(x).unwrap(), b.exp(x).unwrap());
    let _unread = b.log(x).unwrap();
    let (p, q) = (b.softmax(a, 1).unwrap(), b.softmax(c, 1).unwrap());
    let y = b.matmul_t(p, q, true, false).unwrap();
    b.output("y", y).unwrap();
    let graph = optimized(&b.build().unwrap());
    assert_eq!((count(&graph, "softmax"), count(&graph, "map"), count(&graph, "log")), (1, 1, 0), "{graph}");
}

/// The maps of the case of this name, after all passes: how many results each has.
fn maps(name: &str) -> Vec<usize> {
    let case = cases::all().into_iter().find(|c| c.name == name).unwrap();
    let graph = optimized(&case.graph);
    let results = |n: &schwann_core::graph::Node| matches!(n.op, Op::Map { .. }).then_some(n.outs.len());
    graph.nodes().iter().filter_map(results).collect()
}

#[test]
fn elementwise_work_with_values_that_others_need_is_one_map() {
    assert_eq!(maps("joined/lstm-step/1"), [2]);
    assert_eq!(maps("joined/lstm-step/9/saved"), [7]);
    assert_eq!(maps("joined/siblings"), [2]);
    assert_eq!(maps("joined/flags"), [2]);
    // Not where something else would have to run in between, nor where one would wait for the other and the other for it.
    assert_eq!(maps("joined/not-around-a-product"), [1, 1]);
    assert_eq!(maps("joined/not-both-ways").len(), 3);
    // What is rounded when it is stored is read as stored.
    assert_eq!(maps("joined/rounded-between"), [1, 1]);
    let case = cases::all().into_iter().find(|c| c.name == "joined/lstm-step/1").unwrap();
    let plan = compile(&case.graph).plan(&case.bindings().unwrap()).unwrap();
    let Some(Kernel::Map(map)) = plan.steps.iter().map(|s| &s.kernel).find(|k| matches!(k, Kernel::Map(_))) else {
        panic!("no map: {}", plan.explain(None));
    };
    assert_eq!((plan.steps.len(), map.outs.len()), (2, 2), "{}", plan.explain(None));
}

#[test]
fn results_that_nobody_reads_leave_a_map_with_what_only_they_need() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 4]).unwrap();
    let z = b.input("z", DType::F32, shape!["B", 4]).unwrap();
    let s = b.softmax(z, 1).unwrap();
    let code = vec![
        MapInstr::Input(0),
        MapInstr::Unary(Unary::Tanh, 0),
        MapInstr::Input(1),
        MapInstr::Unary(Unary::Exp, 2),
        MapInstr::Unary(Unary::Sin, 1),
    ];
    let also = [(3, DType::F32), (1, DType::F16)].map(|(at, dtype)| MapResult { at, dtype });
    let map = b.push(Op::Map { map: Map { code }, dtype: DType::F32, also: also.to_vec() }, &[x, s]).unwrap();
    b.output("tanh", Value { slot: 2, ..map }).unwrap();
    let graph = optimized(&b.build().unwrap());
    assert_eq!((count(&graph, "softmax"), count(&graph, "map")), (0, 1), "{graph}");
    let node = graph.nodes().iter().find(|n| n.op.name() == "map").unwrap();
    let code = vec![MapInstr::Input(0), MapInstr::Unary(Unary::Tanh, 0)];
    assert_eq!((&node.op, node.inputs.len()), (&Op::map(Map { code }, DType::F16), 1), "{graph}");
}

#[test]
fn quantizing_what_was_dequantized_goes_away_only_where_it_is_exact() {
    let build = |scale: f32| {
        let mut b = GraphBuilder::new();
        let q = b.input("q", DType::I8, shape!["N"]).unwrap();
        let s = b.scalar(scale).unwrap();
        let z = b.constant(Tensor::scalar(3i32)).unwrap();
        let d = b.dequantize(q, s, z).unwrap();
        let y = b.quantize(d, s, z, DType::I8).unwrap();
        b.output("y", y).unwrap();
        optimized(&b.build().unwrap())
    };
    assert_eq!(build(0.05).nodes().len(), 1);
    assert!(build(1e-44).nodes().len() > 1, "a denormal scale loses bits");
    assert!(build(f32::NAN).nodes().len() > 1);
}

#[test]
fn work_that_is_the_same_in_every_step_leaves_the_loop() {
    let step = {
        let mut b = GraphBuilder::new();
        let h = b.input("h", DType::F32, shape!["B", 4]).unwrap();
        let x = b.input("x", DType::F32, shape!["B", 4]).unwrap();
        let w = b.input("w", DType::F32, shape![4]).unwrap();
        let p = b.softplus(w).unwrap();
        let s = b.mul(h, p).unwrap();
        let s = b.add(s, x).unwrap();
        b.output("h", s).unwrap();
        b.build().unwrap()
    };
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["T", "B", 4]).unwrap();
    let h = b.input("h", DType::F32, shape!["B", 4]).unwrap();
    let w = b.input("w", DType::F32, shape![4]).unwrap();
    let outs = b.scan(step, &[h], &[x], &[w], 0).unwrap();
    b.output("h", outs[0]).unwrap();
    let graph = optimized(&b.build().unwrap());
    assert_eq!(count(&graph, "map"), 1, "softplus is outside: {graph}");
}

/// Three heads of one input: tanh(x·W₁)·σ(x·W₃) + tanh(x·W₂).
fn heads(columns: usize, biased: bool) -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 8]).unwrap();
    let head = |b: &mut GraphBuilder, i: usize| {
        let w = b.weight(&format!("w{i}"), floats(&[8, columns], |n| ((n * (i + 3)) % 7) as f32 * 0.1 - 0.3)).unwrap();
        let p = b.matmul(x, w).unwrap();
        if !biased {
            return p;
        }
        let bias = b.weight(&format!("b{i}"), floats(&[columns], |n| (n + i) as f32 * 0.01)).unwrap();
        b.add(p, bias).unwrap()
    };
    let (p, q, r) = (head(&mut b, 0), head(&mut b, 1), head(&mut b, 2));
    let (p, q, r) = (b.tanh(p).unwrap(), b.tanh(q).unwrap(), b.sigmoid(r).unwrap());
    let m = b.mul(p, r).unwrap();
    let y = b.add(m, q).unwrap();
    b.output("y", y).unwrap();
    b.build().unwrap()
}

#[test]
fn small_products_of_one_input_are_one_product_whose_columns_are_read_in_place() {
    for (biased, kernel) in [(false, "gemm packed 4×48×8"), (true, "gemm packed 4×48×8 + bias")] {
        let plan = compile(&heads(16, biased)).plan(&Bindings::new().with("B", 4)).unwrap();
        let kernels: Vec<String> = plan.steps.iter().map(|s| s.kernel.to_string()).collect();
        assert!(matches!(&kernels[..], [first, _] if first == kernel), "{kernels:?}");
    }
    let wide = compile(&heads(400, true)).plan(&Bindings::new().with("B", 4)).unwrap();
    assert_eq!(
        wide.steps.iter().filter(|s| matches!(s.kernel, Kernel::Product(_))).count(),
        3,
        "{}",
        wide.explain(None)
    );
    let x = floats(&[4, 8], |i| (i % 9) as f32 * 0.2 - 0.8);
    for (columns, biased) in [(1, false), (1, true), (16, false), (16, true), (17, true), (400, true)] {
        let graph = heads(columns, biased);
        let slow = Program::compile_for(&graph, &Reference, &CompileOptions::default()).unwrap();
        let (mut slow, mut fast) = (slow.session(), compile(&graph).session());
        let (want, got) = (slow.run(&[("x", &x)]).unwrap(), fast.run(&[("x", &x)]).unwrap());
        cases::compare(&want[0], &got[0], cases::Tolerance::CHAIN).unwrap();
    }
}

#[test]
fn a_users_pattern_runs_and_a_wrong_one_is_named() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["N"]).unwrap();
    let s = b.sigmoid(x).unwrap();
    let y = b.mul(s, x).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let silu = Pattern::new("silu", op("mul", [any("x"), op("sigmoid", [any("x")])]), |b, m| b.silu(m.get("x")?));
    let options = PassOptions { patterns: vec![silu], fuse: false, ..PassOptions::default() };
    let x = floats(&[5], |i| i as f32 - 2.0);
    let run = |passes: PassOptions| {
        let program = Program::compile(&graph, &CompileOptions::default().threads(1).passes(passes)).unwrap();
        (program.graph().nodes().len(), program.session().run(&[("x", &x)]).unwrap()[0].clone())
    };
    let (with, without) = (run(options), run(PassOptions { fuse: false, ..PassOptions::default() }));
    assert_eq!((with.0, without.0), (2, 3), "one node where there were two");
    cases::compare(&without.1, &with.1, cases::Tolerance::FUNCTION).unwrap();

    let wrong = Pattern::new("wrong", op("sigmoid", [any("x")]), |b, m| b.sum(m.get("x")?, &[0], true));
    let options = PassOptions { patterns: vec![wrong], ..PassOptions::default() };
    let refused = pass::optimize(&graph, &options).unwrap_err().to_string();
    assert!(refused.contains("`wrong`") && refused.contains("sigmoid"), "{refused}");
}

fn forecast() -> Forecast {
    let time = |s: f64| Figure::predicted(s, "s", "made up for a test");
    Forecast { time: time(123.4e-6), steps: [(vec![0], time(2.5e-6)), (vec![0, 0], time(98.7e-6))].into() }
}

#[test]
fn fusion_opportunities_are_counted_from_shapes() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["N"]).unwrap();
    let y = b.input("y", DType::F32, shape!["N"]).unwrap();
    let s = b.add(x, y).unwrap();
    let m = b.mul(s, x).unwrap();
    b.output("m", m).unwrap();
    let bindings = Bindings::new().with("N", 1000);
    let found = fusion_opportunities(&b.build().unwrap(), &PassOptions::default(), &bindings).unwrap();
    assert_eq!((found.len(), found[0].pattern.as_str()), (1, "add + multiply"));
    // The sum: 4000 bytes written once and read once.
    assert_eq!(found[0].bytes_saved, Some(8000));
}

// Plans

fn each_plan(plan: &Plan, f: &mut dyn FnMut(&Plan)) {
    f(plan);
    for looped in plan.steps.iter().filter_map(|s| s.looped.as_ref()) {
        each_plan(&looped.body, f);
    }
}

#[test]
fn arenas_of_the_case_models_are_tight_and_live_buffers_apart() {
    let (mut worst, mut pairs) = ((0.0, String::new()), 0);
    for case in cases::all() {
        let plan = compile(&case.graph).plan(&case.bindings().unwrap()).unwrap();
        each_plan(&plan, &mut |plan| {
            for (i, a) in plan.buffers.iter().enumerate() {
                assert!(a.offset + a.bytes <= plan.arena_bytes, "{}", case.name);
                for b in &plan.buffers[..i] {
                    let together = a.first <= b.last && b.first <= a.last && a.bytes > 0 && b.bytes > 0;
                    pairs += usize::from(together);
                    let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                    assert!(!together || apart, "{}: {a:?} and {b:?}", case.name);
                }
            }
            let excess = plan.arena_bytes as f64 / plan.live_bytes.max(1) as f64 - 1.0;
            if plan.live_bytes > 0 && excess > worst.0 {
                worst = (excess, case.name.clone());
            }
        });
    }
    assert!(pairs > 100, "only {pairs} pairs of buffers are alive together");
    assert!(worst.0 <= 0.10, "{} needs {:.1}% more than is ever alive", worst.1, worst.0 * 100.0);
}

#[test]
fn a_plan_explains_itself_as_text_json_and_dot_and_says_what_is_predicted() {
    let plan = compile(&rnn().unwrap()).plan(&Bindings::new().with("B", 4).with("T", 5)).unwrap();
    let text = plan.explain(Some(&forecast()));
    for wanted in [
        "120 µs a run",
        "2.5 µs",
        "99 µs",
        "predicted",
        "derived",
        "scan of 5 steps",
        "blocks of 4 rows",
        "gemm packed 4×6×3",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&plan.to_json(Some(&forecast()))).unwrap();
    assert_eq!(json["estimate"]["time"]["provenance"], "predicted");
    assert_eq!(json["steps"][0]["loop"]["steps"], 5);
    assert!(plan.to_dot().starts_with("digraph") && plan.to_dot().contains("cluster_"));
    assert_eq!(plan.memory().provenance, Provenance::Derived);
    let unknown = Forecast { time: Figure::unavailable("s", "test", "no price"), steps: Default::default() };
    assert!(plan.explain(Some(&unknown)).contains("no predicted time: no price"));
    assert!(!plan.explain(None).contains("predicted"));
}

#[test]
fn an_elementwise_step_works_in_place_where_its_input_dies() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape![64, 64]).unwrap();
    let p = b.matmul(x, x).unwrap();
    let q = b.softmax(p, 1).unwrap();
    let r = b.layer_norm(q, None, None, 1e-5).unwrap();
    let y = b.matmul(r, x).unwrap();
    b.output("y", y).unwrap();
    let plan = compile(&b.build().unwrap()).plan(&Bindings::new()).unwrap();
    assert_eq!(plan.steps.iter().filter(|s| s.in_place).count(), 2, "{}", plan.explain(None));
    let values: usize = plan.buffers.iter().filter(|b| !b.scratch).map(|b| b.bytes).sum();
    assert_eq!(values, 64 * 64 * 4, "one buffer for all three");
}

// Running

#[test]
fn one_program_serves_any_batch_and_many_threads() {
    let program = compile(&mlp().unwrap());
    let expected: Vec<(Tensor, Tensor)> = [1, 3, 17]
        .map(|batch| {
            let x = floats(&[batch, 8], |i| (i % 11) as f32 * 0.2 - 1.0);
            let y = program.session().run(&[("x", &x)]).unwrap()[0].clone();
            (x, y)
        })
        .into();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut session = program.session();
                for (x, y) in expected.iter().cycle().take(60) {
                    assert_eq!(&session.run(&[("x", x)]).unwrap()[0], y);
                }
            });
        }
    });
}

#[test]
fn the_reference_is_a_backend_like_any_other() {
    let (graph, x) = (rnn().unwrap(), floats(&[2, 6, 3], |i| (i % 13) as f32 * 0.1 - 0.6));
    let slow = Program::compile_for(&graph, &Reference, &CompileOptions::default()).unwrap();
    let (mut slow, mut fast) = (slow.session(), compile(&graph).session());
    for _ in 0..3 {
        let want = slow.run(&[("x", &x)]).unwrap();
        let got = fast.run(&[("x", &x)]).unwrap();
        assert_eq!((want.len(), got.len()), (2, 2));
        want.iter().zip(got).for_each(|(w, g)| cases::compare(w, g, cases::Tolerance::NETWORK).unwrap());
    }
    assert_eq!(slow.plan().unwrap().backend, "reference");
}

#[test]
fn a_state_of_another_type_is_refused_also_where_its_size_fits() {
    let mut session = compile(&rnn().unwrap()).session();
    let x = floats(&[2, 3, 3], |i| i as f32 * 0.1);
    session.run(&[("x", &x)]).unwrap();
    session.set_state("h", Tensor::new(&[2, 6], &[1i32; 12]).unwrap()).unwrap();
    let error = session.run(&[("x", &x)]).unwrap_err().to_string();
    assert!(error.contains("`h`") && error.contains("i32"), "{error}");
}

#[test]
fn a_loop_worth_it_is_shared_between_threads_and_gives_what_one_thread_gives() {
    let graph = rnn().unwrap();
    let (batch, steps) = (37, 400);
    let x = floats(&[batch, steps, 3], |i| (i % 17) as f32 * 0.1 - 0.8);
    let want = Program::compile(&graph, &CompileOptions::default().threads(1)).unwrap();
    let want: Vec<Tensor> = want.session().run(&[("x", &x)]).unwrap().to_vec();
    for threads in [2, 3] {
        let program = Program::compile(&graph, &CompileOptions::default().threads(threads)).unwrap();
        let mut session = program.session();
        let got = session.run(&[("x", &x)]).unwrap().to_vec();
        let rows = session.plan().unwrap().steps[0].looped.as_ref().unwrap().block_rows.unwrap();
        assert!(rows < batch, "{threads} threads, one block of {rows} rows");
        assert_eq!((got.len(), want.len()), (2, 2));
        for (got, want) in got.iter().zip(&want) {
            assert!(got.shape() == want.shape() && !got.is_empty());
            let pairs = got.values::<f32>().unwrap().iter().zip(want.values::<f32>().unwrap());
            pairs.for_each(|(g, w)| assert!((g - w).abs() <= 1e-6, "{threads} threads: {g}, not {w}"));
        }
    }
}

#[test]
fn a_session_carries_its_state_from_run_to_run() {
    let program = compile(&rnn().unwrap());
    let x = floats(&[2, 6, 3], |i| (i % 13) as f32 * 0.1 - 0.6);
    let h0 = Tensor::zeros(DType::F32, &[2, 6]).unwrap();
    let whole = program.session().run(&[("x", &x), ("h", &h0)]).unwrap().to_vec();
    let part = |from: usize| {
        let rows: Vec<f32> = (0..2)
            .flat_map(|b| x.values::<f32>().unwrap()[(b * 6 + from) * 3..(b * 6 + from + 3) * 3].to_vec())
            .collect();
        Tensor::new(&[2, 3, 3], &rows).unwrap()
    };
    let mut session = program.session();
    session.run(&[("x", &part(0))]).unwrap();
    session.run(&[("x", &part(3))]).unwrap();
    assert_eq!(session.output("hn").unwrap(), &whole[0], "two halves, state carried, same bits");
    assert_eq!(session.state("h"), Some(&whole[0]));
    session.reset();
    session.run(&[("x", &x)]).unwrap();
    assert_eq!(session.output("hn").unwrap(), &whole[0], "from zero again");
    let refused = session.run(&[("x", &floats(&[3, 6, 3], |_| 0.0))]).unwrap_err().to_string();
    assert!(refused.contains("`h`") && refused.contains("reset"), "{refused}");
}

#[test]
fn an_observer_sees_every_step_once_and_in_order() {
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
    let mut session = compile(&mlp().unwrap()).session();
    let mut seen = Seen::default();
    session.run_observed(&[("x", &floats(&[2, 8], |_| 0.5))], Some(&mut seen)).unwrap();
    assert_eq!(seen.0, [('b', 0), ('e', 0), ('b', 1), ('e', 1)]);
}

#[test]
fn a_cancelled_run_stops_and_the_next_one_works() {
    let mut session = compile(&rnn().unwrap()).session();
    let x = floats(&[2, 6, 3], |_| 0.1);
    session.canceller().cancel();
    assert!(matches!(session.run(&[("x", &x)]), Err(Error::Cancelled)));
    assert!(session.run(&[("x", &x)]).is_ok());
    // In the middle of a long one, from another thread.
    let long = floats(&[1, 400_000, 3], |_| 0.1);
    session.reset();
    let canceller = session.canceller();
    let stop = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(5));
        canceller.cancel();
    });
    assert!(matches!(session.run(&[("x", &long)]), Err(Error::Cancelled)));
    stop.join().unwrap();
}

#[test]
fn a_session_beyond_the_budget_is_refused_and_a_smaller_one_runs() {
    let options = CompileOptions::default().threads(1).budget(Budget::bytes(200_000));
    let program = Program::compile(&mlp().unwrap(), &options).unwrap();
    let run = |session: &mut Session, batch: usize| session.run(&[("x", &floats(&[batch, 8], |_| 0.1))]).map(|_| ());
    let mut session = program.session();
    let refused = run(&mut session, 100_000).unwrap_err();
    assert!(matches!(refused, Error::Budget { limit: 200_000, .. }), "{refused}");
    assert!(run(&mut session, 100).is_ok());
    // What a session held comes back with it.
    for _ in 0..100 {
        assert!(run(&mut program.session(), 800).is_ok());
    }
}

// Refusals

fn message(result: Result<impl Sized>) -> String {
    match result {
        Ok(_) => panic!("accepted"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn the_builder_names_node_operation_and_both_shapes() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 8]).unwrap();
    let w = b.weight("w", floats(&[4, 16], |_| 0.0)).unwrap();
    let refused = message(b.named("hidden").matmul(x, w));
    for wanted in ["hidden", "matmul", "f32[B, 8]", "f32[4, 16]", "8 and 4"] {
        assert!(refused.contains(wanted), "no {wanted:?} in {refused:?}");
    }
    let i = b.input("i", DType::I32, shape!["B"]).unwrap();
    assert!(message(b.add(x, i)).contains("cast"));
    assert!(message(b.softmax(x, 2)).contains("2 axes"));
    assert!(message(b.input("x", DType::F32, shape![1])).contains("already"));
    assert!(message(b.input("a\0b", DType::F32, shape![1])).contains("no name"));
    assert!(message(b.slice(x, 1, 4, 9)).contains("4..9"));
    assert!(message(b.input("n", DType::F32, shape![-1])).contains("negative"));
    assert!(message(b.build()).contains("no output"));
}

#[test]
fn a_run_names_the_input_that_does_not_fit() {
    let mut session = compile(&mlp().unwrap()).session();
    let x = floats(&[2, 8], |_| 0.0);
    assert!(message(session.run(&[])).contains("`x`"));
    assert!(message(session.run(&[("z", &x)])).contains("there is `x`"));
    assert!(message(session.run(&[("x", &x), ("x", &x)])).contains("twice"));
    let refused = message(session.run(&[("x", &floats(&[2, 7], |_| 0.0))]));
    assert!(refused.contains("f32[B, 8]") && refused.contains("[2, 7]"), "{refused}");
    assert!(message(session.run(&[("x", &Tensor::zeros(DType::I32, &[2, 8]).unwrap())])).contains("i32"));
    assert!(message(session.run(&[("x", &floats(&[8], |_| 0.0))])).contains("[8]"));
    assert!(session.run(&[("x", &x)]).is_ok(), "a refusal leaves the session usable");
}

#[test]
fn an_index_out_of_range_names_its_node_and_place_inside_a_loop_too() {
    let gather = |b: &mut GraphBuilder, x, i| b.named("lookup").gather(x, i, 0);
    let mut b = GraphBuilder::new();
    let table = b.weight("table", floats(&[5, 2], |i| i as f32)).unwrap();
    let ids = b.input("ids", DType::I32, shape!["N"]).unwrap();
    let y = gather(&mut b, table, ids).unwrap();
    b.output("y", y).unwrap();
    let mut session = compile(&b.build().unwrap()).session();
    let refused = message(session.run(&[("ids", &Tensor::new(&[3], &[0, 4, 5]).unwrap())]));
    assert!(refused.contains("lookup") && refused.contains("5 at position 2"), "{refused}");

    let body = {
        let mut b = GraphBuilder::new();
        let h = b.input("h", DType::F32, shape!["B", 2]).unwrap();
        let i = b.input("i", DType::I32, shape!["B"]).unwrap();
        let t = b.input("t", DType::F32, shape![5, 2]).unwrap();
        let e = gather(&mut b, t, i).unwrap();
        let s = b.add(h, e).unwrap();
        b.output("h", s).unwrap();
        b.build().unwrap()
    };
    let mut b = GraphBuilder::new();
    let ids = b.input("ids", DType::I32, shape!["T", "B"]).unwrap();
    let h = b.input("h", DType::F32, shape!["B", 2]).unwrap();
    let t = b.weight("table", floats(&[5, 2], |i| i as f32)).unwrap();
    let outs = b.scan(body, &[h], &[ids], &[t], 0).unwrap();
    b.output("h", outs[0]).unwrap();
    let mut session = compile(&b.build().unwrap()).session();
    let h = Tensor::zeros(DType::F32, &[2, 2]).unwrap();
    let refused = message(session.run(&[("ids", &Tensor::new(&[2, 2], &[0, 1, -1, 2]).unwrap()), ("h", &h)]));
    assert!(refused.contains("lookup") && refused.contains("-1"), "{refused}");
}

#[test]
fn a_graph_without_a_weights_data_is_refused_before_it_runs() {
    let graph = Graph::from_json(&mlp().unwrap().to_json()).unwrap();
    let refused = message(Program::compile(&graph, &CompileOptions::default()));
    assert!(refused.contains('w') && refused.contains("data"), "{refused}");
}

#[test]
fn what_a_graph_refuses_leaves_no_trace() {
    let mut graph = mlp().unwrap();
    let before = graph.clone();
    let x = graph.input("x").unwrap();
    let input = |name: &str| Op::Input { name: name.into(), ty: graph.ty(x).clone() };
    let weight = Op::Weight { name: "w".into(), ty: graph.ty(x).clone() };
    let nowhere = Value { node: 99, slot: 0 };
    for (op, inputs, problem) in [
        (Op::Unary(Unary::Not), vec![x], "wants truth values"),
        (Op::Unary(Unary::Tanh), vec![], "takes 1 inputs, got 0"),
        (Op::Unary(Unary::Tanh), vec![nowhere], "its input %99 is no value of this graph"),
        (Op::Unary(Unary::Tanh), vec![Value { slot: 1, ..x }], "its input %0.1 is no value of this graph"),
        (Op::Broadcast { shape: shape![1, 1, 1, 1, 1, "B", 8] }, vec![x], "more than 6 axes"),
        (input("x"), vec![], "there is an input `x` already"),
        (input(""), vec![], "is no name"),
        (weight, vec![], "a weight's sizes must be numbers"),
    ] {
        let refused = message(graph.push(op, inputs, "bad"));
        assert!(refused.contains("bad") && refused.contains(problem), "{refused}");
        assert_eq!(graph, before, "{refused}");
    }
    for (name, value, problem) in [
        ("y", x, "there is an output `y` already"),
        ("z", nowhere, "%99 is no value of this graph"),
        ("a\nb", x, "is no name"),
    ] {
        let refused = message(graph.push_output(name, value));
        assert!(refused.contains(problem), "{refused}");
        assert_eq!(graph, before, "{refused}");
    }
    for (input, output, problem) in [("x", "y", "want equal types"), ("z", "y", "`z`"), ("x", "z", "`z`")] {
        let refused = message(graph.push_state(input, output));
        assert!(refused.contains(problem), "{refused}");
        assert_eq!(graph, before, "{refused}");
    }
    for (name, data, problem) in [("w", floats(&[16, 8], |_| 0.0), "f32[8, 16]"), ("v", floats(&[1], |_| 0.0), "`v`")] {
        let refused = message(graph.set_weight(name, data));
        assert!(refused.contains(problem), "{refused}");
        assert_eq!(graph, before, "{refused}");
    }
    graph.verify().unwrap();
}

#[test]
fn a_part_of_an_empty_input_is_empty_wherever_it_begins() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 8]).unwrap();
    let part = b.slice(x, 1, 1, 2).unwrap();
    let y = b.tanh(part).unwrap();
    b.output("y", y).unwrap();
    let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
    let x = Tensor::zeros(DType::F32, &[0, 8]).unwrap();
    assert_eq!(program.session().run(&[("x", &x)]).unwrap()[0].shape(), [0, 1]);
}
