//! The entropy of a window that moves: how often each value occurs in it, and what that makes, kept up to date byte by byte.
//!
//! With c the counts of a window of n bytes, the entropy in bits is log₂ n − Σ c·log₂ c / n. A byte that comes or goes changes
//! one count, and with it the sum by a difference that depends on that count alone: a table has it. Its numbers are whole
//! (in units of 2⁻³²), so the sum never drifts, and both ends of the scale are told apart from everything else: only one value
//! makes the sum as large as it can be, and only values that all occur equally often make it as small.

use super::{VALUES, of_counts};

/// Windows up to this size have a table; for longer ones the formula is evaluated.
const MOST_BY_TABLE: usize = 1 << 16;
/// Units of the table in 1.
const UNITS: f64 = (1u64 << 32) as f64;

/// How often each value occurs among some bytes, and the entropy of that.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: [u32; VALUES],
    bytes: usize,
    /// Σ c·log₂ c.
    sum: i64,
    /// By how much the sum grows when a value occurs that has occurred so often; empty where there is no table.
    growth: Vec<i64>,
    /// For as many bytes as the window has.
    full: Scale,
    window: usize,
}

impl Histogram {
    /// Of no bytes, with room for `window`.
    pub(super) fn new(window: usize) -> Histogram {
        let mut growth = vec![];
        if window <= MOST_BY_TABLE {
            let whole = |c: usize| if c == 0 { 0 } else { (c as f64 * (c as f64).log2() * UNITS).round() as i64 };
            growth = (0..=window).map(|c| whole(c + 1) - whole(c)).collect();
        }
        let full = Scale::new(&growth, window);
        Histogram { counts: [0; VALUES], bytes: 0, sum: 0, growth, full, window }
    }

    /// Forgets all bytes.
    pub(super) fn clear(&mut self) {
        self.counts = [0; VALUES];
        (self.bytes, self.sum) = (0, 0);
    }

    /// Takes bytes in; with them there are at most as many as the window has.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        if self.growth.is_empty() {
            return bytes.iter().for_each(|b| self.counts[usize::from(*b)] += 1);
        }
        let mut sum = self.sum;
        for byte in bytes {
            let count = &mut self.counts[usize::from(*byte)];
            sum += self.growth[*count as usize];
            *count += 1;
        }
        self.sum = sum;
    }

    /// Lets bytes go that were taken in.
    pub(super) fn remove(&mut self, bytes: &[u8]) {
        self.bytes -= bytes.len();
        if self.growth.is_empty() {
            return bytes.iter().for_each(|b| self.counts[usize::from(*b)] -= 1);
        }
        let mut sum = self.sum;
        for byte in bytes {
            let count = &mut self.counts[usize::from(*byte)];
            *count -= 1;
            sum -= self.growth[*count as usize];
        }
        self.sum = sum;
    }

    /// The entropy, from 0 to 1; 0 of no bytes.
    pub(super) fn entropy(&self) -> f32 {
        if self.growth.is_empty() {
            return of_counts(&self.counts.map(u64::from)) as f32;
        }
        if self.bytes == self.window {
            self.full.of(self.sum)
        } else {
            Scale::new(&self.growth, self.bytes).of(self.sum)
        }
    }

    /// The entropies as each byte of `coming` comes in and then the byte of `going` in the same place goes: those of a window
    /// that moves on by one byte at a time. Before it, all bytes of the window but the last are in.
    pub(super) fn slide(&mut self, coming: &[u8], going: &[u8], found: &mut Vec<f32>) {
        let pairs = coming.iter().zip(going);
        if self.growth.is_empty() {
            for (coming, going) in pairs {
                self.counts[usize::from(*coming)] += 1;
                found.push(of_counts(&self.counts.map(u64::from)) as f32);
                self.counts[usize::from(*going)] -= 1;
            }
            return;
        }
        let (mut sum, counts, growth, scale) = (self.sum, &mut self.counts, &self.growth[..], &self.full);
        found.extend(pairs.map(|(coming, going)| {
            let count = &mut counts[usize::from(*coming)];
            sum += growth[*count as usize];
            *count += 1;
            let entropy = scale.of(sum);
            let count = &mut counts[usize::from(*going)];
            *count -= 1;
            sum -= growth[*count as usize];
            entropy
        }));
        self.sum = sum;
    }
}

/// Turns sums of a fixed number of bytes into entropies.
#[derive(Clone, Debug)]
struct Scale {
    /// The sum where one value is all there is.
    most: i64,
    /// The sum where all values occur equally often; −1 where they cannot.
    least: i64,
    bits: f64,
    unit: f64,
}

impl Scale {
    fn new(growth: &[i64], bytes: usize) -> Scale {
        // Without a table the formula is evaluated, and this is not used.
        let total = |c: usize| growth.iter().take(c).sum::<i64>();
        let even = bytes > 0 && bytes.is_multiple_of(VALUES);
        Scale {
            most: total(bytes),
            least: if even { VALUES as i64 * total(bytes / VALUES) } else { -1 },
            bits: (bytes.max(1) as f64).log2() / 8.0,
            unit: 1.0 / (bytes.max(1) as f64 * UNITS * 8.0),
        }
    }

    #[inline(always)]
    fn of(&self, sum: i64) -> f32 {
        let inner = (self.bits - sum as f64 * self.unit).clamp(0.0, 1.0) as f32;
        let inner = if sum == self.least { 1.0 } else { inner };
        if sum == self.most { 0.0 } else { inner }
    }
}
