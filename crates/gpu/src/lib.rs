//! Runs graphs on GPUs.
//!
//! Only calls of CUDA's libraries are unsafe.
#![cfg_attr(not(feature = "cuda"), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod backend;
#[cfg(feature = "cuda")]
pub mod cuda_device;
pub mod device;
pub mod lower;
mod memory;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod names;
mod pieces;
#[cfg(any(test, feature = "wgpu"))]
mod probe;
pub mod program;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod registered;
pub mod simulated;
mod spans;
mod stream;
#[cfg(feature = "wgpu")]
pub mod wgpu_device;

pub use backend::{Gpu, Lower, Lowered};
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub use registered::register;
