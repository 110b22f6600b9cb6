//! Times that were predicted for a plan.

use crate::figure::Figure;
use serde::Serialize;
use std::collections::BTreeMap;

/// Predicted times of a plan. This crate makes none; `schwann_prof::device::forecast` does, from a machine's
/// calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// One run, in seconds; its spread is the band that it is expected in.
    pub time: Figure,
    /// Each step by its place (step, and in loops the step of the body): all its calls of a run, in seconds.
    pub steps: BTreeMap<Vec<usize>, Figure>,
}

/// Memory and time that a plan would take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Estimate {
    /// Arena and weights.
    pub(super) memory: Figure,
    /// One run.
    pub(super) time: Option<Figure>,
}

impl Forecast {
    /// The time of a step, for people.
    pub fn step(&self, path: &[usize]) -> String {
        self.steps.get(path).and_then(|f| f.value).map_or("–".into(), super::rough)
    }

    /// The time of a run with its band, or why there is none, in a line.
    pub fn line(&self) -> String {
        let f = &self.time;
        match (f.value, f.spread) {
            (Some(t), Some(s)) => format!(
                "{} a run, expected between {} and {} (predicted: {})",
                super::rough(t),
                super::rough(s.low),
                super::rough(s.high),
                f.source
            ),
            (Some(t), None) => format!("{} a run (predicted: {})", super::rough(t), f.source),
            (None, _) => format!("no predicted time: {}", f.reason.as_deref().unwrap_or("not known")),
        }
    }
}
