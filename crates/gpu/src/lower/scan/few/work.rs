//! How the sums of a node are dealt to threads: which elements of a row a thread adds up, and which of their weights it keeps.

use super::order::{Task, When};
use super::values::{Piece, Pieces};
use crate::lower::scan::block::Block;
use crate::lower::scan::products::is_product_of_rows;
use crate::lower::synapses::Lists;
use schwann_core::graph::Node;
use schwann_core::op::Map;
use schwann_core::{DType, Op, Value};

/// Whether a node multiplies rows by a matrix.
pub(super) fn is_product(block: &Block, id: u32, node: &Node) -> bool {
    let graph = &block.body.body;
    let rank = |value: Value| graph.ty(value).shape.dims().len();
    let [a, b, ..] = node.inputs[..] else { return false };
    let ranks = [rank(a), rank(b), rank(Value { node: id, slot: 0 })];
    is_product_of_rows(&node.op, |i| block.body.row_axis(node.inputs[i]), ranks)
}

/// Four words that follow each other, of which some are elements of a factor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quad {
    /// The first one's place, from the beginning of a step's words.
    pub(super) at: u32,
    /// The number of the element that it is, and how many there are.
    pub(super) k: u32,
    pub(super) len: u32,
}

/// Products that the same threads compute at the same time with the same instructions, one after the other in the numbers of
/// threads: those of several layers, say.
#[derive(Clone, Debug)]
pub(super) struct Products {
    pub(super) parts: Vec<Part>,
    /// Threads that share a sum.
    pub(super) lanes: u32,
    /// Sums of an element: 3 of a gated cell.
    pub(super) heads: u32,
    /// Quads of each thread.
    pub(super) quads: u32,
    /// How many of them, the last ones, have their weights in shared memory, where registers do not suffice.
    pub(super) quads_shared: u32,
    /// Where these are there.
    pub(super) shared_at: u32,
}

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) id: u32,
    pub(super) level: u32,
    pub(super) units: u32,
    pub(super) quads: Vec<Quad>,
}

impl Products {
    pub(super) fn units(&self) -> u32 {
        self.parts.iter().map(|part| part.units).sum()
    }
    /// Words of weights that a thread keeps.
    pub(super) fn words(&self) -> u32 {
        self.heads * (self.quads - self.quads_shared) * 4 + self.heads
    }
    /// Words of weights in shared memory, of so many threads.
    pub(super) fn shared_words(&self, threads: u32) -> u32 {
        self.heads * self.quads_shared * 4 * threads
    }
    /// The same with other numbers of lanes.
    pub(super) fn over(mut self, lanes: u32) -> Products {
        let most = self.parts.iter().map(|part| part.quads.len() as u32).max().unwrap_or(0);
        (self.lanes, self.quads) = (lanes, most.div_ceil(lanes));
        self
    }
}

/// Sums over synapses: which threads have which destinations.
#[derive(Clone, Debug)]
pub(super) struct Synapses {
    pub(super) id: u32,
    pub(super) runs: Vec<Run>,
    /// Threads in all, a multiple of the most lanes.
    pub(super) threads: u32,
    /// Threads that have a destination.
    pub(super) used: u32,
    pub(super) lanes_most: u32,
    pub(super) destinations: u32,
    /// Synapses of each thread at most, and the least number that any destination's first thread has.
    pub(super) slots: u32,
    pub(super) slots_least: u32,
    pub(super) sums: u32,
    /// How often it is applied to its own result.
    pub(super) times: u32,
}

/// Destinations that follow each other, each with so many neighbouring threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) thread: u32,
    pub(super) destination: u32,
    pub(super) count: u32,
    pub(super) lanes: u32,
}

impl Synapses {
    /// Words of weights that a thread keeps: a source, a scale, a shift and a weight for each sum.
    pub(super) fn words(&self) -> u32 {
        self.slots * (3 + self.sums) + 4
    }

    /// Deals lists of these lengths to threads, `slots` synapses for each thread at most, if no more than `lanes` are needed
    /// for that.
    fn deal(id: u32, degrees: &[u32], slots: u32, lanes: u32, sums: u32, times: u32) -> Option<Synapses> {
        let lanes_of = |degree: u32| degree.div_ceil(slots).max(1).next_power_of_two();
        let mut order: Vec<usize> = (0..degrees.len()).collect();
        // Those with most lanes first, so that all begin at multiples of their lanes; then those with the longest lists, so
        // that the threads of a warp have about as many.
        let key = |d: &usize| {
            let lanes = lanes_of(degrees[*d]);
            std::cmp::Reverse((lanes, degrees[*d].div_ceil(lanes)))
        };
        order.sort_by_key(key);
        let lanes_most = order.first().map_or(1, |d| lanes_of(degrees[*d]));
        if lanes_most > lanes {
            return None;
        }
        let mut runs: Vec<Run> = vec![];
        let mut thread = 0;
        for d in &order {
            let lanes = lanes_of(degrees[*d]);
            match runs.last_mut() {
                Some(run) if run.lanes == lanes && run.destination + run.count == *d as u32 => run.count += 1,
                _ => runs.push(Run { thread, destination: *d as u32, count: 1, lanes }),
            }
            thread += lanes;
        }
        let per_thread = |d: &usize| degrees[*d].div_ceil(lanes_of(degrees[*d]));
        let slots = order.iter().map(per_thread).max().unwrap_or(0);
        // A thread's share may be one less than that of the first lane.
        let least = |d: &usize| degrees[*d] / lanes_of(degrees[*d]);
        let slots_least = order.iter().map(least).min().unwrap_or(0);
        Some(Synapses {
            id,
            runs,
            threads: thread.next_multiple_of(lanes_most),
            used: thread,
            lanes_most,
            destinations: degrees.len() as u32,
            slots,
            slots_least,
            sums,
            times,
        })
    }

    /// The best way of dealing: by the cycles that a sum takes. A synapse takes some ten in its thread, and eight of its
    /// warp's part of the core; each doubling of lanes takes an exchange and an addition.
    pub(super) fn best(id: u32, lists: &Lists, op: &Op, lanes: u32, threads: u32) -> Option<Synapses> {
        let (sums, times) = match op {
            Op::SynapseSum { sums, .. } => (*sums as u32, 1),
            Op::SynapseRatio { times, .. } => (2, *times as u32),
            _ => return None,
        };
        let degrees = lists.degrees.as_deref()?;
        let cost = |way: &Synapses| {
            let warps = way.threads.div_ceil(32);
            way.slots * 10 + way.lanes_most.ilog2() * 36 + warps.div_ceil(4) * way.slots * 9
        };
        let ways = (1..=24u32).filter_map(|slots| Synapses::deal(id, degrees, slots, lanes, sums, times));
        ways.filter(|way| way.threads <= threads && way.destinations > 0).min_by_key(cost)
    }
}

/// What a node's elements take.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Products(Products),
    Synapses(Synapses),
    /// Element by element, by the code that serves all kernels.
    Elements(u32),
}

/// What is done at one time: between two waits.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) when: When,
    pub(super) works: Vec<Work>,
}

/// What products must have in common so that the same instructions compute them.
#[derive(PartialEq)]
enum Alike<'a> {
    Gate,
    Map(&'a Map, DType),
    Sum,
}

/// What comes after the sums of a product, if that needs no other rows.
fn alike<'a>(block: &Block, node: &'a Node) -> Option<Alike<'a>> {
    match &node.op {
        Op::GatedCell { .. } => Some(Alike::Gate),
        Op::MatMul { .. } => Some(Alike::Sum),
        Op::MatMulMap { map, dtype, .. } => {
            let rowless = node.inputs[2..].iter().all(|value| block.body.row_axis(*value).is_none());
            rowless.then_some(Alike::Map(map, *dtype))
        }
        _ => None,
    }
}

/// What the planning of stages needs to know.
pub(super) struct Dealing<'a> {
    pub(super) block: &'a Block,
    pub(super) pieces: &'a Pieces,
    /// The first word of a piece, as a task of some level sees it.
    pub(super) word: &'a dyn Fn(&Piece, u32) -> u32,
    pub(super) lists: &'a dyn Fn(u32) -> Option<&'a Lists>,
    pub(super) lanes: u32,
    /// Threads that a workgroup should have.
    pub(super) threads: u32,
}

impl Dealing<'_> {
    /// The tasks as stages, in order.
    pub(super) fn stages(&self, tasks: &[Task]) -> Vec<Stage> {
        let mut stages: Vec<Stage> = vec![];
        for when in [When::Ahead, When::Chain, When::Behind] {
            let of = |task: &&Task| task.when == when;
            let phases = tasks.iter().filter(of).map(|task| task.phase + 1).max().unwrap_or(0);
            for phase in 0..phases {
                let now: Vec<&Task> = tasks.iter().filter(of).filter(|task| task.phase == phase).collect();
                stages.push(Stage { when, works: self.works(&now, when) });
            }
        }
        stages
    }

    fn works(&self, tasks: &[&Task], when: When) -> Vec<Work> {
        let graph = &self.block.body.body;
        let mut works: Vec<Work> = vec![];
        for task in tasks {
            let node = &graph.nodes()[task.id as usize];
            if is_product(self.block, task.id, node) {
                let part = self.part(task, node);
                let like = alike(self.block, node);
                let same = |work: &Work| match work {
                    Work::Products(products) => {
                        let first = &graph.nodes()[products.parts[0].id as usize];
                        when == When::Chain && like.is_some() && alike(self.block, first) == like
                    }
                    _ => false,
                };
                let heads = if matches!(node.op, Op::GatedCell { .. }) { 3 } else { 1 };
                match works.iter_mut().find(|work| same(work)) {
                    Some(Work::Products(products)) => products.parts.push(part),
                    _ => works.push(Work::Products(Products {
                        parts: vec![part],
                        lanes: 1,
                        heads,
                        quads: 0,
                        quads_shared: 0,
                        shared_at: 0,
                    })),
                }
                continue;
            }
            let synapses = (self.lists)(task.id)
                .filter(|_| self.pieces.get(node.inputs[0]).len() == 1)
                .and_then(|lists| Synapses::best(task.id, lists, &node.op, self.lanes.min(16), self.threads.max(256)));
            works.push(match synapses {
                Some(synapses) => Work::Synapses(synapses),
                None => Work::Elements(task.id),
            });
        }
        let lanes = |products: Products| {
            let units = products.units();
            let mut lanes = 1;
            while lanes * 2 <= self.lanes.min(16) && units * lanes * 2 <= self.threads {
                lanes *= 2;
            }
            products.over(lanes)
        };
        let dealt = works.into_iter().map(|work| match work {
            Work::Products(products) => Work::Products(lanes(products)),
            other => other,
        });
        dealt.collect()
    }

    fn part(&self, task: &Task, node: &Node) -> Part {
        let value = Value { node: task.id, slot: 0 };
        let (mut quads, mut k) = (vec![], 0);
        for piece in self.pieces.get(node.inputs[0]) {
            let at = (self.word)(piece, task.level);
            for from in (0..piece.len).step_by(4) {
                let len = (piece.len - from).min(4);
                quads.push(Quad { at: at + from, k: k + from, len });
            }
            k += piece.len;
        }
        Part { id: task.id, level: task.level, units: self.block.widths[&value], quads }
    }
}
