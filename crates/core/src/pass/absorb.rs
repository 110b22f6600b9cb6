//! Moves work around a matrix product into its weights, where it is done once: adding up products with the same left
//! operand, and multiplying by a number before or after.
//!
//! x·A + x·B = x·(A + B), c·(x·A) = x·(c·A) and (c·x)·A = x·(c·A), biases likewise. The two linear layers of a cell's
//! time gate become one, and the factors of a scaled activation disappear. The new weights are written as graph nodes;
//! hoisting and folding compute them once.
//!
//! These rules need weights that do not overflow when they are added and scaled. For weights that may change, that
//! condition is recorded, and new weights that break it are refused ([`Graph::limit`]).
//!
//! For an infinite x, the first rule changes the result: ∞ · 2 − ∞ · 1 is NaN, but ∞ · (2 − 1) is ∞. It does so at
//! every batch size.

use super::PassOptions;
use super::dead::dead_code;
use super::known::{Known, everywhere, in_loops};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, Limit, Value, name};
use crate::op::{Binary, Float, Op};
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// Factors beyond this (or below its inverse) stay where they are: moved into weights they could overflow, or lose bits
/// to underflow, where the network as it was written does not.
const MOST_FACTOR: f32 = 65536.0;

/// The most terms of one sum. A cell has two or three; without a limit this pass could take more than linear time.
const MOST_TERMS: usize = 64;

/// Σ scale · x·weight + Σ scale · bias
struct Sum {
    x: Value,
    product: Op,
    weights: Vec<(Value, f32)>,
    biases: Vec<(Value, f32)>,
    /// Other nodes whose work is part of it.
    inner: Vec<u32>,
}

struct Absorb<'a> {
    graph: &'a Graph,
    known: &'a Known<'a>,
    uses: Vec<Vec<u32>>,
    /// What each node is a sum of; `None` once it has become part of a later node's sum.
    sums: Vec<Option<Sum>>,
}

/// The graph with such work moved into weights, here and in loops.
pub(super) fn absorb(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    if !options.fold_weights {
        // Without folding, the new weights would be computed in every run.
        return Ok(graph.clone());
    }
    let limits = RefCell::default();
    let mut absorbed = everywhere(graph, &|graph, known| absorb_in(graph, known, &limits))?;
    absorbed.limit(limits.into_inner())?;
    Ok(absorbed)
}

/// The same for values that stay the same in loops, whether or not they are known.
pub(super) fn absorb_in_loops(graph: &Graph) -> Result<Graph> {
    in_loops(graph, &|graph, known| absorb_in(graph, known, &RefCell::default()))
}

fn absorb_in(graph: &Graph, known: &Known<'_>, limits: &RefCell<Vec<Limit>>) -> Result<Graph> {
    let mut a = Absorb { graph, known, uses: graph.uses(), sums: Vec::with_capacity(graph.nodes().len()) };
    // In order, so that the parts of a sum are found before it; without recursion, since graphs can be deep.
    for id in 0..graph.nodes().len() as u32 {
        let sum = a.sum(Value { node: id, slot: 0 });
        a.sums.push(sum);
    }
    let sums = std::mem::take(&mut a.sums);
    let mut gaining = HashMap::new();
    for (id, sum) in (0u32..).zip(sums).filter_map(|(id, sum)| Some((id, sum?))) {
        if a.gains(&sum)
            && let Some(found) = a.limits(id, &sum)?
        {
            limits.borrow_mut().extend(found.into_iter().filter(|limit| !limit.parts.is_empty()));
            gaining.insert(id, sum);
        }
    }
    let sums = gaining;
    if sums.is_empty() {
        return Ok(graph.clone());
    }
    let taken: HashSet<u32> = sums.values().flat_map(|s| &s.inner).copied().collect();
    let mut r = graph.rebuild();
    // Inputs, weights and literals go first, since weights may come after the first node that will read them.
    for id in 0..graph.nodes().len() as u32 {
        if known.is_source(Value { node: id, slot: 0 }) || matches!(graph.nodes()[id as usize].op, Op::Input { .. }) {
            r.copy(id)?;
        }
    }
    for id in 0..graph.nodes().len() as u32 {
        let value = Value { node: id, slot: 0 };
        if let Some(sum) = sums.get(&id) {
            let members = || sum.inner.iter().copied().chain([id]).map(|id| &graph.nodes()[id as usize]);
            let products = members().filter(|node| matches!(node.op, Op::MatMul { .. })).map(|node| node.name.as_str());
            let result = &graph.nodes()[id as usize].name;
            let name = &name::fused(Some(name::joint(products).as_str()), result, std::iter::empty());
            // The value that is scaled may itself have become part of another sum; then only the scaled value exists in
            // the new graph.
            let scaled = a.scaled(sum.x).filter(|(x, _)| r.find(*x).is_some());
            let (x, factor) = scaled.unwrap_or((sum.x, 1.0));
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
            let moved = |parts: &[(Value, f32)], factor: f32| {
                parts.iter().map(|(part, scale)| Ok((r.get(*part)?, scale * factor))).collect::<Result<Vec<_>>>()
            };
            let (weights, biases) = (moved(&sum.weights, factor)?, moved(&sum.biases, 1.0)?);
            let left = r.get(x)?;
            let weight = add(&mut r.new, weights, "weight")?.ok_or_else(|| Error::Pass {
                pass: "",
                node: name.clone(),
                problem: "a sum of products without a weight".into(),
            })?;
            let bias = add(&mut r.new, biases, "bias")?;
            let mut new = r.new.push(sum.product.clone(), vec![left, weight], name.clone())?;
            if let Some(bias) = bias {
                new = r.new.push(Op::Binary(Binary::Add), vec![new, bias], format!("{name}.bias"))?;
            }
            r.set(value, new);
        } else if !taken.contains(&id) && r.find(value).is_none() {
            r.copy(id)?;
        }
    }
    dead_code(&r.finish()?, &PassOptions::default())
}

fn is_moderate(c: f32) -> bool {
    (1.0 / MOST_FACTOR..=MOST_FACTOR).contains(&c.abs())
}

impl Absorb<'_> {
    /// The one number of a literal, if it is neither very large nor very small.
    fn number(&self, value: Value) -> Option<f32> {
        match &self.graph.node(value).op {
            Op::Const(t) if t.dtype() == DType::F32 && t.shape().is_empty() => {
                t.values::<f32>().ok()?.first().copied().filter(|c| is_moderate(*c))
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

    /// The sum that an operand is, if this is its only reader.
    fn part(&self, value: Value) -> Option<&Sum> {
        (self.uses[value.node as usize] == [1]).then(|| self.sums[value.node as usize].as_ref())?
    }

    /// Removes such a sum, to make it part of the node that reads it.
    fn take(&mut self, value: Value) -> Option<Sum> {
        let mut sum = self.sums[value.node as usize].take()?;
        sum.inner.push(value.node);
        Some(sum)
    }

    /// The sum that a node computes; sums of its operands become part of it. Earlier nodes have already been visited.
    fn sum(&mut self, value: Value) -> Option<Sum> {
        let node = self.graph.node(value);
        if node.outs.len() != 1 || self.graph.ty(value).dtype != DType::F32 {
            return None;
        }
        match (&node.op, &node.inputs[..]) {
            (Op::MatMul { .. }, &[x, w]) => {
                let ty = self.graph.ty(w);
                let fits = self.known.is_source(w) && ty.dtype == DType::F32 && ty.shape.rank() == 2;
                (fits && self.graph.ty(x).dtype == DType::F32).then(|| Sum {
                    x,
                    product: node.op.clone(),
                    weights: vec![(w, 1.0)],
                    biases: vec![],
                    inner: vec![],
                })
            }
            (Op::Binary(Binary::Mul), _) => {
                let (x, c) = self.scaled(value)?;
                let part = self.part(x)?;
                part.weights.iter().chain(&part.biases).all(|(_, scale)| is_moderate(scale * c)).then_some(())?;
                let mut sum = self.take(x)?;
                sum.weights.iter_mut().chain(&mut sum.biases).for_each(|(_, scale)| *scale *= c);
                Some(sum)
            }
            (Op::Binary(Binary::Add), &[a, b]) => match (self.bias(value, a), self.bias(value, b)) {
                (false, true) => self.with_bias(a, b),
                (true, false) => self.with_bias(b, a),
                (false, false) => {
                    let (left, right) = (self.part(a)?, self.part(b)?);
                    let alike = left.x == right.x
                        && left.product == right.product
                        && self.graph.ty(left.weights[0].0) == self.graph.ty(right.weights[0].0);
                    let terms = |s: &Sum| s.weights.len() + s.biases.len();
                    (alike && terms(left) + terms(right) <= MOST_TERMS).then_some(())?;
                    let (mut left, right) = (self.take(a)?, self.take(b)?);
                    left.weights.extend(right.weights);
                    left.biases.extend(right.biases);
                    left.inner.extend(right.inner);
                    Some(left)
                }
                (true, true) => None,
            },
            _ => None,
        }
    }

    /// Whether an operand of a sum is known, with one number for each column.
    fn bias(&self, sum: Value, operand: Value) -> bool {
        let ty = self.graph.ty(operand);
        let columns = self.graph.ty(sum).shape.dims().last();
        self.known.is_source(operand)
            && ty.dtype == DType::F32
            && columns.is_some_and(|columns| ty.shape.dims() == std::slice::from_ref(columns))
    }

    fn with_bias(&mut self, value: Value, bias: Value) -> Option<Sum> {
        let part = self.part(value)?;
        (part.weights.len() + part.biases.len() < MOST_TERMS).then_some(())?;
        let mut sum = self.take(value)?;
        sum.biases.push((bias, 1.0));
        Some(sum)
    }

    /// Weights and biases that are added and scaled before the run must stay finite, even where the sums of the
    /// products would: an infinite weight times 0 is NaN. `None` if they do not stay finite now; else the conditions on
    /// weights that may change.
    fn limits(&self, id: u32, sum: &Sum) -> Result<Option<[Limit; 2]>> {
        let factor = self.scaled(sum.x).map_or(1.0, |(_, c)| c.abs().max(1.0));
        let node = &self.graph.nodes()[id as usize].name;
        let mut limits = [(); 2].map(|()| Limit { node: node.clone(), fixed: Float(0.0), parts: vec![] });
        for (limit, (parts, factor)) in limits.iter_mut().zip([(&sum.weights, factor), (&sum.biases, 1.0)]) {
            let mut changing = 0.0f32;
            for (part, scale) in parts {
                let factor = scale.abs().max(1.0) * factor;
                let most = self.known.largest(*part)? * factor;
                match self.known.changing(*part) {
                    Some(name) => {
                        limit.parts.push((name.to_owned(), Float(factor)));
                        changing += most;
                    }
                    None => limit.fixed.0 += most,
                }
            }
            if !(limit.fixed.0 + changing).is_finite() {
                return Ok(None);
            }
        }
        Ok(Some(limits))
    }

    /// Whether the rewrite saves any work.
    fn gains(&self, sum: &Sum) -> bool {
        sum.weights.len() > 1 || sum.weights[0].1 != 1.0 || self.scaled(sum.x).is_some()
    }
}
