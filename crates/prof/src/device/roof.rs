//! What this machine can do at most, measured: the lines of a roofline.
//!
//! Arithmetic: the fastest of several matrix products that stay in a core's own caches, with weights packed ahead. That
//! is a lower bound of what the multiply-add units can do (a few percent below it), and a figure that a real program can
//! reach. Memory: reading by whole registers, copying and changing in place by plain Rust, at a size for each cache level and one for main
//! memory; a copy or change of n bytes counts 2n. Functions: the fastest of exp, sigmoid and tanh over a vector in cache.

use super::{Progress, Result, cpu};
use crate::measure;
use schwann_core::backend::cpu::Cpu;
use schwann_core::memory::Budget;
use schwann_core::op::Unary;
use schwann_core::pass::PassOptions;
use schwann_core::plan::Device;
use schwann_core::{CompileOptions, DType, Error as Core, Graph, GraphBuilder, Op, Program, Session, Tensor};
use schwann_kernels::{Isa, peak};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;

/// How fast memory is at one distance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// `L1`, `L2`, `L3` or `memory`.
    pub name: String,
    /// What fits here, for all threads together; `None` for main memory.
    pub capacity_bytes: Option<usize>,
    /// Bytes that were copied between at this distance, for all threads together.
    pub working_set_bytes: usize,
    /// Copied: read and written.
    pub copy_bytes_per_s: f64,
    /// Only read.
    pub read_bytes_per_s: f64,
    /// Changed in place: read and written, without fetching what is only overwritten.
    pub update_bytes_per_s: f64,
}

impl Level {
    /// The fastest of the ways to move bytes.
    pub fn bytes_per_s(&self) -> f64 {
        self.copy_bytes_per_s.max(self.read_bytes_per_s).max(self.update_bytes_per_s)
    }
}

/// The machine's measured limits for some number of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The instruction set.
    pub isa: String,
    /// Threads that were at work.
    pub threads: usize,
    /// Multiply-adds in registers, `f32`.
    pub flops_per_s: f64,
    /// Products of bfloat16 that stay in cache.
    pub bf16_flops_per_s: f64,
    /// The fastest of exp, sigmoid and tanh.
    pub functions_per_s: f64,
    /// Memory, near to far.
    pub levels: Vec<Level>,
    /// How all of this is known.
    pub provenance: String,
    /// How it was measured.
    pub source: String,
}

/// A compiled graph with its inputs, ready to be timed.
pub struct Ready {
    session: Session,
    inputs: Vec<(String, Tensor)>,
}

impl Ready {
    /// Compiles a graph for these inputs.
    pub fn new(
        graph: &Graph,
        inputs: impl IntoIterator<Item = (String, Tensor)>,
        cpu: &Cpu,
        passes: PassOptions,
    ) -> Result<Ready> {
        let options = CompileOptions::default().passes(passes).budget(Budget::fraction(0.9).unwrap_or_default());
        let program = Program::compile_for(graph, cpu, &options)?;
        Ok(Ready { session: program.session(), inputs: inputs.into_iter().collect() })
    }

    /// Runs once and gives the outputs.
    pub fn run(&mut self) -> Result<&[Tensor]> {
        fn pair((name, tensor): &(String, Tensor)) -> (&str, &Tensor) {
            (name, tensor)
        }
        // The list of inputs lives on the stack and has no more than there are, so that timing a run times little of ours.
        let inputs: &[(&str, &Tensor)] = match &self.inputs[..] {
            [] => &[],
            [a] => &[pair(a)],
            [a, b] => &[pair(a), pair(b)],
            [a, b, c] => &[pair(a), pair(b), pair(c)],
            [a, b, c, d] => &[pair(a), pair(b), pair(c), pair(d)],
            many => &many.iter().map(pair).collect::<Vec<_>>(),
        };
        Ok(self.session.run(inputs)?)
    }

    /// The session that runs it; it has a plan after the first run.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Times runs for about so many seconds.
    pub fn time(&mut self, seconds: f64) -> Result<measure::Samples> {
        measure::time(seconds, || self.run().map(|_| ()))
    }
}

/// A graph that gives its input of so many bytes back: one plain copy, in the same buffers, on the same threads and
/// through the same call as any other graph.
pub fn plain_copy(bytes: usize, cpu: &Cpu) -> Result<Ready> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::U8, &[bytes][..])?;
    b.output("x", x)?;
    Ready::new(&b.build()?, [("x".into(), Tensor::zeros(DType::U8, &[bytes])?)], cpu, PassOptions::default())
}

/// `count` numbers between −1 and 1, the same on every machine; a block of random ones repeated, since large inputs are
/// for timing alone.
pub fn numbers(dtype: DType, shape: &[usize], low: f64, high: f64) -> Result<Tensor> {
    let mut random = schwann_core::cases::random::Random::named("bench");
    let count = schwann_core::tensor::count(shape).ok_or_else(|| Core::Value {
        node: "an input of the benchmark".into(),
        problem: format!("a shape of {shape:?} has more elements than memory has bytes"),
    })?;
    let block = random.floats_as(dtype, &[count.min(65_536)], low, high);
    let mut tensor = Tensor::zeros(dtype, shape)?;
    tensor
        .bytes_mut()
        .chunks_mut(block.bytes().len().max(1))
        .for_each(|c| c.copy_from_slice(&block.bytes()[..c.len()]));
    Ok(tensor)
}

/// A product of an input and a weight, packed ahead.
pub fn packed_product(dtype: DType, [m, k, n]: [usize; 3]) -> Result<(Graph, Vec<(String, Tensor)>)> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", dtype, &[m, k][..])?;
    let w = b.weight("w", numbers(dtype, &[k, n], -1.0, 1.0)?)?;
    let y = b.matmul(x, w)?;
    b.output("y", y)?;
    Ok((b.build()?, vec![("x".into(), numbers(dtype, &[m, k], -1.0, 1.0)?)]))
}

/// A function of a vector.
fn functions(op: Unary, count: usize) -> Result<(Graph, Vec<(String, Tensor)>)> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, &[count][..])?;
    let y = b.push(Op::Unary(op), &[x])?;
    b.output("y", y)?;
    Ok((b.build()?, vec![("x".into(), numbers(DType::F32, &[count], -2.0, 2.0)?)]))
}

/// Ten steps that do next to nothing: what a step costs beyond its work.
pub const OVERHEAD_STEPS: usize = 10;

/// A graph of [`OVERHEAD_STEPS`] steps without work to speak of.
pub fn overhead() -> Result<(Graph, Vec<(String, Tensor)>)> {
    let mut b = GraphBuilder::new();
    let mut x = b.input("x", DType::F32, &[1, 4][..])?;
    for _ in 0..OVERHEAD_STEPS {
        x = b.abs(x)?;
    }
    b.output("y", x)?;
    Ok((b.build()?, vec![("x".into(), numbers(DType::F32, &[1, 4], -1.0, 1.0)?)]))
}

/// Arithmetic per second in matrix products that stay in cache.
pub fn flops(cpu: &Cpu, dtype: DType, seconds: f64) -> Result<f64> {
    let sizes: [[usize; 3]; 3] = [[192, 192, 192], [256, 256, 256], [384, 512, 384]];
    let mut best = 0.0f64;
    for [m, k, n] in sizes {
        let (graph, inputs) = packed_product(dtype, [m, k, n])?;
        let samples = Ready::new(&graph, inputs, cpu, PassOptions::default())?.time(seconds / sizes.len() as f64)?;
        best = best.max(2.0 * (m * k * n) as f64 / samples.min_s);
    }
    Ok(best)
}

/// Arithmetic per second in registers alone, every thread at once: the best round of several.
pub fn peak_flops(isa: Isa, threads: usize, seconds: f64) -> f64 {
    const ROUNDS: usize = 50_000;
    let start = Instant::now();
    let mut best = 0.0f64;
    let barrier = std::sync::Barrier::new(threads);
    while start.elapsed().as_secs_f64() < seconds {
        let rates = std::thread::scope(|scope| {
            let burst = || {
                barrier.wait();
                let round = Instant::now();
                let flops: u64 = (0..8).map(|_| peak::burst(isa, ROUNDS)).sum();
                flops as f64 / round.elapsed().as_secs_f64()
            };
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(burst)).collect();
            let own = burst();
            own + others.into_iter().filter_map(|t| t.join().ok()).sum::<f64>()
        });
        best = best.max(rates);
    }
    best
}

/// Evaluations of a function per second.
pub fn functions_per_s(cpu: &Cpu, op: Unary, seconds: f64) -> Result<f64> {
    let count = 65_536 * cpu.threads();
    let (graph, inputs) = functions(op, count)?;
    Ok(count as f64 / Ready::new(&graph, inputs, cpu, PassOptions::default())?.time(seconds)?.min_s)
}

/// Seconds that a step costs beyond its work, on one thread.
pub fn step_overhead_s(isa: Isa, seconds: f64) -> Result<f64> {
    let (graph, inputs) = overhead()?;
    let samples = Ready::new(&graph, inputs, &Cpu::with_isa(isa, 1)?, PassOptions::none())?.time(seconds)?;
    Ok(samples.min_s / OVERHEAD_STEPS as f64)
}

/// Best of several rounds in which every thread does `work` on its own buffers; bytes per second of all together.
fn together(threads: usize, bytes: usize, seconds: f64, work: impl Fn(&mut [u64], &[u64], usize) + Sync) -> f64 {
    let words = (bytes / threads / 8).max(64);
    let moved_once = (words * threads * 8) as f64;
    // A round is long beside starting it.
    let repeats = ((64 << 20) / (words * 8)).clamp(1, 1 << 16);
    let start = Instant::now();
    let mut best = 0.0f64;
    let barrier = std::sync::Barrier::new(threads);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let slowest = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for id in 0..threads {
            let (barrier, stop, slowest, work) = (&barrier, &stop, &slowest, &work);
            scope.spawn(move || {
                let from = vec![1u64; words];
                let mut to = vec![0u64; words];
                loop {
                    barrier.wait();
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    let round = Instant::now();
                    work(&mut to, &from, repeats);
                    let took = round.elapsed().as_secs_f64();
                    slowest.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(took);
                    barrier.wait();
                    // One thread decides for all, between two rounds.
                    if id == 0 && start.elapsed().as_secs_f64() >= seconds {
                        stop.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                }
                black_box(&to);
            });
        }
    });
    let times = slowest.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Each round ends when its slowest thread does.
    for round in times.chunks(threads) {
        let took = round.iter().copied().fold(0.0, f64::max);
        best = best.max(moved_once * repeats as f64 / took.max(1e-9));
    }
    best
}

fn copy(to: &mut [u64], from: &[u64], repeats: usize) {
    for _ in 0..repeats {
        to.copy_from_slice(black_box(from));
        black_box(&mut *to);
    }
}

fn read(_: &mut [u64], from: &[u64], repeats: usize) {
    let isa = Isa::detect();
    for _ in 0..repeats {
        peak::read(isa, black_box(from));
    }
}

fn update(to: &mut [u64], _: &[u64], repeats: usize) {
    for _ in 0..repeats {
        let to = black_box(&mut *to);
        to.iter_mut().for_each(|v| *v ^= 0x5555);
    }
}

/// Bytes per second that changing in place moves (read and written).
fn update_bytes_per_s(threads: usize, bytes: usize, seconds: f64) -> f64 {
    2.0 * together(threads, bytes, seconds, update)
}

/// Bytes per second that copying moves (read and written) with a working set of `bytes` in all.
pub fn copy_bytes_per_s(threads: usize, bytes: usize, seconds: f64) -> f64 {
    // The buffers are two, and each of their bytes is moved once.
    2.0 * together(threads, bytes / 2, seconds, copy)
}

/// Bytes per second that reading moves.
pub fn read_bytes_per_s(threads: usize, bytes: usize, seconds: f64) -> f64 {
    together(threads, bytes, seconds, read)
}

/// A working set that no cache holds.
pub fn memory_working_set() -> usize {
    let largest = cpu::caches().ok().and_then(|c| c.iter().map(|c| c.bytes).max()).unwrap_or(32 << 20);
    largest.saturating_mul(4).clamp(128 << 20, 512 << 20)
}

pub(super) fn levels(threads: usize, seconds: f64, tell: &mut dyn FnMut(Progress)) -> Vec<Level> {
    let caches = cpu::caches().unwrap_or_else(|_| {
        let typical = [(1, 32 << 10), (2, 512 << 10), (3, 8 << 20)];
        typical.map(|(level, bytes)| cpu::Cache { level, bytes, shared_by: None }).into()
    });
    let mut places: Vec<(String, Option<usize>, usize)> = caches
        .iter()
        .map(|c| {
            // A cache that several cores share is one for all threads; the others are one each.
            let private = c.level < 3 && c.shared_by.is_none_or(|n| n <= 2);
            let capacity = if private { c.bytes * threads } else { c.bytes };
            (format!("L{}", c.level), Some(capacity), capacity / 2)
        })
        .collect();
    places.push(("memory".into(), None, memory_working_set()));
    let each = seconds / (3 * places.len()) as f64;
    let mut found: Vec<Level> = places
        .into_iter()
        .map(|(name, capacity_bytes, working_set_bytes)| {
            tell(Progress::new(format!("{name} bandwidth, {}", words(threads))));
            Level {
                copy_bytes_per_s: copy_bytes_per_s(threads, working_set_bytes, each),
                read_bytes_per_s: read_bytes_per_s(threads, working_set_bytes, each),
                update_bytes_per_s: update_bytes_per_s(threads, working_set_bytes, each),
                name,
                capacity_bytes,
                working_set_bytes,
            }
        })
        .collect();
    // Farther is never faster; where plain Rust's loop was the limit near by, the farther figure is a better bound.
    for i in (0..found.len().saturating_sub(1)).rev() {
        found[i].copy_bytes_per_s = found[i].copy_bytes_per_s.max(found[i + 1].copy_bytes_per_s);
        found[i].read_bytes_per_s = found[i].read_bytes_per_s.max(found[i + 1].read_bytes_per_s);
        found[i].update_bytes_per_s = found[i].update_bytes_per_s.max(found[i + 1].update_bytes_per_s);
    }
    found
}

/// How many steps [`Limits::measure`] tells of.
pub const PROGRESS_STEPS: u64 = 7;

impl Limits {
    /// Measures for about so many seconds; tells of [`PROGRESS_STEPS`] steps at most.
    pub fn measure(cpu: &Cpu, seconds: f64, tell: &mut dyn FnMut(Progress)) -> Result<Limits> {
        let threads = cpu.threads();
        let part = seconds / 8.0;
        tell(Progress::new(format!("arithmetic, {}", words(threads))));
        let flops_per_s = peak_flops(cpu.isa(), threads, 2.0 * part);
        tell(Progress::new(format!("bfloat16 products, {}", words(threads))));
        let bf16_flops_per_s = flops(cpu, DType::Bf16, part)?;
        tell(Progress::new(format!("functions, {}", words(threads))));
        let mut fastest = 0.0f64;
        for op in [Unary::Exp, Unary::Sigmoid, Unary::Tanh] {
            fastest = fastest.max(functions_per_s(cpu, op, part / 3.0)?);
        }
        let levels = levels(threads, 4.0 * part, tell);
        Ok(Limits {
            isa: cpu.isa().name().into(),
            threads,
            flops_per_s,
            bf16_flops_per_s,
            functions_per_s: fastest,
            levels,
            provenance: "measured".into(),
            source: "f32: multiply-adds in registers; bf16: products that stay in cache; copies, reads and updates by cache \
                     level; exp, sigmoid, tanh in cache".into(),
        })
    }

    /// The most bytes a second at which a working set can be moved, and the level that bounds it. A level that is too
    /// small still serves the part that it holds.
    pub fn bandwidth(&self, working_set: usize) -> (f64, Option<&str>) {
        let speed = Level::bytes_per_s;
        let fits = |l: &Level| l.capacity_bytes.is_none_or(|c| working_set <= c);
        let Some(at) = self.levels.iter().position(fits) else { return (f64::INFINITY, None) };
        let (near, far) = (at.checked_sub(1).map(|n| &self.levels[n]), &self.levels[at]);
        let held = near.and_then(|l| l.capacity_bytes).map_or(0.0, |c| c as f64 / working_set as f64);
        let seconds_a_byte = near.map_or(0.0, |l| held / speed(l)) + (1.0 - held) / speed(far);
        let name = if held > 0.5 { near.map_or(&far.name, |l| &l.name) } else { &far.name };
        (1.0 / seconds_a_byte, Some(name))
    }
}

/// A description of this machine for predictions, measured in under two seconds.
pub fn quick_device(cpu: &Cpu, tell: &mut dyn FnMut(Progress)) -> Result<Device> {
    tell(Progress::new("arithmetic"));
    let flops_per_s = flops(cpu, DType::F32, 0.4)?;
    tell(Progress::new("memory"));
    let bytes_per_s = copy_bytes_per_s(cpu.threads(), memory_working_set() / 2, 0.4);
    tell(Progress::new("functions"));
    let transcendentals_per_s = functions_per_s(cpu, Unary::Tanh, 0.2)?;
    tell(Progress::new("overhead"));
    let step_overhead_s = step_overhead_s(cpu.isa(), 0.2)?;
    Ok(Device {
        name: format!("this CPU ({}, {})", cpu.isa(), words(cpu.threads())),
        flops_per_s,
        bytes_per_s,
        transcendentals_per_s,
        step_overhead_s,
        source: format!(
            "measured just now: {}flop/s, {}B/s copied, {}functions/s, {} a step",
            spaced(flops_per_s),
            spaced(bytes_per_s),
            spaced(transcendentals_per_s),
            schwann_core::plan::seconds(step_overhead_s)
        ),
    })
}

/// `1 thread`, `2 threads`.
pub(super) fn words(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// A rate with room for its unit: `312 G` and then `flop/s`.
fn spaced(rate: f64) -> String {
    let text = schwann_core::plan::count(rate as u64);
    if text.contains(' ') { text } else { text + " " }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_set_between_two_levels_is_between_their_speeds() {
        let level = |name: &str, capacity_bytes, speed| Level {
            name: name.into(),
            capacity_bytes,
            working_set_bytes: 0,
            copy_bytes_per_s: speed,
            read_bytes_per_s: speed / 2.0,
            update_bytes_per_s: speed / 4.0,
        };
        let roof = Limits {
            isa: "portable".into(),
            threads: 1,
            flops_per_s: 1.0,
            bf16_flops_per_s: 1.0,
            functions_per_s: 1.0,
            levels: vec![level("L1", Some(1000), 100.0), level("memory", None, 10.0)],
            provenance: "measured".into(),
            source: String::new(),
        };
        assert_eq!(roof.bandwidth(1000), (100.0, Some("L1")));
        assert_eq!(roof.bandwidth(0), (100.0, Some("L1")));
        let (speed, name) = roof.bandwidth(1001);
        assert!(speed < 100.0 && speed > 98.0 && name == Some("L1"));
        let (speed, name) = roof.bandwidth(1_000_000);
        assert!(speed > 10.0 && speed < 10.1 && name == Some("memory"));
    }
}
