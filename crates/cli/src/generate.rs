//! `schwann generate`: text from a decoder, as it comes.

use crate::load::{self, Network};
use crate::{Outcome, out, stop};
use anyhow::{Context, Result, bail};
use schwann::io::gguf::Gguf;
use schwann::nn::decoder;
use schwann::nn::generate::{Generator, Sampler, Sampling, Text, stops};
use schwann::{CompileOptions, Graph};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest sequence where a graph does not say how long one may be.
const MOST_TOKENS: usize = 1 << 20;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann demo bytes.safetensors --model decoder      random weights, to try
  schwann generate bytes.safetensors --prompt 'Once upon a time'
  schwann generate model.gguf --prompt 'The sky is' --temperature 0
  schwann generate ./Llama-3.2-1B --prompt Hello --tokens 200 --seed 7
  schwann generate net.safetensors --tokenizer tokenizer.json --prompt Hello

The prompt is computed at once, then one symbol after the other; how fast each
was is measured and told apart on stderr. The same seed gives the same text.")]
pub(crate) struct Args {
    /// A decoder: a .gguf file, a folder with config.json and model.safetensors, or a graph from `schwann import`.
    model: PathBuf,
    /// What the text begins with; `-` reads it from stdin.
    #[arg(long, short)]
    prompt: String,
    /// The decoder's tokenizer.json; a folder and a .gguf file have their own.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The most symbols to add.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128, value_parser = load::size)]
    tokens: usize,
    /// How much chance there is: 0 takes the likeliest symbol every time.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Consider only so many of the likeliest symbols; 0 is all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,
    /// Consider only the likeliest symbols that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    top_p: f64,
    /// Another seed, another text.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Go on when a symbol comes that says the text has ended.
    #[arg(long)]
    no_stop: bool,
    #[command(flatten)]
    on: load::On,
    /// Threads; 0 is one per core.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = load::threads)]
    threads: usize,
    /// Print JSON when done: text, symbols and times.
    #[arg(long)]
    json: bool,
}

fn read(args: &Args) -> Result<Graph> {
    let path = &args.model;
    if path.is_dir() || is_gguf(path) {
        out::detail(&format!("reading {}", path.display()));
        let (decoder, weights) = decoder::open(path)?;
        return Ok(decoder.graph(&weights)?);
    }
    match load::network(path)? {
        Network::Graph(graph) => Ok(*graph),
        Network::Model(_) => bail!("{} is a model of layers; expected a decoder's graph", path.display()),
    }
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
}

/// How a decoder's symbols are text: by the tokenizer that is given, by its own, or as bytes.
fn text(args: &Args, vocabulary: usize) -> Result<Text> {
    let path = &args.model;
    let own = path.join("tokenizer.json");
    let found = match &args.tokenizer {
        Some(file) => Some(Text::open(file).context("--tokenizer")?),
        None if own.is_file() => Some(Text::open(own)?),
        None if is_gguf(path) => {
            let file = Gguf::open(path)?;
            Text::of_gguf(&file).with_context(|| format!("the tokenizer of {}", path.display()))?
        }
        None => None,
    };
    let Some(text) = found else {
        let Some(bytes) = Text::of_vocabulary(vocabulary) else {
            bail!("{} has {vocabulary} symbols and no tokenizer; expected --tokenizer FILE", path.display());
        };
        return Ok(if path.is_dir() { bytes.stopping_at(&stops(path)?) } else { bytes });
    };
    text.fits(vocabulary).with_context(|| format!("the tokenizer does not fit {}", path.display()))?;
    Ok(text)
}

/// How the text ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// So many symbols were wanted.
    Length,
    /// The decoder ended it.
    Stop,
    /// Ctrl-C.
    Interrupted,
    /// Nobody reads any more.
    Unread,
}

struct Told {
    text: String,
    tokens: Vec<i32>,
    end: End,
    /// Symbols and time of the prompt, and of runs of one symbol each.
    prefill: (usize, Duration),
    decode: (usize, Duration),
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let prompt = match args.prompt.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).context("cannot read the prompt from stdin")?,
        text => text.to_owned(),
    };
    let (temperature, top_p) = (args.temperature as f32, args.top_p as f32);
    let sampling = Sampling { temperature, top_k: args.top_k, top_p, seed: args.seed };
    let mut sampler = Sampler::new(sampling).context("--temperature, --top-p")?;
    let graph = read(args)?;
    let text = text(args, vocabulary(&graph, &args.model)?)?;
    let tokens = text.encode(&prompt)?;
    if tokens.is_empty() {
        bail!("--prompt is empty; expected some text to begin with");
    }
    let context = graph.weights().get("rope.cos").map_or(MOST_TOKENS, |table| table.shape()[0]);
    if tokens.len() >= context {
        bail!("the prompt has {} symbols; the decoder's context is {context}", tokens.len());
    }
    let room = context.min(tokens.len() + args.tokens);
    if room < tokens.len() + args.tokens {
        out::note(&format!("the decoder's context is {context}: at most {} symbols are added", room - tokens.len()));
    }
    let options = CompileOptions::default().backend(args.on.choice()?).threads(args.threads).budget(load::budget());
    let generator = Generator::new(&graph, &options, room)?;
    drop(graph);
    let told = tell(args, generator, &mut sampler, &text, &prompt, &tokens)?;
    match args.json {
        true => out::print(&serde_json::to_string_pretty(&page(args, &prompt, &tokens, &told))?)?,
        false => out::note(&summary(&told)),
    }
    Ok(if told.end == End::Interrupted { Outcome::Stopped } else { Outcome::Done })
}

fn vocabulary(graph: &Graph, path: &Path) -> Result<usize> {
    let logits = graph.outputs().iter().find(|o| o.name == "logits").map(|o| graph.ty(o.value));
    let size = logits.and_then(|ty| ty.shape.dims().last()?.as_fixed());
    size.with_context(|| format!("{} is not a decoder: it has no output `logits`", path.display()))
}

/// Writes the text as it comes.
fn tell(
    args: &Args,
    mut generator: Generator,
    sampler: &mut Sampler,
    text: &Text,
    prompt: &str,
    tokens: &[i32],
) -> Result<Told> {
    stop::keep();
    let mut page = out::stdout();
    let mut write = |piece: &str| -> Result<()> {
        if !args.json {
            page.write_all(piece.as_bytes())?;
            page.flush()?;
        }
        Ok(())
    };
    write(prompt)?;
    let began = Instant::now();
    let mut next = sampler.pick(generator.feed(tokens)?)?;
    let prefill = (tokens.len(), began.elapsed());
    let began = Instant::now();
    let mut told = Told { text: String::new(), tokens: vec![], end: End::Length, prefill, decode: (0, Duration::ZERO) };
    let mut reader = text.reader(tokens)?;
    loop {
        if text.is_stop(next) && !args.no_stop {
            told.end = End::Stop;
            break;
        }
        told.tokens.push(next);
        let piece = reader.push(next)?;
        write(&piece)?;
        told.text += &piece;
        if stop::asked() || out::is_closed() {
            told.end = if stop::asked() { End::Interrupted } else { End::Unread };
            break;
        }
        // The last symbol is not computed with, so there is always room for it.
        if told.tokens.len() == args.tokens.min(generator.room() - tokens.len()) {
            break;
        }
        next = sampler.pick(generator.feed(&[next])?)?;
        told.decode.0 += 1;
    }
    told.decode.1 = began.elapsed();
    let rest = reader.end()?;
    write(&rest)?;
    told.text += &rest;
    write("\n")?;
    Ok(told)
}

fn rate((tokens, time): (usize, Duration)) -> Option<f64> {
    let seconds = time.as_secs_f64();
    (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
}

fn summary(told: &Told) -> String {
    let part = |what: &str, of: (usize, Duration)| match rate(of) {
        Some(rate) => {
            let time = schwann::plan::seconds(of.1.as_secs_f64());
            format!("{what}: {} symbols in {time}, {} per second", of.0, out::rate(rate))
        }
        None => format!("{what}: nothing to measure"),
    };
    let end = match told.end {
        End::Length => "",
        End::Stop => "; the decoder ended the text",
        End::Interrupted => "; interrupted",
        End::Unread => "; nobody reads it any more",
    };
    format!("{}; {} (measured){end}", part("prompt", told.prefill), part("text", told.decode))
}

fn page(args: &Args, prompt: &str, tokens: &[i32], told: &Told) -> serde_json::Value {
    let part = |of: (usize, Duration)| json!({ "tokens": of.0, "seconds": of.1.as_secs_f64(), "tokens_per_second": rate(of), "origin": "measured" });
    let end = match told.end {
        End::Length => "length",
        End::Stop => "stop",
        End::Interrupted => "interrupted",
        End::Unread => "unread",
    };
    json!({
        "model": args.model.display().to_string(),
        "prompt": { "text": prompt, "tokens": tokens },
        "text": told.text,
        "tokens": told.tokens,
        "end": end,
        "sampling": {
            "temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p, "seed": args.seed,
        },
        "prefill": part(told.prefill),
        "decode": part(told.decode),
    })
}
