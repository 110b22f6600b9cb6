//! Layer norm and RMS norm of dense rows.
//!
//! The row is read three times (twice for RMS), from the first-level cache after the first: the variance is taken
//! around the mean, never as a difference of two large numbers, and both sums are pairwise. While a row is written the
//! next one is fetched, since rows are often whole pages and the machine's own prefetcher stops at the end of a page.
//! Outputs that are too large for the caches are written past them.

use crate::reduce::sum_row_of;
use crate::simd::{Simd, with_simd};
use crate::team::Team;
use crate::tuning::Machine;

/// `dst[r, ..]` = (x − mean x) / √(var x + eps) · gamma + beta with x = `src[r, ..]`; gamma or beta may be null.
///
/// The variance is that of the whole row (divided by `len`).
///
/// # Safety
/// `src` must be readable and `dst` writable for `rows · len` floats; they are the same or do not overlap. `gamma` and
/// `beta` must each be null or readable for `len` floats, and not overlap `dst`.
#[expect(clippy::too_many_arguments, reason = "a shape, two parameters and their pointers")]
pub(crate) unsafe fn layer_norm(
    on: Machine<'_>,
    team: &Team,
    rows: usize,
    len: usize,
    eps: f32,
    gamma: *const f32,
    beta: *const f32,
    src: *const f32,
    dst: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe { run(on, team, rows, Row { len, eps, gamma, beta, centred: true, stream: false }, src, dst) }
}

/// `dst[r, ..]` = x / √(mean x² + eps) · gamma with x = `src[r, ..]`; gamma may be null.
///
/// # Safety
/// As [`layer_norm`].
#[expect(clippy::too_many_arguments, reason = "a shape, a parameter and two pointers")]
pub(crate) unsafe fn rms_norm(
    on: Machine<'_>,
    team: &Team,
    rows: usize,
    len: usize,
    eps: f32,
    gamma: *const f32,
    src: *const f32,
    dst: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        run(on, team, rows, Row { len, eps, gamma, beta: std::ptr::null(), centred: false, stream: false }, src, dst)
    }
}

#[derive(Clone, Copy)]
struct Row {
    len: usize,
    eps: f32,
    gamma: *const f32,
    beta: *const f32,
    centred: bool,
    /// Whether rows that are whole aligned registers are written past the caches.
    stream: bool,
}
// SAFETY: the pointers are only read, and what they point to outlives the call.
unsafe impl Sync for Row {}

unsafe fn run(
    Machine { isa, tuning }: Machine<'_>,
    team: &Team,
    rows: usize,
    row: Row,
    src: *const f32,
    dst: *mut f32,
) {
    let (from, to) = (src as usize, dst as usize);
    let row = &Row { stream: rows * row.len >= tuning.norm_streamed_bytes_least() / 8 && from != to, ..row };
    let all = |range: std::ops::Range<usize>| {
        // SAFETY: the rows of this range, which only this thread touches.
        with_simd!(isa, s => unsafe {
            match (row.gamma.is_null(), row.beta.is_null()) {
                (true, true) => row.all::<_, false, false>(s, range, from as *const f32, to as *mut f32),
                (false, true) => row.all::<_, true, false>(s, range, from as *const f32, to as *mut f32),
                (true, false) => row.all::<_, false, true>(s, range, from as *const f32, to as *mut f32),
                (false, false) => row.all::<_, true, true>(s, range, from as *const f32, to as *mut f32),
            }
        })
    };
    if rows * row.len >= tuning.norm_threads_elements_least() {
        team.split(rows, 1, &|_, range| all(range))
    } else {
        all(0..rows)
    }
}

impl Row {
    /// # Safety
    /// As [`layer_norm`], for the rows of `range`; `G` and `B` say which parameters there are.
    #[inline(always)]
    unsafe fn all<S: Simd, const G: bool, const B: bool>(
        &self,
        s: S,
        range: std::ops::Range<usize>,
        src: *const f32,
        dst: *mut f32,
    ) {
        let len = self.len;
        let register = S::LANES * size_of::<f32>();
        let stream = self.stream && dst.addr().is_multiple_of(register) && len.is_multiple_of(S::LANES);
        for r in range {
            // SAFETY: row r of both, streamed only where every row begins with a whole register.
            unsafe {
                let (src, dst) = (src.add(r * len), dst.add(r * len));
                let mean = if self.centred { sum_row_of(s, src, len, |x| x) / len as f32 } else { 0.0 };
                let centre = s.splat(mean);
                let square = |x| {
                    let d = s.sub(x, centre);
                    s.mul(d, d)
                };
                let variance = sum_row_of(s, src, len, square) / len as f32;
                let factor = 1.0 / (variance + self.eps).sqrt();
                if stream {
                    self.write::<S, G, B, true>(s, mean, factor, src, dst);
                } else {
                    self.write::<S, G, B, false>(s, mean, factor, src, dst);
                }
            }
        }
        if stream {
            s.fence();
        }
    }

    /// Writes one row, and fetches the next.
    ///
    /// # Safety
    /// As [`layer_norm`], for one row; with `STREAM`, `dst` must be aligned to a register.
    #[inline(always)]
    unsafe fn write<S: Simd, const G: bool, const B: bool, const STREAM: bool>(
        &self,
        s: S,
        mean: f32,
        factor: f32,
        src: *const f32,
        dst: *mut f32,
    ) {
        let len = self.len;
        let whole = len / S::LANES * S::LANES;
        let (centre, factor) = (s.splat(mean), s.splat(factor));
        // SAFETY: whole vectors end at or before `len`, the last, partial one has the rest.
        unsafe {
            for i in (0..whole).step_by(S::LANES) {
                s.prefetch(src.wrapping_add(len + i).cast());
                let mut y = s.mul(s.sub(s.load(src.add(i)), centre), factor);
                if G && B {
                    y = s.mul_add(y, s.load(self.gamma.add(i)), s.load(self.beta.add(i)));
                } else if G {
                    y = s.mul(y, s.load(self.gamma.add(i)));
                } else if B {
                    y = s.add(y, s.load(self.beta.add(i)));
                }
                if STREAM { s.stream(dst.add(i), y) } else { s.store(dst.add(i), y) }
            }
            let n = len - whole;
            if n > 0 {
                let mut y = s.mul(s.sub(s.load_n(src.add(whole), n), centre), factor);
                if G {
                    y = s.mul(y, s.load_n(self.gamma.add(whole), n));
                }
                if B {
                    y = s.add(y, s.load_n(self.beta.add(whole), n));
                }
                s.store_n(dst.add(whole), y, n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::portable::Portable;
    use crate::tuning::on;
    use std::ptr::null;

    const EPS: f32 = 1e-5;

    fn values(n: usize, scale: f32, shift: f32) -> Vec<f32> {
        (0..n).map(|i| (((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0) * scale + shift).collect()
    }

    fn check(rows: usize, len: usize, src: &[f32], tolerance: f64) {
        let (gamma, beta) = (values(len, 2.0, 0.3), values(len, 1.0, -0.2));
        for (centred, g, b) in [(true, true, true), (true, false, false), (true, true, false), (true, false, true)]
            .into_iter()
            .chain([(false, true, false), (false, false, false)])
        {
            let row = Row {
                len,
                eps: EPS,
                gamma: if g { gamma.as_ptr() } else { null() },
                beta: if b { beta.as_ptr() } else { null() },
                centred,
                stream: false,
            };
            let mut want = vec![0.0f64; rows * len];
            for (want, x) in want.chunks_mut(len.max(1)).zip(src.chunks(len.max(1))) {
                let x: Vec<f64> = x.iter().map(|&x| x.into()).collect();
                let mean = if centred { x.iter().sum::<f64>() / len as f64 } else { 0.0 };
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / len as f64;
                for i in 0..len {
                    let y = (x[i] - mean) / (variance + f64::from(EPS)).sqrt();
                    let y = if g { y * f64::from(gamma[i]) } else { y };
                    want[i] = if b { y + f64::from(beta[i]) } else { y };
                }
            }
            let near = |got: &[f32], what: &str| {
                for (i, (&got, &want)) in got.iter().zip(&want).enumerate() {
                    let got = f64::from(got);
                    let good = (got - want).abs() <= tolerance * want.abs().max(1.0) || (got.is_nan() && want.is_nan());
                    assert!(good, "{what} {centred} {g} {b} {rows} × {len} [{i}]: {got} instead of {want}");
                }
            };
            for &isa in Isa::available() {
                for threads in 1..=3 {
                    let team = Team::new(threads).unwrap();
                    let mut once = vec![0.0f32; src.len()];
                    let mut place = src.to_vec();
                    // SAFETY: all buffers hold rows × len floats, and the parameters len.
                    unsafe {
                        run(on(isa), &team, rows, row, src.as_ptr(), once.as_mut_ptr());
                        run(on(isa), &team, rows, row, place.as_ptr(), place.as_mut_ptr());
                    }
                    near(&once, isa.name());
                    assert!(
                        once.iter().zip(&place).all(|(a, b)| a.to_bits() == b.to_bits()),
                        "{isa}: in place differs"
                    );
                }
            }
            fn lanes<S: Simd>(s: S, row: &Row, src: &[f32]) -> Vec<f32> {
                let mut dst = vec![0.0f32; src.len()];
                let rows = src.len() / row.len.max(1);
                // SAFETY: whole rows of both.
                unsafe {
                    match (row.gamma.is_null(), row.beta.is_null()) {
                        (true, true) => row.all::<S, false, false>(s, 0..rows, src.as_ptr(), dst.as_mut_ptr()),
                        (false, true) => row.all::<S, true, false>(s, 0..rows, src.as_ptr(), dst.as_mut_ptr()),
                        (true, false) => row.all::<S, false, true>(s, 0..rows, src.as_ptr(), dst.as_mut_ptr()),
                        (false, false) => row.all::<S, true, true>(s, 0..rows, src.as_ptr(), dst.as_mut_ptr()),
                    }
                }
                dst
            }
            near(&lanes(Portable::<4>, &row, src), "4 lanes");
            near(&lanes(Portable::<8>, &row, src), "8 lanes");
            near(&lanes(Portable::<16>, &row, src), "16 lanes");
        }
    }

    #[test]
    fn odd_lengths_and_magnitudes() {
        for len in [0usize, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 100, 1000] {
            for scale in [1e-20, 1.0, 1e15] {
                check(3, len, &values(3 * len, scale, 0.0), 4e-6);
            }
        }
        check(130, 301, &values(130 * 301, 1.0, 0.5), 4e-6);
    }

    #[test]
    fn a_large_mean_does_not_spoil_the_variance() {
        // The data themselves are rounded at 1000 · 2⁻²⁴; a difference of squares would lose everything.
        check(2, 1000, &values(2000, 1.0, 1000.0), 2e-4);
    }

    #[test]
    fn streamed_rows_are_the_same() {
        let len = 64;
        let src = values(8 * len, 1.0, 0.5);
        let dst = || vec![[0.0f32; 16]; src.len() / 16 + 1];
        for &isa in Isa::available() {
            let run = |stream: bool, to: *mut f32| {
                let row = Row { len, eps: EPS, gamma: src.as_ptr(), beta: null(), centred: true, stream };
                // SAFETY: both hold eight rows.
                with_simd!(isa, s => unsafe { row.all::<_, true, false>(s, 0..8, src.as_ptr(), to) });
            };
            let (mut plain, mut streamed) = (dst(), dst());
            // The first element at a register's border, and one beside it.
            let first = streamed.as_ptr().cast::<f32>().align_offset(64);
            for offset in [first, (first + 1) % 16] {
                run(false, plain.as_mut_ptr().cast::<f32>().wrapping_add(offset));
                run(true, streamed.as_mut_ptr().cast::<f32>().wrapping_add(offset));
                assert_eq!(plain.as_flattened()[offset..][..src.len()], streamed.as_flattened()[offset..][..src.len()]);
            }
        }
    }

    #[test]
    fn nan_and_infinity_spoil_their_row_only() {
        for special in [f32::NAN, f32::INFINITY] {
            let mut src = values(3 * 37, 1.0, 0.0);
            src[40] = special;
            if special.is_nan() {
                check(3, 37, &src, 4e-6);
            }
            let mut dst = vec![0.0f32; src.len()];
            let team = Team::new(1).unwrap();
            // SAFETY: both hold three rows.
            unsafe { layer_norm(on(Isa::detect()), &team, 3, 37, EPS, null(), null(), src.as_ptr(), dst.as_mut_ptr()) };
            assert!(dst[37..74].iter().all(|x| x.is_nan()));
            assert!(dst[..37].iter().chain(&dst[74..]).all(|x| x.is_finite()));
        }
    }
}
