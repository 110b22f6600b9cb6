//! Powers.

use super::{INFINITY, NAN, ONE, SIGN, apart, bits, head, magnitude, poly, scale, split};
use crate::lang::{Expr, Maker, Ty, Unary};
use std::f32::consts::LN_2;

/// 2 / ln 2, whole, and in two parts, of which the first has 12 bits.
const TWO_LOG2_E: f32 = 2.885_39;
const TWO_LOG2_E_HI: f32 = 2.884_765_6;
const TWO_LOG2_E_LO: f32 = 0.000_624_456_7;

/// aᵇ as IEEE 754 has it: 1 where b is 0 or a is 1, even if the other is NaN; for negative a, the sign of b odd and NaN for
/// b that is no whole number.
///
/// |a|ᵇ = 2^(b · log₂ |a|). The product may be as large as 150, of which the fraction must be right to seven digits. So the
/// logarithm has two parts, and so has b; the products of first parts are exact, and lose their whole numbers before they
/// are added up.
pub fn pow(m: &mut Maker, a: &Expr, b: &Expr) -> Expr {
    let (a, b) = (m.name("a", a), m.name("b", b));
    let (size_a, size_b) = (m.name("size_a", magnitude(&a)), m.name("size_b", magnitude(&b)));

    // log₂ |a| = e + 2/ln 2 · atanh s, s = (m − 1) / (m + 1), with s of 12 bits and the rest of the quotient.
    let (e, part) = split(m, &size_a);
    let f = m.name("f", &part - 1.0);
    let d = m.name("d", &part + 1.0);
    let d_head = m.name("d_head", head(&d));
    let d_rest = &part - apart(&d_head - 1.0, 2.0);
    let s_head = m.name("s_head", head(&(&f / &d)));
    let minus = m.name("minus", s_head.unary(Unary::Neg));
    let s_rest = m.name("s_rest", minus.fma(d_rest, apart(minus.fma(d_head, &f), 1.0)) / &d);
    let s = m.name("s", &s_head + &s_rest);
    let u = m.name("u", &s * &s);
    let s_rest = (&s * &u).fma(poly(&u, &[0.333_333_3, 0.200_001_69, 0.142_686_02, 0.117_921_26]), s_rest);
    let small = m.name("small", s_head.fma(TWO_LOG2_E_LO, s_rest * TWO_LOG2_E));
    let log = m.name("log", s_head.fma(TWO_LOG2_E_HI, &small));
    let log_head = m.name("log_head", head(&log));
    let log_rest = apart(s_head.fma(TWO_LOG2_E_HI, log_head.unary(Unary::Neg)), 1.0) + small;

    let b_head = m.name("b_head", head(&b));
    let b_rest = m.name("b_rest", &b - &b_head);
    let [(x, n), (y, k)] = [&e, &log_head].map(|factor| {
        let product = m.name("product", &b_head * factor);
        let whole = m.name("whole", product.unary(Unary::Round));
        (apart(product - &whole, 1.0), whole)
    });
    let rest = b_rest.fma(&e, b_rest.fma(&log_head, &b * log_rest));
    let r = m.name("r", x + y + rest);
    let more = m.name("more", r.unary(Unary::Round));
    let r = m.name("r", r - &more);
    let n = (n + k + more).min(129.0).max(-152.0);
    let two = [LN_2, 0.240_226_5, 0.055_504_1, 0.009_618_03, 0.001_333_396_6, 0.000_154_693, 1.519_388_6e-5];
    let power = m.name("power", r.fma(poly(&r, &two), 1.0));
    let power = bits(&scale(m, &power, &n));

    // Where the result is 0 or ∞ anyway, the value above is not used.
    let far = Expr::from(256f32.to_bits() - 1).lt(magnitude(&(&b * (e + log))));
    let end = size_a.eq(0u32).or(Expr::from(INFINITY - 1).lt(size_a.max(&size_b))).or(far);
    let (large, down) = (Expr::from(ONE).lt(&size_a).select(1u32, 0u32), bits(&b).shr(31u32));
    let power = end.select(large.ne(down).select(INFINITY, 0u32), power);
    let power = size_a.eq(ONE).select(ONE, power);

    // Which bits of b are below the point? From 2²⁴ on all floats are even.
    let exponent = m.name("exponent", size_b.shr(23u32));
    let point = m.name("point", Expr::from(150u32) - exponent.max(127u32).min(150u32));
    let digits = m.name("digits", size_b.and(0x007f_ffffu32).or(0x0080_0000u32));
    let below = digits.and(Expr::from(1u32).shl(&point) - 1u32);
    let fraction = m.name("fraction", below.ne(0u32).or(exponent.lt(127u32)));
    let last = exponent.le(150u32).select(digits.shr(&point).and(1u32), 0u32);
    let odd = fraction.select(0u32, last);
    let power = power.or(bits(&a).and(odd.shl(31u32)));

    let negative = Expr::from(SIGN).lt(bits(&a)).and(bits(&a).lt(SIGN | INFINITY));
    let power = negative.and(fraction).select(NAN, power);
    let power = Expr::from(INFINITY).lt(size_a.max(&size_b)).select(NAN, power);
    let one = size_b.eq(0u32).or(bits(&a).eq(ONE));
    one.select(ONE, power).bits(Ty::F32)
}
