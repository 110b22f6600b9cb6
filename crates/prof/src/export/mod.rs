//! A profile in the forms that others read, one a file. All are views of the same document and compute nothing that is
//! not in it; what has no value is said with its reason where the form has a place for that, and is left out where it has
//! none, never 0.

mod bencher;
mod csv;
mod github;
mod json;
mod markdown;

pub use bencher::bencher;
pub use csv::{csv, ops_csv};
pub use github::github;
pub use json::{json, read, read_all, read_file, schema};
pub use markdown::markdown;

use crate::Profile;
use schwann_core::Figure;
use serde_json::Value;
use std::path::PathBuf;

/// What can go wrong with a document.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not JSON, or not a profile's.
    #[error("{of}, line {line}, column {column}: {what}; expected a profile as `schwann profile --json` prints it")]
    Form {
        /// The file, or what the text is.
        of: String,
        /// Where, from 1; 0 where it cannot be said.
        line: usize,
        /// Where, from 1; 0 where it cannot be said.
        column: usize,
        /// What is wrong.
        what: String,
    },
    /// A document of a later version.
    #[error("{of} has schema version {found}; this program reads up to version {known}: a newer one is needed")]
    Newer {
        /// The file, or what the text is.
        of: String,
        /// Its version.
        found: u64,
        /// The greatest that this program knows.
        known: u32,
    },
    /// Too large to be a profile.
    #[error("{of} has more than {most} bytes, and no profile has")]
    Large {
        /// The file.
        of: String,
        /// What is read at most.
        most: u64,
    },
}

/// Something's outcome.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The forms there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The document itself.
    Json,
    /// A row a figure.
    Csv,
    /// A row an operation.
    OpsCsv,
    /// For people, in a merge request or an issue.
    Markdown,
    /// Bencher metric format.
    Bencher,
    /// github-action-benchmark, `customSmallerIsBetter`.
    Github,
}

impl Format {
    /// Every form, by the name it has on the command line.
    pub const ALL: [(&'static str, Format); 6] = [
        ("json", Format::Json),
        ("csv", Format::Csv),
        ("ops-csv", Format::OpsCsv),
        ("markdown", Format::Markdown),
        ("bencher", Format::Bencher),
        ("github", Format::Github),
    ];

    /// By its name.
    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.iter().find(|(n, _)| *n == name).map(|(_, format)| *format)
    }

    /// Writes a profile in this form.
    pub fn write(self, profile: &Profile) -> String {
        match self {
            Format::Json => json(profile),
            Format::Csv => csv(profile),
            Format::OpsCsv => ops_csv(profile),
            Format::Markdown => markdown(profile),
            Format::Bencher => bencher(profile),
            Format::Github => github(profile),
        }
    }
}

/// Every figure of a document with its path, such as `compute.ops[2].self_time`, in the document's order. Each number of
/// a series is a figure of its own.
pub fn figures(profile: &Profile) -> Vec<(String, Figure)> {
    let mut found = vec![];
    // A profile is plain data: it has no keys that JSON cannot write.
    walk("", &serde_json::to_value(profile).unwrap_or(Value::Null), &mut found);
    found
}

fn walk(path: &str, value: &Value, found: &mut Vec<(String, Figure)>) {
    match value {
        Value::Object(fields) if fields.contains_key("provenance") => {
            // What has no `values` is one figure; the other way round a series would pass for a figure without value.
            if fields.contains_key("values") {
                found.extend(serde_json::from_value(value.clone()).into_iter().flat_map(|s| apart(path, s)));
            } else {
                found.extend(serde_json::from_value(value.clone()).map(|figure| (path.to_owned(), figure)));
            }
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| walk(&join(path, name), value, found)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| walk(&format!("{path}[{i}]"), item, found))
        }
        _ => {}
    }
}

/// A series as figures; one of its own where it has no numbers.
fn apart(path: &str, series: schwann_core::Series) -> Vec<(String, Figure)> {
    let one = |value: Option<f64>| Figure {
        value,
        unit: series.unit.clone(),
        provenance: match value {
            Some(_) => series.provenance,
            None => schwann_core::Provenance::Unavailable,
        },
        source: series.source.clone(),
        reason: match value {
            Some(_) => None,
            None => Some(series.reason.clone().unwrap_or_else(|| "this one is missing".into())),
        },
        resolution: None,
        spread: None,
    };
    if series.values.is_empty() {
        return vec![(path.to_owned(), one(None))];
    }
    series.values.iter().enumerate().map(|(i, value)| (format!("{path}[{i}]"), one(*value))).collect()
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A figure by its path; `time_p50` is short for `compute.time_p50`, `rss` for `memory.rss`, `cycles` for
/// `hardware.cycles`.
pub fn figure(profile: &Profile, path: &str) -> Option<Figure> {
    let all = figures(profile);
    let at = |path: &str| all.iter().find(|(p, _)| p == path).map(|(_, figure)| figure.clone());
    at(path).or_else(|| ["compute", "memory", "hardware", "roof"].iter().find_map(|part| at(&join(part, path))))
}

/// What the profile is of, in a line: `P, batch 32, 16 steps, 1 thread, f32, fused`.
pub fn title(profile: &Profile) -> String {
    let w = &profile.workload;
    let count = |figure: &Figure| figure.value.map_or("?".into(), |v| format!("{v}"));
    let threads = count(&w.threads);
    let plural = if threads == "1" { "" } else { "s" };
    let (batch, steps) = (count(&w.batch), count(&w.steps));
    let (threads, on) = match w.on_cpu() {
        true => (format!(", {threads} thread{plural}"), String::new()),
        false => (String::new(), format!(", on {}", w.backend)),
    };
    format!("{}, batch {batch}, {steps} steps{threads}, {}, {}{on}", profile.model.name, w.dtype, w.compilation)
}

/// A figure for people: three digits with the unit's prefix; `–` where it is not known.
pub fn shown(figure: &Figure) -> String {
    let Some(value) = figure.value else { return "–".into() };
    shown_value(value, &figure.unit)
}

/// The same of a bare value.
pub fn shown_value(value: f64, unit: &str) -> String {
    let (size, sign) = (value.abs(), if value < 0.0 { "−" } else { "" });
    let short = match unit {
        "s" => schwann_core::plan::seconds(size),
        "B" if size < 1e18 => schwann_core::plan::bytes(size as u64),
        "%" => format!("{size:.1}%"),
        "×" => format!("{size:.2}×"),
        _ if (1e4..1e18).contains(&size) => {
            let short = schwann_core::plan::count(size as u64);
            // The prefix belongs to the unit, `1.24 Msamples/s`, unless that is several words.
            let apart = short.ends_with(|c: char| c.is_ascii_digit()) || unit.contains(' ');
            format!("{short}{}{unit}", if apart { " " } else { "" })
        }
        _ if size == 0.0 || (size.fract() == 0.0 && size < 1e4) => format!("{size:.0} {unit}"),
        _ if size < 1e-3 => format!("{size:.2e} {unit}"),
        _ => {
            let digits = (2 - size.log10().floor() as i32).clamp(0, 6) as usize;
            format!("{size:.digits$} {unit}")
        }
    };
    format!("{sign}{short}")
}

#[cfg(test)]
mod tests;
