//! A whole study of a model on this machine: the profiler's measurements joined with the machine's limits, its counters
//! and sensors, the catalogue's devices, and what follows from all of that.

use crate::analyze::{self, Advice};
use crate::device::{Calibration, Catalog, Entry, outlook, requirements};
use crate::profile::{Profile, Requirement};
use crate::profiler::{self, Ceiling, Profiler};
use schwann_core::Figure;
use schwann_core::plan::Plan;
use schwann_sensors::{Counters, System};
use std::collections::BTreeMap;

impl Calibration {
    /// The limits with so many threads, with what the levels of memory hold.
    pub fn ceiling(&self, threads: usize) -> Ceiling {
        let levels = self.limits(threads).map(|l| &l.levels[..]).unwrap_or_default();
        let level_bytes = levels.iter().filter_map(|l| l.capacity_bytes).map(|b| b as u64).collect();
        Ceiling { roof: self.roof(threads), level_bytes }
    }
}

/// Every counter and sensor of this machine, read around a stretch of time.
pub struct Instruments {
    counters: Counters,
    system: System,
}

impl Instruments {
    /// Of other sources than this machine's: recorded ones, or a script.
    pub fn of(counters: Counters, system: System) -> Instruments {
        Instruments { counters, system }
    }
}

impl Default for Instruments {
    fn default() -> Instruments {
        Instruments { counters: Counters::open(), system: System::new() }
    }
}

impl profiler::Counters for Instruments {
    fn start(&mut self) {
        // Rates and energies are of the time between two samples.
        self.system.sample();
        self.counters.start();
    }

    fn stop(&mut self) -> BTreeMap<String, Figure> {
        let counted = self.counters.stop();
        let mut all = self.system.sample().readings;
        all.extend(counted);
        all
    }
}

/// Adds to a profile what follows from it: predictions for every catalogued device, requirements, efficiency,
/// bottlenecks and recommendations. With a device, requirements are that one's alone.
pub fn conclude(
    profile: &mut Profile,
    plan: &Plan,
    calibration: &Calibration,
    catalog: &Catalog,
    device: Option<&Entry>,
) -> Vec<Advice> {
    profile.devices = outlook(plan, catalog, calibration, Some(&profile.compute.time_p50), None);
    let asked = catalog.devices.iter().filter(|d| device.is_none_or(|wanted| wanted.name == d.name));
    profile.requirements = asked.flat_map(|d| required(profile, d)).collect();
    profile.efficiency = analyze::efficiency(profile, device);
    profile.bottlenecks = analyze::bottlenecks(profile);
    let advice = analyze::recommend(profile);
    profile.recommendations = advice.iter().map(|a| a.recommendation.clone()).collect();
    advice
}

/// A device's requirements against what the profile predicts for it.
pub fn required(profile: &Profile, device: &Entry) -> Vec<Requirement> {
    let memory = analyze::total_memory(profile);
    match profile.devices.iter().find(|o| o.device == device.name && !o.host) {
        Some(there) => requirements(device, &there.tflops, &there.bandwidth, &memory),
        None => vec![],
    }
}

/// Tries what was recommended, and writes the verdicts into the profile. Where somebody stops it, what was not tried by
/// then stays untested, and the profile says so.
pub fn prove(profile: &mut Profile, advice: &mut [Advice], profiler: &mut Profiler<'_>) -> profiler::Result<()> {
    match analyze::prove(advice, profiler) {
        Err(e) if e.is_cancelled() => {
            let (tried, of) = analyze::tried(advice);
            profile.stopped_at(&format!("{tried} of {of} recommendations tried"));
        }
        proven => proven?,
    }
    profile.recommendations = advice.iter().map(|a| a.recommendation.clone()).collect();
    Ok(())
}
