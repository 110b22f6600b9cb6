//! Cases of reductions, softmax and norms.

use super::random::SPECIAL;
use super::{List, Tolerance, sizes};
use crate::dtype::DType;
use crate::op::{Op, Reduction};
use crate::tensor::Tensor;

const KINDS: [Reduction; 4] = [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min];
const INF: f32 = f32::INFINITY;

fn tolerance(kind: Reduction, terms: usize) -> Tolerance {
    match kind {
        Reduction::Max | Reduction::Min => Tolerance::EXACT,
        Reduction::Sum | Reduction::Mean => Tolerance::sum_of(terms),
    }
}

fn axes_name(axes: &[usize]) -> String {
    if axes.is_empty() { "none".into() } else { axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",") }
}

pub(super) fn reduce(list: &mut List<'_>) {
    let subsets: [&[usize]; 8] = [&[], &[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];
    for (i, kind) in KINDS.into_iter().enumerate() {
        let name = kind.name();
        for (j, axes) in subsets.into_iter().enumerate() {
            let keep = (i + j) % 2 == 0;
            let full = format!("{name}/f32/3x5x7/over-{}{}", axes_name(axes), if keep { "-kept" } else { "" });
            list.add("reduce", full, tolerance(kind, 105), |m| {
                let x = m.uniform(&[3, 5, 7])?;
                let y = m.push(Op::Reduce { kind, axes: axes.to_vec(), keep }, &[x])?;
                m.result(y)
            })
            .smooth();
        }
        let longer: [(&[usize], &[usize]); 5] =
            [(&[127], &[0]), (&[17, 65], &[1]), (&[65, 17], &[0]), (&[2, 3, 33, 3], &[1, 3]), (&[1], &[0])];
        for (shape, axes) in longer {
            let full = format!("{name}/f32/{}/over-{}", sizes(shape), axes_name(axes));
            list.add("reduce", full, tolerance(kind, 127), |m| {
                let x = m.uniform(shape)?;
                let y = m.push(Op::Reduce { kind, axes: axes.to_vec(), keep: false }, &[x])?;
                m.result(y)
            });
        }
        for (shape, axes) in [(&[3usize, 0] as &[usize], &[1usize] as &[usize]), (&[0, 3], &[1]), (&[0], &[0])] {
            let full = format!("{name}/f32/empty-{}/over-{}", sizes(shape), axes_name(axes));
            list.add("reduce", full, Tolerance::EXACT, |m| {
                let x = m.uniform(shape)?;
                let y = m.push(Op::Reduce { kind, axes: axes.to_vec(), keep: false }, &[x])?;
                m.result(y)
            });
        }
        for dtype in [DType::F16, DType::Bf16] {
            let tolerance = match kind {
                Reduction::Max | Reduction::Min => Tolerance::EXACT,
                _ => Tolerance::sum_of(33).stored_as(dtype),
            };
            list.add("reduce", format!("{name}/{dtype}/5x33/over-1"), tolerance, |m| {
                let data = m.random.floats_as(dtype, &[5, 33], -1.0, 1.0);
                let x = m.given(data)?;
                let y = m.push(Op::Reduce { kind, axes: vec![1], keep: true }, &[x])?;
                m.result(y)
            });
        }
        list.add("reduce", format!("{name}/f32/nan-and-infinity"), tolerance(kind, 4), |m| {
            let rows = [
                [1.0, 2.0, 3.0, -4.0],
                [1.0, f32::NAN, 3.0, INF],
                [INF, 1.0, 2.0, 3.0],
                [-INF, 1.0, 2.0, 3.0],
                [INF, -INF, 0.0, 1.0],
                [f32::NAN; 4],
                [-INF; 4],
            ];
            let x = m.given(Tensor::new(&[7, 4], &rows.concat())?)?;
            let y = m.push(Op::Reduce { kind, axes: vec![1], keep: false }, &[x])?;
            m.result(y)
        });
        if kind != Reduction::Mean {
            list.add("reduce", format!("{name}/i32/wraps"), Tolerance::EXACT, |m| {
                let values = [i32::MAX, i32::MAX, 2, i32::MIN, -1, 0, 5, 6, 7];
                let x = m.given(Tensor::new(&[3, 3], &values)?)?;
                for axes in [vec![0], vec![1], vec![0, 1]] {
                    let y = m.push(Op::Reduce { kind, axes, keep: false }, &[x])?;
                    m.result(y)?;
                }
                Ok(())
            });
            list.add("reduce", format!("{name}/i32/of-nothing"), Tolerance::EXACT, |m| {
                let x = m.given(Tensor::zeros(DType::I32, &[2, 0])?)?;
                let y = m.push(Op::Reduce { kind, axes: vec![1], keep: false }, &[x])?;
                m.result(y)
            });
        }
    }
    // One large number among small ones: even a running f32 sum loses little, so every backend must.
    list.add("reduce", "sum/f32/mixed-sizes", Tolerance { abs: 1e-2, rel: 1e-5 }, |m| {
        let mut values = vec![1.0f32; 127];
        values[60] = 1e5;
        let x = m.given(Tensor::new(&[127], &values)?)?;
        let y = m.sum(x, &[0], false)?;
        m.result(y)
    });
}

pub(super) fn softmax(list: &mut List<'_>) {
    let shapes: [(&[usize], usize); 12] = [
        (&[1], 0),
        (&[17], 0),
        (&[3, 33], 1),
        (&[33, 3], 0),
        (&[2, 5, 3], 0),
        (&[2, 5, 3], 1),
        (&[2, 5, 3], 2),
        (&[2, 2, 3, 4], 2),
        (&[5, 1], 1),
        (&[3, 127], 1),
        (&[0, 4], 1),
        (&[4, 0], 1),
    ];
    for (shape, axis) in shapes {
        let case = list.add("softmax", format!("f32/{}/axis-{axis}", sizes(shape)), Tolerance::FUNCTION, |m| {
            let data = m.random.floats(shape, -4.0, 4.0);
            let x = m.given(data)?;
            let y = m.softmax(x, axis)?;
            m.result(y)
        });
        if !shape.contains(&0) && shape.iter().product::<usize>() < 128 {
            case.smooth();
        }
    }
    for dtype in [DType::F16, DType::Bf16] {
        list.add("softmax", format!("{dtype}/5x17"), Tolerance::FUNCTION.stored_as(dtype), |m| {
            let data = m.random.floats_as(dtype, &[5, 17], -4.0, 4.0);
            let x = m.given(data)?;
            let y = m.softmax(x, 1)?;
            m.result(y)
        });
    }
    let rows = [
        [-INF, -INF, -INF, -INF],
        [-INF, 1.0, -INF, 2.0],
        [INF, 1.0, 2.0, 3.0],
        [1.0, f32::NAN, 2.0, 3.0],
        [1e30, 1e30, -1e30, 0.0],
        [f32::MAX, f32::MIN, 0.0, 1.0],
        [1e-42, 0.0, -0.0, 1e-30],
        [100.0, 200.0, 300.0, 301.0],
        [-1000.0, -1001.0, -1002.0, -1e4],
    ];
    for axis in [1, 0] {
        list.add("softmax", format!("f32/special/axis-{axis}"), Tolerance::FUNCTION, |m| {
            let mut values = rows.concat();
            let mut shape = [rows.len(), 4];
            if axis == 0 {
                values = (0..4).flat_map(|c| rows.iter().map(move |r| r[c])).collect();
                shape.reverse();
            }
            let x = m.given(Tensor::new(&shape, &values)?)?;
            let y = m.softmax(x, axis)?;
            m.result(y)
        });
    }
}

pub(super) fn norms(list: &mut List<'_>) {
    for (shape, extras) in [
        (&[1usize, 3] as &[usize], 0),
        (&[5, 17], 0),
        (&[5, 17], 1),
        (&[5, 17], 2),
        (&[2, 3, 33], 2),
        (&[7], 2),
        (&[3, 1], 2),
        (&[3, 127], 2),
        (&[0, 8], 2),
        (&[4, 0], 2),
        (&[2, 2, 3, 5], 1),
    ] {
        let width = shape[shape.len() - 1];
        let plain = ["", "/scale", "/scale-shift"][extras];
        let smooth = !shape.contains(&0) && width > 1 && width < 100;
        let layer = list.add("layer_norm", format!("f32/{}{plain}", sizes(shape)), Tolerance::CHAIN, |m| {
            let x = m.uniform(shape)?;
            let gamma = if extras > 0 { Some(m.trained_uniform(&[width])?) } else { None };
            let beta = if extras > 1 { Some(m.trained_uniform(&[width])?) } else { None };
            let y = m.layer_norm(x, gamma, beta, 1e-5)?;
            m.result(y)
        });
        layer.gradient = smooth;
        if extras < 2 || shape.contains(&0) {
            let rms = list.add("rms_norm", format!("f32/{}{plain}", sizes(shape)), Tolerance::CHAIN, |m| {
                let x = m.uniform(shape)?;
                let gamma = if extras > 0 { Some(m.trained_uniform(&[width])?) } else { None };
                let y = m.rms_norm(x, gamma, 1e-6)?;
                m.result(y)
            });
            rms.gradient = smooth;
        }
    }
    for dtype in [DType::F16, DType::Bf16] {
        list.add("layer_norm", format!("{dtype}/5x17/scale-shift"), Tolerance::CHAIN.stored_as(dtype), |m| {
            let data = m.random.floats_as(dtype, &[5, 17], -1.0, 1.0);
            let row = m.random.floats_as(dtype, &[17], 0.5, 1.5);
            let (x, gamma, beta) = (m.given(data)?, m.trained(row.clone())?, m.trained(row)?);
            let y = m.layer_norm(x, Some(gamma), Some(beta), 1e-5)?;
            m.result(y)
        });
        list.add("rms_norm", format!("{dtype}/5x17/scale"), Tolerance::CHAIN.stored_as(dtype), |m| {
            let data = m.random.floats_as(dtype, &[5, 17], -1.0, 1.0);
            let row = m.random.floats_as(dtype, &[17], 0.5, 1.5);
            let (x, gamma) = (m.given(data)?, m.trained(row)?);
            let y = m.rms_norm(x, Some(gamma), 1e-6)?;
            m.result(y)
        });
    }
    // The mean is thousands of times the spread: E[x²] − E[x]² in f32 would be noise.
    list.add("layer_norm", "f32/far-from-zero", Tolerance { abs: 2e-2, rel: 2e-2 }, |m| {
        let data = m.random.floats(&[3, 33], 1000.0, 1001.0);
        let x = m.given(data)?;
        let y = m.layer_norm(x, None, None, 1e-5)?;
        m.result(y)
    });
    list.add("layer_norm", "f32/constant-rows", Tolerance::CHAIN, |m| {
        let x = m.given(Tensor::new(&[2, 4], &[0.0f32, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0])?)?;
        let (y, z) = (m.layer_norm(x, None, None, 1e-5)?, m.rms_norm(x, None, 1e-5)?);
        m.result(y)?;
        m.result(z)
    });
    for layer in [true, false] {
        let group = if layer { "layer_norm" } else { "rms_norm" };
        list.add(group, "f32/nan-and-infinity", Tolerance::CHAIN, |m| {
            let values = SPECIAL.into_iter().filter(|v| !v.is_finite() || v.abs() < 1e4 && v.abs() >= 0.5);
            // Each special value alone in its row, among numbers.
            let rows: Vec<f32> = values.flat_map(|v| [1.0, v, 3.0, 2.0]).collect();
            let x = m.given(Tensor::new(&[rows.len() / 4, 4], &rows)?)?;
            let y = if layer { m.layer_norm(x, None, None, 1e-5)? } else { m.rms_norm(x, None, 1e-5)? };
            m.result(y)
        });
    }
}
