//! Synapses in the order in which teams of threads sum over them.

use crate::lower::site::word;
use schwann_core::op::Activation;
use schwann_core::{Error, Result, Tensor};
use std::f64::consts::LOG2_E;

/// Synapses of a piece of a list: four sources are read at once, and then the numbers of each synapse.
pub(super) const PIECE: u32 = 4;
/// Words of a destination's head: its number and how many synapses it has (above [`COUNT_AT`]), what its two sums begin with,
/// and the word at which its synapses begin.
pub(super) const HEAD: u32 = 4;
/// The bit at which the number of synapses begins.
pub(super) const COUNT_AT: u32 = 16;
/// Words of a synapse: scale, shift, and two weights.
const NUMBERS: u32 = 4;
/// Words of a whole piece.
pub(super) const PIECE_WORDS: u32 = PIECE + PIECE * NUMBERS;

/// The word of a piece at which a synapse's numbers begin.
pub(super) fn numbers_at(synapse: u32) -> u32 {
    PIECE + synapse * NUMBERS
}

/// The synapses of a node, whose ends are known when the kernel is made: those with most synapses first. The numbers are not
/// part of it, and may change.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    activation: Activation,
    sums: usize,
    /// Each destination with its synapses, in order.
    lists: Vec<(u32, Vec<usize>)>,
    sources: Vec<u32>,
    words: u32,
}

impl Order {
    /// Of synapses between these ends, none of which may be out of range; none if one is, or if there are too many words.
    pub(crate) fn of(activation: Activation, sums: usize, ends: [&Tensor; 2], sizes: [usize; 2]) -> Option<Order> {
        let [sources, destinations] = ends.map(Tensor::to_f64);
        let within = |ends: &[f64], size: usize| ends.iter().all(|end| *end >= 0.0 && *end < size as f64);
        if !within(&sources, sizes[0]) || !within(&destinations, sizes[1]) || sources.len() != destinations.len() {
            return None;
        }
        let mut lists: Vec<(u32, Vec<usize>)> = (0..word(sizes[1]).ok()?).map(|d| (d, vec![])).collect();
        destinations.iter().enumerate().for_each(|(e, d)| lists[*d as usize].1.push(e));
        lists.sort_by_key(|(_, synapses)| std::cmp::Reverse(synapses.len()));
        let mut words = word(lists.len().checked_mul(HEAD as usize)?).ok()?;
        for (destination, synapses) in &lists {
            let count = u32::try_from(synapses.len()).ok()?;
            if (count | destination) >> COUNT_AT > 0 {
                return None;
            }
            words = words.checked_add(list_words(count))?;
        }
        let sources = sources.iter().map(|source| *source as u32).collect();
        Some(Order { activation, sums, lists, sources, words })
    }

    pub(super) fn activation(&self) -> Activation {
        self.activation
    }

    pub(super) fn sums(&self) -> usize {
        self.sums
    }

    /// How many destinations there are.
    pub(super) fn destinations(&self) -> u32 {
        self.lists.len() as u32
    }

    /// Words of the whole.
    pub(crate) fn words(&self) -> u32 {
        self.words
    }

    /// The words, from scales, shifts and weights. A sigmoid is 1 / (1 + 2ᵃ) and a tanh is 1 − 2 / (1 + 2ᵃ), with scales and
    /// shifts that are multiplied for that here.
    pub(crate) fn pack(&self, tables: &[&Tensor]) -> Result<Vec<u32>> {
        let numbers: Vec<Vec<f64>> = tables.iter().map(|table| table.to_f64()).collect();
        let enough = numbers.len() == 2 + self.sums && numbers.iter().all(|table| table.len() == self.sources.len());
        if !enough {
            return Err(Error::Internal("tables of synapses that are not alike".into()));
        }
        let (by, weight_by) = match self.activation {
            Activation::Identity => (1.0, 1.0),
            Activation::Sigmoid => (-LOG2_E, 1.0),
            Activation::Tanh => (2.0 * LOG2_E, -2.0),
        };
        let mut words = vec![0u32; self.words as usize];
        let mut at = self.destinations() * HEAD;
        for ((destination, synapses), head) in self.lists.iter().zip((0..).step_by(HEAD as usize)) {
            let count = synapses.len() as u32;
            words[head] = destination | count << COUNT_AT;
            if self.activation == Activation::Tanh {
                for (k, weights) in numbers[2..].iter().enumerate() {
                    let all: f64 = synapses.iter().map(|e| weights[*e]).sum();
                    words[head + 1 + k] = (all as f32).to_bits();
                }
            }
            words[head + 3] = at;
            for (j, e) in (0..).zip(synapses) {
                let piece = at + j / PIECE * PIECE_WORDS;
                words[(piece + j % PIECE) as usize] = self.sources[*e];
                let place = (piece + numbers_at(j % PIECE)) as usize;
                words[place] = ((numbers[0][*e] * by) as f32).to_bits();
                words[place + 1] = ((numbers[1][*e] * by) as f32).to_bits();
                for (k, weights) in numbers[2..].iter().enumerate() {
                    words[place + 2 + k] = ((weights[*e] * weight_by) as f32).to_bits();
                }
            }
            at += list_words(count);
        }
        Ok(words)
    }
}

/// Words of so many synapses.
fn list_words(count: u32) -> u32 {
    let rest = count % PIECE;
    count / PIECE * PIECE_WORDS + if rest > 0 { PIECE + rest * NUMBERS } else { 0 }
}
