//! What a device can do at most, measured through the seam that every graph goes through.
//!
//! This machine's processor has a calibration of its own (`roof.rs`), with its caches and instruction sets. Of any other
//! backend only this is asked: multiply-adds that depend on each other, functions, bytes moved, and what a run and a step
//! cost that do next to nothing. Inputs lie on the device beforehand and results stay there, so that no bus is timed.
//!
//! A limit is the best that was seen. It is measured once in a process for each device, and not kept beyond it.

use super::Result;
use super::roof::numbers;
use crate::measure;
use crate::profile::{Named, Roof};
use schwann_core::backend::Backend;
use schwann_core::memory::Budget;
use schwann_core::op::Unary;
use schwann_core::pass::PassOptions;
use schwann_core::{CompileOptions, DType, Error, Figure, Graph, GraphBuilder, Op, Program, Session, Value};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Multiply-adds of an element, one after the other: so many that moving the element counts for little.
const MULTIPLY_ADDS: usize = 256;
/// Functions of an element, one of the other.
const FUNCTIONS: usize = 32;
/// Elements: as many as take this long, within these bounds.
const LONG_ENOUGH: f64 = 4e-3;
const FEWEST: usize = 1 << 16;
const MOST: usize = 1 << 23;
/// Steps that do next to nothing, in the longer of two graphs.
const STEPS: usize = 33;
/// What is measured, for whoever is told how far it is.
const PARTS: f64 = 5.0;

/// A device's limits: measured now for about so many seconds, or what was measured before in this process.
pub fn measure(backend: &dyn Backend, seconds: f64, tell: &mut dyn FnMut(&str, f64)) -> Result<Roof> {
    static KNOWN: Mutex<BTreeMap<String, Roof>> = Mutex::new(BTreeMap::new());
    let name = backend.name();
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(roof) = known().get(&name) {
        return Ok(roof.clone());
    }
    let part = seconds / PARTS;
    let source = |what: &str| format!("{what}, on {name}");
    let mut done = 0.0;
    let mut next = |what: &str| {
        tell(&format!("limits of the device: {what}"), done / PARTS);
        done += 1.0;
    };

    next("arithmetic");
    let flops = rate(backend, part, MOST, 2 * MULTIPLY_ADDS, multiply_adds)?;
    next("functions");
    let one = |op: Unary| rate(backend, part / 2.0, MOST, FUNCTIONS, |b, x| functions(b, op, x));
    let functions = one(Unary::Tanh)?.max(one(Unary::Sigmoid)?);
    next("memory");
    // As large as can be, so that no cache holds it: an element is read and written.
    let bytes = rate_of(backend, part, MOST, 8, |b, x| b.abs(x))?;
    next("runs");
    let run = |steps: usize| -> Result<f64> {
        let mut still = Still::new(backend, 4, PassOptions::none(), |b, x| (0..steps).try_fold(x, |x, _| b.abs(x)))?;
        Ok(still.time(part / 2.0)?)
    };
    let short = run(1)?;
    next("steps");
    let long = run(STEPS)?;

    let roof = Roof {
        device: name.clone(),
        flops: Figure::measured(
            flops,
            "flop/s",
            source(&format!("{MULTIPLY_ADDS} multiply-adds of each element, each of the one before")),
        ),
        int8: None,
        functions: Figure::measured(functions, "1/s", source(&format!("{FUNCTIONS} tanh or sigmoid of each element"))),
        bandwidth: vec![Named {
            name: "memory".into(),
            figure: Figure::measured(bytes, "B/s", source("elements read and written once, as many as fit")),
        }],
        step_overhead: Figure::derived(
            (long - short).max(0.0) / (STEPS - 1) as f64,
            "s",
            source(&format!("a run of {STEPS} steps that do next to nothing, less one of 1")),
        ),
        bf16_gain: None,
        run_overhead: Some(Figure::measured(
            short,
            "s",
            source("a run of one step that does next to nothing, and the wait"),
        )),
    };
    known().insert(name.clone(), roof.clone());
    Ok(roof)
}

/// y ← y·a + x, again and again.
fn multiply_adds(b: &mut GraphBuilder, x: Value) -> schwann_core::Result<Value> {
    let a = b.input("a", DType::F32, &[1][..])?;
    let mut y = x;
    for _ in 0..MULTIPLY_ADDS {
        let product = b.mul(y, a)?;
        y = b.add(product, x)?;
    }
    Ok(y)
}

fn functions(b: &mut GraphBuilder, op: Unary, x: Value) -> schwann_core::Result<Value> {
    (0..FUNCTIONS).try_fold(x, |x, _| b.push(Op::Unary(op), &[x]))
}

/// Things done a second, if an element is so many of them: with as many elements as make a run long.
fn rate(
    backend: &dyn Backend,
    seconds: f64,
    most: usize,
    each: usize,
    make: impl Fn(&mut GraphBuilder, Value) -> schwann_core::Result<Value>,
) -> Result<f64> {
    let mut count = FEWEST;
    while count < most {
        let took = Still::new(backend, count, PassOptions::default(), &make)?.once()?;
        if took > LONG_ENOUGH {
            break;
        }
        count *= 4;
    }
    rate_of(backend, seconds, count.min(most), each, make)
}

/// The same with so many elements, or as many as the device has room for.
fn rate_of(
    backend: &dyn Backend,
    seconds: f64,
    mut count: usize,
    each: usize,
    make: impl Fn(&mut GraphBuilder, Value) -> schwann_core::Result<Value>,
) -> Result<f64> {
    loop {
        let tried = Still::new(backend, count, PassOptions::default(), &make).and_then(|mut s| s.time(seconds));
        match tried {
            Ok(took) => return Ok((count * each) as f64 / took.max(1e-12)),
            Err(_) if count > FEWEST => count /= 2,
            Err(problem) => return Err(problem.into()),
        }
    }
}

/// A graph whose inputs are on the device, and whose results stay there.
struct Still(Session);

impl Still {
    fn new(
        backend: &dyn Backend,
        count: usize,
        passes: PassOptions,
        make: impl Fn(&mut GraphBuilder, Value) -> schwann_core::Result<Value>,
    ) -> schwann_core::Result<Still> {
        let graph = graph(count, make)?;
        let options = CompileOptions::default().passes(passes).budget(Budget::fraction(0.9).unwrap_or_default());
        let mut session = Program::compile_for(&graph, backend, &options)?.session();
        for (name, value) in graph.inputs() {
            let shape: Vec<usize> = graph.ty(value).shape.dims().iter().filter_map(|d| d.as_fixed()).collect();
            let data = numbers(DType::F32, &shape, 0.25, 0.75).map_err(|e| Error::Internal(e.to_string()))?;
            session.upload(name, &data)?;
        }
        Ok(Still(session))
    }

    fn run(&mut self) -> schwann_core::Result<()> {
        self.0.submit(&[])?;
        self.0.wait()
    }

    /// Seconds of the second run: the first one compiles.
    fn once(&mut self) -> schwann_core::Result<f64> {
        self.run()?;
        let start = std::time::Instant::now();
        self.run()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The least seconds of a run.
    fn time(&mut self, seconds: f64) -> schwann_core::Result<f64> {
        Ok(measure::time(seconds, || self.run())?.min_s)
    }
}

fn graph(
    count: usize,
    make: impl Fn(&mut GraphBuilder, Value) -> schwann_core::Result<Value>,
) -> schwann_core::Result<Graph> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, &[count][..])?;
    let y = make(&mut b, x)?;
    b.output("y", y)?;
    b.build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use schwann_core::backend::cpu::Cpu;

    #[test]
    fn every_limit_of_a_backend_is_measured_once() {
        let cpu = Cpu::new(1).unwrap();
        let mut told = vec![];
        let roof = measure(&cpu, 0.05, &mut |what, part| told.push((what.to_owned(), part))).unwrap();
        assert_eq!(told.len(), PARTS as usize);
        assert!(told.iter().all(|(_, part)| (0.0..1.0).contains(part)), "{told:?}");
        let run = roof.run_overhead.clone().unwrap();
        for figure in [&roof.flops, &roof.functions, &roof.bandwidth[0].figure, &run] {
            assert!(figure.value.unwrap() > 0.0 && figure.source.contains(&cpu.name()), "{figure:?}");
        }
        assert!(roof.step_overhead.value.unwrap() < run.value.unwrap());
        let again = measure(&cpu, 0.05, &mut |_, _| panic!("it is known")).unwrap();
        assert_eq!(again, roof);
    }
}
