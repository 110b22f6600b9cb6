//! Sums, means, maxima and minima over the middle axis of a dense [outer, len, inner] array.
//!
//! Sums are pairwise. Eight vectors are added as a tree, and each such partial sum then climbs a binary counter: level k
//! holds the sum of 2ᵏ of them. The counter costs one addition, load and store for eight loads, so the accuracy of a
//! full tree comes at the speed of a plain loop. The order depends on the shape alone, never on the threads.
//!
//! Columns (inner > 1) are vectors along `inner`, in strips narrow enough for the counter to stay in the cache; rows
//! (inner = 1) are the same loop over consecutive vectors of one row. A long axis with few columns is cut into a fixed
//! number of parts, so that several threads can share it.

use crate::math;
use crate::simd::{Isa, Simd, with_simd};
use crate::team::Team;
use crate::tuning::Machine;
use std::mem::MaybeUninit;

/// What to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// Σ x; 0 of nothing.
    Sum,
    /// Σ x / len; NaN of nothing.
    Mean,
    /// The largest, NaN if any is; −∞ of nothing.
    Max,
    /// The smallest, NaN if any is; +∞ of nothing.
    Min,
}

/// Columns that are reduced side by side.
const STRIP: usize = 512;
/// Levels of the counter: enough for 2³² × 8 vectors.
const LEVELS: usize = 32;
/// Vectors that are added as one tree.
const TREE: usize = 8;
/// Parts of a long axis that the threads share.
const PARTS: usize = 16;

/// `dst[o, i]` = the reduction of `src[o, .., i]`.
///
/// # Safety
/// `src` must be readable for `outer · len · inner` floats and `dst` writable for `outer · inner`, without overlap.
#[expect(clippy::too_many_arguments, reason = "a shape and two pointers")]
pub(crate) unsafe fn reduce(
    Machine { isa, tuning }: Machine<'_>,
    team: &Team,
    op: Reduce,
    outer: usize,
    len: usize,
    inner: usize,
    src: *const f32,
    dst: *mut f32,
) {
    let (from, to) = (src as usize, dst as usize);
    let strips = inner.div_ceil(STRIP);
    let many = outer * len * inner >= tuning.reduce_threads_elements_least();
    let block = |o: usize, strip: usize, rows: std::ops::Range<usize>| Block {
        // The first element of a strip of columns of one block. Where `len` is 0 it lies beyond the source, and is not
        // read.
        src: (from as *const f32).wrapping_add((o * len + rows.start) * inner + strip * STRIP),
        stride: inner,
        len: rows.len(),
        width: STRIP.min(inner - strip * STRIP),
    };
    if many && len >= PARTS * 256 && outer < PARTS && inner <= STRIP {
        // Few columns of a long axis: each part is reduced on its own, then the parts.
        let mut parts = [MaybeUninit::<f32>::uninit(); PARTS * STRIP];
        let partial = parts.as_mut_ptr() as usize;
        let cut = |part: usize| len * part / PARTS;
        for o in 0..outer {
            team.split(PARTS, 1, &|_, range| {
                for part in range {
                    let part_of = block(o, 0, cut(part)..cut(part + 1));
                    // SAFETY: the part lies within the source, and `parts` has room for `STRIP` columns of each.
                    with_simd!(isa, s => unsafe { part_of.run(s, op, (partial as *mut f32).add(part * inner)) });
                }
            });
            let parts = Block { src: partial as *const f32, stride: inner, len: PARTS, width: inner };
            // SAFETY: all parts were just written.
            with_simd!(isa, s => unsafe { parts.run(s, op, (to as *mut f32).add(o * inner)) });
        }
    } else {
        let all = |range: std::ops::Range<usize>| {
            if inner == 1 && are_short(isa, op, len) {
                // SAFETY: the rows lie within the source, and their sums within the destination.
                with_simd!(isa, s => unsafe { sum_short_rows(s, from as *const f32, len, range, to as *mut f32) });
                return;
            }
            with_simd!(isa, s => {
                for unit in range {
                    let (o, strip) = (unit / strips, unit % strips);
                    // SAFETY: the block lies within the source, and its columns within the destination.
                    unsafe { block(o, strip, 0..len).run(s, op, (to as *mut f32).add(o * inner + strip * STRIP)) };
                }
            })
        };
        if many { team.split(outer * strips, 1, &|_, range| all(range)) } else { all(0..outer * strips) }
    }
    if op == Reduce::Mean {
        for i in 0..outer * inner {
            // SAFETY: within the destination, written above.
            unsafe { *dst.add(i) /= len as f32 };
        }
    }
}

/// `len` rows of `width` columns, `stride` apart.
struct Block {
    src: *const f32,
    stride: usize,
    len: usize,
    width: usize,
}

impl Block {
    /// # Safety
    /// The block must be readable and `dst` writable for `width` floats.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, s: S, op: Reduce, dst: *mut f32) {
        // SAFETY: the caller's promise, for each of them.
        unsafe {
            match (op, self.stride) {
                (Reduce::Sum | Reduce::Mean, 1) => *dst = sum_row(s, self.src, self.len),
                (Reduce::Sum | Reduce::Mean, _) => self.sum_columns(s, dst),
                (Reduce::Max, 1) => *dst = extreme_row(s, Largest, self.src, self.len),
                (Reduce::Min, 1) => *dst = extreme_row(s, Smallest, self.src, self.len),
                (Reduce::Max, _) => self.extreme_columns(s, Largest, dst),
                (Reduce::Min, _) => self.extreme_columns(s, Smallest, dst),
            }
        }
    }

    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn sum_columns<S: Simd>(&self, s: S, dst: *mut f32) {
        let mut counter = [MaybeUninit::<f32>::uninit(); LEVELS * STRIP];
        let counter = counter.as_mut_ptr().cast::<f32>();
        let trees = self.len / TREE;
        // SAFETY: row and column stay below `len` and `width`; a level is read only after it was written.
        unsafe {
            for tree in 0..trees {
                let rows = self.src.add(tree * TREE * self.stride);
                let levels = tree.trailing_ones() as usize;
                self.columns(
                    s,
                    #[inline(always)]
                    |col, n| {
                        let at = |r: usize| load(s, rows.add(r * self.stride + col), n);
                        let low = s.add(s.add(at(0), at(1)), s.add(at(2), at(3)));
                        let high = s.add(s.add(at(4), at(5)), s.add(at(6), at(7)));
                        let mut sum = s.add(low, high);
                        for level in 0..levels {
                            sum = s.add(load(s, counter.add(level * STRIP + col), n), sum);
                        }
                        store(s, counter.add(levels * STRIP + col), sum, n);
                    },
                );
            }
            self.columns(
                s,
                #[inline(always)]
                |col, n| {
                    let mut sum = s.splat(0.0);
                    for r in trees * TREE..self.len {
                        sum = s.add(sum, load(s, self.src.add(r * self.stride + col), n));
                    }
                    for level in 0..LEVELS {
                        if trees >> level & 1 == 1 {
                            sum = s.add(load(s, counter.add(level * STRIP + col), n), sum);
                        }
                    }
                    store(s, dst.add(col), sum, n);
                },
            );
        }
    }

    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn extreme_columns<S: Simd, E: Extreme>(&self, s: S, e: E, dst: *mut f32) {
        // SAFETY: row and column stay below `len` and `width`.
        unsafe {
            self.columns(
                s,
                #[inline(always)]
                |col, n| store(s, dst.add(col), s.splat(E::EMPTY), n),
            );
            for tree in 0..self.len.div_ceil(TREE) {
                let rows = tree * TREE..self.len.min(tree * TREE + TREE);
                self.columns(
                    s,
                    #[inline(always)]
                    |col, n| {
                        let mut best = load(s, dst.add(col), n);
                        for r in rows.clone() {
                            best = e.pick(s, best, load(s, self.src.add(r * self.stride + col), n));
                        }
                        store(s, dst.add(col), best, n);
                    },
                );
            }
        }
    }

    /// Calls `f(column, n)` for each vector of columns, `n` of them.
    #[inline(always)]
    fn columns<S: Simd>(&self, _: S, mut f: impl FnMut(usize, usize)) {
        let whole = self.width / S::LANES * S::LANES;
        for col in (0..whole).step_by(S::LANES) {
            f(col, S::LANES);
        }
        if whole < self.width {
            f(whole, self.width - whole);
        }
    }
}

/// The places of the ones in a binary number: the levels of a counter that hold something.
#[inline(always)]
fn ones(mut n: usize) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = n.trailing_zeros() as usize;
        (n != 0).then(|| {
            n &= n - 1;
            place
        })
    })
}

#[inline(always)]
unsafe fn load<S: Simd>(s: S, p: *const f32, n: usize) -> S::F {
    // SAFETY: the caller gives n floats.
    unsafe { if n == S::LANES { s.load(p) } else { s.load_n(p, n) } }
}

#[inline(always)]
unsafe fn store<S: Simd>(s: S, p: *mut f32, v: S::F, n: usize) {
    // SAFETY: the caller gives n floats.
    unsafe { if n == S::LANES { s.store(p, v) } else { s.store_n(p, v, n) } }
}

/// Σ f(x) over a row, pairwise, for the row-wise kernels that need one.
///
/// # Safety
/// `src` must be readable for `len` floats.
#[inline(always)]
pub(crate) unsafe fn sum_row_of<S: Simd>(s: S, src: *const f32, len: usize, f: impl Fn(S::F) -> S::F) -> f32 {
    let step = TREE * S::LANES;
    let trees = len / step;
    let mut total = s.splat(0.0);
    // SAFETY: vectors end at or before `len`; the lanes missing from the last one are cleared after `f`.
    unsafe {
        let mut rest = trees * step;
        while rest + S::LANES <= len {
            total = s.add(total, f(s.load(src.add(rest))));
            rest += S::LANES;
        }
        let mut tail = 0.0;
        if rest < len {
            let mut lanes = [0.0f32; 16];
            s.store_n(lanes.as_mut_ptr(), f(s.load_n(src.add(rest), len - rest)), len - rest);
            tail = s.sum(s.load(lanes.as_ptr()));
        }
        let mut counter = [MaybeUninit::<S::F>::uninit(); LEVELS];
        for tree in 0..trees {
            let p = src.add(tree * step);
            let a = s.add(f(s.load(p)), f(s.load(p.add(S::LANES))));
            let b = s.add(f(s.load(p.add(2 * S::LANES))), f(s.load(p.add(3 * S::LANES))));
            let c = s.add(f(s.load(p.add(4 * S::LANES))), f(s.load(p.add(5 * S::LANES))));
            let d = s.add(f(s.load(p.add(6 * S::LANES))), f(s.load(p.add(7 * S::LANES))));
            let mut sum = s.add(s.add(a, b), s.add(c, d));
            let levels = tree.trailing_ones() as usize;
            for level in &counter[..levels] {
                sum = s.add(level.assume_init(), sum);
            }
            counter[levels].write(sum);
        }
        for level in ones(trees) {
            total = s.add(counter[level].assume_init(), total);
        }
        s.sum(total) + tail
    }
}

/// Whether rows are summed that consist of a few vectors each.
fn are_short(isa: Isa, op: Reduce, len: usize) -> bool {
    matches!(op, Reduce::Sum | Reduce::Mean) && len > 0 && len < TREE * isa.lanes()
}

/// How many neighbouring lanes of a short row's vector are added side by side.
const SIDES: usize = 4;
/// From so many rows on they are transposed to be summed.
const TURNED_LEAST: usize = 4;

/// The sums of these rows. Of many, what is left of each, a vector, is transposed: that takes less time than to add up the
/// lanes of each. Both ways add in the same order, so a row's sum does not depend on how many rows there are.
///
/// # Safety
/// `src` must be readable for these rows of `len` floats, and `dst` writable for a float for each.
#[inline(always)]
unsafe fn sum_short_rows<S: Simd>(s: S, src: *const f32, len: usize, rows: std::ops::Range<usize>, dst: *mut f32) {
    let stride = (S::LANES * 4) as isize;
    let whole = len / S::LANES * S::LANES;
    let (mut sums, mut turned) = ([0.0f32; 16 * 16], [0.0f32; 16 * 16]);
    for first in rows.clone().step_by(S::LANES) {
        let n = S::LANES.min(rows.end - first);
        // SAFETY: the rows are the caller's; both squares hold a vector for each lane.
        unsafe {
            for row in 0..n {
                let from = src.add((first + row) * len);
                let mut sum = if whole < len { s.load_n(from.add(whole), len - whole) } else { s.splat(0.0) };
                for at in (0..whole).step_by(S::LANES) {
                    sum = s.add(sum, s.load(from.add(at)));
                }
                s.store(sums.as_mut_ptr().add(row * S::LANES), sum);
            }
            if n < TURNED_LEAST {
                for row in 0..n {
                    let mut parts = [0.0; SIDES];
                    for lane in 0..S::LANES {
                        parts[lane % SIDES] += sums[row * S::LANES + lane];
                    }
                    *dst.add(first + row) = (parts[0] + parts[1]) + (parts[2] + parts[3]);
                }
                continue;
            }
            s.transpose::<false>(sums.as_ptr().cast(), stride, turned.as_mut_ptr().cast(), stride);
            let mut parts = [s.splat(0.0); SIDES];
            for lane in 0..S::LANES {
                parts[lane % SIDES] = s.add(parts[lane % SIDES], s.load(turned.as_ptr().add(lane * S::LANES)));
            }
            let sum = s.add(s.add(parts[0], parts[1]), s.add(parts[2], parts[3]));
            store(s, dst.add(first), sum, n);
        }
    }
}

#[inline(always)]
unsafe fn sum_row<S: Simd>(s: S, src: *const f32, len: usize) -> f32 {
    // SAFETY: the caller gives len floats.
    unsafe { sum_row_of(s, src, len, |x| x) }
}

trait Extreme: Copy {
    const EMPTY: f32;
    /// The better of two, NaN if either is.
    fn pick<S: Simd>(self, s: S, a: S::F, b: S::F) -> S::F;
    /// The best lane; unspecified with NaN.
    fn across<S: Simd>(self, s: S, a: S::F) -> f32;
}

#[derive(Clone, Copy)]
struct Largest;
#[derive(Clone, Copy)]
struct Smallest;

impl Extreme for Largest {
    const EMPTY: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn pick<S: Simd>(self, s: S, a: S::F, b: S::F) -> S::F {
        math::max(s, a, b)
    }
    #[inline(always)]
    fn across<S: Simd>(self, s: S, a: S::F) -> f32 {
        s.max_lane(a)
    }
}

impl Extreme for Smallest {
    const EMPTY: f32 = f32::INFINITY;
    #[inline(always)]
    fn pick<S: Simd>(self, s: S, a: S::F, b: S::F) -> S::F {
        math::min(s, a, b)
    }
    #[inline(always)]
    fn across<S: Simd>(self, s: S, a: S::F) -> f32 {
        -s.max_lane(s.neg(a))
    }
}

#[inline(always)]
unsafe fn extreme_row<S: Simd, E: Extreme>(s: S, e: E, src: *const f32, len: usize) -> f32 {
    let mut best = [s.splat(E::EMPTY); 4];
    let mut i = 0;
    // SAFETY: vectors end at or before `len`; the last one is padded with values that change nothing.
    unsafe {
        while i + 4 * S::LANES <= len {
            for (k, best) in best.iter_mut().enumerate() {
                *best = e.pick(s, *best, s.load(src.add(i + k * S::LANES)));
            }
            i += 4 * S::LANES;
        }
        while i + S::LANES <= len {
            best[0] = e.pick(s, best[0], s.load(src.add(i)));
            i += S::LANES;
        }
        if i < len {
            let mut lanes = [E::EMPTY; 16];
            s.store_n(lanes.as_mut_ptr(), s.load_n(src.add(i), len - i), len - i);
            best[0] = e.pick(s, best[0], s.load(lanes.as_ptr()));
        }
        let best = e.pick(s, e.pick(s, best[0], best[1]), e.pick(s, best[2], best[3]));
        // NaN if any lane is, else 0.
        let nan = s.sum(s.select(s.eq(best, best), s.splat(0.0), s.splat(f32::NAN)));
        nan + e.across(s, best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::portable::Portable;
    use crate::tuning::on;

    fn values(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + 13) % 1009) as f32 / 100.0 - 4.7).collect()
    }

    fn run(isa: Isa, threads: usize, op: Reduce, [outer, len, inner]: [usize; 3], src: &[f32]) -> Vec<f32> {
        let mut dst = vec![7.0f32; outer * inner];
        let team = Team::new(threads).unwrap();
        // SAFETY: both buffers have the sizes the shape says.
        unsafe { reduce(on(isa), &team, op, outer, len, inner, src.as_ptr(), dst.as_mut_ptr()) };
        dst
    }

    fn check(shape: [usize; 3], src: &[f32]) {
        let [outer, len, inner] = shape;
        for op in [Reduce::Sum, Reduce::Mean, Reduce::Max, Reduce::Min] {
            for &isa in Isa::available() {
                for threads in 1..=3 {
                    let got = run(isa, threads, op, shape, src);
                    assert!(same(&got, &run(isa, 1, op, shape, src)), "{isa} {op:?} {shape:?}: depends on the threads");
                    for o in 0..outer {
                        for i in 0..inner {
                            let column = (0..len).map(|j| src[(o * len + j) * inner + i]);
                            let sum: f64 = column.clone().map(f64::from).sum();
                            let size: f64 = column.clone().map(|x| f64::from(x).abs()).sum();
                            let mut nan = column.clone().filter(|x| x.is_nan());
                            let (want, bound) = match op {
                                Reduce::Sum => (sum, size * 1e-6),
                                Reduce::Mean => (sum / len as f64, size / len as f64 * 1e-6),
                                _ if nan.next().is_some() => (f64::NAN, 0.0),
                                Reduce::Max => (column.fold(f32::NEG_INFINITY, f32::max).into(), 0.0),
                                Reduce::Min => (column.fold(f32::INFINITY, f32::min).into(), 0.0),
                            };
                            let got = f64::from(got[o * inner + i]);
                            let good = got == want || (got - want).abs() <= bound || (got.is_nan() && want.is_nan());
                            assert!(good, "{isa} {op:?} {shape:?} [{o}, {i}]: {got} instead of {want}");
                        }
                    }
                }
            }
        }
    }

    fn same(a: &[f32], b: &[f32]) -> bool {
        a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
    }

    #[test]
    fn odd_shapes() {
        for len in [0usize, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 100, 129] {
            for inner in [1usize, 2, 3, 15, 16, 17, 33, 100] {
                check([3, len, inner], &values(3 * len * inner));
            }
        }
        check([0, 5, 3], &[]);
        check([2, 9, 1030], &values(2 * 9 * 1030));
    }

    #[test]
    fn large_shapes_that_the_threads_share() {
        for shape in [
            [1, 70_003, 1],
            [300, 300, 1],
            [6000, 13, 1],
            [1003, 67, 1],
            [77, 32, 1],
            [1, 5000, 17],
            [1, 300, 1100],
            [40, 70, 33],
        ] {
            check(shape, &values(shape.iter().product()));
        }
    }

    #[test]
    fn a_rows_sum_does_not_depend_on_how_many_rows_there_are() {
        for len in [1usize, 5, 16, 31, 32, 50, 100] {
            let src = values(40 * len);
            for &isa in Isa::available() {
                let all = run(isa, 1, Reduce::Sum, [40, len, 1], &src);
                for rows in [1, 3, 7] {
                    let some = run(isa, 1, Reduce::Sum, [rows, len, 1], &src[..rows * len]);
                    assert!(same(&some, &all[..rows]), "{isa}: {rows} rows of {len}");
                }
            }
        }
    }

    #[test]
    fn special_values() {
        let mut src = values(5 * 40 * 3);
        src[17] = f32::NAN;
        src[200] = f32::INFINITY;
        src[330] = f32::NEG_INFINITY;
        src[460] = f32::INFINITY;
        src[463] = f32::NEG_INFINITY;
        check([5, 40, 3], &src);
        check([15, 40, 1], &src);
        check([50, 12, 1], &src);
        check([3, 50, 4], &[1e-42; 600]);
        check([3, 50, 4], &[-3e36; 600]);
        check([1, 33, 1], &[f32::NEG_INFINITY; 33]);
    }

    #[test]
    fn sums_are_as_accurate_as_a_tree() {
        // A plain loop over ten million tenths is off by 10⁻², eight lanes of it by 10⁻³.
        let src = vec![0.1f32; 10_000_000];
        let want = 0.1f32 as f64;
        for &isa in Isa::available() {
            for (shape, len) in [([1, 10_000_000, 1], 1e7), ([1, 1_250_000, 8], 1.25e6), ([1, 10_000, 1000], 1e4)] {
                for got in run(isa, 2, Reduce::Sum, shape, &src) {
                    assert!((f64::from(got) / (want * len) - 1.0).abs() < 1e-6, "{isa} {shape:?}: {got}");
                }
            }
        }
    }

    #[test]
    fn every_portable_width() {
        let src = values(1003);
        let want: f64 = src.iter().map(|&x| f64::from(x)).sum();
        fn all<S: Simd>(s: S, src: &[f32]) -> [f32; 3] {
            let (p, n) = (src.as_ptr(), src.len());
            // SAFETY: the slice's own pointer and length.
            unsafe { [sum_row(s, p, n), extreme_row(s, Largest, p, n), extreme_row(s, Smallest, p, n)] }
        }
        for got in [all(Portable::<4>, &src), all(Portable::<8>, &src), all(Portable::<16>, &src)] {
            assert!((f64::from(got[0]) - want).abs() < 1e-3);
            assert_eq!(got[1], src.iter().copied().fold(f32::MIN, f32::max));
            assert_eq!(got[2], src.iter().copied().fold(f32::MAX, f32::min));
        }
    }
}
