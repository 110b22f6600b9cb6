//! Functions of one value. The graph, the reference and the gradients take all they need from the table below; the fast
//! code is in the kernels (`math.rs`, and a line in `map/functions.rs`).

use crate::error::Result;
use crate::grad::Tape;
use crate::graph::{GraphBuilder, Value};
use crate::op::Compare;
use schwann_kernels::map as kernel;
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// How exact and how costly a function is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its result is a number of the operand's type, so that nothing is rounded.
    Exact,
    /// It rounds once.
    Rounded,
    /// It evaluates an exponential, a logarithm or the like.
    Transcendental,
}
use Kind::{Exact, Rounded, Transcendental};

/// An entry has a comment with the formula; the variant, and its name in the builder, in files and in text; its kind; the
/// definition in `f64`; and its gradient, made of the operand x, the result y and the gradient g of the result.
macro_rules! functions {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:ident, $kind:ident,
        value: |$x:ident| $value:expr,
        gradient: |$t:pat_param, $a:pat_param, $y:pat_param, $g:pat_param| $gradient:expr;)*) => {
        /// One value in, one value of the same type out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Unary {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl Unary {
            /// Every unary operation.
            pub const ALL: [Unary; Unary::NAMES.len()] = [$(Unary::$variant),*];

            /// The names of all.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Its name in text.
            pub fn name(self) -> &'static str {
                match self { $(Unary::$variant => stringify!($name)),* }
            }

            fn kind(self) -> Kind {
                match self { $(Unary::$variant => $kind),* }
            }

            /// What it makes of a float (or, for `Not`, of a truth value): its definition.
            pub(crate) fn value(self, x: f64) -> f64 {
                match self { $(Unary::$variant => { let $x = x; $value })* }
            }

            /// The gradient of its operand `x`, given its result `y` and that one's gradient; `None` where it is 0 everywhere.
            pub(crate) fn gradient(self, t: &mut Tape, x: Value, y: Value, g: Value) -> Result<Option<Value>> {
                match self { $(Unary::$variant => { let ($t, $a, $y, $g) = (t, x, y, g); $gradient })* }
            }

            /// The kernels' name for it.
            pub(crate) fn kernel(self) -> kernel::Unary {
                match self { $(Unary::$variant => kernel::Unary::$variant),* }
            }
        }

        impl GraphBuilder {
            $($(#[doc = $doc])+
            pub fn $name(&mut self, x: Value) -> Result<Value> {
                self.push(crate::op::Op::Unary(Unary::$variant), &[x])
            })*
        }
    };
}

functions! {
    /// −x
    Neg = neg, Exact,
        value: |x| -x,
        gradient: |t, _, _, g| t.unary(Unary::Neg, g).map(Some);
    /// |x|
    Abs = abs, Exact,
        value: |x| x.abs(),
        gradient: |t, x, _, g| {
            let sign = t.unary(Unary::Sign, x)?;
            t.mul(g, sign).map(Some)
        };
    /// −1, 0 or 1 (NaN stays)
    Sign = sign, Exact,
        // `signum` gives ±1 for ±0; here 0 has no sign.
        value: |x| if x == 0.0 { 0.0 } else { x.signum() },
        gradient: |_, _, _, _| Ok(None);
    /// √x
    Sqrt = sqrt, Rounded,
        value: |x| x.sqrt(),
        // 1/(2y)
        gradient: |t, _, y, g| {
            let twice = t.scale(y, 2.0)?;
            let slope = t.unary(Unary::Recip, twice)?;
            t.mul(g, slope).map(Some)
        };
    /// 1/x
    Recip = recip, Rounded,
        value: |x| 1.0 / x,
        // −y²
        gradient: |t, _, y, g| {
            let square = t.unary(Unary::Square, y)?;
            let slope = t.unary(Unary::Neg, square)?;
            t.mul(g, slope).map(Some)
        };
    /// x²
    Square = square, Rounded,
        value: |x| x * x,
        gradient: |t, x, _, g| {
            let slope = t.scale(x, 2.0)?;
            t.mul(g, slope).map(Some)
        };
    /// eˣ
    Exp = exp, Transcendental,
        value: |x| x.exp(),
        gradient: |t, _, y, g| t.mul(g, y).map(Some);
    /// natural logarithm
    Log = log, Transcendental,
        value: |x| x.ln(),
        gradient: |t, x, _, g| t.div(g, x).map(Some);
    /// tanh x
    Tanh = tanh, Transcendental,
        value: |x| x.tanh(),
        // 1 − y²
        gradient: |t, _, y, g| {
            let square = t.unary(Unary::Square, y)?;
            let slope = t.one_minus(square)?;
            t.mul(g, slope).map(Some)
        };
    /// 1/(1 + e⁻ˣ)
    Sigmoid = sigmoid, Transcendental,
        value: |x| sigmoid(x),
        // y(1 − y)
        gradient: |t, _, y, g| {
            let rest = t.one_minus(y)?;
            let slope = t.mul(y, rest)?;
            t.mul(g, slope).map(Some)
        };
    /// log(1 + eˣ)
    Softplus = softplus, Transcendental,
        // max(x, 0) + log(1 + e^−|x|), whose exponential cannot overflow
        value: |x| x.max(0.0) + (-x.abs()).exp().ln_1p(),
        gradient: |t, x, _, g| {
            let slope = t.unary(Unary::Sigmoid, x)?;
            t.mul(g, slope).map(Some)
        };
    /// max(x, 0)
    Relu = relu, Exact,
        // NaN stays NaN; `f64::max` would turn it into 0.
        value: |x| if x.is_nan() { x } else { x.max(0.0) },
        gradient: |t, x, _, g| {
            let zero = t.number(0.0, x)?;
            let positive = t.compare(Compare::Gt, x, zero)?;
            t.keep_where(positive, g).map(Some)
        };
    /// x·sigmoid(x)
    Silu = silu, Transcendental,
        // The limit at −∞ is 0, where the formula alone gives ∞·0.
        value: |x| if x == f64::NEG_INFINITY { -0.0 } else { x * sigmoid(x) },
        // (x·σ)' = σ + x·σ(1 − σ) = σ + y(1 − σ)
        gradient: |t, x, y, g| {
            let s = t.unary(Unary::Sigmoid, x)?;
            let rest = t.one_minus(s)?;
            let rest = t.mul(y, rest)?;
            let slope = t.add(s, rest)?;
            t.mul(g, slope).map(Some)
        };
    /// x·Φ(x), by erf
    Gelu = gelu, Transcendental,
        // Φ(x) = erfc(−x/√2)/2; 1 + erf would cancel for negative x. The limit at −∞ is 0.
        value: |x| match x {
            f64::NEG_INFINITY => -0.0,
            x => x * (0.5 * libm::erfc(-x * FRAC_1_SQRT_2)),
        },
        // (x·Φ)' = Φ + x·φ, Φ = (1 + erf(x/√2))/2, φ = e^(−x²/2)/√(2π)
        gradient: |t, x, _, g| {
            let e = t.scale(x, FRAC_1_SQRT_2)?;
            let e = t.unary(Unary::Erf, e)?;
            let e = t.scale(e, 0.5)?;
            let half = t.number(0.5, x)?;
            let cdf = t.add(e, half)?;
            let density = gaussian(t, x, 0.5, 0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI)?;
            let density = t.mul(x, density)?;
            let slope = t.add(cdf, density)?;
            t.mul(g, slope).map(Some)
        };
    /// the error function
    Erf = erf, Transcendental,
        value: |x| libm::erf(x),
        // 2/√π·e^(−x²)
        gradient: |t, x, _, g| {
            let slope = gaussian(t, x, 1.0, FRAC_2_SQRT_PI)?;
            t.mul(g, slope).map(Some)
        };
    /// down to an integer
    Floor = floor, Exact,
        value: |x| x.floor(),
        gradient: |_, _, _, _| Ok(None);
    /// to the nearest integer, ties to even
    Round = round, Exact,
        value: |x| x.round_ties_even(),
        gradient: |_, _, _, _| Ok(None);
    /// sin x
    Sin = sin, Transcendental,
        value: |x| x.sin(),
        gradient: |t, x, _, g| {
            let slope = t.unary(Unary::Cos, x)?;
            t.mul(g, slope).map(Some)
        };
    /// cos x
    Cos = cos, Transcendental,
        value: |x| x.cos(),
        gradient: |t, x, _, g| {
            let sine = t.unary(Unary::Sin, x)?;
            let slope = t.unary(Unary::Neg, sine)?;
            t.mul(g, slope).map(Some)
        };
    /// eˣ − 1, exact near 0 where the difference of the two would not be
    Expm1 = expm1, Transcendental,
        value: |x| x.exp_m1(),
        // y + 1
        gradient: |t, _, y, g| {
            let one = t.number(1.0, y)?;
            let slope = t.add(y, one)?;
            t.mul(g, slope).map(Some)
        };
    /// not, of truth values
    Not = not, Exact,
        value: |x| if x == 0.0 { 1.0 } else { 0.0 },
        gradient: |_, _, _, _| Ok(None);
}

impl Unary {
    /// Whether its result is a number of the operand's type, so that nothing is rounded.
    pub fn is_exact(self) -> bool {
        self.kind() == Exact
    }

    /// Whether it evaluates an exponential, logarithm or the like.
    pub fn is_transcendental(self) -> bool {
        self.kind() == Transcendental
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// height·e^(−k·x²)
fn gaussian(t: &mut Tape, x: Value, k: f64, height: f64) -> Result<Value> {
    let square = t.unary(Unary::Square, x)?;
    let exponent = t.scale(square, -k)?;
    let bell = t.unary(Unary::Exp, exponent)?;
    t.scale(bell, height)
}
