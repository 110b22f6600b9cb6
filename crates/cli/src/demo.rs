//! `schwann demo`: small example networks with seeded weights, to try the other commands on.

use crate::{Outcome, out};
use anyhow::{Context, Result};
use schwann::cases::random::Random;
use schwann::nn::decoder::Decoder;
use schwann::prelude::*;
use schwann::{io, op::Scan};
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann demo net.safetensors --input x.npy
  schwann demo rnn.safetensors --model rnn --input x.npy
  schwann graph net.safetensors --svg - > net.svg
  schwann run net.safetensors --input x.npy")]
pub(crate) struct Args {
    /// The file to write.
    out: PathBuf,
    /// Which network.
    #[arg(long, value_enum, default_value_t = Model::Mlp)]
    model: Model,
    /// Also write an input for it.
    #[arg(long, value_name = "X.npy")]
    input: Option<PathBuf>,
    /// Another seed, other weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// The example networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Model {
    /// 64 → 256 → 256 → 10, with ReLU and a softmax.
    #[default]
    Mlp,
    /// A recurrent layer of 32 units with a linear read-out; its state is carried from run to run.
    Rnn,
    /// A causal transformer block, 4 heads of 16.
    Transformer,
    /// 16 → 64 units, two heads mixed by a gate, as in closed-form continuous-time cells, → 4.
    Gated,
    /// A decoder of bytes: 2 layers of 64, 4 heads of 16; for `schwann generate`.
    Decoder,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    out::not_stdout(&args.out, "OUT", "a file's name")?;
    args.input.as_ref().map_or(Ok(()), |path| out::not_stdout(path, "--input", "a file's name"))?;
    out::apart([Some(&args.out), args.input.as_ref()].into_iter().flatten().map(PathBuf::as_path), [])?;
    let (graph, input) = build(args.model, args.seed)?;
    io::save(&args.out, &graph).with_context(|| format!("cannot write {}", args.out.display()))?;
    let mut out = out::stdout();
    let symbols: Vec<String> = graph.symbols().into_iter().collect();
    writeln!(
        out,
        "wrote {}: {} nodes, {} weights, sizes {} left open",
        out::printable(&args.out.display().to_string()),
        graph.nodes().len(),
        graph.weights().len(),
        symbols.join(" and ")
    )?;
    if let Some(path) = &args.input {
        io::write_npy(path, &input).with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(out, "wrote {}: {input}", out::printable(&path.display().to_string()))?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}

/// A network and an input for it.
pub(crate) fn build(model: Model, seed: u64) -> Result<(Graph, Tensor)> {
    let mut random = Random::new(seed);
    let (graph, shape) = match model {
        Model::Mlp => (mlp(&mut random)?, vec![32, 64]),
        Model::Rnn => (rnn(&mut random)?, vec![4, 16, 8]),
        Model::Transformer => (transformer(&mut random)?, vec![2, 32, 64]),
        Model::Gated => (gated(&mut random)?, vec![32, 16]),
        Model::Decoder => {
            let decoder = Decoder { context: 1024, ..Decoder::tiny() };
            let tokens: Vec<i32> = b"Once upon a time".iter().map(|byte| i32::from(*byte)).collect();
            return Ok((decoder.graph(&decoder.draw(seed)?)?, Tensor::new(&[1, tokens.len()], &tokens)?));
        }
    };
    Ok((graph, random.floats(&shape, -1.0, 1.0)))
}

/// Weights of a size that keeps sums over their first axis near 1.
fn weight(b: &mut GraphBuilder, random: &mut Random, name: &str, shape: &[usize]) -> Result<Value> {
    let range = 1.0 / (shape[0] as f64).sqrt();
    Ok(b.weight(name, random.floats(shape, -range, range))?)
}

/// x·w + b
fn dense(b: &mut GraphBuilder, random: &mut Random, name: &str, x: Value, [from, to]: [usize; 2]) -> Result<Value> {
    let w = weight(b, random, &format!("{name}.weight"), &[from, to])?;
    let bias = weight(b, random, &format!("{name}.bias"), &[to])?;
    let product = b.named(name).matmul(x, w)?;
    Ok(b.named(&format!("{name}.bias")).add(product, bias)?)
}

fn mlp(random: &mut Random) -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 64])?;
    let h = dense(&mut b, random, "layer1", x, [64, 256])?;
    let h = b.named("relu1").relu(h)?;
    let h = dense(&mut b, random, "layer2", h, [256, 256])?;
    let h = b.named("relu2").relu(h)?;
    let h = dense(&mut b, random, "head", h, [256, 10])?;
    let y = b.named("probabilities").softmax(h, 1)?;
    b.output("y", y)?;
    Ok(b.build()?)
}

fn rnn(random: &mut Random) -> Result<Graph> {
    let (inputs, units, outputs) = (8, 32, 4);
    // One step: h' = tanh(x·wx + h·wh + b).
    let mut s = GraphBuilder::new();
    let h = s.input("h", DType::F32, shape!["B", units])?;
    let x = s.input("x", DType::F32, shape!["B", inputs])?;
    let wx = s.input("wx", DType::F32, shape![inputs, units])?;
    let wh = s.input("wh", DType::F32, shape![units, units])?;
    let bias = s.input("bias", DType::F32, shape![units])?;
    let from_x = s.named("from_x").matmul(x, wx)?;
    let from_h = s.named("from_h").matmul(h, wh)?;
    let sum = s.named("sum").add(from_x, from_h)?;
    let sum = s.named("sum.bias").add(sum, bias)?;
    let next = s.named("hidden").tanh(sum)?;
    s.output("next", next)?;
    s.output("seen", next)?;
    let body = s.build()?;

    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", "T", inputs])?;
    let h = b.input("h", DType::F32, shape!["B", units])?;
    let wx = weight(&mut b, random, "wx", &[inputs, units])?;
    let wh = weight(&mut b, random, "wh", &[units, units])?;
    let bias = weight(&mut b, random, "bias", &[units])?;
    let scan = Scan { body: body.into(), states: 1, sequences: 1, axis: 1, reverse: false };
    let out = b.named("recurrent").push_scan(scan, &[h, x, wx, wh, bias])?;
    let y = dense(&mut b, random, "readout", out[1], [units, outputs])?;
    b.output("y", y)?;
    b.output("h_next", out[0])?;
    b.state("h", "h_next")?;
    Ok(b.build()?)
}

fn transformer(random: &mut Random) -> Result<Graph> {
    let (heads, width) = (4, 16);
    let model = heads * width;
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", "T", model])?;
    let gamma = b.weight("norm1.gamma", Tensor::new(&[model], &vec![1.0f32; model])?)?;
    let beta = b.weight("norm1.beta", Tensor::zeros(DType::F32, &[model])?)?;
    let normed = b.named("norm1").layer_norm(x, Some(gamma), Some(beta), 1e-5)?;
    let mut parts = vec![];
    for name in ["query", "key", "value"] {
        let flat = dense(&mut b, random, name, normed, [model, model])?;
        let split = b.named(&format!("{name}.split")).reshape(flat, shape!["B", "T", heads, width])?;
        parts.push(b.named(&format!("{name}.heads")).transpose(split, &[0, 2, 1, 3])?);
    }
    let attended = b.named("attention").attention(parts[0], parts[1], parts[2], None, true)?;
    let merged = b.named("merge").transpose(attended, &[0, 2, 1, 3])?;
    let merged = b.named("merged").reshape(merged, shape!["B", "T", model])?;
    let projected = dense(&mut b, random, "project", merged, [model, model])?;
    let x = b.named("residual1").add(x, projected)?;
    let gamma = b.weight("norm2.gamma", Tensor::new(&[model], &vec![1.0f32; model])?)?;
    let normed = b.named("norm2").rms_norm(x, Some(gamma), 1e-6)?;
    let wide = dense(&mut b, random, "widen", normed, [model, 4 * model])?;
    let wide = b.named("gelu").gelu(wide)?;
    let narrow = dense(&mut b, random, "narrow", wide, [4 * model, model])?;
    let y = b.named("residual2").add(x, narrow)?;
    b.output("y", y)?;
    Ok(b.build()?)
}

/// y = head(tanh(f)·(1 − t) + tanh(g)·t) with f, g, t = sigmoid(…) linear in lecun_tanh of a linear layer.
fn gated(random: &mut Random) -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 16])?;
    let h = dense(&mut b, random, "backbone", x, [16, 64])?;
    // lecun_tanh: 1.7159·tanh(0.666·x).
    let h = b.within("lecun_tanh", |b| {
        let (inner, outer) = (b.named("inner").scalar(0.666)?, b.named("outer").scalar(1.7159)?);
        let h = b.named("scaled").mul(h, inner)?;
        let h = b.named("tanh").tanh(h)?;
        b.named("").mul(h, outer)
    })?;
    let f = dense(&mut b, random, "f", h, [64, 64])?;
    let f = b.named("f.tanh").tanh(f)?;
    let g = dense(&mut b, random, "g", h, [64, 64])?;
    let g = b.named("g.tanh").tanh(g)?;
    let t = dense(&mut b, random, "time", h, [64, 64])?;
    let mixed = b.within("gate", |b| {
        let t = b.named("share").sigmoid(t)?;
        let one = b.named("one").scalar(1.0)?;
        let rest = b.named("rest").sub(one, t)?;
        let kept = b.named("kept").mul(f, rest)?;
        let new = b.named("new").mul(g, t)?;
        b.named("").add(kept, new)
    })?;
    let y = dense(&mut b, random, "head", mixed, [64, 4])?;
    b.output("y", y)?;
    Ok(b.build()?)
}
