//! What runs a graph.
//!
//! [`mod@reference`] defines what every operation means; every other backend is tested against it, from the list in
//! [`crate::cases`]. A backend prepares a graph once; what it prepared is bound to sizes, and a bound graph gives each
//! stream what it needs to run.

pub mod cpu;
pub mod reference;

use crate::error::Result;
use crate::graph::Graph;
use crate::pass::PassOptions;
use crate::plan::Plan;
use crate::shape::Bindings;
use crate::tensor::Tensor;
pub use schwann_kernels::tape::{Event, Recorder, Time};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A way of running graphs.
pub trait Backend: Send + Sync {
    /// Its name, with what tells variants apart: `cpu (avx512)`.
    fn name(&self) -> String;
    /// What passes should do for it.
    fn pass_options(&self, wanted: &PassOptions) -> PassOptions;
    /// Makes a rewritten graph ready to be bound to sizes.
    fn prepare(&self, graph: Arc<Graph>) -> Result<Box<dyn Prepared>>;
}

/// A graph made ready.
pub trait Prepared: Send + Sync {
    /// Lays the graph out for these sizes.
    fn bind(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>>;
}

/// A graph laid out for sizes; immutable and shared between streams.
pub trait Bound: Send + Sync {
    /// What will run.
    fn plan(&self) -> &Plan;
    /// One stream's memory.
    fn stream(self: Arc<Self>) -> Result<Box<dyn Stream>>;
}

/// One stream: runs, one after the other.
pub trait Stream: Send {
    /// Bytes of working memory it holds.
    fn bytes(&self) -> usize;
    /// Runs once. Outputs have their types and sizes already.
    fn run(
        &mut self,
        inputs: &dyn Inputs,
        outputs: &mut [Tensor],
        observer: Option<&mut dyn Observer>,
        cancel: &AtomicBool,
    ) -> Result<()>;
}

/// The inputs of one run.
pub trait Inputs {
    /// The bytes of the input at this position in the graph, of the size that its type has.
    fn bytes(&self, index: usize) -> &[u8];
}

/// Whoever measures: told of each step as it begins and ends. Absent, it costs nothing.
pub trait Observer {
    /// The plan's step of this number is about to run.
    fn begin(&mut self, step: usize);
    /// It has run.
    fn end(&mut self, step: usize);
    /// Tables of times, for whoever wants more than steps: a backend that can keeps them, for the calls in loops and
    /// on every thread too, and calls neither [`Observer::begin`] nor [`Observer::end`] then.
    fn recorder(&mut self) -> Option<&mut Recorder> {
        None
    }
}

impl Observer for Recorder {
    fn begin(&mut self, _: usize) {}
    fn end(&mut self, _: usize) {}
    fn recorder(&mut self) -> Option<&mut Recorder> {
        Some(self)
    }
}
