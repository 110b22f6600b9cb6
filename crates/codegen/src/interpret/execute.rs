//! Executes programs, one workgroup after the other.

use super::compile::{Action, Line, Op, Step, Tally};
use super::finding::{Access, Finding, Found, Wrong};
use super::lanes::{self, Halt, each};
use super::words::{Clock, Own, Trouble, Words};
use super::{Counts, Options, Program, Traffic};
use crate::lang::{Array, Memory, Part};
use crate::visit::{Place, memory_name};

/// The most statements of a run. Each interval but the first begins with a statement, and a run begins in the lower
/// half of the 32-bit numbers for intervals, so these cannot overflow.
const MOST: u64 = (1 << 31) - 2;

/// The most bytes that arrays may take.
const MOST_BYTES: u64 = 1 << 30;

pub(super) fn run(
    program: &Program,
    groups: [u32; 3],
    args: &[u32],
    buffers: &mut [&mut Words],
    options: &Options,
) -> Result<Counts, Finding> {
    let kernel = &program.kernel;
    if args.len() != kernel.args.len() {
        let (kernel, given, needed) = (kernel.name.clone(), args.len(), kernel.args.len());
        return Err(Finding::Arguments { kernel, given, needed });
    }
    if buffers.len() != kernel.buffers.len() {
        let (kernel, given, needed) = (kernel.name.clone(), buffers.len(), kernel.buffers.len());
        return Err(Finding::Buffers { kernel, given, needed });
    }
    let words = |arrays: &[Array]| arrays.iter().map(|array| u64::from(array.len)).sum::<u64>();
    // A word of a shared array has marks; a word of a thread's own array only has a flag that says whether it was
    // written.
    let bytes = 28 * words(&kernel.shared) + 5 * words(&kernel.own) * u64::from(kernel.threads);
    if bytes > MOST_BYTES {
        return Err(Finding::Arrays { kernel: kernel.name.clone(), bytes, most: MOST_BYTES });
    }
    if buffers.iter().any(|words| words.last() > u32::MAX / 2) {
        buffers.iter_mut().for_each(|words| words.restart());
    }
    for (words, buffer) in buffers.iter_mut().zip(&kernel.buffers) {
        if buffer.written {
            words.watch();
        }
    }
    let last = buffers.iter().map(|words| words.last()).max().unwrap_or(0);
    let threads = kernel.threads as usize;
    let mut machine = Machine {
        program,
        threads,
        slots: vec![vec![0; threads].into(); program.slots],
        shared: kernel.shared.iter().map(|array| Words::new(array.len as usize)).collect(),
        own: kernel.own.iter().map(|array| Own::new(array.len, threads)).collect(),
        buffers,
        clock: Clock { run: last + 1, group: last + 1, now: last },
        groups,
        group: [0; 3],
        starts: vec![],
        counts: Counts::default(),
        limit: options.statements.min(MOST),
        spare: vec![],
    };
    let result = machine.dispatch(args);
    let (counts, now) = (machine.counts, machine.clock.now);
    buffers.iter_mut().for_each(|words| words.close(now));
    result.map(|()| counts).map_err(Finding::Found)
}

struct Machine<'p, 'b, 'w> {
    program: &'p Program,
    threads: usize,
    slots: Vec<Box<[u32]>>,
    shared: Vec<Words>,
    own: Vec<Own>,
    buffers: &'b mut [&'w mut Words],
    clock: Clock,
    /// Workgroups of the dispatch.
    groups: [u32; 3],
    /// The workgroup that runs.
    group: [u32; 3],
    /// The first interval of each workgroup so far.
    starts: Vec<u32>,
    counts: Counts,
    limit: u64,
    /// Lists of threads that are used again.
    spare: Vec<Vec<u16>>,
}

impl<'p> Machine<'p, '_, '_> {
    fn dispatch(&mut self, args: &[u32]) -> Result<(), Box<Found>> {
        let program = self.program;
        let [thread, axes @ ..] = program.numbers;
        for (number, slot) in self.slots[thread].iter_mut().enumerate() {
            *slot = number as u32;
        }
        for (number, arg) in args.iter().enumerate() {
            self.slots[program.args + number].fill(*arg);
        }
        for (slot, bits) in &program.consts {
            self.slots[*slot].fill(*bits);
        }
        self.shared.iter_mut().for_each(Words::watch);
        let all: Vec<u16> = (0..self.threads as u16).collect();
        for z in 0..self.groups[2] {
            for y in 0..self.groups[1] {
                for x in 0..self.groups[0] {
                    self.group = [x, y, z];
                    for (axis, number) in axes.into_iter().zip(self.group) {
                        self.slots[axis].fill(number);
                    }
                    self.begin()?;
                    self.block(&program.body, &all)?;
                    self.counts.groups += 1;
                }
            }
        }
        Ok(())
    }

    /// A workgroup begins.
    fn begin(&mut self) -> Result<(), Box<Found>> {
        self.executed(&[]).map_err(|halt| {
            let place = Place { parts: vec![], what: "a workgroup begins".into() };
            self.found(&place, halt)
        })?;
        self.clock.now += 1;
        self.clock.group = self.clock.now;
        self.starts.push(self.clock.now);
        self.shared.iter_mut().for_each(Words::clear);
        self.own.iter_mut().for_each(Own::clear);
        Ok(())
    }

    fn block(&mut self, lines: &'p [Line], active: &[u16]) -> Result<(), Box<Found>> {
        lines.iter().try_for_each(|line| self.line(line, active))
    }

    fn line(&mut self, line: &'p Line, active: &[u16]) -> Result<(), Box<Found>> {
        self.statement(line, active).map_err(|halt| self.found(&line.place, halt))?;
        match &line.action {
            Action::For { var, to, step, body, .. } => {
                let mut inside = self.spare.pop().unwrap_or_default();
                inside.clear();
                inside.extend(active);
                self.still(&mut inside, *var, *to);
                while !inside.is_empty() {
                    self.block(body, &inside)?;
                    self.advance(&inside, *var, *step).map_err(|halt| self.found(&line.place, halt))?;
                    self.still(&mut inside, *var, *to);
                }
                self.spare.push(inside);
            }
            Action::If { condition, then, otherwise } => {
                for (holds, lines) in [(true, then), (false, otherwise)] {
                    if lines.is_empty() {
                        continue;
                    }
                    let mut inside = self.spare.pop().unwrap_or_default();
                    inside.clear();
                    let condition = &self.slots[*condition];
                    let taken = active.iter().filter(|thread| (condition[usize::from(**thread)] != 0) == holds);
                    inside.extend(taken);
                    if !inside.is_empty() {
                        self.block(lines, &inside)?;
                    }
                    self.spare.push(inside);
                }
            }
            Action::Routine { operands, results } => {
                for thread in active {
                    self.routine(*thread, operands, results, &line.place)?;
                }
            }
            _ => (),
        }
        Ok(())
    }

    /// Runs the kernel's routine for one thread.
    fn routine(&mut self, thread: u16, operands: &[usize], results: &[usize], place: &Place) -> Result<(), Box<Found>> {
        let program = self.program;
        let Some(routine) = &program.kernel.routine else { return Ok(()) };
        let at = usize::from(thread);
        let operands: Vec<i32> = operands.iter().map(|slot| self.slots[*slot][at] as i32).collect();
        let mut values = vec![0.0; results.len()];
        let mut found = None;
        let mut read = |number: usize, places: &[i32]| {
            let Some((reader, lines)) = routine.readers.get(number).zip(program.readers.get(number)) else {
                return f32::NAN;
            };
            // After the first mistake nothing counts any more.
            if found.is_some() || places.len() != reader.params.len() {
                return f32::NAN;
            }
            for (param, place) in reader.params.iter().zip(places) {
                self.slots[param.0 as usize][at] = *place as u32;
            }
            found = self.block(lines, &[thread]).err();
            f32::from_bits(self.slots[reader.result.0 as usize][at])
        };
        let done = (routine.run.0)(&operands, &mut read, &mut values);
        if let Some(found) = found {
            return Err(found);
        }
        done.map_err(|problem| {
            let wrong = Wrong::Routine { name: routine.name.clone(), problem };
            self.found(place, Halt { thread: thread.into(), wrong })
        })?;
        for (slot, value) in results.iter().zip(values) {
            self.slots[*slot][at] = value.to_bits();
        }
        Ok(())
    }

    fn found(&self, place: &Place, halt: Halt) -> Box<Found> {
        Box::new(Found {
            kernel: self.program.kernel.name.clone(),
            place: place.clone(),
            thread: halt.thread,
            group: self.group,
            wrong: halt.wrong,
        })
    }

    /// Keeps the threads whose loops have not ended.
    fn still(&self, inside: &mut Vec<u16>, var: usize, to: usize) {
        let (var, to) = (&self.slots[var], &self.slots[to]);
        inside.retain(|thread| var[usize::from(*thread)] < to[usize::from(*thread)]);
    }

    /// Goes on to the next round of a loop.
    fn advance(&mut self, inside: &[u16], var: usize, step: usize) -> Result<(), Halt> {
        self.executed(inside)?;
        let mut values = std::mem::take(&mut self.slots[var]);
        let steps = &self.slots[step];
        let result = inside.iter().try_for_each(|&thread| {
            let (from, step) = (values[usize::from(thread)], steps[usize::from(thread)]);
            let Some(next) = from.checked_add(step) else {
                return Err(Halt { thread: thread.into(), wrong: Wrong::Wraps { from, step } });
            };
            values[usize::from(thread)] = next;
            Ok(())
        });
        self.slots[var] = values;
        result
    }

    /// Counts a statement.
    fn executed(&mut self, active: &[u16]) -> Result<(), Halt> {
        self.counts.statements += 1;
        if self.counts.statements > self.limit {
            let thread = active.first().map_or(0, |thread| u32::from(*thread));
            return Err(Halt { thread, wrong: Wrong::Endless { statements: self.limit } });
        }
        Ok(())
    }

    /// A statement without those in it.
    fn statement(&mut self, line: &Line, active: &[u16]) -> Result<(), Halt> {
        self.executed(active)?;
        self.count(&line.tally, active.len() as u64);
        for step in &line.steps {
            self.step(step, active)?;
        }
        match line.action {
            Action::Set { var, value, spare } => {
                if spare && active.len() == self.threads {
                    self.slots.swap(var, value);
                } else {
                    let mut to = std::mem::take(&mut self.slots[var]);
                    if value != var {
                        lanes::copy(&mut to, &self.slots[value], active);
                    }
                    self.slots[var] = to;
                }
                Ok(())
            }
            Action::SetMany { ref vars, ref values } => {
                for (&var, &value) in vars.iter().zip(values) {
                    let mut to = std::mem::take(&mut self.slots[var]);
                    lanes::copy(&mut to, &self.slots[value], active);
                    self.slots[var] = to;
                }
                Ok(())
            }
            Action::Multiply { halves, sums, a, b } => {
                self.together(active)?;
                let mut to = sums.map(|sum| std::mem::take(&mut self.slots[sum]));
                lanes::multiply(halves, &mut to, a.map(|slot| &*self.slots[slot]), b.map(|slot| &*self.slots[slot]));
                for (sum, to) in sums.into_iter().zip(to) {
                    self.slots[sum] = to;
                }
                Ok(())
            }
            Action::Store { memory, index, value } => self.store(memory, index, value, active),
            Action::For { var, from, step, .. } => {
                let steps = &self.slots[step];
                if let Some(thread) = active.iter().find(|thread| steps[usize::from(**thread)] == 0) {
                    return Err(Halt { thread: (*thread).into(), wrong: Wrong::Step });
                }
                let mut to = std::mem::take(&mut self.slots[var]);
                lanes::copy(&mut to, &self.slots[from], active);
                self.slots[var] = to;
                Ok(())
            }
            Action::If { .. } | Action::Routine { .. } => Ok(()),
            Action::Barrier => self.barrier(active),
            Action::Fault { buffer, index } => {
                let indices = &self.slots[index];
                let words = &mut *self.buffers[buffer];
                each(active, self.threads, |thread| {
                    words.fault(indices[usize::from(thread)]).map_err(|trouble| (thread, trouble))
                })
                .map_err(|trouble| self.halt(Memory::Buffer(buffer as u32), (index, 0), Access::Write, trouble))
            }
        }
    }

    fn count(&mut self, tally: &Tally, threads: u64) {
        let add = |to: &mut Traffic, each: Traffic| {
            to.loads += threads * each.loads;
            to.stores += threads * each.stores;
        };
        self.counts.operations += threads * tally.operations;
        self.counts.fmas += threads * tally.fmas;
        self.counts.functions += threads * tally.functions;
        add(&mut self.counts.buffer, tally.buffer);
        add(&mut self.counts.shared, tally.shared);
        add(&mut self.counts.own, tally.own);
    }

    /// An error if not all threads are here.
    fn together(&self, active: &[u16]) -> Result<(), Halt> {
        if active.len() == self.threads {
            return Ok(());
        }
        // The list is in order, so the first thread that is missing is the first that is not at its own number.
        let missing = active.iter().zip(0u16..).take_while(|(thread, number)| *thread == number).count();
        let wrong = Wrong::Parted { arrived: active.len() as u32, threads: self.threads as u32 };
        Err(Halt { thread: missing as u32, wrong })
    }

    fn barrier(&mut self, active: &[u16]) -> Result<(), Halt> {
        self.together(active)?;
        self.counts.barriers += 1;
        self.clock.now += 1;
        Ok(())
    }

    fn step(&mut self, step: &Step, active: &[u16]) -> Result<(), Halt> {
        let mut to = std::mem::take(&mut self.slots[step.to]);
        let slot = |number: usize| &*self.slots[number];
        let result = match step.op {
            Op::Copy(a) => {
                lanes::copy(&mut to, slot(a), active);
                Ok(())
            }
            Op::Load(memory, index, after) => self.load(memory, index, after, &mut to, active),
            Op::Unary(op, ty, a) => {
                lanes::unary(op, ty, &mut to, slot(a), active);
                Ok(())
            }
            Op::Binary(op, ty, a, b) => lanes::binary(op, ty, &mut to, slot(a), slot(b), active),
            Op::Fma(a, b, c) => {
                lanes::fma(&mut to, [slot(a), slot(b), slot(c)], active);
                Ok(())
            }
            Op::Select(condition, a, b) => {
                lanes::select(&mut to, [slot(condition), slot(a), slot(b)], active);
                Ok(())
            }
            Op::Convert(from, into, a) => {
                lanes::convert(from, into, &mut to, slot(a), active);
                Ok(())
            }
            Op::Call(function, ref operands) => {
                let run = &self.program.kernel.functions[function].run;
                let operands: Vec<&[u32]> = operands.iter().map(|&operand| slot(operand)).collect();
                lanes::call(run, &mut to, &operands, active);
                Ok(())
            }
            Op::FromHalf(a) => {
                lanes::from_half(&mut to, slot(a), active);
                Ok(())
            }
            Op::Pack(halves, a, b) => {
                lanes::pack(halves, &mut to, slot(a), slot(b), active);
                Ok(())
            }
            Op::Exchange(a, bit) => {
                lanes::exchange(&mut to, slot(a), bit);
                self.together(active)
            }
        };
        self.slots[step.to] = to;
        result
    }

    fn load(
        &mut self,
        memory: Memory,
        index: usize,
        [after, of]: [u32; 2],
        to: &mut [u32],
        active: &[u16],
    ) -> Result<(), Halt> {
        let (indices, clock, alone) = (&self.slots[index], self.clock, self.clock.alone());
        let first =
            if let Memory::Part(number) = memory { self.program.kernel.parts[number as usize].first } else { 0 };
        let apart = |thread: &u16| !(first.wrapping_add(indices[usize::from(*thread)])).is_multiple_of(of);
        if let Some(thread) = active.iter().copied().find(apart) {
            let (memory, index) = (memory_name(&self.program.kernel, memory), indices[usize::from(thread)]);
            return Err(Halt { thread: thread.into(), wrong: Wrong::Apart { memory, index, of } });
        }
        let at = |thread: u16| indices[usize::from(thread)].saturating_add(after);
        let mut put = |thread: u16, value: Result<u32, Trouble>| {
            to[usize::from(thread)] = value.map_err(|trouble| (thread, trouble))?;
            Ok(())
        };
        let result = match memory {
            Memory::Buffer(number) => {
                let words = &mut *self.buffers[number as usize];
                if self.program.kernel.buffers[number as usize].written {
                    each(active, self.threads, |thread| put(thread, words.load(at(thread), thread, &clock)))
                } else {
                    each(active, self.threads, |thread| put(thread, words.peek(at(thread))))
                }
            }
            Memory::Shared(number) => {
                let words = &mut self.shared[number as usize];
                each(active, self.threads, |thread| put(thread, words.load(at(thread), thread, &alone)))
            }
            Memory::Part(number) => {
                let part = &self.program.kernel.parts[number as usize];
                let words = &mut self.shared[part.shared as usize];
                each(active, self.threads, |thread| {
                    let word = within(part, at(thread)).and_then(|index| {
                        let word = words.load(index, thread, &alone)?;
                        (part.mixed || words.is_of(index, number)).then_some(word).ok_or(Trouble::Unwritten)
                    });
                    put(thread, word)
                })
            }
            Memory::Own(number) => {
                let own = &self.own[number as usize];
                each(active, self.threads, |thread| put(thread, own.load(at(thread), thread)))
            }
        };
        result.map_err(|trouble| self.halt(memory, (index, after), Access::Read, trouble))
    }

    fn store(&mut self, memory: Memory, index: usize, value: usize, active: &[u16]) -> Result<(), Halt> {
        let (indices, values) = (&self.slots[index], &self.slots[value]);
        let operands = |thread: u16| (indices[usize::from(thread)], values[usize::from(thread)]);
        let result = match memory {
            Memory::Part(number) => {
                let part = &self.program.kernel.parts[number as usize];
                let (words, clock) = (&mut self.shared[part.shared as usize], self.clock.alone());
                each(active, self.threads, |thread| {
                    let (index, value) = operands(thread);
                    let stored = within(part, index).and_then(|index| {
                        words.store(index, value, thread, &clock)?;
                        words.give(index, Some(number));
                        Ok(())
                    });
                    stored.map_err(|trouble| (thread, trouble))
                })
            }
            Memory::Buffer(number) | Memory::Shared(number) => {
                let (words, clock) = match memory {
                    Memory::Shared(_) => (&mut self.shared[number as usize], self.clock.alone()),
                    _ => (&mut *self.buffers[number as usize], self.clock),
                };
                each(active, self.threads, |thread| {
                    let (index, value) = operands(thread);
                    words.store(index, value, thread, &clock).map_err(|trouble| (thread, trouble))?;
                    words.give(index, None);
                    Ok(())
                })
            }
            Memory::Own(number) => {
                let own = &mut self.own[number as usize];
                each(active, self.threads, |thread| {
                    let (index, value) = operands(thread);
                    own.store(index, value, thread).map_err(|trouble| (thread, trouble))
                })
            }
        };
        result.map_err(|trouble| self.halt(memory, (index, 0), Access::Write, trouble))
    }

    /// What a thread did wrong with the element so many after an index, by name.
    fn halt(
        &self,
        memory: Memory,
        (index, after): (usize, u32),
        now: Access,
        (thread, trouble): (u16, Trouble),
    ) -> Halt {
        let index = self.slots[index][usize::from(thread)].saturating_add(after);
        let name = memory_name(&self.program.kernel, memory);
        let len = match memory {
            Memory::Buffer(number) => self.buffers[number as usize].len(),
            Memory::Shared(number) => self.program.kernel.shared[number as usize].len as usize,
            Memory::Part(number) => self.program.kernel.parts[number as usize].len as usize,
            Memory::Own(number) => self.program.kernel.own[number as usize].len as usize,
        };
        let wrong = match trouble {
            Trouble::Outside => Wrong::Outside { memory: name, index, len, access: now },
            Trouble::Unwritten => Wrong::Unwritten { memory: name, index },
            Trouble::Race { before, other } => {
                Wrong::Race { memory: name, index, before, other: other.map(u32::from), now }
            }
            Trouble::Groups { before, interval } => {
                Wrong::Groups { memory: name, index, before, other: self.group_of(interval), now }
            }
        };
        Halt { thread: thread.into(), wrong }
    }

    /// The workgroup that ran in an interval.
    fn group_of(&self, interval: u32) -> [u32; 3] {
        let number = self.starts.partition_point(|start| *start <= interval).saturating_sub(1) as u64;
        let [x, y] = [self.groups[0], self.groups[1]].map(|groups| u64::from(groups.max(1)));
        [number % x, number / x % y, number / x / y].map(|number| number as u32)
    }
}

/// The index in a shared array of an element of a part of it.
fn within(part: &Part, index: u32) -> Result<u32, Trouble> {
    if index < part.len { Ok(part.first + index) } else { Err(Trouble::Outside) }
}
