//! Adding a fusion pattern: it is listed, it is applied, and the result stays the same.
//!
//! `cargo run --release -p schwann --example custom_pattern`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::cases::random::Random;
use schwann::pass::{any, constant, fusion_opportunities, op};
use schwann::prelude::*;

fn main() -> schwann::Result<()> {
    // Somebody wrote silu by hand, as x / (1 + exp(−x)).
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["N"])?;
    let one = b.scalar(1.0)?;
    let minus = b.neg(x)?;
    let e = b.exp(minus)?;
    let below = b.add(e, one)?;
    let y = b.div(x, below)?;
    let doubled = b.add(y, y)?;
    b.output("y", doubled)?;
    let graph = b.build()?;

    // The same name must be the same value; operands that commute match in either order.
    let silu = Pattern::new(
        "silu by hand",
        op("div", [any("x"), op("add", [constant(1.0), op("exp", [op("neg", [any("x")])])])]),
        |b, found| b.silu(found.get("x")?),
    );
    let options = PassOptions { patterns: vec![silu], ..PassOptions::default() };

    // What fusion would save, before anything is compiled.
    let sizes = Bindings::new().with("N", 1 << 20);
    for found in fusion_opportunities(&graph, &options, &sizes)? {
        let saved = found.bytes_saved.map_or("unknown".into(), |b| format!("{b} bytes (derived)"));
        println!("{}: {} — saves {saved}", found.pattern, found.nodes.join(" + "));
    }

    let plain = Program::compile(&graph, &CompileOptions::default())?;
    let ours = Program::compile(&graph, &CompileOptions::default().passes(options))?;
    println!("\nwithout the pattern:\n{}\nwith it:\n{}", plain.graph(), ours.graph());
    assert!(ours.graph().to_string().contains("silu"), "the pattern fired");
    assert!(!plain.graph().to_string().contains("silu"));

    let x = Random::new(2).floats(&[1000], -8.0, 8.0);
    let (mut a, mut b) = (plain.session(), ours.session());
    let (a, b) = (a.run(&[("x", &x)])?[0].to_f64(), b.run(&[("x", &x)])?[0].to_f64());
    let error = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("largest difference between the two: {error:.1e}");
    assert!(error < 1e-5);
    Ok(())
}
