//! What is known before the run: weights, literals, a loop's fixed values that are one of them outside, and what only
//! renames or repeats these.

use super::lower::{Sized, sized};
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::Op;
use crate::shape::Bindings;
use crate::tensor::Tensor;
use std::collections::HashMap;

/// The known values of a graph.
pub(super) struct Known<'a> {
    graph: &'a Graph,
    bindings: &'a Bindings,
    /// Inputs whose data is known, by their place.
    given: &'a HashMap<usize, Tensor>,
    places: HashMap<u32, usize>,
    /// For each node that is known, the source that it renames or repeats.
    sources: Vec<Option<Value>>,
}

impl<'a> Known<'a> {
    /// One known number is repeated ahead to `stretched` bytes at most.
    pub(super) fn of(
        graph: &'a Graph,
        bindings: &'a Bindings,
        given: &'a HashMap<usize, Tensor>,
        stretched: usize,
    ) -> Result<Known<'a>> {
        let places: HashMap<u32, usize> = graph.inputs().enumerate().map(|(i, (_, v))| (v.node, i)).collect();
        let mut sources: Vec<Option<Value>> = Vec::with_capacity(graph.nodes().len());
        // In order, since graphs can be deep.
        for (id, node) in (0u32..).zip(graph.nodes()) {
            let own = Value { node: id, slot: 0 };
            let first = node.inputs.first().filter(|v| v.slot == 0);
            let source = first.and_then(|v| sources[v.node as usize]);
            sources.push(match &node.op {
                Op::Const(_) | Op::Weight { .. } => Some(own),
                Op::Input { .. } => places.get(&id).filter(|i| given.contains_key(i)).map(|_| own),
                // A reshape of known data is known too.
                Op::Reshape { .. } => source,
                // So is a repetition of one element of it, if it is small: a state that starts at zero.
                Op::Broadcast { .. } if source.is_some() => {
                    let (from, to) = (sized(graph, bindings, node.inputs[0])?, sized(graph, bindings, own)?);
                    source.filter(|_| to.bytes() <= stretched && from.count() == 1 && to.count() > 0)
                }
                _ => None,
            });
        }
        Ok(Known { graph, bindings, given, places, sources })
    }

    /// Whether a value is known.
    pub(super) fn contains(&self, value: Value) -> bool {
        self.source(value).is_some()
    }

    fn source(&self, value: Value) -> Option<Value> {
        if value.slot == 0 { self.sources[value.node as usize] } else { None }
    }

    /// Where the data of a known value comes from.
    pub(super) fn identity(&self, value: Value) -> Option<usize> {
        let source = self.source(value)?;
        match &self.graph.node(source).op {
            Op::Const(t) => Some(t.identity()),
            Op::Weight { name, .. } => self.graph.weights().get(name).map(Tensor::identity),
            _ => self.places.get(&source.node).and_then(|i| self.given.get(i)).map(Tensor::identity),
        }
    }

    /// The data of a known value.
    pub(super) fn data(&self, value: Value) -> Result<Option<Tensor>> {
        let Some(source) = self.source(value) else { return Ok(None) };
        let data = match &self.graph.node(source).op {
            Op::Const(t) => Some(t.clone()),
            Op::Weight { name, .. } => Some(self.graph.weight(name)?.clone()),
            _ => self.places.get(&source.node).and_then(|i| self.given.get(i)).cloned(),
        };
        let Some(data) = data else { return Ok(None) };
        let to: Sized = sized(self.graph, self.bindings, value)?;
        Ok(Some(match (data.shape() == to.shape, data.len() == to.count()) {
            (true, _) => data,
            (false, true) => data.reshaped(&to.shape)?,
            (false, false) => Tensor::from_bytes(to.dtype, &to.shape, &data.bytes().repeat(to.count()))?,
        }))
    }
}
