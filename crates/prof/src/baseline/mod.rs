//! Profiles kept, so that a later one can be held against them: a store in one SQLite file, comparisons with intervals,
//! and a gate.

mod compare;
mod gate;
mod store;

pub use compare::{Change, Compared, OpChange, Unlike, Word, compare, unlike};
pub use gate::{Budget, Decision, Rule, Ruling, apart, fastest_round, in_turns};
pub use store::{Entry, Error, Point, Result, Store, default_path};

#[cfg(test)]
mod tests;
