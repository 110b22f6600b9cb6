//! Safetensors: eight bytes of header length, a JSON header, then the tensors' bytes without gaps.
//!
//! The parser is written here. The `safetensors` crate (0.8 was tried) reads the header into a hash map, so of a name
//! given twice it silently keeps one entry, and its errors (`TensorInvalidInfo`) say neither which tensor nor what was
//! expected. Here the header is streamed through visitors that refuse such mistakes at their position, and no length in
//! the file is used before it is compared with the number of bytes.
//!
//! Tensors are written with the widest types first and the data starts on a cache line, so that every tensor in a
//! mapped file is aligned for its type. Only `i32` tensors are copied, since they may be indices
//! ([`Tensor::from_map`]).

use super::convert::{self, Kind};
use super::source::Source;
use super::{check_name, excerpt, write_file};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, count};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub(super) const FORMAT: &str = "safetensors";
/// The format's own limit on the header.
const MAX_HEADER: usize = 100_000_000;
/// More than any tensor has. Without a limit, a header of many sizes would take several times its own size in memory.
const MAX_AXES: usize = 64;
const METADATA: &str = "__metadata__";

const KINDS: [(&str, Kind); 22] = [
    ("F32", Kind::Ours(DType::F32)),
    ("F16", Kind::Ours(DType::F16)),
    ("BF16", Kind::Ours(DType::Bf16)),
    ("I8", Kind::Ours(DType::I8)),
    ("U8", Kind::Ours(DType::U8)),
    ("I32", Kind::Ours(DType::I32)),
    ("BOOL", Kind::Ours(DType::Bool)),
    ("F64", Kind::F64),
    ("I16", Kind::I16),
    ("U16", Kind::U16),
    ("U32", Kind::U32),
    ("I64", Kind::I64),
    ("U64", Kind::U64),
    ("C64", Kind::Other("C64", 64)),
    ("F8_E4M3", Kind::Other("F8_E4M3", 8)),
    ("F8_E5M2", Kind::Other("F8_E5M2", 8)),
    ("F8_E8M0", Kind::Other("F8_E8M0", 8)),
    ("F8_E4M3FNUZ", Kind::Other("F8_E4M3FNUZ", 8)),
    ("F8_E5M2FNUZ", Kind::Other("F8_E5M2FNUZ", 8)),
    ("F6_E2M3", Kind::Other("F6_E2M3", 6)),
    ("F6_E3M2", Kind::Other("F6_E3M2", 6)),
    ("F4", Kind::Other("F4", 4)),
];

fn kind_name(kind: Kind) -> &'static str {
    KINDS.iter().find(|(_, k)| *k == kind).map_or("?", |(name, _)| name)
}

fn bad(problem: impl Into<String>) -> Error {
    Error::File { path: None, format: FORMAT, problem: problem.into() }
}

/// One tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its element type in the file.
    pub kind: Kind,
    /// Its sizes, outermost first.
    pub shape: Vec<usize>,
    /// Where its bytes lie in the file.
    pub window: Range<usize>,
}

/// An opened file: its header is read and checked, its data has not been read yet.
///
/// ```
/// # use schwann_core::{io::safetensors, Tensor};
/// # use std::collections::BTreeMap;
/// # fn main() -> schwann_core::Result<()> {
/// let weight = Tensor::new(&[2], &[1.0f32, 2.0])?;
/// let bytes = safetensors::to_bytes([("w", &weight)], &BTreeMap::new())?;
/// let file = safetensors::Reader::from_bytes(bytes)?;
/// assert_eq!(file.entries()[0].shape, [2]);
/// assert_eq!(file.tensor("w")?, weight);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Reader {
    path: Option<PathBuf>,
    source: Source,
    /// In the order of their bytes.
    entries: Vec<Entry>,
    by_name: BTreeMap<String, usize>,
    metadata: BTreeMap<String, String>,
}

impl Reader {
    /// Maps a file and checks its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Reader> {
        let path = path.as_ref();
        let source = Source::open(path)?;
        let mut reader = Reader::new(source).map_err(|e| e.in_file(path))?;
        reader.path = Some(path.to_owned());
        Ok(reader)
    }

    /// The same for a file's content in memory.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Reader> {
        Reader::new(Source::Bytes(bytes.into()))
    }

    fn new(source: Source) -> Result<Reader> {
        let (entries, metadata) = parse(source.bytes())?;
        let by_name = entries.iter().enumerate().map(|(i, e)| (e.name.clone(), i)).collect();
        Ok(Reader { path: None, source, entries, by_name, metadata })
    }

    /// The tensors, in the order of their bytes.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
    /// The metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
    /// The header's entry for one tensor.
    pub fn entry(&self, name: &str) -> Result<&Entry> {
        self.by_name.get(name).map(|&i| &self.entries[i]).ok_or_else(|| Error::Unknown {
            kind: "tensor",
            name: name.into(),
            // Enough to see a misspelling; a file may have thousands.
            known: self.by_name.keys().take(20).cloned().collect(),
        })
    }
    /// A tensor's bytes.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        Ok(&self.source.bytes()[self.entry(name)?.window.clone()])
    }

    /// A tensor as it is; of a mapped file, without a copy (unless [`Tensor::from_map`] makes one).
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let entry = self.entry(name)?;
        let Kind::Ours(dtype) = entry.kind else {
            let advice = match entry.kind.nearest() {
                Some(near) => format!("read it with `tensor_as`, for example as {near}"),
                None => "convert it where the file was made".into(),
            };
            let problem =
                format!("tensor `{name}` is {}, which tensors here cannot be; {advice}", kind_name(entry.kind));
            return Err(self.named(bad(problem)));
        };
        self.source.tensor(dtype, &entry.shape, entry.window.clone()).map_err(|e| self.wrong(name, &e))
    }

    /// A tensor's bytes as `u8` of a shape that has as many; of a mapped file, without a copy.
    pub(super) fn as_bytes(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.source.tensor(DType::U8, shape, self.entry(name)?.window.clone()).map_err(|e| self.wrong(name, &e))
    }
    /// Says that a tensor's bytes have been read and are not needed any more.
    pub(super) fn release(&self, name: &str) -> Result<()> {
        self.source.release(self.entry(name)?.window.clone());
        Ok(())
    }

    /// A tensor converted to `dtype`: floats round to nearest, integers must fit, and nothing else is lost.
    pub fn tensor_as(&self, name: &str, dtype: DType) -> Result<Tensor> {
        let entry = self.entry(name)?;
        if entry.kind == Kind::Ours(dtype) {
            return self.tensor(name);
        }
        let tensor = convert::tensor(entry.kind, dtype, &entry.shape, self.bytes(name)?);
        // Only the converted tensor is kept, so the file's pages can be released.
        self.source.release(entry.window.clone());
        tensor.map_err(|e| self.wrong(name, &e))
    }

    /// Every tensor by name; one of a type that tensors cannot have is an error.
    pub fn tensors(&self) -> Result<BTreeMap<String, Tensor>> {
        self.by_name.keys().map(|name| Ok((name.clone(), self.tensor(name)?))).collect()
    }

    fn wrong(&self, name: &str, error: &Error) -> Error {
        self.named(bad(format!("tensor `{name}`: {error}")))
    }
    pub(super) fn named(&self, error: Error) -> Error {
        match &self.path {
            Some(path) => error.in_file(path),
            None => error,
        }
    }
}

/// Reads and checks a whole header.
fn parse(file: &[u8]) -> Result<(Vec<Entry>, BTreeMap<String, String>)> {
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(bad(format!("truncated: {} bytes, expected 8 bytes of header length", file.len())));
    };
    let claimed = u64::from_le_bytes(*length);
    let length = usize::try_from(claimed).ok().filter(|&n| n <= MAX_HEADER).ok_or_else(|| {
        bad(format!("the header length at offset 0 is {claimed}; the format allows {MAX_HEADER} at most"))
    })?;
    let Some((header, data)) = rest.split_at_checked(length) else {
        return Err(bad(format!("truncated: a header of {length} bytes is announced, {} follow", rest.len())));
    };
    if header.first() != Some(&b'{') {
        return Err(bad("the header at offset 8 must begin with `{`"));
    }
    // A copy, since a mapped file can change, and text that was checked to be UTF-8 must stay valid.
    let header = header.to_vec();
    let text = std::str::from_utf8(&header)
        .map_err(|e| bad(format!("the header is not UTF-8 at offset {}", 8 + e.valid_up_to())))?;
    let mut json = serde_json::Deserializer::from_str(text);
    let mut found = Header::default();
    (&mut found).deserialize(&mut json).and_then(|()| json.end()).map_err(|e| bad(format!("header: {e}")))?;

    let Header { mut entries, metadata, .. } = found;
    // Offsets in the header count from the data's start; tensors may be listed in any order but must tile the data.
    entries.sort_by(|a, b| (a.window.start, a.window.end, &a.name).cmp(&(b.window.start, b.window.end, &b.name)));
    let mut at = 0;
    for entry in &mut entries {
        let Range { start, end } = entry.window;
        let name = &entry.name;
        if end > data.len() {
            let problem = format!("tensor `{name}` ends at {end}, but there are {} bytes of data", data.len());
            return Err(bad(problem));
        }
        if start < at {
            return Err(bad(format!("tensor `{name}` starts at {start}, inside another that ends at {at}")));
        }
        if start > at {
            return Err(bad(format!(
                "{} unused bytes before tensor `{name}` at {start}; expected no gaps",
                start - at
            )));
        }
        at = end;
        let base = 8 + length;
        entry.window = base + start..base + end;
    }
    if at != data.len() {
        return Err(bad(format!(
            "{} bytes follow the last tensor, which ends at {at}; expected the end",
            data.len() - at
        )));
    }
    Ok((entries, metadata))
}

/// What the header's visitor gathers.
#[derive(Default)]
struct Header {
    entries: Vec<Entry>,
    names: BTreeSet<String>,
    metadata: BTreeMap<String, String>,
    metadata_seen: bool,
}

impl<'de> DeserializeSeed<'de> for &mut Header {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Header {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                if std::mem::replace(&mut self.metadata_seen, true) {
                    return Err(A::Error::custom(format!("`{METADATA}` is given twice")));
                }
                self.metadata = map.next_value_seed(Metadata)?;
                continue;
            }
            check_name(&name).map_err(A::Error::custom)?;
            if !self.names.insert(name.clone()) {
                return Err(A::Error::custom(format!("tensor `{name}` is given twice")));
            }
            self.entries.push(map.next_value_seed(OneEntry { name })?);
        }
        Ok(())
    }
}

struct Metadata;
impl<'de> DeserializeSeed<'de> for Metadata {
    type Value = BTreeMap<String, String>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_option(self)
    }
}
impl<'de> Visitor<'de> for Metadata {
    type Value = BTreeMap<String, String>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata: an object of strings")
    }
    /// MLX writes `null` where there is none.
    fn visit_none<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }
    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_map(self)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Text(&key))?;
            if metadata.contains_key(&key) {
                return Err(A::Error::custom(format!("metadata {} is given twice", excerpt(&key))));
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }
}

/// One metadata value, known by its key in messages.
struct Text<'a>(&'a str);
impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = String;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<String, D::Error> {
        d.deserialize_string(self)
    }
}
impl Visitor<'_> for Text<'_> {
    type Value = String;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string for metadata {}", excerpt(self.0))
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<String, E> {
        Ok(text)
    }
}

/// One tensor's entry, whose window still counts from the data's start.
struct OneEntry {
    name: String,
}
impl<'de> DeserializeSeed<'de> for OneEntry {
    type Value = Entry;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Entry, D::Error> {
        d.deserialize_map(self)
    }
}
impl<'de> Visitor<'de> for OneEntry {
    type Value = Entry;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor `{}`: an object of dtype, shape and data_offsets", self.name)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let OneEntry { name } = self;
        let fail = |problem: String| A::Error::custom(format!("tensor `{name}`: {problem}"));
        let (mut kind, mut shape, mut offsets) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let again = match key.as_str() {
                "dtype" => {
                    let text = map.next_value::<String>()?;
                    let known = KINDS.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
                    let known = known.ok_or_else(|| fail(format!("unknown dtype {}", excerpt(&text))))?;
                    kind.replace(known).is_some()
                }
                "shape" => shape.replace(map.next_value_seed(Numbers(MAX_AXES))?).is_some(),
                "data_offsets" => offsets.replace(map.next_value_seed(Numbers(2))?).is_some(),
                other => {
                    let expected = "expected dtype, shape and data_offsets";
                    return Err(fail(format!("unknown field {}; {expected}", excerpt(other))));
                }
            };
            if again {
                return Err(fail(format!("`{key}` is given twice")));
            }
        }
        let missing = |field: &str| fail(format!("`{field}` is missing"));
        let kind = kind.ok_or_else(|| missing("dtype"))?;
        let shape = shape.ok_or_else(|| missing("shape"))?;
        let offsets = offsets.ok_or_else(|| missing("data_offsets"))?;
        let &[start, end] = offsets.as_slice() else {
            return Err(fail(format!("{} data_offsets; expected begin and end", offsets.len())));
        };
        if end < start {
            return Err(fail(format!("data_offsets end at {end}, before they begin at {start}")));
        }
        let want = count(&shape).and_then(|n| kind.bytes_for(n)).ok_or_else(|| {
            fail(format!("{}{shape:?} is no size: it overflows or ends within a byte", kind_name(kind)))
        })?;
        if want != end - start {
            return Err(fail(format!(
                "{}{shape:?} takes {want} bytes, but data_offsets {start}..{end} have {}",
                kind_name(kind),
                end - start
            )));
        }
        Ok(Entry { name, kind, shape, window: start..end })
    }
}

/// Reads a list of at most this many sizes.
struct Numbers(usize);
impl<'de> DeserializeSeed<'de> for Numbers {
    type Value = Vec<usize>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Vec<usize>, D::Error> {
        d.deserialize_seq(self)
    }
}
impl<'de> Visitor<'de> for Numbers {
    type Value = Vec<usize>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} sizes", self.0)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<usize>, A::Error> {
        let mut numbers = vec![];
        while let Some(n) = seq.next_element::<u64>()? {
            if numbers.len() == self.0 {
                return Err(A::Error::custom(format!("a list of more than {} sizes", self.0)));
            }
            numbers.push(usize::try_from(n).map_err(|_| A::Error::custom(format!("{n} is beyond the address space")))?);
        }
        Ok(numbers)
    }
}

/// Writes a file of these tensors and metadata, whole or not at all.
pub fn write<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let path = path.as_ref();
    let (header, tensors) = layout(tensors, metadata).map_err(|e| e.in_file(path))?;
    write_file(path, |out| {
        out.write_all(&header)?;
        tensors.iter().try_for_each(|(_, tensor)| out.write_all(tensor.bytes()))
    })
}

/// The same as the bytes that a file would have.
pub fn to_bytes<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let (mut bytes, tensors) = layout(tensors, metadata)?;
    tensors.iter().for_each(|(_, tensor)| bytes.extend_from_slice(tensor.bytes()));
    Ok(bytes)
}

/// Tensors by name, in some order.
type Named<'a> = Vec<(&'a str, &'a Tensor)>;

/// The length and header, padded so that data starts on a cache line, and the tensors in the order of their data.
fn layout<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    metadata: &BTreeMap<String, String>,
) -> Result<(Vec<u8>, Named<'a>)> {
    let mut tensors: Named<'a> = tensors.into_iter().collect();
    // Widest first: without gaps between them, that alone aligns each for its type.
    tensors.sort_by_key(|(name, tensor)| (std::cmp::Reverse(tensor.dtype().size()), *name));
    let mut names = BTreeSet::new();
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut header = vec![0u8; 8];
    let mut offset = 0;
    let mut separator = "{";
    if !metadata.is_empty() {
        let pairs: Vec<String> = metadata.iter().map(|(k, v)| format!("{}:{}", quoted(k), quoted(v))).collect();
        header.extend_from_slice(format!("{{\"{METADATA}\":{{{}}}", pairs.join(",")).as_bytes());
        separator = ",";
    }
    for (name, tensor) in &tensors {
        check_name(name).map_err(bad)?;
        if *name == METADATA || !names.insert(*name) {
            return Err(bad(format!(
                "the name `{name}` is {}",
                if *name == METADATA { "reserved" } else { "given twice" }
            )));
        }
        if tensor.shape().len() > MAX_AXES {
            return Err(bad(format!("tensor `{name}` has {} axes; expected {MAX_AXES} at most", tensor.shape().len())));
        }
        let end = offset + tensor.bytes().len();
        let (kind, shape) = (kind_name(Kind::Ours(tensor.dtype())), tensor.shape());
        let entry = format!(
            r#"{separator}{}:{{"dtype":"{kind}","shape":{shape:?},"data_offsets":[{offset},{end}]}}"#,
            quoted(name)
        );
        header.extend_from_slice(entry.as_bytes());
        (separator, offset) = (",", end);
    }
    header.extend_from_slice(if separator == "{" { b"{}" } else { b"}" });
    header.resize(header.len().next_multiple_of(64), b' ');
    let length = header.len() - 8;
    if length > MAX_HEADER {
        return Err(bad(format!("a header of {length} bytes; the format allows {MAX_HEADER} at most")));
    }
    header[..8].copy_from_slice(&(length as u64).to_le_bytes());
    Ok((header, tensors))
}
