//! Text and symbols: what turns one into the other.

#[cfg(feature = "tokenizers")]
use super::tokens::{self, Tokens};
use crate::{Error, Result};
use std::io::Read;
use std::path::Path;

/// How text becomes symbols, and symbols text.
#[derive(Debug)]
pub struct Text {
    kind: Kind,
    stops: Vec<i32>,
}

#[derive(Debug)]
enum Kind {
    /// A symbol is a byte; symbols from 256 on stand for no text.
    Bytes,
    /// A tokenizer of its own says what symbols stand for.
    #[cfg(feature = "tokenizers")]
    Tokens(Box<Tokens>),
}

impl Text {
    /// A symbol for each byte.
    pub fn bytes() -> Text {
        Text { kind: Kind::Bytes, stops: vec![] }
    }

    /// What a decoder of so many symbols can read without being told: bytes, if it has few enough.
    pub fn of_vocabulary(vocabulary: usize) -> Option<Text> {
        // A few more symbols than bytes are marks, such as those of a beginning and an end.
        (256..=MOST_OF_BYTES).contains(&vocabulary).then(Text::bytes)
    }

    /// A tokenizer of Hugging Face's form (`tokenizer.json`), with the [`stops`] of its folder.
    #[cfg(feature = "tokenizers")]
    pub fn open(path: impl AsRef<Path>) -> Result<Text> {
        let path = path.as_ref();
        let tokens = Tokens::open(path)?;
        let stops = path.parent().map_or(Ok(vec![]), stops)?;
        Ok(Text { kind: Kind::Tokens(Box::new(tokens)), stops })
    }

    /// The tokenizer of a GGUF file, with its stops; `None` if it has none.
    #[cfg(feature = "tokenizers")]
    pub fn of_gguf(file: &schwann_core::io::gguf::Gguf) -> Result<Option<Text>> {
        let Some((tokens, stops)) = tokens::gguf::read(file)? else { return Ok(None) };
        Ok(Some(Text { kind: Kind::Tokens(Box::new(tokens)), stops }))
    }

    /// Refuses symbols that a decoder of so many does not have.
    pub fn fits(&self, vocabulary: usize) -> Result<()> {
        let count = match &self.kind {
            Kind::Bytes => 256,
            #[cfg(feature = "tokenizers")]
            Kind::Tokens(tokens) => tokens.count(),
        };
        if count > vocabulary {
            let expected = format!("{vocabulary} at most, as many as the decoder has");
            return Err(Error::argument("symbols of the tokenizer", count, expected));
        }
        Ok(())
    }

    /// The symbols of a text, with those that the tokenizer puts before or after one.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>> {
        match &self.kind {
            Kind::Bytes => Ok(text.bytes().map(i32::from).collect()),
            #[cfg(feature = "tokenizers")]
            Kind::Tokens(tokens) => tokens.encode(text),
        }
    }

    /// Whether nothing follows this symbol.
    pub fn is_stop(&self, token: i32) -> bool {
        self.stops.contains(&token)
    }

    /// With these symbols, after which nothing follows, beside its own.
    pub fn stopping_at(mut self, stops: &[i32]) -> Text {
        self.stops.extend_from_slice(stops);
        self
    }

    /// A reader of symbols, one after the other, that follow `before`: what a symbol is in text can depend on those.
    #[cfg_attr(not(feature = "tokenizers"), expect(unused_variables, reason = "bytes depend on none before them"))]
    pub fn reader(&self, before: &[i32]) -> Result<Reader<'_>> {
        Ok(Reader(match &self.kind {
            Kind::Bytes => State::Bytes(vec![], std::marker::PhantomData),
            #[cfg(feature = "tokenizers")]
            Kind::Tokens(tokens) => State::Tokens(tokens::Reader::new(tokens, before)?),
        }))
    }
}

/// The most symbols of a decoder of bytes.
const MOST_OF_BYTES: usize = 512;
/// The most bytes of a configuration.
const MOST_OF_CONFIG: u64 = 1 << 24;

/// The symbols that end a text, as a folder of Hugging Face's form says in `generation_config.json` or `config.json`.
pub fn stops(folder: impl AsRef<Path>) -> Result<Vec<i32>> {
    for name in ["generation_config.json", "config.json"] {
        let path = folder.as_ref().join(name);
        if !path.is_file() {
            continue;
        }
        let found = read_file(&path, MOST_OF_CONFIG).and_then(|bytes| ends(&bytes)).map_err(|e| e.in_file(&path))?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(vec![])
}

/// `eos_token_id` of a configuration: a number, or several.
fn ends(config: &[u8]) -> Result<Vec<i32>> {
    let config: serde_json::Value = serde_json::from_slice(config).map_err(Error::file)?;
    let one = |value: &serde_json::Value| {
        let id = value.as_i64().and_then(|id| i32::try_from(id).ok()).filter(|id| *id >= 0);
        id.ok_or_else(|| Error::argument("eos_token_id", value, "a symbol's number, or a list of them"))
    };
    match &config["eos_token_id"] {
        serde_json::Value::Null => Ok(vec![]),
        serde_json::Value::Array(list) => list.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

/// A file of at most so many bytes.
pub(super) fn read_file(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![];
    let read = std::fs::File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    read.map_err(Error::file)?;
    if bytes.len() as u64 > most {
        return Err(Error::file(format!("more than {most} bytes; expected fewer of such a file")));
    }
    Ok(bytes)
}

/// Turns symbols into text as they come.
#[derive(Debug)]
pub struct Reader<'a>(State<'a>);

#[derive(Debug)]
enum State<'a> {
    /// The beginning of a character whose other bytes are still to come.
    Bytes(Vec<u8>, std::marker::PhantomData<&'a ()>),
    #[cfg(feature = "tokenizers")]
    Tokens(tokens::Reader<'a>),
}

impl Reader<'_> {
    /// The text that is complete with this symbol; bytes that are no text become U+FFFD.
    pub fn push(&mut self, token: i32) -> Result<String> {
        let id = u32::try_from(token).map_err(|_| Error::argument("token", token, "0 or more"))?;
        match &mut self.0 {
            State::Bytes(bytes, _) => match u8::try_from(id) {
                Ok(byte) => {
                    bytes.push(byte);
                    Ok(complete(bytes))
                }
                Err(_) => self.end(),
            },
            #[cfg(feature = "tokenizers")]
            State::Tokens(reader) => reader.push(id),
        }
    }

    /// What is left when no symbol follows.
    pub fn end(&mut self) -> Result<String> {
        match &mut self.0 {
            State::Bytes(bytes, _) => {
                let rest = String::from_utf8_lossy(bytes).into_owned();
                bytes.clear();
                Ok(rest)
            }
            #[cfg(feature = "tokenizers")]
            State::Tokens(reader) => reader.end(),
        }
    }
}

/// Takes whole characters, and what can become none.
fn complete(bytes: &mut Vec<u8>) -> String {
    let mut out = String::new();
    loop {
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                bytes.clear();
                return out;
            }
            Err(problem) => {
                let good = problem.valid_up_to();
                out.push_str(&String::from_utf8_lossy(&bytes[..good]));
                let Some(bad) = problem.error_len() else {
                    bytes.drain(..good);
                    return out;
                };
                out.push('\u{fffd}');
                bytes.drain(..good + bad);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_come_when_they_are_complete_and_what_is_no_text_is_marked() {
        let text = Text::bytes();
        let said = "añ→🦀!";
        let tokens = text.encode(said).unwrap();
        assert_eq!(tokens.len(), said.len());
        let mut reader = text.reader(&[]).unwrap();
        let pieces: Vec<String> = tokens.iter().map(|t| reader.push(*t).unwrap()).collect();
        assert_eq!(pieces.concat(), said);
        assert_eq!(pieces[1..3], ["", "ñ"]);
        // A byte that begins nothing, a beginning that is not continued, and one at the end.
        let pieces: String = [0xff, 0x61, 0xc3, 0x62, 0xe2].map(|t| reader.push(t).unwrap()).concat();
        assert_eq!(pieces + &reader.end().unwrap(), "\u{fffd}a\u{fffd}b\u{fffd}");
        assert_eq!(reader.push(300).unwrap(), "");
        assert!(reader.push(-1).is_err());
    }

    #[test]
    fn few_symbols_are_bytes() {
        assert!(Text::of_vocabulary(256).is_some() && Text::of_vocabulary(260).is_some());
        assert!(Text::of_vocabulary(255).is_none() && Text::of_vocabulary(32_000).is_none());
        let text = Text::bytes().stopping_at(&[10]);
        assert!(text.is_stop(10) && !text.is_stop(11));
    }
}
