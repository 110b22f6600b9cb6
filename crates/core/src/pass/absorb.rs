//! Work on a product that its weights can do ahead: sums of products of one left-hand side, and factors before or after.
//!
//! x·A + x·B = x·(A + B), c·(x·A) = x·(c·A) and (c·x)·A = x·(c·A), biases likewise. A cell's gate of two linear layers
//! is then one, and the factors of a scaled activation are gone. The new weights are written as graph nodes; hoisting and
//! folding compute them once.

use super::PassOptions;
use super::dead::dead_code;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::{Binary, Op};
use crate::tensor::Tensor;
use std::collections::HashSet;

/// Σ scale · x·weight + Σ scale · bias
struct Sum {
    x: Value,
    product: Op,
    weights: Vec<(Value, f32)>,
    biases: Vec<(Value, f32)>,
    /// Nodes that it stands for.
    nodes: Vec<u32>,
}

struct Absorb<'a> {
    graph: &'a Graph,
    constant: &'a dyn Fn(Value) -> bool,
    uses: Vec<Vec<u32>>,
}

/// The graph with such work moved into weights; `constant` says which values are known ahead.
pub(super) fn absorb(graph: &Graph, constant: &dyn Fn(Value) -> bool) -> Result<Graph> {
    let a = Absorb { graph, constant, uses: graph.uses() };
    // From the last node on, so that a sum is found before its parts.
    let mut sums: Vec<(u32, Sum)> = Vec::new();
    let mut taken: HashSet<u32> = HashSet::new();
    for id in (0..graph.nodes().len() as u32).rev() {
        let value = Value { node: id, slot: 0 };
        if taken.contains(&id) {
            continue;
        }
        if let Some(sum) = a.sum(value, true)
            && a.gains(&sum)
        {
            taken.extend(&sum.nodes);
            sums.push((id, sum));
        }
    }
    if sums.is_empty() {
        return Ok(graph.clone());
    }
    let mut r = graph.rebuild();
    // Weights may come after the first node that is to read them.
    for id in 0..graph.nodes().len() as u32 {
        if constant(Value { node: id, slot: 0 }) || matches!(graph.nodes()[id as usize].op, Op::Input { .. }) {
            r.copy(id)?;
        }
    }
    for id in 0..graph.nodes().len() as u32 {
        let value = Value { node: id, slot: 0 };
        if let Some((_, sum)) = sums.iter().find(|(root, _)| *root == id) {
            let name = &graph.nodes()[id as usize].name;
            let (x, factor) = a.scaled(sum.x).unwrap_or((sum.x, 1.0));
            let add = |new: &mut Graph, parts: Vec<(Value, f32)>, what: &str| -> Result<Option<Value>> {
                let mut total = None;
                for (part, scale) in parts {
                    let mut part = part;
                    if scale != 1.0 {
                        let c = new.push(Op::Const(Tensor::scalar(scale)), vec![], format!("{name}.{what}.scale"))?;
                        part = new.push(Op::Binary(Binary::Mul), vec![part, c], format!("{name}.{what}.scaled"))?;
                    }
                    total = Some(match total {
                        None => part,
                        Some(sum) => {
                            new.push(Op::Binary(Binary::Add), vec![sum, part], format!("{name}.{what}.sum"))?
                        }
                    });
                }
                Ok(total)
            };
            let weights = sum.weights.iter().map(|(w, scale)| (r.get(*w), scale * factor)).collect();
            let biases = sum.biases.iter().map(|(b, scale)| (r.get(*b), *scale)).collect();
            let Some(weight) = add(&mut r.new, weights, "weight")? else { continue };
            let bias = add(&mut r.new, biases, "bias")?;
            let left = r.get(x);
            let mut new = r.new.push(sum.product.clone(), vec![left, weight], name.clone())?;
            if let Some(bias) = bias {
                new = r.new.push(Op::Binary(Binary::Add), vec![new, bias], name.clone())?;
            }
            r.set(value, new);
        } else if !taken.contains(&id) && r.find(value).is_none() {
            r.copy(id)?;
        }
    }
    dead_code(&r.finish()?, &PassOptions::default())
}

impl Absorb<'_> {
    /// The one number of a literal.
    fn number(&self, value: Value) -> Option<f32> {
        match &self.graph.node(value).op {
            Op::Const(t) if t.dtype() == DType::F32 && t.shape().is_empty() => {
                t.values::<f32>().ok()?.first().copied().filter(|c| c.is_finite())
            }
            _ => None,
        }
    }

    /// A value that is another one times a number.
    fn scaled(&self, value: Value) -> Option<(Value, f32)> {
        let node = self.graph.node(value);
        let (Op::Binary(Binary::Mul), [a, b]) = (&node.op, &node.inputs[..]) else { return None };
        let (x, c) = self.number(*b).map(|c| (*a, c)).or_else(|| self.number(*a).map(|c| (*b, c)))?;
        (self.graph.ty(x) == self.graph.ty(value)).then_some((x, c))
    }

    /// What a value is a sum of. Inner values must have no other reader.
    fn sum(&self, value: Value, root: bool) -> Option<Sum> {
        let node = self.graph.node(value);
        if !root && self.uses[value.node as usize] != [1] {
            return None;
        }
        if node.outs.len() != 1 || self.graph.ty(value).dtype != DType::F32 {
            return None;
        }
        let mut sum = match (&node.op, &node.inputs[..]) {
            (Op::MatMul { .. }, &[x, w]) => {
                let ty = self.graph.ty(w);
                ((self.constant)(w) && ty.dtype == DType::F32 && ty.shape.rank() == 2).then_some(())?;
                (self.graph.ty(x).dtype == DType::F32).then_some(())?;
                Sum { x, product: node.op.clone(), weights: vec![(w, 1.0)], biases: vec![], nodes: vec![] }
            }
            (Op::Binary(Binary::Mul), _) => {
                let (x, c) = self.scaled(value)?;
                let mut sum = self.sum(x, false)?;
                sum.weights.iter_mut().chain(&mut sum.biases).for_each(|(_, scale)| *scale *= c);
                sum
            }
            (Op::Binary(Binary::Add), &[a, b]) => {
                let bias = |v: Value| {
                    let columns = self.graph.ty(value).shape.dims().last()?;
                    let fits = self.graph.ty(v).shape.dims() == std::slice::from_ref(columns);
                    ((self.constant)(v) && fits && self.graph.ty(v).dtype == DType::F32).then_some(v)
                };
                match (bias(a), bias(b)) {
                    (None, Some(bias)) => self.with_bias(a, bias)?,
                    (Some(bias), None) => self.with_bias(b, bias)?,
                    (None, None) => {
                        let (mut left, right) = (self.sum(a, false)?, self.sum(b, false)?);
                        let alike = |s: &Sum| (s.x, s.product.clone(), self.graph.ty(s.weights[0].0).clone());
                        (alike(&left) == alike(&right)).then_some(())?;
                        left.weights.extend(right.weights);
                        left.biases.extend(right.biases);
                        left.nodes.extend(right.nodes);
                        left
                    }
                    _ => return None,
                }
            }
            _ => return None,
        };
        sum.nodes.push(value.node);
        Some(sum)
    }

    fn with_bias(&self, value: Value, bias: Value) -> Option<Sum> {
        let mut sum = self.sum(value, false)?;
        sum.biases.push((bias, 1.0));
        Some(sum)
    }

    /// Whether there is anything to do ahead.
    fn gains(&self, sum: &Sum) -> bool {
        sum.weights.len() > 1 || sum.weights[0].1 != 1.0 || self.scaled(sum.x).is_some()
    }
}
