//! Quantization: what codes and scales are chosen, how far they may be off, and networks that use them.

use schwann_core::backend::cpu::Cpu;
use schwann_core::cases::random::Random;
use schwann_core::cases::{Tolerance, compare};
use schwann_core::op::{Code, Scan};
use schwann_core::pass::{PassOptions, optimize};
use schwann_core::quant::{Errors, Layers, Quantized, Scheme, Share, Weights, halve, prepared, quantize};
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
                weights.insert(number, Weights::LowBit { matrix, rounded });
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
    let quantized = layers.with(&BTreeMap::from([(0, Weights::LowBit { matrix, rounded: false })])).unwrap();
    let program = Program::compile(&quantized, &CompileOptions::default()).unwrap();
    assert_eq!(count(program.graph(), &|op| matches!(op, Op::LowBitMatMul(_))), 1);
    for rows in [1, 2, 5, 64] {
        let x = Random::new(2).floats(&[rows, 300], -1.0, 1.0);
        compare(&run(&copy, &x), &run(&quantized, &x), Tolerance::sum_of(300))
            .unwrap_or_else(|e| panic!("{rows}: {e}"));
    }
}

/// A large layer, and a loop with large weights, in one of which an orientation differs.
fn large_network() -> Graph {
    let mut random = Random::new(11);
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, schwann_core::shape!["B", "T", 24]).unwrap();
    let mut weight =
        |b: &mut GraphBuilder, name: &str, shape: &[usize]| b.weight(name, random.floats(shape, -0.1, 0.1)).unwrap();
    let (w, u) = (weight(&mut b, "w", &[300, 24]), weight(&mut b, "u", &[300, 300]));
    let (last, bias) = (weight(&mut b, "last", &[300, 301]), weight(&mut b, "bias", &[301]));
    let mut body = GraphBuilder::new();
    let h = body.input("h", DType::F32, schwann_core::shape!["B", 300]).unwrap();
    let e = body.input("e", DType::F32, schwann_core::shape!["B", 24]).unwrap();
    let (bw, bu) = (body.input("w", DType::F32, [300, 24]).unwrap(), body.input("u", DType::F32, [300, 300]).unwrap());
    let p = body.named("cell.in").matmul_t(e, bw, false, true).unwrap();
    let q = body.named("cell.back").matmul_t(h, bu, false, true).unwrap();
    let sum = body.add(p, q).unwrap();
    let next = body.tanh(sum).unwrap();
    body.output("h_next", next).unwrap();
    body.output("y", next).unwrap();
    let start = b.constant(Tensor::zeros(DType::F32, &[1, 300]).unwrap()).unwrap();
    let start = b.broadcast(start, schwann_core::shape!["B", 300]).unwrap();
    let scan = Scan { body: body.build().unwrap().into(), states: 1, sequences: 1, axis: 1, reverse: false };
    let out: Vec<Value> = b.push_scan(scan, &[start, x, w, u]).unwrap();
    let y = b.named("last").matmul(out[1], last).unwrap();
    let y = b.add(y, bias).unwrap();
    let y = b.sigmoid(y).unwrap();
    b.output("y", y).unwrap();
    b.build().unwrap()
}

#[test]
fn weights_in_half_precision_stay_halves_where_they_are_large() {
    let graph = large_network();
    let layers = Layers::of(&graph);
    for dtype in [DType::Bf16, DType::F16] {
        let (mut weights, mut copy) = (BTreeMap::new(), graph.clone());
        for (number, layer) in layers.list().iter().enumerate() {
            let exact = layers.matrix(layer).unwrap();
            let half = Weights::Half(halve(&exact, dtype).unwrap());
            assert_eq!(half.bytes(), 2 * layer.count());
            let (original, numbers) = (exact.values::<f32>().unwrap(), half.numbers());
            // Half of the distance between neighbours, which have 8 or 11 bits.
            let most = if dtype == DType::Bf16 { 2f32.powi(-8) } else { 2f32.powi(-11) };
            assert!(original.iter().zip(&numbers).all(|(x, y)| (x - y).abs() <= most * x.abs() + 1e-7), "{dtype}");
            let (rows, len) = (layer.rows, layer.len);
            match layer.name.as_str() {
                "last" => {
                    let turned: Vec<f32> = (0..rows * len).map(|i| numbers[i % rows * len + i / rows]).collect();
                    copy.set_weight("last", Tensor::new(&[len, rows], &turned).unwrap()).unwrap();
                }
                name => {
                    let name = if name == "cell.in" { "w" } else { "u" };
                    copy.set_weight(name, Tensor::new(&[rows, len], &numbers).unwrap()).unwrap();
                }
            }
            weights.insert(number, half);
        }
        let halves = layers.with(&weights).unwrap();
        halves.verify().unwrap();
        // Compiled, the two large products read halves, in the loop and outside; the small one's weights are widened.
        let program = Program::compile(&halves, &CompileOptions::default()).unwrap();
        let mut read = vec![];
        right_hand_sides(program.graph(), &mut read);
        read.sort_by_key(ToString::to_string);
        let mut want = vec![dtype, dtype, DType::F32];
        want.sort_by_key(ToString::to_string);
        assert_eq!(read, want);
        for (batch, steps) in [(1, 1), (1, 5), (3, 2), (7, 1), (40, 2)] {
            let x = Random::new(2).floats(&[batch, steps, 24], -1.0, 1.0);
            compare(&run(&copy, &x), &run(&halves, &x), Tolerance::NETWORK)
                .unwrap_or_else(|e| panic!("{dtype}, {batch} rows: {e}"));
        }
    }
}

fn right_hand_sides(graph: &Graph, into: &mut Vec<DType>) {
    for node in graph.nodes() {
        match &node.op {
            Op::MatMul { .. } | Op::MatMulMap { .. } => into.push(graph.ty(node.inputs[1]).dtype),
            Op::Scan(scan) => right_hand_sides(&scan.body, into),
            _ => {}
        }
    }
}

#[test]
fn halves_are_the_nearest_and_what_does_not_fit_is_refused() {
    let exact = matrix(|i| [1.0, -0.0, 1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8), 6e-8, 65504.0][i], 2, 3);
    let numbers = |dtype| Weights::Half(halve(&exact, dtype).unwrap()).numbers();
    // Ties to even.
    assert_eq!(numbers(DType::Bf16)[..4], [1.0, 0.0, 1.0, 1.0 + 4.0 * 2f32.powi(-8)]);
    assert_eq!(numbers(DType::F16)[2..], [1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8), 2f32.powi(-24), 65504.0]);
    for (bad, dtype) in
        [(f32::NAN, DType::Bf16), (f32::NEG_INFINITY, DType::F16), (7e4, DType::F16), (3.4e38, DType::Bf16)]
    {
        let error = halve(&matrix(|i| if i == 4 { bad } else { 1.0 }, 2, 3), dtype).unwrap_err().to_string();
        assert!(error.contains("number 4") && error.contains(&dtype.to_string()), "{error}");
    }
    assert!(halve(&exact, DType::F32).unwrap_err().to_string().contains("f16 or bf16"));
}

/// Like the time heads of a CfC: e·A + e·B, twice as large, is one layer of the matrix 2·(A + B).
#[test]
fn products_that_are_added_up_are_one_layer() {
    let mut random = Random::new(4);
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, schwann_core::shape!["B", "T", 9]).unwrap();
    let [one, two] = ["one", "two"].map(|name| b.weight(name, random.floats(&[9, 9], -0.5, 0.5)).unwrap());
    let mut body = GraphBuilder::new();
    let h = body.input("h", DType::F32, schwann_core::shape!["B", 9]).unwrap();
    let e = body.input("e", DType::F32, schwann_core::shape!["B", 9]).unwrap();
    let [a, c] = ["a", "c"].map(|name| body.input(name, DType::F32, [9, 9]).unwrap());
    let (p, q) = (body.named("cell.a").matmul(h, a).unwrap(), body.named("cell.b").matmul(h, c).unwrap());
    let (sum, factor) = (body.add(p, q).unwrap(), body.scalar(2.0).unwrap());
    let sum = body.mul(sum, factor).unwrap();
    let sum = body.add(sum, e).unwrap();
    let next = body.tanh(sum).unwrap();
    body.output("next", next).unwrap();
    body.output("y", next).unwrap();
    let start = b.constant(Tensor::zeros(DType::F32, &[1, 9]).unwrap()).unwrap();
    let start = b.broadcast(start, schwann_core::shape!["B", 9]).unwrap();
    let out = b.scan(body.build().unwrap(), &[start], &[x], &[one, two], 1).unwrap();
    b.output("y", out[1]).unwrap();
    let graph = b.build().unwrap();
    assert_eq!(Layers::of(&graph).list().len(), 2);
    let prepared = prepared(&graph).unwrap();
    let layers = Layers::of(&prepared);
    assert_eq!(layers.list().iter().map(|l| l.name.as_str()).collect::<Vec<_>>(), ["cell"]);
    let matrix = layers.matrix(&layers.list()[0]).unwrap();
    let [one, two] = ["one", "two"].map(|name| graph.weights()[name].to_f64());
    for (i, x) in matrix.to_f64().into_iter().enumerate() {
        // The layer is [outputs, inputs], the weights are [inputs, outputs].
        let at = i % 9 * 9 + i / 9;
        assert!((x - 2.0 * (one[at] + two[at])).abs() < 1e-6);
    }
    let x = Random::new(1).floats(&[3, 5, 9], -1.0, 1.0);
    compare(&run(&graph, &x), &run(&prepared, &x), Tolerance::NETWORK).unwrap();
    // A loop that is handed what was moved out of it before can have more moved out of it.
    let handed = |graph: &Graph| count(graph, &|op| matches!(op, Op::Input { name, .. } if name == "hoisted.0"));
    assert_eq!(handed(&prepared), 1);
    let mut more = prepared.clone();
    let at = more.nodes().iter().position(|n| matches!(n.op, Op::Scan(_))).unwrap();
    let Op::Scan(scan) = &more.nodes()[at].op else { unreachable!("found above") };
    let (mut scan, inputs) = (scan.as_ref().clone(), more.nodes()[at].inputs.clone());
    let mut body = (*scan.body).clone();
    let next = body.outputs()[1].value;
    let one = body.push(Op::Const(Tensor::new(&[9], &[0.5f32; 9]).unwrap()), vec![], "half").unwrap();
    let bias = body.push(Op::Unary(schwann_core::op::Unary::Exp), vec![one], "bias").unwrap();
    let sum = body.push(Op::Binary(schwann_core::op::Binary::Add), vec![next, bias], "sum").unwrap();
    body.push_output("z", sum).unwrap();
    scan.body = body.into();
    let out = more.push(Op::Scan(Box::new(scan)), inputs, "again").unwrap();
    more.push_output("z", Value { slot: 2, ..out }).unwrap();
    let unfolded = PassOptions { fold_weights: false, ..PassOptions::default() };
    for passes in [PassOptions::default(), unfolded] {
        Program::compile(&more, &CompileOptions::default().passes(passes))
            .unwrap()
            .session()
            .run(&[("x", &x)])
            .unwrap();
    }
    let matrix = quantize(&matrix, Scheme::INT8, None).unwrap();
    let small = layers.with(&BTreeMap::from([(0, Weights::LowBit { matrix, rounded: true })])).unwrap();
    assert!(small.weights().keys().all(|name| name.starts_with("cell.")), "{:?}", small.weights().keys());
    let off = Errors::of(run(&graph, &x).values().unwrap(), run(&small, &x).values().unwrap()).relative.unwrap();
    assert!(off > 0.0 && off < 0.05, "{off}");
}

#[test]
fn errors_are_what_their_names_say() {
    let off = Errors::of(&[3.0, 4.0], &[3.0, 3.0]);
    assert_eq!((off.max, off.rms), (1.0, 0.5f64.sqrt()));
    assert!((off.relative.unwrap() - 0.2).abs() < 1e-12);
    assert!((off.snr.unwrap() - 10.0 * 25f64.log10()).abs() < 1e-12);
    assert!((off.cosine.unwrap() - 21.0 / (5.0 * 18f64.sqrt())).abs() < 1e-12);
    // What has no value has none, and is not 0.
    let exact = Errors::of(&[1.0, -2.0], &[1.0, -2.0]);
    assert_eq!((exact.max, exact.relative, exact.snr), (0.0, Some(0.0), None));
    let nothing = Errors::of(&[0.0, 0.0], &[0.0, 1.0]);
    assert_eq!((nothing.relative, nothing.snr, nothing.cosine), (None, None, None));
    assert!(Errors::of(&[1.0, 2.0], &[f32::NAN, 2.0]).max.is_nan());
}

/// Samples say what a layer multiplies with, and scales that suit them lower the error of what comes out.
#[test]
fn samples_choose_ranges_that_lower_the_error_of_outputs() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, schwann_core::shape!["B", 32]).unwrap();
    // A few large weights, of inputs that are nearly always 0.
    let drawn = Random::new(6).floats(&[20, 32], -1.0, 1.0);
    let drawn = drawn.values::<f32>().unwrap();
    let weight = matrix(|i| drawn[i] * if i % 32 < 3 { 4.0 } else { 1.0 }, 20, 32);
    let w = b.weight("w", weight.clone()).unwrap();
    let y = b.named("layer").linear(x, w, None).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let layers = Layers::of(&graph);
    let mut samples = Random::new(7).floats(&[256, 32], -1.0, 1.0);
    let values = samples.values_mut::<f32>().unwrap();
    values.iter_mut().enumerate().filter(|(i, _)| i % 32 < 3).for_each(|(_, x)| *x *= 1e-3);
    let mut session = Program::compile(&layers.watched().unwrap(), &CompileOptions::default()).unwrap().session();
    let watched = session.run(&[("x", &samples)]).unwrap()[1].values::<f32>().unwrap().to_vec();
    assert!(watched.len() == 32 && watched[0] < 1e-5 && watched[20] > 0.1, "{watched:?}");
    let exact = run(&graph, &samples);
    for scheme in [Scheme { share: Share::Row, ..Scheme::INT4 }, Scheme::INT8] {
        let error = |importance: Option<&[f32]>| {
            let matrix = quantize(&weight, scheme, importance).unwrap();
            let small = layers.with(&BTreeMap::from([(0, Weights::LowBit { matrix, rounded: false })])).unwrap();
            Errors::of(exact.values().unwrap(), run(&small, &samples).values().unwrap()).relative.unwrap()
        };
        assert!(error(Some(&watched)) < 0.9 * error(None), "{scheme}: {} and {}", error(Some(&watched)), error(None));
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

#[test]
fn joined_products_stay_known_however_wide_they_are() {
    let mut random = Random::new(12);
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 64]).unwrap();
    let rows = b.round_rows(x).unwrap();
    // More rows than folding would repeat one scale for.
    for (i, width) in [2560, 640, 640].into_iter().enumerate() {
        let q = quantize(&random.floats(&[width, 64], -1.0, 1.0), Scheme::TERNARY, None).unwrap();
        let codes = b.weight(&format!("codes{i}"), q.codes).unwrap();
        let scales = b.weight(&format!("scales{i}"), q.scales).unwrap();
        let weights = b.low_bit(q.format, codes, scales, None).unwrap();
        let y = b.linear(rows, weights, None).unwrap();
        b.output(&format!("y{i}"), y).unwrap();
    }
    let graph = b.build().unwrap();
    let mut session = Program::compile(&graph, &CompileOptions::default().threads(1)).unwrap().session();
    session.run(&[("x", &random.floats(&[1, 64], -1.0, 1.0))]).unwrap();
    let kernels: Vec<String> = session.plan().unwrap().steps.iter().map(|step| step.kernel.to_string()).collect();
    let products: Vec<&String> = kernels.iter().filter(|k| k.contains("3840×64")).collect();
    assert!(products.len() == 1 && kernels.iter().all(|k| !k.contains("slow") && !k.contains("join")), "{kernels:?}");
}
