//! The graph: nodes in dependency order, each with its operation, inputs, inferred types and name.

mod build;
mod mark;
pub(crate) mod name;
mod prelude;
mod print;
#[cfg(test)]
mod tests;

pub use build::{GraphBuilder, Outside};
pub use name::is_automatic;
pub use prelude::Changing;
pub(crate) use prelude::{Limit, Prelude};
pub(crate) use print::quote;

use crate::error::{Error, Result};
use crate::op::{Cost, Op, Type};
use crate::shape::{Bindings, Dim};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The most axes a value may have.
pub const MAX_RANK: usize = 6;
/// The most loops inside each other. Networks have one or two; code that walks a graph may recurse this deep, but no
/// deeper.
pub const MAX_LOOPS: usize = 8;

/// One output of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(u32, u16)", into = "(u32, u16)")]
pub struct Value {
    /// The node's number.
    pub node: u32,
    /// Which of its outputs (loops, sums over synapses and fused programs may have several).
    pub slot: u16,
}
/// As graphs are printed: `%7`, or `%7.1` of a node with several outputs.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot {
            0 => write!(f, "%{}", self.node),
            slot => write!(f, "%{}.{slot}", self.node),
        }
    }
}
impl From<(u32, u16)> for Value {
    fn from((node, slot): (u32, u16)) -> Value {
        Value { node, slot }
    }
}
impl From<Value> for (u32, u16) {
    fn from(v: Value) -> (u32, u16) {
        (v.node, v.slot)
    }
}

/// One operation with its inputs, types and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its operation.
    pub op: Op,
    /// Its operands, always outputs of earlier nodes.
    pub inputs: Vec<Value>,
    /// The types of its outputs, as the operation's rule gives them.
    pub outs: Vec<Type>,
    /// Its name, for messages, tables and pictures: a path such as `cfc.inter.gate` ([`GraphBuilder::within`]). Several
    /// nodes may have the same one.
    pub name: String,
}

/// A named result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Output {
    /// Its name in a run.
    pub name: String,
    /// Its value.
    pub value: Value,
}

/// An output that becomes an input of the next run: the memory of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    /// The input that holds it; a session starts it at 0, and runs need not give it.
    pub input: String,
    /// The output that replaces it.
    pub output: String,
}

/// A network: inputs, weights and operations, and which values are its results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "File", into = "File")]
pub struct Graph {
    nodes: Vec<Node>,
    /// Nodes that are inputs, in the order declared.
    inputs: Vec<u32>,
    /// Inputs and weights by name (the first node of each), so that finding one stays fast in a file with very many.
    input_nodes: BTreeMap<String, u32>,
    weight_nodes: BTreeMap<String, u32>,
    outputs: Vec<Output>,
    /// Where each output is in the list, and which inputs are states; kept for the same reason.
    output_places: BTreeMap<String, usize>,
    state_inputs: BTreeSet<String>,
    states: Vec<State>,
    weights: BTreeMap<String, Tensor>,
    /// How many loops are inside each other, at most.
    loops: usize,
    /// Which weights may change after compiling, and how other weights were computed from them; not part of the graph's
    /// meaning.
    prelude: Option<Arc<Prelude>>,
}

impl Graph {
    /// Adds a node; its types are inferred, and what does not fit is refused.
    pub fn push(&mut self, op: Op, inputs: Vec<Value>, name: impl Into<String>) -> Result<Value> {
        let name = name.into();
        let refuse = |problem: String, op: &Op| Error::Node { node: name.clone(), op: op.name().into(), problem };
        let mut types: Vec<&Type> = Vec::with_capacity(inputs.len());
        for &v in &inputs {
            let Some(ty) = self.try_ty(v) else {
                return Err(refuse(format!("its input {v} is no value of this graph"), &op));
            };
            types.push(ty);
        }
        let outs = op.infer(&types).map_err(|problem| refuse(problem, &op))?;
        if let Some(deep) = outs.iter().find(|t| t.shape.rank() > MAX_RANK) {
            return Err(refuse(format!("{deep} has more than {MAX_RANK} axes"), &op));
        }
        let id = u32::try_from(self.nodes.len()).map_err(|_| refuse("more than 2³² nodes".into(), &op))?;
        match &op {
            Op::Input { name: input, .. } => {
                check_name(input).map_err(|problem| refuse(problem, &op))?;
                if self.input_nodes.contains_key(input) {
                    return Err(refuse(format!("there is an input `{input}` already"), &op));
                }
                self.input_nodes.insert(input.clone(), id);
                self.inputs.push(id);
            }
            Op::Weight { name: weight, ty } => {
                check_name(weight).map_err(|problem| refuse(problem, &op))?;
                let first = *self.weight_nodes.entry(weight.clone()).or_insert(id);
                if let Some(known) = self.nodes.get(first as usize).filter(|n| n.outs[0] != *ty) {
                    let elsewhere = &known.outs[0];
                    return Err(refuse(format!("the weight `{weight}` is {ty} here and {elsewhere} elsewhere"), &op));
                }
            }
            Op::Scan(scan) => {
                let loops = scan.body.loops + 1;
                if loops > MAX_LOOPS {
                    return Err(refuse(format!("{loops} loops inside each other; want at most {MAX_LOOPS}"), &op));
                }
                self.loops = self.loops.max(loops);
            }
            _ => {}
        }
        self.nodes.push(Node { op, inputs, outs, name });
        Ok(Value { node: id, slot: 0 })
    }

    /// Declares a result.
    pub fn push_output(&mut self, name: impl Into<String>, value: Value) -> Result<()> {
        let name = name.into();
        let refuse = |problem: String| Error::Node { node: name.clone(), op: "output".into(), problem };
        check_name(&name).map_err(refuse)?;
        if self.output_places.contains_key(&name) {
            return Err(refuse(format!("there is an output `{name}` already")));
        }
        if self.try_ty(value).is_none() {
            return Err(refuse(format!("{value} is no value of this graph")));
        }
        self.output_places.insert(name.clone(), self.outputs.len());
        self.outputs.push(Output { name, value });
        Ok(())
    }

    /// Declares that `output` of one run is `input` of the next.
    pub fn push_state(&mut self, input: &str, output: &str) -> Result<()> {
        let from = self.input_nodes.get(input).map(|&node| self.ty(Value { node, slot: 0 }));
        let from = from.ok_or_else(|| Error::Unknown {
            kind: "input",
            name: input.into(),
            known: self.inputs().map(|(n, _)| n.to_owned()).collect(),
        })?;
        let to = self.output(output).map(|o| self.ty(o.value)).ok_or_else(|| Error::Unknown {
            kind: "output",
            name: output.into(),
            known: self.outputs.iter().map(|o| o.name.clone()).collect(),
        })?;
        if from != to || self.state_inputs.contains(input) {
            let problem =
                format!("state `{input}` is {from}, its next value `{output}` is {to}; want equal types, linked once");
            return Err(Error::Node { node: input.into(), op: "state".into(), problem });
        }
        self.state_inputs.insert(input.into());
        self.states.push(State { input: input.into(), output: output.into() });
        Ok(())
    }

    /// Gives a weight its data.
    pub fn set_weight(&mut self, name: &str, data: Tensor) -> Result<()> {
        let ty = self.weight_nodes.get(name).map(|&node| self.nodes[node as usize].outs[0].clone());
        let Some(ty) = ty else {
            let known: BTreeSet<String> = self.weight_types().map(|(n, _)| n.to_owned()).collect();
            return Err(Error::Unknown { kind: "weight", name: name.into(), known: known.into_iter().collect() });
        };
        if ty.dtype != data.dtype() || ty.shape.as_fixed().as_deref() != Some(data.shape()) {
            let (expected, got) = (ty.to_string(), data.to_string());
            return Err(Error::Input { name: name.into(), expected, got });
        }
        self.weights.insert(name.into(), data);
        Ok(())
    }

    /// The nodes, in dependency order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
    /// The node that makes a value.
    pub fn node(&self, value: Value) -> &Node {
        &self.nodes[value.node as usize]
    }
    /// The type of a value.
    pub fn ty(&self, value: Value) -> &Type {
        &self.node(value).outs[usize::from(value.slot)]
    }
    fn try_ty(&self, value: Value) -> Option<&Type> {
        self.nodes.get(value.node as usize)?.outs.get(usize::from(value.slot))
    }
    /// Inputs by name, in the order declared.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = (&str, Value)> {
        self.inputs.iter().map(|&node| match &self.nodes[node as usize].op {
            Op::Input { name, .. } => (name.as_str(), Value { node, slot: 0 }),
            other => unreachable!("input list names a {}", other.name()),
        })
    }
    /// The inputs' types.
    pub fn input_types(&self) -> Vec<Type> {
        self.inputs().map(|(_, v)| self.ty(v).clone()).collect()
    }
    /// Results in the order declared.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }
    /// The results' types.
    pub fn output_types(&self) -> Vec<Type> {
        self.outputs.iter().map(|o| self.ty(o.value).clone()).collect()
    }
    /// The result of this name.
    pub fn output(&self, name: &str) -> Option<&Output> {
        self.output_place(name).map(|i| &self.outputs[i])
    }
    /// Where the result of this name is in their order.
    pub fn output_place(&self, name: &str) -> Option<usize> {
        self.output_places.get(name).copied()
    }
    /// The input of this name.
    pub fn input(&self, name: &str) -> Option<Value> {
        self.input_nodes.get(name).map(|&node| Value { node, slot: 0 })
    }
    /// Where the input of this name is in their order.
    pub fn input_place(&self, name: &str) -> Option<usize> {
        // They are declared in ascending order of their nodes.
        self.input_nodes.get(name).and_then(|node| self.inputs.binary_search(node).ok())
    }
    /// Whether an input is a state, which a session keeps.
    pub fn is_state(&self, input: &str) -> bool {
        self.state_inputs.contains(input)
    }
    /// What a stream remembers.
    pub fn states(&self) -> &[State] {
        &self.states
    }
    /// The weights that have data.
    pub fn weights(&self) -> &BTreeMap<String, Tensor> {
        &self.weights
    }
    /// Every weight the graph names, with its type.
    pub fn weight_types(&self) -> impl Iterator<Item = (&str, &Type)> {
        self.nodes.iter().filter_map(|n| match &n.op {
            Op::Weight { name, ty } => Some((name.as_str(), ty)),
            _ => None,
        })
    }
    /// Whether this name of a weight is taken: by a node, by data, or by a weight that may change, now or earlier.
    pub(crate) fn names_weight(&self, name: &str) -> bool {
        self.weight_nodes.contains_key(name) || self.weights.contains_key(name) || self.may_change(name)
    }
    /// A weight's data, or an error that names it.
    pub fn weight(&self, name: &str) -> Result<&Tensor> {
        self.weights.get(name).ok_or_else(|| Error::Unknown {
            kind: "data for a weight",
            name: name.into(),
            known: self.weights.keys().cloned().collect(),
        })
    }
    /// Every symbol that sizes of this graph use.
    pub fn symbols(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut add = |dim: &Dim| {
            dim.for_each_symbol(|s| {
                found.insert(s.to_owned());
            });
        };
        for node in &self.nodes {
            node.outs.iter().flat_map(|t| t.shape.dims()).for_each(&mut add);
            // Of a slice or padding, the result's size may not mention the symbols that its position depends on.
            match &node.op {
                Op::Slice { start: a, end: b, .. } | Op::Pad { before: a, after: b, .. } => {
                    [a, b].into_iter().for_each(&mut add)
                }
                _ => {}
            }
        }
        let bodies = self.nodes.iter().filter_map(|n| if let Op::Scan(scan) = &n.op { Some(&scan.body) } else { None });
        bodies.for_each(|body| found.extend(body.symbols()));
        found
    }

    /// How often each value is read, by node then slot; a result counts as a reader.
    pub fn uses(&self) -> Vec<Vec<u32>> {
        let mut uses: Vec<Vec<u32>> = self.nodes.iter().map(|n| vec![0; n.outs.len()]).collect();
        let read = self.nodes.iter().flat_map(|n| &n.inputs).chain(self.outputs.iter().map(|o| &o.value));
        for v in read {
            uses[v.node as usize][usize::from(v.slot)] += 1;
        }
        uses
    }

    /// The work of one run, summed over the nodes.
    pub fn cost(&self, bindings: &Bindings) -> Result<Cost> {
        let mut total = Cost::default();
        for node in &self.nodes {
            total += self.node_cost(node, bindings)?;
        }
        Ok(total)
    }
    /// The work of one node of this graph.
    pub fn node_cost(&self, node: &Node, bindings: &Bindings) -> Result<Cost> {
        let types: Vec<&Type> = node.inputs.iter().map(|&v| self.ty(v)).collect();
        node.op.cost(&types, &node.outs, bindings)
    }

    /// Nodes in the order in which they can run (the order in which they are kept).
    pub fn topological_sort(&self) -> Vec<u32> {
        (0..self.nodes.len() as u32).collect()
    }

    /// Checks every rule of the representation: order, types, names, states, and weights' data.
    pub fn verify(&self) -> Result<()> {
        let fail = |problem: String| Err(Error::Verify { pass: None, problem });
        let mut inputs = self.inputs.iter().peekable();
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some(v) = node.inputs.iter().find(|v| v.node as usize >= i || self.try_ty(**v).is_none()) {
                return fail(format!("node {i} `{}` reads {v:?}, which is not an earlier value", node.name));
            }
            if let Op::Scan(scan) = &node.op {
                // First, since the loop's own type rule relies on a valid body.
                scan.body.verify()?;
            }
            let types: Vec<&Type> = node.inputs.iter().map(|&v| self.ty(v)).collect();
            match node.op.infer(&types) {
                Ok(outs) if outs == node.outs => {}
                Ok(outs) => {
                    return fail(format!("node {i} `{}` claims {:?}, its rule gives {outs:?}", node.name, node.outs));
                }
                Err(problem) => return fail(format!("node {i} `{}` ({}): {problem}", node.name, node.op.name())),
            }
            if let Some(deep) = node.outs.iter().find(|t| t.shape.rank() > MAX_RANK) {
                return fail(format!("node {i} `{}`: {deep} has more than {MAX_RANK} axes", node.name));
            }
            if matches!(node.op, Op::Input { .. }) != inputs.next_if_eq(&&(i as u32)).is_some() {
                return fail(format!("node {i} `{}` and the list of inputs disagree", node.name));
            }
            let id = i as u32;
            match &node.op {
                Op::Input { name, .. } if self.input_nodes.get(name) != Some(&id) => {
                    return fail(format!("node {i} `{}` is not the only input `{name}`", node.name));
                }
                Op::Weight { name, ty } => {
                    let first = self.weight_nodes.get(name).and_then(|&first| self.nodes.get(first as usize));
                    if !first.is_some_and(|n| matches!(&n.op, Op::Weight { name: n, ty: t } if n == name && t == ty)) {
                        return fail(format!("node {i} `{}` and the list of weights disagree on `{name}`", node.name));
                    }
                }
                _ => {}
            }
        }
        if let Some(more) = inputs.next() {
            return fail(format!("the list of inputs goes on at {more} after the last one"));
        }
        for (place, o) in self.outputs.iter().enumerate() {
            if self.try_ty(o.value).is_none() {
                return fail(format!("output `{}` is no value of this graph", o.name));
            }
            if self.output_places.get(&o.name) != Some(&place) {
                return fail(format!("output {place} is not the only one called `{}`", o.name));
            }
        }
        for State { input, output } in &self.states {
            let (from, to) = (self.input(input), self.output(output).map(|o| o.value));
            if !from.zip(to).is_some_and(|(from, to)| self.try_ty(from) == self.try_ty(to)) {
                return fail(format!("state `{input}` and its next value `{output}` are not of one type"));
            }
            if !self.state_inputs.contains(input) {
                return fail(format!("state `{input}` is not in the list of states"));
            }
        }
        if self.state_inputs.len() != self.states.len() {
            return fail(format!("{} states of {} inputs; want one each", self.states.len(), self.state_inputs.len()));
        }
        for (name, ty) in self.weight_types() {
            if let Some(data) = self.weights.get(name)
                && (ty.dtype != data.dtype() || ty.shape.as_fixed().as_deref() != Some(data.shape()))
            {
                return fail(format!("weight `{name}` is {ty} but its data is {data}"));
            }
        }
        Ok(())
    }

    /// The sizes that inputs of these shapes give the symbols.
    ///
    /// A lone symbol is bound by the input that shows it; sizes that are formulas are checked against the result.
    pub fn bind<'a>(&self, shapes: impl Fn(&str) -> Option<&'a [usize]>, bindings: &mut Bindings) -> Result<()> {
        let mismatch = |name: &str, ty: &Type, got: &[usize]| Error::Input {
            name: name.into(),
            expected: ty.to_string(),
            got: format!("shape {got:?}"),
        };
        for (name, value) in self.inputs() {
            let ty = self.ty(value);
            let Some(got) = shapes(name) else { continue };
            if got.len() != ty.shape.rank() {
                return Err(mismatch(name, ty, got));
            }
            for (dim, &size) in ty.shape.dims().iter().zip(got) {
                if let Some(symbol) = dim.as_symbol()
                    && let Err(old) = bindings.bind(symbol, size)
                {
                    return Err(Error::Input {
                        name: name.into(),
                        expected: format!("{ty} with {symbol} = {old}, as another input has it"),
                        got: format!("shape {got:?}"),
                    });
                }
            }
        }
        for (name, value) in self.inputs() {
            let ty = self.ty(value);
            if let Some(got) = shapes(name) {
                for (dim, &size) in ty.shape.dims().iter().zip(got) {
                    let fits = match dim.as_fixed() {
                        Some(n) => n == size,
                        None => dim.as_symbol().is_some() || dim.eval(bindings)? == size,
                    };
                    if !fits {
                        return Err(mismatch(name, ty, got));
                    }
                }
            }
        }
        Ok(())
    }

    /// A graph with the same inputs, states and weights but none of the operations, and the new values of the inputs:
    /// the start of every rewrite.
    pub(crate) fn rebuild(&self) -> Rebuild<'_> {
        let (weights, prelude) = (self.weights.clone(), self.prelude.clone());
        Rebuild { old: self, new: Graph { weights, prelude, ..Graph::default() }, map: BTreeMap::new() }
    }

    /// The nodes that read each node, in order; one that reads it twice is there twice.
    pub(crate) fn readers(&self) -> Vec<Vec<u32>> {
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        for (id, node) in (0u32..).zip(&self.nodes) {
            node.inputs.iter().for_each(|v| readers[v.node as usize].push(id));
        }
        readers
    }

    /// For each node, whether one of its values is a result.
    pub(crate) fn results(&self) -> Vec<bool> {
        let mut results = vec![false; self.nodes.len()];
        self.outputs.iter().for_each(|o| results[o.value.node as usize] = true);
        results
    }

    /// Drops a weight's data, which is not needed any more.
    pub(crate) fn drop_data(&mut self, value: Value) {
        if let Op::Weight { name, .. } = &self.nodes[value.node as usize].op {
            self.weights.remove(name);
        }
    }

    /// Drops weights' data that no node names.
    pub(crate) fn drop_unused_weights(&mut self) {
        let named = &self.weight_nodes;
        self.weights.retain(|name, _| named.contains_key(name));
    }
}

/// A rewrite in progress: the old graph, the new one, and the new value for each old one.
pub(crate) struct Rebuild<'a> {
    pub(crate) old: &'a Graph,
    pub(crate) new: Graph,
    map: BTreeMap<Value, Value>,
}

impl Rebuild<'_> {
    /// The new value for an old one; an error that names it if the rewrite left it out or has not reached it yet.
    pub(crate) fn get(&self, old: Value) -> Result<Value> {
        self.find(old).ok_or_else(|| Error::Pass {
            pass: "",
            node: self.old.nodes.get(old.node as usize).map(|n| n.name.clone()).unwrap_or_default(),
            problem: format!("value {}.{} is read before it has been rewritten", old.node, old.slot),
        })
    }
    /// The new values for several old ones.
    pub(crate) fn all(&self, old: &[Value]) -> Result<Vec<Value>> {
        old.iter().map(|&v| self.get(v)).collect()
    }
    /// The new value for an old one, if it has been rewritten.
    pub(crate) fn find(&self, old: Value) -> Option<Value> {
        self.map.get(&old).copied()
    }
    /// Records the new value for an old one.
    pub(crate) fn set(&mut self, old: Value, new: Value) {
        self.map.insert(old, new);
    }
    /// Copies an old node, with its inputs replaced by their new values.
    pub(crate) fn copy(&mut self, id: u32) -> Result<Value> {
        let node = &self.old.nodes[id as usize];
        let inputs = self.all(&node.inputs)?;
        let new = self.new.push(node.op.clone(), inputs, node.name.clone())?;
        self.set_all(id, new);
        Ok(new)
    }
    /// Records that the outputs of an old node are now those of `new`.
    pub(crate) fn set_all(&mut self, id: u32, new: Value) {
        for slot in 0..self.old.nodes[id as usize].outs.len() as u16 {
            self.set(Value { node: id, slot }, Value { node: new.node, slot: new.slot + slot });
        }
    }
    /// The new graph, with the old one's results and states.
    pub(crate) fn finish(self) -> Result<Graph> {
        let all: Vec<usize> = (0..self.old.outputs.len()).collect();
        self.finish_with(&all)
    }
    /// The same with only these of the results.
    pub(crate) fn finish_with(mut self, kept: &[usize]) -> Result<Graph> {
        for output in kept.iter().map(|&i| &self.old.outputs[i]) {
            let value = self.get(output.value)?;
            self.new.push_output(output.name.clone(), value)?;
        }
        self.new.states = self.old.states.clone();
        self.new.state_inputs = self.old.state_inputs.clone();
        self.new.drop_unused_weights();
        Ok(self.new)
    }
}

fn check_name(name: &str) -> std::result::Result<(), String> {
    if name.is_empty() || name.len() > 512 || name.chars().any(char::is_control) {
        return Err(format!("{name:?} is no name: want 1 to 512 characters, none of them a control character"));
    }
    Ok(())
}

/// The JSON form: types are left out, since they are inferred again on reading.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    nodes: Vec<FileNode>,
    outputs: Vec<Output>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    states: Vec<State>,
}
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    name: String,
    op: Op,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<Value>,
}

/// The version of the JSON form.
pub const FORMAT_VERSION: u32 = 1;

impl From<Graph> for File {
    fn from(graph: Graph) -> File {
        let nodes = graph.nodes.into_iter().map(|n| FileNode { name: n.name, op: n.op, inputs: n.inputs }).collect();
        File { version: FORMAT_VERSION, nodes, outputs: graph.outputs, states: graph.states }
    }
}
impl TryFrom<File> for Graph {
    type Error = Error;
    fn try_from(file: File) -> Result<Graph> {
        if file.version != FORMAT_VERSION {
            let problem = format!("version {}; this program reads version {FORMAT_VERSION}", file.version);
            return Err(Error::File { path: None, format: "graph", problem });
        }
        let mut graph = Graph::default();
        for node in file.nodes {
            graph.push(node.op, node.inputs, node.name)?;
        }
        for output in file.outputs {
            graph.push_output(output.name, output.value)?;
        }
        for state in file.states {
            graph.push_state(&state.input, &state.output)?;
        }
        Ok(graph)
    }
}

impl Graph {
    /// The graph as JSON (without the weights' data).
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a graph has only string keys and finite structure")
    }
    /// Reads [`Graph::to_json`]'s form; every rule is checked.
    pub fn from_json(text: &str) -> Result<Graph> {
        serde_json::from_str(text).map_err(|e| {
            // Errors of the graph's own rules already begin with "graph: ".
            let problem = e.to_string().trim_start_matches("graph: ").to_owned();
            Error::File { path: None, format: "graph", problem }
        })
    }
}
