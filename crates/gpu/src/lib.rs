//! Runs graphs on GPUs.
#![forbid(unsafe_code)]

mod backend;
pub mod device;
pub mod lower;
mod memory;
mod pieces;
pub mod program;
pub mod simulated;
mod spans;
mod stream;

pub use backend::{Gpu, Lower, Lowered};
