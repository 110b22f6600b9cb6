//! The experiment that says how good predictions are here: predict, measure, compare.
//!
//! Each model and shape is measured in several rounds, in turns with all others, and the least time kept: prices are
//! those of an undisturbed machine, so they are compared with that.

use super::calibrate::Calibration;
use super::cpu::Processor;
use super::outlook::prediction_error;
use super::predict::{OpTime, Speed, predict};
use super::roof::{Ready, numbers};
use super::{Progress, Result};
use crate::measure::Samples;
use crate::models;
use crate::profile::{Named, Op};
use crate::profiler::{Options, Profiler};
use schwann_core::figure::{Ends, Spread};
use schwann_core::pass::PassOptions;
use schwann_core::{DType, Figure};
use schwann_nn::{GraphOptions, InitialState};
use serde::Serialize;

/// A prediction is good within this, in %.
pub const WITHIN: f64 = 25.0;

/// Runs of each round at least, the first round apart.
const LEAST_RUNS: f64 = 30.0;

/// One model at one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The model.
    pub model: String,
    /// Sequences in a batch.
    pub batch: usize,
    /// Steps of a sequence.
    pub steps: usize,
    /// Seconds of a run.
    pub predicted: Figure,
    /// Seconds of a run: the least; its spread is from the least to the median of all rounds.
    pub measured: Figure,
    /// In %.
    pub error: Figure,
    /// Whether that is within [`WITHIN`].
    pub good: bool,
    /// The three operations that should take longest.
    pub slowest: Vec<OpTime>,
    /// The three that do, by the profiler, with their seconds a run.
    pub measured_slowest: Vec<Named>,
    /// Whether the rank of the three is right.
    pub ranked: bool,
}

/// Operations whose times are this near each other have no rank among them.
const ALIKE: f64 = 1.15;

/// Whether the operations predicted to take longest do: the first, second and third of them take as long as the first,
/// second and third that were measured.
fn ranked(predicted: &[&OpTime], measured: &[Op]) -> bool {
    let time = |op: &Op| op.self_time.value.unwrap_or(0.0);
    let mut longest: Vec<f64> = measured.iter().filter(|op| !op.path.is_empty()).map(time).collect();
    longest.sort_by(|a, b| b.total_cmp(a));
    let found = |op: &&OpTime| measured.iter().find(|m| m.path == op.path).map(time);
    predicted.iter().zip(longest).all(|(op, longest)| found(op).is_some_and(|t| t * ALIKE >= longest))
}

/// What was measured, with the time of rows that are left over after whole blocks added to that of the blocks, as it is
/// in a prediction, which has no operations for them.
fn with_rows_left_over(measured: Vec<Op>, predicted: &[OpTime]) -> Vec<Op> {
    let (mut ops, left_over): (Vec<Op>, Vec<Op>) =
        measured.into_iter().partition(|op| op.path.is_empty() || predicted.iter().any(|p| p.path == op.path));
    for op in left_over {
        let same = ops.iter_mut().find(|o| (&o.name, &o.within) == (&op.name, &op.within));
        if let Some((sum, more)) = same.and_then(|o| o.self_time.value.as_mut()).zip(op.self_time.value) {
            *sum += more;
        }
    }
    ops
}

/// Predicts and measures [`models::CIRCUITS`] at their four shapes.
pub fn check(
    calibration: &Calibration,
    cpu: &Processor,
    seconds: f64,
    tell: &mut dyn FnMut(Progress),
) -> Result<Vec<Point>> {
    const ROUNDS: usize = 5;
    let mut ready = vec![];
    for name in models::CIRCUITS {
        let Some(model) = models::built_in(name, &models::Sizes::default()) else { continue };
        let graph = model?.graph(&GraphOptions::default().state(InitialState::Zero))?;
        for (batch, steps) in models::SHAPES {
            let x = numbers(DType::F32, &[batch, steps, models::INPUTS], -1.0, 1.0)?;
            let one = Ready::new(&graph, [("x".to_owned(), x)], cpu.backend(), PassOptions::default())?;
            ready.push((name, batch, steps, one, vec![]));
        }
    }
    let each = seconds / (ROUNDS * ready.len()) as f64;
    let all = (ROUNDS * ready.len()) as f64;
    for round in 0..ROUNDS {
        let count = ready.len();
        for (i, (name, batch, steps, ready, samples)) in ready.iter_mut().enumerate() {
            tell(Progress::at((round * count + i) as f64 / all, format!("{name} {batch}×{steps}")));
            // A long run is interrupted more often than not: it needs many tries for one that is not.
            let one = samples.last().map_or(0.0, |s: &Samples| s.min_s);
            samples.push(ready.time(each.max(LEAST_RUNS * one))?);
        }
    }
    let speed = Speed::host(calibration, cpu.threads());
    let mut points = vec![];
    for (name, batch, steps, ready, samples) in &ready {
        let Some(plan) = ready.session().plan() else { continue };
        let prediction = predict(plan, &speed);
        let least = samples.iter().map(|s| s.min_s).fold(f64::INFINITY, f64::min);
        let mut medians: Vec<f64> = samples.iter().map(|s| s.median_s).collect();
        medians.sort_by(f64::total_cmp);
        let spread = Spread {
            low: least,
            high: medians.get(medians.len() / 2).copied().unwrap_or(least),
            ends: Ends::Extremes,
            samples: samples.iter().map(|s| s.samples as u64).sum(),
        };
        let source = format!("Session::run, the least of {ROUNDS} rounds; the spread reaches to the median");
        let measured = Figure::measured(least, "s", source).with_spread(spread);
        let error = prediction_error(&prediction.time, &measured);
        let Some(model) = models::built_in(name, &models::Sizes::default()) else { continue };
        let options = Options {
            batch: *batch,
            steps: *steps,
            threads: cpu.threads(),
            isa: Some(cpu.isa()),
            runs: 100,
            seconds: each.max(0.2),
            ..Options::default()
        };
        let ops = Profiler::new(model?).with(options).profile_compute()?.ops;
        let ops = with_rows_left_over(ops, &prediction.ops);
        let mut order: Vec<&Op> = ops.iter().filter(|op| !op.path.is_empty()).collect();
        order.sort_by(|a, b| b.self_time.value.unwrap_or(0.0).total_cmp(&a.self_time.value.unwrap_or(0.0)));
        let slowest = prediction.slowest(3);
        points.push(Point {
            model: (*name).into(),
            batch: *batch,
            steps: *steps,
            good: error.value.is_some_and(|e| e.abs() <= WITHIN),
            error,
            ranked: ranked(&slowest, &ops),
            measured_slowest: order
                .iter()
                .take(3)
                .map(|op| Named { name: op.name.clone(), figure: op.self_time.clone() })
                .collect(),
            slowest: slowest.into_iter().cloned().collect(),
            predicted: prediction.time,
            measured,
        });
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;

    #[test]
    fn a_rank_is_right_where_the_longest_are_the_longest_but_for_ties() {
        let mut ops: Vec<Op> = example::profile().compute.ops.into_iter().take(4).collect();
        for (i, (op, seconds)) in ops.iter_mut().zip([4e-6, 3e-6, 2.9e-6, 1e-6]).enumerate() {
            op.path = vec![i];
            op.self_time = Figure::measured(seconds, "s", "a clock");
        }
        let time = |i: usize| OpTime {
            name: String::new(),
            op: String::new(),
            kernel: String::new(),
            path: vec![i],
            within: None,
            calls: Figure::derived(1.0, "calls", "the plan"),
            time: Figure::predicted(1e-6, "s", "prices"),
            share: Figure::predicted(1.0, "%", "prices"),
            bound: crate::profile::Bound::Compute,
        };
        let order = |order: [usize; 3]| {
            let times = order.map(time);
            ranked(&times.iter().collect::<Vec<_>>(), &ops)
        };
        assert!(order([0, 1, 2]) && order([0, 2, 1]), "3.0 and 2.9 have no rank");
        assert!(!order([1, 0, 2]) && !order([0, 1, 3]) && !order([0, 1, 7]));
        // An operation at a place that no prediction has is what another does for the rows left over.
        (ops[3].name, ops[3].within) = (ops[1].name.clone(), ops[1].within.clone());
        let predicted = [0, 1, 2].map(time);
        let whole = with_rows_left_over(ops, &predicted);
        assert_eq!(whole.len(), 3);
        assert!((whole[1].self_time.value.unwrap() - 4e-6).abs() < 1e-12);
    }
}
