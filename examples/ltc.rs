//! A liquid time-constant network on a hand-built circuit, trained by gradient descent on samples at irregular times.
//!
//! `cargo run --release -p schwann --example ltc`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::nn::wiring::Wiring;
use schwann::nn::{GraphOptions, Ltc, Model, Timespans};
use schwann::prelude::*;

const SAMPLES: usize = 8;
const STEPS: usize = 24;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Three inter neurons read the input, excite or inhibit each other, and drive neuron 0, the output.
    let mut wiring = Wiring::new(4, 1)?;
    for (src, dest, polarity) in [(1, 0, 1), (2, 0, -1), (3, 0, 1), (1, 2, 1), (2, 3, -1), (3, 1, 1), (1, 1, -1)] {
        wiring.add_synapse(src, dest, polarity)?;
    }
    wiring.build(1)?;
    for (dest, polarity) in [(1, 1), (2, -1), (3, 1)] {
        wiring.add_sensory_synapse(0, dest, polarity)?;
    }
    let mut model = Model::new(Ltc::new(1, wiring), 3)?;

    // The input is a wave sampled at irregular times; the target is the same wave a moment later.
    let (mut x, mut dt, mut target) = (vec![], vec![], vec![]);
    for sample in 0..SAMPLES {
        let mut time = sample as f32;
        for step in 0..STEPS {
            let elapsed = 0.2 + 0.15 * ((sample * 7 + step * 3) % 5) as f32;
            time += elapsed;
            x.push(time.sin());
            dt.push(elapsed);
            target.push((time + 0.4).sin());
        }
    }
    let x = Tensor::new(&[SAMPLES, STEPS, 1], &x)?;
    let dt = Tensor::new(&[SAMPLES, STEPS], &dt)?;
    let target = Tensor::new(&[SAMPLES, STEPS, 1], &target)?;

    // In the training graph, parameters are inputs, so it is compiled only once.
    let graph = model.training_graph(&GraphOptions::training().timespans(Timespans::PerStep))?;
    let mut session = Program::compile(&graph, &CompileOptions::default())?.session();
    let mut losses = vec![];
    for round in 0..=400 {
        let mut inputs = vec![("x", &x), ("timespans", &dt), ("target", &target)];
        inputs.extend(model.weights().iter().map(|(name, data)| (name.as_str(), data)));
        session.run(&inputs)?;
        let loss = session.output("loss")?.values::<f32>()?[0];
        if round % 80 == 0 {
            println!("round {round:>3}: loss {loss:.4}");
        }
        losses.push(loss);
        let names: Vec<String> = model.params().iter().map(|p| p.name.clone()).collect();
        for name in names {
            let slope = session.output(&format!("grad.{name}"))?;
            let mut weight = model.weight(&name)?.clone();
            for (w, g) in weight.values_mut::<f32>()?.iter_mut().zip(slope.values::<f32>()?) {
                *w -= 0.1 * g;
            }
            model.set_weight(&name, weight)?;
        }
        // Without implicit constraints, this would bring conductances back above 0; here it has nothing to do.
        model.constrain()?;
    }
    assert!(losses[400] < 0.5 * losses[0], "{} → {}", losses[0], losses[400]);
    Ok(())
}
