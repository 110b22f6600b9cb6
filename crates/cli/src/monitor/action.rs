//! What is done when a rule begins to hold: a command of the shell, or a message by HTTP to a program on this machine.
//! Either has a thread of its own, so that a slow one holds up nothing; a few may be under way at once.

use super::post::Target;
use crate::out;
use anyhow::{Context, Result, bail};
use schwann::prof::live::About;
use serde_json::json;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Actions under way at once; beyond, they are left out, with a word.
const MOST_AT_ONCE: usize = 8;

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// What a rule leads to.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Run(Arc<str>),
    Post(Arc<Target>),
}

impl Action {
    /// A command for the shell.
    pub(super) fn run(command: &str) -> Action {
        Action::Run(command.into())
    }

    /// A message to `http://127.0.0.1:PORT/PATH`. Other machines are not asked: what happens here is not for everybody.
    pub(super) fn post(url: &str) -> Result<Action> {
        let wanted = "expected an address on this machine, such as http://127.0.0.1:9000/alert";
        let target = Target::read(url, 80, "/", wanted)?;
        if !target.is_here() {
            bail!("`{url}` is not this machine; {wanted}");
        }
        Ok(Action::Post(Arc::new(target)))
    }

    /// Does it, on a thread of its own.
    pub(super) fn act(&self, rule: &str, value: Option<&(f64, String)>, about: &About, at_s: f64) {
        if UNDER_WAY.fetch_add(1, Ordering::Relaxed) >= MOST_AT_ONCE {
            UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
            out::note(&format!("rule `{rule}`: {MOST_AT_ONCE} actions are under way, so one more was left out"));
            return;
        }
        let (action, rule, model) = (self.clone(), rule.to_owned(), about.model.clone());
        let (number, unit) = value.map_or((None, String::new()), |(v, unit)| (Some(*v), unit.clone()));
        let started = std::thread::Builder::new().name("schwann action".into()).spawn(move || {
            let outcome = match &action {
                Action::Run(command) => run(command, &rule, &model, number, &unit),
                Action::Post(target) => {
                    let message = json!({"rule": rule, "model": model, "value": number, "unit": unit, "at_s": at_s});
                    target.post(&message.to_string()).map(drop)
                }
            };
            if let Err(why) = outcome {
                out::note(&format!("rule `{rule}`: {why:#}"));
            }
            UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits for actions that are under way, for so long at most.
    pub(super) fn wait(most: Duration) {
        let end = std::time::Instant::now() + most;
        while UNDER_WAY.load(Ordering::Relaxed) > 0 && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn run(command: &str, rule: &str, model: &str, value: Option<f64>, unit: &str) -> Result<()> {
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let mut child = Command::new(shell);
    child.args([flag, command]).env("SCHWANN_RULE", rule).env("SCHWANN_MODEL", model);
    child.env("SCHWANN_VALUE", value.map(|v| v.to_string()).unwrap_or_default()).env("SCHWANN_UNIT", unit);
    // The terminal is the view's.
    let ended = child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let ended = ended.with_context(|| format!("`{command}` could not be started"))?;
    if !ended.success() {
        bail!("`{command}` ended with {ended}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_to_this_machine_alone() {
        for good in ["http://127.0.0.1:9000/x", "http://localhost:9000", "http://[::1]:9000/a/b", "http://127.0.0.1"] {
            assert!(Action::post(good).is_ok(), "{good}");
        }
        for bad in [
            "https://127.0.0.1/x",
            "http://10.0.0.1/x",
            "http://example.org/",
            "http://127.0.0.1:9000/a b",
            "http://127.0.0.1:9000/\r\nX: y",
            "127.0.0.1:9000",
            "http://",
            "http://127.0.0.1.evil.example/",
        ] {
            assert!(Action::post(bad).is_err(), "{bad}");
        }
    }
}
