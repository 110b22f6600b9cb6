//! Numbers in few bits, rows rounded to 8 bits, and products of these, element by element.

use super::element::{Call, epilogue};
use super::site::{Site, word};
use super::view::View;
use schwann_codegen::lang::{self, Expr, Ty};
use schwann_core::Result;
use schwann_core::op::low_bit::LONGEST_SUM;
use schwann_core::op::{Code, LowBit, LowBitMatMul};

/// Code number `k` of a row of codes.
fn code(s: &mut Site<'_>, code: Code, codes: &View, row: &[Expr], k: &Expr) -> Result<Expr> {
    let each = word(code.in_a_byte())?;
    let at: Vec<Expr> = row.iter().cloned().chain([k / each]).collect();
    let byte = s.load(codes, &at)?.to(Ty::U32);
    let byte = s.maker.name("byte", byte);
    let place = s.maker.name("place", k.binary(lang::Binary::Rem, each));
    let value = match code {
        Code::Bits8 => byte,
        Code::Bits4 => byte.shr(place * 4u32).and(15u32),
        Code::Ternary4 => byte.shr(place * 2u32).and(3u32),
        Code::Ternary5 => {
            let power = |n: u32| Expr::from(3u32.pow(n));
            let by = (1..4).fold(power(4), |other, n| place.eq(n).select(power(n), other));
            let by = s.maker.name("by", place.eq(0u32).select(1u32, by));
            (byte / by).binary(lang::Binary::Rem, 3u32)
        }
    };
    Ok(s.maker.name("code", value))
}

/// The scale, and the offset if there is one, of block number `block` of a row.
fn scale(s: &mut Site<'_>, parts: &[View], row: &[Expr], block: Expr) -> Result<(Expr, Option<Expr>)> {
    let at: Vec<Expr> = row.iter().cloned().chain([block]).collect();
    let mut load = |view: &View| {
        let dims: Vec<_> = parts[0].dims[..row.len()].iter().chain(view.dims.last()).cloned().collect();
        s.load(&view.stretched(&dims), &at)
    };
    Ok((load(&parts[1])?, parts.get(2).map(load).transpose()?))
}

/// Numbers of a block; there are never more than in a row.
fn block_of(format: &LowBit) -> usize {
    format.block.min(format.len.max(1))
}

/// Number `k` of a row of a low-bit matrix, whose parts are codes, scales and offsets.
pub(super) fn number(s: &mut Site<'_>, format: &LowBit, parts: &[View], row: &[Expr], k: &Expr) -> Result<Expr> {
    let c = code(s, format.code, &parts[0], row, k)?.to(Ty::F32);
    let (scale, offset) = scale(s, parts, row, k / word(block_of(format))?)?;
    Ok(match offset {
        None => (c - f32::from(format.code.centre())) * scale,
        // Two roundings: the product is stored first, since a compiler may make one of both.
        Some(offset) => {
            let product = s.maker.variable("product", c * scale);
            s.maker.get(product) + offset
        }
    })
}

/// How a row is rounded: the distance of neighbours, and what to multiply with before rounding.
struct Rounding {
    step: Expr,
    each: Expr,
}

impl Rounding {
    fn of(s: &mut Site<'_>, x: &View, row: &[Expr]) -> Result<Rounding> {
        let most = s.maker.variable("most", 0u32);
        let length = s.size(&x.dims[row.len()])?;
        s.counted("i", 0u32, length, |s, i| {
            let at: Vec<Expr> = row.iter().cloned().chain([i]).collect();
            // Without their sign, floats have the order of their bits, and those of infinity and NaN are the largest.
            let size = s.load(x, &at)?.bits(Ty::U32).and(0x7fff_ffffu32);
            let next = s.maker.get(most).max(size);
            s.maker.set(most, next);
            Ok(())
        })?;
        let most = s.maker.get(most);
        let most = s.maker.name("most", most);
        let finite = s.maker.name("finite", most.lt(0x7f80_0000u32));
        let step = s.maker.name("step", most.bits(Ty::F32) / 127.0f32);
        let each = s.maker.name("each", Expr::from(1.0f32) / &step);
        // 1 over the step is infinite below 2⁻¹²⁸.
        let counts = s.maker.name("counts", step.bits(Ty::U32).lt(0x0020_0001u32).select(false, true));
        let step = finite.select(counts.select(step, 0.0f32), Expr::from(0x7fc0_0000u32).bits(Ty::F32));
        let each = finite.and(counts).select(each, 0.0f32);
        Ok(Rounding { step: s.maker.name("step", step), each: s.maker.name("each", each) })
    }

    /// Element `k` of the row as a multiple of the step.
    fn whole(&self, s: &mut Site<'_>, x: &View, row: &[Expr], k: &Expr) -> Result<Expr> {
        let at: Vec<Expr> = row.iter().cloned().chain([k.clone()]).collect();
        let value = s.load(x, &at)?;
        let none = self.each.eq(0.0f32);
        let multiple = (value * &self.each).unary(lang::Unary::Round).max(-127.0f32).min(127.0f32);
        Ok(s.maker.name("q", none.select(0.0f32, multiple)))
    }
}

pub(super) fn round_rows(s: &mut Site<'_>, x: &View, at: &[Expr]) -> Result<Expr> {
    let (k, row) = (&at[at.len() - 1], &at[..at.len() - 1]);
    let rounding = Rounding::of(s, x, row)?;
    Ok(rounding.whole(s, x, row, k)? * rounding.step)
}

pub(super) fn matmul(s: &mut Site<'_>, call: &Call<'_>, product: &LowBitMatMul, at: &[Expr]) -> Result<Expr> {
    let (x, parts) = (&call.inputs[0], &call.inputs[1..product.operands()]);
    let (row, column) = (&at[..at.len() - 1], &at[at.len() - 1..]);
    let sum = match product.rounded {
        true => integer_sum(s, &product.weights, x, parts, row, column)?,
        false => {
            let sum = s.maker.variable("sum", 0.0f32);
            s.counted("k", 0u32, word(product.weights.len)?, |s, k| {
                let w = number(s, &product.weights, parts, column, &k)?;
                let at: Vec<Expr> = row.iter().cloned().chain([k]).collect();
                let next = s.load(x, &at)?.fma(w, s.maker.get(sum));
                s.maker.set(sum, next);
                Ok(())
            })?;
            s.maker.get(sum)
        }
    };
    match &product.then {
        None => Ok(sum),
        Some(map) => epilogue(s, call, product.operands(), map, product.dtype, sum, at),
    }
}

/// The sum in integers of a rounded row and a row of codes, block by block, times the row's step.
fn integer_sum(
    s: &mut Site<'_>,
    format: &LowBit,
    x: &View,
    parts: &[View],
    row: &[Expr],
    column: &[Expr],
) -> Result<Expr> {
    let rounding = Rounding::of(s, x, row)?;
    let sum = s.maker.variable("sum", 0.0f32);
    // A block that is too long for 32 bits is cut; pieces of a row are numbered through.
    let (len, block) = (format.len, block_of(format));
    let in_a_block = block.div_ceil(LONGEST_SUM);
    let pieces = format.blocks() * in_a_block;
    s.counted("piece", 0u32, word(pieces)?, |s, piece| {
        let number = s.maker.name("block", &piece / word(in_a_block)?);
        let first = &number * word(block)?;
        let first = first + piece.binary(lang::Binary::Rem, word(in_a_block)?) * word(LONGEST_SUM)?;
        let first = s.maker.name("first", first);
        let end = (&number + 1u32) * word(block)?;
        let end = end.min(&first + word(LONGEST_SUM)?).min(word(len)?);
        let (codes, all) = (s.maker.variable("codes", 0i32), s.maker.variable("all", 0i32));
        s.counted("k", first, end, |s, k| {
            let q = rounding.whole(s, x, row, &k)?.to(Ty::I32);
            let q = s.maker.name("q", q);
            let c = code(s, format.code, &parts[0], column, &k)?.to(Ty::I32);
            let (next, total) = (s.maker.get(codes) + c * &q, s.maker.get(all) + q);
            s.maker.set(codes, next);
            s.maker.set(all, total);
            Ok(())
        })?;
        let (scale, offset) = scale(s, parts, column, number)?;
        let (codes, all, before) = (s.maker.get(codes), s.maker.get(all), s.maker.get(sum));
        let next = match offset {
            None => (codes - all * i32::from(format.code.centre())).to(Ty::F32).fma(scale, before),
            Some(offset) => codes.to(Ty::F32).fma(scale, all.to(Ty::F32).fma(offset, before)),
        };
        s.maker.set(sum, next);
        Ok(())
    })?;
    Ok(s.maker.get(sum) * rounding.step)
}
