//! Graphs on a device: the backend, and the graphs that it has prepared.

use crate::device::{Device, Limits};
use crate::lower;
use crate::program::Layout;
use crate::stream::Lane;
use schwann_core::backend::{Backend, Bound, Change, LeftOut, Prepared, Stream, state_places};
use schwann_core::pass::PassOptions;
use schwann_core::plan::Plan;
use schwann_core::{Bindings, Graph, Result, Tensor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A graph that can be laid out for sizes.
pub trait Lowered: Send + Sync {
    /// The words of the buffer of constants, with the weights' data from `graph`: the graph that was lowered, or the
    /// same one with new data for weights that may change. The number of words is always the same.
    fn constants(&self, graph: &Graph) -> Result<Vec<u32>>;
    /// The graph laid out for these sizes.
    fn lay_out(&self, bindings: &Bindings) -> Result<Layout>;
    /// The same without a part of a loop's kernel; none where it cannot be left out.
    fn lay_out_without(&self, _: &Bindings, _: &LeftOut) -> Result<Option<Layout>> {
        Ok(None)
    }
}

impl Lowered for lower::Prepared {
    fn constants(&self, graph: &Graph) -> Result<Vec<u32>> {
        self.constants(graph)
    }
    fn lay_out(&self, bindings: &Bindings) -> Result<Layout> {
        self.lay_out(bindings)
    }
    fn lay_out_without(&self, bindings: &Bindings, left_out: &LeftOut) -> Result<Option<Layout>> {
        self.lay_out_without(bindings, left_out)
    }
}

/// Prepares a graph to be laid out for a device with these limits.
pub type Lower = fn(Arc<Graph>, &Limits) -> Result<Box<dyn Lowered>>;

/// A device as a backend.
pub struct Gpu<D> {
    device: Arc<D>,
    lower: Lower,
}

impl<D> Clone for Gpu<D> {
    fn clone(&self) -> Gpu<D> {
        Gpu { device: Arc::clone(&self.device), lower: self.lower }
    }
}

impl<D: Device> Gpu<D> {
    /// A backend for a device.
    pub fn new(device: Arc<D>) -> Gpu<D> {
        Gpu::with(device, |graph, limits| Ok(Box::new(lower::Prepared::new(graph, limits)?)))
    }

    /// A backend that lowers graphs with another function.
    pub fn with(device: Arc<D>, lower: Lower) -> Gpu<D> {
        Gpu { device, lower }
    }

    /// The device.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }
}

impl<D: Device> Backend for Gpu<D> {
    fn name(&self) -> String {
        self.device.name()
    }

    fn pass_options(&self, wanted: &PassOptions) -> PassOptions {
        wanted.clone()
    }

    fn prepare(&self, graph: Arc<Graph>) -> Result<Box<dyn Prepared>> {
        let lowered = (self.lower)(Arc::clone(&graph), self.device.limits())?;
        let constants = Constants::new(&*self.device, &lowered.constants(&graph)?)?;
        let (device, graph) = (Arc::clone(&self.device), Mutex::new(graph));
        Ok(Box::new(OnDevice { device, lowered, graph, constants: Arc::new(constants) }))
    }
}

/// The current constants of a program on the device. A run keeps those that it began with.
pub(crate) struct Constants<D: Device>(Mutex<Arc<D::Buffer>>);

impl<D: Device> Constants<D> {
    fn new(device: &D, words: &[u32]) -> Result<Constants<D>> {
        Ok(Constants(Mutex::new(Arc::new(Self::buffer(device, words)?))))
    }

    fn buffer(device: &D, words: &[u32]) -> Result<D::Buffer> {
        let (what, bytes) = ("the weights of a program", 4 * words.len().max(4) as u64);
        device.limits().admit_buffer(&device.name(), what, bytes)?;
        let buffer = device.buffer(what, bytes)?;
        if !words.is_empty() {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            device.write(&buffer, 0, &bytes)?;
        }
        Ok(buffer)
    }

    pub(crate) fn now(&self) -> Arc<D::Buffer> {
        Arc::clone(&locked(&self.0))
    }
}

/// Locks even after a panic: the data behind these locks is always consistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A graph whose weights are on the device.
struct OnDevice<D: Device> {
    device: Arc<D>,
    lowered: Box<dyn Lowered>,
    graph: Mutex<Arc<Graph>>,
    constants: Arc<Constants<D>>,
}

/// A layout with its kernels ready.
pub(crate) struct Ready<D: Device> {
    pub(crate) layout: Layout,
    pub(crate) kernels: Vec<D::Kernel>,
}

impl<D: Device> Bound for Ready<D> {
    fn plan(&self) -> &Plan {
        &self.layout.plan
    }
}

impl<D: Device> OnDevice<D> {
    /// Compiles a layout's kernels.
    fn ready(&self, mut layout: Layout) -> Result<Arc<dyn Bound>> {
        layout.plan.backend = self.device.name();
        layout.plan.unified_memory = Some(self.device.unified());
        let kernels = layout.kernels.iter().map(|kernel| self.device.compile(kernel)).collect::<Result<_>>()?;
        Ok(Arc::new(Ready::<D> { layout, kernels }))
    }
}

impl<D: Device> Prepared for OnDevice<D> {
    fn bind(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>> {
        self.ready(self.lowered.lay_out(bindings)?)
    }

    fn bind_without(&self, bindings: &Bindings, left_out: &LeftOut) -> Result<Option<Arc<dyn Bound>>> {
        self.lowered.lay_out_without(bindings, left_out)?.map(|layout| self.ready(layout)).transpose()
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        let graph = Arc::clone(&locked(&self.graph));
        let (inputs, outputs) = (graph.inputs().len(), graph.outputs().len());
        let (device, constants) = (Arc::clone(&self.device), Arc::clone(&self.constants));
        Ok(Box::new(Lane::new(device, constants, inputs, outputs, state_places(&graph))))
    }

    fn set_weights(&self, weights: &[(String, Tensor)]) -> Result<Change> {
        let mut graph = locked(&self.graph);
        let mut next = Graph::clone(&graph);
        for (name, data) in weights {
            next.set_weight(name, data.clone())?;
        }
        let new = Constants::buffer(&*self.device, &self.lowered.constants(&next)?)?;
        // Runs that are under way hold the old buffer, which is freed with the last of them.
        *locked(&self.constants.0) = Arc::new(new);
        *graph = Arc::new(next);
        Ok(Change::InPlace)
    }
}
