//! Thousands of streams share one model; each has its own state, which is kept outside the model.
//!
//! `cargo run --release -p schwann --example circuit_streams`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::io;
use schwann::nn::wiring::AutoNcp;
use schwann::nn::{Cfc, GraphOptions, Model, Runner};
use schwann::prelude::*;

const STREAMS: usize = 4096;
const INPUTS: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::new(Cfc::new(INPUTS, AutoNcp::new(64, 16).wiring()?), 1)?;
    let program = model.compile(&GraphOptions::default(), &CompileOptions::default())?;
    let mut runner = Runner::new(program)?;
    let mut states = vec![runner.state(); STREAMS];
    let info = model.info()?;
    println!("{STREAMS} streams of {} bytes each share {} bytes of weights", info.state_bytes, info.resident_bytes);

    // All streams in one call; after the first one, nothing is allocated.
    let sample = |stream: usize, step: usize| ((stream * 31 + step * 17) as f32 * 0.01).sin();
    let mut x = vec![0.0f32; STREAMS * INPUTS];
    for step in 0..10 {
        for (i, value) in x.iter_mut().enumerate() {
            *value = sample(i, step);
        }
        runner.step_many(&mut states, &x)?;
    }

    // One stream can also go on alone from its state.
    let mut alone = states[5].clone();
    let y = runner.step(&mut alone, &x[5 * INPUTS..6 * INPUTS])?.to_vec();
    let together = &runner.step_many(&mut states, &x)?[5 * y.len()..6 * y.len()];
    let apart = y.iter().zip(together).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("stream 5 alone and among {STREAMS}: {apart:.1e} apart");
    assert!(apart < 1e-6);

    // A state is plain tensors: it can be kept in a file, moved to another process, or started over.
    let path = std::env::temp_dir().join(format!("schwann-state-{}.npz", std::process::id()));
    let tensors = states[5].to_tensors()?;
    io::write_npz(&path, tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    let mut moved = runner.state();
    moved.set_tensors(&io::read_npz(&path)?)?;
    std::fs::remove_file(&path)?;
    assert_eq!(moved, states[5]);
    moved.reset();
    assert_eq!(moved, runner.state());
    Ok(())
}
