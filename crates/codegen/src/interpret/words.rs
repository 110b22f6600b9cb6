//! Words that threads share: their values, whether they were written, and which thread accessed them when.
//!
//! Time is counted in intervals: one ends at each barrier and at the end of each workgroup, and the numbers go on from
//! run to run, so that nothing need be cleared between them. A word remembers the interval and the thread of its last
//! write and of its last read, and the interval in which a run first read it. That is enough to find every race. Each
//! write before the last one was by the same thread, or before a barrier, or was already found as a race. For reads in
//! this interval, the mark says whether one thread or several read the word. For reads by other workgroups, it is
//! enough to know the run's first read.

#[cfg(test)]
mod tests;

use super::finding::Access;
use std::ops::Range;
use thiserror::Error;

/// A buffer for [`super::Program::run`].
#[derive(Clone, Debug, Default)]
pub struct Words {
    values: Vec<u32>,
    /// For each word, whether it was written.
    known: Vec<bool>,
    /// The last accesses to each word; empty until a kernel that writes to the buffer runs.
    marks: Vec<Mark>,
    /// The latest interval that the marks may contain.
    last: u32,
}

/// A range beyond the end of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("words {} to {} of a buffer: expected a range within its {len} words", .range.start, .range.end)]
pub struct Outside {
    /// The range.
    pub range: Range<usize>,
    /// The buffer's words.
    pub len: usize,
}

impl Words {
    /// `len` words that hold nothing.
    pub fn new(len: usize) -> Words {
        Words { values: vec![0; len], known: vec![false; len], marks: vec![], last: 0 }
    }
    /// Words that hold these numbers.
    pub fn of(values: impl Into<Vec<u32>>) -> Words {
        let values = values.into();
        Words { known: vec![true; values.len()], values, marks: vec![], last: 0 }
    }
    /// Words that hold these floats.
    pub fn of_floats(values: &[f32]) -> Words {
        Words::of(values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>())
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
    /// All words; the values of words that hold nothing are unspecified.
    pub fn values(&self) -> &[u32] {
        &self.values
    }
    /// All words as floats; the values of words that hold nothing are unspecified.
    pub fn floats(&self) -> Vec<f32> {
        self.values.iter().map(|bits| f32::from_bits(*bits)).collect()
    }
    /// Whether a word holds something.
    pub fn is_known(&self, index: usize) -> bool {
        self.known.get(index).is_some_and(|known| *known)
    }
    /// The words of a range, if all of them hold something.
    pub fn get(&self, range: Range<usize>) -> Option<&[u32]> {
        let all = self.known.get(range.clone())?.iter().all(|known| *known);
        if all { self.values.get(range) } else { None }
    }
    /// Writes these values from `at` on, outside of all kernels.
    pub fn put(&mut self, at: usize, values: &[u32]) -> Result<(), Outside> {
        let range = self.range(at..at.saturating_add(values.len()))?;
        self.values[range.clone()].copy_from_slice(values);
        self.known[range].fill(true);
        Ok(())
    }
    /// Marks the words of a range as holding nothing, like memory that is reused for something else.
    pub fn forget(&mut self, range: Range<usize>) -> Result<(), Outside> {
        let range = self.range(range)?;
        self.known[range].fill(false);
        Ok(())
    }
    /// Changes how many there are. New ones hold nothing.
    pub fn resize(&mut self, len: usize) {
        self.values.resize(len, 0);
        self.known.resize(len, false);
        self.marks.truncate(len);
    }
    fn range(&self, range: Range<usize>) -> Result<Range<usize>, Outside> {
        let within = range.start <= range.end && range.end <= self.len();
        if within { Ok(range) } else { Err(Outside { range, len: self.len() }) }
    }

    /// Prepares for a kernel that writes to it.
    pub(super) fn watch(&mut self) {
        self.marks.resize(self.values.len(), Mark::default());
    }
    /// The last interval that it knows of.
    pub(super) fn last(&self) -> u32 {
        self.last
    }
    /// Says which interval was the last.
    pub(super) fn close(&mut self, last: u32) {
        self.last = last;
    }
    /// Restarts the count of intervals.
    pub(super) fn restart(&mut self) {
        self.marks.fill(Mark::default());
        self.last = 0;
    }
    /// Holds nothing any more.
    pub(super) fn clear(&mut self) {
        self.known.fill(false);
    }

    /// Reads a word of a buffer that no thread writes.
    pub(super) fn peek(&self, index: u32) -> Result<u32, Trouble> {
        let index = index as usize;
        match (self.values.get(index), self.known.get(index)) {
            (Some(value), Some(true)) => Ok(*value),
            (Some(_), _) => Err(Trouble::Unwritten),
            (None, _) => Err(Trouble::Outside),
        }
    }

    /// Reads a word.
    pub(super) fn load(&mut self, index: u32, thread: u16, clock: &Clock) -> Result<u32, Trouble> {
        let Some(mark) = self.marks.get_mut(index as usize) else { return Err(Trouble::Outside) };
        mark.meets_write(thread, clock)?;
        if mark.read == clock.now {
            if mark.reader != thread {
                mark.reader = SEVERAL;
            }
        } else {
            if mark.read < clock.run {
                mark.first_read = clock.now;
            }
            mark.read = clock.now;
            mark.reader = thread;
        }
        self.peek(index)
    }

    /// Writes a word.
    pub(super) fn store(&mut self, index: u32, value: u32, thread: u16, clock: &Clock) -> Result<(), Trouble> {
        let Some(mark) = self.marks.get_mut(index as usize) else { return Err(Trouble::Outside) };
        mark.meets_write(thread, clock)?;
        if mark.read >= clock.run {
            if mark.first_read < clock.group {
                return Err(Trouble::Groups { before: Access::Read, interval: mark.first_read });
            }
            if mark.read == clock.now && mark.reader != thread {
                let other = (mark.reader != SEVERAL).then_some(mark.reader);
                return Err(Trouble::Race { before: Access::Read, other });
            }
        }
        mark.wrote = clock.now;
        mark.writer = thread;
        self.values[index as usize] = value;
        self.known[index as usize] = true;
        Ok(())
    }

    /// Notes the part of the array, by number, that a word was written as an element of; none where it was the array's.
    pub(super) fn give(&mut self, index: u32, part: Option<u32>) {
        if let Some(mark) = self.marks.get_mut(index as usize) {
            mark.part = part.map_or(0, |part| part + 1);
        }
    }

    /// Whether the value of a word was written as an element of this part, or of the whole array. Parts may overlap, and what
    /// was written by way of another part does not belong to this one.
    pub(super) fn is_of(&self, index: u32, part: u32) -> bool {
        self.marks.get(index as usize).is_some_and(|mark| mark.part == 0 || mark.part == part + 1)
    }

    /// Sets a word of a buffer of faults, which any thread may set at any time.
    pub(super) fn fault(&mut self, index: u32) -> Result<(), Trouble> {
        let index = index as usize;
        *self.values.get_mut(index).ok_or(Trouble::Outside)? = 1;
        self.known[index] = true;
        Ok(())
    }
}

/// The current time, in intervals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// The first interval of the run; at least 1.
    pub(super) run: u32,
    /// The first interval of the workgroup.
    pub(super) group: u32,
    /// This interval.
    pub(super) now: u32,
}

impl Clock {
    /// The same for words that only this workgroup sees.
    pub(super) fn alone(self) -> Clock {
        Clock { run: self.group, ..self }
    }
}

/// What is wrong with an access; the caller, who knows the memory's name, makes a message of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    Outside,
    Unwritten,
    Race { before: Access, other: Option<u16> },
    Groups { before: Access, interval: u32 },
}

/// The reader of a word that several threads read in an interval.
const SEVERAL: u16 = u16::MAX;

/// The last accesses to a word. Interval 0 is before all runs.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// The interval of the last write.
    wrote: u32,
    /// The interval of the last read.
    read: u32,
    /// The interval of the first read in the run of the last read.
    first_read: u32,
    /// The thread of the last write.
    writer: u16,
    /// The thread of the reads in the interval of the last read, or [`SEVERAL`].
    reader: u16,
    /// The part of the array that the last write was to, its number plus 1; 0 for the whole.
    part: u32,
}

impl Mark {
    /// An error if the last write was by another thread or workgroup, with no barrier between it and this access.
    fn meets_write(&self, thread: u16, clock: &Clock) -> Result<(), Trouble> {
        if self.wrote == clock.now {
            if self.writer != thread {
                return Err(Trouble::Race { before: Access::Write, other: Some(self.writer) });
            }
        } else if self.wrote >= clock.run && self.wrote < clock.group {
            return Err(Trouble::Groups { before: Access::Write, interval: self.wrote });
        }
        Ok(())
    }
}

/// An array that each thread has for itself. Elements of the same index are stored side by side.
#[derive(Clone, Debug)]
pub(super) struct Own {
    values: Vec<u32>,
    known: Vec<bool>,
    threads: usize,
}

impl Own {
    pub(super) fn new(len: u32, threads: usize) -> Own {
        let size = len as usize * threads;
        Own { values: vec![0; size], known: vec![false; size], threads }
    }
    pub(super) fn clear(&mut self) {
        self.known.fill(false);
    }
    pub(super) fn load(&self, index: u32, thread: u16) -> Result<u32, Trouble> {
        let at = index as usize * self.threads + usize::from(thread);
        match (self.values.get(at), self.known.get(at)) {
            (Some(value), Some(true)) => Ok(*value),
            (Some(_), _) => Err(Trouble::Unwritten),
            (None, _) => Err(Trouble::Outside),
        }
    }
    pub(super) fn store(&mut self, index: u32, value: u32, thread: u16) -> Result<(), Trouble> {
        let at = index as usize * self.threads + usize::from(thread);
        *self.values.get_mut(at).ok_or(Trouble::Outside)? = value;
        self.known[at] = true;
        Ok(())
    }
}
