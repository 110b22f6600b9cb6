//! Text and symbols: what turns one into the other.

use crate::{Error, Result};

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

    /// The symbols of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>> {
        match &self.kind {
            Kind::Bytes => Ok(text.bytes().map(i32::from).collect()),
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

    /// A reader of symbols, one after the other.
    pub fn reader(&self) -> Reader<'_> {
        Reader { text: self, bytes: vec![] }
    }
}

/// The most symbols of a decoder of bytes.
const MOST_OF_BYTES: usize = 512;

/// Turns symbols into text as they come.
#[derive(Debug)]
pub struct Reader<'a> {
    text: &'a Text,
    /// The beginning of a character whose other bytes are still to come.
    bytes: Vec<u8>,
}

impl Reader<'_> {
    /// The text that is complete with this symbol; bytes that are no text become U+FFFD.
    pub fn push(&mut self, token: i32) -> Result<String> {
        match &self.text.kind {
            Kind::Bytes => match u8::try_from(token) {
                Ok(byte) => self.bytes.push(byte),
                Err(_) if token < 0 => return Err(Error::argument("token", token, "0 or more")),
                Err(_) => return Ok(self.end()),
            },
        }
        Ok(self.complete())
    }

    /// What is left when no symbol follows.
    pub fn end(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.bytes).into_owned();
        self.bytes.clear();
        rest
    }

    /// Takes whole characters, and what can become none.
    fn complete(&mut self) -> String {
        let mut out = String::new();
        loop {
            match std::str::from_utf8(&self.bytes) {
                Ok(text) => {
                    out.push_str(text);
                    self.bytes.clear();
                    return out;
                }
                Err(problem) => {
                    let good = problem.valid_up_to();
                    out.push_str(&String::from_utf8_lossy(&self.bytes[..good]));
                    let Some(bad) = problem.error_len() else {
                        self.bytes.drain(..good);
                        return out;
                    };
                    out.push('\u{fffd}');
                    self.bytes.drain(..good + bad);
                }
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
        let mut reader = text.reader();
        let pieces: Vec<String> = tokens.iter().map(|t| reader.push(*t).unwrap()).collect();
        assert_eq!(pieces.concat(), said);
        assert_eq!(pieces[1..3], ["", "ñ"]);
        // A byte that begins nothing, a beginning that is not continued, and one at the end.
        let pieces: String = [0xff, 0x61, 0xc3, 0x62, 0xe2].map(|t| reader.push(t).unwrap()).concat();
        assert_eq!(pieces + &reader.end(), "\u{fffd}a\u{fffd}b\u{fffd}");
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
