//! What it costs a program that it can be watched: sessions with and without a door, in turns. Attach a monitor meanwhile
//! (`schwann monitor --attach cost`), and the figures should not change.
//!
//! `cargo run --release -p schwann --example watched_cost -- [STARTS]`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::nn::{GraphOptions, InitialState};
use schwann::prelude::*;
use schwann::prof::{models, stats};
use std::time::{Duration, Instant};

/// A block lasts about this long, so that reading the clock does not show.
const BLOCK: Duration = Duration::from_micros(400);
const TURNS: usize = 400;

/// Seconds of a run: the mean of a block.
fn block(session: &mut Session, x: &Tensor, runs: u32) -> Result<f64, schwann::Error> {
    // What ran in between has taken the caches.
    session.run(&[("x", x)])?;
    let start = Instant::now();
    for _ in 0..runs {
        session.run(&[("x", x)])?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(runs))
}

/// One start, with memory of its own: the watched session's time over the other's, and the other's.
fn start(model: &str, batch: usize, steps: usize, number: usize) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let model = models::built_in(model, &models::Sizes::default()).ok_or("no such model")??;
    let graph = model.graph(&GraphOptions::default().state(InitialState::Zero))?;
    let program = Program::compile(&graph, &CompileOptions::default().threads(1))?;
    let features =
        graph.inputs().find(|(name, _)| *name == "x").and_then(|(_, v)| graph.ty(v).shape.dims()[2].as_fixed());
    let x = Tensor::zeros(DType::F32, &[batch, steps, features.ok_or("no input `x`")?])?;
    let door = schwann::live::open("cost")?;
    // The first of two sessions made has its own luck with memory: it is each side in turn.
    let mut sessions = [program.session(), program.session()];
    let watched = number % 2;
    sessions[watched].watch(&door);
    let mut runs = 1;
    for session in &mut sessions {
        session.run(&[("x", &x)])?;
        while block(session, &x, runs)? * f64::from(runs) < BLOCK.as_secs_f64() {
            runs *= 2;
        }
    }
    let mut seconds = [vec![], vec![]];
    for turn in 0..TURNS {
        for side in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            seconds[side].push(block(&mut sessions[side], &x, runs)?);
        }
    }
    // The time that a tenth of the turns stay below: what others on the machine took is in the rest.
    let [first, second] = seconds.map(|each| stats::quantile_sorted(&stats::sorted(&each), 0.1));
    let (with, without) = if watched == 0 { (first, second) } else { (second, first) };
    Ok((with / without, without))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let starts: usize = std::env::args().nth(1).map_or(Ok(12), |text| text.parse())?;
    println!("{starts} starts of {TURNS} turns each (measured)");
    for model in ["projected-cfc", "wired-cfc"] {
        for (batch, steps) in [(32, 16), (1, 16), (1, 1)] {
            let found: Vec<(f64, f64)> =
                (0..starts).map(|i| start(model, batch, steps, i)).collect::<Result<_, _>>()?;
            let ratios: Vec<f64> = found.iter().map(|f| (f.0 - 1.0) * 100.0).collect();
            let sorted = stats::sorted(&ratios);
            let at = |part| stats::quantile_sorted(&sorted, part);
            let plain = found.iter().map(|f| f.1).fold(f64::INFINITY, f64::min);
            let (low, high) = (at(0.25), at(0.75));
            println!(
                "{model}, batch {batch}, steps {steps}: watched {:+.2}% (middle half of the starts {low:+.2}% to {high:+.2}%); {} unwatched",
                at(0.5),
                schwann::plan::seconds(plain)
            );
        }
    }
    Ok(())
}
