//! What is done when a rule begins to hold: a command of the shell, or a message by HTTP to a program on this machine.
//! Either has a thread of its own, so that a slow one holds up nothing; a few may be under way at once.

use crate::out;
use anyhow::{Context, Result, bail};
use schwann::prof::live::About;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Actions under way at once; beyond, they are left out, with a word.
const MOST_AT_ONCE: usize = 8;
/// A program that is sent a message has so long to take it, and to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The beginning of an answer, which has its status.
const MOST_ANSWER: u64 = 1024;

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// What a rule leads to.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Run(Arc<str>),
    Post { address: SocketAddr, path: Arc<str> },
}

impl Action {
    /// A command for the shell.
    pub(super) fn run(command: &str) -> Action {
        Action::Run(command.into())
    }

    /// A message to `http://127.0.0.1:PORT/PATH`. Other machines are not asked: what happens here is not for everybody.
    pub(super) fn post(url: &str) -> Result<Action> {
        let wanted = "expected an address on this machine, such as http://127.0.0.1:9000/alert";
        let Some(rest) = url.strip_prefix("http://") else { bail!("`{url}` does not begin with http://; {wanted}") };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = host.replace("localhost", "127.0.0.1");
        let host =
            if host.rsplit(']').next().is_some_and(|end| end.contains(':')) { host } else { format!("{host}:80") };
        let address: SocketAddr =
            host.parse().with_context(|| format!("`{url}` names no host by its number; {wanted}"))?;
        if !address.ip().is_loopback() {
            bail!("{} is not this machine; {wanted}", address.ip());
        }
        if path.chars().any(|c| c.is_whitespace() || c.is_control() || !c.is_ascii()) {
            bail!("`{url}` has letters that an address cannot have; {wanted}");
        }
        Ok(Action::Post { address, path: format!("/{path}").into() })
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
                Action::Post { address, path } => {
                    let message = json!({"rule": rule, "model": model, "value": number, "unit": unit, "at_s": at_s});
                    post(*address, path, &message.to_string())
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

fn post(address: SocketAddr, path: &str, message: &str) -> Result<()> {
    let cannot = || format!("no message could be sent to {address}");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).with_context(cannot)?;
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .with_context(cannot)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n",
        message.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(message.as_bytes())).with_context(cannot)?;
    let mut answer = vec![];
    stream.take(MOST_ANSWER).read_to_end(&mut answer).with_context(|| format!("{address} did not answer"))?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.lines().next().unwrap_or_default();
    if !status.split(' ').nth(1).is_some_and(|code| code.starts_with('2')) {
        bail!("{address} answered `{}`", out::printable(&out::cut(status, 60)));
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

    #[test]
    fn a_message_arrives_whole_and_a_refusal_is_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut all = vec![];
            for answer in ["204 No Content", "500 Oh"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut bytes = vec![0; 4096];
                let mut text = String::new();
                while !text.ends_with('}') {
                    let n = stream.read(&mut bytes).unwrap();
                    text += std::str::from_utf8(&bytes[..n]).unwrap();
                }
                write!(stream, "HTTP/1.1 {answer}\r\n\r\n").unwrap();
                all.push(text);
            }
            all
        });
        post(address, "/x", "{\"rule\":1}").unwrap();
        assert!(post(address, "/x", "{}").unwrap_err().to_string().contains("500 Oh"));
        let all = server.join().unwrap();
        assert!(all[0].starts_with("POST /x HTTP/1.1\r\n") && all[0].ends_with("\r\n\r\n{\"rule\":1}"), "{}", all[0]);
    }
}
