//! One test an operation, or a family of them.

use super::*;
use schwann_core::op::{Binary, Compare, Float, Map, MapInstr, Reduction, Unary};
use schwann_core::{Dim, Error, Op, shape};

#[test]
fn every_unary_operation() {
    for op in Unary::ALL.into_iter().filter(|op| *op != Unary::Not) {
        let name = if matches!(op, Unary::Log | Unary::Sqrt | Unary::Recip) { "pos" } else { "x" };
        check(&[("N", 5)], |b| {
            let x = input(b, name, shape!["N", 3]);
            b.push(Op::Unary(op), &[x])
        });
    }
}

#[test]
fn every_binary_operation_stretched_both_ways() {
    for op in Binary::ALL.into_iter().filter(|op| !matches!(op, Binary::And | Binary::Or)) {
        check(&[("N", 4)], |b| {
            let (x, y) = (input(b, "pos_a", shape!["N", 1, 3]), input(b, "pos_b", shape![2, 1]));
            b.push(Op::Binary(op), &[x, y])
        });
        if !matches!(op, Binary::Min | Binary::Max) {
            check(&[("N", 4)], |b| {
                let x = input(b, "pos", shape!["N"]);
                b.push(Op::Binary(op), &[x, x])
            });
        }
    }
}

#[test]
fn powers_of_zero_have_no_nan_in_their_gradient() {
    let mut b = GraphBuilder::new();
    let (x, p) = (input(&mut b, "x", [3]), input(&mut b, "p", [3]));
    let y = b.pow(x, p).unwrap();
    let y = b.sum(y, &[0], false).unwrap();
    b.output("y", y).unwrap();
    let g = gradient(&b.build().unwrap(), "y", &["x", "p"]).unwrap();
    let inputs = Inputs::from([("x".into(), vector(&[0.0, 0.0, -2.0])), ("p".into(), vector(&[0.0, 2.0, 2.0]))]);
    let out = run_f64(&g, &inputs).unwrap();
    assert_eq!(out[1].data, [0.0, 0.0, -4.0]);
    assert_eq!(out[2].data[..2], [0.0, 0.0]);
}

#[test]
fn select_and_comparisons() {
    check(&[("N", 4)], |b| {
        let c = b.input("c", DType::Bool, shape!["N", 1])?;
        let (x, y) = (input(b, "x", [3]), input(b, "y0", shape!["N", 3]));
        b.select(c, x, y)
    });
    check(&[("N", 4)], |b| {
        let (x, y) = (input(b, "x", [3]), input(b, "y0", shape!["N", 3]));
        let c = b.lt(x, y)?;
        let squares = b.square(x)?;
        b.select(c, squares, y)
    });
}

#[test]
fn matrix_products_in_every_orientation() {
    let leading: [(&[usize], &[usize]); 5] = [(&[], &[]), (&[2, 1], &[3]), (&[5], &[]), (&[], &[5]), (&[3], &[3])];
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        for (la, lb) in leading {
            let a = [la, if ta { &[3, 2] } else { &[2, 3] }].concat();
            let w = [lb, if tb { &[4, 3] } else { &[3, 4] }].concat();
            check(&[], |b| {
                let (x, y) = (input(b, "a", a.as_slice()), input(b, "b", w.as_slice()));
                b.matmul_t(x, y, ta, tb)
            });
        }
    }
}

#[test]
fn reductions_over_every_set_of_axes_with_symbolic_sizes() {
    for kind in [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min] {
        for axes in [vec![], vec![0], vec![1], vec![0, 2], vec![0, 1, 2]] {
            for keep in [false, true] {
                check(&[("N", 3), ("M", 2)], |b| {
                    let x = input(b, "x", shape!["N", "M", 4]);
                    b.push(Op::Reduce { kind, axes: axes.clone(), keep }, &[x])
                });
            }
        }
    }
}

#[test]
fn ties_share_in_reductions_and_go_to_the_first_of_two() {
    let mut b = GraphBuilder::new();
    let (x, z) = (input(&mut b, "x", [4]), input(&mut b, "z", [4]));
    let most = b.reduce_max(x, &[0], false).unwrap();
    let two = b.max(x, z).unwrap();
    b.output("most", most).unwrap();
    b.output("two", two).unwrap();
    let graph = b.build().unwrap();
    let mut inputs =
        Inputs::from([("x".into(), vector(&[1.0, 3.0, 3.0, 2.0])), ("z".into(), vector(&[1.0, 4.0, 2.0, 2.0]))]);
    let out = run_f64(&gradient(&graph, "most", &["x"]).unwrap(), &inputs).unwrap();
    assert_eq!(out[2].data, [0.0, 0.5, 0.5, 0.0]);
    inputs.insert("grad_out.two".into(), vector(&[1.0; 4]));
    let out = run_f64(&gradient(&graph, "two", &["x", "z"]).unwrap(), &inputs).unwrap();
    assert_eq!(out[2].data, [1.0, 0.0, 1.0, 1.0]);
    assert_eq!(out[3].data, [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn softmax_and_norms() {
    for axis in 0..3 {
        check(&[("N", 3)], |b| {
            let x = input(b, "x", shape!["N", 2, 4]);
            b.softmax(x, axis)
        });
    }
    for extras in 0..3 {
        check(&[("N", 3), ("D", 5)], |b| {
            let x = input(b, "x", shape!["N", 2, "D"]);
            let scale = (extras > 0).then(|| input(b, "scale", shape!["D"]));
            let shift = (extras > 1).then(|| input(b, "shift", shape!["D"]));
            b.layer_norm(x, scale, shift, 1e-3)
        });
    }
    for extras in 0..2 {
        check(&[("N", 3), ("D", 5)], |b| {
            let x = input(b, "x", shape!["N", 2, "D"]);
            let scale = (extras > 0).then(|| input(b, "scale", shape!["D"]));
            b.rms_norm(x, scale, 1e-3)
        });
    }
}

#[test]
fn attention_grouped_masked_and_causal() {
    // (heads, key heads, queries, keys)
    for (h, g, l, s) in [(2, 2, 3, 3), (4, 2, 3, 5), (3, 1, 4, 2)] {
        let masks = [None, Some(shape![l, s]), Some(shape!["B", h, l, s]), Some(shape![h, 1, s])];
        for (causal, mask) in [false, true].into_iter().flat_map(|c| masks.clone().map(|m| (c, m))) {
            check(&[("B", 2)], |b| {
                let q = input(b, "q", shape!["B", h, l, 3]);
                let k = input(b, "k", shape!["B", g, s, 3]);
                let v = input(b, "v", shape!["B", g, s, 2]);
                let mask = mask.map(|m| input(b, "mask", m));
                b.attention(q, k, v, mask, causal)
            });
        }
    }
    check(&[], |b| {
        let (q, k, v) = (input(b, "q", [1, 2, 3, 2]), input(b, "k", [1, 2, 3, 2]), input(b, "v", [1, 2, 3, 2]));
        b.push(Op::Attention { causal: true, scale: Some(Float(0.3)), positions: false }, &[q, k, v])
    });
}

#[test]
fn attention_with_symbolic_lengths_and_width() {
    let mut b = GraphBuilder::new();
    let q = input(&mut b, "q", shape!["B", 4, "L", "D"]);
    let k = input(&mut b, "k", shape!["B", 2, "S", "D"]);
    let v = input(&mut b, "v", shape!["B", 2, "S", "E"]);
    let y = b.attention(q, k, v, None, true).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    for (l, s) in [(3, 3), (2, 5), (5, 2), (1, 1), (2, 0)] {
        check_graph(&graph, &[("B", 2), ("L", l), ("S", s), ("D", 3), ("E", 2)]);
    }
}

#[test]
fn a_row_that_sees_no_key_has_gradient_0() {
    let mut b = GraphBuilder::new();
    let [q, k, v] = [("q", 2), ("k", 3), ("v", 3)].map(|(name, n)| input(&mut b, name, [1, 1, n, 2]));
    let mask = input(&mut b, "mask", [2, 3]);
    let y = b.attention(q, k, v, Some(mask), false).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let mut inputs = random_inputs(&graph, &Bindings::new(), 3);
    let low = f64::NEG_INFINITY;
    inputs.get_mut("mask").unwrap().data = vec![low, low, low, 0.0, low, 0.5];
    compare(&graph, "y", &["q", "k", "v"], &inputs, 100, 1e-6);
    let g = gradient(&graph, "y", &["mask"]).unwrap();
    inputs.insert("grad_out.y".into(), Random(1).value(DType::F32, vec![1, 1, 2, 2], -1.0, 1.0));
    let d = &run_f64(&g, &inputs).unwrap()[1].data;
    assert_eq!(d[..3], [0.0; 3]);
    assert_eq!(d[4], 0.0);
    assert!(d[3] != 0.0 && (d[3] + d[5]).abs() < 1e-12);
}

#[test]
fn rearrangements() {
    let n = [("N", 4)];
    check(&n, |b| {
        let x = input(b, "x", shape!["N", 2, 3]);
        let x = b.transpose(x, &[2, 0, 1])?;
        let x = b.reshape(x, shape![3, "2*N"])?;
        b.square(x)
    });
    check(&n, |b| {
        let x = input(b, "x", shape![2, "N"]);
        let x = b.slice(x, 1, 1, "N - 1")?;
        let x = b.pad(x, 0, 1, "N")?;
        b.square(x)
    });
    check(&n, |b| {
        let (x, y) = (input(b, "x", shape![2, "N"]), input(b, "y0", shape![2, 3]));
        let joined = b.concat(&[x, y, x], 1)?;
        b.square(joined)
    });
    check(&n, |b| {
        let x = input(b, "x", shape!["N", 1]);
        let x = b.broadcast(x, shape![2, "N", 3])?;
        b.square(x)
    });
}

#[test]
fn gathering_and_summing_by_segment() {
    check(&[("N", 4), ("K", 3)], |b| {
        let x = input(b, "x", shape![2, 3, "N"]);
        let i = b.input("i", DType::I32, shape!["K", 2])?;
        let x = b.gather(x, i, 1)?;
        b.square(x)
    });
    check(&[], |b| {
        let x = input(b, "x", [3, 2]);
        let i = b.constant(Tensor::scalar(2i32))?;
        b.gather(x, i, 0)
    });
    check(&[("N", 4)], |b| {
        let x = input(b, "x", shape![2, "N", 2]);
        let i = b.input("i", DType::I32, shape!["N"])?;
        let x = b.segment_sum(x, i, 1, Dim::fixed(3))?;
        b.square(x)
    });
}

#[test]
fn casts_between_floats_pass_and_through_integers_do_not() {
    check(&[], |b| {
        let x = b.input("x", DType::F16, [4])?;
        let wide = b.cast(x, DType::F32)?;
        let y = b.square(wide)?;
        let narrow = b.cast(y, DType::Bf16)?;
        b.square(narrow)
    });
    check(&[], |b| {
        let x = input(b, "x", [4]);
        let i = b.cast(x, DType::I32)?;
        let i = b.cast(i, DType::F32)?;
        b.mul(i, x)
    });
    check(&[("N", 2)], |b| {
        let x = b.input("x", DType::F16, shape!["N", 4])?;
        let scale = b.input("scale", DType::F16, [4])?;
        let y = b.layer_norm(x, Some(scale), None, 1e-3)?;
        b.mean(y, &[0], false)
    });
}

#[test]
fn products_of_f32_and_halves() {
    for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
        for half_left in [false, true] {
            check(&[("N", 3)], |b| {
                let (left, right) = if half_left { (DType::Bf16, DType::F32) } else { (DType::F32, DType::Bf16) };
                let x = b.input("x", left, if ta { shape![4, "N"] } else { shape!["N", 4] })?;
                let y = b.input("y", right, if tb { [2, 4] } else { [4, 2] })?;
                let z = b.matmul_t(x, y, ta, tb)?;
                b.tanh(z)
            });
        }
    }
    // Several left-hand sides with one matrix.
    check(&[], |b| {
        let x = input(b, "x", [2, 3, 4]);
        let y = b.input("y", DType::F16, [4, 2])?;
        b.matmul(x, y)
    });
}

#[test]
fn dequantize_has_a_gradient_by_its_scale_and_quantize_is_refused_by_name() {
    check(&[], |b| {
        let q = b.input("q", DType::I8, [4, 3])?;
        let scale = input(b, "scale", [3]);
        let zero = b.constant(Tensor::scalar(1i32))?;
        b.dequantize(q, scale, zero)
    });
    let mut b = GraphBuilder::new();
    let (x, s) = (input(&mut b, "x", [3]), input(&mut b, "s", []));
    let zero = b.constant(Tensor::scalar(0i32)).unwrap();
    let q = b.named("rounding").quantize(x, s, zero, DType::I8).unwrap();
    let y = b.dequantize(q, s, zero).unwrap();
    let z = b.square(x).unwrap();
    b.output("y", y).unwrap();
    b.output("z", z).unwrap();
    let graph = b.build().unwrap();
    let refused = gradient(&graph, "y", &["x"]).unwrap_err();
    assert!(matches!(&refused, Error::Gradient { node, .. } if node == "rounding"), "{refused}");
    // Elsewhere than on the path it does no harm.
    gradient(&graph, "z", &["x"]).unwrap().verify().unwrap();
}

#[test]
fn fused_programs() {
    use MapInstr as I;
    let code = vec![
        I::Input(0),
        I::Input(1),
        I::Binary(Binary::Mul, 0, 1),
        I::Unary(Unary::Tanh, 2),
        I::Const(Float(0.25)),
        I::Compare(Compare::Lt, 3, 4),
        I::Unary(Unary::Not, 5),
        I::Select(6, 3, 0),
        I::Binary(Binary::Mul, 7, 5),
        I::Trunc(1),
        I::Binary(Binary::Add, 8, 9),
        I::Binary(Binary::Add, 10, 7),
    ];
    let map = Map { code };
    check(&[("N", 4)], |b| {
        let (x, y) = (input(b, "x", shape!["N", 3]), b.input("y0", DType::F16, [3])?);
        b.push(Op::map(map.clone(), DType::F32), &[x, y])
    });
    check(&[("N", 4)], |b| {
        let (x, w, y) = (input(b, "x", shape!["N", 3]), input(b, "w", [2, 3]), input(b, "bias", [2]));
        let op = Op::MatMulMap { transpose_a: false, transpose_b: true, map: map.clone(), dtype: DType::F32 };
        b.push(op, &[x, w, y])
    });
    check(&[("N", 4)], |b| {
        let (x, y) = (input(b, "x", shape!["N", 3]), input(b, "y0", [3]));
        b.push(Op::map(Map { code: vec![I::Input(1)] }, DType::F32), &[x, y])
    });
}
