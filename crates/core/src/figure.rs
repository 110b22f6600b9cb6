//! A number with its unit and its origin. Every number that a person or a script is shown is a figure. An unknown one
//! has no value but a reason, and is never 0.

use serde::{Deserialize, Serialize};

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    /// Read off a clock or a counter.
    Measured,
    /// Computed from what is known exactly, such as shapes, or from measurements.
    Derived,
    /// Computed from a model of a device.
    Predicted,
    /// Not known here.
    Unavailable,
}

/// How far repeated measurements lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Spread {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// What the ends are.
    pub ends: Ends,
    /// How many measurements they are of.
    pub samples: u64,
}

/// What the ends of a spread are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ends {
    /// The least and the greatest.
    Extremes,
    /// A quarter of the measurements lies beyond each.
    Quartiles,
    /// The true value lies between them with a confidence of 95%.
    Confidence95,
    /// Where a prediction expects the value, by the known errors and assumptions of its model; the samples are what
    /// those errors were found with.
    Band,
    /// With a confidence of 99%, all intervals on a page contain their true values, however often the measurements were
    /// evaluated.
    Confidence99,
}

/// A figure: value, unit and origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Figure {
    /// The number; `None` where it is not known.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: String,
    /// Where it comes from.
    pub provenance: Provenance,
    /// The exact source: the counter, the file, the device, the rule.
    pub source: String,
    /// Why there is no value, and how to get one where that is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The least difference that the source can show, in the same unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<f64>,
    /// How far its measurements lie apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

impl Figure {
    fn new(value: f64, unit: &str, provenance: Provenance, source: String) -> Figure {
        if !value.is_finite() {
            return Figure::unavailable(unit, source, "there is no finite number for it");
        }
        let (unit, value) = (unit.into(), Some(value));
        Figure { value, unit, provenance, source, reason: None, resolution: None, spread: None }
    }

    /// Read off a clock or a counter.
    pub fn measured(value: f64, unit: &str, source: impl Into<String>) -> Figure {
        Figure::new(value, unit, Provenance::Measured, source.into())
    }

    /// Computed from what is known exactly, or from measurements.
    pub fn derived(value: f64, unit: &str, source: impl Into<String>) -> Figure {
        Figure::new(value, unit, Provenance::Derived, source.into())
    }

    /// Computed from a model of a device.
    pub fn predicted(value: f64, unit: &str, source: impl Into<String>) -> Figure {
        Figure::new(value, unit, Provenance::Predicted, source.into())
    }

    /// Not known, with the reason.
    pub fn unavailable(unit: &str, source: impl Into<String>, reason: impl Into<String>) -> Figure {
        Figure {
            value: None,
            unit: unit.into(),
            provenance: Provenance::Unavailable,
            source: source.into(),
            reason: Some(reason.into()),
            resolution: None,
            spread: None,
        }
    }

    /// With the least difference that its source can show.
    pub fn with_resolution(mut self, resolution: f64) -> Figure {
        self.resolution = Some(resolution);
        self
    }

    /// With how far its measurements lie apart. A spread without finite ends says nothing, and is left out: a file could not
    /// hold it either.
    pub fn with_spread(mut self, spread: Spread) -> Figure {
        if spread.low.is_finite() && spread.high.is_finite() {
            self.spread = Some(spread);
        }
        self
    }

    /// Another figure computed from this one's value; without one, the reason is kept.
    pub fn derive(&self, unit: &str, source: impl Into<String>, f: impl FnOnce(f64) -> f64) -> Figure {
        match self.value {
            Some(value) => {
                let provenance = match self.provenance {
                    Provenance::Predicted => Provenance::Predicted,
                    _ => Provenance::Derived,
                };
                Figure::new(f(value), unit, provenance, source.into())
            }
            None => Figure::unavailable(unit, source, self.reason.clone().unwrap_or_default()),
        }
    }

    /// Another figure computed from two; without either value, its reason is kept.
    pub fn derive2(
        &self,
        other: &Figure,
        unit: &str,
        source: impl Into<String>,
        f: impl FnOnce(f64, f64) -> f64,
    ) -> Figure {
        match (self.value, other.value) {
            (Some(value), Some(second)) => {
                let mut from = self.clone();
                if other.provenance == Provenance::Predicted {
                    from.provenance = Provenance::Predicted;
                }
                from.derive(unit, source, |_| f(value, second))
            }
            (None, _) => self.derive(unit, source, |v| v),
            (_, None) => other.derive(unit, source, |v| v),
        }
    }
}

/// Many numbers of one unit and origin: samples, a timeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Series {
    /// The numbers, in order; `None` where one is missing.
    pub values: Vec<Option<f64>>,
    /// Their unit.
    pub unit: String,
    /// Where they come from.
    pub provenance: Provenance,
    /// The exact source.
    pub source: String,
    /// Why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Series {
    /// Read off a clock or a counter.
    pub fn measured(values: impl IntoIterator<Item = f64>, unit: &str, source: impl Into<String>) -> Series {
        Series::new(values, unit, Provenance::Measured, source.into())
    }

    /// Computed from what is known exactly, or from measurements.
    pub fn derived(values: impl IntoIterator<Item = f64>, unit: &str, source: impl Into<String>) -> Series {
        Series::new(values, unit, Provenance::Derived, source.into())
    }

    /// Not known, with the reason.
    pub fn unavailable(unit: &str, source: impl Into<String>, reason: impl Into<String>) -> Series {
        let (unit, source, reason) = (unit.into(), source.into(), Some(reason.into()));
        Series { values: vec![], unit, provenance: Provenance::Unavailable, source, reason }
    }

    fn new(values: impl IntoIterator<Item = f64>, unit: &str, provenance: Provenance, source: String) -> Series {
        let values = values.into_iter().map(|v| v.is_finite().then_some(v)).collect();
        Series { values, unit: unit.into(), provenance, source, reason: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_unavailable() {
        let figure = Figure::measured(f64::NAN, "s", "a clock");
        assert_eq!((figure.value, figure.provenance), (None, Provenance::Unavailable));
        assert!(figure.reason.is_some());
    }

    #[test]
    fn a_spread_without_ends_is_left_out_and_the_rest_can_be_written_and_read() {
        let spread = |high: f64| Spread { low: 1.0, high, ends: Ends::Confidence95, samples: 3 };
        let figure = Figure::measured(2.0, "s", "a clock");
        let endless = figure.clone().with_spread(spread(f64::INFINITY));
        assert_eq!(endless, figure);
        let written = serde_json::to_string(&figure.with_spread(spread(3.0))).unwrap();
        assert_eq!(serde_json::from_str::<Figure>(&written).unwrap().spread, Some(spread(3.0)));
    }

    #[test]
    fn what_is_computed_from_the_unknown_is_unknown_for_the_same_reason() {
        let known = Figure::measured(2.0, "s", "a clock");
        let unknown = Figure::unavailable("J", "RAPL", "not permitted");
        for figure in [known.derive2(&unknown, "W", "J / s", |s, j| j / s), unknown.derive("mJ", "J", |j| j * 1e3)] {
            assert_eq!((figure.value, figure.reason.as_deref()), (None, Some("not permitted")));
        }
        let predicted = Figure::predicted(4.0, "s", "a roofline");
        assert_eq!(known.derive2(&predicted, "×", "ratio", |a, b| b / a).provenance, Provenance::Predicted);
        assert_eq!(known.derive2(&known, "×", "ratio", |a, b| b / a).provenance, Provenance::Derived);
    }
}
