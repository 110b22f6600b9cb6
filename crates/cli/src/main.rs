//! The `schwann` command: parse, run, and an exit code that means something.
//!
//! 0: done. 1: it ran, and a comparison failed. 2: wrong usage or bad input. 3: it ran, and nobody can tell. 130: stopped
//! by Ctrl-C. A reader that closes the pipe early (`| head`) is no error.

mod baseline;
mod bench;
mod compare;
mod config;
mod demo;
mod describe;
mod devices;
mod doctor;
mod entropy;
mod export;
mod gate;
mod generate;
mod graph;
mod import;
mod info;
mod load;
mod monitor;
mod out;
mod predict;
mod profile;
mod quantize;
mod report;
mod run;
mod stop;
mod svg;
mod train;
mod tune;
mod tuned;
mod validate;
mod verify;
mod wiring;

#[cfg(test)]
extern crate schwann as schwann_core;
/// A backend that is nothing like the CPU, to show that what is printed is right for any.
#[cfg(test)]
#[path = "../../core/tests/strange/mod.rs"]
mod strange;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
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
  schwann                            profile two built-in models; write a report
  schwann info net.safetensors       what a network is and costs
  schwann run net.safetensors --input x.npy --output y.npy
  schwann profile net.safetensors    where its time goes, and what to do
  schwann graph net.safetensors --svg net.svg

`schwann help COMMAND` has more examples. Defaults of your own go into ~/.config/schwann/config.toml \
(see docs/configuration.md).

Exit codes: 0 done, 1 a comparison or test failed, 2 wrong usage or bad input, 3 cannot tell, 130 stopped by Ctrl-C."
)]
struct Cli {
    /// Colours: auto, always or never (NO_COLOR and CLICOLOR_FORCE work too).
    // What every command has stands after what is its own.
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        global = true,
        hide_possible_values = true,
        display_order = 900
    )]
    color: clap::ColorChoice,
    /// Print only results and errors: no progress, no notes.
    #[arg(long, short, global = true, display_order = 900)]
    quiet: bool,
    /// Say which files are read, and how long it took.
    #[arg(long, short, global = true, conflicts_with = "quiet", display_order = 900)]
    verbose: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

impl Cli {
    /// The command line as man pages have it: without the headings, which are for terminals.
    fn command_for_pages() -> clap::Command {
        Cli::command()
    }
}

#[derive(Subcommand)]
enum Command {
    /// Show a network: text, DOT, JSON or a picture; as built, optimized, or as it will run.
    Graph(graph::Args),
    /// Run a network on inputs from .npy or .npz files, or row by row from stdin.
    Run(run::Args),
    /// Keep profiles to compare later ones with: save, list, show, track, export.
    Baseline(baseline::Args),
    /// Run models, watch every operation, and say where the time goes.
    Profile(profile::Args),
    /// Watch a model while it runs: latency, operations, memory and the machine, live.
    Monitor(monitor::Args),
    /// Time what the library does on this machine.
    Bench(bench::Args),
    /// Compare two profiles: is the second faster or slower?
    Compare(compare::Args),
    /// Write a small example network to try the other commands on.
    Demo(demo::Args),
    /// For CI: fail if a model has become slower than allowed.
    Gate(gate::Args),
    /// Import a model that was exported from PyTorch.
    Import(import::Args),
    /// What a model is and what it costs: options, parameters, synapses, work and memory of a step.
    Info(info::Args),
    /// This machine and other devices: figures, calibration, sizes that suit them.
    Devices(devices::Args),
    /// Predict how long a model takes on another device, operation by operation.
    Predict(predict::Args),
    /// Train a model: losses, optimizers, checkpoints, curves.
    Train(train::Args),
    /// The loss of a model on the data of its training.
    Eval(train::EvalArgs),
    /// Write a model for other programs: weights that the Python package ncps loads.
    Export(export::Args),
    /// Text from a decoder, symbol after symbol, and how fast it comes.
    Generate(generate::Args),
    /// Search for a faster way to compile a model here, or for the batch that suits; keep what is found.
    Tune(tune::Args),
    /// Weights in few bits: how small, how fast and how exact a network then is.
    Quantize(quantize::Args),
    /// Show a saved profile: one HTML page, plots, flame graphs.
    Report(report::Args),
    /// Is a model fast and small enough? A deadline, a rate or memory, measured here or predicted for a device.
    Validate(validate::Args),
    /// Check this machine and a model for the usual causes of slowness.
    Doctor(doctor::Args),
    /// Are a model's numbers right? Compare them with results that it gave elsewhere.
    Verify(verify::Args),
    /// Draw a neural circuit as text or picture, with statistics.
    Wiring(wiring::Args),
    /// How much surprise there is in each piece of a file: the entropy of its bytes.
    Entropy(entropy::Args),
    /// Print a completion script for a shell.
    Completions(describe::Completions),
    /// Write the man pages into a folder.
    Man(describe::Man),
}

/// The commands by what one wants, as `--help` lists them.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Look at networks and files", &["info", "graph", "wiring", "entropy"]),
    ("Train it", &["train", "eval"]),
    ("Run it", &["run", "tune", "import", "export", "demo", "verify", "quantize", "generate"]),
    ("Measure it", &["profile", "report", "monitor", "bench"]),
    ("Compare measurements", &["baseline", "compare", "gate"]),
    ("Machines", &["devices", "predict", "validate", "doctor"]),
    ("This program", &["completions", "man", "help"]),
];

/// The command line, with its commands under headings.
fn command() -> clap::Command {
    let mut plain = Cli::command();
    plain.build();
    let mut list = String::new();
    for (heading, names) in GROUPS {
        list += &format!("{}\n", out::paint(out::TITLE, format!("{heading}:")));
        for sub in names.iter().filter_map(|name| plain.find_subcommand(name)) {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let name = format!("  {:<12}", sub.get_name());
            // Help is written once for every width.
            list += &out::wrap(&about, &out::paint(out::NAME, name), &" ".repeat(14), 80);
            list.push('\n');
        }
        list.push('\n');
    }
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{}\n{{options}}{{after-help}}",
        out::paint(out::TITLE, "Options:")
    );
    Cli::command().help_template(template).max_term_width(80)
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
    let started = std::time::Instant::now();
    stop::outlive_file_limits();
    #[cfg(any(target_os = "linux", windows))]
    if let Some(data) = schwann::prof::place::data_dir() {
        schwann::gpu::cuda_device::keep_kernels_in(data.join("kernels"));
    }
    if let Err(e) = schwann::register_backends() {
        out::complain(&e.into(), "schwann");
        return ExitCode::from(2);
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    out::set_talk(cli.quiet, cli.verbose);
    match cli.color {
        clap::ColorChoice::Auto => {}
        clap::ColorChoice::Always => anstream::ColorChoice::Always.write_global(),
        clap::ColorChoice::Never => anstream::ColorChoice::Never.write_global(),
    }
    config::tell();
    let code = obey(cli);
    out::detail(&format!("took {}", schwann::plan::seconds(started.elapsed().as_secs_f64())));
    code
}

/// Reads the command line, with the defaults of the user's own file.
fn parse() -> Result<Cli, ExitCode> {
    let matches = config::matches(command()).map_err(|problem| match problem {
        config::Problem::Usage(e) => out::usage(&e),
        config::Problem::File(e) => {
            out::complain(&e, "schwann");
            ExitCode::from(2)
        }
    })?;
    Cli::from_arg_matches(&matches).map_err(|e| out::usage(&e))
}

fn obey(cli: Cli) -> ExitCode {
    let result = match cli.command {
        None => profile::run(&profile::everything()),
        Some(Command::Graph(args)) => graph::run(&args),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Baseline(args)) => baseline::run(&args),
        Some(Command::Compare(args)) => compare::run(&args),
        Some(Command::Gate(args)) => gate::run(&args),
        Some(Command::Profile(args)) => profile::run(&args),
        Some(Command::Monitor(args)) => monitor::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Demo(args)) => demo::run(&args),
        Some(Command::Import(args)) => import::run(&args),
        Some(Command::Info(args)) => info::run(&args),
        Some(Command::Devices(args)) => devices::run(&args),
        Some(Command::Predict(args)) => predict::run(&args),
        Some(Command::Train(args)) => train::run(&args),
        Some(Command::Eval(args)) => train::eval(&args),
        Some(Command::Export(args)) => export::run(&args),
        Some(Command::Generate(args)) => generate::run(&args),
        Some(Command::Tune(args)) => tune::run(&args),
        Some(Command::Quantize(args)) => quantize::run(&args),
        Some(Command::Report(args)) => report::run(&args),
        Some(Command::Validate(args)) => validate::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Verify(args)) => verify::run(&args),
        Some(Command::Wiring(args)) => wiring::run(&args),
        Some(Command::Entropy(args)) => entropy::run(&args),
        Some(Command::Completions(args)) => describe::completions(&args),
        Some(Command::Man(args)) => describe::man(&args),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Differs) => ExitCode::from(1),
        Ok(Outcome::Refused) => ExitCode::from(2),
        Ok(Outcome::Stopped) => ExitCode::from(stop::EXIT_CODE),
        Ok(Outcome::Undecided) => ExitCode::from(3),
        Err(e) => {
            out::complain(&e, "schwann");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<'a>(command: &'a clap::Command, into: &mut Vec<&'a clap::Command>) {
        into.push(command);
        command.get_subcommands().for_each(|sub| all(sub, into));
    }

    #[test]
    fn the_command_line_is_sound_and_every_command_has_its_heading() {
        command().debug_assert();
        let cli = Cli::command();
        for sub in cli.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&sub.get_name())).count();
            assert_eq!(groups, 1, "`{}` is under {groups} headings", sub.get_name());
        }
    }

    #[test]
    fn no_help_text_has_escapes_or_bare_letters_for_models() {
        let mut cli = command();
        cli.build();
        let mut commands = vec![];
        all(&cli, &mut commands);
        for command in commands {
            let text = command.clone().render_long_help().to_string();
            assert!(!text.contains("\\\""), "`{}` has \\\" in its help:\n{text}", command.get_name());
            for letters in ["P, W", "P|W|L", " W and G", "profile W", "predict P ", "--model P ", "--model W "] {
                assert!(!text.contains(letters), "`{}` shows `{letters}`:\n{text}", command.get_name());
            }
        }
    }

    #[test]
    fn every_help_fits_80_columns_and_no_example_is_broken() {
        let mut cli = command();
        cli.build();
        let mut commands = vec![];
        all(&cli, &mut commands);
        assert!(commands.len() > 30, "{} commands", commands.len());
        for command in commands {
            let name = command.get_display_name().unwrap_or(command.get_name());
            for text in [command.clone().render_help(), command.clone().render_long_help()].map(|t| t.to_string()) {
                for line in text.lines() {
                    assert!(out::columns(line) <= 80, "`{name}`, {} columns: {line}", out::columns(line));
                }
                // Examples and tables are indented, and stand in the help as they were written.
                let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                for line in after.lines().filter(|line| line.starts_with(' ')) {
                    assert!(text.lines().any(|l| l == line.trim_end()), "`{name}` breaks: {line}");
                }
            }
        }
    }
}
