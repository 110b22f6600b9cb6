//! The CPU backend agrees with the reference: every case, on every instruction set of this machine, fused and not, on
//! one thread and several, and again with the same bits. `SCHWANN_CASES` limits them to those whose names contain it, for
//! runs under slow tools.

use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::{self, Case};
use schwann_core::grad::gradient;
use schwann_core::pass::PassOptions;
use schwann_core::{CompileOptions, Program, Tensor};
use schwann_kernels::Isa;
use std::collections::BTreeSet;

fn inputs(case: &Case) -> Vec<(&str, &Tensor)> {
    case.inputs.iter().map(|(name, t)| (name.as_str(), t)).collect()
}

/// Runs it twice; gives how many numbers were compared.
fn check(case: &Case, cpu: &Cpu, passes: PassOptions, expected: &[Tensor]) -> Result<usize, String> {
    let options = CompileOptions::default().passes(passes);
    let program = Program::compile_for(&case.graph, cpu, &options).map_err(|e| format!("compile: {e}"))?;
    let mut session = program.session();
    let got = session.run(&inputs(case)).map_err(|e| format!("run: {e}"))?.to_vec();
    if (got.len(), case.graph.outputs().len()) != (expected.len(), expected.len()) {
        return Err(format!("{} results; {} expected", got.len(), expected.len()));
    }
    let mut numbers = 0;
    for ((want, got), output) in expected.iter().zip(&got).zip(case.graph.outputs()) {
        cases::compare(want, got, case.tolerance).map_err(|e| format!("output `{}`: {e}", output.name))?;
        numbers += want.to_f64().iter().filter(|v| v.is_finite()).count();
    }
    let again = session.run(&inputs(case)).map_err(|e| format!("second run: {e}"))?;
    if again != got {
        return Err("the same input gave other bits the second time".into());
    }
    Ok(numbers)
}

fn agree_on(isa: Isa) {
    let mut failures = Vec::new();
    let (mut cases, mut numbers) = (0, 0);
    let wanted = std::env::var("SCHWANN_CASES").unwrap_or_default();
    let variants = [
        (1, PassOptions::default(), "optimised"),
        (2, PassOptions::default(), "optimised, 2 threads"),
        (1, PassOptions::none(), "as built"),
        (3, PassOptions { fuse: false, ..PassOptions::default() }, "unfused, 3 threads"),
    ];
    for (threads, passes, what) in variants {
        let cpu = Cpu::with_isa(isa, threads).unwrap();
        for case in cases::all().into_iter().filter(|case| case.name.contains(&wanted)) {
            let expected = reference::run(&case.graph, &case.inputs, Precision::Storage).unwrap();
            match check(&case, &cpu, passes.clone(), &expected) {
                Ok(found) => (cases, numbers) = (cases + 1, numbers + found),
                Err(problem) => failures.push(format!("{} ({what}): {problem}", case.name)),
            }
        }
    }
    assert!(failures.len() + cases > 0, "no case has {wanted:?} in its name");
    assert!(!failures.is_empty() || numbers > 0, "{cases} cases, and not a number to compare among them");
    assert!(failures.is_empty(), "{} failures on {isa}:\n{}", failures.len(), failures.join("\n"));
}

/// The case with its first float output differentiated with respect to every float input and weight, seeded at random.
fn differentiated(case: &Case) -> Option<Case> {
    let graph = &case.graph;
    let of = graph.outputs().iter().find(|o| graph.ty(o.value).dtype.is_float())?;
    let given = graph.inputs().filter(|(name, _)| case.inputs.contains_key(*name)).map(|(n, v)| (n, graph.ty(v)));
    let wrt: BTreeSet<&str> =
        given.chain(graph.weight_types()).filter(|(_, ty)| ty.dtype.is_float()).map(|(name, _)| name).collect();
    let wrt: Vec<&str> = wrt.into_iter().collect();
    let with = gradient(graph, &of.name, &wrt).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let ty = graph.ty(of.value);
    let mut inputs = case.inputs.clone();
    if ty.shape.rank() > 0 {
        let shape = ty.shape.eval(&case.bindings().unwrap()).unwrap();
        let seed = cases::random::Random::named(&case.name).floats_as(ty.dtype, &shape, -1.0, 1.0);
        inputs.insert(format!("grad_out.{}", of.name), seed);
    }
    // Gradients are sums over the case's own roundings: a few times its tolerance, and no less than a network's.
    let least = cases::Tolerance::NETWORK;
    let (abs, rel) = (case.tolerance.abs.max(least.abs) * 20.0, case.tolerance.rel.max(least.rel) * 20.0);
    let tolerance = cases::Tolerance { abs, rel };
    Some(Case { name: format!("gradient of {}", case.name), graph: with, inputs, tolerance, ..case.clone() })
}

#[test]
fn gradients_agree_with_the_reference_on_every_instruction_set() {
    let mut failures = Vec::new();
    let (mut checked, mut numbers) = (0, 0);
    for case in cases::all().iter().filter(|c| c.gradient).filter_map(differentiated) {
        let expected = reference::run(&case.graph, &case.inputs, Precision::Storage).unwrap();
        for (threads, &isa) in Isa::available().iter().enumerate() {
            let cpu = Cpu::with_isa(isa, 1 + threads % 2).unwrap();
            checked += 1;
            match check(&case, &cpu, PassOptions::default(), &expected) {
                Ok(found) => numbers += found,
                Err(problem) => failures.push(format!("{} on {isa}: {problem}", case.name)),
            }
        }
    }
    assert!(
        checked > 200 && numbers > 10_000 && failures.is_empty(),
        "{checked} checked, {numbers} numbers, {} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn the_portable_path_agrees_with_the_reference() {
    agree_on(Isa::PORTABLE);
}

#[test]
fn every_instruction_set_of_this_machine_agrees_with_the_reference() {
    // Where there is none but the portable path, that is what the machine's is.
    let all = Isa::available();
    for &isa in &all[1.min(all.len() - 1)..] {
        agree_on(isa);
    }
}
