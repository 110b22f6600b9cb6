//! A decoder's graph with a cache: attention reads keys and values that earlier runs have kept.

use crate::{Error, Result};
use schwann_core::op::Type;
use schwann_core::{DType, Dim, Graph, Op, Shape, Value};
use std::collections::HashMap;

/// The node whose value says which position each symbol has.
const POSITIONS: &str = "rope.positions";

/// The graph of a decoder, from `tokens` `[B, T]` to `logits` `[B, T, vocabulary]`, as one that goes on where the last run
/// ended:
///
/// - `positions` i32 `[T]` is an input: the places of the new symbols in the sequence, one after the other.
/// - Every attention has two states, `cache.0.keys` and `cache.0.values` `[B, heads, S, head_size]` with room for S
///   symbols. New keys and values are put into them where they are, and a symbol sees those up to its own place.
/// - `logits` `[B, 1, vocabulary]` are those after the last symbol alone.
pub fn cached(graph: &Graph) -> Result<Graph> {
    let refuse = |what: &str| Error::file(format!("not a decoder's graph: {what}"));
    let tokens = graph.inputs().find(|(name, _)| *name == "tokens").map(|(_, value)| graph.ty(value));
    let length = match tokens.map(|ty| (ty.dtype, ty.shape.dims())) {
        Some((DType::I32, [_, length])) if length.as_symbol().is_some() => length.clone(),
        Some(_) => return Err(refuse("its input `tokens` is no i32 [B, T]")),
        None => return Err(refuse("it has no input `tokens`")),
    };
    if graph.inputs().len() != 1 || !graph.states().is_empty() {
        return Err(refuse("it has inputs or states beside `tokens`"));
    }
    let [logits] = graph.outputs() else { return Err(refuse("it has other outputs than `logits`")) };
    let shape = &graph.ty(logits.value).shape;
    if logits.name != "logits" || shape.rank() != 3 || shape[1] != length {
        return Err(refuse("its output is no `logits` [B, T, vocabulary]"));
    }

    let mut new = Graph::default();
    let mut at: HashMap<Value, Value> = HashMap::new();
    let mut caches = vec![];
    let mut positions = None;
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let own = Value { node: id, slot: 0 };
        if node.name == POSITIONS && !node.op.is_source() {
            let ty = Type::new(DType::I32, vec![length.clone()]);
            if node.outs != [ty.clone()] {
                return Err(refuse(&format!("`{POSITIONS}` is {}; expected {ty}", node.outs[0])));
            }
            let value = new.push(Op::Input { name: "positions".into(), ty }, vec![], "positions")?;
            positions = Some(value);
            at.insert(own, value);
            continue;
        }
        let mut inputs: Vec<Value> = node.inputs.iter().map(|v| at[v]).collect();
        // Only the last symbol's logits are wanted, so only its row is multiplied with the head.
        let is_head = own == logits.value && matches!(node.op, Op::MatMul { transpose_a: false, .. });
        if is_head && new.ty(inputs[0]).shape.rank() == 3 {
            inputs[0] = last(&mut new, inputs[0], &length)?;
        }
        if let Op::Attention { causal: true, scale, positions: false } = node.op
            && let [q, k, v] = inputs[..]
        {
            let at_all = positions.ok_or_else(|| refuse(&format!("no `{POSITIONS}` before `{}`", node.name)))?;
            if [q, k].iter().any(|v| new.ty(*v).shape[2] != length) {
                return Err(refuse(&format!("`{}` is not over the symbols of the sequence", node.name)));
            }
            let number = caches.len() / 2;
            let mut kept = vec![q];
            for (what, value) in [("keys", k), ("values", v)] {
                let name = format!("cache.{number}.{what}");
                let mut ty = new.ty(value).clone();
                ty.shape = with_axis(&ty.shape, 2, Dim::symbol("S"));
                let state = new.push(Op::Input { name: name.clone(), ty }, vec![], &name)?;
                let node = format!("{}.kept.{what}", node.name);
                let next = new.push(Op::Put { axis: 2 }, vec![state, value, at_all], node)?;
                kept.push(next);
                caches.push((name, next));
            }
            kept.push(at_all);
            let op = Op::Attention { causal: false, scale, positions: true };
            at.insert(own, new.push(op, kept, node.name.clone())?);
            continue;
        }
        let first = new.push(node.op.clone(), inputs, node.name.clone())?;
        (0..node.outs.len() as u16).for_each(|slot| _ = at.insert(Value { slot, ..own }, Value { slot, ..first }));
        if let Op::Weight { name, .. } = &node.op
            && let Some(data) = graph.weights().get(name)
        {
            new.set_weight(name, data.clone())?;
        }
    }
    if caches.is_empty() {
        return Err(refuse("it has no causal attention"));
    }
    let mut result = at[&logits.value];
    if new.ty(result).shape[1] == length {
        result = last(&mut new, result, &length)?;
    }
    new.push_output("logits", result)?;
    for (name, value) in caches {
        let next = format!("{name}.next");
        new.push_output(next.clone(), value)?;
        new.push_state(&name, &next)?;
    }
    new.verify()?;
    Ok(new)
}

/// The last element along axis 1, which has `length` of them.
fn last(graph: &mut Graph, x: Value, length: &Dim) -> Result<Value> {
    let before = length.checked_sub(&Dim::fixed(1)).ok_or_else(|| Error::file("a sequence of no symbols"))?;
    Ok(graph.push(Op::Slice { axis: 1, start: before, end: length.clone() }, vec![x], "last")?)
}

fn with_axis(shape: &Shape, axis: usize, size: Dim) -> Shape {
    let mut dims = shape.dims().to_vec();
    dims[axis] = size;
    dims.into()
}
