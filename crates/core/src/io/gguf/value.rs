//! GGUF's metadata: values of thirteen types, and lists of them.

use super::super::excerpt;

/// Lists within lists beyond this depth are refused; no known file has any.
const MAX_DEPTH: usize = 4;
/// The format's own limit on a key.
const MAX_KEY: usize = 65_535;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    List(List),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A list, whose values all have one type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the types")]
pub enum List {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Text(Vec<String>),
    List(Vec<List>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// What it is, for messages.
    pub(super) fn shown(&self) -> String {
        match self {
            Value::U8(n) => format!("the u8 {n}"),
            Value::I8(n) => format!("the i8 {n}"),
            Value::U16(n) => format!("the u16 {n}"),
            Value::I16(n) => format!("the i16 {n}"),
            Value::U32(n) => format!("the u32 {n}"),
            Value::I32(n) => format!("the i32 {n}"),
            Value::F32(x) => format!("the f32 {x}"),
            Value::Bool(b) => format!("{b}"),
            Value::Text(text) => format!("the text {}", excerpt(text)),
            Value::List(list) => format!("a list of {}", list.kind()),
            Value::U64(n) => format!("the u64 {n}"),
            Value::I64(n) => format!("the i64 {n}"),
            Value::F64(x) => format!("the f64 {x}"),
        }
    }

    /// Any whole number that is not negative.
    pub fn whole(&self) -> Option<u64> {
        match *self {
            Value::U8(n) => Some(n.into()),
            Value::U16(n) => Some(n.into()),
            Value::U32(n) => Some(n.into()),
            Value::U64(n) => Some(n),
            Value::I8(n) => n.try_into().ok(),
            Value::I16(n) => n.try_into().ok(),
            Value::I32(n) => n.try_into().ok(),
            Value::I64(n) => n.try_into().ok(),
            _ => None,
        }
    }

    /// A float.
    pub fn float(&self) -> Option<f64> {
        match *self {
            Value::F32(x) => Some(x.into()),
            Value::F64(x) => Some(x),
            _ => None,
        }
    }

    /// A truth value.
    pub fn truth(&self) -> Option<bool> {
        if let Value::Bool(b) = self { Some(*b) } else { None }
    }

    /// Text.
    pub fn text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// A list.
    pub fn list(&self) -> Option<&List> {
        if let Value::List(list) = self { Some(list) } else { None }
    }

    /// A list of text.
    pub fn texts(&self) -> Option<&[String]> {
        if let Value::List(List::Text(texts)) = self { Some(texts) } else { None }
    }
}

impl List {
    fn kind(&self) -> &'static str {
        match self {
            List::U8(_) => "u8",
            List::I8(_) => "i8",
            List::U16(_) => "u16",
            List::I16(_) => "i16",
            List::U32(_) => "u32",
            List::I32(_) => "i32",
            List::F32(_) => "f32",
            List::Bool(_) => "bool",
            List::Text(_) => "text",
            List::List(_) => "lists",
            List::U64(_) => "u64",
            List::I64(_) => "i64",
            List::F64(_) => "f64",
        }
    }
}

/// A place in the file's header. Each count is compared with the bytes that remain before anything is allocated for it.
pub(super) struct Cursor<'a> {
    pub(super) file: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8], String> {
        let rest = &self.file[self.at..];
        let Some(taken) = rest.get(..len) else {
            let (at, remain) = (self.at, rest.len());
            return Err(format!("truncated: {what} at offset {at} takes {len} bytes, {remain} remain"));
        };
        self.at += len;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }
    pub(super) fn u32(&mut self, what: &str) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }
    pub(super) fn u64(&mut self, what: &str) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of things that take at least `least` bytes each, which must be there.
    pub(super) fn count(&mut self, least: usize, what: &str) -> Result<usize, String> {
        let (at, claimed) = (self.at, self.u64(what)?);
        let most = (self.file.len() - self.at) / least;
        usize::try_from(claimed).ok().filter(|&n| n <= most).ok_or_else(|| {
            format!("truncated: {what} at offset {at} is {claimed}, but the bytes that follow hold {most} at most")
        })
    }

    pub(super) fn text(&mut self, what: &str) -> Result<String, String> {
        let len = self.count(1, &format!("the length of {what}"))?;
        let at = self.at;
        // A copy before the check, since a mapped file can change.
        String::from_utf8(self.take(len, what)?.to_vec())
            .map_err(|e| format!("{what} is not UTF-8 at offset {}", at + e.utf8_error().valid_up_to()))
    }

    pub(super) fn key(&mut self) -> Result<String, String> {
        let key = self.text("the key")?;
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(format!("the key {} has {} bytes; expected 1 to {MAX_KEY}", excerpt(&key), key.len()));
        }
        Ok(key)
    }

    fn truth(&mut self) -> Result<bool, String> {
        match self.array("a truth value")? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(format!("the truth value at offset {} is {other}; expected 0 or 1", self.at - 1)),
        }
    }

    /// A value of a type that comes first.
    pub(super) fn value(&mut self) -> Result<Value, String> {
        let kind = self.u32("the type")?;
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array("a u8")?)),
            1 => Value::I8(i8::from_le_bytes(self.array("an i8")?)),
            2 => Value::U16(u16::from_le_bytes(self.array("a u16")?)),
            3 => Value::I16(i16::from_le_bytes(self.array("an i16")?)),
            4 => Value::U32(u32::from_le_bytes(self.array("a u32")?)),
            5 => Value::I32(i32::from_le_bytes(self.array("an i32")?)),
            6 => Value::F32(f32::from_le_bytes(self.array("an f32")?)),
            7 => Value::Bool(self.truth()?),
            8 => Value::Text(self.text("text")?),
            9 => Value::List(self.list(1)?),
            10 => Value::U64(u64::from_le_bytes(self.array("a u64")?)),
            11 => Value::I64(i64::from_le_bytes(self.array("an i64")?)),
            12 => Value::F64(f64::from_le_bytes(self.array("an f64")?)),
            _ => return Err(self.unknown(kind)),
        })
    }

    fn unknown(&self, kind: u32) -> String {
        format!("the type at offset {} is {kind}; expected 0 to 12", self.at - 4)
    }

    fn numbers<T, const N: usize>(&mut self, read: fn([u8; N]) -> T) -> Result<Vec<T>, String> {
        let len = self.count(N, "the length of a list")?;
        let bytes = self.take(len * N, "a list")?;
        Ok(bytes.as_chunks().0.iter().map(|element| read(*element)).collect())
    }

    fn list(&mut self, depth: usize) -> Result<List, String> {
        let kind = self.u32("the type of a list")?;
        Ok(match kind {
            0 => List::U8(self.numbers(u8::from_le_bytes)?),
            1 => List::I8(self.numbers(i8::from_le_bytes)?),
            2 => List::U16(self.numbers(u16::from_le_bytes)?),
            3 => List::I16(self.numbers(i16::from_le_bytes)?),
            4 => List::U32(self.numbers(u32::from_le_bytes)?),
            5 => List::I32(self.numbers(i32::from_le_bytes)?),
            6 => List::F32(self.numbers(f32::from_le_bytes)?),
            7 => {
                let len = self.count(1, "the length of a list")?;
                List::Bool((0..len).map(|_| self.truth()).collect::<Result<_, _>>()?)
            }
            8 => {
                // Text takes at least the eight bytes of its length.
                let len = self.count(8, "the length of a list")?;
                let mut texts = Vec::with_capacity(len);
                for _ in 0..len {
                    texts.push(self.text("text of a list")?);
                }
                List::Text(texts)
            }
            9 if depth == MAX_DEPTH => {
                return Err(format!("lists within lists at offset {}, {MAX_DEPTH} deep and more", self.at - 4));
            }
            9 => {
                // A list takes at least its type and length. It is not reserved for: lists in lists could each claim
                // all that remains.
                let len = self.count(12, "the length of a list")?;
                let mut lists = vec![];
                for _ in 0..len {
                    lists.push(self.list(depth + 1)?);
                }
                List::List(lists)
            }
            10 => List::U64(self.numbers(u64::from_le_bytes)?),
            11 => List::I64(self.numbers(i64::from_le_bytes)?),
            12 => List::F64(self.numbers(f64::from_le_bytes)?),
            _ => return Err(self.unknown(kind)),
        })
    }
}
