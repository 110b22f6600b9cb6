//! Patches: pieces of a stream of bytes that begin where something unexpected comes, for networks that read bytes.

use super::histogram::Histogram;
use super::{Error, MOST_WINDOW, Result};

/// Bytes whose entropies are computed before they are looked at: few enough to stay in a near cache.
const PIECE: usize = 1 << 14;

/// Where a patch ends and the next begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The entropy at a byte is that of this many bytes, of which it is the last; there are fewer at the beginning.
    pub window: usize,
    /// A patch begins at a byte whose entropy is above this.
    pub threshold: f32,
    /// Or where it is above that of the byte before by more than this.
    pub rise: Option<f32>,
    /// A patch has at least so many bytes; the last one may be shorter.
    pub least: usize,
    /// And at most so many: after these the next begins, whatever comes.
    pub most: usize,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule { window: 32, threshold: 0.5, rise: None, least: 4, most: 64 }
    }
}

/// Cuts a stream into patches.
///
/// ```
/// use schwann_nn::entropy::{Patches, Rule};
///
/// # fn main() -> schwann_nn::Result<()> {
/// let rule = Rule { window: 4, threshold: 0.2, least: 2, most: 8, ..Rule::default() };
/// let mut patches = Patches::new(rule)?;
/// let mut starts = vec![];
/// patches.feed(b"aaaaaaaaaaaabcd", &mut starts);
/// // After eight equal bytes the next begins; then where the last four bytes all differ.
/// assert_eq!(starts, [0, 8, 14]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Patches {
    rule: Rule,
    histogram: Histogram,
    /// The last bytes, at most a window of them.
    held: Vec<u8>,
    found: Vec<f32>,
    /// The entropy at the last byte.
    before: f32,
    /// Bytes so far, and where the current patch begins.
    at: u64,
    start: u64,
}

impl Patches {
    /// By this rule.
    pub fn new(rule: Rule) -> Result<Patches> {
        let Rule { window, threshold, rise, least, most } = rule;
        if !(1..=MOST_WINDOW).contains(&window) {
            return Err(Error::argument("window", window, format!("1 to {MOST_WINDOW} bytes")));
        }
        if !(0.0..=1.0).contains(&threshold) {
            return Err(Error::argument("threshold", threshold, "from 0 to 1"));
        }
        if let Some(rise) = rise.filter(|r| !(0.0..=1.0).contains(r)) {
            return Err(Error::argument("rise", rise, "from 0 to 1"));
        }
        if least == 0 || most < least {
            return Err(Error::argument(
                "least and most",
                format!("{least} and {most}"),
                "1 or more, and no less than it",
            ));
        }
        let histogram = Histogram::new(window);
        Ok(Patches { rule, histogram, held: vec![], found: vec![], before: 0.0, at: 0, start: 0 })
    }

    /// Takes more of the stream, and adds where patches begin: the first at 0. The end of the stream ends the last one.
    pub fn feed(&mut self, bytes: &[u8], starts: &mut Vec<u64>) {
        if self.at == 0 && !bytes.is_empty() {
            starts.push(0);
        }
        bytes.chunks(PIECE).for_each(|piece| self.cut(piece, starts));
    }

    fn cut(&mut self, bytes: &[u8], starts: &mut Vec<u64>) {
        self.entropies(bytes);
        let Rule { threshold, rise, least, most, .. } = self.rule;
        let rise = rise.unwrap_or(f32::INFINITY);
        for &entropy in &self.found {
            let length = self.at - self.start;
            let unexpected = entropy > threshold || entropy - self.before > rise;
            if length >= most as u64 || (length >= least as u64 && unexpected) {
                starts.push(self.at);
                self.start = self.at;
            }
            self.before = entropy;
            self.at += 1;
        }
    }

    /// The entropy at each of these bytes, into `found`.
    fn entropies(&mut self, mut bytes: &[u8]) {
        self.found.clear();
        let window = self.rule.window;
        // A byte goes for each that comes, once the window is full but for the one that comes.
        while self.held.len() < window - 1 && !bytes.is_empty() {
            self.histogram.add(&bytes[..1]);
            self.found.push(self.histogram.entropy());
            self.held.push(bytes[0]);
            bytes = &bytes[1..];
        }
        let first = bytes.len().min(window - 1);
        self.histogram.slide(&bytes[..first], &self.held, &mut self.found);
        self.histogram.slide(&bytes[first..], bytes, &mut self.found);
        self.held.extend_from_slice(&bytes[bytes.len() - bytes.len().min(window - 1)..]);
        self.held.drain(..self.held.len().saturating_sub(window - 1));
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.at
    }
}
