//! Two builds of this program measured in turns: each runs as a process of its own and measures when it is asked, so that
//! whatever the machine does meanwhile, it does to both.
//!
//! A line that says who it is, then for each line read one line with the seconds of a sample.

use super::live::Workload;
use super::{Seen, Shape, bar, note};
use crate::{Outcome, out};
use anyhow::{Context, Result, anyhow, bail};
use schwann::prof::baseline::{self, Budget, Rule, Ruling};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The first line, with the version of these lines.
const HELLO: &str = "schwann gate 1";

#[derive(clap::Args)]
pub(super) struct Args {
    /// P, W, L or a network's file.
    #[arg(long)]
    model: String,
    #[command(flatten)]
    shape: Shape,
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let mut run = Workload::new(&args.model, &args.shape)?.ready()?;
    run.warm_up(0.3)?;
    out::print(HELLO)?;
    for line in std::io::stdin().lock().lines() {
        line?;
        out::print(&format!("{:e}", run.sample()?))?;
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
    fn start(program: &Path, args: &super::Args, model: &str) -> Result<Peer> {
        let mut command = Command::new(program);
        command.args(["gate", "serve", "--model", model]);
        for (flag, value) in
            [("--batch", args.shape.batch), ("--steps", args.shape.steps), ("--threads", args.shape.threads)]
        {
            command.args(value.iter().flat_map(|v| [flag.to_owned(), v.to_string()]));
        }
        let name = program.display().to_string();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let (Some(ask), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{name} has no pipes");
        };
        let mut peer = Peer { child, ask, answers: BufReader::new(answers), name };
        let hello = peer.line()?;
        if hello != HELLO {
            bail!(
                "{} is no program that this gate can ask: it said `{}`, expected `{HELLO}`",
                peer.name,
                out::printable(&hello)
            );
        }
        Ok(peer)
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

/// Measures another build and this one in turns.
pub(super) fn in_turns(
    args: &super::Args,
    rule: &Rule,
    program: &Path,
    model: &str,
    seen: &RefCell<Seen>,
) -> Result<Ruling> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut before = Peer::start(program, args, model)?;
    let mut after = Peer::start(&own, args, model)?;
    let (bar, mut tick) = bar(args.seconds);
    let budget = Budget { seconds: args.seconds, rounds: 1 };
    let mut first = || note(seen, |s| &mut s.base, before.sample());
    let mut second = || note(seen, |s| &mut s.candidate, after.sample());
    let ruling = baseline::in_turns(rule, &budget, &mut first, &mut second, &mut tick);
    bar.finish_and_clear();
    ruling
}
