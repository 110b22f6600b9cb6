//! NEON, as on every Apple Silicon core: 4 lanes, 32 registers.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one or a few intrinsics; the token `self` exists only where the CPU has them, and pointers \
              are the caller's promise, stated on the trait"
)]

use super::Simd;
use std::arch::aarch64::*;

/// The token of this instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    /// # Safety
    /// The CPU must have NEON.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Neon(())
    }
}

impl Simd for Neon {
    const LANES: usize = 4;
    const REGISTERS: usize = 32;
    const FUSED: bool = true;
    type F = float32x4_t;
    type I = int32x4_t;
    type M = uint32x4_t;
    type Half = Self;

    #[inline(always)]
    fn half(self) -> Self {
        self
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn load_n(self, p: *const f32, n: usize) -> float32x4_t {
        unsafe {
            let mut lanes = [0.0f32; 4];
            p.copy_to_nonoverlapping(lanes.as_mut_ptr(), n.min(4));
            vld1q_f32(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, v: float32x4_t, n: usize) {
        unsafe {
            let mut lanes = [0.0f32; 4];
            vst1q_f32(lanes.as_mut_ptr(), v);
            p.copy_from_nonoverlapping(lanes.as_ptr(), n.min(4))
        }
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn load_int(self, p: *const i32) -> int32x4_t {
        unsafe { vld1q_s32(p) }
    }
    #[inline(always)]
    unsafe fn store_int(self, p: *mut i32, v: int32x4_t) {
        unsafe { vst1q_s32(p, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: float32x4_t) {
        unsafe {
            let bits = vreinterpretq_u32_f32(v);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
            let kept = vbslq_u32(vceqq_f32(v, v), rounded, quiet);
            vst1_u16(p, vshrn_n_u32::<16>(kept))
        }
    }
    #[inline(always)]
    // Half floats go lane by lane: the vector conversions take a type that stable Rust does not name.
    unsafe fn load_f16(self, p: *const u16) -> float32x4_t {
        unsafe {
            let lanes: [f32; 4] = std::array::from_fn(|i| half::f16::from_bits(*p.add(i)).to_f32());
            vld1q_f32(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: float32x4_t) {
        unsafe {
            let mut lanes = [0.0f32; 4];
            vst1q_f32(lanes.as_mut_ptr(), v);
            for (i, x) in lanes.into_iter().enumerate() {
                *p.add(i) = half::f16::from_f32(x).to_bits();
            }
        }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        unsafe { std::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly)) }
    }
    #[inline(always)]
    fn fence(self) {}
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn neg_mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmsq_f32(c, a, b) }
    }
    #[inline(always)]
    fn min_fast(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vminq_f32(a, b) }
    }
    #[inline(always)]
    fn max_fast(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmaxq_f32(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: float32x4_t) -> float32x4_t {
        unsafe { vsqrtq_f32(a) }
    }
    #[inline(always)]
    fn abs(self, a: float32x4_t) -> float32x4_t {
        unsafe { vabsq_f32(a) }
    }
    #[inline(always)]
    fn neg(self, a: float32x4_t) -> float32x4_t {
        unsafe { vnegq_f32(a) }
    }
    #[inline(always)]
    fn copysign(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vdupq_n_u32(0x8000_0000), b, a) }
    }
    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    fn floor(self, a: float32x4_t) -> float32x4_t {
        unsafe { vrndmq_f32(a) }
    }
    #[inline(always)]
    fn lt(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        unsafe { vcltq_f32(a, b) }
    }
    #[inline(always)]
    fn le(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        unsafe { vcleq_f32(a, b) }
    }
    #[inline(always)]
    fn eq(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        unsafe { vceqq_f32(a, b) }
    }
    #[inline(always)]
    fn mask_and(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        unsafe { vandq_u32(a, b) }
    }
    #[inline(always)]
    fn mask_or(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        unsafe { vorrq_u32(a, b) }
    }
    #[inline(always)]
    fn mask_not(self, a: uint32x4_t) -> uint32x4_t {
        unsafe { vmvnq_u32(a) }
    }
    #[inline(always)]
    fn select(self, m: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(m, a, b) }
    }
    #[inline(always)]
    fn to_int(self, a: float32x4_t) -> int32x4_t {
        unsafe { vcvtnq_s32_f32(a) }
    }
    #[inline(always)]
    fn int_to_float(self, a: int32x4_t) -> float32x4_t {
        unsafe { vcvtq_f32_s32(a) }
    }
    #[inline(always)]
    fn bits(self, a: float32x4_t) -> int32x4_t {
        unsafe { vreinterpretq_s32_f32(a) }
    }
    #[inline(always)]
    fn float_from_bits(self, a: int32x4_t) -> float32x4_t {
        unsafe { vreinterpretq_f32_s32(a) }
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> int32x4_t {
        unsafe { vdupq_n_s32(x) }
    }
    #[inline(always)]
    fn add_int(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vaddq_s32(a, b) }
    }
    #[inline(always)]
    fn sub_int(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vsubq_s32(a, b) }
    }
    #[inline(always)]
    fn and_int(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vandq_s32(a, b) }
    }
    #[inline(always)]
    fn shl<const N: i32>(self, a: int32x4_t) -> int32x4_t {
        unsafe { vshlq_s32(a, vdupq_n_s32(N)) }
    }
    #[inline(always)]
    fn sra<const N: i32>(self, a: int32x4_t) -> int32x4_t {
        unsafe { vshlq_s32(a, vdupq_n_s32(-N)) }
    }
    #[inline(always)]
    unsafe fn load_pieces(self, p: *const u8, _: isize) -> int32x4_t {
        unsafe { vreinterpretq_s32_u8(vld1q_u8(p)) }
    }
    #[inline(always)]
    fn zip<const E: usize>(self, a: int32x4_t, b: int32x4_t) -> (int32x4_t, int32x4_t) {
        unsafe {
            match E {
                1 => {
                    let (a, b) = (vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b));
                    (vreinterpretq_s32_u8(vzip1q_u8(a, b)), vreinterpretq_s32_u8(vzip2q_u8(a, b)))
                }
                2 => {
                    let (a, b) = (vreinterpretq_u16_s32(a), vreinterpretq_u16_s32(b));
                    (vreinterpretq_s32_u16(vzip1q_u16(a, b)), vreinterpretq_s32_u16(vzip2q_u16(a, b)))
                }
                4 => (vzip1q_s32(a, b), vzip2q_s32(a, b)),
                _ => {
                    let (a, b) = (vreinterpretq_u64_s32(a), vreinterpretq_u64_s32(b));
                    (vreinterpretq_s32_u64(vzip1q_u64(a, b)), vreinterpretq_s32_u64(vzip2q_u64(a, b)))
                }
            }
        }
    }
    #[inline(always)]
    fn sum(self, a: float32x4_t) -> f32 {
        unsafe { vaddvq_f32(a) }
    }
    #[inline(always)]
    fn max_lane(self, a: float32x4_t) -> f32 {
        unsafe { vmaxvq_f32(a) }
    }
}
