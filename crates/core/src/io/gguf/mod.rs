//! GGUF, the file format of llama.cpp and bitnet.cpp: metadata, a list of tensors, then their bytes.
//!
//! Versions 2 and 3 are read, little endian. Low-bit tensors become codes and scales whose numbers are exactly those that
//! ggml computes; nothing is quantized anew. The header is read once and its counts are compared with the bytes that
//! are there; tensors are read when asked for, and of a mapped file floats are not copied.

mod blocks;
mod value;

pub(super) use blocks::pack;
pub use value::{List, Value};

use super::source::Source;
use super::{Stored, check_name, excerpt};
use crate::error::{Error, Result};
use crate::tensor::count;
use blocks::{Content, LAYOUTS, Layout};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use value::Cursor;

const FORMAT: &str = "GGUF";
/// More metadata entries, and more tensors, than any model has: what is kept of each takes more memory than its bytes.
const MOST: usize = 65_535;
/// As ggml has it.
const MAX_AXES: u32 = 4;
const ALIGNMENT: &str = "general.alignment";

fn bad(problem: impl Into<String>) -> Error {
    Error::File { path: None, format: FORMAT, problem: problem.into() }
}

/// An element type, by its number in ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GgmlType(pub u32);

impl GgmlType {
    fn layout(self) -> Option<&'static Layout> {
        LAYOUTS.iter().find(|layout| layout.number == self.0)
    }

    /// Whether tensors of this type can be read.
    pub fn is_read(self) -> bool {
        self.layout().is_some_and(|layout| !matches!(layout.content, Content::Other))
    }

    /// The names of all types that can be read.
    pub fn read() -> impl Iterator<Item = &'static str> {
        LAYOUTS.iter().filter(|layout| !matches!(layout.content, Content::Other)).map(|layout| layout.name)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout() {
            Some(layout) => f.write_str(layout.name),
            None => write!(f, "type {}", self.0),
        }
    }
}

/// One tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub kind: GgmlType,
    /// Its sizes, outermost first (the file lists them the other way round).
    pub shape: Vec<usize>,
    /// Where its bytes begin in the file.
    pub offset: usize,
    /// How many bytes it takes; `None` where the type is not known.
    pub bytes: Option<usize>,
}

/// An opened file: its header is read and checked, its tensors have not been read yet.
///
/// ```
/// # use schwann_core::io::gguf::Gguf;
/// // Version 3 without tensors, and one metadata entry: "n" is the u8 5.
/// let file = [b"GGUF", &3u32.to_le_bytes()[..], &[0; 8], &1u64.to_le_bytes(), &1u64.to_le_bytes(), b"n", &[0; 4], &[5]];
/// assert_eq!(Gguf::from_bytes(file.concat())?.whole("n")?, 5);
/// # Ok::<(), schwann_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gguf {
    path: Option<PathBuf>,
    source: Source,
    metadata: BTreeMap<String, Value>,
    entries: Vec<Entry>,
    by_name: BTreeMap<String, usize>,
}

impl Gguf {
    /// Maps a file and checks its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let path = path.as_ref();
        let mut file = Gguf::new(Source::open(path)?).map_err(|e| e.in_file(path))?;
        file.path = Some(path.to_owned());
        Ok(file)
    }

    /// The same for a file's content in memory.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Gguf> {
        Gguf::new(Source::Bytes(bytes.into()))
    }

    fn new(source: Source) -> Result<Gguf> {
        let Header { metadata, entries, by_name } = parse(source.bytes()).map_err(bad)?;
        Ok(Gguf { path: None, source, metadata, entries, by_name })
    }

    /// The metadata.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }
    /// The tensors, in the order in which the file lists them.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
    /// What the file says of one tensor.
    pub fn entry(&self, name: &str) -> Result<&Entry> {
        self.by_name.get(name).map(|&i| &self.entries[i]).ok_or_else(|| Error::Unknown {
            kind: "tensor",
            name: name.into(),
            // Enough to see a misspelling; a file may have thousands.
            known: self.by_name.keys().take(20).cloned().collect(),
        })
    }

    /// Metadata that must be a whole number from 0 on.
    pub fn whole(&self, key: &str) -> Result<u64> {
        self.get(key, "a whole number from 0 on", Value::whole)
    }
    /// Metadata that must be a float.
    pub fn float(&self, key: &str) -> Result<f64> {
        self.get(key, "a float", Value::float)
    }
    /// Metadata that must be a truth value.
    pub fn truth(&self, key: &str) -> Result<bool> {
        self.get(key, "bool", Value::truth)
    }
    /// Metadata that must be text.
    pub fn text(&self, key: &str) -> Result<&str> {
        self.get(key, "text", Value::text)
    }
    /// Metadata that must be a list.
    pub fn list(&self, key: &str) -> Result<&List> {
        self.get(key, "a list", Value::list)
    }
    /// Metadata that must be a list of text.
    pub fn texts(&self, key: &str) -> Result<&[String]> {
        self.get(key, "a list of text", Value::texts)
    }

    fn get<'a, T>(&'a self, key: &str, expected: &str, of: impl Fn(&'a Value) -> Option<T>) -> Result<T> {
        let value = self.metadata.get(key).ok_or_else(|| {
            let known = self.metadata.keys().take(20).cloned().collect();
            self.named(Error::Unknown { kind: "metadata", name: key.into(), known })
        })?;
        of(value).ok_or_else(|| {
            self.named(bad(format!("metadata {} is {}; expected {expected}", excerpt(key), value.shown())))
        })
    }

    /// A tensor: floats as they are, low-bit types as codes and scales.
    pub fn tensor(&self, name: &str) -> Result<Stored> {
        let entry = self.entry(name)?;
        self.stored(entry).map_err(|e| self.named(bad(format!("tensor {}: {e}", excerpt(name)))))
    }

    fn stored(&self, entry: &Entry) -> Result<Stored> {
        let known = entry.kind.layout().zip(entry.bytes);
        let refuse = |expected: String, got: String| Err(Error::Tensor { expected, got });
        let content = known.map_or(Content::Other, |(layout, _)| layout.content);
        let (Some((layout, bytes)), Content::LowBit(_) | Content::Floats(_)) = (known, content) else {
            let supported: Vec<_> = GgmlType::read().collect();
            return refuse(format!("one of the types {}", supported.join(", ")), entry.kind.to_string());
        };
        let window = entry.offset..entry.offset + bytes;
        let packed = match content {
            Content::LowBit(packed) => packed,
            Content::Floats(dtype) => return Ok(Stored::Floats(self.source.tensor(dtype, &entry.shape, window)?)),
            Content::Other => unreachable!("refused above"),
        };
        let len = entry.shape.last().copied().unwrap_or(1);
        let rows = count(&entry.shape).map_or(0, |n| n / len.max(1));
        if len == 0 || rows == 0 {
            return refuse(format!("at least one number of {}", entry.kind), format!("shape {:?}", entry.shape));
        }
        let read = packed.read(layout, [rows, len], &self.source.bytes()[window.clone()]);
        // Only what was read is kept, so the file's pages can be released.
        self.source.release(window);
        read.map(Stored::LowBit)
    }

    fn named(&self, error: Error) -> Error {
        match &self.path {
            Some(path) => error.in_file(path),
            None => error,
        }
    }
}

struct Header {
    metadata: BTreeMap<String, Value>,
    entries: Vec<Entry>,
    by_name: BTreeMap<String, usize>,
}

/// Reads and checks everything before the tensors' bytes, and where those lie.
fn parse(file: &[u8]) -> Result<Header, String> {
    let mut from = Cursor { file, at: 0 };
    let magic: [u8; 4] = from.array("the magic number")?;
    if &magic != b"GGUF" {
        return Err("not a GGUF file: the magic number GGUF is missing".into());
    }
    let version = from.u32("the version")?;
    if !matches!(version, 2 | 3) {
        return Err(match version.swap_bytes() {
            1..=3 => "a big-endian file; only little-endian files are read. Convert it where it was made".into(),
            _ => format!("version {version}; expected 2 or 3"),
        });
    }
    // A tensor takes at least two lengths, a type and an offset; an entry at least a length, a type and a value.
    let tensors = from.count(24, "the number of tensors")?;
    let entries = from.count(13, "the number of metadata entries")?;
    for (many, what) in [(tensors, "tensors"), (entries, "metadata entries")] {
        if many > MOST {
            return Err(format!("{many} {what}; expected {MOST} at most"));
        }
    }
    let mut metadata = BTreeMap::new();
    for i in 0..entries {
        let key = from.key().map_err(|e| format!("metadata entry {} of {entries}: {e}", i + 1))?;
        let value = from.value().map_err(|e| format!("metadata {}: {e}", excerpt(&key)))?;
        if metadata.contains_key(&key) {
            return Err(format!("metadata {} is given twice", excerpt(&key)));
        }
        metadata.insert(key, value);
    }
    let alignment = match metadata.get(ALIGNMENT) {
        None => 32,
        Some(Value::U32(n)) if n.is_power_of_two() => *n as usize,
        Some(other) => {
            return Err(format!("`{ALIGNMENT}` is {}; expected a u32 that is a power of two", other.shown()));
        }
    };
    let mut list = Vec::with_capacity(tensors);
    let mut by_name = BTreeMap::new();
    for i in 0..tensors {
        let entry = entry(&mut from).map_err(|e| format!("tensor {} of {tensors}: {e}", i + 1))?;
        if by_name.insert(entry.name.clone(), i).is_some() {
            return Err(format!("tensor {} is given twice", excerpt(&entry.name)));
        }
        list.push(entry);
    }
    place(&mut list, file.len(), from.at, alignment)?;
    Ok(Header { metadata, entries: list, by_name })
}

/// One tensor's entry, whose offset still counts from the data's start.
fn entry(from: &mut Cursor<'_>) -> Result<Entry, String> {
    let name = from.text("the name")?;
    check_name(&name)?;
    let shown = excerpt(&name);
    let axes = from.u32("the number of axes").map_err(|e| format!("{shown}: {e}"))?;
    if axes > MAX_AXES {
        return Err(format!("{shown} has {axes} axes; expected {MAX_AXES} at most"));
    }
    let mut shape = vec![];
    for _ in 0..axes {
        let size = from.u64("a size").map_err(|e| format!("{shown}: {e}"))?;
        shape.push(usize::try_from(size).map_err(|_| format!("{shown}: size {size} is beyond the address space"))?);
    }
    shape.reverse();
    let kind = GgmlType(from.u32("the type").map_err(|e| format!("{shown}: {e}"))?);
    let offset = from.u64("the offset").map_err(|e| format!("{shown}: {e}"))?;
    let offset =
        usize::try_from(offset).map_err(|_| format!("{shown}: offset {offset} is beyond the address space"))?;
    let numbers = count(&shape).ok_or_else(|| format!("{shown}: {shape:?} is beyond the address space"))?;
    let bytes = match kind.layout() {
        None => None,
        Some(layout) => {
            let len = shape.last().copied().unwrap_or(1);
            if len % layout.block != 0 {
                return Err(format!("{shown}: rows of {len} numbers; {kind} takes multiples of {}", layout.block));
            }
            let bytes = (numbers / layout.block).checked_mul(layout.bytes).and_then(|n| n.checked_add(layout.after));
            Some(bytes.ok_or_else(|| format!("{shown}: {kind} {shape:?} is beyond the address space"))?)
        }
    };
    Ok(Entry { name, kind, shape, offset, bytes })
}

/// Finds where tensors lie in the file, which ends at `end` and whose header ends at `header`.
fn place(entries: &mut [Entry], end: usize, header: usize, alignment: usize) -> Result<(), String> {
    let data = header.checked_next_multiple_of(alignment);
    for entry in entries.iter_mut() {
        let Entry { name, kind, shape, offset, bytes } = entry;
        let shown = excerpt(name);
        if *offset % alignment != 0 {
            return Err(format!(
                "tensor {shown} starts at {offset}, which is no multiple of the alignment {alignment}"
            ));
        }
        let start = data.and_then(|data| data.checked_add(*offset));
        let last = start.and_then(|start| start.checked_add(bytes.unwrap_or(0)));
        let (Some(start), Some(last)) = (start, last) else {
            return Err(format!("tensor {shown} starts at {offset}, which is beyond the address space"));
        };
        // A tensor of no bytes may lie anywhere.
        if last > end && *bytes != Some(0) {
            let problem = format!("truncated at tensor {shown} ({kind} {shape:?})");
            return Err(format!("{problem}: it lies at {start} to {last}, but the file ends at {end}"));
        }
        *offset = if *bytes == Some(0) { start.min(end) } else { start };
    }
    let mut order: Vec<&Entry> = entries.iter().collect();
    order.sort_by_key(|entry| (entry.offset, entry.bytes));
    for pair in order.windows(2) {
        let before = pair[0].offset + pair[0].bytes.unwrap_or(0);
        if pair[1].offset < before {
            let (name, other) = (excerpt(&pair[1].name), excerpt(&pair[0].name));
            return Err(format!("tensor {name} starts at {}, inside {other}, which ends at {before}", pair[1].offset));
        }
    }
    Ok(())
}
