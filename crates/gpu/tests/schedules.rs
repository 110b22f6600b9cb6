//! Every schedule, run by the interpreter: the case list agrees with the reference, and no thread reads or writes what it
//! should not.

#[path = "mistakes/mod.rs"]
mod mistakes;

use crate::backward;
use crate::interpreted::{kernels, run, run_close, run_watched};
use mistakes::Ledger;
use mistakes::graphs::{self, Tried};
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::random::Random;
use schwann_core::cases::{self, Tolerance, compare};
use schwann_core::op::{Activation, Op, Scan};
use schwann_core::pass::{PassOptions, optimize};
use schwann_core::{Bindings, DType, Error, Graph, GraphBuilder, Tensor};
use schwann_gpu::device::{Limits, Products};
use std::collections::BTreeMap;

type Run = fn(&Graph, &BTreeMap<String, Tensor>, &Limits) -> Result<Vec<Tensor>, Error>;

/// With few workgroups at a time, so that a block of a loop has several rows; with enough for all rows; and with many more,
/// by threads that exchange values and by threads that cannot; by teams of threads that multiply small matrices, by teams that
/// sum over synapses of rows abreast, and with weights in registers. With gaps between values, and in memory that is used again.
fn ways() -> [(Limits, Run); 13] {
    let several = Limits { parallel_groups: 1, ..Limits::default() };
    let lanes = Limits { lanes: 32, exact_halves: true, parallel_groups: 2048, ..Limits::default() };
    let alone = Limits { parallel_groups: 2048, ..Limits::default() };
    let enough = Limits { parallel_groups: 4, ..Limits::default() };
    let usual = Limits { lanes: 32, shared_bytes: 200_000, parallel_groups: 0, ..Limits::default() };
    let abreast = Limits { fast_functions: true, ..usual.clone() };
    let tiles = Limits { products: Products::Split, fast_functions: true, ..usual };
    // Weights in registers: with room for few steps at a time, and with more.
    let kept = Limits { registers: 255, shared_bytes: 4096, ..lanes.clone() };
    let more = Limits { fast_functions: true, shared_bytes: 65536, threads: 1024, ..kept.clone() };
    [
        (kept, run),
        (more.clone(), run),
        (more, run_close),
        (abreast.clone(), run),
        (abreast, run_close),
        (tiles.clone(), run),
        (tiles, run_close),
        (several.clone(), run),
        (several, run_close),
        (lanes.clone(), run),
        (lanes, run_close),
        (alone, run),
        (enough, run),
    ]
}

/// The last state of a loop, as an element of what a loop around it gives: of every step, in both directions, and with the
/// steps along either axis.
#[test]
fn the_last_state_of_a_loop_is_where_the_loop_around_wants_it() {
    for (axis, reverse) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut sums = GraphBuilder::new();
        let (s, x) = (sums.input("s", DType::F32, [3]).unwrap(), sums.input("x", DType::F32, [3]).unwrap());
        let sum = sums.add(s, x).unwrap();
        sums.output("s_next", sum).unwrap();
        sums.output("y", sum).unwrap();
        let mut rows = GraphBuilder::new();
        let start = rows.input("start", DType::F32, [3]).unwrap();
        let row = rows.input("row", DType::F32, [4, 3]).unwrap();
        let outs = rows.scan(sums.build().unwrap(), &[start], &[row], &[], 0).unwrap();
        rows.output("start", start).unwrap();
        rows.output("last", outs[0]).unwrap();
        rows.output("all", outs[1]).unwrap();
        let mut b = GraphBuilder::new();
        let shape = if axis == 0 { [5, 4, 3] } else { [4, 5, 3] };
        let inputs = [b.input("x0", DType::F32, [3]).unwrap(), b.input("x1", DType::F32, shape).unwrap()];
        let scan = Scan { body: rows.build().unwrap().into(), states: 1, sequences: 1, axis, reverse };
        for (i, value) in b.push_scan(scan, &inputs).unwrap().into_iter().enumerate() {
            b.output(&format!("y{i}"), value).unwrap();
        }
        agrees(&b.build().unwrap(), &format!("axis {axis}, reverse {reverse}"));
    }
}

/// What all rows share, stretched to them, as a result of each step.
#[test]
fn a_row_that_all_rows_share_is_stretched_to_each() {
    let mut body = GraphBuilder::new();
    let x = body.input("x", DType::F32, [5, 2]).unwrap();
    let row = body.input("row", DType::F32, [3]).unwrap();
    let (rows, both) = (body.broadcast(row, [5, 3]).unwrap(), body.tanh(x).unwrap());
    let both = body.concat(&[both, rows], 1).unwrap();
    body.output("rows", rows).unwrap();
    body.output("both", both).unwrap();
    let mut b = GraphBuilder::new();
    let (x, row) = (b.input("x0", DType::F32, [4, 5, 2]).unwrap(), b.input("x1", DType::F32, [3]).unwrap());
    for (i, value) in b.scan(body.build().unwrap(), &[], &[x], &[row], 0).unwrap().into_iter().enumerate() {
        b.output(&format!("y{i}"), value).unwrap();
    }
    agrees(&b.build().unwrap(), "shared row");
}

/// A state that is unfolded several times, and that a thread with other rows reads as what is added in each of them.
#[test]
fn threads_wait_for_each_other_before_a_state_that_an_unfolding_reads_is_written() {
    let rows = 16;
    let mut body = GraphBuilder::new();
    let s = body.input("s", DType::F32, [rows, 3]).unwrap();
    let x = body.input("x", DType::F32, [rows, 3]).unwrap();
    let ends = Tensor::new(&[4], &[0, 2, 1, 0]).unwrap();
    let numbers = Tensor::new(&[4], &[0.5f32, -1.0, 0.25, 2.0]).unwrap();
    let (ends, numbers) = (body.constant(ends).unwrap(), body.constant(numbers).unwrap());
    let weights = Tensor::new(&[3, 3], &[0.5f32, -0.25, 0.75, 0.125, 1.0, -0.5, 0.25, -1.0, 0.375]).unwrap();
    let (weights, fifty) = (body.constant(weights).unwrap(), body.scalar(50.0).unwrap());
    let product = body.matmul(s, weights).unwrap();
    let below = body.sigmoid(x).unwrap();
    let below = body.add(below, fifty).unwrap();
    let op = Op::SynapseRatio { activation: Activation::Sigmoid, axis: 1, times: 2 };
    let next = body.push(op, &[x, ends, ends, numbers, numbers, numbers, numbers, s, product, below]).unwrap();
    body.output("s_next", next).unwrap();
    body.output("y", product).unwrap();
    let mut b = GraphBuilder::new();
    let (s, x) = (b.input("x0", DType::F32, [rows, 3]).unwrap(), b.input("x1", DType::F32, [4, rows, 3]).unwrap());
    for (i, value) in b.scan(body.build().unwrap(), &[s], &[x], &[], 0).unwrap().into_iter().enumerate() {
        b.output(&format!("y{i}"), value).unwrap();
    }
    agrees(&b.build().unwrap(), "unfolded state");
}

/// What is the same for all rows may have no elements at all.
#[test]
fn a_loop_may_be_without_synapses() {
    let mut body = GraphBuilder::new();
    let x = body.input("x", DType::F32, [5, 3]).unwrap();
    let none = |dtype| Tensor::zeros(dtype, &[0]).unwrap();
    let (ends, numbers) = (body.constant(none(DType::I32)).unwrap(), body.constant(none(DType::F32)).unwrap());
    let op = Op::SynapseSum { activation: Activation::Tanh, axis: 1, sums: 1, segments: 2 };
    let sums = body.push(op, &[x, ends, ends, numbers, numbers, numbers]).unwrap();
    body.output("sums", sums).unwrap();
    let mut b = GraphBuilder::new();
    let x = b.input("x0", DType::F32, [4, 5, 3]).unwrap();
    for value in b.scan(body.build().unwrap(), &[], &[x], &[], 0).unwrap() {
        b.output("y", value).unwrap();
    }
    agrees(&b.build().unwrap(), "no synapses");
}

/// Runs a graph without passes on random inputs, in every way.
fn agrees(graph: &Graph, name: &str) {
    let mut random = Random::new(7);
    let mut given = |value| random.floats(&graph.ty(value).shape.eval(&Bindings::new()).unwrap(), -1.0, 1.0);
    let inputs: BTreeMap<String, Tensor> =
        graph.inputs().map(|(name, value)| (name.to_owned(), given(value))).collect();
    let expected = reference::run(graph, &inputs, Precision::Storage).unwrap();
    for (limits, run) in ways() {
        let got = run(graph, &inputs, &limits).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (want, got) in expected.iter().zip(&got) {
            compare(want, got, Tolerance::CHAIN).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

#[test]
fn every_gradient_agrees_with_the_reference() {
    let (mut failed, mut compared) = (vec![], 0);
    for case in cases::all().iter().filter(|case| case.gradient) {
        for (name, graph, inputs) in backward::gradients(case) {
            let expected = reference::run(&graph, &inputs, Precision::Storage).unwrap();
            let (graph, _) = optimize(&graph, &PassOptions::default()).unwrap();
            for (limits, run) in ways() {
                let got = match run(&graph, &inputs, &limits) {
                    Ok(got) => got,
                    Err(e) => {
                        failed.push(format!("{name}: {e}"));
                        continue;
                    }
                };
                for (want, got) in expected.iter().zip(&got) {
                    compared += 1;
                    if let Err(e) = compare(want, got, backward::tolerance(want)) {
                        failed.push(format!("{name}: {e}"));
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of {compared}:\n{}", failed.len(), failed.join("\n"));
    assert!(compared > 500, "{compared} results were compared");
}

#[test]
fn every_case_agrees_with_the_reference() {
    let only = std::env::var("SCHWANN_CASE").ok();
    let mut failed = vec![];
    let mut compared = 0;
    for case in cases::all() {
        if only.as_ref().is_some_and(|only| !case.name.contains(only.as_str())) {
            continue;
        }
        let expected = reference::run(&case.graph, &case.inputs, Precision::Storage).unwrap();
        for options in [PassOptions::default(), PassOptions::none()] {
            let (graph, _) = optimize(&case.graph, &options).unwrap();
            for (limits, run) in ways() {
                match run(&graph, &case.inputs, &limits) {
                    Err(e) => failed.push(format!("{}: {e}", case.name)),
                    Ok(got) => {
                        for (want, got) in expected.iter().zip(&got) {
                            compared += 1;
                            let tolerance = case.tolerance.stored_as(want.dtype());
                            if let Err(e) = compare(want, got, tolerance) {
                                failed.push(format!("{}: {e}", case.name));
                            }
                        }
                    }
                }
            }
        }
    }
    failed.dedup();
    assert!(failed.is_empty(), "{} of {compared}:\n{}", failed.len(), failed.join("\n"));
    assert!(only.is_some() || compared > 2000, "{compared} results were compared");
}

/// The same inputs with other sizes for whatever is a symbol: elements are taken again from the first one on, floats a
/// little moved. None where there is no symbol, or not all of them go together.
fn resized(tried: &Tried, sizes: [usize; 2]) -> Option<BTreeMap<String, Tensor>> {
    let mut known = Bindings::new();
    tried.graph.bind(|name| tried.inputs.get(name).map(Tensor::shape), &mut known).ok()?;
    known.iter().next()?;
    let bindings = (known.iter().zip(sizes.into_iter().cycle()))
        .fold(Bindings::new(), |all, ((symbol, _), size)| all.with(symbol, size));
    let mut inputs = BTreeMap::new();
    let mut random = Random::named(&tried.name);
    for (name, value) in tried.graph.inputs() {
        let ty = tried.graph.ty(value);
        let old = tried.inputs.get(name)?.to_f64();
        let shape = ty.shape.eval(&bindings).ok()?;
        let count = shape.iter().product();
        if old.is_empty() && count > 0 {
            return None;
        }
        let move_by = if ty.dtype.is_float() { 1e-2 } else { 0.0 };
        let data: Vec<f64> = (0..count).map(|i| old[i % old.len()] * (1.0 + random.float(0.0, move_by))).collect();
        inputs.insert(name.to_owned(), Tensor::from_f64(ty.dtype, &shape, &data).ok()?);
    }
    Some(inputs)
}

/// A graph and inputs for it, in which each dispatch is tried with mistakes.
fn try_mistakes(
    ledger: &mut Ledger,
    name: &str,
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<(), Error> {
    let mut result = Ok(());
    // Blocks of several rows and of one, by threads alone and with exchanges. Few workgroups along an axis, so that what is
    // more goes along another one.
    let ways = [(1, 2, 1), (1, 3, 1), (4, 2, 1), (4, 3, 1), (2048, 2, 1), (2048, 3, 1), (2048, 2, 4), (2048, 3, 4)];
    let ways: Vec<Limits> = (ways.into_iter())
        .map(|(parallel_groups, groups, lanes)| Limits { parallel_groups, groups, lanes, ..Limits::default() })
        .collect();
    for limits in ways {
        if kernels(graph, inputs, &limits)?.iter().all(|kernel| ledger.is_done(kernel)) {
            continue;
        }
        // Faults are what some graphs are for, so the rest is tried all the same.
        result =
            run_watched(graph, inputs, &limits, Some(&mut |ran| ledger.try_mistakes(name, ran))).map(drop).and(result);
    }
    result
}

/// Mistakes in the kernels of all cases and of their gradients.
#[expect(clippy::print_stdout, reason = "that none is missed is worth what was tried")]
fn notices_every_mistake(passes: &PassOptions) {
    let begin = std::time::Instant::now();
    let mut ledger = Ledger::default();
    let cases = cases::all();
    let mut all = graphs::all();
    let mistaken = all.len();
    let backwards = all
        .iter()
        .filter(|tried| tried.gradient)
        .flat_map(|tried| backward::gradients_of(&tried.name, &tried.graph, &tried.inputs));
    let backwards = backwards.chain(cases.iter().filter(|case| case.gradient).flat_map(backward::gradients));
    let backwards: Vec<Tried> = backwards.map(|(name, graph, inputs)| Tried::of(&name, &graph, &inputs)).collect();
    all.extend(cases.iter().map(|case| Tried::of(&case.name, &case.graph, &case.inputs)));
    all.extend(backwards);
    let (mistakes, cases) = all.split_at(mistaken);
    // What is made for mistakes shows those in kernels that passes find, and in those that a graph without passes names.
    let both = [PassOptions::default(), PassOptions::none()];
    let tried = mistakes.iter().flat_map(|tried| both.iter().map(move |passes| (tried, passes)));
    for (tried, passes) in tried.chain(cases.iter().map(|tried| (tried, passes))) {
        let (graph, _) = optimize(&tried.graph, passes).unwrap();
        let ran = try_mistakes(&mut ledger, &tried.name, &graph, &tried.inputs);
        assert!(ran.is_ok() || tried.refused, "{}: {ran:?}", tried.name);
        for sizes in [[48, 3], [3, 48], [33, 2], [2, 33]] {
            if let Some(inputs) = resized(tried, sizes) {
                let name = format!("{} with {sizes:?}", tried.name);
                let _ = try_mistakes(&mut ledger, &name, &graph, &inputs);
            }
        }
    }
    let missed = ledger.missed();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    missed.iter().for_each(|(mistake, _)| *counts.entry(format!("{mistake:?}")).or_default() += 1);
    let (schedules, mistakes) = ledger.count();
    println!("{mistakes} mistakes in {schedules} schedules, {} runs, {:?}", ledger.runs, begin.elapsed());
    let all: Vec<String> = missed.into_iter().map(|(_, told)| told).collect();
    assert!(all.is_empty(), "missed {counts:?}:\n{}", all.join("\n"));
}

#[test]
fn every_mistake_in_a_kernel_is_noticed() {
    notices_every_mistake(&PassOptions::default());
}

#[test]
fn every_mistake_in_a_kernel_is_noticed_without_passes() {
    notices_every_mistake(&PassOptions::none());
}
