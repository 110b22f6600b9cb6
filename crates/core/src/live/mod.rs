//! Letting a running program be watched: what its sessions run, and how long each run takes.

mod facts;

pub use facts::{Facts, Part};
