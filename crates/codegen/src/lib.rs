//! Kernels for GPUs: a small kernel language, its verifier, an interpreter that runs kernels on the CPU and finds
//! races, and printers for the languages that drivers compile. There is no `unsafe` code here, and no GPU. The crate
//! `schwann-gpu` turns graphs into kernels and runs them.
#![forbid(unsafe_code)]

pub mod interpret;
pub mod lang;
pub mod math;
pub mod mutate;
pub mod print;
pub mod verify;
pub mod visit;
