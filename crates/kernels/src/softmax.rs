//! Softmax of dense rows.
//!
//! Three passes over a row that is in the first-level cache after the first: the maximum, the exponentials with their
//! sum, the scaling. A NaN anywhere, a +∞, or a row of −∞ only makes the whole row NaN, and that falls out of the
//! arithmetic: the difference to the maximum is then NaN.

use crate::math;
use crate::simd::{Simd, with_simd};
use crate::team::Team;
use crate::tuning::Machine;

/// Vectors that are summed before their sum is added to the total; partial sums keep long rows accurate.
const CHUNK: usize = 64;

/// `dst[r, ..]` = exp(x − m) / Σ exp(x − m) with x = `src[r, ..]` and m its maximum.
///
/// # Safety
/// `src` must be readable and `dst` writable for `rows · len` floats; they are the same or do not overlap.
pub(crate) unsafe fn softmax(on: Machine<'_>, team: &Team, rows: usize, len: usize, src: *const f32, dst: *mut f32) {
    let (from, to) = (src as usize, dst as usize);
    let all = |range: std::ops::Range<usize>| {
        with_simd!(on.isa, s => {
            for r in range {
                // SAFETY: row r of both, which only this thread touches.
                unsafe { row(s, len, (from as *const f32).add(r * len), (to as *mut f32).add(r * len)) }
            }
        })
    };
    if rows * len >= on.tuning.softmax_threads_elements_least() {
        team.split(rows, 1, &|_, range| all(range))
    } else {
        all(0..rows)
    }
}

#[inline(always)]
unsafe fn row<S: Simd>(s: S, len: usize, src: *const f32, dst: *mut f32) {
    let whole = len / S::LANES * S::LANES;
    let tail = len - whole;
    // SAFETY: whole vectors end at or before `len`, and the last, partial one has `tail` elements.
    unsafe {
        let top = s.splat(max(s, src, len));
        let mut total = s.splat(0.0);
        let mut i = 0;
        while i < whole {
            let end = whole.min(i + CHUNK * S::LANES);
            let mut sums = [s.splat(0.0); 4];
            while i + 4 * S::LANES <= end {
                for (k, sum) in sums.iter_mut().enumerate() {
                    let e = math::exp(s, s.sub(s.load(src.add(i + k * S::LANES)), top));
                    s.store(dst.add(i + k * S::LANES), e);
                    *sum = s.add(*sum, e);
                }
                i += 4 * S::LANES;
            }
            while i < end {
                let e = math::exp(s, s.sub(s.load(src.add(i)), top));
                s.store(dst.add(i), e);
                sums[0] = s.add(sums[0], e);
                i += S::LANES;
            }
            total = s.add(total, s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
        }
        let mut sum = s.sum(total);
        if tail > 0 {
            let e = math::exp(s, s.sub(s.load_n(src.add(whole), tail), top));
            let mut lanes = [0.0f32; 16];
            s.store_n(lanes.as_mut_ptr(), e, tail);
            s.store_n(dst.add(whole), e, tail);
            sum += s.sum(s.load(lanes.as_ptr()));
        }
        let factor = s.splat(1.0 / sum);
        for i in (0..whole).step_by(S::LANES) {
            s.store(dst.add(i), s.mul(s.load(dst.add(i)), factor));
        }
        s.store_n(dst.add(whole), s.mul(s.load_n(dst.add(whole), tail), factor), tail);
    }
}

/// The largest of `len` floats, −∞ of none; unspecified with NaN.
///
/// # Safety
/// `src` must be readable for `len` floats.
#[inline(always)]
pub(crate) unsafe fn max<S: Simd>(s: S, src: *const f32, len: usize) -> f32 {
    let mut i = 0;
    // SAFETY: vectors end at or before `len`; the last one overlaps the one before, which changes no maximum.
    unsafe {
        if len < S::LANES {
            return (0..len).map(|i| *src.add(i)).fold(f32::NEG_INFINITY, f32::max);
        }
        let mut best = [s.load(src); 4];
        while i + 4 * S::LANES <= len {
            for (k, best) in best.iter_mut().enumerate() {
                *best = s.max_fast(*best, s.load(src.add(i + k * S::LANES)));
            }
            i += 4 * S::LANES;
        }
        while i < len {
            best[0] = s.max_fast(best[0], s.load(src.add(i.min(len - S::LANES))));
            i += S::LANES;
        }
        s.max_lane(s.max_fast(s.max_fast(best[0], best[1]), s.max_fast(best[2], best[3])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::portable::Portable;
    use crate::tuning::on;

    fn check(rows: usize, len: usize, src: &[f32]) {
        let mut want = vec![0.0f64; rows * len];
        for (want, x) in want.chunks_mut(len.max(1)).zip(src.chunks(len.max(1))) {
            let top = x.iter().fold(f64::NEG_INFINITY, |m, &x| if x.is_nan() { f64::NAN } else { m.max(x.into()) });
            let sum: f64 = x.iter().map(|&x| (f64::from(x) - top).exp()).sum();
            for (want, &x) in want.iter_mut().zip(x) {
                *want = (f64::from(x) - top).exp() / sum;
            }
        }
        let near = |got: &[f32], what: &str| {
            for (i, (&got, &want)) in got.iter().zip(&want).enumerate() {
                let got = f64::from(got);
                let bound = 7e-6 * want + 1e-37;
                let good = got == want || (got - want).abs() <= bound || (got.is_nan() && want.is_nan());
                assert!(good, "{what} {rows} × {len} [{i}]: {got} instead of {want}");
            }
        };
        for &isa in Isa::available() {
            for threads in 1..=3 {
                let team = Team::new(threads).unwrap();
                let mut once = vec![0.0f32; src.len()];
                let mut place = src.to_vec();
                // SAFETY: all buffers hold rows × len floats.
                unsafe {
                    softmax(on(isa), &team, rows, len, src.as_ptr(), once.as_mut_ptr());
                    softmax(on(isa), &team, rows, len, place.as_ptr(), place.as_mut_ptr());
                }
                near(&once, isa.name());
                assert!(once.iter().zip(&place).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa}: in place differs");
            }
        }
        fn lanes<S: Simd>(s: S, len: usize, x: &mut [f32]) {
            for x in x.chunks_mut(len.max(1)) {
                let p = x.as_mut_ptr();
                // SAFETY: the chunk's own pointer and length.
                unsafe { row(s, len, p, p) }
            }
        }
        let mut wide = [src.to_vec(), src.to_vec(), src.to_vec()];
        lanes(Portable::<4>, len, &mut wide[0]);
        lanes(Portable::<8>, len, &mut wide[1]);
        lanes(Portable::<16>, len, &mut wide[2]);
        wide.iter().for_each(|got| near(got, "portable"));
    }

    fn values(n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|i| (((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0) * scale).collect()
    }

    #[test]
    fn odd_lengths_and_magnitudes() {
        for len in [0usize, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 100, 1000] {
            for scale in [1e-40, 1.0, 20.0, 1e4, 1e38] {
                check(3, len, &values(3 * len, scale));
            }
        }
        check(70, 301, &values(70 * 301, 5.0));
        check(1, 100_000, &values(100_000, 3.0));
    }

    #[test]
    fn infinities_and_nan() {
        for len in [1usize, 5, 16, 40] {
            check(2, len, &vec![f32::NEG_INFINITY; 2 * len]);
            check(2, len, &vec![f32::INFINITY; 2 * len]);
            for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, len / 2, len - 1] {
                    let mut src = values(2 * len, 2.0);
                    src[at] = special;
                    check(2, len, &src);
                }
            }
        }
    }
}
