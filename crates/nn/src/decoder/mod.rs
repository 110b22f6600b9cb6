//! Decoder transformers, such as Llama and BitNet: symbols go in, and after each of them what may follow comes out.
//!
//! A [`Decoder`] says how large one is and which of its kinds; [`Weights`] are its tensors, dense or in few bits. Both
//! come from other people's files ([`open`]), and [`Decoder::graph`] makes the network of them: from `tokens`
//! i32 `[B, T]` to `logits` f32 `[B, T, vocabulary]`.
//!
//! ```
//! use schwann_core::{CompileOptions, Program, Tensor};
//! use schwann_nn::decoder::Decoder;
//!
//! # fn main() -> schwann_nn::Result<()> {
//! let decoder = Decoder { width: 32, layers: 2, heads: 4, key_heads: 2, head_size: 8, hidden: 48, ..Decoder::tiny() };
//! let graph = decoder.graph(&decoder.draw(1)?)?;
//! let mut session = Program::compile(&graph, &CompileOptions::default())?.session();
//! let tokens = Tensor::new(&[1, 5], &[3i32, 1, 4, 1, 5])?;
//! assert_eq!(session.run(&[("tokens", &tokens)])?[0].shape(), [1, 5, 256]);
//! # Ok(())
//! # }
//! ```

mod config;
mod gguf;
mod graph;
mod hugging_face;
mod names;
mod ternary;

pub use config::{Decoder, FeedForward, Pairing, Rope};

use crate::Result;
use schwann_core::io::Stored;
use schwann_core::io::gguf::Gguf;
use std::collections::BTreeMap;
use std::path::Path;

/// A decoder's tensors by name, as [`Decoder::params`] lists them. Matrices may be dense or low-bit, all else is dense.
pub type Weights = BTreeMap<String, Stored>;

/// Reads a decoder: a folder of Hugging Face's form, which MLX has too, or a GGUF file.
///
/// Such a folder has `config.json` beside `model.safetensors`, or beside several files that `model.safetensors.index.json`
/// lists.
pub fn open(path: impl AsRef<Path>) -> Result<(Decoder, Weights)> {
    let path = path.as_ref();
    if path.is_dir() { hugging_face::open(path) } else { gguf::open(path) }
}

/// The decoder of an opened GGUF file.
pub fn from_gguf(file: &Gguf) -> Result<(Decoder, Weights)> {
    gguf::read(file)
}
