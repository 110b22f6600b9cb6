//! Memory: what the plan laid out, what sessions hold, and what the system says of the process.

use super::compute::Ceiling;
use super::rig::Rig;
use super::{Profiler, Result};
use crate::profile::{Compute, Memory, MemoryPoint, Named};
use schwann_core::Figure;
use schwann_core::plan::{Buffer, Plan};
use std::collections::BTreeMap;

/// Runs over which allocations are counted.
const COUNTED_RUNS: usize = 8;

const PLAN: &str = "the compiled plan";

impl Profiler<'_> {
    pub(super) fn memory_of(
        &mut self,
        rig: &mut Rig,
        compute: &Compute,
        hardware: &BTreeMap<String, Figure>,
    ) -> Result<Memory> {
        let allocations = match self.allocations {
            None => Figure::unavailable("allocations", "allocator", "this program's allocator does not count"),
            Some(count) => {
                // Another thread may allocate meanwhile: the fewest of a few runs is the run's own.
                let mut fewest = u64::MAX;
                for _ in 0..COUNTED_RUNS {
                    fewest = fewest.min(rig.allocations(count)?);
                }
                Figure::measured(fewest as f64, "allocations", format!("allocator, the fewest of {COUNTED_RUNS} runs"))
            }
        };
        let plan = rig.plan();
        let reading = |name: &str, unit: &str| {
            let none = || Figure::unavailable(unit, name, "no source of readings was given to the profiler");
            hardware.get(name).cloned().unwrap_or_else(none)
        };
        let planned = |bytes: usize| Figure::derived(bytes as f64, "B", PLAN);
        let bandwidth =
            compute.bytes.derive2(&compute.time_p50, "GB/s", "bytes over the median time", |b, t| b / t / 1e9);
        let held = Figure::measured(
            rig.budget().stats().in_use as f64,
            "B",
            "reservations of the memory budget: inputs, arena, outputs",
        );
        Ok(Memory {
            arena: planned(plan.arena_bytes),
            live_peak: planned(plan.live_bytes),
            weights: planned(plan.weight_bytes),
            held,
            rss: reading("rss", "B"),
            rss_peak: reading("rss_peak", "B"),
            page_faults: reading("page_faults", "faults"),
            allocations,
            bandwidth_utilization: utilization(self.ceiling.as_ref(), plan, &bandwidth),
            bandwidth,
            timeline: timeline(plan),
        })
    }
}

/// The bandwidth in use, of what the level that holds the working set can do.
fn utilization(ceiling: Option<&Ceiling>, plan: &Plan, bandwidth: &Figure) -> Figure {
    let none = |why: &str| Figure::unavailable("%", "roofline", why);
    let Some(ceiling) = ceiling else { return none("this machine's limits were not measured for this profile") };
    let set = (plan.arena_bytes + plan.weight_bytes) as u64;
    match ceiling.level(set) {
        Some(level) => {
            let source = format!("bandwidth over what {} can do", level.name);
            bandwidth.derive2(&level.figure, "%", source, |b, most| b * 1e9 / most * 100.0)
        }
        None => none("it is not known what this machine's caches hold"),
    }
}

/// What a buffer is called: a kernel's working memory by the step that uses it.
fn holder(plan: &Plan, buffer: &Buffer) -> String {
    match plan.steps.get(buffer.first).filter(|_| buffer.scratch) {
        Some(step) => format!("working memory of {}", step.name),
        None => buffer.name.clone(),
    }
}

/// Bytes that are alive at a step.
pub(super) fn live(plan: &Plan, step: usize) -> impl Iterator<Item = &Buffer> {
    plan.buffers.iter().filter(move |b| (b.first..=b.last).contains(&step))
}

fn timeline(plan: &Plan) -> Vec<MemoryPoint> {
    let at = |step: usize| live(plan, step).map(|b| b.bytes).sum::<usize>();
    let peak = (0..plan.steps.len()).max_by_key(|&step| (at(step), std::cmp::Reverse(step)));
    let figure = |bytes: usize| Figure::derived(bytes as f64, "B", "the plan's lifetimes");
    let point = |(i, step): (usize, &schwann_core::plan::Step)| {
        let mut holders: Vec<&Buffer> = if Some(i) == peak { live(plan, i).collect() } else { vec![] };
        holders.sort_by_key(|b| std::cmp::Reverse(b.bytes));
        let named = |b: &Buffer| Named { name: holder(plan, b), figure: figure(b.bytes) };
        MemoryPoint { step: step.name.clone(), live: figure(at(i)), holders: holders.into_iter().map(named).collect() }
    };
    plan.steps.iter().enumerate().map(point).collect()
}
