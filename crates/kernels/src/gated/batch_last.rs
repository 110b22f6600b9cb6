//! Batch-last: rows fill the lanes.
//!
//! A unit has two lists for each part of its inputs: inputs that all heads have a weight for, and inputs that only the
//! last head has one for. Indices and weights lie in the order in which they are read.
//!
//! An input that the other heads leave out would add 0 · x to their sums: 0, or NaN where x is infinite. The last head
//! of every unit has all inputs, and an infinite input makes its sum infinite or NaN, whatever the weights are. So the
//! last head's sums of one unit show whether any input may be infinite. If so, everything is computed again with
//! nothing left out.

#![expect(clippy::needless_range_loop, reason = "the indices name registers: each loop is unrolled away")]

use super::{HEADS, Source};
use crate::changing::Table;
use crate::math;
use crate::simd::{Isa, Simd, with_simd};
use std::mem::MaybeUninit;

/// Registers of rows that are taken together: with three heads, nine sums hide a multiply-add's latency, and three loads
/// of rows and three of weights are fewer than the nine multiply-adds they feed.
const REGISTERS: usize = 3;

pub(super) struct BatchLast {
    units: Vec<Unit>,
    indices: Vec<u32>,
    pub(super) weights: Table<f32>,
    skipped: usize,
}

/// Lengths of a unit's lists, by part: inputs of all heads, then those of the last alone.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Unit {
    lists: [[u32; 2]; 2],
}

impl BatchLast {
    pub(super) fn pack(inputs: [usize; 2], units: usize, source: &Source<'_>) -> BatchLast {
        let mut packed = BatchLast { units: Vec::new(), indices: Vec::new(), weights: Table::default(), skipped: 0 };
        let mut weights: Vec<f32> = Vec::new();
        for unit in 0..units {
            weights.extend((0..HEADS).map(|h| source.shift(h, unit)));
            let mut lists = [[0; 2]; 2];
            // The second part is multiplied first.
            for (part, first) in [(1, inputs[0]), (0, 0)] {
                let weight = |i: usize, head: usize| source.weight(first + i, head, unit);
                let is_masked = |i: &usize| (0..HEADS - 1).all(|h| weight(*i, h) == 0.0);
                let (last_only, all): (Vec<usize>, Vec<usize>) = (0..inputs[part]).partition(is_masked);
                packed.indices.extend(all.iter().chain(&last_only).map(|&i| i as u32));
                weights.extend(all.iter().flat_map(|&i| (0..HEADS).map(move |h| weight(i, h))));
                weights.extend(last_only.iter().map(|&i| weight(i, HEADS - 1)));
                packed.skipped += last_only.len() * (HEADS - 1);
                lists[part] = [all.len() as u32, last_only.len() as u32];
            }
            packed.units.push(Unit { lists });
        }
        packed.weights = weights.into();
        packed
    }

    /// Other weights in the same lists; `None` where one is not 0 that these leave out.
    pub(super) fn pack_alike(&self, inputs: [usize; 2], source: &Source<'_>) -> Option<BatchLast> {
        let mut weights: Vec<f32> = Vec::with_capacity(self.weights.len());
        let mut indices = self.indices.iter().map(|i| *i as usize);
        for (unit, Unit { lists }) in self.units.iter().enumerate() {
            weights.extend((0..HEADS).map(|h| source.shift(h, unit)));
            for (part, first) in [(1, inputs[0]), (0, 0)] {
                let weight = |i: usize, head: usize| source.weight(first + i, head, unit);
                let [all, last_only] = lists[part];
                for i in indices.by_ref().take(all as usize) {
                    weights.extend((0..HEADS).map(|h| weight(i, h)));
                }
                for i in indices.by_ref().take(last_only as usize) {
                    (0..HEADS - 1).all(|h| weight(i, h) == 0.0).then_some(())?;
                    weights.push(weight(i, HEADS - 1));
                }
            }
        }
        let (units, indices) = (self.units.clone(), self.indices.clone());
        Some(BatchLast { units, indices, weights: weights.into(), skipped: self.skipped })
    }

    /// Whether another has the same lists.
    pub(super) fn is_like(&self, other: &BatchLast) -> bool {
        self.units == other.units && self.indices == other.indices
    }

    pub(super) fn bytes(&self) -> usize {
        self.units.len() * size_of::<Unit>() + self.indices.len() * 4 + self.weights.len() * 4
    }

    pub(super) fn skipped(&self) -> usize {
        self.skipped
    }

    /// # Safety
    /// As [`super::Gated::run`].
    pub(super) unsafe fn run(&self, isa: Isa, rows: usize, x: [*const f32; 2], out: *mut f32, also: *mut f32) {
        let mut sums = MaybeUninit::<[f32; REGISTERS * 16]>::uninit();
        let job = Job { packed: self, rows, x, out, also, sums: sums.as_mut_ptr().cast() };
        // SAFETY: the caller's promise; a register has at most 16 lanes.
        let finite = with_simd!(isa, s => unsafe { job.run::<_, false>(s) });
        if !finite && self.skipped > 0 {
            // SAFETY: the same again; what was written is not read.
            with_simd!(isa, s => unsafe { job.run::<_, true>(s) });
        }
    }
}

struct Job<'a> {
    packed: &'a BatchLast,
    rows: usize,
    x: [*const f32; 2],
    out: *mut f32,
    also: *mut f32,
    /// Room for what the last head sums to, in [`REGISTERS`] registers. Of several registers of rows they are kept in
    /// memory, since none is left.
    sums: *mut f32,
}

impl Job<'_> {
    /// All rows. `WHOLE` says whether heads add 0 · x for the inputs that they leave out. Gives whether the last head's sums
    /// were finite.
    ///
    /// # Safety
    /// As [`super::Gated::run`], and `sums` must have room for [`REGISTERS`] registers.
    #[inline(always)]
    unsafe fn run<S: Simd, const WHOLE: bool>(&self, s: S) -> bool {
        let mut zeros = s.splat(0.0);
        if self.packed.units.is_empty() {
            // Nothing to do. Without units, memory does not limit the number of rows.
            return true;
        }
        let mut row = 0;
        // SAFETY: the caller's promise; so many rows are left.
        unsafe {
            while self.rows - row >= REGISTERS * S::LANES {
                self.some::<S, REGISTERS, 0, WHOLE>(s, row, S::LANES, &mut zeros);
                row += REGISTERS * S::LANES;
            }
            // Half a register of rows goes with the whole ones before it, whose sums leave time for its own.
            let half = S::Half::LANES;
            let (whole, left) = ((self.rows - row) / S::LANES, (self.rows - row) % S::LANES);
            let halves = half < S::LANES && left == half && whole > 0;
            match (whole, halves) {
                (2, true) => self.some::<S, 2, 1, WHOLE>(s, row, S::LANES, &mut zeros),
                (2, false) => self.some::<S, 2, 0, WHOLE>(s, row, S::LANES, &mut zeros),
                (1, true) => self.some::<S, 1, 1, WHOLE>(s, row, S::LANES, &mut zeros),
                (1, false) => self.some::<S, 1, 0, WHOLE>(s, row, S::LANES, &mut zeros),
                _ => {}
            }
            row += whole * S::LANES + if halves { half } else { 0 };
            if row < self.rows {
                self.some::<S, 1, 0, WHOLE>(s, row, self.rows - row, &mut zeros);
            }
        }
        s.sum(zeros) == 0.0
    }

    /// Computes all units of the rows from `row` on that fill `V` registers, of which the last one holds `n` rows, and `H` half
    /// registers after them. To `zeros` is added 0 times what the last head of the last unit sums to: 0, or NaN if that is not
    /// finite.
    ///
    /// # Safety
    /// As [`Self::run`], for these rows.
    #[inline(always)]
    unsafe fn some<S: Simd, const V: usize, const H: usize, const WHOLE: bool>(
        &self,
        s: S,
        row: usize,
        n: usize,
        zeros: &mut S::F,
    ) {
        let BatchLast { units, indices, weights, .. } = self.packed;
        let half = s.half();
        let lanes_of_half = <S::Half as Simd>::LANES;
        let (mut index, mut weight) = (indices.as_ptr(), weights.as_ptr());
        let mut last = s.splat(0.0);
        for (unit, Unit { lists }) in units.iter().enumerate() {
            // SAFETY: the lists are as long as was packed, and their indices are inputs of their part.
            let (y, y_half) = unsafe {
                let mut sums = [[s.splat(0.0); V]; HEADS];
                let mut halves = [[half.splat(0.0); H]; HEADS];
                for h in 0..HEADS {
                    sums[h] = [s.splat(weight.add(h).read()); V];
                    halves[h] = [half.splat(weight.add(h).read()); H];
                }
                weight = weight.add(HEADS);
                for part in [1, 0] {
                    let x = self.x[part].wrapping_add(row);
                    let at = |index: u32| {
                        let x = x.add(index as usize * self.rows);
                        (load::<S, V>(s, x, n), load::<S::Half, H>(half, x.add(V * S::LANES), lanes_of_half))
                    };
                    for _ in 0..lists[part][0] {
                        let (x, x_half) = at(index.read());
                        for h in 0..HEADS {
                            let w = weight.add(h).read();
                            for v in 0..V {
                                sums[h][v] = s.mul_add(s.splat(w), x[v], sums[h][v]);
                            }
                            for v in 0..H {
                                halves[h][v] = half.mul_add(half.splat(w), x_half[v], halves[h][v]);
                            }
                        }
                        (index, weight) = (index.add(1), weight.add(HEADS));
                    }
                    for _ in 0..lists[part][1] {
                        let (x, x_half) = at(index.read());
                        let w = weight.read();
                        for v in 0..V {
                            sums[HEADS - 1][v] = s.mul_add(s.splat(w), x[v], sums[HEADS - 1][v]);
                        }
                        for v in 0..H {
                            halves[HEADS - 1][v] = half.mul_add(half.splat(w), x_half[v], halves[HEADS - 1][v]);
                        }
                        if WHOLE {
                            for h in 0..HEADS - 1 {
                                for v in 0..V {
                                    sums[h][v] = s.mul_add(s.splat(0.0), x[v], sums[h][v]);
                                }
                                for v in 0..H {
                                    halves[h][v] = half.mul_add(half.splat(0.0), x_half[v], halves[h][v]);
                                }
                            }
                        }
                        (index, weight) = (index.add(1), weight.add(1));
                    }
                }
                let [a, b, t] = sums;
                let mut y = [s.splat(0.0); V];
                for v in 0..V {
                    if V + H > 1 {
                        s.store(self.sums.add(v * S::LANES), t[v]);
                    } else {
                        last = t[v];
                    }
                    y[v] = math::gate_of_exp2(s, t[v], a[v], b[v]);
                }
                let [a, b, t] = halves;
                let mut y_half = [half.splat(0.0); H];
                for v in 0..H {
                    half.store(self.sums.add(V * S::LANES + v * lanes_of_half), t[v]);
                    y_half[v] = math::gate_of_exp2(half, t[v], a[v], b[v]);
                }
                (y, y_half)
            };
            for out in [self.out, self.also].into_iter().filter(|p| !p.is_null()) {
                let out = out.wrapping_add(unit * self.rows + row);
                // SAFETY: the caller's promise.
                unsafe {
                    for v in 0..V {
                        let p = out.add(v * S::LANES);
                        if v + 1 < V || n == S::LANES { s.store(p, y[v]) } else { s.store_n(p, y[v], n) }
                    }
                    for v in 0..H {
                        half.store(out.add(V * S::LANES + v * lanes_of_half), y_half[v]);
                    }
                }
            }
        }
        for v in 0..V {
            // SAFETY: written above.
            let sum = if V + H > 1 { unsafe { s.load(self.sums.add(v * S::LANES)) } } else { last };
            *zeros = s.mul_add(s.splat(0.0), sum, *zeros);
        }
        for v in 0..H {
            // SAFETY: written above.
            let sum = unsafe { s.load_n(self.sums.add(V * S::LANES + v * lanes_of_half), lanes_of_half) };
            *zeros = s.mul_add(s.splat(0.0), sum, *zeros);
        }
    }
}

/// Loads `V` registers, of the last one only `n` floats.
///
/// # Safety
/// They must be readable.
#[inline(always)]
unsafe fn load<S: Simd, const V: usize>(s: S, p: *const f32, n: usize) -> [S::F; V] {
    let mut x = [s.splat(0.0); V];
    for v in 0..V {
        // SAFETY: the caller's promise.
        x[v] = unsafe {
            let p = p.add(v * S::LANES);
            if v + 1 < V || n == S::LANES { s.load(p) } else { s.load_n(p, n) }
        };
    }
    x
}
