//! Elementary functions over lanes.
//!
//! All of them are branch free: an argument is clamped or selected into the range of one polynomial or rational, so
//! that a loop over them keeps every pipe busy. The exponential family shares one range reduction: n = round(x · log₂e)
//! by adding and subtracting 1.5 · 2²³ (a plain addition on every machine, and the integer is left in the low bits),
//! then r = x − n · ln 2. tanh and sigmoid end in a true division: it was measured faster than a reciprocal estimate
//! with Newton steps, and it is exact at the saturated ends. NaN goes through: clamps are written with the argument
//! second, where [`Simd::min_fast`] and [`Simd::max_fast`] keep it.
//!
//! The polynomials are weighted minimax fits made for this file (Lawson iteration on Chebyshev points); each function
//! states the error that its test checks against `f64` over all exponents.

use crate::Simd;
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LOG2_E};

/// 1.5 · 2²³: adding it rounds to an integer and leaves that integer in the low bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has 15 significant bits, so that n times it is exact.
const LN_2_HI: f32 = 0.693_145_75;
const LN_2_LO: f32 = 1.428_606_8e-6;

/// `c[0] + c[1] x + …` by Horner's rule.
#[inline(always)]
fn poly<S: Simd, const N: usize>(s: S, x: S::F, c: [f32; N]) -> S::F {
    let mut y = s.splat(c[N - 1]);
    for &c in c[..N - 1].iter().rev() {
        y = s.mul_add(y, x, s.splat(c));
    }
    y
}

/// n = round(x · factor) twice: as a float, and as a float whose low bits are n.
#[inline(always)]
fn whole<S: Simd>(s: S, x: S::F, factor: f32) -> (S::F, S::F) {
    let shifted = s.mul_add(x, s.splat(factor), s.splat(ROUND));
    (s.sub(shifted, s.splat(ROUND)), shifted)
}

/// 2ⁿ for −127 ≤ n ≤ 127 from the second half of [`whole`]; n = −127 gives 0.
#[inline(always)]
fn power_of_two<S: Simd>(s: S, shifted: S::F) -> S::F {
    s.float_from_bits(s.add_int(s.shl::<23>(s.bits(shifted)), s.splat_int(127 << 23)))
}

/// eˣ within 2 ulp, subnormal results included; 0 below −104, ∞ above 88.73.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let x = s.max_fast(s.splat(-105.0), s.min_fast(s.splat(89.5), x));
    let (n, _) = whole(s, x, LOG2_E);
    let r = s.neg_mul_add(n, s.splat(LN_2_HI), x);
    let r = s.neg_mul_add(n, s.splat(LN_2_LO), r);
    let q = poly(s, r, [0.499_999_94, 0.166_665_2, 0.041_668_4, 0.008_368_85, 0.001_381_432]);
    let e = s.add(s.mul_add(s.mul(r, r), q, r), s.splat(1.0));
    s.scale(e, n)
}

/// eˣ − 1 within 1e−6 relatively, also near 0; −1 below −17, ∞ above 88.73.
///
/// With eʳ − 1 = p it is 2ⁿ p + (2ⁿ − 1), which does not cancel near 0. Both terms are halved, since 2ⁿ alone may overflow.
#[inline(always)]
pub(crate) fn expm1<S: Simd>(s: S, x: S::F) -> S::F {
    let x = s.max_fast(s.splat(-105.0), s.min_fast(s.splat(89.5), x));
    let (n, _) = whole(s, x, LOG2_E);
    let r = s.neg_mul_add(n, s.splat(LN_2_HI), x);
    let r = s.neg_mul_add(n, s.splat(LN_2_LO), r);
    let q = poly(s, r, [0.499_999_94, 0.166_665_2, 0.041_668_4, 0.008_368_85, 0.001_381_432]);
    let p = s.mul_add(s.mul(r, r), q, r);
    let n = s.sub(n, s.splat(1.0));
    let half = s.add(s.scale(p, n), s.sub(s.scale(s.splat(1.0), n), s.splat(0.5)));
    // A tiny x is its own result; halving it would lose its last bit, and the sign of 0.
    s.select(s.lt(s.abs(x), s.splat(1e-7)), x, s.add(half, half))
}

/// ln x within 2 ulp, subnormal x included; −∞ at ±0, NaN below.
#[inline(always)]
pub(crate) fn log<S: Simd>(s: S, x: S::F) -> S::F {
    let zero = s.splat(0.0);
    let tiny = s.lt(x, s.splat(f32::MIN_POSITIVE));
    let normal = s.select(tiny, s.mul(x, s.splat(8_388_608.0)), x);
    // x = 2ⁿ · m with √½ ≤ m < √2, found by integer arithmetic on the bits.
    let n = s.sra::<23>(s.sub_int(s.bits(normal), s.splat_int(0x3f35_04f3)));
    let m = s.float_from_bits(s.sub_int(s.bits(normal), s.shl::<23>(n)));
    let n = s.sub(s.int_to_float(n), s.select(tiny, s.splat(23.0), zero));
    let f = s.sub(m, s.splat(1.0));
    let q = poly(
        s,
        f,
        [
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
    let square = s.mul(f, f);
    let small = s.mul_add(n, s.splat(LN_2_LO), s.mul(s.mul(square, f), q));
    let small = s.neg_mul_add(square, s.splat(0.5), small);
    let y = s.mul_add(n, s.splat(LN_2_HI), s.add(f, small));
    let y = s.select(s.lt(x, s.splat(f32::INFINITY)), y, x);
    let y = s.select(s.le(x, zero), s.splat(f32::NEG_INFINITY), y);
    s.select(s.lt(x, zero), s.splat(f32::NAN), y)
}

/// tanh x within 4e−7 absolutely and 1.5e−6 relatively (x itself for tiny x); ±1 from |x| = 10 on.
///
/// tanh x = m / (m + 2) with m = e²ˣ − 1 = 2ⁿ (e²ʳ − 1) + (2ⁿ − 1), which does not cancel near 0.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let a = s.min_fast(s.splat(10.0), s.abs(x));
    let (n, shifted) = whole(s, a, 2.0 * LOG2_E);
    let r = s.neg_mul_add(n, s.splat(0.5 * LN_2), a);
    let q = poly(s, r, [2.0, 4.0 * 0.499_993_98, 8.0 * 0.166_668_33, 16.0 * 0.041_873_384, 32.0 * 0.008_338_089]);
    let power = power_of_two(s, shifted);
    let m = s.mul_add(power, s.mul(r, q), s.sub(power, s.splat(1.0)));
    s.copysign(s.div(m, s.add(m, s.splat(2.0))), x)
}

/// 1 / (1 + e⁻ˣ) within 2e−7 absolutely and 1e−6 relatively; results below 2⁻¹²⁶ are 0.
///
/// With eˣ = 2ⁿ / p it is 2ⁿ / (2ⁿ + p), so that tiny results keep their relative accuracy.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let x = s.max_fast(s.splat(-88.0), s.min_fast(s.splat(24.0), x));
    let (n, shifted) = whole(s, x, LOG2_E);
    let r = if S::FUSED {
        s.neg_mul_add(n, s.splat(LN_2), x)
    } else {
        s.neg_mul_add(n, s.splat(LN_2_LO), s.neg_mul_add(n, s.splat(LN_2_HI), x))
    };
    // e⁻ʳ
    let p = poly(s, r, [1.000_000_1, -0.999_999_7, 0.499_988_85, -0.166_675_82, 0.041_916_37, -0.008_297_512]);
    let power = power_of_two(s, shifted);
    s.div(power, s.add(power, p))
}

/// ln(1 + eˣ) = max(x, 0) + ln(1 + e⁻|ˣ|) within 1e−6 relatively, subnormal results included; x itself from 17 on.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let z = exp(s, s.neg(s.abs(x)));
    let q = poly(
        s,
        z,
        [
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
    s.mul_add(z, q, s.max_fast(s.splat(0.0), x))
}

/// The error function within 5e−7 absolutely and 1e−6 relatively; ±1 from |x| = 3.92 on.
#[inline(always)]
pub(crate) fn erf<S: Simd>(s: S, x: S::F) -> S::F {
    let end = s.splat(3.92);
    let one = s.splat(1.0);
    let a = s.min_fast(end, s.abs(x));
    let u = s.mul(a, a);
    let p = poly(s, u, [FRAC_2_SQRT_PI, 0.192_419_48, 0.053_014_897, 0.003_853_437_3, 0.000_287_127_77, 2.037_237e-6]);
    let q = poly(s, u, [1.0, 0.503_859_1, 0.114_942_1, 0.015_142_651, 0.001_184_463_6, 3.807_800_7e-5]);
    let y = s.min_fast(one, s.div(s.mul(a, p), q));
    s.copysign(s.select(s.le(end, a), one, y), x)
}

/// x · ½ (1 + erf(x / √2)) within 5e−7 · max(1, |x|); −0 at −∞.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    let half = s.mul(s.max_fast(s.splat(f32::MIN), x), s.splat(0.5));
    let e = erf(s, s.mul(x, s.splat(FRAC_1_SQRT_2)));
    s.mul(half, s.add(e, s.splat(1.0)))
}

/// x · sigmoid(x), as exact as [`sigmoid`]; −0 from −88 down.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    s.mul(s.max_fast(s.splat(f32::MIN), x), sigmoid(s, x))
}

/// 2ᶠ on [0, 1] within 1.5e−7 relatively, for [`Simd::exp2`].
#[inline(always)]
fn exp2_part<S: Simd>(s: S, f: S::F) -> S::F {
    poly(s, f, [0.999_999_94, 0.693_153_1, 0.240_153_61, 0.055_826_318, 0.008_989_34, 0.001_877_576_7])
}

/// 2ʸ, at most 2²⁹.
#[inline(always)]
fn power<S: Simd>(s: S, y: S::F) -> S::F {
    let [power] = s.exp2(
        [s.min_fast(s.splat(29.0), y)],
        #[inline(always)]
        |[f]| [exp2_part(s, f)],
    );
    power
}

/// tanh a + sigmoid t · (tanh b − tanh a), within 1e−6 absolutely.
#[inline(always)]
pub(crate) fn gate<S: Simd>(s: S, t: S::F, a: S::F, b: S::F) -> S::F {
    let twice = s.splat(2.0 * LOG2_E);
    gate_of_exp2(s, s.mul(t, s.splat(-LOG2_E)), s.mul(a, twice), s.mul(b, twice))
}

/// [`gate`], its arguments multiplied by −log₂e (t) and by 2 log₂e (a and b) already.
///
/// With A = e²ᵃ, B = e²ᵇ and T = e⁻ᵗ it is 1 − 2 (T (1 + B) + 1 + A) / ((1 + T) (1 + A) (1 + B)): one division instead of
/// three. Beyond 2²⁹ the functions have reached their limits, and the products stay finite.
#[inline(always)]
pub(crate) fn gate_of_exp2<S: Simd>(s: S, t: S::F, a: S::F, b: S::F) -> S::F {
    let one = s.splat(1.0);
    let (t, a, b) = (power(s, t), power(s, a), power(s, b));
    let (t1, a1, b1) = (s.add(one, t), s.add(one, a), s.add(one, b));
    let ratio = s.div(s.mul_add(t, b1, a1), s.mul(t1, s.mul(a1, b1)));
    s.neg_mul_add(s.splat(2.0), ratio, one)
}

/// The smaller of two, NaN where either is NaN; of two zeros either.
#[inline(always)]
pub(crate) fn min<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
    s.select(s.eq(a, a), s.min_fast(a, b), a)
}

/// The larger of two, NaN where either is NaN; of two zeros either.
#[inline(always)]
pub(crate) fn max<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
    s.select(s.eq(a, a), s.max_fast(a, b), a)
}

/// max(x, 0), NaN where x is NaN.
#[inline(always)]
pub(crate) fn relu<S: Simd>(s: S, x: S::F) -> S::F {
    s.max_fast(s.splat(0.0), x)
}

/// 1 / x, correctly rounded.
#[inline(always)]
pub(crate) fn recip<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(s.splat(1.0), x)
}

/// x², correctly rounded.
#[inline(always)]
pub(crate) fn square<S: Simd>(s: S, x: S::F) -> S::F {
    s.mul(x, x)
}

/// −1, 0 or 1; zeros and NaN as they are.
#[inline(always)]
pub(crate) fn sign<S: Simd>(s: S, x: S::F) -> S::F {
    s.select(s.lt(s.splat(0.0), s.abs(x)), s.copysign(s.splat(1.0), x), x)
}

/// −x
#[inline(always)]
pub(crate) fn neg<S: Simd>(s: S, x: S::F) -> S::F {
    s.neg(x)
}

/// |x|
#[inline(always)]
pub(crate) fn abs<S: Simd>(s: S, x: S::F) -> S::F {
    s.abs(x)
}

/// √x
#[inline(always)]
pub(crate) fn sqrt<S: Simd>(s: S, x: S::F) -> S::F {
    s.sqrt(x)
}

/// Down to an integer.
#[inline(always)]
pub(crate) fn floor<S: Simd>(s: S, x: S::F) -> S::F {
    s.floor(x)
}

/// To the nearest integer, ties to even.
#[inline(always)]
pub(crate) fn round<S: Simd>(s: S, x: S::F) -> S::F {
    s.round(x)
}

/// 1 where x is 0, else 0.
#[inline(always)]
pub(crate) fn not<S: Simd>(s: S, x: S::F) -> S::F {
    truth(s, is_zero(s, x))
}

/// 1 where the mask holds, else 0.
#[inline(always)]
pub(crate) fn truth<S: Simd>(s: S, m: S::M) -> S::F {
    s.select(m, s.splat(1.0), s.splat(0.0))
}

/// Where x is 0.
#[inline(always)]
pub(crate) fn is_zero<S: Simd>(s: S, x: S::F) -> S::M {
    s.eq(x, s.splat(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::{portable::Portable, with_simd};

    /// Some of every exponent and sign (subnormals, zeros, infinities and NaN too), and more in the ranges where the
    /// functions change most.
    fn samples() -> Vec<f32> {
        let mut xs: Vec<f32> = (0..=u32::MAX / 16_381).map(|i| f32::from_bits(i * 16_381)).collect();
        let edges = [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MIN_POSITIVE,
            f32::MAX,
            f32::MIN,
            1e-45,
            -1e-45,
            1.0,
            -1.0,
            88.72,
            88.73,
            89.0,
            -87.33,
            -87.34,
            -87.68,
            -88.0,
            -103.97,
            -103.98,
            -104.0,
            1e-20,
            -1e-20,
        ];
        xs.extend(edges);
        xs.extend((-110_000..110_000).map(|i| i as f32 * 1e-3 + 1.7e-4));
        xs.extend((-60_000..60_000).map(|i| i as f32 * 1e-4 + 3e-5));
        xs.resize(xs.len().next_multiple_of(16), 1.0);
        xs
    }

    #[inline(always)]
    fn over<S: Simd>(s: S, xs: &[f32], f: impl Fn(S, S::F) -> S::F) -> Vec<f32> {
        let mut ys = vec![0.0; xs.len()];
        for (x, y) in xs.chunks_exact(S::LANES).zip(ys.chunks_exact_mut(S::LANES)) {
            // SAFETY: both chunks hold LANES floats.
            unsafe { s.store(y.as_mut_ptr(), f(s, s.load(x.as_ptr()))) }
        }
        ys
    }

    /// Evaluates one function on every path and hands `check` the path, argument, reference and result.
    macro_rules! on_every_path {
        ($f:ident, $exact:expr, $check:expr) => {{
            let xs = samples();
            let exact: Vec<f64> = xs.iter().map(|&x| $exact(f64::from(x))).collect();
            let mut paths = vec![
                ("portable8", over(Portable::<8>, &xs, |s, x| $f(s, x))),
                ("portable16", over(Portable::<16>, &xs, |s, x| $f(s, x))),
            ];
            for &isa in Isa::available() {
                paths.push((isa.name(), with_simd!(isa, s => over(s, &xs, #[inline(always)] |s, x| $f(s, x)))));
            }
            for (path, ys) in paths {
                for ((&x, &e), &y) in xs.iter().zip(&exact).zip(&ys) {
                    if e.is_nan() {
                        assert!(y.is_nan(), "{path}: {x:e} gave {y:e}, not NaN");
                    } else if (e as f32).is_infinite() || x.is_infinite() {
                        assert_eq!(y, e as f32, "{path}: at {x:e}");
                    } else {
                        $check(path, x, e, y);
                    }
                }
            }
        }};
    }

    /// |y − e| in units of the last place of the `f32` nearest to e.
    fn ulps(e: f64, y: f32) -> f64 {
        let near = (e as f32).abs();
        let ulp = f64::from(near.next_up()) - f64::from(near);
        (f64::from(y) - e).abs() / ulp
    }

    fn assert_error(path: &str, x: f32, e: f64, y: f32, allowed: f64) {
        let error = (f64::from(y) - e).abs();
        assert!(error <= allowed, "{path}: at {x:e} got {y:e}, expected {e:e}, error {error:e} over {allowed:e}");
    }

    /// 2/√π e⁻ˣ² Σ 2ⁿ x²ⁿ⁺¹ / (1 · 3 ⋯ (2n + 1)), whose terms all have one sign.
    fn erf_f64(x: f64) -> f64 {
        if x.is_nan() || x.abs() > 6.0 {
            return x.signum();
        }
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
    }

    #[test]
    fn exp_is_within_two_ulp() {
        on_every_path!(exp, f64::exp, |path, x, e, y| {
            assert!(ulps(e, y) <= 2.0, "{path}: exp {x:e} = {y:e}, {} ulp", ulps(e, y));
        });
    }

    #[test]
    fn expm1_keeps_its_bound() {
        on_every_path!(expm1, f64::exp_m1, |path, x, e: f64, y| assert_error(path, x, e, y, 1e-6 * e.abs()));
    }

    #[test]
    fn log_is_within_two_ulp() {
        on_every_path!(log, f64::ln, |path, x, e, y| {
            assert!(ulps(e, y) <= 2.0, "{path}: log {x:e} = {y:e}, {} ulp", ulps(e, y));
        });
    }

    #[test]
    fn tanh_keeps_its_bounds() {
        on_every_path!(tanh, f64::tanh, |path, x, e: f64, y| {
            assert_error(path, x, e, y, f64::min(4e-7, 1.5e-6 * e.abs() + 1e-45));
        });
    }

    #[test]
    fn gate_keeps_its_bounds() {
        #[inline(always)]
        fn gated<S: Simd>(s: S, x: S::F) -> S::F {
            gate(s, x, s.mul(x, s.splat(0.5)), s.neg(x))
        }
        let exact = |x: f64| {
            let (from, to) = ((0.5 * x).tanh(), (-x).tanh());
            from + (to - from) / (1.0 + (-x).exp())
        };
        on_every_path!(gated, exact, |path, x, e: f64, y| assert_error(path, x, e, y, 1e-6));
    }

    #[test]
    fn sigmoid_keeps_its_bounds() {
        on_every_path!(sigmoid, |x: f64| 1.0 / (1.0 + (-x).exp()), |path, x, e: f64, y| {
            let allowed = if e < 1.2e-38 { e } else { f64::min(2e-7, 1e-6 * e) };
            assert_error(path, x, e, y, allowed);
        });
    }

    #[test]
    fn softplus_keeps_its_bound() {
        on_every_path!(softplus, |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p(), |path, x, e: f64, y| {
            assert_error(path, x, e, y, 1e-6 * e + 2e-45);
        });
    }

    #[test]
    fn erf_and_gelu_keep_their_bounds() {
        on_every_path!(erf, |x| if f64::is_nan(x) { x } else { erf_f64(x) }, |path, x, e: f64, y| {
            assert_error(path, x, e, y, f64::min(5e-7, 1e-6 * e.abs() + 2e-45));
        });
        let exact = |x: f64| {
            if x == f64::NEG_INFINITY || x.is_nan() {
                return if x.is_nan() { x } else { 0.0 };
            }
            x * 0.5 * (1.0 + erf_f64(x * std::f64::consts::FRAC_1_SQRT_2))
        };
        on_every_path!(gelu, exact, |path, x: f32, e, y| {
            assert_error(path, x, e, y, 5e-7 * f64::from(x).abs().max(1.0));
        });
    }

    #[test]
    fn silu_keeps_its_bound() {
        let exact = |x: f64| if x == f64::NEG_INFINITY { 0.0 } else { x / (1.0 + (-x).exp()) };
        on_every_path!(silu, exact, |path, x: f32, e: f64, y| {
            assert_error(path, x, e, y, if e.abs() < 1.1e-36 { 1.1e-36 } else { 1.2e-6 * e.abs() });
        });
    }

    #[test]
    fn simple_functions_are_exact_and_keep_nan() {
        let exactly = |_: &str, x: f32, e: f64, y: f32| assert_eq!(y, e as f32, "at {x:e}");
        on_every_path!(relu, |x: f64| if x < 0.0 { 0.0 } else { x }, exactly);
        on_every_path!(sign, |x: f64| if x == 0.0 || x.is_nan() { x } else { x.signum() }, exactly);
        on_every_path!(square, |x: f64| x * x, exactly);
        on_every_path!(recip, |x: f64| 1.0 / x, exactly);
        let values = [0.0, 1.0, -2.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-45];
        for a in values {
            for b in values {
                let s = Portable::<4>;
                let (low, high) = (min(s, [a; 4], [b; 4])[3], max(s, [a; 4], [b; 4])[3]);
                if a.is_nan() || b.is_nan() {
                    assert!(low.is_nan() && high.is_nan());
                } else {
                    assert_eq!((low, high), (a.min(b), a.max(b)));
                }
            }
        }
    }
}
