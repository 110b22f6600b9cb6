//! NumPy's `.npz`: a zip archive of `.npy` files, stored or deflated.
//!
//! The archive is read by a few lines here over `flate2`'s inflate. The crate `zip` (9.2) was tried: of two entries
//! with one name it silently gives one, it reads names that are not UTF-8 as CP 437, and the bounds below would still
//! have to be checked here.
//!
//! Bounds: an entry's declared size must be possible for its compressed bytes (deflate cannot do better than 1 to
//! 1032), a large entry may not be packed better than real numbers ever are, entries may not share bytes (so one
//! compressed block cannot be unpacked a thousand times), and the sum of declared sizes must be within the [`Limits`];
//! no entry is read beyond what it declared.

use super::{Limits, excerpt, npy, write_file};
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use flate2::{Crc, bufread::DeflateDecoder};
use schwann_kernels::map_file::map_file;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

const FORMAT: &str = "npz";
const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const LOCATOR64: u32 = 0x0706_4b50;
/// The best compression that deflate reaches: 258 bytes in two bits.
const BEST_RATIO: u64 = 1032;
/// Arrays up to this many bytes may be compressed to any degree that deflate reaches; zeros pack well.
const FREE_BYTES: u64 = 256 << 20;
/// Larger arrays that are compressed better than this are refused: they were made to use up memory, not to hold
/// numbers.
const USUAL_RATIO: u64 = 128;

fn bad(problem: impl Into<String>) -> Error {
    Error::File { path: None, format: FORMAT, problem: problem.into() }
}

/// Reads every array of an archive.
pub fn read_npz(path: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
    read_npz_within(path, &Limits::default())
}

/// Reads every array of an archive, within the given limits.
pub fn read_npz_within(path: impl AsRef<Path>, limits: &Limits) -> Result<BTreeMap<String, Tensor>> {
    read_npz_if(path, limits, |_, _| Ok(()))
}

/// Reads every array of an archive, if `accept` allows the name and shape of each. It is called before an array is
/// unpacked, since four megabytes may unpack to four gigabytes.
pub fn read_npz_if(
    path: impl AsRef<Path>,
    limits: &Limits,
    accept: impl FnMut(&str, &[usize]) -> Result<(), String>,
) -> Result<BTreeMap<String, Tensor>> {
    let path = path.as_ref();
    let (file, len) = super::open(path)?;
    if len == 0 {
        return read_if(&[], limits, accept).map_err(|e| e.in_file(path));
    }
    let map = map_file(&file).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    read_if(&map, limits, accept).map_err(|e| e.in_file(path))
}

/// Little-endian fields of a record, one after the other.
struct Fields<'a> {
    rest: &'a [u8],
    what: &'static str,
}
impl<'a> Fields<'a> {
    fn at(file: &'a [u8], offset: u64, what: &'static str) -> Result<Fields<'a>> {
        let rest = usize::try_from(offset).ok().and_then(|o| file.get(o..));
        let rest = rest.ok_or_else(|| bad(format!("{what} at offset {offset}, beyond the file's {}", file.len())))?;
        Ok(Fields { rest, what })
    }
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or_else(|| bad(format!("truncated: {} needs {n} bytes more, {} remain", self.what, self.rest.len())))?;
        self.rest = rest;
        Ok(head)
    }
    fn u16(&mut self) -> Result<u16> {
        let b = self.take(2)?;
        Ok(u16::from_le_bytes([b[0], b[1]]))
    }
    fn u32(&mut self) -> Result<u32> {
        let b = self.take(4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from(self.u32()?) | u64::from(self.u32()?) << 32)
    }
    fn signature(&mut self, want: u32) -> Result<()> {
        let found = self.u32()?;
        if found == want {
            return Ok(());
        }
        Err(bad(format!("{} begins with {found:#010x}; expected {want:#010x}", self.what)))
    }
}

/// Where the central directory lies.
struct Directory {
    offset: u64,
    entries: u64,
}

fn directory(file: &[u8]) -> Result<Directory> {
    let end = (0..=file.len().saturating_sub(22).min(usize::from(u16::MAX)))
        .map(|back| file.len().saturating_sub(22 + back))
        .find(|&at| {
            let tail = &file[at..];
            // The record's comment must reach exactly to the end; otherwise these bytes only look like a signature.
            tail.len() >= 22
                && tail[..4] == END.to_le_bytes()
                && usize::from(u16::from_le_bytes([tail[20], tail[21]])) == tail.len() - 22
        })
        .ok_or_else(|| bad("not a zip archive: no end-of-directory record in the last 64 KiB"))?;
    let mut f = Fields::at(file, end as u64, "the end-of-directory record")?;
    f.signature(END)?;
    let (disk, start_disk) = (f.u16()?, f.u16()?);
    let (here, all) = (f.u16()?, f.u16()?);
    let (_size, offset) = (f.u32()?, f.u32()?);
    if all == u16::MAX || offset == u32::MAX {
        let mut f = Fields::at(
            file,
            (end as u64).checked_sub(20).ok_or_else(|| bad("truncated: no room for the 64-bit directory's locator"))?,
            "the 64-bit directory's locator",
        )?;
        f.signature(LOCATOR64)?;
        let _disk = f.u32()?;
        let mut f = Fields::at(file, f.u64()?, "the 64-bit end-of-directory record")?;
        f.signature(END64)?;
        f.take(8 + 2 + 2 + 4 + 4 + 8)?;
        let entries = f.u64()?;
        f.u64()?;
        return Ok(Directory { offset: f.u64()?, entries });
    }
    if disk != 0 || start_disk != 0 || here != all {
        return Err(bad("an archive in several parts; expected one file"));
    }
    Ok(Directory { offset: offset.into(), entries: all.into() })
}

/// One file in the archive.
struct Member<'a> {
    name: &'a str,
    method: u16,
    crc: u32,
    size: u64,
    data: &'a [u8],
}

/// Reads one entry of the central directory and finds its data.
fn member<'a>(file: &'a [u8], f: &mut Fields<'a>) -> Result<Member<'a>> {
    f.signature(CENTRAL)?;
    f.take(4)?;
    let (flags, method) = (f.u16()?, f.u16()?);
    f.take(4)?;
    let crc = f.u32()?;
    let (packed, size) = (f.u32()?, f.u32()?);
    let (name_len, extra_len, comment_len) = (f.u16()?, f.u16()?, f.u16()?);
    f.take(2 + 2 + 4)?;
    let offset = f.u32()?;
    let name = f.take(name_len.into())?;
    let extra = f.take(extra_len.into())?;
    f.take(comment_len.into())?;
    let name = std::str::from_utf8(name).map_err(|_| bad("an entry's name is not UTF-8"))?;
    let shown = excerpt(name);
    if flags & 0x2041 != 0 {
        return Err(bad(format!("entry {shown} is encrypted")));
    }

    let (mut packed, mut size, mut offset) = (u64::from(packed), u64::from(size), u64::from(offset));
    let mut extra = Fields { rest: extra, what: "an entry's extra fields" };
    while extra.rest.len() >= 4 {
        let (id, len) = (extra.u16()?, extra.u16()?);
        let mut field = Fields { rest: extra.take(len.into())?, what: "an entry's 64-bit sizes" };
        if id == 1 {
            for value in [&mut size, &mut packed, &mut offset] {
                if *value == u64::from(u32::MAX) {
                    *value = field.u64()?;
                }
            }
        }
    }

    let mut local = Fields::at(file, offset, "an entry's own header")?;
    local.signature(LOCAL)?;
    local.take(22)?;
    let (name_len, extra_len) = (local.u16()?, local.u16()?);
    local.take(usize::from(name_len) + usize::from(extra_len))?;
    local.what = "an entry's data";
    let data = local.take(usize::try_from(packed).unwrap_or(usize::MAX))?;
    Ok(Member { name, method, crc, size, data })
}

/// Computes the checksum and the length of what is read through it.
struct Summed<R> {
    from: R,
    crc: Crc,
}
impl<R: Read> Read for Summed<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let n = self.from.read(into)?;
        self.crc.update(&into[..n]);
        Ok(n)
    }
}

fn unpack(member: &Member<'_>, limits: &Limits, accept: impl FnMut(&[usize]) -> Result<(), String>) -> Result<Tensor> {
    let shown = excerpt(member.name);
    let fail = |problem: String| bad(format!("entry {shown}: {problem}"));
    let possible = member.size <= (member.data.len() as u64).saturating_mul(BEST_RATIO);
    let from: Box<dyn Read + '_> = match member.method {
        0 if member.size == member.data.len() as u64 => Box::new(member.data),
        0 => return Err(fail(format!("stored in {} bytes but declares {}", member.data.len(), member.size))),
        8 if possible && member.size > FREE_BYTES && member.size / USUAL_RATIO > member.data.len() as u64 => {
            let packed = member.data.len();
            let problem = format!("{packed} bytes that unpack to {}, which numbers hardly do", member.size);
            return Err(fail(format!("{problem}; save it without compression (`numpy.savez`)")));
        }
        8 if possible => Box::new(DeflateDecoder::new(member.data)),
        8 => {
            return Err(fail(format!("declares {} bytes, more than {} can unpack to", member.size, member.data.len())));
        }
        other => return Err(fail(format!("compression method {other}; expected stored or deflated"))),
    };
    let mut summed = Summed { from, crc: Crc::new() };
    let tensor = npy::read_if(&mut summed, member.size, limits, accept).map_err(|e| match e {
        Error::File { problem, .. } => fail(problem),
        other => other,
    })?;
    match summed.from.read(&mut [0]) {
        Ok(0) => {}
        Ok(_) => return Err(fail(format!("unpacks to more than the {} bytes it declares", member.size))),
        Err(e) => return Err(fail(format!("damaged after its {} bytes: {e}", member.size))),
    }
    if summed.crc.sum() != member.crc {
        return Err(fail(format!("checksum {:#010x}; expected {:#010x}", summed.crc.sum(), member.crc)));
    }
    Ok(tensor)
}

/// Reads every array of an archive's content.
pub fn from_bytes(file: &[u8], limits: &Limits) -> Result<BTreeMap<String, Tensor>> {
    read_if(file, limits, |_, _| Ok(()))
}

fn read_if(
    file: &[u8],
    limits: &Limits,
    mut accept: impl FnMut(&str, &[usize]) -> Result<(), String>,
) -> Result<BTreeMap<String, Tensor>> {
    let directory = directory(file)?;
    if directory.entries > limits.arrays as u64 {
        return Err(bad(format!("{} entries; the limit is {}", directory.entries, limits.arrays)));
    }
    let mut f = Fields::at(file, directory.offset, "the directory")?;
    let (mut packed, mut total) = (0u64, 0u64);
    let mut tensors = BTreeMap::new();
    for _ in 0..directory.entries {
        let member = member(file, &mut f)?;
        let shown = excerpt(member.name);
        packed = packed.saturating_add(member.data.len() as u64);
        if packed > file.len() as u64 {
            return Err(bad(format!("entry {shown} shares its bytes with another")));
        }
        total = total.saturating_add(member.size);
        if total > limits.total_bytes {
            return Err(bad(format!(
                "entry {shown} brings the size to {total} bytes; the limit is {}",
                limits.total_bytes
            )));
        }
        let name = member.name.strip_suffix(".npy");
        let name = name.ok_or_else(|| bad(format!("entry {shown} is no array: its name does not end in .npy")))?;
        super::check_name(name).map_err(bad)?;
        if tensors.contains_key(name) {
            return Err(bad(format!("array {} is given twice", excerpt(name))));
        }
        let tensor = unpack(&member, limits, |shape| accept(name, shape))?;
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(tensors)
}

/// Writes arrays into an archive without compression, as `numpy.savez` does, whole or not at all.
pub fn write_npz<'a>(path: impl AsRef<Path>, tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<()> {
    let path = path.as_ref();
    let (parts, end) = layout(tensors).map_err(|e| e.in_file(path))?;
    write_file(path, |out| {
        for (header, tensor) in &parts {
            out.write_all(header)?;
            out.write_all(tensor.bytes())?;
        }
        out.write_all(&end)
    })
}

/// The same as the bytes that a file would have.
pub fn to_bytes<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<Vec<u8>> {
    let (parts, end) = layout(tensors)?;
    let mut bytes = vec![];
    for (header, tensor) in &parts {
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(tensor.bytes());
    }
    bytes.extend_from_slice(&end);
    Ok(bytes)
}

/// The bytes before each array's elements, and those after the last array.
type Layout<'a> = (Vec<(Vec<u8>, &'a Tensor)>, Vec<u8>);

fn layout<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<Layout<'a>> {
    let tensors: BTreeMap<&str, &Tensor> = tensors.into_iter().collect();
    let narrow = |n: u64, what: &str| {
        let narrow = u32::try_from(n).ok().filter(|&n| n < u32::MAX);
        narrow.ok_or_else(|| bad(format!("{what} of 4 GiB; write safetensors, which has no such limit")))
    };
    let mut parts = vec![];
    let mut directory = vec![];
    let mut offset = 0u64;
    for (name, tensor) in tensors {
        super::check_name(name).map_err(bad)?;
        let header = npy::header(tensor).map_err(|e| bad(format!("array {}: {e}", excerpt(name))))?;
        let mut crc = Crc::new();
        crc.update(&header);
        crc.update(tensor.bytes());
        let size = narrow(header.len() as u64 + tensor.bytes().len() as u64, "an array")?;
        let at = narrow(offset, "an archive")?;
        let file = format!("{name}.npy");
        // Version 2.0, names in UTF-8, stored, 1980-01-01: the same arrays give the same bytes.
        let mut common = vec![20, 0, 0, 8, 0, 0, 0, 0, 0x21, 0];
        for n in [crc.sum(), size, size] {
            common.extend_from_slice(&n.to_le_bytes());
        }
        common.extend_from_slice(&(file.len() as u16).to_le_bytes());
        common.extend_from_slice(&[0, 0]);
        let local = [&LOCAL.to_le_bytes()[..], &common, file.as_bytes(), &header].concat();
        offset += local.len() as u64 + tensor.bytes().len() as u64;
        parts.push((local, tensor));
        directory.extend_from_slice(&CENTRAL.to_le_bytes());
        directory.extend_from_slice(&[20, 0]);
        directory.extend_from_slice(&common);
        directory.extend_from_slice(&[0; 10]);
        directory.extend_from_slice(&at.to_le_bytes());
        directory.extend_from_slice(file.as_bytes());
    }
    let count = u16::try_from(parts.len()).ok().filter(|&n| n < u16::MAX);
    let count = count.ok_or_else(|| bad("65,535 arrays; write safetensors, which has no such limit"))?.to_le_bytes();
    let (at, size) = (narrow(offset, "an archive")?, narrow(directory.len() as u64, "a directory")?);
    let mut end = directory;
    end.extend_from_slice(&END.to_le_bytes());
    end.extend_from_slice(&[0, 0, 0, 0, count[0], count[1], count[0], count[1]]);
    end.extend_from_slice(&size.to_le_bytes());
    end.extend_from_slice(&at.to_le_bytes());
    end.extend_from_slice(&[0, 0]);
    Ok((parts, end))
}
