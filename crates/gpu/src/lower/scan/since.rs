//! Where the threads of a workgroup have to wait for each other, in a kernel while it is made.

use crate::lower::site::Site;

/// What threads did to shared memory since they last waited for each other.
#[derive(Default)]
pub(super) struct Since {
    accesses: Vec<Access>,
    /// How many of these, the first ones, came before the loop.
    before: usize,
    /// Whether weights were copied to shared memory, and threads have not waited for each other since.
    pub(super) copied: bool,
    /// What a loop's body begins with, until threads wait for the first time.
    first: Vec<Access>,
    /// Whether they did, in this loop's body.
    waited: bool,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) words: std::ops::Range<u32>,
    pub(super) write: bool,
    /// How elements are dealt to threads, where each thread only touches its own: the word that element 0 is, which the
    /// others follow, the elements of a row, and in which way. Otherwise threads touch each other's elements.
    pub(super) own: Option<(i64, (u32, Dealt))>,
    /// Whether it reads weights that were copied before the loop.
    pub(super) copied: bool,
}

/// How the elements of all rows are dealt to threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dealt {
    /// One after the other, each to the next thread.
    OneByOne,
    /// A thread takes the same element of several rows.
    ByRows,
    /// Several threads work on one element, and the first of them writes it.
    OverLanes,
}

impl Access {
    /// Whether two of them are of one word and of different threads, of which there are so many, and one of them writes.
    fn clashes(&self, other: &Access, threads: u32) -> bool {
        let overlap = self.words.start < other.words.end && other.words.start < self.words.end;
        let same = match (self.own, other.own) {
            // Element after element, each is the next thread's, whatever a row is.
            (Some((from, (_, Dealt::OneByOne))), Some((other, (_, Dealt::OneByOne)))) => {
                (from - other) % i64::from(threads) == 0
            }
            (Some(own), Some(other)) => own == other,
            _ => false,
        };
        (self.write || other.write) && overlap && !same
    }
}

fn clash(some: &[Access], others: &[Access], threads: u32) -> bool {
    some.iter().any(|a| others.iter().any(|b| a.clashes(b, threads)))
}

impl Since {
    /// Makes the threads wait if one of these accesses meets an earlier one of another thread. For weights alone they wait
    /// before the loop, and not in each round of it.
    pub(super) fn meet(&mut self, site: &mut Site<'_>, now: &[Access]) {
        if clash(now, &self.accesses, site.maker.threads()) {
            self.wait(site);
        } else if self.copied && now.iter().any(|access| access.copied) {
            site.maker.barrier_before_loop();
            self.accesses.drain(..self.before);
            (self.before, self.copied) = (0, false);
        }
        if !self.waited {
            self.first.extend(now.iter().cloned());
        }
        self.accesses.extend(now.iter().cloned());
    }

    pub(super) fn wait(&mut self, site: &mut Site<'_>) {
        site.maker.barrier();
        self.accesses.clear();
        (self.before, self.copied) = (0, false);
        self.waited = true;
    }

    /// The beginning of a loop. Gives what was done before it, for [`Since::end_loop`].
    pub(super) fn begin_loop(&mut self) -> Vec<Access> {
        (self.first, self.waited) = (vec![], false);
        self.before = self.accesses.len();
        self.accesses.clone()
    }

    /// The end of a loop's body: threads wait if what the body ends with meets what its next round begins with.
    pub(super) fn end_round(&mut self, site: &mut Site<'_>) {
        if clash(&self.accesses, &self.first, site.maker.threads()) {
            self.wait(site);
        }
    }

    /// After a loop, which may not have gone round at all, or never have waited.
    pub(super) fn end_loop(&mut self, before: Vec<Access>) {
        self.accesses.extend(before);
    }
}
