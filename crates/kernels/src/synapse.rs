//! Sums over the synapses of a sparse network: out_k\[d\] = Σ c_k\[e\] · act(scale\[e\] · x\[src e\] + shift\[e\]) over the
//! synapses e that end at d, for one or two weights c_k a synapse.
//!
//! The wiring and its numbers are known ahead, so [`Synapses::pack`] checks every index once and lays the tables out the
//! way that the loops read them. There are two loops:
//!
//! - values `[sources, rows]`: lanes are rows. A synapse is five numbers that are stretched over the lanes, and its source
//!   is one load;
//! - values `[rows, sources]`: lanes are destinations. Synapses are dealt to lanes ahead, so that each slot is one
//!   evaluation for a whole register; destinations with long lists take several lanes. The values are looked up in
//!   registers where the machine can and the sources lie close together.
//!
//! Each loop does the same operations in the same order for every row, however many there are.
//!
//! The sigmoid is 1 / (1 + 2ʸ), with −log₂e multiplied into scale and shift when packed. 2ᶠ on [0, 1] is a polynomial of
//! degree 4 (minimax, made for this file) with a relative error of 2.6e−6, and since dσ = σ (1 − σ) · d ln 2ʸ ≤ ¼ · d ln 2ʸ,
//! the sigmoid is within 1e−6. One degree more would bring it to 1.5e−7 and was measured 10 % slower: the loop waits for
//! its multiply-adds, and the division (there is one for each evaluation; sharing it between two costs three products
//! more and was slower too) hides behind them.

use crate::math;
use crate::simd::{Isa, Simd, with_simd};
use crate::team::Team;
use std::ops::Range;

/// Below this many evaluations a second thread costs more than it brings.
const PARALLEL: usize = 1 << 14;

/// What happens to a synapse's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing: the sums are then a sparse matrix product.
    Identity,
    /// 1 / (1 + e⁻ˣ), within 1e−6.
    Sigmoid,
    /// tanh x, as [`math::tanh`].
    Tanh,
}

/// The activations as constants, so that each has loops of its own.
const IDENTITY: u8 = 0;
const SIGMOID: u8 = 1;
const TANH: u8 = 2;

/// A synapse where lanes are rows.
#[derive(Clone, Copy)]
#[repr(C)]
struct Record {
    source: u32,
    scale: f32,
    shift: f32,
    weights: [f32; 2],
}

/// Destinations whose synapses are dealt to the lanes of one register.
#[derive(Clone, Copy)]
struct Group {
    /// The first destination, and how many follow one another; the lanes repeat them LANES / width times.
    first: usize,
    width: usize,
    /// Evaluations a lane.
    slots: usize,
    /// The first source that a table in registers holds; indices count from it.
    base: usize,
    /// Registers of that table, 0 where values are gathered from memory.
    registers: usize,
    /// Where the tables begin: a mask of the lanes that have synapses, then for each slot indices, scales, shifts and
    /// the weights.
    at: usize,
}

/// Floats that begin a cache line, as every whole register of them then does.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// The synapses of a network, packed for one instruction set.
pub struct Synapses {
    isa: Isa,
    activation: Activation,
    sources: usize,
    segments: usize,
    sums: usize,
    /// By destination, in the order given.
    records: Vec<Record>,
    /// Where each destination's records begin, and the end.
    starts: Vec<u32>,
    groups: Vec<Group>,
    tables: Vec<Line>,
    /// Destinations that no group covers.
    uncovered: Vec<Range<usize>>,
}

impl std::fmt::Debug for Synapses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Synapses { isa, activation, sources, segments, sums, records, .. } = self;
        write!(f, "Synapses({} {activation:?}, {sources} to {sums} × {segments}, {isa})", records.len())
    }
}

impl Synapses {
    /// Lays out synapses from `sources` values to `segments` destinations, in any order, with one or two weights each.
    ///
    /// Everything but the weights is one list of the same length; indices outside are refused.
    #[expect(clippy::too_many_arguments, reason = "the columns of one table, and its sizes")]
    pub fn pack(
        isa: Isa,
        activation: Activation,
        sources: usize,
        segments: usize,
        src: &[i32],
        dest: &[i32],
        scale: &[f32],
        shift: &[f32],
        weights: &[&[f32]],
    ) -> Result<Synapses, String> {
        let count = src.len();
        let columns = [dest.len(), scale.len(), shift.len()];
        if columns.iter().chain(&weights.iter().map(|w| w.len()).collect::<Vec<_>>()).any(|&n| n != count) {
            return Err(format!("{count} sources, but {columns:?} destinations, scales and shifts, or other weights"));
        }
        if !matches!(weights.len(), 1 | 2) {
            return Err(format!("{} weights a synapse; want 1 or 2", weights.len()));
        }
        // Indices and positions are kept in 32 bits.
        if [sources, segments, count].iter().any(|&n| n > i32::MAX as usize / 16) {
            return Err(format!("{count} synapses of {sources} sources and {segments} destinations are too many"));
        }
        for (what, list, end) in [("source", src, sources), ("destination", dest, segments)] {
            if let Some(at) = list.iter().position(|&i| usize::try_from(i).map_or(true, |i| i >= end)) {
                return Err(format!("{what} {} at position {at} is not in 0..{end}", list[at]));
            }
        }
        // y = −x · log₂e, so that e⁻ˣ is 2ʸ.
        let factor = if activation == Activation::Sigmoid { -std::f64::consts::LOG2_E } else { 1.0 };
        let ready = |x: f32| (f64::from(x) * factor) as f32;
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|&e| dest[e]);
        let records: Vec<Record> = order
            .iter()
            .map(|&e| Record {
                source: src[e] as u32,
                scale: ready(scale[e]),
                shift: ready(shift[e]),
                weights: [weights[0][e], weights.get(1).map_or(0.0, |w| w[e])],
            })
            .collect();
        let mut starts = vec![0u32; segments + 1];
        for &d in dest {
            starts[d as usize + 1] += 1;
        }
        for d in 0..segments {
            starts[d + 1] += starts[d];
        }
        let mut packed = Synapses {
            isa,
            activation,
            sources,
            segments,
            sums: weights.len(),
            records,
            starts,
            groups: Vec::new(),
            tables: Vec::new(),
            uncovered: Vec::new(),
        };
        packed.deal(isa.lanes(), with_simd!(isa, s => lookup_registers(s)));
        Ok(packed)
    }

    /// How many values they read.
    pub fn sources(&self) -> usize {
        self.sources
    }
    /// How many destinations each sum has.
    pub fn segments(&self) -> usize {
        self.segments
    }
    /// How many sums there are: 1 or 2.
    pub fn sums(&self) -> usize {
        self.sums
    }
    /// How many synapses.
    pub fn len(&self) -> usize {
        self.records.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
    /// What happens to a synapse's input.
    pub fn activation(&self) -> Activation {
        self.activation
    }
    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.records.len() * size_of::<Record>() + self.starts.len() * 4 + self.tables.len() * size_of::<Line>()
    }
    /// Evaluations of a whole register for one row, where lanes are destinations (`len` over the lanes is the least), and
    /// how many of them gather their values from memory.
    pub fn rounds(&self) -> (usize, usize) {
        let gathered = self.groups.iter().filter(|g| g.registers == 0).map(|g| g.slots).sum();
        (self.groups.iter().map(|g| g.slots).sum(), gathered)
    }
    /// Whether they are packed for `isa`.
    pub fn is_for(&self, isa: Isa) -> bool {
        self.isa == isa
    }

    fn list(&self, d: usize) -> Range<usize> {
        self.starts[d] as usize..self.starts[d + 1] as usize
    }

    /// Deals the synapses to lanes: cuts the destinations into groups of the fewest slots, and fills their tables.
    fn deal(&mut self, lanes: usize, most_registers: usize) {
        /// What a group costs beyond its slots: loading its table, adding up lanes, storing. In slots.
        const OVERHEAD: usize = 2;
        /// A synapse may take so many places in a table at most; each one more halves its weight.
        const MOST_PLACES: usize = 64;
        let slots = |d: usize, width: usize| {
            let repeats = lanes / width;
            let lengths = (d..self.segments.min(d + width)).map(|d| self.list(d).len());
            let slots = lengths.clone().max().unwrap_or(0).div_ceil(repeats);
            let stretched = lengths.filter(|&n| n > 0).any(|n| repeats * slots > MOST_PLACES * n);
            (!stretched).then_some(slots)
        };
        // best[d]: the least cost of the destinations from d on, and the width of the group there (0 for none).
        let mut best = vec![(0usize, 0usize); self.segments + 1];
        for d in (0..self.segments).rev() {
            let mut least = if self.list(d).is_empty() { (best[d + 1].0, 0) } else { (usize::MAX, 1) };
            let mut width = 1;
            while width <= lanes {
                if let Some(slots) = slots(d, width) {
                    let cost = slots + OVERHEAD + best[self.segments.min(d + width)].0;
                    if cost < least.0 {
                        least = (cost, width);
                    }
                }
                width *= 2;
            }
            best[d] = least;
        }
        let mut groups: Vec<Group> = Vec::new();
        let mut floats: Vec<f32> = Vec::new();
        let mut uncovered: Vec<Range<usize>> = Vec::new();
        let mut d = 0;
        while d < self.segments {
            let width = best[d].1;
            if width == 0 {
                match uncovered.last_mut().filter(|run| run.end == d) {
                    Some(run) => run.end += 1,
                    None => uncovered.push(d..d + 1),
                }
                d += 1;
                continue;
            }
            let repeats = lanes / width;
            let slots = slots(d, width).expect("a width was chosen among those that fit");
            let covered = d..self.segments.min(d + width);
            let all = &self.records[self.list(covered.start).start..self.list(covered.end - 1).end];
            let (low, high) = all.iter().fold((u32::MAX, 0), |(l, h), r| (l.min(r.source), h.max(r.source)));
            let span = (high as usize + 1).saturating_sub(low as usize);
            let registers = [1, 2, 4].into_iter().find(|n| *n <= most_registers && span <= n * lanes).unwrap_or(0);
            let base = if registers > 0 && span > 0 { low as usize } else { 0 };
            let at = floats.len();
            let group = Group { first: d, width, slots, base, registers, at };
            let row = lanes * (3 + self.sums);
            floats.resize(at + lanes + slots * row, 0.0);
            for (i, d) in covered.enumerate() {
                let own = &self.records[self.list(d)];
                // Every place must be taken, and a value that the destination does not read must not reach it (it may be
                // NaN): its own synapses are repeated, each with half of what was left of its weight.
                let mut places = own.to_vec();
                for n in 0..if own.is_empty() { 0 } else { repeats * slots - own.len() } {
                    let split = &mut places[n % own.len()];
                    split.weights = split.weights.map(|w| w * 0.5);
                    let half = *split;
                    places.push(half);
                }
                for repeat in 0..repeats {
                    let mask = if own.is_empty() { 0 } else { u32::MAX };
                    floats[at + repeat * width + i] = f32::from_bits(mask);
                }
                for (n, place) in places.iter().enumerate() {
                    let at = at + lanes + n / repeats * row + n % repeats * width + i;
                    floats[at] = f32::from_bits(place.source - base as u32);
                    floats[at + lanes] = place.scale;
                    floats[at + 2 * lanes] = place.shift;
                    for k in 0..self.sums {
                        floats[at + (3 + k) * lanes] = place.weights[k];
                    }
                }
            }
            groups.push(group);
            d += width;
        }
        self.tables = floats
            .chunks(16)
            .map(|chunk| {
                let mut line = Line([0.0; 16]);
                line.0[..chunk.len()].copy_from_slice(chunk);
                line
            })
            .collect();
        (self.groups, self.uncovered) = (groups, uncovered);
    }

    /// The sums of `rows` rows of values that lie as `[sources, rows]`; each sum lies as `[segments, rows]`.
    ///
    /// # Safety
    /// `x` must be readable for `sources · rows` floats, and as many of `outs` as there are sums writable for
    /// `segments · rows`, none of them overlapping another or `x`.
    pub unsafe fn run_columns(&self, team: &Team, rows: usize, x: *const f32, outs: [*mut f32; 2]) {
        let job = Job { synapses: self, rows, x, outs };
        let job = &job;
        let run = |part: Range<usize>| {
            // SAFETY: the columns of this part, which only this thread writes.
            with_simd!(self.isa, s => unsafe {
                match (self.activation, self.sums) {
                    (Activation::Identity, 1) => job.columns::<_, IDENTITY, 1>(s, part),
                    (Activation::Identity, _) => job.columns::<_, IDENTITY, 2>(s, part),
                    (Activation::Sigmoid, 1) => job.columns::<_, SIGMOID, 1>(s, part),
                    (Activation::Sigmoid, _) => job.columns::<_, SIGMOID, 2>(s, part),
                    (Activation::Tanh, 1) => job.columns::<_, TANH, 1>(s, part),
                    (Activation::Tanh, _) => job.columns::<_, TANH, 2>(s, part),
                }
            })
        };
        if self.segments == 0 {
            // However many rows there are, which no memory limits then.
        } else if self.len().saturating_mul(rows) >= PARALLEL {
            team.split(rows, 2 * self.isa.lanes(), &|_, part| run(part));
        } else {
            run(0..rows);
        }
    }

    /// The sums of `rows` rows of values that lie as `[rows, sources]`; each sum lies as `[rows, segments]`.
    ///
    /// # Safety
    /// As [`Self::run_columns`].
    pub unsafe fn run_rows(&self, team: &Team, rows: usize, x: *const f32, outs: [*mut f32; 2]) {
        let job = Job { synapses: self, rows, x, outs };
        let job = &job;
        let run = |part: Range<usize>| {
            // SAFETY: the rows of this part, which only this thread writes.
            with_simd!(self.isa, s => unsafe {
                match (self.activation, self.sums) {
                    (Activation::Identity, 1) => job.rows::<_, IDENTITY, 1>(s, part),
                    (Activation::Identity, _) => job.rows::<_, IDENTITY, 2>(s, part),
                    (Activation::Sigmoid, 1) => job.rows::<_, SIGMOID, 1>(s, part),
                    (Activation::Sigmoid, _) => job.rows::<_, SIGMOID, 2>(s, part),
                    (Activation::Tanh, 1) => job.rows::<_, TANH, 1>(s, part),
                    (Activation::Tanh, _) => job.rows::<_, TANH, 2>(s, part),
                }
            })
        };
        if self.segments == 0 {
            // As above.
        } else if self.len().saturating_mul(rows) >= PARALLEL {
            team.split(rows, 1, &|_, part| run(part));
        } else {
            run(0..rows);
        }
    }
}

#[inline(always)]
fn lookup_registers<S: Simd>(_: S) -> usize {
    S::LOOKUP
}

/// 1 / (1 + 2ʸ): a sigmoid whose argument was multiplied by −log₂e. NaN stays NaN.
#[inline(always)]
fn sigmoid_of_exp2<S: Simd>(s: S, y: S::F) -> S::F {
    let power = s.exp2(
        y,
        #[inline(always)]
        |f| {
            let mut p = s.splat(0.013_534_168);
            for c in [0.052_011_46, 0.241_442_75, 0.693_003_83, 1.000_002_6] {
                p = s.mul_add(p, f, s.splat(c));
            }
            p
        },
    );
    s.div(s.splat(1.0), s.add(power, s.splat(1.0)))
}

/// Adds up the activations of `len` synapses: `argument(e)` is the input of synapse e, `weight(e, k)` its weights.
#[inline(always)]
fn accumulate<S: Simd, const ACT: u8, const K: usize, const W: usize>(
    s: S,
    len: usize,
    argument: impl Fn(usize) -> [S::F; W],
    weight: impl Fn(usize, usize) -> S::F,
) -> [[S::F; W]; K] {
    let mut sums = [[s.splat(0.0); W]; K];
    for e in 0..len {
        let mut act = argument(e);
        for y in &mut act {
            match ACT {
                SIGMOID => *y = sigmoid_of_exp2(s, *y),
                TANH => *y = math::tanh(s, *y),
                _ => {}
            }
        }
        for (k, sums) in sums.iter_mut().enumerate() {
            let c = weight(e, k);
            for w in 0..W {
                sums[w] = s.mul_add(c, act[w], sums[w]);
            }
        }
    }
    sums
}

/// One call: packed synapses, values and where the sums go.
struct Job<'a> {
    synapses: &'a Synapses,
    rows: usize,
    x: *const f32,
    outs: [*mut f32; 2],
}
// SAFETY: the values are only read, and the threads write disjoint parts of the sums.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// # Safety
    /// The part must lie within the rows; memory as [`Synapses::run_columns`] says.
    #[inline(always)]
    unsafe fn columns<S: Simd, const ACT: u8, const K: usize>(&self, s: S, part: Range<usize>) {
        let mut c = part.start;
        // SAFETY: columns below `part.end`, whole registers of them but for the last.
        unsafe {
            if S::REGISTERS >= 32 {
                while c + 2 * S::LANES <= part.end {
                    self.block::<S, ACT, K, 2, false>(s, c, 0);
                    c += 2 * S::LANES;
                }
            }
            while c + S::LANES <= part.end {
                self.block::<S, ACT, K, 1, false>(s, c, 0);
                c += S::LANES;
            }
            if c < part.end {
                self.block::<S, ACT, K, 1, true>(s, c, part.end - c);
            }
        }
    }

    /// The sums of `W` registers of rows from `c` on, or of `left` rows if `PARTIAL`.
    ///
    /// # Safety
    /// As [`Self::columns`].
    #[inline(always)]
    unsafe fn block<S: Simd, const ACT: u8, const K: usize, const W: usize, const PARTIAL: bool>(
        &self,
        s: S,
        c: usize,
        left: usize,
    ) {
        let Synapses { records, starts, segments, .. } = self.synapses;
        // SAFETY: packing checked every source and destination; the columns are the caller's.
        unsafe {
            let x = self.x.add(c);
            for d in 0..*segments {
                let (start, end) = (*starts.get_unchecked(d) as usize, *starts.get_unchecked(d + 1) as usize);
                let own = records.as_ptr().add(start);
                let sums: [[S::F; W]; K] = accumulate::<S, ACT, K, W>(
                    s,
                    end - start,
                    #[inline(always)]
                    |e| {
                        let record = &*own.add(e);
                        let (scale, shift) = (s.splat(record.scale), s.splat(record.shift));
                        let x = x.add(record.source as usize * self.rows);
                        let mut y = [shift; W];
                        for (w, y) in y.iter_mut().enumerate() {
                            let v = if PARTIAL { s.load_n(x, left) } else { s.load(x.add(w * S::LANES)) };
                            *y = s.mul_add(scale, v, shift);
                        }
                        y
                    },
                    #[inline(always)]
                    |e, k| {
                        let record = &*own.add(e);
                        s.splat(record.weights[k])
                    },
                );
                for (k, sums) in sums.into_iter().enumerate() {
                    let out = self.outs[k].add(d * self.rows + c);
                    for (w, sum) in sums.into_iter().enumerate() {
                        if PARTIAL { s.store_n(out, sum, left) } else { s.store(out.add(w * S::LANES), sum) }
                    }
                }
            }
        }
    }

    /// # Safety
    /// The part must lie within the rows; memory as [`Synapses::run_rows`] says.
    #[inline(always)]
    unsafe fn rows<S: Simd, const ACT: u8, const K: usize>(&self, s: S, part: Range<usize>) {
        let Synapses { sources, segments, groups, uncovered, .. } = self.synapses;
        for row in part {
            // SAFETY: row < rows, and the groups were made for these sizes.
            unsafe {
                let x = self.x.add(row * sources);
                let outs: [*mut f32; K] = std::array::from_fn(|k| self.outs[k].add(row * segments));
                for run in uncovered {
                    for out in outs {
                        out.add(run.start).write_bytes(0, run.len());
                    }
                }
                for group in groups {
                    match group.registers {
                        1 if S::LOOKUP >= 1 => self.group::<S, ACT, K, 1>(s, group, x, outs),
                        2 if S::LOOKUP >= 2 => self.group::<S, ACT, K, 2>(s, group, x, outs),
                        4 if S::LOOKUP >= 4 => self.group::<S, ACT, K, 4>(s, group, x, outs),
                        _ => self.group::<S, ACT, K, 0>(s, group, x, outs),
                    }
                }
            }
        }
    }

    /// One group of one row, its values looked up in `R` registers or, with 0, gathered.
    ///
    /// # Safety
    /// `x` and `outs` must be one row of values and sums.
    #[inline(always)]
    unsafe fn group<S: Simd, const ACT: u8, const K: usize, const R: usize>(
        &self,
        s: S,
        group: &Group,
        x: *const f32,
        outs: [*mut f32; K],
    ) {
        let lanes = S::LANES;
        let Synapses { sources, segments, tables, .. } = self.synapses;
        // SAFETY: packing made a table of this many slots for every group, with indices below `sources`; registers of
        // the lookup table read only what is left of the row from `base` on.
        unsafe {
            let mask = tables.as_ptr().cast::<f32>().add(group.at);
            let slots = mask.add(lanes);
            let left = sources - group.base;
            let mut table = [s.splat(0.0); R];
            for (i, register) in table.iter_mut().enumerate() {
                let n = left.saturating_sub(i * lanes).min(lanes);
                *register = s.load_n(x.wrapping_add(group.base + i * lanes), n);
            }
            let row = lanes * (3 + K);
            let sums: [[S::F; 1]; K] = accumulate::<S, ACT, K, 1>(
                s,
                group.slots,
                #[inline(always)]
                |e| {
                    let slot = slots.add(e * row);
                    let indices = s.load_int(slot.cast());
                    let v = if R == 0 { s.gather(x, indices) } else { s.lookup(table, indices) };
                    [s.mul_add(s.load(slot.add(lanes)), v, s.load(slot.add(2 * lanes)))]
                },
                #[inline(always)]
                |e, k| s.load(slots.add(e * row + (3 + k) * lanes)),
            );
            let kept = group.width.min(segments - group.first);
            let mask = s.load_int(mask.cast());
            for ([mut sum], out) in sums.into_iter().zip(outs) {
                let mut half = lanes / 2;
                while half >= group.width {
                    sum = s.add(sum, s.rotate(sum, half));
                    half /= 2;
                }
                let sum = s.float_from_bits(s.and_int(s.bits(sum), mask));
                s.store_n(out.add(group.first), sum, kept);
            }
        }
    }
}

#[cfg(test)]
#[path = "synapse_tests.rs"]
mod tests;
