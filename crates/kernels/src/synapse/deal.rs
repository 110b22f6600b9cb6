//! How synapses are dealt to lanes, where lanes are destinations.
//!
//! The results of one register are a block. A destination's synapses take its own lane, or, where there are fewer
//! destinations than lanes, several that are added up by rotating. Lists of unequal length would leave lanes idle, so what
//! is beyond the usual length, or reads far away values, may share one group of lanes among some blocks: these lanes are
//! given out as they are needed, and each destination takes the sums of its own from there.

use super::Record;
use std::ops::Range;

/// Cycles of a round by the registers that its values are looked up in, 0 for a gather; of a group beyond its rounds; and
/// of moving sums to their destinations once. They only choose between ways to deal. Rounds in two to four registers were
/// measured on Zen 4, the others are estimates.
const ROUND: [usize; 5] = [30, 12, 12, 14, 15];
const GROUP: usize = 24;
const PIECE: usize = 4;
/// A synapse may take so many places in a table at most; each one more halves its weight.
const MOST_PLACES: usize = 64;
/// The most rounds of a shared group, and the most blocks that share it.
const MOST_SHARED: usize = 16;
const MOST_BLOCKS: usize = 4;
/// The most blocks of a network that are searched for ways to share: each takes some kilobytes meanwhile.
const MOST_SEARCHED: usize = 4096;

/// How values are looked up: in registers of so many lanes, and at most so many of them.
#[derive(Clone, Copy)]
pub(super) struct Lookup {
    pub(super) lanes: usize,
    pub(super) most: usize,
}

/// Floats that begin a cache line, as every whole register of them then does.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([f32; 16]);

/// Rounds of evaluations.
#[derive(Clone)]
pub(super) struct Group {
    /// How many destinations the lanes hold, again and again; a power of two. The first one's lane is a multiple of it.
    pub(super) width: usize,
    /// Evaluations a lane.
    pub(super) slots: usize,
    /// The first source that a table in registers holds; indices count from it.
    pub(super) base: usize,
    /// Registers of that table, 0 where values are gathered from memory.
    pub(super) registers: usize,
    /// Where the tables are: for each slot indices, scales, shifts and the weights.
    pub(super) at: usize,
    /// Where the mask of the destinations' own lanes is, set if they have synapses.
    pub(super) mask: usize,
}

/// The destinations of one register.
pub(super) struct Block {
    /// The first of them.
    pub(super) first: usize,
    /// The group of lanes that this block and some that follow share.
    pub(super) shared: Option<usize>,
    /// How often it takes from the lanes that are shared, and where the tables for that are: the lane that each destination
    /// takes, and a mask of those that take one.
    pub(super) pieces: usize,
    pub(super) at: usize,
    /// Its own groups.
    pub(super) groups: Range<usize>,
}

/// All synapses on lanes.
#[derive(Default)]
pub(super) struct Dealt {
    /// Those that synapses read come first: what reads the results can begin before all of them are there.
    pub(super) blocks: Vec<Block>,
    pub(super) groups: Vec<Group>,
    pub(super) tables: Vec<Line>,
}

impl Dealt {
    pub(super) fn bytes(&self) -> usize {
        self.tables.len() * size_of::<Line>()
    }
}

/// Deals each destination's list.
pub(super) fn deal(all: &[&[Record]], sources: usize, sums: usize, table: Lookup) -> Dealt {
    let lanes = table.lanes;
    let mut padded = all.to_vec();
    padded.resize(all.len().next_multiple_of(lanes), &[]);
    let blocks: Vec<&[&[Record]]> = padded.chunks(lanes).collect();
    let cuts: Vec<Cut> = blocks.iter().map(|lists| cut(lists, 0..lanes, table)).collect();
    // Moving sums between lanes is cheap where looking values up is.
    let ways: Vec<Vec<Ways>> = if table.most > 0 && blocks.len() <= MOST_SEARCHED {
        blocks.iter().map(|lists| ways(lists, table)).collect()
    } else {
        vec![]
    };
    // best[i]: the least cost of the first i blocks, how many the last of their clusters has, and what it shares.
    let mut best: Vec<(usize, usize, Option<Sharing>)> = vec![(0, 0, None)];
    for i in 0..blocks.len() {
        let mut least = (best[i].0.saturating_add(cuts[i].cost), 1, None);
        for n in 1..=MOST_BLOCKS.min(i + 1).min(ways.len()) {
            let from = i + 1 - n;
            if let Some(sharing) = share(&blocks[from..=i], &cuts[from..=i], &ways[from..=i], table) {
                let cost = best[from].0.saturating_add(sharing.cost);
                if cost < least.0 {
                    least = (cost, n, Some(sharing));
                }
            }
        }
        best.push(least);
    }
    let mut read = vec![false; padded.len().max(sources)];
    all.iter().copied().flatten().for_each(|r| read[r.source as usize] = true);
    let mut clusters = vec![];
    let mut end = blocks.len();
    while let Some((_, n, sharing)) = best.pop().filter(|b| b.1 > 0) {
        let own = end - n..end;
        let awaited = read[own.start * lanes..own.end * lanes].contains(&true);
        clusters.push((!awaited, own, sharing));
        best.truncate(end - n + 1);
        end -= n;
    }
    clusters.sort_by_key(|(last, own, _)| (*last, own.start));
    let mut tables = Tables { table, sums, floats: vec![], groups: vec![] };
    let mut dealt = Dealt::default();
    for (_, own, sharing) in clusters {
        dealt.blocks.extend(tables.cluster(&blocks, &cuts, own, sharing));
    }
    dealt.groups = tables.groups;
    dealt.tables = tables
        .floats
        .chunks(16)
        .map(|chunk| {
            let mut line = Line([0.0; 16]);
            line.0[..chunk.len()].copy_from_slice(chunk);
            line
        })
        .collect();
    dealt
}

impl Lookup {
    /// The first source that a table in registers must hold for these synapses, and its registers; 0 if none can.
    fn window<'a>(&self, records: impl IntoIterator<Item = &'a Record>) -> (usize, usize) {
        let ends = |(l, h): (u32, u32), r: &Record| (l.min(r.source), h.max(r.source));
        let (low, high) = records.into_iter().fold((u32::MAX, 0), ends);
        // Whole registers, as a call before this one wrote them: a load that takes parts of two waits for both.
        let base = low as usize / self.lanes * self.lanes;
        let span = (high as usize + 1).saturating_sub(base);
        match (1..=self.most).find(|n| span <= n * self.lanes) {
            Some(registers) => (base, registers),
            None => (0, 0),
        }
    }
}

/// A block's destinations in groups of their own.
struct Cut {
    cost: usize,
    ranges: Vec<Range<usize>>,
}

/// The best way to cut a range of destinations, a power of two of them.
fn cut(lists: &[&[Record]], range: Range<usize>, table: Lookup) -> Cut {
    let (width, own) = (range.len(), &lists[range.clone()]);
    let most = own.iter().map(|l| l.len()).max().unwrap_or(0);
    if most == 0 {
        return Cut { cost: 0, ranges: vec![] };
    }
    let repeats = table.lanes / width;
    let slots = most.div_ceil(repeats);
    let stretched = own.iter().any(|l| !l.is_empty() && repeats * slots > MOST_PLACES * l.len());
    let (_, registers) = table.window(own.iter().copied().flatten());
    let whole = if stretched { usize::MAX } else { slots * ROUND[registers] + GROUP };
    if width == 1 {
        return Cut { cost: whole, ranges: vec![range] };
    }
    let middle = range.start + width / 2;
    let (left, right) = (cut(lists, range.start..middle, table), cut(lists, middle..range.end, table));
    let halves = left.cost.saturating_add(right.cost);
    match whole <= halves {
        true => Cut { cost: whole, ranges: vec![range] },
        false => Cut { cost: halves, ranges: [left.ranges, right.ranges].concat() },
    }
}

/// What a block that shares lanes keeps to itself: of each destination the first so many synapses from these sources.
#[derive(Clone)]
struct Kept {
    near: Range<usize>,
    first: usize,
}

impl Kept {
    fn takes(&self, record: &Record) -> bool {
        self.near.contains(&(record.source as usize))
    }

    /// A list's part of it, and the rest.
    fn split(&self, list: &[Record]) -> (Vec<Record>, Vec<Record>) {
        let (mut own, mut rest): (Vec<Record>, Vec<Record>) = list.iter().partition(|r| self.takes(r));
        rest.extend(own.drain(self.first.min(own.len())..));
        (own, rest)
    }
}

/// How blocks share a group.
struct Sharing {
    cost: usize,
    slots: usize,
    /// Of each block; `None` if it does not take part.
    kept: Vec<Option<Kept>>,
}

/// The best way for blocks to share lanes, if they can. `ways` are theirs, by slots and then by lanes taken.
fn share(blocks: &[&[&[Record]]], cuts: &[Cut], ways: &[Vec<Ways>], table: Lookup) -> Option<Sharing> {
    let (_, registers) = table.window(blocks.iter().copied().flatten().copied().flatten());
    let mut best: Option<Sharing> = None;
    for slots in 1..=MOST_SHARED {
        let way = |b: usize, taken: usize| match taken {
            0 => Some((cuts[b].cost, None)),
            n => ways[b][slots - 1][n - 1].as_ref().map(|(cost, kept)| (*cost, Some(kept))),
        };
        // After each block, by lanes taken so far: the least cost, and how many of the lanes are this block's.
        let mut stages: Vec<Vec<(usize, usize)>> = vec![];
        for b in 0..blocks.len() {
            let mut stage = vec![(usize::MAX, 0); table.lanes + 1];
            for before in 0..=table.lanes {
                let so_far = match stages.last() {
                    Some(stage) => stage[before].0,
                    None => {
                        if before == 0 {
                            0
                        } else {
                            usize::MAX
                        }
                    }
                };
                for own in 0..=table.lanes - before {
                    let Some((cost, _)) = way(b, own).filter(|_| so_far < usize::MAX) else { continue };
                    let place = &mut stage[before + own];
                    *place = (*place).min((so_far.saturating_add(cost), own));
                }
            }
            stages.push(stage);
        }
        let last = stages.last()?;
        let Some(mut taken) = (1..=table.lanes).min_by_key(|n| last[*n].0).filter(|n| last[*n].0 < usize::MAX) else {
            continue;
        };
        let cost = last[taken].0.saturating_add(slots * ROUND[registers] + GROUP);
        if best.as_ref().is_none_or(|b| cost < b.cost) {
            let mut kept = vec![];
            for (b, stage) in stages.iter().enumerate().rev() {
                let own = stage[taken].1;
                kept.push(way(b, own).and_then(|(_, kept)| kept.cloned()));
                taken -= own;
            }
            kept.reverse();
            best = Some(Sharing { cost, slots, kept });
        }
    }
    best
}

/// By lanes that a block takes of those that are shared, from 1 on: the least that it costs besides, and what it keeps.
type Ways = Vec<Option<(usize, Kept)>>;

/// A block's ways to take part, by slots of the group that is shared.
fn ways(lists: &[&[Record]], table: Lookup) -> Vec<Ways> {
    let lanes = table.lanes;
    let mut best: Vec<Ways> = vec![vec![None; lanes]; MOST_SHARED];
    let mut registers_of: Vec<usize> = lists.iter().copied().flatten().map(|r| r.source as usize / lanes).collect();
    registers_of.sort_unstable();
    let within = |base: usize, n: usize| {
        registers_of.partition_point(|r| *r < base + n) - registers_of.partition_point(|r| *r < base)
    };
    for (registers, round) in ROUND.into_iter().enumerate().take(table.most + 1) {
        // The registers that hold most of what is read.
        let Some(base) = registers_of.iter().copied().max_by_key(|base| within(*base, registers)) else { break };
        let near = base * lanes..(base + registers) * lanes;
        let kept = |first: usize| Kept { near: near.clone(), first };
        let counts: Vec<(usize, usize)> =
            lists.iter().map(|l| (l.iter().filter(|r| kept(0).takes(r)).count(), l.len())).collect();
        let longest = counts.iter().map(|c| c.0).max().unwrap_or(0);
        let shortest = counts.iter().map(|c| c.0).filter(|n| *n > 0).min().unwrap_or(0);
        for first in usize::from(registers > 0)..=longest.min(MOST_PLACES * shortest) {
            for (slots, best) in (1..).zip(&mut best) {
                let rest = counts.iter().map(|(near, all)| (all - near.min(&first)).div_ceil(slots));
                let (taken, pieces) = (rest.clone().sum::<usize>(), rest.max().unwrap_or(0));
                if taken == 0 || taken > lanes {
                    continue;
                }
                let cost = first * round + if first > 0 { GROUP } else { 0 } + PIECE * pieces;
                if best[taken - 1].as_ref().is_none_or(|(least, _)| cost < *least) {
                    best[taken - 1] = Some((cost, kept(first)));
                }
            }
        }
    }
    best
}

/// A list on so many places. Every one must be taken, and a value that the destination does not read must not reach it
/// (it may be NaN): its own synapses are repeated, each with half of what was left of its weight.
fn places(list: &[Record], count: usize) -> Vec<Record> {
    let mut places = list.to_vec();
    if list.is_empty() {
        return places;
    }
    for n in 0..count - list.len() {
        let split = &mut places[n % list.len()];
        split.weights = split.weights.map(|w| w * 0.5);
        let half = *split;
        places.push(half);
    }
    places
}

/// Tables as they are written.
struct Tables {
    table: Lookup,
    sums: usize,
    floats: Vec<f32>,
    groups: Vec<Group>,
}

impl Tables {
    /// The blocks of a cluster.
    fn cluster(
        &mut self,
        blocks: &[&[&[Record]]],
        cuts: &[Cut],
        own: Range<usize>,
        sharing: Option<Sharing>,
    ) -> Vec<Block> {
        let lanes = self.table.lanes;
        let mut shared: Vec<Vec<Record>> = vec![];
        let mut made: Vec<Block> = vec![];
        for b in own.clone() {
            let kept = sharing.as_ref().and_then(|s| Some((s.slots, s.kept[b - own.start].as_ref()?)));
            let start = self.groups.len();
            let mut pieces: Vec<Range<usize>> = vec![];
            match kept {
                None => cuts[b].ranges.iter().for_each(|range| self.repeated(blocks[b], range.clone())),
                Some((slots, kept)) => {
                    let (main, rest): (Vec<_>, Vec<_>) = blocks[b].iter().map(|l| kept.split(l)).unzip();
                    for list in &rest {
                        let needed = list.len().div_ceil(slots);
                        pieces.push(shared.len()..shared.len() + needed);
                        shared.extend(places(list, needed * slots).chunks(slots).map(<[Record]>::to_vec));
                    }
                    if main.iter().any(|l| !l.is_empty()) {
                        let main: Vec<&[Record]> = main.iter().map(Vec::as_slice).collect();
                        self.repeated(&main, 0..lanes);
                    }
                }
            }
            let most = pieces.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
            let at = self.room(2 * most * lanes);
            for (d, own) in pieces.into_iter().enumerate() {
                for (n, lane) in own.enumerate() {
                    self.floats[at + 2 * n * lanes + d] = f32::from_bits(lane as u32);
                    self.floats[at + (2 * n + 1) * lanes + d] = f32::from_bits(u32::MAX);
                }
            }
            let groups = start..self.groups.len();
            made.push(Block { first: b * lanes, shared: None, pieces: most, at, groups });
        }
        if let (Some(sharing), Some(first)) = (sharing, made.first_mut()) {
            shared.resize(lanes, vec![]);
            first.shared = Some(self.groups.len());
            self.group(lanes, sharing.slots, &shared, 0);
        }
        made
    }

    fn room(&mut self, floats: usize) -> usize {
        let at = self.floats.len();
        self.floats.resize(at + floats, 0.0);
        at
    }

    /// Destinations of a range, again and again until all lanes are taken.
    fn repeated(&mut self, lists: &[&[Record]], range: Range<usize>) {
        let (width, repeats) = (range.len(), lists.len() / range.len());
        let slots = lists[range.clone()].iter().map(|l| l.len()).max().unwrap_or(0).div_ceil(repeats);
        let mut lanes = vec![Vec::new(); lists.len()];
        let mask = self.room(lists.len());
        for (i, d) in range.enumerate() {
            for (n, place) in places(lists[d], repeats * slots).into_iter().enumerate() {
                lanes[n % repeats * width + i].push(place);
            }
            if !lists[d].is_empty() {
                self.floats[mask + d] = f32::from_bits(u32::MAX);
            }
        }
        self.group(width, slots, &lanes, mask);
    }

    /// A group whose lanes have these synapses, one a slot.
    fn group(&mut self, width: usize, slots: usize, of: &[Vec<Record>], mask: usize) {
        let lanes = self.table.lanes;
        let (base, registers) = self.table.window(of.iter().flatten());
        let row = lanes * (3 + self.sums);
        let first = self.room(slots * row);
        for (lane, places) in of.iter().enumerate() {
            for (slot, place) in places.iter().enumerate() {
                let at = first + slot * row + lane;
                self.floats[at] = f32::from_bits(place.source - base as u32);
                self.floats[at + lanes] = place.scale;
                self.floats[at + 2 * lanes] = place.shift;
                for k in 0..self.sums {
                    self.floats[at + (3 + k) * lanes] = place.weights[k];
                }
            }
        }
        self.groups.push(Group { width, slots, base, registers, at: first, mask });
    }
}
