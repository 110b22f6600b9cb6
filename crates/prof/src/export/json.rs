//! The document as it is, and reading it back.

use super::{Error, Result};
use crate::Profile;
use crate::profile::SCHEMA;
use serde::Deserialize;
use std::path::Path;

/// A profile's JSON beyond this is none: untrusted files are not read without end.
const MOST_BYTES: u64 = 256 << 20;

/// The document.
pub fn json(profile: &Profile) -> String {
    // Plain data: every key is a string.
    serde_json::to_string_pretty(profile).unwrap_or_default() + "\n"
}

/// The JSON Schema of the document.
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(Profile).to_value();
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("$id".into(), format!("urn:schwann:profile:{SCHEMA}").into());
    }
    schema
}

/// Only what tells whether the rest can be read.
#[derive(Deserialize)]
struct Version {
    schema: u64,
}

/// Reads a document; `of` says in errors what the text is.
pub fn read(text: &str, of: &str) -> Result<Profile> {
    let form = |e: serde_json::Error| {
        // The place is a field of ours; the message need not repeat it.
        let what = e.to_string();
        let what = what.split(" at line ").next().unwrap_or(&what).to_owned();
        Error::Form { of: of.to_owned(), line: e.line(), column: e.column(), what }
    };
    let Version { schema } = serde_json::from_str(text).map_err(form)?;
    if schema > u64::from(SCHEMA) {
        return Err(Error::Newer { of: of.to_owned(), found: schema, known: SCHEMA });
    }
    serde_json::from_str(text).map_err(form)
}

/// Reads a document from a file; `-` is standard input.
pub fn read_file(path: &Path) -> Result<Profile> {
    use std::io::Read;
    let io = |source| Error::Io { path: path.to_owned(), source };
    let mut text = String::new();
    let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    let mut limited = |source: &mut dyn Read| source.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(io);
    let bytes = match path == Path::new("-") {
        true => limited(&mut std::io::stdin().lock())?,
        false => limited(&mut std::fs::File::open(path).map_err(io)?)?,
    };
    if bytes as u64 > MOST_BYTES {
        let bytes = std::fs::metadata(path).map_or(bytes as u64, |m| m.len());
        return Err(Error::Large { of: name, bytes, most: MOST_BYTES });
    }
    read(&text, &name)
}
