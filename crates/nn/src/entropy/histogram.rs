//! The entropy of a window that moves: how often each value occurs in it, and what that makes, kept up to date byte by byte.
//!
//! With c the counts of a window of n bytes, the entropy in bits is log₂ n − Σ c·log₂ c / n. A byte that comes or goes changes
//! one count, and with it the sum by a difference that depends on that count alone: a table has it. Its numbers are whole
//! (in units of 2⁻³²), so the sum never drifts, and both ends of the scale are told apart from everything else: only one value
//! makes the sum as large as it can be, and only values that all occur equally often make it as small.

use super::{VALUES, of_counts};
use std::sync::Arc;

/// Differences of a table. Its size is fixed, so that a count of 16 bits is always within it.
const DIFFERENCES: usize = 1 << 16;
/// Windows up to this size have a table; for longer ones the formula is evaluated.
const MOST_BY_TABLE: usize = DIFFERENCES - 1;
/// Units of the table in 1.
const UNITS: f64 = (1u64 << 32) as f64;

/// How often each value occurs among some bytes, and the entropy of that.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: [u32; VALUES],
    bytes: usize,
    /// Σ c·log₂ c.
    sum: i64,
    /// By how much the sum grows when a value occurs that has occurred so often; none for long windows.
    growth: Option<Arc<Growth>>,
    /// For as many bytes as the window has.
    full: Scale,
    window: usize,
}

impl Histogram {
    /// Of no bytes, with room for `window`.
    pub(super) fn new(window: usize) -> Histogram {
        let growth = (window <= MOST_BY_TABLE).then(|| Arc::new(Growth::new(window)));
        let full = Scale::new(growth.as_deref(), window);
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
        let Some(growth) = &self.growth else {
            return bytes.iter().for_each(|b| self.counts[usize::from(*b)] += 1);
        };
        let mut sum = self.sum;
        for byte in bytes {
            let count = &mut self.counts[usize::from(*byte)];
            sum += growth.at(*count);
            *count += 1;
        }
        self.sum = sum;
    }

    /// Lets bytes go that were taken in.
    pub(super) fn remove(&mut self, bytes: &[u8]) {
        self.bytes -= bytes.len();
        let Some(growth) = &self.growth else {
            return bytes.iter().for_each(|b| self.counts[usize::from(*b)] -= 1);
        };
        let mut sum = self.sum;
        for byte in bytes {
            let count = &mut self.counts[usize::from(*byte)];
            *count -= 1;
            sum -= growth.at(*count);
        }
        self.sum = sum;
    }

    /// The entropy, from 0 to 1; 0 of no bytes.
    pub(super) fn entropy(&self) -> f32 {
        match &self.growth {
            None => of_counts(&self.counts.map(u64::from)) as f32,
            Some(_) if self.bytes == self.window => self.full.of(self.sum),
            Some(growth) => Scale::new(Some(growth), self.bytes).of(self.sum),
        }
    }

    /// The entropies as each byte of `coming` comes in and then the byte of `going` in the same place goes: those of a window
    /// that moves on by one byte at a time. Before it, all bytes of the window but the last are in. If there are more bytes
    /// going than coming, the others are not looked at.
    pub(super) fn slide(&mut self, coming: &[u8], going: &[u8], found: &mut Vec<f32>) {
        let going = &going[..coming.len()];
        let Some(growth) = self.growth.clone() else {
            for (coming, going) in coming.iter().zip(going) {
                self.counts[usize::from(*coming)] += 1;
                found.push(of_counts(&self.counts.map(u64::from)) as f32);
                self.counts[usize::from(*going)] -= 1;
            }
            return;
        };
        let start = found.len();
        found.resize(start + coming.len(), 0.0);
        let found = &mut found[start..];
        let half = coming.len() / 2;
        if half < 2 * self.window {
            let mut pair = coming.iter().zip(going).zip(found);
            return pair.by_ref().for_each(|((coming, going), found)| *found = self.step(&growth, *coming, *going));
        }
        // Each byte waits for the counts that the one before it changed. Two windows at a time, in both halves, hide that;
        // what the second one begins with is what goes from there on.
        let mut second = Histogram { counts: [0; VALUES], bytes: 0, sum: 0, ..self.clone() };
        second.add(&going[half..half + self.window - 1]);
        let (coming, going) = (coming.split_at(half), going.split_at(half));
        let (found, later) = found.split_at_mut(half);
        let pairs = coming.0.iter().zip(going.0).zip(found);
        let mut others = coming.1.iter().zip(going.1).zip(later);
        for (((a, b), found), ((c, d), later)) in pairs.zip(others.by_ref()) {
            (*found, *later) = (self.step(&growth, *a, *b), second.step(&growth, *c, *d));
        }
        others.for_each(|((c, d), later)| *later = second.step(&growth, *c, *d));
        (self.counts, self.sum) = (second.counts, second.sum);
    }

    /// One byte comes, and one goes: the entropy in between.
    #[inline(always)]
    fn step(&mut self, growth: &Growth, coming: u8, going: u8) -> f32 {
        let count = &mut self.counts[usize::from(coming)];
        let between = self.sum + growth.at(*count);
        *count += 1;
        let count = &mut self.counts[usize::from(going)];
        *count -= 1;
        self.sum = between - growth.at(*count);
        self.full.of(between)
    }
}

/// By how much the sum grows, by how often a value has occurred.
#[derive(Debug)]
struct Growth(Box<[i64; DIFFERENCES]>);

impl Growth {
    fn new(window: usize) -> Growth {
        let whole = |c: usize| if c == 0 { 0 } else { (c as f64 * (c as f64).log2() * UNITS).round() as i64 };
        let mut table = Box::new([0; DIFFERENCES]);
        (0..=window).for_each(|c| table[c] = whole(c + 1) - whole(c));
        Growth(table)
    }

    #[inline(always)]
    fn at(&self, count: u32) -> i64 {
        self.0[usize::from(count as u16)]
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
    fn new(growth: Option<&Growth>, bytes: usize) -> Scale {
        // Without a table the formula is evaluated, and this is not used.
        let total = |c: usize| growth.map_or(0, |growth| growth.0[..c].iter().sum::<i64>());
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
        // Between the ends it is so far from them that rounding does not reach beyond.
        let inner = (self.bits - sum as f64 * self.unit) as f32;
        let inner = if sum == self.least { 1.0 } else { inner };
        if sum == self.most { 0.0 } else { inner }
    }
}
