//! The integration tests of this package as one program, which is far less to compile and link than one for each file.
//! `cargo test --workspace --test prof_tests report::` runs those of one file. What needs a process of its own, since it counts
//! allocations, watches memory or compares times, is a program of its own: `Cargo.toml` lists them.

// What the tests below share.
mod sample;

mod counts;
mod report;
mod report_browser;
#[cfg(all(unix, feature = "postgres"))]
mod server;
mod strange;
