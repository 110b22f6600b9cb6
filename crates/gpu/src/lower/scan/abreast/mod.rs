//! Loops of many rows with synapses, by rows abreast: the threads of a team of 32 have a row each, or two, and all of them sum
//! over the synapses of the same destination at the same time. So a synapse's numbers are read once for 32 rows or more, from
//! one address; a value's elements lie column by column, and threads read those of neighbouring rows at once. The teams of a
//! workgroup share its destinations, and wait for each other after each unfolding.
//!
//! What limits such sums is 2ᵃ and 1/a. A sum Σ wᵢ / (1 + 2ᵃⁱ) over up to four synapses is made a fraction A / D, with one
//! reciprocal: from A / D and another synapse w / (1 + e) comes (A (1 + e) + w D) / (D (1 + e)). Exponents count up to
//! [`EXPONENT_MOST`], so that no D overflows. The division at the end of a neuron's step takes the last fraction, of
//! up to three, in: what it divides by may be up to 2⁵⁰.

mod pack;

pub(crate) use pack::Order;

use self::pack::{COUNT_AT, HEAD, PIECE, PIECE_WORDS, numbers_at};
use super::block::Block;
use super::walk::Walker;
use crate::lower::Lowering;
use crate::lower::element::Call;
use crate::lower::site::Site;
use crate::lower::view::View;
use schwann_codegen::lang::{Expr, Function, Memory, Run, Ty, Unary, Var};
use schwann_core::op::{Activation, Op};
use schwann_core::pass::rows::Independent;
use schwann_core::{DType, Dim, Error, Result};
use std::sync::Arc;

/// Threads of a team.
pub(super) const TEAM: u32 = 32;
/// Teams of a workgroup at most, times the rows of a thread.
const TEAMS_MOST: u32 = 32;
/// Destinations of a team at least, where threads have two rows.
const DESTINATIONS_LEAST: u32 = 4;
/// Fewer rows than this for each core are left to other kernels: with weights in registers they are faster (measured on an H200).
const ROWS_LEAST: usize = 22;
/// 1 / (1 + 2ᵃ) for an a above this is taken to be 6e-8. The product of four 1 + 2ᵃ is a number then.
const EXPONENT_MOST: f32 = 24.0;
/// Synapses are copied to shared memory if they take no more words than this.
const COPIED_MOST: u32 = 8192;

/// How many rows a thread has, and how many teams are a workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) rows_each: u32,
    pub(super) teams: u32,
}

impl Shape {
    pub(super) fn rows(self) -> u32 {
        self.rows_each * TEAM
    }
    pub(super) fn threads(self) -> u32 {
        self.teams * TEAM
    }
}

impl Lowering<'_> {
    /// The shape for a loop whose synapses are all in order; none where another kernel serves it better.
    pub(super) fn abreast(
        &self,
        path: &[u32],
        body: &Independent,
        needed: impl Fn(u32) -> bool,
        batch: usize,
        fits: impl Fn(u32) -> bool,
    ) -> Option<Shape> {
        let cores = self.limits.parallel_groups as usize;
        if !self.limits.fast_functions || self.limits.lanes < TEAM || batch < ROWS_LEAST * cores {
            return None;
        }
        let mut widest = 0;
        for (id, node) in body.body.nodes().iter().enumerate().filter(|(id, _)| needed(*id as u32)) {
            if let Op::SynapseSum { axis, .. } | Op::SynapseRatio { axis, .. } = &node.op {
                let flat = node.outs.iter().all(|ty| ty.shape.dims().len() == 2 && ty.dtype == DType::F32);
                let x = body.body.ty(node.inputs[0]);
                if !flat || x.dtype != DType::F32 || body.row_axis(node.inputs[0]) != Some(1 - axis) {
                    return None;
                }
                self.constants.order(path, id as u32)?;
                widest = widest.max(node.outs[0].shape.dims()[*axis].as_fixed()?);
            }
        }
        let widest = u32::try_from(widest).ok().filter(|widest| *widest > 0)?;
        // With one row for each thread a core has few workgroups, and each of them may have more teams.
        let most = |rows_each: u32| (TEAMS_MOST / rows_each).min(self.limits.threads / TEAM).max(1);
        let teams = |rows_each: u32| (widest / DESTINATIONS_LEAST * 2 / rows_each).clamp(1, most(rows_each));
        let each = |rows_each: u32| Shape { rows_each, teams: teams(rows_each) };
        // Two rows for each thread, if with one a core would have a second workgroup.
        let two = batch.div_ceil(each(1).rows() as usize) > cores;
        [2, 1].into_iter().filter(|rows| *rows == 1 || two).map(each).find(|shape| fits(shape.rows()))
    }

    /// Whether a node's synapses are copied to shared memory, where there are so many words left.
    pub(super) fn copies(&self, order: &Order, left: u32) -> bool {
        order.words() <= COPIED_MOST.min(left)
    }
}

/// The smaller of two numbers; NaN where the first is NaN. Devices have that as one instruction.
fn no_more_than(s: &mut Site<'_>, x: Expr, most: f32) -> Expr {
    let c = "float y;
#if __CUDA_ARCH__ >= 800
    asm(\"min.NaN.f32 %0, %1, %2;\" : \"=f\"(y) : \"f\"(x0), \"f\"(x1));
#else
    y = x1 < x0 ? x1 : x0;
#endif
    return y;";
    let function = Function {
        name: "no_more_than".into(),
        operands: 2,
        wgsl: "return select(x0, x1, x1 < x0);".into(),
        c: Some(c.into()),
        run: Run(Arc::new(|x: &[f32]| if x[1] < x[0] { x[1] } else { x[0] })),
    };
    let value = s.maker.call(&function, vec![x, most.into()]);
    s.maker.name("exponent", value)
}

/// A sum of fractions with one denominator: for each sum what is above, and what is below.
struct Fraction {
    above: Vec<Expr>,
    below: Expr,
}

/// What a synapse adds to the fractions of a thread's rows: 2ᵃ for each row, and the weights.
struct Term {
    powers: Vec<Expr>,
    weights: Vec<Expr>,
}

/// The sums of one destination while they are made, for each row of a thread.
struct Sums<'a> {
    order: &'a Order,
    x: &'a View,
    axis: usize,
    rows: &'a [Expr],
    memory: Memory,
    /// What the sums are by now, for each row.
    totals: Vec<Vec<Var>>,
}

impl Sums<'_> {
    fn words(&self, s: &mut Site<'_>, at: Expr) -> [Expr; 4] {
        s.maker.load_many("part", self.memory, at, Ty::U32)
    }

    /// The terms of the first synapses of a piece, which begins there.
    fn terms(&self, s: &mut Site<'_>, at: &Expr, synapses: u32) -> Result<Vec<Term>> {
        let sources = self.words(s, at.clone());
        let mut terms = vec![];
        for (synapse, source) in (0..synapses).zip(&sources) {
            let values = load_rows(s, self.x, self.axis, source, self.rows)?;
            let [scale, shift, one, other] = self.words(s, at + numbers_at(synapse)).map(|word| word.bits(Ty::F32));
            let mut powers = vec![];
            for value in values {
                let exponent = s.maker.name("a", scale.fma(value, &shift));
                powers.push(if self.order.activation() == Activation::Identity {
                    exponent
                } else {
                    let exponent = no_more_than(s, exponent, EXPONENT_MOST);
                    s.maker.name("power", exponent.unary(Unary::Exp2))
                });
            }
            let mut weights = vec![one, other];
            weights.truncate(self.order.sums());
            terms.push(Term { powers, weights });
        }
        Ok(terms)
    }

    /// The fraction of some terms, of one row.
    fn fraction(&self, s: &mut Site<'_>, terms: &[Term], row: usize) -> Option<Fraction> {
        let (first, others) = terms.split_first()?;
        let below = s.maker.name("below", &first.powers[row] + 1.0);
        let mut fraction = Fraction { above: first.weights.clone(), below };
        for Term { powers, weights } in others {
            let power = &powers[row];
            for (above, weight) in fraction.above.iter_mut().zip(weights) {
                let joined = above.fma(power, weight.fma(&fraction.below, &*above));
                *above = s.maker.name("above", joined);
            }
            fraction.below = s.maker.name("below", fraction.below.fma(power, &fraction.below));
        }
        Some(fraction)
    }

    /// Adds terms to the sums.
    fn add(&self, s: &mut Site<'_>, terms: &[Term]) {
        if self.order.activation() == Activation::Identity {
            for Term { powers, weights } in terms {
                for (totals, value) in self.totals.iter().zip(powers) {
                    for (total, weight) in totals.iter().zip(weights) {
                        let sum = value.fma(weight, s.maker.get(*total));
                        s.maker.set(*total, sum);
                    }
                }
            }
            return;
        }
        for (row, totals) in self.totals.iter().enumerate() {
            if let Some(Fraction { above, below }) = self.fraction(s, terms, row) {
                let part = s.maker.name("part", below.unary(Unary::Recip));
                for (total, above) in totals.iter().zip(above) {
                    let sum = above.fma(&part, s.maker.get(*total));
                    s.maker.set(*total, sum);
                }
            }
        }
    }
}

/// The elements of a thread's rows, in one column.
fn load_rows(s: &mut Site<'_>, view: &View, axis: usize, column: &Expr, rows: &[Expr]) -> Result<Vec<Expr>> {
    let place = |row: &Expr| {
        let mut at = vec![row.clone(); 2];
        at[axis] = column.clone();
        at
    };
    let even = |dim: &Dim| dim.as_fixed().is_some_and(|n| n.is_multiple_of(2));
    let pairs = view.steps[1 - axis].is(1) && even(&view.steps[axis]) && even(&view.first);
    if let ([first, _], true) = (rows, pairs && view.dtype == DType::F32 && view.per_word() == 1)
        && let (memory @ Memory::Part(_), base) = s.place(view)?
    {
        let index = s.index(view, &place(first))?;
        let both: [Expr; 2] = s.maker.load_many("x", memory, base + index, Ty::U32);
        return Ok(both.into_iter().map(|word| word.bits(Ty::F32)).collect());
    }
    rows.iter().map(|row| s.load(view, &place(row))).collect()
}

impl Walker<'_> {
    /// Calls `body` for each destination of this team, by its place in the order. They are dealt to the teams forth and back, so
    /// that each has as many long lists as the others.
    fn destinations<'s>(
        &self,
        s: &mut Site<'s>,
        count: u32,
        teams: u32,
        body: impl FnOnce(&mut Site<'s>, &Expr) -> Result<()>,
    ) -> Result<()> {
        let thread = s.maker.thread();
        let team = s.maker.name("team", thread / TEAM);
        let whole = count / teams;
        let place = |back: Expr| back.select(Expr::from(teams - 1) - &team, &team);
        let last = if whole.is_multiple_of(2) { team.clone() } else { Expr::from(teams - 1) - &team };
        let to = last.lt(count % teams).to(Ty::U32) + whole;
        let to = if count.is_multiple_of(teams) { whole.into() } else { s.maker.name("rounds", to) };
        s.counted("round", 0u32, to, |s, round| {
            let place = place(round.rem(2u32).eq(1u32));
            let number = s.maker.name("number", round * teams + place);
            body(s, &number)
        })
    }

    /// Sums over synapses, or a step of neurons, of rows abreast: from `x` to `outs`. The order's words are in `memory`, from
    /// `first` on.
    pub(super) fn abreast(
        &self,
        s: &mut Site<'_>,
        call: &Call<'_>,
        x: &View,
        outs: &[View],
        (order, memory, first): (&Order, Memory, &Expr),
    ) -> Result<()> {
        let (Some(Shape { rows_each, teams }), Op::SynapseSum { axis, .. } | Op::SynapseRatio { axis, .. }) =
            (self.block.abreast, call.op)
        else {
            return Err(Error::Internal("rows that are not abreast".into()));
        };
        let axis = *axis;
        let divides = matches!(call.op, Op::SynapseRatio { .. });
        let thread = s.maker.thread();
        let lane = s.maker.name("row", thread.rem(TEAM) * rows_each);
        let rows: Vec<Expr> = (0..rows_each).map(|r| s.maker.name("row", &lane + r)).collect();
        self.destinations(s, order.destinations(), teams, |s, number| {
            let head = s.maker.name("at", number * HEAD + first);
            let [destination, one, other, at]: [Expr; 4] = s.maker.load_many("head", memory, head, Ty::U32);
            let count = s.maker.name("count", destination.shr(COUNT_AT));
            let destination = s.maker.name("destination", destination.and((1u32 << COUNT_AT) - 1));
            let at = s.maker.name("synapses", at + first);
            let bases = [one, other].map(|word| word.bits(Ty::F32));
            let variables = |s: &mut Site<'_>| -> Vec<Var> {
                bases.iter().take(order.sums()).map(|base| s.maker.variable("sum", base)).collect()
            };
            let totals = rows.iter().map(|_| variables(s)).collect();
            let sums = Sums { order, x, axis, rows: &rows, memory, totals };
            let pieces = s.maker.name("pieces", &count / PIECE);
            // A thread with one row takes two pieces at a time, so that it has something to do while it waits.
            let at_once = 2 / rows_each;
            let rounds = s.maker.name("rounds", &pieces / at_once);
            let add = |s: &mut Site<'_>, first: &Expr, count: u32| -> Result<()> {
                let place = |k: u32| (first + k) * PIECE_WORDS + &at;
                let terms = (0..count).map(|k| {
                    let at = s.maker.name("piece", place(k));
                    sums.terms(s, &at, PIECE)
                });
                let terms = terms.collect::<Result<Vec<_>>>()?;
                terms.iter().for_each(|terms| sums.add(s, terms));
                Ok(())
            };
            s.counted("pieces", 0u32, &rounds, |s, round| add(s, &(round * at_once), at_once))?;
            if at_once > 1 {
                s.guarded(pieces.rem(2u32).eq(1u32), |s| add(s, &(&pieces - 1u32), 1))?;
            }
            // What is left over is a fraction of its own, at first of nothing.
            let fractions: Vec<(Vec<Var>, Var)> = (0..rows.len())
                .map(|_| {
                    let above = (0..order.sums()).map(|_| s.maker.variable("above", 0.0f32)).collect();
                    (above, s.maker.variable("below", 1.0f32))
                })
                .collect();
            let rest = s.maker.name("rest", count.rem(PIECE));
            let piece = s.maker.name("piece", &at + &pieces * PIECE_WORDS);
            for synapses in 1..PIECE {
                s.guarded(rest.eq(synapses), |s| {
                    let terms = sums.terms(s, &piece, synapses)?;
                    if order.activation() == Activation::Identity {
                        sums.add(s, &terms);
                        return Ok(());
                    }
                    for (row, (above, below)) in fractions.iter().enumerate() {
                        if let Some(fraction) = sums.fraction(s, &terms, row) {
                            above.iter().zip(fraction.above).for_each(|(var, above)| s.maker.set(*var, above));
                            s.maker.set(*below, fraction.below);
                        }
                    }
                    Ok(())
                })?;
            }
            let operand = |s: &mut Site<'_>, i: usize| {
                load_rows(s, &call.inputs[i].stretched(call.dims), axis, &destination, &rows)
            };
            let mut results: Vec<Vec<Expr>> = vec![];
            if divides {
                let own = load_rows(s, x, axis, &destination, &rows)?;
                let (p, q, r) = (operand(s, 7)?, operand(s, 8)?, operand(s, 9)?);
                for (row, (rest, shared)) in fractions.iter().enumerate() {
                    let [one, other] = [0, 1].map(|k| s.maker.get(sums.totals[row][k]));
                    let [rest_one, rest_other] = [0, 1].map(|k| s.maker.get(rest[k]));
                    let shared = s.maker.get(*shared);
                    let above = p[row].fma(&own[row], &q[row] + other).fma(&shared, rest_other);
                    let below = (&r[row] + one).fma(shared, rest_one);
                    let part = s.maker.name("part", below.unary(Unary::Recip));
                    results.push(vec![s.maker.name("y", above * part)]);
                }
            } else {
                let mut starts = vec![];
                for i in 5 + order.sums()..call.inputs.len() {
                    starts.push(operand(s, i)?);
                }
                for (row, (rest, below)) in fractions.iter().enumerate() {
                    let part = s.maker.get(*below).unary(Unary::Recip);
                    let part = s.maker.name("part", part);
                    let total = |s: &mut Site<'_>, k: usize| {
                        let sum = s.maker.get(rest[k]).fma(&part, s.maker.get(sums.totals[row][k]));
                        starts.get(k).map_or(sum.clone(), |start| sum + &start[row])
                    };
                    results.push((0..order.sums()).map(|k| total(s, k)).collect());
                }
            }
            for (row, results) in rows.iter().zip(&results) {
                for (out, result) in outs.iter().zip(results) {
                    let mut place = vec![row.clone(); 2];
                    place[axis] = destination.clone();
                    s.store(out, &place, result)?;
                }
            }
            Ok(())
        })
    }
}

impl Block {
    /// The word of an element, in a value of this width.
    pub(super) fn word(&self, row: &Expr, unit: &Expr, width: u32) -> Expr {
        match self.column_step() {
            Some(step) => unit * step + row,
            None => row * width + unit,
        }
    }

    /// The step between columns of values, if rows are abreast, and else none.
    pub(super) fn column_step(&self) -> Option<u32> {
        self.abreast.map(Shape::rows)
    }
}
