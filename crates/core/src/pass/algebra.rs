//! Algebraic simplification: local rules that hold for every value, even for the sign of zero, which a division would
//! show.

use super::{PassOptions, rewrite};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::{Binary, Op, Unary};
use crate::tensor::Tensor;

pub(super) fn algebra(graph: &Graph, _: &PassOptions) -> Result<Graph> {
    rewrite(
        graph,
        &[
            ("neutral operand", &neutral_operand),
            ("cheaper power", &cheaper_power),
            ("unary twice", &unary_twice),
            ("cast there and back", &cast_there_and_back),
            ("quantize what was dequantized", &requantize),
            ("select between equals", &select_between_equals),
            ("movement without effect", &movement_without_effect),
            ("broadcast into broadcasting", &broadcast_into_broadcasting),
        ],
    )
}

/// The one value that a constant consists of.
fn splat(graph: &Graph, mut value: Value) -> Option<f64> {
    while let Op::Broadcast { .. } = graph.node(value).op {
        value = graph.node(value).inputs[0];
    }
    match &graph.node(value).op {
        Op::Const(t) if !t.is_empty() && t.len() <= 4096 => {
            let mut elements = t.bytes().chunks_exact(t.dtype().size());
            let first = elements.next()?;
            let one = || Tensor::from_bytes(t.dtype(), &[], first).ok()?.to_f64().first().copied();
            elements.all(|e| e == first).then(one)?
        }
        _ => None,
    }
}

/// x + (−0), x − 0, x · 1, x / 1, x¹ → x, where the shape stays. Not x + 0: of x = −0 that is 0. Integers have one zero.
fn neutral_operand(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value);
    let Op::Binary(op) = node.op else { return Ok(None) };
    let (a, b) = (node.inputs[0], node.inputs[1]);
    let keeps = |x: Value| graph.ty(x) == graph.ty(value);
    let one_zero = !graph.ty(value).dtype.is_float();
    let is_neutral = |x: f64| match op {
        Binary::Add => x == 0.0 && (one_zero || x.is_sign_negative()),
        Binary::Sub => x == 0.0 && (one_zero || x.is_sign_positive()),
        Binary::Mul | Binary::Div | Binary::Pow => x == 1.0,
        _ => false,
    };
    if splat(graph, b).is_some_and(is_neutral) && keeps(a) {
        return Ok(Some(a));
    }
    if op.commutes() && splat(graph, a).is_some_and(is_neutral) && keeps(b) {
        return Ok(Some(b));
    }
    // −0 − x
    let minus = |x: f64| x == 0.0 && (one_zero || x.is_sign_negative());
    if op == Binary::Sub && splat(graph, a).is_some_and(minus) && keeps(b) {
        let name = node.name.clone();
        return graph.push(Op::Unary(Unary::Neg), vec![b], name).map(Some);
    }
    Ok(None)
}

/// x² by a multiplication; √x for x^½ stays a power (they differ at −∞).
fn cheaper_power(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value);
    if node.op != Op::Binary(Binary::Pow) || graph.ty(node.inputs[0]) != graph.ty(value) {
        return Ok(None);
    }
    let (base, name) = (node.inputs[0], node.name.clone());
    match splat(graph, node.inputs[1]) {
        Some(2.0) => graph.push(Op::Unary(Unary::Square), vec![base], name).map(Some),
        _ => Ok(None),
    }
}

/// −−x, not not x → x; relu, abs, floor, round, sign of themselves; relu of what is never negative.
fn unary_twice(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value);
    let Op::Unary(outer) = node.op else { return Ok(None) };
    let inner = graph.node(node.inputs[0]);
    let Op::Unary(first) = inner.op else { return Ok(None) };
    let once = Some(node.inputs[0]);
    Ok(match (outer, first) {
        (Unary::Neg, Unary::Neg) | (Unary::Not, Unary::Not) => Some(inner.inputs[0]),
        (Unary::Relu, Unary::Relu | Unary::Sigmoid | Unary::Softplus | Unary::Exp | Unary::Abs | Unary::Square)
        | (Unary::Abs, Unary::Abs | Unary::Relu | Unary::Sigmoid | Unary::Softplus | Unary::Exp | Unary::Square)
        | (Unary::Floor, Unary::Floor | Unary::Round)
        | (Unary::Round, Unary::Floor | Unary::Round)
        | (Unary::Sign, Unary::Sign)
            // An i32 square or absolute value can wrap to a negative number.
            if graph.ty(value).dtype.is_float() || outer == first => once,
        _ => None,
    })
}

/// A cast to the same type, or to a wider type and back.
fn cast_there_and_back(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value);
    let Op::Cast { dtype } = node.op else { return Ok(None) };
    let from = node.inputs[0];
    if graph.ty(from).dtype == dtype {
        return Ok(Some(from));
    }
    let inner = graph.node(from);
    let Op::Cast { dtype: wide } = inner.op else { return Ok(None) };
    let origin = inner.inputs[0];
    let exact = matches!(
        (graph.ty(origin).dtype, wide),
        (DType::F16 | DType::Bf16 | DType::I8 | DType::U8 | DType::Bool, DType::F32)
            | (DType::I8 | DType::U8 | DType::Bool, DType::I32)
    );
    Ok((graph.ty(origin).dtype == dtype && exact).then_some(origin))
}

/// quantize(dequantize(q, s, z), s, z) → q where that is exact: the same constants, and (q − z)·s neither overflows nor
/// loses bits to underflow, so that dividing by s again rounds to the integer it came from.
fn requantize(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value);
    let Op::Quantize { dtype } = node.op else { return Ok(None) };
    let inner = graph.node(node.inputs[0]);
    if inner.op != Op::Dequantize || inner.inputs[1..] != node.inputs[1..] {
        return Ok(None);
    }
    let q = inner.inputs[0];
    let data = |v: Value| match &graph.node(v).op {
        Op::Const(t) => Some(t),
        Op::Weight { name, .. } => graph.weights().get(name).filter(|_| !graph.may_change(name)),
        _ => None,
    };
    let (Some(scale), Some(zero)) = (data(node.inputs[1]), data(node.inputs[2])) else { return Ok(None) };
    let safe_scale = scale.to_f64().iter().all(|s| s.is_finite() && s.abs() > 1e-30 && s.abs() < 1e30);
    let safe_zero = zero.to_f64().iter().all(|z| z.abs() <= 65536.0);
    Ok((graph.ty(q).dtype == dtype && safe_scale && safe_zero).then_some(q))
}

fn select_between_equals(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value);
    let same = node.op == Op::Select && node.inputs[1] == node.inputs[2];
    Ok((same && graph.ty(node.inputs[1]) == graph.ty(value)).then(|| node.inputs[1]))
}

/// Reshapes, transposes, slices, pads, broadcasts and joins that change nothing, or follow their own kind.
fn movement_without_effect(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value).clone();
    let Some(&x) = node.inputs.first() else { return Ok(None) };
    let same_type = graph.ty(x) == graph.ty(value);
    let before = graph.node(x).clone();
    match (&node.op, &before.op) {
        (Op::Reshape { .. } | Op::Broadcast { .. } | Op::Slice { .. } | Op::Pad { .. }, _) if same_type => Ok(Some(x)),
        (Op::Concat { .. }, _) if node.inputs.len() == 1 => Ok(Some(x)),
        (Op::Transpose { perm }, _) if perm.iter().enumerate().all(|(i, p)| i == *p) => Ok(Some(x)),
        (Op::Reshape { .. }, Op::Reshape { .. }) => graph.push(node.op, vec![before.inputs[0]], node.name).map(Some),
        (Op::Transpose { perm }, Op::Transpose { perm: first }) => {
            let perm = perm.iter().map(|&p| first[p]).collect();
            graph.push(Op::Transpose { perm }, vec![before.inputs[0]], node.name).map(Some)
        }
        (Op::Broadcast { .. }, Op::Broadcast { .. }) => {
            graph.push(node.op, vec![before.inputs[0]], node.name).map(Some)
        }
        _ => Ok(None),
    }
}

/// An elementwise operation stretches its inputs itself: drop a broadcast before it if the result keeps its shape.
fn broadcast_into_broadcasting(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    let node = graph.node(value).clone();
    if !matches!(node.op, Op::Binary(_) | Op::Compare(_) | Op::Select) {
        return Ok(None);
    }
    for (i, &input) in node.inputs.iter().enumerate() {
        let before = graph.node(input);
        if !matches!(before.op, Op::Broadcast { .. }) {
            continue;
        }
        let mut inputs = node.inputs.clone();
        inputs[i] = before.inputs[0];
        let types: Vec<_> = inputs.iter().map(|&v| graph.ty(v)).collect();
        if node.op.infer(&types).is_ok_and(|outs| outs == node.outs) {
            return graph.push(node.op, inputs, node.name).map(Some);
        }
    }
    Ok(None)
}
