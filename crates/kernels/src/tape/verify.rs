//! The proof that a call touches only what it says: bounds, alignment, and no write over a read.

use super::call::{Attend, Call, Epilogue, Gemm, GemmB, Map, Strided, dense};
use super::scan::{Body, Scan, ScanState, Sequence};
use super::{Ref, Spaces};
use crate::Isa;
use crate::attention::{Attention, attention_scratch_bytes};
use crate::each;
use crate::gated::Batch;
use crate::gemm::{Store, takes_parts};
use crate::map::{self, Elem};
use crate::tuning::Machine;

pub(super) type Check = Result<(), String>;

/// How many elements a strided access reaches from its start; `None` where that overflows.
pub(super) fn reach(dims: &[usize], strides: &[usize]) -> Option<usize> {
    if dims.contains(&0) {
        return Some(0);
    }
    let last = dims.iter().zip(strides).try_fold(0usize, |at, (d, s)| at.checked_add((d - 1).checked_mul(*s)?))?;
    last.checked_add(1)
}

/// Collects a call's accesses.
pub(super) struct Accesses<'a> {
    memory: &'a Spaces,
    reads: Vec<Ref>,
    writes: Vec<Ref>,
}

impl Accesses<'_> {
    /// The part of `r` that `elements` of `size` bytes take; an error if they do not fit.
    fn part(&self, r: &Ref, elements: Option<usize>, size: usize, align: usize) -> Result<Ref, String> {
        let need = elements.and_then(|n| n.checked_mul(size)).ok_or("an access that overflows")?;
        let end = r.offset.checked_add(r.len).ok_or("a reference that overflows")?;
        let memory = self.memory.len(r.slot).ok_or_else(|| format!("no memory {}", r.slot))?;
        if end > memory || need > r.len {
            return Err(format!("{need} bytes of {r:?} in a memory of {memory}"));
        }
        // Checked even where nothing is accessed: kernels may make empty slices of it.
        if !r.offset.is_multiple_of(align) || !self.memory.align(r.slot).is_multiple_of(align) {
            return Err(format!("{r:?} is not aligned to {align}"));
        }
        Ok(Ref { len: need, ..*r })
    }

    pub(super) fn read(&mut self, r: &Ref, elements: Option<usize>, size: usize) -> Check {
        let part = self.part(r, elements, size, size)?;
        self.reads.push(part);
        Ok(())
    }

    pub(super) fn write(&mut self, r: &Ref, elements: Option<usize>, size: usize) -> Check {
        self.write_aligned(r, elements, size, size)
    }

    /// Working memory: `bytes` for each thread.
    pub(super) fn scratch(&mut self, r: &Ref, bytes: usize, threads: usize) -> Check {
        if bytes == 0 {
            return self.memory.len(r.slot).map(|_| ()).ok_or_else(|| format!("no memory {}", r.slot));
        }
        self.write_aligned(r, bytes.checked_mul(threads), 1, super::ARENA_ALIGN)
    }

    fn write_aligned(&mut self, r: &Ref, elements: Option<usize>, size: usize, align: usize) -> Check {
        let part = self.part(r, elements, size, align)?;
        if part.len > 0 && !self.memory.is_writable(r.slot) {
            return Err(format!("a write to {r:?}, which is not the arena or an output"));
        }
        self.writes.push(part);
        Ok(())
    }

    fn matrix(&self, s: &Strided, batch: usize, rows: usize, cols: usize) -> (Option<usize>, usize) {
        (reach(&[batch, rows, cols], &[s.batch, s.row, s.col]), s.store.size())
    }

    /// No write overlaps another access, except a read that it replaces exactly if `in_place` says so.
    fn finish(self, in_place: impl Fn(&Ref) -> bool) -> Check {
        let overlap = |a: &Ref, b: &Ref| {
            a.slot == b.slot && a.len > 0 && b.len > 0 && a.offset < b.offset + b.len && b.offset < a.offset + a.len
        };
        let clash = |w: &Ref, other: &Ref| Err(format!("{w:?} is written and {other:?} used by the same call"));
        // Sorted, so that a loop with very many states is not compared pair by pair: if no write overlaps the next one,
        // no two writes overlap, and a read can only overlap consecutive writes.
        let mut writes: Vec<&Ref> = self.writes.iter().filter(|w| w.len > 0).collect();
        writes.sort_unstable_by_key(|w| (w.slot, w.offset));
        if let Some(pair) = writes.windows(2).find(|pair| overlap(pair[0], pair[1])) {
            return clash(pair[0], pair[1]);
        }
        for r in self.reads.iter().filter(|r| r.len > 0) {
            let first = writes.partition_point(|w| (w.slot, w.offset + w.len) <= (r.slot, r.offset));
            for w in writes[first..].iter().take_while(|w| overlap(w, r)) {
                if !(r == *w && in_place(r)) {
                    return clash(w, r);
                }
            }
        }
        Ok(())
    }
}

pub(super) fn check(call: &Call, memory: &Spaces, on: Machine<'_>, threads: usize) -> Check {
    let isa = on.isa;
    let mut a = Accesses { memory, reads: Vec::new(), writes: Vec::new() };
    let product = |dims: &[usize]| dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    match call {
        Call::Gemm(g) => return gemm(g, a, on, threads),
        Call::Map(m) => return elementwise(m, a, threads),
        Call::Int { op, dims, inputs, out } => {
            if inputs.len() != op.operands() || inputs.iter().any(|(_, e, _)| is_float(*e)) || is_float(out.1) {
                return Err(format!("{op:?} of {} operands", inputs.len()));
            }
            for (r, elem, strides) in inputs {
                a.read(r, reach(dims, strides), elem.size())?;
            }
            a.write(&out.0, product(dims), out.1.size())?;
        }
        Call::Each { dims, inputs, out, .. } => {
            if inputs.len() > each::MAX_INPUTS {
                return Err(format!("a function of {} operands", inputs.len()));
            }
            for (r, strides) in inputs {
                a.read(r, reach(dims, strides), 4)?;
            }
            a.write(out, product(dims), 4)?;
        }
        Call::Whole { inputs, outs, .. } => {
            if inputs.len() > each::MAX_INPUTS || outs.len() > each::MAX_OUTPUTS {
                return Err(format!("a function of {} values with {} results", inputs.len(), outs.len()));
            }
            for r in inputs {
                a.read(r, Some(r.len), 1)?;
            }
            for r in outs {
                a.write(r, Some(r.len / 4), 4)?;
            }
        }
        Call::Reduce { shape, src, dst, .. } | Call::IntReduce { shape, src, dst, .. } => {
            a.read(src, product(shape), 4)?;
            a.write(dst, product(&[shape[0], shape[2]]), 4)?;
        }
        Call::Softmax { rows, len, src, dst } => {
            a.read(src, product(&[*rows, *len]), 4)?;
            a.write(dst, product(&[*rows, *len]), 4)?;
            return a.finish(|r| r.offset == src.offset);
        }
        Call::LayerNorm { rows, len, gamma, src, dst, .. } | Call::RmsNorm { rows, len, gamma, src, dst, .. } => {
            let beta = if let Call::LayerNorm { beta, .. } = call { beta } else { &None };
            for r in [gamma, beta].into_iter().flatten() {
                a.read(r, Some(*len), 4)?;
            }
            a.read(src, product(&[*rows, *len]), 4)?;
            a.write(dst, product(&[*rows, *len]), 4)?;
            // The result may overwrite the source, unless a parameter is the same memory as the source.
            let (source, parameters) = a.reads.split_last().expect("the source was just read");
            let (source, shared) = (*source, parameters.contains(source));
            return a.finish(|r| *r == source && !shared);
        }
        Call::Attention(t) => attend(t, &mut a, isa, threads)?,
        Call::Copy { elem, dims, src, src_strides, dst, dst_strides } => {
            let ranks = dims.len() == src_strides.len() && dims.len() == dst_strides.len();
            if !ranks || dims.len() > crate::copy::MAX_DIMS || !matches!(elem, 1 | 2 | 4) {
                return Err("a copy of mismatched axes".into());
            }
            let forward = |s: &[isize]| s.iter().map(|&s| usize::try_from(s).ok()).collect::<Option<Vec<_>>>();
            let (from, to) =
                (forward(src_strides).ok_or("a negative stride")?, forward(dst_strides).ok_or("a negative stride")?);
            moderate(dims.iter().chain(&from).chain(&to))?;
            distinct(dims, &to)?;
            a.read(src, reach(dims, &from), *elem)?;
            a.write(dst, reach(dims, &to), *elem)?;
        }
        Call::Move { bytes, src, dst } => {
            a.read(src, Some(*bytes), 1)?;
            a.write(dst, Some(*bytes), 1)?;
        }
        Call::Zero { dst } => a.write(dst, Some(dst.len), 1)?,
        Call::Gather { elem, shape, indices, count, src, dst } => {
            if !matches!(elem, 1 | 2 | 4) {
                return Err(format!("elements of {elem} bytes"));
            }
            a.read(indices, Some(*count), 4)?;
            a.read(src, product(shape), *elem)?;
            a.write(dst, product(&[shape[0], *count, shape[2]]), *elem)?;
        }
        Call::Put { elem, shape, indices, count, src, dst } => {
            if !matches!(elem, 1 | 2 | 4) {
                return Err(format!("elements of {elem} bytes"));
            }
            a.read(indices, Some(*count), 4)?;
            a.read(src, product(&[shape[0], *count, shape[2]]), *elem)?;
            a.write(dst, product(shape), *elem)?;
        }
        Call::SegmentSum { shape, segments, count, src, dst }
        | Call::IntSegmentSum { shape, segments, count, src, dst } => {
            a.read(segments, Some(shape[1]), 4)?;
            a.read(src, product(shape), 4)?;
            a.write(dst, product(&[shape[0], *count, shape[2]]), 4)?;
        }
        Call::SynapseSum { synapses, batch_last, rows, src, ratio, terms, outs, scratch } => {
            let fits = match ratio {
                None => outs.len() == synapses.sums() && (terms.is_empty() || terms.len() == synapses.sums()),
                Some(times) => outs.len() == 1 && terms.len() == 3 && synapses.has_ratio() && *times > 0,
            };
            if !fits || !synapses.is_for(isa) {
                return Err(format!("{synapses:?} and {} terms into {} results on {isa}", terms.len(), outs.len()));
            }
            a.read(src, product(&[*rows, synapses.sources()]), 4)?;
            for (term, strides) in terms {
                moderate(strides)?;
                // The loops load a register of neighbouring rows (batch-last; or one number for all rows), or of
                // neighbouring destinations (batch-first).
                if if *batch_last { strides[0] > 1 } else { strides[1] != 1 } {
                    return Err(format!("a term with strides {strides:?}"));
                }
                a.read(term, reach(&[*rows, synapses.segments()], strides), 4)?;
            }
            for out in outs {
                a.write(out, product(&[*rows, synapses.segments()]), 4)?;
            }
            let bytes = synapses.scratch_bytes(*batch_last, *rows, ratio.unwrap_or(1));
            a.scratch(scratch, bytes.ok_or("scratch memory overflows")?, 1)?;
        }
        Call::Wired(wired) => wired.check(&mut a, isa, threads)?,
        Call::WiredGradient(wired) => wired.check(&mut a, isa)?,
        Call::Gated { gated, rows, apart, x, out, also } => {
            let dense = gated.dense();
            // Rows that are written must not overlap; batch-last, there are no others than dense ones.
            let fits = match gated.batch() {
                Batch::First => apart.also >= dense.also,
                Batch::Last => *apart == dense,
            };
            if !gated.is_for(isa) || !fits {
                return Err(format!("{gated:?} for {rows} rows, {apart:?}, on {isa}"));
            }
            let extent = |width: usize, apart: usize| reach(&[*rows, width], &[apart, 1]);
            for (i, part) in x.iter().enumerate() {
                a.read(part, extent(dense.x[i], apart.x[i]), 4)?;
            }
            a.write(out, extent(dense.also, dense.also), 4)?;
            if let Some(also) = also {
                a.write(also, extent(dense.also, apart.also), 4)?;
            }
        }
        Call::Scan(s) => scan(s, &mut a, threads)?,
    }
    a.finish(|_| false)
}

/// The largest size or stride that a call may have, in elements. No memory is large enough for more. Numbers up to this
/// limit can be multiplied by small constants, and a few such products added, without overflow; where an address has
/// only 32 bits, products of two sizes are checked or saturate.
pub const LARGEST: usize = if usize::BITS > 32 { 1 << (usize::BITS - 24) } else { 1 << 26 };

/// Numbers that a kernel may multiply with small constants, whether or not they describe any element.
pub(super) fn moderate<'a>(numbers: impl IntoIterator<Item = &'a usize>) -> Check {
    numbers.into_iter().find(|&&n| n > LARGEST).map_or(Ok(()), |n| Err(format!("a size or stride of {n}")))
}

fn is_float(elem: Elem) -> bool {
    matches!(elem, Elem::F32 | Elem::F16 | Elem::Bf16)
}

/// Checks that distinct indices reach distinct elements: sorted by stride, each axis steps over the whole extent of the
/// axes inside it.
fn distinct(dims: &[usize], strides: &[usize]) -> Check {
    let mut axes: Vec<(usize, usize)> =
        strides.iter().copied().zip(dims.iter().copied()).filter(|(_, d)| *d > 1).collect();
    axes.sort_unstable();
    let mut covered = 1usize;
    for (stride, dim) in axes {
        if stride < covered {
            return Err(format!("a destination whose elements coincide: sizes {dims:?}, strides {strides:?}"));
        }
        covered = (dim - 1).checked_mul(stride).and_then(|n| n.checked_add(covered)).ok_or("sizes overflow")?;
    }
    Ok(())
}

fn gemm(g: &Gemm, mut a: Accesses<'_>, on: Machine<'_>, threads: usize) -> Check {
    let [batch, m, n, k] = g.shape;
    let plain = if let GemmB::Plain(b) = &g.b { Some(b) } else { None };
    let strides = [Some(&g.a), plain, Some(&g.c)].into_iter().flatten().flat_map(|s| [&s.batch, &s.row, &s.col]);
    // With strides of 0 a matrix may have more elements than there is memory, and so may its packed copy.
    moderate(g.shape.iter().chain(strides))?;
    let rest = g.a_rest.map_or(0, |(_, k)| k);
    if let Some((r, _)) = &g.a_rest {
        let plain = g.a.store == Store::F32 && g.c.store == Store::F32 && g.a.col == 1 && batch == 1 && m == 1;
        let packed = matches!(&g.b, GemmB::Packed(b) if b.store() == Store::F32);
        if !plain || !packed || rest > k || !takes_parts(on.tuning, n, k) {
            return Err("a product that takes no parts".into());
        }
        a.read(r, Some(rest), 4)?;
    }
    let (elements, size) = a.matrix(&g.a, batch, m, k - rest);
    a.read(&g.a.at, elements, size)?;
    match &g.b {
        GemmB::Packed(b) if (b.k(), b.n()) == (k, n) && b.is_for(on.isa) => {}
        GemmB::Packed(b) => return Err(format!("{b:?} where a {k} × {n} matrix for {} is wanted", on.isa)),
        GemmB::LowBit { b, .. } => {
            if (b.k(), b.n()) != (k, n) || !b.is_for(on.isa) {
                return Err(format!("{b:?} where a {k} × {n} matrix for {} is wanted", on.isa));
            }
            if g.a.store != Store::F32 || g.a.col != 1 {
                return Err(format!(
                    "{b:?} and rows of {:?} with a stride of {}, not contiguous f32",
                    g.a.store, g.a.col
                ));
            }
        }
        GemmB::Plain(b) => {
            let (elements, size) = a.matrix(b, batch, k, n);
            a.read(&b.at, elements, size)?;
        }
    }
    if g.c.col != 1 {
        return Err("a product with strided columns".into());
    }
    distinct(&[batch, m, n], &[g.c.batch, g.c.row, g.c.col])?;
    let (elements, size) = a.matrix(&g.c, batch, m, n);
    a.write(&g.c.at, elements, size)?;
    if let Some(add) = &g.add {
        if g.a_rest.is_some() {
            return Err("a product in two parts that is added to something".into());
        }
        a.read(add, elements, size)?;
    }
    if let Some(bias) = &g.bias {
        a.read(bias, Some(n), 4)?;
    }
    if let Some(bias) = &g.row_bias {
        a.read(bias, Some(m), 4)?;
    }
    a.scratch(&g.scratch, g.scratch_bytes(on, 1), threads)?;
    let Some(e) = &g.epilogue else { return a.finish(|_| false) };
    epilogue(e, g, &mut a, threads)?;
    // The result may take the product's place: the program reads an element before it writes it.
    let same = e.out.1 == Elem::F32 && g.c.row == n && e.out.0.slot == g.c.at.slot && e.out.0.offset == g.c.at.offset;
    if !same {
        let elements = m.checked_mul(n);
        a.write(&e.out.0, elements, e.out.1.size())?;
    } else {
        a.part(&e.out.0, m.checked_mul(n), 4, 4)?;
    }
    a.finish(|_| false)
}

fn epilogue(e: &Epilogue, g: &Gemm, a: &mut Accesses<'_>, threads: usize) -> Check {
    let [batch, m, n, _] = g.shape;
    if batch != 1 || e.shape != (m, n) || e.product_row != g.c.row || g.c.store != Store::F32 {
        return Err("an epilogue made for another product".into());
    }
    for (r, elem, strides) in &e.inputs {
        a.read(r, reach(&[m, n], strides), elem.size())?;
    }
    a.scratch(&e.scratch, map::scratch_bytes(&e.program, 1), threads)
}

fn elementwise(m: &Map, mut a: Accesses<'_>, threads: usize) -> Check {
    for (r, elem, strides) in &m.inputs {
        a.read(r, reach(&m.dims, strides), elem.size())?;
    }
    let elements = reach(&m.dims, &dense(m.dims));
    for (r, elem) in &m.outs {
        a.write(r, elements, elem.size())?;
    }
    a.scratch(&m.scratch, m.prepared.scratch_bytes(1), threads)?;
    // In place only over an operand of the same layout; a dimension of 1 has no stride to speak of. Any output may take an
    // operand's place: the program reads all operands of a block before it writes.
    let dense_strides = dense(m.dims);
    let starts = |x: &Ref, r: &Ref| x.slot == r.slot && x.offset == r.offset;
    type Input = (Ref, Elem, [usize; 4]);
    let like_out = |(at, elem, strides): &Input| {
        (0..4).all(|i| m.dims[i] <= 1 || strides[i] == dense_strides[i])
            && m.outs.iter().any(|(r, out)| starts(r, at) && elem.size() == out.size())
    };
    let (replaceable, others): (Vec<&Input>, Vec<&Input>) = m.inputs.iter().partition(|i| like_out(i));
    a.finish(|r| replaceable.iter().any(|x| starts(&x.0, r)) && !others.iter().any(|x| starts(&x.0, r)))
}

fn attend(t: &Attend, a: &mut Accesses<'_>, isa: Isa, threads: usize) -> Check {
    let s: &Attention = &t.shape;
    if s.kv_heads == 0 || !s.heads.is_multiple_of(s.kv_heads) || s.mask.is_some() != t.mask.is_some() {
        return Err("attention heads or mask do not fit".into());
    }
    moderate(&[s.batch, s.heads, s.kv_heads, s.queries, s.keys, s.dim, s.value_dim])?;
    let forward = |strides: &[isize]| -> Result<Vec<usize>, String> {
        strides.iter().map(|&s| usize::try_from(s).map_err(|_| "a negative stride".to_owned())).collect()
    };
    let rows = |heads, rows, width| [s.batch, heads, rows, width];
    let dims =
        [rows(s.heads, s.queries, s.dim), rows(s.kv_heads, s.keys, s.dim), rows(s.kv_heads, s.keys, s.value_dim)];
    for ((r, dims), strides) in t.qkv.iter().zip(dims).zip([s.q, s.k, s.v]) {
        let mut strides = forward(&strides)?;
        moderate(&strides)?;
        strides.push(1);
        a.read(r, reach(&dims, &strides), 4)?;
    }
    if let (Some(r), Some(strides)) = (&t.mask, &s.mask) {
        a.read(r, reach(&[s.batch, s.heads, s.queries, s.keys], &forward(strides)?), 4)?;
    }
    if let Some(r) = &t.positions {
        a.read(r, Some(s.queries), 4)?;
    }
    let mut strides = forward(&s.out)?;
    strides.push(1);
    let dims = rows(s.heads, s.queries, s.value_dim);
    distinct(&dims, &strides)?;
    a.write(&t.out, reach(&dims, &strides), 4)?;
    if attention_scratch_bytes(isa, 1, s).checked_mul(threads).is_none() {
        return Err("scratch memory overflows".into());
    }
    a.scratch(&t.scratch, attention_scratch_bytes(isa, threads, s), 1)
}

fn scan(s: &Scan, a: &mut Accesses<'_>, threads: usize) -> Check {
    let rows_of = |rows: usize| match s.blocks {
        Some((total, _)) if rows != total => Err(format!("{rows} rows where blocks are of {total}")),
        _ => moderate(&[rows]).map(|()| rows),
    };
    if let Some((rows, block)) = s.blocks {
        moderate(&[rows, block])?;
    }
    for ScanState { init, last, rows, row_bytes, total } in &s.states {
        if *total && (*rows != 1 || !row_bytes.is_multiple_of(4) || s.blocks.is_none()) {
            return Err(format!("a total of {rows} rows of {row_bytes} bytes"));
        }
        if *total {
            a.read(init, Some(*row_bytes / 4), 4)?;
            a.write(last, Some(*row_bytes / 4), 4)?;
            continue;
        }
        let bytes = rows_of(*rows)?.checked_mul(*row_bytes);
        a.read(init, bytes, 1)?;
        a.write(last, bytes, 1)?;
    }
    for (sequence, written) in s.sequences.iter().map(|x| (x, false)).chain(s.outputs.iter().map(|x| (x, true))) {
        let Sequence { at, rows, row_bytes, batch_last } = sequence;
        let rows = rows_of(*rows)?;
        let bodies_are = s.body.batch_last && s.tail.as_ref().is_none_or(|tail| tail.batch_last);
        if *batch_last && (s.blocks.is_none() || s.time_inside || !bodies_are) {
            return Err("a sequence that is batch-last, in a loop that is not".into());
        }
        rows.checked_mul(s.steps).ok_or("a sequence that overflows")?;
        let bytes = rows.checked_mul(*row_bytes).and_then(|n| n.checked_mul(s.steps));
        if written { a.write(at, bytes, 1)? } else { a.read(at, bytes, 1)? }
    }
    for r in &s.fixed {
        a.read(r, Some(r.len), 1)?;
    }
    a.scratch(&s.scratch, s.worker_bytes(), if s.splits() { threads } else { 1 })?;
    match s.blocks {
        None => {
            if s.tail.is_some() || s.body.tape.threads < threads {
                return Err("a scan over all rows has one body, for every thread".into());
            }
            if s.body.batch_last {
                return Err("only blocks of rows can be batch-last".into());
            }
            body(s, &s.body, a, |rows| rows)
        }
        Some((rows, block)) => {
            if block == 0 || block > rows {
                return Err(format!("blocks of {block} of {rows} rows"));
            }
            body(s, &s.body, a, |_| block)?;
            match (&s.tail, rows % block) {
                (None, 0) => Ok(()),
                (Some(tail), left) if left > 0 => body(s, tail, a, |_| left),
                _ => Err(format!("blocks of {block} of {rows} rows, and the wrong tail")),
            }
        }
    }
}

/// The body's memories are what the scan will point them to.
fn body(s: &Scan, body: &Body, a: &Accesses<'_>, rows: impl Fn(usize) -> usize) -> Check {
    let memory = &body.tape.memory;
    if body.batch_last {
        // Rows are transposed by words.
        let words = |r: &Ref, row_bytes: usize| {
            row_bytes.is_multiple_of(4) && r.offset.is_multiple_of(4) && a.memory.align(r.slot).is_multiple_of(4)
        };
        let states = s.states.iter().all(|s| words(&s.init, s.row_bytes) && words(&s.last, s.row_bytes));
        if !states || !s.sequences.iter().chain(&s.outputs).all(|q| words(&q.at, q.row_bytes)) {
            return Err("rows that are not whole words cannot be batch-last".into());
        }
    }
    let inputs = s.states.len() + s.sequences.len() + s.fixed.len();
    if memory.inputs.len() != inputs || memory.outputs.len() != s.states.len() + s.outputs.len() {
        return Err(format!("a body of {} inputs and {} outputs", memory.inputs.len(), memory.outputs.len()));
    }
    let same = |what: &str, i: usize, want: usize, have: usize| {
        if want == have {
            Ok(())
        } else {
            Err(format!("{what} {i} of the body has {have} bytes, the scan gives {want}"))
        }
    };
    let aligned = |what: &str, i: usize, r: &Ref, step: usize, align: usize| {
        let fits = r.offset.is_multiple_of(align)
            && step.is_multiple_of(align)
            && a.memory.align(r.slot).is_multiple_of(align);
        if fits { Ok(()) } else { Err(format!("{what} {i} of the body wants an alignment of {align}")) }
    };
    for (i, st) in s.states.iter().enumerate() {
        let bytes = if st.total { st.row_bytes } else { rows(st.rows) * st.row_bytes };
        same("input", i, bytes, memory.inputs[i].bytes)?;
        same("output", i, bytes, memory.outputs[i].bytes)?;
        aligned("input", i, &st.init, st.row_bytes, memory.inputs[i].align)?;
        aligned("output", i, &st.last, st.row_bytes, memory.outputs[i].align)?;
    }
    for (n, sequence) in s.sequences.iter().enumerate() {
        let i = s.states.len() + n;
        same("input", i, rows(sequence.rows) * sequence.row_bytes, memory.inputs[i].bytes)?;
        aligned("input", i, &sequence.at, sequence.row_bytes, memory.inputs[i].align)?;
    }
    for (n, r) in s.fixed.iter().enumerate() {
        let i = s.states.len() + s.sequences.len() + n;
        // An input that no call reads need not exist: weights that are only used in packed form do not.
        if body.tape.reads_input(i) {
            same("input", i, r.len, memory.inputs[i].bytes)?;
            aligned("input", i, r, 0, memory.inputs[i].align)?;
        }
    }
    for (n, sequence) in s.outputs.iter().enumerate() {
        let i = s.states.len() + n;
        same("output", i, rows(sequence.rows) * sequence.row_bytes, memory.outputs[i].bytes)?;
        aligned("output", i, &sequence.at, sequence.row_bytes, memory.outputs[i].align)?;
    }
    Ok(())
}
