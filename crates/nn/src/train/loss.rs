//! What a model is to make small: one number of its results and what was wanted.

use crate::{Error, Result};
use schwann_core::{DType, Dim, GraphBuilder, Shape, Tensor, Value};
use serde::{Deserialize, Serialize};

/// What is made small: a mean over all elements (classes: over all rows), of those that a mask keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Loss {
    /// (y − target)²
    #[default]
    Mse,
    /// |y − target|
    Mae,
    /// (y − target)² / 2 within ±delta, and delta·(|y − target| − delta / 2) beyond: PyTorch's `HuberLoss`.
    Huber {
        /// Where the square ends.
        delta: f32,
    },
    /// −ln softmax(y) at the target's class. `y` is one number a class, before any softmax; targets are numbers of classes.
    CrossEntropy,
}

/// A loss in a graph.
pub(crate) struct Built {
    /// The loss itself.
    pub(crate) loss: Value,
    /// What people read beside it: the mean absolute error, or the share of rows whose largest result is the target's.
    pub(crate) metric: Value,
}

impl Loss {
    /// Refuses options that are no loss.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Loss::Huber { delta } if !(delta.is_finite() && delta > 0.0) => {
                Err(Error::argument("delta", delta, "a finite number above 0"))
            }
            _ => Ok(()),
        }
    }

    /// Whether targets are numbers of classes.
    pub fn is_of_classes(self) -> bool {
        self == Loss::CrossEntropy
    }

    /// What the metric beside it is called.
    pub fn metric(self) -> &'static str {
        if self.is_of_classes() { "accuracy" } else { "mean absolute error" }
    }

    /// Type and shape of the targets for results of this shape.
    pub(crate) fn target(self, y: &Shape) -> (DType, Shape) {
        match (self.is_of_classes(), y.dims()) {
            (true, [rows @ .., _]) => (DType::I32, Shape::from(rows.to_vec())),
            (_, all) => (DType::F32, Shape::from(all.to_vec())),
        }
    }

    /// Adds the loss of `y` to a graph. `mask` has one number for each row of `y` (all axes but the last): how much that
    /// row counts. `unit` is what each feature's error is divided by, where targets have scales of their own.
    pub(crate) fn build(
        self,
        b: &mut GraphBuilder,
        y: Value,
        target: Value,
        mask: Option<Value>,
        unit: Option<&Tensor>,
    ) -> Result<Built> {
        let shape = b.ty(y).shape.clone();
        let last = shape.rank().saturating_sub(1);
        let Some(width) = shape.dims().last().and_then(Dim::as_fixed) else {
            return Err(Error::argument("the model's result", &shape, "a known number of features"));
        };
        let outside = b.enter("loss");
        let built = if self.is_of_classes() {
            let (loss, right) = classes(b, y, target, width)?;
            Built { loss: mean_of_rows(b, "", loss, mask)?, metric: mean_of_rows(b, "accuracy", right, mask)? }
        } else {
            let error = b.named("error").sub(y, target)?;
            let size = b.named("size").abs(error)?;
            let mut scaled = error;
            if let Some(unit) = unit {
                let unit = b.named("unit").constant(unit.clone())?;
                scaled = b.named("scaled").div(error, unit)?;
            }
            let each = match self {
                Loss::Mae => b.named("each").abs(scaled)?,
                Loss::Huber { delta } => {
                    // c·(|e| − c/2) with c = min(|e|, delta): the square within, the line beyond.
                    let size = b.named("scaled.size").abs(scaled)?;
                    let delta = b.named("delta").scalar(delta)?;
                    let near = b.named("near").min(size, delta)?;
                    let half = b.named("half").scalar(0.5)?;
                    let half = b.named("near.half").mul(near, half)?;
                    let rest = b.named("rest").sub(size, half)?;
                    b.named("each").mul(near, rest)?
                }
                _ => b.named("each").square(scaled)?,
            };
            let (each, size) = match mask {
                // The mean of all is the mean of the rows' means.
                None => (each, size),
                Some(_) => {
                    (b.named("row").mean(each, &[last], false)?, b.named("size.row").mean(size, &[last], false)?)
                }
            };
            Built { loss: mean_of_rows(b, "", each, mask)?, metric: mean_of_rows(b, "absolute", size, mask)? }
        };
        b.leave(outside);
        Ok(built)
    }
}

/// ln Σ exp y − y at the target's class, and 1 where that is the largest: both by rows.
fn classes(b: &mut GraphBuilder, y: Value, target: Value, width: usize) -> Result<(Value, Value)> {
    let shape = b.ty(y).shape.clone();
    let last = shape.rank() - 1;
    let largest = b.named("largest").reduce_max(y, &[last], true)?;
    let below = b.named("below").sub(y, largest)?;
    let exp = b.named("exp").exp(below)?;
    let sum = b.named("sum").sum(exp, &[last], false)?;
    let log = b.named("log").log(sum)?;
    // No operation takes another element of each row, so that each class is compared with the target's.
    let numbers: Vec<i32> = (0..i32::try_from(width).unwrap_or(i32::MAX)).collect();
    let numbers = b.named("classes").constant(Tensor::new(&[width], &numbers)?)?;
    let mut column = shape.dims()[..last].to_vec();
    column.push(Dim::fixed(1));
    let target = b.named("target.column").reshape(target, Shape::from(column))?;
    let wanted = b.named("wanted").eq(target, numbers)?;
    let zero = b.named("zero").scalar(0.0)?;
    let at = b.named("at").select(wanted, below, zero)?;
    let at = b.named("at.row").sum(at, &[last], false)?;
    let loss = b.named("row").sub(log, at)?;
    let right = b.named("right").ge(at, zero)?;
    let right = b.named("right.number").cast(right, DType::F32)?;
    Ok((loss, right))
}

/// The mean over all rows, or over those that the mask keeps; a mask that keeps none gives 0.
fn mean_of_rows(b: &mut GraphBuilder, name: &str, rows: Value, mask: Option<Value>) -> Result<Value> {
    let axes: Vec<usize> = (0..b.ty(rows).shape.rank()).collect();
    let Some(mask) = mask else { return Ok(b.named(name).mean(rows, &axes, false)?) };
    // Rows that do not count may be anything, and 0 times NaN is NaN.
    let zero = b.named("masked.zero").scalar(0.0)?;
    let counts = b.named("masked.counts").gt(mask, zero)?;
    let rows = b.named("masked.kept").select(counts, rows, zero)?;
    let rows = b.named("masked").mul(rows, mask)?;
    let sum = b.named("masked.sum").sum(rows, &axes, false)?;
    let count = b.named("masked.count").sum(mask, &axes, false)?;
    let least = b.named("masked.least").scalar(f32::MIN_POSITIVE)?;
    let count = b.named("masked.divisor").max(count, least)?;
    Ok(b.named(name).div(sum, count)?)
}
