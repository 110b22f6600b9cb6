//! `schwann quantize`: a network with weights in few bits, and what that costs and gains.

mod page;
mod study;

use crate::{Outcome, load, out, run};
use anyhow::{Context, Result, bail};
use schwann::op::Code;
use schwann::quant::{Layers, Scheme, Share, prepared};
use schwann::{DType, io};
use std::path::PathBuf;
use study::{Form, Study};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann quantize net.safetensors --to int8 -o small.safetensors
  schwann quantize net.safetensors --to bf16 -o half.safetensors
  schwann quantize net.safetensors --to int4 --block 64 --keep head
  schwann quantize net.safetensors --to ternary --calibrate x.npy --svg off.svg
  schwann quantize net.safetensors --budget err=1e-2 -o small.safetensors

Layers are the matrices that products multiply with; --keep takes their names, or
the part of a name before a dot. Errors are of the network's outputs, on the data
of --calibrate or on random numbers from -1 to 1. docs/quantization.md says what
the formats are, bit by bit.")]
pub(crate) struct Args {
    /// The model, or a network's graph.
    file: PathBuf,
    /// What weights become.
    #[arg(long, value_enum, required_unless_present = "budget")]
    to: Option<Target>,
    /// Numbers that share a scale: so many neighbours of a row, `row` or `matrix`.
    #[arg(long, value_name = "N", value_parser = share)]
    block: Option<Share>,
    /// Cover the numbers from the least to the greatest, with an offset beside each
    /// scale.
    #[arg(long)]
    offsets: bool,
    /// Round what is multiplied with the weights to 8 bits, row by row, so that products
    /// are in integers.
    #[arg(long, value_name = "TYPE")]
    activations: Option<Activations>,
    /// Leave these layers as they are.
    #[arg(long, value_name = "LAYER")]
    keep: Vec<String>,
    /// Samples (.npy, or NAME=FILE.npy): errors are measured on them, and scales suit them.
    #[arg(long, value_name = "X.npy")]
    calibrate: Vec<String>,
    /// Choose a type for each layer: the fewest bytes whose error is at most this, as
    /// err=1e-2 (a share of the outputs' root mean square).
    #[arg(long, value_name = "err=E", value_parser = budget, conflicts_with_all = ["to", "block", "offsets"])]
    budget: Option<f64>,
    /// Steps of the random sequences, where there are no samples.
    #[arg(long, default_value_t = 64, value_parser = load::size)]
    steps: usize,
    /// Sequences of them.
    #[arg(long, default_value_t = 4, value_parser = load::size)]
    batch: usize,
    /// The file to write.
    #[arg(long, short, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Draw the layers' errors and sizes.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Seconds to time the network before and after; 0 for not at all.
    #[arg(long, default_value_t = 1.0, value_parser = some_seconds)]
    seconds: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What weights can become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Target {
    /// 8 bits, a scale for each row.
    Int8,
    /// 4 bits, a scale for each 32 numbers.
    Int4,
    /// −1, 0 and 1 times one scale.
    Ternary,
    /// 16 bits: f32 without the last 16 bits of its fraction.
    Bf16,
    /// 16 bits, with three more bits of precision and numbers up to 65504.
    F16,
}

/// What rows can be rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Activations {
    /// As they are.
    F32,
    /// 8 bits.
    Int8,
}

fn share(text: &str) -> Result<Share, String> {
    match text {
        "row" => Ok(Share::Row),
        "matrix" => Ok(Share::Matrix),
        number => match number.parse() {
            Ok(n) if (1..=1usize << 20).contains(&n) => Ok(Share::Block(n)),
            _ => Err(format!("expected a whole number from 1 to {}, `row` or `matrix`", 1 << 20)),
        },
    }
}

fn budget(text: &str) -> Result<f64, String> {
    let number = text.strip_prefix("err=").and_then(|n| n.parse().ok());
    number.filter(|e: &f64| e.is_finite() && *e > 0.0).ok_or_else(|| "expected err= and a number above 0".into())
}

fn some_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if (0.0..=3600.0).contains(&s) => Ok(s),
        _ => Err("expected seconds, from 0 to 3600".into()),
    }
}

impl Args {
    fn form(&self, to: Target) -> Form {
        let plain = match to {
            Target::Int8 => Scheme::INT8,
            Target::Int4 => Scheme::INT4,
            Target::Ternary => Scheme::TERNARY,
            Target::Bf16 => return Form::Half(DType::Bf16),
            Target::F16 => return Form::Half(DType::F16),
        };
        let share = self.block.unwrap_or(plain.share);
        // Offsets in 16 bits would not leave zeros exact.
        let wide = self.offsets || !matches!(share, Share::Block(_));
        let scales = if wide { DType::F32 } else { DType::F16 };
        Form::Quantized(Scheme { share, offsets: self.offsets, scales, ..plain })
    }

    /// The forms that a layer may take; what it is now is the first.
    fn forms(&self) -> Vec<Form> {
        if let Some(to) = self.to {
            return vec![Form::Kept, self.form(to)];
        }
        let fine = Scheme { share: Share::Block(32), scales: DType::F16, ..Scheme::INT8 };
        let schemes = [fine, Scheme::INT8, Scheme::INT4, Scheme { code: Code::Ternary4, ..Scheme::INT4 }];
        let halves = [DType::F16, DType::Bf16].map(Form::Half);
        [Form::Kept].into_iter().chain(halves).chain(schemes.map(Form::Quantized)).collect()
    }

    fn keeps(&self, name: &str) -> bool {
        self.keep.iter().any(|kept| is_within(name, kept))
    }
}

/// Whether a layer has this name, or belongs to the part of the network that has it.
fn is_within(name: &str, part: &str) -> bool {
    name.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if args.offsets && args.to == Some(Target::Ternary) {
        bail!("--offsets: ternary weights have none; use it with --to int8 or int4");
    }
    if let Some(to @ (Target::Bf16 | Target::F16)) = args.to {
        let name = format!("{to:?}").to_lowercase();
        if args.offsets || args.block.is_some() {
            bail!("--to {name} has no scales, so there is nothing for --block or --offsets to do");
        }
        if args.activations == Some(Activations::Int8) {
            bail!("--activations int8 is for products in integers: use it with --to int8, int4 or ternary, not {name}");
        }
    }
    if let Some(path) = &args.output {
        out::not_stdout(path, "--output", "a file's name")?;
    }
    let outputs = [args.output.as_deref(), args.svg.as_deref()];
    out::apart(outputs.into_iter().flatten(), [args.file.as_path()])?;
    let given = load::graph(&args.file)?;
    let graph = prepared(&given)?;
    let layers = Layers::of(&graph);
    if layers.list().is_empty() {
        let what = "has no matrix of f32 weights that a product multiplies with; numbers of single synapses stay f32";
        bail!("{} {what}", args.file.display());
    }
    for kept in &args.keep {
        if !layers.list().iter().any(|layer| is_within(&layer.name, kept)) {
            let names: Vec<&str> = layers.list().iter().map(|l| l.name.as_str()).collect();
            bail!("--keep {kept}: no layer is called so; the layers are {}", names.join(", "));
        }
    }
    let samples = if args.calibrate.is_empty() { None } else { Some(run::from_files(&args.calibrate, &graph)?) };
    let study = Study::new(&given, &layers, samples, [args.batch, args.steps])?;
    let rounded = args.activations == Some(Activations::Int8);
    let forms = args.forms();
    let kept: Vec<bool> = layers.list().iter().map(|layer| args.keeps(&layer.name)).collect();
    let chosen = match args.budget {
        None => kept.iter().map(|kept| usize::from(!kept)).collect(),
        Some(most) => study.search(&forms, &kept, rounded, most)?,
    };
    let result = study.measure(&forms, &chosen, rounded, args.seconds)?;
    if let Some(path) = &args.output {
        io::save(path, &result.graph).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.svg {
        out::deliver(path, &page::picture(&result).file())?;
    }
    match args.json {
        true => out::print(&serde_json::to_string_pretty(&page::json(args, &result))?)?,
        false => page::show(args, &result)?,
    }
    Ok(Outcome::Done)
}
