//! tanh, sigmoid and the gate of a cell by the hardware's own 2ᵃ and 1/a, or by its tanh, for devices where these are good to 2 ulp and where infinities and NaN go
//! through arithmetic as they should. Errors are absolute: below 2.5e-7 for tanh, 1.3e-7 for sigmoid; with the hardware's tanh, 5e-4.

use crate::lang::{Expr, Maker, Unary};
use std::f32::consts::LOG2_E;

/// 1 / (1 + 2ˢˣ): 1 / (1 + e⁻ˣ) for s = −log₂ e.
fn falling(m: &mut Maker, x: &Expr, scale: f32) -> Expr {
    let power = (x * scale).unary(Unary::Exp2);
    let below = m.name("below", power + 1.0);
    m.name("part", below.unary(Unary::Recip))
}

/// tanh x = 1 − 2 / (1 + e²ˣ)
pub fn tanh(m: &mut Maker, x: &Expr) -> Expr {
    falling(m, x, 2.0 * LOG2_E).fma(-2.0, 1.0)
}

/// 2ˢˣ, and no more than 2⁴⁰: of three such the product is still a number, and 1 plus it is rounded to it. NaN stays NaN.
fn power(m: &mut Maker, x: &Expr, scale: f32) -> Expr {
    const MOST: f32 = 40.0;
    let exponent = m.name("exponent", x * scale);
    let exponent = Expr::from(MOST).lt(&exponent).select(MOST, &exponent);
    m.name("power", exponent.unary(Unary::Exp2))
}

/// tanh a + σ(t) (tanh b − tanh a), with one reciprocal for all: with A = e²ᵃ, B = e²ᵇ and T = e⁻ᵗ it is
/// ((A − 1)(B + 1) T + (B − 1)(A + 1)) / ((A + 1)(B + 1)(T + 1)).
pub fn gate(m: &mut Maker, [a, b, t]: [&Expr; 3]) -> Expr {
    let (a, b, t) = (power(m, a, 2.0 * LOG2_E), power(m, b, 2.0 * LOG2_E), power(m, t, -LOG2_E));
    let (more_a, more_b) = (m.name("more", &a + 1.0), m.name("more", &b + 1.0));
    let first = m.name("first", (a - 1.0) * &more_b);
    let above = first.fma(&t, (b - 1.0) * &more_a);
    let below = m.name("below", more_a * more_b * (t + 1.0));
    above * below.unary(Unary::Recip)
}

/// 1 / (1 + e⁻ˣ) = ½ + ½ tanh ½ x, by the hardware's tanh.
pub fn sigmoid_of_tanh(_: &mut Maker, x: &Expr) -> Expr {
    (x * 0.5).unary(Unary::Tanh).fma(0.5, 0.5)
}

/// 1 / (1 + e⁻ˣ)
pub fn sigmoid(m: &mut Maker, x: &Expr) -> Expr {
    falling(m, x, -LOG2_E)
}
