//! Strided copies: permutations, slices, concatenations and broadcasts of elements of 1, 2 or 4 bytes.
//!
//! The order of the axes is free, so they are sorted by the destination's strides and merged where both sides step
//! alike. What then remains is one of three loops:
//! * *runs*: the innermost axis is dense on both sides, so whole runs move as bytes;
//! * *transposes*: the innermost axis is dense in the destination and another one in the source, so square tiles are
//!   turned in registers;
//! * *single elements*, for the rest.
//!
//! A tile as wide as a cache line is read and written exactly once, whatever the strides, so a transpose needs no
//! intermediate buffer. The destination is walked in panels of few enough rows that their pages stay in the TLB. Very
//! large outputs are written past the caches: they would not survive there, and the lines need not be read first.

mod zip;

use crate::simd::{Isa, Simd, with_simd};
use crate::team::Team;

/// The most axes a copy can have.
pub const MAX_DIMS: usize = 6;
/// Below this many bytes a second thread costs more than it brings.
const PARALLEL_BYTES: usize = 256 << 10;
/// From this many bytes on, the output is streamed.
const STREAM_BYTES: usize = 24 << 20;
/// Runs longer than this are cut, so that threads share them; each piece is one `memcpy`.
const PIECE_BYTES: usize = 256 << 10;
/// Destination rows of a transpose that are filled together.
const PANEL: usize = 512;

/// One axis: its length and its strides in bytes.
#[derive(Clone, Copy, Default)]
struct Axis {
    n: usize,
    src: isize,
    dst: isize,
}

/// Copies `dims` elements of `elem_bytes` (1, 2 or 4) from `src` to `dst`; strides count elements, one a dimension.
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
pub unsafe fn copy(
    isa: Isa,
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
    let Some(rank) = simplify(&mut axes, all.map(|((&n, &src), &dst)| Axis { n, src: src * e, dst: dst * e }), e)
    else {
        return;
    };
    let axes = &mut axes[..rank];
    let bytes = axes.iter().map(|a| a.n).product::<usize>() * elem_bytes;
    let job = Job { isa, team, parallel: bytes >= PARALLEL_BYTES, src: src as usize, dst: dst as usize };
    let (inner, outer) = axes.split_last_mut().expect("simplify leaves one axis");
    let across = outer.iter().position(|a| a.src == e).filter(|_| inner.dst == e && inner.src != 0);
    // SAFETY: the axes reach exactly the elements the caller vouches for.
    unsafe {
        if inner.src == e && inner.dst == e {
            // Dense reads and scattered writes of whole runs prefetch better than the other way round.
            outer.sort_unstable_by_key(|a| std::cmp::Reverse(a.src.unsigned_abs()));
            job.runs(outer, inner.n * elem_bytes)
        } else if let Some(across) = across {
            outer[across..].rotate_left(1);
            let (across, outer) = outer.split_last().expect("`across` is one of them");
            job.transposes(elem_bytes, outer, *across, *inner, bytes >= STREAM_BYTES)
        } else {
            job.elements(elem_bytes, outer, *inner)
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

fn count(axes: &[Axis]) -> usize {
    axes.iter().map(|a| a.n).product()
}

/// What the three loops share; addresses as integers so that the threads may see them.
struct Job<'a> {
    isa: Isa,
    team: &'a Team,
    parallel: bool,
    src: usize,
    dst: usize,
}

impl Job<'_> {
    fn split(&self, len: usize, f: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        if self.parallel { self.team.split(len, 1, &|_, range| f(range)) } else { f(0..len) }
    }

    /// # Safety
    /// As [`copy`], for the elements that `outer` and runs of `run` bytes reach.
    unsafe fn runs(&self, outer: &[Axis], run: usize) {
        let pieces = run.div_ceil(PIECE_BYTES);
        if pieces == 1 {
            return self.split(count(outer), &|range| {
                // SAFETY: each run is within the caller's elements.
                with_simd!(self.isa, s => unsafe { copy_runs(s, self, outer, run, range) })
            });
        }
        self.split(count(outer) * pieces, &|range| {
            for unit in range {
                let walk = Walk::from(outer, unit / pieces);
                let start = unit % pieces * PIECE_BYTES;
                let (src, dst) = (self.src as *const u8, self.dst as *mut u8);
                // SAFETY: a piece of a run, within the caller's elements.
                unsafe {
                    let (src, dst) = (src.offset(walk.src).add(start), dst.offset(walk.dst).add(start));
                    dst.copy_from_nonoverlapping(src, PIECE_BYTES.min(run - start));
                }
            }
        });
    }

    /// # Safety
    /// As [`copy`]: `inner` is dense in the destination, `across` in the source.
    unsafe fn transposes(&self, elem: usize, outer: &[Axis], across: Axis, inner: Axis, large: bool) {
        let threads = if self.parallel { self.team.threads() } else { 1 };
        let blocks = count(outer);
        let share = across.n.div_ceil(threads.div_ceil(blocks)).next_multiple_of(64);
        let panel = share.min(PANEL);
        let panels = across.n.div_ceil(panel);
        self.split(blocks * panels, &|range| {
            with_simd!(self.isa, s => {
                for unit in range {
                    let walk = Walk::from(outer, unit / panels);
                    let first = unit % panels * panel;
                    let tile = Panel {
                        // SAFETY: the first element of a block, moved to the first column of the panel.
                        src: unsafe { (self.src as *const u8).offset(walk.src).add(first * elem) },
                        src_stride: inner.src,
                        // SAFETY: likewise.
                        dst: unsafe { (self.dst as *mut u8).offset(walk.dst + first as isize * across.dst) },
                        dst_stride: across.dst,
                        rows: inner.n,
                        cols: panel.min(across.n - first),
                    };
                    // SAFETY: the panel is within the caller's elements.
                    unsafe {
                        match elem {
                            4 if large && tile.can_stream() && size_of_val(&s.splat(0.0)) == 64 => {
                                tile.turn::<S4<_, true>, u32>(S4(s))
                            }
                            4 => tile.turn::<S4<_, false>, u32>(S4(s)),
                            2 => tile.turn::<zip::Words, u16>(zip::Words),
                            _ => tile.turn::<zip::Bytes, u8>(zip::Bytes),
                        }
                    }
                }
                s.fence();
            })
        });
    }

    /// # Safety
    /// As [`copy`].
    unsafe fn elements(&self, elem: usize, outer: &[Axis], inner: Axis) {
        self.split(count(outer), &|range| {
            // SAFETY: each line is within the caller's elements.
            with_simd!(self.isa, s => unsafe {
                match elem {
                    4 => copy_elements::<u32, _>(s, self, outer, inner, range),
                    2 => copy_elements::<u16, _>(s, self, outer, inner, range),
                    _ => copy_elements::<u8, _>(s, self, outer, inner, range),
                }
            })
        });
    }
}

#[inline(always)]
unsafe fn copy_runs<S: Simd>(s: S, job: &Job<'_>, outer: &[Axis], run: usize, range: std::ops::Range<usize>) {
    let mut walk = Walk::from(outer, range.start);
    for _ in range {
        // SAFETY: one run, which the caller gives.
        unsafe { copy_bytes(s, (job.src as *const u8).offset(walk.src), (job.dst as *mut u8).offset(walk.dst), run) }
        walk.step();
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
        // SAFETY: the elements of one line, which the caller gives, aligned to their size.
        unsafe {
            let (src, dst) = ((job.src as *const u8).offset(walk.src), (job.dst as *mut u8).offset(walk.dst));
            if inner.dst == size && inner.src == 0 {
                std::slice::from_raw_parts_mut(dst.cast::<T>(), inner.n).fill(*src.cast::<T>());
            } else {
                for i in 0..inner.n as isize {
                    *dst.offset(i * inner.dst).cast::<T>() = *src.offset(i * inner.src).cast::<T>();
                }
            }
        }
        walk.step();
    }
}

/// Turns one square tile in registers.
trait Turn: Copy {
    const SIDE: usize;
    /// # Safety
    /// A tile of `SIDE` × `SIDE` elements must be readable at `src` and writable at `dst`; strides are in bytes.
    unsafe fn turn(self, src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize);
}

/// Tiles of 32-bit elements.
#[derive(Clone, Copy)]
struct S4<S, const STREAM: bool>(S);

impl<S: Simd, const STREAM: bool> Turn for S4<S, STREAM> {
    const SIDE: usize = S::LANES;
    #[inline(always)]
    unsafe fn turn(self, src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
        // SAFETY: the caller's tile; strides between rows of 32-bit elements are whole elements.
        unsafe { self.0.transpose::<STREAM>(src.cast(), src_stride / 4, dst.cast(), dst_stride / 4) }
    }
}

/// A matrix of `rows` dense source rows that become the destination's columns.
struct Panel {
    src: *const u8,
    src_stride: isize,
    dst: *mut u8,
    dst_stride: isize,
    rows: usize,
    cols: usize,
}

impl Panel {
    /// Whether destination rows are all placed alike in their cache lines, and long.
    #[inline(always)]
    fn can_stream(&self) -> bool {
        self.dst_stride % 64 == 0 && self.rows >= 64
    }

    /// # Safety
    /// Both sides of the panel must be accessible as [`copy`] says.
    #[inline(always)]
    unsafe fn turn<K: Turn, T: Copy>(&self, tile: K) {
        let size = size_of::<T>();
        // Whole destination lines, where they can be had.
        let lead = if self.can_stream() { (64 - self.dst as usize % 64) % 64 / size } else { 0 };
        let whole = (self.rows - lead) / K::SIDE * K::SIDE;
        let cols = self.cols / K::SIDE * K::SIDE;
        // SAFETY: every tile and every element is within the panel.
        unsafe {
            self.single::<T>(0..lead, 0..self.cols);
            // Tiles that share destination lines come one after the other, so that a line is left full.
            let line = K::SIDE.max(64 / size);
            for first in (lead..lead + whole).step_by(line) {
                for col in (0..cols).step_by(K::SIDE) {
                    for row in (first..lead + whole.min(first - lead + line)).step_by(K::SIDE) {
                        let src = self.src.offset(row as isize * self.src_stride).add(col * size);
                        let dst = self.dst.offset(col as isize * self.dst_stride).add(row * size);
                        tile.turn(src, self.src_stride, dst, self.dst_stride);
                    }
                }
            }
            self.single::<T>(lead..lead + whole, cols..self.cols);
            self.single::<T>(lead + whole..self.rows, 0..self.cols);
        }
    }

    /// # Safety
    /// The given part must be within the panel.
    #[inline(always)]
    unsafe fn single<T: Copy>(&self, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>) {
        for col in cols {
            for row in rows.clone() {
                // SAFETY: within the panel.
                unsafe {
                    let src = self.src.offset(row as isize * self.src_stride).cast::<T>().add(col);
                    *self.dst.offset(col as isize * self.dst_stride).cast::<T>().add(row) = *src;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies with the kernel and with a plain loop, on elements that are all different.
    fn check(dims: &[usize], src_strides: &[isize], dst_strides: &[isize]) {
        let reach = |strides: &[isize], up: bool| -> isize {
            let far = dims.iter().zip(strides).map(|(&n, &s)| (n as isize - 1).max(0) * s);
            far.filter(|&s| (s > 0) == up).sum()
        };
        let (low, high) = (-reach(src_strides, false), reach(src_strides, true));
        let top = reach(dst_strides, true);
        for elem in [1usize, 2, 4] {
            let src: Vec<u32> = (0..(low + high + 1) as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
            let bytes: Vec<u8> = src.iter().flat_map(|v| v.to_le_bytes()[4 - elem..].to_vec()).collect();
            let mut want = vec![0xAAu8; (top as usize + 1) * elem];
            let mut index = vec![0usize; dims.len()];
            for _ in 0..dims.iter().product() {
                let at = |strides: &[isize]| index.iter().zip(strides).map(|(&i, &s)| i as isize * s).sum::<isize>();
                let (from, to) = ((low + at(src_strides)) as usize * elem, at(dst_strides) as usize * elem);
                want[to..to + elem].copy_from_slice(&bytes[from..from + elem]);
                for (i, &n) in index.iter_mut().zip(dims).rev() {
                    *i += 1;
                    if *i < n {
                        break;
                    }
                    *i = 0;
                }
            }
            for &isa in Isa::available() {
                for threads in 1..=3 {
                    let team = Team::new(threads).unwrap();
                    let mut got = vec![0xAAu8; want.len()];
                    // SAFETY: both buffers were sized for these strides; bytes are reached element by element.
                    unsafe {
                        let from = bytes.as_ptr().add(low as usize * elem);
                        copy(isa, &team, elem, dims, from, src_strides, got.as_mut_ptr(), dst_strides);
                    }
                    assert!(
                        got == want,
                        "{isa} {elem} bytes, {threads} threads: {dims:?} {src_strides:?} {dst_strides:?}"
                    );
                }
            }
        }
    }

    fn dense(dims: &[usize]) -> Vec<isize> {
        let mut strides = vec![1isize; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i] as isize;
        }
        strides
    }

    #[test]
    fn every_permutation_of_four_axes() {
        for dims in [[2usize, 17, 3, 33], [3, 16, 1, 64], [1, 5, 31, 2]] {
            for code in 0..24usize {
                let mut left = vec![0, 1, 2, 3];
                let order = [code / 6, code / 2 % 3, code % 2, 0].map(|k| left.remove(k));
                let src = dense(&dims);
                let permuted: Vec<usize> = order.iter().map(|&k| dims[k]).collect();
                let strides: Vec<isize> = order.iter().map(|&k| src[k]).collect();
                check(&permuted, &strides, &dense(&permuted));
            }
        }
    }

    #[test]
    fn transposes_of_odd_sizes() {
        for rows in [0usize, 1, 2, 3, 7, 15, 16, 17, 31, 33, 100] {
            for cols in [1usize, 2, 16, 17, 63, 65, 600] {
                check(&[cols, rows], &[1, cols as isize], &[rows as isize, 1]);
            }
        }
        check(&[700, 192], &[1, 701], &[192, 1]);
    }

    #[test]
    fn slices_broadcasts_reversals_and_scalars() {
        check(&[], &[], &[]);
        check(&[1], &[0], &[1]);
        check(&[9, 33], &[0, 1], &[33, 1]);
        check(&[9, 33], &[1, 0], &[33, 1]);
        check(&[4, 9, 5], &[0, 1, 0], &[45, 5, 1]);
        check(&[9, 33], &[66, 2], &[40, 1]);
        check(&[9, 33], &[33, 1], &[99, 3]);
        check(&[9, 33], &[33, -1], &[33, 1]);
        check(&[9, 33], &[-33, 1], &[33, 1]);
        check(&[33, 20], &[-1, 33], &[20, 1]);
        check(&[2, 3, 2, 3, 2, 3], &[1, 2, 6, 12, 36, 72], &[108, 36, 18, 6, 3, 1]);
    }

    #[test]
    fn runs_of_every_length_and_long_ones() {
        for run in (1usize..70).chain([255, 256, 1000, 5000]) {
            check(&[3, 2, run], &[run as isize, 3 * run as isize, 1], &[2 * run as isize, run as isize, 1]);
        }
        check(&[3, 100_000], &[100_001, 1], &[100_000, 1]);
    }

    #[test]
    fn large_transposes_are_streamed_alike() {
        let (rows, cols) = (2048usize, 3080usize);
        let src: Vec<u32> = (0..(rows * cols) as u32).collect();
        let team = Team::new(2).unwrap();
        for &isa in Isa::available() {
            for shift in [0usize, 5] {
                let mut dst = vec![0u32; rows * cols + shift];
                let (dims, strides) = ([cols, rows], [[1, cols as isize], [rows as isize, 1]]);
                // SAFETY: both buffers hold the whole matrix.
                unsafe {
                    let to = dst.as_mut_ptr().add(shift).cast();
                    copy(isa, &team, 4, &dims, src.as_ptr().cast(), &strides[0], to, &strides[1]);
                }
                assert!((0..rows * cols).all(|i| dst[shift + i] == src[i % rows * cols + i / rows]), "{isa}");
            }
        }
    }
}
