//! Where times settle.
//!
//! The second half of the samples says what settled times are like. Leading samples count as warm-up while they lie
//! apart from it, by two rules: single ones beyond the far fence (a cold first call), and groups of five whose median lies
//! apart from the later groups' medians (a clock that speeds up slowly). Both compare with the scatter that the second
//! half shows, so that noise, correlated or not, settles at once; what drifts to the very end is not called warm-up at
//! all, since nothing tells where it would have settled.

use super::{mad, median, quantile_sorted, sorted};

/// Samples in a group.
const GROUP: usize = 5;
/// Fewer samples than this say nothing about settling.
const LEAST: usize = 4 * GROUP;
/// A group lies apart when its median is this many deviations of groups' medians from the settled one,
const APART: f64 = 6.0;
/// and at least this part of it: a smaller change is nobody's warm-up.
const LEAST_CHANGE: f64 = 0.01;

/// How many leading samples were taken before times had settled; 0 where they were settled from the start or never.
pub fn settle(samples: &[f64]) -> usize {
    if samples.len() < LEAST {
        return 0;
    }
    let later = &samples[samples.len() / 2..];
    let Some(settled) = median(later) else { return 0 };
    let tail = sorted(later);
    let (q1, q3) = (quantile_sorted(&tail, 0.25), quantile_sorted(&tail, 0.75));
    let least = LEAST_CHANGE * settled.abs();
    // The far fence, and beyond all but the rarest that came later: a burst is not a warm-up.
    let beyond = (4.0 * (q3 - q1)).max(quantile_sorted(&tail, 0.98) - q3).max(least);
    let early = &samples[..samples.len() / 2];
    let single = early.iter().take_while(|x| **x > q3 + beyond).count();

    let medians: Vec<f64> = later.chunks_exact(GROUP).filter_map(median).collect();
    // The scatter of groups, by their own medians and by what independent samples would give; the greater one.
    let scatter = mad(&medians).unwrap_or(0.0).max(mad(later).unwrap_or(0.0) * 1.2533 / (GROUP as f64).sqrt());
    let limit = (APART * scatter).max(least);
    // Beyond the later groups too: otherwise it is like what came later.
    let (low, high) = medians.iter().fold((settled, settled), |(low, high), m| (low.min(*m), high.max(*m)));
    let apart = |group: &&[f64]| {
        median(group).is_some_and(|m| (m - settled).abs() > limit && (m > high + least || m < low - least))
    };
    // Single ones first, so that a group's median is not theirs.
    let slow = single + early[single..].chunks_exact(GROUP).take_while(apart).count() * GROUP;
    // All of the first half: times change without end, or in the middle; that is no warm-up.
    if slow + GROUP > early.len() { 0 } else { slow }
}
