//! AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers, mask registers.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one or a few intrinsics; the token `self` exists only where the CPU has them, and pointers \
              are the caller's promise, stated on the trait"
)]

use super::Simd;
use std::arch::x86_64::*;

/// The token of this instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

/// Runs `f` compiled for this instruction set.
///
/// # Safety
/// The CPU must have the features named below.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(crate) unsafe fn run<R>(f: impl FnOnce(Avx512) -> R) -> R {
    f(Avx512(()))
}

/// Runs `f` compiled for this instruction set and the bfloat16 dot product, for the one kernel that uses it.
///
/// # Safety
/// The CPU must have the features named below.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(crate) unsafe fn run_bf16<R>(f: impl FnOnce(Avx512) -> R) -> R {
    f(Avx512(()))
}

/// Runs `f` compiled for this instruction set and sums of four 8-bit products, for the one kernel that uses them.
///
/// # Safety
/// The CPU must have the features named below.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn run_vnni<R>(f: impl FnOnce(Avx512) -> R) -> R {
    f(Avx512(()))
}

#[inline(always)]
fn first(n: usize) -> __mmask16 {
    debug_assert!(n <= 16);
    ((1u32 << n) - 1) as __mmask16
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    const FUSED: bool = true;
    const LOOKUP: usize = 4;
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;
    type Half = super::avx2::Avx2<true>;

    #[inline(always)]
    fn half(self) -> Self::Half {
        super::avx2::Avx2::half_of(self)
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_n(self, p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(first(n), p) }
    }
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, v: __m512, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, first(n), v) }
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut f32, v: __m512) {
        unsafe { _mm512_stream_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_int(self, p: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_int(self, p: *mut i32, v: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: __m512) {
        unsafe {
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
            let kept = _mm512_mask_blend_epi32(nan, rounded, quiet);
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(kept)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
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
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn neg_mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min_fast(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn max_fast(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn neg(self, a: __m512) -> __m512 {
        unsafe { _mm512_xor_ps(a, _mm512_set1_ps(-0.0)) }
    }
    #[inline(always)]
    fn copysign(self, a: __m512, b: __m512) -> __m512 {
        unsafe {
            let sign = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b))
        }
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<8>(a) }
    }
    #[inline(always)]
    fn floor(self, a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<9>(a) }
    }
    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn le(self, a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b) }
    }
    #[inline(always)]
    fn eq(self, a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b) }
    }
    #[inline(always)]
    fn mask_and(self, a: u16, b: u16) -> u16 {
        a & b
    }
    #[inline(always)]
    fn mask_or(self, a: u16, b: u16) -> u16 {
        a | b
    }
    #[inline(always)]
    fn mask_not(self, a: u16) -> u16 {
        !a
    }
    #[inline(always)]
    fn select(self, m: __mmask16, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(m, b, a) }
    }
    #[inline(always)]
    fn to_int(self, a: __m512) -> __m512i {
        unsafe { _mm512_cvtps_epi32(a) }
    }
    #[inline(always)]
    fn int_to_float(self, a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    fn bits(self, a: __m512) -> __m512i {
        unsafe { _mm512_castps_si512(a) }
    }
    #[inline(always)]
    fn float_from_bits(self, a: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(a) }
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    fn add_int(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn sub_int(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    fn and_int(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    fn scale(self, a: __m512, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    fn shl<const N: i32>(self, a: __m512i) -> __m512i {
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    fn sra<const N: i32>(self, a: __m512i) -> __m512i {
        unsafe { _mm512_sra_epi32(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    fn exp2<const W: usize>(self, y: [__m512; W], p: impl Fn([__m512; W]) -> [__m512; W]) -> [__m512; W] {
        // One instruction each for y − ⌊y⌋ (0 at ±∞) and for the power of ⌊y⌋, which saturates at 0 and ∞.
        let mut f = y;
        for f in &mut f {
            *f = unsafe { _mm512_reduce_ps::<9>(*f) };
        }
        let mut p = p(f);
        for (p, y) in p.iter_mut().zip(y) {
            *p = unsafe { _mm512_scalef_ps(*p, y) };
        }
        p
    }
    const SHARES_LANES: bool = true;
    #[inline(always)]
    fn repeat<const G: usize>(self, floats: &[f32; G]) -> __m512 {
        let at: *const f32 = floats.as_ptr();
        unsafe {
            match G {
                2 => _mm512_castpd_ps(_mm512_set1_pd(at.cast::<f64>().read_unaligned())),
                4 => _mm512_broadcast_f32x4(_mm_loadu_ps(at)),
                8 => _mm512_broadcast_f32x8(_mm256_loadu_ps(at)),
                16 => _mm512_loadu_ps(at),
                _ => _mm512_set1_ps(floats[0]),
            }
        }
    }
    #[inline(always)]
    fn lookup<const N: usize>(self, table: [__m512; N], indices: __m512i) -> __m512 {
        unsafe {
            match N {
                1 => _mm512_permutexvar_ps(indices, table[0]),
                2 => _mm512_permutex2var_ps(table[0], indices, table[1]),
                3 => {
                    let low = _mm512_permutex2var_ps(table[0], indices, table[1]);
                    let beyond = _mm512_test_epi32_mask(indices, _mm512_set1_epi32(32));
                    _mm512_mask_permutexvar_ps(low, beyond, indices, table[2])
                }
                _ => {
                    let low = _mm512_permutex2var_ps(table[0], indices, table[1]);
                    let high = _mm512_permutex2var_ps(table[2], indices, table[3]);
                    _mm512_mask_blend_ps(_mm512_test_epi32_mask(indices, _mm512_set1_epi32(32)), low, high)
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn load_pieces(self, p: *const u8, stride: isize) -> __m512i {
        unsafe {
            let piece = |k: isize| _mm_loadu_si128(p.offset(k * stride).cast());
            let pair = |k| _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(piece(k)), piece(k + 1));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(pair(0)), pair(2))
        }
    }
    #[inline(always)]
    fn zip<const E: usize>(self, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        unsafe {
            match E {
                1 => (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)),
                2 => (_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)),
                4 => (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)),
                _ => (_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)),
            }
        }
    }
    #[inline(always)]
    unsafe fn gather(self, p: *const f32, indices: __m512i) -> __m512 {
        unsafe { _mm512_i32gather_ps::<4>(indices, p) }
    }
    #[inline(always)]
    fn rotate(self, a: __m512, n: usize) -> __m512 {
        unsafe {
            let iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_permutexvar_ps(_mm512_add_epi32(iota, _mm512_set1_epi32((n % 16) as i32)), a)
        }
    }
    #[inline(always)]
    unsafe fn transpose<const STREAM: bool>(self, src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
        // Each load reads a whole cache line, at the price of twice the shuffles: beyond L1, the number of line
        // accesses decides the time.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); 16];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_ps(src.offset(r as isize * src_stride).cast());
            }
            // 2 × 2 and 4 × 4 transposes within each quarter: word k of `quads[4g + i]` is column 4k + i of rows 4g..4g+4.
            let mut quads = rows;
            for g in 0..4 {
                let [a, b, c, d] = [rows[4 * g], rows[4 * g + 1], rows[4 * g + 2], rows[4 * g + 3]];
                let ab_lo = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
                let ab_hi = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
                let cd_lo = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
                let cd_hi = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
                quads[4 * g] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_lo, cd_lo));
                quads[4 * g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_lo, cd_lo));
                quads[4 * g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_hi, cd_hi));
                quads[4 * g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_hi, cd_hi));
            }
            // Then a 4 × 4 transpose of the 128-bit words.
            for i in 0..4 {
                let [a, b, c, d] = [quads[i], quads[4 + i], quads[8 + i], quads[12 + i]];
                let ab_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
                let ab_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
                let cd_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(c, d);
                let cd_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(c, d);
                let columns = [
                    _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_even, cd_even),
                    _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_odd, cd_odd),
                    _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_even, cd_even),
                    _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_odd, cd_odd),
                ];
                for (k, column) in columns.into_iter().enumerate() {
                    let p = dst.offset((4 * k + i) as isize * dst_stride).cast();
                    if STREAM { _mm512_stream_ps(p, column) } else { _mm512_storeu_ps(p, column) }
                }
            }
        }
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    fn max_lane(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }
}
