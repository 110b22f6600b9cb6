//! Runs graphs on GPUs.
#![forbid(unsafe_code)]

mod backend;
pub mod device;
pub mod lower;
mod memory;
mod pieces;
#[cfg(any(test, feature = "wgpu"))]
mod probe;
pub mod program;
#[cfg(feature = "wgpu")]
mod registered;
pub mod simulated;
mod spans;
mod stream;
#[cfg(feature = "wgpu")]
pub mod wgpu_device;

pub use backend::{Gpu, Lower, Lowered};
#[cfg(feature = "wgpu")]
pub use registered::register;
