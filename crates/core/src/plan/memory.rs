//! Memory planning: a pure function from lifetimes to offsets in one arena.

use std::collections::{BTreeMap, BTreeSet};

/// Up to this many buffers, each is compared with every other, for three orders: that gives the smallest arena, in time
/// that grows with the square of their number.
const MOST_BY_PAIRS: usize = 1024;

/// The alignment of buffers: a cache line.
pub const ALIGN: usize = 64;

/// A buffer that is needed from step `first` to step `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Bytes.
    pub bytes: usize,
    /// The step that writes it first.
    pub first: usize,
    /// The last step that reads or writes it.
    pub last: usize,
}

impl Lifetime {
    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
    /// Its bytes, rounded up. Saturates where that overflows, as sums of sizes do below: the arena is then larger than
    /// any memory.
    fn size(&self) -> usize {
        self.bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX)
    }
}

/// Offsets for buffers such that none overlaps another that lives at the same time, and the arena's size.
///
/// Placing largest first at the lowest free offset is within a few percent of the lower bound on networks; two other
/// orders are tried, and the best of the three taken.
pub fn assign(lifetimes: &[Lifetime]) -> (Vec<usize>, usize) {
    if lifetimes.len() > MOST_BY_PAIRS {
        return place_in_time(lifetimes);
    }
    let all = || (0..lifetimes.len()).collect::<Vec<_>>();
    let span = |i: &usize| lifetimes[*i].last - lifetimes[*i].first;
    let mut by_size = all();
    by_size.sort_by_key(|i| (std::cmp::Reverse(lifetimes[*i].bytes), lifetimes[*i].first));
    let mut by_span = all();
    by_span.sort_by_key(|i| (std::cmp::Reverse(span(i)), std::cmp::Reverse(lifetimes[*i].bytes)));
    let mut by_area = all();
    by_area.sort_by_key(|i| std::cmp::Reverse((span(i) + 1).saturating_mul(lifetimes[*i].bytes)));
    let orders = [by_size, by_span, by_area];
    let placed = orders.iter().map(|order| place(lifetimes, order));
    placed.min_by_key(|(_, total)| *total).unwrap_or_default()
}

fn place(lifetimes: &[Lifetime], order: &[usize]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0usize; lifetimes.len()];
    let mut done: Vec<usize> = Vec::with_capacity(order.len());
    let mut total = 0;
    for &i in order {
        let mine = &lifetimes[i];
        if mine.bytes == 0 {
            continue;
        }
        // Buffers that live at the same time, by offset; then the first gap between them that is wide enough.
        let mut taken: Vec<(usize, usize)> = done
            .iter()
            .filter(|&&j| lifetimes[j].meets(mine))
            .map(|&j| (offsets[j], offsets[j].saturating_add(lifetimes[j].size())))
            .collect();
        taken.sort_unstable();
        let mut at = 0usize;
        for (start, end) in taken {
            if at.saturating_add(mine.size()) <= start {
                break;
            }
            at = at.max(end);
        }
        offsets[i] = at;
        total = total.max(at.saturating_add(mine.size()));
        done.push(i);
    }
    (offsets, total)
}

/// Offsets in nearly linear time: in the order of their first steps, each buffer takes the smallest free gap that is
/// wide enough.
fn place_in_time(lifetimes: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; lifetimes.len()];
    let mut by_first: Vec<usize> = (0..lifetimes.len()).filter(|i| lifetimes[*i].bytes > 0).collect();
    let mut by_last = by_first.clone();
    by_first.sort_by_key(|i| (lifetimes[*i].first, std::cmp::Reverse(lifetimes[*i].bytes)));
    by_last.sort_by_key(|i| lifetimes[*i].last);
    let mut ending = by_last.into_iter().peekable();
    // Gaps by their offset, and by their size.
    let mut gaps: BTreeMap<usize, usize> = BTreeMap::new();
    let mut sizes: BTreeSet<(usize, usize)> = BTreeSet::new();
    let mut total = 0usize;
    for i in by_first {
        let Lifetime { first, .. } = lifetimes[i];
        while let Some(old) = ending.next_if(|old| lifetimes[*old].last < first) {
            let (mut at, mut size) = (offsets[old], lifetimes[old].size());
            if let Some((&before, &length)) =
                gaps.range(..at).next_back().filter(|(before, length)| **before + **length == at)
            {
                gaps.remove(&before);
                sizes.remove(&(length, before));
                (at, size) = (before, size + length);
            }
            if let Some(length) = gaps.remove(&(at + size)) {
                sizes.remove(&(length, at + size));
                size += length;
            }
            gaps.insert(at, size);
            sizes.insert((size, at));
        }
        let want = lifetimes[i].size();
        match sizes.range((want, 0)..).next().copied() {
            Some((size, at)) => {
                sizes.remove(&(size, at));
                gaps.remove(&at);
                if size > want {
                    gaps.insert(at + want, size - want);
                    sizes.insert((size - want, at + want));
                }
                offsets[i] = at;
            }
            None => {
                offsets[i] = total;
                total = total.saturating_add(want);
            }
        }
    }
    (offsets, total)
}

/// The most bytes that live at one step: no arena can be smaller.
pub fn largest_live_set(lifetimes: &[Lifetime]) -> usize {
    let steps = lifetimes.iter().map(|l| l.last + 1).max().unwrap_or(0);
    let mut change = vec![0i128; steps + 1];
    for l in lifetimes {
        change[l.first] += l.size() as i128;
        change[l.last + 1] -= l.size() as i128;
    }
    let mut live = 0;
    let most = change.into_iter().map(|c| {
        live += c;
        live
    });
    most.max().map_or(0, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lifetimes() -> impl Strategy<Value = Vec<Lifetime>> {
        let one = (0usize..5000, 0usize..40, 0usize..12);
        prop::collection::vec(one, 0..60).prop_map(|v| {
            v.into_iter().map(|(bytes, first, span)| Lifetime { bytes, first, last: first + span }).collect()
        })
    }

    proptest! {
        #[test]
        fn live_buffers_never_overlap(l in lifetimes()) {
            let (offsets, total) = assign(&l);
            for i in 0..l.len() {
                prop_assert!(offsets[i] % ALIGN == 0 && offsets[i] + l[i].bytes <= total || l[i].bytes == 0);
                for j in 0..i {
                    let apart = offsets[i] + l[i].bytes <= offsets[j] || offsets[j] + l[j].bytes <= offsets[i];
                    prop_assert!(apart || !l[i].meets(&l[j]) || l[i].bytes == 0 || l[j].bytes == 0);
                }
            }
            prop_assert!(total >= largest_live_set(&l));
        }

        #[test]
        fn nor_do_those_of_very_many(l in lifetimes()) {
            let (offsets, total) = place_in_time(&l);
            for i in 0..l.len() {
                prop_assert!(offsets[i] % ALIGN == 0 && offsets[i] + l[i].bytes <= total || l[i].bytes == 0);
                for j in 0..i {
                    let apart = offsets[i] + l[i].bytes <= offsets[j] || offsets[j] + l[j].bytes <= offsets[i];
                    prop_assert!(apart || !l[i].meets(&l[j]) || l[i].bytes == 0 || l[j].bytes == 0);
                }
            }
        }
    }

    #[test]
    fn what_no_memory_holds_is_planned_as_such() {
        let live = |bytes: usize| Lifetime { bytes, first: 0, last: 1 };
        for buffers in
            [vec![live(usize::MAX)], vec![live(usize::MAX - 100), live(200), live(64)], vec![live(1 << 20); 3]]
        {
            let exact: u128 = buffers.iter().map(|l| (l.bytes as u128).next_multiple_of(ALIGN as u128)).sum();
            let most = usize::try_from(exact).unwrap_or(usize::MAX);
            assert_eq!((place_in_time(&buffers).1, largest_live_set(&buffers)), (most, most));
            assert_eq!(assign(&buffers).1, most);
        }
    }

    #[test]
    fn a_chain_of_equal_buffers_needs_two() {
        let chain: Vec<Lifetime> = (0..10).map(|i| Lifetime { bytes: 640, first: i, last: i + 1 }).collect();
        assert_eq!(assign(&chain).1, 1280);
        assert_eq!(largest_live_set(&chain), 1280);
    }
}
