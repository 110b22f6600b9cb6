//! Sums over synapses of few rows, by parameters that threads keep.
//!
//! The synapses of a destination are dealt to as many neighbouring threads as make lists short; destinations with long lists have
//! more. A thread keeps the source, the scale, the shift and the weights of each of its synapses.
//!
//! Where 2ᵃ and 1/a are the hardware's, up to four sigmoids share one reciprocal: of p = 1/a and q = 1/b, with w and v as
//! weights, w p + v q = (w b + v a) / (a b). An exponent above 30 counts as 30, so that no product of four is infinite; a
//! sigmoid below 10⁻⁹ is then that.

use super::kernel::{Writer, all_of, put};
use super::products::Role;
use super::work::Synapses;
use crate::lower::element::unary;
use crate::lower::site::{Functions, Site};
use crate::lower::synapses::Lists;
use crate::lower::view::Home;
use schwann_codegen::lang::{Expr, Kind, Memory, Ty, Unary};
use schwann_core::op::Activation;
use schwann_core::{Error, Op, Result, Value};
use std::f32::consts::LOG2_E;

/// Sigmoids that share a reciprocal, at most.
const SHARED: u32 = 4;
/// What an exponent counts as at most.
const EXPONENT_MOST: f32 = 30.0;

/// What a thread keeps of its synapses.
pub(super) struct Kept {
    pub(super) role: Role,
    pub(super) destination: Expr,
    slots: Vec<Slot>,
    /// How many of them it has.
    count: Expr,
    /// For each exchange, whether its destination has so many threads.
    together: Vec<Expr>,
    /// What is added to sums and multiplied, where it is the same for all rows.
    terms: Vec<Option<Expr>>,
    pub(super) writes: Option<Expr>,
}

struct Slot {
    /// Its source's element.
    source: Expr,
    scale: Expr,
    shift: Expr,
    weights: Vec<Expr>,
}

/// Operands that follow the tables: what sums begin with, or what a ratio is made of.
fn terms(node: &schwann_core::graph::Node) -> &[Value] {
    match &node.op {
        Op::SynapseSum { sums, .. } => &node.inputs[5 + sums..],
        _ => &node.inputs[7..],
    }
}

impl Writer<'_> {
    fn activation(&self, synapses: &Synapses) -> Activation {
        match &self.few.block.body.body.nodes()[synapses.id as usize].op {
            Op::SynapseSum { activation, .. } | Op::SynapseRatio { activation, .. } => *activation,
            _ => Activation::Sigmoid,
        }
    }

    fn shares(&self, s: &Site<'_>, synapses: &Synapses) -> bool {
        s.functions == Functions::Fast && self.activation(synapses) == Activation::Sigmoid
    }

    /// Loads what threads keep of their synapses.
    pub(super) fn keep_synapses(
        &self,
        s: &mut Site<'_>,
        synapses: &Synapses,
        lists: &Lists,
        several: bool,
    ) -> Result<Kept> {
        let node = &self.few.block.body.body.nodes()[synapses.id as usize];
        let role = Role::of(s, synapses.threads, several);
        // A thread without a destination does what the last one does, and writes nothing.
        let number = match (&role.has_work, synapses.used < synapses.threads) {
            (None, false) => role.number.clone(),
            _ if role.groups > 1 && synapses.used == synapses.threads => role.number.clone(),
            _ => s.maker.name("number", role.number.min(synapses.used - 1)),
        };
        let (mut destination, mut lanes): (Expr, Expr) = (0u32.into(), 1u32.into());
        for (i, run) in synapses.runs.iter().enumerate().rev() {
            let here = (&number - run.thread).shr(run.lanes.ilog2()) + run.destination;
            let is_last = i + 1 == synapses.runs.len();
            let end = synapses.runs.get(i + 1).map_or(synapses.used, |next| next.thread);
            destination = if is_last { here } else { s.maker.name("d", number.lt(end).select(here, destination)) };
            let same = synapses.runs[i..].iter().all(|other| other.lanes == run.lanes);
            lanes =
                if same { run.lanes.into() } else { s.maker.name("lanes", number.lt(end).select(run.lanes, lanes)) };
        }
        let destination = s.maker.name("destination", destination);
        let lane = s.maker.name("lane", role.number.and(&lanes - 1u32));
        let (constants, base) = (s.constants, s.arg("lists", Home::Constant(lists.at), &[]));
        let [begin, end] = [0u32, 1].map(|after| {
            let place = s.maker.load(constants, &base + &destination + after, Ty::U32);
            s.maker.name("place", place)
        });
        let first = lists.destinations + 1;
        let idle = match &node.op {
            // Four words of each row are 0.
            Op::SynapseSum { .. } => {
                let x = &self.few.pieces.get(node.inputs[0])[0];
                Expr::from(self.few.places.zero().wrapping_sub(self.few.places.word(x, self.few.level(synapses.id))))
            }
            _ => destination.clone(),
        };
        let scaled = self.shares(s, synapses);
        let mut slots = vec![];
        for j in 0..synapses.slots {
            let entry = s.maker.name("e", &begin + &lane + &lanes * j);
            let has = s.maker.name("has", entry.lt(&end));
            let entry = s.maker.name("e", has.select(entry, 0u32));
            let table = |s: &mut Site<'_>, k: u32| {
                let word = s.maker.load(constants, &base + &entry + (first + k * lists.count), Ty::F32);
                let word = s.maker.name("word", word);
                s.maker.name("kept", has.select(word, 0.0f32))
            };
            let (mut scale, mut shift) = (table(s, 1), table(s, 2));
            if scaled {
                scale = s.maker.name("scale", scale * -LOG2_E);
                shift = s.maker.name("shift", shift * -LOG2_E);
            }
            let weights = (0..synapses.sums).map(|k| table(s, 3 + k)).collect();
            let source = s.maker.load(constants, &base + &entry + first, Ty::U32);
            let source = s.maker.name("source", source);
            let source = s.maker.name("source", has.select(source, idle.clone()));
            slots.push(Slot { source, scale, shift, weights });
        }
        let count = (&end - &begin + &lanes - 1u32 - &lane).shr(log(s, &lanes, synapses));
        let count = s.maker.name("count", count);
        let mut together = vec![];
        let mut bit = 1;
        while bit < synapses.lanes_most {
            let more = Expr::from(bit).lt(&lanes);
            together.push(s.maker.name("together", more));
            bit *= 2;
        }
        let mut kept = vec![];
        let dims = node.outs[0].shape.dims();
        for value in terms(node) {
            let rowless = self.few.block.body.row_axis(*value).is_none();
            kept.push(match rowless {
                true => {
                    let view = self.rowless(*value)?.stretched(dims);
                    let term = s.load(&view, &[0u32.into(), destination.clone()])?;
                    Some(s.maker.name("term", term))
                }
                false => None,
            });
        }
        let leads = (synapses.lanes_most > 1).then(|| lane.eq(0u32));
        let used = (synapses.used < synapses.threads).then(|| role.number.lt(synapses.used));
        let writes = all_of([leads, used, role.has_work.clone()]).map(|writes| s.maker.name("writes", writes));
        Ok(Kept { role, destination, slots, count, together, terms: kept, writes })
    }

    /// What a sum begins with or a ratio is made of, in a step.
    fn term(&self, s: &mut Site<'_>, synapses: &Synapses, kept: &Kept, number: usize, step: &Expr) -> Result<Expr> {
        let node = &self.few.block.body.body.nodes()[synapses.id as usize];
        let Some(value) = terms(node).get(number) else { return Ok(0.0f32.into()) };
        match &kept.terms[number] {
            Some(term) => Ok(term.clone()),
            None => {
                let view = self.view(*value, self.few.level(synapses.id))?.stretched(node.outs[0].shape.dims());
                s.load(&view, &[step.clone(), kept.destination.clone()])
            }
        }
    }

    /// The sums of a thread's destination, of sources whose element 0 is at these words. All threads of it get them.
    fn sums(
        &self,
        s: &mut Site<'_>,
        synapses: &Synapses,
        kept: &Kept,
        memory: Memory,
        from: &[Expr],
    ) -> Vec<Vec<Expr>> {
        let sums = synapses.sums as usize;
        let all: Vec<Vec<_>> =
            from.iter().map(|_| (0..sums).map(|_| s.maker.variable("sum", 0.0f32)).collect()).collect();
        let shares = self.shares(s, synapses);
        let rounds = synapses.slots.div_ceil(SHARED).max(1);
        let each = synapses.slots.div_ceil(rounds).max(1);
        let mut at = 0;
        while at < synapses.slots {
            let slots = &kept.slots[at as usize..(at + each).min(synapses.slots) as usize];
            let some = at >= synapses.slots_least;
            if some {
                s.maker.open_block();
            }
            for (from, sums) in from.iter().zip(&all) {
                let mut parts: Vec<Fraction> = vec![];
                for slot in slots {
                    let x = s.maker.load(memory, from + &slot.source, Ty::U32);
                    let x = s.maker.name("x", x).bits(Ty::F32);
                    let x = s.maker.name("a", x.fma(&slot.scale, slot.shift.clone()));
                    if shares {
                        // NaN stays what it is.
                        let most = Expr::from(EXPONENT_MOST).lt(&x).select(EXPONENT_MOST, &x);
                        let below = s.maker.name("below", most.unary(Unary::Exp2) + 1.0f32);
                        parts.push(Fraction { above: slot.weights.clone(), below });
                    } else {
                        let value = match self.activation(synapses).unary() {
                            Some(function) => unary(s, function, &x),
                            None => x,
                        };
                        for (sum, weight) in sums.iter().zip(&slot.weights) {
                            let next = value.fma(weight, s.maker.get(*sum));
                            s.maker.set(*sum, next);
                        }
                    }
                }
                if let Some(all) = together(s, parts) {
                    let part = s.maker.name("part", all.below.unary(Unary::Recip));
                    for (sum, above) in sums.iter().zip(&all.above) {
                        let next = above.fma(&part, s.maker.get(*sum));
                        s.maker.set(*sum, next);
                    }
                }
            }
            if some {
                s.maker.close_when(Expr::from(at).lt(&kept.count));
            }
            at += each;
        }
        let mut totals: Vec<Vec<Expr>> =
            all.iter().map(|sums| sums.iter().map(|sum| s.maker.get(*sum)).collect()).collect();
        for (i, more) in kept.together.iter().enumerate() {
            for total in totals.iter_mut().flatten() {
                let sum = s.maker.name("sum", total.clone());
                let other = Expr::new(Ty::F32, Kind::Exchange(sum.clone(), 1 << i));
                let other = s.maker.name("other", other);
                *total = s.maker.name("sum", &sum + more.select(other, 0.0f32));
            }
        }
        totals
    }

    /// The results of a thread's destination in these steps.
    pub(super) fn synapses(
        &self,
        s: &mut Site<'_>,
        synapses: &Synapses,
        kept: &Kept,
        steps: &[Expr],
    ) -> Result<Vec<Vec<Expr>>> {
        let node = &self.few.block.body.body.nodes()[synapses.id as usize];
        let x = &self.few.pieces.get(node.inputs[0])[0];
        let first = self.few.places.word(x, self.few.level(synapses.id));
        let mut from = vec![];
        for step in steps {
            from.push(s.maker.name("from", step * self.few.places.stride + first));
        }
        let sums = self.sums(s, synapses, kept, self.values, &from);
        let mut results = vec![];
        for ((sums, step), from) in sums.into_iter().zip(steps).zip(&from) {
            if matches!(node.op, Op::SynapseRatio { .. }) {
                let own = s.maker.load(self.values, from + &kept.destination, Ty::U32).bits(Ty::F32);
                let own = s.maker.name("own", own);
                let terms = self.ratio_terms(s, synapses, kept, step)?;
                results.push(vec![ratio(s, &terms, &own, &sums)]);
                continue;
            }
            let mut totals = vec![];
            for (k, sum) in sums.iter().enumerate() {
                totals.push(sum + self.term(s, synapses, kept, k, step)?);
            }
            results.push(totals);
        }
        Ok(results)
    }

    fn ratio_terms(&self, s: &mut Site<'_>, synapses: &Synapses, kept: &Kept, step: &Expr) -> Result<[Expr; 3]> {
        let [p, q, r] = [0, 1, 2].map(|k| self.term(s, synapses, kept, k, step));
        let (q, r) = (q?, r?);
        Ok([p?, s.maker.name("q", q), s.maker.name("r", r)])
    }

    /// A ratio that is applied to its own result several times in a tick, with a wait between.
    pub(super) fn unfolded(&self, s: &mut Site<'_>, synapses: &Synapses, kept: &Kept, tick: &Expr) -> Result<()> {
        let node = &self.few.block.body.body.nodes()[synapses.id as usize];
        let level = self.few.level(synapses.id);
        let x = &self.few.pieces.get(node.inputs[0])[0];
        let begin = tick * self.few.places.stride + self.few.places.word(x, level);
        let begin = s.maker.name("from", begin);
        let terms = self.ratio_terms(s, synapses, kept, tick)?;
        let own = s.maker.load(self.values, &begin + &kept.destination, Ty::U32).bits(Ty::F32);
        let mut own = s.maker.name("own", own);
        let aside = self.asides.get(&synapses.id);
        let (mut memory, mut from) = (self.values, begin);
        for time in 0..synapses.times {
            let sums = self.sums(s, synapses, kept, memory, std::slice::from_ref(&from));
            own = ratio(s, &terms, &own, &sums[0]);
            if time + 1 == synapses.times {
                let value = Value { node: synapses.id, slot: 0 };
                let out = tick * self.few.places.stride + self.few.places.whole(value, level);
                let writes = all_of([kept.writes.clone(), self.began(tick, level)]);
                self.put(s, writes, out + &kept.destination, &own);
            } else {
                let [even, odd] = *aside.ok_or_else(|| Error::Internal("no room for an unfolding".into()))?;
                (memory, from) = (if time % 2 == 0 { even } else { odd }, 0u32.into());
                put(s, memory, kept.writes.clone(), kept.destination.clone(), &own);
                s.maker.barrier();
            }
        }
        Ok(())
    }
}

/// log₂ of a thread's lanes, a power of two.
fn log(s: &mut Site<'_>, lanes: &Expr, synapses: &Synapses) -> Expr {
    if let Some(lanes) = lanes.as_const() {
        return lanes.ilog2().into();
    }
    let mut log: Expr = 0u32.into();
    let mut bit = 1;
    while bit < synapses.lanes_most {
        log = log + Expr::from(bit).lt(lanes).to(Ty::U32);
        bit *= 2;
    }
    s.maker.name("log", log)
}

/// A sum of fractions with one denominator.
struct Fraction {
    above: Vec<Expr>,
    below: Expr,
}

/// Fractions as one.
fn together(s: &mut Site<'_>, mut parts: Vec<Fraction>) -> Option<Fraction> {
    while parts.len() > 1 {
        let mut next = vec![];
        let mut rest = parts.into_iter();
        while let Some(a) = rest.next() {
            let Some(b) = rest.next() else {
                next.push(a);
                break;
            };
            let cross = |(w, v): (&Expr, &Expr)| w.fma(&b.below, v * &a.below);
            let above: Vec<Expr> = a.above.iter().zip(&b.above).map(cross).collect();
            let above = above.into_iter().map(|e| s.maker.name("above", e)).collect();
            let below = s.maker.name("below", &a.below * &b.below);
            next.push(Fraction { above, below });
        }
        parts = next;
    }
    parts.pop()
}

/// (p · own + q + s₂) / (r + s₁)
fn ratio(s: &mut Site<'_>, [p, q, r]: &[Expr; 3], own: &Expr, sums: &[Expr]) -> Expr {
    let above = p.fma(own, q + &sums[1]);
    let below = r + &sums[0];
    let value = if s.functions == Functions::Fast { above * below.unary(Unary::Recip) } else { above / below };
    s.maker.name("own", value)
}
