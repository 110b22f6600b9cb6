//! Scaled dot-product attention: softmax(q kᵀ · scale + mask) v, without the matrix of scores.
//!
//! A task is a block of query rows of one key head; all the query heads that share that key head are rows of the same
//! matrix, so grouped heads and single queries fill the tiles too. A task walks the keys in blocks: the block of K is
//! transposed and the one of V copied once into scratch memory (about as much work as one query row), then a few query
//! rows at a time get their scores, the online softmax and their share of the output while everything they touch is in the first
//! two cache levels. Both products run on the same register tile of 4 rows × `WIDE` vectors.
//!
//! Scores are kept in units of ln 2 (scale · log₂e is folded into the copy of q), so that the softmax needs 2ˣ only. The
//! rescaling of the output by a grown maximum is folded into loading the output's tile.
//!
//! With `causal`, tiles beyond the diagonal are never computed. One or two rows (decoding) take a path without packing.

use crate::simd::{Isa, Simd, with_simd};
use crate::softmax;
use crate::team::Team;
use crate::tuning::Machine;
use std::f32::consts::{LN_2, LOG2_E};

/// Keys of one block.
const KEYS: usize = 256;
/// Keys of V that one pass of the second product covers, to stay in the first-level cache.
const VALUE_KEYS: usize = 128;
/// The most query rows of one task.
const ROWS: usize = 512;
/// Query rows whose scores are computed and used together.
const SCORES: usize = 16;
/// Rows of a register tile.
const TILE: usize = 4;
/// A task of at most this many rows reads K and V in place: copying them would cost more than it saves.
const FEW: usize = 2;

/// The shape and the options of an attention; strides count elements, and the innermost one is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Independent sequences.
    pub batch: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Heads of keys and values; head h uses h · kv_heads / heads.
    pub kv_heads: usize,
    /// Query rows.
    pub queries: usize,
    /// Key and value rows.
    pub keys: usize,
    /// The length of a query and of a key.
    pub dim: usize,
    /// The length of a value.
    pub value_dim: usize,
    /// What the scores are multiplied by.
    pub scale: f32,
    /// Whether query i sees only keys j ≤ i + keys − queries.
    pub causal: bool,
    /// Strides of q over batch, head and row.
    pub q: [isize; 3],
    /// Strides of k over batch, head and row.
    pub k: [isize; 3],
    /// Strides of v over batch, head and row.
    pub v: [isize; 3],
    /// Strides of the output over batch, head and row.
    pub out: [isize; 3],
    /// Strides of the mask over batch, head, query and key, if there is one; 0 repeats it.
    pub mask: Option<[isize; 4]>,
}

impl Attention {
    /// Query rows that share a key head.
    fn rows(&self) -> usize {
        self.heads / self.kv_heads * self.queries
    }

    /// Keys that query row `i` sees, where no positions say it.
    #[inline(always)]
    fn visible(&self, i: usize) -> usize {
        if self.causal { (i + 1 + self.keys).saturating_sub(self.queries).min(self.keys) } else { self.keys }
    }

    /// The scratch of one thread in floats: where each part begins, then the end.
    /// Saturates where that overflows: no memory is as large.
    fn layout(&self, lanes: usize) -> [usize; 8] {
        let wide = self.value_dim.next_multiple_of(lanes);
        let sizes =
            [(KEYS, self.dim), (KEYS, wide), (ROWS, self.dim), (ROWS, wide), (SCORES, KEYS), (2, ROWS), (2, SCORES)];
        let mut at = [0usize; 8];
        for (i, (rows, floats)) in sizes.into_iter().enumerate() {
            let size = floats.saturating_mul(rows).checked_next_multiple_of(16);
            at[i + 1] = at[i].saturating_add(size.unwrap_or(usize::MAX));
        }
        at
    }
}

/// The bytes of scratch memory that an attention of this shape needs on a team of `threads`; [`usize::MAX`] where that
/// overflows.
pub fn attention_scratch_bytes(isa: Isa, threads: usize, shape: &Attention) -> usize {
    let floats = shape.layout(isa.lanes())[7].saturating_mul(threads.max(1));
    floats.saturating_mul(size_of::<f32>()).saturating_add(64)
}

/// `out` = softmax(q · kᵀ · scale + mask) · v. A row that sees no key, or whose mask is −∞ everywhere, is 0.
///
/// With `positions`, which is null otherwise, query i sees the keys up to `positions[i]`, whatever the shape says. If one is
/// outside `0..keys`, its number is returned and nothing is written.
///
/// # Panics
/// If `heads` is no multiple of `kv_heads`.
///
/// # Safety
/// Every element that `shape` reaches must be readable at `q`, `k`, `v` and `mask` (unless the shape has none) and
/// writable at `out`, which overlaps none of them, and a number for each query at `positions`; `scratch` must be writable for [`attention_scratch_bytes`].
#[expect(clippy::too_many_arguments, reason = "four operands")]
pub(crate) unsafe fn attention(
    Machine { isa, tuning }: Machine<'_>,
    team: &Team,
    shape: &Attention,
    q: *const f32,
    k: *const f32,
    v: *const f32,
    mask: *const f32,
    positions: *const i32,
    out: *mut f32,
    scratch: *mut u8,
) -> Result<(), usize> {
    assert!(shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads), "grouped heads must divide");
    let mut keys = shape.keys;
    if !positions.is_null() {
        // SAFETY: a number for each query.
        let last = unsafe { std::slice::from_raw_parts(positions, shape.queries) };
        if let Some(at) = last.iter().position(|&p| p < 0 || p as usize >= shape.keys) {
            return Err(at);
        }
        keys = last.iter().max().map_or(0, |&p| p as usize + 1);
    }
    if shape.value_dim == 0 {
        return Ok(());
    }
    let rows = shape.rows();
    let factors = [shape.batch, shape.heads, shape.queries, keys, shape.dim + shape.value_dim];
    let work = factors.into_iter().fold(1, usize::saturating_mul);
    let threads = if work >= tuning.attention_threads_multiplications_least() { team.threads() } else { 1 };
    let blocks = shape.batch * shape.kv_heads;
    let mut block = ROWS;
    while threads > 1 && block > 64 && blocks * rows.div_ceil(block) < 4 * threads {
        block /= 2;
    }
    let tasks = blocks * rows.div_ceil(block);
    let job =
        Job { shape, q, k, v, mask, positions, out, scratch: scratch.wrapping_add(scratch.align_offset(64)).cast() };
    let job = &job;
    let part = |part: usize| {
        with_simd!(isa, s => {
            // Back and forth over the threads, as later blocks of a causal head cost more.
            for round in 0..tasks.div_ceil(threads) {
                let task = round * threads + if round % 2 == 0 { part } else { threads - 1 - part };
                if task < tasks {
                    let (head, first) = (task % blocks, task / blocks * block);
                    let rows = first..rows.min(first + block);
                    // SAFETY: the rows of one task, which only this thread writes, with this thread's scratch.
                    unsafe { Task::new(s, job, part, head).run(s, rows) };
                }
            }
        })
    };
    if threads > 1 {
        team.run(&part)
    } else {
        part(0)
    }
    Ok(())
}

struct Job<'a> {
    shape: &'a Attention,
    q: *const f32,
    k: *const f32,
    v: *const f32,
    mask: *const f32,
    positions: *const i32,
    out: *mut f32,
    scratch: *mut f32,
}
// SAFETY: operands are only read, and the threads write disjoint rows of the output and disjoint parts of the scratch.
unsafe impl Sync for Job<'_> {}

/// One key head of one sequence, and this thread's scratch.
struct Task<'a> {
    shape: &'a Attention,
    /// The first query head's q, mask and output; the head's k and v.
    q: *const f32,
    mask: *const f32,
    out: *mut f32,
    /// The last key that each query sees; null if the shape says it.
    positions: *const i32,
    k: *const f32,
    v: *const f32,
    /// The value's length in whole vectors.
    wide: usize,
    /// Panels of `WIDE` vectors of keys: [panel][dim][key].
    keys: *mut f32,
    /// [key][wide]
    values: *mut f32,
    /// [row][dim], scaled
    queries: *mut f32,
    /// [row][wide], not yet divided by the sum
    sums: *mut f32,
    /// [SCORES][KEYS]
    scores: *mut f32,
    /// The maximum and the sum of each row so far.
    top: *mut f32,
    total: *mut f32,
    /// The factor that each row's output is rescaled by, and the maximum to subtract from its scores.
    shrink: *mut f32,
    base: *mut f32,
}

/// Vectors of a register tile: sixteen accumulators, or eight where there are only sixteen registers.
const fn wide_tile<S: Simd>() -> usize {
    if S::REGISTERS >= 32 { 4 } else { 2 }
}

impl<'a> Task<'a> {
    /// # Safety
    /// As [`attention`].
    #[inline(always)]
    unsafe fn new<S: Simd>(_: S, job: &Job<'a>, part: usize, head: usize) -> Task<'a> {
        let shape = job.shape;
        let at = shape.layout(S::LANES);
        let (b, kv) = ((head / shape.kv_heads) as isize, (head % shape.kv_heads) as isize);
        let h = kv * (shape.heads / shape.kv_heads) as isize;
        let mask = shape.mask.unwrap_or_default();
        // Queries, keys or values may be empty, and then have no first element to point to, nor strides that mean anything.
        let at_head =
            |b: isize, h: isize, [batch, head, _]: [isize; 3]| b.wrapping_mul(batch).wrapping_add(h.wrapping_mul(head));
        // SAFETY: the first element of a head of the output, which is not empty, and parts of the scratch as it is laid out.
        unsafe {
            let scratch = job.scratch.add(part * at[7]);
            Task {
                shape,
                q: job.q.wrapping_offset(at_head(b, h, shape.q)),
                mask: job.mask.wrapping_offset(at_head(b, h, [mask[0], mask[1], 0])),
                out: job.out.offset(at_head(b, h, shape.out)),
                positions: job.positions,
                k: job.k.wrapping_offset(at_head(b, kv, shape.k)),
                v: job.v.wrapping_offset(at_head(b, kv, shape.v)),
                wide: shape.value_dim.next_multiple_of(S::LANES),
                keys: scratch,
                values: scratch.add(at[1]),
                queries: scratch.add(at[2]),
                sums: scratch.add(at[3]),
                scores: scratch.add(at[4]),
                top: scratch.add(at[5]),
                total: scratch.add(at[5] + ROWS),
                shrink: scratch.add(at[6]),
                base: scratch.add(at[6] + SCORES),
            }
        }
    }

    /// The query head (counted from the group's first) and the row in it.
    #[inline(always)]
    fn place(&self, row: usize) -> (isize, isize) {
        ((row / self.shape.queries) as isize, (row % self.shape.queries) as isize)
    }

    /// Keys that query `i` sees.
    ///
    /// # Safety
    /// As [`attention`], for a query that exists.
    #[inline(always)]
    unsafe fn visible(&self, i: usize) -> usize {
        if self.positions.is_null() {
            return self.shape.visible(i);
        }
        // SAFETY: there is a number for each query, and it was checked.
        unsafe { *self.positions.add(i) as usize + 1 }
    }

    /// # Safety
    /// As [`attention`], for these rows.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, s: S, rows: std::ops::Range<usize>) {
        let (shape, count) = (self.shape, rows.len());
        // SAFETY: parts of the scratch within their sizes, and rows of the operands that exist.
        unsafe {
            self.start(s, rows.clone());
            let seen = rows.clone().map(|row| self.visible(row % shape.queries)).max().unwrap_or(0);
            for first in (0..seen).step_by(KEYS) {
                let n = KEYS.min(seen - first);
                if count > FEW {
                    self.pack_keys(s, first, n);
                    self.pack_values(s, first, n);
                }
                for r in (0..count).step_by(SCORES) {
                    let some = r..count.min(r + SCORES);
                    // Keys of this block that each row sees, and that each tile must cover.
                    let mut limits = [0usize; SCORES];
                    for (limit, row) in limits.iter_mut().zip(some.clone()) {
                        *limit = self.visible((rows.start + row) % shape.queries).saturating_sub(first).min(n);
                    }
                    let mut tiles = [0usize; SCORES / TILE];
                    for (tile, limits) in tiles.iter_mut().zip(limits.chunks(TILE)) {
                        *tile = limits.iter().copied().max().unwrap_or(0);
                    }
                    if count > FEW {
                        self.score(s, r, &tiles);
                        self.soften(s, rows.start, some.clone(), first, &limits, &tiles);
                        self.add_values(s, some, &limits, &tiles);
                    } else {
                        self.score_few(s, some.clone(), first, tiles[0]);
                        self.soften(s, rows.start, some.clone(), first, &limits, &tiles);
                        self.add_values_few(s, some, first, &limits);
                    }
                }
            }
            self.finish(s, rows);
        }
    }

    /// Copies the scaled queries and clears the sums; rows are filled up to whole tiles.
    #[inline(always)]
    unsafe fn start<S: Simd>(&self, s: S, rows: std::ops::Range<usize>) {
        let (dim, count) = (self.shape.dim, rows.len().next_multiple_of(TILE));
        let scale = s.splat(self.shape.scale * LOG2_E);
        // SAFETY: `count` rows of the scratch, and rows of q that exist.
        unsafe {
            for (r, row) in rows.clone().enumerate() {
                let (h, i) = self.place(row);
                let q = self.q.wrapping_offset(h * self.shape.q[1] + i * self.shape.q[2]);
                for c in (0..dim).step_by(S::LANES) {
                    let n = S::LANES.min(dim - c);
                    s.store_n(self.queries.add(r * dim + c), s.mul(s.load_n(q.add(c), n), scale), n);
                }
            }
            self.queries.add(rows.len() * dim).write_bytes(0, (count - rows.len()) * dim);
            self.sums.write_bytes(0, count * self.wide);
            self.total.write_bytes(0, count);
            std::slice::from_raw_parts_mut(self.top, count).fill(f32::NEG_INFINITY);
        }
    }

    /// Transposes a block of keys into panels; missing keys of the last vector are 0.
    #[inline(always)]
    unsafe fn pack_keys<S: Simd>(&self, s: S, first: usize, n: usize) {
        let (dim, stride, panel) = (self.shape.dim, self.shape.k[2], wide_tile::<S>() * S::LANES);
        for j in (0..n).step_by(S::LANES) {
            let some = S::LANES.min(n - j);
            let whole = if some == S::LANES { dim / S::LANES * S::LANES } else { 0 };
            // SAFETY: keys first + j .. first + j + some exist, and the panel has room for LANES of them.
            unsafe {
                let k = self.k.wrapping_offset((first + j) as isize * stride);
                let to = self.keys.add(j / panel * panel * dim + j % panel);
                for d in (0..whole).step_by(S::LANES) {
                    s.transpose::<false>(k.add(d).cast(), 4 * stride, to.add(d * panel).cast(), 4 * panel as isize);
                }
                for d in whole..dim {
                    for lane in 0..S::LANES {
                        let x = if lane < some { *k.offset(lane as isize * stride).add(d) } else { 0.0 };
                        *to.add(d * panel + lane) = x;
                    }
                }
            }
        }
    }

    /// Copies a block of values; missing lanes of the last vector are 0.
    #[inline(always)]
    unsafe fn pack_values<S: Simd>(&self, s: S, first: usize, n: usize) {
        let (len, stride) = (self.shape.value_dim, self.shape.v[2]);
        let whole = len / S::LANES * S::LANES;
        for j in 0..n {
            // SAFETY: row first + j exists, and the scratch has KEYS rows of `wide`.
            unsafe {
                let (v, to) = (self.v.offset((first + j) as isize * stride), self.values.add(j * self.wide));
                for c in (0..whole).step_by(S::LANES) {
                    s.store(to.add(c), s.load(v.add(c)));
                }
                if whole < len {
                    s.store(to.add(whole), s.load_n(v.add(whole), len - whole));
                }
            }
        }
    }

    /// The scores of the rows from `r` on: each tile of rows against the keys that it must cover.
    #[inline(always)]
    unsafe fn score<S: Simd>(&self, s: S, r: usize, tiles: &[usize; SCORES / TILE]) {
        let (dim, wide) = (self.shape.dim, wide_tile::<S>());
        let panel = wide * S::LANES;
        for first in (0..KEYS).step_by(panel) {
            for (t, &n) in tiles.iter().enumerate() {
                if n <= first {
                    continue;
                }
                // SAFETY: tiles with keys have rows, which `start` filled; the panel holds at least n − first keys.
                unsafe {
                    let a = self.queries.add((r + t * TILE) * dim);
                    let b = self.keys.add(first * dim);
                    let c = self.scores.add(t * TILE * KEYS + first);
                    match (n - first).div_ceil(S::LANES).min(wide) {
                        1 => tile::<S, 1>(s, dim, [a, b], [dim, panel], c, KEYS, None),
                        2 => tile::<S, 2>(s, dim, [a, b], [dim, panel], c, KEYS, None),
                        3 => tile::<S, 3>(s, dim, [a, b], [dim, panel], c, KEYS, None),
                        _ => tile::<S, 4>(s, dim, [a, b], [dim, panel], c, KEYS, None),
                    }
                }
            }
        }
    }

    /// Adds the mask, then turns scores into probabilities relative to the largest score so far.
    #[inline(always)]
    unsafe fn soften<S: Simd>(
        &self,
        s: S,
        start: usize,
        some: std::ops::Range<usize>,
        first: usize,
        limits: &[usize; SCORES],
        tiles: &[usize; SCORES / TILE],
    ) {
        let (r0, count) = (some.start, some.len());
        // SAFETY: rows of the scratch, up to whole vectors of the keys their tile covers.
        unsafe {
            for r in 0..count {
                let row = self.scores.add(r * KEYS);
                let end = tiles[r / TILE].next_multiple_of(S::LANES);
                if let Some(strides) = self.shape.mask {
                    let (h, i) = self.place(start + r0 + r);
                    let at = h * strides[1] + i * strides[2] + first as isize * strides[3];
                    add_mask(s, row, limits[r], self.mask.offset(at), strides[3]);
                }
                for j in limits[r]..end {
                    *row.add(j) = f32::NEG_INFINITY;
                }
                *self.base.add(r) = (*self.top.add(r0 + r)).max(softmax::max(s, row, end));
            }
            for r in (0..count).step_by(S::LANES) {
                // The scratch has room for whole vectors, and what lies beyond the rows is never used.
                let n = S::LANES.min(count - r);
                let top = s.load_n(self.base.add(r), n);
                let base = s.select(s.eq(top, s.splat(f32::NEG_INFINITY)), s.splat(0.0), top);
                let shrink = exp2(s, s.sub(s.load_n(self.top.add(r0 + r), n), base));
                s.store_n(self.top.add(r0 + r), top, n);
                s.store_n(self.base.add(r), base, n);
                s.store_n(self.shrink.add(r), shrink, n);
            }
            for r in 0..count {
                let row = self.scores.add(r * KEYS);
                let end = tiles[r / TILE].next_multiple_of(S::LANES);
                let base = s.splat(*self.base.add(r));
                let mut sums = [s.splat(0.0); 4];
                let mut j = 0;
                while j + 4 * S::LANES <= end {
                    for (k, sum) in sums.iter_mut().enumerate() {
                        let p = row.add(j + k * S::LANES);
                        let e = exp2(s, s.sub(s.load(p), base));
                        s.store(p, e);
                        *sum = s.add(*sum, e);
                    }
                    j += 4 * S::LANES;
                }
                while j < end {
                    let e = exp2(s, s.sub(s.load(row.add(j)), base));
                    s.store(row.add(j), e);
                    sums[0] = s.add(sums[0], e);
                    j += S::LANES;
                }
                let sum = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
                let total = self.total.add(r0 + r);
                *total = *total * *self.shrink.add(r) + sum;
            }
        }
    }

    /// Rescales the sums of these rows and adds the weighted values. A row adds only the keys that it sees: a weight of
    /// 0 does not hide an infinite value, since 0 · ∞ is NaN.
    #[inline(always)]
    unsafe fn add_values<S: Simd>(
        &self,
        s: S,
        some: std::ops::Range<usize>,
        limits: &[usize; SCORES],
        tiles: &[usize; SCORES / TILE],
    ) {
        let (r, panel) = (some.start, wide_tile::<S>() * S::LANES);
        // Keys that all rows of a tile see.
        let mut common = [0usize; SCORES / TILE];
        for (common, limits) in common.iter_mut().zip(limits[..some.len()].chunks(TILE)) {
            *common = limits.iter().copied().min().unwrap_or(0);
        }
        for first in (0..KEYS).step_by(VALUE_KEYS) {
            for (t, &end) in tiles.iter().enumerate() {
                // The first pass also rescales the sums, so it runs even where no key is common to the tile's rows.
                if end == 0 || (first > 0 && common[t] <= first) {
                    continue;
                }
                let n = VALUE_KEYS.min(common[t] - first.min(common[t]));
                for c in (0..self.wide).step_by(panel) {
                    // SAFETY: tiles with keys have rows, and columns end within `wide`.
                    unsafe {
                        let a = self.scores.add(t * TILE * KEYS + first);
                        let b = self.values.add(first * self.wide + c);
                        let o = self.sums.add((r + t * TILE) * self.wide + c);
                        let shrink = |i: usize| if first == 0 { *self.shrink.add(t * TILE + i) } else { 1.0 };
                        let start = Some([shrink(0), shrink(1), shrink(2), shrink(3)]);
                        let strides = [KEYS, self.wide];
                        match ((self.wide - c) / S::LANES).min(wide_tile::<S>()) {
                            1 => tile::<S, 1>(s, n, [a, b], strides, o, self.wide, start),
                            2 => tile::<S, 2>(s, n, [a, b], strides, o, self.wide, start),
                            3 => tile::<S, 3>(s, n, [a, b], strides, o, self.wide, start),
                            _ => tile::<S, 4>(s, n, [a, b], strides, o, self.wide, start),
                        }
                    }
                }
            }
        }
        // On the diagonal: keys that only some rows of a tile see.
        for (i, &limit) in limits[..some.len()].iter().enumerate() {
            for j in common[i / TILE]..limit {
                // SAFETY: a row's own weight of a key that it sees, that key's values, and the row's sums.
                unsafe {
                    let weight = s.splat(*self.scores.add(i * KEYS + j));
                    let (v, o) = (self.values.add(j * self.wide), self.sums.add((r + i) * self.wide));
                    for c in (0..self.wide).step_by(S::LANES) {
                        s.store(o.add(c), s.mul_add(weight, s.load(v.add(c)), s.load(o.add(c))));
                    }
                }
            }
        }
    }

    /// As [`Self::score`] for one or two rows, from the keys in place.
    #[inline(always)]
    unsafe fn score_few<S: Simd>(&self, s: S, some: std::ops::Range<usize>, first: usize, n: usize) {
        let dim = self.shape.dim;
        let whole = dim / S::LANES * S::LANES;
        for j in (0..n).step_by(4) {
            // SAFETY: keys up to n exist; the last four may repeat the last key, whose scores have room.
            unsafe {
                let key = |i: usize| self.k.wrapping_offset((first + (j + i).min(n - 1)) as isize * self.shape.k[2]);
                let keys = [key(0), key(1), key(2), key(3)];
                for r in some.clone() {
                    let q = self.queries.add(r * dim);
                    let mut acc = [s.splat(0.0); 4];
                    for d in (0..whole).step_by(S::LANES) {
                        let q = s.load(q.add(d));
                        for (acc, k) in acc.iter_mut().zip(keys) {
                            *acc = s.mul_add(q, s.load(k.add(d)), *acc);
                        }
                    }
                    if whole < dim {
                        let q = s.load_n(q.add(whole), dim - whole);
                        for (acc, k) in acc.iter_mut().zip(keys) {
                            *acc = s.mul_add(q, s.load_n(k.add(whole), dim - whole), *acc);
                        }
                    }
                    for (i, acc) in acc.into_iter().enumerate() {
                        *self.scores.add((r - some.start) * KEYS + j + i) = s.sum(acc);
                    }
                }
            }
        }
    }

    /// As [`Self::add_values`] for one or two rows, from the values in place.
    #[inline(always)]
    unsafe fn add_values_few<S: Simd>(
        &self,
        s: S,
        some: std::ops::Range<usize>,
        first: usize,
        limits: &[usize; SCORES],
    ) {
        let stride = self.shape.v[2];
        let len = self.shape.value_dim;
        for (r, &n) in some.clone().zip(limits) {
            for c in (0..len).step_by(4 * S::LANES) {
                // SAFETY: keys up to n exist, and columns end at `len`.
                unsafe {
                    let p = self.scores.add((r - some.start) * KEYS);
                    let o = self.sums.add(r * self.wide + c);
                    let shrink = s.splat(*self.shrink.add(r - some.start));
                    let v = self.v.offset(first as isize * stride).add(c);
                    let vectors = (len - c).div_ceil(S::LANES).min(4);
                    if c + 4 * S::LANES <= len {
                        let mut acc = [s.splat(0.0); 4];
                        for (i, acc) in acc.iter_mut().enumerate() {
                            *acc = s.mul(s.load(o.add(i * S::LANES)), shrink);
                        }
                        for j in 0..n {
                            let weight = s.splat(*p.add(j));
                            let v = v.offset(j as isize * stride);
                            for (i, acc) in acc.iter_mut().enumerate() {
                                *acc = s.mul_add(weight, s.load(v.add(i * S::LANES)), *acc);
                            }
                        }
                        for (i, acc) in acc.into_iter().enumerate() {
                            s.store(o.add(i * S::LANES), acc);
                        }
                        continue;
                    }
                    for i in 0..vectors {
                        let at = i * S::LANES;
                        let some = S::LANES.min(len - c - at);
                        let mut acc = s.mul(s.load(o.add(at)), shrink);
                        for j in 0..n {
                            let v = s.load_n(v.offset(j as isize * stride).add(at), some);
                            acc = s.mul_add(s.splat(*p.add(j)), v, acc);
                        }
                        s.store(o.add(at), acc);
                    }
                }
            }
        }
    }

    /// Divides by the sums of the probabilities.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, rows: std::ops::Range<usize>) {
        let len = self.shape.value_dim;
        for (r, row) in rows.enumerate() {
            let (h, i) = self.place(row);
            // SAFETY: a row of the output that only this thread writes.
            unsafe {
                let out = self.out.offset(h * self.shape.out[1] + i * self.shape.out[2]);
                let total = *self.total.add(r);
                // A row that sees no key is 0, even where values are infinite or NaN.
                let seen = total != 0.0;
                let factor = s.splat(1.0 / total);
                for c in (0..len).step_by(S::LANES) {
                    let sum = s.load(self.sums.add(r * self.wide + c));
                    let y = if seen { s.mul(sum, factor) } else { s.splat(0.0) };
                    s.store_n(out.add(c), y, S::LANES.min(len - c));
                }
            }
        }
    }
}

/// `c` (= 0, or `c` times `start` by rows) + a · b for a tile of `TILE` rows and `WIDE` vectors, over `depth`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "the accumulators are registers, named by row and vector")]
unsafe fn tile<S: Simd, const WIDE: usize>(
    s: S,
    depth: usize,
    [a, b]: [*const f32; 2],
    [a_stride, b_stride]: [usize; 2],
    c: *mut f32,
    c_stride: usize,
    start: Option<[f32; TILE]>,
) {
    let mut acc = [[s.splat(0.0); WIDE]; TILE];
    // SAFETY: the caller's matrices are a: TILE × depth, b: depth × WIDE vectors and c: TILE × WIDE vectors.
    unsafe {
        if let Some(start) = start {
            for r in 0..TILE {
                for v in 0..WIDE {
                    acc[r][v] = s.mul(s.load(c.add(r * c_stride + v * S::LANES)), s.splat(start[r]));
                }
            }
        }
        let [a0, a1, a2, a3] = [a, a.add(a_stride), a.add(2 * a_stride), a.add(3 * a_stride)];
        for k in 0..depth {
            let x = [s.splat(*a0.add(k)), s.splat(*a1.add(k)), s.splat(*a2.add(k)), s.splat(*a3.add(k))];
            for v in 0..WIDE {
                let y = s.load(b.add(k * b_stride + v * S::LANES));
                for r in 0..TILE {
                    acc[r][v] = s.mul_add(x[r], y, acc[r][v]);
                }
            }
        }
        for r in 0..TILE {
            for v in 0..WIDE {
                s.store(c.add(r * c_stride + v * S::LANES), acc[r][v]);
            }
        }
    }
}

/// Adds `n` elements of a mask, `stride` apart, to scores in units of ln 2.
#[inline(always)]
unsafe fn add_mask<S: Simd>(s: S, row: *mut f32, n: usize, mask: *const f32, stride: isize) {
    let unit = s.splat(LOG2_E);
    let whole = if stride == 1 { n / S::LANES * S::LANES } else { 0 };
    // SAFETY: n elements of both.
    unsafe {
        for j in (0..whole).step_by(S::LANES) {
            s.store(row.add(j), s.mul_add(s.load(mask.add(j)), unit, s.load(row.add(j))));
        }
        for j in whole..n {
            *row.add(j) += *mask.offset(j as isize * stride) * LOG2_E;
        }
    }
}

/// 2ˣ for x ≤ 0 (hardly above), within 2 ulp; 0 below −150, NaN where x is NaN.
#[inline(always)]
fn exp2<S: Simd>(s: S, x: S::F) -> S::F {
    // Adding 1.5 · 2²³ rounds to an integer.
    let round = s.splat(12_582_912.0);
    let x = s.max_fast(s.splat(-151.0), x);
    let n = s.sub(s.add(x, round), round);
    let r = s.sub(x, n);
    let mut y = s.splat(0.001_330_019);
    for c in [0.009_669_81, 0.055_505_604, 0.240_222_8, LN_2, 1.0] {
        y = s.mul_add(y, r, s.splat(c));
    }
    s.scale(y, n)
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
