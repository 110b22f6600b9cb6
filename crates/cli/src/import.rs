//! `schwann import`: models from elsewhere.

use crate::{Outcome, info, out};
use anyhow::{Context, Result};
use schwann::nn;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann import ncps exported.safetensors -o circuit.safetensors")]
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
    let From::Ncps(ncps) = &args.from;
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
