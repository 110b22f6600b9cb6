//! Runs graphs on GPUs.
#![forbid(unsafe_code)]

pub mod program;
