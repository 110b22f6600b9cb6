//! The `schwann` command: parse, run, and an exit code that means something.
//!
//! 0: done. 1: it ran, and a comparison failed. 2: wrong usage or bad input. 3: it ran, and nobody can tell. 130: stopped
//! by Ctrl-C. A reader that closes the pipe early (`| head`) is no error.

mod baseline;
mod bench;
mod compare;
mod demo;
mod devices;
mod doctor;
mod gate;
mod graph;
mod import;
mod info;
mod load;
mod out;
mod predict;
mod profile;
mod report;
mod run;
mod schema;
mod stop;
mod svg;
mod validate;
mod verify;
mod wiring;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Counted, so that a profile can say how often a run allocates.
#[global_allocator]
static HEAP: schwann::heap::Counting = schwann::heap::Counting;

/// Compiles, runs, measures and explains small neural networks on this CPU. Without a command: a profile of two
/// built-in models on this machine.
#[derive(Parser)]
#[command(
    name = "schwann",
    version = env!("SCHWANN_VERSION"),
    arg_required_else_help = false,
    after_help = "Examples:
  schwann                                   two built-in models profiled on this machine, and a report
  schwann devices show host                 this machine: CPU, caches, memory, speed, sensors
  schwann demo net.safetensors --input x.npy
  schwann graph net.safetensors             look at a network
  schwann graph net.safetensors --svg net.svg
  schwann graph net.safetensors --plan --set B=32
  schwann run net.safetensors --input x.npy --output y.npy
  schwann profile net.safetensors           where the time goes, operation by operation
  schwann bench ops --filter gemm
  schwann bench circuits
  schwann wiring auto --units 64 --outputs 16 --inputs 8 --svg circuit.svg
  schwann import ncps exported.safetensors -o circuit.safetensors
  schwann info circuit.safetensors
  schwann predict P --device \"M1 Max\" --batch 32 --steps 16
  schwann devices calibrate
  schwann run circuit.safetensors --stream < rows.csv

Exit codes: 0 done, 1 a comparison failed, 2 wrong usage or bad input, 3 cannot tell, 130 stopped by Ctrl-C."
)]
struct Cli {
    /// When to use colours; NO_COLOR and CLICOLOR_FORCE are heeded too.
    #[arg(long, value_name = "WHEN", default_value = "auto", global = true)]
    color: clap::ColorChoice,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Show a network: text, DOT, JSON or a picture; as built, optimized, or as it will run.
    Graph(graph::Args),
    /// Run a network on inputs from .npy or .npz files, or row by row from stdin.
    Run(run::Args),
    /// Keep profiles, to hold later ones against: save, list, show, track, export.
    Baseline(baseline::Args),
    /// Run models, watch every operation, and say where the time goes.
    Profile(profile::Args),
    /// Time what the library does on this machine.
    Bench(bench::Args),
    /// Hold two profiles against each other.
    Compare(compare::Args),
    /// Write a small example network to try the other commands on.
    Demo(demo::Args),
    /// Fail where something became slower than is allowed.
    Gate(gate::Args),
    /// Bring a model from elsewhere into a file of this program.
    Import(import::Args),
    /// What a model is and what it costs: options, parameters, synapses, work and memory of a step.
    Info(info::Args),
    /// The JSON Schema of a profile.
    Schema(schema::Args),
    /// Devices: what is published of them, what was measured of this one, which sizes suit them.
    Devices(devices::Args),
    /// What a model would take on a device, operation by operation, before anyone has that device.
    Predict(predict::Args),
    /// Show a saved profile: one HTML page, plots, flame graphs.
    Report(report::Args),
    /// Is a model fast and small enough? A deadline, a rate or memory, measured here or predicted for a device.
    Validate(validate::Args),
    /// Look at this machine and a model for what commonly makes models slow.
    Doctor(doctor::Args),
    /// Are a model's numbers right? Compare them with results that it gave elsewhere.
    Verify(verify::Args),
    /// Draw a neural circuit: its synapses as text or picture, and what they are in numbers.
    Wiring(wiring::Args),
}

/// How a command ended that did not fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// It ran, and what it compared differs.
    Differs,
    /// Some of its input was bad, and it has said which.
    Refused,
    /// Ctrl-C ended it early; what it had measured is shown and saved.
    Stopped,
    /// It ran, and what it measured does not say.
    Undecided,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // A closed pipe under `--help` is no error.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    match cli.color {
        clap::ColorChoice::Auto => {}
        clap::ColorChoice::Always => anstream::ColorChoice::Always.write_global(),
        clap::ColorChoice::Never => anstream::ColorChoice::Never.write_global(),
    }
    let result = match cli.command {
        None => profile::run(&profile::everything()),
        Some(Command::Graph(args)) => graph::run(&args),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Baseline(args)) => baseline::run(&args),
        Some(Command::Compare(args)) => compare::run(&args),
        Some(Command::Gate(args)) => gate::run(&args),
        Some(Command::Schema(args)) => schema::run(&args),
        Some(Command::Profile(args)) => profile::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Demo(args)) => demo::run(&args),
        Some(Command::Import(args)) => import::run(&args),
        Some(Command::Info(args)) => info::run(&args),
        Some(Command::Devices(args)) => devices::run(&args),
        Some(Command::Predict(args)) => predict::run(&args),
        Some(Command::Report(args)) => report::run(&args),
        Some(Command::Validate(args)) => validate::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Verify(args)) => verify::run(&args),
        Some(Command::Wiring(args)) => wiring::run(&args),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Differs) => ExitCode::from(1),
        Ok(Outcome::Refused) => ExitCode::from(2),
        Ok(Outcome::Stopped) => ExitCode::from(stop::EXIT_CODE),
        Ok(Outcome::Undecided) => ExitCode::from(3),
        Err(e) if out::is_closed_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            out::complain(&e, Cli::command().get_name());
            ExitCode::from(2)
        }
    }
}
