//! A model that runs, watched while it runs: moments, one after the other, each with what a view shows.
//!
//! What is watched gives [`Moment`]s: a model that the monitor drives itself, a program that lets itself be watched, or a
//! recording. Views (terminal, page, JSON, metrics) and alerts read moments and compute nothing.

mod moment;

pub use moment::{About, Latency, Memory, Moment, Operation, Work};
