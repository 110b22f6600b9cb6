//! The passes: a recipe read from top to bottom, in which each line turns a graph into a better one.
//!
//! A scan's body is a graph of its own and goes through the same recipe. In debug builds every result is verified, so a
//! pass that breaks a rule is named at once.

mod absorb;
mod again;
mod algebra;
pub(crate) mod cells;
pub(crate) mod dead;
mod differentiable;
mod evaluate;
mod fold;
mod fuse;
mod hoist;
mod join;
mod known;
mod layout;
mod low_bit;
mod merge;
mod normalize;
mod pattern;
pub mod rows;
mod synapse;

pub(crate) use again::again;
pub(crate) use differentiable::{differentiable, differentiated};
pub(crate) use evaluate::evaluate_known;
pub use fold::FoldWork;
pub use fuse::{Opportunity, fusion_opportunities};
pub use pattern::{Captures, Pattern, any, constant, op};

use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::op::Op;
use schwann_kernels::tuning::Tuning;
use std::sync::Arc;

/// What passes may do.
#[derive(Clone, Debug)]
pub struct PassOptions {
    /// Whether graphs are rewritten at all, beyond the form that backends need.
    pub rewrite: bool,
    /// The user's patterns, tried before the built-in rules.
    pub patterns: Vec<Pattern>,
    /// Whether elementwise work is fused.
    pub fuse: bool,
    /// Whether work on weights alone is done now, once (and again when weights change that
    /// [may](crate::CompileOptions::changing)). Off if their data is set later.
    pub fold_weights: bool,
    /// Whether products read low-bit weights as they are. Otherwise these become `f32` before the run. A backend that has
    /// such products sets it.
    pub low_bit: bool,
    /// Whether sums over synapses are differentiated by operations of their own. Otherwise these are written out. A backend
    /// that has such operations sets it.
    pub synapse_gradients: bool,
    /// The work that folding may still do. [`optimize`] sets it for each graph.
    pub fold_work: FoldWork,
    /// Up to which sizes products are merged and elementwise work is fused. A backend puts its own numbers here.
    pub tuning: Tuning,
}

impl Default for PassOptions {
    fn default() -> Self {
        PassOptions {
            rewrite: true,
            patterns: Vec::new(),
            fuse: true,
            fold_weights: true,
            low_bit: false,
            synapse_gradients: false,
            fold_work: FoldWork::default(),
            tuning: Tuning::detect(),
        }
    }
}

impl PassOptions {
    /// The graph as it was built, with one kernel for each node.
    pub fn none() -> Self {
        PassOptions { rewrite: false, fuse: false, ..Self::default() }
    }
}

/// One pass: a graph in, a better graph out.
pub type Pass = fn(&Graph, &PassOptions) -> Result<Graph>;

/// What a pass is applied to.
#[derive(Clone, Copy, Debug)]
pub enum Apply {
    /// To the body of every loop, from the inside out, and then to the graph: each on its own.
    Each(Pass),
    /// To the graph alone. The pass itself goes into loops, where it needs to know what is known outside.
    Whole(Pass),
}
use Apply::{Each, Whole};

/// The recipe, in order. Each line has a pass's name, its function, and whether backends need it (the others only make
/// graphs faster).
pub const PASSES: &[(&str, Apply, bool)] = &[
    ("dead code", Each(dead::dead_code), false),
    ("user patterns", Each(pattern::user_patterns), false),
    ("layout", Each(layout::layout), false),
    ("synapse gradients apart", Each(synapse::gradients_apart), true),
    ("low-bit products apart", Each(low_bit::expand), false),
    ("low-bit products", Whole(low_bit::low_bit_products), false),
    ("fold weights", Each(fold::fold_early), false),
    ("absorb factors", Whole(absorb::absorb), false),
    ("merge products", Whole(merge::merge_products), false),
    ("fuse synapses", Whole(synapse::fuse_synapses), false),
    ("hoist out of loops", Each(hoist::hoist), false),
    ("fold constants", Each(fold::fold), false),
    ("algebra", Each(algebra::algebra), false),
    ("common subexpressions", Each(dead::common_subexpressions), false),
    ("finish synapses", Each(synapse::finish_synapses), false),
    ("join unfoldings", Each(cells::unfoldings), false),
    ("normalize", Each(normalize::normalize), true),
    ("fold what that exposed", Each(fold::fold), false),
    ("fuse", Each(fuse::fuse), true),
    ("find gated cells", Each(cells::gated_cells), false),
    ("join maps", Each(join::join_maps), false),
    ("sweep up", Each(dead::dead_code), true),
];

/// What one pass did.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PassRecord {
    /// Its name in the recipe.
    pub pass: &'static str,
    /// Nodes before, bodies of scans included.
    pub nodes_before: usize,
    /// Nodes after.
    pub nodes_after: usize,
    /// What it found out, for people.
    pub notes: Vec<String>,
}

/// Runs the recipe.
pub fn optimize(graph: &Graph, options: &PassOptions) -> Result<(Graph, Vec<PassRecord>)> {
    let options = &PassOptions { fold_work: FoldWork::of(graph), ..options.clone() };
    let mut current = graph.clone();
    let mut records = Vec::with_capacity(PASSES.len());
    for (name, apply, required) in PASSES {
        if !required && !options.rewrite {
            continue;
        }
        let nodes_before = node_count(&current);
        let new = match apply {
            Each(pass) => in_bodies(&current, *pass, options).and_then(|g| pass(&g, options)),
            Whole(pass) => pass(&current, options),
        };
        current = new.map_err(|e| e.in_pass(name))?;
        if cfg!(debug_assertions) {
            current.verify().map_err(|e| e.in_pass(name))?;
        }
        records.push(PassRecord { pass: name, nodes_before, nodes_after: node_count(&current), notes: vec![] });
    }
    records.push(loops(&current)?);
    Ok((current, records))
}

/// The last line of the recipe changes nothing: it says how backends can run the loops. If its own rewrite fails, that
/// is an error in debug builds, and a note in a release, where the loop then runs slowly but gives the right results.
fn loops(graph: &Graph) -> Result<PassRecord> {
    let pass = "look at loops";
    let notes = match rows::describe(graph) {
        Err(e) if cfg!(debug_assertions) => return Err(e.in_pass(pass)),
        Err(e) => vec![format!("not found out: {e}")],
        Ok(notes) => notes,
    };
    let nodes = node_count(graph);
    Ok(PassRecord { pass, nodes_before: nodes, nodes_after: nodes, notes })
}

/// The graph with sums of products with one left-hand side as one product, and factors moved into weights, also in loops;
/// sums and products of weights are outside of these.
pub(crate) fn absorbed(graph: &Graph) -> Result<Graph> {
    let options = PassOptions::default();
    let absorbed = absorb::absorb(graph, &options)?;
    let hoisted = in_bodies(&absorbed, hoist::hoist, &options).and_then(|g| hoist::hoist(&g, &options))?;
    let lean = in_bodies(&hoisted, dead::dead_code, &options)?;
    dead::unread_by_loops(&lean).and_then(|g| tidy(&g))
}

/// The graph without nodes that no result depends on, and without data that no node names.
pub(crate) fn tidy(graph: &Graph) -> Result<Graph> {
    let mut tidy = dead::dead_code(graph, &PassOptions::none())?;
    tidy.drop_unused_weights();
    Ok(tidy)
}

fn node_count(graph: &Graph) -> usize {
    let inner = |n: &crate::graph::Node| if let Op::Scan(s) = &n.op { node_count(&s.body) } else { 0 };
    graph.nodes().iter().map(|n| 1 + inner(n)).sum()
}

/// The graph with a pass applied to the body of every scan in it.
fn in_bodies(graph: &Graph, pass: Pass, options: &PassOptions) -> Result<Graph> {
    if !graph.nodes().iter().any(|n| matches!(n.op, Op::Scan(_))) {
        return Ok(graph.clone());
    }
    let mut r = graph.rebuild();
    for id in 0..graph.nodes().len() as u32 {
        match &graph.nodes()[id as usize].op {
            Op::Scan(scan) => {
                let node = &graph.nodes()[id as usize];
                let mut scan = scan.clone();
                scan.body = Arc::new(pass(&in_bodies(&scan.body, pass, options)?, options)?);
                let inputs = r.all(&node.inputs)?;
                let new = r.new.push(Op::Scan(scan), inputs, node.name.clone())?;
                r.set_all(id, new);
            }
            _ => {
                r.copy(id)?;
            }
        }
    }
    r.finish()
}

/// A local rewrite: looks at a node and its operands, and may add nodes; gives the value that replaces the node.
type Rule<'a> = dyn Fn(&mut Graph, Value) -> Result<Option<Value>> + 'a;

/// How many times rules may fire on one node before the rewrite stops, so that a cycle of rules does not run for ever.
const MOST_FIRINGS: usize = 32;

/// Applies rules to every node, in dependency order, until none fires.
fn rewrite(graph: &Graph, rules: &[(&str, &Rule<'_>)]) -> Result<Graph> {
    rewrite_once(graph, rules).map(|(graph, _)| graph)
}

/// The same, and whether any rule fired. Of the nodes that a rule adds, only the replacement is visited again.
fn rewrite_once(graph: &Graph, rules: &[(&str, &Rule<'_>)]) -> Result<(Graph, bool)> {
    let mut fired = false;
    let mut r = graph.rebuild();
    for id in 0..graph.nodes().len() as u32 {
        let mut value = r.copy(id)?;
        if graph.nodes()[id as usize].outs.len() > 1 {
            continue;
        }
        'fire: for _ in 0..MOST_FIRINGS {
            for (name, rule) in rules {
                let Some(new) = rule(&mut r.new, value)? else { continue };
                if r.new.ty(new) != r.new.ty(value) {
                    return Err(Error::Verify {
                        pass: None,
                        problem: format!(
                            "rule `{name}` replaced node `{}` of type {} by a value of type {}",
                            r.new.node(value).name,
                            r.new.ty(value),
                            r.new.ty(new)
                        ),
                    });
                }
                value = new;
                fired = true;
                continue 'fire;
            }
            break;
        }
        r.set(Value { node: id, slot: 0 }, value);
    }
    Ok((r.finish()?, fired))
}
