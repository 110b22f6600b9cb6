//! Cases of conversions: every type to every other, and to bytes with a scale and back.

use super::random::SPECIAL;
use super::{List, Tolerance};
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// Values of `dtype` whose conversion is not obvious: ends of ranges, ties, NaN.
fn telling(dtype: DType) -> Result<Tensor> {
    let floats: Vec<f32> = SPECIAL
        .into_iter()
        .chain([0.999, -0.999, 126.5, 127.5, 128.0, -128.0, -128.9, -129.0, 254.9, 255.0, 256.0, 300.7, -0.4])
        .chain([2_147_483_500.0, 2_147_483_600.0, -2_147_483_600.0, 2_147_483_648.0, 65_504.0, 65_520.0, 65_536.0])
        .chain([1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 6e-8, 3e-8, 2e-8])
        .collect();
    match dtype {
        DType::F32 => Tensor::new(&[floats.len()], &floats),
        DType::F16 | DType::Bf16 => {
            let wide: Vec<f64> = floats.iter().map(|&v| v.into()).collect();
            Tensor::from_f64(dtype, &[wide.len()], &wide)
        }
        DType::I8 => Tensor::new(&[256], &(-128..=127).collect::<Vec<i8>>()),
        DType::U8 => Tensor::new(&[256], &(0..=255).collect::<Vec<u8>>()),
        DType::I32 => {
            let values =
                [0, 1, -1, 127, 128, 255, 256, -128, -129, 1000, -1000, 16_777_217, 33_554_435, i32::MAX, i32::MIN];
            Tensor::new(&[values.len()], &values)
        }
        DType::Bool => Tensor::from_bools(&[3], &[true, false, true]),
    }
}

pub(super) fn cast(list: &mut List<'_>) {
    for from in DType::ALL {
        for to in DType::ALL {
            list.add("cast", format!("{from}-to-{to}"), Tolerance::EXACT, |m| {
                let x = m.given(telling(from)?)?;
                let y = m.cast(x, to)?;
                m.result(y)
            });
        }
    }
    list.add("cast", "f32-to-f16-and-back/3x0", Tolerance::EXACT, |m| {
        let x = m.uniform(&[3, 0])?;
        let half = m.cast(x, DType::F16)?;
        let y = m.cast(half, DType::F32)?;
        m.result(y)
    });
}

pub(super) fn quantize(list: &mut List<'_>) {
    let ways: [(&str, &[usize], &[usize]); 5] = [
        ("per-tensor", &[], &[]),
        ("per-row", &[5, 1], &[5, 1]),
        ("per-column", &[17], &[17]),
        ("scale-per-column", &[1, 17], &[]),
        ("zero-point-per-row", &[1], &[5, 1]),
    ];
    for dtype in [DType::I8, DType::U8] {
        let (low, high) = if dtype == DType::I8 { (-20, 20) } else { (100, 150) };
        for (what, scales, zeros) in ways {
            list.add("quantize", format!("{dtype}/{what}"), Tolerance::EXACT, |m| {
                let x = m.random.floats(&[5, 17], -3.0, 3.0);
                let (scale, zero) = (m.random.floats(scales, 0.01, 0.05), m.random.ints(zeros, low, high));
                let (x, scale, zero) = (m.given(x)?, m.trained(scale)?, m.trained(zero)?);
                let y = m.quantize(x, scale, zero, dtype)?;
                m.result(y)
            });
            list.add("dequantize", format!("{dtype}/{what}"), Tolerance::ROUNDING, |m| {
                let q = m.random.any(dtype, &[5, 17]);
                let (scale, zero) = (m.random.floats(scales, 0.01, 0.05), m.random.ints(zeros, low, high));
                let (q, scale, zero) = (m.given(q)?, m.trained(scale)?, m.trained(zero)?);
                let y = m.dequantize(q, scale, zero)?;
                m.result(y)
            });
        }
        list.add("quantize", format!("{dtype}/special"), Tolerance::EXACT, |m| {
            let x = m.given(Tensor::new(&[SPECIAL.len()], &SPECIAL)?)?;
            let (scale, zero) = (m.scalar(0.5)?, m.constant(Tensor::scalar(3i32))?);
            let y = m.quantize(x, scale, zero, dtype)?;
            m.result(y)
        });
        list.add("quantize", format!("{dtype}/ties-and-limits"), Tolerance::EXACT, |m| {
            let values: Vec<f32> =
                (-16..=16).map(|i| i as f32 * 0.5).chain([126.5, 127.5, 255.5, -128.5, 1e9]).collect();
            let x = m.given(Tensor::new(&[values.len()], &values)?)?;
            let (scale, zero) = (m.scalar(1.0)?, m.constant(Tensor::scalar(0i32))?);
            let y = m.quantize(x, scale, zero, dtype)?;
            m.result(y)
        });
        list.add("quantize", format!("{dtype}/there-and-back"), Tolerance::ROUNDING, |m| {
            let x = m.random.floats(&[65], -1.0, 1.0);
            let x = m.given(x)?;
            let (scale, zero) = (m.scalar(1.0 / 100.0)?, m.constant(Tensor::scalar(120i32))?);
            let q = m.quantize(x, scale, zero, dtype)?;
            let y = m.dequantize(q, scale, zero)?;
            m.result(y)
        });
    }
    list.add("quantize", "i8/scale-0-and-empty", Tolerance::EXACT, |m| {
        let x = m.given(Tensor::new(&[3], &[0.0f32, 1.0, -1.0])?)?;
        let empty = m.uniform(&[0, 3])?;
        let y = m.quantize_with(x, 0.0)?;
        let z = m.quantize_with(empty, 1.0)?;
        m.result(y)?;
        m.result(z)
    });
    // Zero points beyond the type's range: quantizing saturates, dequantizing subtracts them as they are.
    list.add("dequantize", "u8/zero-point-beyond-the-type", Tolerance::ROUNDING, |m| {
        let q = m.given(telling(DType::U8)?)?;
        let (scale, zero) = (m.scalar(0.125)?, m.constant(Tensor::scalar(-70_000i32))?);
        let y = m.dequantize(q, scale, zero)?;
        let x = m.given(Tensor::new(&[4], &[0.0f32, 1.0, f32::NAN, -1e6])?)?;
        let q = m.quantize(x, scale, zero, DType::I8)?;
        m.result(y)?;
        m.result(q)
    });
}
