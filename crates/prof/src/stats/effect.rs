//! How large a difference is beside the samples' own scatter.

use super::{Summary, sorted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The size of an effect in words, by the usual limits of Cliff's delta (0.147, 0.33, 0.474).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// The two lie among each other.
    Negligible,
    /// One can tell with many samples.
    Small,
    /// One can tell with some samples.
    Medium,
    /// Nearly every sample of one lies beyond the other's.
    Large,
}

impl Size {
    /// As a word.
    pub fn word(self) -> &'static str {
        match self {
            Size::Negligible => "negligible",
            Size::Small => "small",
            Size::Medium => "medium",
            Size::Large => "large",
        }
    }
}

/// The size of a difference, `other` against `base`: positive where `other` is greater.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Cliff's delta: how much more likely a sample of `other` is the greater of two than the lesser; −1 to 1. It asks for
    /// order alone, so a few samples far off do not move it.
    pub cliffs_delta: f64,
    /// Hedges' g: the difference of means in pooled standard deviations, corrected for few samples; `None` where nothing
    /// scatters.
    pub hedges_g: Option<f64>,
}

impl Effect {
    /// Of two sets of samples; `None` where one is empty.
    pub fn of(base: &[f64], other: &[f64]) -> Option<Effect> {
        let (b, o) = (sorted(base), sorted(other));
        let (sb, so) = (Summary::of(&b)?, Summary::of(&o)?);
        let mut more = 0i128;
        let (mut less_than, mut up_to) = (0usize, 0usize);
        for x in &o {
            while less_than < b.len() && b[less_than] < *x {
                less_than += 1;
            }
            while up_to < b.len() && b[up_to] <= *x {
                up_to += 1;
            }
            more += less_than as i128 - (b.len() - up_to) as i128;
        }
        let cliffs_delta = more as f64 / (b.len() as f64 * o.len() as f64);
        let freedom = (sb.n + so.n) as f64 - 2.0;
        let pooled =
            (((sb.n - 1) as f64 * sb.std.powi(2) + (so.n - 1) as f64 * so.std.powi(2)) / freedom.max(1.0)).sqrt();
        let correction = 1.0 - 3.0 / (4.0 * freedom.max(1.0) - 1.0);
        let hedges_g = (pooled > 0.0 && freedom > 0.0).then(|| (so.mean - sb.mean) / pooled * correction);
        Some(Effect { cliffs_delta, hedges_g })
    }

    /// In words, by Cliff's delta.
    pub fn size(&self) -> Size {
        match self.cliffs_delta.abs() {
            d if d < 0.147 => Size::Negligible,
            d if d < 0.33 => Size::Small,
            d if d < 0.474 => Size::Medium,
            _ => Size::Large,
        }
    }
}
