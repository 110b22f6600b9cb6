//! Messages by HTTP: JSON to one address, with an answer that is waited for only so long.

use crate::out;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Whoever is sent a message has so long to take it and to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// More of an answer than this is not read.
const MOST_ANSWER: usize = 16 << 10;

/// Where messages go: `http://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
    path: String,
}

impl Target {
    /// Reads an address; `port` and `path` where it has none. The words say what was expected.
    pub(super) fn read(url: &str, port: u16, path: &str, wanted: &str) -> Result<Target> {
        let Some(rest) = url.strip_prefix("http://") else { bail!("`{url}` does not begin with http://; {wanted}") };
        let (place, own) = rest.split_once('/').unwrap_or((rest, ""));
        let odd = |c: char| c.is_whitespace() || c.is_control() || !c.is_ascii();
        if place.chars().any(|c| odd(c) || c == '@') || own.chars().any(odd) {
            bail!("`{url}` has letters that an address cannot have; {wanted}");
        }
        let (host, number) = match place.rsplit_once(':') {
            Some((host, number)) if !number.ends_with(']') => (host, Some(number)),
            _ => (place, None),
        };
        let port = match number {
            None => port,
            Some(number) => number.parse().ok().with_context(|| format!("`{number}` is not a port; {wanted}"))?,
        };
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            bail!("`{url}` names no host; {wanted}");
        }
        let path = if own.is_empty() { path.to_owned() } else { format!("/{own}") };
        Ok(Target { host: host.to_owned(), port, path })
    }

    /// Whether it is this machine, by its number or by its usual name.
    pub(super) fn is_here(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// The host and the port.
    fn place(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Sends a message; gives what was answered to it. Another answer than one of success is an error.
    pub(super) fn post(&self, message: &str) -> Result<String> {
        let end = Instant::now() + PATIENCE;
        let cannot = || format!("no message could be sent to {}", self.place());
        let mut stream = self.connect().with_context(cannot)?;
        stream.set_write_timeout(Some(PATIENCE)).with_context(cannot)?;
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: \
             close\r\n\r\n",
            self.path,
            self.place(),
            message.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(message.as_bytes())).with_context(cannot)?;
        let answer = answer(&mut stream, end).with_context(|| format!("{} did not answer", self.place()))?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.lines().next().unwrap_or_default();
        if !status.split(' ').nth(1).is_some_and(|code| code.starts_with('2')) {
            bail!("{} answered `{}`", self.place(), out::printable(&out::cut(status, 60)));
        }
        Ok(body.to_owned())
    }

    /// Connects to the first of the host's addresses that answers.
    fn connect(&self) -> std::io::Result<TcpStream> {
        let mut failed = None;
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.unwrap_or_else(|| std::io::Error::other("the host has no address")))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.place(), self.path)
    }
}

/// What comes back until it is whole, the other side closes, or the time is over.
fn answer(stream: &mut TcpStream, end: Instant) -> std::io::Result<String> {
    let (mut all, mut part) = (vec![], [0; 1024]);
    while all.len() < MOST_ANSWER && !is_whole(&all) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            count => all.extend_from_slice(&part[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&all).into_owned())
}

/// Whether as many bytes follow the head as it says.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.is_some_and(|length| body.len() >= length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn read(url: &str) -> Result<Target> {
        Target::read(url, 80, "/", "expected this")
    }

    #[test]
    fn addresses_are_read_with_their_defaults_and_others_refused() {
        for (url, wanted) in [
            ("http://127.0.0.1:9000/x", "http://127.0.0.1:9000/x"),
            ("http://localhost:9000", "http://localhost:9000/"),
            ("http://[::1]:9000/a/b", "http://[::1]:9000/a/b"),
            ("http://[::1]", "http://[::1]:80/"),
            ("http://collector.example/v1", "http://collector.example:80/v1"),
        ] {
            assert_eq!(read(url).unwrap().to_string(), wanted);
        }
        for bad in [
            "https://127.0.0.1/x",
            "127.0.0.1:9000",
            "http://",
            "http:///x",
            "http://host:",
            "http://host:99999",
            "http://host:80/a b",
            "http://host:80/\r\nX: y",
            "http://a b/",
            "http://user@host/",
        ] {
            assert!(read(bad).unwrap_err().to_string().contains("expected this"), "{bad}");
        }
        assert!(read("http://[::1]/").unwrap().is_here() && !read("http://127.0.0.1.evil.example/").unwrap().is_here());
    }

    #[test]
    fn a_message_arrives_whole_and_a_refusal_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = read(&format!("http://{}/x", listener.local_addr().unwrap())).unwrap();
        let server = std::thread::spawn(move || {
            let mut open = vec![];
            let mut all = vec![];
            for answer in ["204 No Content\r\n\r\n", "500 Oh\r\n\r\n", "200 OK\r\nContent-Length: 2\r\n\r\n{}"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut bytes = vec![0; 4096];
                let mut text = String::new();
                while !text.ends_with('}') {
                    let n = stream.read(&mut bytes).unwrap();
                    text += std::str::from_utf8(&bytes[..n]).unwrap();
                }
                write!(stream, "HTTP/1.1 {answer}").unwrap();
                // The last one keeps its connection open, though it was asked not to.
                if answer.starts_with("200") {
                    open.push(stream);
                }
                all.push(text);
            }
            (all, open)
        });
        assert_eq!(target.post("{\"rule\":1}").unwrap(), "");
        assert!(target.post("{}").unwrap_err().to_string().contains("500 Oh"));
        let asked = Instant::now();
        assert_eq!(target.post("{}").unwrap(), "{}");
        assert!(asked.elapsed() < PATIENCE);
        let (all, _open) = server.join().unwrap();
        assert!(all[0].starts_with("POST /x HTTP/1.1\r\n") && all[0].ends_with("\r\n\r\n{\"rule\":1}"), "{}", all[0]);
    }

    #[test]
    fn nobody_who_answers_is_an_error_after_a_while() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = read(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let asked = Instant::now();
        assert!(target.post("{}").unwrap_err().to_string().contains("did not answer"));
        assert!(asked.elapsed() < 2 * PATIENCE);
        drop(listener);
        assert!(target.post("{}").unwrap_err().to_string().contains("no message could be sent"));
    }
}
