//! Files: whole graphs, safetensors, and NumPy's arrays.
//!
//! Everything that is read is taken for hostile: each count is checked against the bytes that are there before anything
//! is allocated for it, so a small file costs little memory whatever it claims. Everything that is written goes to a new
//! file beside the old one and takes its name only when it is whole and on disk, so a crash leaves the old file, and a
//! program that has the old one mapped keeps it.
//!
//! A graph is one safetensors file: its weights are the tensors, its JSON is the metadata entry [`GRAPH_KEY`]. Any
//! safetensors tool can therefore list, diff or convert the weights.

mod convert;
pub mod npy;
pub mod npz;
pub mod safetensors;

pub use convert::Kind;
pub use npy::{read_npy, write_npy};
pub use npz::{read_npz, write_npz};

use crate::error::{Error, Result};
use crate::graph::Graph;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Writes a graph and its weights into one file.
pub fn save(path: impl AsRef<Path>, graph: &Graph) -> Result<()> {
    let json = serde_json::to_string(graph).map_err(|e| Error::Internal(format!("a graph's JSON: {e}")))?;
    let metadata = BTreeMap::from([(GRAPH_KEY.to_owned(), json)]);
    safetensors::write(path, graph.weights().iter().map(|(name, data)| (name.as_str(), data)), &metadata)
}

/// Reads what [`save`] wrote; the weights stay in the mapped file.
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

/// Writes a file whole or not at all: into a new one in the same directory, to disk, then under its name.
fn write_atomically(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> Result<()>) -> Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let io = |source| Error::Io { path: path.to_owned(), source };
    let name = path.file_name().ok_or_else(|| io(std::io::ErrorKind::InvalidFilename.into()))?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.{}.tmp", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let temporary = path.with_file_name(temporary);

    let file = OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(io)?;
    let mut unfinished = Unfinished(Some(temporary.clone()));
    let mut writer = BufWriter::new(file);
    fill(&mut writer)?;
    writer.flush().map_err(io)?;
    let file = writer.into_inner().map_err(|e| io(e.into_error()))?;
    file.sync_all().map_err(io)?;
    drop(file);
    std::fs::rename(&temporary, path).map_err(io)?;
    unfinished.0 = None;
    // The new name is on disk once the directory is; where directories cannot be opened there is nothing to do.
    if let Some(Ok(directory)) =
        path.parent().map(|p| File::open(if p.as_os_str().is_empty() { Path::new(".") } else { p }))
    {
        let _ = directory.sync_all();
    }
    Ok(())
}

/// A file that is removed unless it was finished.
struct Unfinished(Option<PathBuf>);
impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Text from a file as it may stand in a message: short, and without control characters.
fn excerpt(text: &str) -> String {
    const MOST: usize = 48;
    let short: String = text.chars().take(MOST).collect();
    let more = if text.chars().nth(MOST).is_some() { "…" } else { "" };
    format!("`{}{more}`", short.escape_debug())
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
