//! What the elementwise operations do to one element, in `f64`.

use crate::dtype::DType;
use crate::op::{Binary, Compare, Map, MapInstr, Unary};

/// A unary operation of an `i32`; those that are not defined for integers give the float's result, truncated.
pub fn unary_i32(op: Unary, x: i32) -> i32 {
    match op {
        Unary::Neg => x.wrapping_neg(),
        Unary::Abs => x.wrapping_abs(),
        Unary::Sign => x.signum(),
        Unary::Square => x.wrapping_mul(x),
        Unary::Relu => x.max(0),
        _ => op.value(x.into()) as i32,
    }
}

/// A binary operation of floats (or, for `And` and `Or`, of truth values).
pub fn binary(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        // Rust's `min` and `max` drop a NaN; these operations keep it.
        Binary::Min | Binary::Max if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::Pow => a.powf(b),
        Binary::And => truth(a != 0.0 && b != 0.0),
        Binary::Or => truth(a != 0.0 || b != 0.0),
    }
}

/// A binary operation of `i32`, wrapping.
pub fn binary_i32(op: Binary, a: i32, b: i32) -> i32 {
    match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div if b == 0 => 0,
        Binary::Div => a.wrapping_div(b),
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::Pow | Binary::And | Binary::Or => binary(op, a.into(), b.into()) as i32,
    }
}

/// A comparison; with NaN only `Ne` holds.
pub fn compare(op: Compare, a: f64, b: f64) -> bool {
    match op {
        Compare::Eq => a == b,
        Compare::Ne => a != b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
    }
}

/// 1 or 0.
pub fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// A value of type `from` as one of type `to`. A float result is not rounded here.
pub fn cast(from: DType, to: DType, x: f64) -> f64 {
    // Float to integer truncates, saturates and takes NaN to 0, which is what Rust's `as` does.
    match to {
        DType::F32 | DType::F16 | DType::Bf16 => x,
        DType::Bool => truth(x != 0.0),
        DType::I32 => (x as i32).into(),
        DType::I8 if from.is_float() => (x as i8).into(),
        DType::U8 if from.is_float() => (x as u8).into(),
        DType::I8 => (x as i32 as i8).into(),
        DType::U8 => (x as i32 as u8).into(),
    }
}

/// The magnitude to which a backend's error in `value`, a function of `x`, is relative.
pub fn unary_scale(op: Unary, x: f64, value: f64) -> f64 {
    match op {
        // x times a factor, which a backend may round to 0 where it is small.
        Unary::Gelu => x.abs().max(value.abs()),
        _ => value.abs(),
    }
}

/// The magnitude to which a backend's error in `value`, computed from `a` and `b`, is relative.
pub fn binary_scale(op: Binary, a: f64, b: f64, value: f64) -> f64 {
    match op {
        // An operand may be a product that a backend does not round before the sum (a fused multiply-add). A twentieth,
        // since that rounding is finer than the error of a function, which `shake` assumes.
        Binary::Add | Binary::Sub => value.abs().max(0.05 * a.abs().max(b.abs())),
        _ => value.abs(),
    }
}

/// Evaluates a fused program for one element and gives its last value; `scratch` then holds all values. A missing input
/// reads as NaN. Results of instructions that are not exact go through `computed`, with the scale of their error.
pub fn map(
    program: &Map,
    scratch: &mut Vec<f64>,
    input: impl Fn(usize) -> Option<f64>,
    computed: impl Fn(f64, f64) -> f64,
) -> f64 {
    scratch.clear();
    for instr in &program.code {
        let at = |i: u16| scratch[usize::from(i)];
        let value = match *instr {
            MapInstr::Input(n) => input(usize::from(n)).unwrap_or(f64::NAN),
            MapInstr::Const(c) => c.0.into(),
            MapInstr::Unary(u, a) if u.is_exact() => u.value(at(a)),
            MapInstr::Unary(u, a) => {
                let value = u.value(at(a));
                computed(value, unary_scale(u, at(a), value))
            }
            MapInstr::Binary(b, x, y) if b.is_exact() => binary(b, at(x), at(y)),
            MapInstr::Binary(b, x, y) => {
                let value = binary(b, at(x), at(y));
                computed(value, binary_scale(b, at(x), at(y), value))
            }
            MapInstr::Compare(c, x, y) => truth(compare(c, at(x), at(y))),
            MapInstr::Select(c, x, y) => at(if at(c) != 0.0 { x } else { y }),
            MapInstr::Trunc(a) => at(a).trunc(),
        };
        scratch.push(value);
    }
    scratch.last().copied().unwrap_or(f64::NAN)
}
