//! How much work a run may ask for.
//!
//! A graph may come from a file that is not trusted, and a few bytes can demand 2⁴⁰ steps: a loop over elements without
//! bytes needs no memory that a budget would refuse. So a run is refused if its work (arithmetic, bytes moved, and
//! something for every call) is out of all proportion to the data it is about: inputs, results, states and weights.
//!
//! Real networks stay far below this proportion. A large recurrent layer of eight million weights over one channel does
//! about two million operations for each byte that goes in and out, but has 32 MB of weights, which allow 3·10¹³
//! operations: minutes of all cores' work.

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::op::{Op, Type};
use crate::shape::Bindings;

/// Operations that any run may take.
const ALWAYS: f64 = (1u64 << 34) as f64;
/// Further operations for each byte of its data.
const PER_BYTE: f64 = (1u64 << 20) as f64;
/// Operations that each call counts in addition to its work, and each step of a loop in addition to its calls.
const CALL: f64 = 256.0;

/// Refuses sizes for which a run of `graph` would take work out of proportion to its data; [`Error::Work`] says where.
pub fn check_work(graph: &Graph, bindings: &Bindings) -> Result<()> {
    let size = |ty: &Type| -> Result<u64> {
        let count = ty.shape.eval(bindings)?.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64));
        Ok(count.saturating_mul(ty.dtype.size() as u64))
    };
    let mut bytes = 0u64;
    for node in graph.nodes().iter().filter(|n| n.op.is_source()) {
        bytes = bytes.saturating_add(size(&node.outs[0])?);
    }
    for output in graph.outputs() {
        bytes = bytes.saturating_add(size(graph.ty(output.value))?);
    }
    let mut count = Count { bindings, work: 0.0, limit: ALWAYS + PER_BYTE * bytes as f64, bytes };
    count.graph(graph, 1.0)
}

struct Count<'a> {
    bindings: &'a Bindings,
    work: f64,
    limit: f64,
    bytes: u64,
}

impl Count<'_> {
    /// Adds the work of a graph that runs `times` times.
    fn graph(&mut self, graph: &Graph, times: f64) -> Result<()> {
        for node in graph.nodes().iter().filter(|n| !n.op.is_source()) {
            let mut once = CALL;
            if let Op::Scan(scan) = &node.op {
                let steps = graph.ty(node.inputs[scan.states]).shape[scan.axis].eval(self.bindings)? as f64;
                once += CALL * steps;
                // The loop visits the rows of its states and sequences even if they have no bytes.
                for element in &scan.body.input_types()[..scan.states + scan.sequences] {
                    let rows = element.shape.dims().first().map_or(Ok(1), |d| d.eval(self.bindings))?;
                    once += rows as f64 * steps.max(1.0);
                }
                if times * steps > 0.0 {
                    self.graph(&scan.body, times * steps)?;
                }
            } else {
                let cost = graph.node_cost(node, self.bindings)?;
                once += cost.flops as f64 + cost.bytes() as f64;
            }
            self.work += once * times;
            if self.work > self.limit {
                let Count { work, limit, bytes, .. } = *self;
                return Err(Error::Work { node: node.name.clone(), work, limit, bytes });
            }
        }
        Ok(())
    }
}
