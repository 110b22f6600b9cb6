//! Cases of whole graphs: what users build, and what passes rewrite.

use super::{List, Maker, Tolerance};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Value;
use crate::op::{Op, Unary};
use crate::shape;
use crate::tensor::Tensor;

/// Graphs whose outputs are unusual.
pub(super) fn outputs(list: &mut List<'_>) {
    list.add("outputs", "an-input", Tolerance::EXACT, |m| {
        let x = m.uniform(&[3, 5])?;
        m.result(x)
    })
    .smooth();
    list.add("outputs", "a-weight-and-a-constant", Tolerance::EXACT, |m| {
        let (w, c) = (m.trained_uniform(&[4])?, m.constant(Tensor::new(&[2], &[1i32, 2])?)?);
        m.result(w)?;
        m.result(c)
    });
    for dtype in DType::ALL {
        list.add("outputs", format!("{dtype}/input-weight-and-constant"), Tolerance::EXACT, |m| {
            let [x, w, c] = [0, 1, 2].map(|_| m.random.any(dtype, &[5]));
            for value in [m.given(x)?, m.trained(w)?, m.constant(c)?] {
                m.result(value)?;
            }
            Ok(())
        });
    }
    list.add("outputs", "one-value-twice", Tolerance::FUNCTION, |m| {
        let x = m.uniform(&[17])?;
        let y = m.tanh(x)?;
        m.result(y)?;
        m.result(x)?;
        m.result(y)
    })
    .smooth();
    list.add("outputs", "intermediate-values", Tolerance::CHAIN, |m| {
        let (x, w) = (m.uniform(&[3, 5])?, m.trained_uniform(&[5, 4])?);
        let a = m.matmul(x, w)?;
        let b = m.tanh(a)?;
        let c = m.sum(b, &[1], true)?;
        for value in [c, a, b] {
            m.result(value)?;
        }
        Ok(())
    })
    .smooth();
    list.add("outputs", "views-of-an-input", Tolerance::EXACT, |m| {
        let x = m.uniform(&[4, 6])?;
        let (a, b, c) = (m.reshape(x, [24])?, m.transpose(x, &[1, 0])?, m.slice(x, 0, 1, 3)?);
        for value in [a, b, c] {
            m.result(value)?;
        }
        Ok(())
    })
    .smooth();
    list.add("outputs", "unused-inputs-and-nodes", Tolerance::FUNCTION, |m| {
        let (x, unused) = (m.uniform(&[5])?, m.uniform(&[3])?);
        let _dead = m.exp(unused)?;
        let y = m.exp(x)?;
        m.result(y)
    });
    list.add("outputs", "weights-only", Tolerance::CHAIN, |m| {
        let (a, b) = (m.trained_uniform(&[3, 4])?, m.trained_uniform(&[4, 2])?);
        let y = m.matmul(a, b)?;
        m.result(y)
    });
    list.add("outputs", "state-of-a-stream", Tolerance::CHAIN, |m| {
        let (x, h) = (m.uniform(&[2, 3])?, m.uniform(&[2, 4])?);
        let (w, u) = (m.trained_uniform(&[3, 4])?, m.trained_uniform(&[4, 4])?);
        let (xw, hu) = (m.matmul(x, w)?, m.matmul(h, u)?);
        let sum = m.add(xw, hu)?;
        let next = m.tanh(sum)?;
        m.result(next)?;
        m.state("x1", "y0")
    })
    .smooth();
}

/// x·Wᵀ + b
fn dense(m: &mut Maker, x: Value, inputs: usize, outputs: usize) -> Result<Value> {
    let (w, b) = (m.trained_uniform(&[outputs, inputs])?, m.trained_uniform(&[outputs])?);
    m.linear(x, w, Some(b))
}

/// A pre-norm transformer block on [B, T, D].
pub(super) fn transformer_block(
    m: &mut Maker,
    batch: usize,
    time: usize,
    heads: usize,
    width: usize,
    hidden: usize,
) -> Result<()> {
    let model = heads * width;
    let x = m.uniform_as(shape!["B", "T", model], &[batch, time, model])?;
    let (gamma, beta) = (m.trained_uniform(&[model])?, m.trained_uniform(&[model])?);
    let normed = m.layer_norm(x, Some(gamma), Some(beta), 1e-5)?;
    let mut parts = vec![];
    for _ in 0..3 {
        let flat = dense(m, normed, model, model)?;
        let split = m.reshape(flat, shape!["B", "T", heads, width])?;
        parts.push(m.transpose(split, &[0, 2, 1, 3])?);
    }
    let attended = m.attention(parts[0], parts[1], parts[2], None, true)?;
    let merged = m.transpose(attended, &[0, 2, 1, 3])?;
    let merged = m.reshape(merged, shape!["B", "T", model])?;
    let projected = dense(m, merged, model, model)?;
    let x = m.add(x, projected)?;
    let gamma = m.trained_uniform(&[model])?;
    let normed = m.rms_norm(x, Some(gamma), 1e-6)?;
    let wide = dense(m, normed, model, hidden)?;
    let wide = m.gelu(wide)?;
    let narrow = dense(m, wide, hidden, model)?;
    let y = m.add(x, narrow)?;
    m.result(y)
}

pub(super) fn layers(list: &mut List<'_>) {
    for op in Unary::ALL {
        // Only activations that are defined for every number and do not grow fast.
        if matches!(op, Unary::Sqrt | Unary::Recip | Unary::Log | Unary::Not) {
            continue;
        }
        // By rounding, a sum next to a step of the function may fall on either side of it.
        let jumps = matches!(op, Unary::Sign | Unary::Floor | Unary::Round);
        list.add("mlp", op.name(), Tolerance::NETWORK, |m| {
            let x = m.uniform_as(shape!["B", 9], &[3, 9])?;
            let h = dense(m, x, 9, 17)?;
            let h = m.push(Op::Unary(op), &[h])?;
            let y = dense(m, h, 17, 3)?;
            m.result(y)
        })
        .gradient = !jumps;
    }
    for batch in [1usize, 5, 17, 0] {
        let case = list.add("mlp", format!("symbolic-batch-{batch}"), Tolerance::NETWORK, |m| {
            let x = m.uniform_as(shape!["B", 5], &[batch, 5])?;
            let h = dense(m, x, 5, 7)?;
            let h = m.relu(h)?;
            let h = dense(m, h, 7, 7)?;
            let h = m.silu(h)?;
            let y = dense(m, h, 7, 2)?;
            let p = m.softmax(y, 1)?;
            m.result(y)?;
            m.result(p)
        });
        case.gradient = batch == 1 || batch == 5;
    }
    for (batch, time) in [(1usize, 4usize), (3, 2)] {
        list.add("residual", format!("symbolic-b{batch}-t{time}"), Tolerance::NETWORK, |m| {
            let x = m.uniform_as(shape!["B", "T", 6], &[batch, time, 6])?;
            let flat = m.reshape(x, shape!["B*T", 6])?;
            let h = dense(m, flat, 6, 11)?;
            let h = m.tanh(h)?;
            let h = dense(m, h, 11, 6)?;
            let h = m.reshape(h, shape!["B", "T", 6])?;
            let y = m.add(x, h)?;
            let z = m.mean(y, &[1], false)?;
            m.result(y)?;
            m.result(z)
        })
        .smooth();
        list.add("transformer", format!("block-b{batch}-t{time}"), Tolerance::NETWORK, |m| {
            transformer_block(m, batch, time, 2, 3, 10)
        })
        .smooth();
    }
    list.add("transformer", "block-b2-t17", Tolerance::NETWORK, |m| transformer_block(m, 2, 17, 4, 8, 65)).timed();
    list.add("transformer", "token-model", Tolerance::NETWORK, |m| {
        let tokens = m.random.ints(&[2, 5], 0, 11);
        let tokens = m.given_as(shape!["B", "T"], tokens)?;
        let (table, positions) = (m.trained_uniform(&[11, 6])?, m.trained_uniform(&[8, 6])?);
        let x = m.gather(table, tokens, 0)?;
        let here = m.slice(positions, 0, 0, 5)?;
        let here = m.broadcast(here, [5, 6])?;
        let flat = m.reshape(x, shape!["B*T", 6])?;
        let normed = m.rms_norm(flat, None, 1e-6)?;
        let logits = m.matmul_t(normed, table, false, true)?;
        let p = m.softmax(logits, 1)?;
        m.result(p)?;
        m.result(here)
    })
    .smooth();
    list.add("loss", "cross-entropy", Tolerance::NETWORK, |m| {
        let (x, w) = (m.uniform(&[4, 5])?, m.trained_uniform(&[5, 3])?);
        let target = m.given(Tensor::new(&[4, 3], &[1.0f32, 0., 0., 0., 1., 0., 0., 0., 1., 1., 0., 0.])?)?;
        let logits = m.matmul(x, w)?;
        let p = m.softmax(logits, 1)?;
        let log = m.log(p)?;
        let picked = m.mul(log, target)?;
        let sum = m.sum(picked, &[0, 1], false)?;
        let loss = m.neg(sum)?;
        m.result(loss)
    })
    .smooth();
    list.add("loss", "mean-squared", Tolerance::NETWORK, |m| {
        let (x, t) = (m.uniform(&[7, 3])?, m.uniform(&[7, 3])?);
        let y = dense(m, x, 3, 3)?;
        let off = m.sub(y, t)?;
        let squared = m.square(off)?;
        let loss = m.mean(squared, &[0, 1], false)?;
        m.result(loss)
    })
    .smooth();
    list.add("mlp", "quantized-weights", Tolerance::NETWORK, |m| {
        let x = m.uniform(&[5, 17])?;
        let q = m.random.any(DType::I8, &[17, 9]);
        let scale = m.random.floats(&[9], 0.001, 0.01);
        let (q, scale) = (m.trained(q)?, m.trained(scale)?);
        let zero = m.constant(Tensor::new(&[9], &[0i32; 9])?)?;
        let w = m.dequantize(q, scale, zero)?;
        let y = m.matmul(x, w)?;
        let y = m.relu(y)?;
        m.result(y)
    });
    for dtype in [DType::F16, DType::Bf16] {
        let tolerance = Tolerance { abs: if dtype == DType::F16 { 4e-3 } else { 3e-2 }, ..Tolerance::NETWORK };
        list.add("mlp", format!("{dtype}-inside"), tolerance.stored_as(dtype), |m| {
            let x = m.uniform(&[3, 17])?;
            let (w, b) = (m.random.floats_as(dtype, &[17, 9], -0.2, 0.2), m.random.floats_as(dtype, &[9], -0.2, 0.2));
            let (w, b) = (m.trained(w)?, m.trained(b)?);
            let narrow = m.cast(x, dtype)?;
            let h = m.matmul(narrow, w)?;
            let h = m.add(h, b)?;
            let h = m.tanh(h)?;
            let y = m.cast(h, DType::F32)?;
            m.result(y)
        });
    }
}

/// Graphs that passes rewrite; the results must not change.
pub(super) fn rewritable(list: &mut List<'_>) {
    list.add("rewrite", "identities", Tolerance::ROUNDING, |m| {
        let x = m.uniform(&[3, 5])?;
        let (one, zero) = (m.scalar(1.0)?, m.scalar(0.0)?);
        let y = m.mul(x, one)?;
        let y = m.add(y, zero)?;
        let y = m.div(y, one)?;
        let y = m.sub(y, zero)?;
        let y = m.neg(y)?;
        let y = m.neg(y)?;
        let y = m.reshape(y, [3, 5])?;
        let y = m.transpose(y, &[0, 1])?;
        let y = m.slice(y, 0, 0, 3)?;
        let y = m.cast(y, DType::F32)?;
        m.result(y)
    })
    .smooth();
    list.add("rewrite", "zero-times-nan", Tolerance::EXACT, |m| {
        let x = m.given(Tensor::new(&[4], &[f32::NAN, f32::INFINITY, 1.0, -1.0])?)?;
        let zero = m.scalar(0.0)?;
        let (product, difference) = (m.mul(x, zero)?, m.sub(x, x)?);
        m.result(product)?;
        m.result(difference)
    });
    // A 0 that is known, as divisor, as dividend and as both; truth values tell NaN from 0, too.
    list.add("rewrite", "zero-divided", Tolerance::EXACT, |m| {
        let x = m.given(Tensor::new(&[6], &[f32::NAN, f32::INFINITY, 1.0, -1.0, 0.0, -0.0])?)?;
        let zero = m.scalar(0.0)?;
        for quotient in [m.div(x, zero)?, m.div(zero, x)?, m.div(x, x)?] {
            let any = m.cast(quotient, DType::Bool)?;
            m.result(quotient)?;
            m.result(any)?;
        }
        Ok(())
    });
    list.add("rewrite", "constants", Tolerance::CHAIN, |m| {
        let x = m.uniform(&[2, 3])?;
        let (a, b) = (m.constant(Tensor::new(&[3], &[1.0f32, 2.0, 3.0])?)?, m.scalar(0.5)?);
        let c = m.mul(a, b)?;
        let c = m.exp(c)?;
        let total = m.sum(c, &[0], true)?;
        let p = m.div(c, total)?;
        let y = m.mul(x, p)?;
        m.result(y)?;
        m.result(p)
    })
    .smooth();
    list.add("rewrite", "common-subexpressions", Tolerance::CHAIN, |m| {
        let (x, w) = (m.uniform(&[3, 4])?, m.trained_uniform(&[4, 4])?);
        let (a, b) = (m.matmul(x, w)?, m.matmul(x, w)?);
        let (a, b) = (m.tanh(a)?, m.tanh(b)?);
        let (s, t) = (m.add(a, x)?, m.add(x, b)?);
        let y = m.mul(s, t)?;
        m.result(y)
    })
    .smooth();
    list.add("rewrite", "transposes-and-reshapes", Tolerance::sum_of(6), |m| {
        let (x, w) = (m.uniform(&[2, 3, 4])?, m.trained_uniform(&[5, 4])?);
        let a = m.transpose(x, &[2, 0, 1])?;
        let a = m.transpose(a, &[1, 2, 0])?;
        let a = m.reshape(a, [6, 4])?;
        let a = m.reshape(a, [2, 3, 4])?;
        let w = m.transpose(w, &[1, 0])?;
        let y = m.matmul(a, w)?;
        let t = m.transpose(y, &[0, 2, 1])?;
        let z = m.matmul(t, a)?;
        m.result(y)?;
        m.result(z)
    })
    .smooth();
    list.add("rewrite", "long-elementwise-chain", Tolerance::CHAIN, |m| {
        let (x, row, column) = (m.uniform(&[7, 9])?, m.uniform(&[9])?, m.uniform(&[7, 1])?);
        let mut y = x;
        for i in 0..8 {
            y = m.add(y, if i % 2 == 0 { row } else { column })?;
            y = if i % 3 == 0 { m.sin(y)? } else { m.tanh(y)? };
        }
        let gate = m.sigmoid(column)?;
        let y = m.mul(y, gate)?;
        m.result(y)
    })
    .smooth();
    list.add("rewrite", "fused-value-used-again", Tolerance::CHAIN, |m| {
        let (x, w) = (m.uniform(&[5, 6])?, m.trained_uniform(&[6, 6])?);
        let product = m.matmul(x, w)?;
        let (a, b) = (m.tanh(product)?, m.sigmoid(product)?);
        let y = m.mul(a, b)?;
        let sum = m.sum(product, &[0], false)?;
        m.result(y)?;
        m.result(sum)
    })
    .smooth();
    list.add("rewrite", "in-place-hazard", Tolerance::CHAIN, |m| {
        // The input and the middle value are both read after something that could have overwritten them.
        let x = m.uniform(&[33])?;
        let a = m.exp(x)?;
        let b = m.mul(a, x)?;
        let c = m.add(b, a)?;
        let d = m.sub(c, x)?;
        let y = m.mul(d, b)?;
        m.result(y)
    })
    .smooth();
    list.add("rewrite", "mask-by-comparison", Tolerance::ROUNDING, |m| {
        let x = m.uniform(&[5, 7])?;
        let limit = m.scalar(0.25)?;
        let (above, below) = (m.gt(x, limit)?, m.lt(x, limit)?);
        let either = m.or(above, below)?;
        let doubled = m.add(x, x)?;
        let y = m.select(above, doubled, x)?;
        let mask = m.cast(either, DType::F32)?;
        let y = m.mul(y, mask)?;
        m.result(y)
    })
    .smooth();
    list.add("rewrite", "integers-do-not-fuse-through-floats", Tolerance::EXACT, |m| {
        // 2²⁴ + 1 has no f32; a fused program that widened it would lose the 1.
        let x = m.given(Tensor::new(&[4], &[16_777_216i32, 16_777_217, -16_777_217, i32::MAX])?)?;
        let one = m.constant(Tensor::scalar(1i32))?;
        let y = m.add(x, one)?;
        let y = m.mul(y, one)?;
        let y = m.sub(y, one)?;
        m.result(y)
    });
}
