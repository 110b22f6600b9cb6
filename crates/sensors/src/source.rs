//! What a source of readings is.

use schwann_core::{Figure, Provenance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Instant;

/// Readings of one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds on the clock of [`now`], which never goes back.
    pub at: f64,
    /// The readings by name; the crate's documentation lists the names.
    pub readings: BTreeMap<String, Figure>,
}

impl Sample {
    /// Of this moment.
    pub fn new(readings: BTreeMap<String, Figure>) -> Sample {
        Sample { at: now(), readings }
    }

    /// What is wrong with it: a number without a source, a missing number without a reason.
    pub fn problem(&self) -> Option<String> {
        if !self.at.is_finite() {
            return Some("its time is no finite number".into());
        }
        self.readings.iter().find_map(|(name, figure)| {
            let problem = match (figure.value, figure.provenance) {
                (Some(v), _) if !v.is_finite() => "has a value that is no finite number",
                (Some(_), Provenance::Unavailable) => "is unavailable and yet has a value",
                (Some(_), _) if figure.source.is_empty() => "has a value and no source",
                (None, Provenance::Unavailable) if figure.reason.as_deref().unwrap_or("").is_empty() => {
                    "is unavailable without a reason"
                }
                (None, Provenance::Unavailable) => return None,
                (None, _) => "has no value and is not marked unavailable",
                _ => return None,
            };
            Some(format!("reading `{name}` {problem}"))
        })
    }
}

/// Seconds since this process first asked: the clock that samples are on.
pub fn now() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Whether a source can give a reading here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Available {
    /// The reading's name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Where it is read.
    pub source: String,
    /// Why it cannot be had, and how it could be; `None` where it can.
    pub reason: Option<String>,
}

/// A source of readings.
pub trait Source: Send {
    /// Its name, for lists of sources.
    fn name(&self) -> &str;

    /// Which readings it can give here, and for the others why not and how to enable them.
    fn describe(&self) -> Vec<Available>;

    /// Readings of now. Those that are differences (loads, power) are since the sample before, or since the source was
    /// opened. What cannot be read is there as unavailable: a source keeps its names from sample to sample.
    fn sample(&mut self) -> Sample;
}

/// The description that a set of readings is.
pub(crate) fn described<'a>(readings: impl IntoIterator<Item = (&'a String, &'a Figure)>) -> Vec<Available> {
    let available = |(name, figure): (&String, &Figure)| Available {
        name: name.clone(),
        unit: figure.unit.clone(),
        source: figure.source.clone(),
        reason: figure.reason.clone(),
    };
    readings.into_iter().map(available).collect()
}

/// A measured reading, or the reason why there is none.
pub(crate) fn reading(value: Result<f64, String>, unit: &str, source: &str) -> Figure {
    match value {
        Ok(value) => Figure::measured(value, unit, source),
        Err(reason) => Figure::unavailable(unit, source, reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_tells_what_is_wrong_with_it() {
        let with = |figure: Figure| Sample { at: 0.0, readings: [("x".to_string(), figure)].into() };
        assert_eq!(with(Figure::measured(1.0, "s", "a clock")).problem(), None);
        assert_eq!(with(Figure::unavailable("s", "a clock", "not there")).problem(), None);
        for figure in [
            Figure::measured(1.0, "s", ""),
            Figure::unavailable("s", "a clock", ""),
            Figure { provenance: Provenance::Measured, ..Figure::unavailable("s", "a clock", "not there") },
            Figure { provenance: Provenance::Unavailable, ..Figure::measured(1.0, "s", "a clock") },
        ] {
            assert!(with(figure).problem().is_some_and(|p| p.contains("`x`")));
        }
    }
}
