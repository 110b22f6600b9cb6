//! Cores: load by `/proc/stat`, frequency by cpufreq or `/proc/cpuinfo`, and how power is managed.

use super::Root;
use crate::source::described;
use crate::{Available, Sample, Source};
use schwann_core::Figure;
use std::collections::BTreeMap;

/// Ticks that a core has been busy, and all its ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// Not idle and not waiting for a disk.
    pub busy: u64,
    /// All.
    pub all: u64,
}

/// Ticks from `/proc/stat`: under `None` all cores together, under a number that core.
pub fn parse_stat(text: &str) -> BTreeMap<Option<usize>, Ticks> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split(' ');
        let core = match words.next()? {
            "" => None,
            number => Some(number.parse::<usize>().ok()?),
        };
        // user nice system idle iowait irq softirq steal; guest time is within user.
        let ticks: Vec<u64> = words.filter(|w| !w.is_empty()).take(8).map_while(|w| w.parse().ok()).collect();
        let &[user, nice, system, idle, ref rest @ ..] = &ticks[..] else { return None };
        let idle = idle.checked_add(rest.first().copied().unwrap_or(0))?;
        let busy =
            [user, nice, system].iter().chain(rest.iter().skip(1)).try_fold(0u64, |sum, t| sum.checked_add(*t))?;
        Some((core, Ticks { busy, all: busy.checked_add(idle)? }))
    };
    text.lines().filter_map(line).collect()
}

/// Each core's frequency in Hz from `/proc/cpuinfo`, by its number.
///
/// Only a CPU with the counters APERF and MPERF, which has the flag `aperfmperf`, shows what it runs at. Others,
/// virtual machines among them, show what is printed on the box: that is an error here, with the figure in it.
pub fn parse_cpuinfo(text: &str) -> Result<BTreeMap<usize, f64>, String> {
    let mut core = None;
    let mut frequencies = BTreeMap::new();
    let mut counted = false;
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        match key.trim() {
            "processor" => core = value.trim().parse::<usize>().ok(),
            "flags" => counted |= value.split_whitespace().any(|f| f == "aperfmperf"),
            "cpu MHz" => {
                if let (Some(core), Ok(mhz)) = (core, value.trim().parse::<f64>()) {
                    frequencies.insert(core, mhz * 1e6);
                }
            }
            _ => {}
        }
    }
    frequencies.retain(|_, hz: &mut f64| hz.is_finite() && *hz > 0.0);
    match frequencies.values().next() {
        None => Err("neither cpufreq nor /proc/cpuinfo tells it".into()),
        Some(hz) if !counted => Err(format!(
            "there is no cpufreq, and /proc/cpuinfo has the nominal frequency alone ({:.0} MHz): a virtual machine is \
             not told the present one",
            hz / 1e6
        )),
        Some(_) => Ok(frequencies),
    }
}

/// How the machine manages its power.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PowerMode {
    /// The firmware's profile, such as `balanced` or `low-power`.
    pub profile: Option<String>,
    /// The governor of the first core, such as `performance`, `schedutil`, `powersave`.
    pub governor: Option<String>,
    /// The driver that the governor steers.
    pub driver: Option<String>,
    /// What a driver that chooses by itself is asked to prefer, such as `balance_performance` or `power`.
    pub preference: Option<String>,
    /// Whether the mains are connected; `None` on machines without a battery.
    pub mains: Option<bool>,
}

impl PowerMode {
    /// Read below this root.
    pub fn read(root: &Root) -> PowerMode {
        let cpufreq = |file: &str| root.word(&format!("sys/devices/system/cpu/cpu0/cpufreq/{file}"));
        let mut mains = None;
        for supply in root.names("sys/class/power_supply") {
            let at = format!("sys/class/power_supply/{supply}");
            if matches!(root.word(&format!("{at}/type")).as_deref(), Some("Mains" | "USB"))
                && let Ok(online) = root.number(&format!("{at}/online"))
            {
                mains = Some(mains.unwrap_or(false) || online > 0.0);
            }
        }
        PowerMode {
            profile: root.word("sys/firmware/acpi/platform_profile"),
            governor: cpufreq("scaling_governor"),
            driver: cpufreq("scaling_driver"),
            preference: cpufreq("energy_performance_preference"),
            mains,
        }
    }

    /// Whether it saves power at the cost of speed; `None` where nothing tells.
    ///
    /// The governor `powersave` alone does not: with a driver that chooses by itself (intel_pstate, amd-pstate-epp) it
    /// is the usual one, and the preference decides.
    pub fn saving(&self) -> Option<bool> {
        if self.profile.is_none() && self.governor.is_none() {
            return None;
        }
        let profile = matches!(self.profile.as_deref(), Some("low-power" | "quiet" | "cool"));
        let chooses = matches!(self.driver.as_deref(), Some("intel_pstate" | "amd-pstate-epp" | "amd_pstate_epp"));
        let governor = match self.governor.as_deref() {
            Some("powersave") => !chooses || self.preference.as_deref() == Some("power"),
            Some("conservative") => true,
            _ => false,
        };
        Some(profile || governor)
    }

    /// In words.
    pub fn describe(&self) -> String {
        let part = |name: &str, value: &Option<String>| value.as_ref().map(|v| format!("{name} `{v}`"));
        let mains = self.mains.map(|m| if m { "mains connected" } else { "on battery" }.to_string());
        let parts = [
            part("platform profile", &self.profile),
            part("governor", &self.governor),
            part("driver", &self.driver),
            part("preference", &self.preference),
            mains,
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The source of the cores.
pub struct Cpu {
    root: Root,
    before: Result<BTreeMap<Option<usize>, Ticks>, String>,
}

impl Cpu {
    /// Below this root; loads are since now.
    pub fn new(root: Root) -> Cpu {
        let before = stat(&root);
        Cpu { root, before }
    }

    fn loads(&self, now: &Result<BTreeMap<Option<usize>, Ticks>, String>) -> BTreeMap<String, Figure> {
        let source = "/proc/stat, since the sample before";
        let mut readings = BTreeMap::new();
        match (&self.before, now) {
            (Ok(before), Ok(now)) => {
                for (core, ticks) in now {
                    let name = core.map_or("cpu_load".to_string(), |n| format!("cpu{n}_load"));
                    let before = before.get(core).copied().unwrap_or_default();
                    let all = ticks.all.saturating_sub(before.all) as f64;
                    let busy = ticks.busy.saturating_sub(before.busy) as f64;
                    let figure = if all > 0.0 {
                        // Idle time may be corrected backwards, by a tick.
                        let load = (100.0 * busy / all).min(100.0);
                        Figure::measured(load, "%", source).with_resolution(100.0 / all)
                    } else {
                        Figure::unavailable("%", source, "no tick of the kernel's clock passed since the sample before")
                    };
                    readings.insert(name, figure);
                }
                let cores = now.keys().flatten().count();
                if cores > 0 {
                    readings.insert("cpu_cores".into(), Figure::measured(cores as f64, "count", "/proc/stat"));
                }
            }
            (_, Err(reason)) | (Err(reason), _) => {
                readings.insert("cpu_load".into(), Figure::unavailable("%", source, reason));
                readings.insert("cpu_cores".into(), Figure::unavailable("count", "/proc/stat", reason));
            }
        }
        let missing = "/proc/stat has no such line";
        for (name, unit) in [("cpu_load", "%"), ("cpu_cores", "count")] {
            readings.entry(name.into()).or_insert_with(|| Figure::unavailable(unit, "/proc/stat", missing));
        }
        readings
    }

    fn frequencies(&self) -> BTreeMap<String, Figure> {
        let mut readings = BTreeMap::new();
        for core in self.root.names("sys/devices/system/cpu") {
            let Some(number) = core.strip_prefix("cpu").filter(|n| n.parse::<usize>().is_ok()) else { continue };
            let path = format!("sys/devices/system/cpu/{core}/cpufreq/scaling_cur_freq");
            if let Ok(khz) = self.root.number(&path) {
                let figure = Figure::measured(khz * 1e3, "Hz", format!("/{path}")).with_resolution(1e3);
                readings.insert(format!("cpu{number}_frequency"), figure);
            }
        }
        let mut source = "cpufreq, mean of the cores";
        let mut problem = String::new();
        if readings.is_empty() {
            source = "/proc/cpuinfo, mean of the cores";
            match self.root.text("proc/cpuinfo").and_then(|t| parse_cpuinfo(&t)) {
                Ok(cores) => {
                    let figure = |hz| Figure::measured(hz, "Hz", "/proc/cpuinfo, cpu MHz").with_resolution(1e3);
                    readings.extend(cores.into_iter().map(|(core, hz)| (format!("cpu{core}_frequency"), figure(hz))));
                }
                Err(reason) => problem = reason,
            }
        }
        let values: Vec<f64> = readings.values().filter_map(|f| f.value).collect();
        let mean = if values.is_empty() {
            Figure::unavailable("Hz", "cpufreq, /proc/cpuinfo", problem)
        } else {
            Figure::derived(values.iter().sum::<f64>() / values.len() as f64, "Hz", source)
        };
        readings.insert("cpu_frequency".into(), mean);
        readings
    }

    fn power(&self) -> BTreeMap<String, Figure> {
        let mode = PowerMode::read(&self.root);
        let flag = |value: Option<bool>, reason: &str| match value {
            Some(value) => Figure::derived(f64::from(u8::from(value)), "flag", mode.describe()),
            None => Figure::unavailable("flag", "cpufreq, platform profile, power supply", reason),
        };
        let saving =
            flag(mode.saving(), "there is no governor and no platform profile: a virtual machine's host decides");
        let battery = flag(mode.mains.map(|m| !m), "no power supply tells whether the mains are connected");
        [("power_saving".to_string(), saving), ("on_battery".to_string(), battery)].into()
    }
}

fn stat(root: &Root) -> Result<BTreeMap<Option<usize>, Ticks>, String> {
    root.text("proc/stat").map(|t| parse_stat(&t))
}

impl Source for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn describe(&self) -> Vec<Available> {
        let one = |t: &Ticks| Ticks { busy: t.busy, all: t.all + 1 };
        let later = self.before.as_ref().map(|b| b.iter().map(|(core, t)| (*core, one(t))).collect());
        let mut readings = self.loads(&later.map_err(String::clone));
        readings.extend(self.frequencies());
        readings.extend(self.power());
        described(&readings)
    }

    fn sample(&mut self) -> Sample {
        let now = stat(&self.root);
        let mut readings = self.loads(&now);
        self.before = now;
        readings.extend(self.frequencies());
        readings.extend(self.power());
        Sample::new(readings)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tree;
    use super::*;

    const STAT: &str =
        "cpu  100 10 40 800 50 0 0 0 0 0\ncpu0 50 5 20 400 25 0 0 0 0 0\ncpu1 50 5 20 400 25 0 0 0 0 0\nintr 1 2\n";

    #[test]
    fn load_is_what_was_not_idle_since_the_sample_before() {
        let tree = Tree::new(&[("proc/stat", STAT)]);
        let mut cpu = Cpu::new(tree.root());
        let first = cpu.sample().readings;
        assert!(first["cpu_load"].reason.as_ref().is_some_and(|r| r.contains("no tick")));
        // 30 ticks busy on core 0, which had 20 idle; core 1 waited for a disk.
        tree.write(
            "proc/stat",
            "cpu  130 10 40 820 100 0 0 0 0 0\ncpu0 80 5 20 420 25 0 0 0 0 0\ncpu1 50 5 20 400 75 0 0 0 0 0\n",
        );
        let second = cpu.sample().readings;
        assert_eq!(second["cpu_load"].value, Some(30.0));
        assert_eq!(second["cpu0_load"].value, Some(60.0));
        assert_eq!(second["cpu1_load"].value, Some(0.0));
        assert_eq!(second["cpu_load"].resolution, Some(1.0));
        assert_eq!(second["cpu_cores"].value, Some(2.0));
    }

    #[test]
    fn damaged_lines_are_left_out() {
        for text in ["", "cpu", "cpu 1 2 3", "cpuX 1 2 3 4", "cpu0 1 2 x 4 5", "cpu 18446744073709551615 1 1 1 1"] {
            assert!(parse_stat(text).is_empty(), "{text:?}");
        }
        assert_eq!(parse_stat("cpu3 1 2 3 4")[&Some(3)], Ticks { busy: 6, all: 10 });
        let info =
            "flags : fpu aperfmperf\ncpu MHz : 1\nprocessor : 1\ncpu MHz : nan\nprocessor : 2\ncpu MHz\t: 2596.132";
        assert_eq!(parse_cpuinfo(info), Ok([(2, 2596132000.0)].into()));
    }

    #[test]
    fn a_nominal_frequency_is_not_the_present_one() {
        let info = "processor\t: 0\ncpu MHz\t\t: 2596.132\nflags\t\t: fpu hypervisor\n";
        let tree = Tree::new(&[("proc/cpuinfo", info)]);
        let readings = Cpu::new(tree.root()).sample().readings;
        assert_eq!(readings["cpu_frequency"].value, None);
        assert!(
            readings["cpu_frequency"].reason.as_ref().is_some_and(|r| r.contains("nominal") && r.contains("2596 MHz"))
        );
        assert!(!readings.contains_key("cpu0_frequency"));
    }

    #[test]
    fn frequency_is_cpufreq_or_else_cpuinfo() {
        let info =
            "processor\t: 0\ncpu MHz\t\t: 2000.000\nflags\t\t: aperfmperf\n\nprocessor\t: 1\ncpu MHz\t\t: 3000.000\n";
        let tree = Tree::new(&[("proc/cpuinfo", info)]);
        let readings = Cpu::new(tree.root()).sample().readings;
        assert_eq!((readings["cpu1_frequency"].value, readings["cpu_frequency"].value), (Some(3e9), Some(2.5e9)));
        tree.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1200000\n");
        tree.write("sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "1\n");
        let readings = Cpu::new(tree.root()).sample().readings;
        assert_eq!(readings["cpu0_frequency"].value, Some(1.2e9));
        assert!(readings["cpu_frequency"].source.contains("cpufreq"));
    }

    #[test]
    fn powersave_saves_only_where_the_governor_decides() {
        let mode = |driver: &str, governor: &str, preference: Option<&str>| PowerMode {
            driver: Some(driver.into()),
            governor: Some(governor.into()),
            preference: preference.map(str::to_string),
            ..PowerMode::default()
        };
        assert_eq!(mode("acpi-cpufreq", "powersave", None).saving(), Some(true));
        assert_eq!(mode("intel_pstate", "powersave", Some("balance_performance")).saving(), Some(false));
        assert_eq!(mode("intel_pstate", "powersave", Some("power")).saving(), Some(true));
        assert_eq!(mode("acpi-cpufreq", "performance", None).saving(), Some(false));
        assert_eq!(PowerMode::default().saving(), None);
        let quiet = PowerMode { profile: Some("low-power".into()), ..PowerMode::default() };
        assert_eq!(quiet.saving(), Some(true));
    }

    #[test]
    fn a_laptop_without_mains_is_on_battery() {
        let tree = Tree::new(&[
            ("sys/class/power_supply/AC/type", "Mains\n"),
            ("sys/class/power_supply/AC/online", "0\n"),
            ("sys/class/power_supply/BAT0/type", "Battery\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
        ]);
        let readings = Cpu::new(tree.root()).sample().readings;
        assert_eq!((readings["on_battery"].value, readings["power_saving"].value), (Some(1.0), Some(0.0)));
        assert!(readings["power_saving"].source.contains("governor `performance`"));
        tree.write("sys/class/power_supply/AC/online", "1\n");
        assert_eq!(Cpu::new(tree.root()).sample().readings["on_battery"].value, Some(0.0));
    }
}
