//! Cases of matrix products: sizes around every tile, both operands transposed or not, every way of batching.

use super::{Dims, List, Tolerance, sizes};
use crate::dtype::DType;
use crate::tensor::Tensor;

fn suffix(ta: bool, tb: bool) -> &'static str {
    match (ta, tb) {
        (false, false) => "",
        (true, false) => "/aT",
        (false, true) => "/bT",
        (true, true) => "/aT-bT",
    }
}

/// The stored shape of a rows × columns matrix.
fn stored(rows: usize, columns: usize, transposed: bool) -> [usize; 2] {
    if transposed { [columns, rows] } else { [rows, columns] }
}

pub(super) fn matmul(list: &mut List<'_>) {
    let flags = [(false, false), (true, false), (false, true), (true, true)];
    let shapes = [
        [1, 1, 1],
        [1, 33, 17],
        [17, 33, 1],
        [3, 1, 5],
        [1, 127, 65],
        [2, 3, 4],
        [7, 7, 7],
        [8, 16, 32],
        [17, 33, 5],
        [33, 65, 17],
        [65, 17, 127],
        [127, 127, 65],
        [16, 64, 48],
        [6, 256, 16],
    ];
    for (i, [m, k, n]) in shapes.into_iter().enumerate() {
        for (j, (ta, tb)) in flags.into_iter().enumerate() {
            // All four ways for two of the sizes, otherwise the plain way and one other.
            if j != 0 && i % 6 != 2 && j != 1 + i % 3 {
                continue;
            }
            let name = format!("f32/{m}x{k}x{n}{}", suffix(ta, tb));
            let case = list.add("matmul", name, Tolerance::sum_of(k), |c| {
                let a = c.uniform(&stored(m, k, ta))?;
                // Weights may be packed ahead, inputs not: both ways in turn.
                let b = c.random.floats(&stored(k, n, tb), -1.0, 1.0);
                let b = if i % 2 == 0 { c.trained(b)? } else { c.given(b)? };
                let y = c.matmul_t(a, b, ta, tb)?;
                c.result(y)
            });
            if m * k + k * n < 200 {
                case.smooth();
            }
            if m * k * n > 1_000_000 {
                case.timed();
            }
        }
    }
    let batched: [(&str, Dims, Dims, bool, bool); 13] = [
        ("one-batch", &[3, 5, 7], &[3, 7, 2], false, false),
        ("two-axes", &[2, 3, 4, 5], &[2, 3, 5, 6], false, false),
        ("shared-right", &[4, 3, 5], &[5, 7], false, false),
        ("shared-right/bT", &[4, 3, 5], &[7, 5], false, true),
        ("shared-left", &[3, 5], &[4, 5, 2], false, false),
        ("shared-left/aT", &[5, 3], &[4, 5, 2], true, false),
        ("stretched-right", &[4, 3, 5], &[1, 5, 2], false, false),
        ("stretched-left", &[1, 3, 5], &[4, 5, 2], false, false),
        ("stretched-both", &[2, 1, 3, 4], &[1, 3, 4, 2], false, false),
        ("stretched-both/aT-bT", &[2, 1, 4, 3], &[3, 2, 4], true, true),
        ("outer-by-batch", &[2, 3, 1], &[2, 1, 4], false, false),
        ("rank-4-by-2", &[2, 2, 3, 5], &[5, 3], false, false),
        ("batch-1", &[1, 1, 3, 5], &[1, 1, 5, 3], false, false),
    ];
    for (what, a, b, ta, tb) in batched {
        list.add("matmul", format!("f32/batched/{what}"), Tolerance::sum_of(8), |m| {
            let (a, b) = (m.uniform(a)?, m.uniform(b)?);
            let y = m.matmul_t(a, b, ta, tb)?;
            m.result(y)
        })
        .smooth();
    }
    for dtype in [DType::F16, DType::Bf16] {
        for ([m, k, n], (ta, tb)) in
            [[1, 33, 17], [17, 33, 5], [33, 65, 17], [8, 16, 32]].into_iter().zip(flags).chain([([3, 5, 1], flags[0])])
        {
            let name = format!("{dtype}/{m}x{k}x{n}{}", suffix(ta, tb));
            list.add("matmul", name, Tolerance::sum_of(k).stored_as(dtype), |c| {
                let a = c.random.floats_as(dtype, &stored(m, k, ta), -1.0, 1.0);
                let b = c.random.floats_as(dtype, &stored(k, n, tb), -1.0, 1.0);
                let (a, b) = (c.given(a)?, c.trained(b)?);
                let y = c.matmul_t(a, b, ta, tb)?;
                c.result(y)
            });
        }
        // With f32 on the other side: weights in half precision, the most common kind, and the other way round.
        for (i, [m, k, n]) in
            [[1, 33, 17], [7, 300, 250], [33, 65, 17], [130, 70, 40], [2, 7, 3]].into_iter().enumerate()
        {
            let (ta, tb) = flags[i % 4];
            for half_left in [false, true] {
                let sides = if half_left { [dtype, DType::F32] } else { [DType::F32, dtype] };
                let name = format!("{}-{}/{m}x{k}x{n}{}", sides[0], sides[1], suffix(ta, tb));
                list.add("matmul", name, Tolerance::sum_of(k), |c| {
                    let a = c.random.floats_as(sides[0], &stored(m, k, ta), -1.0, 1.0);
                    let b = c.random.floats_as(sides[1], &stored(k, n, tb), -1.0, 1.0);
                    // Weights may be packed ahead, inputs not.
                    let (a, b) = (c.given(a)?, if i == 2 { c.given(b)? } else { c.trained(b)? });
                    let y = c.matmul_t(a, b, ta, tb)?;
                    c.result(y)
                });
            }
        }
        list.add("matmul", format!("f32-{dtype}/batched"), Tolerance::sum_of(8), |c| {
            let b = c.random.floats_as(dtype, &[2, 5, 4], -1.0, 1.0);
            let (a, b) = (c.uniform(&[2, 3, 5])?, c.given(b)?);
            let y = c.matmul(a, b)?;
            c.result(y)
        });
        // 4096 ones: an accumulator of the storage type would stop at 2048 or 256.
        list.add("matmul", format!("{dtype}/accumulates-in-f32"), Tolerance::EXACT, |c| {
            let k = 4096;
            let a = c.random.floats_as(dtype, &[1, k], 1.0, 1.0);
            let b = c.random.floats_as(dtype, &[k, 3], 1.0, 1.0);
            let (a, b) = (c.given(a)?, c.given(b)?);
            let y = c.matmul(a, b)?;
            c.result(y)
        });
    }
    // Something is added to a product: of given or trained weights, of one row, of its two parts, or of several rows.
    for (m, trained) in [(1, false), (1, true), (5, false), (5, true), (33, false)] {
        let weights = if trained { "trained" } else { "given" };
        list.add("matmul", format!("f32/added-to/{m}x24x17-{weights}"), Tolerance::sum_of(24), |c| {
            let (x, h, other) = (c.uniform(&[m, 15])?, c.uniform(&[m, 9])?, c.uniform(&[m, 17])?);
            let w = if trained { c.trained_uniform(&[24, 17])? } else { c.uniform(&[24, 17])? };
            let joined = c.concat(&[x, h], 1)?;
            let product = c.matmul(joined, w)?;
            let y = c.add(product, other)?;
            c.result(y)
        });
    }
    let empty: [(&[usize], &[usize]); 5] =
        [(&[3, 0], &[0, 5]), (&[0, 3], &[3, 5]), (&[3, 4], &[4, 0]), (&[0, 3, 4], &[4, 5]), (&[2, 3, 0], &[2, 0, 1])];
    for (a, b) in empty {
        list.add("matmul", format!("f32/empty/{}-{}", sizes(a), sizes(b)), Tolerance::EXACT, |m| {
            let (a, b) = (m.uniform(a)?, m.uniform(b)?);
            let y = m.matmul(a, b)?;
            m.result(y)
        });
    }
    list.add("matmul", "f32/nan-and-infinity", Tolerance::sum_of(3), |m| {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        // ∞·0 is NaN, so a kernel must not skip zeros; ∞ − ∞ is NaN too; a NaN affects only its own row.
        let a = [inf, 0.0, 1.0, 1.0, nan, 0.0, inf, inf, 1.0, 1.0, 2.0, 3.0, -inf, 1.0, 0.0];
        let b = [0.0, 1.0, 1.0, 1.0, 2.0, -1.0, 1.0, 3.0, 0.0];
        let (a, b) = (m.given(Tensor::new(&[5, 3], &a)?)?, m.given(Tensor::new(&[3, 3], &b)?)?);
        let y = m.matmul(a, b)?;
        m.result(y)
    });
    list.add("matmul", "f32/large-and-small", Tolerance { abs: 1e-37, rel: 1e-5 }, |m| {
        let a = [1e30f32, 1e-30, 1e-20, 2e-20];
        let b = [1e5f32, 1e-30, 1e10, 1e-10];
        let (a, b) = (m.given(Tensor::new(&[2, 2], &a)?)?, m.given(Tensor::new(&[2, 2], &b)?)?);
        let y = m.matmul(a, b)?;
        m.result(y)
    });
    list.add("matmul", "f32/overflows", Tolerance::sum_of(2), |m| {
        let a = m.given(Tensor::new(&[2, 2], &[1e30f32, 1e30, -1e30, 1.0])?)?;
        let b = m.given(Tensor::new(&[2, 1], &[1e30f32, 1.0])?)?;
        let y = m.matmul(a, b)?;
        m.result(y)
    });
    list.add("matmul", "f32/by-itself", Tolerance::sum_of(5), |m| {
        let x = m.uniform(&[4, 5])?;
        let (gram, outer) = (m.matmul_t(x, x, true, false)?, m.matmul_t(x, x, false, true)?);
        m.result(gram)?;
        m.result(outer)
    })
    .smooth();
    list.add("matmul", "f32/chain", Tolerance::sum_of(64), |m| {
        let (a, b, c) = (m.uniform(&[3, 17])?, m.trained_uniform(&[17, 9])?, m.trained_uniform(&[9, 5])?);
        let ab = m.matmul(a, b)?;
        let y = m.matmul(ab, c)?;
        m.result(y)
    })
    .smooth();
}
