//! Sums over rows and time that follow a loop, taken inside it.
//!
//! The gradient of a weight is a product over batch and time: the backward loop writes the rows of every step, and one
//! product reads them all. Where a block's rows fill the lanes, what a step has just computed is still in the nearest cache,
//! in the form in which a product can read it. So each step adds its own product to a total instead, and the rows of the
//! steps need not be kept at all. The same holds for sums over rows, the gradients of biases.

use super::known::Known;
use super::lower::{Target, sized};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Node, Value};
use crate::op::{Binary, Map, MapInstr, Op, Reduction, Scan, Type};
use crate::pass::PassOptions;
use crate::pass::dead::dead_code;
use crate::shape::Bindings;
use crate::tensor::Tensor;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a step adds to a total.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Term {
    /// aᵀ · b, over the rows. Its total may be the transpose of what is wanted: of the two, the one is taken whose columns
    /// leave fewer lanes of registers empty.
    Product(Source, Source),
    /// The sum of rows.
    Sum(Source),
}

/// The rows of one step.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// An output of the body.
    Output(usize),
    /// An input of the body.
    Input(usize),
    /// An input that the body gets for this.
    Added(usize),
}

/// What is taken inside one loop.
#[derive(Default)]
struct Taken {
    terms: Vec<Term>,
    /// The type of each total.
    types: Vec<Type>,
    /// The sequences that the body gets.
    added: Vec<Value>,
    /// The nodes that the totals replace, and whether with the transpose.
    nodes: Vec<(u32, bool)>,
}

/// The graph with such sums inside its loops, where that is faster for these sizes; `None` where nothing changes.
pub(super) fn into_loops(
    graph: &Graph,
    bindings: &Bindings,
    target: &Target<'_>,
    known: &Known<'_>,
) -> Result<Option<Graph>> {
    let mut taken: BTreeMap<u32, Taken> = BTreeMap::new();
    let mut bytes: HashMap<u32, usize> = HashMap::new();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let Some(operands) = operands(graph, node) else { continue };
        // The loop that comes last: all other operands are there before it.
        let Some(of) = operands.iter().map(|v| v.node).max() else { continue };
        let Op::Scan(scan) = &graph.nodes()[of as usize].op else { continue };
        let outputs = operands.iter().all(|v| v.node < of || usize::from(v.slot) >= scan.states);
        if !outputs || !operands.iter().all(|v| is_sequence(graph, *v, of, scan)) {
            continue;
        }
        let own = sized(graph, bindings, Value { node: id, slot: 0 })?.bytes();
        let all = bytes.entry(of).or_default();
        let near = *all + own <= target.tuning.loop_total_bytes_most();
        if !near || !is_cut_batch_last(graph, of, scan, bindings, target, known)? {
            continue;
        }
        *all += own;
        let taken = taken.entry(of).or_default();
        let mut ty = Type { dtype: DType::F32, shape: node.outs[0].shape.clone() };
        let mut sources = operands.iter().map(|v| taken.source(graph, *v, of, scan));
        let (term, transposed) = match (sources.next(), sources.next()) {
            (Some(a), Some(b)) => {
                let shape = sized(graph, bindings, Value { node: id, slot: 0 })?.shape;
                let lanes = target.isa.lanes();
                let taken = |rows: usize, columns: usize| rows * columns.next_multiple_of(lanes);
                match shape[..] {
                    [rows, columns] if taken(columns, rows) < taken(rows, columns) => {
                        ty.shape = vec![ty.shape.dims()[1].clone(), ty.shape.dims()[0].clone()].into();
                        (Term::Product(b, a), true)
                    }
                    _ => (Term::Product(a, b), false),
                }
            }
            (Some(x), None) => (Term::Sum(x), false),
            _ => continue,
        };
        taken.terms.push(term);
        taken.types.push(ty);
        taken.nodes.push((id, transposed));
    }
    if taken.is_empty() {
        return Ok(None);
    }
    let mut r = graph.rebuild();
    let mut totals: HashMap<u32, (Value, bool)> = HashMap::new();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        if let (Some(taken), Op::Scan(scan)) = (taken.get(&id), &node.op) {
            let elements: Vec<Type> = taken.added.iter().map(|v| element(graph.ty(*v))).collect();
            let names: Vec<&str> = taken.nodes.iter().map(|(n, _)| graph.nodes()[*n as usize].name.as_str()).collect();
            let body = target.loops.with_totals(scan, &taken.terms, &taken.types, &elements, &names)?;
            let mut inputs = r.all(&node.inputs[..scan.states])?;
            for ty in &taken.types {
                let zero = Tensor::new(&[], &[0.0f32])?;
                let zero = r.new.push(Op::Const(zero), vec![], format!("{}.zero", node.name))?;
                let zeros = Op::Broadcast { shape: ty.shape.clone() };
                inputs.push(r.new.push(zeros, vec![zero], format!("{}.zeros", node.name))?);
            }
            let carried = scan.states + scan.sequences;
            inputs.extend(r.all(&node.inputs[scan.states..carried])?);
            inputs.extend(r.all(&taken.added)?);
            inputs.extend(r.all(&node.inputs[carried..])?);
            let more = taken.types.len();
            let (states, sequences) = (scan.states + more, scan.sequences + taken.added.len());
            let new = Scan { body, states, sequences, ..**scan };
            let new = r.new.push(Op::Scan(Box::new(new)), inputs, node.name.clone())?;
            for slot in 0..node.outs.len() {
                let moved = if slot < scan.states { slot } else { slot + more };
                r.set(Value { node: id, slot: slot as u16 }, Value { slot: moved as u16, ..new });
            }
            let total = |i: usize| Value { slot: (scan.states + i) as u16, ..new };
            totals.extend(taken.nodes.iter().enumerate().map(|(i, (n, transposed))| (*n, (total(i), *transposed))));
            continue;
        }
        let total = match totals.get(&id) {
            Some(&(total, true)) => {
                let op = Op::Transpose { perm: vec![1, 0] };
                Some(r.new.push(op, vec![total], format!("{}.transposed", node.name))?)
            }
            Some(&(total, false)) => Some(total),
            None => None,
        };
        match (total, &node.op) {
            (Some(total), Op::MatMulMap { map, dtype, .. }) => {
                let mut inputs = vec![total];
                inputs.extend(r.all(&node.inputs[2..])?);
                let op = Op::Map { map: map.clone(), dtype: *dtype, also: vec![] };
                let new = r.new.push(op, inputs, node.name.clone())?;
                r.set_all(id, new);
            }
            (Some(total), _) => r.set_all(id, total),
            (None, _) => _ = r.copy(id)?,
        }
    }
    dead_code(&r.finish()?, &PassOptions::default()).map(Some)
}

/// For a product aᵀ · b of matrices, or a sum of rows, over batch and time: the sequences \[time, row, number\].
fn operands(graph: &Graph, node: &Node) -> Option<Vec<Value>> {
    let flat = |v: Value| {
        let node = graph.node(v);
        let (Op::Reshape { shape }, &[whole]) = (&node.op, &node.inputs[..]) else { return None };
        let own = &graph.ty(whole).shape;
        (own.rank() == 3 && shape.rank() == 2 && own[2] == shape[1]).then_some(whole)
    };
    match &node.op {
        Op::MatMul { transpose_a: true, transpose_b: false }
        | Op::MatMulMap { transpose_a: true, transpose_b: false, .. } => {
            let operands = vec![flat(node.inputs[0])?, flat(node.inputs[1])?];
            operands.iter().all(|v| graph.ty(*v).dtype == DType::F32).then_some(operands)
        }
        Op::Reduce { kind: Reduction::Sum, axes, keep: false } if axes[..] == [0, 1] => {
            let x = node.inputs[0];
            (graph.ty(x).shape.rank() == 3 && graph.ty(x).dtype == DType::F32).then(|| vec![x])
        }
        _ => None,
    }
}

/// One step of a sequence.
fn element(ty: &Type) -> Type {
    Type { dtype: ty.dtype, shape: ty.shape.dims()[1..].to_vec().into() }
}

/// Whether a value has the steps and the rows of a loop's sequences.
fn is_sequence(graph: &Graph, value: Value, of: u32, scan: &Scan) -> bool {
    let first = graph.nodes()[of as usize].inputs.get(scan.states).map(|v| &graph.ty(*v).shape);
    let own = &graph.ty(value).shape;
    first.is_some_and(|first| first.rank() >= 2 && first.dims()[..2] == own.dims()[..2])
}

/// Whether a loop has products of its own and is cut into blocks whose rows are in the lanes.
fn is_cut_batch_last(
    graph: &Graph,
    of: u32,
    scan: &Scan,
    bindings: &Bindings,
    target: &Target<'_>,
    known: &Known<'_>,
) -> Result<bool> {
    let node = &graph.nodes()[of as usize];
    if scan.axis != 0 {
        return Ok(false);
    }
    let shape = sized(graph, bindings, node.inputs[scan.states])?.shape;
    match shape.get(1) {
        Some(&rows) if shape[0] > 0 => target.loops.has_products_batch_last(node, scan, rows, known, target),
        _ => Ok(false),
    }
}

impl Taken {
    /// Where a step's rows of a sequence are in the loop.
    fn source(&mut self, graph: &Graph, value: Value, of: u32, scan: &Scan) -> Source {
        if value.node == of {
            return Source::Output(usize::from(value.slot));
        }
        let inputs = &graph.nodes()[of as usize].inputs[..scan.states + scan.sequences];
        match inputs.iter().skip(scan.states).position(|v| *v == value) {
            Some(at) => Source::Input(scan.states + at),
            None => Source::Added(self.added.iter().position(|v| *v == value).unwrap_or_else(|| {
                self.added.push(value);
                self.added.len() - 1
            })),
        }
    }
}

/// A body that adds these terms to totals: states of these types, which come after its own.
pub(super) fn body_with(
    scan: &Scan,
    terms: &[Term],
    types: &[Type],
    added: &[Type],
    names: &[&str],
) -> Result<Arc<Graph>> {
    let body = &scan.body;
    let taken: Vec<String> =
        body.inputs().map(|(name, _)| name.to_owned()).chain(body.outputs().iter().map(|o| o.name.clone())).collect();
    let fresh = |kind: &str, i: usize| {
        let mut name = format!("{kind}.{i}");
        while taken.contains(&name) {
            name.push('_');
        }
        name
    };
    let input = |graph: &mut Graph, kind: &str, i: usize, ty: &Type| {
        let name = fresh(kind, i);
        graph.push(Op::Input { name: name.clone(), ty: ty.clone() }, vec![], name)
    };
    let mut r = body.rebuild();
    let (mut totals, mut sequences) = (vec![], vec![]);
    let inputs: Vec<Value> = body.inputs().map(|(_, v)| v).collect();
    for i in 0..=inputs.len() {
        if i == scan.states {
            for (i, ty) in types.iter().enumerate() {
                totals.push(input(&mut r.new, "total", i, ty)?);
            }
        }
        if i == scan.states + scan.sequences {
            for (i, ty) in added.iter().enumerate() {
                sequences.push(input(&mut r.new, "seen", i, ty)?);
            }
        }
        if let Some(v) = inputs.get(i) {
            r.copy(v.node)?;
        }
    }
    for (id, node) in (0u32..).zip(body.nodes()) {
        if !matches!(node.op, Op::Input { .. }) {
            r.copy(id)?;
        }
    }
    let sum = Map { code: vec![MapInstr::Input(0), MapInstr::Input(1), MapInstr::Binary(Binary::Add, 0, 1)] };
    let mut next = vec![];
    for ((term, total), name) in terms.iter().zip(&totals).zip(names) {
        let find = |source: Source| match source {
            Source::Output(i) => r.get(body.outputs()[i].value),
            Source::Input(i) => r.get(inputs[i]),
            Source::Added(i) => Ok(sequences[i]),
        };
        next.push(match *term {
            Term::Product(a, b) => {
                let inputs = vec![find(a)?, find(b)?, *total];
                let map = sum.clone();
                let op = Op::MatMulMap { transpose_a: true, transpose_b: false, map, dtype: DType::F32 };
                r.new.push(op, inputs, *name)?
            }
            Term::Sum(x) => {
                let x = find(x)?;
                let op = Op::Reduce { kind: Reduction::Sum, axes: vec![0], keep: false };
                let rows = r.new.push(op, vec![x], *name)?;
                let op = Op::Map { map: sum.clone(), dtype: DType::F32, also: vec![] };
                r.new.push(op, vec![*total, rows], *name)?
            }
        });
    }
    let old: Vec<(String, Value)> =
        body.outputs().iter().map(|o| Ok((o.name.clone(), r.get(o.value)?))).collect::<Result<_>>()?;
    let mut new = r.new;
    let (states, rest) = old.split_at(scan.states);
    for (name, value) in states {
        new.push_output(name.clone(), *value)?;
    }
    for (i, value) in next.into_iter().enumerate() {
        new.push_output(fresh("next", i), value)?;
    }
    for (name, value) in rest {
        new.push_output(name.clone(), *value)?;
    }
    Ok(Arc::new(new))
}
