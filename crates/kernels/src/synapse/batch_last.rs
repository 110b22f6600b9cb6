//! Batch-last: rows fill the lanes. Each number of a synapse is the same in all lanes, and the values of its source are one
//! load.

#![expect(clippy::needless_range_loop, reason = "the indices name registers: each loop is unrolled away")]

use super::{Job, Record, add_up, get};
use crate::simd::Simd;
use std::ops::Range;

/// The most destinations of a [`Bundle`].
pub(super) const DESTINATIONS: usize = 4;

/// Destinations (or registers of several) whose synapses are evaluated together, since a single evaluation is a long chain
/// of operations that wait for each other. Their lists of records lie side by side up to the length of the shortest (first
/// record of each, second record of each, and so on), then what is left of each. The order of a destination's own synapses
/// is as given.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Bundle {
    /// Which, and how many.
    pub(super) destinations: [u32; DESTINATIONS],
    pub(super) count: usize,
    /// The length of the shortest list.
    pub(super) together: u32,
    /// Where what each list has beyond that begins, counted from there on, and the end.
    pub(super) more: [u32; DESTINATIONS + 1],
}

impl Bundle {
    /// Puts destinations with lists of like lengths together. Gives all records as they then lie, too.
    pub(super) fn all<R: Copy>(lists: &[&[R]]) -> (Vec<Bundle>, Vec<R>) {
        let mut order: Vec<usize> = (0..lists.len()).collect();
        order.sort_by_key(|&d| lists[d].len());
        // Nothing is evaluated together with an empty list.
        let (empty, others) = order.split_at(order.partition_point(|&d| lists[d].is_empty()));
        let mut records = vec![];
        let bundle = |own: &[usize]| {
            let together = own.iter().map(|&d| lists[d].len()).min().unwrap_or(0);
            let mut bundle = Bundle {
                destinations: [0; DESTINATIONS],
                count: own.len(),
                together: together as u32,
                more: [0; DESTINATIONS + 1],
            };
            for i in 0..together {
                records.extend(own.iter().map(|&d| lists[d][i]));
            }
            for (i, &d) in own.iter().enumerate() {
                bundle.destinations[i] = d as u32;
                bundle.more[i + 1] = bundle.more[i] + (lists[d].len() - together) as u32;
                records.extend(&lists[d][together..]);
            }
            bundle
        };
        let mut parts: Vec<&[usize]> = empty.chunks(DESTINATIONS).collect();
        let mut left = others;
        while !left.is_empty() {
            // Four or three, so that none is left alone, where that is possible.
            let count = if matches!(left.len(), 5 | 6 | 9) { 3 } else { left.len().min(DESTINATIONS) };
            let (own, rest) = left.split_at(count);
            parts.push(own);
            left = rest;
        }
        (parts.into_iter().map(bundle).collect(), records)
    }

    /// How many records there are of all of them together.
    pub(super) fn records(&self) -> usize {
        self.count * self.together as usize + self.more[self.count] as usize
    }
}

impl Job<'_> {
    /// # Safety
    /// The part must lie within the rows; memory as [`super::Synapses::run_batch_last`] says. If it ends within a register of
    /// rows, no other part may run meanwhile that does.
    #[inline(always)]
    pub(super) unsafe fn batch_last<S: Simd, const ACT: u8, const K: usize>(&self, s: S, part: Range<usize>) {
        let apart = self.synapses.shared_rows(part.len(), S::LANES);
        let whole = part.start..part.end - apart;
        // A ratio is taken once for two registers of rows (and what is left after them), then again: while the last results of
        // one register are waited for, the next one is computed.
        let mut c = whole.start;
        while c < whole.end {
            let end = if whole.end - c < 3 * S::LANES { whole.end } else { c + 2 * S::LANES };
            self.each(
                #[inline(always)]
                // SAFETY: the caller's promise.
                |job| unsafe { job.batch_last_once::<S, ACT, K>(s, c..end) },
            );
            c = end;
        }
        if apart > 0 {
            // SAFETY: the caller's promise; the rows of the last part are fewer than lanes.
            unsafe { self.shared::<S, ACT, K>(s, whole.end, apart) };
        }
    }

    /// The same for one time that a ratio is taken.
    ///
    /// # Safety
    /// As [`Self::batch_last`].
    #[inline(always)]
    unsafe fn batch_last_once<S: Simd, const ACT: u8, const K: usize>(&self, s: S, part: Range<usize>) {
        let mut c = part.start;
        // SAFETY: rows below `part.end`, whole registers of them but for the last.
        unsafe {
            while c + S::LANES <= part.end {
                self.block::<S, ACT, K, false>(s, c, S::LANES);
                c += S::LANES;
            }
            if c < part.end {
                self.block::<S, ACT, K, true>(s, c, part.end - c);
            }
        }
    }

    /// The sums of all destinations, for a register of rows from `c` on, or for `n` rows if `PARTIAL`.
    ///
    /// # Safety
    /// As [`Self::batch_last`].
    #[inline(always)]
    unsafe fn block<S: Simd, const ACT: u8, const K: usize, const PARTIAL: bool>(&self, s: S, c: usize, n: usize) {
        let mut record = self.synapses.records.as_ptr();
        for bundle in &self.synapses.bundles {
            // SAFETY: the caller's promise; the bundle has so many destinations and records.
            unsafe {
                // The sums of several take more registers than some instruction sets have.
                if S::REGISTERS >= 32 && bundle.count == DESTINATIONS {
                    self.destinations::<S, ACT, K, DESTINATIONS, PARTIAL>(s, bundle, 0, record, c, n);
                } else if S::REGISTERS >= 32 && bundle.count == 3 {
                    self.destinations::<S, ACT, K, 3, PARTIAL>(s, bundle, 0, record, c, n);
                } else {
                    for first in 0..bundle.count {
                        self.destinations::<S, ACT, K, 1, PARTIAL>(s, bundle, first, record, c, n);
                    }
                }
                record = record.add(bundle.records());
            }
        }
    }

    /// The same for `D` destinations of a bundle, from its `first` on, whose records begin at `record`.
    ///
    /// # Safety
    /// As [`Self::batch_last`]; the bundle must have them.
    #[inline(always)]
    unsafe fn destinations<S: Simd, const ACT: u8, const K: usize, const D: usize, const PARTIAL: bool>(
        &self,
        s: S,
        Bundle { destinations, count, together, more }: &Bundle,
        first: usize,
        mut record: *const Record,
        c: usize,
        n: usize,
    ) {
        let mut sums = [[s.splat(0.0); D]; K];
        let mut own = [0; D];
        // SAFETY: packing checked every source and destination; the rows are the caller's.
        unsafe {
            for _ in 0..*together {
                self.add::<S, ACT, K, D, PARTIAL>(s, record.add(first), c, n, &mut sums);
                record = record.add(*count);
            }
            record = record.add(more[first] as usize);
            for d in 0..D {
                own[d] = destinations[first + d] as usize;
                for _ in more[first + d]..more[first + d + 1] {
                    let mut one = [[s.splat(0.0)]; K];
                    for k in 0..K {
                        one[k] = [sums[k][d]];
                    }
                    self.add::<S, ACT, K, 1, PARTIAL>(s, record, c, n, &mut one);
                    for k in 0..K {
                        [sums[k][d]] = one[k];
                    }
                    record = record.add(1);
                }
            }
            self.put_rows::<S, K, D, PARTIAL>(s, own, c, n, &sums)
        }
    }

    /// Adds what one synapse of each of `D` destinations makes of rows from `c` on to their sums.
    ///
    /// # Safety
    /// As [`Self::batch_last`]; there must be `D` records.
    #[inline(always)]
    unsafe fn add<S: Simd, const ACT: u8, const K: usize, const D: usize, const PARTIAL: bool>(
        &self,
        s: S,
        records: *const Record,
        c: usize,
        n: usize,
        sums: &mut [[S::F; D]; K],
    ) {
        let mut y = [s.splat(0.0); D];
        for d in 0..D {
            // SAFETY: the caller's promise.
            y[d] = unsafe {
                let record = &*records.add(d);
                let x = self.x.add(record.source as usize * self.rows + c);
                s.mul_add(s.splat(record.scale), get::<S, PARTIAL>(s, x, n), s.splat(record.shift))
            };
        }
        add_up::<S, ACT, K, D>(
            s,
            y,
            #[inline(always)]
            // SAFETY: the caller's promise.
            |k, d| s.splat(unsafe { (*records.add(d)).weights[k] }),
            sums,
        );
    }

    /// Writes what the sums of `N` destinations `d` become, for a register of rows from `c` on, or for `n` rows if `PARTIAL`.
    ///
    /// # Safety
    /// As [`Self::batch_last`].
    #[inline(always)]
    unsafe fn put_rows<S: Simd, const K: usize, const N: usize, const PARTIAL: bool>(
        &self,
        s: S,
        d: [usize; N],
        c: usize,
        n: usize,
        sums: &[[S::F; N]; K],
    ) {
        let mut at = [0; N];
        for i in 0..N {
            at[i] = d[i] * self.rows + c;
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.put::<S, K, N, PARTIAL>(
                s,
                at,
                n,
                sums,
                #[inline(always)]
                |grid| {
                    let mut terms = [s.splat(0.0); N];
                    if grid.row == 0 {
                        for i in 0..N {
                            terms[i] = s.splat(*grid.at.add(d[i] * grid.destination));
                        }
                    } else {
                        for i in 0..N {
                            terms[i] = get::<S, PARTIAL>(s, grid.at.add(d[i] * grid.destination + c), n);
                        }
                    }
                    terms
                },
            );
        }
    }
}
