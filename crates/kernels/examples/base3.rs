//! Ternary codes four to a byte and five to a byte, as bare loops of one row: is taking base 3 apart worth a fifth of the bytes?
//!
//!     cargo run --release -p schwann-kernels --example base3
//!
//! Both loops have the layout of packed weights: 64 outputs in the lanes of four registers, groups of codes along the row in
//! the bytes of a lane, sums of four products by one instruction. Each loop is timed with weights in the second-level cache,
//! and with copies of more than 256 MB in turn, so that they come from main memory; the best of several rounds, in turns.
#![expect(clippy::print_stdout, reason = "an example")]

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("this measures AVX-512 VNNI alone");
}

#[cfg(target_arch = "x86_64")]
fn main() {
    if !std::is_x86_feature_detected!("avx512vnni") || !std::is_x86_feature_detected!("avx512bw") {
        println!("this CPU has no AVX-512 VNNI");
        return;
    }
    x86::measure();
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;
    use std::time::Instant;

    const OUTPUTS: usize = 64;
    const REGISTERS: usize = 4;

    /// Bytes of a panel of `groups` groups: each is 32 bits of every output.
    const fn panel_bytes(groups: usize) -> usize {
        groups * OUTPUTS * 4
    }

    /// Sums of the products of a panel's codes, 16 to a 32-bit word, with `q`: four integers of 8 bits for each field.
    ///
    /// # Safety
    /// The CPU must have AVX-512 with BW and VNNI.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn four_to_a_byte(codes: &[u8], q: &[i32]) -> i32 {
        let mut sums = [_mm512_setzero_si512(); REGISTERS];
        let mask = _mm512_set1_epi8(3);
        for (words, q) in codes.chunks_exact(OUTPUTS * 4).zip(q.chunks_exact(4)) {
            let q: [__m512i; 4] = std::array::from_fn(|field| _mm512_set1_epi32(q[field]));
            for (v, sum) in sums.iter_mut().enumerate() {
                // SAFETY: a group has four registers.
                let word = unsafe { _mm512_loadu_si512(words.as_ptr().add(v * 64).cast()) };
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_and_si512(word, mask), q[0]);
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_and_si512(_mm512_srli_epi16::<2>(word), mask), q[1]);
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_and_si512(_mm512_srli_epi16::<4>(word), mask), q[2]);
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_and_si512(_mm512_srli_epi16::<6>(word), mask), q[3]);
            }
        }
        total(sums)
    }

    /// The same of 20 to a word. A byte holds ⌈256 · n / 243⌉ for a number n of five digits, so that the highest digit is the
    /// whole part of 3 · byte / 256, and the rest times 3 has the next.
    ///
    /// # Safety
    /// As above.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn five_to_a_byte(codes: &[u8], q: &[i32]) -> i32 {
        let mut sums = [_mm512_setzero_si512(); REGISTERS];
        let (mask, one, zero) = (_mm512_set1_epi8(3), _mm512_set1_epi8(1), _mm512_setzero_si512());
        for (words, q) in codes.chunks_exact(OUTPUTS * 4).zip(q.chunks_exact(5)) {
            let q: [__m512i; 5] = std::array::from_fn(|field| _mm512_set1_epi32(q[field]));
            for (v, sum) in sums.iter_mut().enumerate() {
                // SAFETY: a group has four registers.
                let mut word = unsafe { _mm512_loadu_si512(words.as_ptr().add(v * 64).cast()) };
                for q in q {
                    // Of x less 1, (x + x / 2) / 2 with both halves rounded up has the digit in its two highest bits.
                    let less = _mm512_subs_epu8(word, one);
                    let part = _mm512_avg_epu8(less, _mm512_avg_epu8(less, zero));
                    let digit = _mm512_and_si512(_mm512_srli_epi16::<6>(part), mask);
                    *sum = _mm512_dpbusd_epi32(*sum, digit, q);
                    word = _mm512_add_epi8(word, _mm512_add_epi8(word, word));
                }
            }
        }
        total(sums)
    }

    #[target_feature(enable = "avx512f")]
    fn total(sums: [__m512i; REGISTERS]) -> i32 {
        sums.into_iter().map(|sum| _mm512_reduce_add_epi32(sum)).fold(0, i32::wrapping_add)
    }

    /// One way to keep ternary codes.
    struct Way {
        name: &'static str,
        /// Codes of a byte.
        each: usize,
        run: unsafe fn(&[u8], &[i32]) -> i32,
        pack: fn([u8; 5]) -> u8,
    }

    const WAYS: [Way; 2] = [
        Way {
            name: "four to a byte",
            each: 4,
            run: four_to_a_byte,
            pack: |c| c[0] | c[1] << 2 | c[2] << 4 | c[3] << 6,
        },
        Way {
            name: "five to a byte",
            each: 5,
            run: five_to_a_byte,
            pack: |c| {
                let n = c.iter().fold(0u32, |n, digit| 3 * n + u32::from(*digit));
                (256 * n).div_ceil(243) as u8
            },
        },
    ];

    /// Panels of random codes, the integers to multiply with, and what comes out.
    fn data(way: &Way, groups: usize, panels: usize) -> (Vec<u8>, Vec<i32>, Vec<i32>) {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as usize
        };
        let q: Vec<[i8; 4]> = (0..groups * way.each).map(|_| [(); 4].map(|()| random() as i8)).collect();
        let (mut codes, mut wanted) = (vec![], vec![]);
        for _ in 0..panels {
            let mut sum = 0i32;
            for group in 0..groups {
                for byte in 0..OUTPUTS * 4 {
                    let mut digits = [0u8; 5];
                    for (field, digit) in digits.iter_mut().take(way.each).enumerate() {
                        *digit = (random() % 3) as u8;
                        sum += i32::from(*digit) * i32::from(q[group * way.each + field][byte % 4]);
                    }
                    codes.push((way.pack)(digits));
                }
            }
            wanted.push(sum);
        }
        (codes, q.into_iter().map(|four| i32::from_le_bytes(four.map(|x| x as u8))).collect(), wanted)
    }

    pub(super) fn measure() {
        // 2,560 codes of a row either way.
        let sets = WAYS.map(|way| {
            let groups = 2560 / (4 * way.each);
            let (codes, q, wanted) = data(&way, groups, 4);
            for (panel, wanted) in codes.chunks_exact(panel_bytes(groups)).zip(wanted) {
                // SAFETY: `main` looked for the instructions.
                assert_eq!(unsafe { (way.run)(panel, &q) }, wanted, "{}", way.name);
            }
            (way, groups, codes, q)
        });
        for (place, bytes) in [("second-level cache", 256 << 10), ("main memory", 256 << 20)] {
            let memories: Vec<Vec<u8>> =
                sets.iter().map(|(_, _, codes, _)| codes.repeat(bytes / codes.len())).collect();
            let mut best = [f64::INFINITY; 2];
            for _ in 0..7 {
                for ((best, (way, groups, ..)), (memory, q)) in
                    best.iter_mut().zip(&sets).zip(memories.iter().zip(sets.iter().map(|s| &s.3)))
                {
                    let rounds = ((64 << 20) / memory.len()).max(1);
                    let start = Instant::now();
                    for _ in 0..rounds {
                        for panel in memory.chunks_exact(panel_bytes(*groups)) {
                            // SAFETY: `main` looked for the instructions.
                            black_box(unsafe { (way.run)(panel, q) });
                        }
                    }
                    let products = (rounds * memory.len() * way.each) as f64;
                    *best = best.min(start.elapsed().as_secs_f64() / products);
                }
            }
            for (best, (way, ..)) in best.iter().zip(&sets) {
                let gbs = 1e-9 / best / way.each as f64;
                println!("{place}, {}: {:.0} GOP/s, {gbs:.1} GB/s (measured)", way.name, 2e-9 / best);
            }
        }
    }
}
