//! Constant folding: work on constants, and (unless asked not to) on weights, is done now instead of in every run.
//!
//! A result computed from weights that may change becomes a weight that may change, however small it is, and how it is
//! computed is recorded ([`Graph::record`]).

use super::PassOptions;
use super::evaluate::{evaluate, evaluate_later};
use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::op::{Op, Type};
use crate::shape::Bindings;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Results up to this many bytes are always worth keeping.
const SMALL: usize = 4096;
/// Larger ones only if they are at most this many times as large as the inputs they replace: narrow weights may be
/// widened once, before the run, but a small constant that is broadcast to a large shape is better broadcast when it is
/// read.
pub(super) const GROWTH: usize = 4;
/// A folded result of up to this many elements is a literal in the graph's text, a larger one a weight.
const LITERAL: usize = 64;

/// The first time, before work is moved out of loops: a loop's body cannot have weights, so large results become literals.
pub(super) fn fold_early(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    fold_into(graph, options, true)
}

pub(super) fn fold(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    fold_into(graph, options, false)
}

/// The work that folding may do in all (operations, and bytes made), plus some for each byte of weights; more is left
/// for the run. Without a limit, a small file could demand years of products of its weights, or endless copies of them.
const WORK: u64 = 1 << 28;
const WORK_PER_BYTE: u64 = 64;

/// The work that folding may still do for one graph. All passes that fold, and the bodies of all loops, share it: a
/// weight that one of them made must not raise the limit for the next.
#[derive(Clone, Debug)]
pub struct FoldWork(Arc<AtomicU64>);

impl Default for FoldWork {
    fn default() -> FoldWork {
        FoldWork(Arc::new(AtomicU64::new(WORK)))
    }
}

impl FoldWork {
    /// The work allowed for a graph with these weights.
    pub(super) fn of(graph: &Graph) -> FoldWork {
        let weights: usize = graph.weights().values().map(Tensor::size).sum();
        FoldWork(Arc::new(AtomicU64::new(WORK.saturating_add(WORK_PER_BYTE.saturating_mul(weights as u64)))))
    }

    /// Takes this much, if enough is left.
    fn take(&self, work: u64) -> bool {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(work)).is_ok()
    }
}

/// With `literals`, a result that is computed only from literals is a literal, however large.
fn fold_into(graph: &Graph, options: &PassOptions, literals: bool) -> Result<Graph> {
    let mut r = graph.rebuild();
    let mut known: HashMap<Value, Tensor> = HashMap::new();
    let tables = tables(graph);
    let mut readers = Readers::of(graph);
    let mut names = Names::default();
    for (id, node) in graph.nodes().iter().enumerate() {
        let new = r.copy(id as u32)?;
        match &node.op {
            Op::Const(t) => {
                known.insert(new, t.clone());
                continue;
            }
            Op::Weight { name, .. } if options.fold_weights => {
                if let Some(data) = graph.weights().get(name) {
                    known.insert(new, data.clone());
                }
                continue;
            }
            Op::Input { .. } | Op::Weight { .. } | Op::Scan(_) => continue,
            _ => {}
        }
        let inputs: Vec<Value> = r.new.node(new).inputs.clone();
        if inputs.is_empty()
            || !inputs.iter().all(|v| known.contains_key(v))
            || !worth_keeping(&r.new, &node.op, &inputs, &node.outs[0])
            // A node with several results would have to become several nodes.
            || node.outs.len() > 1
            // No node reads it: an earlier pass left it behind.
            || readers.left[id] == 0
        {
            continue;
        }
        let out = &node.outs[0];
        let shape = out.shape.eval(&Bindings::new())?;
        let cost = graph.node_cost(node, &Bindings::new())?;
        if !options.fold_work.take(cost.flops.saturating_add(cost.bytes())) {
            // Backends need the tables of synapses before the run; other work can be left for the run.
            if tables[id] {
                let problem = "tables of synapses take too much work to be made ahead".into();
                return Err(Error::Value { node: node.name.clone(), problem });
            }
            continue;
        }
        let values: Vec<&Tensor> = inputs.iter().map(|v| &known[v]).collect();
        let literal = literals && inputs.iter().all(|&v| matches!(r.new.node(v).op, Op::Const(_)));
        let once = !literal && !tables[id] && readers.left[id] == 1;
        let tensor = if once { evaluate_later(node, &values, &shape)? } else { evaluate(node, &values, &shape)? };
        let changing = inputs.iter().any(|v| r.new.is_changing(*v));
        let folded = if !changing && (literal || tensor.len() <= LITERAL) {
            r.new.push(Op::Const(tensor.clone()), vec![], node.name.clone())?
        } else {
            let name = names.fresh(&r.new, &node.name);
            let folded = r.new.push(Op::Weight { name: name.clone(), ty: out.clone() }, vec![], node.name.clone())?;
            r.new.set_weight(&name, tensor.clone())?;
            if changing {
                r.new.record(&name, node, &inputs, &values)?;
            }
            folded
        };
        known.insert(folded, tensor);
        r.set_all(id as u32, folded);
        // Data is dropped after its last read, or all intermediate results would be in memory at once.
        for &read in &node.inputs {
            if readers.was_last(read) {
                let value = r.get(read)?;
                known.remove(&value);
                r.new.drop_data(value);
            }
        }
    }
    r.finish()
}

/// How many times each node's data will still be read.
struct Readers {
    /// For each node, the one that holds its data: itself, or the first of several nodes of the same weight.
    owner: Vec<usize>,
    left: Vec<u32>,
}

impl Readers {
    fn of(graph: &Graph) -> Readers {
        let mut first: HashMap<&str, usize> = HashMap::new();
        let mut readers = Readers { owner: vec![], left: vec![0; graph.nodes().len()] };
        for (id, (node, uses)) in graph.nodes().iter().zip(graph.uses()).enumerate() {
            let owner = if let Op::Weight { name, .. } = &node.op { *first.entry(name).or_insert(id) } else { id };
            readers.owner.push(owner);
            readers.left[owner] += uses.iter().sum::<u32>();
        }
        readers
    }

    /// Counts one read; gives whether it was the last.
    fn was_last(&mut self, value: Value) -> bool {
        let left = &mut self.left[self.owner[value.node as usize]];
        *left = left.saturating_sub(1);
        *left == 0
    }
}

/// Which nodes make tables of synapses, here or in the loops that they are handed to.
fn tables(graph: &Graph) -> Vec<bool> {
    let mut found = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate().rev() {
        match &node.op {
            Op::Scan(scan) => {
                let inside = tables(&scan.body);
                for ((_, value), outer) in scan.body.inputs().zip(&node.inputs) {
                    found[outer.node as usize] |= inside[value.node as usize];
                }
            }
            op => {
                let own = op.synapse_tables().unwrap_or(0);
                for (i, v) in node.inputs.iter().enumerate() {
                    found[v.node as usize] |= found[id] || (1..own).contains(&i);
                }
            }
        }
    }
    found
}

/// Names for folded weights that nothing else has.
#[derive(Default)]
struct Names(HashMap<String, usize>);

impl Names {
    fn fresh(&mut self, graph: &Graph, base: &str) -> String {
        // A weight's name may not be longer, a node's may.
        let base: String = base.chars().filter(|c| !c.is_control()).take(100).collect();
        let next = self.0.entry(base.clone()).or_insert(0);
        loop {
            let name = if *next == 0 { format!("folded.{base}") } else { format!("folded.{base}.{next}") };
            *next += 1;
            if !graph.names_weight(&name) {
                return name;
            }
        }
    }
}

/// Whether the result of work on known inputs is worth keeping. Numbers in few bits always are, since whatever still reads
/// them by now reads them as `f32`.
pub(super) fn worth_keeping(graph: &Graph, op: &Op, inputs: &[Value], out: &Type) -> bool {
    let bytes = |ty: &Type| {
        let shape = ty.shape.as_fixed()?;
        ty.dtype.bytes_for(crate::tensor::count(&shape)?)
    };
    let Some(size) = bytes(out) else { return false };
    let replaced: usize = inputs.iter().filter_map(|&v| bytes(graph.ty(v))).fold(0, usize::saturating_add);
    size <= SMALL || size <= replaced.saturating_mul(GROWTH) || matches!(op, Op::LowBit(_))
}
