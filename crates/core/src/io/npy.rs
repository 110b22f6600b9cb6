//! NumPy's `.npy`: a magic number, a version, a header that is a Python dictionary, then the elements.
//!
//! The reader is our own: the header's grammar is a dozen lines. The header is at most 64 KiB, its three keys are all
//! there is, and the element count is compared with the bytes that remain before anything is allocated. Elements are
//! read into an aligned buffer at once.
//!
//! Types that tensors lack become the nearest that they have, `f8` → `f32` and wider or odd integers → `i32`, where a
//! value that does not fit is an error. Big-endian files are swapped and Fortran order is transposed on reading.

use super::convert::{self, Kind};
use super::source::Source;
use super::{Limits, excerpt, write_file};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Bytes, Tensor, count};
use std::io::Read;
use std::path::Path;

const FORMAT: &str = "npy";
const MAGIC: &[u8; 6] = b"\x93NUMPY";
const MAX_HEADER: usize = 1 << 16;
const MAX_AXES: usize = 64;

fn bad(problem: impl Into<String>) -> Error {
    Error::File { path: None, format: FORMAT, problem: problem.into() }
}

/// Reads one array from a file.
pub fn read_npy(path: impl AsRef<Path>) -> Result<Tensor> {
    let path = path.as_ref();
    let (file, len) = super::open(path)?;
    read(std::io::BufReader::new(file), len, &Limits::default()).map_err(|e| e.in_file(path))
}

/// One array that stays in its mapped file, however large it is: pages are read as they are needed. An array that is not
/// stored as tensors are (another type, byte order or order of axes) is read into memory as [`read_npy`] does.
pub fn map_npy(path: impl AsRef<Path>) -> Result<Tensor> {
    let path = path.as_ref();
    let source = Source::open(path)?;
    match lies(source.bytes()) {
        Some(Lies { dtype, shape, window }) => source.tensor(dtype, &shape, window).map_err(|e| e.in_file(path)),
        // Whatever is wrong with the file, the reader says.
        None => read_npy(path),
    }
}

/// Where an array lies in a file's content, and what it is.
struct Lies {
    dtype: DType,
    shape: Vec<usize>,
    window: std::ops::Range<usize>,
}

/// Where the array of this content lies; `None` where it is not stored as tensors are, or the content is no array.
fn lies(bytes: &[u8]) -> Option<Lies> {
    let begin = if *bytes.get(6)? > 1 { 12 } else { 10 };
    let length = bytes.get(8..begin).filter(|_| bytes.starts_with(MAGIC))?;
    let length = length.iter().rev().fold(0usize, |n, b| n << 8 | usize::from(*b));
    let text = bytes.get(begin..begin.checked_add(length).filter(|_| length <= MAX_HEADER)?)?;
    let Header { kind, swap, fortran, shape } = parse(std::str::from_utf8(text).ok()?).ok()?;
    let window = begin + length..bytes.len();
    let Kind::Ours(dtype) = kind else { return None };
    let rearranged = swap || (fortran && shape.len() > 1);
    let fits = count(&shape).and_then(|n| kind.bytes_for(n)) == Some(window.len());
    (fits && !rearranged).then_some(Lies { dtype, shape, window })
}

/// An array in a mapped file, read some rows at a time (a row: all that belongs to one index of the first axis), so that it may
/// be larger than memory.
pub struct NpyRows {
    source: Source,
    kind: Kind,
    swap: bool,
    shape: Vec<usize>,
    start: usize,
    row_bytes: usize,
}

impl std::fmt::Debug for NpyRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NpyRows({}{:?})", self.kind, self.shape)
    }
}

impl NpyRows {
    /// Opens a file. One that is stored with the first axis fastest is refused: its rows are spread over all of it.
    pub fn open(path: impl AsRef<Path>) -> Result<NpyRows> {
        let path = path.as_ref();
        NpyRows::of(Source::open(path)?).map_err(|e| e.in_file(path))
    }

    fn of(source: Source) -> Result<NpyRows> {
        let bytes = source.bytes();
        if bytes.len() < 12 || !bytes.starts_with(MAGIC) {
            return Err(bad("not an npy file: the magic number \\x93NUMPY is missing"));
        }
        let begin = if bytes[6] > 1 { 12 } else { 10 };
        let length = bytes[8..begin].iter().rev().fold(0usize, |n, b| n << 8 | usize::from(*b));
        let end = begin.checked_add(length).filter(|end| length <= MAX_HEADER && *end <= bytes.len());
        let end =
            end.ok_or_else(|| bad(format!("truncated: a header of {length} bytes in a file of {}", bytes.len())))?;
        let text = std::str::from_utf8(&bytes[begin..end]);
        let text = text.map_err(|e| bad(format!("the header is not text at byte {}", e.valid_up_to())))?;
        let Header { kind, swap, fortran, shape } = parse(text).map_err(|p| bad(format!("header: {p}")))?;
        if shape.is_empty() {
            return Err(bad("a single number; expected rows"));
        }
        if fortran && shape.len() > 1 {
            return Err(bad(
                "stored with the first axis fastest (fortran_order), so that rows are spread over the whole file",
            ));
        }
        let size =
            count(&shape).and_then(|n| kind.bytes_for(n)).ok_or_else(|| bad(format!("{kind}{shape:?} overflows")))?;
        let remain = bytes.len() - end;
        if size != remain {
            return Err(bad(format!("{kind}{shape:?} takes {size} bytes, but {remain} follow the header")));
        }
        let row_bytes = size.checked_div(shape[0]).unwrap_or(0);
        Ok(NpyRows { source, kind, swap, shape, start: end, row_bytes })
    }

    /// The array's shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The type that rows are read as.
    pub fn dtype(&self) -> DType {
        match self.kind {
            Kind::Ours(dtype) => dtype,
            other => other.nearest().unwrap_or(DType::F32),
        }
    }

    /// Bytes of a row in the file.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Reads rows from this one on, as many as the tensor has, and lets go of the file's pages.
    pub fn read(&self, first: usize, into: &mut Tensor) -> Result<()> {
        let rows = into.shape().first().copied().unwrap_or(0);
        let fits = into.dtype() == self.dtype() && into.shape().get(1..) == Some(&self.shape[1..]);
        if !fits || first.checked_add(rows).is_none_or(|end| end > self.shape[0]) {
            return Err(Error::Tensor {
                expected: format!("rows of {}{:?} within {}", self.dtype(), &self.shape[1..], self.shape[0]),
                got: format!("{into} from row {first} on"),
            });
        }
        let window = self.start + first * self.row_bytes..self.start + (first + rows) * self.row_bytes;
        let bytes = &self.source.bytes()[window.clone()];
        match (self.kind, self.swap) {
            (Kind::Ours(DType::Bool), _) if bytes.iter().any(|b| *b > 1) => {
                return Err(bad(format!("a truth value that is neither 0 nor 1, in rows {first} to {}", first + rows)));
            }
            (Kind::Ours(_), false) => into.bytes_mut().copy_from_slice(bytes),
            (kind, swap) => {
                let mut own = bytes.to_vec();
                if swap {
                    own.chunks_exact_mut(kind.bits() / 8).for_each(<[u8]>::reverse);
                }
                match kind {
                    Kind::Ours(_) => into.bytes_mut().copy_from_slice(&own),
                    _ => *into = convert::tensor(kind, self.dtype(), into.shape(), &own)?,
                }
            }
        }
        self.source.release(window);
        Ok(())
    }
}

/// Everything that comes before the elements in a file of such an array, for files that are written piece by piece.
pub fn npy_header(dtype: DType, shape: &[usize]) -> Result<Vec<u8>> {
    header_of(dtype, shape)
}

/// Reads one array from a file's content.
pub fn from_bytes(bytes: &[u8]) -> Result<Tensor> {
    read(bytes, bytes.len() as u64, &Limits::default())
}

/// Writes one array, whole or not at all.
pub fn write_npy(path: impl AsRef<Path>, tensor: &Tensor) -> Result<()> {
    let path = path.as_ref();
    let header = header(tensor).map_err(|e| e.in_file(path))?;
    write_file(path, |out| out.write_all(&header).and_then(|()| out.write_all(tensor.bytes())))
}

/// The bytes that a file of this array would have.
pub fn to_bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let mut bytes = header(tensor)?;
    bytes.extend_from_slice(tensor.bytes());
    Ok(bytes)
}

/// Everything before the elements, padded so that they start on a cache line.
pub(super) fn header(tensor: &Tensor) -> Result<Vec<u8>> {
    header_of(tensor.dtype(), tensor.shape())
}

fn header_of(dtype: DType, shape: &[usize]) -> Result<Vec<u8>> {
    let descr = match dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::I8 => "|i1",
        DType::U8 => "|u1",
        DType::I32 => "<i4",
        DType::Bool => "|b1",
        DType::Bf16 => return Err(bad("NumPy has no bf16; cast to f32 (exact) before writing, or write safetensors")),
    };
    let sizes: Vec<String> = shape.iter().map(|d| format!("{d},")).collect();
    if sizes.len() > MAX_AXES {
        return Err(bad(format!("{} axes; expected {MAX_AXES} at most", sizes.len())));
    }
    let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", sizes.join(" "));
    let mut bytes = [&MAGIC[..], &[1, 0, 0, 0], dict.as_bytes()].concat();
    bytes.resize((bytes.len() + 1).next_multiple_of(64) - 1, b' ');
    bytes.push(b'\n');
    // 64 sizes of 20 digits stay far below what two bytes count.
    let length = (bytes.len() - 10) as u16;
    bytes[8..10].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// Reads one array from a file, if `accept` allows its shape; it is called before anything is allocated for the
/// elements.
pub fn read_npy_if(path: impl AsRef<Path>, accept: impl FnMut(&[usize]) -> Result<(), String>) -> Result<Tensor> {
    let path = path.as_ref();
    let (file, len) = super::open(path)?;
    read_if(std::io::BufReader::new(file), len, &Limits::default(), accept).map_err(|e| e.in_file(path))
}

/// Reads one array from `len` bytes of a stream; bytes beyond the array are an error.
pub fn read(from: impl Read, len: u64, limits: &Limits) -> Result<Tensor> {
    read_if(from, len, limits, |_| Ok(()))
}

/// The same, if `accept` allows its shape.
pub(super) fn read_if(
    mut from: impl Read,
    len: u64,
    limits: &Limits,
    mut accept: impl FnMut(&[usize]) -> Result<(), String>,
) -> Result<Tensor> {
    let mut at = 0u64;
    let mut take = |from: &mut dyn Read, into: &mut [u8], what: &str| {
        let end = at + into.len() as u64;
        if end > len {
            return Err(bad(format!(
                "truncated: {what} at offset {at} takes {} bytes, {} remain",
                into.len(),
                len - at
            )));
        }
        from.read_exact(into).map_err(|e| bad(format!("could not read {what} at offset {at}: {e}")))?;
        at = end;
        Ok(())
    };
    let mut start = [0; 8];
    take(&mut from, &mut start, "the magic number and version")?;
    if &start[..6] != MAGIC {
        return Err(bad("not an npy file: the magic number \\x93NUMPY is missing"));
    }
    let (major, minor) = (start[6], start[7]);
    let length = match major {
        1 => {
            let mut length = [0; 2];
            take(&mut from, &mut length, "the header length")?;
            usize::from(u16::from_le_bytes(length))
        }
        2 | 3 => {
            let mut length = [0; 4];
            take(&mut from, &mut length, "the header length")?;
            usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX)
        }
        _ => return Err(bad(format!("version {major}.{minor}; expected 1.0, 2.0 or 3.0"))),
    };
    if length > MAX_HEADER {
        return Err(bad(format!("a header of {length} bytes; expected {MAX_HEADER} at most")));
    }
    if length as u64 > len {
        return Err(bad(format!("truncated: a header of {length} bytes in a file of {len}")));
    }
    let mut text = vec![0; length];
    take(&mut from, &mut text, "the header")?;
    let text =
        std::str::from_utf8(&text).map_err(|e| bad(format!("the header is not text at byte {}", e.valid_up_to())))?;
    let Header { kind, swap, fortran, shape } = parse(text).map_err(|p| bad(format!("header: {p}")))?;

    // What was taken so far is within `len`, or there would have been an error.
    let remain = len - (if major == 1 { 10 } else { 12 }) - length as u64;
    let size =
        count(&shape).and_then(|n| kind.bytes_for(n)).ok_or_else(|| bad(format!("{kind}{shape:?} overflows")))?;
    if size as u64 != remain {
        return Err(bad(format!("{kind}{shape:?} takes {size} bytes, but {remain} follow the header")));
    }
    if remain > limits.total_bytes {
        return Err(bad(format!("{remain} bytes of data; the limit is {}", limits.total_bytes)));
    }
    accept(&shape).map_err(bad)?;
    let what = format!("an array {kind}{shape:?}");
    let mut data = Bytes::try_zeroed(size, &what)?;
    take(&mut from, &mut data, "the data")?;

    let width = kind.bits() / 8;
    if swap {
        data.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
    if fortran && shape.len() > 1 {
        data = to_row_major(&data, &shape, width, &what)?;
    }
    match kind {
        Kind::Ours(dtype) => Tensor::from_buffer(dtype, &shape, data),
        _ => convert::tensor(kind, kind.nearest().unwrap_or(DType::F32), &shape, &data),
    }
    .map_err(|e| bad(e.to_string()))
}

/// Elements stored with the first axis fastest, brought into row-major order.
fn to_row_major(data: &[u8], shape: &[usize], width: usize, what: &str) -> Result<Bytes> {
    let mut out = Bytes::try_zeroed(data.len(), what)?;
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = width;
    for &size in shape {
        strides.push(stride);
        stride = stride.saturating_mul(size.max(1));
    }
    let mut index = vec![0usize; shape.len()];
    let mut from = 0;
    for element in out.chunks_exact_mut(width) {
        element.copy_from_slice(&data[from..from + width]);
        // The next index in row-major order, and its offset in the file.
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            from += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            from -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    Ok(out)
}

#[derive(Debug)]
struct Header {
    kind: Kind,
    /// Stored with the most significant byte first.
    swap: bool,
    fortran: bool,
    shape: Vec<usize>,
}

/// Reads the header's dictionary: strings, truth values and one tuple of integers, and nothing else of Python.
fn parse(text: &str) -> Result<Header, String> {
    let mut p = Parser { text, at: 0 };
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    p.expect('{')?;
    while !p.accept('}') {
        let key = p.string()?;
        p.expect(':')?;
        let again = match key {
            "descr" => {
                if p.peek() == Some('[') {
                    return Err("structured types (a list in `descr`) are not supported; save one array a field".into());
                }
                descr.replace(p.string()?).is_some()
            }
            "fortran_order" => fortran.replace(p.truth()?).is_some(),
            "shape" => shape.replace(p.tuple()?).is_some(),
            other => return Err(format!("unknown key {}; expected descr, fortran_order and shape", excerpt(other))),
        };
        if again {
            return Err(format!("`{key}` is given twice"));
        }
        if !p.accept(',') {
            p.expect('}')?;
            break;
        }
    }
    if let Some(c) = p.peek() {
        return Err(format!("{c:?} after the dictionary, at character {}; expected blanks", p.at));
    }
    let missing = |key: &str| format!("`{key}` is missing");
    let (kind, swap) = element_type(descr.ok_or_else(|| missing("descr"))?)?;
    let fortran = fortran.ok_or_else(|| missing("fortran_order"))?;
    Ok(Header { kind, swap, fortran, shape: shape.ok_or_else(|| missing("shape"))? })
}

/// A type such as `<f4`, and whether its bytes must be swapped.
fn element_type(descr: &str) -> Result<(Kind, bool), String> {
    let shown = excerpt(descr);
    let (big, code) = match descr.chars().next() {
        Some('<' | '|') => (false, &descr[1..]),
        Some('>') => (true, &descr[1..]),
        // Native order is that of the machine that wrote the file, which is assumed to be like this one.
        Some('=') => (cfg!(target_endian = "big"), &descr[1..]),
        _ => (false, descr),
    };
    let kind = match code {
        "f4" => Kind::Ours(DType::F32),
        "f2" => Kind::Ours(DType::F16),
        "i1" => Kind::Ours(DType::I8),
        "u1" => Kind::Ours(DType::U8),
        "i4" => Kind::Ours(DType::I32),
        "b1" | "?" => Kind::Ours(DType::Bool),
        "f8" => Kind::F64,
        "i8" => Kind::I64,
        "u8" => Kind::U64,
        "i2" => Kind::I16,
        "u2" => Kind::U16,
        "u4" => Kind::U32,
        "V2" => return Err(format!("type {shown} is raw bytes, perhaps bfloat16; save it as float32")),
        _ if code.starts_with('O') => return Err(format!("type {shown} is pickled Python objects, which are refused")),
        _ => return Err(format!("type {shown} is not supported; expected f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 or b1")),
    };
    Ok((kind, big))
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}
impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
    fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }
    fn peek(&mut self) -> Option<char> {
        self.blanks();
        self.rest().chars().next()
    }
    fn accept(&mut self, want: char) -> bool {
        let found = self.peek() == Some(want);
        if found {
            self.at += want.len_utf8();
        }
        found
    }
    fn expect(&mut self, want: char) -> Result<(), String> {
        if self.accept(want) {
            return Ok(());
        }
        let found = self.peek().map_or("the end".to_owned(), |c| format!("{c:?}"));
        Err(format!("{found} at character {}; expected {want:?}", self.at))
    }
    fn string(&mut self) -> Result<&'a str, String> {
        let quote = match self.peek() {
            Some(q @ ('\'' | '"')) => q,
            _ => return Err(format!("no string at character {}", self.at)),
        };
        let rest = &self.rest()[1..];
        let end = rest.find(quote).ok_or_else(|| format!("the string at character {} does not end", self.at))?;
        self.at += end + 2;
        Ok(&rest[..end])
    }
    fn truth(&mut self) -> Result<bool, String> {
        self.blanks();
        for (word, value) in [("True", true), ("False", false)] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(format!("`fortran_order` at character {} is neither True nor False", self.at))
    }
    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        self.expect('(')?;
        let mut sizes = vec![];
        while !self.accept(')') {
            self.blanks();
            let rest = self.rest();
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let size = rest[..digits]
                .parse::<usize>()
                .map_err(|_| format!("{} in `shape` at character {} is no size", excerpt(rest), self.at))?;
            if sizes.len() == MAX_AXES {
                return Err(format!("`shape` has more than {MAX_AXES} axes"));
            }
            sizes.push(size);
            self.at += digits;
            // Python 2 wrote long integers with an L.
            if self.rest().starts_with('L') {
                self.at += 1;
            }
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_python_writes_them() {
        for text in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n",
            "{\"shape\":(3L,4L),\"descr\":\"<f4\",\"fortran_order\":False}",
        ] {
            let h = parse(text).unwrap();
            assert_eq!((h.kind, h.swap, h.fortran, h.shape), (Kind::Ours(DType::F32), false, false, vec![3, 4]));
        }
        let h = parse("{'descr': '>i8', 'fortran_order': True, 'shape': ()}").unwrap();
        assert_eq!((h.kind, h.swap, h.fortran, h.shape), (Kind::I64, true, true, vec![]));
    }

    #[test]
    fn fortran_order_becomes_ours() {
        // Columns of [[0, 1, 2], [3, 4, 5]], one after the other.
        assert_eq!(&to_row_major(&[0, 3, 1, 4, 2, 5], &[2, 3], 1, "numbers").unwrap()[..], [0, 1, 2, 3, 4, 5]);
        assert!(to_row_major(&[], &[0, 3], 4, "nothing").unwrap().is_empty());
    }

    #[test]
    fn rows_of_a_file_are_read_a_few_at_a_time() {
        let path = std::env::temp_dir().join(format!("schwann-rows-{}.npy", std::process::id()));
        let values: Vec<f32> = (0..30).map(|i| i as f32).collect();
        write_npy(&path, &Tensor::new(&[10, 3], &values).unwrap()).unwrap();
        let rows = NpyRows::open(&path).unwrap();
        assert_eq!((rows.shape(), rows.dtype(), rows.row_bytes()), (&[10, 3][..], DType::F32, 12));
        let mut some = Tensor::zeros(DType::F32, &[4, 3]).unwrap();
        rows.read(5, &mut some).unwrap();
        assert_eq!(some.values::<f32>().unwrap(), &values[15..27]);
        for (first, shape) in [(7, vec![4, 3]), (usize::MAX, vec![1, 3]), (0, vec![1, 4]), (0, vec![])] {
            assert!(rows.read(first, &mut Tensor::zeros(DType::F32, &shape).unwrap()).is_err(), "{first} {shape:?}");
        }
        assert!(rows.read(0, &mut Tensor::zeros(DType::I32, &[1, 3]).unwrap()).is_err());
        // Wider numbers, in the other order of bytes, become the nearest type.
        let mut text = b"{'descr': '>f8', 'fortran_order': False, 'shape': (2, 1), }".to_vec();
        let mut file = [&MAGIC[..], &[1, 0, text.len() as u8, 0]].concat();
        file.append(&mut text);
        [1.5f64, -2.0].iter().for_each(|v| file.extend(v.to_be_bytes()));
        std::fs::write(&path, &file).unwrap();
        let wide = NpyRows::open(&path).unwrap();
        let mut one = Tensor::zeros(DType::F32, &[1, 1]).unwrap();
        wide.read(1, &mut one).unwrap();
        assert_eq!(one.values::<f32>().unwrap(), [-2.0]);
        for (cut, word) in [(5, "magic"), (30, "truncated"), (file.len() - 1, "follow the header")] {
            std::fs::write(&path, &file[..cut]).unwrap();
            let said = NpyRows::open(&path).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
