//! The table: for each operation, the gradient of each input from the gradient `g` of the output.
//!
//! With y = f(x) and a loss L, a rule gives ∂L/∂x from g = ∂L/∂y. `None` means 0, or not asked for. Rules prefer the
//! output over recomputing from the input where both would do (tanh' = 1 − y²): one saved value less in a loop.

use super::expand::MOST_TIMES;
use super::refuse;
use super::tape::Tape;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Node, Value};
use crate::op::{Binary, Compare, LowBit, Op, Reduction, SynapseResult, Unary};
use crate::shape::{Dim, Shape};
use crate::tensor::Tensor;

/// Gradients of the inputs; those not in `wants` may be left out.
pub(super) fn rule(t: &mut Tape, node: &Node, y: Value, g: Value, wants: &[bool]) -> Result<Vec<Option<Value>>> {
    let inputs = &node.inputs;
    let shape = |t: &Tape, i: usize| t.shape(inputs[i]);
    let one = |v: Value| Ok(vec![Some(v)]);
    match &node.op {
        Op::Input { .. } | Op::Weight { .. } | Op::Const(_) => Ok(vec![]),
        Op::Unary(u) => Ok(vec![u.gradient(t, inputs[0], y, g)?]),
        Op::Binary(b) => binary(t, *b, inputs, y, g, wants),
        Op::Compare(_) => Ok(vec![None, None]),

        // Each operand gets the gradient where it was selected.
        Op::Select => {
            let (a, b) = (shape(t, 1), shape(t, 2));
            let da = when(wants[1], || t.keep_where(inputs[0], g).and_then(|d| t.unbroadcast(d, &a)))?;
            let db = when(wants[2], || t.drop_where(inputs[0], g).and_then(|d| t.unbroadcast(d, &b)))?;
            Ok(vec![None, da, db])
        }

        // y = a·b: da = g·bᵀ, db = aᵀ·g; an operand stored transposed gets its gradient transposed, which is the
        // product in the other order. Leading axes that were stretched are summed.
        Op::MatMul { transpose_a: ta, transpose_b: tb } => {
            let (a, b) = (inputs[0], inputs[1]);
            let da = when(wants[0], || {
                let da = if *ta { t.matmul(b, g, *tb, true) } else { t.matmul(g, b, false, !tb) }?;
                let da = t.unbroadcast(da, &t.shape(a))?;
                t.cast(da, t.dtype(a))
            })?;
            let db = when(wants[1], || {
                // One matrix for a whole batch: the batch becomes part of the rows that the product sums over.
                let (a, g) = if !ta && t.shape(b).rank() == 2 { (rows(t, a)?, rows(t, g)?) } else { (a, g) };
                let db = if *tb { t.matmul(g, a, true, *ta) } else { t.matmul(a, g, !ta, false) }?;
                let db = t.unbroadcast(db, &t.shape(b))?;
                t.cast(db, t.dtype(b))
            })?;
            Ok(vec![da, db])
        }

        Op::Reduce { kind, axes, .. } => {
            let x = inputs[0];
            let full = t.shape(x);
            let kept = kept_shape(&full, axes);
            let g = t.reshape(g, &kept)?;
            let g = match kind {
                Reduction::Sum => g,
                Reduction::Mean => {
                    let dims: Vec<Dim> = axes.iter().map(|&a| full[a].clone()).collect();
                    let count = t.count(&dims)?;
                    let share = wide(t, g)?;
                    t.div(share, count)?
                }
                // Equal shares to all elements that are the extreme one.
                Reduction::Max | Reduction::Min => {
                    let y = t.reshape(y, &kept)?;
                    let is = t.compare(Compare::Eq, x, y)?;
                    let ones = t.cast(is, DType::F32)?;
                    let ties = t.reduce(Reduction::Sum, ones, axes)?;
                    let share = wide(t, g)?;
                    let share = t.div(share, ties)?;
                    t.keep_where(is, share)?
                }
            };
            let g = t.cast(g, t.dtype(x))?;
            one(t.broadcast(g, &full)?)
        }

        // ∂yᵢ/∂xⱼ = yᵢ(δᵢⱼ − yⱼ): dx = y∘(g − Σ g∘y)
        Op::Softmax { axis } => {
            let (y, g) = (wide(t, y)?, wide(t, g)?);
            let dx = softmax(t, y, g, *axis)?;
            one(t.cast(dx, node.outs[0].dtype)?)
        }

        Op::LayerNorm { eps } => {
            // x̂ = (x − μ)·r with r = 1/√(variance + ε); h = g∘scale:
            // dx = r·(h − mean h − x̂·mean(h∘x̂)), d scale = Σ g∘x̂, d shift = Σ g
            let (x, g) = (wide(t, inputs[0])?, wide(t, g)?);
            let last = [t.shape(x).rank() - 1];
            let mean = t.reduce(Reduction::Mean, x, &last)?;
            let centred = t.sub(x, mean)?;
            normalized(t, node, centred, g, f64::from(eps.0), true, wants)
        }
        Op::RmsNorm { eps } => {
            // The same without μ: x̂ = x·r with r = 1/√(mean x² + ε), dx = r·(h − x̂·mean(h∘x̂))
            let (x, g) = (wide(t, inputs[0])?, wide(t, g)?);
            normalized(t, node, x, g, f64::from(eps.0), false, wants)
        }
        Op::Attention { causal, scale, .. } => attention(t, node, g, *causal, scale.map(|s| s.0), wants),

        Op::Reshape { .. } => one(t.reshape(g, &shape(t, 0))?),
        Op::Transpose { perm } => {
            let mut back = vec![0; perm.len()];
            perm.iter().enumerate().for_each(|(to, &from)| back[from] = to);
            one(t.push(Op::Transpose { perm: back }, &[g])?)
        }
        Op::Slice { axis, start, end } => {
            let after = shape(t, 0)[*axis].checked_sub(end).ok_or_else(|| t.too_large())?;
            one(t.push(Op::Pad { axis: *axis, before: start.clone(), after }, &[g])?)
        }
        Op::Pad { axis, before, .. } => {
            let end = before.checked_add(&shape(t, 0)[*axis]).ok_or_else(|| t.too_large())?;
            one(t.push(Op::Slice { axis: *axis, start: before.clone(), end }, &[g])?)
        }
        Op::Concat { axis } => {
            let mut start = Dim::fixed(0);
            let mut parts = vec![];
            for (i, wanted) in wants.iter().enumerate() {
                let end = start.checked_add(&shape(t, i)[*axis]).ok_or_else(|| t.too_large())?;
                let slice = Op::Slice { axis: *axis, start, end: end.clone() };
                parts.push(when(*wanted, || t.push(slice, &[g]))?);
                start = end;
            }
            Ok(parts)
        }
        Op::Broadcast { .. } => one(t.unbroadcast(g, &shape(t, 0))?),

        // An element that was read at several places gets the sum: a segment sum with the indices as segments.
        Op::Gather { axis } => {
            let (data, indices) = (shape(t, 0), shape(t, 1));
            let count = indices.count().ok_or_else(|| t.too_large())?;
            let mut dims = data.dims().to_vec();
            dims[*axis] = count.clone();
            let g = t.reshape(g, &dims.into())?;
            let indices = t.reshape(inputs[1], &vec![count].into())?;
            let op = Op::SegmentSum { axis: *axis, segments: data[*axis].clone() };
            Ok(vec![Some(t.push(op, &[g, indices])?), None])
        }
        // What was replaced has no effect, and what replaced it is read back.
        Op::Put { axis } => {
            let data = when(wants[0], || {
                let zero = t.number(0.0, g)?;
                let zeros = t.broadcast(zero, &shape(t, 1))?;
                t.push(Op::Put { axis: *axis }, &[g, zeros, inputs[2]])
            })?;
            let part = when(wants[1], || t.push(Op::Gather { axis: *axis }, &[g, inputs[2]]))?;
            Ok(vec![data, part, None])
        }
        Op::SegmentSum { axis, .. } => Ok(vec![Some(t.push(Op::Gather { axis: *axis }, &[g, inputs[1]])?), None]),

        Op::Cast { .. } => one(t.cast(g, t.dtype(inputs[0]))?),
        // y = (q − zero)·scale; q and zero are integers.
        Op::Dequantize => {
            let scale = shape(t, 1);
            let d = when(wants[1], || {
                let (q, zero) = (t.cast(inputs[0], DType::F32)?, t.cast(inputs[2], DType::F32)?);
                let steps = t.sub(q, zero)?;
                let d = t.mul(g, steps)?;
                t.unbroadcast(d, &scale)
            })?;
            Ok(vec![None, d, None])
        }

        op @ Op::Custom { .. } => {
            let problem = "a custom operation has no gradient; build it from other operations where you train";
            Err(refuse(&node.name, op, problem))
        }

        // As if nothing were rounded: the gradient of rounding is 0 almost everywhere, and no network would learn.
        Op::RoundRows => one(g),

        // A number is its code (less the centre) times its scale, plus its offset: each scale gathers its block's.
        Op::LowBit(format) => {
            let scales = t.shape(inputs[1]);
            let like = |t: &mut Tape, value: f64| {
                let value = t.scalar(value, t.dtype(inputs[1]))?;
                t.broadcast(value, &scales)
            };
            let mut parts = vec![None];
            for (i, wanted) in wants.iter().enumerate().skip(1) {
                parts.push(when(*wanted, || {
                    let d = if i == 1 {
                        let ones = like(t, 1.0)?;
                        let mut own = vec![inputs[0], ones];
                        if format.offsets {
                            own.push(like(t, 0.0)?);
                        }
                        let codes = t.push(node.op.clone(), &own)?;
                        t.mul(g, codes)?
                    } else {
                        g
                    };
                    by_block(t, d, format, &scales, t.dtype(inputs[1]))
                })?);
            }
            Ok(parts)
        }

        // Never on the path: the copy of the forward graph replaces or refuses these operations there.
        op @ (Op::Quantize { .. }
        | Op::Scan(_)
        | Op::Map { .. }
        | Op::MatMulMap { .. }
        | Op::LowBitMatMul(_)
        | Op::SynapseSum { .. }
        | Op::SynapseRatio { .. }
        | Op::SynapseGradient { .. }
        | Op::GatedCell { .. }) => Err(refuse(&node.name, op, "it has no rule of its own")),
    }
}

/// The gradients of what sums over synapses or their ratio read, from those of its results.
pub(super) fn synapses(
    t: &mut Tape,
    node: &Node,
    outs: &[Option<Value>],
    wants: &[bool],
) -> Result<Vec<Option<Value>>> {
    let (activation, axis, of) = match node.op {
        Op::SynapseSum { activation, axis, sums, segments } => {
            (activation, axis, SynapseResult::Sums { sums, segments })
        }
        Op::SynapseRatio { activation, axis, times } => (activation, axis, SynapseResult::Ratio { times }),
        _ => return Err(refuse(&node.name, &node.op, "it is no sum over synapses")),
    };
    if let SynapseResult::Ratio { times } = of
        && times > MOST_TIMES
    {
        return Err(refuse(&node.name, &node.op, format!("it is taken {times} times, over {MOST_TIMES}")));
    }
    let mut gradients = vec![];
    for (out, ty) in outs.iter().zip(&node.outs) {
        gradients.push(match out {
            Some(g) => *g,
            None => t.zeros(ty)?,
        });
    }
    let tables = 5 + of.sums();
    let ratio = matches!(of, SynapseResult::Ratio { .. });
    let mut parts = vec![None; node.inputs.len()];
    if wants[..tables].contains(&true) || ratio {
        let own = if ratio { &node.inputs[..] } else { &node.inputs[..tables] };
        let all: Vec<Value> = own.iter().chain(&gradients).copied().collect();
        let first = t.push(Op::SynapseGradient { activation, axis, of }, &all)?;
        let out = |slot: usize| Value { slot: slot as u16, ..first };
        parts[0] = Some(out(0));
        for slot in of.lists() {
            parts[2 + slot] = Some(out(slot));
        }
        if ratio {
            for term in 0..3 {
                let full = out(of.lists().end + term);
                parts[tables + term] =
                    when(wants[tables + term], || t.unbroadcast(full, &t.shape(node.inputs[tables + term])))?;
            }
        }
    }
    if !ratio {
        // What a sum starts from is added to it.
        for (i, &g) in (tables..node.inputs.len()).zip(&gradients) {
            parts[i] = when(wants[i], || t.unbroadcast(g, &t.shape(node.inputs[i])))?;
        }
    }
    for (part, wanted) in parts.iter_mut().zip(wants) {
        *part = part.filter(|_| *wanted);
    }
    Ok(parts)
}

/// Sums of a low-bit matrix's numbers by the scale that they share, for scales of this shape and type.
fn by_block(t: &mut Tape, numbers: Value, format: &LowBit, scales: &Shape, dtype: DType) -> Result<Value> {
    let (shape, last) = (t.shape(numbers), t.shape(numbers).rank() - 1);
    let block = format.block.min(format.len.max(1));
    let missing = format.blocks() * block - format.len;
    let padded = t.push(Op::Pad { axis: last, before: 0.into(), after: missing.into() }, &[numbers])?;
    let lead = &shape.dims()[..last];
    let cut: Vec<Dim> = lead.iter().cloned().chain([format.blocks().into(), block.into()]).collect();
    let cut = t.reshape(padded, &cut.into())?;
    let sums = t.reduce(Reduction::Sum, cut, &[last + 1])?;
    let whole: Vec<Dim> = lead.iter().cloned().chain([format.blocks().into()]).collect();
    let sums = t.reshape(sums, &whole.into())?;
    let sums = t.unbroadcast(sums, scales)?;
    t.cast(sums, dtype)
}

/// The value, if it is wanted.
fn when(wanted: bool, f: impl FnOnce() -> Result<Value>) -> Result<Option<Value>> {
    if wanted { f().map(Some) } else { Ok(None) }
}

fn binary(t: &mut Tape, op: Binary, ab: &[Value], y: Value, g: Value, wants: &[bool]) -> Result<Vec<Option<Value>>> {
    let (a, b) = (ab[0], ab[1]);
    let da = when(wants[0], || {
        let d = match op {
            Binary::Add | Binary::Sub => g,
            Binary::Mul => t.mul(g, b)?,
            Binary::Div => t.div(g, b)?,
            Binary::Min | Binary::Max => first_taken(t, op, a, b).and_then(|first| t.keep_where(first, g))?,
            // b·a^(b−1), and 0 for b = 0 even where a = 0
            Binary::Pow => {
                let (zero, one) = (t.number(0.0, b)?, t.number(1.0, b)?);
                let flat = t.compare(Compare::Eq, b, zero)?;
                let less = t.sub(b, one)?;
                let power = t.push(Op::Binary(Binary::Pow), &[a, less])?;
                let slope = t.mul(b, power)?;
                let d = t.mul(g, slope)?;
                t.drop_where(flat, d)?
            }
            Binary::And | Binary::Or => return t.zeros(&t.ty(a).clone()),
        };
        t.unbroadcast(d, &t.shape(a))
    })?;
    let db = when(wants[1], || {
        let d = match op {
            Binary::Add => g,
            Binary::Sub => {
                let sum = t.unbroadcast(g, &t.shape(b))?;
                return t.unary(Unary::Neg, sum);
            }
            Binary::Mul => t.mul(g, a)?,
            // (a/b)' = −y/b
            Binary::Div => {
                let slope = t.div(y, b)?;
                let d = t.mul(g, slope)?;
                let sum = t.unbroadcast(d, &t.shape(b))?;
                return t.unary(Unary::Neg, sum);
            }
            Binary::Min | Binary::Max => first_taken(t, op, a, b).and_then(|first| t.drop_where(first, g))?,
            // y·ln a, and 0 for 0^b with b ≥ 0, where y·ln a would be 0·∞
            Binary::Pow => {
                let zero = t.number(0.0, a)?;
                let (a_zero, b_not_negative) = (t.compare(Compare::Eq, a, zero)?, t.compare(Compare::Ge, b, zero)?);
                let flat = t.push(Op::Binary(Binary::And), &[a_zero, b_not_negative])?;
                let log = t.unary(Unary::Log, a)?;
                let slope = t.mul(y, log)?;
                let d = t.mul(g, slope)?;
                t.drop_where(flat, d)?
            }
            Binary::And | Binary::Or => return t.zeros(&t.ty(b).clone()),
        };
        t.unbroadcast(d, &t.shape(b))
    })?;
    Ok(vec![da, db])
}

/// Where `min` or `max` takes its first operand: of two equal ones it is the first.
fn first_taken(t: &mut Tape, op: Binary, a: Value, b: Value) -> Result<Value> {
    t.compare(if op == Binary::Min { Compare::Le } else { Compare::Ge }, a, b)
}

/// All axes but the last as one.
fn rows(t: &mut Tape, x: Value) -> Result<Value> {
    let shape = t.shape(x);
    let (last, leading) = shape.dims().split_last().ok_or_else(|| t.too_large())?;
    let rows = Shape::from(leading.to_vec()).count().ok_or_else(|| t.too_large())?;
    t.reshape(x, &vec![rows, last.clone()].into())
}

fn kept_shape(shape: &Shape, axes: &[usize]) -> Shape {
    let size = |(i, d): (usize, &Dim)| if axes.contains(&i) { Dim::fixed(1) } else { d.clone() };
    shape.dims().iter().enumerate().map(size).collect::<Vec<_>>().into()
}

/// Converts to `f32`, because sums and counts over a row would be inexact in half precision.
fn wide(t: &mut Tape, x: Value) -> Result<Value> {
    t.cast(x, DType::F32)
}

/// y∘(g − Σ g∘y)
fn softmax(t: &mut Tape, y: Value, g: Value, axis: usize) -> Result<Value> {
    let gy = t.mul(g, y)?;
    let sum = t.reduce(Reduction::Sum, gy, &[axis])?;
    let rest = t.sub(g, sum)?;
    t.mul(y, rest)
}

/// The gradients of x̂∘scale + shift, x̂ = x/√(mean x² + ε), where x had its mean removed if `centred`.
fn normalized(
    t: &mut Tape,
    node: &Node,
    x: Value,
    g: Value,
    eps: f64,
    centred: bool,
    wants: &[bool],
) -> Result<Vec<Option<Value>>> {
    let dtype = node.outs[0].dtype;
    let last = [t.shape(x).rank() - 1];
    let square = t.unary(Unary::Square, x)?;
    let variance = t.reduce(Reduction::Mean, square, &last)?;
    let eps = t.number(eps, x)?;
    let variance = t.add(variance, eps)?;
    let deviation = t.unary(Unary::Sqrt, variance)?;
    let unit = t.div(x, deviation)?;

    let mut gradients = vec![];
    gradients.push(when(wants[0], || {
        let h = match node.inputs.get(1) {
            Some(&scale) => {
                let scale = wide(t, scale)?;
                t.mul(g, scale)?
            }
            None => g,
        };
        let hx = t.mul(h, unit)?;
        let along = t.reduce(Reduction::Mean, hx, &last)?;
        let along = t.mul(unit, along)?;
        let mut rest = t.sub(h, along)?;
        if centred {
            let mean = t.reduce(Reduction::Mean, h, &last)?;
            rest = t.sub(rest, mean)?;
        }
        let dx = t.div(rest, deviation)?;
        t.cast(dx, dtype)
    })?);
    for (i, &parameter) in node.inputs.iter().enumerate().skip(1) {
        gradients.push(when(wants[i], || {
            let d = if i == 1 { t.mul(g, unit)? } else { g };
            let d = t.unbroadcast(d, &t.shape(parameter))?;
            t.cast(d, dtype)
        })?);
    }
    Ok(gradients)
}

/// Attention is P·v with P = softmax(S), S = scale·q·kᵀ + mask. P is computed again rather than saved:
///
/// dv = Pᵀ·g, dP = g·vᵀ, dS = P∘(dP − Σ P∘dP), dq = scale·dS·k, dk = scale·dSᵀ·q, d mask = dS.
///
/// Query heads that share a key head lie one after the other, so they are one longer block of query rows for it; the
/// sum over them is then part of the products. In a row that sees no key P is 0, and with it every gradient.
fn attention(
    t: &mut Tape,
    node: &Node,
    g: Value,
    causal: bool,
    scale: Option<f32>,
    wants: &[bool],
) -> Result<Vec<Option<Value>>> {
    let dtype = node.outs[0].dtype;
    let (q, k, v) = (wide(t, node.inputs[0])?, wide(t, node.inputs[1])?, wide(t, node.inputs[2])?);
    let g = wide(t, g)?;
    let (queries, keys) = (t.shape(q), t.shape(k));
    let scores: Shape = vec![queries[0].clone(), queries[1].clone(), queries[2].clone(), keys[2].clone()].into();
    let group = match (queries[1].as_fixed(), keys[1].as_fixed()) {
        (Some(h), Some(g)) if g > 0 => h / g,
        _ => 1,
    };
    let rows = queries[2].checked_mul(&Dim::fixed(group)).ok_or_else(|| t.too_large())?;
    let blocks = |t: &mut Tape, x: Value| {
        let width = t.shape(x)[3].clone();
        t.reshape(x, &vec![keys[0].clone(), keys[1].clone(), rows.clone(), width].into())
    };

    let scale = match scale {
        Some(s) => t.scalar(f64::from(s), DType::F32)?,
        None => match queries[3].as_fixed() {
            Some(width) => t.scalar(1.0 / (width as f64).sqrt(), DType::F32)?,
            None => {
                let width = t.count(&queries.dims()[3..])?;
                let root = t.unary(Unary::Sqrt, width)?;
                t.unary(Unary::Recip, root)?
            }
        },
    };

    // S, with −∞ where a key is not seen.
    let q = blocks(t, q)?;
    let g = blocks(t, g)?;
    let products = t.matmul(q, k, false, true)?;
    let products = t.reshape(products, &scores)?;
    let mut s = t.mul(products, scale)?;
    let (mask, last) = node.op.attention_extras(node.inputs.len());
    let mask = mask.map(|at| node.inputs[at]);
    if let Some(mask) = mask {
        let mask = wide(t, mask)?;
        s = t.add(s, mask)?;
    }
    let lowest = t.push(Op::Const(Tensor::scalar(f32::NEG_INFINITY)), &[])?;
    if causal {
        // Query i sees key j if j ≤ i + S − L: if at least as many keys follow j as queries follow i.
        let after_query = t.positions(&queries[2], true)?;
        let after_query = t.reshape(after_query, &vec![queries[2].clone(), Dim::fixed(1)].into())?;
        let after_key = t.positions(&keys[2], true)?;
        let seen = t.compare(Compare::Ge, after_key, after_query)?;
        s = t.select(seen, s, lowest)?;
    }
    if let Some(last) = last {
        // Query i sees key j if j ≤ last[i].
        let last = t.reshape(node.inputs[last], &vec![queries[2].clone(), Dim::fixed(1)].into())?;
        let positions = t.positions(&keys[2], false)?;
        let seen = t.compare(Compare::Le, positions, last)?;
        s = t.select(seen, s, lowest)?;
    }
    // P; a row without a key has largest score −∞ and sum 0, which would make it NaN.
    let largest = t.reduce(Reduction::Max, s, &[3])?;
    let none = t.compare(Compare::Eq, largest, lowest)?;
    let largest = t.drop_where(none, largest)?;
    let shifted = t.sub(s, largest)?;
    let e = t.unary(Unary::Exp, shifted)?;
    let sum = t.reduce(Reduction::Sum, e, &[3])?;
    let one = t.number(1.0, sum)?;
    let sum = t.select(none, one, sum)?;
    let p = t.div(e, sum)?;

    let dv = when(wants[2], || {
        let p = blocks(t, p)?;
        let dv = t.matmul(p, g, true, false)?;
        t.cast(dv, dtype)
    })?;
    if !(wants[0] || wants[1] || mask.is_some() && wants[3]) {
        let mut gradients = vec![None, None, dv];
        gradients.resize(node.inputs.len(), None);
        return Ok(gradients);
    }
    let dp = t.matmul(g, v, false, true)?;
    let dp = t.reshape(dp, &scores)?;
    let ds = softmax(t, p, dp, 3)?;
    let dmask = mask.filter(|_| wants[3]).map(|mask| {
        let d = t.unbroadcast(ds, &t.shape(mask))?;
        t.cast(d, dtype)
    });
    let ds = t.mul(ds, scale)?;
    let ds = blocks(t, ds)?;
    let dq = when(wants[0], || {
        let dq = t.matmul(ds, k, false, false)?;
        let dq = t.reshape(dq, &queries)?;
        t.cast(dq, dtype)
    })?;
    let dk = when(wants[1], || {
        let dk = t.matmul(ds, q, true, false)?;
        t.cast(dk, dtype)
    })?;
    let mut gradients = vec![dq, dk, dv];
    gradients.push(dmask.transpose()?);
    gradients.resize(node.inputs.len(), None);
    Ok(gradients)
}
