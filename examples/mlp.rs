//! Build a network, compile it, run it, and look at what the compiler made of it.
//!
//! `cargo run --release -p schwann --example mlp`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::cases::random::Random;
use schwann::prelude::*;

fn main() -> schwann::Result<()> {
    // 8 → 32 → 4 with a GELU and a softmax. The batch size stays open: `B`.
    let mut random = Random::new(1);
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 8])?;
    let w1 = b.weight("w1", random.floats(&[8, 32], -0.35, 0.35))?;
    let b1 = b.weight("b1", random.floats(&[32], -0.1, 0.1))?;
    let w2 = b.weight("w2", random.floats(&[32, 4], -0.18, 0.18))?;
    let hidden = b.named("hidden").matmul(x, w1)?;
    let hidden = b.add(hidden, b1)?;
    let hidden = b.named("gelu").gelu(hidden)?;
    let logits = b.named("logits").matmul(hidden, w2)?;
    let y = b.named("probabilities").softmax(logits, 1)?;
    b.output("y", y)?;
    let graph = b.build()?;
    println!("the graph as built:\n{graph}");

    // Compiling rewrites the graph; the product, the bias and the GELU become one kernel.
    let program = Program::compile(&graph, &CompileOptions::default().threads(1))?;
    println!("after the passes:\n{}", program.graph());
    let plan = program.plan(&Bindings::new().with("B", 16))?;
    println!("what runs for a batch of 16:\n{}", plan.explain(None));
    assert!(plan.steps.len() < 5, "five operations take fewer than five steps");

    // One session runs any batch size; memory is laid out once for each.
    let mut session = program.session();
    for batch in [1, 16] {
        let x = random.floats(&[batch, 8], -1.0, 1.0);
        let y = &session.run(&[("x", &x)])?[0];
        assert_eq!(y.shape(), [batch, 4]);
        let first: Vec<String> = y.values::<f32>()?[..4].iter().map(|p| format!("{p:.3}")).collect();
        let sum: f32 = y.values::<f32>()?[..4].iter().sum();
        println!("batch {batch}: first row {} (sums to {sum:.3})", first.join(" "));
        assert!((sum - 1.0).abs() < 1e-5);
    }

    // A wrong shape is an error that says what was expected.
    let wrong = Tensor::zeros(DType::F32, &[2, 9])?;
    let error = session.run(&[("x", &wrong)]).expect_err("9 is not 8");
    println!("a wrong shape: {error}");
    Ok(())
}
