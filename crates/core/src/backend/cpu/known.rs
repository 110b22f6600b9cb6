//! Which values are known before the run: weights, literals, a loop's fixed values that are known outside the loop, and
//! reshapes and repetitions of these.

use super::lower::{Sized, sized};
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::Op;
use crate::shape::Bindings;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::sync::Arc;

/// Data that is known before the run.
#[derive(Clone)]
pub(super) struct Data {
    pub(super) tensor: Tensor,
    /// The weight that holds it, if that weight may change.
    pub(super) slot: Option<Slot>,
}

/// A weight that may change, read with this shape; a single element is repeated to fill it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    pub(super) name: Arc<str>,
    pub(super) shape: Vec<usize>,
}

/// What tells two pieces of data apart: their address if they do not change, else the name of the weight.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    Address(usize),
    Changing(Arc<str>),
}

/// The data with another shape of as many elements; a single element is repeated.
pub(super) fn shaped(data: Tensor, shape: &[usize]) -> Result<Tensor> {
    let count = shape.iter().product();
    match (data.shape() == shape, data.len() == count) {
        (true, _) => Ok(data),
        (false, true) => data.reshaped(shape),
        (false, false) => Tensor::from_bytes(data.dtype(), shape, &data.bytes().repeat(count)),
    }
}

/// Floats repeated along the axes in which a shape is larger.
pub(super) fn stretched(data: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let (x, out) = (
        Sized { dtype: data.dtype(), shape: data.shape().to_vec() },
        Sized { dtype: data.dtype(), shape: shape.to_vec() },
    );
    let (from, strides) = (data.values::<f32>()?, x.strides_in(shape));
    let full: Vec<f32> = (0..out.count())
        .map(|i| {
            let axes = out.strides().into_iter().zip(shape).zip(&strides);
            from[axes.map(|((step, size), stride)| i / step % size * stride).sum::<usize>()]
        })
        .collect();
    Tensor::new(shape, &full)
}

/// The known values of a graph.
pub(super) struct Known<'a> {
    graph: &'a Graph,
    bindings: &'a Bindings,
    /// Inputs whose data is known, by their place.
    given: &'a HashMap<usize, Data>,
    places: HashMap<u32, usize>,
    /// For each node that is known, the weight, literal or input that it reshapes or repeats (or is).
    sources: Vec<Option<Value>>,
}

impl<'a> Known<'a> {
    /// A repetition of a known number counts as known if it takes at most `stretched` bytes.
    pub(super) fn of(
        graph: &'a Graph,
        bindings: &'a Bindings,
        given: &'a HashMap<usize, Data>,
        stretched: usize,
    ) -> Result<Known<'a>> {
        let places: HashMap<u32, usize> = graph.inputs().enumerate().map(|(i, (_, v))| (v.node, i)).collect();
        let mut sources: Vec<Option<Value>> = Vec::with_capacity(graph.nodes().len());
        // A loop over the nodes in order, not a recursion, since graphs can be deep.
        for (id, node) in (0u32..).zip(graph.nodes()) {
            let own = Value { node: id, slot: 0 };
            let first = node.inputs.first().filter(|v| v.slot == 0);
            let source = first.and_then(|v| sources[v.node as usize]);
            sources.push(match &node.op {
                Op::Const(_) | Op::Weight { .. } => Some(own),
                Op::Input { .. } => places.get(&id).filter(|i| given.contains_key(i)).map(|_| own),
                // A reshape of known data is known too.
                Op::Reshape { .. } => source,
                // So is a small repetition of one known element, such as a state that starts at zero.
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

    /// What the data of a known value comes from.
    pub(super) fn origin(&self, value: Value) -> Option<Identity> {
        let source = self.source(value)?;
        let of = |data: &Data| match &data.slot {
            None => Identity::Address(data.tensor.identity()),
            Some(slot) => Identity::Changing(Arc::clone(&slot.name)),
        };
        match &self.graph.node(source).op {
            Op::Const(t) => Some(Identity::Address(t.identity())),
            Op::Weight { name, .. } if self.graph.may_change(name) => Some(Identity::Changing(name.as_str().into())),
            Op::Weight { name, .. } => self.graph.weights().get(name).map(|t| Identity::Address(t.identity())),
            _ => self.places.get(&source.node).and_then(|i| self.given.get(i)).map(of),
        }
    }

    /// The data of a known value.
    pub(super) fn data(&self, value: Value) -> Result<Option<Data>> {
        let Some(source) = self.source(value) else { return Ok(None) };
        let to: Sized = sized(self.graph, self.bindings, value)?;
        let slot = |name: Arc<str>| Slot { name, shape: to.shape.clone() };
        let data = match &self.graph.node(source).op {
            Op::Const(t) => Some((t.clone(), None)),
            Op::Weight { name, .. } => {
                let changing = self.graph.may_change(name).then(|| slot(name.as_str().into()));
                Some((self.graph.weight(name)?.clone(), changing))
            }
            _ => {
                let given = self.places.get(&source.node).and_then(|i| self.given.get(i));
                given.map(|data| (data.tensor.clone(), data.slot.as_ref().map(|s| slot(Arc::clone(&s.name)))))
            }
        };
        let Some((tensor, slot)) = data else { return Ok(None) };
        Ok(Some(Data { tensor: shaped(tensor, &to.shape)?, slot }))
    }
}
