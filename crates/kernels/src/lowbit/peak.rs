//! The peak that integer products are measured against: sums of four 8-bit products in registers, and nothing else.

use super::check::integer_path;
use super::dot::Dot;
#[cfg(target_arch = "aarch64")]
use super::dot::neon::{Sdot, Widening};
#[cfg(target_arch = "x86_64")]
use super::dot::x86::{Avx2Madd, Avx512Madd, Avx512Vnni, AvxVnni};
use crate::Isa;
use crate::simd::Simd;
use std::hint::black_box;

/// Chains that run at once: more than any core needs to hide the latency of one.
const CHAINS: usize = 12;

/// Computes `rounds` sums of four products in each lane of each chain, in the way that integer products take
/// ([`integer_path`]), and gives the number of arithmetic operations; the caller measures the time. `None` where that way is
/// plain Rust, which has no such instruction.
pub fn integer_burst(isa: Isa, rounds: usize) -> Option<u64> {
    macro_rules! by {
        ($($dot:ty),*) => {
            match integer_path(isa).0 {
                // SAFETY: the path was chosen because the CPU has its instructions.
                $(<$dot as Dot>::NAME => Some(unsafe { burst::<$dot>(rounds) }),)*
                _ => None,
            }
        };
    }
    #[cfg(target_arch = "x86_64")]
    return by!(Avx512Vnni, AvxVnni, Avx512Madd, Avx2Madd);
    #[cfg(target_arch = "aarch64")]
    return by!(Sdot, Widening);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    by!()
}

/// # Safety
/// The CPU must have the instructions.
unsafe fn burst<D: Dot>(rounds: usize) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        D::enter(
            #[inline(always)]
            |d, s| {
                let (codes, q) = (s.splat_int(black_box(0x0102_0304)), s.splat_int(black_box(0x01ff_01ff)));
                let mut chains = [s.splat_int(0); CHAINS];
                for _ in 0..rounds {
                    for chain in &mut chains {
                        *chain = d.dot8(*chain, codes, q);
                    }
                }
                let total = chains.into_iter().fold(s.splat_int(0), |a, b| s.add_int(a, b));
                black_box(s.sum(s.float_from_bits(total)));
            },
        )
    }
    // A multiplication and an addition for each product.
    2 * 4 * rounds as u64 * (CHAINS * <D::S as Simd>::LANES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_counts_the_products_of_every_lane_where_there_is_an_instruction() {
        for &isa in Isa::available() {
            let counted = integer_burst(isa, 10);
            match integer_path(isa).0 {
                "portable" => assert_eq!(counted, None),
                _ => assert_eq!(counted, Some((8 * 10 * CHAINS * isa.lanes()) as u64), "{isa}"),
            }
        }
    }
}
