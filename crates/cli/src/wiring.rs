//! `schwann wiring`: neural circuits as text, picture, DOT or JSON, with what they are in numbers.

use crate::{Outcome, load, out};
use anyhow::{Context, Result, anyhow, bail};
use schwann::nn;
use schwann::nn::wiring::{AutoNcp, FullyConnected, Ncp, Random, Wiring, WiringConfig};
use schwann::nn::{Layer, Units};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The JSON of the largest circuit that a person would look at.
const MOST_JSON_BYTES: u64 = 256 << 20;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann wiring auto --units 64 --outputs 16 --inputs 8
  schwann wiring auto --units 64 --outputs 16 --inputs 8 --svg circuit.svg
  schwann wiring ncp --inter 12 --command 6 --motor 1 --inputs 32 \\
      --sensory-fanout 4 --inter-fanout 3 --recurrent 6 --motor-fanin 3
  schwann wiring random --units 20 --sparsity 0.6 --inputs 4 --dot > circuit.dot
  schwann wiring full --units 12 --outputs 3 --inputs 4 --json > circuit.json
  schwann wiring show circuit.json --svg circuit.svg
  schwann wiring show model.safetensors             the circuit inside a model

The same options and seed give the same circuit as the Python package ncps.")]
pub(crate) struct Args {
    #[command(subcommand)]
    circuit: Circuit,
}

#[derive(clap::Subcommand)]
enum Circuit {
    /// A neural circuit policy from its size: inputs → inter → command → motor neurons.
    #[command(after_help = "Examples:
  schwann wiring auto --units 64 --outputs 16 --inputs 8
  schwann wiring auto --units 32 --outputs 4 --inputs 5 --sparsity 0.8 \\
      --seed 7 --svg circuit.svg")]
    Auto(AutoArgs),
    /// A neural circuit policy, layer by layer.
    #[command(
        override_usage = "schwann wiring ncp [OPTIONS] --inputs <N> \\
           --inter <N> --command <N> --motor <N> --recurrent <N> \\
           --sensory-fanout <N> --inter-fanout <N> --motor-fanin <N>",
        after_help = "Examples:
  schwann wiring ncp --inter 12 --command 6 --motor 1 --inputs 32 \\
      --sensory-fanout 4 --inter-fanout 3 --recurrent 6 --motor-fanin 3"
    )]
    Ncp(NcpArgs),
    /// A random share of all pairs.
    #[command(
        override_usage = "schwann wiring random [OPTIONS] \\
           --units <N> --inputs <N> --sparsity <SHARE>",
        after_help = "Examples:
  schwann wiring random --units 20 --outputs 5 --sparsity 0.6 --inputs 6"
    )]
    Random(RandomArgs),
    /// Every neuron to every neuron, every input to every neuron.
    #[command(after_help = "Examples:
  schwann wiring full --units 12 --outputs 3 --inputs 4")]
    Full(FullArgs),
    /// A circuit from a file that --json wrote, or the one inside a model.
    #[command(after_help = "Examples:
  schwann wiring show circuit.json
  schwann wiring show model.safetensors --svg circuit.svg
  schwann wiring full --units 12 --inputs 4 --json | schwann wiring show - --dot")]
    Show(ShowArgs),
}

/// How to show it; text for the terminal unless told.
#[derive(clap::Args)]
struct Form {
    /// Print DOT, for graphviz.
    #[arg(long, group = "form")]
    dot: bool,
    /// Print JSON: how it was made, and every synapse.
    #[arg(long, group = "form")]
    json: bool,
    /// Write a picture; `-` is stdout.
    #[arg(long, value_name = "OUT.svg", group = "form")]
    svg: Option<PathBuf>,
}

#[derive(clap::Args)]
struct AutoArgs {
    /// Neurons in all.
    #[arg(long, value_name = "N")]
    units: usize,
    /// How many of them are outputs (motor neurons); fewer than units − 2.
    #[arg(long, value_name = "N")]
    outputs: usize,
    /// What the circuit reads.
    #[arg(long, value_name = "N")]
    inputs: usize,
    /// About the share of pairs without a synapse, from 0.1 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = AutoNcp::new(0, 0).sparsity_level, allow_negative_numbers = true)]
    sparsity: f64,
    /// Another seed, another circuit.
    #[arg(long, default_value_t = AutoNcp::new(0, 0).seed)]
    seed: u32,
    #[command(flatten)]
    form: Form,
}

#[derive(clap::Args)]
struct NcpArgs {
    /// Inter neurons, which read the inputs.
    #[arg(long, value_name = "N")]
    inter: usize,
    /// Command neurons, with synapses among themselves.
    #[arg(long, value_name = "N")]
    command: usize,
    /// Motor neurons, the outputs.
    #[arg(long, value_name = "N")]
    motor: usize,
    /// What the circuit reads.
    #[arg(long, value_name = "N")]
    inputs: usize,
    /// Inter neurons that each input reaches.
    #[arg(long, value_name = "N")]
    sensory_fanout: usize,
    /// Command neurons that each inter neuron reaches.
    #[arg(long, value_name = "N")]
    inter_fanout: usize,
    /// Synapses drawn among command neurons.
    #[arg(long, value_name = "N")]
    recurrent: usize,
    /// Command neurons that reach each motor neuron.
    #[arg(long, value_name = "N")]
    motor_fanin: usize,
    /// Another seed, another circuit.
    #[arg(long, default_value_t = Ncp::new(0, 0, 0).seed)]
    seed: u32,
    #[command(flatten)]
    form: Form,
}

#[derive(clap::Args)]
struct RandomArgs {
    /// Neurons in all.
    #[arg(long, value_name = "N")]
    units: usize,
    /// How many of them are outputs; all unless told.
    #[arg(long, value_name = "N")]
    outputs: Option<usize>,
    /// What the circuit reads.
    #[arg(long, value_name = "N")]
    inputs: usize,
    /// The share of pairs without a synapse, from 0 to less than 1.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    sparsity: f64,
    /// Another seed, another circuit.
    #[arg(long, default_value_t = Random::new(0, 0.0).random_seed)]
    seed: u64,
    #[command(flatten)]
    form: Form,
}

#[derive(clap::Args)]
struct FullArgs {
    /// Neurons in all.
    #[arg(long, value_name = "N")]
    units: usize,
    /// How many of them are outputs; all unless told.
    #[arg(long, value_name = "N")]
    outputs: Option<usize>,
    /// What the circuit reads.
    #[arg(long, value_name = "N")]
    inputs: usize,
    /// Another seed, other polarities.
    #[arg(long, default_value_t = FullyConnected::new(0).erev_init_seed)]
    seed: u64,
    /// No neuron reaches itself.
    #[arg(long)]
    no_self_connections: bool,
    #[command(flatten)]
    form: Form,
}

#[derive(clap::Args)]
struct ShowArgs {
    /// A circuit's JSON (`-` is stdin), a model's file, or a built-in model.
    file: PathBuf,
    /// Of a model with several circuits, the one of this layer, counted from 0.
    #[arg(long, value_name = "N")]
    layer: Option<usize>,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let (wiring, form) = match &args.circuit {
        Circuit::Auto(a) => {
            let AutoArgs { units, outputs: output_size, sparsity: sparsity_level, seed, .. } = *a;
            (drawn(AutoNcp { units, output_size, sparsity_level, seed }, a.inputs)?, &a.form)
        }
        Circuit::Ncp(a) => {
            let options = Ncp {
                inter_neurons: a.inter,
                command_neurons: a.command,
                motor_neurons: a.motor,
                sensory_fanout: a.sensory_fanout,
                inter_fanout: a.inter_fanout,
                recurrent_command_synapses: a.recurrent,
                motor_fanin: a.motor_fanin,
                seed: a.seed,
            };
            (drawn(options, a.inputs)?, &a.form)
        }
        Circuit::Random(a) => {
            let RandomArgs { units, sparsity: sparsity_level, seed: random_seed, .. } = *a;
            let output_dim = a.outputs.unwrap_or(units);
            (drawn(Random { units, output_dim, sparsity_level, random_seed }, a.inputs)?, &a.form)
        }
        Circuit::Full(a) => {
            let FullArgs { units, seed: erev_init_seed, .. } = *a;
            let (output_dim, self_connections) = (a.outputs.unwrap_or(units), !a.no_self_connections);
            (drawn(FullyConnected { units, output_dim, erev_init_seed, self_connections }, a.inputs)?, &a.form)
        }
        Circuit::Show(a) => {
            out::apart(a.form.svg.as_deref(), [a.file.as_path()])?;
            let stdin = a.file == Path::new("-");
            let name = || if stdin { "stdin".into() } else { a.file.display().to_string() };
            let json = stdin || a.file.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
            let wiring = match json {
                true => read(&a.file).with_context(|| format!("{} is not a circuit", name()))?,
                false => of_model(&a.file, a.layer).with_context(|| format!("{} has no circuit to show", name()))?,
            };
            (wiring, &a.form)
        }
    };
    show(&wiring, form)?;
    Ok(Outcome::Done)
}

/// The circuit inside a model.
fn of_model(path: &Path, layer: Option<usize>) -> Result<Wiring> {
    let model = match load::named(&path.to_string_lossy())? {
        load::Network::Model(model) => model,
        load::Network::Graph(_) => bail!("it is a graph without layers; expected a model or a circuit's JSON"),
    };
    let built = |units: &Units, inputs: usize| match units {
        Units::Wired(wiring) => {
            let mut wiring = wiring.clone();
            wiring.build(inputs).map(|()| Some(wiring))
        }
        Units::Count(_) => Ok(None),
    };
    let mut found = vec![];
    for (i, layer) in model.layers().iter().enumerate() {
        let wiring = match layer {
            Layer::Cfc(cell) => built(&cell.units, cell.input_size)?,
            Layer::Ltc(cell) => built(&cell.units, cell.input_size)?,
            _ => None,
        };
        found.extend(wiring.map(|wiring| (i, wiring)));
    }
    let places: Vec<String> = found.iter().map(|(i, _)| i.to_string()).collect();
    match (layer, found.len()) {
        (_, 0) => bail!("none of its layers has a wiring: they are dense"),
        (None, 1) => Ok(found.remove(0).1),
        (None, n) => bail!("it has {n} circuits, in layers {}; say which with --layer", places.join(", ")),
        (Some(wanted), _) => match found.into_iter().find(|(i, _)| *i == wanted) {
            Some((_, wiring)) => Ok(wiring),
            None => bail!("layer {wanted} has no wiring; layers with one: {}", places.join(", ")),
        },
    }
}

fn drawn(options: impl Into<WiringConfig>, inputs: usize) -> Result<Wiring> {
    let draw = || {
        let mut wiring = options.into().to_wiring()?;
        wiring.build(inputs)?;
        Ok(wiring)
    };
    draw().map_err(in_flags)
}

/// The library's refusal, with the flag in place of the option's name.
fn in_flags(error: nn::Error) -> anyhow::Error {
    let nn::Error::Argument { argument, got, expected } = &error else { return error.into() };
    let flag = match argument.as_str() {
        "units" => "--units",
        "output_size" | "output_dim" => "--outputs",
        "input_dim" => "--inputs",
        "sparsity_level" => "--sparsity",
        "inter_neurons" => "--inter",
        "command_neurons" => "--command",
        "motor_neurons" => "--motor",
        "sensory_fanout" => "--sensory-fanout",
        "inter_fanout" => "--inter-fanout",
        "recurrent_command_synapses" => "--recurrent",
        "motor_fanin" => "--motor-fanin",
        _ => return error.into(),
    };
    anyhow!("{flag} is {got}; expected {expected}")
}

fn read(path: &Path) -> Result<Wiring> {
    let cannot = || format!("cannot read {}", path.display());
    let from: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(path).with_context(cannot)?),
    };
    let mut text = String::new();
    // One more than allowed, so that too much is seen.
    let bytes = from.take(MOST_JSON_BYTES + 1).read_to_string(&mut text).with_context(cannot)?;
    if bytes as u64 > MOST_JSON_BYTES {
        bail!("more than {MOST_JSON_BYTES} bytes of JSON");
    }
    Ok(Wiring::from_json(&text)?)
}

fn show(wiring: &Wiring, form: &Form) -> Result<()> {
    if let Some(path) = &form.svg {
        let picture = wiring.to_svg(None).context("--svg cannot show this circuit; --dot and --json can")?;
        return out::deliver(path, &picture);
    }
    if form.dot {
        return out::print(&wiring.to_dot());
    }
    if form.json {
        return out::print(&wiring.to_json());
    }
    let width = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).unwrap_or_else(out::width);
    let mut out = out::stdout();
    writeln!(out, "{}", out::paint(out::TITLE, wiring.config().title()))?;
    // The writer takes colours out where they are not wanted.
    writeln!(out, "{}", wiring.to_text(width, true))?;
    write!(out, "{}", wiring.stats())?;
    Ok(out.flush()?)
}
