//! Gradient descent on a tiny regression: the gradient is a graph like any other.
//!
//! `cargo run --release -p schwann --example gradient`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::cases::random::Random;
use schwann::prelude::*;

fn main() -> schwann::Result<()> {
    // loss = mean((x·w + b − y)²). Weights are inputs here, since every run has new ones.
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["N", 3])?;
    let y = b.input("y", DType::F32, shape!["N", 1])?;
    let w = b.input("w", DType::F32, shape![3, 1])?;
    let bias = b.input("b", DType::F32, shape![1])?;
    let product = b.matmul(x, w)?;
    let guess = b.add(product, bias)?;
    let off = b.sub(guess, y)?;
    let squared = b.square(off)?;
    let loss = b.mean(squared, &[0, 1], false)?;
    b.output("loss", loss)?;
    let forward = b.build()?;

    let training = gradient(&forward, "loss", &["w", "b"])?;
    println!("forward {} nodes, with gradients {} nodes", forward.nodes().len(), training.nodes().len());
    let program = Program::compile(&training, &CompileOptions::default())?;
    println!("after the passes {} nodes", program.graph().nodes().len());

    // Data from a line in three dimensions, with a little noise.
    let mut random = Random::new(4);
    let truth = [1.5f32, -2.0, 0.5, 0.25];
    let x = random.floats(&[256, 3], -1.0, 1.0);
    let points: Vec<f32> = x
        .values::<f32>()?
        .chunks_exact(3)
        .map(|p| {
            let line: f32 = p.iter().zip(&truth).map(|(a, b)| a * b).sum();
            line + truth[3] + random.float(-0.01, 0.01) as f32
        })
        .collect();
    let y = Tensor::new(&[256, 1], &points)?;

    let mut session = program.session();
    let mut w = Tensor::zeros(DType::F32, &[3, 1])?;
    let mut bias = Tensor::zeros(DType::F32, &[1])?;
    let (mut first, mut last) = (None, f32::INFINITY);
    for step in 0..200 {
        session.run(&[("x", &x), ("y", &y), ("w", &w), ("b", &bias)])?;
        last = session.output("loss")?.values::<f32>()?[0];
        first.get_or_insert(last);
        if step % 40 == 0 {
            println!("step {step:>3}: loss {last:.6}");
        }
        for (value, name) in [(&mut w, "grad.w"), (&mut bias, "grad.b")] {
            let slope = session.output(name)?.values::<f32>()?;
            value.values_mut::<f32>()?.iter_mut().zip(slope).for_each(|(v, g)| *v -= 0.3 * g);
        }
    }
    println!("loss {last:.6}, w {:?}, b {:?}", w.values::<f32>()?, bias.values::<f32>()?);
    assert!(last < 1e-3 && first.is_some_and(|f| f > 1.0), "the loss fell");
    assert!(w.values::<f32>()?.iter().zip(&truth).all(|(a, b)| (a - b).abs() < 0.01));
    Ok(())
}
