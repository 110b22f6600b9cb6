//! bfloat16 times bfloat16 where the CPU multiplies pairs of them in one instruction.
//!
//! `vdpbf16ps` adds two products to each 32-bit lane, so one step takes a pair (k, k + 1): A's pair is broadcast as 32
//! bits, B is stored in pairs. It treats subnormal inputs as 0, as the other users of the instruction do.
#![expect(clippy::needless_range_loop, reason = "the indices name registers: each loop is unrolled away")]

use super::micro::{Kind, Tile};
use crate::simd::Simd;
use crate::simd::avx512::{Avx512, run_bf16};
use std::arch::x86_64::{__m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_set1_epi32};

pub(crate) struct Dot;

#[inline(always)]
unsafe fn add_pair<const M: usize, const N: usize>(
    s: Avx512,
    pair: impl Fn(usize) -> i32,
    b: *const u8,
    acc: &mut [[__m512; N]; M],
) {
    // SAFETY: the caller promises N registers of B, and to be inside `run_bf16`.
    unsafe {
        let b: [__m512bh; N] = std::array::from_fn(|v| {
            std::mem::transmute::<__m512i, __m512bh>(s.load_int(b.cast::<i32>().add(v * Avx512::LANES)))
        });
        for i in 0..M {
            let x = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(pair(i)));
            for v in 0..N {
                acc[i][v] = _mm512_dpbf16_ps(acc[i][v], x, b[v]);
            }
        }
    }
}

impl Kind<Avx512> for Dot {
    const DEPTH: usize = 2;
    #[inline(always)]
    unsafe fn enter<R>(f: impl FnOnce(Avx512) -> R) -> R {
        // SAFETY: the caller promises the instruction set.
        unsafe { run_bf16(f) }
    }
    #[inline(always)]
    unsafe fn step<const M: usize, const N: usize>(
        s: Avx512,
        t: &Tile,
        a: *const u8,
        b: *const u8,
        acc: &mut [[__m512; N]; M],
    ) {
        // SAFETY: the caller promises N registers of B, every row of A and two of its columns, which are adjacent.
        unsafe { add_pair(s, |i| a.add(i * t.a_row).cast::<i32>().read_unaligned(), b, acc) }
    }
    #[inline(always)]
    unsafe fn last<const M: usize, const N: usize>(
        s: Avx512,
        t: &Tile,
        a: *const u8,
        b: *const u8,
        acc: &mut [[__m512; N]; M],
    ) {
        // The pair's absent half must be 0 in A too: whatever lies there may be NaN, and NaN · 0 is not 0.
        // SAFETY: the caller promises N registers of B and every row of A.
        unsafe { add_pair(s, |i| i32::from(a.add(i * t.a_row).cast::<u16>().read_unaligned()), b, acc) }
    }
}
