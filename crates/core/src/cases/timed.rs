//! Larger cases, for timing: sizes that small networks have, from one stream to a batch.

use super::scan::{Run, cfc_into, lstm_into, ltc_into, rnn_into};
use super::{List, Tolerance, network, sizes};
use crate::dtype::DType;
use crate::op::{Op, Unary};

pub(super) fn fill(list: &mut List<'_>) {
    for op in [Unary::Neg, Unary::Exp, Unary::Tanh, Unary::Sigmoid, Unary::Gelu, Unary::Silu, Unary::Log] {
        list.add("unary", format!("{}/f32/65536", op.name()), Tolerance::FUNCTION, |m| {
            let data = m.random.floats(&[65_536], 0.1, 4.0);
            let x = m.given(data)?;
            let y = m.push(Op::Unary(op), &[x])?;
            m.result(y)
        })
        .timed();
    }
    list.add("binary", "add/f32/256x1024-row", Tolerance::ROUNDING, |m| {
        let (x, row) = (m.uniform(&[256, 1024])?, m.uniform(&[1024])?);
        let y = m.add(x, row)?;
        m.result(y)
    })
    .timed();
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for [m, k, n] in [[1, 64, 64], [1, 512, 512], [16, 64, 256], [64, 64, 64], [128, 256, 256], [256, 512, 256]] {
            list.add("matmul", format!("{dtype}/{m}x{k}x{n}"), Tolerance::sum_of(k).stored_as(dtype), |c| {
                let a = c.random.floats_as(dtype, &[m, k], -1.0, 1.0);
                let b = c.random.floats_as(dtype, &[k, n], -1.0, 1.0);
                let (a, b) = (c.given(a)?, c.trained(b)?);
                let y = c.matmul(a, b)?;
                c.result(y)
            })
            .timed();
        }
    }
    // Rows of f32 and weights of half precision.
    for dtype in [DType::Bf16, DType::F16] {
        for [m, k, n] in [[1, 512, 512], [32, 512, 512], [256, 512, 512]] {
            list.add("matmul", format!("f32-{dtype}/{m}x{k}x{n}"), Tolerance::sum_of(k), |c| {
                let b = c.random.floats_as(dtype, &[k, n], -1.0, 1.0);
                let (a, b) = (c.uniform(&[m, k])?, c.trained(b)?);
                let y = c.matmul(a, b)?;
                c.result(y)
            })
            .timed();
        }
    }
    list.add("matmul", "f32/batched-32x64x32x64", Tolerance::sum_of(32), |m| {
        let (a, b) = (m.uniform(&[32, 64, 32])?, m.uniform(&[32, 32, 64])?);
        let y = m.matmul(a, b)?;
        m.result(y)
    })
    .timed();
    list.add("reduce", "sum/f32/256x1024/over-1", Tolerance::sum_of(1024), |m| {
        let x = m.uniform(&[256, 1024])?;
        let y = m.sum(x, &[1], false)?;
        m.result(y)
    })
    .timed();
    list.add("reduce", "sum/f32/1024x256/over-0", Tolerance::sum_of(1024), |m| {
        let x = m.uniform(&[1024, 256])?;
        let y = m.sum(x, &[0], false)?;
        m.result(y)
    })
    .timed();
    list.add("softmax", "f32/256x512", Tolerance::FUNCTION, |m| {
        let x = m.uniform(&[256, 512])?;
        let y = m.softmax(x, 1)?;
        m.result(y)
    })
    .timed();
    list.add("layer_norm", "f32/256x512/scale-shift", Tolerance::CHAIN, |m| {
        let (x, gamma, beta) = (m.uniform(&[256, 512])?, m.trained_uniform(&[512])?, m.trained_uniform(&[512])?);
        let y = m.layer_norm(x, Some(gamma), Some(beta), 1e-5)?;
        m.result(y)
    })
    .timed();
    list.add("attention", "f32/b2-h4-t128-d32/causal", Tolerance::CHAIN, |m| {
        let (q, k, v) = (m.uniform(&[2, 4, 128, 32])?, m.uniform(&[2, 4, 128, 32])?, m.uniform(&[2, 4, 128, 32])?);
        let y = m.attention(q, k, v, None, true)?;
        m.result(y)
    })
    .timed();
    // Rows whose lines share one cache set, small elements, and the exchange of heads with positions.
    let transposes: [(DType, &[usize], &[usize]); 5] = [
        (DType::F32, &[512, 512], &[1, 0]),
        (DType::F32, &[1024, 1024], &[1, 0]),
        (DType::Bf16, &[1024, 1024], &[1, 0]),
        (DType::U8, &[1024, 1024], &[1, 0]),
        (DType::F32, &[64, 128, 8, 64], &[0, 2, 1, 3]),
    ];
    for (dtype, shape, perm) in transposes {
        let order: String = perm.iter().map(ToString::to_string).collect();
        list.add("transpose", format!("{dtype}/{}/{order}", sizes(shape)), Tolerance::EXACT, |m| {
            let x = m.random.any(dtype, shape);
            let x = m.given(x)?;
            let y = m.transpose(x, perm)?;
            m.result(y)
        })
        .timed();
    }
    list.add("gather", "f32/4096x64/by-1024", Tolerance::EXACT, |m| {
        let at = m.random.ints(&[1024], 0, 4096);
        let (table, at) = (m.trained_uniform(&[4096, 64])?, m.given(at)?);
        let y = m.gather(table, at, 0)?;
        m.result(y)
    })
    .timed();
    list.add("segment_sum", "f32/64x4096-into-128", Tolerance::sum_of(64), |m| {
        let to = m.random.ints(&[4096], 0, 128);
        let (x, to) = (m.uniform(&[64, 4096])?, m.constant(to)?);
        let y = m.segment_sum(x, to, 1, 128)?;
        m.result(y)
    })
    .timed();
    for batch in [1, 32] {
        let run = Run { batch, steps: 64, axis: 1, reverse: false, symbolic: true };
        list.add("scan", format!("rnn/b{batch}-t64-u64"), Tolerance::NETWORK, |m| rnn_into(m, &run, 16, 64)).timed();
        list.add("scan", format!("lstm/b{batch}-t64-u64"), Tolerance::NETWORK, |m| lstm_into(m, &run, 16, 64)).timed();
        list.add("scan", format!("cfc/b{batch}-t64-u64"), Tolerance::NETWORK, |m| cfc_into(m, &run, 16, 64, 128))
            .timed();
        list.add("scan", format!("ltc/b{batch}-t64-u32"), Tolerance::NETWORK, |m| ltc_into(m, &run, 32, 256)).timed();
    }
    for (batch, time) in [(1, 32), (4, 128)] {
        list.add("transformer", format!("block-b{batch}-t{time}-d128"), Tolerance::NETWORK, |m| {
            network::transformer_block(m, batch, time, 4, 32, 512)
        })
        .timed();
    }
    list.add("mlp", "b32-64-256-256-10", Tolerance::NETWORK, |m| {
        let mut x = m.uniform(&[32, 64])?;
        for (inputs, outputs) in [(64, 256), (256, 256), (256, 10)] {
            let (w, b) = (m.trained_uniform(&[inputs, outputs])?, m.trained_uniform(&[outputs])?);
            x = m.matmul(x, w)?;
            x = m.add(x, b)?;
            x = m.relu(x)?;
        }
        m.result(x)
    })
    .timed();
}
