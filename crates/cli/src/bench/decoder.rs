//! `schwann bench decoder`: a decoder of bytes with random weights, symbol after symbol.
//!
//! Each symbol needs every weight once, so what limits it is how fast this machine reads as many bytes. That is measured
//! in turns with the decoder, with as many threads.

use crate::{Outcome, load, out, stop};
use anyhow::{Context, Result};
use schwann::io::{self, Stored};
use schwann::nn::decoder::{Decoder, FeedForward, Weights};
use schwann::nn::generate::{Generator, cached};
use schwann::prof::device::roof::{read_bytes_per_s, share};
use schwann::prof::measure::Samples;
use schwann::quant::{Scheme, quantize};
use schwann::{CompileOptions, Graph, plan};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Seconds of each turn of reading.
const READ_SECONDS: f64 = 0.05;

#[derive(clap::Args)]
#[command(after_help = "Times are of one symbol after the other, with a cache of keys and values. Beside them
stands how long this machine takes to read as many bytes as the weights have,
measured in turns with as many threads: no decoder that reads all its weights
from there for each symbol can be faster.

Examples:
  schwann bench decoder                        100 million ternary weights
  schwann bench decoder --to int8 --layers 4 --threads 1,2
  schwann bench decoder --to f32 --width 512 --hidden 1408 --json")]
pub(super) struct Args {
    /// What the layers' weights are.
    #[arg(long, value_enum, default_value_t = To::Ternary)]
    to: To,
    /// Numbers of a position between layers.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = load::size)]
    width: usize,
    /// Layers.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = load::size)]
    layers: usize,
    /// Heads of queries, of 64 numbers each.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = load::size)]
    heads: usize,
    /// Heads of keys and values.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = load::size)]
    key_heads: usize,
    /// Numbers inside the feed-forward part.
    #[arg(long, value_name = "N", default_value_t = 2816, value_parser = load::size)]
    hidden: usize,
    /// Symbols of the prompt.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = load::size)]
    prompt: usize,
    /// Symbols after the prompt, each round.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = load::size)]
    tokens: usize,
    /// Seconds for each number of threads.
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = load::seconds)]
    seconds: f64,
    /// Numbers of threads; 0: one per core.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,0", value_parser = load::threads)]
    threads: Vec<usize>,
    #[command(flatten)]
    on: load::On,
    /// Also write the decoder, with its cache, for `schwann profile` and others.
    #[arg(long, value_name = "OUT.safetensors")]
    save: Option<PathBuf>,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// What weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum To {
    /// As they are drawn.
    F32,
    /// 8 bits, products in integers.
    Int8,
    /// 4 bits in blocks of 32, products in integers.
    Int4,
    /// −1, 0 and 1 (BitNet b1.58), products in integers.
    Ternary,
}

impl To {
    fn scheme(self) -> Option<Scheme> {
        match self {
            To::F32 => None,
            To::Int8 => Some(Scheme::INT8),
            To::Int4 => Some(Scheme::INT4),
            To::Ternary => Some(Scheme::TERNARY),
        }
    }

    fn name(self) -> &'static str {
        match self {
            To::F32 => "f32",
            To::Int8 => "int8",
            To::Int4 => "int4",
            To::Ternary => "ternary",
        }
    }
}

/// One measurement, as scripts read it.
#[derive(Serialize)]
struct Record {
    weights: &'static str,
    parameters: usize,
    /// Bytes of weights that each symbol needs.
    bytes: usize,
    threads: usize,
    backend: String,
    prompt: usize,
    /// Of a symbol of the prompt, all at once.
    prefill: Samples,
    /// Of a symbol after it.
    decode: Samples,
    prefill_tokens_per_s: f64,
    decode_tokens_per_s: f64,
    /// How fast this machine reads so many bytes, and what part of that time a symbol takes.
    read_bytes_per_s: f64,
    part_of_reading: Option<f64>,
    noisy: bool,
    provenance: Provenance,
}

#[derive(Serialize)]
struct Provenance {
    times: &'static str,
    bytes: &'static str,
    rates: &'static str,
}

impl Args {
    fn decoder(&self) -> Decoder {
        let bits = self.to != To::F32;
        Decoder {
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            key_heads: self.key_heads,
            head_size: 64,
            hidden: self.hidden,
            context: self.prompt + self.tokens,
            feed_forward: FeedForward::SquaredRelu,
            sub_norms: true,
            rounded: bits,
            tied: true,
            ..Decoder::tiny()
        }
    }
}

/// Random weights; the matrices of layers in few bits.
fn draw(decoder: &Decoder, to: To) -> Result<Weights> {
    let drawn = decoder.draw(1)?;
    let bar = out::progress(drawn.len() as u64).with_message("weights");
    let weights = drawn.into_iter().map(|(name, stored)| {
        stop::check()?;
        bar.inc(1);
        let stored = match (&stored, to.scheme()) {
            (Stored::Floats(matrix), Some(scheme)) if name.starts_with("layers.") && matrix.shape().len() == 2 => {
                Stored::LowBit(quantize(matrix, scheme, None)?)
            }
            _ => stored,
        };
        Ok((name, stored))
    });
    let weights = weights.collect::<Result<Weights>>();
    bar.finish_and_clear();
    weights
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    stop::listen();
    args.save.as_ref().map_or(Ok(()), |path| out::not_stdout(path, "--save", "a file's name"))?;
    let decoder = args.decoder();
    decoder.check().context("the sizes of the decoder")?;
    let parameters = decoder.params()?.iter().map(|p| p.shape.iter().product::<usize>()).sum();
    let graph = decoder.graph(&draw(&decoder, args.to)?)?;
    // The tables of angles are read row by row; everything else is read whole.
    let bytes =
        graph.weights().iter().filter(|(name, _)| !name.starts_with("rope.")).map(|(_, t)| t.bytes().len()).sum();
    if let Some(path) = &args.save {
        io::save(path, &cached(&graph)?).with_context(|| format!("cannot write {}", path.display()))?;
        out::note(&format!("wrote {}", path.display()));
    }
    let mut out = out::stdout();
    if !args.json {
        let size = plan::bytes(bytes as u64);
        let title = format!("A decoder of {} weights, {} ({size})", plan::count(parameters as u64), args.to.name());
        writeln!(out, "{}", out::paint(out::TITLE, title))?;
    }
    let mut table =
        out::Table::new(&[">threads", ">prompt/s", ">symbols/s", ">a symbol", ">median", ">reading", ">of reading"]);
    for &threads in &args.threads {
        let record = measure(args, &graph, (parameters, bytes), threads)?;
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&record)?)?;
            continue;
        }
        table.row([
            record.threads.to_string(),
            out::rate(record.prefill_tokens_per_s),
            out::rate(record.decode_tokens_per_s),
            plan::seconds(record.decode.min_s),
            format!("{}{}", plan::seconds(record.decode.median_s), if record.noisy { "~" } else { "" }),
            format!("{:.1} GB/s", record.read_bytes_per_s / 1e9),
            record.part_of_reading.map_or("–".into(), |part| format!("{:.0}%", 100.0 * part)),
        ]);
    }
    if !args.json {
        table.write(&mut out)?;
        let note = format!(
            "Times are measured: the prompt has {} symbols. Rates, and the part of the time that reading the weights takes, \
             are derived from them.",
            args.prompt
        );
        out::paragraph(&mut out, 0, out::DIM, &note)?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}

fn measure(args: &Args, graph: &Graph, (parameters, bytes): (usize, usize), threads: usize) -> Result<Record> {
    let options = CompileOptions::default().backend(args.on.choice()?).threads(threads).budget(load::budget());
    let mut generator = Generator::new(graph, &options, args.prompt + args.tokens)?;
    let program = generator.session().program().clone();
    let threads = program.threads();
    let prompt: Vec<i32> = (0..args.prompt as i32).map(|i| (i * 37 + 11) % 256).collect();
    let (mut prefill, mut decode, mut reading) = (vec![], vec![], 0.0f64);
    let began = Instant::now();
    let mut rounds = 0;
    while rounds < 2 || began.elapsed().as_secs_f64() < args.seconds {
        stop::check()?;
        generator.truncate(0);
        let start = Instant::now();
        let mut next = likeliest(generator.feed(&prompt)?);
        let first = start.elapsed().as_secs_f64() / prompt.len() as f64;
        let mut times = Vec::with_capacity(args.tokens);
        for _ in 0..args.tokens {
            let start = Instant::now();
            next = likeliest(generator.feed(&[next])?);
            times.push(start.elapsed().as_secs_f64());
        }
        // The first round packs weights and fills caches.
        if rounds > 0 {
            prefill.push(first);
            // The first symbol after a prompt is of another length, for which the session makes room.
            decode.extend_from_slice(if times.len() > 1 { &times[1..] } else { &times });
            reading = reading.max(read_bytes_per_s(threads, bytes, READ_SECONDS)?);
        }
        rounds += 1;
    }
    let (prefill, decode) = (Samples::of(prefill, prompt.len()), Samples::of(decode, 1));
    Ok(Record {
        weights: args.to.name(),
        parameters,
        bytes,
        threads,
        backend: program.backend().to_owned(),
        prompt: args.prompt,
        prefill_tokens_per_s: 1.0 / prefill.min_s,
        decode_tokens_per_s: 1.0 / decode.min_s,
        read_bytes_per_s: reading,
        part_of_reading: share(bytes as f64 / reading / decode.min_s),
        noisy: decode.noisy(),
        prefill,
        decode,
        provenance: Provenance { times: "measured", bytes: "derived", rates: "derived" },
    })
}

fn likeliest(logits: &[f32]) -> i32 {
    let most = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    most.map_or(0, |(symbol, _)| symbol as i32)
}
