//! Operations of the user's own on devices: texts that are wrong are refused, and loops with kernels that look around run step
//! by step.

use crate::interpreted;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use crate::opened;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::op::custom::Place;
use schwann_core::op::{Custom, Scan};
use schwann_core::pass::{PassOptions, optimize};
use schwann_core::{CompileOptions, DType, Graph, GraphBuilder, Program, Result, Tensor, shape};
use schwann_gpu::Gpu;
use schwann_gpu::device::Limits;
use schwann_gpu::simulated::Simulated;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A kernel of as many results as inputs: one.
fn along(name: &str, look: impl Fn(&Place<'_>, &mut [f64]) + Send + Sync + 'static) -> Custom {
    Custom::places(name, &[(DType::F32, shape!["rows", "n"])], 1, shape!["rows", "n"], look)
}

/// y = name(x)
fn of_one(name: &str) -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", "N"])?;
    let y = b.custom(name, &[x])?;
    b.output("y", y)?;
    b.build()
}

/// A kernel that reads the row above and the neighbours, in a loop and in a loop in a loop.
#[test]
fn a_loop_with_a_kernel_that_looks_around_runs_step_by_step_and_as_the_reference_says() {
    along("above", |p, y| {
        y[0] = p.x(0, &[p.at(0) - 1, p.at(1) + 1]) / 2.0 + p.x(0, &[p.at(0), p.at(1)]) / 4.0;
    })
    .wgsl("y0 = x0(at0 - 1, at1 + 1) / 2.0 + x0(at0, at1) / 4.0;")
    .register()
    .unwrap();
    let step = || {
        let mut body = GraphBuilder::new();
        let state = body.input("state", DType::F32, shape!["B", 3])?;
        let x = body.input("x", DType::F32, shape!["B", 3])?;
        let sum = body.add(state, x)?;
        let next = body.custom("above", &[sum])?;
        body.output("next", next)?;
        body.output("y", next)?;
        body.build()
    };
    let scan = |body: Graph| Scan { body: Arc::new(body), states: 1, sequences: 1, axis: 1, reverse: true };
    let looped = |inner: Graph, steps: &[&str]| {
        let mut b = GraphBuilder::new();
        let first = b.input("state", DType::F32, shape!["B", 3])?;
        let dims: Vec<schwann_core::Dim> = steps.iter().map(|s| (*s).into()).collect();
        let shape = [vec!["B".into()], dims, vec![3.into()]].concat();
        let xs = b.input("x", DType::F32, shape)?;
        let results = b.push_scan(scan(inner), &[first, xs])?;
        b.output("next", results[0])?;
        b.output("y", results[1])?;
        b.build()
    };
    let once = looped(step().unwrap(), &["T"]).unwrap();
    let twice = looped(once.clone(), &["S", "T"]).unwrap();
    for (graph, sizes) in [(once, &[5, 4, 3][..]), (twice, &[5, 2, 4, 3])] {
        let numbers = |n: usize| (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect::<Vec<_>>();
        let state = Tensor::new(&[5, 3], &numbers(15)).unwrap();
        let xs = Tensor::new(sizes, &numbers(sizes.iter().product())).unwrap();
        let given = BTreeMap::from([("state".to_owned(), state), ("x".to_owned(), xs)]);
        let want = reference::run(&graph, &given, Precision::Storage).unwrap();
        let (passed, _) = optimize(&graph, &PassOptions::default()).unwrap();
        for run in [interpreted::run, interpreted::run_close] {
            let got = run(&passed, &given, &Limits::default()).unwrap();
            for (want, got) in want.iter().zip(&got) {
                for (want, got) in want.to_f64().iter().zip(got.to_f64()) {
                    assert!((want - got).abs() < 1e-5, "{got} instead of {want}");
                }
            }
        }
    }
}

#[test]
fn a_definition_that_panics_where_it_stands_for_a_text_is_an_error_with_words() {
    along("narrow_minded", |p, y| {
        y[0] = p.x(0, &[p.at(0), p.at(1)]);
        assert!(y[0] < 100.0, "too large");
    })
    .wgsl("y0 = x0(at0, at1);")
    .register()
    .unwrap();
    let gpu = Gpu::new(Arc::new(Simulated::default()));
    let program = Program::compile_for(&of_one("narrow_minded").unwrap(), &gpu, &CompileOptions::default()).unwrap();
    let mut session = program.session();
    let x = Tensor::new(&[1, 2], &[1.0f32, 200.0]).unwrap();
    let error = session.run(&[("x", &x)]).unwrap_err().to_string();
    assert!(error.contains("its definition panicked at place [0, 1] with n = 2, rows = 1: too large"), "{error}");
    let x = Tensor::new(&[1, 2], &[1.0f32, 2.0]).unwrap();
    assert_eq!(session.run(&[("x", &x)]).unwrap()[0].values::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn without_a_text_there_is_nothing_for_a_gpu() {
    along("silent", |p, y| y[0] = p.x(0, &[0, 0])).register().unwrap();
    let gpu = Gpu::new(Arc::new(Simulated::default()));
    let error = Program::compile_for(&of_one("silent").unwrap(), &gpu, &CompileOptions::default()).unwrap_err();
    assert!(error.to_string().contains("registered without a text for GPUs"), "{error}");
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[test]
fn a_text_that_is_wrong_is_refused_on_a_gpu_with_what_is_wrong() {
    let Some(device) = opened::open() else { return };
    let gpu = Gpu::new(device);
    for (name, text, words) in [
        // At the first place of a row it is what it should be.
        ("off_by_one", "y0 = x0(at0, max(at1 - 1, 0));", "result 0 at place ["),
        ("unsaid", "", "result 0 at place [0, 0] with n ="),
        ("misspelt", "y0 = x0(at0, at2);", "at2"),
        // C converts what WGSL refuses, and then it is wrong.
        ("untyped", "y0 = at0;", if opened::NAME == "wgpu" { "i32" } else { "result 0 at place [" }),
        ("outside", "y0 = x3(at0, at1);", "x3"),
    ] {
        along(name, |p, y| y[0] = p.x(0, &[p.at(0), p.at(1)])).wgsl(text).c(text).register().unwrap();
        let error = Program::compile_for(&of_one(name).unwrap(), &gpu, &CompileOptions::default()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(words), "{name}: expected `{words}` in: {error}");
    }
    along("right", |p, y| y[0] = p.x(0, &[p.at(0), p.at(1)]))
        .wgsl("y0 = x0(at0, at1);")
        .c("y0 = x0(at0, at1);")
        .register()
        .unwrap();
    Program::compile_for(&of_one("right").unwrap(), &gpu, &CompileOptions::default()).unwrap();
}
