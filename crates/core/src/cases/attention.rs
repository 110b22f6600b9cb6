//! Cases of attention: causal, masked, grouped, with as many queries as keys or not.

use super::{List, Maker, Tolerance};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Value;
use crate::op::{Float, Op};
use crate::tensor::Tensor;

struct Sizes {
    batch: usize,
    heads: usize,
    groups: usize,
    queries: usize,
    keys: usize,
    width: usize,
    out: usize,
}

fn sizes([batch, heads, groups, queries, keys, width, out]: [usize; 7]) -> Sizes {
    Sizes { batch, heads, groups, queries, keys, width, out }
}

fn operands(m: &mut Maker, s: &Sizes, dtype: DType) -> Result<[Value; 3]> {
    let q = m.random.floats_as(dtype, &[s.batch, s.heads, s.queries, s.width], -1.5, 1.5);
    let k = m.random.floats_as(dtype, &[s.batch, s.groups, s.keys, s.width], -1.5, 1.5);
    let v = m.random.floats_as(dtype, &[s.batch, s.groups, s.keys, s.out], -1.5, 1.5);
    Ok([m.given(q)?, m.given(k)?, m.given(v)?])
}

pub(super) fn attention(list: &mut List<'_>) {
    for (i, numbers) in [
        [1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 3, 3, 4, 4],
        [2, 3, 3, 4, 4, 6, 6],
        [2, 4, 2, 3, 5, 4, 6],
        [1, 4, 1, 5, 3, 3, 5],
        [1, 2, 2, 17, 33, 16, 16],
        [3, 6, 3, 1, 17, 8, 8],
        [1, 2, 1, 33, 17, 7, 3],
    ]
    .into_iter()
    .enumerate()
    {
        let s = sizes(numbers);
        for causal in [false, true] {
            let [b, h, g, l, k, d, e] = numbers;
            let name = format!("f32/b{b}-h{h}-g{g}-q{l}-k{k}-d{d}-e{e}{}", if causal { "/causal" } else { "" });
            let case = list.add("attention", name, Tolerance::CHAIN, |m| {
                let [q, k, v] = operands(m, &s, DType::F32)?;
                let y = m.attention(q, k, v, None, causal)?;
                m.result(y)
            });
            // The result of a row that sees no key is constant, so its derivative is 0 and finite differences agree.
            case.gradient = i < 5;
        }
    }
    // Queries that see keys up to positions of their own, in any order; later keys have no influence.
    for (numbers, last) in [
        ([1, 1, 1, 1, 4, 3, 3], vec![2i32]),
        ([2, 4, 2, 3, 9, 4, 6], vec![4, 5, 6]),
        ([1, 4, 1, 4, 33, 8, 5], vec![32, 0, 17, 16]),
        ([1, 2, 2, 1, 300, 16, 16], vec![270]),
        ([1, 2, 1, 17, 40, 140, 3], (20..37).collect()),
    ] {
        let s = sizes(numbers);
        let [b, h, g, l, k, d, e] = numbers;
        let masks = if l > 1 { &[false, true][..] } else { &[false] };
        for &masked in masks {
            let mask = if masked { "/mask" } else { "" };
            let name = format!("f32/positions/b{b}-h{h}-g{g}-q{l}-k{k}-d{d}-e{e}{mask}");
            let case = list.add("attention", name, Tolerance::CHAIN, |m| {
                let [q, _, _] = operands(m, &s, DType::F32)?;
                let after = last.iter().max().map_or(0, |&p| p as usize + 1);
                let [key, value] = [(d, f64::NAN), (e, f64::INFINITY)].map(|(width, later)| {
                    let mut data = m.random.floats(&[b, g, k, width], -1.5, 1.5).to_f64();
                    data.chunks_mut(k * width).for_each(|head| head[after * width..].fill(later));
                    Tensor::from_f64(DType::F32, &[b, g, k, width], &data)
                });
                let (key, value) = (m.given(key?)?, m.given(value?)?);
                let last = m.given(Tensor::new(&[l], &last)?)?;
                let mask = if masked { Some(m.uniform(&[l, k])?) } else { None };
                let op = Op::Attention { causal: false, scale: None, positions: true };
                let inputs: Vec<Value> =
                    [Some(q), Some(key), Some(value), mask, Some(last)].into_iter().flatten().collect();
                let y = m.push(op, &inputs)?;
                m.result(y)
            });
            case.gradient = false;
        }
    }
    list.add("attention", "f32/positions/gradient", Tolerance::CHAIN, |m| {
        let [q, k, v] = operands(m, &sizes([2, 4, 2, 3, 5, 4, 3]), DType::F32)?;
        let last = m.given(Tensor::new(&[3], &[1i32, 4, 3])?)?;
        let y = m.attention_until(q, k, v, last)?;
        m.result(y)
    })
    .smooth();
    for dtype in [DType::F16, DType::Bf16] {
        list.add("attention", format!("{dtype}/positions"), Tolerance::CHAIN.stored_as(dtype), |m| {
            let [q, k, v] = operands(m, &sizes([1, 2, 1, 2, 5, 4, 4]), dtype)?;
            let last = m.given(Tensor::new(&[2], &[2i32, 3])?)?;
            let y = m.attention_until(q, k, v, last)?;
            m.result(y)
        });
    }
    let small = sizes([2, 4, 2, 3, 5, 4, 3]);
    let masks: [(&str, &[usize]); 5] = [
        ("full", &[2, 4, 3, 5]),
        ("by-query-and-key", &[3, 5]),
        ("by-key", &[5]),
        ("by-batch", &[2, 1, 1, 5]),
        ("by-head", &[4, 1, 1]),
    ];
    for (what, shape) in masks {
        for causal in [false, true] {
            let name = format!("f32/mask-{what}{}", if causal { "/causal" } else { "" });
            list.add("attention", name, Tolerance::CHAIN, |m| {
                let [q, k, v] = operands(m, &small, DType::F32)?;
                let mask = m.uniform(shape)?;
                let y = m.attention(q, k, v, Some(mask), causal)?;
                m.result(y)
            })
            .smooth();
        }
    }
    // Keys that a query does not see have no influence on it, even if they are NaN or infinite.
    for keys in [3, 5, 9, 33] {
        for (queries, groups) in [(keys, 1), (keys, 2), (2, 2)] {
            let name = format!("f32/causal/last-key-not-finite/q{queries}-k{keys}-g{groups}");
            list.add("attention", name, Tolerance::CHAIN, |m| {
                let q = m.random.floats(&[1, 2, queries, 8], -1.5, 1.5);
                let [k, v] = [f64::NAN, f64::INFINITY].map(|last| {
                    let mut data = m.random.floats(&[1, groups, keys, 8], -1.5, 1.5).to_f64();
                    data.chunks_mut(keys * 8).for_each(|head| head[(keys - 1) * 8..].fill(last));
                    Tensor::from_f64(DType::F32, &[1, groups, keys, 8], &data)
                });
                let (q, k, v) = (m.given(q)?, m.given(k?)?, m.given(v?)?);
                let y = m.attention(q, k, v, None, true)?;
                m.result(y)
            });
        }
    }
    list.add("attention", "f32/fully-masked-rows/values-not-finite", Tolerance::EXACT, |m| {
        let s = sizes([1, 2, 1, 4, 3, 4, 5]);
        let [q, k, _] = operands(m, &s, DType::F32)?;
        let v = m.given(Tensor::new(&[1, 1, 3, 5], &[f32::INFINITY, 1.0, f32::NAN, 2.0, 3.0].repeat(3))?)?;
        let mask = m.given(Tensor::new(&[4, 3], &[f32::NEG_INFINITY; 12])?)?;
        let y = m.attention(q, k, v, Some(mask), false)?;
        m.result(y)
    });
    list.add("attention", "f32/fully-masked-rows", Tolerance::CHAIN, |m| {
        let [q, k, v] = operands(m, &small, DType::F32)?;
        let inf = f32::NEG_INFINITY;
        let rows = [[inf; 5], [0.0, inf, 0.0, inf, 0.0], [inf, inf, inf, inf, 0.0]];
        let mask = m.given(Tensor::new(&[3, 5], &rows.concat())?)?;
        let y = m.attention(q, k, v, Some(mask), false)?;
        m.result(y)
    });
    // Queries before the first key see none: L > S with a causal mask.
    list.add("attention", "f32/causal-rows-before-the-first-key", Tolerance::CHAIN, |m| {
        let [q, k, v] = operands(m, &sizes([1, 2, 2, 5, 2, 4, 4]), DType::F32)?;
        let y = m.attention(q, k, v, None, true)?;
        m.result(y)
    })
    .smooth();
    list.add("attention", "f32/scale-given", Tolerance::CHAIN, |m| {
        let [q, k, v] = operands(m, &small, DType::F32)?;
        let y = m.push(Op::Attention { causal: false, scale: Some(Float(0.25)), positions: false }, &[q, k, v])?;
        m.result(y)
    })
    .smooth();
    list.add("attention", "f32/large-scores", Tolerance::NETWORK, |m| {
        let q = m.random.floats(&[1, 1, 3, 4], -200.0, 200.0);
        let k = m.random.floats(&[1, 1, 5, 4], -200.0, 200.0);
        let (q, k, v) = (m.given(q)?, m.given(k)?, m.uniform(&[1, 1, 5, 2])?);
        let y = m.attention(q, k, v, None, false)?;
        m.result(y)
    });
    for (what, numbers) in [
        ("no-keys", [1, 2, 2, 3, 0, 4, 4]),
        ("no-queries", [1, 2, 2, 0, 3, 4, 4]),
        ("no-batch", [0, 2, 2, 3, 3, 4, 4]),
        ("no-width-out", [1, 2, 2, 3, 3, 4, 0]),
    ] {
        list.add("attention", format!("f32/empty/{what}"), Tolerance::EXACT, |m| {
            let [q, k, v] = operands(m, &sizes(numbers), DType::F32)?;
            let y = m.attention(q, k, v, None, false)?;
            m.result(y)
        });
    }
    for dtype in [DType::F16, DType::Bf16] {
        list.add("attention", format!("{dtype}/causal-grouped"), Tolerance::CHAIN.stored_as(dtype), |m| {
            let [q, k, v] = operands(m, &sizes([2, 4, 2, 5, 5, 8, 8]), dtype)?;
            let y = m.attention(q, k, v, None, true)?;
            m.result(y)
        });
    }
}
