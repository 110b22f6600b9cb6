//! How a program walks over a domain: resolved from the shapes once, run with pointers only.

use super::machine::{self, MAX_BLOCK, Place, WIDTH};
use super::memory::{self, Elem};
use super::program::{MAX_OPERANDS, Program, Step};
use crate::gemm::micro::Lanes;
use crate::simd::with_simd;
use crate::tuning::{Machine, Tuning};
use crate::{Isa, Simd, Team};
use std::ops::Range;

/// The longest row that is unrolled into a table.
const MAX_PERIOD: usize = 512;
/// Floats of scratch memory for each input: a block, or a table of a row and a block.
const INPUT_FLOATS: usize = MAX_PERIOD + MAX_BLOCK;

/// Type and strides of one operand, outermost first; see [`super::Operand`].
pub(crate) type Layout = (Elem, [usize; 4]);

/// How the walk finds an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Contiguous over the domain (or the row, where the walk goes by rows).
    Linear,
    /// One element over the domain (or the row).
    Splat,
    /// The same row again and again, unrolled into a table.
    Periodic,
    /// Anything else: copied from or to a buffer, a block at a time.
    Gather,
}

#[derive(Clone, Copy, Debug)]
struct Port {
    elem: Elem,
    kind: Kind,
    /// Over the collapsed dimensions.
    strides: [usize; 4],
}

/// A domain and its operands, resolved.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Collapsed: the last is the row.
    dims: [usize; 4],
    len: usize,
    by_rows: bool,
    /// Every whole block can be computed without buffers.
    direct: bool,
    /// The same, and each operand either continues where its previous block ended, or is a single element.
    flat: bool,
    /// Every operand is contiguous `f32`, and outputs stay in the caches.
    quick: bool,
    /// Outputs are large enough and plain enough to be written past the caches.
    stream: bool,
    /// The fewest elements that a thread gets, if there is enough work for several threads.
    grain: Option<usize>,
    ports: [Port; MAX_OPERANDS],
}

/// The layout of a program's scratch memory, see [`Scratch::layout`].
pub(super) fn lay_out(program: &Program) -> [usize; 4] {
    Scratch::lay_out(program)
}

/// Bytes of scratch memory of one thread: places, slots, input and output buffers.
pub(super) fn thread_bytes(program: &Program) -> usize {
    Scratch::layout(program)[3]
}

/// Byte offsets of a thread's scratch memory.
struct Scratch;

impl Scratch {
    /// Byte offsets of slots, input buffers and output buffers, and the end. The table of places begins at 0.
    #[inline(always)]
    fn layout(p: &Program) -> [usize; 4] {
        p.layout
    }

    fn lay_out(p: &Program) -> [usize; 4] {
        let slots = ((p.operands() + p.constants.len() + p.slots) * size_of::<Place>()).next_multiple_of(64);
        let inputs = slots + p.slots * MAX_BLOCK * 4;
        let outputs = inputs + p.inputs * INPUT_FLOATS * 4;
        [slots, inputs, outputs, outputs + p.outputs * MAX_BLOCK * 4]
    }
}

impl Plan {
    pub(super) fn new(
        tuning: &Tuning,
        program: &Program,
        dims: [usize; 4],
        inputs: usize,
        outputs: usize,
        layouts: impl Iterator<Item = Layout>,
    ) -> Plan {
        assert!(inputs == program.inputs && outputs == program.outputs, "a program runs with its own operands");
        let none = Port { elem: Elem::F32, kind: Kind::Splat, strides: [0; 4] };
        let mut ports = [none; MAX_OPERANDS];
        for (k, (port, (elem, strides))) in ports.iter_mut().zip(layouts).enumerate() {
            let inner = strides[3];
            assert!(inner == 1 || (inner == 0 && k < inputs) || dims[3] <= 1, "an innermost stride is 0 or 1");
            *port = Port { elem, strides, ..none };
        }
        let used = &mut ports[..inputs + outputs];
        let dims = collapse(dims, used);
        let row = dims[3];
        let len: usize = dims.iter().product();
        // How a flat walk would find each operand.
        let contiguous = |s: &[usize; 4]| {
            let mut expected = 1;
            (0..4).rev().all(|d| {
                let ok = dims[d] == 1 || s[d] == expected;
                expected *= dims[d];
                ok
            })
        };
        for (k, port) in used.iter_mut().enumerate() {
            let s = port.strides;
            port.kind = if contiguous(&s) {
                Kind::Linear
            } else if k < inputs && (0..4).all(|d| dims[d] == 1 || s[d] == 0) {
                Kind::Splat
            } else if k < inputs && s[3] == 1 && row <= MAX_PERIOD && (0..3).all(|d| dims[d] == 1 || s[d] == 0) {
                Kind::Periodic
            } else {
                Kind::Gather
            };
        }
        let gathers = used.iter().any(|p| p.kind == Kind::Gather);
        let by_rows = gathers && (row >= tuning.map_long_row_elements_least() || row.is_multiple_of(MAX_BLOCK));
        if by_rows {
            for port in used.iter_mut() {
                port.kind = if port.strides[3] == 1 || row == 1 { Kind::Linear } else { Kind::Splat };
            }
        }
        let plain = |p: &Port| match p.kind {
            Kind::Linear => p.elem == Elem::F32,
            Kind::Splat | Kind::Periodic => true,
            Kind::Gather => false,
        };
        let direct = used.iter().all(plain);
        let flat = direct && used.iter().all(|p| p.kind != Kind::Periodic);
        let linear = used.iter().all(|p| p.kind == Kind::Linear && p.elem == Elem::F32);
        let stream = direct && !by_rows && len.saturating_mul(outputs * 4) > tuning.map_cached_bytes_most();
        let quick = linear && !by_rows && !stream;
        let grain = tuning.map_thread_elements_least();
        let enough = len > grain && len.saturating_mul(program.cost) >= tuning.map_threads_cost_least();
        Plan { dims, len, by_rows, direct, flat, quick, stream, grain: enough.then_some(grain), ports }
    }

    /// # Safety
    /// As [`super::run`].
    pub(super) unsafe fn run(
        &self,
        isa: Isa,
        team: Option<&Team>,
        program: &Program,
        ports: &[*mut u8; MAX_OPERANDS],
        scratch: *mut u8,
    ) {
        if self.len == 0 || program.outputs == 0 {
            return;
        }
        let team = team.filter(|team| team.threads() > 1).zip(self.grain);
        if self.quick && team.is_none() {
            // SAFETY: the caller's promise; every operand is contiguous f32.
            return with_simd!(isa, s => unsafe { quick(s, program, ports, scratch, self.len) });
        }
        // An output in the place of an input is in the cache already, so it is not streamed.
        let outputs = &ports[program.inputs..program.operands()];
        let alias = || outputs.iter().any(|o| ports[..program.inputs].contains(o));
        // Streamed stores must be aligned: all outputs must reach an aligned address after the same few elements.
        let skew = |o: &*mut u8| o.addr() % 64;
        let aligned = || skew(&outputs[0]).is_multiple_of(4) && outputs.iter().all(|o| skew(o) == skew(&outputs[0]));
        let stream = self.stream && aligned() && !alias();
        let job = Job { plan: self, program, ports, scratch, stream };
        match team {
            Some((team, grain)) => {
                team.split(self.len, grain, &|part, range| {
                    // SAFETY: the caller's promise; ranges are disjoint and each part has its own scratch memory.
                    unsafe { job.run(isa, part, range) }
                });
            }
            // SAFETY: the caller's promise.
            None => unsafe { job.run(isa, 0, 0..self.len) },
        }
    }

    /// Runs alone, with the given lanes.
    ///
    /// # Safety
    /// As [`super::run`].
    #[cfg(test)]
    pub(super) unsafe fn run_lanes<S: Lanes>(
        &self,
        s: S,
        program: &Program,
        ports: &[*mut u8; MAX_OPERANDS],
        scratch: *mut u8,
    ) {
        if program.outputs > 0 && self.len > 0 {
            // SAFETY: the caller's promise.
            unsafe { walk(s, &Job { plan: self, program, ports, scratch, stream: false }, 0, 0..self.len) }
        }
    }

    /// Elements from index 0 to the start of a row, for one operand.
    #[inline(always)]
    fn row_offset(&self, row: usize, strides: &[usize; 4]) -> usize {
        let [_, d1, d2, _] = self.dims;
        if row < d2 {
            return row * strides[2];
        }
        let (outer, i2) = (row / d2, row % d2);
        i2 * strides[2] + outer % d1 * strides[1] + outer / d1 * strides[0]
    }
}

/// Drops dimensions of one element and joins those that every operand walks in one stride.
fn collapse(dims: [usize; 4], ports: &mut [Port]) -> [usize; 4] {
    let mut out = [1; 4];
    // The collapsed dimensions fill `out` from the end; `at` is the outermost of them.
    let mut at = 4;
    for d in (0..4).rev() {
        let innermost = at == 4;
        let droppable = dims[d] == 1 && (!innermost || d > 0 && ports.iter().all(|p| p.strides[d - 1] <= 1));
        if droppable && !(innermost && d == 0) {
            continue;
        }
        if !innermost && ports.iter().all(|p| p.strides[d] == p.strides[at] * out[at]) {
            out[at] *= dims[d];
            continue;
        }
        at -= 1;
        out[at] = dims[d];
        for port in ports.iter_mut() {
            // Never overwrites what is still to be read: `at` is at least `d`.
            port.strides[at] = port.strides[d];
        }
    }
    for port in ports.iter_mut() {
        port.strides[..at].fill(0);
    }
    out
}

/// One run, shared by the threads.
struct Job<'a> {
    plan: &'a Plan,
    program: &'a Program,
    ports: &'a [*mut u8; MAX_OPERANDS],
    scratch: *mut u8,
    stream: bool,
}

// SAFETY: the caller promises that the pointers are valid for the whole run; threads write disjoint ranges of elements
// and their own scratch memory.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// # Safety
    /// As [`super::run`]; `part` must have its own scratch memory and no other part the same elements.
    #[allow(unused_unsafe, reason = "some arms of the macro are unsafe blocks themselves")]
    unsafe fn run(&self, isa: Isa, part: usize, range: Range<usize>) {
        // SAFETY: the caller's promise.
        with_simd!(isa, s => unsafe { walk(s, self, part, range) })
    }
}

/// Runs a block of `width` registers (1, 2, 4 or [`WIDTH`]), out of line: the walks around it are compiled once, and the
/// machine's code is shared by them.
///
/// # Safety
/// As [`machine::block`].
#[inline(always)]
unsafe fn compute<S: Lanes>(width: usize, steps: &[Step], places: *const Place) {
    /// # Safety
    /// As [`machine::block`], on a CPU with the instruction set.
    #[inline(never)]
    unsafe fn entry<S: Lanes, const W: usize>(steps: &[Step], places: *const Place) {
        // SAFETY: the caller's promise.
        unsafe {
            S::enter(
                #[inline(always)]
                |s| machine::block::<S, W>(s, steps, places, false),
            )
        }
    }
    // SAFETY: the caller's promise; a token of the instruction set exists where this is called.
    unsafe {
        match width {
            1 => entry::<S, 1>(steps, places),
            2 => entry::<S, 2>(steps, places),
            4 => entry::<S, 4>(steps, places),
            _ => entry::<S, WIDTH>(steps, places),
        }
    }
}

/// Runs a whole block whose outputs go past the caches.
///
/// # Safety
/// As [`machine::block`], on a CPU with the instruction set.
#[inline(never)]
unsafe fn streamed<S: Lanes>(steps: &[Step], places: *const Place) {
    // SAFETY: the caller's promise.
    unsafe {
        S::enter(
            #[inline(always)]
            |s| machine::block::<S, WIDTH>(s, steps, places, true),
        )
    }
}

/// The walk where every operand is contiguous `f32`: it only advances pointers, and at the end passes less than two
/// registers of each operand through buffers.
///
/// # Safety
/// As [`super::run`], alone, with operands of that kind.
#[inline(always)]
unsafe fn quick<S: Lanes>(s: S, program: &Program, ports: &[*mut u8; MAX_OPERANDS], scratch: *mut u8, len: usize) {
    let (inputs, operands) = (program.inputs, program.operands());
    // SAFETY: as in `walk`.
    unsafe {
        let places = scratch.cast::<Place>();
        let [slots, buffers, ..] = Scratch::layout(program);
        for (k, port) in ports[..operands].iter().enumerate() {
            places.add(k).write(Place { at: port.cast(), step: S::LANES });
        }
        for (k, c) in program.constants.iter().enumerate() {
            places.add(operands + k).write(Place { at: c.0.as_ptr().cast_mut(), step: 0 });
        }
        for k in 0..program.slots {
            let at = scratch.add(slots + k * MAX_BLOCK * 4).cast::<f32>();
            places.add(operands + program.constants.len() + k).write(Place { at, step: S::LANES });
        }
        let mut left = len;
        while left >= S::LANES {
            let width = match left / S::LANES {
                1 if left == S::LANES => 1,
                1 => break,
                2 | 3 => 2,
                4..8 => 4,
                _ => WIDTH,
            };
            compute::<S>(width, &program.steps, places);
            left -= width * S::LANES;
            for k in 0..operands {
                let place = &mut *places.add(k);
                place.at = place.at.wrapping_add(width * S::LANES);
            }
        }
        if left > 0 {
            // One register, or one and a part of another.
            let (whole, part) = if left > S::LANES { (S::LANES, left - S::LANES) } else { (0, left) };
            let written = &ports[inputs..operands];
            if len > S::LANES && !written.iter().any(|o| ports[..inputs].contains(o)) {
                // The last register may begin within the one before: what both cover is computed twice.
                for k in 0..operands {
                    let place = &mut *places.add(k);
                    if whole > 0 {
                        place.step = part;
                    } else {
                        place.at = place.at.wrapping_sub(S::LANES - part);
                    }
                }
                return compute::<S>(if whole > 0 { 2 } else { 1 }, &program.steps, places);
            }
            let buffer = |k: usize| scratch.add(buffers + k * 128).cast::<f32>();
            for k in 0..inputs {
                let place = &mut *places.add(k);
                if whole > 0 {
                    s.store(buffer(k), s.load(place.at));
                }
                s.store(buffer(k).add(whole), s.load_n(place.at.add(whole), part));
                place.at = buffer(k);
            }
            for k in inputs..operands {
                (*places.add(k)).at = buffer(k);
            }
            compute::<S>(if whole > 0 { 2 } else { 1 }, &program.steps, places);
            for (k, port) in ports[..operands].iter().enumerate().skip(inputs) {
                let to = port.cast::<f32>().add(len - left);
                if whole > 0 {
                    s.store(to, s.load(buffer(k)));
                }
                s.store_n(to.add(whole), s.load(buffer(k).add(whole)), part);
            }
        }
    }
}

/// # Safety
/// As [`Job::run`].
#[inline(always)]
unsafe fn walk<S: Lanes>(s: S, job: &Job<'_>, part: usize, range: Range<usize>) {
    let (plan, program) = (job.plan, job.program);
    let (inputs, operands) = (program.inputs, program.operands());
    let block = WIDTH * S::LANES;
    let row = plan.dims[3];
    let advance = if plan.flat { 0 } else { block % row };
    let mut base = *job.ports;
    // SAFETY: the scratch memory is laid out as `Scratch` says; every address is an element of an operand's domain or
    // of scratch memory, by the caller's promise and the bounds of the walk.
    unsafe {
        let scratch = job.scratch.add(part * thread_bytes(program));
        let [slots, input_buffers, output_buffers, _] = Scratch::layout(program);
        let places = scratch.cast::<Place>();
        let buffer = |k: usize| {
            let at = if k < inputs {
                input_buffers + k * INPUT_FLOATS * 4
            } else {
                output_buffers + (k - inputs) * MAX_BLOCK * 4
            };
            scratch.add(at).cast::<f32>()
        };
        for (k, c) in program.constants.iter().enumerate() {
            // Constants are only read.
            places.add(operands + k).write(Place { at: c.0.as_ptr().cast_mut(), step: 0 });
        }
        for k in 0..program.slots {
            let at = scratch.add(slots + k * MAX_BLOCK * 4).cast::<f32>();
            places.add(operands + program.constants.len() + k).write(Place { at, step: S::LANES });
        }
        for (k, port) in plan.ports[..inputs].iter().enumerate().filter(|(_, p)| p.kind == Kind::Periodic) {
            let table = buffer(k);
            memory::widen(s, port.elem, base[k], table, row);
            let mut filled = row;
            while filled < row + block {
                let n = filled.min(row + block - filled);
                table.add(filled).copy_from_nonoverlapping(table, n);
                filled += n;
            }
        }
        // Elements before the first output is aligned.
        let first = base[inputs].cast::<f32>().wrapping_add(range.start).addr();
        let mut peel = if job.stream { first.wrapping_neg() % 64 / 4 } else { 0 };
        let mut i = range.start;
        while i < range.end {
            // One row, or all of the range at once.
            let (start, end) =
                if plan.by_rows { (i % row, (i % row + range.end - i).min(row)) } else { (i, range.end) };
            for (k, port) in plan.ports[..operands].iter().enumerate() {
                if plan.by_rows {
                    let offset = plan.row_offset(i / row, &port.strides);
                    base[k] = job.ports[k].add(offset * port.elem.size());
                }
                let step = if port.kind == Kind::Splat { 0 } else { S::LANES };
                places.add(k).write(Place { at: buffer(k), step });
                if port.kind == Kind::Splat {
                    s.store(buffer(k), s.splat(memory::read(port.elem, base[k])));
                }
            }
            let (mut at, mut phase) = (start, if plan.flat { 0 } else { start % row });
            while at < end {
                // A block, or a smaller one for the rest: whole registers in place, and at the very end up to two
                // registers through buffers.
                let left = end - at;
                let width = match left.min(block).div_ceil(S::LANES) {
                    _ if peel > 0 => WIDTH,
                    1 => 1,
                    2 => 2,
                    3 | 4 if left >= 4 * S::LANES => 4,
                    3 | 4 => 2,
                    8 if left >= block => WIDTH,
                    _ => 4,
                };
                let n = if peel > 0 { peel.min(left) } else { left.min(width * S::LANES) };
                peel = 0;
                let whole = n == width * S::LANES;
                // Operands that are used in place; the others pass through their buffers.
                let in_place = |port: &Port| whole && port.kind == Kind::Linear && port.elem == Elem::F32;
                for (k, port) in plan.ports[..operands].iter().enumerate() {
                    let place = &mut *places.add(k);
                    match port.kind {
                        _ if plan.flat && whole => {
                            if port.kind == Kind::Linear {
                                place.at = base[k].cast::<f32>().add(at);
                            }
                        }
                        _ if in_place(port) => place.at = base[k].cast::<f32>().add(at),
                        Kind::Splat => {}
                        Kind::Periodic => place.at = buffer(k).add(phase),
                        _ => place.at = buffer(k),
                    }
                }
                if !(plan.direct && whole) {
                    for (k, port) in plan.ports[..inputs].iter().enumerate() {
                        if !in_place(port) && matches!(port.kind, Kind::Linear | Kind::Gather) {
                            fetch(s, plan, port, base[k], at, buffer(k), n);
                            memory::fill(s, 0.0, buffer(k).add(n), width * S::LANES - n);
                        }
                    }
                }
                if job.stream && whole && width == WIDTH {
                    streamed::<S>(&program.steps, places);
                } else {
                    compute::<S>(width, &program.steps, places);
                }
                if !(plan.direct && whole) {
                    for (k, port) in plan.ports[..operands].iter().enumerate().skip(inputs) {
                        if !in_place(port) {
                            put(s, plan, port, base[k], at, buffer(k), n);
                        }
                    }
                }
                at += n;
                if !plan.flat {
                    phase += if n == block { advance } else { n % row };
                    phase -= if phase >= row { row } else { 0 };
                }
            }
            i += end - start;
        }
        if job.stream {
            s.fence();
        }
    }
}

/// Copies elements `at .. at + n` of an operand to a buffer.
///
/// # Safety
/// The elements must exist and the buffer have room for them.
#[inline(always)]
unsafe fn fetch<S: Simd>(s: S, plan: &Plan, port: &Port, base: *mut u8, at: usize, to: *mut f32, n: usize) {
    let size = port.elem.size();
    // SAFETY: the caller's promise; pieces never cross a row.
    unsafe {
        if port.kind == Kind::Linear {
            return memory::widen(s, port.elem, base.add(at * size), to, n);
        }
        let row = plan.dims[3];
        let (mut r, mut c, mut done) = (at / row, at % row, 0);
        while done < n {
            let len = (row - c).min(n - done);
            let from = base.add((plan.row_offset(r, &port.strides) + c * port.strides[3]) * size);
            if port.strides[3] == 1 || len == 1 {
                memory::widen(s, port.elem, from, to.add(done), len);
            } else {
                memory::fill(s, memory::read(port.elem, from), to.add(done), len);
            }
            (r, c, done) = (r + 1, 0, done + len);
        }
    }
}

/// Copies a buffer to elements `at .. at + n` of an operand.
///
/// # Safety
/// As [`fetch`], the other way around.
#[inline(always)]
unsafe fn put<S: Simd>(s: S, plan: &Plan, port: &Port, base: *mut u8, at: usize, from: *const f32, n: usize) {
    let size = port.elem.size();
    // SAFETY: the caller's promise; pieces never cross a row.
    unsafe {
        if port.kind == Kind::Linear {
            return memory::narrow(s, port.elem, from, base.add(at * size), n);
        }
        let row = plan.dims[3];
        let (mut r, mut c, mut done) = (at / row, at % row, 0);
        while done < n {
            let len = (row - c).min(n - done);
            let to = base.add((plan.row_offset(r, &port.strides) + c) * size);
            memory::narrow(s, port.elem, from.add(done), to, len);
            (r, c, done) = (r + 1, 0, done + len);
        }
    }
}

/// A program with its domain and operands resolved, to be run again and again with pointers only.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    isa: Isa,
    program: Program,
    plan: Plan,
}

impl Prepared {
    /// Resolves `dims` and the operands' types and strides.
    ///
    /// # Panics
    /// As [`super::run`].
    pub(crate) fn new(
        on: Machine<'_>,
        program: Program,
        dims: [usize; 4],
        inputs: &[Layout],
        outputs: &[Layout],
    ) -> Prepared {
        let layouts = inputs.iter().chain(outputs).copied();
        let plan = Plan::new(on.tuning, &program, dims, inputs.len(), outputs.len(), layouts);
        Prepared { isa: on.isa, program, plan }
    }

    /// Bytes of scratch memory, aligned to 64, that a run with `threads` threads needs.
    pub(crate) fn scratch_bytes(&self, threads: usize) -> usize {
        super::scratch_bytes(&self.program, threads)
    }

    /// Runs over the operands at these addresses.
    ///
    /// # Panics
    /// Where the pointers are not as many as the program's operands.
    ///
    /// # Safety
    /// As [`super::run`].
    #[cfg(test)]
    pub(crate) unsafe fn run(&self, team: Option<&Team>, inputs: &[*const u8], outputs: &[*mut u8], scratch: *mut u8) {
        let program = &self.program;
        assert!(inputs.len() == program.inputs && outputs.len() == program.outputs, "a program runs with its operands");
        let mut ports = [std::ptr::null_mut(); MAX_OPERANDS];
        inputs.iter().zip(&mut ports).for_each(|(&p, port)| *port = p.cast_mut());
        outputs.iter().zip(&mut ports[inputs.len()..]).for_each(|(&p, port)| *port = p);
        // SAFETY: the caller's promise.
        unsafe { self.run_at(team, &ports, scratch) }
    }

    /// The same, with the addresses of the inputs, and then those of the outputs, in one list.
    ///
    /// # Safety
    /// As [`super::run`].
    pub(crate) unsafe fn run_at(&self, team: Option<&Team>, ports: &[*mut u8; MAX_OPERANDS], scratch: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.plan.run(self.isa, team, &self.program, ports, scratch) }
    }
}
