//! Every function against `f64`, over all exponents and where things happen, as several kinds of hardware would compute it.

mod evaluate;

use super::*;
use evaluate::{Machine, evaluate, made};

/// Some of every exponent and sign (subnormals, zeros, infinities and NaN too), and the ranges where things happen.
fn samples() -> Vec<f32> {
    let mut xs: Vec<f32> = (0..=u32::MAX / 131_071).map(|i| f32::from_bits(i * 131_071)).collect();
    xs.extend(EDGES);
    xs.extend((-11_000..11_000).map(|i| i as f32 * 1e-2 + 1.7e-4));
    xs.extend((-12_000..12_000).map(|i| i as f32 * 5e-4 + 3e-5));
    xs
}

const EDGES: [f32; 40] = [
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
    1.0 - f32::EPSILON / 2.0,
    1.0 + f32::EPSILON,
    std::f32::consts::SQRT_2,
    std::f32::consts::FRAC_1_SQRT_2,
    2.0,
    -2.0,
    3.0,
    -3.0,
    0.5,
    -0.5,
    88.72,
    88.73,
    89.0,
    -87.33,
    -87.34,
    -88.0,
    -103.97,
    -103.98,
    -104.0,
    1e-20,
    -1e-20,
    8_388_607.5,
    16_777_215.0,
    16_777_216.0,
    1.0 / 3.0,
    -44.5,
    65520.0,
    1e5,
];

/// A result against its definition: not further away than `rel` of it, or than `abs`. Numbers near the smallest may be 0.
fn check(what: impl Fn() -> String, e: f64, y: f32, rel: f64, abs: f64) {
    let near = e as f32;
    if near.is_nan() || near.is_infinite() || y.is_nan() || y.is_infinite() {
        assert!(near.is_nan() && y.is_nan() || near == y, "{}: got {y:e}, expected {near:e}", what());
        return;
    }
    let error = (f64::from(y) - e).abs();
    assert!(error <= (rel * e.abs()).max(abs).max(2e-36), "{}: got {y:e}, expected {e:e}, off by {error:e}", what());
}

/// A function in the kernel language.
type Function = fn(&mut Maker, &Expr) -> Expr;
/// Its name, itself, its definition, and how far off it may be: relatively, or absolutely where that is more.
type Row = (&'static str, Function, fn(f64) -> f64, f64, f64);

/// Hardware that divides with an error of 2 units in the last place adds 2.4e−7 to what each function has of its own.
fn rows() -> Vec<Row> {
    vec![
        ("exp", exp, f64::exp, 1e-7, 0.0),
        ("expm1", expm1, f64::exp_m1, 1e-7, 0.0),
        ("log", log, f64::ln, 1e-7, 0.0),
        ("tanh", tanh, f64::tanh, 4e-7, 0.0),
        ("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 4.2e-7, 0.0),
        ("silu", silu, |x| if x == f64::NEG_INFINITY { -0.0 } else { x / (1.0 + (-x).exp()) }, 4.4e-7, 0.0),
        ("softplus", softplus, |x| if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }, 2e-7, 0.0),
        ("erf", erf, libm::erf, 6e-7, 0.0),
        ("gelu", gelu, gelu_of, 9e-7, 0.0),
        ("sin", sin, f64::sin, 2e-7, 8e-9),
        ("cos", cos, f64::cos, 2e-7, 8e-9),
        ("sqrt", sqrt, f64::sqrt, 3e-7, 0.0),
        ("recip", recip, |x| 1.0 / x, 3e-7, 0.0),
        ("sign", sign, |x| if x == 0.0 || x.is_nan() { x } else { x.signum() }, 0.0, 0.0),
        ("relu", relu, |x| if x < 0.0 { 0.0 } else { x }, 0.0, 0.0),
        ("floor", floor, f64::floor, 0.0, 0.0),
        ("round", round, f64::round_ties_even, 0.0, 0.0),
        ("trunc", trunc, f64::trunc, 0.0, 0.0),
    ]
}

fn gelu_of(x: f64) -> f64 {
    if x == f64::NEG_INFINITY { -0.0 } else { x * 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) }
}

#[test]
fn functions_keep_their_bounds_on_every_machine() {
    let xs = samples();
    for (name, function, exact, rel, abs) in rows() {
        let code = made(1, |m, x| function(m, &x[0]));
        for machine in Machine::ALL {
            for &x in &xs {
                let y = f32::from_bits(evaluate(&code, machine, &[x.to_bits()]));
                check(|| format!("{name} {x:e} {machine:?}"), exact(f64::from(x)), y, rel, abs);
            }
        }
    }
}

/// What the hardware's own functions are worth: NaN comes out where it went in, and elsewhere the error is below what is said.
#[test]
fn functions_of_the_hardware_keep_their_bounds() {
    let xs = samples();
    let sigmoid: fn(f64) -> f64 = |x| 1.0 / (1.0 + (-x).exp());
    let rows: [Row; 3] = [
        ("tanh", fast::tanh, f64::tanh, 0.0, 2.5e-7),
        ("sigmoid", fast::sigmoid, sigmoid, 0.0, 1.3e-7),
        ("sigmoid of tanh", fast::sigmoid_of_tanh, sigmoid, 0.0, 5e-4),
    ];
    // No device that has them is one whose minimum loses a NaN.
    let machines = &Machine::ALL[..2];
    for (name, function, exact, rel, abs) in rows {
        let code = made(1, |m, x| function(m, &x[0]));
        for &machine in machines {
            for &x in &xs {
                let y = f32::from_bits(evaluate(&code, machine, &[x.to_bits()]));
                check(|| format!("{name} {x:e} {machine:?}"), exact(f64::from(x)), y, rel, abs);
            }
        }
    }
    // A gate, at the edges of all three operands and between.
    let code = made(3, |m, x| fast::gate(m, [&x[0], &x[1], &x[2]]));
    let few: Vec<f32> = EDGES.iter().copied().chain((-40..40).map(|i| i as f32 * 0.37)).collect();
    for &a in &few {
        for &b in &few {
            for &t in &few {
                for &machine in machines {
                    let y = f32::from_bits(evaluate(&code, machine, &[a, b, t].map(f32::to_bits)));
                    let (a, b, t) = (f64::from(a), f64::from(b), sigmoid(f64::from(t)));
                    check(|| format!("gate {a} {b} {t}"), a.tanh() + t * (b.tanh() - a.tanh()), y, 0.0, 6e-7);
                }
            }
        }
    }
}

#[test]
fn sine_and_cosine_are_right_between_small_and_huge() {
    let xs = (0..100_000).map(|i| i as f32 * 1.0007).chain((0..3_000).map(|i| i as f32 * std::f32::consts::FRAC_PI_2));
    let xs: Vec<f32> = xs.chain([8191.9995, 8192.0, 8192.001, 1e10, -1e20, 1e30, 1e38]).collect();
    for (_, function, exact, rel, abs) in rows().into_iter().filter(|row| ["sin", "cos"].contains(&row.0)) {
        let code = made(1, |m, x| function(m, &x[0]));
        for machine in Machine::ALL {
            for &x in &xs {
                let y = f32::from_bits(evaluate(&code, machine, &[x.to_bits()]));
                check(|| format!("{x:e} {machine:?}"), exact(f64::from(x)), y, rel, abs);
            }
        }
    }
}

#[test]
fn results_stay_within_their_limits() {
    let at = |function: Function, x: f32| {
        let code = made(1, |m, v| function(m, &v[0]));
        Machine::ALL.map(|machine| f32::from_bits(evaluate(&code, machine, &[x.to_bits()])))
    };
    for x in [9.0, 10.0, 17.0, 24.0, 44.5, 89.0, 1e5, f32::MAX, f32::INFINITY] {
        assert!(at(tanh, x).iter().all(|&y| y == 1.0) && at(tanh, -x).iter().all(|&y| y == -1.0), "tanh {x}");
        assert!(at(erf, x).iter().all(|&y| y == 1.0) && at(erf, -x).iter().all(|&y| y == -1.0), "erf {x}");
        assert!(at(sigmoid, x).iter().all(|&y| y <= 1.0), "sigmoid {x}");
        assert!(at(silu, x).iter().all(|&y| y <= x), "silu {x}");
    }
    // Zeros keep their signs.
    for function in [expm1, tanh, erf, sin, sign, sqrt, gelu, silu] {
        assert!(at(function, -0.0).iter().all(|y| y.to_bits() == SIGN));
        assert!(at(function, 0.0).iter().all(|y| y.to_bits() == 0));
    }
}

#[test]
fn powers_are_as_the_standard_has_them() {
    let mut pairs: Vec<(f32, f32)> = EDGES.iter().flat_map(|&a| EDGES.map(|b| (a, b))).collect();
    // Over the whole range of results: a by its bits, b so that the exponent is all that there is.
    let mut seed = 1u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(seed) / f64::from(u32::MAX)
    };
    for _ in 0..60_000 {
        let a = f32::from_bits((random() * f64::from(INFINITY)) as u32);
        let exponent = (random() - 0.5) * 300.0;
        pairs.push((a, (exponent / f64::from(a).log2()) as f32));
        let near = (1.0 + (random() - 0.5) * 0.1) as f32;
        pairs.push((near, (exponent / f64::from(near).log2()) as f32));
        pairs.push(((random() * 8.0 - 4.0) as f32, (random() * 16.0 - 8.0).round() as f32));
        pairs.push(((random() * 8.0) as f32, (random() * 16.0 - 8.0) as f32));
    }
    let code = made(2, |m, x| pow(m, &x[0], &x[1]));
    for machine in Machine::ALL {
        for &(a, b) in &pairs {
            let y = f32::from_bits(evaluate(&code, machine, &[a.to_bits(), b.to_bits()]));
            let exact = f64::from(a).powf(f64::from(b));
            check(|| format!("{a:e} to the {b:e} {machine:?}"), exact, y, 3e-7, 0.0);
            assert_eq!(y.is_sign_negative(), exact.is_sign_negative() && !exact.is_nan(), "{a:e} to the {b:e}: {y:e}");
        }
    }
}

#[test]
fn comparisons_and_extremes_mind_nan() {
    type Two = fn(&mut Maker, &Expr, &Expr) -> Expr;
    type Comparison = (Two, fn(&f32, &f32) -> bool);
    type Extreme = (Two, fn(f32, f32) -> f32);
    let comparisons: [Comparison; 6] =
        [(eq, f32::eq), (ne, f32::ne), (lt, f32::lt), (le, f32::le), (gt, f32::gt), (ge, f32::ge)];
    for (function, exact) in comparisons {
        let code = made(2, |m, x| function(m, &x[0], &x[1]));
        for (a, b) in EDGES.iter().flat_map(|&a| EDGES.map(|b| (a, b))) {
            let got = evaluate(&code, Machine::ALL[2], &[a.to_bits(), b.to_bits()]);
            assert_eq!(got != 0, exact(&a, &b), "{a:e}, {b:e}");
        }
    }
    let extremes: [Extreme; 2] = [(min, f32::min), (max, f32::max)];
    for (function, exact) in extremes {
        let code = made(2, |m, x| function(m, &x[0], &x[1]));
        for ((a, b), machine) in
            EDGES.iter().flat_map(|&a| EDGES.map(|b| (a, b))).flat_map(|p| Machine::ALL.map(|m| (p, m)))
        {
            let got = f32::from_bits(evaluate(&code, machine, &[a.to_bits(), b.to_bits()]));
            let exact = if a.is_nan() || b.is_nan() { f32::NAN } else { exact(a, b) };
            assert!(got == exact || got.is_nan() && exact.is_nan(), "{a:e}, {b:e}: {got:e}");
        }
    }
}

#[test]
fn numbers_of_16_bits_are_rounded_as_half_does() {
    let same = |got: f32, exact: f32| got.to_bits() == exact.to_bits() || got.is_nan() && exact.is_nan();
    let machine = Machine::ALL[2];
    // Operands are floats here, and these are bits.
    let f16 = made(1, |m, x| from_f16_bits(m, &x[0].bits(Ty::U32)));
    let bf16 = made(1, |m, x| from_bf16_bits(m, &x[0].bits(Ty::U32)));
    for word in 0..=u16::MAX {
        let other = u32::from(word) | 0xabcd_0000;
        let got = f32::from_bits(evaluate(&f16, machine, &[other]));
        assert!(same(got, half::f16::from_bits(word).to_f32()), "{word:x}");
        let got = f32::from_bits(evaluate(&bf16, machine, &[other]));
        assert!(same(got, half::bf16::from_bits(word).to_f32()), "{word:x}");
    }
    let (to_f16, to_bf16) = (made(1, |m, x| to_f16_bits(m, &x[0])), made(1, |m, x| to_bf16_bits(m, &x[0])));
    let (via_f16, via_bf16) = (made(1, |m, x| round_f16(m, &x[0])), made(1, |m, x| round_bf16(m, &x[0])));
    // Every f16, the middles between two, and what is next to those; and of all f32, some.
    let middles = (0..=u16::MAX).flat_map(|word| {
        let x = half::f16::from_bits(word).to_f32().to_bits();
        [0, 1, 0xfff, 0x1000, 0x1001].map(|more| x.wrapping_add(more))
    });
    let tiny = (0..5_000).map(|i| (i as f32 * 2f32.powi(-27)).to_bits());
    let some = (0..u32::MAX / 32_749).map(|i| i * 32_749).chain(EDGES.map(f32::to_bits));
    for x in middles.chain(tiny).chain(some).chain([0x7f80_0001, 0xff80_0001, 0x477f_efff, 0x477f_f000]) {
        let value = f32::from_bits(x);
        let (h, b) = (half::f16::from_f32(value), half::bf16::from_f32(value));
        let bits = |code: &crate::lang::Kernel| evaluate(code, machine, &[x]);
        if value.is_nan() {
            assert!(half::f16::from_bits(bits(&to_f16) as u16).is_nan(), "{x:x}");
            assert!(half::bf16::from_bits(bits(&to_bf16) as u16).is_nan(), "{x:x}");
        } else {
            assert_eq!((bits(&to_f16), bits(&to_bf16)), (h.to_bits().into(), b.to_bits().into()), "{x:x}");
        }
        assert!(same(f32::from_bits(bits(&via_f16)), h.to_f32()), "{x:x}");
        assert!(same(f32::from_bits(bits(&via_bf16)), b.to_f32()), "{x:x}");
    }
}
