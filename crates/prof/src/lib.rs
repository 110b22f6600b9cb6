//! What happened, and what to change: a model is run and watched, and what was seen becomes a [`Profile`], the one
//! document that every view, export and comparison reads.
#![forbid(unsafe_code)]

pub mod analyze;
pub mod baseline;
pub mod db;
pub mod device;
#[cfg(any(test, feature = "example"))]
pub mod example;
pub mod export;
pub mod flame;
pub mod live;
pub mod measure;
pub mod models;
pub mod nearest;
pub mod need;
pub mod place;
pub mod plot;
pub mod profile;
pub mod profiler;
pub mod report;
pub mod scope;
pub mod stats;
pub mod study;
pub mod trace;
pub mod tune;

pub use profile::Profile;
pub use profiler::{Profiler, quick_profile};
pub use scope::Scopes;
