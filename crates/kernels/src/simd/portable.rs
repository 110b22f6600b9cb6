//! Lanes in plain Rust: they run on every machine, and let one machine test widths of 4, 8 and 16 lanes.

use super::Simd;
use half::{bf16, f16};

/// `N` lanes as an array; the compiler vectorises what it can.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable<const N: usize>;

impl<const N: usize> Portable<N> {
    #[inline(always)]
    fn map(a: [f32; N], f: impl Fn(f32) -> f32) -> [f32; N] {
        std::array::from_fn(|i| f(a[i]))
    }
    #[inline(always)]
    fn zip<A: Copy, B>(a: [A; N], b: [A; N], f: impl Fn(A, A) -> B) -> [B; N] {
        std::array::from_fn(|i| f(a[i], b[i]))
    }
}

/// Interleaves elements of `E` bytes: the lower halves of both, then the upper.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn zip<const E: usize>(a: [i32; 4], b: [i32; 4]) -> ([i32; 4], [i32; 4]) {
    // SAFETY: as many bytes, and all of them plain data.
    let bytes = |v: [i32; 4]| unsafe { std::mem::transmute::<[i32; 4], [u8; 16]>(v) };
    let (a, b) = (bytes(a), bytes(b));
    let half = |first: usize| {
        let pick = |i: usize| if i / E % 2 == 0 { a } else { b }[first + i / (2 * E) * E + i % E];
        // SAFETY: likewise.
        unsafe { std::mem::transmute::<[u8; 16], [i32; 4]>(std::array::from_fn(pick)) }
    };
    (half(0), half(8))
}

/// The same by intrinsics, since the compiler does not turn the loop above into these instructions; they are part of
/// x86-64.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn zip<const E: usize>(a: [i32; 4], b: [i32; 4]) -> ([i32; 4], [i32; 4]) {
    use std::arch::x86_64::*;
    // SAFETY: SSE2 is part of x86-64; registers and arrays are plain data of one size.
    unsafe {
        let (a, b) = (std::mem::transmute::<[i32; 4], __m128i>(a), std::mem::transmute::<[i32; 4], __m128i>(b));
        let (low, high) = match E {
            1 => (_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)),
            2 => (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)),
            4 => (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b)),
            _ => (_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)),
        };
        (std::mem::transmute::<__m128i, [i32; 4]>(low), std::mem::transmute::<__m128i, [i32; 4]>(high))
    }
}

impl<const N: usize> Simd for Portable<N> {
    const LANES: usize = N;
    const REGISTERS: usize = 16;
    const FUSED: bool = false;
    type F = [f32; N];
    type I = [i32; N];
    type M = [bool; N];
    type Half = Self;

    #[inline(always)]
    fn half(self) -> Self {
        self
    }
    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> [f32; N] {
        // SAFETY: the caller gives N readable floats; the read is unaligned.
        unsafe { p.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: [f32; N]) {
        // SAFETY: the caller gives N writable floats; the write is unaligned.
        unsafe { p.cast::<[f32; N]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_n(self, p: *const f32, n: usize) -> [f32; N] {
        // SAFETY: only the first n elements, which the caller gives, are read.
        std::array::from_fn(|i| if i < n { unsafe { p.add(i).read_unaligned() } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, v: [f32; N], n: usize) {
        for (i, x) in v.into_iter().enumerate().take(n) {
            // SAFETY: only the first n elements, which the caller gives, are written.
            unsafe { p.add(i).write_unaligned(x) }
        }
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut f32, v: [f32; N]) {
        // SAFETY: the caller's promise covers a plain store too.
        unsafe { self.store(p, v) }
    }
    #[inline(always)]
    fn fence(self) {}

    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        Self::zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        Self::zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        Self::zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        Self::zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn neg_mul_add(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| c[i] - a[i] * b[i])
    }
    #[inline(always)]
    fn min_fast(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        Self::zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max_fast(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        Self::zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn sqrt(self, a: [f32; N]) -> [f32; N] {
        Self::map(a, f32::sqrt)
    }
    #[inline(always)]
    fn abs(self, a: [f32; N]) -> [f32; N] {
        Self::map(a, f32::abs)
    }
    #[inline(always)]
    fn neg(self, a: [f32; N]) -> [f32; N] {
        Self::map(a, |x| -x)
    }
    #[inline(always)]
    fn copysign(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        Self::zip(a, b, f32::copysign)
    }
    #[inline(always)]
    fn round(self, a: [f32; N]) -> [f32; N] {
        Self::map(a, f32::round_ties_even)
    }
    #[inline(always)]
    fn floor(self, a: [f32; N]) -> [f32; N] {
        Self::map(a, f32::floor)
    }

    #[inline(always)]
    fn lt(self, a: [f32; N], b: [f32; N]) -> [bool; N] {
        Self::zip(a, b, |a, b| a < b)
    }
    #[inline(always)]
    fn le(self, a: [f32; N], b: [f32; N]) -> [bool; N] {
        Self::zip(a, b, |a, b| a <= b)
    }
    #[inline(always)]
    fn eq(self, a: [f32; N], b: [f32; N]) -> [bool; N] {
        Self::zip(a, b, |a, b| a == b)
    }
    #[inline(always)]
    fn mask_and(self, a: [bool; N], b: [bool; N]) -> [bool; N] {
        Self::zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn mask_or(self, a: [bool; N], b: [bool; N]) -> [bool; N] {
        Self::zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn mask_not(self, a: [bool; N]) -> [bool; N] {
        std::array::from_fn(|i| !a[i])
    }
    #[inline(always)]
    fn select(self, m: [bool; N], a: [f32; N], b: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| if m[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn to_int(self, a: [f32; N]) -> [i32; N] {
        std::array::from_fn(|i| a[i].round_ties_even() as i32)
    }
    #[inline(always)]
    fn int_to_float(self, a: [i32; N]) -> [f32; N] {
        std::array::from_fn(|i| a[i] as f32)
    }
    #[inline(always)]
    fn bits(self, a: [f32; N]) -> [i32; N] {
        std::array::from_fn(|i| a[i].to_bits() as i32)
    }
    #[inline(always)]
    fn float_from_bits(self, a: [i32; N]) -> [f32; N] {
        std::array::from_fn(|i| f32::from_bits(a[i] as u32))
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> [i32; N] {
        [x; N]
    }
    #[inline(always)]
    fn add_int(self, a: [i32; N], b: [i32; N]) -> [i32; N] {
        Self::zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub_int(self, a: [i32; N], b: [i32; N]) -> [i32; N] {
        Self::zip(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn and_int(self, a: [i32; N], b: [i32; N]) -> [i32; N] {
        Self::zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn shl<const S: i32>(self, a: [i32; N]) -> [i32; N] {
        std::array::from_fn(|i| a[i] << S)
    }
    #[inline(always)]
    fn sra<const S: i32>(self, a: [i32; N]) -> [i32; N] {
        std::array::from_fn(|i| a[i] >> S)
    }
    #[inline(always)]
    fn exp2<const W: usize>(self, y: [[f32; N]; W], p: impl Fn([[f32; N]; W]) -> [[f32; N]; W]) -> [[f32; N]; W] {
        // Rounding is a call on the machines of this path, and adding 1.5 · 2²³ rounds too. Half a step below y that is
        // ⌊y⌋, or one less at a whole y, where p(1) = 2 makes up for it. The power multiplies, so that NaN stays NaN.
        const ROUND: f32 = 12_582_912.0;
        let y = y.map(|y| Self::map(y, |y| if y > 126.0 { 126.0 } else { y }));
        let y = y.map(|y| Self::map(y, |y| if y < -126.0 { -126.0 } else { y }));
        let shifted = y.map(|y| Self::map(y, |y| (y - 0.5) + ROUND));
        let mut f = y;
        for (f, shifted) in f.iter_mut().zip(shifted) {
            *f = Self::zip(*f, shifted, |y, shifted| y - (shifted - ROUND));
        }
        let mut p = p(f);
        for (p, shifted) in p.iter_mut().zip(shifted) {
            let power = |shifted: f32| f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
            *p = Self::zip(*p, shifted, |p, shifted| p * power(shifted));
        }
        p
    }
    #[inline(always)]
    unsafe fn load_int(self, p: *const i32) -> [i32; N] {
        // SAFETY: the caller gives N readable integers; the read is unaligned.
        unsafe { p.cast::<[i32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_int(self, p: *mut i32, v: [i32; N]) {
        // SAFETY: the caller gives N writable integers; the write is unaligned.
        unsafe { p.cast::<[i32; N]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn load_pieces(self, p: *const u8, stride: isize) -> [i32; N] {
        let mut all = [0; N];
        for (k, piece) in all.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            // SAFETY: the caller gives every piece; the read is unaligned.
            *piece = unsafe { p.offset(k as isize * stride).cast::<[i32; 4]>().read_unaligned() };
        }
        all
    }
    #[inline(always)]
    fn zip<const E: usize>(self, a: [i32; N], b: [i32; N]) -> ([i32; N], [i32; N]) {
        let (mut lower, mut upper) = ([0; N], [0; N]);
        for k in (0..N).step_by(4) {
            let four = |v: [i32; N]| [v[k], v[k + 1], v[k + 2], v[k + 3]];
            let (low, high) = zip::<E>(four(a), four(b));
            lower[k..k + 4].copy_from_slice(&low);
            upper[k..k + 4].copy_from_slice(&high);
        }
        (lower, upper)
    }

    #[inline(always)]
    fn sum(self, a: [f32; N]) -> f32 {
        // Adds halves, as the other instruction sets do, so that the order of additions is a tree at every width.
        let mut v = a;
        let mut n = N;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                v[i] += v[i + n];
            }
        }
        v[0]
    }
    #[inline(always)]
    fn max_lane(self, a: [f32; N]) -> f32 {
        a.into_iter().fold(a[0], |m, x| if x > m { x } else { m })
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> [f32; N] {
        // SAFETY: the caller gives N readable values.
        std::array::from_fn(|i| bf16::from_bits(unsafe { p.add(i).read_unaligned() }).to_f32())
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: [f32; N]) {
        for (i, x) in v.into_iter().enumerate() {
            // SAFETY: the caller gives N writable values.
            unsafe { p.add(i).write_unaligned(bf16::from_f32(x).to_bits()) }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> [f32; N] {
        // SAFETY: the caller gives N readable values.
        std::array::from_fn(|i| f16::from_bits(unsafe { p.add(i).read_unaligned() }).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: [f32; N]) {
        for (i, x) in v.into_iter().enumerate() {
            // SAFETY: the caller gives N writable values.
            unsafe { p.add(i).write_unaligned(f16::from_f32(x).to_bits()) }
        }
    }
}
