//! Energy by RAPL, through the kernel's powercap files: counters in microjoules that wrap around.
//!
//! On Intel and AMD they count the package (`package-0`, …), of it the cores (`core`), and where the machine has it the
//! memory (`dram`); `psys` is the whole platform. Domains of one name on several sockets are added.

use super::Root;
use crate::source::described;
use crate::{Available, Sample, Source, now};
use schwann_core::Figure;
use std::collections::BTreeMap;

const ABSENT: &str = "/sys/class/powercap has no RAPL domain: virtual machines have none, and on others the kernel needs \
     intel_rapl_msr (`sudo modprobe intel_rapl_msr`; it serves AMD too)";
const LOCKED: &str = "energy is kept for root since Linux 5.10, against a side channel; `sudo chmod a+r \
     /sys/class/powercap/*/energy_uj` allows it until the next start";

/// Microjoules between two readings of a counter that goes back to 0 after `range`; `None` where it cannot tell.
pub fn energy_between(before: u64, after: u64, range: Option<u64>) -> Option<u64> {
    match after.checked_sub(before) {
        Some(difference) => Some(difference),
        None => range?.checked_sub(before)?.checked_add(after),
    }
}

/// What a domain's energy is called in readings.
fn meaning(domain: &str) -> Option<&'static str> {
    match domain {
        _ if domain.starts_with("package") => Some("package"),
        "core" => Some("cpu"),
        "dram" => Some("dram"),
        "psys" => Some("system"),
        _ => None,
    }
}

struct Domain {
    /// The file's directory.
    at: String,
    meaning: &'static str,
    range: Option<u64>,
    last: Result<u64, String>,
}

/// What the domains of one meaning add up to.
#[derive(Clone, Default)]
struct Total {
    /// Since the source was opened.
    joules: f64,
    /// Since the sample before.
    watts: f64,
    problem: Option<String>,
    from: Vec<String>,
}

/// The source of energy.
pub struct Rapl {
    root: Root,
    domains: Vec<Domain>,
    totals: BTreeMap<&'static str, Total>,
    at: f64,
}

impl Rapl {
    /// Below this root; energies count from now.
    pub fn new(root: Root) -> Rapl {
        let mut domains = vec![];
        for name in root.names("sys/class/powercap") {
            // The same registers are there a second time under `intel-rapl-mmio`.
            if !name.starts_with("intel-rapl:") {
                continue;
            }
            let at = format!("sys/class/powercap/{name}");
            let Some(meaning) = root.word(&format!("{at}/name")).as_deref().and_then(meaning) else { continue };
            let range = counter(&root, &format!("{at}/max_energy_range_uj")).ok();
            let last = counter(&root, &format!("{at}/energy_uj"));
            domains.push(Domain { at, meaning, range, last });
        }
        let mut totals: BTreeMap<&'static str, Total> = BTreeMap::new();
        for domain in &domains {
            let total = totals.entry(domain.meaning).or_default();
            total.from.push(format!("/{}/energy_uj", domain.at));
            if let Err(reason) = &domain.last {
                total.problem = Some(reason.clone());
            }
        }
        Rapl { root, domains, totals, at: now() }
    }

    /// Adds what was used since the sample before, which was `seconds` ago.
    fn advance(&mut self, seconds: f64) {
        self.totals.values_mut().for_each(|t| t.watts = 0.0);
        for domain in &mut self.domains {
            let Some(total) = self.totals.get_mut(domain.meaning) else { continue };
            let now = counter(&self.root, &format!("{}/energy_uj", domain.at));
            match (&domain.last, &now) {
                (Ok(before), Ok(after)) => match energy_between(*before, *after, domain.range) {
                    Some(used) => {
                        total.joules += used as f64 * 1e-6;
                        total.watts += used as f64 * 1e-6 / seconds;
                    }
                    None => total.problem = Some("the counter went back, and its range is not known".into()),
                },
                (_, Err(reason)) => total.problem = Some(reason.clone()),
                // Energy before the first reading is not known, so a sum from the opening on is not either.
                (Err(_), Ok(_)) => {}
            }
            domain.last = now;
        }
    }

    fn readings(&self) -> BTreeMap<String, Figure> {
        let mut readings = BTreeMap::new();
        for meaning in ["package", "cpu", "dram", "system"] {
            let (power, energy) = match self.totals.get(meaning) {
                Some(total) => {
                    let from = total.from.join(" + ");
                    match &total.problem {
                        Some(reason) => {
                            (Figure::unavailable("W", &from, reason), Figure::unavailable("J", &from, reason))
                        }
                        None => (
                            Figure::measured(
                                total.watts,
                                "W",
                                format!("{from}, over the time since the sample before"),
                            ),
                            Figure::measured(total.joules, "J", format!("{from}, since it was opened"))
                                .with_resolution(1e-6),
                        ),
                    }
                }
                None => {
                    let reason = match self.domains.is_empty() {
                        true => ABSENT.to_string(),
                        false => format!("this processor's RAPL has no domain of that ({meaning})"),
                    };
                    (Figure::unavailable("W", "powercap", &reason), Figure::unavailable("J", "powercap", &reason))
                }
            };
            readings.insert(format!("{meaning}_power"), power);
            readings.insert(format!("{meaning}_energy"), energy);
        }
        readings
    }
}

fn counter(root: &Root, path: &str) -> Result<u64, String> {
    let text = root.text(path).map_err(explained)?;
    text.trim().parse().map_err(|_| format!("/{path} holds no count of microjoules"))
}

/// The way to open a counter that this user may not read.
fn explained(problem: String) -> String {
    if problem.contains("may not be read") { format!("{problem}: {LOCKED}") } else { problem }
}

impl Source for Rapl {
    fn name(&self) -> &str {
        "energy"
    }

    fn describe(&self) -> Vec<Available> {
        described(&self.readings())
    }

    fn sample(&mut self) -> Sample {
        let at = now();
        // Power over no time is not known; `Figure` makes it unavailable.
        self.advance(at - self.at);
        self.at = at;
        Sample { at, readings: self.readings() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tree;
    use super::*;

    const PACKAGE: &str = "sys/class/powercap/intel-rapl:0";

    fn tree() -> Tree {
        let tree = Tree::new(&[("sys/class/powercap/intel-rapl/enabled", "1\n")]);
        for (at, name, energy) in [
            ("intel-rapl:0", "package-0", "900"),
            ("intel-rapl:0:0", "core", "100"),
            ("intel-rapl:0:1", "uncore", "7"),
            ("intel-rapl:1", "package-1", "500"),
            ("intel-rapl-mmio:0", "package-0", "900"),
        ] {
            tree.write(&format!("sys/class/powercap/{at}/name"), name);
            tree.write(&format!("sys/class/powercap/{at}/energy_uj"), energy);
            tree.write(&format!("sys/class/powercap/{at}/max_energy_range_uj"), "1000");
        }
        tree
    }

    #[test]
    fn energy_is_added_over_sockets_and_wraps_around() {
        assert_eq!(energy_between(900, 100, Some(1000)), Some(200));
        assert_eq!(energy_between(900, 100, None), None);
        assert_eq!(energy_between(900, 100, Some(10)), None);
        let tree = tree();
        let mut rapl = Rapl::new(tree.root());
        tree.write(&format!("{PACKAGE}/energy_uj"), "100");
        tree.write("sys/class/powercap/intel-rapl:1/energy_uj", "800");
        rapl.advance(0.5);
        let readings = rapl.readings();
        let close = |name: &str, expected: f64| {
            let value = readings[name].value.unwrap();
            assert!((value - expected).abs() < 1e-9, "{name}: {value}, expected {expected}");
        };
        close("package_energy", 500e-6);
        close("package_power", 1e-3);
        close("cpu_energy", 0.0);
        assert!(readings["package_energy"].source.contains("intel-rapl:1/"));
        assert!(readings["dram_power"].reason.as_ref().is_some_and(|r| r.contains("no domain")));
        rapl.advance(1.0);
        assert_eq!(rapl.readings()["package_power"].value, Some(0.0), "no energy since the sample before");
        assert!(rapl.readings()["package_energy"].value > Some(0.0));
    }

    #[test]
    fn a_counter_that_cannot_be_read_makes_its_sum_unavailable() {
        let tree = tree();
        let mut rapl = Rapl::new(tree.root());
        tree.write(&format!("{PACKAGE}/energy_uj"), "nonsense");
        rapl.advance(1.0);
        for name in ["package_power", "package_energy"] {
            assert!(rapl.readings()[name].reason.as_ref().is_some_and(|r| r.contains("intel-rapl:0/energy_uj")));
        }
        assert_eq!(rapl.readings()["cpu_energy"].value, Some(0.0));
        tree.write(&format!("{PACKAGE}/energy_uj"), "950");
        rapl.advance(1.0);
        assert_eq!(rapl.readings()["package_energy"].value, None, "a gap stays a gap");
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
    fn a_locked_counter_names_the_way_to_open_it() {
        use std::os::unix::fs::PermissionsExt;
        assert!(explained("/x may not be read by this user".into()).contains("chmod a+r"));
        assert_eq!(explained("/x is not there".into()), "/x is not there");
        let tree = tree();
        let locked = tree.path().join(format!("{PACKAGE}/energy_uj"));
        std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o0)).unwrap();
        let power = &Rapl::new(tree.root()).readings()["package_power"];
        // Root reads it all the same.
        if std::fs::read(&locked).is_ok() {
            eprintln!("skipped: this user reads what is locked");
        } else {
            assert!(power.reason.as_ref().is_some_and(|r| r.contains("chmod a+r")), "{power:?}");
        }
    }
}
