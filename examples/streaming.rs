//! A recurrent network on a stream: the loop is in the graph, the state belongs to the session.
//!
//! `cargo run --release -p schwann --example streaming`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::cases::random::Random;
use schwann::prelude::*;

const INPUTS: usize = 4;
const UNITS: usize = 16;

/// One step: h' = tanh(x·wx + h·wh).
fn step() -> schwann::Result<Graph> {
    let mut b = GraphBuilder::new();
    let h = b.input("h", DType::F32, shape!["B", UNITS])?;
    let x = b.input("x", DType::F32, shape!["B", INPUTS])?;
    let wx = b.input("wx", DType::F32, shape![INPUTS, UNITS])?;
    let wh = b.input("wh", DType::F32, shape![UNITS, UNITS])?;
    let from_x = b.matmul(x, wx)?;
    let from_h = b.matmul(h, wh)?;
    let sum = b.add(from_x, from_h)?;
    let next = b.tanh(sum)?;
    b.output("next", next)?;
    b.output("seen", next)?;
    b.build()
}

fn main() -> schwann::Result<()> {
    let mut random = Random::new(5);
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", "T", INPUTS])?;
    let h = b.input("h", DType::F32, shape!["B", UNITS])?;
    let wx = b.weight("wx", random.floats(&[INPUTS, UNITS], -0.5, 0.5))?;
    let wh = b.weight("wh", random.floats(&[UNITS, UNITS], -0.25, 0.25))?;
    // Time is axis 1, behind the batch.
    let out = b.scan(step()?, &[h], &[x], &[wx, wh], 1)?;
    b.output("y", out[1])?;
    b.output("h_next", out[0])?;
    // The final state of one run is the initial state of the next.
    b.state("h", "h_next")?;
    let program = Program::compile(&b.build()?, &CompileOptions::default())?;

    // The whole sequence at once …
    let time = 12;
    let whole = random.floats(&[1, time, INPUTS], -1.0, 1.0);
    let mut session = program.session();
    let expected = session.run(&[("x", &whole)])?[0].to_f64();

    // … and in pieces of 1, 3 and 8 steps, in another session, gives the same.
    let mut stream = program.session();
    let mut got = vec![];
    let mut from = 0;
    for steps in [1, 3, 8] {
        let piece = &whole.values::<f32>()?[from * INPUTS..(from + steps) * INPUTS];
        let piece = Tensor::new(&[1, steps, INPUTS], piece)?;
        got.extend(stream.run(&[("x", &piece)])?[0].to_f64());
        from += steps;
        let state = stream.state("h").map(|h| h.to_f64()[0]).unwrap_or_default();
        println!("after {from:>2} steps: first unit of the state {state:+.4}");
    }
    let error = expected.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("largest difference between one run and three: {error:.1e}");
    assert!(got.len() == expected.len() && error < 1e-6);

    // Streams are independent: one can start over while others go on.
    stream.reset();
    let again = stream.run(&[("x", &whole)])?[0].to_f64();
    assert_eq!(again, expected);

    let plan = session.plan().map(|p| p.explain(None)).unwrap_or_default();
    println!("\n{plan}");
    Ok(())
}
