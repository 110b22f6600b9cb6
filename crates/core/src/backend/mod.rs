//! What runs a graph.
//!
//! [`mod@reference`] defines what every operation means; every other backend is tested against it, from the list in
//! [`crate::cases`]. A backend prepares a graph once; what it prepared is bound to sizes, and gives each session a
//! stream. The stream owns all memory of its runs, wherever that is: inputs that stay, states, results. Nobody outside
//! sees more of it than the tensors that it gives when it is asked.

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
    /// What passes should do for it.
    fn pass_options(&self, wanted: &PassOptions) -> PassOptions;
    /// Makes a rewritten graph ready to be bound to sizes.
    fn prepare(&self, graph: Arc<Graph>) -> Result<Box<dyn Prepared>>;
}

/// A graph made ready.
pub trait Prepared: Send + Sync {
    /// Lays the graph out for these sizes.
    fn bind(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>>;
    /// The layout that [`Prepared::bind`] makes, but for one part of a loop's kernel: so that somebody can measure what that
    /// part takes. Memory, and where threads wait for each other, are as ever, and the results are worth nothing. None where
    /// there is no such kernel, or no way to leave a part of it out.
    fn bind_without(&self, _: &Bindings, _: &LeftOut) -> Result<Option<Arc<dyn Bound>>> {
        Ok(None)
    }
    /// A new stream. It takes no memory to speak of until it is fitted to sizes.
    fn stream(&self) -> Result<Box<dyn Stream>>;
    /// Gives weights of the graph that [may change](Graph::may_change) other data, of the same types: all of them or, after
    /// an error, none. Runs that begin after this have it, in streams and layouts that there are too, unless these are to
    /// be made anew; a run that is under way ends with the data that it began with. One call at a time.
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
    /// They have the new weights.
    InPlace,
    /// They have the old weights for good, and new ones are to be bound.
    NewLayouts,
}

/// A graph laid out for sizes; immutable and shared between streams.
pub trait Bound: Any + Send + Sync {
    /// What will run.
    fn plan(&self) -> &Plan;
}

impl dyn Bound {
    /// The layout as the type that its backend made it of; for a stream, which is only given what its own backend made.
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
    /// Makes room for runs of these sizes. States and uploaded inputs keep their values; what results there were is gone.
    /// The session makes sure that a state with a value has the same size in the new layout, or is given or zeroed first.
    fn fit(&mut self, bound: Arc<dyn Bound>, sizes: &Sizes) -> Result<()>;
    /// Gives back the memory of its layout. States and uploaded inputs keep their values.
    fn release(&mut self);
    /// Bytes of working memory that it holds, where they are.
    fn bytes(&self) -> usize;

    /// Keeps a value for an input that is no state, for all runs that say [`Source::Kept`] for it.
    fn upload(&mut self, input: usize, value: &Tensor) -> Result<()>;
    /// Sets a state to zeros; it has been fitted.
    fn zero(&mut self, state: usize) -> Result<()>;
    /// The value that a state has, on the host. Never asked for a state that neither was zeroed nor came out of a run.
    fn state(&self, state: usize) -> Result<&Tensor>;

    /// Begins a run. The inputs are there for the time of this call only; what is needed later is copied. The run stops
    /// early once `cancel` says so. `watched`: [`Stream::wait`] will have an observer.
    fn submit(&mut self, inputs: &dyn Inputs, watched: bool, cancel: &Canceller) -> Result<()>;
    /// Waits for the end of the run that was submitted, and says how it went. A run that went wrong, or was cancelled,
    /// leaves the states as they were before it. Of one that went well, the outputs that are states are their values now.
    fn wait(&mut self, observer: Option<&mut dyn Observer>) -> Result<()>;

    /// All outputs of the last run that went well, in the graph's order, on the host. Where results are elsewhere, they are
    /// copied here when they are first asked for.
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
}

/// Where an input's value is.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// On the host: bytes of the size that its type has.
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

    /// Bytes of one of them; the most there can be where that is no size.
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

/// Whoever measures: told of each step as it begins and ends, or afterwards where it happened elsewhere. Absent, it costs
/// nothing.
pub trait Observer {
    /// The plan's step of this number is about to run.
    fn begin(&mut self, step: usize);
    /// It has run.
    fn end(&mut self, step: usize);
    /// For whoever wants more than steps: a backend writes into it when what happened, in loops and on every thread or queue
    /// too, and calls neither [`Observer::begin`] nor [`Observer::end`] then.
    fn timeline(&mut self) -> Option<&mut Timeline> {
        None
    }
}
