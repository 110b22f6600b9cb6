//! One small lane abstraction, so that each kernel is written once.
//!
//! A kernel is a function generic over [`Simd`] and marked `#[inline(always)]`; `with_simd!` runs it
//! inside a function compiled for the wanted instruction set, where the intrinsics inline. A value of a `Simd` type is a
//! token: it exists only inside such a function, which is why the lane operations themselves are safe to call.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;

/// Lanes of `f32` (and `i32` for exponent tricks) in one register of the machine.
///
/// Loads and stores are unaligned. `*_n` variants touch only the first `n < LANES` elements; missing lanes read as 0.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// How many `f32` fit one register.
    const LANES: usize;
    /// How many such registers the instruction set names.
    const REGISTERS: usize;
    /// Whether [`Self::mul_add`] rounds only once, after the addition.
    const FUSED: bool;
    /// `LANES` floats.
    type F: Copy;
    /// `LANES` 32-bit integers.
    type I: Copy;
    /// `LANES` truth values.
    type M: Copy;
    /// The same with half as many lanes, where an instruction set has such registers too; else itself. Every operation gives
    /// a lane the same bits.
    type Half: Simd;

    /// The token of [`Self::Half`].
    fn half(self) -> Self::Half;
    /// Every lane `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Reads `LANES` floats.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` floats.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// Writes `LANES` floats.
    ///
    /// # Safety
    /// `p` must be writable for `LANES` floats.
    unsafe fn store(self, p: *mut f32, v: Self::F);
    /// Reads the first `n <= LANES` floats, the other lanes are 0.
    ///
    /// # Safety
    /// `p` must be readable for `n` floats.
    unsafe fn load_n(self, p: *const f32, n: usize) -> Self::F;
    /// Writes the first `n <= LANES` floats.
    ///
    /// # Safety
    /// `p` must be writable for `n` floats.
    unsafe fn store_n(self, p: *mut f32, v: Self::F, n: usize);
    /// Writes past the caches where the machine can; needs [`Self::fence`] before another thread reads.
    ///
    /// # Safety
    /// `p` must be writable for `LANES` floats and aligned to a whole register.
    unsafe fn stream(self, p: *mut f32, v: Self::F);
    /// Orders streamed stores before whatever follows.
    fn fence(self);

    /// Asks for the line of `p` to be brought into the nearest cache; any address is allowed.
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        let _ = p;
    }

    /// a + b
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// a − b
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// a / b
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c, fused where the machine can (the portable path rounds twice)
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// c − a · b, fused where the machine can
    fn neg_mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The machine's minimum: where either lane is NaN the result is `b` or NaN, as the machine has it.
    fn min_fast(self, a: Self::F, b: Self::F) -> Self::F;
    /// The machine's maximum: where either lane is NaN the result is `b` or NaN, as the machine has it.
    fn max_fast(self, a: Self::F, b: Self::F) -> Self::F;
    /// √a
    fn sqrt(self, a: Self::F) -> Self::F;
    /// |a|
    fn abs(self, a: Self::F) -> Self::F;
    /// −a
    fn neg(self, a: Self::F) -> Self::F;
    /// The magnitude of `a` with the sign of `b`.
    fn copysign(self, a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// Down to an integer.
    fn floor(self, a: Self::F) -> Self::F;

    /// a < b (false with NaN)
    fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    /// a ≤ b (false with NaN)
    fn le(self, a: Self::F, b: Self::F) -> Self::M;
    /// a = b (false with NaN)
    fn eq(self, a: Self::F, b: Self::F) -> Self::M;
    /// a and b
    fn mask_and(self, a: Self::M, b: Self::M) -> Self::M;
    /// a or b
    fn mask_or(self, a: Self::M, b: Self::M) -> Self::M;
    /// not a
    fn mask_not(self, a: Self::M) -> Self::M;
    /// a where the mask holds, else b
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F;

    /// To the nearest integer; lanes beyond `i32` are unspecified.
    fn to_int(self, a: Self::F) -> Self::I;
    /// The integers as floats.
    fn int_to_float(self, a: Self::I) -> Self::F;
    /// The same bits as integers.
    fn bits(self, a: Self::F) -> Self::I;
    /// The same bits as floats.
    fn float_from_bits(self, a: Self::I) -> Self::F;
    /// Every lane `x`.
    fn splat_int(self, x: i32) -> Self::I;
    /// a + b, wrapping
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// a − b, wrapping
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// a & b
    fn and_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// a · 2ⁿ for whole n with |n| ≤ 250, rounded once, also where the result is subnormal or overflows.
    #[inline(always)]
    fn scale(self, a: Self::F, n: Self::F) -> Self::F {
        // Half of the exponent at a time, so that each power of two is a normal number.
        let n = self.to_int(n);
        let half = self.sra::<1>(n);
        let power = |n| self.float_from_bits(self.add_int(self.shl::<23>(n), self.splat_int(127 << 23)));
        self.mul(self.mul(a, power(half)), power(self.sub_int(n, half)))
    }
    /// a << N
    fn shl<const N: i32>(self, a: Self::I) -> Self::I;
    /// a >> N with the sign kept
    fn sra<const N: i32>(self, a: Self::I) -> Self::I;
    /// Reads `LANES` 32-bit integers.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` integers.
    unsafe fn load_int(self, p: *const i32) -> Self::I;
    /// Writes `LANES` 32-bit integers.
    ///
    /// # Safety
    /// `p` must be writable for `LANES` integers.
    unsafe fn store_int(self, p: *mut i32, v: Self::I);

    /// Whether [`Self::repeat`] of two or four floats, and [`Self::select`] with a load, cost little more than a load.
    const SHARES_LANES: bool = false;

    /// `G` floats (a power of two, up to `LANES` of them), again and again.
    #[inline(always)]
    fn repeat<const G: usize>(self, floats: &[f32; G]) -> Self::F {
        let mut all = [0.0; 16];
        for (lane, float) in all.iter_mut().enumerate() {
            *float = floats[lane % G];
        }
        // SAFETY: a register has at most 16 lanes.
        unsafe { self.load(all.as_ptr()) }
    }

    /// How many registers [`Self::lookup`] takes as its table where that is faster than [`Self::gather`]; 0 if it never is.
    const LOOKUP: usize = 0;

    /// 2ʸ as p(f) · 2ⁿ with n = ⌊y⌋ and f = y − n, where 1 ≤ p(f) ≤ 2 stands for 2ᶠ on [0, 1]. NaN stays NaN; beyond ±126
    /// the result may saturate there, or at 0 and ∞, as the machine has it. Of several registers, each step is done for all
    /// before the next one.
    #[inline(always)]
    fn exp2<const W: usize>(self, y: [Self::F; W], p: impl Fn([Self::F; W]) -> [Self::F; W]) -> [Self::F; W] {
        exp2(self, y, p)
    }
    /// Lane i is the float number `indices[i]` of a table of `N` (1 to 4) registers; for an index from `N · LANES` on it is
    /// any float.
    #[inline(always)]
    fn lookup<const N: usize>(self, table: [Self::F; N], indices: Self::I) -> Self::F {
        const { assert!(N <= 4) };
        let mut floats = [[0.0f32; 16]; 4];
        // SAFETY: a register has at most 16 lanes; those of `table` lie one after the other, and every index is taken
        // modulo a power of two of registers that there is room for.
        unsafe {
            let at = floats.as_mut_ptr().cast::<f32>();
            for (i, register) in table.into_iter().enumerate() {
                self.store(at.add(i * Self::LANES), register);
            }
            self.gather(at, self.and_int(indices, self.splat_int((N.next_power_of_two() * Self::LANES) as i32 - 1)))
        }
    }
    /// Lane i is the float at `p + indices[i]`.
    ///
    /// # Safety
    /// `p` must be readable at every index.
    #[inline(always)]
    unsafe fn gather(self, p: *const f32, indices: Self::I) -> Self::F {
        let mut at = [0i32; 16];
        let mut floats = [0.0f32; 16];
        // SAFETY: a register has at most 16 lanes, and the caller gives a float at every index.
        unsafe {
            self.store_int(at.as_mut_ptr(), indices);
            for (float, at) in floats.iter_mut().zip(at).take(Self::LANES) {
                *float = *p.offset(at as isize);
            }
            self.load(floats.as_ptr())
        }
    }
    /// Lane i is lane (i + n) mod `LANES` of `a`.
    #[inline(always)]
    fn rotate(self, a: Self::F, n: usize) -> Self::F {
        let mut floats = [0.0f32; 16];
        // SAFETY: a register has at most 16 lanes.
        unsafe {
            self.store(floats.as_mut_ptr(), a);
            floats[..Self::LANES].rotate_left(n % Self::LANES);
            self.load(floats.as_ptr())
        }
    }

    /// Reads 16 bytes at each of `p`, `p + stride`, …: one piece for every 128 bits of a register, the first one lowest.
    ///
    /// # Safety
    /// Every piece must be readable.
    unsafe fn load_pieces(self, p: *const u8, stride: isize) -> Self::I;
    /// Interleaves elements of `E` bytes (1, 2, 4 or 8) within every 128 bits: the lower halves of both, then the upper.
    fn zip<const E: usize>(self, a: Self::I, b: Self::I) -> (Self::I, Self::I);

    /// Transposes a block of `LANES` × `LANES` 32-bit words: `(r, c)` of `src` becomes `(c, r)` of `dst`. Rows are
    /// `src_stride` and `dst_stride` bytes apart. `STREAM` writes past the caches, where the machine can, as
    /// [`Self::stream`] does.
    ///
    /// # Safety
    /// Every word of both blocks must be accessible and the blocks must not overlap; with `STREAM`, each row of `dst`
    /// must be aligned to a whole register.
    #[inline(always)]
    unsafe fn transpose<const STREAM: bool>(self, src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
        // Row r is put beside rows r + 4, r + 8, … as it is read, so that only squares of 4 × 4 are left to transpose.
        for c in (0..Self::LANES as isize).step_by(4) {
            // SAFETY: rows and columns below LANES, within the blocks the caller gives.
            unsafe {
                let row = |r: isize| self.load_pieces(src.offset(r * src_stride + 4 * c), 4 * src_stride);
                let (ac_low, ac_high) = self.zip::<4>(row(0), row(2));
                let (bd_low, bd_high) = self.zip::<4>(row(1), row(3));
                let (first, second) = self.zip::<4>(ac_low, bd_low);
                let (third, fourth) = self.zip::<4>(ac_high, bd_high);
                for (k, column) in [first, second, third, fourth].into_iter().enumerate() {
                    let p = dst.offset((c + k as isize) * dst_stride);
                    if STREAM {
                        self.stream(p.cast(), self.float_from_bits(column));
                    } else {
                        self.store_int(p.cast(), column);
                    }
                }
            }
        }
    }

    /// The sum of all lanes, in a fixed order.
    fn sum(self, a: Self::F) -> f32;
    /// The largest lane; unspecified with NaN.
    fn max_lane(self, a: Self::F) -> f32;

    /// Reads `LANES` bfloat16 values, widened.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` 16-bit values.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;
    /// Writes `LANES` values as bfloat16, to nearest even, NaN kept quiet.
    ///
    /// # Safety
    /// `p` must be writable for `LANES` 16-bit values.
    unsafe fn store_bf16(self, p: *mut u16, v: Self::F);
    /// Reads `LANES` IEEE half floats, widened.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` 16-bit values.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;
    /// Writes `LANES` values as IEEE half floats, to nearest even.
    ///
    /// # Safety
    /// `p` must be writable for `LANES` 16-bit values.
    unsafe fn store_f16(self, p: *mut u16, v: Self::F);
}

/// [`Simd::exp2`] where the machine has no instructions for its parts.
#[inline(always)]
fn exp2<S: Simd, const W: usize>(s: S, mut y: [S::F; W], p: impl Fn([S::F; W]) -> [S::F; W]) -> [S::F; W] {
    let (mut n, mut f) = (y, y);
    for w in 0..W {
        // Within these ends the exponent of p moves by n without leaving the normal numbers.
        y[w] = s.max_fast(s.splat(-126.0), s.min_fast(s.splat(126.0), y[w]));
        n[w] = s.floor(y[w]);
        f[w] = s.sub(y[w], n[w]);
    }
    let mut p = p(f);
    for w in 0..W {
        p[w] = s.float_from_bits(s.add_int(s.bits(p[w]), s.shl::<23>(s.to_int(n[w]))));
    }
    p
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Level {
    Portable,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// An instruction set that this machine has: a value exists only where the CPU said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Isa {
    pub(crate) level: Level,
    pub(crate) bf16: bool,
}

impl Isa {
    /// Plain Rust in four lanes, on every machine.
    pub const PORTABLE: Isa = Isa { level: Level::Portable, bf16: false };

    /// The widest instruction set of this CPU.
    pub fn detect() -> Isa {
        *Isa::available().last().expect("the portable path is always there")
    }

    /// Every instruction set of this CPU, narrowest first.
    ///
    /// `SCHWANN_ISA`, read here once and nowhere else, names the widest one to be used (see [`Isa::name`]): to find out
    /// whether a wrong result comes from an instruction set, or to run under a tool that does not know newer
    /// instructions. Another name leaves only the portable path.
    pub fn available() -> &'static [Isa] {
        static FOUND: std::sync::OnceLock<Vec<Isa>> = std::sync::OnceLock::new();
        FOUND.get_or_init(|| {
            #[allow(unused_mut)]
            let mut found = vec![Isa::PORTABLE];
            #[cfg(target_arch = "aarch64")]
            found.push(Isa { level: Level::Neon, bf16: false });
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::is_x86_feature_detected as has;
                let avx2 = has!("avx2") && has!("fma") && has!("f16c");
                if avx2 {
                    found.push(Isa { level: Level::Avx2, bf16: false });
                }
                if avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                    found.push(Isa { level: Level::Avx512, bf16: false });
                    if has!("avx512bf16") {
                        found.push(Isa { level: Level::Avx512, bf16: true });
                    }
                }
            }
            if let Some(widest) = std::env::var_os("SCHWANN_ISA").filter(|name| !name.is_empty()) {
                let at = found.iter().position(|isa| widest == isa.name());
                found.truncate(at.map_or(1, |at| at + 1));
            }
            found
        })
    }

    /// The instruction set of that name, if this CPU has it.
    pub fn named(name: &str) -> Option<Isa> {
        Isa::available().iter().copied().find(|isa| isa.name() == name)
    }

    /// `portable`, `neon`, `avx2`, `avx512` or `avx512bf16`.
    pub fn name(self) -> &'static str {
        match self.level {
            Level::Portable => "portable",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if self.bf16 => "avx512bf16",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }

    /// How many floats one register holds.
    pub fn lanes(self) -> usize {
        match self.level {
            Level::Portable => portable::Portable::<4>::LANES,
            #[cfg(target_arch = "aarch64")]
            Level::Neon => neon::Neon::LANES,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => <avx2::Avx2>::LANES,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::Avx512::LANES,
        }
    }

    /// How many floats half a register holds, or a whole one where there are no halves.
    pub fn half_lanes(self) -> usize {
        with_simd!(self, s => half_lanes(s))
    }

    /// Whether rows of several destinations of synapses share lanes.
    pub fn shares_lanes(self) -> bool {
        with_simd!(self, s => shares_lanes(s))
    }

    /// Whether the CPU multiplies pairs of bfloat16 in one instruction.
    pub fn has_bf16_dot(self) -> bool {
        self.bf16
    }
}

#[inline(always)]
fn shares_lanes<S: Simd>(_: S) -> bool {
    S::SHARES_LANES
}

#[inline(always)]
fn half_lanes<S: Simd>(_: S) -> usize {
    S::Half::LANES
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Evaluates an expression with `$s` bound to the lane token of `$isa`, inside a function compiled for that set.
///
/// The expression must be a call of an `#[inline(always)]` function generic over [`Simd`], or the intrinsics stay calls.
macro_rules! with_simd {
    ($isa:expr, $s:ident => $body:expr) => {{
        // A body may have an `unsafe` block of its own. Inside the `unsafe` blocks of some arms below it is superfluous, and
        // in the other arms it is needed.
        #[allow(unused_unsafe, clippy::let_and_return)]
        let result = match $isa.level {
            $crate::simd::Level::Portable => {
                let $s = $crate::simd::portable::Portable::<4>;
                $body
            }
            #[cfg(target_arch = "aarch64")]
            $crate::simd::Level::Neon => {
                // SAFETY: NEON is part of every aarch64 CPU this crate supports.
                let $s = unsafe { $crate::simd::neon::Neon::new() };
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Level::Avx2 => {
                // SAFETY: an `Isa` of this level exists only where the CPU has AVX2, FMA and F16C.
                unsafe {
                    $crate::simd::avx2::run(
                        #[inline(always)]
                        |$s| $body,
                    )
                }
            }
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Level::Avx512 => {
                // SAFETY: an `Isa` of this level exists only where the CPU has AVX-512 F, BW, DQ and VL.
                unsafe {
                    $crate::simd::avx512::run(
                        #[inline(always)]
                        |$s| $body,
                    )
                }
            }
        };
        result
    }};
}
pub(crate) use with_simd;
