//! The values that were asked for last, by key.

use std::collections::HashMap;
use std::hash::Hash;

/// Keeps a limited number of values. A new one replaces the one that was not asked for for the longest time.
pub(crate) struct Recent<K, V> {
    most: usize,
    kept: HashMap<K, (u64, V)>,
    /// Counts what is asked for, so that the latest has the largest number.
    asked: u64,
}

impl<K: Hash + Eq + Clone, V> Recent<K, V> {
    pub(crate) fn new(most: usize) -> Recent<K, V> {
        Recent { most, kept: HashMap::new(), asked: 0 }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        self.asked += 1;
        let (asked, value) = self.kept.get_mut(key)?;
        *asked = self.asked;
        Some(value)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.kept.len() >= self.most && !self.kept.contains_key(&key) {
            let oldest = self.kept.iter().min_by_key(|(_, (asked, _))| *asked).map(|(key, _)| key.clone());
            oldest.map(|key| self.kept.remove(&key));
        }
        self.asked += 1;
        self.kept.insert(key, (self.asked, value));
    }

    pub(crate) fn clear(&mut self) {
        self.kept.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_leave_one_at_a_time_and_the_one_longest_not_asked_for_first() {
        let mut recent = Recent::new(64);
        (0..64).for_each(|n| recent.insert(n, n));
        assert!(recent.get(&0).is_some(), "the first is asked for again, so the second is now the oldest");
        recent.insert(1000, 1000);
        recent.insert(1001, 1001);
        let there = |recent: &Recent<i32, i32>, n: i32| recent.kept.contains_key(&n);
        assert_eq!(recent.kept.len(), 64);
        assert!(!there(&recent, 1) && !there(&recent, 2), "two came, the two oldest went");
        assert!([0, 3, 63, 1000, 1001].into_iter().all(|n| there(&recent, n)));
        // Replacing a value that is already there removes no other.
        recent.insert(1000, 1000);
        assert!(recent.kept.len() == 64 && there(&recent, 3));
        assert!(recent.get(&1).is_none());
    }
}
