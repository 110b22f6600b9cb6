//! CPU kernels of Schwann: everything that needs `unsafe`, behind interfaces that do not.

pub mod map_file;
pub mod simd;
pub mod team;

pub use simd::{Isa, Simd};
pub use team::Team;
