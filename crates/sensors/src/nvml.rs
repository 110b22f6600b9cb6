//! NVIDIA GPUs through NVML, the driver's own library, which is looked for when this is opened: without it, everything
//! is unavailable and nothing else changes.

use crate::source::described;
use crate::{Available, Sample, Source, now};
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use schwann_core::Figure;
use std::collections::BTreeMap;

/// What one GPU tells; each by itself, since cards lack one or another.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSample {
    /// Its name.
    pub name: String,
    /// Milliwatts.
    pub power_mw: Result<u32, String>,
    /// Millijoules since the driver was loaded.
    pub energy_mj: Result<u64, String>,
    /// Of the last period with work on it, in %.
    pub load_percent: Result<u32, String>,
    /// Bytes of its memory in use, and all.
    pub memory: Result<(u64, u64), String>,
    /// Degrees.
    pub temperature_c: Result<u32, String>,
    /// MHz of its cores.
    pub clock_mhz: Result<u32, String>,
}

/// The source of NVIDIA's GPUs.
pub struct Nvml {
    library: Result<nvml_wrapper::Nvml, String>,
    /// Energies when it was opened, by card.
    opened: Vec<Result<u64, String>>,
    /// When the sample before was taken, and its energies.
    before: (f64, Vec<Result<u64, String>>),
}

/// The counters of energy move about this often: over less time, their difference is no power.
const LEAST_WINDOW_S: f64 = 0.1;

impl Nvml {
    /// Looks for the library and its cards.
    pub fn open() -> Nvml {
        let library = nvml_wrapper::Nvml::init().map_err(|e| reason(&e));
        let mut nvml = Nvml { library, opened: vec![], before: (now(), vec![]) };
        nvml.opened = nvml.cards().into_iter().flatten().map(|c| c.energy_mj).collect();
        nvml.before = (now(), nvml.opened.clone());
        nvml
    }

    fn cards(&self) -> Result<Vec<GpuSample>, String> {
        let library = self.library.as_ref().map_err(String::clone)?;
        let count = library.device_count().map_err(|e| reason(&e))?;
        if count == 0 {
            return Err("NVIDIA's driver is there, and no GPU of theirs is".into());
        }
        let card = |index| {
            let device = library.device_by_index(index).map_err(|e| reason(&e))?;
            Ok(GpuSample {
                name: device.name().unwrap_or_else(|_| format!("GPU {index}")),
                power_mw: device.power_usage().map_err(|e| reason(&e)),
                energy_mj: device.total_energy_consumption().map_err(|e| reason(&e)),
                load_percent: device.utilization_rates().map(|u| u.gpu).map_err(|e| reason(&e)),
                memory: device.memory_info().map(|m| (m.used, m.total)).map_err(|e| reason(&e)),
                temperature_c: device.temperature(TemperatureSensor::Gpu).map_err(|e| reason(&e)),
                clock_mhz: device.clock_info(Clock::SM).map_err(|e| reason(&e)),
            })
        };
        (0..count).map(card).collect()
    }

    fn readings(&self, cards: &Result<Vec<GpuSample>, String>, at: f64) -> BTreeMap<String, Figure> {
        readings(cards, &self.opened, (at - self.before.0, &self.before.1))
    }
}

/// What an error of the library means.
fn reason(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            "NVIDIA's library (libnvidia-ml) is not there: this machine has no NVIDIA GPU, or not its driver".into()
        }
        NvmlError::DriverNotLoaded => "NVIDIA's driver is not loaded".into(),
        NvmlError::NoPermission => "NVML does not permit it to this user".into(),
        NvmlError::NotSupported => "this GPU does not tell it".into(),
        other => format!("NVML: {other}"),
    }
}

/// Figures of what the cards told; `opened` are their energies when the source was opened, `before` the seconds since the
/// sample before and the energies then.
pub fn readings(
    cards: &Result<Vec<GpuSample>, String>,
    opened: &[Result<u64, String>],
    before: (f64, &[Result<u64, String>]),
) -> BTreeMap<String, Figure> {
    type Pick = fn(&GpuSample) -> Result<f64, String>;
    const READINGS: [(&str, &str, f64, Pick); 5] = [
        ("gpu_load", "%", 1.0, |c| c.load_percent.clone().map(f64::from)),
        ("gpu_memory_used", "B", 1.0, |c| c.memory.clone().map(|m| m.0 as f64)),
        ("gpu_memory_total", "B", 1.0, |c| c.memory.clone().map(|m| m.1 as f64)),
        ("temperature_gpu", "°C", 1.0, |c| c.temperature_c.clone().map(f64::from)),
        ("gpu_frequency", "Hz", 1e6, |c| c.clock_mhz.clone().map(|v| f64::from(v) * 1e6)),
    ];
    let mut found = BTreeMap::new();
    let cards = match cards {
        Ok(cards) => cards,
        Err(reason) => {
            let names =
                READINGS.iter().map(|(name, unit, ..)| (*name, *unit)).chain([("gpu_power", "W"), ("gpu_energy", "J")]);
            return names.map(|(name, unit)| (name.into(), Figure::unavailable(unit, "NVML", reason))).collect();
        }
    };
    for (index, card) in cards.iter().enumerate() {
        let source = format!("NVML, GPU {index} ({})", card.name);
        // Without a number the first card; with several cards each has one.
        let mut add = |name: &str, figure: Figure| {
            if index == 0 {
                found.insert(name.to_string(), figure.clone());
            }
            if cards.len() > 1 {
                found.insert(name.replace("gpu", &format!("gpu{index}")), figure);
            }
        };
        let told = |unit: &str, resolution: f64, value: Result<f64, String>| match value {
            Ok(value) => Figure::measured(value, unit, &source).with_resolution(resolution),
            Err(reason) => Figure::unavailable(unit, &source, reason),
        };
        for (name, unit, resolution, pick) in READINGS {
            add(name, told(unit, resolution, pick(card)));
        }
        // Power over the time that it is quoted for, where energy is counted; what the card tells is of a moment.
        let used = match (&card.energy_mj, before.1.get(index)) {
            (Ok(now), Some(Ok(then))) if before.0 >= LEAST_WINDOW_S => now.checked_sub(*then),
            _ => None,
        };
        add("gpu_power", power(card, used, before.0, &source));
        let missing = Err("the GPU was not there when the source was opened".to_string());
        let before = opened.get(index).unwrap_or(&missing);
        let energy = card.energy_mj.clone().and_then(|now| {
            let used = now
                .checked_sub(before.clone()?)
                .ok_or("the counter of energy went back: the driver was loaded anew")?;
            Ok(used as f64 * 1e-3)
        });
        add("gpu_energy", told("J", 1e-3, energy));
    }
    found
}

/// A card's power: energy over the time since the sample before, or what the card tells of now.
fn power(card: &GpuSample, used_mj: Option<u64>, seconds: f64, source: &str) -> Figure {
    match (used_mj, &card.power_mw) {
        (Some(mj), _) => {
            let source = format!("{source}, energy over the {seconds:.2} s since the sample before");
            Figure::measured(mj as f64 * 1e-3 / seconds, "W", source).with_resolution(1e-3 / seconds)
        }
        (None, Ok(mw)) => {
            let source = format!("{source}, of the moment (its energy is not counted, or not for long enough)");
            Figure::measured(f64::from(*mw) * 1e-3, "W", source).with_resolution(1e-3)
        }
        (None, Err(reason)) => Figure::unavailable("W", source, reason),
    }
}

impl Source for Nvml {
    fn name(&self) -> &str {
        "nvml"
    }

    fn describe(&self) -> Vec<Available> {
        described(&self.readings(&self.cards(), now()))
    }

    fn sample(&mut self) -> Sample {
        let (cards, at) = (self.cards(), now());
        let readings = self.readings(&cards, at);
        self.before = (at, cards.into_iter().flatten().map(|c| c.energy_mj).collect());
        Sample { at, readings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(name: &str, energy_mj: u64) -> GpuSample {
        GpuSample {
            name: name.into(),
            power_mw: Ok(75_500),
            energy_mj: Ok(energy_mj),
            load_percent: Ok(40),
            memory: Ok((1 << 30, 16 << 30)),
            temperature_c: Ok(51),
            clock_mhz: Err("this GPU does not tell it".into()),
        }
    }

    #[test]
    fn a_card_is_read_in_plain_units_and_energy_counts_from_the_opening() {
        let readings = readings(&Ok(vec![card("T4", 5_000)]), &[Ok(2_000)], (0.0, &[]));
        assert_eq!(readings["gpu_power"].value, Some(75.5));
        assert_eq!(readings["gpu_energy"].value, Some(3.0));
        assert_eq!(readings["gpu_memory_total"].value, Some((16u64 << 30) as f64));
        assert!(readings["gpu_power"].source.contains("T4"));
        assert_eq!(readings["gpu_frequency"].reason.as_deref(), Some("this GPU does not tell it"));
        assert_eq!(readings.len(), 7);
    }

    #[test]
    fn power_is_energy_over_the_time_since_the_sample_before() {
        let of = |seconds: f64, before: &[Result<u64, String>]| {
            readings(&Ok(vec![card("T4", 5_000)]), &[Ok(2_000)], (seconds, before))["gpu_power"].clone()
        };
        let mean = of(0.5, &[Ok(4_000)]);
        assert_eq!(mean.value, Some(2.0), "1 J in half a second");
        assert!(mean.source.contains("0.50 s"), "{mean:?}");
        // Too short a time, no counter, or a counter that went back: the card's own word, which says that it is one.
        for told in [of(0.01, &[Ok(4_000)]), of(0.5, &[Err("no".into())]), of(0.5, &[]), of(0.5, &[Ok(9_000)])] {
            assert_eq!(told.value, Some(75.5));
            assert!(told.source.contains("of the moment"), "{told:?}");
        }
    }

    #[test]
    fn several_cards_have_numbers_and_the_first_is_the_gpu() {
        let readings = readings(&Ok(vec![card("A", 10), card("B", 30)]), &[Ok(10), Ok(10)], (0.0, &[]));
        assert_eq!(readings["gpu_energy"].value, Some(0.0));
        assert_eq!(readings["gpu1_energy"].value, Some(0.02));
        assert_eq!(readings["temperature_gpu1"].value, Some(51.0));
        assert_eq!(readings["gpu_power"], readings["gpu0_power"]);
    }

    #[test]
    fn without_a_library_each_reading_says_so() {
        let none = readings(&Err("not there".into()), &[], (0.0, &[]));
        assert_eq!(none.len(), 7);
        assert!(none.values().all(|f| f.value.is_none() && f.reason.as_deref() == Some("not there")));
        // Whatever this machine has, opening does not fail.
        let sample = Nvml::open().sample();
        assert_eq!(sample.problem(), None);
        assert!(sample.readings.contains_key("gpu_power"));
    }

    #[test]
    fn a_driver_loaded_anew_makes_energy_unknown() {
        let readings = readings(&Ok(vec![card("A", 10)]), &[Ok(20)], (0.0, &[]));
        assert!(readings["gpu_energy"].value.is_none());
    }
}
