//! Conversions of 16-bit floats by integer arithmetic: they need no support by the device, and no compiler removes the
//! rounding.

use super::{INFINITY, SIGN, bits, is_nan, magnitude};
use crate::lang::{Expr, Maker, Ty};

/// The smallest normal `f16`, 2⁻¹⁴, as `f32`.
const SMALLEST_F16: u32 = 0x3880_0000;
/// The difference of the two exponents' offsets, 112, where an `f32` has its exponent.
const OFFSET_F16: u32 = 112 << 23;

/// The lowest 16 bits, which are an `f16`, as `f32`. The other bits do not matter.
pub fn from_f16_bits(m: &mut Maker, half: &Expr) -> Expr {
    let half = m.name("half", half);
    let size = m.name("size", half.and(0x7fffu32));
    let normal = size.shl(13u32) + OFFSET_F16;
    let subnormal = bits(&(size.to(Ty::F32) * 2f32.powi(-24)));
    // Infinity and NaN: all bits of the exponent.
    let end = size.shl(13u32).or(INFINITY);
    let y = size.lt(0x0400u32).select(subnormal, size.lt(0x7c00u32).select(normal, end));
    y.or(half.and(0x8000u32).shl(16u32)).bits(Ty::F32)
}

/// The nearest `f16`, ties to even, as 16 bits; infinity from 65520 on.
pub fn to_f16_bits(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let size = m.name("size", magnitude(&x));
    // Rounds to nearest; at a tie, the last bit that stays decides.
    let normal = (&size + 0xfffu32 + size.shr(13u32).and(1u32) - OFFSET_F16).shr(13u32).min(0x7c00u32);
    // In units of 2⁻²⁴. Beyond 25 all of it is shifted out.
    let whole = m.name("whole", size.and(0x007f_ffffu32).or(0x0080_0000u32));
    let shift = m.name("shift", Expr::from(126u32) - size.shr(23u32).max(101u32).min(112u32));
    let middle = Expr::from(1u32).shl(&shift - 1u32) - 1u32;
    let subnormal = (&whole + middle + whole.shr(&shift).and(1u32)).shr(&shift);
    let nan = size.shr(13u32).and(0x3ffu32).or(0x7e00u32);
    let y = size.lt(SMALLEST_F16).select(subnormal, normal);
    is_nan(&x).select(nan, y).or(bits(&x).shr(16u32).and(0x8000u32))
}

/// The nearest `f16`, as `f32`.
pub fn round_f16(m: &mut Maker, x: &Expr) -> Expr {
    let half = to_f16_bits(m, x);
    from_f16_bits(m, &half)
}

/// The lowest 16 bits, which are a `bf16`, as `f32`. The other bits do not matter.
pub fn from_bf16_bits(_: &mut Maker, half: &Expr) -> Expr {
    half.shl(16u32).bits(Ty::F32)
}

/// The nearest `bf16`, ties to even, as `f32`.
pub fn round_bf16(m: &mut Maker, x: &Expr) -> Expr {
    let x = m.name("x", x);
    let word = bits(&x);
    let y = (&word + 0x7fffu32 + word.shr(16u32).and(1u32)).and(0xffff_0000u32);
    // A NaN keeps its sign but gets standard bits: all of its other set bits might be among those that are cut off.
    is_nan(&x).select(word.and(SIGN).or(super::NAN), y).bits(Ty::F32)
}

/// The nearest `bf16`, ties to even, as 16 bits.
pub fn to_bf16_bits(m: &mut Maker, x: &Expr) -> Expr {
    bits(&round_bf16(m, x)).shr(16u32)
}
