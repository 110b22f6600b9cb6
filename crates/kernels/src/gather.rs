//! Gather along an axis, its opposite (put), and its transpose: sums by segment.
//!
//! Indices are checked once, before anything is written, so the loops need no tests. Single elements (inner = 1) move
//! four rows at a time by plain loads: the machine's gather instruction was measured slower, and this way an index is
//! loaded once for four elements. Longer pieces are copied whole.
//!
//! A segment sum adds in ascending order of j, whichever loop computes it, so every loop gives the same bits. For single
//! elements with sorted segments, as many rows as a register has lanes are summed at once: tiles are transposed in
//! registers, each j is then one vector addition, and finished segments are transposed back.

use crate::copy::copy_bytes;
use crate::simd::{Simd, with_simd};
use crate::team::Team;
use crate::tuning::Machine;

/// Checks that all indices are in `0..end`; the error is the position of the first that is not.
///
/// # Safety
/// `indices` must be readable for `n` integers.
unsafe fn check(indices: *const i32, n: usize, end: usize) -> Result<(), usize> {
    // SAFETY: the caller gives n integers.
    let all = unsafe { if n == 0 { &[] } else { std::slice::from_raw_parts(indices, n) } };
    let outside = |&i: &i32| i < 0 || i as usize >= end;
    // Whole chunks first, so that the loop vectorises.
    let bad = |chunk: &[i32]| chunk.iter().fold(false, |bad, i| bad | outside(i));
    match all.chunks(64).position(bad) {
        None => Ok(()),
        Some(chunk) => Err(chunk * 64 + all[chunk * 64..].iter().position(outside).unwrap_or(0)),
    }
}

/// `dst[o, indices[j], i]` = `src[o, j, i]` for elements of `elem_bytes`; other elements of `dst` stay.
///
/// If an index is outside `0..axis_len` or not above the one before it, its position is returned and nothing is written.
///
/// # Safety
/// `src` must be readable for `outer · n_idx · inner` elements, `indices` for `n_idx`, and `dst` writable for
/// `outer · axis_len · inner`, overlapping neither.
#[expect(clippy::too_many_arguments, reason = "a shape and three pointers")]
pub(crate) unsafe fn put(
    elem_bytes: usize,
    outer: usize,
    axis_len: usize,
    inner: usize,
    indices: *const i32,
    n_idx: usize,
    src: *const u8,
    dst: *mut u8,
) -> Result<(), usize> {
    // SAFETY: the caller's promise.
    let all = unsafe { if n_idx == 0 { &[] } else { std::slice::from_raw_parts(indices, n_idx) } };
    let mut before = -1;
    for (at, &index) in all.iter().enumerate() {
        if index <= before || index as usize >= axis_len {
            return Err(at);
        }
        before = index;
    }
    let piece = inner * elem_bytes;
    for o in 0..outer {
        for (j, &index) in all.iter().enumerate() {
            // SAFETY: o < outer, j < n_idx, and the index was checked.
            unsafe {
                let to = dst.add((o * axis_len + index as usize) * piece);
                to.copy_from_nonoverlapping(src.add((o * n_idx + j) * piece), piece);
            }
        }
    }
    Ok(())
}

/// `dst[o, j, i]` = `src[o, indices[j], i]` for elements of `elem_bytes` (1, 2 or 4).
///
/// If an index is outside `0..axis_len`, its position is returned and nothing is written.
///
/// # Panics
/// If `elem_bytes` is none of 1, 2, 4.
///
/// # Safety
/// `src` must be readable for `outer · axis_len · inner` elements, `indices` for `n_idx`, and `dst` writable for
/// `outer · n_idx · inner`, aligned to `elem_bytes` and overlapping neither.
#[expect(clippy::too_many_arguments, reason = "a shape and three pointers")]
pub(crate) unsafe fn gather(
    Machine { isa, tuning }: Machine<'_>,
    team: &Team,
    elem_bytes: usize,
    outer: usize,
    axis_len: usize,
    inner: usize,
    indices: *const i32,
    n_idx: usize,
    src: *const u8,
    dst: *mut u8,
) -> Result<(), usize> {
    assert!(matches!(elem_bytes, 1 | 2 | 4), "elements of {elem_bytes} bytes");
    // SAFETY: the caller's promise.
    unsafe { check(indices, n_idx, axis_len)? };
    let (from, to, indices) = (src as usize, dst as usize, indices as usize);
    let many = outer * n_idx * inner >= tuning.gather_threads_elements_least();
    if inner == 1 {
        let rows = |range: std::ops::Range<usize>| {
            // SAFETY: rows of this range; every index was checked.
            with_simd!(isa, s => unsafe {
                let indices = indices as *const i32;
                match elem_bytes {
                    4 => gather_rows::<u32, _>(s, range, axis_len, indices, n_idx, from as *const u32, to as *mut u32),
                    2 => gather_rows::<u16, _>(s, range, axis_len, indices, n_idx, from as *const u16, to as *mut u16),
                    _ => gather_rows::<u8, _>(s, range, axis_len, indices, n_idx, from as *const u8, to as *mut u8),
                }
            })
        };
        if many { team.split(outer, 4, &|_, range| rows(range)) } else { rows(0..outer) }
    } else {
        let piece = inner * elem_bytes;
        let pieces = |range: std::ops::Range<usize>| {
            with_simd!(isa, s => {
                for unit in range {
                    let (o, j) = (unit / n_idx, unit % n_idx);
                    // SAFETY: o < outer, j < n_idx and the index was checked.
                    unsafe {
                        let index = *(indices as *const i32).add(j) as usize;
                        let src = (from as *const u8).add((o * axis_len + index) * piece);
                        copy_bytes(s, src, (to as *mut u8).add(unit * piece), piece);
                    }
                }
            })
        };
        if many { team.split(outer * n_idx, 1, &|_, range| pieces(range)) } else { pieces(0..outer * n_idx) }
    }
    Ok(())
}

/// # Safety
/// As [`gather`] with `inner` 1, for the given rows; the indices are within range.
#[inline(always)]
unsafe fn gather_rows<T: Copy, S: Simd>(
    _: S,
    rows: std::ops::Range<usize>,
    axis_len: usize,
    indices: *const i32,
    n_idx: usize,
    src: *const T,
    dst: *mut T,
) {
    let mut row = rows.start;
    // SAFETY: rows below `rows.end` exist in both.
    unsafe {
        while row < rows.end {
            let (src, dst) = (src.add(row * axis_len), dst.add(row * n_idx));
            if row + 4 <= rows.end {
                for j in 0..n_idx {
                    let index = *indices.add(j) as usize;
                    *dst.add(j) = *src.add(index);
                    *dst.add(n_idx + j) = *src.add(axis_len + index);
                    *dst.add(2 * n_idx + j) = *src.add(2 * axis_len + index);
                    *dst.add(3 * n_idx + j) = *src.add(3 * axis_len + index);
                }
                row += 4;
            } else {
                for j in 0..n_idx {
                    *dst.add(j) = *src.add(*indices.add(j) as usize);
                }
                row += 1;
            }
        }
    }
}

/// `dst[o, s, i]` = Σ `src[o, j, i]` over the j with `segments[j]` = s, in ascending order; 0 for an empty segment.
///
/// This is also the gradient of [`gather`] (scatter-add): the indices are then the segments. If a segment is outside
/// `0..n_seg`, its position is returned and nothing is written.
///
/// # Safety
/// `src` must be readable for `outer · n · inner` floats, `segments` for `n` integers, and `dst` writable for
/// `outer · n_seg · inner` floats, overlapping neither.
#[expect(clippy::too_many_arguments, reason = "a shape and three pointers")]
pub(crate) unsafe fn segment_sum(
    Machine { isa, tuning }: Machine<'_>,
    team: &Team,
    outer: usize,
    n: usize,
    inner: usize,
    segments: *const i32,
    n_seg: usize,
    src: *const f32,
    dst: *mut f32,
) -> Result<(), usize> {
    // SAFETY: the caller's promise.
    let sorted = unsafe {
        check(segments, n, n_seg)?;
        (1..n).all(|j| *segments.add(j - 1) <= *segments.add(j))
    };
    if inner == 0 {
        return Ok(());
    }
    let job = Sums { n, inner, segments, n_seg, src, dst };
    let job = &job;
    let many = outer * n * inner >= tuning.gather_threads_elements_least();
    let transposes = sorted && n >= tuning.segment_sum_transposed_elements_least();
    let lanes = isa.lanes();
    let share = |units: usize, grain: usize, f: &(dyn Fn(std::ops::Range<usize>) + Sync)| {
        if many { team.split(units, grain, &|_, range| f(range)) } else { f(0..units) }
    };
    if inner == 1 {
        share(outer, lanes, &|rows| {
            // SAFETY: rows of this range, which only this thread writes.
            with_simd!(isa, s => unsafe {
                let blocks = if transposes { rows.len() / lanes * lanes } else { 0 };
                for row in rows.clone().take(blocks).step_by(lanes) {
                    job.sorted_rows(s, row);
                }
                job.rows(rows.start + blocks..rows.end);
            })
        });
    } else {
        // A thread takes whole blocks or, where there are fewer blocks than threads, strips of columns.
        let strips = if outer < team.threads() { inner.div_ceil(tuning.segment_sum_strip_columns()) } else { 1 };
        let width = inner.div_ceil(strips).next_multiple_of(lanes);
        let strips = inner.div_ceil(width);
        share(outer * strips, 1, &|units| {
            with_simd!(isa, s => {
                for unit in units {
                    let first = unit % strips * width;
                    // SAFETY: columns of one block, which only this thread writes.
                    unsafe { job.columns(s, unit / strips, first..inner.min(first + width)) };
                }
            })
        });
    }
    Ok(())
}

struct Sums {
    n: usize,
    inner: usize,
    segments: *const i32,
    n_seg: usize,
    src: *const f32,
    dst: *mut f32,
}
// SAFETY: the source is only read, and the threads write disjoint parts of the destination.
unsafe impl Sync for Sums {}

impl Sums {
    /// # Safety
    /// The columns of block `o` must be accessible as [`segment_sum`] says.
    #[inline(always)]
    unsafe fn columns<S: Simd>(&self, s: S, o: usize, columns: std::ops::Range<usize>) {
        let width = columns.len();
        let whole = width / S::LANES * S::LANES;
        // SAFETY: j and the segments are within the block, the columns within `inner`.
        unsafe {
            let src = self.src.add(o * self.n * self.inner + columns.start);
            let dst = self.dst.add(o * self.n_seg * self.inner + columns.start);
            for segment in 0..self.n_seg {
                dst.add(segment * self.inner).write_bytes(0, width);
            }
            for j in 0..self.n {
                let to = dst.add(*self.segments.add(j) as usize * self.inner);
                let from = src.add(j * self.inner);
                for c in (0..whole).step_by(S::LANES) {
                    s.store(to.add(c), s.add(s.load(to.add(c)), s.load(from.add(c))));
                }
                for c in whole..width {
                    *to.add(c) += *from.add(c);
                }
            }
        }
    }

    /// # Safety
    /// As [`Self::columns`], for rows of single elements.
    #[inline(always)]
    unsafe fn rows(&self, rows: std::ops::Range<usize>) {
        for row in rows {
            // SAFETY: row < outer; the segments are within range.
            unsafe {
                let (src, dst) = (self.src.add(row * self.n), self.dst.add(row * self.n_seg));
                dst.write_bytes(0, self.n_seg);
                for j in 0..self.n {
                    *dst.add(*self.segments.add(j) as usize) += *src.add(j);
                }
            }
        }
    }

    /// Ends the first of `segments` with `sum` and the others with 0; full tiles, and the last one, go to `dst`.
    ///
    /// # Safety
    /// `LANES` rows of segments must be writable at `dst`.
    #[inline(always)]
    unsafe fn close<S: Simd>(
        &self,
        s: S,
        mut sum: S::F,
        segments: std::ops::Range<usize>,
        done: &mut [f32; 16 * 16],
        dst: *mut f32,
    ) {
        let lanes = S::LANES;
        for segment in segments {
            let slot = segment % lanes;
            // SAFETY: a slot of the tile, and columns of the destination that end with this segment.
            unsafe {
                s.store(done.as_mut_ptr().add(slot * lanes), sum);
                sum = s.splat(0.0);
                let to = dst.add(segment - slot);
                if slot + 1 == lanes {
                    s.transpose::<false>(done.as_ptr().cast(), 4 * lanes as isize, to.cast(), 4 * self.n_seg as isize);
                } else if segment + 1 == self.n_seg {
                    for lane in 0..lanes {
                        for k in 0..=slot {
                            *to.add(lane * self.n_seg + k) = done[k * lanes + lane];
                        }
                    }
                }
            }
        }
    }

    /// `LANES` rows from `row` on, with sorted segments.
    ///
    /// # Safety
    /// As [`Self::columns`], for rows of single elements.
    #[inline(always)]
    unsafe fn sorted_rows<S: Simd>(&self, s: S, row: usize) {
        let lanes = S::LANES;
        let mut tile = [0.0f32; 16 * 16];
        let mut done = [0.0f32; 16 * 16];
        // SAFETY: rows row .. row + LANES exist; tiles hold LANES × LANES.
        unsafe {
            let (src, dst) = (self.src.add(row * self.n), self.dst.add(row * self.n_seg));
            let mut sum = s.splat(0.0);
            // The segment that is being summed; those before it in its tile of the destination are in `done`.
            let mut segment = 0;
            for first in (0..self.n).step_by(lanes) {
                let count = lanes.min(self.n - first);
                if count == lanes {
                    s.transpose::<false>(
                        src.add(first).cast(),
                        4 * self.n as isize,
                        tile.as_mut_ptr().cast(),
                        4 * lanes as isize,
                    );
                } else {
                    for lane in 0..lanes {
                        for k in 0..count {
                            tile[k * lanes + lane] = *src.add(lane * self.n + first + k);
                        }
                    }
                }
                for k in 0..count {
                    let next = *self.segments.add(first + k) as usize;
                    if next != segment {
                        self.close(s, sum, segment..next, &mut done, dst);
                        segment = next;
                        sum = s.splat(0.0);
                    }
                    sum = s.add(sum, s.load(tile.as_ptr().add(k * lanes)));
                }
            }
            self.close(s, sum, segment..self.n_seg, &mut done, dst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::portable::Portable;
    use crate::tuning::on;

    fn picks(n: usize, end: usize) -> Vec<i32> {
        (0..n).map(|j| ((j * 7919 + 5) % end.max(1)) as i32).collect()
    }

    fn values(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + 13) % 1009) as f32 / 100.0 - 4.7).collect()
    }

    #[test]
    fn what_is_put_is_gathered_again_and_the_rest_stays() {
        for (outer, axis, inner, indices) in
            [(1usize, 1usize, 1usize, vec![0]), (3, 7, 5, vec![0, 3, 6]), (2, 9, 16, vec![]), (4, 33, 1, vec![31, 32])]
        {
            for elem in [1usize, 2, 4] {
                let part: Vec<u8> = (0..outer * indices.len() * inner * elem).map(|i| (i * 31 % 251) as u8).collect();
                let mut data = vec![255u8; outer * axis * inner * elem];
                let (at, from, to) = (indices.as_ptr(), part.as_ptr(), data.as_mut_ptr());
                // SAFETY: the buffers have the sizes of the shape.
                assert_eq!(unsafe { put(elem, outer, axis, inner, at, indices.len(), from, to) }, Ok(()));
                let mut read = vec![];
                for (number, piece) in data.chunks(inner * elem).enumerate() {
                    match indices.contains(&((number % axis) as i32)) {
                        true => read.extend_from_slice(piece),
                        false => assert!(piece.iter().all(|&b| b == 255)),
                    }
                }
                assert_eq!(read, part);
            }
        }
        let mut data = [7u8; 4];
        for (indices, bad) in [([0, 4], 1), ([-1, 2], 0), ([2, 2], 1), ([3, 1], 1)] {
            // SAFETY: four elements, of which two are given.
            let done = unsafe { put(1, 1, 4, 1, indices.as_ptr(), 2, [1u8, 2].as_ptr(), data.as_mut_ptr()) };
            assert_eq!((done, data), (Err(bad), [7; 4]));
        }
    }

    #[test]
    fn gathers_of_every_size() {
        for outer in [0usize, 1, 3, 4, 9] {
            for (axis, n_idx) in [(1usize, 5usize), (7, 0), (33, 100), (65, 17)] {
                for inner in [1usize, 2, 3, 17, 100] {
                    for elem in [1usize, 2, 4] {
                        let indices = picks(n_idx, axis);
                        let src: Vec<u8> = (0..outer * axis * inner * elem).map(|i| (i * 31 % 251) as u8).collect();
                        let piece = inner * elem;
                        let rows = (0..outer).flat_map(|o| indices.iter().map(move |&i| o * axis + i as usize));
                        let want: Vec<u8> = rows.flat_map(|r| src[r * piece..][..piece].to_vec()).collect();
                        for &isa in Isa::available() {
                            let team = Team::new(2).unwrap();
                            let mut got = vec![0u8; want.len()];
                            // SAFETY: the buffers have the sizes of the shape.
                            let done = unsafe {
                                let (idx, from, to) = (indices.as_ptr(), src.as_ptr(), got.as_mut_ptr());
                                gather(on(isa), &team, elem, outer, axis, inner, idx, n_idx, from, to)
                            };
                            assert_eq!(done, Ok(()));
                            assert!(got == want, "{isa} {elem} bytes [{outer}, {axis}, {inner}] by {n_idx}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_bad_index_is_found_before_anything_is_written() {
        let team = Team::new(1).unwrap();
        let src = values(2 * 10);
        for (at, bad) in [(0, -1), (70, 10), (99, i32::MIN), (64, i32::MAX)] {
            let mut indices = picks(100, 10);
            indices[at] = bad;
            for &isa in Isa::available() {
                let mut dst = vec![7.0f32; 2 * 100];
                let (idx, to) = (indices.as_ptr(), dst.as_mut_ptr());
                // SAFETY: the buffers have the sizes of the shapes.
                unsafe {
                    assert_eq!(gather(on(isa), &team, 4, 2, 10, 1, idx, 100, src.as_ptr().cast(), to.cast()), Err(at));
                    assert_eq!(segment_sum(on(isa), &team, 0, 100, 1, idx, 10, src.as_ptr(), to), Err(at));
                }
                assert!(dst.iter().all(|&x| x == 7.0));
            }
        }
    }

    fn check_sums(outer: usize, n: usize, inner: usize, segments: &[i32], n_seg: usize, src: &[f32]) {
        let mut want = vec![0.0f32; outer * n_seg * inner];
        for o in 0..outer {
            for j in 0..n {
                for i in 0..inner {
                    want[(o * n_seg + segments[j] as usize) * inner + i] += src[(o * n + j) * inner + i];
                }
            }
        }
        let same = |got: &[f32]| got.iter().zip(&want).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()));
        for &isa in Isa::available() {
            for threads in 1..=3 {
                let team = Team::new(threads).unwrap();
                let mut got = vec![7.0f32; want.len()];
                let (seg, to) = (segments.as_ptr(), got.as_mut_ptr());
                // SAFETY: the buffers have the sizes of the shape.
                let done = unsafe { segment_sum(on(isa), &team, outer, n, inner, seg, n_seg, src.as_ptr(), to) };
                assert_eq!(done, Ok(()));
                assert!(same(&got), "{isa} [{outer}, {n}, {inner}] into {n_seg}");
            }
        }
        if inner == 1 && outer >= 16 && segments.is_sorted() {
            let mut got = [want.clone(), want.clone(), want.clone()];
            let job = |got: &mut Vec<f32>| Sums {
                n,
                inner,
                segments: segments.as_ptr(),
                n_seg,
                src: src.as_ptr(),
                dst: got.as_mut_ptr(),
            };
            // SAFETY: there are at least sixteen rows.
            unsafe {
                job(&mut got[0]).sorted_rows(Portable::<4>, 3);
                job(&mut got[1]).sorted_rows(Portable::<8>, 3);
                job(&mut got[2]).sorted_rows(Portable::<16>, 0);
            }
            assert!(got.iter().all(|got| same(got)));
        }
    }

    #[test]
    fn sums_of_sorted_and_unsorted_segments() {
        for outer in [0usize, 1, 3, 17, 40] {
            for (n, n_seg) in [(0usize, 3usize), (1, 1), (7, 40), (33, 5), (100, 17), (100, 100), (65, 16)] {
                for inner in [1usize, 2, 16, 33] {
                    let src = values(outer * n * inner);
                    let mut segments = picks(n, n_seg);
                    check_sums(outer, n, inner, &segments, n_seg, &src);
                    segments.sort_unstable();
                    check_sums(outer, n, inner, &segments, n_seg, &src);
                }
            }
        }
        check_sums(1, 500, 300, &picks(500, 20), 20, &values(150_000));
        check_sums(400, 100, 1, &picks(100, 20), 20, &values(40_000));
    }

    #[test]
    fn nan_and_infinity_stay_in_their_segment() {
        let mut src = values(20 * 30);
        src[31] = f32::NAN;
        src[95] = f32::INFINITY;
        let mut segments = picks(30, 11);
        segments.sort_unstable();
        check_sums(20, 30, 1, &segments, 11, &src);
    }
}
