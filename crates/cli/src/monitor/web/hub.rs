//! Moments for every page that listens, and what a new page is told first.

use crate::monitor::history::{History, Log, Together};
use anyhow::{Context as _, Result};
use hyper::body::{Body, Bytes, Frame};
use schwann::prof::live::{About, Moment};
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, Receiver, Sender, error::TrySendError};

/// Moments that wait for a page; one that does not read them misses the next.
const WAITING: usize = 32;
/// Pages that listen at once.
const MOST_PAGES: usize = 256;
/// Signs of life come no closer than this.
const BETWEEN: Duration = Duration::from_secs(5);

pub(super) struct Hub {
    about: String,
    state: Mutex<State>,
}

struct State {
    history: History,
    log: Log,
    /// The last moment, and what came before it, as events; made when they are first asked for.
    last: Option<Bytes>,
    past: Option<Bytes>,
    ended: Option<Bytes>,
    pages: Vec<Sender<Bytes>>,
    given: Instant,
}

/// An event as a stream has it.
fn event(name: &str, data: &str) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

impl Hub {
    pub(super) fn new(about: &About) -> Result<Hub> {
        let about = serde_json::to_string(about).context("cannot write what is watched as JSON")?;
        let (history, log) = (History::default(), Log::default());
        let state = State { history, log, last: None, past: None, ended: None, pages: vec![], given: Instant::now() };
        Ok(Hub { about, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A moment for everybody.
    pub(super) fn give(&self, moment: &Moment) {
        // Figures are finite, so this does not fail; where it did, pages would see a gap.
        let Ok(text) = serde_json::to_string(moment) else { return };
        let bytes = event("moment", &text);
        let mut state = self.state();
        state.history.push(moment);
        state.log.push(moment);
        state.past = None;
        state.last = Some(bytes.clone());
        state.send(&bytes);
    }

    /// A sign that the connection lives, and a look at who still listens.
    pub(super) fn alive(&self) {
        let mut state = self.state();
        if state.given.elapsed() >= BETWEEN {
            state.send(&Bytes::from_static(b": alive\n\n"));
        }
    }

    /// There will be no more moments.
    pub(super) fn end(&self, why: &str) {
        let mut state = self.state();
        let bytes = event("ended", &serde_json::Value::from(why).to_string());
        state.ended = Some(bytes.clone());
        state.send(&bytes);
    }

    /// Another page; `None` where there are too many.
    pub(super) fn listen(&self) -> Option<Listener> {
        let mut state = self.state();
        state.pages.retain(|page| !page.is_closed());
        if state.pages.len() >= MOST_PAGES {
            return None;
        }
        let (page, moments) = mpsc::channel(WAITING);
        state.pages.push(page);
        let past = match &state.past {
            Some(past) => past.clone(),
            None => {
                let past = event("past", &past(&state.history, &state.log));
                state.past = Some(past.clone());
                past
            }
        };
        let about = Bytes::from(format!("retry: 1000\nevent: about\ndata: {}\n\n", self.about));
        let first = [Some(about), Some(past), state.last.clone(), state.ended.clone()].into_iter().flatten().collect();
        Some(Listener { first, moments })
    }

    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        let mut state = self.state();
        state.pages.retain(|page| !page.is_closed());
        state.pages.len()
    }
}

impl State {
    /// To every page that has room for it.
    fn send(&mut self, bytes: &Bytes) {
        self.given = Instant::now();
        self.pages.retain(|page| !matches!(page.try_send(bytes.clone()), Err(TrySendError::Closed(_))));
    }
}

/// A kept name, for pages.
#[derive(Serialize)]
struct Column<'a> {
    name: &'a str,
    unit: &'a str,
    together: &'a str,
}

/// What is kept, column by column; the last moment comes by itself.
fn past(history: &History, log: &Log) -> String {
    let mut points: Vec<_> = history.points().collect();
    let gap = points.pop().is_some_and(|last| last.gap);
    let columns: Vec<Column> = history
        .names()
        .iter()
        .map(|kept| Column { name: &kept.name, unit: &kept.unit, together: Together::of(&kept.name).word() })
        .collect();
    let json = |value: Result<String, serde_json::Error>| value.unwrap_or_else(|_| "[]".into());
    let mut out = format!(
        "{{\"gap_after\":{gap},\"names\":{},\"alerts\":{}",
        json(serde_json::to_string(&columns)),
        json(serde_json::to_string(log.all()))
    );
    // Writing to a string does not fail.
    let mut list = |name: &str, each: &dyn Fn(&mut String, usize) -> std::fmt::Result| {
        let _ = write!(out, ",\"{name}\":[");
        for at in 0..points.len() {
            if at > 0 {
                out.push(',');
            }
            let _ = each(&mut out, at);
        }
        out.push(']');
    };
    list("from", &|out, at| write!(out, "{:.3}", points[at].from_s));
    list("to", &|out, at| write!(out, "{:.3}", points[at].to_s));
    list("gap", &|out, at| write!(out, "{}", u8::from(points[at].gap)));
    out += ",\"values\":[";
    for place in 0..columns.len() {
        out += if place == 0 { "[" } else { ",[" };
        for (at, point) in points.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            match point.value(place) {
                Some(value) => out += &format!("{value:.4e}"),
                None => out += "null",
            }
        }
        out.push(']');
    }
    out + "]}"
}

/// What one page is sent: the past, then moments as they come. Dropped when the page has gone.
pub(super) struct Listener {
    first: VecDeque<Bytes>,
    moments: Receiver<Bytes>,
}

impl Body for Listener {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(bytes) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        self.moments.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
