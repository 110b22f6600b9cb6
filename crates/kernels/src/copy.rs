//! Strided copies: permutations, slices, concatenations and broadcasts of elements of 1, 2 or 4 bytes.
//!
//! Axes may be walked in any order, so they are sorted by the destination's strides, and neighbours that are contiguous
//! on both sides are merged. One of three loops does the rest:
//! * *runs*: the innermost axis is dense on both sides, so whole runs move as bytes; runs of 16 bytes or less are
//!   elements instead, where their number is a power of two;
//! * *transposes*: the innermost axis is dense in the destination and another one in the source, so tiles are transposed
//!   in registers;
//! * *single elements*, for the rest.
//!
//! The destination of a transpose is walked in panels of few enough rows that their pages stay in the TLB. Very large
//! outputs are written past the caches: they would not stay there, and streamed stores need not read a line before they
//! write it.

mod transpose;

use crate::simd::{Isa, Simd, with_simd};
use crate::team::Team;
use crate::tuning::{Machine, Tuning};
use transpose::Panel;

/// The most axes a copy can have.
pub(crate) const MAX_DIMS: usize = 6;

/// One axis: its length and its strides in bytes.
#[derive(Clone, Copy, Default)]
struct Axis {
    n: usize,
    src: isize,
    dst: isize,
}

/// Copies `dims` elements of `elem_bytes` (1, 2 or 4) from `src` to `dst`; strides count elements, one for each
/// dimension.
///
/// A source stride may be 0 (broadcast) or negative (reversed).
///
/// # Panics
/// If `elem_bytes` is none of 1, 2, 4, there are more than [`MAX_DIMS`] axes, or the slices differ in length.
///
/// # Safety
/// Every element reached from `src` must be readable and every element reached from `dst` writable, both aligned to
/// `elem_bytes`; the destination's elements must be distinct and none may overlap the source.
#[expect(clippy::too_many_arguments, reason = "two strided operands")]
pub(crate) unsafe fn copy(
    Machine { isa, tuning }: Machine<'_>,
    team: &Team,
    elem_bytes: usize,
    dims: &[usize],
    src: *const u8,
    src_strides: &[isize],
    dst: *mut u8,
    dst_strides: &[isize],
) {
    assert!(matches!(elem_bytes, 1 | 2 | 4), "elements of {elem_bytes} bytes");
    assert!(dims.len() <= MAX_DIMS && dims.len() == src_strides.len() && dims.len() == dst_strides.len());
    let mut axes = [Axis::default(); MAX_DIMS];
    let e = elem_bytes as isize;
    let all = dims.iter().zip(src_strides).zip(dst_strides);
    let Some(mut rank) = simplify(&mut axes, all.map(|((&n, &src), &dst)| Axis { n, src: src * e, dst: dst * e }), e)
    else {
        return;
    };
    let bytes = count(&axes[..rank]) * elem_bytes;
    let job = Job { isa, tuning, team, bytes, src: src as usize, dst: dst as usize };
    let mut elem = elem_bytes;
    if let [.., _, Axis { n, src, dst }] = axes[..rank]
        && src == e
        && dst == e
        && matches!(n * elem, 2 | 4 | 8 | 16)
    {
        elem *= n;
        rank -= 1;
    }
    let axes = &mut axes[..rank];
    let e = elem as isize;
    let (inner, outer) = axes.split_last_mut().expect("simplify leaves one axis");
    let across = outer.iter().position(|a| a.src == e).filter(|_| inner.dst == e && inner.src != 0);
    // SAFETY: the axes reach exactly the elements that the caller promises.
    unsafe {
        if inner.src == e && inner.dst == e {
            // Dense reads and scattered writes of whole runs prefetch better than the other way round.
            outer.sort_unstable_by_key(|a| std::cmp::Reverse(a.src.unsigned_abs()));
            job.runs(outer, inner.n * elem)
        } else if let Some(across) = across {
            outer[across..].rotate_left(1);
            let (across, outer) = outer.split_last().expect("`across` is one of them");
            job.transposes(elem, outer, *across, *inner)
        } else {
            job.elements(elem, outer, *inner)
        }
    }
}

/// Drops axes of length 1, sorts the rest by the destination's stride and merges neighbours; returns how many are
/// left, at least 1, or nothing if there is nothing to copy.
fn simplify(axes: &mut [Axis; MAX_DIMS], all: impl Iterator<Item = Axis>, elem: isize) -> Option<usize> {
    let mut rank = 0;
    for axis in all {
        match axis.n {
            0 => return None,
            1 => {}
            _ => {
                axes[rank] = axis;
                rank += 1;
            }
        }
    }
    axes[..rank].sort_unstable_by_key(|a| std::cmp::Reverse(a.dst.unsigned_abs()));
    let mut kept = 0;
    for i in 1..rank {
        let inner = axes[i];
        let outer = &mut axes[kept];
        if outer.src == inner.src * inner.n as isize && outer.dst == inner.dst * inner.n as isize {
            *outer = Axis { n: outer.n * inner.n, ..inner };
        } else {
            kept += 1;
            axes[kept] = inner;
        }
    }
    if rank == 0 {
        axes[0] = Axis { n: 1, src: elem, dst: elem };
    }
    Some(kept + 1)
}

/// The byte offsets of the outer axes, in order, from any position on.
struct Walk<'a> {
    axes: &'a [Axis],
    at: [usize; MAX_DIMS],
    src: isize,
    dst: isize,
}

impl<'a> Walk<'a> {
    fn from(axes: &'a [Axis], mut index: usize) -> Self {
        let mut walk = Walk { axes, at: [0; MAX_DIMS], src: 0, dst: 0 };
        for (at, axis) in walk.at[..axes.len()].iter_mut().zip(axes).rev() {
            *at = index % axis.n;
            index /= axis.n;
            walk.src += *at as isize * axis.src;
            walk.dst += *at as isize * axis.dst;
        }
        walk
    }

    #[inline(always)]
    fn step(&mut self) {
        for (at, axis) in self.at[..self.axes.len()].iter_mut().zip(self.axes).rev() {
            self.src += axis.src;
            self.dst += axis.dst;
            *at += 1;
            if *at < axis.n {
                return;
            }
            *at = 0;
            self.src -= axis.src * axis.n as isize;
            self.dst -= axis.dst * axis.n as isize;
        }
    }
}

/// Runs that are written this far apart all belong to the same few lines of the first-level cache.
const CROWDED: isize = 4096;
/// So many of them still have room there.
const AT_A_TIME: usize = 8;

/// The axes of runs, the last of which is walked first. Where it is written at distances that crowd the cache, a few of its runs
/// are taken together with all of the axis before, so that lines are written whole.
fn apart<'a>(outer: &'a [Axis], axes: &'a mut [Axis; MAX_DIMS]) -> &'a [Axis] {
    let [rest @ .., before, last] = outer else { return outer };
    let crowded = last.dst % CROWDED == 0 && before.dst.abs() < CROWDED && last.n > AT_A_TIME;
    if !crowded || !last.n.is_multiple_of(AT_A_TIME) || outer.len() == MAX_DIMS {
        return outer;
    }
    let few = AT_A_TIME as isize;
    axes[..rest.len()].copy_from_slice(rest);
    axes[rest.len()] = Axis { n: last.n / AT_A_TIME, src: few * last.src, dst: few * last.dst };
    axes[rest.len() + 1] = *before;
    axes[rest.len() + 2] = Axis { n: AT_A_TIME, ..*last };
    &axes[..=outer.len()]
}

fn count(axes: &[Axis]) -> usize {
    axes.iter().map(|a| a.n).product()
}

/// What the three loops share. Addresses are integers, because raw pointers cannot be shared with other threads.
struct Job<'a> {
    isa: Isa,
    tuning: &'a Tuning,
    team: &'a Team,
    bytes: usize,
    src: usize,
    dst: usize,
}

impl Job<'_> {
    fn parallel(&self) -> bool {
        self.bytes >= self.tuning.copy_threads_bytes_least()
    }

    fn split(&self, len: usize, f: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        if self.parallel() { self.team.split(len, 1, &|_, range| f(range)) } else { f(0..len) }
    }

    /// # Safety
    /// As [`copy`], for the elements that `outer` and runs of `run` bytes reach.
    unsafe fn runs(&self, outer: &[Axis], run: usize) {
        let mut axes = [Axis::default(); MAX_DIMS];
        let outer = apart(outer, &mut axes);
        // Each piece of a long run is one `memcpy`.
        let most = self.tuning.copy_piece_bytes();
        let pieces = if run <= most { 1 } else { run.div_ceil(most) };
        if pieces == 1 {
            return self.split(count(outer), &|range| {
                // SAFETY: each run is within the caller's elements.
                with_simd!(self.isa, s => unsafe { copy_runs(s, self, outer, run, range) })
            });
        }
        self.split(count(outer) * pieces, &|range| {
            for unit in range {
                let walk = Walk::from(outer, unit / pieces);
                let start = unit % pieces * most;
                let (src, dst) = (self.src as *const u8, self.dst as *mut u8);
                // SAFETY: a piece of a run, within the caller's elements.
                unsafe {
                    let (src, dst) = (src.offset(walk.src).add(start), dst.offset(walk.dst).add(start));
                    dst.copy_from_nonoverlapping(src, most.min(run - start));
                }
            }
        });
    }

    /// # Safety
    /// As [`copy`]: `inner` is dense in the destination, `across` in the source.
    unsafe fn transposes(&self, elem: usize, outer: &[Axis], across: Axis, inner: Axis) {
        let threads = if self.parallel() { self.team.threads() } else { 1 };
        let blocks = count(outer);
        let share = across.n.div_ceil(threads.div_ceil(blocks)).next_multiple_of(64);
        let panel = share.min(self.tuning.copy_panel_rows());
        let panels = across.n.div_ceil(panel);
        let large = self.bytes >= self.tuning.copy_streamed_bytes_least();
        let crowded = self.bytes >= self.tuning.copy_crowded_bytes_least()
            && Panel::crowds(self.isa, elem, inner.src, across.dst);
        let panel = |unit: usize| {
            let walk = Walk::from(outer, unit / panels);
            let first = unit % panels * panel;
            Panel {
                // SAFETY: the first element of a block, moved to the first column of the panel.
                src: unsafe { (self.src as *const u8).offset(walk.src).add(first * elem) },
                src_stride: inner.src,
                // SAFETY: likewise.
                dst: unsafe { (self.dst as *mut u8).offset(walk.dst + first as isize * across.dst) },
                dst_stride: across.dst,
                rows: inner.n,
                cols: panel.min(across.n - first),
            }
        };
        self.split(blocks * panels, &|range| {
            let panels = range.map(panel);
            // SAFETY: panels are within the caller's elements.
            unsafe {
                if crowded {
                    with_simd!(self.isa, s => transpose::crowded(s, elem, panels, large))
                } else {
                    with_simd!(self.isa, s => transpose::plain(s, elem, panels, large))
                }
            }
        });
    }

    /// # Safety
    /// As [`copy`].
    unsafe fn elements(&self, elem: usize, outer: &[Axis], inner: Axis) {
        self.split(count(outer), &|range| {
            // SAFETY: each line is within the caller's elements.
            with_simd!(self.isa, s => unsafe {
                match elem {
                    1 => copy_elements::<u8, _>(s, self, outer, inner, range),
                    2 => copy_elements::<u16, _>(s, self, outer, inner, range),
                    4 => copy_elements::<u32, _>(s, self, outer, inner, range),
                    8 => copy_elements::<u64, _>(s, self, outer, inner, range),
                    _ => copy_elements::<u128, _>(s, self, outer, inner, range),
                }
            })
        });
    }
}

/// # Safety
/// The runs must be accessible as [`copy`] says.
#[inline(always)]
unsafe fn copy_runs<S: Simd>(s: S, job: &Job<'_>, outer: &[Axis], run: usize, range: std::ops::Range<usize>) {
    let (last, outer) = outer.split_last().map_or((Axis { n: 1, src: 0, dst: 0 }, outer), |(a, rest)| (*a, rest));
    let mut walk = Walk::from(outer, range.start / last.n);
    let (mut done, mut skip) = (range.start, range.start % last.n);
    while done < range.end {
        let n = (last.n - skip).min(range.end - done);
        // SAFETY: n runs of the caller's, one a step of the last axis.
        unsafe {
            let src = (job.src as *const u8).offset(walk.src + skip as isize * last.src);
            let dst = (job.dst as *mut u8).offset(walk.dst + skip as isize * last.dst);
            let runs = Axis { n, ..last };
            match run {
                64 => copy_line(s, src, dst, 64, runs),
                128 => copy_line(s, src, dst, 128, runs),
                256 => copy_line(s, src, dst, 256, runs),
                512 => copy_line(s, src, dst, 512, runs),
                _ => copy_line(s, src, dst, run, runs),
            }
        }
        (done, skip) = (done + n, 0);
        walk.step();
    }
}

/// Runs of one length along one axis; inlined, so that a constant length becomes a few moves without a loop.
///
/// # Safety
/// As [`copy_runs`].
#[inline(always)]
unsafe fn copy_line<S: Simd>(s: S, src: *const u8, dst: *mut u8, run: usize, axis: Axis) {
    for i in 0..axis.n as isize {
        // SAFETY: the caller's promise.
        unsafe { copy_bytes(s, src.offset(i * axis.src), dst.offset(i * axis.dst), run) }
    }
}

/// A `memcpy` that inlines: what runs of a few registers need.
///
/// # Safety
/// `n` bytes must be readable at `src` and writable at `dst`, without overlap.
#[inline(always)]
pub(crate) unsafe fn copy_bytes<S: Simd>(s: S, src: *const u8, dst: *mut u8, n: usize) {
    let step = S::LANES * 4;
    // SAFETY: every access below ends at or before byte n; a last, overlapping step moves the same bytes again.
    unsafe {
        if n > 64 * step {
            dst.copy_from_nonoverlapping(src, n);
        } else if n >= step {
            let mut i = 0;
            while i + step <= n {
                s.store_int(dst.add(i).cast(), s.load_int(src.add(i).cast()));
                i += step;
            }
            if i < n {
                s.store_int(dst.add(n - step).cast(), s.load_int(src.add(n - step).cast()));
            }
        } else if n >= 16 {
            ends::<[u8; 16]>(src, dst, n);
            if n > 32 {
                dst.add(16).cast::<[u8; 16]>().write(src.add(16).cast::<[u8; 16]>().read());
                dst.add(n - 32).cast::<[u8; 16]>().write(src.add(n - 32).cast::<[u8; 16]>().read());
            }
        } else if n >= 8 {
            ends::<[u8; 8]>(src, dst, n)
        } else if n >= 4 {
            ends::<[u8; 4]>(src, dst, n)
        } else if n >= 2 {
            ends::<[u8; 2]>(src, dst, n)
        } else if n == 1 {
            *dst = *src;
        }
    }
}

/// Copies the first and the last `T` of `n` bytes, which may overlap.
///
/// # Safety
/// As [`copy_bytes`], with `n` at least the size of `T`.
#[inline(always)]
unsafe fn ends<T: Copy>(src: *const u8, dst: *mut u8, n: usize) {
    let last = n - size_of::<T>();
    // SAFETY: both lie within the n bytes.
    unsafe {
        let (a, b) = (src.cast::<T>().read_unaligned(), src.add(last).cast::<T>().read_unaligned());
        dst.cast::<T>().write_unaligned(a);
        dst.add(last).cast::<T>().write_unaligned(b);
    }
}

#[inline(always)]
unsafe fn copy_elements<T: Copy, S: Simd>(
    _: S,
    job: &Job<'_>,
    outer: &[Axis],
    inner: Axis,
    range: std::ops::Range<usize>,
) {
    let mut walk = Walk::from(outer, range.start);
    let size = size_of::<T>() as isize;
    for _ in range {
        // SAFETY: the elements of one line, as the caller promises. One element here may be several of the caller's, so
        // it may be unaligned.
        unsafe {
            let (src, dst) = ((job.src as *const u8).offset(walk.src), (job.dst as *mut u8).offset(walk.dst));
            if inner.dst == size && inner.src == 0 {
                let value = src.cast::<T>().read_unaligned();
                for i in 0..inner.n {
                    dst.cast::<T>().add(i).write_unaligned(value);
                }
            } else {
                for i in 0..inner.n as isize {
                    let value = src.offset(i * inner.src).cast::<T>().read_unaligned();
                    dst.offset(i * inner.dst).cast::<T>().write_unaligned(value);
                }
            }
        }
        walk.step();
    }
}

#[cfg(test)]
mod tests;
