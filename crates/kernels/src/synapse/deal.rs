//! How synapses are dealt to lanes for batch-first values, where destinations fill the lanes.
//!
//! The destinations whose results fill one register are a block. The synapses of a destination are evaluated in its own
//! lane, one after the other. A group that holds fewer destinations than there are lanes gives several lanes to each,
//! whose sums are added up at the end by rotating the register.
//!
//! If some destinations of a block have many more synapses than others, the other lanes would be idle meanwhile. So what
//! is beyond the usual length, or reads values that lie far from the others, can go to a group that a few blocks share:
//! its lanes are given to whichever destinations need them, and each destination then picks up the sums of its own.
//!
//! All ways to do this are compared by an estimate of their cycles when synapses are packed.

use super::Record;
use crate::changing::Table;
use crate::tuning::Tuning;
use std::ops::Range;

/// The most places that one synapse may take in a table (see [`places`]): each further place halves its weight.
const MOST_PLACES: usize = 64;
/// The most rounds of a shared group, and the most blocks that share it.
const MOST_SHARED: usize = 16;
const MOST_BLOCKS: usize = 4;
/// The most blocks of a network that are searched for ways to share: each takes some kilobytes meanwhile.
const MOST_SEARCHED: usize = 4096;

/// The registers that values are looked up in: how many lanes each has, and how many a lookup takes at most.
#[derive(Clone, Copy)]
pub(super) struct Lookup {
    lanes: usize,
    most: usize,
    costs: Costs,
}

/// Assumed cycles, by which ways to deal are compared.
#[derive(Clone, Copy)]
struct Costs {
    /// Evaluating one register, by how many registers its values are looked up in; 0 stands for a gather.
    round: [usize; 5],
    /// A group, beyond its rounds.
    group: usize,
    /// Moving sums to their destinations, once.
    piece: usize,
}

impl Lookup {
    pub(super) fn new(lanes: usize, most: usize, tuning: &Tuning) -> Lookup {
        let costs = Costs {
            round: tuning.synapse_round_cycles(),
            group: tuning.synapse_group_cycles(),
            piece: tuning.synapse_piece_cycles(),
        };
        Lookup { lanes, most, costs }
    }
}

/// Sixteen floats that begin a cache line, so that no whole register of a table crosses two lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([f32; 16]);

/// Evaluations of whole registers that belong together: `slots` of them, one after the other.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// How many destinations it has, a power of two: lane i belongs to destination i modulo this. The lane of the first
    /// destination in its block is a multiple of it.
    pub(super) width: usize,
    /// How many evaluations each lane makes.
    pub(super) slots: usize,
    /// The first source of those that are loaded into registers to look values up in; indices count from it.
    pub(super) base: usize,
    /// How many registers these are; 0 if values are gathered from memory instead.
    pub(super) registers: usize,
    /// Of three registers or more: how many evaluations, the first ones, find their values in two of them, which takes fewer
    /// instructions; their indices count from the first of these two.
    pub(super) near_slots: usize,
    /// Which of the registers is the first of these two.
    pub(super) near: usize,
    /// Where its tables begin, in floats: for each slot a register of indices, of scales, of shifts, and of each weight.
    pub(super) at: usize,
    /// Where the mask of those lanes begins that results are taken from: those of its destinations that have synapses.
    pub(super) mask: usize,
}

/// The destinations whose results fill one register.
#[derive(PartialEq, Eq)]
pub(super) struct Block {
    /// The first of them.
    pub(super) first: usize,
    /// The group that this block shares with those after it, if it is the first of them: it is evaluated now.
    pub(super) shared: Option<usize>,
    /// How often its destinations pick up a sum from the lanes of the shared group.
    pub(super) pieces: usize,
    /// Where the tables for that begin: for each time, the lane that each destination takes from, and a mask of the
    /// destinations that take one.
    pub(super) at: usize,
    /// Its own groups, by number.
    pub(super) groups: Range<usize>,
}

/// All synapses on lanes.
#[derive(Default)]
pub(super) struct Dealt {
    /// Blocks whose results are the sources of synapses come first: where results are read again at once, as in a ratio
    /// that is taken several times, that can begin before all blocks are done.
    pub(super) blocks: Vec<Block>,
    pub(super) groups: Vec<Group>,
    pub(super) tables: Table<Line>,
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
    // Picking up sums from other lanes is only cheap on machines where looking values up in registers is.
    let ways: Vec<Vec<Ways>> = if table.most > 0 && blocks.len() <= MOST_SEARCHED {
        blocks.iter().map(|lists| ways(lists, table)).collect()
    } else {
        vec![]
    };
    // Blocks that share a group are a cluster. best[i] is about the first i blocks: the least cost, how many blocks the
    // last cluster has, and what these share.
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
        .collect::<Vec<_>>()
        .into();
    dealt
}

impl Lookup {
    /// The registers of sources that hold the values of all these synapses: the first source, and how many registers; none
    /// if that would be too many.
    fn window<'a>(&self, records: impl IntoIterator<Item = &'a Record>) -> (usize, usize) {
        let ends = |(l, h): (u32, u32), r: &Record| (l.min(r.source), h.max(r.source));
        let (low, high) = records.into_iter().fold((u32::MAX, 0), ends);
        // Aligned like the registers that the call before this one wrote: a load of parts of two stores waits for both.
        let base = low as usize / self.lanes * self.lanes;
        let span = (high as usize + 1).saturating_sub(base);
        match (1..=self.most).find(|n| span <= n * self.lanes) {
            Some(registers) => (base, registers),
            None => (0, 0),
        }
    }
}

/// A block's destinations in groups of its own, none of them shared.
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
    let whole = if stretched { usize::MAX } else { slots * table.costs.round[registers] + table.costs.group };
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

/// The synapses that a block with a share of a shared group keeps in its own groups: for each destination, a number of
/// those whose sources are near.
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

/// How some blocks share a group.
struct Sharing {
    cost: usize,
    slots: usize,
    /// What each block keeps to itself; `None` if it does not take part.
    kept: Vec<Option<Kept>>,
}

/// The best way for blocks to share a group, if they can. `ways` are those of each block, by the slots of the shared group,
/// and then by how many of its lanes the block takes.
fn share(blocks: &[&[&[Record]]], cuts: &[Cut], ways: &[Vec<Ways>], table: Lookup) -> Option<Sharing> {
    let (_, registers) = table.window(blocks.iter().copied().flatten().copied().flatten());
    let mut best: Option<Sharing> = None;
    for slots in 1..=MOST_SHARED {
        let way = |b: usize, taken: usize| match taken {
            0 => Some((cuts[b].cost, None)),
            n => ways[b][slots - 1][n - 1].as_ref().map(|(cost, kept)| (*cost, Some(kept))),
        };
        // For each block and each number of lanes taken so far: the least cost, and how many of these lanes the block takes.
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
        let cost = last[taken].0.saturating_add(slots * table.costs.round[registers] + table.costs.group);
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

/// By how many lanes a block takes of a shared group, from 1 on: the least cost of what the block keeps, and what that is.
type Ways = Vec<Option<(usize, Kept)>>;

/// The ways in which a block can take part in a shared group, by how many slots that group has.
fn ways(lists: &[&[Record]], table: Lookup) -> Vec<Ways> {
    let lanes = table.lanes;
    let mut best: Vec<Ways> = vec![vec![None; lanes]; MOST_SHARED];
    let mut registers_of: Vec<usize> = lists.iter().copied().flatten().map(|r| r.source as usize / lanes).collect();
    registers_of.sort_unstable();
    let within = |base: usize, n: usize| {
        registers_of.partition_point(|r| *r < base + n) - registers_of.partition_point(|r| *r < base)
    };
    for (registers, round) in table.costs.round.into_iter().enumerate().take(table.most + 1) {
        // So many registers in a row, chosen such that they hold the values of most synapses.
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
                let group = if first > 0 { table.costs.group } else { 0 };
                let cost = first * round + group + table.costs.piece * pieces;
                if best[taken - 1].as_ref().is_none_or(|(least, _)| cost < *least) {
                    best[taken - 1] = Some((cost, kept(first)));
                }
            }
        }
    }
    best
}

/// A list of synapses, spread over exactly `count` places of a table. A place must not be left empty: it would read some
/// value with a weight of 0, and if that value is NaN, so would be the sum. So synapses of the list are repeated, and each
/// repetition halves the weight of the place that it repeats.
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

/// Tables and groups, as far as they are written.
struct Tables {
    table: Lookup,
    sums: usize,
    floats: Vec<f32>,
    groups: Vec<Group>,
}

impl Tables {
    /// Writes the blocks of a cluster.
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

    /// Writes a group of the destinations of a range, which is repeated until all lanes are taken.
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

    /// Writes a group; `of` has the synapses of each lane, one for each slot.
    fn group(&mut self, width: usize, slots: usize, of: &[Vec<Record>], mask: usize) {
        let lanes = self.table.lanes;
        let (base, registers) = self.table.window(of.iter().flatten());
        // Two neighbours of the registers such that most slots need no others.
        let is_near = |near: usize, r: &&Record| (near..near + 2).contains(&((r.source as usize - base) / lanes));
        let slots_of = |near: usize| {
            let busy = of.iter().filter(|places| !places.is_empty());
            busy.map(|places| places.iter().filter(|r| is_near(near, r)).count()).min().unwrap_or(0)
        };
        let nears = (0..registers.saturating_sub(1)).filter(|_| registers > 2);
        let (near_slots, near) = nears.map(|near| (slots_of(near), near)).max().unwrap_or((0, 0));
        let row = lanes * (3 + self.sums);
        let first = self.room(slots * row);
        for (lane, places) in of.iter().enumerate() {
            let (mut ordered, far): (Vec<&Record>, Vec<&Record>) =
                places.iter().partition(|r| near_slots > 0 && is_near(near, r));
            ordered.extend(far);
            for (slot, place) in ordered.into_iter().enumerate() {
                let at = first + slot * row + lane;
                let from = if slot < near_slots { base + near * lanes } else { base };
                self.floats[at] = f32::from_bits(place.source - from as u32);
                self.floats[at + lanes] = place.scale;
                self.floats[at + 2 * lanes] = place.shift;
                for k in 0..self.sums {
                    self.floats[at + (3 + k) * lanes] = place.weights[k];
                }
            }
        }
        self.groups.push(Group { width, slots, base, registers, near_slots, near, at: first, mask });
    }
}
