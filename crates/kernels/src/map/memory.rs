//! Memory types: blocks of f32 from and to other element types, strided rows and repeated rows.
//!
//! The block machine computes in `f32` only. What is not contiguous `f32` passes through an L1 buffer here; integer
//! conversions are plain loops that the compiler vectorises for the caller's instruction set.

use crate::Simd;

/// The type of an element in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    /// IEEE single.
    F32,
    /// IEEE half; stored to nearest even.
    F16,
    /// bfloat16; stored to nearest even.
    Bf16,
    /// Stored to nearest even, saturated, NaN as 0.
    I8,
    /// Stored to nearest even, saturated, NaN as 0.
    U8,
    /// Stored to nearest even, saturated, NaN as 0; read to the nearest `f32`.
    I32,
    /// One byte: any value but 0 reads as 1; any value but 0 (so also NaN) is stored as 1.
    Bool,
}

impl Elem {
    /// Bytes of one element.
    #[inline(always)]
    pub fn size(self) -> usize {
        match self {
            Elem::F32 | Elem::I32 => 4,
            Elem::F16 | Elem::Bf16 => 2,
            Elem::I8 | Elem::U8 | Elem::Bool => 1,
        }
    }
}

/// Reads one element as a float.
///
/// # Safety
/// `from` must be readable for an aligned element.
#[inline(never)]
pub(super) unsafe fn read(elem: Elem, from: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match elem {
            Elem::F32 => *from.cast(),
            Elem::F16 => half::f16::from_bits(*from.cast()).to_f32(),
            Elem::Bf16 => half::bf16::from_bits(*from.cast()).to_f32(),
            Elem::I8 => f32::from(*from.cast::<i8>()),
            Elem::U8 => f32::from(*from),
            Elem::I32 => *from.cast::<i32>() as f32,
            Elem::Bool => f32::from(*from != 0),
        }
    }
}

/// Copies `n` floats.
///
/// # Safety
/// Both must be valid for `n` floats and not overlap, unless they are the same.
#[inline(always)]
pub(super) unsafe fn copy<S: Simd>(s: S, from: *const f32, to: *mut f32, n: usize) {
    let mut i = 0;
    // SAFETY: only elements below n are touched.
    unsafe {
        while i + S::LANES <= n {
            s.store(to.add(i), s.load(from.add(i)));
            i += S::LANES;
        }
        if i < n {
            s.store_n(to.add(i), s.load_n(from.add(i), n - i), n - i);
        }
    }
}

/// Writes `n` times `x`.
///
/// # Safety
/// `to` must be writable for `n` floats.
#[inline(always)]
pub(super) unsafe fn fill<S: Simd>(s: S, x: f32, to: *mut f32, n: usize) {
    let x = s.splat(x);
    let mut i = 0;
    // SAFETY: only elements below n are written.
    unsafe {
        while i + S::LANES <= n {
            s.store(to.add(i), x);
            i += S::LANES;
        }
        if i < n {
            s.store_n(to.add(i), x, n - i);
        }
    }
}

/// Walks over 16-bit values by whole registers, `$whole` at each; `$rest` handles the `$left` values after them.
macro_rules! by_registers {
    ($n:expr, $i:ident => $whole:expr, $left:ident => $rest:expr) => {{
        let mut $i = 0;
        while $i + S::LANES <= $n {
            $whole;
            $i += S::LANES;
        }
        let $left = $n - $i;
        if $left > 0 {
            $rest
        }
    }};
}

/// Widens 16-bit floats with the given lane load.
macro_rules! widen_half {
    ($s:ident, $load:ident, $from:expr, $to:ident, $n:ident) => {{
        let from = $from.cast::<u16>();
        by_registers!($n, i => $s.store($to.add(i), $s.$load(from.add(i))), left => {
            let mut padded = [0u16; 16];
            padded.as_mut_ptr().copy_from_nonoverlapping(from.add(i), left);
            $s.store_n($to.add(i), $s.$load(padded.as_ptr()), left);
        })
    }};
}

/// Narrows to 16-bit floats with the given lane store.
macro_rules! narrow_half {
    ($s:ident, $store:ident, $from:ident, $to:expr, $n:ident) => {{
        let to = $to.cast::<u16>();
        by_registers!($n, i => $s.$store(to.add(i), $s.load($from.add(i))), left => {
            let mut padded = [0u16; 16];
            $s.$store(padded.as_mut_ptr(), $s.load_n($from.add(i), left));
            to.add(i).copy_from_nonoverlapping(padded.as_ptr(), left);
        })
    }};
}

/// Reads `n` elements as floats.
///
/// # Safety
/// `from` must be readable for `n` aligned elements, `to` writable for `n` floats; they must not overlap.
#[inline(always)]
pub(super) unsafe fn widen<S: Simd>(s: S, elem: Elem, from: *const u8, to: *mut f32, n: usize) {
    // SAFETY: every access is to an element below n; the padded copies hold LANES ≤ 16 values.
    unsafe {
        match elem {
            Elem::F32 => copy(s, from.cast(), to, n),
            Elem::F16 => widen_half!(s, load_f16, from, to, n),
            Elem::Bf16 => widen_half!(s, load_bf16, from, to, n),
            Elem::I8 => each(from.cast::<i8>(), to, n, f32::from),
            Elem::U8 => each(from, to, n, f32::from),
            Elem::I32 => each(from.cast::<i32>(), to, n, |x| x as f32),
            Elem::Bool => each(from, to, n, |x| if x != 0 { 1.0 } else { 0.0 }),
        }
    }
}

/// Writes `n` floats as elements.
///
/// # Safety
/// `from` must be readable for `n` floats, `to` writable for `n` aligned elements; they must not overlap.
#[inline(always)]
pub(super) unsafe fn narrow<S: Simd>(s: S, elem: Elem, from: *const f32, to: *mut u8, n: usize) {
    // SAFETY: every access is to an element below n; the padded copies hold LANES ≤ 16 values.
    unsafe {
        match elem {
            Elem::F32 => copy(s, from, to.cast(), n),
            Elem::F16 => narrow_half!(s, store_f16, from, to, n),
            Elem::Bf16 => narrow_half!(s, store_bf16, from, to, n),
            // `as` saturates and takes NaN to 0.
            Elem::I8 => each(from, to.cast::<i8>(), n, |x| x.round_ties_even() as i8),
            Elem::U8 => each(from, to, n, |x| x.round_ties_even() as u8),
            Elem::I32 => each(from, to.cast::<i32>(), n, |x| x.round_ties_even() as i32),
            Elem::Bool => each(from, to, n, |x| u8::from(x != 0.0)),
        }
    }
}

/// # Safety
/// Both must be valid for `n` aligned elements and not overlap.
#[inline(always)]
unsafe fn each<A: Copy, B>(from: *const A, to: *mut B, n: usize, f: impl Fn(A) -> B) {
    // SAFETY: the caller's promise.
    let (from, to) = unsafe { (std::slice::from_raw_parts(from, n), std::slice::from_raw_parts_mut(to, n)) };
    from.iter().zip(to).for_each(|(&x, y)| *y = f(x));
}
