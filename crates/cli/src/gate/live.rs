//! A model that is run now, sample by sample, through the call that a program makes.

use super::Shape;
use crate::load::{self, Network};
use anyhow::{Context, Result, bail};
use schwann::nn::{GraphOptions, InitialState};
use schwann::pass::PassOptions;
use schwann::prof::device::roof::{Ready, numbers};
use schwann::{Bindings, DType, Graph, Tensor};
use std::time::Instant;

/// A sample lasts at least this long: the clock's own cost is then under a part in a thousand.
const LEAST_SAMPLE: f64 = 200e-6;

/// What is run, and how.
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) batch: usize,
    pub(super) steps: usize,
    pub(super) threads: usize,
    graph: Graph,
    sizes: Bindings,
}

impl Workload {
    /// A built-in model or a network's file.
    pub(super) fn new(name: &str, shape: &Shape) -> Result<Workload> {
        let network = load::named(name)?;
        let graph = match network {
            Network::Graph(graph) => *graph,
            // States of zero, as where nobody gives one.
            Network::Model(model) => model.graph(&GraphOptions::default().state(InitialState::Zero))?,
        };
        let (batch, steps) = (shape.batch.unwrap_or(32), shape.steps.unwrap_or(16));
        let threads = match shape.threads.unwrap_or(1) {
            0 => schwann::prof::device::cpu::cores(),
            n => n,
        };
        let sizes = Bindings::new().with("B", batch).with("T", steps);
        if let Some(other) = graph.symbols().iter().find(|s| sizes.get(s).is_none()) {
            bail!("{name} leaves the size `{other}` open; the gate knows B (--batch) and T (--steps)");
        }
        Ok(Workload { name: name.to_owned(), batch, steps, threads, graph, sizes })
    }

    /// Whether it runs over sequences, of any length.
    pub(super) fn has_steps(&self) -> bool {
        self.graph.symbols().iter().any(|s| s == "T")
    }

    /// Compiled anew, with memory of its own.
    pub(super) fn ready(&self) -> Result<Run> {
        let cpu = load::cpu(None, self.threads)?;
        let mut inputs = vec![];
        for (name, value) in self.graph.inputs() {
            let ty = self.graph.ty(value);
            let shape = ty.shape.eval(&self.sizes)?;
            let data = match ty.dtype {
                DType::F32 => numbers(DType::F32, &shape, -1.0, 1.0)?,
                // Symbols and the like: the first one is always there.
                other => Tensor::zeros(other, &shape)?,
            };
            inputs.push((name.to_owned(), data));
        }
        let ready = Ready::new(&self.graph, inputs, &cpu, PassOptions::default())
            .with_context(|| format!("{}, batch {}, {} steps", self.name, self.batch, self.steps))?;
        Ok(Run { ready, calls: 1 })
    }
}

/// A compiled model that is timed.
pub(super) struct Run {
    ready: Ready,
    /// Runs that are one sample.
    calls: usize,
}

impl Run {
    /// Runs for so many seconds and settles how many runs a sample is.
    pub(super) fn warm_up(&mut self, seconds: f64) -> Result<()> {
        // The first run lays memory out.
        self.ready.run()?;
        let (start, mut least) = (Instant::now(), f64::INFINITY);
        loop {
            let one = Instant::now();
            self.ready.run()?;
            least = least.min(one.elapsed().as_secs_f64());
            if start.elapsed().as_secs_f64() >= seconds {
                break;
            }
        }
        self.calls = ((LEAST_SAMPLE / least.max(1e-9)).ceil() as usize).clamp(1, 1_000_000);
        Ok(())
    }

    /// How many runs a sample is.
    pub(super) fn set_calls(&mut self, calls: usize) {
        self.calls = calls.clamp(1, 1_000_000);
    }

    /// Seconds of so many runs together.
    pub(super) fn calls(&mut self, calls: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..calls {
            self.ready.run()?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Seconds of a run, as the mean of one sample.
    pub(super) fn sample(&mut self) -> Result<f64> {
        Ok(self.calls(self.calls)? / self.calls as f64)
    }
}
