//! Sine and cosine, of all floats.
//!
//! x = q · π/2 + r with a whole q and |r| ≤ π/4; then sin x and cos x are ± sin r or ± cos r, as q mod 4 says. Up to
//! [`NEAR`], r is |x| less q times the four parts of π/2. Beyond it, all whole turns are left out of the product of |x| and
//! 2/π, in integers: of the digits of 2/π only 64 matter, and the exponent says which (Payne and Hanek).

use super::{INFINITY, NAN, SIGN, apart, bits, magnitude, poly, unless_nan};
use crate::lang::{Binary, Expr, Maker, Ty, Unary};
use std::f32::consts::{FRAC_2_PI, FRAC_PI_2};

/// Up to here q is below 2¹³, and its product with 11 bits exact.
const NEAR: f32 = 8192.0;
/// π/2: three parts of 11 bits, and the rest.
const PARTS: [f32; 4] = [1.570_312_5, 0.000_483_751_3, 7.549_533_6e-8, 2.563_344e-12];
/// 32 zero bits, then the binary digits of 2/π.
const DIGITS: [u32; 7] = [0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041];

/// |x| = q · π/2 + r: q mod 4 and r.
fn reduce(m: &mut Maker, x: &Expr) -> (Expr, Expr) {
    let size = m.name("size", magnitude(x));
    let a = m.name("a", size.bits(Ty::F32).min(NEAR));
    let n = m.name("n", (&a * FRAC_2_PI).unary(Unary::Round));
    let r = PARTS.iter().fold(a, |r, &part| n.fma(-part, apart(r, NEAR)));
    let (q, r) = (m.variable("q", n.to(Ty::U32)), m.variable("r", r));
    m.when(Expr::from(NEAR.to_bits()).lt(&size), |m| {
        // |x| = whole · 2ᵉ. The first digit that matters has the weight 2¹⁻ᵉ: those before it give multiples of 4.
        let whole = m.name("whole", size.and(0x007f_ffffu32).or(0x0080_0000u32));
        let first = m.name("first", size.shr(23u32) - 120u32);
        let (word, shift) = (m.name("word", first.shr(5u32)), m.name("shift", first.and(31u32)));
        let back = m.name("back", Expr::from(31u32) - &shift);
        let digits = [0, 1, 2].map(|k| {
            let from = |i: usize| Expr::from(DIGITS[i + k]);
            let digits = (0..4).fold(from(4), |rest, i| word.eq(i as u32).select(from(i), rest));
            m.name("digits", digits)
        });
        // In two steps, since a shift is below 32.
        let window = |i: usize| digits[i].shl(&shift).or(digits[i + 1].shr(1u32).shr(&back));
        // The upper half of 64 bits of the product; what is left out of it is at most 3 units of 2⁻³⁰.
        let low = m.name("low", window(1));
        let (wide, narrow) = (m.name("wide", low.shr(16u32)), low.and(0xffffu32));
        let carried = whole.shr(16u32) * &wide
            + (whole.and(0xffffu32) * &wide).shr(16u32)
            + (whole.shr(16u32) * narrow).shr(16u32);
        let turns = m.name("turns", &whole * window(0) + carried);
        let nearest = m.name("nearest", (&turns + 0x2000_0000u32).shr(30u32));
        let rest = (turns - nearest.shl(30u32)).bits(Ty::I32).to(Ty::F32);
        m.set(q, nearest);
        m.set(r, rest * (FRAC_PI_2 / (1 << 30) as f32));
    });
    (m.get(q), m.get(r))
}

/// The bits of sin(q · π/2 + r).
fn of_quarter(m: &mut Maker, q: &Expr, r: &Expr) -> Expr {
    let (q, r) = (m.name("q", q), m.name("r", r));
    let u = m.name("u", &r * &r);
    let sin = (&r * &u).fma(poly(&u, &[-0.166_666_67, 0.008_333_329, -0.000_198_392_33, 2.717_366_7e-6]), &r);
    let cos = poly(&u, &[1.0, -0.5, 0.041_666_646, -0.001_388_730_6, 2.443_120_3e-5]);
    let y = q.and(1u32).eq(0u32).select(sin, cos);
    bits(&y).binary(Binary::Xor, q.and(2u32).shl(30u32))
}

/// sin x; NaN at ±∞.
pub fn sin(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let (q, r) = reduce(m, &x);
    let y = of_quarter(m, &q, &r).binary(Binary::Xor, bits(&x).and(SIGN));
    // A small x is its own result, and so are both zeros.
    let y = magnitude(&x).lt(1e-4f32.to_bits()).select(bits(&x), y);
    unless_nan(&x, finite(&x, y))
}

/// cos x; NaN at ±∞.
pub fn cos(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let (q, r) = reduce(m, &x);
    let y = of_quarter(m, &(q + 1u32), &r);
    unless_nan(&x, finite(&x, y))
}

/// The bits where x is finite, else NaN's.
fn finite(x: &Expr, y_bits: Expr) -> Expr {
    magnitude(x).lt(INFINITY).select(y_bits, NAN)
}
