//! Profiles out of a file: one, or several in a list.

use crate::Profile;
use crate::profile::SCHEMA;
use serde_json::Value;

/// Why a file gives no profiles.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is no JSON.
    #[error("it is no JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// It is JSON, and no profile.
    #[error(
        "it is no profile: expected an object with `schema` and `compute`, or one with `profiles`, a list of them; found {0}"
    )]
    Form(String),
    /// It was written by a later version of this program.
    #[error("profile {at} has schema {found}, and this program reads up to {SCHEMA}: use a newer version of it")]
    Newer {
        /// Which of the file's profiles, from 1.
        at: usize,
        /// Its schema.
        found: u64,
    },
    /// A profile lacks something, or has it in another form.
    #[error("profile {at} is not as its schema says: {source}")]
    Profile {
        /// Which of the file's profiles, from 1.
        at: usize,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// There is nothing in the list.
    #[error("its list of profiles is empty")]
    Empty,
}

/// Reads what `schwann profile --json` prints: a profile, or `{ "profiles": [...] }`.
pub fn read(bytes: &[u8]) -> Result<Vec<Profile>, ReadError> {
    let value: Value = serde_json::from_slice(bytes).map_err(ReadError::Json)?;
    let values = match value {
        Value::Object(mut map) => match map.remove("profiles") {
            Some(Value::Array(values)) => values,
            Some(other) => return Err(ReadError::Form(format!("`profiles` as {}", kind(&other)))),
            None => vec![Value::Object(map)],
        },
        other => return Err(ReadError::Form(kind(&other).into())),
    };
    if values.is_empty() {
        return Err(ReadError::Empty);
    }
    values.into_iter().enumerate().map(|(i, value)| one(i + 1, value)).collect()
}

fn one(at: usize, value: Value) -> Result<Profile, ReadError> {
    // The schema decides first: a newer form would fail later, for a reason that leads nowhere.
    match value.get("schema").and_then(Value::as_u64) {
        Some(found) if found > u64::from(SCHEMA) => Err(ReadError::Newer { at, found }),
        Some(_) => serde_json::from_value(value).map_err(|source| ReadError::Profile { at, source }),
        None => Err(ReadError::Form("no number `schema`".into())),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_hold_no_profile_say_what_was_expected() {
        for (text, words) in [
            ("", "no JSON"),
            ("[]", "found a list"),
            ("{}", "no number `schema`"),
            ("{\"profiles\": 3}", "`profiles` as a number"),
            ("{\"profiles\": []}", "empty"),
            ("{\"schema\": 99}", "schema 99, and this program reads up to"),
            ("{\"profiles\": [{\"schema\": 1}]}", "profile 1 is not as its schema says: missing field"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
