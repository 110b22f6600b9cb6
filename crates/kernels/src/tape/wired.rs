//! Calls of synapses whose numbers are values of the run: sums, ratios, and their gradients.

use super::Ref;
use super::Slots;
use super::verify::{Accesses, Check, moderate, reach};
use crate::simd::Isa;
use crate::synapse::{Finish, Grid, Of, Wiring};
use crate::team::Team;
use std::sync::Arc;

/// Sums over synapses or their ratio, as [`super::Call::SynapseSum`] has them.
#[derive(Debug)]
pub struct Wired {
    /// Where synapses begin and end.
    pub wiring: Arc<Wiring>,
    /// Scales, shifts, and weights for each sum.
    pub numbers: Vec<Ref>,
    /// Whether rows are the last axis.
    pub batch_last: bool,
    /// Rows.
    pub rows: usize,
    /// x
    pub src: Ref,
    /// How many times a ratio is applied; without it, sums are the result.
    pub ratio: Option<usize>,
    /// p, q and r, or what sums start from, with strides from row to row and from destination to destination.
    pub terms: Vec<(Ref, [usize; 2])>,
    /// The ratio, or each sum.
    pub outs: Vec<Ref>,
    /// [`Wiring::scratch_bytes`] for each thread.
    pub scratch: Ref,
}

/// The gradient of sums over synapses or their ratio.
#[derive(Debug)]
pub struct WiredGradient {
    /// Where synapses begin and end.
    pub wiring: Arc<Wiring>,
    /// Scales, shifts, and weights for each sum.
    pub numbers: Vec<Ref>,
    /// Whether rows are the last axis.
    pub batch_last: bool,
    /// Rows.
    pub rows: usize,
    /// x
    pub src: Ref,
    /// How many times a ratio is applied; without it, sums are differentiated.
    pub ratio: Option<usize>,
    /// p, q and r of a ratio.
    pub terms: Vec<(Ref, [usize; 2])>,
    /// The gradient of the ratio, or of each sum.
    pub gradients: Vec<Ref>,
    /// The gradient of x.
    pub dx: Ref,
    /// The gradients of the numbers, summed over rows.
    pub lists: Vec<Ref>,
    /// The gradients of p, q and r, with a number for every row and destination.
    pub of_terms: Vec<Ref>,
    /// [`Wiring::gradient_scratch_bytes`].
    pub scratch: Ref,
}

fn numbers(slots: Slots<'_>, refs: &[Ref]) -> [*mut f32; 4] {
    let mut all = [std::ptr::null_mut(); 4];
    for (to, r) in all.iter_mut().zip(refs) {
        *to = slots.at(r).cast();
    }
    all
}

fn grids(slots: Slots<'_>, terms: &[(Ref, [usize; 2])]) -> [Grid; 3] {
    let mut grids = [Grid { at: std::ptr::null(), row: 0, destination: 0 }; 3];
    for (grid, (r, [row, destination])) in grids.iter_mut().zip(terms) {
        *grid = Grid { at: slots.at(r).cast_const().cast(), row: *row, destination: *destination };
    }
    grids
}

/// What both calls read.
fn read(
    a: &mut Accesses<'_>,
    wiring: &Wiring,
    rows: usize,
    src: &Ref,
    lists: &[Ref],
    terms: &[(Ref, [usize; 2])],
) -> Check {
    moderate(&[rows, wiring.sources(), wiring.segments()])?;
    a.read(src, rows.checked_mul(wiring.sources()), 4)?;
    for list in lists {
        a.read(list, Some(wiring.len()), 4)?;
    }
    for (term, strides) in terms {
        moderate(strides)?;
        a.read(term, reach(&[rows, wiring.segments()], strides), 4)?;
    }
    Ok(())
}

impl Wired {
    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Ref, bool)) {
        f(&mut self.src, false);
        f(&mut self.scratch, true);
        self.numbers.iter_mut().chain(self.terms.iter_mut().map(|(r, _)| r)).for_each(|r| f(r, false));
        self.outs.iter_mut().for_each(|r| f(r, true));
    }

    pub(super) fn check(&self, a: &mut Accesses<'_>, isa: Isa, threads: usize) -> Check {
        let Wired { wiring, numbers, rows, src, ratio, terms, outs, scratch, .. } = self;
        let sums = wiring.sums();
        let fits = match ratio {
            None => outs.len() == sums && (terms.is_empty() || terms.len() == sums),
            Some(times) => outs.len() == 1 && terms.len() == 3 && wiring.has_ratio() && *times > 0,
        };
        if !fits || numbers.len() != 2 + sums || !wiring.is_for(isa) {
            return Err(format!("{wiring:?} and {} terms into {} results on {isa}", terms.len(), outs.len()));
        }
        read(a, wiring, *rows, src, numbers, terms)?;
        for out in outs {
            a.write(out, rows.checked_mul(wiring.segments()), 4)?;
        }
        a.scratch(scratch, wiring.scratch_bytes().ok_or("scratch memory overflows")?, threads)
    }

    /// # Safety
    /// As [`super::Call::run`].
    pub(super) unsafe fn run(&self, slots: Slots<'_>, team: &Team) {
        let outs = numbers(slots, &self.outs);
        let terms = grids(slots, &self.terms);
        let finish = match (self.ratio, self.terms.len()) {
            (Some(times), _) => Finish::Ratio { out: outs[0], terms, times },
            (None, 0) => Finish::Plain([outs[0], outs[1]]),
            (None, _) => Finish::From { starts: [terms[0], terms[1]], outs: [outs[0], outs[1]] },
        };
        let lists = numbers(slots, &self.numbers).map(<*mut f32>::cast_const);
        let (x, scratch) = (slots.at(&self.src).cast_const().cast(), slots.at(&self.scratch).cast());
        // SAFETY: what `check` verified.
        unsafe { self.wiring.run(team, self.rows, self.batch_last, lists, x, &finish, scratch) }
    }
}

impl WiredGradient {
    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Ref, bool)) {
        f(&mut self.src, false);
        f(&mut self.scratch, true);
        f(&mut self.dx, true);
        let terms = self.terms.iter_mut().map(|(r, _)| r);
        self.numbers.iter_mut().chain(&mut self.gradients).chain(terms).for_each(|r| f(r, false));
        self.lists.iter_mut().chain(&mut self.of_terms).for_each(|r| f(r, true));
    }

    pub(super) fn check(&self, a: &mut Accesses<'_>, isa: Isa) -> Check {
        let WiredGradient { wiring, rows, src, ratio, terms, gradients, dx, lists, of_terms, scratch, .. } = self;
        let sums = wiring.sums();
        let fits = match ratio {
            None => gradients.len() == sums && terms.is_empty() && of_terms.is_empty(),
            Some(times) => {
                gradients.len() == 1 && terms.len() == 3 && of_terms.len() == 3 && wiring.has_ratio() && *times > 0
            }
        };
        if !fits || self.numbers.len() != 2 + sums || lists.len() != 2 + sums || !wiring.is_for(isa) {
            return Err(format!("the gradient of {wiring:?} with {} terms on {isa}", terms.len()));
        }
        read(a, wiring, *rows, src, &self.numbers, terms)?;
        let (wide, long) = (rows.checked_mul(wiring.segments()), Some(wiring.len()));
        gradients.iter().try_for_each(|r| a.read(r, wide, 4))?;
        a.write(dx, rows.checked_mul(wiring.sources()), 4)?;
        lists.iter().try_for_each(|r| a.write(r, long, 4))?;
        of_terms.iter().try_for_each(|r| a.write(r, wide, 4))?;
        let bytes = wiring.gradient_scratch_bytes(ratio.unwrap_or(0)).ok_or("scratch memory overflows")?;
        a.scratch(scratch, bytes, 1)
    }

    /// # Safety
    /// As [`super::Call::run`].
    pub(super) unsafe fn run(&self, slots: Slots<'_>) {
        let gradients = numbers(slots, &self.gradients).map(<*mut f32>::cast_const);
        let [p, q, r, _] = numbers(slots, &self.of_terms);
        let of = match self.ratio {
            Some(times) => Of::Ratio { gradient: gradients[0], terms: grids(slots, &self.terms), to: [p, q, r], times },
            None => Of::Sums([gradients[0], gradients[1]]),
        };
        let lists = numbers(slots, &self.numbers).map(<*mut f32>::cast_const);
        let (x, dx) = (slots.at(&self.src).cast_const().cast(), slots.at(&self.dx).cast());
        let scratch = slots.at(&self.scratch).cast();
        // SAFETY: what `check` verified.
        unsafe {
            let to = numbers(slots, &self.lists);
            self.wiring.gradient(self.rows, self.batch_last, lists, x, &of, dx, to, scratch);
        }
    }
}
