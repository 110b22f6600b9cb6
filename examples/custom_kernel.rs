//! An operation of your own: defined in Rust, with a text for GPUs that is checked against the definition.
//!
//! `cargo run --release -p schwann --example custom_kernel`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::op::Custom;
use schwann::prelude::*;

fn main() -> schwann::Result<()> {
    // A resonance: how strongly something answers to a frequency x0 when it is tuned to x1 and damped by x2.
    Custom::new("resonance", 3, |x| 1.0 / ((x[0] - x[1]).powi(2) + x[2] * x[2]).sqrt())
        .wgsl("let off = x0 - x1;\n return 1.0 / sqrt(off * off + x2 * x2);")
        .domain(0.1, 4.0)
        .work(6, 0)
        .register()?;

    // From here on it is an operation like any other. Inputs stretch to one shape.
    let mut b = GraphBuilder::new();
    let frequency = b.input("frequency", DType::F32, shape!["N", 1])?;
    let tuned = b.constant(Tensor::new(&[3], &[0.5f32, 1.0, 2.0])?)?;
    let damping = b.scalar(0.25)?;
    let answer = b.named("answer").custom("resonance", &[frequency, tuned, damping])?;
    b.output("answer", answer)?;
    let graph = b.build()?;
    println!("{graph}");

    // Before a backend uses it for the first time, it runs on samples there and is compared with the definition.
    let program = Program::compile(&graph, &CompileOptions::default())?;
    for step in program.plan(&Bindings::new().with("N", 5))?.steps {
        println!("{}: {}", step.name, step.kernel);
    }
    let frequencies = Tensor::new(&[5, 1], &[0.5f32, 1.0, 1.5, 2.0, 2.5])?;
    let mut session = program.session();
    let answers = session.run(&[("frequency", &frequencies)])?[0].values::<f32>()?;
    for (frequency, row) in frequencies.values::<f32>()?.iter().zip(answers.chunks(3)) {
        println!("{frequency:.1}: {row:.2?}");
    }
    assert_eq!(answers[0], 4.0, "damped by a quarter, tuned exactly");

    // A file says which operation it wants, and never what that is.
    let json = graph.to_json();
    assert!(json.contains("resonance") && !json.contains("sqrt"));
    let unknown = Graph::from_json(&json.replace("resonance", "resonanze")).unwrap_err();
    println!("\na file that names another one: {unknown}");
    Ok(())
}
