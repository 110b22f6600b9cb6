//! Sums of products of four 8-bit codes and integers in a 32-bit lane, by the instructions of each machine.

use crate::gemm::micro::Lanes;
use crate::simd::Simd;

/// How products of four unsigned codes and four signed integers are added to a 32-bit lane.
pub(super) trait Dot: Copy + 'static {
    type S: Lanes;
    const NAME: &'static str;
    /// Whether any bytes are taken as unsigned codes, so that fields need not be shifted.
    const ANY_BYTE: bool;
    /// Whether 8-bit codes are taken as signed, that is less 128.
    const SIGNED: bool;
    /// Runs `f` compiled for the instructions.
    ///
    /// # Safety
    /// The CPU must have them.
    unsafe fn enter<R>(f: impl FnOnce(Self, Self::S) -> R) -> R;
    /// Adds four products to each lane; `codes` are 8-bit.
    fn dot8(
        self,
        sum: <Self::S as Simd>::I,
        codes: <Self::S as Simd>::I,
        q: <Self::S as Simd>::I,
    ) -> <Self::S as Simd>::I;
    /// The same for codes below 16.
    fn dot4(
        self,
        sum: <Self::S as Simd>::I,
        codes: <Self::S as Simd>::I,
        q: <Self::S as Simd>::I,
    ) -> <Self::S as Simd>::I;
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::Dot;
    use crate::simd::avx2::{self, Avx2};
    use crate::simd::avx512::{self, Avx512};
    use std::arch::x86_64::*;

    /// AVX-512 with the instruction for sums of four products.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512Vnni;

    impl Dot for Avx512Vnni {
        type S = Avx512;
        const NAME: &'static str = "avx512 vnni";
        const ANY_BYTE: bool = true;
        const SIGNED: bool = false;
        #[inline(always)]
        unsafe fn enter<R>(f: impl FnOnce(Self, Avx512) -> R) -> R {
            // SAFETY: the caller promises the instructions.
            unsafe {
                avx512::run_vnni(
                    #[inline(always)]
                    |s| f(Avx512Vnni, s),
                )
            }
        }
        #[inline(always)]
        fn dot8(self, sum: __m512i, codes: __m512i, q: __m512i) -> __m512i {
            // SAFETY: a token exists only where `enter` was promised the instructions; so below.
            unsafe { _mm512_dpbusd_epi32(sum, codes, q) }
        }
        #[inline(always)]
        fn dot4(self, sum: __m512i, codes: __m512i, q: __m512i) -> __m512i {
            self.dot8(sum, codes, q)
        }
    }

    /// AVX2 with that instruction.
    #[derive(Clone, Copy)]
    pub(in super::super) struct AvxVnni;

    impl Dot for AvxVnni {
        type S = Avx2;
        const NAME: &'static str = "avx2 vnni";
        const ANY_BYTE: bool = true;
        const SIGNED: bool = false;
        #[inline(always)]
        unsafe fn enter<R>(f: impl FnOnce(Self, Avx2) -> R) -> R {
            // SAFETY: the caller promises the instructions.
            unsafe {
                avx2::run_vnni(
                    #[inline(always)]
                    |s| f(AvxVnni, s),
                )
            }
        }
        #[inline(always)]
        fn dot8(self, sum: __m256i, codes: __m256i, q: __m256i) -> __m256i {
            // SAFETY: see above.
            unsafe { _mm256_dpbusd_avx_epi32(sum, codes, q) }
        }
        #[inline(always)]
        fn dot4(self, sum: __m256i, codes: __m256i, q: __m256i) -> __m256i {
            self.dot8(sum, codes, q)
        }
    }

    /// AVX-512 without it: sums of two 16-bit products. 8-bit codes are widened first, as sums of two of their products
    /// may not fit 16 bits.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512Madd;

    impl Dot for Avx512Madd {
        type S = Avx512;
        const NAME: &'static str = "avx512";
        const ANY_BYTE: bool = false;
        const SIGNED: bool = false;
        #[inline(always)]
        unsafe fn enter<R>(f: impl FnOnce(Self, Avx512) -> R) -> R {
            // SAFETY: the caller promises the instructions.
            unsafe {
                avx512::run(
                    #[inline(always)]
                    |s| f(Avx512Madd, s),
                )
            }
        }
        #[inline(always)]
        fn dot8(self, sum: __m512i, codes: __m512i, q: __m512i) -> __m512i {
            // SAFETY: see above.
            unsafe {
                let even = _mm512_and_si512(codes, _mm512_set1_epi16(0xff));
                let odd = _mm512_srli_epi16::<8>(codes);
                let q_even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(q));
                let q_odd = _mm512_srai_epi16::<8>(q);
                let both = _mm512_add_epi32(_mm512_madd_epi16(even, q_even), _mm512_madd_epi16(odd, q_odd));
                _mm512_add_epi32(sum, both)
            }
        }
        #[inline(always)]
        fn dot4(self, sum: __m512i, codes: __m512i, q: __m512i) -> __m512i {
            // SAFETY: see above. Two products of at most 15 · 127 fit 16 bits.
            unsafe {
                let pairs = _mm512_maddubs_epi16(codes, q);
                _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
            }
        }
    }

    /// AVX2 without it, in the same way.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2Madd;

    impl Dot for Avx2Madd {
        type S = Avx2;
        const NAME: &'static str = "avx2";
        const ANY_BYTE: bool = false;
        const SIGNED: bool = false;
        #[inline(always)]
        unsafe fn enter<R>(f: impl FnOnce(Self, Avx2) -> R) -> R {
            // SAFETY: the caller promises the instructions.
            unsafe {
                avx2::run(
                    #[inline(always)]
                    |s| f(Avx2Madd, s),
                )
            }
        }
        #[inline(always)]
        fn dot8(self, sum: __m256i, codes: __m256i, q: __m256i) -> __m256i {
            // SAFETY: see above.
            unsafe {
                let even = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
                let odd = _mm256_srli_epi16::<8>(codes);
                let q_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(q));
                let q_odd = _mm256_srai_epi16::<8>(q);
                let both = _mm256_add_epi32(_mm256_madd_epi16(even, q_even), _mm256_madd_epi16(odd, q_odd));
                _mm256_add_epi32(sum, both)
            }
        }
        #[inline(always)]
        fn dot4(self, sum: __m256i, codes: __m256i, q: __m256i) -> __m256i {
            // SAFETY: see above. Two products of at most 15 · 127 fit 16 bits.
            unsafe {
                let pairs = _mm256_maddubs_epi16(codes, q);
                _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    use super::Dot;
    use crate::simd::neon::Neon;
    use std::arch::aarch64::*;

    /// NEON with the instruction for sums of four signed products.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Sdot;

    /// Runs `f` compiled for the instruction.
    ///
    /// # Safety
    /// The CPU must have it.
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn run<R>(f: impl FnOnce(Neon) -> R) -> R {
        // SAFETY: the caller promises the instructions.
        f(unsafe { Neon::new() })
    }

    impl Dot for Sdot {
        type S = Neon;
        const NAME: &'static str = "neon dotprod";
        const ANY_BYTE: bool = false;
        const SIGNED: bool = true;
        #[inline(always)]
        unsafe fn enter<R>(f: impl FnOnce(Self, Neon) -> R) -> R {
            // SAFETY: the caller promises the instructions.
            unsafe {
                run(
                    #[inline(always)]
                    |s| f(Sdot, s),
                )
            }
        }
        #[inline(always)]
        fn dot8(self, sum: int32x4_t, codes: int32x4_t, q: int32x4_t) -> int32x4_t {
            // A code less 128 is the code with its highest bit changed, taken as signed.
            // SAFETY: a token exists only where `enter` was promised the instructions; so below.
            unsafe { self.dot4(sum, veorq_s32(codes, vdupq_n_s32(0x8080_8080_u32 as i32)), q) }
        }
        #[inline(always)]
        fn dot4(self, mut sum: int32x4_t, codes: int32x4_t, q: int32x4_t) -> int32x4_t {
            // SAFETY: see above; the instruction only changes the register of the sum. (Its intrinsic is not stable.)
            unsafe {
                std::arch::asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) codes, in(vreg) q,
                    options(pure, nomem, nostack, preserves_flags));
            }
            sum
        }
    }

    /// NEON without it: products are widened to 16 bits, and added in pairs.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Widening;

    impl Dot for Widening {
        type S = Neon;
        const NAME: &'static str = "neon";
        const ANY_BYTE: bool = false;
        const SIGNED: bool = true;
        #[inline(always)]
        unsafe fn enter<R>(f: impl FnOnce(Self, Neon) -> R) -> R {
            // SAFETY: the caller promises the instructions.
            f(Widening, unsafe { Neon::new() })
        }
        #[inline(always)]
        fn dot8(self, sum: int32x4_t, codes: int32x4_t, q: int32x4_t) -> int32x4_t {
            // SAFETY: see above.
            unsafe { self.dot4(sum, veorq_s32(codes, vdupq_n_s32(0x8080_8080_u32 as i32)), q) }
        }
        #[inline(always)]
        fn dot4(self, sum: int32x4_t, codes: int32x4_t, q: int32x4_t) -> int32x4_t {
            // SAFETY: see above. Products are at most 128 · 127, which fits 16 bits.
            unsafe {
                let (c, q) = (vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(q));
                let low = vpaddlq_s16(vmull_s8(vget_low_s8(c), vget_low_s8(q)));
                let high = vpaddlq_s16(vmull_s8(vget_high_s8(c), vget_high_s8(q)));
                vaddq_s32(sum, vpaddq_s32(low, high))
            }
        }
    }
}
