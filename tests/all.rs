//! The integration tests of this package as one program, which is far less to compile and link than one for each file.
//! `cargo test --workspace --test schwann_tests guides::` runs those of one file.

mod facade;
mod figures;
mod guides;
mod packages;
mod writers;
