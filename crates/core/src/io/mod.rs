//! Files: whole graphs, safetensors, NumPy's arrays, and the low-bit weights of GGUF and MLX.
//!
//! Files are not trusted: each count is checked against the bytes that are there before anything is allocated for it,
//! so a small file costs little memory whatever it claims. Everything that is written goes through [`write_file`],
//! which replaces a file whole or not at all.
//!
//! A graph is one safetensors file: its weights are the tensors, its JSON is the metadata entry [`GRAPH_KEY`]. Any
//! safetensors tool can therefore list, diff or convert the weights.

mod convert;
pub mod gguf;
pub mod mlx;
pub mod npy;
pub mod npz;
mod output;
pub mod safetensors;
mod source;

pub use convert::Kind;
pub use npy::{NpyRows, map_npy, npy_header, read_npy, read_npy_if, write_npy};
pub use npz::{read_npz, read_npz_if, write_npz};
pub use output::{same_file, write_bytes, write_file, write_text};

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::quant::Quantized;
use crate::show;
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The metadata entry that holds a graph's JSON.
pub const GRAPH_KEY: &str = "schwann.graph";

/// How much a reader of compressed or converted data may allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of array data in all, after decompression.
    pub total_bytes: u64,
    /// Arrays in one file.
    pub arrays: usize,
}
impl Default for Limits {
    /// 4 GiB in at most 65,535 arrays.
    fn default() -> Limits {
        Limits { total_bytes: 4 << 30, arrays: 65_535 }
    }
}

/// A tensor of a file of weights.
#[derive(Clone, Debug)]
pub enum Stored {
    /// Floats, of the type that the file has.
    Floats(Tensor),
    /// Codes and scales. All axes but the last are one: the rows.
    LowBit(Quantized),
}

/// Writes a graph and its weights into one file.
pub fn save(path: impl AsRef<Path>, graph: &Graph) -> Result<()> {
    let json = serde_json::to_string(graph).map_err(|e| Error::Internal(format!("a graph's JSON: {e}")))?;
    let metadata = BTreeMap::from([(GRAPH_KEY.to_owned(), json)]);
    safetensors::write(path, graph.weights().iter().map(|(name, data)| (name.as_str(), data)), &metadata)
}

/// Reads what [`save`] wrote; the weights stay in the mapped file, but for indices.
pub fn load(path: impl AsRef<Path>) -> Result<Graph> {
    let path = path.as_ref();
    graph_of(&safetensors::Reader::open(path)?).map_err(|e| e.in_file(path))
}

/// The graph that an opened file holds, with its weights.
pub fn graph_of(reader: &safetensors::Reader) -> Result<Graph> {
    let json = reader.metadata().get(GRAPH_KEY).ok_or_else(|| {
        let problem = format!(
            "no graph: the metadata has no `{GRAPH_KEY}`. A file of weights alone is read by `safetensors::Reader`"
        );
        Error::File { path: None, format: safetensors::FORMAT, problem }
    })?;
    let mut graph = Graph::from_json(json)?;
    for entry in reader.entries() {
        let data = reader.tensor(&entry.name)?;
        graph.set_weight(&entry.name, data).map_err(|e| Error::File {
            path: None,
            format: safetensors::FORMAT,
            problem: format!("tensor `{}` does not fit the graph: {e}", entry.name),
        })?;
    }
    Ok(graph)
}

/// Reads text of at most `most` bytes. The file's own size is not relied on: a device has none, and may never end.
pub fn read_text(path: impl AsRef<Path>, most: u64) -> Result<String> {
    let path = path.as_ref();
    let io = |source| Error::Io { path: path.to_owned(), source };
    let mut bytes = vec![];
    let (file, _) = open(path)?;
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > most {
        let problem = format!("more than {most} bytes, which is more than is read");
        return Err(Error::File { path: Some(path.to_owned()), format: "text", problem });
    }
    String::from_utf8(bytes).map_err(|e| {
        let problem = format!("no UTF-8 at offset {}", e.utf8_error().valid_up_to());
        Error::File { path: Some(path.to_owned()), format: "text", problem }
    })
}

/// Opens a file for reading, with its length.
fn open(path: &Path) -> Result<(File, u64)> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let about = file.metadata().map_err(io)?;
    if about.is_dir() {
        return Err(io(std::io::ErrorKind::IsADirectory.into()));
    }
    Ok((file, about.len()))
}

/// Text from a file for a message: shortened, and with all characters visible.
fn excerpt(text: &str) -> String {
    const MOST: usize = 48;
    let short: String = text.chars().take(MOST).collect();
    let more = if text.chars().nth(MOST).is_some() { "…" } else { "" };
    format!("`{}{more}`", show::line(&short))
}

/// Whether a tensor may have this name; the same rule as for names in a graph.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("a tensor has an empty name; expected 1 to 512 bytes".into());
    }
    if name.len() > 512 {
        return Err(format!("the name {} has {} bytes; expected 1 to 512", excerpt(name), name.len()));
    }
    match name.chars().position(char::is_control) {
        Some(at) => Err(format!("the name {} has a control character at {at}", excerpt(name))),
        None => Ok(()),
    }
}
