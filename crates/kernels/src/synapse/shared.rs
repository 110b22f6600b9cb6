//! Batch-last, fewer rows than lanes: several destinations share a register.
//!
//! With two of them there is room for half as many rows as lanes: lane 2 r + g is row r of destination g. The numbers of their
//! synapses lie side by side, and one load repeats them for all rows. Values, and results in between, lie with each row twice,
//! one after the other, so that the values of a register are put together from two sources, of which each gives every second
//! lane.
//!
//! All lists of a register have the length of the longest one: where a list is shorter, its first synapse comes again with
//! weights of 0. That adds 0 to the sums, since the activation is finite unless the value is not a number, and then the sums
//! are not numbers anyway. So a row has the same bits as in a register of its own.
//!
//! Measured on Zen 5 for 16 lanes, in a bare loop: 5.7 cycles for a register of rows, 6.4 for one with two destinations. With
//! four it was 8.2 and with eight 12.2; in a network, rows one by one were faster than that.

#![expect(clippy::needless_range_loop, reason = "the indices name registers: each loop is unrolled away")]

use super::batch_last::{Bundle, DESTINATIONS};
use super::{Finish, Grid, Job, Record, add_up};
use crate::changing::{Changing, Rewriting, Table};
use crate::simd::Simd;
use std::sync::Arc;

/// How many destinations share a register.
const G: usize = 2;

/// Up to how many rows share lanes. More fill a register in part.
pub(super) fn rows_most(lanes: usize) -> usize {
    lanes / G
}

/// Floats of working memory: two sets of values, and the terms of a ratio by register.
pub(super) fn room_floats(sources: usize, registers: usize, lanes: usize) -> usize {
    (2 * sources + 3 * registers).saturating_mul(lanes)
}

/// One synapse of each destination of a register.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Records {
    sources: [u32; G],
    scales: [f32; G],
    shifts: [f32; G],
    weights: [[f32; G]; 2],
}

/// Synapses whose destinations share registers.
pub(super) struct Shared {
    bundles: Vec<Bundle>,
    records: Table<Records>,
    /// The destinations of each register. Where there are none left, the last one comes again.
    registers: Vec<[u32; G]>,
}

impl Shared {
    /// Puts destinations with lists of like lengths into one register; those without synapses by themselves, since they have none
    /// to repeat.
    pub(super) fn pack(lists: &[&[Record]]) -> Shared {
        let mut order: Vec<u32> = (0..lists.len() as u32).collect();
        order.sort_by_key(|&d| lists[d as usize].len());
        let (without, with) = order.split_at(order.partition_point(|&d| lists[d as usize].is_empty()));
        let mut registers: Vec<[u32; G]> = vec![];
        let mut all: Vec<Vec<Records>> = vec![];
        // One that has no partner is the one with the shortest list.
        for own in without.chunks(G).chain(with.rchunks(G)) {
            let mut register = [own[own.len() - 1]; G];
            register[..own.len()].copy_from_slice(own);
            let longest = own.iter().map(|&d| lists[d as usize].len()).max().unwrap_or(0);
            let records = (0..longest).map(|i| {
                let of = register.map(|d| {
                    let list = lists[d as usize];
                    list.get(i).copied().unwrap_or(Record { weights: [0.0; 2], ..list[0] })
                });
                Records {
                    sources: of.map(|r| r.source),
                    scales: of.map(|r| r.scale),
                    shifts: of.map(|r| r.shift),
                    weights: [0, 1].map(|k| of.map(|r| r.weights[k])),
                }
            });
            all.push(records.collect());
            registers.push(register);
        }
        let all: Vec<&[Records]> = all.iter().map(Vec::as_slice).collect();
        let (bundles, records) = Bundle::all(&all);
        Shared { bundles, records: records.into(), registers }
    }

    pub(super) fn owned_by(mut self, owner: &Arc<Changing>) -> Shared {
        self.records = self.records.owned_by(owner);
        self
    }

    pub(super) fn rewrite(&self, by: &mut Rewriting<'_>, with: &Shared) -> Result<(), String> {
        self.records.rewrite(by, &with.records)
    }

    pub(super) fn registers(&self) -> usize {
        self.registers.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.records.len() * size_of::<Records>()
            + self.bundles.len() * size_of::<Bundle>()
            + self.registers.len() * size_of::<[u32; G]>()
    }
}

impl Job<'_> {
    /// The sums of `n` rows from `c` on that share lanes.
    ///
    /// # Safety
    /// As [`Self::batch_last`], for these rows; there must be at most [`rows_most`], and tables for them.
    #[inline(always)]
    pub(super) unsafe fn shared<S: Simd, const ACT: u8, const K: usize>(&self, s: S, c: usize, n: usize) {
        let Some(shared) = &self.synapses.shared else { return };
        // SAFETY: the caller's promise.
        unsafe { Few::new(s, self, shared, c, n).run::<ACT, K>() }
    }
}

/// For each lane, its row and the number of its destination.
const ROW: [i32; 16] = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7];
const NUMBER: [i32; 16] = [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1];
/// For each destination, and each lane: the lane of that destination and of the same row.
const SAME_ROW: [[i32; 16]; G] =
    [[0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14], [1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15]];
/// For each destination, its lanes one after the other. What comes after them is not used.
const IN_ORDER: [[i32; 16]; G] =
    [[0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0], [1, 3, 5, 7, 9, 11, 13, 15, 0, 0, 0, 0, 0, 0, 0, 0]];

/// Rows that share lanes: `n` of them from `c` on.
struct Few<'a, S: Simd> {
    s: S,
    job: &'a Job<'a>,
    of: &'a Shared,
    c: usize,
    n: usize,
    /// Two sets of values, then terms.
    values: [*mut f32; 2],
    terms: *mut f32,
    /// [`ROW`]
    row: S::I,
    /// Which lanes are those of a destination.
    lanes: [S::M; G],
    /// [`SAME_ROW`]
    same_row: [S::I; G],
    /// [`IN_ORDER`]
    in_order: [S::I; G],
}

impl<'a, S: Simd> Few<'a, S> {
    /// # Safety
    /// The job's scratch memory must have room after what a ratio needs in between.
    #[inline(always)]
    unsafe fn new(s: S, job: &'a Job<'a>, of: &'a Shared, c: usize, n: usize) -> Self {
        let between = job.synapses.between_bytes(job.rows, job.finish.times()).unwrap_or(0) / 4;
        let values = |i: usize| job.scratch.wrapping_add(between + i * job.synapses.sources * S::LANES);
        // SAFETY: sixteen numbers, at least a register.
        let [row, number, same_row, same_row_too, in_order, in_order_too] =
            [&ROW, &NUMBER, &SAME_ROW[0], &SAME_ROW[1], &IN_ORDER[0], &IN_ORDER[1]]
                .map(|p| unsafe { s.load_int(p.as_ptr()) });
        let number = s.int_to_float(number);
        let lanes = [s.eq(number, s.splat(0.0)), s.eq(number, s.splat(1.0))];
        let (same_row, in_order) = ([same_row, same_row_too], [in_order, in_order_too]);
        Few { s, job, of, c, n, values: [values(0), values(1)], terms: values(2), row, lanes, same_row, in_order }
    }

    /// # Safety
    /// As [`Job::shared`].
    #[inline(always)]
    unsafe fn run<const ACT: u8, const K: usize>(&self) {
        let Few { s, job, c, n, values, .. } = *self;
        // SAFETY: sources and registers are those of the job's synapses, and there is room for all of them.
        unsafe {
            for source in 0..job.synapses.sources {
                let rows = s.load_n(job.x.add(source * job.rows + c), n);
                s.store(values[0].add(source * S::LANES), s.lookup([rows], self.row));
            }
            if let Finish::Ratio { terms, .. } = job.finish {
                for register in 0..self.of.registers.len() {
                    for (k, grid) in terms.iter().enumerate() {
                        s.store(self.terms.add((3 * register + k) * S::LANES), self.term(grid, register));
                    }
                }
            }
            let times = job.finish.times();
            for time in 0..times {
                let (from, to) = (values[time % 2], values[(time + 1) % 2]);
                self.once::<ACT, K>(from, (time + 1 < times).then_some(to));
            }
        }
    }

    /// A grid's numbers for a register.
    ///
    /// # Safety
    /// It must be one of the registers, and the grid readable for the rows.
    #[inline(always)]
    unsafe fn term(&self, grid: &Grid, register: usize) -> S::F {
        let s = self.s;
        let own = &self.of.registers[register];
        // SAFETY: the caller's promise.
        unsafe {
            if grid.row == 0 {
                return s.repeat(&own.map(|d| *grid.at.add(d as usize * grid.destination)));
            }
            let mut numbers = s.splat(0.0);
            for g in 0..G {
                let rows = s.load_n(grid.at.add(own[g] as usize * grid.destination + self.c), self.n);
                numbers = s.select(self.lanes[g], s.lookup([rows], self.row), numbers);
            }
            numbers
        }
    }

    /// The sums of all destinations, from values at `from`. A ratio goes to `to`, if there is another time, or else to the result.
    ///
    /// # Safety
    /// As [`Job::shared`].
    #[inline(always)]
    unsafe fn once<const ACT: u8, const K: usize>(&self, from: *const f32, to: Option<*mut f32>) {
        let mut record = self.of.records.as_ptr();
        for bundle in &self.of.bundles {
            // SAFETY: the bundle has so many registers and records.
            unsafe {
                if bundle.count == DESTINATIONS {
                    self.together::<ACT, K, DESTINATIONS>(bundle, 0, record, from, to);
                } else if bundle.count == 3 {
                    self.together::<ACT, K, 3>(bundle, 0, record, from, to);
                } else {
                    for first in 0..bundle.count {
                        self.together::<ACT, K, 1>(bundle, first, record, from, to);
                    }
                }
                record = record.add(bundle.records());
            }
        }
    }

    /// The same for `U` registers of a bundle, from its `first` on, whose records begin at `record`.
    ///
    /// # Safety
    /// As [`Job::shared`]; the bundle must have them.
    #[inline(always)]
    unsafe fn together<const ACT: u8, const K: usize, const U: usize>(
        &self,
        Bundle { destinations, count, together, more }: &Bundle,
        first: usize,
        mut record: *const Records,
        from: *const f32,
        to: Option<*mut f32>,
    ) {
        let s = self.s;
        let mut sums = [[s.splat(0.0); U]; K];
        // SAFETY: packing checked every source; the rest is the caller's promise.
        unsafe {
            for _ in 0..*together {
                self.add::<ACT, K, U>(record.add(first), from, &mut sums);
                record = record.add(*count);
            }
            record = record.add(more[first] as usize);
            for u in 0..U {
                for _ in more[first + u]..more[first + u + 1] {
                    let mut one = [[s.splat(0.0)]; K];
                    for k in 0..K {
                        one[k] = [sums[k][u]];
                    }
                    self.add::<ACT, K, 1>(record, from, &mut one);
                    for k in 0..K {
                        [sums[k][u]] = one[k];
                    }
                    record = record.add(1);
                }
            }
            for u in 0..U {
                let mut own = [s.splat(0.0); K];
                for k in 0..K {
                    own[k] = sums[k][u];
                }
                self.put(destinations[first + u] as usize, own, from, to);
            }
        }
    }

    /// Adds what one synapse of each destination of `U` registers makes of its values to their sums.
    ///
    /// # Safety
    /// As [`Job::shared`]; there must be `U` records.
    #[inline(always)]
    unsafe fn add<const ACT: u8, const K: usize, const U: usize>(
        &self,
        records: *const Records,
        from: *const f32,
        sums: &mut [[S::F; U]; K],
    ) {
        let s = self.s;
        let mut y = [s.splat(0.0); U];
        for u in 0..U {
            // SAFETY: the caller's promise.
            y[u] = unsafe {
                let record = &*records.add(u);
                s.mul_add(s.repeat(&record.scales), self.gathered(from, &record.sources), s.repeat(&record.shifts))
            };
        }
        add_up::<S, ACT, K, U>(
            s,
            y,
            #[inline(always)]
            // SAFETY: the caller's promise.
            |k, u| s.repeat(unsafe { &(*records.add(u)).weights[k] }),
            sums,
        );
    }

    /// A register of values, of one source for each of its destinations.
    ///
    /// # Safety
    /// They must be sources.
    #[inline(always)]
    unsafe fn gathered(&self, from: *const f32, sources: &[u32; G]) -> S::F {
        let s = self.s;
        // SAFETY: the caller's promise.
        unsafe {
            let mut values = s.load(from.add(sources[0] as usize * S::LANES));
            for g in 1..G {
                values = s.select(self.lanes[g], s.load(from.add(sources[g] as usize * S::LANES)), values);
            }
            values
        }
    }

    /// Writes what becomes of a register's sums.
    ///
    /// # Safety
    /// As [`Job::shared`]; it must be one of the registers.
    #[inline(always)]
    unsafe fn put<const K: usize>(&self, register: usize, sums: [S::F; K], from: *const f32, to: Option<*mut f32>) {
        let Few { s, job, c, n, .. } = *self;
        let own = &self.of.registers[register];
        let (starts, outs): (_, &[*mut f32]) = match job.finish {
            Finish::Plain(outs) => (None, outs),
            Finish::From { starts, outs } => (Some(starts), outs),
            Finish::Ratio { out, .. } => {
                // SAFETY: destinations of a ratio are sources, and there is room for their results.
                unsafe {
                    let term = |k: usize| s.load(self.terms.add((3 * register + k) * S::LANES));
                    let above = s.mul_add(term(0), self.gathered(from, own), s.add(term(1), sums[K - 1]));
                    let ratio = s.div(above, s.add(term(2), sums[0]));
                    for g in 0..G {
                        let d = own[g] as usize;
                        match to {
                            Some(to) => s.store(to.add(d * S::LANES), s.lookup([ratio], self.same_row[g])),
                            None => s.store_n(out.add(d * job.rows + c), s.lookup([ratio], self.in_order[g]), n),
                        }
                    }
                }
                return;
            }
        };
        for k in 0..K {
            // SAFETY: the caller's promise.
            unsafe {
                let mut sum = sums[k];
                if let Some(starts) = starts {
                    sum = s.add(self.term(&starts[k], register), sum);
                }
                for g in 0..G {
                    let out = outs[k].add(own[g] as usize * job.rows + c);
                    s.store_n(out, s.lookup([sum], self.in_order[g]), n);
                }
            }
        }
    }
}
