//! Synapses whose wiring is known ahead and whose numbers are not: those of a network that learns. The same sums as in
//! [`super::Synapses`], from lists that are read in each call, and the gradients of these sums.
//!
//! A call takes two registers of rows at a time (or one, filled in part) through everything. Their values are first copied
//! to working memory, where rows fill the lanes; so it does not matter how values lie outside, and no load or store needs
//! to know where rows end. Lanes without a row hold zeros there, and are left out of sums over rows.
//!
//! For a synapse e from source i to destination d, with y = scale · x\[i\] + shift, a = act(y) and the gradients h_k of
//! the sums at d, a gradient's pass adds
//!
//! ```text
//! b = act′(y) · Σ c_k · h_k
//! to dx[i]: b · scale      to its scale: b · x[i]      to its shift: b      to its weight c_k: a · h_k
//! ```
//!
//! where act′ is a · (1 − a) or 1 − a². Activations are computed again, since one of them takes less time than its trip to
//! memory and back. What is summed over rows is summed over the lanes in part when a synapse is left (four sums become one
//! register), and else at the end of the call. A ratio y = above / below with above = p·x + q + s₂ and below = r + s₁ that is
//! taken repeatedly is first taken forward again, with its values and denominators kept; the passes then begin with the last
//! one, with h₂ = dy / below and h₁ = −h₂ · y. Activations of this way forward are kept too where they stay in a near cache.

#![expect(clippy::needless_range_loop, reason = "the indices name registers: each loop is unrolled away")]

use super::{Activation, Finish, Grid, IDENTITY, SIGMOID, TANH, sigmoid_of_exp2};
use crate::math;
use crate::simd::{Isa, Simd, with_simd};
use crate::team::Team;
use crate::tuning::Machine;
use std::ops::Range;

/// A synapse's source, and its place in the lists of numbers.
#[derive(Clone, Copy)]
struct Place {
    source: u32,
    number: u32,
}

/// How many registers of rows are taken together.
const TOGETHER: usize = 2;

/// The wiring of synapses, for one instruction set; their numbers come with each call.
pub struct Wiring {
    isa: Isa,
    activation: Activation,
    sources: usize,
    segments: usize,
    sums: usize,
    /// By destination.
    places: Vec<Place>,
    /// Where each destination's places begin, and the end.
    starts: Vec<u32>,
    threads_evaluations_least: usize,
    /// Up to how many bytes of activations a gradient keeps.
    kept_bytes_most: usize,
}

impl std::fmt::Debug for Wiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Wiring { isa, activation, sources, segments, sums, places, .. } = self;
        write!(f, "Wiring({} {activation:?}, {sources} to {sums} × {segments}, {isa})", places.len())
    }
}

/// What a gradient is taken of.
pub(crate) enum Of {
    /// Sums: the gradient of each.
    Sums([*const f32; 2]),
    /// A ratio that is taken so many times.
    Ratio {
        /// The gradient of its result.
        gradient: *const f32,
        /// p, q and r.
        terms: [Grid; 3],
        /// Where their gradients go, each with a number for every row and destination.
        to: [*mut f32; 3],
        /// How many times.
        times: usize,
    },
}

impl Of {
    fn times(&self) -> usize {
        if let Of::Ratio { times, .. } = self { *times } else { 0 }
    }
}

impl Wiring {
    /// The wiring of synapses from `sources` values to `segments` destinations, in any order, for one or two sums. Indices
    /// out of range are refused.
    pub fn new(
        Machine { isa, tuning }: Machine<'_>,
        activation: Activation,
        sources: usize,
        segments: usize,
        src: &[i32],
        dest: &[i32],
        sums: usize,
    ) -> Result<Wiring, String> {
        let order = super::checked_order(sources, segments, src, dest, sums)?;
        let places = order.iter().map(|&e| Place { source: src[e] as u32, number: e as u32 }).collect();
        let threads_evaluations_least = tuning.synapse_threads_evaluations_least();
        let kept_bytes_most = tuning.synapse_kept_bytes_most();
        let starts = super::starts(segments, dest);
        Ok(Wiring {
            isa,
            activation,
            sources,
            segments,
            sums,
            places,
            starts,
            threads_evaluations_least,
            kept_bytes_most,
        })
    }

    pub(crate) fn sources(&self) -> usize {
        self.sources
    }
    pub(crate) fn segments(&self) -> usize {
        self.segments
    }
    pub(crate) fn sums(&self) -> usize {
        self.sums
    }
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
    pub(crate) fn is_for(&self, isa: Isa) -> bool {
        self.isa == isa
    }
    /// Whether a ratio of the sums makes sense: there are two, and every destination is a source.
    pub(crate) fn has_ratio(&self) -> bool {
        self.sums == 2 && self.segments == self.sources
    }
    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.places.len() * size_of::<Place>() + self.starts.len() * 4
    }

    /// Floats of a value with a number for each source or destination, in working memory.
    fn wide(&self) -> usize {
        self.sources.max(self.segments) * TOGETHER * self.isa.lanes()
    }

    /// Bytes of working memory of one thread of a run, aligned to 64: the values before and after, and three
    /// terms, or what two sums start from.
    pub fn scratch_bytes(&self) -> Option<usize> {
        self.wide().checked_mul(5 * 4)
    }

    /// Bytes of working memory of a gradient, aligned to 64, of sums (0 times) or a ratio.
    pub fn gradient_scratch_bytes(&self, times: usize) -> Option<usize> {
        // Values and denominators of each time, the result, three terms and their gradients, gradients of x and of both sums.
        let wide = times.checked_mul(2)?.checked_add(10)?.checked_mul(self.wide())?;
        let lists = self.len().checked_mul(self.isa.lanes())?;
        wide.checked_add(lists)?.checked_add(self.kept_floats(times).unwrap_or(0))?.checked_mul(4)
    }

    /// Floats of all activations of a ratio that is taken so many times, if a gradient keeps them.
    fn kept_floats(&self, times: usize) -> Option<usize> {
        let floats = times.checked_mul(self.len())?.checked_mul(TOGETHER * self.isa.lanes())?;
        (floats > 0 && floats.checked_mul(4)? <= self.kept_bytes_most).then_some(floats)
    }

    /// The strides of values with `width` numbers a row.
    pub(super) fn dense(at: *const f32, batch_last: bool, rows: usize, width: usize) -> Grid {
        match batch_last {
            true => Grid { at, row: 1, destination: rows },
            false => Grid { at, row: width, destination: 1 },
        }
    }

    /// The sums of `rows` rows, or their ratio. `numbers` are scales, shifts and weights.
    ///
    /// # Safety
    /// As for [`super::Synapses::run_batch_last`] and [`super::Synapses::run_batch_first`], but terms may have any strides;
    /// `numbers` must be readable for every synapse (as many weights as there are sums), and `scratch` writable for
    /// [`Self::scratch_bytes`] for each thread of the team.
    #[expect(clippy::too_many_arguments, reason = "the memory of one call")]
    pub(crate) unsafe fn run(
        &self,
        team: &Team,
        rows: usize,
        batch_last: bool,
        numbers: [*const f32; 4],
        x: *const f32,
        finish: &Finish,
        scratch: *mut f32,
    ) {
        let job = &Job { wiring: self, numbers, rows, batch_last, x, finish: Some(finish), scratch };
        let part = |thread: usize, part: Range<usize>| {
            // SAFETY: the rows of this part, and its thread's memory.
            with_simd!(self.isa, s => unsafe {
                match (self.activation, self.sums) {
                    (Activation::Identity, 1) => job.run::<_, IDENTITY, 1>(s, thread, part),
                    (Activation::Identity, _) => job.run::<_, IDENTITY, 2>(s, thread, part),
                    (Activation::Sigmoid, 1) => job.run::<_, SIGMOID, 1>(s, thread, part),
                    (Activation::Sigmoid, _) => job.run::<_, SIGMOID, 2>(s, thread, part),
                    (Activation::Tanh, 1) => job.run::<_, TANH, 1>(s, thread, part),
                    (Activation::Tanh, _) => job.run::<_, TANH, 2>(s, thread, part),
                }
            })
        };
        if self.segments == 0 {
            // Nothing to do. Without destinations, memory does not limit the number of rows.
        } else if self.len().saturating_mul(rows).saturating_mul(finish.times()) >= self.threads_evaluations_least {
            team.split(rows, TOGETHER * self.isa.lanes(), &part);
        } else {
            part(0, 0..rows);
        }
    }

    /// The gradients: of x to `dx`, and of scales, shifts and weights, each summed over all rows, to `lists`.
    ///
    /// # Safety
    /// x and what `of` names must be readable, and what it writes to and `dx` writable, for every row; `numbers` and
    /// `lists` for every synapse; `scratch` for [`Self::gradient_scratch_bytes`]. Nothing that is written may overlap
    /// anything else. A ratio needs [`Self::has_ratio`].
    #[expect(clippy::too_many_arguments, reason = "the memory of one call")]
    pub(crate) unsafe fn gradient(
        &self,
        rows: usize,
        batch_last: bool,
        numbers: [*const f32; 4],
        x: *const f32,
        of: &Of,
        dx: *mut f32,
        lists: [*mut f32; 4],
        scratch: *mut f32,
    ) {
        let job = &Job { wiring: self, numbers, rows, batch_last, x, finish: None, scratch };
        // SAFETY: the caller's promise.
        with_simd!(self.isa, s => unsafe {
            match (self.activation, self.sums) {
                (Activation::Identity, 1) => job.gradient::<_, IDENTITY, 1>(s, of, dx, lists),
                (Activation::Identity, _) => job.gradient::<_, IDENTITY, 2>(s, of, dx, lists),
                (Activation::Sigmoid, 1) => job.gradient::<_, SIGMOID, 1>(s, of, dx, lists),
                (Activation::Sigmoid, _) => job.gradient::<_, SIGMOID, 2>(s, of, dx, lists),
                (Activation::Tanh, 1) => job.gradient::<_, TANH, 1>(s, of, dx, lists),
                (Activation::Tanh, _) => job.gradient::<_, TANH, 2>(s, of, dx, lists),
            }
        })
    }
}

/// One call.
struct Job<'a> {
    wiring: &'a Wiring,
    numbers: [*const f32; 4],
    rows: usize,
    batch_last: bool,
    x: *const f32,
    /// What becomes of sums; nothing in a gradient.
    finish: Option<&'a Finish>,
    scratch: *mut f32,
}
// SAFETY: what it names is only read, but for the working memory, of which each thread has a part of its own.
unsafe impl Sync for Job<'_> {}

/// Working memory of a gradient: values of `wide` floats each.
struct Room {
    /// The values before each time that a ratio is taken, and after the last.
    values: *mut f32,
    /// The denominators of each time.
    below: *mut f32,
    terms: [*mut f32; 3],
    term_gradients: [*mut f32; 3],
    dx: *mut f32,
    /// The gradients of the sums.
    h: [*mut f32; 2],
    /// A register for each synapse, with the sums for its scale, shift and weights in each 128 bits.
    lists: *mut f32,
    /// The activations of each synapse, time after time; null where they are not kept.
    kept: *mut f32,
}

impl Room {
    /// Where the activations of one time are, of which there are so many floats.
    fn kept(&self, time: usize, floats: usize) -> *mut f32 {
        if self.kept.is_null() { self.kept } else { self.kept.wrapping_add(time * floats) }
    }
}

impl Job<'_> {
    fn dense(&self, at: *const f32, width: usize) -> Grid {
        Wiring::dense(at, self.batch_last, self.rows, width)
    }

    /// # Safety
    /// As [`Wiring::run`], for a part of the rows.
    #[inline(always)]
    unsafe fn run<S: Simd, const ACT: u8, const K: usize>(&self, s: S, thread: usize, part: Range<usize>) {
        let Some(finish) = self.finish else { return };
        let scratch = self.scratch.wrapping_add(thread * (self.wiring.scratch_bytes().unwrap_or(0) / 4));
        let mut c = part.start;
        // SAFETY: rows of the part; the rest is the caller's promise.
        unsafe {
            while c < part.end {
                if part.end - c >= TOGETHER * S::LANES {
                    self.block::<S, ACT, K, TOGETHER>(s, c, TOGETHER * S::LANES, finish, scratch);
                    c += TOGETHER * S::LANES;
                } else {
                    let n = S::LANES.min(part.end - c);
                    self.block::<S, ACT, K, 1>(s, c, n, finish, scratch);
                    c += n;
                }
            }
        }
    }

    /// The same for `n` rows from `c` on, which fill `N` registers or a part of one.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn block<S: Simd, const ACT: u8, const K: usize, const N: usize>(
        &self,
        s: S,
        c: usize,
        n: usize,
        finish: &Finish,
        scratch: *mut f32,
    ) {
        let Wiring { sources, segments, .. } = *self.wiring;
        let wide = self.wiring.wide();
        let room = |i: usize| scratch.wrapping_add(i * wide);
        let outside = |out: *mut f32| self.dense(out, segments);
        // SAFETY: the caller's promise.
        unsafe {
            bring::<S, N>(s, &self.dense(self.x, sources), sources, c, n, room(0));
            match finish {
                Finish::Ratio { out, terms, times } => {
                    for (i, term) in terms.iter().enumerate() {
                        bring::<S, N>(s, term, segments, c, n, room(2 + i));
                    }
                    let terms = [room(2), room(3), room(4)];
                    for time in 0..*times {
                        let (from, to) = (room(time % 2), room((time + 1) % 2));
                        self.ratio::<S, ACT, K, N>(s, from, terms, to, [std::ptr::null_mut(); 2]);
                    }
                    give::<S, N>(s, room(times % 2), segments, c, n, &outside(*out));
                }
                Finish::Plain(outs) | Finish::From { outs, .. } => {
                    for d in 0..segments {
                        let sums = self.sums::<S, ACT, K, N>(s, d, room(0), std::ptr::null_mut());
                        for k in 0..K {
                            for j in 0..N {
                                s.store(room(1 + k).add((d * N + j) * S::LANES), sums[k][j]);
                            }
                        }
                    }
                    for k in 0..K {
                        if let Finish::From { starts, .. } = finish {
                            bring::<S, N>(s, &starts[k], segments, c, n, room(3));
                            for at in (0..segments * N * S::LANES).step_by(S::LANES) {
                                let sum = s.add(s.load(room(3).add(at)), s.load(room(1 + k).add(at)));
                                s.store(room(1 + k).add(at), sum);
                            }
                        }
                        give::<S, N>(s, room(1 + k), segments, c, n, &outside(outs[k]));
                    }
                }
            }
        }
    }

    /// One time that a ratio is taken; denominators are kept at `below` and activations at `kept`, unless these are null.
    ///
    /// # Safety
    /// All must be working memory of a call whose synapses have a ratio.
    #[inline(always)]
    unsafe fn ratio<S: Simd, const ACT: u8, const K: usize, const N: usize>(
        &self,
        s: S,
        from: *const f32,
        [p, q, r]: [*mut f32; 3],
        to: *mut f32,
        [below, kept]: [*mut f32; 2],
    ) {
        for d in 0..self.wiring.segments {
            // SAFETY: the caller's promise.
            unsafe {
                let sums = self.sums::<S, ACT, K, N>(s, d, from, kept);
                for j in 0..N {
                    let at = (d * N + j) * S::LANES;
                    let above = s.add(s.load(q.add(at)), sums[K - 1][j]);
                    let above = s.mul_add(s.load(p.add(at)), s.load(from.add(at)), above);
                    let under = s.add(s.load(r.add(at)), sums[0][j]);
                    s.store(to.add(at), s.div(above, under));
                    if !below.is_null() {
                        s.store(below.add(at), under);
                    }
                }
            }
        }
    }

    /// The sums of one destination; its activations are kept at `kept`, unless it is null.
    ///
    /// # Safety
    /// There must be such a destination, and `x` and `kept` be working memory.
    #[inline(always)]
    unsafe fn sums<S: Simd, const ACT: u8, const K: usize, const N: usize>(
        &self,
        s: S,
        d: usize,
        x: *const f32,
        kept: *mut f32,
    ) -> [[S::F; N]; K] {
        let mut sums = [[s.splat(0.0); N]; K];
        let (first, end) = (self.wiring.starts[d] as usize, self.wiring.starts[d + 1] as usize);
        for (at, place) in (first..).zip(&self.wiring.places[first..end]) {
            // SAFETY: sources and numbers were checked.
            unsafe {
                let a = self.activated::<S, ACT, N>(s, place, x);
                if !kept.is_null() {
                    for j in 0..N {
                        s.store(kept.add((at * N + j) * S::LANES), a[j]);
                    }
                }
                for k in 0..K {
                    let weight = s.splat(*self.numbers[2 + k].add(place.number as usize));
                    for j in 0..N {
                        sums[k][j] = s.mul_add(weight, a[j], sums[k][j]);
                    }
                }
            }
        }
        sums
    }

    /// The activations of a synapse.
    ///
    /// # Safety
    /// As [`Self::sums`].
    #[inline(always)]
    unsafe fn activated<S: Simd, const ACT: u8, const N: usize>(
        &self,
        s: S,
        place: &Place,
        x: *const f32,
    ) -> [S::F; N] {
        let mut y = [s.splat(0.0); N];
        // SAFETY: the caller's promise.
        unsafe {
            let number = place.number as usize;
            let (scale, shift) = (s.splat(*self.numbers[0].add(number)), s.splat(*self.numbers[1].add(number)));
            for j in 0..N {
                y[j] = s.mul_add(scale, s.load(x.add((place.source as usize * N + j) * S::LANES)), shift);
            }
        }
        match ACT {
            SIGMOID => {
                // e⁻ʸ as a power of two.
                for j in 0..N {
                    y[j] = s.mul(y[j], s.splat(-std::f32::consts::LOG2_E));
                }
                y = sigmoid_of_exp2(s, y);
            }
            // No closure: it would not be compiled for the instruction set, and be called.
            TANH => {
                for y in &mut y {
                    *y = math::tanh(s, *y);
                }
            }
            _ => {}
        }
        y
    }

    /// # Safety
    /// As [`Wiring::gradient`].
    #[inline(always)]
    unsafe fn gradient<S: Simd, const ACT: u8, const K: usize>(
        &self,
        s: S,
        of: &Of,
        dx: *mut f32,
        lists: [*mut f32; 4],
    ) {
        let wiring = self.wiring;
        let (wide, times) = (wiring.wide(), of.times());
        let value = |i: usize| self.scratch.wrapping_add(i * wide);
        let after = 2 * times + 1;
        let lists_at = value(after + 9);
        let room = Room {
            values: value(0),
            below: value(times + 1),
            terms: [value(after), value(after + 1), value(after + 2)],
            term_gradients: [value(after + 3), value(after + 4), value(after + 5)],
            dx: value(after + 6),
            h: [value(after + 7), value(after + 8)],
            lists: lists_at,
            kept: match wiring.kept_floats(times) {
                Some(_) => lists_at.wrapping_add(wiring.len() * S::LANES),
                None => std::ptr::null_mut(),
            },
        };
        // SAFETY: the caller's promise, and the room that it gives.
        unsafe {
            for e in 0..wiring.places.len() {
                s.store(room.lists.add(e * S::LANES), s.splat(0.0));
            }
            let mut c = 0;
            while c < self.rows {
                if self.rows - c >= TOGETHER * S::LANES {
                    self.gradient_block::<S, ACT, K, TOGETHER, false>(s, c, TOGETHER * S::LANES, of, dx, &room);
                    c += TOGETHER * S::LANES;
                } else {
                    let n = S::LANES.min(self.rows - c);
                    self.gradient_block::<S, ACT, K, 1, true>(s, c, n, of, dx, &room);
                    c += n;
                }
            }
            for (i, place) in wiring.places.iter().enumerate() {
                let own = room.lists.add(i * S::LANES);
                for (k, list) in lists.iter().enumerate().take(2 + K) {
                    let mut sum = 0.0;
                    for group in 0..S::LANES / 4 {
                        sum += *own.add(4 * group + k);
                    }
                    *list.add(place.number as usize) = sum;
                }
            }
        }
    }

    /// The same for `n` rows from `c` on.
    ///
    /// # Safety
    /// As [`Wiring::gradient`].
    #[inline(always)]
    unsafe fn gradient_block<S: Simd, const ACT: u8, const K: usize, const N: usize, const PARTIAL: bool>(
        &self,
        s: S,
        c: usize,
        n: usize,
        of: &Of,
        dx: *mut f32,
        room: &Room,
    ) {
        let Wiring { sources, segments, .. } = *self.wiring;
        let (wide, activations) = (self.wiring.wide(), self.wiring.len() * N * S::LANES);
        // SAFETY: the caller's promise.
        unsafe {
            bring::<S, N>(s, &self.dense(self.x, sources), sources, c, n, room.values);
            match *of {
                Of::Sums(gradients) => {
                    for k in 0..K {
                        bring::<S, N>(s, &self.dense(gradients[k], segments), segments, c, n, room.h[k]);
                    }
                    for at in (0..sources * N * S::LANES).step_by(S::LANES) {
                        s.store(room.dx.add(at), s.splat(0.0));
                    }
                    self.back::<S, ACT, K, N, PARTIAL, false>(s, room.values, std::ptr::null(), n, room);
                }
                Of::Ratio { gradient, terms, to, times } => {
                    for (term, to) in terms.iter().zip(room.terms) {
                        bring::<S, N>(s, term, segments, c, n, to);
                    }
                    for time in 0..times {
                        let (from, to) = (room.values.add(time * wide), room.values.add((time + 1) * wide));
                        let keep = [room.below.add(time * wide), room.kept(time, activations)];
                        self.ratio::<S, ACT, K, N>(s, from, room.terms, to, keep);
                    }
                    bring::<S, N>(s, &self.dense(gradient, segments), segments, c, n, room.dx);
                    for time in (0..times).rev() {
                        let (x, y) = (room.values.add(time * wide), room.values.add((time + 1) * wide));
                        let below = room.below.add(time * wide);
                        for at in (0..segments * N * S::LANES).step_by(S::LANES) {
                            let above = s.div(s.load(room.dx.add(at)), s.load(below.add(at)));
                            let under = s.neg(s.mul(above, s.load(y.add(at))));
                            s.store(room.h[0].add(at), under);
                            s.store(room.h[1].add(at), above);
                            s.store(room.dx.add(at), s.mul(above, s.load(room.terms[0].add(at))));
                            let parts = [s.mul(above, s.load(x.add(at))), above, under];
                            for (part, to) in parts.into_iter().zip(room.term_gradients) {
                                let to = to.add(at);
                                let sum = if time + 1 == times { part } else { s.add(s.load(to), part) };
                                s.store(to, sum);
                            }
                        }
                        match room.kept(time, activations) {
                            kept if kept.is_null() => self.back::<S, ACT, K, N, PARTIAL, false>(s, x, kept, n, room),
                            kept => self.back::<S, ACT, K, N, PARTIAL, true>(s, x, kept, n, room),
                        }
                    }
                    for (from, to) in room.term_gradients.into_iter().zip(to) {
                        give::<S, N>(s, from, segments, c, n, &self.dense(to, segments));
                    }
                }
            }
            give::<S, N>(s, room.dx, sources, c, n, &self.dense(dx, sources));
        }
    }

    /// One pass over all synapses: adds to the gradients of x and of the lists. Activations are at `kept`, if `KEPT`.
    ///
    /// # Safety
    /// As [`Wiring::gradient`]; x and activations must be working memory.
    #[inline(always)]
    unsafe fn back<S: Simd, const ACT: u8, const K: usize, const N: usize, const PARTIAL: bool, const KEPT: bool>(
        &self,
        s: S,
        x: *const f32,
        kept: *const f32,
        n: usize,
        room: &Room,
    ) {
        let zero = s.splat(0.0);
        // SAFETY: a register has at most 16 lanes.
        let lane = s.int_to_float(unsafe { s.load_int(LANE.as_ptr()) });
        let used = s.lt(lane, s.splat(n as f32));
        for (d, ends) in self.wiring.starts.windows(2).enumerate() {
            // SAFETY: sources, destinations and numbers were checked; the rest is the caller's promise.
            unsafe {
                let mut h = [[zero; N]; K];
                for k in 0..K {
                    for j in 0..N {
                        let all = s.load(room.h[k].add((d * N + j) * S::LANES));
                        h[k][j] = if PARTIAL { s.select(used, all, zero) } else { all };
                    }
                }
                for at in ends[0] as usize..ends[1] as usize {
                    let place = self.wiring.places.get_unchecked(at);
                    let number = place.number as usize;
                    let mut a = [zero; N];
                    if KEPT {
                        for j in 0..N {
                            a[j] = s.load(kept.add((at * N + j) * S::LANES));
                        }
                    } else {
                        a = self.activated::<S, ACT, N>(s, place, x);
                    }
                    let scale = s.splat(*self.numbers[0].add(number));
                    // Of scale and shift, then of the weights.
                    let mut sums = [zero; 4];
                    for j in 0..N {
                        let mut b = s.mul(s.splat(*self.numbers[2].add(number)), h[0][j]);
                        if K > 1 {
                            b = s.mul_add(s.splat(*self.numbers[3].add(number)), h[K - 1][j], b);
                        }
                        b = match ACT {
                            SIGMOID => s.mul(b, s.neg_mul_add(a[j], a[j], a[j])),
                            TANH => s.mul(b, s.neg_mul_add(a[j], a[j], s.splat(1.0))),
                            _ => b,
                        };
                        let source = (place.source as usize * N + j) * S::LANES;
                        let (mut value, dx) = (s.load(x.add(source)), room.dx.add(source));
                        s.store(dx, s.mul_add(b, scale, s.load(dx)));
                        if PARTIAL {
                            b = s.select(used, b, zero);
                            a[j] = s.select(used, a[j], zero);
                            value = s.select(used, value, zero);
                        }
                        sums[0] = s.mul_add(b, value, sums[0]);
                        sums[1] = s.add(sums[1], b);
                        for k in 0..K {
                            sums[2 + k] = s.mul_add(a[j], h[k][j], sums[2 + k]);
                        }
                    }
                    let list = room.lists.add(at * S::LANES);
                    s.store(list, s.add(s.load(list), side_by_side(s, sums)));
                }
            }
        }
    }
}

const LANE: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Four registers, each summed to one float in each 128 bits, which lie side by side there.
#[inline(always)]
fn side_by_side<S: Simd>(s: S, [a, b, c, d]: [S::F; 4]) -> S::F {
    let halves = |(low, high): (S::I, S::I)| s.add(s.float_from_bits(low), s.float_from_bits(high));
    let ab = halves(s.zip::<4>(s.bits(a), s.bits(b)));
    let cd = halves(s.zip::<4>(s.bits(c), s.bits(d)));
    halves(s.zip::<8>(s.bits(ab), s.bits(cd)))
}

/// Copies `n` rows from `c` on of `width` numbers each to working memory: `N` registers for each number, with zeros in
/// lanes without a row.
///
/// # Safety
/// The grid must be readable there, and `to` writable for as many registers.
#[inline(always)]
unsafe fn bring<S: Simd, const N: usize>(s: S, from: &Grid, width: usize, c: usize, n: usize, to: *mut f32) {
    for d in 0..width {
        let from_d = from.at.wrapping_add(d * from.destination + c * from.row);
        for j in 0..N {
            let to = to.wrapping_add((d * N + j) * S::LANES);
            let left = S::LANES.min(n - j * S::LANES);
            let from_j = from_d.wrapping_add(j * S::LANES * from.row);
            // SAFETY: the caller's promise.
            unsafe {
                match from.row {
                    1 => s.store(to, if N > 1 { s.load(from_j) } else { s.load_n(from_j, left) }),
                    0 => s.store(to, s.splat(*from_d)),
                    apart => {
                        s.store(to, s.splat(0.0));
                        for row in 0..left {
                            *to.add(row) = *from_j.add(row * apart);
                        }
                    }
                }
            }
        }
    }
}

/// Copies rows back from working memory.
///
/// # Safety
/// As [`bring`], the other way; rows are not repeated.
#[inline(always)]
unsafe fn give<S: Simd, const N: usize>(s: S, from: *const f32, width: usize, c: usize, n: usize, to: &Grid) {
    for d in 0..width {
        let to_d = to.at.cast_mut().wrapping_add(d * to.destination + c * to.row);
        for j in 0..N {
            let from = from.wrapping_add((d * N + j) * S::LANES);
            let left = S::LANES.min(n - j * S::LANES);
            let to_j = to_d.wrapping_add(j * S::LANES * to.row);
            // SAFETY: the caller's promise.
            unsafe {
                if to.row == 1 {
                    if N > 1 { s.store(to_j, s.load(from)) } else { s.store_n(to_j, s.load(from), left) }
                } else {
                    for row in 0..left {
                        *to_j.add(row * to.row) = *from.add(row);
                    }
                }
            }
        }
    }
}
