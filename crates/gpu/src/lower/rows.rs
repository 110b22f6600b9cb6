//! Kernels in which the threads of a workgroup work together: on a row (reductions, norms, softmax), on a tile of a
//! matrix product, or on queries that share their keys.

use super::element::{Call, combine, epilogue, factors, start};
use super::site::{Site, word};
use super::view::{View, register};
use super::{Lowering, grid, product};
use schwann_codegen::lang::{Expr, Memory, Ty};
use schwann_codegen::math;
use schwann_core::op::{Op, Reduction};
use schwann_core::{Dim, Result};

/// Threads that share a row.
const THREADS: u32 = 64;

/// The rows and columns of a tile of a product, and how many terms of its sums are in shared memory at a time.
const TILE: u32 = 32;
const TILE_DEPTH: u32 = 16;
/// Rows and columns of a tile that one thread computes.
const EACH: u32 = 4;

/// The least rows, columns and terms of a product that is cut into tiles.
const TILED_LEAST: [usize; 3] = [16, 16, 8];

/// The widest value for which attention keeps a query's result in registers.
const ATTENTION_WIDTH_MOST: usize = 128;
/// Words of keys and values that are in shared memory at a time.
const ATTENTION_WORDS: usize = 3072;

impl Lowering<'_> {
    /// Lowers an operation that has such a kernel; gives `false` if it has none.
    pub(super) fn rows(&mut self, call: &Call<'_>, outs: &[View], place: &[usize]) -> Result<bool> {
        match call.op {
            Op::Softmax { .. } | Op::LayerNorm { .. } | Op::RmsNorm { .. } => self.normalized(call, &outs[0], place)?,
            Op::Reduce { kind, axes, keep } => {
                let few = product(&axes.iter().map(|&a| call.inputs[0].dims[a].clone()).collect::<Vec<_>>())?;
                if few.as_fixed().is_some_and(|n| n < THREADS as usize) {
                    return Ok(false);
                }
                self.reduced(call, *kind, axes, *keep, &outs[0], place)?;
            }
            Op::MatMul { transpose_a, transpose_b } | Op::MatMulMap { transpose_a, transpose_b, .. } => {
                let (a, _) = factors(call, *transpose_a, *transpose_b);
                let rank = call.dims.len();
                if self.limits.shared_bytes < 2 * 4 * TILE * TILE_DEPTH {
                    return Ok(false);
                }
                let sizes = [&call.dims[rank - 2], &call.dims[rank - 1], &a.dims[rank - 1]];
                for (size, least) in sizes.iter().zip(TILED_LEAST) {
                    if size.eval(self.bindings)? < least {
                        return Ok(false);
                    }
                }
                self.tiled(call, [*transpose_a, *transpose_b], &outs[0], place)?;
            }
            Op::SegmentSum { axis, .. } => return self.segments(call, *axis, &outs[0], place),
            Op::Attention { causal, scale, .. } => {
                self.attention(call, *causal, scale.map(|s| s.0), &outs[0], place)?
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A workgroup for each of `count` pieces: its number, and the groups to dispatch. The condition that the number is
    /// below the count is the same for all threads of a workgroup.
    pub(super) fn a_group_each<'s>(
        &self,
        site: &mut Site<'s>,
        count: usize,
        body: impl FnOnce(&mut Site<'s>, Expr) -> Result<()>,
    ) -> Result<[u32; 3]> {
        let groups = self.groups(count, 1)?;
        let wide = site.number("wide", groups[0]);
        let all = site.number("count", word(count)?);
        let number = site.maker.group(1) * wide + site.maker.group(0);
        let number = site.maker.name("number", number);
        site.guarded(number.lt(all), |s| body(s, number.clone()))?;
        Ok(if count == 0 { [0, 0, 0] } else { groups })
    }

    /// Softmax and norms over the last axis.
    fn normalized(&mut self, call: &Call<'_>, out: &View, place: &[usize]) -> Result<()> {
        let rank = call.dims.len();
        let (rows, x) = (self.count(&call.dims[..rank - 1])?, &call.inputs[0]);
        let mut site = Site::new(call.op.name(), THREADS, self);
        let shared = site.maker.shared("parts", Ty::F32, THREADS);
        let length = site.size(&call.dims[rank - 1])?;
        let groups = self.a_group_each(&mut site, rows, |s, row| {
            let lead = grid::coordinates(s, &row, &call.dims[..rank - 1])?;
            let at = |i: &Expr| lead.iter().cloned().chain([i.clone()]).collect::<Vec<_>>();
            let load = |s: &mut Site<'_>, i: &Expr| s.load(x, &at(i));
            match call.op {
                Op::Softmax { .. } => {
                    let most = across(s, shared, Reduction::Max, &length, &load)?;
                    let raised = |s: &mut Site<'_>, i: &Expr| {
                        let x = s.load(x, &at(i))?;
                        Ok(math::exp(&mut s.maker, &(x - &most)))
                    };
                    s.maker.barrier();
                    let sum = across(s, shared, Reduction::Sum, &length, &raised)?;
                    each(s, &length, |s, i| {
                        let value = raised(s, i)? / &sum;
                        s.store(out, &at(i), &value)
                    })
                }
                Op::LayerNorm { eps } | Op::RmsNorm { eps } => {
                    let count = length.to(Ty::F32);
                    let mean = match call.op {
                        Op::LayerNorm { .. } => {
                            let sum = across(s, shared, Reduction::Sum, &length, &load)?;
                            s.maker.barrier();
                            s.maker.name("mean", sum / &count)
                        }
                        _ => 0.0f32.into(),
                    };
                    let square = |s: &mut Site<'_>, i: &Expr| {
                        let centred = s.load(x, &at(i))? - &mean;
                        let centred = s.maker.name("centred", centred);
                        Ok(&centred * &centred)
                    };
                    let squares = across(s, shared, Reduction::Sum, &length, &square)?;
                    let root = math::sqrt(&mut s.maker, &(squares / &count + eps.0));
                    let root = s.maker.name("root", root);
                    each(s, &length, |s, i| {
                        let mut value = (s.load(x, &at(i))? - &mean) / &root;
                        if let Some(scale) = call.inputs.get(1) {
                            value = value * s.load(scale, std::slice::from_ref(i))?;
                        }
                        if let Some(shift) = call.inputs.get(2) {
                            value = value + s.load(shift, std::slice::from_ref(i))?;
                        }
                        s.store(out, &at(i), &value)
                    })
                }
                _ => Ok(()),
            }
        })?;
        self.dispatch(site, groups, place, None)
    }

    /// A reduction with a workgroup for each element of the result.
    fn reduced(
        &mut self,
        call: &Call<'_>,
        kind: Reduction,
        axes: &[usize],
        keep: bool,
        out: &View,
        place: &[usize],
    ) -> Result<()> {
        let x = &call.inputs[0];
        let ty = register(x.dtype);
        let mut site = Site::new(kind.name(), THREADS, self);
        let shared = site.maker.shared("parts", ty, THREADS);
        let reduced: Vec<Dim> = axes.iter().map(|&a| x.dims[a].clone()).collect();
        let length = site.size(&product(&reduced)?)?;
        let results = self.count(call.dims)?;
        let groups = self.a_group_each(&mut site, results, |s, number| {
            let at = grid::coordinates(s, &number, call.dims)?;
            let mut kept = at.iter().enumerate().filter(|(i, _)| !keep || !axes.contains(i)).map(|(_, e)| e.clone());
            let lead: Vec<Expr> = (0..x.dims.len())
                .map(|a| if axes.contains(&a) { 0u32.into() } else { kept.next().unwrap_or(0u32.into()) })
                .collect();
            let load = |s: &mut Site<'_>, i: &Expr| {
                let inner = grid::coordinates(s, i, &reduced)?;
                let mut place = lead.clone();
                axes.iter().zip(inner).for_each(|(&a, e)| place[a] = e);
                s.load(x, &place)
            };
            let mut total = across(s, shared, kind, &length, &load)?;
            if kind == Reduction::Mean {
                total = total / length.to(Ty::F32);
            }
            s.guarded(s.maker.thread().eq(0u32), |s| s.store(out, &at, &total))
        })?;
        self.dispatch(site, groups, place, None)
    }

    /// A product by tiles of the result: both operands are staged in shared memory, and each thread keeps a few rows
    /// and columns of the tile in registers.
    fn tiled(&mut self, call: &Call<'_>, transposed: [bool; 2], out: &View, place: &[usize]) -> Result<()> {
        let (a, b) = factors(call, transposed[0], transposed[1]);
        let rank = call.dims.len();
        let name = if matches!(call.op, Op::MatMulMap { .. }) { "product_map" } else { "product" };
        let mut site = Site::new(name, THREADS, self);
        let left = site.maker.shared("left", Ty::F32, TILE * TILE_DEPTH);
        let right = site.maker.shared("right", Ty::F32, TILE * TILE_DEPTH);
        let [m, n, k] = [&call.dims[rank - 2], &call.dims[rank - 1], &a.dims[rank - 1]];
        let of = |dim: &Dim| dim.eval(self.bindings).map(|size| size.div_ceil(TILE as usize));
        let (rows, columns, batch) = (of(m)?, of(n)?, self.count(&call.dims[..rank - 2])?);
        let tiles = rows.checked_mul(columns).and_then(|t| t.checked_mul(batch)).ok_or_else(super::overflow)?;
        let (m, n, k) = (site.size(m)?, site.size(n)?, site.size(k)?);
        let across_tiles = [site.number("tile_rows", word(rows)?), site.number("tile_columns", word(columns)?)];
        let groups = self.a_group_each(&mut site, tiles, |s, number| {
            let column = s.maker.name("first_column", number.rem(&across_tiles[1]) * TILE);
            let rest = s.maker.name("rest", &number / &across_tiles[1]);
            let row = s.maker.name("first_row", rest.rem(&across_tiles[0]) * TILE);
            let rest = s.maker.name("matrix", rest / &across_tiles[0]);
            let lead = grid::coordinates(s, &rest, &call.dims[..rank - 2])?;
            let at = |i: &Expr, j: &Expr| lead.iter().cloned().chain([i.clone(), j.clone()]).collect::<Vec<_>>();
            let thread = s.maker.thread();
            let side = TILE / EACH;
            let (my_row, my_column) =
                (s.maker.name("my_row", &thread / side), s.maker.name("my_column", thread.rem(side)));
            let sums: Vec<_> = (0..EACH * EACH).map(|_| s.maker.variable("sum", 0.0f32)).collect();
            s.strided("depth", 0u32, &k, TILE_DEPTH, |s, depth| {
                // Elements beyond the matrices count as 0.
                let fill = |s: &mut Site<'_>, to: Memory, by_row: bool| {
                    let thread = s.maker.thread();
                    s.strided("e", thread, TILE * TILE_DEPTH, THREADS, |s, e| {
                        let (i, d) =
                            if by_row { (&e / TILE_DEPTH, e.rem(TILE_DEPTH)) } else { (e.rem(TILE), &e / TILE) };
                        let i = if by_row { i + &row } else { i + &column };
                        let (i, d) = (s.maker.name("i", i), s.maker.name("d", d + &depth));
                        let inside = i.lt(if by_row { &m } else { &n }).and(d.lt(&k));
                        let value = s.maker.variable("value", 0.0f32);
                        s.guarded(inside, |s| {
                            let loaded = if by_row { s.load(&a, &at(&i, &d))? } else { s.load(&b, &at(&d, &i))? };
                            s.maker.set(value, loaded);
                            Ok(())
                        })?;
                        let value = s.maker.get(value);
                        s.maker.store(to, e, value);
                        Ok(())
                    })
                };
                fill(s, left, true)?;
                fill(s, right, false)?;
                s.maker.barrier();
                s.counted("d", 0u32, TILE_DEPTH, |s, d| {
                    let mut x = vec![];
                    for i in 0..EACH {
                        let value = s.maker.load(left, (&my_row * EACH + i) * TILE_DEPTH + &d, Ty::F32);
                        x.push(s.maker.name("x", value));
                    }
                    for j in 0..EACH {
                        // Neighbouring threads have neighbouring columns.
                        let value = s.maker.load(right, &d * TILE + &my_column + j * side, Ty::F32);
                        let y = s.maker.name("y", value);
                        for i in 0..EACH {
                            let sum = sums[(i * EACH + j) as usize];
                            let next = x[i as usize].fma(&y, s.maker.get(sum));
                            s.maker.set(sum, next);
                        }
                    }
                    Ok(())
                })?;
                s.maker.barrier();
                Ok(())
            })?;
            let mut to_columns = vec![];
            for j in 0..EACH {
                let to_column = s.maker.name("to_column", &column + &my_column + j * side);
                to_columns.push((s.maker.name("inside", to_column.lt(&n)), to_column));
            }
            for i in 0..EACH {
                let to_row = s.maker.name("to_row", &row + (&my_row * EACH + i));
                let inside = s.maker.name("inside", to_row.lt(&m));
                for (j, (column_inside, to_column)) in (0..EACH).zip(&to_columns) {
                    s.guarded(inside.and(column_inside), |s| {
                        let at = at(&to_row, to_column);
                        let sum = s.maker.get(sums[(i * EACH + j) as usize]);
                        let value = match call.op {
                            Op::MatMulMap { map, dtype, .. } => epilogue(s, call, 2, map, *dtype, sum, &at)?,
                            _ => sum,
                        };
                        s.store(out, &at, &value)
                    })?;
                }
            }
            Ok(())
        })?;
        self.dispatch(site, groups, place, None)
    }

    /// Attention without a matrix of scores: each thread has a query, keys and values are staged in shared memory, and
    /// the sums so far are rescaled whenever a larger score is found.
    fn attention(
        &mut self,
        call: &Call<'_>,
        causal: bool,
        scale: Option<f32>,
        out: &View,
        place: &[usize],
    ) -> Result<()> {
        let [q, k, v] = [0, 1, 2].map(|i| &call.inputs[i]);
        let fixed = |dim: &Dim| dim.as_fixed().filter(|&w| w <= ATTENTION_WIDTH_MOST);
        let words = ATTENTION_WORDS.min(self.limits.shared_bytes as usize / 4);
        let widths = fixed(&q.dims[3]).zip(fixed(&v.dims[3])).filter(|(wide, out)| wide.max(&1) + out.max(&1) <= words);
        let mut site = Site::new("attention", THREADS, self);
        let (length, keys) = (site.size(&q.dims[2])?, site.size(&k.dims[2])?);
        let sharing = {
            let sizes = [&q.dims[1], &k.dims[1]].map(|d| d.eval(self.bindings));
            let [heads, groups] = sizes;
            site.number("sharing", word((heads? / groups?.max(1)).max(1))?)
        };
        let (batch, heads) = (self.count(&q.dims[..1])?, self.count(&q.dims[1..2])?);
        let queries = q.dims[2].eval(self.bindings)?;
        let width = site.size(&q.dims[3])?;
        let scale: Expr = match scale {
            Some(scale) => scale.into(),
            None => {
                let root = math::sqrt(&mut site.maker, &width.to(Ty::F32));
                Expr::from(1.0f32) / root
            }
        };
        let scale = site.maker.name("scale", scale);
        let (mask, last) = call.op.attention_extras(call.inputs.len());
        // Keys that a query sees: all of them, up to i + S − L, or up to its position.
        let seen = |s: &mut Site<'_>, i: &Expr| match last {
            Some(last) => {
                let last = s.load(&call.inputs[last], std::slice::from_ref(i))?;
                Ok(super::element::checked_index(s, call, &last, &keys) + 1u32)
            }
            None if causal => Ok((i + &keys + 1u32).max(&length) - &length),
            None => Ok(keys.clone()),
        };
        let scores: Vec<Dim> = [&q.dims[0], &q.dims[1], &q.dims[2], &k.dims[2]].map(Clone::clone).to_vec();
        let mask = mask.map(|at| call.inputs[at].stretched(&scores));
        let masked = |s: &mut Site<'_>, score: Expr, at: [&Expr; 4]| match &mask {
            Some(mask) => Ok(score + s.load(mask, &at.map(Clone::clone))?),
            None => Ok(score),
        };
        let Some((width, out_width)) = widths else {
            return self.attention_by_element(call, site, [&width, &scale, &sharing], seen, &mask, out, place);
        };
        let tile = (words / (width.max(1) + out_width.max(1))).clamp(1, THREADS as usize);
        let (width, out_width, tile) = (word(width)?, word(out_width)?, word(tile)?);
        let shared_keys = site.maker.shared("keys", Ty::F32, (tile * width).max(1));
        let shared_values = site.maker.shared("values", Ty::F32, (tile * out_width).max(1));
        let query = site.maker.own("query", Ty::F32, width.max(1));
        let result = site.maker.own("result", Ty::F32, out_width.max(1));
        let blocks = queries.div_ceil(THREADS as usize);
        // Values of width 0 give results without elements.
        let blocks_to_do = if out_width == 0 { 0 } else { blocks };
        let pieces = batch.checked_mul(heads).and_then(|n| n.checked_mul(blocks_to_do)).ok_or_else(super::overflow)?;
        let [blocks_arg, heads_arg] = [site.number("blocks", word(blocks)?), site.number("heads", word(heads)?)];
        let groups = self.a_group_each(&mut site, pieces, |s, number| {
            let block = s.maker.name("block", number.rem(&blocks_arg));
            let rest = s.maker.name("rest", &number / &blocks_arg);
            let (h, b) = (s.maker.name("h", rest.rem(&heads_arg)), s.maker.name("b", rest / &heads_arg));
            let g = s.maker.name("g", &h / &sharing);
            let thread = s.maker.thread();
            let i = s.maker.name("i", &block * THREADS + &thread);
            let active = s.maker.name("active", i.lt(&length));
            // A thread without a query runs too, since all threads fetch keys.
            let own = s.maker.name("own", active.select(&i, 0u32));
            s.counted("d", 0u32, width, |s, d| {
                let value = s.load(q, &[b.clone(), h.clone(), own.clone(), d.clone()])?;
                s.maker.store(query, d, value);
                Ok(())
            })?;
            s.counted("e", 0u32, out_width, |s, e| {
                s.maker.store(result, e, 0.0f32);
                Ok(())
            })?;
            let most = s.maker.variable("most", f32::NEG_INFINITY);
            let sum = s.maker.variable("sum", 0.0f32);
            let my_end = seen(s, &own)?;
            let my_end = s.maker.name("my_end", my_end);
            s.strided("first", 0u32, &keys, tile, |s, first| {
                for (to, from, wide) in [(shared_keys, k, width), (shared_values, v, out_width)] {
                    let thread = s.maker.thread();
                    s.strided("e", thread, tile * wide, THREADS, |s, e| {
                        let (j, d) = (s.maker.name("j", &e / wide.max(1) + &first), e.rem(wide.max(1)));
                        s.guarded(j.lt(&keys), |s| {
                            let value = s.load(from, &[b.clone(), g.clone(), j.clone(), d])?;
                            s.maker.store(to, e, value);
                            Ok(())
                        })
                    })?;
                }
                s.maker.barrier();
                let end = s.maker.name("end", my_end.min(&first + tile));
                s.counted("j", &first, end, |s, j| {
                    let local = s.maker.name("local", &j - &first);
                    let dot = s.maker.variable("dot", 0.0f32);
                    s.counted("d", 0u32, width, |s, d| {
                        let x = s.maker.load(query, &d, Ty::F32);
                        let y = s.maker.load(shared_keys, &local * width + &d, Ty::F32);
                        let next = x.fma(y, s.maker.get(dot));
                        s.maker.set(dot, next);
                        Ok(())
                    })?;
                    let score = s.maker.get(dot) * &scale;
                    let score = masked(s, score, [&b, &h, &own, &j])?;
                    let score = s.maker.name("score", score);
                    let before = s.maker.name("before", s.maker.get(most));
                    let now = math::max(&mut s.maker, &before, &score);
                    let now = s.maker.name("now", now);
                    // Before the first visible key, −∞ − −∞ must not become NaN.
                    let shift = s.maker.name("shift", now.eq(f32::NEG_INFINITY).select(0.0f32, &now));
                    let shrink = math::exp(&mut s.maker, &(before - &shift));
                    let shrink = s.maker.name("shrink", shrink);
                    let weight = math::exp(&mut s.maker, &(score - &shift));
                    let weight = s.maker.name("weight", weight);
                    s.maker.set(most, now);
                    let next = s.maker.get(sum).fma(&shrink, &weight);
                    s.maker.set(sum, next);
                    s.counted("e", 0u32, out_width, |s, e| {
                        let value = s.maker.load(shared_values, &local * out_width + &e, Ty::F32);
                        let so_far = s.maker.load(result, &e, Ty::F32);
                        let next = so_far.fma(&shrink, &weight * value);
                        s.maker.store(result, e, next);
                        Ok(())
                    })
                })?;
                s.maker.barrier();
                Ok(())
            })?;
            s.guarded(&active, |s| {
                let total = s.maker.name("total", s.maker.get(sum));
                let nothing = s.maker.name("nothing", s.maker.get(most).eq(f32::NEG_INFINITY));
                s.counted("e", 0u32, out_width, |s, e| {
                    let value = s.maker.load(result, &e, Ty::F32);
                    let value = nothing.select(0.0f32, value / &total);
                    s.store(out, &[b.clone(), h.clone(), i.clone(), e], &value)
                })
            })
        })?;
        self.dispatch(site, groups, place, None)
    }

    /// Attention for widths that do not fit registers: a thread for each element of the result walks over the keys
    /// twice.
    #[expect(clippy::too_many_arguments, reason = "it is the rest of `attention`")]
    fn attention_by_element(
        &mut self,
        call: &Call<'_>,
        mut site: Site<'_>,
        [width, scale, sharing]: [&Expr; 3],
        seen: impl Fn(&mut Site<'_>, &Expr) -> Result<Expr>,
        mask: &Option<View>,
        out: &View,
        place: &[usize],
    ) -> Result<()> {
        let [q, k, v] = [0, 1, 2].map(|i| &call.inputs[i]);
        let work = self.count(call.dims)?;
        let groups = self.groups(work, THREADS)?;
        let (number, has_work) = Self::thread_number(&mut site, work, groups)?;
        site.guarded(has_work, |s| {
            let at = grid::coordinates(s, &number, call.dims)?;
            let [b, h, i, e] = [0, 1, 2, 3].map(|axis| at[axis].clone());
            let g = s.maker.name("g", &h / sharing);
            let end = seen(s, &i)?;
            let end = s.maker.name("end", end);
            let score = |s: &mut Site<'_>, j: &Expr| {
                let dot = s.maker.variable("dot", 0.0f32);
                s.counted("d", 0u32, width, |s, d| {
                    let x = s.load(q, &[b.clone(), h.clone(), i.clone(), d.clone()])?;
                    let y = s.load(k, &[b.clone(), g.clone(), j.clone(), d])?;
                    let next = x.fma(y, s.maker.get(dot));
                    s.maker.set(dot, next);
                    Ok(())
                })?;
                let mut score = s.maker.get(dot) * scale;
                if let Some(mask) = mask {
                    score = score + s.load(mask, &[b.clone(), h.clone(), i.clone(), j.clone()])?;
                }
                Ok(s.maker.name("score", score))
            };
            let most = s.maker.variable("most", f32::NEG_INFINITY);
            s.counted("j", 0u32, &end, |s, j| {
                let score = score(s, &j)?;
                let so_far = s.maker.get(most);
                let next = math::max(&mut s.maker, &so_far, &score);
                s.maker.set(most, next);
                Ok(())
            })?;
            let most = s.maker.name("most", s.maker.get(most));
            let nothing = s.maker.name("nothing", most.eq(f32::NEG_INFINITY));
            let shift = s.maker.name("shift", nothing.select(0.0f32, &most));
            let (sum, total) = (s.maker.variable("sum", 0.0f32), s.maker.variable("total", 0.0f32));
            s.counted("j", 0u32, &end, |s, j| {
                let score = score(s, &j)?;
                let weight = math::exp(&mut s.maker, &(score - &shift));
                let weight = s.maker.name("weight", weight);
                let value = s.load(v, &[b.clone(), g.clone(), j, e.clone()])?;
                let next = weight.fma(value, s.maker.get(total));
                s.maker.set(total, next);
                let next = s.maker.get(sum) + &weight;
                s.maker.set(sum, next);
                Ok(())
            })?;
            let value = nothing.select(0.0f32, s.maker.get(total) / s.maker.get(sum));
            s.store(out, &at, &value)
        })?;
        let groups = if work == 0 { [0, 0, 0] } else { groups };
        self.dispatch(site, groups, place, None)
    }
}

/// A loop over a row's elements, which are dealt to the threads in turn.
fn each<'s>(s: &mut Site<'s>, length: &Expr, body: impl FnOnce(&mut Site<'s>, &Expr) -> Result<()>) -> Result<()> {
    let (thread, threads) = (s.maker.thread(), s.maker.threads());
    s.strided("i", thread, length, threads, |s, i| body(s, &i))
}

/// Combines what `load` gives for each element of a row, over all threads of the workgroup: every thread gets the
/// result. The order is fixed, so that the same inputs give the same bits. Before the same array is used for another
/// reduction, there must be a barrier, so that all threads have read the result.
fn across(
    s: &mut Site<'_>,
    shared: Memory,
    kind: Reduction,
    length: &Expr,
    load: &dyn Fn(&mut Site<'_>, &Expr) -> Result<Expr>,
) -> Result<Expr> {
    let (thread, threads) = (s.maker.thread(), s.maker.threads());
    // The type of the elements is that of the shared array; a row without elements needs it too.
    let ty = if let Memory::Shared(n) = shared { s.maker.shared_type(n) } else { Ty::F32 };
    let part = s.maker.variable("part", start(kind, ty));
    s.strided("i", &thread, length, threads, |s, i| {
        let value = load(s, &i)?;
        let so_far = s.maker.get(part);
        let next = combine(s, kind, &so_far, &value);
        s.maker.set(part, next);
        Ok(())
    })?;
    let own = s.maker.get(part);
    s.maker.store(shared, &thread, own);
    s.maker.barrier();
    let mut half = threads / 2;
    while half > 0 {
        s.guarded(thread.lt(half), |s| {
            let a = s.maker.load(shared, &thread, ty);
            let b = s.maker.load(shared, &thread + half, ty);
            let (a, b) = (s.maker.name("a", a), s.maker.name("b", b));
            let both = combine(s, kind, &a, &b);
            s.maker.store(shared, &thread, both);
            Ok(())
        })?;
        s.maker.barrier();
        half /= 2;
    }
    let all = s.maker.load(shared, 0u32, ty);
    Ok(s.maker.name("all", all))
}
