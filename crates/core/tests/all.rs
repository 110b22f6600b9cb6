//! The integration tests of this package as one program, which is far less to compile and link than one for each file.
//! `cargo test --workspace --test core_tests seam::` runs those of one file. What needs a process of its own, since it counts
//! allocations, watches memory or compares times, is a program of its own: `Cargo.toml` lists them.

// What the tests below share.
mod cells;
mod drawn;
mod hostile;
mod strange;

mod agree;
mod anything;
mod caches;
mod cases;
mod changing;
mod coverage;
mod custom;
mod engine;
mod fuzz_corpus;
mod gguf;
mod grad;
mod into;
mod io;
mod memory;
mod not_finite;
mod output;
mod quant;
mod random;
mod reference;
mod rewrites;
mod seam;
mod totals;
mod watched;
