//! What else the machine did while it was measured: a calibration made beside other work is of both, and must say so.

use schwann_sensors::{System, usage};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Other programs may keep this part of the cores busy.
const OTHERS: f64 = 0.15;
/// A thread that always has work is to be on a core for this part of the time at least.
const SHARE: f64 = 0.9;
/// The same work, before and after, and in one round and another, may differ by this part.
const APART: f64 = 0.2;

/// How a calibration was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Of all cores, the part that other programs kept busy; `None` where the system does not tell.
    pub others: Option<f64>,
    /// Of the time of measuring on one thread, the part that it was on a core.
    pub share: Option<f64>,
    /// A fixed piece of work after everything over the same before it; 1 is as fast as ever.
    pub drift: f64,
    /// The suite's usual round over its best; 1 is always the same.
    pub spread: f64,
    /// How many calibrations were tried, this one among them.
    pub attempts: u32,
}

impl Conditions {
    /// What speaks against the figures, in words; nothing where the machine was quiet.
    pub fn doubts(&self) -> Vec<String> {
        let mut all = vec![];
        if let Some(others) = self.others.filter(|o| *o > OTHERS) {
            all.push(format!("other programs kept {:.0}% of the cores busy", others * 100.0));
        }
        if let Some(share) = self.share.filter(|s| *s < SHARE) {
            all.push(format!("it was on a core for {:.0}% of the time", share * 100.0));
        }
        if (self.drift - 1.0).abs() > APART {
            all.push(format!("the same work took {:.2} times as long at the end as at the beginning", self.drift));
        }
        if self.spread > 1.0 + APART {
            all.push(format!("the suite's usual round took {:.2} times its best", self.spread));
        }
        all
    }

    /// How bad it was: for choosing the better of two.
    pub(super) fn disturbance(&self) -> f64 {
        let others = self.others.unwrap_or(0.0) / OTHERS;
        let share = self.share.map_or(0.0, |s| (1.0 - s) / (1.0 - SHARE));
        [others, share, (self.drift - 1.0).abs() / APART, (self.spread - 1.0) / APART].into_iter().fold(0.0, f64::max)
    }
}

/// Watches from its making on.
pub(super) struct Watch {
    began: Instant,
    cpu_s: Option<f64>,
    system: Option<System>,
}

/// The sources that tell how busy the cores are. (On a Mac that takes a thread of its own, which would disturb.)
fn cores() -> Option<System> {
    #[cfg(target_os = "linux")]
    let system = Some(System::from_sources(schwann_sensors::linux::sources(std::path::Path::new("/"))));
    #[cfg(not(target_os = "linux"))]
    let system = None;
    system
}

impl Watch {
    pub(super) fn begin() -> Watch {
        let mut system = cores();
        // Loads are since the sample before.
        system.iter_mut().for_each(|s| drop(s.sample()));
        Watch { began: Instant::now(), cpu_s: own_s(), system }
    }

    /// Of the time since the beginning, the part that this process spent on cores.
    pub(super) fn share(&self) -> Option<f64> {
        Some((own_s()? - self.cpu_s?) / self.began.elapsed().as_secs_f64())
    }

    /// Of all cores, the part that others kept busy since the beginning.
    pub(super) fn others(&mut self) -> Option<f64> {
        let sample = self.system.as_mut()?.sample();
        let read = |name: &str| sample.readings.get(name)?.value;
        let (load, cores) = (read("cpu_load")? / 100.0, read("cpu_cores")?);
        Some((load - self.share()? / cores).max(0.0))
    }
}

fn own_s() -> Option<f64> {
    usage().ok().map(|u| u.cpu_s())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> Conditions {
        Conditions { others: Some(0.01), share: Some(0.99), drift: 1.01, spread: 1.05, attempts: 1 }
    }

    #[test]
    fn a_quiet_machine_leaves_no_doubt_and_a_busy_one_says_what_was_seen() {
        assert!(quiet().doubts().is_empty() && quiet().disturbance() < 1.0);
        for (busy, word) in [
            (Conditions { others: Some(0.5), ..quiet() }, "50% of the cores"),
            (Conditions { share: Some(0.5), ..quiet() }, "50% of the time"),
            (Conditions { drift: 1.4, ..quiet() }, "1.40 times as long"),
            (Conditions { drift: 0.6, ..quiet() }, "0.60 times as long"),
            (Conditions { spread: 1.6, ..quiet() }, "1.60 times its best"),
        ] {
            assert!(busy.doubts().len() == 1 && busy.doubts()[0].contains(word), "{:?}", busy.doubts());
            assert!(busy.disturbance() > 1.0);
        }
        assert!(Conditions { others: None, share: None, ..quiet() }.doubts().is_empty(), "unknown is no doubt");
    }

    #[test]
    fn time_on_cores_is_counted_from_the_beginning() {
        // Other tests run in this process meanwhile, so its time on cores may be anything; that of a watch which began
        // with more of it than there is can only be less than nothing.
        let mut watch = Watch::begin();
        watch.cpu_s = watch.cpu_s.map(|s| s + 1e6);
        if let Some(share) = watch.share() {
            assert!(share < 0.0, "{share}");
        }
        watch.cpu_s = None;
        assert_eq!(watch.share(), None);
    }
}
