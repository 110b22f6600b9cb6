//! One file holds the graph and its weights; NumPy files hold inputs and outputs.
//!
//! `cargo run --release -p schwann --example save_and_load`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::cases::random::Random;
use schwann::io;
use schwann::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut random = Random::new(3);
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 16])?;
    let w = b.weight("w", random.floats(&[16, 8], -0.25, 0.25))?;
    let h = b.matmul(x, w)?;
    let y = b.tanh(h)?;
    b.output("y", y)?;
    let graph = b.build()?;

    let folder = std::env::temp_dir().join(format!("schwann-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (model, input) = (folder.join("net.safetensors"), folder.join("x.npy"));
    io::save(&model, &graph)?;
    io::write_npy(&input, &random.floats(&[4, 16], -1.0, 1.0))?;
    println!("{}: {} bytes", model.display(), std::fs::metadata(&model)?.len());

    // The weights stay in the mapped file; nothing is copied until something writes to them.
    let loaded = io::load(&model)?;
    assert_eq!(loaded, graph);
    assert!(loaded.weights()["w"].is_mapped());

    // Any safetensors tool can list the weights.
    let reader = io::safetensors::Reader::open(&model)?;
    for entry in reader.entries() {
        println!("  tensor {}: {:?}", entry.name, entry.shape);
    }

    let x = io::read_npy(&input)?;
    let run = |graph: &Graph| -> schwann::Result<Tensor> {
        let mut session = Program::compile(graph, &CompileOptions::default())?.session();
        Ok(session.run(&[("x", &x)])?[0].clone())
    };
    assert_eq!(run(&loaded)?, run(&graph)?);
    println!("the loaded network gives the same bits");

    // A damaged file is refused, and the message says where.
    std::fs::write(&model, &std::fs::read(&model)?[..100])?;
    println!("a cut file: {}", io::load(&model).expect_err("the header does not fit"));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
