//! The arithmetic peak: fused multiply-adds in registers, and nothing else. What every kernel is measured against.

use crate::simd::with_simd;
use crate::{Isa, Simd};
use std::hint::black_box;

/// Chains that run at once: more than any core needs to hide the latency of one.
const CHAINS: usize = 12;

/// Computes `rounds` multiply-adds in each lane of each chain and gives the arithmetic operations that this was; the
/// caller holds the clock.
pub fn burst(isa: Isa, rounds: usize) -> u64 {
    with_simd!(isa, s => run(s, rounds));
    2 * (rounds * CHAINS * isa.lanes()) as u64
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
    fn a_burst_counts_two_operations_a_lane_and_round() {
        for &isa in Isa::available() {
            assert_eq!(burst(isa, 10), (2 * 10 * CHAINS * isa.lanes()) as u64);
        }
    }
}
