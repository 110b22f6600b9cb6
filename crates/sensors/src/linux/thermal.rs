//! Temperatures by `hwmon` (chips with labelled sensors) and thermal zones (what the firmware names).

use super::{Root, plain};
use crate::source::{described, reading};
use crate::{Available, Sample, Source};
use schwann_core::Figure;
use std::collections::BTreeMap;

const NONE: &str = "neither /sys/class/hwmon nor /sys/class/thermal has a temperature; virtual machines have none, and on \
     others the sensor's driver may have to be loaded (coretemp, k10temp; `sensors-detect` of lm-sensors finds \
     it)";

/// Chips that are the CPU's own sensor, and its zones.
const CPU_CHIPS: [&str; 7] =
    ["coretemp", "k10temp", "zenpower", "cpu_thermal", "x86_pkg_temp", "soc_thermal", "scpi_sensors"];

/// Degrees from the text of `temp1_input` or a zone's `temp`: thousandths.
pub fn parse_millidegrees(text: &str) -> Option<f64> {
    let degrees = text.trim().parse::<i64>().ok()? as f64 / 1000.0;
    // Beyond this a sensor is not connected: drivers then show values such as -273.2.
    (-100.0..=250.0).contains(&degrees).then_some(degrees)
}

/// The source of temperatures.
pub struct Thermal {
    root: Root,
}

struct Sensor {
    chip: String,
    label: String,
    degrees: Result<f64, String>,
    path: String,
}

impl Thermal {
    /// Below this root.
    pub fn new(root: Root) -> Thermal {
        Thermal { root }
    }

    fn degrees(&self, path: &str) -> Result<f64, String> {
        let text = self.root.text(path)?;
        parse_millidegrees(&text).ok_or_else(|| format!("/{path} holds no temperature: the sensor is not connected"))
    }

    fn sensors(&self) -> Vec<Sensor> {
        let mut sensors = vec![];
        for chip in self.root.names("sys/class/hwmon") {
            let at = format!("sys/class/hwmon/{chip}");
            let name = self.root.word(&format!("{at}/name")).unwrap_or(chip);
            for file in self.root.names(&at) {
                let Some(sensor) = file.strip_prefix("temp").and_then(|f| f.strip_suffix("_input")) else { continue };
                let label = self.root.word(&format!("{at}/temp{sensor}_label")).unwrap_or_else(|| sensor.to_string());
                let path = format!("{at}/{file}");
                sensors.push(Sensor { chip: name.clone(), label, degrees: self.degrees(&path), path });
            }
        }
        for zone in self.root.names("sys/class/thermal") {
            if !zone.starts_with("thermal_zone") {
                continue;
            }
            let path = format!("sys/class/thermal/{zone}/temp");
            let chip = self.root.word(&format!("sys/class/thermal/{zone}/type")).unwrap_or_else(|| zone.clone());
            sensors.push(Sensor { chip, label: String::new(), degrees: self.degrees(&path), path });
        }
        sensors
    }

    fn readings(&self) -> BTreeMap<String, Figure> {
        let sensors = self.sensors();
        let mut readings = BTreeMap::new();
        for sensor in &sensors {
            let mut name = format!("temperature_{}", plain(&format!("{}_{}", sensor.chip, sensor.label)));
            // Two chips of one kind have the same labels.
            if readings.contains_key(&name) {
                name = format!("{name}_{}", plain(sensor.path.split('/').nth(3).unwrap_or("")));
            }
            let figure = reading(sensor.degrees.clone(), "°C", &format!("/{}", sensor.path));
            readings.insert(name, if figure.value.is_some() { figure.with_resolution(1e-3) } else { figure });
        }
        readings.insert("temperature_cpu".into(), cpu(&sensors));
        readings
    }
}

/// The package's sensor where one is labelled so, else the hottest of the CPU's.
fn cpu(sensors: &[Sensor]) -> Figure {
    let of_cpu = |s: &&Sensor| CPU_CHIPS.contains(&plain(&s.chip).as_str()) && s.degrees.is_ok();
    let package = |s: &&Sensor| s.label.starts_with("Package") || s.label == "Tdie" || s.label == "Tctl";
    let of_cpu: Vec<&Sensor> = sensors.iter().filter(of_cpu).collect();
    let chosen: Vec<&Sensor> = match of_cpu.iter().copied().filter(|s| package(s)).collect::<Vec<_>>() {
        packages if packages.is_empty() => of_cpu,
        packages => packages,
    };
    let hottest = chosen.iter().filter_map(|s| Some((s.degrees.as_ref().ok()?, s))).max_by(|a, b| a.0.total_cmp(b.0));
    match hottest {
        Some((degrees, sensor)) => {
            Figure::measured(*degrees, "°C", format!("/{} ({})", sensor.path, sensor.chip)).with_resolution(1e-3)
        }
        None if sensors.is_empty() => Figure::unavailable("°C", "hwmon, thermal zones", NONE),
        None => Figure::unavailable(
            "°C",
            "hwmon, thermal zones",
            "there are sensors, but none that is known to be the CPU's; they have their own names",
        ),
    }
}

impl Source for Thermal {
    fn name(&self) -> &str {
        "temperatures"
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

    #[test]
    fn sensors_have_their_labels_and_the_package_is_the_cpu() {
        let tree = Tree::new(&[
            ("sys/class/hwmon/hwmon0/name", "coretemp\n"),
            ("sys/class/hwmon/hwmon0/temp1_input", "52000\n"),
            ("sys/class/hwmon/hwmon0/temp1_label", "Package id 0\n"),
            ("sys/class/hwmon/hwmon0/temp2_input", "55000\n"),
            ("sys/class/hwmon/hwmon0/temp2_label", "Core 0\n"),
            ("sys/class/hwmon/hwmon1/name", "nvme\n"),
            ("sys/class/hwmon/hwmon1/temp1_input", "38850\n"),
            ("sys/class/hwmon/hwmon2/name", "nvme\n"),
            ("sys/class/hwmon/hwmon2/temp1_input", "41850\n"),
            ("sys/class/thermal/thermal_zone0/type", "acpitz\n"),
            ("sys/class/thermal/thermal_zone0/temp", "27800\n"),
            ("sys/class/thermal/cooling_device0/type", "Processor\n"),
        ]);
        let readings = Thermal::new(tree.root()).sample().readings;
        let values: Vec<(&str, Option<f64>)> = readings.iter().map(|(n, f)| (n.as_str(), f.value)).collect();
        assert_eq!(
            values,
            [
                ("temperature_acpitz", Some(27.8)),
                ("temperature_coretemp_core_0", Some(55.0)),
                ("temperature_coretemp_package_id_0", Some(52.0)),
                ("temperature_cpu", Some(52.0)),
                ("temperature_nvme_1", Some(38.85)),
                ("temperature_nvme_1_hwmon2", Some(41.85)),
            ]
        );
    }

    #[test]
    fn without_a_package_the_hottest_of_the_cpu_counts() {
        let tree = Tree::new(&[
            ("sys/class/thermal/thermal_zone0/type", "cpu-thermal\n"),
            ("sys/class/thermal/thermal_zone0/temp", "45000\n"),
            ("sys/class/thermal/thermal_zone1/type", "cpu-thermal\n"),
            ("sys/class/thermal/thermal_zone1/temp", "47000\n"),
        ]);
        assert_eq!(Thermal::new(tree.root()).sample().readings["temperature_cpu"].value, Some(47.0));
    }

    #[test]
    fn a_sensor_that_is_not_connected_has_no_temperature() {
        for text in ["", "-273200", "65535000", "4.2", "warm"] {
            assert_eq!(parse_millidegrees(text), None, "{text:?}");
        }
        let tree = Tree::new(&[
            ("sys/class/hwmon/hwmon0/name", "acpi\n"),
            ("sys/class/hwmon/hwmon0/temp1_input", "-273200\n"),
        ]);
        let readings = Thermal::new(tree.root()).sample().readings;
        assert!(readings["temperature_acpi_1"].reason.is_some());
        assert!(readings["temperature_cpu"].reason.as_ref().is_some_and(|r| r.contains("none that is known")));
    }
}
