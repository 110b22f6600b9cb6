//! What a stream looks at before it takes a step: numbers that would spoil its state for good, and states that are another
//! model's. [`Runner`](crate::Runner) and `schwann run --stream` share it.

use crate::{Error, Result};
use schwann_core::op::{Binary, Op, Unary};
use schwann_core::{DType, Graph, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// The array in a file of states that says which model they are of.
pub const STATE_KEY: &str = "schwann.model";

/// What becomes of a sample that has NaN or an infinity in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotFinite {
    /// It is refused, and the state stays as it was.
    #[default]
    Refuse,
    /// It is passed on to the model; from then on the state may be NaN.
    Pass,
}

/// Looks at samples and times before they reach a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// What becomes of samples that are not finite.
    pub not_finite: NotFinite,
    /// Whether the graph divides by the time since the last sample.
    divides: bool,
}

impl Guard {
    /// For a graph as it was built, and what it may be given.
    pub fn new(graph: &Graph, not_finite: NotFinite) -> Guard {
        let timed = graph.inputs().find(|(name, _)| *name == "timespans").map(|(_, value)| value.node);
        Guard { not_finite, divides: timed.is_some_and(|node| divides_by(graph, BTreeSet::from([node]))) }
    }

    /// Refuses a sample that is not finite, unless those are to pass.
    pub fn sample(&self, x: impl IntoIterator<Item = f32>) -> Result<()> {
        match x.into_iter().enumerate().find(|(_, v)| !v.is_finite()) {
            Some((at, value)) if self.not_finite == NotFinite::Refuse => {
                Err(Error::argument("x", format!("{value} at place {}", at + 1), "finite numbers"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses times since the last sample that no clock gives, and 0 where the model divides by it.
    pub fn elapsed(&self, elapsed: &[f32]) -> Result<()> {
        let Some(&wrong) = elapsed.iter().find(|t| !span_is_good(**t, self.divides)) else { return Ok(()) };
        Err(Error::argument("elapsed", wrong, expected_span(self.divides)))
    }
}

/// The shortest time that a model may divide by: what a shorter one gives is soon infinite, and no clock gives it.
const SHORTEST: f32 = 1e-30;

pub(crate) fn span_is_good(t: f32, divided_by: bool) -> bool {
    t.is_finite() && t >= if divided_by { SHORTEST } else { 0.0 }
}

pub(crate) fn expected_span(divided_by: bool) -> &'static str {
    match divided_by {
        true => "a finite time of at least 1e-30 (the model divides by it)",
        false => "a finite time that is not negative",
    }
}

/// Whether a graph divides by one of these nodes, or by a multiple of one. Only what is 0 with it is followed: a time that
/// something was added to can be divided by.
fn divides_by(graph: &Graph, mut times: BTreeSet<u32>) -> bool {
    for (i, node) in graph.nodes().iter().enumerate() {
        let is_time = |at: usize| node.inputs.get(at).is_some_and(|v| times.contains(&v.node));
        let follows = match &node.op {
            Op::Binary(Binary::Div) if is_time(1) => return true,
            Op::Unary(Unary::Recip) if is_time(0) => return true,
            Op::Binary(Binary::Mul) => is_time(0) || is_time(1),
            Op::Binary(Binary::Div) => is_time(0),
            Op::Unary(Unary::Neg | Unary::Abs | Unary::Sqrt | Unary::Square) => is_time(0),
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. } | Op::Broadcast { .. } | Op::Cast { .. } => {
                is_time(0)
            }
            Op::Scan(scan) => {
                let of_body = scan.body.inputs().map(|(_, value)| value.node);
                let inner: BTreeSet<u32> =
                    of_body.enumerate().filter(|(at, _)| is_time(*at)).map(|(_, node)| node).collect();
                if !inner.is_empty() && divides_by(&scan.body, inner) {
                    return true;
                }
                false
            }
            _ => false,
        };
        if follows && let Ok(i) = u32::try_from(i) {
            times.insert(i);
        }
    }
    false
}

/// What a file of states says of its model: the array for [`STATE_KEY`].
pub fn state_mark(fingerprint: u64) -> Result<Tensor> {
    Ok(Tensor::new(&[8], &fingerprint.to_le_bytes())?)
}

/// Takes the mark out of a file's arrays and refuses those of another model. Files without one are told by their names and
/// sizes alone.
pub fn take_state_mark(tensors: &mut BTreeMap<String, Tensor>, fingerprint: u64) -> Result<()> {
    let Some(mark) = tensors.remove(STATE_KEY) else { return Ok(()) };
    if mark.dtype() != DType::U8 || mark.len() != 8 {
        return Err(Error::weight(STATE_KEY, mark, "u8[8]"));
    }
    match mark.bytes() == fingerprint.to_le_bytes() {
        true => Ok(()),
        false => {
            let found = mark.bytes().iter().rev().map(|b| format!("{b:02x}")).collect::<String>();
            Err(Error::argument(
                "state",
                format!("of another model ({found})"),
                format!("this one's ({fingerprint:016x})"),
            ))
        }
    }
}
