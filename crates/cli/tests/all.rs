//! The integration tests of this package as one program, which is far less to compile and link than one for each file.
//! `cargo test --workspace --test cli_tests streams::` runs those of one file. Those that must measure enough
//! within some seconds are programs of their own, with no other tests beside them: `Cargo.toml` lists them.

// What the tests below share.
mod common;

mod backends;
mod baseline;
mod chunks;
mod circuits;
mod cli;
mod commands;
mod devices;
mod docs;
mod entropy;
mod generate;
mod import_decoder;
#[cfg(unix)]
mod monitor;
mod monitor_otlp;
#[cfg(unix)]
mod monitor_tui;
#[cfg(unix)]
mod monitor_web;
mod names;
mod outputs;
mod paths;
mod profile;
mod quantize;
mod report;
mod reports;
mod streams;
mod tokenized;
mod train;
mod tune;
mod wiring;
