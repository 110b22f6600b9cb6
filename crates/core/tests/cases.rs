//! The case list is sound, and the reference gives on every case something that can be compared.

use schwann_core::backend::reference::{HostValue, Precision, run, run_f64};
use schwann_core::cases::{self, Case, Tolerance, compare};
use schwann_core::{Graph, Tensor};
use std::collections::{BTreeMap, BTreeSet};

fn reference(case: &Case) -> Vec<Tensor> {
    run(&case.graph, &case.inputs, Precision::Storage).unwrap_or_else(|e| panic!("{}: {e}", case.name))
}

#[test]
fn every_case_verifies_under_a_name_of_its_own() {
    let (all, speed) = (cases::all(), cases::speed());
    assert!(all.len() >= 260, "only {} cases", all.len());
    let mut names = BTreeSet::new();
    for case in all.iter().chain(&speed) {
        assert!(names.insert(case.name.clone()), "two cases are called {}", case.name);
        assert!(case.name.starts_with(case.group), "{} is in group {}", case.name, case.group);
        case.graph.verify().unwrap_or_else(|e| panic!("{}: {e}", case.name));
    }
    assert!(speed.iter().all(|c| c.speed));
}

#[test]
fn the_reference_runs_every_case_and_gives_the_types_promised() {
    for case in cases::all() {
        let outputs = reference(&case);
        let bindings = case.bindings().unwrap();
        assert_eq!(outputs.len(), case.graph.outputs().len(), "{}", case.name);
        for (got, ty) in outputs.iter().zip(case.graph.output_types()) {
            assert_eq!(got.dtype(), ty.dtype, "{}", case.name);
            assert_eq!(got.shape(), ty.shape.eval(&bindings).unwrap(), "{}", case.name);
        }
        // A second run gives the same bits: nothing depends on anything but the inputs.
        assert_eq!(outputs, reference(&case), "{}", case.name);
    }
}

#[test]
fn the_reference_runs_the_large_cases() {
    let large = cases::speed();
    assert!(large.len() > 10, "only {} cases to time", large.len());
    for case in large {
        let finite = |t: &Tensor| t.to_f64().iter().all(|v| v.is_finite());
        assert!(reference(&case).iter().all(|t| !t.is_empty() && finite(t)), "{}", case.name);
    }
}

/// NaN meets NaN, and nothing meets nothing, whatever else a backend does wrong: a case of only that tries out little, unless
/// that is its point.
#[test]
fn every_case_has_numbers_to_compare_but_those_about_nan_and_nothing() {
    let about = ["empty", "nothing", "nan", "no-", "0x", "x0", "f32/0", "b0-", "t0-", "batch-0", "2-to-2", "by-0"];
    let mut odd = vec![];
    for case in cases::all() {
        let numbers = |t: &Tensor| t.to_f64().iter().any(|v| !v.is_nan());
        if !reference(&case).iter().any(numbers) && !about.iter().any(|word| case.name.contains(word)) {
            odd.push(case.name);
        }
    }
    assert!(odd.is_empty(), "not a number among the results of {odd:#?}");
}

#[test]
fn gradient_cases_are_small_floats_and_stay_close_without_rounding() {
    let mut count = 0;
    for case in cases::all().iter().filter(|c| c.gradient) {
        count += 1;
        let inputs: BTreeMap<String, HostValue> =
            case.inputs.iter().map(|(n, t)| (n.clone(), HostValue::from_tensor(t))).collect();
        let elements: usize = case.inputs.values().chain(case.graph.weights().values()).map(Tensor::len).sum();
        assert!(elements <= 700, "{}: {elements} elements are too many for finite differences", case.name);
        let unrounded = run_f64(&case.graph, &inputs).unwrap();
        for (want, got) in unrounded.iter().zip(reference(case)) {
            assert!(got.dtype().is_float(), "{}: gives {got}", case.name);
            assert!(want.data.iter().all(|v| v.is_finite()), "{}: not finite", case.name);
            compare(&want.to_tensor().unwrap(), &got, case.tolerance).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        }
    }
    assert!(count >= 150, "only {count} cases for gradients");
}

#[test]
fn every_graph_reads_back_from_json_and_computes_the_same() {
    for case in cases::all() {
        let mut read = Graph::from_json(&case.graph.to_json()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for (name, data) in case.graph.weights() {
            read.set_weight(name, data.clone()).unwrap();
        }
        assert_eq!(read, case.graph, "{}", case.name);
        assert_eq!(run(&read, &case.inputs, Precision::Storage).unwrap(), reference(&case), "{}", case.name);
    }
}

#[test]
fn every_graph_prints_and_has_a_cost() {
    for case in cases::all().into_iter().chain(cases::speed()) {
        assert!(!case.graph.to_string().is_empty(), "{}", case.name);
        assert!(case.graph.to_dot().contains("digraph"), "{}", case.name);
        let cost = case.graph.cost(&case.bindings().unwrap()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        if case.speed {
            assert!(cost.bytes() > 0, "{}: {cost:?}", case.name);
        }
    }
}

#[test]
fn comparing_finds_what_differs() {
    let t = |values: &[f32]| Tensor::new(&[2, 2], values).unwrap();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let loose = Tolerance { abs: 0.1, rel: 0.0 };
    let expected = t(&[1.0, nan, inf, -inf]);
    assert!(compare(&expected, &t(&[1.05, nan, inf, -inf]), loose).is_ok());
    assert!(compare(&t(&[0.0; 4]), &t(&[-0.0; 4]), Tolerance::EXACT).is_ok());
    for wrong in [[1.2, nan, inf, -inf], [1.0, 0.0, inf, -inf], [nan, nan, inf, -inf], [1.0, nan, -inf, -inf]] {
        assert!(compare(&expected, &t(&wrong), loose).is_err(), "{wrong:?}");
    }
    // A large finite number is no infinity, and an infinity no large number.
    assert!(compare(&expected, &t(&[1.0, nan, f32::MAX, -inf]), Tolerance { abs: 1.0, rel: 1.0 }).is_err());
    assert!(compare(&t(&[f32::MAX; 4]), &t(&[inf; 4]), Tolerance { abs: 1.0, rel: 1.0 }).is_err());
    let message = compare(&expected, &t(&[1.0, nan, inf, 5.0]), loose).unwrap_err();
    assert!(message.contains("[1, 1]") && message.contains('5') && message.contains("-inf"), "{message}");
    assert!(compare(&expected, &Tensor::new(&[4], &[0.0f32; 4]).unwrap(), loose).is_err());
    assert!(compare(&expected, &Tensor::new(&[2, 2], &[0i32; 4]).unwrap(), loose).is_err());
}
