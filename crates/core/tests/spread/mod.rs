//! Holding a result against the reference's, as closely as rounding lets it be known.
//!
//! How far rounding between the operations moves a result is not guessed: the reference runs with it (as every backend
//! stores its values) and otherwise (without it, or with other roundings), and the difference is the unit of what is
//! allowed.

use schwann_core::{DType, Graph, Op, Tensor};

/// How many elements there were, and how many of them were compared with a tolerance that says something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Compared {
    pub(crate) elements: usize,
    pub(crate) compared: usize,
}

impl Compared {
    pub(crate) fn add(&mut self, other: Compared) {
        self.elements += other.elements;
        self.compared += other.compared;
    }
}

/// What the reference gives, with its usual rounding and with others.
pub(crate) struct Expected {
    stored: Tensor,
    others: Vec<Vec<f64>>,
    least: f64,
}

/// How far a result may be off in any case, as a part of the largest: a few roundings to the coarsest type that a value of
/// the graph is stored as. A backend may leave out such a rounding, or the reference's two runs meet by chance.
pub(crate) fn least(graph: &Graph) -> f64 {
    let of = |dtype: DType| match dtype {
        DType::F16 => 4e-3,
        DType::Bf16 => 3e-2,
        _ => 2e-5,
    };
    let bodies = graph.nodes().iter().filter_map(|n| if let Op::Scan(scan) = &n.op { Some(&scan.body) } else { None });
    let outs = graph.nodes().iter().flat_map(|n| &n.outs).map(|ty| of(ty.dtype));
    outs.chain(bodies.map(|body| least(body))).fold(0.0, f64::max)
}

/// So many times as far as two runs of the reference are apart may a backend be from it: kernels round at other places, sum
/// in other orders, and have functions of their own, each a few units in the last place off.
const TIMES: f64 = 10.0;
/// A tolerance beyond this part of the largest result says nothing.
const MOST: f64 = 0.2;

impl Expected {
    /// Of the run as values are stored, others, and what the graph has [`least`].
    pub(crate) fn new(stored: Tensor, others: Vec<Vec<f64>>, least: f64) -> Expected {
        Expected { stored, others, least }
    }

    /// Says where `got` is not what was expected.
    ///
    /// Where all runs of the reference have the same NaN or infinity, so must `got`. Where they differ about that, as
    /// beyond the largest `f32`, or where the tolerance is too large to say anything, nothing is compared, and the count
    /// tells.
    pub(crate) fn compare(&self, got: &Tensor) -> Result<Compared, String> {
        let want = &self.stored;
        if want.shape() != got.shape()
            || want.dtype() != got.dtype()
            || self.others.iter().any(|o| o.len() != want.len())
        {
            return Err(format!("{want} expected, got {got}"));
        }
        let (w, g) = (want.to_f64(), got.to_f64());
        let numbers = |i: &usize| w[*i].is_finite() && self.others.iter().all(|o| o[*i].is_finite());
        let finite: Vec<usize> = (0..w.len()).filter(numbers).collect();
        let scale = finite.iter().fold(1.0f64, |most, &i| most.max(w[i].abs()));
        let apart = |i: usize| self.others.iter().fold(0.0f64, |most, o| most.max((o[i] - w[i]).abs()));
        let spread = finite.iter().fold(0.0f64, |most, &i| most.max(apart(i)));
        let allowed = match want.dtype() {
            DType::F32 | DType::F16 | DType::Bf16 => self.least * scale + TIMES * spread,
            _ => 0.0,
        };
        let wrong =
            |i: usize| Err(format!("element {i} of {want}: expected {}, got {} (allowed {allowed:e})", w[i], g[i]));
        let mut compared = 0;
        if allowed <= MOST * scale {
            // NaN is near nothing.
            let near = |i: usize| (w[i] - g[i]).abs() <= allowed;
            if let Some(&i) = finite.iter().find(|i| !near(**i)) {
                return wrong(i);
            }
            compared += finite.len();
        }
        let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan();
        for i in (0..w.len()).filter(|i| !w[*i].is_finite() && self.others.iter().all(|o| same(o[*i], w[*i]))) {
            if !same(w[i], g[i]) {
                return wrong(i);
            }
            compared += 1;
        }
        Ok(Compared { elements: w.len(), compared })
    }
}
