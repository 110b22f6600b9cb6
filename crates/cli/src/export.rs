//! `schwann export`: models for other programs.

use crate::{Outcome, load, out};
use anyhow::{Context, Result};
use schwann::nn;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann export ncps best.safetensors -o for_python.safetensors")]
pub(crate) struct Args {
    #[command(subcommand)]
    to: To,
}

#[derive(clap::Subcommand)]
enum To {
    /// The state dict of a model for ncps and PyTorch, as a safetensors file.
    #[command(after_help = "In Python, for a model of one layer:

  from safetensors.torch import load_file
  model = CfC(2, AutoNCP(16, 1))
  model.load_state_dict(load_file(\"for_python.safetensors\"))

and for any model, with the folder scripts/ of this project on the path:

  from load_schwann import load
  model = load(\"for_python.safetensors\")

Examples:
  schwann export ncps best.safetensors -o for_python.safetensors")]
    Ncps(Ncps),
}

#[derive(clap::Args)]
struct Ncps {
    /// The model, such as the best of a training.
    model: PathBuf,
    /// Where to write it.
    #[arg(short, long, value_name = "FILE.safetensors")]
    output: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let To::Ncps(args) = &args.to;
    out::apart([args.output.as_path()], [args.model.as_path()])?;
    let model = load::model(&args.model)?;
    nn::export_ncps(&model, out::place(&args.output))
        .with_context(|| format!("{} cannot be exported", args.model.display()))?;
    out::note(&format!("wrote {}", args.output.display()));
    Ok(Outcome::Done)
}
