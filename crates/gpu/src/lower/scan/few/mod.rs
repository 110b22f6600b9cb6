//! Loops of few rows: so few that the latency of a step decides how long a run takes, and not how much a core can compute.
//!
//! A workgroup takes one row. Its threads keep all weights of the chain in their registers, so a step reads only its row, from
//! the memory that the workgroup shares. What a step need not wait for is computed before or after some tens of steps, and
//! layers of a circuit work on several steps at the same time ([`order`]). Products and sums over synapses are dealt to threads
//! so that each has a short sum ([`work`]).
//!
//! The decision. A device that says how many registers a thread has can run this. It is chosen if
//!
//! * no form for many rows takes the loop: this one takes any number of them, a row after the other on each core, and on an H200 that
//!   is up to eight times faster than the form that all devices have;
//! * everything that has rows is in `f32`, and the body has a product or a sum over synapses in its chain;
//! * what a thread keeps and [`WORKING`] registers besides are within what a thread may have, and all threads' registers are
//!   within what a core has; of products, weights for which there are no registers are in shared memory, each thread's own;
//! * these and the words of at least one step fit into the shared memory.
//!
//! Otherwise the loop is made as for many rows.

mod beside;
mod kernel;
mod layout;
mod order;
mod products;
mod synapses;
mod values;
mod work;

use super::block::Block;
use crate::device::Limits;
use crate::lower::Lowering;
use layout::Places;
use order::{Task, When};
use schwann_core::graph::Node;
use schwann_core::op::Scan;
use schwann_core::plan::{RowsLimit, Workgroup};
use schwann_core::{Op, Result, Value};
use std::collections::HashMap;
use values::{Piece, Pieces};
use work::{Dealing, Stage, Work};

/// Registers of a core, of all of NVIDIA's GPUs.
const REGISTERS_A_CORE: u32 = 65536;
/// Registers of a thread that hold no weights.
const WORKING: u32 = 64;
/// Threads of a workgroup: one warp for each of the four parts of a core. With more, threads compute less and wait more.
const THREADS: u32 = 128;
/// Threads at most: where fewer cannot keep all weights.
const THREADS_MOST: u32 = 512;
/// Steps of a part of the sequence at most.
const STEPS_MOST: u32 = 64;
/// Of the shared memory that a workgroup may have, what it takes at most: so that a core can have several.
const SHARED_PART: u32 = 3;

/// A loop of few rows, and how it is computed.
pub(super) struct Few<'b> {
    block: &'b Block,
    pieces: Pieces,
    tasks: Vec<Task>,
    places: Places,
    stages: Vec<Stage>,
    /// Steps of a part of the sequence.
    chunk: u32,
    threads: u32,
    /// All shared words.
    words: u32,
    /// Words that a thread keeps in registers.
    kept: u32,
    /// Those of all steps.
    step_words: u32,
    /// Where results of a node that is applied to its own result are kept, every other one in the same place.
    aside: HashMap<u32, [u32; 2]>,
    /// Values that only a result of the loop is, and which.
    only_results: HashMap<Value, usize>,
    /// Whether what comes behind reads what the next part of the sequence writes first.
    waits_at_end: bool,
}

impl Lowering<'_> {
    /// How a loop of few rows is computed, if it is one.
    pub(super) fn few<'b>(&self, scan: &Scan, block: &'b Block, path: &[u32], steps: usize) -> Result<Option<Few<'b>>> {
        let limits = self.limits;
        if limits.registers == 0 || steps == 0 {
            return Ok(None);
        }
        let Some(pieces) = Pieces::of(block, scan) else { return Ok(None) };
        if overlap(block, scan, &pieces) {
            return Ok(None);
        }
        let tasks = order::order(block, scan, &pieces);
        let places = Places::of(block, scan, &pieces, &tasks);
        let mut best: Option<(Vec<Stage>, u32, u32)> = None;
        for threads in [THREADS, 2 * THREADS, THREADS_MOST] {
            let dealing = Dealing {
                block,
                pieces: &pieces,
                word: &|piece, level| places.word(piece, level),
                lists: &|id| self.constants.lists(path, id),
                lanes: limits.lanes,
                threads: threads.min(limits.threads),
            };
            let mut stages = dealing.stages(&tasks);
            let (wanted, kept) = wants(&stages);
            let wanted = wanted.max(32).next_multiple_of(32);
            let registers = limits.registers.min(REGISTERS_A_CORE / wanted).saturating_sub(WORKING);
            let chain = stages.iter().filter(|stage| stage.when == When::Chain).flat_map(|stage| &stage.works);
            let mut elements = chain.filter_map(|work| if let Work::Elements(id) = work { Some(*id) } else { None });
            if wanted > limits.threads || elements.any(|id| is_sum(block, id)) {
                continue;
            }
            let shared = share(&mut stages, kept.saturating_sub(registers), wanted);
            if let Some(words) = shared
                && best.as_ref().is_none_or(|(.., least)| words < *least)
                && 4 * words <= limits.shared_bytes
            {
                best = Some((stages, wanted, words));
            }
            if shared == Some(0) {
                break;
            }
        }
        let Some((mut stages, threads, shared)) = best else { return Ok(None) };
        let (_, kept) = wants(&stages);
        let chain = || stages.iter().filter(|stage| stage.when == When::Chain).flat_map(|stage| &stage.works);
        if chain().all(|work| matches!(work, Work::Elements(_))) {
            return Ok(None);
        }
        let fits = |work: &Work| match work {
            Work::Products(products) => products.units() * products.lanes <= threads,
            Work::Synapses(synapses) => synapses.threads <= threads,
            Work::Elements(_) => true,
        };
        if !chain().all(fits) {
            return Ok(None);
        }
        // What is ahead or behind has other ways.
        for work in stages.iter_mut().flat_map(|stage| &mut stage.works) {
            if !fits(work) {
                let id = match work {
                    Work::Products(products) => products.parts[0].id,
                    Work::Synapses(synapses) => synapses.id,
                    Work::Elements(id) => *id,
                };
                *work = Work::Elements(id);
            }
            if let Work::Elements(id) = work
                && matches!(block.body.body.nodes()[*id as usize].op, Op::SynapseRatio { times, .. } if times > 1)
            {
                return Ok(None);
            }
        }
        let mut words_aside = 0u32;
        let unfolded: Vec<(u32, u32)> = (tasks.iter())
            .filter(|task| matches!(block.body.body.nodes()[task.id as usize].op, Op::SynapseRatio { times, .. } if times > 1))
            .map(|task| (task.id, block.widths[&Value { node: task.id, slot: 0 }].next_multiple_of(4)))
            .collect();
        words_aside += unfolded.iter().map(|(_, width)| 2 * width).sum::<u32>();
        let most = match shared {
            0 if limits.shared_bytes > 1 << 16 => limits.shared_bytes / 4 / SHARED_PART,
            _ => limits.shared_bytes / 4 - shared,
        };
        let words = |steps: u32| places.rows(steps).saturating_mul(places.stride).saturating_add(words_aside);
        let mut chunk = STEPS_MOST.min(u32::try_from(steps).unwrap_or(STEPS_MOST).next_power_of_two());
        while chunk > 1 && words(chunk) > most {
            chunk /= 2;
        }
        if words(chunk) > most {
            return Ok(None);
        }
        let mut end = places.rows(chunk) * places.stride;
        let step_words = end;
        let mut aside = HashMap::new();
        for (id, width) in unfolded {
            aside.insert(id, [end, end + width]);
            end += 2 * width;
        }
        for work in stages.iter_mut().flat_map(|stage| &mut stage.works) {
            if let Work::Products(products) = work {
                products.shared_at = end;
                end += products.shared_words(threads);
            }
        }
        let words = end;
        let only_results = order::only_results(block, scan, &pieces, &tasks);
        let mut few = Few {
            block,
            pieces,
            tasks,
            places,
            stages,
            chunk,
            threads,
            words,
            step_words,
            kept,
            aside,
            only_results,
            waits_at_end: false,
        };
        few.waits_at_end = few.reads_early_behind(scan);
        Ok(Some(few))
    }
}

/// The threads that stages take, and the words that each keeps for the chain, with the most that any other stage needs.
fn wants(stages: &[Stage]) -> (u32, u32) {
    let (mut threads, mut kept, mut other) = (0, 0, 0);
    for stage in stages {
        let words = |work: &Work| match work {
            Work::Products(products) => (products.units() * products.lanes, products.words()),
            Work::Synapses(synapses) => (synapses.threads, synapses.words()),
            Work::Elements(_) => (0, 0),
        };
        let all: Vec<(u32, u32)> = stage.works.iter().map(words).collect();
        let sum: u32 = all.iter().map(|(_, words)| words).sum();
        if stage.when == When::Chain {
            threads = all.iter().map(|(threads, _)| *threads).max().unwrap_or(0).max(threads);
            kept += sum;
        } else {
            other = sum.max(other);
        }
    }
    // Beside a thread's weights there is room for some of another stage's.
    (threads, kept + other.saturating_sub(WORKING / 2))
}

/// Whether a node sums over synapses.
fn is_sum(block: &Block, id: u32) -> bool {
    let node = &block.body.body.nodes()[id as usize];
    matches!(node.op, Op::SynapseSum { .. } | Op::SynapseRatio { .. })
}

/// Moves so many words of each thread's weights of the chain to shared memory. Gives the words that this takes there; none where
/// not all can be.
fn share(stages: &mut [Stage], words: u32, threads: u32) -> Option<u32> {
    let (mut left, mut shared) = (words, 0);
    let chain = stages.iter_mut().filter(|stage| stage.when == When::Chain);
    for work in chain.flat_map(|stage| &mut stage.works) {
        if let Work::Products(products) = work {
            let quads = left.div_ceil(4 * products.heads).min(products.quads);
            products.quads_shared = quads;
            left = left.saturating_sub(4 * products.heads * quads);
            shared += products.shared_words(threads);
        }
    }
    (left == 0).then_some(shared)
}

/// Whether two states are the same part of a value, or a state is nothing that a step computes.
fn overlap(block: &Block, scan: &Scan, pieces: &Pieces) -> bool {
    let outputs = &block.body.body.outputs()[..scan.states];
    let all: Vec<&Piece> = outputs.iter().flat_map(|output| pieces.get(output.value)).collect();
    let meet = |a: &Piece, b: &Piece| a.value == b.value && a.first < b.first + b.len && b.first < a.first + a.len;
    all.iter().enumerate().any(|(i, a)| a.before || all[..i].iter().any(|b| meet(a, b)))
}

impl Few<'_> {
    fn node(&self, id: u32) -> &Node {
        &self.block.body.body.nodes()[id as usize]
    }

    /// Leaves a node out of products that several nodes have together, for measuring what it takes. (One that is alone is left
    /// out where it would be computed.)
    fn leave_out(&mut self, left_out: Option<u32>) {
        for work in self.stages.iter_mut().flat_map(|stage| &mut stage.works) {
            if let Work::Products(products) = work
                && products.parts.len() > 1
            {
                products.parts.retain(|part| Some(part.id) != left_out);
            }
        }
    }

    fn task(&self, id: u32) -> Option<&Task> {
        self.tasks.iter().find(|task| task.id == id)
    }

    /// In which level of the wave a node is.
    fn level(&self, id: u32) -> u32 {
        self.task(id).map_or(0, |task| task.level)
    }

    fn is_behind(&self, value: Value) -> bool {
        self.task(value.node).is_some_and(|task| task.when == When::Behind)
    }

    /// Whether results, or what is behind, read inputs or what is ahead, or a state before its step.
    fn reads_early_behind(&self, scan: &Scan) -> bool {
        let graph = &self.block.body.body;
        let early = |piece: &Piece| piece.before || !self.is_behind(piece.value) && self.places.late(piece.value) == 0;
        let behind = self.tasks.iter().filter(|task| task.when == When::Behind);
        let mut read = behind.flat_map(|task| &self.node(task.id).inputs).copied().collect::<Vec<_>>();
        read.extend(graph.outputs()[scan.states..].iter().map(|output| output.value));
        read.iter().flat_map(|value| self.pieces.get(*value)).any(early)
    }

    /// What a workgroup takes, for people.
    fn workgroup(&self, limits: &Limits) -> Workgroup {
        let chain = self.stages.iter().filter(|stage| stage.when == When::Chain);
        let unfolded = |work: &Work| match work {
            Work::Synapses(synapses) => synapses.times as usize - 1,
            _ => 0,
        };
        let barriers = chain.map(|stage| 1 + stage.works.iter().map(unfolded).sum::<usize>()).sum();
        let register_bytes = 4 * (self.kept * self.threads) as usize;
        let works = self.stages.iter().flat_map(|stage| &stage.works);
        let shared = works.map(|work| match work {
            Work::Products(products) => 4 * products.shared_words(self.threads) as usize,
            _ => 0,
        });
        let resident_bytes: usize = shared.sum();
        Workgroup {
            threads: self.threads as usize,
            memory_bytes: 4 * self.words as usize,
            memory_most_bytes: limits.shared_bytes as usize,
            weight_bytes: register_bytes + resident_bytes,
            resident_bytes,
            register_bytes,
            rows: 1,
            rows_limit: RowsLimit::Batch,
            barriers,
        }
    }
}
