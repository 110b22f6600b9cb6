//! What this machine can do at most, measured: the lines of a roofline.
//!
//! Arithmetic: multiply-adds in registers, which is what the units can do, of `f32` and of 8-bit integers; beside it the
//! fastest of several matrix products that stay in a core's own caches, in `f32` and in `bf16`, which is what a real program
//! can reach. Functions:
//! the fastest of exp, sigmoid, tanh and the gate of a recurrent cell over a vector in the first-level cache. Memory:
//! `levels.rs`.
//!
//! A limit is the best that was seen, and what runs beside it makes it too low. So a work that beats it shows that the
//! limit is wrong, and not that the work is miraculous ([`of_limit`]).

use super::cpu::Processor;
use super::levels::{self, at_once, least_seconds};
pub use super::levels::{Level, copy_bytes_per_s, read_bytes_per_s};
use super::{Progress, Result, cpu};
use crate::measure;
use schwann_core::backend::{Backend, Observer, Timeline};
use schwann_core::memory::Budget;
use schwann_core::op::{LowBit, Unary};
use schwann_core::pass::PassOptions;
use schwann_core::quant::{Scheme, Share};
use schwann_core::{
    CompileOptions, DType, Error as Core, Figure, Graph, GraphBuilder, Op, Program, Session, Tensor, Value,
};
use schwann_kernels::lowbit::{integer_burst, integer_path};
use schwann_kernels::{Isa, peak};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The machine's measured limits for some number of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The instruction set.
    pub isa: String,
    /// Threads that were at work.
    pub threads: usize,
    /// Multiply-adds in registers, `f32`.
    pub flops_per_s: f64,
    /// Products of `f32` that stay in cache.
    pub product_flops_per_s: f64,
    /// Products of bfloat16 that stay in cache.
    pub bf16_flops_per_s: f64,
    /// Sums of four products of 8-bit integers in registers, in the way that products with low-bit weights take; each product
    /// counts as two operations. `None` in files from before it was measured, and where there is no such instruction.
    #[serde(default)]
    pub int8_ops_per_s: Option<f64>,
    /// That way, such as `avx512 vnni`.
    #[serde(default)]
    pub int8_path: Option<String>,
    /// The fastest of exp, sigmoid, tanh and a gate.
    pub functions_per_s: f64,
    /// Memory, near to far.
    pub levels: Vec<Level>,
    /// What could not be measured, with the reason.
    pub left_out: Vec<String>,
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
        backend: &dyn Backend,
        passes: PassOptions,
    ) -> Result<Ready> {
        let options = CompileOptions::default().passes(passes).budget(Budget::fraction(0.9).unwrap_or_default());
        let program = Program::compile_for(graph, backend, &options)?;
        Ok(Ready { session: program.session(), inputs: inputs.into_iter().collect() })
    }

    /// Runs once and gives the outputs.
    pub fn run(&mut self) -> Result<&[Tensor]> {
        self.run_observed(None)
    }

    fn run_observed(&mut self, observer: Option<&mut dyn Observer>) -> Result<&[Tensor]> {
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
        Ok(self.session.run_observed(inputs, observer)?)
    }

    /// Seconds that each of some runs took on the device, by its own clock: from the beginning of the first kernel to the end of
    /// the last. Empty where the backend has no such clock. Runs go on for about so many seconds.
    pub fn device_times(&mut self, seconds: f64) -> Result<Vec<f64>> {
        const MOST: usize = 10_000;
        let mut times = vec![];
        let began = Instant::now();
        while times.len() < MOST && (times.is_empty() || began.elapsed().as_secs_f64() < seconds) {
            let mut timeline = Timeline::with_spans(MOST);
            self.run_observed(Some(&mut timeline))?;
            if timeline.clock() == timeline.host_clock() || timeline.queues().first().is_none_or(|q| q != "compute") {
                break;
            }
            let spans: Vec<_> = timeline.spans().into_iter().filter(|span| span.path.len() == 1).collect();
            let (first, last) = spans.iter().fold((f64::INFINITY, 0.0f64), |(first, last), span| {
                (first.min(span.start_s), last.max(span.start_s + span.seconds))
            });
            times.push((last - first).max(0.0));
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    }

    /// Bytes of its inputs.
    pub fn input_bytes(&self) -> usize {
        self.inputs.iter().map(|(_, t)| t.bytes().len()).sum()
    }

    /// Bytes of its outputs, which takes a run.
    pub fn output_bytes(&mut self) -> Result<usize> {
        Ok(self.run()?.iter().map(|t| t.bytes().len()).sum())
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
pub fn plain_copy(bytes: usize, backend: &dyn Backend) -> Result<Ready> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::U8, &[bytes][..])?;
    b.output("x", x)?;
    Ready::new(&b.build()?, [("x".into(), Tensor::zeros(DType::U8, &[bytes])?)], backend, PassOptions::default())
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

/// A product of an input and a weight, of these types, packed ahead.
pub fn packed_product(types: [DType; 2], [m, k, n]: [usize; 3]) -> Result<(Graph, Vec<(String, Tensor)>)> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", types[0], &[m, k][..])?;
    let w = b.weight("w", numbers(types[1], &[k, n], -1.0, 1.0)?)?;
    let y = b.matmul(x, w)?;
    b.output("y", y)?;
    Ok((b.build()?, vec![("x".into(), numbers(types[0], &[m, k], -1.0, 1.0)?)]))
}

/// Low-bit weights of a product from `k` to `n` numbers, with codes that are not all alike.
pub fn low_bit_weights(b: &mut GraphBuilder, name: &str, scheme: Scheme, [k, n]: [usize; 2]) -> Result<Value> {
    let code = scheme.code;
    let block = if let Share::Block(block) = scheme.share { block } else { k };
    let format = LowBit { code, len: k, block, offsets: false };
    let mut codes = vec![0u8; n * code.row_bytes(k)];
    for row in codes.chunks_mut(code.row_bytes(k).max(1)) {
        (0..k).for_each(|at| code.put(row, at, (at * 7919 % usize::from(code.levels())) as u8));
    }
    let rows = if scheme.share == Share::Matrix { 1 } else { n };
    let codes = b.weight(&format!("{name}.codes"), Tensor::new(&[n, code.row_bytes(k)], &codes)?)?;
    let scales = numbers(scheme.scales, &[rows, format.blocks()], 0.001, 0.002)?;
    let scales = b.weight(&format!("{name}.scales"), scales)?;
    Ok(b.low_bit(format, codes, scales, None)?)
}

/// Elements of a vector of functions, and how many functions deep it is.
const COUNT: usize = 1024;
const DEEP: usize = 8;

/// A function of a function of a vector, several deep: operands stay in the first-level cache and results in registers,
/// so that little but the functions is timed.
fn functions(op: Option<Unary>) -> Result<(Graph, Vec<(String, Tensor)>)> {
    let mut b = GraphBuilder::new();
    let mut x = b.input("x", DType::F32, &[COUNT][..])?;
    let other = b.input("other", DType::F32, &[COUNT][..])?;
    for _ in 0..DEEP {
        x = match op {
            // What an exponential gives is brought back to where the next one does not overflow.
            Some(Unary::Exp) => {
                let less = b.neg(x)?;
                b.exp(less)?
            }
            Some(op) => b.push(Op::Unary(op), &[x])?,
            None => super::suite::gate(&mut b, [x, other, x])?,
        };
    }
    let y = b.add(x, other)?;
    b.output("y", y)?;
    let data = || numbers(DType::F32, &[COUNT], -2.0, 2.0);
    Ok((b.build()?, vec![("x".into(), data()?), ("other".into(), data()?)]))
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
pub fn flops(cpu: &Processor, dtype: DType, seconds: f64) -> Result<f64> {
    let sizes: [[usize; 3]; 3] = [[192, 192, 192], [256, 256, 256], [384, 512, 384]];
    let mut best = 0.0f64;
    for [m, k, n] in sizes {
        let (graph, inputs) = packed_product([dtype; 2], [m, k, n])?;
        let mut ready = Ready::new(&graph, inputs, cpu.backend(), PassOptions::default())?;
        let samples = ready.time(seconds / sizes.len() as f64)?;
        best = best.max(2.0 * (m * k * n) as f64 / samples.min_s);
    }
    Ok(best)
}

/// Arithmetic per second in registers alone, every thread at once: the best round of several.
pub fn peak_flops(isa: Isa, threads: usize, seconds: f64) -> Result<f64> {
    peak(threads, seconds, |rounds| peak::burst(isa, rounds))
}

/// The same of sums of products of 8-bit integers; `None` where there is no instruction for them.
pub fn peak_integer_ops(isa: Isa, threads: usize, seconds: f64) -> Result<Option<f64>> {
    match integer_burst(isa, 1) {
        None => Ok(None),
        Some(_) => peak(threads, seconds, |rounds| integer_burst(isa, rounds).unwrap_or(0)).map(Some),
    }
}

fn peak(threads: usize, seconds: f64, burst: impl Fn(usize) -> u64 + Sync) -> Result<f64> {
    const ROUNDS: usize = 50_000;
    let start = Instant::now();
    let mut best = 0.0f64;
    while best == 0.0 || start.elapsed().as_secs_f64() < seconds {
        let rates = at_once(vec![(); threads.max(1)], |_, (), barrier| {
            barrier.wait();
            let round = Instant::now();
            let done: u64 = (0..8).map(|_| burst(ROUNDS)).sum();
            done as f64 / round.elapsed().as_secs_f64()
        })?;
        best = best.max(rates.iter().sum());
    }
    Ok(best)
}

/// Evaluations of a function a second on one thread, in the first-level cache; `None` is the gate of a recurrent cell,
/// which is three of them.
pub fn functions_per_s(isa: Isa, op: Option<Unary>, seconds: f64) -> Result<f64> {
    let (graph, inputs) = functions(op)?;
    let evaluations = COUNT * DEEP * if op.is_some() { 1 } else { 3 };
    let cpu = Processor::new(Some(isa), 1)?;
    Ok(evaluations as f64 / Ready::new(&graph, inputs, cpu.backend(), PassOptions::default())?.time(seconds)?.min_s)
}

/// Seconds that a step costs beyond its work, on one thread.
pub fn step_overhead_s(isa: Isa, seconds: f64) -> Result<f64> {
    let (graph, inputs) = overhead()?;
    let cpu = Processor::new(Some(isa), 1)?;
    let samples = Ready::new(&graph, inputs, cpu.backend(), PassOptions::none())?.time(seconds)?;
    Ok(samples.min_s / OVERHEAD_STEPS as f64)
}

/// How many steps [`Limits::measure`] tells of.
pub const PROGRESS_STEPS: u64 = 7;

impl Limits {
    /// Measures for about so many seconds; tells of [`PROGRESS_STEPS`] steps at most.
    pub fn measure(cpu: &Processor, seconds: f64, tell: &mut dyn FnMut(Progress)) -> Result<Limits> {
        Limits::measure_within(cpu, seconds, levels::allowance(), tell)
    }

    /// The same with at most so many bytes of memory.
    pub(super) fn measure_within(
        cpu: &Processor,
        seconds: f64,
        allowed: Option<usize>,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Limits> {
        let threads = cpu.threads();
        let part = seconds / 8.0;
        tell(Progress::new(format!("arithmetic, {}", words(threads))));
        let in_registers = peak_flops(cpu.isa(), threads, part)?;
        let int8_ops_per_s = peak_integer_ops(cpu.isa(), threads, part / 2.0)?;
        tell(Progress::new(format!("products, {}", words(threads))));
        let product_flops_per_s = flops(cpu, DType::F32, part)?;
        let bf16_flops_per_s = flops(cpu, DType::Bf16, part)?;
        tell(Progress::new(format!("functions, {}", words(threads))));
        let mut fastest = 0.0f64;
        for op in [Some(Unary::Exp), Some(Unary::Sigmoid), Some(Unary::Tanh), None] {
            fastest = fastest.max(functions_per_s(cpu.isa(), op, part / 4.0)?);
        }
        let (places, mut left_out) = levels::places(&cpu::caches(), threads, allowed);
        let levels = levels::measure(places, threads, 4.0 * part, &mut left_out, tell);
        Ok(Limits {
            isa: cpu.isa().name().into(),
            threads,
            // Products do nothing that registers do not: where they were faster, the burst was disturbed.
            flops_per_s: in_registers.max(product_flops_per_s),
            product_flops_per_s,
            bf16_flops_per_s,
            int8_ops_per_s,
            int8_path: Some(integer_path(cpu.isa()).0.to_owned()),
            functions_per_s: fastest * threads as f64,
            levels,
            left_out,
            provenance: "measured".into(),
            source:
                "f32 and 8-bit integers: multiply-adds in registers; f32 and bf16 products that stay in cache; copies, reads and updates \
                     by cache level; exp, sigmoid, tanh and gates in L1, one thread's times the threads"
                    .into(),
        })
    }

    /// The least seconds in which so many bytes are moved once, and the farthest level that some come from; `None` where
    /// the speed of that was not measured.
    pub fn memory(&self, bytes: u64) -> Option<(f64, &str)> {
        let of = |l: &Level| (l.capacity_bytes.map(|c| c as u64), l.bytes_per_s());
        let seconds = least_seconds(self.levels.iter().map(of), bytes)?;
        let mut held = 0u64;
        let farthest = self.levels.iter().find(|l| {
            held = l.capacity_bytes.map_or(u64::MAX, |c| held.saturating_add(c as u64));
            held >= bytes
        });
        Some((seconds, &farthest?.name))
    }
}

/// A time beyond its least by less than this part is at the limit: no clock tells them apart.
const ALIKE: f64 = 0.05;

/// The least possible time over the measured one, as a part of 1; `None` where that is more than all, which says that the
/// limit was measured too low.
pub fn share(part: f64) -> Option<f64> {
    (part <= 1.0 + ALIKE).then_some(part.min(1.0))
}

/// The least possible time over the measured one, in %. Above 100 the limit is wrong, and there is no such share.
pub fn of_limit(time: &Figure, least_s: f64, source: &str) -> Figure {
    match time.value {
        Some(t) if least_s > t * (1.0 + ALIKE) => Figure::unavailable(
            "%",
            source,
            format!(
                "it takes less than the measured limits allow ({}), so a limit was measured too low: \
                 `schwann devices calibrate` on a quiet machine measures them again",
                schwann_core::plan::seconds(least_s)
            ),
        ),
        Some(t) if least_s > t => {
            time.derive("%", format!("{source}; at the limit, within the error of measuring"), |_| 100.0)
        }
        _ => time.derive("%", source, |t| 100.0 * least_s / t),
    }
}

/// `1 thread`, `2 threads`.
pub(super) fn words(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_a_level_come_from_the_next() {
        let level = |name: &str, capacity_bytes, speed| Level {
            name: name.into(),
            capacity_bytes,
            working_set_bytes: 0,
            copy_bytes_per_s: speed,
            read_bytes_per_s: speed / 2.0,
            update_bytes_per_s: speed / 4.0,
        };
        let mut roof = Limits {
            isa: "portable".into(),
            threads: 1,
            flops_per_s: 1.0,
            product_flops_per_s: 1.0,
            bf16_flops_per_s: 1.0,
            int8_ops_per_s: Some(1.0),
            int8_path: Some("made up".into()),
            functions_per_s: 1.0,
            levels: vec![level("L1", Some(1000), 100.0), level("memory", None, 10.0)],
            left_out: vec![],
            provenance: "measured".into(),
            source: String::new(),
        };
        assert_eq!(roof.memory(1000), Some((10.0, "L1")));
        assert_eq!(roof.memory(0), Some((0.0, "L1")));
        assert_eq!(roof.memory(1100), Some((20.0, "memory")));
        roof.levels.pop();
        assert_eq!(roof.memory(1100), None, "nobody measured what is beyond");
    }

    #[test]
    fn no_share_of_a_limit_is_above_all_of_it() {
        let time = Figure::measured(1.0, "s", "a clock");
        let share = |least: f64| of_limit(&time, least, "test");
        assert_eq!(share(0.25).value, Some(25.0));
        assert_eq!(share(1.03).value, Some(100.0));
        let beyond = share(2.54);
        assert!(beyond.value.is_none() && beyond.reason.is_some_and(|r| r.contains("too low")));
        assert!(of_limit(&Figure::unavailable("s", "t", "why"), 1.0, "test").reason.is_some());
    }

    #[test]
    fn functions_are_timed_by_the_evaluation() {
        // Three functions of a gate share one division, so a gate is never much slower than three of the slowest.
        let isa = Isa::detect();
        let of = |op| functions_per_s(isa, op, 0.01).unwrap();
        assert!(of(None) > of(Some(Unary::Tanh)) / 4.0);
    }
}
