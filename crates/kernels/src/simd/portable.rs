//! Lanes in plain Rust: the path of every machine, and the way 4, 8 and 16 lanes are all tested on one.

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

impl<const N: usize> Simd for Portable<N> {
    const LANES: usize = N;
    const REGISTERS: usize = 16;
    const FUSED: bool = false;
    type F = [f32; N];
    type I = [i32; N];
    type M = [bool; N];

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
    fn mul_int(self, a: [i32; N], b: [i32; N]) -> [i32; N] {
        Self::zip(a, b, i32::wrapping_mul)
    }
    #[inline(always)]
    fn exp2(self, y: [f32; N], p: impl Fn([f32; N]) -> [f32; N]) -> [f32; N] {
        // Rounding is a call on the machines of this path, and adding 1.5 · 2²³ rounds too. Half a step below y that is
        // ⌊y⌋, or one less at a whole y, where p(1) = 2 makes up for it. The power multiplies, so that NaN stays NaN.
        const ROUND: f32 = 12_582_912.0;
        let y = Self::map(y, |y| if y > 126.0 { 126.0 } else { y });
        let y = Self::map(y, |y| if y < -126.0 { -126.0 } else { y });
        let shifted = Self::map(y, |y| (y - 0.5) + ROUND);
        let p = p(Self::zip(y, shifted, |y, shifted| y - (shifted - ROUND)));
        Self::zip(p, shifted, |p, shifted| p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23)))
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
    fn sum(self, a: [f32; N]) -> f32 {
        // Halves, like the other paths, so that the order is a tree at every width.
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
