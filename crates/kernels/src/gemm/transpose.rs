//! The transposition of 8 × 8 words in AVX registers, for packing a B whose columns are contiguous.

use super::micro::SIDE;
use std::arch::x86_64::*;

/// Transposes a square of 32-bit words; lines are `from_stride` bytes and `to_stride` words apart.
///
/// # Safety
/// The CPU must have AVX, and every line be readable or writable for [`SIDE`] words.
#[inline(always)]
pub(crate) unsafe fn square(from: *const u8, from_stride: usize, to: *mut u32, to_stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        // Halves of two lines side by side, so that only the cheap shuffles within halves remain: line j holds words
        // 0..4 of lines j and j + 4, then words 4..8 of the same.
        let half = |j: usize, word: usize| {
            let line = |j: usize| _mm_loadu_ps(from.add(j * from_stride).cast::<f32>().add(word));
            _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(line(j)), line(j + 4))
        };
        for word in [0, 4] {
            let [a, b, c, d] = std::array::from_fn(|j| half(j, word));
            let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
            let lines = [
                _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
                _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
            ];
            for (i, line) in lines.into_iter().enumerate() {
                _mm256_storeu_ps(to.add((word + i) * to_stride).cast(), line);
            }
        }
    }
    const { assert!(SIDE == 8) };
}
