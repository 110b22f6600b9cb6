//! Sums over the synapses of a sparse network: out_k\[d\] = Σ c_k\[e\] · act(scale\[e\] · x\[src e\] + shift\[e\]) over the
//! synapses e that end at d, for one or two weights c_k of each synapse. Instead of two sums the result can be the ratio
//! (p · x + q + out_1) / (r + out_0), which is one step of a leaky network; the sums then never leave the registers.
//!
//! The wiring and its numbers are known ahead, so [`Synapses::pack`] checks every index once and lays the tables out the
//! way that the loops read them. There are two loops:
//!
//! - batch-last, values `[sources, rows]`: rows fill the lanes. Each number of a synapse is the same in all lanes, and the
//!   values of its source are one load. Rows that do not fill a register share its lanes with those of other destinations
//!   (`shared`);
//! - batch-first, values `[rows, sources]`: destinations fill the lanes. When they are packed, synapses are dealt to lanes
//!   such that each slot of a table is one evaluation for a whole register (`deal` says how). Where the machine can, and
//!   the sources lie close together, their values are looked up in registers. Results are written a register at a time,
//!   as the next call will load them.
//!
//! Each loop does the same operations in the same order for every row, however many there are.
//!
//! The sigmoid is 1 / (1 + 2ʸ), with −log₂e multiplied into scale and shift when packed. 2ᶠ on [0, 1] is a polynomial of
//! degree 4 (minimax, made for this file) with a relative error of 2.6e−6, and since dσ = σ (1 − σ) · d ln 2ʸ ≤ ¼ · d ln 2ʸ,
//! the sigmoid is within 1e−6. One degree more would bring it to 1.5e−7 and was measured 10 % slower: the loop waits for
//! its multiply-adds, and the division (there is one for each evaluation; sharing it between two costs three products
//! more and was slower too) hides behind them.

mod batch_first;
mod batch_last;
mod deal;
mod shared;
mod wired;

use crate::changing::{Changing, Rewriting, Table};
use crate::math;
use crate::simd::{Isa, Simd, with_simd};
use crate::team::Team;
use crate::tuning::Machine;
use batch_last::Bundle;
use deal::Dealt;
use shared::Shared;
use std::ops::Range;
use std::sync::Arc;
pub(crate) use wired::Of;
pub use wired::Wiring;

/// What happens to a synapse's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing: the sums are then a sparse matrix product.
    Identity,
    /// 1 / (1 + e⁻ˣ), within 1e−6.
    Sigmoid,
    /// tanh x, within 4e−7.
    Tanh,
}

/// The activations as constants, so that each has loops of its own.
const IDENTITY: u8 = 0;
const SIGMOID: u8 = 1;
const TANH: u8 = 2;

/// One float for every row and destination; a stride of 0 repeats it for all of an axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// Where the first row's first destination lies.
    pub(crate) at: *const f32,
    /// From row to row, in floats.
    pub(crate) row: usize,
    /// From destination to destination.
    pub(crate) destination: usize,
}

/// What becomes of the sums.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Finish {
    /// They are written as they are.
    Plain([*mut f32; 2]),
    /// Something is added to each, then they are written.
    From {
        /// What is added.
        starts: [Grid; 2],
        /// Where to.
        outs: [*mut f32; 2],
    },
    /// (p · x + q + second) / (r + first) is written instead, where destination d is source d too.
    Ratio {
        /// Where to.
        out: *mut f32,
        /// p, q and r.
        terms: [Grid; 3],
        /// How many times the ratio is applied, each time to its previous result.
        times: usize,
    },
}

impl Finish {
    /// How many passes over the synapses there are.
    fn times(&self) -> usize {
        if let Finish::Ratio { times, .. } = self { *times } else { 1 }
    }
}

/// A synapse, for the batch-last loop.
#[derive(Clone, Copy)]
#[repr(C)]
struct Record {
    source: u32,
    scale: f32,
    shift: f32,
    weights: [f32; 2],
}

/// The synapses of a network, packed for one instruction set.
pub struct Synapses {
    isa: Isa,
    activation: Activation,
    sources: usize,
    segments: usize,
    sums: usize,
    /// For batch-last values: by bundle.
    records: Table<Record>,
    bundles: Vec<Bundle>,
    /// For batch-last values of fewer rows than lanes, where the machine is fast at that.
    shared: Option<Shared>,
    /// For batch-first values.
    dealt: Dealt,
    /// From how many evaluations on they are shared among threads.
    threads_evaluations_least: usize,
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
    /// All lists have one entry for each synapse; there is one list of weights, or two. Indices out of range are refused.
    #[expect(clippy::too_many_arguments, reason = "the lists of one table, and its sizes")]
    pub fn pack(
        Machine { isa, tuning }: Machine<'_>,
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
        let lengths = [dest.len(), scale.len(), shift.len()];
        if lengths.iter().chain(&weights.iter().map(|w| w.len()).collect::<Vec<_>>()).any(|&n| n != count) {
            return Err(format!("{count} sources, but {lengths:?} destinations, scales and shifts, or other weights"));
        }
        let order = checked_order(sources, segments, src, dest, weights.len())?;
        // y = −x · log₂e, so that e⁻ˣ is 2ʸ.
        let factor = if activation == Activation::Sigmoid { -std::f64::consts::LOG2_E } else { 1.0 };
        let ready = |x: f32| (f64::from(x) * factor) as f32;
        let records: Vec<Record> = order
            .iter()
            .map(|&e| Record {
                source: src[e] as u32,
                scale: ready(scale[e]),
                shift: ready(shift[e]),
                weights: [weights[0][e], weights.get(1).map_or(0.0, |w| w[e])],
            })
            .collect();
        let starts = starts(segments, dest);
        let lookup = deal::Lookup::new(isa.lanes(), with_simd!(isa, s => lookup_registers(s)), tuning);
        let lists: Vec<&[Record]> =
            starts.windows(2).map(|ends| &records[ends[0] as usize..ends[1] as usize]).collect();
        let dealt = deal::deal(&lists, sources, weights.len(), lookup);
        let (bundles, records) = Bundle::all(&lists);
        // Repeated synapses, which shared lanes need, must have finite activations.
        let shares = isa.shares_lanes() && activation != Activation::Identity;
        let shared = shares.then(|| Shared::pack(&lists));
        Ok(Synapses {
            isa,
            activation,
            sources,
            segments,
            sums: weights.len(),
            records: records.into(),
            bundles,
            shared,
            dealt,
            threads_evaluations_least: tuning.synapse_threads_evaluations_least(),
        })
    }

    /// The same, whose numbers its owner may rewrite.
    pub fn changing(mut self, owner: &Arc<Changing>) -> Synapses {
        self.records = self.records.owned_by(owner);
        self.shared = self.shared.map(|shared| shared.owned_by(owner));
        self.dealt.tables = self.dealt.tables.owned_by(owner);
        self
    }

    pub(crate) fn owner(&self) -> Option<&Arc<Changing>> {
        self.records.owner()
    }

    /// Whether others have the same wiring, dealt in the same way, so that these can be
    /// [rewritten](Self::rewrite) with them.
    pub fn is_like(&self, by: &Rewriting<'_>, other: &Synapses) -> Result<bool, String> {
        let sizes = |s: &Synapses| (s.isa, s.activation, s.sources, s.segments, s.sums, s.len(), s.dealt.tables.len());
        let sources = |s: &[Record], t: &[Record]| s.iter().zip(t).all(|(s, t)| s.source == t.source);
        Ok(sizes(self) == sizes(other)
            && self.bundles == other.bundles
            && self.dealt.groups == other.dealt.groups
            && self.dealt.blocks == other.dealt.blocks
            && sources(self.records.look(by)?, other.records.look(by)?))
    }

    /// Writes the numbers of others with the same wiring in the place of these.
    pub fn rewrite(&self, by: &mut Rewriting<'_>, with: &Synapses) -> Result<(), String> {
        if !self.is_like(by, with)? {
            return Err(format!("{with:?} in the place of {self:?}, which are wired otherwise"));
        }
        self.records.rewrite(by, &with.records)?;
        if let (Some(shared), Some(with)) = (&self.shared, &with.shared) {
            // The same wiring, so in the same order.
            shared.rewrite(by, with)?;
        }
        self.dealt.tables.rewrite(by, &with.dealt.tables)
    }

    /// How many values they read.
    pub(crate) fn sources(&self) -> usize {
        self.sources
    }
    /// How many destinations each sum has.
    pub(crate) fn segments(&self) -> usize {
        self.segments
    }
    /// How many sums there are: 1 or 2.
    pub(crate) fn sums(&self) -> usize {
        self.sums
    }
    /// How many synapses.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }
    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        let shared = self.shared.as_ref().map_or(0, Shared::bytes);
        self.records.len() * size_of::<Record>()
            + self.bundles.len() * size_of::<Bundle>()
            + shared
            + self.dealt.bytes()
    }
    /// How many evaluations of a whole register one batch-first row takes (at least as many as there are synapses over the
    /// number of lanes), and in how many of them values are gathered from memory.
    pub fn rounds(&self) -> (usize, usize) {
        let groups = &self.dealt.groups;
        let gathered = groups.iter().filter(|g| g.registers == 0).map(|g| g.slots).sum();
        (groups.iter().map(|g| g.slots).sum(), gathered)
    }
    /// Whether they are packed for `isa`.
    pub(crate) fn is_for(&self, isa: Isa) -> bool {
        self.isa == isa
    }

    /// Of so many batch-last rows, how many share lanes with other destinations: those after the last whole register, unless
    /// they fill more than half of one.
    fn shared_rows(&self, rows: usize, lanes: usize) -> usize {
        let left = rows % lanes;
        if self.shared.is_some() && left <= shared::rows_most(lanes) { left } else { 0 }
    }

    /// Bytes of working memory that a call needs, aligned to 64, which applies a ratio so many times (once, for sums);
    /// `None` where that overflows.
    pub fn scratch_bytes(&self, batch_last: bool, rows: usize, times: usize) -> Option<usize> {
        let room = match &self.shared {
            Some(shared) if batch_last && self.shared_rows(rows, self.isa.lanes()) > 0 => {
                shared::room_floats(self.sources, shared.registers(), self.isa.lanes()).checked_mul(4)?
            }
            _ => 0,
        };
        self.between_bytes(rows, times)?.checked_add(room)
    }

    /// Bytes for a ratio's result in between, if it is applied more than once: whole lines.
    fn between_bytes(&self, rows: usize, times: usize) -> Option<usize> {
        let bytes = if times > 1 { rows.checked_mul(self.segments)?.checked_mul(4)? } else { 0 };
        bytes.checked_next_multiple_of(64)
    }

    /// Whether a ratio of the sums makes sense: there are two, and every destination is a source.
    pub(crate) fn has_ratio(&self) -> bool {
        self.sums == 2 && self.segments == self.sources
    }

    /// The sums of `rows` rows of batch-last values, `[sources, rows]`; each result lies as `[segments, rows]`.
    ///
    /// # Safety
    /// `x` must be readable for `sources · rows` floats, and what `finish` names (as many sums as there are, or the
    /// ratio, if there [can be one](Self::has_ratio)) writable for `segments · rows`, none of them overlapping another or
    /// anything that is read; `scratch` must be writable for [`Self::scratch_bytes`], for this call alone. A ratio's terms, or
    /// what sums start from, must be readable for every row and destination; from row to row they lie 0 or 1 floats apart.
    pub(crate) unsafe fn run_batch_last(
        &self,
        team: &Team,
        rows: usize,
        x: *const f32,
        finish: &Finish,
        scratch: *mut f32,
    ) {
        let job = &Job::new(self, rows, x, finish, scratch);
        let run = |part: Range<usize>| {
            // SAFETY: the rows of this part, which only this thread writes.
            with_simd!(self.isa, s => unsafe {
                match (self.activation, self.sums) {
                    (Activation::Identity, 1) => job.batch_last::<_, IDENTITY, 1>(s, part),
                    (Activation::Identity, _) => job.batch_last::<_, IDENTITY, 2>(s, part),
                    (Activation::Sigmoid, 1) => job.batch_last::<_, SIGMOID, 1>(s, part),
                    (Activation::Sigmoid, _) => job.batch_last::<_, SIGMOID, 2>(s, part),
                    (Activation::Tanh, 1) => job.batch_last::<_, TANH, 1>(s, part),
                    (Activation::Tanh, _) => job.batch_last::<_, TANH, 2>(s, part),
                }
            })
        };
        if self.segments == 0 {
            // Nothing to do. Without destinations, memory does not limit the number of rows.
        } else if self.len().saturating_mul(rows).saturating_mul(finish.times()) >= self.threads_evaluations_least {
            // Whole registers each, but for the last one.
            team.split(rows, 2 * self.isa.lanes(), &|_, part| run(part));
        } else {
            run(0..rows);
        }
    }

    /// The sums of `rows` rows of batch-first values, `[rows, sources]`; each result lies as `[rows, segments]`.
    ///
    /// # Safety
    /// As [`Self::run_batch_last`], but terms and starts lie 1 float apart from destination to destination.
    pub(crate) unsafe fn run_batch_first(
        &self,
        team: &Team,
        rows: usize,
        x: *const f32,
        finish: &Finish,
        scratch: *mut f32,
    ) {
        let job = &Job::new(self, rows, x, finish, scratch);
        let run = |part: Range<usize>| {
            // SAFETY: the rows of this part, which only this thread writes.
            with_simd!(self.isa, s => unsafe {
                match (self.activation, self.sums) {
                    (Activation::Identity, 1) => job.batch_first::<_, IDENTITY, 1>(s, part),
                    (Activation::Identity, _) => job.batch_first::<_, IDENTITY, 2>(s, part),
                    (Activation::Sigmoid, 1) => job.batch_first::<_, SIGMOID, 1>(s, part),
                    (Activation::Sigmoid, _) => job.batch_first::<_, SIGMOID, 2>(s, part),
                    (Activation::Tanh, 1) => job.batch_first::<_, TANH, 1>(s, part),
                    (Activation::Tanh, _) => job.batch_first::<_, TANH, 2>(s, part),
                }
            })
        };
        if self.segments == 0 {
            // There is nothing to do, as above.
        } else if self.len().saturating_mul(rows).saturating_mul(finish.times()) >= self.threads_evaluations_least {
            team.split(rows, 1, &|_, part| run(part));
        } else {
            run(0..rows);
        }
    }
}

/// The synapses in order of their destinations, if every index is in range, and there are one or two sums.
fn checked_order(
    sources: usize,
    segments: usize,
    src: &[i32],
    dest: &[i32],
    sums: usize,
) -> Result<Vec<usize>, String> {
    let count = src.len();
    if dest.len() != count {
        return Err(format!("{count} sources, but {} destinations", dest.len()));
    }
    if !matches!(sums, 1 | 2) {
        return Err(format!("{sums} weights a synapse; want 1 or 2"));
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
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&e| dest[e]);
    Ok(order)
}

/// Where the synapses of each destination begin in that order, and the end.
fn starts(segments: usize, dest: &[i32]) -> Vec<u32> {
    let mut starts = vec![0u32; segments + 1];
    for &d in dest {
        starts[d as usize + 1] += 1;
    }
    for d in 0..segments {
        starts[d + 1] += starts[d];
    }
    starts
}

#[inline(always)]
fn lookup_registers<S: Simd>(_: S) -> usize {
    S::LOOKUP
}

/// 1 / (1 + 2ʸ): sigmoids whose arguments were multiplied by −log₂e. NaN stays NaN.
#[inline(always)]
fn sigmoid_of_exp2<S: Simd, const N: usize>(s: S, y: [S::F; N]) -> [S::F; N] {
    let mut y = s.exp2(
        y,
        #[inline(always)]
        |f| {
            let mut p = [s.splat(0.013_534_168); N];
            for c in [0.052_011_46, 0.241_442_75, 0.693_003_83, 1.000_002_6] {
                for i in 0..N {
                    p[i] = s.mul_add(p[i], f[i], s.splat(c));
                }
            }
            p
        },
    );
    for y in &mut y {
        *y = s.add(*y, s.splat(1.0));
    }
    for y in &mut y {
        *y = s.div(s.splat(1.0), *y);
    }
    y
}

/// Adds the activations of synapses, given their arguments, to each of their sums with that sum's weight. Each step is done
/// for all of them before the next one.
#[inline(always)]
fn add_up<S: Simd, const ACT: u8, const K: usize, const N: usize>(
    s: S,
    arguments: [S::F; N],
    weight: impl Fn(usize, usize) -> S::F,
    sums: &mut [[S::F; N]; K],
) {
    let mut act = arguments;
    match ACT {
        SIGMOID => act = sigmoid_of_exp2(s, act),
        // No closure: it would not be compiled for the instruction set, and be called.
        TANH => {
            for y in &mut act {
                *y = math::tanh(s, *y);
            }
        }
        _ => {}
    }
    for i in 0..N {
        for (k, sums) in sums.iter_mut().enumerate() {
            sums[i] = s.mul_add(weight(k, i), act[i], sums[i]);
        }
    }
}

/// One call: packed synapses, values and where the sums go.
#[derive(Clone, Copy)]
struct Job<'a> {
    synapses: &'a Synapses,
    rows: usize,
    x: *const f32,
    /// Where a ratio goes.
    out: *mut f32,
    /// Room for a ratio's results in between, then room for rows that share lanes.
    scratch: *mut f32,
    /// A reference and not a copy: the caller has just written it, word by word. Copying it would load several words at
    /// once, and such a load has to wait until all of these stores have reached the cache.
    finish: &'a Finish,
}
// SAFETY: the values are only read, and the threads write disjoint parts of the results.
unsafe impl Sync for Job<'_> {}

impl<'a> Job<'a> {
    fn new(synapses: &'a Synapses, rows: usize, x: *const f32, finish: &'a Finish, scratch: *mut f32) -> Job<'a> {
        Job { synapses, rows, x, out: std::ptr::null_mut(), scratch, finish }
    }

    /// Calls `once` for every time that a ratio is taken (or once, for sums). Values alternate between two buffers,
    /// chosen such that the last pass writes to the result.
    #[inline(always)]
    fn each(&self, once: impl Fn(Job<'a>)) {
        let (out, times) = match *self.finish {
            Finish::Ratio { out, times, .. } => (out, times),
            _ => (self.out, 1),
        };
        let mut x = self.x;
        for time in 0..times {
            let to = if (times - time) % 2 == 1 { out } else { self.scratch };
            once(Job { x, out: to, ..*self });
            x = to;
        }
    }

    /// Writes what becomes of `N` registers of sums: a register, or `n` floats, of each result, from number `at` of its floats
    /// on.
    ///
    /// # Safety
    /// `at` must be the places of registers of results, or of `n`, and `term` load as many of a grid there.
    #[inline(always)]
    unsafe fn put<S: Simd, const K: usize, const N: usize, const PARTIAL: bool>(
        &self,
        s: S,
        at: [usize; N],
        n: usize,
        sums: &[[S::F; N]; K],
        term: impl Fn(&Grid) -> [S::F; N],
    ) {
        // SAFETY: the caller's promise, and the one made for the job's memory.
        unsafe {
            match self.finish {
                Finish::Plain(outs) => {
                    for (sums, out) in sums.iter().zip(outs) {
                        for i in 0..N {
                            put::<S, PARTIAL>(s, out.add(at[i]), sums[i], n);
                        }
                    }
                }
                Finish::From { starts, outs } => {
                    for ((sums, start), out) in sums.iter().zip(starts).zip(outs) {
                        let start = term(start);
                        for i in 0..N {
                            put::<S, PARTIAL>(s, out.add(at[i]), s.add(start[i], sums[i]), n);
                        }
                    }
                }
                // A ratio has two sums.
                Finish::Ratio { terms: [p, q, r], .. } => {
                    let (p, q, r) = (term(p), term(q), term(r));
                    let mut ratio = [s.splat(0.0); N];
                    for i in 0..N {
                        let x = get::<S, PARTIAL>(s, self.x.add(at[i]), n);
                        let above = s.mul_add(p[i], x, s.add(q[i], sums[K - 1][i]));
                        ratio[i] = s.div(above, s.add(r[i], sums[0][i]));
                    }
                    for i in 0..N {
                        put::<S, PARTIAL>(s, self.out.add(at[i]), ratio[i], n);
                    }
                }
            }
        }
    }
}

/// # Safety
/// `from` must be readable for a register, or for `n` floats if `PARTIAL`.
#[inline(always)]
unsafe fn get<S: Simd, const PARTIAL: bool>(s: S, from: *const f32, n: usize) -> S::F {
    // SAFETY: the caller's promise.
    unsafe { if PARTIAL { s.load_n(from, n) } else { s.load(from) } }
}

/// # Safety
/// `to` must be writable for a register, or for `n` floats if `PARTIAL`.
#[inline(always)]
unsafe fn put<S: Simd, const PARTIAL: bool>(s: S, to: *mut f32, value: S::F, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { if PARTIAL { s.store_n(to, value, n) } else { s.store(to, value) } }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod wired_tests;
