//! The experiment that says how good predictions are here: predict, measure, compare.
//!
//! Each model and shape is measured in several rounds, in turns with all others, and the least time kept: prices are
//! those of an undisturbed machine, so they are compared with that.

use super::calibrate::Calibration;
use super::outlook::prediction_error;
use super::predict::{OpTime, Speed, predict};
use super::roof::{Ready, numbers};
use super::{Progress, Result};
use crate::measure::Samples;
use crate::models;
use schwann_core::backend::cpu::Cpu;
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
}

/// Predicts and measures P, W and L at their four shapes.
pub fn check(calibration: &Calibration, cpu: &Cpu, seconds: f64, tell: &mut dyn FnMut(Progress)) -> Result<Vec<Point>> {
    const ROUNDS: usize = 5;
    let mut ready = vec![];
    for name in ["P", "W", "L"] {
        let Some(model) = models::built_in(name, &models::Sizes::default()) else { continue };
        let graph = model?.graph(&GraphOptions::default().state(InitialState::Zero))?;
        for (batch, steps) in models::SHAPES {
            let x = numbers(DType::F32, &[batch, steps, models::INPUTS], -1.0, 1.0)?;
            let one = Ready::new(&graph, [("x".to_owned(), x)], cpu, PassOptions::default())?;
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
        points.push(Point {
            model: (*name).into(),
            batch: *batch,
            steps: *steps,
            good: error.value.is_some_and(|e| e.abs() <= WITHIN),
            error,
            slowest: prediction.slowest(3).into_iter().cloned().collect(),
            predicted: prediction.time,
            measured,
        });
    }
    Ok(points)
}
