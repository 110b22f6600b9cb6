//! A control loop at 1 kHz: a wired CfC decides once in each period, and the latencies are listed.
//!
//! `cargo run --release -p schwann --example control_loop -- [SECONDS]`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::nn::wiring::AutoNcp;
use schwann::nn::{Cfc, GraphOptions, Model, Runner};
use schwann::prelude::*;
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: f64 = match std::env::args().nth(1) {
        Some(text) => text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?,
        None => 2.0,
    };
    let periods = (Duration::try_from_secs_f64(seconds)?.as_secs_f64() / PERIOD.as_secs_f64()) as usize;

    // 19 neurons, as in the circuits that kept a car in its lane (Lechner and others, 2020).
    let wiring = AutoNcp::new(19, 1).wiring()?;
    let model = Model::new(Cfc::new(32, wiring), 1)?;
    // One step is far too little work to share between threads.
    let program = model.compile(&GraphOptions::default(), &CompileOptions::default().threads(1))?;
    let mut runner = Runner::new(program)?;
    let mut state = runner.state();
    let mut sensors = [0.0f32; 32];
    // Once before the loop, because the first step lays out memory.
    runner.step(&mut state, &sensors)?;
    state.reset();

    // How long a decision takes, and how long after the start of its period it is ready.
    let mut steps = Vec::with_capacity(periods);
    let mut ages = Vec::with_capacity(periods);
    let mut missed = 0;
    let start = Instant::now();
    for period in 0..periods {
        let due = start + PERIOD * period as u32;
        // Sleep most of the way, then spin: the scheduler alone is not exact enough.
        if let Some(wait) = due.checked_duration_since(Instant::now() + Duration::from_micros(200)) {
            std::thread::sleep(wait);
        }
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        for (i, sensor) in sensors.iter_mut().enumerate() {
            *sensor = (period as f32 * 0.01 + i as f32).sin();
        }
        let begun = Instant::now();
        let command = runner.step(&mut state, &sensors)?[0];
        let done = Instant::now();
        assert!(command.is_finite());
        steps.push(done - begun);
        ages.push(done - due);
        missed += usize::from(done > due + PERIOD);
    }

    println!("{periods} periods of {PERIOD:?}, {missed} deadlines missed (measured)");
    for (what, mut times) in [("a step", steps), ("from the period's start", ages)] {
        times.sort_unstable();
        let at = |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1)));
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|share| at(share).copied().unwrap_or_default());
        println!("{what:>24}: p50 {p50:.1?}, p90 {p90:.1?}, p99 {p99:.1?}, max {max:.1?}");
    }
    Ok(())
}
