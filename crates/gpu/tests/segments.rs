//! Long lists that are summed by segment, and what is built on that: the entropy of bytes, from the definition that the
//! CPU has.

use crate::interpreted::run;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::random::Random;
use schwann_core::pass::{PassOptions, optimize};
use schwann_core::{DType, Graph, GraphBuilder, Tensor, shape};
use schwann_gpu::device::Limits;
use std::collections::BTreeMap;

/// Sums of numbers by segment; both are given.
fn sums(dtype: DType, segments: usize) -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", dtype, shape!["N"]).unwrap();
    let segment = b.input("segment", DType::I32, shape!["N"]).unwrap();
    let y = b.segment_sum(x, segment, 0, segments).unwrap();
    b.output("y", y).unwrap();
    b.build().unwrap()
}

#[test]
fn long_lists_are_summed_in_the_order_of_their_numbers() {
    for (numbers, segments) in [(256, 256), (1000, 300), (1025, 257), (3000, 1024), (300, 5000)] {
        for dtype in [DType::F32, DType::I32, DType::F16] {
            let mut random = Random::named(&format!("{numbers} into {segments}"));
            let inputs = BTreeMap::from([
                ("x".to_owned(), random.any(dtype, &[numbers])),
                ("segment".to_owned(), random.ints(&[numbers], 0, segments as i32)),
            ]);
            let graph = sums(dtype, segments);
            let want = reference::run(&graph, &inputs, Precision::Storage).unwrap();
            let got = run(&graph, &inputs, &Limits::default()).unwrap();
            for (at, (want, got)) in want[0].to_f64().iter().zip(got[0].to_f64()).enumerate() {
                let near = (want - got).abs() <= 1e-4 + 1e-3 * want.abs() || want.is_nan() && got.is_nan();
                assert!(near || *want == got, "{dtype}, {numbers} into {segments}, {at}: {got} instead of {want}");
            }
            assert_eq!(run(&graph, &inputs, &Limits::default()).unwrap()[0].bytes(), got[0].bytes());
        }
    }
}

#[test]
fn a_segment_that_is_out_of_range_is_found_wherever_it_is() {
    for (at, bad) in [(0, -1), (999, 300), (512, i32::MIN), (63, i32::MAX)] {
        let mut segment = vec![7; 1000];
        segment[at] = bad;
        let inputs = BTreeMap::from([
            ("x".to_owned(), Tensor::zeros(DType::F32, &[1000]).unwrap()),
            ("segment".to_owned(), Tensor::new(&[1000], &segment).unwrap()),
        ]);
        let error = run(&sums(DType::F32, 300), &inputs, &Limits::default()).unwrap_err().to_string();
        assert!(error.contains("a segment is out of range"), "{error}");
    }
}

#[test]
fn the_entropy_of_bytes_is_as_on_the_cpu_and_exact_at_both_ends() {
    let (windows, length) = (6usize, 512usize);
    let mut random = Random::new(9);
    let mut bytes: Vec<u8> = (0..windows * length).map(|i| random.int(0, 1 + (i / length * 50) as i32) as u8).collect();
    bytes[..length].fill(200);
    (0..length).for_each(|i| bytes[length + i] = (i % 256) as u8);
    let first: Vec<f32> = (0..windows).map(|w| 256.0 * w as f32).collect();
    let inputs = BTreeMap::from([
        ("bytes".to_owned(), Tensor::new(&[windows, length], &bytes).unwrap()),
        ("first".to_owned(), Tensor::new(&[windows, 1], &first).unwrap()),
    ]);
    let graph = schwann_nn::entropy::graph().unwrap();
    let want = reference::run(&graph, &inputs, Precision::Storage).unwrap()[0].to_f64();
    for options in [PassOptions::default(), PassOptions::none()] {
        let (graph, _) = optimize(&graph, &options).unwrap();
        let got = run(&graph, &inputs, &Limits::default()).unwrap()[0].to_f64();
        assert_eq!(got[..2], [0.0, 1.0]);
        for (want, got) in want.iter().zip(&got) {
            assert!((want - got).abs() < 2e-6, "{got} instead of {want}");
        }
    }
}
