//! A neural circuit policy: a sparse wiring, a CfC on it, and the whole model in one file.
//!
//! `cargo run --release -p schwann --example wired_cfc`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::cases::random::Random;
use schwann::nn::wiring::AutoNcp;
use schwann::nn::{Cfc, GraphOptions, Model};
use schwann::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 64 neurons, 16 of them motor neurons: the same circuit that ncps draws from the same seed.
    let wiring = AutoNcp::new(64, 16).wiring()?;
    let model = Model::new(Cfc::new(8, wiring), 1)?;
    println!("{}", model.info()?);

    // Wiring, options and weights are one file, which any safetensors tool can list.
    let path = std::env::temp_dir().join(format!("schwann-wired-{}.safetensors", std::process::id()));
    model.save(&path)?;
    let loaded = Model::load(&path)?;
    println!("{}: {} bytes", path.display(), std::fs::metadata(&path)?.len());
    assert_eq!(loaded, model);

    // Missing synapses are zeros in the weights; they are put there once, when the graph is compiled.
    let program = loaded.compile(&GraphOptions::default(), &CompileOptions::default())?;
    let mut session = program.session();
    let x = Random::new(7).floats(&[4, 32, 8], -1.0, 1.0);
    session.run(&[("x", &x)])?;
    println!("y is {}, the state {}", session.output("y")?, session.output("hn")?);
    println!("\n{}", session.plan().map(|p| p.explain(None)).unwrap_or_default());
    std::fs::remove_file(&path)?;
    Ok(())
}
