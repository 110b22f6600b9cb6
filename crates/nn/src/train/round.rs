//! Training for few bits: weights are rounded before they are used, and the optimizer moves the numbers behind them.
//!
//! Rounding has no gradient of use: it is 0 almost everywhere. So the gradient is that of the rounded weight, as if it
//! were the number itself ("straight through"): the graph is differentiated with respect to what is rounded, and what
//! is found moves the numbers that were.

use crate::Result;
use schwann_core::{GraphBuilder, Tensor, Value};
use serde::{Deserialize, Serialize};

/// What weights are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rounding {
    /// −1, 0 and 1 times the mean absolute value of the matrix, as BitNet b1.58 does.
    Ternary,
    /// −127 to 127 times a scale for each row, so that the row's largest number is met.
    Int8,
}

/// The least scale, as BitNet has it.
pub(crate) const LEAST: f32 = 1e-5;

impl Rounding {
    /// Adds the rounded weight to a graph.
    pub(crate) fn build(self, b: &mut GraphBuilder, weight: Value) -> Result<Value> {
        let rank = b.ty(weight).shape.rank();
        let sizes = b.named("weight.sizes").abs(weight)?;
        let (scale, most) = match self {
            Rounding::Ternary => {
                let axes: Vec<usize> = (0..rank).collect();
                (b.named("weight.mean").mean(sizes, &axes, true)?, 1.0)
            }
            Rounding::Int8 => {
                let largest = b.named("weight.largest").reduce_max(sizes, &[rank - 1], true)?;
                let steps = b.named("weight.steps").scalar(1.0 / 127.0)?;
                (b.named("weight.step").mul(largest, steps)?, 127.0)
            }
        };
        let least = b.named("weight.least").scalar(LEAST)?;
        let scale = b.named("weight.gamma").max(scale, least)?;
        let shares = b.named("weight.shares").div(weight, scale)?;
        let whole = b.named("weight.whole").round(shares)?;
        let [low, high] = [b.named("weight.low").scalar(-most)?, b.named("weight.high").scalar(most)?];
        let above = b.named("weight.above").max(whole, low)?;
        let codes = b.named("weight.codes").min(above, high)?;
        Ok(b.named("weight.rounded").mul(codes, scale)?)
    }

    /// The rounded numbers of a weight, by the same graph.
    pub(crate) fn apply(self, weight: &Tensor) -> Result<Tensor> {
        let mut b = GraphBuilder::new();
        let w = b.input("w", weight.dtype(), weight.shape())?;
        let rounded = self.build(&mut b, w)?;
        b.output("rounded", rounded)?;
        let program = schwann_core::Program::compile(&b.build()?, &schwann_core::CompileOptions::default().threads(1))?;
        Ok(program.session().run(&[("w", weight)])?[0].clone())
    }
}
