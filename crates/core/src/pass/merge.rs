//! Several small matrix products with the same left operand become one product, whose right operand is the
//! concatenation of theirs. The heads of a gated cell are then one call that reads the input once; each head is a range
//! of columns of the result.

use super::PassOptions;
use super::fold::GROWTH;
use super::known::{everywhere, in_loops};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Node, Rebuild, Value, name};
use crate::op::{Binary, LowBit, Op, Scan};
use crate::shape::{Dim, Shape};
use crate::tensor::Tensor;
use std::collections::{BTreeMap, HashMap, HashSet};

pub(super) fn merge_products(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    if !options.fold_weights {
        // Joining weights in every run would cost more than it gains.
        return Ok(graph.clone());
    }
    everywhere(graph, &|graph, known| {
        let tuning = &options.tuning;
        let most = |kind: &Kind| match kind {
            _ if known.in_loop() => tuning.merged_columns_in_loops_most(),
            Kind::LowBit(_, true, _) => tuning.merged_rounded_columns_most(),
            _ => tuning.merged_columns_most(),
        };
        merge_in(graph, &|v| known.contains(v), &most)
    })
}

/// The same for values that stay the same in loops, whether or not they are known.
pub(super) fn merge_in_loops(graph: &Graph) -> Result<Graph> {
    let most = PassOptions::default().tuning.merged_columns_in_loops_most();
    in_loops(graph, &|graph, known| merge_in(graph, &|v| known.contains(v), &|_| most))
}

/// The same loop with another body.
pub(super) fn with_body(scan: &Scan, body: Graph) -> Scan {
    let Scan { states, sequences, axis, reverse, .. } = *scan;
    Scan { body: body.into(), states, sequences, axis, reverse }
}

/// `most` says how many columns products of a kind are merged to.
fn merge_in(graph: &Graph, constant: &dyn Fn(Value) -> bool, most: &dyn Fn(&Kind) -> usize) -> Result<Graph> {
    // Products of one left-hand side, with the columns of each, in order.
    let mut groups: Vec<Vec<(u32, usize)>> = vec![];
    let mut limits: Vec<usize> = vec![];
    let mut numbers: HashMap<(Value, Kind), usize> = HashMap::new();
    for (id, node) in graph.nodes().iter().enumerate() {
        let mergeable = Kind::of(graph, node).filter(|_| node.inputs[1..].iter().all(|v| constant(*v)));
        if let Some((kind, columns)) = mergeable {
            let limit = most(&kind);
            let number = *numbers.entry((node.inputs[0], kind)).or_insert(groups.len());
            if number == groups.len() {
                groups.push(vec![]);
                limits.push(limit);
            }
            groups[number].push((id as u32, columns));
        }
    }
    let mut limits = limits.into_iter();
    groups.retain(|products| {
        let columns: usize = products.iter().map(|(_, n)| n).sum();
        limits.next().is_some_and(|most| products.len() > 1 && columns <= most)
    });
    if groups.is_empty() {
        return Ok(graph.clone());
    }
    let readers = graph.readers();
    let results = graph.results();
    let first_of: BTreeMap<u32, &Vec<(u32, usize)>> = groups.iter().map(|p| (p[0].0, p)).collect();
    let merged: HashSet<u32> = groups.iter().flatten().map(|(id, _)| *id).collect();
    let mut r = graph.rebuild();
    // The right-hand sides may come after the first product: constants go first, which dependencies always allow.
    for id in 0..graph.nodes().len() as u32 {
        if constant(Value { node: id, slot: 0 }) || matches!(graph.nodes()[id as usize].op, Op::Input { .. }) {
            r.copy(id)?;
        }
    }
    for (id, node) in graph.nodes().iter().enumerate() {
        let id = id as u32;
        if let Some(products) = first_of.get(&id) {
            let name = name::joint(products.iter().map(|(p, _)| graph.nodes()[*p as usize].name.as_str()));
            // The matrix, or each part of low-bit ones.
            let mut inputs = vec![r.get(node.inputs[0])?];
            for part in 1..node.inputs.len() {
                let of = |(p, columns): &(u32, usize)| (graph.nodes()[*p as usize].inputs[part], *columns);
                let joined = joined(&mut r, node, products.iter().map(of), &name)?;
                inputs.push(joined);
            }
            let mut product = r.new.push(node.op.clone(), inputs, name.clone())?;
            // The nodes that the parts replace: the products or, if each of them has a bias added, these sums.
            let mut replaced: Vec<u32> = products.iter().map(|(p, _)| *p).collect();
            let alone =
                |id: u32| (readers[id as usize].len() == 1 && !results[id as usize]).then(|| readers[id as usize][0]);
            if let Some(sums) = biases(graph, products, constant, &alone) {
                let parts = sums.iter().map(|(_, bias)| r.get(*bias)).collect::<Result<_>>()?;
                let bias = r.new.push(Op::Concat { axis: 0 }, parts, format!("{name}.biases"))?;
                product = r.new.push(Op::Binary(Binary::Add), vec![product, bias], format!("{name}.bias"))?;
                replaced = sums.iter().map(|(sum, _)| *sum).collect();
            }
            let last = node.outs[0].shape.rank() - 1;
            let mut at = 0;
            for (old, (own, columns)) in replaced.iter().zip(products.iter()) {
                let slice = Op::Slice { axis: last, start: Dim::fixed(at), end: Dim::fixed(at + columns) };
                let (own, old_name) = (&graph.nodes()[*own as usize].name, &graph.nodes()[*old as usize].name);
                let part =
                    r.new.push(slice, vec![product], name::fused(Some(own.as_str()), old_name, std::iter::empty()))?;
                r.set(Value { node: *old, slot: 0 }, part);
                at += columns;
            }
        } else if !merged.contains(&id) && r.find(Value { node: id, slot: 0 }).is_none() {
            r.copy(id)?;
        }
    }
    r.finish()
}

/// Products of one kind can be merged.
#[derive(PartialEq, Eq, Hash)]
enum Kind {
    /// With these operands transposed, and weights of this type.
    Dense([bool; 2], DType),
    /// With weights of this format, rows that are rounded or not, and scales of this type.
    LowBit(LowBit, bool, DType),
}

impl Kind {
    /// A product's kind, and its columns.
    fn of(graph: &Graph, node: &Node) -> Option<(Kind, usize)> {
        let right = &graph.ty(*node.inputs.get(1)?).shape;
        let (kind, axis) = match &node.op {
            Op::MatMul { transpose_a, transpose_b } => {
                let weights = graph.ty(node.inputs[1]).dtype;
                (Kind::Dense([*transpose_a, *transpose_b], weights), usize::from(!transpose_b))
            }
            Op::LowBitMatMul(product) if product.then.is_none() => {
                let scales = graph.ty(node.inputs[2]).dtype;
                (Kind::LowBit(product.weights, product.rounded, scales), 0)
            }
            _ => return None,
        };
        let columns = right.dims().get(axis).filter(|_| right.rank() == 2).and_then(Dim::as_fixed)?;
        // Scales of the whole matrix are repeated for its rows (see `joined`), which must stay worth keeping.
        let kept = |scales: &Shape| scales[0].is(columns) || scales[1].as_fixed().is_some_and(|n| n <= GROWTH);
        let fits = !matches!(kind, Kind::LowBit(..)) || kept(&graph.ty(node.inputs[2]).shape);
        fits.then_some((kind, columns))
    }
}

/// One operand of several products, given with their columns: one after the other along the columns' axis.
fn joined(r: &mut Rebuild<'_>, node: &Node, parts: impl Iterator<Item = (Value, usize)>, name: &str) -> Result<Value> {
    let axis = match node.op {
        Op::MatMul { transpose_b: false, .. } => 1,
        _ => 0,
    };
    let mut all = vec![];
    for (part, columns) in parts {
        let mut new = r.get(part)?;
        // A scale for the whole matrix, while others have scales of their own. Taken again for each row, by index, it is a result
        // that folding keeps however many rows there are, which it would not do with a repetition.
        if matches!(node.op, Op::LowBitMatMul(_)) && !r.new.ty(new).shape[0].is(columns) {
            let first_row = Tensor::new(&[columns], &vec![0i32; columns])?;
            let rows = r.new.push(Op::Const(first_row), vec![], format!("{name}.rows"))?;
            new = r.new.push(Op::Gather { axis: 0 }, vec![new, rows], format!("{name}.scales"))?;
        }
        all.push(new);
    }
    r.new.push(Op::Concat { axis }, all, format!("{name}.weights"))
}

/// For each product its only reader, an addition, and the bias that it adds; `None` unless every product has one.
fn biases(
    graph: &Graph,
    products: &[(u32, usize)],
    constant: &dyn Fn(Value) -> bool,
    only_reader: &dyn Fn(u32) -> Option<u32>,
) -> Option<Vec<(u32, Value)>> {
    let of = |(product, columns): &(u32, usize)| {
        let value = Value { node: *product, slot: 0 };
        let id = only_reader(*product)?;
        let sum = &graph.nodes()[id as usize];
        let bias = *sum.inputs.iter().find(|v| **v != value)?;
        let fits = sum.op == Op::Binary(Binary::Add) && graph.ty(bias).shape == Shape::from([*columns]);
        (fits && constant(bias)).then_some((id, bias))
    };
    products.iter().map(of).collect()
}
