//! Tests that need a GPU; a driver that plays one on the processor will do.

use crate::promises::{at, compile, every_case_agrees, leaky, numbers, row};
use schwann_core::backend::Choice;
use schwann_core::{CompileOptions, Error, Program};
use schwann_gpu::device::Device;
use schwann_gpu::wgpu_device::{Wgpu, adapters};
use schwann_gpu::{Gpu, register};
use std::sync::{Arc, Mutex, PoisonError};

/// The GPU of this machine, opened once for all tests.
#[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
pub(crate) fn open() -> Option<Arc<Wgpu>> {
    static OPEN: Mutex<Option<Arc<Wgpu>>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if open.is_none() {
        match Wgpu::open(None) {
            Ok(device) => *open = Some(Arc::new(device)),
            Err(why) => {
                assert!(std::env::var_os("SCHWANN_REQUIRE_GPU").is_none(), "a GPU is required: {why}");
                println!("skipped: {why}");
            }
        }
    }
    open.clone()
}

#[test]
fn every_case_agrees_with_the_reference_on_a_gpu() {
    let Some(device) = open() else { return };
    every_case_agrees(&Gpu::new(device));
}

#[test]
fn a_gpu_is_asked_for_by_name_and_one_that_is_not_there_is_a_sentence() {
    register().unwrap();
    register().unwrap();
    let unknown = "wgpu:none-of-these".parse::<Choice>().unwrap_err().to_string();
    assert!(unknown.contains("none-of-these"), "{unknown}");
    let refused = Wgpu::open(Some("none of these")).unwrap_err();
    assert!(matches!(refused, Error::Unknown { .. } | Error::Device { .. }), "{refused}");
    if open().is_none() {
        return;
    }
    for name in adapters() {
        let options = CompileOptions::default().backend(format!("wgpu:{name}").parse().unwrap());
        let program = Program::compile(&leaky().unwrap(), &options).unwrap();
        assert_eq!(program.backend(), format!("wgpu ({name})"));
        let mut session = program.session();
        let got = session.run(&[("x", &row(&[1.0, 2.0])), ("at", &at(1))]).unwrap();
        assert_eq!(numbers(&got[0]), [2.0, 4.0]);
    }
}

#[test]
fn a_buffer_beyond_the_limits_and_a_lost_device_are_errors_with_words() {
    // A device of its own: it is destroyed here.
    if open().is_none() {
        return;
    }
    let device = Arc::new(Wgpu::open(None).unwrap());
    let said = device.buffer("a test", u64::MAX & !3).map(drop).unwrap_err().to_string();
    assert!(said.contains("a test needs 18446744073709551612 bytes"), "{said}");
    let mut session = compile(&leaky().unwrap(), &Gpu::new(Arc::clone(&device))).session();
    let (x, one) = (row(&[1.0, 1.0]), at(1));
    session.run(&[("x", &x), ("at", &one)]).unwrap();
    device.destroy();
    for _ in 0..2 {
        let lost = session.run(&[("x", &x), ("at", &one)]).unwrap_err();
        assert!(matches!(lost, Error::Device { .. }), "{lost}");
    }
    assert!(device.is_lost());
}
