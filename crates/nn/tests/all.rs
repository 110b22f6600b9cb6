//! The integration tests of this package as one program, which is far less to compile and link than one for each file.
//! `cargo test --workspace --test nn_tests golden::` runs those of one file. What needs a process of its own, since it counts
//! allocations, watches memory or compares times, is a program of its own: `Cargo.toml` lists them.

// What the tests below share.
mod met;
mod stepped;
#[path = "../../core/tests/strange/mod.rs"]
mod strange;

mod bit_linear;
mod changing;
mod circuits;
mod decoder;
mod entropy;
mod fuzz_corpus;
mod generate;
mod golden;
mod model;
mod networks;
mod paths;
mod streams;
#[cfg(feature = "tokenizers")]
mod tokenizers;
mod trainer;
mod training;
mod wiring;
mod wiring_numpy;
mod wiring_picture;
