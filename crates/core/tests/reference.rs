//! The definition itself, against numbers worked out by other means: by hand, or from the function's tables.

use schwann_core::backend::reference::{HostValue, Precision, concrete, eval_node, run, run_f64};
use schwann_core::op::{Float, Map, MapInstr, Scan, Unary};
use schwann_core::{Bindings, DType, Error, Graph, GraphBuilder, Op, Result, Tensor, Value, shape};
use std::collections::BTreeMap;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(shape, values).unwrap()
}
fn i32s(shape: &[usize], values: &[i32]) -> Tensor {
    Tensor::new(shape, values).unwrap()
}

/// Runs one operation on inputs `x0`, `x1` …
fn try_op(op: Op, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut b = GraphBuilder::new();
    let mut values: Vec<Value> = vec![];
    let mut given = BTreeMap::new();
    for (i, t) in inputs.iter().enumerate() {
        let name = format!("x{i}");
        values.push(b.input(&name, t.dtype(), t.shape())?);
        given.insert(name, t.clone());
    }
    let first = b.named("the_node").push(op, &values)?;
    for slot in 0..b.graph().node(first).outs.len() as u16 {
        b.output(&format!("y{slot}"), Value { slot, ..first })?;
    }
    run(&b.build()?, &given, Precision::Storage)
}

fn op(op: Op, inputs: &[Tensor]) -> Tensor {
    try_op(op, inputs).unwrap().remove(0)
}

/// Equal within a few units in the last place of `f32`; NaN equals NaN.
#[track_caller]
fn assert_close(got: &Tensor, expected: &[f64]) {
    let values = got.to_f64();
    assert_eq!(values.len(), expected.len(), "{got:?}");
    for (g, e) in values.iter().zip(expected) {
        let close = g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= 2e-7 * e.abs() + 1e-45;
        assert!(close, "got {values:?}, expected {expected:?}");
    }
}

#[test]
fn functions_have_their_tabulated_values() {
    let unary = |u: Unary, x: &[f32]| op(Op::Unary(u), &[f32s(&[x.len()], x)]);
    let erf = [0.0, 0.520_499_877_813_046_5, 0.842_700_792_949_714_9, -0.995_322_265_018_952_7, 1.0, -1.0];
    assert_close(&unary(Unary::Erf, &[0.0, 0.5, 1.0, -2.0, 7.0, -INF]), &erf);
    let gelu =
        [0.0, 0.841_344_746_068_542_9, -0.158_655_253_931_457_07, 1.954_499_736_103_641_6, -5.919_525_870_226_168e-9];
    assert_close(&unary(Unary::Gelu, &[0.0, 1.0, -1.0, 2.0, -6.0]), &gelu);
    let ln3 = 3f32.ln();
    assert_close(&unary(Unary::Sigmoid, &[0.0, ln3, -ln3, INF, -INF, -1000.0]), &[0.5, 0.75, 0.25, 1.0, 0.0, 0.0]);
    assert_close(&unary(Unary::Silu, &[0.0, ln3, NAN]), &[0.0, 0.75 * f64::from(ln3), f64::NAN]);
    assert_close(
        &unary(Unary::Softplus, &[0.0, 100.0, -1000.0, INF]),
        &[std::f64::consts::LN_2, 100.0, 0.0, f64::INFINITY],
    );
    assert_close(&unary(Unary::Tanh, &[2.8, -INF]), &[0.992_631_520_201_128_1, -1.0]);
    assert_close(&unary(Unary::Round, &[0.5, 1.5, 2.5, -0.5, -1.5, 2.4]), &[0.0, 2.0, 2.0, 0.0, -2.0, 2.0]);
    assert_close(&unary(Unary::Floor, &[0.5, -0.5, -2.0]), &[0.0, -1.0, -2.0]);
    assert_close(&unary(Unary::Sign, &[-3.0, 0.0, -0.0, 2.0, NAN]), &[-1.0, 0.0, 0.0, 1.0, f64::NAN]);
    assert_close(&unary(Unary::Relu, &[-1.0, 2.0, NAN]), &[0.0, 2.0, f64::NAN]);
}

#[test]
fn the_smaller_and_the_larger_keep_nan() {
    use schwann_core::op::Binary;
    let pair = [f32s(&[3], &[1.0, NAN, 2.0]), f32s(&[3], &[NAN, 1.0, -2.0])];
    assert_close(&op(Op::Binary(Binary::Max), &pair), &[f64::NAN, f64::NAN, 2.0]);
    assert_close(&op(Op::Binary(Binary::Min), &pair), &[f64::NAN, f64::NAN, -2.0]);
}

#[test]
fn integers_wrap_and_divide_toward_zero() {
    use schwann_core::op::{Binary, Reduction};
    let (a, b) = (i32s(&[5], &[i32::MAX, i32::MIN, 7, -7, 5]), i32s(&[5], &[1, -1, -2, 2, 0]));
    let values = |t: Tensor| t.values::<i32>().unwrap().to_vec();
    let of = |o: Binary| values(op(Op::Binary(o), &[a.clone(), b.clone()]));
    assert_eq!(of(Binary::Add), [i32::MIN, i32::MAX, 5, -5, 5]);
    assert_eq!(of(Binary::Div), [i32::MAX, i32::MIN, -3, -3, 0]);
    assert_eq!(of(Binary::Mul), [i32::MAX, i32::MIN, -14, -14, 0]);
    // 46 341² = 2 147 488 281 = 2³¹ + 4 633
    assert_eq!(values(op(Op::Unary(Unary::Square), &[i32s(&[1], &[46_341])])), [i32::MIN + 4_633]);
    let sum = Op::Reduce { kind: Reduction::Sum, axes: vec![0], keep: false };
    assert_eq!(values(op(sum, &[i32s(&[3], &[i32::MAX, 1, 1])])), [i32::MIN + 1]);
}

#[test]
fn products_of_small_matrices() {
    let (a, b) = (f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]), f32s(&[2, 2], &[5.0, 6.0, 7.0, 8.0]));
    let of = |transpose_a, transpose_b| op(Op::MatMul { transpose_a, transpose_b }, &[a.clone(), b.clone()]);
    assert_close(&of(false, false), &[19.0, 22.0, 43.0, 50.0]);
    assert_close(&of(true, false), &[26.0, 30.0, 38.0, 44.0]);
    assert_close(&of(false, true), &[17.0, 23.0, 39.0, 53.0]);
    assert_close(&of(true, true), &[23.0, 31.0, 34.0, 46.0]);
    let plain = Op::MatMul { transpose_a: false, transpose_b: false };
    assert_close(&op(plain.clone(), &[f32s(&[2, 0], &[]), f32s(&[0, 1], &[])]), &[0.0, 0.0]);
    // [[1], [2]] stretched over two batches of [[3]] and [[4]]
    let batched = op(plain, &[f32s(&[1, 2, 1], &[1.0, 2.0]), f32s(&[2, 1, 1], &[3.0, 4.0])]);
    assert_eq!(batched.shape(), [2, 2, 1]);
    assert_close(&batched, &[3.0, 6.0, 4.0, 8.0]);
}

#[test]
fn reductions_of_some_and_of_none() {
    use schwann_core::op::Reduction::{Max, Mean, Min, Sum};
    let x = f32s(&[2, 3], &[1.0, 2.0, 6.0, -1.0, 0.0, 4.0]);
    let of = |kind, axes: &[usize], x: &Tensor| {
        op(Op::Reduce { kind, axes: axes.to_vec(), keep: false }, std::slice::from_ref(x))
    };
    assert_close(&of(Sum, &[0], &x), &[0.0, 2.0, 10.0]);
    assert_close(&of(Mean, &[1], &x), &[3.0, 1.0]);
    assert_close(&of(Max, &[0, 1], &x), &[6.0]);
    assert_close(&of(Min, &[], &x), &[1.0, 2.0, 6.0, -1.0, 0.0, 4.0]);
    let none = f32s(&[2, 0], &[]);
    assert_close(&of(Sum, &[1], &none), &[0.0, 0.0]);
    assert_close(&of(Mean, &[1], &none), &[f64::NAN, f64::NAN]);
    assert_close(&of(Max, &[1], &none), &[f64::NEG_INFINITY; 2]);
    assert_close(&of(Min, &[1], &none), &[f64::INFINITY; 2]);
    assert_close(&of(Max, &[0], &f32s(&[2], &[NAN, 1.0])), &[f64::NAN]);
}

#[test]
fn softmax_of_logarithms_gives_their_shares() {
    let x = f32s(&[2, 3], &[0.0, 2f32.ln(), 3f32.ln(), 1000.0, 1000.0, -INF]);
    assert_close(&op(Op::Softmax { axis: 1 }, &[x]), &[1.0 / 6.0, 2.0 / 6.0, 0.5, 0.5, 0.5, 0.0]);
    let column = f32s(&[2, 2], &[0.0, -INF, 3f32.ln(), -INF]);
    assert_close(&op(Op::Softmax { axis: 0 }, &[column]), &[0.25, f64::NAN, 0.75, f64::NAN]);
}

#[test]
fn norms_of_small_rows() {
    // mean 5/2, variance 5/4, so (1 − 5/2)/√(5/4) = −3/√5
    let x = f32s(&[1, 4], &[1.0, 2.0, 3.0, 4.0]);
    let root5 = 5f64.sqrt();
    let plain = [-3.0 / root5, -1.0 / root5, 1.0 / root5, 3.0 / root5];
    assert_close(&op(Op::LayerNorm { eps: Float(0.0) }, std::slice::from_ref(&x)), &plain);
    let (gamma, beta) = (f32s(&[4], &[2.0; 4]), f32s(&[4], &[1.0; 4]));
    assert_close(&op(Op::LayerNorm { eps: Float(0.0) }, &[x, gamma, beta]), &plain.map(|v| 2.0 * v + 1.0));
    // mean of squares 25/2
    let x = [f32s(&[2], &[3.0, 4.0]), f32s(&[2], &[1.0, 10.0])];
    assert_close(&op(Op::RmsNorm { eps: Float(0.0) }, &x), &[0.848_528_137_423_857, 11.313_708_498_984_76]);
    // constant rows: 0/√ε, and 2/√(4 + 5)
    let x = [f32s(&[1], &[2.0])];
    assert_close(&op(Op::LayerNorm { eps: Float(5.0) }, &x), &[0.0]);
    assert_close(&op(Op::RmsNorm { eps: Float(5.0) }, &x), &[2.0 / 3.0]);
}

#[test]
fn attention_weighs_values_by_their_keys() {
    let ln3 = 3f32.ln();
    // Width 4, so the scale is 1/2; the scores are 0, 0 and ln 3, 0: weights 1/2, 1/2 and 3/4, 1/4.
    let q = f32s(&[1, 1, 2, 4], &[0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
    let k = f32s(&[1, 1, 2, 4], &[ln3, 1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 6.0]);
    let v = f32s(&[1, 1, 2, 1], &[10.0, 20.0]);
    let of = |causal, scale, extra: &[Tensor]| {
        op(Op::Attention { causal, scale, positions: false }, &[&[q.clone(), k.clone(), v.clone()], extra].concat())
    };
    assert_close(&of(false, None, &[]), &[15.0, 12.5]);
    assert_close(&of(true, None, &[]), &[10.0, 12.5]);
    // Scale 1: score 2·ln 3, weights 9/10 and 1/10.
    assert_close(&of(false, Some(Float(1.0)), &[]), &[15.0, 11.0]);
    // A mask of −∞ on every key of the first query, and of ln 3 on the last key of the second: 3 to 3.
    let mask = f32s(&[2, 2], &[-INF, -INF, 0.0, ln3]);
    assert_close(&of(false, None, &[mask]), &[0.0, 15.0]);
    // Three queries, one key: causal attention shows it to the last alone.
    let one = [f32s(&[1, 1, 3, 1], &[1.0; 3]), f32s(&[1, 1, 1, 1], &[1.0]), f32s(&[1, 1, 1, 1], &[7.0])];
    assert_close(&op(Op::Attention { causal: true, scale: None, positions: false }, &one), &[0.0, 0.0, 7.0]);
    // Four query heads share two key heads in order.
    let grouped = [f32s(&[1, 4, 1, 1], &[1.0; 4]), f32s(&[1, 2, 1, 1], &[1.0; 2]), f32s(&[1, 2, 1, 1], &[1.0, 2.0])];
    assert_close(&op(Op::Attention { causal: false, scale: None, positions: false }, &grouped), &[1.0, 1.0, 2.0, 2.0]);
}

#[test]
fn elements_move_where_they_should() {
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let one = |o: Op| op(o, std::slice::from_ref(&x));
    assert_close(&one(Op::Transpose { perm: vec![1, 0] }), &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_close(&one(Op::Slice { axis: 1, start: 1.into(), end: 3.into() }), &[2.0, 3.0, 5.0, 6.0]);
    let padded = one(Op::Pad { axis: 0, before: 1.into(), after: 0.into() });
    assert_close(&padded, &[0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_close(
        &op(Op::Concat { axis: 1 }, &[x.clone(), f32s(&[2, 1], &[8.0, 9.0])]),
        &[1., 2., 3., 8., 4., 5., 6., 9.],
    );
    let gathered = op(Op::Gather { axis: 1 }, &[x.clone(), i32s(&[2, 2], &[2, 0, 0, 1])]);
    assert_eq!(gathered.shape(), [2, 2, 2]);
    assert_close(&gathered, &[3.0, 1.0, 1.0, 2.0, 6.0, 4.0, 4.0, 5.0]);
    let rows = f32s(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let summed = op(Op::SegmentSum { axis: 0, segments: 3.into() }, &[rows, i32s(&[3], &[2, 0, 2])]);
    assert_close(&summed, &[3.0, 4.0, 0.0, 0.0, 6.0, 8.0]);
}

#[test]
fn conversions_truncate_saturate_and_keep_low_bits() {
    let cast = |t: &Tensor, dtype| op(Op::Cast { dtype }, std::slice::from_ref(t)).to_f64();
    let x = f32s(&[7], &[1.9, -1.9, 300.0, -300.0, NAN, INF, 0.4]);
    assert_eq!(cast(&x, DType::I8), [1.0, -1.0, 127.0, -128.0, 0.0, 127.0, 0.0]);
    assert_eq!(cast(&x, DType::U8), [1.0, 0.0, 255.0, 0.0, 0.0, 255.0, 0.0]);
    assert_eq!(cast(&x, DType::I32), [1.0, -1.0, 300.0, -300.0, 0.0, f64::from(i32::MAX), 0.0]);
    assert_eq!(cast(&f32s(&[3], &[0.0, -0.0, NAN]), DType::Bool), [0.0, 0.0, 1.0]);
    let n = i32s(&[4], &[-1, 256, 384, 16_777_217]);
    assert_eq!(cast(&n, DType::U8), [255.0, 0.0, 128.0, 1.0]);
    assert_eq!(cast(&n, DType::I8), [-1.0, 0.0, -128.0, 1.0]);
    assert_eq!(cast(&n, DType::F32), [-1.0, 256.0, 384.0, 16_777_216.0]);
    // f16 has 11 bits: 2049 lies between 2048 and 2050 and goes to the even one; 65520 is the first beyond its range.
    let h = cast(&f32s(&[4], &[2049.0, 2051.0, 65_519.0, 65_520.0]), DType::F16);
    assert_eq!(h, [2048.0, 2052.0, 65_504.0, f64::INFINITY]);
    // bf16 has 8.
    assert_eq!(cast(&f32s(&[2], &[257.0, 259.0]), DType::Bf16), [256.0, 260.0]);
}

#[test]
fn bytes_and_back() {
    let x = f32s(&[7], &[0.25, 0.75, -0.75, 100.0, NAN, -INF, 0.0]);
    let (scale, zero) = (Tensor::scalar(0.5f32), Tensor::scalar(1i32));
    let q = op(Op::Quantize { dtype: DType::I8 }, &[x.clone(), scale.clone(), zero.clone()]);
    assert_eq!(q.values::<i8>().unwrap(), [1, 3, -1, 127, 1, -128, 1]);
    let u = op(Op::Quantize { dtype: DType::U8 }, &[x, scale, zero]);
    assert_eq!(u.values::<u8>().unwrap(), [1, 3, 0, 201, 1, 0, 1]);
    let back = [Tensor::new(&[2, 2], &[10u8, 0, 255, 3]).unwrap(), f32s(&[2], &[0.5, 2.0]), i32s(&[2, 1], &[3, 0])];
    assert_close(&op(Op::Dequantize, &back), &[3.5, -6.0, 127.5, 6.0]);
}

/// s' = s + x, y = s'
fn sum_body() -> Graph {
    let mut b = GraphBuilder::new();
    let (s, x) = (b.input("s", DType::F32, []).unwrap(), b.input("x", DType::F32, []).unwrap());
    let sum = b.add(s, x).unwrap();
    b.output("s_next", sum).unwrap();
    b.output("y", sum).unwrap();
    b.build().unwrap()
}

#[test]
fn loops_run_both_ways_and_not_at_all() {
    let scan =
        |reverse| Op::Scan(Box::new(Scan { body: sum_body().into(), states: 1, sequences: 1, axis: 0, reverse }));
    let inputs = [Tensor::scalar(10.0f32), f32s(&[3], &[1.0, 2.0, 3.0])];
    let forward = try_op(scan(false), &inputs).unwrap();
    assert_close(&forward[0], &[16.0]);
    assert_close(&forward[1], &[11.0, 13.0, 16.0]);
    let backward = try_op(scan(true), &inputs).unwrap();
    assert_close(&backward[0], &[16.0]);
    assert_close(&backward[1], &[16.0, 15.0, 13.0]);
    let still = try_op(scan(false), &[Tensor::scalar(10.0f32), f32s(&[0], &[])]).unwrap();
    assert_close(&still[0], &[10.0]);
    assert_eq!(still[1].shape(), [0]);
}

#[test]
fn fused_programs_round_once_at_their_end() {
    use schwann_core::op::Binary;
    // In f16, 2048 + 1 is 2048; kept wide until 2048 is taken away again, the 1 survives.
    let half = |v: f64| Tensor::from_f64(DType::F16, &[1], &[v]).unwrap();
    let code = vec![
        MapInstr::Input(0),
        MapInstr::Input(1),
        MapInstr::Binary(Binary::Add, 0, 1),
        MapInstr::Binary(Binary::Sub, 2, 0),
    ];
    let fused = op(Op::map(Map { code }, DType::F16), &[half(2048.0), half(1.0)]);
    assert_eq!(fused.to_f64(), [1.0]);
    let sum = op(Op::Binary(Binary::Add), &[half(2048.0), half(1.0)]);
    assert_eq!(sum.to_f64(), [2048.0]);
}

#[test]
fn without_rounding_small_differences_survive() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1]).unwrap();
    let one = b.scalar(1.0).unwrap();
    let y = b.add(x, one).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let x = HostValue { dtype: DType::F32, shape: vec![1], data: vec![1e-12] };
    let wide = run_f64(&graph, &BTreeMap::from([("x".to_owned(), x.clone())])).unwrap();
    assert_eq!(wide[0].data, [1.0 + 1e-12]);
    let narrow = run(&graph, &BTreeMap::from([("x".to_owned(), x.to_tensor().unwrap())]), Precision::Storage).unwrap();
    assert_eq!(narrow[0].to_f64(), [1.0]);
}

#[test]
fn a_bad_index_is_an_error_that_names_node_and_index() {
    let problem = |e: Error| match e {
        Error::Value { node, problem } => {
            assert_eq!(node, "the_node");
            problem
        }
        other => panic!("{other}"),
    };
    let x = f32s(&[3], &[1.0, 2.0, 3.0]);
    for bad in [3, -1, i32::MAX, i32::MIN] {
        let gather = try_op(Op::Gather { axis: 0 }, &[x.clone(), i32s(&[2], &[0, bad])]);
        let text = problem(gather.unwrap_err());
        assert!(text.contains(&format!("index {bad} ")) && text.contains("0..3"), "{text}");
        let sum = Op::SegmentSum { axis: 0, segments: 2.into() };
        let text = problem(try_op(sum, &[x.clone(), i32s(&[3], &[0, 1, bad])]).unwrap_err());
        assert!(text.contains(&format!("segment {bad} ")) && text.contains("0..2"), "{text}");
    }
}

/// A graph of x: f32[T, 3] with a slice that needs four steps.
fn sliced() -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["T", 3]).unwrap();
    let y = b.named("head").slice(x, 0, 0, 4).unwrap();
    b.output("y", y).unwrap();
    b.build().unwrap()
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let given = |name: &str, t: Tensor| BTreeMap::from([(name.to_owned(), t)]);
    let result = |inputs| run(&sliced(), &inputs, Precision::Storage);
    assert_eq!(result(given("x", Tensor::zeros(DType::F32, &[5, 3]).unwrap())).unwrap()[0].shape(), [4, 3]);
    let short = result(given("x", Tensor::zeros(DType::F32, &[2, 3]).unwrap()));
    assert!(matches!(short, Err(Error::Value { node, .. }) if node == "head"));
    let input_error = |r: Result<Vec<Tensor>>| matches!(r, Err(Error::Input { name, .. }) if name == "x");
    assert!(input_error(result(BTreeMap::new())));
    assert!(input_error(result(given("x", Tensor::zeros(DType::F32, &[5, 4]).unwrap()))));
    assert!(input_error(result(given("x", Tensor::zeros(DType::I32, &[5, 3]).unwrap()))));
    assert!(input_error(result(given("x", Tensor::zeros(DType::F32, &[5]).unwrap()))));
    let mut extra = given("x", Tensor::zeros(DType::F32, &[5, 3]).unwrap());
    extra.insert("z".into(), Tensor::scalar(0i32));
    assert!(matches!(result(extra), Err(Error::Unknown { kind: "input", .. })));
}

#[test]
fn a_weight_without_data_and_a_value_beyond_memory_are_errors() {
    let mut b = GraphBuilder::new();
    let w = b.weight_slot("w", DType::F32, &[2]).unwrap();
    b.output("y", w).unwrap();
    let missing = run(&b.build().unwrap(), &BTreeMap::new(), Precision::Storage);
    assert!(matches!(missing, Err(Error::Unknown { name, .. }) if name == "w"));
    let huge =
        try_op(Op::Broadcast { shape: shape![1_000_000_000, 1_000_000_000, 1_000_000_000] }, &[Tensor::scalar(0.0f32)]);
    assert!(matches!(huge, Err(Error::Value { .. })), "{huge:?}");
    let large = try_op(Op::Broadcast { shape: shape![1_000_000_000, 1_000_000_000] }, &[Tensor::scalar(0.0f32)]);
    assert!(matches!(large, Err(Error::Value { .. })), "{large:?}");
}

#[test]
fn a_state_that_is_not_given_starts_at_zero() {
    let mut b = GraphBuilder::new();
    let (x, h) = (b.input("x", DType::F32, shape!["B"]).unwrap(), b.input("h", DType::F32, shape!["B"]).unwrap());
    let sum = b.add(x, h).unwrap();
    b.output("next", sum).unwrap();
    b.state("h", "next").unwrap();
    let inputs = BTreeMap::from([("x".to_owned(), f32s(&[2], &[1.0, 2.0]))]);
    assert_close(&run(&b.build().unwrap(), &inputs, Precision::Storage).unwrap()[0], &[1.0, 2.0]);
}

#[test]
fn one_node_can_be_evaluated_alone_and_checks_what_it_is_given() {
    let graph = sliced();
    let node = graph.nodes().last().unwrap();
    let bindings = Bindings::new().with("T", 5);
    let outs = concrete(&node.outs, &bindings).unwrap();
    let x = HostValue { dtype: DType::F32, shape: vec![5, 3], data: (0..15).map(f64::from).collect() };
    let eval = |x: &HostValue| eval_node(&node.name, &node.op, &[x], &outs, &bindings, Precision::Storage);
    assert_eq!(eval(&x).unwrap()[0].data, (0..12).map(f64::from).collect::<Vec<_>>());
    assert!(eval(&HostValue { data: vec![0.0], ..x.clone() }).is_err());
    assert!(eval(&HostValue { shape: vec![3, 5], ..x.clone() }).is_err());
    let add = Op::Binary(schwann_core::op::Binary::Add);
    let wrong = eval_node("n", &add, &[&x], &[(DType::F32, vec![5, 3])], &bindings, Precision::Storage);
    assert!(matches!(wrong, Err(Error::Value { node, .. }) if node == "n"));
    let input = Op::Input { name: "x".into(), ty: graph.input_types()[0].clone() };
    assert!(eval_node("n", &input, &[], &[(DType::F32, vec![5, 3])], &bindings, Precision::Storage).is_err());
}
