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
    #[serde(default)]
    profiles: Option<Vec<Version>>,
}

/// Several documents in one.
#[derive(Deserialize)]
struct Several {
    profiles: Vec<Profile>,
}

fn parse<'t, T: Deserialize<'t>>(text: &'t str, of: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| {
        // The place is a field of ours; the message need not repeat it.
        let what = e.to_string();
        let what = what.split(" at line ").next().unwrap_or(&what).to_owned();
        Error::Form { of: of.to_owned(), line: e.line(), column: e.column(), what }
    })
}

/// Whether the form is one that this program reads: it is looked at first, since a newer form would fail later for a
/// reason that leads nowhere.
fn version(text: &str, of: &str) -> Result<Version> {
    let version: Version = parse(text, of)?;
    let newest = version.profiles.iter().flatten().map(|v| v.schema).fold(version.schema, u64::max);
    if newest > u64::from(SCHEMA) {
        return Err(Error::Newer { of: of.to_owned(), found: newest, known: SCHEMA });
    }
    Ok(version)
}

/// Reads one document; `of` says in errors what the text is.
pub fn read(text: &str, of: &str) -> Result<Profile> {
    version(text, of)?;
    parse(text, of)
}

/// Reads what `schwann profile --json` prints: an object with a list of `profiles`; or one profile.
pub fn read_all(text: &str, of: &str) -> Result<Vec<Profile>> {
    match version(text, of)?.profiles {
        None => Ok(vec![parse(text, of)?]),
        Some(list) if list.is_empty() => {
            let what = "its list of profiles is empty".to_owned();
            Err(Error::Form { of: of.to_owned(), line: 0, column: 0, what })
        }
        Some(_) => Ok(parse::<Several>(text, of)?.profiles),
    }
}

/// Reads documents from a file, as [`read_all`]; `-` is standard input.
pub fn read_file(path: &Path) -> Result<Vec<Profile>> {
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
        return Err(Error::Large { of: name, most: MOST_BYTES });
    }
    read_all(&text, &name)
}
