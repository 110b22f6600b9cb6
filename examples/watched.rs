//! A program that lets itself be watched: two lines, and `schwann monitor --attach robot` shows what it does, live.
//!
//! `cargo run --release -p schwann --example watched -- [SECONDS]`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::nn::wiring::AutoNcp;
use schwann::nn::{Cfc, GraphOptions, Model, Runner};
use schwann::prelude::*;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: f64 = match std::env::args().nth(1) {
        Some(text) => text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?,
        None => 60.0,
    };
    let model = Model::new(Cfc::new(32, AutoNcp::new(19, 1).wiring()?), 1)?;
    let mut runner = Runner::new(model.compile(&GraphOptions::default(), &CompileOptions::default().threads(1))?)?;
    let mut state = runner.state();

    // These two lines open the door.
    let door = schwann::live::open("robot")?;
    runner.watch(&door);

    println!("watch it for {seconds} s with: schwann monitor --attach robot");
    let end = Instant::now() + Duration::try_from_secs_f64(seconds)?;
    let mut sensors = [0.0f32; 32];
    for period in 0u32.. {
        if Instant::now() >= end {
            break;
        }
        for (i, sensor) in sensors.iter_mut().enumerate() {
            *sensor = (period as f32 * 0.01 + i as f32).sin();
        }
        runner.step(&mut state, &sensors)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
