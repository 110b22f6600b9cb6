//! Weights are kept once: a model takes its packed weights and little more, whether they come from a file or are worked
//! on ahead. One test, since the peak of memory is the whole process'.
#![cfg(target_os = "linux")]

use schwann_core::{CompileOptions, DType, Graph, GraphBuilder, Program, Result, Tensor, Value, io, shape};

/// A line of what Linux says of this process, in bytes.
fn status(line: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(line)).expect("Linux says so");
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
}

/// The most memory that `work` takes at any time, its mapped files included, and what of it stays.
fn more_for<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    std::fs::write("/proc/self/clear_refs", "5").expect("Linux begins to watch for the peak anew");
    let before = status("VmRSS:");
    let result = work();
    (result, status("VmHWM:").saturating_sub(before), status("VmRSS:").saturating_sub(before))
}

/// 36 MB: far more than anything else here takes, and more than an allocator keeps for later.
const N: usize = 3000;
const WEIGHTS: usize = N * N * 4;

fn numbers(shape: &[usize]) -> Tensor {
    let mut tensor = Tensor::zeros(DType::F32, shape).unwrap();
    tensor.values_mut::<f32>().unwrap().iter_mut().enumerate().for_each(|(i, x)| *x = (i % 17) as f32 * 0.01);
    tensor
}

/// x times what is made of weights.
fn graph(dtype: DType, make: impl FnOnce(&mut GraphBuilder) -> Result<Value>) -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", dtype, shape!["B", N]).unwrap();
    let w = make(&mut b).unwrap();
    let y = b.matmul(x, w).unwrap();
    b.output("y", y).unwrap();
    b.build().unwrap()
}

/// The most bytes that compiling and running takes, and those that the session then has.
fn compile_and_run(graph: &Graph) -> (usize, usize) {
    let x = Tensor::from_f64(graph.input_types()[0].dtype, &[1, N], &vec![0.5; N]).unwrap();
    let (_, most, kept) = more_for(|| {
        let mut session = Program::compile(graph, &CompileOptions::default().threads(1)).unwrap().session();
        session.run(&[("x", &x)]).unwrap();
        session
    });
    (most, kept)
}

#[test]
fn a_model_takes_its_packed_weights_and_little_more() {
    let w = numbers(&[N, N]);
    let whole = |b: &mut GraphBuilder| b.weight("w", w.clone());
    let halves = |b: &mut GraphBuilder| -> Result<[Value; 2]> {
        Ok([b.weight("top", numbers(&[N / 2, N]))?, b.weight("bottom", numbers(&[N / 2, N]))?])
    };
    // What is read as it is, is packed, and nothing else; a transposed matrix is packed as well as another.
    let plain = graph(DType::F32, whole);
    let turned = graph(DType::F32, |b| whole(b).and_then(|w| b.transpose(w, &[1, 0])));
    for (name, graph) in [("plain", plain), ("turned", turned)] {
        let (most, kept) = compile_and_run(&graph);
        assert!(most < WEIGHTS * 5 / 4, "{name}: {most} bytes for {WEIGHTS} of weights, {kept} of them to stay");
    }

    // What is worked on ahead is made in pieces while it is packed: there are two of it for a time, and then one.
    let scaled = graph(DType::F32, |b| {
        let (w, two) = (whole(b)?, b.scalar(2.0)?);
        b.mul(w, two)
    });
    let by_steps = graph(DType::F32, |b| {
        let (w, two) = (whole(b)?, b.scalar(2.0)?);
        let scaled = b.mul(w, two)?;
        let turned = b.transpose(scaled, &[1, 0])?;
        b.tanh(turned)
    });
    let joined = graph(DType::F32, |b| halves(b).and_then(|halves| b.concat(&halves, 0)));
    let part = graph(DType::F32, |b| {
        let double = b.weight("double", numbers(&[2 * N, N]))?;
        b.slice(double, 0, N / 2, N / 2 + N)
    });
    let normed = graph(DType::F32, |b| whole(b).and_then(|w| b.softmax(w, 1)));
    for (name, graph) in [("scaled", scaled), ("by steps", by_steps), ("joined", joined)] {
        let (most, kept) = compile_and_run(&graph);
        assert!(most < WEIGHTS * 9 / 4, "{name}: {most} bytes for {WEIGHTS} of weights, {kept} of them to stay");
        assert!(kept < WEIGHTS * 5 / 4, "{name}: {kept} bytes stay of {most} for {WEIGHTS} of weights");
    }
    // What would keep more to be made from than it is, or is more than moved and mapped, is made once and kept.
    for (name, graph) in [("part", part), ("normed", normed)] {
        let (most, kept) = compile_and_run(&graph);
        assert!(most < WEIGHTS * 9 / 4, "{name}: {most} bytes for {WEIGHTS} of weights, {kept} of them to stay");
    }
    // Half as wide, half as much.
    let narrow = graph(DType::Bf16, |b| whole(b).and_then(|w| b.cast(w, DType::Bf16)));
    let (most, kept) = compile_and_run(&narrow);
    assert!(most < WEIGHTS * 5 / 4, "bf16: {most} bytes for {WEIGHTS} of weights, {kept} of them to stay");
    drop((w, narrow));

    // From a file: what has been packed is no longer in memory as the file has it.
    let mut b = GraphBuilder::new();
    let mut x = b.input("x", DType::F32, shape!["B", N / 2]).unwrap();
    for i in 0..4 {
        let w = b.weight(&format!("w{i}"), numbers(&[N / 2, N / 2])).unwrap();
        x = if i % 2 == 0 { b.linear(x, w, None) } else { b.matmul(x, w) }.unwrap();
        x = b.tanh(x).unwrap();
    }
    b.output("y", x).unwrap();
    let path = std::env::temp_dir().join(format!("schwann-weights-{}.safetensors", std::process::id()));
    io::save(&path, &b.build().unwrap()).unwrap();
    let x = numbers(&[1, N / 2]);
    let (_, most, kept) = more_for(|| {
        let graph = io::load(&path).unwrap();
        assert!(graph.weights().values().all(Tensor::is_mapped));
        let program = Program::compile(&graph, &CompileOptions::default().threads(1)).unwrap();
        let mut session = program.session();
        session.run(&[("x", &x)]).unwrap();
        (graph, session)
    });
    std::fs::remove_file(&path).unwrap();
    assert!(most < WEIGHTS * 6 / 5, "a file: {most} bytes for {WEIGHTS} of weights, {kept} of them to stay");
}
