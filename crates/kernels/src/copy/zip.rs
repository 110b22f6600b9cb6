//! Tiles of small elements: repeatedly interleaving row i with row i + N/2 transposes after log2 N rounds. 128-bit
//! registers do, and both architectures have the instruction in their baseline.

use super::Turn;

#[derive(Clone, Copy)]
pub(super) struct Words;
#[derive(Clone, Copy)]
pub(super) struct Bytes;

macro_rules! turn {
    ($name:ident, $side:literal, $zip:ident) => {
        impl Turn for $name {
            const SIDE: usize = $side;
            #[inline(always)]
            unsafe fn turn(self, src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
                let mut rows = [EMPTY; $side];
                for (r, row) in rows.iter_mut().enumerate() {
                    // SAFETY: a row of the caller's tile is 16 bytes.
                    *row = unsafe { src.offset(r as isize * src_stride).cast::<Vec16>().read_unaligned() };
                }
                let mut span = $side;
                while span > 1 {
                    let before = rows;
                    for i in 0..$side / 2 {
                        (rows[2 * i], rows[2 * i + 1]) = $zip(before[i], before[i + $side / 2]);
                    }
                    span /= 2;
                }
                for (c, column) in rows.into_iter().enumerate() {
                    // SAFETY: likewise.
                    unsafe { dst.offset(c as isize * dst_stride).cast::<Vec16>().write_unaligned(column) };
                }
            }
        }
    };
}
turn!(Words, 8, zip16);
turn!(Bytes, 16, zip8);

#[cfg(target_arch = "x86_64")]
use x86::*;
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    pub(super) type Vec16 = __m128i;
    // SAFETY: all bits of the register are plain data.
    pub(super) const EMPTY: Vec16 = unsafe { std::mem::transmute([0u8; 16]) };
    #[inline(always)]
    pub(super) fn zip16(a: Vec16, b: Vec16) -> (Vec16, Vec16) {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)) }
    }
    #[inline(always)]
    pub(super) fn zip8(a: Vec16, b: Vec16) -> (Vec16, Vec16) {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { (_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
use plain::*;
#[cfg(not(target_arch = "x86_64"))]
mod plain {
    pub(super) type Vec16 = [u8; 16];
    pub(super) const EMPTY: Vec16 = [0; 16];
    /// The compiler makes ZIP1 and ZIP2 of this on aarch64.
    #[inline(always)]
    fn zip<const E: usize>(a: Vec16, b: Vec16) -> (Vec16, Vec16) {
        let pick = |base: usize, i: usize| {
            let element = base + i / (2 * E);
            let from = if i / E % 2 == 0 { &a } else { &b };
            from[element * E + i % E]
        };
        (std::array::from_fn(|i| pick(0, i)), std::array::from_fn(|i| pick(8 / E, i)))
    }
    #[inline(always)]
    pub(super) fn zip16(a: Vec16, b: Vec16) -> (Vec16, Vec16) {
        zip::<2>(a, b)
    }
    #[inline(always)]
    pub(super) fn zip8(a: Vec16, b: Vec16) -> (Vec16, Vec16) {
        zip::<1>(a, b)
    }
}
