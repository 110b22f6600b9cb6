//! Malformed files and what the messages about them must say; shared by the test of messages and the test of memory.

mod gguf;

use schwann_core::Result;
use schwann_core::io::gguf::Gguf;
use std::io::Write;

/// What reads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Safetensors,
    Npy,
    Npz,
    Gguf,
}

/// Opens a file and reads each of its tensors.
pub(crate) fn read_gguf(bytes: &[u8]) -> Result<()> {
    let file = Gguf::from_bytes(bytes)?;
    file.entries().iter().try_for_each(|entry| file.tensor(&entry.name).map(drop))
}

/// A malformed file.
pub(crate) struct Case {
    pub(crate) format: Format,
    pub(crate) bytes: Vec<u8>,
    /// What the message must contain.
    pub(crate) says: &'static str,
}

fn st(header: impl AsRef<[u8]>, data: usize, says: &'static str) -> Case {
    let header = header.as_ref();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &vec![2; data]].concat();
    Case { format: Format::Safetensors, bytes, says }
}

/// One tensor `a` with these fields, over eight bytes of data.
fn one(fields: &str, says: &'static str) -> Case {
    st(format!(r#"{{"a":{{{fields}}}}}"#), 8, says)
}

pub(crate) fn npy_bytes(version: u8, header: impl AsRef<[u8]>, data: &[u8]) -> Vec<u8> {
    let header = header.as_ref();
    let length = if version == 1 {
        (header.len() as u16).to_le_bytes().to_vec()
    } else {
        (header.len() as u32).to_le_bytes().to_vec()
    };
    [b"\x93NUMPY", &[version, 0][..], &length, header, data].concat()
}

fn npy(header: &str, data: usize, says: &'static str) -> Case {
    Case { format: Format::Npy, bytes: npy_bytes(1, header, &vec![2; data]), says }
}

/// An archive of one entry, each of whose fields can be wrong.
#[derive(Clone)]
pub(crate) struct Zip {
    pub(crate) name: Vec<u8>,
    pub(crate) method: u16,
    pub(crate) flags: u16,
    pub(crate) crc: Option<u32>,
    pub(crate) size: Option<u32>,
    pub(crate) packed: Option<u32>,
    pub(crate) offset: u32,
    pub(crate) entries: u16,
    pub(crate) copies: u16,
    pub(crate) data: Vec<u8>,
    /// What `data` unpacks to.
    pub(crate) content: Vec<u8>,
}
impl Zip {
    pub(crate) fn stored(content: Vec<u8>) -> Zip {
        Zip {
            name: b"a.npy".into(),
            method: 0,
            flags: 0,
            crc: None,
            size: None,
            packed: None,
            offset: 0,
            entries: 1,
            copies: 1,
            data: content.clone(),
            content,
        }
    }
    pub(crate) fn deflated(content: Vec<u8>) -> Zip {
        let mut encoder = flate2::write::DeflateEncoder::new(vec![], flate2::Compression::best());
        encoder.write_all(&content).unwrap();
        Zip { method: 8, data: encoder.finish().unwrap(), ..Zip::stored(content) }
    }
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut crc = flate2::Crc::new();
        crc.update(&self.content);
        let mut common = vec![20, 0];
        common.extend(self.flags.to_le_bytes());
        common.extend(self.method.to_le_bytes());
        common.extend([0; 4]);
        common.extend(self.crc.unwrap_or(crc.sum()).to_le_bytes());
        common.extend(self.packed.unwrap_or(self.data.len() as u32).to_le_bytes());
        common.extend(self.size.unwrap_or(self.content.len() as u32).to_le_bytes());
        common.extend((self.name.len() as u16).to_le_bytes());
        common.extend([0; 2]);
        let mut file = [b"PK\x03\x04", &common[..], &self.name, &self.data].concat();
        let directory = file.len() as u32;
        for _ in 0..self.copies {
            file.extend(
                [b"PK\x01\x02\x14\x00", &common[..], &[0; 10], &self.offset.to_le_bytes(), &self.name].concat(),
            );
        }
        let size = file.len() as u32 - directory;
        file.extend(b"PK\x05\x06\0\0\0\0");
        file.extend(self.entries.to_le_bytes());
        file.extend(self.entries.to_le_bytes());
        file.extend(size.to_le_bytes());
        file.extend(directory.to_le_bytes());
        file.extend([0; 2]);
        file
    }
}

fn npz(zip: &Zip, says: &'static str) -> Case {
    Case { format: Format::Npz, bytes: zip.bytes(), says }
}

const GOOD: &str = r#""dtype":"F32","shape":[2],"data_offsets":[0,8]"#;

/// Every malformed file of the table.
pub(crate) fn cases() -> Vec<Case> {
    let raw = |format, bytes: &[u8], says| Case { format, bytes: bytes.to_vec(), says };
    let long = "n".repeat(513);
    let deep = "[".repeat(100_000);
    let mut cases = vec![
        raw(Format::Safetensors, b"", "truncated: 0 bytes, expected 8"),
        raw(Format::Safetensors, b"\x02\0\0\0", "truncated: 4 bytes, expected 8"),
        raw(Format::Safetensors, &[0xff; 16], "header length at offset 0 is 18446744073709551615"),
        raw(Format::Safetensors, b"\x01\xe1\xf5\x05\0\0\0\0{}", "100000001; the format allows 100000000"),
        raw(Format::Safetensors, b"\x40\0\0\0\0\0\0\0{}", "a header of 64 bytes is announced, 2 follow"),
        raw(Format::Safetensors, b"\0\0\0\0\0\0\0\0", "must begin with `{`"),
        st(" {}", 0, "must begin with `{`"),
        st("[]", 0, "must begin with `{`"),
        st("{", 0, "EOF while parsing"),
        st("{}x", 0, "trailing characters at line 1 column 3"),
        st(b"{\"\xff\":1}", 0, "not UTF-8 at offset 10"),
        st("{}", 3, "3 bytes follow the last tensor"),
        st(r#"{"a":1}"#, 0, "invalid type: integer `1`, expected tensor `a`: an object"),
        st(format!(r#"{{"a":{deep}"#), 0, "expected tensor `a`"),
        st(format!(r#"{{"a":{{"x":{deep}"#), 0, "tensor `a`: unknown field `x`"),
        st(format!(r#"{{"__metadata__":{{"x":{deep}"#), 0, "expected a string for metadata `x`"),
        st(r#"{"__metadata__":{"x":1}}"#, 0, "expected a string for metadata `x`"),
        st(r#"{"__metadata__":{"x":null}}"#, 0, "expected a string for metadata `x`"),
        st(r#"{"__metadata__":[]}"#, 0, "expected metadata: an object of strings"),
        st(r#"{"__metadata__":{"x":"1","x":"2"}}"#, 0, "metadata `x` is given twice"),
        st(r#"{"__metadata__":{},"__metadata__":{}}"#, 0, "`__metadata__` is given twice"),
        st(format!(r#"{{"a":{{{GOOD}}},"a":{{{GOOD}}}}}"#), 8, "tensor `a` is given twice"),
        st(format!(r#"{{"a":{{{GOOD}}},"\u0061":{{{GOOD}}}}}"#), 8, "tensor `a` is given twice"),
        st(format!(r#"{{"":{{{GOOD}}}}}"#), 8, "empty name"),
        st(format!(r#"{{"a\u0000b":{{{GOOD}}}}}"#), 8, "control character at 1"),
        st(format!(r#"{{"a\nb":{{{GOOD}}}}}"#), 8, "control character at 1"),
        st(format!(r#"{{"{long}":{{{GOOD}}}}}"#), 8, "has 513 bytes; expected 1 to 512"),
        one(r#""dtype":"F32","shape":[2]"#, "tensor `a`: `data_offsets` is missing"),
        one(r#""dtype":"F32","data_offsets":[0,8]"#, "tensor `a`: `shape` is missing"),
        one(r#""shape":[2],"data_offsets":[0,8]"#, "tensor `a`: `dtype` is missing"),
        one(r#""dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]"#, "tensor `a`: `dtype` is given twice"),
        one(r#""dtype":"F33","shape":[2],"data_offsets":[0,8]"#, "tensor `a`: unknown dtype `F33`"),
        one(r#""dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1"#, "unknown field `x`"),
        one(r#""dtype":"F32","shape":[-2],"data_offsets":[0,8]"#, "invalid value: integer `-2`"),
        one(r#""dtype":"F32","shape":[2.0],"data_offsets":[0,8]"#, "invalid type: floating point `2.0`"),
        one(r#""dtype":"F32","shape":[3],"data_offsets":[0,8]"#, "F32[3] takes 12 bytes, but data_offsets 0..8 have 8"),
        one(r#""dtype":"F32","shape":[2],"data_offsets":[8,0]"#, "end at 0, before they begin at 8"),
        one(r#""dtype":"F32","shape":[2],"data_offsets":[0]"#, "1 data_offsets; expected begin and end"),
        one(r#""dtype":"F32","shape":[2],"data_offsets":[0,8,9]"#, "a list of more than 2 sizes"),
        one(r#""dtype":"F32","shape":[2],"data_offsets":[8,16]"#, "tensor `a` ends at 16, but there are 8 bytes"),
        one(r#""dtype":"F32","shape":[1],"data_offsets":[4,8]"#, "4 unused bytes before tensor `a` at 4"),
        one(r#""dtype":"F32","shape":[1],"data_offsets":[0,4]"#, "4 bytes follow the last tensor"),
        one(r#""dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]"#, "overflows"),
        one(r#""dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]"#, "overflows"),
        one(r#""dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]"#, "invalid type: floating point"),
        one(r#""dtype":"F4","shape":[3],"data_offsets":[0,1]"#, "ends within a byte"),
        one(
            &format!(r#""dtype":"F32","shape":[{}1],"data_offsets":[0,8]"#, "1,".repeat(64)),
            "a list of more than 64 sizes",
        ),
        st(
            r#"{"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[6],"data_offsets":[2,8]}}"#,
            8,
            "tensor `b` starts at 2, inside another that ends at 6",
        ),
        st(
            r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[6,8]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
            8,
            "2 unused bytes before tensor `a` at 6",
        ),
        one(
            r#""dtype":"BOOL","shape":[8],"data_offsets":[0,8]"#,
            "tensor `a`: tensor: expected truth values of 0 or 1",
        ),
        one(
            r#""dtype":"F64","shape":[1],"data_offsets":[0,8]"#,
            "tensor `a` is F64, which tensors here cannot be; read it",
        ),
        one(
            r#""dtype":"U16","shape":[4],"data_offsets":[0,8]"#,
            "tensor `a` is U16, which tensors here cannot be; read it",
        ),
        one(
            r#""dtype":"C64","shape":[1],"data_offsets":[0,8]"#,
            "tensor `a` is C64, which tensors here cannot be; convert",
        ),
    ];

    cases.extend([
        raw(Format::Npy, b"", "truncated: the magic number and version at offset 0 takes 8 bytes, 0 remain"),
        raw(Format::Npy, b"\x93NUMPX\x01\0\0\0", "magic number \\x93NUMPY is missing"),
        raw(Format::Npy, b"\x93NUMPY\x04\0\0\0", "version 4.0; expected 1.0, 2.0 or 3.0"),
        raw(Format::Npy, b"\x93NUMPY\x01\0", "truncated: the header length"),
        raw(Format::Npy, b"\x93NUMPY\x01\0\xff\xff", "a header of 65535 bytes in a file of 10"),
        raw(Format::Npy, b"\x93NUMPY\x02\0\xff\xff\xff\xff", "a header of 4294967295 bytes; expected 65536 at most"),
        Case { format: Format::Npy, bytes: npy_bytes(1, b"\xff\xff", &[]), says: "not text at byte 0" },
        npy("", 0, "the end at character 0; expected '{'"),
        npy("{'descr'", 0, "the end at character 8; expected ':'"),
        npy("{'descr: '<f4'", 0, "expected ':'"),
        npy("{descr: '<f4'", 0, "no string at character 1"),
        npy("{'descr': '<f4", 0, "does not end"),
        npy("{'descr': '<f4', 'fortran_order': False}", 0, "`shape` is missing"),
        npy("{'shape': (1,), 'fortran_order': False}", 0, "`descr` is missing"),
        npy("{'shape': (1,), 'descr': '<f4'}", 0, "`fortran_order` is missing"),
        npy("{'shape': (1,), 'shape': (1,)}", 0, "`shape` is given twice"),
        npy("{'shape': (1,), 'x': 1}", 0, "unknown key `x`"),
        npy("{'fortran_order': 0}", 0, "neither True nor False"),
        npy("{'shape': 1}", 0, "'1' at character 10; expected '('"),
        npy("{'shape': (-1,)}", 0, "is no size"),
        npy("{'shape': (1 2)}", 0, "expected ')'"),
        npy("{'shape': (99999999999999999999,)}", 0, "is no size"),
        npy(&format!("{{'shape': ({})}}", "1,".repeat(65)), 0, "more than 64 axes"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}; import os", 8, "';' after the dictionary"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", 8, "f32[3] takes 12 bytes, but 8 follow"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", 8, "f32[1] takes 4 bytes, but 8 follow"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", 8, "overflows"),
        npy(
            "{'descr': '<f8', 'fortran_order': False, 'shape': (144115188075855872,)}",
            8,
            "takes 1152921504606846976 bytes, but 8 follow",
        ),
        npy("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", 8, "type `<c8` is not supported"),
        npy("{'descr': '<V2', 'fortran_order': False, 'shape': (1,)}", 2, "perhaps bfloat16; save it as float32"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", 8, "pickled Python objects"),
        npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 8, "structured types"),
        npy("{'descr': '', 'fortran_order': False, 'shape': (1,)}", 8, "type `` is not supported"),
        npy("{'descr': '<é', 'fortran_order': False, 'shape': (1,)}", 8, "type `<é` is not supported"),
        npy("{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", 2, "truth values of 0 or 1"),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", 8, "values that i32 can hold"),
    ]);

    let content = npy_bytes(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1000,), }", &[0; 4000]);
    let (zip, packed) = (Zip::stored(content.clone()), Zip::deflated(content.clone()));
    let bomb = npy_bytes(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (4000000000,), }", &[]);
    let declared = bomb.len() as u32 + 4_000_000_000;
    let short = Zip { content: content[..2000].to_vec(), ..Zip::deflated(content[..2000].to_vec()) };
    cases.extend([
        raw(Format::Npz, b"", "not a zip archive"),
        raw(Format::Npz, &[0; 100], "not a zip archive"),
        raw(Format::Npz, &zip.bytes()[1..], "expected 0x02014b50"),
        npz(
            &Zip { size: Some(300 << 20), data: vec![0; 400_000], ..Zip::deflated(vec![0; 8]) },
            "400000 bytes that unpack to 314572800, which numbers hardly do; save it without compression",
        ),
        npz(&Zip { entries: 2, ..zip.clone() }, "begins with 0x06054b50; expected 0x02014b50"),
        npz(&Zip { entries: 65535, ..zip.clone() }, "64-bit directory's locator begins with"),
        npz(&Zip { entries: 2, copies: 2, ..zip.clone() }, "shares its bytes with another"),
        npz(&Zip { offset: 1, ..zip.clone() }, "an entry's own header begins with"),
        npz(&Zip { offset: 1 << 30, ..zip.clone() }, "beyond the file's"),
        npz(&Zip { offset: u32::MAX, ..zip.clone() }, "beyond the file's"),
        npz(&Zip { packed: Some(1 << 30), ..zip.clone() }, "truncated: an entry's data needs 1073741824 bytes"),
        npz(&Zip { size: Some(5000), ..zip.clone() }, "bytes but declares 5000"),
        npz(&Zip { crc: Some(1), ..zip.clone() }, "checksum"),
        npz(&Zip { flags: 1, ..zip.clone() }, "is encrypted"),
        npz(&Zip { method: 12, ..zip.clone() }, "compression method 12; expected stored or deflated"),
        npz(&Zip { name: b"a.txt".into(), ..zip.clone() }, "does not end in .npy"),
        npz(&Zip { name: b".npy".into(), ..zip.clone() }, "empty name"),
        npz(&Zip { name: b"\xff.npy".into(), ..zip.clone() }, "name is not UTF-8"),
        npz(&Zip { name: b"a\0.npy".into(), ..zip.clone() }, "control character"),
        npz(&Zip { crc: Some(1), ..packed.clone() }, "checksum"),
        npz(&Zip { size: Some(3000), ..packed.clone() }, "takes 4000 bytes, but"),
        npz(&Zip { size: Some(content.len() as u32), ..short }, "could not read the data"),
        npz(&Zip { data: vec![0xff; 40], ..packed.clone() }, "could not read"),
        npz(&Zip { size: Some(declared), ..Zip::deflated(bomb.clone()) }, "more than"),
        npz(&Zip { size: Some(u32::MAX - 1), ..Zip::deflated(bomb) }, "declares 4294967294 bytes, more than"),
        npz(&Zip::stored(b"not an array".to_vec()), "entry `a.npy`: not an npy file"),
    ]);
    let twice = Zip { entries: 2, copies: 2, ..packed }.bytes();
    cases.push(Case { format: Format::Npz, bytes: twice, says: "array `a` is given twice" });
    cases.extend(gguf::cases());
    cases
}
