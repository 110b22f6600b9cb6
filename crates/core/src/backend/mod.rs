//! What runs a graph.
//!
//! [`mod@reference`] defines what every operation means; every other backend is tested against it, from the list in
//! [`crate::cases`]. A backend prepares a graph once; what it prepared is bound to sizes, and gives each session a
//! stream. The stream owns all memory of its runs, on the host or on a device: uploaded inputs, states, results. Others
//! only see the tensors that it gives when it is asked for them.

mod choice;
pub mod cpu;
mod host;
pub mod reference;
mod timeline;

pub use choice::{CPU, Choice, Known, known, register};
pub use timeline::{Beside, Clock, Queue, Span, Timeline, Total, Totals, tell};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::pass::PassOptions;
use crate::plan::Plan;
pub use crate::session::Canceller;
use crate::shape::Bindings;
use crate::tensor::{Tensor, count};
pub use schwann_kernels::tape::{Event, Recorder, Time};
use std::any::Any;
use std::sync::Arc;

/// A way of running graphs.
pub trait Backend: Send + Sync {
    /// Its name, with what tells variants apart: `cpu (avx512)`.
    fn name(&self) -> String;
    /// The host's threads that it computes with.
    fn threads(&self) -> usize {
        1
    }
    /// The passes that suit it, given those that are wanted.
    fn pass_options(&self, wanted: &PassOptions) -> PassOptions;
    /// Makes a rewritten graph ready to be bound to sizes.
    fn prepare(&self, graph: Arc<Graph>) -> Result<Box<dyn Prepared>>;
}

/// A graph made ready.
pub trait Prepared: Send + Sync {
    /// Lays the graph out for these sizes.
    fn bind(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>>;
    /// The layout that [`Prepared::bind`] makes, but without one part of a loop's kernel, to measure what that part takes.
    /// Memory and barriers stay the same, and the results mean nothing. None where there is no such kernel, or no way to
    /// leave a part of it out.
    fn bind_without(&self, _: &Bindings, _: &LeftOut) -> Result<Option<Arc<dyn Bound>>> {
        Ok(None)
    }
    /// A new stream. It takes almost no memory until it is fitted to sizes.
    fn stream(&self) -> Result<Box<dyn Stream>>;
    /// Gives weights of the graph that [may change](Graph::may_change) new data of the same types: all of them or,
    /// after an error, none. Runs that begin afterwards use it, in existing streams and layouts too unless the result
    /// is [`Change::NewLayouts`]; a run that is under way ends with the data that it began with. There is only one call
    /// at a time.
    fn set_weights(&self, weights: &[(String, Tensor)]) -> Result<Change> {
        let names: Vec<&str> = weights.iter().map(|(name, _)| name.as_str()).collect();
        let why = format!("this backend has no way to replace `{}`", names.join("`, `"));
        Err(Error::Unavailable { what: "a change of weights", why })
    }
}

/// What a layout leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The place in the plan of a loop that is one kernel.
    pub looped: Vec<usize>,
    /// The step of its body that is not computed. Without one everything is, by a kernel that differs from those which leave
    /// something out in nothing else: the one to compare them with.
    pub step: Option<usize>,
}

/// What becomes of layouts when weights change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Existing layouts use the new weights.
    InPlace,
    /// Existing layouts keep the old weights, and sessions must bind new layouts.
    NewLayouts,
}

/// A graph laid out for sizes; immutable and shared between streams.
pub trait Bound: Any + Send + Sync {
    /// What will run.
    fn plan(&self) -> &Plan;
}

impl dyn Bound {
    /// The layout as its backend's own type; for streams, which only get layouts of their own backend.
    pub fn downcast<T: Bound>(self: Arc<Self>) -> Result<Arc<T>> {
        let backend = self.plan().backend.clone();
        let layout: Arc<dyn Any + Send + Sync> = self;
        layout.downcast().map_err(|_| Error::Internal(format!("a stream was given the layout of {backend}")))
    }
}

/// One stream: runs one after the other, with memory that lasts.
///
/// A session calls [`Stream::fit`] before the first run and whenever sizes change, and then [`Stream::run`], or
/// [`Stream::submit`] and [`Stream::wait`]. Between the two it calls nothing else. A stream that is dropped while a run is
/// under way ends that run or lets it end, and frees its memory after that.
pub trait Stream: Send {
    /// Makes room for runs of these sizes. States and uploaded inputs keep their values; earlier results are lost. The
    /// session makes sure that a state with a value has the same size in the new layout, or is given or zeroed first.
    fn fit(&mut self, bound: Arc<dyn Bound>, sizes: &Sizes) -> Result<()>;
    /// Gives back the memory of its layout. States and uploaded inputs keep their values.
    fn release(&mut self);
    /// Bytes of working memory that it holds, on the host or on a device.
    fn bytes(&self) -> usize;

    /// Keeps a value for an input that is no state, for all runs that say [`Source::Kept`] for it.
    fn upload(&mut self, input: usize, value: &Tensor) -> Result<()>;
    /// Sets a state to zeros; only called after [`Stream::fit`].
    fn zero(&mut self, state: usize) -> Result<()>;
    /// The value of a state, on the host. Only called for a state that was zeroed or written by a run.
    fn state(&self, state: usize) -> Result<&Tensor>;

    /// Begins a run. The inputs are only valid during this call; what is needed later must be copied. The run stops
    /// early once `cancel` says so. `watched` says that [`Stream::wait`] will have an observer.
    fn submit(&mut self, inputs: &dyn Inputs, watched: bool, cancel: &Canceller) -> Result<()>;
    /// Waits for the end of the run that was submitted, and gives its outcome. A run that failed or was cancelled
    /// leaves the states as they were, except for the elements that it [put](crate::op::Op::Put) into one: these may be
    /// old or new. After a run that succeeded, the states have the values of their outputs.
    fn wait(&mut self, observer: Option<&mut dyn Observer>) -> Result<()>;

    /// All outputs of the last run that succeeded, in the graph's order, on the host. Results on a device are copied
    /// when they are first asked for.
    fn outputs(&self) -> Result<&[Tensor]>;
    /// One of them.
    fn output(&self, index: usize) -> Result<&Tensor> {
        let missing = || Error::Internal(format!("a stream without an output {index}"));
        self.outputs()?.get(index).ok_or_else(missing)
    }

    /// One run from beginning to end.
    fn run(
        &mut self,
        inputs: &dyn Inputs,
        observer: Option<&mut dyn Observer>,
        cancel: &Canceller,
    ) -> Result<&[Tensor]> {
        self.submit(inputs, observer.is_some(), cancel)?;
        self.wait(observer)?;
        self.outputs()
    }

    /// The same with memory for some of the outputs, in the graph's order and of their sizes: none of them is a state. They are
    /// then not among [`Stream::outputs`].
    fn run_into(
        &mut self,
        inputs: &dyn Inputs,
        into: &mut [Option<&mut [u8]>],
        observer: Option<&mut dyn Observer>,
        cancel: &Canceller,
    ) -> Result<()> {
        self.run(inputs, observer, cancel)?;
        for (index, place) in into.iter_mut().enumerate() {
            if let Some(place) = place {
                place.copy_from_slice(self.output(index)?.bytes());
            }
        }
        Ok(())
    }
}

/// Where an input's value is.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// On the host: the bytes of its elements.
    Host(&'a [u8]),
    /// With the stream: what was uploaded, or a state's value.
    Kept,
}

/// The inputs of one run.
pub trait Inputs {
    /// The input at this position in the graph.
    fn source(&self, index: usize) -> Source<'_>;
}

/// Types and shapes of a graph's inputs and outputs, in its order, for one set of sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of inputs.
    pub inputs: Vec<(DType, Vec<usize>)>,
    /// Of outputs.
    pub outputs: Vec<(DType, Vec<usize>)>,
}

impl Sizes {
    /// Those of a graph.
    pub fn of(graph: &Graph, bindings: &Bindings) -> Result<Sizes> {
        let sized = |value| {
            let ty = graph.ty(value);
            Ok((ty.dtype, ty.shape.eval(bindings)?))
        };
        Ok(Sizes {
            inputs: graph.inputs().map(|(_, value)| sized(value)).collect::<Result<_>>()?,
            outputs: graph.outputs().iter().map(|output| sized(output.value)).collect::<Result<_>>()?,
        })
    }

    /// Bytes of a value of this type and shape; `usize::MAX` if that overflows.
    pub fn bytes((dtype, shape): &(DType, Vec<usize>)) -> usize {
        count(shape).and_then(|n| dtype.bytes_for(n)).unwrap_or(usize::MAX)
    }
}

/// For each of a graph's states, its place among the inputs and among the outputs.
pub fn state_places(graph: &Graph) -> Vec<(usize, usize)> {
    let place =
        |state: &crate::graph::State| Some((graph.input_place(&state.input)?, graph.output_place(&state.output)?));
    graph.states().iter().filter_map(place).collect()
}

/// Measures a run: it is told of each step as it begins and ends, or after the run where steps run on a device. A run
/// without an observer pays nothing.
pub trait Observer {
    /// The plan's step of this number is about to run.
    fn begin(&mut self, step: usize);
    /// It has run.
    fn end(&mut self, step: usize);
    /// For observers that want more than steps: the backend writes what happened when, in loops and on every thread or
    /// queue too, into this timeline. It then calls neither [`Observer::begin`] nor [`Observer::end`].
    fn timeline(&mut self) -> Option<&mut Timeline> {
        None
    }
}
