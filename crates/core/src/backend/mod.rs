//! What runs a graph.
//!
//! [`reference`] defines what every operation means; every other backend is tested against it, from the list in
//! [`crate::cases`].

pub mod reference;
