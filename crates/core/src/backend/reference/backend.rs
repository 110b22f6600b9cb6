//! The reference as a backend like any other, for whoever wants to see what a graph means.

use super::{Precision, run};
use crate::backend::{Backend, Bound, Inputs, Observer, Prepared, Stream};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::pass::PassOptions;
use crate::plan::{Kernel, Place, Plan, Step};
use crate::shape::Bindings;
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Plain loops in `f64`, rounded to each node's type; slow, and the definition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Backend for Reference {
    fn name(&self) -> String {
        "reference".into()
    }

    fn pass_options(&self, _: &PassOptions) -> PassOptions {
        PassOptions::none()
    }

    fn prepare(&self, graph: Arc<Graph>) -> Result<Box<dyn Prepared>> {
        for (name, _) in graph.weight_types() {
            graph.weight(name)?;
        }
        Ok(Box::new(Ready(graph)))
    }
}

struct Ready(Arc<Graph>);

impl Prepared for Ready {
    fn bind(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>> {
        let graph = &self.0;
        let mut steps = Vec::new();
        for node in graph.nodes().iter().filter(|n| !n.op.is_source()) {
            let shape = node.outs[0].shape.eval(bindings)?;
            steps.push(Step {
                name: node.name.clone(),
                op: node.op.name().into(),
                kernel: Kernel::other("reference"),
                out: format!("{}{shape:?}", node.outs[0].dtype),
                reads: node.inputs.iter().map(|v| Place::Constant(graph.node(*v).name.clone())).collect(),
                writes: vec![],
                cost: graph.node_cost(node, bindings)?,
                in_place: false,
                looped: None,
            });
        }
        let plan = Plan {
            backend: Reference.name(),
            threads: 1,
            bindings: bindings.clone(),
            steps,
            buffers: vec![],
            arena_bytes: 0,
            live_bytes: 0,
            weight_bytes: graph.weights().values().map(|t| t.bytes().len()).sum(),
        };
        Ok(Arc::new(Laid { graph: Arc::clone(graph), plan }))
    }
}

struct Laid {
    graph: Arc<Graph>,
    plan: Plan,
}

impl Bound for Laid {
    fn plan(&self) -> &Plan {
        &self.plan
    }
    fn stream(self: Arc<Self>) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Running(self)))
    }
}

struct Running(Arc<Laid>);

impl Stream for Running {
    fn bytes(&self) -> usize {
        0
    }

    /// Runs all nodes as one step: the reference is there to be right, not to be watched.
    fn run(
        &mut self,
        inputs: &dyn Inputs,
        outputs: &mut [Tensor],
        _: Option<&mut dyn Observer>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let Laid { graph, plan } = &*self.0;
        let mut given = BTreeMap::new();
        for (i, (name, value)) in graph.inputs().enumerate() {
            let ty = graph.ty(value);
            let tensor = Tensor::from_bytes(ty.dtype, &ty.shape.eval(&plan.bindings)?, inputs.bytes(i))?;
            given.insert(name.to_owned(), tensor);
        }
        for (to, from) in outputs.iter_mut().zip(run(graph, &given, Precision::Storage)?) {
            to.bytes_mut().copy_from_slice(from.bytes());
        }
        Ok(())
    }
}
