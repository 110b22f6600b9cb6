//! The view in a browser: one page, its moments as server-sent events, and nothing that the page could change.
//!
//! A thread takes moments from the feed and hands them to every page that listens, through a queue of each page's own. It
//! waits for none of them: where a queue is full, as a browser's that does not read is, that page misses the moment and
//! shows a gap. The thread that takes moments from the model waits for this one as little.

mod hub;
#[cfg(test)]
mod tests;

use super::feed::{Desk, Feed, Next};
use super::serve::{COOKIE, Server, Token};
use crate::out;
use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hub::{Hub, Listener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAGE: &str = include_str!("web/page.html");
const SCRIPT: &str = include_str!("web/page.js");
const PLOTS: &str = include_str!("web/plots.js");
const STYLE: &str = include_str!("web/page.css");

/// Without a moment for so long, pages get a sign that the connection lives.
const SILENCE: Duration = Duration::from_secs(5);

/// What a browser may do with what comes from here: nothing is loaded from elsewhere, embedded, or guessed.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Serves the page until there are no more moments, or Ctrl-C where it says why there are none.
pub(super) fn web(feed: Feed, server: Server, desk: &Desk) -> Result<()> {
    out::print(&format!("the monitor is at {}", server.url("/")))?;
    if server.token().is_some() {
        out::note("whoever has this address with its token can look");
    }
    out::note("Ctrl-C ends it");
    let hub = Arc::new(Hub::new(feed.about())?);
    let over = Arc::new(AtomicBool::new(false));
    let giving = {
        let (hub, desk, over) = (Arc::clone(&hub), desk.clone(), Arc::clone(&over));
        let give = move || {
            give(&feed, &desk, &hub);
            over.store(true, Ordering::Relaxed);
        };
        std::thread::Builder::new().name("schwann page".into()).spawn(give)
    };
    giving.context("cannot start a thread")?;
    let app = app(hub, server.token().cloned());
    let desk = desk.clone();
    server.run(app, move || over.load(Ordering::Relaxed) || desk.is_over())
}

/// Hands moments to pages until there are no more.
fn give(feed: &Feed, desk: &Desk, hub: &Hub) {
    while !desk.is_over() {
        match feed.next(SILENCE) {
            Next::Moment(moment) => hub.give(&moment),
            Next::Waiting => hub.alive(),
            Next::Over => {
                let Some(why) = desk.ended() else { return };
                hub.end(&why);
                while !desk.is_over() {
                    std::thread::sleep(Duration::from_millis(100));
                    hub.alive();
                }
            }
        }
    }
}

/// What is served. All of it is read, nothing changed.
fn app(hub: Arc<Hub>, token: Option<Token>) -> Router {
    let file = |kind: &'static str, text: &'static str| get(async move || ([(header::CONTENT_TYPE, kind)], text));
    let page = {
        let token = token.map(Arc::new);
        get(async move |uri: Uri| page(token.as_deref(), uri.query().unwrap_or_default()))
    };
    let style = format!("{}{STYLE}", schwann::prof::report::STYLE);
    Router::new()
        .route("/", page)
        .route("/page.js", file("text/javascript; charset=utf-8", SCRIPT))
        .route("/plots.js", file("text/javascript; charset=utf-8", PLOTS))
        .route("/page.css", get(async move || ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], style)))
        .route("/events", get(events))
        .with_state(hub)
        .layer(map_response(async |mut response: Response| {
            for (name, value) in HEADERS {
                response.headers_mut().insert(name, HeaderValue::from_static(value));
            }
            response
        }))
}

/// The page. A token in its address goes into a cookie that no script can read, and out of the address, where histories
/// and screens would keep it.
fn page(token: Option<&Token>, query: &str) -> Response {
    let brought = query.split('&').any(|pair| pair.starts_with("token="));
    match token.filter(|_| brought) {
        Some(token) => {
            let cookie = format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict", token.as_str());
            (StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, "/".to_owned())]).into_response()
        }
        None => ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE).into_response(),
    }
}

/// What is watched and its last hour, then each moment as it comes.
async fn events(State(hub): State<Arc<Hub>>, headers: HeaderMap) -> Response {
    // A stream is for this page alone; other sites' pages say of themselves that they are.
    if headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none") {
        return (StatusCode::FORBIDDEN, "this stream is for its own page\n").into_response();
    }
    match hub.listen() {
        Some(listener) => {
            ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::new::<Listener>(listener))
                .into_response()
        }
        None => (StatusCode::SERVICE_UNAVAILABLE, "too many pages listen already\n").into_response(),
    }
}
