//! The machine's memory: what is available, swap, and how long tasks waited for it (pressure stall information).

use super::Root;
use crate::source::{described, reading};
use crate::{Available, Sample, Source};
use schwann_core::Figure;
use std::collections::BTreeMap;

/// What `/proc/meminfo` says under a name, in bytes.
pub fn parse_meminfo(text: &str, name: &str) -> Option<u64> {
    let field = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    field.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The share of the last 10 s in which some task waited, in %, from `/proc/pressure/memory`.
pub fn parse_pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|l| l.strip_prefix("some "))?;
    let share = some.split_whitespace().find_map(|w| w.strip_prefix("avg10="))?.parse::<f64>().ok()?;
    (0.0..=100.0).contains(&share).then_some(share)
}

/// The source of the machine's memory.
pub struct Pressure {
    root: Root,
}

impl Pressure {
    /// Below this root.
    pub fn new(root: Root) -> Pressure {
        Pressure { root }
    }

    fn readings(&self) -> BTreeMap<String, Figure> {
        let meminfo = self.root.text("proc/meminfo");
        let told = |name: &str| -> Result<f64, String> {
            let missing = || format!("/proc/meminfo has no line `{name}`");
            meminfo.clone().and_then(|t| parse_meminfo(&t, name).ok_or_else(missing)).map(|v| v as f64)
        };
        let bytes = |name| reading(told(name), "B", "/proc/meminfo");
        let pressure = self.root.text("proc/pressure/memory").map_err(|e| {
            format!("{e}: the kernel tells it if built with CONFIG_PSI and, on some systems, started with psi=1")
        });
        let pressure = pressure.and_then(|t| {
            parse_pressure(&t).ok_or_else(|| "/proc/pressure/memory has no line `some avg10=…`".to_string())
        });
        let pressure = reading(pressure, "%", "/proc/pressure/memory, some avg10");
        let swap_used =
            bytes("SwapTotal").derive2(&bytes("SwapFree"), "B", "/proc/meminfo, SwapTotal - SwapFree", |t, f| t - f);
        [
            ("memory_total", bytes("MemTotal")),
            ("memory_available", bytes("MemAvailable")),
            ("swap_total", bytes("SwapTotal")),
            ("swap_used", swap_used),
            ("memory_pressure", if pressure.value.is_some() { pressure.with_resolution(0.01) } else { pressure }),
        ]
        .map(|(name, figure)| (name.to_string(), figure))
        .into()
    }
}

impl Source for Pressure {
    fn name(&self) -> &str {
        "memory"
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
    use super::super::Tree;
    use super::*;

    const MEMINFO: &str = "MemTotal:       24682416 kB\nMemFree:        21900612 kB\nMemAvailable:   22785808 kB\n\
                           SwapCached:            0 kB\nSwapTotal:       2097148 kB\nSwapFree:        2000000 kB\n";

    #[test]
    fn memory_swap_and_pressure_are_read() {
        let psi =
            "some avg10=1.25 avg60=0.00 avg300=0.11 total=4190356\nfull avg10=0.50 avg60=0.00 avg300=0.08 total=3\n";
        let tree = Tree::new(&[("proc/meminfo", MEMINFO), ("proc/pressure/memory", psi)]);
        let readings = Pressure::new(tree.root()).sample().readings;
        assert_eq!(readings["memory_available"].value, Some(22785808.0 * 1024.0));
        assert_eq!(readings["swap_used"].value, Some(97148.0 * 1024.0));
        assert_eq!(readings["memory_pressure"].value, Some(1.25));
    }

    #[test]
    fn without_pressure_information_the_rest_remains() {
        let tree = Tree::new(&[("proc/meminfo", "MemTotal: 1 kB\n")]);
        let readings = Pressure::new(tree.root()).sample().readings;
        assert_eq!(readings["memory_total"].value, Some(1024.0));
        assert!(readings["memory_pressure"].reason.as_ref().is_some_and(|r| r.contains("psi=1")));
        assert!(readings["swap_used"].reason.as_ref().is_some_and(|r| r.contains("SwapTotal")));
    }

    #[test]
    fn nonsense_is_not_a_number() {
        for text in ["", "some", "some avg10=", "some avg10=nan", "some avg10=400.0", "full avg10=1.0"] {
            assert_eq!(parse_pressure(text), None, "{text:?}");
        }
        assert_eq!(parse_meminfo("MemTotal: x kB", "MemTotal"), None);
        assert_eq!(parse_meminfo("MemTotalX: 1 kB", "MemTotal"), None);
    }
}
