//! Quantization: what codes and scales are chosen, how far they may be off, and networks that use them.

use schwann_core::backend::cpu::Cpu;
use schwann_core::cases::random::Random;
use schwann_core::cases::{Tolerance, compare};
use schwann_core::op::{Code, Scan};
use schwann_core::pass::{PassOptions, optimize};
use schwann_core::quant::{Errors, Layers, Quantized, Scheme, Share, Weights, quantize};
use schwann_core::{CompileOptions, DType, Graph, GraphBuilder, Op, Program, Tensor, Value, shape};
use schwann_kernels::Isa;
use schwann_kernels::tuning::Tuning;
use std::collections::BTreeMap;

fn schemes() -> Vec<Scheme> {
    let mut all = vec![];
    for code in Code::ALL {
        for share in [Share::Matrix, Share::Row, Share::Block(32), Share::Block(5), Share::Block(1000)] {
            for scales in [DType::F32, DType::F16, DType::Bf16] {
                for offsets in [false, true] {
                    if !offsets || code.levels() > 3 {
                        all.push(Scheme { code, share, offsets, scales });
                    }
                }
            }
        }
    }
    all
}

fn matrix(values: impl Fn(usize) -> f32, rows: usize, len: usize) -> Tensor {
    Tensor::new(&[rows, len], &(0..rows * len).map(values).collect::<Vec<f32>>()).unwrap()
}

fn scale_of(q: &Quantized, row: usize, k: usize) -> f64 {
    let row = if q.scales.shape()[0] == 1 { 0 } else { row };
    q.scales.to_f64()[row * q.format.blocks() + k / q.format.block]
}

#[test]
fn numbers_are_off_by_half_a_step_where_none_is_clipped() {
    let mut random = Random::new(3);
    for (rows, len) in [(1, 1), (3, 37), (8, 64)] {
        let data = random.floats(&[rows, len], -2.0, 3.0);
        let original = data.values::<f32>().unwrap();
        for scheme in schemes() {
            let q = quantize(&data, scheme, None).unwrap();
            let numbers = q.numbers();
            assert_eq!(numbers.len(), rows * len);
            assert_eq!(q.codes.shape(), [rows, scheme.code.row_bytes(len)]);
            assert!(q.bytes() as f64 * 8.0 <= scheme.bits(rows, len) * (rows * len) as f64 + 1e-6, "{scheme}");
            // Few bits are chosen with some clipping, and scales in 16 bits are rounded.
            if scheme.code == Code::Bits8 && scheme.scales == DType::F32 {
                for (at, (x, y)) in original.iter().zip(&numbers).enumerate() {
                    let step = scale_of(&q, at / len, at % len).abs();
                    assert!(f64::from((x - y).abs()) <= 0.5001 * step, "{scheme}: {x} became {y}, steps of {step}");
                }
            }
            let off = Errors::of(original, &numbers).relative.unwrap();
            let most = match scheme.code {
                Code::Bits8 => 0.02,
                Code::Bits4 => 0.12,
                Code::Ternary4 | Code::Ternary5 => 0.6,
            };
            assert!(off <= most, "{scheme}: off by {off}");
        }
    }
}

#[test]
fn edges_are_right() {
    for scheme in schemes() {
        // Zeros stay zeros, alone and among others: masked weights must.
        let zeros = quantize(&matrix(|_| 0.0, 3, 40), scheme, None).unwrap();
        assert!(zeros.numbers().iter().all(|x| *x == 0.0), "{scheme}");
        if scheme.scales == DType::F32 || !scheme.offsets {
            let some =
                quantize(&matrix(|i| if i % 3 == 0 { 0.0 } else { (i as f32).sin() }, 4, 40), scheme, None).unwrap();
            assert!(some.numbers().iter().step_by(3).all(|x| *x == 0.0), "{scheme}");
        }
        // One number everywhere, and numbers of one sign.
        for value in [0.7f32, -3e-3, 1e4] {
            let constant = quantize(&matrix(|_| value, 3, 40), scheme, None).unwrap();
            let worst = constant.numbers().iter().map(|x| (x / value - 1.0).abs()).fold(0.0, f32::max);
            assert!(worst <= 0.01, "{scheme}: {value} is off by {worst}");
        }
        let negative = quantize(&matrix(|i| -1.0 - (i % 7) as f32 * 0.1, 3, 40), scheme, None).unwrap();
        assert!(negative.numbers().iter().all(|x| *x < 0.0), "{scheme}");
        // Very small and very large numbers: scales that f16 cannot hold become f32.
        for size in [1e-12f32, 1e30] {
            let extreme = quantize(&matrix(|i| ((i % 9) as f32 - 4.0) * size, 2, 33), scheme, None).unwrap();
            let off =
                Errors::of(&(0..66).map(|i| ((i % 9) as f32 - 4.0) * size).collect::<Vec<_>>(), &extreme.numbers());
            assert!(off.relative.is_some_and(|e| e < 0.6), "{scheme}: {off:?}");
        }
        for bad in [f32::NAN, f32::INFINITY] {
            let error = quantize(&matrix(|i| if i == 41 { bad } else { 1.0 }, 3, 40), scheme, None).unwrap_err();
            assert!(error.to_string().contains("at [1, 1]"), "{error}");
        }
        let none = quantize(&matrix(|_| 1.0, 0, 40), scheme, None).unwrap();
        assert!(none.numbers().is_empty());
    }
    for scheme in [Scheme { share: Share::Block(0), ..Scheme::INT8 }, Scheme { offsets: true, ..Scheme::TERNARY }] {
        assert!(quantize(&matrix(|_| 1.0, 2, 2), scheme, None).unwrap_err().to_string().contains("scheme"));
    }
    assert!(quantize(&Tensor::new(&[4], &[1.0f32; 4]).unwrap(), Scheme::INT8, None).is_err());
    assert!(quantize(&matrix(|_| 1.0, 2, 2), Scheme::INT8, Some(&[1.0])).is_err());
}

#[test]
fn ternary_numbers_are_those_of_the_mean_absolute_value() {
    let data = matrix(|i| ((i * 37 % 101) as f32 - 50.0) / 30.0, 6, 50);
    let values = data.values::<f32>().unwrap();
    let mean = values.iter().map(|x| x.abs()).sum::<f32>() / values.len() as f32;
    for code in [Code::Ternary4, Code::Ternary5] {
        let q = quantize(&data, Scheme { code, ..Scheme::TERNARY }, None).unwrap();
        assert!((scale_of(&q, 0, 0) - f64::from(mean)).abs() < 1e-6);
        for (x, y) in values.iter().zip(q.numbers()) {
            let want = (x / mean).round_ties_even().clamp(-1.0, 1.0) * scale_of(&q, 0, 0) as f32;
            assert_eq!(y, want, "{x}");
        }
    }
}

/// Where samples say that a column hardly matters, a large number there is clipped for the others' sake.
#[test]
fn importances_move_the_scale() {
    let data = matrix(|i| if i % 16 == 3 { 8.0 } else { (i as f32 * 0.37).sin() }, 4, 16);
    let important: Vec<f32> = (0..16).map(|k| if k == 3 { 1e-6 } else { 1.0 }).collect();
    let scheme = Scheme { share: Share::Row, ..Scheme::INT4 };
    let error = |importance: Option<&[f32]>| {
        let numbers = quantize(&data, scheme, importance).unwrap().numbers();
        let off = data.values::<f32>().unwrap().iter().zip(numbers).enumerate().filter(|(i, _)| i % 16 != 3);
        off.map(|(_, (x, y))| f64::from((x - y) * (x - y))).sum::<f64>()
    };
    assert!(error(Some(&important)) < 0.8 * error(None), "{} and {}", error(Some(&important)), error(None));
}

/// Two products outside a loop, one of them the other way round, and two inside.
fn network() -> Graph {
    let mut random = Random::new(8);
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, schwann_core::shape!["B", "T", 24]).unwrap();
    let mut weight =
        |b: &mut GraphBuilder, name: &str, shape: &[usize]| b.weight(name, random.floats(shape, -0.3, 0.3)).unwrap();
    let (first, bias) = (weight(&mut b, "first", &[40, 24]), weight(&mut b, "bias", &[40]));
    let (w, u, mask) =
        (weight(&mut b, "w", &[16, 40]), weight(&mut b, "u", &[16, 16]), weight(&mut b, "mask", &[16, 16]));
    let last = weight(&mut b, "last", &[16, 5]);
    let y = b.named("first").linear(x, first, Some(bias)).unwrap();
    let u = b.mul(u, mask).unwrap();
    let mut body = GraphBuilder::new();
    let h = body.input("h", DType::F32, schwann_core::shape!["B", 16]).unwrap();
    let e = body.input("e", DType::F32, shape!["B", 40]).unwrap();
    let (bw, bu) = (body.input("w", DType::F32, [16, 40]).unwrap(), body.input("u", DType::F32, [16, 16]).unwrap());
    let p = body.named("cell.in").matmul_t(e, bw, false, true).unwrap();
    let q = body.named("cell.back").matmul_t(h, bu, false, true).unwrap();
    let sum = body.add(p, q).unwrap();
    let next = body.tanh(sum).unwrap();
    body.output("h_next", next).unwrap();
    body.output("y", next).unwrap();
    let start = b.constant(Tensor::zeros(DType::F32, &[1, 16]).unwrap()).unwrap();
    let start = b.broadcast(start, schwann_core::shape!["B", 16]).unwrap();
    let scan = Scan { body: body.build().unwrap().into(), states: 1, sequences: 1, axis: 1, reverse: false };
    let out: Vec<Value> = b.push_scan(scan, &[start, y, w, u]).unwrap();
    let y = b.named("last").matmul(out[1], last).unwrap();
    b.output("y", y).unwrap();
    b.build().unwrap()
}

fn run(graph: &Graph, x: &Tensor) -> Tensor {
    let mut session = Program::compile(graph, &CompileOptions::default()).unwrap().session();
    session.run(&[("x", x)]).unwrap()[0].clone()
}

#[test]
fn a_network_with_quantized_layers_is_that_network_with_their_numbers() {
    let graph = network();
    let layers = Layers::of(&graph);
    let mut names: Vec<&str> = layers.list().iter().map(|l| l.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["cell.back", "cell.in", "first", "last"]);
    let x = Random::new(1).floats(&[3, 7, 24], -1.0, 1.0);
    let exact = run(&graph, &x);
    for (scheme, most) in [(Scheme::INT8, 0.02), (Scheme::INT4, 0.25), (Scheme::TERNARY, 2.0)] {
        for rounded in [false, true] {
            let mut weights = BTreeMap::new();
            let mut copy = graph.clone();
            for (number, layer) in layers.list().iter().enumerate() {
                let data = layers.matrix(layer).unwrap();
                assert_eq!(data.shape(), [layer.rows, layer.len]);
                let matrix = quantize(&data, scheme, None).unwrap();
                let numbers = matrix.numbers();
                match layer.name.as_str() {
                    "first" => copy.set_weight("first", Tensor::new(&[40, 24], &numbers).unwrap()).unwrap(),
                    "cell.in" => copy.set_weight("w", Tensor::new(&[16, 40], &numbers).unwrap()).unwrap(),
                    "last" => {
                        let turned: Vec<f32> = (0..80).map(|i| numbers[i % 5 * 16 + i / 5]).collect();
                        copy.set_weight("last", Tensor::new(&[16, 5], &turned).unwrap()).unwrap();
                    }
                    _ => {
                        copy.set_weight("u", Tensor::new(&[16, 16], &numbers).unwrap()).unwrap();
                        copy.set_weight("mask", Tensor::new(&[16, 16], &[1.0f32; 256]).unwrap()).unwrap();
                    }
                }
                weights.insert(number, Weights { matrix, rounded });
            }
            let quantized = layers.with(&weights).unwrap();
            quantized.verify().unwrap();
            // Of the weights as they were, only the bias is left.
            let floats =
                quantized.weights().iter().filter(|(name, t)| t.dtype() == DType::F32 && !name.ends_with(".scales"));
            assert_eq!(floats.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["bias"]);
            let got = run(&quantized, &x);
            if !rounded {
                compare(&run(&copy, &x), &got, Tolerance::NETWORK).unwrap_or_else(|e| panic!("{scheme}: {e}"));
            }
            let off = Errors::of(exact.values().unwrap(), got.values().unwrap()).relative.unwrap();
            assert!(off > 0.0 && off <= most, "{scheme}, rounded {rounded}: off by {off}");
            // Compiled, products of rounded rows read codes: no matrix of f32 is left. Small weights are widened for others.
            let program = Program::compile(&quantized, &CompileOptions::default()).unwrap();
            let products = count(program.graph(), &|op| matches!(op, Op::LowBitMatMul(p) if p.rounded));
            let others = count(program.graph(), &|op| matches!(op, Op::MatMul { .. } | Op::MatMulMap { .. }));
            assert_eq!((products, others), if rounded { (4, 0) } else { (0, 4) });
        }
    }
}

fn count(graph: &Graph, which: &dyn Fn(&Op) -> bool) -> usize {
    let inside = |op: &Op| if let Op::Scan(scan) = op { count(&scan.body, which) } else { 0 };
    graph.nodes().iter().map(|n| usize::from(which(&n.op)) + inside(&n.op)).sum()
}

#[test]
fn large_weights_are_read_as_codes_by_rows_of_f32_too() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, schwann_core::shape!["B", 300]).unwrap();
    let w = b.weight("w", Random::new(5).floats(&[400, 300], -0.1, 0.1)).unwrap();
    let y = b.named("large").linear(x, w, None).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let layers = Layers::of(&graph);
    let matrix = quantize(&layers.matrix(&layers.list()[0]).unwrap(), Scheme::INT4, None).unwrap();
    let mut copy = graph.clone();
    copy.set_weight("w", Tensor::new(&[400, 300], &matrix.numbers()).unwrap()).unwrap();
    let quantized = layers.with(&BTreeMap::from([(0, Weights { matrix, rounded: false })])).unwrap();
    let program = Program::compile(&quantized, &CompileOptions::default()).unwrap();
    assert_eq!(count(program.graph(), &|op| matches!(op, Op::LowBitMatMul(_))), 1);
    for rows in [1, 2, 5, 64] {
        let x = Random::new(2).floats(&[rows, 300], -1.0, 1.0);
        compare(&run(&copy, &x), &run(&quantized, &x), Tolerance::sum_of(300))
            .unwrap_or_else(|e| panic!("{rows}: {e}"));
    }
}

#[test]
fn products_that_round_the_same_row_are_one_with_the_same_bits() {
    let mut random = Random::new(11);
    let widths = [600, 150, 150];
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 40]).unwrap();
    let rows = b.round_rows(x).unwrap();
    for (i, width) in widths.into_iter().enumerate() {
        let q = quantize(&random.floats(&[width, 40], -1.0, 1.0), Scheme::TERNARY, None).unwrap();
        let codes = b.weight(&format!("codes{i}"), q.codes).unwrap();
        let scales = b.weight(&format!("scales{i}"), q.scales).unwrap();
        let weights = b.low_bit(q.format, codes, scales, None).unwrap();
        let y = b.linear(rows, weights, None).unwrap();
        b.output(&format!("y{i}"), y).unwrap();
    }
    let graph = b.build().unwrap();
    let tuning = Tuning::detect();
    let merged = |most: usize| {
        let tuning = tuning.with("merged_rounded_columns_most", most).unwrap();
        let options = PassOptions { low_bit: true, tuning, ..PassOptions::default() };
        let (made, _) = optimize(&graph, &options).unwrap();
        made.nodes().iter().filter(|node| matches!(node.op, Op::LowBitMatMul(_))).count()
    };
    assert_eq!([merged(900), merged(899)], [1, 3], "up to the limit they are one product");
    let input = random.floats(&[3, 40], -1.0, 1.0);
    let run = |tuning| {
        let backend = Cpu::with_tuning(Isa::detect(), tuning, 1).unwrap();
        let program = Program::compile_for(&graph, &backend, &CompileOptions::default()).unwrap();
        let results = program.session().run(&[("x", &input)]).unwrap().to_vec();
        results.iter().map(|y| y.to_f64().iter().map(|y| y.to_bits()).collect()).collect::<Vec<Vec<u64>>>()
    };
    assert_eq!(run(tuning), run(tuning.with("merged_rounded_columns_most", 0).unwrap()));
}
