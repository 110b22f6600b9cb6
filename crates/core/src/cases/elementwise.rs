//! Cases of operations on single elements: every operation, type and way of broadcasting.

use super::random::SPECIAL;
use super::{List, Maker, Tolerance, sizes};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Value;
use crate::op::{Binary, Compare, Op, Unary};
use crate::tensor::Tensor;

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
/// Around the widths of vector registers, and a few axes.
const SHAPES: [&[usize]; 10] = [&[1], &[3], &[17], &[33], &[65], &[127], &[3, 5], &[2, 3, 7], &[], &[16]];

/// A range in which an operation is defined and not constant.
fn range(op: Unary) -> (f64, f64) {
    match op {
        Unary::Sqrt | Unary::Log => (0.2, 4.0),
        Unary::Recip => (0.3, 3.0),
        _ => (-4.0, 4.0),
    }
}

pub(super) fn unary(list: &mut List<'_>) {
    let floats: Vec<Unary> = Unary::ALL.into_iter().filter(|u| *u != Unary::Not).collect();
    for (i, &op) in floats.iter().enumerate() {
        let base = match op {
            // 1 + erf cancels for negative x, in every f32 form of it.
            Unary::Gelu => Tolerance { abs: 1e-6, ..Tolerance::FUNCTION },
            _ if op.is_transcendental() => Tolerance::FUNCTION,
            _ => Tolerance::ROUNDING,
        };
        let name = op.name();
        for dtype in FLOATS {
            let shape = SHAPES[(i + dtype.bits() / 8) % SHAPES.len()];
            let case = list.add("unary", format!("{name}/{dtype}/{}", sizes(shape)), base.stored_as(dtype), |m| {
                let (low, high) = range(op);
                let data = m.random.floats_as(dtype, shape, low, high);
                let x = m.given(data)?;
                let y = m.push(Op::Unary(op), &[x])?;
                m.result(y)
            });
            if dtype == DType::F32 {
                case.smooth();
            }
        }
        list.add("unary", format!("{name}/f32/special"), base, |m| {
            // Libraries differ in how they reduce huge angles, so these are not compared.
            let huge = matches!(op, Unary::Sin | Unary::Cos);
            let values: Vec<f32> = SPECIAL.into_iter().filter(|v| !huge || !v.is_finite() || v.abs() < 1e4).collect();
            let x = m.given(Tensor::new(&[values.len()], &values)?)?;
            let y = m.push(Op::Unary(op), &[x])?;
            m.result(y)
        });
        if matches!(op, Unary::Exp | Unary::Tanh | Unary::Sigmoid | Unary::Softplus | Unary::Gelu | Unary::Silu) {
            // A wide range in both directions, up to saturation, in steps that reach every branch of an approximation.
            list.add("unary", format!("{name}/f32/sweep"), base, |m| {
                let values: Vec<f32> = (-340..=340).map(|i| i as f32 * 0.25).collect();
                let x = m.given(Tensor::new(&[values.len()], &values)?)?;
                let y = m.push(Op::Unary(op), &[x])?;
                m.result(y)
            });
        }
    }
    for op in [Unary::Neg, Unary::Abs, Unary::Sign, Unary::Square, Unary::Relu] {
        list.add("unary", format!("{}/i32", op.name()), Tolerance::EXACT, |m| {
            let values = [0, 1, -1, 7, -7, 46_341, -65_536, i32::MAX, i32::MIN, i32::MIN + 1, 123_456_789];
            let x = m.given(Tensor::new(&[values.len()], &values)?)?;
            let y = m.push(Op::Unary(op), &[x])?;
            m.result(y)
        });
    }
    list.add("unary", "not/bool/33", Tolerance::EXACT, |m| {
        let data = m.random.bools(&[33]);
        let x = m.given(data)?;
        let y = m.not(x)?;
        m.result(y)
    });
    for (op, shape) in [(Unary::Tanh, &[0usize] as &[usize]), (Unary::Neg, &[3, 0, 2]), (Unary::Exp, &[0, 5])] {
        list.add("unary", format!("{}/f32/{}", op.name(), sizes(shape)), Tolerance::FUNCTION, |m| {
            let x = m.uniform(shape)?;
            let y = m.push(Op::Unary(op), &[x])?;
            m.result(y)
        });
    }
    list.add("unary", "log/f32/negative", Tolerance::FUNCTION, |m| {
        let data = m.random.floats(&[17], -2.0, 2.0);
        let x = m.given(data)?;
        let (y, z) = (m.log(x)?, m.sqrt(x)?);
        m.result(y)?;
        m.result(z)
    });
}

const FLOAT_BINARY: [Binary; 7] =
    [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max, Binary::Pow];

/// Every way in which two shapes stretch to one.
const STRETCHES: [(&str, &[usize], &[usize]); 13] = [
    ("scalar-left", &[], &[3, 17]),
    ("scalar-right", &[33], &[]),
    ("one-right", &[3, 17], &[1]),
    ("row-right", &[5, 17], &[17]),
    ("row-left", &[1, 33], &[3, 33]),
    ("column-right", &[7, 9], &[7, 1]),
    ("column-left", &[7, 1], &[7, 9]),
    ("middle", &[2, 5, 3], &[2, 1, 3]),
    ("first", &[1, 5, 3], &[4, 5, 3]),
    ("both", &[17, 1], &[1, 5]),
    ("both-apart", &[2, 1, 5, 1], &[3, 1, 4]),
    ("empty", &[0, 3], &[1, 3]),
    ("empty-by-one", &[4, 1], &[4, 0]),
];

fn base_tolerance(op: Binary) -> Tolerance {
    match op {
        // x^y = 2^(y·log₂ x) carries the logarithm's error times y.
        Binary::Pow => Tolerance { abs: 1e-37, rel: 2e-5 },
        Binary::Min | Binary::Max => Tolerance::EXACT,
        _ => Tolerance::ROUNDING,
    }
}

/// Operands that keep every operation smooth: positive, and none near another.
fn operand(m: &mut Maker, op: Binary, dtype: DType, shape: &[usize], right: bool) -> Result<Value> {
    let (low, high) = match op {
        Binary::Div | Binary::Pow => (0.4, 2.5),
        _ if right => (-1.9, 2.1),
        _ => (-2.0, 2.0),
    };
    let data = m.random.floats_as(dtype, shape, low, high);
    m.given(data)
}

pub(super) fn binary(list: &mut List<'_>) {
    for (i, op) in FLOAT_BINARY.into_iter().enumerate() {
        let name = op.name();
        for dtype in FLOATS {
            let shape = SHAPES[(2 * i + dtype.bits() / 8) % SHAPES.len()];
            let tolerance = match op {
                Binary::Min | Binary::Max => Tolerance::EXACT,
                _ => base_tolerance(op).stored_as(dtype),
            };
            let case = list.add("binary", format!("{name}/{dtype}/{}", sizes(shape)), tolerance, |m| {
                let (a, b) = (operand(m, op, dtype, shape, false)?, operand(m, op, dtype, shape, true)?);
                let y = m.push(Op::Binary(op), &[a, b])?;
                m.result(y)
            });
            if dtype == DType::F32 {
                case.smooth();
            }
        }
        list.add("binary", format!("{name}/f32/special"), base_tolerance(op), |m| {
            // Every pair, by a column against a row.
            let n = SPECIAL.len();
            let (a, b) = (m.given(Tensor::new(&[n, 1], &SPECIAL)?)?, m.given(Tensor::new(&[1, n], &SPECIAL)?)?);
            let y = m.push(Op::Binary(op), &[a, b])?;
            m.result(y)
        });
    }
    for op in [Binary::Sub, Binary::Div, Binary::Max] {
        for (what, left, right) in STRETCHES {
            let name = format!("{}/f32/stretch-{what}", op.name());
            let case = list.add("binary", name, base_tolerance(op), |m| {
                let (a, b) = (operand(m, op, DType::F32, left, false)?, operand(m, op, DType::F32, right, true)?);
                let y = m.push(Op::Binary(op), &[a, b])?;
                m.result(y)
            });
            if !what.starts_with("empty") {
                case.smooth();
            }
        }
    }
    for op in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max] {
        list.add("binary", format!("{}/i32/all-pairs", op.name()), Tolerance::EXACT, |m| {
            let values = [0, 1, -1, 2, -2, 7, -7, 65_536, -65_537, i32::MAX, i32::MIN];
            let n = values.len();
            let (a, b) = (m.given(Tensor::new(&[n, 1], &values)?)?, m.given(Tensor::new(&[n], &values)?)?);
            let y = m.push(Op::Binary(op), &[a, b])?;
            m.result(y)
        });
    }
    for op in [Binary::And, Binary::Or] {
        list.add("binary", format!("{}/bool/7x9", op.name()), Tolerance::EXACT, |m| {
            let (a, b) = (m.random.bools(&[7, 9]), m.random.bools(&[9]));
            let (a, b) = (m.given(a)?, m.given(b)?);
            let y = m.push(Op::Binary(op), &[a, b])?;
            m.result(y)
        });
    }
    list.add("binary", "mul/f32/itself", Tolerance::ROUNDING, |m| {
        let x = m.uniform(&[17])?;
        let y = m.mul(x, x)?;
        m.result(y)
    })
    .smooth();
    list.add("binary", "pow/f32/integer-exponents", base_tolerance(Binary::Pow), |m| {
        let base = m.random.floats(&[9, 1], -3.0, 3.0);
        let (a, b) = (m.given(base)?, m.constant(Tensor::new(&[7], &[-3.0f32, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0])?)?);
        let y = m.pow(a, b)?;
        m.result(y)
    });
}

pub(super) fn compare_and_select(list: &mut List<'_>) {
    for op in Compare::ALL {
        let name = op.name();
        list.add("compare", format!("{name}/f32/special"), Tolerance::EXACT, |m| {
            let n = SPECIAL.len();
            let (a, b) = (m.given(Tensor::new(&[n, 1], &SPECIAL)?)?, m.given(Tensor::new(&[n], &SPECIAL)?)?);
            let y = m.push(Op::Compare(op), &[a, b])?;
            m.result(y)
        });
        for dtype in [DType::F16, DType::Bf16, DType::I8, DType::U8, DType::I32, DType::Bool] {
            list.add("compare", format!("{name}/{dtype}/33x3"), Tolerance::EXACT, |m| {
                let (a, b) = (m.random.any(dtype, &[33, 1]), m.random.any(dtype, &[3]));
                let (a, b) = (m.given(a)?, m.given(b)?);
                let y = m.push(Op::Compare(op), &[a, b])?;
                m.result(y)
            });
        }
    }
    for dtype in DType::ALL {
        list.add("select", format!("{dtype}/17"), Tolerance::EXACT, |m| {
            let (c, a, b) = (m.random.bools(&[17]), m.random.any(dtype, &[17]), m.random.any(dtype, &[17]));
            let (c, a, b) = (m.given(c)?, m.given(a)?, m.given(b)?);
            let y = m.select(c, a, b)?;
            m.result(y)
        });
    }
    for (what, c, a, b) in [
        ("scalar-condition", &[] as &[usize], &[5usize, 3] as &[usize], &[5usize, 3] as &[usize]),
        ("column-condition", &[5, 1], &[5, 3], &[3]),
        ("all-three", &[2, 1, 1], &[1, 3, 1], &[1, 1, 4]),
        ("scalar-values", &[33], &[], &[]),
        ("empty", &[0], &[1], &[0]),
    ] {
        let case = list.add("select", format!("f32/stretch-{what}"), Tolerance::EXACT, |m| {
            let condition = m.random.bools(c);
            let (c, a, b) = (m.given(condition)?, m.uniform(a)?, m.uniform(b)?);
            let y = m.select(c, a, b)?;
            m.result(y)
        });
        if what != "empty" {
            case.smooth();
        }
    }
    list.add("select", "f32/keeps-nan-of-the-taken-side-only", Tolerance::EXACT, |m| {
        let n = SPECIAL.len();
        let x = m.given(Tensor::new(&[n], &SPECIAL)?)?;
        let zero = m.scalar(0.0)?;
        let numbers = m.eq(x, x)?;
        let y = m.select(numbers, x, zero)?;
        m.result(y)
    });
}
