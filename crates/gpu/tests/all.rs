//! The integration tests of this package as one program, which is far less to compile and link than one for each file.
//! `cargo test --workspace --test gpu_tests runtime::` runs those of one file.

// What the tests below share.
mod backward;
#[path = "../../core/tests/drawn/mod.rs"]
mod drawn;
mod interpreted;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod opened;

mod anything;
mod circuits;
mod custom;
mod few_rows;
mod limits;
mod one_dispatch;
mod profiled;
mod runtime;
mod schedules;
mod seam;
mod segments;
