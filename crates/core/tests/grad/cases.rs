//! The case list that every backend runs.

use super::*;
use schwann_core::cases::{Case, all};
use schwann_core::{Error, Op};
use std::collections::BTreeSet;

/// The float inputs that the case supplies, and the float weights.
fn floats(case: &Case) -> Vec<&str> {
    let inputs = case.graph.inputs().filter(|(name, _)| case.inputs.contains_key(*name));
    let inputs = inputs.map(|(name, v)| (name, case.graph.ty(v)));
    let names = inputs.chain(case.graph.weight_types()).filter(|(_, ty)| ty.dtype.is_float()).map(|(name, _)| name);
    names.collect::<BTreeSet<_>>().into_iter().collect()
}
fn host_inputs(case: &Case) -> Inputs {
    case.inputs.iter().map(|(name, t)| (name.clone(), HostValue::from_tensor(t))).collect()
}

#[test]
fn every_smooth_case_agrees_with_differences() {
    let cases: Vec<Case> = all().into_iter().filter(|c| c.gradient).collect();
    assert!(cases.len() > 50, "{}", cases.len());
    for case in &cases {
        let outputs: Vec<_> = case.graph.outputs().iter().filter(|o| case.graph.ty(o.value).dtype.is_float()).collect();
        assert!(!outputs.is_empty(), "case {} has no output with a gradient", case.name);
        for of in outputs {
            let checked = std::panic::catch_unwind(|| {
                compare(&case.graph, &of.name, &floats(case), &host_inputs(case), 8, 1e-4);
            });
            assert!(checked.is_ok(), "case {}", case.name);
        }
    }
}

#[test]
fn every_case_has_a_well_formed_gradient_that_runs_or_a_named_refusal() {
    let (mut ran, mut refused) = (0, 0);
    for case in all() {
        let may_refuse = |op: &Op| matches!(op, Op::Quantize { .. } | Op::Scan(_) | Op::Custom { .. });
        let may_refuse = case.graph.nodes().iter().any(|n| may_refuse(&n.op));
        for (of, ty) in case.graph.outputs().iter().zip(case.graph.output_types()) {
            let result = gradient(&case.graph, &of.name, &floats(&case));
            if !ty.dtype.is_float() {
                assert!(matches!(result, Err(Error::Gradient { .. })), "case {}", case.name);
                refused += 1;
                continue;
            }
            let with = match result {
                Ok(with) => with,
                Err(Error::Gradient { .. }) if may_refuse => continue,
                Err(e) => panic!("case {}: {e}", case.name),
            };
            with.verify().unwrap_or_else(|e| panic!("case {}: {e}", case.name));
            let mut inputs = host_inputs(&case);
            if ty.shape.rank() > 0 {
                let shape = ty.shape.eval(&case.bindings().unwrap()).unwrap();
                inputs.insert(format!("grad_out.{}", of.name), Random(1).value(ty.dtype, shape, -1.0, 1.0));
            }
            run_f64(&with, &inputs).unwrap_or_else(|e| panic!("case {}: {e}", case.name));
            ran += 1;
        }
    }
    assert!(ran > 500 && refused > 50, "{ran} gradients ran, {refused} were refused");
}
