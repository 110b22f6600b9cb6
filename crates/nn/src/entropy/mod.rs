//! Entropy of bytes by windows: how much surprise there is in each piece of a file, from 0 (one value repeated) to 1 (all 256
//! values equally often).
//!
//! [`graph`] is the one definition, for every backend: with c the counts of the 256 values in a window of n bytes and
//! p = c/n, it is −Σ p·log₂ p / 8. Divisions and logarithms differ by a little from device to device. So the two ends are
//! told by the counts, which are exact everywhere: where the largest count is n, the entropy is 0; where it is n/256, all
//! values occur equally often, and the entropy is 1. [`Entropy`] cuts a stream of bytes into windows and runs the graph
//! on many at a time; on the CPU it keeps a histogram of the moving window instead, which is faster. [`of_counts`] is the
//! formula in plain `f64`. [`Patches`] cuts a stream where its entropy is high or rises.

mod histogram;
mod patches;

pub use patches::{Patches, Rule};

use crate::error::{Error, Result};
use histogram::Histogram;
use schwann_core::backend::{Backend, Choice};
use schwann_core::{CompileOptions, DType, Dim, Graph, GraphBuilder, Program, Session, Tensor, shape};
use std::ops::Range;

/// Values that a byte has.
const VALUES: usize = 256;

/// The longest window: up to here every count is exact in `f32`.
pub const MOST_WINDOW: usize = 1 << 24;

/// Bytes that go through the graph in one run, where windows are shorter, and the most windows: about what a second-level
/// cache holds of counts and indices.
const RUN_BYTES: usize = 1 << 16;
const RUN_WINDOWS: usize = 256;

/// The entropy of windows as a graph: `bytes`, `u8[W, N]`, and `first`, `f32[W, 1]` with 256·w for window w, give `entropy`,
/// `f32[W]`.
pub fn graph() -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let bytes = b.input("bytes", DType::U8, shape!["W", "N"])?;
    let first = b.input("first", DType::F32, shape!["W", 1])?;
    let (windows, length) = (Dim::symbol("W"), Dim::symbol("N"));
    let too_large = || Error::Engine(schwann_core::Error::Dimension { dim: "W*N".into(), value: i64::MAX });
    let all = windows.checked_mul(&length).ok_or_else(too_large)?;
    let cells = windows.checked_mul(&Dim::fixed(VALUES)).ok_or_else(too_large)?;

    // How often each value occurs in each window: bytes of window w with value v are summed in place 256·w + v. Places are
    // small enough to be exact in floats, whose arithmetic is one pass.
    let value = b.cast(bytes, DType::F32)?;
    let place = b.add(value, first)?;
    let cell = b.named("cell").cast(place, DType::I32)?;
    let cell = b.reshape(cell, vec![all.clone()])?;
    let one = b.scalar(1.0)?;
    let ones = b.broadcast(one, vec![all])?;
    let counts = b.named("count").segment_sum(ones, cell, 0, cells)?;
    let counts = b.reshape(counts, shape!["W", 256])?;

    // −Σ p·ln p / ln 256; a value that does not occur adds 0 · ln(tiny) = 0.
    let total = b.named("length").sum(counts, &[1], true)?;
    let share = b.named("share").div(counts, total)?;
    let tiny = b.scalar(f32::MIN_POSITIVE)?;
    let positive = b.max(share, tiny)?;
    let log = b.log(positive)?;
    let term = b.mul(share, log)?;
    let sum = b.named("sum").sum(term, &[1], true)?;
    let scale = b.scalar((-1.0 / (VALUES as f64).ln()) as f32)?;
    let inner = b.mul(sum, scale)?;
    let (zero, whole) = (b.scalar(0.0)?, b.scalar(1.0)?);
    let inner = b.max(inner, zero)?;
    let inner = b.min(inner, whole)?;

    // Both ends, by the largest count.
    let most = b.named("most").reduce_max(counts, &[1], true)?;
    let values = b.scalar(VALUES as f32)?;
    let spread = b.mul(most, values)?;
    let even = b.eq(spread, total)?;
    let upper = b.select(even, whole, inner)?;
    let constant = b.eq(most, total)?;
    let ended = b.named("entropy").select(constant, zero, upper)?;
    let entropy = b.reshape(ended, shape!["W"])?;
    b.output("entropy", entropy)?;
    Ok(b.build()?)
}

/// The same in `f64` from how often each value occurs; 0 where nothing does.
pub fn of_counts(counts: &[u64; VALUES]) -> f64 {
    let total: u64 = counts.iter().sum();
    let most = counts.iter().copied().max().unwrap_or(0);
    if most == total {
        return 0.0;
    }
    if most.checked_mul(VALUES as u64) == Some(total) {
        return 1.0;
    }
    let share = |&c: &u64| c as f64 / total as f64;
    let sum: f64 = counts.iter().filter(|c| **c > 0).map(share).map(|p| p * p.log2()).sum();
    (-sum / 8.0).clamp(0.0, 1.0)
}

/// Counts how often each value occurs.
pub fn count(bytes: &[u8], counts: &mut [u64; VALUES]) {
    for byte in bytes {
        counts[usize::from(*byte)] += 1;
    }
}

/// How a stream of bytes is cut: a window begins at each multiple of `step`, until one reaches the end; the last one has
/// what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Bytes of a window.
    pub window: usize,
    /// Bytes from the beginning of one to that of the next.
    pub step: usize,
}

impl Windows {
    /// Where window number k lies in a stream of so many bytes.
    pub fn place(self, k: u64, bytes: u64) -> Range<u64> {
        let start = k.saturating_mul(self.step as u64).min(bytes);
        start..start.saturating_add(self.window as u64).min(bytes)
    }
}

/// The entropy of a stream's windows.
///
/// ```
/// # use schwann_nn::entropy::{Entropy, Windows};
/// # fn main() -> schwann_nn::Result<()> {
/// let windows = Windows { window: 256, step: 256 };
/// let mut stream = Entropy::new(&Default::default(), windows)?;
/// let mut found = vec![];
/// let bytes: Vec<u8> = (0..=255).chain([7; 300]).collect();
/// stream.feed(&bytes, &mut found)?;
/// stream.finish(&mut found)?;
/// assert_eq!(found, [1.0, 0.0, 0.0]);
/// assert_eq!(windows.place(2, 556), 512..556);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Entropy {
    how: How,
    windows: Windows,
    /// Bytes that windows to come need, and where in the stream they begin.
    held: Vec<u8>,
    held_from: u64,
    /// Where the next window begins, and where the last one ended.
    next: u64,
    reached: u64,
    /// Bytes so far.
    bytes: u64,
}

/// What computes it.
#[derive(Debug)]
enum How {
    /// A histogram of the bytes of the next window that were there so far: up to this place in the stream.
    Histogram(Box<Histogram>, u64),
    Graph(Box<Runs>),
}

/// Runs of the graph.
#[derive(Debug)]
struct Runs {
    session: Session,
    /// What a run is given, and how many of its windows are there.
    batch: Tensor,
    first: Tensor,
    filled: usize,
}

impl Entropy {
    /// A stream that is cut into these windows: on the CPU by a histogram, on any other backend by the graph.
    pub fn new(backend: &Choice, windows: Windows) -> Result<Entropy> {
        if backend.is_cpu() {
            check(windows)?;
            return Ok(Entropy::by(How::Histogram(Box::new(Histogram::new(windows.window)), 0), windows));
        }
        Entropy::by_graph(&*backend.make(1)?, windows)
    }

    /// The same by the graph, on any backend.
    pub fn by_graph(backend: &dyn Backend, windows: Windows) -> Result<Entropy> {
        check(windows)?;
        let program = Program::compile_for(&graph()?, backend, &CompileOptions::default())?;
        let (batch, first) = inputs((RUN_BYTES / windows.window).clamp(1, RUN_WINDOWS), windows.window)?;
        let runs = Runs { session: program.session(), batch, first, filled: 0 };
        Ok(Entropy::by(How::Graph(Box::new(runs)), windows))
    }

    fn by(how: How, windows: Windows) -> Entropy {
        Entropy { how, windows, held: vec![], held_from: 0, next: 0, reached: 0, bytes: 0 }
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What computes it.
    pub fn backend(&self) -> &str {
        match &self.how {
            How::Histogram(..) => "cpu (a histogram of the moving window)",
            How::Graph(runs) => runs.session.program().backend(),
        }
    }

    /// Takes more of the stream, and adds the entropy of windows that are done. Some are kept back until a run is full.
    pub fn feed(&mut self, bytes: &[u8], found: &mut Vec<f32>) -> Result<()> {
        for piece in bytes.chunks(RUN_BYTES) {
            self.bytes += piece.len() as u64;
            self.held.extend_from_slice(piece);
            match &mut self.how {
                How::Histogram(histogram, counted) => {
                    let held = Held { bytes: &self.held, from: self.held_from };
                    while self.next.saturating_add(self.windows.window as u64) <= self.bytes {
                        self.reached = held.windows(self.windows, &mut self.next, histogram, counted, found);
                    }
                }
                How::Graph(runs) => {
                    let Windows { window, step } = self.windows;
                    while self.next.saturating_add(window as u64) <= self.bytes {
                        let from = (self.next - self.held_from) as usize;
                        runs.add(&self.held[from..from + window], found)?;
                        self.reached = self.next + window as u64;
                        self.next = self.next.saturating_add(step as u64);
                    }
                }
            }
            // No window to come needs what is before the next one.
            let gone = usize::try_from(self.next - self.held_from).unwrap_or(usize::MAX).min(self.held.len());
            self.held.drain(..gone);
            self.held_from += gone as u64;
        }
        Ok(())
    }

    /// The stream ends: adds the entropy of the windows that are left, the last one perhaps a shorter one.
    pub fn finish(mut self, found: &mut Vec<f32>) -> Result<()> {
        if let How::Graph(runs) = &mut self.how {
            runs.finish(found)?;
        }
        if self.next < self.bytes && self.reached < self.bytes {
            let rest = &self.held[(self.next - self.held_from) as usize..];
            match &mut self.how {
                How::Histogram(histogram, _) => {
                    histogram.clear();
                    histogram.add(rest);
                    found.push(histogram.entropy());
                }
                How::Graph(runs) => {
                    (runs.batch, runs.first) = inputs(1, rest.len())?;
                    runs.add(rest, found)?;
                }
            }
        }
        Ok(())
    }
}

/// Bytes of the stream, and where they begin.
struct Held<'a> {
    bytes: &'a [u8],
    from: u64,
}

impl Held<'_> {
    fn get(&self, from: u64, to: u64) -> &[u8] {
        &self.bytes[(from - self.from) as usize..(to - self.from) as usize]
    }

    /// The next window that is there, or all of them if each is one byte after the last: moves `next` on, and gives where the
    /// last one ended. `counted` is up to where the histogram has the bytes from `next` on.
    fn windows(
        &self,
        Windows { window, step }: Windows,
        next: &mut u64,
        histogram: &mut Histogram,
        counted: &mut u64,
        found: &mut Vec<f32>,
    ) -> u64 {
        let (window, end) = (window as u64, self.from + self.bytes.len() as u64);
        if step == 1 {
            // All but the last byte of the first window are in already, once this ran.
            histogram.add(self.get((*counted).max(*next), (*next + window - 1).max(*counted)));
            let many = end - (*next + window - 1);
            let (coming, going) = (self.get(*next + window - 1, end), self.get(*next, *next + many));
            histogram.slide(coming, going, found);
            *next += many;
            *counted = end;
            return end;
        }
        let reached = *next + window;
        histogram.add(self.get((*counted).max(*next), reached));
        found.push(histogram.entropy());
        *next = next.saturating_add(step as u64);
        *counted = reached;
        if *next < reached {
            histogram.remove(self.get(reached - window, *next));
        } else {
            histogram.clear();
        }
        reached
    }
}

impl Runs {
    /// Adds a window; runs when there are enough.
    fn add(&mut self, window: &[u8], found: &mut Vec<f32>) -> Result<()> {
        let row = self.filled * window.len()..(self.filled + 1) * window.len();
        self.batch.bytes_mut()[row].copy_from_slice(window);
        self.filled += 1;
        if self.filled == self.batch.shape()[0] {
            self.run(found)?;
        }
        Ok(())
    }

    /// Runs the windows that wait.
    fn finish(&mut self, found: &mut Vec<f32>) -> Result<()> {
        if self.filled == 0 {
            return Ok(());
        }
        let window = self.batch.shape()[1];
        let full = std::mem::replace(&mut self.batch, Tensor::zeros(DType::U8, &[self.filled, window])?);
        self.batch.bytes_mut().copy_from_slice(&full.bytes()[..self.filled * window]);
        self.first = places(self.filled)?;
        self.run(found)
    }

    fn run(&mut self, found: &mut Vec<f32>) -> Result<()> {
        let entropy = self.session.run(&[("bytes", &self.batch), ("first", &self.first)])?;
        found.extend_from_slice(entropy[0].values::<f32>()?);
        self.filled = 0;
        Ok(())
    }
}

fn check(Windows { window, step }: Windows) -> Result<()> {
    if window == 0 || window > MOST_WINDOW {
        return Err(Error::argument("window", window, format!("1 to {MOST_WINDOW} bytes")));
    }
    if step == 0 {
        return Err(Error::argument("step", step, "1 byte or more"));
    }
    Ok(())
}

/// Room for a run's windows, and the place of each window's counts.
fn inputs(windows: usize, window: usize) -> Result<(Tensor, Tensor)> {
    Ok((Tensor::zeros(DType::U8, &[windows, window])?, places(windows)?))
}

fn places(windows: usize) -> Result<Tensor> {
    let places: Vec<f32> = (0..windows).map(|w| (w * VALUES) as f32).collect();
    Ok(Tensor::new(&[windows, 1], &places)?)
}
