//! Windows of sequences, their division into training and validation, and the order in which they are learned from.

use super::Sequences;
use crate::init::Random;
use crate::{Error, Result};

/// A part of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first row.
    pub start: usize,
    /// How many rows.
    pub len: u32,
    /// Whether its sequence begins here.
    pub first: bool,
}

/// How sequences are cut.
#[derive(Clone, Debug)]
pub struct Windows {
    /// The windows, sequence after sequence.
    pub list: Vec<Window>,
    /// The longest window's steps: what all are filled up to.
    pub steps: usize,
    /// Whether some are shorter, so that a mask is needed.
    pub masked: bool,
    /// Whether a window goes on from the one before in its sequence, with its states.
    pub carried: bool,
}

/// How sequences are divided between training and validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// The share that is for validation.
    pub validation: f64,
    /// What decides which.
    pub seed: u64,
}

/// Spans of rows for training and for validation: whole sequences, drawn; of a single sequence, its end.
#[expect(clippy::type_complexity, reason = "two lists of spans, taken apart at once")]
pub fn split(data: &Sequences, split: &Split) -> Result<(Vec<(usize, usize)>, Vec<(usize, usize)>)> {
    let share = split.validation;
    if !(0.0..1.0).contains(&share) {
        return Err(Error::argument("validation", share, "from 0 to less than 1"));
    }
    if share == 0.0 {
        return Ok((data.spans.clone(), vec![]));
    }
    if let [(start, len)] = data.spans[..] {
        let kept = len - ((len as f64 * share).round() as usize).clamp(1, len.saturating_sub(1).max(1));
        if kept == 0 {
            return Err(Error::argument("validation", share, "a sequence of two steps at least"));
        }
        return Ok((vec![(start, kept)], vec![(start + kept, len - kept)]));
    }
    let mut order: Vec<usize> = (0..data.spans.len()).collect();
    Random::new(split.seed, "split").shuffle(&mut order);
    let count = ((order.len() as f64 * share).round() as usize).clamp(1, order.len() - 1);
    let (mut validation, mut training) = (order[..count].to_vec(), order[count..].to_vec());
    // In the order of the file, so that a mapped one is read forwards where nothing is shuffled.
    validation.sort_unstable();
    training.sort_unstable();
    let spans = |of: &[usize]| of.iter().map(|i| data.spans[*i]).collect();
    Ok((spans(&training), spans(&validation)))
}

impl Windows {
    /// Windows of `window` steps, one every `stride`, over these spans; whole sequences without a window. A sequence
    /// that is shorter is a window as it is, and what is left at the end of one is a shorter window. Carried windows
    /// follow each other without gap or overlap.
    pub fn new(
        spans: &[(usize, usize)],
        window: Option<usize>,
        stride: Option<usize>,
        carried: bool,
    ) -> Result<Windows> {
        let longest = spans.iter().map(|s| s.1).max().unwrap_or(0);
        let window = window.unwrap_or(longest);
        let stride = stride.unwrap_or(window);
        if window == 0 && longest > 0 || window > u32::MAX as usize {
            return Err(Error::argument("window", window, "1 step at least"));
        }
        if stride == 0 && longest > 0 {
            return Err(Error::argument("stride", stride, "1 step at least"));
        }
        if carried && stride != window {
            return Err(Error::argument("stride", stride, format!("{window}, the window, where states are carried")));
        }
        let mut list = vec![];
        let steps = window.min(longest);
        for &(start, len) in spans {
            let mut at = 0;
            loop {
                let rest = (len - at).min(window);
                list.push(Window { start: start + at, len: rest as u32, first: at == 0 });
                // With an overlap, the last window is the first that reaches the end.
                if at + rest >= len {
                    break;
                }
                at += stride;
                if at >= len {
                    break;
                }
            }
        }
        if u32::try_from(list.len()).is_err() {
            return Err(Error::argument("windows", list.len(), "fewer than 2³²; take a longer stride"));
        }
        let masked = list.iter().any(|w| (w.len as usize) < steps);
        Ok(Windows { list, steps, masked, carried })
    }
}

/// In which order windows are learned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// What the order is drawn from; `None` leaves windows as they are.
    pub shuffle: Option<u64>,
    /// Whether the last batch of an epoch is filled up with the epoch's first windows, so that all batches have one size
    /// and memory is laid out once; if not, it is what is left.
    pub fill: bool,
}

/// A place in a batch without a window.
pub(crate) const NONE: u32 = u32::MAX;

impl Order {
    /// The windows of an epoch, batch after batch. Where states are carried, place b of each batch goes on with the
    /// sequence of place b of the batch before, and places that have none left are [`NONE`].
    pub(crate) fn fill(&self, windows: &Windows, epoch: u64, batch: usize, order: &mut Vec<u32>) {
        order.clear();
        let mut random = self.shuffle.map(|seed| Random::new(seed.wrapping_add(epoch), "epoch"));
        if !windows.carried {
            order.extend(0..windows.list.len() as u32);
            random.iter_mut().for_each(|random| random.shuffle(order));
            let missing = order.len().next_multiple_of(batch.max(1)) - order.len();
            for i in 0..if self.fill { missing } else { 0 } {
                order.push(order[i]);
            }
            return;
        }
        let firsts: Vec<u32> = (0u32..).zip(&windows.list).filter(|(_, w)| w.first).map(|(i, _)| i).collect();
        let mut sequences = firsts;
        random.iter_mut().for_each(|random| random.shuffle(&mut sequences));
        let mut waiting = sequences.into_iter();
        let mut places: Vec<u32> = (0..batch).map(|_| waiting.next().unwrap_or(NONE)).collect();
        while places.iter().any(|p| *p != NONE) {
            order.extend(&places);
            for place in &mut places {
                if *place == NONE {
                    continue;
                }
                let next = *place + 1;
                let goes_on = windows.list.get(next as usize).is_some_and(|w| !w.first);
                *place = if goes_on { next } else { waiting.next().unwrap_or(NONE) };
            }
        }
    }
}
