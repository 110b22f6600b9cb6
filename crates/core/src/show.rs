//! Makes names and other text from files safe to show.
//!
//! A name is data. Printed unchanged, a name could move the cursor, reverse the text's direction, or begin a new line
//! that looks like the program's own. So every character that controls the output instead of being shown is made
//! visible here: `\u001b`. That is also how JSON writes it, so cleaned JSON still means the same.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Longer names are cut.
const MOST_CHARACTERS: usize = 120;
/// A longer escape sequence is not taken for a style.
const MOST_STYLE_BYTES: usize = 24;

/// Whether a character controls the output or takes no room, instead of being shown: control characters, marks of
/// direction, spaces of no width, line ends, tags, and code points that no text has.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A hidden character made visible, as JSON writes it.
pub fn escaped(c: char) -> String {
    let mut text = String::new();
    for unit in c.encode_utf16(&mut [0; 2]) {
        // Writing to a string does not fail.
        let _ = write!(text, "\\u{unit:04x}");
    }
    text
}

fn clean(text: &str, stays: impl Fn(usize, char) -> bool) -> Cow<'_, str> {
    if text.char_indices().all(|(at, c)| !is_hidden(c) || stays(at, c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for (at, c) in text.char_indices() {
        if is_hidden(c) && !stays(at, c) { out += &escaped(c) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Text of one line: all hidden characters are made visible, line ends too.
pub fn line(text: &str) -> Cow<'_, str> {
    clean(text, |_, _| false)
}

/// Text of several lines, in which names are already cleaned: all hidden characters are made visible except line ends
/// and tabs.
pub fn lines(text: &str) -> Cow<'_, str> {
    clean(text, |at, c| matches!(c, '\n' | '\t') || (c == '\r' && text[at..].starts_with("\r\n")))
}

/// A name: one line, cut where it is very long.
pub fn name(text: &str) -> String {
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((at, _)) => format!("{}…", line(&text[..at])),
        None => line(text).into_owned(),
    }
}

/// A field of a spreadsheet: one line that is no formula. Text that a spreadsheet would calculate gets a `'` before it,
/// which keeps it text; a number stays a number.
pub fn field(text: &str) -> Cow<'_, str> {
    let shown = line(text);
    let start = text.trim_start();
    let formula = start.starts_with(['=', '+', '-', '@', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}'])
        || text.starts_with(['\t', '\r', '\n']);
    match formula && text.parse::<f64>().is_err() {
        true => Cow::Owned(format!("'{shown}")),
        false => shown,
    }
}

/// Text of one line in XML or HTML, between tags or in quotes.
pub fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in line(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

/// A cell of a Markdown table: the text cannot end the row, nor become a tag, code, a link or a picture.
pub fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let text = line(text);
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '<' => out += "&lt;",
            '\\' | '|' | '`' => out.extend(['\\', c]),
            // Only brackets that would begin a link are escaped, so that the sizes of a shape stay readable.
            ']' if matches!(characters.peek(), Some('(' | '[' | ':')) => out += "\\]",
            c => out.push(c),
        }
    }
    out
}

/// A writer of text that makes all hidden characters visible except line ends, tabs and styles (`ESC [ … m`). It stands
/// between the program and a terminal, in case a name was not cleaned before.
#[derive(Debug)]
pub struct Cleaner<W: Write> {
    out: W,
    /// The start of a character or of a style whose end is still to come.
    pending: Vec<u8>,
}

impl<W: Write> Cleaner<W> {
    /// In front of a writer.
    pub fn new(out: W) -> Cleaner<W> {
        Cleaner { out, pending: vec![] }
    }

    /// Writes what is pending, except a possible start of a character or style; at the end, writes everything.
    fn drain(&mut self, end: bool) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.pending);
        let mut shown = String::with_capacity(bytes.len() + 16);
        let mut rest = &bytes[..];
        'parts: while !rest.is_empty() {
            let (text, wrong) = match std::str::from_utf8(rest) {
                Ok(text) => (text, None),
                Err(e) => (std::str::from_utf8(&rest[..e.valid_up_to()]).unwrap_or_default(), Some(e.error_len())),
            };
            let mut at = 0;
            while let Some(c) = text[at..].chars().next() {
                match style(&text.as_bytes()[at..]) {
                    Style::Whole(length) => {
                        shown += &text[at..at + length];
                        at += length;
                        continue;
                    }
                    Style::Begun if !end && wrong.is_none() => {
                        self.pending.extend_from_slice(&rest[at..]);
                        break 'parts;
                    }
                    Style::Begun | Style::None => {}
                }
                // Whether a line's end follows is known only with the next character.
                if c == '\r' && at + 1 == rest.len() && !end {
                    self.pending.push(b'\r');
                    break 'parts;
                }
                let stays = matches!(c, '\n' | '\t') || (c == '\r' && text[at..].starts_with("\r\n"));
                if is_hidden(c) && !stays {
                    shown += &escaped(c)
                } else {
                    shown.push(c)
                }
                at += c.len_utf8();
            }
            rest = &rest[text.len()..];
            match wrong {
                Some(None) if !end => {
                    self.pending.extend_from_slice(rest);
                    break;
                }
                Some(length) => {
                    shown.push('\u{fffd}');
                    rest = &rest[length.unwrap_or(rest.len())..];
                }
                None => {}
            }
        }
        self.out.write_all(shown.as_bytes())
    }
}

enum Style {
    /// A style of this many bytes.
    Whole(usize),
    /// Maybe the start of one.
    Begun,
    None,
}

fn style(bytes: &[u8]) -> Style {
    if bytes.first() != Some(&0x1b) {
        return Style::None;
    }
    if bytes.len() == 1 {
        return Style::Begun;
    }
    if bytes[1] != b'[' {
        return Style::None;
    }
    let inner = bytes[2..].iter().take_while(|b| b.is_ascii_digit() || **b == b';').count();
    match bytes.get(2 + inner) {
        _ if inner > MOST_STYLE_BYTES => Style::None,
        Some(b'm') => Style::Whole(3 + inner),
        Some(_) => Style::None,
        None => Style::Begun,
    }
}

impl<W: Write> Write for Cleaner<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        self.drain(false)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.drain(true)?;
        self.out.flush()
    }
}

impl<W: Write> Drop for Cleaner<W> {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "a\u{1b}]0;x\u{7}b\nc\rd\u{202e}e\u{200b}f\u{9b}31m\u{e0041}g\u{7f}\u{2028}\u{feff}";

    #[test]
    fn everything_hidden_becomes_visible_as_json_writes_it() {
        let shown = line(NASTY);
        assert!(!shown.contains(is_hidden), "{shown}");
        assert!(shown.starts_with("a\\u001b]0;x\\u0007b\\u000ac\\u000dd\\u202ee\\u200bf\\u009b31m\\udb40\\udc41g"));
        // A JSON string still means the same afterwards.
        let raw = "\"a\u{202e}\u{e0041}b\"";
        assert_eq!(serde_json::from_str::<String>(&line(raw)).unwrap(), "a\u{202e}\u{e0041}b");
        assert!(matches!(line("λ → ünïcode 漢字 🧠"), Cow::Borrowed(_)));
        assert_eq!(lines("a\n\tb\r\nc\rd\u{1b}"), "a\n\tb\r\nc\\u000dd\\u001b");
        assert_eq!(name(&"é".repeat(500)).chars().count(), MOST_CHARACTERS + 1);
    }

    #[test]
    fn a_field_is_no_formula_and_a_number_stays_one() {
        for formula in ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "  =1", "\r=1", "-cmd|' /C calc'!A0", "＝1"] {
            assert!(field(formula).starts_with('\''), "{formula:?}");
        }
        for plain in ["-1.5", "+3e-5", "linear", "a=b", "", "-inf"] {
            assert_eq!(field(plain), plain);
        }
    }

    #[test]
    fn the_writer_lets_styles_through_and_nothing_else_wherever_it_is_cut() {
        let text = format!("\u{1b}[1;36mname\u{1b}[0m {NASTY} ü\r\n\u{1b}[2J\u{1b}\u{1b}[0m漢\n");
        let mut whole = vec![];
        Cleaner::new(&mut whole).write_all(text.as_bytes()).unwrap();
        let shown = String::from_utf8(whole.clone()).unwrap();
        assert!(shown.starts_with("\u{1b}[1;36mname\u{1b}[0m a\\u001b]0;"), "{shown:?}");
        assert!(shown.ends_with("ü\r\n\\u001b[2J\\u001b\u{1b}[0m漢\n"), "{shown:?}");
        for size in 1..9 {
            let mut parts = vec![];
            let mut cleaner = Cleaner::new(&mut parts);
            text.as_bytes().chunks(size).for_each(|part| cleaner.write_all(part).unwrap());
            drop(cleaner);
            assert_eq!(parts, whole, "in parts of {size}");
        }
        let mut bytes = vec![];
        Cleaner::new(&mut bytes).write_all(b"a\xff\x1bb\xe2\x80").unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), "a\u{fffd}\\u001bb\u{fffd}");
    }
}
