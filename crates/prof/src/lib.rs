//! What happened, and what to change: a model is run and watched, and what was seen becomes a [`Profile`], the one
//! document that every view, export and comparison reads.
#![forbid(unsafe_code)]

pub mod flame;
pub mod plot;
pub mod profile;
pub mod report;
pub mod trace;

pub use profile::Profile;
