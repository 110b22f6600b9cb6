//! Two builds of this program measured in turns: each runs as a process of its own and measures when it is asked, so that
//! whatever the machine does meanwhile, it does to both.
//!
//! A line that says who it is, then for each line read one line with the seconds of a sample.

use super::{START_SECONDS, Seen, Shape, bar, note};
use crate::{Outcome, load, out, profile};
use anyhow::{Context, Result, anyhow, bail};
use schwann::prof::baseline::{Rule, Ruling};
use schwann::prof::profiler::Timed;
use schwann::prof::stats::verdict::Reading;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// The first line, with the version of these lines.
const HELLO: &str = "schwann gate 1";
/// Turns of a start.
const LEAST_TURNS: usize = 2;
const MOST_TURNS: usize = 4000;
/// Seconds before the first sample.
const WARM_UP: f64 = 0.03;

#[derive(clap::Args)]
pub(super) struct Args {
    /// A built-in model or a network's file.
    #[arg(long, value_parser = load::model_name)]
    model: String,
    #[command(flatten)]
    shape: Shape,
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let mut run = Timed::new(&profile::subject(&args.model)?, &args.shape.options())?;
    run.warm_up(WARM_UP)?;
    out::print(HELLO)?;
    for line in std::io::stdin().lock().lines() {
        line?;
        out::print(&format!("{:e}", run.block()?))?;
    }
    Ok(Outcome::Done)
}

struct Peer {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
    name: String,
}

impl Peer {
    fn start(program: &Path, model: &str, shape: &Shape) -> Result<Peer> {
        let mut command = Command::new(program);
        command.args(["gate", "serve", "--model", model]);
        for (flag, value) in [("--batch", shape.batch), ("--steps", shape.steps), ("--threads", shape.threads)] {
            command.args(value.iter().flat_map(|v| [flag.to_owned(), v.to_string()]));
        }
        command.args(shape.backend.iter().flat_map(|v| ["--backend".to_owned(), v.to_string()]));
        let name = program.display().to_string();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let (Some(ask), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{name} has no pipes");
        };
        Ok(Peer { child, ask, answers: BufReader::new(answers), name })
    }

    fn greet(&mut self) -> Result<()> {
        let hello = self.line()?;
        if hello != HELLO {
            let hello = out::printable(&hello);
            bail!("{} is not a program that this gate can ask: it said `{hello}`, expected `{HELLO}`", self.name);
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        // A line is a number; what writes without end is no peer of ours.
        let limited = &mut std::io::Read::take(&mut self.answers, 4096);
        let read = limited.read_line(&mut line).with_context(|| format!("cannot read from {}", self.name))?;
        if read == 0 {
            bail!("{} ended before it had measured (what it said is above)", self.name);
        }
        Ok(line.trim().to_owned())
    }

    fn sample(&mut self) -> Result<f64> {
        self.ask.write_all(b"\n").with_context(|| format!("{} went away", self.name))?;
        let line = self.line()?;
        let seconds = line.parse::<f64>().ok().filter(|s| s.is_finite() && *s > 0.0);
        seconds.ok_or_else(|| anyhow!("{} said `{}`; expected seconds", self.name, out::printable(&line)))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends by itself when its input does; a broken one must not outlive us.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One start of each of two programs, asked in turns: the second's time over the first's.
pub(super) fn once(sides: [(&Path, &Shape); 2], model: &str, seconds: f64) -> Result<Reading> {
    let [mut before, mut after] =
        [Peer::start(sides[0].0, model, sides[0].1)?, Peer::start(sides[1].0, model, sides[1].1)?];
    before.greet()?;
    after.greet()?;
    let (mut base, mut candidate) = (vec![], vec![]);
    let clock = Instant::now();
    while base.len() < LEAST_TURNS || (clock.elapsed().as_secs_f64() < seconds && base.len() < MOST_TURNS) {
        // Each turn in the other order: who comes second finds another clock.
        if base.len() % 2 == 0 {
            base.push(before.sample()?);
            candidate.push(after.sample()?);
        } else {
            candidate.push(after.sample()?);
            base.push(before.sample()?);
        }
    }
    Reading::of(&base, &candidate).with_context(|| format!("{} measured nothing", after.name))
}

/// Measures another build and this one in turns, in several starts of both.
pub(super) fn in_turns(
    args: &super::Args,
    rule: &Rule,
    program: &Path,
    model: &str,
    seen: &RefCell<Seen>,
) -> Result<Ruling> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    super::Side { model: model.to_owned(), options: args.shape.options() }.check()?;
    let sides = [(program, &args.shape), (own.as_path(), &args.shape)];
    let (bar, mut tick) = bar(args.seconds);
    let mut start = || note(seen, once(sides, model, START_SECONDS));
    let ruling = rule.in_turns(args.seconds, &mut start, &mut tick);
    bar.finish_and_clear();
    ruling
}
