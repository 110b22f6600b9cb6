//! What a profile means: how near it is to what a device should give, where the time that could be won lies, and what to
//! change. Everything here reads the document; only [`prove`] runs anything.

mod advice;
mod cliff;
mod doctor;

pub use advice::{Advice, prove, recommend, tried};
pub use cliff::cliffs;
pub use doctor::{Check, State, diagnose};

use crate::device::{Entry, Published};
use crate::profile::{Bottleneck, Bound, Named, Op, Profile};
use schwann_core::Figure;

/// How a profile stands against a device's requirements and the machine's own limits; the names are the guides'.
///
/// Without a device that has requirements those figures are unavailable. On another device than the profile's machine,
/// what is compared is the prediction for it.
pub fn efficiency(profile: &Profile, device: Option<&Entry>) -> Vec<Named> {
    let outlook = device.and_then(|d| profile.devices.iter().find(|o| o.device == d.name && !o.host));
    let (tflops, gbps) = match outlook {
        Some(outlook) => (&outlook.tflops, &outlook.bandwidth),
        None => (&profile.compute.tflops, &profile.memory.bandwidth),
    };
    let against = |reached: &Figure, demand: Option<&Published>, unit: &str, what: &str| match demand {
        Some(demand) => {
            reached.derive(unit, format!("{what} over {} ({})", demand.value, demand.source), |v| v / demand.value)
        }
        None => {
            let why = match device {
                Some(device) => format!("there are no published requirements for {}", device.name),
                None => "no device was named to compare with: add --device".into(),
            };
            Figure::unavailable(unit, what, why)
        }
    };
    let memory = total_memory(profile);
    let hardware = |name: &str, unit: &str| {
        profile
            .hardware
            .get(name)
            .cloned()
            .unwrap_or_else(|| Figure::unavailable(unit, name, "no counters or sensors were read for this profile"))
    };
    let slowest_level = profile.roof.bandwidth.iter().find(|l| l.name == "memory").map(|level| level.figure.clone());
    let slowest_level = slowest_level
        .unwrap_or_else(|| Figure::unavailable("B/s", "calibration", "this machine's bandwidth was not measured"));
    let budget = device.and_then(Entry::memory_budget);
    let all = [
        ("tflops_efficiency", against(tflops, device.and_then(Entry::min_tflops), "×", "Tflop/s")),
        ("compute_efficiency", profile.compute.of_roof.clone()),
        ("bandwidth_efficiency", against(gbps, device.and_then(Entry::min_bandwidth), "×", "GB/s")),
        ("bandwidth_utilization", profile.memory.bandwidth_utilization.clone()),
        ("memory_efficiency", against(&memory.derive("GB", memory.source.clone(), |b| b / 1e9), budget, "×", "GB")),
        ("cache_efficiency", hardware("cache_hit_rate", "%")),
        (
            "memory_controller_efficiency",
            no_more_than_all(hardware("dram_bandwidth", "B/s").derive2(
                &slowest_level,
                "%",
                "DRAM traffic over its limit",
                |b, most| 100.0 * b / most,
            )),
        ),
        ("ne_utilization", hardware("ane_utilization", "%")),
        ("ne_power", hardware("ane_power", "W")),
        (
            "energy_per_run",
            hardware("package_power", "W").derive2(
                &profile.compute.time_p50,
                "J",
                "package power × median time",
                |w, s| w * s,
            ),
        ),
    ];
    all.into_iter().map(|(name, figure)| Named { name: name.into(), figure }).collect()
}

/// Bytes that running takes: arena and weights as they are kept.
pub fn total_memory(profile: &Profile) -> Figure {
    let memory = &profile.memory;
    memory.arena.derive2(&memory.weights, "B", "arena and weights of the compiled plan", |a, w| a + w)
}

/// How many bottlenecks a profile lists.
const MOST: usize = 8;

/// What costs most, by the time that would be won if it ran at the machine's limit.
pub fn bottlenecks(profile: &Profile) -> Vec<Bottleneck> {
    let run = &profile.compute.time_p50;
    let mut all: Vec<Bottleneck> = profile.compute.ops.iter().filter_map(|op| bottleneck(op, run)).collect();
    all.sort_by(|a, b| b.could_win.value.unwrap_or(0.0).total_cmp(&a.could_win.value.unwrap_or(0.0)));
    all.truncate(MOST);
    all
}

fn bottleneck(op: &Op, run: &Figure) -> Option<Bottleneck> {
    op.self_time.value.filter(|t| *t > 0.0)?;
    let (what, why) = if op.path.is_empty() {
        (
            "the run itself".to_owned(),
            "checking inputs and handing over results; a larger batch spreads this cost".to_owned(),
        )
    } else if op.op == "scan" {
        let why = "rows are copied in and out of the loop, and states carried from step to step".to_owned();
        (format!("the loop {}", op.name), why)
    } else {
        let why = match op.bound {
            Bound::Compute => "its arithmetic runs below the machine's peak",
            Bound::Functions => "its exponentials run below the machine's peak",
            Bound::Memory => "it reads memory more slowly than this cache level allows",
            Bound::Overhead => "the call costs more than the work in it: there is too little work per call",
            Bound::Unknown => "the machine's limits are not known",
        };
        (format!("{} ({})", op.name, op.kernel), why.to_owned())
    };
    let source = "time less what the machine's limit allows";
    let could_win = if op.path.is_empty() || op.op == "scan" {
        // No work of the model is in there.
        op.self_time.derive("s", source, |t| t)
    } else {
        op.self_time.derive2(&op.of_roof, "s", source, |t, of_roof| t * (1.0 - of_roof / 100.0).max(0.0))
    };
    could_win.value?;
    let share = could_win.derive2(run, "%", "of the median time", |w, t| 100.0 * w / t);
    Some(Bottleneck { what, why, could_win, share })
}

/// A share above 100% says that the limit is not the one it is of.
fn no_more_than_all(share: Figure) -> Figure {
    match share.value {
        Some(v) if v > 100.0 => {
            let why =
                "more was moved than these threads' measured limit: by all of the machine, or the limit is too low";
            Figure::unavailable("%", share.source, why)
        }
        _ => share,
    }
}

/// The part of a run, in %, that goes into operations for which this holds.
pub(crate) fn share_of(profile: &Profile, which: impl Fn(&Op) -> bool) -> f64 {
    profile.compute.ops.iter().filter(|op| which(op)).filter_map(|op| op.share.value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Catalog;
    use crate::example::{nothing, profile as complete};

    #[test]
    fn bottlenecks_are_ranked_and_win_no_more_than_they_take() {
        let profile = complete();
        let all = bottlenecks(&profile);
        assert!(!all.is_empty());
        let wins: Vec<f64> = all.iter().map(|b| b.could_win.value.unwrap()).collect();
        assert!(wins.windows(2).all(|w| w[0] >= w[1]), "{wins:?}");
        let whole: f64 = profile.compute.ops.iter().filter_map(|o| o.self_time.value).sum();
        assert!(wins.iter().sum::<f64>() <= whole && wins.iter().all(|w| *w >= 0.0));
        assert!(bottlenecks(&nothing()).is_empty(), "what was not measured is no bottleneck");
    }

    #[test]
    fn efficiency_holds_the_profile_against_the_device() {
        let catalog = Catalog::own().unwrap();
        let m1 = catalog.find("M1").unwrap();
        let mut profile = complete();
        profile.devices.clear();
        let named = |profile: &Profile, device, name: &str| {
            efficiency(profile, device).into_iter().find(|n| n.name == name).unwrap().figure
        };
        let figure = named(&profile, Some(m1), "tflops_efficiency");
        assert_eq!(figure.value.unwrap(), profile.compute.tflops.value.unwrap() / 2.0);
        assert!(figure.source.contains("guide"), "{}", figure.source);
        for (device, word) in [(None, "--device"), (Some(catalog.find("M4").unwrap()), "M4")] {
            let figure = named(&profile, device, "tflops_efficiency");
            assert!(figure.value.is_none() && figure.reason.unwrap().contains(word));
        }
        for name in ["ne_utilization", "cache_efficiency", "memory_controller_efficiency", "energy_per_run"] {
            let figure = named(&nothing(), Some(m1), name);
            assert!(figure.value.is_none() && !figure.reason.unwrap().is_empty(), "{name}");
        }
    }
}
