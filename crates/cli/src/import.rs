//! `schwann import`: models from elsewhere.

use crate::{Outcome, info, out};
use anyhow::{Context, Result, bail};
use schwann::io;
use schwann::nn::generate::cached;
use schwann::nn::{self, decoder};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann import ncps exported.safetensors -o circuit.safetensors
  schwann import decoder model.gguf -o model.safetensors")]
pub(crate) struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(clap::Subcommand)]
enum From {
    /// A PyTorch network, or a CfC or an LTC of the Python package ncps, exported with scripts/export_ncps.py.
    #[command(after_help = "In Python, with the folder scripts/ of this project on the path:

  from export_ncps import export
  export(model, \"exported.safetensors\", sample=x)

or for a saved state dict:

  scripts/export_ncps.py model.pt exported.safetensors \\
      --config '{\"class\": \"CfC\", \"input_size\": 8, \"units\": 32}'

Pickles (.pt, .pth) can run code when they are read, and are not read here.

Examples:
  schwann import ncps exported.safetensors -o circuit.safetensors
  schwann run circuit.safetensors --input x.npy --output y.npy")]
    Ncps(Ncps),
    /// A decoder transformer (Llama, Mistral, Qwen, BitNet): a folder as Hugging Face or MLX has it, or a GGUF file.
    #[command(after_help = "A folder has config.json beside model.safetensors, or beside several files and
model.safetensors.index.json. docs/decoder.md says which models are read, and what
the network's parts are called.

Examples:
  schwann import decoder model.gguf -o model.safetensors
  schwann import decoder Llama-3.2-1B -o llama.safetensors --context 4096
  schwann profile llama.safetensors --batch 1 --steps 64")]
    Decoder(Decoder),
}

#[derive(clap::Args)]
struct Decoder {
    /// The folder, or the GGUF file.
    path: PathBuf,
    /// Where to write it: the graph and its weights in one file.
    #[arg(short, long, value_name = "MODEL.safetensors")]
    output: PathBuf,
    /// The longest sequence, if it is to be shorter than the model's own: tables of
    /// positions become smaller.
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Write it as `schwann generate` runs it: with a cache of keys and values.
    #[arg(long)]
    cached: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Ncps {
    /// The exported model.
    file: PathBuf,
    /// Where to write it: layers, wiring and weights in one file.
    #[arg(short, long, value_name = "MODEL.safetensors")]
    output: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match &args.from {
        From::Ncps(ncps) => from_ncps(ncps),
        From::Decoder(decoder) => from_decoder(decoder),
    }
}

fn from_decoder(args: &Decoder) -> Result<Outcome> {
    out::not_stdout(&args.output, "--output", "a file's name")?;
    let mut files = vec![args.path.clone()];
    if args.path.is_dir() {
        let read = || std::fs::read_dir(&args.path)?.map(|file| Ok(file?.path())).collect::<std::io::Result<Vec<_>>>();
        files.extend(read().with_context(|| format!("cannot read {}", args.path.display()))?);
    }
    out::apart([args.output.as_path()], files.iter().map(PathBuf::as_path))?;
    let failed = || format!("{} could not be imported as a decoder", args.path.display());
    let (mut decoder, weights) = decoder::open(&args.path).with_context(failed)?;
    if let Some(context) = args.context {
        if !(1..=decoder.context).contains(&context) {
            bail!("--context {context}: expected from 1 to {}, which the model was made for", decoder.context);
        }
        decoder.context = context;
    }
    let mut graph = decoder.graph(&weights).with_context(failed)?;
    if args.cached {
        graph = cached(&graph)?;
    }
    io::save(&args.output, &graph).with_context(|| format!("cannot write {}", args.output.display()))?;
    info::show_graph(&graph, &args.output, args.json)?;
    Ok(Outcome::Done)
}

fn from_ncps(ncps: &Ncps) -> Result<Outcome> {
    out::not_stdout(&ncps.output, "--output", "a file's name")?;
    // A file that is read from where it lies, and that Python may still need, is not replaced by what came of it.
    out::apart([ncps.output.as_path()], [ncps.file.as_path()])?;
    let model = nn::import_ncps(&ncps.file)
        .with_context(|| format!("{} could not be imported from ncps", ncps.file.display()))?;
    let rounded = nn::rounded_weights(&ncps.file)?;
    model.save(&ncps.output).with_context(|| format!("cannot write {}", ncps.output.display()))?;
    info::show_model(&model, &ncps.output, ncps.json)?;
    if let Some(first) = rounded.first() {
        let text = format!(
            "{} tensors are float64 there, such as `{}`: they were rounded to f32",
            rounded.len(),
            out::printable(first)
        );
        out::note(&text);
    }
    Ok(Outcome::Done)
}
