//! Symbol after symbol from a decoder: what follows a prompt.
//!
//! [`cached`] gives a decoder's graph a cache of keys and values, so that each symbol is computed once. A [`Generator`]
//! runs such a graph, and a [`Sampler`] picks the next symbol from what it gives.
//!
//! ```
//! use schwann_core::CompileOptions;
//! use schwann_nn::decoder::Decoder;
//! use schwann_nn::generate::{Generator, Sampler, Sampling};
//!
//! # fn main() -> schwann_nn::Result<()> {
//! let decoder = Decoder::tiny();
//! let graph = decoder.graph(&decoder.draw(1)?)?;
//! let mut generator = Generator::new(&graph, &CompileOptions::default(), 32)?;
//! let mut sampler = Sampler::new(Sampling { temperature: 0.8, top_k: 40, seed: 7, ..Sampling::default() })?;
//! let mut next = sampler.pick(generator.feed(b"Hello".map(i32::from).as_slice())?)?;
//! for _ in 0..10 {
//!     next = sampler.pick(generator.feed(&[next])?)?;
//! }
//! assert_eq!(generator.len(), 15);
//! # Ok(())
//! # }
//! ```

mod cached;
mod sample;
mod text;
#[cfg(feature = "tokenizers")]
mod tokens;

pub use cached::cached;
pub use sample::{Sampler, Sampling};
pub use text::{Reader, Text, stops};

use crate::{Error, Result};
use schwann_core::{CompileOptions, DType, Graph, Program, Session, Tensor};
use std::sync::Arc;

/// The most symbols of a prompt that one run takes: enough to fill the kernels, and a bound on the memory of a run.
const MOST_AT_ONCE: usize = 256;

/// One sequence that grows: a decoder with the keys and values of all symbols so far.
#[derive(Debug)]
pub struct Generator {
    session: Session,
    vocabulary: usize,
    room: usize,
    /// Symbols so far.
    at: usize,
    /// The inputs of a run of one symbol, so that it allocates nothing.
    one: [Tensor; 2],
}

impl Generator {
    /// For a decoder's graph and sequences of at most `room` symbols.
    pub fn new(graph: &Graph, options: &CompileOptions, room: usize) -> Result<Generator> {
        let graph = cached(graph)?;
        if let Some(context) = graph.weights().get("rope.cos").map(|table| table.shape()[0])
            && !(1..=context).contains(&room)
        {
            return Err(Error::argument("room", room, format!("from 1 to {context}, the decoder's context")));
        }
        Generator::over(Program::compile(&graph, options)?, room)
    }

    /// For a program of a graph that [`cached`] made, which many generators may share.
    pub fn over(program: Arc<Program>, room: usize) -> Result<Generator> {
        let source = program.source();
        let refuse = |got: &str| Error::argument("program", got, "one whose graph `cached` made");
        let logits = source.outputs().iter().find(|o| o.name == "logits").map(|o| source.ty(o.value));
        let vocabulary = logits.and_then(|ty| ty.shape.dims().last()?.as_fixed());
        let vocabulary = vocabulary.ok_or_else(|| refuse("without `logits`"))?;
        let mut session = program.session();
        session.set_size("S", room)?;
        let one = [Tensor::zeros(DType::I32, &[1, 1])?, Tensor::zeros(DType::I32, &[1])?];
        Ok(Generator { session, vocabulary, room, at: 0, one })
    }

    /// Takes symbols after those so far, and gives a number for each symbol of the vocabulary that may follow the last of
    /// them: the larger, the likelier. After an error the sequence is as it was.
    pub fn feed(&mut self, tokens: &[i32]) -> Result<&[f32]> {
        if tokens.is_empty() || tokens.len() > self.room - self.at {
            let expected = format!("1 to {}: {} of {} places are taken", self.room - self.at, self.at, self.room);
            return Err(Error::argument("tokens", tokens.len(), expected));
        }
        if let Some(bad) = tokens.iter().find(|&&t| t < 0 || t as usize >= self.vocabulary) {
            return Err(Error::argument("token", bad, format!("from 0 to {}", self.vocabulary - 1)));
        }
        let mut at = self.at;
        for part in tokens.chunks(MOST_AT_ONCE) {
            let places = at as i32..(at + part.len()) as i32;
            if let [token] = part {
                self.one[0].values_mut::<i32>()?[0] = *token;
                self.one[1].values_mut::<i32>()?[0] = places.start;
                self.session.run(&[("tokens", &self.one[0]), ("positions", &self.one[1])])?;
            } else {
                let tokens = Tensor::new(&[1, part.len()], part)?;
                let places = Tensor::new(&[part.len()], &places.collect::<Vec<i32>>())?;
                self.session.run(&[("tokens", &tokens), ("positions", &places)])?;
            }
            at += part.len();
        }
        self.at = at;
        Ok(self.session.output("logits")?.values::<f32>()?)
    }

    /// Forgets all symbols after the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.at = self.at.min(len);
    }

    /// Symbols so far.
    pub fn len(&self) -> usize {
        self.at
    }
    /// Whether there are no symbols yet.
    pub fn is_empty(&self) -> bool {
        self.at == 0
    }
    /// The most symbols that there is room for.
    pub fn room(&self) -> usize {
        self.room
    }
    /// Symbols there are to choose from.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }
    /// The session that it runs, for observers and cancellers.
    pub fn session(&self) -> &Session {
        &self.session
    }
}
