//! CPU kernels of Schwann: everything that needs `unsafe`, behind interfaces that do not.

pub mod map;
pub mod attention;
pub mod copy;
pub mod gather;
pub mod math;
pub mod norm;
pub mod reduce;
pub mod gemm;
pub mod simd;
pub mod softmax;
pub mod team;

pub use simd::{Isa, Simd};
pub use team::Team;
