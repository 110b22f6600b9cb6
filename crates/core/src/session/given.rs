//! What a run is given: inputs, as tensors or in memory of the caller's, and places for its outputs.

use crate::backend::{Inputs, Sizes, Source};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::tensor::{Tensor, View};

/// Where the value of an input is if the run is not given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Nowhere: a state starts at zero, any other input is missing.
    Nowhere,
    /// In the session, on the host.
    Host,
    /// In the stream.
    Stream,
}

/// What a run can be given: a tensor, or elements in memory of the caller's.
pub(super) trait Argument {
    fn view(&self) -> View<'_>;
}
impl Argument for &Tensor {
    #[inline(always)]
    fn view(&self) -> View<'_> {
        View::of(self)
    }
}
impl Argument for View<'_> {
    #[inline(always)]
    fn view(&self) -> View<'_> {
        *self
    }
}

/// The inputs of a run: what the caller gave, and what is held for the rest.
pub(super) struct Given<'a, A> {
    pub(super) arguments: &'a [(&'a str, A)],
    pub(super) given: &'a [Option<usize>],
    pub(super) host: &'a [Option<Tensor>],
    pub(super) held: &'a [Held],
}
impl<A: Argument> Inputs for Given<'_, A> {
    #[inline]
    fn source(&self, index: usize) -> Source<'_> {
        match (self.given[index], self.held[index], &self.host[index]) {
            (Some(at), ..) => Source::Host(self.arguments[at].1.view().bytes()),
            (None, Held::Host, Some(value)) => Source::Host(value.bytes()),
            _ => Source::Kept,
        }
    }
}

/// Whether outputs fit the places that are given for them.
pub(super) fn check_places(graph: &Graph, sizes: &Sizes, into: &[Option<&mut [u8]>]) -> Result<()> {
    let outputs = graph.outputs();
    if into.len() > outputs.len() {
        let (expected, got) = (format!("places for at most {} outputs", outputs.len()), into.len().to_string());
        return Err(Error::Tensor { expected, got });
    }
    for ((sized, place), output) in sizes.outputs.iter().zip(into).zip(outputs) {
        let Some(place) = place else { continue };
        let (dtype, shape) = sized;
        let wanted = Sizes::bytes(sized);
        if place.len() != wanted || (wanted > 0 && place.as_ptr().align_offset(dtype.size()) != 0) {
            let expected = format!("{wanted} bytes, aligned for {dtype}{shape:?}, to write `{}` into", output.name);
            return Err(Error::Tensor { expected, got: format!("{} bytes", place.len()) });
        }
    }
    Ok(())
}

/// Why there is no such result.
#[cold]
pub(super) fn elsewhere() -> Error {
    let why = "the last run wrote it into memory of the caller's".into();
    Error::Unavailable { what: "a result", why }
}
