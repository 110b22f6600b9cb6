//! This process: resident memory, faults, switches, CPU time, threads. `getrusage` gives counts on every Unix; what is
//! resident now comes from the platform.

use crate::source::{described, reading};
use crate::{Available, Sample, Source, Usage};
use schwann_core::Figure;
use std::collections::BTreeMap;

/// What the platform tells of this process beside `getrusage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatus {
    /// Bytes resident now.
    pub rss: Option<u64>,
    /// Most bytes resident at once, where it is told apart from `getrusage`.
    pub rss_peak: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
}

/// The resident memory of another process.
pub fn rss_of(pid: u32) -> Figure {
    #[cfg(target_os = "linux")]
    {
        let source = format!("/proc/{pid}/status");
        match crate::linux::process::status_of(pid) {
            Ok(status) => {
                reading(status.rss.map(|b| b as f64).ok_or_else(|| "it does not tell it".into()), "B", &source)
            }
            Err(why) => Figure::unavailable("B", source, why),
        }
    }
    #[cfg(not(target_os = "linux"))]
    Figure::unavailable("B", format!("process {pid}"), "another process's memory is read on Linux only, so far")
}

type Read<T> = Box<dyn Fn() -> Result<T, String> + Send>;

/// The source of the own process.
pub struct Process {
    from: &'static str,
    status: Read<ProcessStatus>,
    usage: Read<Usage>,
}

impl Process {
    /// From these two functions; `from` names where the status comes from.
    pub fn from_parts(
        from: &'static str,
        status: impl Fn() -> Result<ProcessStatus, String> + Send + 'static,
        usage: impl Fn() -> Result<Usage, String> + Send + 'static,
    ) -> Process {
        Process { from, status: Box::new(status), usage: Box::new(usage) }
    }

    /// This process on this platform.
    pub fn here() -> Process {
        #[cfg(target_os = "linux")]
        return crate::linux::process::source(crate::linux::Root::system());
        #[cfg(target_os = "macos")]
        return Process::from_parts("proc_pidinfo", crate::apple::process_status, crate::usage);
        #[cfg(not(any(target_os = "linux", target_os = "macos")))]
        Process::from_parts("this system", || Err("it is not read on this system yet".into()), crate::usage)
    }

    fn readings(&self) -> BTreeMap<String, Figure> {
        let (status, usage) = ((self.status)(), (self.usage)());
        let told = |pick: fn(&ProcessStatus) -> Option<u64>| {
            let missing = || format!("{} does not tell it", self.from);
            status.clone().and_then(|s| pick(&s).ok_or_else(missing)).map(|v| v as f64)
        };
        let used = |pick: fn(&Usage) -> u64| usage.clone().map(|u| pick(&u) as f64);
        let peak = match (told(|s| s.rss_peak), used(|u| u.rss_peak)) {
            (Err(_), Ok(peak)) => Figure::measured(peak, "B", "getrusage"),
            (peak, _) => reading(peak, "B", self.from),
        };
        let count = |pick: fn(&Usage) -> u64| reading(used(pick), "count", "getrusage");
        let time = reading(usage.clone().map(|u| u.cpu_s()), "s", "getrusage");
        [
            ("rss", reading(told(|s| s.rss), "B", self.from)),
            ("rss_peak", peak),
            ("threads", reading(told(|s| s.threads), "count", self.from)),
            ("page_faults_minor", count(|u| u.minor_faults)),
            ("page_faults_major", count(|u| u.major_faults)),
            ("context_switches_voluntary", count(|u| u.voluntary_switches)),
            ("context_switches_involuntary", count(|u| u.involuntary_switches)),
            ("cpu_time", if time.value.is_some() { time.with_resolution(Usage::RESOLUTION_S) } else { time }),
        ]
        .map(|(name, figure)| (name.to_string(), figure))
        .into()
    }
}

impl Source for Process {
    fn name(&self) -> &str {
        "process"
    }

    fn describe(&self) -> Vec<Available> {
        described(&self.readings())
    }

    fn sample(&mut self) -> Sample {
        Sample::new(self.readings())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_comes_from_getrusage_where_the_platform_is_silent() {
        let used = Usage { rss_peak: 4096, minor_faults: 7, ..Usage::default() };
        let mut source = Process::from_parts("nothing", || Err("not there".into()), move || Ok(used));
        let readings = source.sample().readings;
        assert_eq!((readings["rss_peak"].value, readings["page_faults_minor"].value), (Some(4096.0), Some(7.0)));
        assert_eq!((readings["rss"].value, readings["rss"].reason.as_deref()), (None, Some("not there")));
    }

    #[test]
    fn another_process_has_memory_and_one_that_is_not_there_has_a_reason() {
        let (own, nobody) = (rss_of(std::process::id()), rss_of(u32::MAX));
        assert!(nobody.value.is_none() && nobody.reason.is_some());
        assert!(!cfg!(target_os = "linux") || own.value > Some(1e5), "{own:?}");
    }

    #[test]
    fn memory_that_is_touched_becomes_resident() {
        let mut source = Process::here();
        let before = source.sample().readings;
        let Some(rss) = before["rss"].value else { return };
        let block = vec![1u8; 64 << 20];
        let after = source.sample().readings;
        assert!(block.iter().step_by(4096).all(|&b| b == 1));
        assert!(after["rss"].value.is_some_and(|r| r > rss + (32 << 20) as f64), "{:?} after {rss}", after["rss"]);
        assert!(after["rss_peak"].value >= after["rss"].value.map(|r| r * 0.9));
        assert!(after["page_faults_minor"].value > before["page_faults_minor"].value);
        assert!(after["threads"].value >= Some(1.0));
    }
}
