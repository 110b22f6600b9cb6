//! What kernels ask of a device: little enough for every one, and in languages that compilers read.

use crate::backward;
use crate::interpreted::{kernels, run};
use schwann_codegen::lang::Kernel;
use schwann_codegen::print::{Options, cuda, entry, wgsl};
use schwann_codegen::verify::verify;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::{self, compare};
use schwann_core::pass::{PassOptions, optimize};
use schwann_gpu::device::Limits;
use std::collections::HashSet;
use std::sync::Arc;

/// WebGPU promises four storage buffers in the most modest of its profiles: three, and the arguments.
const STORAGE_BUFFERS: usize = 4;

/// What WebGPU promises on every device, and what Apple's have; with blocks of one row and of several.
fn limits() -> Vec<Limits> {
    let apple = Limits { threads: 1024, lanes: 32, exact_halves: true, shared_bytes: 32 << 10, ..Limits::default() };
    let several = |limits: &Limits| Limits { parallel_groups: 1, ..limits.clone() };
    vec![several(&Limits::default()), Limits::default(), several(&apple), apple]
}

/// The kernels of all cases and of their gradients, no two alike.
fn every_kernel(limits: &Limits) -> HashSet<Arc<Kernel>> {
    let mut all = HashSet::new();
    for case in cases::all() {
        let backwards = if case.gradient { backward::gradients(&case) } else { vec![] };
        let forwards = (case.name, case.graph, case.inputs);
        for (name, graph, inputs) in [forwards].into_iter().chain(backwards) {
            let (graph, _) = optimize(&graph, &PassOptions::default()).unwrap();
            all.extend(kernels(&graph, &inputs, limits).unwrap_or_else(|e| panic!("{name}: {e}")));
        }
    }
    all
}

#[test]
fn every_kernel_keeps_to_the_limits_of_every_device() {
    for limits in limits() {
        let all = every_kernel(&limits);
        assert!(all.len() > 300, "{} kernels", all.len());
        for kernel in all {
            let resources = verify(&kernel).unwrap();
            let name = &kernel.name;
            assert!(resources.threads <= limits.threads, "{name}: {} threads", resources.threads);
            assert!(resources.shared_bytes <= limits.shared_bytes.into(), "{name}: {} bytes", resources.shared_bytes);
            assert!(resources.buffers < STORAGE_BUFFERS, "{name}: {} buffers", resources.buffers);
            limits.admit("a device", &kernel).unwrap();
        }
    }
}

#[test]
fn every_kernel_is_read_by_compilers_of_other_languages() {
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    // Blocks of several rows, and blocks of one row with threads that exchange values.
    let [several, .., one] = &limits()[..] else { panic!("no limits") };
    for kernel in every_kernel(several).union(&every_kernel(one)) {
        let text = wgsl(kernel, &Options::default());
        let module = naga::front::wgsl::parse_str(&text);
        let module = module.unwrap_or_else(|error| panic!("{}\n{text}", error.emit_to_string(&text)));
        let info =
            Validator::new(ValidationFlags::all(), Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32)
                .validate(&module);
        let info = info.unwrap_or_else(|error| panic!("{}\n{text}", error.emit_to_string(&text)));
        let options =
            naga::back::msl::Options { fake_missing_bindings: true, lang_version: (2, 4), ..Default::default() };
        let metal = naga::back::msl::write_string(&module, &info, &options, &Default::default());
        let (metal, _) = metal.unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(metal.contains(&format!("kernel void {}", entry(kernel))), "{metal}");
        let spirv = naga::back::spv::write_vec(&module, &info, &Default::default(), None);
        assert_eq!(spirv.unwrap_or_else(|error| panic!("{error}\n{text}"))[0], 0x0723_0203);
        let text = cuda(kernel, &Options::default());
        for [open, close] in [['{', '}'], ['(', ')'], ['[', ']']] {
            assert_eq!(text.matches(open).count(), text.matches(close).count(), "{text}");
        }
        assert!(text.contains(&entry(kernel)), "{text}");
    }
}

#[test]
fn what_does_not_fit_workgroup_memory_runs_step_by_step_and_agrees() {
    let (mut fell_back, mut compared) = (0, 0);
    for case in cases::all() {
        let (graph, _) = optimize(&case.graph, &PassOptions::default()).unwrap();
        let count = |shared_bytes: u32| {
            let limits = Limits { shared_bytes, ..Limits::default() };
            let names = kernels(&graph, &case.inputs, &limits).unwrap();
            (names.iter().filter(|kernel| kernel.name == "scan").count(), limits)
        };
        let ((loops, _), (small_loops, limits)) = (count(16 << 10), count(1 << 10));
        let narrow = ["matmul", "attention"].contains(&case.group);
        if small_loops == loops && !narrow {
            continue;
        }
        fell_back += loops - small_loops;
        let expected = reference::run(&case.graph, &case.inputs, Precision::Storage).unwrap();
        let got = run(&graph, &case.inputs, &limits).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for (want, got) in expected.iter().zip(&got) {
            compared += 1;
            let tolerance = case.tolerance.stored_as(want.dtype());
            compare(want, got, tolerance).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        }
    }
    assert!(fell_back >= 5 && compared > 50, "{fell_back} loops fell back, {compared} results were compared");
}
