//! Profiles kept, so that a later one can be held against them: a store in one SQLite file, comparisons, and a gate.

mod compare;
mod gate;
mod store;

pub use compare::{
    Basis, Change, Compared, Identity, OpChange, Unlike, Word, compare, judge, record, record_of, unlike,
};
pub use gate::{Decision, Rule, Ruling};
pub use store::{Entry, Error, Found, Point, Result, Store, Unreadable, default_path};

#[cfg(test)]
mod tests;
