//! What the fuzzers run on each input, shared with the ordinary test that replays their corpora.
//!
//! A target panics exactly when the library broke a promise: reading anything is an error or a value, a value that was
//! read can be used, and writing it and reading it again gives the same. Each says how much there was to check: 0 where
//! nothing could be read.
#![allow(dead_code, reason = "each fuzzer uses one of these")]

#[expect(clippy::duplicate_mod, reason = "the fuzzers take this file alone")]
#[path = "../drawn/compare.rs"]
mod compare;

use schwann_core::backend::reference::{self, HostValue, Precision};
use schwann_core::cases::random::Random;
use schwann_core::io::gguf::Gguf;
use schwann_core::io::mlx::{Config, Mlx};
use schwann_core::io::safetensors::Reader;
use schwann_core::io::{Limits, Stored, graph_of, npy, npz};
use schwann_core::memory::Budget;
use schwann_core::op::Custom;
use schwann_core::pass::PassOptions;
use schwann_core::quant::Quantized;
use schwann_core::{Bindings, CompileOptions, DType, Error, Graph, Program, Tensor, shape};
use std::collections::BTreeMap;
use std::sync::Once;

/// A kernel of the user's own for files to name.
pub(crate) const STEP: &str = "step_along";

/// Makes it known, once: how far each is from the next, times a byte, and the largest of the row from there on.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let inputs = [(DType::F32, shape!["rows", "n + 1"]), (DType::U8, shape!["rows"])];
        let step = Custom::places(STEP, &inputs, 2, shape!["rows", "n"], |p, y| {
            let x = |along: i64| p.x(0, &[p.at(0), p.at(1) + along]);
            y[0] = (x(1) - x(0)) * p.x(1, &[p.at(0)]);
            y[1] = (0..p.size("n") - p.at(1)).map(x).fold(0.0, f64::max);
        });
        step.register().expect("a name that nobody else has");
    });
}

/// A graph's JSON: what parses is well formed, can be shown and costed, and reads back equal.
pub(crate) fn graph_json(data: &[u8]) -> usize {
    register();
    let Ok(text) = std::str::from_utf8(data) else { return 0 };
    let Ok(graph) = Graph::from_json(text) else { return 0 };
    graph.verify().expect("what parses is well formed");
    assert!(graph.to_string().len() + graph.to_dot().len() > 0);
    for size in [0, 1, 3] {
        let bindings = graph.symbols().iter().fold(Bindings::new(), |b, symbol| b.with(symbol, size));
        // Sizes such as T - 4 may have no value here; that is an error, and all that is asked.
        let _ = graph.cost(&bindings);
    }
    let again = Graph::from_json(&graph.to_json()).expect("what was written reads back");
    assert_eq!(graph, again);
    1
}

/// A graph's JSON through compile and run: refused, or the same from the reference and from kernels, fused and not, within
/// a few megabytes and a little time. Gives how many elements were compared.
pub(crate) fn graph_run(data: &[u8]) -> usize {
    register();
    let Ok(text) = std::str::from_utf8(data) else { return 0 };
    let Ok(mut graph) = Graph::from_json(text) else { return 0 };
    let small = |graph: &Graph, ty: &schwann_core::Type, bindings: &Bindings| {
        let size = ty.shape.eval(bindings).ok().and_then(|s| schwann_core::tensor::count(&s));
        size.is_some_and(|n| n <= 1 << 16) && graph.nodes().len() <= 1 << 12
    };
    let names: Vec<(String, schwann_core::Type)> =
        graph.weight_types().map(|(n, t)| (n.to_owned(), t.clone())).collect();
    for (name, ty) in names {
        let Some(shape) = ty.shape.as_fixed().filter(|_| small(&graph, &ty, &Bindings::new())) else { return 0 };
        let mut random = Random::named(&name);
        graph.set_weight(&name, random.any(ty.dtype, &shape)).expect("of its own type");
    }
    let mut compared = 0;
    for size in [1, 3] {
        let bindings = graph.symbols().iter().fold(Bindings::new(), |b, symbol| b.with(symbol, size));
        let mut inputs = BTreeMap::new();
        for (name, value) in graph.inputs() {
            let ty = graph.ty(value);
            if !small(&graph, ty, &bindings) {
                return compared;
            }
            let Ok(shape) = ty.shape.eval(&bindings) else { return compared };
            let mut random = Random::named(name);
            // Integers may be indices: any number at one size, at the other what is within an axis of that size.
            let data = match ty.dtype {
                DType::I32 if size > 1 => random.ints(&shape, 0, size as i32),
                dtype => random.any(dtype, &shape),
            };
            inputs.insert(name.to_owned(), data);
        }
        // The reference computes everything that is written down; a fuzzer has no time for what is large.
        if !graph.cost(&bindings).is_ok_and(|c| c.flops.saturating_add(c.bytes()) < 1 << 22) {
            return compared;
        }
        let hosted = inputs.iter().map(|(n, t)| (n.clone(), HostValue::from_tensor(t))).collect();
        let want = reference::run(&graph, &inputs, Precision::Storage);
        let want = want.and_then(|want| Ok((want, reference::run_f64(&graph, &hosted)?)));
        for passes in [PassOptions::default(), PassOptions::none()] {
            let options = CompileOptions::default().threads(1).passes(passes).budget(Budget::bytes(64 << 20));
            let program = match Program::compile(&graph, &options) {
                Ok(program) => program,
                Err(e @ (Error::Internal(_) | Error::Pass { .. } | Error::Verify { .. })) => panic!("{e}"),
                Err(_) => continue,
            };
            let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            match (&want, program.session().run(&given)) {
                (_, Err(e @ Error::Internal(_))) => panic!("{e}"),
                (Ok((want, exact)), Ok(got)) => {
                    assert_eq!((want.len(), exact.len()), (got.len(), got.len()));
                    for ((want, exact), got) in want.iter().zip(exact).zip(got) {
                        let found = compare::compare(want, &[&exact.data], got).unwrap_or_else(|e| panic!("{e}"));
                        compared += found.compared;
                    }
                }
                _ => {}
            }
        }
    }
    compared
}

/// Safetensors: what opens can be read or refused tensor by tensor, and reads back after writing. Gives how many tensors
/// did.
pub(crate) fn safetensors(data: &[u8]) -> usize {
    register();
    let Ok(file) = Reader::from_bytes(data) else { return 0 };
    let mut whole = BTreeMap::new();
    for entry in file.entries() {
        assert_eq!(file.bytes(&entry.name).expect("listed").len(), entry.window.len());
        for dtype in DType::ALL {
            if let Ok(tensor) = file.tensor_as(&entry.name, dtype) {
                assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &entry.shape[..]));
            }
        }
        if let Ok(tensor) = file.tensor(&entry.name) {
            assert_eq!(tensor.bytes(), file.bytes(&entry.name).expect("listed"));
            whole.insert(entry.name.as_str(), tensor);
        }
    }
    let written = schwann_core::io::safetensors::to_bytes(whole.iter().map(|(n, t)| (*n, t)), file.metadata());
    let again =
        Reader::from_bytes(written.expect("what was read can be written")).expect("what was written reads back");
    assert_eq!(again.metadata(), file.metadata());
    let tensors = again.tensors().expect("only our types were written");
    assert!(tensors.iter().map(|(n, t)| (n.as_str(), t)).eq(whole.iter().map(|(n, t)| (*n, t))));
    if let Ok(graph) = graph_of(&file) {
        graph.verify().expect("what loads is well formed");
    }
    whole.len()
}

/// Npy, and where it is no npy, npz: what reads can be written and reads back equal. Gives how many arrays did.
pub(crate) fn npy(data: &[u8]) -> usize {
    let mut arrays = 0;
    if let Ok(tensor) = npy::from_bytes(data) {
        let written = npy::to_bytes(&tensor).expect("what was read can be written");
        assert_eq!(npy::from_bytes(&written).expect("what was written reads back"), tensor);
        arrays += 1;
    }
    let limits = Limits { total_bytes: 16 << 20, arrays: 100 };
    if let Ok(tensors) = npz::from_bytes(data, &limits) {
        let written =
            npz::to_bytes(tensors.iter().map(|(n, t)| (n.as_str(), t))).expect("what was read can be written");
        assert_eq!(npz::from_bytes(&written, &limits).expect("what was written reads back"), tensors);
        arrays += tensors.len();
    }
    arrays
}

/// GGUF: what opens can be read or refused tensor by tensor, and what reads has as many numbers as its shape says. Gives how
/// many tensors did.
pub(crate) fn gguf(data: &[u8]) -> usize {
    let Ok(file) = Gguf::from_bytes(data) else { return 0 };
    let mut tensors = 0;
    for entry in file.entries() {
        match file.tensor(&entry.name) {
            Ok(Stored::Floats(tensor)) => assert_eq!(tensor.shape(), entry.shape),
            Ok(Stored::LowBit(matrix)) => {
                assert_eq!(entry.shape.iter().product::<usize>(), whole(&matrix));
            }
            Err(_) => continue,
        }
        tensors += 1;
    }
    tensors
}

/// MLX: a `config.json`, a byte 0, and a file of weights. What opens can be read or refused matrix by matrix. Gives how many
/// were read.
pub(crate) fn mlx(data: &[u8]) -> usize {
    let Some(end) = data.iter().position(|byte| *byte == 0) else { return 0 };
    let Some(Ok(config)) = std::str::from_utf8(&data[..end]).ok().map(Config::from_json) else { return 0 };
    let Ok(reader) = Reader::from_bytes(&data[end + 1..]) else { return 0 };
    let file = Mlx::new(reader, config);
    let read = |name: &&str| match file.tensor(name) {
        Ok(Stored::LowBit(matrix)) => whole(&matrix) > 0,
        Ok(Stored::Floats(tensor)) => panic!("{tensor} has scales"),
        Err(_) => false,
    };
    file.names().filter(read).count()
}

/// How many numbers a matrix has, which codes, scales and offsets must agree on.
fn whole(matrix: &Quantized) -> usize {
    let format = matrix.format;
    let rows = matrix.codes.shape()[0];
    assert_eq!(matrix.codes.shape(), [rows, format.code.row_bytes(format.len)]);
    assert!(matrix.codes.bytes().iter().all(|byte| format.code.is_valid(*byte)));
    assert!([[rows, format.blocks()], [1, format.blocks()]].iter().any(|shape| matrix.scales.shape() == shape));
    assert_eq!(matrix.offsets.is_some(), format.offsets);
    assert!(matrix.offsets.iter().all(|o| (o.dtype(), o.shape()) == (matrix.scales.dtype(), matrix.scales.shape())));
    assert_eq!(matrix.numbers().len(), rows * format.len);
    rows * format.len
}
