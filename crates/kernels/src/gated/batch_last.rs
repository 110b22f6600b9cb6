//! Batch-last: rows fill the lanes.
//!
//! A unit has two lists for each part of its inputs: inputs that all heads have a weight for, and inputs that only the
//! last head has one for.
//!
//! Each multiply-add waits for the one before it of the same sum. Where few registers of rows leave few sums, several units
//! are computed together. Their lists differ, so units with lists of like lengths form a group. Its lists lie side by
//! side up to the length of the shortest one (first input of each unit, second input of each unit, and so on), then what
//! is left of each unit's. The order of a unit's own inputs is the same in every group.
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

/// The most units of a group.
const UNITS: usize = 4;

/// How many units are computed together, by how many registers of rows and by the registers that an instruction set names:
/// as many as their sums leave room for the inputs. (Four units of two registers, 24 sums, were half as fast: not
/// all stayed in registers.)
const fn units_together(rows: usize, registers: usize) -> usize {
    match rows {
        1 if registers >= 32 => 4,
        1 => 2,
        _ if registers >= 32 => 2,
        _ => 1,
    }
}

/// How many of so many units form the next group: four or three, so that none is left alone, where that is possible.
fn units_of_group(left: usize) -> usize {
    match left {
        5 | 6 | 9 => 3,
        _ => left.min(UNITS),
    }
}

pub(super) struct BatchLast {
    groups: Vec<Group>,
    indices: Vec<u32>,
    pub(super) weights: Table<f32>,
    skipped: usize,
}

/// Units whose lists lie side by side.
#[derive(Clone, PartialEq, Eq)]
struct Group {
    /// Which units, and how many.
    units: [u32; UNITS],
    count: usize,
    /// By part: the list of inputs of all heads, then that of inputs of the last alone.
    lists: [[List; 2]; 2],
}

/// The lengths of one list of each unit of a group.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct List {
    /// Of the shortest.
    together: u32,
    /// Where what each unit's list has beyond that begins, counted from there on, and the end.
    more: [u32; UNITS + 1],
    /// Whether all units have the same inputs up to the length of the shortest.
    alike: bool,
}

/// Calls `visit` for each entry of the lists of a part in the order in which they lie: with a unit's number in its group, with
/// the entry's number in that unit's list, and with the number of the list.
fn each_entry(lists: &[List; 2], count: usize, mut visit: impl FnMut(usize, usize, usize)) {
    for (number, List { together, more, .. }) in lists.iter().enumerate() {
        for i in 0..*together as usize {
            (0..count).for_each(|u| visit(u, i, number));
        }
        for u in 0..count {
            (0..more[u + 1] - more[u]).for_each(|i| visit(u, (*together + i) as usize, number));
        }
    }
}

impl BatchLast {
    pub(super) fn pack(inputs: [usize; 2], units: usize, source: &Source<'_>) -> BatchLast {
        // By unit and part: the inputs of all heads, and those of the last alone.
        let is_masked = |unit: usize, input: usize| (0..HEADS - 1).all(|h| source.weight(input, h, unit) == 0.0);
        let lists = |unit: usize| {
            [(0, inputs[0]), (inputs[0], inputs[1])].map(|(first, count)| {
                let (last_only, all): (Vec<usize>, Vec<usize>) = (0..count).partition(|i| is_masked(unit, first + i));
                [all, last_only]
            })
        };
        let mut all: Vec<(usize, [[Vec<usize>; 2]; 2])> = (0..units).map(|unit| (unit, lists(unit))).collect();
        all.sort_by_key(|(_, lists)| lists.each_ref().map(|[all, _]| all.len()));
        let mut packed = BatchLast { groups: Vec::new(), indices: Vec::new(), weights: Table::default(), skipped: 0 };
        let mut left = &all[..];
        while !left.is_empty() {
            let (own, rest) = left.split_at(units_of_group(left.len()));
            left = rest;
            let mut group = Group { units: [0; UNITS], count: own.len(), lists: Default::default() };
            for (place, (unit, _)) in group.units.iter_mut().zip(own) {
                *place = *unit as u32;
            }
            // The second part is multiplied first.
            for part in [1, 0] {
                for (number, list) in group.lists[part].iter_mut().enumerate() {
                    let lengths = own.iter().map(|(_, lists)| lists[part][number].len() as u32);
                    list.together = lengths.clone().min().unwrap_or(0);
                    let same =
                        |i: usize| own.iter().all(|(_, lists)| lists[part][number][i] == own[0].1[part][number][i]);
                    list.alike = (0..list.together as usize).all(same);
                    for (u, length) in lengths.enumerate() {
                        list.more[u + 1] = list.more[u] + length - list.together;
                    }
                }
                each_entry(&group.lists[part], own.len(), |u, i, number| {
                    packed.indices.push(own[u].1[part][number][i] as u32);
                    packed.skipped += number * (HEADS - 1);
                });
            }
            packed.groups.push(group);
        }
        packed.weights = packed.weights_of(inputs, source).unwrap_or_default().into();
        packed
    }

    /// The weights, in the order in which they are read; `None` where one is not 0 that the lists leave out.
    fn weights_of(&self, inputs: [usize; 2], source: &Source<'_>) -> Option<Vec<f32>> {
        let (mut weights, mut left_out) = (Vec::new(), true);
        let mut indices = self.indices.iter().map(|i| *i as usize);
        for Group { units, count, lists } in &self.groups {
            for unit in &units[..*count] {
                weights.extend((0..HEADS).map(|h| source.shift(h, *unit as usize)));
            }
            for (part, first) in [(1, inputs[0]), (0, 0)] {
                each_entry(&lists[part], *count, |u, _, number| {
                    let input = first + indices.next().unwrap_or(0);
                    let weight = |h: usize| source.weight(input, h, units[u] as usize);
                    let skipped = number * (HEADS - 1);
                    left_out &= (0..skipped).all(|h| weight(h) == 0.0);
                    weights.extend((skipped..HEADS).map(weight));
                });
            }
        }
        left_out.then_some(weights)
    }

    /// Other weights in the same lists; `None` where one is not 0 that these leave out.
    pub(super) fn pack_alike(&self, inputs: [usize; 2], source: &Source<'_>) -> Option<BatchLast> {
        let weights = self.weights_of(inputs, source)?.into();
        let (groups, indices) = (self.groups.clone(), self.indices.clone());
        Some(BatchLast { groups, indices, weights, skipped: self.skipped })
    }

    /// Whether another has the same lists.
    pub(super) fn is_like(&self, other: &BatchLast) -> bool {
        self.groups == other.groups && self.indices == other.indices
    }

    pub(super) fn bytes(&self) -> usize {
        self.groups.len() * size_of::<Group>() + self.indices.len() * 4 + self.weights.len() * 4
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
        if self.packed.groups.is_empty() {
            // Nothing to do. Without units, memory does not limit the number of rows.
            return true;
        }
        let half = s.half();
        let mut row = 0;
        // SAFETY: the caller's promise; so many rows are left.
        unsafe {
            while self.rows - row >= REGISTERS * S::LANES {
                self.some::<S, REGISTERS, 0, WHOLE>(s, row, S::LANES, &mut zeros);
                row += REGISTERS * S::LANES;
            }
            // Half a register of rows goes with the whole ones before it, whose sums leave time for its own.
            let lanes_of_half = S::Half::LANES;
            let (whole, left) = ((self.rows - row) / S::LANES, (self.rows - row) % S::LANES);
            // So does a register that is filled in part.
            let halves = lanes_of_half < S::LANES && left == lanes_of_half;
            let filled = left > lanes_of_half;
            row += match (whole, halves, filled) {
                (0, ..) => 0,
                (1, false, false) => {
                    self.some::<S, 1, 0, WHOLE>(s, row, S::LANES, &mut zeros);
                    S::LANES
                }
                (1, true, _) => {
                    self.some::<S, 1, 1, WHOLE>(s, row, S::LANES, &mut zeros);
                    S::LANES + left
                }
                (1, false, true) => {
                    self.some::<S, 2, 0, WHOLE>(s, row, left, &mut zeros);
                    S::LANES + left
                }
                (_, false, false) => {
                    self.some::<S, 2, 0, WHOLE>(s, row, S::LANES, &mut zeros);
                    2 * S::LANES
                }
                (_, true, _) => {
                    self.some::<S, 2, 1, WHOLE>(s, row, S::LANES, &mut zeros);
                    2 * S::LANES + left
                }
                (_, false, true) => {
                    self.some::<S, REGISTERS, 0, WHOLE>(s, row, left, &mut zeros);
                    2 * S::LANES + left
                }
            };
            let left = self.rows - row;
            if lanes_of_half < S::LANES && (1..=lanes_of_half).contains(&left) {
                let mut of_half = half.splat(0.0);
                if left == lanes_of_half {
                    self.some::<S::Half, 1, 0, WHOLE>(half, row, lanes_of_half, &mut of_half);
                } else {
                    self.some::<S::Half, 1, 0, WHOLE>(half, row, left, &mut of_half);
                }
                half.store(self.sums, of_half);
                zeros = s.add(zeros, s.load_n(self.sums, lanes_of_half));
            } else if left > 0 {
                self.some::<S, 1, 0, WHOLE>(s, row, left, &mut zeros);
            }
        }
        s.sum(zeros) == 0.0
    }

    /// Computes all units of the rows from `row` on that fill `V` registers, of which the last one holds `n` rows, and `H` half
    /// registers after them. To `zeros` is added 0 times what the last head of one unit sums to: 0, or NaN if that is not
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
        let (mut index, mut weight) = (self.packed.indices.as_ptr(), self.packed.weights.as_ptr());
        for group in &self.packed.groups {
            let (mut first, mut next) = (0, (index, weight));
            while first < group.count {
                let block = Block { group, first, row, n, index, weight };
                // Loads of part of a register, which only some calls need, take registers from the sums.
                let alone = V + H == 1 && n < S::LANES;
                let together = if alone { 1 } else { units_together(V + H, S::REGISTERS) };
                let left = group.count - first;
                // SAFETY: the caller's promise; the group has so many units from the first on.
                unsafe {
                    if together >= 4 && left >= 4 {
                        next = self.units::<S, V, H, 4, WHOLE>(s, &block);
                        first += 4;
                    } else if together >= 4 && left == 3 {
                        next = self.units::<S, V, H, 3, WHOLE>(s, &block);
                        first += 3;
                    } else if together >= 2 && left >= 2 {
                        next = self.units::<S, V, H, 2, WHOLE>(s, &block);
                        first += 2;
                    } else {
                        next = self.units::<S, V, H, 1, WHOLE>(s, &block);
                        first += 1;
                    }
                }
            }
            (index, weight) = next;
        }
        for v in 0..V {
            // SAFETY: written by the last units.
            let sum = unsafe { s.load(self.sums.add(v * S::LANES)) };
            *zeros = s.mul_add(s.splat(0.0), sum, *zeros);
        }
        let lanes_of_half = <S::Half as Simd>::LANES;
        for v in 0..H {
            // SAFETY: as above.
            let sum = unsafe { s.load_n(self.sums.add(V * S::LANES + v * lanes_of_half), lanes_of_half) };
            *zeros = s.mul_add(s.splat(0.0), sum, *zeros);
        }
    }

    /// Computes `U` units of a group. Gives where the next group's indices and weights begin.
    ///
    /// # Safety
    /// As [`Self::run`], for these rows and units; indices and weights must be where those of the group begin.
    #[inline(always)]
    unsafe fn units<S: Simd, const V: usize, const H: usize, const U: usize, const WHOLE: bool>(
        &self,
        s: S,
        block: &Block<'_>,
    ) -> (*const u32, *const f32) {
        let Block { group, first, row, n, index, mut weight } = *block;
        let half = s.half();
        let lanes_of_half = <S::Half as Simd>::LANES;
        let mut sums: Sums<S, V, H, U> =
            Sums { whole: [[[s.splat(0.0); V]; HEADS]; U], halves: [[[half.splat(0.0); H]; HEADS]; U] };
        for u in 0..U {
            for h in 0..HEADS {
                // SAFETY: the group's weights begin with the shifts of its units.
                let shift = unsafe { weight.add((first + u) * HEADS + h).read() };
                sums.whole[u][h] = [s.splat(shift); V];
                sums.halves[u][h] = [half.splat(shift); H];
            }
        }
        weight = weight.wrapping_add(group.count * HEADS);
        let mut at = (index, weight);
        for part in [1, 0] {
            let [all, last_only] = &group.lists[part];
            // SAFETY: the lists lie one after the other.
            unsafe {
                at = self.list::<S, V, H, U, WHOLE, 0>(s, block, part, all, at, &mut sums);
                at = self.list::<S, V, H, U, WHOLE, { HEADS - 1 }>(s, block, part, last_only, at, &mut sums);
            }
        }
        for u in 0..U {
            let at = group.units[first + u] as usize * self.rows + row;
            let [a, b, t] = sums.whole[u];
            let [a_half, b_half, t_half] = sums.halves[u];
            let mut y = [s.splat(0.0); V];
            let mut y_half = [half.splat(0.0); H];
            for v in 0..V {
                y[v] = math::gate_of_exp2(s, t[v], a[v], b[v]);
            }
            for v in 0..H {
                y_half[v] = math::gate_of_exp2(half, t_half[v], a_half[v], b_half[v]);
            }
            // SAFETY: the caller's promise; there is room for the sums.
            unsafe {
                if u == 0 {
                    for v in 0..V {
                        s.store(self.sums.add(v * S::LANES), t[v]);
                    }
                    for v in 0..H {
                        half.store(self.sums.add(V * S::LANES + v * lanes_of_half), t_half[v]);
                    }
                }
                for out in [self.out, self.also].into_iter().filter(|p| !p.is_null()) {
                    let out = out.add(at);
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
        at
    }

    /// Adds to the sums of `U` units what the inputs of one list give, whose indices and weights begin at `at`. Heads before
    /// number `FROM` have no weights there. Gives where the next list begins.
    ///
    /// # Safety
    /// As [`Self::units`].
    #[inline(always)]
    unsafe fn list<S: Simd, const V: usize, const H: usize, const U: usize, const WHOLE: bool, const FROM: usize>(
        &self,
        s: S,
        Block { group, first, row, n, .. }: &Block<'_>,
        part: usize,
        List { together, more, alike }: &List,
        (mut index, mut weight): (*const u32, *const f32),
        sums: &mut Sums<S, V, H, U>,
    ) -> (*const u32, *const f32) {
        let heads = HEADS - FROM;
        let x = self.x[part].wrapping_add(*row);
        // SAFETY: the list is as long as was packed, and its indices are inputs of its part.
        unsafe {
            // Where the inputs are the same, they are loaded once.
            if U > 1 && *alike {
                for _ in 0..*together {
                    let x = Rows::<S, V, H>::load(s, x.add(index.read() as usize * self.rows), *n);
                    for u in 0..U {
                        sums.add::<WHOLE, FROM>(s, u, &x, weight.add((first + u) * heads));
                    }
                    (index, weight) = (index.add(group.count), weight.add(group.count * heads));
                }
            } else {
                for _ in 0..*together {
                    for u in 0..U {
                        let x = x.add(index.add(first + u).read() as usize * self.rows);
                        sums.add::<WHOLE, FROM>(s, u, &Rows::load(s, x, *n), weight.add((first + u) * heads));
                    }
                    (index, weight) = (index.add(group.count), weight.add(group.count * heads));
                }
            }
            let end = more[group.count] as usize;
            if end > 0 {
                let (mut own, mut of_own) =
                    (index.add(more[*first] as usize), weight.add(more[*first] as usize * heads));
                for u in 0..U {
                    for _ in more[first + u]..more[first + u + 1] {
                        let x = Rows::load(s, x.add(own.read() as usize * self.rows), *n);
                        sums.add::<WHOLE, FROM>(s, u, &x, of_own);
                        (own, of_own) = (own.add(1), of_own.add(heads));
                    }
                }
                (index, weight) = (index.add(end), weight.add(end * heads));
            }
        }
        (index, weight)
    }
}

/// What each head of `U` units sums to, for `V` registers of rows and `H` half registers.
struct Sums<S: Simd, const V: usize, const H: usize, const U: usize> {
    whole: [[[S::F; V]; HEADS]; U],
    halves: [[[<S::Half as Simd>::F; H]; HEADS]; U],
}

impl<S: Simd, const V: usize, const H: usize, const U: usize> Sums<S, V, H, U> {
    /// Adds the rows of an input to the sums of unit `u`. Heads before number `FROM` have no weight.
    ///
    /// # Safety
    /// The weights of the other heads must be readable.
    #[inline(always)]
    unsafe fn add<const WHOLE: bool, const FROM: usize>(
        &mut self,
        s: S,
        u: usize,
        x: &Rows<S, V, H>,
        weight: *const f32,
    ) {
        let half = s.half();
        // SAFETY: the caller's promise.
        unsafe {
            for h in if WHOLE { 0 } else { FROM }..HEADS {
                let w = if h < FROM { 0.0 } else { weight.add(h - FROM).read() };
                for v in 0..V {
                    self.whole[u][h][v] = s.mul_add(s.splat(w), x.whole[v], self.whole[u][h][v]);
                }
                for v in 0..H {
                    self.halves[u][h][v] = half.mul_add(half.splat(w), x.halves[v], self.halves[u][h][v]);
                }
            }
        }
    }
}

/// Units of a group from the `first` on, for rows from `row` on whose last register holds `n`.
struct Block<'a> {
    group: &'a Group,
    first: usize,
    row: usize,
    n: usize,
    /// Where the group's indices and weights begin.
    index: *const u32,
    weight: *const f32,
}

/// Rows of an input: `V` registers and `H` half registers.
struct Rows<S: Simd, const V: usize, const H: usize> {
    whole: [S::F; V],
    halves: [<S::Half as Simd>::F; H],
}

impl<S: Simd, const V: usize, const H: usize> Rows<S, V, H> {
    /// Those at `x`, of the last whole register only `n`.
    ///
    /// # Safety
    /// They must be readable.
    #[inline(always)]
    unsafe fn load(s: S, x: *const f32, n: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let halves = load::<S::Half, H>(s.half(), x.wrapping_add(V * S::LANES), <S::Half as Simd>::LANES);
            Rows { whole: load::<S, V>(s, x, n), halves }
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
