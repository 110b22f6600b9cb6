//! The integration tests of this package as one program, which is far less to compile and link than one for each file.
//! `cargo test --workspace --test cli_tests streams::` runs those of one file.

// What the tests below share.
mod common;

mod backends;
mod baseline;
mod circuits;
mod cli;
mod commands;
mod devices;
mod docs;
mod entropy;
mod generate;
mod names;
mod outputs;
mod paths;
mod profile;
mod quantize;
mod report;
mod reports;
mod stop;
mod streams;
mod study;
mod wiring;
