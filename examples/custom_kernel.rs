//! Operations of your own: defined in Rust, with a text for GPUs that is checked against the definition. The first is a function
//! of some numbers, element by element; the second a kernel that looks at windows of bytes.
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
    entropy()
}

/// How much surprise there is in each window of 64 bytes: 0 where all are the same, 0.75 where all differ. A window begins
/// every 16 bytes: the input is rows of 16, of which a window has 4, so there are 3 windows fewer than rows.
fn entropy() -> schwann::Result<()> {
    Custom::places("byte_entropy", &[(DType::U8, shape!["windows + 3", 16])], 1, shape!["windows"], |p, y| {
        let mut counts = [0; 256];
        for k in 0..64 {
            counts[p.x(0, &[p.at(0) + k / 16, k % 16]) as usize] += 1;
        }
        for count in counts.into_iter().filter(|count| *count > 0) {
            let share = f64::from(count) / 64.0;
            y[0] -= share * share.log2() / 8.0;
        }
    })
    .wgsl(
        "var counts: array<i32, 256>;
        for (var k = 0; k < 64; k++) { counts[i32(x0(at0 + k / 16, k % 16))] += 1; }
        for (var value = 0; value < 256; value++) {
            if (counts[value] > 0) {
                let share = f32(counts[value]) / 64.0;
                y0 -= share * log2(share) / 8.0;
            }
        }",
    )
    .work(5 * 64, 64)
    .register()?;

    let mut b = GraphBuilder::new();
    let bytes = b.input("bytes", DType::U8, shape!["N", 16])?;
    let entropy = b.named("entropy").custom("byte_entropy", &[bytes])?;
    b.output("entropy", entropy)?;
    let graph = b.build()?;
    println!("\n{graph}");

    // 64 bytes of one value, then 64 that differ.
    let bytes: Vec<u8> = (0..128).map(|at| if at < 64 { 7 } else { at }).collect();
    let mut session = Program::compile(&graph, &CompileOptions::default())?.session();
    let found = session.run(&[("bytes", &Tensor::new(&[8, 16], &bytes)?)])?[0].values::<f32>()?;
    println!("{found:.2?}");
    assert_eq!((found[0], found[4]), (0.0, 0.75));
    Ok(())
}
