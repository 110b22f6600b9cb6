//! Functions in the kernel language, with the accuracy of `f32`, independent of the hardware's own functions.
//!
//! They only use what every GPU does well: addition, multiplication, division, rounding to whole numbers, and integers.
//! They do not rely on three things:
//!
//! * **NaN and infinity.** Drivers may compile under the assumption that there are none. So NaN is detected by its bits
//!   and passed on as an integer, and comparisons ([`lt`] and the like) are of integers.
//! * **One rounding in a · b + c.** A GPU may round twice. Where a difference must be exact (the reductions of [`exp`] and
//!   [`sin`], the logarithm in [`pow()`]), the constants have so few bits that the product is exact by itself.
//! * **The order of additions.** Some drivers (Mesa's) rewrite n · a + (n · b + x) as n · (a + b) + x, which loses the
//!   accuracy that the two parts a and b are for. A minimum that never changes the value separates such sums, and
//!   compilers do not see through it.
//!
//! Subnormal numbers may count as 0, depending on the hardware. The polynomials are minimax fits made for this project;
//! the tests say how far each function is from `f64`.

mod angle;
pub mod fast;
mod narrow;
mod pow;
#[cfg(test)]
mod tests;

pub use angle::{cos, sin};
pub use narrow::{from_bf16_bits, from_f16_bits, round_bf16, round_f16, to_bf16_bits, to_f16_bits};
pub use pow::pow;

use crate::lang::{Binary, Expr, Maker, Ty, Unary};
use std::f32::consts::{FRAC_2_SQRT_PI, LOG2_E};

/// All bits but the sign.
const MAGNITUDE: u32 = 0x7fff_ffff;
/// The sign's bit.
const SIGN: u32 = 0x8000_0000;
/// The bits of infinity; above it, signs apart, is NaN.
const INFINITY: u32 = 0x7f80_0000;
/// The bits of a NaN.
const NAN: u32 = 0x7fc0_0000;
/// The bits of 1.
const ONE: u32 = 0x3f80_0000;
/// ln 2 in two parts; the first has 15 significant bits, so that whole numbers up to 2⁹ times it are exact.
const LN_2_HI: f32 = 0.693_145_75;
const LN_2_LO: f32 = 1.428_606_8e-6;

fn bits(x: &Expr) -> Expr {
    x.bits(Ty::U32)
}

/// The bits without the sign.
fn magnitude(x: &Expr) -> Expr {
    bits(x).and(MAGNITUDE)
}

/// Its first twelve significant bits, so that the product of two such is exact. What is left has twelve bits as well.
fn head(x: &Expr) -> Expr {
    bits(x).and(0xffff_f000u32).bits(Ty::F32)
}

/// `c[0] + c[1] x + …` by Horner's rule.
fn poly(x: &Expr, c: &[f32]) -> Expr {
    let mut terms = c.iter().rev();
    let mut y = Expr::from(terms.next().copied().unwrap_or(0.0));
    for &c in terms {
        y = y.fma(x, c);
    }
    y
}

/// The same number, which is never above the limit; but the compiler cannot merge its computation with that of its
/// uses.
fn apart(x: Expr, limit: f32) -> Expr {
    x.min(limit)
}

/// 2ⁿ of a signed whole number from −126 to 127.
fn power_of_two(n: &Expr) -> Expr {
    (n + 127).shl(23u32).bits(Ty::F32)
}

/// x · 2ⁿ of a whole float from −250 to 250. Half of the exponent at a time, so that each power of two is a normal number.
fn scale(m: &mut Maker, x: &Expr, n: &Expr) -> Expr {
    let n = m.name("whole", n.to(Ty::I32));
    let half = m.name("half", n.shr(1u32));
    let rest = n - &half;
    x * power_of_two(&half) * power_of_two(&rest)
}

/// `x` if it is NaN, else the float with these bits. The selection is between integers, so that a compiler that ignores
/// NaN does no harm.
fn unless_nan(x: &Expr, y_bits: Expr) -> Expr {
    is_nan(x).select(bits(x), y_bits).bits(Ty::F32)
}

/// x = n · ln 2 + r with a whole n and |r| ≤ ½ ln 2, for |x| < 200: n and r.
fn reduce(m: &mut Maker, x: &Expr) -> (Expr, Expr) {
    let n = m.name("n", (x * LOG2_E).unary(Unary::Round));
    let r = m.name("r", n.fma(-LN_2_LO, apart(n.fma(-LN_2_HI, x), 1.0)));
    (n, r)
}

/// eʳ − 1 for |r| ≤ ½ ln 2.
fn small_expm1(r: &Expr) -> Expr {
    (r * r).fma(poly(r, &[0.499_999_94, 0.166_665_2, 0.041_668_4, 0.008_368_85, 0.001_381_432]), r)
}

/// eˣ for −105 ≤ x ≤ 89.5: 0 at the one end, ∞ at the other.
fn exp_within(m: &mut Maker, x: &Expr) -> Expr {
    let (n, r) = reduce(m, x);
    let e = m.name("e", small_expm1(&r) + 1.0);
    scale(m, &e, &n)
}

/// e⁻|ˣ|
fn exp_down(m: &mut Maker, x: &Expr) -> Expr {
    let down = m.name("down", x.unary(Unary::Abs).unary(Unary::Neg).max(-105.0));
    let z = exp_within(m, &down);
    m.name("z", z)
}

/// Whether it is NaN, by its bits.
pub fn is_nan(x: &Expr) -> Expr {
    Expr::from(INFINITY).lt(magnitude(x))
}

/// A signed integer with the same order as floats have; both zeros give the same.
fn order(m: &mut Maker, x: &Expr) -> Expr {
    let size = m.name("size", magnitude(x).bits(Ty::I32));
    x.bits(Ty::I32).lt(0).select(Expr::from(0) - &size, size)
}

/// A comparison that holds only where neither is NaN.
fn compare(m: &mut Maker, op: Binary, a: &Expr, b: &Expr) -> Expr {
    let (a, b) = (m.name("a", a), m.name("b", b));
    let numbers = magnitude(&a).max(magnitude(&b)).le(INFINITY);
    let (x, y) = (order(m, &a), order(m, &b));
    numbers.and(x.binary(op, y))
}

/// a = b; not where either is NaN.
pub fn eq(m: &mut Maker, a: &Expr, b: &Expr) -> Expr {
    compare(m, Binary::Eq, a, b)
}

/// a ≠ b; also where either is NaN.
pub fn ne(m: &mut Maker, a: &Expr, b: &Expr) -> Expr {
    let (a, b) = (m.name("a", a), m.name("b", b));
    let nan = Expr::from(INFINITY).lt(magnitude(&a).max(magnitude(&b)));
    let (x, y) = (order(m, &a), order(m, &b));
    nan.or(x.ne(y))
}

/// a < b; not where either is NaN.
pub fn lt(m: &mut Maker, a: &Expr, b: &Expr) -> Expr {
    compare(m, Binary::Lt, a, b)
}

/// a ≤ b; not where either is NaN.
pub fn le(m: &mut Maker, a: &Expr, b: &Expr) -> Expr {
    compare(m, Binary::Le, a, b)
}

/// a > b; not where either is NaN.
pub fn gt(m: &mut Maker, a: &Expr, b: &Expr) -> Expr {
    lt(m, b, a)
}

/// a ≥ b; not where either is NaN.
pub fn ge(m: &mut Maker, a: &Expr, b: &Expr) -> Expr {
    le(m, b, a)
}

/// The smaller of two, NaN where either is NaN; of two zeros either.
pub fn min(m: &mut Maker, a: &Expr, b: &Expr) -> Expr {
    let (a, b) = (m.name("a", a), m.name("b", b));
    let number = unless_nan(&b, bits(&a.min(&b)));
    unless_nan(&a, bits(&number))
}

/// The larger of two, NaN where either is NaN; of two zeros either.
pub fn max(m: &mut Maker, a: &Expr, b: &Expr) -> Expr {
    let (a, b) = (m.name("a", a), m.name("b", b));
    let number = unless_nan(&b, bits(&a.max(&b)));
    unless_nan(&a, bits(&number))
}

/// max(x, 0), NaN where x is NaN.
pub fn relu(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    unless_nan(&x, bits(&x.max(0.0)))
}

/// −1, 0 or 1; zeros and NaN as they are.
pub fn sign(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let one = magnitude(&x).eq(0u32).select(bits(&x), bits(&x).and(SIGN).or(ONE));
    unless_nan(&x, one)
}

/// √x; NaN below 0.
pub fn sqrt(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let y = Expr::from(SIGN).lt(bits(&x)).select(NAN, bits(&x.unary(Unary::Sqrt)));
    unless_nan(&x, y)
}

/// 1 / x, by a division, which is more exact than the hardware's reciprocal.
pub fn recip(_: &mut Maker, x: &Expr) -> Expr {
    Expr::from(1.0) / x
}

/// Down to a whole number.
pub fn floor(_: &mut Maker, x: &Expr) -> Expr {
    x.unary(Unary::Floor)
}

/// To the nearest whole number, ties to even.
pub fn round(_: &mut Maker, x: &Expr) -> Expr {
    x.unary(Unary::Round)
}

/// Toward 0, to a whole number.
pub fn trunc(_: &mut Maker, x: &Expr) -> Expr {
    x.unary(Unary::Trunc)
}

/// eˣ; 0 below −104, ∞ above 88.73.
pub fn exp(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let within = m.name("within", x.min(89.5).max(-105.0));
    let y = exp_within(m, &within);
    unless_nan(&x, bits(&y))
}

/// eˣ − 1, relatively exact near 0 too; −1 below −17, ∞ above 88.73.
///
/// With eʳ − 1 = p it is 2ⁿ p + (2ⁿ − 1), which does not cancel near 0. Both terms are halved, since 2ⁿ alone may overflow.
pub fn expm1(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let within = m.name("within", x.min(89.5).max(-105.0));
    let (n, r) = reduce(m, &within);
    let n = m.name("less", n - 1.0);
    let p = m.name("p", small_expm1(&r));
    let whole = scale(m, &1.0.into(), &n) - 0.5;
    let half = scale(m, &p, &n) + apart(whole, f32::MAX);
    let half = m.name("half", half);
    // A tiny x is its own result; halving it would lose its last bit, and the sign of 0.
    let tiny = magnitude(&x).lt(1e-7f32.to_bits());
    unless_nan(&x, tiny.select(bits(&x), bits(&(&half + &half))))
}

/// The bits of a number above 0, without its sign, as 2ⁿ · m with √½ ≤ m < √2: n and m, both floats. Subnormal numbers
/// are handled as integers, so it does not matter if the hardware flushes them to 0.
fn split(m: &mut Maker, size: &Expr) -> (Expr, Expr) {
    let tiny = m.name("tiny", size.lt(0x0080_0000u32));
    let normal = m.name("normal", tiny.select(bits(&size.to(Ty::F32)), size).bits(Ty::I32));
    let n = m.name("n", (&normal - 0x3f35_04f3).binary(Binary::Shr, 23u32));
    let part = m.name("part", (&normal - n.shl(23u32)).bits(Ty::F32));
    let n = m.name("whole", n.to(Ty::F32) - tiny.select(149.0, 0.0));
    (n, part)
}

/// ln x; −∞ at ±0, NaN below.
pub fn log(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let (n, part) = split(m, &bits(&x));
    let f = m.name("f", part - 1.0);
    let q = poly(
        &f,
        &[
            0.333_333_3,
            -0.250_008_2,
            0.200_012_27,
            -0.166_233_57,
            0.142_017_57,
            -0.131_601_83,
            0.127_615_78,
            -0.076_344_974,
        ],
    );
    // ln m = f − f²/2 + f³ q, the small terms first.
    let square = m.name("square", &f * &f);
    let small = square.fma(-0.5, n.fma(LN_2_LO, &square * &f * q));
    let y = m.name("y", n.fma(LN_2_HI, &f + small));
    let y = bits(&x).eq(INFINITY).select(INFINITY, bits(&y));
    let y = magnitude(&x).eq(0u32).select(SIGN | INFINITY, y);
    unless_nan(&x, Expr::from(SIGN).lt(bits(&x)).select(NAN, y))
}

/// tanh x; ±1 from |x| = 10 on, unlike the tanh of some hardware.
///
/// tanh x = m / (m + 2) with m = e²ˣ − 1 = 2ⁿ (e²ʳ − 1) + (2ⁿ − 1), which does not cancel near 0.
pub fn tanh(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let twice = m.name("twice", x.unary(Unary::Abs).min(10.0) * 2.0);
    let (n, r) = reduce(m, &twice);
    let power = m.name("power", power_of_two(&n.to(Ty::I32)));
    let e = m.name("e", power.fma(small_expm1(&r), apart(&power - 1.0, 1e9)));
    let y = (&e / (&e + 2.0)).min(1.0);
    unless_nan(&x, bits(&y).or(bits(&x).and(SIGN)))
}

/// 1 / (1 + e⁻ˣ), relatively exact for negative x too: with z = e⁻|ˣ|, which cannot overflow, it is 1 / (1 + z) or
/// z / (1 + z).
pub fn sigmoid(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let y = sigmoid_of_number(m, &x);
    unless_nan(&x, bits(&y))
}

fn sigmoid_of_number(m: &mut Maker, x: &Expr) -> Expr {
    let z = exp_down(m, x);
    (x.lt(0.0).select(&z, 1.0) / (&z + 1.0)).min(1.0)
}

/// x · sigmoid(x); −0 from −105 down.
pub fn silu(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let y = x.max(f32::MIN) * sigmoid_of_number(m, &x);
    unless_nan(&x, bits(&y))
}

/// ln(1 + eˣ) = max(x, 0) + ln(1 + e⁻|ˣ|); x itself from 17 on.
pub fn softplus(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let z = exp_down(m, &x);
    let q = poly(
        &z,
        &[
            1.0,
            -0.499_999_02,
            0.333_299_64,
            -0.249_541_34,
            0.196_759_39,
            -0.153_055_92,
            0.106_036_54,
            -0.056_959_525,
            0.019_851_457,
            -0.003_244_024,
        ],
    );
    unless_nan(&x, bits(&z.fma(q, x.max(0.0))))
}

/// The error function; ±1 from |x| = 3.92 on.
pub fn erf(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let a = m.name("a", x.unary(Unary::Abs).min(3.92));
    let u = m.name("u", &a * &a);
    let p = poly(&u, &[FRAC_2_SQRT_PI, 0.192_419_48, 0.053_014_897, 0.003_853_437_3, 0.000_287_127_77, 2.037_237e-6]);
    let q = poly(&u, &[1.0, 0.503_859_1, 0.114_942_1, 0.015_142_651, 0.001_184_463_6, 3.807_800_7e-5]);
    let y = a.lt(3.92).select((&a * p / q).min(1.0), 1.0);
    unless_nan(&x, bits(&y).or(bits(&x).and(SIGN)))
}

/// x · Φ(x), Φ(x) = ½ (1 + erf(x / √2)); −0 at −∞.
///
/// Negative x need Φ relatively: Φ(−t) = e^(−t²/2) · P((t − 4) / (t + 4)) / (1 + 2t), P a polynomial. So that the exponent is
/// exact, t² = h² + (t − h)(t + h), h the first twelve bits of t.
pub fn gelu(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let t = m.name("t", x.unary(Unary::Abs).min(15.0));
    let h = m.name("h", head(&t));
    let large = m.name("large", &h * &h * -0.5);
    let small = m.name("small", (&t - &h) * (&t + &h) * -0.5);
    let n = m.name("n", ((&large + &small) * LOG2_E).unary(Unary::Round));
    let r = m.name("r", n.fma(-LN_2_LO, apart(n.fma(-LN_2_HI, large), 1.0) + small));
    let e = m.name("e", small_expm1(&r) + 1.0);
    let q = m.name("q", (&t - 4.0) / (&t + 4.0));
    let p = poly(
        &q,
        &[
            0.849_695_8,
            -0.023_009_198,
            -0.096_380_085,
            0.128_906_9,
            -0.095_259_234,
            0.044_376_735,
            -0.010_514_281,
            -0.001_260_659_9,
            0.001_558_840_4,
            -6.075_945e-5,
            -0.000_147_992_4,
        ],
    );
    let below = scale(m, &(e * p / t.fma(2.0, 1.0)), &n);
    let below = m.name("below", below);
    let phi = x.lt(0.0).select(&below, Expr::from(1.0) - &below);
    unless_nan(&x, bits(&(x.max(f32::MIN) * phi)))
}
