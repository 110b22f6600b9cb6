//! What is served over HTTP, the page and the metrics, has this in common: the address, the token, and a server that
//! bounds what anybody can ask of it.
//!
//! On the loopback address no token is asked for: whoever can reach it is on this machine. There, requests must name this
//! machine as their host, so that no page of another site can be led here by a name that points to it. On any other
//! address every request needs the token.

use super::stall::Impatient;
use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::fmt;
use std::hint::black_box;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Connections at once; beyond, new ones are closed.
const MOST_CONNECTIONS: usize = 512;
/// A request's head has so long to arrive, and so many bytes.
const HEAD_TIME: Duration = Duration::from_secs(10);
const MOST_HEAD_BYTES: usize = 32 << 10;
/// What is written must be taken within so long.
const TAKE_TIME: Duration = Duration::from_secs(60);
/// How often the server looks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// What browsers keep the token in.
pub(super) const COOKIE: &str = "schwann_token";

/// An address to serve at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address(SocketAddr);

impl Address {
    /// Whether only this machine can reach it.
    pub(super) fn is_loopback(self) -> bool {
        self.0.ip().is_loopback()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads an address: `9464`, `:9464`, `127.0.0.1:9464`, `[::1]:9464`, `name:9464`.
pub(super) fn address(text: &str) -> Result<Address, String> {
    let (host, port) = match text.rsplit_once(':') {
        Some(("", port)) => ("127.0.0.1", port),
        Some((host, port)) => (host, port),
        None => ("127.0.0.1", text),
    };
    let wanted = "expected HOST:PORT or PORT, such as 127.0.0.1:9464 or 9464";
    let port: u16 = port.parse().map_err(|_| format!("`{port}` is not a port; {wanted}"))?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(Address(SocketAddr::new(ip, port)));
    }
    let found = (host, port).to_socket_addrs().map_err(|e| format!("`{host}` cannot be found ({e}); {wanted}"))?;
    // A name of this machine may stand for both kinds of address; the older is understood everywhere.
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort_by_key(|a| !a.is_ipv4());
    found.first().map(|a| Address(*a)).ok_or_else(|| format!("`{host}` has no address; {wanted}"))
}

/// A secret that requests from other machines must bring.
#[derive(Clone)]
pub(super) struct Token(Arc<str>);

impl Token {
    /// A new one: 128 random bits.
    fn new() -> Result<Token> {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes)
            .map_err(|e| anyhow::anyhow!("the system gives no random numbers for a token: {e}"))?;
        Ok(Token(bytes.iter().map(|b| format!("{b:02x}")).collect::<String>().into()))
    }

    /// From a file's first line: for servers that ask again after the monitor was started anew.
    fn read(path: &Path) -> Result<Token> {
        let mut text = String::new();
        let read = std::fs::File::open(path).and_then(|f| f.take(4096).read_to_string(&mut text));
        read.with_context(|| format!("cannot read the token in {}", path.display()))?;
        let token = text.lines().next().unwrap_or_default().trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
        if !(16..=256).contains(&token.len()) || !token.chars().all(plain) {
            bail!(
                "{} has no token in its first line; expected 16 to 256 letters, digits, `-`, `.`, `_` or `~`",
                path.display()
            );
        }
        Ok(Token(token.into()))
    }

    /// The text of it.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is this; how long that takes says nothing about where they differ.
    pub(super) fn is(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        let mut differs = u8::from(own.len() != given.len());
        for (i, byte) in own.iter().enumerate() {
            differs |= black_box(byte ^ given.get(i).copied().unwrap_or(0));
        }
        black_box(differs) == 0
    }
}

/// A bound address, and who may ask there.
pub(super) struct Server {
    listener: TcpListener,
    /// Where it listens: with the port that the system chose, if it was to choose.
    pub(super) address: Address,
    token: Option<Token>,
}

impl Server {
    /// Takes the address. Another than the loopback's gets a token: that of a file, or a new one.
    pub(super) fn bind(address: Address, token: Option<&Path>) -> Result<Server> {
        let listener = TcpListener::bind(address.0).map_err(|e| {
            let why = match e.kind() {
                std::io::ErrorKind::AddrInUse => "another program has this port; give another one".to_owned(),
                std::io::ErrorKind::PermissionDenied => "ports below 1024 are kept for administrators".to_owned(),
                std::io::ErrorKind::AddrNotAvailable => "this machine does not have this address".to_owned(),
                _ => e.to_string(),
            };
            anyhow::anyhow!("cannot serve at {address}: {why}")
        })?;
        let address = Address(listener.local_addr()?);
        let token = match token {
            Some(path) => Some(Token::read(path)?),
            None if address.is_loopback() => None,
            None => Some(Token::new()?),
        };
        Ok(Server { listener, address, token })
    }

    /// The token that requests need.
    pub(super) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Where a browser finds it; the token comes with it, and is printed nowhere else.
    pub(super) fn url(&self, path: &str) -> String {
        let ip = self.address.0.ip();
        let host = if ip.is_unspecified() { "localhost".to_owned() } else { SocketAddr::new(ip, 0).to_string() };
        let host = host.strip_suffix(":0").unwrap_or(&host).to_owned();
        let token = self.token.as_ref().map(|t| format!("?token={}", t.as_str())).unwrap_or_default();
        format!("http://{host}:{}{path}{token}", self.address.0.port())
    }

    /// Serves until `over`; every request is asked for its token first.
    pub(super) fn run(self, app: Router, over: impl Fn() -> bool) -> Result<()> {
        let (address, token) = (self.address, self.token);
        let app = app.layer(middleware::from_fn(move |request: Request, next: Next| {
            let refused = refusal(address, token.as_ref(), &request);
            async move {
                match refused {
                    Some(response) => response,
                    None => next.run(request).await,
                }
            }
        }));
        self.listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot serve")?;
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
            while !over() {
                let Ok(accepted) = tokio::time::timeout(LOOK, listener.accept()).await else { continue };
                let Ok((stream, _)) = accepted else {
                    // Out of files, most likely: some connections will end.
                    tokio::time::sleep(LOOK).await;
                    continue;
                };
                let Ok(place) = Arc::clone(&room).try_acquire_owned() else { continue };
                let service = TowerToHyperService::new(app.clone());
                tokio::spawn(async move {
                    let mut http = hyper::server::conn::http1::Builder::new();
                    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(MOST_HEAD_BYTES);
                    // What goes wrong on a connection ends it, and is nobody else's business.
                    let stream = TokioIo::new(Impatient::new(stream, TAKE_TIME));
                    let _ = http.serve_connection(stream, service).await;
                    drop(place);
                });
            }
            Ok(())
        })
    }
}

/// The answer to a request that may not be answered.
fn refusal(address: Address, token: Option<&Token>, request: &Request) -> Option<Response> {
    let text = |name| request.headers().get(name).and_then(|v| v.to_str().ok());
    match token {
        None => {
            let host = text(header::HOST).unwrap_or_default();
            (!(address.is_loopback() && is_here(host))).then(|| {
                let said = "requests must be for this machine itself: localhost, 127.0.0.1 or [::1]\n";
                (StatusCode::FORBIDDEN, said).into_response()
            })
        }
        Some(token) => {
            let bearer = text(header::AUTHORIZATION).and_then(|v| v.strip_prefix("Bearer "));
            let query = request.uri().query().unwrap_or_default();
            let asked = query.split('&').find_map(|pair| pair.strip_prefix("token="));
            let cookies = text(header::COOKIE).unwrap_or_default();
            let kept = cookies.split(';').find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='));
            let known = [bearer, asked, kept].into_iter().flatten().any(|given| token.is(given));
            (!known).then(|| {
                let said = "a token is needed: `Authorization: Bearer TOKEN`, or ?token=TOKEN\n";
                (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], said).into_response()
            })
        }
    }
}

/// Whether a host, with or without a port, is this machine by one of its own names.
fn is_here(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _)) => name,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_a_port_alone_and_is_then_the_loopbacks() {
        for (text, wanted) in [
            ("9464", "127.0.0.1:9464"),
            (":9464", "127.0.0.1:9464"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("[::1]:80", "[::1]:80"),
            ("0.0.0.0:9464", "0.0.0.0:9464"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), wanted);
        }
        for bad in ["", "x", "1.2.3.4", "127.0.0.1:", "127.0.0.1:99999", ":", "127.0.0.1:-1", "no such host:1"] {
            assert!(address(bad).is_err(), "{bad}");
        }
        assert!(address("[::1]:80").unwrap().is_loopback() && !address("0.0.0.0:80").unwrap().is_loopback());
    }

    #[test]
    fn only_this_machines_own_names_are_here() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9464", "[::1]", "[::1]:80"] {
            assert!(is_here(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "[::2]:80"]
        {
            assert!(!is_here(host), "{host}");
        }
    }

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let (token, other) = (Token::new().unwrap(), Token::new().unwrap());
        assert_eq!(token.as_str().len(), 32);
        assert!(token.is(token.as_str()) && !token.is(other.as_str()));
        assert!(!token.is("") && !token.is(&token.as_str()[1..]) && !token.is(&format!("{}0", token.as_str())));
    }

    #[test]
    fn a_port_that_is_taken_is_said_to_be() {
        let taken = Server::bind(address("127.0.0.1:0").unwrap(), None).unwrap();
        let again = Server::bind(taken.address, None).err().unwrap().to_string();
        assert!(again.contains("another program has this port"), "{again}");
    }
}
