//! Memory: what the plan laid out, what sessions hold, and what the system says of the process.

use super::compute::Ceiling;
use super::rig::Rig;
use super::{Profiler, Result};
use crate::device::roof::of_limit;
use crate::profile::{Compute, Memory, MemoryPoint, Named};
use schwann_core::Figure;
use schwann_core::plan::{Buffer, Plan, sites};
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
            bandwidth_utilization: utilization(self.ceiling(), plan, &compute.time_p50, self.options.backend.is_cpu()),
            bandwidth,
            timeline: timeline(plan),
        })
    }
}

/// The least time for every operation's bytes, each from as near as it can be, over the median time.
fn utilization(ceiling: Option<Ceiling>, plan: &Plan, time: &Figure, is_cpu: bool) -> Figure {
    let source = "the least time for the bytes of every operation over the median time";
    let none = |why: &str| Figure::unavailable("%", source, why);
    let Some(ceiling) = ceiling else { return none("this machine's limits were not measured for this profile") };
    if !is_cpu {
        return none("what a kernel keeps near its threads on this device is not counted");
    }
    let places = sites(plan).into_iter().filter(|site| site.step.looped.is_none());
    let least = places.map(|site| Some(site.calls as f64 * ceiling.memory(site.step.cost.bytes())?)).sum();
    match least {
        Some(least) => of_limit(time, least, source),
        None => none("it is not known what this machine's caches hold, or how fast memory beyond them is"),
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
