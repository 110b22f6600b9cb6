//! The doctor: the guides' diagnosis and checklist for this machine and this model, each point with what was found.
//! What could not be looked at is said to be so; it is no pass.

use super::{advice, share_of};
use crate::plot::unit::percent;
use crate::profile::{Bound, Profile};
use schemars::JsonSchema;
use schwann_core::Figure;
use schwann_core::plan::bytes;
use schwann_kernels::Isa;
use serde::Serialize;
use std::collections::BTreeMap;

/// How a point stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Good,
    /// Something to change: it costs time for certain.
    Problem,
    /// Something that may help, and only trying tells.
    Try,
    /// It could not be looked at.
    Unknown,
}

/// One point of the checklist.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub finding: String,
    /// What to do about it.
    pub advice: Option<String>,
    /// The figure it rests on, where there is one.
    pub figure: Option<Figure>,
}

/// Memory in use beyond this share of the machine is too much, in %.
const FULL: f64 = 90.0;
/// Stalls for memory beyond this share of the time are pressure, in %.
const STALLED: f64 = 5.0;
/// Overhead beyond this share of a run is too much, in %.
const MUCH_OVERHEAD: f64 = 20.0;

struct Checklist(Vec<Check>);

impl Checklist {
    fn note(&mut self, name: &str, state: State, finding: impl Into<String>, advice: Option<&str>) {
        let (name, finding, advice) = (name.into(), finding.into(), advice.map(Into::into));
        self.0.push(Check { name, state, finding, advice, figure: None });
    }

    /// A point that rests on a figure: unknown without a value, else a problem where `bad` says so.
    fn figure(
        &mut self,
        name: &str,
        figure: Option<&Figure>,
        bad: impl Fn(f64) -> bool,
        finding: impl Fn(f64) -> String,
        advice: &str,
    ) {
        let value = figure.and_then(|f| f.value);
        let why = || figure.and_then(|f| f.reason.clone()).unwrap_or_else(|| "nothing here reads it".into());
        let (state, finding, advice) = match value {
            Some(v) if bad(v) => (State::Problem, finding(v), Some(advice)),
            Some(v) => (State::Good, finding(v), None),
            None => (State::Unknown, why(), None),
        };
        self.note(name, state, finding, advice);
        self.0.last_mut().expect("just added").figure = figure.cloned();
    }

    /// The last point is nothing wrong: it may help to change it.
    fn only_to_try(&mut self) {
        if let Some(check) = self.0.last_mut().filter(|c| c.state == State::Problem) {
            check.state = State::Try;
        }
    }
}

/// Looks at this machine (by `readings`, as [`schwann_sensors::System`] gives them) and at a profile made on it.
pub fn diagnose(profile: Option<&Profile>, readings: &BTreeMap<String, Figure>) -> Vec<Check> {
    let mut list = Checklist(vec![]);
    machine(&mut list, readings);
    if let Some(profile) = profile {
        model(&mut list, profile);
    }
    list.0
}

fn machine(list: &mut Checklist, readings: &BTreeMap<String, Figure>) {
    let reading = |name: &str| readings.get(name);
    let widest = Isa::detect();
    let state = if widest.name() == "portable" { State::Problem } else { State::Good };
    let advice = (state == State::Problem).then_some("this CPU has no vector unit that the kernels know");
    list.note("instruction set", state, format!("{widest}, {} floats per register", widest.lanes()), advice);
    let build = if cfg!(debug_assertions) { State::Problem } else { State::Good };
    let advice = (build == State::Problem).then_some("build with --release: times of a debug build mean nothing");
    list.note("build", build, if build == State::Good { "optimised" } else { "with debug assertions" }, advice);
    list.figure(
        "power mode",
        reading("power_saving"),
        |v| v > 0.0,
        |v| if v > 0.0 { "the system saves power: clocks are held down".into() } else { "not saving power".into() },
        "choose the performance mode in the system's power settings while measuring",
    );
    list.figure(
        "power supply",
        reading("on_battery"),
        |v| v > 0.0,
        |v| if v > 0.0 { "on battery".into() } else { "on mains".into() },
        "plug it in: many machines are slower on battery",
    );
    list.figure(
        "other work",
        reading("cpu_load"),
        |v| v > 25.0,
        |v| format!("the machine's cores are {v:.0}% busy, this program included"),
        "close other programs, or they will distort the figures",
    );
    let used = reading("memory_available").zip(reading("memory_total"));
    let used = used.map(|(free, all)| free.derive2(all, "%", "memory not available", |f, a| 100.0 * (1.0 - f / a)));
    list.figure(
        "memory in use",
        used.as_ref(),
        |v| v > FULL,
        |v| format!("{v:.0}% of the machine's memory"),
        "free memory, or use a smaller batch",
    );
    let level = reading("memory_pressure_level").filter(|f| f.value.is_some());
    list.figure(
        "memory pressure",
        level.or(reading("memory_pressure")),
        |v| if level.is_some() { v > 1.0 } else { v > STALLED },
        |v| match level {
            Some(_) => format!("level {v:.0} (1 is normal, 2 a warning, 4 critical)"),
            None => format!("{v:.1}% of the last ten seconds something waited for memory"),
        },
        "free memory: the system is moving pages instead of running the model",
    );
    list.figure(
        "swap",
        reading("swap_used"),
        |v| v > 256e6,
        |v| if v > 0.0 { format!("{} in use", bytes(v as u64)) } else { "not in use".into() },
        "pages of this program may lie on disk: free memory",
    );
    list.figure("hardware counters", reading("instructions"), |_| false, |_| "there".into(), "");
}

fn model(list: &mut Checklist, p: &Profile) {
    let widest = Isa::detect().to_string();
    let state = if p.machine.isa == widest { State::Good } else { State::Problem };
    let advice = (state == State::Problem).then_some("leave out --isa: a wider instruction set is there");
    list.note("placement", state, format!("every operation on the CPU, {}", p.machine.isa), advice);
    let fused = p.workload.compilation == "fused";
    let advice = (!fused).then_some("leave out --node-by-node");
    let finding = format!("{}, {} kernel calls in the plan", p.workload.compilation, p.compute.ops.len());
    list.note("kernel fusion", if fused { State::Good } else { State::Problem }, finding, advice);
    let products = share_of(p, |op| op.kind.multiplies_weights());
    let dtype = &p.workload.dtype;
    // Only what calibration measured says which type is fast: having the instructions does not.
    let (state, finding) = match advice::bf16_gain(p) {
        None => (State::Unknown, format!("{dtype}; whether bfloat16 is faster here was not measured")),
        Some(gain) => {
            let times = format!("products of bfloat16 run at {gain:.1} times the speed of f32 here (measured)");
            let worth = dtype == "f32" && gain > advice::LEAST_BF16_GAIN && products >= 30.0;
            let text = format!("{dtype}; {times}, and products are {products:.0}% of a run");
            (if worth { State::Try } else { State::Good }, text)
        }
    };
    let advice = (state == State::Try).then_some("try --bf16, and check the outputs");
    list.note("type", state, finding, advice);
    list.figure(
        "allocation",
        Some(&p.memory.allocations),
        |v| v > 0.0,
        |v| if v > 0.0 { format!("{v:.1} per run") } else { "none after the first run".into() },
        "reuse the session: a new one lays its memory out again",
    );
    list.figure(
        "page faults",
        Some(&p.memory.page_faults),
        |v| v > 1000.0,
        |v| format!("{v:.0} during the timed runs"),
        "something touches new memory while the model runs: look for growing buffers",
    );
    let known = p.compute.ops.iter().any(|op| op.bound != Bound::Unknown);
    let overhead = share_of(p, |op| op.bound == Bound::Overhead || op.path.is_empty());
    let overhead = if known {
        Figure::derived(overhead, "%", "shares of operations bound by overhead, and of the run itself")
    } else {
        Figure::unavailable("%", "bounds", "the machine's limits are not known: schwann devices calibrate")
    };
    list.figure(
        "batch size",
        Some(&overhead),
        |v| v > MUCH_OVERHEAD,
        |v| format!("{v:.0}% of a run is overhead at batch {:.0}", p.workload.batch.value.unwrap_or(f64::NAN)),
        "run more sequences at a time where the task allows it: --sweep shows where it stops helping",
    );
    list.only_to_try();
    let (threads, cores) = (p.workload.threads.value, p.machine.cores.value);
    let idle = threads.zip(cores).filter(|(t, c)| t < c && p.workload.batch.value.is_some_and(|b| b > 1.0));
    let finding = match (threads, cores) {
        (Some(t), Some(c)) => format!("{t:.0} of {c:.0} cores"),
        _ => "not known".into(),
    };
    let state = if idle.is_some() { State::Try } else { State::Good };
    let advice = "`schwann profile MODEL --threads 0` uses them all, and --compare shows whether that is faster";
    list.note("threads", state, finding, idle.map(|_| advice));
    let lanes = Isa::detect().lanes();
    let ragged = super::recommend(p).into_iter().find(|a| a.recommendation.title.contains("registers"));
    let (state, finding) = match &ragged {
        Some(advice) => (State::Try, advice.recommendation.evidence.clone()),
        None => (State::Good, format!("no costly product leaves much of a register of {lanes} lanes idle")),
    };
    list.note("alignment", state, finding, ragged.as_ref().map(|a| a.recommendation.how.as_str()));
    let memory_bound = share_of(p, |op| op.bound == Bound::Memory);
    let finding = if known {
        format!("{}% of a run waits for memory; every tensor is contiguous", percent(memory_bound, 0))
    } else {
        "every tensor is contiguous; what waits for memory is not known without a calibration".into()
    };
    let state = if known { State::Good } else { State::Unknown };
    list.note("memory access", state, finding, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{nothing, profile as complete};

    #[test]
    fn what_cannot_be_read_is_unknown_and_says_why() {
        let checks = diagnose(Some(&nothing()), &BTreeMap::new());
        for name in ["power mode", "memory pressure", "swap", "hardware counters", "allocation", "batch size"] {
            let check = checks.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(check.state, State::Unknown, "{name}");
            assert!(!check.finding.is_empty(), "{name}");
        }
    }

    #[test]
    fn what_is_only_worth_a_try_is_no_problem() {
        let mut profile = complete();
        profile.workload.threads = Figure::derived(1.0, "1", "option");
        profile.machine.cores = Figure::measured(8.0, "1", "system");
        for gain in [0.5, 1.9] {
            profile.roof.bf16_gain = Some(Figure::derived(gain, "×", "a test"));
            let checks = diagnose(Some(&profile), &BTreeMap::new());
            let model = ["threads", "type", "batch size", "alignment", "kernel fusion"];
            for check in checks.iter().filter(|c| model.contains(&c.name.as_str())) {
                assert_ne!(check.state, State::Problem, "{}: {}", check.name, check.finding);
            }
            let kind = checks.iter().find(|c| c.name == "type").unwrap();
            assert!(kind.finding.contains(&format!("{gain} times")), "{}", kind.finding);
            assert!(gain > 1.0 || kind.state == State::Good, "half as fast is nothing to try");
        }
    }

    #[test]
    fn problems_are_found_and_come_with_advice() {
        let reading = |v: f64, unit: &str| Figure::measured(v, unit, "built for a test");
        let readings: BTreeMap<String, Figure> = [
            ("power_saving", reading(1.0, "1")),
            ("on_battery", reading(1.0, "1")),
            ("memory_available", reading(1e9, "B")),
            ("memory_total", reading(32e9, "B")),
            ("memory_pressure", reading(40.0, "%")),
            ("swap_used", reading(2e9, "B")),
            ("cpu_load", reading(90.0, "%")),
        ]
        .map(|(name, figure)| (name.to_owned(), figure))
        .into();
        let mut profile = complete();
        profile.workload.compilation = "node by node".into();
        profile.workload.threads = Figure::derived(1.0, "1", "option");
        profile.machine.cores = Figure::measured(8.0, "1", "system");
        let checks = diagnose(Some(&profile), &readings);
        let bad = ["power mode", "power supply", "memory in use", "memory pressure", "swap", "other work"];
        for name in bad.into_iter().chain(["kernel fusion"]) {
            let check = checks.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(check.state, State::Problem, "{name}: {}", check.finding);
            assert!(check.advice.as_ref().is_some_and(|a| !a.is_empty()), "{name}");
        }
        let state = |name: &str| checks.iter().find(|c| c.name == name).map(|c| (c.state, c.advice.is_some()));
        assert_eq!(state("threads"), Some((State::Try, true)), "more threads may help, and may not");
        let calm = readings.into_iter().map(|(name, f)| (name, Figure { value: Some(0.0), ..f })).collect();
        let checks = diagnose(None, &calm);
        assert!(checks.iter().filter(|c| c.name.starts_with("power")).all(|c| c.state == State::Good));
    }
}
