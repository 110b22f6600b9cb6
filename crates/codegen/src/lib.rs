//! Kernels for GPUs: a small kernel language, its verifier, an interpreter that runs kernels on the CPU and finds races, and
//! printers for the languages that drivers compile. There is no `unsafe` code here, and no GPU. What makes kernels of graphs
//! and runs them is in `schwann-gpu`.
#![forbid(unsafe_code)]

pub mod interpret;
pub mod lang;
pub mod math;
pub mod mutate;
pub mod print;
pub mod verify;
pub mod visit;
