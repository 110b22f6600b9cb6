//! CPU kernels of Schwann: everything that needs `unsafe`, behind interfaces that do not.
//!
//! There is one module for each kind of work, and each kernel in it is written once, over the lanes of `simd`. Other
//! crates never call a kernel: they describe their calls to [`tape`], which checks a whole program of them once, so
//! that running it needs neither checks nor `unsafe` outside. The other modules make public only what such a
//! description consists of: shapes, options and packed weights.
//!
//! Values of a batch lie in memory in one of two ways, everywhere called by these names. *Batch-first* is
//! `[rows, features]`: one row after the other, as networks take and give them; neighbours in a register are then
//! features of one row. *Batch-last* is `[features, rows]`: all rows of the first feature, then all of the second;
//! neighbours in a register are then the same feature of several rows, so that rows fill the lanes however many features
//! there are.

pub mod attention;
mod changing;
pub mod clock;
mod copy;
pub mod each;
pub mod exact;
pub mod gated;
mod gather;
pub mod gemm;
pub mod heap;
pub mod lowbit;
pub mod map;
pub mod map_file;
mod math;
mod norm;
pub mod peak;
pub mod reduce;
pub mod room;
pub mod shared;
mod simd;
mod softmax;
pub mod synapse;
pub mod tape;
mod team;
pub mod tuning;

pub use simd::Isa;
pub(crate) use simd::Simd;
pub use team::Team;
