//! Doing now what needs no input: work on constants, and (unless asked not to) on weights.

use super::PassOptions;
use crate::backend::reference::{self, HostValue, Precision};
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::{Op, Type};
use crate::shape::Bindings;
use crate::tensor::Tensor;
use std::collections::HashMap;

/// Results up to this many bytes are always worth keeping.
const SMALL: usize = 4096;
/// Larger ones only if they are at most so many times what they replace: weights kept narrow may widen once, ahead of
/// every run, but a small constant stretched over a large shape is better stretched when it is read.
const GROWTH: usize = 4;
/// A folded result of up to this many elements is a literal in the graph's text, a larger one a weight.
const LITERAL: usize = 64;

/// Before anything is moved out of loops: in a body, where weights cannot be, large results are literals too.
pub(super) fn fold_early(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    fold_into(graph, options, true)
}

pub(super) fn fold(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    fold_into(graph, options, false)
}

/// With `literals`, what comes from literals alone stays one, however large.
fn fold_into(graph: &Graph, options: &PassOptions, literals: bool) -> Result<Graph> {
    let mut r = graph.rebuild();
    let mut known: HashMap<Value, HostValue> = HashMap::new();
    for (id, node) in graph.nodes().iter().enumerate() {
        let id = id as u32;
        let new = r.copy(id)?;
        match &node.op {
            Op::Const(t) => {
                known.insert(new, HostValue::from_tensor(t));
                continue;
            }
            Op::Weight { name, .. } if options.fold_weights => {
                if let Some(data) = graph.weights().get(name) {
                    known.insert(new, HostValue::from_tensor(data));
                }
                continue;
            }
            Op::Input { .. } | Op::Weight { .. } | Op::Scan(_) => continue,
            _ => {}
        }
        let inputs: Vec<Value> = r.new.node(new).inputs.clone();
        if inputs.is_empty()
            || !inputs.iter().all(|v| known.contains_key(v))
            || !worth_keeping(&r.new, &inputs, &node.outs[0])
            // Several results would need a node each.
            || node.outs.len() > 1
        {
            continue;
        }
        let out = &node.outs[0];
        let shape = out.shape.eval(&Bindings::new())?;
        let values: Vec<&HostValue> = inputs.iter().map(|v| &known[v]).collect();
        let mut result = reference::eval_node(
            &node.name,
            &node.op,
            &values,
            &[(out.dtype, shape.clone())],
            &Bindings::new(),
            Precision::Storage,
        )?;
        let value = result.remove(0);
        let tensor = Tensor::from_f64(out.dtype, &shape, &value.data)?;
        let literal = literals && inputs.iter().all(|&v| matches!(r.new.node(v).op, Op::Const(_)));
        let folded = if literal || tensor.len() <= LITERAL {
            r.new.push(Op::Const(tensor), vec![], node.name.clone())?
        } else {
            let name = fresh_name(&r.new, &node.name);
            let folded = r.new.push(Op::Weight { name: name.clone(), ty: out.clone() }, vec![], node.name.clone())?;
            r.new.set_weight(&name, tensor)?;
            folded
        };
        known.insert(folded, value);
        r.set_all(id, folded);
    }
    r.finish()
}

/// Whether work of known inputs is done ahead.
pub(super) fn worth_keeping(graph: &Graph, inputs: &[Value], out: &Type) -> bool {
    let bytes = |ty: &Type| {
        let shape = ty.shape.as_fixed()?;
        ty.dtype.bytes_for(crate::tensor::count(&shape)?)
    };
    let Some(size) = bytes(out) else { return false };
    let replaced: usize = inputs.iter().filter_map(|&v| bytes(graph.ty(v))).fold(0, usize::saturating_add);
    size <= SMALL || size <= replaced.saturating_mul(GROWTH)
}

fn fresh_name(graph: &Graph, base: &str) -> String {
    let taken = |name: &str| graph.weight_types().any(|(known, _)| known == name) || graph.weights().contains_key(name);
    let mut name = format!("folded.{base}");
    let mut n = 1;
    while taken(&name) {
        name = format!("folded.{base}.{n}");
        n += 1;
    }
    name
}
