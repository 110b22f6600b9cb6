//! Cases of the fused operations that passes make, built by hand.

use super::random::SPECIAL;
use super::{Dims, List, Tolerance, sizes};
use crate::dtype::DType;
use crate::graph::{GraphBuilder, Value};
use crate::op::{Binary, Compare, Float, Map, MapInstr, MapResult, Op, Unary};
use crate::shape;
use crate::tensor::Tensor;
use MapInstr::{Input, Select, Trunc};

fn number(value: f32) -> MapInstr {
    MapInstr::Const(Float(value))
}
fn un(op: Unary, a: u16) -> MapInstr {
    MapInstr::Unary(op, a)
}
fn bin(op: Binary, a: u16, b: u16) -> MapInstr {
    MapInstr::Binary(op, a, b)
}
fn cmp(op: Compare, a: u16, b: u16) -> MapInstr {
    MapInstr::Compare(op, a, b)
}

/// (name, program, shapes of its inputs)
type Program = (&'static str, Vec<MapInstr>, Vec<Dims>);

fn programs() -> Vec<Program> {
    let mut long = vec![Input(0)];
    for i in 0..40u16 {
        long.push(un(if i % 2 == 0 { Unary::Tanh } else { Unary::Sin }, i));
    }
    vec![
        ("copy", vec![Input(0)], vec![&[17]]),
        ("constant", vec![number(2.5)], vec![&[3, 5]]),
        ("add-tanh", vec![Input(0), Input(1), bin(Binary::Add, 0, 1), un(Unary::Tanh, 2)], vec![&[5, 33], &[33]]),
        (
            "gate",
            vec![Input(0), Input(1), un(Unary::Sigmoid, 0), un(Unary::Tanh, 1), bin(Binary::Mul, 2, 3)],
            vec![&[7, 65], &[7, 65]],
        ),
        (
            // a + (b − a)·sigmoid(t)
            "lerp",
            vec![
                Input(0),
                Input(1),
                Input(2),
                un(Unary::Sigmoid, 2),
                bin(Binary::Sub, 1, 0),
                bin(Binary::Mul, 4, 3),
                bin(Binary::Add, 0, 5),
            ],
            vec![&[3, 17], &[3, 17], &[3, 17]],
        ),
        (
            "affine-of-three-shapes",
            vec![Input(0), Input(1), Input(2), bin(Binary::Mul, 0, 1), bin(Binary::Add, 3, 2)],
            vec![&[5, 1], &[], &[3, 1, 7]],
        ),
        (
            "leaky-relu",
            vec![Input(0), number(0.0), number(0.1), cmp(Compare::Gt, 0, 1), bin(Binary::Mul, 0, 2), Select(3, 0, 4)],
            vec![&[127]],
        ),
        (
            "lecun-tanh",
            vec![
                Input(0),
                number(0.666),
                bin(Binary::Mul, 0, 1),
                un(Unary::Tanh, 2),
                number(1.7159),
                bin(Binary::Mul, 3, 4),
            ],
            vec![&[2, 3, 5]],
        ),
        ("clamp-to-infinity", vec![Input(0), number(f32::INFINITY), bin(Binary::Min, 0, 1)], vec![&[17]]),
        ("unused-values", vec![Input(0), un(Unary::Exp, 0), un(Unary::Log, 1), un(Unary::Neg, 0)], vec![&[9], &[9]]),
        ("long", long, vec![&[33]]),
        ("empty", vec![Input(0), un(Unary::Exp, 0)], vec![&[0, 4]]),
    ]
}

pub(super) fn map(list: &mut List<'_>) {
    for (what, code, shapes) in programs() {
        for dtype in [DType::F32, DType::F16] {
            list.add("map", format!("{what}/{dtype}"), Tolerance::CHAIN.stored_as(dtype), |m| {
                let mut inputs = vec![];
                for shape in &shapes {
                    let data = m.random.floats_as(dtype, shape, -1.0, 1.0);
                    inputs.push(m.given(data)?);
                }
                let y = m.push(Op::map(Map { code: code.clone() }, dtype), &inputs)?;
                m.result(y)
            });
        }
    }
    for dtype in [DType::I8, DType::U8, DType::I32, DType::Bool, DType::Bf16] {
        let tolerance = if dtype == DType::Bf16 { Tolerance::ROUNDING.stored_as(dtype) } else { Tolerance::EXACT };
        list.add("map", format!("trunc-to-{dtype}"), tolerance, |m| {
            let x = m.given(Tensor::new(&[SPECIAL.len()], &SPECIAL)?)?;
            let code = vec![Input(0), number(3.0), bin(Binary::Mul, 0, 1), Trunc(2)];
            let y = m.push(Op::map(Map { code }, dtype), &[x])?;
            m.result(y)
        });
    }
    // A number that is stored as a truth value reads as 0 or 1, whether it passes through memory or not.
    list.add("map", "number-as-flag", Tolerance::EXACT, |m| {
        let x = m.given(Tensor::new(&[SPECIAL.len()], &SPECIAL)?)?;
        let code = vec![Input(0), number(0.25), bin(Binary::Mul, 0, 1)];
        let flag = m.push(Op::map(Map { code }, DType::Bool), &[x])?;
        let y = m.cast(flag, DType::F32)?;
        m.result(y)
    });
    list.add("map", "mixed-types", Tolerance::CHAIN, |m| {
        let (a, b, c) = (m.random.ints(&[5, 1], -100, 100), m.random.bools(&[7]), m.random.any(DType::U8, &[5, 7]));
        let h = m.random.floats_as(DType::F16, &[7], -1.0, 1.0);
        let inputs = [m.given(a)?, m.given(b)?, m.given(c)?, m.given(h)?];
        let code =
            vec![Input(0), Input(1), Input(2), Input(3), Select(1, 0, 2), bin(Binary::Mul, 4, 3), un(Unary::Not, 1)];
        let last = bin(Binary::Add, 5, 6);
        let code = code.into_iter().chain([last]).collect();
        let y = m.push(Op::map(Map { code }, DType::F32), &inputs)?;
        m.result(y)
    });
    for from in DType::ALL {
        list.add("map", format!("reads-{from}"), Tolerance::ROUNDING, |m| {
            let (a, b) = (m.random.any(from, &[7, 5]), m.random.any(from, &[5]));
            let inputs = [m.given(a)?, m.given(b)?];
            let code = vec![Input(0), Input(1), number(0.5), bin(Binary::Mul, 1, 2), bin(Binary::Max, 0, 3)];
            let y = m.push(Op::map(Map { code }, DType::F32), &inputs)?;
            m.result(y)
        });
    }
    list.add("map", "nan-logic", Tolerance::EXACT, |m| {
        let n = SPECIAL.len();
        let (a, b) = (m.given(Tensor::new(&[n, 1], &SPECIAL)?)?, m.given(Tensor::new(&[n], &SPECIAL)?)?);
        let code = vec![
            Input(0),
            Input(1),
            cmp(Compare::Ne, 0, 0),
            cmp(Compare::Lt, 0, 1),
            bin(Binary::Or, 2, 3),
            bin(Binary::Max, 0, 1),
            Select(4, 5, 1),
        ];
        let y = m.push(Op::map(Map { code }, DType::F32), &[a, b])?;
        m.result(y)
    });
}

/// Programs with several results: (name, program, shapes of its inputs, further results).
type Several = (&'static str, Vec<MapInstr>, Vec<Dims>, &'static [u16]);

pub(super) fn several_results(list: &mut List<'_>) {
    let sum_tanh = || vec![Input(0), Input(1), bin(Binary::Add, 0, 1), un(Unary::Tanh, 2)];
    // What an LSTM does to its four gates.
    let cell = vec![
        Input(0),
        un(Unary::Sigmoid, 0),
        Input(1),
        un(Unary::Sigmoid, 2),
        Input(2),
        un(Unary::Tanh, 4),
        Input(3),
        un(Unary::Sigmoid, 6),
        Input(4),
        bin(Binary::Mul, 3, 8),
        bin(Binary::Mul, 1, 5),
        bin(Binary::Add, 9, 10),
        un(Unary::Tanh, 11),
        bin(Binary::Mul, 7, 12),
    ];
    let many: Vec<MapInstr> = std::iter::once(Input(0)).chain((0..9).map(|i| un(Unary::Sin, i))).collect();
    let all: Vec<Several> = vec![
        ("inner-value", sum_tanh(), vec![&[5, 33], &[33]], &[2]),
        ("long-rows", sum_tanh(), vec![&[3, 1029], &[3, 1]], &[2]),
        ("many-elements", sum_tanh(), vec![&[130, 517], &[130, 517]], &[2]),
        ("lstm", cell, vec![&[3, 17]; 5], &[11]),
        // Results that are an operand, a constant, and one value twice.
        (
            "operands",
            vec![Input(0), Input(1), number(2.5), bin(Binary::Mul, 0, 1)],
            vec![&[3, 5], &[5]],
            &[0, 1, 2, 3, 0],
        ),
        ("operand-last", vec![Input(0), un(Unary::Exp, 0), Input(1)], vec![&[17], &[]], &[1]),
        // The second input is not read, and gives the results their shape.
        ("shape-of-another", vec![Input(0), un(Unary::Neg, 0), un(Unary::Exp, 1)], vec![&[5], &[3, 5]], &[1]),
        ("four-axes", sum_tanh(), vec![&[2, 3, 1, 5], &[2, 1, 4, 5]], &[2, 0]),
        ("eight-results", many, vec![&[33]], &[1, 2, 3, 4, 5, 6, 7]),
        ("empty", sum_tanh(), vec![&[0, 4], &[4]], &[2]),
    ];
    for (what, code, shapes, also) in all {
        for dtype in [DType::F32, DType::F16] {
            let tolerance = Tolerance::CHAIN.stored_as(dtype);
            let case = list.add("map", format!("several/{what}/{dtype}"), tolerance, |m| {
                let mut inputs = vec![];
                for shape in &shapes {
                    let data = m.random.floats_as(dtype, shape, -1.0, 1.0);
                    inputs.push(m.given(data)?);
                }
                let also: Vec<_> = also.iter().map(|&at| MapResult { at, dtype }).collect();
                let results = 0..=also.len() as u16;
                let y = m.push(Op::Map { map: Map { code: code.clone() }, dtype, also }, &inputs)?;
                results.into_iter().try_for_each(|slot| m.result(Value { slot, ..y }))
            });
            case.gradient = dtype == DType::F32 && matches!(what, "inner-value" | "lstm" | "operands");
        }
    }
    // Results of every type, wide and narrow, with numbers that are hard to store.
    for dtype in DType::ALL {
        list.add("map", format!("several/as-{dtype}"), Tolerance::ROUNDING.stored_as(dtype), |m| {
            let x = m.given(Tensor::new(&[SPECIAL.len()], &SPECIAL)?)?;
            let code = vec![Input(0), number(3.0), bin(Binary::Mul, 0, 1), Trunc(2), cmp(Compare::Lt, 0, 1)];
            let also = [(3, dtype), (0, DType::F32), (2, DType::F32)].map(|(at, dtype)| MapResult { at, dtype });
            let y = m.push(Op::Map { map: Map { code }, dtype: DType::Bool, also: also.to_vec() }, &[x])?;
            (0..4).try_for_each(|slot| m.result(Value { slot, ..y }))
        });
    }
    // A constant 0, divided by itself and as a divisor; as truth values, NaN and infinities are true.
    list.add("map", "several/zero-divided", Tolerance::EXACT, |m| {
        let x = m.given(Tensor::new(&[3], &[f32::INFINITY, 0.0, -2.0])?)?;
        let code = vec![
            Input(0),
            number(0.0),
            bin(Binary::Div, 1, 1),
            bin(Binary::Min, 1, 1),
            bin(Binary::Div, 3, 1),
            number(2.0),
            bin(Binary::Sub, 5, 5),
            bin(Binary::Mul, 0, 6),
            bin(Binary::Div, 0, 1),
        ];
        let also = [2, 4, 7, 8].map(|at| MapResult { at, dtype: DType::F32 });
        let also = [&[MapResult { at: 2, dtype: DType::Bool }], &also[..]].concat();
        let y = m.push(Op::Map { map: Map { code }, dtype: DType::Bool, also }, &[x])?;
        (0..6).try_for_each(|slot| m.result(Value { slot, ..y }))
    });
    // Some results are read later, one never; operands are read for the last time and may be overwritten.
    list.add("map", "several/read-on", Tolerance::CHAIN, |m| {
        let (x, w) = (m.uniform(&[9, 16])?, m.trained_uniform(&[16, 16])?);
        let (a, b) = (m.matmul(x, w)?, m.softmax(x, 1)?);
        let code = vec![
            Input(0),
            Input(1),
            bin(Binary::Add, 0, 1),
            un(Unary::Tanh, 2),
            bin(Binary::Mul, 3, 1),
            un(Unary::Exp, 2),
        ];
        let also = [(3, DType::F32), (2, DType::F32), (4, DType::F32)].map(|(at, dtype)| MapResult { at, dtype });
        let y = m.push(Op::Map { map: Map { code }, dtype: DType::F32, also: also.to_vec() }, &[a, b])?;
        let [tanh, product] = [1, 3].map(|slot| Value { slot, ..y });
        let joined = m.concat(&[tanh, product], 0)?;
        let again = m.matmul(tanh, w)?;
        m.result(joined)?;
        m.result(again)?;
        m.result(y)
    });
    // The first result is not read, so what only it needs is removed too.
    list.add("map", "several/without-the-first", Tolerance::CHAIN, |m| {
        let (x, z) = (m.uniform(&[5, 7])?, m.uniform(&[5, 7])?);
        let z = m.softmax(z, 1)?;
        let code = vec![Input(0), un(Unary::Tanh, 0), Input(1), bin(Binary::Mul, 1, 2)];
        let also = vec![MapResult { at: 0, dtype: DType::F16 }, MapResult { at: 1, dtype: DType::F32 }];
        let y = m.push(Op::Map { map: Map { code }, dtype: DType::F32, also }, &[x, z])?;
        m.result(Value { slot: 2, ..y })?;
        m.result(Value { slot: 1, ..y })
    });
    // Both results are states of a loop whose rows are independent.
    for (batch, steps) in [(1, 3), (5, 2), (37, 3)] {
        list.add("map", format!("several/loop/{}", sizes(&[batch, steps])), Tolerance::NETWORK, |m| {
            let body = {
                let mut b = GraphBuilder::new();
                let [h, c, x] = ["h", "c", "x"].map(|name| b.input(name, DType::F32, shape!["B", 6]));
                let (h, c, x) = (h?, c?, x?);
                let w = b.input("w", DType::F32, [6, 6])?;
                let p = b.matmul(h, w)?;
                let code = vec![
                    Input(0),
                    Input(1),
                    Input(2),
                    bin(Binary::Add, 0, 2),
                    un(Unary::Sigmoid, 3),
                    bin(Binary::Mul, 4, 1),
                    bin(Binary::Add, 5, 0),
                    un(Unary::Tanh, 6),
                ];
                let also = vec![MapResult { at: 6, dtype: DType::F32 }, MapResult { at: 4, dtype: DType::F32 }];
                let h = b.push(Op::Map { map: Map { code }, dtype: DType::F32, also }, &[p, c, x])?;
                b.output("h", h)?;
                b.output("c", Value { slot: 1, ..h })?;
                b.output("gate", Value { slot: 2, ..h })?;
                b.build()?
            };
            let x = m.uniform_as(shape!["B", "T", 6], &[batch, steps, 6])?;
            let (h, c) = (m.uniform_as(shape!["B", 6], &[batch, 6])?, m.uniform_as(shape!["B", 6], &[batch, 6])?);
            let w = m.trained_uniform(&[6, 6])?;
            let outs = m.scan(body, &[h, c], &[x], &[w], 1)?;
            outs.into_iter().try_for_each(|v| m.result(v))
        })
        .gradient = batch == 5;
    }
}

/// Elementwise work that passes join, with intermediate values that are read elsewhere too.
pub(super) fn joined(list: &mut List<'_>) {
    // c' = σ(f)·c + σ(i)·tanh g, h' = σ(o)·tanh c'; with `saved` all of them are results, as a gradient needs them.
    for (batch, saved) in [(1, false), (1, true), (9, true), (33, false)] {
        let name = format!("lstm-step/{batch}{}", if saved { "/saved" } else { "" });
        list.add("joined", name, Tolerance::NETWORK, |m| {
            let x = m.uniform_as(shape!["B", 5], &[batch, 5])?;
            let c = m.uniform_as(shape!["B", 16], &[batch, 16])?;
            let w = m.trained_uniform(&[5, 64])?;
            let gates = m.matmul(x, w)?;
            let gate = |k: usize| Op::Slice { axis: 1, start: (16 * k).into(), end: (16 * k + 16).into() };
            let [i, f, g, o] = [0, 1, 2, 3].map(|k| m.push(gate(k), &[gates]));
            let (i, f, g, o) = (m.sigmoid(i?)?, m.sigmoid(f?)?, m.tanh(g?)?, m.sigmoid(o?)?);
            let (kept, new) = (m.mul(f, c)?, m.mul(i, g)?);
            let c = m.add(kept, new)?;
            let t = m.tanh(c)?;
            let h = m.mul(o, t)?;
            let all = [h, c, i, f, g, o, t];
            all[..if saved { 7 } else { 2 }].iter().try_for_each(|v| m.result(*v))
        })
        .gradient = batch < 10;
    }
    // The second map depends on the first by way of a product, so they must not become one map.
    list.add("joined", "not-around-a-product", Tolerance::CHAIN, |m| {
        let (x, w) = (m.uniform(&[7, 8])?, m.trained_uniform(&[8, 8])?);
        let a = m.tanh(x)?;
        let p = m.matmul(a, w)?;
        let s = m.softmax(p, 1)?;
        let y = m.mul(a, s)?;
        m.result(y)?;
        m.result(a)
    })
    .smooth();
    // Two pairs of maps: either could be joined, but not both, since they would then depend on each other.
    list.add("joined", "not-both-ways", Tolerance::CHAIN, |m| {
        let (x, z) = (m.uniform(&[7, 8])?, m.uniform(&[7, 8])?);
        let (a, b) = (m.tanh(x)?, m.sigmoid(z)?);
        let (sa, sb) = (m.softmax(a, 1)?, m.softmax(b, 1)?);
        let (p, q) = (m.mul(a, sb)?, m.mul(b, sa)?);
        [p, q, a, b].into_iter().try_for_each(|v| m.result(v))
    })
    .smooth();
    list.add("joined", "siblings", Tolerance::CHAIN, |m| {
        let (x, z) = (m.uniform(&[5, 1, 9])?, m.uniform(&[5, 3, 9])?);
        let (a, b) = (m.mul(x, z)?, m.tanh(z)?);
        let (a, b) = (m.exp(a)?, m.sub(b, x)?);
        m.result(a)?;
        m.result(b)
    })
    .smooth();
    // A value that is stored as a narrow float must be rounded to it before it is read.
    list.add("joined", "rounded-between", Tolerance::EXACT, |m| {
        let x = m.given(Tensor::new(&[3], &[1.0009766f32, 2049.0, -0.1])?)?;
        let narrow = m.cast(x, DType::F16)?;
        let wide = m.cast(narrow, DType::F32)?;
        let off = m.sub(wide, x)?;
        m.result(narrow)?;
        m.result(off)
    });
    list.add("joined", "flags", Tolerance::EXACT, |m| {
        let x = m.given(Tensor::new(&[SPECIAL.len()], &SPECIAL)?)?;
        let zero = m.scalar(0.0f32)?;
        let flag = m.gt(x, zero)?;
        let y = m.select(flag, x, zero)?;
        m.result(flag)?;
        m.result(y)
    });
}

pub(super) fn matmul_map(list: &mut List<'_>) {
    let bias_tanh = vec![Input(0), Input(1), bin(Binary::Add, 0, 1), un(Unary::Tanh, 2)];
    for ([m, k, n], (ta, tb)) in [
        ([1, 33, 17], (false, false)),
        ([17, 33, 5], (false, true)),
        ([7, 65, 33], (true, false)),
        ([33, 17, 65], (true, true)),
        ([5, 0, 3], (false, false)),
        ([0, 4, 3], (false, false)),
    ] {
        let name =
            format!("bias-tanh/{}{}{}", sizes(&[m, k, n]), if ta { "/aT" } else { "" }, if tb { "/bT" } else { "" });
        list.add("matmul_map", name, Tolerance::CHAIN, |c| {
            let a = c.uniform(&if ta { [k, m] } else { [m, k] })?;
            let b = c.trained_uniform(&if tb { [n, k] } else { [k, n] })?;
            let bias = c.trained_uniform(&[n])?;
            let map = Map { code: bias_tanh.clone() };
            let op = Op::MatMulMap { transpose_a: ta, transpose_b: tb, map, dtype: DType::F32 };
            let y = c.push(op, &[a, b, bias])?;
            c.result(y)
        });
    }
    let relu = vec![Input(0), un(Unary::Relu, 0)];
    let residual = vec![Input(0), Input(1), Input(2), bin(Binary::Mul, 0, 2), bin(Binary::Add, 3, 1)];
    let square = vec![Input(0), un(Unary::Square, 0)];
    let extras: [(&str, &[MapInstr], Dims, &[Dims]); 5] = [
        ("relu", &relu, &[9, 17], &[]),
        ("residual-and-scalar", &residual, &[5, 17], &[&[5, 6], &[]]),
        ("residual-and-column", &residual, &[5, 17], &[&[6], &[5, 1]]),
        ("batched", &residual, &[2, 3, 5, 17], &[&[2, 3, 5, 6], &[3, 1, 6]]),
        ("square", &square, &[3, 4, 17], &[]),
    ];
    for (what, code, a, rest) in extras {
        list.add("matmul_map", what, Tolerance::CHAIN, |m| {
            let mut inputs = vec![m.uniform(a)?, m.trained_uniform(&[17, 6])?];
            for shape in rest {
                inputs.push(m.uniform(shape)?);
            }
            let map = Map { code: code.to_vec() };
            let op = Op::MatMulMap { transpose_a: false, transpose_b: false, map, dtype: DType::F32 };
            let y = m.push(op, &inputs)?;
            m.result(y)
        });
    }
    for dtype in [DType::F16, DType::Bf16] {
        list.add("matmul_map", format!("bias-tanh/{dtype}"), Tolerance::CHAIN.stored_as(dtype), |m| {
            let (a, b) =
                (m.random.floats_as(dtype, &[5, 33], -1.0, 1.0), m.random.floats_as(dtype, &[33, 7], -0.2, 0.2));
            let bias = m.random.floats_as(dtype, &[7], -1.0, 1.0);
            let inputs = [m.given(a)?, m.trained(b)?, m.trained(bias)?];
            let map = Map { code: bias_tanh.clone() };
            let y = m.push(Op::MatMulMap { transpose_a: false, transpose_b: false, map, dtype }, &inputs)?;
            m.result(y)
        });
    }
    for dtype in [DType::F16, DType::Bf16] {
        for (ta, tb) in [(true, false), (false, true), (true, true)] {
            let name = format!("bias-tanh/{dtype}{}{}", if ta { "/aT" } else { "" }, if tb { "/bT" } else { "" });
            list.add("matmul_map", name, Tolerance::CHAIN.stored_as(dtype), |m| {
                let a = m.random.floats_as(dtype, &if ta { [17, 5] } else { [5, 17] }, -1.0, 1.0);
                let b = m.random.floats_as(dtype, &if tb { [7, 17] } else { [17, 7] }, -0.2, 0.2);
                let bias = m.random.floats_as(dtype, &[7], -1.0, 1.0);
                let inputs = [m.given(a)?, m.trained(b)?, m.trained(bias)?];
                let map = Map { code: bias_tanh.clone() };
                let y = m.push(Op::MatMulMap { transpose_a: ta, transpose_b: tb, map, dtype: DType::F32 }, &inputs)?;
                m.result(y)
            });
        }
    }
    // What is added to the product may be of any type, and of either of its sizes.
    for dtype in DType::ALL {
        list.add("matmul_map", format!("reads-{dtype}"), Tolerance::CHAIN, |m| {
            let (row, column) = (m.random.any(dtype, &[6]), m.random.any(dtype, &[5, 1]));
            let inputs = [m.uniform(&[5, 17])?, m.trained_uniform(&[17, 6])?, m.given(row)?, m.given(column)?];
            let code = vec![Input(0), Input(1), Input(2), number(0.01), bin(Binary::Add, 1, 2), bin(Binary::Mul, 4, 3)];
            let map = Map { code: code.into_iter().chain([bin(Binary::Add, 0, 5)]).collect() };
            let op = Op::MatMulMap { transpose_a: false, transpose_b: false, map, dtype: DType::F32 };
            let y = m.push(op, &inputs)?;
            m.result(y)
        });
    }
    // The product is not rounded to f16 before the program: 4096 + 1 survives until 4096 is subtracted.
    list.add("matmul_map", "product-is-not-rounded", Tolerance::EXACT, |m| {
        let a = m.given(Tensor::from_f64(DType::F16, &[1, 2], &[64.0, 1.0])?)?;
        let b = m.given(Tensor::from_f64(DType::F16, &[2, 1], &[64.0, 1.0])?)?;
        let code = vec![Input(0), number(4096.0), bin(Binary::Sub, 0, 1)];
        let op = Op::MatMulMap { transpose_a: false, transpose_b: false, map: Map { code }, dtype: DType::F16 };
        let y = m.push(op, &[a, b])?;
        m.result(y)
    });
    list.add("matmul_map", "to-other-types", Tolerance::EXACT, |m| {
        let a = m.given(Tensor::new(&[2, 2], &[1.0f32, 2.0, 3.0, -200.0])?)?;
        let b = m.given(Tensor::new(&[2, 2], &[1.5f32, -2.0, 3.0, 0.25])?)?;
        for dtype in [DType::I8, DType::U8, DType::I32, DType::Bool] {
            let map = Map { code: vec![Input(0), Trunc(0)] };
            let op = Op::MatMulMap { transpose_a: false, transpose_b: false, map, dtype };
            let y = m.push(op, &[a, b])?;
            m.result(y)?;
        }
        Ok(())
    });
}
