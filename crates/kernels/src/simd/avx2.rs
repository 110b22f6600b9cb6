//! AVX2 with FMA and F16C: 8 lanes, 16 registers. In code that is compiled for AVX-512 the same lanes are half of its
//! registers; they then use what it adds for them, so that a lane has the same bits in half a register as in a whole one.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one or a few intrinsics; the token `self` exists only where the CPU has them, and pointers \
              are the caller's promise, stated on the trait"
)]

use super::Simd;
use std::arch::x86_64::*;

/// The token of this instruction set, or of half of AVX-512's registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2<const AVX512: bool = false>(());

impl Avx2<true> {
    /// Half of AVX-512's registers.
    #[inline(always)]
    pub(super) fn half_of(_: super::avx512::Avx512) -> Avx2<true> {
        Avx2(())
    }
}

/// Runs `f` compiled for this instruction set.
///
/// # Safety
/// The CPU must have the features named below.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run<R>(f: impl FnOnce(Avx2) -> R) -> R {
    f(Avx2(()))
}

/// Runs `f` compiled for this instruction set and sums of four 8-bit products, for the one kernel that uses them.
///
/// # Safety
/// The CPU must have the features named below.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(crate) unsafe fn run_vnni<R>(f: impl FnOnce(Avx2) -> R) -> R {
    f(Avx2(()))
}

#[inline(always)]
fn first(n: usize) -> __m256i {
    const WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    debug_assert!(n <= 8);
    unsafe { _mm256_loadu_si256(WINDOW.as_ptr().add(8 - n.min(8)).cast()) }
}

#[inline(always)]
fn first_bits(n: usize) -> __mmask8 {
    debug_assert!(n <= 8);
    ((1u32 << n) - 1) as __mmask8
}

impl<const AVX512: bool> Simd for Avx2<AVX512> {
    const LANES: usize = 8;
    const REGISTERS: usize = if AVX512 { 32 } else { 16 };
    const FUSED: bool = true;
    type Half = Self;
    type F = __m256;
    type I = __m256i;
    type M = __m256;

    #[inline(always)]
    fn half(self) -> Self {
        self
    }
    #[inline(always)]
    fn exp2<const W: usize>(self, y: [__m256; W], p: impl Fn([__m256; W]) -> [__m256; W]) -> [__m256; W] {
        if !AVX512 {
            return super::exp2(self, y, p);
        }
        let mut f = y;
        for f in &mut f {
            *f = unsafe { _mm256_reduce_ps::<9>(*f) };
        }
        let mut p = p(f);
        for (p, y) in p.iter_mut().zip(y) {
            *p = unsafe { _mm256_scalef_ps(*p, y) };
        }
        p
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_n(self, p: *const f32, n: usize) -> __m256 {
        unsafe { if AVX512 { _mm256_maskz_loadu_ps(first_bits(n), p) } else { _mm256_maskload_ps(p, first(n)) } }
    }
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, v: __m256, n: usize) {
        unsafe { if AVX512 { _mm256_mask_storeu_ps(p, first_bits(n), v) } else { _mm256_maskstore_ps(p, first(n), v) } }
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut f32, v: __m256) {
        unsafe { _mm256_stream_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_int(self, p: *const i32) -> __m256i {
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_int(self, p: *mut i32, v: __m256i) {
        unsafe { _mm256_storeu_si256(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: __m256) {
        unsafe {
            let bits = _mm256_castps_si256(v);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let kept = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            let packed = _mm256_packus_epi32(kept, kept);
            let ordered = _mm256_permute4x64_epi64::<0b1000>(packed);
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(ordered))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m256) {
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn fence(self) {
        unsafe { _mm_sfence() }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn neg_mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min_fast(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn max_fast(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m256) -> __m256 {
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    fn neg(self, a: __m256) -> __m256 {
        unsafe { _mm256_xor_ps(a, _mm256_set1_ps(-0.0)) }
    }
    #[inline(always)]
    fn copysign(self, a: __m256, b: __m256) -> __m256 {
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b))
        }
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<8>(a) }
    }
    #[inline(always)]
    fn floor(self, a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<9>(a) }
    }
    #[inline(always)]
    fn lt(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn le(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_cmp_ps::<_CMP_LE_OQ>(a, b) }
    }
    #[inline(always)]
    fn eq(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b) }
    }
    #[inline(always)]
    fn mask_and(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_and_ps(a, b) }
    }
    #[inline(always)]
    fn mask_or(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_or_ps(a, b) }
    }
    #[inline(always)]
    fn mask_not(self, a: __m256) -> __m256 {
        unsafe { _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1))) }
    }
    #[inline(always)]
    fn select(self, m: __m256, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(b, a, m) }
    }
    #[inline(always)]
    fn to_int(self, a: __m256) -> __m256i {
        unsafe { _mm256_cvtps_epi32(a) }
    }
    #[inline(always)]
    fn int_to_float(self, a: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(a) }
    }
    #[inline(always)]
    fn bits(self, a: __m256) -> __m256i {
        unsafe { _mm256_castps_si256(a) }
    }
    #[inline(always)]
    fn float_from_bits(self, a: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(a) }
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(x) }
    }
    #[inline(always)]
    fn add_int(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    fn sub_int(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_sub_epi32(a, b) }
    }
    #[inline(always)]
    fn and_int(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    fn shl<const N: i32>(self, a: __m256i) -> __m256i {
        unsafe { _mm256_slli_epi32::<N>(a) }
    }
    #[inline(always)]
    fn sra<const N: i32>(self, a: __m256i) -> __m256i {
        unsafe { _mm256_srai_epi32::<N>(a) }
    }
    #[inline(always)]
    unsafe fn gather(self, p: *const f32, indices: __m256i) -> __m256 {
        unsafe { _mm256_i32gather_ps::<4>(p, indices) }
    }
    #[inline(always)]
    fn rotate(self, a: __m256, n: usize) -> __m256 {
        unsafe {
            let iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            // Only the low three bits of an index count.
            _mm256_permutevar8x32_ps(a, _mm256_add_epi32(iota, _mm256_set1_epi32((n % 8) as i32)))
        }
    }
    #[inline(always)]
    unsafe fn load_pieces(self, p: *const u8, stride: isize) -> __m256i {
        unsafe {
            let low = _mm256_castsi128_si256(_mm_loadu_si128(p.cast()));
            _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(p.offset(stride).cast()))
        }
    }
    #[inline(always)]
    fn zip<const E: usize>(self, a: __m256i, b: __m256i) -> (__m256i, __m256i) {
        unsafe {
            match E {
                1 => (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)),
                2 => (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)),
                4 => (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)),
                _ => (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)),
            }
        }
    }
    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        unsafe {
            let quad = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
    #[inline(always)]
    fn max_lane(self, a: __m256) -> f32 {
        unsafe {
            let quad = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let pair = _mm_max_ps(quad, _mm_movehl_ps(quad, quad));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
}
