//! Products of few rows, by weights that threads keep.
//!
//! The sum of a unit is dealt to neighbouring threads. Each has some of its weights in registers, four words of its row at a
//! time and two to four sums, so that it waits for no addition; then the threads exchange their sums. The sums of a gated
//! cell's three heads are in the same threads. A bias begins the first thread's sum.

use super::kernel::{Writer, all_of};
use super::work::{Part, Products, Quad};
use crate::lower::element::{gate, map_result, program};
use crate::lower::site::{Site, word};
use crate::lower::view::View;
use schwann_codegen::lang::{Expr, Ty, Var};
use schwann_core::{DType, Dim, Error, Op, Result, Value};

/// Who a thread is among those that have a node's sums.
pub(super) struct Role {
    /// Its number among those of one step, and which step of several it has.
    pub(super) number: Expr,
    pub(super) group: Expr,
    /// Steps that the threads work on at the same time.
    pub(super) groups: u32,
    /// Whether there is such a thread; none if all threads are some.
    pub(super) has_work: Option<Expr>,
}

impl Role {
    /// Deals `span` threads to each step: of one step, or of as many as there are threads for.
    pub(super) fn of(s: &mut Site<'_>, span: u32, several: bool) -> Role {
        let (thread, threads) = (s.maker.thread(), s.maker.threads());
        let groups = if several { (threads / span).max(1) } else { 1 };
        let has_work = (groups * span < threads).then(|| thread.lt(groups * span));
        let number = if groups > 1 { s.maker.name("number", thread.rem(span)) } else { thread.clone() };
        let group = if groups > 1 { s.maker.name("group", thread / span) } else { 0u32.into() };
        Role { number, group, groups, has_work }
    }
}

/// What a thread keeps of products.
pub(super) struct Kept {
    pub(super) role: Role,
    /// Where quads are, from the beginning of a step's words: after which of these, by how many words.
    bases: Vec<Expr>,
    at: Vec<(usize, u32)>,
    /// For each head and quad, four weights.
    weights: Vec<Vec<Weights>>,
    biases: Vec<Expr>,
    /// What the function of the sum is given besides; none has to be read in each step.
    extras: Vec<Option<Expr>>,
    /// Its unit among those of all parts.
    pub(super) unit: Expr,
    /// Where its result is written, from the beginning of a step's words.
    pub(super) out: Expr,
    /// Whether it writes a result.
    pub(super) writes: Option<Expr>,
    /// Ticks before its first step; none if there are none for any thread.
    pub(super) level: Option<Expr>,
}

/// What moves on with each tick of the chain.
pub(super) struct Moving {
    bases: Vec<Var>,
    out: Var,
    since: Option<Var>,
}

/// What the count of ticks is in a thread's first tick: more than any level.
const SINCE: u32 = 16;

/// Four weights of a thread.
enum Weights {
    /// In registers; none is 0 in all threads.
    Kept([Option<Expr>; 4]),
    /// In shared memory, in words of the thread's own.
    Shared(Expr),
}

/// A number for each part and lane.
fn pick(s: &mut Site<'_>, unit: &Expr, lane: &Expr, parts: &[Part], table: &[Vec<u32>]) -> Expr {
    let by_lane = |row: &Vec<u32>| -> Expr {
        let step = row.get(1).map_or(0, |second| second.wrapping_sub(row[0]));
        let even = row.iter().enumerate().all(|(i, at)| *at == row[0].wrapping_add(step.wrapping_mul(i as u32)));
        if even {
            return lane * step + row[0];
        }
        let mut value: Expr = row[row.len() - 1].into();
        for (i, at) in row.iter().enumerate().rev().skip(1) {
            value = lane.lt(i as u32 + 1).select(*at, value);
        }
        value
    };
    let rows: Vec<Expr> = table.iter().map(by_lane).collect();
    let mut value = rows[rows.len() - 1].clone();
    if table.iter().any(|row| *row != table[0]) {
        let mut end = parts.iter().map(|part| part.units).sum::<u32>();
        for (row, part) in rows.iter().zip(parts).rev() {
            let begin = end - part.units;
            if end < parts.iter().map(|part| part.units).sum::<u32>() {
                value = unit.lt(end).select(row, value);
            }
            end = begin;
        }
    }
    s.maker.name("at", value)
}

impl Writer<'_> {
    /// Loads what threads keep of products.
    pub(super) fn keep_products(&self, s: &mut Site<'_>, products: &Products, several: bool) -> Result<Kept> {
        let Products { parts, lanes, heads, quads, .. } = products;
        let (lanes, units) = (*lanes, products.units());
        let role = Role::of(s, units * lanes, several);
        let lane = s.maker.name("lane", role.number.rem(lanes));
        let number = s.maker.name("unit", &role.number / lanes);
        let unit = match role.has_work {
            Some(_) if role.groups == 1 => s.maker.name("unit", number.min(units - 1)),
            _ => number,
        };
        let numbers = |f: &dyn Fn(&Part, Option<&Quad>) -> u32, c: u32| -> Vec<Vec<u32>> {
            let of = |part: &Part| (0..lanes).map(|l| f(part, part.quads.get((c * lanes + l) as usize))).collect();
            parts.iter().map(of).collect()
        };
        // Where quads are: so many words after the first, or anywhere.
        let zero = self.few.places.zero();
        let (mut bases, mut at): (Vec<Expr>, Vec<(usize, u32)>) = (vec![], vec![]);
        let first = numbers(&|_, quad| quad.map_or(zero, |quad| quad.at), 0);
        for c in 0..*quads {
            let table = numbers(&|_, quad| quad.map_or(zero, |quad| quad.at), c);
            let mut apart = table.iter().flatten().zip(first.iter().flatten()).map(|(a, b)| a.wrapping_sub(*b));
            let by = apart.next().unwrap_or(0);
            if c > 0 && apart.all(|other| other == by) {
                at.push((0, by));
            } else {
                bases.push(pick(s, &unit, &lane, parts, &table));
                at.push((bases.len() - 1, 0));
            }
        }
        let starts: Vec<u32> =
            parts.iter().scan(0, |end, part| Some(std::mem::replace(end, *end + part.units))).collect();
        // Variables where several parts are loaded by different threads; one part's values as they are.
        let one = parts.len() == 1;
        let count = (heads * quads * 4) as usize;
        let nodes = &self.few.block.body.body.nodes();
        let extras = nodes[parts[0].id as usize].inputs.len().saturating_sub(2);
        let is_gate = *heads == 3;
        let extras = if is_gate { 0 } else { extras };
        let at_once = if one { None } else { self.weights_at_once(s, products, &starts, &unit, &lane, extras)? };
        let mut variables: Vec<Var> = vec![];
        if !one && at_once.is_none() {
            variables = (0..count + *heads as usize + extras).map(|_| s.maker.variable("w", 0.0f32)).collect();
        }
        let mut loaded: Vec<Option<Expr>> = vec![];
        if let Some(at_once) = &at_once {
            loaded.clone_from(at_once);
        }
        for (part, start) in parts.iter().zip(&starts).filter(|_| at_once.is_none()) {
            if !one {
                s.maker.open_block();
            }
            let own = s.maker.name("own", &unit - *start);
            let values = self.weights_of(s, products, part, &own, &lane, extras)?;
            if one {
                loaded = values;
                break;
            }
            for (variable, value) in variables.iter().zip(values) {
                if let Some(value) = value {
                    s.maker.set(*variable, value);
                }
            }
            let above: Expr = if *start > 0 { Expr::from(start - 1).lt(&unit) } else { true.into() };
            let condition = above.and(unit.lt(start + part.units));
            s.maker.close_when(condition);
        }
        if !one && at_once.is_none() {
            loaded = variables.iter().map(|var| Some(s.maker.get(*var))).collect();
            // What no thread has needs no instruction.
            for c in 0..*quads {
                for j in 0..4 {
                    let some = numbers(&|_, quad| u32::from(quad.is_some_and(|quad| j < quad.len)), c);
                    if some.iter().flatten().all(|has| *has == 0) {
                        (0..*heads).for_each(|h| loaded[((h * quads + c) * 4 + j) as usize] = None);
                    }
                }
            }
        }
        let rest = loaded.split_off(count);
        let mut weights: Vec<Vec<Weights>> = vec![];
        let mut place = 0;
        let beside = self.weights.get(&parts[0].id).copied().unwrap_or(self.values);
        for head in loaded.chunks((quads * 4).max(1) as usize) {
            let mut all = vec![];
            for (c, four) in head.chunks(4).enumerate() {
                if (c as u32) < quads - products.quads_shared {
                    all.push(Weights::Kept([0, 1, 2, 3].map(|j| four[j].clone())));
                    continue;
                }
                let own = s.maker.name("own", s.maker.thread() * 4u32 + place);
                for (j, weight) in four.iter().enumerate() {
                    let weight = weight.clone().unwrap_or_else(|| 0.0f32.into());
                    s.maker.store(beside, &own + j as u32, weight.bits(Ty::U32));
                }
                all.push(Weights::Shared(own));
                place += 4 * self.few.threads;
            }
            weights.push(all);
        }
        let biases = rest[..*heads as usize].iter().map(|bias| bias.clone().unwrap_or_else(|| 0.0f32.into())).collect();
        let extras = rest[*heads as usize..].to_vec();
        let outs: Vec<Vec<u32>> = (parts.iter().zip(&starts))
            .map(|(part, start)| {
                let value = Value { node: part.id, slot: 0 };
                vec![self.few.places.whole(value, part.level).wrapping_sub(*start)]
            })
            .collect();
        let out = pick(s, &unit, &lane, parts, &outs) + &unit;
        let out = s.maker.name("out", out);
        let leads = (lanes > 1).then(|| lane.eq(0u32));
        let writes = all_of([leads, role.has_work.clone()]).map(|writes| s.maker.name("writes", writes));
        let levels: Vec<Vec<u32>> = parts.iter().map(|part| vec![part.level]).collect();
        let waits = parts.iter().any(|part| part.level > 0);
        let level = waits.then(|| pick(s, &unit, &lane, parts, &levels));
        Ok(Kept { role, bases, at, weights, biases, extras, unit, out, writes, level })
    }

    /// The same of several products at the same time, where their matrices are all constants whose rows are what a thread
    /// multiplies: then each thread reads from its own, and none waits for others.
    fn weights_at_once(
        &self,
        s: &mut Site<'_>,
        products: &Products,
        starts: &[u32],
        unit: &Expr,
        lane: &Expr,
        extras: usize,
    ) -> Result<Option<Vec<Option<Expr>>>> {
        let Products { parts, lanes, heads, quads, .. } = products;
        if extras > 0 || *heads != 3 {
            return Ok(None);
        }
        // For each part: where its matrix and its biases begin, the words of a row, and its heads.
        let mut found: Vec<([Expr; 2], u32, [usize; 3])> = vec![];
        for part in parts {
            let node = &self.few.block.body.body.nodes()[part.id as usize];
            let (Op::GatedCell { by_column, heads, .. }, [_, w, bias]) = (&node.op, &node.inputs[..]) else {
                return Ok(None);
            };
            let (w, bias) = (self.rowless(*w)?, self.rowless(*bias)?);
            let b = if *by_column { w.transposed(&[1, 0]) } else { w };
            let plain = |view: &View| {
                in_constants(view) && view.per_word() == 1 && view.dtype == DType::F32 && view.first.is(0)
            };
            let Some(row) = b.steps[1].as_fixed() else { return Ok(None) };
            if !plain(&b) || !plain(&bias) || !b.steps[0].is(1) || !bias.is_whole()? {
                return Ok(None);
            }
            let bases = [s.place(&b)?.1, s.place(&bias)?.1];
            found.push((bases, word(row)?, *heads));
        }
        let by_part = |s: &mut Site<'_>, of: &dyn Fn(usize) -> Expr| {
            let mut value = of(parts.len() - 1);
            for j in (0..parts.len() - 1).rev() {
                value = unit.lt(starts[j + 1]).select(of(j), value);
            }
            s.maker.name("own", value)
        };
        let constants = s.constants;
        let mut values = vec![];
        for h in 0..3 {
            let row = by_part(s, &|j| {
                let ([base, _], words, heads) = &found[j];
                base + (unit - starts[j] + heads[h] as u32) * *words
            });
            for c in 0..*quads {
                for e in 0..4 {
                    let table: Vec<Vec<Option<u32>>> = (parts.iter())
                        .map(|part| {
                            let quad = |l| part.quads.get((c * lanes + l) as usize).filter(|quad| e < quad.len);
                            (0..*lanes).map(|l| quad(l).map(|quad| quad.k + e)).collect()
                        })
                        .collect();
                    if table.iter().flatten().all(Option::is_none) {
                        values.push(None);
                        continue;
                    }
                    // Where there is none, the number goes on as if there were, or is another one of the same row.
                    let filled: Vec<Vec<u32>> = (table.iter())
                        .map(|row| {
                            let any = row.iter().flatten().next().copied().unwrap_or(0);
                            row.iter().map(|k| k.unwrap_or(any)).collect()
                        })
                        .collect();
                    let k = pick(s, unit, lane, parts, &filled);
                    let value = s.maker.load(constants, &row + k, Ty::F32);
                    let value = s.maker.name("w", value);
                    let has: Vec<Vec<u32>> =
                        table.iter().map(|row| row.iter().map(|k| u32::from(k.is_some())).collect()).collect();
                    let value = if has.iter().flatten().all(|has| *has == 1) {
                        value
                    } else {
                        let has = pick(s, unit, lane, parts, &has);
                        s.maker.name("w", has.ne(0u32).select(value, 0.0f32))
                    };
                    values.push(Some(value));
                }
            }
        }
        for h in 0..3 {
            let at = by_part(s, &|j| {
                let ([_, base], _, heads) = &found[j];
                base + (unit - starts[j] + heads[h] as u32)
            });
            let bias = s.maker.load(constants, at, Ty::F32);
            let bias = s.maker.name("bias", bias);
            let first = if *lanes > 1 { lane.eq(0u32).select(bias, 0.0f32) } else { bias };
            values.push(Some(s.maker.name("bias", first)));
        }
        Ok(Some(values))
    }

    /// A thread's weights of one product, head by head, its biases, and what else its function is given.
    fn weights_of(
        &self,
        s: &mut Site<'_>,
        products: &Products,
        part: &Part,
        unit: &Expr,
        lane: &Expr,
        extras: usize,
    ) -> Result<Vec<Option<Expr>>> {
        let node = &self.few.block.body.body.nodes()[part.id as usize];
        let w = self.rowless(node.inputs[1])?;
        let (b, heads) = match &node.op {
            Op::GatedCell { by_column, heads, .. } => {
                (if *by_column { w.transposed(&[1, 0]) } else { w }, heads.to_vec())
            }
            Op::MatMul { transpose_b, .. } | Op::MatMulMap { transpose_b, .. } => {
                (if *transpose_b { w.transposed(&[1, 0]) } else { w }, vec![0])
            }
            _ => return Err(Error::Internal("a product that is none".into())),
        };
        let lanes = products.lanes;
        let mut values = vec![];
        for head in &heads {
            let column = unit + word(*head)?;
            for c in 0..products.quads {
                let mine: Vec<Option<&Quad>> = (0..lanes).map(|l| part.quads.get((c * lanes + l) as usize)).collect();
                values.extend(quad_of(s, &b, &mine, &column, lane)?);
            }
        }
        for head in &heads {
            let bias = match (&node.op, node.inputs.get(2)) {
                (Op::GatedCell { .. }, Some(bias)) => {
                    let flat = self.rowless(*bias)?.reshaped(&[b.dims[1].clone()])?;
                    let flat = flat.ok_or_else(|| Error::Internal("biases that are not one list".into()))?;
                    let column = unit + word(*head)?;
                    let bias = s.load(&flat, std::slice::from_ref(&column))?;
                    let first = if lanes > 1 { lane.eq(0u32).select(bias, 0.0f32) } else { bias };
                    Some(s.maker.name("bias", first))
                }
                _ => None,
            };
            values.push(bias);
        }
        for value in node.inputs[2..].iter().take(extras) {
            let rowless = self.few.block.body.row_axis(*value).is_none();
            values.push(match rowless {
                true => {
                    let view = self.rowless(*value)?.stretched(node.outs[0].shape.dims());
                    let extra = s.load(&view, &[0u32.into(), unit.clone()])?;
                    Some(s.maker.name("extra", extra))
                }
                false => None,
            });
        }
        Ok(values)
    }

    /// Where the quads of a step are.
    pub(super) fn places(&self, s: &mut Site<'_>, kept: &Kept, step: &Expr) -> Vec<Expr> {
        let base = s.maker.name("base", step * self.few.places.stride);
        kept.bases.iter().map(|at| &base + at).collect()
    }

    /// The places of the chain's first tick, as variables that move on with each tick. (A compiler would compute again in each
    /// tick what a thread's number makes of them, rather than keep it.)
    pub(super) fn moving(&self, s: &mut Site<'_>, kept: &Kept) -> Moving {
        let bases = kept.bases.iter().map(|base| s.maker.variable("from", base)).collect();
        let out = s.maker.variable("to", &kept.out);
        let since = kept.level.as_ref().map(|level| s.maker.variable("since", Expr::from(SINCE) - level));
        Moving { bases, out, since }
    }

    /// A tick of the chain: computes a thread's unit, writes it and moves on.
    pub(super) fn move_on(
        &self,
        s: &mut Site<'_>,
        products: &Products,
        kept: &Kept,
        moving: &Moving,
        tick: &Expr,
    ) -> Result<()> {
        let places: Vec<Expr> = moving.bases.iter().map(|base| s.maker.get(*base)).collect();
        let results = self.products(s, products, kept, std::slice::from_ref(tick), &[places])?;
        let began = moving.since.map(|since| Expr::from(SINCE - 1).lt(s.maker.get(since)));
        let out = s.maker.get(moving.out);
        self.put(s, all_of([kept.writes.clone(), began]), out, &results[0]);
        for place in moving.bases.iter().chain([&moving.out]) {
            let next = s.maker.get(*place) + self.few.places.stride;
            s.maker.set(*place, next);
        }
        if let Some(since) = moving.since {
            let next = s.maker.get(since) + 1u32;
            s.maker.set(since, next);
        }
        Ok(())
    }

    /// The results of a thread's unit in these steps, whose quads are at these places.
    pub(super) fn products(
        &self,
        s: &mut Site<'_>,
        products: &Products,
        kept: &Kept,
        steps: &[Expr],
        places: &[Vec<Expr>],
    ) -> Result<Vec<Expr>> {
        let node = &self.few.block.body.body.nodes()[products.parts[0].id as usize];
        let sums = if products.heads == 1 { 4 } else { 2 };
        let beside = self.weights.get(&products.parts[0].id).copied().unwrap_or(self.values);
        let mut results = vec![];
        let mut totals: Vec<Vec<Expr>> = vec![];
        for places in places {
            let mut parts: Vec<Vec<Option<Expr>>> =
                kept.biases.iter().map(|bias| [vec![Some(bias.clone())], vec![None; sums - 1]].concat()).collect();
            for (c, (base, by)) in kept.at.iter().enumerate() {
                let words: [Expr; 4] = s.maker.load_many("x", self.values, &places[*base] + *by, Ty::U32);
                let x = words.map(|word| word.bits(Ty::F32));
                for (parts, weights) in parts.iter_mut().zip(&kept.weights) {
                    let four = match &weights[c] {
                        Weights::Kept(four) => four.clone(),
                        Weights::Shared(own) => {
                            let words: [Expr; 4] = s.maker.load_many("w", beside, own, Ty::U32);
                            words.map(|word| Some(word.bits(Ty::F32)))
                        }
                    };
                    for (j, weight) in four.iter().enumerate() {
                        let Some(weight) = weight else { continue };
                        let part = &mut parts[j % sums];
                        let next = match part {
                            Some(sum) => x[j].fma(weight, sum.clone()),
                            None => &x[j] * weight,
                        };
                        *part = Some(s.maker.name("part", next));
                    }
                }
            }
            totals.push(parts.into_iter().map(|parts| tree(parts.into_iter().flatten().collect())).collect());
        }
        for totals in &mut totals {
            for total in totals {
                *total = s.maker.sum_over_lanes(total.clone(), products.lanes);
            }
        }
        for (totals, step) in totals.into_iter().zip(steps) {
            results.push(match &node.op {
                Op::GatedCell { .. } => gate(s, [&totals[0], &totals[1], &totals[2]]),
                Op::MatMulMap { map, dtype, .. } => {
                    let mut inputs = vec![totals[0].clone()];
                    for (value, extra) in node.inputs[2..].iter().zip(&kept.extras) {
                        inputs.push(match extra {
                            Some(extra) => extra.clone(),
                            None => {
                                let view = self.view(*value, products.parts[0].level)?;
                                s.load(&view.stretched(node.outs[0].shape.dims()), &[step.clone(), kept.unit.clone()])?
                            }
                        });
                    }
                    let values = program(s, map, &inputs)?;
                    let last = values.last().cloned().ok_or_else(|| Error::Internal("an empty program".into()))?;
                    map_result(s, &last, *dtype)
                }
                _ => totals[0].clone(),
            });
        }
        Ok(results)
    }
}

/// The sum of all, pair by pair.
fn tree(mut all: Vec<Expr>) -> Expr {
    while all.len() > 1 {
        all = all
            .chunks(2)
            .map(|two| two.iter().cloned().reduce(|a, b| a + b).unwrap_or_else(|| two[0].clone()))
            .collect();
    }
    all.pop().unwrap_or_else(|| 0.0f32.into())
}

/// The four weights of a quad, which each lane has from another place.
fn quad_of(
    s: &mut Site<'_>,
    b: &View,
    mine: &[Option<&Quad>],
    column: &Expr,
    lane: &Expr,
) -> Result<[Option<Expr>; 4]> {
    let four = |dim: &Dim| dim.as_fixed().is_some_and(|size| size % 4 == 0);
    let whole = mine.iter().all(|quad| quad.is_some_and(|quad| quad.len == 4 && quad.k % 4 == 0));
    let by_lane = |s: &mut Site<'_>, numbers: &[u32]| {
        let step = numbers.get(1).map_or(0, |second| second.wrapping_sub(numbers[0]));
        let even = numbers.iter().enumerate().all(|(i, k)| *k == numbers[0].wrapping_add(step.wrapping_mul(i as u32)));
        let value = if even {
            lane * step + numbers[0]
        } else {
            let mut value: Expr = numbers[numbers.len() - 1].into();
            for (i, k) in numbers.iter().enumerate().rev().skip(1) {
                value = lane.lt(i as u32 + 1).select(*k, value);
            }
            value
        };
        s.maker.name("k", value)
    };
    if whole && b.steps[0].is(1) && b.per_word() == 1 && four(&b.first) && four(&b.steps[1]) && in_constants(b) {
        let numbers: Vec<u32> = mine.iter().flatten().map(|quad| quad.k).collect();
        let k = by_lane(s, &numbers);
        let index = s.index(b, &[k, column.clone()])?;
        let (memory, base) = s.place(b)?;
        let words: [Expr; 4] = s.maker.load_many("w", memory, base + index, Ty::F32);
        return Ok(words.map(Some));
    }
    let mut found = [None, None, None, None];
    for (j, found) in found.iter_mut().enumerate() {
        let k_of = |quad: &&Quad| ((j as u32) < quad.len).then(|| quad.k + j as u32);
        let numbers: Vec<Option<u32>> = mine.iter().map(|quad| quad.as_ref().and_then(k_of)).collect();
        let Some(any) = numbers.iter().flatten().next() else { continue };
        let filled: Vec<u32> = numbers.iter().map(|k| k.unwrap_or(*any)).collect();
        let k = by_lane(s, &filled);
        let loaded = s.load(b, &[k, column.clone()])?;
        let mut value = loaded.clone();
        for (lane_number, k) in numbers.iter().enumerate() {
            if k.is_none() {
                value = lane.eq(lane_number as u32).select(0.0f32, value);
            }
        }
        *found = Some(s.maker.name("w", value));
    }
    Ok(found)
}

/// Whether a view's memory begins at a multiple of four words.
fn in_constants(view: &View) -> bool {
    matches!(view.home, crate::lower::view::Home::Constant(_)) && view.strides.is_empty()
}
