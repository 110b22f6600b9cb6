//! A machine as the cost model sees it: three rates and an overhead.

use crate::op::Cost;
use serde::{Deserialize, Serialize};

/// What a device can do at most, from a data sheet or a calibration; `source` says which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Arithmetic operations a second, `f32`, all cores that will be used.
    pub flops_per_s: f64,
    /// Bytes a second from memory.
    pub bytes_per_s: f64,
    /// Exponentials and the like a second.
    pub transcendentals_per_s: f64,
    /// Seconds that a step costs beyond its work.
    pub step_overhead_s: f64,
    /// Where these figures come from.
    pub source: String,
}

impl Device {
    /// Seconds that a step of this cost takes at best: the roofline, the slower of arithmetic and memory.
    pub fn seconds(&self, cost: &Cost) -> f64 {
        if *cost == Cost::default() {
            return 0.0;
        }
        let plain = cost.flops.saturating_sub(cost.transcendentals) as f64 / self.flops_per_s;
        let compute = plain + cost.transcendentals as f64 / self.transcendentals_per_s;
        let memory = cost.bytes() as f64 / self.bytes_per_s;
        compute.max(memory) + self.step_overhead_s
    }
}

/// Where a figure comes from. Every figure that a person sees says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    /// Read off a clock or a counter.
    Measured,
    /// Computed from what is known exactly, such as shapes.
    Derived,
    /// Computed from a model of a device.
    Predicted,
    /// Not known here.
    Unavailable,
}

/// A figure with its unit and origin; no value means it is not known, never 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The number.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: String,
    /// Where it comes from.
    pub provenance: Provenance,
    /// What exactly: the device, the tool, the rule.
    pub source: String,
}

impl Figure {
    /// A figure computed from what is known exactly.
    pub fn derived(value: f64, unit: &str, source: &str) -> Figure {
        Figure { value: Some(value), unit: unit.into(), provenance: Provenance::Derived, source: source.into() }
    }
    /// A figure computed from a model of a device.
    pub fn predicted(value: f64, unit: &str, source: &str) -> Figure {
        Figure { value: Some(value), unit: unit.into(), provenance: Provenance::Predicted, source: source.into() }
    }
}
