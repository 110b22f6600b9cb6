//! `--prometheus ADDR`: the latest moment, for Prometheus to ask for.

use super::feed::Desk;
use super::serve::Server;
use anyhow::{Context, Result};
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use schwann::prof::live;
use std::thread::JoinHandle;

/// Serves `/metrics` on a thread of its own until the monitor is over.
pub(super) fn start(server: Server, desk: Desk) -> Result<JoinHandle<Result<()>>> {
    let metrics = desk.clone();
    let app = Router::new()
        .route("/metrics", get(move || async move { ([(CONTENT_TYPE, live::CONTENT_TYPE)], metrics.metrics()) }))
        .route("/", get(|| async { "schwann monitor: the metrics are at /metrics\n" }));
    let thread = std::thread::Builder::new().name("schwann metrics".into());
    thread.spawn(move || server.run(app, || desk.is_over())).context("cannot start a thread")
}
