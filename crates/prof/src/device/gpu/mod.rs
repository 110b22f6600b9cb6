//! What a network would take on the GPU of a catalogued chip, and where it should run.
//!
//! The network is laid out as `schwann-gpu` lays it out for a real device: the same kernels, workgroups and dispatches. What
//! the threads of each kernel do is counted from the kernel ([`mod@tally`]), and each count has a price in cycles
//! ([`mod@price`]). Nothing here was compared with a real chip, and little is published about these GPUs, so every price is
//! a range with its reason, and a prediction is a band. No price is specific to a network.
//!
//! [`mod@place`] puts the band beside that of the CPU and says which of the two is faster, at this batch and at others.

pub mod place;
pub mod price;
pub mod tally;

pub use place::{Crossing, Place, Point, Where, compare};
pub use price::{Assumption, GpuPart, GpuPrediction, on_gpu};

use schwann_core::pass::{PassOptions, optimize};
use schwann_core::plan::{Plan, Step};
use schwann_core::{Bindings, Graph};
use schwann_gpu::device::Limits;
use schwann_gpu::lower::Prepared;
use schwann_gpu::program::Item;
use std::sync::Arc;
use tally::{Tally, tally};

/// Launches that are handed over together, at most; what `schwann-gpu` does.
const MOST_LAUNCHES: f64 = 1024.0;

/// Workgroup memory on the GPUs of Apple's chips, by Metal's feature tables.
const SHARED_BYTES: u32 = 32 << 10;

/// A network, ready to be laid out for GPUs.
#[derive(Debug)]
pub struct Prospect {
    graph: Arc<Graph>,
    prepared: Prepared,
    constants: Vec<u32>,
}

/// One dispatch of a layout, with what its threads do.
#[derive(Clone, Debug)]
pub struct Dispatched {
    /// The node that it computes.
    pub name: String,
    /// What the plan calls its kernel.
    pub kernel: String,
    /// How often it is dispatched in a run.
    pub times: f64,
    /// Workgroups.
    pub groups: f64,
    /// Threads of a workgroup.
    pub threads: f64,
    /// Workgroup memory in bytes.
    pub shared_bytes: f64,
    /// Steps of a sequence that it walks by itself.
    pub walks: Option<u32>,
    /// What the busiest thread does.
    pub busiest: Tally,
    /// What the average thread does.
    pub average: Tally,
}

/// What a run does on a GPU, whichever it is.
#[derive(Clone, Debug)]
pub struct Work {
    /// In the order in which they are dispatched first.
    pub dispatches: Vec<Dispatched>,
    /// Dispatches of a run.
    pub launches: f64,
    /// Arithmetic, by shapes.
    pub flops: f64,
    /// Inputs and outputs, which host and device hand each other.
    pub handed_bytes: f64,
    /// Inputs, outputs, weights and values between dispatches, each once.
    pub bytes: f64,
}

impl Prospect {
    /// Makes a graph ready, as it was built.
    pub fn new(graph: &Graph) -> schwann_core::Result<Prospect> {
        let (graph, _) = optimize(graph, &PassOptions::default())?;
        let graph = Arc::new(graph);
        // Apple's subgroups have 32 threads, and their conversions of f16 are exact.
        let limits = Limits { shared_bytes: SHARED_BYTES, lanes: 32, exact_halves: true, ..Limits::default() };
        let prepared = Prepared::new(Arc::clone(&graph), &limits)?;
        let constants = prepared.constants(&graph)?;
        Ok(Prospect { graph, prepared, constants })
    }

    /// What a run of these sizes does; or which kernel has no price, and why.
    pub fn work(&self, sizes: &Bindings) -> Result<Work, String> {
        let layout = self.prepared.lay_out(sizes).map_err(|e| e.to_string())?;
        let mut dispatches = vec![];
        self.count(&layout.items, 1.0, &layout, &mut dispatches)?;
        let handed_bytes = self.handed(sizes).map_err(|e| e.to_string())?;
        let plan = &layout.plan;
        let between: usize = plan.buffers.iter().map(|b| b.bytes).sum();
        Ok(Work {
            launches: dispatches.iter().map(|d: &Dispatched| d.times).sum(),
            dispatches,
            flops: plan.cost().flops as f64,
            handed_bytes,
            bytes: handed_bytes + 4.0 * self.constants.len() as f64 + 2.0 * between as f64,
        })
    }

    fn count(
        &self,
        items: &[Item],
        times: f64,
        layout: &schwann_gpu::program::Layout,
        into: &mut Vec<Dispatched>,
    ) -> Result<(), String> {
        for item in items {
            let dispatch = match item {
                Item::Repeat { rounds, body } => {
                    self.count(body, times * f64::from(*rounds), layout, into)?;
                    continue;
                }
                Item::Dispatch(dispatch) if dispatch.groups.contains(&0) => continue,
                Item::Dispatch(dispatch) => dispatch,
            };
            let step = step(&layout.plan, &dispatch.place);
            let (name, text) = step.map_or(("?", "?".into()), |s| (s.name.as_str(), s.kernel.to_string()));
            let kernel = layout.kernels.get(dispatch.kernel).ok_or("a dispatch without a kernel")?;
            let unpriced = |why: String| format!("no price is known for `{name}` ({text}): {why}");
            let [busiest, average] = tally(kernel, dispatch, &self.constants).map_err(unpriced)?;
            // Beside a loop that is one kernel there may be copies of what its states begin with.
            let moves =
                step.is_some_and(|s| s.looped.is_some()) && dispatch.place.len() == 1 && dispatch.walk.is_none();
            into.push(Dispatched {
                name: if moves { format!("{name}: states moved") } else { name.to_owned() },
                kernel: text,
                times,
                groups: dispatch.groups.iter().map(|g| f64::from(*g)).product(),
                threads: f64::from(kernel.threads.max(1)),
                shared_bytes: kernel.shared.iter().map(|a| 4.0 * f64::from(a.len)).sum(),
                walks: dispatch.walk.as_ref().map(|w| w.steps),
                busiest,
                average,
            });
        }
        Ok(())
    }

    /// Bytes of inputs and outputs.
    fn handed(&self, sizes: &Bindings) -> schwann_core::Result<f64> {
        let outputs = self.graph.outputs().iter().map(|o| o.value);
        let mut bytes = 0.0;
        for value in self.graph.inputs().map(|(_, v)| v).chain(outputs) {
            let ty = self.graph.ty(value);
            bytes += ty.shape.eval(sizes)?.iter().map(|n| *n as f64).product::<f64>() * ty.dtype.size() as f64;
        }
        Ok(bytes)
    }
}

/// The plan's step at a place: a step, and in loops the step of the body.
fn step<'a>(plan: &'a Plan, place: &[usize]) -> Option<&'a Step> {
    let (first, rest) = place.split_first()?;
    let step = plan.steps.get(*first)?;
    match (&step.looped, rest.is_empty()) {
        (Some(looped), false) => self::step(&looped.body, rest).or(Some(step)),
        _ => Some(step),
    }
}

#[cfg(test)]
pub(in crate::device) mod tests;
