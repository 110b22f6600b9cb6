//! Batch-first, of one row or a few: units fill the lanes.
//!
//! As many units as a register has lanes are a group, and its three heads are three registers of sums. The `w` units that
//! are left after whole groups have 3 · w sums, which lie side by side in as few registers as hold them; at the end each
//! head is looked up in there. A few groups are a block: one pass over the inputs computes all of its sums.
//!
//! Of one row, such a pass waits for memory and for its own sums most of the time. Several rows are taken together, as many
//! as there are registers for: each weight is then loaded once for all of them.
//!
//! A block's last register may hold few sums. To keep small cells within the first-level cache, its weights are stored
//! apart from the others and without padding. Loading a whole register of them reads on into the weights of the next
//! input; what comes of those lanes is never used.
//!
//! Results are written in whole registers if there are enough units for one: the last register then overlaps the one
//! before it. A masked store would be shorter, but loading its result soon afterwards takes long.

#![expect(clippy::needless_range_loop, reason = "the indices name registers: each loop is unrolled away")]

use super::{Apart, HEADS, Source};
use crate::Isa;
use crate::changing::Table;
use crate::gemm::micro::Lanes;
use crate::math;
use crate::simd::{Level, Simd, portable::Portable};

/// Whole groups of a block at most, on any instruction set.
const GROUPS: usize = 4;

/// The most whole groups of a block. A multiply-add takes some four cycles, and machines with narrow registers begin
/// several in each cycle, so they need more sums at a time.
const fn most_groups(lanes: usize) -> usize {
    if lanes >= 16 { 2 } else { GROUPS }
}

/// The most registers that the units left over take.
const TAIL: usize = HEADS;

#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line([f32; 16]);

const IOTA: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

pub(super) struct BatchFirst {
    blocks: Vec<Block>,
    pub(super) data: Table<Line>,
}

/// A block, and where its numbers begin in the data, counted in floats.
struct Block {
    /// For one row, for two, for three and for four, up to [`rows_together`].
    run: [unsafe fn(&Task); 4],
    /// The most rows that are taken together.
    together: u32,
    /// One shift for each lane.
    shifts: u32,
    /// Input by input, the weights of all registers but the last.
    weights: u32,
    /// Input by input, the weights of the last register.
    last: u32,
    /// How far the last register's weights of one input are from those of the next.
    last_step: u32,
    /// The first unit.
    first: u32,
    /// How many units are left over after whole groups.
    left: u32,
}

struct Task {
    inputs: [usize; 2],
    /// From row to row of each part of the inputs.
    apart: [usize; 2],
    /// From row to row of the result, and of its second place.
    units: usize,
    also_apart: usize,
    x: [*const f32; 2],
    shifts: *const f32,
    weights: *const f32,
    last: *const f32,
    last_step: usize,
    left: usize,
    out: *mut f32,
    also: *mut f32,
}

impl BatchFirst {
    pub(super) fn pack(isa: Isa, inputs: [usize; 2], units: usize, source: &Source<'_>) -> BatchFirst {
        let lanes = isa.lanes();
        let kernels = kernels(isa);
        let most = most_groups(lanes);
        let all = inputs[0] + inputs[1];
        let mut floats: Vec<f32> = Vec::new();
        let mut blocks = Vec::new();
        let mut first = 0;
        while first < units {
            let groups = ((units - first) / lanes).min(most);
            let whole = groups * lanes;
            let left = if units - first - whole < lanes { units - first - whole } else { 0 };
            let tail = (HEADS * left).div_ceil(lanes);
            let registers = HEADS * groups + tail;
            // The head and the unit that a lane of the block computes.
            let of = |lane: usize| match lane.checked_sub(HEADS * whole) {
                None => {
                    let (register, lane) = (lane / lanes, lane % lanes);
                    Some((register % HEADS, first + register / HEADS * lanes + lane))
                }
                Some(lane) => (lane < HEADS * left).then(|| (lane / left, first + whole + lane % left)),
            };
            let align = |floats: &mut Vec<f32>| {
                floats.resize(floats.len().next_multiple_of(16), 0.0);
                floats.len()
            };
            let shifts = align(&mut floats);
            let at_lane =
                |lane: usize, of_one: &dyn Fn(usize, usize) -> f32| of(lane).map_or(0.0, |(h, u)| of_one(h, u));
            floats.extend((0..registers * lanes).map(|lane| at_lane(lane, &|h, u| source.shift(h, u))));
            // The second part is multiplied first.
            let order = || (inputs[0]..all).chain(0..inputs[0]);
            let but_last = (registers - 1) * lanes;
            let weights = align(&mut floats);
            for input in order() {
                floats.extend((0..but_last).map(|lane| at_lane(lane, &|h, u| source.weight(input, h, u))));
            }
            let last_step = if left == 0 { lanes } else { HEADS * left - (tail - 1) * lanes };
            let last = align(&mut floats);
            for input in order() {
                let lanes = but_last..but_last + last_step;
                floats.extend(lanes.map(|lane| at_lane(lane, &|h, u| source.weight(input, h, u))));
            }
            // Loading the last register's weights of the last input reads on, too.
            floats.resize(floats.len() + lanes, 0.0);
            let [shifts, weights, last, last_step] = [shifts, weights, last, last_step].map(|n| n as u32);
            let (start, left) = (first as u32, left as u32);
            let run = kernels.each_ref().map(|loops| loops[groups][tail]);
            let together = rows_together(lanes, registers) as u32;
            blocks.push(Block { run, together, shifts, weights, last, last_step, first: start, left });
            first += whole + left as usize;
        }
        let line = |floats: &[f32]| {
            let mut line = Line([0.0; 16]);
            line.0[..floats.len()].copy_from_slice(floats);
            line
        };
        BatchFirst { blocks, data: floats.chunks(16).map(line).collect::<Vec<_>>().into() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.data.len() * size_of::<Line>()
    }

    /// # Safety
    /// As [`super::Gated::run`].
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "a cell's sizes, and its memory")]
    pub(super) unsafe fn run(
        &self,
        inputs: [usize; 2],
        units: usize,
        rows: usize,
        apart: &Apart,
        x: (*const f32, *const f32),
        out: *mut f32,
        also: *mut f32,
    ) {
        let data: *const f32 = self.data.as_ptr().cast();
        for block in &self.blocks {
            let first = block.first as usize;
            let mut task = Task {
                inputs,
                apart: inputs,
                units,
                also_apart: units,
                x: [x.0, x.1],
                shifts: data.wrapping_add(block.shifts as usize),
                weights: data.wrapping_add(block.weights as usize),
                last: data.wrapping_add(block.last as usize),
                last_step: block.last_step as usize,
                left: block.left as usize,
                out: out.wrapping_add(first),
                also: if also.is_null() { also } else { also.wrapping_add(first) },
            };
            if rows == 1 {
                // Such a call is so short that the loop below would be a noticeable part of it.
                // SAFETY: the caller's promise; the data holds what was packed for this block.
                unsafe { (block.run[0])(&task) };
                continue;
            }
            (task.apart, task.also_apart) = (apart.x, apart.also);
            let mut left = rows;
            while left > 0 {
                let taken = left.min(block.together as usize);
                // SAFETY: the caller's promise; the data holds what was packed for this block.
                unsafe { (block.run[taken - 1])(&task) }
                left -= taken;
                task.x = [0, 1].map(|part| task.x[part].wrapping_add(taken * apart.x[part]));
                task.out = task.out.wrapping_add(taken * units);
                if !task.also.is_null() {
                    task.also = task.also.wrapping_add(taken * apart.also);
                }
            }
        }
    }
}

/// By groups and registers of what is left.
type Loops = [[unsafe fn(&Task); TAIL + 1]; GROUPS + 1];

/// The loops by how many rows they take, from one on.
type Kernels = [Loops; 4];

/// How many rows are taken together, with so many registers of sums each: enough sums that no multiply-add waits for another,
/// and few enough that they stay in registers beside a weight and the rows' inputs.
const fn rows_together(lanes: usize, registers: usize) -> usize {
    let most = if lanes >= 16 { 24 } else { 12 };
    match registers {
        0 => 1,
        n if 4 * n <= most => 4,
        n if 3 * n <= most => 3,
        n if 2 * n <= most => 2,
        _ => 1,
    }
}

fn kernels(isa: Isa) -> &'static Kernels {
    const fn of<S: Lanes>() -> Kernels {
        macro_rules! row {
            ($entry:ident $g:literal: $n0:literal $n1:literal $n2:literal $n3:literal) => {
                [$entry::<S, $g, 0, $n0>, $entry::<S, $g, 1, $n1>, $entry::<S, $g, 2, $n2>, $entry::<S, $g, 3, $n3>]
            };
        }
        macro_rules! table {
            ($e:ident) => {
                [
                    row!($e 0: 0 1 2 3),
                    row!($e 1: 3 4 5 6),
                    row!($e 2: 6 7 8 9),
                    row!($e 3: 9 10 11 12),
                    row!($e 4: 12 13 14 15),
                ]
            };
        }
        [table!(one_row), table!(two_rows), table!(three_rows), table!(four_rows)]
    }
    static PORTABLE: Kernels = of::<Portable<4>>();
    match isa.level {
        Level::Portable => &PORTABLE,
        #[cfg(target_arch = "aarch64")]
        Level::Neon => {
            static NEON: Kernels = of::<crate::simd::neon::Neon>();
            &NEON
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => {
            static AVX2: Kernels = of::<crate::simd::avx2::Avx2>();
            &AVX2
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => {
            static AVX512: Kernels = of::<crate::simd::avx512::Avx512>();
            &AVX512
        }
    }
}

/// # Safety
/// The CPU must have the instruction set, and the task be one of a block of `G` groups and `T` more registers.
unsafe fn one_row<S: Lanes, const G: usize, const T: usize, const N: usize>(t: &Task) {
    const { assert!(N == HEADS * G + T) };
    // SAFETY: the caller's promise.
    unsafe {
        S::enter(
            #[inline(always)]
            |s| {
                // With few registers of sums, each multiply-add would wait for the one before. Then there are two sets of
                // sums, which take inputs in turns. Blocks that are never made have no code.
                if N == 0 || G > most_groups(S::LANES) {
                } else if N <= 3 {
                    block::<S, G, T, N, 2, 1>(s, t)
                } else {
                    block::<S, G, T, N, 1, 1>(s, t)
                }
            },
        )
    }
}

/// # Safety
/// As [`one_row`], for two rows.
unsafe fn two_rows<S: Lanes, const G: usize, const T: usize, const N: usize>(t: &Task) {
    // SAFETY: the caller's promise.
    unsafe { rows::<S, G, T, N, 2>(t) }
}

/// # Safety
/// As [`one_row`], for three rows.
unsafe fn three_rows<S: Lanes, const G: usize, const T: usize, const N: usize>(t: &Task) {
    // SAFETY: the caller's promise.
    unsafe { rows::<S, G, T, N, 3>(t) }
}

/// # Safety
/// As [`one_row`], for four rows.
unsafe fn four_rows<S: Lanes, const G: usize, const T: usize, const N: usize>(t: &Task) {
    // SAFETY: the caller's promise.
    unsafe { rows::<S, G, T, N, 4>(t) }
}

/// Several rows. Blocks that are never made, and numbers of rows that are never taken together, have no code.
///
/// # Safety
/// As [`one_row`], for so many rows.
#[inline(always)]
unsafe fn rows<S: Lanes, const G: usize, const T: usize, const N: usize, const ROWS: usize>(t: &Task) {
    // SAFETY: the caller's promise.
    unsafe {
        S::enter(
            #[inline(always)]
            |s| {
                if N > 0 && G <= most_groups(S::LANES) && ROWS <= rows_together(S::LANES, N) {
                    block::<S, G, T, N, 1, ROWS>(s, t)
                }
            },
        )
    }
}

/// `ROWS` rows at once, each with `SETS` sets of sums.
///
/// # Safety
/// As [`one_row`].
#[inline(always)]
unsafe fn block<S: Simd, const G: usize, const T: usize, const N: usize, const SETS: usize, const ROWS: usize>(
    s: S,
    t: &Task,
) {
    const { assert!(SETS == 1 || ROWS == 1) };
    let mut sums = [[[s.splat(0.0); N]; SETS]; ROWS];
    // SAFETY: shifts and weights were packed for N registers and all inputs; the rest is the caller's promise.
    unsafe {
        for row in 0..ROWS {
            for v in 0..N {
                sums[row][0][v] = s.load(t.shifts.add(v * S::LANES));
            }
        }
        let (mut weights, mut last) = (t.weights, t.last);
        for part in [1, 0] {
            let (x, inputs, apart) = (t.x[part], t.inputs[part], t.apart[part]);
            let mut add = |sums: &mut [[[S::F; N]; SETS]; ROWS], set: usize, i: usize| {
                let mut xs = [s.splat(0.0); ROWS];
                for row in 0..ROWS {
                    xs[row] = s.splat(x.add(row * apart + i).read());
                }
                for v in 0..N {
                    let weight = s.load(if v < N - 1 { weights.add(v * S::LANES) } else { last });
                    for row in 0..ROWS {
                        sums[row][set][v] = s.mul_add(xs[row], weight, sums[row][set][v]);
                    }
                }
                weights = weights.add((N - 1) * S::LANES);
                last = last.add(t.last_step);
            };
            let whole = inputs / SETS * SETS;
            for i in (0..whole).step_by(SETS) {
                for set in 0..SETS {
                    add(&mut sums, set, i + set);
                }
            }
            for i in whole..inputs {
                add(&mut sums, 0, i);
            }
        }
    }
    for row in 0..ROWS {
        for set in 1..SETS {
            for v in 0..N {
                sums[row][0][v] = s.add(sums[row][0][v], sums[row][set][v]);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { gates::<S, G, T, N>(s, t, row, &sums[row][0]) };
    }
}

/// What the gates make of the sums of a row, stored there.
///
/// # Safety
/// As [`one_row`].
#[inline(always)]
unsafe fn gates<S: Simd, const G: usize, const T: usize, const N: usize>(s: S, t: &Task, row: usize, sums: &[S::F; N]) {
    let mut before = s.splat(0.0);
    for g in 0..G {
        let [a, b, of] = [0, 1, 2].map(|h| sums[HEADS * g + h]);
        before = math::gate_of_exp2(s, of, a, b);
        // SAFETY: the caller's promise, for a whole register of units.
        unsafe { t.store(row, g * S::LANES, |p| s.store(p, before)) };
    }
    if T > 0 {
        let head = |h: usize| {
            // SAFETY: sixteen numbers, at least a register.
            let lanes = s.add_int(unsafe { s.load_int(IOTA.as_ptr()) }, s.splat_int((h * t.left) as i32));
            let at = |i: usize| sums[(HEADS * G + i).min(N - 1)];
            match T {
                1 => s.lookup([at(0)], lanes),
                2 => s.lookup([at(0), at(1)], lanes),
                _ => s.lookup([at(0), at(1), at(2)], lanes),
            }
        };
        let y = math::gate_of_exp2(s, head(2), head(0), head(1));
        // SAFETY: the caller's promise; after a group, the last register of units begins within it.
        unsafe {
            if G > 0 {
                let lanes = s.add_int(s.load_int(IOTA.as_ptr()), s.splat_int(t.left as i32));
                let y = s.lookup([before, y], lanes);
                t.store(row, (G - 1) * S::LANES + t.left, |p| s.store(p, y));
            } else {
                t.store(row, 0, |p| s.store_n(p, y, t.left));
            }
        }
    }
}

impl Task {
    /// Stores the results of a row from unit `at` on to both places.
    ///
    /// # Safety
    /// `store` must be allowed to write there.
    #[inline(always)]
    unsafe fn store(&self, row: usize, at: usize, store: impl Fn(*mut f32)) {
        store(self.out.wrapping_add(row * self.units + at));
        if !self.also.is_null() {
            store(self.also.wrapping_add(row * self.also_apart + at));
        }
    }
}
