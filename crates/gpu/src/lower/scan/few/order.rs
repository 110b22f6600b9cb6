//! In which order a loop's nodes are computed: before the steps of a part of the sequence, in its steps, or after them; and
//! those in its steps as a wave.
//!
//! * **Ahead** is what does not depend on the states, such as sums over synapses from the inputs.
//! * **Behind** is what no later step needs, such as a projection of the state.
//! * The **chain** is the rest: nodes that depend on what the step before computed. Those that depend on each other, by way of
//!   states too, are one *circle*. A layer of a wired circuit is one: it needs its own state, and what the layer before it
//!   gives. So in one tick the first layer computes step t, the second one step t − 1, the third one step t − 2; they do not
//!   wait for each other, and a tick takes as long as the slowest of them, not as long as all.

use super::values::Pieces;
use super::values::needed;
use crate::lower::scan::block::Block;
use schwann_core::Value;
use schwann_core::op::Scan;
use std::collections::{HashMap, HashSet};

/// When a node is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Ahead,
    Chain,
    Behind,
}

/// A node to compute.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) id: u32,
    pub(super) when: When,
    /// In a tick of the chain it works on the step that began so many ticks ago.
    pub(super) level: u32,
    /// After how many waits for others of its kind, in a tick or in all.
    pub(super) phase: u32,
}

/// Steps between a value and what is computed of it in one step of the chain, at most. Further circles are one level.
const LEVELS_MOST: u32 = 8;

/// Puts the nodes in order; the result is in the order of the body.
pub(super) fn order(block: &Block, scan: &Scan, pieces: &Pieces) -> Vec<Task> {
    let graph = &block.body.body;
    let nodes: Vec<u32> = needed(block).filter(|(id, node)| pieces.computes(*id, node)).map(|(id, _)| id).collect();
    let number: HashMap<u32, usize> = nodes.iter().enumerate().map(|(at, id)| (*id, at)).collect();
    // Who reads whom, and whether it is of the step before.
    let mut edges: Vec<(usize, usize, bool)> = vec![];
    let mut depends: HashSet<usize> = HashSet::new();
    for (to, id) in nodes.iter().enumerate() {
        for value in &graph.nodes()[*id as usize].inputs {
            for piece in pieces.get(*value) {
                if piece.before {
                    depends.insert(to);
                }
                if let Some(from) = number.get(&piece.value.node) {
                    edges.push((*from, to, piece.before));
                    if !piece.before && depends.contains(from) {
                        depends.insert(to);
                    }
                }
            }
        }
    }
    let states = graph.outputs()[..scan.states].iter().flat_map(|output| pieces.get(output.value));
    let mut wanted: HashSet<usize> = states.filter_map(|piece| number.get(&piece.value.node).copied()).collect();
    for (from, to, _) in edges.iter().rev() {
        // Nodes are in order, and so are edges by their end: whoever reads a node comes before it here.
        if wanted.contains(to) {
            wanted.insert(*from);
        }
    }
    let when = |at: usize| match (depends.contains(&at), wanted.contains(&at)) {
        (false, _) => When::Ahead,
        (true, true) => When::Chain,
        (true, false) => When::Behind,
    };
    let levels = levels(nodes.len(), &edges, &|at| when(at) == When::Chain);
    let mut tasks: Vec<Task> = vec![];
    for (at, id) in nodes.iter().enumerate() {
        let (when, level) = (when(at), levels[at]);
        let same = |from: usize| tasks[from].when == when && tasks[from].level == level;
        let earlier = edges.iter().filter(|(from, to, before)| *to == at && !before && same(*from));
        let phase = earlier.map(|(from, ..)| tasks[*from].phase + 1).max().unwrap_or(0);
        tasks.push(Task { id: *id, when, level, phase });
    }
    tasks
}

/// For each node of the chain, how many circles are before it.
fn levels(count: usize, edges: &[(usize, usize, bool)], in_chain: &dyn Fn(usize) -> bool) -> Vec<u32> {
    let edges: Vec<(usize, usize)> =
        edges.iter().filter(|(a, b, _)| in_chain(*a) && in_chain(*b)).map(|(a, b, _)| (*a, *b)).collect();
    let mut reaches = vec![HashSet::new(); count];
    loop {
        let mut grown = false;
        for (from, to) in &edges {
            let further: Vec<usize> = reaches[*to].iter().copied().chain([*to]).collect();
            for at in further {
                grown |= reaches[*from].insert(at);
            }
        }
        if !grown {
            break;
        }
    }
    let mut levels = vec![0u32; count];
    for _ in 0..count {
        for (from, to) in &edges {
            let one_circle = from == to || reaches[*to].contains(from);
            levels[*to] = levels[*to].max(levels[*from] + u32::from(!one_circle));
            if one_circle {
                levels[*from] = levels[*from].max(levels[*to]);
            }
        }
    }
    if levels.iter().any(|level| *level > LEVELS_MOST) { vec![0; count] } else { levels }
}

/// Values that nothing but the loop's result reads, and which result each of them is.
pub(super) fn only_results(block: &Block, scan: &Scan, pieces: &Pieces, tasks: &[Task]) -> HashMap<Value, usize> {
    let graph = &block.body.body;
    let mut found = HashMap::new();
    for (k, output) in graph.outputs().iter().enumerate() {
        if let [piece] = pieces.get(output.value)
            && !piece.before
            && k >= scan.states
            && piece.first == 0
            && block.widths.get(&piece.value) == Some(&piece.len)
        {
            found.entry(piece.value).or_insert(k);
        }
    }
    for (k, output) in graph.outputs().iter().enumerate() {
        for piece in pieces.get(output.value) {
            if found.get(&piece.value) != Some(&k) {
                found.remove(&piece.value);
            }
        }
    }
    let nodes = tasks.iter().flat_map(|task| &graph.nodes()[task.id as usize].inputs);
    for piece in nodes.flat_map(|value| pieces.get(*value)) {
        found.remove(&piece.value);
    }
    found.retain(|value, _| tasks.iter().any(|task| task.id == value.node && task.when == When::Behind));
    found
}
