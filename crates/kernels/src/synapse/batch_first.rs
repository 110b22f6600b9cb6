//! Batch-first: destinations fill the lanes; [`super::deal`] says how.

use super::deal::Group;
use super::{Job, Synapses, add_up, get};
use crate::simd::Simd;
use std::ops::Range;

/// How many rows take a ratio's times together: few enough that their values stay in the first-level cache.
const ROWS: usize = 8;

impl Job<'_> {
    /// # Safety
    /// The part must lie within the rows; memory as [`Synapses::run_batch_first`] says.
    #[inline(always)]
    pub(super) unsafe fn batch_first<S: Simd, const ACT: u8, const K: usize>(&self, s: S, part: Range<usize>) {
        // Of several rows, the next can begin while one before it still waits for its last results.
        for first in part.clone().step_by(ROWS) {
            self.each(
                #[inline(always)]
                |job| {
                    for row in first..part.end.min(first + ROWS) {
                        // SAFETY: the caller's promise.
                        unsafe { job.row::<S, ACT, K>(s, row) }
                    }
                },
            );
        }
    }

    /// # Safety
    /// It must be one of the rows; memory as [`Synapses::run_batch_first`] says.
    #[inline(always)]
    unsafe fn row<S: Simd, const ACT: u8, const K: usize>(&self, s: S, row: usize) {
        let Synapses { sources, segments, dealt, .. } = self.synapses;
        // SAFETY: row < rows, and the groups were made for these sizes.
        unsafe {
            let x = self.x.add(row * sources);
            let tables = dealt.tables.as_ptr().cast::<f32>();
            let mut shared = [s.splat(0.0); K];
            for block in &dealt.blocks {
                if let Some(group) = block.shared {
                    shared = self.lanes::<S, ACT, K>(s, dealt.groups.get_unchecked(group), x);
                }
                let mut sums = [s.splat(0.0); K];
                for piece in 0..block.pieces {
                    let at = tables.add(block.at + 2 * piece * S::LANES);
                    let (lane, mask) = (s.load_int(at.cast()), s.load_int(at.add(S::LANES).cast()));
                    for (sum, shared) in sums.iter_mut().zip(shared) {
                        let piece = s.bits(s.lookup([shared], lane));
                        *sum = s.add(*sum, s.float_from_bits(s.and_int(piece, mask)));
                    }
                }
                for group in dealt.groups.get_unchecked(block.groups.clone()) {
                    let mask = s.load_int(tables.add(group.mask).cast());
                    for (sum, mut more) in sums.iter_mut().zip(self.lanes::<S, ACT, K>(s, group, x)) {
                        let mut half = S::LANES / 2;
                        while half >= group.width {
                            more = s.add(more, s.rotate(more, half));
                            half /= 2;
                        }
                        *sum = s.add(*sum, s.float_from_bits(s.and_int(s.bits(more), mask)));
                    }
                }
                match segments - block.first {
                    n if n < S::LANES => self.put_row::<S, K, true>(s, row, block.first, n, sums),
                    _ => self.put_row::<S, K, false>(s, row, block.first, S::LANES, sums),
                }
            }
        }
    }

    /// Writes what the sums of a row's destinations from `d` on become.
    ///
    /// # Safety
    /// There must be a register of them, or `n` if `PARTIAL`, and the row be one of the rows.
    #[inline(always)]
    unsafe fn put_row<S: Simd, const K: usize, const PARTIAL: bool>(
        &self,
        s: S,
        row: usize,
        d: usize,
        n: usize,
        sums: [S::F; K],
    ) {
        // SAFETY: the caller's promise; from destination to destination a grid's floats lie side by side.
        unsafe {
            self.put::<S, K, 1, PARTIAL>(
                s,
                [row * self.synapses.segments + d],
                n,
                &sums.map(|sum| [sum]),
                #[inline(always)]
                |grid| [get::<S, PARTIAL>(s, grid.at.add(row * grid.row + d), n)],
            );
        }
    }

    /// What each lane of a group of one row adds up to.
    ///
    /// # Safety
    /// `x` must be one row of values.
    #[inline(always)]
    unsafe fn lanes<S: Simd, const ACT: u8, const K: usize>(&self, s: S, group: &Group, x: *const f32) -> [S::F; K] {
        // SAFETY: the caller's promise.
        unsafe {
            match group.registers {
                1 if S::LOOKUP >= 1 => self.group::<S, ACT, K, 1>(s, group, x),
                2 if S::LOOKUP >= 2 => self.group::<S, ACT, K, 2>(s, group, x),
                3 if S::LOOKUP >= 3 => self.group::<S, ACT, K, 3>(s, group, x),
                4 if S::LOOKUP >= 4 => self.group::<S, ACT, K, 4>(s, group, x),
                _ => self.group::<S, ACT, K, 0>(s, group, x),
            }
        }
    }

    /// The same as [`Self::lanes`], where values are looked up in `R` registers or, if that is 0, gathered from memory.
    ///
    /// # Safety
    /// `x` must be one row of values.
    #[inline(always)]
    unsafe fn group<S: Simd, const ACT: u8, const K: usize, const R: usize>(
        &self,
        s: S,
        group: &Group,
        x: *const f32,
    ) -> [S::F; K] {
        let lanes = S::LANES;
        let Synapses { sources, dealt, .. } = self.synapses;
        // SAFETY: packing made a table of this many slots for every group, with indices below `sources`; registers of
        // the lookup table read only what is left of the row from `base` on.
        unsafe {
            let slots = dealt.tables.as_ptr().cast::<f32>().add(group.at);
            let left = sources - group.base;
            let mut table = [s.splat(0.0); R];
            for (i, register) in table.iter_mut().enumerate() {
                let from = x.wrapping_add(group.base + i * lanes);
                *register = match left.saturating_sub(i * lanes) {
                    n if n < lanes => s.load_n(from, n),
                    _ => s.load(from),
                };
            }
            let row = lanes * (3 + K);
            let mut sums = [[s.splat(0.0); 1]; K];
            let mut e = 0;
            if R > 2 {
                let two = match group.near {
                    0 => [table[0], table[1]],
                    1 => [table[1], table[2]],
                    _ => [table[R - 2], table[R - 1]],
                };
                while e < group.near_slots {
                    let slot = slots.add(e * row);
                    evaluate::<S, ACT, K>(s, slot, s.lookup(two, s.load_int(slot.cast())), &mut sums);
                    e += 1;
                }
            }
            while e < group.slots {
                let slot = slots.add(e * row);
                let indices = s.load_int(slot.cast());
                let v = if R == 0 { s.gather(x, indices) } else { s.lookup(table, indices) };
                evaluate::<S, ACT, K>(s, slot, v, &mut sums);
                e += 1;
            }
            let mut result = [s.splat(0.0); K];
            for (result, [sum]) in result.iter_mut().zip(sums) {
                *result = sum;
            }
            result
        }
    }
}

/// Adds what one slot gives, whose values are known.
///
/// # Safety
/// It must be a slot of a table for `K` sums.
#[inline(always)]
unsafe fn evaluate<S: Simd, const ACT: u8, const K: usize>(
    s: S,
    slot: *const f32,
    values: S::F,
    sums: &mut [[S::F; 1]; K],
) {
    let lanes = S::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        let y = s.mul_add(s.load(slot.add(lanes)), values, s.load(slot.add(2 * lanes)));
        add_up::<S, ACT, K, 1>(
            s,
            [y],
            #[inline(always)]
            |k, _| s.load(slot.add((3 + k) * lanes)),
            sums,
        );
    }
}
