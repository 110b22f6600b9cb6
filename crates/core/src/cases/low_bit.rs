//! Cases of numbers in few bits: every packing, scales by row, block and matrix, and the products with them.

use super::random::{Random, SPECIAL};
use super::{List, Maker, Tolerance};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{GraphBuilder, Value};
use crate::op::{Binary, Code, LowBit, LowBitMatMul, Map, MapInstr, Op, Scan, Unary};
use crate::shape;
use crate::tensor::Tensor;

/// How the scales of a matrix lie.
#[derive(Clone, Copy)]
struct Scales {
    /// One row of scales for all rows of the matrix.
    shared: bool,
    dtype: DType,
    offsets: bool,
}

const PLAIN: Scales = Scales { shared: false, dtype: DType::F32, offsets: false };

/// Random rows of codes.
fn codes(random: &mut Random, code: Code, rows: usize, len: usize) -> Result<Tensor> {
    let bytes = code.row_bytes(len);
    let mut packed = vec![0u8; rows * bytes];
    for row in packed.chunks_mut(bytes.max(1)) {
        (0..len).for_each(|at| code.put(row, at, random.int(0, i32::from(code.levels())) as u8));
    }
    Tensor::new(&[rows, bytes], &packed)
}

/// A random matrix as weights: its format, and codes, scales and offsets.
fn matrix(
    m: &mut Maker,
    code: Code,
    [rows, len]: [usize; 2],
    block: usize,
    how: Scales,
) -> Result<(LowBit, Vec<Value>)> {
    let format = LowBit { code, len, block, offsets: how.offsets };
    let data = codes(&mut m.random, code, rows, len)?;
    let mut parts = vec![m.trained(data)?];
    let size = 2.0 / f64::from(code.levels()) / (len as f64).sqrt();
    let shape = [if how.shared { 1 } else { rows }, format.blocks()];
    let scales = m.random.floats_as(how.dtype, &shape, 0.5 * size, size);
    parts.push(m.trained(scales)?);
    if how.offsets {
        let offsets = m.random.floats_as(how.dtype, &shape, -size, 0.0);
        parts.push(m.trained(offsets)?);
    }
    Ok((format, parts))
}

fn numbers(m: &mut Maker, format: LowBit, parts: &[Value]) -> Result<Value> {
    m.builder.low_bit(format, parts[0], parts[1], parts.get(2).copied())
}

pub(super) fn numbers_and_rows(list: &mut List<'_>) {
    for code in Code::ALL {
        for (what, [rows, len], block, how) in [
            ("by-row", [5, 37], 37, PLAIN),
            ("of-one-scale", [3, 40], 40, Scales { shared: true, ..PLAIN }),
            ("blocks-of-16", [4, 70], 16, Scales { dtype: DType::F16, ..PLAIN }),
            ("blocks-of-32-with-offsets", [4, 96], 32, Scales { dtype: DType::Bf16, offsets: true, ..PLAIN }),
            ("by-row-with-offsets", [1, 9], 100, Scales { offsets: true, ..PLAIN }),
            ("empty", [0, 3], 3, PLAIN),
        ] {
            list.add("low_bit", format!("{code:?}/{what}").to_lowercase(), Tolerance::ROUNDING, |m| {
                let (format, parts) = matrix(m, code, [rows, len], block, how)?;
                let y = numbers(m, format, &parts)?;
                m.result(y)
            });
        }
        list.add("low_bit", format!("{code:?}/given").to_lowercase(), Tolerance::ROUNDING, |m| {
            let data = codes(&mut m.random, code, 6, 21)?;
            let data = Tensor::new(&[2, 3, code.row_bytes(21)], data.bytes())?;
            let codes = m.given(data)?;
            let scales = m.uniform(&[3, 3])?;
            let y = m.low_bit(LowBit { code, len: 21, block: 8, offsets: false }, codes, scales, None)?;
            m.result(y)
        });
    }
    for (name, shape) in [("5x33", &[5usize, 33] as &[usize]), ("2x3x8", &[2, 3, 8]), ("1", &[1]), ("4x0", &[4, 0])] {
        list.add("round_rows", name, Tolerance::ROUNDING, |m| {
            let x = m.uniform(shape)?;
            let y = m.round_rows(x)?;
            m.result(y)
        });
    }
    list.add("round_rows", "ties-zeros-and-special", Tolerance::ROUNDING, |m| {
        let halves: Vec<f32> = (0..SPECIAL.len()).map(|i| i as f32 + 0.5 - 127.0).collect();
        let tiny: Vec<f32> = (0..SPECIAL.len()).map(|i| i as f32 * 1e-42).collect();
        let rows = [&SPECIAL[..], &halves, &tiny, &vec![0.0; SPECIAL.len()]].concat();
        let x = m.given(Tensor::new(&[4, SPECIAL.len()], &rows)?)?;
        let y = m.round_rows(x)?;
        m.result(y)
    });
}

/// x · wᵀ as a pass finds it, with `then` what follows.
fn linear(
    m: &mut Maker,
    x: Value,
    rounded: bool,
    weights: (LowBit, Vec<Value>),
    then: impl FnOnce(&mut Maker, Value) -> Result<Value>,
) -> Result<()> {
    let w = numbers(m, weights.0, &weights.1)?;
    let x = if rounded { m.round_rows(x)? } else { x };
    let y = m.matmul_t(x, w, false, true)?;
    let y = then(m, y)?;
    m.result(y)
}

pub(super) fn products(list: &mut List<'_>) {
    for code in Code::ALL {
        for rounded in [false, true] {
            let rows_are = if rounded { "rounded" } else { "f32" };
            for (what, [m_rows, n, k], block, how) in [
                ("1x33x40", [1, 33, 40], 40, PLAIN),
                ("3x17x100", [3, 17, 100], 32, Scales { dtype: DType::F16, ..PLAIN }),
                ("9x64x64", [9, 64, 64], 16, Scales { offsets: true, ..PLAIN }),
                ("33x5x7", [33, 5, 7], 7, Scales { shared: true, ..PLAIN }),
                ("2x130x515", [2, 130, 515], 128, Scales { dtype: DType::Bf16, offsets: true, shared: true }),
            ] {
                let name = format!("{code:?}/{rows_are}/{what}").to_lowercase();
                let case = list.add("low_bit_product", &name, Tolerance::sum_of(k), |m| {
                    let x = m.uniform(&[m_rows, k])?;
                    let weights = matrix(m, code, [n, k], block, how)?;
                    linear(m, x, rounded, weights, |_, y| Ok(y))
                });
                // Rounding has steps.
                if !rounded && k < 10 {
                    case.smooth();
                }
            }
            list.add(
                "low_bit_product",
                format!("{code:?}/{rows_are}/bias-and-gelu").to_lowercase(),
                Tolerance::CHAIN,
                |m| {
                    let x = m.uniform_as(shape!["B", "T", 24], &[2, 5, 24])?;
                    let weights = matrix(m, code, [18, 24], 24, PLAIN)?;
                    let bias = m.trained_uniform(&[18])?;
                    linear(m, x, rounded, weights, |m, y| {
                        let y = m.add(y, bias)?;
                        m.gelu(y)
                    })
                },
            );
            // A loop is given the weights from outside. A step of rounding more or less moves the result by some 1/127.
            let tolerance = if rounded { Tolerance { abs: 2e-2, rel: 0.0 } } else { Tolerance::NETWORK };
            list.add("low_bit_product", format!("{code:?}/{rows_are}/loop").to_lowercase(), tolerance, |m| {
                looped(m, code, rounded)
            });
            list.add("low_bit_product", format!("{code:?}/{rows_are}/direct").to_lowercase(), Tolerance::CHAIN, |m| {
                direct(m, code, rounded)
            });
        }
    }
    list.add("low_bit_product", "three-heads", Tolerance::sum_of(48), |m| {
        let x = m.uniform(&[4, 48])?;
        for how in [PLAIN, Scales { shared: true, ..PLAIN }, PLAIN] {
            let weights = matrix(m, Code::Bits4, [10, 48], 16, how)?;
            linear(m, x, false, weights, |_, y| Ok(y))?;
        }
        Ok(())
    });
    // Rows without elements give zeros; no rows and no columns give nothing. A block may be longer than anything.
    for rounded in [false, true] {
        for (what, [rows, n, k], block) in [
            ("no-terms", [3, 5, 0], 4),
            ("no-rows", [0, 5, 7], 7),
            ("no-columns", [3, 0, 7], 7),
            ("endless-block", [3, 5, 7], usize::MAX),
        ] {
            let rows_are = if rounded { "rounded" } else { "f32" };
            list.add("low_bit_product", format!("{what}/{rows_are}"), Tolerance::sum_of(7), |m| {
                let x = m.uniform(&[rows, k])?;
                let (weights, parts) = matrix(m, Code::Bits8, [n, k], block, PLAIN)?;
                let product = LowBitMatMul { weights, rounded, then: None, dtype: DType::F32 };
                let inputs: Vec<Value> = std::iter::once(x).chain(parts).collect();
                let y = m.push(Op::LowBitMatMul(Box::new(product)), &inputs)?;
                m.result(y)
            });
        }
    }
    list.add("low_bit_product", "transposed", Tolerance::sum_of(20), |m| {
        let x = m.uniform(&[4, 20])?;
        let (format, parts) = matrix(m, Code::Bits4, [10, 20], 20, PLAIN)?;
        let w = numbers(m, format, &parts)?;
        let w = m.transpose(w, &[1, 0])?;
        let y = m.matmul(x, w)?;
        m.result(y)
    });
    list.add("low_bit_product", "infinity-and-nan", Tolerance::sum_of(6), |m| {
        let rows = [1.0, f32::INFINITY, 0.5, 2.0, 0.0, 1.0, 1.0, f32::NAN, 0.5, 2.0, 0.0, 1.0];
        let x = m.given(Tensor::new(&[2, 6], &rows)?)?;
        let weights = matrix(m, Code::Bits8, [3, 6], 6, PLAIN)?;
        linear(m, x, true, weights, |_, y| Ok(y))
    });
}

/// h′ = tanh(x·wᵀ + h·uᵀ) with low-bit w and u.
fn looped(m: &mut Maker, code: Code, rounded: bool) -> Result<()> {
    let (width, units) = (12, 20);
    let mut b = GraphBuilder::new();
    let h = b.input("h", DType::F32, shape!["B", units])?;
    let x = b.input("x", DType::F32, shape!["B", width])?;
    let w = b.input("w", DType::F32, [units, width])?;
    let u = b.input("u", DType::F32, [units, units])?;
    let round = |b: &mut GraphBuilder, v: Value| if rounded { b.round_rows(v) } else { Ok(v) };
    let (left, right) = (round(&mut b, x)?, round(&mut b, h)?);
    let (p, q) = (b.matmul_t(left, w, false, true)?, b.matmul_t(right, u, false, true)?);
    let sum = b.add(p, q)?;
    let next = b.tanh(sum)?;
    b.output("h_next", next)?;
    b.output("y", next)?;
    let scan = Scan { body: b.build()?.into(), states: 1, sequences: 1, axis: 1, reverse: false };
    let (h, x) =
        (m.uniform_as(shape!["B", units], &[3, units])?, m.uniform_as(shape!["B", "T", width], &[3, 6, width])?);
    let w = matrix(m, code, [units, width], width, PLAIN)?;
    let u = matrix(m, code, [units, units], 8, Scales { dtype: DType::F16, offsets: true, ..PLAIN })?;
    let (w, u) = (numbers(m, w.0, &w.1)?, numbers(m, u.0, &u.1)?);
    for value in m.push_scan(scan, &[h, x, w, u])? {
        m.result(value)?;
    }
    Ok(())
}

/// The operation that passes make, with a program and without, of data that comes with the run too.
fn direct(m: &mut Maker, code: Code, rounded: bool) -> Result<()> {
    let x = m.uniform(&[3, 22])?;
    let (weights, parts) = matrix(m, code, [14, 22], 10, Scales { offsets: true, ..PLAIN })?;
    let product =
        |then: Option<Map>| Op::LowBitMatMul(Box::new(LowBitMatMul { weights, rounded, then, dtype: DType::F32 }));
    let inputs: Vec<Value> = std::iter::once(x).chain(parts).collect();
    let y = m.push(product(None), &inputs)?;
    m.result(y)?;
    let more = m.uniform(&[14])?;
    let code = vec![
        MapInstr::Input(0),
        MapInstr::Input(1),
        MapInstr::Binary(Binary::Mul, 0, 1),
        MapInstr::Unary(Unary::Tanh, 2),
    ];
    let y = m.push(product(Some(Map { code })), &[inputs, vec![more]].concat())?;
    m.result(y)
}
