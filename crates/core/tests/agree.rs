//! The CPU backend agrees with the reference: every case, on every instruction set of this machine, fused and not, on
//! one thread and several, and again with the same bits.

use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::{self, Case};
use schwann_core::pass::PassOptions;
use schwann_core::{CompileOptions, Program, Tensor};
use schwann_kernels::Isa;

fn inputs(case: &Case) -> Vec<(&str, &Tensor)> {
    case.inputs.iter().map(|(name, t)| (name.as_str(), t)).collect()
}

fn check(case: &Case, cpu: &Cpu, passes: PassOptions, expected: &[Tensor]) -> Result<(), String> {
    let options = CompileOptions::default().passes(passes);
    let program = Program::compile_for(&case.graph, cpu, &options).map_err(|e| format!("compile: {e}"))?;
    let mut session = program.session();
    let got = session.run(&inputs(case)).map_err(|e| format!("run: {e}"))?.to_vec();
    for ((want, got), output) in expected.iter().zip(&got).zip(case.graph.outputs()) {
        cases::compare(want, got, case.tolerance).map_err(|e| format!("output `{}`: {e}", output.name))?;
    }
    let again = session.run(&inputs(case)).map_err(|e| format!("second run: {e}"))?;
    if again != got {
        return Err("the same input gave other bits the second time".into());
    }
    Ok(())
}

fn agree_on(isa: Isa) {
    let mut failures = Vec::new();
    let variants = [
        (1, PassOptions::default(), "optimised"),
        (2, PassOptions::default(), "optimised, 2 threads"),
        (1, PassOptions::none(), "as built"),
        (3, PassOptions { fuse: false, ..PassOptions::default() }, "unfused, 3 threads"),
    ];
    for (threads, passes, what) in variants {
        let cpu = Cpu::with_isa(isa, threads).unwrap();
        for case in cases::all() {
            let expected = reference::run(&case.graph, &case.inputs, Precision::Storage).unwrap();
            if let Err(problem) = check(&case, &cpu, passes.clone(), &expected) {
                failures.push(format!("{} ({what}): {problem}", case.name));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures on {isa}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_portable_path_agrees_with_the_reference() {
    agree_on(Isa::PORTABLE);
}

#[test]
fn every_instruction_set_of_this_machine_agrees_with_the_reference() {
    for &isa in &Isa::available()[1..] {
        agree_on(isa);
    }
}
