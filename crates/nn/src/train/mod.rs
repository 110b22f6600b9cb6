//! Training: losses, optimizers, schedules, and a trainer that can be stopped at any moment and goes on to the bit.
//!
//! A [`Recipe`] says what a step is made of; a [`Step`] is one, compiled: forward, loss, backward and optimizer are one
//! graph, whose weights are states that stay in the session. A [`Trainer`] takes steps over data
//! ([`crate::data`]), validates, keeps checkpoints and says how it goes.

mod checkpoint;
mod choose;
mod find;
mod graph;
mod log;
mod loss;
mod optimizer;
mod precision;
pub(crate) mod round;
mod schedule;
mod step;
mod trainer;

pub use checkpoint::{TRAINING_KEY, TRAINING_PREFIX};
pub use choose::{Way, ways};
pub use graph::{Recipe, step_graph};
pub use log::Record;
pub use loss::Loss;
pub use optimizer::{Group, Optimizer};
pub use precision::Precision;
pub use round::Rounding;
pub use schedule::{Course, Schedule};
pub use step::{Batch, Evaluation, Memory, Outcome, Step};
pub use trainer::{Ended, Go, LossScale, Options, Progress, Trainer};
