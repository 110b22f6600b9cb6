//! Peaks that every kernel is measured against: fused multiply-adds in registers and nothing else, and loads of whole
//! registers and next to nothing else.

use crate::simd::with_simd;
use crate::{Isa, Simd};
use std::hint::black_box;

/// Chains that run at once: more than any core needs to hide the latency of one.
const CHAINS: usize = 12;

/// Computes `rounds` multiply-adds in each lane of each chain and gives the number of arithmetic operations; the caller
/// measures the time.
pub fn burst(isa: Isa, rounds: usize) -> u64 {
    with_simd!(isa, s => run(s, rounds));
    2 * rounds as u64 * (CHAINS * isa.lanes()) as u64
}

/// Reads every whole register of `words`, so that nothing but the loads takes time; the caller measures the time.
pub fn read(isa: Isa, words: &[u64]) {
    with_simd!(isa, s => load(s, words));
}

#[inline(always)]
fn load<S: Simd>(s: S, words: &[u64]) {
    /// Loads at once.
    const AT_ONCE: usize = 8;
    let chunk = AT_ONCE * S::LANES / 2;
    let mut kept = [s.splat_int(-1); AT_ONCE];
    for chunk in words.chunks_exact(chunk) {
        for (i, kept) in kept.iter_mut().enumerate() {
            // SAFETY: a chunk holds `AT_ONCE` registers of 32-bit lanes.
            let loaded = unsafe { s.load_int(chunk.as_ptr().cast::<i32>().add(i * S::LANES)) };
            *kept = s.and_int(*kept, loaded);
        }
    }
    let all = kept.into_iter().fold(s.splat_int(-1), |a, b| s.and_int(a, b));
    black_box(s.sum(s.float_from_bits(all)));
}

#[inline(always)]
fn run<S: Simd>(s: S, rounds: usize) {
    let (scale, shift) = (s.splat(black_box(0.999)), s.splat(black_box(0.001)));
    let mut chains = [s.splat(1.0); CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = s.mul_add(*chain, scale, shift);
        }
    }
    let total = chains.into_iter().fold(s.splat(0.0), |a, b| s.add(a, b));
    black_box(s.sum(total));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_takes_slices_of_any_length() {
        for &isa in Isa::available() {
            for words in [0, 1, 63, 64, 1000] {
                read(isa, &vec![3; words]);
            }
        }
    }

    #[test]
    fn a_burst_counts_two_operations_a_lane_and_round() {
        for &isa in Isa::available() {
            assert_eq!(burst(isa, 10), (2 * 10 * CHAINS * isa.lanes()) as u64);
        }
    }
}
