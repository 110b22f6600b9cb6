//! Tokenizers: symbols that stand for pieces of text.

pub(super) mod gguf;

use super::text::read_file;
use crate::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::Tokenizer;

/// The most bytes of a tokenizer's file: several times the largest that are published.
const MOST_OF_FILE: u64 = 64 << 20;
/// What stands for bytes that are no text, or none yet.
const NO_TEXT: char = '\u{fffd}';
/// The most bytes of a character.
const MOST_OF_CHARACTER: usize = 4;
/// After so many symbols that make no character, they are given up.
const MOST_PENDING: usize = 64;

#[derive(Debug)]
pub(super) struct Tokens {
    tokenizer: Tokenizer,
    /// What every text begins with, where the tokenizer itself does not say so.
    begin: Option<u32>,
    /// One more than the largest symbol.
    count: usize,
}

impl Tokens {
    pub(super) fn open(path: &Path) -> Result<Tokens> {
        let read = || {
            let bytes = read_file(path, MOST_OF_FILE)?;
            let mut tokenizer = guarded(|| Tokenizer::from_bytes(&bytes)).map_err(|e| {
                Error::file(format!("not a tokenizer that can be read: {e}; expected a tokenizer.json"))
            })?;
            // A prompt is neither cut nor filled up, whatever was done when the decoder was trained.
            tokenizer.with_padding(None);
            tokenizer.with_truncation(None).map_err(Error::file)?;
            Tokens::new(tokenizer, None)
        };
        read().map_err(|e| e.in_file(path))
    }

    fn new(tokenizer: Tokenizer, begin: Option<u32>) -> Result<Tokens> {
        let last = tokenizer.get_vocab(true).into_values().max();
        let Some(last) = last.filter(|last| i32::try_from(*last).is_ok()) else {
            let got = last.map_or("without symbols".to_owned(), |last| format!("with the symbol {last}"));
            return Err(Error::file(format!("a tokenizer {got}; expected symbols from 0 to {}", i32::MAX)));
        };
        Ok(Tokens { tokenizer, begin, count: last as usize + 1 })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<i32>> {
        let encoding = guarded(|| self.tokenizer.encode_fast(text, true))
            .map_err(|e| Error::file(format!("the tokenizer cannot encode this text: {e}")))?;
        // None is above `count`, which fits.
        Ok(self.begin.iter().chain(encoding.get_ids()).map(|id| *id as i32).collect())
    }

    /// The text of symbols; those that mark a beginning, an end or a turn have none.
    fn decode(&self, ids: &[u32]) -> Result<String> {
        guarded(|| self.tokenizer.decode(ids, true))
            .map_err(|e| Error::file(format!("the tokenizer cannot decode its symbols: {e}")))
    }
}

/// The package checks few of the combinations that a file can have, and panics at some; here they are refusals.
fn guarded<T>(what: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(what)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("its parts contradict each other".into()),
    }
}

/// Turns symbols into text as they come. What a symbol stands for can depend on its neighbours: several make one
/// character, and a space is left out at the beginning. So the symbol is decoded together with those before it, and what
/// their text has become longer by is new.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    tokens: &'a Tokens,
    /// The symbols whose text is complete and which are decoded for those after them; then those that make no character yet.
    window: Vec<u32>,
    /// How many of `window` are complete.
    complete: usize,
    /// What of the text of `window` has been given.
    told: String,
}

impl<'a> Reader<'a> {
    pub(super) fn new(tokens: &'a Tokens, before: &[i32]) -> Result<Reader<'a>> {
        let window: Vec<u32> = before.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
        Ok(Reader { tokens, complete: window.len(), told: tokens.decode(&window)?, window })
    }

    pub(super) fn push(&mut self, id: u32) -> Result<String> {
        self.window.push(id);
        let text = self.tokens.decode(&self.window)?;
        let pending = self.window.len() - self.complete;
        if text.ends_with(NO_TEXT) {
            return Ok(self.unfinished(&text, pending));
        }
        let piece = text[self.common(&text)..].to_owned();
        if !piece.is_empty() {
            self.window.drain(..self.complete);
            self.complete = self.window.len();
            self.told = self.tokens.decode(&self.window)?;
        } else if pending == 1 && !self.told.is_empty() {
            // A symbol without text.
            self.window.pop();
        } else {
            // Nothing but such so far; one of them may stand for a space that is left out at the beginning.
            self.window.drain(..self.window.len().saturating_sub(MOST_PENDING));
            self.complete = self.window.len();
        }
        Ok(piece)
    }

    /// Text that ends within a character, or with what is none. What comes before its end is final, except that some
    /// tokenizers decode bytes that follow each other only together: all of them are no text until a character ends.
    fn unfinished(&mut self, text: &str, pending: usize) -> String {
        if pending > MOST_PENDING {
            let rest = text[self.common(text)..].to_owned();
            self.clear();
            return rest;
        }
        let can_become_text = pending < MOST_OF_CHARACTER;
        let stable = match can_become_text {
            true => text.trim_end_matches(NO_TEXT),
            false => &text[..text.len() - NO_TEXT.len_utf8()],
        };
        if can_become_text && !stable.starts_with(&self.told) {
            return String::new();
        }
        let common = self.common(stable);
        if common == stable.len() {
            return String::new();
        }
        self.told = stable.to_owned();
        stable[common..].to_owned()
    }

    pub(super) fn end(&mut self) -> Result<String> {
        let text = self.tokens.decode(&self.window)?;
        let rest = text[self.common(&text)..].to_owned();
        self.clear();
        Ok(rest)
    }

    fn clear(&mut self) {
        self.window.clear();
        self.told.clear();
        self.complete = 0;
    }

    /// How many bytes of a text were given already.
    fn common(&self, text: &str) -> usize {
        let same = text.chars().zip(self.told.chars()).take_while(|(a, b)| a == b);
        same.map(|(a, _)| a.len_utf8()).sum()
    }
}
