//! Tests that need a GPU; a driver that plays one on the processor will do.

use super::promises::{at, compile, every_case_agrees, leaky, numbers, row};
use crate::backward;
use crate::opened::{Card, NAME, adapters, open};
use schwann_core::backend::Choice;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::{self, compare};
use schwann_core::{Changing, CompileOptions, Error, Program, Tensor};
use schwann_gpu::device::Device;
use schwann_gpu::{Gpu, register};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn after_warm_up_nothing_is_made_on_a_gpu_and_changed_weights_are_seen() {
    // Devices of its own: others' runs would count as well.
    let opened = |share| open().map(|_| Arc::new(Card::open_as(None, share).unwrap()));
    for device in [true, false].into_iter().filter_map(opened) {
        let options = CompileOptions::default().changing(Changing::All);
        let program = Program::compile_for(&leaky().unwrap(), &Gpu::new(Arc::clone(&device)), &options).unwrap();
        let mut session = program.session();
        let (x, one) = (row(&[1.0, 1.0]), at(1));
        let mut run = |rows: usize| {
            let x = Tensor::new(&[rows, 2], &vec![1.0f32; 2 * rows]).unwrap();
            session.reset();
            (0..4).for_each(|_| drop(session.run(&[("x", &x), ("at", &one)]).unwrap().to_vec()));
            let counts = || {
                let tally = device.tally();
                [&tally.buffers, &tally.compilations, &tally.copies].map(|count| count.load(Ordering::SeqCst))
            };
            let before = counts();
            for i in 5..10 {
                let got = session.run(&[("x", &x), ("at", &one)]).unwrap();
                assert_eq!(numbers(&got[1]), vec![i as f32; 2 * rows]);
            }
            assert_eq!(counts(), before, "{rows} rows: buffers, compilations, copies");
            before[1]
        };
        let compiled = run(1);
        assert_eq!([run(2), run(100)], [compiled; 2], "another number of rows compiles nothing");
        session.reset();
        session.run(&[("x", &x), ("at", &one)]).unwrap();
        program.set_weights(&[("table", &Tensor::new(&[3], &[0.0f32, 7.0, 0.0]).unwrap())]).unwrap();
        assert_eq!(numbers(&session.run(&[("x", &x), ("at", &one)]).unwrap()[1]), [8.0, 8.0]);
    }
}

#[test]
fn every_case_agrees_with_the_reference_on_a_gpu() {
    let Some(device) = open() else { return };
    every_case_agrees(&Gpu::new(device));
}

/// Every eighth case's, since a driver takes its time to compile them all; with `SCHWANN_LONG` every one's.
#[test]
fn gradients_agree_with_the_reference_on_a_gpu_and_give_the_same_bits_twice() {
    let Some(gpu) = open().map(Gpu::new) else { return };
    let mut failed = vec![];
    let step = if std::env::var_os("SCHWANN_LONG").is_some() { 1 } else { 8 };
    for case in cases::all().iter().filter(|case| case.gradient).step_by(step) {
        for (name, graph, inputs) in backward::gradients(case) {
            let expected = reference::run(&graph, &inputs, Precision::Storage).unwrap();
            let mut session = compile(&graph, &gpu).session();
            let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, value)| (name.as_str(), value)).collect();
            let first = session.run(&given).unwrap_or_else(|e| panic!("{name}: {e}")).to_vec();
            for (want, got) in expected.iter().zip(&first) {
                if let Err(e) = compare(want, got, backward::tolerance(want)) {
                    failed.push(format!("{name}: {e}"));
                }
            }
            let again = session.run(&given).unwrap();
            assert!(first.iter().zip(again).all(|(a, b)| a.bytes() == b.bytes()), "{name}: not the same bits twice");
        }
    }
    assert!(failed.is_empty(), "{}:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn a_gpu_is_asked_for_by_name_and_one_that_is_not_there_is_a_sentence() {
    register().unwrap();
    register().unwrap();
    let unknown = format!("{NAME}:none-of-these").parse::<Choice>().unwrap_err().to_string();
    assert!(unknown.contains("none-of-these"), "{unknown}");
    let refused = Card::open(Some("none of these")).unwrap_err();
    assert!(matches!(refused, Error::Unknown { .. } | Error::Device { .. }), "{refused}");
    if open().is_none() {
        return;
    }
    for name in adapters() {
        let options = CompileOptions::default().backend(format!("{NAME}:{name}").parse().unwrap());
        let program = Program::compile(&leaky().unwrap(), &options).unwrap();
        // What is short for a GPU with some products has the GPU's name too.
        let told = program.backend();
        assert!(told.starts_with(&format!("{NAME} (")) && told.ends_with(&format!("{name})")), "{told}");
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
    let device = Arc::new(Card::open(None).unwrap());
    let said = device.buffer("a test", !3).map(drop).unwrap_err().to_string();
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
