//! All sources of this platform together.

use crate::catalogue::{CATALOGUE, complete};
use crate::{Available, Counters, Sample, Source, now};
use std::collections::BTreeMap;

/// Every source that this platform has, hardware counters of the own process among them.
pub fn all() -> Vec<Box<dyn Source>> {
    let mut sources = without_counters();
    sources.push(Box::new(Counters::running()));
    sources
}

fn without_counters() -> Vec<Box<dyn Source>> {
    #[cfg(target_os = "linux")]
    let mut sources = crate::linux::sources(std::path::Path::new("/"));
    #[cfg(not(target_os = "linux"))]
    let mut sources: Vec<Box<dyn Source>> = vec![Box::new(crate::Process::here())];
    #[cfg(target_os = "macos")]
    sources.push(Box::new(crate::Apple::new(crate::apple::Macmon::open())));
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    sources.push(Box::new(crate::nvml::Nvml::open()));
    sources
}

/// The machine: all its sources, joined into one sample.
pub struct System {
    sources: Vec<Box<dyn Source>>,
}

impl System {
    /// Every source but hardware counters. They count stretches of work and share a few registers of the CPU, so
    /// whoever wants them opens [`Counters`] around the stretch, once.
    pub fn new() -> System {
        System::from_sources(without_counters())
    }

    /// Every source; hardware counters count from now on.
    pub fn with_counters() -> System {
        System::from_sources(all())
    }

    /// These sources. Where two give the same name, a value goes before none, and the earlier source before the later.
    pub fn from_sources(sources: Vec<Box<dyn Source>>) -> System {
        System { sources }
    }

    /// The sources' names.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|s| s.name())
    }

    /// Which readings there are, and why others are not; every name of the [`CATALOGUE`] is among them.
    pub fn describe(&self) -> Vec<Available> {
        let mut found: BTreeMap<String, Available> = BTreeMap::new();
        for available in self.sources.iter().flat_map(|s| s.describe()) {
            match found.get(&available.name) {
                Some(before) if before.reason.is_none() || available.reason.is_some() => {}
                _ => drop(found.insert(available.name.clone(), available)),
            }
        }
        for entry in CATALOGUE {
            found.entry(entry.name.into()).or_insert_with(|| Available {
                name: entry.name.into(),
                unit: entry.unit.into(),
                source: "this system".into(),
                reason: Some(entry.otherwise.into()),
            });
        }
        found.into_values().collect()
    }

    /// Readings of now from every source; every name of the [`CATALOGUE`] is among them.
    pub fn sample(&mut self) -> Sample {
        let at = now();
        let mut readings = BTreeMap::new();
        for source in &mut self.sources {
            for (name, figure) in source.sample().readings {
                match readings.get(&name) {
                    Some(schwann_core::Figure { value: Some(_), .. }) => {}
                    Some(_) if figure.value.is_none() => {}
                    _ => drop(readings.insert(name, figure)),
                }
            }
        }
        complete(&mut readings);
        Sample { at, readings }
    }
}

impl Default for System {
    fn default() -> System {
        System::new()
    }
}
