//! CPU kernels of Schwann: everything that needs `unsafe`, behind interfaces that do not.

pub mod gemm;
pub mod simd;
pub mod team;

pub use simd::{Isa, Simd};
pub use team::Team;
