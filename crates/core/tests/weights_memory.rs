//! Weights are kept once beside what they were loaded as: compiling and running a large layer does not unfold them.
#![cfg(target_os = "linux")]

use schwann_core::{CompileOptions, DType, GraphBuilder, Program, Tensor, shape};

/// The most memory this process ever had, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("Linux says so");
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
}

#[test]
fn a_large_layer_takes_its_packed_weights_and_little_more() {
    let n = 3000;
    let data: Vec<f32> = (0..n * n).map(|i| (i % 17) as f32 * 0.01).collect();
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", n]).unwrap();
    let w = b.weight("w", Tensor::new(&[n, n], &data).unwrap()).unwrap();
    let bias = b.weight("bias", Tensor::new(&[n], &data[..n]).unwrap()).unwrap();
    let y = b.linear(x, w, Some(bias)).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let x = Tensor::new(&[1, n], &data[..n]).unwrap();
    let before = peak();
    let mut session = Program::compile(&graph, &CompileOptions::default().threads(1)).unwrap().session();
    session.run(&[("x", &x)]).unwrap();
    let (more, weights) = (peak() - before, n * n * 4);
    assert!(more < weights * 3 / 2, "{more} bytes beside {weights} of weights");
}
