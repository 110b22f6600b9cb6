//! CPU kernels of Schwann: everything that needs `unsafe`, behind interfaces that do not.
//!
//! The arithmetic is in one module a kind of work, each generic over [`simd`]; [`tape`] is what other crates use: it
//! checks a whole program of kernel calls once, so that running it needs neither checks nor `unsafe` outside.

pub mod attention;
pub mod clock;
pub mod copy;
pub mod exact;
pub mod gated;
pub mod gather;
pub mod gemm;
pub mod heap;
pub mod map;
pub mod map_file;
pub mod math;
pub mod norm;
pub mod peak;
pub mod reduce;
pub mod simd;
pub mod softmax;
pub mod synapse;
pub mod tape;
pub mod team;

pub use simd::{Isa, Simd};
pub use team::Team;
