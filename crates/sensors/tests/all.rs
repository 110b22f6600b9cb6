//! The integration tests of this package as one program, which is far less to compile and link than one for each file.
//! `cargo test --workspace --test sensors_tests machine::` runs those of one file.

mod apple;
mod machine;
mod perf_stat;
