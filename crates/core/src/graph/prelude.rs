//! Weights that may change after compiling, and what passes computed from them.
//!
//! Passes fold work on these weights like on any others. How they computed the weights of the compiled graph from them
//! is recorded here as a graph, the *prelude*. When some weights change, it says what has to be computed again. No pass
//! decides anything by the numbers of such a weight, nor of a weight computed from it; none of them becomes a literal.

use super::{Graph, Node, Rebuild, Value};
use crate::error::{Error, Result};
use crate::op::{Float, Op, Type};
use crate::tensor::Tensor;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Which weights of a graph may change once it is compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Changing {
    /// None.
    #[default]
    None,
    /// All.
    All,
    /// Those of these names.
    These(BTreeSet<String>),
}

impl Changing {
    /// The weights of these names.
    pub fn these<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Changing {
        Changing::These(names.into_iter().map(Into::into).collect())
    }
}

/// A condition under which a pass moved work into weights: the sum of the largest magnitudes of these weights, each
/// times its factor, must be finite.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Limit {
    /// The matrix product whose weights were computed from them.
    pub(crate) node: String,
    /// The part of the sum from weights that do not change.
    pub(crate) fixed: Float,
    /// The weights that may change, with their factors.
    pub(crate) parts: Vec<(String, Float)>,
}

/// What was computed from weights that may change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Prelude {
    /// The names of all weights that may change, and of weights computed from them. No other weight may have such a
    /// name.
    names: BTreeSet<String>,
    /// Computes weights of the compiled graph (its outputs) from the weights that may change. Other operands are
    /// literals.
    pub(crate) graph: Graph,
    /// Conditions, with the values of `graph` that they are about.
    pub(crate) limits: Vec<(Limit, Vec<Value>)>,
}

impl Prelude {
    /// The value of a weight that may change: an output if it was computed, else the weight as it was given.
    fn value(&mut self, name: &str, ty: &Type) -> Result<Value> {
        if let Some(output) = self.graph.output(name) {
            return Ok(output.value);
        }
        match self.graph.weight_nodes.get(name) {
            Some(&node) => Ok(Value { node, slot: 0 }),
            None => self.graph.push(Op::Weight { name: name.into(), ty: ty.clone() }, vec![], name),
        }
    }
}

impl Graph {
    /// Lets weights change once the graph is compiled; an error where it has none of a name.
    pub(crate) fn let_change(&mut self, which: &Changing) -> Result<()> {
        let all = || self.weight_types().map(|(name, _)| name.to_owned()).collect::<BTreeSet<String>>();
        let names = match which {
            Changing::None => return Ok(()),
            Changing::All => all(),
            Changing::These(names) => names.clone(),
        };
        if let Some(name) = names.iter().find(|name| !self.weight_nodes.contains_key(*name)) {
            let known = all().into_iter().collect();
            return Err(Error::Unknown { kind: "weight (that could change)", name: name.clone(), known });
        }
        self.prelude = Some(Arc::new(Prelude { names, ..Prelude::default() }));
        Ok(())
    }

    /// Whether the data of this weight may change while a program of the graph is in use; the backend then gets the new
    /// data.
    pub fn may_change(&self, weight: &str) -> bool {
        self.prelude.as_ref().is_some_and(|prelude| prelude.names.contains(weight))
    }

    /// Whether a value is a weight that may change.
    pub(crate) fn is_changing(&self, value: Value) -> bool {
        matches!(&self.node(value).op, Op::Weight { name, .. } if self.may_change(name))
    }

    /// Records how the weight `made` is computed: by this node from `inputs`, whose data are `data`.
    pub(crate) fn record(&mut self, made: &str, node: &Node, inputs: &[Value], data: &[&Tensor]) -> Result<()> {
        let Some(mut prelude) = self.prelude.take() else { return Ok(()) };
        let own = Arc::make_mut(&mut prelude);
        let mut read = Vec::with_capacity(inputs.len());
        for (input, data) in inputs.iter().zip(data) {
            let node = &self.nodes[input.node as usize];
            read.push(match &node.op {
                Op::Weight { name, ty } if own.names.contains(name) => own.value(name, ty)?,
                _ => own.graph.push(Op::Const((*data).clone()), vec![], node.name.clone())?,
            });
        }
        let value = own.graph.push(node.op.clone(), read, node.name.clone())?;
        own.graph.push_output(made, value)?;
        own.names.insert(made.into());
        self.prelude = Some(prelude);
        Ok(())
    }

    /// Records conditions on its weights.
    pub(crate) fn limit(&mut self, limits: Vec<Limit>) -> Result<()> {
        let Some(prelude) = self.prelude.as_mut().filter(|_| !limits.is_empty()) else { return Ok(()) };
        let own = Arc::make_mut(prelude);
        for limit in limits {
            let value = |(name, _): &(String, Float)| match self.weight_nodes.get(name) {
                Some(&node) => own.value(name, &self.nodes[node as usize].outs[0]),
                None => Err(Error::Pass { pass: "", node: limit.node.clone(), problem: format!("no weight `{name}`") }),
            };
            let values = limit.parts.iter().map(value).collect::<Result<_>>()?;
            own.limits.push((limit, values));
        }
        Ok(())
    }

    /// The part of the prelude that the graph's weights need; these are its outputs. `None` if no weight may change.
    pub(crate) fn needed_prelude(&self) -> Result<Option<Prelude>> {
        let Some(mut prelude) = self.prelude.as_deref().cloned() else { return Ok(None) };
        let mut slots = vec![];
        for (name, &node) in self.weight_nodes.iter().filter(|(name, _)| self.may_change(name)) {
            slots.push((name, prelude.value(name, &self.nodes[node as usize].outs[0])?));
        }
        let Prelude { names, graph, limits } = prelude;
        let mut needed = vec![false; graph.nodes.len()];
        let mut open: Vec<Value> = slots.iter().map(|(_, v)| *v).collect();
        open.extend(limits.iter().flat_map(|(_, values)| values));
        while let Some(value) = open.pop() {
            if !std::mem::replace(&mut needed[value.node as usize], true) {
                open.extend(&graph.node(value).inputs);
            }
        }
        let mut r: Rebuild<'_> = graph.rebuild();
        for id in (0u32..).zip(&needed).filter(|(_, needed)| **needed).map(|(id, _)| id) {
            r.copy(id)?;
        }
        for (name, value) in slots {
            let value = r.get(value)?;
            r.new.push_output(name.as_str(), value)?;
        }
        let limits = limits.into_iter().map(|(limit, values)| Ok((limit, r.all(&values)?))).collect::<Result<_>>()?;
        Ok(Some(Prelude { names, graph: r.new, limits }))
    }

    /// The same graph without the data of weights that may change.
    pub(crate) fn without_changing_data(&self) -> Graph {
        let mut graph = self.clone();
        graph.weights.retain(|name, _| !self.may_change(name));
        graph
    }
}
