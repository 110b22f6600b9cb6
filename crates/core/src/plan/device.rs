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
