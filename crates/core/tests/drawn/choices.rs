//! Decisions that random graphs are made of.
#![allow(dead_code, reason = "each test uses a part")]

/// Decisions from a list that proptest can shrink: every 0 is the simplest choice, and after its end all are 0.
pub(crate) struct Choices<'a> {
    pub(crate) list: &'a [u16],
    pub(crate) at: usize,
}

impl Choices<'_> {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let choice = self.list.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        usize::from(choice) % n.max(1)
    }
    pub(crate) fn of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }
}
